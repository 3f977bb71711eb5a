//! The context of a running command: its words, its keys behind locks, and time.
//!
//! A command ends with [`Ctx::finish`], which unlocks its stripes, frees replaced values, and emits the command's
//! effects. A context dropped before that is aborted: its handler panicked. The locks are released, the effects of
//! completed writes are published, waiters of created keys are served, and the abort is counted; no reply is written.

mod ending;
mod expired;
mod recording;
mod tracked;

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_data::clock::TICKS_PER_S;
use sluicegate_data::object::COPIED_MAX;
use sluicegate_data::object::elements::TIMELESS;
use sluicegate_data::object::limits::Limits;
use sluicegate_data::object::{Kind, Object, ObjectRef, Ref};
use sluicegate_data::rdb;
use sluicegate_data::table::Slot;
use sluicegate_data::value::{Access, Entry, Garbage, SHARED_MIN, Value, View};
use smallvec::SmallVec;

use crate::Inner;
use crate::effect::{Collected, Effect, Effects};
use crate::gate::Pass;
use crate::locks::Locks;
use crate::notify::{Class, Event, Notifier};
use crate::owned::Words;
use crate::pubsub::Kind as ChannelKind;
use crate::record::Unit;
use crate::refused::Refused;
use crate::refused::WRONG_TYPE;
use crate::stripe::{Locked, Now, Stripe};
use crate::waiter::{Blocks, ReadyKey};

/// The context of one running command.
///
/// The command's keys are numbered as its catalogue row finds them, and all their stripes are locked until the handler
/// returns or calls `unlock`.
pub struct Ctx<'p> {
    pub(crate) inner: &'p Inner,
    pub(crate) pass: &'p Pass<'p>,
    /// The command's words, the name first.
    pub(crate) words: &'p [&'p [u8]],
    /// The bytes from the start of the request on that the words are of; empty if they are not known.
    pub(crate) request: &'p [u8],
    /// The caller's database.
    pub(crate) db: u32,
    pub(crate) now: Now<'p>,
    pub(crate) places: SmallVec<[Place; 2]>,
    pub(crate) locks: Locks<'p>,
    /// The results of work done before the stripes were locked, for the few commands with much to prepare.
    pub(crate) ahead: Option<Box<Ahead>>,
    /// Memory to be freed after the stripes are unlocked.
    pub(crate) garbage: Vec<Garbage>,
    /// Effects outside the keyspace, emitted after the stripes are unlocked.
    pub(crate) effects: Effects,
    /// The section's list of deferred effects, if a section runs the command.
    pub(crate) collected: Option<&'p Collected>,
    /// The keys that were changed, as bits by their numbers.
    changed: u64,
    /// What is recorded in place of the command's words.
    recorded: Option<Box<Unit>>,
    /// Whether the stripes stay locked for further commands, as in a transaction of few keys.
    pub(crate) keeps_locks: bool,
    /// The number of receivers of this command's message, if it was counted before the stripes were locked.
    pub(crate) reached: Option<usize>,
    /// Whether the command may block.
    pub(crate) blocks: Blocks<'p>,
    /// Whether a script runs it.
    pub(crate) of_script: bool,
    /// Whether the command may be moved to the thread pool instead.
    pub(crate) defers: bool,
    /// The reason why there is no reply yet.
    pub(crate) pending: Pending,
    /// The command's words, in which those that depend on the moment are replaced by their values, if it waits with
    /// these.
    pub(crate) resolved: Option<Box<Words>>,
    /// Its keys and their state, if it runs on the thread pool, on keys that it holds.
    pub(crate) pins: Option<Box<Pins>>,
    /// Whether it was ended by [`finish`](Self::finish); a drop before that is an abort.
    is_finished: bool,
}

/// The event for which a command without a reply waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// It has replied, or will.
    Nothing,
    /// For an element: see [`Ctx::block`].
    Element,
    /// For a run on the thread pool: see [`Ctx::defer`].
    Turn,
}

/// Results of work that takes too long while stripes are locked.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Large values with the indices of their words.
    pub(crate) values: Vec<(u32, Arc<Vec<u8>>)>,
    /// Long words with their indices, to be recorded.
    pub(crate) long: Vec<(u32, Arc<Vec<u8>>)>,
    /// The value of RESTORE's payload.
    pub(crate) decoded: Option<Result<Value<'static>, rdb::Wrong>>,
    /// The result of BITOP, whose type is known to that command only.
    pub(crate) combined: Option<Box<dyn Any>>,
}

