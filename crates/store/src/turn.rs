//! The queues of tickets: queueing on keys, granting them, and requests of sections for one more key.
//!
//! The end of a ticket releases its keys to the next tickets ([`pass_on`]). Functions that lock stripes must be called
//! without a stripe's lock, and outside of the gate unless they take a [`Pass`].

mod pass_on;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Handler};
use crate::gate::Pass;
use crate::hold::{self, HeldKey, HeldKeys, HoldTable, KeyList, KeyName, Mode, OwnedCommand, Phase, Ticket};
use crate::owned::{ReplyForm, Words};
use crate::stats::SectionCounts;
use crate::stripe::Locked;
use crate::{Inner, invite};

/// The result of a section's request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The section has acquired it.
    Now,
    /// The section had it before.
    Before,
    /// The section holds it in shared mode and wants to write.
    ForReading,
    /// Other tickets hold it.
    Not,
}

/// The section that requests one more key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// A section that has keys.
    Section,
    /// A script that has keys. It is denied the key if it would starve a ticket, and decides what to do.
    Script,
    /// A script without keys: it acquires the key only if it may overtake the waiters.
    First,
}

/// The result of queueing a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    Granted,
    Queued,
    /// Neither: it has too many keys, which are not free, and its [tables](Ticket::prepare_to_wait) have to be built
    /// first.
    Unready,
}

/// Tables that are not needed any more, to be dropped after all locks are released.
type Spent = Vec<Box<HoldTable>>;

/// The reason why a ticket waits.
#[derive(Debug)]
pub(crate) struct Blocker {
    pub(crate) db: u32,
    pub(crate) key: Vec<u8>,
    /// The name of the owner.
    pub(crate) owner: String,
}

/// The hashes of a section's keys.
type Hashes = SmallVec<[u64; 8]>;

/// Locked stripes, in the order in which they were locked.
type LockedList<'p> = SmallVec<[Locked<'p>; 4]>;

