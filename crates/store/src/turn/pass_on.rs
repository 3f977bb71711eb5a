//! Releasing keys to the next tickets, running parked commands, and global sections.
//!
//! The end of a ticket releases its keys: the ticket is removed from each key, then the waiting tickets are tried. A
//! parked command is run by the releasing thread immediately and its keys are released in turn; a section is woken.
//! Nothing here runs inside the gate or under a stripe's lock of its caller.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_wire::resp::ReplySink;

use crate::Inner;
use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Handler};
use crate::execute::{Attempted, Origin, Who};
use crate::gate::{Closed, Pass};
use crate::hold::{self, HeldKey, HeldKeys, Holding, OwnedCommand, Phase, Ticket};
use crate::loading::READONLY;
use crate::owned::{Finished, ReplyForm, Words, caught};
use crate::park::{Parked, Waits};
use crate::waiter::Blocks;

/// Parked commands that have run, with the keys that their tickets hold in addition to their own.
type Ended = Vec<(Arc<Ticket>, Vec<HeldKey>)>;

impl Inner {
    /// Removes a ticket, or a section without one, from the gate's count. Returns whether a global section may now run.
    fn remove_ticket(&self, ticket: Option<&Ticket>) -> bool {
        if ticket.is_some_and(Ticket::is_counted_out) {
            self.gate.count_waiting(false);
        }
        let may_go_alone = self.gate.remove_ticket();
        self.everything.note_change();
        may_go_alone
    }

    /// Removes a section that has cancelled its wait for one more key from the queue. Tickets behind it may proceed.
    pub(crate) fn leave_takers(&self, ticket: &Arc<Ticket>) {
        let held = &ticket.keys[0];
        let mut candidates = Vec::new();
        {
            let pass = self.gate.enter();
            let mut stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
            if let Some(holds) = &mut stripe.holds {
                candidates = holds.leave_queue(ticket, &held.key);
                hold::drop_if_empty(&mut stripe.holds);
            }
        }
        // The section's own ticket still exists, so no other can become exclusive yet.
        self.pass_on_keys(candidates);
    }

    /// Lets requests of sections for one more key, which they have made without a key, precede all tickets that wait for
    /// their first keys.
    pub(crate) fn put_first(&self, takers: Vec<Arc<Ticket>>) {
        for ticket in &takers {
            let held = &ticket.keys[0];
            let pass = self.gate.enter();
            let mut stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
            if let Some(holds) = &mut stripe.holds {
                holds.put_first(ticket, &held.key);
            }
        }
        // The sections' own tickets still exist, so no other can become exclusive yet.
        self.pass_on_keys(takers);
    }

    /// Releases a key that a section has acquired and does not need any more.
    pub(crate) fn drop_taken(&self, ticket: &Arc<Ticket>) {
        let first = self.release(&self.gate.enter(), ticket, &[]);
        let mut ended = Ended::new();
        self.give_turns_behind(first, ticket, &[], &mut ended);
        self.pass_on_ended(ended);
    }

