//! The options of memtier_benchmark.

mod connections;

use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value};

pub(super) use connections::Staircase;

use super::recorded::{self, Placeholder};
use crate::load::arguments::tls::TlsOptions;
use crate::load::arguments::{MAX_CONNECTIONS, MAX_TIME_NS};
use crate::load::plan::Reconnects;
use crate::load::redis::{Login, words};
use crate::load::target::{Family, Server};
use crate::load::template::Sizes;
use crate::load::tls::Version;

/// The long options with their letters. `+`: with a value; `-`: without.
const OPTIONS: &[(&str, char, char)] = &[
    ("server", 's', '+'),
    ("host", 'h', '+'),
    ("port", 'p', '+'),
    ("unix-socket", 'S', '+'),
    ("ipv4", '4', '-'),
    ("ipv6", '6', '-'),
    ("protocol", 'P', '+'),
    ("tls", '\0', '-'),
    ("cert", '\0', '+'),
    ("key", '\0', '+'),
    ("cacert", '\0', '+'),
    ("tls-skip-verify", '\0', '-'),
    ("sni", '\0', '+'),
    ("tls-protocols", '\0', '+'),
    ("out-file", 'o', '+'),
    ("hdr-file-prefix", '\0', '+'),
    ("client-stats", '\0', '+'),
    ("run-count", 'x', '+'),
    ("debug", 'D', '-'),
    ("show-config", '\0', '-'),
    ("hide-histogram", '\0', '-'),
    ("print-percentiles", '\0', '+'),
    ("print-all-runs", '\0', '-'),
    ("distinct-client-seed", '\0', '-'),
    ("randomize", '\0', '-'),
    ("requests", 'n', '+'),
    ("clients", 'c', '+'),
    ("threads", 't', '+'),
    ("test-time", '\0', '+'),
    ("ratio", '\0', '+'),
    ("pipeline", '\0', '+'),
    ("data-size", 'd', '+'),
    ("data-offset", '\0', '+'),
    ("random-data", 'R', '-'),
    ("data-size-range", '\0', '+'),
    ("data-size-list", '\0', '+'),
    ("data-size-pattern", '\0', '+'),
    ("expiry-range", '\0', '+'),
    ("data-import", '\0', '+'),
    ("data-verify", '\0', '-'),
    ("verify-only", '\0', '-'),
    ("generate-keys", '\0', '-'),
    ("key-prefix", '\0', '+'),
    ("key-minimum", '\0', '+'),
    ("key-maximum", '\0', '+'),
    ("key-pattern", '\0', '+'),
    ("key-stddev", '\0', '+'),
    ("key-median", '\0', '+'),
    ("key-zipf-exp", '\0', '+'),
    ("reconnect-interval", '\0', '+'),
    ("reconnect-on-error", '\0', '-'),
    ("max-reconnect-attempts", '\0', '+'),
    ("reconnect-backoff-factor", '\0', '+'),
    ("connection-timeout", '\0', '+'),
    ("thread-conn-start-min-jitter-micros", '\0', '+'),
    ("thread-conn-start-max-jitter-micros", '\0', '+'),
    ("multi-key-get", '\0', '+'),
    ("authenticate", 'a', '+'),
    ("select-db", '\0', '+'),
    ("no-expiry", '\0', '-'),
    ("wait-ratio", '\0', '+'),
    ("num-slaves", '\0', '+'),
    ("wait-timeout", '\0', '+'),
    ("json-out-file", '\0', '+'),
    ("cluster-mode", '\0', '-'),
    ("help", '\0', '-'),
    ("version", 'v', '-'),
    ("command", '\0', '+'),
    ("command-key-pattern", '\0', '+'),
    ("command-ratio", '\0', '+'),
    ("monitor-input", '\0', '+'),
    ("monitor-pattern", '\0', '+'),
    ("command-stats-breakdown", '\0', '+'),
    ("rate-limiting", '\0', '+'),
    ("uri", 'u', '+'),
    ("statsd-host", '\0', '+'),
    ("statsd-port", '\0', '+'),
    ("statsd-prefix", '\0', '+'),
    ("statsd-run-label", '\0', '+'),
    ("graphite-port", '\0', '+'),
    ("scan-incremental-iteration", '\0', '-'),
    ("scan-incremental-max-iterations", '\0', '+'),
    ("clients-start", '\0', '+'),
    ("clients-step", '\0', '+'),
    ("step-duration", '\0', '+'),
];

