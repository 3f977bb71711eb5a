//! A stripe: a shard of a database's keys, their memory and their holds, behind one lock.
//!
//! A database has at least 1,024 of them, so two workers rarely contend. The lock is a leaf, held for microseconds:
//! code under it does not log, wake, call a script or acquire another lock, except that a command on several keys locks
//! its stripes in (database, stripe) order. A thread that finds it taken spins for at most 2 µs, then sleeps, because
//! the owner may be a descheduled thread.
//!
//! The number of keys of a stripe, their earliest expiry and their memory are published in [`Figures`] when it is
//! unlocked after a change, so that DBSIZE, INFO and the expiry sweep read a dense array without locking.

pub(crate) mod edit;
pub(crate) mod image;
mod outside;

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::lock_api::{self, GuardSend, RawMutex};
use sluicegate_data::clock::{Clock, ticks_of_ms};
use sluicegate_data::object::limits::Limits;
use sluicegate_data::slab::{Emptied, Slab};
use sluicegate_data::table::{Item, KeyHasher, Slot, Table, prefetch};
use sluicegate_data::value::{Access, Entry, SHARED_MIN, View};

use crate::behalf::Behalf;
use crate::futex::Futex;
use crate::hold::HoldTable;
use crate::leaf_lock;
use crate::memory::Memory;
use crate::snapshot::Snapshots;
use crate::thread::{note_locked, note_unlocked};
use crate::waiter::{ReadyKey, WaitTable};
use crate::watch::WatchTable;
pub(crate) use outside::ELEMENTS_MAX;
use outside::Outside;

const SPIN: Duration = Duration::from_micros(2);

/// [`leaf_lock`] as a mutex is made of it.
pub(crate) struct RawLock(Futex);

type Mutex<T> = lock_api::Mutex<RawLock, T>;
type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

// SAFETY: the thread that changed the word from free to taken owns the lock until it releases it, and no other thread
// acquires it meanwhile; the exchanges order the accesses under it.
unsafe impl RawMutex for RawLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "what the trait asks for")]
    const INIT: RawLock = RawLock(Futex::new(leaf_lock::FREE));
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !leaf_lock::try_lock(&self.0) {
            let start = Instant::now();
            leaf_lock::lock(&self.0, || {
                (0..16).for_each(|_| std::hint::spin_loop());
                start.elapsed() < SPIN
            });
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        leaf_lock::try_lock(&self.0)
    }

    #[inline]
    unsafe fn unlock(&self) {
        leaf_lock::unlock(&self.0);
    }
}

impl Figures {
    /// Returns the bytes that have become unused since the last check for pages to free.
    pub(crate) fn loosened(&self) -> u32 {
        let (loose, settled) = (self.loose.load(Ordering::Relaxed), self.settled.load(Ordering::Relaxed));
        if loose < settled {
            self.settled.store(loose, Ordering::Relaxed);
        }
        loose.saturating_sub(settled)
    }

    /// Returns whether a key may have expired.
    pub(crate) fn is_due(&self, now_ms: i64) -> bool {
        self.earliest_ms.load(Ordering::Relaxed) <= now_ms
    }
}

/// A stripe and its lock, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct StripeCell {
    lock: Mutex<Stripe>,
}

/// Figures of a stripe that are readable without its lock.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) keys: AtomicU32,
    pub(crate) expires: AtomicU32,
    /// A lower bound of the keys' expiries, in Unix milliseconds.
    pub(crate) earliest_ms: AtomicI64,
    /// Bytes of entries, values and table.
    pub(crate) bytes: AtomicUsize,
    /// The number of values that may have more than [`ELEMENTS_MAX`] elements.
    pub(crate) large: AtomicU32,
    /// The bytes of its pages that no entry uses.
    pub(crate) loose: AtomicU32,
    /// The value of `loose` at the last check for pages to free.
    pub(crate) settled: AtomicU32,
}

/// The time of several commands, frozen when the first of them reads it.
#[derive(Default)]
pub(crate) struct Frozen {
    us: Cell<Option<i64>>,
    /// The time in ticks, which is cheaper to read than the time.
    ticks: Cell<Option<u32>>,
}

