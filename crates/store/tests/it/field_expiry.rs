//! Hash fields and set members that expire, according to the documentation of Redis 7.4 and 8.0 and of Dragonfly,
//! because the installed Redis is older.

use std::collections::BTreeSet;

use sluicegate_store::{Caller, Clock, ManualClock, Mode, Store, StoreOptions};
use sluicegate_wire::resp::{Protocol, ReplyBuilder};

use crate::{Random, ask, block_on, run, start};

const START_MS: i64 = 1_000_000_000_000;

/// A store whose clock the test advances.
struct Timed {
    store: Store,
    clock: ManualClock,
}

impl Timed {
    fn new() -> Timed {
        let clock = ManualClock::new(START_MS);
        let store = Store::new(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() });
        Timed { store, clock }
    }

    /// Runs commands, each followed by `>` and its reply, in which `|` stands for line ends.
    #[track_caller]
    fn check(&self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(ms) = line.strip_prefix("+") {
                self.clock.advance(ms.parse().expect("milliseconds"));
                continue;
            }
            let (command, expected) = line.split_once(" > ").expect("a command and its reply");
            let reply = ask(&self.store, command).replace("\r\n", "|");
            assert_eq!(reply.trim_end_matches('|'), expected, "{command}");
        }
    }

    fn dump(&self, key: &str) -> Vec<u8> {
        let reply = run(&self.store, &mut Caller::default(), &[b"DUMP", key.as_bytes()]);
        let end = reply.iter().position(|byte| *byte == b'\n').expect("a line");
        reply[end + 1..reply.len() - 2].to_vec()
    }

    #[track_caller]
    fn restore(&self, key: &str, payload: &[u8]) {
        let reply = run(&self.store, &mut Caller::default(), &[b"RESTORE", key.as_bytes(), b"0", payload]);
        assert_eq!(reply, b"+OK\r\n", "{}", reply.escape_ascii());
    }

    /// Ticks until everything due is gone; the thread pool continues what a tick leaves.
    #[track_caller]
    fn sweep(&self, gone: impl Fn() -> bool) {
        sluicegate_testkit::wait_for("what is due to be gone", || {
            self.store.tick();
            gone().then_some(())
        });
    }
}

#[test]
fn fields_expire() {
    Timed::new().check(
        "
        HSET h a 1 b 2 c 3 > :3
        HEXPIRE h 10 FIELDS 3 a b none > *3|:1|:1|:-2
        OBJECT ENCODING h > $10|listpackex
        HTTL h FIELDS 4 a b c none > *4|:10|:10|:-1|:-2
        HPTTL h FIELDS 1 a > *1|:10000
        HEXPIRETIME h FIELDS 1 a > *1|:1000000010
        HPEXPIRETIME h FIELDS 2 a c > *2|:1000000010000|:-1
        HPEXPIRE h 500 FIELDS 1 b > *1|:1
        HPTTL h FIELDS 1 b > *1|:500
        HTTL h FIELDS 1 b > *1|:1
        +499
        HGET h b > $1|2
        +1
        HGET h b > $-1
        HEXISTS h b > :0
        HSTRLEN h b > :0
        HMGET h a b c > *3|$1|1|$-1|$1|3
        HGETALL h > *4|$1|a|$1|1|$1|c|$1|3
        HKEYS h > *2|$1|a|$1|c
        HVALS h > *2|$1|1|$1|3
        HSCAN h 0 > *2|$1|0|*4|$1|a|$1|1|$1|c|$1|3
        HSCAN h 0 NOVALUES > *2|$1|0|*2|$1|a|$1|c
        HSCAN h 0 NOVALUES COUNT 5 MATCH c > *2|$1|0|*1|$1|c
        SSCAN none 0 NOVALUES > *2|$1|0|*0
        HTTL h FIELDS 1 b > *1|:-2
        HEXPIRE h 10 FIELDS 1 b > *1|:-2
        HPERSIST h FIELDS 1 b > *1|:-2
        HDEL h b > :0
        HSET h b 5 > :1
        HTTL h FIELDS 1 b > *1|:-1
        HPERSIST h FIELDS 4 a b c none > *4|:1|:-1|:-1|:-2
        HTTL h FIELDS 1 a > *1|:-1
        OBJECT ENCODING h > $10|listpackex
        HEXPIREAT h 1000000100 FIELDS 1 a > *1|:1
        HPEXPIREAT h 1000000200000 FIELDS 1 b > *1|:1
        HEXPIRETIME h FIELDS 2 a b > *2|:1000000100|:1000000200
        HEXPIREAT h 1 FIELDS 1 a > *1|:2
        HPEXPIRE h 0 FIELDS 2 b c > *2|:2|:2
        EXISTS h > :0
        HEXPIRE h 10 FIELDS 2 a b > *2|:-2|:-2
        HTTL h FIELDS 2 a b > *2|:-2|:-2
        HPERSIST h FIELDS 2 a b > *2|:-2|:-2
        ",
    );
}

