//! DUMP, RESTORE and SORT, compared with a real Redis: payloads are exchanged both ways, and every error is compared
//! byte for byte.

use sluicegate_store::{Caller, Clock, ManualClock, Mode, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer};
use sluicegate_wire::resp::Protocol;

use crate::{Random, block_on, run, start};

/// Bytes of a payload after its object: version and checksum.
const TRAILER: usize = 10;

struct Both {
    _server: RedisServer,
    redis: Client,
    store: Store,
    caller: Caller,
}

impl Both {
    fn new(protocol: Protocol) -> Both {
        let server = RedisServer::start(&[]);
        let mut redis = Client::connect(&server.address());
        if protocol == Protocol::Resp3 {
            redis.ask(&["HELLO", "3"]);
        }
        let caller = Caller { protocol, ..Caller::default() };
        Both { _server: server, redis, store: Store::new(StoreOptions::default()), caller }
    }

    fn theirs(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.redis.command(words);
        self.redis.read_reply()
    }

    fn ours(&mut self, words: &[&[u8]]) -> Vec<u8> {
        start(&self.store, &mut self.caller, words).unwrap_or_else(block_on)
    }

    /// Asserts that both give the same reply, and returns it.
    #[track_caller]
    fn check(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let (ours, theirs) = (self.ours(words), self.theirs(words));
        let shown: Vec<String> =
            words.iter().map(|word| word[..word.len().min(40)].escape_ascii().to_string()).collect();
        assert!(
            ours == theirs,
            "{shown:?}\nours:  {}\nredis: {}",
            ours[..ours.len().min(200)].escape_ascii(),
            theirs[..theirs.len().min(200)].escape_ascii()
        );
        ours
    }

    #[track_caller]
    fn check_line(&mut self, line: &str) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.check(&words);
    }

    /// Asserts that both reply with the same time, apart from the time that passes between the two calls.
    #[track_caller]
    fn check_time(&mut self, words: &[&[u8]]) {
        let number = |reply: Vec<u8>| -> i64 {
            let text = std::str::from_utf8(&reply).expect("text");
            text.strip_prefix(':').and_then(|text| text.trim().parse().ok()).expect("an integer")
        };
        let (ours, theirs) = (number(self.ours(words)), number(self.theirs(words)));
        assert!((ours - theirs).abs() < 60_000 && (ours < 0) == (theirs < 0), "ours {ours}, Redis's {theirs}");
    }

    /// Sets a key in both, exchanges the payloads, and compares what was restored.
    #[track_caller]
    fn exchange(&mut self, value: &[u8]) {
        self.check(&[b"SET", b"source", value]);
        self.exchange_key();
    }

    #[track_caller]
    fn exchange_key(&mut self) {
        let theirs = bulk(&self.theirs(&[b"DUMP", b"source"]));
        let ours = bulk(&self.ours(&[b"DUMP", b"source"]));
        // Two compressors need not find the same matches, but this one must not be much worse.
        let packed = ours.get(1) == Some(&0xc3);
        let near = packed && ours.len() <= theirs.len() + theirs.len() / 10 + 8;
        let sizes = (ours.len(), theirs.len());
        assert!(ours == theirs || near, "{sizes:?}: {}", ours[..ours.len().min(40)].escape_ascii());
        self.check(&[b"DEL", b"copy", b"theirs", b"ours"]);
        assert_eq!(self.theirs(&[b"RESTORE", b"copy", b"0", &ours]), b"+OK\r\n");
        assert_eq!(self.ours(&[b"RESTORE", b"copy", b"0", &theirs]), b"+OK\r\n");
        self.check(&[b"RESTORE", b"ours", b"0", &ours]);
        self.check(&[b"RESTORE", b"theirs", b"0", &theirs]);
        let value = self.check(&[b"GET", b"source"]);
        for key in [&b"copy"[..], b"ours", b"theirs"] {
            assert!(self.check(&[b"GET", key]) == value);
            self.check(&[b"OBJECT", b"ENCODING", key]);
            self.check(&[b"TTL", key]);
        }
    }
}

/// Returns the content of a bulk string.
#[track_caller]
fn bulk(reply: &[u8]) -> Vec<u8> {
    let end = reply.iter().position(|&byte| byte == b'\n').expect("a line");
    assert_eq!(reply[0], b'$', "{}", reply.escape_ascii());
    reply[end + 1..reply.len() - 2].to_vec()
}

/// Returns Redis's CRC-64, computed bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0xad93_d235_94c9_35a9u64.reverse_bits() } else { 0 }
        })
    })
}

