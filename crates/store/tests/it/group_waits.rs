//! Consumers that wait in XREADGROUP: the order in which they are served, and the changes that end a wait with an error.

use sluicegate_store::{Caller, Clock, ManualClock, Parked, Store, StoreOptions};
use sluicegate_testkit::wait_for;

use crate::support::Running;
use crate::{ask, start};

#[track_caller]
fn block(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("it waits")
}

fn reply_now(parked: &mut Parked) -> Option<String> {
    use std::task::{Context, Poll, Waker};
    match std::pin::Pin::new(parked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(String::from_utf8(reply).expect("tests use text")),
        Poll::Pending => None,
    }
}

#[track_caller]
fn reply_of(mut parked: Parked) -> String {
    wait_for("a reply", || reply_now(&mut parked))
}

/// Returns the reply with one entry of a stream in RESP2.
fn told(key: &str, id: &str) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    format!("*1\r\n*2\r\n{}*1\r\n*2\r\n{}*2\r\n{}{}", bulk(key), bulk(id), bulk("f"), bulk("v"))
}

fn no_group(key: &str) -> String {
    format!("-NOGROUP No such key '{key}' or consumer group 'g' in XREADGROUP with GROUP option\r\n")
}

/// A store with a stream and a group that has read everything.
fn prepared() -> Store {
    let store = Store::new(StoreOptions::default());
    ask(&store, "XADD s 1 f v");
    ask(&store, "XGROUP CREATE s g $");
    store
}

#[test]
fn consumers_are_served_in_the_order_of_their_arrival_as_long_as_there_are_entries() {
    let store = prepared();
    let first = block(&store, "XREADGROUP GROUP g a BLOCK 0 COUNT 1 STREAMS s >");
    let mut second = block(&store, "XREADGROUP GROUP g b BLOCK 0 COUNT 1 STREAMS s >");
    let reader = block(&store, "XREAD BLOCK 0 STREAMS s $");
    ask(&store, "XADD s 2 f v");
    assert_eq!(reply_of(first), told("s", "2-0"));
    assert_eq!(reply_of(reader), told("s", "2-0"), "a reader without a group gets every entry");
    assert!(reply_now(&mut second).is_none());
    // The consumer exists since its first attempt, and the entry is pending.
    assert_eq!(ask(&store, "XPENDING s g - + 9 a").matches("2-0").count(), 1);
    assert_eq!(ask(&store, "XGROUP CREATECONSUMER s g b"), ":0\r\n");
    ask(&store, "XADD s 3 f v");
    assert_eq!(reply_of(second), told("s", "3-0"));
    // Several entries at once serve several consumers.
    let waiting =
        ["a", "b"].map(|name| block(&store, &format!("XREADGROUP GROUP g {name} BLOCK 0 COUNT 1 STREAMS s >")));
    assert_eq!(
        ask(&store, "EVAL redis.call('xadd',KEYS[1],4,'f','v')redis.call('xadd',KEYS[1],5,'f','v') 1 s"),
        "$-1\r\n"
    );
    let replies = waiting.map(reply_of);
    assert_eq!(replies, [told("s", "4-0"), told("s", "5-0")]);
    // An entry that does not stay is not served.
    let mut waiting = block(&store, "XREADGROUP GROUP g a BLOCK 0 NOACK STREAMS s >");
    ask(&store, "XADD s MAXLEN 0 6 f v");
    assert!(reply_now(&mut waiting).is_none());
    ask(&store, "XADD s 7 f v");
    assert_eq!(reply_of(waiting), told("s", "7-0"));
    assert_eq!(ask(&store, "XPENDING s g 7 7 9"), "*0\r\n");
}

