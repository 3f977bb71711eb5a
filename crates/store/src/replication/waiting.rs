//! Clients that wait for replicas: an acknowledgement wakes them, and costs one atomic access while nobody waits.
//!
//! **Invariant:** while the list has a waker, the flag is set or the list is about to be emptied by whoever has cleared
//! the flag. So a waker is registered first and the flag set second, both under the lock of the list; otherwise an
//! acknowledgement between the two would find nobody, and the next one would not look.

use std::task::Waker;

use crate::sync::{AtomicBool, Ordering, ParkingMutex};

/// The wakers of waiting clients.
pub(crate) struct Waiting {
    is_awaited: AtomicBool,
    wakers: ParkingMutex<Vec<Waker>>,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting { is_awaited: AtomicBool::new(false), wakers: ParkingMutex::new(Vec::new()) }
    }

    /// Returns whether clients wait.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Registers a client until the next wake-up; it looks at what it waits for afterwards.
    pub(crate) fn listen(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        wakers.retain(|known| !known.will_wake(waker));
        wakers.push(waker.clone());
        // A swap, as on the other side: if that came first, what was acknowledged before it is visible from here on.
        self.is_awaited.swap(true, Ordering::AcqRel);
    }

    /// Wakes the clients after an acknowledgement that they can see.
    pub(crate) fn acknowledged(&self) {
        if self.is_awaited.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Wakes the clients for another reason.
    pub(crate) fn wake_all(&self) {
        let woken = std::mem::take(&mut *self.wakers.lock());
        woken.into_iter().for_each(Waker::wake);
    }
}
