//! Several commands while the locks of all their stripes are held: the fast path of a transaction.
//!
//! Most transactions are a few cheap commands on a few keys, done in less time than acquiring holds on those keys and
//! passing them on. So the stripes of all of them are locked at once, in (database, stripe) order as for a command on
//! several keys, and the commands run one after the other in one [`Ctx`]. No other command can run in between, no
//! ticket is created, and nothing has to be undone if the client disconnects. Effects outside the keyspace (events,
//! messages, values to be freed, clients to be served) are collected in that context and take place after unlocking.
//!
//! Conditions: commands of constant cost, or of a cost per key; at most [`KEYS_MAX`] keys, including watched
//! ones, [`COMMANDS_MAX`] commands and words below [`SHARED_MIN`] bytes; and no holds: if one of the keys is held, or
//! has a string too long to copy under a lock, nothing has happened and the caller uses a section instead.

use sluicegate_data::short::same;
use sluicegate_data::value::SHARED_MIN;
use smallvec::SmallVec;

use crate::Inner;
use crate::catalogue::{CommandSpec, Cost, Handler};
use crate::context::{Ctx, Place};
use crate::gate::Pass;
use crate::hold::{Mode, NOBODY};
use crate::keys::KeyRule;
use crate::park::Ready;
use crate::stripe::Now;
use crate::waiter::Blocks;
use crate::waiter::WaitTable;
use crate::watching::Watching;

/// The maximum number of keys.
pub(crate) const KEYS_MAX: usize = 8;
/// The maximum number of commands.
pub(crate) const COMMANDS_MAX: usize = 32;
/// The maximum number of digits of a bit offset; a larger offset could make a string too long to copy under a lock.
const OFFSET_DIGITS: usize = 6;
/// The maximum number of words of a command.
const WORDS_MAX: usize = 64;

/// Returns whether a command, judging by its words, is cheap enough to run while all stripes are locked.
pub(crate) fn suits(spec: &CommandSpec, words: &[&[u8]]) -> bool {
    let is_cheap = matches!(spec.handler, Handler::Keyspace(_))
        && matches!(spec.cost_of(words.len()), Cost::Constant | Cost::PerKey)
        // A command that names no key may access all keys, and would lock stripes itself.
        && (!matches!(spec.keys, KeyRule::None | KeyRule::Channels { .. }) || spec.publishes.is_some());
    is_cheap && are_short(words) && !makes_long(spec, words)
}

/// Returns whether a bit offset is so large that the resulting string is too long for the next command to copy under a
/// lock.
fn makes_long(spec: &CommandSpec, words: &[&[u8]]) -> bool {
    spec.has_offsets && words.iter().skip(2).any(|word| word.len() > OFFSET_DIGITS)
}

/// Returns whether the words are few and short.
pub(crate) fn are_short(words: &[&[u8]]) -> bool {
    words.len() <= WORDS_MAX && words.iter().all(|word| word.len() < SHARED_MIN)
}

/// A key to be locked.
struct PlannedKey<'w> {
    db: u32,
    stripe: u32,
    hash: u64,
    key: &'w [u8],
    mode: Mode,
    /// The index of its lock.
    lock: u16,
}

/// The data of a planned command in addition to its words.
#[derive(Clone, Copy)]
struct Planned {
    /// The end of its range in [`Plan::places`].
    end: u16,
    /// The number of clients that its message reaches, if it publishes one.
    reached: Option<usize>,
}

/// Commands to be run while the locks of all their stripes are held, and their keys.
pub(crate) struct Plan<'w> {
    keys: SmallVec<[PlannedKey<'w>; KEYS_MAX]>,
    /// The places of all commands, in order; their locks are indices of `keys` until all stripes are locked.
    places: SmallVec<[Place; 16]>,
    commands: SmallVec<[Planned; 8]>,
    /// The indices of the watched keys.
    watched: SmallVec<[u16; KEYS_MAX]>,
}

