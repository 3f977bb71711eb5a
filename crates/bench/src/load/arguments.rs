//! Command-line arguments of `sluicegate bench`.

mod capacity;
mod compare;
pub(super) mod tls;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lexopt::prelude::{Long, Short, Value};

use super::http::{HttpOptions, HttpPlan};
use super::plan::{
    CapacityPlan, Comparison, Correction, Destination, Live, Load, Pictures, Plan, ProtocolPlan, Versus,
};
use super::redis::{Login, RedisPlan};
use super::schedule::Arrivals;
use super::target::{Family, Server, Url};
use super::template::{KeyPattern, KeySpace, unknown_placeholder};
use super::tls::TlsPlan;
use capacity::CapacityOptions;
use compare::percent;
use tls::{TlsOptions, tls_help};

/// The action requested by the command line.
#[derive(Debug)]
pub(super) enum Command {
    Help(&'static str),
    Run(Box<Plan>),
    /// Runs the load twice: with persistent connections, and with one connection per command.
    Reconnect(Box<Plan>),
    /// Searches for what a target can take.
    Capacity(Box<CapacityPlan>),
    /// Compares the reports of two runs.
    Compare([PathBuf; 2], Comparison),
    /// Runs two loads in turns and compares them.
    Versus(Box<Versus>),
}

const HELP: &str = "\
usage: sluicegate bench http [OPTION]… URL…
       sluicegate bench redis [OPTION]… [--server ADDRESS] [COMMAND…]
       sluicegate bench capacity [OPTION]… URL…
       sluicegate bench compare [--fail-over PERCENT] [--json[=FILE]] [--html FILE] [--svg FILE] A.json B.json

Load generators, and comparisons of their reports (--json=FILE). `sluicegate bench http --help` and
`sluicegate bench redis --help` list all options.
";

/// The scheme of Redis over TLS.
const TLS_SCHEME: &str = "rediss://";

/// The hint after an error in the arguments.
const HINT: &str = "hint: sluicegate bench --help";

macro_rules! common_help {
    () => {
        "\
how much:
  -c, --connections N     total number of connections, distributed over the threads (50)
  -t, --threads N         number of threads (1)
  -d, --duration TIME     duration of the test (10s, unless --requests is given)
  -n, --requests N        total number of requests
  -z TIME                 the same as -d (as in hey and oha)
      --ramp TIME         the load grows within this time: the rate, or in a closed loop the number of connections
  -w, --warmup TIME       duration of a warm-up before the measurement (0)
  -r, --rate N            open loop: N requests per second, however fast the server answers; without it a closed
                          loop: each connection sends its next request when it has the answer to the last one
      --arrivals KIND     constant, exponential (constant)
  -P, --pipeline N        requests in flight per connection (1)
      --no-keep-alive     a new connection for each request
keys:
      --key-min N, --key-max N     range of __key__ (0, 999999)
      --key-prefix TEXT            text before the number
      --key-pattern PATTERN        uniform, sequential, gaussian[:DEVIATION], zipf[:EXPONENT] (uniform);
                                   sequential: each command or URL walks the range by itself
      --data-size N                size of __data__ in bytes (32)
      --seed N                     seed of the random numbers; the same seed repeats a run (1)
comparison:
      --vs TARGET             also run the load against this target (http: a URL or HOST:PORT; redis: an address), in turns,
                              and print the differences with confidence intervals
      --rounds N              number of runs of each, each as long as --duration (5)
      --fail-over PERCENT     exit with 3 if a figure of TARGET is worse by more than this, and not by chance
limits:
      --timeout TIME               time limit for a response (10s)
      --connect-timeout TIME       time limit for a connection attempt (3s)
  -4, -6                           use IPv4 or IPv6 addresses only
report:
      --late TIME                  a request sent later than this after its due time counts as late (1ms)
      --correct TIME|median        closed loop: also report latencies corrected for coordinated omission, with one
                                   request expected every TIME on each connection
  -i, --interval TIME              print intermediate figures to standard error once per interval
      --latency                    add a histogram of latencies to the text
      --json[=FILE]                write the report as JSON, instead of the text or to a file
      --csv[=FILE]                 write the figures of each second as CSV, instead of the text or to a file
      --html FILE                  also write a page with charts (rate, errors, latency over time and by percentile)
      --svg FILE                   also write the charts alone
      --no-tui                     no live view; there is one on a terminal without --interval, --json and --csv
      --pid PID                    also report the CPU time of this process per request

TIME is a number with us, ms, s, m or h; seconds without a unit. Latency is measured from the time at which the request
was due. Exit code: 0 if at least one request succeeded, 1 if every request failed or the arguments are invalid, 130
when interrupted (the report is printed).
"
    };
}

const HTTP: &str = concat!(
    "\
usage: sluicegate bench http [OPTION]… URL…

Sends HTTP requests to one server, the URLs in turn, over TLS if they are https:// ones. In URLs, headers and bodies
`__key__` is replaced by a key and `__data__` by filler; all places of one request get the same key.

gobench's command line (-u or -f, -c, -r or -t …) runs as it stands.

requests:
  -m, --method METHOD     (GET; POST with a body)
  -H, --header 'NAME: VALUE'
  -b, --body TEXT
      --body-file FILE
      --urls FILE         read more URLs from a file, one per line, each with its ratio behind it or without (1)
      --ratio N:N…        frequency of each URL, in their order (1 each)
  -q N                    the same as --rate: of all connections together
      --connect ADDRESS   connect to HOST:PORT or unix:/path instead of the host of the URLs
      --http2             HTTP/2: negotiated over TLS, at once without (prior knowledge)
      --streams N         HTTP/2: concurrent requests per connection (1)
",
    tls_help!(),
    common_help!()
);

const REDIS: &str = concat!(
    "\
usage: sluicegate bench redis [OPTION]… [COMMAND…]

Sends commands to one Redis, Valkey or Sluicegate store. Each COMMAND is one command with its arguments, in quotes:
'SET __key__ __data__' 'GET __key__'. Each `__key__` is replaced by a key of its own, `__data__` by filler. Without a
command: PING. memtier_benchmark's command line (with --test-time, -p, --key-maximum …) runs as it stands.

commands:
  -s, --server ADDRESS    HOST[:PORT], unix:/path or redis://[USER:PASSWORD@]HOST[:PORT][/DB] (127.0.0.1:6379);
                          rediss:// for TLS
      --command COMMAND   the same as a COMMAND
      --ratio N:N…        frequency of each command, in their order (1 each)
      --test NAME,NAME…   more commands: ping, set, get, incr, lpush, rpush, lpop, rpop, sadd, hset, spop, zadd,
                          zpopmin, lrange, mset
      --user NAME, --password TEXT, --db N
      --resp3             say HELLO 3
      --reconnect         send --requests commands (50000; 'SET __key__ __data__', keys 0, 1, 2…) over --connections (1)
                          persistent connections, then again over a new connection each, and print both times
",
    tls_help!(),
    common_help!()
);

/// Presets of `--test`, those of redis-benchmark.
const TESTS: &[(&str, &str)] = &[
    ("ping", "PING"),
    ("set", "SET __key__ __data__"),
    ("get", "GET __key__"),
    ("incr", "INCR counter:__key__"),
    ("lpush", "LPUSH mylist __data__"),
    ("rpush", "RPUSH mylist __data__"),
    ("lpop", "LPOP mylist"),
    ("rpop", "RPOP mylist"),
    ("sadd", "SADD myset element:__key__"),
    ("hset", "HSET myhash element:__key__ __data__"),
    ("spop", "SPOP myset"),
    ("zadd", "ZADD myzset 1 element:__key__"),
    ("zpopmin", "ZPOPMIN myzset"),
    ("lrange", "LRANGE mylist 0 99"),
    (
        "mset",
        "MSET __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ \
         __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__",
    ),
];

pub(super) const MAX_CONNECTIONS: u64 = 1_000_000;
const MAX_THREADS: u64 = 1024;
pub(super) const MAX_PIPELINE: u64 = 10_000;
const MAX_RATE: f64 = 10_000_000.0;
/// The maximum number of bytes of a body, a data filler, or a file of URLs.
pub(super) const MAX_BYTES: u64 = 64 << 20;
pub(super) const MAX_URLS: usize = 1_000_000;
/// The maximum number of requests in flight of a whole run; each takes 24 bytes.
const MAX_IN_FLIGHT: u64 = 10_000_000;
/// The interval at which a view of the terminal is drawn.
const SCREEN_INTERVAL_NS: u64 = 250_000_000;

/// The maximum of any time option.
pub(super) const MAX_TIME_NS: u64 = 1000 * 3600 * 1_000_000_000;

/// The options of both generators.
#[derive(Clone)]
struct Common {
    /// The default is 50.
    connections: Option<u64>,
    threads: u64,
    duration_ns: Option<u64>,
    requests: Option<u64>,
    warmup_ns: u64,
    rate: Option<f64>,
    arrivals: Arrivals,
    pipeline: u64,
    keep_alive: bool,
    keys: KeySpace,
    data_size: usize,
    seed: u64,
    timeout_ns: u64,
    connect_timeout_ns: u64,
    family: Family,
    late_ns: u64,
    correct: Option<Correction>,
    interval_ns: Option<u64>,
    ramp_ns: u64,
    has_histogram: bool,
    json: Destination,
    csv: Destination,
    pictures: Pictures,
    no_tui: bool,
    rounds: Option<u64>,
    fail_over: Option<f64>,
    pid: Option<u32>,
    tls: TlsOptions,
}

/// Parses the words after `bench`.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(words);
    let kind = match parser.next().map_err(hint)? {
        None | Some(Long("help") | Short('h')) => return Ok(Command::Help(HELP)),
        Some(Value(word)) => text("the generator", word)?,
        Some(other) => return Err(hint(other.unexpected())),
    };
    match kind.as_str() {
        "http" | "redis" => {
            let command = if kind == "http" { http(parser, None) } else { redis(parser) };
            // The parser of common options does not know to which generator they belong.
            command.map_err(|error| error.replace(HINT, &format!("hint: sluicegate bench {kind} --help")))
        }
        "capacity" => http(parser, Some(CapacityOptions::default())),
        "compare" => compare::files(parser),
        other => Err(format!("unknown generator '{other}'; there are http, redis, capacity and compare\n\n{HINT}")),
    }
}

