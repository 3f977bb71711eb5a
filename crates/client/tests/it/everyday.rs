//! Normal operation: replies, shared connections, databases, sockets, passwords.

use std::sync::Arc;

use sluicegate_client::{Address, Auth, Client, Options};
use sluicegate_testkit::RedisServer;
use sluicegate_wire::engine::{Engine, Failed};
use sluicegate_wire::reply::Reply;
use tokio::task::JoinSet;

use crate::support::{ask, ask_in, bulk, error, figures, info, patient, patiently, worker};

#[test]
fn replies_are_those_of_resp3() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        assert_eq!(ask(&client, "GET k").await, bulk("v"));
        assert_eq!(ask(&client, "GET none").await, Reply::Null);
        assert_eq!(ask(&client, "HSET h f 1").await, Reply::Integer(1));
        assert_eq!(ask(&client, "HGETALL h").await, Reply::Map(vec![(bulk("f"), bulk("1"))]));
        assert_eq!(ask(&client, "ZADD z 1.5 m").await, Reply::Integer(1));
        assert_eq!(ask(&client, "ZSCORE z m").await, Reply::Double(1.5));
        assert_eq!(error(ask(&client, "INCR k").await), "ERR value is not an integer or out of range");
        let refused = error(ask(&client, "MULTI").await);
        assert!(refused.starts_with("ERR MULTI is not allowed here"), "{refused}");
        // The engine does not reply to this command, so the next command's reply would be taken for its reply.
        let refused = error(ask(&client, "REPLCONF ACK 1").await);
        assert!(refused.starts_with("ERR REPLCONF is not allowed here"), "{refused}");
        let refused = error(ask(&client, "CLIENT GETNAME").await);
        assert!(refused.starts_with("ERR this CLIENT command is not allowed here"), "{refused}");
        assert!(is_named(ask(&client, "CLIENT LIST").await));
        assert_eq!(figures(&client).connects, 1);
    });
}

#[test]
fn an_engine_without_hello_is_spoken_to_in_resp2() {
    let server = RedisServer::start(&["--rename-command", "HELLO", "", "--requirepass", "secret"]);
    let auth = Auth { user: None, password: "secret".into() };
    let client = Client::new(Options { auth: Some(auth), ..patient(server.port) });
    worker(async {
        assert_eq!(ask(&client, "HSET h f 1").await, Reply::Integer(1));
        assert_eq!(ask(&client, "HGETALL h").await, Reply::Array(vec![bulk("f"), bulk("1")]));
        assert!(is_named(ask(&client, "CLIENT LIST").await));
    });
}

/// Returns whether a list of clients has one with the section's name.
fn is_named(list: Reply) -> bool {
    let (Reply::Bulk(text) | Reply::Verbatim(_, text)) = list else { panic!("{list:?}") };
    String::from_utf8_lossy(&text).contains(" name=sessions ")
}

#[test]
fn commands_of_a_worker_share_a_connection_and_its_writes() {
    const TASKS: u64 = 200;
    const EACH: u64 = 50;
    let server = RedisServer::start(&[]);
    let client = Arc::new(Client::new(patient(server.port)));
    let before = info(&server, "total_reads_processed");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                worker(async {
                    let mut tasks = JoinSet::new();
                    for _ in 0..TASKS {
                        let client = client.clone();
                        tasks.spawn(async move {
                            for _ in 0..EACH {
                                assert!(matches!(ask(&client, "INCR hits").await, Reply::Integer(_)));
                            }
                        });
                    }
                    while let Some(result) = tasks.join_next().await {
                        result.expect("no panic");
                    }
                });
            });
        }
    });
    let seen = figures(&client);
    assert_eq!((seen.connects, seen.replies), (2, 2 * TASKS * EACH));
    assert_eq!((seen.queued, seen.in_flight), (0, 0));
    // The commands of a worker's tasks are written together, so the server reads many at once.
    let reads = info(&server, "total_reads_processed") - before;
    assert!(reads * 10 < 2 * TASKS * EACH, "{reads} reads for {} commands", 2 * TASKS * EACH);
    let own = Client::new(patient(server.port));
    worker(async { assert_eq!(ask(&own, "GET hits").await, bulk(&(2 * TASKS * EACH).to_string())) });
}

#[test]
fn databases_have_connections_of_their_own() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { db: 2, maxconn: 2, ..patient(server.port) });
    worker(async {
        ask(&client, "SET k two").await;
        ask_in(&client, 3, "SET k three").await;
        assert_eq!(ask(&client, "GET k").await, bulk("two"));
        assert_eq!(ask_in(&client, 3, "GET k").await, bulk("three"));
        let refused = error(ask_in(&client, 4, "GET k").await);
        assert_eq!(refused, "ERR maxconn 2 leaves no connection for database 4");
        assert_eq!(figures(&client).connected, 2);
    });
}

