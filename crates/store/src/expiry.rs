//! Expiry: lazily, when a key is accessed, and actively, from a periodic tick.
//!
//! Each stripe publishes the earliest expiry of its keys, and each of its segments has its own, so a tick finds due
//! keys by scanning a dense array: a store without due keys costs a few microseconds per database and tick. Stripes
//! are swept in steps of about [`SLOTS_PER_LOCK`] keys under the lock, each from where the last one stopped. A tick
//! does so for [`BUDGET`]; if more keys are due, a thread of the [pool](crate::aside) continues until none is, as fast
//! as the machine allows. So millions of keys that expire together are removed within a second on an idle core, and a
//! machine whose cores are all busy still spends a quarter of one on it.
//!
//! Redis samples keys instead, and leaves up to a quarter of the expired ones for later; here an expired key stays at
//! most until the next tick plus the time of removing it.

mod own;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Inner;
use crate::effect::Effect;
use crate::loading::Behind;
use crate::notify::{Class, Event};
use crate::record::RecordWords;
use crate::waiter::ReadyKey;
pub(crate) use own::OwnExpiring;

/// The maximum time of a tick for expired keys and flushed databases.
const BUDGET: Duration = Duration::from_millis(25);
/// The time for which the pool thread works before it checks the time again, and yields the processor.
const SLICE: Duration = Duration::from_millis(2);
/// The number of keys examined at a time under a stripe's lock.
const SLOTS_PER_LOCK: usize = 200;
/// The number of attempts of a sweep to lock a busy stripe before it moves on to the next one.
const LOCK_TRIES: usize = 64;
/// The number of returns of a sweep to busy stripes, before it leaves them to the next tick.
const ROUNDS: usize = 16;
/// The time after which a key is looked at again that has expired and is held.
const HELD_MS: i64 = 100;
/// The number of stripes of a flushed database that are freed between two readings of the clock.
const STRIPES_PER_STEP: usize = 8;

/// The position at which the sweep continues after its time was over, so that every stripe of every database gets its
/// turn.
#[derive(Default)]
pub(crate) struct Sweeper {
    /// Keys are only removed when touched: DEBUG SET-ACTIVE-EXPIRE 0.
    pub(crate) paused: AtomicBool,
    /// Whether a pool thread continues the work of a tick.
    is_aside: AtomicBool,
    db: AtomicU32,
    stripe: AtomicUsize,
    /// Time spent looking for expired keys, in microseconds.
    spent_us: AtomicU64,
}

impl Sweeper {
    /// Returns the time spent looking for expired keys, in milliseconds.
    pub(crate) fn spent_ms(&self) -> u64 {
        self.spent_us.load(Ordering::Relaxed) / 1000
    }
}

/// Removes expired keys, frees flushed databases, and compacts memory.
pub(crate) fn tick(inner: &Inner) {
    tick_for(inner, BUDGET);
}

fn tick_for(inner: &Inner, budget: Duration) {
    inner.memory.note_peak(inner.memory.told());
    let start = Instant::now();
    inner.tick_scripts();
    if !inner.loading.is_on() {
        inner.tick_saves();
        inner.tick_rewrites();
        inner.tick_replication();
    }
    inner.discard(inner.memory.take_late());
    let late = sluicegate_data::object::cell::take_late();
    if !late.is_empty() {
        inner.aside.run(move || drop(late));
    }
    if inner.loading.is_on() {
        return sluicegate_data::pages::settle();
    }
    inner.tracking.tick();
    let is_aside = inner.sweeper.is_aside.load(Ordering::SeqCst);
    let is_done = work(inner, is_aside, || start.elapsed() >= budget);
    if !is_done && !is_aside {
        go_on_aside(inner);
    }
    if inner.memory.is_over() && !inner.memory.keeps_expired() {
        // The remaining work of a command's eviction, or of growing buffers.
        let _ = inner.make_room_for(budget.saturating_sub(start.elapsed()));
    }
    if is_done {
        // Entries about to be removed are not worth moving.
        inner.compact();
    }
    sluicegate_data::pages::settle();
}

/// Lets the thread pool continue.
#[cold]
fn go_on_aside(inner: &Inner) {
    /// Lets the next tick start another continuation, even if this one panics.
    struct End<'i>(&'i Inner);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.sweeper.is_aside.store(false, Ordering::SeqCst);
        }
    }
    let Some(this) = inner.this.upgrade() else { return };
    inner.sweeper.is_aside.store(true, Ordering::SeqCst);
    inner.aside.run(move || {
        let _end = End(&this);
        loop {
            let start = Instant::now();
            if work(&this, false, || start.elapsed() >= SLICE) {
                break;
            }
            std::thread::yield_now();
        }
    });
}

