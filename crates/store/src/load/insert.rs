//! From a batch of keys to entries of stripes.
//!
//! The values of a batch are built first, with nothing locked. Then its keys are put in the order of their stripes, so
//! that each stripe is locked once for all its keys of the batch, and what their insertion reads is fetched ahead.

use sluicegate_data::clock::TICKS_PER_S;
use sluicegate_data::rdb::file::{Fault, StoredKey};
use sluicegate_data::value::{Access, Garbage, INLINE_MAX, Value};

use super::queue::Batch;
use super::{Existing, LoadFault};
use crate::Inner;
use crate::aof::write::encode;
use crate::keyspace::Db;
use crate::stripe::{Locked, Stripe};
use crate::waiter::ReadyKey;

/// What a load asks of its keys.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) now_ms: i64,
    /// The time of accesses, by the clock by which they are measured.
    pub(super) ticks: u32,
    pub(super) keeps_expired: bool,
    pub(super) tells_replicas: bool,
    pub(super) existing: Existing,
    /// Whether they are those of a second data set.
    pub(super) is_aside: bool,
    pub(super) is_lfu: bool,
}

/// A key with its value.
struct Built<'b> {
    hash: u64,
    /// Its place in the batch.
    index: u32,
    /// Taken when it is inserted.
    value: Option<Value<'b>>,
}

/// A thread that inserts batches, with its buffers and its sums.
pub(super) struct Inserter<'l> {
    inner: &'l Inner,
    terms: Terms,
    /// Where the keys of each stripe end in the order of stripes.
    ends: Vec<u32>,
    order: Vec<u32>,
    /// Keys that clients wait for.
    pub(super) ready: Vec<ReadyKey>,
    /// Keys inserted, expired ones, and ones without elements, since these were last taken.
    pub(super) loaded: u64,
    pub(super) expired: u64,
    /// The names of keys without elements.
    pub(super) empty: Vec<Vec<u8>>,
    /// Commands that remove the expired keys of a batch.
    removals: Vec<u8>,
}

impl<'l> Inserter<'l> {
    pub(super) fn new(inner: &'l Inner, terms: Terms) -> Inserter<'l> {
        let (ends, order, ready, empty) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Inserter { inner, terms, ends, order, ready, loaded: 0, expired: 0, empty, removals: Vec::new() }
    }

    /// Inserts the keys of a batch. After an error, some of them are there.
    pub(super) fn insert(&mut self, batch: &Batch) -> Result<(), LoadFault> {
        let mut built = Vec::with_capacity(batch.len());
        let built_all = self.build(batch, &mut built);
        if !self.removals.is_empty() {
            self.inner.replication.feed(&self.removals);
            self.removals.clear();
        }
        self.sort(&built);
        let pass = self.inner.gate.enter();
        let keyspace = &self.inner.keyspace;
        let db = match self.terms.is_aside {
            true => keyspace.db_aside(&pass, batch.db),
            false => keyspace.db_to_write(&pass, batch.db),
        };
        let inserted = self.insert_all(db, batch, &mut built);
        drop(pass);
        // What is wrong with a value comes later in the file than a key before it that stands twice.
        inserted.and(built_all.map_err(LoadFault::File))
    }

    /// Builds the values of a batch, up to the first that is wrong.
    fn build<'b>(&mut self, batch: &'b Batch, built: &mut Vec<Built<'b>>) -> Result<(), Fault> {
        let (keyspace, limits) = (&self.inner.keyspace, &self.inner.limits);
        for index in 0..batch.len() {
            let stored = batch.key(index);
            let Some(value) = stored.decode(limits)? else {
                self.empty.push(stored.name.to_vec());
                continue;
            };
            if !self.terms.keeps_expired && stored.expiry_ms.is_some_and(|at_ms| at_ms < self.terms.now_ms) {
                self.expired += 1;
                if self.terms.tells_replicas {
                    if self.removals.is_empty() {
                        encode([&b"SELECT"[..], batch.db.to_string().as_bytes()].into_iter(), &mut self.removals);
                    }
                    encode([&b"DEL"[..], stored.name].into_iter(), &mut self.removals);
                }
                continue;
            }
            // Copied here and not under the lock.
            let value = match value {
                Value::Bytes { bytes, raw } if bytes.len() > INLINE_MAX => Value::Vec { bytes: bytes.to_vec(), raw },
                value => value,
            };
            let hash = keyspace.hasher.hash(stored.name);
            built.push(Built { hash, index: index as u32, value: Some(value) });
        }
        Ok(())
    }

