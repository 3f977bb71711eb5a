//! How the proxy asks a store, without knowing which one.
//!
//! The embedded store answers nearly every command at once ([`Started::Done`]); it answers later only when the key is
//! held by a section. An external engine always answers later. A rule or a script sees the same replies from both.

use std::future::Future;
use std::pin::Pin;

use crate::reply::Reply;

/// A reply that is still to come. Dropping it gives up the reply, never the command.
pub type PendingReply = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// What [`Engine::start`] did.
pub enum Started {
    /// The reply is here; an error reply is a [`Reply::Error`].
    Done(Reply),
    /// The command was accepted; the reply comes.
    Pending(PendingReply),
}

/// A store or an engine as rules and scripts see it.
pub trait Engine: Send + Sync {
    /// Starts one command in database `db`. `args[0]` is the command's name; `args` is never empty.
    ///
    /// Commands that change a connection's state (SELECT, MULTI, WATCH, SUBSCRIBE, blocking forms…) are answered with
    /// an error that names the way to do it.
    fn start(&self, db: u32, args: &[&[u8]]) -> Started;

    /// What it has counted, for those who watch it; `None` where it tells nothing.
    fn figures(&self) -> Option<Figures> {
        None
    }
}

/// What an engine tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Keys, those expired but not yet removed included.
    pub keys: u64,
    /// Keys with a time to live.
    pub expiring: u64,
    /// Bytes of keys, values, tables and clients' buffers.
    pub used_bytes: u64,
    /// The limit of `used_bytes`; 0: none.
    pub max_bytes: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Commands of clients so far.
    pub commands: u64,
    /// Commands of clients in the last second.
    pub commands_per_second: u64,
    /// Look-ups that found a key so far.
    pub hits: u64,
    /// Look-ups that found none so far.
    pub misses: u64,
    /// Sections that run or wait, and commands that wait for a key.
    pub holds: u64,
    /// Sections and commands that had to wait for a key so far.
    pub waited: u64,
    /// Sections and commands that were refused so far: too many waited.
    pub refused: u64,
    /// Keys that expired so far.
    pub expired: u64,
    /// Keys that were evicted so far.
    pub evicted: u64,
}
