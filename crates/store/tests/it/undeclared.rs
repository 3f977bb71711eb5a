//! SORT with keys that its words do not name, concurrent with commands that hold or change them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Mode, Parked, Store, StoreOptions};
use sluicegate_testkit::{RedisServer, wait_for};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use crate::server::check_alike;
use crate::support::Running;
use crate::{ask, block_on, start};

fn store() -> Store {
    // Waiting commands can be overtaken by later ones, whatever the machine's speed.
    let store = Store::new(StoreOptions { stripes: 8, overtaken_for: Duration::MAX, ..StoreOptions::default() });
    ask(&store, "RPUSH l 1 2 3");
    ask(&store, "MSET w_1 3 w_2 1 w_3 2 o_1 a o_2 b o_3 c");
    store
}

fn begin(store: &Store, command: &str) -> Result<Vec<u8>, Parked> {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words)
}

fn hold(store: &Store, key: &str) -> sluicegate_store::Section {
    block_on(store.section([(0, key.as_bytes(), Mode::Exclusive)])).expect("a free key")
}

fn is_waiting(parked: &mut Parked) -> bool {
    Pin::new(parked).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

const SORTED: &[u8] = b"*3\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n1\r\n";

#[test]
fn it_waits_for_a_weight_that_is_held_and_sees_what_came_of_it() {
    let store = store();
    for key in ["w_2", "l"] {
        ask(&store, "SET w_2 1");
        let section = hold(&store, key);
        let mut parked = begin(&store, "SORT l BY w_*").expect_err("it waits");
        assert!(is_waiting(&mut parked));
        // Others are not kept from keys that the command does not hold yet.
        assert_eq!(ask(&store, "GET w_1"), "$1\r\n3\r\n");
        drop(section);
        assert_eq!(block_on(parked), SORTED);
    }
    let mut section = hold(&store, "w_2");
    let parked = begin(&store, "SORT l BY w_* GET o_*").expect_err("it waits");
    let mut out = sluicegate_wire::resp::ReplyBuilder::new();
    section.execute(0, &[b"SET", b"w_2", b"9"], &mut out).expect("its own key");
    drop(section);
    assert_eq!(block_on(parked), b"*3\r\n$1\r\nc\r\n$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let store = store();
    for key in ["w_2", "l", "o_3"] {
        let section = hold(&store, key);
        let mut parked = begin(&store, "SORT l BY w_* GET o_* STORE d").expect_err("it waits");
        assert!(is_waiting(&mut parked));
        drop(parked);
        drop(section);
        assert_eq!(ask(&store, "EXISTS d"), ":0\r\n");
        assert_eq!(ask(&store, "MSET w_1 3 w_2 1 w_3 2 o_1 a o_2 b o_3 c"), "+OK\r\n");
        assert_eq!(store.stats().tickets, 0);
    }
    assert_eq!(ask(&store, "FLUSHALL"), "+OK\r\n");
}

#[test]
fn rules_and_scripts_get_a_value() {
    let store = store();
    let words: [&[u8]; 6] = [b"SORT", b"l", b"BY", b"w_*", b"GET", b"o_*"];
    let expected = Reply::Array([b"b", b"c", b"a"].map(|text| Reply::Bulk(text.to_vec())).into());
    match Engine::start(&store, 0, &words) {
        Started::Done(reply) => assert_eq!(reply, expected),
        Started::Pending(_) => panic!("it waits"),
    }
    let section = hold(&store, "o_2");
    let Started::Pending(pending) = Engine::start(&store, 0, &words) else { panic!("it does not wait") };
    drop(section);
    assert_eq!(block_on(pending), expected);
}

#[test]
fn a_stored_result_serves_who_waits_for_it() {
    let store = store();
    let parked = begin(&store, "BLPOP d 0").expect_err("it waits");
    assert_eq!(ask(&store, "SORT l BY w_* GET o_* STORE d"), ":3\r\n");
    assert_eq!(block_on(parked), b"*2\r\n$1\r\nd\r\n$1\r\nb\r\n");
    assert_eq!(ask(&store, "LLEN d"), ":2\r\n");
}

/// All values change together, so a reply with two different values would be of two moments.
#[test]
fn what_it_gets_was_there_at_one_moment() {
    let store = Store::new(StoreOptions { stripes: 8, ..StoreOptions::default() });
    ask(&store, "RPUSH l 1 2 3 4 5 6 7 8");
    let all = |n: usize| (1..=8).map(|key| format!(" o_{key} {n}")).collect::<String>();
    ask(&store, &format!("MSET{}", all(0)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 0..3_000 {
                    begin(&store, &format!("MSET{}", all(n))).unwrap_or_else(block_on);
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        for command in ["SORT l GET o_*", "SORT_RO l BY o_* GET o_*", "SORT l BY o_* GET o_* STORE d"] {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let mut reply = begin(store, command).unwrap_or_else(block_on);
                    if command.ends_with(" d") {
                        assert_eq!(reply, b":8\r\n");
                        reply = begin(store, "LRANGE d 0 -1").unwrap_or_else(block_on);
                    }
                    let text = String::from_utf8(reply).expect("text");
                    let values: Vec<&str> = text.lines().skip(2).step_by(2).collect();
                    assert!(values.len() == 8 && values.iter().all(|value| *value == values[0]), "{text}");
                }
            });
        }
    });
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn it_is_part_of_a_transaction() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let script = "RPUSH l 1 2 3\r\nMSET w_1 3 w_2 1 w_3 2\r\nMULTI\r\nSORT l BY w_* GET # GET w_*\r\nSET w_2 9\r\n\
        SORT l BY w_* STORE d\r\nRPUSH l 4\r\nSORT l BY w_* GET w_*\r\nSORT_RO none BY w_*\r\nSORT l BY\r\n\
        SORT l BY w_* JUNK\r\nLRANGE d 0 -1\r\nEXEC\r\nDISCARD\r\nMULTI\r\nSORT l BY w_* GET # STORE d\r\n\
        LRANGE d 0 -1\r\nSELECT 1\r\nSORT l BY w_*\r\nEXEC\r\nSELECT 0\r\nMULTI\r\nFLUSHALL\r\nRPUSH l 2 1\r\n\
        MSET w_1 3 w_2 1\r\nSORT l BY w_*\r\nEXEC\r\nMULTI\r\nSORT l BY w_* GET # GET w_* GET h_*->f\r\n\
        SORT l BY w_* STORE d\r\nSORT none BY w_* STORE e\r\nSORT w_1 BY w_*\r\nSORT_RO l BY w_* STORE d\r\n\
        LRANGE d 0 -1\r\nKEYS d*\r\nSORT d GET w_*\r\nSORT l BY none_* STORE d\r\nFLUSHALL\r\n\
        SORT l BY w_* GET w_*\r\nEXEC\r\n";
    check_alike(&[script], &redis, &ours);
    // A transaction that runs alone serves clients that wait for the key that it stores, too.
    let (mut waiting, mut client) = (ours.connect(), ours.connect());
    client.ask(&["RPUSH", "l", "2", "1"]);
    waiting.command(&["BLPOP", "d", "0"]);
    wait_for("BLPOP to wait", || client.ask(&["INFO", "clients"]).contains("blocked_clients:1").then_some(()));
    for words in [&["MULTI"][..], &["SORT", "l", "BY", "w_*", "STORE", "d"], &["FLUSHDB", "junk"]] {
        client.ask(words);
    }
    client.command(&["EXEC"]);
    assert_eq!(client.read_reply(), b"*2\r\n:2\r\n-ERR syntax error\r\n");
    assert_eq!(waiting.read_reply(), b"*2\r\n$1\r\nd\r\n$1\r\n1\r\n");
    client.ask(&["DEL", "d", "l"]);
    client.ask(&["RPUSH", "l", "2", "1"]);
    // The transaction waits as a whole for a key that is held by another section.
    let mut client = ours.connect();
    client.ask(&["MSET", "w_1", "3", "w_2", "1"]);
    let section = hold(ours.store(), "w_2");
    for words in [&["MULTI"][..], &["INCR", "count"], &["SORT", "l", "BY", "w_*"]] {
        client.ask(words);
    }
    client.command(&["EXEC"]);
    let mut other = ours.connect();
    wait_for("EXEC to wait", || other.ask(&["CLIENT", "LIST"]).contains(" flags=b").then_some(()));
    assert_eq!(other.ask(&["SET", "free", "1"]), "+OK\r\n");
    drop(section);
    assert_eq!(client.read_reply(), b"*2\r\n:1\r\n*2\r\n$1\r\n2\r\n$1\r\n1\r\n");
}

