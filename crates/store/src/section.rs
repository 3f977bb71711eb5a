//! A section: several commands executed atomically.
//!
//! It declares keys, waits until it has all of them at once, and then runs commands on them one by one, with any number
//! of suspensions in between: only commands that need one of its keys wait. Time is frozen at its start, or, if its
//! keys were free on arrival, by its first command that reads it. Effects outside the keyspace are buffered and emitted
//! in order at its end, before its holds are released, so a half-done section is invisible. There is no roll-back, as
//! in Redis. A blocking command in it does not wait.
//!
//! An undeclared key is acquired when first accessed, if it is free; the section never waits then, because while it
//! holds keys it must not wait for others.
//!
//! It ends with [`Section::finish`]. A section dropped before that is aborted: by a fault, a killed script, or a
//! disconnected client. An abort publishes the effects of completed writes, serves blocked clients, and releases the
//! keys like a normal end; it is counted, and a fault in an effect is caught.
//!
//! A section is not bound to a thread: with a long command it moves to the [thread pool](crate::aside) and returns.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_data::short::same;
use sluicegate_transport::{SLICE, give_way};
use sluicegate_wire::resp::ReplySink;
use tokio::sync::oneshot;

use crate::catalogue::Handle;
use crate::catalogue::{CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::effect::{Collected, Effect};
use crate::execute::{Attempted, Who};
use crate::gate::{Closed, Pass};
use crate::hold::{HeldKey, HeldKeys, Holding, KeyList, Mode, Phase, Ticket};
use crate::refused::SectionError;
use crate::stats::SectionCounts;
use crate::stripe::{Frozen, Now};
use crate::thread::assert_none_locked;
use crate::turn::{Entered, Taken, Taker};
use crate::waiter::Blocks;
use crate::waiter::ReadyKey;
use crate::{Inner, Store};

/// A section that waits for its keys. Dropping it cancels the wait.
#[must_use = "the section comes from the future"]
pub struct SectionWait {
    inner: Arc<Inner>,
    /// Present until the section begins.
    ticket: Option<Arc<Ticket>>,
    queued: bool,
}

/// A section that holds its keys. [`finish`](Self::finish) ends it; its drop aborts it.
#[must_use = "a section ends by `finish`"]
pub struct Section {
    inner: Arc<Inner>,
    /// The keys that it declared.
    holding: Holding,
    /// Keys taken after the start.
    extra: Vec<HeldKey>,
    /// Keys that came to life while others wait for them.
    ready: VecDeque<ReadyKey>,
    time: Frozen,
    effects: Vec<Effect>,
    /// The mode of undeclared keys; [`None`]: they are refused. By default a command's own mode.
    more: More,
    /// Whether it holds everything.
    everything: bool,
    /// The key that was held by others when a command was refused because of it.
    missed: Option<(u32, Box<[u8]>)>,
    /// Whether it was given a name.
    is_named: Cell<bool>,
    /// The place among the declared keys of the one that was used last, which is mostly the next one's, too.
    used_last: usize,
    /// Its hash, once it was used.
    hash_last: Option<u64>,
    /// Memory is full, and nothing may be evicted but what sections hold: it does not ask again.
    is_full: bool,
    /// Its commands' accesses leave no trace: CLIENT NO-TOUCH.
    is_traceless: bool,
    /// Whether its end was reached; a drop before that is an abort.
    is_finished: bool,
}

/// The end of a section on another thread; a fault there is one, too.
pub(crate) type Ending = oneshot::Receiver<()>;

/// The way in which a section acquires undeclared keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    AsCommand,
    All(Mode),
    Denied,
}

impl Store {
    /// Begins a section on keys given as database, key and mode.
    pub fn section<'k>(&self, keys: impl IntoIterator<Item = (u32, &'k [u8], Mode)>) -> SectionWait {
        self.section_of(self.0.ticket_on(keys.into_iter()))
    }

    /// Begins a section with a ticket that was made before.
    pub(crate) fn section_of(&self, ticket: Ticket) -> SectionWait {
        SectionWait { inner: self.0.clone(), ticket: Some(Arc::new(ticket)), queued: false }
    }
}

