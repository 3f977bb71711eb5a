//! Commands on very many elements, which are executed aside from the workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_store::config::ServerOptions;
use sluicegate_store::{Caller, Mode, Parked, Store, StoreOptions};
use sluicegate_testkit::wait_for;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::ReplyBuilder;

use crate::allocated::{freed_by, peak_of};
use crate::support::Running;
use crate::{block_on, start};

/// More elements than a worker iterates over at once.
const MANY: usize = 30_000;

fn store(stripes: usize) -> Store {
    Store::new(StoreOptions { stripes, ..StoreOptions::default() })
}

/// Runs a command, if necessary after a command aside that has replied but still holds its keys.
#[track_caller]
fn run(store: &Store, words: &[&[u8]]) -> String {
    let reply = start(store, &mut Caller::default(), words).unwrap_or_else(block_on);
    String::from_utf8(reply).expect("tests use text")
}

#[track_caller]
fn ask(store: &Store, command: &str) -> String {
    run(store, &command.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// Starts a command that is executed aside.
#[track_caller]
fn parked(store: &Store, command: &str) -> Parked {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    start(store, &mut Caller::default(), &words).expect_err("it is large")
}

#[track_caller]
fn wait(store: &Store, command: &str) -> String {
    String::from_utf8(block_on(parked(store, command))).expect("tests use text")
}

/// Waits until no command holds a key any more: a command aside replies before it releases its keys.
#[track_caller]
fn settle(store: &Store) {
    wait_for("no key to be held", || (store.stats().tickets == 0).then_some(()));
}

/// Runs `work` on a thread and `other` here meanwhile, and repeats that until more than `least` rounds of `other` fit
/// into `work`, because the scheduler may let none run. `begin` is called before each attempt.
fn beside<T: Send>(least: usize, begin: impl Fn(), work: impl Fn() -> T + Sync, other: impl Fn()) -> T {
    wait_for(&format!("more than {least} rounds meanwhile"), || {
        begin();
        std::thread::scope(|scope| {
            let working = scope.spawn(&work);
            let mut rounds = 0;
            while !working.is_finished() {
                other();
                rounds += 1;
            }
            let result = working.join().expect("it went well");
            (rounds > least).then_some(result)
        })
    })
}

/// Fills a container by one command for each thousand elements.
fn fill(store: &Store, command: &str, count: usize, element: impl Fn(usize) -> String) {
    for first in (0..count).step_by(1_000) {
        let elements: Vec<String> = (first..(first + 1_000).min(count)).map(&element).collect();
        assert!(ask(store, &format!("{command} {}", elements.join(" "))).starts_with(':'));
    }
}

/// Returns the bulk strings of a flat reply.
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
    let others = || {
        assert_eq!(ask(&store, "GET k"), "$1\r\nv\r\n");
        // Readers share a key's hold.
        assert_eq!(ask(&store, "HGET h field:7"), "$5\r\nvalue\r\n");
    };
    let reply = beside(10, || (), || wait(&store, "HGETALL h"), others);
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
    // Commands that read few of very many elements are executed at once.
    assert_eq!(bulks(&ask(&store, "ZRANGE z 5 6")), ["m5", "m6"]);
    assert_eq!(bulks(&ask(&store, "ZRANGEBYSCORE z 5 6")), ["m5", "m6"]);
    assert_eq!(bulks(&ask(&store, "SINTER s none")).len(), 0);
    // Errors are the same as for few elements.
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

#[test]
fn freeing_is_left_to_others() {
    for command in ["DEL s", "UNLINK s", "SET s v", "RENAME t s", "PEXPIRE s 0", "FLUSHALL", "FLUSHDB SYNC"] {
        let store = store(4);
        let empty = store.used_bytes();
        fill(&store, "SADD s", 10 * MANY, |n| format!("member:{n}"));
        assert!(store.used_bytes() - empty > 4 << 20);
        assert_eq!(ask(&store, "SET t v"), "+OK\r\n");
        let (reply, freed) = freed_by(|| ask(&store, command));
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        assert_ne!(ask(&store, "TYPE s"), "+set\r\n");
        assert!(freed < 64 << 10, "{command}: {freed} bytes were freed by who asked");
        // Their memory is freed.
        wait_for("the bytes to go", || {
            store.tick();
            (store.used_bytes() - empty < 1 << 20).then_some(())
        });
    }
}

/// Commands that change very many elements, each with a query afterwards and its expected reply.
fn changes() -> Vec<(&'static str, &'static str, String)> {
    let many = |count: usize| format!(":{count}\r\n");
    vec![
        ("SUNIONSTORE d s t", "SCARD d", many(MANY + 10)),
        ("SINTERSTORE d s t", "SCARD d", many(MANY - 10)),
        ("SDIFFSTORE d s t", "SCARD d", many(10)),
        ("SUNIONSTORE s s t", "SCARD s", many(MANY + 10)),
        ("SUNIONSTORE s s", "SCARD s", many(MANY)),
        ("ZUNIONSTORE d 2 z s", "ZSCORE d m7", "$1\r\n8\r\n".into()),
        ("ZINTERSTORE d 2 z s", "ZCARD d", many(MANY)),
        ("ZDIFFSTORE d 2 z t", "ZCARD d", many(10)),
        ("ZRANGESTORE d z 0 -2", "ZCARD d", many(MANY - 1)),
        ("GEOSEARCHSTORE d g FROMLONLAT 10 50 BYRADIUS 900 km", "ZCARD d", many(MANY)),
        ("GEORADIUS g 10 50 900 km STORE d", "ZCARD d", many(MANY)),
        ("SORT l STORE d", "LINDEX d 1", "$1\r\n1\r\n".into()),
        ("COPY z d", "ZCARD d", many(MANY)),
        ("ZREMRANGEBYRANK z 0 -4", "ZRANGE z 0 0", "*1\r\n$6\r\nm29997\r\n".into()),
        ("ZREMRANGEBYSCORE z -inf 29997", "ZCARD z", many(2)),
        ("ZREMRANGEBYLEX x - [m25000", "ZCARD x", many(4_999)),
        ("ZREMRANGEBYRANK z 0 -1", "EXISTS z", many(0)),
        ("ZPOPMIN z 25000", "ZCARD z", many(5_000)),
        ("LTRIM l 29000 -1", "LINDEX l 0", "$3\r\n999\r\n".into()),
        ("LTRIM l 1 0", "EXISTS l", many(0)),
        ("LREM l 0 5", "LLEN l", many(MANY - 1)),
        ("LINSERT l BEFORE 0 new", "LINDEX l -2", "$3\r\nnew\r\n".into()),
        ("LPOP l 25000", "LLEN l", many(5_000)),
        ("SPOP s 25000", "SCARD s", many(5_000)),
        ("SPOP s 50000", "EXISTS s", many(0)),
    ]
}

#[test]
fn what_changes_very_many_elements_is_worked_aside() {
    for (change, question, expected) in changes() {
        // All keys are in one stripe, or in different ones.
        for stripes in [1, 256] {
            let store = store(stripes);
            let empty = store.used_bytes();
            fill(&store, "SADD s", MANY, |n| format!("m{n}"));
            fill(&store, "SADD t", MANY, |n| format!("m{}", n + 10));
            fill(&store, "ZADD z", MANY, |n| format!("{n} m{n}"));
            fill(&store, "ZADD x", MANY, |n| format!("0 m{n:05}"));
            fill(&store, "GEOADD g", MANY, |n| format!("{} 50 m{n}", 9.0 + n as f64 / MANY as f64));
            fill(&store, "LPUSH l", MANY, |n| n.to_string());
            let reply = wait(&store, change);
            assert!(!reply.starts_with('-'), "{change}: {reply}");
            assert_eq!(ask(&store, question), expected, "{question} after {change}");
            for key in ["s", "t", "z", "x", "g", "l", "d"] {
                ask(&store, &format!("DEL {key}"));
            }
            assert_eq!(ask(&store, "DBSIZE"), ":0\r\n");
            // Only tables and pages of the stripes remain.
            let left = store.used_bytes() - empty;
            assert!(left < 100_000, "{left} bytes are left after {change}");
        }
    }
}

#[test]
fn what_is_small_is_not_sent_aside() {
    let store = store(1);
    fill(&store, "ZADD z", MANY, |n| format!("{n} m{n}"));
    fill(&store, "RPUSH l", MANY, |n| n.to_string());
    fill(&store, "SADD s", MANY, |n| n.to_string());
    for command in [
        "ZREMRANGEBYRANK z 0 9",
        "ZREMRANGEBYSCORE z 20 29",
        "ZPOPMIN z 10",
        "LTRIM l 10 -1",
        "LPOP l 10",
        "LRANGE l 0 10",
        "SPOP s 10",
        "SPOP s",
        "SRANDMEMBER s -100",
        "SRANDMEMBER none -100000",
        "LPOP l -100000",
        "ZPOPMIN z -100000",
        "SPOP s -100000",
        "SSCAN s 0 COUNT 100",
        "SINTERSTORE d s none",
        "ZRANGESTORE d z 0 10",
        "COPY d e",
        "SUNIONSTORE s2 none",
    ] {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        assert!(start(&store, &mut Caller::default(), &words).is_ok(), "{command}");
    }
}

#[test]
fn others_go_on_while_much_is_removed() {
    let store = store(1);
    assert_eq!(ask(&store, "SET k v"), "+OK\r\n");
    let others = || {
        assert_eq!(ask(&store, "GET k"), "$1\r\nv\r\n");
        // The key itself exists and has its type, even while its members are being removed.
        let listed = ask(&store, "SCAN 0 TYPE zset COUNT 1000");
        assert!(listed.contains("$1\r\nz\r\n"), "{listed}");
    };
    let begin = || fill(&store, "ZADD z", 10 * MANY, |n| format!("{n} member:{n}"));
    let removed = beside(10, begin, || wait(&store, "ZREMRANGEBYRANK z 0 -3"), others);
    assert_eq!(removed, format!(":{}\r\n", 10 * MANY - 2));
    assert_eq!(ask(&store, "ZCARD z"), ":2\r\n");
}

#[test]
fn sources_are_read_by_others_meanwhile() {
    let store = store(1);
    fill(&store, "SADD s", 10 * MANY, |n| format!("member:{n}"));
    let others = || {
        let words: Vec<&[u8]> = vec![b"SISMEMBER", b"s", b"member:7"];
        assert_eq!(start(&store, &mut Caller::default(), &words).expect("it need not wait"), b":1\r\n");
    };
    let stored = beside(10, || settle(&store), || wait(&store, "SUNIONSTORE d s"), others);
    assert_eq!(stored, format!(":{}\r\n", 10 * MANY));
}

#[test]
fn clients_that_wait_are_served_by_what_is_stored_aside() {
    let store = store(16);
    fill(&store, "RPUSH l", MANY, |n| n.to_string());
    fill(&store, "ZADD z", MANY, |n| format!("{n} m{n}"));
    let listening = parked(&store, "BLPOP list 0");
    let lowest = parked(&store, "BZPOPMIN zset 0");
    assert_eq!(wait(&store, "SORT l STORE list"), format!(":{MANY}\r\n"));
    assert_eq!(block_on(listening), b"*2\r\n$4\r\nlist\r\n$1\r\n0\r\n");
    assert_eq!(ask(&store, "LLEN list"), format!(":{}\r\n", MANY - 1));
    assert_eq!(wait(&store, "ZRANGESTORE zset z 0 -1"), format!(":{MANY}\r\n"));
    assert_eq!(block_on(lowest), b"*3\r\n$4\r\nzset\r\n$2\r\nm0\r\n$1\r\n0\r\n");
    assert_eq!(ask(&store, "ZCARD zset"), format!(":{}\r\n", MANY - 1));
    // An element that a waiting client moves to another list serves the client that waits there.
    let moving = parked(&store, "BLMOVE one two LEFT LEFT 0");
    let last = parked(&store, "BLPOP two 0");
    assert_eq!(wait(&store, "COPY l one"), ":1\r\n");
    assert_eq!(block_on(moving), b"$1\r\n0\r\n");
    assert_eq!(block_on(last), b"*2\r\n$3\r\ntwo\r\n$1\r\n0\r\n");
}

#[test]
fn a_command_of_very_many_words_is_worked_aside() {
    let store = store(1);
    for (name, pairs, length) in
        [("SADD", false, "SCARD"), ("RPUSH", false, "LLEN"), ("ZADD", true, "ZCARD"), ("HSET", true, "HLEN")]
    {
        for round in 0..2 {
            let words: Vec<String> = (0..MANY)
                .flat_map(|n| match pairs {
                    true => vec![n.to_string(), format!("{round}:{n}")],
                    false => vec![format!("{round}:{n}")],
                })
                .collect();
            // The first round creates the key, and the second one changes it.
            let command = format!("{name} {name}:key {}", words.join(" "));
            assert!(wait(&store, &command).starts_with(':'), "{name}");
        }
        let expected = if name == "HSET" { MANY } else { 2 * MANY };
        assert_eq!(ask(&store, &format!("{length} {name}:key")), format!(":{expected}\r\n"));
    }
    // Errors change nothing.
    let words: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
    assert!(wait(&store, &format!("RPUSH SADD:key {}", words.join(" "))).starts_with("-WRONGTYPE"));
    assert_eq!(ask(&store, "SCARD SADD:key"), format!(":{}\r\n", 2 * MANY));
}

#[test]
fn long_payloads_and_long_strings_are_worked_aside() {
    let store = store(4);
    fill(&store, "HSET h", MANY, |n| format!("f{n} v{n}"));
    let reply = block_on(parked(&store, "DUMP h"));
    let from = reply.iter().position(|byte| *byte == b'\n').expect("a length") + 1;
    let payload = &reply[from..reply.len() - 2];
    let words = [&b"RESTORE"[..], b"copy", b"0", payload];
    let restoring = start(&store, &mut Caller::default(), &words).expect_err("it is long");
    assert_eq!(block_on(restoring), b"+OK\r\n");
    assert_eq!(ask(&store, "HLEN copy"), format!(":{MANY}\r\n"));
    assert_eq!(
        block_on(start(&store, &mut Caller::default(), &words).expect_err("it is long")),
        b"-BUSYKEY Target key name already exists.\r\n"
    );

    let long = 256 * MANY;
    assert_eq!(ask(&store, &format!("SETBIT a {} 1", 8 * long)), ":0\r\n");
    assert_eq!(wait(&store, "BITCOUNT a"), ":1\r\n");
    assert_eq!(wait(&store, "BITPOS a 1"), format!(":{}\r\n", 8 * long));
    assert_eq!(wait(&store, "BITOP NOT b a"), format!(":{}\r\n", long + 1));
    assert_eq!(wait(&store, "BITCOUNT b"), format!(":{}\r\n", 8 * long + 7));
    let text = "ab".repeat(1_000);
    assert_eq!(ask(&store, &format!("SET x {text}")), "+OK\r\n");
    assert_eq!(ask(&store, &format!("SET y {}", &text[1..])), "+OK\r\n");
    assert_eq!(wait(&store, "LCS x y LEN"), ":1999\r\n");
}

/// Elements that several threads remove from a set while others add some are removed once, and none is lost.
#[test]
fn members_are_neither_lost_nor_taken_twice() {
    let store = store(1);
    let total = 6 * MANY;
    let mut popped: Vec<usize> = std::thread::scope(|scope| {
        let adding = scope.spawn(|| {
            for first in (0..total).step_by(5_000) {
                let members: Vec<String> = (first..first + 5_000).map(|n| n.to_string()).collect();
                assert_eq!(ask(&store, &format!("SADD s {}", members.join(" "))), ":5000\r\n");
            }
        });
        let popping: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut popped = Vec::new();
                    while popped.len() < 2 * MANY {
                        let reply = ask(&store, "SPOP s 20001");
                        popped.extend(bulks(&reply).iter().map(|member| member.parse::<usize>().expect("a number")));
                    }
                    popped
                })
            })
            .collect();
        let reading = scope.spawn(|| {
            for _ in 0..20 {
                let reply = ask(&store, "SMEMBERS s");
                let members = bulks(&reply);
                let mut unique = members.clone();
                unique.sort_unstable();
                unique.dedup();
                assert_eq!(unique.len(), members.len());
            }
        });
        adding.join().expect("it went well");
        reading.join().expect("it went well");
        popping.into_iter().flat_map(|thread| thread.join().expect("it went well")).collect()
    });
    popped.extend(bulks(&ask(&store, "SMEMBERS s")).iter().map(|member| member.parse::<usize>().expect("a number")));
    popped.sort_unstable();
    assert!(popped.into_iter().eq(0..total), "members were lost or taken twice");
}

