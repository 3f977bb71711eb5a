//! The flag and the counters of the [gate](super::gate).
//!
//! A thread that enters increments its own counter and then reads the flag; the thread that closes the gate sets the
//! flag and then reads the counters. Both write a counter, the closer by adding zero, so the two are ordered there:
//! either the closer sees the thread inside, or the thread sees the gate closed. No ordering between different memory
//! locations is required.
//!
//! This file is independent of the store, and takes its primitives from its parent module, so that a test can run it
//! under a model checker with other primitives.

use super::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering, yield_now};

#[repr(align(128))]
struct Counter(AtomicU32);

/// The counters of the threads inside and of the existing tickets, and the flag that closes the gate.
pub(crate) struct Turnstile {
    closed: AtomicBool,
    inside: Box<[Counter]>,
    /// The number of sections and parked commands that exist; in the upper half, how many of them wait for their keys,
    /// so that one load reads both.
    tickets: AtomicUsize,
}

/// One waiting ticket, as a number in `tickets`.
const WAITING: usize = 1 << 32;

impl Turnstile {
    /// `counters` must be a power of two; if there are more threads than counters, they share them.
    pub(crate) fn new(counters: usize) -> Turnstile {
        assert!(counters.is_power_of_two());
        Turnstile {
            closed: AtomicBool::new(false),
            inside: (0..counters).map(|_| Counter(AtomicU32::new(0))).collect(),
            tickets: AtomicUsize::new(0),
        }
    }

    /// Returns the counter of a thread by its number.
    #[inline]
    pub(crate) fn counter(&self, thread: usize) -> &AtomicU32 {
        // A mask, because a division would take as long as everything else here.
        &self.inside[thread & (self.inside.len() - 1)].0
    }

    /// Counts a thread in. Returns false, without having counted it, if the gate is closed.
    #[inline]
    pub(crate) fn try_enter(&self, counter: &AtomicU32) -> bool {
        counter.fetch_add(1, Ordering::AcqRel);
        let is_in = !self.closed.load(Ordering::Acquire);
        if !is_in {
            self.leave(counter);
        }
        is_in
    }

    /// Waits while the gate is closed.
    pub(crate) fn wait(&self) {
        while self.is_closed() {
            yield_now();
        }
    }

    /// Counts a thread out.
    #[inline]
    pub(crate) fn leave(&self, counter: &AtomicU32) {
        counter.fetch_sub(1, Ordering::Release);
    }

    /// Returns whether the gate is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes the gate and waits until no thread is inside. Returns false, with the gate open, if there are tickets.
    /// The caller is outside and the only thread that closes the gate now.
    pub(crate) fn close(&self) -> bool {
        if self.tickets() > 0 {
            return false;
        }
        self.close_beside_tickets();
        // Tickets are made inside only, so none can appear from here on.
        let is_alone = self.tickets() == 0;
        if !is_alone {
            self.open();
        }
        is_alone
    }

    /// Closes the gate and waits until no thread is inside, regardless of tickets. The caller is outside and the only
    /// thread that closes the gate now.
    pub(crate) fn close_beside_tickets(&self) {
        self.closed.store(true, Ordering::Release);
        for counter in &self.inside {
            // Adding zero instead of loading orders the two threads: a load could miss a thread that has just entered.
            while counter.0.fetch_add(0, Ordering::AcqRel) > 0 {
                yield_now();
            }
        }
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Returns the number of sections and parked commands that exist.
    pub(crate) fn tickets(&self) -> usize {
        self.tickets.load(Ordering::SeqCst) % WAITING
    }

    /// Returns the number of tickets that do not wait for their keys.
    pub(crate) fn granted(&self) -> usize {
        let word = self.tickets.load(Ordering::SeqCst);
        (word % WAITING).saturating_sub(word / WAITING)
    }

    /// Adds a ticket to the count of those that wait, or removes it.
    pub(crate) fn count_waiting(&self, waits: bool) {
        match waits {
            true => self.tickets.fetch_add(WAITING, Ordering::SeqCst),
            false => self.tickets.fetch_sub(WAITING, Ordering::SeqCst),
        };
    }

    /// Counts a ticket; the caller is inside, or has closed the gate.
    pub(crate) fn add_ticket(&self) {
        self.tickets.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a ticket from the count. Returns whether it was the last.
    pub(crate) fn remove_ticket(&self) -> bool {
        self.tickets.fetch_sub(1, Ordering::SeqCst) % WAITING == 1
    }
}