impl Future for SectionWait {
    type Output = Result<Section, SectionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let ticket = this.ticket.as_ref().expect("polled after its end");
        if !this.queued {
            if this.inner.gate.tickets() >= this.inner.tickets_max {
                this.ticket = None;
                SectionCounts::count(&this.inner.sections.refused);
                return Poll::Ready(Err(SectionError::TooMany));
            }
            if this.inner.gate.must_wait() && this.inner.gate.wait(context.waker()) {
                return Poll::Pending;
            }
            if this.inner.enter_when_ready(ticket) == Entered::Unready {
                // The data for waiting is built in slices; its keys may be free when that is done.
                let start = Instant::now();
                while ticket.prepare_to_wait() {
                    if start.elapsed() >= SLICE {
                        give_way(context.waker());
                        return Poll::Pending;
                    }
                }
                this.inner.enter_when_ready(ticket);
            }
            this.queued = true;
        }
        ticket.listen(context.waker());
        if ticket.take_invitation() {
            this.inner.accept(ticket);
        }
        match ticket.phase() {
            Phase::Granted => {}
            Phase::Cancelled => {
                let refusal = ticket.refusal().unwrap_or_default();
                if let Some(ticket) = this.ticket.take() {
                    this.inner.end_waiting(ticket);
                }
                return Poll::Ready(Err(SectionError::Behind(refusal)));
            }
            Phase::Waiting | Phase::Finished => return Poll::Pending,
        }
        let ticket = this.ticket.take().expect("it was there above");
        let mut section = Section::new(&this.inner, Holding::Waited(ticket));
        section.time = Frozen::at(this.inner.clock.now_us());
        Poll::Ready(Ok(section))
    }
}

impl SectionWait {
    /// Returns the place in the queues of its keys, once it stands there.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        self.ticket.as_ref().filter(|_| self.queued)
    }
}

impl Drop for SectionWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.queued
        {
            // Whether it is cancelled or was granted this very moment, its keys pass on.
            ticket.cancel();
            self.inner.end_waiting(ticket);
        }
    }
}

impl Section {
    fn new(inner: &Arc<Inner>, holding: Holding) -> Section {
        Section {
            inner: inner.clone(),
            holding,
            extra: Vec::new(),
            ready: VecDeque::new(),
            time: Frozen::default(),
            effects: Vec::new(),
            more: More::AsCommand,
            everything: false,
            missed: None,
            is_named: Cell::new(false),
            used_last: 0,
            hash_last: None,
            is_full: false,
            is_traceless: false,
            is_finished: false,
        }
    }

    /// Returns a section with this number if all keys are free at this moment; none if they are not, or if a waiter has
    /// precedence: then it has to [wait](Store::section).
    pub(crate) fn at_once<'k>(
        inner: &Arc<Inner>,
        id: u64,
        mut keys: impl Iterator<Item = (u32, &'k [u8], Mode)> + Clone,
    ) -> Option<Section> {
        let all = keys.clone();
        let mut hash_last = None;
        let keys = match (keys.next(), keys.next()) {
            // Its hash is known to the first command.
            (Some((db, key, mode)), None) => {
                let hash = inner.keyspace.hasher.hash(key);
                hash_last = Some(hash);
                let stripe = inner.keyspace.stripe_of(hash) as u32;
                KeyList::from_buf([HeldKey { db, stripe, key: key.into(), mode }])
            }
            _ => inner.held_keys(all),
        };
        let held = HeldKeys { id, keys };
        if !inner.hold_at_once(&held) {
            return None;
        }
        let mut section = Section::new(inner, Holding::AtOnce(held));
        section.hash_last = hash_last;
        Some(section)
    }

    /// Returns a section that begins while the gate is closed, so that all its keys are free, with the effects of
    /// earlier commands.
    pub(crate) fn while_closed(
        inner: &Arc<Inner>,
        closed: &Closed<'_>,
        ticket: Ticket,
        now_us: i64,
        effects: Vec<Effect>,
    ) -> Section {
        let ticket = Arc::new(ticket);
        let granted = inner.enter_queues_within(&closed.pass(), &ticket);
        debug_assert!(granted, "a hold behind a closed gate");
        let mut section = Section::new(inner, Holding::Waited(ticket));
        section.time = Frozen::at(now_us);
        section.effects = effects;
        section
    }

