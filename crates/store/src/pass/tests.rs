use std::collections::BTreeMap;
use std::future::Future;

use sluicegate_data::object::Object;
use sluicegate_data::object::limits::Limits;
use sluicegate_data::rdb::file::{Contents, Event, FileReader, Settings};
use sluicegate_data::rdb::{dump, restore};
use sluicegate_data::value::Value;

use super::*;
use crate::command::asked::ask_line;
use crate::snapshot::Accesses;
use crate::{Store, StoreOptions};

/// A file in memory.
#[derive(Default)]
struct InMemory {
    bytes: Vec<u8>,
    contents: Contents,
}

impl Sink for InMemory {
    fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        self.contents.add(summed);
        Ok(())
    }
}

/// Returns a value in a form that does not depend on the order of its elements.
fn canonical(value: &Value<'_>) -> Vec<u8> {
    let mut elements = Vec::new();
    match value {
        Value::Object(Object::Hash(hash)) => hash.each_timed(i64::MIN, |field, value, expiry| {
            elements.push(format!("{field:?} {value:?} {expiry:?}"));
        }),
        Value::Object(Object::Set(set)) => set.each(i64::MIN, |member| {
            let name = member.text(&mut itoa::Buffer::new()).to_vec();
            elements.push(format!("{name:?} {:?}", set.expiry_of(&name, i64::MIN)));
        }),
        value => return dump(value),
    }
    elements.sort_unstable();
    elements.concat().into_bytes()
}

/// Keys by database and name, with their values and expiries.
type Contained = BTreeMap<(u32, Vec<u8>), (Vec<u8>, Option<i64>)>;

impl InMemory {
    /// Returns the keys of the file; no key is twice in it.
    fn contained(&self) -> Contained {
        let magic = self.contents.magic();
        let file = [&magic[..], &self.bytes, &self.contents.tail(magic, true)].concat();
        let mut reader = FileReader::new(&file[..]).expect("it begins like a file");
        let mut contained = Contained::new();
        loop {
            match reader.next().expect("a whole file") {
                Event::Key(key) => {
                    let value = key.decode(&Limits::new()).expect("a value").expect("elements");
                    let place = (key.db as u32, key.name.to_vec());
                    let twice = contained.insert(place, (canonical(&value), key.expiry_ms));
                    assert!(twice.is_none(), "{:?} is twice in the file", String::from_utf8_lossy(key.name));
                }
                Event::End(..) => return contained,
                _ => {}
            }
        }
    }
}

/// Returns the keys of a store.
fn contained(store: &Store) -> Contained {
    let pass = store.0.gate.enter();
    let mut contained = Contained::new();
    for number in 0..store.databases() {
        let Some(db) = store.0.keyspace.db(&pass, number) else { continue };
        for stripe in 0..db.stripes() {
            let locked = db.lock(stripe);
            for entry in locked.table.entries() {
                // A value that is loaded may have a smaller form.
                let value = restore(&dump(&entry.copy_value()), &Limits::new()).expect("a value");
                contained.insert((number, entry.key().to_vec()), (canonical(&value), entry.expiry()));
            }
        }
    }
    contained
}

fn cut(store: &Store) -> Pass {
    let form = Form { settings: Settings::new(store.clock().now_ms()), accesses: Accesses::Nothing };
    let closed = store.0.gate.close().expect("no ticket exists");
    let databases = store.0.keyspace.cut(&closed, Some(form), false);
    Pass::new(store.0.clone(), databases, Some(form), 1 << 20, Manner::default())
}

