//! Clients blocked until an element arrives: BLPOP and the other blocking commands, and XREAD.
//!
//! A command that finds nothing leaves a *waiter* for each of its keys, in the key's stripe and under the lock of its
//! look-up, so there is no race. When a key with waiters is created, its stripe records it as *ready*, whatever created
//! it: a push, RENAME, RESTORE, COPY, SORT … STORE, SWAPDB. The thread that created the key serves the waiters when its
//! command or section has ended, and before any other command sees the key. For that, a plain command acquires a hold
//! on the ready key under the same lock; a section already has one. That is Redis's order: the command, then blocked
//! clients in the order in which they blocked, then all others. Keys created by serving (BLMOVE) are served in turn.
//!
//! Each waiter has one [claim](crate::claim): push, timeout, CLIENT UNBLOCK and disconnection race for it, and only the
//! winner acts. If a section filled several keys of a waiter, it is served from the first key in its command's order
//! (Redis 7.2), whichever was filled first. The waiter leaves the queues of its other keys when its client receives the
//! reply.
//!
//! A stream becomes ready whenever an entry is added, but only waiters whose
//! [`suits`](crate::catalogue::Blocking::suits) accepts it are served. Readers without a group all are, as reading
//! removes nothing; of a group, those for whom there are entries left. A waiter gets the entries of all its streams that
//! are ready.
//!
//! A consumer of a group waits for a group that exists: a key that is removed, whatever removes it, or that gets another
//! type becomes ready for such waiters as well, and so does a stream that loses a group; they are served an error.
//!
//! When a section holds the destination of a BLMOVE, the waiter of the BLMOVE becomes a parked command on both keys and
//! is queued like any other; if it then finds nothing, it waits again, at its old place.
//!
//! Cost: a stripe without waiters pays one branch when a key is created, and one when it is unlocked. Limit: one waiter
//! per connection.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::Inner;
use crate::behalf::Behalf;
use crate::catalogue::CommandSpec;
use crate::context::{Ctx, Place};
use crate::effect::Effects;
use crate::gate::Pass;
use crate::hold::{self, HeldKey, KeyList, Mode, NOBODY, OwnedCommand, Ticket};
use crate::keyspace::Db;
use crate::owned::{Finished, ReplyForm, Words, caught};
use crate::park::Ready;
use crate::stripe::{Now, Stripe};
use crate::waiter::{Blocks, ReadyKey, Waiter};

impl Inner {
    /// Returns a waiter for a command; [`None`] if the command, with these words, never waits.
    pub(crate) fn new_waiter(
        &self,
        spec: &'static CommandSpec,
        words: &Words,
        db: u32,
        form: ReplyForm,
        behalf: Behalf,
    ) -> Option<Arc<Waiter>> {
        let blocking = spec.blocking.filter(|blocking| blocking.waits(&words.to_vec()))?;
        // The handler reports an invalid timeout.
        let deadline = blocking.deadline(&words.to_vec()).unwrap_or_default();
        Some(Waiter::new(self.rows.number(spec), blocking.wanted(), words.clone(), (db, form, behalf), deadline))
    }

    /// Collects the ready keys of commands that have run, in the order in which the keys were created, and acquires
    /// holds on them if the commands were plain ones (not part of a section).
    #[cold]
    pub(crate) fn take_ready(&self, ctx: &mut Ctx<'_>, id: u64) -> Box<Ready> {
        let own = if id == NOBODY { self.ticket_id() } else { id };
        let (mut keys, mut held) = (Vec::new(), Vec::new());
        for stripe in &mut ctx.locks {
            let Some(waits) = &mut stripe.waits else { continue };
            let ready: Vec<(u64, ReadyKey)> = waits.take_numbered().collect();
            for (number, (db, key)) in ready {
                if id == NOBODY {
                    self.hold_key(stripe, own, db, &key, &mut held);
                }
                keys.push((number, (db, key)));
            }
        }
        keys.sort_unstable_by_key(|(number, _)| *number);
        let keys = keys.into_iter().map(|(_, key)| key).collect();
        let ticket = (id == NOBODY).then(|| {
            held.sort_unstable_by_key(|held: &HeldKey| (held.db, held.stripe));
            let ticket = Ticket::new(own, held.into(), None);
            ticket.grant();
            self.gate.add_ticket(ctx.pass);
            Arc::new(ticket)
        });
        Box::new(Ready { ticket, keys })
    }

