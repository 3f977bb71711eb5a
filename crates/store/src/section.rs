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

use crate::behalf::Behalf;
use crate::catalogue::Handle;
use crate::catalogue::{CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::effect::{Collected, Effect};
use crate::execute::{Attempted, Who};
use crate::gate::{Closed, Pass};
use crate::hold::{HeldKey, HeldKeys, Holding, KeyList, KeyName, Mode, Phase, Ticket};
use crate::record::Unit;
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
    /// The keys acquired after the start.
    extra: Vec<HeldKey>,
    /// Keys created by the section for which other clients wait.
    ready: VecDeque<ReadyKey>,
    time: Frozen,
    effects: Collected,
    /// How undeclared keys are acquired; by default in the mode that a command needs.
    more: More,
    /// Whether it holds everything.
    everything: bool,
    /// The database and name of the key because of which the last command was refused: others held it.
    missed: Option<(u32, Box<[u8]>)>,
    /// Whether it was given a name.
    is_named: Cell<bool>,
    /// The index of the declared key that was used last, which is mostly the next one, too.
    used_last: usize,
    /// The hash of that key, once it was used.
    hash_last: Option<u64>,
    /// Whether memory is full and nothing can be evicted but keys held by sections; it does not check again.
    is_full: bool,
    /// Whether it writes, even if the disk fails meanwhile: half of a section is worse than all of it in memory only.
    is_writing: bool,
    /// On whose behalf its commands run.
    behalf: Behalf,
    /// Whether it was ended by [`finish`](Self::finish); a drop before that is an abort.
    is_finished: bool,
}

/// Resolves when a section has ended on another thread, also if it panicked there.
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

    /// Begins a section with an existing ticket.
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
                // The tables for waiting are built in slices; the keys may be free by the time that is done.
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
    /// Returns the ticket of the section, once it is queued.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        self.ticket.as_ref().filter(|_| self.queued)
    }
}

