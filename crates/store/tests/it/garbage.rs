//! Bad input over raw sockets: input that is not RESP, or too much of it, is answered as by redis-server and costs
//! nothing.

use std::io::Write;

use sluicegate_store::config::ServerOptions;
use sluicegate_store::server::Server;
use sluicegate_store::{Store, StoreOptions};
use sluicegate_testkit::{Client, Listening, RedisServer, wait_for};

use crate::Random;
use crate::allocated::peak_of;
use crate::support::{Running, exchange, on_runtime};

/// Pieces of requests, valid ones and invalid ones.
const PIECES: &[&str] = &[
    "*1\r\n$4\r\nPING\r\n",
    "*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n",
    "PING\r\n",
    "ECHO \"a b\"\r\n",
    "ECHO 'a\r\n",
    "*",
    "$",
    "*1\r\n",
    "*2\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*-9223372036854775808\r\n",
    "*9223372036854775808\r\n",
    "*1048577\r\n",
    "*1 \r\n",
    "* 1\r\n",
    "*+1\r\n",
    "*01\r\n",
    "*1\n",
    "$4\r\n",
    "$0\r\n\r\n",
    "$-1\r\n",
    "$-2\r\n",
    "$536870913\r\n",
    "$99999999999999999999\r\n",
    "$4\n",
    "$ 4\r\n",
    "PING",
    "\r\n",
    "\n",
    "\r",
    ":1\r\n",
    "+OK\r\n",
    "-ERR\r\n",
    "%1\r\n",
    "*1\r\n*1\r\n$4\r\nPING\r\n",
    "~1\r\n",
    "GET",
    "\"",
    "\\x00",
    "é",
    "4",
    "SET k v\r\n",
];

#[test]
fn random_pieces_get_the_replies_of_redis() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let seed = std::env::var("SLUICEGATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let mut random = Random(seed);
    for case in 0..1500 {
        let mut request = String::new();
        for _ in 0..=random.below(7) {
            request += random.pick(PIECES);
        }
        let expected = exchange(&redis.address(), request.as_bytes());
        let found = exchange(&ours.address(), request.as_bytes());
        assert_eq!(
            String::from_utf8_lossy(&found),
            String::from_utf8_lossy(&expected),
            "case {case} of seed {seed}: {request:?}"
        );
    }
}

#[test]
fn every_prefix_of_a_request_is_answered_as_redis_does() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING \"x\"\r\n";
    for cut in 0..=whole.len() {
        let expected = exchange(&redis.address(), &whole[..cut]);
        assert_eq!(exchange(&ours.address(), &whole[..cut]), expected, "{cut} bytes");
    }
}

#[test]
fn an_inline_request_without_end_is_refused_at_redis_s_length() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    for (start, length) in [("", 70_000), ("*", 70_000), ("*1\r\n$", 70_000)] {
        let request = [start.as_bytes(), "1".repeat(length).as_bytes()].concat();
        let expected = exchange(&redis.address(), &request);
        assert!(expected.starts_with(b"-ERR Protocol error: too big "), "{}", String::from_utf8_lossy(&expected));
        assert_eq!(exchange(&ours.address(), &request), expected, "{start:?}");
    }
}

#[test]
fn announced_lengths_reserve_nothing() {
    // The server's only thread has its own count of memory, whatever other tests allocate.
    let listening = Listening::new();
    let server = Server::new(Store::new(StoreOptions::default()), ServerOptions::default());
    let worker = std::thread::spawn({
        let (server, listener) = (server.clone(), listening.listener.try_clone().expect("a descriptor"));
        move || {
            peak_of(|| {
                on_runtime(async move { server.serve_tcp(server.generation(), listener, None).await.expect("served") })
            })
        }
    });
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = Client::connect(&listening.address());
        client.send("*1000000\r\n$500000000\r\nx");
        clients.push(client);
    }
    let mut other = Client::connect(&listening.address());
    // Half a request of each client is buffered, in addition to the client that asks.
    wait_for("all to be read", || other.ask(&["CLIENT", "LIST"]).matches(" qbuf=23 ").count().eq(&50).then_some(()));
    drop((clients, other));
    server.stop();
    let ((), peak) = worker.join().expect("it ended");
    assert!(peak < 100 << 20, "{peak} bytes");
}

