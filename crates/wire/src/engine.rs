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
}
