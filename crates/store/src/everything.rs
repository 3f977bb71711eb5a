//! Sections that hold all keys: a script that calls FLUSHALL, FLUSHDB, SWAPDB or KEYS, or a transaction that does so in
//! addition to scripts.
//!
//! Such a section can't close the [gate](crate::gate) for its whole duration, because a script may be long and be
//! suspended. It holds every key of every database instead: each stripe's table of holds records the owner of all its
//! keys, so commands on keys queue there as for any held key, and commands that ignore holds proceed. Databases created
//! meanwhile are created in the held state.
//!
//! To get there it keeps its keys, and *wants* everything: from then on no section and no parked command is granted its
//! keys, except that sections that have begun may acquire more, even before tickets that reserve those keys, which would
//! not be granted them anyway; when no other is left, the stripes are marked, with the gate closed for that moment. One
//! section at a time wants everything, others queue. A script that wants it waits as
//! for an undeclared key (`script::take`), so deadlocks are found there. A script that must be restarted wants
//! everything before it has any key, as a transaction does. Such a section must not keep one from everything that has
//! keys, because it waits for that one's end: it counts as waiting, not as granted, and comes after all that have keys.
//!
//! Counting: a ticket is counted as granted before it checks whether a section wants everything, and such a section
//! announces itself before it reads the count, so one of the two sees the other.
//!
//! Cost: about 1,024 locks for each existing database, at its beginning and at its end. All other sections pay one load
//! when they begin.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::Inner;
use crate::hold::{HeldKey, Holding, NOBODY, Phase, Ticket};
use crate::thread::assert_none_locked;

/// The owner of everything, or the section that wants it.
#[derive(Default)]
pub(crate) struct Everything {
    /// The section of `owner`, or [`NOBODY`].
    wanted_by: AtomicU64,
    /// In the lock order, this comes after the stripes' locks, and no lock comes after it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A ticket of the section that wants everything, granted once the section has it.
    owner: Option<Arc<Ticket>>,
    /// The queue of sections that want it after that.
    next: VecDeque<Arc<Ticket>>,
    /// Tickets that would have been granted otherwise, by their numbers.
    denied: HashMap<u64, Arc<Ticket>>,
}

/// Whether a section is the one that wants everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    /// It is from now on.
    Now,
    /// It was before.
    Before,
    /// Another section is.
    Not,
}