/// The keys of a command on the thread pool: no stripe stays locked while a value is read or changed, because the
/// command holds its keys.
pub(crate) struct Pins {
    /// The entry last read of each key.
    pub(crate) entries: Vec<Option<Entry>>,
    /// Created keys for which other clients wait.
    pub(crate) ready: VecDeque<ReadyKey>,
}

/// The location of one of the command's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) hash: u64,
    /// The index of its lock; [`NO_DB`] if its database does not exist, which can happen only to a command that reads.
    pub(crate) lock: u16,
    pub(crate) word: u32,
    pub(crate) db: u32,
}

/// The lock of a key whose database does not exist.
pub(crate) const NO_DB: u16 = u16::MAX;

impl<'p> Ctx<'p> {
    /// Returns the context of a command whose keys are not locked yet.
    #[inline]
    pub(crate) fn new(
        inner: &'p Inner,
        pass: &'p Pass<'p>,
        words: &'p [&'p [u8]],
        db: u32,
        now: Now<'p>,
        blocks: Blocks<'p>,
    ) -> Ctx<'p> {
        Ctx {
            inner,
            pass,
            words,
            request: &[],
            db,
            now,
            places: SmallVec::new(),
            locks: Locks::new(),
            ahead: None,
            garbage: Vec::new(),
            effects: Vec::new(),
            collected: None,
            changed: 0,
            recorded: None,
            keeps_locks: false,
            reached: None,
            blocks,
            of_script: false,
            defers: false,
            pending: Pending::Nothing,
            resolved: None,
            pins: None,
            is_finished: false,
        }
    }

    /// Called by a blocking command before it removes anything. Returns false if its client does not wait any more: the
    /// command then returns without a reply.
    pub(crate) fn win(&self) -> bool {
        match self.blocks {
            Blocks::Known { waiter, won } => {
                won.set(waiter.win());
                won.get()
            }
            _ => true,
        }
    }

    /// Called by a command that takes too long under the lock of a stripe, to run on the thread pool instead. Returns
    /// false if it can't, or runs there already: then it continues. Otherwise the handler returns, without having
    /// replied or changed anything.
    #[cold]
    pub(crate) fn defer(&mut self) -> bool {
        if self.defers {
            self.pending = Pending::Turn;
        }
        self.defers
    }

    /// Returns the entry of key `index`, and records the access.
    pub(crate) fn read(&mut self, index: usize) -> Option<&Entry> {
        if self.pins.is_some() {
            return self.pin(index);
        }
        let now = self.now.access();
        let (lock, slot) = self.find_to_read(index)?;
        let stripe: &mut Stripe = &mut self.locks[lock];
        let is_unheld = stripe.holds.is_none();
        let entry = stripe.table.entry_mut(slot);
        if is_unheld {
            // A held entry may be in use by a reader without the lock.
            entry.touch(now);
        }
        Some(entry)
    }

    /// Returns the limits up to which values are kept in their small form.
    #[inline]
    pub(crate) fn limits(&self) -> &'p Limits {
        &self.inner.limits
    }

    /// Returns the time up to which keys and elements have expired: the present, or none.
    pub(crate) fn expiry_ms(&mut self) -> i64 {
        if self.is_timeless() { TIMELESS } else { self.now.ms() }
    }

    /// Returns whether nothing counts as expired: in a file that is replayed, and in the commands of a master, which decides
    /// itself what has expired.
    pub(crate) fn is_timeless(&self) -> bool {
        self.now.behalf.is_masters || self.inner.memory.is_timeless()
    }

    /// Returns the longest string that a command may make by writing into one, in bytes.
    pub(crate) fn string_max(&self) -> usize {
        self.inner.string_max.load(Ordering::Relaxed) as usize
    }

    /// Locks the stripe of key `index`, and no other, if the command runs on the thread pool: its keys are held anyway.
    #[inline]
    fn lock_pinned(&mut self, index: usize) {
        if self.pins.is_some() {
            self.lock_one(index);
        }
    }

    #[cold]
    fn lock_one(&mut self, index: usize) {
        self.let_go();
        let place = &mut self.places[index];
        place.lock = 0;
        let keyspace = &self.inner.keyspace;
        let locked = keyspace.db_to_write(self.pass, place.db).lock(keyspace.stripe_of(place.hash));
        self.locks.push(locked);
    }

    /// Releases the locks. A command on the thread pool records the keys that it created, because it serves their
    /// waiters only at its end.
    fn let_go(&mut self) {
        if let Some(pins) = &mut self.pins {
            for waits in self.locks.iter_mut().filter_map(|stripe| stripe.waits.as_deref_mut()) {
                pins.ready.extend(waits.take_ready());
            }
        }
        self.locks.clear();
    }

    /// Ends the work of a command on the thread pool. Returns the created keys for which other clients wait.
    pub(crate) fn take_ready_pins(&mut self) -> VecDeque<ReadyKey> {
        self.let_go();
        self.pins.as_mut().map(|pins| std::mem::take(&mut pins.ready)).unwrap_or_default()
    }

    /// Finds key `index` of a command on the thread pool.
    #[cold]
    fn pin(&mut self, index: usize) -> Option<&Entry> {
        let place = self.places[index];
        self.let_go();
        let keyspace = &self.inner.keyspace;
        let mut locked = keyspace.db(self.pass, place.db)?.lock(keyspace.stripe_of(place.hash));
        let Some(slot) = locked.find(place.hash, self.words[place.word as usize], &mut self.now, true) else {
            locked.misses += 1;
            if self.now.take_removed() {
                self.record_expired(index);
            }
            drop(locked);
            self.say(Class::KeyMiss, "keymiss", place);
            self.pins.as_mut()?.entries[index] = None;
            return None;
        };
        locked.hits += 1;
        // SAFETY: this command's ticket holds the key, so only this command changes or removes the entry, and expiry,
        // eviction and compaction skip it; the handle is read only until the handler's next use of the context, and the
        // handler returns before the ticket ends.
        let entry = unsafe { locked.table.entry(slot).alias() };
        drop(locked);
        let place = &mut self.pins.as_mut()?.entries[index];
        *place = Some(entry);
        place.as_ref()
    }

    /// Returns the string of key `index`, and records the access.
    pub(crate) fn read_string(&mut self, index: usize) -> Result<Option<View<'_>>, Refused> {
        self.read(index).map(|entry| entry.string().ok_or(WRONG_TYPE.into())).transpose()
    }

    /// Returns the value of key `index`, which must be of this type, and records the access.
    pub(crate) fn read_as<K: Kind>(&mut self, index: usize) -> Result<Option<Ref<'_, K>>, Refused> {
        typed(self.read(index))
    }

    /// Like [`read_as`](Self::read_as), with the time at which to read elements that may expire on their own.
    pub(crate) fn read_timed<K: Kind>(&mut self, index: usize) -> Result<Option<(Ref<'_, K>, i64)>, Refused> {
        if self.pins.is_some() {
            let now_ms = self.expiry_ms();
            return Ok(typed::<K>(self.pin(index))?.map(|value| (value, now_ms)));
        }
        let ticks = self.now.access();
        let Some((lock, slot)) = self.find_to_read(index) else { return Ok(None) };
        let stripe: &mut Stripe = &mut self.locks[lock];
        let is_unheld = stripe.holds.is_none();
        let entry = stripe.table.entry_mut(slot);
        if is_unheld {
            entry.touch(ticks);
        }
        let value = typed::<K>(Some(entry))?.expect("there is an entry");
        // The clock is read only if something may expire.
        let is_timeless = || self.now.behalf.is_masters || self.inner.memory.is_timeless();
        let may_expire = value.earliest_ms().is_some() && !is_timeless();
        let now_ms = if may_expire { self.now.ms() } else { TIMELESS };
        Ok(Some((value, now_ms)))
    }

    /// Returns the values of several keys, all of which must be of this type, and records the accesses.
    pub(crate) fn read_all_as<K: Kind>(&mut self, keys: Range<usize>) -> Result<Vec<Option<Ref<'_, K>>>, Refused> {
        let objects = self.read_objects(keys, |object| K::of(object).is_some())?;
        Ok(objects.into_iter().map(|object| object.and_then(ObjectRef::typed)).collect())
    }

    /// Returns the values of several keys, all of types that `takes` accepts, and records the accesses.
    pub(crate) fn read_objects(
        &mut self,
        keys: Range<usize>,
        takes: impl Fn(&Object) -> bool,
    ) -> Result<Vec<Option<ObjectRef<'_>>>, Refused> {
        for index in keys.clone() {
            if let Some(entry) = self.read(index)
                && !entry.object().is_some_and(|object| takes(&object))
            {
                return Err(WRONG_TYPE.into());
            }
        }
        let now_ms = self.expiry_ms();
        if let Some(pins) = &self.pins {
            return Ok(keys.map(|index| pins.entries[index].as_ref().and_then(Entry::object)).collect());
        }
        let value = |index: usize| {
            let place = self.places[index];
            let stripe: &Stripe = self.locks.get(usize::from(place.lock))?;
            let slot = stripe.table.find(place.hash, self.words[place.word as usize])?;
            // An expired entry may still exist if its key is held.
            let entry = stripe.table.entry(slot);
            entry.object().filter(|_| entry.expiry().is_none_or(|at_ms| at_ms > now_ms))
        };
        Ok(keys.map(value).collect())
    }

    /// Returns key `index` for a command that reads, but may store something in the value that no reader sees; [`None`]
    /// if the key does not exist. Records the access.
    pub(crate) fn key_of_reader(&mut self, index: usize) -> Option<KeyMut<'_, 'p>> {
        self.lock_pinned(index);
        let place = self.places[index];
        let slot = self.look(index)?.1;
        let stripe = &mut self.locks[usize::from(place.lock)];
        stripe.table.entry_mut(slot).touch(self.now.access());
        let key = self.words[place.word as usize];
        Some(KeyMut {
            stripe,
            is_apart: false,
            slot: Some(slot),
            hash: place.hash,
            key,
            db: place.db,
            now: &mut self.now,
            garbage: &mut self.garbage,
            effects: &mut self.effects,
            notifier: &self.inner.notifier,
        })
    }

    /// Returns the entry of key `index`, without recording the access.
    pub(crate) fn peek(&mut self, index: usize) -> Option<&Entry> {
        if self.pins.is_some() {
            return self.pin(index);
        }
        let (stripe, slot) = self.look(index)?;
        Some(stripe.table.entry(slot))
    }

    /// Returns the entry of key `index`, without recording the access nor, for OBJECT, the event of a missing key.
    pub(crate) fn inspect(&mut self, index: usize) -> Option<&Entry> {
        if self.pins.is_some() {
            return self.pin(index);
        }
        let (lock, slot) = self.find(index)?;
        Some(self.locks[lock].table.entry(slot))
    }

    fn look(&mut self, index: usize) -> Option<(&mut Stripe, Slot)> {
        self.find_to_read(index).map(|(lock, slot)| (&mut *self.locks[lock], slot))
    }

    /// Like [`find`](Self::find); emits the event of a missing key.
    #[inline(always)]
    fn find_to_read(&mut self, index: usize) -> Option<(usize, Slot)> {
        let found = self.find(index);
        if found.is_none() && self.inner.notifier.wants(Class::KeyMiss) {
            self.say(Class::KeyMiss, "keymiss", self.places[index]);
        }
        found
    }

    /// Returns the lock of key `index` and its slot, if it exists.
    #[inline(always)]
    fn find(&mut self, index: usize) -> Option<(usize, Slot)> {
        let place = self.places[index];
        let lock = usize::from(place.lock);
        let stripe: &mut Stripe = self.locks.get_mut(lock)?;
        match stripe.find(place.hash, self.words[place.word as usize], &mut self.now, true) {
            Some(slot) => {
                stripe.hits += 1;
                Some((lock, slot))
            }
            None => {
                stripe.misses += 1;
                if self.now.take_removed() {
                    self.record_expired(index);
                    self.say(Class::Expired, "expired", place);
                }
                None
            }
        }
    }

    /// Records an event of a key, if its class is enabled.
    #[cold]
    fn say(&mut self, class: Class, name: &'static str, place: Place) {
        if self.inner.notifier.wants(class) {
            let key = self.words[place.word as usize];
            self.effects.push(Effect::Event(Event { name, db: place.db, key: key.into() }));
        }
    }

    /// Returns the bytes that key `index` takes: its block, its value outside of it, and its share of the table.
    /// Records neither the access nor, for MEMORY USAGE, the event of a missing key.
    pub(crate) fn bytes_of(&mut self, index: usize) -> Option<usize> {
        let place = self.places[index];
        let stripe: &mut Stripe = self.locks.get_mut(usize::from(place.lock))?;
        // Neither a hit nor a miss.
        let Some(slot) = stripe.find(place.hash, self.words[place.word as usize], &mut self.now, true) else {
            if self.now.take_removed() {
                self.record_expired(index);
                self.say(Class::Expired, "expired", place);
            }
            return None;
        };
        let stripe = &self.locks[usize::from(place.lock)];
        let entry = stripe.table.entry(slot);
        let block = sluicegate_data::slab::rounded(entry.block_bytes());
        Some(block + entry.outside_bytes() + stripe.table.bytes() / stripe.table.len().max(1))
    }

    /// Returns key `index`, to be changed. Only for commands that write.
    #[inline]
    pub(crate) fn key(&mut self, index: usize) -> KeyMut<'_, 'p> {
        self.lock_pinned(index);
        let place = self.places[index];
        if self.records() && self.locks[usize::from(place.lock)].has_timed && !self.is_timeless() {
            self.remove_expired_elements(index);
        }
        let key = self.words[place.word as usize];
        let stripe = &mut self.locks[usize::from(place.lock)];
        let slot = stripe.find(place.hash, key, &mut self.now, false);
        if self.now.take_removed() {
            self.record_expired(index);
            self.say(Class::Expired, "expired", place);
        }
        let stripe = &mut self.locks[usize::from(place.lock)];
        KeyMut {
            stripe,
            is_apart: self.pins.is_some(),
            slot,
            hash: place.hash,
            key,
            db: place.db,
            now: &mut self.now,
            garbage: &mut self.garbage,
            effects: &mut self.effects,
            notifier: &self.inner.notifier,
        }
    }

    /// Returns word `word` as SET stores it; a large one has been copied before the stripes were locked.
    pub(crate) fn value(&mut self, word: usize) -> Value<'p> {
        let bytes = self.words[word];
        if bytes.len() >= SHARED_MIN
            && let Some(ahead) = &mut self.ahead
            && let Some(at) = ahead.values.iter().position(|(place, _)| *place as usize == word)
        {
            return Value::Shared { bytes: ahead.values.swap_remove(at).1, raw: false };
        }
        Value::of(bytes)
    }

    /// Records an event of key `index` by Redis's name. Clients that watch the key are notified, so a handler that
    /// changes a key must call this before it unlocks, and one that changes nothing must not.
    #[inline]
    pub(crate) fn notify(&mut self, index: usize, class: Class, name: &'static str) {
        self.note_changed(index);
        self.lock_pinned(index);
        let place = self.places[index];
        if let Some(stripe) = self.locks.get_mut(usize::from(place.lock)) {
            stripe.touch(self.words[place.word as usize]);
        }
        if self.inner.notifier.concerns(class) {
            self.tell_change(index, class, name);
        }
    }

    /// Records an event of key `index` that is no change for clients that watch it.
    pub(crate) fn announce(&mut self, index: usize, class: Class, name: &'static str) {
        self.note_change(index);
        if self.inner.notifier.wants(class) {
            self.say(class, name, self.places[index]);
        }
    }

    /// Counts a change of key `index` of which clients that watch it are not notified.
    pub(crate) fn note_change(&mut self, index: usize) {
        self.note_changed(index);
        self.lock_pinned(index);
        let place = self.places[index];
        if let Some(stripe) = self.locks.get_mut(usize::from(place.lock)) {
            stripe.changes += 1;
        }
    }

    /// Notifies the watchers of key `index` of a change for which Redis has no event.
    pub(crate) fn touch(&mut self, index: usize) {
        self.note_changed(index);
        self.lock_pinned(index);
        let place = self.places[index];
        if let Some(stripe) = self.locks.get_mut(usize::from(place.lock)) {
            stripe.touch(self.words[place.word as usize]);
        }
        if self.inner.notifier.is_tracked() {
            self.forget_readers(index, self.cause());
        }
    }

    /// Publishes a message; returns the number of clients that it reaches. In a section it is sent at the end.
    pub(crate) fn publish(&mut self, kind: ChannelKind, channel: &[u8], message: &[u8]) -> usize {
        self.record_message();
        let pubsub = &self.inner.pubsub;
        if self.collected.is_none() && self.locks.is_empty() {
            return pubsub.publish(kind, channel, message);
        }
        let count = self.reached.take().unwrap_or_else(|| pubsub.count(kind, channel));
        self.effects.push(Effect::Message { kind, channel: channel.into(), message: message.into() });
        count
    }

    /// Unlocks all stripes; no key can be used after that. In a transaction of few keys they stay locked.
    pub(crate) fn unlock(&mut self) {
        if self.now.behalf.tracks {
            self.remember_reader();
        }
        if !self.keeps_locks {
            self.let_go();
        }
        self.places.clear();
    }
}

