//! Clients that wait for an element: BLPOP and its kin, and XREAD.
//!
//! A command that finds nothing leaves a *waiter* with each of its keys, in the key's stripe and under the lock under
//! which it looked, so nothing can come in between. A key that comes to life while somebody waits for it is noted as
//! *ready* by its stripe, whatever brought it: a push, RENAME, RESTORE, COPY, SORT … STORE, SWAPDB. The thread that did
//! it serves the waiters when its command or its section has ended, and before anybody else sees the key: a plain
//! command takes a hold on the ready key under the same lock, a section has it already. That is Redis's order: the
//! command, then blocked clients in the order in which they blocked, then everybody else. What serving brings to life
//! (BLMOVE) is served in turn.
//!
//! Each waiter has one [claim](crate::claim): push, timeout, CLIENT UNBLOCK and disconnection race for it, and only the
//! winner acts. If a section filled several keys of a waiter, the first key that the waiter's command names serves it
//! (Redis 7.2), whichever was filled first. The waiter leaves the queues of its other keys when its client takes the
//! reply.
//!
//! A stream is ready whenever an entry is added, and of use to those alone whose [`suits`](Blocking::suits) says so; it
//! serves all of them, as nothing is taken from it, and a waiter gets the entries of all its streams that are ready.
//!
//! When the destination of a BLMOVE is held by a section, its waiter becomes a parked command on both keys and takes
//! its turn like any other; if it then finds nothing, it waits on, at its old place.
//!
//! Cost: a stripe without waiters pays one branch when a key is made, and one when it is unlocked. Limits: a waiter per
//! connection.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_wire::resp::ReplySink;
use smallvec::SmallVec;

use crate::Inner;
use crate::catalogue::CommandSpec;
use crate::catalogue::Handle;
use crate::claim::{By, Claim};
use crate::context::{Ctx, Place};
use crate::execute::Blocks;
use crate::float::Extended;
use crate::gate::Pass;
use crate::hold::{self, HeldKey, KeyList, Mode, NOBODY, Ticket};
use crate::keyspace::Db;
use crate::object::Object;
use crate::park::{Finished, OwnedCommand, ReplyForm, Words};
use crate::refused::Refused;
use crate::stripe::{Now, Stripe};
use crate::turn::caught;

/// Milliseconds that are out of range: the sum with the present time, which is rounded up here to the year 2100.
const MS_MAX: f64 = i64::MAX as f64 - 4.1e12;

/// How a blocking command waits.
#[derive(Debug)]
pub(crate) struct Blocking {
    /// The [type](crate::object::Kind::TAG) that a key must have to be of use.
    pub(crate) wants: u8,
    /// Where the timeout stands.
    pub(crate) timeout: Timeout,
    /// The word of a second key, which is written.
    pub(crate) destination: Option<u8>,
    /// Whether a client has a use for what a key has now; none if it has for any value of the type.
    pub(crate) suits: Option<Suits>,
    /// Takes the elements from key 0, which has some, and replies; the destination is key 1.
    pub(crate) serve: Handle,
    /// The reply where nothing is there and the client may not wait. One that has waited gets a null array in any case.
    pub(crate) nothing: fn(&mut dyn ReplySink),
}

/// Whether a client that waits with these words has a use for what this key has.
pub(crate) type Suits = fn(&[&[u8]], &[u8], &Object) -> bool;

/// Where a timeout stands among the words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timeout {
    /// In seconds, in this word, from the end if negative.
    Word(i8),
    /// Wherever this finds it; nowhere if the command does not wait.
    Of(FindTimeout),
}

/// Finds when a wait that begins now ends, of a command that waits at all.
pub(crate) type FindTimeout = fn(&[&[u8]]) -> Result<Option<Option<Instant>>, Refused>;

impl Blocking {
    /// Whether a command with these words waits if it finds nothing.
    pub(crate) fn waits(&self, words: &[&[u8]]) -> bool {
        match self.timeout {
            Timeout::Word(_) => true,
            Timeout::Of(find) => matches!(find(words), Ok(Some(_))),
        }
    }

