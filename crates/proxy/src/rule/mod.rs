//! Rules: compiled once per configuration, run per stream.
//!
//! A rule list becomes one flat array of operations: fetch into the accumulator, convert it, compare it, jump, append
//! it to the output, act. Conditions are jumps, so a rule whose condition fails costs its tests and nothing else. A
//! plain function runs the array until it is done or an operation must wait: a store that answers later, or a Lua
//! action. Between two operations nothing is alive but a counter, the output and at most one owned value, so what
//! waits is small and resumes where it stopped; a fetch is never evaluated twice.
//!
//! Callers use [`try_run`], which needs no future when nothing waits (the common case), and await [`resume`] with
//! what it hands back; [`run()`] is both. [`choose_backend`] and [`try_choose_backend`] do the same for `use_backend`.

mod action;
mod carrier;
mod code;
mod compile;
mod edit;
mod failed;
pub(crate) mod forwardfor;
mod limit;
mod normalize;
mod redirect;
mod reply;
mod run;
mod store;

use std::sync::Arc;

use sluicegate_config::model::ErrorPage;

use crate::lua::BoundService;
use crate::sample::Looks;

pub use compile::ProxyRules;

use crate::errors::CompileError;
use crate::hook::Hook;
pub(crate) use failed::shown;
pub use normalize::fuzz_normalizers;
pub use reply::page_reply;
pub use run::{
    Ask, Attempt, BackendAttempt, Suspended, choose_backend, resume, resume_backend, resume_once, run,
    try_choose_backend, try_run,
};

/// What a rule set decided.
#[derive(Debug)]
pub enum Verdict {
    /// Every rule ran, or `accept` ended the set: go on.
    Continue,
    /// Answer locally and end this request. The log's ending and the counter follow from `source`.
    Reply(LocalReply),
    /// A script's service answers (`use-service`).
    Service(BoundService),
    /// The exporter for Prometheus answers (`use-service prometheus-exporter`).
    Exporter,
    /// Content rules can't be decided before more data has come; run them again then. Only while the stream's
    /// [`Inspection`](crate::stream::Inspection) is open.
    Missing,
    /// Close without an answer (`reject`, `silent-drop`).
    Close,
    /// A script ended the stream without an answer (`txn:done()`): close, and the log says that it was served here.
    End,
}

/// An answer made here.
#[derive(Debug)]
pub struct LocalReply {
    /// Why it is sent.
    pub source: ReplySource,
    /// The status line, header fields and body; framing (Content-Length, Connection) is the writer's.
    pub head: sluicegate_wire::http::Message,
    /// The body.
    pub body: Vec<u8>,
    /// The connection must close afterwards whatever keep-alive says (error pages of HAProxy do).
    pub close: bool,
    /// Whether a proxy's page is sent in place of head and body.
    pub page: ReplyPage,
}

/// Which page a local reply stands for.
#[derive(Clone, Debug)]
pub enum ReplyPage {
    /// None: head and body are sent.
    None,
    /// The built-in one of this status: a page that the proxies have for it (`errorfile`) is sent instead.
    Status(u16),
    /// This one; the head has the status that is logged.
    File(Arc<ErrorPage>),
}

/// Why a local reply is sent: it decides counters and the log's termination state.
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
    /// A script found the message invalid (PR, PH): it counts as one that could not be read.
    Invalid,
}

/// A rule list, compiled; [`ProxyRules`] holds one per hook.
#[derive(Debug, Default)]
pub struct RuleList {
    code: code::Program,
    looks: Looks,
}

impl RuleList {
    /// The same rules, of which the log keeps none (`last_rule_line`).
    fn without_places(self) -> RuleList {
        RuleList { code: self.code.without_places(), ..self }
    }

    /// There is nothing to run: skip the call.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.code.is_empty()
    }

    /// What it looks at besides heads. What scripts look at is not known here.
    #[inline]
    pub fn looks(&self) -> Looks {
        self.looks
    }
}
