//! From words to a reply: looking up the command, locking its keys, running it, parking it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_data::object::COPIED_MAX;
use sluicegate_data::value::{COPIED_BY_WORKER_MAX, SHARED_MIN};
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};
use smallvec::SmallVec;

use crate::behalf::Behalf;
use crate::catalogue::{CommandSpec, Cost, Detached, Flags, Guard, Handle, Handler, KEYS_MAX, LongWords, Start};
use crate::context::{Ctx, NO_DB, Pending, Pins, Place};
use crate::effect::Collected;
use crate::gate::Pass;
use crate::hold::{self, Mode, NOBODY, OwnedCommand, Ticket};
use crate::keys::{KeyRule, KeyWord};
use crate::loading::READONLY;
use crate::memory::OOM;
use crate::owned::{Received, ReplyForm, Words};
use crate::park::{Blocked, Parked, Ready, Waits};
use crate::refused::DB_RANGE;
use crate::stats::SectionCounts;
use crate::stripe::{Frozen, Now};
use crate::visits::ELEMENTS_MAX;
use crate::waiter::{Blocks, WaitTable, Waiter};
use crate::{Inner, Store};

/// The time for which a command spins on a held key before it parks: most holds are that short.
const SPIN_ON_HOLD: Duration = Duration::from_micros(20);

/// A client as the store sees it.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The selected database.
    pub db: u32,
    /// The protocol that replies are encoded in.
    pub protocol: Protocol,
    /// The connection's number.
    pub client_id: u64,
}

/// The originator of a command, as far as the store needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin<'r> {
    /// The selected database.
    pub(crate) db: u32,
    /// The connection's number; 0: none.
    pub(crate) client: u64,
    /// The buffer that contains the words, for a long request of a client.
    pub(crate) received: Option<&'r Received>,
    /// The bytes from the start of a client's request on, if they are known.
    pub(crate) request: &'r [u8],
    /// The start of the command, if known.
    pub(crate) began: Option<Instant>,
    /// On whose behalf it runs.
    pub(crate) behalf: Behalf,
    /// The permissions of its user, for the commands of a script; if [`None`], it may do everything.
    pub(crate) guard: Option<&'r Arc<dyn Guard>>,
}

/// The result of executing a command.
#[derive(Debug)]
#[must_use]
pub enum Executed {
    /// The reply has been written.
    Done,
    /// The caller's connection must execute the command, whose number of words is valid; nothing has been written.
    Connection(Detached),
    /// It was accepted, and the future resolves to its reply; nothing has been written.
    Parked(Parked),
}

/// Executes one command. `words[0]` is its name; an empty `words` is treated as an unknown command.
///
/// Replies and errors are Redis 7's. The call takes microseconds: what would take longer is parked.
pub fn execute(store: &Store, caller: &mut Caller, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> Executed {
    let spec = match store.0.rows.resolve(words) {
        Ok(spec) => spec,
        Err(text) => {
            out.error_bytes(&text);
            return Executed::Done;
        }
    };
    if let Handler::Connection(command) = spec.handler {
        return Executed::Connection(command);
    }
    let origin = Origin { db: caller.db, client: caller.client_id, ..Origin::default() };
    match store.0.start(&store.0, spec, words, origin, ReplyForm::Wire(caller.protocol), out) {
        None => Executed::Done,
        Some(parked) => Executed::Parked(parked),
    }
}

/// The identity under which a command runs.
#[derive(Clone, Copy)]
pub(crate) struct Who<'w> {
    /// A section's or a parked command's ticket, or [`NOBODY`].
    pub(crate) id: u64,
    /// The frozen time, if a section runs the command.
    pub(crate) time: Option<&'w Frozen>,
    /// The section's list of effects.
    pub(crate) collected: Option<&'w Collected>,
    /// Whether its ticket holds all keys of the command.
    pub(crate) covers: bool,
    /// The hash of the command's only key, if that is known.
    pub(crate) hash: Option<u64>,
    pub(crate) blocks: Blocks<'w>,
    /// Whether a script runs it.
    pub(crate) of_script: bool,
    /// On whose behalf it runs.
    pub(crate) behalf: Behalf,
    /// The bytes from the start of its request on, if they are known.
    pub(crate) request: &'w [u8],
}

