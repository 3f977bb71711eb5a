//! Dedicated connections: blocking commands, transactions, channels.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_client::{Client, Options};
use sluicegate_testkit::RedisServer;
use sluicegate_wire::engine::{Engine, Own};
use sluicegate_wire::reply::Reply;
use tokio::task::JoinSet;

use crate::support::{ask, bulk, error, figures, patient, patiently, worker};

/// Returns a dedicated connection.
pub fn own(client: &Client) -> Box<dyn Own> {
    client.own(0).expect("an engine has them")
}

/// Sends commands together on a dedicated connection; returns their replies.
pub async fn together(own: &mut dyn Own, commands: &[&str]) -> Reply {
    let words: Vec<Vec<&[u8]>> = commands.iter().map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
    let commands: Vec<&[&[u8]]> = words.iter().map(Vec::as_slice).collect();
    own.start(&commands).await
}

/// Sends a command on a dedicated connection; returns its reply.
pub async fn on(own: &mut dyn Own, command: &str) -> Reply {
    match together(own, &[command]).await {
        Reply::Array(mut replies) => replies.remove(0),
        reply => reply,
    }
}

pub fn ok() -> Reply {
    Reply::Simple("OK".into())
}

/// Waits until a command has a reply that satisfies `fits`.
async fn until(client: &Client, command: &str, fits: impl Fn(&Reply) -> bool) {
    let looking = async {
        while !fits(&ask(client, command).await) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking).await.expect("it happens");
}

fn clients(count: usize) -> impl Fn(&Reply) -> bool {
    move |reply| match reply {
        Reply::Bulk(text) | Reply::Verbatim(_, text) => {
            String::from_utf8_lossy(text).matches("name=sessions").count() == count
        }
        _ => false,
    }
}

#[test]
fn a_command_that_waits_for_others_delays_nobody() {
    let server = RedisServer::start(&[]);
    let client = Arc::new(Client::new(patient(server.port)));
    let observer = Client::new(Options { name: "observer".into(), ..patient(server.port) });
    worker(async {
        let popping = tokio::spawn({
            let client = client.clone();
            async move { ask(&client, "BLPOP l 0").await }
        });
        until(&observer, "INFO clients", |reply| {
            let (Reply::Bulk(text) | Reply::Verbatim(_, text)) = reply else { return false };
            String::from_utf8_lossy(text).contains("blocked_clients:1")
        })
        .await;
        assert_eq!(ask(&client, "INCR k").await, Reply::Integer(1));
        assert_eq!(ask(&client, "RPUSH l v").await, Reply::Integer(1));
        assert_eq!(popping.await.expect("no panic"), Reply::Array(vec![bulk("l"), bulk("v")]));
        // The same connection serves the next command.
        assert_eq!(ask(&client, "XREAD BLOCK 5 STREAMS s $").await, Reply::Null);
        assert_eq!(figures(&client).connects, 2);
    });
}

#[test]
fn who_stops_waiting_takes_nothing() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    let observer = Client::new(Options { name: "observer".into(), ..patient(server.port) });
    worker(async {
        let popping = ask(&client, "BLPOP l 0");
        let given_up = tokio::select! {
            _ = popping => false,
            () = until(&observer, "CLIENT LIST", |reply| match reply {
                Reply::Bulk(text) | Reply::Verbatim(_, text) => String::from_utf8_lossy(text).contains("cmd=blpop"),
                _ => false,
            }) => true,
        };
        assert!(given_up);
        until(&observer, "CLIENT LIST", clients(0)).await;
        assert_eq!(ask(&client, "RPUSH l v").await, Reply::Integer(1));
        assert_eq!(ask(&client, "LLEN l").await, Reply::Integer(1));
        assert_eq!(figures(&client).connected, 1);
    });
}