/// Returns whether every entry has the store's parity.
fn is_at_rest(store: &Store) -> bool {
    let pass = store.0.gate.enter();
    (0..store.databases()).filter_map(|number| store.0.keyspace.db(&pass, number)).all(|db| {
        (0..db.stripes()).all(|stripe| {
            let locked = db.lock(stripe);
            locked.table.entries().all(|entry| !store.0.keyspace.snapshots.misses(entry))
        })
    })
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    /// A command on few keys of few databases.
    fn command(&mut self) -> (u32, String) {
        let (db, n) = (self.below(3) as u32, self.below(1_000_000));
        let key = format!("key:{}", self.below(60));
        let other = format!("key:{}", self.below(60));
        let large = |n: u64| (0..2_500).map(|at| format!("{at} {}", at * n)).collect::<Vec<_>>().join(" ");
        let line = match self.below(33) {
            0..3 => format!("SET {key} {n}"),
            3 => format!("SET {key} {}", "v".repeat(n as usize % 300)),
            4 => format!("SET {key} {} EX 1000", "w".repeat(4000 + n as usize % 300)),
            5 => format!("APPEND {key} {}", "x".repeat(n as usize % 3_000)),
            6 => format!("INCR {key}"),
            7 | 8 => format!("DEL {key} {other}"),
            9 => format!("RENAME {key} {other}"),
            10 => format!("COPY {key} {other} REPLACE"),
            11 => format!("MOVE {key} {}", (db + 1) % 3),
            12 => format!("EXPIRE {key} {}", n % 3),
            13 => format!("PEXPIRE {key} {n}"),
            14 => format!("PERSIST {key}"),
            15 => format!("RPUSH {key} {n} {n} a b c"),
            16 => format!("LPOP {key} 2"),
            17 => format!("SADD {key} {n} {} member", n % 7),
            18 => format!("SADDEX {key} 1000 {n}"),
            19 => format!("SPOP {key}"),
            20 => format!("HSET {key} {n} 1 b {n}"),
            21 => format!("HEXPIRE {key} 100 FIELDS 1 b"),
            22 => format!("HDEL {key} b"),
            23 => format!("ZADD {key} {n} m{}", n % 20),
            24 => format!("ZPOPMIN {key}"),
            25 => format!("XADD {key} * f {n}"),
            26 => format!("SETRANGE {key} 5000 {n}"),
            27 => format!("SUNIONSTORE {key} {key} {other}"),
            28 if n % 20 == 0 => format!("SWAPDB 0 {}", n % 3),
            28 if n % 20 == 1 => "FLUSHDB".to_owned(),
            29 if n % 4 == 0 => format!("HSET {key} {}", large(n)),
            30 if n % 4 == 0 => format!("RPUSH {key} {}", large(n)),
            31 if n % 4 == 0 => format!("ZADD {key} {}", large(n)),
            _ => format!("GETDEL {key}"),
        };
        (db, line)
    }

    fn work(&mut self, store: &Store, commands: u64) {
        for _ in 0..commands {
            let (db, line) = self.command();
            let _ = ask_line(store, db, &line);
        }
    }
}

#[test]
fn a_pass_saves_what_was_there_at_the_cut_whatever_happens_meanwhile() {
    for seed in 0..10 {
        let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
        let mut random = Random(seed);
        for _ in 0..3 {
            random.work(&store, 300);
            let pass = cut(&store);
            let expected = contained(&store);
            let sink = Mutex::new(InMemory::default());
            let mut part = pass.form.map(Part::new);
            for place in 0..pass.databases.len() * pass.places.len() {
                pass.next.store(place + 1, Ordering::Relaxed);
                let mut from = Some(pass.places[place % pass.places.len()]);
                while let Some(here) = from {
                    random.work(&store, 20);
                    store.tick();
                    pass.ask_all(part.as_mut().expect("it is saved"), &sink);
                    if random.below(4) == 0 {
                        pass.serve_claims(&mut part, &sink);
                    }
                    from = pass.slice(place, here, &mut part, &sink);
                }
            }
            pass.serve_claims(&mut part, &sink);
            for place in std::mem::take(&mut *pass.missed.lock()) {
                pass.work_on(place, &mut part, &sink);
            }
            pass.finish_part(part, &sink);
            pass.snapshots().discard();
            let found = sink.lock().contained();
            let first = found.iter().find(|(place, value)| expected.get(place) != Some(value));
            let first = first.map(|(place, value)| (place, value, expected.get(place)));
            assert!(first.is_none(), "seed {seed}: {first:?} is not as it was");
            assert_eq!(found.len(), expected.len(), "seed {seed}");
            assert_eq!(store.0.keyspace.snapshots.waiting(), 0);
            drop(pass);
            assert!(is_at_rest(&store), "seed {seed}");
        }
    }
}

#[test]
fn several_threads_save_while_others_write() {
    let store = Store::new(StoreOptions::default());
    let mut random = Random(7);
    (0..20_000).for_each(|n| drop(ask_line(&store, n % 3, &format!("SET k{n} {n}"))));
    random.work(&store, 2_000);
    for round in 0..4 {
        let pass = cut(&store);
        let expected = contained(&store);
        let sink = Mutex::new(InMemory::default());
        let (passed, stopped) = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|seed| {
                    let store = &store;
                    scope.spawn(move || Random(round * 10 + seed).work(store, 4_000))
                })
                .collect();
            let passed = pass.run(2, &sink);
            (passed, writers.into_iter().all(|writer| writer.join().is_ok()))
        });
        assert!(stopped);
        assert_eq!(passed.expect("memory is written").keys, expected.len() as u64);
        assert!(sink.lock().contained() == expected, "round {round}");
        drop(pass);
        assert!(is_at_rest(&store));
    }
}

