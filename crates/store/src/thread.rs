//! Per-thread facts: the thread's number, and in debug builds how many stripes it has locked.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[cfg(debug_assertions)]
thread_local!(static LOCKED: Cell<usize> = const { Cell::new(0) });

/// In debug builds, counts a stripe that this thread locked.
#[inline]
pub(crate) fn note_locked() {
    #[cfg(debug_assertions)]
    LOCKED.set(LOCKED.get() + 1);
}

/// In debug builds, counts a stripe that this thread unlocked.
#[inline]
pub(crate) fn note_unlocked() {
    #[cfg(debug_assertions)]
    LOCKED.set(LOCKED.get() - 1);
}

/// In debug builds, fails if this thread has a stripe locked: called by functions that wake, wait or run foreign code.
#[inline]
pub(crate) fn assert_none_locked() {
    #[cfg(debug_assertions)]
    assert_eq!(LOCKED.get(), 0, "a stripe's lock is a leaf");
}

/// The number of a thread that has none yet.
const UNNUMBERED: usize = usize::MAX;

// A constant at first, because a value that is computed at the first access is a call at every one.
thread_local!(static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) });

/// Returns the number of this thread.
#[inline]
pub(crate) fn thread_number() -> usize {
    match NUMBER.get() {
        UNNUMBERED => take_number(),
        number => number,
    }
}

#[cold]
fn take_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// The nice value of threads that do what nobody waits for.
const NICE: i32 = 10;

/// Lets the kernel schedule this thread behind the workers.
pub(crate) fn run_behind_others() {
    sluicegate_script::set_nice(0, NICE);
}

/// Returns a waker that unparks this thread.
pub(crate) fn waker() -> Waker {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Parks this thread until `poll` is ready.
pub(crate) fn block_on<R>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> R {
    let waker = waker();
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}
