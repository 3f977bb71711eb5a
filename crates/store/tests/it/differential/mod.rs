//! Comparison with Debian's redis-server, or with Valkey for features that only Valkey shares: the store gets the same
//! commands, and replies and final state are compared byte for byte, except where they depend on the clock or on the
//! order of a hash table. Random commands are sent by `cargo xtask differential`; these are selected cases, large
//! values, and tests that need more than commands and replies.

mod bits;
mod events;
mod found;
mod geo;
mod groups;
mod hashes;
mod hll;
mod lists;
mod sets;
mod sort;
mod streams;
mod transactions;
mod zsets;

use sluicegate_store::{Caller, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{Protocol, ReplyLimits, ReplyParser};

use crate::{block_on, start};

struct Pair {
    _server: RedisServer,
    redis: Client,
    store: Store,
    caller: Caller,
}

fn parse(bytes: &[u8]) -> Reply {
    let progress = ReplyParser::new(ReplyLimits::default()).parse(bytes).expect("a reply");
    progress.reply.expect("a whole reply")
}

/// Returns the tolerated difference of times in two successive replies, in the unit of the command; `None` if it
/// returns no time.
fn clocks_apart(words: &[&str]) -> Option<i64> {
    match words[0].to_ascii_lowercase().as_str() {
        "ttl" | "expiretime" => Some(60),
        "pttl" | "pexpiretime" => Some(60_000),
        "object" if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case("idletime")) => Some(60),
        _ => None,
    }
}

/// Makes replies equal that differ only in order.
fn normalised(words: &[&str], reply: Reply) -> Reply {
    match (words[0].to_ascii_lowercase().as_str(), reply) {
        ("keys" | "scan", Reply::Array(mut items)) => {
            let sort = |items: &mut Vec<Reply>| items.sort_by_key(|item| format!("{item:?}"));
            match items.get_mut(1) {
                Some(Reply::Array(keys)) => sort(keys),
                _ => sort(&mut items),
            }
            Reply::Array(items)
        }
        ("smembers" | "sinter" | "sunion" | "sdiff" | "spop", Reply::Set(mut items)) => {
            items.sort_by_key(|item| format!("{item:?}"));
            Reply::Set(items)
        }
        ("sscan", Reply::Array(mut items)) => {
            if let Some(Reply::Array(members)) = items.get_mut(1) {
                members.sort_by_key(|item| format!("{item:?}"));
            }
            Reply::Array(items)
        }
        ("hscan", Reply::Array(mut items)) => {
            if let Some(Reply::Array(fields)) = items.get_mut(1) {
                *fields = in_pairs(std::mem::take(fields));
            }
            Reply::Array(items)
        }
        ("hrandfield", Reply::Array(mut items)) => {
            match words.get(3) {
                // RESP2 has fields and values in one array.
                Some(_) if !matches!(items.first(), Some(Reply::Array(_))) => items = in_pairs(items),
                _ => items.sort_by_key(|item| format!("{item:?}")),
            }
            if words[2].starts_with('-') {
                let form = |item: &Reply| if let Reply::Array(pair) = item { pair.len() } else { 0 };
                items = items.iter().map(|item| Reply::Integer(form(item) as i64)).collect();
            }
            Reply::Array(items)
        }
        ("hrandfield", Reply::Bulk(_)) => Reply::Simple("any".into()),
        // The elements are random, but not their number.
        ("srandmember", Reply::Array(items)) if words.get(2).is_some_and(|count| count.starts_with('-')) => {
            Reply::Array(vec![Reply::Null; items.len()])
        }
        ("srandmember", Reply::Bulk(_)) => Reply::Simple("any".into()),
        (
            "hkeys" | "hvals" | "smembers" | "sinter" | "sunion" | "sdiff" | "spop" | "srandmember",
            Reply::Array(mut items),
        ) => {
            items.sort_by_key(|item| format!("{item:?}"));
            Reply::Array(items)
        }
        ("hgetall", Reply::Array(items)) => {
            let mut pairs: Vec<Vec<Reply>> = items.chunks(2).map(<[Reply]>::to_vec).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Reply::Array(pairs.concat())
        }
        ("hgetall", Reply::Map(mut pairs)) => {
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Reply::Map(pairs)
        }
        ("xinfo", reply) => groups::without_times(streams::normalised(reply)),
        ("xpending", reply) => groups::without_times(Reply::Array(vec![Reply::Bulk(b"pending".to_vec()), reply])),
        (command, reply) if command.starts_with('z') || command.starts_with("bz") => zsets::normalised(command, reply),
        (_, reply) => reply,
    }
}

