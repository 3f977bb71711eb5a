//! Streams: single edge cases, streams of many nodes, payloads exchanged both ways, and clients that wait in XREAD.

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{Pair, parse};
use crate::{Random, block_on, start};

/// Returns the reply to XINFO STREAM without the number of nodes of Redis's tree.
pub(super) fn normalised(reply: Reply) -> Reply {
    let is_nodes = |name: &Reply| *name == Reply::Bulk(b"radix-tree-nodes".to_vec());
    match reply {
        Reply::Array(mut items) => {
            if let Some(at) = items.iter().position(is_nodes) {
                items[at + 1] = Reply::Null;
            }
            Reply::Array(items)
        }
        Reply::Map(mut pairs) => {
            pairs.iter_mut().filter(|(name, _)| is_nodes(name)).for_each(|pair| pair.1 = Reply::Null);
            Reply::Map(pairs)
        }
        other => other,
    }
}

fn edge_cases(protocol: Protocol) {
    let mut pair = Pair::new(protocol);
    let script = "
        XADD
        XADD s
        XADD s * a
        XADD s * a b c
        XADD s 1-* a
        XADD s 0-0 a b
        XADD s 0 a b
        XADD s x a b
        XADD s - a b
        XADD s + a b
        XADD s 1-x a b
        XADD s NOMKSTREAM 1-1 a b
        EXISTS s
        XADD s 0-* a b
        XADD s 1-1 name first n 1
        XADD s 1-1 a b
        XADD s 1-0 a b
        XADD s 1 a b
        XADD s 1-* name second n -5000000000
        XADD s 2-* name third n 70000
        XADD s 7 other fields 123 \"\"
        XADD s nomkstream 7-5 name 4 n four
        XADD s maxlen 10 8 a b
        XADD s MAXLEN x 9 a b
        XADD s MAXLEN -1 9 a b
        XADD s MAXLEN ~ x 9 a b
        XADD s MAXLEN 3 MINID 4 9 a b
        XADD s MINID x 9 a b
        XADD s MINID - 9 a b
        XADD s LIMIT 5 9 a b
        XADD s LIMIT 0 9 a b
        XADD s MAXLEN 5 LIMIT 5 9-1 a b
        XADD s MAXLEN ~ 5 LIMIT -1 9-1 a b
        XADD s MAXLEN ~ 5 LIMIT x 9-1 a b
        XADD s MAXLEN ~ 5 LIMIT 10 9-1 a b
        XADD s MAXLEN = 6 9-2 a b
        XADD s MAXLEN 9
        XLEN s
        XLEN none
        TYPE s
        OBJECT ENCODING s
        XRANGE s - +
        XREVRANGE s + -
        XRANGE s 1-1 2
        XRANGE s 2 2
        XRANGE s (2-0 7
        XRANGE s (2 (7-5
        XREVRANGE s (7-5 (2
        XREVRANGE s 7 7
        XRANGE s 7 1
        XRANGE s ( +
        XRANGE s (- +
        XRANGE s - (+
        XRANGE s (x +
        XRANGE s x +
        XRANGE s 5 (0-0
        XRANGE s (18446744073709551615-18446744073709551615 +
        XRANGE s - + COUNT
        XRANGE s - + COUNT 2
        XREVRANGE s + - COUNT 2
        XRANGE s - + COUNT 0
        XRANGE s - + COUNT -1
        XRANGE s - + COUNT x
        XRANGE s - + COUNT 1 COUNT 3
        XRANGE s - + FOO 2
        XRANGE none - +
        XRANGE none - + COUNT 0
        XRANGE none x +
        XREVRANGE none + -
        XREAD STREAMS s 0
        XREAD COUNT 2 STREAMS s 0
        XREAD COUNT 0 STREAMS s 7
        XREAD COUNT -1 STREAMS s 7
        XREAD COUNT x STREAMS s 0
        XREAD STREAMS s 9-2
        XREAD STREAMS s $
        XREAD STREAMS s none 0 0
        XREAD STREAMS none s 0 7
        XREAD STREAMS s s 0 8
        XREAD STREAMS s
        XREAD STREAMS s -
        XREAD STREAMS s >
        XREAD STREAMS s x
        XREAD COUNT 5 s 0
        XREAD COUNT 5
        XREAD COUNT 5 BLOCK
        XREAD FOO STREAMS s 0
        XREAD NOACK STREAMS s 0
        XREAD GROUP a b STREAMS s 0
        XREAD GROUP a b
        XREAD BLOCK x STREAMS s 0
        XREAD BLOCK -1 STREAMS s 0
        XREAD BLOCK 1 STREAMS s $
        XREAD BLOCK 1 STREAMS s 0 COUNT 5
        XREAD BLOCK 5 COUNT 1 STREAMS s none 0 0
        XREAD COUNT 1 block 5 STREAMS s 0
        XINFO
        XINFO HELP
        XGROUP HELP
        XINFO HELP x
        XINFO NONE s
        XINFO STREAM
        XINFO STREAM none
        XINFO STREAM none x
        XINFO STREAM s
        XINFO STREAM s FULL
        XINFO STREAM s full count 2
        XINFO STREAM s FULL COUNT 0
        XINFO STREAM s FULL COUNT -5
        XINFO STREAM s FULL COUNT x
        XINFO STREAM s FULL COUNT
        XINFO STREAM s FULL x 5
        XINFO STREAM s x
        XDEL s
        XDEL s x
        XDEL s 1-2 x
        XDEL none x
        XDEL none 5
        XDEL s 1-2 1-2 7-5 99
        XINFO STREAM s FULL
        XDEL s 0-1
        XINFO STREAM s
        XDEL s 9-2
        XINFO STREAM s
        XADD s 9-2 a b
        XRANGE s - +
        XREVRANGE s + -
        XTRIM s
        XTRIM s MAXLEN
        XTRIM s MAXLEN x
        XTRIM s MAXLEN -1
        XTRIM s FOO 5
        XTRIM s LIMIT 5
        XTRIM s LIMIT 0
        XTRIM s MAXLEN 3 LIMIT 5
        XTRIM s MAXLEN = 3 LIMIT 0
        XTRIM s MAXLEN ~ 3 LIMIT 0
        XTRIM s MAXLEN ~ 3 LIMIT -2
        XTRIM s NOMKSTREAM MAXLEN 3
        XTRIM s MINID ~ 2
        XTRIM s MINID 2
        XTRIM s MINID 2-x
        XTRIM none MAXLEN 0
        XTRIM s MAXLEN 2
        XTRIM s MAXLEN 2
        XINFO STREAM s
        XSETID none 5
        XSETID s x
        XSETID s 20
        XSETID s 20 ENTRIESADDED
        XSETID s 20 ENTRIESADDED x
        XSETID s 20 ENTRIESADDED -1
        XSETID s 20 ENTRIESADDED 1
        XSETID s 20 ENTRIESADDED 100
        XSETID s 20 MAXDELETEDID x
        XSETID s 20 MAXDELETEDID 21
        XSETID s 20 MAXDELETEDID 15-5 ENTRIESADDED 50
        XSETID s 16
        XSETID s 20 FOO 1
        XSETID s 20
        XINFO STREAM s
        XTRIM s MAXLEN 0
        EXISTS s
        XINFO STREAM s
        XINFO STREAM s FULL
        XRANGE s - +
        XREAD STREAMS s 0
        XADD s 20 a b
        XADD s 21 a b
        XINFO STREAM s
        XDEL s 21
        XINFO STREAM s
        XSETID s 18446744073709551615-18446744073709551614
        XADD s * a b
        XADD s * a b
        XADD s 18446744073709551615-* a b
        XADD s 18446744073709551615-18446744073709551615 a b
        XRANGE s - +
        XREAD STREAMS s 18446744073709551615-18446744073709551614
        XREAD STREAMS s 18446744073709551615-18446744073709551615
        XREAD STREAMS s $
        XADD t 5-18446744073709551615 a b
        XADD t 5 a b
        XADD t 6-* a b
        COPY t u
        XADD u 7 a b
        XRANGE t - +
        XRANGE u - +
        RENAME u v
        XLEN v
        SCAN 0 COUNT 1000 TYPE stream
        DEL v
        XADD ids 1--05 a b
        XADD ids +2-007 a b
        XRANGE ids 001 2-+7
        SET string v
        XADD string * a b
        XADD string nomkstream * a b
        XADD string 0-0 a b
        XADD string x a b
        XLEN string
        XRANGE string - +
        XRANGE string x +
        XREVRANGE string + -
        XREAD STREAMS string 0
        XREAD STREAMS string x
        XREAD STREAMS t string 0 0
        XREAD STREAMS t string x 0
        XDEL string 5
        XDEL string x
        XTRIM string MAXLEN 0
        XTRIM string MAXLEN x
        XSETID string 5
        XSETID string x
        XINFO STREAM string
        XINFO STREAM string x
        GET t
        LPUSH t a
        ZADD t 1 a
        SORT t
        SORT_RO t ALPHA
        HGETALL t
        INCR t
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
    pair.check_state();
}

#[test]
fn streams_are_answered_as_by_redis() {
    edge_cases(Protocol::Resp2);
    edge_cases(Protocol::Resp3);
}

/// Compares all information about a stream. The payload of each program, restored by the other, is the same stream to
/// the last byte.
#[track_caller]
fn check_stream(pair: &mut Pair, key: &str) {
    for words in [&["XINFO", "STREAM", key][..], &["XRANGE", key, "-", "+"], &["XREVRANGE", key, "+", "-"]] {
        pair.check(words);
    }
    let words = [&b"DUMP"[..], key.as_bytes()];
    let Reply::Bulk(ours) = parse(&start(&pair.store, &mut pair.caller, &words).unwrap_or_else(block_on)) else {
        panic!("a stream")
    };
    let theirs = dump(pair, key);
    pair.redis.command(&[&b"RESTORE"[..], b"other", b"0", &ours, b"REPLACE"]);
    assert_eq!(pair.redis.read_reply(), b"+OK\r\n");
    assert!(dump(pair, "other") == theirs, "the payload of {key} has other bytes than Redis's own");
    for (name, payload) in [("theirs", &theirs), ("ours", &ours)] {
        let words = [&b"RESTORE"[..], name.as_bytes(), b"0", payload, b"REPLACE"];
        assert_eq!(start(&pair.store, &mut pair.caller, &words).unwrap_or_else(block_on), b"+OK\r\n");
        pair.redis.command(&words);
        assert_eq!(pair.redis.read_reply(), b"+OK\r\n");
        pair.check(&["XINFO", "STREAM", name, "FULL", "COUNT", "0"]);
    }
}

/// Returns the payload of redis-server's DUMP.
fn dump(pair: &mut Pair, key: &str) -> Vec<u8> {
    pair.redis.command(&["DUMP", key]);
    let Reply::Bulk(payload) = parse(&pair.redis.read_reply()) else { panic!("a stream") };
    payload
}

/// Compares the state after each command on a stream with small nodes: the beginnings of Redis's nodes decide what `~`
/// trims.
#[test]
fn nodes_begin_where_those_of_redis_do() {
    for seed in 1..4 {
        let mut pair = Pair::new(Protocol::Resp2);
        let mut random = Random(seed);
        // The longer the entries, the fewer fit a node.
        let long_max = [1, 700, 3_000][random.below(3)];
        let mut id = 0;
        for step in 0..1_500 {
            let most = id + 2;
            let some = |random: &mut Random| format!("{}-{}", random.below(most), random.below(3));
            let words: Vec<String> = match random.below(12) {
                0..7 => {
                    id += random.below(2) + usize::from(step == 0);
                    let mut words = vec!["XADD".to_owned(), "s".to_owned()];
                    if random.below(8) == 0 {
                        let kept = random.below(60).to_string();
                        let form = ["=", "~"][random.below(2)];
                        match random.below(3) {
                            0 => words.extend(["MINID".into(), form.into(), some(&mut random)]),
                            _ => words.extend(["MAXLEN".into(), form.into(), kept]),
                        }
                    }
                    words.push(format!("{id}-*"));
                    let alike = random.below(4) > 0;
                    for field in 0..if alike { 2 } else { random.below(4) + 1 } {
                        words.push(if alike { format!("field{field}") } else { random.below(9).to_string() });
                        let long = random.below(10) == 0;
                        words.push(if long {
                            "v".repeat(random.below(long_max))
                        } else {
                            random.below(100_000).to_string()
                        });
                    }
                    words
                }
                7 => ["XTRIM", "s", "MAXLEN", "~", &random.below(80).to_string()].map(str::to_owned).to_vec(),
                8 => {
                    ["XTRIM", "s", "MINID", ["~", "="][random.below(2)], &some(&mut random)].map(str::to_owned).to_vec()
                }
                9 if random.below(4) == 0 => {
                    let (kept, most) = (random.below(60).to_string(), random.below(50).to_string());
                    ["XTRIM", "s", "MAXLEN", "~", &kept, "LIMIT", &most].map(str::to_owned).to_vec()
                }
                9 => ["XTRIM", "s", "MAXLEN", &random.below(200).to_string()].map(str::to_owned).to_vec(),
                _ => {
                    let mut words = vec!["XDEL".to_owned(), "s".to_owned()];
                    words.extend((0..random.below(6) + 1).map(|_| some(&mut random)));
                    words
                }
            };
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            pair.check(&words);
            if step % 20 == 19 {
                let (start, end) = (some(&mut random), some(&mut random));
                pair.check(&["XRANGE", "s", &start, &end]);
                pair.check(&["XREVRANGE", "s", &end, &format!("({start}"), "COUNT", "40"]);
                pair.check(&["XREAD", "COUNT", "45", "STREAMS", "s", &start]);
                check_stream(&mut pair, "s");
            }
        }
    }
}
