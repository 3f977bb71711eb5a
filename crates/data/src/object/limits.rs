//! Limits up to which a store keeps its values in their small form: Redis's `*-max-listpack-*` parameters.
//!
//! They are a value of each store. An insertion into a small value reads them and CONFIG SET alone changes them, so
//! each is a relaxed atomic: a thread that still sees an old limit converts one value an insertion later.

use std::sync::atomic::{AtomicI64, Ordering};

/// A parameter.
#[derive(Debug)]
pub struct Limit(AtomicI64);

impl Limit {
    #[inline]
    const fn new(default: i64) -> Limit {
        Limit(AtomicI64::new(default))
    }

    /// Returns the value of the parameter.
    #[inline]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the parameter.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns whether this count is within the limit.
    #[inline]
    pub fn allows(&self, count: usize) -> bool {
        i64::try_from(count).is_ok_and(|count| count <= self.get())
    }
}

/// The number of limits of values.
pub const COUNT: usize = 11;

/// Redis's defaults, in the order of the fields of [`Limits`].
pub const DEFAULTS: [i64; COUNT] = [512, 64, 512, 128, 64, 128, 64, -2, 3000, 4096, 100];

/// The limits of a store, in the order in which the parameters number them.
#[derive(Debug)]
pub struct Limits {
    /// Fields of a hash.
    pub hash_entries: Limit,
    /// Bytes of a field or value of a hash.
    pub hash_value: Limit,
    /// Members of a set of integers.
    pub set_intset: Limit,
    /// Members of a set.
    pub set_entries: Limit,
    /// Bytes of a member of a set.
    pub set_value: Limit,
    /// Members of a sorted set.
    pub zset_entries: Limit,
    /// Bytes of a member of a sorted set.
    pub zset_value: Limit,
    /// Elements of a list's node, or from -1 to -5 its size of 4, 8, 16, 32 or 64 KiB.
    pub list_size: Limit,
    /// Bytes of a sparse HyperLogLog (`hll-sparse-max-bytes`).
    pub hll_sparse: Limit,
    /// Bytes of a stream's node; 0 for any number (`stream-node-max-bytes`).
    pub stream_node_bytes: Limit,
    /// Entries of a stream's node, deleted ones included; 0 for any number (`stream-node-max-entries`).
    pub stream_node_entries: Limit,
    /// Minutes without an access in which a key's counter of accesses goes down by one; 0 for never.
    pub lfu_decay: Limit,
}

impl Limits {
    /// Returns limits with Redis's defaults.
    pub fn new() -> Limits {
        Limits {
            hash_entries: Limit::new(DEFAULTS[0]),
            hash_value: Limit::new(DEFAULTS[1]),
            set_intset: Limit::new(DEFAULTS[2]),
            set_entries: Limit::new(DEFAULTS[3]),
            set_value: Limit::new(DEFAULTS[4]),
            zset_entries: Limit::new(DEFAULTS[5]),
            zset_value: Limit::new(DEFAULTS[6]),
            list_size: Limit::new(DEFAULTS[7]),
            hll_sparse: Limit::new(DEFAULTS[8]),
            stream_node_bytes: Limit::new(DEFAULTS[9]),
            stream_node_entries: Limit::new(DEFAULTS[10]),
            lfu_decay: Limit::new(1),
        }
    }

    /// Sets the limits of values.
    pub fn set(&self, values: &[i64; COUNT]) {
        let limits: [&Limit; COUNT] = [
            &self.hash_entries,
            &self.hash_value,
            &self.set_intset,
            &self.set_entries,
            &self.set_value,
            &self.zset_entries,
            &self.zset_value,
            &self.list_size,
            &self.hll_sparse,
            &self.stream_node_bytes,
            &self.stream_node_entries,
        ];
        limits.iter().zip(values).for_each(|(limit, value)| limit.set(*value));
    }
}

impl Default for Limits {
    #[inline]
    fn default() -> Limits {
        Limits::new()
    }
}
