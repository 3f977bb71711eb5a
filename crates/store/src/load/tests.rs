//! Files made by the writer, and by hand, loaded into stores.

use std::io::Read;
use std::sync::Mutex;
use std::task::Poll;

use sluicegate_data::clock::{TICKS_PER_S, idle_ticks, ticks_of_ms};
use sluicegate_data::object::elements::TIMELESS;
use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::list::End;
use sluicegate_data::object::{Kind, List, Set, Zset};
use sluicegate_data::random::{damage, numbers};
use sluicegate_data::rdb;
use sluicegate_data::rdb::file::{Chunk, Contents, KeyHead, Settings, Usage, Written};
use sluicegate_data::value::Value;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use super::*;
use crate::command::asked::{ask, ask_line};
use crate::{Clock, ManualClock, Policy, StoreOptions};

const NOW_MS: i64 = 1_700_000_000_000;

fn store_with(policy: Policy) -> Store {
    let clock = Clock::Manual(ManualClock::new(NOW_MS));
    let store = Store::new(StoreOptions { stripes: 8, clock, ..StoreOptions::default() });
    store.limit_memory(0, policy);
    store
}

fn store() -> Store {
    store_with(Policy::NoEviction)
}

/// Returns a file of version 10 with this content.
fn file(fill: impl FnOnce(&mut Chunk)) -> Vec<u8> {
    let mut chunk = Chunk::new(Settings::new(NOW_MS));
    fill(&mut chunk);
    let mut contents = Contents::default();
    contents.add(chunk.summed());
    let magic = contents.magic();
    [&magic[..], chunk.bytes(), &contents.tail(magic, true)].concat()
}

fn named(name: &[u8]) -> KeyHead<'_> {
    KeyHead { name, ..KeyHead::default() }
}

/// Returns small and large values of all types.
fn values() -> Vec<Value<'static>> {
    let limits = Limits::new();
    let mut values = vec![Value::Int(-5), Value::of(b"short"), Value::of(&[b'x'; 300]), Value::of(&[b'y'; 9_000])];
    for len in [3, 400] {
        let (mut list, mut ints, mut set, mut zset) = (List::empty(), Set::empty(), Set::empty(), Zset::empty());
        for number in 0..len {
            let text = format!("element {number}");
            list.push(End::Tail, text.as_bytes(), &limits);
            ints.add(number.to_string().as_bytes(), TIMELESS, &limits);
            set.add(text.as_bytes(), TIMELESS, &limits);
            zset.set(text.as_bytes(), f64::from(number), &limits);
        }
        values
            .extend([list.into_object(), ints.into_object(), set.into_object(), zset.into_object()].map(Value::Object));
    }
    values
}

/// What is known of a key: payload, expiry, idle seconds, counter, whether it is never evicted.
type Known = (Vec<u8>, Option<i64>, i64, u8, bool);

fn known(store: &Store, db: u32, key: &[u8]) -> Option<Known> {
    let inner = &store.0;
    let pass = inner.gate.enter();
    let hash = inner.keyspace.hasher.hash(key);
    let stripe = inner.keyspace.db(&pass, db)?.lock(inner.keyspace.stripe_of(hash));
    let entry = stripe.table.entry(stripe.table.find(hash, key)?);
    let idle_s = i64::from(idle_ticks(ticks_of_ms(NOW_MS), entry.access())) / TICKS_PER_S;
    Some((rdb::dump(&entry.copy_value()), entry.expiry(), idle_s, entry.counter(), entry.sticky()))
}

/// Returns the text of the fault with which a file is refused.
#[track_caller]
fn fault(file: &[u8]) -> String {
    let (store, fault) = (store(), |store: &Store| store.load(file, None, LoadOptions::default()));
    let text = fault(&store).expect_err("a wrong file").to_string();
    assert!(!store.is_loading());
    text
}