/// Returns a payload with a correct checksum, whatever its object.
pub fn sealed(object: &[u8], version: u16) -> Vec<u8> {
    let mut payload = [object, &version.to_le_bytes()].concat();
    payload.extend(crc64(&payload).to_le_bytes());
    payload
}

fn noise(len: usize) -> Vec<u8> {
    let mut random = Random(7);
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[test]
fn payloads_are_exchanged_with_redis() {
    let mut both = Both::new(Protocol::Resp2);
    for value in [
        &b""[..],
        b"a",
        b"hello",
        b"\0\r\n\xff",
        b"007",
        b"-0",
        b"+1",
        b"1.5",
        b"99999999999",
        b"9223372036854775808",
        b"exactly-twenty-bytes",
        b"twenty-one-bytes-long",
        &[b'x'; 20],
        &[b'x'; 21],
        &[b'x'; 63],
        &[b'x'; 64],
        &[b'x'; 16_384],
    ] {
        both.exchange(value);
    }
    for bits in [0, 7, 8, 15, 16, 31, 32, 62] {
        for value in [(1i64 << bits) - 1, 1 << bits, -(1 << bits), -(1 << bits) - 1, i64::MIN, i64::MAX] {
            both.exchange(value.to_string().as_bytes());
        }
    }
    let random = noise(1 << 20);
    for len in [21, 44, 63, 64, 192, 193, 4095, 4096, 16_383, 16_384, 1 << 20] {
        both.exchange(&random[..len]);
        let text: Vec<u8> =
            (0..len).map(|n| b"GET /index.html HTTP/1.1\r\nHost: "[n % 32] ^ (n / 1000) as u8).collect();
        both.exchange(&text);
        both.exchange(&vec![b'v'; len]);
        // Runs of different lengths, from near and far.
        let mixed: Vec<u8> =
            random[..len].chunks(37).flat_map(|part| [part, &random[..part.len() / 2]].concat()).collect();
        both.exchange(&mixed);
    }
    // Integers that are stored as text.
    both.check(&[b"SET", b"source", b"12"]);
    both.check(&[b"APPEND", b"source", b"3"]);
    both.exchange_key();
    both.check(&[b"SETRANGE", b"source", b"3", b"4567890123"]);
    both.exchange_key();
    both.check(&[b"DUMP", b"none"]);
    both.check(&[b"DBSIZE"]);
}

/// A single long member gives a sorted set its large encoding, in which a score of -0 keeps its sign.
#[test]
fn scores_of_minus_zero_are_restored_as_by_redis() {
    let mut both = Both::new(Protocol::Resp2);
    let long = [b'l'; 80];
    for members in [[&b"a"[..], b"b"], [b"a", &long], [&long, b"b"]] {
        both.check(&[b"DEL", b"z", b"ours", b"theirs"]);
        // The long member is added first, so the set is large from the first member on.
        both.check(&[b"ZADD", b"z", b"1", &long]);
        members.iter().for_each(|member| drop(both.check(&[b"ZADD", b"z", b"-0", member])));
        if !members.contains(&&long[..]) {
            both.check(&[b"ZREM", b"z", &long]);
        }
        let (ours, theirs) = (bulk(&both.ours(&[b"DUMP", b"z"])), bulk(&both.theirs(&[b"DUMP", b"z"])));
        both.check(&[b"RESTORE", b"ours", b"0", &ours]);
        both.check(&[b"RESTORE", b"theirs", b"0", &theirs]);
        for key in [&b"z"[..], b"ours", b"theirs"] {
            both.check(&[b"OBJECT", b"ENCODING", key]);
            both.check(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]);
        }
    }
}