    /// Whether a command that finds nothing leaves a waiter in the stripes of its keys.
    pub(crate) fn leaves_waiters(&self, ctx: &Ctx<'_>) -> bool {
        !matches!(ctx.blocks, Blocks::Never) && self.waits(ctx.words)
    }

    /// When a wait that begins now ends; [`None`] if never. The error is Redis's.
    pub(crate) fn deadline(&self, words: &[&[u8]]) -> Result<Option<Instant>, Refused> {
        let word = match self.timeout {
            Timeout::Word(word @ 0..) => word as usize,
            Timeout::Word(word) => words.len() - usize::from(word.unsigned_abs()),
            Timeout::Of(find) => return find(words).map(Option::flatten),
        };
        let seconds = Extended::parse(words[word]).ok_or("ERR timeout is not a float or out of range")?;
        // Redis's clock counts milliseconds in 64 bits, and the sum with the present time must fit. What is above zero is
        // one of them at least, also where 64 bits can't tell it from zero.
        let ms = match (seconds.to_f64() * 1000.0).ceil() {
            0.0 if seconds.is_positive() => 1.0,
            ms => ms,
        };
        if ms >= MS_MAX {
            return Err("ERR timeout is out of range".into());
        }
        if ms < 0.0 {
            return Err("ERR timeout is negative".into());
        }
        match ms as u64 {
            0 => Ok(None),
            ms => Ok(Instant::now().checked_add(Duration::from_millis(ms))),
        }
    }
}

/// A blocked client's command.
pub(crate) struct Waiter {
    claim: Claim<Finished>,
    spec: &'static CommandSpec,
    blocking: &'static Blocking,
    words: Words,
    /// The words with what some of them stood for when it found nothing, if that changes.
    resolved: OnceLock<Words>,
    db: u32,
    form: ReplyForm,
    deadline: Option<Instant>,
    /// Its place among those who wait, 0 while it is in no queue.
    turn: AtomicU64,
    /// Whether it is a parked command, too.
    is_parked: AtomicBool,
    /// Whether its time is over.
    is_overdue: AtomicBool,
}

impl Waiter {
    /// A waiter for a command; [`None`] if the command never waits.
    pub(crate) fn new(spec: &'static CommandSpec, words: Words, db: u32, form: ReplyForm) -> Option<Arc<Waiter>> {
        let blocking = spec.blocking?;
        // What is wrong with the timeout the handler says.
        let deadline = blocking.deadline(&words.to_vec()).unwrap_or_default();
        let (turn, is_parked, is_overdue) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let (claim, resolved) = (Claim::new(), OnceLock::new());
        Some(Arc::new(Waiter {
            claim,
            spec,
            blocking,
            words,
            resolved,
            db,
            form,
            deadline,
            turn,
            is_parked,
            is_overdue,
        }))
    }

    /// When the wait ends by itself.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends the wait as its timeout does; false if it had ended. One that is parked and has not looked at its keys yet goes
    /// on until it has: only what finds nothing times out.
    pub(crate) fn time_out(&self) -> bool {
        // The other side takes its turn first and looks at this afterwards.
        self.is_overdue.store(true, Ordering::SeqCst);
        self.has_blocked() && self.give_up(By::Timeout, |out| out.null_array())
    }

    /// Whether it stands among those who wait: it has looked at its keys and found nothing.
    pub(crate) fn has_blocked(&self) -> bool {
        self.turn.load(Ordering::SeqCst) != 0
    }

