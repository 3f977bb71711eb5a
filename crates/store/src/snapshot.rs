//! Snapshots without a fork: what all stripes of a store know of the snapshot that is being taken.
//!
//! Every entry has a bit, its [parity](sluicegate_data::value::Entry::parity). At rest all of them equal the store's, and
//! a new entry gets that. A snapshot begins with a *cut*: with the gate closed, so that no command and no section is
//! half done, [`Keyspace::cut`](crate::keyspace::Keyspace::cut) flips the store's parity, and from this moment all
//! entries are *unsaved*, at no cost per key. A *pass* goes through the stripes and saves unsaved entries, which makes
//! their parity the store's ([`Stripe::save`](crate::stripe::Stripe::save)). A command that changes an unsaved entry
//! before the pass has reached it saves its old value first, in the stripe ([`image`](crate::stripe::image)), and the
//! pass takes it from there. So an unsaved entry has the value that it had at the cut, every key of the cut is saved
//! once, and no key is that was made after it.
//!
//! A pass owns the databases of the cut by reference count: one that is flushed meanwhile is freed when the pass is
//! through with it, and one that is swapped keeps the number that it had.
//!
//! The next cut needs all parities to be equal, so a pass that fails still goes through the stripes, without saving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::{Mutex, RwLock};
use sluicegate_data::clock::{TICKS_PER_S, idle_ticks};
use sluicegate_data::object::limits::Limits;
use sluicegate_data::rdb::file::{Settings, Usage};
use sluicegate_data::value::Entry;

use crate::hold::HeldKeys;
use crate::loading::{Behind, Loading};
use crate::memory::Policy;

/// What a snapshot keeps of the accesses of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accesses {
    /// Nothing.
    Nothing,
    /// The time since the last one, at this tick: with an LRU policy.
    Idle(u32),
    /// Their counter, at this tick, if it goes down by one in this many minutes: with an LFU policy.
    Counter(u32, i64),
}

impl Accesses {
    /// Returns what Redis keeps with this policy.
    pub(crate) fn of(policy: Policy, ticks: u32, limits: &Limits) -> Accesses {
        match policy {
            Policy::AllkeysLru | Policy::VolatileLru => Accesses::Idle(ticks),
            _ if policy.is_lfu() => Accesses::Counter(ticks, limits.lfu_decay.get()),
            _ => Accesses::Nothing,
        }
    }

    /// Returns an entry's.
    pub(crate) fn usage(self, entry: &Entry) -> Usage {
        match self {
            Accesses::Nothing => Usage::Unknown,
            Accesses::Idle(now) => Usage::IdleS(u64::from(idle_ticks(now, entry.access())) / TICKS_PER_S as u64),
            Accesses::Counter(now, minutes) => Usage::Frequency(entry.frequency_by(now, minutes)),
        }
    }
}

/// How the entries of a snapshot are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) settings: Settings,
    pub(crate) accesses: Accesses,
}

/// The state of snapshots that stripes read, on a line of its own: every command that changes a key reads it.
#[repr(align(128))]
pub(crate) struct Snapshots {
    /// The parity of new entries, and of saved ones.
    parity: AtomicBool,
    /// How old values are written; [`None`] if they are not, because no pass runs, or one that saves nothing. Changed
    /// with the gate closed, or to [`None`], so that nobody waits for this lock under a stripe's.
    form: RwLock<Option<Form>>,
    /// Whether old values are written.
    is_running: AtomicBool,
    /// Whether all databases were flushed since this was last asked.
    is_flushed: AtomicBool,
    /// Whether the pass that runs goes on if all databases are flushed.
    outlives_flush: AtomicBool,
    /// Keys with large unsaved values that someone wanted to change: the snapshot holds them until it has saved them. In
    /// the lock order, this comes after the stripes' locks, and is held only to add or take one.
    claimed: Mutex<Vec<HeldKeys>>,
    /// Bytes of old values that wait in stripes for the pass, and how many may before commands that write have to.
    waiting: AtomicI64,
    waiting_max: AtomicI64,
    /// Where it is told that too much waits.
    loading: Arc<Loading>,
}

