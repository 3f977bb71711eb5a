//! Lua in the proxy: HAProxy's API on [`sluicegate_script`] states.
//!
//! `lua-load` gives one state that all workers share: whichever worker has a coroutine to run takes the state for one
//! burst and lets it go at every yield. `lua-load-per-thread` gives each worker a state of its own. A coroutine is
//! resumed by its stream's worker only; sockets of `core.tcp` may be used from any.
//!
//! The life of an action: [`try_run_action`] takes a pooled coroutine, runs one burst and is done, in the common case
//! without a future or an allocation of Rust's. If the script waits, the rule runner awaits `Pending::finish`,
//! which awaits the operation, runs the next burst, and so on. A stream that goes away in the middle drops the
//! `Pending`, and the script goes on without it.
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

pub use patterns::{LoadMap, LuaPatterns};
pub use reference::{names_there, reference};
pub use run::{WorkerLua, run_action, try_run_action};
pub use states::{LuaStates, ReadBody};

pub use crate::stream::{ActionOutcome, BoundAction, ScriptAttempt as Attempt, ScriptHook as Hook};

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