fn hint(error: lexopt::Error) -> String {
    format!("{error}\n\n{HINT}")
}

fn http(mut parser: lexopt::Parser, mut capacity: Option<CapacityOptions>) -> Result<Command, String> {
    let mut common = Common::new("");
    if capacity.is_some() {
        (common.duration_ns, common.connections) = (Some(capacity::DURATION_NS), Some(capacity::CONNECTIONS));
    }
    let mut options = HttpOptions {
        method: None,
        headers: Vec::new(),
        body: None,
        keep_alive: true,
        data_size: 0,
        ratios: None,
        http2: false,
        is_plain: false,
    };
    let mut streams = None;
    let (mut urls, mut weights) = (Vec::new(), Vec::new());
    let (mut given, mut vs) = (None, None);
    let mut connect = None;
    while let Some(argument) = parser.next().map_err(hint)? {
        match argument {
            Long("help") | Short('h') => {
                return Ok(Command::Help(if capacity.is_some() { capacity::HELP } else { HTTP }));
            }
            Long(name @ ("steps" | "stats" | "stats-user" | "pid" | "margin")) if capacity.is_some() => {
                let name = format!("--{name}");
                if let Some(capacity) = &mut capacity {
                    capacity.option(&name, &mut parser)?;
                }
            }
            Short('m') | Long("method") => options.method = Some(value("--method", &mut parser)?),
            Short('H') | Long("header") => options.headers.push(value("--header", &mut parser)?),
            Short('b') | Long("body") => set_body(&mut options, value("--body", &mut parser)?.into_bytes())?,
            Long("body-file") => set_body(&mut options, file("--body-file", &mut parser)?)?,
            Long("http2") => options.http2 = true,
            Long("streams") => {
                streams = Some(number("--streams", &value("--streams", &mut parser)?, 1, MAX_PIPELINE)?);
            }
            Long("urls") => {
                for (url, weight) in url_file(&mut parser)? {
                    urls.push(url);
                    weights.push(weight);
                }
            }
            Long("ratio") => given = Some(ratios(&value("--ratio", &mut parser)?)?),
            Short('q') => common.option("--rate", &mut parser)?,
            Long("vs") => vs = Some(value("--vs", &mut parser)?),
            Long("connect") => connect = Some(Server::parse(&value("--connect", &mut parser)?, None)?),
            Value(url) => {
                urls.push(text("a URL", url)?);
                weights.push(1);
            }
            other => common.option(&other_name(&other), &mut parser)?,
        }
    }
    if urls.is_empty() {
        return Err(format!("a URL is missing\n\n{HINT}"));
    }
    if urls.len() > MAX_URLS {
        return Err(format!("{} URLs; at most {MAX_URLS} are kept", urls.len()));
    }
    for word in urls.iter().chain(&options.headers) {
        placeholder(word)?;
    }
    if let Some(given) = given {
        if given.len() != urls.len() {
            return Err(format!("--ratio has {} numbers for {} URLs", given.len(), urls.len()));
        }
        weights = given;
    }
    options.ratios = weights.iter().any(|weight| *weight != 1).then_some(weights);
    let urls = urls.iter().map(|url| Url::parse(url, common.tls.is_wanted())).collect::<Result<Vec<_>, _>>()?;
    if connect.is_none()
        && let Some(other) = urls.iter().find(|url| url.server != urls[0].server)
    {
        return Err(format!(
            "the URLs name {} and {}; one run goes to one server\n\nhint: --connect ADDRESS sends requests for several \
             hosts to one address",
            urls[0].server, other.server
        ));
    }
    common.streams(options.http2, streams)?;
    let tls = common.tls.clone();
    if capacity.as_ref().is_some_and(CapacityOptions::reads_tls) {
        // They are of use without an https:// URL, too.
        common.tls.needs_tls = None;
    }
    options.keep_alive = common.keep_alive;
    options.data_size = common.data_size;
    let plan = |urls: &[Url], connect: Option<Server>| {
        let mut common = common.clone();
        let plan = HttpPlan::new(urls, &options, &common.keys)?;
        let protocols: &[&str] = if options.http2 { &["h2"] } else { &["http/1.1"] };
        let tls = https(urls, std::mem::take(&mut common.tls), protocols)?;
        let load = common.load(connect.unwrap_or_else(|| urls[0].server.clone()), tls)?;
        let protocol = if options.http2 { ProtocolPlan::Http2(plan) } else { ProtocolPlan::Http(plan) };
        Ok::<_, String>(Plan { load, protocol })
    };
    if let Some(capacity) = capacity {
        common.choose_nothing(vs.is_some())?;
        return capacity.command(plan(&urls, connect)?, tls);
    }
    let one = plan(&urls, connect)?;
    common.run(one, vs.map(|target| plan(&other_urls(&urls, &target, common.tls.is_wanted())?, None)).transpose()?)
}

