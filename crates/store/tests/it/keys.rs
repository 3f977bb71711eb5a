//! Properties of a key besides its value: the mark that protects it from eviction, its size, and rate limiters.

use std::time::{Duration, Instant};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Clock, ManualClock, Policy, Store, StoreOptions};
use sluicegate_testkit::RedisServer;
use sluicegate_wire::resp::Protocol;

use crate::support::Running;
use crate::{Random, ask, block_on, run};

fn store() -> Store {
    Store::new(StoreOptions::default())
}

/// Runs commands line by line; the expected reply follows `=>`, with spaces for line breaks.
#[track_caller]
fn check(store: &Store, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (command, expected) = line.split_once(" => ").expect("a reply");
        assert_eq!(ask(store, command).trim_end().replace("\r\n", " "), expected, "{command}");
    }
}

#[test]
fn sticky_keys_keep_their_mark_as_in_dragonfly() {
    check(
        &store(),
        "
        MSET a 1 b 2 c 3 => +OK
        OBJECT STICKY a => :0
        OBJECT STICKY none => $-1
        STICK a b none => :2
        STICK a c => :1
        OBJECT STICKY a => :1
        UNSTICK c c none => :1
        OBJECT STICKY c => :0
        SET a again => +OK
        OBJECT STICKY a => :1
        SET a again EX 100 => +OK
        OBJECT STICKY a => :1
        PERSIST a => :1
        OBJECT STICKY a => :1
        EXPIRE a 100 => :1
        OBJECT STICKY a => :1
        APPEND a more => :9
        INCR b => :3
        OBJECT STICKY b => :1
        RENAME a d => +OK
        OBJECT STICKY d => :1
        RENAME c d => +OK
        OBJECT STICKY d => :0
        COPY b e => :1
        OBJECT STICKY e => :1
        COPY d e REPLACE => :1
        OBJECT STICKY e => :0
        MOVE b 1 => :1
        SET b new => +OK
        OBJECT STICKY b => :0
        SET b v STICK => +OK
        OBJECT STICKY b => :1
        DEL b => :1
        SET b v => +OK
        OBJECT STICKY b => :0
        SET b v NX STICK => $-1
        OBJECT STICKY b => :0
        SET b v XX STICK GET => $1 v
        OBJECT STICKY b => :1
        GETEX b STICK => -ERR syntax error
        HSET h f v => :1
        STICK h => :1
        HSET h g w => :1
        OBJECT STICKY h => :1
        EXPIRE h 100 => :1
        OBJECT STICKY h => :1
        STICK => -ERR wrong number of arguments for 'stick' command
        UNSTICK => -ERR wrong number of arguments for 'unstick' command
        ",
    );
}

#[test]
fn restore_sets_and_clears_the_mark() {
    let clock = Clock::Manual(ManualClock::new(1_700_000_000_000));
    let store = Store::new(StoreOptions { clock, ..StoreOptions::default() });
    check(&store, "SET a v STICK => +OK");
    let dump = run(&store, &mut Caller::default(), &[b"DUMP", b"a"]);
    let start = dump.iter().position(|byte| *byte == b'\n').expect("a head") + 1;
    let payload = &dump[start..dump.len() - 2];
    let restore = |options: &[&[u8]]| {
        let words = [&[&b"RESTORE"[..], b"b", b"0", payload][..], options].concat();
        assert_eq!(run(&store, &mut Caller::default(), &words), b"+OK\r\n");
        ask(&store, "OBJECT STICKY b")
    };
    assert_eq!(restore(&[]), ":0\r\n");
    assert_eq!(restore(&[b"REPLACE", b"STICK"]), ":1\r\n");
    assert_eq!(restore(&[b"REPLACE"]), ":0\r\n");
    // The option together with every other one.
    assert_eq!(restore(&[b"STICK", b"REPLACE", b"ABSTTL", b"IDLETIME", b"7"]), ":1\r\n");
    assert_eq!(ask(&store, "OBJECT IDLETIME b"), ":7\r\n");
    assert_eq!(restore(&[b"REPLACE", b"FREQ", b"9"]), ":0\r\n");
}

