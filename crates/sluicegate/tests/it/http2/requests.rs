//! Requests and answers: what a server of HTTP/1 sees, and what a client gets.

use super::*;
use sluicegate_testkit::wait_for;

/// What a server sees of a request, sorted for what it does not depend on.
#[track_caller]
fn check(answer: &Answer, first: &str, has: &[&str], lacks: &[&str]) {
    let text = answer.text();
    assert!(text.starts_with(first), "{first:?} is not the first line of {text}");
    for line in has {
        assert!(text.contains(&format!("{line}\n")), "{line:?} is not in {text}");
    }
    for line in lacks {
        assert!(!text.contains(line), "{line:?} is in {text}");
    }
}

#[test]
fn requests_become_those_of_http_1() {
    let origin = Origin::echo();
    let (_server, gate) = before(&origin, "", "");
    let mut client = Client::connect(&gate.address());
    let answer =
        client.ask("GET /a?b=c\nhost: h.example:8080\nx-one: 1\ncookie: a=1\ncookie: b=2\nte: trailers\nx-two: 2");
    assert_eq!((answer.status, answer.field("x-answer"), answer.complete), (200, Some("1"), true), "{answer:?}");
    let lines = ["host: h.example:8080", "x-one: 1", "x-two: 2", "cookie: a=1; b=2", "te: trailers"];
    check(&answer, "GET /a?b=c HTTP/1.1\n", &lines, &["content-length", "transfer-encoding", "connection"]);

    let answer = client.ask("GET http://other.example/p\nhost: ignored");
    check(&answer, "GET /p HTTP/1.1\n", &["host: other.example"], &["ignored"]);

    let answer = client.ask("OPTIONS *\nhost: h");
    check(&answer, "OPTIONS * HTTP/1.1\n", &["host: h"], &[]);

    let answer = client.post("POST /\nhost: h\ncontent-length: 3", b"abc");
    check(&answer, "POST / HTTP/1.1\n", &["content-length: 3"], &["transfer-encoding"]);
    assert!(answer.text().ends_with("\nabc"), "{}", answer.text());

    let answer = client.post("POST /\nhost: h", b"abc");
    check(&answer, "POST / HTTP/1.1\n", &["transfer-encoding: chunked"], &["content-length"]);
    assert!(answer.text().ends_with("\nabc"), "{}", answer.text());

    let answer = client.post("POST /\nhost: h", b"");
    check(&answer, "POST / HTTP/1.1\n", &["transfer-encoding: chunked"], &["content-length"]);

    let answer = client.ask("POST /\nhost: h\ncontent-length: 0");
    check(&answer, "POST / HTTP/1.1\n", &["content-length: 0"], &["transfer-encoding"]);

    let answer = client.ask("HEAD /\nhost: h");
    assert_eq!((answer.status, answer.body.len(), answer.complete), (200, 0, true));
    assert!(answer.field("content-length").is_some_and(|length| length != "0"), "{answer:?}");
}

/// A rule that replaces the whole target decides its form, as for a proxy behind this one.
#[test]
fn a_replaced_target_is_sent_as_it_is() {
    let origin = Origin::echo();
    let rules = " http-request set-uri http://other:81%[path] if { path -m beg /whole }\n \
                 http-request set-uri /short if { path /origin }\n http-request set-path /new if { path /path }\n";
    let (_server, gate) = before(&origin, rules, "");
    let mut client = Client::connect(&gate.address());
    for (path, first, host) in [
        ("/whole/a", "GET http://other:81/whole/a HTTP/1.1\n", "host: other:81"),
        ("/origin", "GET /short HTTP/1.1\n", "host: h"),
        ("/path", "GET /new HTTP/1.1\n", "host: h"),
        ("/whole/b?c", "GET http://other:81/whole/b HTTP/1.1\n", "host: other:81"),
        ("/same", "GET /same HTTP/1.1\n", "host: h"),
    ] {
        let answer = client.ask(&format!("GET {path}\nhost: h"));
        check(&answer, first, &[host], &[]);
    }
}

