//! The face of memtier_benchmark: its command line and its reports.
//!
//! Each client is a connection with an order of commands and keys of its own ([`Clients`]). The reports have memtier's
//! lines, columns and names ("Format version" 2 of its JSON). Where memtier's figures mislead, these are others: replies
//! that are errors are no operations, a run of nothing but errors fails; under `--rate-limiting` requests are due at times
//! that the server does not influence, and their latency begins then; the columns of the totals are the sums of the rows.
//!
//! Limits: memcache is refused by name; in a cluster each connection draws
//! keys until one belongs to its node, and slots that move during a run show as MOVED.

mod arguments;
mod client_stats;
mod configuration;
mod figures;
mod hdr;
mod import;
mod json;
mod recorded;
mod text;
mod verify;

pub(super) use arguments::is_meant;

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::arguments::{MAX_CONNECTIONS, MAX_TIME_NS};
use super::clients::MAX_SERIES;
use super::cluster::Cluster;
use super::console::{Console, print};
use super::items::{Expiry, Items};
use super::outcome::Outcome;
use super::plan::{Growth, Live, Load, Plan, ProtocolPlan};
use super::redis::{ClientCommand, ClientKeys, Clients, Recording, RedisPlan, Waits, Word, words};
use super::scan::Scan;
use super::statsd::Statsd;
use super::target::Server;
use super::template::{KeyPattern, KeySpace, Sizes, Template, Values};
use super::tls::{Connector, TlsPlan};
use super::{output, run};
use arguments::{Amount, Asked, Import, Metrics, Options, Pattern, WaitRatio};
use figures::Run;
use recorded::{Placeholder, Recorded};
use verify::Verified;

/// The number of WAIT among the commands, behind SET and GET.
const WAIT: u16 = 2;

/// The time limit of a reply; memtier has none and waits for ever.
const REPLY_TIMEOUT_NS: u64 = 60_000_000_000;

const USAGE: &str = "\
usage: memtier_benchmark [OPTION]…

connection:
  -s, --server HOST, -h, --host HOST  (localhost)      -p, --port PORT  (6379)
  -S, --unix-socket PATH       -4, --ipv4   -6, --ipv6   -u, --uri redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]
  -P, --protocol NAME          redis, resp2 or resp3     -a, --authenticate [USER:]PASSWORD
      --select-db N            --cluster-mode            --connection-timeout SECONDS
      --tls  --cert FILE  --key FILE  --cacert FILE  --tls-skip-verify  --sni NAME  --tls-protocols NAMES
test:
  -n, --requests N|allkeys     of each client (10000)    --test-time SECONDS
  -c, --clients N              of each thread (50)       -t, --threads N  (4)
      --pipeline N             (1)                       --ratio SETS:GETS  (1:10)
      --wait-ratio SETS:WAITS  --num-slaves MIN-MAX      --wait-timeout MIN-MAX
      --clients-start N  --clients-step N  --step-duration SECONDS   clients of each thread that begin later
      --thread-conn-start-min-jitter-micros N  --thread-conn-start-max-jitter-micros N   between connections
      --rate-limiting N        requests per second of each connection, as an open loop
      --reconnect-interval N   requests of a connection
      --reconnect-on-error     lost connections are replaced after a second; without it at once
      --max-reconnect-attempts N   until one is made     --reconnect-backoff-factor N   of that second
      --distinct-client-seed   --randomize               -x, --run-count N  (1)
commands:
      --command 'COMMAND'      with __key__ and __data__; repeated, each with
      --command-ratio N        (1)
      --command-key-pattern X  R, S, G, P or Z (R)
      --scan-incremental-iteration   SCAN follows the cursors   --scan-incremental-max-iterations N
      --monitor-input FILE     recorded by MONITOR: __monitor_lineN__, __monitor_line@__ in turn, or as
      --monitor-pattern S|R    says (S)
objects and keys:
  -d, --data-size N  (32)      --data-size-range MIN-MAX   --data-size-list SIZE:WEIGHT,…   --data-size-pattern R|S
  -R, --random-data            --data-offset N             --expiry-range MIN-MAX
      --key-prefix TEXT  (memtier-)   --key-minimum N  (0)   --key-maximum N  (10000000)
      --key-pattern X:X  (R:R)        --key-stddev N   --key-median N   --key-zipf-exp N  (1)
      --data-import FILE       of memcache; with --data-verify, --verify-only, --generate-keys, --no-expiry
