//! Engines that die, come back, change their role or violate the protocol.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_client::{Client, Options};
use sluicegate_testkit::{RedisServer, free_port};
use sluicegate_wire::engine::Engine;
use sluicegate_wire::reply::Reply;

use crate::support::{ask, ask_in, bulk, error, figures, options, patient, worker};

#[test]
fn the_breaker_opens_and_closes() {
    let port = free_port();
    let client = Client::new(Options { breaker: 3, timeout_queue: Duration::from_secs(30), ..options(port) });
    worker(async {
        let text = error(ask(&client, "GET k").await);
        let expected = format!("BREAKER the engine is not asked after 3 failures in a row: 127.0.0.1:{port}: ");
        assert!(text.starts_with(&expected), "{text}");
        // The error comes at once, and no connection is attempted until the pause is over.
        let connects = figures(&client).connects;
        assert_eq!(connects, 3);
        assert!(figures(&client).is_open);
        let mut asked = 0;
        while figures(&client).connects == connects {
            assert!(error(ask(&client, "GET k").await).starts_with("BREAKER"));
            asked += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(asked > 0);
    });
    let mut command = std::process::Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let mut server = sluicegate_testkit::Program::start(command, &[]);
    server.wait_for_output("Ready to accept connections");
    worker(async {
        while ask(&client, "GET k").await != Reply::Null {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!figures(&client).is_open);
    });
}

/// A reply that arrives before its command was sent belongs to another command.
#[test]
fn a_reply_to_what_was_not_sent_ends_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = Client::new(patient(listener.local_addr().expect("bound").port()));
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        assert!(stream.read(&mut [0; 4096]).expect("a greeting") > 0);
        stream.write_all(b"+OK\r\n").expect("it is read");
        // More than fits into the sockets' buffers; the rest is never read.
        assert!(stream.read(&mut [0; 4096]).expect("a command") > 0);
        stream.write_all(b":1\r\n").expect("it is read");
        (listener, stream)
    });
    worker(async {
        let large = vec![b'x'; 32 << 20];
        let text = error(client.start(0, &[b"SET", b"k", &large]).finish().await);
        assert!(text.starts_with("CONNLOST") && text.ends_with("a reply to what was not sent yet"), "{text}");
    });
    drop(peer.join().expect("no panic"));
}

/// An engine that is out of memory refuses writes; the client keeps its connection.
#[test]
fn a_full_engine_is_asked_on() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let client = Client::new(patient(server.port));
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        assert_eq!(ask(&client, "CONFIG SET maxmemory 1").await, Reply::Simple("OK".into()));
        for _ in 0..20 {
            let text = error(ask(&client, "INCR n").await);
            assert!(text.starts_with("OOM command not allowed"), "{text}");
            assert_eq!(ask(&client, "GET k").await, bulk("v"));
        }
        let seen = figures(&client);
        assert_eq!((seen.connects, seen.engine_errors, seen.is_open), (1, 20, false));
        assert_eq!(ask(&client, "CONFIG SET maxmemory 0").await, Reply::Simple("OK".into()));
        assert_eq!(ask(&client, "INCR n").await, Reply::Integer(1));
    });
}

/// The death of an engine counts as one failure, however many connections it had.
#[test]
fn a_death_is_one_failure() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { breaker: 2, ..patient(server.port) });
    worker(async {
        for db in 0..4 {
            assert_eq!(ask_in(&client, db, "PING").await, Reply::Simple("PONG".into()));
        }
        server.program.signal(libc::SIGSTOP);
        let dying = async {
            while figures(&client).in_flight < 4 {
                tokio::task::yield_now().await;
            }
            server.program.signal(libc::SIGKILL);
        };
        let incr = |db| ask_in(&client, db, "INCR k");
        let (one, two, three, four, ()) = tokio::join!(incr(0), incr(1), incr(2), incr(3), dying);
        for reply in [one, two, three, four] {
            assert!(error(reply).starts_with("CONNLOST"));
        }
        let seen = figures(&client);
        assert!(!seen.is_open && seen.last_failure.is_some(), "{seen:?}");
    });
}