    /// Names the section, for diagnostics about waiting commands: `client-7`, `script-…`, without spaces.
    pub fn set_owner(&self, name: &str) {
        self.is_named.set(true);
        self.inner.owners.lock().insert(self.holding.id, name.to_owned());
    }

    /// Returns its store.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the number that its keys know it by.
    pub(crate) fn id(&self) -> u64 {
        self.holding.id
    }

    /// Holds keys that are used without having been declared in this way from now on; [`None`]: refuses them.
    pub(crate) fn extend_as(&mut self, mode: Option<Mode>) {
        self.more = mode.map_or(More::Denied, More::All);
    }

    /// Holds keys that were not declared as each command needs it, again.
    pub(crate) fn extend_by_command(&mut self) {
        self.more = More::AsCommand;
    }

    /// Returns the mode of an undeclared key.
    pub(crate) fn mode_of_more(&self) -> Mode {
        match self.more {
            More::All(mode) => mode,
            More::AsCommand | More::Denied => Mode::Exclusive,
        }
    }

    /// Database and name of the key that others held when the last command was refused.
    pub(crate) fn missed(&self) -> Option<(u32, &[u8])> {
        self.missed.as_ref().map(|(db, key)| (*db, &**key))
    }

    /// Takes over a key that was waited for.
    pub(crate) fn adopt(&mut self, held: HeldKey) {
        self.missed = None;
        self.extra.push(held);
    }

    /// Lets accesses of the commands that follow leave no trace, or leave one again.
    pub(crate) fn set_traceless(&mut self, is_traceless: bool) {
        self.is_traceless = is_traceless;
    }

    /// Returns whether a script runs its commands.
    fn is_of_script(&self) -> bool {
        self.more != More::AsCommand
    }

    /// Returns the number of keys that it holds.
    pub(crate) fn held(&self) -> usize {
        self.holding.keys.len() + self.extra.len()
    }

    /// Returns whether it holds everything.
    pub(crate) fn has_everything(&self) -> bool {
        self.everything
    }

    /// Returns whether it may use undeclared keys.
    pub(crate) fn may_have_more(&self) -> bool {
        self.more != More::Denied
    }

    /// Notes that it holds everything from now on.
    pub(crate) fn adopt_everything(&mut self) {
        self.everything = true;
    }

    /// Returns whether a key was declared, according to the key's stripe.
    pub(crate) fn has_declared(&self, pass: &Pass<'_>, db: u32, key: &[u8]) -> bool {
        let Some(database) = self.inner.keyspace.db(pass, db) else { return false };
        let stripe = self.inner.keyspace.stripe_of_key(key);
        let locked = database.lock(stripe);
        let id = self.holding.id;
        locked.holds.as_deref().is_some_and(|holds| holds.has(id, key) || holds.shares(id, key))
    }

    /// Ends it: emits its effects, serves blocked clients, and passes its keys on.
    pub fn finish(mut self) {
        self.is_finished = true;
        self.leave();
    }

    /// Ends it on the thread pool if very many keys must be passed on; its effects are emitted immediately. The result
    /// is ready at the end: an earlier reply would put the client's next command behind these keys.
    pub(crate) fn end_aside(mut self) -> Ending {
        self.inner.emit(std::mem::take(&mut self.effects));
        let inner = self.inner.clone();
        let (ended, ending) = oneshot::channel();
        inner.aside.run(move || {
            self.finish();
            // Its client may have disconnected.
            let _ = ended.send(());
        });
        ending
    }

    /// Returns the keys that it was made to hold, each once.
    pub(crate) fn declared(&self) -> &[HeldKey] {
        &self.holding.keys
    }

    /// Returns some of the keys that it holds.
    pub(crate) fn first_keys(&self) -> impl Iterator<Item = &HeldKey> {
        const LOOKED_AT: usize = 8;
        self.holding.keys.iter().take(LOOKED_AT).chain(self.extra.iter().take(LOOKED_AT))
    }

    /// Publishes its effects so far, because its client is about to change its subscriptions.
    pub(crate) fn emit_early(&mut self) {
        let (deferred, now) = std::mem::take(&mut self.effects).into_iter().partition(Effect::is_deferred);
        self.effects = deferred;
        let now: Vec<Effect> = now;
        self.inner.emit(now);
    }

