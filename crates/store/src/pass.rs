//! The pass of a [snapshot](crate::snapshot): threads that go through the stripes of a cut and hand over its keys as chunks
//! of an RDB file.
//!
//! Each thread takes stripe after stripe and locks it for slices of [`SLICE_BYTES`], so others wait for some tens of
//! microseconds. Checksums are computed, and chunks written, without a lock of the store. Old values that wait in stripes
//! are taken when the pass comes by; if more than half of the budget waits, all stripes that are still to come are asked
//! for theirs first.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_data::rdb::crc64::Sum;
use sluicegate_data::rdb::file::Chunk;

use crate::keyspace::{Db, Keyspace};
use crate::snapshot::{Form, Snapshots};

/// The bytes that a slice under a stripe's lock appends, and the parts of its table that it visits.
const SLICE_BYTES: usize = 32 << 10;
const SLICE_SEGMENTS: usize = 32;
/// A chunk is handed over from this many bytes on.
const CHUNK_BYTES: usize = 1 << 20;

/// Receives the chunks of a pass, in any order.
pub(crate) trait Sink: Send {
    /// Takes a chunk, given what [`Chunk::summed`] returns of it.
    fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()>;
}

/// A pass over the databases of a cut.
pub(crate) struct Pass {
    /// Databases, with the numbers that they had.
    databases: Vec<(u32, Arc<Db>)>,
    snapshots: Arc<Snapshots>,
    /// The form of what is handed over; [`None`] if nothing is.
    form: Option<Form>,
    /// The place in SCAN's order at which each stripe begins.
    places: Vec<u64>,
    /// The next stripe, counted over all databases.
    next: AtomicUsize,
    /// The bytes of old values that may wait in stripes.
    budget: i64,
    /// Locked by the thread that asks for old values.
    asking: Mutex<()>,
    keys: AtomicU64,
    /// The longest time for which a slice had a stripe locked, in microseconds.
    longest_us: AtomicU64,
    /// Whether nothing more is handed over.
    is_given_up: AtomicBool,
    fault: Mutex<Option<io::Error>>,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Keys that were handed over.
    pub(crate) keys: u64,
    /// The longest time for which it had a stripe locked, in microseconds.
    pub(crate) longest_us: u64,
}

impl Pass {
    /// Returns the pass over what [`Keyspace::cut`] returned with this form.
    pub(crate) fn new(keyspace: &Keyspace, databases: Vec<(u32, Arc<Db>)>, form: Option<Form>, budget: u64) -> Pass {
        Pass {
            databases,
            snapshots: keyspace.snapshots.clone(),
            form,
            places: (0..keyspace.stripes()).map(|stripe| keyspace.order_of_stripe(stripe)).collect(),
            next: AtomicUsize::new(0),
            budget: i64::try_from(budget).unwrap_or(i64::MAX),
            asking: Mutex::default(),
            keys: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            is_given_up: AtomicBool::new(form.is_none()),
            fault: Mutex::default(),
        }
    }

    /// Returns the number of keys of each database at this moment, and of those that expire.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.databases.iter().map(|(number, db)| (*number, db.keys(), db.expires()))
    }

    /// Returns the number of keys that were handed over so far.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Hands over nothing more; the threads go on to restore what the next cut needs.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        self.snapshots.discard();
    }

    /// Returns whether nothing more is handed over.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Goes through all stripes, on this thread and on as many others. Every entry has the store's parity afterwards,
    /// even if the sink fails.
    pub(crate) fn run(&self, others: usize, sink: &Mutex<dyn Sink + '_>) -> io::Result<Passed> {
        std::thread::scope(|scope| {
            for _ in 0..others {
                // Without the thread, this one does it all.
                let _ = std::thread::Builder::new().name("store-save".into()).spawn_scoped(scope, || self.work(sink));
            }
            self.work(sink);
        });
        self.snapshots.discard();
        match self.fault.lock().take() {
            Some(fault) => Err(fault),
            None => Ok(Passed { keys: self.keys(), longest_us: self.longest_us.load(Ordering::Relaxed) }),
        }
    }

    /// Returns a stripe that no thread has taken yet.
    fn next(&self) -> Option<(u32, &Db, usize)> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let (number, db) = self.databases.get(next / self.places.len())?;
        Some((*number, db, next % self.places.len()))
    }

    fn work(&self, sink: &Mutex<dyn Sink + '_>) {
        crate::thread::run_behind_others();
        let mut part = self.form.map(Part::new);
        while let Some((number, db, stripe)) = self.next() {
            let mut place = Some(self.places[stripe]);
            while let Some(from) = place {
                part = part.filter(|_| !self.is_given_up());
                if let Some(part) = &mut part {
                    self.ask_all(part, sink);
                    part.begin(number);
                }
                place = self.slice(db, stripe, from, part.as_mut());
                if let Some(part) = &mut part
                    && part.chunk.bytes().len() >= CHUNK_BYTES
                {
                    self.hand_over(part, sink);
                }
            }
        }
        if let Some(mut part) = part.filter(|_| !self.is_given_up()) {
            self.hand_over(&mut part, sink);
        }
    }

    /// Saves a slice of a stripe, and its old values. Returns where the next one begins.
    fn slice(&self, db: &Db, stripe: usize, from: u64, part: Option<&mut Part>) -> Option<u64> {
        let mut keys = 0;
        let start = Instant::now();
        let mut locked = db.lock(stripe);
        let images = locked.take_images();
        let Some(part) = part else {
            let next = locked.save(from, None, (SLICE_BYTES, SLICE_SEGMENTS), &mut keys);
            drop(locked);
            if let Some(images) = images {
                images.discard(&self.snapshots);
            }
            return next;
        };
        let next = locked.save(from, Some((&mut part.chunk, part.form)), (SLICE_BYTES, SLICE_SEGMENTS), &mut keys);
        drop(locked);
        self.longest_us.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        if let Some(images) = images {
            keys += images.write(&self.snapshots, &mut part.chunk);
        }
        self.keys.fetch_add(keys, Ordering::Relaxed);
        next
    }

    /// Takes the old values of all stripes to come, if many wait there.
    fn ask_all(&self, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        if self.snapshots.waiting.load(Ordering::Relaxed) <= self.budget / 2 {
            return;
        }
        let Some(_asking) = self.asking.try_lock() else { return };
        for place in self.next.load(Ordering::Relaxed)..self.databases.len() * self.places.len() {
            let (number, db) = &self.databases[place / self.places.len()];
            let images = db.lock(place % self.places.len()).take_images();
            let Some(images) = images else { continue };
            part.begin(*number);
            self.keys.fetch_add(images.write(&self.snapshots, &mut part.chunk), Ordering::Relaxed);
            if part.chunk.bytes().len() >= CHUNK_BYTES {
                self.hand_over(part, sink);
            }
        }
    }

    fn hand_over(&self, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        let chunk = part.take();
        if chunk.bytes().is_empty() {
            return;
        }
        let summed = chunk.summed();
        let taken = {
            let mut sink = sink.lock();
            match self.is_given_up() {
                true => Ok(()),
                false => sink.take(chunk.bytes(), summed),
            }
        };
        if let Err(fault) = taken {
            self.give_up();
            self.fault.lock().get_or_insert(fault);
        }
    }
}