#[test]
fn connects_keep_to_their_rate() {
    let port = free_port();
    let client = Client::new(Options { connect_rate: 2, breaker: 1_000_000, ..options(port) });
    let begun = std::time::Instant::now();
    worker(async {
        for _ in 0..4 {
            let text = error(ask(&client, "GET k").await);
            assert!(text.starts_with("CONNECT 127.0.0.1:"), "{text}");
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let connects = figures(&client).connects as f64;
    assert!(connects <= 2.0 + 2.0 * seconds + 1.0, "{connects} in {seconds} s");
}

/// Every acknowledged INCR is counted, and of the others only some with an unknown outcome; a read that is interrupted
/// once does not fail.
#[test]
fn connections_that_are_killed_lose_no_count() {
    let reads = [AtomicU64::new(0), AtomicU64::new(0)];
    let server = RedisServer::start(&[]);
    let client = Arc::new(Client::new(Options { breaker: 1_000_000, connect_rate: 1000, ..patient(server.port) }));
    let killer = Client::new(Options { name: "killer".into(), breaker: 1_000_000, ..patient(server.port) });
    let (acknowledged, unknown, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for reads in &reads {
            let (client, acknowledged, unknown, stop) = (&client, &acknowledged, &unknown, &stop);
            scope.spawn(move || {
                worker(async {
                    let one = async || {
                        while !stop.load(Ordering::Relaxed) {
                            match ask(client, "INCR hits").await {
                                Reply::Integer(_) => acknowledged.fetch_add(1, Ordering::Relaxed),
                                Reply::Error(text) if text.starts_with("CONNLOST") => {
                                    unknown.fetch_add(1, Ordering::Relaxed)
                                }
                                reply => panic!("{reply:?}"),
                            };
                            let read = ask(client, "STRLEN hits").await;
                            assert!(matches!(read, Reply::Integer(_)), "{read:?}");
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    };
                    tokio::join!(one(), one(), one(), one(), one(), one(), one(), one());
                });
            });
        }
        worker(async {
            for _ in 0..30 {
                // Replies come in order, so after these no read is pending that the last kill interrupted.
                let before = reads.each_ref().map(|reads| reads.load(Ordering::Relaxed));
                while reads.iter().zip(before).any(|(reads, before)| reads.load(Ordering::Relaxed) < before + 9) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                assert!(matches!(ask(&killer, "CLIENT KILL TYPE normal SKIPME yes").await, Reply::Integer(_)));
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    let (acknowledged, unknown) = (acknowledged.into_inner(), unknown.into_inner());
    let Reply::Bulk(text) = worker(async { ask(&client, "GET hits").await }) else { panic!("no count") };
    let there: u64 = String::from_utf8(text).expect("digits").parse().expect("a number");
    assert!((acknowledged..=acknowledged + unknown).contains(&there), "{acknowledged} + {unknown}, there are {there}");
    assert!(figures(&client).connects > 10, "{:?}", figures(&client));
}

#[test]
fn a_read_only_engine_is_looked_at_again() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    worker(async {
        assert_eq!(ask(&client, "INCR k").await, Reply::Integer(1));
        let nowhere = format!("REPLICAOF 127.0.0.1 {}", free_port());
        ask(&client, &nowhere).await;
        assert!(error(ask(&client, "INCR k").await).starts_with("READONLY"));
        ask(&client, "REPLICAOF NO ONE").await;
        assert_eq!(ask(&client, "INCR k").await, Reply::Integer(2));
        assert!(figures(&client).connects >= 2);
    });
}

/// Starts a peer that answers the first bytes of every connection with `answer`, and then closes it or keeps it open.
/// Returns the port.
fn peer(answer: &'static [u8], ends: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // A greeting is short and comes at once.
            let _ = stream.read(&mut [0; 4096]).map(|_| stream.write_all(answer));
            if !ends {
                kept.push(stream);
            }
        }
    });
    port
}

#[track_caller]
fn check_peer(answer: &'static [u8], ends: bool, expected: &str) {
    let port = peer(answer, ends);
    // The time limit is short if it is expected to be reached, and long otherwise.
    let bounds = if expected.contains(" within 300 ms") { options(port) } else { patient(port) };
    let client = Client::new(Options { breaker: 1, timeout_queue: Duration::from_secs(30), ..bounds });
    let text = worker(async { error(ask(&client, "GET k").await) });
    assert!(text.contains(expected), "{text}");
}

#[test]
fn peers_that_are_no_engine_are_errors() {
    check_peer(b"HTTP/1.1 400 Bad Request\r\n\r\n", false, "unknown reply type 'H'");
    check_peer(b"", true, "unexpected end of file");
    check_peer(b"", false, "not connected within 300 ms");
    check_peer(b"%1\r\n$5\r\nser", true, "unexpected end of file");
    check_peer(b"%1\r\n$5\r\nser", false, "not connected within 300 ms");
    check_peer(b"$99999999999\r\n", false, "a string longer than allowed");
    check_peer(b"-LOADING Redis is loading the dataset in memory\r\n", false, "LOADING Redis is loading");
    check_peer(b"-NOAUTH HELLO must be called with the client already authenticated\r\n", false, "NOAUTH");
    check_peer(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", false, "WRONGPASS");
}

#[test]
fn a_reply_that_nobody_asked_for_ends_the_connection() {
    // The extra reply comes with that of the greeting, or with that of a command.
    check_peer(b"+OK\r\n+OK\r\n", false, "a reply that nobody asked for");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = Client::new(patient(listener.local_addr().expect("bound").port()));
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        for answer in [&b"+OK\r\n"[..], b":1\r\n:2\r\n"] {
            assert!(stream.read(&mut [0; 4096]).expect("a command") > 0);
            stream.write_all(answer).expect("it is read");
        }
        // The client closes the connection.
        assert_eq!(stream.read(&mut [0; 16]).expect("an end"), 0);
        listener
    });
    worker(async {
        assert_eq!(ask(&client, "INCR k").await, Reply::Integer(1));
        while figures(&client).connected > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let last = figures(&client).last_failure.unwrap_or_default();
        assert!(last.contains("a reply that nobody asked for"), "{last}");
    });
    peer.join().expect("no panic");
}
