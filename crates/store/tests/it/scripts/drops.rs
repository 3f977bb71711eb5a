//! Callers that are dropped at every await of a script: the script never begins, or it runs to its end. No key stays
//! held, no script is half done, and the clients behind it are served.
//!
//! A caller is the future of a command, or a whole connection on a runtime of its own, which is dropped at its current
//! await when the runtime ends. Each is dropped after 0, 1, 2… polls, and the event that it waits for occurs before the
//! first poll, after the drop, or after any poll in between.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::server::Server;
use sluicegate_store::{Caller, Section, Store, StoreOptions};
use sluicegate_testkit::{encode, wait_for};
use tokio::runtime::LocalRuntime;

use crate::drops::{Task, hold};
use crate::{ask, start};

/// The sum of the two accounts.
const SUM: i64 = 200;

/// The maximum number of polls of a command's future, after which it is complete.
const POLLS: usize = 7;
/// The maximum number of polls of a connection, which also reads, writes, and checks whether its client is connected.
const POLLS_CONNECTED: usize = 10;

/// Moves 1 from the first account to the second.
const TRANSFER: &str = "redis.call('DECR', KEYS[1]) redis.call('INCR', KEYS[2]) return 'moved'";
/// Like [`TRANSFER`], but the second account is not declared.
const UNDECLARED: &str = "redis.call('DECR', KEYS[1]) redis.call('INCR', 'b') return 'moved'";
/// Has not written when it needs the second account.
const CAREFUL: &str = "redis.call('GET', KEYS[1]) redis.call('INCR', 'b') redis.call('DECR', KEYS[1]) return 'moved'";
/// Loops until there are four keys, and is soon moved to a script thread.
const TURNS: &str = "redis.call('DECR', KEYS[1]) repeat until redis.call('DBSIZE') == 4 \
                     redis.call('INCR', KEYS[2]) return 'moved'";
/// Needs all keys while it holds one.
const EVERYTHING: &str =
    "redis.call('DECR', KEYS[1]) redis.call('KEYS', 'none') redis.call('INCR', 'b') return 'moved'";
/// Is atomic from the lock on.
const LOCKS: &str = "--!df flags=disable-atomicity\n\
                     dragonfly.lock(KEYS[1], KEYS[2]) redis.call('DECR', KEYS[1]) redis.call('INCR', KEYS[2]) return 'moved'";
/// Is not atomic, and still runs to its end: both commands wait for a held key.
const ALONE: &str = "--!df flags=disable-atomicity\n\
                     redis.call('INCR', KEYS[2]) redis.call('DECR', KEYS[1]) return 'moved'";
const LIBRARY: &str = "#!lua name=accounts\nredis.register_function('transfer', function(keys) \
                       redis.call('DECR', keys[1]) redis.call('INCR', 'b') return 'moved' end)";

/// The event that the caller waits for.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// The release of the key `b`, which a section holds.
    Free,
    /// The creation of a fourth key.
    Made,
}

