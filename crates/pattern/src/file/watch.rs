//! Watchers of a file's changes.
//!
//! A change is told after the file's lock was released, so a watcher may read the file. A file that nobody watches pays one
//! atomic load for each change.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// A change of a file's current entries; changes of prepared versions are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An entry was added.
    Added,
    /// Entries were removed by their key or number.
    Deleted,
    /// Entries have another value.
    Set,
    /// All entries were removed.
    Cleared,
    /// All entries were replaced by prepared ones.
    Committed,
}

/// Is told of changes, on the thread that has made them. It must not block.
pub trait Watcher: Send + Sync {
    /// The file was changed.
    fn changed(&self, change: Change);
}

/// The watchers of a file.
#[derive(Default)]
pub(super) struct Watchers {
    any: AtomicBool,
    list: Mutex<Vec<Weak<dyn Watcher>>>,
}

impl Watchers {
    /// Adds a watcher, and forgets those that are gone.
    pub(super) fn add(&self, watcher: Weak<dyn Watcher>) {
        let mut list = self.list.lock();
        list.retain(|known| known.strong_count() > 0);
        list.push(watcher);
        self.any.store(true, Ordering::Release);
    }

    /// Tells all watchers of a change.
    pub(super) fn tell(&self, change: Change) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let watchers: Vec<_> = self.list.lock().iter().filter_map(Weak::upgrade).collect();
        watchers.iter().for_each(|watcher| watcher.changed(change));
    }
}
