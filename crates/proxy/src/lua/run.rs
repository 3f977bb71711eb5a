//! Running scripts: bursts, waits, and what becomes of a script whose stream has gone.
//!
//! A script is a coroutine with its budget and what it waits for. Its stream drives it: between two bursts the stream
//! awaits the operation, takes the state for one burst, and lets it go. Dropping the stream hands the script to the
//! worker, which drives it to its end without a stream, so that what it holds (a connection of a pool, say) is given
//! back by its own code.
//!
//! Limits: [`DETACHED_MAX`] detached scripts a worker, one more is given up at once; and each for [`DETACHED_TIME`],
//! because a socket of `core.tcp` has no timeout of its own unless the script sets one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_KContext, lua_State};
use sluicegate_script::{Budget, Burst, Coroutine, ErrorKind, State, continuation, function, push_bytes};

use super::host::{Host, Phase, TaskReference, host};
use super::operation::Outcome;
use super::states::{ActionCode, BoundAction, LuaStates, StateCell};
use super::{ActionOutcome, Hook, txn};
use crate::stream::StreamContext;
use crate::worker::Worker;

/// Scripts that a worker runs to their end without a stream.
const DETACHED_MAX: usize = 4096;

/// How long a script may go on without its stream: longer than any answer that is still worth reading to its end.
const DETACHED_TIME: Duration = Duration::from_secs(60);

/// A worker's own state, and its way to the shared one. The default is a worker without Lua.
#[derive(Default)]
pub struct WorkerLua {
    inner: Option<Rc<Inner>>,
}

struct Inner {
    states: Arc<LuaStates>,
    index: usize,
    /// Scripts that wait to be driven by the worker, and who drives them.
    queue: RefCell<VecDeque<Script>>,
    waker: RefCell<Option<Waker>>,
    detached: Cell<usize>,
    detached_time: Cell<Duration>,
}

/// Counts a detached script out, however its task ends.
struct Leaving(Rc<Inner>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.detached.set(self.0.detached.get() - 1);
    }
}

impl fmt::Debug for WorkerLua {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLua").field("states", &self.inner.as_ref().map(|inner| &inner.states)).finish()
    }
}

impl WorkerLua {
    pub(super) fn new(states: Arc<LuaStates>, index: usize) -> WorkerLua {
        for cell in states.cells.iter().flatten() {
            cell.lock.lock_blocking().host::<Host>().phase = Phase::Run;
        }
        let inner = Inner {
            states,
            index,
            queue: RefCell::default(),
            waker: RefCell::default(),
            detached: Cell::new(0),
            detached_time: Cell::new(DETACHED_TIME),
        };
        WorkerLua { inner: Some(Rc::new(inner)) }
    }

    /// Changes how long a script may go on without its stream; one minute unless changed.
    pub fn limit_detached(&self, time: Duration) {
        if let Some(inner) = &self.inner {
            inner.detached_time.set(time);
        }
    }

    /// Scripts that run on without their stream.
    pub fn detached(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.detached.get())
    }
}