/// The options that `sluicegate bench redis` has, too, with the letters that it has in either meaning.
const SHARED: &[&str] = &[
    "server",
    "ipv4",
    "ipv6",
    "tls",
    "cert",
    "key",
    "cacert",
    "requests",
    "threads",
    "ratio",
    "pipeline",
    "data-size",
    "key-prefix",
    "key-pattern",
    "help",
    "command",
];
const SHARED_LETTERS: &str = "s46ncthdPrwi";

const MAX_THREADS: u64 = 1024;
const MAX_PIPELINE: u64 = 10_000;
const MAX_BYTES: u64 = 64 << 20;
const MAX_SECONDS: u64 = MAX_TIME_NS / 1_000_000_000;

/// A key pattern, by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Random,
    Gaussian,
    Sequential,
    Parallel,
    Zipf,
}

/// A command of `--command`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnCommand {
    pub(super) text: String,
    /// The commands of `--monitor-input` that it stands for.
    pub(super) recorded: Option<Placeholder>,
    pub(super) times: u64,
    pub(super) pattern: Pattern,
}

impl OwnCommand {
    /// Returns whether it stands for the recorded commands in turn.
    pub(super) fn is_any_recorded(&self) -> bool {
        self.recorded == Some(Placeholder::Any)
    }
}

/// The number of requests of each client, or the duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Requests(u64),
    Seconds(u64),
}

/// The options, checked.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) server: Server,
    pub(super) family: Family,
    pub(super) login: Login,
    pub(super) tls: Option<TlsOptions>,
    pub(super) amount: Amount,
    pub(super) clients: u64,
    pub(super) threads: u64,
    pub(super) pipeline: u64,
    pub(super) run_count: u32,
    pub(super) ratio: (u64, u64),
    pub(super) patterns: (Pattern, Pattern),
    pub(super) commands: Vec<OwnCommand>,
    pub(super) sizes: Sizes,
    pub(super) data_offset: u64,
    pub(super) random_data: bool,
    pub(super) expiry: Option<(u64, u64)>,
    pub(super) import: Option<Import>,
    pub(super) waits: Option<WaitRatio>,
    /// The number of commands with the server's cursors in an iteration of SCAN; 0: all.
    pub(super) scan: Option<u32>,
    /// Recorded commands, and whether `__monitor_line@__` draws them.
    pub(super) recorded: Option<(PathBuf, bool)>,
    pub(super) key_prefix: String,
    pub(super) keys: (u64, u64),
    pub(super) key_stddev: f64,
    pub(super) key_median: f64,
    pub(super) key_zipf: f64,
    pub(super) distinct_seeds: bool,
    pub(super) randomize: bool,
    pub(super) reconnect_interval: Option<u64>,
    pub(super) reconnects: Option<Reconnects>,
    pub(super) staircase: Option<Staircase>,
    pub(super) jitter_us: (u64, u64),
    pub(super) connection_timeout_s: Option<u64>,
    pub(super) rate: Option<u64>,
    pub(super) cluster: bool,
    pub(super) by_line: bool,
    pub(super) hide_histogram: bool,
    pub(super) print_all_runs: bool,
    pub(super) percentiles: Vec<f64>,
    pub(super) out_file: Option<PathBuf>,
    pub(super) json_file: Option<PathBuf>,
    pub(super) hdr_prefix: Option<String>,
    pub(super) metrics: Option<Metrics>,
    /// The prefix of the files of each client.
    pub(super) client_stats: Option<String>,
    pub(super) show_config: bool,
    /// The number of `--debug`.
    pub(super) debug: u64,
    /// 0: not given. It has no effect where it is allowed.
    pub(super) multi_key_get: u64,
    /// `--requests allkeys`.
    pub(super) is_all_keys: bool,
    /// The options as given, by their long names, for the report.
    pub(super) given: Vec<(&'static str, String)>,
}

