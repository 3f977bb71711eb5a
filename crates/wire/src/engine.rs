//! The interface between the proxy and a store, embedded or external.
//!
//! The embedded store answers nearly every command at once ([`Started::Done`]); it answers later only when the key is
//! held by a section. An external engine always answers later. A rule or a script sees the same replies from both.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::reply::Reply;

/// A pending reply. Dropping it discards the reply but not the command.
pub type PendingReply = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Receives the error of a command without a waiting caller.
pub type Failed = Arc<dyn Fn(&str) + Send + Sync>;

/// A function that returns the origin of a command as a store shows it: `rule:FILE:LINE` or `lua:FILE:LINE`. Called
/// only where the origin is shown, and at most while the command is being started.
pub type Origin<'p> = &'p dyn Fn() -> String;

/// The result of [`Engine::start`].
pub enum Started {
    /// The reply is available; an error reply is a [`Reply::Error`].
    Done(Reply),
    /// The command was accepted; the reply is pending.
    Pending(PendingReply),
}

impl Started {
    /// Returns the reply, after waiting for it if it is pending.
    pub async fn finish(self) -> Reply {
        match self {
            Started::Done(reply) => reply,
            Started::Pending(reply) => reply.await,
        }
    }
}

/// The interface of a store or an engine for rules and scripts.
pub trait Engine: Send + Sync {
    /// Starts one command in database `db`. `args[0]` is the command's name; `args` is never empty.
    ///
    /// Commands that change a connection's state (SELECT, MULTI, WATCH, SUBSCRIBE, blocking forms…) are answered with
    /// an error that names the alternative.
    fn start(&self, db: u32, args: &[&[u8]]) -> Started;

    /// Starts one command as [`start`](Self::start) does, with its origin for MONITOR and SLOWLOG.
    fn start_from(&self, _origin: Origin<'_>, db: u32, args: &[&[u8]]) -> Started {
        self.start(db, args)
    }

    /// Starts a command whose reply the caller does not need. If a value is returned, the caller must still finish it,
    /// even if it is an error. `None`: the command is queued, and `failed` receives its error if it fails.
    fn forget(&self, origin: Origin<'_>, db: u32, args: &[&[u8]], _failed: &Failed) -> Option<Started> {
        Some(self.start_from(origin, db, args))
    }

    /// Starts commands in database `db` that are executed as a transaction. The reply is an array of their replies, or
    /// an error, in which case nothing was executed. `None`: these commands, or this store, require a dedicated
    /// connection for that.
    fn together(&self, _origin: Origin<'_>, _db: u32, _commands: &[&[&[u8]]]) -> Option<Started> {
        None
    }

    /// Returns a dedicated connection in database `db`, for commands that change a connection's state; `None` if this
    /// store or engine has none. It is opened when it is first used, and returned in its initial state when it is
    /// dropped.
    fn own(&self, _db: u32) -> Option<Box<dyn Own>> {
        None
    }

    /// Returns the counters of a store, for monitoring; `None` for an external engine.
    fn figures(&self) -> Option<Figures> {
        None
    }

    /// Returns what users of a store were denied lately, the last event first, at most so many entries; nothing for an
    /// external engine.
    fn denials(&self, _most: usize) -> Vec<Denial> {
        Vec::new()
    }

    /// Returns the state of the connections to an engine; `None` for a store, which needs none.
    fn connections(&self) -> Option<Connections> {
        None
    }
}

/// A dedicated connection: for transactions with watched keys, commands that wait for others, and channels.
///
/// Only one operation may be pending at a time. Dropping a pending reply closes the connection, and cancels the
/// engine's operation.
pub trait Own: Send {
    /// Starts commands that are sent together. The reply is an array of their replies, or an error if there are none.
    fn start(&mut self, commands: &[&[&[u8]]]) -> PendingReply;

    /// Subscribes to channels, or to those whose names match patterns.
    fn subscribe(&mut self, patterns: bool, channels: &[&[u8]]) -> PendingReply;

    /// Returns the next message of a channel, unchanged; a null if none arrives within `limit`.
    fn message(&mut self, limit: Option<Duration>) -> PendingReply;
}

/// Upper bounds of the buckets of [`Connections::waits`], milliseconds; the last bucket has none.
pub const WAIT_BOUNDS_MS: [u64; 9] = [0, 1, 2, 5, 10, 50, 100, 500, 1000];

/// The state of an engine's connections and the results of its commands, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Its address.
    pub address: String,
    /// The maximum number of connections.
    pub max: u64,
    /// Connections that serve.
    pub connected: u64,
    /// Connections that are being made.
    pub connecting: u64,
    /// Commands that wait for a connection.
    pub queued: u64,
    /// Commands that were sent and not answered yet.
    pub in_flight: u64,
    /// Commands so far.
    pub commands: u64,
    /// Replies so far.
    pub replies: u64,
    /// Error replies of the engine so far.
    pub engine_errors: u64,
    /// Commands that were sent again so far.
    pub resent: u64,
    /// Commands that a node of a cluster sent elsewhere so far.
    pub redirected: u64,
    /// Attempts to connect so far.
    pub connects: u64,
    /// The number of reads answered from the cache.
    pub cache_hits: u64,
    /// The number of reads that could have been answered from the cache, and were not.
    pub cache_misses: u64,
    /// Keys invalidated by the engine so far.
    pub cache_invalidated: u64,
    /// The bytes of cached replies.
    pub cache_bytes: u64,
    /// Commands that were not answered so far, by the reason.
    pub failures: Vec<(&'static str, u64)>,
    /// Commands by the time they waited for a connection.
    pub waits: [u64; WAIT_BOUNDS_MS.len() + 1],
    /// The total time that they waited, µs.
    pub waited_us: u64,
    /// Whether the breaker is open: it is not asked for a while.
    pub is_open: bool,
    /// The last failure.
    pub last_failure: Option<String>,
    /// Its nodes.
    pub nodes: Vec<NodeFigures>,
}

