//! Masks for what may differ between two runs of a case: times, dates, ports, process IDs, addresses in memory.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::{Captures, Regex};

macro_rules! pattern {
    ($name:ident, $text:literal) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).expect("a good pattern"));
    };
}

pattern!(CLOCK, r"\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(\.\d+)?( [+-]\d{4})?");
pattern!(HTTP_DATE, r"[A-Z][a-z]{2}, \d\d[ -][A-Z][a-z]{2}[ -]\d{4} \d\d:\d\d:\d\d GMT");
pattern!(ISO_DATE, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)");
pattern!(SYSLOG_DATE, r"^(<\d+>)[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ");
pattern!(PID, r"\[\d+\]: ");
pattern!(PID_5424, r"^(<\d+>1 DATE \S+ \S+ )\d+ ");
pattern!(CLF_TIMES, r"( -?\d+){5} ([A-Za-z-]{4} \d)");
pattern!(CLF_MILLISECONDS, r"^(.* \[DATE\] .*\} )\d+ ");
pattern!(POINTER, r"\b0x[0-9a-f]+\b");
pattern!(CHECK_TIME, r"check duration: \d+ms");
pattern!(SERVER_STATE, r"(?m)^(\d+ \S+ \d+ \S+ \S+ \d+ \d+ \d+ \d+) \d+ ");
pattern!(COOKIE_DATES, r"\|[0-9A-Za-z+/]{5}\|[0-9A-Za-z+/]{5};");
pattern!(EXPIRY, r"\bexp=\d+");
pattern!(AGE, r"(?m)^age: \d+");
pattern!(TIMERS, r"(^| )(-?\d+|[+]\d+)(/[+]?-?\d+){2,}");
pattern!(NUMBER, r"\d+");
pattern!(TOKEN, r"[0-9A-Za-z]+");

/// Port numbers and their names.
pub struct Ports {
    names: Vec<(u16, String)>,
    /// Words of the case itself, which name no port even if one happens to have that number.
    words: HashSet<String>,
}

impl Ports {
    pub fn new(ports: Vec<(u16, String)>) -> Ports {
        Ports { names: ports, words: HashSet::new() }
    }

    /// Excludes the words of these texts from masking.
    pub fn but<'a>(mut self, texts: impl Iterator<Item = &'a String>) -> Ports {
        for text in texts {
            self.words.extend(TOKEN.find_iter(text).map(|word| word.as_str().to_owned()));
        }
        self
    }

    fn name(&self, token: &str) -> Option<&str> {
        let is = |port: u16| token == port.to_string() || (token.len() == 4 && token == format!("{port:04X}"));
        let found = self.names.iter().find(|(port, _)| is(*port));
        found.filter(|_| !self.words.contains(token)).map(|(_, name)| name.as_str())
    }

    fn mask(&self, text: &str) -> String {
        let name = |found: &Captures<'_>| match self.name(&found[0]) {
            Some(name) => format!("{{{name}}}"),
            None => found[0].to_owned(),
        };
        TOKEN.replace_all(text, name).into_owned()
    }
}

/// Masks a text from any source.
pub fn text(text: &str, ports: &Ports) -> String {
    let mut text = CLOCK.replace_all(text, "DATE").into_owned();
    for (pattern, word) in [(&HTTP_DATE, "DATE"), (&ISO_DATE, "DATE"), (&POINTER, "POINTER"), (&EXPIRY, "exp=MS")] {
        text = pattern.replace_all(&text, word).into_owned();
    }
    text = AGE.replace_all(&text, "age: SECONDS").into_owned();
    text = COOKIE_DATES.replace_all(&text, "|SEEN|FIRST;").into_owned();
    text = CHECK_TIME.replace_all(&text, "check duration: MS").into_owned();
    text = SERVER_STATE.replace_all(&text, "$1 SECONDS ").into_owned();
    ports.mask(&text)
}

/// Masks a log datagram. Its first group of three or more numbers between slashes is taken for times; -1 is kept,
/// because it means that something did not happen.
pub fn log(line: &str, ports: &Ports) -> String {
    let line = SYSLOG_DATE.replace(line.trim_end_matches('\n'), "${1}DATE ");
    let line = PID.replace(&line, "[PID]: ");
    let line = text(&line, ports);
    let line = PID_5424.replace(&line, "${1}PID ");
    let line = CLF_TIMES.replace(&line, " T T T T T $2");
    let line = CLF_MILLISECONDS.replace(&line, "${1}MS ");
    let times = |found: &Captures<'_>| {
        let parts = found[0]
            .split('/')
            .map(|part| if part.contains("-1") { part.to_owned() } else { NUMBER.replace(part, "T").into_owned() });
        parts.collect::<Vec<_>>().join("/")
    };
    TIMERS.replace(&line, times).into_owned()
}

/// The columns of `show stat` that are left out: times, rates, states of connections to servers, and the process ID.
const UNTOLD: &[&str] = &[
    "pid",
    "lastchg",
    "downtime",
    "check_duration",
    "agent_duration",
    "lastsess",
    "qtime",
    "ctime",
    "rtime",
    "ttime",
    "qtime_max",
    "ctime_max",
    "rtime_max",
    "ttime_max",
    "rate",
    "rate_max",
    "req_rate",
    "req_rate_max",
    "conn_rate",
    "conn_rate_max",
    "srv_icur",
    "idle_conn_cur",
    "safe_conn_cur",
    "used_conn_cur",
    "need_conn_est",
    "throttle",
];

/// Returns the rows of `show stat` without empty and zero values, up to the columns of protocols.
pub fn statistics(csv: &str, ports: &Ports) -> String {
    let mut lines = csv.lines().filter(|line| !line.is_empty());
    let names: Vec<&str> = lines.next().unwrap_or_default().trim_start_matches("# ").split(',').collect();
    let mut text = String::new();
    for line in lines {
        let values: Vec<&str> = line.split(',').collect();
        text.push_str(&format!("{} {}", values[0], values.get(1).unwrap_or(&"")));
        for column in known() {
            let at = names.iter().position(|name| *name == column);
            let value = at.and_then(|at| values.get(at)).copied().unwrap_or_default();
            if !value.is_empty() && value != "0" {
                text.push_str(&format!(" {column}={value}"));
            }
        }
        text.push('\n');
    }
    ports.mask(&text)
}

/// The columns of 2.6 that are compared.
fn known() -> impl Iterator<Item = &'static str> {
    let header = include_str!("../../../../proxy/tests/it/golden/show_stat_2.6.txt");
    header
        .trim_start_matches("# ")
        .split(',')
        .skip(2)
        .take_while(|name| *name != "-")
        .filter(|name| !UNTOLD.contains(name))
}

/// Makes control characters, and spaces at the ends of lines, visible.
pub fn visible(text: &str) -> String {
    let mut shown = String::new();
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let kept = line.trim_end_matches(' ');
        for character in kept.chars() {
            match character {
                '\r' => shown.push_str("\\r"),
                '\t' => shown.push_str("\\t"),
                control if control.is_control() => shown.push_str(&format!("\\x{:02x}", control as u32)),
                other => shown.push(other),
            }
        }
        shown.push_str(&"\\x20".repeat(line.len() - kept.len()));
        shown.push_str(end);
    }
    shown
}
