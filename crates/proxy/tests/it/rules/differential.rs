//! Comparison of rules with Debian's haproxy: the same configuration text, the same requests.
//!
//! Each case is one or more rules that act when the request's field `case` holds its number, so one haproxy serves
//! all of them, and its answer and ours are compared byte by byte (less what the connection adds).

use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::hook::Hook;
use sluicegate_proxy::rule::run;
use sluicegate_testkit::{Client, Haproxy, Listening};
use sluicegate_wire::http::Version;

use super::fixture::{DEFAULTS, answer_of, config, context, in_worker};

/// Requests that every case sees; each ends before the `case` field.
const REQUESTS: &[&str] = &[
    "GET /a/b/index.html?x=1&y=2?z HTTP/1.1\r\nHost: www.Example.com:81\r\nX: a,,b\r\nX:  \"c,d\" , e ,\r\n\
     Cookie: a=1; b=2\r\nCookie: a=\"3;4\"; c=x y ; d=1; d = \"; d=2\r\n\
     Cookie: e=1; e=\r\nCookie: f=1;f=\r\nCookie: \"g=1; $h=2; h=3;$h=4, g=\r\nN: 42\r\nIp: 10.1.2.3\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nX:\r\nContent-Length: 0\r\nCookie: a = 5 ,b=\r\nN: -17abc\r\nIp: 2001:db8::1\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: h\r\nx: q\"uo]te\\d \u{e9};%\r\nN: +9999999999999999999\r\nIp: ::ffff:10.1.2.3\r\n",
    "GET http://www.example.com/p%20q/?k=v HTTP/1.1\r\nHost: www.example.com\r\nX: A.B/C?D:E\r\nIp: 192.168.0.1\r\nN: x\r\n",
    "GET /foo/bar/ HTTP/1.0\r\nX: one two  three,four\tfi\u{1}ve\u{7f}\r\nN:\r\nIp: nonsense\r\n",
];

/// Runs every case on every request of [`REQUESTS`] in both programs. `{}` in a case is replaced by the condition that
/// selects the case.
#[track_caller]
pub(super) fn compare(cases: impl IntoIterator<Item = String>) {
    compare_on(REQUESTS, cases);
}

/// Runs every case on every request in both programs.
#[track_caller]
pub(super) fn compare_on(requests: &[impl AsRef<str>], cases: impl IntoIterator<Item = String>) {
    compare_with(requests, "", cases);
}

/// Like [`compare_on`], with additional lines in the frontend.
#[track_caller]
pub(super) fn compare_with(requests: &[impl AsRef<str>], lines: &str, cases: impl IntoIterator<Item = String>) {
    let listening = Listening::new();
    let mut text = format!("frontend f\n bind {}\n{lines}", listening.word());
    let mut count = 0;
    for case in cases {
        text += &case.replace("{}", &format!("{{ req.hdr(case) {count} }}"));
        count += 1;
    }
    let haproxy = Haproxy::start(&format!("{DEFAULTS}{text}"), &[&listening]);
    let mut asked = Vec::new();
    for request in requests {
        let request = request.as_ref();
        for index in 0..count {
            let head = format!("{request}case: {index}\r\n\r\n");
            let mut client = Client::connect(&listening.address());
            client.send(&head);
            client.finish();
            let port = client.stream().local_addr().expect("connected").port();
            let answer = String::from_utf8_lossy(&client.read_to_end()).into_owned();
            asked.push((index, head, port, normal(&answer)));
        }
    }
    drop(haproxy);
    let port = listening.port();
    let differences = in_worker(config(&text), Engines::new(), move |worker| {
        Box::pin(async move {
            let proxy = &worker.running.proxies[0];
            let mut differences = Vec::new();
            for (index, head, client_port, expected) in asked {
                let mut cx = context(proxy, &head);
                cx.source.as_mut().expect("set").set_port(client_port);
                cx.destination.as_mut().expect("set").set_port(port);
                let got = normal(&in_words_of_2_6(&answer_of(&proxy.rules, &mut cx, &worker).await));
                if got != expected {
                    let own = format!("{{ req.hdr(case) {index} }}");
                    let rules: Vec<&str> = text.lines().filter(|line| line.contains(&own)).collect();
                    let rules = rules.join("\n");
                    differences.push(format!("{rules}\n{head}haproxy: {expected:?}\nours:    {got:?}\n"));
                }
            }
            differences
        })
    });
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Returns the answer as haproxy 2.6 writes it: in the text of a reply it escapes the control characters of expressions
/// as `%XX`; HAProxy 3.2 and this program do not.
fn in_words_of_2_6(answer: &str) -> String {
    let Some((head, body)) = answer.split_once("\n\n") else { return answer.to_owned() };
    if !head.contains("\ncontent-type: a/b") {
        return answer.to_owned();
    }
    let mut written = String::new();
    let mut added = 0;
    for character in body.chars() {
        if character.is_ascii_control() && character != '\t' {
            written += &format!("%{:02X}", u32::from(character));
            added += 2;
        } else {
            written.push(character);
        }
    }
    let longer = |line: &str| match line.strip_prefix("content-length: ") {
        Some(length) => format!("content-length: {}", length.parse::<usize>().expect("a length") + added),
        None => line.to_owned(),
    };
    format!("{}\n\n{written}", head.lines().map(longer).collect::<Vec<_>>().join("\n"))
}

/// Returns an answer without the parts that depend on the connection.
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

/// Returns a text as one word of the configuration, between double quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$"))
}