    /// Ends it without publishing anything, because it has written nothing. Returns the keys that it took.
    pub(crate) fn give_up(mut self) -> Vec<(u32, Box<[u8]>, Mode)> {
        self.effects.clear();
        let taken = self.extra.iter().map(|held| (held.db, held.key[..].into(), held.mode)).collect();
        self.finish();
        taken
    }

    /// Returns the section's time in Unix microseconds.
    pub(crate) fn now_us(&self) -> i64 {
        Now::kept(&self.inner.clock, &self.inner.limits, &self.time).us()
    }

    /// Returns the section's time in Unix milliseconds.
    pub fn now_ms(&self) -> i64 {
        Now::kept(&self.inner.clock, &self.inner.limits, &self.time).ms()
    }

    /// Runs one command of the keyspace and writes its reply, errors of the command included.
    pub fn execute(&mut self, db: u32, words: &[&[u8]], out: &mut dyn ReplySink) -> Result<(), SectionError> {
        let spec = match self.inner.rows.resolve(words) {
            Ok(spec) => spec,
            Err(text) => {
                out.error_bytes(&text);
                return Ok(());
            }
        };
        self.execute_resolved(spec, db, words, out)
    }

    /// Like [`execute`](Self::execute), of a command that was looked up.
    pub(crate) fn execute_resolved(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError> {
        match self.try_execute(spec, db, words, out)? {
            true => Ok(()),
            false => self.execute_pinned(spec, db, words, out),
        }
    }

    /// Returns the hash of the command's only key, if that is the key that was used last and is held as the command
    /// needs it.
    #[inline]
    pub(crate) fn knows(&self, spec: &CommandSpec, db: u32, words: &[&[u8]]) -> Option<u64> {
        let hash = self.hash_last?;
        let key = words[spec.keys.only()?];
        let held = self.holding.keys.get(self.used_last)?;
        let is_it = held.db == db && same(&held.key, key) && !self.everything && spec.others.is_none();
        (is_it && (held.mode == Mode::Exclusive || spec.mode() == Mode::Shared)).then_some(hash)
    }

    /// Returns the means by which it holds its declared keys.
    #[inline]
    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Room for memory was checked before the section began; a command is not refused in the middle.
    #[inline]
    fn make_room_for(&mut self, spec: &CommandSpec) {
        if spec.flags.has(Flags::DENYOOM) && self.inner.memory.is_over() && !self.is_full {
            self.is_full = !self.inner.make_room_in_section();
        }
    }

    /// Like [`try_execute`](Self::try_execute), of a command whose only key it [knows](Self::knows).
    pub(crate) fn try_known(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        hash: u64,
        out: &mut dyn ReplySink,
    ) -> Result<bool, SectionError> {
        let Handler::Keyspace(handle) = spec.handler else { return self.try_execute(spec, db, words, out) };
        self.make_room_for(spec);
        self.run_covered(spec, handle, db, words, Some(hash), out)
    }

    /// Like [`execute_resolved`](Self::execute_resolved); false, and nothing has happened, if the command takes so long
    /// that it is [carried out](Self::execute_pinned) on another thread, if the caller can do that.
    pub(crate) fn try_execute(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<bool, SectionError> {
        let handle = match spec.handler {
            Handler::Keyspace(handle) => handle,
            Handler::Global(handle) if self.everything => {
                let closed = self.inner.gate.close_beside_tickets();
                handle(&self.inner.keyspace, &closed, words, db, out);
                drop(closed);
                let woken = self.inner.keyspace.take_woken();
                self.note_ready(woken.into());
                return Ok(true);
            }
            _ => return Err(SectionError::NotAllowed),
        };
        self.make_room_for(spec);
        if let Some(others) = spec.leads(words) {
            return (others.run)(self, db, words, out).map(|()| true);
        }
        self.run(spec, handle, db, words, out)
    }

    /// Carries out a command without its stripes staying locked.
    pub(crate) fn execute_pinned(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError> {
        let Handler::Keyspace(handle) = spec.handler else { return Err(SectionError::NotAllowed) };
        self.pinned(spec, db, words, |ctx| {
            if let Some(prepare) = spec.prepare {
                prepare(ctx);
            }
            handle(ctx, out);
        })
    }

    /// False if nothing has happened, because the command takes too long under locks.
    fn run(
        &mut self,
        spec: &'static CommandSpec,
        handle: Handle,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<bool, SectionError> {
        self.cover_all(spec, db, words)?;
        self.run_covered(spec, handle, db, words, None, out)
    }

    /// The same for a command whose keys it holds as the command needs them; with the hash of its only key, if known.
    #[inline]
    fn run_covered(
        &mut self,
        spec: &'static CommandSpec,
        handle: Handle,
        db: u32,
        words: &[&[u8]],
        hash: Option<u64>,
        out: &mut dyn ReplySink,
    ) -> Result<bool, SectionError> {
        let of_script = self.is_of_script();
        let ran = {
            let is_traceless = self.is_traceless;
            let Section { inner, holding, time, effects, .. } = &mut *self;
            let (id, time) = (holding.id, Some(&*time));
            let collecting = Collecting::new(effects);
            let collected = Some(&collecting.collected);
            let who = Who { id, time, collected, covers: true, hash, blocks: Blocks::Never, of_script, is_traceless };
            let pass = inner.gate.enter_with(holding);
            inner.attempt(&pass, spec, handle, words, db, who, out, None)
        };
        match ran {
            Attempted::Done => Ok(true),
            Attempted::Blocked(_waiter) => Ok(true),
            Attempted::Long => Ok(false),
            Attempted::Ready(ready) => {
                self.note_ready(ready.keys);
                Ok(true)
            }
            Attempted::Held => {
                SectionCounts::count(&self.inner.sections.refused);
                Err(SectionError::Held)
            }
        }
    }

    /// Lets `work` see the command's keys, which the section then holds, without their stripes staying locked
    /// meanwhile: for what takes long.
    pub(crate) fn pinned<R>(
        &mut self,
        spec: &CommandSpec,
        db: u32,
        words: &[&[u8]],
        work: impl FnOnce(&mut Ctx<'_>) -> R,
    ) -> Result<R, SectionError> {
        self.cover_all(spec, db, words)?;
        let of_script = self.is_of_script();
        let (result, ready) = {
            let is_traceless = self.is_traceless;
            let Section { inner, time, effects, .. } = &mut *self;
            let inner = &**inner;
            let collecting = Collecting::new(effects);
            let pass = inner.gate.enter();
            let mut ctx = inner.pinned(&pass, spec, words, db);
            ctx.now = Now::kept(&inner.clock, &inner.limits, time);
            ctx.now.is_traceless = is_traceless;
            ctx.collected = Some(&collecting.collected);
            ctx.of_script = of_script;
            let result = work(&mut ctx);
            let ready = ctx.take_ready_pins();
            ctx.finish();
            (result, ready)
        };
        self.note_ready(ready);
        Ok(result)
    }

    /// Notes keys that came to life while others wait for them.
    fn note_ready(&mut self, keys: VecDeque<ReadyKey>) {
        for key in keys {
            if !self.ready.contains(&key) {
                self.ready.push_back(key);
            }
        }
    }

    /// Makes sure that the section holds all keys of a command.
    fn cover_all(&mut self, spec: &CommandSpec, db: u32, words: &[&[u8]]) -> Result<(), SectionError> {
        if let Some(word) = spec.keys.only() {
            return self.cover(db, words[word], spec.mode());
        }
        for key in self.inner.keys_of(spec, words, db) {
            self.cover(key.db, words[key.word as usize], spec.mode())?;
        }
        Ok(())
    }

    /// Makes sure that the section holds the key.
    fn cover(&mut self, db: u32, key: &[u8], mode: Mode) -> Result<(), SectionError> {
        if self.everything {
            let is_refused = self.more == More::All(Mode::Shared) && mode == Mode::Exclusive;
            return if is_refused { Err(SectionError::ReadOnly) } else { Ok(()) };
        }
        let keys = &self.holding.keys;
        let is_it = |held: &HeldKey| held.db == db && same(&held.key, key);
        let place = match keys.get(self.used_last) {
            Some(held) if is_it(held) => Some(self.used_last),
            // They are ordered by stripe; few enough of them are looked through as they are.
            _ if keys.len() <= 8 => keys.iter().position(is_it),
            _ => {
                let stripe = self.inner.keyspace.stripe_of_key(key) as u32;
                let start = keys.partition_point(|held| (held.db, held.stripe) < (db, stripe));
                let place = keys[start..].iter().take_while(|held| held.stripe == stripe).position(is_it);
                place.map(|place| start + place)
            }
        };
        if let Some(place) = place
            && (place != self.used_last || self.hash_last.is_none())
        {
            (self.used_last, self.hash_last) = (place, Some(self.inner.keyspace.hasher.hash(key)));
        }
        match place.map(|place| &keys[place]) {
            Some(held) if held.mode == Mode::Shared && mode == Mode::Exclusive => Err(SectionError::ReadOnly),
            Some(_) => Ok(()),
            // Those taken later may be very many: the key's stripe knows whether it is one of them.
            None => {
                let mode = match self.more {
                    More::AsCommand => mode,
                    More::All(Mode::Shared) if mode == Mode::Exclusive => return Err(SectionError::ReadOnly),
                    More::All(all) => all,
                    More::Denied => return Err(SectionError::Undeclared),
                };
                self.take(db, key, mode)
            }
        }
    }

    /// Takes a key that was not declared, if it is free.
    fn take(&mut self, db: u32, key: &[u8], mode: Mode) -> Result<(), SectionError> {
        let taker = match self.more {
            More::All(_) if self.held() == 0 => Taker::First,
            More::All(_) => Taker::Script,
            More::AsCommand | More::Denied => Taker::Section,
        };
        match self.inner.take_key(&self.holding, db, key, mode, taker) {
            Taken::Now => {
                let stripe = self.inner.keyspace.stripe_of_key(key) as u32;
                self.extra.push(HeldKey { db, stripe, key: key.into(), mode });
                Ok(())
            }
            Taken::Before => Ok(()),
            Taken::ForReading => Err(SectionError::ReadOnly),
            Taken::Not => {
                // A script waits for it; anybody else is refused.
                match self.more {
                    More::AsCommand => SectionCounts::count(&self.inner.sections.refused),
                    More::All(_) | More::Denied => self.missed = Some((db, key.into())),
                }
                Err(SectionError::Held)
            }
        }
    }

    /// Keeps something to be done outside the keyspace until the section's end.
    pub fn defer(&mut self, effect: impl FnOnce() + Send + 'static) {
        self.effects.push(Effect::Other(Box::new(effect)));
    }
}

impl Section {
    /// Lets its effects happen, serves blocked clients, and passes its keys on.
    fn leave(&mut self) {
        /// Passes the keys on even if an effect panics: first to blocked clients, then to parked commands.
        struct End<'s>(&'s mut Section);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                if self.0.is_named.get() {
                    self.0.inner.owners.lock().remove(&self.0.holding.id);
                }
                let Section { inner, holding, extra, ready, everything, is_full, .. } = &mut *self.0;
                if !ready.is_empty() {
                    // Its frozen time ends with it: keys that expired meanwhile are not served.
                    extra.extend(inner.serve(holding.id, std::mem::take(ready)));
                }
                match everything {
                    true => inner.end_everything(holding, extra),
                    false => inner.end_section(holding, extra),
                }
                if *is_full {
                    inner.memory.wake_evictor();
                }
            }
        }
        assert_none_locked();
        let effects = std::mem::take(&mut self.effects);
        let end = End(self);
        if !effects.is_empty() {
            end.0.inner.emit(effects);
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if !self.is_finished {
            SectionCounts::count(&self.inner.sections.aborted);
            // This may be an unwinding already, which a second panic would turn into the end of the process.
            let _ = catch_unwind(AssertUnwindSafe(|| self.leave()));
        }
    }
}

/// A section's effects while one of its commands adds to them. They go back to the section however the command ends.
struct Collecting<'s> {
    effects: &'s mut Vec<Effect>,
    collected: Collected,
}

impl<'s> Collecting<'s> {
    #[inline]
    fn new(effects: &'s mut Vec<Effect>) -> Collecting<'s> {
        let collected = Collected::new(std::mem::take(effects));
        Collecting { effects, collected }
    }
}

impl Drop for Collecting<'_> {
    #[inline]
    fn drop(&mut self) {
        // What stood there was taken, so that there is nothing to drop.
        std::mem::forget(std::mem::replace(self.effects, std::mem::take(self.collected.get_mut())));
    }
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Section").field("id", &self.holding.id).finish()
    }
}
