//! RESTORE of every type that payloads have: the restored value, compared with redis-server if it reads the type; and
//! damaged payloads, which are refused and change nothing.

use sluicegate_store::{Caller, Store, StoreOptions};
use sluicegate_testkit::{Client, RedisServer};

use crate::allocated::peak_of;
use crate::dump::sealed;
use crate::{Random, block_on, start};

/// Returns a string of less than 64 bytes in the form of a payload.
fn text(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 64);
    [&[bytes.len() as u8], bytes].concat()
}

/// Returns a string of any length in a payload's format.
fn long(bytes: &[u8]) -> Vec<u8> {
    [&[0x80][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// A ziplist of texts below 64 bytes and, where one is a number up to 12, of integers in the head.
fn ziplist(texts: &[&[u8]]) -> Vec<u8> {
    let (mut body, mut before, mut last) = (Vec::new(), 0, 10);
    for text in texts {
        last = 10 + body.len();
        let start = body.len();
        body.push(before as u8);
        match std::str::from_utf8(text).ok().and_then(|text| text.parse::<u8>().ok()).filter(|number| *number <= 12) {
            Some(number) => body.push(0xf1 + number),
            None => {
                body.push(text.len() as u8);
                body.extend_from_slice(text);
            }
        }
        before = body.len() - start;
    }
    let total = (10 + body.len() + 1) as u32;
    let count = texts.len() as u16;
    [&total.to_le_bytes()[..], &(last as u32).to_le_bytes(), &count.to_le_bytes(), &body, &[0xff]].concat()
}

/// A listpack of texts below 64 bytes and of numbers up to 127.
fn listpack(texts: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for text in texts {
        let start = body.len();
        match std::str::from_utf8(text).ok().and_then(|text| text.parse::<u8>().ok()).filter(|number| *number < 128) {
            Some(number) => body.push(number),
            None => {
                body.push(0x80 | text.len() as u8);
                body.extend_from_slice(text);
            }
        }
        body.push((body.len() - start) as u8);
    }
    let total = (6 + body.len() + 1) as u32;
    [&total.to_le_bytes()[..], &(texts.len() as u16).to_le_bytes(), &body, &[0xff]].concat()
}

/// A payload's object, the command that reads its value, and the version that it needs.
struct Case {
    name: &'static str,
    object: Vec<u8>,
    read: &'static str,
    version: u16,
}

/// Returns one or more payloads of every supported type.
fn cases() -> Vec<Case> {
    let parts = |kind: u8, count: u8, parts: &[Vec<u8>]| [&[kind, count][..], &parts.concat()].concat();
    let one = |kind: u8, block: &[u8]| [vec![kind], long(block)].concat();
    let pairs: [&[u8]; 6] = [b"a", b"1", b"b", b"7", b"c", b"12"];
    let scores = |score: fn(f64) -> Vec<u8>| {
        [(b"a", 1.5), (b"b", -2.0), (b"c", 3e9)].map(|(member, value)| [text(member), score(value)].concat())
    };
    let far_ms = 4_102_444_800_000_i64.to_le_bytes();
    let mut cases = Vec::new();
    let mut add = |name, object, read, version| cases.push(Case { name, object, read, version });
    add("0: a string", [vec![0], text(b"value")].concat(), "GET", 6);
    add("0: an integer", b"\0\xc1\x39\x30".to_vec(), "GET", 6);
    add("0: compressed", b"\0\xc3\x05\x15\0a\xe0\x0b\0".to_vec(), "GET", 6);
    add("1: a list", parts(1, 3, &[text(b"x"), b"\xc0\x05".to_vec(), text(b"")]), "LRANGE", 6);
    add("10: a list, ziplist", one(10, &ziplist(&[b"x", b"5", b"", b"x"])), "LRANGE", 6);
    add("14: a list, quicklist", parts(14, 2, &[long(&ziplist(&[b"x", b"5"])), long(&ziplist(&[b"y"]))]), "LRANGE", 7);
    add(
        "18: a list, quicklist of listpacks",
        parts(18, 2, &[[vec![2], long(&listpack(&[b"x", b"5"]))].concat(), [vec![1], text(b"plain")].concat()]),
        "LRANGE",
        10,
    );
    add("2: a set", parts(2, 2, &[text(b"x"), text(b"y")]), "SMEMBERS", 6);
    add("11: a set, intset", one(11, b"\x02\0\0\0\x03\0\0\0\xff\xff\x01\0\x05\0"), "SMEMBERS", 6);
    add("20: a set, listpack", one(20, &listpack(&[b"x", b"y", b"9"])), "SMEMBERS", 11);
    let texts = scores(|score| text(format!("{score}").as_bytes()));
    add("3: a sorted set", parts(3, 3, &texts), "ZRANGE", 6);
    add("5: a sorted set, doubles", parts(5, 3, &scores(|score| score.to_le_bytes().to_vec())), "ZRANGE", 8);
    add("12: a sorted set, ziplist", one(12, &ziplist(&pairs)), "ZRANGE", 6);
    add("12: fractions", one(12, &ziplist(&[b"a", b"-1.5", b"b", b"2.25"])), "ZRANGE", 6);
    add("17: a sorted set, listpack", one(17, &listpack(&pairs)), "ZRANGE", 10);
    add("4: a hash", parts(4, 2, &[text(b"f"), text(b"v"), text(b"g"), b"\xc0\x07".to_vec()]), "HGETALL", 6);
    add("9: a hash, zipmap", one(9, b"\x02\x01f\x02\0hi\x01g\x00\x03xyz\xff"), "HGETALL", 6);
    add("13: a hash, ziplist", one(13, &ziplist(&pairs)), "HGETALL", 6);
    add("16: a hash, listpack", one(16, &listpack(&pairs)), "HGETALL", 10);
    let fields = [vec![1], text(b"f"), text(b"v"), vec![0], text(b"g"), text(b"w")].concat();
    add("24: a hash with times", [&[24][..], &far_ms, &[2], &fields].concat(), "HGETALL", 12);
    let block = long(&listpack(&[b"f", b"v", b"0", b"g", b"w", b"0"]));
    add("25: a hash with times, listpack", [&[25][..], &far_ms, &block].concat(), "HGETALL", 12);
    cases
}

fn read_words(command: &str) -> Vec<&[u8]> {
    match command {
        "LRANGE" => vec![b"LRANGE", b"k", b"0", b"-1"],
        "ZRANGE" => vec![b"ZRANGE", b"k", b"0", b"-1", b"WITHSCORES"],
        other => vec![other.as_bytes(), b"k"],
    }
}

fn ask(store: &Store, words: &[&[u8]]) -> Vec<u8> {
    start(store, &mut Caller::default(), words).unwrap_or_else(block_on)
}

/// Returns the elements of a reply regardless of their order, which depends on hash tables.
fn in_any_order(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(reply);
    let mut elements: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    elements.sort();
    elements
}

#[test]
fn every_type_is_restored_as_by_redis() {
    let redis = RedisServer::start(&[]);
    let mut client = Client::connect(&redis.address());
    let mut theirs = |words: &[&[u8]]| {
        client.command(words);
        client.read_reply()
    };
    let store = Store::new(StoreOptions::default());
    for Case { name, object, read, version } in cases() {
        let payload = sealed(&object, version);
        let words: [&[u8]; 5] = [b"RESTORE", b"k", b"0", &payload, b"REPLACE"];
        assert_eq!(ask(&store, &words), b"+OK\r\n", "{name}");
        let ours = ask(&store, &read_words(read));
        // Payload versions after Redis 7.0's have types that it does not know.
        if version <= 10 {
            assert_eq!(theirs(&words), b"+OK\r\n", "{name}, Redis");
            let theirs = theirs(&read_words(read));
            let is_same = ours == theirs || (read != "LRANGE" && in_any_order(&ours) == in_any_order(&theirs));
            assert!(is_same, "{name}: ours {}, Redis's {}", ours.escape_ascii(), theirs.escape_ascii());
        }
        assert!(ours.len() > 4 && ours[0] != b'-', "{name}: {}", ours.escape_ascii());
        // Its own DUMP restores the same value.
        let dumped = ask(&store, &[b"DUMP", b"k"]);
        let from = dumped.iter().position(|byte| *byte == b'\n').expect("a bulk") + 1;
        let again = &dumped[from..dumped.len() - 2];
        assert_eq!(ask(&store, &[b"RESTORE", b"k", b"0", again, b"REPLACE"]), b"+OK\r\n", "{name}");
        assert_eq!(in_any_order(&ask(&store, &read_words(read))), in_any_order(&ours), "{name}");
    }
    let far = ask(&store, &[b"HPEXPIRETIME", b"k", b"FIELDS", b"2", b"f", b"g"]);
    assert_eq!(far, b"*2\r\n:-1\r\n:-1\r\n");
}

/// Every type, cut off at each byte, and with each byte changed: the restored value is readable, or nothing is changed.
#[test]
fn what_is_damaged_is_refused_or_is_a_value() {
    let store = Store::new(StoreOptions::default());
    let mut random = Random(11);
    let (mut refused, mut restored) = (0, 0);
    let mut check = |object: &[u8], version: u16, read: &str| {
        ask(&store, &[b"SET", b"k", b"before"]);
        let payload = sealed(object, version);
        let (reply, peak) = peak_of(|| ask(&store, &[b"RESTORE", b"k", b"0", &payload, b"REPLACE"]));
        // Announced lengths reserve nothing: compression expands at most 88 times, in two copies at once.
        assert!(peak <= 64 * 1024 + 4 * 88 * payload.len(), "{peak} bytes for {}", payload.len());
        if reply == b"-ERR Bad data format\r\n" {
            refused += 1;
            assert_eq!(ask(&store, &[b"GET", b"k"]), b"$6\r\nbefore\r\n");
        } else {
            assert_eq!(reply, b"+OK\r\n", "{}", reply.escape_ascii());
            restored += 1;
            let value = ask(&store, &read_words(read));
            // The changed payload may have another type.
            assert!(value[0] != b'-' || value.starts_with(b"-WRONGTYPE"), "{}", value.escape_ascii());
            let dumped = ask(&store, &[b"DUMP", b"k"]);
            assert!(dumped.starts_with(b"$"), "{}", dumped.escape_ascii());
        }
        assert_eq!(ask(&store, &[b"DBSIZE"]), b":1\r\n");
    };
    for Case { object, read, version, .. } in cases() {
        for len in 0..object.len() {
            check(&object[..len], version, read);
        }
        for at in 0..object.len() {
            for change in [0x01, 0x80, 0xff, 1 + random.below(255) as u8] {
                let mut changed = object.clone();
                changed[at] ^= change;
                check(&changed, version, read);
            }
        }
        for _ in 0..200 {
            let mut changed = object.clone();
            for _ in 0..1 + random.below(4) {
                let (at, byte) = (random.below(changed.len() + 1), random.below(256) as u8);
                match random.below(3) {
                    0 => changed.insert(at, byte),
                    1 if at < changed.len() => drop(changed.remove(at)),
                    _ => changed.get_mut(at).into_iter().for_each(|old| *old = byte),
                }
            }
            check(&changed, version, read);
        }
    }
    assert!(refused > 1_000 && restored > 100, "{refused} refused, {restored} restored");
}

/// Duplicate members, incomplete pairs and invalid scores are refused by this store in every form.
#[test]
fn what_contradicts_itself_is_refused() {
    let store = Store::new(StoreOptions::default());
    let one = |kind: u8, block: &[u8]| [vec![kind], long(block)].concat();
    for object in [
        one(12, &ziplist(&[b"a", b"1", b"a", b"2"])),
        one(12, &ziplist(&[b"a", b"1", b"b"])),
        one(12, &ziplist(&[b"a", b"nan"])),
        one(12, &ziplist(&[b"a", b"x"])),
        one(12, &ziplist(&[])),
        one(13, &ziplist(&[b"f", b"v", b"f", b"w"])),
        one(13, &ziplist(&[b"f"])),
        one(13, &ziplist(&[])),
        one(9, b"\x02\x01f\x01\0v\x01f\x01\0w\xff"),
        one(9, b"\0\xff"),
        one(10, &ziplist(&[])),
        vec![1, 0],
        vec![14, 0],
        vec![18, 0],
        one(17, &listpack(&[b"a", b"1", b"a", b"2"])),
        one(16, &listpack(&[b"f", b"v", b"f"])),
        one(20, &listpack(&[b"x", b"x"])),
        vec![15, 0],
        vec![19, 0],
        vec![21, 0],
        vec![22, 0],
        vec![23, 0],
        vec![7, 0],
    ] {
        let payload = sealed(&object, 12);
        assert_eq!(ask(&store, &[b"RESTORE", b"k", b"0", &payload]), b"-ERR Bad data format\r\n", "{object:?}");
    }
    assert_eq!(ask(&store, &[b"DBSIZE"]), b":0\r\n");
}

#[test]
fn generated_payloads_never_panic() {
    let mut random = Random(23);
    let cases = cases();
    for _ in 0..3_000 {
        let case = &cases[random.below(cases.len())];
        // Without the type, because the target tries all types.
        let mut data = case.object[1..].to_vec();
        for _ in 0..random.below(4) {
            let (at, byte) = (random.below(data.len() + 1), random.below(256) as u8);
            data.get_mut(at).into_iter().for_each(|old| *old = byte);
        }
        sluicegate_data::rdb::fuzz_restore(&data);
    }
}
