//! Commands over very many elements, which are worked beside the workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_store::{Caller, Parked, Store, StoreOptions};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use crate::{block_on, start};

/// More than are gone over in one breath.
const MANY: usize = 30_000;

fn store(stripes: usize) -> Store {
    Store::new(StoreOptions { stripes, ..StoreOptions::default() })
}

/// Runs a command; it may wait for one aside that has just replied and still holds its keys.
#[track_caller]
fn run(store: &Store, words: &[&[u8]]) -> String {
    let reply = start(store, &mut Caller::default(), words).unwrap_or_else(block_on);
    String::from_utf8(reply).expect("tests use text")
}

#[track_caller]
fn ask(store: &Store, command: &str) -> String {
    run(store, &command.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// Runs a command that is worked aside.
#[track_caller]
fn parked(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("it is large")
}

#[track_caller]
fn wait(store: &Store, command: &str) -> String {
    String::from_utf8(block_on(parked(store, command))).expect("tests use text")
}

/// Fills a container by one command for each thousand elements.
fn fill(store: &Store, command: &str, count: usize, element: impl Fn(usize) -> String) {
    for first in (0..count).step_by(1_000) {
        let elements: Vec<String> = (first..(first + 1_000).min(count)).map(&element).collect();
        assert!(ask(store, &format!("{command} {}", elements.join(" "))).starts_with(':'));
    }
}

/// The bulks of a flat reply.
fn bulks(reply: &str) -> Vec<&str> {
    reply.split("\r\n").skip(1).filter(|line| !line.starts_with('$') && !line.is_empty()).collect()
}

#[test]
fn a_whole_hash_is_read_as_it_was_at_one_moment() {
    let store = store(1);
    fill(&store, "HSET h", MANY, |n| format!("{n} old"));
    for round in 0..3 {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..MANY {
                    let words = [&b"HSET"[..], b"h", &n.to_string().into_bytes(), &round.to_string().into_bytes()];
                    assert!(run(&store, &words).starts_with(':'));
                }
                over.store(true, Ordering::SeqCst);
            });
            while !over.load(Ordering::SeqCst) {
                let reply = wait(&store, "HGETALL h");
                let all: BTreeMap<usize, &str> =
                    bulks(&reply).chunks_exact(2).map(|pair| (pair[0].parse().expect("a number"), pair[1])).collect();
                assert_eq!(all.len(), MANY);
                let new = round.to_string();
                // Fields are written in order, so at any moment the new ones are the first ones.
                let changed = all.values().filter(|value| ***value == new).count();
                assert!(all.iter().all(|(field, value)| (**value == new) == (*field < changed)), "a mixture");
            }
        });
    }
}

#[test]
fn others_go_on_meanwhile() {
    let store = store(1);
    fill(&store, "HSET h", 10 * MANY, |n| format!("field:{n} value"));
    assert_eq!(ask(&store, "SET k v"), "+OK\r\n");
    let reply = std::thread::scope(|scope| {
        let reading = scope.spawn(|| wait(&store, "HGETALL h"));
        let mut gets = 0;
        while !reading.is_finished() {
            assert_eq!(ask(&store, "GET k"), "$1\r\nv\r\n");
            // Readers share the key.
            assert_eq!(ask(&store, "HGET h field:7"), "$5\r\nvalue\r\n");
            gets += 1;
        }
        assert!(gets > 10, "only {gets} rounds while {} fields were read", 10 * MANY);
        reading.join().expect("a reply")
    });
    assert_eq!(bulks(&reply).len(), 20 * MANY);
}