/// Returns the elements as sorted pairs.
fn in_pairs(items: Vec<Reply>) -> Vec<Reply> {
    let mut pairs: Vec<Vec<Reply>> = items.chunks(2).map(<[Reply]>::to_vec).collect();
    pairs.sort_by_key(|pair| format!("{pair:?}"));
    pairs.concat()
}

impl Pair {
    fn new(protocol: Protocol) -> Pair {
        Pair::beside(RedisServer::start(&[]), protocol)
    }

    /// Returns a pair with Valkey, for behaviour that redis-server 7.0 lacks.
    fn newer(protocol: Protocol) -> Pair {
        Pair::beside(RedisServer::start_valkey("8.1", &[]), protocol)
    }

    fn beside(server: RedisServer, protocol: Protocol) -> Pair {
        let mut redis = Client::connect(&server.address());
        if protocol == Protocol::Resp3 {
            redis.ask(&["HELLO", "3"]);
        }
        let caller = Caller { protocol, ..Caller::default() };
        Pair { _server: server, redis, store: Store::new(StoreOptions::default()), caller }
    }

    #[track_caller]
    fn check(&mut self, words: &[&str]) {
        self.redis.command(words);
        let theirs = self.redis.read_reply();
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let ours = start(&self.store, &mut self.caller, &bytes).unwrap_or_else(|parked| {
            // A blocking command that finds nothing has a short timeout in these tests.
            parked.time_out();
            block_on(parked)
        });
        if ours != theirs {
            let both = [ours, theirs].map(|reply| normalised(words, parse(&reply)));
            // Relative times differ by the time between the two calls.
            if let (Some(apart), [Reply::Integer(ours), Reply::Integer(theirs)]) = (clocks_apart(words), &both)
                && *ours.min(theirs) >= 0
                && (ours - theirs).abs() <= apart
            {
                return;
            }
            if self.is_small(words, &both) {
                return;
            }
            assert_eq!(both[0], both[1], "ours, then Redis's, to {:?}", &words[..words.len().min(12)]);
        }
    }

    /// Returns whether both replies are the encoding of a set of a few short members or of a short list: a listpack
    /// since Redis 7.2, as in this store, and a hash table or a quicklist in 7.0.
    fn is_small(&mut self, words: &[&str], both: &[Reply; 2]) -> bool {
        let [Reply::Bulk(ours), Reply::Bulk(theirs)] = both else { return false };
        if !words[0].eq_ignore_ascii_case("object") || ours != b"listpack" {
            return false;
        }
        let mut ask = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            parse(&start(&self.store, &mut self.caller, &words).unwrap_or_else(block_on))
        };
        let key = words[2];
        let (kind, elements) = match &theirs[..] {
            b"hashtable" => ("set", ask(&["SMEMBERS", key])),
            b"quicklist" => ("list", ask(&["LRANGE", key, "0", "-1"])),
            _ => return false,
        };
        let (Reply::Array(elements) | Reply::Set(elements)) = elements else { return false };
        let lens = || elements.iter().map(|element| if let Reply::Bulk(text) = element { text.len() } else { 0 });
        let fits = match kind {
            "set" => elements.len() <= 128 && lens().all(|len| len <= 64),
            _ => lens().sum::<usize>() <= 8192,
        };
        fits && ask(&["TYPE", key]) == Reply::Simple(kind.into())
    }

    fn check_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
        self.check(&words);
    }

    fn select(&mut self, db: u32) {
        self.redis.ask(&["SELECT", &db.to_string()]);
        self.caller.db = db;
    }

    /// Compares all keys with their contents; both refuse the commands that do not fit a key's type.
    fn check_state(&mut self) {
        for db in 0..4 {
            self.select(db);
            self.check(&["DBSIZE"]);
            self.check(&["SCAN", "0", "COUNT", "100000"]);
            self.check(&["KEYS", "*"]);
            let keys = parse(&start(&self.store, &mut self.caller, &[b"KEYS", b"*"]).unwrap_or_else(block_on));
            let Reply::Array(keys) = keys else { panic!("an array") };
            for key in keys {
                let Reply::Bulk(key) = key else { panic!("a name") };
                let key = std::str::from_utf8(&key).expect("tests use text");
                for command in ["TYPE", "TTL", "GET", "HGETALL", "SMEMBERS"] {
                    self.check(&[command, key]);
                }
                self.check(&["OBJECT", "ENCODING", key]);
                self.check(&["LRANGE", key, "0", "-1"]);
                self.check(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
                self.check(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]);
            }
        }
        self.select(0);
    }
}