#[test]
fn sticky_keys_are_not_evicted() {
    let store = store();
    store.limit_memory(8 << 20, Policy::AllkeysRandom);
    let value = vec![b'v'; 1000];
    let set = |key: String, stick: bool| {
        let mut words: Vec<&[u8]> = vec![b"SET", key.as_bytes(), &value];
        if stick {
            words.push(b"STICK");
        }
        run(&store, &mut Caller::default(), &words)
    };
    (0..200).for_each(|n| assert_eq!(set(format!("sticky:{n}"), true), b"+OK\r\n"));
    (0..20_000).for_each(|n| assert_eq!(set(format!("k:{n}"), false), b"+OK\r\n"));
    let left = |name: &str, count: usize| {
        (0..count).filter(|n| ask(&store, &format!("EXISTS {name}:{n}")) == ":1\r\n").count()
    };
    assert_eq!(left("sticky", 200), 200);
    assert!(left("k", 20_000) < 10_000);
    assert_eq!(ask(&store, "UNSTICK sticky:1"), ":1\r\n");
}

#[test]
fn limiters_let_a_burst_pass_and_then_an_even_pace() {
    let hand = ManualClock::new(1_700_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    let throttle = "CL.THROTTLE user 2 30 60";
    check(
        &store,
        &format!(
            "
            {throttle} => *5 :0 :3 :2 :-1 :2
            GET user => $19 1700000002000000000
            OBJECT ENCODING user => $3 int
            PTTL user => :2000
            {throttle} => *5 :0 :3 :1 :-1 :4
            {throttle} => *5 :0 :3 :0 :-1 :6
            {throttle} => *5 :1 :3 :0 :2 :6
            {throttle} 4 => *5 :1 :3 :0 :-1 :6
            {throttle} 0 => *5 :0 :3 :0 :-1 :6
            PTTL user => :6000
            "
        ),
    );
    hand.advance(500);
    // Parts of a second count as a whole one.
    check(&store, &format!("{throttle} => *5 :1 :3 :0 :2 :6"));
    hand.advance(1_500);
    check(&store, &format!("{throttle} => *5 :0 :3 :0 :-1 :6\n{throttle} => *5 :1 :3 :0 :2 :6"));
    hand.advance(6_000);
    check(
        &store,
        &format!("EXISTS user => :0\n{throttle} 3 => *5 :0 :3 :0 :-1 :6\nPEXPIRETIME user => :1700000014000"),
    );
    check(
        &store,
        "
        CL.THROTTLE fresh 0 1 1 0 => *5 :0 :1 :1 :-1 :0
        EXISTS fresh => :0
        CL.THROTTLE user 2 30 => -ERR wrong number of arguments for 'cl.throttle' command
        CL.THROTTLE user 2 30 60 1 1 => -ERR wrong number of arguments for 'cl.throttle' command
        CL.THROTTLE user x 30 60 => -ERR value is not an integer or out of range
        CL.THROTTLE user 2 30 60 y => -ERR value is not an integer or out of range
        CL.THROTTLE user 2 0 60 => -ERR zero rates are not supported
        CL.THROTTLE user 2 30 0 => -ERR zero rates are not supported
        CL.THROTTLE user -2 30 60 => -ERR max_burst, count, period and quantity must not be negative
        CL.THROTTLE user 9223372036854775806 1 9223372036854775807 => -ERR the rate or the burst is out of range
        CL.THROTTLE user 9223372036854775807 1 1 => -ERR value is not an integer or out of range
        CL.THROTTLE user 1 9223372036854775807 1 => -ERR the rate or the burst is out of range
        SET text abc => +OK
        CL.THROTTLE text 1 1 1 => -ERR value is not an integer or out of range
        HSET h f v => :1
        CL.THROTTLE h 1 1 1 => -WRONGTYPE Operation against a key holding the wrong kind of value
        ",
    );
}

#[test]
fn rates_are_limited_by_three_algorithms() {
    let hand = ManualClock::new(1_700_000_020_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    // Allowed, remaining, retry after and reset after.
    check(
        &store,
        "
        LIMIT.TAKE g gcra 30 60000000 3 1 => *4 :1 :2 :0 :2000000
        GET g => $19 1700000022000000000
        PTTL g => :2001
        LIMIT.TAKE g gcra 30 60000000 3 2 => *4 :1 :0 :0 :6000000
        LIMIT.TAKE g GCRA 30 60000000 3 1 => *4 :0 :0 :2000000 :6000000
        LIMIT.TAKE g gcra 30 60000000 3 4 => *4 :0 :0 :-1 :6000000
        LIMIT.TAKE g gcra 30 60000000 3 0 => *4 :1 :0 :0 :6000000
        LIMIT.TAKE none gcra 3 1000000 3 0 => *4 :1 :3 :0 :0
        EXISTS none => :0
        LIMIT.TAKE f fixed 3 60000000 1 2 => *4 :1 :1 :0 :20000000
        GET f => $18 1699999980000000:2
        PTTL f => :20001
        LIMIT.TAKE f fixed 3 60000000 1 2 => *4 :0 :1 :20000000 :20000000
        LIMIT.TAKE f fixed 3 60000000 1 1 => *4 :1 :0 :0 :20000000
        LIMIT.TAKE f fixed 3 60000000 1 4 => *4 :0 :0 :-1 :20000000
        LIMIT.TAKE s sliding 3 60000000 1 1 => *4 :1 :2 :0 :62000000
        GET s => $18 1700000019000000:1
        PTTL s => :62001
        ",
    );
    hand.advance(20_000);
    check(
        &store,
        "
        LIMIT.TAKE f fixed 3 60000000 1 1 => *4 :1 :2 :0 :60000000
        LIMIT.TAKE s sliding 3 60000000 1 2 => *4 :1 :0 :0 :63000000
        GET s => $32 1700000040000000:2,0,0,0,0,0,0,1
        LIMIT.TAKE s sliding 3 60000000 1 1 => *4 :0 :0 :42000000 :63000000
        LIMIT.TAKE s sliding 3 60000000 1 2 => *4 :0 :0 :63000000 :63000000
        ",
    );
    hand.advance(42_000);
    check(&store, "LIMIT.TAKE s sliding 3 60000000 1 1 => *4 :1 :0 :0 :63000000");
}

#[test]
fn limits_refuse_what_is_out_of_range_or_no_state() {
    let store = store();
    let range = "ERR the rate, the burst or the cost is out of range";
    let kind = "ERR the key holds no limit of this kind";
    check(
        &store,
        &format!(
            "
            LIMIT.TAKE k gcra 0 60000000 3 1 => -{range}
            LIMIT.TAKE k gcra 1 999 3 1 => -{range}
            LIMIT.TAKE k gcra 1 60000000 0 1 => -{range}
            LIMIT.TAKE k gcra 1 60000000 1 -1 => -{range}
            LIMIT.TAKE k gcra 1 60000000 1 x => -{range}
            LIMIT.TAKE k gcra 1 8640000000000 2 1 => -{range}
            LIMIT.TAKE k other 1 60000000 1 1 => -ERR syntax error
            LIMIT.TAKE k gcra 1 60000000 1 => -ERR wrong number of arguments for 'limit.take' command
            LIMIT.LEASE k 0 1000 a => -{range}
            LIMIT.LEASE k 1 0 a => -{range}
            LIMIT.LEASE k 1 1000 a other => -ERR syntax error
            EXISTS k => :0
            SET text abc => +OK
            SET part 1:2,x => +OK
            SET long 1:2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23 => +OK
            SET number 17 => +OK
            LIMIT.TAKE text gcra 1 60000000 1 1 => -{kind}
            LIMIT.TAKE text fixed 1 60000000 1 1 => -{kind}
            LIMIT.TAKE number fixed 1 60000000 1 1 => -{kind}
            LIMIT.TAKE part fixed 1 60000000 1 1 => -{kind}
            LIMIT.TAKE part sliding 1 60000000 1 1 => -{kind}
            LIMIT.TAKE long sliding 1 60000000 1 1 => -{kind}
            LIMIT.TAKE text sliding 1 60000000 1 1 => -{kind}
            LIMIT.LEASE text 1 1000 a => -WRONGTYPE Operation against a key holding the wrong kind of value
            "
        ),
    );
}

#[test]
fn leases_are_places_that_end_by_themselves() {
    let hand = ManualClock::new(1_700_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    check(
        &store,
        "
        LIMIT.LEASE k 2 1000 a => *4 :1 :1 :0 :0
        PTTL k => :1001
        LIMIT.LEASE k 2 3000 b => *4 :1 :0 :0 :0
        LIMIT.LEASE k 2 1000 c => *4 :0 :0 :-1 :0
        LIMIT.LEASE k 2 1000 a => *4 :1 :0 :0 :0
        ZRANGE k 0 -1 WITHSCORES => *4 $1 a $13 1700000001000 $1 b $13 1700000003000
        PTTL k => :3001
        ",
    );
    hand.advance(1_000);
    // One lease has ended. A client that renews its lease although its place is taken gets one all the same, because it
    // continues anyway.
    check(
        &store,
        "
        LIMIT.LEASE k 2 1000 c => *4 :1 :0 :0 :0
        LIMIT.LEASE k 2 1000 a RENEW => *4 :1 :0 :0 :0
        ZCARD k => :3
        ZREM k c a => :2
        LIMIT.LEASE k 2 1000 d => *4 :1 :0 :0 :0
        ZREM k b d => :2
        EXISTS k => :0
        ",
    );
}

#[test]
fn limiters_see_the_frozen_time_of_a_section() {
    let hand = ManualClock::new(1_700_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    let keys = [(0, &b"k"[..], sluicegate_store::Mode::Exclusive)];
    let mut section = block_on(store.section(keys)).expect("a free key");
    let mut verdict = || {
        let mut reply = Vec::new();
        let mut out = sluicegate_wire::resp::ReplyWriter::new(&mut reply, Protocol::Resp2);
        section.execute(0, &[b"CL.THROTTLE", b"k", b"0", b"1", b"1"], &mut out).expect("the section's key");
        reply
    };
    assert!(verdict().starts_with(b"*5\r\n:0"));
    hand.advance(5_000);
    assert!(verdict().starts_with(b"*5\r\n:1"));
}

/// Returns the number in an integer reply.
fn number(reply: &str) -> usize {
    reply[1..].trim_end().parse().unwrap_or_else(|_| panic!("{reply}"))
}

#[test]
fn memory_usage_is_what_the_store_gains() {
    let store = store();
    let used = || store.used_bytes() as usize;
    let mut random = Random(3);
    ask(&store, "SET warm up");
    for len in [1, 20, 190, 200, 4_000, 5_000, 100_000] {
        let before = used();
        for n in 0..200 {
            let key = format!("{len}:{n}").into_bytes();
            run(&store, &mut Caller::default(), &[b"SET", &key, &vec![b'v'; len]]);
        }
        let gained = used() - before;
        let told = number(&ask(&store, &format!("MEMORY USAGE {len}:{}", random.below(200))));
        assert!(told > len && told < len + len / 4 + 2_000, "{told} for {len}");
        // Tables grow in steps, which are shared by few keys here.
        assert!(gained + 200 * 1_024 > 200 * told && gained < 200 * (told + 1_024), "{gained} for 200 times {told}");
    }
    check(
        &store,
        "
        MEMORY USAGE none => $-1
        MEMORY USAGE none SAMPLES 5 => $-1
        MEMORY USAGE none SAMPLES -1 => -ERR syntax error
        MEMORY USAGE none SAMPLES => -ERR syntax error
        MEMORY USAGE none junk 1 => -ERR syntax error
        MEMORY USAGE none SAMPLES x => -ERR value is not an integer or out of range
        MEMORY PURGE => +OK
        MEMORY MALLOC-STATS => $45 Stats not supported for the current allocator
        ",
    );
    let mut hash: Vec<Vec<u8>> = vec![b"HSET".to_vec(), b"hash".to_vec()];
    (0..2_000).for_each(|n| hash.push(format!("field:{n}").into_bytes()));
    let words: Vec<&[u8]> = hash.iter().map(Vec::as_slice).collect();
    run(&store, &mut Caller::default(), &words);
    assert!(number(&ask(&store, "MEMORY USAGE hash SAMPLES 0")) > 20_000);
}

/// The reply has every name of Valkey's and Redis 7.4's, in their order, and the additional one of Redis 7.2.
#[test]
fn memory_stats_has_the_names_of_redis() {
    let valkey = RedisServer::start_valkey("8.1", &[]);
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let names = |address: &str| -> Vec<String> {
        let mut client = sluicegate_testkit::Client::connect(address);
        client.ask(&["SET", "k", "v"]);
        let mut names: Vec<String> = Vec::new();
        let reply = client.ask(&["MEMORY", "STATS"]);
        let is_used = |line: &str| !line.starts_with("db.") || matches!(line, "db.0" | "db.dict.rehashing.count");
        for line in reply.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()) && is_used(line)) {
            if !names.iter().any(|name| name == line) {
                names.push(line.to_owned());
            }
        }
        names
    };
    let slots = "overhead.hashtable.slot-to-keys";
    let found = names(&ours.address());
    let without: Vec<&String> = found.iter().filter(|name| *name != slots).collect();
    assert_eq!(without, names(&valkey.address()).iter().collect::<Vec<_>>());
    for name in names(&redis.address()) {
        assert!(found.contains(&name), "{name}");
    }
    let other = |address: &str| {
        let mut client = sluicegate_testkit::Client::connect(address);
        (client.ask(&["MEMORY", "HELP"]), client.ask(&["MEMORY", "JUNK"]))
    };
    assert_eq!(other(&ours.address()), other(&redis.address()));
    let mut client = ours.connect();
    assert!(client.ask(&["MEMORY", "DOCTOR"]).contains("nearly empty"));
    client.ask(&["SET", "big", &"x".repeat(30 << 20)]);
    let text = client.ask(&["MEMORY", "DOCTOR"]);
    assert!(text.contains("Nothing is wrong") || text.contains("Fragmentation"), "{text}");
}

/// Sends the same command to both, and asserts that the replies are equal.
fn alike(commands: &[&[&str]]) {
    let redis = RedisServer::start(&["--enable-debug-command", "yes"]);
    let options = ServerOptions { enable_debug_command: "local", ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    for hello in ["2", "3"] {
        let mut clients =
            [redis.address(), ours.address()].map(|address| sluicegate_testkit::Client::connect(&address));
        for client in &mut clients {
            client.ask(&["HELLO", hello]);
        }
        for command in commands {
            let [theirs, found] = clients.each_mut().map(|client| client.ask(command));
            assert_eq!(found, theirs, "{command:?} in RESP{hello}");
        }
    }
}

#[test]
fn debug_answers_as_redis_where_it_answers() {
    alike(&[
        &["DEBUG"],
        &["DEBUG", "nonsense"],
        &["DEBUG", "SLEEP"],
        &["DEBUG", "SLEEP", "0.01"],
        &["DEBUG", "SLEEP", "x"],
        &["DEBUG", "OBJECT", "none"],
        &["DEBUG", "OBJECT", "a", "b"],
        &["DEBUG", "SET-ACTIVE-EXPIRE", "0"],
        &["DEBUG", "set-active-expire", "1"],
        &["DEBUG", "ERROR", "CODE some text"],
        &["DEBUG", "PROTOCOL", "string"],
        &["DEBUG", "PROTOCOL", "integer"],
        &["DEBUG", "PROTOCOL", "double"],
        &["DEBUG", "PROTOCOL", "bignum"],
        &["DEBUG", "PROTOCOL", "null"],
        &["DEBUG", "PROTOCOL", "array"],
        &["DEBUG", "PROTOCOL", "set"],
        &["DEBUG", "PROTOCOL", "map"],
        &["DEBUG", "PROTOCOL", "verbatim"],
        &["DEBUG", "PROTOCOL", "true"],
        &["DEBUG", "PROTOCOL", "false"],
        &["DEBUG", "PROTOCOL", "junk"],
        &["DEBUG", "POPULATE", "500"],
        &["DBSIZE"],
        &["GET", "key:499"],
        &["DEBUG", "POPULATE", "3", "other", "20"],
        &["GET", "other:2"],
        &["DEBUG", "POPULATE", "-1"],
        &["DEBUG", "POPULATE", "x"],
        &["CONFIG", "SET", "enable-debug-command", "no"],
    ]);
}

#[test]
fn debug_is_refused_unless_allowed() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let ask = |address: &str| sluicegate_testkit::Client::connect(address).ask(&["DEBUG", "SLEEP", "0"]);
    assert_eq!(ask(&ours.address()), ask(&redis.address()));
    let options = ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() };
    let clock = Clock::Manual(ManualClock::new(1_700_000_000_000));
    let ours = Running::serving(Store::new(StoreOptions { clock, ..StoreOptions::default() }), options, 1);
    let mut client = ours.connect();
    assert_eq!(client.ask(&["DEBUG", "JMAP"]), "-ERR DEBUG JMAP is not supported\r\n");
    assert_eq!(client.ask(&["DEBUG", "SEGFAULT"]), "-ERR DEBUG SEGFAULT is not supported\r\n");
    assert_eq!(
        client.ask(&["DEBUG", "QUICKLIST-PACKED-THRESHOLD", "1"]),
        "-ERR DEBUG QUICKLIST-PACKED-THRESHOLD is not supported\r\n"
    );
    assert!(client.ask(&["DEBUG", "HELP"]).contains("STRINGMATCH-LEN"));
    assert_eq!(client.ask(&["DEBUG", "STRINGMATCH-LEN", "1000", "a*a*a*b"]), ":0\r\n");
    assert_eq!(client.ask(&["DEBUG", "STRINGMATCH-LEN", "1000", "a*a"]), ":1\r\n");
    assert!(client.ask(&["DEBUG", "STRINGMATCH-TEST"]).ends_with("test passed\r\n"));
    client.ask(&["SET", "k", "12"]);
    let told = client.ask(&["DEBUG", "OBJECT", "k"]);
    let (place, rest) = told.split_once(" refcount:1 ").expect("its fields");
    assert!(place.starts_with("+Value at:0x"), "{told}");
    assert!(rest.starts_with("encoding:int serializedlength:2 lru:") && rest.contains(" lru_seconds_idle:0"), "{told}");
}

#[test]
fn a_sleeping_client_delays_nobody_else() {
    let options = ServerOptions { enable_debug_command: "yes", ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    let (mut sleeper, mut other) = (ours.connect(), ours.connect());
    let start = Instant::now();
    sleeper.command(&["DEBUG", "SLEEP", "0.4"]);
    for _ in 0..50 {
        assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    }
    let others = start.elapsed();
    assert_eq!(sleeper.read_reply(), b"+OK\r\n");
    assert!(start.elapsed() >= Duration::from_millis(400) && others < start.elapsed(), "{others:?}");
}

#[test]
fn expired_keys_stay_while_active_expiry_is_off() {
    let hand = ManualClock::new(1_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
    store.expire_actively(false);
    check(&store, "SET k v PX 10 => +OK");
    hand.advance(100);
    store.tick();
    check(&store, "DBSIZE => :1\nGET k => $-1");
    check(&store, "SET k v PX 10 => +OK");
    hand.advance(100);
    store.expire_actively(true);
    store.tick();
    check(&store, "DBSIZE => :0");
}