impl Drop for SectionWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.queued
        {
            // If it cannot be cancelled it was granted just now; its keys are released in both cases.
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
            effects: Collected::default(),
            more: More::AsCommand,
            everything: false,
            missed: None,
            is_named: Cell::new(false),
            used_last: 0,
            hash_last: None,
            is_full: false,
            is_writing: false,
            behalf: Behalf::CLIENT,
            is_finished: false,
        }
    }

    /// Returns a section with this number if all keys are free at this moment. Returns `None` if they are not, or if a
    /// waiter has precedence: then the caller has to [wait](Store::section).
    pub(crate) fn at_once<'k>(
        inner: &Arc<Inner>,
        id: u64,
        mut keys: impl Iterator<Item = (u32, &'k [u8], Mode)> + Clone,
    ) -> Option<Section> {
        let all = keys.clone();
        let mut hash_last = None;
        let keys = match (keys.next(), keys.next()) {
            // The hash of its only key is known to the first command.
            (Some((db, key, mode)), None) => {
                let hash = inner.keyspace.hasher.hash(key);
                hash_last = Some(hash);
                let stripe = inner.keyspace.stripe_of(hash) as u32;
                KeyList::from_buf([HeldKey { db, stripe, key: KeyName::from_slice(key), mode }])
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

    /// Returns the section of a key that a snapshot has [claimed](crate::claims).
    pub(crate) fn of_snapshot(inner: &Arc<Inner>, held: HeldKeys) -> Section {
        Section::new(inner, Holding::AtOnce(held))
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
        section.effects = effects.into();
        section
    }

    /// Names the section, for diagnostics about waiting commands: `client-7`, `script-…`, without spaces.
    pub fn set_owner(&self, name: &str) {
        self.is_named.set(true);
        self.inner.owners.lock().insert(self.holding.id, name.to_owned());
    }

    /// Returns the section's store.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the number by which stripes identify it as the holder of its keys.
    pub(crate) fn id(&self) -> u64 {
        self.holding.id
    }

    /// From now on, acquires undeclared keys in this mode; [`None`]: refuses them.
    pub(crate) fn extend_as(&mut self, mode: Option<Mode>) {
        self.more = mode.map_or(More::Denied, More::All);
    }

    /// From now on, acquires undeclared keys in the mode that each command needs.
    pub(crate) fn extend_by_command(&mut self) {
        self.more = More::AsCommand;
    }

    /// Returns the mode in which an undeclared key is acquired.
    pub(crate) fn mode_of_more(&self) -> Mode {
        match self.more {
            More::All(mode) => mode,
            More::AsCommand | More::Denied => Mode::Exclusive,
        }
    }

    /// Returns the database and the name of the key that others held when the last command was refused.
    pub(crate) fn missed(&self) -> Option<(u32, &[u8])> {
        self.missed.as_ref().map(|(db, key)| (*db, &**key))
    }

    /// Adds a key for which the section has waited.
    pub(crate) fn adopt(&mut self, held: HeldKey) {
        self.missed = None;
        self.extra.push(held);
    }

    /// Sets on whose behalf the following commands run.
    pub(crate) fn set_behalf(&mut self, behalf: Behalf) {
        self.behalf = behalf;
    }

    /// Returns on whose behalf its commands run.
    pub(crate) fn behalf(&self) -> Behalf {
        self.behalf
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

    /// Records that it holds everything from now on.
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

    /// Ends the section: emits its effects, serves blocked clients, and releases its keys.
    pub fn finish(mut self) {
        self.is_finished = true;
        self.leave();
    }

    /// Ends the section in this place, if there is one: moving it costs more than most ends do.
    pub(crate) fn finish_in(place: &mut Option<Section>) {
        if let Some(section) = place {
            section.is_finished = true;
            section.leave();
            *place = None;
        }
    }

    /// Ends the section on the thread pool if very many keys must be released; its effects are emitted immediately. The
    /// result resolves at the end: an earlier reply would put the client's next command behind these keys.
    pub(crate) fn end_aside(mut self) -> Ending {
        let effects = self.effects.take().into_iter();
        let (changes, others): (Vec<Effect>, _) = effects.partition(|effect| matches!(effect, Effect::Change(_)));
        self.effects = changes.into();
        self.inner.emit(others);
        let inner = self.inner.clone();
        let (ended, ending) = oneshot::channel();
        inner.aside.run(move || {
            self.finish();
            // The receiver may be gone, because its client has disconnected.
            let _ = ended.send(());
        });
        ending
    }

    /// Returns the declared keys, each once.
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
        let (deferred, now): (Vec<Effect>, _) = self.effects.take().into_iter().partition(Effect::is_deferred);
        self.effects = deferred.into();
        self.inner.emit(now);
    }

    /// Ends the section without publishing anything, because it has written nothing. Returns the keys that it had
    /// acquired after its start.
    pub(crate) fn give_up(mut self) -> Vec<(u32, Box<[u8]>, Mode)> {
        // A key may have been found expired, though.
        self.effects.get_mut().retain(Effect::is_of_tracking);
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

    /// Runs one command of the keyspace and writes its reply, which may be an error of the command.
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

    /// Like [`execute`](Self::execute), for a command that was looked up.
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

    /// Returns the holder of its declared keys.
    #[inline]
    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Evicts keys for a command that needs memory. The command is not refused: that was decided before the section
    /// began.
    #[inline]
    fn make_room_for(&mut self, spec: &CommandSpec) {
        if spec.flags.has(Flags::DENYOOM) && self.inner.memory.is_over() && !self.is_full {
            self.is_full = !self.inner.make_room_in_section();
        }
    }

    /// Lets the section write to its end: whether the disk allows that was seen before it began.
    pub(crate) fn begin_to_write(&mut self) {
        self.is_writing = true;
    }

    /// Returns whether a command is refused because the last save failed or the append-only file cannot be written, and
    /// writes the error. As in Redis, a section that has written continues to its end.
    #[inline]
    fn is_refused(&mut self, spec: &CommandSpec, out: &mut dyn ReplySink) -> bool {
        if self.is_writing || !spec.flags.has(Flags::WRITE) || self.behalf.is_masters {
            return false;
        }
        let loading = &self.inner.loading;
        if loading.refuses_some()
            && let Some(text) = loading.refusal_of_writes()
        {
            out.error(text);
            return true;
        }
        self.is_writing = true;
        false
    }

    /// Like [`try_execute`](Self::try_execute), for a command whose only key it [knows](Self::knows).
    pub(crate) fn try_known(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        hash: u64,
        out: &mut dyn ReplySink,
    ) -> Result<bool, SectionError> {
        let Handler::Keyspace(handle) = spec.handler else { return self.try_execute(spec, db, words, out) };
        if self.is_refused(spec, out) {
            return Ok(true);
        }
        self.make_room_for(spec);
        self.run_covered(spec, handle, db, words, Some(hash), out)
    }

    /// Like [`execute_resolved`](Self::execute_resolved). Returns false, without any effect, if the command takes so
    /// long that it should [run](Self::execute_pinned) on another thread, and the caller can do that.
    pub(crate) fn try_execute(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<bool, SectionError> {
        if self.is_refused(spec, out) {
            return Ok(true);
        }
        let handle = match spec.handler {
            Handler::Keyspace(handle) => handle,
            Handler::Global(handle) if self.everything => {
                let closed = self.inner.gate.close_beside_tickets();
                if handle(&self.inner.keyspace, &closed, words, db, out) {
                    self.effects.get_mut().extend(self.inner.forget_tracked());
                    if self.inner.record.is_on() {
                        self.effects.get_mut().push(Effect::Change(Unit::of(db, words)));
                    }
                }
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

    /// Runs a command without keeping its stripes locked.
    pub(crate) fn execute_pinned(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError> {
        let Handler::Keyspace(handle) = spec.handler else { return Err(SectionError::NotAllowed) };
        if self.is_refused(spec, out) {
            return Ok(());
        }
        self.pinned(spec, db, words, |ctx| {
            if let Some(prepare) = spec.prepare {
                prepare(ctx);
            }
            handle(ctx, out);
            ctx.conclude(|| spec.recorded());
        })
    }

    /// Runs a command. Returns false, without any effect, if it takes too long under locks.
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

    /// Like [`run`](Self::run), for a command whose keys the section holds as the command needs them; with the hash of
    /// its only key, if known.
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
            let Section { inner, holding, time, effects, behalf, .. } = &*self;
            let (id, time, collected, behalf) = (holding.id, Some(time), Some(effects), *behalf);
            let who =
                Who { id, time, collected, covers: true, hash, blocks: Blocks::Never, of_script, behalf, request: &[] };
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

    /// Calls `work` with the command's keys, which the section then holds, without keeping their stripes locked
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
            let Section { inner, time, effects, behalf, .. } = &*self;
            let inner = &**inner;
            let pass = inner.gate.enter();
            let mut ctx = inner.pinned(&pass, spec, words, db);
            ctx.now = Now::kept(&inner.clock, &inner.limits, time);
            ctx.now.behalf = *behalf;
            ctx.collected = Some(effects);
            ctx.of_script = of_script;
            let result = work(&mut ctx);
            ctx.conclude(|| spec.recorded());
            let ready = ctx.take_ready_pins();
            ctx.finish();
            (result, ready)
        };
        self.note_ready(ready);
        Ok(result)
    }

    /// Records created keys for which other clients wait.
    fn note_ready(&mut self, keys: VecDeque<ReadyKey>) {
        for key in keys {
            if !self.ready.contains(&key) {
                self.ready.push_back(key);
            }
        }
    }

    /// Acquires the keys of a command that the section does not hold yet.
    fn cover_all(&mut self, spec: &CommandSpec, db: u32, words: &[&[u8]]) -> Result<(), SectionError> {
        if let Some(word) = spec.keys.only() {
            return self.cover(db, words[word], spec.mode());
        }
        for key in self.inner.keys_of(spec, words, db) {
            self.cover(key.db, words[key.word as usize], spec.mode())?;
        }
        Ok(())
    }

    /// Acquires a key that the section does not hold yet.
    fn cover(&mut self, db: u32, key: &[u8], mode: Mode) -> Result<(), SectionError> {
        if self.everything {
            let is_refused = self.more == More::All(Mode::Shared) && mode == Mode::Exclusive;
            return if is_refused { Err(SectionError::ReadOnly) } else { Ok(()) };
        }
        let keys = &self.holding.keys;
        let is_it = |held: &HeldKey| held.db == db && same(&held.key, key);
        let place = match keys.get(self.used_last) {
            Some(held) if is_it(held) => Some(self.used_last),
            // They are ordered by stripe; a few of them are searched linearly.
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
            // Keys acquired later may be very many: the key's stripe knows whether it is one of them.
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

    /// Acquires an undeclared key, if it is free.
    fn take(&mut self, db: u32, key: &[u8], mode: Mode) -> Result<(), SectionError> {
        let taker = match self.more {
            More::All(_) if self.held() == 0 => Taker::First,
            More::All(_) => Taker::Script,
            More::AsCommand | More::Denied => Taker::Section,
        };
        match self.inner.take_key(&self.holding, db, key, mode, taker) {
            Taken::Now => {
                let stripe = self.inner.keyspace.stripe_of_key(key) as u32;
                self.extra.push(HeldKey { db, stripe, key: KeyName::from_slice(key), mode });
                Ok(())
            }
            Taken::Before => Ok(()),
            Taken::ForReading => Err(SectionError::ReadOnly),
            Taken::Not => {
                // A script waits for the key; any other caller is refused.
                match self.more {
                    More::AsCommand => SectionCounts::count(&self.inner.sections.refused),
                    More::All(_) | More::Denied => self.missed = Some((db, key.into())),
                }
                Err(SectionError::Held)
            }
        }
    }

    /// Defers an effect outside the keyspace until the section's end.
    pub fn defer(&mut self, effect: impl FnOnce() + Send + 'static) {
        self.effects.get_mut().push(Effect::Other(Box::new(effect)));
    }
}

impl Section {
    /// Emits its effects, serves blocked clients, and releases its keys.
    fn leave(&mut self) {
        /// Releases the keys even if an effect panics: first to blocked clients, then to parked commands.
        struct End<'s>(&'s mut Section);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                if self.0.is_named.get() {
                    self.0.inner.owners.lock().remove(&self.0.holding.id);
                }
                let Section { inner, holding, extra, ready, everything, is_full, .. } = &mut *self.0;
                if !ready.is_empty() {
                    // Its frozen time ends here: keys that expired meanwhile are not served.
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
        let mut effects = self.effects.take();
        let end = End(self);
        if !effects.is_empty() {
            end.0.inner.record_all(&mut effects);
            end.0.inner.emit(effects);
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if !self.is_finished {
            SectionCounts::count(&self.inner.sections.aborted);
            // This may run during unwinding, in which a second panic would abort the process.
            let _ = catch_unwind(AssertUnwindSafe(|| self.leave()));
        }
    }
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Section").field("id", &self.holding.id).finish()
    }
}
