//! Sorted sets: edge cases, and large ones.

use sluicegate_store::{Caller, StoreOptions};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::Protocol;

use super::{Pair, parse};
use crate::{Random, ask, block_on, start};

/// Makes equal scores in replies look alike: Redis 7.0 prints 17 digits, 7.2 and this store the shortest text that
/// reads back as the score.
pub fn normalised(command: &str, reply: Reply) -> Reply {
    fn numbers(reply: Reply) -> Reply {
        match reply {
            Reply::Bulk(bytes) => {
                let text = std::str::from_utf8(&bytes).ok().filter(|text| text.contains(['.', 'e']) || text.len() > 16);
                let number = text.and_then(|text| text.parse::<f64>().ok());
                Reply::Bulk(number.map_or(bytes, |number| format!("{number:e}").into_bytes()))
            }
            Reply::Array(items) => Reply::Array(items.into_iter().map(numbers).collect()),
            reply => reply,
        }
    }
    match (command, numbers(reply)) {
        // The drawn members differ; their number and the form of the reply do not.
        ("zrandmember", Reply::Bulk(_)) => Reply::Bulk(b"a member".to_vec()),
        ("zrandmember", Reply::Array(items)) => Reply::Array(vec![Reply::Null; items.len()]),
        ("zscan", Reply::Array(mut items)) => {
            if let Some(Reply::Array(found)) = items.get_mut(1) {
                let mut pairs: Vec<Vec<Reply>> = found.chunks(2).map(<[Reply]>::to_vec).collect();
                pairs.sort_by_key(|pair| format!("{pair:?}"));
                *found = pairs.concat();
            }
            Reply::Array(items)
        }
        (_, reply) => reply,
    }
}

