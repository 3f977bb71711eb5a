//! The lock of a stripe: acquired by one exchange, released by another, with sleeping under contention.
//!
//! It is held for less than a microsecond, so a thread that finds it taken spins for a moment. An owner that holds it
//! for longer is not running: the kernel gave its core to another thread, possibly to the very one that wants the lock.
//! Then that thread sleeps immediately and is woken when the lock is free. Yielding instead, as `parking_lot` does
//! before it sleeps, costs the thread its time slice: Linux (from 6.18 on) counts it as having run, and runs the others
//! until its next tick.
//!
//! This file takes its primitives from its parent module, so that a test can run it under a model checker with other
//! primitives.

use super::sync::{Futex, Ordering};

/// The lock is free.
pub(crate) const FREE: u32 = 0;
/// The lock is taken, and no thread sleeps for it.
const TAKEN: u32 = 1;
/// The lock is taken, and threads may sleep for it.
const AWAITED: u32 = 2;

/// Acquires the lock if it is free.
#[inline]
pub(crate) fn try_lock(futex: &Futex) -> bool {
    futex.word().compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Acquires the lock: tries again as long as `looks` returns true, then sleeps.
#[cold]
pub(crate) fn lock(futex: &Futex, mut looks: impl FnMut() -> bool) {
    while looks() {
        if futex.word().load(Ordering::Relaxed) == FREE && try_lock(futex) {
            return;
        }
    }
    // A woken thread cannot know whether others still sleep.
    while futex.word().swap(AWAITED, Ordering::Acquire) != FREE {
        futex.wait(AWAITED);
    }
}

/// Releases the lock.
#[inline]
pub(crate) fn unlock(futex: &Futex) {
    if futex.word().swap(FREE, Ordering::Release) == AWAITED {
        wake(futex);
    }
}

#[cold]
fn wake(futex: &Futex) {
    futex.wake_one();
}
