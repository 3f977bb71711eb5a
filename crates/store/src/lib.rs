//! The embedded Redis-compatible store: shared memory with fine-grained locks, called as a function.
//!
//! A worker executes a command itself, by locking the `stripe` of the command's key for just that command; no message
//! goes to another thread. Operations that must stay atomic for longer acquire holds (`hold`) on their keys, and only
//! commands on those keys wait. The life of a command:
//!
//! 1. [`execute()`] finds its row in the [catalogue] and checks the number of words;
//! 2. if it needs memory and there is none left, keys are evicted (`evict`);
//! 3. it passes the `gate`, which only FLUSHALL, FLUSHDB and SWAPDB ever close;
//! 4. its keys are hashed and their stripes locked in order; a held key parks the command;
//! 5. the handler of the row reads and writes through a [`Ctx`] and writes its reply to a sink;
//! 6. stripes are unlocked, large values freed.
//!
//! Limits, as in Redis: keys and values up to 512 MiB, 16 databases by default, integers of 64 bits.

mod acl;
mod aof;
mod append;
mod argument;
mod aside;
mod behalf;
mod big;
mod block;
pub mod catalogue;
mod claim;
mod claims;
mod command;
pub mod commands;
mod compact;
pub mod config;
mod context;
mod effect;
mod engine;
mod errors;
mod everything;
mod evict;
mod execute;
mod expiry;
mod facts;
mod fetch;
#[allow(dead_code, reason = "the append-only file uses the rest")]
mod files;
mod futex;
mod gate;
mod hold;
mod invite;
mod keys;
mod keyspace;
mod leaf_lock;
mod levels;
mod load;
mod loading;
mod locks;
mod memory;
mod multi_lock;
mod names;
mod notify;
mod oom_score;
mod outbox;
mod owned;
mod park;
mod pass;
mod progress;
mod pubsub;
mod record;
mod redis;
mod reference;
mod refused;
mod replay;
mod replication;
mod save;
mod script;
mod section;
pub mod server;
mod snapshot;
mod stats;
mod stripe;
mod syntax;
mod thread;
mod tracking;
mod transaction;
mod turn;
mod turnstile;
mod undeclared;
mod visits;
mod waiter;
mod watch;
mod watching;
mod whole;
mod words;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

pub use acl::fuzz_users;
pub use aof::manifest::fuzz_manifest;
pub use aof::read::fuzz_aof;
pub use append::{Appending, Fsync};
pub use catalogue::{GlobalHandle, Handle};
pub use commands::{Unfit, unfit};
pub use context::Ctx;
pub use execute::{Caller, Executed, execute, fuzz_command};
pub use files::{Directory, Entry, File, Files, Lock};
pub use gate::Closed;
pub use hold::Mode;
pub use keys::{KeyRule, KeyWord};
pub use load::{Existing, Load, LoadFault, LoadOptions, Loaded, fuzz_load};
pub use memory::Policy;
pub use park::Parked;
pub use reference::reference;
pub use refused::SectionError;
pub use replication::link::fuzz_stream;
pub use save::Saving;
pub use script::fuzz_scripts;
pub use section::{Section, SectionWait};
pub use sluicegate_data::clock::{Clock, ManualClock};
pub use stats::{DatabaseStats, Stats};

/// The primitives of [`claim`], [`leaf_lock`], [`progress`], [`turnstile`], of the order of the [`record`] and of
/// clients that wait for replicas; a model checker substitutes others (`tests/loom.rs`).
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::yield_now;

    pub(crate) use parking_lot::Mutex as ParkingMutex;

    pub(crate) use crate::futex::Futex;
}

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Number of databases, 1 or more (Redis's `databases`).
    pub databases: u32,
    /// Stripes of each database, rounded up to a power of two, at most 32,768. More of them than 1,024 only help
    /// machines with very many cores.
    pub stripes: usize,
    /// The source of time.
    pub clock: Clock,
    /// The maximum number of sections and parked commands; further ones are refused with an error.
    pub tickets_max: usize,
    /// The time for which a ticket that waits for its keys may be overtaken.
    pub overtaken_for: Duration,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            databases: 16,
            stripes: 1024,
            clock: Clock::System,
            tickets_max: 100_000,
            overtaken_for: Duration::from_millis(10),
        }
    }
}

