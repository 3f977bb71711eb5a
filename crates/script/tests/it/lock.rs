//! The lock of the shared state.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use sluicegate_script::BurstLock;

/// Wakes by unparking a thread.
struct Unpark(thread::Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        while !unpark.1.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

#[test]
fn four_threads_count_without_a_loss() {
    const EACH: u64 = 50_000;
    let lock = BurstLock::new(0u64);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    *block_on(lock.lock()) += 1;
                }
            });
        }
    });
    assert_eq!(*lock.lock_blocking(), 4 * EACH);
}

#[test]
fn a_waiter_is_overtaken_a_bounded_number_of_times() {
    let lock = BurstLock::new(());
    let held = lock.try_lock().expect("free");
    let mut waiting = pin!(lock.lock());
    let waker = Waker::noop();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    drop(held);
    let overtakers = (0..1000).take_while(|_| lock.try_lock().is_some()).count();
    assert!(overtakers < 100, "{overtakers} overtook");
    // From here on it owns the lock, whether it knows or not.
    assert!(waiting.as_mut().poll(&mut Context::from_waker(waker)).is_ready());
    assert!(lock.try_lock().is_some(), "the guard was dropped with the poll's result");
}

#[test]
fn a_waiter_that_gives_up_passes_its_turn_on() {
    let lock = BurstLock::new(());
    let held = lock.try_lock().expect("free");
    let waker = Waker::noop();
    let mut second = pin!(lock.lock());
    {
        let mut first = Box::pin(lock.lock());
        assert!(first.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        assert!(second.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        drop(held);
        // Overtaken until the lock is handed to the first, which then leaves without taking it.
        while lock.try_lock().is_some() {}
    }
    assert!(second.as_mut().poll(&mut Context::from_waker(waker)).is_ready());
    assert!(lock.try_lock().is_some());
}