/// Returns the URLs of the other side of a comparison: the target, or its server in the same URLs if it has no path.
fn other_urls(urls: &[Url], target: &str, tls: bool) -> Result<Vec<Url>, String> {
    placeholder(target)?;
    let is_tls = if target.contains("://") { tls } else { tls || urls[0].is_tls };
    let target = Url::parse(target, is_tls)?;
    if target.target != "/" {
        return Ok(vec![target]);
    }
    let moved = |url: &Url| Url { target: url.target.clone(), ..target.clone() };
    Ok(urls.iter().map(moved).collect())
}

/// Returns the TLS of the URLs, which have it all or none.
pub(super) fn https(
    urls: &[Url],
    options: TlsOptions,
    protocols: &'static [&'static str],
) -> Result<Option<TlsPlan>, String> {
    let is_tls = urls[0].is_tls;
    if urls.iter().any(|url| url.is_tls != is_tls) {
        return Err("the URLs are http:// and https:// ones; one run has TLS for all or for none".to_owned());
    }
    if !is_tls {
        if options.is_wanted() {
            return Err("--tls is given and the URLs are http:// ones; write https://".to_owned());
        }
        options.refuse("https://… or --tls with a URL without a scheme")?;
        return Ok(None);
    }
    let host = |url: &Url| match &url.server {
        Server::Tcp(host, _) => host.clone(),
        Server::Unix(path) => path.display().to_string(),
    };
    let first = host(&urls[0]);
    let (is_one, is_fixed) = (urls.iter().all(|url| host(url) == first), !first.contains("__"));
    options.plan((is_one && is_fixed).then_some(&first), "the URLs do not name one host", protocols).map(Some)
}