#[test]
fn clients_that_leave_a_long_sort_leave_nothing_held() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut client = ours.connect();
    for from in (0..20_000).step_by(500) {
        let numbers: Vec<String> = (from..from + 500).map(|n| n.to_string()).collect();
        let mut words = vec!["RPUSH", "l"];
        words.extend(numbers.iter().map(String::as_str));
        client.ask(&words);
    }
    for _ in 0..8 {
        let mut leaving = ours.connect();
        leaving.command(&["SORT", "l", "BY", "w_*", "STORE", "d"]);
        leaving.reset();
    }
    wait_for("all to leave", || (ours.server.client_count() == 1).then_some(()));
    wait_for("no ticket to be left", || (ours.store().stats().tickets == 0).then_some(()));
    assert_eq!(client.ask(&["SET", "w_7", "1"]), "+OK\r\n");
    assert_eq!(client.ask(&["FLUSHALL"]), "+OK\r\n");
}

#[test]
fn a_poll_that_comes_late_finds_the_reply() {
    let store = store();
    let section = hold(&store, "w_1");
    let mut parked = begin(&store, "SORT l BY w_*").expect_err("it waits");
    drop(section);
    let reply = wait_for("a reply", || match Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply),
        Poll::Pending => None,
    });
    assert_eq!(reply, SORTED);
}
