//! Consumer groups of streams, compared with Valkey 8.1, whose XINFO is that of Redis 7.2: single edge cases, random
//! commands, and payloads exchanged both ways.

use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{Pair, parse};
use crate::{Random, block_on, start};

/// Replaces times by one text: those of consumers, and of pending entries, which are arrays of an ID, possibly an owner,
/// a time and a number of deliveries. A consumer that never succeeded has the time -1.
pub(super) fn without_times(reply: Reply) -> Reply {
    let forget = |reply: &mut Reply| {
        if matches!(reply, Reply::Integer(0..)) {
            *reply = Reply::Simple("a time".into());
        }
    };
    let value_of = |name: &Reply, value: &mut Reply| {
        let Reply::Bulk(name) = name else { return };
        match (&name[..], value) {
            (b"seen-time" | b"active-time" | b"idle" | b"inactive", value) => forget(value),
            (b"pending", Reply::Array(items)) => {
                for item in items {
                    if let Reply::Array(parts) = item
                        && let place @ 1.. = parts.len().saturating_sub(2)
                    {
                        forget(&mut parts[place]);
                    }
                }
            }
            _ => {}
        }
    };
    match reply {
        Reply::Array(mut items) => {
            for at in 1..items.len() {
                let (before, after) = items.split_at_mut(at);
                value_of(&before[at - 1], &mut after[0]);
            }
            Reply::Array(items.into_iter().map(without_times).collect())
        }
        Reply::Map(mut pairs) => {
            pairs.iter_mut().for_each(|(name, value)| value_of(name, value));
            Reply::Map(pairs.into_iter().map(|(name, value)| (name, without_times(value))).collect())
        }
        other => other,
    }
}