#[test]
fn conditions_are_those_of_redis() {
    Timed::new().check(
        "
        HSET h a 1 b 2 > :2
        HEXPIRE h 10 XX FIELDS 1 a > *1|:0
        HEXPIRE h 10 GT FIELDS 1 a > *1|:0
        HEXPIRE h 10 LT FIELDS 1 a > *1|:1
        HEXPIRE h 20 NX FIELDS 2 a b > *2|:0|:1
        HEXPIRE h 10 gt FIELDS 1 a > *1|:0
        HEXPIRE h 11 GT FIELDS 1 a > *1|:1
        HEXPIRE h 11 LT FIELDS 1 a > *1|:0
        HEXPIRE h 10 lt FIELDS 1 a > *1|:1
        HEXPIRE h 30 XX FIELDS 2 a none > *2|:1|:-2
        HTTL h FIELDS 2 a b > *2|:30|:20
        HEXPIRE h 0 NX FIELDS 1 a > *1|:0
        HEXPIRE h 0 LT FIELDS 1 a > *1|:2
        ",
    );
}

#[test]
fn wrong_words_are_refused() {
    let timed = Timed::new();
    timed.check(
        "
        SET s v > +OK
        HSET h a 1 > :1
        HEXPIRE h 10 FIELDS 1 > -ERR wrong number of arguments for 'hexpire' command
        HTTL h FIELDS 1 > -ERR wrong number of arguments for 'httl' command
        HEXPIRE s 10 FIELDS 1 a > -WRONGTYPE Operation against a key holding the wrong kind of value
        HTTL s FIELDS 1 a > -WRONGTYPE Operation against a key holding the wrong kind of value
        HPERSIST s FIELDS 1 a > -WRONGTYPE Operation against a key holding the wrong kind of value
        HGETEX s FIELDS 1 a > -WRONGTYPE Operation against a key holding the wrong kind of value
        HSETEX s FIELDS 1 a v > -WRONGTYPE Operation against a key holding the wrong kind of value
        HGETDEL s FIELDS 1 a > -WRONGTYPE Operation against a key holding the wrong kind of value
        FIELDTTL s a > -WRONGTYPE Operation against a key holding the wrong kind of value
        FIELDEXPIRE s 5 a > -WRONGTYPE Operation against a key holding the wrong kind of value
        HEXPIRE h x FIELDS 1 a > -ERR value is not an integer or out of range
        HEXPIRE h -1 FIELDS 1 a > -ERR invalid expire time, must be >= 0
        HEXPIRE h 9223372036854775807 FIELDS 1 a > -ERR invalid expire time in 'hexpire' command
        HPEXPIRE h 70368744177664 FIELDS 1 a > -ERR invalid expire time in 'hpexpire' command
        HPEXPIREAT h 70368744177664 FIELDS 1 a > -ERR invalid expire time in 'hpexpireat' command
        HPEXPIREAT h 70368744177663 FIELDS 1 a > *1|:1
        HEXPIREAT h 70368744178 FIELDS 1 a > -ERR invalid expire time in 'hexpireat' command
        HEXPIRE h 10 JUNK 1 a b > -ERR Mandatory argument FIELDS is missing or not at the right position
        HEXPIRE h 10 NX JUNK 1 a > -ERR Mandatory argument FIELDS is missing or not at the right position
        HEXPIRE h 10 FIELDS 0 a > -ERR Parameter `numFields` should be greater than 0
        HEXPIRE h 10 FIELDS x a > -ERR Parameter `numFields` should be greater than 0
        HEXPIRE h 10 FIELDS 2 a > -ERR The `numfields` parameter must match the number of arguments
        HEXPIRE h 10 FIELDS 1 a b > -ERR The `numfields` parameter must match the number of arguments
        HEXPIRE h 10 NX FIELDS 1 > -ERR The `numfields` parameter must match the number of arguments
        HTTL h JUNK 1 a > -ERR Mandatory argument FIELDS is missing or not at the right position
        HTTL h FIELDS -1 a > -ERR Number of fields must be a positive integer
        HTTL h FIELDS 9223372036854775807 a > -ERR The `numfields` parameter must match the number of arguments
        HPERSIST h FIELDS 2 a > -ERR The `numfields` parameter must match the number of arguments
        HGETDEL h JUNK 1 a > -ERR Mandatory argument FIELDS is missing or not at the right position
        HGETEX h EX 10 JUNK 1 a > -ERR Mandatory argument FIELDS is missing or not at the right position
        HGETEX h EX 10 FIELDS > -ERR Number of fields must be a positive integer
        HGETEX h EX -1 FIELDS 1 a > -ERR invalid expire time, must be >= 0
        HGETEX h EX 99999999999 FIELDS 1 a > -ERR invalid expire time in 'hgetex' command
        HSETEX h EX 1 PX 1 FIELDS 1 a v > -ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified
        HSETEX h FXX FNX FIELDS 1 a v > -ERR Only one of FXX or FNX arguments can be specified
        HSETEX h JUNK FIELDS 1 a v > -ERR unknown argument: JUNK
        HSETEX h FIELDS 0 a v > -ERR invalid number of fields
        HSETEX h FIELDS 2 a v > -ERR wrong number of arguments for 'hsetex' command
        HSETEX h FIELDS 1 a v b > -ERR wrong number of arguments for 'hsetex' command
        HSETEX h FNX KEEPTTL EX 5 > -ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified
        HSETEX h FNX FNX KEEPTTL EX > -ERR Only one of FXX or FNX arguments can be specified
        HSETEX none FXX EX 10 EXAT > -ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified
        HSETEX none KEEPTTL FXX FIELDS 1 > -ERR wrong number of arguments for 'hsetex' command
        SADDEX h 10 m > -WRONGTYPE Operation against a key holding the wrong kind of value
        SADDEX m 0 m > -ERR value is not an integer or out of range
        SADDEX m -1 m > -ERR value is not an integer or out of range
        SADDEX m x m > -ERR value is not an integer or out of range
        SADDEX m 99999999999999 m > -ERR value is not an integer or out of range
        SADDEX m KEEPTTL 10 > -ERR wrong number of arguments for 'saddex' command
        SADDEX m 10 > -ERR wrong number of arguments for 'saddex' command
        FIELDEXPIRE h -1 a > -ERR invalid expire time, must be >= 0
        SADD t a > :1
        SSCAN t 0 NOVALUES > -ERR NOVALUES option can only be used in HSCAN
        HGETALL h > *2|$1|a|$1|1
        ",
    );
}

