//! Expiry: lazily, when a key is touched, and actively, from a periodic tick.
//!
//! Each stripe publishes the earliest expiry of its keys, and within it each segment knows its own, so a tick finds
//! what is due by reading a dense array: a store in which nothing is due costs about a microsecond per database and
//! tick. Stripes are swept in turns of at most [`SLOTS_PER_LOCK`] keys under the lock and [`BUDGET`] per tick, a
//! quarter of one core when called ten times a second, which removes some millions of keys a second.
//!
//! Redis draws samples instead, and leaves up to a quarter of the expired keys for later; here nothing expired stays
//! longer than the time to the next tick while the budget suffices.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Inner;

/// Time a tick takes at most.
const BUDGET: Duration = Duration::from_millis(25);
/// Keys that are looked at under a stripe's lock in one go.
const SLOTS_PER_LOCK: usize = 200;
/// Stripes of a flushed database that are freed between looks at the clock.
const STRIPES_PER_STEP: usize = 8;

/// Where the sweep goes on.
#[derive(Default)]
pub(crate) struct Sweeper {
    stripe: AtomicUsize,
}

/// Removes expired keys and frees flushed databases.
pub(crate) fn tick(inner: &Inner) {
    let start = Instant::now();
    let now_ms = inner.clock.now_ms();
    sweep(inner, now_ms, start);
    while inner.keyspace.free_discarded(STRIPES_PER_STEP) && start.elapsed() < BUDGET {}
}

fn sweep(inner: &Inner, now_ms: i64, start: Instant) {
    for index in 0..inner.keyspace.databases() {
        let mut garbage = Vec::new();
        let stripes = {
            let pass = inner.gate.enter();
            let Some(db) = inner.keyspace.db(&pass, index) else { continue };
            db.stripes()
        };
        // Starting where the last tick ran out of time, so that every stripe has its turn.
        let first = inner.sweeper.stripe.load(Ordering::Relaxed);
        for step in 0..stripes {
            let stripe = (first + step) % stripes;
            let mut done = false;
            while !done {
                garbage.clear();
                let pass = inner.gate.enter();
                let Some(db) = inner.keyspace.db(&pass, index) else { break };
                if db.figures[stripe].earliest_ms.load(Ordering::Relaxed) > now_ms {
                    break;
                }
                // A stripe that is in use is left for the next tick: its user may wait for nobody.
                let Some(mut locked) = db.try_lock(stripe) else { break };
                (_, done) = locked.sweep(now_ms, SLOTS_PER_LOCK, &mut garbage);
                drop(locked);
                drop(pass);
                if start.elapsed() >= BUDGET {
                    inner.sweeper.stripe.store(stripe, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}
