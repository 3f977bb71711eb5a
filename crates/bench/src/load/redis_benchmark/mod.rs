//! The face of redis-benchmark: its command line, its series of tests and its reports.
//!
//! Each client is a connection that draws its own random numbers. The reports have redis-benchmark's lines; latencies are
//! recorded with its bounds. An error reply ends the run, as in redis-benchmark 7. Other than there, exactly `-n` requests
//! are sent, not the next multiple of `-P`, and an interrupt prints what there is.
//!
//! Limits: slots that move during a run show as a warning.

mod arguments;
mod idle;
mod report;
mod tests_of;

pub(super) use arguments::is_meant;

use std::time::{SystemTime, UNIX_EPOCH};

use super::ask::{Asked as Server, Failure, Item, ask};
use super::cluster::Cluster;
use super::console::{Console, print};
use super::outcome::Outcome;
use super::plan::{Live, Load, Plan, ProtocolPlan};
use super::random::Random;
use super::redis::{ClientCommand, ClientKeys, Clients, RedisPlan, Word};
use super::run;
use super::target::Family;
use super::template::{Content, Hole, KeySpace, Sizes, Template, Values};
use super::tls::{Connector, TlsPlan};
use arguments::{Asked, Options};
use report::{CSV_HEADER, Servers, Settings};
use tests_of::Test;

/// The time limit of a reply; redis-benchmark has none and waits for ever.
const REPLY_TIMEOUT_NS: u64 = 60_000_000_000;

/// The time between two lines that show the progress.
const INTERVAL_NS: u64 = 250_000_000;

const USAGE: &str = "\
Usage: redis-benchmark [OPTIONS] [COMMAND ARGS...]

server:
  -h HOST  (127.0.0.1)      -p PORT  (6379)      -s SOCKET      -u redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]
  -a PASSWORD   --user NAME   --dbnum N   -3 (RESP3)   --enable-tracking   --cluster
  --tls   --sni NAME   --cacert FILE   --cacertdir DIR   --insecure   --cert FILE   --key FILE
  --tls-ciphers LIST   --tls-ciphersuites LIST
requests:
  -c CLIENTS  (50)   -n REQUESTS  (100000)   -d BYTES  (3)   -P PIPELINE  (1)   -k 0|1  keep connections (1)
  -r N          replace each __rand_int__ by twelve digits below N
  -t TESTS      ping, set, get, incr, lpush, rpush, lpop, rpop, sadd, hset, spop, zadd, zpopmin, lrange, mset, xadd;
                also ping_inline, ping_mbulk, lrange_100, lrange_300, lrange_500, lrange_600
  -x            the command's last argument is standard input
  --threads N   --seed N   -l  loop   -I  open the connections and wait
output:
  -q   --csv   --precision DIGITS  (3)   --help   --version

`sluicegate bench redis --help` describes the load generator's own options.
";

/// Runs redis-benchmark's command line. Returns the exit code: 0 after the last test, 1 if a connection fails, a reply is
/// an error or an option is wrong, 130 after an interrupt.
pub(super) fn execute(line: &[String], console: &mut Console<'_>) -> u8 {
    let options = match arguments::parse(line) {
        Ok(Asked::Run(options)) => options,
        Ok(Asked::Help) => return print(console, USAGE).map_or(1, |()| 0),
        Ok(Asked::Version) => {
            let version = concat!("redis-benchmark of sluicegate ", env!("CARGO_PKG_VERSION"), "\n");
            return print(console, version).map_or(1, |()| 0);
        }
        Err(message) => {
            console.refuse(&format!("{message}\n\n{USAGE}"));
            return 1;
        }
    };
    match runs(&options, console) {
        Ok(code) => code,
        Err(message) => {
            // Only the exit code remains if errors can't be written either.
            let _ = writeln!(console.err, "{message}");
            1
        }
    }
}