impl Frozen {
    /// Returns a frozen time that is known, in Unix microseconds.
    pub(crate) fn at(us: i64) -> Frozen {
        Frozen { us: Cell::new(Some(us)), ticks: Cell::default() }
    }
}

/// The time as one command sees it: read when it is first needed, then frozen.
pub(crate) struct Now<'s> {
    clock: &'s Clock,
    limits: &'s Limits,
    ms: Option<i64>,
    /// The frozen time of the commands of a section, if one runs this command.
    kept: Option<&'s Frozen>,
    /// Whether a key was just found expired and removed.
    removed: bool,
    /// On whose behalf the command runs.
    pub(crate) behalf: Behalf,
}

impl<'s> Now<'s> {
    pub(crate) fn new(clock: &'s Clock, limits: &'s Limits) -> Now<'s> {
        Now { clock, limits, ms: None, kept: None, removed: false, behalf: Behalf::CLIENT }
    }

    /// Returns a time that was frozen before.
    pub(crate) fn frozen(clock: &'s Clock, limits: &'s Limits, ms: i64) -> Now<'s> {
        Now { ms: Some(ms), ..Now::new(clock, limits) }
    }

    /// Returns the time of several commands, frozen when the first of them reads it.
    pub(crate) fn kept(clock: &'s Clock, limits: &'s Limits, kept: &'s Frozen) -> Now<'s> {
        Now { ms: kept.us.get().map(|us| us / 1000), kept: Some(kept), ..Now::new(clock, limits) }
    }

    /// Returns the Unix time in microseconds; outside sections, in whole milliseconds if [`ms`](Self::ms) was called
    /// before.
    pub(crate) fn us(&mut self) -> i64 {
        match (self.kept.and_then(|kept| kept.us.get()), self.ms) {
            (Some(us), _) => us,
            (None, Some(ms)) => ms * 1000,
            (None, None) => self.read(),
        }
    }

    /// Reads the clock, and freezes the time.
    fn read(&mut self) -> i64 {
        let us = self.clock.now_us();
        self.ms = Some(us / 1000);
        if let Some(kept) = self.kept {
            kept.us.set(Some(us));
        }
        us
    }

    /// Returns the Unix time in milliseconds.
    pub(crate) fn ms(&mut self) -> i64 {
        match self.ms {
            Some(ms) => ms,
            None => self.read() / 1000,
        }
    }

    /// Returns whether the last look-up removed an expired key, and resets that. Whoever looks up keys records it.
    #[inline]
    pub(crate) fn take_removed(&mut self) -> bool {
        std::mem::take(&mut self.removed)
    }

    /// Returns the command's access to entries at this moment.
    #[inline]
    pub(crate) fn access(&self) -> Access<'s> {
        Access { ticks: self.ticks(), is_traceless: self.behalf.is_traceless, limits: self.limits }
    }

    /// Returns the time in ticks, for access times.
    pub(crate) fn ticks(&self) -> u32 {
        match self.ms {
            Some(ms) => ticks_of_ms(ms),
            None => match self.kept {
                None => self.clock.coarse_ticks(),
                Some(kept) => kept.ticks.get().unwrap_or_else(|| {
                    let ticks = self.clock.coarse_ticks();
                    kept.ticks.set(Some(ticks));
                    ticks
                }),
            },
        }
    }
}

/// The keys of a stripe. Fields used by reading commands come first, so that they share two cache lines with the lock,
/// which are fetched together.
#[repr(C)]
pub(crate) struct Stripe {
    /// Held keys; with [`None`] the fast path has nothing to check.
    pub(crate) holds: Option<Box<HoldTable>>,
    /// Watched keys; with [`None`] write commands have nothing to check.
    pub(crate) watched: Option<Box<WatchTable>>,
    /// Clients that wait for keys; with [`None`] the fast path has nothing to check.
    pub(crate) waits: Option<Box<WaitTable>>,
    pub(crate) hits: u64,
    pub(crate) table: Table<Entry>,
    pub(crate) misses: u64,
    slab: Slab,
    expires: u32,
    /// The number of changes of keys.
    pub(crate) changes: u64,
    /// The values that have vectors of their own.
    outside: Outside,
    earliest_ms: i64,
    /// The hash at which a sweep continues; 0 if none is in progress.
    sweep_from: u64,
    /// A lower bound of the expiries that the sweep in progress has passed.
    swept_earliest_ms: i64,
    /// Whether the figures differ from the published ones.
    changed: bool,
    /// Whether a value may have expiring elements.
    pub(crate) has_timed: bool,
    pub(crate) expired: u64,
    /// The number of elements of values that have expired.
    pub(crate) expired_elements: u64,
    /// The bytes of this stripe in the store's sum.
    counted: i64,
    memory: Arc<Memory>,
    snapshots: Arc<Snapshots>,
    /// Old values for a snapshot; with [`None`] there are none.
    images: Option<Box<image::Images>>,
}

