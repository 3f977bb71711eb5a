//! Keys that are fetched from memory before commands look them up.
//!
//! In a store of millions of keys a command waits for memory at least twice: for what leads to its key, and for the entry.
//! The commands of a pipeline, one after the other, would wait as often; fetched together, their keys arrive together.

use smallvec::SmallVec;

use crate::Inner;

/// The number of keys that are fetched together: the memory that they need fits into the nearest cache.
pub(crate) const FETCHED_MAX: usize = 16;

impl Inner {
    /// Fetches these keys of a database and what leads to them, at most [`FETCHED_MAX`]. Returns false, and does nothing, if
    /// the tables are so small that this would cost more than it gains.
    pub(crate) fn fetch(&self, db: u32, keys: &[&[u8]]) -> bool {
        let pass = self.gate.enter();
        let Some(db) = self.keyspace.db(&pass, db) else { return false };
        let mut hashes: SmallVec<[u64; FETCHED_MAX]> = SmallVec::new();
        // Nobody is waited for: a stripe that is busy is left out.
        let stripe_of = |hash: u64| db.try_lock(self.keyspace.stripe_of(hash));
        for key in keys.iter().take(FETCHED_MAX) {
            let hash = self.keyspace.hasher.hash(key);
            let Some(stripe) = stripe_of(hash) else { continue };
            if hashes.is_empty() && !stripe.table.is_wide() {
                return false;
            }
            stripe.table.prefetch(hash);
            hashes.push(hash);
        }
        for hash in hashes {
            if let Some(stripe) = stripe_of(hash) {
                stripe.table.prefetch_entry(hash);
            }
        }
        true
    }
}
