//! The gate, by which a global section excludes all commands without locking every stripe.
//!
//! Every command passes it: it counts itself in on its thread's own cache line and reads one word that is shared by all
//! and hardly ever written. FLUSHALL, FLUSHDB and SWAPDB close the gate: they set the word and wait until every count
//! is back to zero, which takes microseconds, because commands are short; then they exchange pointers and open it.
//!
//! Sections and parked commands last longer than that. They are counted as *tickets*; a global section that cannot
//! start yet waits for them as a ticket of its own, without the gate being closed, so other commands proceed. Later
//! tickets may overtake it 64 times or for 10 ms; after that they wait behind it.
//!
//! Cost: two atomic additions on an uncontended line for each command (about 10 ns). A thread inside the gate must not
//! enter it again; one that has closed it may.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::hold::{HeldKeys, OVERTAKE_TIMES, Ticket};
use crate::thread::{assert_none_locked, thread_number};
use crate::turnstile::Turnstile;

/// The number of counters; threads beyond this number share them.
const COUNTERS: usize = 64;

/// The gate of a store.
pub(crate) struct Gate {
    /// Closed while a global section runs.
    turnstile: Turnstile,
    /// The thread that has closed the gate, or [`NOBODY`].
    closer: AtomicUsize,
    /// Counts passes of the thread that has closed the gate; these are not blocked.
    alone: AtomicU32,
    /// Locked by the global section that closes the gate.
    turn: Mutex<()>,
    /// Whether `waiting` has entries.
    crowded: AtomicBool,
    waiting: Mutex<Waiting>,
    /// The time for which a waiter may be overtaken.
    pub(crate) overtaken_for: Duration,
}

/// Global commands, transactions that need the keyspace for themselves, and the tickets and sections behind them.
#[derive(Default)]
struct Waiting {
    /// Global commands, and commands that wait behind one.
    tickets: VecDeque<Arc<Ticket>>,
    /// Sections that wait behind a global command.
    sections: Vec<Waker>,
    overtaken: u32,
    since: Option<Instant>,
}

/// Proof that a thread is inside the gate.
pub struct Pass<'s> {
    gate: &'s Gate,
    /// The counter on which it is counted; [`None`] if its owner has a ticket, which keeps the gate open by itself.
    counter: Option<&'s AtomicU32>,
}

impl Pass<'_> {
    /// Does long work outside the gate: a closing gate waits for all passes inside, and all others wait for it.
    ///
    /// # Safety
    /// No reference to a database found with this pass is used any more: the database may have been freed.
    pub(crate) unsafe fn outside<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Enters the gate again even if the work panics, because the pass counts itself out when it is dropped.
        struct Back<'p>(&'p Pass<'p>);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                if let Some(counter) = self.0.counter {
                    self.0.gate.count_in(counter);
                }
            }
        }
        if let Some(counter) = self.counter {
            self.gate.turnstile.leave(counter);
        }
        let _back = Back(self);
        work()
    }

    /// Leaves the gate for an instant if it is closing.
    ///
    /// # Safety
    /// As for [`outside`](Self::outside).
    pub(crate) unsafe fn give_way(&self) {
        if self.gate.turnstile.is_closed() {
            // SAFETY: the caller's promise is the same.
            unsafe { self.outside(|| {}) }
        }
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(counter) = self.counter {
            self.gate.turnstile.leave(counter);
        }
    }
}

/// Proof that the gate is closed: no `Pass` exists, and no ticket but those of a section that holds everything and of
/// those that wait for it.
pub struct Closed<'s> {
    gate: &'s Gate,
    _turn: MutexGuard<'s, ()>,
}

impl Closed<'_> {
    /// Returns a pass for a command that the thread which closed the gate runs. It is dropped before a database is
    /// flushed or swapped.
    pub(crate) fn pass(&self) -> Pass<'_> {
        self.gate.alone.fetch_add(1, Ordering::Relaxed);
        Pass { gate: self.gate, counter: Some(&self.gate.alone) }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.closer.store(NOBODY, Ordering::Relaxed);
        self.gate.turnstile.open();
    }
}

/// Not the number of any thread.
const NOBODY: usize = usize::MAX;

impl Gate {
    pub(crate) fn new(overtaken_for: Duration) -> Gate {
        Gate {
            turnstile: Turnstile::new(COUNTERS),
            closer: AtomicUsize::new(NOBODY),
            alone: AtomicU32::new(0),
            turn: Mutex::new(()),
            crowded: AtomicBool::new(false),
            waiting: Mutex::default(),
            overtaken_for,
        }
    }

