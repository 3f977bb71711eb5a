//! Databases: arrays of stripes, replaced as a whole.
//!
//! FLUSHDB puts an empty database in place of a full one and SWAPDB exchanges two, each by a pointer, so both take
//! microseconds whatever the number of keys; the old database is freed in slices by [`tick`](crate::Store::tick).
//! A pointer is followed only inside the [gate](crate::gate), which is closed while one changes. Databases other than 0
//! are made when something is first written to them: one takes about 300 KiB.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sluicegate_data::clock::Clock;
use sluicegate_data::table::{KeyHasher, ORDER_BITS};
use smallvec::SmallVec;

use crate::expiry::OwnExpiring;
use crate::gate::{Closed, Pass};
use crate::hold::{self, HoldTable, NOBODY, Ticket};
use crate::memory::Memory;
use crate::snapshot::{Form, Snapshots};
use crate::stripe::{Figures, Locked, Stripe, StripeCell};
use crate::waiter::ReadyKey;
use crate::waiter::WaitTable;
use crate::watch::WatchTable;

/// One database.
pub(crate) struct Db {
    stripes: Box<[StripeCell]>,
    pub(crate) figures: Box<[Figures]>,
    memory: Arc<Memory>,
}

/// The maximum number of sums that are computed to choose a stripe by its share of the keys.
const STRIPES_SUMMED: usize = 32;

/// The number of keys up to which a flushed database is freed while the gate is closed, so that clients that flush over
/// and over leave nothing behind; more keys are freed in slices, and take longer to be written.
const FREED_AT_ONCE: u64 = 64;

/// The error if keys were removed while another thread iterated over the stripes.
#[derive(Debug)]
pub(crate) struct Changed;

/// The size of an empty stripe, in bytes.
pub(crate) const STRIPE_BYTES: usize = size_of::<StripeCell>() + size_of::<Figures>();

impl Drop for Db {
    fn drop(&mut self) {
        self.memory.add(-((self.stripes.len() * STRIPE_BYTES) as i64));
    }
}

impl Db {
    fn new(hasher: &KeyHasher, stripe_bits: u8, memory: &Arc<Memory>, snapshots: &Arc<Snapshots>) -> Db {
        let stripes = 1usize << stripe_bits;
        memory.add((stripes * STRIPE_BYTES) as i64);
        Db {
            stripes: (0..stripes)
                .map(|_| StripeCell::new(hasher.clone(), stripe_bits, memory.clone(), snapshots.clone()))
                .collect(),
            figures: (0..stripes).map(|_| Figures { earliest_ms: i64::MAX.into(), ..Figures::default() }).collect(),
            memory: memory.clone(),
        }
    }

    /// Returns whether a stripe has keys that may be evicted; with `expiring` only those with an expiry.
    pub(crate) fn may_evict(&self, stripe: usize, expiring: bool) -> bool {
        let figures = &self.figures[stripe];
        let keys = if expiring { &figures.expires } else { &figures.keys };
        keys.load(Ordering::Relaxed) > 0
    }

    /// Locks a stripe.
    #[inline(always)]
    pub(crate) fn lock(&self, stripe: usize) -> Locked<'_> {
        self.stripes[stripe].lock(&self.figures[stripe])
    }

    /// Locks a stripe if it is free.
    pub(crate) fn try_lock(&self, stripe: usize) -> Option<Locked<'_>> {
        self.stripes[stripe].try_lock(&self.figures[stripe])
    }

    /// Returns a stripe chosen by its share of the keys, `random` being any 64 bits; [`None`] if there is no key.
    pub(crate) fn stripe_by_share(&self, random: u64) -> Result<Option<usize>, Changed> {
        let keys = |figures: &Figures| u64::from(figures.keys.load(Ordering::Relaxed));
        // Sums of a few stripes each, so that only the chosen group is scanned again.
        let sums: SmallVec<[u64; STRIPES_SUMMED]> = self
            .figures
            .chunks(self.figures.len().div_ceil(STRIPES_SUMMED))
            .map(|some| some.iter().map(keys).sum())
            .collect();
        let total: u64 = sums.iter().sum();
        if total == 0 {
            return Ok(None);
        }
        let mut rest = random % total;
        let mut holds = |keys: u64| {
            let here = rest < keys;
            rest -= if here { 0 } else { keys };
            here
        };
        let some = sums.iter().position(|sum| holds(*sum)).ok_or(Changed)?;
        let first = some * self.figures.len().div_ceil(STRIPES_SUMMED);
        let stripe = self.figures[first..].iter().position(|figures| holds(keys(figures))).ok_or(Changed)?;
        Ok(Some(first + stripe))
    }

    /// Returns the first stripe from this one on that has keys.
    pub(crate) fn filled_from(&self, stripe: usize) -> Option<usize> {
        let filled = |figures: &Figures| figures.keys.load(Ordering::Relaxed) > 0;
        Some(stripe + self.figures.get(stripe..)?.iter().position(filled)?)
    }

    /// Returns the number of keys, including those expired but not yet removed.
    pub(crate) fn keys(&self) -> u64 {
        self.figures.iter().map(|figures| u64::from(figures.keys.load(Ordering::Relaxed))).sum()
    }

    /// Returns the number of keys with an expiry.
    pub(crate) fn expires(&self) -> u64 {
        self.figures.iter().map(|figures| u64::from(figures.expires.load(Ordering::Relaxed))).sum()
    }

    /// Returns the number of stripes.
    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }
}