impl Snapshots {
    pub(crate) fn new(loading: Arc<Loading>) -> Snapshots {
        Snapshots {
            parity: AtomicBool::new(false),
            form: RwLock::default(),
            is_running: AtomicBool::new(false),
            is_flushed: AtomicBool::new(false),
            outlives_flush: AtomicBool::new(false),
            claimed: Mutex::default(),
            waiting: AtomicI64::new(0),
            waiting_max: AtomicI64::new(i64::MAX),
            loading,
        }
    }

    #[cfg(test)]
    pub(crate) fn at_rest() -> Arc<Snapshots> {
        Arc::new(Snapshots::new(Arc::default()))
    }

    /// Returns the bytes of old values that wait in stripes for the pass.
    pub(crate) fn waiting(&self) -> i64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sets how many bytes may wait.
    pub(crate) fn set_waiting_max(&self, bytes: i64) {
        self.waiting_max.store(bytes, Ordering::Relaxed);
    }

    /// Counts old values that wait from now on. If too many do, commands that have not begun wait, as they would add to
    /// them; rules and scripts of the process do not.
    pub(crate) fn add_waiting(&self, bytes: usize) {
        let waiting = self.waiting.fetch_add(bytes as i64, Ordering::SeqCst) + bytes as i64;
        if waiting > self.waiting_max.load(Ordering::Relaxed) {
            self.loading.hold_writes(Behind::Snapshot);
            // They may have been taken in between.
            self.end_waiting(0);
        }
    }

    /// Counts old values that the pass has taken.
    pub(crate) fn end_waiting(&self, bytes: usize) {
        let waiting = self.waiting.fetch_sub(bytes as i64, Ordering::SeqCst) - bytes as i64;
        if waiting <= self.waiting_max.load(Ordering::Relaxed) {
            self.loading.release_writes(Behind::Snapshot);
        }
    }

    /// Returns the parity of new entries.
    #[inline]
    pub(crate) fn parity(&self) -> bool {
        self.parity.load(Ordering::Relaxed)
    }

    /// Returns whether an entry is unsaved.
    #[inline]
    pub(crate) fn misses(&self, entry: &Entry) -> bool {
        entry.parity() != self.parity()
    }

    /// Makes all entries unsaved. Their old values are written in this form, or not at all. The gate is closed, and no
    /// pass runs.
    pub(crate) fn cut(&self, form: Option<Form>, outlives_flush: bool) {
        self.outlives_flush.store(outlives_flush, Ordering::Relaxed);
        *self.form.write() = form;
        self.is_running.store(form.is_some(), Ordering::Relaxed);
        self.parity.fetch_xor(true, Ordering::Relaxed);
    }

    /// Lets the pass that runs go on without saving anything.
    pub(crate) fn discard(&self) {
        *self.form.write() = None;
        self.is_running.store(false, Ordering::Relaxed);
        self.loading.release_writes(Behind::Snapshot);
    }

    /// Records that all databases are flushed: a save that runs saves nothing more, as in Redis.
    pub(crate) fn note_flush(&self) {
        if !self.outlives_flush.load(Ordering::Relaxed) {
            self.discard();
        }
        self.is_flushed.store(true, Ordering::Relaxed);
    }

    /// Returns whether all databases were flushed since the last call.
    pub(crate) fn take_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::Relaxed) && self.is_flushed.swap(false, Ordering::Relaxed)
    }

    /// Returns whether old values are written.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Adds a key that the snapshot holds now.
    pub(crate) fn add_claim(&self, held: HeldKeys) {
        self.claimed.lock().push(held);
    }

    /// Takes a key that the snapshot holds: first those that it holds alone, as they are soon free.
    pub(crate) fn take_claim(&self) -> Option<HeldKeys> {
        self.take_claim_alone().or_else(|| self.claimed.lock().pop())
    }

    /// Takes a key that the snapshot holds alone.
    pub(crate) fn take_claim_alone(&self) -> Option<HeldKeys> {
        let mut claimed = self.claimed.lock();
        let at = claimed.iter().position(HeldKeys::is_alone)?;
        Some(claimed.swap_remove(at))
    }

    /// Returns how old values are written, if they are.
    pub(crate) fn form(&self) -> Option<Form> {
        *self.form.read()
    }
}
