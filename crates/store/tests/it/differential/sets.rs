//! Sets: commands one by one, and large ones.

use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{Pair, parse};
use crate::support::Running;
use crate::{block_on, start};

#[test]
fn every_command_on_sets_is_answered_as_by_redis() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut pair = Pair::new(protocol);
        let script = "
            SADD s 3 1 2 1
            SADD s 1
            OBJECT ENCODING s
            SMEMBERS s
            SCARD s
            SADD s a
            OBJECT ENCODING s
            SMISMEMBER s a 1 9
            SMISMEMBER none a
            SMISMEMBER s
            SISMEMBER s 1
            SREM s 1 2 3 4
            SMEMBERS s
            SREM s a
            EXISTS s
            SREM s a
            SADD s
            SCARD none
            SMEMBERS none
            SET string v
            SADD string a
            SREM string a
            SCARD string
            SMEMBERS string
            SISMEMBER string a
            SMISMEMBER string a
            SPOP string
            SPOP string 1
            SRANDMEMBER string
            SRANDMEMBER string 1
            SSCAN string 0
            SMOVE string s a
            SMOVE none string a
            SADD s a b
            SMOVE s string a
            SMOVE s string none
            SMOVE s s a
            SMOVE s s none
            SMOVE s other none
            SMOVE s other a
            SMOVE s other b
            EXISTS s
            SMEMBERS other
            SINTER s string
            SINTER none string
            SUNION none string
            SDIFF none string
            SINTERSTORE d none string
            SUNIONSTORE string none
            SET string v
            SUNIONSTORE string other none
            TYPE string
            OBJECT ENCODING string
            SINTERSTORE string other none
            EXISTS string
            SADD x 1 2 3 4 5
            SADD y 3 4 5 6
            SADD z 5 6 7 a
            SINTER x y z
            SINTER x
            SUNION x y z
            SDIFF x y z
            SDIFF x x
            SDIFF none x
            SDIFF x none
            SDIFF z x y none z
            SDIFF x y y y y y y y y
            SINTERSTORE d x y
            OBJECT ENCODING d
            SUNIONSTORE d x y
            OBJECT ENCODING d
            SUNIONSTORE d x z
            OBJECT ENCODING d
            SDIFFSTORE d z x
            OBJECT ENCODING d
            SDIFFSTORE x x y
            SMEMBERS x
            SDIFFSTORE d d d
            EXISTS d
            SINTERCARD 2 y z
            SINTERCARD 2 y z LIMIT 1
            SINTERCARD 2 y z LIMIT 0
            SINTERCARD 2 y z LIMIT
            SINTERCARD 2 y z LIMIT -1
            SINTERCARD 2 y z LIMIT x
            SINTERCARD 2 y z LIMIT 1 LIMIT 2
            SINTERCARD 2 y z junk
            SINTERCARD 0 y z
            SINTERCARD -1 y z
            SINTERCARD x y z
            SINTERCARD 3 y z
            SINTERCARD 99999999999 y z
            SINTERCARD 2 y none
            SINTERCARD 2
            SPOP y 0
            SPOP y -1
            SPOP y x
            SPOP y 1 2
            SPOP none
            SPOP none 0
            SPOP none 5
            SPOP none -1
            SPOP y 100
            EXISTS y
            SADD one member
            SPOP one
            EXISTS one
            SADD one member
            SRANDMEMBER one
            SRANDMEMBER one 1
            SRANDMEMBER one 0
            SRANDMEMBER one -3
            SRANDMEMBER one x
            SRANDMEMBER one 1 2
            SRANDMEMBER one -9223372036854775808
            SRANDMEMBER none
            SRANDMEMBER none 1
            SRANDMEMBER none -1
            SRANDMEMBER z 100
            SSCAN z 0
            SSCAN z 0 MATCH [0-9]
            SSCAN z x
            SSCAN z 0 COUNT
            SSCAN z 0 COUNT 0
            SSCAN z 0 COUNT x
            SSCAN z 0 TYPE set
            SSCAN none 0
            SSCAN none 0 junk
            SSCAN none x
            SADD big 9223372036854775807 -9223372036854775808
            OBJECT ENCODING big
            COPY big copy
            SMEMBERS copy
            OBJECT ENCODING copy
            RENAME copy again
            SMEMBERS again
            HGET again f
            GET again
            TYPE again
            SINTERCARD 1
            SADD
            SINTERSTORE d
            SADD i1 1 3 5 7 9 11 13 15 17 19 300 70000 -5
            SADD i2 0 3 4 5 6 9 12 15 18 300 70000 -5 9000000000
            SADD p1 a b c d e f g h i j 3 5 9
            SADD p2 j i h g x y z 3 9 11 15
            SADD p3 a
            SINTER i1 i2
            SINTER i2 i1 i1
            SUNION i1 i2
            SDIFF i1 i2
            SDIFF i2 i1
            SINTER p1 p2
            SINTER p1 i1
            SINTER i2 p2 i1
            SUNION p1 p2 i1
            SUNION p1 p2 i1 i2 p3 p1
            SDIFF p1 p2
            SDIFF p1 i1 p3
            SDIFF i1 p1 p2 p3 i2
            SDIFF p1 p1
            SINTERCARD 2 p1 p2 LIMIT 3
            SINTERSTORE d i1 i2
            OBJECT ENCODING d
            SMEMBERS d
            SUNIONSTORE d p1 p2 i1
            SMEMBERS d
            SDIFFSTORE d i1 p1 p3 p2 p2 p2 p2
            SMEMBERS d
            OBJECT ENCODING d
            SDIFFSTORE d p1 p1
            EXISTS d
        ";
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            pair.check_line(line);
        }
    }
}

