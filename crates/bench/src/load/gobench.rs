//! The face of gobench: its command line and its report.
//!
//! Options are those of Go's package `flag`: `-x v`, `-x=v`, and each with two dashes; a switch takes its value by `=`
//! only. The report has gobench's lines and columns. Its arithmetic is mended, and a note says where a figure is not
//! the one that gobench prints: rates are by the exact time and not by whole seconds, every 2xx status is a success and
//! not 200 alone, and each client sends exactly the requested number. Percentiles of latency follow, which gobench does
//! not have.
//!
//! Limits: all URLs name one server; a request is never sent twice, so one whose connection ends before the answer is
//! a network failure.

use std::fmt::Write as _;
use std::path::Path;

use super::arguments::tls::TlsOptions;
use super::arguments::{MAX_CONNECTIONS, MAX_TIME_NS, MAX_URLS, https, read_file};
use super::console::{Console, print};
use super::http::{HttpOptions, HttpPlan};
use super::outcome::Outcome;
use super::plan::{Load, Plan, ProtocolPlan};
use super::stats::{ConnectFault, RequestFault};
use super::target::Url;
use super::template::KeySpace;
use super::{run, text};

/// The exit code after an error in the form of an option, that of Go's package `flag`.
const BAD_FLAG: u8 = 2;

const USAGE: &str = "\
usage: gobench (-u URL | -f FILE) (-r N | -t SECONDS) [OPTION]…

  -u URL         the URL
  -f FILE        URLs, one per line; that of -u is the last one
  -r N           requests of each client
  -t SECONDS     duration of the test
  -c N           clients, each with a connection (100)
  -k=BOOL        keep connections alive (true)
  -d FILE        the body of POST requests; without it the requests are GET
  -auth VALUE    the value of Authorization
  -tr MS         time limit for an answer (5000); 0: none
  -tw MS         time limit for sending a request (5000); 0: none

Options are written -x VALUE, -x=VALUE or with two dashes. The number of threads is GOMAXPROCS, or that of the cores.
`sluicegate bench http --help` describes the load generator's own options.
";

/// The options of gobench.
#[derive(Debug, PartialEq)]
struct Flags {
    requests: Option<u64>,
    seconds: Option<u64>,
    clients: u64,
    url: String,
    urls_file: String,
    keep_alive: bool,
    body_file: String,
    write_timeout_ms: i64,
    read_timeout_ms: i64,
    authorization: String,
}

/// A command line that is not a run.
#[derive(Debug, PartialEq)]
enum Refusal {
    Help,
    /// An option in the wrong form, or an unknown one.
    Flag(String),
    /// Valid options that make no run.
    Usage(String),
}

/// Returns whether the words after `bench http` are gobench's: these have `-u` or `-f`, of which the load generator's
/// own have neither.
pub(super) fn is_meant(words: &[String]) -> bool {
    words.iter().any(|word| {
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        name.is_some_and(|name| matches!(name.split('=').next(), Some("u" | "f")))
    })
}

/// Runs gobench's command line. Returns the exit code: 0 after a report, also after an interrupt; 1 if every request
/// failed, or the options make no run; 2 if an option is wrong.
pub(super) fn execute(words: &[String], console: &mut Console<'_>) -> u8 {
    let plan = match parse(words).and_then(|flags| flags.plan().map_err(Refusal::Usage)) {
        Ok(plan) => plan,
        Err(Refusal::Help) => return print(console, USAGE).map_or(1, |()| 0),
        Err(Refusal::Flag(message)) => {
            console.refuse(&format!("{message}\n\n{USAGE}"));
            return BAD_FLAG;
        }
        Err(Refusal::Usage(message)) => return console.refuse(&message),
    };
    let outcome = match run::measure(&plan, console) {
        Ok(outcome) => outcome,
        Err(message) => return console.refuse(&message),
    };
    if let Err(message) = print(console, &report(&plan, &outcome)) {
        return console.refuse(&message);
    }
    let has_failed = outcome.stats.answered == 0 && Counts::of(&plan, &outcome).requests > 0;
    if has_failed { console.refuse("every request failed") } else { 0 }
}