output:
  -o, --out-file FILE          --json-out-file FILE        --hdr-file-prefix PREFIX
      --client-stats PREFIX    CSV of each client
      --print-percentiles LIST (50,99,99.9)                --hide-histogram   --print-all-runs
      --statsd-host HOST  --statsd-port N (8125)  --statsd-prefix TEXT (memtier)  --statsd-run-label TEXT (default)
      --graphite-port N        of events (8080)
      --command-stats-breakdown command|line               --show-config   -D, --debug
      --help                   -v, --version

`sluicegate bench redis --help` describes the load generator's own options.
";

/// Runs memtier's command line. Returns the exit code: 0 if a request succeeded, 1 if none did or the options make no
/// run, 130 after an interrupt.
pub(super) fn execute(line: &[String], console: &mut Console<'_>) -> u8 {
    let options = match arguments::parse(line) {
        Ok(Asked::Run(options)) => options,
        Ok(Asked::Help) => return print(console, USAGE).map_or(1, |()| 0),
        Ok(Asked::Version) => {
            let version = concat!("memtier_benchmark of sluicegate ", env!("CARGO_PKG_VERSION"), "\n");
            return print(console, version).map_or(1, |()| 0);
        }
        Err(message) => return console.refuse(&format!("{message}\n\nhint: memtier_benchmark --help")),
    };
    match runs(&options, console) {
        Ok(done) => finish(&options, &done, console),
        Err(message) => console.refuse(&message),
    }
}

/// Inputs that are read once, before the runs: files from which commands are made, and the address of a server of metrics.
#[derive(Default)]
struct Inputs {
    statsd: Option<Statsd>,
    items: Option<Arc<Items>>,
    recorded: Option<Recorded>,
}

/// The results of the runs, and of the verification.
struct Done {
    outcomes: Vec<Outcome>,
    verified: Option<Verified>,
}

fn runs(options: &Options, console: &mut Console<'_>) -> Result<Done, String> {
    if options.show_config {
        show_config(options, console)?;
    }
    if let (true, Amount::Requests(count)) = (options.is_all_keys, options.amount) {
        print(console, &format!("setting requests to {count}\n"))?;
    }
    let nodes = match options.cluster {
        true => {
            let tls = tls(options)?.as_ref().map(Connector::new).transpose()?;
            Some(Cluster::find(&options.server, options.family, &options.login, tls.as_ref())?)
        }
        false => None,
    };
    let inputs = Inputs {
        statsd: options.metrics.as_ref().and_then(|metrics| statsd(options, metrics, console)),
        items: options.import.as_ref().map(|import| items(options, import, console)).transpose()?,
        recorded: options.recorded.as_ref().map(|(path, _)| recorded(path, console)).transpose()?,
    };
    let only_verifies = options.import.as_ref().is_some_and(|import| import.only_verifies);
    let (mut outcomes, mut verified) = (Vec::new(), None);
    for number in 1..=if only_verifies { 0 } else { options.run_count } {
        let plan = plan(options, nodes.as_ref(), &inputs, number)?;
        if let Some(pattern) = text::staircase(options, number) {
            // As above.
            let _ = write!(console.err, "{pattern}");
        }
        let outcome = run::measure(&plan, console)?;
        hdr::write(options, &Run::of(options, &outcome), number)?;
        client_stats::write(options, &outcome, number, console)?;
        let is_over = outcome.is_interrupted;
        outcomes.push(outcome);
        if is_over {
            break;
        }
    }
    let is_verified = options.import.as_ref().is_some_and(|import| import.is_verified);
    if is_verified && !outcomes.iter().any(|outcome| outcome.is_interrupted) {
        verified = Some(verify::verify(options, &plan(options, None, &inputs, 1)?, console)?);
    }
    Ok(Done { outcomes, verified })
}

