//! Keys that a script did not declare, and that others hold when it comes to them.
//!
//! The script waits for such a key while it holds others, so two scripts may wait for each other. Whoever is about to
//! wait looks whether that closes a circle: from the holders of its key along what they wait for themselves. Only
//! scripts that wait are in the map, which nobody touches whose key is free. One of a circle that has written nothing
//! begins anew, with all keys declared that it has touched; it has done nothing that anybody could have seen. If all
//! have written, the one that came last is refused the key, and scripts of both kinds run one after the other from then
//! on, so that it does not happen again.
//!
//! One that waits here goes before all who wait for their first keys: it keeps others waiting itself. One that waits for
//! [everything](crate::everything) waits for all the others here.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::control::Control;
use crate::Inner;
use crate::hold::{HeldKey, Mode, Phase, Ticket};
use crate::section::Section;
use crate::stats::SectionCounts;

/// A script that waits for a key.
struct Waiting {
    ticket: Arc<Ticket>,
    control: Arc<Control>,
}

/// The scripts that wait for keys, by the number of their section.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<u64, Waiting>>);

/// What came of the wait for a key.
#[derive(Debug)]
pub(crate) enum Took {
    /// The section has it.
    Key(HeldKey),
    /// The section holds everything.
    Everything,
    /// The script begins anew.
    Restart,
    /// It may not have it.
    Refused,
}

/// The wait of a script for a key.
pub(crate) struct Take {
    inner: Arc<Inner>,
    /// It has the number of the section, and this key alone; none if everything is wanted.
    ticket: Arc<Ticket>,
    /// Known before it waited.
    early: Option<Took>,
    is_listed: bool,
    /// The section has been told that it has the key.
    is_told: bool,
}

impl Take {
    /// Begins to wait for a key that is held.
    pub(crate) fn new(inner: &Arc<Inner>, section: &Section, control: &Arc<Control>, db: u32, key: &[u8]) -> Take {
        let mode = section.mode_of_more();
        let keys = inner.held_keys(std::iter::once((db, key, mode)));
        let mut take = Take::of(inner, Ticket::taking(section.id(), keys));
        if !take.inner.enter_as_taker(&take.ticket) {
            take.enter(control);
        }
        take
    }

    /// Begins to wait for everything. `control` is that of a script that has keys, so that others may wait for it.
    pub(crate) fn everything(inner: &Arc<Inner>, section: &Section, control: Option<&Arc<Control>>) -> Take {
        let mut take = Take::of(inner, Ticket::taking(section.id(), Vec::new()));
        if !take.inner.hold_everything(&take.ticket)
            && let Some(control) = control
        {
            take.enter(control);
        }
        take
    }

    fn of(inner: &Arc<Inner>, ticket: Ticket) -> Take {
        let (inner, ticket) = (inner.clone(), Arc::new(ticket));
        Take { inner, ticket, early: None, is_listed: false, is_told: false }
    }

    /// Whether everything is wanted.
    fn wants_everything(&self) -> bool {
        self.ticket.keys.is_empty()
    }

    /// Whether the section has got everything already.
    pub(crate) fn has_everything(&self) -> bool {
        self.wants_everything() && self.ticket.phase() == Phase::Granted
    }

    fn enter(&mut self, control: &Arc<Control>) {
        let mut waiters = self.inner.scripts.waiters.0.lock();
        let id = self.ticket.id;
        waiters.insert(id, Waiting { ticket: self.ticket.clone(), control: control.clone() });
        self.is_listed = true;
        let mut given_up = Vec::new();
        // One wait may close several circles. Giving up its own opens them all.
        while let Some(circle) = self.inner.circle(&waiters, id) {
            let victim = circle.iter().copied().find(|member| waiters[member].control.may_restart());
            match victim {
                Some(victim) if victim != id => {
                    // If it was granted its key just now, it waits no longer either.
                    let ticket = &waiters[&victim].ticket;
                    if ticket.cancel() {
                        given_up.push(ticket.clone());
                    }
                }
                victim => {
                    if victim.is_none() {
                        circle.iter().for_each(|member| waiters[member].control.code.set_in_turn());
                        SectionCounts::count(&self.inner.sections.refused);
                    }
                    self.early = Some(if victim.is_some() { Took::Restart } else { Took::Refused });
                    self.ticket.cancel();
                    break;
                }
            }
        }
        drop(waiters);
        given_up.iter().for_each(|ticket| ticket.wake());
    }

