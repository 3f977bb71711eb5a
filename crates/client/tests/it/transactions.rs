//! Transactions over shared connections.

use std::time::Duration;

use sluicegate_client::{Client, Options};
use sluicegate_testkit::RedisServer;
use sluicegate_wire::engine::Engine;
use sluicegate_wire::reply::Reply;

use crate::own::ok;
use crate::support::{ask, ask_in, bulk, error, figures, patient, worker};

/// Runs commands as a transaction on a shared connection.
pub async fn shared(client: &Client, db: u32, commands: &[&str]) -> Reply {
    let words: Vec<Vec<&[u8]>> = commands.iter().map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
    let commands: Vec<&[&[u8]]> = words.iter().map(Vec::as_slice).collect();
    client.together(&String::new, db, &commands).expect("they need no connection of their own").finish().await
}

#[test]
fn transactions_share_the_connection_and_nobody_comes_between() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    worker(async {
        assert_eq!(shared(&client, 0, &["SET n 0", "GET none", "LPUSH n x"]).await, {
            let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
            Reply::Array(vec![ok(), Reply::Null, Reply::Error(wrong.into())])
        });
        let transaction = async || {
            for _ in 0..50 {
                let Reply::Array(replies) = shared(&client, 0, &["GET n", "INCR n", "INCR n"]).await else {
                    panic!("it was refused")
                };
                let Reply::Bulk(before) = &replies[0] else { panic!("{replies:?}") };
                let before: i64 = String::from_utf8_lossy(before).parse().expect("a number");
                assert_eq!(replies[1..], [Reply::Integer(before + 1), Reply::Integer(before + 2)]);
            }
        };
        let single = async || {
            for _ in 0..50 {
                assert!(matches!(ask(&client, "INCR n").await, Reply::Integer(_)));
            }
        };
        tokio::join!(transaction(), single(), transaction(), single(), transaction(), single());
        assert_eq!(ask(&client, "GET n").await, bulk("450"));
        // Another database, and more than is sent at once.
        let long = "x".repeat(100);
        let many: Vec<String> = (0..5000).map(|number| format!("SET {number} {long}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(shared(&client, 2, &many).await, Reply::Array(vec![ok(); 5000]));
        assert_eq!(ask_in(&client, 2, "DBSIZE").await, Reply::Integer(5000));
        assert_eq!((figures(&client).connects, figures(&client).in_flight), (2, 0));
    });
}

#[test]
fn what_is_refused_is_told_and_nothing_was_done() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    worker(async {
        let refused = error(shared(&client, 0, &["SET k 1", "SET k", "NOPE"]).await);
        assert_eq!(refused, "ERR wrong number of arguments for 'set' command");
        assert_eq!(ask(&client, "EXISTS k").await, Reply::Integer(0));
        // Commands that change a connection's state are refused on a shared one.
        for other in [&[&b"WATCH"[..], b"k"][..], &[b"EXEC"], &[b"SELECT", b"1"], &[b"SUBSCRIBE", b"c"], &[]] {
            assert!(client.together(&String::new, 0, &[&[b"GET", b"k"], other]).is_none());
        }
        // A script is sent in full in case the engine has lost it, since a transaction cannot be retried.
        let digest = match ask(&client, "SCRIPT LOAD return(1)").await {
            Reply::Bulk(digest) => String::from_utf8(digest).expect("hex"),
            reply => panic!("{reply:?}"),
        };
        assert_eq!(ask(&client, "SCRIPT FLUSH").await, ok());
        let call = format!("EVALSHA {digest} 0");
        assert_eq!(
            shared(&client, 0, &[&call, "EVAL return(2) 0", "GET k"]).await,
            Reply::Array(vec![Reply::Integer(1), Reply::Integer(2), Reply::Null])
        );
        let unknown = "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0";
        let replies = shared(&client, 0, &[unknown, "INCR k"]).await;
        let Reply::Array(replies) = replies else { panic!("{replies:?}") };
        assert!(error(replies[0].clone()).starts_with("NOSCRIPT"), "{replies:?}");
        assert_eq!(replies[1], Reply::Integer(1));
    });
}

#[test]
fn a_transaction_that_may_have_been_done_is_not_repeated() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    let hasty = Client::new(Options { timeout_server: Duration::from_millis(300), ..patient(server.port) });
    worker(async {
        assert_eq!(ask(&client, "SET k 0").await, ok());
        // The transaction ends its own connection at its end; later commands were not sent yet, or are reads.
        let ends = ["INCR k", "CLIENT KILL TYPE normal SKIPME no", "INCR k"];
        let (lost, queued) = tokio::join!(shared(&client, 0, &ends), ask(&client, "EXISTS k"));
        assert!(matches!(&lost, Reply::Array(_)) || error(lost).starts_with("CONNLOST"));
        assert_eq!(queued, Reply::Integer(1));
        assert_eq!(ask(&client, "GET k").await, bulk("2"));
        while ask(&hasty, "GET k").await != bulk("2") {}
        server.program.signal(libc::SIGSTOP);
        let late = error(shared(&hasty, 0, &["INCR k"]).await);
        assert!(late.starts_with("TIMEOUT"), "{late}");
        server.program.signal(libc::SIGCONT);
        // The delayed command is executed once, when the engine gets to it.
        while ask(&client, "GET k").await != bulk("3") {}
        assert_eq!(shared(&client, 0, &["GET k"]).await, Reply::Array(vec![bulk("3")]));
        assert_eq!((figures(&client).in_flight, figures(&hasty).in_flight), (0, 0));
    });
}
