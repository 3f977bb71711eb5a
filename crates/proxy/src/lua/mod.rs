//! Lua in the proxy: HAProxy's API on [`sluicegate_script`] states.

use std::rc::Rc;
use std::sync::Arc;

use sluicegate_config::LuaNames;
use sluicegate_config::model::{self, Position};

use crate::rule::LocalReply;
use crate::running::Engines;
use crate::stream::StreamContext;
use crate::worker::Worker;

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
}

impl Hook {
    /// The name `core.register_action` knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Hook::TcpReq => "tcp-req",
            Hook::TcpRes => "tcp-res",
            Hook::HttpReq => "http-req",
            Hook::HttpRes => "http-res",
        }
    }
}

/// What an action decided (HAProxy's `act.*`). A Lua error is logged and gives [`ActionOutcome::Continue`].
#[derive(Debug)]
pub enum ActionOutcome {
    /// `act.CONTINUE`: the next rule.
    Continue,
    /// `act.STOP`, and `txn:done()` without a reply: no further rule of this set.
    Stop,
    /// `txn:done(reply)`: answer this and end the stream.
    Reply(Box<LocalReply>),
    /// `act.DENY`: 403 in a request, 502 in a response, a close in TCP.
    Deny,
    /// `act.ERROR`: 500.
    Error,
    /// `act.ABORT`: close without an answer.
    Abort,
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

/// Every Lua state of the process.
#[derive(Debug, Default)]
pub struct LuaStates {}

/// An action and its arguments as one rule names it.
#[derive(Clone, Debug)]
pub struct BoundAction {}

impl LuaStates {
    /// Runs the bodies of every script on the calling thread, in the order of the file: `lua-load` in the shared
    /// state, `lua-load-per-thread` in one state for each of `nbthread` workers. `sink` takes what the bodies log.
    pub fn load(global: &model::Global, nbthread: usize, sink: LogSink) -> Result<Arc<LuaStates>, LoadError> {
        let _ = (global, nbthread, sink);
        Err(LoadError { at: None, message: "not available yet".into() })
    }

    /// Gives scripts the stores they may name, before [`LuaStates::run_init`] and before any worker starts.
    pub fn attach(&self, engines: Engines) {
        let _ = engines;
    }

    /// Runs the functions of `core.register_init`, once, before traffic.
    pub fn run_init(&self) -> Result<(), LoadError> {
        Ok(())
    }

    /// One worker's part; `index` from 0.
    pub fn worker(self: &Arc<Self>, index: usize) -> WorkerLua {
        let _ = index;
        WorkerLua {}
    }

    /// Binds the action of a rule; `None` if it is not registered (the check of the configuration says so earlier).
    pub fn bind_action(&self, action: &model::LuaAction) -> Option<BoundAction> {
        let _ = action;
        None
    }
}

impl LuaNames for LuaStates {
    fn action(&self, _name: &str, _hook: &str) -> Option<usize> {
        None
    }

    fn actions(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A worker's own state, and its way to the shared one. The default is a worker without Lua.
#[derive(Debug, Default)]
pub struct WorkerLua {}

/// What Lua keeps of a stream.
#[derive(Debug, Default)]
pub struct StreamLua {}

/// Starts what a worker owes its scripts: the tasks of `core.register_task` and the care of detached coroutines. Call
/// once per worker, on its thread, inside its `LocalRuntime`.
pub fn start_worker(worker: &Rc<Worker>) {
    let _ = worker;
}

/// How far [`try_run_action`] came.
pub enum Attempt {
    /// The action finished in its first burst.
    Ready(ActionOutcome),
    /// The action waits; await [`PendingAction::finish`]. Dropping it lets the coroutine go on detached.
    Pending(PendingAction),
}

/// An action that waits.
pub struct PendingAction {}

impl PendingAction {
    /// Drives the action to its end.
    pub async fn finish(self, worker: &Rc<Worker>, cx: &mut StreamContext) -> ActionOutcome {
        let _ = (worker, cx);
        ActionOutcome::Continue
    }
}

/// Runs the first burst of an action, without a future and without an allocation of Rust's.
pub fn try_run_action(worker: &Rc<Worker>, cx: &mut StreamContext, action: &BoundAction, hook: Hook) -> Attempt {
    let _ = (worker, cx, action, hook);
    Attempt::Ready(ActionOutcome::Continue)
}

/// Runs an action to its end.
pub async fn run_action(
    worker: &Rc<Worker>,
    cx: &mut StreamContext,
    action: &BoundAction,
    hook: Hook,
) -> ActionOutcome {
    match try_run_action(worker, cx, action, hook) {
        Attempt::Ready(outcome) => outcome,
        Attempt::Pending(pending) => pending.finish(worker, cx).await,
    }
}