pub(super) fn show(format: &str) -> String {
    format!(" http-request return status 200 content-type a/b lf-string {} if {{}}\n", quoted(format))
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
        "always_true",
        "always_false",
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
        "req.cook(e)",
        "req.cook(f)",
        "req.cook(g)",
        "req.cook(h)",
        "req.cook($h)",
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
    compare(names.iter().map(|name| show(&format!("[%[{name}]]"))));
}

#[test]
fn log_formats_render_as_haproxys() {
    let formats = [
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
        "%{+E}[req.hdr(x)]",
        "%{+X}[req.hdr(x)]",
        "%[req.hdr(none)]|",
        "%{+X}[int(255)]",
        "100%% %[path]",
        "%[req.hdr(ip)]",
    ];
    compare(formats.iter().map(|format| show(&format!("[{format}]"))));
}

/// Haproxy 2.6 does not quote expressions in the text of a reply, so the expected answers are those of HAProxy 3.2.
#[test]
fn expressions_of_a_reply_are_quoted_as_by_later_haproxys() {
    let formats = [
        ("%{+Q}[req.hdr(x)]", "\"a\"]\u{1}\u{7f}\u{e9}\""),
        ("%{+Q,+E}[req.fhdr(x)]", "\"a\\\"\\]\u{1}\u{7f}\u{e9}\""),
        ("%{+Q}[req.hdr(none)]", "\"\""),
        ("%{+Q}[src]", "\"127.0.0.1\""),
    ];
    for (format, expected) in formats {
        let text = format!("frontend f\n{}", show(&format!("[{format}]")).replace("{}", "TRUE"));
        let answer = in_worker(config(&text), Engines::new(), |worker| {
            Box::pin(async move {
                let proxy = &worker.running.proxies[0];
                let mut cx = context(proxy, "GET / HTTP/1.1\r\nHost: h\r\nX: a\"]\u{1}\u{7f}\u{e9}\r\n\r\n");
                answer_of(&proxy.rules, &mut cx, &worker).await
            })
        });
        assert!(answer.ends_with(&format!("\n\n[{expected}]")), "{format}: {answer:?}");
    }
}

#[test]
fn plain_log_formats_render_as_haproxys() {
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
    compare(formats.iter().map(|format| {
        format!(" http-request set-var-fmt(txn.p) {} if {{}}\n{}", quoted(format), show("[%[var(txn.p)]]"))
    }));
}

#[test]
fn variables_keep_and_cast_types_as_haproxys() {
    // The variable's type decides how it prints and compares.
    let values = ["req.hdr(n)", "req.hdr(ip)", "src", "int(10)", "bool(true)", "method", "req.hdr(none)"];
    let tests = [
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
    ];
    compare(values.iter().flat_map(|value| {
        tests.iter().map(move |test| {
            let shown = "content-type a/b lf-string \"%[var(txn.v)]\"";
            format!(
                " http-request set-var(txn.v) {value} if {{}}\n \
                 http-request return status 200 {shown} if {{}} {{ var(txn.v) {test} }}\n \
                 http-request return status 404 {shown} if {{}}\n"
            )
        })
    }));
}

