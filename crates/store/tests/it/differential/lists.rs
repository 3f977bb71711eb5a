//! Lists: edge cases one by one, and long lists.

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{Pair, parse};
use crate::{Random, block_on, start};

fn edge_cases(protocol: Protocol) {
    let mut pair = Pair::new(protocol);
    let script = "
        LPUSH
        LPUSH l
        LPUSH l a b c
        RPUSH l d
        LRANGE l 0 -1
        LRANGE l -3 100
        LRANGE l 3 1
        LRANGE l 100 200
        LRANGE l x 1
        LRANGE l 0 x
        LRANGE none 0 -1
        LRANGE none x -1
        LPUSHX none a
        RPUSHX none a
        LPUSHX l x y
        RPUSHX l z
        LLEN l
        LLEN none
        LINDEX l 0
        LINDEX l -1
        LINDEX l 100
        LINDEX l x
        LINDEX none x
        LSET l 0 first
        LSET l -1 last
        LSET l 100 a
        LSET l x a
        LSET none 0 a
        LINSERT l BEFORE first zeroth
        LINSERT l AFTER last end
        LINSERT l AFTER absent end
        LINSERT none AFTER a b
        LINSERT none BESIDE a b
        LINSERT l BESIDE a b
        LRANGE l 0 -1
        RPUSH r a b a c a b a
        LREM r 2 a
        LREM r -1 a
        LREM r 0 b
        LREM r 0 absent
        LREM r x a
        LREM none 0 a
        LRANGE r 0 -1
        LREM r 0 c
        LREM r 0 a
        EXISTS r
        RPUSH p a b c 1 2 3 c c
        LPOS p c
        LPOS p c RANK 2
        LPOS p c RANK -1
        LPOS p c RANK -3 COUNT 0
        LPOS p c COUNT 0
        LPOS p c COUNT 2 RANK 2
        LPOS p c COUNT 0 MAXLEN 4
        LPOS p c COUNT 0 MAXLEN 2 RANK -1
        LPOS p absent
        LPOS p absent COUNT 0
        LPOS none a
        LPOS none a COUNT 0
        LPOS p c RANK 0
        LPOS p c RANK x
        LPOS p c COUNT -1
        LPOS p c COUNT x
        LPOS p c MAXLEN -1
        LPOS p c MAXLEN
        LPOS p c junk 1
        LPOS p 1
        LPOS p 01
        LTRIM p 1 -2
        LTRIM p x 1
        LTRIM none 0 1
        LTRIM none x 1
        LRANGE p 0 -1
        LTRIM p 5 1
        EXISTS p
        RPUSH q 1 2 3 4 5
        LPOP q
        RPOP q
        LPOP q 0
        LPOP q -1
        LPOP q x
        LPOP q 1 2
        RPOP q 1 2
        LPOP q 2
        RPOP q 10
        LPOP q
        LPOP q 1
        RPOP q 0
        RPUSH s 1 2 3
        RPOPLPUSH s s
        LRANGE s 0 -1
        LMOVE s s LEFT RIGHT
        LMOVE s t LEFT LEFT
        LMOVE s t RIGHT RIGHT
        LMOVE s t RIGHT
        LMOVE s t up RIGHT
        LMOVE none t up RIGHT
        LMOVE none t LEFT RIGHT
        RPOPLPUSH none t
        LRANGE t 0 -1
        RPOPLPUSH s t
        EXISTS s
        SET string v
        LPUSH string a
        LPUSHX string a
        LPOP string
        LPOP string 1
        LPOP string x
        LLEN string
        LRANGE string 0 -1
        LINDEX string x
        LSET string x v
        LINSERT string AFTER a b
        LREM string 0 a
        LTRIM string 0 -1
        LPOS string a
        RPOPLPUSH string t
        RPOPLPUSH t string
        RPOPLPUSH none string
        LMOVE t string LEFT LEFT
        LRANGE t 0 -1
        GET t
        APPEND t x
        INCR t
        STRLEN t
        SETRANGE t 0 x
        SET t v GET
        LMPOP 1 t LEFT
        LMPOP 0 t LEFT
        LMPOP x t LEFT
        LMPOP 2 t LEFT
        LMPOP 1 t
        LMPOP 1 t up
        LMPOP 1 t LEFT COUNT
        LMPOP 1 t LEFT COUNT 0
        LMPOP 1 t LEFT COUNT 1 COUNT 1
        LMPOP 1 t LEFT junk
        LMPOP 2 none string LEFT
        LMPOP 2 none other LEFT
        LMPOP 9223372036854775807 none LEFT
        LMPOP 2 none t RIGHT COUNT 2
        LMPOP 2 t none RIGHT COUNT 200
        BLPOP none x
        BLPOP none -1
        BLPOP none -0.5
        BLPOP none nan
        BLPOP none 0.001
        BLPOP string 0
        BLPOP none string 0
        BRPOP none string 0.01
        RPUSH u a b c d e
        BLPOP none u string 0
        BRPOP u u 0
        BRPOPLPUSH u u 0
        BRPOPLPUSH u u x
        BRPOPLPUSH none u 0.001
        BRPOPLPUSH u string 0
        BLMOVE u v LEFT RIGHT 0
        BLMOVE u v up RIGHT x
        BLMOVE u v LEFT RIGHT x
        BLMOVE none v LEFT RIGHT 0.001
        BLMPOP 0 1 u LEFT
        BLMPOP x 0 u LEFT
        BLMPOP 0 0 u LEFT
        BLMPOP 0.001 2 none other LEFT
        BLMPOP 0 2 none u RIGHT COUNT 10
        BLPOP 0
        BLPOP
        BLMOVE u v LEFT RIGHT
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
    pair.check_state();
}

