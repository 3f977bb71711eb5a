//! Typed rules from the short texts that the tests also give to haproxy, and a worker to run them in.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Instant, SystemTime};

use sluicegate_config::Config;
use sluicegate_config::model::{
    self, Acl, AclRef, AclTest, Action, Arg, Condition, ConverterCall, Expr, FormatFlags, FormatPart, LogAlias,
    LogFormat, Matcher, Mode, Position, Proxy, ProxyKind, Rule, Term, VarName,
};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::rule::{CompileError, Hook, ProxyRules, Verdict, run};
use sluicegate_proxy::running::{self, Engines, Parts, ProxyRun, Running};
use sluicegate_proxy::sample;
use sluicegate_proxy::stream::{Endings, LogRecord, StreamContext};
use sluicegate_proxy::worker::{self, Worker};
use sluicegate_wire::http::{Limits, Message, Version, parse_request};

pub fn at() -> Position {
    Position { file: Arc::from("test.cfg"), line: 1, column: 1 }
}

/// Splits at `separator` outside parentheses and quotes.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                continue;
            }
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if c == separator && depth == 0 && !quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

/// `name(arg,arg)`; the quotes of arguments stay for [`split`] to take.
fn call(text: &str) -> (String, Vec<Arg>) {
    let Some((name, rest)) = text.split_once('(') else { return (text.replace(['.', '-'], "_"), Vec::new()) };
    let args = rest.strip_suffix(')').expect("a closing parenthesis");
    let args = if args.is_empty() { Vec::new() } else { split(args, ',') };
    (name.replace(['.', '-'], "_"), args.iter().map(|arg| Arg::Str(Arc::from(arg.as_str()))).collect())
}

/// Splits at commas outside parentheses, keeping quotes.
fn calls(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 && !quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

pub fn expr(text: &str) -> Expr {
    let mut parts = calls(text).into_iter();
    let (name, args) = call(&parts.next().expect("a fetch"));
    let fetch = sample::fetch_by_name(&name).unwrap_or_else(|| panic!("no fetch {name}"));
    let converters = parts
        .map(|part| {
            let (name, args) = call(&part);
            let converter = sample::converter_by_name(&name).unwrap_or_else(|| panic!("no converter {name}"));
            ConverterCall { converter, args }
        })
        .collect();
    Expr { fetch, args, converters, at: at() }
}

fn alias(name: &str) -> LogAlias {
    match name {
        "ci" => LogAlias::Ci,
        "cp" => LogAlias::Cp,
        "fi" => LogAlias::Fi,
        "fp" => LogAlias::Fp,
        "f" => LogAlias::F,
        "ft" => LogAlias::Ft,
        "b" => LogAlias::B,
        "s" => LogAlias::S,
        "HM" => LogAlias::HttpMethod,
        "HP" => LogAlias::HttpPath,
        "HQ" => LogAlias::HttpQuery,
        "HU" => LogAlias::HttpUri,
        "HV" => LogAlias::HttpVersion,
        "r" => LogAlias::Request,
        "rc" => LogAlias::Rc,
        "ts" => LogAlias::Ts,
        "tsc" => LogAlias::Tsc,
        "CC" => LogAlias::CaptureReqCookie,
        "hr" => LogAlias::Hr,
        "bi" => LogAlias::Bi,
        "Tw" => LogAlias::TimerTw,
        "Tc" => LogAlias::TimerTc,
        "Tr" => LogAlias::TimerTr,
        "Td" => LogAlias::TimerTd,
        "sq" => LogAlias::Sq,
        "H" => LogAlias::HostName,
        other => panic!("no alias {other}"),
    }
}

/// A log-format: text, `%[expr]`, `%{flags}[expr]`, `%xx`, `%%`.
pub fn format(text: &str) -> LogFormat {
    let (mut parts, mut literal, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        literal.extend_from_slice(before.as_bytes());
        if let Some(after) = after.strip_prefix('%') {
            literal.push(b'%');
            rest = after;
            continue;
        }
        parts.push(FormatPart::Text(std::mem::take(&mut literal)));
        let (flags, after) = match after.strip_prefix('{') {
            Some(flagged) => flagged.split_once('}').expect("a closing brace"),
            None => ("", after),
        };
        let flags = FormatFlags { quote: flags.contains('Q'), hex: flags.contains('X'), escape: flags.contains('E') };
        if let Some(inner) = after.strip_prefix('[') {
            let (inner, after) = inner.split_once(']').expect("a closing bracket");
            parts.push(FormatPart::Expr(Box::new(expr(inner)), flags));
            rest = after;
        } else {
            let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            parts.push(FormatPart::Alias(alias(&after[..end]), flags));
            rest = &after[end..];
        }
    }
    literal.extend_from_slice(rest.as_bytes());
    parts.push(FormatPart::Text(literal));
    LogFormat { parts }
}

fn ranges(patterns: &[&str]) -> Vec<(i64, i64)> {
    let mut ranges = Vec::new();
    let mut words = patterns.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().expect("a number").parse::<i64>().expect("a number");
        ranges.push(match *word {
            "eq" => {
                let number = number();
                (number, number)
            }
            "gt" => (number() + 1, i64::MAX),
            "ge" => (number(), i64::MAX),
            "lt" => (i64::MIN, number() - 1),
            "le" => (i64::MIN, number()),
            word => match word.split_once(':') {
                Some((low, high)) => (low.parse().unwrap_or(i64::MIN), high.parse().unwrap_or(i64::MAX)),
                None => (word.parse().expect("a number"), word.parse().expect("a number")),
            },
        });
    }
    ranges
}

