//! Tickets with very many keys: they queue and are granted by a step for each stripe, not for each key.
//!
//! For each stripe of its keys such a ticket has two tables, built in slices before anything is locked: one in which it
//! holds them, and, if they were not free on arrival, one in which it waits for them. The stripe's few other holds are
//! moved into it, and the table replaces the stripe's own. While it is in use, the names of keys on which other tickets
//! queue or are granted are recorded; all other keys of the ticket are unchanged, so they need no check for being free,
//! and when the ticket is granted the first table replaces the second, with the recorded keys moved again.
//!
//! Limit: a stripe in which other tickets touch more than [`TOUCHED_MAX`] keys meanwhile, and one in which a second
//! such ticket queues, is processed key by key.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{HeldKey, Hold, HoldTable, KeyName, Mode, Ticket};

/// The maximum number of other tickets' keys in a stripe that are moved from table to table.
const TOUCHED_MAX: usize = 64;

/// A ticket's keys of one stripe.
pub(crate) struct OfStripe {
    pub(crate) db: u32,
    pub(crate) stripe: u32,
    pub(crate) keys: Range<usize>,
}

/// A ticket's prepared tables for one stripe.
pub(crate) struct Prepared {
    /// The table in which the ticket holds its keys.
    pub(crate) granted: Box<HoldTable>,
    /// The table in which the ticket waits for them.
    pub(crate) queued: Option<Box<HoldTable>>,
}

/// The ticket of very many keys that waits in a table which was built for it.
pub(super) struct Waiter {
    id: u64,
    /// The keys on which other tickets have queued or have been granted since, and those that were in the stripe
    /// before.
    touched: Vec<KeyName>,
}

impl Waiter {
    /// Records a key. Returns false if there are too many.
    fn touch(&mut self, key: &[u8]) -> bool {
        let is_known = self.touched.iter().any(|known| **known == *key);
        if !is_known && self.touched.len() < TOUCHED_MAX {
            self.touched.push(key.into());
            return true;
        }
        is_known
    }
}

impl Ticket {
    /// Builds the table in which it waits for the keys of one more stripe. Returns false once all are built.
    pub(crate) fn prepare_to_wait(self: &Arc<Ticket>) -> bool {
        let mut tables = self.tables.lock();
        let Some(at) = tables.iter().rposition(|prepared| prepared.queued.is_none()) else { return false };
        let keys = &self.keys[self.stripes[at].keys.clone()];
        let mut table = HoldTable::default();
        table.keys.reserve(keys.len());
        for held in keys {
            let hold = Hold { queue: [(self.clone(), held.mode)].into(), ..Hold::default() };
            table.keys.insert(held.key[..].into(), hold);
        }
        table.waiter = Some(Box::new(Waiter { id: self.id, touched: Vec::new() }));
        tables[at].queued = Some(Box::new(table));
        true
    }

    /// Returns the ticket's keys in one of its stripes.
    pub(crate) fn keys_of(&self, place: &OfStripe) -> &[HeldKey] {
        &self.keys[place.keys.clone()]
    }
}

impl Prepared {
    /// Returns the mode in which the ticket wants this key, if it does.
    pub(crate) fn mode_of(&self, key: &[u8]) -> Option<Mode> {
        self.granted.keys.get(key).map(Hold::mode)
    }
}

impl HoldTable {
    /// Records that another ticket queues on a key or is granted it.
    pub(super) fn touch(&mut self, id: u64, key: &[u8]) {
        if let Some(waiter) = &mut self.waiter
            && (waiter.id == id || !waiter.touch(key))
        {
            self.waiter = None;
        }
    }

    /// Records that a ticket no longer waits here.
    pub(super) fn forget_waiter(&mut self, id: u64) {
        self.waiter.take_if(|waiter| waiter.id == id);
    }