/// Sweeps all databases and frees flushed ones until the time is over. With `helps`, another thread does the same, so
/// this one begins at another position. Returns whether it reached the end.
fn work(inner: &Inner, helps: bool, is_over: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    let is_done = sweep_all(inner, helps, is_over);
    inner.sweeper.spent_us.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
    is_done
}

/// Like [`work`], without counting the time.
fn sweep_all(inner: &Inner, helps: bool, is_over: impl Fn() -> bool) -> bool {
    let sweeper = &inner.sweeper;
    let now_ms = inner.clock.now_ms();
    let databases = inner.keyspace.databases();
    let first = sweeper.db.load(Ordering::Relaxed);
    let is_full = inner.loading.holds_writes_for(Behind::Snapshot);
    let is_paused = sweeper.paused.load(Ordering::Relaxed) || inner.memory.keeps_expired() || is_full;
    let swept = if is_paused { 0 } else { databases };
    if inner.memory.follows()
        && !sweeper.paused.load(Ordering::Relaxed)
        && !is_full
        && !expire_own(inner, now_ms, &is_over)
    {
        return false;
    }
    for step in 0..swept {
        let db = (first + step) % databases;
        let stripe = if step == 0 { sweeper.stripe.load(Ordering::Relaxed) } else { 0 };
        let stripe = if helps { stripe + inner.keyspace.stripes() / 2 } else { stripe };
        if let Some(stripe) = sweep(inner, db, stripe, now_ms, &is_over) {
            if !helps {
                sweeper.db.store(db, Ordering::Relaxed);
                sweeper.stripe.store(stripe, Ordering::Relaxed);
            }
            return false;
        }
    }
    while inner.keyspace.free_discarded(STRIPES_PER_STEP) {
        if is_over() {
            return false;
        }
    }
    true
}

/// Removes keys of a replica that have expired and that its own clients have given their expiry. Returns whether there are
/// no more of them.
fn expire_own(inner: &Inner, now_ms: i64, is_over: impl Fn() -> bool) -> bool {
    let Inner { keyspace, memory, .. } = inner;
    while let Some((db, key)) = keyspace.own_expiring.take_due(memory, now_ms) {
        let mut effects = Vec::new();
        let mut ready = VecDeque::new();
        let hash = keyspace.hasher.hash(&key);
        let again = {
            let pass = inner.gate.enter();
            let Some(database) = keyspace.db(&pass, db) else { continue };
            let mut locked = database.lock(keyspace.stripe_of(hash));
            let again = locked.remove_due((hash, &key), now_ms, now_ms + HELD_MS);
            if again.is_none() {
                inner.record_expired(db, &key);
                effects.extend(inner.lose_tracked(hash, &key));
                ready.extend(locked.take_ready());
            }
            again
        };
        match again {
            Some(at_ms) => at_ms.into_iter().for_each(|at_ms| keyspace.own_expiring.remember(memory, db, &key, at_ms)),
            None => {
                if inner.notifier.wants(Class::Expired) {
                    effects.push(Effect::Event(Event { name: "expired", db, key: key[..].into() }));
                }
                inner.emit(effects);
                if !ready.is_empty() {
                    inner.serve_elsewhere(ready);
                }
            }
        }
        if is_over() {
            return false;
        }
    }
    true
}

/// Sweeps one database from stripe `first` on, all around. Returns the stripe at which time ran out.
fn sweep(inner: &Inner, index: u32, first: usize, now_ms: i64, is_over: impl Fn() -> bool) -> Option<usize> {
    let stripes = {
        let pass = inner.gate.enter();
        inner.keyspace.db(&pass, index)?.stripes()
    };
    let first = first % stripes;
    let mut garbage = Vec::new();
    let mut effects = Vec::new();
    for _ in 0..ROUNDS {
        let mut missed = false;
        let mut next = 0;
        // Most ticks find nothing: the search reads no more than the array, and passes the gate once.
        while let Some(step) = {
            let pass = inner.gate.enter();
            let (before, behind) = inner.keyspace.db(&pass, index)?.figures.split_at(first);
            let mut figures = behind.iter().chain(before).enumerate().skip(next);
            figures.find(|(_, figures)| figures.is_due(now_ms)).map(|(step, _)| step)
        } {
            next = step + 1;
            let stripe = (first + step) % stripes;
            let mut done = false;
            while !done {
                // Freed here, because nothing is locked.
                inner.discard(garbage.drain(..));
                if !effects.is_empty() {
                    inner.emit(effects.drain(..));
                }
                let pass = inner.gate.enter();
                let db = inner.keyspace.db(&pass, index)?;
                if !db.figures[stripe].is_due(now_ms) {
                    break;
                }
                let Some(mut locked) = try_hard(|| db.try_lock(stripe)) else {
                    missed = true;
                    break;
                };
                let tell = |class, name, key: &[u8]| {
                    effects.extend(inner.lose_tracked(inner.keyspace.hasher.hash(key), key));
                    if inner.notifier.wants(class) {
                        effects.push(Effect::Event(Event { name, db: index, key: key.into() }));
                    }
                };
                let mut record = |words: &[&[u8]]| inner.record.put(|unit| unit.add(index, words));
                let record: Option<RecordWords<'_>> = if inner.record.is_on() { Some(&mut record) } else { None };
                done = locked.sweep(now_ms, SLOTS_PER_LOCK, &mut garbage, tell, record);
                let ready: VecDeque<ReadyKey> = locked.take_ready().collect();
                drop(locked);
                drop(pass);
                if !ready.is_empty() {
                    inner.serve_elsewhere(ready);
                }
                if is_over() {
                    inner.discard(garbage);
                    inner.emit(effects);
                    return Some(stripe);
                }
            }
        }
        if !missed {
            break;
        }
        // An owner that holds a stripe for so long is not running, and needs the processor more.
        std::thread::yield_now();
    }
    inner.emit(effects);
    None
}