#[test]
fn writes_keep_or_drop_a_fields_time() {
    Timed::new().check(
        "
        HSET h n 1 f 1.5 s x > :3
        HEXPIRE h 100 FIELDS 3 n f s > *3|:1|:1|:1
        HINCRBY h n 2 > :3
        HINCRBYFLOAT h f 1 > $3|2.5
        HTTL h FIELDS 2 n f > *2|:100|:100
        HSET h s y > :0
        HTTL h FIELDS 1 s > *1|:-1
        HSETNX h n 5 > :0
        HTTL h FIELDS 1 n > *1|:100
        HSETEX h KEEPTTL FIELDS 1 n 7 > :1
        HTTL h FIELDS 1 n > *1|:100
        HSETEX h FIELDS 1 n 8 > :1
        HTTL h FIELDS 1 n > *1|:-1
        COPY h copy > :1
        HTTL copy FIELDS 2 f n > *2|:100|:-1
        RENAME copy renamed > +OK
        HTTL renamed FIELDS 2 f n > *2|:100|:-1
        MOVE renamed 1 > :1
        PERSIST h > :0
        HTTL h FIELDS 1 f > *1|:100
        +100000
        HINCRBYFLOAT h f 1 > $1|1
        HTTL h FIELDS 1 f > *1|:-1
        HSETEX h EX 1 FIELDS 1 n 9 > :1
        +1000
        HINCRBY h n 1 > :1
        HSETEX h EX 1 FIELDS 1 n 9 > :1
        +1000
        HSETNX h n 4 > :1
        HTTL h FIELDS 1 n > *1|:-1
        ",
    );
}

