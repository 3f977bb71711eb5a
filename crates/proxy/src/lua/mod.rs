//! Lua in the proxy: HAProxy's API on [`sluicegate_script`] states.
//!
//! `lua-load` gives one state that all workers share: a worker with a coroutine to run locks the state for one burst
//! and releases it at every yield. `lua-load-per-thread` gives each worker its own state. A coroutine is resumed only
//! by its stream's worker; sockets of `core.tcp` may be used from any.
//!
//! The life of an action: [`Scripts::try_action`](crate::stream::Scripts::try_action) acquires a pooled coroutine and
//! runs one burst, which usually completes it without a future or a Rust allocation. If the script waits, the rule
//! runner awaits `Pending::finish`, which awaits the operation, runs the next burst, and so on. If the stream ends in
//! between, `Pending` is dropped and the script continues without it.
//!
//! Files: `states` loads, `run` drives, `operation` has the awaitable operations; each class of the API has its own
//! file.

mod applet;
mod certificates;
mod channel;
mod core_api;
mod directory;
mod events;
mod filter;
mod forgotten;
mod host;
mod http;
mod httpclient;
mod message;
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
mod tls;
mod txn;

use std::sync::Arc;

use sluicegate_config::model::Position;

pub use patterns::{LoadMap, LuaPatterns};
pub use reference::{names_there, reference};
pub(crate) use reply::is_chunked;
pub use run::WorkerLua;
pub use states::{LuaStates, ReadBody};

/// The reason why scripts cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// The `lua-load` line; `None` outside the loading of a file (an init function).
    pub at: Option<Position>,
    /// The message, in one line.
    pub message: String,
}

/// Receives the messages that scripts log: syslog level 0–7, and text without a newline. It must not block.
pub type LogSink = Arc<dyn Fn(u8, &str) + Send + Sync>;
