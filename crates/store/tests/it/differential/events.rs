//! Keyspace events: one subscriber on each side, the same commands, the same sequence of events.

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Clock, ManualClock, Mode, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer};

use crate::block_on;
use crate::support::Running;

/// A server with a client that sends commands and a client that subscribes to events.
struct Side {
    commands: Client,
    listener: Client,
}

impl Side {
    fn new(address: &str, classes: &str) -> Side {
        let mut commands = Client::connect(address);
        assert_eq!(commands.ask(&["CONFIG", "SET", "notify-keyspace-events", classes]), "+OK\r\n");
        let mut listener = Client::connect(address);
        listener.ask(&["PSUBSCRIBE", "__key*__:*"]);
        listener.ask(&["SUBSCRIBE", "end"]);
        Side { commands, listener }
    }

    /// Runs a command; returns the events that it caused.
    fn events(&mut self, words: &[&str]) -> Vec<String> {
        self.commands.command(words);
        self.commands.read_reply();
        self.commands.ask(&["PUBLISH", "end", ""]);
        let mut events = Vec::new();
        loop {
            let message = String::from_utf8_lossy(&self.listener.read_reply()).into_owned();
            if message.starts_with("*3\r\n$7\r\nmessage\r\n$3\r\nend\r\n") {
                return events;
            }
            let fields: Vec<&str> = message.split("\r\n").collect();
            events.push(format!("{} {}", fields[6], fields.get(8).unwrap_or(&"")));
        }
    }
}

struct Sides {
    _redis: RedisServer,
    _ours: Running,
    redis: Side,
    ours: Side,
}

impl Sides {
    fn new(classes: &str) -> Sides {
        let redis = RedisServer::start(&[]);
        let ours = Running::with(ServerOptions::default(), 2);
        let (theirs, own) = (Side::new(&redis.address(), classes), Side::new(&ours.address(), classes));
        Sides { _redis: redis, _ours: ours, redis: theirs, ours: own }
    }

    #[track_caller]
    fn check(&mut self, words: &[&str]) -> Vec<String> {
        let (mut ours, mut theirs) = (self.ours.events(words), self.redis.events(words));
        // The programs may notice at different times that an untouched key has expired.
        for events in [&mut ours, &mut theirs] {
            events.retain(|event| !event.contains("expired"));
        }
        assert_eq!(ours, theirs, "ours, then Redis's, after {:?}", &words[..words.len().min(12)]);
        ours
    }

    #[track_caller]
    fn check_line(&mut self, line: &str) -> Vec<String> {
        self.check(&line.split(' ').collect::<Vec<_>>())
    }
}

