//! `filter bwlim-in`, `filter bwlim-out` and `set-bandwidth-limit`.
//!
//! With a period of an hour the number of bytes that pass is exact: what the limit allows passes at once, and nothing
//! more while the test lasts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use crate::start;

/// The size of bodies.
const BODY: usize = 100_000;

const DEFAULTS: &str =
    "defaults\n mode http\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n timeout tunnel 60s\n";

/// Either program, until it is dropped.
enum Program {
    Haproxy(Haproxy),
    Sluicegate(Sluicegate),
}

/// Runs `f` with HAProxy 2.8 and with Sluicegate, each with this text, in which `BIND` is its socket and `SERVER` the
/// address of a server; returns both results.
fn both<T>(text: &str, f: impl Fn(&str, &TcpListener) -> T) -> (T, T) {
    let run = |ours: bool| {
        let gate = Listening::new();
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = server.local_addr().expect("bound").to_string();
        let text = format!("{DEFAULTS}{text}").replace("BIND", &gate.word()).replace("SERVER", &address);
        let program = match ours {
            true => Program::Sluicegate(start(&text, &[&gate])),
            false => Program::Haproxy(Haproxy::start_2_8(&text, &[&gate])),
        };
        let result = f(&gate.address(), &server);
        match program {
            Program::Haproxy(program) => drop(program),
            Program::Sluicegate(program) => drop(program),
        }
        result
    };
    (run(false), run(true))
}

/// Runs the text in both programs and checks that they agree on this.
#[track_caller]
fn check<T: PartialEq + std::fmt::Debug>(text: &str, f: impl Fn(&str, &TcpListener) -> T, expected: T) {
    let (theirs, ours) = both(text, f);
    assert_eq!((&theirs, &ours), (&expected, &expected), "{text}");
}

/// Reads a message until this many bytes of its body have come, and then what comes in a short time more; returns the
/// number of bytes of the body.
fn read_body(stream: &mut TcpStream, expected: usize) -> usize {
    let (mut buffer, mut all, mut body) = ([0; 65536], Vec::new(), None);
    loop {
        let here = body.map_or(0, |start| all.len() - start);
        let patience = if body.is_some() && here >= expected { 300 } else { 60_000 };
        stream.set_read_timeout(Some(Duration::from_millis(patience))).expect("a timeout");
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => all.extend_from_slice(&buffer[..count]),
            _ => return here,
        }
        body = body.or_else(|| all.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4));
    }
}

/// A server that answers its next connection's request with a body of this many bytes; it closes when this is dropped.
fn answer(server: &TcpListener, size: usize) -> std::sync::mpsc::Sender<()> {
    let server = server.try_clone().expect("a descriptor");
    let (keep, kept) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = server.accept().expect("a connection");
        let mut client = Client::from(stream.try_clone().expect("a descriptor"));
        client.read_until(b"\r\n\r\n");
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
        // The proxy may be gone before it has read everything.
        let _ = stream.write_all(&[head.as_bytes(), &vec![b'b'; size]].concat());
        let _ = kept.recv();
    });
    keep
}

/// Returns the number of body bytes that a client gets with this request, if it is not fewer than `expected`.
fn download(address: &str, server: &TcpListener, fields: &str, expected: usize) -> usize {
    let _answering = answer(server, BODY);
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes()).expect("sent");
    read_body(&mut stream, expected)
}

#[test]
fn a_stream_gets_what_its_limit_allows() {
    let proxy = |filter: &str, rule: &str| {
        format!("listen l\n bind BIND\n filter bwlim-out out {filter}\n {rule}\n server s SERVER\n")
    };
    let hour = "default-limit 3000 default-period 1h";
    check(&proxy(hour, ""), |address, server| download(address, server, "", BODY), BODY);
    for (filter, rule, expected) in [
        (hour, "http-request set-bandwidth-limit out", 3_000),
        (hour, "http-response set-bandwidth-limit out", 3_000),
        (hour, "tcp-request content set-bandwidth-limit out", 3_000),
        (hour, "tcp-response content set-bandwidth-limit out", 3_000),
        (hour, "http-request set-bandwidth-limit out if { path /b }", BODY),
        (hour, "http-request set-bandwidth-limit out limit 5k", 5_120),
        (hour, "http-request set-bandwidth-limit out limit req.hdr(x-limit)", 7_000),
        (hour, "http-request set-bandwidth-limit out limit req.hdr(x-none)", 3_000),
        ("default-limit 3000 default-period 1ms", "http-request set-bandwidth-limit out", BODY),
        ("default-limit 3000 default-period 1ms", "http-request set-bandwidth-limit out period 1h", 3_000),
        ("default-limit 3000 default-period 1ms", "http-request set-bandwidth-limit out period int(3600000)", 3_000),
        // The last rule counts, and forgets what an earlier one has set.
        (hour, "http-request set-bandwidth-limit out limit 1k\n http-request set-bandwidth-limit out", 3_000),
    ] {
        check(
            &proxy(filter, rule),
            |address, server| download(address, server, "X-Limit: 7000\r\n", expected),
            expected,
        );
    }
}

