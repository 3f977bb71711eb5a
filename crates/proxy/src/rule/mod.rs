//! Rules: compiled once per configuration, run per stream.
//!
//! A rule list becomes one flat array of operations: fetch into the accumulator, convert it, compare it, jump, append
//! it to the output, act. Conditions are jumps, so a rule whose condition fails costs only its tests. A plain function
//! runs the array until it is done or an operation must wait: a store that answers later, or a Lua action. Between two
//! operations only a counter, the output and at most one owned value are alive, so the state during a wait is small and
//! execution resumes where it stopped; a fetch is never evaluated twice.
//!
//! Callers use [`try_run`], which needs no future when nothing waits (the common case), and await [`resume`] with its
//! result; [`run()`] does both. [`choose_backend`] and [`try_choose_backend`] do the same for `use_backend`.

mod action;
mod build;
mod cache;
mod carrier;
mod code;
mod compile;
mod counter;
mod edit;
mod failed;
mod fcgi;
mod filter;
pub(crate) mod forwardfor;
mod limit;
mod normalize;
mod patterns;
mod redirect;
mod reply;
mod resolve;
mod run;
mod script;
mod spoe;
mod store;
mod stream;
mod variable;

use crate::sample::Looks;
use crate::stream::BoundService;

pub use compile::ProxyRules;
pub(crate) use edit::{replace_elements, set_target};

use crate::errors::CompileError;
use crate::hook::Hook;
pub use crate::local_reply::{LocalReply, ReplyPage, ReplySource};
pub(crate) use failed::shown;
pub use normalize::fuzz_normalizers;
pub use reply::page_reply;
pub use run::{
    Ask, Attempt, BackendAttempt, Suspended, choose_backend, resume, resume_backend, resume_once, run,
    try_choose_backend, try_run,
};
pub(crate) use script::bind_filters;

/// The decision of a rule set.
#[derive(Debug)]
pub enum Verdict {
    /// Every rule ran, or `accept` ended the set: processing continues.
    Continue,
    /// Answer locally and end this request. The termination state in the log and the counter follow from `source`.
    Reply(LocalReply),
    /// A script's service answers (`use-service`).
    Service(BoundService),
    /// The exporter for Prometheus answers (`use-service prometheus-exporter`).
    Exporter,
    /// Content rules cannot be decided before more data has arrived; they must be run again then. Only while the
    /// stream's [`Inspection`](crate::stream::Inspection) is open.
    Missing,
    /// Close without an answer (`reject`, `silent-drop`).
    Close,
    /// A script ended the stream without a response (`txn:done()`): close, and log it as served locally.
    End,
}

/// A rule list, compiled; [`ProxyRules`] holds one per hook.
#[derive(Debug, Default)]
pub struct RuleList {
    code: code::Program,
    looks: Looks,
}

impl RuleList {
    /// Returns the same rules without the positions that the log would keep (`last_rule_line`).
    fn without_places(self) -> RuleList {
        RuleList { code: self.code.without_places(), ..self }
    }

    /// Returns whether there is nothing to run, so that the call can be skipped.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.code.is_empty()
    }

    /// Returns which data other than heads the list reads, or may read in its scripts.
    #[inline]
    pub fn looks(&self) -> Looks {
        self.looks
    }
}