#[test]
fn whoever_changes_a_large_value_waits_until_it_is_saved_and_no_longer() {
    let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
    let elements = (0..3_000).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    for key in ["a", "b", "c"] {
        assert_eq!(ask_line(&store, 0, &format!("RPUSH {key} {elements}")).expect("it is free"), ":3000\r\n");
    }
    let (pass, expected, sink) = (cut(&store), contained(&store), Mutex::new(InMemory::default()));
    let waits = ask_line(&store, 0, "RPUSH a x").expect_err("it waits");
    assert_eq!(ask_line(&store, 0, "LLEN a").expect("it is read"), ":3000\r\n");
    // Those that replace or remove a value do not wait for it; nor does anybody for small ones.
    assert_eq!(ask_line(&store, 0, "SET small 1").expect("it is free"), "+OK\r\n");
    let mut section = crate::section::Section::at_once(
        &store.0,
        store.0.ticket_id(),
        [(0, &b"b"[..], crate::Mode::Exclusive)].into_iter(),
    );
    assert!(section.take().is_none(), "the snapshot holds it");
    let mut part = pass.form.map(Part::new);
    pass.serve_claims(&mut part, &sink);
    assert_eq!(String::from_utf8(futures_now(waits)).expect("text"), ":3001\r\n");
    assert_eq!(ask_line(&store, 0, "RPUSH b x").expect("it is saved"), ":3001\r\n");
    pass.finish_part(part, &sink);
    pass.run(1, &sink).expect("memory is written");
    assert!(sink.lock().contained() == expected);
    assert_eq!(store.stats().tickets, 0);
}

#[test]
fn whoever_changes_a_very_large_list_does_not_wait_until_it_is_written() {
    let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
    let elements = (0..3_000).map(|n| format!("element:{n}")).collect::<Vec<_>>().join(" ");
    for key in ["a", "b", "c"] {
        assert_eq!(ask_line(&store, 0, &format!("RPUSH {key} {elements}")).expect("it is free"), ":3000\r\n");
    }
    let (pass, expected, sink) = (cut(&store), contained(&store), Mutex::new(InMemory::default()));
    let waits = ask_line(&store, 0, "RPUSH a x").expect_err("it waits");
    pass.lend_claims();
    assert_eq!(String::from_utf8(futures_now(waits)).expect("text"), ":3001\r\n");
    assert_eq!(ask_line(&store, 0, "LSET a 1000 y").expect("it is free"), "+OK\r\n");
    assert_eq!(ask_line(&store, 0, "LTRIM a 500 1500").expect("it is free"), "+OK\r\n");
    // A list that is read meanwhile is not held alone, and is written before it is changed.
    let reads = crate::section::Section::at_once(
        &store.0,
        store.0.ticket_id(),
        [(0, &b"b"[..], crate::Mode::Shared)].into_iter(),
    );
    let waits = ask_line(&store, 0, "RPUSH b x").expect_err("it waits");
    pass.lend_claims();
    drop(reads);
    let mut part = pass.form.map(Part::new);
    pass.serve_claims(&mut part, &sink);
    assert_eq!(String::from_utf8(futures_now(waits)).expect("text"), ":3001\r\n");
    pass.finish_part(part, &sink);
    pass.run(1, &sink).expect("memory is written");
    assert!(sink.lock().contained() == expected);
    assert_eq!(store.stats().tickets, 0);
}

/// Returns the reply of a command that has run by now.
fn futures_now(parked: crate::Parked) -> Vec<u8> {
    use std::task::{Context, Poll, Waker};
    match std::pin::pin!(parked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply,
        Poll::Pending => panic!("it still waits"),
    }
}

#[test]
fn a_value_larger_than_a_chunk_is_written_in_pieces() {
    struct Bounded(InMemory);
    impl Sink for Bounded {
        fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()> {
            assert!(bytes.len() < 2 * CHUNK_BYTES, "{} bytes at once", bytes.len());
            self.0.take(bytes, summed)
        }
    }
    let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
    let mut random = Random(1);
    for key in ["saved", "moved", "flushed"] {
        let db = u32::from(key == "flushed");
        for n in 0..600 {
            let text: String = (0..8_000).map(|_| char::from(b'!' + random.below(90) as u8)).collect();
            let _ = ask_line(&store, db, &format!("HSET {key} {n} {text}"));
        }
    }
    let (pass, expected, sink) = (cut(&store), contained(&store), Mutex::new(Bounded(InMemory::default())));
    assert_eq!(ask_line(&store, 0, "DEL moved").expect("it is free"), ":1\r\n");
    assert_eq!(ask_line(&store, 1, "FLUSHDB").expect("it is free"), "+OK\r\n");
    pass.run(1, &sink).expect("memory is written");
    assert!(sink.lock().0.contained() == expected);
}