    /// Returns whether one of these keys has waiters.
    pub(crate) fn is_any_wanted<'k>(&self, keys: impl Iterator<Item = &'k HeldKey>) -> bool {
        let pass = self.gate.enter();
        keys.into_iter().any(|held| {
            let stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
            stripe.holds.as_deref().is_some_and(|holds| holds.is_wanted(&held.key))
        })
    }

    /// Refuses a ticket that waits for its keys.
    pub(crate) fn refuse(&self, ticket: Arc<Ticket>, text: &'static str) {
        if ticket.has_blocked() {
            return;
        }
        // Before the ticket is cancelled: an observer of the cancellation also reads the reason. A ticket granted
        // meanwhile ignores it.
        let _ = ticket.refusal.set(text);
        if !ticket.cancel() {
            return;
        }
        match ticket.take_command() {
            Some(command) => {
                let reply = command.form.collect(|out| out.error(text));
                match &command.waiter {
                    None => ticket.finish(reply, Duration::ZERO),
                    // It is in no queue of blocked clients, so none waits behind it there.
                    Some(waiter) => _ = self.after_turn(waiter, &Cell::new(false), Some(reply)),
                }
                self.end(ticket, &[]);
            }
            // The section notices this by itself, and leaves the queues.
            None => ticket.wake(),
        }
    }

    /// Ends a ticket, granted or cancelled, and releases its keys. `extra` are keys that it acquired later.
    pub(crate) fn end(&self, ticket: Arc<Ticket>, extra: &[HeldKey]) {
        if self.pass_on(ticket, extra) {
            self.run_waiting();
        }
    }

    /// Ends a section that has its keys, and `extra`, which it acquired later.
    pub(crate) fn end_section(&self, holding: &Holding, extra: &[HeldKey]) {
        if self.pass_on_section(holding, extra) {
            self.run_waiting();
        }
    }

    /// Like [`pass_on`](Self::pass_on), for a section that has its keys, and `extra`, which it acquired later.
    pub(crate) fn pass_on_section(&self, holding: &Holding, extra: &[HeldKey]) -> bool {
        let mut ended = Ended::new();
        let first = self.release(&self.gate.enter_with(holding), holding, extra);
        let may_go_alone = self.remove_ticket(holding.ticket().map(|ticket| &**ticket));
        self.give_turns_behind(first, holding, extra, &mut ended);
        may_go_alone | self.pass_on_ended(ended)
    }

    /// Ends a ticket that waits no longer, on another thread if its keys are very many.
    pub(crate) fn end_waiting(self: &Arc<Inner>, ticket: Arc<Ticket>) {
        match ticket.stripes.is_empty() {
            true => self.end(ticket, &[]),
            false => {
                let inner = self.clone();
                self.aside.run(move || inner.end(ticket, &[]));
            }
        }
    }

    /// Ends a ticket and the parked commands that run as a result. Returns whether a global section may now run.
    pub(crate) fn pass_on(&self, ticket: Arc<Ticket>, extra: &[HeldKey]) -> bool {
        let mut ended = Ended::new();
        let may_go_alone = self.pass_on_one(&ticket, extra, &mut ended);
        may_go_alone | self.pass_on_ended(ended)
    }

    /// Starts the tickets that can proceed now, and those behind the parked commands that run as a result. Returns
    /// whether a global section may now run.
    pub(crate) fn pass_on_keys(&self, candidates: Vec<Arc<Ticket>>) -> bool {
        let mut ended = Ended::new();
        self.give_turns(candidates, &mut ended);
        self.pass_on_ended(ended)
    }

    fn pass_on_ended(&self, mut ended: Ended) -> bool {
        let mut may_go_alone = false;
        while let Some((next, extra)) = ended.pop() {
            may_go_alone |= self.pass_on_one(&next, &extra, &mut ended);
        }
        may_go_alone
    }

    /// Ends one ticket. Adds the parked commands that run as a result to `ended`.
    fn pass_on_one(&self, ticket: &Arc<Ticket>, extra: &[HeldKey], ended: &mut Ended) -> bool {
        let first = self.release(&self.gate.enter(), ticket, extra);
        let may_go_alone = self.remove_ticket(Some(&**ticket));
        self.give_turns_behind(first, ticket, extra, ended);
        may_go_alone
    }

    /// Starts `first`, the first tickets in the queues of the released keys. If one of them has to keep waiting, starts
    /// the tickets that can proceed in its stead.
    fn give_turns_behind(&self, first: Vec<Arc<Ticket>>, held: &HeldKeys, extra: &[HeldKey], ended: &mut Ended) {
        if !self.give_turns(first, ended) {
            let behind = self.waiting_for(held.keys.iter().chain(extra));
            self.give_turns(behind, ended);
        }
    }

    /// Starts the tickets that can proceed. Returns false if one has to keep waiting.
    fn give_turns(&self, candidates: Vec<Arc<Ticket>>, ended: &mut Ended) -> bool {
        let mut all = true;
        for candidate in candidates {
            if candidate.phase() != Phase::Waiting {
                continue;
            }
            if candidate.is_to_be_invited() {
                all &= self.invite(&candidate);
                continue;
            }
            if !self.try_grant(&candidate) {
                all = false;
            } else if candidate.is_aside() {
                self.go_aside(candidate);
            } else if candidate.is_command() {
                if let Some(extra) = self.run_granted(&candidate) {
                    ended.push((candidate, extra));
                }
            } else {
                candidate.wake();
            }
        }
        all
    }

    /// Returns the first waiting tickets of keys that are not held exclusively.
    pub(super) fn waiting_for<'k>(&self, keys: impl Iterator<Item = &'k HeldKey>) -> Vec<Arc<Ticket>> {
        let mut waiting = Vec::new();
        let pass = self.gate.enter();
        for held in keys {
            let stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
            if let Some(holds) = stripe.holds.as_deref() {
                holds.waiting_for_free(&held.key, &mut waiting);
            }
        }
        let mut seen = HashSet::new();
        waiting.retain(|ticket: &Arc<Ticket>| seen.insert(ticket.id));
        waiting
    }

    /// Like [`waiting_for`](Self::waiting_for), for the keys of a waiting ticket with very many keys; includes that
    /// ticket.
    pub(super) fn waiting_beside(&self, ticket: &Ticket) -> Vec<Arc<Ticket>> {
        let mut waiting = Vec::new();
        let pass = self.gate.enter();
        for place in &ticket.stripes {
            let stripe = self.keyspace.db_to_write(&pass, place.db).lock(place.stripe as usize);
            let Some(holds) = stripe.holds.as_deref() else { continue };
            match holds.touched_beside(ticket.id) {
                Some(touched) => touched.for_each(|key| holds.waiting_for_free(key, &mut waiting)),
                None => {
                    let keys = ticket.keys_of(place).iter();
                    keys.for_each(|held| holds.waiting_for_free(&held.key, &mut waiting));
                }
            }
        }
        let mut seen = HashSet::new();
        waiting.retain(|ticket: &Arc<Ticket>| seen.insert(ticket.id));
        waiting
    }

    /// Removes a ticket from its keys, and from those acquired later. Returns the tickets that may benefit.
    fn release(&self, pass: &Pass<'_>, of: &HeldKeys, extra: &[HeldKey]) -> Vec<Arc<Ticket>> {
        let mut candidates = Vec::new();
        for held in of.keys.iter().chain(extra) {
            let mut stripe = self.keyspace.db_to_write(pass, held.db).lock(held.stripe as usize);
            if let Some(holds) = &mut stripe.holds {
                holds.release(of.id, &held.key, &mut candidates);
                hold::drop_if_empty(&mut stripe.holds);
            }
        }
        candidates.dedup_by(|a, b| Arc::ptr_eq(a, b));
        candidates
    }

    /// Runs a parked command that has been granted its keys, and serves the waiters of created keys. Returns the
    /// additional keys that its ticket then holds; [`None`] if the command continues on the thread pool, with its
    /// ticket.
    fn run_granted(&self, ticket: &Arc<Ticket>) -> Option<Vec<HeldKey>> {
        let Some(command) = ticket.take_command() else { return Some(Vec::new()) };
        let spec = self.rows.spec(command.row);
        let Handler::Keyspace(handle) = spec.handler else {
            unreachable!("only commands with keys are queued on keys")
        };
        let words = command.words.to_vec();
        let won = Cell::new(false);
        let blocks = match &command.waiter {
            None => Blocks::Never,
            // No element may be popped for a client that has disconnected.
            Some(waiter) if waiter.is_won() => {
                // Nobody reads this: its reply is the waiter's.
                ticket.finish(Finished::Wire(Vec::new()), Duration::ZERO);
                let ready = self.after_turn(waiter, &won, None);
                return Some(self.serve(ticket.id, ready));
            }
            Some(waiter) => Blocks::Known { waiter, won: &won },
        };
        let who = Who {
            id: ticket.id,
            time: None,
            collected: None,
            covers: true,
            hash: None,
            blocks,
            of_script: false,
            behalf: command.behalf,
            request: &[],
        };
        let mut ready = VecDeque::new();
        let (mut blocked, mut is_long) = (false, false);
        let (reply, worked) = caught(command.form, |out| {
            let pass = self.gate.enter();
            match self.attempt(&pass, spec, handle, &words, command.db, who, out, None) {
                Attempted::Done => {}
                Attempted::Ready(brought) => ready = brought.keys,
                Attempted::Blocked(_) => blocked = true,
                Attempted::Long => is_long = true,
                Attempted::Held => {
                    // Its ticket holds every key of the command, so this is a fault of this module; the client still
                    // gets an answer.
                    debug_assert!(false, "a granted command met another hold");
                    out.error("ERR internal error: a granted command met another hold");
                }
            }
        });
        if is_long {
            ticket.put_command(command);
            ticket.put_aside();
            self.go_aside(ticket.clone());
            return None;
        }
        match &command.waiter {
            None => ticket.finish(reply, worked),
            Some(waiter) => {
                // Nobody reads this: its reply is the waiter's.
                ticket.finish(Finished::Wire(Vec::new()), Duration::ZERO);
                // The waiters behind it on its keys could not be served before it.
                ready.extend(self.after_turn(waiter, &won, (!blocked).then_some(reply)));
            }
        }
        Some(self.serve(ticket.id, ready))
    }

    /// Runs a command that has just entered the queues, if these were empty. Returns whether a global section may now
    /// run.
    #[must_use]
    pub(crate) fn run_if_granted(&self, ticket: Arc<Ticket>) -> bool {
        if ticket.phase() == Phase::Granted
            && let Some(extra) = self.run_granted(&ticket)
        {
            return self.pass_on(ticket, &extra);
        }
        false
    }

    /// Runs a command that needs the keyspace for itself, or queues it.
    pub(crate) fn start_global(
        &self,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        Origin { db, behalf, .. }: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        if let Some(closed) = self.gate.close() {
            self.run_global((spec, behalf), &closed, words, db, out);
            drop(closed);
            self.serve_woken();
            return None;
        }
        let command = self.owned_command(spec, Words::new(words), db, form);
        let ticket = self.new_ticket(OwnedCommand { behalf, ..command });
        self.gate.queue(ticket.clone());
        self.run_waiting();
        Some(Parked(Waits::Ticket(ticket)))
    }

    /// Runs a command that has the keyspace for itself.
    fn run_global(
        &self,
        (spec, behalf): (&'static CommandSpec, Behalf),
        closed: &Closed<'_>,
        words: &[&[u8]],
        db: u32,
        out: &mut dyn ReplySink,
    ) {
        let Handler::Global(handle) = spec.handler else { unreachable!("called for global commands") };
        if self.comes_late(spec, behalf) {
            return out.error(READONLY);
        }
        if handle(&self.keyspace, closed, words, db, out) {
            if self.record.is_on() {
                self.record.put(|unit| unit.add(db, words));
            }
            self.emit(self.forget_tracked());
        }
    }

    /// Runs the commands that wait at the gate, as far as possible.
    pub(crate) fn run_waiting(&self) {
        while let Some(ticket) = self.gate.pop() {
            let Some(command) = ticket.take_command() else {
                // A transaction that needs the keyspace for itself: it closes the gate itself.
                ticket.wake();
                return;
            };
            let spec = self.rows.spec(command.row);
            match spec.handler {
                Handler::Global(_) => {
                    let Some(closed) = self.gate.close() else {
                        ticket.put_command(command);
                        self.gate.requeue(ticket);
                        // The last ticket may have ended between the two steps; then no other thread would run the
                        // command.
                        if self.gate.tickets() == 0 {
                            continue;
                        }
                        return;
                    };
                    let words = command.words.to_vec();
                    let who = (spec, command.behalf);
                    let (reply, worked) =
                        caught(command.form, |out| self.run_global(who, &closed, &words, command.db, out));
                    drop(closed);
                    self.gate.went();
                    ticket.finish(reply, worked);
                    self.serve_woken();
                }
                Handler::Keyspace(_) => {
                    ticket.put_command(command);
                    self.gate.went();
                    // Now it queues on its keys like any other; if they are free, it runs here.
                    let granted = self.enter_queues(&ticket);
                    if granted && ticket.is_aside() {
                        self.go_aside(ticket);
                    } else if granted {
                        // Tickets that can proceed then are started in this loop's next iteration.
                        let _ = self.run_if_granted(ticket);
                    }
                }
                Handler::Container | Handler::Connection(_) | Handler::Script(_) => unreachable!("never parked"),
            }
        }
    }
}
