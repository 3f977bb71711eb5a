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

use sluicegate_config::model::{Position, Proxy};

pub use patterns::{LoadMap, LuaPatterns};
pub use reference::{names_there, reference};
pub use run::WorkerLua;
pub use states::{LuaStates, ReadBody};

use crate::site::Site;

/// The reason why scripts cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// The `lua-load` line; `None` outside the loading of a file (an init function).
    pub at: Option<Position>,
    /// The message, in one line.
    pub message: String,
}

/// A message that a script logs, or one about its failure.
#[derive(Clone, Copy, Debug)]
pub struct ScriptLine<'a> {
    /// The proxy of the script's stream: its backend, once one is chosen. `None` outside a stream.
    pub proxy: Option<&'a Proxy>,
    /// The syslog level, 0–7.
    pub level: u8,
    /// The text, without a newline.
    pub text: &'a str,
    /// The kind of the message.
    pub kind: LineKind,
}

/// Kinds of messages of scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A script's own message.
    Own,
    /// A warning about what a script does.
    Warning,
    /// A script has failed.
    Failure,
}

impl<'a> ScriptLine<'a> {
    /// Returns a warning, which belongs to no stream.
    fn warning(text: &'a str) -> ScriptLine<'a> {
        ScriptLine { proxy: None, level: WARNING, text, kind: LineKind::Warning }
    }

    /// Returns a message about a failure, for the logs of `site`.
    fn failure(site: Option<&'a Site>, text: &'a str) -> ScriptLine<'a> {
        ScriptLine { proxy: site.map(|site| &*site.config), level: FAILURE, text, kind: LineKind::Failure }
    }
}

/// The syslog level of failures of scripts: `err`.
const FAILURE: u8 = 3;

/// The syslog level of warnings.
const WARNING: u8 = 4;

/// Receives the messages of scripts. It must not block.
pub type LogSink = Arc<dyn Fn(&ScriptLine<'_>) + Send + Sync>;