impl Options {
    /// Returns whether the name of the server in TLS was given.
    pub(super) fn has_server_name(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.server_name.is_some())
    }
}

/// The items that are imported, and whether they are verified.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) path: PathBuf,
    pub(super) draws_keys: bool,
    pub(super) expires: bool,
    pub(super) is_verified: bool,
    /// Whether nothing else is done.
    pub(super) only_verifies: bool,
}

/// Where metrics go: a host with its ports of StatsD and Graphite, and the names of the run.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) host: String,
    pub(super) ports: (u16, u16),
    pub(super) prefix: String,
    pub(super) label: String,
}

/// How often WAIT is sent, and the ranges of its arguments.
#[derive(Debug)]
pub(super) struct WaitRatio {
    /// The sets for each.
    pub(super) sets: u64,
    pub(super) replicas: (u64, u64),
    pub(super) timeout_ms: (u64, u64),
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum Asked {
    Help,
    Version,
    Run(Box<Options>),
}

/// Returns whether the words after `bench redis` are memtier's: one of them is an option that `bench redis` lacks.
pub(crate) fn is_meant(words: &[String]) -> bool {
    words.iter().any(|word| match (word.strip_prefix("--"), word.strip_prefix('-')) {
        (Some(name), _) => {
            let name = name.split('=').next().unwrap_or(name);
            OPTIONS.iter().any(|(known, ..)| *known == name) && !SHARED.contains(&name)
        }
        (None, Some(letters)) => letters.chars().next().is_some_and(|letter| {
            !SHARED_LETTERS.contains(letter) && OPTIONS.iter().any(|(_, known, _)| *known == letter)
        }),
        _ => false,
    })
}

/// Returns the option of a name, which may be shortened as far as it is unique.
fn find(name: &str) -> Result<(&'static str, char), String> {
    let exact = OPTIONS.iter().find(|(known, ..)| *known == name);
    let mut begun = OPTIONS.iter().filter(|(known, ..)| known.starts_with(name));
    match (exact, begun.next(), begun.next()) {
        (Some((known, _, kind)), ..) | (None, Some((known, _, kind)), None) => Ok((known, *kind)),
        (None, Some((one, ..)), Some((other, ..))) => Err(format!("--{name} is short for --{one} and --{other}")),
        _ => Err(format!("unrecognized option '--{name}'")),
    }
}

/// Parses memtier's command line.
pub(super) fn parse(line: &[String]) -> Result<Asked, String> {
    let mut parser = lexopt::Parser::from_args(line);
    let mut given: Vec<(&'static str, String)> = Vec::new();
    let mut commands: Vec<OwnCommand> = Vec::new();
    let mut debug = 0;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let (name, kind) = match argument {
            Long(name) => find(name)?,
            Short(letter) => {
                let known = OPTIONS.iter().find(|(_, known, _)| *known == letter && letter != '\0');
                known.map(|(name, _, kind)| (*name, *kind)).ok_or_else(|| format!("invalid option '-{letter}'"))?
            }
            Value(word) => return Err(format!("'{}' belongs to no option", word.to_string_lossy())),
        };
        let text = match kind {
            '+' => parser.value().map_err(|_| format!("--{name} wants a value"))?.to_string_lossy().into_owned(),
            _ => String::new(),
        };
        match name {
            "help" => return Ok(Asked::Help),
            "version" => return Ok(Asked::Version),
            "command" => {
                words(&text)?;
                let recorded = recorded::placeholder(&text).transpose()?;
                commands.push(OwnCommand { text, recorded, times: 1, pattern: Pattern::Random });
            }
            "command-ratio" => {
                let command = commands.last_mut().ok_or("--command-ratio belongs to a --command before it")?;
                command.times = number(name, &text, 1, u64::from(u32::MAX))?;
            }
            "command-key-pattern" => {
                let command = commands.last_mut().ok_or("--command-key-pattern belongs to a --command before it")?;
                command.pattern = pattern(&text).ok_or_else(|| {
                    format!("--command-key-pattern {text}: one letter is expected, of S, R, Z, G and P")
                })?;
            }
            "debug" => debug += 1,
            _ => {
                given.retain(|(other, _)| *other != name);
                given.push((name, text));
            }
        }
    }
    check(Given(given), commands).map(|options| Asked::Run(Box::new(Options { debug, ..options })))
}

/// The options by name.
struct Given(Vec<(&'static str, String)>);

impl Given {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, String> {
        self.text(name).map(|text| number(name, text, min, max)).transpose()
    }

    fn fraction(&self, name: &str, from: f64, to: f64) -> Result<f64, String> {
        match self.text(name).map(|text| (text, text.parse::<f64>())) {
            None => Ok(0.0),
            Some((_, Ok(number))) if number > from && number < to => Ok(number),
            Some((text, _)) => Err(format!("--{name} {text}: a number between {from} and {to} is expected")),
        }
    }

    /// Parses two numbers with `separator` between them.
    fn pair(&self, name: &str, separator: char, min: u64, max: u64) -> Result<Option<(u64, u64)>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let pair = text.split_once(separator).and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
        match pair {
            Some((one, other)) if (min..=max).contains(&one) && (min..=max).contains(&other) => Ok(Some((one, other))),
            _ => {
                Err(format!("--{name} {text}: two numbers from {min} to {max} with '{separator}' between are expected"))
            }
        }
    }
}

fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("--{name} {text}: a number from {min} to {max} is expected")),
    }
}

