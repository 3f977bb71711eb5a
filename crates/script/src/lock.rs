//! The lock around a state shared by several workers: held for one burst, and awaited without blocking a worker.
//!
//! A burst is shorter than a wake-up of another worker, so a lock that always hands over to the next in its queue would
//! spend its time in wake-ups (a convoy). Here a release wakes the first waiter and leaves the lock free: the first
//! task to try acquires it. The first waiter can be overtaken `OVERTAKEN_MAX` times; then the lock is handed to it. A
//! task that finds the lock taken spins a little before it parks (`docs/decisions/004`).
//!
//! Cost: uncontended, two atomic exchanges. Limit: as many waiters as there are streams.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The number of times the first waiter may be overtaken before the lock is handed to it.
const OVERTAKEN_MAX: u32 = 64;

/// Spins before a task parks: about the length of a few short bursts.
const SPINS: u32 = 100;

const LOCKED: u32 = 1;
/// The queue is not empty: a release must look at it.
const QUEUED: u32 = 2;

/// An asynchronous lock for short holds, fair within bounds.
pub struct BurstLock<T> {
    word: AtomicU32,
    queue: Mutex<Queue>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives `&mut T` to one thread at a time, which needs `T: Send` and nothing more.
unsafe impl<T: Send> Sync for BurstLock<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for BurstLock<T> {}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Ticket>,
    /// The ticket that owns the lock since a release handed it over, until its task notices.
    granted: Option<u64>,
    next: u64,
}

struct Ticket {
    id: u64,
    waker: Waker,
    woken: bool,
    overtaken: u32,
}

impl<T> BurstLock<T> {
    /// Returns a lock around `value`.
    pub fn new(value: T) -> BurstLock<T> {
        BurstLock { word: AtomicU32::new(0), queue: Mutex::default(), value: UnsafeCell::new(value) }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & LOCKED == 0 {
            match self.word.compare_exchange_weak(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Acquires the lock if it is free, or becomes free within the time that a wake-up would cost.
    #[inline]
    pub fn try_lock(&self) -> Option<BurstGuard<'_, T>> {
        if self.acquire() || self.spin() {
            return Some(BurstGuard { lock: self });
        }
        None
    }

    #[cold]
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.acquire() {
                return true;
            }
        }
        false
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Locking<'_, T> {
        Locking { lock: self, ticket: None }
    }

    /// Blocks the calling thread until it has the lock: for the start of the process and its end, never on a worker.
    pub fn lock_blocking(&self) -> BurstGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            std::thread::yield_now();
        }
    }

    /// Like [`lock_blocking`](Self::lock_blocking), for at most `time`: for callers that cannot await.
    pub fn lock_within(&self, time: Duration) -> Option<BurstGuard<'_, T>> {
        let begun = Instant::now();
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            if begun.elapsed() >= time {
                return None;
            }
            std::thread::yield_now();
        }
    }

    fn release(&self) {
        if self.word.compare_exchange(LOCKED, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.release_queued();
        }
    }

    #[cold]
    fn release_queued(&self) {
        let mut queue = self.queue();
        let mut woken = None;
        match queue.waiting.front_mut() {
            Some(first) if first.overtaken >= OVERTAKEN_MAX => {
                let first = queue.waiting.pop_front().expect("there is a first");
                queue.granted = Some(first.id);
                if queue.waiting.is_empty() {
                    self.word.fetch_and(!QUEUED, Ordering::Relaxed);
                }
                woken = Some(first.waker);
            }
            Some(first) => {
                first.overtaken += 1;
                if !first.woken {
                    first.woken = true;
                    woken = Some(first.waker.clone());
                }
                self.word.fetch_and(!LOCKED, Ordering::Release);
            }
            None => {
                self.word.fetch_and(!(LOCKED | QUEUED), Ordering::Release);
            }
        }
        drop(queue);
        if let Some(waker) = woken {
            waker.wake();
        }
    }

    /// Removes a ticket from the queue; returns whether the lock had been handed to it.
    fn withdraw(&self, id: u64) -> bool {
        let mut queue = self.queue();
        if queue.granted == Some(id) {
            queue.granted = None;
            return true;
        }
        if let Some(index) = queue.waiting.iter().position(|ticket| ticket.id == id) {
            let ticket = queue.waiting.remove(index).expect("it is there");
            if queue.waiting.is_empty() {
                self.word.fetch_and(!QUEUED, Ordering::Relaxed);
            } else if index == 0 && ticket.woken {
                // The wake-up was meant for the first waiter: pass it on.
                let first = queue.waiting.front_mut().expect("it is not empty");
                first.woken = true;
                let waker = first.waker.clone();
                drop(queue);
                waker.wake();
            }
        }
        false
    }
}

/// Waits for a [`BurstLock`].
#[must_use = "futures do nothing unless awaited"]
pub struct Locking<'a, T> {
    lock: &'a BurstLock<T>,
    ticket: Option<u64>,
}

impl<'a, T> Future for Locking<'a, T> {
    type Output = BurstGuard<'a, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.lock;
        let Some(id) = self.ticket else {
            if let Some(guard) = lock.try_lock() {
                return Poll::Ready(guard);
            }
            let mut queue = lock.queue();
            let id = queue.next;
            queue.next += 1;
            queue.waiting.push_back(Ticket { id, waker: cx.waker().clone(), woken: false, overtaken: 0 });
            // From here on every release looks at the queue. A release just before left the lock free.
            lock.word.fetch_or(QUEUED, Ordering::Relaxed);
            drop(queue);
            self.ticket = Some(id);
            if lock.acquire() {
                self.ticket = None;
                let granted = lock.withdraw(id);
                debug_assert!(!granted, "a lock that was free was handed to nobody");
                return Poll::Ready(BurstGuard { lock });
            }
            return Poll::Pending;
        };
        {
            let mut queue = lock.queue();
            if queue.granted == Some(id) {
                queue.granted = None;
                drop(queue);
                self.ticket = None;
                return Poll::Ready(BurstGuard { lock });
            }
            // Recorded before the lock is tried, so that a release after the try wakes again.
            if let Some(ticket) = queue.waiting.iter_mut().find(|ticket| ticket.id == id) {
                ticket.woken = false;
                ticket.waker.clone_from(cx.waker());
            }
        }
        if lock.acquire() || lock.spin() {
            self.ticket = None;
            lock.withdraw(id);
            return Poll::Ready(BurstGuard { lock });
        }
        Poll::Pending
    }
}

impl<T> Drop for Locking<'_, T> {
    fn drop(&mut self) {
        if let Some(id) = self.ticket
            && self.lock.withdraw(id)
        {
            self.lock.release();
        }
    }
}

/// Holds a [`BurstLock`].
pub struct BurstGuard<'a, T> {
    lock: &'a BurstLock<T>,
}

impl<T> Deref for BurstGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BurstGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and `&mut self` makes the reference unique.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BurstGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}
