//! Sections and holds: atomicity, order, fairness, and that no waiter is forgotten.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use sluicegate_store::{Caller, Mode, Parked, Section, SectionError, SectionWait, Store, StoreOptions};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyBuilder;

use crate::{Random, ask, block_on, run, start};

/// Counts its wake-ups.
#[derive(Default)]
struct Alarm(AtomicUsize);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future + Unpin>(future: &mut F, alarm: &Arc<Alarm>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(alarm.clone())))
}

/// Returns a store in which waiting tickets are overtaken up to the maximum number, however slow the machine.
fn store() -> Store {
    Store::new(StoreOptions { stripes: 8, overtaken_for: Duration::MAX, ..StoreOptions::default() })
}

fn exclusive(store: &Store, keys: &[&str]) -> SectionWait {
    store.section(keys.iter().map(|key| (0, key.as_bytes(), Mode::Exclusive)))
}

fn shared(store: &Store, keys: &[&str]) -> SectionWait {
    store.section(keys.iter().map(|key| (0, key.as_bytes(), Mode::Shared)))
}

fn in_section(section: &mut Section, command: &str) -> Result<Reply, SectionError> {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut reply = ReplyBuilder::new();
    section.execute(0, &words, &mut reply)?;
    Ok(reply.finish())
}

#[track_caller]
fn parked(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("the command waits")
}

