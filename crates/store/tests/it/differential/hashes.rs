//! Random commands on hashes, and large ones.

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{FLOATS, NUMBERS, Pair, VALUES, parse};
use crate::{Random, block_on, start};

/// Keys of hashes, one of strings among them.
pub const KEYS: [&str; 4] = ["h", "hash:1", "b", "k[1]"];
const FIELDS: [&str; 8] =
    ["f", "g", "1", "-7", "", "field-name", "a-field-whose-name-is-rather-long-but-not-too-long", "h"];

/// One command.
pub fn words<'a>(random: &mut Random) -> Vec<&'a str> {
    let mut words: Vec<&str> = Vec::new();
    let kind = random.below(14);
    let mut add = |random: &mut Random, choices: &[&'a str]| words.push(random.pick(choices));
    match kind {
        0..=3 => {
            add(random, &["HSET", "HSET", "HMSET", "hset"]);
            add(random, &KEYS);
            for _ in 0..=random.below(3) {
                add(random, &FIELDS);
                add(random, &VALUES);
            }
            if random.below(10) == 0 {
                add(random, &FIELDS);
            }
        }
        4..=5 => {
            add(random, &["HDEL", "HMGET", "HDEL"]);
            add(random, &KEYS);
            for _ in 0..=random.below(3) {
                add(random, &FIELDS);
            }
        }
        6..=7 => {
            add(random, &["HGET", "HEXISTS", "HSTRLEN"]);
            add(random, &KEYS);
            add(random, &FIELDS);
        }
        8..=9 => {
            add(random, &["HGETALL", "HKEYS", "HVALS", "HLEN"]);
            add(random, &KEYS);
        }
        12 => {
            add(random, &["HSCAN"]);
            add(random, &KEYS);
            add(random, &["0", "0", "0", "x", ""]);
            add(random, &["COUNT"]);
            add(random, &["1000", "1000", "1000", "0", "-1", "x"]);
            for _ in 0..random.below(2) {
                add(random, &["MATCH", "match", "TYPE", "COUNT"]);
                add(random, &["*", "f*", "[0-9]*", "1000"]);
            }
        }
        13 => {
            add(random, &["HRANDFIELD"]);
            add(random, &KEYS);
            if random.below(4) > 0 {
                add(random, &["0", "100", "-1", "-5", "x", "9223372036854775807", "-9223372036854775808"]);
                if random.below(2) == 0 {
                    add(random, &["WITHVALUES", "withvalues", "WITHVALUES", "junk"]);
                }
            }
            if random.below(8) == 0 {
                add(random, &["77", "WITHVALUES"]);
            }
        }
        10 => {
            add(random, &["HSETNX"]);
            add(random, &KEYS);
            add(random, &FIELDS);
            add(random, &VALUES);
        }
        _ => {
            add(random, &["HINCRBY", "HINCRBY", "HINCRBYFLOAT"]);
            add(random, &KEYS);
            add(random, &FIELDS);
            if random.below(2) == 0 { add(random, &NUMBERS) } else { add(random, &FLOATS) }
        }
    }
    words
}

#[test]
fn scans_and_draws_are_answered_as_by_redis() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut pair = Pair::new(protocol);
        let script = "
            HSCAN none 0
            HSCAN none 0 junk
            HSCAN none x
            HSET h f 1 g 2 g2 3
            HSCAN h 0
            HSCAN h 0 MATCH g*
            HSCAN h 0 MATCH none
            HSCAN h 0 COUNT 2
            HSCAN h 7
            HSCAN h x
            HSCAN h 0 COUNT
            HSCAN h 0 COUNT 0
            HSCAN h 0 COUNT x
            HSCAN h 0 TYPE hash
            HSCAN h 0 junk
            SET string v
            HSCAN string 0
            HRANDFIELD none
            HRANDFIELD none 1
            HRANDFIELD none -1 WITHVALUES
            HRANDFIELD none 1 WITHVALUES x
            HRANDFIELD h
            HRANDFIELD h 0
            HRANDFIELD h 0 WITHVALUES
            HRANDFIELD h 3
            HRANDFIELD h 9 WITHVALUES
            HRANDFIELD h -9
            HRANDFIELD h -9 WITHVALUES
            HRANDFIELD h x
            HRANDFIELD h x WITHVALUES
            HRANDFIELD h 1 junk
            HRANDFIELD h x junk
            HRANDFIELD h 1 WITHVALUES 1
            HRANDFIELD h 9223372036854775807
            HRANDFIELD h 9223372036854775807 WITHVALUES
            HRANDFIELD h 4611686018427387904 WITHVALUES
            HRANDFIELD h -4611686018427387904 WITHVALUES
            HRANDFIELD h -9223372036854775808
            HRANDFIELD string
            HRANDFIELD string 1
            HRANDFIELD
            HSCAN h
        ";
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            pair.check_line(line);
        }
        let fields: Vec<String> = (0..600).map(|n| format!("field:{n}")).collect();
        fields.iter().for_each(|field| pair.check(&["HSET", "large", field, &field[6..]]));
        pair.check(&["HSCAN", "large", "0", "COUNT", "100000"]);
        pair.check(&["HSCAN", "large", "0", "COUNT", "100000", "MATCH", "*9"]);
        pair.check(&["HRANDFIELD", "large", "600"]);
        pair.check(&["HRANDFIELD", "large", "600", "WITHVALUES"]);
        pair.check(&["HRANDFIELD", "large", "-700", "WITHVALUES"]);
    }
    super::sets::check_rows(&["hscan", "hrandfield", "hset", "hget", "hgetall", "hdel", "hincrbyfloat", "hmset"]);
}