/// The counters of stripes that no longer exist.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) expired_elements: AtomicU64,
    pub(crate) changes: AtomicU64,
}

impl Totals {
    /// Counts changes that no stripe has counted.
    pub(crate) fn add_changes(&self, changes: u64) {
        self.changes.fetch_add(changes, Ordering::Relaxed);
    }

    /// Adds the counters of a database's stripes.
    pub(crate) fn add(&self, db: &Db) {
        for stripe in 0..db.stripes() {
            let stripe = db.lock(stripe);
            self.hits.fetch_add(stripe.hits, Ordering::Relaxed);
            self.misses.fetch_add(stripe.misses, Ordering::Relaxed);
            self.expired.fetch_add(stripe.expired, Ordering::Relaxed);
            self.expired_elements.fetch_add(stripe.expired_elements, Ordering::Relaxed);
            self.changes.fetch_add(stripe.changes, Ordering::Relaxed);
        }
    }
}

/// All databases of a store.
pub struct Keyspace {
    databases: Box<[AtomicPtr<Db>]>,
    /// The databases of a second data set, while a file becomes one.
    aside: Box<[AtomicPtr<Db>]>,
    pub(crate) hasher: KeyHasher,
    stripe_bits: u8,
    /// The counters of the stripes of flushed databases.
    pub(crate) totals: Totals,
    /// The number of clients that wait for an element.
    pub(crate) waiting: AtomicUsize,
    /// The position in the order of waiters that the next one gets.
    pub(crate) next_turn: AtomicU64,
    /// Keys with waiters that were created by SWAPDB or an exclusive transaction.
    woken: Mutex<Vec<ReadyKey>>,
    /// Databases that were flushed and wait to be freed, each with the next stripe to free.
    discarded: Mutex<Vec<(Arc<Db>, usize)>>,
    /// The number of freed keys of flushed databases.
    pub(crate) freed: AtomicU64,
    /// The number of threads that are freeing flushed databases.
    freeing: AtomicUsize,
    memory: Arc<Memory>,
    pub(crate) snapshots: Arc<Snapshots>,
    /// The number of clients that watch keys.
    pub(crate) watching: Arc<AtomicUsize>,
    clock: Clock,
    /// The keys that a replica removes itself once they have expired.
    pub(crate) own_expiring: OwnExpiring,
    /// The section that holds everything, or [`NOBODY`]. Changed with the gate closed.
    held_by: AtomicU64,
}

impl Keyspace {
    /// `stripe_bits` is the logarithm of the number of stripes.
    pub(crate) fn new(
        databases: u32,
        stripe_bits: u8,
        memory: Arc<Memory>,
        clock: Clock,
        snapshots: Arc<Snapshots>,
    ) -> Keyspace {
        let keyspace = Keyspace {
            databases: (0..databases).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            aside: (0..databases).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            hasher: KeyHasher::default(),
            stripe_bits,
            totals: Totals::default(),
            waiting: AtomicUsize::new(0),
            next_turn: AtomicU64::new(1),
            woken: Mutex::new(Vec::new()),
            discarded: Mutex::new(Vec::new()),
            freed: AtomicU64::new(0),
            freeing: AtomicUsize::new(0),
            memory,
            snapshots,
            watching: Arc::default(),
            clock,
            own_expiring: OwnExpiring::default(),
            held_by: AtomicU64::new(NOBODY),
        };
        keyspace.databases[0].store(into_raw(keyspace.empty()), Ordering::Release);
        keyspace
    }