fn runs(options: &Options, console: &mut Console<'_>) -> Result<u8, String> {
    let (servers, cluster) = servers(options, console)?;
    let mut options = options.clone();
    if let (Some(cluster), 0) = (&cluster, options.threads) {
        options.threads = cluster.servers.len() as u64;
    }
    let options = &options;
    if !options.keep_alive {
        warn(console, "Keepalive disabled: each connection takes a port of this machine for a minute");
    }
    for text in &options.warnings {
        warn(console, text);
    }
    if options.idle {
        let text = format!("Creating {} idle connections and waiting forever (Ctrl+C when done)\n", options.clients);
        print(console, &text)?;
        return idle::run(&options.server, options.clients, console);
    }
    if options.csv {
        print(console, CSV_HEADER)?;
    }
    let tests = tests_of::of(options);
    loop {
        for test in &tests {
            let plan = plan(options, cluster.as_ref(), test)?;
            let outcome = run::measure(&plan, console)?;
            if outcome.stats.answered > 0 {
                print(console, &report::report(options, &servers, &test.title, test.payload, &outcome))?;
            }
            for text in &outcome.warnings {
                warn(console, text);
            }
            if outcome.is_interrupted {
                return Ok(130);
            }
            check(options, &outcome)?;
        }
        if !options.csv && options.command.is_empty() {
            print(console, "\n")?;
        }
        if !options.loops {
            return Ok(0);
        }
    }
}

fn warn(console: &mut Console<'_>, text: &str) {
    let _ = writeln!(console.err, "WARNING: {text}");
}

/// Returns an error if a request got no reply, or none that was meant for it.
fn check(options: &Options, outcome: &Outcome) -> Result<(), String> {
    let stats = &outcome.stats;
    if let Some(text) = stats.connect_faults.first_example().filter(|_| stats.answered == 0) {
        return Err(format!("Could not connect to Redis at {}: {text}", options.server));
    }
    if stats.failed() > 0 {
        let text = stats.faults.first_example().unwrap_or_default();
        return Err(format!("Error: {} requests got no reply: {text}", stats.failed()));
    }
    if stats.answered < options.requests {
        return Err(format!("Error: {} requests were not sent", options.requests - stats.answered));
    }
    match stats.error_replies() {
        0 => Ok(()),
        count => Err(format!("Error: {count} keys belong to another node of the cluster now")),
    }
}

/// Asks the servers for their settings, and of a cluster for its nodes.
fn servers(options: &Options, console: &mut Console<'_>) -> Result<(Servers, Option<Cluster>), String> {
    let tls = options.tls.as_ref().map(Connector::new).transpose()?;
    if !options.cluster {
        let settings = settings(options, &options.server, tls.as_ref())?;
        if settings.is_none() {
            warn(console, "Could not fetch server CONFIG");
        }
        return Ok((Servers::One(settings), None));
    }
    let cluster = Cluster::find(&options.server, Family::Any, &options.login, tls.as_ref())?;
    let count = cluster.servers.len();
    if count < 2 {
        return Err(format!("Invalid cluster: {count} node(s)."));
    }
    if options.clients < count as u64 {
        return Err(format!("-c {}: a cluster of {count} nodes wants a client for each", options.clients));
    }
    let mut text = format!("Cluster has {count} master nodes:\n\n");
    let mut all = Vec::new();
    let nodes = cluster.servers.iter().zip(&cluster.names).zip(cluster.hosts());
    for (number, ((server, name), host)) in nodes.enumerate() {
        text.push_str(&format!("Master {number}: {name} {server}\n"));
        let tls = of_node(options, vec![host]).as_ref().map(Connector::new).transpose()?;
        let settings = settings(options, server, tls.as_ref())?;
        if settings.is_none() {
            warn(console, &format!("Could not fetch node CONFIG {server}"));
        }
        all.push(settings);
    }
    text.push('\n');
    print(console, &text)?;
    Ok((Servers::Cluster(all), Some(cluster)))
}

/// Returns the settings of TLS for nodes of a cluster, which bear their own names unless `--sni` names all of them.
fn of_node(options: &Options, names: Vec<String>) -> Option<TlsPlan> {
    let mut tls = options.tls.clone()?;
    if !options.has_server_name {
        tls.node_names = names;
    }
    Some(tls)
}