    /// Acquires a hold on a key of a locked stripe for a ticket, unless it has one. Returns false if others hold the
    /// key.
    fn hold_key(&self, stripe: &mut Stripe, id: u64, db: u32, key: &[u8], held: &mut Vec<HeldKey>) -> bool {
        let holds = hold::table_of(&mut stripe.holds);
        if holds.has(id, key) {
            return true;
        }
        let free = holds.may_grant(id, key, Mode::Exclusive);
        if free {
            holds.grant(id, key, Mode::Exclusive);
            let stripe = self.keyspace.stripe_of_key(key) as u32;
            held.push(HeldKey { db, stripe, key: key.into(), mode: Mode::Exclusive });
        }
        hold::drop_if_empty(&mut stripe.holds);
        free
    }

    /// Serves the waiters of keys created by a plain command, and then releases the keys to the next tickets.
    #[cold]
    pub(crate) fn serve_and_end(&self, ready: Ready) {
        if let Some(ticket) = ready.ticket {
            let extra = self.serve(ticket.id, ready.keys);
            self.end(ticket, &extra);
        }
    }

    /// Serves the waiters of keys created by SWAPDB or an exclusive transaction. Another command may run before them,
    /// as there are no holds on the keys.
    pub(crate) fn serve_woken(&self) {
        if self.keyspace.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let woken = self.keyspace.take_woken();
        if woken.is_empty() {
            return;
        }
        let ticket = Ticket::new(self.ticket_id(), KeyList::new(), None);
        ticket.grant();
        self.gate.add_ticket(&self.gate.enter());
        let extra = self.serve(ticket.id, woken.into());
        self.end(Arc::new(ticket), &extra);
    }

    /// Serves the waiters of keys that nothing holds, on another thread: the caller is inside the gate.
    #[cold]
    pub(crate) fn serve_elsewhere(&self, ready: VecDeque<ReadyKey>) {
        let Some(inner) = self.this.upgrade() else { return };
        self.keyspace.add_woken(ready);
        self.aside.run(move || inner.serve_woken());
    }

    /// Serves the waiters of created keys, on behalf of a ticket that holds them. Returns the additional keys that the
    /// ticket then holds. The caller is outside the gate.
    pub(crate) fn serve(&self, id: u64, mut ready: VecDeque<ReadyKey>) -> Vec<HeldKey> {
        let mut extra = Vec::new();
        while let Some((db, key)) = ready.pop_front() {
            while self.serve_next(id, (db, &key), &mut ready, &mut extra) {}
        }
        extra
    }

    /// Serves the first suitable waiter of a key. Returns false if there is none.
    fn serve_next(
        &self,
        id: u64,
        (db, key): (u32, &[u8]),
        ready: &mut VecDeque<ReadyKey>,
        extra: &mut Vec<HeldKey>,
    ) -> bool {
        let pass = self.gate.enter();
        let served = self.serve_inside(&pass, id, (db, key), ready, extra);
        drop(pass);
        match served {
            Served::Nobody => false,
            Served::Gone => true,
            Served::With(waiter, reply, told) => {
                waiter.answer(reply);
                self.emit(told);
                true
            }
            Served::MustPark(waiter) => {
                self.park_waiter(&waiter);
                false
            }
        }
    }

