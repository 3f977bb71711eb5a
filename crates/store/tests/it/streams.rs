//! Streams: which clients XREAD serves and when, streams of very many entries, their memory, payloads and scripts.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use sluicegate_store::{Caller, Mode, Parked, Store, StoreOptions};
use sluicegate_testkit::wait_for;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use crate::support::Running;
use crate::{ask, block_on, start};

/// More entries than a worker iterates over at once.
const MANY: usize = 30_000;

/// Starts a command, given as text, that has to wait.
#[track_caller]
fn block(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("it waits")
}

fn reply_now(parked: &mut Parked) -> Option<String> {
    match Pin::new(parked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(String::from_utf8(reply).expect("tests use text")),
        Poll::Pending => None,
    }
}

#[track_caller]
fn reply_of(mut parked: Parked) -> String {
    wait_for("a reply", || reply_now(&mut parked))
}

/// Returns XREAD's reply with one entry of a stream in RESP2.
fn told(key: &str, id: &str, value: &str) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    format!("*1\r\n*2\r\n{}*1\r\n*2\r\n{}*2\r\n{}{}", bulk(key), bulk(id), bulk("f"), bulk(value))
}

#[test]
fn all_who_wait_for_a_stream_are_served() {
    let store = Store::new(StoreOptions::default());
    let new = block(&store, "XREAD BLOCK 0 STREAMS s $");
    let all = block(&store, "XREAD BLOCK 0 STREAMS s 0");
    let mut far = block(&store, "XREAD BLOCK 0 STREAMS other s 0 5");
    let mut list = block(&store, "BLPOP s 0");
    assert_eq!(ask(&store, "XADD s 1-1 f a"), "$3\r\n1-1\r\n");
    assert_eq!(reply_of(new), told("s", "1-1", "a"));
    assert_eq!(reply_of(all), told("s", "1-1", "a"));
    assert!(reply_now(&mut far).is_none() && reply_now(&mut list).is_none());
    // The stream exists now, and further entries wake a client as well.
    let new = block(&store, "XREAD COUNT 1 BLOCK 0 STREAMS s $");
    ask(&store, "XADD s 5 f b");
    assert_eq!(reply_of(new), told("s", "5-0", "b"));
    assert!(reply_now(&mut far).is_none());
    ask(&store, "XADD s 5-1 f c");
    assert_eq!(reply_of(far), told("s", "5-1", "c"));
    // The reply of a client that waits for several keys names the stream as the client did, and BLPOP still waits.
    ask(&store, "DEL s");
    assert!(reply_now(&mut list).is_none());
    ask(&store, "RPUSH s x");
    assert_eq!(reply_of(list), "*2\r\n$1\r\ns\r\n$1\r\nx\r\n");
}

#[test]
fn what_a_dollar_stands_for_is_known_from_the_first_look() {
    let store = Store::new(StoreOptions::default());
    ask(&store, "XADD s 9 f a");
    let mut waiting = block(&store, "XREAD BLOCK 0 STREAMS s $");
    // After a key is deleted and recreated with lower IDs, the client still waits for IDs above the old one.
    ask(&store, "DEL s");
    ask(&store, "XADD s 5 f b");
    ask(&store, "SET s text");
    ask(&store, "DEL s");
    ask(&store, "XADD s 7 f c");
    assert!(reply_now(&mut waiting).is_none());
    ask(&store, "XADD s 9 f d");
    assert!(reply_now(&mut waiting).is_none());
    ask(&store, "XADD s 9-1 f e");
    assert_eq!(reply_of(waiting), told("s", "9-1", "e"));
    // Behind a held key, `$` is resolved when the command runs.
    let section = block_on(store.section([(0, &b"s"[..], Mode::Exclusive)])).expect("a free key");
    let mut waiting = block(&store, "XREAD BLOCK 0 STREAMS s $");
    let adding = block(&store, "XADD s 10 f x");
    assert!(reply_now(&mut waiting).is_none());
    drop(section);
    assert_eq!(reply_of(adding), "$4\r\n10-0\r\n");
    assert_eq!(reply_of(waiting), told("s", "10-0", "x"));
}

