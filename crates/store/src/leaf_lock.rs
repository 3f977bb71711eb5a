//! The lock of a stripe: taken by one exchange, given back by another, and slept for where that does not help.
//!
//! It is held for less than a microsecond, so a thread that finds it taken looks again for a moment. Whoever has it for
//! longer does not run: the kernel gave its core to somebody else, at times to the very thread that wants the lock. Then
//! that one sleeps at once and is woken when the lock is free. To yield instead, as `parking_lot` does before it sleeps,
//! costs the thread its claim on the core: Linux takes it (from 6.18 on) for having had its turn, and lets the others go
//! on until its next tick.
//!
//! This file takes its primitives from its parent module, so that a test runs it under a model checker with others.

use super::sync::{Futex, Ordering};

/// Nobody has it.
pub(crate) const FREE: u32 = 0;
/// Somebody has it, and nobody sleeps for it.
const TAKEN: u32 = 1;
/// Somebody has it, and others may sleep.
const AWAITED: u32 = 2;

/// Takes it if nobody has it.
#[inline]
pub(crate) fn try_lock(futex: &Futex) -> bool {
    futex.word().compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Takes it, after `looks` looks by sleeping.
#[cold]
pub(crate) fn lock(futex: &Futex, mut looks: impl FnMut() -> bool) {
    while looks() {
        if futex.word().load(Ordering::Relaxed) == FREE && try_lock(futex) {
            return;
        }
    }
    // Who has slept can't know whether others sleep still.
    while futex.word().swap(AWAITED, Ordering::Acquire) != FREE {
        futex.wait(AWAITED);
    }
}

/// Gives it back.
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
