//! Random commands on bitmaps, and long ones.

use sluicegate_wire::resp::Protocol;

use super::{NUMBERS, Pair, VALUES};
use crate::Random;

/// Keys of bitmaps, one of other strings and one of hashes among them.
pub const KEYS: [&str; 5] = ["bits", "bits:2", "bits:3", "b", "h"];
const OFFSETS: [&str; 14] = ["0", "1", "7", "8", "9", "63", "64", "65", "100", "511", "512", "-1", "x", "4294967296"];
const BITS: [&str; 7] = ["0", "1", "1", "0", "2", "-1", "x"];
const POSITIONS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2",
    "-2",
    "5",
    "-5",
    "9",
    "17",
    "-17",
    "100",
    "-100",
    "9223372036854775807",
    "-9223372036854775808",
];
const WIDTHS: [&str; 20] = [
    "u1", "i1", "u2", "i3", "u4", "i5", "u7", "i8", "u8", "u16", "i32", "u31", "i63", "u63", "i64", "u64", "i65", "u0",
    "x8", "i",
];
const FIELD_OFFSETS: [&str; 14] =
    ["0", "1", "3", "8", "50", "#0", "#1", "#2", "#7", "300", "-1", "#-1", "#", "4294967295000"];
const FIELD_VALUES: [&str; 14] = [
    "0",
    "1",
    "-1",
    "3",
    "127",
    "128",
    "255",
    "-129",
    "1000000",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "x",
    "2",
];

/// One command.
pub fn words<'a>(random: &mut Random) -> Vec<&'a str> {
    let mut words: Vec<&str> = Vec::new();
    let kind = random.below(30);
    let mut add = |random: &mut Random, choices: &[&'a str]| words.push(random.pick(choices));
    match kind {
        0..=5 => {
            add(random, &["SETBIT", "setbit"]);
            add(random, &KEYS);
            add(random, &OFFSETS);
            add(random, &BITS);
        }
        6..=7 => {
            add(random, &["GETBIT"]);
            add(random, &KEYS);
            add(random, &OFFSETS);
        }
        8..=11 => {
            add(random, &["BITCOUNT"]);
            add(random, &KEYS);
            if random.below(4) != 0 {
                add(random, &POSITIONS);
                add(random, &POSITIONS);
                if random.below(2) == 0 {
                    add(random, &["BIT", "BYTE", "bit", "BIT", "junk"]);
                }
            }
            if random.below(12) == 0 {
                add(random, &NUMBERS);
            }
        }
        12..=16 => {
            add(random, &["BITPOS"]);
            add(random, &KEYS);
            add(random, &BITS);
            for _ in 0..random.below(3) {
                add(random, &POSITIONS);
            }
            if words.len() == 5 && random.below(2) == 0 {
                words.push(random.pick(&["BIT", "BYTE", "bit", "BIT", "junk"]));
            } else if random.below(12) == 0 {
                words.push(random.pick(&NUMBERS));
            }
        }
        17..=20 => {
            add(random, &["BITOP"]);
            add(random, &["AND", "OR", "XOR", "NOT", "and", "junk"]);
            add(random, &KEYS[..4]);
            for _ in 0..=random.below(3) {
                add(random, &["bits", "bits:2", "bits:3", "b", "bits", "none", "h"]);
            }
        }
        21..=22 => {
            add(random, &["SET", "APPEND", "STRLEN", "GET"]);
            let takes_value = words[0].len() % 2 == 1 || words[0] == "APPEND";
            words.push(random.pick(&KEYS[..4]));
            if takes_value && words[0] != "GET" {
                words.push(random.pick(&VALUES));
            }
        }
        23 => {
            add(random, &["DEL", "TYPE"]);
            add(random, &KEYS[..4]);
        }
        _ => {
            add(random, &["BITFIELD", "BITFIELD", "BITFIELD", "BITFIELD_RO"]);
            let reads = words[0] == "BITFIELD_RO" && random.below(4) != 0;
            words.push(random.pick(&KEYS));
            for _ in 0..random.below(4) {
                let operation =
                    if reads { "GET" } else { random.pick(&["GET", "SET", "INCRBY", "OVERFLOW", "set", "junk"]) };
                words.push(operation);
                if operation == "OVERFLOW" {
                    words.push(random.pick(&["WRAP", "SAT", "FAIL", "sat", "junk"]));
                    continue;
                }
                words.push(random.pick(&WIDTHS));
                words.push(random.pick(&FIELD_OFFSETS));
                if operation != "GET" {
                    words.push(random.pick(&FIELD_VALUES));
                }
            }
        }
    }
    words
}

#[test]
fn bitmaps_are_answered_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp3);
    let script = "
        SETBIT s 7 1
        OBJECT ENCODING s
        GET s
        SET n 10
        SETBIT n 2 0
        OBJECT ENCODING n
        GET n
        SETBIT n 2 0
        GETBIT n 3
        GETBIT n 4294967295
        GETBIT n 4294967296
        GETBIT none 10
        GETBIT none x
        SETBIT none 4294967296 1
        SETBIT none x 1
        SETBIT none 1 2
        SETBIT none -1 1
        EXISTS none
        HSET h f v
        SETBIT h 1 1
        SETBIT h 1 x
        GETBIT h 1
        BITCOUNT h
        BITCOUNT h x y
        BITCOUNT none x y
        BITCOUNT none 1 2 junk more words
        BITCOUNT n 1
        BITCOUNT n x 1
        BITCOUNT n 0 -1 BIT
        BITCOUNT n 0 -1 BYTE
        BITCOUNT n 0 -1 BYTE x
        BITCOUNT n -1 -2 junk
        BITCOUNT n 5 2 junk
        BITPOS h 1
        BITPOS h 2
        BITPOS none 1
        BITPOS none 0 x y z
        BITPOS n 1 x
        BITPOS n 1 0 x
        BITPOS n 1 0 x BIT
        BITPOS n 1 0 x junk
        BITPOS n 1 0 1 BIT x
        BITPOS n 0 0
        BITPOS n 0 100
        SETRANGE full 0 abc
        BITFIELD full SET u8 0 255 SET u8 8 255 SET u8 16 255
        BITPOS full 0
        BITPOS full 0 0
        BITPOS full 0 2
        BITPOS full 0 3
        BITPOS full 0 0 -1
        BITPOS full 0 0 -1 BIT
        BITPOS full 0 -2
        SET empty \"\"
        BITPOS empty 0
        BITPOS empty 1
        BITPOS empty 0 0
        BITPOS empty 0 0 -1
        BITCOUNT empty
        BITOP AND d empty none
        EXISTS d
        BITOP OR d n s
        OBJECT ENCODING d
        GET d
        BITOP NOT d n s
        BITOP NOT d n
        BITOP XOR d d d
        GET d
        BITOP AND d n h
        BITOP AND h n s
        TYPE h
        BITOP junk d n
        BITOP AND d
        EXPIRE n 1000
        BITOP AND n n
        TTL n
        BITOP AND n none
        EXISTS n
        BITFIELD f INCRBY i5 100 1 GET u4 0
        BITFIELD f
        BITFIELD none
        BITFIELD_RO none
        BITFIELD f OVERFLOW
        BITFIELD f OVERFLOW x
        BITFIELD f GET
        BITFIELD f GET u8
        BITFIELD f SET u8 0
        BITFIELD f SET u8 0 x
        BITFIELD f SET u64 0 1
        BITFIELD f SET i64 0 -1
        BITFIELD f SET u63 1 -1
        BITFIELD f OVERFLOW SAT SET u8 0 -1 SET i8 0 200 SET i8 0 -200
        BITFIELD f OVERFLOW FAIL SET u8 0 300 INCRBY u2 100 7 INCRBY u2 100 3 INCRBY u2 100 1
        BITFIELD f OVERFLOW WRAP INCRBY i64 0 9223372036854775807 INCRBY i64 0 9223372036854775807
        BITFIELD f OVERFLOW SAT INCRBY i64 0 9223372036854775807 INCRBY i64 0 9223372036854775807
        BITFIELD f INCRBY i64 0 -9223372036854775808 INCRBY i64 0 -9223372036854775808
        BITFIELD f OVERFLOW SAT INCRBY u63 0 -9223372036854775808
        BITFIELD f GET u8 #4611686018427387904
        BITFIELD fails OVERFLOW FAIL INCRBY u1 1000 7
        STRLEN fails
        BITFIELD_RO f GET u8 0 SET u8 0 1
        BITFIELD_RO f GET u8 0 GET i8 #1
        BITFIELD h GET u8 0
        BITFIELD h SET u8 0 1
        BITFIELD_RO h GET u8 0
        GET f
        STRLEN f
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
}