#[test]
fn values_are_read_set_and_deleted_with_their_times() {
    Timed::new().check(
        "
        HSETEX h EX 10 FIELDS 2 a 1 b 2 > :1
        HTTL h FIELDS 2 a b > *2|:10|:10
        HSETEX h FNX FIELDS 2 b 5 c 5 > :0
        HSETEX h FXX FIELDS 2 b 5 c 5 > :0
        HSETEX h FXX PX 1500 FIELDS 2 a 3 b 4 > :1
        HSETEX h FNX EXAT 1000000050 FIELDS 1 c 5 > :1
        HSETEX h fnx pxat 1000000060000 fields 1 d 6 > :1
        HPTTL h FIELDS 4 a b c d > *4|:1500|:1500|:50000|:60000
        HSETEX none FXX FIELDS 1 a 1 > :0
        EXISTS none > :0
        HGETEX h FIELDS 3 a none c > *3|$1|3|$-1|$1|5
        HGETEX h EX 20 FIELDS 2 a none > *2|$1|3|$-1
        HGETEX h PX 2500 FIELDS 1 b > *1|$1|4
        HGETEX h PERSIST FIELDS 1 c > *1|$1|5
        HGETEX h EXAT 1000000070 FIELDS 1 d > *1|$1|6
        HPTTL h FIELDS 4 a b c d > *4|:20000|:2500|:-1|:70000
        HGETEX h PXAT 1 FIELDS 1 d > *1|$1|6
        HEXISTS h d > :0
        HGETEX none FIELDS 2 a b > *2|$-1|$-1
        +2500
        HGETEX h FIELDS 1 b > *1|$-1
        HSETEX h FXX FIELDS 1 b 9 > :0
        HSETEX h FNX FIELDS 1 b 9 > :1
        HGETDEL h FIELDS 3 a none b > *3|$1|3|$-1|$1|9
        HGETDEL none FIELDS 1 a > *1|$-1
        HLEN h > :1
        HGETDEL h FIELDS 1 c > *1|$1|5
        EXISTS h > :0
        HSETEX past PXAT 1 FIELDS 2 a 1 b 2 > :1
        EXISTS past > :0
        HSET h a 1 > :1
        HSETEX h EX 0 FIELDS 1 a 2 > :1
        EXISTS h > :0
        ",
    );
}

#[test]
fn members_of_sets_expire_as_in_dragonfly() {
    let timed = Timed::new();
    timed.check(
        "
        SADD s a 1 > :2
        SADDEX s 10 b a > :1
        FIELDTTL s a > :10
        FIELDTTL s 1 > :-1
        FIELDTTL s none > :-3
        FIELDTTL none a > :-2
        SADDEX s KEEPTTL 20 a c > :1
        FIELDTTL s a > :10
        FIELDTTL s c > :20
        SADDEX s 30 a > :0
        FIELDTTL s a > :30
        OBJECT ENCODING s > $9|hashtable
        SCARD s > :4
        +10000
        SISMEMBER s b > :0
        SMISMEMBER s a b c 1 > *4|:1|:0|:1|:1
        SREM s b > :0
        SADD s a > :0
        FIELDTTL s a > :20
        FIELDEXPIRE s 5 1 none c > *3|:1|:-2|:1
        FIELDTTL s c > :5
        FIELDEXPIRE s 0 c > *1|:2
        SISMEMBER s c > :0
        FIELDEXPIRE none 5 a b > *2|:-2|:-2
        SADD other 1 a z > :3
        +5000
        SINTER s other > *1|$1|a
        SDIFF other s > *2|$1|1|$1|z
        SINTERCARD 2 s other > :1
        SMOVE s other 1 > :0
        SADD s 1 > :1
        FIELDTTL s 1 > :-1
        SREM s 1 > :1
        SRANDMEMBER s 5 > *1|$1|a
        SSCAN s 0 > *2|$1|0|*1|$1|a
        SMEMBERS s > *1|$1|a
        SUNIONSTORE stored s other > :3
        FIELDTTL stored a > :-1
        HSET h f v > :1
        FIELDEXPIRE h 7 f none > *2|:1|:-2
        FIELDTTL h f > :7
        FIELDTTL h none > :-3
        +15000
        SMEMBERS s > *0
        SPOP s > $-1
        SRANDMEMBER s > $-1
        SRANDMEMBER s 1 > *0
        HRANDFIELD h > $-1
        HRANDFIELD h 2 > *0
        HGETALL h > *0
        ",
    );
    timed.sweep(|| ask(&timed.store, "EXISTS s h") == ":0\r\n");
    assert_eq!(ask(&timed.store, "EXISTS stored other"), ":2\r\n");
}