fn redis(mut parser: lexopt::Parser) -> Result<Command, String> {
    let mut common = Common::new("key:");
    let mut login = Login::default();
    let mut server = Server::Tcp("127.0.0.1".to_owned(), 6379);
    let mut commands: Vec<String> = Vec::new();
    let mut given: Option<Vec<u64>> = None;
    let mut reconnect = false;
    let (mut is_url, mut is_tls) = (false, false);
    let mut vs = None;
    while let Some(argument) = parser.next().map_err(hint)? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(REDIS)),
            Short('s') | Long("server") => {
                let address = value("--server", &mut parser)?;
                is_url = address.contains("://");
                is_tls = address.starts_with(TLS_SCHEME);
                server = redis_server(&address, &mut login)?;
            }
            Long("command") => commands.push(value("--command", &mut parser)?),
            Long("ratio") => given = Some(ratios(&value("--ratio", &mut parser)?)?),
            Long("test") => {
                for name in value("--test", &mut parser)?.split(',') {
                    let test = TESTS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
                    let names: Vec<&str> = TESTS.iter().map(|(name, _)| *name).collect();
                    let (_, command) =
                        test.ok_or_else(|| format!("--test {name}: unknown; there are {}", names.join(", ")))?;
                    commands.push((*command).to_owned());
                }
            }
            Long("user") => login.user = Some(value("--user", &mut parser)?),
            Long("password") => login.password = Some(value("--password", &mut parser)?),
            Long("db") => login.db = number("--db", &value("--db", &mut parser)?, 0, u64::from(u32::MAX))? as u32,
            Long("resp3") => login.resp3 = true,
            Long("reconnect") => reconnect = true,
            Long("vs") => vs = Some(value("--vs", &mut parser)?),
            Value(command) => commands.push(text("a command", command)?),
            other => common.option(&other_name(&other), &mut parser)?,
        }
    }
    if login.user.is_some() && login.password.is_none() {
        return Err("--user wants a --password".to_owned());
    }
    if reconnect {
        common.compare_connections(commands.is_empty())?;
    }
    if commands.is_empty() {
        commands.push(if reconnect { "SET __key__ __data__" } else { "PING" }.to_owned());
    }
    let ratios = given.unwrap_or_else(|| vec![1; commands.len()]);
    if ratios.len() != commands.len() {
        return Err(format!("--ratio has {} numbers for {} commands", ratios.len(), commands.len()));
    }
    let commands: Vec<(String, u64)> = commands.into_iter().zip(ratios).collect();
    let plan = |server: Server, login: &Login, (is_url, is_tls): (bool, bool)| {
        let mut common = common.clone();
        let plan = RedisPlan::new(&commands, login, common.data_size)?;
        let options = std::mem::take(&mut common.tls);
        if options.is_wanted() && is_url && !is_tls {
            return Err("--tls is given and the server is a redis:// one; write rediss://".to_owned());
        }
        let tls = if is_tls || options.is_wanted() {
            let host = match &server {
                Server::Tcp(host, _) => Some(host.as_str()),
                Server::Unix(_) => None,
            };
            Some(options.plan(host, "a unix socket has no name", &[])?)
        } else {
            options.refuse("--tls or --server rediss://…")?;
            None
        };
        Ok(Plan { load: common.load(server, tls)?, protocol: ProtocolPlan::Redis(plan) })
    };
    let one = plan(server, &login, (is_url, is_tls))?;
    if reconnect {
        return match vs {
            Some(_) => Err("--reconnect makes a comparison of its own; --vs does not go with it".to_owned()),
            None => Ok(Command::Reconnect(Box::new(one))),
        };
    }
    let other = |address: String| {
        let mut login = login.clone();
        let server = redis_server(&address, &mut login)?;
        plan(server, &login, (address.contains("://"), address.starts_with(TLS_SCHEME)))
    };
    let other = vs.map(other).transpose()?;
    common.run(one, other)
}

