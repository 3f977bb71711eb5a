//! Bodies: flow control both ways, resets, early answers, and filters.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use sluicegate_testkit::{rss_bytes, wait_for};
use sluicegate_wire::http2::{ErrorCode, Settings};

const MIB: usize = 1 << 20;

/// A server that answers a request to `/N` with a pattern of N bytes, and any other one with the length of its body.
fn sized() -> Origin {
    Origin::start(|mut client| {
        while let Some(request) = Request::read(&mut client) {
            let path = request.head.split([' ', '/']).nth(2).unwrap_or_default();
            match path.parse() {
                Ok(len) => {
                    client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n"));
                    client.send(pattern(len));
                }
                Err(_) => {
                    let text = format!("{} {}", request.body.len(), request.body == pattern(request.body.len()));
                    client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
                }
            }
        }
    })
}

#[test]
fn large_bodies_both_ways() {
    for forwarding in ["on", "off"] {
        let gate = Listening::new();
        let text = format!(
            "global\n tune.h2.zero-copy-fwd-send {forwarding}\n{DEFAULTS}listen l\n bind {}\n server one {}\n",
            gate.word(),
            sized().address()
        );
        let _server = start(&text, &[&gate]);
        bodies_both_ways(&gate);
    }
}

fn bodies_both_ways(gate: &Listening) {
    let mut client = Client::connect(&gate.address());
    let down = client.begin(&format!("GET /{}\nhost: h", 3 * MIB), true);
    let up = client.begin("POST /up\nhost: h", false);
    client.data(up, &pattern(3 * MIB), true);
    assert_eq!(client.end(up).text(), format!("{} true", 3 * MIB));
    assert!(client.end(down).body == pattern(3 * MIB));
    let answer = client.post(&format!("POST /up\nhost: h\ncontent-length: {MIB}"), &pattern(MIB));
    assert_eq!(answer.text(), format!("{MIB} true"));
}

#[test]
fn small_windows_do_not_stall() {
    let (_server, gate) = before(&sized(), "", "");
    let settings = Settings { max_concurrent_streams: 0, initial_window: 7, ..Settings::default() };
    let mut client = Client::with(&gate.address(), settings);
    let streams: Vec<_> = (0..10).map(|_| client.begin("GET /3000\nhost: h", true)).collect();
    for stream in streams {
        assert!(client.end(stream).body == pattern(3000));
    }
}

/// For a client that does not read, the proxy holds at most a window of data; the client gets everything when it reads.
#[test]
fn slow_readers_hold_no_memory() {
    let (server, gate) = before(&sized(), "", "");
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/10").body.len(), 10);
    client.consumes = false;
    let before = rss_bytes(server.program.pid());
    let streams: Vec<_> = (0..40).map(|_| client.begin(&format!("GET /{}\nhost: h", 3 * MIB), true)).collect();
    client.until("full windows", |client| streams.iter().all(|stream| client.seen(*stream).body.len() == MIB));
    let grown = rss_bytes(server.program.pid()).saturating_sub(before);
    assert!(grown < 24 * MIB as u64, "{grown} bytes for 80 MiB that nobody reads");
    // The unread streams do not block another one.
    client.consumes = true;
    assert_eq!(client.get("/100000").body.len(), 100_000);
    for stream in &streams[1..] {
        client.reset(*stream, ErrorCode::CANCEL);
    }
    client.wire.consume(streams[0], MIB);
    assert!(client.end(streams[0]).body == pattern(3 * MIB));
}