#[test]
fn a_reader_that_stops_is_not_read_from() {
    let ours = Running::with(ServerOptions::default(), 1);
    let mut other = ours.connect();
    let value = "v".repeat(1 << 20);
    assert_eq!(other.ask(&["SET", "k", &value]), "+OK\r\n");
    let slow = ours.connect();
    slow.stream().set_nonblocking(true).expect("a socket");
    // Requests whose replies make a gigabyte: the server stops reading them long before that.
    let requests = "GET k\r\n".repeat(1000);
    let mut sent = 0;
    for _ in 0..100 {
        match slow.stream().write(requests.as_bytes()) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
        assert_eq!(other.ask(&["PING"]), "+PONG\r\n", "others are served");
    }
    assert!(sent > 0);
    // The first 16 KiB that wait are in `obl`, the others in `omem`, as in Redis.
    let waiting = |line: &str| -> u64 {
        let field = |name: &str| {
            let text = line.split(name).nth(1).and_then(|rest| rest.split(' ').next()).expect("a field");
            text.parse::<u64>().expect("a number")
        };
        field(" obl=") + field(" omem=")
    };
    wait_for("replies to wait", || {
        let text = other.ask(&["CLIENT", "LIST"]);
        let most = text.lines().filter(|line| line.contains(" omem=")).map(waiting).max().unwrap_or(0);
        // The share of a turn, and one value beyond it.
        assert!(most <= (1 << 20) + (128 << 10), "{most} bytes wait");
        (most > 0).then_some(())
    });
}

/// The data that exists before the wrong commands.
const KEPT: &str = "SET str text; SET max 9223372036854775807; SET min -9223372036854775808; SET float 1.5; \
    RPUSH list a b c; SADD set a b; SADD ints 1 2 3; HSET hash f v max 9223372036854775807 big 1e308; \
    ZADD z 1 a 2 b; ZADD zinf inf m; GEOADD geo 13.36 38.11 Palermo; PFADD hll a b; XADD stream 5-1 f v; XADD stream 7-0 f w g x";