/// Both programs read what the other one wrote.
#[track_caller]
fn exchange(pair: &mut Pair, key: &str) {
    pair.redis.command(&["DUMP", key]);
    let Reply::Bulk(theirs) = parse(&pair.redis.read_reply()) else { panic!("a payload") };
    let ours = start(&pair.store, &mut pair.caller, &[b"DUMP", key.as_bytes()]).unwrap_or_else(block_on);
    let Reply::Bulk(ours) = parse(&ours) else { panic!("a payload") };
    let restored = format!("{key}:2");
    pair.check(&["DEL", &restored]);
    let reply = start(&pair.store, &mut pair.caller, &[b"RESTORE", restored.as_bytes(), b"0", &theirs]);
    assert_eq!(reply.unwrap_or_else(block_on), b"+OK\r\n", "{key}");
    let head = format!("*4\r\n$7\r\nRESTORE\r\n${}\r\n{restored}\r\n$1\r\n0\r\n${}\r\n", restored.len(), ours.len());
    pair.redis.send([head.as_bytes(), &ours, b"\r\n"].concat());
    assert_eq!(pair.redis.read_reply(), b"+OK\r\n", "{key}");
    pair.check(&["SMEMBERS", &restored]);
    pair.check(&["OBJECT", "ENCODING", &restored]);
}

#[test]
fn payloads_of_sets_are_exchanged_with_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let long = "x".repeat(65);
    for (key, members) in [
        ("ints", &["1", "2", "-3"][..]),
        ("wide", &["1", "70000"]),
        ("widest", &["1", "9223372036854775807", "-9223372036854775808"]),
        ("text", &["a", "b", "", "1", "007"]),
        ("long", &["a", &long]),
    ] {
        pair.check(&[&["SADD", key], members].concat());
        exchange(&mut pair, key);
    }
    for (key, count, prefix) in [("i512", 512, ""), ("i513", 513, ""), ("m128", 128, "m"), ("m129", 129, "m")] {
        let members: Vec<String> = (0..count).map(|n| format!("{prefix}{n}")).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        pair.check(&[&["SADD", key], &members[..]].concat());
        exchange(&mut pair, key);
    }
}

