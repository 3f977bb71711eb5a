//! Blocking commands: which client is served, in which order, and that no element is lost or duplicated, whoever gives
//! up at whatever time.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sluicegate_store::{Caller, Clock, ManualClock, Mode, Parked, Store, StoreOptions};
use sluicegate_testkit::{Client, wait_for};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyWriter;

use crate::support::Running;
use crate::{Random, ask, block_on, run, start};

/// Starts a blocking command given as text, which finds no element.
#[track_caller]
fn block(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("it waits")
}

#[track_caller]
fn reply_of(mut parked: Parked) -> String {
    let poll = |parked: &mut Parked| Pin::new(parked).poll(&mut Context::from_waker(Waker::noop()));
    let reply = wait_for("a reply", || match poll(&mut parked) {
        Poll::Ready(reply) => Some(reply),
        Poll::Pending => None,
    });
    String::from_utf8(reply).expect("tests use text")
}

fn is_waiting(parked: &mut Parked) -> bool {
    Pin::new(parked).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn a_push_serves_those_who_wait_in_their_order() {
    let store = Store::new(StoreOptions::default());
    let (first, second, mut third) =
        (block(&store, "BLPOP k 0"), block(&store, "BRPOP k 0"), block(&store, "BLPOP k 0"));
    assert_eq!(ask(&store, "LPUSH k a b c"), ":3\r\n");
    assert_eq!(reply_of(first), "*2\r\n$1\r\nk\r\n$1\r\nc\r\n");
    assert_eq!(reply_of(second), "*2\r\n$1\r\nk\r\n$1\r\na\r\n");
    assert_eq!(ask(&store, "EXISTS k"), ":0\r\n");
    assert_eq!(reply_of(third), "*2\r\n$1\r\nk\r\n$1\r\nb\r\n");
    third = block(&store, "BLPOP k 0");
    assert!(is_waiting(&mut third));
}

#[test]
fn moves_serve_those_who_wait_behind_them() {
    let store = Store::new(StoreOptions::default());
    let chain = [
        block(&store, "BLMOVE a b LEFT RIGHT 0"),
        block(&store, "BRPOPLPUSH b c 0"),
        block(&store, "BLMPOP 0 2 x c LEFT COUNT 5"),
    ];
    let mut circle = block(&store, "BLMOVE b a LEFT RIGHT 0");
    assert_eq!(ask(&store, "RPUSH a v"), ":1\r\n");
    let replies = chain.map(reply_of);
    assert_eq!(replies, ["$1\r\nv\r\n", "$1\r\nv\r\n", "*2\r\n$1\r\nc\r\n*1\r\n$1\r\nv\r\n"]);
    assert!(is_waiting(&mut circle));
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
    // A destination of another type then causes an error, and the element stays.
    ask(&store, "SET text v");
    let wrong = block(&store, "BLMOVE a text LEFT RIGHT 0");
    let next = block(&store, "BLPOP a 0");
    ask(&store, "RPUSH a w");
    assert_eq!(reply_of(wrong), "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    assert_eq!(reply_of(next), "*2\r\n$1\r\na\r\n$1\r\nw\r\n");
}

#[test]
fn whatever_brings_a_list_to_life_serves() {
    let store = Store::new(StoreOptions::default());
    let payload = {
        ask(&store, "RPUSH k v");
        let reply = crate::run(&store, &mut Caller::default(), &[b"DUMP", b"k"]);
        ask(&store, "DEL k");
        let start = reply.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        reply[start..reply.len() - 2].to_vec()
    };
    for command in ["RENAME from k", "RENAMENX from k", "COPY from k", "RPOPLPUSH from k", "SORT from ALPHA STORE k"] {
        ask(&store, "DEL from k");
        ask(&store, "RPUSH from v");
        let waiting = block(&store, "BLPOP k 0");
        ask(&store, command);
        assert_eq!(reply_of(waiting), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n", "{command}");
        assert_eq!(ask(&store, "EXISTS k"), ":0\r\n");
    }
    let waiting = block(&store, "BLPOP k 0");
    assert_eq!(crate::run(&store, &mut Caller::default(), &[b"RESTORE", b"k", b"0", &payload]), b"+OK\r\n");
    assert_eq!(reply_of(waiting), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    // From another database, by MOVE and by SWAPDB.
    let other = &mut Caller { db: 1, ..Caller::default() };
    for command in [&[&b"MOVE"[..], b"k", b"0"], &[&b"SWAPDB"[..], b"0", b"1"], &[&b"SWAPDB"[..], b"1", b"0"]] {
        crate::run(&store, other, &[b"RPUSH", b"k", b"v"]);
        let waiting = block(&store, "BLPOP k 0");
        crate::run(&store, other, command);
        assert_eq!(reply_of(waiting), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    }
    // A value of another type does not serve the client, and hides no later element.
    let waiting = block(&store, "BLPOP k 0");
    ask(&store, "HSET k f v");
    ask(&store, "DEL k");
    ask(&store, "FLUSHALL");
    ask(&store, "SET k v");
    ask(&store, "SET k v2 PX 1");
    ask(&store, "DEL k");
    ask(&store, "RPUSH k v");
    assert_eq!(reply_of(waiting), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
}

#[test]
fn a_flush_leaves_those_who_wait_in_every_database() {
    let store = Store::new(StoreOptions::default());
    for db in [0, 3] {
        let caller = &mut Caller { db, ..Caller::default() };
        let waiting = start(&store, caller, &[b"BLPOP", b"k", b"0"]).expect_err("it waits");
        ask(&store, "FLUSHALL");
        crate::run(&store, caller, &[b"RPUSH", b"k", b"v"]);
        assert_eq!(reply_of(waiting), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    }
}

#[test]
fn a_client_on_several_keys_is_served_once() {
    let store = Store::new(StoreOptions::default());
    let waiting = block(&store, "BLPOP a b a c 0");
    ask(&store, "RPUSH b 1");
    ask(&store, "RPUSH a 2");
    ask(&store, "RPUSH c 3");
    assert_eq!(reply_of(waiting), "*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
    assert_eq!(ask(&store, "LLEN a"), ":1\r\n");
    assert_eq!(ask(&store, "LLEN c"), ":1\r\n");
}

#[test]
fn a_timeout_and_a_drop_take_nothing() {
    let store = Store::new(StoreOptions::default());
    let before = Instant::now();
    let (gone, late, last) =
        (block(&store, "BLPOP k 0"), block(&store, "BLMOVE k d LEFT LEFT 0.5"), block(&store, "BLPOP k 9"));
    assert!(gone.deadline().is_none());
    let half = Duration::from_millis(500);
    assert!((before + half..=Instant::now() + half).contains(&late.deadline().expect("it has one")));
    drop(gone);
    late.time_out();
    ask(&store, "RPUSH k v");
    assert_eq!(reply_of(late), "*-1\r\n");
    // The client was served before its timeout, which comes too late.
    last.time_out();
    assert_eq!(reply_of(last), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
}

#[test]
fn a_sections_pushes_serve_at_its_end_and_before_parked_commands() {
    let store = Store::new(StoreOptions::default());
    let mut waiting = block(&store, "BLPOP b a 0");
    let mut section = block_on(store.section([(0, &b"a"[..], Mode::Exclusive)])).expect("nobody else");
    let mut section_asks = |command: &str| {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let mut out = Vec::new();
        let mut writer = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
        section.execute(0, &words, &mut writer).expect("allowed");
        String::from_utf8(out).expect("text")
    };
    assert_eq!(section_asks("BLPOP a 0"), "*-1\r\n");
    assert_eq!(section_asks("BLMOVE a a LEFT LEFT 0"), "$-1\r\n");
    section_asks("RPUSH a 1");
    section_asks("DEL a");
    section_asks("RPUSH a 2");
    section_asks("RPUSH b 3");
    let parked = block(&store, "LPOP a");
    assert!(is_waiting(&mut waiting));
    drop(section);
    // The client is served from the first key that it names, even if another key was pushed to before (Redis 7.2).
    assert_eq!(reply_of(waiting), "*2\r\n$1\r\nb\r\n$1\r\n3\r\n");
    assert_eq!(reply_of(parked), "$1\r\n2\r\n");
    assert_eq!(ask(&store, "LRANGE b 0 -1"), "*0\r\n");
}

#[test]
fn a_blocking_command_that_meets_a_held_key_waits_for_both() {
    let store = Store::new(StoreOptions::default());
    let section = || block_on(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("nobody else");
    // The command finds an element at its turn.
    let held = section();
    let parked = block(&store, "BLPOP k other 0");
    drop(held);
    ask(&store, "RPUSH other v");
    assert_eq!(reply_of(parked), "*2\r\n$5\r\nother\r\n$1\r\nv\r\n");
    // At its turn the client has gone or timed out: nothing is taken.
    let held = section();
    let (gone, late) = (block(&store, "BLPOP k 0"), block(&store, "BLPOP k 1"));
    let push = block(&store, "RPUSH k 1 2");
    drop(gone);
    late.time_out();
    drop(held);
    assert_eq!(reply_of(late), "*-1\r\n");
    assert_eq!(reply_of(push), ":2\r\n");
    assert_eq!(ask(&store, "LPOP k 9"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // The command's own error.
    let held = section();
    let wrong = block(&store, "BLPOP k x");
    drop(held);
    assert_eq!(reply_of(wrong), "-ERR timeout is not a float or out of range\r\n");
}

/// A parked command has not looked at its key yet: it takes an existing element although its timeout has passed, and
/// only without one returns nothing.
#[test]
fn a_time_that_passes_while_a_key_is_held_ends_no_wait_before_the_key_was_looked_at() {
    let store = Store::new(StoreOptions::default());
    for is_there in [true, false] {
        let mut section = block_on(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("a free key");
        let mut parked = block(&store, "BLPOP k other 0.001");
        parked.time_out();
        assert!(is_waiting(&mut parked));
        let mut expected = "*-1\r\n";
        if is_there {
            let words: [&[u8]; 3] = [b"RPUSH", b"k", b"x"];
            section.execute(0, &words, &mut sluicegate_wire::resp::ReplyBuilder::new()).expect("its own key");
            expected = "*2\r\n$1\r\nk\r\n$1\r\nx\r\n";
        }
        drop(section);
        assert_eq!(reply_of(parked), expected);
    }
}

#[test]
fn a_move_to_a_held_key_takes_its_turn() {
    // The waiting clients can be overtaken by later commands, whatever the machine's speed.
    let store = Store::new(StoreOptions { overtaken_for: Duration::MAX, ..StoreOptions::default() });
    let section = || block_on(store.section([(0, &b"to"[..], Mode::Exclusive)])).expect("nobody else");
    let moves = block(&store, "BLMOVE from to LEFT RIGHT 0");
    let behind = block(&store, "BLPOP from 0");
    let held = section();
    ask(&store, "RPUSH from 1 2");
    drop(held);
    assert_eq!(reply_of(moves), "$1\r\n1\r\n");
    assert_eq!(reply_of(behind), "*2\r\n$4\r\nfrom\r\n$1\r\n2\r\n");
    assert_eq!(ask(&store, "LRANGE to 0 -1"), "*1\r\n$1\r\n1\r\n");
    // Another client has taken the element meanwhile: the command continues to wait.
    let mut moves = block(&store, "BLMOVE from to LEFT RIGHT 0");
    let held = section();
    ask(&store, "RPUSH from 3");
    assert_eq!(ask(&store, "LPOP from"), "$1\r\n3\r\n");
    drop(held);
    assert!(is_waiting(&mut moves));
    ask(&store, "RPUSH from 4");
    assert_eq!(reply_of(moves), "$1\r\n4\r\n");
    // The client gave up meanwhile: those behind it are served.
    let (moves, behind) = (block(&store, "BLMOVE from to LEFT RIGHT 0"), block(&store, "BLPOP from 0"));
    let held = section();
    ask(&store, "RPUSH from 5");
    moves.time_out();
    drop(held);
    assert_eq!(reply_of(moves), "*-1\r\n");
    assert_eq!(reply_of(behind), "*2\r\n$4\r\nfrom\r\n$1\r\n5\r\n");
}

/// Replies of Redis 7.2 that differ from those of 7.0, with which the other edge cases are compared: 7.0 says that
/// these times are negative, and takes the lowest rank for the last match.
#[test]
fn numbers_out_of_range_are_refused_as_by_redis_7_2() {
    let store = Store::new(StoreOptions::default());
    for timeout in ["inf", "1e30", "9223372036854775.807"] {
        assert_eq!(ask(&store, &format!("BLPOP k {timeout}")), "-ERR timeout is out of range\r\n");
    }
    drop(block(&store, "BLPOP k 9000000000000000"));
    let refused = "-ERR value is out of range, must between -9223372036854775807 and 9223372036854775807\r\n";
    assert_eq!(ask(&store, "LPOS k v RANK -9223372036854775808"), refused);
}

#[test]
fn rules_and_scripts_do_not_wait_for_others() {
    let store = Store::new(StoreOptions::default());
    for command in ["BLPOP k 0", "BRPOP k 0", "BLMOVE k k LEFT LEFT 0", "BRPOPLPUSH k k 0", "BLMPOP 0 1 k LEFT"] {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        match Engine::start(&store, 0, &words) {
            Started::Done(Reply::Error(text)) => assert!(text.contains("is not allowed here"), "{text}"),
            _ => panic!("{command} is accepted"),
        }
    }
}

/// Threads push, pop, block, move and give up at random; every element comes out exactly once.
fn nothing_is_lost_or_doubled(seed: u64, keys: &[&str]) {
    const PUSHERS: usize = 2;
    const POPPERS: usize = 4;
    const PUSHED: usize = 3_000;
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let popped = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let total = PUSHERS * PUSHED;
    let taken: Vec<BTreeSet<usize>> = std::thread::scope(|scope| {
        for pusher in 0..PUSHERS {
            let store = store.clone();
            scope.spawn(move || {
                let mut random = Random(seed * 100 + pusher as u64);
                let caller = &mut Caller::default();
                let mut next = pusher * PUSHED;
                let end = next + PUSHED;
                while next < end {
                    let key = random.pick(keys);
                    let count = (1 + random.below(3)).min(end - next);
                    let elements: Vec<String> = (next..next + count).map(|number| number.to_string()).collect();
                    let mut words: Vec<&[u8]> = vec![b"RPUSH", key.as_bytes()];
                    words.extend(elements.iter().map(String::as_bytes));
                    next += count;
                    if random.below(4) == 0 {
                        let mut section =
                            block_on(store.section([(0, key.as_bytes(), Mode::Exclusive)])).expect("room");
                        let mut out = Vec::new();
                        let mut writer = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
                        section.execute(0, &words, &mut writer).expect("declared");
                    } else {
                        start(&store, caller, &words).unwrap_or_else(block_on);
                    }
                }
            });
        }
        let poppers: Vec<_> = (0..POPPERS)
            .map(|popper| {
                let (store, popped, stop) = (store.clone(), popped.clone(), stop.clone());
                scope.spawn(move || {
                    let mut random = Random(seed * 100 + 50 + popper as u64);
                    let caller = &mut Caller::default();
                    let mut taken = BTreeSet::new();
                    while !stop.load(Ordering::SeqCst) {
                        let (key, other) = (random.pick(keys), random.pick(keys));
                        let words: Vec<&[u8]> = match random.below(6) {
                            0 => vec![b"BLMOVE", key.as_bytes(), other.as_bytes(), b"LEFT", b"RIGHT", b"0"],
                            1 => vec![b"LMOVE", key.as_bytes(), other.as_bytes(), b"LEFT", b"RIGHT"],
                            2 => vec![b"BLMPOP", b"0", b"2", key.as_bytes(), other.as_bytes(), b"LEFT", b"COUNT", b"2"],
                            3 => vec![b"BRPOP", key.as_bytes(), b"0"],
                            _ => vec![b"BLPOP", key.as_bytes(), other.as_bytes(), b"0"],
                        };
                        let moves = words[0].ends_with(b"MOVE");
                        let reply = match start(&store, caller, &words) {
                            Ok(reply) => Some(reply),
                            Err(parked) => give_up_or_wait(parked, &mut random),
                        };
                        let Some(reply) = reply.filter(|_| !moves) else { continue };
                        let numbers = numbers_in(&reply);
                        popped.fetch_add(numbers.len(), Ordering::SeqCst);
                        for number in numbers {
                            assert!(taken.insert(number), "{number} twice");
                        }
                    }
                    taken
                })
            })
            .collect();
        wait_for("every element", || (popped.load(Ordering::SeqCst) == total).then_some(()));
        stop.store(true, Ordering::SeqCst);
        poppers.into_iter().map(|popper| popper.join().expect("it ended")).collect()
    });
    let all: BTreeSet<usize> = taken.iter().flatten().copied().collect();
    assert_eq!((all.len(), taken.iter().map(BTreeSet::len).sum::<usize>()), (total, total));
    assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
}

/// Waits for a moment, then drops the future, ends it by its timeout, or continues.
///
/// A drop must not come after the element was taken, so the reply is polled once more, as a connection does; an element
/// taken in that instant is lost, as by a client that leaves while it is served.
fn give_up_or_wait(mut parked: Parked, random: &mut Random) -> Option<Vec<u8>> {
    let mut polls = random.below(40);
    loop {
        if let Poll::Ready(reply) = Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop())) {
            return Some(reply);
        }
        if polls == 0 {
            parked.time_out();
            return Some(block_on(parked));
        }
        polls -= 1;
        std::thread::yield_now();
    }
}

/// Returns the elements in a reply: the bulk strings that are numbers.
fn numbers_in(reply: &[u8]) -> Vec<usize> {
    let text = std::str::from_utf8(reply).expect("text");
    text.split("\r\n").filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn no_element_is_lost_or_doubled_on_one_key() {
    nothing_is_lost_or_doubled(1, &["k"]);
}

#[test]
fn no_element_is_lost_or_doubled_on_several_keys() {
    nothing_is_lost_or_doubled(2, &["a", "b", "c", "d"]);
}

/// Waits until the server reports `count` blocked clients.
fn blocked(server: &Running, count: usize) {
    let mut admin = server.connect();
    wait_for("blocked clients", || {
        let text = admin.ask(&["INFO", "clients"]);
        text.contains(&format!("blocked_clients:{count}\r\n")).then_some(())
    });
}

#[test]
fn connections_are_served_in_the_order_in_which_they_blocked() {
    let server = Running::with(Default::default(), 2);
    let mut clients: Vec<Client> = Vec::new();
    for count in 0..20 {
        blocked(&server, count);
        let mut client = server.connect();
        // Later commands of the pipeline run when the wait is over.
        client.send("BLPOP queue other 0\r\nECHO done\r\n");
        clients.push(client);
    }
    blocked(&server, 20);
    let mut pusher = server.connect();
    let elements: Vec<String> = (0..20).map(|number| format!("e{number}")).collect();
    for (at, element) in elements.iter().enumerate().take(10) {
        let key = if at % 2 == 0 { "queue" } else { "other" };
        assert_eq!(pusher.ask(&["RPUSH", key, element]), ":1\r\n");
    }
    let rest: Vec<&str> = ["RPUSH", "queue"].into_iter().chain(elements[10..].iter().map(String::as_str)).collect();
    assert_eq!(pusher.ask(&rest), ":10\r\n");
    for (at, client) in clients.iter_mut().enumerate() {
        let reply = String::from_utf8(client.read_reply()).expect("text");
        assert!(reply.ends_with(&format!("\r\ne{at}\r\n")), "client {at} got {reply:?}");
        assert_eq!(client.read_reply(), b"$4\r\ndone\r\n");
    }
    assert_eq!(pusher.ask(&["EXISTS", "queue", "other"]), ":0\r\n");
    blocked(&server, 0);
}

#[test]
fn a_connection_times_out_is_unblocked_and_leaves() {
    let server = Running::with(Default::default(), 2);
    let mut admin = server.connect();
    let mut client = server.connect();
    let id = client.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    let start = Instant::now();
    assert_eq!(client.ask(&["BLPOP", "k", "0.05"]), "*-1\r\n");
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(admin.ask(&["CLIENT", "UNBLOCK", &id]), ":0\r\n");
    for (words, expected) in [
        (&["CLIENT", "UNBLOCK", &id][..], "*-1\r\n"),
        (&["CLIENT", "UNBLOCK", &id, "timeout"], "*-1\r\n"),
        (&["CLIENT", "UNBLOCK", &id, "ERROR"], "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
    ] {
        client.command(&["BLPOP", "k", "0"]);
        blocked(&server, 1);
        assert!(admin.ask(&["CLIENT", "LIST", "ID", &id]).contains(" flags=b "));
        assert_eq!(admin.ask(words), ":1\r\n");
        assert_eq!(String::from_utf8(client.read_reply()).expect("text"), expected);
    }
    assert_eq!(admin.ask(&["CLIENT", "UNBLOCK", "x"]), "-ERR value is not an integer or out of range\r\n");
    assert_eq!(admin.ask(&["CLIENT", "UNBLOCK", "999999"]), ":0\r\n");
    let reason = "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n";
    assert_eq!(admin.ask(&["CLIENT", "UNBLOCK", &id, "junk"]), reason);
    // One client leaves, even with requests in flight, and one is killed: nothing is popped for them.
    client.send("BLPOP k 0\r\nSET after leaving\r\n");
    let mut other = server.connect();
    let other_id = other.ask(&["CLIENT", "ID"]).trim_start_matches(':').trim().to_owned();
    other.command(&["BLMOVE", "k", "to", "LEFT", "LEFT", "0"]);
    blocked(&server, 2);
    drop(client);
    blocked(&server, 1);
    assert_eq!(admin.ask(&["CLIENT", "KILL", "ID", &other_id]), ":1\r\n");
    blocked(&server, 0);
    assert_eq!(admin.ask(&["RPUSH", "k", "v"]), ":1\r\n");
    assert_eq!(admin.ask(&["LRANGE", "k", "0", "-1"]), "*1\r\n$1\r\nv\r\n");
    assert_eq!(admin.ask(&["EXISTS", "after", "to"]), ":0\r\n");
}

/// Pushes of a transaction serve clients at its end, even if it has the gate closed; a blocking command in it doesn't
/// wait.
#[test]
fn transactions_serve_at_their_end() {
    let server = Running::with(Default::default(), 2);
    let mut admin = server.connect();
    for alone in [false, true] {
        let mut client = server.connect();
        client.command(&["BLPOP", "a", "b", "0"]);
        blocked(&server, 1);
        assert_eq!(admin.ask(&["MULTI"]), "+OK\r\n");
        let mut expected = "*5\r\n*-1\r\n:1\r\n:1\r\n:1\r\n:1\r\n".to_owned();
        if alone {
            assert_eq!(admin.ask(&["KEYS", "none"]), "+QUEUED\r\n");
            expected = expected.replace("*5\r\n", "*6\r\n*0\r\n");
        }
        for line in ["BLPOP a 0", "RPUSH b 1", "RPUSH a 2", "DEL b", "RPUSH b 3"] {
            assert_eq!(admin.ask(&line.split(' ').collect::<Vec<_>>()), "+QUEUED\r\n");
        }
        assert_eq!(admin.ask(&["EXEC"]), expected);
        assert_eq!(client.read_reply(), b"*2\r\n$1\r\na\r\n$1\r\n2\r\n");
        assert_eq!(admin.ask(&["RPOP", "b"]), "$1\r\n3\r\n");
        assert_eq!(admin.ask(&["EXISTS", "a", "b"]), ":0\r\n");
    }
}

#[test]
fn a_server_that_stops_does_not_wait_for_elements() {
    let server = Running::start();
    let mut client = server.connect();
    client.command(&["BLPOP", "k", "0"]);
    blocked(&server, 1);
    server.server.stop();
    assert_eq!(client.read_to_end(), b"");
}

/// An element of a key that expires while the script runs must not be served to a client.
#[test]
fn what_expired_during_a_section_is_handed_to_nobody() {
    let hand = ManualClock::new(1_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    type Words<'w> = &'w [&'w [u8]];
    let waits: &[(Words<'_>, Words<'_>)] = &[
        (&[b"BZPOPMIN", b"k", b"0"], &[b"ZADD", b"k", b"1", b"a"]),
        (&[b"BLPOP", b"k", b"0"], &[b"RPUSH", b"k", b"a"]),
        (&[b"BLMOVE", b"k", b"to", b"LEFT", b"LEFT", b"0"], &[b"RPUSH", b"k", b"a"]),
    ];
    for (waits, brings) in waits {
        let Err(mut waiting) = start(&store, &mut Caller::default(), waits) else { panic!("nothing is there") };
        let mut section = block_on(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("the key is free");
        for words in [brings, &[&b"PEXPIRE"[..], b"k", b"20"][..]] {
            let mut reply = Vec::new();
            section.execute(0, words, &mut ReplyWriter::new(&mut reply, Default::default())).expect("its own key");
            assert_eq!(reply, b":1\r\n");
        }
        hand.advance(30);
        drop(section);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut waiting).poll(&mut context).is_pending(), "{waits:?}");
        assert_eq!(run(&store, &mut Caller::default(), brings), b":1\r\n");
        assert!(Pin::new(&mut waiting).poll(&mut context).is_ready(), "{waits:?}: what comes later is");
    }
}