impl Inner {
    fn enqueue(&self, script: Script) {
        if self.detached.get() >= DETACHED_MAX {
            return; // Dropping it gives the coroutine up.
        }
        self.detached.set(self.detached.get() + 1);
        self.queue.borrow_mut().push_back(script);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Starts the tasks that a burst registered, on this worker.
    #[inline]
    fn start_tasks_of(self: &Rc<Self>, cell: &Arc<StateCell>, state: &mut State) {
        let host = state.host::<Host>();
        if !host.tasks.is_empty() {
            for task in std::mem::take(&mut host.tasks) {
                tokio::task::spawn_local(run_task(self.clone(), cell.clone(), task));
            }
        }
    }

    async fn next(&self) -> Script {
        poll_fn(|cx| match self.queue.borrow_mut().pop_front() {
            Some(script) => Poll::Ready(script),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

/// What a script is, for its log lines.
enum Kind {
    Action(BoundAction),
    Task(TaskReference),
}

/// A coroutine on its way.
struct Script {
    inner: Rc<Inner>,
    cell: Arc<StateCell>,
    coroutine: Option<Coroutine>,
    budget: Budget,
    kind: Kind,
    stream_id: u64,
    hook: Hook,
    waiting: Option<Pin<Box<dyn Future<Output = Outcome>>>>,
    outcome: Option<Outcome>,
}

impl Drop for Script {
    fn drop(&mut self) {
        if let Some(coroutine) = self.coroutine.take() {
            self.cell.give_up(coroutine);
        }
    }
}

/// How a burst left its script.
enum Step {
    Ended(ActionOutcome),
    Waits,
}

/// How far [`try_run_action`] came.
pub enum Attempt {
    /// The action finished in its first burst.
    Ready(ActionOutcome),
    /// The action waits; await [`PendingAction::finish`]. Dropping it lets the script go on detached.
    Pending(PendingAction),
}

/// An action that waits.
pub struct PendingAction {
    inner: Rc<Inner>,
    stage: Option<Box<Stage>>,
}

enum Stage {
    /// The shared state was taken: nothing has run yet.
    Begin(BoundAction, Hook, Arc<StateCell>),
    Running(Script),
}

impl PendingAction {
    /// Drives the action to its end.
    pub async fn finish(mut self, _worker: &Rc<Worker>, cx: &mut StreamContext) -> ActionOutcome {
        if let Some(Stage::Begin(action, hook, cell)) = self.stage.as_deref() {
            let cell = cell.clone();
            let mut state = cell.lock.lock().await;
            match begin(&self.inner, &cell, &mut state, cx, action, *hook) {
                Begun::Ended(outcome) => {
                    self.stage = None;
                    return outcome;
                }
                Begun::Waits(script) => self.stage = Some(Box::new(Stage::Running(script))),
            }
        }
        let Some(Stage::Running(script)) = self.stage.as_deref_mut() else { return ActionOutcome::Continue };
        let outcome = script.drive(Some(cx)).await;
        self.stage = None;
        outcome
    }
}

impl Drop for PendingAction {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take()
            && let Stage::Running(script) = *stage
        {
            self.inner.enqueue(script);
        }
    }
}

/// Runs the first burst of an action, without a future; nothing is allocated unless it waits.
pub fn try_run_action(worker: &Rc<Worker>, cx: &mut StreamContext, action: &BoundAction, hook: Hook) -> Attempt {
    worker.lua.try_run(cx, action, hook)
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

impl WorkerLua {
    fn try_run(&self, cx: &mut StreamContext, action: &BoundAction, hook: Hook) -> Attempt {
        let Some(inner) = &self.inner else { return Attempt::Ready(ActionOutcome::Continue) };
        let references = &action.0.references;
        let id = if references[0] != ffi::LUA_NOREF { 0 } else { inner.index + 1 };
        let Some(cell) = inner.states.cells.get(id).and_then(Option::as_ref) else {
            return Attempt::Ready(ActionOutcome::Continue);
        };
        let stage = match cell.lock.try_lock() {
            None => Stage::Begin(action.clone(), hook, cell.clone()),
            Some(mut state) => match begin(inner, cell, &mut state, cx, action, hook) {
                Begun::Ended(outcome) => return Attempt::Ready(outcome),
                Begun::Waits(script) => Stage::Running(script),
            },
        };
        Attempt::Pending(PendingAction { inner: inner.clone(), stage: Some(Box::new(stage)) })
    }
}

enum Begun {
    Ended(ActionOutcome),
    Waits(Script),
}

/// The first burst.
fn begin(
    inner: &Rc<Inner>,
    cell: &Arc<StateCell>,
    state: &mut State,
    cx: &mut StreamContext,
    action: &BoundAction,
    hook: Hook,
) -> Begun {
    cell.do_chores(state);
    let coroutine = match state.coroutine() {
        Ok(coroutine) => coroutine,
        Err(error) => {
            let sink = state.host::<Host>().shared.sink.clone();
            sink(ALERT, &format!("Lua function '{}': {error}.", action.0.name));
            return Begun::Ended(ActionOutcome::Continue);
        }
    };
    let host = state.host::<Host>();
    host.current.action = Arc::as_ptr(&action.0);
    let stream_id = cx.id;
    let mut budget = Budget::new(host.shared.session_timeout, host.shared.burst_timeout);
    // SAFETY: a coroutine from the pool has free slots; a C function without upvalues is pushed without allocating.
    unsafe { ffi::lua_pushcfunction(coroutine.thread(), function!(enter_action)) };
    let (burst, done) = one_burst(state, &coroutine, Some(cx), stream_id, hook, &mut budget, None);
    inner.start_tasks_of(cell, state);
    if burst != Burst::Waiting && burst != Burst::Forced && burst != Burst::Yielded {
        let outcome = ended(cell, state, &coroutine, burst, done, hook, &Label::Action(&action.0.name));
        state.recycle(coroutine);
        return Begun::Ended(outcome);
    }
    let mut script = Script {
        inner: inner.clone(),
        cell: cell.clone(),
        coroutine: Some(coroutine),
        budget,
        kind: Kind::Action(action.clone()),
        stream_id,
        hook,
        waiting: None,
        outcome: None,
    };
    script.note_wait(state, burst);
    Begun::Waits(script)
}

/// What `core.done`/`txn:done` left, taken out of the host.
struct Done {
    done: bool,
    stream: bool,
    reply: Option<Box<crate::rule::LocalReply>>,
}

/// Runs one burst with the host set up for it.
fn one_burst(
    state: &mut State,
    coroutine: &Coroutine,
    cx: Option<&mut StreamContext>,
    stream_id: u64,
    hook: Hook,
    budget: &mut Budget,
    outcome: Option<Outcome>,
) -> (Burst, Done) {
    let host = state.host::<Host>();
    host.current.stream = cx.map_or(std::ptr::null_mut(), |cx| cx as *mut StreamContext);
    host.current.stream_id = stream_id;
    host.current.response = matches!(hook, Hook::HttpRes | Hook::TcpRes);
    host.outcome = outcome;
    // What an error left behind in the middle of a push.
    host.answers.clear();
    // SAFETY: the coroutine belongs to this state; a first burst finds its function, a later one needs no arguments.
    let burst = unsafe { state.resume(coroutine, 0, budget) };
    let current = std::mem::take(&mut state.host::<Host>().current);
    (burst, Done { done: current.done, stream: current.stream_done, reply: current.reply })
}

impl Script {
    /// Takes over what the coroutine waits for.
    fn note_wait(&mut self, state: &mut State, burst: Burst) {
        let operation = if burst == Burst::Waiting { state.host::<Host>().operation.take() } else { None };
        self.waiting = operation.map(|operation| Box::pin(operation.perform()) as _);
    }

    /// Drives the script to its end, with its stream or, once that is gone, without.
    async fn drive(&mut self, mut cx: Option<&mut StreamContext>) -> ActionOutcome {
        loop {
            if self.outcome.is_none() {
                self.outcome = Some(match &mut self.waiting {
                    Some(waiting) => waiting.await,
                    None => {
                        tokio::task::yield_now().await;
                        Outcome::Ready
                    }
                });
                self.waiting = None;
            }
            let cell = self.cell.clone();
            let mut state = cell.lock.lock().await;
            match self.burst(&mut state, cx.as_deref_mut()) {
                Step::Ended(outcome) => return outcome,
                Step::Waits => {}
            }
        }
    }

    fn burst(&mut self, state: &mut State, cx: Option<&mut StreamContext>) -> Step {
        self.cell.do_chores(state);
        let Some(coroutine) = self.coroutine.take() else { return Step::Ended(ActionOutcome::Continue) };
        if let Kind::Task(reference) = self.kind {
            state.host::<Host>().current.task = reference.0;
        }
        let outcome = self.outcome.take();
        let (burst, done) = one_burst(state, &coroutine, cx, self.stream_id, self.hook, &mut self.budget, outcome);
        self.inner.start_tasks_of(&self.cell, state);
        if matches!(burst, Burst::Waiting | Burst::Forced | Burst::Yielded) {
            self.coroutine = Some(coroutine);
            self.note_wait(state, burst);
            return Step::Waits;
        }
        let outcome = ended(&self.cell, state, &coroutine, burst, done, self.hook, &self.label());
        state.recycle(coroutine);
        Step::Ended(outcome)
    }

    fn label(&self) -> Label<'_> {
        match &self.kind {
            Kind::Action(action) => Label::Action(&action.0.name),
            Kind::Task(_) => Label::Task,
        }
    }

    /// Gives the script up where it waits: what it opened in variables to be closed is closed.
    async fn abandon(&mut self) {
        self.waiting = None;
        let cell = self.cell.clone();
        let mut state = cell.lock.lock().await;
        if let Some(coroutine) = self.coroutine.take() {
            state.recycle(coroutine);
        }
    }
}

/// Syslog severity of script errors.
const ALERT: u8 = 1;

/// Syslog severity of what a script's author may want to look at.
const WARNING: u8 = 4;

enum Label<'a> {
    Action(&'a str),
    Task,
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Action(name) => write!(f, "Lua function '{name}'"),
            Label::Task => f.write_str("Lua task"),
        }
    }
}

/// The outcome of a script that finished or failed; a failure is logged.
fn ended(
    cell: &StateCell,
    state: &mut State,
    coroutine: &Coroutine,
    burst: Burst,
    done: Done,
    hook: Hook,
    label: &Label<'_>,
) -> ActionOutcome {
    if done.done && !done.stream {
        return ActionOutcome::Continue;
    }
    if done.done {
        return match done.reply {
            Some(reply) if matches!(hook, Hook::HttpReq | Hook::HttpRes) => ActionOutcome::Reply(reply),
            _ => ActionOutcome::Close,
        };
    }
    if let Burst::Done(results) = burst {
        let code = if results > 0 { action_code(coroutine.thread()) } else { 0 };
        if code == YIELD {
            let message = format!("{label}: not available yet: act.YIELD (core.yield and core.msleep wait).");
            (state.host::<Host>().shared.sink)(ALERT, &message);
        }
        return action_outcome(code);
    }
    let error = state.failure(coroutine);
    let message = match error.kind {
        ErrorKind::Memory => format!("{label}: out of memory error."),
        _ => format!("{label}: [state-id {}] runtime error: {error}.", cell.id),
    };
    (state.host::<Host>().shared.sink)(ALERT, &message);
    ActionOutcome::Continue
}

/// `act.YIELD`.
const YIELD: i64 = 2;

/// The integer that an action returned; anything else is `act.CONTINUE`.
fn action_code(thread: *mut lua_State) -> i64 {
    // SAFETY: at least one result is on the stack; an integer is read without converting.
    unsafe { if ffi::lua_isinteger(thread, -1) == 0 { 0 } else { ffi::lua_tointeger(thread, -1) } }
}

/// What a value of `act` means.
fn action_outcome(code: i64) -> ActionOutcome {
    match code {
        1 | 4 => ActionOutcome::Stop,
        3 => ActionOutcome::Error,
        5 => ActionOutcome::Deny,
        6 => ActionOutcome::Abort,
        7 => ActionOutcome::Invalid,
        _ => ActionOutcome::Continue,
    }
}

/// The body of an action's coroutine: everything that may raise happens in here.
unsafe fn enter_action(lua: *mut lua_State) -> c_int {
    // SAFETY: `begin` set the action, which its rule keeps alive.
    unsafe {
        let host = host(lua);
        let code: &ActionCode = &*host.current.action;
        let reference = code.references[host.id];
        ffi::luaL_checkstack(lua, code.args.len() as c_int + 4, c"too many arguments".as_ptr());
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, reference.into());
        txn::push(lua, host.current.stream_id);
        for arg in &code.args {
            push_bytes(lua, arg);
        }
        ffi::lua_callk(lua, code.args.len() as c_int + 1, 1, 0, Some(continuation!(leave)));
        1
    }
}

unsafe fn leave(_: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    1
}

/// The body of a task's coroutine: function and arguments come from the table that the registration pinned.
unsafe fn enter_task(lua: *mut lua_State) -> c_int {
    // SAFETY: the reference names a table {function, arguments…, n = count}.
    unsafe {
        let reference = host(lua).current.task;
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, reference.into());
        ffi::luaL_unref(lua, ffi::LUA_REGISTRYINDEX, reference);
        ffi::lua_getfield(lua, 1, c"n".as_ptr());
        let count = ffi::lua_tointeger(lua, -1) as c_int;
        ffi::luaL_checkstack(lua, count + 4, c"too many arguments".as_ptr());
        for index in 1..=count {
            ffi::lua_rawgeti(lua, 1, index.into());
        }
        ffi::lua_callk(lua, count - 1, 0, 0, Some(continuation!(finish_task)));
        0
    }
}