#[test]
fn transactions_watch_and_leave_clean_connections() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { maxconn: 2, ..patient(server.port) });
    worker(async {
        let mut first = own(&client);
        assert_eq!(on(&mut *first, "WATCH k").await, ok());
        let id = on(&mut *first, "CLIENT ID").await;
        assert_eq!(on(&mut *first, "GET k").await, Reply::Null);
        assert_eq!(ask(&client, "SET k other").await, ok());
        let replies = together(&mut *first, &["MULTI", "SET k mine", "EXEC"]).await;
        assert_eq!(replies, Reply::Array(vec![ok(), Reply::Simple("QUEUED".into()), Reply::Null]));
        // The connection is dropped in the middle of a transaction, with a watched key.
        assert_eq!(on(&mut *first, "WATCH k").await, ok());
        assert_eq!(on(&mut *first, "MULTI").await, ok());
        drop(first);
        // The same connection is used again once it is clean: there is no other.
        let mut second = own(&client);
        assert_eq!(on(&mut *second, "CLIENT ID").await, id);
        assert_eq!(on(&mut *second, "GET k").await, bulk("other"));
        drop(second);
        let mut third = own(&client);
        let refused = error(on(&mut *third, "SUBSCRIBE c").await);
        assert!(refused.starts_with("ERR SUBSCRIBE is not allowed here"), "{refused}");
        assert_eq!(together(&mut *third, &["SET k 1", "WAIT 0 10"]).await, Reply::Array(vec![ok(), Reply::Integer(0)]));
    });
}

#[test]
fn they_count_in_the_cap_and_are_waited_for_in_order() {
    let server = RedisServer::start(&[]);
    // One of the two connections is left to commands that do not block.
    let client = Arc::new(Client::new(Options { maxconn: 2, ..patient(server.port) }));
    worker(async {
        assert_eq!(ask(&client, "PING").await, Reply::Simple("PONG".into()));
        let mut held = own(&client);
        on(&mut *held, "PING").await;
        assert_eq!(figures(&client).connected, 2);
        let mut waiting = JoinSet::new();
        for number in 0..10 {
            let mut mine = own(&client);
            let queued = figures(&client).queued;
            waiting.spawn(async move { (number, on(&mut *mine, "INCR turn").await) });
            while figures(&client).queued == queued {
                tokio::task::yield_now().await;
            }
        }
        drop(held);
        let mut turns = waiting.join_all().await;
        turns.sort_by_key(|(number, _)| *number);
        let expected: Vec<_> = (0..10).map(|number| (number, Reply::Integer(number + 1))).collect();
        assert_eq!(turns, expected);
        assert_eq!(figures(&client).connects, 2);
        // An idle connection is replaced by one for a database that has none yet.
        assert_eq!(crate::support::ask_in(&client, 1, "PING").await, Reply::Simple("PONG".into()));
        assert_eq!(figures(&client).connected, 2);
    });
}

#[test]
fn waiting_is_bounded_and_told() {
    let server = RedisServer::start(&["--enable-debug-command", "yes"]);
    let seconds = Duration::from_secs(3);
    let bounds = Options { timeout_queue: seconds, timeout_server: seconds, ..patient(server.port) };
    let client = Client::new(Options { maxconn: 1, maxqueue: 1, ..bounds });
    worker(async {
        let mut held = own(&client);
        on(&mut *held, "PING").await;
        let (mut one, mut two) = (own(&client), own(&client));
        let (first, second) = tokio::join!(on(&mut *one, "PING"), on(&mut *two, "PING"));
        assert!(error(first).starts_with("QUEUETIMEOUT"));
        assert!(error(second).starts_with("QUEUEFULL"));
        assert!(error(on(&mut *held, "DEBUG SLEEP 30").await).starts_with("TIMEOUT"));
        assert!(error(on(&mut *held, "PING").await).starts_with("CONNLOST"));
    });
}

#[test]
fn what_died_at_rest_is_not_used() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    let observer = Client::new(Options { name: "observer".into(), ..patient(server.port) });
    worker(async {
        let mut first = own(&client);
        let Reply::Integer(id) = on(&mut *first, "CLIENT ID").await else { panic!("a number") };
        drop(first);
        assert_eq!(ask(&observer, &format!("CLIENT KILL ID {id}")).await, Reply::Integer(1));
        until(&observer, "CLIENT LIST", clients(0)).await;
        let mut second = own(&client);
        assert_eq!(on(&mut *second, "INCR k").await, Reply::Integer(1));
        // A connection that dies in use returns an error, and the idle ones are closed with it.
        let mut third = own(&client);
        let Reply::Integer(id) = on(&mut *third, "CLIENT ID").await else { panic!("a number") };
        drop(second);
        assert_eq!(ask(&observer, &format!("CLIENT KILL ID {id}")).await, Reply::Integer(1));
        assert!(error(on(&mut *third, "INCR k").await).starts_with("CONNLOST"));
        let mut fourth = own(&client);
        assert_eq!(on(&mut *fourth, "INCR k").await, Reply::Integer(2));
        assert_eq!(figures(&client).connected, 1);
    });
}

