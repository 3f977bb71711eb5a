//! Blocked clients: their commands, and a stripe's table of the waiters for its keys.
//!
//! [`block`](crate::block) describes how and when they are served.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use sluicegate_data::object::Object;
use sluicegate_wire::resp::ReplySink;

use crate::behalf::Behalf;
use crate::claim::{By, Claim};
use crate::owned::{Finished, ReplyForm, Words};
use crate::thread::assert_none_locked;

/// The keys and values that serve a blocked client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The [type](sluicegate_data::object::Kind::TAG) that a key must have.
    pub(crate) wants: u8,
    /// The index of the word that names a second key, which is written.
    pub(crate) destination: Option<u8>,
    /// Decides whether a key's present content suits a client; if `None`, any value of the type does.
    pub(crate) suits: Option<Suits>,
    /// Whether a key that has disappeared, or has a value of another type, ends the wait: the command then replies an
    /// error.
    pub(crate) fails_without: bool,
}

/// Decides whether this key's content suits a client that waits with these words.
pub(crate) type Suits = fn(&[&[u8]], &[u8], &Object) -> bool;

/// Whether a blocking command may wait.
#[derive(Clone, Copy)]
pub(crate) enum Blocks<'w> {
    /// It replies as after its timeout: in a section.
    Never,
    /// It may wait; its reply is needed in this form.
    As(ReplyForm),
    /// Its client waits already, and gets the reply if this run wins the claim.
    Known { waiter: &'w Arc<Waiter>, won: &'w Cell<bool> },
}

/// A blocked client's command.
pub(crate) struct Waiter {
    pub(crate) claim: Claim<Finished>,
    /// The number of its row in the catalogue.
    pub(crate) row: u16,
    pub(crate) wanted: Wanted,
    pub(crate) words: Words,
    /// The words, in which those that depend on the moment of the call have been replaced by their values.
    pub(crate) resolved: OnceLock<Words>,
    pub(crate) db: u32,
    pub(crate) form: ReplyForm,
    /// On whose behalf it runs.
    pub(crate) behalf: Behalf,
    pub(crate) deadline: Option<Instant>,
    /// Its position in the order of waiters; 0 while it is in no queue.
    pub(crate) turn: AtomicU64,
    /// Whether it is also a parked command.
    pub(crate) is_parked: AtomicBool,
    /// Whether its deadline has passed.
    pub(crate) is_overdue: AtomicBool,
}

impl Waiter {
    /// Makes a waiter for the command of a row.
    pub(crate) fn new(
        row: u16,
        wanted: Wanted,
        words: Words,
        (db, form, behalf): (u32, ReplyForm, Behalf),
        deadline: Option<Instant>,
    ) -> Arc<Waiter> {
        let (turn, is_parked, is_overdue) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let (claim, resolved) = (Claim::new(), OnceLock::new());
        Arc::new(Waiter {
            claim,
            row,
            wanted,
            words,
            resolved,
            db,
            form,
            behalf,
            deadline,
            turn,
            is_parked,
            is_overdue,
        })
    }

    /// Returns the deadline of the wait.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends the wait as its timeout does. Returns false if it had ended. A parked waiter that has not checked its keys
    /// yet continues until it has: only a command that finds nothing times out.
    pub(crate) fn time_out(&self) -> bool {
        // The thread that runs the parked command sets `turn` first and reads this flag afterwards.
        self.is_overdue.store(true, Ordering::SeqCst);
        self.has_blocked() && self.give_up(By::Timeout, |out| out.null_array())
    }

    /// Returns whether it is in the queues: it has checked its keys and found nothing.
    pub(crate) fn has_blocked(&self) -> bool {
        self.turn.load(Ordering::SeqCst) != 0
    }

