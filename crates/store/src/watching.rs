//! The keys that a client watches: their registration in the stripes, and the check by EXEC.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_data::slab::heap_bytes;

use crate::Inner;
use crate::gate::Pass;
use crate::locks::Locks;
use crate::memory::{Account, Share};
use crate::stripe::{Now, Stripe};
use crate::watch::{Added, Mark, entry_bytes};

/// The keys that a client watches.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) mark: Arc<Mark>,
    pub(crate) keys: Vec<WatchedKey>,
    /// The number of clients that watch keys; if it is 0, FLUSHALL has nothing to check.
    clients: Arc<AtomicUsize>,
    /// The bytes of the keys, here and in entries that it created in their stripes, and the part that its client's
    /// account has.
    bytes: usize,
    share: Share,
}

/// The size of a watched key's entry in its client's list in addition to its name, in bytes, including the list's spare
/// capacity (measured with 500,000 keys).
const WATCHED_BYTES: usize = size_of::<WatchedKey>() + 20;

/// A key that a client watches.
#[derive(Debug)]
pub(crate) struct WatchedKey {
    pub(crate) db: u32,
    pub(crate) hash: u64,
    pub(crate) key: Box<[u8]>,
    pub(crate) since_ms: i64,
}

impl Watching {
    /// Returns the empty list of a client with this account.
    pub(crate) fn new(inner: &Inner, account: &Arc<Account>) -> Watching {
        inner.keyspace.watching.fetch_add(1, Ordering::SeqCst);
        let clients = inner.keyspace.watching.clone();
        Watching { mark: Arc::new(Mark::new(account)), keys: Vec::new(), clients, bytes: 0, share: Share::default() }
    }

    /// Watches one more key, unless it is watched already, and charges it to the account of its client. Returns false if a
    /// transaction or a script holds the key and may have changed it, which nobody has seen: then it has to be waited for.
    pub(crate) fn add(&mut self, inner: &Inner, db: u32, key: &[u8]) -> bool {
        let since_ms = inner.clock.now_ms();
        let hash = inner.keyspace.hasher.hash(key);
        let added = {
            let pass = inner.gate.enter();
            let mut stripe = inner.keyspace.db_to_write(&pass, db).lock(inner.keyspace.stripe_of(hash));
            if stripe.holds.as_deref().is_some_and(|holds| holds.is_being_changed(key)) {
                return false;
            }
            stripe.watched.get_or_insert_default().add(key, &self.mark, since_ms)
        };
        let entry = match added {
            Added::Known => return true,
            Added::Joined => 0,
            Added::First => entry_bytes(key),
        };
        self.keys.push(WatchedKey { db, hash, key: key.into(), since_ms });
        self.bytes += heap_bytes(key.len()) + WATCHED_BYTES + entry;
        self.share.set(&self.mark.account, self.bytes);
        true
    }

    /// Removes the client from the watchers of one key, whose stripe is locked.
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

    /// Like [`end`](Self::end), for a caller inside the gate.
    pub(crate) fn end_within(self, inner: &Inner, pass: &Pass<'_>) {
        for watched in &self.keys {
            if let Some(db) = inner.keyspace.db(pass, watched.db) {
                self.leave(&mut db.lock(inner.keyspace.stripe_of(watched.hash)), watched);
            }
        }
    }

    /// Ends the watch on all keys, whose stripes are among the locks: for each key, `of_key` has its lock's index.
    /// Returns whether a key was changed, or has expired.
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

    /// Returns whether this key, whose stripe is locked, has expired since the watch began.
    fn has_expired(stripe: &Stripe, watched: &WatchedKey, now: &mut Now<'_>) -> bool {
        let Some(slot) = stripe.table.find(watched.hash, &watched.key) else { return false };
        let expiry = stripe.table.entry(slot).expiry();
        expiry.is_some_and(|at_ms| at_ms > watched.since_ms && at_ms <= now.ms())
    }

    /// Returns whether a key was changed, or has expired.
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