/// `EXPR -m METHOD [-i] PATTERN…`, without braces.
fn acl(text: &str) -> Acl {
    let words: Vec<&str> = text.split_whitespace().collect();
    let method_at = words.iter().position(|word| *word == "-m").expect("-m");
    let expr = expr(&words[..method_at].join(" "));
    let mut patterns = words[method_at + 2..].to_vec();
    let ignore_case = patterns.first() == Some(&"-i");
    if ignore_case {
        patterns.remove(0);
    }
    let bytes = || -> Vec<Vec<u8>> {
        let fold = |text: &&str| if ignore_case { text.to_lowercase() } else { (*text).to_owned() };
        patterns.iter().map(|text| fold(text).into_bytes()).collect()
    };
    let matcher = match words[method_at + 1] {
        "found" => Matcher::Found,
        "bool" => Matcher::Bool,
        "int" => Matcher::Int(ranges(&patterns)),
        "len" => Matcher::Len(ranges(&patterns)),
        "str" => Matcher::Str(bytes()),
        "beg" => Matcher::Beg(bytes()),
        "end" => Matcher::End(bytes()),
        "sub" => Matcher::Sub(bytes()),
        "dir" => Matcher::Dir(bytes()),
        "dom" => Matcher::Dom(bytes()),
        "reg" => Matcher::Reg(
            patterns
                .iter()
                .map(|p| regex::bytes::RegexBuilder::new(p).case_insensitive(ignore_case).build().expect("a pattern"))
                .collect(),
        ),
        "ip" => Matcher::Ip(
            patterns
                .iter()
                .map(|pattern| {
                    let (ip, length) = pattern.split_once('/').unwrap_or((pattern, ""));
                    let ip: std::net::IpAddr = ip.parse().expect("an address");
                    (ip, length.parse().unwrap_or(if ip.is_ipv4() { 32 } else { 128 }))
                })
                .collect(),
        ),
        other => panic!("no method {other}"),
    };
    Acl { name: Arc::from(""), tests: vec![AclTest { expr, matcher, ignore_case }], at: at() }
}

/// `if { … } !{ … } || { … }`.
pub fn condition(text: &str) -> Condition {
    let (unless, mut rest) = match text.split_once(' ').expect("if or unless") {
        ("if", rest) => (false, rest),
        ("unless", rest) => (true, rest),
        other => panic!("no condition {other:?}"),
    };
    let mut any = vec![Vec::new()];
    while !rest.trim().is_empty() {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("||") {
            any.push(Vec::new());
            rest = after;
            continue;
        }
        let negated = rest.starts_with('!');
        let (inner, after) = rest.trim_start_matches(['!', '{']).split_once(" }").expect("a closing brace");
        any.last_mut().expect("a group").push(Term { negated, acl: AclRef::Inline(Arc::new(acl(inner))) });
        rest = after;
    }
    Condition { unless, any }
}

pub fn rule(action: Action, condition_text: &str) -> Rule {
    let condition = (!condition_text.is_empty()).then(|| condition(condition_text));
    Rule { action, condition, at: at() }
}

pub fn var(text: &str) -> VarName {
    let (scope, name) = text.split_once('.').expect("a scope");
    let scope = match scope {
        "proc" => model::VarScope::Proc,
        "sess" => model::VarScope::Sess,
        "txn" => model::VarScope::Txn,
        "req" => model::VarScope::Req,
        _ => model::VarScope::Res,
    };
    VarName { scope, name: Arc::from(name) }
}

/// `http-request return status 200 lf-string FORMAT`.
pub fn answer(text: &str) -> Action {
    Action::Return(model::Return {
        status: 200,
        body: model::ReturnBody::Format(format(text)),
        headers: Vec::new(),
        content_type: Some("a/b".to_owned()),
    })
}

