//! The gate that lets a global section be alone without locking every stripe.
//!
//! Every command passes it: it counts itself in on its thread's own cache line and looks at one word that is read by
//! all and hardly ever written. FLUSHALL, FLUSHDB and SWAPDB close the gate: they set the word and wait until every
//! count is back to zero, which takes microseconds, because commands are short; then they exchange pointers and open it.
//!
//! Sections and parked commands live longer than that. They are counted as *tickets*; a global section whose turn it
//! is not waits for them as a ticket of its own, without the gate being closed, so other commands go on. Tickets that
//! come later may overtake it 64 times or for 10 ms; after that they wait behind it.
//!
//! Cost: two atomic additions on an uncontended line for each command (about 10 ns). A thread inside the gate must not
//! enter it again; one that has closed it may.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::hold::{OVERTAKE_FOR, OVERTAKE_TIMES, Ticket};
use crate::stripe::assert_none_locked;

/// Counters; threads beyond this number share them.
const COUNTERS: usize = 64;

#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU32);

/// The gate of a store.
pub(crate) struct Gate {
    /// Set while a global section is alone.
    closed: AtomicBool,
    inside: Box<[Counter]>,
    /// The thread that has closed the gate, or [`NOBODY`].
    closer: AtomicUsize,
    /// Counts passes of who has closed the gate, and stops nobody.
    alone: AtomicU32,
    /// Sections and parked commands that exist.
    tickets: AtomicUsize,
    /// Held by the global section that closes the gate.
    turn: Mutex<()>,
    /// Whether `waiting` has something.
    crowded: AtomicBool,
    waiting: Mutex<Waiting>,
}

/// Those who wait for a global section, or to become one.
#[derive(Default)]
struct Waiting {
    /// Global commands, and commands that wait behind one.
    tickets: VecDeque<Arc<Ticket>>,
    /// Sections that wait behind one.
    sections: Vec<Waker>,
    overtaken: u32,
    since: Option<Instant>,
}

/// Proof that a thread is inside the gate.
pub struct Pass<'s> {
    gate: &'s Gate,
    counter: &'s AtomicU32,
}

impl Pass<'_> {
    /// Does something long outside the gate: a closing gate waits for everybody inside, and everybody else for it.
    ///
    /// # Safety
    /// No reference to a database that was found with this pass is used any more: the database may be gone.
    pub(crate) unsafe fn outside<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Comes back in even if the work panics, because the pass counts itself out once more when it is dropped.
        struct Back<'p>(&'p Pass<'p>);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.gate.count_in(self.0.counter);
            }
        }
        self.counter.fetch_sub(1, Ordering::Release);
        let _back = Back(self);
        work()
    }

    /// Steps outside for an instant if the gate is closing.
    ///
    /// # Safety
    /// As for [`outside`](Self::outside).
    pub(crate) unsafe fn give_way(&self) {
        if self.gate.closed.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise is the same.
            unsafe { self.outside(|| {}) }
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Release);
    }
}

/// Proof that the gate is closed: no `Pass` and no ticket exists.
pub struct Closed<'s> {
    gate: &'s Gate,
    _turn: MutexGuard<'s, ()>,
}

impl Closed<'_> {
    /// A pass for a command that is run while the gate is closed, by who closed it. It is dropped before a database is
    /// flushed or swapped.
    pub(crate) fn pass(&self) -> Pass<'_> {
        self.gate.alone.fetch_add(1, Ordering::Relaxed);
        Pass { gate: self.gate, counter: &self.gate.alone }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.closer.store(NOBODY, Ordering::Relaxed);
        self.gate.closed.store(false, Ordering::SeqCst);
    }
}

/// No thread's number.
const NOBODY: usize = usize::MAX;