    /// Computes the order of stripes: a counting sort.
    fn sort(&mut self, built: &[Built<'_>]) {
        self.ends.clear();
        self.ends.resize(self.inner.keyspace.stripes() + 1, 0);
        let stripe_of = |built: &Built<'_>| self.inner.keyspace.stripe_of(built.hash);
        built.iter().for_each(|built| self.ends[stripe_of(built) + 1] += 1);
        let mut sum = 0;
        for end in &mut self.ends {
            sum += *end;
            *end = sum;
        }
        self.order.clear();
        self.order.resize(built.len(), 0);
        for (index, built) in built.iter().enumerate() {
            let place = &mut self.ends[stripe_of(built)];
            self.order[*place as usize] = index as u32;
            *place += 1;
        }
    }

    fn insert_all(&mut self, db: &Db, batch: &Batch, built: &mut [Built<'_>]) -> Result<(), LoadFault> {
        let per_stripe = (batch.expected / self.inner.keyspace.stripes() as u64) as usize;
        let mut from = 0;
        while let Some(first) = self.order.get(from) {
            let stripe = self.inner.keyspace.stripe_of(built[*first as usize].hash);
            let to = self.ends[stripe] as usize;
            let mut garbage = Vec::new();
            let inserted = {
                let mut locked = db.lock(stripe);
                if per_stripe > 0 {
                    locked.table.reserve(per_stripe);
                }
                self.order[from..to].iter().for_each(|index| locked.table.prefetch(built[*index as usize].hash));
                let inserted = self.insert_group(&mut locked, from..to, batch, built, &mut garbage);
                self.ready.extend(locked.take_ready());
                inserted
            };
            self.inner.discard(garbage);
            inserted?;
            from = to;
        }
        Ok(())
    }

    fn insert_group(
        &mut self,
        locked: &mut Locked<'_>,
        places: std::ops::Range<usize>,
        batch: &Batch,
        built: &mut [Built<'_>],
        garbage: &mut Vec<Garbage>,
    ) -> Result<(), LoadFault> {
        for place in places {
            let Built { hash, index, value } = &mut built[self.order[place] as usize];
            let (Some(value), stored) = (value.take(), batch.key(*index as usize)) else { continue };
            if let Some(old) = locked.table.find(*hash, stored.name) {
                if self.terms.existing == Existing::Refuse {
                    let (key, offset) = (stored.name.to_vec(), stored.offset);
                    return Err(LoadFault::Duplicate { key, db: stored.db, offset });
                }
                garbage.extend(locked.remove(old));
            }
            self.put(locked, *hash, &stored, value);
            self.loaded += 1;
        }
        Ok(())
    }

    /// Makes the entry of a key that does not exist.
    fn put(&self, stripe: &mut Stripe, hash: u64, stored: &StoredKey<'_>, value: Value<'_>) {
        let idle_s = stored.idle_s.filter(|_| !self.terms.is_lfu).unwrap_or(0);
        let idle = idle_s.saturating_mul(TICKS_PER_S as u64).min(i32::MAX as u64) as u32;
        let ticks = self.terms.ticks.wrapping_sub(idle);
        let access = Access { ticks, is_traceless: false, limits: &self.inner.limits };
        // There is no old value, so nothing is left to free.
        drop(stripe.set((hash, stored.name), None, value, stored.expiry_ms, access));
        let frequency = stored.frequency.filter(|_| self.terms.is_lfu);
        if (frequency.is_some() || stored.is_sticky)
            && let Some(slot) = stripe.table.find(hash, stored.name)
        {
            if let Some(frequency) = frequency {
                stripe.table.entry_mut(slot).set_counter(frequency);
            }
            if stored.is_sticky {
                stripe.set_sticky(slot, true);
            }
        }
    }
}