impl Everything {
    /// Returns whether a section other than this one wants everything.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted_by.load(Ordering::SeqCst) != NOBODY
    }

    /// Returns whether a ticket may not be granted its keys, because a section wants everything; the grant is retried
    /// afterwards. A section that has begun may acquire more, and a ticket without keys proceeds.
    pub(crate) fn denies(&self, ticket: &Arc<Ticket>) -> bool {
        if !self.is_wanted() || ticket.takes() || (ticket.keys.is_empty() && ticket.is_command()) {
            return false;
        }
        let mut state = self.state.lock();
        let is_denied = state.owner.is_some();
        if is_denied {
            state.denied.insert(ticket.id, ticket.clone());
        }
        is_denied
    }

    /// Returns the section that holds everything, or wants to.
    pub(crate) fn owner(&self) -> Option<u64> {
        Some(self.wanted_by.load(Ordering::SeqCst)).filter(|id| *id != NOBODY)
    }

    /// Returns the tickets that want everything and do not have it yet.
    pub(crate) fn waiting(&self) -> Vec<Arc<Ticket>> {
        if !self.is_wanted() {
            return Vec::new();
        }
        let state = self.state.lock();
        let all = state.owner.iter().chain(&state.next);
        all.filter(|ticket| ticket.phase() == Phase::Waiting).cloned().collect()
    }

    /// Returns the tickets denied their keys.
    pub(crate) fn denied(&self) -> Vec<Arc<Ticket>> {
        match self.is_wanted() {
            true => self.state.lock().denied.values().cloned().collect(),
            false => Vec::new(),
        }
    }

    /// Notifies the section that wants everything that a ticket has ended, or waits. The caller has no stripe locked.
    #[inline]
    pub(crate) fn note_change(&self) {
        if self.is_wanted() {
            self.wake_owner();
        }
    }

    #[cold]
    fn wake_owner(&self) {
        assert_none_locked();
        let owner = self.state.lock().owner.clone();
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Makes the ticket the one that wants everything, or queues it.
    fn want(&self, ticket: &Arc<Ticket>) -> Wants {
        let mut state = self.state.lock();
        match &state.owner {
            Some(owner) if Arc::ptr_eq(owner, ticket) => Wants::Before,
            Some(owner) if owner.goes_first() || !ticket.goes_first() || owner.phase() != Phase::Waiting => {
                if !state.next.iter().any(|queued| Arc::ptr_eq(queued, ticket)) {
                    state.next.push_back(ticket.clone());
                }
                Wants::Not
            }
            _ => {
                state.next.retain(|queued| !Arc::ptr_eq(queued, ticket));
                // A section without keys waits until this one has ended.
                if let Some(owner) = state.owner.replace(ticket.clone()) {
                    state.next.push_front(owner);
                }
                self.wanted_by.store(ticket.id, Ordering::SeqCst);
                Wants::Now
            }
        }
    }

    /// Withdraws a section's request for everything, and wakes the sections that request it next. Returns the tickets
    /// that were denied their keys.
    fn want_no_more(&self, id: u64) -> Vec<Arc<Ticket>> {
        let (denied, next) = {
            let mut state = self.state.lock();
            state.next.retain(|queued| queued.id != id);
            if state.owner.as_ref().is_none_or(|owner| owner.id != id) {
                return Vec::new();
            }
            state.owner = None;
            self.wanted_by.store(NOBODY, Ordering::SeqCst);
            (std::mem::take(&mut state.denied), state.next.clone())
        };
        next.iter().for_each(|ticket| ticket.wake());
        denied.into_values().collect()
    }
}

impl Inner {
    /// Gives a section everything if no other section has a key. Returns whether it did. `ticket` has the section's
    /// number and no keys, and is granted then. The caller listens to it, and calls this again when it is woken. `own` is the
    /// ticket of a section that [counts as waiting](Self::begin_waiting_for_everything).
    pub(crate) fn hold_everything(&self, ticket: &Arc<Ticket>, own: Option<&Ticket>) -> bool {
        let wants = self.everything.want(ticket);
        let counted = usize::from(own.is_none());
        let is_alone = self.gate.granted() == counted;
        if wants == Wants::Now && !is_alone {
            self.put_takers_first();
        }
        if wants == Wants::Not || !is_alone {
            return false;
        }
        let closed = self.gate.close_beside_tickets();
        if self.gate.granted() != counted || !ticket.grant() {
            return false;
        }
        if let Some(own) = own {
            self.end_waiting_for_everything(own);
        }
        self.keyspace.set_held_by(&closed, ticket.id);
        true
    }

    /// Counts a section without keys, whose ticket this is, as waiting while it wants everything.
    pub(crate) fn begin_waiting_for_everything(&self, own: &Ticket) {
        if own.begins_waiting() {
            self.gate.count_waiting(true);
        }
        self.everything.note_change();
    }

    /// Counts the section as granted again, unless it has ended.
    pub(crate) fn end_waiting_for_everything(&self, own: &Ticket) {
        if own.ends_waiting() {
            self.gate.count_waiting(false);
        }
    }

    /// Withdraws the request of a section for everything, which it has not acquired.
    pub(crate) fn want_no_more(&self, ticket: &Ticket) {
        let denied = self.everything.want_no_more(ticket.id);
        if self.pass_on_keys(denied) {
            self.run_waiting();
        }
    }

    /// Ends a section that holds everything.
    pub(crate) fn end_everything(&self, holding: &Holding, extra: &[HeldKey]) {
        let queued = self.keyspace.set_held_by(&self.gate.close_beside_tickets(), NOBODY);
        let denied = self.everything.want_no_more(holding.id);
        let may_go_alone = self.pass_on_section(holding, extra) | self.pass_on_keys(queued) | self.pass_on_keys(denied);
        if may_go_alone {
            self.run_waiting();
        }
    }
}