#[test]
fn every_key_arrives_with_what_belongs_to_it() {
    let values = values();
    fn head(index: usize, name: &[u8]) -> KeyHead<'_> {
        KeyHead {
            name,
            expiry_ms: index.is_multiple_of(2).then_some(NOW_MS + 5_000),
            usage: [Usage::Unknown, Usage::IdleS(70_000), Usage::Frequency(9)][index % 3],
            is_sticky: index % 5 == 1,
        }
    }
    // Some batches, and databases in turn.
    const KEYS: usize = 40_000;
    let file = file(|chunk| {
        for index in 0..KEYS {
            if index % 1_000 == 0 {
                chunk.database(index as u64 / 1_000 % 3);
            }
            let value = if index % 50 == 0 { &values[index / 50 % values.len()] } else { &Value::of(b"plain") };
            assert!(chunk.key(head(index, format!("key {index}").as_bytes()), Written::of(value)));
        }
    });
    for (policy, threads) in [(Policy::NoEviction, 1), (Policy::AllkeysLru, 3), (Policy::AllkeysLfu, 2)] {
        let store = store_with(policy);
        let load = store.begin_load(Some(file.len() as u64)).expect("no other load");
        let loaded = load.run_on(threads, &file[..], LoadOptions::default()).expect("a file of our own").0;
        drop(load);
        assert_eq!((loaded.keys, loaded.expired, loaded.empty), (KEYS as u64, 0, 0));
        assert_eq!(store.keys(), KEYS as u64);
        assert_eq!(store.changes(), 0, "nothing needs to be saved");
        assert_eq!(store.0.loading.loaded_bytes.load(Ordering::SeqCst), file.len() as u64);
        for index in 0..KEYS {
            let name = format!("key {index}");
            let expected = head(index, name.as_bytes());
            let value = if index % 50 == 0 { &values[index / 50 % values.len()] } else { &Value::of(b"plain") };
            let (payload, expiry, idle_s, counter, sticky) =
                known(&store, index as u32 / 1_000 % 3, name.as_bytes()).expect("it was loaded");
            // A large set has an order of its own.
            let is_large_set =
                matches!(value, Value::Object(object) if object.len() > 3 && object.type_name() == "set");
            let expected_payload = rdb::dump(value);
            match is_large_set {
                true => assert_eq!(payload.len(), expected_payload.len(), "{name}"),
                false => assert!(payload == expected_payload, "{name}"),
            }
            assert_eq!((expiry, sticky), (expected.expiry_ms, expected.is_sticky), "{name}");
            let usage = match (policy.is_lfu(), expected.usage) {
                (true, Usage::Frequency(frequency)) => (0, frequency),
                (false, Usage::IdleS(idle_s)) => (idle_s as i64, 5),
                _ => (0, 5),
            };
            assert_eq!((idle_s, counter), usage, "{name}");
        }
    }
}

#[test]
fn keys_that_have_expired_are_dropped_unless_they_are_wanted() {
    let file = file(|chunk| {
        chunk.database(0);
        for (index, after_ms) in [-1_000, -1, 0, 1].into_iter().enumerate() {
            let head = KeyHead { expiry_ms: Some(NOW_MS + after_ms), ..named(b"abcd") };
            assert!(chunk.key(KeyHead { name: &head.name[index..=index], ..head }, Written::of(&Value::Int(1))));
        }
    });
    for (keeps_expired, keys, expired) in [(false, 2, 2), (true, 4, 0)] {
        let store = store();
        let loaded = store.load(&file[..], None, LoadOptions { keeps_expired, ..LoadOptions::default() });
        let loaded = loaded.expect("a file of our own");
        assert_eq!((loaded.keys, loaded.expired, store.keys()), (keys, expired, keys));
    }
}