fn pattern(text: &str) -> Option<Pattern> {
    Some(match text {
        "R" => Pattern::Random,
        "G" => Pattern::Gaussian,
        "S" => Pattern::Sequential,
        "P" => Pattern::Parallel,
        "Z" => Pattern::Zipf,
        _ => return None,
    })
}

fn check(given: Given, commands: Vec<OwnCommand>) -> Result<Options, String> {
    let (server, login, is_tls) = target(&given)?;
    let clients = given.number("clients", 1, MAX_CONNECTIONS)?.unwrap_or(50);
    let threads = given.number("threads", 1, MAX_THREADS)?.unwrap_or(4);
    let (min, max) = (given.number("key-minimum", 0, u64::MAX >> 1)?, given.number("key-maximum", 1, u64::MAX >> 1)?);
    let keys = (min.unwrap_or(0), max.unwrap_or(10_000_000));
    if keys.0 > keys.1 {
        return Err("--key-minimum is above --key-maximum".to_owned());
    }
    let patterns = match given.text("key-pattern") {
        None => (Pattern::Random, Pattern::Random),
        Some(text) => text
            .split_once(':')
            .and_then(|(set, get)| Some((pattern(set)?, pattern(get)?)))
            .ok_or_else(|| format!("--key-pattern {text}: [S/R/G/P/Z]:[S/R/G/P/Z] is expected"))?,
    };
    if (patterns.0 == Pattern::Parallel) != (patterns.1 == Pattern::Parallel) {
        return Err("a parallel --key-pattern is for SET and GET together: P:P".to_owned());
    }
    let parallel = commands.iter().filter(|command| command.pattern == Pattern::Parallel).count();
    if !commands.is_empty() {
        for (name, instead) in [("key-pattern", "--command-key-pattern"), ("ratio", "--command-ratio")] {
            if given.has(name) {
                return Err(format!("with --command, {instead} takes the place of --{name}"));
            }
        }
        if parallel > 0 && parallel < commands.len() {
            return Err("a parallel --command-key-pattern is for all commands together".to_owned());
        }
    }
    let is_all_keys = given.text("requests") == Some("allkeys");
    let amount = match (given.text("requests"), given.number("test-time", 1, MAX_SECONDS)?) {
        (Some(_), Some(_)) => return Err("--test-time and --requests exclude each other".to_owned()),
        (None, None) => Amount::Requests(10_000),
        (None, Some(seconds)) => Amount::Seconds(seconds),
        (Some("allkeys"), None) => {
            let is_parallel = parallel > 0 || patterns.0 == Pattern::Parallel;
            let count = keys.1 - keys.0 + 1;
            Amount::Requests(if is_parallel { count.div_ceil(clients * threads) } else { count })
        }
        (Some(text), None) => Amount::Requests(number("requests", text, 1, u64::MAX >> 24)?),
    };
    let sizes = sizes(&given)?;
    let data_offset = given.number("data-offset", 0, (1 << 29) - 1)?.unwrap_or(0);
    let expiry = given.pair("expiry-range", '-', 1, u64::from(u32::MAX))?;
    if expiry.is_some_and(|(min, max)| min > max) {
        return Err("--expiry-range: the first number is above the second".to_owned());
    }
    if data_offset > 0 && (expiry.is_some() || !matches!(sizes, Sizes::Fixed(_))) {
        return Err("--data-offset goes with a --data-size, and not with --expiry-range".to_owned());
    }
    let (key_stddev, key_median) = (given.fraction("key-stddev", 0.0, 1e18)?, given.fraction("key-median", 0.0, 1e18)?);
    let is_gaussian = patterns.0 == Pattern::Gaussian
        || patterns.1 == Pattern::Gaussian
        || commands.iter().any(|command| command.pattern == Pattern::Gaussian);
    if !is_gaussian && (key_stddev > 0.0 || key_median > 0.0) {
        return Err("--key-stddev and --key-median are for the key pattern G".to_owned());
    }
    if key_median > 0.0 && (key_median < keys.0 as f64 || key_median > keys.1 as f64) {
        return Err("--key-median is between --key-minimum and --key-maximum".to_owned());
    }
    let import = import(&given, !commands.is_empty())?;
    let waits = waits(&given, !commands.is_empty())?;
    let recorded = recorded(&given, &commands)?;
    let scan = scan(&given, &commands)?;
    let ratio = given.pair("ratio", ':', 0, u64::from(u32::MAX))?.unwrap_or((1, 10));
    let multi_key_get = given.number("multi-key-get", 1, i32::MAX as u64)?.unwrap_or(0);
    if multi_key_get > 0 && commands.is_empty() && ratio.1 > 0 && !given.has("cluster-mode") {
        return Err("--multi-key-get: multi get is not implemented for redis, nor is it in memtier_benchmark, which \
                    ends with its first GET; --command 'MGET __key__ __key__' sends it"
            .to_owned());
    }
    let reconnect_interval = given.number("reconnect-interval", 1, u64::MAX)?;
    let cluster = given.has("cluster-mode");
    if cluster {
        for (is_given, name) in [
            (reconnect_interval.is_some(), "--reconnect-interval"),
            (matches!(server, Server::Unix(_)), "--unix-socket"),
            (login.db > 0, "--select-db"),
            (multi_key_get > 0, "--multi-key-get"),
            (waits.is_some(), "--wait-ratio"),
            (recorded.is_some(), "--monitor-input"),
        ] {
            if is_given {
                return Err(format!("--cluster-mode does not go with {name}"));
            }
        }
    }
    let family = match (given.has("ipv4"), given.has("ipv6")) {
        (false, false) => Family::Any,
        (true, false) => Family::V4,
        (false, true) => Family::V6,
        (true, true) => return Err("--ipv4 and --ipv6 exclude each other".to_owned()),
    };
    Ok(Options {
        family,
        tls: tls(&given, is_tls)?,
        amount,
        clients,
        threads,
        pipeline: given.number("pipeline", 1, MAX_PIPELINE)?.unwrap_or(1),
        run_count: given.number("run-count", 1, 10_000)?.unwrap_or(1) as u32,
        ratio,
        patterns,
        commands,
        sizes,
        data_offset,
        random_data: given.has("random-data"),
        expiry,
        import,
        waits,
        scan,
        recorded,
        key_prefix: given.text("key-prefix").unwrap_or("memtier-").to_owned(),
        keys,
        key_stddev,
        key_median,
        key_zipf: match given.fraction("key-zipf-exp", 0.0, 5.0)? {
            0.0 => 1.0,
            exponent => exponent,
        },
        distinct_seeds: given.has("distinct-client-seed"),
        randomize: given.has("randomize"),
        reconnect_interval,
        reconnects: connections::reconnects(&given)?,
        staircase: connections::staircase(&given, clients)?,
        jitter_us: connections::jitter_us(&given)?,
        connection_timeout_s: given.number("connection-timeout", 0, MAX_SECONDS)?.filter(|seconds| *seconds > 0),
        rate: given.number("rate-limiting", 1, 10_000_000)?,
        cluster,
        by_line: match given.text("command-stats-breakdown").map(str::to_ascii_lowercase).as_deref() {
            None | Some("command") => false,
            Some("line") => true,
            Some(other) => return Err(format!("--command-stats-breakdown {other}: there are command and line")),
        },
        hide_histogram: given.has("hide-histogram"),
        print_all_runs: given.has("print-all-runs"),
        percentiles: percentiles(given.text("print-percentiles").unwrap_or("50,99,99.9"))?,
        out_file: given.text("out-file").map(PathBuf::from),
        json_file: given.text("json-out-file").map(PathBuf::from),
        hdr_prefix: given.text("hdr-file-prefix").map(str::to_owned),
        metrics: metrics(&given)?,
        client_stats: given.text("client-stats").map(str::to_owned),
        show_config: given.has("show-config"),
        debug: 0,
        multi_key_get,
        is_all_keys,
        given: given.0,
        server,
        login,
    })
}

