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
/// How many there are.
pub(crate) const COUNT: usize = 11;

/// Redis's defaults, in the order of [`ALL`].
pub(crate) const DEFAULTS: [i64; COUNT] = [512, 64, 512, 128, 64, 128, 64, -2, 3000, 4096, 100];

/// All of them, as the parameters number them.
static ALL: [&Limit; COUNT] = [
    &HASH_ENTRIES,
    &HASH_VALUE,
    &SET_INTSET,
    &SET_ENTRIES,
    &SET_VALUE,
    &ZSET_ENTRIES,
    &ZSET_VALUE,
    &LIST_SIZE,
    &HLL_SPARSE,
    &STREAM_NODE_BYTES,
    &STREAM_NODE_ENTRIES,
];

/// Makes values the process's.
pub(crate) fn publish(values: &[i64; COUNT]) {
    ALL.iter().zip(values).for_each(|(limit, value)| limit.set(*value));
}

/// Fields of a hash.
pub(crate) static HASH_ENTRIES: Limit = Limit::new(DEFAULTS[0]);
/// Bytes of a field or value of a hash.
pub(crate) static HASH_VALUE: Limit = Limit::new(DEFAULTS[1]);
/// Members of a set of integers.
pub(crate) static SET_INTSET: Limit = Limit::new(DEFAULTS[2]);
/// Members of a set.
pub(crate) static SET_ENTRIES: Limit = Limit::new(DEFAULTS[3]);
/// Bytes of a member of a set.
pub(crate) static SET_VALUE: Limit = Limit::new(DEFAULTS[4]);
/// Members of a sorted set.
pub(crate) static ZSET_ENTRIES: Limit = Limit::new(DEFAULTS[5]);
/// Bytes of a member of a sorted set.
pub(crate) static ZSET_VALUE: Limit = Limit::new(DEFAULTS[6]);
/// Elements of a list's node, or from -1 to -5 its size of 4, 8, 16, 32 or 64 KiB.
pub(crate) static LIST_SIZE: Limit = Limit::new(DEFAULTS[7]);
/// Bytes of a sparse HyperLogLog (`hll-sparse-max-bytes`).
pub(crate) static HLL_SPARSE: Limit = Limit::new(DEFAULTS[8]);
/// Bytes of a stream's node; 0 for any number (`stream-node-max-bytes`).
pub(crate) static STREAM_NODE_BYTES: Limit = Limit::new(DEFAULTS[9]);
/// Entries of a stream's node, those that were deleted too; 0 for any number (`stream-node-max-entries`).
pub(crate) static STREAM_NODE_ENTRIES: Limit = Limit::new(DEFAULTS[10]);
