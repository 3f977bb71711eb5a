//! Bad input over raw sockets: what is no RESP, or too much of it, is answered as redis-server does and costs nothing.

use std::io::Write;

use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{RedisServer, rss_bytes, wait_for};

use crate::Random;
use crate::support::{Running, exchange};

/// Pieces that requests are made of, right ones and wrong ones.
const PIECES: &[&str] = &[
    "*1\r\n$4\r\nPING\r\n",
    "*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n",
    "PING\r\n",
    "ECHO \"a b\"\r\n",
    "ECHO 'a\r\n",
    "*",
    "$",
    "*1\r\n",
    "*2\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*-9223372036854775808\r\n",
    "*9223372036854775808\r\n",
    "*1048577\r\n",
    "*1 \r\n",
    "* 1\r\n",
    "*+1\r\n",
    "*01\r\n",
    "*1\n",
    "$4\r\n",
    "$0\r\n\r\n",
    "$-1\r\n",
    "$-2\r\n",
    "$536870913\r\n",
    "$99999999999999999999\r\n",
    "$4\n",
    "$ 4\r\n",
    "PING",
    "\r\n",
    "\n",
    "\r",
    ":1\r\n",
    "+OK\r\n",
    "-ERR\r\n",
    "%1\r\n",
    "*1\r\n*1\r\n$4\r\nPING\r\n",
    "~1\r\n",
    "GET",
    "\"",
    "\\x00",
    "é",
    "4",
    "SET k v\r\n",
];

#[test]
fn random_pieces_get_the_replies_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let seed = std::env::var("SLUICEGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let mut random = Random(seed);
    for case in 0..1500 {
        let mut request = String::new();
        for _ in 0..=random.below(7) {
            request += random.pick(PIECES);
        }
        let expected = exchange(&redis.address(), request.as_bytes());
        let found = exchange(&ours.address(), request.as_bytes());
        assert_eq!(
            String::from_utf8_lossy(&found),
            String::from_utf8_lossy(&expected),
            "case {case} of seed {seed}: {request:?}"
        );
    }
}

#[test]
fn every_prefix_of_a_request_is_answered_as_redis_does() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING \"x\"\r\n";
    for cut in 0..=whole.len() {
        let expected = exchange(&redis.address(), &whole[..cut]);
        assert_eq!(exchange(&ours.address(), &whole[..cut]), expected, "{cut} bytes");
    }
}

#[test]
fn an_inline_request_without_end_is_refused_at_redis_s_length() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    for (start, length) in [("", 70_000), ("*", 70_000), ("*1\r\n$", 70_000)] {
        let request = [start.as_bytes(), "1".repeat(length).as_bytes()].concat();
        let expected = exchange(&redis.address(), &request);
        assert!(expected.starts_with(b"-ERR Protocol error: too big "), "{}", String::from_utf8_lossy(&expected));
        assert_eq!(exchange(&ours.address(), &request), expected, "{start:?}");
    }
}

#[test]
fn announced_lengths_reserve_nothing() {
    let ours = Running::start();
    let before = rss_bytes(std::process::id());
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = ours.connect();
        client.send("*1000000\r\n$500000000\r\nx");
        clients.push(client);
    }
    let mut other = ours.connect();
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    wait_for("all to be read", || other.ask(&["CLIENT", "LIST"]).matches(" qbuf=").count().eq(&51).then_some(()));
    let grown = rss_bytes(std::process::id()).saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes for what was announced alone");
}

#[test]
fn a_reader_that_stops_is_not_read_from() {
    let ours = Running::with(ServerOptions::default(), 1);
    let mut other = ours.connect();
    let value = "v".repeat(1 << 20);
    assert_eq!(other.ask(&["SET", "k", &value]), "+OK\r\n");
    let slow = ours.connect();
    slow.stream().set_nonblocking(true).expect("a socket");
    // Requests for a gigabyte of replies: the server stops reading them long before it has written them.
    let requests = "GET k\r\n".repeat(1000);
    let mut sent = 0;
    for _ in 0..100 {
        match slow.stream().write(requests.as_bytes()) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
        assert_eq!(other.ask(&["PING"]), "+PONG\r\n", "others are served");
    }
    assert!(sent > 0);
    let text = other.ask(&["CLIENT", "LIST"]);
    let waiting = |line: &str| -> u64 {
        let field = line.split(" omem=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a field");
        field.parse().expect("a number")
    };
    let most = text.lines().filter(|line| line.contains(" omem=")).map(waiting).max().unwrap_or(0);
    // A turn's share and one value beyond it.
    assert!(most > 0 && most <= (1 << 20) + (128 << 10), "{most} bytes wait");
}