#[test]
fn large_hashes_hold_what_redis_holds() {
    let mut pair = Pair::new(Protocol::Resp3);
    for number in 0..600 {
        pair.check(&["HSET", "big", &format!("field:{number}"), &"v".repeat(number % 100)]);
        pair.check(&["HLEN", "big"]);
    }
    pair.check(&["OBJECT", "ENCODING", "big"]);
    pair.check(&["COPY", "big", "again"]);
    for number in (0..600).step_by(2) {
        pair.check(&["HDEL", "big", &format!("field:{number}"), &format!("field:{number}")]);
    }
    for number in 0..600 {
        let field = format!("field:{number}");
        pair.check(&["HGET", "big", &field]);
        pair.check(&["HSTRLEN", "again", &field]);
    }
    pair.check(&["RENAME", "again", "other"]);
    pair.check(&["OBJECT", "ENCODING", "other"]);
    // One long value is enough.
    pair.check(&["HSET", "wide", "f", &"v".repeat(65)]);
    pair.check(&["OBJECT", "ENCODING", "wide"]);
    // Both programs read what the other one wrote.
    for key in ["big", "other", "wide"] {
        pair.redis.command(&["DUMP", key]);
        let Reply::Bulk(theirs) = parse(&pair.redis.read_reply()) else { panic!("a payload") };
        let ours = start(&pair.store, &mut pair.caller, &[b"DUMP", key.as_bytes()]).unwrap_or_else(block_on);
        let Reply::Bulk(ours) = parse(&ours) else { panic!("a payload") };
        let restored = [key.as_bytes(), b":2"].concat();
        let reply = start(&pair.store, &mut pair.caller, &[b"RESTORE", &restored, b"0", &theirs]);
        assert_eq!(reply.unwrap_or_else(block_on), b"+OK\r\n");
        let head = format!("*4\r\n$7\r\nRESTORE\r\n${}\r\n{key}:2\r\n$1\r\n0\r\n${}\r\n", restored.len(), ours.len());
        pair.redis.send([head.as_bytes(), &ours, b"\r\n"].concat());
        assert_eq!(pair.redis.read_reply(), b"+OK\r\n");
        for number in 0..600 {
            pair.check(&["HGET", &format!("{key}:2"), &format!("field:{number}")]);
        }
        pair.check(&["HLEN", &format!("{key}:2")]);
    }
}
