//! Expiry: lazily, when a key is touched, and actively, from a periodic tick.
//!
//! Each stripe publishes the earliest expiry of its keys, and within it each segment knows its own, so a tick finds
//! what is due by reading a dense array: a store in which nothing is due costs about a microsecond per database and
//! tick. Stripes are swept in turns of at most [`SLOTS_PER_LOCK`] keys under the lock and [`BUDGET`] per tick, a
//! quarter of one core when called ten times a second, which removes some millions of keys a second.
//!
//! Redis draws samples instead, and leaves up to a quarter of the expired keys for later; here nothing expired stays
//! longer than the time to the next tick while the budget suffices.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Inner;

/// Time a tick takes at most.
const BUDGET: Duration = Duration::from_millis(25);
/// Keys that are looked at under a stripe's lock in one go.
const SLOTS_PER_LOCK: usize = 200;
/// Stripes of a flushed database that are freed between looks at the clock.
const STRIPES_PER_STEP: usize = 8;

/// Where the sweep goes on after it ran out of time, so that every stripe of every database has its turn.
#[derive(Default)]
pub(crate) struct Sweeper {
    db: AtomicU32,
    stripe: AtomicUsize,
}

/// Removes expired keys and frees flushed databases.
pub(crate) fn tick(inner: &Inner) {
    let start = Instant::now();
    let now_ms = inner.clock.now_ms();
    let databases = inner.keyspace.databases();
    let first = inner.sweeper.db.load(Ordering::Relaxed);
    for step in 0..databases {
        let db = (first + step) % databases;
        let stripe = if step == 0 { inner.sweeper.stripe.load(Ordering::Relaxed) } else { 0 };
        if let Some(stripe) = sweep(inner, db, stripe, now_ms, start) {
            inner.sweeper.db.store(db, Ordering::Relaxed);
            inner.sweeper.stripe.store(stripe, Ordering::Relaxed);
            break;
        }
    }
    while inner.keyspace.free_discarded(STRIPES_PER_STEP) && start.elapsed() < BUDGET {}
}

/// Sweeps one database from stripe `first` on, all around. Returns the stripe at which time ran out.
fn sweep(inner: &Inner, index: u32, first: usize, now_ms: i64, start: Instant) -> Option<usize> {
    let stripes = {
        let pass = inner.gate.enter();
        inner.keyspace.db(&pass, index)?.stripes()
    };
    let mut garbage = Vec::new();
    for step in 0..stripes {
        let stripe = (first + step) % stripes;
        let mut done = false;
        while !done {
            // Freed here, where nothing is locked.
            garbage.clear();
            let pass = inner.gate.enter();
            let db = inner.keyspace.db(&pass, index)?;
            if db.figures[stripe].earliest_ms.load(Ordering::Relaxed) > now_ms {
                break;
            }
            // A stripe that is in use is left for the next tick: its user must not wait for a sweep, nor this for it.
            let Some(mut locked) = db.try_lock(stripe) else { break };
            (_, done) = locked.sweep(now_ms, SLOTS_PER_LOCK, &mut garbage);
            drop(locked);
            if start.elapsed() >= BUDGET {
                return Some(stripe);
            }
        }
    }
    None
}