/// Finds the server of metrics. Without one there are none.
fn statsd(options: &Options, metrics: &Metrics, console: &mut Console<'_>) -> Option<Statsd> {
    let Metrics { host, ports, prefix, label } = metrics;
    let found = Statsd::find(host, *ports, (prefix, label), &options.percentiles);
    // If this can't be written, errors can't either.
    let _ = match &found {
        Some(statsd) => writeln!(
            console.err,
            "statsd: initialized, sending metrics to {host}:{} with prefix '{prefix}' run_label '{}'",
            ports.0,
            statsd.label()
        ),
        None => writeln!(
            console.err,
            "statsd: failed to resolve host '{host}'\nwarning: failed to initialize StatsD client, metrics will not be sent"
        ),
    };
    found
}

/// Prints the configuration; its frame goes where messages go.
fn show_config(options: &Options, console: &mut Console<'_>) -> Result<(), String> {
    // If this can't be written, errors can't either.
    let _ = writeln!(console.err, "============== Configuration values: ==============");
    print(console, &configuration::lines(options))?;
    let _ = writeln!(console.err, "===================================================");
    Ok(())
}

/// Reads the items that are imported.
fn items(options: &Options, import: &Import, console: &mut Console<'_>) -> Result<Arc<Items>, String> {
    let list = import::read(&import.path)?;
    // If this can't be written, errors can't either.
    let _ = writeln!(console.err, "Reading keys from {}... {} keys read.", import.path.display(), list.len());
    let expiry = match (import.expires, options.expiry) {
        (false, _) => Expiry::Never,
        (true, Some((min, max))) => Expiry::Range(min, max),
        (true, None) => Expiry::Own,
    };
    Ok(Arc::new(Items { list, draws_keys: import.draws_keys, expiry }))
}

/// Reads the commands that were recorded.
fn recorded(path: &Path, console: &mut Console<'_>) -> Result<Recorded, String> {
    let recorded = Recorded::read(path)?;
    let (count, lines) = (recorded.commands.len(), recorded.lines);
    // As above.
    let _ = writeln!(console.err, "Loaded {count} monitor commands from {lines} total lines");
    Ok(recorded)
}

fn finish(options: &Options, Done { outcomes, verified }: &Done, console: &mut Console<'_>) -> u8 {
    let runs: Vec<Run> = outcomes.iter().map(|outcome| Run::of(options, outcome)).collect();
    let mut report = String::new();
    let titled = match runs.is_empty() {
        true => Vec::new(),
        false => {
            let titled = figures::titled(options, runs);
            report = text::report(options, &titled);
            titled
        }
    };
    if let Some(verified) = verified {
        report += &text::verification(*verified);
    }
    let written = match &options.out_file {
        None => print(console, &report),
        Some(path) => output::write(path, &report),
    };
    let written = written.and_then(|()| match &options.json_file {
        None => Ok(()),
        Some(path) => output::write(path, &json::report(options, &titled, *verified)),
    });
    if let Err(message) = written {
        return console.refuse(&message);
    }
    for line in text::remarks(outcomes) {
        // Only the exit code remains if errors can't be written either.
        let _ = writeln!(console.err, "warning: {line}");
    }
    if outcomes.iter().any(|outcome| outcome.is_interrupted) {
        return 130;
    }
    match outcomes.iter().find(|outcome| !outcome.has_worked()) {
        None => match verified {
            Some(Verified { failed: failed @ 1.., .. }) => {
                console.refuse(&format!("{failed} keys are not as imported"))
            }
            _ => 0,
        },
        Some(outcome) => console.refuse(&text::defeat(outcome)),
    }
}