#[test]
fn every_command_is_answered_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let script = "
        SET a 10
        APPEND a 1
        OBJECT ENCODING a
        INCR a
        OBJECT ENCODING a
        APPEND a \"\"
        OBJECT ENCODING a
        SET a 5
        OBJECT REFCOUNT a
        SETRANGE b 5 x
        GET b
        OBJECT ENCODING b
        SETRANGE none 0 \"\"
        EXISTS none
        INCRBYFLOAT f 3.0
        INCRBYFLOAT f 1.1
        OBJECT ENCODING f
        INCRBYFLOAT f -4.1
        INCRBYFLOAT f 1.7976931348623157e308
        INCRBYFLOAT f 1e4932
        INCRBYFLOAT f 1e4932
        INCRBYFLOAT f abc
        SET a 9223372036854775807
        INCR a
        DECRBY a -1
        DECRBY a -9223372036854775808
        MSET x 1 y 2
        MSET x 1 y
        MSETNX x 3 z 4
        MSETNX p 3 q 4
        MGET x y z p q
        SET ex v EX 100
        TTL ex
        SET ex v2 KEEPTTL
        TTL ex
        GETEX ex PERSIST
        TTL ex
        EXPIRE ex 100 XX
        EXPIRE ex 100 NX
        EXPIRE ex 50 GT
        EXPIRE ex 50 LT
        EXPIRE ex 200 NX
        EXPIRE ex 50 NX XX
        EXPIRE ex 50 GT LT
        EXPIRE ex 50 foo
        EXPIRE ex -1
        EXISTS ex
        EXPIRE none 1
        PEXPIRE x 9223372036854775807
        EXPIREAT x 9999999999
        EXPIRETIME x
        PEXPIRETIME x
        RENAME x x2
        EXPIRETIME x2
        RENAME none a
        RENAMENX none a
        RENAMENX x2 y
        RENAMENX x2 x2
        RENAME x2 x2
        RENAMENX x2 x3
        COPY x3 x4
        COPY x3 x4
        COPY x3 x4 REPLACE
        COPY x3 x3
        COPY x3 x3 DB 1
        COPY x3 x3 DB 99
        COPY x3 x4 DB
        MOVE x4 1
        MOVE x4 0
        MOVE x4 77
        SWAPDB 0 1
        DBSIZE
        SWAPDB 1 0
        SWAPDB a 1
        SWAPDB 1 b
        SWAPDB 1 99
        TYPE a
        TYPE none
        OBJECT HELP
        OBJECT FREQ a
        OBJECT IDLETIME a
        OBJECT IDLETIME none
        OBJECT BAD a
        OBJECT ENCODING
        OBJECT
        SCAN 0 COUNT 1000 TYPE string
        SCAN 0 COUNT 1000 TYPE list
        SCAN 0 COUNT 1000 MATCH x*
        SCAN 0 COUNT 0
        SCAN abc
        SCAN 0 MATCH
        TOUCH a b none
        UNLINK a b none
        GETDEL y
        GETDEL y
        SET s1 ohmytext
        SET s2 mynewtext
        LCS s1 s2
        LCS s1 s2 LEN
        LCS s1 s2 IDX
        LCS s1 s2 IDX MINMATCHLEN 4
        LCS s1 s2 IDX MINMATCHLEN 4 WITHMATCHLEN
        LCS s1 s2 IDX LEN
        LCS s1 none
        LCS s1 s2 BAD
        SUBSTR s1 1 3
        PSETEX t 100000 v
        SETEX t 0 v
        SETEX t -1 v
        SETEX t x v
        SET t v EX 0
        SET t v EX 1 PX 1
        SET t v NX XX
        SET t v NX GET
        SET fresh v NX GET
        SET t v PX 9223372036854775807
        SET t v EX 9223372036854775807
        SET t v EX 9223372036854775
        SET t v PX 9223372036854775
        PERSIST t
        PERSIST t
        TTL none
        PTTL none
        RANDOMKEY x
        FLUSHALL nonsense
        FLUSHALL ASYNC
        DBSIZE
        RANDOMKEY
        NOSUCHCOMMAND a b c
        get
        gEt
        FLUSHDB SYNC
        TIME x
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
    let long = "x".repeat(300);
    pair.check(&[&long, &long, &long]);
    pair.check(&["SET", &long, &long.repeat(40)]);
    pair.check(&["APPEND", &long, &long.repeat(4)]);
    pair.check(&["GETRANGE", &long, "11990", "12010"]);
    pair.check(&["SETRANGE", &long, "20000", &long]);
    pair.check(&["GET", &long]);
    pair.check(&["COPY", &long, "copy"]);
    pair.check(&["APPEND", "copy", "!"]);
    pair.check(&["GET", &long]);
    pair.check(&["STRLEN", "copy"]);
    pair.check_state();
}