#[test]
fn whatever_brings_a_stream_serves() {
    let store = Store::new(StoreOptions::default());
    for command in ["RENAME from s", "RENAMENX from s", "COPY from s", "MOVE"] {
        ask(&store, "FLUSHALL");
        let waiting = block(&store, "XREAD BLOCK 0 STREAMS s $");
        let caller = &mut Caller { db: u32::from(command == "MOVE"), ..Caller::default() };
        let key: &[u8] = if command == "MOVE" { b"s" } else { b"from" };
        crate::run(&store, caller, &[b"XADD", key, b"3", b"f", b"v"]);
        match command {
            "MOVE" => assert_eq!(crate::run(&store, caller, &[b"MOVE", b"s", b"0"]), b":1\r\n"),
            command => assert_ne!(ask(&store, command).as_bytes()[0], b'-'),
        }
        assert_eq!(reply_of(waiting), told("s", "3-0", "v"), "{command}");
    }
    // An entry that is added and deleted again is not served.
    ask(&store, "FLUSHALL");
    let mut waiting = block(&store, "XREAD BLOCK 0 STREAMS s 0");
    assert_eq!(ask(&store, "XADD s MAXLEN 0 1 f v"), "$3\r\n1-0\r\n");
    assert!(reply_now(&mut waiting).is_none());
    ask(&store, "XADD s 2 f w");
    assert_eq!(reply_of(waiting), told("s", "2-0", "w"));
}

#[test]
fn a_wait_for_a_stream_ends_by_its_timeout() {
    let store = Store::new(StoreOptions::default());
    let waiting = block(&store, "XREAD BLOCK 20 STREAMS s $");
    assert!(waiting.deadline().is_some());
    waiting.time_out();
    assert_eq!(reply_of(waiting), "*-1\r\n");
    assert!(block(&store, "XREAD BLOCK 0 STREAMS s $").deadline().is_none());
    // Without BLOCK it never waits for entries, and behind a held key no longer than the key is held.
    let section = block_on(store.section([(0, &b"s"[..], Mode::Exclusive)])).expect("a free key");
    let reading = block(&store, "XREAD STREAMS s 0");
    drop(section);
    assert_eq!(reply_of(reading), "*-1\r\n");
    assert_eq!(ask(&store, "XREAD STREAMS s 0"), "*-1\r\n");
}