/// Parses an address, or a `redis://` or `rediss://` URL with its login.
pub(super) fn redis_server(address: &str, login: &mut Login) -> Result<Server, String> {
    let Some(rest) = address.strip_prefix("redis://").or_else(|| address.strip_prefix(TLS_SCHEME)) else {
        if address.contains("://") {
            return Err(format!("--server {address}: of URLs only redis:// and rediss:// are known"));
        }
        return Server::parse(address, Some(6379));
    };
    let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
    if !db.is_empty() {
        login.db = number("--server: the database", db, 0, u64::from(u32::MAX))? as u32;
    }
    let host = match authority.rsplit_once('@') {
        None => authority,
        Some((credentials, host)) => {
            let (user, password) = credentials.split_once(':').unwrap_or(("", credentials));
            login.user = (!user.is_empty()).then(|| user.to_owned());
            login.password = Some(password.to_owned());
            host
        }
    };
    Server::parse(host, Some(6379))
}

fn set_body(options: &mut HttpOptions, body: Vec<u8>) -> Result<(), String> {
    if options.body.is_some() {
        return Err("there is one body; --body and --body-file are given more than once".to_owned());
    }
    if let Ok(text) = std::str::from_utf8(&body) {
        placeholder(text)?;
    }
    options.body = Some(body);
    Ok(())
}

fn placeholder(text: &str) -> Result<(), String> {
    match unknown_placeholder(text) {
        Some(word) => Err(format!("'{text}': '{word}' is unknown; there are __key__ and __data__")),
        None => Ok(()),
    }
}

fn file(option: &str, parser: &mut lexopt::Parser) -> Result<Vec<u8>, String> {
    read_file(option, &PathBuf::from(parser.value().map_err(hint)?))
}

/// Reads the file of an option.
pub(super) fn read_file(option: &str, path: &Path) -> Result<Vec<u8>, String> {
    let failed = |reason: String| format!("{option} {}: {reason}", path.display());
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(failed(format!("{size} bytes; at most {MAX_BYTES} are kept in memory")));
    }
    std::fs::read(path).map_err(|error| failed(error.to_string()))
}

fn ratios(text: &str) -> Result<Vec<u64>, String> {
    let numbers = text.split(':').map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>();
    numbers.ok_or_else(|| format!("--ratio {text}: numbers with ':' between them, 1:10"))
}

