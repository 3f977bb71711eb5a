//! WATCH: which clients want to know whether a key was touched before their EXEC.
//!
//! A stripe with watched keys has a table of them beside its holds, under its lock; a command that changes a key says
//! so by [`Ctx::notify`](crate::Ctx), where the absence of the table is one branch. What is touched marks its watchers
//! *dirty* and forgets them: a client is dirty until its next EXEC, DISCARD or UNWATCH.
//!
//! Whether a key that expires makes its watchers dirty depends on when they came: to those who came later it never
//! existed. FLUSHALL and SWAPDB replace databases as a whole; the tables then move to the database that takes the
//! place, because a client watches a key of a numbered database.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::Inner;
use crate::gate::Pass;
use crate::locks::Locks;
use crate::memory::{Account, Share};
use crate::slab::heap_bytes;
use crate::stripe::{Now, Stripe};

/// Set when one of a client's watched keys was touched.
#[derive(Debug)]
pub(crate) struct Mark {
    dirty: AtomicBool,
    /// The client's memory.
    account: Arc<Account>,
}

impl Mark {
    fn new(account: &Arc<Account>) -> Mark {
        Mark { dirty: AtomicBool::new(false), account: account.clone() }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    fn soil(&self) {
        self.dirty.store(true, Ordering::Release);
    }
}

/// A client that watches a key.
struct Watcher {
    mark: Arc<Mark>,
    /// When it began, in Unix milliseconds.
    since_ms: i64,
}

/// Those who watch a key, in the order in which they came.
struct Watchers {
    all: SmallVec<[Watcher; 1]>,
    /// The bytes of this entry once the client that made it has gone: on the account of the first of the others. Before,
    /// they are part of that client's own figure, so that a short WATCH touches no counter that workers share.
    share: Share,
}

impl Watchers {
    /// Keeps those for which `keep` holds; false if there is none.
    fn retain(&mut self, key: &[u8], mut keep: impl FnMut(&mut Watcher) -> bool) -> bool {
        let first = self.all.first().map(|watcher| Arc::as_ptr(&watcher.mark));
        self.all.retain(|watcher| keep(watcher));
        let Some(now) = self.all.first() else { return false };
        if first != Some(Arc::as_ptr(&now.mark)) {
            self.share = Share::of(&now.mark.account, entry_bytes(key));
        }
        true
    }
}

/// The watched keys of one stripe; it exists only while there is one.
#[derive(Default)]
pub(crate) struct WatchTable {
    /// The entries stand apart, so that the empty places of the table weigh little.
    keys: HashMap<Box<[u8]>, Box<Watchers>, RandomState>,
}

/// What a watched key takes in the table of its stripe, in bytes.
fn entry_bytes(key: &[u8]) -> usize {
    heap_bytes(key.len()) + ENTRY_BYTES
}

/// Whether a client came to a key's watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    /// It watches the key already.
    Known,
    /// Others watch it, too.
    Joined,
    /// Nobody watched it; the entry is on this client's account.
    First,
}

impl WatchTable {
    /// The key was changed.
    pub(crate) fn touch(&mut self, key: &[u8]) {
        if let Some(watchers) = self.keys.remove(key) {
            watchers.all.iter().for_each(|watcher| watcher.mark.soil());
        }
    }

    /// The key is removed because it expired at `at_ms`.
    pub(crate) fn touch_expired(&mut self, key: &[u8], at_ms: i64) {
        let Some(watchers) = self.keys.get_mut(key) else { return };
        let is_left = watchers.retain(key, |watcher| {
            let later = at_ms <= watcher.since_ms;
            if !later {
                watcher.mark.soil();
            }
            later
        });
        if !is_left {
            self.keys.remove(key);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many keys are watched.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds a watcher of a key.
    fn add(&mut self, key: &[u8], mark: &Arc<Mark>, since_ms: i64) -> Added {
        let watcher = Watcher { mark: mark.clone(), since_ms };
        match self.keys.get_mut(key) {
            // One that watches very many keys is not looked for in its own list.
            Some(watchers) if watchers.all.iter().any(|known| Arc::ptr_eq(&known.mark, mark)) => Added::Known,
            Some(watchers) => {
                watchers.all.push(watcher);
                Added::Joined
            }
            None => {
                let watchers = Watchers { all: SmallVec::from_iter([watcher]), share: Share::default() };
                self.keys.insert(key.into(), Box::new(watchers));
                Added::First
            }
        }
    }

    fn remove(&mut self, key: &[u8], mark: &Arc<Mark>) {
        let Some(watchers) = self.keys.get_mut(key) else { return };
        if !watchers.retain(key, |watcher| !Arc::ptr_eq(&watcher.mark, mark)) {
            self.keys.remove(key);
        }
    }

    /// The stripe `old` is replaced by `new`: whoever watches a key that one of them has is dirty.
    pub(crate) fn replace(&mut self, old: &Stripe, new: Option<&Stripe>, hash: impl Fn(&[u8]) -> u64, now_ms: i64) {
        let expiry_in = |stripe: &Stripe, key: &[u8]| {
            let slot = stripe.table.find(hash(key), key)?;
            Some(stripe.table.entry(slot).expiry())
        };
        self.keys.retain(|key, watchers| {
            let before = expiry_in(old, key);
            let after = new.and_then(|stripe| expiry_in(stripe, key));
            let comes = after.is_some_and(|expiry| expiry.is_none_or(|at_ms| at_ms > now_ms));
            watchers.retain(key, |watcher| {
                let goes = before.is_some_and(|expiry| expiry.is_none_or(|at_ms| at_ms > watcher.since_ms));
                if comes || goes {
                    watcher.mark.soil();
                } else if after.is_some() {
                    // What takes the place has expired already, so its removal changes nothing.
                    watcher.since_ms = now_ms;
                }
                !(comes || goes)
            })
        });
    }
}

/// The keys that a client watches.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) mark: Arc<Mark>,
    pub(crate) keys: Vec<WatchedKey>,
    /// Clients that watch something; lets FLUSHALL pass by when there are none.
    clients: Arc<AtomicUsize>,
    /// Bytes of the keys, here and of entries that it made in their stripes, and what its client's account knows of it.
    bytes: usize,
    share: Share,
}

/// What a watched key takes in its client's list beside its name, in bytes, and in the table of a stripe: with the room that
/// both keep for more (measured with 500,000 keys).
const WATCHED_BYTES: usize = size_of::<WatchedKey>() + 20;
const ENTRY_BYTES: usize = size_of::<Watchers>() + 50;

/// A key that a client watches.
#[derive(Debug)]
pub(crate) struct WatchedKey {
    pub(crate) db: u32,
    pub(crate) hash: u64,
    pub(crate) key: Box<[u8]>,
    pub(crate) since_ms: i64,
}

impl Watching {
    /// Of a client with this account.
    pub(crate) fn new(inner: &Inner, account: &Arc<Account>) -> Watching {
        inner.keyspace.watching.fetch_add(1, Ordering::SeqCst);
        let clients = inner.keyspace.watching.clone();
        Watching { mark: Arc::new(Mark::new(account)), keys: Vec::new(), clients, bytes: 0, share: Share::default() }
    }