#[test]
fn the_removal_of_expired_keys_continues_the_history_of_the_file() {
    let id = "0123456789abcdef0123456789abcdef01234567";
    let file = |has_history: bool| {
        file(|chunk| {
            if has_history {
                chunk.aux(b"repl-id", id.as_bytes());
                chunk.aux(b"repl-offset", b"1000");
            }
            chunk.database(2);
            for (index, after_ms) in [-1_000, -1, 1].into_iter().enumerate() {
                let head = KeyHead { expiry_ms: Some(NOW_MS + after_ms), ..named(b"abc") };
                assert!(chunk.key(KeyHead { name: &head.name[index..=index], ..head }, Written::of(&Value::Int(1))));
            }
        })
    };
    let removals = "*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n*2\r\n$3\r\nDEL\r\n$1\r\na\r\n*2\r\n$3\r\nDEL\r\n$1\r\nb\r\n";
    for has_history in [true, false] {
        let store = store();
        let replication = &store.0.replication;
        replication.begin_load();
        let options = LoadOptions { tells_replicas: true, ..LoadOptions::default() };
        let loaded = store.load(&file(has_history)[..], None, options).expect("a file of our own");
        assert_eq!(replication.offset(), removals.len() as u64);
        match loaded.moment {
            Some(moment) => store.0.resume(moment),
            None => replication.begin_anew(),
        }
        let told = replication.told();
        let second = told.second.map(|(id, end)| (id.to_string(), end));
        assert_eq!(second, has_history.then(|| (id.to_owned(), 1001)));
        assert_eq!(told.offset, if has_history { 1000 + removals.len() as u64 } else { 0 });
        assert_eq!(told.has_backlog, has_history);
        if has_history {
            assert_eq!((told.backlog_first, told.backlog_len), (1001, removals.len() as u64));
            assert_eq!(replication.stream_from(1000), removals.as_bytes());
        }
    }
}