#[test]
fn commands_of_many_keys_are_answered_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let keys: Vec<String> = (0..1_000).map(|n| format!("key:{n}")).collect();
    let with = |command: &'static str, values: bool| {
        let mut words = vec![command];
        for key in &keys {
            words.push(key);
            if values {
                words.push(key);
            }
        }
        words
    };
    for (command, values) in [
        ("EXISTS", false),
        ("MSETNX", true),
        ("MSETNX", true),
        ("MGET", false),
        ("TOUCH", false),
        ("DEL", false),
        ("MSET", true),
        ("UNLINK", false),
        ("MGET", false),
        ("MSET", false),
    ] {
        let mut words = with(command, values);
        if command == "MSET" && !values {
            words.push("one more");
            words.pop();
            words.pop();
        }
        pair.check(&words);
    }
    pair.check(&["DBSIZE"]);
}

#[test]
fn long_values_among_short_ones_are_answered_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let long = "v".repeat(5_000);
    pair.check(&["MSET", "a", "1", "b", &long, "c", "3", "d", &long]);
    pair.check(&["MGET", "a", "b", "none", "c", "d", "a"]);
    pair.check(&["SET", "b", "short", "GET"]);
    pair.check(&["GETSET", "d", &long]);
    pair.check(&["GETEX", "d", "EX", "100"]);
    pair.check(&["GETEX", "d", "PERSIST"]);
    pair.check(&["SET", "d", &long, "GET"]);
    pair.check(&["SET", "d", "x", "NX", "GET"]);
    pair.check(&["SET", "d", &long, "XX", "GET", "KEEPTTL"]);
    pair.check(&["GETDEL", "d"]);
    pair.check(&["SETRANGE", "far", "3000000", "end"]);
    pair.check(&["SETRANGE", "far", "0", "start"]);
    pair.check(&["SETRANGE", "far", "4000000", "more"]);
    pair.check(&["SETRANGE", "far", "20000000", "and more"]);
    pair.check(&["GETRANGE", "far", "-20", "-1"]);
    pair.check(&["GETRANGE", "far", "2999990", "3000010"]);
    pair.check(&["STRLEN", "far"]);
    pair.check(&["GETEX", "far", "PXAT", "1"]);
    pair.check(&["EXISTS", "far"]);
    pair.check(&["LCS", "a", "b"]);
    pair.check(&["MGET", "a", "b", "c", "d"]);
}