#[test]
fn whoever_changes_a_large_hash_does_not_wait_for_the_disk() {
    /// A disk that takes nothing until the hash can be changed.
    struct Waiting(InMemory, Store);
    impl Sink for Waiting {
        fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()> {
            assert!(ask_line(&self.1, 0, "HSET large new 1").is_ok(), "the key is held");
            self.0.take(bytes, summed)
        }
    }
    let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
    let text = "x".repeat(8_000);
    for n in 0..600 {
        let _ = ask_line(&store, 0, &format!("HSET large {n} {text}"));
    }
    let (mut pass, expected) = (cut(&store), contained(&store));
    pass.budget = 64 << 20;
    let sink = Mutex::new(Waiting(InMemory::default(), store.clone()));
    pass.run(1, &sink).expect("memory is written");
    assert!(sink.lock().0.contained() == expected);
}

#[test]
fn old_values_beyond_the_budget_keep_writers_waiting_until_they_are_taken() {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let text = "x".repeat(10_000);
    (0..200).for_each(|n| drop(ask_line(&store, 0, &format!("SET k{n} {text}"))));
    let loading = &store.0.loading;
    for is_given_up in [false, true] {
        let (pass, sink) = (cut(&store), Mutex::new(InMemory::default()));
        (0..100).for_each(|n| drop(ask_line(&store, 0, &format!("APPEND k{n} y"))));
        assert!(!loading.holds_writes(), "a million bytes wait");
        (100..120).for_each(|n| drop(ask_line(&store, 0, &format!("SET k{n} y"))));
        assert!(loading.holds_writes());
        let mut waits = std::pin::pin!(loading.room());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        match is_given_up {
            true => pass.give_up(),
            false => pass.ask_all(&mut Part::new(pass.form.expect("it is saved")), &sink),
        }
        assert!(waits.as_mut().poll(&mut context).is_ready());
        pass.run(1, &sink).expect("memory is written");
        assert!(!loading.holds_writes());
        (0..200).for_each(|n| drop(ask_line(&store, 0, &format!("SET k{n} {text}"))));
    }
}

#[test]
fn a_flush_of_all_databases_ends_a_pass() {
    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    (0..500).for_each(|n| drop(ask_line(&store, n % 3, &format!("SET k{n} {n}"))));
    let (pass, sink) = (cut(&store), Mutex::new(InMemory::default()));
    assert_eq!(ask_line(&store, 0, "FLUSHALL").expect("it is free"), "+OK\r\n");
    assert_eq!(ask_line(&store, 0, "SET k new").expect("it is free"), "+OK\r\n");
    let passed = pass.run(1, &sink).expect("nothing failed");
    assert_eq!(passed.keys, 0);
    assert!(!passed.is_whole && is_at_rest(&store) && store.0.keyspace.snapshots.take_flushed());
    drop(pass);
    while store.0.keyspace.free_discarded(4) {}
    assert_eq!(store.0.keyspace.discarded_keys(), 0);
}

#[test]
fn after_a_fault_the_next_pass_saves_everything() {
    struct Full(u32);
    impl Sink for Full {
        fn take(&mut self, _: &[u8], _: (u16, Sum)) -> io::Result<()> {
            self.0 -= 1;
            if self.0 == 0 { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
        }
    }
    let store = Store::new(StoreOptions { stripes: 16, ..StoreOptions::default() });
    for n in 0..3_000 {
        let _ = ask_line(&store, 0, &format!("SET k{n} {}", "v".repeat(3_000 + n % 3_000)));
    }
    let fault = cut(&store).run(1, &Mutex::new(Full(1))).expect_err("the sink is full");
    assert_eq!(fault.raw_os_error(), Some(libc::ENOSPC));
    assert!(is_at_rest(&store));
    let pass = cut(&store);
    let (expected, sink) = (contained(&store), Mutex::new(InMemory::default()));
    let _ = ask_line(&store, 0, "FLUSHDB");
    assert_eq!(pass.run(1, &sink).expect("memory is written").keys, 3_000);
    assert!(sink.lock().contained() == expected);
    drop(pass);
    while store.0.keyspace.free_discarded(16) {}
    assert_eq!(store.0.keyspace.discarded_keys(), 0);
}