impl<'w> Plan<'w> {
    pub(crate) fn new() -> Plan<'w> {
        Plan { keys: SmallVec::new(), places: SmallVec::new(), commands: SmallVec::new(), watched: SmallVec::new() }
    }

    /// Adds a command of the keyspace. Returns false if there are then too many keys.
    pub(crate) fn add(&mut self, inner: &Inner, spec: &CommandSpec, words: &[&'w [u8]], db: u32) -> bool {
        for key in inner.keys_of(spec, words, db) {
            let word = words[key.word as usize];
            let hash = inner.keyspace.hasher.hash(word);
            let Some(index) = self.key(inner, key.db, hash, word, spec.mode()) else { return false };
            self.places.push(Place { hash, lock: index, word: key.word, db: key.db });
        }
        // Determined here, because no lock may be acquired while stripes are locked.
        let reached = spec.publishes.map(|kind| inner.pubsub.count(kind, words[1]));
        self.commands.push(Planned { end: self.places.len() as u16, reached });
        true
    }

    /// Adds the keys that the client watches. Returns false if there are then too many keys.
    pub(crate) fn watch(&mut self, inner: &Inner, watching: &'w Watching) -> bool {
        watching.keys.iter().all(|watched| {
            let index = self.key(inner, watched.db, watched.hash, &watched.key, Mode::Shared);
            self.watched.extend(index);
            index.is_some()
        })
    }

    /// Returns the index of a key, which is added if it is new.
    fn key(&mut self, inner: &Inner, db: u32, hash: u64, key: &'w [u8], mode: Mode) -> Option<u16> {
        let known = |planned: &PlannedKey<'_>| planned.hash == hash && planned.db == db && same(planned.key, key);
        if let Some(index) = self.keys.iter().position(known) {
            if mode == Mode::Exclusive {
                self.keys[index].mode = mode;
            }
            return Some(index as u16);
        }
        if self.keys.len() == KEYS_MAX {
            return None;
        }
        let stripe = inner.keyspace.stripe_of(hash) as u32;
        self.keys.push(PlannedKey { db, stripe, hash, key, mode, lock: 0 });
        Some(self.keys.len() as u16 - 1)
    }

    /// Locks the stripes of all keys. Returns [`None`] if another ticket holds a key, or a value must not be copied
    /// under a lock.
    pub(crate) fn lock<'p>(&mut self, inner: &'p Inner, pass: &'p Pass<'p>) -> Option<Ctx<'p>> {
        let mut ctx = Ctx::new(inner, pass, &[], 0, Now::new(&inner.clock, &inner.limits), Blocks::Never);
        ctx.keeps_locks = true;
        let mut stripes: SmallVec<[(u32, u32); KEYS_MAX]> = self.keys.iter().map(|key| (key.db, key.stripe)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        for &(db, stripe) in &stripes {
            ctx.locks.push(inner.keyspace.db_to_write(pass, db).lock(stripe as usize));
        }
        for key in &mut self.keys {
            let lock = stripes.binary_search(&(key.db, key.stripe)).unwrap_or(0);
            key.lock = lock as u16;
            if key.mode == Mode::Exclusive && inner.keyspace.snapshots.is_running() {
                inner.claim(pass, &mut ctx.locks[lock], (key.db, key.stripe), key.hash, key.key);
            }
            let stripe = &ctx.locks[lock];
            let is_free = stripe.holds.as_deref().is_none_or(|holds| holds.admits(NOBODY, key.key, key.mode));
            if !is_free || stripe.has_long_string(key.hash, key.key) {
                ctx.finish();
                return None;
            }
        }
        for key in &self.keys {
            if let Some(holds) = ctx.locks[usize::from(key.lock)].holds.as_deref() {
                holds.note_overtaking(key.key, key.mode);
            }
        }
        for place in &mut self.places {
            place.lock = self.keys[usize::from(place.lock)].lock;
        }
        Some(ctx)
    }

    /// Ends the watch. Returns whether a watched key was changed, or has expired.
    pub(crate) fn ends_watch_dirty(&self, ctx: &mut Ctx<'_>, watching: &Watching) -> bool {
        let locks = self.watched.iter().map(|index| usize::from(self.keys[usize::from(*index)].lock));
        watching.end_locked(&mut ctx.locks, locks, &mut ctx.now)
    }

    /// Sets the context to the command that was added with number `index`.
    pub(crate) fn turn_to<'p>(&self, index: usize, ctx: &mut Ctx<'p>, words: &'p [&'p [u8]], db: u32) {
        let start = if index == 0 { 0 } else { self.commands[index - 1].end };
        let command = self.commands[index];
        (ctx.words, ctx.request) = (words, &[]);
        ctx.db = db;
        ctx.places.clear();
        ctx.places.extend_from_slice(&self.places[usize::from(start)..usize::from(command.end)]);
        ctx.reached = command.reached;
    }

    /// Unlocks everything and emits the effects. The result must be served once the caller is outside the gate.
    pub(crate) fn unlock(inner: &Inner, mut ctx: Ctx<'_>) -> Option<Box<Ready>> {
        let has_ready = ctx.locks.any(|stripe| stripe.waits.as_deref().is_some_and(WaitTable::has_ready));
        let ready = has_ready.then(|| inner.take_ready(&mut ctx, NOBODY));
        ctx.finish();
        ready
    }
}
