//! Lua in the proxy: HAProxy's API on [`sluicegate_script`] states.
//!
//! `lua-load` gives one state that all workers share: whichever worker has a coroutine to run takes the state for one
//! burst and lets it go at every yield. `lua-load-per-thread` gives each worker a state of its own. A coroutine is
//! resumed by its stream's worker only; sockets of `core.tcp` may be used from any.
//!
//! The life of an action: [`try_run_action`] takes a pooled coroutine, runs one burst and is done, in the common case
//! without a future or an allocation of Rust's. If the script waits, the rule runner awaits [`PendingAction::finish`],
//! which awaits the operation, runs the next burst, and so on. A stream that goes away in the middle drops the
//! [`PendingAction`], and the script goes on without it.
//!
//! Files: `states` loads, `run` drives, `operation` is what can be waited for; each class of the API has its own.

mod applet;
mod channel;
mod core_api;
mod directory;
mod forgotten;
mod host;
mod http;
mod httpclient;
mod native;
mod operation;
mod origin;
mod patterns;
mod pool;
mod programs;
mod redis;
mod redis_own;
mod reference;
mod reply;
mod run;
mod sample;
mod socket;
mod states;
mod table;
mod txn;

use std::sync::Arc;

use sluicegate_config::model::Position;

use crate::rule::LocalReply;

pub use applet::AppletIo;
pub use channel::ChannelIo;
pub use patterns::{LoadMap, LuaPatterns};
pub use reference::{names_there, reference};
pub use run::{
    Attempt, PendingAction, PendingSample, SampleAttempt, Service, WorkerLua, run_action, start_worker, try_run_action,
    try_run_sample,
};
pub use sample::LuaCall;
pub use states::{BoundAction, BoundService, LuaStates, ReadBody};
pub use txn::StreamLua;

/// Where an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// `tcp-request content`.
    TcpReq,
    /// `tcp-response content`.
    TcpRes,
    /// `http-request`.
    HttpReq,
    /// `http-response`.
    HttpRes,
    /// `http-after-response`.
    HttpAfterRes,
}

impl Hook {
    /// All of them, in the order of their numbers.
    pub const ALL: [Hook; 5] = [Hook::TcpReq, Hook::TcpRes, Hook::HttpReq, Hook::HttpRes, Hook::HttpAfterRes];

    /// The name `core.register_action` knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Hook::TcpReq => "tcp-req",
            Hook::TcpRes => "tcp-res",
            Hook::HttpReq => "http-req",
            Hook::HttpRes => "http-res",
            Hook::HttpAfterRes => "http-after-res",
        }
    }

    fn by_name(name: &[u8]) -> Option<Hook> {
        Hook::ALL.into_iter().find(|hook| hook.name().as_bytes() == name)
    }
}

/// What an action decided (HAProxy's `act.*`). A Lua error is logged and gives [`ActionOutcome::Continue`].
#[derive(Debug)]
pub enum ActionOutcome {
    /// `act.CONTINUE`: the next rule.
    Continue,
    /// `act.STOP`, and `act.DONE` without an answer: no further rule of this set.
    Stop,
    /// `txn:done(reply)`: answer this and end the stream.
    Reply(Box<LocalReply>),
    /// `act.DENY`: 403 in a request, 502 in a response, a close in TCP.
    Deny,
    /// `act.ERROR`: 500.
    Error,
    /// `act.ABORT`: 503 in a request, a close otherwise.
    Abort,
    /// `txn:done()` without a reply: close without an answer.
    Close,
    /// `act.INVALID`: 400 in a request, 502 in a response.
    Invalid,
}

/// Why scripts can't be loaded.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// The `lua-load` line; `None` outside the loading of a file (an init function).
    pub at: Option<Position>,
    /// What happened, in one line.
    pub message: String,
}

/// Takes the messages that scripts log: syslog level 0–7 and text without a newline. It must not block.
pub type LogSink = Arc<dyn Fn(u8, &str) + Send + Sync>;