#[test]
fn what_a_file_tells_of_itself_is_logged_as_redis_does() {
    let lines = Mutex::new(Vec::new());
    let log = |level: u8, text: &str| lines.lock().expect("not poisoned").push((level, text.to_owned()));
    let mut file = file(|chunk| {
        for (name, value) in [
            ("redis-ver", "7.2.4"),
            ("redis-bits", "64"),
            ("ctime", "1699999990"),
            ("used-mem", "1572864"),
            ("aof-base", "0"),
            ("%note", "hello"),
            ("unknown", "x"),
        ] {
            chunk.aux(name.as_bytes(), value.as_bytes());
        }
    });
    let tail = file.split_off(file.len() - 9);
    // A list without elements.
    file.extend(b"\xfe\0\x01\x01e\0");
    file.extend([tail[0], 0, 0, 0, 0, 0, 0, 0, 0]);
    let loaded = store().load(&file[..], None, LoadOptions { log: &log, ..LoadOptions::default() });
    assert_eq!(loaded.expect("a right file").empty, 1);
    let lines = lines.into_inner().expect("not poisoned");
    let lines: Vec<(u8, &str)> = lines.iter().map(|(level, text)| (*level, text.as_str())).collect();
    assert_eq!(
        lines,
        [
            (2, "Loading RDB produced by version 7.2.4"),
            (2, "RDB age 10 seconds"),
            (2, "RDB memory usage when created 1.50 Mb"),
            (2, "RDB 'note': hello"),
            (0, "Unrecognized RDB AUX field: 'unknown'"),
            (2, "rdbLoadObject skipping empty key: e"),
        ]
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let twice = file(|chunk| {
        chunk.database(2);
        assert!(chunk.key(named(b"a b\n"), Written::of(&Value::Int(1))));
        assert!(chunk.key(named(b"a b\n"), Written::of(&Value::Int(2))));
    });
    assert_eq!(fault(&twice), "RDB has duplicated key 'a b\\n' in DB 2 (offset 27)");
    let many = file(|chunk| chunk.database(16));
    assert_eq!(
        fault(&many),
        "FATAL: Data file was created with a Redis server configured to handle more than 16 databases. Exiting (offset \
         9)"
    );
    assert_eq!(
        fault(b"REDIS0010\xf7\x81\0\0\0\0\0\0\0\0\x02\x01\0\xff"),
        "The RDB file contains AUX module data I can't load: no matching module 'AAAAAAAAA' (offset 9)"
    );
    let library = |codes: &[&str]| file(|chunk| codes.iter().for_each(|code| chunk.library(code.as_bytes())));
    let good = "#!lua name=a\nredis.register_function('f', function() return 1 end)";
    assert_eq!(fault(&library(&[good, good])), "Failed loading library, Library 'a' already exists (offset 147)");
    assert_eq!(fault(&library(&["x"])), "Failed loading library, Missing library metadata (offset 12)");
    let empty = fault(&library(&["#!lua name=a\nreturn 1"]));
    assert_eq!(empty, "Failed loading library, No functions registered (offset 32)");
    let mut changed = file(|chunk| chunk.aux(b"a", b"b"));
    changed[13] ^= 1;
    assert!(fault(&changed).starts_with("Wrong RDB checksum expected: ("), "{}", fault(&changed));
    let unchecked = LoadOptions { checks: false, ..LoadOptions::default() };
    assert!(store().load(&changed[..], None, unchecked).is_ok());
    assert_eq!(
        fault(b"REDIS0010\0\x01k"),
        "Short read or OOM loading DB. Unrecoverable error, aborting now. (offset 12, key 'k')"
    );
}

#[test]
fn the_first_fault_of_a_file_is_told_whoever_finds_it() {
    // One value is wrong near the start of many batches, and the file ends too early.
    let mut good = file(|chunk| {
        chunk.database(0);
        (0..200_000).for_each(|number| {
            assert!(chunk.key(named(format!("k{number}").as_bytes()), Written::of(&Value::Int(number))));
        });
    });
    good.truncate(good.len() - 9);
    let at = 11 + 2_000;
    let wrong = b"\x02\x05wrong\x02\x01x\x01x";
    // Between two keys.
    let split = (at..).find(|at| good[*at..].starts_with(b"\0\x04k")).expect("a key");
    let bad = [&good[..split], wrong, &good[split..]].concat();
    for threads in [1, 2, 4] {
        let store = store();
        let load = store.begin_load(None).expect("no other load");
        let fault = load.run_on(threads, &bad[..], LoadOptions::default()).map(drop);
        let fault = fault.expect_err("a wrong value").to_string();
        let place = split + wrong.len();
        assert_eq!(fault, format!("Duplicate set members detected (offset {place}, key 'wrong')"));
    }
}

#[test]
fn libraries_are_loaded_and_run() {
    let file = file(|chunk| chunk.library(b"#!lua name=a\nredis.register_function('f', function() return 7 end)"));
    let store = store();
    store.load(&file[..], None, LoadOptions::default()).expect("a right library");
    assert_eq!(ask_line(&store, 0, "FCALL f 0").unwrap(), ":7\r\n");
    assert!(store.load(&file[..], None, LoadOptions::default()).is_err());
    let replaces = LoadOptions { existing: Existing::Replace, ..LoadOptions::default() };
    assert!(store.load(&file[..], None, replaces).is_ok());
}

#[test]
fn a_key_that_exists_is_refused_or_replaced() {
    let file = file(|chunk| {
        chunk.database(0);
        for number in 0..50_000 {
            assert!(chunk.key(named(format!("k{}", number % 100).as_bytes()), Written::of(&Value::Int(number))));
        }
    });
    let store = store();
    assert_eq!(ask_line(&store, 0, "RPUSH k5 x").unwrap(), ":1\r\n");
    assert_eq!(ask_line(&store, 0, "SET other y").unwrap(), "+OK\r\n");
    assert!(matches!(store.load(&file[..], None, LoadOptions::default()), Err(LoadFault::Duplicate { .. })));
    let replaces = LoadOptions { existing: Existing::Replace, ..LoadOptions::default() };
    let loaded = store.load(&file[..], None, replaces).expect("a file of our own");
    assert_eq!((loaded.keys, store.keys()), (50_000, 101));
    // Of several, the last one counts.
    assert_eq!(ask_line(&store, 0, "GET k5").unwrap(), "$5\r\n49905\r\n");
}

#[test]
fn a_client_that_waits_for_a_key_is_served_after_the_load() {
    let mut list = List::empty();
    list.push(End::Tail, b"x", &Limits::new());
    let file = file(|chunk| {
        chunk.database(0);
        assert!(chunk.key(named(b"l"), Written::of(&Value::Object(list.into_object()))));
    });
    let store = store();
    let mut waits = ask(&store, &["BLPOP", "l", "0"]).expect_err("there is no list");
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::Pin::new(&mut waits).poll(&mut context).is_pending());
    store.load(&file[..], None, LoadOptions::default()).expect("a file of our own");
    let Poll::Ready(reply) = std::pin::Pin::new(&mut waits).poll(&mut context) else { panic!("nobody serves it") };
    assert_eq!(reply, b"*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
}

#[test]
fn one_load_at_a_time_and_rules_are_refused_meanwhile() {
    let store = store();
    let load = store.begin_load(None).expect("no other load");
    assert!(store.begin_load(None).is_none());
    assert!(matches!(store.load(&b""[..], None, LoadOptions::default()), Err(LoadFault::Busy)));
    let get = |words: &[&[u8]]| match store.start(0, words) {
        Started::Done(reply) => reply,
        Started::Pending(_) => panic!("it waits"),
    };
    let refusal = Reply::Error("LOADING Redis is loading the dataset in memory".into());
    for words in [&[&b"GET"[..], b"k"][..], &[b"PING"], &[b"EVAL", b"return 1", b"0"], &[b"FLUSHALL"]] {
        assert_eq!(get(words), refusal);
    }
    assert!(store.together(&String::new, 0, &[&[b"SET", b"k", b"v"]]).is_none());
    drop(load);
    assert!(!store.is_loading());
    assert_eq!(get(&[b"GET", b"k"]), Reply::Null);
}

#[test]
fn nothing_is_removed_during_a_load() {
    let file = file(|chunk| {
        chunk.database(0);
        for number in 0..100 {
            let head = KeyHead { expiry_ms: Some(NOW_MS + 1), ..named(b"") };
            let name = format!("k{number}");
            assert!(chunk.key(KeyHead { name: name.as_bytes(), ..head }, Written::of(&Value::of(&[b'x'; 5_000]))));
        }
    });
    let hand = ManualClock::new(NOW_MS);
    let clock = Clock::Manual(hand.clone());
    let store = Store::new(StoreOptions { stripes: 8, clock, ..StoreOptions::default() });
    store.limit_memory(1, Policy::AllkeysRandom);
    let load = store.begin_load(None).expect("no other load");
    load.run_on(2, &file[..], LoadOptions::default()).expect("a file of our own");
    hand.advance(10);
    store.tick();
    assert_eq!(store.keys(), 100);
    drop(load);
    store.tick();
    assert_eq!(store.keys(), 0);
}

/// A source that fails.
struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::from_raw_os_error(libc::EIO))
    }
}

