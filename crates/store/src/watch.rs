//! WATCH: the clients that need to know whether a key was changed before their EXEC.
//!
//! A stripe with watched keys has a table of them next to its holds, under its lock; a command that changes a key calls
//! [`Ctx::notify`](crate::Ctx), which costs one branch without a table. A change marks the watchers *dirty* and
//! removes them from the table: a client is dirty until its next EXEC, DISCARD or UNWATCH.
//!
//! The expiry of a key makes only those watchers dirty that started before it: for later ones the key never existed.
//! FLUSHALL and SWAPDB replace databases as a whole; the tables then move to the replacing database, because a client
//! watches a key of a numbered database.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::RandomState;
use sluicegate_data::slab::heap_bytes;
use smallvec::SmallVec;

use crate::memory::{Account, Share};

/// Set when one of a client's watched keys was changed.
#[derive(Debug)]
pub(crate) struct Mark {
    dirty: AtomicBool,
    /// The client's memory.
    pub(crate) account: Arc<Account>,
}

impl Mark {
    pub(crate) fn new(account: &Arc<Account>) -> Mark {
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
    /// The start of the watch, in Unix milliseconds.
    since_ms: i64,
}

/// The watchers of a key, in the order of their start.
struct Watchers {
    all: SmallVec<[Watcher; 1]>,
    /// The bytes of this entry, charged to the first remaining client once the one that created the entry has gone.
    /// Before that, they are part of that client's own bytes, so that a short WATCH changes no counter shared by
    /// workers.
    share: Share,
}

impl Watchers {
    /// Keeps the watchers for which `keep` returns true. Returns false if none remains.
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
    /// Entries are boxed, so that the empty slots of the table are small.
    keys: HashMap<Box<[u8]>, Box<Watchers>, RandomState>,
}

/// The size of a watched key's entry in the table of a stripe in addition to its name, in bytes, including the table's
/// spare capacity (measured with 500,000 keys).
const ENTRY_BYTES: usize = size_of::<Watchers>() + 50;

/// Returns the size of a watched key in the table of its stripe, in bytes.
pub(crate) fn entry_bytes(key: &[u8]) -> usize {
    heap_bytes(key.len()) + ENTRY_BYTES
}

/// The result of adding a client to a key's watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The client watches the key already.
    Known,
    /// Other clients watch it, too.
    Joined,
    /// The client is the first watcher; the entry is charged to its account.
    First,
}

impl WatchTable {
    /// Marks the watchers of a key that was changed.
    pub(crate) fn touch(&mut self, key: &[u8]) {
        if let Some(watchers) = self.keys.remove(key) {
            watchers.all.iter().for_each(|watcher| watcher.mark.soil());
        }
    }

    /// Marks the watchers of a key that is removed because it expired at `at_ms`.
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

    /// Returns the number of watched keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds a watcher of a key.
    pub(crate) fn add(&mut self, key: &[u8], mark: &Arc<Mark>, since_ms: i64) -> Added {
        let watcher = Watcher { mark: mark.clone(), since_ms };
        match self.keys.get_mut(key) {
            // With very many watched keys, a client's own list is not searched.
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

    pub(crate) fn remove(&mut self, key: &[u8], mark: &Arc<Mark>) {
        let Some(watchers) = self.keys.get_mut(key) else { return };
        if !watchers.retain(key, |watcher| !Arc::ptr_eq(&watcher.mark, mark)) {
            self.keys.remove(key);
        }
    }

    /// Marks watchers when the values of all keys are replaced: those of a key that exists `before` or `after` become
    /// dirty. Both functions return the expiry of an existing key.
    pub(crate) fn replace(
        &mut self,
        before: impl Fn(&[u8]) -> Option<Option<i64>>,
        after: impl Fn(&[u8]) -> Option<Option<i64>>,
        now_ms: i64,
    ) {
        self.keys.retain(|key, watchers| {
            let (before, after) = (before(key), after(key));
            let comes = after.is_some_and(|expiry| expiry.is_none_or(|at_ms| at_ms > now_ms));
            watchers.retain(key, |watcher| {
                let goes = before.is_some_and(|expiry| expiry.is_none_or(|at_ms| at_ms > watcher.since_ms));
                if comes || goes {
                    watcher.mark.soil();
                } else if after.is_some() {
                    // The new value has expired already, so its removal changes nothing.
                    watcher.since_ms = now_ms;
                }
                !(comes || goes)
            })
        });
    }
}
