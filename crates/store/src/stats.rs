//! Statistics of a store, for INFO and monitoring.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Store;
use crate::keyspace::{Db, STRIPE_BYTES};
use crate::memory::Policy;
use crate::waiter::WaitTable;
use crate::watch::WatchTable;

/// The number of stripes sampled for the average time to live, the number of expiring keys taken of each, and the
/// number of keys of any kind examined for them.
const TTL_STRIPES: usize = 64;
const TTL_KEYS: usize = 16;
const TTL_LOOKS: usize = 256;

/// Statistics of one database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseStats {
    /// Its index.
    pub index: u32,
    /// The number of keys, including those expired but not yet removed.
    pub keys: u64,
    /// The number of keys with an expiry.
    pub expires: u64,
}

/// Statistics of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Databases that have keys, in order.
    pub databases: Vec<DatabaseStats>,
    /// Bytes of keys, values, tables and clients' buffers.
    pub used_bytes: u64,
    /// Look-ups that found a key, since the start (Redis's `keyspace_hits`).
    pub hits: u64,
    /// Look-ups that found none (`keyspace_misses`).
    pub misses: u64,
    /// Keys that expired (`expired_keys`).
    pub expired: u64,
    /// Hash fields and set members that expired and were removed (`expired_subkeys`).
    pub expired_elements: u64,
    /// Keys that were evicted (`evicted_keys`).
    pub evicted: u64,
    /// Sections that run or wait, and parked commands.
    pub tickets: u64,
    /// Sections and parked commands that acquired all their keys, immediately or after a wait, since the start.
    pub granted: u64,
    /// Commands that had to wait for a key.
    pub parked: u64,
    /// Commands that were refused: too many waited, or an undeclared key was held.
    pub refused: u64,
    /// Sections that ended early: by a panic, a killed script, or a disconnected client.
    pub aborted: u64,
    /// Commands whose handler panicked.
    pub aborted_commands: u64,
}

/// Counts of sections, and of commands that met held keys, since the start.
#[derive(Debug, Default)]
pub(crate) struct SectionCounts {
    /// Sections and commands that had to wait for a key.
    pub(crate) parked: AtomicU64,
    /// Sections and commands that acquired all their keys, immediately or after a wait.
    pub(crate) granted: AtomicU64,
    /// Sections and commands that were refused: too many waited, or an undeclared key was held.
    pub(crate) refused: AtomicU64,
    /// Scripts that left the worker of their caller.
    pub(crate) moved: AtomicU64,
    /// Scripts that were restarted because they waited for each other.
    pub(crate) restarted: AtomicU64,
    /// Sections that were dropped before their end: by a panic, a killed script, or a disconnected client.
    pub(crate) aborted: AtomicU64,
    /// Commands whose handler panicked.
    pub(crate) aborted_commands: AtomicU64,
}

impl SectionCounts {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Store {
    /// Returns the store's figures. It locks the stripes one after the other, each for an instant.
    pub fn stats(&self) -> Stats {
        let inner = &*self.0;
        let totals = &inner.keyspace.totals;
        let mut stats = Stats {
            used_bytes: self.used_bytes(),
            hits: totals.hits.load(Ordering::Relaxed),
            misses: totals.misses.load(Ordering::Relaxed),
            expired: totals.expired.load(Ordering::Relaxed),
            expired_elements: totals.expired_elements.load(Ordering::Relaxed),
            evicted: inner.memory.evicted.load(Ordering::Relaxed),
            tickets: inner.gate.tickets() as u64,
            granted: inner.sections.granted.load(Ordering::Relaxed),
            parked: inner.sections.parked.load(Ordering::Relaxed),
            refused: inner.sections.refused.load(Ordering::Relaxed),
            aborted: inner.sections.aborted.load(Ordering::Relaxed),
            aborted_commands: inner.sections.aborted_commands.load(Ordering::Relaxed),
            ..Stats::default()
        };
        stats.databases = self.database_stats();
        self.each_database(|_, db| {
            for stripe in 0..db.stripes() {
                let stripe = db.lock(stripe);
                stats.hits += stripe.hits;
                stats.misses += stripe.misses;
                stats.expired += stripe.expired;
                stats.expired_elements += stripe.expired_elements;
            }
        });
        stats
    }