#[test]
fn conditions_hold_when_haproxys_hold() {
    let conditions = [
        "if { always_true }",
        "unless { always_true }",
        "if { always_false }",
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
        "if { req.fhdr(x), upper -m sub B }",
        "if { req.fhdr(none), upper -m found }",
        "if { method,lower,, get }",
        "if { method upper lower GET }",
        "if { req.fhdr(host) lower }",
        "if { str(upper) upper }",
        "if { str(LOWER) lower }",
        "if { str(a), upper -m sub A }",
        "if { path_beg,lower / }",
        "if { path_beg,lower /a }",
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
        "if { date(3600) -m int gt 1700000000 }",
        "if { date(-99999999999) -m int lt 0 }",
        "if { date(0,ms) -m int gt 1700000000000 }",
        "if { date(0,us) -m int gt 1700000000000000 }",
        "if { rand(1) -m int 0 }",
        "if { rand(10) -m int 0:9 }",
        "if { rand -m int ge 0 }",
        "if { rand(5) -m int ge 5 }",
        "if { query -m sub y=2 }",
        "if { path,lower,upper -m beg /A }",
        "if { req.hdr(x),upper -m str B }",
        "if { req.hdr(none),upper -m found }",
        "if { req.ver -m str 1.0 }",
        "if { url -m beg http }",
        "if { req.hdr(x) -m dir b }",
        "if { req.hdr(x) -m dom -i d }",
        "if { req.hdr(x) -m dir C }",
        "if TRUE",
        "if FALSE",
        "if HTTP_1.0",
        "if HTTP_1.1",
        "if HTTP_2.0",
        "if HTTP_CONTENT",
        "if HTTP_URL_ABS",
        "if HTTP_URL_SLASH",
        "if HTTP_URL_STAR",
        "if LOCALHOST",
        "if METH_CONNECT",
        "if METH_DELETE",
        "if METH_GET",
        "if METH_HEAD",
        "if METH_OPTIONS",
        "if METH_POST",
        "if METH_PUT",
        "if METH_TRACE",
    ];
    compare(conditions.iter().map(|condition| {
        let show = show("<%[req.hdr(hit)]>");
        format!(" http-request set-header hit yes {condition}\n{show} http-request del-header hit\n")
    }));
}

#[test]
fn redirects_are_haproxys_byte_for_byte() {
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
    compare(lines.iter().map(|line| format!(" http-request redirect {line} if {{}}\n")));
}

#[test]
fn replies_are_haproxys_byte_for_byte() {
    let lines = [
        "deny",
        "deny deny_status 429",
        "deny deny_status 400",
        "deny deny_status 200",
        "deny deny_status 404",
        "deny deny_status 407",
        "deny deny_status 500",
        "return",
        "return status 404",
        "return status 204 hdr a b",
        "deny status 501 content-type text/plain string no hdr X-a \"%[src]\"",
        "return status 201 content-type a/b string x hdr A \"%[req.hdr(n)]\" hdr B c",
        "return status 200 content-type a/b lf-string \"%[req.hdr(none)]\"",
        "return status 200 content-type a/b lf-string \"%[path]\" hdr p \"%[path]\"",
        "return status 599 content-type a/b string z",
    ];
    compare(lines.iter().map(|line| format!(" http-request {line} if {{}}\n")));
}

#[test]
fn edits_of_a_request_are_seen_by_later_rules() {
    let edits = [
        "add-header x more",
        "set-header x only",
        "del-header x",
        "del-header X",
        "set-header X \"%[req.hdr(x)],n\"",
        "add-header X a,b",
        "set-header Cookie a=9",
        "set-header new \"%[path]\"",
        "unset-var(txn.none)",
    ];
    compare(edits.iter().map(|edit| {
        let show = show("[%[req.hdr(x)]] [%[req.fhdr(x)]] %[req.hdr_cnt(x)] %[req.cook(a)] %[req.hdr(new)]");
        format!(" http-request {edit} if {{}}\n{show}")
    }));
}