#[test]
fn a_wait_ends_when_its_group_disappears() {
    for (command, error) in [
        ("DEL s", no_group("s")),
        ("UNLINK s", no_group("s")),
        ("XGROUP DESTROY s g", no_group("s")),
        ("RENAME s other", no_group("s")),
        ("RENAME fresh s", no_group("s")),
        ("MOVE s 1", no_group("s")),
        ("SWAPDB 0 1", no_group("s")),
        ("FLUSHDB", no_group("s")),
        ("FLUSHALL", no_group("s")),
        ("PEXPIREAT s 1", no_group("s")),
        ("COPY fresh s REPLACE", no_group("s")),
        ("EVAL redis.call('del',KEYS[1])redis.call('xadd',KEYS[1],9,'f','v') 1 s", no_group("s")),
        ("EVAL redis.call('flushall') 0", no_group("s")),
        ("SET s v", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n".to_owned()),
        ("SORT list STORE s", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n".to_owned()),
    ] {
        let store = prepared();
        ask(&store, "XADD fresh 5 f v");
        ask(&store, "RPUSH list 1");
        let waiting = block(&store, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
        let mut reader = block(&store, "XREAD BLOCK 0 STREAMS s 77");
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let reply = start(&store, &mut Caller::default(), &words).unwrap_or_else(crate::block_on);
        assert_ne!(reply[0], b'-', "{command}: {}", reply.escape_ascii());
        assert_eq!(reply_of(waiting), error, "{command}");
        assert!(reply_now(&mut reader).is_none(), "{command}");
    }
}

#[test]
fn a_wait_goes_on_when_the_group_is_still_there() {
    let store = prepared();
    let mut waiting = block(&store, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
    for command in
        ["EXPIRE s 1000", "PERSIST s", "XGROUP CREATE s h 0", "XGROUP DESTROY s h", "XDEL s 1", "XGROUP SETID s g 0"]
    {
        assert_ne!(ask(&store, command).as_bytes()[0], b'-', "{command}");
        assert!(reply_now(&mut waiting).is_none(), "{command}");
    }
    // A stream with the same group, and with an entry, comes by another name.
    ask(&store, "XGROUP CREATE other g 0 MKSTREAM");
    ask(&store, "XADD other 9 f v");
    ask(&store, "RENAME other s");
    assert_eq!(reply_of(waiting), told("s", "9-0"));
    let waiting = block(&store, "XREADGROUP GROUP g a BLOCK 20 STREAMS s >");
    assert!(waiting.deadline().is_some());
    waiting.time_out();
    assert_eq!(reply_of(waiting), "*-1\r\n");
}

#[test]
fn a_stream_that_expires_or_is_evicted_ends_the_wait() {
    let clock = ManualClock::new(1_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() });
    for how in ["a reader", "the sweep"] {
        ask(&store, "XGROUP CREATE s g $ MKSTREAM");
        ask(&store, "PEXPIRE s 10");
        let waiting = block(&store, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
        clock.advance(20);
        match how {
            "a reader" => assert_eq!(ask(&store, "EXISTS s"), ":0\r\n"),
            _ => wait_for("the sweep", || {
                store.tick();
                (ask(&store, "DBSIZE") == ":0\r\n").then_some(())
            }),
        }
        assert_eq!(reply_of(waiting), no_group("s"), "{how}");
    }
    let waiting = {
        ask(&store, "XGROUP CREATE s g $ MKSTREAM");
        block(&store, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >")
    };
    store.limit_memory(1, sluicegate_store::Policy::AllkeysRandom);
    ask(&store, "SET k v");
    assert_eq!(reply_of(waiting), no_group("s"));
}

#[test]
fn a_client_that_waits_for_several_streams_gets_all_that_a_section_adds_or_an_error() {
    let store = prepared();
    ask(&store, "XGROUP CREATE t g $ MKSTREAM");
    let waiting = block(&store, "XREADGROUP GROUP g a BLOCK 0 STREAMS s t > >");
    let add = "redis.call('xadd',KEYS[2],2,'f','v')redis.call('xadd',KEYS[1],2,'f','v')";
    crate::run(&store, &mut Caller::default(), &[b"EVAL", add.as_bytes(), b"2", b"s", b"t"]);
    let both = reply_of(waiting);
    assert!(both.starts_with("*2\r\n*2\r\n$1\r\ns\r\n") && both.contains("$1\r\nt\r\n"), "{both}");
    let waiting = block(&store, "XREADGROUP GROUP g a BLOCK 0 STREAMS s t > >");
    let add = "redis.call('xadd',KEYS[1],3,'f','v')redis.call('del',KEYS[2])";
    crate::run(&store, &mut Caller::default(), &[b"EVAL", add.as_bytes(), b"2", b"s", b"t"]);
    assert_eq!(reply_of(waiting), no_group("t"));
    assert_eq!(ask(&store, "XPENDING s g 3 3 9"), "*0\r\n", "an error changes nothing");
}

#[test]
fn transactions_and_connections_wait_as_in_redis() {
    let server = Running::with(Default::default(), 2);
    let mut admin = server.connect();
    admin.ask(&["XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"]);
    // In a transaction it does not wait; changes of groups do not disturb clients that watch the key.
    let mut other = server.connect();
    other.ask(&["WATCH", "s"]);
    admin.ask(&["XGROUP", "CREATE", "s", "h", "$"]);
    admin.ask(&["XSETID", "s", "0-5"]);
    other.ask(&["MULTI"]);
    other.ask(&["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"]);
    assert_eq!(other.ask(&["EXEC"]), "*1\r\n*-1\r\n");
    let mut waiting = server.connect();
    waiting.send("XREADGROUP GROUP g c BLOCK 0 STREAMS s >\r\n");
    wait_for("a blocked client", || {
        let info = admin.ask(&["INFO", "clients"]);
        (info.contains("blocked_clients:1\r\n") && info.contains("total_blocking_keys_on_nokey:1\r\n")).then_some(())
    });
    other.ask(&["MULTI"]);
    other.ask(&["DEL", "s"]);
    other.ask(&["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]);
    other.ask(&["XADD", "s", "2", "f", "v"]);
    assert!(other.ask(&["EXEC"]).starts_with("*3\r\n:1\r\n+OK\r\n"));
    assert_eq!(waiting.read_reply(), told("s", "2-0").into_bytes());
    waiting.send("XREADGROUP GROUP g c BLOCK 0 STREAMS s >\r\n");
    wait_for("a blocked client", || admin.ask(&["INFO", "clients"]).contains("blocked_clients:1\r\n").then_some(()));
    admin.ask(&["XGROUP", "DESTROY", "s", "g"]);
    assert_eq!(waiting.read_reply(), no_group("s").into_bytes());
    let info = admin.ask(&["INFO", "all"]);
    assert!(info.contains("total_blocking_keys:0\r\n") && info.contains("errorstat_NOGROUP:count=1"), "{info}");
}