    fn serve_inside(
        &self,
        pass: &Pass<'_>,
        id: u64,
        (index, key): (u32, &[u8]),
        ready: &mut VecDeque<ReadyKey>,
        extra: &mut Vec<HeldKey>,
    ) -> Served {
        let Some(db) = self.keyspace.db(pass, index) else { return Served::Nobody };
        let hash = self.keyspace.hasher.hash(key);
        let stripe = self.keyspace.stripe_of(hash);
        let mut now = Now::new(&self.clock, &self.limits);
        let mut locked = db.lock(stripe);
        let waiter = next_waiter(&mut locked, hash, key, &mut now);
        if now.take_removed() {
            self.record_expired(index, key);
            let expired = self.lose_tracked(hash, key);
            drop(locked);
            self.emit(expired);
            // A waiter that wants the key to be gone is found by the next look.
            return if waiter.is_some() { Served::Gone } else { Served::Nobody };
        }
        let Some(waiter) = waiter else { return Served::Nobody };
        if !self.hold_key(&mut locked, id, index, key, extra) {
            return Served::MustPark(waiter);
        }
        let spec = self.rows.spec(waiter.row);
        let Some(blocking) = spec.blocking else { unreachable!("only commands that block have waiters") };
        let words = waiter.words().to_vec();
        // The keys of the waiter that are ready, each once, in the order in which its command names them.
        let mut named: SmallVec<[u32; 4]> = SmallVec::new();
        for word in spec.keys.keys(&words, waiter.db).into_iter().map(|key| key.word) {
            let name = words[word as usize];
            let is_ready = || *name == *key || ready.iter().any(|(db, ready)| *db == index && **ready == *name);
            if waiter.awaits(word) && is_ready() && !named.iter().any(|word| words[*word as usize] == name) {
                named.push(word);
            }
        }
        let Some(&word) = named.first() else { return Served::Nobody };
        now.behalf = waiter.behalf;
        let mut ctx = Ctx::new(self, pass, &words, waiter.db, now, Blocks::Never);
        match waiter.wanted.destination {
            None if named.len() > 1 => {
                drop(locked);
                let is_held = self.place_ready(&mut ctx, db, index, id, &named, &waiter, extra);
                if ctx.places.is_empty() {
                    ctx.finish();
                    return if is_held { Served::MustPark(waiter) } else { Served::Nobody };
                }
            }
            None => {
                ctx.locks.push(locked);
                ctx.places.push(Place { hash, lock: 0, word, db: index });
            }
            Some(to) => {
                drop(locked);
                let to_hash = self.keyspace.hasher.hash(words[usize::from(to)]);
                let to_stripe = self.keyspace.stripe_of(to_hash);
                let mut stripes = [stripe, to_stripe];
                stripes.sort_unstable();
                ctx.locks.push(db.lock(stripes[0]));
                if stripes[0] != stripes[1] {
                    ctx.locks.push(db.lock(stripes[1]));
                }
                let lock_of = |of: usize| u16::from(of != stripes[0]);
                ctx.places.push(Place { hash, lock: lock_of(stripe), word, db: index });
                ctx.places.push(Place { hash: to_hash, lock: lock_of(to_stripe), word: to.into(), db: index });
                let to_lock = &mut ctx.locks[usize::from(lock_of(to_stripe))];
                if !self.hold_key(to_lock, id, index, words[usize::from(to)], extra) {
                    ctx.finish();
                    return Served::MustPark(waiter);
                }
            }
        }
        if !waiter.win() {
            ctx.finish();
            return Served::Gone;
        }
        for place in &ctx.places {
            if waiter.awaits(place.word)
                && let Some(waits) = &mut ctx.locks[usize::from(place.lock)].waits
            {
                waits.remove(words[place.word as usize], waiter.turn.load(Ordering::SeqCst));
            }
        }
        let (reply, _) = caught(waiter.form, |out| (blocking.serve)(&mut ctx, out));
        ctx.conclude(|| spec.recorded());
        for stripe in &mut ctx.locks {
            if let Some(waits) = &mut stripe.waits {
                ready.extend(waits.take_ready());
            }
        }
        // Invalidation messages about the client's own changes follow its reply.
        let told = ctx.effects.extract_if(.., |effect| effect.is_of_tracking()).collect();
        ctx.finish();
        drop(words);
        Served::With(waiter, reply, told)
    }

