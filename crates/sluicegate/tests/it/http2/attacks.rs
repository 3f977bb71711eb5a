//! Attacks: what a client can send costs the proxy no more than its limits, and other clients are served meanwhile.
//!
//! Counts and memory are checked, times are not.

use super::requests::{frame, headers};
use super::*;
use sluicegate_testkit::{rss_bytes, wait_for};
use sluicegate_wire::http2::{ErrorCode, Settings};

const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")];

/// A server that counts requests, and a proxy before it; also one page that needs no server.
fn counted(global: &str) -> (Sluicegate, Listening, Arc<std::sync::atomic::AtomicUsize>) {
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = count.clone();
    let origin = Origin::start(move |mut client| {
        while Request::read(&mut client).is_some() {
            seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let gate = Listening::new();
    let text = format!(
        "{}frontend front\n bind {}\n http-request return status 200 content-type text/plain string alive if {{ path /alive }}\n default_backend back\n\
         backend back\n option abortonclose\n server one {} maxconn 10\n",
        DEFAULTS.replacen("global\n", &format!("global\n{global}"), 1),
        gate.word(),
        origin.address()
    );
    (start(&text, &[&gate]), gate, count)
}

/// Checks that a proxy is alive and holds no more than `most` bytes above `before`.
#[track_caller]
fn survives(server: &Sluicegate, gate: &Listening, before: u64, most: u64) {
    assert_eq!(Client::connect(&gate.address()).get("/alive").status, 200);
    let grown = rss_bytes(server.program.pid()).saturating_sub(before);
    assert!(grown < most, "{grown} bytes more");
}

fn begin(gate: &Listening) -> Client {
    Client::by_hand(&gate.address())
}

fn size(server: &Sluicegate, gate: &Listening) -> u64 {
    assert_eq!(Client::connect(&gate.address()).get("/alive").status, 200);
    rss_bytes(server.program.pid())
}

/// Rapid reset (CVE-2023-44487): streams that the proxy still holds make it stop reading.
#[test]
fn rapid_reset() {
    let (server, gate, count) = counted("");
    let before = size(&server, &gate);
    let mut client = begin(&gate);
    let mut bytes = Vec::new();
    for stream in (1..20_001).step_by(2) {
        bytes.extend(headers(stream, 5, GET));
        bytes.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
    }
    client.raw(&bytes);
    client.raw(&frame(6, 0, 0, b"the last"));
    // The ping is answered after everything before it has been processed.
    client.until("an answer", |client| client.pongs == 1);
    survives(&server, &gate, before, 24 << 20);
    let seen = count.load(std::sync::atomic::Ordering::SeqCst);
    assert!(seen < 10_000, "{seen} requests of 10,000 that were reset at once came through");
    let limit = "tune.h2.fe.glitches-threshold 50\n";
    let (server, gate, _) = counted(&format!(" {limit}"));
    let before = size(&server, &gate);
    let mut client = begin(&gate);
    client.raw(&bytes);
    client.until_closed();
    assert_eq!(client.goaway.map(|(_, code)| code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    survives(&server, &gate, before, 24 << 20);
}

/// Requests that are reset by a later frame of the same packet: rules see them, servers do not.
#[test]
fn streams_that_are_reset_at_once_reach_no_server() {
    let (_server, gate, count) = counted("");
    let mut client = begin(&gate);
    let mut bytes = Vec::new();
    for stream in (1..41).step_by(4) {
        bytes.extend(headers(stream, 5, GET));
        bytes.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
        bytes.extend(headers(stream + 2, 5, GET));
        bytes.extend(frame(8, 0, stream + 2, &[0; 4]));
    }
    bytes.extend(headers(41, 5, GET));
    client.raw(&bytes);
    let seen = || count.load(std::sync::atomic::Ordering::SeqCst);
    wait_for("the request that is not reset", || (seen() > 0).then_some(()));
    assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
    assert_eq!(seen(), 2);
}

/// MadeYouReset (CVE-2025-8671): the proxy itself resets streams whose requests are in flight.
#[test]
fn made_you_reset() {
    let (server, gate, _) = counted("");
    let before = size(&server, &gate);
    let mut client = begin(&gate);
    for round in 0..50 {
        let mut bytes = Vec::new();
        for index in 0..100 {
            let stream = 1 + 2 * (round * 100 + index);
            bytes.extend(headers(stream, 5, GET));
            // A window update of zero is an error of the stream.
            bytes.extend(frame(8, 0, stream, &[0; 4]));
        }
        client.raw(&bytes);
    }
    client.raw(&frame(6, 0, 0, b"the last"));
    client.until("an answer", |client| client.pongs == 1);
    survives(&server, &gate, before, 24 << 20);
}

/// CONTINUATION flood (CVE-2024-27316): a field block that never ends.
#[test]
fn continuation_flood() {
    let (server, gate, _) = counted("");
    let before = size(&server, &gate);
    let mut client = begin(&gate);
    client.raw(&headers(1, 1, GET));
    for _ in 0..10_000 {
        client.raw(&frame(9, 0, 1, &[b'x'; 100]));
    }
    client.until_closed();
    assert_eq!(client.goaway.map(|(_, code)| code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    // Empty fragments are glitches.
    let (server, gate, _) = counted(" tune.h2.fe.glitches-threshold 100\n");
    let mut client = begin(&gate);
    client.raw(&headers(1, 1, GET));
    client.raw(&frame(9, 0, 1, b"").repeat(20_000));
    client.until_closed();
    assert_eq!(client.goaway.map(|(_, code)| code), Some(ErrorCode::ENHANCE_YOUR_CALM));
    survives(&server, &gate, before, 64 << 20);
}

/// An HPACK bomb: a large entry of the table that is referred to many times.
#[test]
fn hpack_bomb() {
    let (server, gate, _) = counted("");
    let before = size(&server, &gate);
    let mut client = begin(&gate);
    let mut block = Vec::new();
    for (name, value) in GET {
        block.extend([&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat());
    }
    let value = [b'v'; 4000];
    // A literal with incremental indexing, of 4000 bytes: 127 + 3873 in two more bytes.
    block.extend([&[0x40, 1, b'a', 127, 0xa1, 30][..], &value].concat());
    let bomb = [block.clone(), vec![0x80 | 62; 10_000]].concat();
    client.raw(&frame(1, 5, 1, &bomb));
    for stream in (3..203).step_by(2) {
        client.raw(&frame(1, 5, stream, &vec![0x80 | 62; 16_000]));
    }
    client.raw(&frame(6, 0, 0, b"the last"));
    client.until("an answer", |client| client.pongs == 1 || client.closed);
    survives(&server, &gate, before, 16 << 20);
}

/// A client that does not read answers: they wait, and then nothing more is read from it.
#[test]
fn floods_of_settings_and_pings() {
    let (server, gate, _) = counted("");
    let before = size(&server, &gate);
    for one in [frame(4, 0, 0, &[]), frame(6, 0, 0, b"12345678"), frame(4, 0, 0, &[0, 4, 0, 0, 0, 0].repeat(20))] {
        let client = begin(&gate);
        let flood = one.repeat(1000);
        let stream = client.socket();
        stream.set_nonblocking(true).expect("settable");
        let (mut sent, mut at) = (0_usize, 0);
        // Until the proxy stops reading because its answers are not read, or 64 MiB are sent.
        let mut stuck = 0;
        while stuck < 200 && sent < 64 << 20 {
            match std::io::Write::write(&mut client.socket(), &flood[at..]) {
                Ok(count) => (sent, at, stuck) = (sent + count, (at + count) % flood.len(), 0),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    stuck += 1;
                    // Meanwhile another client is served, which also gives the proxy time.
                    assert_eq!(Client::connect(&gate.address()).get("/alive").status, 200);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(stuck == 200 || sent >= 64 << 20);
        survives(&server, &gate, before, 16 << 20);
    }
}

/// Windows of zero: answers wait, within limits, and the connection's other duties go on.
#[test]
fn zero_windows() {
    let (server, gate, _) = counted("");
    let before = size(&server, &gate);
    let settings = Settings { max_concurrent_streams: 0, initial_window: 0, ..Settings::default() };
    let mut clients: Vec<_> = (0..20).map(|_| Client::with(&gate.address(), settings)).collect();
    for client in &mut clients {
        let streams: Vec<_> = (0..100).map(|_| client.begin("GET /alive\nhost: h", true)).collect();
        for stream in &streams {
            assert_eq!(client.head(*stream).status, 200);
        }
    }
    survives(&server, &gate, before, 96 << 20);
    drop(clients);
    let path = server.directory().join("stats");
    wait_for("the end of all streams", || {
        let text = Sluicegate::stats(&path, "show stat");
        let name = |line: &str| line.split(',').position(|column| column == "h2_backend_open_streams");
        let at = text.lines().next().and_then(name).expect("there");
        let line = text.lines().find(|line| line.starts_with("front,FRONTEND"))?;
        (line.split(',').nth(at) == Some("0")).then_some(())
    });
}

/// More streams than may be open are refused, and the client may repeat them.
#[test]
fn too_many_streams() {
    let (server, gate, _) = counted(" tune.h2.fe.max-concurrent-streams 5\n");
    let mut client = begin(&gate);
    for stream in [1, 3, 5, 7, 9] {
        let waits = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
        client.raw(&headers(stream, 4, &waits));
    }
    client.raw(&headers(11, 5, GET));
    client.until("a reset", |client| !client.resets.is_empty());
    assert_eq!(client.resets, [(11, ErrorCode::REFUSED_STREAM)]);
    drop(server);
    assert_eq!(client.goaway, None);
}

/// Frames of one byte at a time, and an end in each place, leave nothing behind.
#[test]
fn cut_connections() {
    let (server, gate, _) = counted("");
    let before = size(&server, &gate);
    let bytes = [
        sluicegate_wire::http2::PREFACE.to_vec(),
        frame(4, 0, 0, &[]),
        headers(1, 4, GET),
        frame(0, 0, 1, b"abc"),
        frame(0, 1, 1, b"def"),
    ]
    .concat();
    for len in 1..bytes.len() {
        let mut plain = Plain::connect(&gate.address());
        plain.send(&bytes[..len]);
        if len % 3 == 0 {
            plain.reset();
        }
    }
    survives(&server, &gate, before, 16 << 20);
}