#[test]
fn a_file_that_is_cut_off_changed_or_unreadable_is_refused() {
    let values = values();
    let good = file(|chunk| {
        chunk.aux(b"redis-ver", b"7.2.4");
        chunk.library(b"#!lua name=a\nredis.register_function('f', function() return 7 end)");
        chunk.database(0);
        for index in [0, 1, 4, 5, 6, 7] {
            let name = format!("key {index}");
            assert!(chunk.key(named(name.as_bytes()), Written::of(&values[index])));
        }
    });
    assert!(store().load(&good[..], None, LoadOptions::default()).is_ok());
    for len in 0..good.len() {
        let short = fault(&good[..len]);
        assert!(short.starts_with("Short read or OOM loading DB."), "{len}: {short}");
    }
    for at in 9..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(!fault(&bad).is_empty(), "{at}");
    }
    let unreadable = store().load((&good[..50]).chain(Failing), None, LoadOptions::default());
    let text = unreadable.expect_err("it cannot be read").to_string();
    assert!(text.starts_with("I/O error trying to load DB: Input/output error"), "{text}");
}

#[test]
fn fuzz_load_holds() {
    let mut next = numbers(5);
    let values = values();
    let good = file(|chunk| {
        chunk.database(0);
        for index in [0, 1, 4, 5, 6, 7] {
            assert!(chunk.key(named(&[b'k', index as u8]), Written::of(&values[index])));
        }
        chunk.database(3);
        assert!(chunk.key(named(b"k"), Written::of(&values[1])));
    });
    for _ in 0..300 {
        let mut data = good[if next(3) == 0 { 0 } else { 9 }..].to_vec();
        data.truncate(next(data.len() + 1).max(next(data.len() + 1)));
        let times = next(4);
        damage(&mut data, times, &mut next);
        fuzz_load(&data);
    }
}

