//! Many threads on one store: nothing is lost, nothing is seen half-done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sluicegate_store::{Caller, Store, StoreOptions};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};

use crate::{Random, ask, run};

fn parse(bytes: &[u8]) -> Reply {
    ReplyParser::new(ReplyLimits::default()).parse(bytes).expect("a reply").reply.expect("whole")
}

fn few_stripes(stripes: usize) -> Store {
    Store::new(StoreOptions { stripes, ..StoreOptions::default() })
}

#[test]
fn increments_of_all_threads_add_up() {
    let store = few_stripes(4);
    const THREADS: usize = 4;
    const EACH: usize = 20_000;
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random(seed as u64);
                for _ in 0..EACH {
                    ask(store, "INCR one");
                    ask(store, &format!("INCRBY of:{seed} 2"));
                    ask(store, &format!("INCR shared:{}", random.below(100)));
                }
            });
        }
    });
    assert_eq!(ask(&store, "GET one"), format!("$5\r\n{}\r\n", THREADS * EACH));
    for seed in 0..THREADS {
        assert_eq!(ask(&store, &format!("INCRBY of:{seed} 0")), format!(":{}\r\n", 2 * EACH));
    }
    let total: usize = (0..100)
        .map(|n| ask(&store, &format!("INCRBY shared:{n} 0"))[1..].trim().parse::<usize>().expect("a number"))
        .sum();
    assert_eq!(total, THREADS * EACH);
}

#[test]
fn commands_of_several_keys_are_seen_whole() {
    let store = few_stripes(16);
    let done = AtomicBool::new(false);
    ask(&store, "MSET a 0 b 0 c 0 d 0");
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let value = 2 * round + writer;
                        match writer {
                            0 => ask(store, &format!("MSET a {value} b {value} c {value} d {value}")),
                            _ => ask(store, &format!("MSET d {value} c {value} b {value} a {value}")),
                        };
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let reply = parse(ask(&store, "MGET c a d b").as_bytes());
                let Reply::Array(values) = reply else { panic!("{reply:?}") };
                assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            }
        });
        for writer in writers {
            writer.join().expect("a writer");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_scan_returns_what_was_there_all_the_time_exactly_once() {
    let store = few_stripes(4);
    const KEPT: usize = 5_000;
    (0..KEPT).for_each(|n| drop(ask(&store, &format!("SET kept:{n} v"))));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !done.load(Ordering::Relaxed) {
                    let n = random.below(50_000);
                    match random.below(3) {
                        0 => ask(store, &format!("DEL other:{n}")),
                        _ => ask(store, &format!("SET other:{n} v")),
                    };
                }
            });
        }
        for count in [1, 10, 100, 1_000] {
            let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
            let mut cursor = b"0".to_vec();
            loop {
                let count = count.to_string();
                let words: [&[u8]; 4] = [b"SCAN", &cursor, b"COUNT", count.as_bytes()];
                let Reply::Array(mut reply) = parse(&run(&store, &mut Caller::default(), &words)) else { panic!() };
                let (Some(Reply::Array(keys)), Some(Reply::Bulk(next))) = (reply.pop(), reply.pop()) else { panic!() };
                for key in keys {
                    let Reply::Bulk(key) = key else { panic!() };
                    *seen.entry(key).or_default() += 1;
                }
                let number: u64 = std::str::from_utf8(&next).unwrap().parse().unwrap();
                assert!(number < 1 << 53, "a cursor that a double can't hold");
                if number == 0 {
                    break;
                }
                cursor = next;
            }
            for n in 0..KEPT {
                assert_eq!(seen.get(format!("kept:{n}").as_bytes()), Some(&1), "kept:{n} with COUNT {count}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn flushes_and_swaps_go_with_everything_else() {
    let store = few_stripes(8);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut caller = Caller { db: (seed % 2) as u32, ..Caller::default() };
                while !done.load(Ordering::Relaxed) {
                    // Within one command, either all keys are there or none.
                    run(store, &mut caller, &[b"MSET", b"a", b"1", b"b", b"1", b"c", b"1"]);
                    let reply = run(store, &mut caller, &[b"EXISTS", b"a", b"b", b"c"]);
                    assert!(reply == b":3\r\n" || reply == b":0\r\n", "{:?}", String::from_utf8_lossy(&reply));
                    store.tick();
                }
            });
        }
        for round in 0..2_000 {
            ask(&store, if round % 2 == 0 { "FLUSHALL" } else { "SWAPDB 0 1" });
        }
        done.store(true, Ordering::Relaxed);
    });
    ask(&store, "FLUSHALL");
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
}

#[test]
fn randomkey_names_every_key_sooner_or_later() {
    let store = few_stripes(16);
    (0..50).for_each(|n| drop(ask(&store, &format!("SET {n} v"))));
    let mut seen = std::collections::BTreeSet::new();
    // A key is drawn with a chance of 1 in 150 at least, so 5,000 draws miss one in less than one of 10^12 runs.
    for _ in 0..5_000 {
        seen.insert(ask(&store, "RANDOMKEY"));
    }
    assert_eq!(seen.len(), 50);
}