    fn empty(&self) -> Db {
        let db = Db::new(&self.hasher, self.stripe_bits, &self.memory, &self.snapshots);
        set_held_by(&db, self.held_by.load(Ordering::SeqCst), &mut Vec::new());
        db
    }

    /// Sets or clears ([`NOBODY`]) the section that holds all keys of all databases. Returns the waiting tickets.
    pub(crate) fn set_held_by(&self, _closed: &Closed<'_>, id: u64) -> Vec<Arc<Ticket>> {
        self.held_by.store(id, Ordering::SeqCst);
        let mut waiting = Vec::new();
        for place in self.databases.iter().chain(&self.aside) {
            // SAFETY: a pointer that is not null came from `into_raw`; with the gate closed it is not removed.
            if let Some(db) = unsafe { place.load(Ordering::Acquire).as_ref() } {
                set_held_by(db, id, &mut waiting);
            }
        }
        waiting
    }

    /// Returns the number of databases.
    pub(crate) fn databases(&self) -> u32 {
        self.databases.len() as u32
    }

    /// Returns the number of stripes of each database.
    pub(crate) fn stripes(&self) -> usize {
        1 << self.stripe_bits
    }

    /// Returns the stripe of a hash.
    #[inline]
    pub(crate) fn stripe_of(&self, hash: u64) -> usize {
        if self.stripe_bits == 0 { 0 } else { (hash >> (64 - self.stripe_bits)) as usize }
    }

    /// Returns the stripe of a key.
    #[inline]
    pub(crate) fn stripe_of_key(&self, key: &[u8]) -> usize {
        self.stripe_of(self.hasher.hash(key))
    }

    /// Returns the place in SCAN's order at which a stripe begins.
    pub(crate) fn order_of_stripe(&self, stripe: usize) -> u64 {
        (stripe as u64) << (ORDER_BITS - u32::from(self.stripe_bits))
    }

    /// Returns the stripe of a place in SCAN's order.
    pub(crate) fn stripe_of_order(&self, order: u64) -> usize {
        (order >> (ORDER_BITS - u32::from(self.stripe_bits))) as usize
    }

    /// Returns a database, if something was ever written to it.
    #[inline]
    pub(crate) fn db<'p>(&self, pass: &'p Pass<'_>, index: u32) -> Option<&'p Db> {
        self.db_at(pass, self.databases.get(index as usize)?)
    }

    #[inline]
    fn db_at<'p>(&self, _pass: &'p Pass<'_>, place: &AtomicPtr<Db>) -> Option<&'p Db> {
        let db = place.load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from `into_raw`. It is taken out of the array only while the gate is
        // closed, that is, while no pass exists, and is freed later still; the reference lives as long as the pass.
        unsafe { db.as_ref() }
    }

    /// Returns a database; creates it if it does not exist.
    #[inline]
    pub(crate) fn db_to_write<'p>(&self, pass: &'p Pass<'_>, index: u32) -> &'p Db {
        self.db(pass, index).unwrap_or_else(|| self.new_db(pass, &self.databases[index as usize]))
    }

    /// Returns a database of the second data set; creates it if it does not exist.
    pub(crate) fn db_aside<'p>(&self, pass: &'p Pass<'_>, index: u32) -> &'p Db {
        let place = &self.aside[index as usize];
        self.db_at(pass, place).unwrap_or_else(|| self.new_db(pass, place))
    }