unsafe fn finish_task(_: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    0
}

/// Starts what a worker owes its scripts: the tasks of `core.register_task` and the care of detached scripts. Call it
/// once per worker, on its thread, inside its `LocalRuntime`.
pub fn start_worker(worker: &Rc<Worker>) {
    worker.lua.start();
}

impl WorkerLua {
    pub(super) fn start(&self) {
        let Some(inner) = self.inner.clone() else { return };
        let tasks = std::mem::take(&mut inner.states.tasks.lock()[inner.index]);
        for (id, task) in tasks {
            let Some(cell) = inner.states.cells[id].clone() else { continue };
            tokio::task::spawn_local(run_task(inner.clone(), cell, task));
        }
        tokio::task::spawn_local(async move {
            loop {
                let mut script = inner.next().await;
                let leaving = Leaving(inner.clone());
                tokio::task::spawn_local(async move {
                    let time = leaving.0.detached_time.get();
                    if tokio::time::timeout(time, script.drive(None)).await.is_err() {
                        let message = format!("{}: given up {time:?} after its stream ended.", script.label());
                        (leaving.0.states.shared.sink)(WARNING, &message);
                        script.abandon().await;
                    }
                });
            }
        });
    }
}

/// Runs a task to its end; one that fails is logged and not started again, as in HAProxy.
async fn run_task(inner: Rc<Inner>, cell: Arc<StateCell>, task: TaskReference) {
    let coroutine = {
        let mut state = cell.lock.lock().await;
        match state.coroutine() {
            Ok(coroutine) => {
                // SAFETY: as in `begin`.
                unsafe { ffi::lua_pushcfunction(coroutine.thread(), function!(enter_task)) };
                coroutine
            }
            Err(error) => {
                (inner.states.shared.sink)(ALERT, &format!("Lua task: {error}."));
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
        kind: Kind::Task(task),
        stream_id: 0,
        hook: Hook::TcpReq,
        waiting: None,
        outcome: Some(Outcome::Ready),
    };
    script.drive(None).await;
}