/// Commands hold a lock for less than a microsecond, about what these tries take.
fn try_hard<T>(mut try_lock: impl FnMut() -> Option<T>) -> Option<T> {
    (0..LOCK_TRIES).find_map(|_| {
        std::hint::spin_loop();
        try_lock()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::tick_for;
    use crate::{Caller, Clock, ManualClock, Store, StoreOptions, execute};

    /// A store with so many keys that expire after 10 ms.
    fn filled(stripes: usize, keys: usize) -> (Store, ManualClock) {
        let hand = ManualClock::new(1_000);
        let store = Store::new(StoreOptions { stripes, clock: Clock::Manual(hand.clone()), ..Default::default() });
        let mut out = Vec::new();
        for n in 0..keys {
            let words = [&b"SET"[..], &format!("{n}").into_bytes(), b"v", b"PX", b"10"];
            out.clear();
            let mut out = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
            let _ = execute(&store, &mut Caller::default(), &words, &mut out);
        }
        (store, hand)
    }

    #[test]
    fn a_stripe_in_use_neither_stops_a_tick_nor_is_forgotten() {
        let (store, hand) = filled(1, 1_000);
        hand.advance(20);
        let (locked, when_locked) = channel();
        let (release, when_released) = channel::<()>();
        std::thread::scope(|scope| {
            let inner = &store.0;
            scope.spawn(move || {
                let pass = inner.gate.enter();
                let _stripe = inner.keyspace.db(&pass, 0).expect("it exists").lock(0);
                locked.send(()).expect("the test waits");
                when_released.recv().expect("the test goes on");
            });
            when_locked.recv().expect("a lock");
            store.tick();
            release.send(()).expect("the thread waits");
        });
        assert_eq!(store.stats().expired, 0);
        while store.stats().expired < 1_000 {
            store.tick();
        }
    }

    #[test]
    fn what_a_tick_leaves_is_removed_without_another() {
        let (store, hand) = filled(64, 50_000);
        tick_for(&store.0, Duration::ZERO);
        assert_eq!(store.stats().expired, 0);
        hand.advance(20);
        tick_for(&store.0, Duration::ZERO);
        sluicegate_testkit::wait_for("all keys to be gone", || store.stats().databases.is_empty().then_some(()));
        assert_eq!(store.stats().expired, 50_000);
        assert!(store.used_bytes() < 4 << 20, "{} bytes are left", store.used_bytes());
    }

    #[test]
    fn a_sweep_that_begins_in_the_middle_reaches_every_stripe() {
        let (store, hand) = filled(8, 1_000);
        hand.advance(20);
        store.0.sweeper.stripe.store(5, Ordering::Relaxed);
        store.tick();
        sluicegate_testkit::wait_for("all keys to be gone", || store.stats().databases.is_empty().then_some(()));
        assert_eq!(store.stats().expired, 1_000);
    }

    #[test]
    fn a_flushed_database_is_freed_without_another_tick() {
        let (store, _hand) = filled(64, 50_000);
        let full = store.used_bytes();
        let mut out = Vec::new();
        let mut out = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
        let _ = execute(&store, &mut Caller::default(), &[b"FLUSHALL"], &mut out);
        tick_for(&store.0, Duration::ZERO);
        sluicegate_testkit::wait_for("the memory to be freed", || (store.0.memory.told() * 4 < full).then_some(()));
    }

    #[test]
    fn a_sweep_aside_stops_when_expiry_is_switched_off() {
        let (store, hand) = filled(4, 100);
        store.expire_actively(false);
        hand.advance(20);
        tick_for(&store.0, Duration::ZERO);
        tick_for(&store.0, Duration::ZERO);
        assert_eq!(store.stats().expired, 0);
        store.expire_actively(true);
        sluicegate_testkit::wait_for("all keys to be gone", || {
            tick_for(&store.0, Duration::ZERO);
            (store.stats().expired == 100).then_some(())
        });
    }
}