fn restore_options_are_those_of_redis(protocol: Protocol) {
    let mut both = Both::new(protocol);
    let payload = sealed(b"\0\x05value", 10);
    let number = sealed(b"\0\xc1\x39\x30", 9);
    let wide = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    let cases = [
        wide(&[b"RESTORE", b"k", b"0", &payload]),
        wide(&[b"RESTORE", b"k", b"0", &payload]),
        wide(&[b"RESTORE", b"k", b"x", b"junk"]),
        wide(&[b"RESTORE", b"k", b"x", b"junk", b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"-1", b"junk", b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"0", b"junk", b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"0", b"", b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"0", &number, b"replace"]),
        wide(&[b"RESTORE", b"k", b"100000000", &payload, b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"99999999999999", &payload, b"REPLACE", b"absttl"]),
        wide(&[b"RESTORE", b"k", b"1", &payload, b"ABSTTL"]),
        wide(&[b"RESTORE", b"k", b"1", &payload, b"ABSTTL", b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"1", &payload, b"ABSTTL"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"ABSTTL"]),
        wide(&[b"RESTORE", b"k", b"9223372036854775807", &payload, b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"9223372036854775807", &payload, b"REPLACE", b"ABSTTL"]),
        wide(&[b"RESTORE", b"k", b"9223372036854775808", &payload, b"REPLACE"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME", b"1000"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME", b"-1"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME", b"x"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"FREQ", b"255"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"FREQ", b"256"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"FREQ", b"-1"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"FREQ", b"1.5"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"FREQ"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"FREQ", b"1", b"IDLETIME", b"1"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME", b"1", b"FREQ", b"1"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME", b"1", b"IDLETIME", b"2000"]),
        wide(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"junk"]),
        wide(&[b"RESTORE", b"k", b"0"]),
        wide(&[b"DUMP"]),
        wide(&[b"DUMP", b"k", b"k"]),
    ];
    for case in &cases {
        let words: Vec<&[u8]> = case.iter().map(Vec::as_slice).collect();
        both.check(&words);
        both.check(&[b"GET", b"k"]);
        both.check_time(&[b"PTTL", b"k"]);
        both.check(&[b"EXISTS", b"k"]);
    }
    both.check(&[b"RESTORE", b"k", b"0", &payload, b"REPLACE", b"IDLETIME", b"1000000"]);
    both.check_time(&[b"OBJECT", b"IDLETIME", b"k"]);
}

#[test]
fn restore_options_are_those_of_redis_in_resp2() {
    restore_options_are_those_of_redis(Protocol::Resp2);
}

#[test]
fn restore_options_are_those_of_redis_in_resp3() {
    restore_options_are_those_of_redis(Protocol::Resp3);
}

#[test]
fn damaged_payloads_are_refused_as_by_redis() {
    let mut both = Both::new(Protocol::Resp2);
    let good = sealed(b"\0\xc3\x05\x15\0a\xe0\x0b\0", 10);
    both.check(&[b"RESTORE", b"k", b"0", &good]);
    both.check(&[b"GET", b"k"]);
    for len in 0..good.len() {
        both.check(&[b"RESTORE", b"k", b"0", &good[..len], b"REPLACE"]);
        if len <= good.len() - TRAILER {
            // An object that seems to continue into the trailer: Redis reads the trailer as a part of it.
            let refused = b"-ERR Bad data format\r\n".to_vec();
            let whole = len == good.len() - TRAILER;
            let reply = both.ours(&[b"RESTORE", b"k", b"0", &sealed(&good[..len], 10), b"REPLACE"]);
            assert_eq!(reply, if whole { b"+OK\r\n".to_vec() } else { refused });
        }
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        both.check(&[b"RESTORE", b"k", b"0", &bad, b"REPLACE"]);
    }
    for object in [
        &b"\0\x02ok and what follows"[..],
        b"\0\x40\x02ok",
        b"\0\x80\0\0\0\x02ok",
        b"\0\x81\0\0\0\0\0\0\0\x02ok",
        b"\0\x82\0\0\0\x02ok",
        b"\0\xbf\0\0\0\x02ok",
        b"\0\xc4ok",
        b"\0\xff",
        b"\0\x80\x7f\xff\xff\xffok",
        b"\0\x81\0\0\0\x7f\xff\xff\xff\xffok",
        b"\0\xc3\x04\x05\0a\x20\0",
        b"\0\xc3\x04\x03\0a\x20\0",
        b"\0\xc3\x04\x04\0a\x20\x01",
        b"\0\xc3\x04\x04\0a\xe0\0",
        b"\0\xc3\x03\x02\x02ab",
        b"\0\xc3\xc0\x04\x04\0a\x20\0",
        // A list of one plain element, which is never empty.
        b"\x12\x01\x01\x01a",
        b"\x12\x01\x01\0",
        // Types that do not exist, or are not values.
        b"\x08\x01a",
        b"\xfa\x01a\x01b",
        b"\xff",
    ] {
        both.check(&[b"RESTORE", b"k", b"0", &sealed(object, 10), b"REPLACE"]);
        both.check(&[b"GET", b"k"]);
    }
    for version in [1, 6, 9, 10] {
        both.check(&[b"RESTORE", b"k", b"0", &sealed(b"\0\x02ok", version), b"REPLACE"]);
    }
    both.check(&[b"RESTORE", b"k", b"0", &sealed(b"\0\x02ok", 13), b"REPLACE"]);
    // Redis 7.0 refuses versions above 10; later versions, which are accepted here, encode strings in the same way.
    for version in [11, 12] {
        assert_eq!(both.ours(&[b"RESTORE", b"k", b"0", &sealed(b"\0\x02ok", version), b"REPLACE"]), b"+OK\r\n");
    }
}

#[test]
fn a_restored_key_expires_and_ages() {
    let clock = ManualClock::new(1_000_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() });
    let caller = &mut Caller::default();
    let payload = sealed(b"\0\x05value", 10);
    run(&store, caller, &[b"RESTORE", b"k", b"5000", &payload, b"IDLETIME", b"70"]);
    assert_eq!(run(&store, caller, &[b"OBJECT", b"IDLETIME", b"k"]), b":70\r\n");
    assert_eq!(run(&store, caller, &[b"PTTL", b"k"]), b":5000\r\n");
    clock.advance(4_999);
    assert_eq!(run(&store, caller, &[b"DUMP", b"k"]), [b"$17\r\n", &payload[..], b"\r\n"].concat());
    clock.advance(1);
    assert_eq!(run(&store, caller, &[b"DUMP", b"k"]), b"$-1\r\n");
    assert_eq!(run(&store, caller, &[b"RESTORE", b"k", b"0", &payload]), b"+OK\r\n");
    assert_eq!(run(&store, caller, &[b"TTL", b"k"]), b":-1\r\n");
}