#[test]
fn channels_are_listened_to() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    let observer = Client::new(Options { name: "observer".into(), ..patient(server.port) });
    let text = |reply: Reply| match reply {
        Reply::Push(items) | Reply::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Reply::Bulk(text) => String::from_utf8(text).expect("text"),
                item => format!("{item:?}"),
            })
            .collect::<Vec<_>>()
            .join(" "),
        reply => format!("{reply:?}"),
    };
    worker(async {
        let mut listener = own(&client);
        assert_eq!(listener.subscribe(false, &[b"a", b"b"]).await, ok());
        assert_eq!(listener.subscribe(true, &[b"p*"]).await, ok());
        for (channel, word) in [("a", "one"), ("px", "two"), ("b", "three"), ("c", "unheard")] {
            ask(&observer, &format!("PUBLISH {channel} {word}")).await;
        }
        assert_eq!(text(listener.message(None).await), "message a one");
        assert_eq!(text(listener.message(None).await), "pmessage p* px two");
        assert_eq!(text(listener.message(None).await), "message b three");
        assert_eq!(listener.message(Some(Duration::from_millis(10))).await, Reply::Null);
        ask(&observer, "PUBLISH a again").await;
        assert_eq!(text(listener.message(None).await), "message a again");
        ask(&observer, "CLIENT KILL TYPE pubsub").await;
        assert!(error(listener.message(None).await).starts_with("CONNLOST"));
        // A connection with subscriptions is not reused.
        let mut listener = own(&client);
        assert_eq!(listener.subscribe(false, &[b"a"]).await, ok());
        drop(listener);
        until(&observer, "PUBSUB NUMSUB a", |reply| *reply == Reply::Array(vec![bulk("a"), Reply::Integer(0)])).await;
    });
}

/// State that a refused EXEC or DISCARD leaves on a connection does not affect its next user.
#[test]
fn what_an_error_leaves_open_is_cleaned() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { maxconn: 2, ..patient(server.port) });
    worker(async {
        let mut first = own(&client);
        let id = on(&mut *first, "CLIENT ID").await;
        for end in ["EXEC", "DISCARD"] {
            assert_eq!(on(&mut *first, "WATCH k").await, ok());
            assert_eq!(error(on(&mut *first, end).await), format!("ERR {end} without MULTI"));
            drop(first);
            assert!(matches!(ask(&client, "INCR k").await, Reply::Integer(_)));
            first = own(&client);
            let Reply::Array(replies) = together(&mut *first, &["MULTI", "GET none", "EXEC"]).await else {
                panic!("no replies")
            };
            assert_eq!(replies[2], Reply::Array(vec![Reply::Null]), "{end}");
        }
        for end in ["EXEC now", "DISCARD now"] {
            assert_eq!(on(&mut *first, "MULTI").await, ok());
            error(on(&mut *first, end).await);
            drop(first);
            first = own(&client);
            assert_eq!(on(&mut *first, "EXISTS k").await, Reply::Integer(1), "{end}");
        }
        // It was the same connection each time.
        assert_eq!(on(&mut *first, "CLIENT ID").await, id);
        let nothing = error(own(&client).subscribe(false, &[]).await);
        assert_eq!(nothing, "ERR SUBSCRIBE without a channel");
    });
}

/// Idle connections are closed by the workers that use them, even if the first of these workers is gone.
#[test]
fn what_rests_ends_when_its_worker_is_gone() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { timeout_idle: Some(Duration::from_millis(50)), ..patient(server.port) });
    worker(async { assert_eq!(on(&mut *own(&client), "PING").await, Reply::Simple("PONG".into())) });
    patiently(async {
        assert_eq!(on(&mut *own(&client), "PING").await, Reply::Simple("PONG".into()));
        assert_eq!(figures(&client).connected, 1);
        while figures(&client).connected > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
