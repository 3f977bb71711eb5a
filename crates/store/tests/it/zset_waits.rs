//! BZPOPMIN, BZPOPMAX and BZMPOP: which client is served by which member, in which order, and each member once.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use sluicegate_store::{Caller, Parked, Store, StoreOptions};
use sluicegate_testkit::wait_for;
use sluicegate_wire::resp::Protocol;

use crate::{ask, block_on, run, start};

/// Starts a command given as text, which finds nothing.
#[track_caller]
fn block(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("it waits")
}

#[track_caller]
fn reply_of(mut parked: Parked) -> String {
    let reply = wait_for("a reply", || match Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply),
        Poll::Pending => None,
    });
    String::from_utf8(reply).expect("tests use text")
}

#[test]
fn members_serve_those_who_wait_in_their_order() {
    let store = Store::new(StoreOptions::default());
    let waiting = ["BZPOPMIN k 0", "BZPOPMAX x k 0", "BZMPOP 0 2 x k MAX COUNT 2", "BZPOPMIN k 0"];
    let [first, second, third, last] = waiting.map(|command| block(&store, command));
    assert_eq!(ask(&store, "ZADD k 1 a 2 b 3 c 4 d"), ":4\r\n");
    assert_eq!(reply_of(first), "*3\r\n$1\r\nk\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert_eq!(reply_of(second), "*3\r\n$1\r\nk\r\n$1\r\nd\r\n$1\r\n4\r\n");
    let both = "*2\r\n$1\r\nk\r\n*2\r\n*2\r\n$1\r\nc\r\n$1\r\n3\r\n*2\r\n$1\r\nb\r\n$1\r\n2\r\n";
    assert_eq!(reply_of(third), both);
    assert_eq!(ask(&store, "EXISTS k"), ":0\r\n");
    ask(&store, "ZADD k 0.5 z");
    assert_eq!(reply_of(last), "*3\r\n$1\r\nk\r\n$1\r\nz\r\n$3\r\n0.5\r\n");
    // In RESP3 the score is a double.
    let caller = &mut Caller { protocol: Protocol::Resp3, ..Caller::default() };
    let waiting = start(&store, caller, &[b"BZPOPMIN", b"k", b"0"]).expect_err("it waits");
    ask(&store, "ZADD k 0.5 z");
    assert_eq!(reply_of(waiting), "*3\r\n$1\r\nk\r\n$1\r\nz\r\n,0.5\r\n");
}

#[test]
fn whatever_brings_a_sorted_set_to_life_serves() {
    let store = Store::new(StoreOptions::default());
    for command in [
        "ZADD k 1 a",
        "ZINCRBY k 1 a",
        "ZUNIONSTORE k 1 from",
        "ZINTERSTORE k 1 from",
        "ZDIFFSTORE k 1 from",
        "ZRANGESTORE k from 0 -1",
        "RENAME from k",
        "COPY from k",
    ] {
        ask(&store, "DEL from");
        ask(&store, "ZADD from 1 a");
        let waiting = block(&store, "BZPOPMIN k 0");
        ask(&store, command);
        assert_eq!(reply_of(waiting), "*3\r\n$1\r\nk\r\n$1\r\na\r\n$1\r\n1\r\n", "{command}");
        assert_eq!(ask(&store, "EXISTS k"), ":0\r\n");
    }
    ask(&store, "GEOADD from 13.361389 38.115556 a");
    for command in ["GEOADD k 13.361389 38.115556 a", "GEOSEARCHSTORE k from FROMMEMBER a BYRADIUS 1 km"] {
        let waiting = block(&store, "BZPOPMAX k 0");
        ask(&store, command);
        assert_eq!(reply_of(waiting), "*3\r\n$1\r\nk\r\n$1\r\na\r\n$16\r\n3479099956230698\r\n", "{command}");
    }
    // Each is served by its type.
    let (list, zset) = (block(&store, "BLPOP k 0"), block(&store, "BZPOPMIN k 0"));
    ask(&store, "ZADD k 1 a");
    assert_eq!(reply_of(zset), "*3\r\n$1\r\nk\r\n$1\r\na\r\n$1\r\n1\r\n");
    ask(&store, "RPUSH k v");
    assert_eq!(reply_of(list), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
}

#[test]
fn a_wait_ends_with_its_timeout() {
    let store = Store::new(StoreOptions::default());
    for command in ["BZPOPMIN k 0.01", "BZPOPMAX k x 0.01", "BZMPOP 0.01 1 k MIN"] {
        let waiting = block(&store, command);
        assert!(waiting.deadline().is_some());
        waiting.time_out();
        assert_eq!(reply_of(waiting), "*-1\r\n");
    }
    ask(&store, "ZADD k 1 a");
    assert_eq!(ask(&store, "ZCARD k"), ":1\r\n");
}

/// Threads add and remove; every member is removed exactly once, whether a client waited for it or not.
#[test]
fn each_member_is_taken_once() {
    const ADDED: usize = 2_000;
    const TAKERS: usize = 3;
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let taken = AtomicUsize::new(0);
    let members: Vec<BTreeSet<String>> = std::thread::scope(|scope| {
        for adder in 0..2 {
            let store = store.clone();
            scope.spawn(move || {
                for number in 0..ADDED {
                    let (key, member) = (format!("k{}", number % 3), format!("{adder}:{number}"));
                    let words = [&b"ZADD"[..], key.as_bytes(), b"1", member.as_bytes()];
                    start(&store, &mut Caller::default(), &words).unwrap_or_else(block_on);
                }
            });
        }
        let takers: Vec<_> = (0..TAKERS)
            .map(|taker| {
                let (store, taken) = (store.clone(), &taken);
                scope.spawn(move || {
                    let mut found = BTreeSet::new();
                    let caller = &mut Caller::default();
                    while taken.load(Ordering::SeqCst) < 2 * ADDED {
                        let words: Vec<&[u8]> = match (taker + found.len()) % 3 {
                            0 => vec![b"BZPOPMIN", b"k0", b"k1", b"k2", b"0.02"],
                            1 => vec![b"BZPOPMAX", b"k2", b"k0", b"k1", b"0.02"],
                            _ => vec![b"BZMPOP", b"0.02", b"3", b"k1", b"k2", b"k0", b"MIN", b"COUNT", b"2"],
                        };
                        let reply = start(&store, caller, &words).unwrap_or_else(|parked| {
                            std::thread::yield_now();
                            parked.time_out();
                            block_on(parked)
                        });
                        let text = String::from_utf8(reply).expect("text");
                        for member in text.split("\r\n").filter(|line| line.contains(':')) {
                            assert!(found.insert(member.to_string()), "{member} twice");
                            taken.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    found
                })
            })
            .collect();
        takers.into_iter().map(|taker| taker.join().expect("no panic")).collect()
    });
    let all: BTreeSet<&String> = members.iter().flatten().collect();
    assert_eq!((all.len(), members.iter().map(BTreeSet::len).sum::<usize>()), (2 * ADDED, 2 * ADDED));
    assert_eq!(run(&store, &mut Caller::default(), &[b"DBSIZE"]), b":0\r\n");
}