/// A string so long that copying it takes longer than a lock may be held.
const LONG: usize = 8 << 20;

/// Makes a long string of zeros without spare capacity.
fn make_long(store: &Store, key: &str) {
    assert_eq!(ask(store, &format!("SETBIT {key} {} 0", 8 * LONG - 1)), ":0\r\n");
}

/// Changes of a long string, each with its reply, and with a range and what GETRANGE returns for it.
const EDITS: &[(&str, &str, &str)] = &[
    ("APPEND k end", ":8388611\r\n", "8388608 -1 end"),
    ("SETRANGE k 5 new", ":8388608\r\n", "5 7 new"),
    ("SETRANGE k 8388607 new", ":8388610\r\n", "8388607 -1 new"),
    ("SETRANGE k 30000000 far", ":30000003\r\n", "30000000 -1 far"),
    ("SETBIT k 9 1", ":0\r\n", "1 1 @"),
    ("SETBIT k 80000000 1", ":0\r\n", "10000000 -1 \u{80}"),
    ("BITFIELD k SET u8 #3 65 GET u8 #3", "*2\r\n:0\r\n:65\r\n", "3 3 A"),
];

#[test]
fn long_strings_are_copied_aside() {
    for stripes in [1, 64] {
        for (edit, expected, found) in EDITS {
            let store = store(stripes);
            let empty = store.used_bytes();
            make_long(&store, "k");
            assert_eq!(ask(&store, "EXPIREAT k 9999999999"), ":1\r\n");
            // The other key shares the bytes, so they are copied whatever the capacity.
            assert_eq!(ask(&store, "COPY k copy"), ":1\r\n");
            assert_eq!(wait(&store, edit), *expected, "{edit}");
            let [from, to, text] = found.split(' ').collect::<Vec<_>>()[..] else { panic!("three words") };
            let reply = start(&store, &mut Caller::default(), &[b"GETRANGE", b"k", from.as_bytes(), to.as_bytes()]);
            let text: Vec<u8> = text.chars().map(|char| char as u32 as u8).collect();
            let expected = [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat();
            assert_eq!(reply.unwrap_or_else(block_on), expected, "{edit}");
            assert_eq!(ask(&store, "EXPIRETIME k"), ":9999999999\r\n");
            assert_eq!(ask(&store, "OBJECT ENCODING k"), "$3\r\nraw\r\n");
            assert_eq!(ask(&store, "STRLEN copy"), format!(":{LONG}\r\n"));
            assert_eq!(wait(&store, "BITCOUNT copy"), ":0\r\n", "the other key's bytes, after {edit}");
            settle(&store);
            // Now the key shares its bytes with none, and has spare capacity.
            let words: Vec<&[u8]> = edit.split(' ').map(str::as_bytes).collect();
            assert!(start(&store, &mut Caller::default(), &words).is_ok(), "{edit} once more");
            assert_eq!(ask(&store, "DEL k copy"), ":2\r\n");
            let left = store.used_bytes() - empty;
            assert!(left < 100_000, "{left} bytes are left after {edit}");
        }
    }
}

#[test]
fn what_moves_a_long_string_or_has_room_is_not_sent_aside() {
    let store = store(64);
    make_long(&store, "k");
    assert_eq!(wait(&store, "APPEND k x"), format!(":{}\r\n", LONG + 1));
    settle(&store);
    for command in [
        "APPEND k y",
        "SETRANGE k 7 x",
        "SETBIT k 77 1",
        "RENAME k l",
        "RENAMENX l k",
        "COPY k copy",
        "RENAME k copy",
        "RENAME copy k",
        "MOVE k 1",
        "SETRANGE far 500000000 x",
        "RENAME far k",
        "EXPIRE k 1000",
        "PERSIST k",
        "GETRANGE k 7 9",
        "STRLEN k",
        "GETEX none EX 5",
        "INCR k",
        "UNLINK k",
    ] {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let (reply, taken) = peak_of(|| start(&store, &mut Caller::default(), &words));
        assert!(reply.is_ok(), "{command} waits");
        // A copy takes as much memory again; zeros come from the kernel as they are.
        assert!(taken < LONG || words[1] == b"far", "{command}: {taken} bytes were taken");
    }
}

#[test]
fn others_go_on_while_a_long_string_is_copied() {
    let store = store(1);
    assert_eq!(ask(&store, "SETRANGE k 400000000 x"), ":400000001\r\n");
    assert_eq!(ask(&store, "SET other v"), "+OK\r\n");
    // Bytes that two keys share are copied even if the allocator could extend them.
    let begin = || assert_eq!(ask(&store, "COPY k shares REPLACE"), ":1\r\n");
    let others = || {
        let words: [&[u8]; 2] = [b"GET", b"other"];
        assert_eq!(start(&store, &mut Caller::default(), &words).expect("it need not wait"), b"$1\r\nv\r\n");
        // Meanwhile the key exists, and is a string.
        assert!(ask(&store, "SCAN 0 TYPE string COUNT 1000").contains("$1\r\nk\r\n"));
    };
    // Some rounds pass before the copying begins; while it lasts there is time for tens of thousands.
    let appended = beside(300, begin, || wait(&store, "APPEND k x"), others);
    assert!(appended.starts_with(":4000000"), "{appended}");
}

#[test]
fn a_long_string_that_was_held_is_copied_aside_afterwards() {
    let store = store(4);
    make_long(&store, "k");
    let mut section = block_on(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("a free key");
    let waiting = parked(&store, "APPEND k end");
    // In a section the string is copied at once.
    let mut out = ReplyBuilder::new();
    section.execute(0, &[b"APPEND", b"k", b"first"], &mut out).expect("its own key");
    assert_eq!(out.finish(), Reply::Integer(LONG as i64 + 5));
    let mut out = ReplyBuilder::new();
    section.execute(0, &[b"COPY", b"k", b"copy"], &mut out).expect("its own key");
    drop(section);
    assert_eq!(block_on(waiting), format!(":{}\r\n", LONG + 8).into_bytes());
    assert_eq!(ask(&store, "GETRANGE k -8 -1"), "$8\r\nfirstend\r\n");
    assert_eq!(ask(&store, "GETRANGE copy -8 -1"), "$8\r\n\0\0\0first\r\n");
}

#[test]
fn a_transaction_goes_aside_with_a_long_string() {
    let ours = Running::with(ServerOptions::default(), 2);
    let mut client = ours.connect();
    client.ask(&["SETBIT", "k", &(8 * LONG - 1).to_string(), "0"]);
    for words in [
        &["MULTI"][..],
        &["COPY", "k", "copy"],
        &["APPEND", "k", "end"],
        &["SETRANGE", "copy", "0", "new"],
        &["APPEND", "k", "s"],
        &["PING"],
        &["GETRANGE", "copy", "0", "2"],
    ] {
        client.ask(words);
    }
    client.command(&["EXEC"]);
    let expected = format!("*6\r\n:1\r\n:{}\r\n:{LONG}\r\n:{}\r\n+PONG\r\n$3\r\nnew\r\n", LONG + 3, LONG + 4);
    assert_eq!(String::from_utf8_lossy(&client.read_reply()), expected);
    // A transaction that runs alone executes everything itself.
    for words in [&["MULTI"][..], &["COPY", "k", "copy", "REPLACE"], &["APPEND", "k", "!"], &["FLUSHALL"]] {
        client.ask(words);
    }
    client.command(&["EXEC"]);
    assert_eq!(String::from_utf8_lossy(&client.read_reply()), format!("*3\r\n:1\r\n:{}\r\n+OK\r\n", LONG + 5));
}

#[test]
fn long_words_are_put_into_values_aside() {
    let store = store(4);
    let long = vec![b'v'; LONG];
    let bulk = [format!("${LONG}\r\n").as_bytes(), &long, b"\r\n"].concat();
    for words in [
        [&b"HSET"[..], b"h", b"f", &long],
        [b"HSETNX", b"h", b"g", &long],
        [b"SADD", b"s", b"m", &long],
        [b"RPUSH", b"l", b"e", &long],
        [b"ZADD", b"z", b"1", &long],
    ] {
        // The key is made, and then changed.
        for _ in 0..2 {
            let parked = start(&store, &mut Caller::default(), &words).expect_err("it is long");
            assert!(block_on(parked).starts_with(b":"));
        }
    }
    for words in [[&b"HGET"[..], b"h", b"f"], [b"LINDEX", b"l", b"1"]] {
        let parked = start(&store, &mut Caller::default(), &words).expect_err("it is long");
        assert!(block_on(parked) == bulk);
    }
    let expected = [&b"*2\r\n"[..], &bulk, b"$-1\r\n"].concat();
    let words: [&[u8]; 4] = [b"HMGET", b"h", b"g", b"none"];
    assert!(block_on(start(&store, &mut Caller::default(), &words).expect_err("it is long")) == expected);
    for words in [&[&b"HGETALL"[..], b"h"][..], &[b"SMEMBERS", b"s"], &[b"LRANGE", b"l", b"0", b"-1"], &[b"DUMP", b"l"]]
    {
        let parked = start(&store, &mut Caller::default(), words).expect_err("it is long");
        assert!(block_on(parked).len() > LONG.min(50_000));
    }
    // The member is found by a long word.
    let words: [&[u8]; 3] = [b"SISMEMBER", b"s", &long];
    assert_eq!(block_on(start(&store, &mut Caller::default(), &words).expect_err("it is long")), b":1\r\n");
    // A new string's bytes are copied before anything is locked, and by the worker if that takes only a moment.
    assert!(start(&store, &mut Caller::default(), &[b"SET", b"k", &long[..LONG / 4]]).is_ok());
    let all = format!(":{LONG}\r\n");
    for (words, expected) in [
        (&[&b"SET"[..], b"k", &long][..], "+OK\r\n"),
        (&[b"SET", b"k", &long, b"XX", b"EX", b"100"], "+OK\r\n"),
        (&[b"SET", b"k", &long, b"NX"], "$-1\r\n"),
        (&[b"SETNX", b"k2", &long], ":1\r\n"),
        (&[b"SETEX", b"k3", b"100", &long], "+OK\r\n"),
        (&[b"MSET", b"k4", &long, b"k5", b"short"], "+OK\r\n"),
        (&[b"MSETNX", b"k5", &long, b"k6", &long], ":0\r\n"),
        (&[b"GETSET", b"k5", &long], "$5\r\nshort\r\n"),
        (&[b"GET", b"k4"], &String::from_utf8_lossy(&bulk)),
        (&[b"APPEND", b"new", &long], &all),
        (&[b"SET", b"l", &long, b"GET"], "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ] {
        let parked = start(&store, &mut Caller::default(), words).expect_err("it is long");
        assert_eq!(String::from_utf8_lossy(&block_on(parked)), expected);
    }
    for key in ["k", "k2", "k3", "k4", "k5", "new"] {
        assert_eq!(ask(&store, &format!("STRLEN {key}")), all);
        assert_eq!(ask(&store, &format!("GETRANGE {key} -1 -1")), "$1\r\nv\r\n");
    }
    assert_eq!(ask(&store, "TTL k2"), ":-1\r\n");
    assert_eq!(ask(&store, "PERSIST k"), ":1\r\n");
    let parked = start(&store, &mut Caller::default(), &[b"APPEND", b"k", &long]).expect_err("it is long");
    assert_eq!(block_on(parked), format!(":{}\r\n", 2 * LONG).into_bytes());
    assert_eq!(ask(&store, "EXISTS h s l z k new"), ":6\r\n");
    settle(&store);
}

#[test]
fn long_elements_of_lists_are_taken_aside() {
    let store = store(4);
    let long = vec![b'v'; LONG];
    let bulk = [format!("${LONG}\r\n").as_bytes(), &long, b"\r\n"].concat();
    let empty_bytes = store.used_bytes();
    let aside = |command: &str| block_on(parked(&store, command));
    let push = || {
        let words: [&[u8]; 5] = [b"RPUSH", b"l", b"first", &long, b"last"];
        assert_eq!(block_on(start(&store, &mut Caller::default(), &words).expect_err("it is long")), b":3\r\n");
    };
    push();
    // Short elements are removed at once even beside long ones, and so are elements that do not exist.
    assert_eq!(ask(&store, "LPOP l"), "$5\r\nfirst\r\n");
    assert_eq!(ask(&store, "LPOP none"), "$-1\r\n");
    assert!(aside("LPOP l") == bulk);
    assert_eq!(ask(&store, "LRANGE l 0 -1"), "*1\r\n$4\r\nlast\r\n");
    assert_eq!(ask(&store, "DEL l"), ":1\r\n");
    push();
    assert_eq!(ask(&store, "RPOP l"), "$4\r\nlast\r\n");
    assert!(aside("RPOP l") == bulk);
    assert_eq!(ask(&store, "DEL l"), ":1\r\n");
    push();
    assert!(aside("LPOP l 3") == [&b"*3\r\n$5\r\nfirst\r\n"[..], &bulk, b"$4\r\nlast\r\n"].concat());
    assert_eq!(ask(&store, "EXISTS l"), ":0\r\n");
    push();
    assert_eq!(ask(&store, "LPOP l"), "$5\r\nfirst\r\n");
    assert!(aside("LMOVE l other LEFT RIGHT") == bulk);
    assert!(aside("RPOPLPUSH other other") == bulk);
    assert!(aside("LMPOP 2 none other RIGHT") == [&b"*2\r\n$5\r\nother\r\n*1\r\n"[..], &bulk].concat());
    assert_eq!(ask(&store, "EXISTS other"), ":0\r\n");
    assert_eq!(ask(&store, "LMOVE l other LEFT RIGHT"), "$4\r\nlast\r\n");
    // An element for which a client waits is moved, and serves that client.
    let waiting = parked(&store, "BLPOP queue 0");
    push();
    assert_eq!(ask(&store, "LPOP l"), "$5\r\nfirst\r\n");
    assert!(aside("LMOVE l queue LEFT LEFT") == bulk);
    assert!(block_on(waiting) == [&b"*2\r\n$5\r\nqueue\r\n"[..], &bulk].concat());
    settle(&store);
    assert_eq!(ask(&store, "DEL l other"), ":2\r\n");
    assert!(store.used_bytes() < empty_bytes + LONG as u64 / 4, "what was taken counts no longer");
}

/// Several threads append to a string while others copy it: nothing is lost, and every copy is the string's value at
/// one moment.
#[test]
fn additions_to_a_long_string_are_neither_lost_nor_mixed() {
    const ADDED: usize = 60;
    let store = store(1);
    make_long(&store, "k");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let adding: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .map(|name| {
                let store = &store;
                scope.spawn(move || {
                    for n in 0..ADDED {
                        assert!(ask(store, &format!("APPEND k {name}{n:03}")).starts_with(':'));
                    }
                })
            })
            .collect();
        let copying = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::SeqCst) {
                assert_eq!(ask(&store, "COPY k copy REPLACE"), ":1\r\n");
                let added = ask(&store, &format!("GETRANGE copy {LONG} -1"));
                let text = added.split("\r\n").nth(1).expect("a bulk");
                assert!(text.len().is_multiple_of(4) && text.len() >= last, "{} bytes after {last}", text.len());
                last = text.len();
            }
        });
        adding.into_iter().for_each(|thread| thread.join().expect("it went well"));
        done.store(true, Ordering::SeqCst);
        copying.join().expect("it went well");
    });
    let added = ask(&store, &format!("GETRANGE k {LONG} -1"));
    let text = added.split("\r\n").nth(1).expect("a bulk");
    assert_eq!(text.len(), 3 * ADDED * 4);
    for name in ["a", "b", "c"] {
        let own: Vec<&str> =
            (0..text.len()).step_by(4).map(|at| &text[at..at + 4]).filter(|piece| piece.starts_with(name)).collect();
        assert_eq!(own, (0..ADDED).map(|n| format!("{name}{n:03}")).collect::<Vec<_>>());
    }
}
