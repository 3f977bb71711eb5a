//! Bitmaps one by one, and long ones.

use sluicegate_wire::resp::Protocol;

use super::Pair;

#[test]
fn bitmaps_are_answered_as_by_redis() {
    let mut pair = Pair::newer(Protocol::Resp3);
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