fn import(given: &Given, has_commands: bool) -> Result<Option<Import>, String> {
    let only_verifies = given.has("verify-only");
    let is_verified = only_verifies || given.has("data-verify");
    let Some(path) = given.text("data-import") else {
        return match (is_verified, given.has("no-expiry")) {
            (true, _) => Err("use data-verify only with data-import".to_owned()),
            (false, true) => Err("use no-expiry only with data-import".to_owned()),
            (false, false) => Ok(None),
        };
    };
    let sizes = ["data-size", "data-size-range", "data-size-list"];
    let keys = ["key-minimum", "key-maximum", "key-prefix"];
    let draws_keys = given.has("generate-keys");
    let fault = if given.has("cluster-mode") {
        "Cluster mode cannot be specified when importing"
    } else if sizes.iter().any(|name| given.has(name)) {
        "data size cannot be specified when importing"
    } else if given.has("random-data") {
        "random-data cannot be specified when importing"
    } else if !draws_keys && keys.iter().any(|name| given.has(name)) {
        "use key-minimum, key-maximum and key-prefix only with generate-keys"
    } else if has_commands || given.has("data-offset") {
        "--command and --data-offset cannot be specified when importing"
    } else if !draws_keys && given.text("requests") == Some("allkeys") {
        "--requests allkeys is for keys that are generated"
    } else {
        let expires = !given.has("no-expiry");
        return Ok(Some(Import { path: PathBuf::from(path), draws_keys, expires, is_verified, only_verifies }));
    };
    Err(fault.to_owned())
}

