//! The same expressions, conditions, log-formats and redirects in Debian's haproxy and here, on the same requests.
//!
//! Each case is a rule that answers when the request's field `case` holds its number, so one haproxy serves them all.

use std::sync::Arc;

use sluicegate_config::model::{Action, Redirect, RedirectKind, Return, ReturnBody};
use sluicegate_proxy::rule::{Hook, Verdict, run};
use sluicegate_proxy::running::Engines;
use sluicegate_testkit::{Client, Haproxy, Listening};
use sluicegate_wire::http::Version;

use super::fixture::{
    self, answer, answer_of, compile, condition, config, context, expr, format, in_worker, rule, var,
};

/// Requests that every case sees; each ends before the `case` field.
const REQUESTS: &[&str] = &[
    "GET /a/b/index.html?x=1&y=2?z HTTP/1.1\r\nHost: www.Example.com:81\r\nX: a,,b\r\nX:  \"c,d\" , e ,\r\n\
     Cookie: a=1; b=2\r\nCookie: a=\"3;4\"; c=x y ; d=1; d = \"; d=2\r\nN: 42\r\nIp: 10.1.2.3\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nX:\r\nContent-Length: 0\r\nCookie: a = 5 ,b=\r\nN: -17abc\r\nIp: 2001:db8::1\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: h\r\nx: q\"uo]te\\d \u{e9};%\r\nN: +9999999999999999999\r\nIp: ::ffff:10.1.2.3\r\n",
    "GET http://www.example.com/p%20q/?k=v HTTP/1.1\r\nHost: www.example.com\r\nX: A.B/C?D:E\r\nIp: 192.168.0.1\r\nN: x\r\n",
    "GET /foo/bar/ HTTP/1.0\r\nX: one two  three,four\tfi\u{1}ve\u{7f}\r\nN:\r\nIp: nonsense\r\n",
];

/// One rule in both languages.
struct Case {
    haproxy: String,
    ours: Vec<sluicegate_config::model::Rule>,
}