impl StripeCell {
    pub(crate) fn new(
        hasher: KeyHasher,
        stripe_bits: u8,
        memory: Arc<Memory>,
        snapshots: Arc<Snapshots>,
    ) -> StripeCell {
        StripeCell {
            lock: Mutex::new(Stripe {
                table: Table::new(hasher, stripe_bits),
                slab: Slab::new(),
                holds: None,
                watched: None,
                waits: None,
                expires: 0,
                changes: 0,
                outside: Outside::default(),
                earliest_ms: i64::MAX,
                sweep_from: 0,
                swept_earliest_ms: i64::MAX,
                changed: true,
                has_timed: false,
                hits: 0,
                misses: 0,
                expired: 0,
                expired_elements: 0,
                counted: 0,
                memory,
                snapshots,
                images: None,
            }),
        }
    }

    /// Locks the stripe.
    #[inline(always)]
    pub(crate) fn lock<'a>(&'a self, figures: &'a Figures) -> Locked<'a> {
        // Acquiring the lock keeps the processor from prefetching.
        prefetch(std::ptr::from_ref(self).cast::<u8>().wrapping_add(64));
        Locked::new(self.lock.lock(), figures)
    }

    /// Locks the stripe if it is free.
    pub(crate) fn try_lock<'a>(&'a self, figures: &'a Figures) -> Option<Locked<'a>> {
        self.lock.try_lock().map(|stripe| Locked::new(stripe, figures))
    }
}

/// A locked stripe. Unlocking publishes its figures if they changed.
pub(crate) struct Locked<'a> {
    stripe: MutexGuard<'a, Stripe>,
    figures: &'a Figures,
}