#[test]
fn what_becomes_of_host_becomes_of_an_absolute_target() {
    let edits = [
        "set-header Host new.example",
        "set-header host new.example:81",
        "add-header Host more.example",
        "del-header Host",
        "set-header X-Host new.example",
    ];
    compare(edits.iter().map(|edit| {
        let show = show("%[url] %[path] [%[req.hdr(host)]] %[req.hdr_cnt(host)]");
        format!(" http-request {edit} if {{}}\n{show}")
    }));
}

/// Fields of the response that [`responses_are_seen_as_haproxy_sees_them`] looks at.
const RESPONSE: &[(&str, &str)] = &[
    ("X", "a,,b"),
    ("X", "\"c,d\" , e"),
    ("Set-Cookie", "a=1; path=/; b=2"),
    ("Set-Cookie", "b=\"x;y\"; path=/"),
    ("Set-Cookie", "a = 2"),
    ("Set-Cookie", "c="),
    ("Set-Cookie", "d=1,2; d=3"),
    ("Set-Cookie", "e=; path=/"),
    ("Set-Cookie", "$f=1"),
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
        "res.cook(d)",
        "res.cook(e)",
        "res.cook($f)",
        "res.cook(none)",
        "res.cook()",
        "scook(a)",
        "shdr(x,1)",
        "shdr_cnt(x)",
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
    let fields: String = RESPONSE.iter().map(|(name, value)| format!(" hdr {name} {}", quoted(value))).collect();
    let shown: String = names.iter().map(|name| format!("[%[{name}]]")).collect();
    let text = format!(
        "frontend f\n bind {}\n default_backend f-back\n \
         http-request set-var(txn.t) str(txn)\n http-request set-var(sess.t) str(sess)\n \
         http-request set-var(req.t) str(req)\n http-response set-var(res.t) str(res)\n \
         http-response set-header x-shown \"{shown}\"\n\
         backend f-back\n server s {}\n\
         frontend origin\n bind {}\n http-request return status 404{fields}\n",
        front.word(),
        back.address(),
        back.word()
    );
    let haproxy = Haproxy::start(&format!("{DEFAULTS}{text}"), &[&front, &back]);
    let mut client = Client::connect(&front.address());
    let theirs = client.get("/").header("x-shown").expect("shown").to_owned();
    drop(haproxy);
    let ours = in_worker(config(&text), Engines::new(), |worker| {
        Box::pin(async move {
            let [front, back, _] = &worker.running.proxies[..] else { return String::new() };
            let mut cx = context(front, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            run(&front.rules.http_request, Hook::HttpRequest, &mut cx, worker.scripts()).await;
            cx.backend = Some(back.site.clone());
            cx.response.set_response(Version::Http11, 404, b"Not Found");
            RESPONSE.iter().for_each(|(name, value)| {
                cx.response.add(name.as_bytes(), value.as_bytes());
            });
            cx.variables.enter_response();
            run(&front.rules.http_response, Hook::HttpResponse, &mut cx, worker.scripts()).await;
            String::from_utf8_lossy(cx.response.first(b"x-shown").unwrap_or(b"")).into_owned()
        })
    });
    assert_eq!(ours, theirs, "{shown}");
}

#[test]
fn a_text_that_does_not_fit_is_cut_and_a_head_that_does_not_fit_is_an_error() {
    let text = "frontend f\n http-request set-var-fmt(txn.v) %[path]%[path]%[path]\n \
                http-request return status 200 content-type a/b lf-string %[var(txn.v),length] if { path_end b }\n \
                http-request set-header x %[var(txn.v)]\n";
    let answers = in_worker(config(text), Engines::new(), |worker| {
        Box::pin(async move {
            let proxy = &worker.running.proxies[0];
            let mut answers = Vec::new();
            for end in ["a", "b"] {
                let mut cx = context(proxy, &format!("GET /{}{end} HTTP/1.1\r\n\r\n", "a".repeat(9000)));
                answers.push(answer_of(&proxy.rules, &mut cx, &worker).await);
            }
            answers
        })
    });
    assert!(answers[0].starts_with("HTTP/1.1 500 "), "{}", answers[0]);
    assert!(answers[1].ends_with("\n16384"), "{}", answers[1]);
}