/// Returns a ziplist of short texts.
fn ziplist(texts: &[&str]) -> Vec<u8> {
    let (mut entries, mut before, mut tail) = (Vec::new(), 0, 10);
    for text in texts {
        tail = 10 + entries.len();
        entries.extend([before, text.len() as u8]);
        entries.extend(text.as_bytes());
        before = text.len() as u8 + 2;
    }
    let len = 11 + entries.len() as u32;
    let head = [&len.to_le_bytes()[..], &(tail as u32).to_le_bytes(), &(texts.len() as u16).to_le_bytes()].concat();
    [&head[..], &entries, &[0xff]].concat()
}

#[test]
fn files_of_older_versions_are_loaded() {
    let string = |bytes: &[u8]| [&[bytes.len() as u8][..], bytes].concat();
    let mut stream = sluicegate_data::object::Stream::empty();
    let id = sluicegate_data::object::stream::StreamId { ms: 7, seq: 1 };
    stream.add(id, &[b"field", b"value"], &Limits::new());
    let stream = rdb::dump(&Value::Object(stream.into_object()));
    // As Redis 5 wrote it: without the first ID, the highest deleted one and the number of entries ever added.
    let (stream, last) = (&stream[1..stream.len() - 10 - 6], stream[stream.len() - 11]);
    let object = |kind: u8, name: &str, object: &[u8]| [&[kind][..], &string(name.as_bytes()), object].concat();
    let keys = [
        b"\xfe\0\xfd\xff\xff\xff\x7f".to_vec(),
        object(0, "expires", b"\x01v"),
        object(0, "int", b"\xc1\x39\x30"),
        object(1, "list", b"\x02\x01a\x01b"),
        object(2, "set", b"\x01\x01m"),
        object(3, "zset", b"\x02\x01m\x031.5\x01n\xff"),
        object(4, "hash", b"\x01\x01f\x01v"),
        object(9, "zipmap", &string(b"\x02\x01f\x01\0v\x01g\x02\x01wx.\xff")),
        object(10, "list:ziplist", &string(&ziplist(&["a", "bc"]))),
        object(11, "intset", &string(b"\x02\0\0\0\x02\0\0\0\x05\0\x09\0")),
        object(12, "zset:ziplist", &string(&ziplist(&["m", "1", "n", "2.5"]))),
        object(13, "hash:ziplist", &string(&ziplist(&["f", "v", "g", "w"]))),
        object(14, "quicklist", &[&[2][..], &string(&ziplist(&["a"])), &string(&ziplist(&["b", "c"]))].concat()),
        object(15, "stream", &[stream, &[last]].concat()),
    ]
    .concat();
    for version in 1..=12 {
        // Checksums came with version 5, and none is one that is not compared.
        let sum: &[u8] = if version < 5 { b"" } else { &[0; 8] };
        let file = [format!("REDIS{version:04}").as_bytes(), &keys, &[0xff], sum].concat();
        let store = store();
        let loaded = store.load(&file[..], None, LoadOptions::default()).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(loaded.keys, 13);
        for (line, expected) in [
            ("PEXPIRETIME expires", ":2147483647000\r\n"),
            ("GET int", "$5\r\n12345\r\n"),
            ("LRANGE list 0 -1", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
            ("SMEMBERS set", "*1\r\n$1\r\nm\r\n"),
            ("ZRANGE zset 0 -1 WITHSCORES", "*4\r\n$1\r\nn\r\n$4\r\n-inf\r\n$1\r\nm\r\n$3\r\n1.5\r\n"),
            ("HGETALL hash", "*2\r\n$1\r\nf\r\n$1\r\nv\r\n"),
            ("HGETALL zipmap", "*4\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$2\r\nwx\r\n"),
            ("LRANGE list:ziplist 0 -1", "*2\r\n$1\r\na\r\n$2\r\nbc\r\n"),
            ("SMISMEMBER intset 5 9 7", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("ZSCORE zset:ziplist n", "$3\r\n2.5\r\n"),
            ("HGET hash:ziplist g", "$1\r\nw\r\n"),
            ("LRANGE quicklist 0 -1", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
            ("XRANGE stream - +", "*1\r\n*2\r\n$3\r\n7-1\r\n*2\r\n$5\r\nfield\r\n$5\r\nvalue\r\n"),
        ] {
            assert_eq!(ask_line(&store, 0, line).expect("no wait"), expected, "{version}: {line}");
        }
    }
}
