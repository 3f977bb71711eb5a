//! The ordered record of changes: what commands did, as commands, in an order in which they lead to the same data set.
//!
//! While a store records, a command that has changed keys puts its effect into a buffer of its thread, under the locks or
//! holds of these keys, with a number that is drawn there. So of two commands on the same key the one that ran first has
//! the lower number. A section puts all its effects at its end, as one [`Unit`] and before its keys are released; keys
//! that expire or are evicted are units of their own. [`Merger`](order::Merger) takes the buffers and returns the units in
//! the order of their numbers, without a gap ([`order`]), and [`Outlets`](outlets::Outlets) passes them on: to the append-only
//! file and to the replication stream. Nobody waits for these.
//!
//! An effect has the form of the append-only file. Most are the words of the command; where these depend on time, chance
//! or who waits, the command [puts others](crate::context::Ctx::record_as) in their place. What only this store knows, such
//! as sticky keys, is an *annotation*, which other servers skip ([`annotation`]).

pub(crate) mod annotation;
mod merge;
mod order;
pub(crate) mod outlets;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_data::value::SHARED_MIN;

use crate::aof::write::{encode, encode_head, encoded_len};
use crate::loading::{Behind, Loading};
use crate::sync;
use crate::thread::thread_number;

use order::{Effects, Order};

/// The bytes of units that may wait before commands that write have to.
const WAITING_MAX: u64 = 64 << 20;

/// The memory of a buffer that is used again.
const KEPT_MAX: usize = 1 << 20;

/// A run of units does not go beyond a multiple of so many bytes; a power of two.
const RUN_BYTES: usize = 64 << 10;

/// The number of buffers; threads share them by their numbers.
const BUFFERS: usize = 16;

thread_local! {
    /// Whether this thread has what it records taken itself, soon: a worker with clients that wait for the disk.
    static COMMITS: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether this thread has what it records taken itself.
pub(crate) fn set_commits(commits: bool) {
    COMMITS.set(commits);
}

/// Records a command.
pub(crate) type RecordWords<'a> = &'a mut dyn FnMut(&[&[u8]]);

/// Returns the command that removes expired elements from a set, or from a hash.
pub(crate) fn removal_of<'w>(key: &'w [u8], is_set: bool, elements: &'w [Box<[u8]>]) -> Vec<&'w [u8]> {
    let name: &[u8] = if is_set { b"SREM" } else { b"HDEL" };
    [name, key].into_iter().chain(elements.iter().map(|element| &element[..])).collect()
}

/// The record of a store.
pub(crate) struct Record {
    /// What changes are recorded for: [`For`]. Changed with the gate closed.
    is_for: AtomicU8,
    order: Order<Unit>,
    /// Wake the threads that take them, if they sleep: that of the append-only file, and that of the replication stream.
    taker: Taker,
    streamer: Taker,
    /// Where it is told that too much waits.
    loading: Arc<Loading>,
}

/// What changes are recorded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum For {
    /// The append-only file.
    File = 1,
    /// Replicas.
    Stream = 2,
}

/// A thread that takes units.
#[derive(Default)]
struct Taker {
    is_asleep: AtomicBool,
    thread: Mutex<Option<std::thread::Thread>>,
}

/// Effects that take place at once.
#[derive(Default, Debug)]
pub(crate) struct Unit {
    effects: Vec<Place>,
    bytes: Vec<u8>,
    /// Long words, each with the position in the bytes where it belongs.
    long: Vec<(usize, Arc<Vec<u8>>)>,
    long_bytes: usize,
}

/// One effect: its database and the ends of its parts.
#[derive(Clone, Copy, Debug)]
struct Place {
    database: u32,
    /// Whether only replicas are told of it.
    is_passing: bool,
    /// Whether it is one command, without long words, or a run of these.
    is_plain: bool,
    bytes_end: usize,
    long_end: usize,
}

/// What is recorded of a command that changes keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Records {
    /// Its words, or what it puts in their place.
    Words,
    /// The values of the changed keys.
    Value,
    /// Its words, or the values if a source may have expired when they are replayed.
    Derived,
}

/// A word of an effect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word<'w> {
    Bytes(&'w [u8]),
    /// A long word that is shared with the value.
    Shared(&'w Arc<Vec<u8>>),
}

impl Word<'_> {
    fn len(&self) -> usize {
        match self {
            Word::Bytes(bytes) => bytes.len(),
            Word::Shared(bytes) => bytes.len(),
        }
    }
}

impl Unit {
    /// Returns a unit of one command.
    pub(crate) fn of(database: u32, words: &[&[u8]]) -> Box<Unit> {
        let mut unit = Box::<Unit>::default();
        unit.add(database, words);
        unit
    }