impl Who<'_> {
    /// Returns the identity of a client's command that may block; its reply then has this form.
    pub(crate) fn plain(form: ReplyForm, behalf: Behalf) -> Who<'static> {
        let (blocks, of_script) = (Blocks::As(form), false);
        let request = &[];
        Who { id: NOBODY, time: None, collected: None, covers: false, hash: None, blocks, of_script, behalf, request }
    }
}

/// The result of an attempt to run a command.
#[must_use]
pub(crate) enum Attempted {
    /// It has written its reply.
    Done,
    /// It has written its reply and created keys with waiters, which the caller serves.
    Ready(Box<Ready>),
    /// It found nothing and its client waits.
    Blocked(Arc<Waiter>),
    /// Another ticket holds one of its keys.
    Held,
    /// Nothing has happened: it takes too long under locks, and should run on the thread pool.
    Long,
}

impl CommandSpec {
    /// Returns whether it counts as a write when writes are paused or refused: commands that write, and those that
    /// Redis would replicate.
    pub(crate) fn counts_as_write(&self) -> bool {
        self.flags.has(Flags::WRITE) || self.is_replicated
    }

    /// Returns the mode in which its keys are held if it must hold them.
    pub(crate) fn mode(&self) -> Mode {
        if self.may_write() { Mode::Exclusive } else { Mode::Shared }
    }
}

impl Inner {
    /// Starts a command of the keyspace. Writes the reply to `out`, or returns a pending reply, which has the form
    /// `form`.
    pub(crate) fn start(
        &self,
        this: &Arc<Inner>,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        origin: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        self.start_here(this, spec, words, origin, form, out)
    }

    /// The same as a part of its caller, for the commands of clients: a short command is so cheap that the calls between
    /// its words and its handler would be a tenth of it.
    #[inline(always)]
    pub(crate) fn start_here(
        &self,
        this: &Arc<Inner>,
        spec: &'static CommandSpec,
        words: &[&[u8]],
        origin: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        let Origin { db, client, received, request, began, behalf, guard } = origin;
        if db >= self.keyspace.databases() {
            out.error(DB_RANGE);
            return None;
        }
        if spec.flags.has(Flags::DENYOOM) && self.memory.is_over() && !self.make_room() {
            out.error(OOM);
            return None;
        }
        let handle = match spec.handler {
            Handler::Keyspace(handle) => handle,
            Handler::Global(_) => return self.start_global(spec, words, origin, form, out),
            Handler::Script(handle) => {
                let section = None;
                let start = Start { inner: this, words, received, db, client, began, form, behalf, guard, section };
                return handle(&start, out);
            }
            Handler::Container | Handler::Connection(_) => {
                out.error("ERR this command needs a connection of its own");
                return None;
            }
        };
        if words.len() > KEYS_MAX && spec.is_big(words) {
            return this.start_big(spec, words, origin, form, out);
        }
        let cost = spec.cost_of(words.len());
        if cost != Cost::PerKey && (cost != Cost::Constant || words.len() > ELEMENTS_MAX) {
            if let Some(others) = spec.leads(words) {
                return this.start_undeclared(spec, others, words, origin, form, out);
            }
            if self.is_for_aside(spec, words, db, None) {
                return self.start_aside(spec, words, origin, form, out);
            }
        }
        let attempted = {
            let pass = self.gate.enter();
            if spec.large.is_some_and(|is_large| is_large(self, &pass, words, db)) {
                drop(pass);
                return this.start_big(spec, words, origin, form, out);
            }
            let who = Who { request, ..Who::plain(form, behalf) };
            self.attempt_here(&pass, spec, handle, words, db, who, out, None)
        };
        match attempted {
            Attempted::Done => None,
            Attempted::Held => self.start_held(this, spec, handle, words, origin, form, out),
            Attempted::Long => self.start_aside(spec, words, origin, form, out),
            other => self.after(this, other),
        }
    }

    /// Serves the clients that wait for keys the command created, or returns the pending reply of a blocked command.
    fn after(&self, this: &Arc<Inner>, attempted: Attempted) -> Option<Parked> {
        match attempted {
            Attempted::Done | Attempted::Held | Attempted::Long => None,
            Attempted::Ready(ready) => {
                self.serve_and_end(*ready);
                None
            }
            Attempted::Blocked(waiter) => Some(Parked(Waits::Blocked(Box::new(Blocked::new(this.clone(), waiter))))),
        }
    }