#[test]
fn answers_of_any_framing() {
    let origin = Origin::start(|mut client| {
        while let Some(request) = Request::read(&mut client) {
            let path = request.head.split(' ').nth(1).unwrap_or_default().to_owned();
            client.send(match path.as_str() {
                "/chunked" => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: x\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                }
                "/close" => "HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\nabc",
                "/old" => "HTTP/1.0 200 OK\r\n\r\nabc",
                "/empty" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                "/none" => "HTTP/1.1 204 No Content\r\nX: 1\r\n\r\n",
                "/same" => "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 7\r\n\r\n",
                "/short" => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
                _ => "HTTP/1.1 200 OK\r\nX-UPPER: A\r\nContent-Length: 3\r\n\r\nabc",
            });
            if matches!(path.as_str(), "/close" | "/old" | "/short") {
                return;
            }
        }
    });
    let (_server, gate) = before(&origin, "", "");
    let mut client = Client::connect(&gate.address());
    for (path, status, body, has, lacks) in [
        ("/chunked", 200, "abc", "", "transfer-encoding"),
        ("/chunked", 200, "abc", "", "keep-alive"),
        ("/close", 200, "abc", "", "connection"),
        ("/old", 200, "abc", "", "content-length"),
        ("/empty", 200, "", "content-length: 0\n", "connection"),
        ("/none", 204, "", "x: 1\n", "content-length"),
        ("/same", 304, "", "content-length: 7\n", "connection"),
        ("/length", 200, "abc", "x-upper: A\n", "connection"),
    ] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.text().as_str(), answer.complete), (status, body, true), "{path} {answer:?}");
        assert!(answer.fields.contains(has) && !answer.fields.contains(lacks), "{path} {answer:?}");
    }
    // A body that ends before its length resets its stream, and no other one.
    let answer = client.get("/short");
    assert_eq!((answer.status, answer.text().as_str()), (200, "abc"));
    assert!(answer.reset.is_some() && !answer.complete, "{answer:?}");
    assert_eq!(client.get("/length").text(), "abc");
}

#[test]
fn a_head_ends_where_a_rule_makes_the_server_send_a_body() {
    let origin = Origin::echo();
    let (_server, gate) = before(&origin, " http-request set-method GET", "");
    let mut client = Client::connect(&gate.address());
    for _ in 0..2 {
        let answer = client.ask("HEAD /\nhost: h");
        assert_eq!((answer.status, answer.complete, answer.reset), (200, true, None), "{answer:?}");
        assert_eq!((answer.field("content-length").is_some(), answer.text().as_str()), (true, ""));
    }
}

#[test]
fn a_connection_of_tcp_becomes_one_of_http_2() {
    let lines = " mode tcp\n tcp-request inspect-delay 5s\n tcp-request content set-var(req.mode) \
                 internal.strm.is_htx,iif(http,tcp)\n tcp-request content switch-mode http@PROTO@ if HTTP\n tcp-request \
                 content reject\n http-request return status 200 hdr mode %[var(req.mode)]";
    let (_server, gate) = front(&lines.replace("@PROTO@", ""));
    // The first request is of the stream that the content rules have seen.
    let mut client = sluicegate_testkit::Client::connect(&gate.address());
    for mode in ["tcp", "http"] {
        client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        let answer = client.read_response();
        assert_eq!(answer.header("mode"), Some(mode), "{}", answer.head);
    }
    let mut client = Client::connect(&gate.address());
    assert_eq!((client.get("/").status, client.get("/").status), (200, 200));
    // Another protocol does not take the preface.
    let (_server, gate) = front(&lines.replace("@PROTO@", " proto h1"));
    let mut client = sluicegate_testkit::Client::connect(&gate.address());
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(client.read_response().head.starts_with("HTTP/1.1 400 "));
    // Nor does a line that is bound to bytes.
    let (_server, gate) = front_with("proto none", &lines.replace("@PROTO@", ""));
    let mut client = Client::connect(&gate.address());
    client.flush();
    client.until_closed();
    assert!(client.failure.is_none() && client.goaway.is_none());
}

#[test]
fn many_streams_at_once() {
    let origin = Origin::echo();
    let (_server, gate) = before(&origin, "", "");
    let mut client = Client::connect(&gate.address());
    for _ in 0..3 {
        let streams: Vec<_> =
            (0..100).map(|index| (index, client.begin(&format!("POST /{index}\nhost: h"), false))).collect();
        for (index, stream) in &streams {
            client.data(*stream, format!("body {index}").as_bytes(), true);
        }
        for (index, stream) in streams.into_iter().rev() {
            let answer = client.end(stream);
            check(&answer, &format!("POST /{index} HTTP/1.1\n"), &[], &[]);
            assert!(answer.text().ends_with(&format!("\nbody {index}")));
        }
    }
    assert_eq!(client.goaway, None);
}

#[test]
fn trailers_both_ways() {
    let origin = Origin::start(|mut client| {
        while let Some(request) = Request::read(&mut client) {
            let text = String::from_utf8_lossy(&request.body).into_owned();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\nX-Sum: 7\r\n\
                 Connection: x\r\nX-More: 8\r\n\r\n",
                text.len()
            ));
        }
    });
    let (_server, gate) = before(&origin, "", "");
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("POST /\nhost: h", false);
    client.data(stream, b"body", false);
    client.trailers(stream, "x-grpc: 1\nx-other: 2\n");
    let answer = client.end(stream);
    assert_eq!(answer.text(), "body\nx-grpc: 1\nx-other: 2");
    assert_eq!(answer.trailers, "x-sum: 7\nx-more: 8\n");
    let (_server, gate) = before(&origin, " option http-drop-response-trailers", " option http-drop-request-trailers");
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("POST /\nhost: h", false);
    client.data(stream, b"body", false);
    client.trailers(stream, "x-grpc: 1\n");
    let answer = client.end(stream);
    assert_eq!((answer.text().as_str(), answer.trailers.as_str(), answer.complete), ("body", "", true));
}

