//! The pass of a [snapshot](crate::snapshot): threads that go through the stripes of a cut and hand over its keys as chunks
//! of an RDB file.
//!
//! Each thread takes stripe after stripe and locks it for slices, in which it copies [`SLICE_BYTES`] of entries, so others
//! wait for some tens of microseconds; serialising, compressing, checksums and writing follow without the lock. The key of
//! a large value is held in shared mode while the value is serialised, and while it is written if it would not fit into
//! half of the budget. A very large list is not: its blocks are shared, under the lock for some of them at a time. Old values that wait in stripes are taken when the
//! pass comes by; if more than half of the budget waits, all stripes that are still to come are asked for theirs first, and
//! beyond the budget clients that write wait.

mod pace;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_data::rdb::crc64::Sum;
use sluicegate_data::rdb::encode::PIECE_BYTES;
use sluicegate_data::rdb::file::{Chunk, KeyHead, Written};
use sluicegate_data::value::Entry;

use crate::Inner;
use crate::hold::HeldKeys;
use crate::keyspace::Db;
use crate::loading::key_delay;
use crate::section::Section;
use crate::snapshot::{Form, Snapshots};
use crate::stripe::Stripe;
use crate::stripe::image::{Copied, Images, Moved, head_of, with_value};
use pace::{Lock, Pacer};
pub(crate) use pace::{Locked, Longest, Manner};

/// The bytes of the entries that a slice under a stripe's lock saves, and the parts of its table that it visits.
const SLICE_BYTES: usize = 32 << 10;
const SLICE_SEGMENTS: usize = 32;
/// A chunk is handed over from this many bytes on.
const CHUNK_BYTES: usize = PIECE_BYTES;
/// The time after which claims, and keys that could not be held, are looked at again.
const AGAIN: Duration = Duration::from_millis(1);

/// Receives the chunks of a pass, in any order.
pub(crate) trait Sink: Send {
    /// Takes a chunk, given what [`Chunk::summed`] returns of it.
    fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()>;
}

/// A pass over the databases of a cut.
pub(crate) struct Pass {
    inner: Arc<Inner>,
    /// Databases, with the numbers that they had.
    databases: Vec<(u32, Arc<Db>)>,
    /// The form of what is handed over; [`None`] if nothing is.
    form: Option<Form>,
    /// The place in SCAN's order at which each stripe begins.
    places: Vec<u64>,
    /// The next stripe, counted over all databases.
    next: AtomicUsize,
    /// Stripes with large unsaved values that others are changing.
    missed: Mutex<Vec<usize>>,
    /// Lists whose blocks are shared, to be written.
    lent: Mutex<Vec<(u32, Moved)>>,
    /// The bytes of old values that may wait in stripes.
    budget: i64,
    manner: Manner,
    /// Locked by the thread that asks for old values.
    asking: Mutex<()>,
    keys: AtomicU64,
    /// Whether its threads make no more pauses for others.
    hurries: AtomicBool,
    longest: Longest,
    /// Whether nothing more is handed over.
    is_given_up: AtomicBool,
    fault: Mutex<Option<io::Error>>,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Keys that were handed over.
    pub(crate) keys: u64,
    pub(crate) longest: Locked,
    /// Whether everything was handed over.
    pub(crate) is_whole: bool,
}

impl Pass {
    /// Returns the pass over what [`Keyspace::cut`](crate::keyspace::Keyspace::cut) returned with this form.
    pub(crate) fn new(
        inner: Arc<Inner>,
        databases: Vec<(u32, Arc<Db>)>,
        form: Option<Form>,
        budget: u64,
        manner: Manner,
    ) -> Pass {
        let keyspace = &inner.keyspace;
        let budget = i64::try_from(budget).unwrap_or(i64::MAX);
        keyspace.snapshots.set_waiting_max(budget);
        Pass {
            databases,
            form,
            places: (0..keyspace.stripes()).map(|stripe| keyspace.order_of_stripe(stripe)).collect(),
            next: AtomicUsize::new(0),
            missed: Mutex::default(),
            lent: Mutex::default(),
            budget,
            manner,
            asking: Mutex::default(),
            keys: AtomicU64::new(0),
            hurries: AtomicBool::new(false),
            longest: Longest::default(),
            is_given_up: AtomicBool::new(form.is_none()),
            fault: Mutex::default(),
            inner,
        }
    }

    fn snapshots(&self) -> &Snapshots {
        &self.inner.keyspace.snapshots
    }