#[test]
fn a_held_key_parks_commands_and_leaves_others_alone() {
    let store = store();
    let mut section = block_on(exclusive(&store, &["a", "b"])).unwrap();
    assert_eq!(in_section(&mut section, "SET a 1"), Ok(Reply::Simple("OK".into())));
    let mut waiting = parked(&store, "INCR a");
    let mut second = parked(&store, "INCR a");
    assert_eq!(ask(&store, "INCR c"), ":1\r\n");
    assert_eq!(ask(&store, "DBSIZE"), ":2\r\n", "whole-keyspace commands look through holds");
    assert!(ask(&store, "SCAN 0 COUNT 100").contains("$1\r\na\r\n"));
    let alarm = Arc::new(Alarm::default());
    assert!(poll(&mut waiting, &alarm).is_pending());
    assert_eq!(in_section(&mut section, "INCRBY a 10"), Ok(Reply::Integer(11)));
    drop(section);
    assert_eq!(alarm.0.load(Ordering::SeqCst), 1);
    assert_eq!(poll(&mut waiting, &alarm), Poll::Ready(b":12\r\n".to_vec()));
    assert_eq!(poll(&mut second, &alarm), Poll::Ready(b":13\r\n".to_vec()));
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn a_parked_command_runs_although_its_client_has_gone() {
    let store = store();
    let section = block_on(exclusive(&store, &["a"])).unwrap();
    drop(parked(&store, "SET a left"));
    drop(section);
    assert_eq!(ask(&store, "GET a"), "$4\r\nleft\r\n");
}

#[test]
fn a_section_that_gives_up_lets_the_next_one_in() {
    let store = store();
    let alarm = Arc::new(Alarm::default());
    let first = block_on(exclusive(&store, &["a"])).unwrap();
    let mut gives_up = exclusive(&store, &["a", "b"]);
    let mut next = exclusive(&store, &["a"]);
    assert!(poll(&mut gives_up, &alarm).is_pending());
    assert!(poll(&mut next, &alarm).is_pending());
    drop(gives_up);
    drop(first);
    assert!(poll(&mut next, &alarm).is_ready());
    // A section that was granted and never polled passes its keys on, too.
    let held = block_on(exclusive(&store, &["c"])).unwrap();
    let mut never_looked = exclusive(&store, &["c"]);
    assert!(poll(&mut never_looked, &alarm).is_pending());
    drop(held);
    drop(never_looked);
    assert_eq!(ask(&store, "INCR c"), ":1\r\n");
}

#[test]
fn readers_share_a_key_and_a_writer_waits_for_them() {
    let store = store();
    let alarm = Arc::new(Alarm::default());
    let mut one = block_on(shared(&store, &["a"])).unwrap();
    let two = block_on(shared(&store, &["a"])).unwrap();
    assert_eq!(ask(&store, "GET a"), "$-1\r\n", "who reads needs not wait");
    let mut writer = parked(&store, "SET a 1");
    assert_eq!(in_section(&mut one, "SET a 2"), Err(SectionError::ReadOnly));
    assert_eq!(in_section(&mut one, "GET a"), Ok(Reply::Null));
    drop(one);
    assert!(poll(&mut writer, &alarm).is_pending());
    drop(two);
    assert_eq!(poll(&mut writer, &alarm), Poll::Ready(b"+OK\r\n".to_vec()));
}

#[test]
fn a_waiting_section_is_overtaken_only_so_often() {
    let store = store();
    let alarm = Arc::new(Alarm::default());
    let holder = block_on(exclusive(&store, &["b"])).unwrap();
    let mut waits_for_both = exclusive(&store, &["a", "b"]);
    assert!(poll(&mut waits_for_both, &alarm).is_pending());
    // Key `a` is free, so commands on it proceed for a while.
    let overtaking = (0..1_000).take_while(|_| start(&store, &mut Caller::default(), &[b"INCR", b"a"]).is_ok()).count();
    assert!(overtaking <= 64, "overtaken {overtaking} times");
    let mut behind = parked(&store, "INCR a");
    drop(holder);
    let Poll::Ready(Ok(mut section)) = poll(&mut waits_for_both, &alarm) else { panic!("it has both keys now") };
    // The command that could not overtake any more has parked, too, and runs after the section like the other.
    assert_eq!(in_section(&mut section, "GET a"), Ok(Reply::Bulk(overtaking.to_string().into_bytes())));
    drop(section);
    assert_eq!(poll(&mut behind, &alarm), Poll::Ready(format!(":{}\r\n", overtaking + 2).into_bytes()));
}

#[test]
fn a_section_that_has_waited_for_long_is_not_overtaken_any_more() {
    let store = Store::new(StoreOptions { stripes: 8, ..StoreOptions::default() });
    let alarm = Arc::new(Alarm::default());
    let holder = block_on(exclusive(&store, &["b"])).unwrap();
    let mut waits_for_both = exclusive(&store, &["a", "b"]);
    assert!(poll(&mut waits_for_both, &alarm).is_pending());
    thread::sleep(Duration::from_millis(11));
    let mut behind = parked(&store, "INCR a");
    drop(holder);
    let Poll::Ready(Ok(section)) = poll(&mut waits_for_both, &alarm) else { panic!("it has both keys now") };
    assert!(poll(&mut behind, &alarm).is_pending());
    drop(section);
    assert_eq!(poll(&mut behind, &alarm), Poll::Ready(b":1\r\n".to_vec()));
}

#[test]
fn keys_are_not_kept_for_a_section_that_has_not_woken_up() {
    let store = store();
    let sleeps = Arc::new(Alarm::default());
    let holder = block_on(exclusive(&store, &["a", "b"])).unwrap();
    let mut sleeper = exclusive(&store, &["a", "b"]);
    assert!(poll(&mut sleeper, &sleeps).is_pending());
    drop(holder);
    assert_eq!(sleeps.0.load(Ordering::SeqCst), 1);
    let early = block_on(exclusive(&store, &["b"])).unwrap();
    assert_eq!(ask(&store, "INCR a"), ":1\r\n");
    // The section is woken while `b` is held, and again once `b` is free.
    assert!(poll(&mut sleeper, &sleeps).is_pending());
    drop(early);
    assert_eq!(sleeps.0.load(Ordering::SeqCst), 2);
    assert!(poll(&mut sleeper, &sleeps).is_ready());
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn who_fails_to_have_its_keys_does_not_keep_those_behind_it() {
    let store = store();
    let (sleeps, others) = (Arc::new(Alarm::default()), Arc::new(Alarm::default()));
    let holder = block_on(exclusive(&store, &["a", "b"])).unwrap();
    let mut sleeper = exclusive(&store, &["a", "b"]);
    let mut behind = exclusive(&store, &["b", "c"]);
    assert!(poll(&mut sleeper, &sleeps).is_pending());
    assert!(poll(&mut behind, &others).is_pending());
    drop(holder);
    assert_eq!((sleeps.0.load(Ordering::SeqCst), others.0.load(Ordering::SeqCst)), (1, 0));
    let _early = block_on(exclusive(&store, &["a"])).unwrap();
    assert!(poll(&mut sleeper, &sleeps).is_pending());
    assert_eq!(others.0.load(Ordering::SeqCst), 1, "b and c are free");
    assert!(poll(&mut behind, &others).is_ready());
}

#[test]
fn sections_of_one_thread_follow_each_other_only_so_often() {
    let store = store();
    let (far_alarm, near_alarm) = (Arc::new(Alarm::default()), Arc::new(Alarm::default()));
    let mut current = block_on(exclusive(&store, &["a"])).unwrap();
    let mut far = exclusive(&store, &["a"]);
    thread::scope(|threads| {
        threads.spawn(|| assert!(poll(&mut far, &far_alarm).is_pending()));
    });
    let mut before_it = 0;
    loop {
        let mut near = exclusive(&store, &["a"]);
        assert!(poll(&mut near, &near_alarm).is_pending());
        drop(current);
        if far_alarm.0.load(Ordering::SeqCst) > 0 {
            assert!(poll(&mut near, &near_alarm).is_pending());
            break;
        }
        let Poll::Ready(Ok(next)) = poll(&mut near, &near_alarm) else { panic!("one of the two has its turn") };
        current = next;
        before_it += 1;
    }
    assert!((1..=64).contains(&before_it), "{before_it} went before it");
    assert!(poll(&mut far, &far_alarm).is_ready());
}

#[test]
fn a_key_declared_twice_is_held_once_in_the_stronger_mode() {
    let store = store();
    for modes in [[Mode::Shared, Mode::Exclusive], [Mode::Exclusive, Mode::Shared]] {
        let mut section = block_on(store.section(modes.map(|mode| (0, &b"a"[..], mode)))).unwrap();
        assert_eq!(in_section(&mut section, "SET a 1"), Ok(Reply::Simple("OK".into())));
        let mut reader = parked(&store, "GET a");
        drop(section);
        assert_eq!(poll(&mut reader, &Arc::default()), Poll::Ready(b"$1\r\n1\r\n".to_vec()));
    }
    // The same name in another database is another key.
    let section = block_on(store.section([(1, &b"a"[..], Mode::Exclusive)])).unwrap();
    assert_eq!(ask(&store, "GET a"), "$1\r\n1\r\n");
    drop(section);
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn commands_on_the_whole_keyspace_look_through_holds() {
    let store = store();
    let mut section = block_on(exclusive(&store, &["a"])).unwrap();
    assert_eq!(in_section(&mut section, "SET a 1"), Ok(Reply::Simple("OK".into())));
    assert_eq!(ask(&store, "KEYS *"), "*1\r\n$1\r\na\r\n");
    assert_eq!(ask(&store, "RANDOMKEY"), "$1\r\na\r\n");
    assert_eq!(ask(&store, "SCAN 0 COUNT 1000"), "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n");
    assert_eq!(ask(&store, "DBSIZE"), ":1\r\n");
    assert_eq!(store.stats().databases.len(), 1);
    let mut swap = parked(&store, "SWAPDB 0 1");
    drop(section);
    assert_eq!(poll(&mut swap, &Arc::default()), Poll::Ready(b"+OK\r\n".to_vec()));
    assert_eq!(ask(&store, "KEYS *"), "*0\r\n");
}

#[test]
fn undeclared_keys_are_taken_if_they_are_free() {
    let store = store();
    let mut one = block_on(exclusive(&store, &["a"])).unwrap();
    let mut two = block_on(exclusive(&store, &["b"])).unwrap();
    assert_eq!(in_section(&mut one, "SET c 1"), Ok(Reply::Simple("OK".into())));
    assert_eq!(in_section(&mut two, "GET c"), Err(SectionError::Held));
    assert_eq!(in_section(&mut two, "GET a"), Err(SectionError::Held));
    let mut waiting = parked(&store, "INCR c");
    drop(one);
    assert_eq!(poll(&mut waiting, &Arc::default()), Poll::Ready(b":2\r\n".to_vec()));
    assert_eq!(in_section(&mut two, "GET c"), Ok(Reply::Bulk(b"2".to_vec())));
    assert_eq!(in_section(&mut two, "FLUSHALL"), Err(SectionError::NotAllowed));
}

#[test]
fn effects_come_in_order_and_before_the_keys_are_free() {
    let store = store();
    let mut section = block_on(exclusive(&store, &["a"])).unwrap();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for n in 0..3 {
        let (seen, store) = (seen.clone(), store.clone());
        section.defer(move || {
            let free = start(&store, &mut Caller::default(), &[b"GET", b"a"]).is_ok();
            seen.lock().push((n, free));
        });
    }
    assert!(seen.lock().is_empty());
    drop(section);
    assert_eq!(*seen.lock(), [(0, false), (1, false), (2, false)]);
}

#[test]
fn time_stands_still_in_a_section() {
    let hand = sluicegate_store::ManualClock::new(1_000);
    let clock = sluicegate_store::Clock::Manual(hand.clone());
    let store = Store::new(StoreOptions { clock, stripes: 8, ..StoreOptions::default() });
    ask(&store, "SET a v PX 100");
    let mut reader = block_on(shared(&store, &["a"])).unwrap();
    hand.advance(200);
    store.tick();
    assert_eq!(ask(&store, "GET a"), "$-1\r\n");
    assert_eq!(in_section(&mut reader, "PTTL a"), Ok(Reply::Integer(100)));
    assert_eq!(reader.now_ms(), 1_000);
    drop(reader);
    store.tick();
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
}

#[test]
fn a_flush_waits_for_sections_and_for_nothing_else() {
    let store = store();
    let alarm = Arc::new(Alarm::default());
    ask(&store, "MSET a 1 b 1");
    let mut section = block_on(exclusive(&store, &["a"])).unwrap();
    let mut flush = parked(&store, "FLUSHALL");
    assert_eq!(ask(&store, "INCR b"), ":2\r\n", "others go on meanwhile");
    assert_eq!(in_section(&mut section, "GET a"), Ok(Reply::Bulk(b"1".to_vec())));
    let mut behind = parked(&store, "INCR a");
    assert!(poll(&mut flush, &alarm).is_pending());
    drop(section);
    assert_eq!(poll(&mut flush, &alarm), Poll::Ready(b"+OK\r\n".to_vec()));
    assert!(matches!(poll(&mut behind, &alarm), Poll::Ready(_)));
    assert_eq!(ask(&store, "EXISTS b"), ":0\r\n");
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn very_many_commands_behind_a_flush_all_run() {
    let store = store();
    let section = block_on(exclusive(&store, &["a"])).unwrap();
    let flush = parked(&store, "FLUSHALL");
    let behind: Vec<Parked> = (0..30_000).map(|_| parked(&store, "INCR a")).collect();
    thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || drop(section))
        .expect("a thread")
        .join()
        .expect("no deep recursion");
    assert_eq!(block_on(flush), b"+OK\r\n");
    behind.into_iter().for_each(|parked| assert!(block_on(parked).starts_with(b":")));
    assert_eq!(store.stats().tickets, 0);
    // Increments before the flush's turn were flushed; later ones count.
    assert!(ask(&store, "INCRBY a 0").starts_with(':'));
}

#[test]
fn rules_and_scripts_wait_for_held_keys_too() {
    let store = store();
    let section = block_on(exclusive(&store, &["a"])).unwrap();
    let Started::Pending(mut reply) = store.start(0, &[b"INCR", b"a"]) else { panic!("the key is held") };
    let alarm = Arc::new(Alarm::default());
    assert!(poll(&mut reply, &alarm).is_pending());
    drop(section);
    assert_eq!(poll(&mut reply, &alarm), Poll::Ready(Reply::Integer(1)));
}

#[test]
fn as_many_wait_as_the_store_allows() {
    let store = Store::new(StoreOptions { stripes: 8, tickets_max: 3, ..StoreOptions::default() });
    let section = block_on(exclusive(&store, &["a"])).unwrap();
    let waiting = [parked(&store, "INCR a"), parked(&store, "INCR a")];
    assert!(ask(&store, "INCR a").starts_with("-BUSY "));
    assert_eq!(block_on(exclusive(&store, &["a"])).err(), Some(SectionError::TooMany));
    let stats = store.stats();
    assert_eq!((stats.granted, stats.parked, stats.refused), (1, 2, 2));
    drop((section, waiting));
    assert_eq!(ask(&store, "GET a"), "$1\r\n2\r\n");
}

#[test]
fn a_command_of_many_keys_is_atomic_and_finishes() {
    let store = store();
    let keys: Vec<String> = (0..2_000).map(|n| format!("key:{n}")).collect();
    let mut mset: Vec<&[u8]> = vec![b"MSET"];
    keys.iter().for_each(|key| mset.extend([key.as_bytes(), b"v".as_slice()]));
    let holder = block_on(exclusive(&store, &["key:1999"])).unwrap();
    let mut big = start(&store, &mut Caller::default(), &mset).expect_err("one key is held");
    let alarm = Arc::new(Alarm::default());
    assert!(poll(&mut big, &alarm).is_pending());
    assert_eq!(ask(&store, "EXISTS key:0"), ":0\r\n", "nothing is done before all keys are there");
    drop(holder);
    assert_eq!(block_on(big), b"+OK\r\n");
    let mut del: Vec<&[u8]> = vec![b"DEL"];
    del.extend(keys.iter().map(|key| key.as_bytes()));
    match start(&store, &mut Caller::default(), &del) {
        Ok(reply) => assert_eq!(reply, b":2000\r\n"),
        // The client leaves in the middle: the command is completed all the same.
        Err(parked) => drop(parked),
    }
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn sections_and_commands_of_many_threads_lose_nothing() {
    let store = store();
    const THREADS: usize = 4;
    const ROUNDS: usize = 3_000;
    let names = ["a", "b", "c", "d", "e"];
    let added = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (store, added) = (&store, &added);
            scope.spawn(move || {
                let mut random = Random(seed as u64 + 77);
                for _ in 0..ROUNDS {
                    let keys: Vec<&str> = (0..1 + random.below(3)).map(|_| random.pick(&names)).collect();
                    match random.below(4) {
                        0 => {
                            let mut section = block_on(exclusive(store, &keys)).expect("room for all");
                            for key in &keys {
                                // Read and write apart, as a script does.
                                let old = match in_section(&mut section, &format!("GET {key}")) {
                                    Ok(Reply::Bulk(text)) => String::from_utf8(text).unwrap().parse().unwrap(),
                                    Ok(Reply::Null) => 0u64,
                                    other => panic!("{other:?}"),
                                };
                                in_section(&mut section, &format!("SET {key} {}", old + 1)).unwrap();
                                added.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        1 => {
                            // Does not wait for the reply: from here on the store completes the command.
                            let words: [&[u8]; 2] = [b"INCR", keys[0].as_bytes()];
                            let _ = start(store, &mut Caller::default(), &words);
                            added.fetch_add(1, Ordering::Relaxed);
                        }
                        2 => {
                            let mut words: Vec<&[u8]> = vec![b"MGET"];
                            words.extend(keys.iter().map(|key| key.as_bytes()));
                            if let Err(parked) = start(store, &mut Caller::default(), &words) {
                                block_on(parked);
                            }
                        }
                        _ => {
                            let words: [&[u8]; 2] = [b"INCR", keys[0].as_bytes()];
                            if let Err(parked) = start(store, &mut Caller::default(), &words) {
                                block_on(parked);
                            }
                            added.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(store.stats().tickets, 0, "all tickets are gone");
    let total: usize = names
        .iter()
        .map(|key| {
            let reply = run(&store, &mut Caller::default(), &[b"INCRBY", key.as_bytes(), b"0"]);
            String::from_utf8(reply).unwrap()[1..].trim().parse::<usize>().unwrap()
        })
        .sum();
    assert_eq!(total, added.load(Ordering::Relaxed));
}

#[test]
fn generated_commands_never_panic() {
    let mut random = Random(5);
    for round in 0..300 {
        let len = random.below(400);
        let data: Vec<u8> = (0..len)
            .map(|_| match random.below(6) {
                0 => b' ',
                1 => b'\n',
                2 => b'0' + random.below(10) as u8,
                _ => random.below(256) as u8,
            })
            .collect();
        sluicegate_store::fuzz_command(&data);
        assert!(round < 300);
    }
}
