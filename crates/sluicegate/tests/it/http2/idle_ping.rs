//! `idle-ping` towards clients and servers with scripted frames: a peer that acknowledges the PING stays connected.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_wire::http2::{ErrorCode, PREFACE};

use super::requests::headers;
use super::server::Server;
use super::*;

/// An acknowledgement of the PING that HAProxy and this side send.
const PONG: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07";

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")];

/// Waits for this many pings, and answers each.
#[track_caller]
fn answer(client: &mut Client, count: usize) {
    for _ in 0..count {
        let next = client.pings + 1;
        client.until("a ping", |client| client.pings == next);
        client.raw(PONG);
    }
}

#[test]
fn a_client_that_answers_stays_and_another_one_is_told_to_go() {
    // Answers also restart `timeout client`.
    let lines = " timeout client 5s\n http-request return status 200";
    let (_server, gate) = front_with("proto h2 idle-ping 2s", lines);
    let mut client = Client::by_hand(&gate.address());
    answer(&mut client, 3);
    client.raw(&headers(1, 5, &GET));
    answer(&mut client, 1);
    // Only an acknowledgement counts as an answer.
    let before = client.pings;
    client.until("a ping", |client| client.pings > before);
    client.raw(b"\0\0\x08\x06\0\0\0\0\x00anything");
    client.until_closed();
    assert_eq!((client.goaway, client.pongs), (Some((1, ErrorCode::NO_ERROR)), 1));
    assert_eq!(client.pings, before + 1, "the next test is the end");
}

#[test]
fn times_of_clients_run_beside_idle_ping() {
    let lines = " timeout client 60s\n timeout http-request 60s\n timeout http-keep-alive 5s\n \
                 http-request return status 200";
    let (_server, gate) = front_with("proto h2 idle-ping 2s", lines);
    let mut client = Client::by_hand(&gate.address());
    client.raw(&headers(1, 5, &GET));
    let before = Instant::now();
    while client.goaway.is_none() && client.step() {
        for _ in 0..std::mem::take(&mut client.pings) {
            client.raw(PONG);
        }
    }
    assert_eq!(client.goaway, Some((1, ErrorCode::NO_ERROR)));
    assert!(before.elapsed() >= Duration::from_secs(5), "ended after {:?}", before.elapsed());
}

#[test]
fn the_value_is_the_time_of_silence() {
    for time in [50, 600] {
        let (_server, gate) = front_with(&format!("proto h2 idle-ping {time}"), " http-request return status 200");
        let before = Instant::now();
        let mut client = Client::by_hand(&gate.address());
        client.until_closed();
        assert!(before.elapsed() >= Duration::from_millis(2 * time), "{time}: {:?}", before.elapsed());
        assert_eq!((client.pings, client.goaway), (1, Some((0, ErrorCode::NO_ERROR))), "{time}");
    }
    // No PING is sent with 0, before the preface, or in HTTP/1.
    let lines = " timeout client 1s\n http-request return status 200";
    let begun = [&PREFACE[..], b"\0\0\0\x04\0\0\0\0\0"].concat();
    for (words, preface) in [("proto h2 idle-ping 0", &*begun), ("proto h2 idle-ping 50", b""), ("idle-ping 50", b"")] {
        let (_server, gate) = front_with(words, lines);
        let mut plain = Plain::connect(&gate.address());
        plain.send(preface);
        if words.starts_with("idle") {
            plain.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        }
        let received = plain.read_to_end();
        assert!(!received.windows(4).any(|window| window == [0, 0, 8, 6]), "{words}: {received:?}");
    }
}

#[test]
fn a_server_that_answers_keeps_its_connection_and_another_one_loses_it() {
    // Answers have time enough where they are given.
    for (time, answers) in [("2s", true), ("100ms", false)] {
        let server = Server::start();
        server.answers.store(answers, Ordering::SeqCst);
        // The limit of idle connections of a pool does not matter meanwhile.
        let (_proxy, gate) = front(&format!(
            " default_backend back\nbackend back\n http-reuse always\n default-server idle-ping {time}\n server s {} proto \
             h2 pool-purge-delay 60s",
            server.address
        ));
        let mut client = Plain::connect(&gate.address());
        let mut get = || {
            client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
            assert!(client.read_response().head.starts_with("HTTP/1.1 200 "));
        };
        get();
        if answers {
            server.wait("pings", &server.pings, 3);
            get();
            assert_eq!((server.connections.load(Ordering::SeqCst), server.ended.load(Ordering::SeqCst)), (1, 0));
            continue;
        }
        server.wait("the end", &server.ended, 1);
        get();
        server.wait("another end", &server.ended, 2);
        assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_purge_ends_connections_whose_server_answers() {
    let server = Server::start();
    let (_proxy, gate) = front(&format!(
        " default_backend back\nbackend back\n http-reuse always\n server s {} proto h2 idle-ping 300ms pool-purge-delay 1s",
        server.address
    ));
    let mut client = Plain::connect(&gate.address());
    client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
    assert!(client.read_response().head.starts_with("HTTP/1.1 200 "));
    server.wait("the end", &server.ended, 1);
    assert!(server.pings.load(Ordering::SeqCst) > 0);
}