impl Inner {
    /// Returns the next ticket's number.
    pub(crate) fn ticket_id(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a ticket, which may have to wait for its keys.
    pub(crate) fn ticket_of(&self, keys: KeyList, command: Option<OwnedCommand>) -> Ticket {
        Ticket::new(self.ticket_id(), keys, command).overtaken_for(self.gate.overtaken_for)
    }

    /// Returns a section's ticket.
    pub(crate) fn ticket_on<'k>(&self, keys: impl Iterator<Item = (u32, &'k [u8], Mode)>) -> Ticket {
        self.ticket_of(self.held_keys(keys), None)
    }

    /// Returns a command that outlives its caller's buffers and does not block.
    pub(crate) fn owned_command(
        &self,
        spec: &'static CommandSpec,
        words: Words,
        db: u32,
        form: ReplyForm,
    ) -> OwnedCommand {
        let is_global = matches!(spec.handler, Handler::Global(_));
        OwnedCommand { row: self.rows.number(spec), is_global, words, db, form, behalf: Behalf::CLIENT, waiter: None }
    }

    /// Returns a ticket for a command that is to be parked.
    pub(crate) fn new_ticket(&self, command: OwnedCommand) -> Arc<Ticket> {
        let words = command.words.to_vec();
        let spec = self.rows.spec(command.row);
        let keys = self.keys_of(spec, &words, command.db);
        let mode = spec.mode();
        let keys = self.held_keys(keys.iter().map(|key| (key.db, words[key.word as usize], mode)));
        Arc::new(self.ticket_of(keys, Some(command)))
    }

    /// Returns the keys in the order in which their stripes are locked, duplicates merged in the stronger mode.
    pub(crate) fn held_keys<'k>(&self, keys: impl Iterator<Item = (u32, &'k [u8], Mode)>) -> KeyList {
        let held = |(db, key, mode): (u32, &[u8], Mode)| {
            let stripe = self.keyspace.stripe_of_key(key) as u32;
            HeldKey { db, stripe, key: KeyName::from_slice(key), mode }
        };
        hold::in_order(keys.map(held).collect())
    }

    /// Locks the stripes of all keys, in order. Returns the locks, and for each key the index of its lock.
    fn lock_held<'p>(&self, pass: &'p Pass<'_>, keys: &[HeldKey]) -> (LockedList<'p>, SmallVec<[usize; 8]>) {
        let mut locks = LockedList::new();
        let mut of_key = SmallVec::with_capacity(keys.len());
        let mut last = None;
        for held in keys {
            if last != Some((held.db, held.stripe)) {
                last = Some((held.db, held.stripe));
                locks.push(self.keyspace.db_to_write(pass, held.db).lock(held.stripe as usize));
            }
            of_key.push(locks.len() - 1);
        }
        (locks, of_key)
    }

    /// Queues a new ticket on all its keys, or grants it immediately if they are free. Returns whether it was granted.
    pub(crate) fn enter_queues(&self, ticket: &Arc<Ticket>) -> bool {
        let granted = self.enter_queues_within(&self.gate.enter(), ticket);
        if !granted {
            self.everything.note_change();
        }
        granted
    }

    /// Like [`enter_queues`](Self::enter_queues), for a caller inside the gate.
    pub(crate) fn enter_queues_within(&self, pass: &Pass<'_>, ticket: &Arc<Ticket>) -> bool {
        self.gate.add_ticket(pass);
        let granted = self.grant_or_queue(pass, ticket);
        SectionCounts::count(if granted { &self.sections.granted } else { &self.sections.parked });
        granted
    }

    /// Like [`enter_queues`](Self::enter_queues), for a section that can prepare its tables for waiting. Returns
    /// without any effect if it has to do that first.
    pub(crate) fn enter_when_ready(&self, ticket: &Arc<Ticket>) -> Entered {
        if ticket.stripes.is_empty() {
            return if self.enter_queues(ticket) { Entered::Granted } else { Entered::Queued };
        }
        let pass = self.gate.enter();
        self.gate.add_ticket(&pass);
        let (entered, spent) = self.enter_large(&pass, ticket);
        drop(pass);
        self.drop_spent(spent);
        match entered {
            Entered::Granted => SectionCounts::count(&self.sections.granted),
            Entered::Queued => {
                SectionCounts::count(&self.sections.parked);
                self.everything.note_change();
            }
            Entered::Unready => {
                let may_go_alone = self.gate.remove_ticket();
                self.everything.note_change();
                if may_go_alone {
                    self.run_waiting();
                }
            }
        }
        entered
    }

    /// Acquires the keys if all of them are free at this moment and no waiter has precedence, and then counts the
    /// section as a ticket. Returns whether it did.
    pub(crate) fn hold_at_once(&self, held: &HeldKeys) -> bool {
        if self.gate.tickets() >= self.tickets_max || self.gate.is_crowded() {
            return false;
        }
        let pass = self.gate.enter();
        self.gate.add_ticket(&pass);
        // Counted before checking whether a section wants everything; see `everything`.
        if !self.everything.is_wanted() && self.grant_at_once(&pass, held) {
            SectionCounts::count(&self.sections.granted);
            return true;
        }
        drop(pass);
        let may_go_alone = self.gate.remove_ticket();
        self.everything.note_change();
        if may_go_alone {
            self.run_waiting();
        }
        false
    }

    fn grant_at_once(&self, pass: &Pass<'_>, held: &HeldKeys) -> bool {
        if let [only] = &held.keys[..] {
            let mut stripe = self.keyspace.db_to_write(pass, only.db).lock(only.stripe as usize);
            self.claim_held(pass, std::slice::from_mut(&mut stripe), &[0], &held.keys);
            let is_free = stripe.holds.as_deref().is_none_or(|holds| holds.may_grant(held.id, &only.key, only.mode));
            if is_free {
                hold::table_of(&mut stripe.holds).grant(held.id, &only.key, only.mode);
            }
            return is_free;
        }
        let (mut locks, of_key) = self.lock_held(pass, &held.keys);
        let hashes = self.prefetch(&locks, &of_key, held);
        self.claim_held(pass, &mut locks, &of_key, &held.keys);
        let is_free = are_free(&locks, &of_key, held, HoldTable::may_grant);
        if is_free {
            grant_all(&mut locks, &of_key, held);
            prefetch_values(&locks, &of_key, held, &hashes);
        }
        is_free
    }

    /// Fetches what leads to the keys of a section, all at once instead of one after the other. Returns their hashes, none if
    /// the tables are so small that this would cost more than it gains.
    #[inline]
    fn prefetch(&self, locks: &[Locked<'_>], of_key: &[usize], held: &HeldKeys) -> Hashes {
        if !locks.first().is_some_and(|stripe| stripe.table.is_wide()) {
            return Hashes::new();
        }
        let hashes: Hashes = held.keys.iter().map(|held| self.keyspace.hasher.hash(&held.key)).collect();
        hashes.iter().zip(of_key).for_each(|(hash, &lock)| locks[lock].table.prefetch(*hash));
        hashes
    }

    /// Returns the key for which a ticket waits, and the ticket that holds or reserves it.
    pub(crate) fn blocker(&self, ticket: &Ticket) -> Option<Blocker> {
        if ticket.phase() != Phase::Waiting {
            return None;
        }
        let pass = self.gate.enter();
        for (at, place) in ticket.stripes.iter().enumerate() {
            let stripe = self.keyspace.db(&pass, place.db)?.lock(place.stripe as usize);
            let Some(holds) = stripe.holds.as_deref() else { continue };
            let tables = ticket.tables.lock();
            let is_mine = |holds: &HoldTable, key: &[u8], mode| holds.holder(ticket.id, key, mode).is_none();
            let prepared = tables.get(at)?;
            let key = holds.first_refused(ticket, ticket.keys_of(place), prepared, is_mine);
            let found = key.and_then(|key| Some((key, holds.holder(ticket.id, key, prepared.mode_of(key)?)?)));
            if let Some((key, owner)) = found {
                let (db, key) = (place.db, key.to_vec());
                drop(tables);
                drop(stripe);
                drop(pass);
                return Some(Blocker { db, key, owner: self.owner_name(owner) });
            }
        }
        if !ticket.stripes.is_empty() {
            return None;
        }
        let (held, owner) = ticket.keys.iter().find_map(|held| {
            let stripe = self.keyspace.db(&pass, held.db)?.lock(held.stripe as usize);
            let owner = stripe.holds.as_deref()?.holder(ticket.id, &held.key, held.mode)?;
            Some((held, owner))
        })?;
        drop(pass);
        Some(Blocker { db: held.db, key: held.key.to_vec(), owner: self.owner_name(owner) })
    }

    /// Returns the name of a key's holder.
    fn owner_name(&self, owner: u64) -> String {
        let name = self.owners.lock().get(&owner).cloned();
        name.unwrap_or_else(|| format!("section-{owner}"))
    }

    /// Grants a waiting ticket if all its keys are free for it.
    fn try_grant(&self, ticket: &Arc<Ticket>) -> bool {
        let pass = self.gate.enter();
        let (granted, spent) = match ticket.stripes.is_empty() {
            true => {
                let (mut locks, of_key) = self.lock_held(&pass, &ticket.keys);
                self.claim_held(&pass, &mut locks, &of_key, &ticket.keys);
                (self.grant_if_free(&mut locks, &of_key, ticket), Spent::new())
            }
            false => {
                let mut locks = self.lock_stripes(&pass, ticket);
                match self.is_large_free(&locks, ticket) {
                    true => self.grant_large(&mut locks, ticket),
                    false => (false, Spent::new()),
                }
            }
        };
        drop(pass);
        self.drop_spent(spent);
        match granted {
            true => SectionCounts::count(&self.sections.granted),
            false => self.everything.note_change(),
        }
        granted
    }

    /// Invites a waiting section to acquire its keys. Returns false if it has to wait for one of them. The keys are
    /// checked one after the other: a ticket that acquires one meanwhile releases it later, and invites again.
    fn invite(&self, ticket: &Arc<Ticket>) -> bool {
        if ticket.is_invited() {
            invite::wake_overdue();
            return true;
        }
        let pass = self.gate.enter();
        let may_try = match ticket.stripes.is_empty() {
            true => ticket.keys.iter().all(|held| {
                let stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
                stripe.holds.as_deref().is_none_or(|holds| holds.may_try(ticket.id, &held.key, held.mode))
            }),
            false => ticket.stripes.iter().enumerate().all(|(at, place)| {
                let stripe = self.keyspace.db_to_write(&pass, place.db).lock(place.stripe as usize);
                let tables = ticket.tables.lock();
                let may_try = |holds: &HoldTable, key: &[u8], mode| holds.may_try(ticket.id, key, mode);
                stripe.holds.as_deref().zip(tables.get(at)).is_none_or(|(holds, prepared)| {
                    holds.first_refused(ticket, ticket.keys_of(place), prepared, may_try).is_none()
                })
            }),
        };
        drop(pass);
        if may_try && ticket.invite() {
            invite::wake(ticket);
        }
        may_try
    }

    /// Grants an invited section its keys if they are still free. Returns whether it did. If not, the tickets behind it
    /// that were not invited because of it are tried.
    pub(crate) fn accept(&self, ticket: &Arc<Ticket>) -> bool {
        if self.try_grant(ticket) {
            return true;
        }
        let mut behind = match ticket.stripes.is_empty() {
            true => self.waiting_for(ticket.keys.iter()),
            false => self.waiting_beside(ticket),
        };
        behind.retain(|candidate| !Arc::ptr_eq(candidate, ticket));
        if self.pass_on_keys(behind) {
            self.run_waiting();
        }
        false
    }

    /// Acquires one more key for a section, without waiting for it.
    pub(crate) fn take_key(&self, by: &HeldKeys, db: u32, key: &[u8], mode: Mode, taker: Taker) -> Taken {
        let hash = self.keyspace.hasher.hash(key);
        let stripe = self.keyspace.stripe_of(hash);
        let pass = self.gate.enter();
        let mut locked = self.keyspace.db_to_write(&pass, db).lock(stripe);
        if mode == Mode::Exclusive && self.keyspace.snapshots.is_running() {
            self.claim(&pass, &mut locked, (db, stripe as u32), hash, key);
        }
        let holds = hold::table_of(&mut locked.holds);
        if holds.has(by.id, key) {
            return Taken::Before;
        }
        if holds.shares(by.id, key) {
            return if mode == Mode::Shared { Taken::Before } else { Taken::ForReading };
        }
        let free = match taker {
            Taker::First => holds.may_grant(by.id, key, mode),
            Taker::Section => holds.may_take(by.id, key, mode),
            Taker::Script => holds.may_take(by.id, key, mode) && !holds.starves(by.id, key, mode),
        };
        if free {
            holds.grant(by.id, key, mode);
        }
        hold::drop_if_empty(&mut locked.holds);
        if free { Taken::Now } else { Taken::Not }
    }

    /// Returns whether a section that wants one more key would starve another ticket.
    pub(crate) fn starves_another(&self, ticket: &Ticket) -> bool {
        let held = &ticket.keys[0];
        let pass = self.gate.enter();
        let stripe = self.keyspace.db_to_write(&pass, held.db).lock(held.stripe as usize);
        stripe.holds.as_deref().is_some_and(|holds| holds.starves(ticket.id, &held.key, held.mode))
    }

    /// Queues a section's request for one more key before all others, or grants it if the key is free. Returns whether
    /// it was granted.
    pub(crate) fn enter_as_taker(&self, ticket: &Arc<Ticket>) -> bool {
        self.grant_or_queue(&self.gate.enter(), ticket)
    }

    /// Grants a ticket its keys if they are free, or queues it on all of them. Returns whether it was granted.
    fn grant_or_queue(&self, pass: &Pass<'_>, ticket: &Arc<Ticket>) -> bool {
        if !ticket.stripes.is_empty() {
            let (entered, spent) = self.enter_large(pass, ticket);
            // The gate is closed, so the keys of the ticket are free.
            debug_assert_eq!((entered, spent.len()), (Entered::Granted, 0));
            return entered == Entered::Granted;
        }
        let (mut locks, of_key) = self.lock_held(pass, &ticket.keys);
        self.claim_held(pass, &mut locks, &of_key, &ticket.keys);
        let granted = self.grant_if_free(&mut locks, &of_key, ticket);
        if !granted {
            self.count_waiting(ticket);
            for (held, &lock) in ticket.keys.iter().zip(&of_key) {
                hold::table_of(&mut locks[lock].holds).queue(&held.key, ticket, held.mode);
            }
        }
        granted
    }

    /// Grants a ticket with very many keys if they are free, or queues it on all of them if its tables are prepared.
    fn enter_large(&self, pass: &Pass<'_>, ticket: &Arc<Ticket>) -> (Entered, Spent) {
        let mut locks = self.lock_stripes(pass, ticket);
        let is_ready = ticket.tables.lock().iter().all(|prepared| prepared.queued.is_some());
        // A section that wants everything records the tickets that it denies, which must then be in the queues.
        if self.is_large_free(&locks, ticket) && (is_ready || !self.everything.is_wanted()) {
            let (granted, spent) = self.grant_large(&mut locks, ticket);
            if granted {
                return (Entered::Granted, spent);
            }
        } else if !is_ready {
            return (Entered::Unready, Spent::new());
        }
        self.count_waiting(ticket);
        let mut spent = Spent::new();
        let mut tables = ticket.tables.lock();
        for ((lock, place), prepared) in locks.iter_mut().zip(&ticket.stripes).zip(tables.iter_mut()) {
            spent.extend(hold::queue_on(&mut lock.holds, ticket, ticket.keys_of(place), prepared));
        }
        (Entered::Queued, spent)
    }

    /// Locks the stripes of a ticket with very many keys.
    fn lock_stripes<'p>(&self, pass: &'p Pass<'_>, ticket: &Ticket) -> Vec<Locked<'p>> {
        let stripes = ticket.stripes.iter();
        stripes.map(|place| self.keyspace.db_to_write(pass, place.db).lock(place.stripe as usize)).collect()
    }

    /// Returns whether all keys of a ticket with very many keys, whose stripes are locked, are free for it.
    fn is_large_free(&self, locks: &[Locked<'_>], ticket: &Ticket) -> bool {
        let tables = ticket.tables.lock();
        let is_free = |holds: &HoldTable, key: &[u8], mode| holds.may_grant(ticket.id, key, mode);
        let mut stripes = locks.iter().zip(&ticket.stripes).zip(tables.iter());
        stripes.all(|((lock, place), prepared)| {
            let holds = lock.holds.as_deref();
            holds.is_none_or(|holds| holds.first_refused(ticket, ticket.keys_of(place), prepared, is_free).is_none())
        })
    }

    /// Grants a ticket with very many keys, which are free, unless a section wants everything or it was cancelled.
    fn grant_large(&self, locks: &mut [Locked<'_>], ticket: &Arc<Ticket>) -> (bool, Spent) {
        if !self.may_begin(ticket) {
            return (false, Spent::new());
        }
        let mut spent = Spent::new();
        let tables = std::mem::take(&mut *ticket.tables.lock());
        for ((lock, place), prepared) in locks.iter_mut().zip(&ticket.stripes).zip(tables) {
            let old = hold::grant_on(&mut lock.holds, ticket, ticket.keys_of(place), prepared);
            spent.extend(old.into_iter().flatten());
        }
        (true, spent)
    }

    /// Drops tables on another thread.
    fn drop_spent(&self, spent: Spent) {
        if !spent.is_empty() {
            self.aside.run(move || drop(spent));
        }
    }

    /// Grants a queued ticket if all its keys, whose stripes are locked, are free for it.
    fn grant_if_free(&self, locks: &mut [Locked<'_>], of_key: &[usize], ticket: &Arc<Ticket>) -> bool {
        let asks = if ticket.goes_first() { HoldTable::may_take } else { HoldTable::may_grant };
        let begins = are_free(locks, of_key, ticket, asks) && self.may_begin(ticket);
        if begins {
            grant_all(locks, of_key, ticket);
        }
        begins
    }

    /// Marks a ticket whose keys are free as granted, unless a section wants everything or it was cancelled.
    fn may_begin(&self, ticket: &Arc<Ticket>) -> bool {
        // Counted as granted before checking whether a section wants everything; see `everything`.
        let waited = ticket.ends_waiting();
        if waited {
            self.gate.count_waiting(false);
        }
        let begins = !self.everything.denies(ticket) && ticket.grant();
        if !begins && waited {
            self.count_waiting(ticket);
        }
        // No lock excludes another thread that tries the same ticket without keys: one that is denied may count it as
        // waiting again after the other has counted it as granted. One of the two sees what the other has done.
        if ticket.keys.is_empty() && ticket.phase() == Phase::Granted && ticket.ends_waiting() {
            self.gate.count_waiting(false);
        }
        begins
    }

    /// Counts a ticket among those that wait for their first keys.
    pub(crate) fn count_waiting(&self, ticket: &Ticket) {
        if !ticket.takes() && ticket.begins_waiting() {
            self.gate.count_waiting(true);
        }
    }
}

/// Returns whether keys, whose stripes are locked, are free according to `asks`, which checks one key in a table of
/// holds.
fn are_free(
    locks: &[Locked<'_>],
    of_key: &[usize],
    held: &HeldKeys,
    asks: fn(&HoldTable, u64, &[u8], Mode) -> bool,
) -> bool {
    let is_free = |key: &HeldKey, holds: &HoldTable| asks(holds, held.id, &key.key, key.mode);
    held.keys
        .iter()
        .zip(of_key)
        .all(|(key, &lock)| locks[lock].holds.as_deref().is_none_or(|holds| is_free(key, holds)))
}

/// Fetches the entries of the keys that [`Inner::prefetch`] returned, and their values.
#[inline]
fn prefetch_values(locks: &[Locked<'_>], of_key: &[usize], held: &HeldKeys, hashes: &Hashes) {
    hashes.iter().zip(of_key).for_each(|(hash, &lock)| locks[lock].table.prefetch_entry(*hash));
    for ((hash, &lock), held) in hashes.iter().zip(of_key).zip(&held.keys) {
        if let Some(slot) = locks[lock].table.find(*hash, &held.key) {
            locks[lock].table.entry(slot).prefetch_value();
        }
    }
}

/// Records the holder in the tables of its keys, whose stripes are locked.
fn grant_all(locks: &mut [Locked<'_>], of_key: &[usize], held: &HeldKeys) {
    for (key, &lock) in held.keys.iter().zip(of_key) {
        hold::table_of(&mut locks[lock].holds).grant(held.id, &key.key, key.mode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Holding;
    use crate::{Store, StoreOptions};

    fn store() -> Store {
        Store::new(StoreOptions { stripes: 4, overtaken_for: std::time::Duration::MAX, ..StoreOptions::default() })
    }

    fn ticket(store: &Store, keys: &[&str], mode: Mode) -> Arc<Ticket> {
        Arc::new(store.0.ticket_on(keys.iter().map(|key| (0, key.as_bytes(), mode))))
    }

    #[test]
    fn exclusive_keys_pass_on_and_shared_ones_are_shared() {
        let store = store();
        let inner = &store.0;
        let [first, second] = [0, 1].map(|_| ticket(&store, &["a", "b"], Mode::Exclusive));
        let [one, other] = [0, 1].map(|_| ticket(&store, &["c"], Mode::Shared));
        assert!(inner.enter_queues(&first));
        assert!(!inner.enter_queues(&second), "it waits");
        assert!(inner.enter_queues(&one) && inner.enter_queues(&other));
        // Keys are acquired in the order of their stripes, and the seed of the hash decides which is first.
        let lowest = second.keys[0].key.to_vec();
        assert_eq!(inner.blocker(&second).map(|blocker| blocker.key), Some(lowest));
        assert!(!inner.accept(&second), "its keys are not free");
        inner.end(first, &[]);
        assert!(second.is_invited() && inner.accept(&second));
        [second, one, other].into_iter().for_each(|ticket| inner.end(ticket, &[]));
        assert_eq!(store.stats().tickets, 0);
    }

    #[test]
    fn a_ticket_that_waits_keeps_nobody_from_its_other_keys_and_may_give_up() {
        let store = store();
        let inner = &store.0;
        let tickets = [&["a"][..], &["a", "b"], &["b"]].map(|keys| ticket(&store, keys, Mode::Exclusive));
        let entered = [0, 1, 2].map(|at: usize| inner.enter_queues(&tickets[at]));
        assert_eq!(entered, [true, false, true]);
        let [first, second, third] = tickets;
        assert!(second.cancel());
        inner.end(second, &[]);
        [first, third].into_iter().for_each(|ticket| inner.end(ticket, &[]));
        assert_eq!(store.stats().tickets, 0);
        let after = ticket(&store, &["a", "b"], Mode::Exclusive);
        assert!(inner.enter_queues(&after));
        inner.end(after, &[]);
    }

    #[test]
    fn keys_are_held_at_once_if_nobody_has_them() {
        let store = store();
        let inner = &store.0;
        let waiting = ticket(&store, &["a"], Mode::Exclusive);
        assert!(inner.enter_queues(&waiting));
        let held = |keys: &[&str]| HeldKeys {
            id: inner.ticket_id(),
            keys: inner.held_keys(keys.iter().map(|key| (0, key.as_bytes(), Mode::Exclusive))),
        };
        assert!(!inner.hold_at_once(&held(&["b", "a"])), "all or none");
        let holding = held(&["b"]);
        assert!(inner.hold_at_once(&holding));
        inner.end_section(&Holding::AtOnce(holding), &[]);
        inner.end(waiting, &[]);
        assert_eq!(store.stats().tickets, 0);
    }

    #[test]
    fn a_ticket_without_keys_that_two_threads_try_is_counted_once() {
        let store = store();
        let inner = &store.0;
        let [owner, other] = [0, 1].map(|_| ticket(&store, &[], Mode::Exclusive));
        assert!(inner.enter_queues(&owner) && inner.enter_queues(&other));
        for round in 0..400 {
            let wants = Arc::new(Ticket::taking(owner.id, KeyList::new()));
            assert!(!inner.hold_everything(&wants, None), "another section exists");
            let waits = ticket(&store, &[], Mode::Exclusive);
            assert!(!inner.enter_queues(&waits), "it is denied");
            let tries = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while waits.phase() == Phase::Waiting {
                        inner.accept(&waits);
                        tries.fetch_add(1, Ordering::SeqCst);
                    }
                });
                while tries.load(Ordering::SeqCst) == 0 {
                    std::hint::spin_loop();
                }
                inner.want_no_more(&wants);
                inner.accept(&waits);
            });
            assert_eq!((waits.phase(), inner.gate.granted()), (Phase::Granted, 3), "round {round}");
            inner.end(waits, &[]);
        }
        [owner, other].into_iter().for_each(|ticket| inner.end(ticket, &[]));
        assert_eq!(store.stats().tickets, 0);
    }
}