#[test]
fn each_command_says_the_events_of_redis() {
    let mut sides = Sides::new("KEAmn");
    let script = "
        SET a 1
        SET a 2 EX 100
        SET a 3 KEEPTTL
        SET a 4 NX
        SET new v GET
        SETNX a 5
        SETNX b 5
        SETEX a 100 v
        PSETEX a 100000 v
        GETSET a v
        GETEX a
        GETEX a EX 100
        GETEX a PERSIST
        GETEX a PERSIST
        GETEX b PXAT 1
        GETDEL a
        GETDEL a
        GET none
        MGET none a new
        EXISTS none
        TYPE none
        TTL none
        STRLEN none
        OBJECT ENCODING none
        TOUCH none
        DUMP none
        SETRANGE r 0 x
        SETRANGE r 0
        APPEND r x
        INCR n
        INCRBY n 5
        DECR n
        INCRBYFLOAT n 1.5
        INCR r
        MSET x 1 y 2
        MSETNX x 1 z 2
        MSETNX z 1 z2 2
        RENAME x x1
        RENAME x1 y
        RENAME y y
        RENAMENX y z
        RENAMENX y y1
        RENAME none y
        COPY y1 c
        COPY y1 c
        COPY y1 c REPLACE
        COPY y1 c DB 1
        COPY none c DB 1
        MOVE c 1
        MOVE y1 1
        MOVE none 1
        EXPIRE z 100
        EXPIRE z 50 GT
        PEXPIRE z 100000
        EXPIREAT z 99999999999
        PERSIST z
        PERSIST z
        EXPIRE z -1
        EXPIRE none -1
        DEL n none r
        UNLINK z2
        HSET h f v
        HSET h f v g w
        HSETNX h f v
        HSETNX h k v
        HMSET h f 1
        HINCRBY h f 1
        HINCRBY h g 1
        HINCRBYFLOAT h f 1.5
        HDEL h none
        HDEL h f g
        HDEL h k
        HDEL h k
        HGET none f
        HGETALL none
        SORT none STORE new
        XGROUP CREATE x g 0
        XGROUP CREATE x g $ MKSTREAM
        XGROUP CREATE x g $
        XGROUP CREATECONSUMER x g c
        XGROUP CREATECONSUMER x g c
        XADD x 1 f v
        XREADGROUP GROUP g c STREAMS x >
        XREADGROUP GROUP g c STREAMS none >
        XCLAIM x g other 0 1
        XAUTOCLAIM x g another 0 -
        XACK x g 1
        XACK none g 1
        XPENDING none g
        XCLAIM none g c 0 1
        XAUTOCLAIM none g c 0 -
        XAUTOCLAIM none g c x -
        XINFO GROUPS none
        XGROUP SETID x g 0
        XGROUP DELCONSUMER x g c
        XGROUP DELCONSUMER x g c
        XGROUP DESTROY x g
        XGROUP DESTROY x g
        XSETID x 5
        DEL x
        FLUSHDB
        SWAPDB 0 1
        FLUSHALL
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        sides.check_line(line);
    }
    // RESTORE, with and without an existing key.
    let mut own = Client::connect(&sides._ours.address());
    sides.check_line("SET dumped v");
    own.command(&["DUMP", "dumped"]);
    let reply = own.read_reply();
    let payload = reply.splitn(2, |byte| *byte == b'\n').nth(1).expect("a payload");
    let payload = &payload[..payload.len() - 2];
    let mut requests = vec![own];
    requests.push(Client::connect(&sides._redis.address()));
    for arguments in [&["0"][..], &["0"], &["0", "REPLACE"], &["1", "REPLACE", "ABSTTL"], &["1", "REPLACE", "ABSTTL"]] {
        for client in &mut requests {
            let words: Vec<&[u8]> = [&b"RESTORE"[..], b"restored", arguments[0].as_bytes(), payload]
                .into_iter()
                .chain(arguments[1..].iter().map(|word| word.as_bytes()))
                .collect();
            client.command(&words);
            client.read_reply();
        }
        assert!(!sides.check(&["PING"]).is_empty() || arguments.len() != 2, "{arguments:?}");
    }
}

#[test]
fn what_expires_is_told_when_it_is_touched_or_found() {
    let mut sides = Sides::new("Ex");
    // The command that touches an expired key emits the event first.
    for command in ["GET", "DEL", "INCR", "HGETALL", "PERSIST"] {
        for side in [&mut sides.redis, &mut sides.ours] {
            side.commands.ask(&["SET", "short", "v", "PX", "1"]);
            sluicegate_testkit::wait_for("the key to expire", || {
                (side.commands.ask(&["EXISTS", "short"]) == ":0\r\n").then_some(())
            });
        }
        let mut events = [Vec::new(), Vec::new()];
        for (side, events) in [&mut sides.redis, &mut sides.ours].into_iter().zip(&mut events) {
            *events = side.events(&[command, "short"]);
            side.commands.ask(&["DEL", "short"]);
        }
        assert_eq!(events[0], ["__keyevent@0__:expired short"]);
        assert_eq!(events[1], events[0], "{command}");
    }
}