fn parse(words: &[String]) -> Result<Flags, Refusal> {
    let mut flags = Flags {
        requests: None,
        seconds: None,
        clients: 100,
        url: String::new(),
        urls_file: String::new(),
        keep_alive: true,
        body_file: String::new(),
        write_timeout_ms: 5000,
        read_timeout_ms: 5000,
        authorization: String::new(),
    };
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|name| !name.is_empty())
        else {
            let message = match flags.keep_alive && matches!(word.as_str(), "true" | "false") {
                true => format!("'{word}' belongs to no option; write -k={word}"),
                false => format!("'{word}' belongs to no option; a URL is given by -u"),
            };
            return Err(Refusal::Flag(message));
        };
        let (name, inline) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if matches!(name, "h" | "help") {
            return Err(Refusal::Help);
        }
        if name == "k" {
            flags.keep_alive = match inline.unwrap_or("true") {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                other => return Err(Refusal::Flag(format!("invalid boolean value \"{other}\" for -k: parse error"))),
            };
            continue;
        }
        if !matches!(name, "r" | "c" | "u" | "f" | "d" | "t" | "tw" | "tr" | "auth") {
            return Err(Refusal::Flag(format!("flag provided but not defined: -{name}")));
        }
        let Some(value) = inline.or_else(|| rest.next().map(String::as_str)) else {
            return Err(Refusal::Flag(format!("flag needs an argument: -{name}")));
        };
        let wrong = || Refusal::Flag(format!("invalid value \"{value}\" for flag -{name}: parse error"));
        let number = || value.parse::<i64>().map_err(|_| wrong());
        // -1 stands for an option that is not given.
        let optional = || number().map(|number| u64::try_from(number).ok());
        match name {
            "r" => flags.requests = optional()?,
            "t" => flags.seconds = optional()?,
            "c" => match number()? {
                number if (1..=MAX_CONNECTIONS as i64).contains(&number) => flags.clients = number as u64,
                _ => {
                    return Err(Refusal::Flag(format!("-c {value}: a number from 1 to {MAX_CONNECTIONS} is expected")));
                }
            },
            "tw" => flags.write_timeout_ms = number()?,
            "tr" => flags.read_timeout_ms = number()?,
            "u" => flags.url = value.to_owned(),
            "f" => flags.urls_file = value.to_owned(),
            "d" => flags.body_file = value.to_owned(),
            _ => flags.authorization = value.to_owned(),
        }
    }
    if flags.url.is_empty() && flags.urls_file.is_empty() {
        return Err(Refusal::Usage(format!("a URL is missing: -u or -f\n\n{USAGE}")));
    }
    match (flags.requests, flags.seconds) {
        (None, None) => Err(Refusal::Usage(format!("Requests or period must be provided\n\n{USAGE}"))),
        (Some(_), Some(_)) => Err(Refusal::Usage(format!("Only one should be provided: [requests|period]\n\n{USAGE}"))),
        (Some(0), _) | (_, Some(0)) => Err(Refusal::Usage("-r and -t are above 0".to_owned())),
        _ => Ok(flags),
    }
}

impl Flags {
    fn urls(&self) -> Result<Vec<Url>, String> {
        let mut lines = Vec::new();
        if !self.urls_file.is_empty() {
            let bytes = read_file("-f", Path::new(&self.urls_file))?;
            let file = String::from_utf8(bytes).map_err(|_| format!("-f {}: the file is not UTF-8", self.urls_file))?;
            lines.extend(file.lines().map(str::to_owned).filter(|line| !line.is_empty()));
        }
        if !self.url.is_empty() {
            lines.push(self.url.clone());
        }
        if lines.is_empty() || lines.len() > MAX_URLS {
            return Err(format!("-f {}: {} URLs; 1 to {MAX_URLS} are kept", self.urls_file, lines.len()));
        }
        let urls = lines.iter().map(|line| Url::parse(line, false)).collect::<Result<Vec<_>, _>>()?;
        match urls.iter().find(|url| url.server != urls[0].server) {
            Some(other) => {
                Err(format!("the URLs name {} and {}; one run goes to one server", urls[0].server, other.server))
            }
            None => Ok(urls),
        }
    }