    /// Watches one more key, unless it is watched already, on the account of its client.
    pub(crate) fn add(&mut self, inner: &Inner, db: u32, key: &[u8]) {
        let since_ms = inner.clock.now_ms();
        let hash = inner.keyspace.hasher.hash(key);
        let added = {
            let pass = inner.gate.enter();
            let mut stripe = inner.keyspace.db_to_write(&pass, db).lock(inner.keyspace.stripe_of(hash));
            stripe.watched.get_or_insert_default().add(key, &self.mark, since_ms)
        };
        let entry = match added {
            Added::Known => return,
            Added::Joined => 0,
            Added::First => entry_bytes(key),
        };
        self.keys.push(WatchedKey { db, hash, key: key.into(), since_ms });
        self.bytes += heap_bytes(key.len()) + WATCHED_BYTES + entry;
        self.share.set(&self.mark.account, self.bytes);
    }

    /// Takes the client off one key's stripe, which is locked.
    fn leave(&self, stripe: &mut Stripe, watched: &WatchedKey) {
        if let Some(table) = &mut stripe.watched {
            table.remove(&watched.key, &self.mark);
            if table.is_empty() {
                stripe.watched = None;
            }
        }
    }

    /// Ends the watch on all keys.
    pub(crate) fn end(self, inner: &Inner) {
        let pass = inner.gate.enter();
        self.end_within(inner, &pass);
    }

    /// As [`end`](Self::end), for who is inside the gate.
    pub(crate) fn end_within(self, inner: &Inner, pass: &Pass<'_>) {
        for watched in &self.keys {
            if let Some(db) = inner.keyspace.db(pass, watched.db) {
                self.leave(&mut db.lock(inner.keyspace.stripe_of(watched.hash)), watched);
            }
        }
    }

    /// Ends the watch on all keys, whose stripes are among the locks: for each key, `of_key` has its lock's index.
    /// Returns whether a key was touched, or has expired.
    pub(crate) fn end_locked(
        &self,
        locks: &mut Locks<'_>,
        of_key: impl Iterator<Item = usize>,
        now: &mut Now<'_>,
    ) -> bool {
        let mut is_dirty = self.mark.is_dirty();
        for (watched, lock) in self.keys.iter().zip(of_key) {
            is_dirty |= Watching::has_expired(&locks[lock], watched, now);
            self.leave(&mut locks[lock], watched);
        }
        is_dirty
    }

    /// Whether this key, whose stripe is locked, expired since it is watched.
    fn has_expired(stripe: &Stripe, watched: &WatchedKey, now: &mut Now<'_>) -> bool {
        let Some(slot) = stripe.table.find(watched.hash, &watched.key) else { return false };
        let expiry = stripe.table.entry(slot).expiry();
        expiry.is_some_and(|at_ms| at_ms > watched.since_ms && at_ms <= now.ms())
    }

    /// Whether a key was touched, or has expired.
    pub(crate) fn is_dirty(&self, inner: &Inner, pass: &Pass<'_>, now: &mut Now<'_>) -> bool {
        self.mark.is_dirty()
            || self.keys.iter().any(|watched| {
                let db = inner.keyspace.db(pass, watched.db);
                db.is_some_and(|db| {
                    Watching::has_expired(&db.lock(inner.keyspace.stripe_of(watched.hash)), watched, now)
                })
            })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.clients.fetch_sub(1, Ordering::SeqCst);
    }
}