    #[cold]
    fn new_db<'p>(&self, pass: &'p Pass<'_>, place: &AtomicPtr<Db>) -> &'p Db {
        let new = into_raw(self.empty());
        if place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was first, so `new` was never visible.
            drop(unsafe { Arc::from_raw(new) });
        }
        self.db_at(pass, place).expect("a database was just put there")
    }

    /// Lets the second data set take the place of the first, which is removed.
    pub(crate) fn take_over(&self, closed: &Closed<'_>) {
        for (here, aside) in self.databases.iter().zip(&self.aside) {
            if [here, aside].iter().all(|place| place.load(Ordering::Acquire).is_null()) {
                continue;
            }
            if aside.load(Ordering::Acquire).is_null() {
                aside.store(into_raw(self.empty()), Ordering::Release);
            }
            self.exchange(closed, [here, aside]);
        }
        self.discard_aside(closed);
    }

    /// Removes the second data set.
    pub(crate) fn discard_aside(&self, closed: &Closed<'_>) {
        self.aside.iter().for_each(|place| self.flush_at(closed, place, false));
    }

    /// Empties a database.
    pub(crate) fn flush(&self, closed: &Closed<'_>, index: u32) {
        self.flush_at(closed, &self.databases[index as usize], index == 0);
    }

    /// Empties a database. Afterwards there is none, unless it `stays` or somebody waits for its keys.
    fn flush_at(&self, _closed: &Closed<'_>, place: &AtomicPtr<Db>, stays: bool) {
        let old = place.swap(ptr::null_mut(), Ordering::AcqRel);
        let (mut watched, mut waits, mut holds) = (Vec::new(), Vec::new(), Vec::new());
        if !old.is_null() {
            // SAFETY: the pointer came from `into_raw`, is no longer in the array, and with the gate closed there
            // are no references.
            let old = unsafe { Arc::from_raw(old) };
            watched = self.take_watched(&old);
            waits = self.take_waits(&old);
            holds = self.take_holds(&old);
            for (_, table) in &mut waits {
                table.keys().iter().for_each(|key| table.note_removed(key));
                self.add_woken(table.take_ready());
            }
            for (stripe, table) in &mut watched {
                let old = old.lock(*stripe);
                table.replace(|key| self.expiry_in(&old, key), |_| None, 0);
            }
            watched.retain(|(_, table)| !table.is_empty());
            self.totals.add(&old);
            self.totals.add_changes(old.keys());
            // A snapshot that has the database saves its keys first.
            if old.keys() <= FREED_AT_ONCE && Arc::strong_count(&old) == 1 {
                self.clear_stripes(&old, 0..old.stripes());
            } else {
                self.discarded.lock().push((old, 0));
            }
        }
        if stays || !watched.is_empty() || !waits.is_empty() || !holds.is_empty() {
            let new = self.empty();
            put_watched(&new, watched);
            put_waits(&new, waits);
            put_holds(&new, holds);
            place.store(into_raw(new), Ordering::Release);
        }
    }

    /// Makes all entries unsaved; see [`snapshot`](crate::snapshot). No pass runs; the next one goes on if all databases
    /// are flushed meanwhile, or saves nothing more then. Returns the databases with their
    /// numbers.
    pub(crate) fn cut(&self, _closed: &Closed<'_>, form: Option<Form>, outlives_flush: bool) -> Vec<(u32, Arc<Db>)> {
        self.snapshots.cut(form, outlives_flush);
        // What was flushed before is of no snapshot, and its entries are only freed.
        (0..)
            .zip(&self.databases)
            .filter_map(|(number, place)| {
                let db = place.load(Ordering::Acquire);
                if db.is_null() {
                    return None;
                }
                // SAFETY: a pointer that is not null came from `into_raw` and has a count of its own; with the gate closed it
                // is not removed.
                unsafe {
                    Arc::increment_strong_count(db);
                    Some((number, Arc::from_raw(db.cast_const())))
                }
            })
            .collect()
    }

    /// Returns the number of a database, unless it was flushed.
    pub(crate) fn number_of(&self, _pass: &Pass<'_>, db: &Db) -> Option<u32> {
        let place = self.databases.iter().position(|place| ptr::eq(place.load(Ordering::Acquire), db));
        place.map(|number| number as u32)
    }

    /// Exchanges two different databases.
    pub(crate) fn swap(&self, closed: &Closed<'_>, a: u32, b: u32) {
        self.exchange(closed, [a, b].map(|index| &self.databases[index as usize]));
    }

    /// Exchanges the databases of two places, without the clients that watch their keys or wait for them.
    fn exchange(&self, _closed: &Closed<'_>, places: [&AtomicPtr<Db>; 2]) {
        let watching = self.watching.load(Ordering::SeqCst) > 0;
        let waiting = self.waiting.load(Ordering::SeqCst) > 0;
        let is_held = self.held_by.load(Ordering::SeqCst) != NOBODY;
        if watching || waiting || is_held {
            for place in places {
                if place.load(Ordering::Acquire).is_null() {
                    place.store(into_raw(self.empty()), Ordering::Release);
                }
            }
        }
        if watching {
            // SAFETY: both pointers came from `into_raw`; with the gate closed they are not removed.
            let [a, b] = places.map(|place| unsafe { &*place.load(Ordering::Acquire) });
            // The tables of watched keys are exchanged back, because clients watch keys of numbered databases.
            let now_ms = self.clock.now_ms();
            let moved = [(a, b), (b, a)].map(|(old, new)| {
                let mut watched = self.take_watched(old);
                for (stripe, table) in &mut watched {
                    let (old, new) = (old.lock(*stripe), new.lock(*stripe));
                    table.replace(|key| self.expiry_in(&old, key), |key| self.expiry_in(&new, key), now_ms);
                }
                watched.retain(|(_, table)| !table.is_empty());
                watched
            });
            for (db, watched) in [b, a].into_iter().zip(moved) {
                put_watched(db, watched);
            }
        }
        if is_held {
            // SAFETY: both pointers came from `into_raw`; with the gate closed they are not removed.
            let [a, b] = places.map(|place| unsafe { &*place.load(Ordering::Acquire) });
            // Waiters for keys belong to numbered databases, too.
            let (of_a, of_b) = (self.take_holds(a), self.take_holds(b));
            put_holds(a, of_b);
            put_holds(b, of_a);
        }
        let [a, b] = places;
        let first = a.load(Ordering::Acquire);
        a.store(b.swap(first, Ordering::AcqRel), Ordering::Release);
        if waiting {
            // SAFETY: both pointers came from `into_raw`, and with the gate closed they are not freed.
            let (a, b) = unsafe { (&*a.load(Ordering::Acquire), &*b.load(Ordering::Acquire)) };
            // Clients wait for keys of numbered databases, too.
            let (of_a, of_b) = (self.take_waits(a), self.take_waits(b));
            put_waits(a, of_b);
            put_waits(b, of_a);
            let mut woken = self.woken.lock();
            for db in [a, b] {
                for stripe in 0..db.stripes() {
                    woken.extend(self.waited_for(&mut db.lock(stripe)));
                }
            }
        }
    }

    /// Returns the existing keys of a stripe that have waiters, and the missing ones without which a wait ends.
    fn waited_for(&self, stripe: &mut Stripe) -> Vec<ReadyKey> {
        let Some(waits) = &mut stripe.waits else { return Vec::new() };
        for key in waits.keys() {
            match stripe.table.find(self.hasher.hash(&key), &key) {
                Some(_) => waits.note(&key),
                None => waits.note_removed(&key),
            }
        }
        waits.take_ready().collect()
    }

    /// Records ready keys without holds. The gate is closed, so this lock is uncontended.
    pub(crate) fn wake<'w>(&self, tables: impl Iterator<Item = &'w mut WaitTable>) {
        let mut woken = self.woken.lock();
        tables.for_each(|waits| woken.extend(waits.take_ready()));
    }

    /// Records ready keys without holds, of a command that was aborted.
    pub(crate) fn add_woken(&self, keys: impl IntoIterator<Item = ReadyKey>) {
        self.woken.lock().extend(keys);
    }

    /// Takes the ready keys that SWAPDB or an exclusive transaction created, or a flush removed.
    pub(crate) fn take_woken(&self) -> Vec<ReadyKey> {
        std::mem::take(&mut *self.woken.lock())
    }

    /// Returns the expiry of a key of this stripe; [`None`] if the key does not exist.
    fn expiry_in(&self, stripe: &Stripe, key: &[u8]) -> Option<Option<i64>> {
        let slot = stripe.table.find(self.hasher.hash(key), key)?;
        Some(stripe.table.entry(slot).expiry())
    }

    /// Takes the tables of watched keys out of a database's stripes.
    fn take_watched(&self, db: &Db) -> Vec<(usize, Box<WatchTable>)> {
        if self.watching.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        (0..db.stripes()).filter_map(|stripe| Some((stripe, db.lock(stripe).watched.take()?))).collect()
    }

    /// Takes the tables of waiting clients out of a database's stripes.
    fn take_waits(&self, db: &Db) -> Vec<(usize, Box<WaitTable>)> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        (0..db.stripes()).filter_map(|stripe| Some((stripe, db.lock(stripe).waits.take()?))).collect()
    }

    /// Takes the tables of holds out of a database's stripes, if a section holds everything; otherwise there are none.
    fn take_holds(&self, db: &Db) -> Vec<(usize, Box<HoldTable>)> {
        if self.held_by.load(Ordering::SeqCst) == NOBODY {
            return Vec::new();
        }
        (0..db.stripes()).filter_map(|stripe| Some((stripe, db.lock(stripe).holds.take()?))).collect()
    }

    /// Returns the number of keys of flushed databases not freed yet.
    pub(crate) fn discarded_keys(&self) -> u64 {
        self.discarded.lock().iter().map(|(db, _)| db.keys()).sum()
    }

    /// Frees the keys of some stripes of a flushed database.
    fn clear_stripes(&self, db: &Db, stripes: std::ops::Range<usize>) {
        for stripe in stripes {
            let mut stripe = db.lock(stripe);
            self.freed.fetch_add(stripe.table.len() as u64, Ordering::Relaxed);
            stripe.clear();
        }
    }

    /// Frees up to `stripes` stripes of flushed databases. Returns whether more remains to be freed, by this thread or
    /// by others that are freeing already: meanwhile no command must be refused for lack of memory.
    pub(crate) fn free_discarded(&self, stripes: usize) -> bool {
        // Taken out, so that the lock isn't held while memory is freed.
        let taken = {
            let mut discarded = self.discarded.lock();
            let is_free = |(db, _): &(Arc<Db>, usize)| Arc::strong_count(db) == 1;
            let taken = discarded.iter().rposition(is_free).map(|at| discarded.swap_remove(at));
            if taken.is_some() {
                self.freeing.fetch_add(1, Ordering::SeqCst);
            }
            taken
        };
        let Some((db, mut next)) = taken else { return self.freeing.load(Ordering::SeqCst) > 0 };
        let end = (next + stripes).min(db.stripes());
        self.clear_stripes(&db, next..end);
        next = end;
        let mut discarded = self.discarded.lock();
        if next < db.stripes() {
            discarded.push((db, next));
        }
        let others = self.freeing.fetch_sub(1, Ordering::SeqCst) > 1;
        others || discarded.iter().any(|(db, _)| Arc::strong_count(db) == 1)
    }
}