    fn plan(&self) -> Result<Plan, String> {
        let urls = self.urls()?;
        let body = match self.body_file.as_str() {
            "" => None,
            path => Some(read_file("-d", Path::new(path))?),
        };
        let headers = match self.authorization.as_str() {
            "" => Vec::new(),
            value => vec![format!("Authorization: {value}")],
        };
        let options = HttpOptions {
            method: None,
            headers,
            body,
            keep_alive: self.keep_alive,
            data_size: 0,
            ratios: None,
            http2: false,
            is_plain: true,
        };
        let http = HttpPlan::new(&urls, &options, &KeySpace::none())?;
        let tls = https(&urls, TlsOptions::default(), &["http/1.1"])?;
        let ns = |ms: i64| match u64::try_from(ms) {
            Ok(ms @ 1..) => ms.saturating_mul(1_000_000).min(MAX_TIME_NS),
            _ => MAX_TIME_NS,
        };
        let requests = match self.requests {
            Some(each) => Some(
                each.checked_mul(self.clients).ok_or_else(|| format!("-r {each}: more requests than are counted"))?,
            ),
            None => None,
        };
        let load = Load {
            tls,
            connections: self.clients as usize,
            threads: threads(std::env::var("GOMAXPROCS").ok().as_deref()).min(self.clients as usize),
            duration_ns: self.seconds.map(|seconds| seconds.saturating_mul(1_000_000_000).min(MAX_TIME_NS)),
            requests,
            requests_each: self.requests.into_iter().collect(),
            cuts_off: true,
            timeout_ns: ns(self.read_timeout_ms),
            connect_timeout_ns: ns(self.read_timeout_ms),
            write_timeout_ns: ns(self.write_timeout_ms),
            keep_alive: self.keep_alive,
            banner: format!("Dispatching {} clients\nWaiting for results...\n", self.clients),
            ..Load::to(urls[0].server.clone())
        };
        Ok(Plan { load, protocol: ProtocolPlan::Http(http) })
    }
}

/// Returns the number of threads: `GOMAXPROCS` if it is a number above 0, otherwise that of the cores.
fn threads(wanted: Option<&str>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    wanted.and_then(|text| text.parse().ok()).filter(|number| (1..=1024).contains(number)).unwrap_or_else(cores)
}

/// The counts of gobench.
struct Counts {
    requests: u64,
    succeeded: u64,
    network: u64,
    bad: u64,
}

impl Counts {
    fn of(plan: &Plan, outcome: &Outcome) -> Counts {
        let stats = &outcome.stats;
        let succeeded: u64 = stats.statuses[200..300].iter().sum();
        // A request that waits for its connection fails with it. Where connections are kept, an attempt to connect is
        // made for the next request; where a number is requested, those that could not be sent are in that number.
        let unconnected = match (plan.load.requests, plan.load.keep_alive) {
            (Some(_), _) => stats.unsent,
            (None, true) => stats.connect_faults.total(),
            (None, false) => 0,
        };
        let network = stats.failed() + unconnected;
        Counts { requests: stats.answered + network, succeeded, network, bad: stats.answered - succeeded }
    }
}