/// Data passes in time at the rate that was asked for: no sooner than that, at least.
#[test]
fn a_body_takes_the_time_of_its_rate() {
    let text = "listen l\n bind BIND\n filter bwlim-out out default-limit 20000 default-period 100ms min-size 500\n \
                http-request set-bandwidth-limit out\n server s SERVER\n";
    let (theirs, ours) = both(text, |address, server| {
        let _answering = answer(server, BODY);
        let mut client = Client::connect(address);
        let begun = Instant::now();
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let response = client.read_response();
        (response.body.len(), begun.elapsed() >= Duration::from_millis(350))
    });
    assert_eq!((theirs, ours), ((BODY, true), (BODY, true)));
}

/// Neither side is late while a filter holds data back for longer than its timeout.
#[test]
fn timeouts_do_not_run_while_a_filter_waits() {
    let text = "listen l\n bind BIND\n timeout client 500ms\n timeout server 500ms\n \
                filter bwlim-out out default-limit 1000 default-period 1s min-size 1000\n \
                http-request set-bandwidth-limit out\n server s SERVER\n";
    let ask = |address: &str, server: &TcpListener| {
        let _answering = answer(server, 3_000);
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
        read_body(&mut stream, 3_000)
    };
    check(text, ask, 3_000);
}

#[test]
fn streams_share_the_rate_of_an_entry() {
    let text = "listen l\n bind BIND\n stick-table type string size 10 store bytes_out_rate(1h)\n \
                filter bwlim-out shared limit 4k key req.hdr(x-key)\n \
                http-request set-bandwidth-limit shared\n server s SERVER\n";
    let ask = |address: &str, server: &TcpListener| {
        [("a", 4_096), ("a", 0), ("b", 4_096), ("", BODY)].map(|(key, expected)| {
            let field = if key.is_empty() { String::new() } else { format!("X-Key: {key}\r\n") };
            download(address, server, &field, expected)
        })
    };
    check(text, ask, [4_096, 0, 4_096, BODY]);
    let text = text.replace(" key req.hdr(x-key)", " key req.hdr(x-key) table t");
    let table = "backend t\n stick-table type string size 10 store bytes_out_rate(1h)\n";
    check(&format!("{text}{table}"), ask, [4_096, 0, 4_096, BODY]);
}

/// Sends a body of [`BODY`] bytes; returns how many of them the server receives, if they are not fewer than `expected`.
fn upload(address: &str, server: &TcpListener, expected: usize) -> usize {
    let mut client = TcpStream::connect(address).expect("connected");
    client
        .write_all(format!("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: {BODY}\r\n\r\n").as_bytes())
        .expect("sent");
    client.write_all(&vec![b'a'; BODY]).expect("sent");
    let (mut stream, _) = server.accept().expect("a connection");
    read_body(&mut stream, expected)
}

#[test]
fn requests_are_limited_by_bwlim_in() {
    let text = "listen l\n bind BIND\n filter bwlim-in in default-limit 6000 default-period 1h\n \
                http-request set-bandwidth-limit in\n server s SERVER\n";
    check(text, |address, server| upload(address, server, 6_000), 6_000);
    let text = "listen l\n bind BIND\n stick-table type integer size 10 store bytes_in_rate(1h)\n \
                filter bwlim-in in limit 6000 key int(1)\n http-request set-bandwidth-limit in\n server s SERVER\n";
    check(text, |address, server| upload(address, server, 6_000), 6_000);
    // A filter of the other direction has no effect.
    let text = "listen l\n bind BIND\n filter bwlim-out out default-limit 6000 default-period 1h\n \
                http-request set-bandwidth-limit out\n server s SERVER\n";
    check(text, |address, server| upload(address, server, BODY), BODY);
}