fn waits(given: &Given, has_commands: bool) -> Result<Option<WaitRatio>, String> {
    let max = u64::from(u32::MAX);
    let range = |name: &str| match given.pair(name, '-', 0, max)? {
        Some((from, to)) if from > to => Err(format!("--{name}: the first number is above the second")),
        range => Ok(range.unwrap_or((0, 0))),
    };
    let (replicas, timeout_ms) = (range("num-slaves")?, range("wait-timeout")?);
    match given.pair("wait-ratio", ':', 0, max)? {
        Some(_) if has_commands => Err("--wait-ratio is for SET and GET, and not for a --command".to_owned()),
        Some((sets, waits @ 1..)) => Ok(Some(WaitRatio { sets: sets / waits, replicas, timeout_ms })),
        _ => Ok(None),
    }
}

fn metrics(given: &Given) -> Result<Option<Metrics>, String> {
    let port = |name: &str, default| Ok::<u16, String>(given.number(name, 1, 65_535)?.unwrap_or(default) as u16);
    let ports = (port("statsd-port", 8125)?, port("graphite-port", 8080)?);
    let Some(host) = given.text("statsd-host").filter(|host| !host.is_empty()) else {
        let names = ["statsd-port", "graphite-port", "statsd-prefix", "statsd-run-label"];
        return match names.iter().find(|name| given.has(name)) {
            Some(name) => Err(format!("--{name} is of no use without --statsd-host")),
            None => Ok(None),
        };
    };
    let text = |name: &str, default: &str| given.text(name).unwrap_or(default).to_owned();
    let (prefix, label) = (text("statsd-prefix", "memtier"), text("statsd-run-label", "default"));
    Ok(Some(Metrics { host: host.to_owned(), ports, prefix, label }))
}