/// Reads a file of URLs, each with its ratio.
fn url_file(parser: &mut lexopt::Parser) -> Result<Vec<(String, u64)>, String> {
    let bytes = file("--urls", parser)?;
    let text = String::from_utf8(bytes).map_err(|_| "--urls: the file is not UTF-8".to_owned())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let weighted = |line: &str| match line.rsplit_once([' ', '\t']) {
        None => Ok((line.to_owned(), 1)),
        Some((url, ratio)) => match ratio.parse() {
            Ok(ratio) => Ok((url.trim_end().to_owned(), ratio)),
            Err(_) => Err(format!("--urls: '{line}': a URL is expected, with its ratio or without")),
        },
    };
    let urls = lines.map(weighted).collect::<Result<Vec<_>, _>>()?;
    if urls.is_empty() { Err("--urls: the file has no URL".to_owned()) } else { Ok(urls) }
}

fn other_name(argument: &lexopt::Arg<'_>) -> String {
    match argument {
        Long(name) => format!("--{name}"),
        Short(letter) => format!("-{letter}"),
        Value(value) => value.to_string_lossy().into_owned(),
    }
}

fn text(what: &str, value: OsString) -> Result<String, String> {
    value.into_string().map_err(|value| format!("{what}: {value:?} is not UTF-8"))
}

fn value(option: &str, parser: &mut lexopt::Parser) -> Result<String, String> {
    let value = parser.value().map_err(|_| format!("{option} wants a value\n\n{HINT}"))?;
    text(option, value)
}

fn number(option: &str, text: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{option} {text}: a number from {min} to {max} is expected")),
    }
}

/// Parses a time, which is at least `min` nanoseconds.
fn time(option: &str, text: &str, min: u64) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "us" => Some(1e3),
        "ms" => Some(1e6),
        "" | "s" => Some(1e9),
        "m" => Some(60e9),
        "h" => Some(3600e9),
        _ => None,
    };
    let ns = factor.zip(number.parse::<f64>().ok()).map(|(factor, number)| number * factor);
    match ns {
        Some(ns) if ns > MAX_TIME_NS as f64 => Err(format!("{option} {text}: more than 1000 hours")),
        Some(ns) if (ns as u64) < min => Err(format!("{option} {text}: must be more than 0")),
        Some(ns) => Ok(ns as u64),
        None => Err(format!("{option} {text}: a time is expected, a number with us, ms, s, m or h")),
    }
}

fn destination(option: &str, parser: &mut lexopt::Parser) -> Result<Destination, String> {
    match parser.optional_value() {
        None => Ok(Destination::Output),
        Some(path) if path.is_empty() => Err(format!("{option}=: a file name is missing")),
        Some(path) => Ok(Destination::File(path.into())),
    }
}

fn pattern(text: &str) -> Result<KeyPattern, String> {
    let (name, argument) = text.split_once(':').map_or((text, None), |(name, argument)| (name, Some(argument)));
    let argument = match argument {
        None => None,
        Some(argument) => match argument.parse::<f64>() {
            Ok(number) if number > 0.0 && number.is_finite() => Some(number),
            _ => return Err(format!("--key-pattern {text}: '{argument}' is not a number above 0")),
        },
    };
    match (name, argument) {
        ("uniform", None) => Ok(KeyPattern::Uniform),
        ("sequential", None) => Ok(KeyPattern::Sequential),
        ("gaussian", deviation) => Ok(KeyPattern::Gaussian(deviation.unwrap_or(0.0))),
        ("zipf", exponent) => Ok(KeyPattern::Zipf(exponent.unwrap_or(1.0))),
        _ => Err(format!(
            "--key-pattern {text}: there are uniform, sequential, gaussian[:DEVIATION] and zipf[:EXPONENT]"
        )),
    }
}

impl Common {
    fn new(prefix: &str) -> Common {
        let keys = KeySpace { prefix: prefix.to_owned(), min: 0, max: 999_999, pattern: KeyPattern::Uniform };
        Common {
            connections: None,
            threads: 1,
            duration_ns: None,
            requests: None,
            warmup_ns: 0,
            rate: None,
            arrivals: Arrivals::Constant,
            pipeline: 1,
            keep_alive: true,
            keys,
            data_size: 32,
            seed: 1,
            timeout_ns: 10_000_000_000,
            connect_timeout_ns: 3_000_000_000,
            family: Family::Any,
            late_ns: 1_000_000,
            correct: None,
            interval_ns: None,
            ramp_ns: 0,
            has_histogram: false,
            json: Destination::No,
            csv: Destination::No,
            pictures: Pictures::default(),
            no_tui: false,
            rounds: None,
            fail_over: None,
            pid: None,
            tls: TlsOptions::default(),
        }
    }