    /// Ends the wait for CLIENT UNBLOCK, as its timeout does or with an error; false if it had ended.
    pub(crate) fn unblock(&self, with_error: bool) -> bool {
        match with_error {
            false => self.give_up(By::Unblock, |out| out.null_array()),
            true => self.give_up(By::Unblock, |out| out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        }
    }

    fn give_up(&self, by: By, reply: fn(&mut dyn ReplySink)) -> bool {
        let won = self.claim.win(by);
        if won {
            self.claim.answer(self.form.collect(reply));
        }
        won
    }

    /// Ends the wait for a command that has something for it; false if it had ended.
    pub(crate) fn win(&self) -> bool {
        self.claim.win(By::Server)
    }

    pub(crate) fn is_won(&self) -> bool {
        self.claim.is_won()
    }

    /// Leaves the reply; the caller has won, and has no stripe locked.
    pub(crate) fn answer(&self, reply: Finished) {
        crate::thread::assert_none_locked();
        self.claim.answer(reply);
    }

    fn command(self: &Arc<Waiter>) -> OwnedCommand {
        let waiter = Some(self.clone());
        OwnedCommand { spec: self.spec, words: self.words().clone(), db: self.db, form: self.form, waiter }
    }

    fn words(&self) -> &Words {
        self.resolved.get().unwrap_or(&self.words)
    }

    /// Whether it has a use for what one of its keys has.
    fn takes(&self, key: &[u8], object: &Object) -> bool {
        self.blocking.wants == object.tag()
            && !self.is_won()
            && self.blocking.suits.is_none_or(|suits| suits(&self.words().to_vec(), key, object))
    }

    /// Whether this word names a key that it waits for.
    fn awaits(&self, word: u32) -> bool {
        self.blocking.destination.map(u32::from) != Some(word)
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} that waits", self.spec.name)
    }
}

/// A wait, as the connection has it. Dropping it gives up.
pub(crate) struct Blocked {
    inner: Arc<Inner>,
    waiter: Arc<Waiter>,
}

impl Blocked {
    pub(crate) fn new(inner: Arc<Inner>, waiter: Arc<Waiter>) -> Blocked {
        Blocked { inner, waiter }
    }

    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Finished> {
        self.waiter.claim.poll(context.waker())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.waiter.claim.win(By::Client);
        self.inner.forget(&self.waiter);
    }
}

/// A key that came to life while somebody waited for it.
pub(crate) type ReadyKey = (u32, Box<[u8]>);

/// The waiters of one stripe.
#[derive(Default)]
pub(crate) struct WaitTable {
    /// The database whose stripe it is.
    db: u32,
    /// Waiters by their turn.
    keys: HashMap<Box<[u8]>, BTreeMap<u64, Arc<Waiter>>, foldhash::fast::RandomState>,
    /// Keys that came to life under the present lock, each with a number by which those of several stripes are ordered.
    ready: Vec<(u64, Box<[u8]>)>,
}

impl WaitTable {
    /// Notes that a key has a new value.
    pub(crate) fn note(&mut self, key: &[u8]) {
        static NOTES: AtomicU64 = AtomicU64::new(0);
        if self.keys.contains_key(key) && !self.ready.iter().any(|(_, known)| **known == *key) {
            self.ready.push((NOTES.fetch_add(1, Ordering::Relaxed), key.into()));
        }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn take_ready(&mut self) -> impl Iterator<Item = ReadyKey> {
        self.take_numbered().map(|(_, key)| key)
    }

    fn take_numbered(&mut self) -> impl Iterator<Item = (u64, ReadyKey)> {
        let db = self.db;
        std::mem::take(&mut self.ready).into_iter().map(move |(number, key)| (number, (db, key)))
    }

    fn add(&mut self, db: u32, key: &[u8], turn: u64, waiter: &Arc<Waiter>) {
        self.db = db;
        self.keys.entry(key.into()).or_default().insert(turn, waiter.clone());
    }

    fn remove(&mut self, key: &[u8], turn: u64) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        queue.remove(&turn);
        if queue.is_empty() {
            self.keys.remove(key);
        }
    }