    /// Continues a command that met a held key: retries for a moment, then parks the command.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "those of `start`, with what it found")]
    fn start_held(
        &self,
        this: &Arc<Inner>,
        spec: &'static CommandSpec,
        handle: Handle,
        words: &[&[u8]],
        origin: Origin<'_>,
        form: ReplyForm,
        out: &mut dyn ReplySink,
    ) -> Option<Parked> {
        let Origin { db, received, behalf, .. } = origin;
        let start = Instant::now();
        while start.elapsed() < SPIN_ON_HOLD {
            (0..64).for_each(|_| std::hint::spin_loop());
            let attempted = {
                let pass = self.gate.enter();
                self.attempt(&pass, spec, handle, words, db, Who::plain(form, behalf), out, None)
            };
            match attempted {
                Attempted::Held => {}
                Attempted::Long => return self.start_aside(spec, words, origin, form, out),
                other => return self.after(this, other),
            }
        }
        if self.gate.tickets() >= self.tickets_max {
            SectionCounts::count(&self.sections.refused);
            out.error("BUSY too many commands wait for keys that are held by scripts or transactions");
            return None;
        }
        let words_owned = Words::within(received, words);
        let waiter = self.new_waiter(spec, &words_owned, db, form, behalf);
        let command = self.owned_command(spec, words_owned, db, form);
        let ticket = self.new_ticket(OwnedCommand { behalf, waiter: waiter.clone(), ..command });
        let parked = |ticket: Arc<Ticket>| {
            Some(Parked(match waiter {
                Some(waiter) => Waits::Blocked(Box::new(Blocked::new(this.clone(), waiter))),
                None => Waits::Ticket(ticket),
            }))
        };
        if self.gate.must_wait() {
            SectionCounts::count(&self.sections.parked);
            self.gate.queue(ticket.clone());
            self.run_waiting();
            return parked(ticket);
        }
        let attempted = {
            let pass = self.gate.enter();
            self.attempt(&pass, spec, handle, words, db, Who::plain(form, behalf), out, Some(&ticket))
        };
        match attempted {
            Attempted::Held => {
                self.everything.note_change();
                parked(ticket)
            }
            Attempted::Long => self.start_aside(spec, words, origin, form, out),
            other => self.after(this, other),
        }
    }

    /// Runs a command if no other ticket holds one of its keys; otherwise queues `ticket`, if given, on all its keys.
    #[allow(clippy::too_many_arguments, reason = "one call on the hottest path; a struct would be built for it alone")]
    pub(crate) fn attempt(
        &self,
        pass: &Pass<'_>,
        spec: &'static CommandSpec,
        handle: Handle,
        words: &[&[u8]],
        db: u32,
        who: Who<'_>,
        out: &mut dyn ReplySink,
        ticket: Option<&Arc<Ticket>>,
    ) -> Attempted {
        self.attempt_here(pass, spec, handle, words, db, who, out, ticket)
    }

    /// The same as a part of its caller, see [`start_here`](Self::start_here).
    #[allow(clippy::too_many_arguments, reason = "as above")]
    #[inline(always)]
    fn attempt_here(
        &self,
        pass: &Pass<'_>,
        spec: &'static CommandSpec,
        handle: Handle,
        words: &[&[u8]],
        db: u32,
        who: Who<'_>,
        out: &mut dyn ReplySink,
        ticket: Option<&Arc<Ticket>>,
    ) -> Attempted {
        // Commands of a section were looked at when it began to write.
        if who.collected.is_none() && self.comes_late(spec, who.behalf) {
            out.error(READONLY);
            return Attempted::Done;
        }
        let mut ctx = self.context(pass, words, db, who);
        // An exclusive transaction need not yield its locks.
        ctx.defers = who.id != NOBODY || who.collected.is_none();
        if words.iter().skip(2).any(|word| word.len() >= SHARED_MIN) && take_long_words(&mut ctx, spec) {
            ctx.finish();
            return Attempted::Long;
        }
        if spec.flags.has(Flags::DENYOOM)
            && let Some(prepare) = spec.prepare
        {
            prepare(&mut ctx);
        }
        self.lock_keys(&mut ctx, spec, who.hash);
        if !who.covers && self.keyspace.snapshots.is_running() && spec.may_write() && !spec.replaces_values {
            self.claim_large(&mut ctx);
        }
        if !who.covers && ctx.locks.any(|stripe| stripe.holds.is_some()) && !self.admit(&mut ctx, spec, who, ticket) {
            ctx.finish();
            return Attempted::Held;
        }
        handle(&mut ctx, out);
        ctx.conclude(|| spec.recorded());
        if ctx.locks.any(|stripe| stripe.waits.is_some()) || ctx.pending != Pending::Nothing {
            return self.after_handler(ctx, spec, who);
        }
        if ctx.ends_bare() {
            // As `finish` does, but without moving the context into a call.
            std::mem::forget(ctx);
        } else {
            ctx.finish();
        }
        Attempted::Done
    }