#[test]
fn every_type_is_read_and_combined() {
    let store = store(64);
    fill(&store, "SADD s", MANY, |n| format!("m{n}"));
    fill(&store, "SADD t", MANY, |n| format!("m{}", n + 10));
    fill(&store, "ZADD z", MANY, |n| format!("{n} m{n}"));
    fill(&store, "HSET h", MANY, |n| format!("f{n} v{n}"));
    assert_eq!(bulks(&wait(&store, "SMEMBERS s")).len(), MANY);
    assert_eq!(bulks(&wait(&store, "HKEYS h")).len(), MANY);
    assert_eq!(bulks(&wait(&store, "HVALS h")).len(), MANY);
    assert_eq!(bulks(&wait(&store, "SUNION s t")).len(), MANY + 10);
    assert_eq!(bulks(&wait(&store, "SINTER s t")).len(), MANY - 10);
    assert_eq!(ask(&store, "SINTERSTORE d s t"), format!(":{}\r\n", MANY - 10));
    assert_eq!(ask(&store, "SDIFFSTORE d s t"), ":10\r\n");
    assert_eq!(ask(&store, "SUNIONSTORE s s t"), format!(":{}\r\n", MANY + 10));
    assert_eq!(ask(&store, "SCARD s"), format!(":{}\r\n", MANY + 10));
    assert_eq!(ask(&store, "ZUNIONSTORE u 2 z s"), format!(":{}\r\n", MANY + 10));
    assert_eq!(ask(&store, "ZSCORE u m7"), "$1\r\n8\r\n");
    let ranks = wait(&store, "ZRANGE z 0 -1");
    let ranks = bulks(&ranks);
    assert!(ranks.len() == MANY && ranks[0] == "m0" && ranks[MANY - 1] == format!("m{}", MANY - 1));
    assert_eq!(bulks(&wait(&store, "ZRANGEBYSCORE z 5 (25005")).len(), 25_000);
    assert_eq!(ask(&store, "ZRANGESTORE r z 0 -1"), format!(":{MANY}\r\n"));
    // What looks at few of very many is done at once.
    assert_eq!(bulks(&ask(&store, "ZRANGE z 5 6")), ["m5", "m6"]);
    assert_eq!(bulks(&ask(&store, "ZRANGEBYSCORE z 5 6")), ["m5", "m6"]);
    assert_eq!(bulks(&ask(&store, "SINTER s none")).len(), 0);
    // Errors are the same.
    assert!(wait(&store, "SUNION s h").starts_with("-WRONGTYPE"));
    assert!(
        ask(&store, "SMEMBERS h").starts_with("-WRONGTYPE") || wait(&store, "SMEMBERS h").starts_with("-WRONGTYPE")
    );
}

#[test]
fn a_dump_of_very_many_elements_is_restored() {
    let store = store(4);
    fill(&store, "HSET h", MANY, |n| format!("f{n} v{n}"));
    let reply = block_on(parked(&store, "DUMP h"));
    let start = reply.iter().position(|byte| *byte == b'\n').expect("a length") + 1;
    let payload = &reply[start..reply.len() - 2];
    assert_eq!(run(&store, &[b"RESTORE", b"copy", b"0", payload]), "+OK\r\n");
    assert_eq!(ask(&store, "HGET copy f29999"), "$6\r\nv29999\r\n");
    assert_eq!(ask(&store, "HLEN copy"), format!(":{MANY}\r\n"));
}

#[test]
fn keys_of_a_large_database_are_listed_and_flushing_waits() {
    let store = store(64);
    (0..MANY).for_each(|n| drop(ask(&store, &format!("SET key:{n} v"))));
    let listing = parked(&store, "KEYS *7");
    let flushing = start(&store, &mut Caller::default(), &[b"FLUSHALL"]);
    assert_eq!(bulks(&String::from_utf8(block_on(listing)).expect("text")).len(), MANY / 10);
    if let Err(flushing) = flushing {
        assert_eq!(block_on(flushing), b"+OK\r\n");
    }
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
}

#[test]
fn rules_and_scripts_get_a_value() {
    let store = store(4);
    fill(&store, "SADD s", MANY, |n| n.to_string());
    let Started::Pending(reply) = store.start(0, &[b"SMEMBERS", b"s"]) else { panic!("it is large") };
    let (Reply::Array(members) | Reply::Set(members)) = block_on(reply) else { panic!("an array") };
    assert_eq!(members.len(), MANY);
}

/// CPU time of this thread, µs.
fn cpu_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives across the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

#[test]
fn freeing_is_left_to_others() {
    for command in ["DEL s", "UNLINK s", "SET s v", "RENAME t s", "PEXPIRE s 0", "FLUSHALL", "FLUSHDB SYNC"] {
        let store = store(4);
        fill(&store, "SADD s", 10 * MANY, |n| format!("member:{n}"));
        assert_eq!(ask(&store, "SET t v"), "+OK\r\n");
        let before = cpu_us();
        let reply = ask(&store, command);
        let took = cpu_us() - before;
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        // Freeing it takes ten times as long.
        assert!(took < 1_000.0, "{command}: {took} µs");
        assert_ne!(ask(&store, "TYPE s"), "+set\r\n");
        store.tick();
    }
}
