//! The steps of health checks: `option …chk`, `http-check` and `tcp-check` (HAProxy configuration manual 4.2).
//!
//! Lines are collected per section and become one sequence at its end. HAProxy's rules apply: a section with its own
//! lines inherits none from its `defaults`; the request of `option httpchk` is the first one, and a first
//! `http-check send` overrides it part by part; the response to the last request must be 2xx or 3xx unless a line
//! expects something else; a check begins with a connection even if no line asks for one.

mod fixed;
mod rule;

use std::sync::Arc;

use crate::catalogue::Contexts;
use crate::model::{
    CheckBytes, CheckConnect, CheckExpect, CheckProtocol, CheckRequest, CheckSequence, CheckStep, CheckStepKind,
    Expected, ExternalCheck, LogFormat, Position,
};
use crate::section::table::{self, MANY, Row, Table};
use crate::suggest;
use crate::word::Line;

use super::{ProxyParser, ProxyReader, keywords};

/// Returns a line of these checks.
const fn step(
    name: &'static str,
    min: usize,
    max: usize,
    usage: &'static str,
    docs: &'static str,
    parser: fn(&mut ProxyReader<'_>, &Line),
) -> Row<ProxyParser> {
    keywords::row(name, Contexts::BACK, min, max, usage, docs, parser)
}

const HTTP_STEP: fn(&mut ProxyReader<'_>, &Line) = |r, line| r.check_step(line, CheckProtocol::Http);
const TCP_STEP: fn(&mut ProxyReader<'_>, &Line) = |r, line| r.check_step(line, CheckProtocol::Tcp);

const CONNECT: &str = "[default] [port PORT|EXPRESSION] [addr ADDRESS] [send-proxy] [ssl] [sni NAME] [alpn PROTOCOL[,…]] \
 [proto h1|h2|none] [linger] [comment TEXT]";
const CONNECT_DOCS: &str = "Opens a new connection and closes the previous one.";
const COMMENT_DOCS: &str = "The name of the next lines' step in failure messages.";
const VARIABLE: &str = "(SCOPE.NAME) EXPRESSION";
const VARIABLE_DOCS: &str = "Sets a variable to a sample.";
const VARIABLE_FORMAT: &str = "(SCOPE.NAME) FORMAT";
const VARIABLE_FORMAT_DOCS: &str = "Sets a variable to a string.";

/// `http-check` and `tcp-check`.
pub(crate) static KEYWORDS: Table<ProxyParser> = Table::new(&[
    step("http-check comment", 1, 1, "TEXT", COMMENT_DOCS, HTTP_STEP),
    step("http-check connect", 0, MANY, CONNECT, CONNECT_DOCS, HTTP_STEP),
    step(
        "http-check disable-on-404",
        0,
        0,
        "",
        "A 404 response marks the server as healthy, but not for new traffic.",
        |r, _| r.settings.proxy.health.disable_on_404 = true,
    ),
    step(
        "http-check expect",
        1,
        MANY,
        "[min-recv N] [comment TEXT] [ok-status S] [error-status S] [tout-status S] [on-success FORMAT] [on-error \
         FORMAT] [status-code EXPRESSION] [!] status CODES | rstatus REGEX | string TEXT | rstring REGEX | string-lf \
         FORMAT | hdr|fhdr name|name-lf [-m METHOD] NAME [value|value-lf [-m METHOD] VALUE]",
        "The condition that a response must meet, or must not meet.",
        HTTP_STEP,
    ),
    step(
        "http-check send",
        1,
        MANY,
        "[meth METHOD] [uri URI | uri-lf FORMAT] [ver VERSION] [hdr NAME FORMAT]… [body TEXT | body-lf FORMAT] \
         [comment TEXT]",
        "The request to send.",
        HTTP_STEP,
    ),
    step(
        "http-check send-state",
        0,
        0,
        "",
        "Requests describe the server's current state to it in X-Haproxy-Server-State.",
        |r, _| r.settings.proxy.health.send_state = true,
    ),
    step("http-check set-var", 1, MANY, VARIABLE, VARIABLE_DOCS, HTTP_STEP),
    step("http-check set-var-fmt", 1, 1, VARIABLE_FORMAT, VARIABLE_FORMAT_DOCS, HTTP_STEP),
    step("http-check unset-var", 0, MANY, "(SCOPE.NAME)", "Removes a variable.", HTTP_STEP),
    step("tcp-check comment", 1, 1, "TEXT", COMMENT_DOCS, TCP_STEP),
    step("tcp-check connect", 0, MANY, CONNECT, CONNECT_DOCS, TCP_STEP),
    step(
        "tcp-check expect",
        1,
        MANY,
        "[min-recv N] [comment TEXT] [ok-status S] [error-status S] [tout-status S] [on-success FORMAT] [on-error \
         FORMAT] [status-code EXPRESSION] [!] string TEXT | rstring REGEX | string-lf FORMAT | binary HEX | rbinary \
         REGEX | binary-lf FORMAT",
        "The condition that the bytes received since the last 'send' must meet, or must not meet.",
        TCP_STEP,
    ),
    step("tcp-check send", 1, 3, "TEXT [comment TEXT]", "Sends a text.", TCP_STEP),
    step("tcp-check send-binary", 1, 3, "HEX [comment TEXT]", "Sends bytes.", TCP_STEP),
    step(
        "tcp-check send-binary-lf",
        1,
        3,
        "FORMAT [comment TEXT]",
        "Sends the bytes given by a log-format in hexadecimal.",
        TCP_STEP,
    ),
    step("tcp-check send-lf", 1, 3, "FORMAT [comment TEXT]", "Sends the text of a log-format.", TCP_STEP),
    step("tcp-check set-var", 1, MANY, VARIABLE, VARIABLE_DOCS, TCP_STEP),
    step("tcp-check set-var-fmt", 1, 1, VARIABLE_FORMAT, VARIABLE_FORMAT_DOCS, TCP_STEP),
    step("tcp-check unset-var", 0, MANY, "(SCOPE.NAME)", "Removes a variable.", TCP_STEP),
]);

/// `option httpchk`.
pub(super) const HTTPCHK: Row<ProxyParser> = keywords::row(
    "option httpchk",
    Contexts::BACK,
    0,
    4,
    "[[METHOD] URI [VERSION [HOST]]]",
    "Checks send an HTTP request, by default OPTIONS / HTTP/1.0, and expect 2xx or 3xx; 'http-check' lines refine \
     this.",
    |r, line| r.httpchk(line),
);

/// `external-check command`.
pub(super) const COMMAND: Row<ProxyParser> = keywords::row(
    "external-check command",
    Contexts::BACK,
    1,
    1,
    "PROGRAM",
    "The program of 'option external-check'. Its arguments are the address and port of the section's first 'bind', then those      of the server, NOT_USED where there is none; HAPROXY_PROXY_* and HAPROXY_SERVER_* in its environment have more.",
    |r, line| r.settings.proxy.health.external_command = Some(line.text(2).to_owned()),
);

/// `external-check path`.
pub(super) const PATH: Row<ProxyParser> = keywords::row(
    "external-check path",
    Contexts::BACK,
    1,
    1,
    "PATH",
    "The PATH of that program, in which it is searched for; empty by default.",
    |r, line| r.settings.proxy.health.external_path = Some(line.text(2).to_owned()),
);

/// `option external-check`.
pub(super) const EXTERNAL: Row<ProxyParser> = keywords::row(
    "option external-check",
    Contexts::BACK,
    0,
    0,
    "",
    "A program checks the servers: one that exits with 0 within 'inter' has found its server healthy.",
    |r, line| {
        if r.check_option(line) {
            r.settings.checks.chosen = Some(Chosen::External);
        }
    },
);

/// `option ldap-check`.
pub(super) const LDAP: Row<ProxyParser> = keywords::row(
    "option ldap-check",
    Contexts::BACK,
    0,
    0,
    "",
    "Checks send an anonymous bind request to an LDAP server.",
    |r, line| r.fixed_check(line),
);

/// `option mysql-check`.
pub(super) const MYSQL: Row<ProxyParser> = keywords::row(
    "option mysql-check",
    Contexts::BACK,
    0,
    3,
    "[user NAME [post-41|pre-41]]",
    "Checks wait for a MySQL server's greeting, and log in as this user if given.",
    |r, line| r.fixed_check(line),
);

/// `option pgsql-check`.
pub(super) const PGSQL: Row<ProxyParser> = keywords::row(
    "option pgsql-check",
    Contexts::BACK,
    2,
    2,
    "user NAME",
    "Checks request this user's authentication method from a PostgreSQL server.",
    |r, line| r.fixed_check(line),
);

/// `option redis-check`.
pub(super) const REDIS: Row<ProxyParser> =
    keywords::row("option redis-check", Contexts::BACK, 0, 0, "", "Checks send PING to a Redis server.", |r, line| {
        r.fixed_check(line)
    });

/// `option smtpchk`.
pub(super) const SMTP: Row<ProxyParser> = keywords::row(
    "option smtpchk",
    Contexts::BACK,
    0,
    2,
    "[HELO|EHLO DOMAIN]",
    "Checks greet an SMTP server and disconnect; HELO localhost by default.",
    |r, line| r.fixed_check(line),
);

/// `option spop-check`.
pub(super) const SPOP: Row<ProxyParser> = keywords::row(
    "option spop-check",
    Contexts::BACK,
    0,
    0,
    "",
    "Checks exchange hellos with an agent (SPOP).",
    |r, line| r.fixed_check(line),
);

/// `option ssl-hello-chk`.
pub(super) const SSL_HELLO: Row<ProxyParser> = keywords::row(
    "option ssl-hello-chk",
    Contexts::BACK,
    0,
    0,
    "",
    "Checks send a ClientHello of SSLv3.",
    |r, line| r.fixed_check(line),
);

/// `option tcp-check`.
pub(super) const TCP: Row<ProxyParser> = keywords::row(
    "option tcp-check",
    Contexts::BACK,
    0,
    0,
    "",
    "Checks execute the 'tcp-check' lines; without any, they only connect.",
    |r, line| r.tcp_check_option(line),
);

/// The check settings of a section as they were read.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckSettings {
    chosen: Option<Chosen>,
    http: Rules,
    tcp: Rules,
}

/// The last `option …chk`.
#[derive(Clone, Debug)]
enum Chosen {
    Http,
    Tcp,
    Fixed(Arc<CheckSequence>),
    External,
}

/// The lines of `http-check` or `tcp-check`.
#[derive(Clone, Debug, Default)]
struct Rules {
    list: Vec<Rule>,
    /// Whether they are those of the section's `defaults`.
    inherited: bool,
    /// The position of the section's own first line.
    at: Option<Position>,
}

/// A line, or the request of `option httpchk`.
#[derive(Clone, Debug)]
struct Rule {
    index: u32,
    comment: Option<Arc<str>>,
    kind: RuleKind,
}

#[derive(Clone, Debug)]
enum RuleKind {
    Comment,
    Request { request: Request, by_option: bool },
    Step(CheckStepKind),
}

impl RuleKind {
    fn is_connect(&self) -> bool {
        matches!(self, RuleKind::Step(CheckStepKind::Connect(_)))
    }

    fn is_expect(&self) -> bool {
        matches!(self, RuleKind::Step(CheckStepKind::Expect(_)))
    }

    fn is_send(&self) -> bool {
        matches!(self, RuleKind::Request { .. } | RuleKind::Step(CheckStepKind::Send(_)))
    }

    /// Returns whether it takes part in the exchange: it is no comment and sets no variable.
    fn acts(&self) -> bool {
        self.is_connect() || self.is_send() || self.is_expect()
    }
}

/// A request whose parts may come from two lines.
#[derive(Clone, Debug, Default)]
struct Request {
    method: Option<Arc<str>>,
    uri: Option<CheckBytes>,
    version: Option<Arc<str>>,
    headers: Vec<(Arc<str>, LogFormat)>,
    body: Option<CheckBytes>,
}

impl Request {
    /// Overwrites settings by those of `newer`.
    fn overwrite(&mut self, newer: Request) {
        self.method = newer.method.or(self.method.take());
        self.uri = newer.uri.or(self.uri.take());
        self.version = newer.version.or(self.version.take());
        if !newer.headers.is_empty() {
            self.headers = newer.headers;
        }
        self.body = newer.body.or(self.body.take());
    }

    fn finish(self) -> CheckRequest {
        CheckRequest {
            method: self.method.unwrap_or_else(|| "OPTIONS".into()),
            uri: self.uri.unwrap_or_else(|| CheckBytes::Plain(b"/".to_vec())),
            version: self.version.unwrap_or_else(|| "HTTP/1.0".into()),
            headers: self.headers,
            body: self.body,
        }
    }
}

impl CheckSettings {
    /// The lines so far are a `defaults`'.
    pub(super) fn inherit(&mut self) {
        for rules in [&mut self.http, &mut self.tcp] {
            rules.inherited = true;
            rules.at = None;
        }
    }
}

impl Rules {
    /// Makes room for a line of the section's own.
    fn own(&mut self) {
        if std::mem::take(&mut self.inherited) {
            self.list.clear();
        }
    }

    fn next_index(&self) -> u32 {
        self.list.last().map_or(0, |rule| rule.index + 1)
    }

    /// Returns the place of the first that acts, from a place on.
    fn acting(&self, from: usize) -> Option<usize> {
        (from..self.list.len()).find(|place| self.list[*place].kind.acts())
    }

    /// Adds the request of `option httpchk`, in place of an earlier one, or over what lines say.
    fn add_option(&mut self, request: Request) {
        let first = match self.acting(0) {
            Some(first) if self.list[first].kind.is_connect() => self.acting(first + 1),
            first => first,
        };
        let implicit = |request| Rule { index: 0, comment: None, kind: RuleKind::Request { request, by_option: true } };
        match first.map(|first| (first, &mut self.list[first].kind)) {
            Some((first, RuleKind::Request { by_option: true, .. })) => {
                self.list.remove(first);
                self.list.insert(0, implicit(request));
            }
            Some((_, RuleKind::Request { request: explicit, .. })) => explicit.overwrite(request),
            _ => self.list.insert(0, implicit(request)),
        }
    }

    /// Adds a line of `http-check`; returns the reason if it is not allowed there.
    fn add_http(&mut self, mut rule: Rule) -> Result<(), String> {
        let last = self.list.iter().rev().map(|rule| &rule.kind).find(|kind| kind.acts());
        let step = rule.index + 1;
        match last {
            None | Some(RuleKind::Request { by_option: true, .. }) => {}
            Some(last) if rule.kind.is_send() && !last.is_connect() => {
                return Err(format!("unable to add http-check send rule at step {step} (missing connect rule)"));
            }
            Some(last) if rule.kind.is_expect() && !last.is_send() && !last.is_expect() => {
                return Err(format!("unable to add http-check expect rule at step {step} (missing send rule)"));
            }
            Some(last) if rule.kind.is_connect() && !last.is_expect() => {
                return Err(format!("unable to add http-check connect rule at step {step} (missing expect rule)"));
            }
            Some(_) => {}
        }
        if let RuleKind::Request { request: explicit, .. } = &mut rule.kind
            && let Some(first) = self.acting(0)
            && let RuleKind::Request { request, by_option: true } = &mut self.list[first].kind
        {
            let mut merged = std::mem::take(request);
            merged.overwrite(std::mem::take(explicit));
            let index = self.list.remove(first).index;
            rule.index = index;
            rule.kind = RuleKind::Request { request: merged, by_option: false };
        }
        self.list.push(rule);
        Ok(())
    }

    /// Returns the sequence that the lines make.
    fn finish(mut self, protocol: CheckProtocol) -> CheckSequence {
        if protocol == CheckProtocol::Http {
            self.finish_http();
        }
        if !self.acting(0).is_some_and(|first| self.list[first].kind.is_connect()) {
            let connect = CheckConnect { implicit: true, default: true, ..CheckConnect::default() };
            self.list
                .insert(0, Rule { index: 0, comment: None, kind: RuleKind::Step(CheckStepKind::Connect(connect)) });
        }
        CheckSequence { protocol, steps: steps(self.list) }
    }

    fn finish_http(&mut self) {
        if let Some(first) = self.acting(0)
            && matches!(self.list[first].kind, RuleKind::Request { by_option: true, .. })
            && let Some(next) = self.acting(first + 1)
            && self.list[next].kind.is_connect()
        {
            // The option's request goes out on the connection that the lines ask for.
            let mut request = self.list.remove(first);
            request.index = self.list[next - 1].index + 1;
            self.list.insert(next, request);
        }
        if let Some(last) = self.list.iter().rev().find(|rule| rule.kind.acts())
            && last.kind.is_send()
        {
            let index = last.index + 1;
            let expect = CheckExpect::new(Expected::Status(vec![(200, 399)]));
            let kind = RuleKind::Step(CheckStepKind::Expect(Box::new(expect)));
            self.list.push(Rule { index, comment: None, kind });
        }
    }
}

/// Lines without the comments, which go to the lines of one kind behind them.
fn steps(list: Vec<Rule>) -> Vec<CheckStep> {
    let mut steps = Vec::new();
    let mut comment: Option<Arc<str>> = None;
    let mut kind_before = None;
    for rule in list {
        let kind = match rule.kind {
            RuleKind::Comment => {
                comment = rule.comment;
                kind_before = None;
                continue;
            }
            RuleKind::Request { request, .. } => CheckStepKind::Request(Box::new(request.finish())),
            RuleKind::Step(kind) => kind,
        };
        let family = match &kind {
            CheckStepKind::Connect(_) => 0,
            CheckStepKind::Send(_) | CheckStepKind::Request(_) => 1,
            CheckStepKind::Expect(_) => 2,
            CheckStepKind::SetVar(..) | CheckStepKind::SetVarFormat(..) | CheckStepKind::UnsetVar(_) => 3,
        };
        if kind_before.replace(family).is_some_and(|before| before != family) {
            comment = None;
        }
        let implicit = matches!(&kind, CheckStepKind::Connect(connect) if connect.implicit);
        let own = rule.comment.or_else(|| comment.clone().filter(|_| family != 3));
        if matches!(family, 0 | 3) {
            comment = None;
        }
        steps.push(CheckStep { number: if implicit { 0 } else { rule.index + 1 }, comment: own, kind });
    }
    steps
}

impl ProxyReader<'_> {
    /// Reads a line of `http-check` or `tcp-check`.
    pub(super) fn check_line(&mut self, line: &Line) {
        let (first, second) = (line.text(0), line.text(1));
        let name = second.split('(').next().unwrap_or_default();
        let row = match KEYWORDS.find(first, name) {
            Some((row, _)) if second.contains('(') == row.usage.starts_with('(') => row,
            Some((row, _)) => {
                let error = self.diagnostics.error(line.at(1), format!("'{}' expects {}", row.name, row.usage));
                error.hint(format!("write '{}{}'", row.name, row.usage));
                return;
            }
            None => {
                table::unknown(&KEYWORDS, &[], self.context, self.section, line, self.diagnostics);
                return;
            }
        };
        if !row.contexts.intersects(self.context) {
            self.misplaced(row, line);
        } else if table::arity(&row.bare(), 2, line, self.diagnostics) {
            (row.parser.0)(self, line);
        }
    }

    fn check_step(&mut self, line: &Line, protocol: CheckProtocol) {
        let Some((comment, kind)) = self.check_rule(line, protocol) else { return };
        let http = protocol == CheckProtocol::Http;
        let checks = &mut self.settings.checks;
        let rules = if http { &mut checks.http } else { &mut checks.tcp };
        rules.own();
        rules.at.get_or_insert_with(|| line.at(0));
        let rule = Rule { index: rules.next_index(), comment, kind };
        if !http {
            rules.list.push(rule);
        } else if let Err(message) = rules.add_http(rule) {
            self.diagnostics.error(line.at(1), message);
        }
    }

    /// No check's option can be taken back, another one replaces it.
    fn check_option(&mut self, line: &Line) -> bool {
        if line.negated {
            let message = format!("negation is not supported for 'option {}'", line.text(1));
            self.diagnostics.error(line.at(0), message).hint("'option tcp-check' alone is a check that only connects");
        }
        !line.negated
    }

    /// Reads `option httpchk [[METHOD] URI [VERSION [HOST]]]`.
    pub(super) fn httpchk(&mut self, line: &Line) {
        if !self.check_option(line) {
            return;
        }
        let mut request = Request::default();
        match line.len() {
            2 => {}
            3 => request.uri = Some(CheckBytes::Plain(line.words[2].bytes().to_vec())),
            _ => {
                request.method = Some(line.text(2).into());
                request.uri = Some(CheckBytes::Plain(line.words[3].bytes().to_vec()));
            }
        }
        if line.len() > 4 && !self.hidden_in_version(line, &mut request) {
            return;
        }
        if line.len() > 5 {
            let Some(host) = self.check_format(line, 5) else { return };
            request.headers.push(("host".into(), host));
        }
        self.settings.checks.chosen = Some(Chosen::Http);
        // A section that names the option takes none of its defaults' lines.
        self.settings.checks.http.own();
        self.settings.checks.http.add_option(request);
    }

    /// Reads a version, behind which HAProxy before 3.0 let fields and a body stand; `false`: a field is malformed.
    fn hidden_in_version(&mut self, line: &Line, request: &mut Request) -> bool {
        let word = line.words[4].bytes();
        let end = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|window| window == what);
        let (head, body) = match end(word, b"\r\n\r\n") {
            Some(at) => (&word[..at], Some(&word[at + 4..])),
            None => (word, None),
        };
        let (version, mut fields) = match end(head, b"\r\n") {
            Some(at) => (&head[..at], &head[at + 2..]),
            None => (head, &[][..]),
        };
        request.version = Some(String::from_utf8_lossy(version).into());
        if version.len() < word.len() {
            let message = "'option httpchk' : hiding headers or body at the end of the version string is unsupported. Use \
                 'http-check send' directive instead";
            self.diagnostics.error(line.at(4), message);
        }
        request.body = body.filter(|body| !body.is_empty()).map(|body| CheckBytes::Plain(body.to_vec()));
        while !fields.is_empty() {
            let (field, rest) = match end(fields, b"\r\n") {
                Some(at) => (&fields[..at], &fields[at + 2..]),
                None => (fields, &[][..]),
            };
            fields = rest;
            let Some(colon) = field.iter().position(|byte| *byte == b':').filter(|at| *at > 0) else {
                let message = format!("'{}' is no header field", String::from_utf8_lossy(field));
                self.diagnostics.error(line.at(4), message).hint("use 'http-check send'");
                return false;
            };
            let name = String::from_utf8_lossy(&field[..colon]);
            let Some(value) = self.check_text_format(line, 4, field[colon + 1..].trim_ascii()) else { return false };
            if !["connection", "content-length", "transfer-encoding"].iter().any(|own| name.eq_ignore_ascii_case(own)) {
                request.headers.push((name.to_ascii_lowercase().into(), value));
            }
        }
        true
    }

    /// Reads `option tcp-check`.
    pub(super) fn tcp_check_option(&mut self, line: &Line) {
        if self.check_option(line) {
            self.settings.checks.chosen = Some(Chosen::Tcp);
        }
    }

    /// Reads an option whose sequence is fixed.
    pub(super) fn fixed_check(&mut self, line: &Line) {
        if !self.check_option(line) {
            return;
        }
        let words: Vec<&str> = (2..line.len()).map(|index| line.text(index)).collect();
        match fixed::sequence(line.text(1), &words) {
            Ok((rules, notice)) => {
                if let Some(notice) = notice {
                    self.diagnostics.warning(line.at(2), notice);
                }
                let sequence = Rules { list: rules, ..Rules::default() }.finish(CheckProtocol::Fixed);
                self.settings.checks.chosen = Some(Chosen::Fixed(Arc::new(sequence)));
            }
            Err((index, message, near)) => {
                self.diagnostics.error(line.at(2 + index), message).did_you_mean(near);
            }
        }
    }

    /// Builds the section's sequence from its lines.
    pub(super) fn finish_checks(&mut self) {
        let CheckSettings { chosen, http, tcp } = std::mem::take(&mut self.settings.checks);
        for (rules, what, option, used) in [
            (&http, "http-check", "option httpchk", matches!(chosen, Some(Chosen::Http))),
            (&tcp, "tcp-check", "option tcp-check", matches!(chosen, Some(Chosen::Tcp))),
        ] {
            if let Some(at) = &rules.at
                && !used
            {
                let name = &self.settings.proxy.name;
                let message =
                    format!("{} '{name}' uses {what} rules without '{option}', so the rules are ignored", self.section);
                self.diagnostics.warning(at.clone(), message).hint(format!("add '{option}'"));
            }
        }
        let health = &mut self.settings.proxy.health;
        let (command, path) = (health.external_command.clone().unwrap_or_default(), health.external_path.clone());
        health.external = matches!(chosen, Some(Chosen::External)).then_some(ExternalCheck {
            command,
            path,
            keeps_environment: false,
        });
        self.settings.proxy.health.sequence = match chosen {
            None | Some(Chosen::External) => None,
            Some(Chosen::Fixed(sequence)) => Some(sequence),
            Some(Chosen::Tcp) => Some(Arc::new(tcp.finish(CheckProtocol::Tcp))),
            Some(Chosen::Http) => {
                let at = http.at.clone();
                let sequence = http.finish(CheckProtocol::Http);
                let asks = sequence.steps.iter().any(|step| matches!(step.kind, CheckStepKind::Request(_)));
                if let Some(at) = at
                    && !asks
                {
                    let message = "these http-check rules send no request, so every check ends by its timeout";
                    self.diagnostics.warning(at, message).hint(
                        "a section with http-check rules of its own does not take the request of its defaults' \
                         'option httpchk': say it again here",
                    );
                }
                Some(Arc::new(sequence))
            }
        };
    }
}

/// Returns the nearest of some words, for an error about another one.
fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    suggest::nearest(word, words.iter().copied())
}