/// Returns an entry's value as this type.
fn typed<K: Kind>(entry: Option<&Entry>) -> Result<Option<Ref<'_, K>>, Refused> {
    entry.map(|entry| entry.object().and_then(ObjectRef::typed).ok_or(WRONG_TYPE.into())).transpose()
}

/// Returns a long, unshared string with room for this many bytes. A growing string gets an eighth more, so that many
/// small additions copy each byte a few times only; one that becomes mostly zeros gets them from the system.
fn with_room(long: Arc<Vec<u8>>, len: usize) -> Arc<Vec<u8>> {
    if len / 2 > long.len() {
        let mut bytes = vec![0; len];
        bytes[..long.len()].copy_from_slice(&long);
        return Arc::new(bytes);
    }
    match Arc::try_unwrap(long) {
        Ok(bytes) if bytes.capacity() >= len => Arc::new(bytes),
        Ok(mut bytes) => {
            bytes.reserve_exact(len + len / 8 - bytes.len());
            Arc::new(bytes)
        }
        // Readers or another key share the string.
        Err(shared) => {
            let mut bytes = Vec::with_capacity(if len > shared.len() { len + len / 8 } else { shared.len() });
            bytes.extend_from_slice(&shared);
            Arc::new(bytes)
        }
    }
}

/// One key that a command may change.
pub(crate) struct KeyMut<'c, 'p> {
    stripe: &'c mut Locked<'p>,
    /// Whether its value is changed with the stripe unlocked: the command runs on the thread pool and holds the key.
    is_apart: bool,
    slot: Option<Slot>,
    hash: u64,
    key: &'c [u8],
    db: u32,
    pub(crate) now: &'c mut Now<'p>,
    garbage: &'c mut Vec<Garbage>,
    effects: &'c mut Effects,
    notifier: &'p Notifier,
}