/// A payload is decoded before its key's stripe is locked, so it is decoded again when a waiting command has its turn.
#[test]
fn a_held_key_is_dumped_and_restored_in_turn() {
    let store = Store::new(StoreOptions::default());
    let caller = &mut Caller::default();
    let long = noise(10_000);
    run(&store, caller, &[b"SET", b"long", &long]);
    let payload = bulk(&run(&store, caller, &[b"DUMP", b"long"]));
    let section = block_on(store.section([(0, &b"k"[..], Mode::Exclusive)])).expect("nobody else");
    let restore = start(&store, caller, &[b"RESTORE", b"k", b"0", &payload]).expect_err("the key is held");
    let again = start(&store, caller, &[b"RESTORE", b"k", b"0", b"junk"]).expect_err("the key is held");
    let dump = start(&store, caller, &[b"DUMP", b"k"]).expect_err("the key is held");
    let sort = start(&store, caller, &[b"SORT", b"none", b"STORE", b"k"]).expect_err("the destination is held");
    assert_eq!(run(&store, caller, &[b"SORT", b"none", b"GET", b"k"]), b"*0\r\n");
    drop(section);
    assert_eq!(block_on(restore), b"+OK\r\n");
    assert_eq!(block_on(again), b"-BUSYKEY Target key name already exists.\r\n");
    assert_eq!(bulk(&block_on(dump)), payload);
    assert_eq!(block_on(sort), b":0\r\n");
    assert_eq!(run(&store, caller, &[b"EXISTS", b"k"]), b":0\r\n");
}

fn sort_is_answered_as_by_redis(protocol: Protocol) {
    let mut both = Both::new(protocol);
    let script = "
        SET string 1
        SET other 2
        SORT none
        SORT_RO none
        SORT string
        SORT_RO string
        SORT string STORE other
        GET other
        SORT string junk
        SORT none ASC DESC alpha LIMIT 0 10 BY weight_* GET # GET object_*
        SORT_RO none ASC DESC alpha LIMIT 0 10 BY nosort GET # GET object_*
        SORT none LIMIT 5 -1
        SORT none LIMIT x 1
        SORT none LIMIT 1 x
        SORT none LIMIT 9223372036854775808 1
        SORT none LIMIT 1
        SORT none LIMIT
        SORT none BY
        SORT none GET
        SORT none STORE
        SORT none GET STORE other
        SORT none GET STORE STORE
        SORT_RO none STORE other
        SORT_RO none junk
        EXISTS other
        SORT none STORE other
        EXISTS other
        SORT none STORE other
        SET other 3
        SORT none STORE string STORE other
        EXISTS string other
        SORT none BY a STORE none
        SORT
        SORT_RO
        DBSIZE
    ";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        both.check_line(line);
    }
}

#[test]
fn sort_is_answered_as_by_redis_in_resp2() {
    sort_is_answered_as_by_redis(Protocol::Resp2);
}

#[test]
fn sort_is_answered_as_by_redis_in_resp3() {
    sort_is_answered_as_by_redis(Protocol::Resp3);
}