const EDGE_CASES: &str = "
    XGROUP
    XGROUP NONE s g
    XGROUP CREATE s g
    XGROUP CREATE s g 0
    XGROUP CREATE s g x MKSTREAM
    XGROUP CREATE s g 0 FOO
    XGROUP CREATE s g 0 ENTRIESREAD
    XGROUP CREATE s g 0 ENTRIESREAD x
    XGROUP CREATE s g 0 ENTRIESREAD -2
    XGROUP create s g 0 MKSTREAM ENTRIESREAD 1 MKSTREAM
    XGROUP CREATE s g $ MKSTREAM
    XGROUP CREATE s g $ MKSTREAM
    XGROUP CREATE s other 5-3 ENTRIESREAD 7
    XGROUP CREATE s - -
    XINFO GROUPS s
    XADD s 1 f a
    XADD s 2 f b g 7
    XADD s 3 f c
    XADD s 3-1 f d
    XADD s 4 f e
    XREADGROUP GROUP g c STREAMS s
    XREADGROUP GROUP g c STREAMS s s >
    XREADGROUP GROUP g STREAMS s >
    XREADGROUP COUNT 1 NOACK STREAMS s > >
    XREADGROUP GROUP none c STREAMS s >
    XREADGROUP GROUP g c STREAMS none >
    XREADGROUP GROUP g c STREAMS s $
    XREADGROUP GROUP g c STREAMS s +
    XREADGROUP GROUP g c STREAMS s x
    XREADGROUP GROUP g c BLOCK x STREAMS s >
    XREADGROUP GROUP g c BLOCK 9223372036854775807 STREAMS s >
    XREADGROUP GROUP g c COUNT 1 STREAMS s >
    XREADGROUP GROUP g c COUNT 1 STREAMS s s > >
    XREADGROUP NOACK GROUP g c COUNT 1 STREAMS s >
    XREADGROUP GROUP g d STREAMS s 18446744073709551615-18446744073709551615
    XREADGROUP GROUP g d STREAMS s s > >
    XREADGROUP GROUP g d BLOCK 1 STREAMS s >
    XREADGROUP GROUP g d STREAMS s 0
    XREADGROUP GROUP g d COUNT 1 STREAMS s 3
    XREADGROUP GROUP g new STREAMS s 0
    XINFO GROUPS s
    XINFO CONSUMERS s g
    XINFO CONSUMERS s none
    XINFO CONSUMERS none g
    XINFO CONSUMERS s
    XINFO STREAM s
    XINFO STREAM s FULL
    XINFO STREAM s FULL COUNT 1
    XPENDING s g
    XPENDING s other
    XPENDING s none
    XPENDING none g
    XPENDING s g -
    XPENDING s g - + 10
    XPENDING s g - + 1
    XPENDING s g - + -1
    XPENDING s g - + x
    XPENDING s g (1 (4 10
    XPENDING s g + - 10
    XPENDING s g ( + 10
    XPENDING s g - + 10 c
    XPENDING s g 2 + 10 d junk
    XPENDING s g - + 10 none
    XPENDING s g IDLE 0 - + 10
    XPENDING s g IDLE 5000000 - + 10
    XPENDING s g IDLE x - + 10
    XPENDING s g IDLE 0 -
    XACK s g 1 1 2 99
    XACK s g x
    XACK s none x
    XACK none g 1
    XCLAIM s g d 0 3
    XCLAIM s g d x 3
    XCLAIM s none d x 3
    XCLAIM s g e 5000000 3
    XCLAIM s g e 0 3 3 JUSTID
    XCLAIM s g e 0 1 FORCE
    XCLAIM s g e 0 2 FORCE JUSTID
    XCLAIM s g e 0 99 FORCE
    XCLAIM s g e 0 3 IDLE 6000000 RETRYCOUNT 9
    XCLAIM s g e 5000000 3
    XCLAIM s g e 0 3 TIME 1000 LASTID 3
    XCLAIM s g e 0 3 TIME -5 RETRYCOUNT -4
    XCLAIM s g e 0 3 IDLE x
    XCLAIM s g e 0 3 TIME
    XCLAIM s g e 0 3 RETRYCOUNT x
    XCLAIM s g e 0 3 LASTID x
    XCLAIM s g e 0 x
    XCLAIM s g fresh 0 77
    XPENDING s g - + 10
    XDEL s 3
    XCLAIM s g e 0 3
    XREADGROUP GROUP g e STREAMS s 0
    XDEL s 1
    XREADGROUP GROUP g e STREAMS s 0
    XAUTOCLAIM s g f x -
    XAUTOCLAIM s g f 0 x
    XAUTOCLAIM s none f 0 -
    XAUTOCLAIM s g f 0 - COUNT 0
    XAUTOCLAIM s g f 0 - COUNT x
    XAUTOCLAIM s g f 0 - COUNT 8070450532247928833
    XAUTOCLAIM s g f 0 - FOO
    XAUTOCLAIM s g f 0 ( COUNT 1
    XAUTOCLAIM s g f 0 - COUNT 1
    XAUTOCLAIM s g f 0 (1 COUNT 1 JUSTID
    XAUTOCLAIM s g f 5000000 -
    XAUTOCLAIM s g f 0 - JUSTID
    XPENDING s g
    XGROUP SETID s g
    XGROUP SETID s g 2 ENTRIESREAD
    XGROUP SETID s g 2 MKSTREAM
    XGROUP SETID s none 2
    XGROUP SETID none g 2
    XGROUP SETID s g (2
    XGROUP SETID s g x
    XGROUP SETID s g +
    XINFO GROUPS s
    XGROUP SETID s g -
    XGROUP SETID s g 2 ENTRIESREAD 2
    XINFO GROUPS s
    XREADGROUP GROUP g c STREAMS s >
    XINFO GROUPS s
    XTRIM s MAXLEN 1
    XGROUP SETID s g 2
    XINFO GROUPS s
    XREADGROUP GROUP g c STREAMS s >
    XINFO GROUPS s
    XGROUP SETID s g $
    XGROUP CREATECONSUMER s g c
    XGROUP CREATECONSUMER s g z
    XGROUP CREATECONSUMER s none z
    XGROUP CREATECONSUMER none g z
    XGROUP DELCONSUMER s g c
    XGROUP DELCONSUMER s g c
    XGROUP DELCONSUMER s none c
    COPY s t
    XINFO STREAM t FULL
    XGROUP DESTROY s g
    XGROUP DESTROY s g
    XGROUP DESTROY none g
    XINFO STREAM s FULL
    XINFO STREAM t FULL
    RENAME t s
    XINFO GROUPS s
    SET string v
    XGROUP CREATE string g 0
    XGROUP SETID string g 0
    XGROUP DESTROY string g
    XGROUP CREATECONSUMER string g c
    XGROUP DELCONSUMER string g c
    XREADGROUP GROUP g c STREAMS string >
    XACK string g 1
    XPENDING string g
    XCLAIM string g c 0 1
    XAUTOCLAIM string g c 0 -
    XINFO GROUPS string
    XINFO CONSUMERS string g
";

fn edge_cases(protocol: Protocol) {
    let mut pair = Pair::newer(protocol);
    for line in EDGE_CASES.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
    pair.check_state();
}

#[test]
fn groups_are_answered_as_by_valkey() {
    edge_cases(Protocol::Resp2);
    edge_cases(Protocol::Resp3);
}

fn ask_bytes(client: &mut Client, words: &[&[u8]]) -> Vec<u8> {
    client.command(words);
    client.read_reply()
}

/// Returns the payload of the store's DUMP.
fn dump(pair: &mut Pair, key: &str) -> Vec<u8> {
    let words = [&b"DUMP"[..], key.as_bytes()];
    match parse(&start(&pair.store, &mut pair.caller, &words).unwrap_or_else(block_on)) {
        Reply::Bulk(payload) => payload,
        other => panic!("{other:?}"),
    }
}

/// Restores the payload of each program in both, which then have the same stream.
#[track_caller]
fn exchange(pair: &mut Pair, key: &str) {
    let ours = dump(pair, key);
    let Reply::Bulk(theirs) = parse(&ask_bytes(&mut pair.redis, &[b"DUMP", key.as_bytes()])) else {
        panic!("a payload")
    };
    for (name, payload) in [("theirs", theirs), ("ours", ours)] {
        let words = [&b"RESTORE"[..], name.as_bytes(), b"0", &payload, b"REPLACE"];
        assert_eq!(start(&pair.store, &mut pair.caller, &words).unwrap_or_else(block_on), b"+OK\r\n");
        assert_eq!(ask_bytes(&mut pair.redis, &words), b"+OK\r\n");
        let full = ["XINFO", "STREAM", name, "FULL", "COUNT", "0"];
        // Times are those of the payload, so they are equal, too.
        let bytes: Vec<&[u8]> = full.iter().map(|word| word.as_bytes()).collect();
        let own = parse(&start(&pair.store, &mut pair.caller, &bytes).unwrap_or_else(block_on));
        let other = parse(&ask_bytes(&mut pair.redis, &bytes));
        assert_eq!(super::streams::normalised(own), super::streams::normalised(other), "{name}");
    }
}

#[test]
fn random_commands_on_groups_are_answered_as_by_valkey() {
    for seed in 1..4 {
        let mut pair = Pair::newer(if seed == 2 { Protocol::Resp3 } else { Protocol::Resp2 });
        let mut random = Random(seed);
        let mut last = 1;
        pair.check(&["XGROUP", "CREATE", "s", "g0", "$", "MKSTREAM"]);
        for step in 0..1_500 {
            let most = last + 2;
            let id = |random: &mut Random| random.below(most).to_string();
            let (group, consumer) = (format!("g{}", random.below(3)), format!("c{}", random.below(4)));
            let (some, other) = (id(&mut random), id(&mut random));
            let count = (1 + random.below(4)).to_string();
            let idle = ["0", "5000000"][random.below(2)];
            let words: &[&str] = match random.below(24) {
                0..6 => {
                    last += 1;
                    &["XADD", "s", &last.to_string(), "f", &count.clone()]
                }
                6 => &["XDEL", "s", &some, &other],
                7 if random.below(3) == 0 => &["XTRIM", "s", "MAXLEN", &(10 * random.below(4)).to_string()],
                7 => &["XTRIM", "s", "MINID", &some],
                8 => &[
                    "XGROUP",
                    "CREATE",
                    "s",
                    &group,
                    ["0", "$"][random.below(2)],
                    "ENTRIESREAD",
                    ["0", "-1"][random.below(2)],
                ],
                9 if random.below(2) == 0 => &["XGROUP", "SETID", "s", &group, &some],
                9 => &["XGROUP", "SETID", "s", &group, &some, "ENTRIESREAD", &count],
                10 if random.below(3) == 0 => &["XGROUP", "DESTROY", "s", &group],
                10 => &["XGROUP", "DELCONSUMER", "s", &group, &consumer],
                11..14 => &["XREADGROUP", "GROUP", &group, &consumer, "COUNT", &count, "STREAMS", "s", ">"],
                14 => &["XREADGROUP", "GROUP", &group, &consumer, "STREAMS", "s", "s", &some, ">"],
                15 => &["XREADGROUP", "GROUP", &group, &consumer, "NOACK", "STREAMS", "s", ">"],
                16..18 => &["XACK", "s", &group, &some, &other],
                18 => &["XPENDING", "s", &group],
                19 => &["XPENDING", "s", &group, "IDLE", idle, &some, "+", &count],
                20 => &["XCLAIM", "s", &group, &consumer, idle, &some, &other, ["FORCE", "JUSTID"][random.below(2)]],
                21 => &["XCLAIM", "s", &group, &consumer, "0", &some, "IDLE", "6000000", "LASTID", &other],
                22 => &["XAUTOCLAIM", "s", &group, &consumer, idle, &some, "COUNT", &count],
                _ => &["XINFO", "GROUPS", "s"],
            };
            pair.check(words);
            if step % 50 == 49 {
                pair.check(&["XINFO", "STREAM", "s", "FULL", "COUNT", "0"]);
                exchange(&mut pair, "s");
            }
        }
    }
}

/// A consumer whose last attempt was a success needs no later payload, so redis-server 7.0 takes the stream, too.
#[test]
fn payloads_are_of_the_lowest_version_that_has_all() {
    let mut pair = Pair::new(Protocol::Resp2);
    for line in [
        "XADD s 1 f v",
        "XADD s 2 f v",
        "XGROUP CREATE s g 0",
        "XGROUP CREATE s empty $",
        "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    ] {
        pair.check_line(line);
    }
    let older = dump(&mut pair, "s");
    assert_eq!((older[0], &older[older.len() - 10..older.len() - 8]), (19, &[10, 0][..]));
    assert_eq!(ask_bytes(&mut pair.redis, &[b"RESTORE", b"copy", b"0", &older]), b"+OK\r\n");
    assert!(pair.redis.ask(&["XPENDING", "copy", "g"]).starts_with("*4\r\n:1\r\n"));
    let Reply::Bulk(theirs) = parse(&ask_bytes(&mut pair.redis, &[b"DUMP", b"s"])) else { panic!("a payload") };
    assert_eq!(theirs[0], 19);
    let words = [&b"RESTORE"[..], b"copy", b"0", &theirs];
    assert_eq!(start(&pair.store, &mut pair.caller, &words).unwrap_or_else(block_on), b"+OK\r\n");
    pair.check(&["XPENDING", "copy", "g"]);
    pair.check(&["XINFO", "GROUPS", "copy"]);
    // A consumer that never succeeded has a time of its own.
    pair.check(&["XGROUP", "CREATECONSUMER", "s", "g", "idle"]);
    let later = dump(&mut pair, "s");
    assert_eq!((later[0], &later[later.len() - 10..later.len() - 8]), (21, &[11, 0][..]));
    assert!(
        ask_bytes(&mut pair.redis, &[b"RESTORE", b"later", b"0", &later]).starts_with(b"-ERR DUMP payload version")
    );
    for version in ["8.1", "9.1"] {
        let server = RedisServer::start_valkey(version, &[]);
        let mut client = Client::connect(&server.address());
        assert_eq!(ask_bytes(&mut client, &[b"RESTORE", b"later", b"0", &later]), b"+OK\r\n", "{version}");
        let Reply::Bulk(back) = parse(&ask_bytes(&mut client, &[b"DUMP", b"later"])) else { panic!("a payload") };
        let words = [&b"RESTORE"[..], b"back", b"0", &back, b"REPLACE"];
        let restored = start(&pair.store, &mut pair.caller, &words).unwrap_or_else(block_on);
        // Payloads of Valkey 9 have a version of their own.
        if version == "8.1" {
            assert_eq!(restored, b"+OK\r\n");
            assert_eq!(dump(&mut pair, "back"), later);
        }
    }
}