#[test]
fn interim_responses() {
    let origin = Origin::start(|mut client| {
        while let Some(head) = Request::read_head(&mut client) {
            assert!(head.contains("expect: 100-continue\n"), "{head}");
            client.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
            let body = client.read_exact(3);
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n");
            client.send(body);
        }
    });
    let (_server, gate) = before(&origin, "", "");
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("POST /\nhost: h\nexpect: 100-continue\ncontent-length: 3", false);
    client.until("100", |client| client.seen(stream).interim.len() == 2);
    client.data(stream, b"abc", true);
    let answer = client.end(stream);
    assert_eq!(answer.interim, [(103, "link: </a>\n".to_owned()), (100, String::new())]);
    assert_eq!((answer.status, answer.text().as_str()), (200, "abc"));
    // Rules that wait for a body ask for it; hints of rules.
    let (_server, gate) = before(
        &Origin::echo(),
        " http-request early-hint Link \"</b>\" if { path /hint }\n http-request wait-for-body time 60s at-least 3",
        "",
    );
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("POST /hint\nhost: h\nexpect: 100-continue", false);
    client.until("100", |client| client.seen(stream).interim.len() == 2);
    client.data(stream, b"abc", true);
    let answer = client.end(stream);
    assert_eq!(answer.interim, [(103, "link: </b>\n".to_owned()), (100, String::new())]);
    check(&answer, "POST /hint HTTP/1.1\n", &[], &["expect"]);
}

/// A message `HEADERS` with END_STREAM and END_HEADERS of literal fields without indexing.
pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "one byte of length");
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(1, flags, stream, &block)
}

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// The answers of a connection to frames that this test wrote: each stream's status, or the code of its reset.
#[track_caller]
fn raw_answers(address: &str, heads: &[&[(&str, &str)]]) -> Vec<String> {
    let mut client = Client::connect(address);
    client.until("the settings", |client| client.wire.is_greeted());
    let mut told = Vec::new();
    for head in heads {
        let stream = client.open();
        client.raw(&headers(stream.id(), 5, head));
        let answer = client.end(stream);
        told.push(answer.reset.map_or(answer.status.to_string(), |code| code.to_string()));
    }
    told
}

#[test]
fn malformed_heads() {
    let log = " log stdout format raw local0 info\n log-format \"%ST %ts %{+Q}r\"\n http-request return status 200";
    let (server, gate) = front(log);
    const GET: (&str, &str) = (":method", "GET");
    const HTTP: (&str, &str) = (":scheme", "http");
    const PATH: (&str, &str) = (":path", "/");
    const HOST: (&str, &str) = (":authority", "h");
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[GET, HTTP, PATH, HOST], "200"),
        (&[GET, HTTP, PATH, HOST, ("Upper", "1")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("a b", "1")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("a", "1\r\nb: 2")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("a", "1\u{0}2")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("connection", "close")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("transfer-encoding", "chunked")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("upgrade", "x")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("te", "gzip")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("content-length", "1"), ("content-length", "2")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, ("content-length", "1")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, PATH, HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, HOST], "PROTOCOL_ERROR"),
        (&[GET, PATH, HOST], "PROTOCOL_ERROR"),
        (&[HTTP, PATH, HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, (":status", "200")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, ("a", "1"), HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, (":path", ""), HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, (":path", "a"), HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, (":path", "/a b"), HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, (":path", "/a#b"), HOST], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, (":authority", "a/b")], "PROTOCOL_ERROR"),
        (&[GET, HTTP, PATH, HOST, (":protocol", "websocket")], "PROTOCOL_ERROR"),
        (&[(":method", "CONNECT"), HTTP, PATH, HOST], "PROTOCOL_ERROR"),
        (&[(":method", "CONNECT"), HTTP, PATH, HOST, (":protocol", "h2c")], "PROTOCOL_ERROR"),
        (&[(":method", "G(T"), HTTP, PATH, HOST], "400"),
        (&[GET, (":scheme", "1://"), PATH, HOST], "400"),
        (&[GET, HTTP, PATH, HOST, ("content-length", "0")], "200"),
        (&[GET, HTTP, PATH, HOST, ("a", " padded ")], "200"),
    ];
    let heads: Vec<_> = cases.iter().map(|(head, _)| *head).collect();
    let told = raw_answers(&gate.address(), &heads);
    for ((head, expected), told) in cases.iter().zip(&told) {
        assert_eq!(told, expected, "{head:?}");
    }
    // Requests that are refused by a 400 are logged; those that are reset never were streams.
    let count = |start: &str| server.program.output().lines().filter(|line| line.starts_with(start)).count();
    wait_for("the lines", || (count("400 PR") + count("200 LR") == 5).then_some(()));
    assert_eq!(count("400 PR"), 2);
}