    /// Locks the stripes of several keys of a waiter and adds to `ctx.places` those from which it is served: the first
    /// key that has an element for it, or all such keys if serving removes nothing. Returns whether others hold a key
    /// that has an element.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "what `serve_inside` found out, for the case that is rare")]
    fn place_ready<'p>(
        &self,
        ctx: &mut Ctx<'p>,
        db: &'p Db,
        index: u32,
        id: u64,
        named: &[u32],
        waiter: &Arc<Waiter>,
        extra: &mut Vec<HeldKey>,
    ) -> bool {
        let hashes: SmallVec<[u64; 4]> =
            named.iter().map(|word| self.keyspace.hasher.hash(ctx.words[*word as usize])).collect();
        let mut stripes: SmallVec<[usize; 4]> = hashes.iter().map(|hash| self.keyspace.stripe_of(*hash)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.iter().for_each(|stripe| ctx.locks.push(db.lock(*stripe)));
        let takes_away = waiter.wanted.suits.is_none();
        let mut is_held = false;
        for (&word, hash) in named.iter().zip(hashes) {
            let key = ctx.words[word as usize];
            let lock = stripes.binary_search(&self.keyspace.stripe_of(hash)).unwrap_or_default();
            let stripe = &mut ctx.locks[lock];
            let slot = stripe.find(hash, key, &mut ctx.now, true);
            if ctx.now.take_removed() {
                self.record_expired(index, key);
                ctx.effects.extend(self.lose_tracked(hash, key));
            }
            let object = slot.and_then(|slot| stripe.table.entry(slot).object());
            if !waiter.takes(key, object.as_deref()) {
                continue;
            }
            if !self.hold_key(stripe, id, index, key, extra) {
                is_held = true;
                continue;
            }
            ctx.places.push(Place { hash, lock: lock as u16, word, db: index });
            if takes_away {
                break;
            }
        }
        is_held
    }

    /// Converts a waiter into a parked command, because a key that it needs is held by others.
    #[cold]
    fn park_waiter(&self, waiter: &Arc<Waiter>) {
        if waiter.is_parked.swap(true, Ordering::SeqCst) {
            return;
        }
        let (words, db, form) = (waiter.words().clone(), waiter.db, waiter.form);
        let command = OwnedCommand {
            row: waiter.row,
            is_global: false,
            words,
            db,
            form,
            behalf: waiter.behalf,
            waiter: Some(waiter.clone()),
        };
        let ticket = self.new_ticket(command);
        // If another thread grants the ticket, that thread also runs the command.
        if self.enter_queues(&ticket) && self.run_if_granted(ticket) {
            self.run_waiting();
        }
    }

    /// Puts a command that found nothing into the queues of its keys, whose stripes are locked.
    pub(crate) fn block(
        &self,
        ctx: &mut Ctx<'_>,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        form: ReplyForm,
    ) -> Option<Arc<Waiter>> {
        let waiter = match ctx.blocks {
            Blocks::Known { waiter, .. } => waiter.clone(),
            _ => self.new_waiter(spec, &Words::new(words), ctx.db, form, ctx.now.behalf)?,
        };
        if let Some(words) = ctx.resolved.take() {
            // A command that waits already has stored its resolved words before.
            let _ = waiter.resolved.set(*words);
        }
        if waiter.turn.load(Ordering::SeqCst) == 0 {
            let turn = self.keyspace.next_turn.fetch_add(1, Ordering::Relaxed);
            waiter.turn.store(turn, Ordering::SeqCst);
            self.keyspace.waiting.fetch_add(1, Ordering::SeqCst);
        }
        let turn = waiter.turn.load(Ordering::SeqCst);
        for place in &ctx.places {
            if waiter.awaits(place.word)
                && let Some(stripe) = ctx.locks.get_mut(usize::from(place.lock))
            {
                stripe.waits.get_or_insert_default().add(ctx.db, words[place.word as usize], turn, &waiter);
            }
        }
        Some(waiter)
    }

    /// Removes a waiter whose wait has ended from the queues.
    pub(crate) fn forget(&self, waiter: &Waiter) {
        let turn = waiter.turn.swap(0, Ordering::SeqCst);
        if turn == 0 {
            return;
        }
        self.keyspace.waiting.fetch_sub(1, Ordering::SeqCst);
        let words = waiter.words().to_vec();
        let pass = self.gate.enter();
        let Some(db) = self.keyspace.db(&pass, waiter.db) else { return };
        for key in self.rows.spec(waiter.row).keys.keys(&words, waiter.db) {
            if waiter.awaits(key.word) {
                let key = words[key.word as usize];
                let mut stripe = db.lock(self.keyspace.stripe_of_key(key));
                if let Some(waits) = &mut stripe.waits {
                    waits.remove(key, turn);
                    if waits.is_empty() {
                        stripe.waits = None;
                    }
                }
            }
        }
    }

    /// Ends the run of a parked command that may block: sends its reply to its client, if that still waits. Returns the
    /// command's keys, for which other clients may wait.
    pub(crate) fn after_turn(
        &self,
        waiter: &Arc<Waiter>,
        won: &Cell<bool>,
        reply: Option<Finished>,
    ) -> VecDeque<ReadyKey> {
        waiter.is_parked.store(false, Ordering::SeqCst);
        match reply {
            Some(reply) if won.get() || waiter.win() => waiter.answer(reply),
            // The command has blocked again. If its wait ended during this run, the waiter was in no queue at that
            // time, so it is removed only now.
            None if waiter.is_won() => self.forget(waiter),
            None if waiter.is_overdue.load(Ordering::SeqCst) => _ = waiter.time_out(),
            Some(_) | None => {}
        }
        let words = waiter.words().to_vec();
        let keys = self.rows.spec(waiter.row).keys.keys(&words, waiter.db);
        keys.iter().map(|key| (key.db, words[key.word as usize].into())).collect()
    }
}

/// The result of serving a key.
enum Served {
    /// The key's content suits no waiter.
    Nobody,
    /// The wait of the waiter had already ended.
    Gone,
    /// The waiter has been served, with this reply; the effects follow it.
    With(Arc<Waiter>, Finished, Effects),
    /// Other tickets hold the keys that the waiter needs.
    MustPark(Arc<Waiter>),
}

/// Returns the first suitable waiter of a key of a locked stripe.
fn next_waiter(stripe: &mut Stripe, hash: u64, key: &[u8], now: &mut Now<'_>) -> Option<Arc<Waiter>> {
    stripe.waits.as_ref()?;
    let slot = stripe.find(hash, key, now, true);
    let stripe = &mut *stripe;
    let object = slot.and_then(|slot| stripe.table.entry(slot).object());
    stripe.waits.as_mut()?.first(key, object.as_deref())
}