/// Returns a database as a pointer that has one count of it.
fn into_raw(db: Db) -> *mut Db {
    Arc::into_raw(Arc::new(db)).cast_mut()
}

/// Puts tables of watched keys into the stripes of a database.
fn put_watched(db: &Db, watched: Vec<(usize, Box<WatchTable>)>) {
    for (stripe, table) in watched {
        db.lock(stripe).watched = Some(table);
    }
}

/// Sets or clears ([`NOBODY`]) the section that holds all keys of a database. Adds the waiting tickets.
fn set_held_by(db: &Db, id: u64, waiting: &mut Vec<Arc<Ticket>>) {
    for stripe in 0..db.stripes() {
        let mut locked = db.lock(stripe);
        if id != NOBODY {
            hold::table_of(&mut locked.holds).set_everything(Some(id));
        } else if let Some(holds) = &mut locked.holds {
            holds.set_everything(None);
            holds.queued(waiting);
            hold::drop_if_empty(&mut locked.holds);
        }
    }
}

/// Puts tables of holds into the stripes of a database.
fn put_holds(db: &Db, holds: Vec<(usize, Box<HoldTable>)>) {
    for (stripe, table) in holds {
        db.lock(stripe).holds = Some(table);
    }
}

/// Puts tables of waiting clients into the stripes of a database.
fn put_waits(db: &Db, waits: Vec<(usize, Box<WaitTable>)>) {
    for (stripe, table) in waits {
        db.lock(stripe).waits = Some(table);
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        for place in self.databases.iter_mut().chain(&mut self.aside) {
            let db = *place.get_mut();
            if !db.is_null() {
                // SAFETY: the pointer came from `into_raw`, and the keyspace has no other user.
                drop(unsafe { Arc::from_raw(db) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::asked::ask_line;
    use crate::{Store, StoreOptions};

    const STRIPES: usize = 16;

    fn store() -> Store {
        Store::new(StoreOptions { stripes: STRIPES, ..StoreOptions::default() })
    }

    fn fill(store: &Store, db: u32, keys: usize) {
        (0..keys).for_each(|key| assert_eq!(ask_line(store, db, &format!("SET key:{key} {db}")).unwrap(), "+OK\r\n"));
    }

    #[test]
    fn a_database_exists_once_it_is_written_to() {
        let store = store();
        let keyspace = &store.0.keyspace;
        assert_eq!(ask_line(&store, 3, "GET key:0").unwrap(), "$-1\r\n");
        assert!(keyspace.db(&store.0.gate.enter(), 3).is_none());
        fill(&store, 3, 1);
        let pass = store.0.gate.enter();
        assert_eq!(keyspace.db(&pass, 3).map(Db::keys), Some(1));
        assert!(keyspace.db(&pass, keyspace.databases()).is_none());
    }

    #[test]
    fn stripes_and_places_of_scan_lead_to_each_other() {
        let store = store();
        let keyspace = &store.0.keyspace;
        assert_eq!(keyspace.stripes(), STRIPES);
        for stripe in 0..STRIPES {
            assert_eq!(keyspace.stripe_of_order(keyspace.order_of_stripe(stripe)), stripe);
        }
        assert_eq!((keyspace.stripe_of(0), keyspace.stripe_of(u64::MAX)), (0, STRIPES - 1));
    }

    #[test]
    fn stripes_are_chosen_by_their_share_of_the_keys() {
        let store = store();
        let keyspace = &store.0.keyspace;
        fill(&store, 0, 1000);
        let pass = store.0.gate.enter();
        let db = keyspace.db(&pass, 0).expect("it was written to");
        let mut chosen = [0u32; STRIPES];
        for random in 0..1000 {
            let stripe = db.stripe_by_share(random).ok().flatten().expect("nothing changes");
            chosen[stripe] += 1;
        }
        let shares: Vec<u32> = (0..STRIPES).map(|stripe| db.figures[stripe].keys.load(Ordering::Relaxed)).collect();
        assert_eq!(chosen.to_vec(), shares);
        assert_eq!(db.filled_from(0), Some(0));
        assert_eq!(db.filled_from(STRIPES), None);
    }

    #[test]
    fn a_flushed_database_is_freed_in_slices() {
        let store = store();
        let keyspace = &store.0.keyspace;
        fill(&store, 0, 500);
        assert_eq!(ask_line(&store, 0, "FLUSHDB ASYNC").unwrap(), "+OK\r\n");
        assert_eq!(ask_line(&store, 0, "DBSIZE").unwrap(), ":0\r\n");
        assert_eq!(keyspace.discarded_keys(), 500);
        assert!(keyspace.free_discarded(STRIPES / 2), "half of it is left");
        assert!(keyspace.discarded_keys() < 500);
        assert!(!keyspace.free_discarded(STRIPES));
        assert_eq!(keyspace.discarded_keys(), 0);
        fill(&store, 0, 1);
        assert_eq!(ask_line(&store, 0, "DBSIZE").unwrap(), ":1\r\n");
    }

    #[test]
    fn small_databases_that_are_flushed_over_and_over_do_not_pile_up() {
        let store = store();
        let keyspace = &store.0.keyspace;
        for _ in 0..20 {
            fill(&store, 0, 3);
            assert_eq!(ask_line(&store, 0, "FLUSHALL").unwrap(), "+OK\r\n");
            assert!(keyspace.discarded.lock().is_empty());
        }
        assert!(!keyspace.free_discarded(STRIPES));
    }

    #[test]
    fn swapped_databases_have_each_others_keys() {
        let store = store();
        fill(&store, 0, 3);
        fill(&store, 5, 2);
        assert_eq!(ask_line(&store, 0, "SWAPDB 0 5").unwrap(), "+OK\r\n");
        assert_eq!(
            (ask_line(&store, 0, "DBSIZE").unwrap(), ask_line(&store, 5, "DBSIZE").unwrap()),
            (":2\r\n".to_owned(), ":3\r\n".to_owned())
        );
        assert_eq!(ask_line(&store, 5, "GET key:2").unwrap(), "$1\r\n0\r\n");
        // One that does not exist is exchanged, too.
        assert_eq!(ask_line(&store, 0, "SWAPDB 5 9").unwrap(), "+OK\r\n");
        assert_eq!(
            (ask_line(&store, 5, "DBSIZE").unwrap(), ask_line(&store, 9, "DBSIZE").unwrap()),
            (":0\r\n".to_owned(), ":3\r\n".to_owned())
        );
    }
}