impl KeyMut<'_, '_> {
    /// Returns whether the key exists.
    pub(crate) fn exists(&self) -> bool {
        self.slot.is_some()
    }

    /// Returns its entry.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.slot.map(|slot| self.stripe.table.entry(slot))
    }

    /// Returns its value, if it has one and that is a string.
    pub(crate) fn string(&self) -> Result<Option<View<'_>>, Refused> {
        self.entry().map(|entry| entry.string().ok_or(WRONG_TYPE.into())).transpose()
    }

    /// Calls `change` with the value, which is created if the key does not exist, and removes the key if the value is
    /// empty afterwards. Records the access.
    pub(crate) fn edit_as<K: Kind, R>(&mut self, change: impl FnOnce(&mut K) -> R) -> Result<R, Refused> {
        if self.slot.is_some() {
            return self.edit_existing_as(change).map(|result| result.expect("the key is there"));
        }
        let mut value = K::empty();
        let result = match self.is_apart {
            false => change(&mut value),
            true => self.stripe.unlocked(|| change(&mut value)),
        };
        if !value.is_gone() {
            self.set(Value::Object(value.into_object()), None);
        }
        Ok(result)
    }

    /// Like [`edit_as`](Self::edit_as), but does nothing if the key does not exist.
    pub(crate) fn edit_existing_as<K: Kind, R>(
        &mut self,
        change: impl FnOnce(&mut K) -> R,
    ) -> Result<Option<R>, Refused> {
        let Some(slot) = self.slot else { return Ok(None) };
        let now = self.now.access();
        let change = |value: &mut K| {
            let result = change(value);
            (result, value.is_gone())
        };
        let edited = match self.is_apart {
            false => self.stripe.edit_as(slot, now, change),
            true => self.edit_apart(slot, now, change),
        };
        let (result, is_empty) = edited.ok_or(WRONG_TYPE)?;
        if is_empty {
            self.remove();
        }
        Ok(Some(result))
    }

    /// Calls `change` with an object while other commands use the stripe; meanwhile an empty object takes its place.
    /// Only code that reads the types of keys without regard to holds can see that.
    #[cold]
    fn edit_apart<K: Kind, R>(&mut self, slot: Slot, now: Access<'_>, change: impl FnOnce(&mut K) -> R) -> Option<R> {
        let entry = self.stripe.table.entry_mut(slot);
        entry.touch(now);
        let bytes = entry.outside_bytes();
        if entry.object().is_none_or(|object| K::of(&object).is_none()) {
            return None;
        }
        let mut object = self.stripe.detach(slot, K::empty().into_object())?;
        let value = K::of_mut(&mut object).expect("its type was just seen");
        let changed = catch_unwind(AssertUnwindSafe(|| self.stripe.unlocked(|| change(value))));
        let slot = self.stripe.table.find(self.hash, self.key).expect("nobody removes a key that is held");
        self.slot = Some(slot);
        drop(self.stripe.put_back(slot, object, bytes));
        Some(changed.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Returns its value, if it has one and that is of this type.
    pub(crate) fn object<K: Kind>(&self) -> Result<Option<Ref<'_, K>>, Refused> {
        typed(self.entry())
    }

    /// Returns the time for accessing elements that may expire on their own; the clock is read only if some do.
    pub(crate) fn element_time(&mut self) -> i64 {
        let timed = self.entry().and_then(Entry::object).is_some_and(|object| object.earliest_ms().is_some());
        if timed { self.expiry_ms() } else { TIMELESS }
    }

    /// See [`Ctx::expiry_ms`].
    pub(crate) fn expiry_ms(&mut self) -> i64 {
        if self.now.behalf.is_masters || self.stripe.is_timeless() { TIMELESS } else { self.now.ms() }
    }

    /// Returns its expiry in Unix milliseconds.
    pub(crate) fn expiry(&self) -> Option<i64> {
        self.entry().and_then(Entry::expiry)
    }

    /// Serves waiters for more elements of an existing value when the command ends.
    pub(crate) fn wake(&mut self) {
        if let Some(waits) = &mut self.stripe.waits {
            waits.note(self.key);
        }
    }

    /// Records an access and counts a hit or a miss, for commands that read before they write.
    pub(crate) fn note_read(&mut self) {
        match self.slot {
            Some(slot) => {
                self.stripe.hits += 1;
                self.stripe.table.entry_mut(slot).touch(self.now.access());
            }
            None => self.stripe.misses += 1,
        }
    }

    /// Records an access, for commands whose access Redis counts neither as a hit nor as a miss.
    pub(crate) fn note_access(&mut self) {
        if let Some(slot) = self.slot {
            self.stripe.table.entry_mut(slot).touch(self.now.access());
        }
    }

    /// Like [`note_read`](Self::note_read), for commands that reply the old value: also emits the event of a missing
    /// key.
    pub(crate) fn note_read_aloud(&mut self) {
        self.note_read();
        if self.slot.is_none() {
            self.say(Class::KeyMiss, "keymiss");
        }
    }

    #[inline]
    fn say(&mut self, class: Class, name: &'static str) {
        if self.notifier.wants(class) {
            self.effects.push(Effect::Event(Event { name, db: self.db, key: self.key.into() }));
        }
    }

    /// Sets the value and the expiry.
    pub(crate) fn set(&mut self, value: Value<'_>, expiry: Option<i64>) {
        if let Some(at_ms) = expiry {
            self.note_own_expiry(at_ms);
        }
        self.put(value, expiry);
    }

    fn put(&mut self, value: Value<'_>, expiry: Option<i64>) {
        let now = self.now.access();
        let garbage = self.stripe.set((self.hash, self.key), self.slot, value, expiry, now);
        if let Some(garbage) = garbage {
            self.garbage.push(garbage);
        }
        if self.slot.is_none() {
            self.slot = self.stripe.table.find(self.hash, self.key);
            self.say(Class::New, "new");
        }
    }

    /// Sets the last access of an existing key to `idle_s` seconds ago.
    pub(crate) fn set_idle(&mut self, idle_s: i64) {
        if let Some(slot) = self.slot {
            let idle = idle_s.saturating_mul(TICKS_PER_S).clamp(0, i64::from(i32::MAX)) as u32;
            self.stripe.table.entry_mut(slot).set_access(self.now.ticks().wrapping_sub(idle));
        }
    }

    /// Sets the access counter of an existing key, on Redis's scale.
    pub(crate) fn set_frequency(&mut self, frequency: u8) {
        if let Some(slot) = self.slot {
            self.stripe.table.entry_mut(slot).set_counter(frequency);
        }
    }

    /// Sets the value and keeps the expiry.
    pub(crate) fn set_value(&mut self, value: Value<'_>) {
        let expiry = self.expiry();
        self.put(value, expiry);
    }

    /// Sets or removes the expiry of an existing key.
    pub(crate) fn set_expiry(&mut self, expiry: Option<i64>) {
        if let Some(slot) = self.slot {
            if let Some(at_ms) = expiry {
                self.note_own_expiry(at_ms);
            }
            self.stripe.set_expiry(self.hash, slot, expiry);
            self.slot = self.stripe.table.find(self.hash, self.key);
        }
    }

    /// Returns whether editing the string, which will have this many bytes, takes longer than a stripe may be locked.
    /// `own` of them are written anyway, and the bytes beyond its present length are at first zeros.
    pub(crate) fn takes_long_to_edit(&self, end: usize, own: usize) -> bool {
        let (old_len, moved) = self.slot.map_or((0, 0), |slot| {
            let old_len = self.stripe.table.entry(slot).string().map_or(0, View::len);
            (old_len, self.stripe.moved_by_edit(slot, end.max(old_len)))
        });
        let zeros = end.saturating_sub(own).saturating_sub(old_len);
        // Zeros of a new vector come from the system, see `edit_bytes`.
        let copied = if zeros > old_len { old_len } else { moved + zeros };
        copied + own > COPIED_MAX
    }

    /// Returns whether the stripe should be unlocked while a long value is changed.
    pub(crate) fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Calls `change` on the string, extended to `len` bytes with zeros, while other commands use the stripe; meanwhile
    /// an empty string takes the place of a long one, which is invisible, because the command holds the key.
    #[cold]
    pub(crate) fn edit_string_apart(&mut self, len: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let bytes = self.entry().map_or(0, Entry::outside_bytes);
        let long = self.slot.and_then(|slot| self.stripe.detach_string(slot));
        let Some(long) = long else {
            let mut digits = itoa::Buffer::new();
            let short = self.entry().and_then(Entry::string).map_or(&b""[..], |view| view.text(&mut digits)).to_vec();
            let value = self.stripe.unlocked(|| {
                let mut value = vec![0; len.max(short.len())];
                value[..short.len()].copy_from_slice(&short);
                change(&mut value);
                value
            });
            self.slot = self.stripe.table.find(self.hash, self.key);
            return self.set_value(Value::Vec { bytes: value, raw: true });
        };
        let mut value = Some(long);
        let changed = catch_unwind(AssertUnwindSafe(|| {
            self.stripe.unlocked(|| {
                let own = value.take().map(|long| with_room(long, len));
                let bytes = Arc::get_mut(value.insert(own.unwrap_or_default())).expect("it is this command's own");
                bytes.resize(len.max(bytes.len()), 0);
                change(bytes);
            });
        }));
        let slot = self.stripe.table.find(self.hash, self.key).expect("nobody removes a key that is held");
        self.slot = Some(slot);
        self.stripe.put_string_back(slot, value.unwrap_or_default(), bytes);
        self.stripe.table.entry_mut(slot).touch(self.now.access());
        if let Err(panic) = changed {
            resume_unwind(panic);
        }
    }

    /// Edits a value that has a vector of its own in place; see [`Entry::edit`].
    pub(crate) fn edit(&mut self, final_len: usize, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let now = self.now.access();
        let Some(slot) = self.slot else { return false };
        self.stripe.table.entry_mut(slot).touch(now);
        self.stripe.edit(slot, final_len, change)
    }

    /// Sets whether an existing key is never evicted.
    pub(crate) fn set_sticky(&mut self, sticky: bool) {
        if let Some(slot) = self.slot {
            self.stripe.set_sticky(slot, sticky);
        }
    }

    /// Removes the key. Returns false if it does not exist.
    pub(crate) fn remove(&mut self) -> bool {
        let Some(slot) = self.slot.take() else { return false };
        if let Some(garbage) = self.stripe.remove(slot) {
            self.garbage.push(garbage);
        }
        true
    }

    /// Removes an existing key and returns its value.
    pub(crate) fn take(&mut self) -> Option<(Value<'static>, Option<i64>)> {
        let slot = self.slot.take()?;
        let expiry = self.stripe.table.entry(slot).expiry();
        Some((self.stripe.take(slot), expiry))
    }
}
