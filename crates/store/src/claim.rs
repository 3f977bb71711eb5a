//! The claim word of a blocked client: decides which thread ends its wait.
//!
//! The push that serves it, its timeout, CLIENT UNBLOCK and its disconnection come from different threads. Each must
//! win the word before it does anything, so an element is popped for a client only if that client will receive it, and
//! only once. The winner leaves a reply, then wakes the client's task.
//!
//! This file is independent of the store, and takes its primitives from its parent module, so that a test can run it
//! under a model checker with other primitives.

use std::sync::PoisonError;
use std::task::{Poll, Waker};

use super::sync::{AtomicU8, Mutex, Ordering};

/// The side that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum By {
    /// A command that created the awaited element, or an error.
    Server = 1,
    /// The deadline of the wait.
    Timeout,
    /// CLIENT UNBLOCK.
    Unblock,
    /// The client itself, which has disconnected.
    Client,
}

const WAITING: u8 = 0;

/// One wait, with the reply that ends it.
pub(crate) struct Claim<R> {
    word: AtomicU8,
    reply: Mutex<Option<R>>,
    waker: Mutex<Option<Waker>>,
}

impl<R> Claim<R> {
    pub(crate) fn new() -> Claim<R> {
        Claim { word: AtomicU8::new(WAITING), reply: Mutex::new(None), waker: Mutex::new(None) }
    }

    /// Ends the wait. Returns false if another side has ended it. The winner calls [`answer`](Self::answer), unless it
    /// is the client.
    pub(crate) fn win(&self, by: By) -> bool {
        self.word.compare_exchange(WAITING, by as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether the wait has ended.
    pub(crate) fn is_won(&self) -> bool {
        self.word.load(Ordering::SeqCst) != WAITING
    }

    /// Stores the reply and wakes the client's task. No stripe is locked.
    pub(crate) fn answer(&self, reply: R) {
        *self.reply.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the reply, once. If there is none yet, the sender of the reply will wake the task.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<R> {
        {
            let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
                *place = Some(waker.clone());
            }
        }
        // Read after the waker was stored: the other side stores the reply and then reads the waker.
        match self.reply.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        }
    }
}
