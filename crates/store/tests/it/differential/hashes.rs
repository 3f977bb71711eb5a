//! Hashes: iterations and draws, and large ones.

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{Pair, parse};
use crate::{block_on, start};

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