fn scan(given: &Given, commands: &[OwnCommand]) -> Result<Option<u32>, String> {
    let (name, most) = ("--scan-incremental-iteration", "scan-incremental-max-iterations");
    let max = given.number(most, 0, u32::MAX.into())?;
    if !given.has("scan-incremental-iteration") {
        return if max.is_some() { Err(format!("--{most} is of no use without {name}")) } else { Ok(None) };
    }
    if given.number("pipeline", 1, MAX_PIPELINE)?.is_some_and(|pipeline| pipeline > 1) {
        return Err(format!("{name} requires --pipeline 1."));
    }
    if given.has("cluster-mode") {
        return Err(format!("{name} is not supported in cluster mode."));
    }
    let [command] = commands else {
        return Err(format!("{name} requires exactly one --command (a SCAN command)."));
    };
    match words(&command.text)?.as_slice() {
        [first, ..] if !first.eq_ignore_ascii_case(b"SCAN") => {
            Err(format!("{name} requires the command to be a SCAN command."))
        }
        [] | [_] => Err("SCAN command must have at least a cursor argument (e.g., 'SCAN 0').".to_owned()),
        _ => Ok(Some(max.unwrap_or(0) as u32)),
    }
}

fn recorded(given: &Given, commands: &[OwnCommand]) -> Result<Option<(PathBuf, bool)>, String> {
    let is_random = match given.text("monitor-pattern") {
        None | Some("S") => false,
        Some("R") => true,
        Some(text) => return Err(format!("--monitor-pattern {text}: there are S and R")),
    };
    match (given.text("monitor-input"), commands.iter().find(|command| command.recorded.is_some())) {
        (None, Some(command)) => Err(format!("--command {}: --monitor-input is missing", command.text)),
        (path, _) => Ok(path.map(|path| (PathBuf::from(path), is_random))),
    }
}

fn percentiles(text: &str) -> Result<Vec<f64>, String> {
    let wrong = || format!("--print-percentiles {text}: numbers from 0 to 100 with commas between are expected");
    let parse = |part: &str| part.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
    let mut list = text.split(',').map(parse).collect::<Option<Vec<f64>>>().ok_or_else(wrong)?;
    list.sort_by(f64::total_cmp);
    Ok(list)
}

fn sizes(given: &Given) -> Result<Sizes, String> {
    let fixed = given.number("data-size", 1, MAX_BYTES)?;
    let range = given.pair("data-size-range", '-', 1, MAX_BYTES)?;
    let growing = match given.text("data-size-pattern") {
        None | Some("R") => false,
        Some("S") => true,
        Some(text) => return Err(format!("--data-size-pattern {text}: there are R and S")),
    };
    let list = match given.text("data-size-list") {
        None => None,
        Some(text) => {
            let parse = |part: &str| {
                let (size, weight) = part.split_once(':')?;
                let (size, weight): (u64, u64) = (size.parse().ok()?, weight.parse().ok()?);
                ((1..=MAX_BYTES).contains(&size) && (1..1 << 40).contains(&weight)).then_some((size as usize, weight))
            };
            let list = text.split(',').map(parse).collect::<Option<Vec<_>>>();
            Some(list.ok_or_else(|| format!("--data-size-list {text}: SIZE:WEIGHT,… is expected"))?)
        }
    };
    match (fixed, range, list) {
        (fixed, None, None) => Ok(Sizes::Fixed(fixed.unwrap_or(32) as usize)),
        (None, Some((min, max)), None) if min <= max => {
            let (min, max) = (min as usize, max as usize);
            Ok(if growing { Sizes::Growing(min, max) } else { Sizes::Range(min, max) })
        }
        (None, Some(_), None) => Err("--data-size-range: the first number is above the second".to_owned()),
        (None, None, Some(list)) => Ok(Sizes::Weighted(list)),
        _ => Err("--data-size, --data-size-range and --data-size-list exclude each other".to_owned()),
    }
}