    /// Returns whether a command that writes has come too late: the store has become a replica since it was found that the
    /// command may run. The caller is inside the gate, or has a ticket that is counted, so the store does not change its
    /// role before the command has ended.
    #[inline]
    pub(crate) fn comes_late(&self, spec: &CommandSpec, behalf: Behalf) -> bool {
        spec.flags.has(Flags::WRITE) && self.loading.is_read_only() && !behalf.is_masters && !self.memory.is_timeless()
    }

    /// Returns the context of a command of `who`, whose keys are not locked yet.
    #[inline]
    fn context<'p>(&'p self, pass: &'p Pass<'p>, words: &'p [&'p [u8]], db: u32, who: Who<'p>) -> Ctx<'p> {
        let now = match who.time {
            Some(kept) => Now::kept(&self.clock, &self.limits, kept),
            None => Now::new(&self.clock, &self.limits),
        };
        let mut ctx = Ctx::new(self, pass, words, db, now, who.blocks);
        ctx.collected = who.collected;
        ctx.of_script = who.of_script;
        ctx.now.behalf = who.behalf;
        ctx.request = who.request;
        ctx
    }

    /// Calls `work` with the keys of a command, under the locks of their stripes, for an exclusive caller.
    pub(crate) fn with_keys(
        &self,
        pass: &Pass<'_>,
        spec: &CommandSpec,
        words: &[&[u8]],
        db: u32,
        who: Who<'_>,
        work: &mut dyn FnMut(&mut Ctx<'_>),
    ) {
        let mut ctx = self.context(pass, words, db, who);
        self.lock_keys(&mut ctx, spec, who.hash);
        work(&mut ctx);
        ctx.conclude(|| spec.recorded());
        self.keyspace.wake(ctx.locks.iter_mut().filter_map(|stripe| stripe.waits.as_deref_mut()));
        ctx.finish();
    }

    /// Finishes an attempt after the handler has returned, if clients wait for keys or the command itself must wait.
    #[cold]
    fn after_handler(&self, mut ctx: Ctx<'_>, spec: &'static CommandSpec, who: Who<'_>) -> Attempted {
        let form = if let Blocks::As(form) = who.blocks { form } else { ReplyForm::Value };
        let words = ctx.words;
        let attempted = match ctx.pending {
            Pending::Turn => Attempted::Long,
            Pending::Element => self.block(&mut ctx, spec, words, form).map_or(Attempted::Done, Attempted::Blocked),
            Pending::Nothing => self.after_reply(&mut ctx, who),
        };
        ctx.finish();
        attempted
    }

    /// Like [`after_handler`](Self::after_handler), for a command that has written its reply.
    fn after_reply(&self, ctx: &mut Ctx<'_>, who: Who<'_>) -> Attempted {
        match ctx.locks.any(|stripe| stripe.waits.as_deref().is_some_and(WaitTable::has_ready)) {
            // An exclusive transaction acquires no holds.
            true if who.id == NOBODY && who.collected.is_some() => {
                self.keyspace.wake(ctx.locks.iter_mut().filter_map(|stripe| stripe.waits.as_deref_mut()));
                Attempted::Done
            }
            true => Attempted::Ready(self.take_ready(ctx, who.id)),
            false => Attempted::Done,
        }
    }

    /// Returns the context of a command that runs on the thread pool, on keys that its ticket holds.
    pub(crate) fn pinned<'p>(
        &'p self,
        pass: &'p Pass<'p>,
        spec: &CommandSpec,
        words: &'p [&'p [u8]],
        db: u32,
    ) -> Ctx<'p> {
        let keys = self.keys_of(spec, words, db);
        let place = |key: &KeyWord| Place {
            hash: self.keyspace.hasher.hash(words[key.word as usize]),
            lock: NO_DB,
            word: key.word,
            db: key.db,
        };
        let places: SmallVec<[Place; 2]> = keys.iter().map(place).collect();
        let pins = Pins { entries: places.iter().map(|_| None).collect(), ready: VecDeque::new() };
        let mut ctx = Ctx::new(self, pass, words, db, Now::new(&self.clock, &self.limits), Blocks::Never);
        ctx.places = places;
        ctx.pins = Some(Box::new(pins));
        take_long_words(&mut ctx, spec);
        ctx
    }

    /// Returns the command's keys in databases that exist; the handler itself refuses the others.
    pub(crate) fn keys_of(&self, spec: &CommandSpec, words: &[&[u8]], db: u32) -> SmallVec<[KeyWord; 4]> {
        let mut keys = spec.keys.keys(words, db);
        keys.retain(|key| key.db < self.keyspace.databases());
        keys
    }

    /// Locks the stripes of all keys, in order.
    #[inline(always)]
    fn lock_keys<'p>(&self, ctx: &mut Ctx<'p>, spec: &CommandSpec, hash: Option<u64>) {
        // A waiter needs its stripes even if nothing was ever written to their database, and so does a client that
        // remembers which keys it has found missing.
        let waits = spec.blocking.is_some_and(|blocking| blocking.leaves_waiters(ctx));
        let writes = spec.flags.has(Flags::WRITE) || waits || ctx.now.behalf.tracks;
        if let Some(first) = spec.keys.single(ctx.words.len()) {
            let hash = match hash {
                Some(hash) => hash,
                None => self.keyspace.hasher.hash(ctx.words[first]),
            };
            let db = match writes {
                true => Some(self.keyspace.db_to_write(ctx.pass, ctx.db)),
                false => self.keyspace.db(ctx.pass, ctx.db),
            };
            let lock = if let Some(db) = db {
                ctx.locks.push(db.lock(self.keyspace.stripe_of(hash)));
                0
            } else {
                NO_DB
            };
            ctx.places.push(Place { hash, lock, word: first as u32, db: ctx.db });
        } else {
            self.lock_several(ctx, spec, writes);
        }
    }

    /// [`lock_keys`](Self::lock_keys) for a command that may have several.
    #[inline(never)]
    fn lock_several(&self, ctx: &mut Ctx<'_>, spec: &CommandSpec, writes: bool) {
        let keys = self.keys_of(spec, ctx.words, ctx.db);
        // The database, the stripe and the index of each key, as one number.
        let mut stripes: SmallVec<[u128; 8]> = SmallVec::with_capacity(keys.len());
        ctx.places.reserve_exact(keys.len());
        ctx.locks.reserve(keys.len());
        for key in &keys {
            let hash = self.keyspace.hasher.hash(ctx.words[key.word as usize]);
            let stripe = self.keyspace.stripe_of(hash) as u32;
            stripes.push(u128::from(key.db) << 64 | u128::from(stripe) << 32 | stripes.len() as u128);
            ctx.places.push(Place { hash, lock: NO_DB, word: key.word, db: key.db });
        }
        stripes.sort_unstable();
        // Each database is looked up once, so that either all its stripes are locked or none, even if it is created
        // meanwhile.
        let (mut db, mut count) = (None, 0);
        let mut before: Option<u128> = None;
        for one in stripes {
            let number = (one >> 64) as u32;
            if before.is_none_or(|before| before >> 64 != one >> 64) {
                db = match writes {
                    true => Some(self.keyspace.db_to_write(ctx.pass, number)),
                    false => self.keyspace.db(ctx.pass, number),
                };
            }
            let is_another = before.is_none_or(|before| before >> 32 != one >> 32);
            before = Some(one);
            let Some(db) = db else { continue };
            if is_another {
                ctx.locks.push(db.lock((one >> 32) as u32 as usize));
                count += 1;
            }
            ctx.places[one as u32 as usize].lock = count - 1;
        }
    }

    /// Returns whether the holds of other tickets admit the command; if not, queues its ticket.
    #[cold]
    fn admit(&self, ctx: &mut Ctx<'_>, spec: &CommandSpec, who: Who<'_>, ticket: Option<&Arc<Ticket>>) -> bool {
        let mode = spec.mode();
        let (words, places) = (ctx.words, &ctx.places);
        let free = places.iter().all(|place| {
            ctx.locks
                .get(usize::from(place.lock))
                .and_then(|stripe| stripe.holds.as_deref())
                .is_none_or(|holds| holds.admits(who.id, words[place.word as usize], mode))
        });
        if free {
            if who.id == NOBODY {
                for place in places {
                    if let Some(holds) = ctx.locks.get(usize::from(place.lock)).and_then(|s| s.holds.as_deref()) {
                        holds.note_overtaking(words[place.word as usize], mode);
                    }
                }
            }
            return true;
        }
        if let Some(ticket) = ticket {
            SectionCounts::count(&self.sections.parked);
            self.gate.add_ticket(ctx.pass);
            self.count_waiting(ticket);
            // A key that the command names twice is queued once, because the ticket lists it once.
            let mut queued: SmallVec<[&[u8]; 4]> = SmallVec::new();
            for place in places.iter() {
                let key = words[place.word as usize];
                if let Some(stripe) = ctx.locks.get_mut(usize::from(place.lock))
                    && (ticket.keys.len() == places.len() || !queued.contains(&key))
                {
                    queued.push(key);
                    hold::table_of(&mut stripe.holds).queue(key, ticket, mode);
                }
            }
        }
        false
    }
}

