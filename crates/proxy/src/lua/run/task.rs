//! Scripts without a stream: tasks, commands of the stats socket, and detached scripts.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_script::ffi;
use sluicegate_script::{Budget, function};

use super::{Inner, Kind, Leaving, Lent, Outcome, Pending, Purpose, Script, Service, Stage, WorkerLua, enter_task};
use crate::lua::ScriptLine;
use crate::lua::events::run_subscription;
use crate::lua::host::TaskReference;
use crate::lua::states::{CliJob, StateCell};
use crate::stream::{Applet, AppletIo, ScriptHook};

impl WorkerLua {
    /// Starts the tasks of `core.register_task` and the task that drives detached scripts.
    pub(super) fn start_tasks(&self) {
        let inner = self.inner.clone();
        // One worker answers the commands of the stats socket: they are rare, and each runs either in the shared state
        // or in that worker's own.
        if inner.index == 0
            && let Some(mut jobs) = inner.states.jobs.1.lock().take()
        {
            let answering = inner.clone();
            inner.keep(tokio::task::spawn_local(async move {
                while let Some(job) = jobs.recv().await {
                    tokio::task::spawn_local(run_command(answering.clone(), job));
                }
            }));
        }
        let tasks = std::mem::take(&mut inner.states.tasks.lock()[inner.index]);
        for (id, task) in tasks {
            let Some(cell) = inner.states.cells[id].clone() else { continue };
            inner.keep(tokio::task::spawn_local(run_task(inner.clone(), cell, task)));
        }
        if inner.index == 0 {
            for (id, subscription) in std::mem::take(&mut *inner.states.subscriptions.lock()) {
                let Some(cell) = inner.states.cells[id].clone() else { continue };
                let task = run_subscription(inner.clone(), cell, subscription);
                inner.keep(tokio::task::spawn_local(task));
            }
        }
        let care = inner.clone();
        inner.keep(tokio::task::spawn_local(async move {
            let inner = care;
            loop {
                let mut script = inner.next().await;
                let leaving = Leaving(inner.clone());
                tokio::task::spawn_local(async move {
                    let time = leaving.0.detached_time.get();
                    if tokio::time::timeout(time, script.drive(None)).await.is_err() {
                        let message = format!("{}: given up {time:?} after its stream ended.", script.label());
                        (leaving.0.states.shared.sink)(&ScriptLine::warning(&message));
                        script.abandon().await;
                    }
                });
            }
        }));
    }

    /// Called when another configuration has taken over: tasks end at their wait, and with them the references to the
    /// states. A script whose stream continues is finished by that stream; a detached one is aborted.
    pub(super) fn stop_tasks(&self) {
        let inner = &self.inner;
        inner.stopped.set(true);
        inner.kept.borrow_mut().drain(..).for_each(|task| task.abort());
    }
}

/// Runs a command of the stats socket; writing raises an error once the client has disconnected.
async fn run_command(inner: Rc<Inner>, job: CliJob) {
    /// The next number of a command. Numbers are assigned downwards from the maximum, which stream ids never reach.
    static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
    let Some(cell) = inner.cell(&job.code).cloned() else { return };
    let number = NEXT.fetch_sub(1, Ordering::Relaxed);
    let mut io = AppletIo::new();
    io.end_input();
    let stage = Stage::Begin {
        purpose: Purpose::Cli,
        code: job.code.clone(),
        hook: ScriptHook::TcpReq,
        input: None,
        may_wait: true,
        cell,
    };
    let mut service = Service { pending: Pending { inner, stage: Some(stage) }, turn: None };
    loop {
        let ended = service.burst_with(Lent::Applet(&mut io, number)).await.is_some();
        let piece = std::mem::take(&mut io.output);
        if !piece.is_empty() && job.outlet.send(piece).await.is_err() {
            return; // Dropping the service lets the script go on without its client.
        }
        if ended {
            return;
        }
        poll_fn(|cx| service.poll_ready(cx, &io)).await;
    }
}

/// Runs a task to its end; one that fails is logged and not started again, as in HAProxy.
pub(super) async fn run_task(inner: Rc<Inner>, cell: Arc<StateCell>, task: TaskReference) {
    run_named(inner, cell, task, "Lua task").await;
}

/// Runs the call of a subscription's function to its end; one that fails is logged.
pub(in crate::lua) async fn run_event(inner: Rc<Inner>, cell: Arc<StateCell>, task: TaskReference) {
    run_named(inner, cell, task, "Lua event_hdl").await;
}

async fn run_named(inner: Rc<Inner>, cell: Arc<StateCell>, task: TaskReference, name: &'static str) {
    let coroutine = {
        let mut state = cell.lock.lock().await;
        match state.coroutine() {
            Ok(coroutine) => {
                // SAFETY: as in `begin`.
                unsafe { ffi::lua_pushcfunction(coroutine.thread(), function!(enter_task)) };
                coroutine
            }
            Err(error) => {
                (inner.states.shared.sink)(&ScriptLine::failure(None, &format!("{name}: {error}.")));
                return;
            }
        }
    };
    let shared = &inner.states.shared;
    let mut script = Script {
        inner: inner.clone(),
        cell,
        coroutine: Some(coroutine),
        budget: Budget::new(shared.task_timeout, shared.burst_timeout),
        kind: Kind::Task(task, name),
        stream_id: 0,
        hook: ScriptHook::TcpReq,
        waiting: None,
        applet: None,
        outcome: Some(Outcome::Ready),
    };
    script.drive(None).await;
}
