//! Responses made by rules and scripts, before they are framed and sent.

use std::sync::Arc;

use sluicegate_config::model::ErrorPage;
use sluicegate_wire::http::Message;

/// An answer that this process makes itself.
#[derive(Debug)]
pub struct LocalReply {
    /// The reason for sending it.
    pub source: ReplySource,
    /// The status line, header fields and body; framing (Content-Length, Connection) is the writer's.
    pub head: Message,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection must close afterwards regardless of keep-alive (as with HAProxy's error pages).
    pub close: bool,
    /// The proxy's page, if any, that replaces head and body.
    pub page: ReplyPage,
}

/// The page represented by a local reply.
#[derive(Clone, Debug)]
pub enum ReplyPage {
    /// None: head and body are sent.
    None,
    /// The built-in one of this status: a page that the proxies have for it (`errorfile`) is sent instead.
    Status(u16),
    /// This page; its head has the logged status.
    File(Arc<ErrorPage>),
}

/// The reason for a local reply: it determines counters and the log's termination state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplySource {
    /// `deny` in a request (PR) or a response (PH).
    Deny,
    /// `tarpit` (PT): sent when `timeout tarpit` is over.
    Tarpit,
    /// `auth` (LR), which counts as a client's error.
    Auth,
    /// `return`, `txn:done(reply)` (LR).
    Return,
    /// `redirect` (LR).
    Redirect,
    /// Internal error (IR, IH).
    Internal,
    /// A message that no longer fits its buffer (PR, PH): an internal error that HAProxy blames on the proxy's rules.
    Rewrite,
    /// A script found the message invalid (PR, PH): it counts as a message that could not be parsed.
    Invalid,
}