    /// Ends the wait for CLIENT UNBLOCK, as its timeout does or with an error. Returns false if it had ended.
    pub(crate) fn unblock(&self, with_error: bool) -> bool {
        match with_error {
            false => self.give_up(By::Unblock, |out| out.null_array()),
            true => self.give_up(By::Unblock, |out| out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        }
    }

    /// Ends the wait with an error. Returns false if it had ended.
    pub(crate) fn refuse(&self, text: &[u8]) -> bool {
        self.give_up(By::Unblock, |out| out.error_bytes(text))
    }

    fn give_up(&self, by: By, reply: impl FnOnce(&mut dyn ReplySink)) -> bool {
        let won = self.claim.win(by);
        if won {
            self.claim.answer(self.form.collect(reply));
        }
        won
    }

    /// Ends the wait for a command that serves it. Returns false if it had ended.
    pub(crate) fn win(&self) -> bool {
        self.claim.win(By::Server)
    }

    pub(crate) fn is_won(&self) -> bool {
        self.claim.is_won()
    }

    /// Stores the reply; the caller has won the claim, and has no stripe locked.
    pub(crate) fn answer(&self, reply: Finished) {
        assert_none_locked();
        self.claim.answer(reply);
    }

    pub(crate) fn words(&self) -> &Words {
        self.resolved.get().unwrap_or(&self.words)
    }

    /// Returns whether the content of one of its keys serves it; `None` is a string, or no value.
    pub(crate) fn takes(&self, key: &[u8], object: Option<&Object>) -> bool {
        let suits = || match object.filter(|object| object.tag() == self.wanted.wants) {
            Some(object) => self.wanted.suits.is_none_or(|suits| suits(&self.words().to_vec(), key, object)),
            None => self.wanted.fails_without,
        };
        !self.is_won() && suits()
    }

    /// Returns whether this word names a key for which it waits.
    pub(crate) fn awaits(&self, word: u32) -> bool {
        self.wanted.destination.map(u32::from) != Some(word)
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("row", &self.row).finish_non_exhaustive()
    }
}

/// A created key that has waiters, or one that was removed.
pub(crate) type ReadyKey = (u32, Box<[u8]>);

/// The waiters of one key.
#[derive(Default)]
struct Queue {
    /// By position.
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// The number of those whose wait ends if the key disappears.
    failing: usize,
}

impl Queue {
    fn remove(&mut self, turn: u64) {
        if let Some(waiter) = self.waiters.remove(&turn) {
            self.failing -= usize::from(waiter.wanted.fails_without);
        }
    }
}

/// The waiters of one stripe.
#[derive(Default)]
pub(crate) struct WaitTable {
    /// The database to which the stripe belongs.
    db: u32,
    keys: HashMap<Box<[u8]>, Queue, foldhash::fast::RandomState>,
    /// Keys created or removed under the present lock, each with a number that orders the keys of several stripes.
    ready: Vec<(u64, Box<[u8]>)>,
}

impl WaitTable {
    /// Records that a key has a new value.
    pub(crate) fn note(&mut self, key: &[u8]) {
        static NOTES: AtomicU64 = AtomicU64::new(0);
        if self.keys.contains_key(key) && !self.ready.iter().any(|(_, known)| **known == *key) {
            self.ready.push((NOTES.fetch_add(1, Ordering::Relaxed), key.into()));
        }
    }

    /// Records that a key is removed.
    pub(crate) fn note_removed(&mut self, key: &[u8]) {
        if self.fails_without(key) {
            self.note(key);
        }
    }

    /// Returns whether a client waits that gets an error if this key does not exist.
    pub(crate) fn fails_without(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|queue| queue.failing > 0)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn take_ready(&mut self) -> impl Iterator<Item = ReadyKey> {
        self.take_numbered().map(|(_, key)| key)
    }

    pub(crate) fn take_numbered(&mut self) -> impl Iterator<Item = (u64, ReadyKey)> {
        let db = self.db;
        std::mem::take(&mut self.ready).into_iter().map(move |(number, key)| (number, (db, key)))
    }

    pub(crate) fn add(&mut self, db: u32, key: &[u8], turn: u64, waiter: &Arc<Waiter>) {
        self.db = db;
        let queue = self.keys.entry(key.into()).or_default();
        let old = queue.waiters.insert(turn, waiter.clone());
        queue.failing += usize::from(old.is_none() && waiter.wanted.fails_without);
    }

    pub(crate) fn remove(&mut self, key: &[u8], turn: u64) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        queue.remove(turn);
        if queue.waiters.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Returns the first waiter of a key that a value like this serves; `None` is a string, or no value.
    pub(crate) fn first(&mut self, key: &[u8], object: Option<&Object>) -> Option<Arc<Waiter>> {
        let queue = self.keys.get_mut(key)?;
        while let Some((turn, waiter)) = queue.waiters.first_key_value()
            && waiter.is_won()
        {
            let turn = *turn;
            queue.remove(turn);
        }
        queue.waiters.values().find(|waiter| waiter.takes(key, object)).cloned()
    }

    /// Returns whether there are no waiters.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of keys with waiters.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of keys whose removal ends a wait.
    pub(crate) fn count_failing(&self) -> usize {
        self.keys.values().filter(|queue| queue.failing > 0).count()
    }

    /// Returns the keys with waiters.
    pub(crate) fn keys(&self) -> Vec<Box<[u8]>> {
        self.keys.keys().cloned().collect()
    }
}