    /// The first one that waits for a key with a value like this.
    fn first(&mut self, key: &[u8], object: &Object) -> Option<Arc<Waiter>> {
        let queue = self.keys.get_mut(key)?;
        while let Some((turn, waiter)) = queue.first_key_value()
            && waiter.is_won()
        {
            let turn = *turn;
            queue.remove(&turn);
        }
        queue.values().find(|waiter| waiter.takes(key, object)).cloned()
    }

    /// How many keys somebody waits for.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Keys that somebody waits for.
    pub(crate) fn keys(&self) -> Vec<Box<[u8]>> {
        self.keys.keys().cloned().collect()
    }
}

/// What a command brought to life, under a ticket that holds it.
pub(crate) struct Ready {
    ticket: Option<Arc<Ticket>>,
    pub(crate) keys: VecDeque<ReadyKey>,
}

impl Inner {
    /// Collects the ready keys of commands that have run, in the order in which they came to life, and holds them if
    /// those were plain ones.
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

    /// Makes sure that a ticket holds a key of a locked stripe; false if others hold it.
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

    /// Serves those who wait for what a plain command brought, and passes the keys on.
    #[cold]
    pub(crate) fn serve_and_end(&self, ready: Ready) {
        if let Some(ticket) = ready.ticket {
            let extra = self.serve(ticket.id, ready.keys);
            self.end(ticket, &extra);
        }
    }

    /// Serves those who wait for what SWAPDB or a transaction that was alone brought. Another command may come before them, as nothing holds the keys.
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

    /// Serves those who wait for keys that came to life, in the name of a ticket that holds them. Returns what the
    /// ticket holds beyond that now. The caller is outside the gate.
    pub(crate) fn serve(&self, id: u64, mut ready: VecDeque<ReadyKey>) -> Vec<HeldKey> {
        let mut extra = Vec::new();
        while let Some((db, key)) = ready.pop_front() {
            while self.serve_next(id, (db, &key), &mut ready, &mut extra) {}
        }
        extra
    }

    /// Serves the first one that waits for a key; false if there is none, or nothing for it.
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
            Served::With(waiter, reply) => {
                waiter.answer(reply);
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
        let mut now = Now::new(&self.clock);
        let mut locked = db.lock(stripe);
        let Some(waiter) = next_waiter(&mut locked, hash, key, &mut now) else { return Served::Nobody };
        if !self.hold_key(&mut locked, id, index, key, extra) {
            return Served::MustPark(waiter);
        }
        let words = waiter.words().to_vec();
        // Its keys that are ready, each once, in the order in which the command names them.
        let mut named: SmallVec<[u32; 4]> = SmallVec::new();
        for word in waiter.spec.keys.keys(&words, waiter.db).into_iter().map(|key| key.word) {
            let name = words[word as usize];
            let is_ready = || *name == *key || ready.iter().any(|(db, ready)| *db == index && **ready == *name);
            if waiter.awaits(word) && is_ready() && !named.iter().any(|word| words[*word as usize] == name) {
                named.push(word);
            }
        }
        let Some(&word) = named.first() else { return Served::Nobody };
        let mut ctx = Ctx::new(self, pass, &words, waiter.db, now, Blocks::Never);
        match waiter.blocking.destination {
            None if named.len() > 1 => {
                drop(locked);
                let is_held = self.place_ready(&mut ctx, db, index, id, &named, &waiter, extra);
                if ctx.places.is_empty() {
                    drop(ctx);
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
                    drop(ctx);
                    return Served::MustPark(waiter);
                }
            }
        }
        if !waiter.win() {
            return Served::Gone;
        }
        for place in &ctx.places {
            if waiter.awaits(place.word)
                && let Some(waits) = &mut ctx.locks[usize::from(place.lock)].waits
            {
                waits.remove(words[place.word as usize], waiter.turn.load(Ordering::SeqCst));
            }
        }
        let (reply, _) = caught(waiter.form, |out| (waiter.blocking.serve)(&mut ctx, out));
        for stripe in &mut ctx.locks {
            if let Some(waits) = &mut stripe.waits {
                ready.extend(waits.take_ready());
            }
        }
        drop(ctx);
        drop(words);
        Served::With(waiter, reply)
    }