#[test]
fn edge_cases_of_lists_are_answered_as_by_redis() {
    edge_cases(Protocol::Resp2);
    edge_cases(Protocol::Resp3);
}

#[test]
fn long_lists_hold_what_redis_holds() {
    let mut pair = Pair::new(Protocol::Resp3);
    let mut random = Random(13);
    let text = |number: usize| format!("element:{number}:{}", "v".repeat(number * 7 % 300));
    for number in 0..3_000 {
        let command = if random.below(2) == 0 { "LPUSH" } else { "RPUSH" };
        pair.check(&[command, "long", &text(number), &(number % 50).to_string()]);
    }
    pair.check(&["OBJECT", "ENCODING", "long"]);
    pair.check(&["COPY", "long", "again"]);
    for _ in 0..1_500 {
        let index = (random.below(6_200) as i64 - 3_100).to_string();
        let other = (random.below(6_200) as i64 - 3_100).to_string();
        let some = text(random.below(3_000));
        let number = random.below(60).to_string();
        match random.below(9) {
            0 => pair.check(&["LINDEX", "long", &index]),
            1 => pair.check(&["LRANGE", "long", &index, &other]),
            2 => pair.check(&["LSET", "long", &index, &"w".repeat(random.below(12_000))]),
            3 => pair.check(&["LINSERT", "long", "BEFORE", &number, &some]),
            4 => pair.check(&["LINSERT", "long", "AFTER", &some, &"x".repeat(random.below(5_000))]),
            5 => pair.check(&["LREM", "long", &(random.below(7) as i64 - 3).to_string(), &number]),
            6 => pair.check(&["LPOS", "long", &number, "RANK", "-2", "COUNT", "5"]),
            7 => pair.check(&["LMOVE", "long", "other", "LEFT", "RIGHT"]),
            _ => pair.check(&["RPOP", "long", &random.below(5).to_string()]),
        }
    }
    for key in ["long", "again", "other"] {
        pair.check(&["LRANGE", key, "0", "-1"]);
        exchange(&mut pair, key);
    }
    pair.check(&["LTRIM", "again", "1000", "-1000"]);
    pair.check(&["LRANGE", "again", "0", "-1"]);
    pair.check(&["LTRIM", "again", "10", "12"]);
    pair.check(&["LRANGE", "again", "0", "-1"]);
    pair.check(&["RPUSH", "again", &"y".repeat(100_000), "z"]);
    pair.check(&["LPOP", "again", "4"]);
    pair.check(&["LRANGE", "again", "0", "-1"]);
}