    /// Returns the average remaining time to live, in milliseconds, of keys with an expiry in a database, from a
    /// sample; 0 if there are none. Locks a few stripes, each while a few keys are examined.
    pub fn average_ttl_ms(&self, index: u32) -> u64 {
        let (mut stripes, mut keys, mut left_ms) = (0, 0, 0);
        let pass = self.0.gate.enter();
        let Some(db) = self.0.keyspace.db(&pass, index) else { return 0 };
        let now_ms = self.0.clock.now_ms();
        // Keys are spread over stripes by their hashes, so the first stripes are representative.
        for (stripe, figures) in db.figures.iter().enumerate() {
            if figures.expires.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for at_ms in
                db.lock(stripe).table.entries().take(TTL_LOOKS).filter_map(|entry| entry.expiry()).take(TTL_KEYS)
            {
                keys += 1;
                left_ms += u128::try_from(at_ms - now_ms).unwrap_or(0);
            }
            stripes += 1;
            if stripes == TTL_STRIPES {
                break;
            }
        }
        left_ms.checked_div(keys).map_or(0, |average| average as u64)
    }

    /// Returns the number of keys with blocked clients, of those whose removal ends a wait, and of watched keys; each key
    /// once.
    pub(crate) fn awaited_keys(&self) -> (usize, usize, usize) {
        let (mut waited, mut failing, mut watched) = (0, 0, 0);
        let keyspace = &self.0.keyspace;
        if keyspace.waiting.load(Ordering::SeqCst) + keyspace.watching.load(Ordering::SeqCst) > 0 {
            self.each_database(|_, db| {
                for stripe in 0..db.stripes() {
                    let stripe = db.lock(stripe);
                    waited += stripe.waits.as_deref().map_or(0, WaitTable::len);
                    failing += stripe.waits.as_deref().map_or(0, WaitTable::count_failing);
                    watched += stripe.watched.as_deref().map_or(0, WatchTable::len);
                }
            });
        }
        (waited, failing, watched)
    }

    /// Returns the number of changes of keys since the start; a flush counts each removed key.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes()
    }

    /// Returns the number of values of a database with expiring elements.
    pub(crate) fn timed_values(&self, index: u32) -> usize {
        let pass = self.0.gate.enter();
        let Some(db) = self.0.keyspace.db(&pass, index) else { return 0 };
        (0..db.stripes()).map(|stripe| db.lock(stripe).count_timed()).sum()
    }

    /// Returns the databases that have keys, read without a lock.
    pub(crate) fn database_stats(&self) -> Vec<DatabaseStats> {
        let mut found = Vec::new();
        self.each_database(|index, db| {
            let figures = DatabaseStats { index, keys: db.keys(), expires: db.expires() };
            if figures.keys > 0 {
                found.push(figures);
            }
        });
        found
    }

    /// Returns the bytes of keys, values, tables and clients' buffers, read without a lock.
    pub fn used_bytes(&self) -> u64 {
        let mut bytes = self.0.memory.outside();
        self.each_database(|_, db| {
            bytes += (db.stripes() * STRIPE_BYTES) as u64;
            bytes += db.figures.iter().map(|figures| figures.bytes.load(Ordering::Relaxed) as u64).sum::<u64>();
        });
        bytes
    }

    /// Sets whether expired keys are also removed in the background (the default), or only when they are accessed.
    pub fn expire_actively(&self, active: bool) {
        self.0.sweeper.paused.store(!active, Ordering::Relaxed);
    }

    /// Sets the limit of [`used_bytes`](Self::used_bytes), 0 for none, and the policy when it is reached.
    pub fn limit_memory(&self, bytes: u64, policy: Policy) {
        // Stripes may have unreported drifts that were allowed under a larger limit.
        let keeps_less = self.0.memory.set(bytes, policy);
        self.0.evictor.lock().forget();
        if keeps_less {
            self.each_database(|_, db| (0..db.stripes()).for_each(|stripe| db.lock(stripe).recount()));
        }
        self.0.make_room();
    }

    fn each_database(&self, mut visit: impl FnMut(u32, &Db)) {
        for index in 0..self.databases() {
            let pass = self.0.gate.enter();
            if let Some(db) = self.0.keyspace.db(&pass, index) {
                visit(index, db);
            }
        }
    }
}
