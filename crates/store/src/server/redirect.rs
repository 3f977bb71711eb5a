//! Clients that want to be told of a replica's master: CLIENT CAPA REDIRECT of Valkey 8, READONLY and READWRITE.
//!
//! On a replica such a client gets `-REDIRECT host:port` in place of the reply to a command that writes, and to one that
//! reads unless it has said READONLY. Scripts without a flag are neither, as in Valkey. While a failover is under way such
//! a command waits, because nobody knows yet who will be the master.

use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::dispatch::{About, Context, Outcome, Row};
use super::failover::State;
use super::rows::Queueing;
use crate::catalogue::Flags;

/// The beginning of the error.
pub(super) const PREFIX: &[u8] = b"REDIRECT ";

/// What a client has told of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Redirects {
    /// Whether it understands redirections. RESET leaves that as it is, as in Valkey.
    pub is_capable: bool,
    /// Whether it reads here all the same: READONLY.
    pub reads_here: bool,
}

/// `CLIENT CAPA option…`: unknown ones are ignored.
pub(super) fn capa(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    context.session.redirects.is_capable |= args[2..].iter().any(|option| option.eq_ignore_ascii_case(b"redirect"));
    out.ok();
    Outcome::Done
}

/// `READONLY`.
pub(super) fn readonly(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    context.session.redirects.reads_here = true;
    out.ok();
    Outcome::Done
}

/// `READWRITE`.
pub(super) fn readwrite(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    context.session.redirects.reads_here = false;
    out.ok();
    Outcome::Done
}

/// `READONLY`, `READWRITE` and `ASKING` without an effect: of a script, or because this node has every key.
pub(super) fn of_clusters(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.ok();
    Outcome::Done
}

/// What becomes of a command of a client that understands redirections.
pub(super) enum Redirected {
    /// The master runs it.
    To(String),
    /// It waits for the end of a failover.
    Waits,
}

impl Context<'_> {
    /// Returns what becomes of a command that does not run here, though the client may call it.
    #[cold]
    pub fn redirected(&self, command: &Row) -> Option<Redirected> {
        let server = &self.worker.server;
        let master = server.store.0.link.master()?;
        let queued = self.session.rare.multi.as_ref().filter(|_| command.traits.queueing == Queueing::Exec);
        let has = |flag: Flags| {
            command.spec.flags.has(flag) || queued.is_some_and(|multi| multi.any(|spec, _| spec.flags.has(flag)))
        };
        if !has(Flags::WRITE) && (self.session.redirects.reads_here || !has(Flags::READONLY)) {
            return None;
        }
        if server.failover.lock().state == State::InProgress && server.pause.holds(true) {
            return Some(Redirected::Waits);
        }
        Some(Redirected::To(format!("REDIRECT {}:{}", master.host, master.port)))
    }
}