/// Returns the report, from the empty line before gobench's block on.
fn report(plan: &Plan, outcome: &Outcome) -> String {
    let stats = &outcome.stats;
    let counts = Counts::of(plan, outcome);
    let per_second = |count: u64| (count as f64 / outcome.elapsed_s.max(1e-9)).round() as u64;
    let mut out = String::from("\n");
    for (name, value, unit) in [
        ("Requests:", counts.requests, "hits"),
        ("Successful requests:", counts.succeeded, "hits"),
        ("Network failed:", counts.network, "hits"),
        ("Bad requests failed (!2xx):", counts.bad, "hits"),
        ("Successful requests rate:", per_second(counts.succeeded), "hits/sec"),
        ("Read throughput:", per_second(stats.bytes_received), "bytes/sec"),
        ("Write throughput:", per_second(stats.bytes_sent), "bytes/sec"),
        ("Test time:", outcome.elapsed_s.round().max(1.0) as u64, "sec"),
    ] {
        let _ = writeln!(out, "{name:<32}{value:>10} {unit}");
    }
    out.push('\n');
    text::times(&mut out, plan, outcome);
    text::faults(&mut out, "failed", &stats.faults, RequestFault::ALL.iter().map(|(_, name)| *name));
    text::faults(&mut out, "connecting", &stats.connect_faults, ConnectFault::ALL.iter().map(|(_, name)| *name));
    for note in notes(&counts, outcome) {
        let _ = writeln!(out, "note: {note}");
    }
    for warning in &outcome.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    out
}