    /// Adds a command.
    pub(crate) fn add(&mut self, database: u32, words: &[&[u8]]) {
        encode(words.iter().copied(), &mut self.bytes);
        self.end(database, true);
    }

    /// Adds a command in the form of [`encode`].
    pub(crate) fn add_encoded(&mut self, database: u32, command: &[u8]) {
        self.bytes.extend_from_slice(command);
        self.end(database, true);
    }

    /// Adds a command, some of whose words are shared with values.
    pub(crate) fn add_words<'w>(&mut self, database: u32, words: impl ExactSizeIterator<Item = Word<'w>>) {
        let long_before = self.long.len();
        encode_head(b'*', words.len(), &mut self.bytes);
        for word in words {
            encode_head(b'$', word.len(), &mut self.bytes);
            match word {
                Word::Shared(bytes) if bytes.len() >= SHARED_MIN => {
                    self.long.push((self.bytes.len(), bytes.clone()));
                    self.long_bytes += bytes.len();
                }
                Word::Shared(bytes) => self.bytes.extend_from_slice(bytes),
                Word::Bytes(bytes) => self.bytes.extend_from_slice(bytes),
            }
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.end(database, self.long.len() == long_before);
    }

    /// Adds a command that only this store knows.
    pub(crate) fn annotate(&mut self, database: u32, words: &[&[u8]]) {
        annotation::write(words, &mut self.bytes);
        self.end(database, false);
    }

    fn end(&mut self, database: u32, is_plain: bool) {
        let (bytes_end, long_end) = (self.bytes.len(), self.long.len());
        self.effects.push(Place { database, is_passing: false, is_plain, bytes_end, long_end });
    }

    /// Adds a command that changes no key, of which replicas are told all the same.
    pub(crate) fn add_passing(&mut self, words: &[&[u8]]) {
        self.add(0, words);
        if let Some(place) = self.effects.last_mut() {
            (place.is_passing, place.is_plain) = (true, false);
        }
    }

    /// Returns whether it has no effect.
    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    /// Adds the effects of another unit.
    pub(crate) fn append(&mut self, other: &mut Unit) {
        let (bytes, long) = (self.bytes.len(), self.long.len());
        self.effects.extend(other.effects.drain(..).map(|place| Place {
            bytes_end: place.bytes_end + bytes,
            long_end: place.long_end + long,
            ..place
        }));
        self.bytes.append(&mut other.bytes);
        self.long.extend(other.long.drain(..).map(|(at, word)| (at + bytes, word)));
        self.long_bytes += std::mem::take(&mut other.long_bytes);
    }
}

impl Effects for Unit {
    #[inline]
    fn count(&self) -> usize {
        self.effects.len()
    }

    #[inline]
    fn join(&mut self) -> bool {
        let [.., before, last] = &mut self.effects[..] else { return false };
        // What it takes to pass them on is bounded.
        let has_room = (before.bytes_end ^ last.bytes_end) & !(RUN_BYTES - 1) == 0;
        let can_join = before.is_plain && last.is_plain && before.database == last.database && has_room;
        if can_join {
            before.bytes_end = last.bytes_end;
            self.effects.pop();
        }
        can_join
    }

    #[cold]
    fn end_of(&self, effect: usize, begin: usize, units: u64) -> usize {
        let start = effect.checked_sub(1).map_or(0, |before| self.effects[before].bytes_end);
        let run = &self.bytes[start..self.effects[effect].bytes_end];
        (0..units).fold(begin, |at, _| at + encoded_len(&run[at..]))
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.bytes.len() + self.long_bytes
    }

    fn clear(&mut self) {
        if self.bytes.capacity() > KEPT_MAX {
            *self = Unit::default();
        }
        self.effects.clear();
        self.bytes.clear();
        self.long.clear();
        self.long_bytes = 0;
    }

    #[cold]
    fn truncate(&mut self, count: usize) {
        self.effects.truncate(count);
        let (bytes, long) = self.effects.last().map_or((0, 0), |place| (place.bytes_end, place.long_end));
        self.bytes.truncate(bytes);
        self.long.truncate(long);
        self.long_bytes = self.long.iter().map(|(_, word)| word.len()).sum();
    }
}

impl Record {
    /// The number of the first unit.
    const FIRST: u64 = 2;

    pub(crate) fn new(loading: Arc<Loading>) -> Record {
        let (taker, streamer) = (Taker::default(), Taker::default());
        Record { is_for: AtomicU8::new(0), order: Order::new(BUFFERS), taker, streamer, loading }
    }