/// Both programs read what the other one wrote.
fn exchange(pair: &mut Pair, key: &str) {
    pair.redis.command(&["DUMP", key]);
    let Reply::Bulk(theirs) = parse(&pair.redis.read_reply()) else { panic!("a payload") };
    let ours = start(&pair.store, &mut pair.caller, &[b"DUMP", key.as_bytes()]).unwrap_or_else(block_on);
    let Reply::Bulk(ours) = parse(&ours) else { panic!("a payload") };
    let restored = format!("{key}:2");
    let reply = start(&pair.store, &mut pair.caller, &[b"RESTORE", restored.as_bytes(), b"0", &theirs]);
    assert_eq!(reply.unwrap_or_else(block_on), b"+OK\r\n");
    let head = format!("*4\r\n$7\r\nRESTORE\r\n${}\r\n{restored}\r\n$1\r\n0\r\n${}\r\n", restored.len(), ours.len());
    pair.redis.send([head.as_bytes(), &ours, b"\r\n"].concat());
    assert_eq!(pair.redis.read_reply(), b"+OK\r\n");
    pair.check(&["LRANGE", &restored, "0", "-1"]);
    pair.check(&["OBJECT", "ENCODING", &restored]);
}

#[test]
fn lists_are_exchanged_with_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let long = "v".repeat(9_000);
    for (key, elements) in [
        ("one", vec!["a"]),
        ("numbers", vec!["0", "127", "128", "-4096", "4095", "32767", "8388607", "2147483647", "9223372036854775807"]),
        ("texts", vec!["", "a-text-of-more-than-sixty-three-bytes-needs-a-head-of-two-bytes-in-a-listpack", "x"]),
        ("long", vec!["a", &long, "b"]),
    ] {
        pair.check(&[&["RPUSH", key], &elements[..]].concat());
        exchange(&mut pair, key);
    }
}

#[test]
fn elements_are_sorted_as_by_redis() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut pair = Pair::new(protocol);
        let script = "
            RPUSH l 3 10 2 1 -5 2.5 1e2 -0 0 010 10
            RPUSH words b a C abc \"\" ab
            SADD s 5 3 9 1
            ZADD z 3 a 1 b 2 c
            HSET h f v
            SORT l
            SORT l DESC
            SORT l ALPHA
            SORT l ALPHA DESC
            SORT l LIMIT 2 3
            SORT l LIMIT -2 3
            SORT l LIMIT 5 -1
            SORT l LIMIT 100 5
            SORT l LIMIT 0 0
            SORT l BY nosort
            SORT l BY nosort DESC LIMIT 1 2
            SORT l GET #
            SORT l GET # GET # LIMIT 0 3
            SORT l DESC ASC
            SORT_RO l DESC
            SORT_RO l STORE d
            SORT words
            SORT words ALPHA
            SORT_RO words ALPHA DESC LIMIT 1 3
            SORT s
            SORT s DESC
            SORT s BY nosort STORE d
            LRANGE d 0 -1
            SORT z
            SORT z ALPHA
            SORT z BY nosort
            SORT z BY nosort DESC
            SORT z BY nosort DESC LIMIT 1 2
            SORT h
            SORT_RO h
            SORT l STORE d
            LRANGE d 0 -1
            SORT words STORE d
            SORT l STORE l
            LRANGE l 0 -1
            SORT l GET # GET # STORE h
            TYPE h
            LLEN h
            SORT none STORE h
            EXISTS h
            SORT l LIMIT 100 1 STORE d
            EXISTS d
            RPUSH odd 1 \"\" 2
            SORT odd
        ";
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            pair.check_line(line);
        }
    }
}
