//! Expiry: lazily, when a key is touched, and actively, from a periodic tick.
//!
//! Each stripe publishes the earliest expiry of its keys, and within it each segment knows its own, so a tick finds
//! what is due by reading a dense array: a store in which nothing is due costs about a microsecond per database and
//! tick. Stripes are swept in steps of about [`SLOTS_PER_LOCK`] keys under the lock, each from where the last one
//! stopped, and for [`BUDGET`] per tick: a quarter of one core when called ten times a second, which removes some
//! millions of keys a second.
//!
//! Redis draws samples instead, and leaves up to a quarter of the expired keys for later; here nothing expired stays
//! longer than the time to the next tick while the budget suffices.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Inner;
use crate::effect::Effect;
use crate::notify::Event;

/// Time a tick takes at most.
const BUDGET: Duration = Duration::from_millis(25);
/// Keys that are looked at under a stripe's lock in one go.
const SLOTS_PER_LOCK: usize = 200;
/// How often a sweep tries to lock a stripe in use before it goes on to the next one.
const LOCK_TRIES: usize = 64;
/// How often a sweep comes back for stripes that were in use, before it leaves them to the next tick.
const ROUNDS: usize = 16;
/// Stripes of a flushed database that are freed between looks at the clock.
const STRIPES_PER_STEP: usize = 8;

/// Where the sweep goes on after it ran out of time, so that every stripe of every database has its turn.
#[derive(Default)]
pub(crate) struct Sweeper {
    /// Keys are only removed when touched: DEBUG SET-ACTIVE-EXPIRE 0.
    pub(crate) paused: AtomicBool,
    db: AtomicU32,
    stripe: AtomicUsize,
}

/// Removes expired keys and frees flushed databases.
pub(crate) fn tick(inner: &Inner) {
    inner.memory.note_peak(inner.memory.told());
    let start = Instant::now();
    inner.discard(inner.memory.take_late());
    let now_ms = inner.clock.now_ms();
    let databases = inner.keyspace.databases();
    let first = inner.sweeper.db.load(Ordering::Relaxed);
    let databases = if inner.sweeper.paused.load(Ordering::Relaxed) { 0 } else { databases };
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
    if inner.memory.is_over() {
        // What a command left to be evicted, or buffers pushed out.
        inner.make_room_for(BUDGET.saturating_sub(start.elapsed()));
    }
}

/// Sweeps one database from stripe `first` on, all around. Returns the stripe at which time ran out.
fn sweep(inner: &Inner, index: u32, first: usize, now_ms: i64, start: Instant) -> Option<usize> {
    let stripes = {
        let pass = inner.gate.enter();
        inner.keyspace.db(&pass, index)?.stripes()
    };
    let mut garbage = Vec::new();
    let mut effects = Vec::new();
    for _ in 0..ROUNDS {
        let mut missed = false;
        for step in 0..stripes {
            let stripe = (first + step) % stripes;
            let mut done = false;
            while !done {
                // Freed here, where nothing is locked.
                inner.discard(garbage.drain(..));
                if !effects.is_empty() {
                    inner.emit(effects.drain(..));
                }
                let pass = inner.gate.enter();
                let db = inner.keyspace.db(&pass, index)?;
                if db.figures[stripe].earliest_ms.load(Ordering::Relaxed) > now_ms {
                    break;
                }
                let Some(mut locked) = try_hard(|| db.try_lock(stripe)) else {
                    missed = true;
                    break;
                };
                done = locked.sweep(now_ms, SLOTS_PER_LOCK, &mut garbage, |class, name, key| {
                    if inner.notifier.wants(class) {
                        effects.push(Effect::Event(Event { name, db: index, key: key.into() }));
                    }
                });
                drop(locked);
                if start.elapsed() >= BUDGET {
                    inner.emit(effects);
                    return Some(stripe);
                }
            }
        }
        if !missed {
            break;
        }
        // Who has a stripe for so long is not running, and needs the processor more.
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
    use std::sync::mpsc::channel;

    use crate::{Caller, Clock, ManualClock, Store, StoreOptions, execute};

    #[test]
    fn a_stripe_in_use_neither_stops_a_tick_nor_is_forgotten() {
        let hand = ManualClock::new(1_000);
        let store = Store::new(StoreOptions { stripes: 1, clock: Clock::Manual(hand.clone()), ..Default::default() });
        let mut out = Vec::new();
        for n in 0..1_000 {
            let words = [&b"SET"[..], &format!("{n}").into_bytes(), b"v", b"PX", b"10"];
            let mut out = sluicegate_wire::resp::ReplyWriter::new(&mut out, Default::default());
            let _ = execute(&store, &mut Caller::default(), &words, &mut out);
        }
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
}