/// Returns the server, the login, and whether there is TLS.
fn target(given: &Given) -> Result<(Server, Login, bool), String> {
    let mut login = Login::default();
    match given.text("protocol") {
        None | Some("redis" | "resp2") => {}
        Some("resp3") => login.resp3 = true,
        Some(name @ ("memcache_text" | "memcache_binary")) => {
            return Err(format!("--protocol {name}: memcache is not supported; there are redis, resp2 and resp3"));
        }
        Some(other) => return Err(format!("--protocol {other}: there are redis, resp2 and resp3")),
    }
    if let Some(credentials) = given.text("authenticate") {
        match credentials.split_once(':') {
            Some((user, password)) => {
                login.user = Some(user.to_owned());
                login.password = Some(password.to_owned());
            }
            None => login.password = Some(credentials.to_owned()),
        }
    }
    login.db = given.number("select-db", 0, u64::from(u32::MAX))?.unwrap_or(0) as u32;
    let host = match (given.text("server"), given.text("host")) {
        (Some(_), Some(_)) => return Err("--server and --host are the same option".to_owned()),
        (one, other) => one.or(other),
    };
    let port = given.number("port", 1, 65_535)?;
    if let Some(uri) = given.text("uri") {
        for name in ["server", "host", "port", "authenticate", "select-db", "unix-socket"] {
            if given.has(name) {
                return Err(format!("--uri and --{name} exclude each other"));
            }
        }
        let server = crate::load::arguments::redis_server(uri, &mut login)?;
        if !uri.contains("://") {
            return Err(format!("--uri {uri}: redis://… or rediss://… is expected"));
        }
        return Ok((server, login, uri.starts_with("rediss://") || given.has("tls")));
    }
    let server = match given.text("unix-socket") {
        Some(_) if host.is_some() || port.is_some() => {
            return Err("--unix-socket excludes --server and --port".to_owned());
        }
        Some(path) => Server::Unix(PathBuf::from(path)),
        None => {
            let host = host.unwrap_or("localhost");
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            Server::parse(&format!("{bracketed}:{}", port.unwrap_or(6379)), None)?
        }
    };
    Ok((server, login, given.has("tls")))
}

fn tls(given: &Given, is_tls: bool) -> Result<Option<TlsOptions>, String> {
    let names = ["cert", "key", "cacert", "tls-skip-verify", "sni", "tls-protocols"];
    if !is_tls {
        return match names.iter().find(|name| given.has(name)) {
            Some(name) => Err(format!("--{name} is of no use without --tls")),
            None => Ok(None),
        };
    }
    let version = match given.text("tls-protocols") {
        None => None,
        Some(text) => {
            let names: Vec<String> = text.split(',').map(str::to_ascii_lowercase).collect();
            match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                ["tlsv1.2"] => Some(Version::Tls12),
                ["tlsv1.3"] => Some(Version::Tls13),
                ["tlsv1.2", "tlsv1.3"] | ["tlsv1.3", "tlsv1.2"] => None,
                _ => return Err(format!("--tls-protocols {text}: there are TLSv1.2 and TLSv1.3")),
            }
        }
    };
    let path = |name: &str| given.text(name).map(PathBuf::from);
    Ok(Some(TlsOptions {
        tls: true,
        insecure: given.has("tls-skip-verify"),
        authorities: path("cacert").filter(|_| !given.has("tls-skip-verify")),
        server_name: given.text("sni").map(str::to_owned),
        version,
        certificate: path("cert"),
        key: path("key"),
        ..TlsOptions::default()
    }))
}