#[test]
fn a_script_is_sent_once_and_again_when_the_engine_has_lost_it() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    worker(async {
        const DIGEST: &str = "9f3d3f1b2d7c4f4e9c1b0b1de7a0c4a6d9b1c7f0";
        let calls = |name: &str| {
            let line = format!("cmdstat_{name}:calls=");
            let own = Client::new(Options { name: "observer".into(), ..patient(server.port) });
            async move {
                let (Reply::Bulk(text) | Reply::Verbatim(_, text)) = ask(&own, "INFO commandstats").await else {
                    panic!("INFO is text")
                };
                let text = String::from_utf8(text).expect("INFO is text");
                let count = text.lines().find_map(|text| text.strip_prefix(&*line)?.split(',').next()?.parse().ok());
                count.unwrap_or(0)
            }
        };
        for round in 1..=3 {
            let reply = ask(&client, "EVAL return{KEYS[1],ARGV[1]} 1 k v").await;
            assert_eq!(reply, Reply::Array(vec![bulk("k"), bulk("v")]), "round {round}");
        }
        assert_eq!((calls("eval").await, calls("evalsha").await), (1, 2));
        ask(&client, "SCRIPT FLUSH").await;
        assert_eq!(ask(&client, "eval return{KEYS[1],ARGV[1]} 1 k w").await, Reply::Array(vec![bulk("k"), bulk("w")]));
        assert_eq!((calls("eval").await, calls("evalsha").await), (2, 3));
        // A script that was loaded or sent can be called by its digest from any caller.
        let Reply::Bulk(digest) = ask(&client, "SCRIPT LOAD return(ARGV[1])").await else { panic!("a digest") };
        let digest = String::from_utf8(digest).expect("a digest is text");
        ask(&client, "SCRIPT FLUSH").await;
        assert_eq!(ask(&client, &format!("EVALSHA {} 0 x", digest.to_uppercase())).await, bulk("x"));
        assert_eq!(ask(&client, &format!("EVALSHA_RO {digest} 0 y")).await, bulk("y"));
        assert!(error(ask(&client, &format!("EVALSHA {DIGEST} 0")).await).starts_with("NOSCRIPT"));
    });
}

#[test]
fn a_unix_socket_serves_as_well() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("redis.sock");
    let _server = RedisServer::start(&["--unixsocket", path.to_str().expect("ASCII")]);
    let client = Client::new(Options { servers: vec![Address::Unix(path)], ..patient(0) });
    worker(async { assert_eq!(ask(&client, "INCR k").await, Reply::Integer(1)) });
}

#[test]
fn passwords_and_users_are_sent_and_never_shown() {
    let server = RedisServer::start(&["--requirepass", "secret", "--user", "bob", "on", ">hidden", "~b:*", "+@all"]);
    let with = |user: Option<&str>, password: &str| {
        let auth = Auth { user: user.map(str::to_owned), password: password.into() };
        Client::new(Options { auth: Some(auth), ..patient(server.port) })
    };
    worker(async {
        assert_eq!(ask(&with(None, "secret"), "INCR k").await, Reply::Integer(1));
        let bob = with(Some("bob"), "hidden");
        assert_eq!(ask(&bob, "INCR b:k").await, Reply::Integer(1));
        assert!(error(ask(&bob, "INCR k").await).starts_with("NOPERM"));
        assert!(!format!("{:?}", bob.options()).contains("hidden"));
    });
}

#[test]
fn names_are_looked_up() {
    let server = RedisServer::start(&[]);
    let client = Client::new(Options { servers: vec![Address::Tcp("localhost".into(), server.port)], ..patient(0) });
    worker(async { assert_eq!(ask(&client, "PING").await, Reply::Simple("PONG".into())) });
}

#[test]
fn commands_whose_replies_nobody_waits_for_tell_their_errors() {
    let server = RedisServer::start(&[]);
    let client = Client::new(patient(server.port));
    let (sender, mut errors) = tokio::sync::mpsc::unbounded_channel();
    let failed: Failed = Arc::new(move |text: &str| drop(sender.send(text.to_owned())));
    let forget = |command: &str| {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        client.forget(&String::new, 0, &words, &failed)
    };
    patiently(async {
        for _ in 0..100 {
            assert!(forget("INCR n").is_none());
        }
        // Commands with ignored replies are executed in order with those whose replies are awaited.
        assert_eq!(ask(&client, "GET n").await, bulk("100"));
        assert!(forget("HGET n f").is_none());
        let told = errors.recv().await.expect("it is told");
        assert!(told.starts_with("WRONGTYPE "), "{told}");
        // A command that may have to be retried, waits, or is refused must be awaited by its caller.
        assert_eq!(ask(&client, "EVAL return{1} 0").await, Reply::Array(vec![Reply::Integer(1)]));
        let again = forget("EVAL return{1} 0").expect("a script").finish().await;
        assert_eq!(again, Reply::Array(vec![Reply::Integer(1)]));
        let blocked = forget("BLPOP none 0.01").expect("a connection of its own").finish().await;
        assert_eq!(blocked, Reply::Null);
        assert!(error(forget("MULTI").expect("refused").finish().await).starts_with("ERR MULTI is not allowed here"));
        let figures = figures(&client);
        assert_eq!((figures.queued, figures.in_flight, figures.engine_errors), (0, 0, 1));
        // A failure is also reported for a command that was sent and lost.
        assert!(forget("SHUTDOWN NOSAVE").is_none());
        assert!(forget("INCR n").is_none());
        for _ in 0..2 {
            let told = errors.recv().await.expect("it is told");
            assert!(told.starts_with("CONNLOST "), "{told}");
        }
    });
    drop(server);
}