/// Copies long words that become strings, before anything is locked. Returns true if the command has to run on the
/// thread pool: a word is too long for a worker to copy, or too long to be copied into a value or compared with one
/// under a lock.
#[cold]
fn take_long_words(ctx: &mut Ctx<'_>, spec: &CommandSpec) -> bool {
    let records = ctx.records() && spec.counts_as_write();
    if spec.long_words == LongWords::Aside {
        let is_led = !matches!(spec.keys, KeyRule::None | KeyRule::Channels { .. });
        let is_long = ctx.words.iter().skip(2).any(|word| word.len() > COPIED_MAX);
        return ctx.defers && is_led && is_long && spec.blocking.is_none();
    }
    if spec.long_words == LongWords::Read && records {
        for (place, word) in ctx.words.iter().enumerate().skip(2).filter(|(_, word)| word.len() >= SHARED_MIN) {
            ctx.ahead.get_or_insert_default().long.push((place as u32, Arc::new(word.to_vec())));
        }
    }
    if spec.long_words == LongWords::Copied {
        if ctx.defers && ctx.words.iter().skip(2).any(|word| word.len() > COPIED_BY_WORKER_MAX) {
            return true;
        }
        for (place, word) in ctx.words.iter().enumerate().skip(2).filter(|(_, word)| word.len() >= SHARED_MIN) {
            let (ahead, copy) = (ctx.ahead.get_or_insert_default(), Arc::new(word.to_vec()));
            if records {
                ahead.long.push((place as u32, copy.clone()));
            }
            ahead.values.push((place as u32, copy));
        }
    }
    false
}