#[test]
fn a_tick_removes_what_has_expired() {
    let timed = Timed::new();
    for n in 0..2_000 {
        ask(&timed.store, &format!("HSET small:{n} a 1 b 2"));
        ask(&timed.store, &format!("HPEXPIRE small:{n} {} FIELDS 1 a", 1 + n % 900));
        ask(&timed.store, &format!("HSETEX gone:{n} PX {} FIELDS 1 a 1", 1 + n % 900));
        ask(&timed.store, &format!("HSET plain:{n} a 1"));
    }
    timed.clock.advance(400);
    timed.sweep(|| {
        let left = ask(&timed.store, "DBSIZE");
        left == format!(":{}\r\n", 6_000 - (0..2_000).filter(|n| n % 900 < 400).count())
    });
    timed.clock.advance(600);
    timed.sweep(|| ask(&timed.store, "DBSIZE") == ":4000\r\n");
    timed.sweep(|| (0..2_000).all(|n| ask(&timed.store, &format!("HLEN small:{n}")) == ":1\r\n"));
    assert_eq!(ask(&timed.store, "HGETALL small:7"), "*2\r\n$1\r\nb\r\n$1\r\n2\r\n");
    assert_eq!((timed.store.stats().expired_elements, timed.store.stats().expired), (4_000, 0));
}

#[test]
fn a_large_hash_of_which_most_expires_is_swept() {
    let timed = Timed::new();
    for n in 0..100_000 {
        ask(&timed.store, &format!("HSET large field:{n} value"));
        ask(&timed.store, &format!("SADDEX members 1 member:{n}"));
    }
    let before = timed.store.used_bytes();
    for n in (0..100_000).filter(|n| n % 10 > 0) {
        ask(&timed.store, &format!("HPEXPIRE large {} FIELDS 1 field:{n}", 1 + n % 900));
    }
    timed.clock.advance(1_000);
    // An expired field is invisible even before it is removed.
    assert_eq!(ask(&timed.store, "HGET large field:1"), "$-1\r\n");
    // So many fields are visited on the thread pool.
    let keys = start(&timed.store, &mut Caller::default(), &[b"HKEYS", b"large"]).unwrap_or_else(block_on);
    assert!(keys.starts_with(b"*10000\r\n"));
    timed.sweep(|| ask(&timed.store, "HLEN large") == ":10000\r\n" && ask(&timed.store, "EXISTS members") == ":0\r\n");
    assert_eq!(ask(&timed.store, "HGET large field:70"), "$5\r\nvalue\r\n");
    timed.sweep(|| timed.store.used_bytes() < before / 2);
}