/// One call: its name, its words, and the event that it waits for.
type Operation = (&'static str, &'static [&'static str], Until);

/// The digest of [`UNDECLARED`] is known only when it has been loaded.
const SHA: &str = "its digest";

const OPERATIONS: &[Operation] = &[
    ("declared", &["EVAL", TRANSFER, "2", "a", "b"], Until::Free),
    ("undeclared", &["EVAL", UNDECLARED, "1", "a"], Until::Free),
    ("undeclared, by its digest", &["EVALSHA", SHA, "1", "a"], Until::Free),
    ("a function", &["FCALL", "transfer", "1", "a"], Until::Free),
    ("undeclared, nothing written", &["EVAL", CAREFUL, "1", "a"], Until::Free),
    ("moved", &["EVAL", TURNS, "2", "a", "b"], Until::Made),
    ("everything", &["EVAL", EVERYTHING, "1", "a"], Until::Free),
    ("a lock", &["EVAL", LOCKS, "2", "a", "b"], Until::Free),
    ("not atomic", &["EVAL", ALONE, "2", "a", "b"], Until::Free),
];

/// The operations within a transaction that itself adds to an account and subtracts from it.
const IN_EXEC: &[Operation] = &[
    ("declared in EXEC", &["EVAL", TRANSFER, "2", "a", "b"], Until::Free),
    ("undeclared in EXEC", &["EVAL", UNDECLARED, "1", "a"], Until::Free),
    ("by its digest in EXEC", &["EVALSHA", SHA, "1", "a"], Until::Free),
    ("a function in EXEC", &["FCALL", "transfer", "1", "a"], Until::Free),
    ("moved in EXEC", &["EVAL", TURNS, "2", "a", "b"], Until::Made),
    ("everything in EXEC", &["EVAL", EVERYTHING, "1", "a"], Until::Free),
];

/// Returns a store with two accounts, a counter, and the keys that the operations need.
fn store() -> (Store, String) {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    ask(&store, "MSET a 100 b 100 count 0");
    assert_eq!(task(&store, &["FUNCTION", "LOAD", LIBRARY]).end("the library"), b"$8\r\naccounts\r\n");
    let loaded = task(&store, &["SCRIPT", "LOAD", UNDECLARED]).end("the script");
    let sha = String::from_utf8_lossy(&loaded[5..45]).into_owned();
    (store, sha)
}

/// The caller.
enum Calling {
    Command(Task),
    Connection(Box<Connected>),
}

/// A connection on a runtime of its own.
struct Connected {
    runtime: LocalRuntime,
    server: Arc<Server>,
    client: UnixStream,
    received: Vec<u8>,
}

impl Connected {
    fn new(store: &Store, sent: &[u8]) -> Connected {
        let server = Server::new(store.clone(), ServerOptions::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(Default::default())
            .expect("a runtime");
        let (connecting, worker) = (server.clone(), &runtime);
        let mut client = worker.block_on(async move { connecting.connect() }).expect("a pair of sockets");
        client.set_nonblocking(true).expect("it may");
        client.write_all(sent).expect("it is little");
        Connected { runtime, server, client, received: Vec::new() }
    }

    /// Polls the woken tasks once; returns whether the connection has answered everything.
    fn turn(&mut self) -> bool {
        self.runtime.block_on(tokio::task::yield_now());
        let mut bytes = [0; 4096];
        match self.client.read(&mut bytes) {
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        self.received.windows(5).any(|seen| seen == b"moved")
    }
}

impl Calling {
    fn turn(&mut self) -> bool {
        match self {
            Calling::Command(task) => task.turn(),
            Calling::Connection(connected) => connected.turn(),
        }
    }

    /// Drops the connection at its current await, and returns the replies that it has sent.
    fn leave(self) -> Vec<u8> {
        match self {
            Calling::Command(task) => task.reply.unwrap_or_default(),
            Calling::Connection(connected) => {
                let Connected { runtime, server, received, .. } = *connected;
                drop(runtime);
                assert_eq!(server.client_count(), 0);
                received
            }
        }
    }
}

/// Returns a command as a task, which has ended if the command was completed at once.
fn task(store: &Store, words: &[&str]) -> Task {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    match start(store, &mut Caller::default(), &words) {
        Ok(reply) => Task::new(std::future::ready(reply)),
        Err(parked) => Task::new(parked),
    }
}

/// How an operation is called.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Through {
    Command,
    Connection,
    Exec,
}

/// Drops an operation after `polls` polls; the event that it waits for occurs after `comes` of them.
fn drop_after((name, words, until): Operation, through: Through, polls: usize, comes: usize) {
    let what = format!("{name} through {through:?}, dropped after {polls} polls, served after {comes}");
    let (store, sha) = store();
    let words: Vec<&str> = words.iter().map(|word| if *word == SHA { &sha } else { *word }).collect();
    let mut held: Option<Section> = (until == Until::Free).then(|| hold(&store, "b"));
    let mut serve = || match until {
        Until::Free => held = None,
        Until::Made => assert_eq!(ask(&store, "SET made 1"), "+OK\r\n"),
    };
    if comes == 0 {
        serve();
    }
    let mut calling = match through {
        Through::Command => Calling::Command(task(&store, &words)),
        Through::Connection => Calling::Connection(Box::new(Connected::new(&store, &encode(&words)))),
        Through::Exec => {
            let commands: [&[&str]; 5] = [&["MULTI"], &["DECR", "a"], &words, &["INCR", "b"], &["EXEC"]];
            let sent: Vec<u8> = commands.iter().flat_map(|words| encode(words)).collect();
            Calling::Connection(Box::new(Connected::new(&store, &sent)))
        }
    };
    let mut behind = Vec::new();
    for poll in 1..=polls {
        let has_ended = calling.turn();
        if poll == comes {
            serve();
        }
        if poll == 1 {
            behind.push(task(&store, &["EVAL", TRANSFER, "2", "b", "a"]));
            behind.push(task(&store, &["INCR", "a"]));
            behind.push(task(&store, &["DECR", "a"]));
            behind.push(task(&store, &["EVAL", "return redis.call('INCR', 'count')", "1", "count"]));
        }
        for task in &mut behind {
            task.turn();
        }
        if has_ended {
            break;
        }
    }
    let heard = calling.leave();
    let has_ended = heard.windows(5).any(|seen| seen == b"moved");
    assert!(heard.iter().all(|byte| *byte != b'-'), "{what}: {}", heard.escape_ascii());
    if comes > polls {
        serve();
    }
    let count = behind.len();
    // A command may hold keys that another one waits for, so all are polled.
    wait_for(&format!("those behind it to end: {what}"), || {
        let ended = behind.iter_mut().filter_map(|task| task.turn().then_some(())).count();
        (ended == behind.len()).then_some(())
    });
    for reply in behind.iter().filter_map(|task| task.reply.as_ref()) {
        assert_ne!(reply[0], b'-', "{what}: {}", reply.escape_ascii());
    }
    wait_for(&format!("nothing to be left: {what}"), || is_quiet(&store).then_some(()));
    // The transfer was made completely or not at all; if there was a reply, it was made.
    let accounts = ["a", "b"].map(|account| number(&store, account));
    assert_eq!(accounts[0] + accounts[1], SUM, "{what}: {accounts:?}");
    let moved = 100 - accounts[0] + i64::from(count > 0);
    let each = if through == Through::Exec { 2 } else { 1 };
    assert!(moved == each || moved == 0 && !has_ended, "{what}: {accounts:?}");
    assert_eq!(number(&store, "count"), i64::from(count > 0), "{what}");
    // No key is held: these commands complete at once.
    for line in ["MSET a 1 b 2 count 3", "DEL made", "FLUSHALL"] {
        assert_ne!(ask(&store, line).as_bytes()[0], b'-', "{what}");
    }
}

/// Returns whether no key is held, no client waits, and no script runs.
fn is_quiet(store: &Store) -> bool {
    ask(store, "SCRIPT PS") == "*0\r\n" && store.stats().tickets == 0
}

fn number(store: &Store, key: &str) -> i64 {
    let reply = ask(store, &format!("GET {key}"));
    reply.lines().nth(1).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{key}: {reply}"))
}

/// Drops an operation after each of its polls, with the event after each of the polls before, or after the drop.
fn check(operation: Operation, through: Through, polls_max: usize) {
    for polls in 0..=polls_max {
        for comes in 0..=polls + 1 {
            drop_after(operation, through, polls, comes);
        }
    }
}

#[test]
fn calls_are_given_up_at_every_await() {
    OPERATIONS.iter().for_each(|operation| check(*operation, Through::Command, POLLS));
}

#[test]
fn connections_end_at_every_await_of_a_script() {
    OPERATIONS.iter().for_each(|operation| check(*operation, Through::Connection, POLLS_CONNECTED));
}

#[test]
fn connections_end_at_every_await_of_a_transaction_with_a_script() {
    IN_EXEC.iter().for_each(|operation| check(*operation, Through::Exec, POLLS_CONNECTED));
}

/// The caller of a restarted script is dropped: the script holds no key yet, or all of its keys.
#[test]
fn one_that_begins_anew_is_given_up_at_every_await() {
    for polls in 0..6 {
        let (store, _) = store();
        // The first script holds `a` and will wait for `b`, which the second one holds when it needs `a`.
        let gate = hold(&store, "gate");
        let mut first = task(
            &store,
            &[
                "EVAL",
                "redis.call('DECR', 'a') redis.call('GET', 'gate') redis.call('INCR', 'b') return 'moved'",
                "1",
                "a",
            ],
        );
        let mut second = task(
            &store,
            &[
                "EVAL",
                "redis.call('GET', KEYS[1]) redis.call('GET', 'a') redis.call('DECR', 'a') redis.call('INCR', KEYS[1]) return 'moved'",
                "1",
                "b",
            ],
        );
        assert!(!first.turn() && !second.turn());
        drop(gate);
        (0..polls).for_each(|_| {
            first.turn();
            second.turn();
        });
        drop(second);
        assert_eq!(first.end("the first of a circle"), b"$5\r\nmoved\r\n");
        wait_for("nothing to be left", || is_quiet(&store).then_some(()));
        let accounts = ["a", "b"].map(|account| number(&store, account));
        assert!(accounts == [99, 101] || accounts == [98, 102], "{accounts:?} after {polls}");
        assert_eq!(ask(&store, "FLUSHALL"), "+OK\r\n");
    }
}