#[test]
fn connections_wait_for_streams() {
    let server = Running::with(Default::default(), 2);
    let blocked = |count: usize| {
        let mut admin = server.connect();
        wait_for("blocked clients", || {
            admin.ask(&["INFO", "clients"]).contains(&format!("blocked_clients:{count}\r\n")).then_some(())
        });
    };
    let mut readers: Vec<_> = (0..8).map(|_| server.connect()).collect();
    readers.iter_mut().for_each(|reader| reader.send("XREAD BLOCK 0 STREAMS a b $ $\r\nECHO done\r\n"));
    let mut third = server.connect();
    third.ask(&["HELLO", "3"]);
    let id = third.ask(&["CLIENT", "ID"]);
    third.send("XREAD BLOCK 0 STREAMS c b $ $\r\n");
    let mut timed = server.connect();
    timed.send("XREAD BLOCK 1 STREAMS a $\r\n");
    assert_eq!(timed.read_reply(), b"*-1\r\n");
    blocked(9);
    let mut admin = server.connect();
    // A transaction adds to one stream twice, and both entries come in one reply.
    for line in ["MULTI\r\n", "XADD b 1 f x\r\n", "XADD b 2 f y\r\n", "XREAD BLOCK 0 STREAMS none $\r\n", "EXEC\r\n"] {
        admin.send(line);
    }
    (0..4).for_each(|_| drop(admin.read_reply()));
    assert_eq!(admin.read_reply(), b"*3\r\n$3\r\n1-0\r\n$3\r\n2-0\r\n*-1\r\n");
    let entry = |id: &str, value: &str| format!("*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\n{value}\r\n");
    let entries = format!("*2\r\n{}{}", entry("1-0", "x"), entry("2-0", "y"));
    for reader in &mut readers {
        assert_eq!(reader.read_reply(), format!("*1\r\n*2\r\n$1\r\nb\r\n{entries}").as_bytes());
        assert_eq!(reader.read_reply(), b"$4\r\ndone\r\n");
    }
    assert_eq!(third.read_reply(), format!("%1\r\n$1\r\nb\r\n{entries}").as_bytes());
    third.send("XREAD BLOCK 0 STREAMS b $\r\n");
    blocked(1);
    assert_eq!(admin.ask(&["CLIENT", "UNBLOCK", id.trim_matches([':', '\r', '\n']), "ERROR"]), ":1\r\n");
    assert_eq!(third.read_reply(), b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    // A script does not wait either, and its entries serve clients at its end.
    let mut reader = server.connect();
    reader.send("XREAD BLOCK 0 STREAMS e $\r\n");
    blocked(1);
    let script = "redis.call('XADD', KEYS[1], '1-1', 'f', 'x') \
                  local none = redis.pcall('XREAD', 'BLOCK', 0, 'STREAMS', KEYS[1], '$') \
                  local all = redis.call('XREAD', 'STREAMS', KEYS[1], '0') \
                  redis.call('XADD', KEYS[1], 'MAXLEN', '~', '100', '*', 'f', 'y') \
                  return {none, all[1][2][1][2][2], redis.call('XLEN', KEYS[1])}";
    assert_eq!(admin.ask(&["EVAL", script, "1", "e"]), "*3\r\n$-1\r\n$1\r\nx\r\n:2\r\n");
    assert!(String::from_utf8(reader.read_reply()).expect("text").starts_with("*1\r\n*2\r\n$1\r\ne\r\n*2\r\n"));
}

/// No reader misses an entry or sees one twice: each continues from the last ID that it has seen, whoever adds.
#[test]
fn no_entry_is_lost_on_the_way_to_its_readers() {
    const ENTRIES: usize = 600;
    let store = Store::new(StoreOptions { stripes: 2, ..StoreOptions::default() });
    let read_all = |keys: [&str; 2]| {
        let (mut ids, mut seen) = (["0".to_owned(), "0".to_owned()], 0);
        while seen < 2 * ENTRIES {
            let command = format!("XREAD BLOCK 0 STREAMS {} {} {} {}", keys[0], keys[1], ids[0], ids[1]);
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            let mut caller = Caller { protocol: sluicegate_wire::resp::Protocol::Resp2, ..Caller::default() };
            let reply = start(&store, &mut caller, &words).unwrap_or_else(block_on);
            let text = String::from_utf8(reply).expect("text");
            let mut key = 0;
            for line in text.split("\r\n") {
                if let Some(at) = keys.iter().position(|key| *key == line) {
                    key = at;
                } else if let Some((_, seq)) = line.split_once('-').filter(|(ms, _)| *ms == "1") {
                    let last: usize = ids[key].rsplit('-').next().expect("a part").parse().expect("a number");
                    assert_eq!(seq.parse::<usize>().expect("a number"), last + 1, "of {}", keys[key]);
                    ids[key] = line.to_owned();
                    seen += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|n| drop(scope.spawn(move || read_all(if n == 1 { ["b", "a"] } else { ["a", "b"] }))));
        for key in ["a", "b"] {
            let store = &store;
            scope.spawn(move || {
                for n in 1..=ENTRIES {
                    let words =
                        [&b"XADD"[..], key.as_bytes(), format!("1-{n}").as_bytes(), b"f", b"v"].map(<[u8]>::to_vec);
                    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    let _ = start(store, &mut Caller::default(), &words).unwrap_or_else(block_on);
                }
            });
        }
    });
    wait_for("no ticket to be left", || (store.stats().tickets == 0).then_some(()));
}

#[test]
fn very_many_entries_are_read_aside_and_freed_aside() {
    let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
    let empty = store.used_bytes();
    for n in 1..=MANY {
        ask(&store, &format!("XADD s 1-{n} name value number {n}"));
    }
    let used = (store.used_bytes() - empty) as usize;
    // Per entry: two numbers of at most 7 bytes, a word of 7, and four fields of one byte; a hundred entries share the
    // rest.
    assert!(used < 24 * MANY, "{} bytes an entry", used / MANY);
    assert_eq!(ask(&store, "SET k v"), "+OK\r\n");
    let aside = |command: &str| {
        let mut parked = block(&store, command);
        let reply = loop {
            if let Some(reply) = reply_now(&mut parked) {
                break reply;
            }
            assert_eq!(ask(&store, "GET k"), "$1\r\nv\r\n");
        };
        wait_for("no key to be held", || (store.stats().tickets == 0).then_some(()));
        reply
    };
    for command in ["XRANGE s - +", "XREVRANGE s + -", "XREAD BLOCK 0 STREAMS s 0", "XREAD STREAMS none s 0 0"] {
        assert_eq!(aside(command).matches("value").count(), MANY, "{command}");
    }
    assert_eq!(aside("XINFO STREAM s FULL COUNT 0").matches("value").count(), MANY);
    // A few entries are read without the thread pool.
    for command in
        ["XRANGE s - + COUNT 5", "XRANGE s 1-20000 1-20004", "XREAD COUNT 5 STREAMS s 0", "XREAD STREAMS s 1-29995"]
    {
        assert_eq!(ask(&store, command).matches("value").count(), 5, "{command}");
    }
    assert_eq!(ask(&store, "XINFO STREAM s FULL").matches("value").count(), 10);
    assert_eq!(aside("COPY s t"), ":1\r\n");
    assert_eq!(ask(&store, "XTRIM s MAXLEN 1000"), ":29000\r\n");
    assert_eq!(ask(&store, "XTRIM t MAXLEN ~ 10000 LIMIT 0"), ":20000\r\n");
    assert_eq!(ask(&store, "XLEN t"), ":10000\r\n");
    assert_eq!(ask(&store, "UNLINK s t k"), ":3\r\n");
    wait_for("memory to be free", || (store.used_bytes() <= empty + 4096).then_some(()));
}

#[test]
fn a_stream_is_read_as_it_was_at_one_moment() {
    let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
    for n in 1..=MANY {
        ask(&store, &format!("XADD s 1-{n} f {n}"));
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=200 {
                for command in [format!("XADD s 2-{n} f v"), format!("XDEL s 1-{n}")] {
                    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
                    let _ = start(&store, &mut Caller::default(), &words).unwrap_or_else(block_on);
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            let reply = reply_of(block(&store, "XRANGE s - +"));
            // Each XADD precedes its XDEL, so there is at most one more entry.
            assert!([MANY, MANY + 1].contains(&reply.matches("\r\nf\r\n").count()));
        }
    });
}

#[test]
fn a_stream_without_entries_stays() {
    let store = Store::new(StoreOptions::default());
    ask(&store, "XADD s 5 f v");
    assert_eq!(ask(&store, "XDEL s 5"), ":1\r\n");
    assert_eq!(ask(&store, "EXISTS s"), ":1\r\n");
    assert_eq!(ask(&store, "XLEN s"), ":0\r\n");
    assert_eq!(ask(&store, "COPY s t"), ":1\r\n");
    assert!(ask(&store, "XADD t 5 f v").starts_with("-ERR The ID specified in XADD is equal or smaller"));
    assert_eq!(ask(&store, "XADD s 1-1-1 f v"), "-ERR Invalid stream ID specified as stream command argument\r\n");
    // A failed command creates nothing.
    assert!(ask(&store, "XADD none 0-0 f v").starts_with('-'));
    assert_eq!(ask(&store, "XADD none NOMKSTREAM 1 f v"), "$-1\r\n");
    assert_eq!(ask(&store, "EXISTS none"), ":0\r\n");
}

#[test]
fn rules_read_streams_and_never_wait_for_them() {
    let store = Store::new(StoreOptions::default());
    ask(&store, "XADD s 1 f v");
    let call = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match store.start(0, &words) {
            Started::Done(reply) => reply,
            Started::Pending(_) => panic!("it waits"),
        }
    };
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let entries = Reply::Array(vec![Reply::Array(vec![bulk("1-0"), Reply::Array(vec![bulk("f"), bulk("v")])])]);
    assert_eq!(call(&["XRANGE", "s", "-", "+"]), entries);
    assert_eq!(call(&["XREAD", "STREAMS", "s", "0"]), Reply::Map(vec![(bulk("s"), entries)]));
    assert_eq!(call(&["XREAD", "STREAMS", "s", "$"]), Reply::Null);
    let Reply::Error(text) = call(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]) else { panic!("it waits") };
    assert!(text.starts_with("ERR XREAD is not allowed here"), "{text}");
}

#[test]
fn limits_of_nodes_act() {
    let ours = Running::start();
    let mut client = ours.connect();
    let nodes = |client: &mut sluicegate_testkit::Client| {
        let text = client.ask(&["XINFO", "STREAM", "s"]);
        let rest = text.split("radix-tree-keys\r\n:").nth(1).expect("it is told");
        rest.split('\r').next().expect("a number").parse::<usize>().expect("a number")
    };
    // Other tests share the settings of this process, so they are set to the values that they already have.
    assert_eq!(
        client.ask(&["CONFIG", "SET", "stream-node-max-entries", "100", "stream-node-max-bytes", "4096"]),
        "+OK\r\n"
    );
    for n in 1..=101 {
        client.ask(&["XADD", "s", &format!("1-{n}"), "f", "v"]);
    }
    assert_eq!(nodes(&mut client), 2);
    client.ask(&["XADD", "s", "2", "f", &"v".repeat(4_000)]);
    client.ask(&["XADD", "s", "3", "f", &"v".repeat(100)]);
    assert_eq!(nodes(&mut client), 3);
    assert!(client.ask(&["CONFIG", "SET", "stream-node-max-entries", "-1"]).starts_with("-ERR"));
}
