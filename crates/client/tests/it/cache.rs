//! Client-side caching: a value that was read is not requested again until it changes.

use sluicegate_client::{Client, Options};
use sluicegate_testkit::RedisServer;
use sluicegate_wire::reply::Reply;

use crate::support::{ask, bulk, figures, patient, worker};

/// Waits until `count` keys were invalidated.
async fn told(client: &Client, count: u64) {
    let looking = async {
        while figures(client).cache_invalidated < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), looking).await.expect("it is told");
}

#[test]
fn what_was_read_is_not_asked_again_until_it_changes() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { client_cache: 1 << 20, ..patient(server.port) });
    let other = Client::new(Options { name: "other".into(), ..patient(server.port) });
    worker(async {
        ask(&other, "SET k one").await;
        ask(&other, "HSET h f v").await;
        // Replies to commands that precede the connection are not cached.
        ask(&client, "PING").await;
        assert_eq!(ask(&client, "GET k").await, bulk("one"));
        let before = figures(&client).replies;
        for _ in 0..10 {
            assert_eq!(ask(&client, "GET k").await, bulk("one"));
        }
        assert_eq!((figures(&client).replies, figures(&client).cache_hits), (before, 10));
        assert!(figures(&client).cache_bytes > 0);
        // Another client changes the key.
        ask(&other, "SET k two").await;
        told(&client, 1).await;
        assert_eq!(ask(&client, "GET k").await, bulk("two"));
        assert_eq!(ask(&client, "GET k").await, bulk("two"));
        // A client reads its own writes.
        for number in 1..=50 {
            ask(&client, &format!("SET k {number}")).await;
            assert_eq!(ask(&client, "GET k").await, bulk(&number.to_string()));
        }
        // A missing key, and commands of other kinds.
        assert_eq!(ask(&client, "GET none").await, Reply::Null);
        assert_eq!(ask(&client, "GET none").await, Reply::Null);
        assert_eq!(ask(&client, "HGETALL h").await, ask(&client, "hgetall h").await);
        let hits = figures(&client).cache_hits;
        ask(&client, "TTL k").await;
        ask(&client, "TTL k").await;
        assert_eq!(figures(&client).cache_hits, hits);
        // All of it.
        let invalidated = figures(&client).cache_invalidated;
        ask(&other, "FLUSHALL").await;
        told(&client, invalidated + 1).await;
        assert_eq!(ask(&client, "GET k").await, Reply::Null);
    });
}

#[test]
fn a_new_connection_knows_nothing() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { client_cache: 1 << 20, ..patient(server.port) });
    let other = Client::new(Options { name: "other".into(), ..patient(server.port) });
    worker(async {
        ask(&other, "SET k one").await;
        ask(&client, "PING").await;
        assert_eq!(ask(&client, "GET k").await, bulk("one"));
        assert!(figures(&client).cache_bytes > 0);
        ask(&other, "CLIENT KILL TYPE normal SKIPME yes").await;
        let ended = async {
            while figures(&client).connected > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), ended).await.expect("it ends");
        assert_eq!(figures(&client).cache_bytes, 0);
        ask(&other, "SET k two").await;
        assert_eq!(ask(&client, "GET k").await, bulk("two"));
    });
}

#[test]
fn an_engine_that_can_t_tell_is_asked_each_time() {
    let server = RedisServer::start(&["--rename-command", "HELLO", ""]);
    let client = Client::new(Options { client_cache: 1 << 20, ..patient(server.port) });
    worker(async {
        ask(&client, "SET k one").await;
        assert_eq!(ask(&client, "GET k").await, bulk("one"));
        assert_eq!(ask(&client, "GET k").await, bulk("one"));
        assert_eq!((figures(&client).cache_hits, figures(&client).replies), (0, 3));
    });
}