    /// Returns the number of keys of each database at this moment, and of those that expire.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.databases.iter().map(|(number, db)| (*number, db.keys(), db.expires()))
    }

    /// Returns the number of keys that were handed over so far.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Makes no more pauses for others.
    pub(crate) fn hurry(&self) {
        self.hurries.store(true, Ordering::Relaxed);
    }

    /// Hands over nothing more; the threads go on to restore what the next cut needs.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        self.snapshots().discard();
    }

    /// Returns whether nothing more is handed over.
    fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed) || !self.snapshots().is_running()
    }

    /// Goes through all stripes, on as many threads, while this one serves claims. Every entry has the store's parity
    /// afterwards, even if the sink fails.
    pub(crate) fn run(&self, threads: usize, sink: &Mutex<dyn Sink + '_>) -> io::Result<Passed> {
        std::thread::scope(|scope| {
            let work = || {
                // A fault here must not leave keys held, or entries unsaved for the next cut.
                if catch_unwind(AssertUnwindSafe(|| self.work(sink))).is_err() {
                    self.give_up();
                    self.fault.lock().get_or_insert_with(|| io::Error::other("a thread of the save has failed"));
                }
            };
            let start = |_| std::thread::Builder::new().name("store-sweep".into()).spawn_scoped(scope, work);
            let started: Vec<_> = (0..threads).map_while(|number| start(number).ok()).collect();
            let mut part = self.form.map(Part::new);
            while started.iter().any(|thread| !thread.is_finished()) {
                self.serve_claims(&mut part, sink);
                std::thread::park_timeout(AGAIN);
            }
            // What is left after a fault, or if no thread could be started.
            self.work(sink);
            loop {
                self.serve_claims(&mut part, sink);
                let missed = std::mem::take(&mut *self.missed.lock());
                if missed.is_empty() {
                    break;
                }
                std::thread::sleep(AGAIN);
                missed.into_iter().for_each(|place| self.work_on(place, &mut part, sink));
            }
            self.finish_part(part, sink);
        });
        let passed = Passed { keys: self.keys(), longest: self.longest.get(), is_whole: !self.is_given_up() };
        self.snapshots().discard();
        self.fault.lock().take().map_or(Ok(passed), Err)
    }

    fn work(&self, sink: &Mutex<dyn Sink + '_>) {
        let mut part = self.form.map(Part::new);
        let end = self.databases.len() * self.places.len();
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            if place >= end {
                break;
            }
            self.work_on(place, &mut part, sink);
            self.serve_claims(&mut part, sink);
        }
        self.finish_part(part, sink);
    }

    fn finish_part(&self, part: Option<Part>, sink: &Mutex<dyn Sink + '_>) {
        if let Some(mut part) = part.filter(|_| !self.is_given_up()) {
            self.hand_over(&mut part, sink);
        }
    }

    /// Saves a stripe, counted over all databases.
    fn work_on(&self, place: usize, part: &mut Option<Part>, sink: &Mutex<dyn Sink + '_>) {
        let mut from = Some(self.places[place % self.places.len()]);
        while let Some(here) = from {
            if self.is_given_up() {
                *part = None;
            }
            if let Some(part) = part {
                self.ask_all(part, sink);
            }
            from = self.slice(place, here, part, sink);
        }
    }

    /// Saves a slice of a stripe, and its old values. Returns where the next one begins.
    fn slice(&self, place: usize, from: u64, part: &mut Option<Part>, sink: &Mutex<dyn Sink + '_>) -> Option<u64> {
        let (number, db) = &self.databases[place / self.places.len()];
        let stripe = place % self.places.len();
        let mut large = Vec::new();
        let (mut held, mut alone): (Vec<HeldKeys>, Vec<Entry>) = Default::default();
        let pass = self.inner.gate.enter();
        let present = self.inner.keyspace.number_of(&pass, db);
        let mut locked = db.lock(stripe);
        let lock = Lock::begin();
        let images = locked.take_images();
        let limits = (SLICE_BYTES, SLICE_SEGMENTS);
        let next = locked.save(from, part.as_mut().map(|part| &mut part.copied), limits, &mut large);
        for key in large {
            let hash = self.inner.keyspace.hasher.hash(&key);
            match present {
                Some(present) => {
                    match self.inner.hold_unsaved(&pass, &mut locked, (present, stripe as u32), hash, &key) {
                        Some(one) => held.push(one),
                        // It was just named as unsaved, so others are changing it.
                        None => self.missed.lock().push(place),
                    }
                }
                // Nobody else has a database that was flushed.
                None => alone.extend(self.mark(&locked, hash, &key)),
            }
        }
        drop(locked);
        drop(pass);
        lock.end(&self.longest);
        if let Some(part) = part {
            part.begin(*number);
            let keys = part.copied.write(&mut part.chunk);
            self.count(keys, part);
            if !self.manner.pause_max.is_zero() && !self.hurries.load(Ordering::Relaxed) {
                part.pacer.pace(self.manner.pause_max);
            }
        }
        match (images, &mut *part) {
            (Some(images), Some(part)) => self.write_images(*images, *number, part, sink),
            (Some(images), None) => images.note_taken(self.snapshots()),
            (None, _) => {}
        }
        held.into_iter().for_each(|held| self.save_held(held, part, sink));
        self.write_lent(part, sink);
        if let Some(part) = part {
            for entry in alone {
                self.write_entry(&entry, *number, part, sink);
            }
            if part.chunk.bytes().len() >= CHUNK_BYTES {
                self.hand_over(part, sink);
            }
        }
        next
    }

    /// Marks an unsaved entry as saved, and returns it to be written without the lock: its key is held, or nobody else
    /// has its database.
    fn mark(&self, stripe: &Stripe, hash: u64, key: &[u8]) -> Option<Entry> {
        let entry = stripe.unsaved(hash, key)?;
        entry.set_parity(self.snapshots().parity());
        // SAFETY: it is neither changed nor freed nor moved while its key is held; nor in a database that was flushed,
        // which this pass has a count of.
        Some(unsafe { entry.alias() })
    }

    /// Saves the values of keys that the snapshot holds because others want to change them.
    fn serve_claims(&self, part: &mut Option<Part>, sink: &Mutex<dyn Sink + '_>) {
        while let Some(held) = self.snapshots().take_claim() {
            self.save_held(held, part, sink);
        }
        self.write_lent(part, sink);
    }

    /// Releases keys that the snapshot holds alone because others want to change them.
    fn lend_claims(&self) {
        while let Some(held) = self.snapshots().take_claim_alone() {
            self.lend(Section::of_snapshot(&self.inner, held));
        }
    }

    /// Shares the blocks of the list at a key that is held alone, and releases the key.
    fn lend(&self, section: Section) {
        let mut lent = None;
        let mut number_of_cut = None;
        let mut from = Some(0);
        while let Some(here) = from {
            let (db, key) = (section.declared()[0].db, &*section.declared()[0].key);
            let pass = self.inner.gate.enter_with(section.holding());
            from = self.inner.keyspace.db(&pass, db).and_then(|db| {
                number_of_cut = Some(self.databases.iter().find(|(_, of_cut)| std::ptr::eq(&**of_cut, db))?.0);
                let hash = self.inner.keyspace.hasher.hash(key);
                let mut locked = db.lock(self.inner.keyspace.stripe_of(hash));
                let lock = Lock::begin();
                let next = locked.lend(hash, key, here, &mut lent);
                drop(locked);
                lock.end(&self.longest);
                next
            });
        }
        section.finish();
        if let (Some(number), Some(lent)) = (number_of_cut, lent) {
            self.lent.lock().push((number, lent));
        }
    }

    /// Writes lists whose blocks are shared.
    fn write_lent(&self, part: &mut Option<Part>, sink: &Mutex<dyn Sink + '_>) {
        loop {
            let Some((number, lent)) = self.lent.lock().pop() else { break };
            if let Some(part) = part {
                self.write(lent.head(), Written::of(&lent.value), number, part, sink);
            }
        }
    }

    /// Saves the value of a key that is held, or shares it, and releases it.
    fn save_held(&self, held: HeldKeys, part: &mut Option<Part>, sink: &Mutex<dyn Sink + '_>) {
        let is_alone = held.is_alone();
        let section = Section::of_snapshot(&self.inner, held);
        if is_alone {
            return self.lend(section);
        }
        let (db, key) = (section.declared()[0].db, &*section.declared()[0].key);
        let found = {
            let pass = self.inner.gate.enter_with(section.holding());
            self.inner.keyspace.db(&pass, db).and_then(|db| {
                let number = self.databases.iter().find(|(_, of_cut)| std::ptr::eq(&**of_cut, db))?.0;
                let hash = self.inner.keyspace.hasher.hash(key);
                let locked = db.lock(self.inner.keyspace.stripe_of(hash));
                Some((number, self.mark(&locked, hash, key)?))
            })
        };
        let mut pieces = Vec::new();
        if let (Some((number, entry)), Some(part)) = (found, part) {
            let is_kept = entry.outside_bytes() as i64 <= self.budget / 2;
            with_value(&entry, |value| match is_kept && value.bytes() >= CHUNK_BYTES {
                true => pieces = self.pieces_of(head_of(&entry, part.form), value, number, part),
                false => self.write(head_of(&entry, part.form), value, number, part, sink),
            });
        }
        section.finish();
        if !pieces.is_empty() {
            let mut sink = sink.lock();
            pieces.iter().for_each(|piece| self.give(&mut *sink, piece));
        }
    }

    fn write_entry(&self, entry: &Entry, number: u32, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        let head = head_of(entry, part.form);
        with_value(entry, |value| self.write(head, value, number, part, sink));
    }

    /// Returns a key in chunks, so that nobody waits for the disk while it is held.
    fn pieces_of(&self, head: KeyHead<'_>, value: Written<'_>, number: u32, part: &mut Part) -> Vec<Chunk> {
        let (mut pieces, mut rest) = (Vec::new(), Chunk::new(part.form.settings));
        rest.database(number.into());
        let is_written = rest.key_in_pieces(head, value, &mut |piece| {
            pieces.push(piece.clone());
            self.lend_claims();
        });
        self.count(is_written.into(), part);
        pieces.push(rest);
        pieces
    }

    /// Appends a key; one that is larger than a chunk goes to the sink in pieces.
    fn write(&self, head: KeyHead<'_>, value: Written<'_>, number: u32, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        part.begin(number);
        if value.bytes() < CHUNK_BYTES {
            let is_written = part.chunk.key(head, value);
            return self.count(is_written.into(), part);
        }
        // The pieces follow each other in the file.
        let mut sink = sink.lock();
        let chunk = part.take();
        self.give(&mut *sink, &chunk);
        part.begin(number);
        let is_written = part.chunk.key_in_pieces(head, value, &mut |piece| {
            self.give(&mut *sink, piece);
            self.lend_claims();
        });
        self.count(is_written.into(), part);
        let chunk = part.take();
        self.give(&mut *sink, &chunk);
    }

    fn write_images(&self, mut images: Images, number: u32, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        images.note_taken(self.snapshots());
        part.begin(number);
        let keys = images.copied.write(&mut part.chunk);
        self.count(keys, part);
        for moved in images.moved {
            self.write(moved.head(), Written::of(&moved.value), number, part, sink);
        }
    }

    /// Takes the old values of all stripes to come, if many wait there.
    fn ask_all(&self, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        if self.snapshots().waiting() <= self.budget / 2 {
            return;
        }
        let Some(_asking) = self.asking.try_lock() else { return };
        for place in self.next.load(Ordering::Relaxed)..self.databases.len() * self.places.len() {
            let (number, db) = &self.databases[place / self.places.len()];
            let images = db.lock(place % self.places.len()).take_images();
            let Some(images) = images else { continue };
            self.write_images(*images, *number, part, sink);
            if part.chunk.bytes().len() >= CHUNK_BYTES {
                self.hand_over(part, sink);
            }
        }
    }

    fn count(&self, keys: u64, part: &mut Part) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        part.keys += keys;
    }

    fn hand_over(&self, part: &mut Part, sink: &Mutex<dyn Sink + '_>) {
        let delay = key_delay(self.manner.key_delay_us, std::mem::take(&mut part.keys));
        if !part.chunk.bytes().is_empty() {
            let summed = part.chunk.summed();
            let mut sink = sink.lock();
            self.give_summed(&mut *sink, &part.chunk, summed);
            self.sleep(delay);
        }
        part.clear();
    }

    /// Sleeps for so long, unless the pass is given up.
    #[cold]
    fn sleep(&self, mut delay: Duration) {
        while !delay.is_zero() && !self.is_given_up() {
            let step = delay.min(Duration::from_millis(10));
            std::thread::sleep(step);
            delay -= step;
        }
    }

    fn give(&self, sink: &mut (dyn Sink + '_), chunk: &Chunk) {
        self.give_summed(sink, chunk, chunk.summed());
    }

    fn give_summed(&self, sink: &mut (dyn Sink + '_), chunk: &Chunk, summed: (u16, Sum)) {
        if !self.is_given_up()
            && let Err(fault) = sink.take(chunk.bytes(), summed)
        {
            self.give_up();
            self.fault.lock().get_or_insert(fault);
        }
    }
}

/// The chunk that a thread is making.
struct Part {
    form: Form,
    chunk: Chunk,
    /// The keys that were counted since a chunk was handed over.
    keys: u64,
    /// The database of what follows.
    number: Option<u32>,
    copied: Copied,
    pacer: Pacer,
}

impl Part {
    fn new(form: Form) -> Part {
        let (copied, pacer) = (Copied::new(form), Pacer::default());
        Part { form, chunk: Chunk::new(form.settings), keys: 0, number: None, copied, pacer }
    }

    /// Lets keys of a database follow.
    fn begin(&mut self, number: u32) {
        if self.number != Some(number) {
            self.chunk.database(u64::from(number));
            self.number = Some(number);
        }
    }

    /// Removes what was handed over. Its room is used again: the kernel clears what it hands out anew.
    fn clear(&mut self) {
        self.number = None;
        self.chunk.clear();
    }

    fn take(&mut self) -> Chunk {
        self.number = None;
        std::mem::replace(&mut self.chunk, Chunk::new(self.form.settings))
    }
}

#[cfg(test)]
mod tests;