#[test]
fn long_bitmaps_are_answered_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    for (key, step, most) in [("a", 7919, 3_000_000), ("b", 104_729, 9_000_000), ("c", 31, 40_000), ("d", 3, 2_000)] {
        for offset in (0..most).step_by(step) {
            pair.check(&["SETBIT", key, &offset.to_string(), if offset % 5 == 0 { "0" } else { "1" }]);
        }
        for range in [&[][..], &["100", "-100"], &["100", "-100", "BIT"], &["12345", "23456", "BIT"]] {
            pair.check(&[&["BITCOUNT", key][..], range].concat());
            for bit in ["0", "1"] {
                pair.check(&[&["BITPOS", key, bit][..], range].concat());
            }
        }
    }
    let mut many = vec!["BITOP", "OR", "all"];
    many.extend(["a", "b", "c", "d", "none"].iter().cycle().take(300));
    pair.check(&many);
    for operation in ["AND", "OR", "XOR"] {
        for sources in [&["a", "b"][..], &["a", "c", "d"], &["d", "b", "none"], &["out", "a"], &["out", "out", "c"]] {
            pair.check(&[&["BITOP", operation, "out"][..], sources].concat());
            pair.check(&["BITCOUNT", "out"]);
            pair.check(&["GET", "out"]);
        }
    }
    pair.check(&["BITOP", "NOT", "out", "b"]);
    pair.check(&["BITCOUNT", "out", "1000", "-1000"]);
    pair.check(&["OBJECT", "ENCODING", "out"]);
    pair.check(&["HSET", "h", "f", "v"]);
    pair.check(&["BITOP", "AND", "out", "b", "h"]);
    pair.check(&["BITOP", "nonsense", "out", "b", "a"]);
    pair.check(&["EXISTS", "out"]);
    pair.check(&["BITFIELD", "b", "SET", "u63", "#100000", "12345678901234567", "GET", "u63", "#100000"]);
    pair.check(&["SETBIT", "far", "900000001", "1"]);
    pair.check(&["BITPOS", "far", "1"]);
    pair.check(&["STRLEN", "far"]);
    pair.check(&["EXPIRE", "a", "100"]);
    pair.check(&["BITOP", "OR", "a", "a", "b"]);
    pair.check(&["TTL", "a"]);
}