#[test]
fn a_section_sees_its_own_time_and_keeps_what_expires_meanwhile() {
    let timed = Timed::new();
    ask(&timed.store, "HSETEX h PX 100 FIELDS 1 a 1");
    ask(&timed.store, "HSETEX free PX 100 FIELDS 1 a 1");
    let mut section = block_on(timed.store.section([(0, &b"h"[..], Mode::Exclusive)])).expect("nobody else");
    timed.clock.advance(200);
    timed.sweep(|| ask(&timed.store, "EXISTS free") == ":0\r\n");
    let mut get = |words: &[&[u8]]| {
        let mut reply = ReplyBuilder::new();
        section.execute(0, words, &mut reply).expect("its own key");
        format!("{:?}", reply.finish())
    };
    assert_eq!(get(&[b"HGET", b"h", b"a"]), "Bulk([49])");
    assert_eq!(get(&[b"HPTTL", b"h", b"FIELDS", b"1", b"a"]), "Array([Integer(100)])");
    drop(section);
    assert_eq!(ask(&timed.store, "HGET h a"), "$-1\r\n");
    timed.sweep(|| ask(&timed.store, "EXISTS h") == ":0\r\n");
}

#[test]
fn payloads_keep_times() {
    let timed = Timed::new();
    timed.check(
        "
        HSET small a 1 b 2 c 3 > :3
        HEXPIRE small 10 FIELDS 1 b > *1|:1
        HPEXPIRE small 5500 FIELDS 1 c > *1|:1
        SADD set m > :1
        SADDEX set 10 n > :1
        HSET persisted a 1 > :1
        HEXPIRE persisted 10 FIELDS 1 a > *1|:1
        HPERSIST persisted FIELDS 1 a > *1|:1
        ",
    );
    for n in 0..600 {
        ask(&timed.store, &format!("HSET large f{n} v{n}"));
        if n % 3 == 0 {
            ask(&timed.store, &format!("HEXPIRE large {} FIELDS 1 f{n}", 10 + n));
        }
    }
    for (key, kind, version) in [("small", 25, 12), ("large", 24, 12), ("set", 240, 12), ("persisted", 4, 10)] {
        let payload = timed.dump(key);
        assert_eq!((payload[0], payload[payload.len() - 10]), (kind, version), "{key}");
        timed.restore(&format!("{key}:2"), &payload);
    }
    // The earliest time comes first.
    let small = timed.dump("small");
    assert_eq!(small[1..9], (START_MS + 5500).to_le_bytes());
    assert_eq!(timed.dump("large")[1..9], (START_MS + 10_000).to_le_bytes());
    timed.check(
        "
        HPTTL small:2 FIELDS 3 a b c > *3|:-1|:10000|:5500
        HKEYS small:2 > *3|$1|c|$1|b|$1|a
        OBJECT ENCODING small:2 > $10|listpackex
        FIELDTTL set:2 n > :10
        FIELDTTL set:2 m > :-1
        OBJECT ENCODING large:2 > $9|hashtable
        HLEN large:2 > :600
        HTTL large:2 FIELDS 4 f0 f1 f3 f297 > *4|:10|:-1|:13|:307
        HGETALL persisted:2 > *2|$1|a|$1|1
        +10000
        HGETALL small:2 > *2|$1|a|$1|1
        SMEMBERS set:2 > *1|$1|m
        ",
    );
    for payload in [timed.dump("large"), small] {
        for len in 0..payload.len() {
            let reply = run(&timed.store, &mut Caller::default(), &[b"RESTORE", b"x", b"0", &payload[..len]]);
            assert!(reply.starts_with(b"-ERR DUMP payload"), "{len}");
        }
    }
}

/// A payload of a server of version 7.4.
#[test]
fn payloads_of_redis_are_read() {
    let timed = Timed::new();
    let seal = |object: &[u8]| crate::dump::sealed(object, 12);
    let at = |ms: i64| (START_MS + ms).to_le_bytes();
    // Delta, field, value: 0 is no time, otherwise one more than milliseconds after the first.
    let metadata = [&[24][..], &at(5_000), b"\x03\x00\x01a\x011\x01\x01b\x012\x40\x65\x01c\x013"].concat();
    timed.restore("metadata", &seal(&metadata));
    timed.check("HPTTL metadata FIELDS 3 a b c > *3|:-1|:5000|:5100");
    for wrong in [
        &b"\x18\0\0\0\0\0\0\0"[..],
        b"\x18\0\0\0\0\0\0\0\0\0",
        b"\x18\0\0\0\0\0\0\0\0\x01\x01\x01a\x01b",
        b"\x18\xff\xff\xff\xff\xff\xff\xff\x7f\x01\x02\x01a\x01b",
        b"\x18\x01\0\0\0\0\0\0\0\x02\0\x01a\x01b\0\x01a\x01b",
        // A listpack of two elements; one whose time is no number; one whose time is negative.
        b"\x19\x01\0\0\0\0\0\0\0\x0d\x0d\0\0\0\x02\0\x81a\x02\x81b\x02\xff",
        b"\x19\x01\0\0\0\0\0\0\0\x10\x10\0\0\0\x03\0\x81a\x02\x81b\x02\x81c\x02\xff",
        b"\x19\x01\0\0\0\0\0\0\0\x10\x10\0\0\0\x03\0\x81a\x02\x81b\x02\xdf\xff\x02\xff",
    ] {
        let reply = run(&timed.store, &mut Caller::default(), &[b"RESTORE", b"x", b"0", &seal(wrong)]);
        assert_eq!(reply, b"-ERR Bad data format\r\n", "{wrong:?}");
    }
}