impl<'a> Locked<'a> {
    #[inline]
    fn new(stripe: MutexGuard<'a, Stripe>, figures: &'a Figures) -> Locked<'a> {
        note_locked();
        Locked { stripe, figures }
    }

    /// Runs `work` with the stripe unlocked. Slots may have changed afterwards.
    pub(crate) fn unlocked<R>(&mut self, work: impl FnOnce() -> R) -> R {
        struct Relocked;
        impl Drop for Relocked {
            fn drop(&mut self) {
                note_locked();
            }
        }
        self.publish();
        note_unlocked();
        let _relocked = Relocked;
        MutexGuard::unlocked(&mut self.stripe, work)
    }

    /// Publishes the stripe's figures if they changed.
    #[inline]
    fn publish(&mut self) {
        if self.stripe.changed {
            self.stripe.changed = false;
            self.figures.keys.store(self.stripe.table.len() as u32, Ordering::Relaxed);
            self.figures.expires.store(self.stripe.expires, Ordering::Relaxed);
            self.figures.earliest_ms.store(self.stripe.earliest_ms, Ordering::Relaxed);
            let bytes = self.stripe.bytes();
            self.figures.bytes.store(bytes, Ordering::Relaxed);
            self.figures.large.store(self.stripe.outside.large, Ordering::Relaxed);
            self.figures.loose.store(self.stripe.loose_bytes(), Ordering::Relaxed);
            let drift = bytes as i64 - self.stripe.counted;
            if drift.abs() > self.stripe.memory.slack() {
                self.stripe.counted = bytes as i64;
                self.stripe.memory.add(drift);
            }
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Stripe;

    fn deref(&self) -> &Stripe {
        &self.stripe
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Stripe {
        &mut self.stripe
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        note_unlocked();
        self.publish();
    }
}

impl Stripe {
    /// Returns the bytes of entries, values and table.
    fn bytes(&self) -> usize {
        self.slab.bytes() + self.outside.bytes + self.table.bytes()
    }

    /// Returns the bytes of its pages that no entry uses.
    pub(crate) fn loose_bytes(&self) -> u32 {
        u32::try_from(self.slab.loose_bytes()).unwrap_or(u32::MAX)
    }

    /// Returns the bytes of its pages, and of the entries in them.
    #[cfg(test)]
    pub(crate) fn page_figures(&self) -> (usize, usize) {
        (self.slab.page_bytes(), self.slab.bytes())
    }

    /// Moves the entries of one nearly empty page to others, and returns the page. Entries of held keys stay, because
    /// the holder of a key may be reading it without the lock.
    pub(crate) fn compact(&mut self) -> Emptied {
        let Stripe { slab, table, holds, .. } = self;
        let may_move = |block| {
            // SAFETY: a block of the slab that is in use is an entry of this stripe, which is locked.
            let entry = unsafe { Entry::at(block) };
            holds.as_deref().is_none_or(|holds| !holds.concerns(entry.key()))
        };
        let emptied = slab.empty_one(may_move, |old, new| {
            // SAFETY: as above; the contents of `old` have been copied to `new`, and one of them is freed.
            let (old, new) = unsafe { (Entry::at(old), Entry::at(new)) };
            let slot = table.find_by(table.hash(new.key()), |entry| entry.address() == old.address());
            debug_assert!(slot.is_some(), "every entry is in the table");
            let Some(slot) = slot else { return false };
            *table.entry_mut(slot) = new;
            true
        });
        self.changed |= emptied == Emptied::Page;
        emptied
    }

    /// Makes unlocking publish its figures and update the store's sum, whether or not they changed.
    pub(crate) fn recount(&mut self) {
        self.memory.add(self.bytes() as i64 - self.counted);
        self.counted = self.bytes() as i64;
        self.changed = true;
    }

    /// Returns the key's slot, if it has one and has not expired.
    ///
    /// An expired key is removed, unless `reads` and a section holds a key of this stripe: the time of a section is
    /// frozen, so a key that it holds in shared mode may still be alive for it. A writer has the key exclusively.
    #[inline(always)]
    pub(crate) fn find(&mut self, hash: u64, key: &[u8], now: &mut Now<'_>, reads: bool) -> Option<Slot> {
        let (slot, entry) = self.table.look(hash, key)?;
        match entry.expiry() {
            Some(at_ms) => self.is_alive(slot, key, at_ms, now, reads).then_some(slot),
            None => Some(slot),
        }
    }

    /// Returns whether the key at `slot` has not expired, see [`find`](Self::find).
    #[inline(never)]
    fn is_alive(&mut self, slot: Slot, key: &[u8], at_ms: i64, now: &mut Now<'_>, reads: bool) -> bool {
        if at_ms > now.ms() || now.behalf.is_masters || self.memory.is_timeless() {
            return true;
        }
        if !reads || self.holds.is_none() && !self.memory.keeps_expired() {
            self.expire(slot, key, at_ms);
            debug_assert!(!now.removed, "each removal is recorded");
            now.removed = true;
        }
        false
    }

    /// Returns whether a master decides when keys of the store are removed that have expired.
    pub(crate) fn follows(&self) -> bool {
        self.memory.follows()
    }

    /// Returns whether nothing counts as expired.
    pub(crate) fn is_timeless(&self) -> bool {
        self.memory.is_timeless()
    }

    /// Returns whether the key has a string that should not be copied under the lock.
    pub(crate) fn has_long_string(&self, hash: u64, key: &[u8]) -> bool {
        // Long strings are outside the slab, so for most stripes the key need not be examined.
        self.outside.bytes >= SHARED_MIN
            && self.table.find(hash, key).is_some_and(|slot| match self.table.entry(slot).string() {
                Some(View::Bytes(bytes)) => bytes.len() >= SHARED_MIN,
                _ => false,
            })
    }

    /// Returns the keys for which clients wait, and that were created or removed under the present lock.
    pub(crate) fn take_ready(&mut self) -> impl Iterator<Item = ReadyKey> {
        self.waits.as_deref_mut().into_iter().flat_map(WaitTable::take_ready)
    }

    /// Marks the key as changed for the clients that watch it.
    #[inline]
    pub(crate) fn touch(&mut self, key: &[u8]) {
        self.changes += 1;
        if self.watched.is_some() {
            self.touch_watched(key);
        }
    }

    #[cold]
    fn touch_watched(&mut self, key: &[u8]) {
        if let Some(watched) = &mut self.watched {
            watched.touch(key);
            if watched.is_empty() {
                self.watched = None;
            }
        }
    }

    fn touch_expired(&mut self, key: &[u8], at_ms: i64) {
        if let Some(watched) = &mut self.watched {
            watched.touch_expired(key, at_ms);
            if watched.is_empty() {
                self.watched = None;
            }
        }
    }

    fn expires_at(&mut self, slot: Slot, at_ms: i64) {
        self.table.note_expiry(slot, at_ms);
        self.note_expiry(at_ms);
    }

    /// Like [`expires_at`](Self::expires_at), for elements of a value.
    fn elements_expire_at(&mut self, slot: Slot, at_ms: i64) {
        self.has_timed = true;
        self.expires_at(slot, at_ms);
    }

    /// Returns the number of values with expiring elements. A stripe that never had one costs nothing.
    pub(crate) fn count_timed(&mut self) -> usize {
        if !self.has_timed {
            return 0;
        }
        let count = self.table.entries().filter(|entry| entry.elements_due().is_some()).count();
        self.has_timed = count > 0;
        count
    }

    fn note_expiry(&mut self, at_ms: i64) {
        if at_ms < self.earliest_ms {
            self.earliest_ms = at_ms;
            self.changed = true;
        }
        self.swept_earliest_ms = self.swept_earliest_ms.min(at_ms);
    }
}

impl Drop for Stripe {
    fn drop(&mut self) {
        self.clear();
        self.memory.add(-self.counted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// An access at the first tick.
    fn at_start(limits: &Limits) -> Access<'_> {
        Access { ticks: 0, is_traceless: false, limits }
    }
    use sluicegate_data::value::Value;

    /// The value that a key of the model has: its length and content tell the key and the write.
    fn content(key: u64, write: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| (key.wrapping_mul(31) ^ write.wrapping_mul(7) ^ at) as u8 | 0x80).collect()
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % limit
        }

        /// Lengths of every form and size class, the borders more often.
        fn len(&mut self) -> usize {
            match self.below(8) {
                0 => [0, 1, 191, 192, 193, 4095, 4096, 4097][self.below(8) as usize],
                1 => 193 + self.below(5000) as usize,
                _ => self.below(193) as usize,
            }
        }
    }

    type Model = HashMap<Vec<u8>, (Vec<u8>, Option<i64>)>;

    fn check(stripe: &mut Stripe, hasher: &KeyHasher, key: &[u8], model: &Model) -> Option<Slot> {
        let slot = stripe.table.find(hasher.hash(key), key);
        let found = slot.map(|slot| stripe.table.entry(slot));
        let found =
            found.map(|entry| (entry.string().unwrap().text(&mut itoa::Buffer::new()).to_vec(), entry.expiry()));
        assert!(found.as_ref() == model.get(key), "a key lost or changed its value");
        slot
    }

    /// Blocks and slots belong to one key each, whatever is added, moved, split and removed: a value that another key's
    /// write had changed would differ from the model.
    fn random_work(seed: u64, rounds: u64) {
        let hasher = KeyHasher::default();
        let cell = StripeCell::new(hasher.clone(), 0, Arc::new(Memory::new()), Snapshots::at_rest());
        let figures = Figures::default();
        let mut random = Random(seed);
        let limits = Limits::new();
        let mut model = Model::new();
        // Values that readers still have, with their expected content.
        let mut readers: Vec<(Arc<Vec<u8>>, Vec<u8>)> = Vec::new();
        for round in 0..rounds {
            let number = random.below(3_000);
            let mut key = format!("k{number}").into_bytes();
            key.resize(key.len() + [0, 3, 40, 300][number as usize % 4], b'.');
            let mut locked = cell.lock(&figures);
            let stripe = &mut *locked;
            let slot = check(stripe, &hasher, &key, &model);
            let hash = hasher.hash(&key);
            let expiry = (random.below(3) == 0).then(|| random.below(1000) as i64);
            match (random.below(12), slot) {
                (0..6, _) => {
                    let value = content(number, round, random.len());
                    drop(stripe.set((hash, &key), slot, Value::of(&value), expiry, at_start(&limits)));
                    model.insert(key, (value, expiry));
                }
                (6, Some(slot)) => {
                    stripe.set_expiry(hash, slot, expiry);
                    model.get_mut(&key).expect("checked").1 = expiry;
                }
                (7, Some(slot)) => {
                    let entry = stripe.table.entry(slot);
                    readers.extend(entry.shared().map(|bytes| (bytes, model[&key].0.clone())));
                    let more = content(number, round, random.len());
                    let len = entry.string().unwrap().len() + more.len();
                    if len > sluicegate_data::value::INLINE_MAX && stripe.edit(slot, len, |bytes| bytes.extend(&more)) {
                        model.get_mut(&key).expect("checked").0.extend(more);
                    }
                }
                (8, Some(slot)) => {
                    // As RENAME does.
                    let value = stripe.take(slot);
                    let (text, _) = model.remove(&key).expect("checked");
                    let other = format!("k{}", random.below(3_000)).into_bytes();
                    let slot = check(stripe, &hasher, &other, &model);
                    drop(stripe.set((hasher.hash(&other), &other), slot, value, expiry, at_start(&limits)));
                    model.insert(other, (text, expiry));
                }
                (9.., Some(slot)) => {
                    drop(stripe.remove(slot));
                    model.remove(&key);
                }
                _ => {}
            }
            if round % 5_000 == 4_999 {
                let now_ms = random.below(1000) as i64;
                // The first pass may only finish a sweep that began elsewhere.
                while !stripe.sweep(now_ms, 100, &mut Vec::new(), |_, _, _| {}, None) {}
                while !stripe.sweep(now_ms, 100, &mut Vec::new(), |_, _, _| {}, None) {}
                model.retain(|_, (_, expiry)| expiry.is_none_or(|at_ms| at_ms > now_ms));
                readers.retain(|_| random.below(2) == 0);
            }
            if round % 100 == 99 {
                let (keys, pages) = (stripe.table.len(), stripe.slab.page_bytes());
                let emptied = stripe.compact();
                assert_ne!(emptied, Emptied::Held, "nobody holds a key");
                let freed = pages - stripe.slab.page_bytes();
                assert_eq!((stripe.table.len(), freed > 0), (keys, emptied == Emptied::Page));
            }
            if round % 500 == 499 {
                // One step of a sweep, with other work before the next one.
                let now_ms = random.below(300) as i64;
                stripe.sweep(now_ms, 200, &mut Vec::new(), |_, _, _| {}, None);
                model.retain(|key, (_, expiry)| {
                    let is_there = stripe.table.find(hasher.hash(key), key).is_some();
                    assert!(is_there || expiry.is_some_and(|at_ms| at_ms <= now_ms), "a key vanished");
                    is_there
                });
                let earliest_ms = model.values().filter_map(|(_, expiry)| *expiry).min().unwrap_or(i64::MAX);
                assert!(stripe.earliest_ms <= earliest_ms, "a key would never be swept");
            }
            if round % 37_000 == 36_999 {
                stripe.clear();
                model.clear();
            }
        }
        assert!(readers.iter().all(|(bytes, expected)| **bytes == *expected), "a reader's value changed");
        let mut locked = cell.lock(&figures);
        let stripe = &mut *locked;
        model.keys().for_each(|key| assert!(check(stripe, &hasher, key, &model).is_some()));
        assert_eq!(stripe.table.len(), model.len());
        assert_eq!(stripe.expires as usize, model.values().filter(|(_, expiry)| expiry.is_some()).count());
        assert_eq!(stripe.outside, stripe.table.entries().collect());
        let earliest_ms = model.values().filter_map(|(_, expiry)| *expiry).min().unwrap_or(i64::MAX);
        assert!(stripe.table.earliest_ms() <= earliest_ms && stripe.earliest_ms <= earliest_ms);
        while stripe.compact() == Emptied::Page {}
        model.keys().for_each(|key| assert!(check(stripe, &hasher, key, &model).is_some()));
        assert_eq!(stripe.table.len(), model.len());
        stripe.clear();
        assert_eq!(stripe.slab.bytes(), 0);
        assert!(stripe.slab.page_bytes() <= 16 * 2048, "{} bytes are kept", stripe.slab.page_bytes());
        while stripe.compact() == Emptied::Page {}
        assert_eq!(stripe.slab.page_bytes(), 0);
    }

    #[test]
    fn random_work_on_several_threads_keeps_every_value() {
        // Threads, because stripes pass pages to each other through the pool.
        std::thread::scope(|scope| {
            (1..=3).for_each(|seed| drop(scope.spawn(move || random_work(seed, 60_000))));
        });
    }

    #[test]
    fn entries_of_held_keys_are_not_moved() {
        let limits = Limits::new();
        let hasher = KeyHasher::default();
        let cell = StripeCell::new(hasher.clone(), 0, Arc::new(Memory::new()), Snapshots::at_rest());
        let figures = Figures::default();
        let mut locked = cell.lock(&figures);
        let stripe = &mut *locked;
        let key = |n: u32| format!("key:{n:08}").into_bytes();
        let find = |stripe: &Stripe, n: u32| stripe.table.find(hasher.hash(&key(n)), &key(n)).expect("it is there");
        for n in 0..1_000 {
            drop(stripe.set((hasher.hash(&key(n)), &key(n)), None, Value::of(b"value"), None, at_start(&limits)));
        }
        for n in (0..1_000).filter(|n| n % 20 != 0) {
            let slot = find(stripe, n);
            drop(stripe.remove(slot));
        }
        let mut holds = HoldTable::default();
        for n in [0, 500, 980] {
            holds.grant(1, &key(n), crate::hold::Mode::Shared);
        }
        stripe.holds = Some(Box::new(holds));
        let address = |stripe: &Stripe, n: u32| stripe.table.entry(find(stripe, n)).address();
        let before: Vec<_> = (0..1_000).step_by(20).map(|n| address(stripe, n)).collect();
        let pages = stripe.slab.page_bytes();
        while stripe.compact() == Emptied::Page {}
        assert!(stripe.slab.page_bytes() * 2 < pages, "{} of {pages} bytes are left", stripe.slab.page_bytes());
        let after: Vec<_> = (0..1_000).step_by(20).map(|n| address(stripe, n)).collect();
        for n in [0, 25, 49] {
            assert_eq!(before[n], after[n], "the entry of a held key was moved");
        }
        assert!(before != after);
        stripe.holds = None;
        while stripe.compact() == Emptied::Page {}
        assert_eq!(stripe.slab.page_bytes(), 2048, "50 entries of 32 bytes are one page");
        drop(locked);
    }

    #[test]
    fn a_lock_that_is_taken_is_waited_for() {
        let cell = StripeCell::new(KeyHasher::default(), 0, Arc::new(Memory::new()), Snapshots::at_rest());
        let figures = Figures::default();
        let locked = cell.lock(&figures);
        assert!(cell.try_lock(&figures).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cell.lock(&figures).table.len());
            // Long enough to spin; then it sleeps, and is woken.
            std::thread::sleep(Duration::from_millis(5));
            drop(locked);
            assert_eq!(waiting.join().expect("it gets the lock"), 0);
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    fn waking_under_a_lock_is_noticed() {
        use crate::thread::assert_none_locked;

        let cell = StripeCell::new(KeyHasher::default(), 0, Arc::new(Memory::new()), Snapshots::at_rest());
        let figures = Figures::default();
        assert_none_locked();
        let locked = cell.lock(&figures);
        assert!(std::panic::catch_unwind(assert_none_locked).is_err());
        drop(locked);
        assert_none_locked();
    }
}