    /// Locks the stripes of several keys of a waiter and places those by which it is to be served: the first that has
    /// something for it, or all of them if nothing is taken away. Returns whether others hold a key that has something.
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
        let takes_away = waiter.blocking.suits.is_none();
        let mut is_held = false;
        for (&word, hash) in named.iter().zip(hashes) {
            let key = ctx.words[word as usize];
            let lock = stripes.binary_search(&self.keyspace.stripe_of(hash)).unwrap_or_default();
            let stripe = &mut ctx.locks[lock];
            let Some(slot) = stripe.find(hash, key, &mut ctx.now, true) else { continue };
            if !stripe.table.entry(slot).object().is_some_and(|object| waiter.takes(key, &object)) {
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

    /// Lets a waiter take its turn as a parked command, because a key that it needs is held by others.
    #[cold]
    fn park_waiter(&self, waiter: &Arc<Waiter>) {
        if waiter.is_parked.swap(true, Ordering::SeqCst) {
            return;
        }
        let ticket = self.new_ticket(waiter.command());
        // If others grant it, they run it, too.
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
            _ => Waiter::new(spec, Words::new(words), ctx.db, form)?,
        };
        if let Some(words) = ctx.resolved.take() {
            // One that waits already has resolved its words.
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

    /// Takes a waiter whose wait has ended out of the queues.
    pub(crate) fn forget(&self, waiter: &Waiter) {
        let turn = waiter.turn.swap(0, Ordering::SeqCst);
        if turn == 0 {
            return;
        }
        self.keyspace.waiting.fetch_sub(1, Ordering::SeqCst);
        let words = waiter.words().to_vec();
        let pass = self.gate.enter();
        let Some(db) = self.keyspace.db(&pass, waiter.db) else { return };
        for key in waiter.spec.keys.keys(&words, waiter.db) {
            if waiter.awaits(key.word) {
                let key = words[key.word as usize];
                let mut stripe = db.lock(self.keyspace.stripe_of_key(key));
                if let Some(waits) = &mut stripe.waits {
                    waits.remove(key, turn);
                    if waits.keys.is_empty() {
                        stripe.waits = None;
                    }
                }
            }
        }
    }

    /// Ends the run of a parked command that may block: gives its reply to its client, if it still waits. Returns the
    /// keys that others may wait for.
    pub(crate) fn after_turn(
        &self,
        waiter: &Arc<Waiter>,
        won: &Cell<bool>,
        reply: Option<Finished>,
    ) -> VecDeque<ReadyKey> {
        waiter.is_parked.store(false, Ordering::SeqCst);
        match reply {
            Some(reply) if won.get() || waiter.win() => waiter.answer(reply),
            // It has blocked; a client that went in the meantime did not find it in the queues.
            None if waiter.is_won() => self.forget(waiter),
            None if waiter.is_overdue.load(Ordering::SeqCst) => _ = waiter.time_out(),
            Some(_) | None => {}
        }
        let words = waiter.words().to_vec();
        let keys = waiter.spec.keys.keys(&words, waiter.db);
        keys.iter().map(|key| (key.db, words[key.word as usize].into())).collect()
    }
}

/// What became of serving a key.
enum Served {
    /// Nobody waits for what the key has.
    Nobody,
    /// Its wait had ended.
    Gone,
    With(Arc<Waiter>, Finished),
    /// Others hold what it needs.
    MustPark(Arc<Waiter>),
}

/// The first one that waits for what a key of a locked stripe has.
fn next_waiter(stripe: &mut Stripe, hash: u64, key: &[u8], now: &mut Now<'_>) -> Option<Arc<Waiter>> {
    stripe.waits.as_ref()?;
    let slot = stripe.find(hash, key, now, true)?;
    let stripe = &mut *stripe;
    let object = stripe.table.entry(slot).object()?;
    stripe.waits.as_mut()?.first(key, &object)
}
