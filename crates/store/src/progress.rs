//! The phase of a ticket, the waker for its changes, and its reply.
//!
//! The phase changes by compare-and-swap, so it may be changed under stripe locks, where no task may be woken; the
//! thread that has changed it wakes the waiter once the locks are released. A waiter registers its waker and then
//! checks the phase; the other side changes the phase and then reads the waker, so one of them sees the other.
//!
//! This file is independent of the store, and takes its primitives from its parent module, so that a test can run it
//! under a model checker with other primitives.

use std::sync::PoisonError;
use std::task::Waker;

use super::sync::{AtomicBool, AtomicU8, Mutex, MutexGuard, Ordering};

/// The phase of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The ticket waits in the queues.
    Waiting,
    /// It holds its keys.
    Granted,
    /// Its command has run, or its section has ended.
    Finished,
    /// Its section gave up before it was granted.
    Cancelled,
}

/// A phase with its invitation, waker and reply.
pub(crate) struct Progress<R> {
    phase: AtomicU8,
    /// Whether the waiter should check by itself whether it may proceed.
    invited: AtomicBool,
    /// Never locked under a stripe's lock.
    waker: Mutex<Option<Waker>>,
    reply: Mutex<Option<R>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R> Progress<R> {
    pub(crate) fn new() -> Progress<R> {
        Progress {
            phase: AtomicU8::new(Phase::Waiting as u8),
            invited: AtomicBool::new(false),
            waker: Mutex::new(None),
            reply: Mutex::new(None),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Waiting,
            1 => Phase::Granted,
            2 => Phase::Finished,
            _ => Phase::Cancelled,
        }
    }

    /// Ends the wait with this phase. Returns false if it has ended already.
    pub(crate) fn end_waiting(&self, to: Phase) -> bool {
        self.phase.compare_exchange(Phase::Waiting as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Invites the waiter to check by itself whether it may proceed. Returns false if an earlier invitation is pending.
    /// The caller wakes the waiter.
    pub(crate) fn invite(&self) -> bool {
        !self.invited.swap(true, Ordering::SeqCst)
    }

    /// Returns whether an invitation is pending.
    pub(crate) fn is_invited(&self) -> bool {
        self.invited.load(Ordering::SeqCst)
    }

    /// Clears the invitation; called by the waiter after it has [listened](Self::listen) and before it checks. Returns
    /// whether there was one.
    pub(crate) fn take_invitation(&self) -> bool {
        self.is_invited() && self.invited.swap(false, Ordering::SeqCst)
    }

    /// Stores the reply. The caller wakes the waiter.
    pub(crate) fn finish(&self, reply: R) {
        *locked(&self.reply) = Some(reply);
        self.phase.store(Phase::Finished as u8, Ordering::SeqCst);
    }

    /// Returns the reply, once.
    pub(crate) fn take_reply(&self) -> Option<R> {
        locked(&self.reply).take()
    }

    /// Registers the waker for the next change. The caller must then check the phase.
    pub(crate) fn listen(&self, waker: &Waker) {
        let mut place = locked(&self.waker);
        match &*place {
            Some(old) if old.will_wake(waker) => {}
            _ => *place = Some(waker.clone()),
        }
    }

    /// Wakes the registered waiter.
    pub(crate) fn wake(&self) {
        let waker = locked(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
