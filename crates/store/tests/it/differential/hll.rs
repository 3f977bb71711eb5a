//! HyperLogLogs, whose bytes must be those of Redis; large and corrupt ones.

use sluicegate_wire::resp::Protocol;

use super::Pair;
use crate::Random;

#[test]
fn bytes_of_hyperloglogs_are_those_of_redis_as_they_grow() {
    let mut pair = Pair::new(Protocol::Resp2);
    let mut random = Random(17);
    let mut added = 0;
    // Beyond the change to the dense form at about 1,500 elements, with smaller steps before it.
    while added < 6_000 {
        let elements: Vec<String> =
            (0..1 + random.below(1 + added / 20)).map(|at| format!("e:{}", added + at)).collect();
        added += elements.len();
        let mut words = vec!["PFADD", "hll"];
        words.extend(elements.iter().map(String::as_str));
        pair.check(&words);
        pair.check(&["GET", "hll"]);
        if random.below(3) == 0 {
            pair.check(&["PFCOUNT", "hll"]);
            pair.check(&["PFDEBUG", "ENCODING", "hll"]);
        }
        pair.check(&["GET", "hll"]);
    }
    pair.check(&["OBJECT", "ENCODING", "hll"]);
    pair.check(&["PFDEBUG", "GETREG", "hll"]);
}

#[test]
fn merges_lead_to_the_bytes_of_redis() {
    let mut pair = Pair::new(Protocol::Resp3);
    let mut random = Random(5);
    for round in 0..120 {
        let keys = ["a", "b", "c", "d", "e"];
        for _ in 0..random.below(4) {
            let (from, len) = (random.below(5_000), random.below(if round % 10 == 9 { 3_000 } else { 60 }));
            let elements: Vec<String> = (from..from + len).map(|at| at.to_string()).collect();
            let mut words = vec!["PFADD", random.pick(&keys)];
            words.extend(elements.iter().map(String::as_str));
            pair.check(&words);
        }
        let mut words = vec!["PFMERGE"];
        (0..=random.below(3)).for_each(|_| words.push(random.pick(&keys)));
        pair.check(&words);
        pair.check(&["GET", words[1]]);
        words[0] = "PFCOUNT";
        pair.check(&words);
        if round % 7 == 0 {
            pair.check(&["DEL", random.pick(&keys)]);
        }
    }
    for key in ["a", "b", "c", "d", "e"] {
        pair.check(&["PFCOUNT", key]);
        pair.check(&["GET", key]);
    }
}

#[test]
fn hyperloglogs_are_answered_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let script = "
        PFADD empty
        PFADD empty
        GET empty
        OBJECT ENCODING empty
        PFCOUNT empty
        GET empty
        PFCOUNT none
        PFCOUNT none none2 empty
        PFADD h a b c d e f g a
        PFADD h a
        PFADD h z
        PFCOUNT h
        PFCOUNT h
        PFDEBUG DECODE h
        PFDEBUG ENCODING h
        PFDEBUG TODENSE h
        PFDEBUG TODENSE h
        PFDEBUG ENCODING h
        PFDEBUG DECODE h
        PFCOUNT h
        PFADD h a
        PFADD h another
        PFMERGE new h
        GET new
        PFMERGE alone
        GET alone
        PFMERGE alone none
        EXPIRE alone 100
        PFADD alone x
        PFMERGE alone h
        TTL alone
        SET s x
        PFADD s a
        PFCOUNT s
        PFCOUNT h s
        PFMERGE s h
        PFMERGE h s
        SET i 1234567890123456
        PFADD i a
        HSET hash f v
        PFADD hash a
        PFCOUNT hash
        PFMERGE hash h
        PFDEBUG GETREG none
        PFDEBUG junk h
        PFDEBUG junk none
        PFDEBUG GETREG
        PFDEBUG GETREG h x
        PFSELFTEST x
        PFADD
        PFCOUNT
        PFMERGE
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
    pair.check(&["PFSELFTEST"]);
}

#[test]
fn corrupt_hyperloglogs_are_refused_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let head = "HYLL\u{1}\0\0\0\0\0\0\0\0\0\0\0";
    // Cached, no run, a run too few, one too many, valid, and other encodings. Only bytes below 0x80 are text here.
    for value in [
        head.to_owned(),
        format!("{head}\0"),
        format!("{head}\u{7f}\u{7f}\u{1}"),
        format!("{head}\u{40}\u{40}\u{7f}\u{3e}"),
        "HYLL".to_owned(),
        "HYLL\u{2}\0\0\0\0\0\0\0\0\0\0\0".to_owned(),
        "HYLL\0\0\0\0\0\0\0\0\0\0\0\0".to_owned(),
        "hyll\u{1}\0\0\0\0\0\0\0\0\0\0\0".to_owned(),
    ] {
        pair.check(&["SET", "v", &value]);
        pair.check(&["PFCOUNT", "v"]);
        // The cache is made stale without an element.
        pair.check(&["SETBIT", "v", "120", "1"]);
        pair.check(&["PFCOUNT", "v"]);
        pair.check(&["PFCOUNT", "v", "none"]);
        pair.check(&["PFMERGE", "d", "v"]);
        pair.check(&["PFDEBUG", "GETREG", "v"]);
        pair.check(&["SET", "v", &value]);
        pair.check(&["PFADD", "v", "a"]);
        pair.check(&["PFADD", "v", "b", "c", "d", "e"]);
        pair.check(&["PFMERGE", "v"]);
        pair.check(&["GET", "v"]);
        pair.check(&["DEL", "d"]);
    }
}