    /// Passes the gate. Waits some microseconds if it is closed, unless this thread has closed it: an exclusive
    /// transaction also runs commands of the connection (INFO, CONFIG), which pass the gate by themselves.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Pass<'_> {
        assert_none_locked();
        let counter = self.turnstile.counter(thread_number());
        let is_in = self.turnstile.try_enter(counter) || self.wait_in(counter);
        let counter = if is_in { counter } else { &self.alone };
        Pass { gate: self, counter: Some(counter) }
    }

    /// Returns a pass for the owner of a granted, counted ticket: the gate cannot be closed until the ticket is counted
    /// out.
    #[inline]
    pub(crate) fn enter_with(&self, _held: &HeldKeys) -> Pass<'_> {
        assert_none_locked();
        Pass { gate: self, counter: None }
    }

    /// Counts a thread in. Returns false if the thread has closed the gate itself and was counted in `alone`.
    fn count_in(&self, counter: &AtomicU32) -> bool {
        assert_none_locked();
        if std::ptr::eq(counter, &self.alone) {
            counter.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        self.turnstile.try_enter(counter) || self.wait_in(counter)
    }

    /// [`count_in`](Self::count_in) where the gate was closed.
    #[cold]
    fn wait_in(&self, counter: &AtomicU32) -> bool {
        loop {
            if self.closer.load(Ordering::Relaxed) == thread_number() {
                self.alone.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            self.turnstile.wait();
            if self.turnstile.try_enter(counter) {
                return true;
            }
        }
    }

    /// Closes the gate, unless tickets exist. The caller is outside.
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        assert_none_locked();
        let turn = self.turn.lock();
        self.turnstile.close().then(|| {
            self.closer.store(thread_number(), Ordering::Relaxed);
            Closed { gate: self, _turn: turn }
        })
    }

    /// Closes the gate for a moment although there are tickets: that of the caller, which holds everything or is about
    /// to, and others that wait. The caller is outside, and no other ticket's command runs.
    pub(crate) fn close_beside_tickets(&self) -> Closed<'_> {
        assert_none_locked();
        let turn = self.turn.lock();
        self.turnstile.close_beside_tickets();
        self.closer.store(thread_number(), Ordering::Relaxed);
        Closed { gate: self, _turn: turn }
    }

    /// Returns the number of sections and parked commands that have their keys.
    pub(crate) fn granted(&self) -> usize {
        self.turnstile.granted()
    }

    /// Returns whether a ticket waits for its keys.
    pub(crate) fn has_waiting(&self) -> bool {
        self.turnstile.granted() < self.turnstile.tickets()
    }

    /// Adds a ticket to the count of those that wait for their keys, or removes it.
    pub(crate) fn count_waiting(&self, waits: bool) {
        self.turnstile.count_waiting(waits);
    }

    /// Returns the number of sections and parked commands that exist.
    pub(crate) fn tickets(&self) -> usize {
        self.turnstile.tickets()
    }

    /// Counts a new ticket.
    pub(crate) fn add_ticket(&self, _pass: &Pass<'_>) {
        self.turnstile.add_ticket();
    }

    /// Removes a ticket from the count. Returns whether a global section may now run.
    pub(crate) fn remove_ticket(&self) -> bool {
        self.turnstile.remove_ticket() && self.is_crowded()
    }

    /// Returns whether there are waiters for a global section, or behind one.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::SeqCst)
    }

    /// Returns whether a new ticket must wait behind a global section.
    pub(crate) fn must_wait(&self) -> bool {
        if !self.is_crowded() {
            return false;
        }
        let mut waiting = self.waiting.lock();
        waiting.overtaken += 1;
        waiting.overtaken > OVERTAKE_TIMES || waiting.since.is_some_and(|since| since.elapsed() > self.overtaken_for)
    }

    /// Queues a ticket. The caller then tries to start the first one, since the last ticket inside may just have ended.
    pub(crate) fn queue(&self, ticket: Arc<Ticket>) {
        let mut waiting = self.waiting.lock();
        if waiting.tickets.is_empty() {
            waiting.overtaken = 0;
            waiting.since = Some(Instant::now());
        }
        waiting.tickets.push_back(ticket);
        self.crowded.store(true, Ordering::SeqCst);
    }

    /// Registers the waker of a section that has to wait. Returns false if it need not wait.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.tickets.is_empty() {
            return false;
        }
        if !waiting.sections.iter().any(|known| known.will_wake(waker)) {
            waiting.sections.push(waker.clone());
        }
        true
    }

    /// Returns the first queued ticket. A command is removed; a transaction that waits for exclusivity stays, and
    /// [leaves](Self::leave) by itself.
    pub(crate) fn pop(&self) -> Option<Arc<Ticket>> {
        if !self.is_crowded() {
            return None;
        }
        let mut waiting = self.waiting.lock();
        match waiting.tickets.front()?.is_command() {
            true => waiting.tickets.pop_front(),
            false => waiting.tickets.front().cloned(),
        }
    }

    /// Returns the waiters for exclusivity. Commands among them are removed; a transaction stays, and
    /// [leaves](Self::leave) by itself. The caller reports the commands' end by [`went`](Self::went).
    pub(crate) fn give_up_alone(&self) -> Vec<Arc<Ticket>> {
        let mut waiting = self.waiting.lock();
        let alone = waiting.tickets.iter().filter(|ticket| ticket.wants_to_be_alone()).cloned().collect();
        waiting.tickets.retain(|ticket| !ticket.is_command() || !ticket.wants_to_be_alone());
        alone
    }

    /// Requeues a command that could not start.
    pub(crate) fn requeue(&self, ticket: Arc<Ticket>) {
        let mut waiting = self.waiting.lock();
        waiting.tickets.push_front(ticket);
        self.crowded.store(true, Ordering::SeqCst);
    }

    /// Removes a transaction that waited for exclusivity, after it has run or if it stops waiting.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket>) {
        self.waiting.lock().tickets.retain(|queued| !Arc::ptr_eq(queued, ticket));
        self.went();
    }

    /// Records the end of a queued command, and wakes the sections behind if no other ticket is queued.
    pub(crate) fn went(&self) {
        let wakers = {
            let mut waiting = self.waiting.lock();
            waiting.overtaken = 0;
            waiting.since = Some(Instant::now());
            let empty = waiting.tickets.is_empty();
            self.crowded.store(!empty, Ordering::SeqCst);
            if empty { std::mem::take(&mut waiting.sections) } else { Vec::new() }
        };
        assert_none_locked();
        wakers.into_iter().for_each(Waker::wake);
    }
}