/// A store. Clones are handles of the same store.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// The rows of its commands.
    pub(crate) rows: &'static catalogue::Rows,
    pub(crate) clock: Clock,
    /// The limits up to which values are kept in their small form.
    pub(crate) limits: sluicegate_data::object::limits::Limits,
    pub(crate) keyspace: keyspace::Keyspace,
    pub(crate) gate: gate::Gate,
    pub(crate) tickets_max: usize,
    pub(crate) next_ticket: AtomicU64,
    pub(crate) sections: stats::SectionCounts,
    pub(crate) everything: everything::Everything,
    /// The names of the owners of keys, by ticket; an unnamed owner is shown by its ticket's number.
    pub(crate) owners: Mutex<HashMap<u64, String>>,
    pub(crate) sweeper: expiry::Sweeper,
    pub(crate) compactor: compact::Compactor,
    pub(crate) evictor: Mutex<evict::Evictor>,
    pub(crate) notifier: notify::Notifier,
    pub(crate) memory: Arc<memory::Memory>,
    pub(crate) pubsub: pubsub::PubSub,
    pub(crate) tracking: tracking::Tracking,
    pub(crate) aside: aside::Aside,
    /// The users.
    pub(crate) acl: acl::Acl,
    /// The number of error replies by code.
    pub(crate) errors: errors::Errors,
    pub(crate) saver: save::Saver,
    pub(crate) link: Arc<replication::link::Link>,
    pub(crate) record: Arc<record::Record>,
    pub(crate) outlets: Arc<record::outlets::Outlets>,
    pub(crate) replication: Arc<replication::Replication>,
    pub(crate) appender: Arc<append::Appender>,
    pub(crate) scripts: script::Scripting,
    pub(crate) loading: Arc<loading::Loading>,
    pub(crate) oom_score: oom_score::OomScore,
    /// The maximum number of bytes of a string that APPEND, SETRANGE and the bitmap commands may create, at most
    /// `sluicegate_data::value::STRING_MAX`.
    pub(crate) string_max: AtomicU64,
    /// A reference to itself, for threads that outlive a call.
    pub(crate) this: Weak<Inner>,
}

impl Inner {
    /// Frees values, large ones on the thread pool. The caller has no stripe locked.
    pub(crate) fn discard(&self, garbage: impl IntoIterator<Item = sluicegate_data::value::Garbage>) {
        let large: Vec<sluicegate_data::value::Garbage> =
            garbage.into_iter().filter(sluicegate_data::value::Garbage::is_large).collect();
        if !large.is_empty() {
            self.aside.run(move || drop(large));
        }
    }
}

impl Store {
    /// Returns an empty store.
    pub fn new(options: StoreOptions) -> Store {
        let stripes = options.stripes.clamp(1, 32_768).next_power_of_two();
        let memory = Arc::new(memory::Memory::new());
        let stripe_bits = stripes.trailing_zeros() as u8;
        let now_s = options.clock.now_s();
        let loading = Arc::<loading::Loading>::default();
        let record = Arc::new(record::Record::new(loading.clone()));
        let replication = Arc::new(replication::Replication::new(memory.clone()));
        let outlets = Arc::new(record::outlets::Outlets::new(record.clone(), replication.clone()));
        let keyspace = keyspace::Keyspace::new(
            options.databases.max(1),
            stripe_bits,
            memory.clone(),
            options.clock.clone(),
            Arc::new(snapshot::Snapshots::new(loading.clone())),
        );
        let tracking = tracking::Tracking::new(keyspace.hasher.clone(), stripe_bits, memory.clone());
        Store(Arc::new_cyclic(|this| Inner {
            rows: &commands::ROWS,
            keyspace,
            tracking,
            clock: options.clock,
            limits: sluicegate_data::object::limits::Limits::new(),
            gate: gate::Gate::new(options.overtaken_for),
            tickets_max: options.tickets_max,
            next_ticket: AtomicU64::new(1),
            sections: stats::SectionCounts::default(),
            everything: everything::Everything::default(),
            owners: Mutex::default(),
            sweeper: expiry::Sweeper::default(),
            compactor: compact::Compactor::default(),
            evictor: Mutex::default(),
            notifier: notify::Notifier::default(),
            acl: acl::Acl::new(&commands::ROWS),
            errors: errors::Errors::default(),
            saver: save::Saver::new(now_s),
            appender: Arc::new(append::Appender::new(outlets.clone())),
            replication,
            link: Arc::default(),
            outlets,
            record,
            scripts: script::Scripting::new(memory.clone(), &commands::ROWS),
            string_max: AtomicU64::new(sluicegate_data::value::STRING_MAX as u64),
            loading,
            oom_score: oom_score::OomScore::default(),
            memory,
            pubsub: pubsub::PubSub::default(),
            aside: aside::Aside::default(),
            this: this.clone(),
        }))
    }

    /// Executes a slice of the background work: removes expired keys, frees flushed databases, compacts memory. To be
    /// called ten times a second, from any thread; a call takes at most about 35 ms, and hardly any time if no work is
    /// due. A thread of the pool continues work that does not finish in that time.
    pub fn tick(&self) {
        expiry::tick(&self.0);
    }

    /// Returns the number of databases.
    pub fn databases(&self) -> u32 {
        self.0.keyspace.databases()
    }

    /// Returns the number of keys of all databases.
    pub fn keys(&self) -> u64 {
        let pass = self.0.gate.enter();
        (0..self.databases()).filter_map(|db| self.0.keyspace.db(&pass, db)).map(|db| db.keys()).sum()
    }

    /// Returns the store's clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}