fn plan(options: &Options, cluster: Option<&Cluster>, inputs: &Inputs, number: u32) -> Result<Plan, String> {
    let clients = options.clients * options.threads;
    let nodes = cluster.map_or(1, |cluster| cluster.servers.len() as u64);
    let connections = clients * nodes;
    if connections > MAX_CONNECTIONS {
        return Err(format!("{connections} connections; at most {MAX_CONNECTIONS} are made"));
    }
    let (requests, duration_ns) = match options.amount {
        Amount::Requests(each) => (Some(each.checked_mul(clients).ok_or("more requests than are counted")?), None),
        Amount::Seconds(seconds) => (None, Some(seconds * 1_000_000_000)),
    };
    let requests_each = match (options.amount, cluster) {
        (Amount::Requests(each), Some(cluster)) => cluster.shares(each),
        (Amount::Requests(each), None) => vec![each],
        (Amount::Seconds(_), _) => Vec::new(),
    };
    let seed = match options.randomize {
        true => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64),
        false => 1,
    };
    let (commands, recording) = commands(options, inputs)?;
    let plan = RedisPlan::of_clients(
        commands,
        &options.login,
        Clients {
            spaces: Vec::new(),
            seed,
            has_own_seeds: options.distinct_seeds,
            count: clients,
            values: Values::new(options.sizes.clone(), options.random_data, seed),
            items: inputs.items.clone(),
            recording: recording.map(Arc::new),
            scan: options.scan.map(|most| Scan { first: 0, next: 1, most: Some(most).filter(|most| *most > 0) }),
            waits: options.waits.as_ref().map(|waits| Waits { command: WAIT, each: waits.sets }),
            nodes: cluster.map(|cluster| cluster.nodes.clone()),
        },
    )?;
    let commands = plan.names().count() as u64;
    if options.client_stats.is_some() && clients * commands > MAX_SERIES {
        return Err(format!(
            "--client-stats: {clients} clients with {commands} commands; at most {MAX_SERIES} are kept"
        ));
    }
    let mut tls = tls(options)?;
    if let (Some(tls), Some(cluster), false) = (&mut tls, cluster, options.has_server_name()) {
        tls.node_names = cluster.hosts();
    }
    let connect_timeout_ns = options.connection_timeout_s.map_or(10_000_000_000, |seconds| seconds * 1_000_000_000);
    let load = Load {
        family: options.family,
        tls,
        connections: connections as usize,
        threads: options.threads as usize,
        duration_ns,
        requests,
        requests_each,
        cuts_off: true,
        rate: options.rate.map(|rate| (rate * clients) as f64),
        pipeline: options.pipeline as usize,
        timeout_ns: REPLY_TIMEOUT_NS,
        connect_timeout_ns: connect_timeout_ns.min(MAX_TIME_NS),
        write_timeout_ns: REPLY_TIMEOUT_NS,
        renew_after: options.reconnect_interval,
        growth: options.staircase.map(|stairs| Growth {
            first: (stairs.first * nodes) as usize,
            step: (stairs.step * nodes) as usize,
            every_ns: stairs.step_s * 1_000_000_000,
        }),
        opening_pause_ns: (options.jitter_us.0 * 1000, options.jitter_us.1 * 1000),
        reconnects: options.reconnects,
        has_series: true,
        has_clients: options.client_stats.is_some(),
        nodes: cluster.map_or(Vec::new(), |cluster| cluster.servers.clone()),
        interval_ns: Some(1_000_000_000),
        seed,
        live: Live::Memtier(number),
        statsd: inputs.statsd.clone(),
        traces: options.debug > 0,
        ..Load::to(options.server.clone())
    };
    Ok(Plan { load, protocol: ProtocolPlan::Redis(plan) })
}

/// Returns the TLS of connections to the server.
fn tls(options: &Options) -> Result<Option<TlsPlan>, String> {
    let Some(tls) = &options.tls else { return Ok(None) };
    let host = match &options.server {
        Server::Tcp(host, _) => Some(host.as_str()),
        Server::Unix(_) => None,
    };
    tls.clone().plan(host, "a unix socket has no name", &[]).map(Some)
}

