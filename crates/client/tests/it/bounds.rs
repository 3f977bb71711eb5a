//! Limits of connections, queue and time: they hold, and errors name the limit.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_client::{Client, Options};
use sluicegate_testkit::{RedisServer, wait_for};
use sluicegate_wire::engine::Engine;
use sluicegate_wire::reply::Reply;
use tokio::task::JoinSet;

use crate::support::{ask, error, figures, info, options, patient, patiently, runtime, worker};

#[test]
fn workers_without_a_lane_use_anothers() {
    let server = RedisServer::start(&[]);
    let before = info(&server, "total_connections_received");
    let client = Arc::new(Client::new(Options { maxconn: 1, ..patient(server.port) }));
    // The worker that owns the lane stays as long as another worker needs it.
    let (asked, when_asked) = std::sync::mpsc::channel();
    let (done, when_done) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let client = &client;
        scope.spawn(move || {
            worker(async {
                assert_eq!(ask(client, "INCR k").await, Reply::Integer(1));
                asked.send(()).expect("the test waits");
                when_done.await.expect("the test ends");
            });
        });
        when_asked.recv().expect("an answer");
        for count in 2..5 {
            worker(async { assert_eq!(ask(client, "INCR k").await, Reply::Integer(count)) });
        }
        done.send(()).expect("the worker waits");
    });
    // The last connection is that of the INFO command itself.
    assert_eq!(info(&server, "total_connections_received") - before, 2);
}

#[test]
fn a_lane_whose_worker_is_gone_is_replaced() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { maxconn: 1, ..patient(server.port) });
    for count in 1..4 {
        worker(async { assert_eq!(ask(&client, "INCR k").await, Reply::Integer(count)) });
    }
}

#[test]
fn the_queue_is_bounded_in_number_and_time() {
    let server = RedisServer::start(&[]);
    server.program.signal(libc::SIGSTOP);
    let client = Arc::new(Client::new(Options { maxqueue: 3, ..options(server.port) }));
    worker(async {
        let mut tasks = JoinSet::new();
        for _ in 0..5 {
            let client = client.clone();
            tasks.spawn(async move { error(ask(&client, "INCR k").await) });
        }
        let errors = tasks.join_all().await;
        let code = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        let codes: Vec<String> = errors.iter().map(|text| code(text)).collect();
        let (full, others): (Vec<_>, Vec<_>) = codes.iter().partition(|code| *code == "QUEUEFULL");
        assert_eq!(full.len(), 2, "{errors:?}");
        // It is random whether connecting or waiting times out first.
        assert!(others.iter().all(|code| ["CONNECT", "QUEUETIMEOUT"].contains(&code.as_str())), "{errors:?}");
        let seen = figures(&client);
        assert_eq!((seen.queued, seen.in_flight), (0, 0));
    });
    server.program.signal(libc::SIGCONT);
    worker(async {
        while !matches!(ask(&client, "INCR k").await, Reply::Integer(_)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_reply_that_takes_too_long_ends_its_connection_and_reads_go_on() {
    let server = RedisServer::start(&[]);
    let client = Arc::new(Client::new(Options {
        timeout_queue: Duration::from_secs(30),
        timeout_server: Duration::from_secs(3),
        timeout_connect: Duration::from_secs(30),
        breaker: 1000,
        ..options(server.port)
    }));
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        server.program.signal(libc::SIGSTOP);
        let slow = async {
            let reply = ask(&client, "INCR slow").await;
            server.program.signal(libc::SIGCONT);
            reply
        };
        let (write, read) = (ask(&client, "INCR n"), ask(&client, "STRLEN k"));
        let (slow, write, read) = tokio::join!(slow, write, read);
        assert_eq!(error(slow), "TIMEOUT no reply within 3000 ms (timeout server)");
        // Nobody knows whether the write was done, so it is not repeated; the read is.
        assert!(error(write).starts_with("CONNLOST 127.0.0.1:"));
        assert_eq!(read, Reply::Integer(1));
        let seen = figures(&client);
        assert!(seen.resent >= 1, "{seen:?}");
    });
}

#[test]
fn idle_and_old_connections_are_renewed() {
    let server = RedisServer::start(&[]);
    let clients = || info(&server, "connected_clients");
    let client = Client::new(Options { timeout_idle: Some(Duration::from_millis(50)), ..patient(server.port) });
    worker(async {
        ask(&client, "PING").await;
        while figures(&client).connected > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ask(&client, "PING").await;
        assert_eq!(figures(&client).connects, 2);
    });
    drop(client);
    wait_for("the connection to be closed", || (clients() == 1).then_some(()));
    let client = Client::new(Options { max_lifetime: Some(Duration::from_millis(50)), ..patient(server.port) });
    worker(async {
        while figures(&client).connects < 3 {
            assert_eq!(ask(&client, "PING").await, Reply::Simple("PONG".into()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(figures(&client).failures.iter().map(|(_, count)| count).sum::<u64>(), 0);
    });
}

#[test]
fn a_client_that_is_dropped_answers_everybody() {
    let server = RedisServer::start(&[]);
    server.program.signal(libc::SIGSTOP);
    let client = Client::new(patient(server.port));
    worker(async {
        let waiting = ask(&client, "INCR k");
        tokio::pin!(waiting);
        // The command is polled once, so that it is queued.
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
    });
    // The worker is gone with its lane, and the next worker gets another lane.
    assert_eq!(figures(&client).queued, 0);
    server.program.signal(libc::SIGCONT);
    worker(async { assert!(matches!(ask(&client, "INCR k").await, Reply::Integer(_))) });
}

/// A worker may be gone before its lane has begun, and while an engine owes it replies.
#[test]
fn a_worker_that_goes_at_once_takes_its_lane_along() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { maxconn: 1, ..patient(server.port) });
    let first = runtime();
    let entered = first.enter();
    let asked = client.start(0, &[b"INCR", b"k"]);
    drop(entered);
    drop(first);
    assert!(error(patiently(asked.finish())).starts_with("CLOSED"));
    assert_eq!(figures(&client).queued, 0);
    patiently(async { assert_eq!(ask(&client, "INCR k").await, Reply::Integer(1)) });
    worker(async {
        assert_eq!(ask(&client, "INCR k").await, Reply::Integer(2));
        server.program.signal(libc::SIGSTOP);
        let mut asked = std::pin::pin!(ask(&client, "INCR k"));
        while figures(&client).in_flight == 0 {
            tokio::select! {
                _ = &mut asked => panic!("the engine stands still"),
                () = tokio::task::yield_now() => {}
            }
        }
    });
    assert_eq!((figures(&client).queued, figures(&client).in_flight, figures(&client).connected), (0, 0, 0));
    server.program.signal(libc::SIGCONT);
}