/// Commands with wrong arguments, by the kind of error.
const WRONG: &[(&str, &[&str])] = &[
    (
        "types",
        &[
            "INCR list",
            "APPEND list x",
            "GETSET list x",
            "SETRANGE set 0 x",
            "SETBIT list 0 1",
            "BITFIELD list SET u8 0 1",
            "LPUSH str x",
            "LPUSHX set x",
            "LSET hash 0 x",
            "LINSERT str BEFORE a b",
            "RPOPLPUSH list str",
            "LMOVE str list LEFT LEFT",
            "LMPOP 1 str LEFT",
            "SADD str x",
            "SMOVE set str a",
            "SPOP list",
            "SINTERSTORE d set str",
            "SUNIONSTORE d ints list",
            "HSET str f v",
            "HINCRBY list f 1",
            "HDEL set f",
            "ZADD str 1 m",
            "ZINCRBY list 1 m",
            "ZUNIONSTORE d 2 z list",
            "ZDIFFSTORE d 2 z str",
            "ZRANGESTORE d list 0 -1",
            "ZPOPMIN set",
            "GEOADD list 1 1 m",
            "GEOSEARCHSTORE d str FROMMEMBER a BYRADIUS 1 m",
            "PFADD str x",
            "PFADD list x",
            "PFMERGE hll str",
            "BITOP AND d str list",
            "SORT str",
            "SORT hash STORE d",
            "GETDEL list",
            "GETEX set PERSIST",
        ],
    ),
    (
        "number",
        &[
            "SET str",
            "GET",
            "MSET a 1 b",
            "MSETNX a 1 b",
            "HSET hash f",
            "HMSET hash f v g",
            "ZADD z 1",
            "ZADD z 1 a 2",
            "DEL",
            "LPUSH list",
            "COPY str",
            "RENAME str",
            "SETEX str 1",
            "GEOADD geo 1 1",
            "EXPIRE str",
            "INCRBY max",
            "BITOP AND d",
            "SINTERCARD 0",
            "EVAL",
        ],
    ),
    (
        "overflow",
        &[
            "INCR max",
            "INCRBY max 1",
            "DECR min",
            "DECRBY min 1",
            "DECRBY str -9223372036854775808",
            "INCRBY float 1",
            "INCRBY ints x",
            "INCRBY max 9223372036854775808",
            "HINCRBY hash max 1",
            "HINCRBY hash f 1",
            "HINCRBYFLOAT hash big inf",
            "INCRBYFLOAT float inf",
            "INCRBYFLOAT float nan",
            "INCRBYFLOAT str 1",
            "EXPIRE str 9223372036854775807",
            "PEXPIRE str 9223372036854775807",
            "EXPIREAT str 9223372036854775807",
            "PEXPIREAT str x",
            "PEXPIREAT str 1 NX XX",
            "SETEX str 9223372036854775807 v",
            "SETEX str 0 v",
            "PSETEX str -1 v",
            "SET str v EX 0",
            "SET str v PX -1",
            "SET str v EX 9223372036854775807",
            "GETEX str EX 0",
            "GETEX str PX x",
            "EXPIRE str x",
            "RESTORE d -1 x",
            "LPOP list 99999999999999999999",
        ],
    ),
    (
        "scores",
        &[
            "ZADD z nan m",
            "ZADD z x m",
            "ZADD z 1 new nan m",
            "ZADD z 1 new 2",
            "ZINCRBY z nan a",
            "ZINCRBY zinf -inf m",
            "ZADD zinf INCR -inf m",
            "ZADD z NX XX 1 m",
            "ZADD z GT LT 1 m",
            "ZADD z INCR 1 a 2 b",
            "ZUNIONSTORE d 1 z WEIGHTS nan",
            "ZUNIONSTORE d 0 z",
            "ZUNIONSTORE d -1 z",
            "ZUNIONSTORE d 9 z",
            "ZRANGESTORE d z (x 1 BYSCORE",
            "ZRANGESTORE d z 0 -1 BYSCORE BYLEX",
            "ZREMRANGEBYSCORE z nan 1",
            "ZREMRANGEBYLEX z a b",
            "ZPOPMIN z -1",
            "ZPOPMAX z x",
            "GEOADD geo 181 1 m",
            "GEOADD geo 1 1 new 200 1 m",
            "GEOADD geo nan 1 m",
            "GEOADD geo 1 86 m",
            "GEOSEARCHSTORE d geo FROMLONLAT 200 1 BYRADIUS 1 m",
            "GEOSEARCHSTORE d geo FROMLONLAT 1 1 BYRADIUS -1 m",
        ],
    ),
    (
        "offsets",
        &[
            "SETRANGE str 536870912 x",
            "SETRANGE str 536870908 12345",
            "SETRANGE str 9223372036854775807 x",
            "SETRANGE str -1 x",
            "SETRANGE new 536870912 x",
            "SETBIT str 4294967296 1",
            "SETBIT str -1 1",
            "SETBIT str 0 2",
            "SETBIT new 18446744073709551616 1",
            "BITFIELD str SET u8 4294967296 1",
            "BITFIELD str SET u8 #536870912 1",
            "BITFIELD str SET u64 0 1",
            "BITFIELD str SET u8 0 1 INCRBY x 0 1",
            "BITFIELD str OVERFLOW NEVER SET u8 0 1",
            "BITOP NOT d str max",
            "LSET list 3 x",
            "LSET list -4 x",
            "LSET list 9223372036854775807 x",
            "LSET new 0 x",
            "LINSERT list BESIDE a b",
            "LTRIM list a b",
            "LREM list x a",
            "LPOP list -1",
            "LPOP list x",
            "LMPOP 0 list LEFT",
            "LMPOP 1 list MIDDLE",
            "LMPOP 1 list LEFT COUNT 0",
            "LMOVE list d UP LEFT",
            "SPOP set -1",
            "SPOP set x",
        ],
    ),
    (
        "options and names",
        &[
            "SET str v NX XX",
            "SET str v EX 1 PX 1",
            "SET str v KEEPTTL EX 1",
            "SET str v SOMETIMES",
            "GETEX str EX 1 PERSIST",
            "EXPIRE str 5 NX XX",
            "EXPIRE str 5 GT LT",
            "COPY str d DB 99",
            "COPY str str",
            "MOVE str 99",
            "MOVE str 0",
            "RENAME none d",
            "SWAPDB 0 99",
            "SWAPDB x 0",
            "SELECT 99",
            "FLUSHALL NOW",
            "OBJECT NONSENSE str",
            "SORT list",
            "SORT list LIMIT a b STORE d",
            "XADD stream 5-1 f v",
            "XADD stream 7 f v",
            "XADD stream 8 f",
            "XADD stream 8 f v g",
            "XADD stream 8-x f v",
            "XADD stream -1 f v",
            "XADD new 0-0 f v",
            "XADD stream MAXLEN 1 7 f v",
            "XADD stream MAXLEN -1 8 f v",
            "XADD stream MAXLEN 1 LIMIT 1 8 f v",
            "XADD str 8 f v",
            "XTRIM stream MAXLEN x",
            "XTRIM stream MAXLEN 1 MINID 5",
            "XTRIM stream MAXLEN 0 LIMIT 9",
            "XTRIM stream MINID ~ x",
            "XTRIM list MAXLEN 0",
            "XDEL stream 5-1 x",
            "XDEL stream 7-0 18446744073709551616",
            "XDEL hash 1",
            "XSETID stream 6",
            "XSETID stream 9 ENTRIESADDED 1",
            "XSETID stream 9 MAXDELETEDID 10",
            "XSETID new 9",
            "XRANGE stream - x",
            "XRANGE stream (18446744073709551615-18446744073709551615 +",
            "XREAD STREAMS stream",
            "XREAD BLOCK -1 STREAMS stream 0",
            "XREAD COUNT 1 stream 0",
            "XINFO STREAM new",
            "XINFO STREAM stream FULL 5",
            "RESTORE str 0 x",
            "RESTORE d 0 x",
            "RESTORE d 0 x REPLACE IDLETIME -1",
            "DEBUG JMAP",
            "CONFIG SET maxmemory x",
            "CONFIG SET nonsense 1",
        ],
    ),
];