#[test]
fn large_sets_hold_what_redis_holds() {
    let mut pair = Pair::new(Protocol::Resp3);
    for number in 0..700 {
        pair.check(&["SADD", "numbers", &number.to_string()]);
        pair.check(&["SADD", "members", &format!("member:{number}")]);
        pair.check(&["SADD", "both", &if number % 3 == 0 { number.to_string() } else { format!("member:{number}") }]);
        if number % 60 == 7 {
            for key in ["numbers", "members", "both"] {
                pair.check(&["OBJECT", "ENCODING", key]);
            }
        }
    }
    for keys in [["numbers", "both"], ["both", "members"], ["members", "numbers"], ["both", "both"]] {
        for command in ["SINTER", "SUNION", "SDIFF"] {
            pair.check(&[command, keys[0], keys[1]]);
            let store = format!("{command}STORE");
            pair.check(&[&store, "stored", keys[0], keys[1]]);
            pair.check(&["OBJECT", "ENCODING", "stored"]);
            pair.check(&["SMEMBERS", "stored"]);
            pair.check(&[command, keys[0], keys[1], "stored"]);
        }
        pair.check(&["SINTERCARD", "2", keys[0], keys[1]]);
    }
    pair.check(&["COPY", "both", "again"]);
    for number in (0..700).step_by(2) {
        pair.check(&["SREM", "both", &number.to_string(), &format!("member:{number}")]);
        pair.check(&["SMOVE", "numbers", "moved", &number.to_string()]);
    }
    for key in ["both", "numbers", "moved", "again", "members"] {
        pair.check(&["SMEMBERS", key]);
        pair.check(&["SRANDMEMBER", key, "100000"]);
        pair.check(&["SSCAN", key, "0", "COUNT", "100000"]);
        exchange(&mut pair, key);
    }
    pair.check(&["SPOP", "again", "100000"]);
    pair.check(&["EXISTS", "again"]);
    // A union of more than a hundred sets.
    let mut words = vec!["SUNIONSTORE".to_owned(), "union".to_owned()];
    for number in 0..300 {
        let key = format!("part:{number}");
        pair.check(&["SADD", &key, &number.to_string(), &(number / 2).to_string()]);
        words.push(key);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    pair.check(&words);
    pair.check(&["SMEMBERS", "union"]);
    pair.check(&[&["SUNION"], &words[2..]].concat());
    pair.check(&[&["SINTER"], &words[2..]].concat());
    pair.check(&[&["SDIFF"], &words[2..]].concat());
}

/// Compares arity, flags, positions of keys and ACL categories with Redis's COMMAND INFO.
#[track_caller]
pub fn check_rows(names: &[&str]) {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let (mut theirs, mut ours) = (Client::connect(&redis.address()), ours.connect());
    for name in names {
        let [ours, theirs] = [&mut ours, &mut theirs].map(|client| {
            client.command(&["COMMAND", "INFO", name]);
            let Reply::Array(rows) = parse(&client.read_reply()) else { panic!("rows") };
            let [Reply::Array(fields)] = &rows[..] else { panic!("{name} is unknown") };
            let fields = fields[..7].iter().cloned().map(|field| match field {
                Reply::Array(mut words) => {
                    words.sort_by_key(|word| format!("{word:?}"));
                    Reply::Array(words)
                }
                field => field,
            });
            fields.collect::<Vec<_>>()
        });
        assert_eq!(ours, theirs, "ours, then Redis's");
    }
}

#[test]
fn rows_of_sets_are_those_of_redis() {
    check_rows(&[
        "sadd",
        "srem",
        "sismember",
        "smismember",
        "scard",
        "smembers",
        "spop",
        "srandmember",
        "smove",
        "sscan",
        "sinter",
        "sintercard",
        "sinterstore",
        "sunion",
        "sunionstore",
        "sdiff",
        "sdiffstore",
    ]);
}