    /// Returns whether changes are recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_for.load(Ordering::Relaxed) != 0
    }

    /// Returns whether changes are recorded for this.
    #[inline]
    pub(crate) fn is_for(&self, what: For) -> bool {
        self.is_for.load(Ordering::Relaxed) & what as u8 != 0
    }

    /// Sets whether changes are recorded for this. The gate is closed.
    pub(crate) fn set(&self, what: For, is_on: bool) {
        match is_on {
            true => self.is_for.fetch_or(what as u8, Ordering::SeqCst),
            false => self.is_for.fetch_and(!(what as u8), Ordering::SeqCst),
        };
    }

    /// Returns the number of the last unit. All changes that this thread has made or seen have this number or a lower one.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.order.last()
    }

    /// Lets nothing behind the last unit be passed on, and returns its number. The gate is closed.
    pub(crate) fn set_barrier(&self) -> u64 {
        self.order.set_barrier()
    }

    /// Returns the number up to which units may be passed on.
    pub(crate) fn barrier(&self) -> u64 {
        self.order.barrier()
    }

    /// Lets everything be passed on.
    pub(crate) fn lift_barrier(&self) {
        self.order.lift_barrier();
    }

    /// Returns the bytes of units that nobody has taken.
    pub(crate) fn waiting(&self) -> u64 {
        self.order.waiting()
    }

    /// Adds a unit with the effects that `add` adds. The caller has locked or holds what they changed.
    pub(crate) fn put(&self, add: impl FnOnce(&mut Unit)) {
        let look = || {
            if self.waiting() > WAITING_MAX {
                self.loading.hold_writes(Behind::AppendOnly);
            }
        };
        self.order.put(thread_number(), add, look);
        if !COMMITS.get() {
            self.taker.wake();
        }
        self.streamer.wake();
    }

    /// Returns where it is told that too much waits.
    pub(crate) fn loading(&self) -> &Loading {
        &self.loading
    }

    /// Adds a unit that was prepared, unless it is empty.
    pub(crate) fn put_unit(&self, unit: &mut Unit) {
        if !unit.is_empty() {
            self.put(|effects| effects.append(unit));
        }
    }

    /// Makes this thread the one that takes units for the append-only file.
    pub(crate) fn set_taker(&self) {
        self.taker.set();
    }

    /// Parks this thread, which takes units for the append-only file, until it is woken. Returns at once if `has_units`,
    /// which is asked after everyone who adds units knows that it sleeps.
    pub(crate) fn sleep(&self, timeout: Option<Duration>, has_units: impl FnOnce() -> bool) {
        self.sleep_as(&self.taker, timeout, Some(has_units));
    }

    /// Parks this thread, which takes units for the append-only file, until it is woken for another reason than units.
    pub(crate) fn rest(&self, timeout: Option<Duration>) {
        self.sleep_as(&self.taker, timeout, None::<fn() -> bool>);
    }

    /// Makes this thread the one that takes units for the replication stream.
    pub(crate) fn set_streamer(&self) {
        self.streamer.set();
    }

    /// Parks this thread, which takes units for the replication stream, until it is woken, or there are units.
    pub(crate) fn sleep_as_streamer(&self) {
        self.sleep_as(&self.streamer, None, Some(|| self.waiting() > 0));
    }

    /// Wakes the thread that takes units for the replication stream.
    pub(crate) fn wake_streamer(&self) {
        self.streamer.unpark();
    }

    fn sleep_as(&self, taker: &Taker, timeout: Option<Duration>, has_units: Option<impl FnOnce() -> bool>) {
        taker.is_asleep.store(has_units.is_some(), Ordering::SeqCst);
        // Whoever has not seen that has drawn a number before, and counted the bytes before that.
        self.last();
        if has_units.is_none_or(|has_units| !has_units()) {
            match timeout {
                Some(timeout) => std::thread::park_timeout(timeout),
                None => std::thread::park(),
            }
        }
        taker.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Wakes the thread that takes units for the append-only file, if it sleeps until there are some.
    pub(crate) fn wake_sleeping_taker(&self) {
        self.taker.wake();
    }

    /// Wakes the thread that takes units for the append-only file.
    pub(crate) fn wake_taker(&self) {
        self.taker.unpark();
    }
}

impl Taker {
    /// Makes this thread the one that is woken.
    fn set(&self) {
        *self.thread.lock() = Some(std::thread::current());
    }

    /// Wakes the thread.
    fn unpark(&self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    /// Wakes the thread if it sleeps.
    #[inline]
    fn wake(&self) {
        if self.is_asleep.load(Ordering::SeqCst)
            && self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }
}