#[test]
fn what_the_sweep_finds_is_told_too() {
    let ours = Running::start();
    let mut side = Side::new(&ours.address(), "Kx");
    side.commands.ask(&["SELECT", "3"]);
    side.commands.ask(&["SET", "forgotten", "v", "PX", "1"]);
    let (sender, received) = std::sync::mpsc::channel();
    let waits = std::thread::spawn(move || sender.send(side.listener.read_reply()));
    let store = ours.store().clone();
    let event = sluicegate_testkit::wait_for("the event", || {
        store.tick();
        received.try_recv().ok()
    });
    assert!(String::from_utf8_lossy(&event).contains("__keyspace@3__:forgotten\r\n$7\r\nexpired\r\n"));
    waits.join().expect("it ended").expect("it was received");
}

/// The events of Redis 8.0, for which the installed redis-server is too old; the last ones are this store's own.
#[test]
fn elements_that_expire_say_the_events_of_redis() {
    let ours = Running::start();
    let mut side = Side::new(&ours.address(), "EA");
    let store = ours.store().clone();
    for (command, expected) in [
        ("HSETEX h EX 100 FIELDS 1 a 1", &["hset h", "hexpire h"][..]),
        ("HSETEX h KEEPTTL FIELDS 1 a 1", &["hset h"]),
        ("HSETEX h FNX FIELDS 1 a 1", &[]),
        ("HEXPIRE h 50 FIELDS 1 a", &["hexpire h"]),
        ("HEXPIRE h 50 NX FIELDS 1 a", &[]),
        ("HEXPIRE h 50 FIELDS 1 none", &[]),
        ("HPERSIST h FIELDS 1 a", &["hpersist h"]),
        ("HPERSIST h FIELDS 1 a", &[]),
        ("HGETEX h FIELDS 1 a", &[]),
        ("HGETEX h EX 50 FIELDS 1 a", &["hexpire h"]),
        ("HGETEX h PERSIST FIELDS 1 a", &["hpersist h"]),
        ("HSET h b 2 c 3 d 4", &["hset h"]),
        ("HEXPIRE h 0 FIELDS 1 a", &["hdel h"]),
        ("HGETEX h PXAT 1 FIELDS 1 b", &["hdel h"]),
        ("HSETEX h PXAT 1 FIELDS 1 c 5", &["hset h", "hdel h"]),
        ("HGETDEL h FIELDS 2 none d", &["hdel h", "del h"]),
        ("HGETDEL h FIELDS 1 d", &[]),
        ("SADDEX s 50 a", &["sadd s"]),
        ("SADDEX s KEEPTTL 50 a", &[]),
        ("FIELDEXPIRE s 60 a", &["fieldexpire s"]),
        ("FIELDEXPIRE s 0 a", &["srem s", "del s"]),
        ("HSETEX swept PX 1 FIELDS 2 a 1 b 2", &["hset swept", "hexpire swept"]),
    ] {
        let expected: Vec<String> = expected.iter().map(|event| format!("__keyevent@0__:{event}")).collect();
        assert_eq!(side.events(&command.split(' ').collect::<Vec<_>>()), expected, "{command}");
    }
    let mut events = Vec::new();
    sluicegate_testkit::wait_for("the sweep", || {
        store.tick();
        events.extend(side.events(&["EXISTS", "swept"]));
        events.iter().any(|event| event.contains(":del")).then_some(())
    });
    assert_eq!(events, ["__keyevent@0__:hexpired swept", "__keyevent@0__:del swept"]);
}