/// Returns what differs from the figures of gobench, and why.
fn notes(counts: &Counts, outcome: &Outcome) -> Vec<String> {
    let stats = &outcome.stats;
    let mut notes = Vec::new();
    let (whole, exact) = ((outcome.elapsed_s as u64).max(1), outcome.elapsed_s);
    if (exact - whole as f64).abs() > exact / 200.0 {
        notes.push(format!("the test took {exact:.3} s, by which the rates are computed; gobench divides by {whole}"));
    }
    let others = counts.succeeded - stats.statuses[200];
    if others > 0 {
        notes
            .push(format!("{others} successful requests have a 2xx status other than 200; gobench counts them as bad"));
    }
    if stats.unanswered > 0 {
        notes
            .push(format!("{} requests without an answer at the end are not counted, as in gobench", stats.unanswered));
    }
    if stats.unsent > 0 {
        notes.push(format!("{} requests were not sent, for want of a connection", stats.unsent));
    } else if counts.network > stats.failed() {
        notes.push(
            "attempts to connect count as requests; after a failure they pause, in gobench they do not".to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Outcome as Answered;
    use super::super::stats::Stats;
    use super::*;

    fn parsed(line: &str) -> Result<Flags, Refusal> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[track_caller]
    fn plan(line: &str) -> Plan {
        parsed(line).unwrap().plan().unwrap()
    }

    #[test]
    fn the_posts_command_lines_are_understood() {
        for (line, clients) in [
            ("-u http://10.42.226.10/fast -c 20 -t 30", 20),
            ("-u http://10.42.226.10/slow -c 100 -t 30", 100),
            ("--u=http://10.42.226.10/slow --c=100 -t=30", 100),
        ] {
            let Plan { load, .. } = plan(line);
            assert_eq!((load.connections, load.duration_ns, load.requests), (clients, Some(30_000_000_000), None));
            assert!(load.keep_alive && load.cuts_off, "{line}");
            assert_eq!((load.timeout_ns, load.write_timeout_ns), (5_000_000_000, 5_000_000_000));
        }
    }

    #[test]
    fn options_have_the_forms_of_go() {
        let load = plan("-u http://a/ -r 7 -c 3 -k=false -tr 0 --tw=20 -auth x").load;
        assert_eq!((load.requests, load.requests_each, load.keep_alive), (Some(21), vec![7], false));
        assert_eq!((load.timeout_ns, load.write_timeout_ns), (MAX_TIME_NS, 20_000_000));
        assert!(plan("-k -r -1 -t 1 -u http://a/").load.keep_alive);
        let flag = |line: &str| match parsed(line) {
            Err(Refusal::Flag(message)) => message,
            other => panic!("{line}: {other:?}"),
        };
        for (line, part) in [
            ("-u http://a/ -x", "flag provided but not defined: -x"),
            ("-u http://a/ --json", "flag provided but not defined: -json"),
            ("-u http://a/ -r", "flag needs an argument: -r"),
            ("-u http://a/ -r x", "invalid value \"x\" for flag -r: parse error"),
            ("-u http://a/ -k=x", "invalid boolean value \"x\" for -k: parse error"),
            ("-u http://a/ -r 1 -k false", "write -k=false"),
            ("-r 1 http://a/", "given by -u"),
            ("-u http://a/ -c 0", "-c 0: a number from 1"),
            ("-u http://a/ -", "belongs to no option"),
        ] {
            assert!(flag(line).contains(part), "{line}: {}", flag(line));
        }
        assert_eq!(parsed("-help"), Err(Refusal::Help));
        for (line, part) in [
            ("-c 3 -t 1", "a URL is missing"),
            ("-u http://a/", "Requests or period must be provided"),
            ("-u http://a/ -r 1 -t 1", "Only one should be provided: [requests|period]"),
            ("-u http://a/ -r 0", "above 0"),
        ] {
            assert!(matches!(parsed(line), Err(Refusal::Usage(text)) if text.contains(part)), "{line}");
        }
        assert!(parsed("-f /does/not/exist -r 1").unwrap().plan().unwrap_err().contains("-f /does/not/exist: No such"));
        assert!(parsed("-u http://a/ -d /does/not/exist -r 1").unwrap().plan().unwrap_err().contains("-d /does"));
    }

    #[test]
    fn its_command_line_is_told_from_the_generators_own() {
        let is = |line: &str| is_meant(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for line in ["-u http://a/ -t 3", "-c 3 --u=http://a/", "-f=x", "-t 3 --f x"] {
            assert!(is(line), "{line}");
        }
        for line in ["http://a/ -t 3", "-r 3 -d 5 http://a/?-u", "--urls x", "--user-x", ""] {
            assert!(!is(line), "{line}");
        }
    }

    #[test]
    fn threads_are_gos() {
        assert_eq!(threads(Some("3")), 3);
        assert_eq!([threads(Some("0")), threads(Some("x"))], [threads(None), threads(None)]);
    }

    #[test]
    fn the_report_has_gobenchs_lines() {
        let mut stats = Stats::new(1);
        for status in [200, 200, 204, 301, 500] {
            stats.answer(0, &Answered::Status(status), 10, 1_000_000);
        }
        stats.fault(RequestFault::Timeout, || "no answer in time".to_owned());
        (stats.bytes_received, stats.bytes_sent, stats.unanswered) = (54_700_061, 4_128_684, 2);
        let text = report(&plan("-u http://a/ -t 2"), &Outcome::of(stats, &["GET"], 2.0));
        let expected = "
Requests:                                6 hits
Successful requests:                     3 hits
Network failed:                          1 hits
Bad requests failed (!2xx):              2 hits
Successful requests rate:                2 hits/sec
Read throughput:                  27350031 bytes/sec
Write throughput:                  2064342 bytes/sec
Test time:                               2 sec

";
        assert_eq!(&text[..expected.len()], expected);
        assert!(text.contains("latency         1.00 ms"), "{text}");
        assert!(text.contains("failed        timeout 1: no answer in time\n"), "{text}");
        assert!(text.contains("note: 1 successful requests have a 2xx status other than 200"), "{text}");
        assert!(text.contains("note: 2 requests without an answer at the end are not counted"), "{text}");
        assert!(!text.contains("gobench divides by"), "{text}");
    }

    #[test]
    fn rates_are_by_the_exact_time() {
        let mut stats = Stats::new(1);
        for _ in 0..30 {
            stats.answer(0, &Answered::Status(200), 0, 1);
        }
        let text = report(&plan("-u http://a/ -r 30 -c 1"), &Outcome::of(stats, &["GET"], 0.25));
        assert!(text.contains("Successful requests rate:              120 hits/sec\n"), "{text}");
        assert!(text.contains("Test time:                               1 sec\n"), "{text}");
        assert!(
            text.contains("the test took 0.250 s, by which the rates are computed; gobench divides by 1\n"),
            "{text}"
        );
    }
}