/// Whatever wrong arguments a command gets, the reply is Redis's error, and nothing changes.
#[test]
fn wrong_arguments_are_refused_as_by_redis_and_change_nothing() {
    let redis = RedisServer::start(&[]);
    let ours = Running::start();
    let (mut theirs, mut client) = (Client::connect(&redis.address()), ours.connect());
    for line in KEPT.split("; ") {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(client.ask(&words), theirs.ask(&words), "{line}");
    }
    let state = |client: &mut Client| {
        let keys = ["str", "max", "min", "float", "list", "set", "ints", "hash", "z", "zinf", "geo", "hll", "stream"];
        let mut state = vec![client.ask(&["DBSIZE"]).into_bytes()];
        for key in keys {
            client.command(&["DUMP", key]);
            state.push(client.read_reply());
            state.push(client.ask(&["PTTL", key]).into_bytes());
        }
        state
    };
    let (before, used) = (state(&mut client), ours.store().used_bytes());
    for (what, lines) in WRONG {
        for line in *lines {
            let words: Vec<&str> = line.split(' ').collect();
            let (reply, expected) = (client.ask(&words), theirs.ask(&words));
            assert!(expected.starts_with('-'), "{what}: {line} is right: {expected}");
            assert_eq!(reply, expected, "{what}: {line}");
            assert!(state(&mut client) == before, "{what}: {line} changed something");
        }
    }
    let grown = ours.store().used_bytes().saturating_sub(used);
    assert!(grown < 1 << 20, "{grown} bytes for what was refused");
}