/// Returns the commands, and those that are recorded, for `__monitor_line@__`.
fn commands(options: &Options, inputs: &Inputs) -> Result<(Vec<ClientCommand>, Option<Recording>), String> {
    let items = inputs.items.as_deref();
    let (min, max) = match items {
        Some(items) if !items.draws_keys => (0, items.list.len() as u64 - 1),
        _ => options.keys,
    };
    let keys = |pattern: Pattern| ClientKeys {
        space: KeySpace {
            prefix: options.key_prefix.clone(),
            min,
            max,
            pattern: match pattern {
                Pattern::Random => KeyPattern::Uniform,
                Pattern::Sequential | Pattern::Parallel => KeyPattern::Sequential,
                Pattern::Zipf => KeyPattern::Zipf(options.key_zipf),
                Pattern::Gaussian if options.key_median > 0.0 => {
                    KeyPattern::Around(options.key_median, options.key_stddev)
                }
                Pattern::Gaussian => KeyPattern::Gaussian(options.key_stddev),
            },
        },
        is_divided: pattern == Pattern::Parallel,
    };
    let client =
        |name, words, times, pattern| ClientCommand { name, words, times, keys: keys(pattern), is_inline: false };
    if !options.commands.is_empty() {
        let own = options.commands.iter().map(|command| {
            let (mut name, mut words) = (None, words(&command.text)?.into_iter().map(Word::Text).collect());
            match (command.recorded, &inputs.recorded) {
                (Some(Placeholder::Any), Some(_)) => words = vec![Word::Recorded],
                (Some(Placeholder::One(number)), Some(recorded)) => {
                    let one = recorded.command(number)?;
                    words = one.iter().map(|word| Word::Template(Template::plain(word))).collect();
                    let first = type_of(one);
                    name = Some(if options.by_line { format!("{first} (Line {number})") } else { first });
                }
                _ => {}
            }
            Ok(client(name, words, command.times, command.pattern))
        });
        let mut own = own.collect::<Result<Vec<_>, String>>()?;
        if let ([first], Some(_)) = (own.as_mut_slice(), options.scan) {
            first.name = Some("SCAN 0".to_owned());
            let mut next = ClientCommand { name: Some("SCAN <cursor>".to_owned()), times: 0, ..first.clone() };
            next.words[1] = Word::Cursor;
            own.push(next);
        }
        let recording = match &inputs.recorded {
            Some(recorded) if own.iter().any(|command| command.words == [Word::Recorded]) => {
                let mut counted = Vec::new();
                let first = own.len();
                for words in &recorded.commands {
                    let name = type_of(words);
                    let known = own[first..].iter().position(|command| command.name.as_deref() == Some(&name));
                    let number = first + known.unwrap_or(own.len() - first);
                    if known.is_none() {
                        let plain = words.iter().map(|word| Word::Template(Template::plain(word))).collect();
                        own.push(client(Some(name), plain, 0, Pattern::Random));
                    }
                    counted.push((words.clone(), number as u16));
                }
                let is_random = options.recorded.as_ref().is_some_and(|(_, is_random)| *is_random);
                Some(Recording::new(&counted, is_random)?)
            }
            _ => None,
        };
        return Ok((own, recording));
    }
    let text = |word: &str| Word::Text(word.as_bytes().to_vec());
    let (key, data, offset) = (text("__key__"), text("__data__"), text(&options.data_offset.to_string()));
    let set = match (options.expiry, options.data_offset) {
        _ if items.is_some() => vec![Word::Item],
        (Some((min, max)), _) => vec![text("SETEX"), key.clone(), Word::Number(min, max), data],
        (None, 0) => vec![text("SET"), key.clone(), data],
        (None, _) => vec![text("SETRANGE"), key.clone(), offset.clone(), data],
    };
    let get = match (&options.sizes, options.data_offset) {
        (Sizes::Fixed(size), 1..) => {
            let end = options.data_offset + *size as u64 - 1;
            vec![text("GETRANGE"), key, offset, text(&end.to_string())]
        }
        _ => vec![text("GET"), key],
    };
    let mut commands = vec![
        client(None, set, options.ratio.0, options.patterns.0),
        client(None, get, options.ratio.1, options.patterns.1),
    ];
    if let Some(WaitRatio { replicas, timeout_ms, .. }) = options.waits {
        let words = vec![text("WAIT"), Word::Number(replicas.0, replicas.1), Word::Around(timeout_ms.0, timeout_ms.1)];
        commands.push(client(None, words, 0, Pattern::Random));
    }
    Ok((commands, None))
}

/// Returns the name of a command in the reports.
fn type_of(words: &[Vec<u8>]) -> String {
    words.first().map_or_else(String::new, |word| String::from_utf8_lossy(word).to_uppercase())
}

#[cfg(test)]
mod tests;