    /// Parses the option `name` with its value.
    fn option(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), String> {
        let mut get = || value(name, parser);
        match name {
            "-c" | "--connections" => self.connections = Some(number(name, &get()?, 1, MAX_CONNECTIONS)?),
            "-t" | "--threads" => self.threads = number(name, &get()?, 1, MAX_THREADS)?,
            "-d" | "-z" | "--duration" => self.duration_ns = Some(time(name, &get()?, 1)?),
            "-n" | "--requests" => self.requests = Some(number(name, &get()?, 1, u64::MAX - 1)?),
            "-w" | "--warmup" => self.warmup_ns = time(name, &get()?, 0)?,
            "-r" | "--rate" => {
                let text = get()?;
                match text.parse::<f64>() {
                    Ok(rate) if rate > 0.0 && rate <= MAX_RATE => self.rate = Some(rate),
                    _ => return Err(format!("{name} {text}: requests a second, above 0 and up to {MAX_RATE}")),
                }
            }
            "--arrivals" => {
                self.arrivals = match get()?.as_str() {
                    "constant" => Arrivals::Constant,
                    "exponential" => Arrivals::Exponential,
                    other => return Err(format!("{name} {other}: there are constant and exponential")),
                }
            }
            "-P" | "--pipeline" => self.pipeline = number(name, &get()?, 1, MAX_PIPELINE)?,
            "--no-keep-alive" => self.keep_alive = false,
            "--key-min" => self.keys.min = number(name, &get()?, 0, u64::MAX >> 1)?,
            "--key-max" => self.keys.max = number(name, &get()?, 0, u64::MAX >> 1)?,
            "--key-prefix" => self.keys.prefix = get()?,
            "--key-pattern" => self.keys.pattern = pattern(&get()?)?,
            "--data-size" => self.data_size = number(name, &get()?, 1, MAX_BYTES)? as usize,
            "--seed" => self.seed = number(name, &get()?, 0, u64::MAX)?,
            "--timeout" => self.timeout_ns = time(name, &get()?, 1)?,
            "--connect-timeout" => self.connect_timeout_ns = time(name, &get()?, 1)?,
            "-4" => self.family = Family::V4,
            "-6" => self.family = Family::V6,
            "--late" => self.late_ns = time(name, &get()?, 0)?,
            "--correct" => {
                self.correct = Some(match get()?.as_str() {
                    "median" => Correction::Median,
                    text => Correction::IntervalNs(time(name, text, 1)?),
                });
            }
            "-i" | "--interval" => self.interval_ns = Some(time(name, &get()?, 1)?),
            "--ramp" => self.ramp_ns = time(name, &get()?, 0)?,
            "--latency" => self.has_histogram = true,
            "--no-tui" => self.no_tui = true,
            "--html" => self.pictures.html = Some(get()?.into()),
            "--svg" => self.pictures.svg = Some(get()?.into()),
            "--rounds" => self.rounds = Some(number(name, &get()?, 1, 1000)?),
            "--fail-over" => self.fail_over = Some(percent(name, &get()?)?),
            "--json" => self.json = destination(name, parser)?,
            "--csv" => self.csv = destination(name, parser)?,
            "--pid" => self.pid = Some(number(name, &get()?, 1, u64::from(u32::MAX))? as u32),
            _ if self.tls.option(name, parser)? => {}
            _ => return Err(format!("invalid option '{name}'\n\n{HINT}")),
        }
        Ok(())
    }

    /// Returns the run of a load, or the comparison of two.
    fn run(&self, mut one: Plan, other: Option<Plan>) -> Result<Command, String> {
        let Some(mut other) = other else {
            return match (self.rounds, self.fail_over) {
                (None, None) => Ok(Command::Run(Box::new(one))),
                _ => Err("--rounds and --fail-over want a --vs".to_owned()),
            };
        };
        if self.csv != Destination::No {
            return Err("--vs compares two loads; --csv does not go with it".to_owned());
        }
        for plan in [&mut one, &mut other] {
            plan.load.has_series = true;
        }
        let options =
            Comparison { fail_over: self.fail_over, json: self.json.clone(), pictures: self.pictures.clone() };
        Ok(Command::Versus(Box::new(Versus { one, other, rounds: self.rounds.unwrap_or(5), comparison: options })))
    }

    /// Checks that nothing is given that `bench capacity` chooses itself.
    fn choose_nothing(&self, has_other: bool) -> Result<(), String> {
        for (given, name) in [
            (self.rate.is_some(), "--rate"),
            (self.requests.is_some(), "--requests"),
            (self.ramp_ns > 0, "--ramp"),
            (self.interval_ns.is_some(), "--interval"),
            (self.csv != Destination::No, "--csv"),
            (self.correct.is_some(), "--correct"),
            (has_other, "--vs"),
        ] {
            if given {
                return Err(format!("bench capacity makes its steps itself; {name} does not go with it"));
            }
        }
        Ok(())
    }

