//! The rewriting of lines, by their keyword.

use super::quote::{Word, format, quote, split};
use super::regex::{self, Part};
use super::{Migrated, MigrationNote};

/// The kind of the section that a line is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Global,
    Proxy,
    Other,
}

/// What becomes of a line.
enum Fate {
    /// It stays.
    Keep,
    /// These lines, without indentation, replace it; a note may say what changes.
    Lines(Vec<String>, Option<&'static str>),
    /// It goes, for this reason.
    Gone(&'static str),
    /// It becomes a comment, for this reason.
    Lost(String),
}

/// A file while it is rewritten.
pub(super) struct Rewriter {
    migrated: Migrated,
    section: Section,
    /// Whether the section is in `mode tcp` so far.
    is_tcp: bool,
    /// Whether the section has a stick table so far.
    has_table: bool,
    /// Whether the section has set the variable of the request line.
    has_request_line: bool,
    /// Whether some line sets the number of threads.
    has_threads: bool,
}

/// Keywords that begin a section.
const SECTIONS: &[&str] = &[
    "acme",
    "cache",
    "crt-store",
    "fcgi-app",
    "http-errors",
    "log-forward",
    "log-profile",
    "mailers",
    "namespace_list",
    "origin",
    "peers",
    "program",
    "redis",
    "resolvers",
    "ring",
    "store",
    "traces",
    "userlist",
];

/// The variable of the request line, and the line that sets it.
const REQUEST_LINE: &str = "http-request set-var-fmt(txn.request_line) \"%[method] %[url] HTTP/%[req.ver]\"";

impl Rewriter {
    pub(super) fn new(text: &str) -> Rewriter {
        Rewriter {
            migrated: Migrated::default(),
            section: Section::Other,
            is_tcp: false,
            has_table: false,
            has_request_line: false,
            has_threads: text.lines().any(|line| line.trim_start().starts_with("nbthread")),
        }
    }

    pub(super) fn finish(self) -> Migrated {
        self.migrated
    }

    /// Rewrites one line, which has its end.
    pub(super) fn line(&mut self, number: usize, line: &str) {
        let Some((words, end)) = split(line.trim_end_matches(['\n', '\r'])) else {
            self.migrated.text.push_str(line);
            return;
        };
        let fate = if words.is_empty() { Fate::Keep } else { self.fate(line, &words) };
        let indent = &line[..line.len() - line.trim_start().len()];
        let tail = &line[end.max(indent.len())..];
        let out = &mut self.migrated.text;
        let note = match fate {
            Fate::Keep => {
                out.push_str(line);
                return;
            }
            Fate::Lines(lines, note) => {
                for (index, text) in lines.iter().enumerate() {
                    out.push_str(indent);
                    out.push_str(text);
                    out.push_str(if index == 0 { tail } else { line_end(line) });
                }
                note.map(|note| (false, note.to_owned()))
            }
            Fate::Gone(reason) => {
                // A comment stays; an end of the line without one goes with it.
                if tail.trim_start().starts_with('#') {
                    out.push_str(indent);
                    out.push_str(tail.trim_start());
                }
                Some((false, format!("'{}' is removed: {reason}", words[0].text)))
            }
            Fate::Lost(reason) => {
                out.push_str(&format!("{indent}# not migrated: {}", line.trim_start()));
                Some((true, reason))
            }
        };
        self.migrated.changed += 1;
        self.migrated.notes.extend(note.map(|(lost, text)| MigrationNote { line: number, lost, text }));
    }

    fn fate(&mut self, line: &str, words: &[Word]) -> Fate {
        let text = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
        match text(0) {
            "global" => self.enter(Section::Global),
            "defaults" | "backend" => self.enter(Section::Proxy),
            "frontend" | "listen" => {
                self.enter(Section::Proxy);
                return head(line, words);
            }
            keyword if SECTIONS.contains(&keyword) => self.enter(Section::Other),
            _ => {}
        }
        match self.section {
            Section::Global => self.global(line, words),
            Section::Proxy => self.proxy(line, words),
            Section::Other => Fate::Keep,
        }
    }

    fn enter(&mut self, section: Section) {
        self.section = section;
        (self.is_tcp, self.has_table, self.has_request_line) = (false, false, false);
    }

    fn global(&mut self, line: &str, words: &[Word]) -> Fate {
        let text = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
        match (text(0), text(1)) {
            ("nbproc", count) => match count.parse::<u32>() {
                Ok(count @ 2..) if !self.has_threads => Fate::Lines(
                    vec![format!("nbthread {count}")],
                    Some("one process with threads takes the place of several; without 'nbthread' it uses all cores"),
                ),
                _ => Fate::Gone("one process uses all cores"),
            },
            ("debug", _) => Fate::Gone("'haproxy -d' does it"),
            ("nosepoll", _) => Fate::Gone("epoll is the only poller"),
            ("tune.chksize", _) => Fate::Gone("'tune.bufsize' is used for checks, too"),
            ("tune.ssl.force-private-cache", _) => Fate::Gone("there is one process"),
            ("stats", "bind-process") => Fate::Gone("there is one process"),
            ("stats", "socket") => without_option(line, words, "process"),
            _ => Fate::Keep,
        }
    }

    fn proxy(&mut self, line: &str, words: &[Word]) -> Fate {
        let text = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
        let raw = |from: usize| {
            words.get(from).map_or("", |first| &line[first.range.start..words[words.len() - 1].range.end])
        };
        let one = |text: String| Fate::Lines(vec![text], None);
        match (text(0), text(1)) {
            ("clitimeout", _) => one(format!("timeout client {}", raw(1))),
            ("srvtimeout", _) => one(format!("timeout server {}", raw(1))),
            ("contimeout", _) => one(format!("timeout connect {}", raw(1))),
            ("timeout", "clitimeout") => one(format!("timeout client {}", raw(2))),
            ("timeout", "srvtimeout") => one(format!("timeout server {}", raw(2))),
            ("timeout", "contimeout") => one(format!("timeout connect {}", raw(2))),
            ("redispatch" | "redisp", _) => one("option redispatch".to_owned()),
            ("no", "redispatch" | "redisp") => one("no option redispatch".to_owned()),
            ("block", _) => one(format!("http-request deny {}", raw(1))),
            ("bind-process", _) => Fate::Gone("there is one process"),
            ("bind", _) => without_option(line, words, "process"),
            ("grace", _) => Fate::Gone("a proxy stops with its process: see 'grace' of 'global'"),
            ("mode", "tcp") => {
                self.is_tcp = true;
                Fate::Keep
            }
            ("mode", "health") => Fate::Lines(
                vec!["mode http".to_owned(), "http-request return status 200".to_owned()],
                Some("an answer now has HTTP's form"),
            ),
            ("monitor-net", _) if self.is_tcp => Fate::Lost(format!(
                "'monitor-net' in 'mode tcp': 'tcp-request connection reject if {{ src {} }}' is near",
                text(1)
            )),
            ("monitor-net", net) => {
                let condition = format!("if {{ src {net} }}");
                Fate::Lines(
                    vec![
                        format!("http-request set-log-level silent {condition}"),
                        format!("http-request return status 200 {condition}"),
                    ],
                    Some("it has to precede the section's other rules"),
                )
            }
            ("option", "forceclose") => one("option httpclose".to_owned()),
            ("no", "option") if text(2) == "forceclose" => one("no option httpclose".to_owned()),
            ("option", "httpclog") => one("option httplog clf".to_owned()),
            ("option", "http-tunnel" | "http-use-htx" | "tcpsplice") => Fate::Gone("it has no meaning any more"),
            ("no", "option") if matches!(text(2), "http-tunnel" | "http-use-htx" | "tcpsplice") => {
                Fate::Gone("it has no meaning any more")
            }
            ("option", word @ ("accept-invalid-http-request" | "accept-invalid-http-response")) => {
                one(format!("option {}", word.replace("accept-invalid-http", "accept-unsafe-violations-in-http")))
            }
            ("option", "http_proxy") => Fate::Lost(
                "'option http_proxy': 'http-request set-dst' and 'set-uri', and 'do-resolve' for names, do it"
                    .to_owned(),
            ),
            ("option", "httpchk") => check(words),
            ("stick-table", _) => {
                self.has_table = true;
                Fate::Keep
            }
            ("appsession", _) => self.appsession(words),
            ("reqadd", line) => add("http-request", line, raw(2)),
            ("rspadd", line) => add("http-response", line, raw(2)),
            ("reqdel" | "reqidel", expression) => delete("http-request", expression, raw(2)),
            ("rspdel" | "rspidel", expression) => delete("http-response", expression, raw(2)),
            ("reqpass" | "reqipass", _) => Fate::Lost(format!("'{}' has no counterpart", text(0))),
            ("reqdeny", expression) => self.decide("http-request deny", expression, "", raw(2)),
            ("reqideny", expression) => self.decide("http-request deny", expression, "-i ", raw(2)),
            ("reqallow", expression) => self.decide("http-request allow", expression, "", raw(2)),
            ("reqiallow", expression) => self.decide("http-request allow", expression, "-i ", raw(2)),
            ("reqtarpit", expression) => self.decide("http-request tarpit", expression, "", raw(2)),
            ("reqitarpit", expression) => self.decide("http-request tarpit", expression, "-i ", raw(2)),
            ("reqsetbe", expression) => self.decide(&format!("use_backend {}", text(2)), expression, "", raw(3)),
            ("reqisetbe", expression) => self.decide(&format!("use_backend {}", text(2)), expression, "-i ", raw(3)),
            ("rspdeny", expression) => self.decide("http-response deny", expression, "", raw(2)),
            ("rspideny", expression) => self.decide("http-response deny", expression, "-i ", raw(2)),
            ("reqrep" | "cliexp", expression) => replace("http-request", expression, text(2), "", raw(3)),
            ("reqirep", expression) => replace("http-request", expression, text(2), "(?i)", raw(3)),
            ("rsprep" | "srvexp", expression) => replace("http-response", expression, text(2), "", raw(3)),
            ("rspirep", expression) => replace("http-response", expression, text(2), "(?i)", raw(3)),
            _ => Fate::Keep,
        }
    }

    /// Rewrites a decision about heads that match an expression.
    fn decide(&mut self, action: &str, expression: &str, flags: &str, condition: &str) -> Fate {
        let response = action.starts_with("http-response");
        let (before, test) = match regex::part(expression) {
            Part::Field { name, value } => {
                let fetch = if response { "res.fhdr" } else { "req.fhdr" };
                let pattern = if value.is_empty() { String::from(".*") } else { format!("^{value}") };
                (None, format!("{{ {fetch}({name}) -m reg {flags}{} }}", quote(&pattern)))
            }
            Part::RequestLine { .. } if !response => {
                let first = !std::mem::replace(&mut self.has_request_line, true);
                let before = first.then(|| REQUEST_LINE.to_owned());
                (before, format!("{{ var(txn.request_line) -m reg {flags}{} }}", quote(expression)))
            }
            Part::Name(_) | Part::RequestLine { .. } | Part::Unknown => {
                return Fate::Lost(format!("it cannot be told what '{expression}' matches: '{action} if …' does it"));
            }
        };
        match with_condition(&test, condition) {
            Some(condition) => Fate::Lines(before.into_iter().chain([format!("{action} {condition}")]).collect(), None),
            None => Fate::Lost(format!("the conditions cannot be joined: '{action} if {test}' and '{condition}'")),
        }
    }

    fn appsession(&mut self, words: &[Word]) -> Fate {
        let text = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
        let after = |name: &str| (2..words.len()).find(|index| text(*index) == name).map(|index| text(index + 1));
        if self.has_table {
            return Fate::Lost(
                "'appsession': the section has a stick table already; 'stick store-response \
                               res.cook(NAME)' and 'stick match req.cook(NAME)' need one of strings"
                    .to_owned(),
            );
        }
        self.has_table = true;
        let (name, len, expire) = (text(1), after("len").unwrap_or("52"), after("timeout").unwrap_or("3h"));
        let learns = (2..words.len()).any(|index| text(index) == "request-learn");
        let request = if learns { "on" } else { "match" };
        Fate::Lines(
            vec![
                format!("stick-table type string len {len} size 1m expire {expire}"),
                format!("stick store-response res.cook({name})"),
                format!("stick {request} req.cook({name})"),
            ],
            Some("a stick table keeps the sessions; its size is a guess"),
        )
    }
}

/// Returns the end of a line, which the last one may lack.
fn line_end(line: &str) -> &str {
    if line.ends_with("\r\n") { "\r\n" } else { "\n" }
}

/// Rewrites the first line of a `listen` or `frontend` with an address.
fn head(line: &str, words: &[Word]) -> Fate {
    let second = words.get(2).map_or("", |word| word.text.as_str());
    if words.len() < 3 || second == "from" {
        return Fate::Keep;
    }
    let raw = |word: &Word| &line[word.range.clone()];
    let rest = &line[words[2].range.start..words[words.len() - 1].range.end];
    Fate::Lines(vec![format!("{} {}", raw(&words[0]), raw(&words[1])), format!("    bind {rest}")], None)
}

/// Rewrites a line without an option that has a value.
fn without_option(line: &str, words: &[Word], option: &str) -> Fate {
    let Some(at) = (2..words.len()).find(|index| words[*index].text == option) else { return Fate::Keep };
    let first = words[0].range.start;
    let before = &line[first..words[at - 1].range.end];
    let behind = match words.get(at + 2) {
        Some(next) => format!(" {}", &line[next.range.start..words[words.len() - 1].range.end]),
        None => String::new(),
    };
    Fate::Lines(vec![format!("{before}{behind}")], Some("'process' is removed: there is one process"))
}

/// Rewrites `reqadd` and `rspadd`.
fn add(set: &str, line: &str, condition: &str) -> Fate {
    match line.split_once(':') {
        Some((name, value)) if !name.is_empty() => Fate::Lines(
            vec![join(&format!("{set} add-header {} {}", quote(name.trim()), format(value.trim())), condition)],
            None,
        ),
        _ => Fate::Lost(format!("'{line}' is no field with a name and a value")),
    }
}

/// Rewrites `reqdel` and `rspdel`.
fn delete(set: &str, expression: &str, condition: &str) -> Fate {
    match regex::part(expression) {
        Part::Field { name, value: "" | ".*" | ".*$" } => {
            Fate::Lines(vec![join(&format!("{set} del-header {name}"), condition)], None)
        }
        Part::Name(stem) => Fate::Lines(vec![join(&format!("{set} del-header {stem} -m beg"), condition)], None),
        Part::Field { .. } | Part::RequestLine { .. } | Part::Unknown => {
            Fate::Lost(format!("'{expression}' is more than a name: '{set} del-header NAME' takes names only"))
        }
    }
}

/// Rewrites `reqrep` and `rsprep`.
fn replace(set: &str, expression: &str, replacement: &str, flags: &str, condition: &str) -> Fate {
    let lost = || {
        Fate::Lost(format!(
            "it cannot be told what '{expression}' changes: see '{set} replace-header', 'replace-pathq' and 'replace-uri'"
        ))
    };
    match regex::part(expression) {
        Part::Field { name, value } => {
            let Some(to) = regex::field_replacement(name, replacement) else { return lost() };
            let value = if value.is_empty() { ".*" } else { value };
            let (from, to) = (quote(&format!("{flags}^{value}")), format(&to.replace(r"\ ", " ")));
            Fate::Lines(vec![join(&format!("{set} replace-header {name} {from} {to}"), condition)], None)
        }
        Part::RequestLine { groups, rest } if set == "http-request" => {
            let Some((from, to)) = regex::target(groups, rest, replacement) else { return lost() };
            let action = if from.starts_with(['/', '(']) { "replace-pathq" } else { "replace-uri" };
            let (from, to) = (quote(&format!("{flags}^{from}")), format(&to));
            Fate::Lines(vec![join(&format!("{set} {action} {from} {to}"), condition)], None)
        }
        Part::Name(_) | Part::RequestLine { .. } | Part::Unknown => lost(),
    }
}

/// Rewrites `option httpchk` with fields behind the version.
fn check(words: &[Word]) -> Fate {
    let text = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
    let mut parts = text(4).split(r"\r\n");
    let version = parts.next().unwrap_or_default();
    if !text(4).contains(r"\r\n") {
        return Fate::Keep;
    }
    let mut send = format!("http-check send meth {} uri {} ver {version}", quote(text(2)), quote(text(3)));
    for field in parts.filter(|field| !field.is_empty()) {
        let Some((name, value)) = field.split_once(':') else {
            return Fate::Lost(format!("'{field}' is no field: 'http-check send … body' sends bodies"));
        };
        send.push_str(&format!(" hdr {} {}", quote(name.trim()), format(value.trim())));
    }
    Fate::Lines(vec!["option httpchk".to_owned(), send], None)
}

/// Returns an action with its condition, if there is one.
fn join(action: &str, condition: &str) -> String {
    if condition.is_empty() { action.to_owned() } else { format!("{action} {condition}") }
}

/// Returns the condition that holds where a test and an old condition do; `None` if it has no simple form.
fn with_condition(test: &str, condition: &str) -> Option<String> {
    if condition.is_empty() {
        return Some(format!("if {test}"));
    }
    let (keyword, terms) = condition.split_once(char::is_whitespace)?;
    let terms = terms.trim();
    let has_groups = terms.split_whitespace().any(|term| matches!(term, "or" | "||"));
    let is_single = !terms.contains(char::is_whitespace) || terms.starts_with('{') && terms.matches('}').count() == 1;
    match keyword {
        "if" if !has_groups => Some(format!("if {test} {terms}")),
        "unless" if is_single => Some(match terms.strip_prefix('!') {
            Some(plain) => format!("if {test} {plain}"),
            None => format!("if {test} !{terms}"),
        }),
        _ => None,
    }
}