/// A client with a window that is never used up sends no frame while it reads, so only room in the socket wakes the
/// stream.
#[test]
fn a_client_that_reads_late_gets_everything() {
    const LEN: usize = 24 * MIB;
    let sent = Arc::new(AtomicUsize::new(0));
    let progress = sent.clone();
    let origin = Origin::start(move |mut client| {
        let Some(_) = Request::read_head(&mut client) else { return };
        client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n"));
        for piece in pattern(LEN).chunks(64 * 1024) {
            client.send(piece);
            progress.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
    let (_server, gate) = before(&origin, "", "");
    let mut client = Client::with(&gate.address(), Settings { initial_window: 1 << 30, ..Settings::default() });
    let stream = client.begin("GET /\nhost: h", true);
    // The server sends until all buffers on the way are full.
    let mut last = (0, 0);
    wait_for("the server to stop", || {
        let now = sent.load(Ordering::Relaxed);
        last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
        (now > 0 && last.1 > 20).then_some(())
    });
    assert!(client.end(stream).body == pattern(LEN));
}

/// A server that does not read makes the client wait, and other streams go on.
#[test]
fn slow_servers_hold_no_memory() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::start(move |mut client| {
        let Some(head) = Request::read_head(&mut client) else { return };
        if head.starts_with("GET ") {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            return;
        }
        let _ = gone.lock().map(|gone| gone.recv());
        let body = client.read_exact(16 * MIB);
        let text = (body == pattern(16 * MIB)).to_string();
        client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
    });
    let (server, gate) = before(&origin, "", "");
    let mut client = Client::connect(&gate.address());
    let stream = client.begin(&format!("POST /\nhost: h\ncontent-length: {}", 16 * MIB), false);
    let body = pattern(16 * MIB);
    let mut sent = 0;
    // Requests take turns with data until there is no window left twice in a row.
    let mut idle = 0;
    while idle < 20 {
        let more = client.wire.send_data(stream, &body[sent..], false);
        client.flush();
        sent += more;
        idle = if more == 0 { idle + 1 } else { 0 };
        assert_eq!(client.get("/other").text(), "ok");
    }
    assert!(sent < 12 * MIB, "{sent} bytes were taken from a client whose server does not read");
    let _ = server;
    go.send(()).expect("it waits");
    client.data(stream, &body[sent..], true);
    assert_eq!(client.end(stream).text(), "true");
}

#[test]
fn resets_of_the_client_end_the_request() {
    let (told, tell) = std::sync::mpsc::channel();
    let origin = Origin::start(move |mut client| {
        let Some(head) = Request::read_head(&mut client) else { return };
        if head.starts_with("GET /ok") {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            return;
        }
        if head.starts_with("GET") {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
            client.send(pattern(1000));
        }
        // Until the proxy gives up.
        client.read_to_end();
        let _ = told.send(head.split(' ').nth(1).unwrap_or_default().to_owned());
    });
    let log = " log stdout format raw local0 info\n log-format \"%ST %ts %HPO\"";
    let (mut server, gate) = before(&origin, log, " option abortonclose");
    let mut client = Client::connect(&gate.address());
    let upload = client.begin("POST /up\nhost: h", false);
    client.data(upload, b"abc", false);
    let wait = client.begin("POST /wait\nhost: h", true);
    let down = client.begin("GET /down\nhost: h", true);
    client.until("data", |client| client.seen(down).body.len() == 1000);
    for stream in [upload, wait, down] {
        client.reset(stream, ErrorCode::CANCEL);
    }
    let mut paths: Vec<_> = (0..3).map(|_| tell.recv_timeout(sluicegate_testkit::PATIENCE).expect("an end")).collect();
    paths.sort();
    assert_eq!(paths, ["/down", "/up", "/wait"]);
    assert_eq!(client.get("/ok").text(), "ok");
    for line in ["400 CH /up\n", "400 CD /wait\n", "200 CD /down\n", "200 -- /ok\n"] {
        server.program.wait_for_output(line);
    }
}

#[test]
fn an_early_answer_ends_an_upload_without_error() {
    let origin = Origin::start(|mut client| {
        if Request::read_head(&mut client).is_some() {
            // A server that goes on to read would get the rest.
            client.read_exact(3);
            client.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
        }
    });
    let (_server, gate) = before(&origin, " http-request deny if { path /denied }", "");
    let mut client = Client::connect(&gate.address());
    for (path, status) in [("/denied", 403), ("/", 413)] {
        let stream = client.begin(&format!("POST {path}\nhost: h\ncontent-length: 1000000"), false);
        client.data(stream, b"abc", false);
        assert_eq!(client.head(stream).status, status);
        // As in HAProxy, a server that has responded may still read the rest; only more data shows that it does not.
        while client.seen(stream).reset.is_none() {
            client.wire.send_data(stream, b"more", false);
            assert_eq!(client.get("/denied").status, 403);
        }
        let answer = client.end(stream);
        assert_eq!((answer.complete, answer.reset), (true, Some(ErrorCode::NO_ERROR)), "{answer:?}");
    }
    assert_eq!(client.goaway, None);
    assert_eq!(client.get("/denied").status, 403);
    // A client that leaves behind the complete answer did so in the last phase.
    let origin = Origin::start(|mut client| {
        if Request::read_head(&mut client).is_some() {
            client.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig");
            client.read_to_end();
        }
    });
    let log = " log stdout format raw local0 info\n log-format \"%HPO %ST %ts\"";
    let (mut server, gate) = before(&origin, log, "");
    let mut client = Client::connect(&gate.address());
    let stream = client.begin("POST /h2\nhost: h\ncontent-length: 1000000", false);
    client.until("the answer", |client| client.seen(stream).complete);
    drop(client);
    server.program.wait_for_output("/h2 413 CL\n");
    let mut plain = Plain::connect(&gate.address());
    plain.send("POST /h1 HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n");
    assert_eq!(plain.read_response().status, 413);
    plain.reset();
    server.program.wait_for_output("/h1 413 CL\n");
}

#[test]
fn failures_of_servers() {
    let origin = Origin::start(|mut client| {
        let Some(head) = Request::read_head(&mut client) else { return };
        match head.split(' ').nth(1) {
            Some("/junk") => client.send("what is this\r\n\r\n"),
            Some("/cut") => {
                client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
                client.reset();
            }
            Some("/bad") => client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            Some("/slow") => drop(client.read_to_end()),
            _ => {}
        }
    });
    let (_server, gate) = before(&origin, "", " http-request set-timeout server 300ms if { path /slow }");
    let mut client = Client::connect(&gate.address());
    for (path, status) in [("/junk", 502), ("/gone", 502), ("/bad", 502), ("/slow", 504)] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.complete), (status, true), "{path} {answer:?}");
        assert!(answer.text().contains("<h1>"), "{answer:?}");
    }
    let answer = client.get("/cut");
    assert!((answer.status, answer.complete) == (200, false) && answer.reset.is_some(), "{answer:?}");
    assert_eq!(client.goaway, None);
}