/// Executes generated commands on a store of its own; nothing may panic, hang or leave a reply unfinished.
pub fn fuzz_command(data: &[u8]) {
    let store = Store::new(crate::StoreOptions { stripes: 4, ..crate::StoreOptions::default() });
    let names: Vec<&'static CommandSpec> = store.0.rows.commands().to_vec();
    let mut caller = Caller::default();
    let mut out = Vec::new();
    for line in data.split(|&byte| byte == b'\n').take(64) {
        let Some((&choice, rest)) = line.split_first() else { continue };
        let spec = names[usize::from(choice) % names.len()];
        let mut words = vec![spec.name.as_bytes()];
        words.extend(rest.split(|&byte| byte == b' ').take(300));
        out.clear();
        let executed = execute(&store, &mut caller, &words, &mut ReplyWriter::new(&mut out, Protocol::Resp3));
        assert!(!matches!(executed, Executed::Done) || out.ends_with(b"\r\n"));
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use sluicegate_wire::engine::{Engine, Started};
    use sluicegate_wire::reply::Reply;

    use super::*;
    use crate::StoreOptions;
    use crate::memory::Policy;

    fn store() -> Store {
        Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() })
    }

    fn words(command: &str) -> Vec<&[u8]> {
        command.split(' ').map(str::as_bytes).collect()
    }

    /// Executes a client's command; returns the result and the reply written so far.
    fn start(store: &Store, words: &[&[u8]]) -> (Executed, String) {
        let mut out = Vec::new();
        let executed = execute(store, &mut Caller::default(), words, &mut ReplyWriter::new(&mut out, Protocol::Resp2));
        (executed, String::from_utf8(out).expect("text"))
    }

    #[track_caller]
    fn check(store: &Store, command: &str, reply: &str) {
        let (executed, found) = start(store, &words(command));
        assert!(matches!(executed, Executed::Done), "{command}: {executed:?}");
        assert_eq!(found, reply, "{command}");
    }

    #[track_caller]
    fn parked(store: &Store, command: &str) -> Parked {
        match start(store, &words(command)) {
            (Executed::Parked(parked), found) if found.is_empty() => parked,
            other => panic!("{command}: {other:?}"),
        }
    }

    /// Returns the reply of a parked command if it is ready, otherwise `None`.
    fn reply(parked: Parked) -> Option<String> {
        match pin!(parked).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(bytes) => Some(String::from_utf8(bytes).expect("text")),
            Poll::Pending => None,
        }
    }

    /// Holds a key as a section or a transaction does.
    fn hold(store: &Store, key: &str, mode: Mode) -> Arc<Ticket> {
        let ticket = Arc::new(store.0.ticket_on([(0, key.as_bytes(), mode)].into_iter()));
        assert!(store.0.enter_queues(&ticket), "{key} is free");
        ticket
    }

    /// Attempts a command under the number of a ticket, or under none.
    fn attempt(store: &Store, id: u64, command: &str) -> (Attempted, String) {
        let words = words(command);
        let spec = store.0.rows.resolve(&words).expect("a command");
        let Handler::Keyspace(handle) = spec.handler else { panic!("{command} is not about keys") };
        let mut out = Vec::new();
        let who = Who { id, ..Who::plain(ReplyForm::Wire(Protocol::Resp2), Behalf::CLIENT) };
        let pass = store.0.gate.enter();
        let writer = &mut ReplyWriter::new(&mut out, Protocol::Resp2);
        let attempted = store.0.attempt(&pass, spec, handle, &words, 0, who, writer, None);
        (attempted, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn what_cannot_run_is_refused_before_anything_is_locked() {
        let store = store();
        for (command, error) in [
            ("NOPE a", "-ERR unknown command 'NOPE', with args beginning with: 'a' \r\n"),
            ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
            ("OBJECT nope k", "-ERR unknown subcommand 'nope'. Try OBJECT HELP.\r\n"),
            ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command\r\n"),
        ] {
            check(&store, command, error);
        }
        assert!(start(&store, &[]).1.starts_with("-ERR unknown command ''"));
        assert!(matches!(start(&store, &words("CLIENT ID")), (Executed::Connection(_), text) if text.is_empty()));
        let mut out = Vec::new();
        let mut caller = Caller { db: 16, ..Caller::default() };
        let writer = &mut ReplyWriter::new(&mut out, Protocol::Resp2);
        assert!(matches!(execute(&store, &mut caller, &words("GET k"), writer), Executed::Done));
        assert_eq!(out, format!("-{DB_RANGE}\r\n").into_bytes());
    }

    #[test]
    fn a_command_that_needs_memory_is_refused_when_there_is_none() {
        let store = store();
        check(&store, "SET k v", "+OK\r\n");
        store.limit_memory(1, Policy::NoEviction);
        check(&store, "SET k w", &format!("-{OOM}\r\n"));
        check(&store, "GET k", "$1\r\nv\r\n");
        check(&store, "DEL k", ":1\r\n");
    }

    #[test]
    fn a_held_key_parks_its_commands_and_no_others() {
        let store = store();
        check(&store, "SET k v", "+OK\r\n");
        let holder = hold(&store, "k", Mode::Exclusive);
        let (write, read) = (parked(&store, "SET k w"), parked(&store, "GET k"));
        check(&store, "SET other v", "+OK\r\n");
        store.0.end(holder, &[]);
        assert_eq!(reply(write).as_deref(), Some("+OK\r\n"));
        assert_eq!(reply(read).as_deref(), Some("$1\r\nw\r\n"), "in the order of their coming");
        let holder = hold(&store, "k", Mode::Shared);
        check(&store, "GET k", "$1\r\nw\r\n");
        let write = parked(&store, "APPEND k x");
        store.0.end(holder, &[]);
        assert_eq!(reply(write).as_deref(), Some(":2\r\n"));
        assert_eq!(store.stats().tickets, 0);
    }

    #[test]
    fn a_parked_command_runs_though_its_client_goes_and_a_blocked_one_takes_nothing() {
        let store = store();
        let holder = hold(&store, "k", Mode::Exclusive);
        let (gone, next) = (parked(&store, "SET k gone"), parked(&store, "APPEND k x"));
        drop(gone);
        store.0.end(holder, &[]);
        assert_eq!(reply(next).as_deref(), Some(":5\r\n"));
        let holder = hold(&store, "l", Mode::Exclusive);
        drop(parked(&store, "BLPOP l 0"));
        store.0.end(holder, &[]);
        check(&store, "RPUSH l a", ":1\r\n");
        check(&store, "LLEN l", ":1\r\n");
        assert_eq!(store.stats().tickets, 0);
    }

    /// One that could wait and does not, called for a value, as by a rule.
    #[test]
    fn a_read_of_a_group_without_a_wait_is_answered_once_its_key_is_free() {
        let store = store();
        check(&store, "XADD x 1-1 f v", "$3\r\n1-1\r\n");
        check(&store, "XGROUP CREATE x g 0", "+OK\r\n");
        let holder = hold(&store, "x", Mode::Exclusive);
        let ask = || store.start(0, &words("XREADGROUP GROUP g c STREAMS x >"));
        let [Started::Pending(first), Started::Pending(second)] = [ask(), ask()] else { panic!("the key is held") };
        store.0.end(holder, &[]);
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(pin!(first).poll(&mut context), Poll::Ready(Reply::Map(streams)) if streams.len() == 1));
        assert_eq!(pin!(second).poll(&mut context), Poll::Ready(Reply::Null));
    }

    #[test]
    fn what_would_be_one_parked_command_too_many_is_refused() {
        let store = Store::new(StoreOptions { stripes: 4, tickets_max: 2, ..StoreOptions::default() });
        let holder = hold(&store, "k", Mode::Exclusive);
        let waits = parked(&store, "SET k v");
        let (executed, text) = start(&store, &words("GET k"));
        assert!(matches!(executed, Executed::Done) && text.starts_with("-BUSY too many commands wait"), "{text}");
        store.0.end(holder, &[]);
        assert_eq!(reply(waits).as_deref(), Some("+OK\r\n"));
        check(&store, "GET k", "$1\r\nv\r\n");
    }

    #[test]
    fn a_holder_passes_its_own_holds_alone() {
        let store = store();
        let holder = hold(&store, "k", Mode::Exclusive);
        assert!(matches!(attempt(&store, NOBODY, "SET k other"), (Attempted::Held, text) if text.is_empty()));
        assert!(matches!(attempt(&store, holder.id, "SET k own"), (Attempted::Done, text) if text == "+OK\r\n"));
        assert!(matches!(attempt(&store, holder.id + 1, "GET k"), (Attempted::Held, _)));
        store.0.end(holder, &[]);
        check(&store, "GET k", "$3\r\nown\r\n");
    }

    #[test]
    fn what_others_wait_for_is_handed_over_before_the_next_command_sees_it() {
        let store = store();
        let [first, second] = ["BLPOP l 0", "BRPOP l 0"].map(|command| parked(&store, command));
        check(&store, "RPUSH l a", ":1\r\n");
        check(&store, "LLEN l", ":0\r\n");
        assert_eq!(reply(first).as_deref(), Some("*2\r\n$1\r\nl\r\n$1\r\na\r\n"));
        drop(second);
        check(&store, "RPUSH l b", ":1\r\n");
        check(&store, "LLEN l", ":1\r\n");
    }

    #[test]
    fn a_caller_that_cannot_wait_gets_the_reply_for_nothing() {
        let store = store();
        let who = Who { blocks: Blocks::Never, ..Who::plain(ReplyForm::Value, Behalf::CLIENT) };
        let words = words("BLPOP l 0");
        let spec = store.0.rows.resolve(&words).expect("a command");
        let Handler::Keyspace(handle) = spec.handler else { panic!("it is about keys") };
        let mut out = Vec::new();
        let pass = store.0.gate.enter();
        let writer = &mut ReplyWriter::new(&mut out, Protocol::Resp2);
        assert!(matches!(store.0.attempt(&pass, spec, handle, &words, 0, who, writer, None), Attempted::Done));
        assert_eq!(out, b"*-1\r\n");
    }

    #[test]
    fn long_words_are_copied_aside() {
        let store = store();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        // The reply may come before the key is free.
        let finish = |words: &[&[u8]]| match start(&store, words) {
            (Executed::Parked(parked), _) => (true, String::from_utf8(runtime.block_on(parked)).expect("text")),
            (_, reply) => (false, reply),
        };
        let long = vec![b'x'; COPIED_BY_WORKER_MAX + 1];
        assert_eq!(finish(&[b"SET", b"k", &long]), (true, "+OK\r\n".to_owned()));
        let length = format!(":{}\r\n", long.len());
        assert_eq!(finish(&[b"STRLEN", b"k"]).1, length);
        assert_eq!(finish(&[b"SETRANGE", b"k", b"0", &long[..SHARED_MIN]]).1, length);
    }
}