/// Runs every case on every request in both, and compares whole answers.
#[track_caller]
fn compare(cases: Vec<Case>) {
    let listening = Listening::new();
    let mut text = format!(
        "defaults\n mode http\n timeout client 9s\n timeout connect 9s\n timeout server 9s\nfrontend f\n bind {}\n",
        listening.word()
    );
    for case in &cases {
        text += &case.haproxy;
    }
    let haproxy = Haproxy::start(&text, &[&listening]);
    let mut theirs = Vec::new();
    for request in REQUESTS {
        for index in 0..cases.len() {
            let mut client = Client::connect(&listening.address());
            client.send(format!("{request}case: {index}\r\n\r\n"));
            client.finish();
            let port = client.stream().local_addr().expect("connected").port();
            let answer = String::from_utf8_lossy(&client.read_to_end()).into_owned();
            theirs.push((port, normal(&answer)));
        }
    }
    drop(haproxy);
    let port = listening.port();
    let rules: Vec<_> = cases.into_iter().map(|case| case.ours).collect();
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    let differences = in_worker(config(vec![fixture::proxy()]), Engines::new(), move |worker| {
        Box::pin(async move {
            let engines = Engines::new();
            let mut differences = Vec::new();
            let mut theirs = theirs.into_iter();
            for request in REQUESTS {
                for (index, rules) in rules.iter().enumerate() {
                    let (client_port, expected) = theirs.next().expect("as many answers");
                    let proxy = sluicegate_config::model::Proxy { http_request: rules.clone(), ..fixture::proxy() };
                    let compiled = compile(&proxy, &engines);
                    let head = format!("{request}case: {index}\r\n\r\n");
                    let mut cx = context(&worker.running.proxies[0], &head);
                    cx.source.as_mut().expect("set").set_port(client_port);
                    cx.destination.as_mut().expect("set").set_port(port);
                    let got = answer_of(&compiled, &mut cx, &worker).await;
                    if normal(&got) != expected {
                        let line = names.iter().find(|line| line.ends_with(&format!(" {index} }}"))).cloned();
                        differences.push(format!(
                            "{}\n{request}\nhaproxy: {expected:?}\nours:    {:?}\n",
                            line.unwrap_or_default(),
                            normal(&got)
                        ));
                    }
                }
            }
            differences
        })
    });
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// An answer without what the connection adds to it.
fn normal(answer: &str) -> String {
    let answer = answer.replace("\r\n", "\n");
    // No rule answered: haproxy has no backend here.
    if answer == "continue" || answer.starts_with("HTTP/1.1 503") || answer.starts_with("HTTP/1.0 503") {
        return "continue".to_owned();
    }
    let (head, body) = answer.split_once("\n\n").unwrap_or((&answer, ""));
    let head: Vec<&str> = head.lines().filter(|line| !line.to_lowercase().starts_with("connection:")).collect();
    format!("{}\n\n{body}", head.join("\n")).replace("HTTP/1.0", "HTTP/1.1").trim_start().to_owned()
}

fn return_cases(formats: &[&str]) -> Vec<Case> {
    let case = |(index, text): (usize, &&str)| Case {
        haproxy: format!(
            " http-request return status 200 content-type a/b lf-string \"[{}]\" if {{ req.hdr(case) {index} }}\n",
            text.replace('\\', "\\\\").replace('"', "\\\"")
        ),
        ours: vec![rule(answer(&format!("[{text}]")), "")],
    };
    formats.iter().enumerate().map(case).collect()
}

#[test]
fn fetches_and_converters_give_what_haproxys_give() {
    let names = [
        "src",
        "src_port",
        "dst",
        "dst_port",
        "path",
        "query",
        "url",
        "method",
        "req.ver",
        "fe_name",
        "str(a b)",
        "int(-7)",
        "bool(true)",
        "bool(false)",
        "req.hdr(x)",
        "req.hdr(X,1)",
        "req.hdr(x,2)",
        "req.hdr(x,3)",
        "req.hdr(x,4)",
        "req.hdr(x,6)",
        "req.hdr(x,7)",
        "req.hdr(x,-1)",
        "req.hdr(x,-2)",
        "req.hdr(x,-3)",
        "req.hdr(x,-6)",
        "req.hdr(x,-7)",
        "req.fhdr(x)",
        "req.fhdr(x,1)",
        "req.fhdr(x,2)",
        "req.fhdr(x,-2)",
        "req.fhdr(x,3)",
        "req.hdr_cnt(x)",
        "req.hdr_cnt(none)",
        "req.hdr(none)",
        "req.cook(a)",
        "req.cook(b)",
        "req.cook(c)",
        "req.cook(d)",
        "req.cook()",
        "req.hdr()",
        "req.fhdr()",
        "req.hdr_cnt()",
        "req.hdr(,2)",
        "req.cook(none)",
        "req.hdr(host)",
        "hdr(host)",
        "cook(a)",
        "hdr_cnt(cookie)",
        "path,lower",
        "req.hdr(x),upper",
        "req.hdr(none),upper",
        "method,lower",
        "src,upper",
        "int(12),lower",
        "path,concat(<)",
        "path,concat(<,,>)",
        "path,concat(<,txn.none,>)",
        "int(5),concat(a)",
        "bool(true),concat(a)",
        "req.fhdr(x),field(1,' ')",
        "req.fhdr(x),field(2,' ')",
        "req.fhdr(x),field(3,' ')",
        "req.fhdr(x),field(4,' ')",
        "req.fhdr(x),field(9,' ')",
        "req.fhdr(x),field(-1,' ')",
        "req.fhdr(x),field(-2,' ')",
        "req.fhdr(x),field(-3,' ')",
        "req.fhdr(x),field(-9,' ')",
        "req.fhdr(x),field(2,' ',2)",
        "req.fhdr(x),field(1,' ',0)",
        "req.fhdr(x),field(2,' ',0)",
        "req.fhdr(x),field(-1,' ',2)",
        "req.fhdr(x),field(-2,' ',0)",
        "req.fhdr(x),field(-2,' ',9)",
        "req.fhdr(x),word(1,' ')",
        "req.fhdr(x),word(2,' ')",
        "req.fhdr(x),word(3,' ')",
        "req.fhdr(x),word(4,' ')",
        "req.fhdr(x),word(-1,' ')",
        "req.fhdr(x),word(-2,' ')",
        "req.fhdr(x),word(-3,' ')",
        "req.fhdr(x),word(-4,' ')",
        "req.fhdr(x),word(2,' ',2)",
        "req.fhdr(x),word(1,' ',0)",
        "req.fhdr(x),word(2,' ',0)",
        "req.fhdr(x),word(-1,' ',2)",
        "req.fhdr(x),word(-2,' ',0)",
        "path,word(1,/)",
        "path,word(2,/)",
        "path,word(3,/)",
        "path,word(-1,/)",
        "path,field(1,/)",
        "path,field(2,/)",
        "path,field(-1,/)",
        "path,word(1,/.)",
        "path,word(-1,/.)",
        "path,field(3,/.)",
        "query,field(1,&)",
        "query,word(1,=&,3)",
        "src,field(4,.)",
        "int(1234),word(1,2)",
        "str(),field(1,a)",
        "str(),word(1,a)",
        "str(aaa),field(2,a)",
        "str(aaa),word(1,a)",
        "str(aaa),field(-2,a)",
        "str(aaa),field(4,a)",
        "str(aaa),field(5,a)",
        "str(),lower",
        "str(),concat(a)",
        "str(abc),word(1,x)",
        "str(xabc),word(1,x)",
        "str(abcx),word(-1,x)",
        "str(abcx),field(-1,x)",
        "str(abcx),field(1,x,5)",
        "str(xabcx),word(1,x,5)",
        "str(a;b;;c),word(-1,;,2)",
        "str(xxabcxx),word(1,x,0)",
        "str(xxabcxx),word(-1,x,0)",
        "str(xxabcxx),word(-1,x,5)",
        "str(xxabcxx),word(1,x,2)",
        "str(xxabcxx),word(-1,x,2)",
        "str(xxaxbxx),word(1,x,2)",
        "str(xxaxbxx),word(1,x,3)",
        "str(xxaxbxx),word(-1,x,2)",
        "str(xxaxbxx),word(-2,x,2)",
        "str(xxaxbxx),word(2,x,2)",
        "str(xxaxbxx),word(2,x,1)",
        "str(xxaxbxx),field(1,x,9)",
        "str(xxaxbxx),field(-1,x,9)",
        "str(xxaxbxx),field(-2,x,9)",
        "str(xxaxbxx),field(2,x,9)",
        "str(xxaxbxx),field(3,x,0)",
        "str(xxx),word(1,x)",
        "str(xxx),word(1,x,0)",
        "str(xxx),word(-1,x)",
        "str(a;b;;c),field(-1,;,3)",
        "str(a;b;;c),word(2,;,2)",
        "str(a;b;;c),field(2,;,2)",
    ];
    let formats: Vec<String> = names.iter().map(|name| format!("%[{name}]")).collect();
    compare(return_cases(&formats.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn log_formats_render_as_haproxys() {
    compare(return_cases(&[
        "%ci %cp %fi %fp",
        "%{+X}ci:%{+X}cp",
        "%{+Q}ci %{+Q}cp",
        "%f %ft %b %s",
        "%HM %HP %HQ %HU %HV",
        "%r",
        "%{+Q}r",
        "%{+E}r",
        "%{+Q,+E}HU",
        "%rc %ts %tsc %CC %{+Q}CC",
        "%Tw %Tc %Tr %Td %sq",
        "%bi|%{+Q}bi",
        "%H %{+Q}H",
        "%[req.hdr(x)]",
        "%{+Q}[req.hdr(x)]",
        "%{+E}[req.hdr(x)]",
        "%{+X}[req.hdr(x)]",
        "%{+Q,+E}[req.fhdr(x)]",
        "%{+Q}[req.hdr(none)]",
        "%[req.hdr(none)]|",
        "%{+X}[int(255)]",
        "%{+Q}[src]",
        "100%% %[path]",
        "%[req.hdr(ip)]",
    ]));
}

#[test]
fn plain_log_formats_render_as_haproxys() {
    let case = |(index, text): (usize, &&str)| {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        let here = format!("if {{ req.hdr(case) {index} }}");
        Case {
            haproxy: format!(
                " http-request set-var-fmt(txn.p) \"{quoted}\" {here}\n \
                 http-request return status 200 content-type a/b lf-string \"[%[var(txn.p)]]\" {here}\n"
            ),
            ours: vec![rule(Action::SetVarFormat(var("txn.p"), format(text)), ""), rule(answer("[%[var(txn.p)]]"), "")],
        }
    };
    let formats = [
        "%[req.hdr(x)]",
        "%{+Q}[req.hdr(x)]",
        "%{+E}[req.hdr(x)]",
        "%{+Q,+E}[req.fhdr(x)]",
        "%{+X}[req.hdr(x)]",
        "%{+Q}[req.hdr(none)]",
        "%[req.hdr(none)]|",
        "%{+Q}[int(3)] %{+X}[int(255)] %{+X}[src]",
        "%{+Q}r",
        "%{+Q,+E}r",
        "a%[src]b%[path]c",
        "%{+Q}[str()]",
    ];
    compare(formats.iter().enumerate().map(case).collect());
}

#[test]
fn variables_keep_and_cast_types_as_haproxys() {
    // The variable's type decides how it prints and compares.
    let case = |(index, (value, test)): (usize, &(&str, &str))| {
        let here = format!("if {{ req.hdr(case) {index} }}");
        let line =
            |status: u16| format!(" http-request return status {status} content-type a/b lf-string \"%[var(txn.v)]\"");
        let reply = |status| {
            Action::Return(Return {
                status,
                body: ReturnBody::Format(format("%[var(txn.v)]")),
                headers: Vec::new(),
                content_type: Some("a/b".to_owned()),
            })
        };
        Case {
            haproxy: format!(
                " http-request set-var(txn.v) {value} {here}\n{} {here} {test}\n{} {here}\n",
                line(200),
                line(404)
            ),
            ours: vec![
                rule(Action::SetVar(var("txn.v"), expr(value)), ""),
                rule(reply(200), &format!("if {test}")),
                rule(reply(404), ""),
            ],
        }
    };
    let cases: Vec<(&str, String)> =
        ["req.hdr(n)", "req.hdr(ip)", "src", "int(10)", "bool(true)", "method", "req.hdr(none)"]
            .iter()
            .flat_map(|value| {
                [
                    "-m found",
                    "-m bool",
                    "-m int 42",
                    "-m int gt 0",
                    "-m int lt 0",
                    "-m int 1",
                    "-m int 10",
                    "-m int 9223372036854775807",
                    "-m int 2130706433",
                    "-m len 1",
                    "-m len 2",
                    "-m str 1",
                    "-m str true",
                    "-m str GET",
                    "-m str 127.0.0.1",
                    "-m ip 10.0.0.0/8",
                    "-m ip 127.0.0.1",
                    "-m ip 2001:db8::/32",
                    "-m ip 0.0.0.10",
                    "-m ip ::ffff:10.1.2.3",
                    "-m ip ::ffff:0:0/96",
                    "-m beg 12",
                    "-m sub 0",
                ]
                .iter()
                .map(move |test| (*value, format!("{{ var(txn.v) {test} }}")))
            })
            .collect();
    let cases: Vec<(&str, &str)> = cases.iter().map(|(value, test)| (*value, test.as_str())).collect();
    compare(cases.iter().enumerate().map(case).collect());
}

#[test]
fn conditions_hold_when_haproxys_hold() {
    let case = |(index, text): (usize, &&str)| {
        let here = format!("if {{ req.hdr(case) {index} }}");
        // haproxy's `or` is of whole groups, so the case's own test goes around: any other case is answered before.
        let text_in_haproxy = text.to_string();
        Case {
            haproxy: format!(
                " http-request return status 404 if {{ req.hdr(case) {index} }} {{ bool(false) }}\n \
                 http-request set-header hit yes {text_in_haproxy}\n \
                 http-request return status 200 content-type a/b lf-string \"<%[req.hdr(hit)]>\" {here}\n \
                 http-request del-header hit\n"
            ),
            ours: vec![
                rule(Action::SetHeader("hit".to_owned(), format("yes")), text),
                rule(answer("<%[req.hdr(hit)]>"), ""),
            ],
        }
    };
    let conditions = [
        "if { path -m beg /a }",
        "if { path -m beg /a /f }",
        "if { path -m end html }",
        "if { path -m end / }",
        "if { path -m sub dex }",
        "if { path -m dir b }",
        "if { path -m dir index }",
        "if { path -m dir /b/ }",
        "if { path -m dir a/b }",
        "if { path -m dir bar foo }",
        "if { path -m str / }",
        "if { path -m str -i /A/B/INDEX.html }",
        "if { path -m reg ^/[a-z]+/b }",
        "if { path -m reg -i ^/A }",
        "if { path -m len 1 }",
        "if { path -m len gt 5 }",
        "if { path -m len 5:9 }",
        "if { path -m found }",
        "unless { path -m found }",
        "if !{ path -m found }",
        "if { req.hdr(host) -m dom example }",
        "if { req.hdr(host) -m dom -i example }",
        "if { req.hdr(host) -m dom -i example.com }",
        "if { req.hdr(host) -m dom ample }",
        "if { req.hdr(host) -m dom -i .example.com. }",
        "if { req.hdr(host) -m dom www }",
        "if { req.hdr(host) -m str -i www.example.com:81 }",
        "if { req.hdr(x) -m str b }",
        "if { req.hdr(x) -m str a }",
        "if { req.hdr(x) -m str e }",
        "if { req.hdr(x) -m str c }",
        "if { req.hdr(x) -m len 0 }",
        "if { req.hdr(x) -m found }",
        "if { req.hdr(x,1) -m str b }",
        "if { req.fhdr(x) -m str b }",
        "if { req.fhdr(x) -m sub b }",
        "if { req.hdr(x) -m str b } { req.hdr(x) -m str a }",
        "if { req.hdr(x) -m str b } !{ req.hdr(x) -m str a }",
        "if !{ req.hdr(x) -m str b } !{ req.hdr(x) -m str q }",
        "if { path -m beg /zz } || { req.hdr(x) -m found }",
        "if { path -m beg /a } { method -m str POST } || { method -m str GET } { path -m beg /f }",
        "unless { path -m beg /a } || { method -m str POST }",
        "unless { path -m beg /a } { method -m str GET }",
        "if { req.hdr_cnt(x) -m int 6 }",
        "if { req.hdr_cnt(x) -m int 1:3 }",
        "if { req.hdr_cnt(x) -m int ge 2 le 0 }",
        "if { req.hdr(n) -m int 42 }",
        "if { req.hdr(n) -m int lt 0 }",
        "if { req.hdr(n) -m int ge 1000 }",
        "if { req.hdr(n) -m int 0 }",
        "if { req.hdr(n) -m bool }",
        "if { req.hdr(ip) -m ip 10.0.0.0/8 192.168.0.1 }",
        "if { req.hdr(ip) -m ip 2001:db8::/32 }",
        "if { src -m ip 127.0.0.0/8 }",
        "if { src -m ip 10.0.0.0/8 }",
        "if { src -m str 127.0.0.1 }",
        "if { src -m beg 127. }",
        "if { method -m str GET HEAD }",
        "if { bool(true) -m bool }",
        "if { bool(false) -m bool }",
        "if { int(0) -m bool }",
        "if { req.cook(a) -m str 1 }",
        "if { req.cook(a) -m str 5 }",
        "if { req.cook(a) -m found }",
        "if { req.cook(b) -m len 0 }",
        "if { req.cook(b) -m found }",
        "if { req.cook(b) -m len 0:9 }",
        "if { req.cook(b) -m str 2 }",
        "if { query -m found }",
        "if { query -m sub y=2 }",
        "if { path,lower,upper -m beg /A }",
        "if { req.hdr(x),upper -m str B }",
        "if { req.hdr(none),upper -m found }",
        "if { req.ver -m str 1.0 }",
        "if { url -m beg http }",
        "if { req.hdr(x) -m dir b }",
        "if { req.hdr(x) -m dom -i d }",
        "if { req.hdr(x) -m dir C }",
        "if { path -m sub }",
    ];
    let conditions = &conditions[..conditions.len() - 1];
    for text in conditions {
        condition(text);
    }
    compare(conditions.iter().enumerate().map(case).collect());
}

#[test]
fn redirects_are_haproxys_byte_for_byte() {
    let case = |(index, line): (usize, &&str)| {
        let words: Vec<&str> = line.split(' ').collect();
        let has = |word: &str| words.contains(&word);
        let after = |word: &str| words.iter().position(|w| *w == word).map(|at| words[at + 1]);
        let cookie = after("set-cookie").map(|cookie| format!("{cookie}; path=/;"));
        let clear = after("clear-cookie").map(|cookie| format!("{cookie}; path=/; Max-Age=0;"));
        let redirect = Redirect {
            kind: match words[0] {
                "location" => RedirectKind::Location,
                "prefix" => RedirectKind::Prefix,
                _ => RedirectKind::Scheme,
            },
            to: format(words[1]),
            code: after("code").map_or(302, |code| code.parse().expect("a code")),
            drop_query: has("drop-query"),
            append_slash: has("append-slash"),
            set_cookie: cookie.or(clear),
            ignore_empty: has("ignore-empty"),
        };
        Case {
            haproxy: format!(" http-request redirect {line} if {{ req.hdr(case) {index} }}\n"),
            ours: vec![rule(Action::Redirect(redirect), "")],
        }
    };
    let lines = [
        "location /x",
        "location http://h%[path]?%[query]",
        "location /x code 301",
        "location /x code 303",
        "location /x code 307",
        "location /x code 308",
        "location %[req.hdr(x)]",
        "location %[req.hdr(none)]",
        "location %[req.hdr(none)] ignore-empty",
        "location %[req.hdr(x)] ignore-empty code 301",
        "prefix http://p",
        "prefix http://p drop-query",
        "prefix http://p drop-query append-slash",
        "prefix http://p append-slash",
        "prefix /",
        "prefix / drop-query",
        "prefix %[req.hdr(none)]",
        "prefix /pre/%[req.ver]",
        "scheme https",
        "scheme https code 301",
        "scheme https drop-query",
        "scheme %[str(ftp)]",
        "location /x set-cookie A=b",
        "location /x clear-cookie A=",
        "location /x set-cookie A",
        "prefix /p set-cookie A=b code 303 drop-query",
    ];
    compare(lines.iter().enumerate().map(case).collect());
}

#[test]
fn replies_are_haproxys_byte_for_byte() {
    type Ours = (Option<u16>, ReturnBody, Vec<(&'static str, &'static str)>, Option<&'static str>);
    let bytes = |text: &str| ReturnBody::Bytes(Arc::from(text.as_bytes()));
    let cases: Vec<(&str, Ours)> = vec![
        ("deny", (Some(403), ReturnBody::ErrorPage, vec![], None)),
        ("deny deny_status 429", (Some(429), ReturnBody::ErrorPage, vec![], None)),
        ("deny deny_status 400", (Some(400), ReturnBody::ErrorPage, vec![], None)),
        ("deny deny_status 200", (Some(200), ReturnBody::ErrorPage, vec![], None)),
        ("deny deny_status 404", (Some(404), ReturnBody::ErrorPage, vec![], None)),
        ("deny deny_status 407", (Some(407), ReturnBody::ErrorPage, vec![], None)),
        ("deny deny_status 500", (Some(500), ReturnBody::ErrorPage, vec![], None)),
        (
            "deny status 501 content-type text/plain string no hdr X-a \"%[src]\"",
            (Some(501), bytes("no"), vec![("X-a", "%[src]")], Some("text/plain")),
        ),
        ("return", (Some(200), ReturnBody::Empty, vec![], None)),
        ("return status 404", (Some(404), ReturnBody::Empty, vec![], None)),
        ("return status 204 hdr a b", (Some(204), ReturnBody::Empty, vec![("a", "b")], None)),
        (
            "return status 201 content-type a/b string x hdr A \"%[req.hdr(n)]\" hdr B c",
            (Some(201), bytes("x"), vec![("A", "%[req.hdr(n)]"), ("B", "c")], Some("a/b")),
        ),
        (
            "return status 200 content-type a/b lf-string \"%[req.hdr(none)]\"",
            (Some(200), ReturnBody::Format(format("%[req.hdr(none)]")), vec![], Some("a/b")),
        ),
        (
            "return status 200 content-type a/b lf-string \"%[path]\" hdr p \"%[path]\"",
            (Some(200), ReturnBody::Format(format("%[path]")), vec![("p", "%[path]")], Some("a/b")),
        ),
        ("return status 599 content-type a/b string z", (Some(599), bytes("z"), vec![], Some("a/b"))),
    ];
    let case = |(index, (line, (status, body, headers, kind))): (usize, (&str, Ours))| {
        let reply = Return {
            status: status.expect("a status"),
            body,
            headers: headers.into_iter().map(|(name, value)| (name.to_owned(), format(value))).collect(),
            content_type: kind.map(str::to_owned),
        };
        let action = if line.starts_with("deny") { Action::Deny(reply) } else { Action::Return(reply) };
        Case { haproxy: format!(" http-request {line} if {{ req.hdr(case) {index} }}\n"), ours: vec![rule(action, "")] }
    };
    compare(cases.into_iter().enumerate().map(case).collect());
}

/// Field lines of the response that [`responses_are_seen_as_haproxy_sees_them`] looks at.
const RESPONSE: &[(&str, &str)] = &[
    ("X", "a,,b"),
    ("X", "\"c,d\" , e"),
    ("Set-Cookie", "a=1; path=/; b=2"),
    ("Set-Cookie", "b=\"x;y\"; path=/"),
    ("Set-Cookie", "a = 2"),
    ("Set-Cookie", "c="),
    ("N", "42"),
];

#[test]
fn responses_are_seen_as_haproxy_sees_them() {
    let names = [
        "status",
        "res.hdr(x)",
        "res.hdr(x,1)",
        "res.hdr(x,2)",
        "res.hdr(x,-2)",
        "res.hdr(x,9)",
        "res.fhdr(x)",
        "res.fhdr(x,1)",
        "res.hdr_cnt(x)",
        "res.hdr_cnt(none)",
        "res.hdr(none)",
        "res.cook(a)",
        "res.cook(b)",
        "res.cook(c)",
        "res.cook(none)",
        "res.cook()",
        "be_name",
        "fe_name",
        "var(txn.t)",
        "var(sess.t)",
        "var(req.t)",
        "var(res.t)",
        "var(proc.none)",
        "res.hdr(x),upper,concat(-,txn.t,-)",
        "res.hdr(n),field(1,2)",
        "method",
    ];
    let (front, back) = (Listening::new(), Listening::new());
    let fields: String = RESPONSE
        .iter()
        .map(|(name, value)| format!(" hdr {name} {}", value.replace('"', "\\\"").replace(' ', "\\ ")))
        .collect();
    let shown: String = names.iter().map(|name| format!("[%[{name}]]")).collect();
    let haproxy = Haproxy::start(
        &format!(
            "defaults\n mode http\n timeout client 9s\n timeout connect 9s\n timeout server 9s\n\
             frontend f\n bind {}\n default_backend f-back\n\
             http-request set-var(txn.t) str(txn)\n http-request set-var(sess.t) str(sess)\n\
             http-request set-var(req.t) str(req)\n http-response set-var(res.t) str(res)\n\
             http-response set-header x-shown \"{shown}\"\n\
             backend f-back\n server s {}\n\
             frontend origin\n bind {}\n http-request return status 404{fields}\n",
            front.word(),
            back.address(),
            back.word()
        ),
        &[&front, &back],
    );
    let mut client = Client::connect(&front.address());
    let response = client.get("/");
    let theirs = response.header("x-shown").expect("shown").to_owned();
    drop(haproxy);
    let ours = in_worker(
        config(vec![
            sluicegate_config::model::Proxy {
                http_request: [("txn.t", "str(txn)"), ("sess.t", "str(sess)"), ("req.t", "str(req)")]
                    .map(|(name, text)| rule(Action::SetVar(var(name), expr(text)), ""))
                    .into(),
                http_response: vec![
                    rule(Action::SetVar(var("res.t"), expr("str(res)")), ""),
                    rule(Action::SetHeader("X-Shown".to_owned(), format(&shown)), ""),
                ],
                ..fixture::proxy()
            },
            sluicegate_config::model::Proxy { name: Arc::from("f-back"), uid: 2, ..fixture::proxy() },
        ]),
        Engines::new(),
        |worker| {
            Box::pin(async move {
                let [front, back] = &worker.running.proxies[..] else { return String::new() };
                let mut cx = context(front, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
                run(&front.rules.http_request, Hook::HttpRequest, &mut cx, &worker).await;
                cx.backend = Some(back.clone());
                cx.response.set_response(Version::Http11, 404, b"Not Found");
                RESPONSE.iter().for_each(|(name, value)| {
                    cx.response.add(name.as_bytes(), value.as_bytes());
                });
                cx.variables.enter_response();
                run(&front.rules.http_response, Hook::HttpResponse, &mut cx, &worker).await;
                String::from_utf8_lossy(cx.response.first(b"x-shown").unwrap_or(b"")).into_owned()
            })
        },
    );
    assert_eq!(ours, theirs, "{shown}");
}

#[test]
fn a_text_that_does_not_fit_is_cut_and_a_head_that_does_not_fit_is_an_error() {
    let (got, status) = in_worker(
        config(vec![sluicegate_config::model::Proxy {
            http_request: vec![
                rule(Action::SetVarFormat(var("txn.v"), format("%[path]%[path]%[path]")), ""),
                rule(Action::SetHeader("x".to_owned(), format("%[var(txn.v)]")), ""),
            ],
            ..fixture::proxy()
        }]),
        Engines::new(),
        |worker| {
            Box::pin(async move {
                let proxy = &worker.running.proxies[0];
                let mut cx = context(proxy, &format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000)));
                let verdict = run(&proxy.rules.http_request, Hook::HttpRequest, &mut cx, &worker).await;
                let Verdict::Reply(reply) = verdict else { return (0, 0) };
                (cx.request.first(b"x").map_or(0, <[u8]>::len), reply.head.status())
            })
        },
    );
    assert_eq!((got, status), (16_384, 500));
}