/// An HTTP `listen` named `f` with nothing in it.
pub fn proxy() -> Proxy {
    Proxy {
        name: Arc::from("f"),
        kind: ProxyKind::Listen,
        mode: Mode::Http,
        uid: 1,
        at: at(),
        disabled: false,
        timeouts: model::Timeouts::default(),
        options: model::ProxyOptions::default(),
        log: Vec::new(),
        log_line: model::LogLine::default(),
        binds: Vec::new(),
        maxconn: None,
        acls: Vec::new(),
        tcp_request_connection: Vec::new(),
        tcp_request_content: Vec::new(),
        inspect_delay: None,
        tcp_response_content: Vec::new(),
        response_inspect_delay: None,
        http_request: Vec::new(),
        http_response: Vec::new(),
        use_backend: Vec::new(),
        default_backend: None,
        servers: Vec::new(),
        balance: model::Balance::default(),
        fullconn: None,
        retries: 3,
        redispatch: None,
        http_reuse: model::HttpReuse::default(),
    }
}

/// A configuration of these proxies.
pub fn config(proxies: Vec<Proxy>) -> Config {
    Config { global: model::Global::default(), proxies, stores: Vec::new(), engines: Vec::new(), origins: Vec::new() }
}

/// A stream whose request is `head`; an empty one is TCP.
pub fn context(frontend: &Arc<ProxyRun>, head: &str) -> StreamContext {
    let mut request = Message::new();
    if !head.is_empty() {
        parse_request(head.as_bytes(), &Limits::default(), &mut request).expect("a good head").expect("a whole head");
    }
    let (now, now_at) = (Instant::now(), SystemTime::now());
    StreamContext {
        id: 0,
        frontend: frontend.clone(),
        backend: None,
        source: Some(SocketAddr::from(([127, 0, 0, 1], 54321))),
        destination: Some(SocketAddr::from(([127, 0, 0, 1], 80))),
        request,
        response: Message::new(),
        in_response: false,
        variables: sample::Variables::default(),
        request_data: Vec::new(),
        log: LogRecord {
            accepted_at: now_at,
            accepted: now,
            request_started_at: now_at,
            request_started: now,
            request_done: Some(now),
            queue_done: None,
            connect_done: None,
            response_started: None,
            request_line: head.lines().next().unwrap_or("").as_bytes().to_vec(),
            status: -1,
            bytes_read: 0,
            bytes_uploaded: 0,
            server: None,
            ending: Endings::default(),
            retries: 0,
            redispatched: false,
            server_queue: 0,
            backend_queue: 0,
        },
        lua: sluicegate_proxy::lua::StreamLua::default(),
    }
}

type Local<T> = Pin<Box<dyn Future<Output = T>>>;

/// Runs `body` in a worker of these proxies and gives what it gives.
pub fn in_worker<T: Send + 'static>(
    config: Config,
    engines: Engines,
    body: impl FnOnce(Rc<Worker>) -> Local<T> + Send + 'static,
) -> T {
    let process = Process::new(1, None);
    let parts =
        Parts { engines, lua: None, logger: sluicegate_proxy::log::Logger::default(), process: process.clone() };
    let running: Arc<Running> =
        running::build(Arc::new(config), parts).unwrap_or_else(|errors| panic!("{}", listed(&errors)));
    let (send, receive) = mpsc::channel();
    let task: worker::WorkerTask = Box::new(move |worker| {
        let worker = worker.clone();
        Box::pin(async move {
            let _ = send.send(body(worker).await);
        })
    });
    let workers = worker::start(&running, Vec::new(), vec![vec![task]]).expect("a worker starts");
    let result = receive.recv_timeout(sluicegate_testkit::PATIENCE).expect("the body ends");
    process.stop_now();
    workers.join().expect("the worker leaves");
    result
}

fn listed(errors: &[CompileError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Compiles the rules of a proxy that stands alone.
pub fn compile(proxy: &Proxy, engines: &Engines) -> ProxyRules {
    ProxyRules::compile(proxy, &config(vec![proxy.clone()]), engines, None)
        .unwrap_or_else(|errors| panic!("{}", listed(&errors)))
}

/// What `http-request` rules answer to a request: HAProxy's bytes without the connection fields, or what else.
pub async fn answer_of(rules: &ProxyRules, cx: &mut StreamContext, worker: &Rc<Worker>) -> String {
    match run(&rules.http_request, Hook::HttpRequest, cx, worker).await {
        Verdict::Continue => "continue".to_owned(),
        Verdict::Close => "close".to_owned(),
        Verdict::Reply(reply) => {
            let mut text = format_args!(
                "{} {} {}\n",
                if reply.head.version() == Version::Http11 { "HTTP/1.1" } else { "HTTP/1.0" },
                reply.head.status(),
                String::from_utf8_lossy(reply.head.target())
            )
            .to_string();
            for (_, name, value) in reply.head.fields() {
                text += &format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            }
            text + "\n" + &String::from_utf8_lossy(&reply.body)
        }
    }
}