/// The chunk that a thread is making.
struct Part {
    form: Form,
    chunk: Chunk,
    /// The database of what follows.
    number: Option<u32>,
}

impl Part {
    fn new(form: Form) -> Part {
        Part { form, chunk: Chunk::new(form.settings), number: None }
    }

    /// Lets keys of a database follow.
    fn begin(&mut self, number: u32) {
        if self.number != Some(number) {
            self.chunk.database(u64::from(number));
            self.number = Some(number);
        }
    }

    fn take(&mut self) -> Chunk {
        std::mem::replace(self, Part::new(self.form)).chunk
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluicegate_data::object::limits::Limits;
    use sluicegate_data::rdb::file::{Contents, Event, FileReader, Settings};
    use sluicegate_data::rdb::{dump, restore};

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

    /// Keys by database and name, with their payloads and expiries.
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
                        let twice = contained.insert(place, (dump(&value), key.expiry_ms));
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
                    contained.insert((number, entry.key().to_vec()), (dump(&value), entry.expiry()));
                }
            }
        }
        contained
    }

    fn cut(store: &Store) -> Pass {
        let form = Form { settings: Settings::new(store.clock().now_ms()), accesses: Accesses::Nothing };
        let closed = store.0.gate.close().expect("no ticket exists");
        let databases = store.0.keyspace.cut(&closed, Some(form));
        Pass::new(&store.0.keyspace, databases, Some(form), 1 << 20)
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
            let line = match self.below(30) {
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
                28 if n % 20 == 2 => "FLUSHALL".to_owned(),
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
        for seed in 0..60 {
            let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
            let mut random = Random(seed);
            for _ in 0..3 {
                random.work(&store, 300);
                let pass = cut(&store);
                let expected = contained(&store);
                let sink = Mutex::new(InMemory::default());
                let mut part = Part::new(pass.form.expect("it is saved"));
                while let Some((number, db, stripe)) = pass.next() {
                    let mut place = Some(pass.places[stripe]);
                    while let Some(from) = place {
                        random.work(&store, 20);
                        store.tick();
                        pass.ask_all(&mut part, &sink);
                        part.begin(number);
                        place = pass.slice(db, stripe, from, Some(&mut part));
                    }
                }
                pass.hand_over(&mut part, &sink);
                let found = sink.lock().contained();
                let differs =
                    |(place, value): &(&(u32, Vec<u8>), &(Vec<u8>, Option<i64>))| expected.get(*place) != Some(value);
                let first = found.iter().find(differs).map(|(place, value)| (place, value, expected.get(place)));
                assert!(first.is_none(), "seed {seed}: {first:?} is not as it was");
                assert_eq!(found.len(), expected.len(), "seed {seed}");
                assert_eq!(store.0.keyspace.snapshots.waiting.load(Ordering::Relaxed), 0);
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
        let fault = cut(&store).run(1, &Mutex::new(Full(2))).expect_err("the sink is full");
        assert_eq!(fault.raw_os_error(), Some(libc::ENOSPC));
        assert!(is_at_rest(&store));
        let pass = cut(&store);
        let (expected, sink) = (contained(&store), Mutex::new(InMemory::default()));
        let _ = ask_line(&store, 0, "FLUSHALL");
        assert_eq!(pass.run(1, &sink).expect("memory is written").keys, 3_000);
        assert!(sink.lock().contained() == expected);
        drop(pass);
        while store.0.keyspace.free_discarded(16) {}
        assert_eq!(store.0.keyspace.discarded_keys(), 0);
    }
}