/// Commands on many fields in both forms, with times that pass, against a model.
#[test]
fn random_fields_do_what_a_model_does() {
    for (seed, fields) in [(1, 20), (2, 400), (3, 100), (4, 1_000)] {
        let (timed, mut random) = (Timed::new(), Random(seed));
        let mut model = std::collections::BTreeMap::<String, Option<i64>>::new();
        let mut now_ms = START_MS;
        for _ in 0..6_000 {
            let field = format!("f{}", random.below(fields));
            model.retain(|_, at_ms| at_ms.is_none_or(|at_ms| at_ms > now_ms));
            let ms = 1 + random.below(3_000) as i64;
            let there = model.contains_key(&field);
            let (command, expected) = match random.below(8) {
                0 | 1 => (format!("HSET h {field} {ms}"), format!(":{}\r\n", u8::from(!there))),
                2 => (format!("HSETEX h PX {ms} FIELDS 1 {field} v"), ":1\r\n".to_owned()),
                3 => {
                    (format!("HPEXPIRE h {ms} FIELDS 1 {field}"), format!("*1\r\n:{}\r\n", if there { 1 } else { -2 }))
                }
                4 => (format!("HDEL h {field}"), format!(":{}\r\n", u8::from(there))),
                5 => (format!("HEXISTS h {field}"), format!(":{}\r\n", u8::from(there))),
                6 => {
                    let left = model.get(&field).map_or(-2, |at_ms| at_ms.map_or(-1, |at_ms| at_ms - now_ms));
                    (format!("HPTTL h FIELDS 1 {field}"), format!("*1\r\n:{left}\r\n"))
                }
                _ => {
                    let pass = random.below(200) as i64;
                    timed.clock.advance(pass);
                    now_ms += pass;
                    if random.below(2) == 0 {
                        timed.store.tick();
                    }
                    continue;
                }
            };
            assert_eq!(ask(&timed.store, &command), expected, "{command}");
            match &command[..5] {
                "HSET " => drop(model.insert(field, None)),
                "HSETE" => drop(model.insert(field, Some(now_ms + ms))),
                "HPEXP" if there => drop(model.insert(field, Some(now_ms + ms))),
                "HDEL " => drop(model.remove(&field)),
                _ => {}
            }
        }
        model.retain(|_, at_ms| at_ms.is_none_or(|at_ms| at_ms > now_ms));
        let reply = ask(&timed.store, "HKEYS h");
        let found: BTreeSet<&str> = reply.lines().filter(|line| line.starts_with('f')).collect();
        assert_eq!(found, model.keys().map(String::as_str).collect());
        timed.sweep(|| ask(&timed.store, "HLEN h") == format!(":{}\r\n", model.len()));
    }
}

#[test]
fn chosen_fields_are_pairs_in_resp3() {
    let timed = Timed::new();
    ask(&timed.store, "HSETEX h EX 10 FIELDS 1 a 1");
    let mut caller = Caller { protocol: Protocol::Resp3, ..Caller::default() };
    let reply = run(&timed.store, &mut caller, &[b"HRANDFIELD", b"h", b"-2", b"WITHVALUES"]);
    assert_eq!(reply, b"*2\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert_eq!(run(&timed.store, &mut caller, &[b"HGETALL", b"h"]), b"%1\r\n$1\r\na\r\n$1\r\n1\r\n");
}