/// The events of Redis 8.0, for which the installed redis-server is too old.
#[test]
fn fields_that_are_found_expired_say_the_events_of_redis() {
    let hand = ManualClock::new(1_700_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    let ours = Running::serving(store.clone(), ServerOptions::default(), 1);
    let mut side = Side::new(&ours.address(), "EA");
    let mut check = |command: &str, expected: &[&str]| {
        let words: Vec<&str> = command.split(' ').collect();
        // Of four fields that have expired, and one that has not.
        let before = "HSETEX h PX 10 FIELDS 4 a 1 b 2 c 3 d 4";
        for words in [&["DEL", "h", "only"][..], &before.split(' ').collect::<Vec<_>>(), &["HSET", "h", "e", "5"]] {
            side.events(words);
        }
        side.events(&["HSETEX", "only", "PX", "10", "FIELDS", "1", "a", "1"]);
        hand.advance(11);
        let expected: Vec<String> = expected.iter().map(|event| format!("__keyevent@0__:{event}")).collect();
        assert_eq!(side.events(&words), expected, "{command}");
        // The event is emitted once.
        assert!(!side.events(&words).iter().any(|event| event.contains("hexpired")), "{command}");
    };
    check("HGET h e", &[]);
    check("HGET h none", &[]);
    check("HGET h a", &["hexpired h"]);
    check("HGET only a", &["hexpired only", "del only"]);
    check("HEXISTS h a", &["hexpired h"]);
    check("HSTRLEN only a", &["hexpired only", "del only"]);
    check("HMGET h e a none b", &["hexpired h"]);
    check("HMGET only b a", &["hexpired only", "del only"]);
    check("HRANDFIELD h 3", &["hexpired h"]);
    check("HRANDFIELD only", &["hexpired only", "del only"]);
    check("HSETNX h a 1", &["hexpired h", "hset h"]);
    check("HSETNX only a 1", &["hexpired only", "del only", "hset only"]);
    check("HINCRBY h a 1", &["hexpired h", "hincrby h"]);
    check("HINCRBYFLOAT only a 1", &["hexpired only", "del only", "hincrbyfloat only"]);
    check("HDEL h a e", &["hexpired h", "hdel h"]);
    check("HGETDEL h FIELDS 3 a b e", &["hexpired h", "hdel h"]);
    check("HGETDEL only FIELDS 1 a", &["hexpired only", "del only"]);
    check("HGETEX h EX 5 FIELDS 2 a e", &["hexpired h", "hexpire h"]);
    check("HGETEX only FIELDS 1 a", &["hexpired only", "del only"]);
    check("HSETEX h FNX FIELDS 2 a 1 e 1", &["hexpired h"]);
    check("HSETEX h FNX FIELDS 2 a 1 x 1", &["hexpired h", "hset h"]);
    check("HSETEX only FXX FIELDS 1 a 1", &["hexpired only", "del only"]);
    // Commands on all fields skip the expired ones without an event.
    for command in ["HGETALL h", "HKEYS h", "HVALS h", "HLEN h", "HSCAN h 0", "HTTL h FIELDS 1 a", "HSCAN only 0"] {
        check(command, &[]);
    }
    // Setting an expired field creates it anew.
    check("HSET h a 1", &["hset h"]);
    // A watching client's transaction fails, and the expiry is counted.
    side.events(&["DEL", "h"]);
    side.events(&["HSETEX", "h", "PX", "10", "FIELDS", "2", "a", "1", "b", "2"]);
    let mut watching = ours.connect();
    for words in [&["WATCH", "h"][..], &["MULTI"], &["PING"]] {
        watching.ask(words);
    }
    hand.advance(11);
    assert_eq!(side.events(&["HGET", "h", "a"]), ["__keyevent@0__:hexpired h"]);
    watching.command(&["EXEC"]);
    assert_eq!(watching.read_reply(), b"*-1\r\n");
    assert_eq!(watching.ask(&["HLEN", "h"]), ":1\r\n");
    // Expired fields of a key that a section holds are left to the sweep.
    let section = block_on(store.section([(0, &b"h"[..], Mode::Shared)])).expect("a free key");
    assert!(side.events(&["HGET", "h", "b"]).is_empty());
    assert_eq!(watching.ask(&["HLEN", "h"]), ":1\r\n");
    drop(section);
    assert_eq!(side.events(&["HGET", "h", "b"]), ["__keyevent@0__:hexpired h", "__keyevent@0__:del h"]);
}
