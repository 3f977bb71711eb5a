//! An exclusive transaction, and its transition to a non-exclusive one.
//!
//! After its last command that changes whole databases it holds the keys of its remaining commands, like any other
//! transaction. KEYS may still follow: for keys that other clients may change meanwhile, its result is read now, and
//! for held keys when KEYS runs. So the transaction is still atomic.
//!
//! Cost: the result of KEYS is read under the closed gate, as by KEYS itself, and stored until it runs. If a command
//! whose keys are known only when it runs precedes KEYS, the transaction stays exclusive until then: the keys of such a
//! command are not held yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use sluicegate_wire::resp::ReplySink;

use super::gather::Ready;
use super::{Connection, Exec, Queued, Turn, selected};
use crate::big::takes_long;
use crate::catalogue::Handler;
use crate::command::database::{is_listed, names};
use crate::effect::{Collected, Effect};
use crate::gate::Closed;
use crate::hold::{KeyList, Ticket};
use crate::section::Section;

/// The result of one KEYS for keys that are not held.
pub(super) struct Listed {
    /// Its place among the commands.
    at: usize,
    names: Vec<Vec<u8>>,
}

/// Returns the first command from which on the transaction need not be alone.
pub(super) fn alone_until(commands: &[Queued]) -> usize {
    let Some(last) = commands.iter().rposition(|queued| queued.spec().needs_everything()) else { return 0 };
    let stays = |queued: &Queued| match queued.spec().handler {
        Handler::Global(_) => true,
        _ => queued.spec().others.is_some() && queued.spec().leads(&queued.words.to_vec()).is_some(),
    };
    commands[..=last].iter().rposition(stays).map_or(0, |at| at + 1)
}

impl Exec {
    /// Waits for a moment without sections and parked commands, and runs everything with the gate closed.
    pub(super) fn poll_alone(
        &mut self,
        waker: &Waker,
        context: &mut impl Connection,
        output: &mut Vec<u8>,
    ) -> Poll<()> {
        let inner = self.inner.clone();
        let Turn::Alone(ticket) = &mut self.turn else { return Poll::Ready(()) };
        let closed = match ticket {
            Some(_) => None,
            None => inner.gate.close(),
        };
        let closed = closed.or_else(|| {
            let ticket = ticket.get_or_insert_with(|| {
                let ticket = Arc::new(Ticket::new(inner.ticket_id(), KeyList::new(), None));
                inner.gate.queue(ticket.clone());
                ticket
            });
            // Heard of from here on, so a moment that comes after the next line is not missed.
            ticket.listen(waker);
            inner.gate.close()
        });
        let Some(closed) = closed else {
            let Some(refusal) = ticket.as_ref().and_then(|ticket| ticket.refusal()) else { return Poll::Pending };
            self.leave_gate();
            self.refused(refusal, context, output);
            return Poll::Ready(());
        };
        if self.comes_late(context) {
            drop(closed);
            self.leave_gate();
            self.refuses_late(context, output);
            return Poll::Ready(());
        }
        self.now_us = inner.clock.now_us();
        let collected = Collected::default();
        let is_dirty = self.ends_watch_dirty(context, Some(&closed));
        if self.begin(is_dirty, context, output) {
            let start = Instant::now();
            let free = self.gathered.as_ref().map_or(usize::MAX, |gathered| gathered.free);
            while self.next < self.commands.len() {
                let at = self.next;
                let is_long = self.commands[at].may_take_long() && !self.commands[at].spec().needs_everything();
                if at >= free && (is_long || at > 0 && self.is_slice_over(at - 1, start)) {
                    self.hold_rest(&closed, collected.into_inner(), context);
                    drop(closed);
                    inner.serve_woken();
                    inner.run_waiting();
                    return self.poll_commands(waker, context, output);
                }
                if !self.deny_next(context, output) {
                    self.run_next(context, output, Some((&closed, &collected)));
                }
            }
        }
        // No pass of the gate occurs before these effects are emitted; publishing needs none.
        let mut effects = collected.into_inner();
        inner.record_all(&mut effects);
        inner.emit(effects);
        drop(closed);
        inner.serve_woken();
        self.leave_gate();
        Poll::Ready(())
    }

    /// Goes on as a section on all keys that the commands name.
    fn hold_rest(&mut self, closed: &Closed<'_>, effects: Vec<Effect>, context: &impl Connection) {
        let Some(Ready { ticket, marks, .. }) = self.gathered.take() else { return };
        let section = Section::while_closed(&self.inner, closed, ticket, self.now_us, effects);
        let (mut db, mut listed, pass) = (context.db(), VecDeque::new(), closed.pass());
        for at in marks.into_iter().filter(|at| *at >= self.next) {
            let words = self.commands[at].words.to_vec();
            if self.commands[at].spec().selects() {
                db = selected(&self.inner, words[1]).unwrap_or(db);
            } else {
                let mut names = names(&self.inner, &pass, db, self.now_us / 1000, words[1]);
                names.retain(|name| !section.has_declared(&pass, db, name));
                listed.push_back(Listed { at, names });
            }
        }
        drop(pass);
        section.set_owner(&format!("client-{}", context.client()));
        self.listed = listed;
        if let Turn::Alone(Some(ticket)) = std::mem::replace(&mut self.turn, Turn::Held(section)) {
            self.inner.gate.leave(&ticket);
        }
    }

    /// Leaves the gate's queue and lets the waiters behind it proceed.
    pub(super) fn leave_gate(&mut self) {
        if let Turn::Alone(Some(ticket)) = std::mem::replace(&mut self.turn, Turn::Over) {
            self.inner.gate.leave(&ticket);
            self.inner.run_waiting();
        }
    }

    /// Returns whether the next command is to run on the thread pool.
    pub(super) fn takes_long(&self, context: &impl Connection) -> bool {
        let queued = &self.commands[self.next];
        queued.may_take_long()
            && !self.is_listed(self.next)
            && takes_long(&self.inner, queued.spec(), &queued.words.to_vec(), context.db(), None)
    }

    /// Returns whether the command at this index is a KEYS that was read ahead.
    pub(super) fn is_listed(&self, at: usize) -> bool {
        self.listed.front().is_some_and(|listed| listed.at == at)
    }

    /// Writes the result of the KEYS at this index, if it was read ahead.
    pub(super) fn say_listed(&mut self, at: usize, db: u32, out: &mut dyn ReplySink) -> bool {
        if !self.is_listed(at) {
            return false;
        }
        let Some(listed) = self.listed.pop_front() else { return false };
        let Turn::Held(section) = &self.turn else { return false };
        let pattern = self.commands[at].words.to_vec()[1];
        let pass = self.inner.gate.enter();
        let now_ms = self.now_us / 1000;
        let is_there = |key: &&[u8]| {
            let hash = self.inner.keyspace.hasher.hash(key);
            let Some(db) = self.inner.keyspace.db(&pass, db) else { return false };
            let locked = db.lock(self.inner.keyspace.stripe_of(hash));
            locked.table.find(hash, key).is_some_and(|slot| is_listed(locked.table.entry(slot), pattern, now_ms))
        };
        let held = section.declared().iter().filter(|held| held.db == db).map(|held| &*held.key);
        let own: Vec<&[u8]> = held.filter(is_there).collect();
        out.array(listed.names.len() + own.len());
        listed.names.iter().for_each(|name| out.bulk(name));
        own.iter().for_each(|name| out.bulk(name));
        true
    }
}
