//! Up to where values are kept in their small form: Redis's `*-max-listpack-*` parameters.
//!
//! Read on every insertion into a small value and changed by CONFIG SET only, so each is a relaxed atomic of the
//! process: what an old value costs another thread is one value converted an insertion later.

use std::sync::atomic::{AtomicI64, Ordering};

/// A parameter.
#[derive(Debug)]
pub(crate) struct Limit(AtomicI64);

impl Limit {
    const fn new(default: i64) -> Limit {
        Limit(AtomicI64::new(default))
    }

    /// Its value.
    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub(crate) fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Whether so many are within it.
    pub(crate) fn allows(&self, count: usize) -> bool {
        i64::try_from(count).is_ok_and(|count| count <= self.get())
    }
}

/// Minutes without an access in which a key's counter of accesses goes down by one; 0 for never.
pub(crate) static LFU_DECAY: Limit = Limit::new(1);
/// Fields of a hash.
pub(crate) static HASH_ENTRIES: Limit = Limit::new(128);
/// Bytes of a field or value of a hash.
pub(crate) static HASH_VALUE: Limit = Limit::new(64);
/// Members of a set of integers.
pub(crate) static SET_INTSET: Limit = Limit::new(512);
/// Members of a set.
pub(crate) static SET_ENTRIES: Limit = Limit::new(128);
/// Bytes of a member of a set.
pub(crate) static SET_VALUE: Limit = Limit::new(64);
/// Members of a sorted set.
pub(crate) static ZSET_ENTRIES: Limit = Limit::new(128);
/// Bytes of a member of a sorted set.
pub(crate) static ZSET_VALUE: Limit = Limit::new(64);
/// Elements of a list's node, or from -1 to -5 its size of 4, 8, 16, 32 or 64 KiB.
pub(crate) static LIST_SIZE: Limit = Limit::new(-2);
/// Bytes of a sparse HyperLogLog (`hll-sparse-max-bytes`).
pub(crate) static HLL_SPARSE: Limit = Limit::new(3000);