#[test]
fn compression_of_answers() {
    use std::io::Read;
    let body = "a long text that can be made shorter, ".repeat(2000);
    let sent = body.clone();
    let origin = Origin::start(move |mut client| {
        while Request::read(&mut client).is_some() {
            let len = sent.len();
            client.send(format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\n\r\n{sent}"));
        }
    });
    let (_server, gate) = before(&origin, " compression algo gzip", "");
    let mut client = Client::connect(&gate.address());
    let answer = client.ask("GET /\nhost: h\naccept-encoding: gzip");
    assert_eq!((answer.field("content-encoding"), answer.field("content-length")), (Some("gzip"), None), "{answer:?}");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text).expect("gzip");
    assert!(text == body && answer.body.len() < body.len() / 10);
    assert_eq!(client.get("/").body.len(), body.len());
}

/// Idle connections give their buffers back, and so do those whose streams have ended.
#[test]
fn idle_connections_are_small() {
    let (server, gate) = before(&sized(), "", "");
    let mut clients: Vec<_> = (0..200).map(|_| Client::connect(&gate.address())).collect();
    assert_eq!(clients[0].get("/300000").body.len(), 300_000);
    let before = rss_bytes(server.program.pid());
    for client in &mut clients {
        assert_eq!(client.get("/100000").body.len(), 100_000);
    }
    let mut grown = 0;
    wait_for("small connections", || {
        grown = rss_bytes(server.program.pid()).saturating_sub(before);
        (grown < 200 * 40 * 1024).then_some(())
    });
}