/// A node of an engine, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Its address.
    pub address: String,
    /// `master`, `replica`, `sentinel`, `seed`, `importing`, or `former` for one that is left.
    pub role: &'static str,
    /// Connections that serve.
    pub connected: u64,
    /// Connections that are being made.
    pub connecting: u64,
    /// Commands that were sent and not answered yet.
    pub in_flight: u64,
    /// Replies so far.
    pub replies: u64,
    /// Error replies so far.
    pub engine_errors: u64,
    /// Attempts to connect so far.
    pub connects: u64,
    /// Whether the breaker is open: it is not asked for a while.
    pub is_open: bool,
    /// The last failure.
    pub last_failure: Option<String>,
}

/// The statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The number of keys, including expired ones that are not removed yet.
    pub keys: u64,
    /// Keys with a time to live.
    pub expiring: u64,
    /// Bytes of keys, values, tables and clients' buffers.
    pub used_bytes: u64,
    /// The limit of `used_bytes`; 0: none.
    pub max_bytes: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Commands of clients, rules and scripts so far.
    pub commands: u64,
    /// Commands of clients, rules and scripts in the last second.
    pub commands_per_second: u64,
    /// Look-ups that found a key so far.
    pub hits: u64,
    /// Look-ups that found no key so far.
    pub misses: u64,
    /// Sections that run or wait, and commands that wait for a key.
    pub holds: u64,
    /// Sections and commands that had to wait for a key so far.
    pub waited: u64,
    /// Sections and commands that were refused so far: too many waited.
    pub refused: u64,
    /// Commands slower than `slowlog-log-slower-than` so far.
    pub slow: u64,
    /// Keys that expired so far.
    pub expired: u64,
    /// Keys that were evicted so far.
    pub evicted: u64,
    /// What users were denied so far: logins, commands, keys, channels.
    pub denied: [u64; 4],
    /// What is known of clients that track keys: these clients, keys, readers of all keys, prefixes.
    pub tracking: [u64; 4],
    /// What the store has on the disk; [`None`] if it has no directory.
    pub disk: Option<Disk>,
    /// Its masters and replicas; [`None`] if it has neither.
    pub replication: Option<Replicated>,
}

/// A store with a master or with replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replicated {
    /// Whether it is a replica.
    pub is_replica: bool,
    /// Whether its link to the master works.
    pub is_linked: bool,
    /// Whether the data set of the master is being received or loaded.
    pub is_syncing: bool,
    /// The end of the stream: bytes since the start of its history.
    pub offset: u64,
    /// Its replicas, and those of them that have been heard of lately.
    pub replicas: u64,
    /// See `replicas`.
    pub good_replicas: u64,
    /// The bytes of the stream that the slowest replica has not acknowledged.
    pub slowest_bytes: u64,
    /// The seconds since the replica that has been silent for the longest time was heard of.
    pub silent_s: u64,
    /// Full syncs, partial ones and refused partial ones of its replicas so far.
    pub syncs: [u64; 3],
}

/// What users of a store were denied: an event, and similar ones before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// `auth`, `command`, `key` or `channel`.
    pub reason: &'static str,
    /// Where it was denied: `toplevel`, `multi` or `lua`.
    pub context: &'static str,
    /// The command, the key or the channel; for `auth` the word that was to log in. Long ones are cut off.
    pub object: String,
    /// The user's name. Long ones are cut off.
    pub user: String,
    /// The client's address, or the rule or script that sent the command.
    pub client: String,
    /// The number of events.
    pub count: u64,
    /// Seconds since the last one.
    pub age_s: u64,
}

/// What a store has on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Whether files are being loaded: the store refuses commands.
    pub is_loading: bool,
    /// The part of them that is loaded, in percent.
    pub loaded_percent: u64,
    /// Changes since the last save.
    pub changes: u64,
    /// The end of the last successful save, in Unix seconds; before the first one, the start of the store.
    pub last_save_s: u64,
    /// Whether a save is in progress.
    pub is_saving: bool,
    /// Whether the last save failed.
    pub save_failed: bool,
    /// Successful saves so far.
    pub saves: u64,
    /// The append-only file, if there is one.
    pub appended: Option<Appended>,
}

/// The append-only file of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// The size of all its files, in bytes.
    pub bytes: u64,
    /// Bytes that wait to be written.
    pub backlog_bytes: u64,
    /// Whether it cannot be written or synced.
    pub is_failing: bool,
    /// Whether it is being rewritten.
    pub is_rewriting: bool,
    /// Whether the last rewrite failed.
    pub rewrite_failed: bool,
    /// Successful rewrites so far.
    pub rewrites: u64,
    /// Syncs that took long so far.
    pub delayed_syncs: u64,
}