    /// Returns the keys on which other tickets may be queued besides a large ticket that waits here, if they are known.
    pub(crate) fn touched_beside(&self, id: u64) -> Option<impl Iterator<Item = &[u8]>> {
        let waiter = self.waiter.as_ref().filter(|waiter| waiter.id == id)?;
        Some(waiter.touched.iter().map(|key| &key[..]))
    }

    /// Returns the first of the keys of a large ticket for which `asks` is false.
    pub(crate) fn first_refused<'k>(
        &'k self,
        ticket: &Ticket,
        keys: &'k [HeldKey],
        prepared: &Prepared,
        asks: impl Fn(&HoldTable, &[u8], Mode) -> bool,
    ) -> Option<&'k [u8]> {
        let is_refused = |key: &&[u8]| prepared.mode_of(key).is_some_and(|mode| !asks(self, key, mode));
        if self.everything.is_some_and(|holder| holder != ticket.id) {
            return keys.first().map(|held| &*held.key);
        }
        match &self.waiter {
            Some(waiter) if waiter.id == ticket.id => waiter.touched.iter().map(|key| &key[..]).find(is_refused),
            _ if self.keys.len() < keys.len() => self.keys.keys().map(|key| &key[..]).find(is_refused),
            _ => keys.iter().find(|held| !asks(self, &held.key, held.mode)).map(|held| &*held.key),
        }
    }
}

/// Queues a large ticket on its keys of a stripe. Returns the values to drop when nothing is locked any more.
pub(crate) fn queue_on(
    holds: &mut Option<Box<HoldTable>>,
    ticket: &Arc<Ticket>,
    keys: &[HeldKey],
    prepared: &mut Prepared,
) -> Option<Box<HoldTable>> {
    ticket.since.get_or_init(Instant::now);
    let may_move = |table: &HoldTable| table.waiter.is_none() && table.keys.len() <= TOUCHED_MAX;
    let queued = prepared.queued.take_if(|_| holds.as_deref().is_none_or(may_move));
    let Some(mut new) = queued else {
        let table = super::table_of(holds);
        keys.iter().for_each(|held| table.queue(&held.key, ticket, held.mode));
        return prepared.queued.take();
    };
    let mut old = holds.take();
    if let Some(old) = &mut old {
        new.everything = old.everything;
        for (key, mut hold) in old.keys.take() {
            if let Some(mode) = prepared.mode_of(&key) {
                hold.queue(ticket, mode);
            }
            if let Some(waiter) = &mut new.waiter {
                waiter.touch(&key);
            }
            new.keys.insert(key, hold);
        }
    }
    *holds = Some(new);
    old
}

/// Grants a large ticket its keys of a stripe, which are free for it. Returns the values to drop when nothing is locked
/// any more.
pub(crate) fn grant_on(
    holds: &mut Option<Box<HoldTable>>,
    ticket: &Ticket,
    keys: &[HeldKey],
    prepared: Prepared,
) -> [Option<Box<HoldTable>>; 2] {
    let Some(table) = holds else {
        *holds = Some(prepared.granted);
        return [None, prepared.queued];
    };
    let touched: Vec<KeyName> = match table.waiter.take_if(|waiter| waiter.id == ticket.id) {
        Some(waiter) => waiter.touched,
        None if table.waiter.is_none() && table.keys.len() <= TOUCHED_MAX => table.keys.keys().cloned().collect(),
        None => {
            keys.iter().for_each(|held| table.grant(ticket.id, &held.key, held.mode));
            return [Some(prepared.granted), prepared.queued];
        }
    };
    let wanted: Vec<Option<Mode>> = touched.iter().map(|key| prepared.mode_of(key)).collect();
    let mut new = prepared.granted;
    new.everything = table.everything;
    for (key, mode) in touched.into_iter().zip(wanted) {
        let Some(hold) = table.keys.remove(&key) else { continue };
        new.keys.insert(key.clone(), hold);
        if let Some(mode) = mode {
            new.grant(ticket.id, &key, mode);
        }
    }
    [Some(std::mem::replace(table, new)), prepared.queued]
}