    /// What came of it.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Took> {
        if let Some(early) = self.early.take() {
            return Poll::Ready(early);
        }
        self.ticket.listen(context.waker());
        if self.wants_everything() {
            return match self.ticket.phase() {
                Phase::Cancelled => {
                    self.leave_list();
                    Poll::Ready(Took::Restart)
                }
                Phase::Waiting if !self.inner.hold_everything(&self.ticket) => Poll::Pending,
                _ => {
                    self.leave_list();
                    Poll::Ready(Took::Everything)
                }
            };
        }
        match self.ticket.phase() {
            Phase::Granted => {
                self.leave_list();
                self.is_told = true;
                let held = &self.ticket.keys[0];
                let HeldKey { db, stripe, ref key, mode } = *held;
                Poll::Ready(Took::Key(HeldKey { db, stripe, key: key.clone(), mode }))
            }
            Phase::Cancelled => {
                self.leave_list();
                Poll::Ready(Took::Restart)
            }
            _ => Poll::Pending,
        }
    }

    /// The key, for a script that begins anew; none if it wants everything.
    pub(crate) fn key(&self) -> Option<(u32, &[u8], Mode)> {
        self.ticket.keys.first().map(|held| (held.db, &*held.key, held.mode))
    }

    fn leave_list(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.inner.scripts.waiters.0.lock().remove(&self.ticket.id);
        }
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        self.leave_list();
        self.ticket.cancel();
        if self.wants_everything() {
            if self.ticket.phase() == Phase::Cancelled {
                self.inner.want_no_more(&self.ticket);
            }
            return;
        }
        match self.ticket.phase() {
            // The section has the key, and does not know.
            Phase::Granted if !self.is_told => self.inner.drop_taken(&self.ticket),
            Phase::Cancelled => self.inner.leave_takers(&self.ticket),
            _ => {}
        }
    }
}

impl Inner {
    /// The circle of waiting scripts that `id` closes, itself first, if it does.
    fn circle(&self, waiters: &HashMap<u64, Waiting>, id: u64) -> Option<Vec<u64>> {
        // Depth first; a script that led nowhere is not looked at again.
        let blockers = |id: &u64| {
            let ticket = &waiters[id].ticket;
            if ticket.keys.is_empty() {
                // Everybody here has keys, and waits.
                return waiters.keys().copied().filter(|other| other != id).collect();
            }
            self.holders(ticket)
        };
        let mut path: Vec<(u64, SmallVec<[u64; 4]>)> = vec![(id, blockers(&id))];
        let mut seen = vec![id];
        while let Some((_, ahead)) = path.last_mut() {
            let Some(next) = ahead.pop() else {
                path.pop();
                continue;
            };
            if next == id {
                return Some(path.iter().map(|(member, _)| *member).collect());
            }
            if seen.contains(&next) {
                continue;
            }
            seen.push(next);
            if waiters.get(&next).is_some_and(|waiting| waiting.ticket.phase() == Phase::Waiting) {
                path.push((next, blockers(&next)));
            }
        }
        None
    }

    /// Who holds the key that a ticket waits for.
    fn holders(&self, ticket: &Ticket) -> SmallVec<[u64; 4]> {
        let held = &ticket.keys[0];
        let pass = self.gate.enter();
        let stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
        stripe.holds.as_deref().map(|holds| holds.holders(ticket.id, &held.key, held.mode)).unwrap_or_default()
    }
}