const SCRIPT: &str = "
    ZADD z 1 a 2 b 3 c
    ZADD z 1 a 2.5 b 4 d
    ZADD z CH 1 a 3.5 b 5 e
    ZADD z NX CH 9 a 6 f
    ZADD z XX CH 9 a 6 g
    ZADD z XX GT CH 8 a 10 b
    ZADD z LT CH 8 a 11 b
    ZADD z GT 1 new
    ZADD z LT CH 1 new2
    ZADD z NX XX 1 a
    ZADD z NX GT 1 a
    ZADD z NX LT 1 a
    ZADD z GT LT 1 a
    ZADD z INCR 1 a
    ZADD z INCR NX 1 a
    ZADD z INCR XX 1 nobody
    ZADD z INCR GT -1 a
    ZADD z INCR LT -1 a
    ZADD z INCR 1 a 2 b
    ZADD z INCR inf a
    ZADD z INCR -inf a
    ZINCRBY z -inf a
    ZINCRBY z nan a
    ZINCRBY z NX a
    ZINCRBY z 1
    ZADD z 1
    ZADD z NX
    ZADD z 1 a 2
    ZADD z x a
    ZADD z nan a
    ZADD z 1e400 a
    ZADD z 1e-400 a
    ZADD z 1 x NX 2
    ZADD none XX 1 a
    ZADD none XX INCR 1 a
    EXISTS none
    ZADD z 0x1p4 hex -0x.8p1 hex2 1e3 e +5 plus .5 half 5. point
    ZRANGE z 0 -1 WITHSCORES
    ZRANGE z 0 -1 REV WITHSCORES
    ZRANGE z 1 3
    ZRANGE z 0 -1 LIMIT 0 1
    ZRANGE z 0 -1 LIMIT 1 -1
    ZRANGE z 0 -1 BYLEX WITHSCORES
    ZRANGE z 0 10 BYSCORE LIMIT 1 2
    ZRANGE z 10 0 BYSCORE REV LIMIT 1 2
    ZRANGE z 0 10 BYSCORE LIMIT -1 2
    ZRANGE z 0 10 BYSCORE LIMIT 1 0
    ZRANGE z 0 10 BYSCORE LIMIT 1
    ZRANGE z 0 10 BYSCORE LIMIT x 1
    ZRANGE z 0 10 BYSCORE LIMIT 1 x
    ZRANGE z x 1
    ZRANGE z (1 (3 BYSCORE
    ZRANGE z a b BYSCORE
    ZRANGE z a b BYLEX
    ZRANGE z 0 1 junk
    ZRANGE none x 1
    ZRANGE none 0 -1 WITHSCORES
    ZREVRANGE z 0 1 REV
    ZRANGEBYSCORE z -inf +inf LIMIT 2 3 WITHSCORES
    ZRANGEBYSCORE z 5 1
    ZRANGEBYSCORE z (5 5
    ZREVRANGEBYSCORE z +inf -inf LIMIT 2 3 WITHSCORES
    ZREVRANGEBYSCORE z -inf +inf
    ZCOUNT z -inf +inf
    ZCOUNT z (1 3
    ZCOUNT z \"\" 3
    ZCOUNT z ( 3
    ZCOUNT z x 3
    ZCOUNT none 1 3
    ZADD l 0 a 0 b 0 c 0 d 0 aa 0 bb
    ZRANGEBYLEX l - +
    ZRANGEBYLEX l + -
    ZRANGEBYLEX l [b [c
    ZRANGEBYLEX l (b (c
    ZRANGEBYLEX l [b (c LIMIT 1 5
    ZREVRANGEBYLEX l + -
    ZREVRANGEBYLEX l [c [b
    ZREVRANGEBYLEX l [c [b LIMIT 1 1
    ZREVRANGEBYLEX l - +
    ZLEXCOUNT l - +
    ZLEXCOUNT l [b [c
    ZLEXCOUNT l b c
    ZLEXCOUNT l [bb (bb
    ZREMRANGEBYLEX l [b [bb
    ZRANGE l 0 -1
    ZRANGESTORE s l 0 -1
    ZRANGE s 0 -1 WITHSCORES
    ZRANGESTORE s z 1 5 BYSCORE LIMIT 1 2
    ZRANGE s 0 -1 WITHSCORES
    ZRANGESTORE s z 5 1 BYSCORE REV
    ZRANGESTORE s none 0 -1
    EXISTS s
    ZRANGESTORE s z 0 -1 WITHSCORES
    ZRANGESTORE s z 3 1
    ZRANGESTORE z z 0 5
    ZRANGESTORE str none 0 -1
    ZRANK z a
    ZREVRANK z hex
    ZRANK z nobody
    ZRANK none a
    ZSCORE z a
    ZSCORE z nobody
    ZSCORE none a
    ZMSCORE z a nobody hex a
    ZMSCORE none a b
    ZCARD z
    ZCARD none
    ZREM z nobody a a hex
    ZREM none a
    ZREM l a c d aa
    EXISTS l
    ZADD r 1 a 2 b 3 c 4 d 5 e 6 f
    ZREMRANGEBYRANK r 1 2
    ZREMRANGEBYRANK r -2 -1
    ZREMRANGEBYRANK r 5 9
    ZREMRANGEBYRANK r x 1
    ZREMRANGEBYSCORE r (1 4
    ZREMRANGEBYSCORE r -inf inf
    EXISTS r
    ZREMRANGEBYSCORE r a b
    ZADD p 1 a 2 b 3 c 4 d
    ZPOPMIN p
    ZPOPMAX p
    ZPOPMIN p 0
    ZPOPMIN p -1
    ZPOPMIN p x
    ZPOPMIN p 1 1
    ZPOPMAX p 1
    ZPOPMIN p 10
    EXISTS p
    ZPOPMIN p
    ZPOPMIN p 5
    ZADD p 1 a 2 b 3 c 4 d
    ZMPOP 2 none p MIN
    ZMPOP 2 none p MAX COUNT 2
    ZMPOP 1 p MIN COUNT 9
    ZMPOP 2 none p MIN
    ZMPOP 0 p MIN
    ZMPOP x p MIN
    ZMPOP -1 p MIN
    ZMPOP 3 p MIN COUNT
    ZMPOP 1 p junk
    ZMPOP 1 p MIN COUNT 0
    ZMPOP 1 p MIN COUNT x
    ZMPOP 1 p MIN COUNT 1 COUNT 1
    ZMPOP 1 p MIN junk
    ZMPOP 9223372036854775807 p MIN
    ZADD p 1 a 2 b 3 c 4 d 5 e 6 f 7 g
    BZPOPMIN none p 0
    BZPOPMAX p none 0
    BZPOPMIN none 0.001
    BZPOPMIN none x
    BZPOPMIN none -1
    BZPOPMAX none nan
    BZPOPMIN 0
    BZPOPMIN
    BZMPOP 0 2 none p MAX COUNT 2
    BZMPOP 0 1 p MIN
    BZMPOP 0.001 1 p MIN
    BZMPOP x 1 p MIN
    BZMPOP -1 1 p MIN
    BZMPOP x 0 p MIN
    BZMPOP x 1 p junk
    BZMPOP x 1 p MIN COUNT 0
    BZMPOP 0 1 p MIN COUNT 1 COUNT 1
    EXISTS p
    DEL p
    ZADD u1 1 a 2 b 3 c
    ZADD u2 10 b 20 c 30 d
    ZADD u3 inf c -inf d
    ZUNION 2 u1 u2
    ZUNION 2 u1 u2 WITHSCORES
    ZUNION 3 u1 u2 u3 WITHSCORES
    ZUNION 2 u1 u2 WEIGHTS 2 0.5 AGGREGATE MAX WITHSCORES
    ZUNION 2 u1 u2 WEIGHTS 2 AGGREGATE MAX WITHSCORES
    ZUNION 2 u1 u2 WEIGHTS 2 x
    ZUNION 2 u1 u2 AGGREGATE avg
    ZUNION 2 u1 u2 AGGREGATE
    ZUNION 2 u3 u3 WEIGHTS 1 -1 WITHSCORES
    ZUNION 1 u3 WEIGHTS 0 WITHSCORES
    ZINTER 2 u1 u2 WITHSCORES
    ZINTER 2 u1 u2 WEIGHTS 1 2 AGGREGATE MIN WITHSCORES
    ZINTER 2 u1 none
    ZINTER 2 u1 u1 WITHSCORES
    ZINTER 3 u1 u2 u3 WEIGHTS 1 1 0 WITHSCORES
    ZDIFF 2 u1 u2 WITHSCORES
    ZDIFF 1 u1
    ZDIFF 2 u1 u1
    ZDIFF 2 none u1
    ZDIFF 2 u1 none WITHSCORES
    ZDIFF 2 u1 u2 WEIGHTS 1 2
    ZINTERCARD 2 u1 u2
    ZINTERCARD 2 u1 u2 LIMIT 1
    ZINTERCARD 2 u1 u2 LIMIT 0
    ZINTERCARD 2 u1 u2 LIMIT -1
    ZINTERCARD 2 u1 u2 LIMIT x
    ZINTERCARD 2 u1 u2 LIMIT
    ZINTERCARD 2 u1 u2 WITHSCORES
    ZINTERCARD 0 u1
    ZINTERCARD x u1
    ZINTERCARD 3 u1 u2
    ZUNIONSTORE u4 2 u1 u2
    ZRANGE u4 0 -1 WITHSCORES
    ZUNIONSTORE u1 2 u1 u2 WEIGHTS 1 10
    ZRANGE u1 0 -1 WITHSCORES
    ZUNIONSTORE u4 2 u1 u2 WITHSCORES
    ZINTERSTORE u4 2 u1 u3 AGGREGATE MAX
    ZRANGE u4 0 -1 WITHSCORES
    ZINTERSTORE u4 2 u1 none
    EXISTS u4
    ZDIFFSTORE u4 2 u1 u3
    ZRANGE u4 0 -1 WITHSCORES
    ZDIFFSTORE u4 2 u1 u1
    EXISTS u4
    ZUNIONSTORE u4 0 u1
    ZUNIONSTORE u4 x u1
    ZUNIONSTORE u4 5 u1
    SET str v
    ZADD str 1 a
    ZADD str x a
    ZSCORE str a
    ZUNION 2 u1 str junk
    ZUNIONSTORE u4 2 u1 str
    ZUNIONSTORE str 1 u1
    TYPE str
    SET str v
    ZRANGESTORE str u1 0 0
    SET str v
    ZPOPMIN str 0
    ZRANDMEMBER str
    ZRANDMEMBER str 5
    ZRANDMEMBER str x
    ZRANDMEMBER none
    ZRANDMEMBER none 5
    ZRANDMEMBER none 5 WITHSCORES
    ZRANDMEMBER u1
    ZRANDMEMBER u1 2
    ZRANDMEMBER u1 -20
    ZRANDMEMBER u1 -20 WITHSCORES
    ZRANDMEMBER u1 20 WITHSCORES
    ZRANDMEMBER u1 0
    ZRANDMEMBER u1 2 junk
    ZRANDMEMBER u1 2 WITHSCORES junk
    ZRANDMEMBER u1 9223372036854775807 WITHSCORES
    ZRANDMEMBER u1 -9223372036854775807 WITHSCORES
    ZRANDMEMBER u1 -9223372036854775808
    ZSCAN u1 0
    ZSCAN u1 0 MATCH [ab]
    ZSCAN u1 0 COUNT 0
    ZSCAN u1 0 COUNT
    ZSCAN u1 0 TYPE zset
    ZSCAN u1 x
    ZSCAN none x
    ZSCAN none 0 junk
    ZSCAN str 0 junk
    ZSCAN str x
    ZMPOP 2 none str MIN
    ZMPOP 2 u1 str MIN
    ZRANGE str 0 -1
    ZREMRANGEBYRANK str 0 -1
    ZCOUNT str x 1
    ZCOUNT str 0 1
    ZRANK str a
    ZADD neg -0 a
    ZSCORE neg a
    ZINCRBY neg 0 a
    ZINCRBY neg -0 b
    ZADD neg 1e15 c 123456789012345678 d 9007199254740993 e -1e16 f
    ZRANGE neg 0 -1 WITHSCORES
";

fn script(protocol: Protocol) {
    let mut pair = Pair::new(protocol);
    for line in SCRIPT.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
}

#[test]
fn edge_cases_are_answered_as_by_redis_in_resp2() {
    script(Protocol::Resp2);
}

#[test]
fn edge_cases_are_answered_as_by_redis_in_resp3() {
    script(Protocol::Resp3);
}

#[test]
fn large_sorted_sets_hold_what_redis_holds() {
    let mut pair = Pair::new(Protocol::Resp2);
    let mut random = Random(5);
    for number in 0..400 {
        let score = format!("{}", random.below(50) as f64 / 8.0);
        pair.check(&["ZADD", "big", &score, &format!("member:{number}")]);
        pair.check(&["ZADD", "lex", "7", &format!("{:03}", number * 7 % 1000)]);
        if number % 40 == 0 || (125..135).contains(&number) {
            pair.check(&["OBJECT", "ENCODING", "big"]);
        }
    }
    for (start, end) in [("0", "-1"), ("10", "200"), ("-100", "-5"), ("127", "129"), ("390", "500")] {
        pair.check(&["ZRANGE", "big", start, end, "WITHSCORES"]);
        pair.check(&["ZREVRANGE", "big", start, end]);
    }
    for (min, max) in [("1", "2"), ("(1", "(2"), ("-inf", "(0.5"), ("6.125", "inf"), ("(3", "3"), ("9", "10")] {
        for limit in [["0", "1000"], ["3", "5"], ["100", "-1"], ["-1", "5"]] {
            pair.check(&["ZRANGEBYSCORE", "big", min, max, "LIMIT", limit[0], limit[1]]);
            pair.check(&["ZREVRANGEBYSCORE", "big", max, min, "WITHSCORES", "LIMIT", limit[0], limit[1]]);
        }
        pair.check(&["ZCOUNT", "big", min, max]);
    }
    for (min, max) in [("-", "+"), ("[1", "(2"), ("(007", "[014"), ("[5", "+"), ("-", "(01"), ("[9", "[1")] {
        for limit in [["0", "1000"], ["3", "5"], ["100", "-1"]] {
            pair.check(&["ZRANGEBYLEX", "lex", min, max, "LIMIT", limit[0], limit[1]]);
            pair.check(&["ZREVRANGEBYLEX", "lex", max, min, "LIMIT", limit[0], limit[1]]);
        }
        pair.check(&["ZLEXCOUNT", "lex", min, max]);
    }
    for number in (0..400).step_by(9) {
        let member = format!("member:{number}");
        for command in ["ZRANK", "ZREVRANK", "ZSCORE"] {
            pair.check(&[command, "big", &member]);
        }
        pair.check(&["ZINCRBY", "big", "0.125", &member]);
        pair.check(&["ZADD", "big", "XX", "GT", "CH", "3", &member]);
        pair.check(&["ZADD", "big", "-0", &member]);
    }
    pair.check(&["COPY", "big", "copy"]);
    pair.check(&["ZUNIONSTORE", "sum", "2", "big", "lex", "WEIGHTS", "1", "2"]);
    pair.check(&["ZINTERSTORE", "same", "2", "big", "copy"]);
    pair.check(&["ZDIFFSTORE", "less", "2", "sum", "big"]);
    pair.check(&["ZRANGESTORE", "part", "big", "10", "60"]);
    pair.check(&["ZINTERCARD", "2", "big", "copy", "LIMIT", "333"]);
    pair.check(&["ZREMRANGEBYRANK", "copy", "5", "300"]);
    pair.check(&["ZREMRANGEBYSCORE", "big", "1", "3"]);
    pair.check(&["ZREMRANGEBYLEX", "lex", "[2", "(6"]);
    pair.check(&["ZPOPMIN", "sum", "20"]);
    pair.check(&["ZPOPMAX", "sum", "20"]);
    // One long member is enough.
    pair.check(&["ZADD", "wide", "1", &"m".repeat(65), "2", "b", "0.1", "c", "-0", "d"]);
    for key in ["big", "copy", "sum", "same", "less", "part", "lex", "wide"] {
        pair.check(&["ZSCAN", key, "0", "COUNT", "1000"]);
        pair.check(&["ZSCAN", key, "0", "COUNT", "1000", "MATCH", "*7*"]);
        for count in ["7", "300", "-40"] {
            pair.check(&["ZRANDMEMBER", key, count, "WITHSCORES"]);
        }
        pair.check(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
        pair.check(&["OBJECT", "ENCODING", key]);
    }
    // Both programs read what the other one wrote.
    pair.check(&["ZADD", "small", "1", "a", "0.1", "b", "-inf", "c", "1e17", "d", "70000", "e"]);
    for key in ["big", "lex", "wide", "part", "small"] {
        pair.redis.command(&["DUMP", key]);
        let Reply::Bulk(theirs) = parse(&pair.redis.read_reply()) else { panic!("a payload") };
        let ours = start(&pair.store, &mut pair.caller, &[b"DUMP", key.as_bytes()]).unwrap_or_else(block_on);
        let Reply::Bulk(ours) = parse(&ours) else { panic!("a payload") };
        let restored = format!("{key}:2");
        let reply = start(&pair.store, &mut pair.caller, &[b"RESTORE", restored.as_bytes(), b"0", &theirs]);
        assert_eq!(reply.unwrap_or_else(block_on), b"+OK\r\n");
        let head =
            format!("*4\r\n$7\r\nRESTORE\r\n${}\r\n{restored}\r\n$1\r\n0\r\n${}\r\n", restored.len(), ours.len());
        pair.redis.send([head.as_bytes(), &ours, b"\r\n"].concat());
        assert_eq!(pair.redis.read_reply(), b"+OK\r\n");
        pair.check(&["ZRANGE", &restored, "0", "-1", "WITHSCORES"]);
        pair.check(&["OBJECT", "ENCODING", &restored]);
    }
}

/// New features and changed replies of Redis 7.2, by its documentation.
#[test]
fn what_redis_7_2_says_otherwise() {
    let store = sluicegate_store::Store::new(StoreOptions::default());
    ask(&store, "ZADD z 1 a 0.1 b 1e17 c 1e-7 d");
    assert_eq!(ask(&store, "ZRANK z a WITHSCORE"), "*2\r\n:2\r\n$1\r\n1\r\n");
    assert_eq!(ask(&store, "ZREVRANK z b withscore"), "*2\r\n:2\r\n$3\r\n0.1\r\n");
    assert_eq!(ask(&store, "ZRANK z nobody WITHSCORE"), "*-1\r\n");
    assert_eq!(ask(&store, "ZRANK none a WITHSCORE"), "*-1\r\n");
    assert_eq!(ask(&store, "ZRANK z nobody"), "$-1\r\n");
    assert_eq!(ask(&store, "ZRANK z a WITHSCORES"), "-ERR syntax error\r\n");
    assert_eq!(ask(&store, "ZREVRANK z a WITHSCORE x"), "-ERR wrong number of arguments for 'zrevrank' command\r\n");
    assert_eq!(ask(&store, "ZSCORE z c"), "$18\r\n100000000000000000\r\n");
    assert_eq!(ask(&store, "ZSCORE z d"), "$4\r\n1e-7\r\n");
}

/// Every member is returned, by cursor and by random draws; drawn members exist, and are distinct where they must be.
#[test]
fn members_are_scanned_and_drawn() {
    let store = sluicegate_store::Store::new(StoreOptions::default());
    for count in [50, 3_000] {
        ask(&store, "DEL z");
        for number in 0..count {
            ask(&store, &format!("ZADD z {number} m{number}"));
        }
        let bulks = |reply: Reply| match reply {
            Reply::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Reply::Bulk(text) => String::from_utf8(text).expect("text"),
                    other => panic!("{other:?}"),
                })
                .collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let (mut cursor, mut calls) = ("0".to_string(), 0);
        let mut scanned = std::collections::BTreeMap::new();
        loop {
            let Reply::Array(mut reply) = parse(ask(&store, &format!("ZSCAN z {cursor} COUNT 100")).as_bytes()) else {
                panic!("an array")
            };
            for pair in bulks(reply.pop().expect("two parts")).chunks(2) {
                assert!(scanned.insert(pair[0].clone(), pair[1].clone()).is_none(), "{pair:?} twice");
            }
            let Some(Reply::Bulk(next)) = reply.pop() else { panic!("a cursor") };
            cursor = String::from_utf8(next).expect("digits");
            calls += 1;
            if cursor == "0" {
                break;
            }
        }
        assert!(scanned.len() == count && scanned.iter().all(|(member, score)| *member == format!("m{score}")));
        assert!(calls == 1 || count > 128 && calls >= count / 200, "{calls} calls");
        for drawn in [5, count / 2, count - 1, count, 2 * count] {
            let members = bulks(parse(ask(&store, &format!("ZRANDMEMBER z {drawn}")).as_bytes()));
            let different: std::collections::BTreeSet<_> = members.iter().collect();
            assert_eq!((members.len(), different.len()), (drawn.min(count), drawn.min(count)));
            assert!(members.iter().all(|member| scanned.contains_key(member)));
        }
        let members = {
            // The largest draw is executed aside.
            let count = format!("-{}", 20 * count);
            let words = [&b"ZRANDMEMBER"[..], b"z", count.as_bytes()];
            bulks(parse(&start(&store, &mut Caller::default(), &words).unwrap_or_else(block_on)))
        };
        let different: std::collections::BTreeSet<_> = members.iter().collect();
        assert!(members.len() == 20 * count && different.len() > count * 9 / 10);
        let one = ask(&store, "ZRANDMEMBER z");
        assert!(scanned.contains_key(one.lines().nth(1).expect("a bulk")));
    }
}

/// Compares rows of the catalogue with those of Valkey 8.1: name, arity, flags, keys and categories.
#[track_caller]
pub fn check_rows(names: &[&str]) {
    let ours = crate::support::Running::start();
    let redis = sluicegate_testkit::RedisServer::start_valkey("8.1", &[]);
    let (mut ours, mut theirs) = (ours.connect(), sluicegate_testkit::Client::connect(&redis.address()));
    for name in names {
        let [ours, theirs] = [&mut ours, &mut theirs].map(|client| {
            client.command(&["COMMAND", "INFO", name]);
            let Reply::Array(mut rows) = parse(&client.read_reply()) else { panic!("an array") };
            let Some(Reply::Array(row)) = rows.pop() else { panic!("{name} is unknown") };
            row[..7].to_vec()
        });
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn the_catalogue_has_the_rows_of_redis() {
    check_rows(&COMMANDS);
}

const COMMANDS: [&str; 33] = [
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "zadd",
    "zcard",
    "zcount",
    "zdiff",
    "zdiffstore",
    "zincrby",
    "zinter",
    "zintercard",
    "zinterstore",
    "zlexcount",
    "zmpop",
    "zmscore",
    "zpopmax",
    "zpopmin",
    "zrandmember",
    "zscan",
    "zrange",
    "zrangebylex",
    "zrangebyscore",
    "zrangestore",
    "zrem",
    "zremrangebylex",
    "zremrangebyrank",
    "zremrangebyscore",
    "zrevrange",
    "zrevrangebylex",
    "zrevrangebyscore",
    "zscore",
    "zunion",
    "zunionstore",
];