/// The number of this thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|mine| *mine)
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            closed: AtomicBool::new(false),
            inside: (0..COUNTERS).map(|_| Counter::default()).collect(),
            closer: AtomicUsize::new(NOBODY),
            alone: AtomicU32::new(0),
            tickets: AtomicUsize::new(0),
            turn: Mutex::new(()),
            crowded: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Passes the gate; waits some microseconds if it is closed, unless by this thread: a transaction that is alone runs
    /// commands of the connection, too (INFO, CONFIG), which know nothing of it.
    #[inline]
    pub(crate) fn enter(&self) -> Pass<'_> {
        let counter = &self.inside[thread_number() % COUNTERS].0;
        let counter = if self.count_in(counter) { counter } else { &self.alone };
        Pass { gate: self, counter }
    }

    /// Counts a thread in; false if it has closed the gate itself and was counted among those who are alone.
    #[inline]
    fn count_in(&self, counter: &AtomicU32) -> bool {
        assert_none_locked();
        loop {
            // Sequentially consistent on both sides: either this thread sees the gate closed, or whoever closes it
            // sees this thread inside.
            counter.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) || std::ptr::eq(counter, &self.alone) {
                return true;
            }
            counter.fetch_sub(1, Ordering::Release);
            if self.closer.load(Ordering::Relaxed) == thread_number() {
                self.alone.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            while self.closed.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    }

    /// Closes the gate, unless tickets exist. The caller is outside.
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        assert_none_locked();
        let turn = self.turn.lock();
        if self.tickets.load(Ordering::SeqCst) > 0 {
            return None;
        }
        self.closed.store(true, Ordering::SeqCst);
        self.closer.store(thread_number(), Ordering::Relaxed);
        let closed = Closed { gate: self, _turn: turn };
        for counter in &self.inside {
            while counter.0.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
        // Tickets are made inside the gate only, so none can appear from here on.
        (self.tickets.load(Ordering::SeqCst) == 0).then_some(closed)
    }

    /// Sections and parked commands that exist.
    pub(crate) fn tickets(&self) -> usize {
        self.tickets.load(Ordering::SeqCst)
    }

    /// Counts a ticket in.
    pub(crate) fn add_ticket(&self, _pass: &Pass<'_>) {
        self.tickets.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a ticket out. Returns whether a global section may now have its turn.
    pub(crate) fn remove_ticket(&self) -> bool {
        self.tickets.fetch_sub(1, Ordering::SeqCst) == 1 && self.crowded.load(Ordering::SeqCst)
    }

    /// Whether a new ticket must wait behind a global section.
    pub(crate) fn must_wait(&self) -> bool {
        if !self.crowded.load(Ordering::SeqCst) {
            return false;
        }
        let mut waiting = self.waiting.lock();
        waiting.overtaken += 1;
        waiting.overtaken > OVERTAKE_TIMES || waiting.since.is_some_and(|since| since.elapsed() > OVERTAKE_FOR)
    }

    /// Queues a command. The caller then gives the first one a chance, since the last ticket may just have gone.
    pub(crate) fn queue(&self, ticket: Arc<Ticket>) {
        let mut waiting = self.waiting.lock();
        if waiting.tickets.is_empty() {
            waiting.overtaken = 0;
            waiting.since = Some(Instant::now());
        }
        waiting.tickets.push_back(ticket);
        self.crowded.store(true, Ordering::SeqCst);
    }

    /// Lets a section be woken when it may try again; false if it may at once.
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

    /// Takes the first queued command.
    pub(crate) fn pop(&self) -> Option<Arc<Ticket>> {
        if !self.crowded.load(Ordering::SeqCst) {
            return None;
        }
        self.waiting.lock().tickets.pop_front()
    }

    /// Puts back a command whose turn it was not.
    pub(crate) fn requeue(&self, ticket: Arc<Ticket>) {
        let mut waiting = self.waiting.lock();
        waiting.tickets.push_front(ticket);
        self.crowded.store(true, Ordering::SeqCst);
    }

    /// Takes out somebody who queued for a turn alone, and has had it or gives up.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket>) {
        self.waiting.lock().tickets.retain(|queued| !Arc::ptr_eq(queued, ticket));
        self.went();
    }

    /// Tells that a queued command was carried out; wakes the sections behind when none is left.
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