    /// Returns the form in which the progress is shown: a view of the terminal, if there is one and nothing else is printed.
    fn live(&self) -> Live {
        let is_quiet = self.no_tui
            || self.interval_ns.is_some()
            || [&self.json, &self.csv].into_iter().any(|destination| *destination == Destination::Output);
        if is_quiet { Live::Lines } else { Live::Screen }
    }

    /// Applies the defaults of `--reconnect`, and refuses options that it excludes.
    fn compare_connections(&mut self, own_commands: bool) -> Result<(), String> {
        let counts = "counts commands over connections that are kept and over new ones";
        for (given, name) in [
            (!self.keep_alive, "--no-keep-alive"),
            (self.pipeline > 1, "--pipeline"),
            (self.duration_ns.is_some(), "--duration"),
            (self.warmup_ns > 0, "--warmup"),
            (self.rate.is_some(), "--rate"),
            (self.interval_ns.is_some(), "--interval"),
            (self.csv != Destination::No, "--csv"),
            (!self.pictures.is_none(), "--html and --svg"),
            (self.ramp_ns > 0, "--ramp"),
        ] {
            if given {
                return Err(format!("--reconnect {counts}; {name} does not go with it"));
            }
        }
        let requests = *self.requests.get_or_insert(50_000);
        self.connections.get_or_insert(1);
        if own_commands {
            self.keys.pattern = KeyPattern::Sequential;
            self.keys.max = self.keys.max.min(self.keys.min + requests - 1);
        }
        Ok(())
    }

    /// Applies the options of HTTP/2, where streams take the place of pipelining.
    fn streams(&mut self, http2: bool, streams: Option<u64>) -> Result<(), String> {
        match streams {
            Some(_) if !http2 => Err("--streams wants --http2".to_owned()),
            _ if http2 && self.pipeline > 1 => Err("HTTP/2 has --streams in place of --pipeline".to_owned()),
            Some(2..) if !self.keep_alive => Err("--no-keep-alive has one request and one stream".to_owned()),
            Some(streams) => {
                self.pipeline = streams;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Checks the combination of options, and returns the load.
    fn load(self, server: Server, tls: Option<TlsPlan>) -> Result<Load, String> {
        let connections = self.connections.unwrap_or(50);
        if self.threads > connections {
            return Err(format!("{} threads have only {connections} connections to share", self.threads));
        }
        if self.keys.min > self.keys.max {
            return Err(format!("--key-min {} is above --key-max {}", self.keys.min, self.keys.max));
        }
        if connections * self.pipeline > MAX_IN_FLIGHT {
            return Err(format!("more than {MAX_IN_FLIGHT} requests would be in flight"));
        }
        if !self.keep_alive && self.pipeline > 1 {
            return Err("--pipeline wants connections that carry more than one request".to_owned());
        }
        if self.correct.is_some() && self.rate.is_some() {
            return Err("--correct is for a closed loop; with --rate every latency is the true one already".to_owned());
        }
        if self.arrivals != Arrivals::Constant && self.rate.is_none() {
            return Err("--arrivals wants a --rate".to_owned());
        }
        if self.interval_ns.is_some_and(|interval| interval < 10_000_000) {
            return Err("--interval is at least 10ms".to_owned());
        }
        if (&self.json, &self.csv) == (&Destination::Output, &Destination::Output) {
            return Err("--json and --csv: one of them needs a file, --csv=FILE".to_owned());
        }
        if self.warmup_ns > 0 && self.ramp_ns > self.warmup_ns {
            return Err("--ramp is longer than the --warmup, of which it is the beginning".to_owned());
        }
        let live = self.live();
        let interval_ns = self.interval_ns.or((live == Live::Screen).then_some(SCREEN_INTERVAL_NS));
        let duration_ns = match (self.duration_ns, self.requests) {
            (None, None) => Some(10_000_000_000),
            (duration, _) => duration,
        };
        Ok(Load {
            family: self.family,
            tls,
            connections: connections as usize,
            threads: self.threads as usize,
            duration_ns,
            requests: self.requests,
            warmup_ns: self.warmup_ns,
            rate: self.rate,
            arrivals: self.arrivals,
            pipeline: self.pipeline as usize,
            timeout_ns: self.timeout_ns,
            connect_timeout_ns: self.connect_timeout_ns,
            write_timeout_ns: self.timeout_ns,
            late_ns: self.late_ns,
            keep_alive: self.keep_alive,
            correct: self.correct,
            live,
            has_series: self.json != Destination::No || self.csv != Destination::No || !self.pictures.is_none(),
            pictures: self.pictures,
            ramp_ns: self.ramp_ns,
            interval_ns,
            has_histogram: self.has_histogram,
            csv: self.csv,
            keys: self.keys,
            seed: self.seed,
            pid: self.pid,
            json: self.json,
            ..Load::to(server)
        })
    }
}