fn settings(
    options: &Options,
    server: &super::target::Server,
    tls: Option<&Connector>,
) -> Result<Option<Settings>, String> {
    let asked = Server { server, family: Family::Any, login: &options.login, tls };
    let answers = ask(&asked, &[&["CONFIG", "GET", "save"], &["CONFIG", "GET", "appendonly"]]);
    let answers = match answers {
        Ok(answers) => answers,
        Err(Failure::Connect(text)) => return Err(format!("Could not connect to Redis at {server}: {text}")),
        Err(Failure::Login(text)) => return Err(format!("Node {server} replied with error:\n{text}")),
        Err(Failure::Answer(_)) => return Ok(None),
    };
    if let Some(Item::Error(text)) =
        answers.iter().find(|item| matches!(item, Item::Error(text) if text.starts_with("NOAUTH")))
    {
        return Err(format!("Node {server} replied with error:\n{text}"));
    }
    let value = |item: &Item| match item {
        Item::List(pair) => match pair.as_slice() {
            [_, Item::Text(value)] => Some(value.clone()),
            _ => None,
        },
        _ => None,
    };
    let values: Vec<Option<String>> = answers.iter().map(value).collect();
    Ok(match values.as_slice() {
        [Some(save), Some(appendonly)] => Some(Settings { save: save.clone(), appendonly: appendonly.clone() }),
        _ => None,
    })
}

fn plan(options: &Options, cluster: Option<&Cluster>, test: &Test) -> Result<Plan, String> {
    let seed = options
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64));
    let mut random = Random::new(seed);
    // Printable bytes without a meaning to any command.
    let data: Vec<u8> = (0..options.data_size).map(|_| b'a' + random.below(26) as u8).collect();
    let mut placeholders: Vec<(&[u8], Content<'_>)> = vec![(b"__data__", Content::Bytes(&data))];
    if let Some(count) = options.keys {
        placeholders.push((b"__rand_int__", Content::Hole(Hole::Digits(count))));
    }
    if cluster.is_some() {
        placeholders.push((b"{tag}", Content::Hole(Hole::Tag)));
    }
    let word = |word: &Vec<u8>| match test.is_inline {
        true => Word::Text(word.clone()),
        false => Word::Template(Template::of(word, &placeholders)),
    };
    let command = ClientCommand {
        name: None,
        words: test.words.iter().map(word).collect(),
        times: 1,
        keys: ClientKeys { space: KeySpace::none(), is_divided: false },
        is_inline: test.is_inline,
    };
    let clients = Clients {
        spaces: Vec::new(),
        seed,
        has_own_seeds: true,
        count: options.clients,
        values: Values::new(Sizes::Fixed(0), false, seed),
        items: None,
        waits: None,
        scan: None,
        recording: None,
        nodes: cluster.map(|cluster| cluster.nodes.clone()),
    };
    let plan = RedisPlan::of_clients(vec![command], &options.login, clients)?;
    let nodes = cluster.map_or(1, |cluster| cluster.servers.len() as u64);
    // Each thread has a connection to every node.
    let threads = options.threads.clamp(1, (options.clients / nodes).max(1));
    let load = Load {
        tls: of_node(options, cluster.map_or(Vec::new(), Cluster::hosts)),
        connections: options.clients as usize,
        threads: threads as usize,
        requests: Some(options.requests),
        pipeline: options.pipeline as usize,
        timeout_ns: REPLY_TIMEOUT_NS,
        connect_timeout_ns: 10_000_000_000,
        write_timeout_ns: REPLY_TIMEOUT_NS,
        renew_after: (!options.keep_alive).then_some(options.pipeline),
        nodes: cluster.map_or(Vec::new(), |cluster| cluster.servers.clone()),
        stops_on_error: true,
        interval_ns: (!options.csv).then_some(INTERVAL_NS),
        seed,
        live: if options.csv { Live::Lines } else { Live::RedisBenchmark(test.title.clone()) },
        ..Load::to(options.server.clone())
    };
    Ok(Plan { load, protocol: ProtocolPlan::Redis(plan) })
}

#[cfg(test)]
mod tests;