#[test]
fn tcp_is_limited_in_both_directions() {
    let text = "listen l\n mode tcp\n bind BIND\n filter bwlim-in in default-limit 5000 default-period 1h\n \
                filter bwlim-out out default-limit 7000 default-period 1h\n \
                tcp-request content set-bandwidth-limit in\n tcp-response content set-bandwidth-limit out\n \
                server s SERVER\n";
    check(
        text,
        |address, server| {
            let mut client = TcpStream::connect(address).expect("connected");
            client.write_all(&[b"\r\n\r\n".to_vec(), vec![b'a'; BODY]].concat()).expect("sent");
            let (mut stream, _) = server.accept().expect("a connection");
            stream.write_all(&[b"\r\n\r\n".to_vec(), vec![b'b'; BODY]].concat()).expect("sent");
            // Each direction passes four bytes more.
            (read_body(&mut stream, 4_996), read_body(&mut client, 6_996))
        },
        (4_996, 6_996),
    );
}

/// The filter behind the compression sees compressed bytes; the one before it sees what the server sent.
#[test]
fn the_order_of_filters_decides_what_is_limited() {
    let text = |filters: &str| {
        format!(
            "listen l\n bind BIND\n compression algo gzip\n {filters}\n http-request set-bandwidth-limit out\n \
             server s SERVER\n"
        )
    };
    let limit = "filter bwlim-out out default-limit 2000 default-period 1s";
    let ends = |address: &str, server: &TcpListener, patience_ms| {
        let _answering = answer(server, BODY);
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n").expect("sent");
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        let until = Instant::now() + Duration::from_millis(patience_ms);
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        while !all.ends_with(b"0\r\n\r\n") && Instant::now() < until {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => all.extend_from_slice(&buffer[..count]),
                Ok(_) => break,
                Err(_) => {}
            }
        }
        all.ends_with(b"0\r\n\r\n")
    };
    // Some hundred bytes pass soon; the whole body would need most of a minute.
    check(&text(&format!("filter compression\n {limit}")), |address, server| ends(address, server, 60_000), true);
    check(&text(&format!("{limit}\n filter compression")), |address, server| ends(address, server, 2_000), false);
}

/// What a script's service sends is limited, too.
#[test]
fn services_are_limited() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("s.lua");
    std::fs::write(
        &script,
        format!(
            "core.register_service('s', 'http', function(applet)\n applet:set_status(200)\n \
             applet:add_header('content-length', {BODY})\n applet:start_response()\n \
             applet:send(string.rep('s', {BODY}))\nend)\n"
        ),
    )
    .expect("writable");
    let text = format!(
        "global\n lua-load {}\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
         listen l\n bind BIND\n filter bwlim-out out default-limit 3000 default-period 1h\n \
         http-request set-bandwidth-limit out\n http-request use-service lua.s\n",
        script.display()
    );
    check(
        &text,
        |address, _| {
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.write_all(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n").expect("sent");
            read_body(&mut stream, 3_000)
        },
        3_000,
    );
}

/// A client that leaves while a filter waits ends its stream.
#[test]
fn a_client_that_leaves_ends_its_stream() {
    let gate = Listening::new();
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("stats");
    let text = format!(
        "global\n stats socket {}\n{DEFAULTS}listen l\n bind {}\n \
         filter bwlim-out out default-limit 1000 default-period 100ms min-size 10\n \
         http-request set-bandwidth-limit out\n server s {}\n",
        socket.display(),
        gate.word(),
        server.local_addr().expect("bound")
    );
    let _program = start(&text, &[&gate]);
    let _answering = answer(&server, BODY);
    let mut client = Client::connect(&gate.address());
    client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    client.read_until(b"bbbb");
    client.reset();
    wait_for("no stream", || {
        let streams = Sluicegate::stats(&socket, "show stat l 1 -1");
        let row = streams.lines().nth(1)?.split(',').nth(4)?.to_owned();
        (row == "0").then_some(())
    });
}
