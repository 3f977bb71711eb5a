//! Execution of scripts: bursts, waits, and scripts whose stream has ended.
//!
//! A script is a coroutine with its budget and its pending operation. Its stream drives it: between two bursts the
//! stream awaits the operation, locks the state for one burst, and releases it. Dropping the stream passes the script
//! to the worker, which drives it to its end without a stream, so that the script's own code can release its resources
//! (a pooled connection, for example).
//!
//! Limits: [`DETACHED_MAX`] detached scripts per worker, beyond which a script is aborted; and [`DETACHED_TIME`] for
//! each, because a socket of `core.tcp` has no timeout of its own unless the script sets one.

mod filter;
mod label;
mod now;
mod service;
mod task;
mod turns;

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

use sluicegate_script::ffi::{self, lua_KContext, lua_KFunction, lua_State};
use sluicegate_script::{
    Budget, Burst, Coroutine, ErrorKind, State, Watch, can_wait, continuation, function, push_bytes,
};
use sluicegate_transport::clock;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};

use label::Label;
use now::sample_now;
use service::Service;
pub(super) use task::run_event;
use task::run_task;

use super::events::run_subscription;
use super::filter::FilterCall;
use super::host::{Host, TaskReference, host, wait_for};
use super::operation::{Operation, Outcome};
use super::sample::result_sample;
use super::states::{LuaStates, StateCell};
use super::{ScriptLine, applet, txn};
use crate::sample::Sample;
use crate::site::Site;
use crate::stream::{
    self, ActionOutcome, Applet, AppletIo, AppletWait, BoundAction, BoundFilter, BoundService, FilterMade,
    ScriptAttempt, ScriptCall, ScriptCode, ScriptHook, Scripts, StreamContext, Waiting,
};

/// The maximum number of scripts that a worker runs to their end without a stream.
const DETACHED_MAX: usize = 4096;

/// The default time limit of a script whose stream has ended: longer than any response that is still worth reading to
/// its end.
const DETACHED_TIME: Duration = Duration::from_secs(60);

/// A worker's own state, and its access to the shared one.
pub struct WorkerLua {
    inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) states: Arc<LuaStates>,
    index: usize,
    /// Scripts that wait to be driven by the worker; `waker` wakes the task that drives them.
    queue: RefCell<VecDeque<Script>>,
    waker: RefCell<Option<Waker>>,
    detached: Cell<usize>,
    detached_time: Cell<Duration>,
    /// Scripts whose slice is over take turns: one runs in each turn of the worker.
    turns: Rc<Notify>,
    waiting_turns: Cell<usize>,
    gives_turns: Cell<bool>,
    /// Tasks that run until this configuration is replaced.
    kept: RefCell<Vec<AbortHandle>>,
    stopped: Cell<bool>,
}

/// Decrements the number of detached scripts, however the script's task ends.
struct Leaving(Rc<Inner>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.detached.set(self.0.detached.get() - 1);
    }
}

impl fmt::Debug for WorkerLua {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLua").field("states", &self.inner.states).finish()
    }
}

impl WorkerLua {
    pub(super) fn new(states: Arc<LuaStates>, index: usize) -> WorkerLua {
        let inner = Inner {
            states,
            index,
            queue: RefCell::default(),
            waker: RefCell::default(),
            turns: Rc::default(),
            waiting_turns: Cell::new(0),
            gives_turns: Cell::new(false),
            detached: Cell::new(0),
            detached_time: Cell::new(DETACHED_TIME),
            kept: RefCell::default(),
            stopped: Cell::new(false),
        };
        let watch = Watch::of_this_thread();
        let process_wide = &inner.states.watches;
        process_wide.lock().insert(index, watch);
        WorkerLua { inner: Rc::new(inner) }
    }
}

impl Inner {
    fn enqueue(&self, script: Script) {
        if self.detached.get() >= DETACHED_MAX || self.stopped.get() {
            return; // Dropping it gives the coroutine up.
        }
        self.detached.set(self.detached.get() + 1);
        self.queue.borrow_mut().push_back(script);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Starts the tasks for the work that a burst has left for this worker: registered tasks, and finalizers.
    #[inline]
    fn start_tasks_of(self: &Rc<Self>, cell: &Arc<StateCell>, state: &mut State) {
        if state.has_finalizers() {
            self.finalize(cell, state);
        }
        let host = state.host::<Host>();
        if !host.subscriptions.is_empty() {
            for subscription in std::mem::take(&mut host.subscriptions) {
                let task = run_subscription(self.clone(), cell.clone(), subscription);
                self.keep(tokio::task::spawn_local(task));
            }
        }
        if !host.tasks.is_empty() {
            for task in std::mem::take(&mut host.tasks) {
                self.keep(tokio::task::spawn_local(run_task(self.clone(), cell.clone(), task)));
            }
        }
    }

    /// Aborts the task when the configuration is replaced, if it is still running then.
    fn keep(&self, task: JoinHandle<()>) {
        if self.stopped.get() {
            return task.abort();
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() == kept.capacity() {
            kept.retain(|task| !task.is_finished());
        }
        kept.push(task.abort_handle());
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

/// The kind of a script.
enum Kind {
    /// A function called by a rule or an expression.
    Function(Purpose, Arc<ScriptCode>),
    /// A task, and how messages call it.
    Task(TaskReference, &'static str),
}

/// The purpose of calling a script's function: it determines the arguments, the interpretation of results and the log
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Action,
    Fetch,
    Converter,
    HttpService,
    TcpService,
    Cli,
}

impl Purpose {
    fn of(call: &ScriptCall) -> Purpose {
        if call.converts { Purpose::Converter } else { Purpose::Fetch }
    }
}

/// The call that a coroutine starts with.
struct Entry<'a> {
    purpose: Purpose,
    code: &'a Arc<ScriptCode>,
    hook: ScriptHook,
    /// The input sample of a converter.
    input: Option<Sample>,
    may_wait: bool,
}

/// A coroutine that has started and not finished.
struct Script {
    inner: Rc<Inner>,
    cell: Arc<StateCell>,
    coroutine: Option<Coroutine>,
    budget: Budget,
    kind: Kind,
    stream_id: u64,
    hook: ScriptHook,
    waiting: Option<Pin<Box<dyn Future<Output = Outcome>>>>,
    /// The pending request to the stream of a service, and whether `waiting` limits it.
    applet: Option<(AppletWait, bool)>,
    outcome: Option<Outcome>,
}

impl Drop for Script {
    fn drop(&mut self) {
        if let Some(coroutine) = self.coroutine.take() {
            self.cell.give_up(coroutine);
        }
    }
}

/// The result of a script.
enum Ended {
    Action(ActionOutcome),
    Sample(Option<Sample>),
    /// Whether it ended without an error.
    Service(bool),
    Task,
}

impl Ended {
    /// Returns the result for a script that could not run or returned nothing.
    fn nothing(purpose: Purpose) -> Ended {
        match purpose {
            Purpose::Action => Ended::Action(ActionOutcome::Continue),
            Purpose::Fetch | Purpose::Converter => Ended::Sample(None),
            Purpose::HttpService | Purpose::TcpService | Purpose::Cli => Ended::Service(false),
        }
    }

    fn action(self) -> ActionOutcome {
        match self {
            Ended::Action(outcome) => outcome,
            Ended::Sample(_) | Ended::Service(_) | Ended::Task => ActionOutcome::Continue,
        }
    }

    fn sample(self) -> Option<Sample> {
        match self {
            Ended::Sample(sample) => sample,
            Ended::Action(_) | Ended::Service(_) | Ended::Task => None,
        }
    }
}

/// The state of a script after a burst.
enum Step {
    Ended(Ended),
    Waits,
}

/// A function that waits.
struct Pending {
    inner: Rc<Inner>,
    stage: Option<Stage>,
}

enum Stage {
    /// The shared state was in use: nothing has run yet.
    Begin {
        purpose: Purpose,
        code: Arc<ScriptCode>,
        hook: ScriptHook,
        input: Option<Sample>,
        may_wait: bool,
        cell: Arc<StateCell>,
    },
    Running(Script),
}

impl Pending {
    async fn drive(mut self: Box<Self>, cx: &mut StreamContext) -> Ended {
        if let Some(Stage::Begin { purpose, code, hook, input, may_wait, cell }) = self.stage.as_mut() {
            let cell = cell.clone();
            let input = input.take();
            let mut state = cell.lock.lock().await;
            let entry = Entry { purpose: *purpose, code, hook: *hook, input, may_wait: *may_wait };
            match begin(&self.inner, &cell, &mut state, cx, entry) {
                Begun::Ended(ended) => {
                    self.stage = None;
                    return ended;
                }
                Begun::Waits(script) => self.stage = Some(Stage::Running(script)),
            }
        }
        let Some(Stage::Running(script)) = self.stage.as_mut() else { return Ended::Task };
        let ended = script.drive(Some(cx)).await;
        self.stage = None;
        ended
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take()
            && let Stage::Running(script) = stage
        {
            self.inner.enqueue(script);
        }
    }
}

impl Scripts for WorkerLua {
    fn try_action(
        &self,
        cx: &mut StreamContext,
        action: &BoundAction,
        hook: ScriptHook,
    ) -> ScriptAttempt<ActionOutcome> {
        let entry = Entry { purpose: Purpose::Action, code: &action.0, hook, input: None, may_wait: true };
        match self.try_run(cx, entry) {
            Tried::Ended(ended) => ScriptAttempt::Ready(ended.action()),
            Tried::Pending(pending) => ScriptAttempt::Pending(stream::Pending(pending)),
        }
    }

    fn try_sample(
        &self,
        cx: &mut StreamContext,
        call: &ScriptCall,
        input: Option<Sample>,
        hook: ScriptHook,
        may_wait: bool,
    ) -> ScriptAttempt<Option<Sample>> {
        let Some(code) = self.inner.states.code_of(call) else { return ScriptAttempt::Ready(None) };
        match self.try_run(cx, Entry { purpose: Purpose::of(call), code, hook, input, may_wait }) {
            Tried::Ended(ended) => ScriptAttempt::Ready(ended.sample()),
            Tried::Pending(pending) => ScriptAttempt::Pending(stream::Pending(pending)),
        }
    }

    fn sample_now(&self, cx: &StreamContext, call: &ScriptCall, input: Option<Sample>) -> Option<Sample> {
        sample_now(&self.inner, call, input, cx)
    }

    fn service(&self, service: &BoundService) -> Option<Box<dyn Applet>> {
        Some(Box::new(Service::new(&self.inner, service)?))
    }

    fn filter(&self, cx: &mut StreamContext, filter: &BoundFilter, http: bool) -> FilterMade {
        filter::make(&self.inner, cx, filter, http)
    }

    fn start(&self) {
        self.start_tasks();
    }

    fn stop(&self) {
        self.stop_tasks();
    }

    fn detached(&self) -> usize {
        self.inner.detached.get()
    }

    fn limit_detached(&self, time: Duration) {
        self.inner.detached_time.set(time);
    }
}

impl Waiting<ActionOutcome> for Pending {
    fn finish<'a>(self: Box<Self>, cx: &'a mut StreamContext) -> Pin<Box<dyn Future<Output = ActionOutcome> + 'a>> {
        Box::pin(async move { self.drive(cx).await.action() })
    }
}

impl Waiting<Option<Sample>> for Pending {
    fn finish<'a>(self: Box<Self>, cx: &'a mut StreamContext) -> Pin<Box<dyn Future<Output = Option<Sample>> + 'a>> {
        Box::pin(async move { self.drive(cx).await.sample() })
    }
}

enum Tried {
    Ended(Ended),
    Pending(Box<Pending>),
}

impl Inner {
    /// Returns the state that runs a function on this worker: the shared one if it was registered there.
    fn cell(&self, code: &ScriptCode) -> Option<&Arc<StateCell>> {
        let id = if code.references[0] != ffi::LUA_NOREF { 0 } else { self.index + 1 };
        self.states.cells.get(id).and_then(Option::as_ref)
    }
}

impl WorkerLua {
    fn try_run(&self, cx: &mut StreamContext, entry: Entry<'_>) -> Tried {
        let inner = &self.inner;
        let Some(cell) = inner.cell(entry.code) else { return Tried::Ended(Ended::nothing(entry.purpose)) };
        let stage = match cell.lock.try_lock() {
            None => {
                let Entry { purpose, code, hook, input, may_wait } = entry;
                Stage::Begin { purpose, code: code.clone(), hook, input, may_wait, cell: cell.clone() }
            }
            Some(mut state) => match begin(inner, cell, &mut state, cx, entry) {
                Begun::Ended(ended) => return Tried::Ended(ended),
                Begun::Waits(script) => Stage::Running(script),
            },
        };
        Tried::Pending(Box::new(Pending { inner: inner.clone(), stage: Some(stage) }))
    }
}

enum Begun {
    Ended(Ended),
    Waits(Script),
}

/// The stream that is lent to a burst.
enum Lent<'a> {
    Nothing,
    Read(&'a StreamContext),
    Write(&'a mut StreamContext),
    /// For a function of a filter.
    Filter(&'a mut StreamContext, &'a FilterCall),
    /// The buffers of a command of the stats socket, which has no stream, and the number that is used in place of the
    /// stream's.
    Applet(&'a mut AppletIo, u64),
}

impl Lent<'_> {
    fn context(&self) -> Option<&StreamContext> {
        match self {
            Lent::Nothing | Lent::Applet(..) => None,
            Lent::Read(cx) => Some(cx),
            Lent::Write(cx) | Lent::Filter(cx, _) => Some(cx),
        }
    }
}

/// Runs the first burst.
fn begin(
    inner: &Rc<Inner>,
    cell: &Arc<StateCell>,
    state: &mut State,
    cx: &mut StreamContext,
    entry: Entry<'_>,
) -> Begun {
    begin_with(inner, cell, state, Lent::Write(cx), entry)
}

fn begin_with(inner: &Rc<Inner>, cell: &Arc<StateCell>, state: &mut State, lent: Lent<'_>, entry: Entry<'_>) -> Begun {
    let Entry { purpose, code, hook, input, may_wait } = entry;
    cell.do_chores(state);
    let coroutine = match state.coroutine() {
        Ok(coroutine) => coroutine,
        Err(error) => {
            let sink = state.host::<Host>().shared.sink.clone();
            let text = format!("{}: {error}.", Label::Function(purpose, &code.name));
            sink(&ScriptLine::failure(lent.context().map(|cx| &**cx.proxy()), &text));
            return Begun::Ended(Ended::nothing(purpose));
        }
    };
    let host = state.host::<Host>();
    host.current.action = Arc::as_ptr(code);
    host.current.input = input;
    let stream_id = match &lent {
        Lent::Nothing => 0,
        Lent::Read(cx) => cx.id,
        Lent::Write(cx) | Lent::Filter(cx, _) => cx.id,
        Lent::Applet(_, id) => *id,
    };
    let total = match purpose {
        Purpose::HttpService | Purpose::TcpService | Purpose::Cli => host.shared.service_timeout,
        _ => host.shared.session_timeout,
    };
    // A script that may not wait runs as one burst from the others' point of view, however many slices it has.
    let burst = host.shared.burst_timeout;
    let total = if may_wait { total } else { total.into_iter().chain(burst).min() };
    let mut budget = Budget::new(total, burst);
    let body = match purpose {
        Purpose::HttpService => function!(enter_http_service),
        Purpose::TcpService | Purpose::Cli => function!(enter_tcp_service),
        Purpose::Action => function!(enter_action),
        Purpose::Fetch => function!(enter_fetch),
        Purpose::Converter => function!(enter_converter),
    };
    // SAFETY: a coroutine from the pool has free slots; a C function without upvalues is pushed without allocating.
    unsafe { ffi::lua_pushcfunction(coroutine.thread(), body) };
    let (burst, done) = until_it_ends(state, &coroutine, lent, stream_id, hook, may_wait, &mut budget);
    inner.start_tasks_of(cell, state);
    if burst != Burst::Waiting && burst != Burst::Forced && burst != Burst::Yielded {
        let ended = ended(cell, state, &coroutine, burst, done, hook, Label::Function(purpose, &code.name));
        state.recycle(coroutine);
        return Begun::Ended(ended);
    }
    let mut script = Script {
        inner: inner.clone(),
        cell: cell.clone(),
        coroutine: Some(coroutine),
        budget,
        kind: Kind::Function(purpose, code.clone()),
        stream_id,
        hook,
        waiting: None,
        applet: None,
        outcome: None,
    };
    script.note_wait(state, burst);
    Begun::Waits(script)
}

/// Runs the first burst, or all of them where the script may not wait: then no other script can run in between.
fn until_it_ends(
    state: &mut State,
    coroutine: &Coroutine,
    mut lent: Lent<'_>,
    stream_id: u64,
    hook: ScriptHook,
    may_wait: bool,
    budget: &mut Budget,
) -> (Burst, Done) {
    let mut wake = None;
    loop {
        let again = match &mut lent {
            Lent::Nothing => Lent::Nothing,
            Lent::Read(cx) => Lent::Read(cx),
            Lent::Write(cx) => Lent::Write(cx),
            Lent::Filter(cx, call) => Lent::Filter(cx, call),
            Lent::Applet(io, id) => Lent::Applet(io, *id),
        };
        let (burst, mut done) = one_burst(state, coroutine, again, stream_id, hook, may_wait, budget, None);
        wake = done.wake.or(wake);
        if may_wait || !matches!(burst, Burst::Forced | Burst::Yielded) {
            done.wake = wake;
            return (burst, done);
        }
    }
}

/// The data of `core.done` or `txn:done`, taken out of the host.
struct Done {
    done: bool,
    stream: bool,
    reply: Option<Box<crate::local_reply::LocalReply>>,
    /// `filter.wake_time`.
    wake: Option<Duration>,
    /// The proxy in whose logs a failure is noted.
    site: Option<Arc<Site>>,
}

/// Runs one burst; the host is set up for it.
#[allow(clippy::too_many_arguments)] // what a burst is, once for every kind of script
fn one_burst(
    state: &mut State,
    coroutine: &Coroutine,
    lent: Lent<'_>,
    stream_id: u64,
    hook: ScriptHook,
    may_wait: bool,
    budget: &mut Budget,
    outcome: Option<Outcome>,
) -> (Burst, Done) {
    let _running = now::InBurst::begin();
    let host = state.host::<Host>();
    match lent {
        Lent::Nothing => {}
        Lent::Read(cx) => host.current.readable = cx,
        Lent::Write(cx) => host.current.lend(cx),
        Lent::Filter(cx, call) => {
            host.current.lend(cx);
            host.current.filter = call;
        }
        Lent::Applet(io, _) => host.current.applet = io,
    }
    host.current.stream_id = stream_id;
    host.current.no_wait = !may_wait;
    host.current.response = matches!(hook, ScriptHook::HttpRes | ScriptHook::TcpRes | ScriptHook::HttpAfterRes);
    host.outcome = outcome;
    // This removes what an error in the middle of a push has left behind.
    host.answers.clear();
    // SAFETY: the coroutine belongs to this state; a first burst finds its function, a later one needs no arguments.
    let burst = unsafe { state.resume(coroutine, 0, budget) };
    clock::renew();
    let current = std::mem::take(&mut state.host::<Host>().current);
    let is_logged = match burst {
        Burst::Failed => true,
        Burst::Done(results) => results > 0 && action_code(coroutine.thread()) == YIELD,
        _ => false,
    };
    // SAFETY: what was lent to the burst is still borrowed by the caller.
    let cx = unsafe { current.readable.as_ref() }.filter(|_| is_logged);
    let site = cx.map(|cx| cx.proxy().clone());
    (burst, Done { done: current.done, stream: current.stream_done, reply: current.reply, wake: current.wake, site })
}

impl Script {
    /// Takes the operation that the coroutine waits for out of the host.
    fn note_wait(&mut self, state: &mut State, burst: Burst) {
        let operation = if burst == Burst::Waiting { state.host::<Host>().operation.take() } else { None };
        self.applet = match &operation {
            Some(Operation::Applet(wait, deadline)) => Some((*wait, deadline.is_some())),
            _ => None,
        };
        self.waiting = operation.map(|operation| Box::pin(operation.perform()) as _);
    }

    /// Runs the script to its end, with its stream or, once that has ended, without it.
    async fn drive(&mut self, mut cx: Option<&mut StreamContext>) -> Ended {
        loop {
            if self.outcome.is_none() {
                self.outcome = Some(match &mut self.waiting {
                    Some(waiting) => waiting.await,
                    None => {
                        let inner = self.inner.clone();
                        inner.turn().await;
                        Outcome::Ready
                    }
                });
                self.waiting = None;
            }
            let cell = self.cell.clone();
            let mut state = cell.lock.lock().await;
            if let Some(cx) = &mut cx {
                cx.see_arrived();
            }
            match self.burst(&mut state, cx.as_deref_mut().map_or(Lent::Nothing, Lent::Write)) {
                Step::Ended(ended) => return ended,
                Step::Waits => {}
            }
        }
    }

    fn burst(&mut self, state: &mut State, lent: Lent<'_>) -> Step {
        self.cell.do_chores(state);
        let Some(coroutine) = self.coroutine.take() else { return Step::Ended(Ended::Task) };
        match &self.kind {
            Kind::Task(reference, _) => state.host::<Host>().current.task = reference.0,
            Kind::Function(_, code) => state.host::<Host>().current.action = Arc::as_ptr(code),
        }
        let outcome = self.outcome.take();
        let (burst, done) =
            one_burst(state, &coroutine, lent, self.stream_id, self.hook, true, &mut self.budget, outcome);
        self.inner.start_tasks_of(&self.cell, state);
        if matches!(burst, Burst::Waiting | Burst::Forced | Burst::Yielded) {
            self.coroutine = Some(coroutine);
            self.note_wait(state, burst);
            return Step::Waits;
        }
        let ended = ended(&self.cell, state, &coroutine, burst, done, self.hook, self.label());
        state.recycle(coroutine);
        Step::Ended(ended)
    }

    fn label(&self) -> Label<'_> {
        match &self.kind {
            Kind::Function(purpose, code) => Label::Function(*purpose, &code.name),
            Kind::Task(_, name) => Label::Task(name),
        }
    }

    /// Aborts the waiting script: its to-be-closed variables are closed.
    async fn abandon(&mut self) {
        self.waiting = None;
        let cell = self.cell.clone();
        let mut state = cell.lock.lock().await;
        if let Some(coroutine) = self.coroutine.take() {
            state.recycle(coroutine);
        }
    }
}

/// Returns the outcome of a script that finished or failed; a failure is logged.
fn ended(
    cell: &StateCell,
    state: &mut State,
    coroutine: &Coroutine,
    burst: Burst,
    done: Done,
    hook: ScriptHook,
    label: Label<'_>,
) -> Ended {
    let site = done.site.as_deref();
    let nothing = || match label {
        Label::Task(_) => Ended::Task,
        Label::Function(purpose, _) => Ended::nothing(purpose),
    };
    if done.done {
        return match (done.stream, label) {
            (true, Label::Function(Purpose::Action, _)) => Ended::Action(match done.reply {
                Some(reply) if matches!(hook, ScriptHook::HttpReq | ScriptHook::HttpRes) => ActionOutcome::Reply(reply),
                _ => ActionOutcome::Close,
            }),
            (_, Label::Function(Purpose::HttpService | Purpose::TcpService | Purpose::Cli, _)) => Ended::Service(true),
            // As HAProxy, which takes the result of `core.done` for a value that is not a sample.
            (_, Label::Function(Purpose::Fetch | Purpose::Converter, _)) => Ended::Sample(Some(Sample::Bool(false))),
            _ => nothing(),
        };
    }
    if let Burst::Done(results) = burst {
        return match label {
            Label::Task(_) => Ended::Task,
            Label::Function(Purpose::Action, _) => {
                let code = if results > 0 { action_code(coroutine.thread()) } else { 0 };
                if code == YIELD {
                    let message = format!("{label}: yield not allowed: act.YIELD waits for act.wake_time.");
                    (state.host::<Host>().shared.sink)(&ScriptLine::failure(site, &message));
                }
                Ended::Action(action_outcome(code))
            }
            Label::Function(Purpose::Fetch | Purpose::Converter, _) => {
                Ended::Sample(result_sample(coroutine.thread(), results))
            }
            Label::Function(Purpose::HttpService | Purpose::TcpService | Purpose::Cli, _) => Ended::Service(true),
        };
    }
    let error = state.failure(coroutine);
    let message = match error.kind {
        ErrorKind::Memory => format!("{label}: out of memory error."),
        _ => format!("{label}: [state-id {}] {}.", cell.id, error.at_run_time()),
    };
    (state.host::<Host>().shared.sink)(&ScriptLine::failure(site, &message));
    nothing()
}

/// `act.YIELD`.
const YIELD: i64 = 2;

/// Returns the integer that an action returned; anything else is `act.CONTINUE`.
fn action_code(thread: *mut lua_State) -> i64 {
    // SAFETY: at least one result is on the stack; an integer is read without converting.
    unsafe { if ffi::lua_isinteger(thread, -1) == 0 { 0 } else { ffi::lua_tointeger(thread, -1) } }
}

/// Returns the meaning of a value of `act`.
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

/// The body of an action's coroutine; everything that may raise an error happens in it.
unsafe fn enter_action(lua: *mut lua_State) -> c_int {
    // SAFETY: as `enter`.
    unsafe {
        enter(lua, 1, continuation!(leave_action));
        leave_action(lua, 0, 0)
    }
}

/// Called when an action has returned. If it returned `act.YIELD`, it is called again at its wake time, unless its
/// stream has ended.
unsafe fn leave_action(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the function's only result is on the stack.
    unsafe {
        let current = &host(lua).current;
        if let Some(wake) = current.wake
            && action_code(lua) == YIELD
            && !current.stream.is_null()
            && !current.no_wait
            && can_wait(lua)
        {
            ffi::lua_settop(lua, 0);
            return wait_for(lua, Operation::Sleep(wake), 0, continuation!(once_more));
        }
        ffi::lua_gettop(lua)
    }
}

unsafe fn once_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `enter_action`.
    unsafe {
        // Without its stream there is no decision to make.
        if host(lua).current.stream.is_null() { 0 } else { enter_action(lua) }
    }
}

/// The body of a fetch's coroutine: returns its last result, and whether there is any.
unsafe fn enter_fetch(lua: *mut lua_State) -> c_int {
    // SAFETY: as `enter`.
    unsafe {
        enter(lua, ffi::LUA_MULTRET, continuation!(leave));
        ffi::lua_gettop(lua)
    }
}

/// Calls the function that is about to start, with a `txn` and its arguments.
unsafe fn enter(lua: *mut lua_State, results: c_int, then: lua_KFunction) {
    // SAFETY: who runs a burst set the function, which its rule or its script keeps alive.
    unsafe {
        let host = host(lua);
        let code: &ScriptCode = &*host.current.action;
        let reference = code.references[host.id];
        ffi::luaL_checkstack(lua, code.args.len() as c_int + 4, c"too many arguments".as_ptr());
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, reference.into());
        txn::push(lua, host.current.stream_id);
        for arg in &code.args {
            push_bytes(lua, arg);
        }
        ffi::lua_callk(lua, code.args.len() as c_int + 1, results, 0, Some(then));
    }
}

/// The body of a converter's coroutine: calls it with its sample as text, followed by its arguments.
unsafe fn enter_converter(lua: *mut lua_State) -> c_int {
    // SAFETY: as `enter_action`; the sample stays in the host until Lua has copied it.
    unsafe {
        let code: &ScriptCode = &*host(lua).current.action;
        ffi::luaL_checkstack(lua, code.args.len() as c_int + 4, c"too many arguments".as_ptr());
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, code.references[host(lua).id].into());
        let host = host(lua);
        host.text.clear();
        if let Some(input) = host.current.input.take() {
            input.as_value().append_text(&mut host.text);
        }
        push_bytes(lua, &host.text);
        for arg in &code.args {
            push_bytes(lua, arg);
        }
        ffi::lua_callk(lua, code.args.len() as c_int + 1, ffi::LUA_MULTRET, 0, Some(continuation!(leave)));
        ffi::lua_gettop(lua)
    }
}

unsafe fn enter_http_service(lua: *mut lua_State) -> c_int {
    // SAFETY: as `enter_service`.
    unsafe { enter_service(lua, true) }
}

unsafe fn enter_tcp_service(lua: *mut lua_State) -> c_int {
    // SAFETY: as `enter_service`.
    unsafe { enter_service(lua, false) }
}

/// The body of a service's coroutine: calls it with its applet as the only argument.
unsafe fn enter_service(lua: *mut lua_State, http: bool) -> c_int {
    // SAFETY: as `enter_action`.
    unsafe {
        let code: &ScriptCode = &*host(lua).current.action;
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, code.references[host(lua).id].into());
        applet::push(lua, http);
        ffi::luaL_checkstack(lua, code.args.len() as c_int + 4, c"too many arguments".as_ptr());
        for arg in &code.args {
            push_bytes(lua, arg);
        }
        ffi::lua_callk(lua, 1 + code.args.len() as c_int, 0, 0, Some(continuation!(finish_task)));
        0
    }
}

/// Called when the function of such a body has returned: its results are all that is on the stack.
unsafe fn leave(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: reading the stack's height.
    unsafe { ffi::lua_gettop(lua) }
}

/// The body of a task's coroutine: reads the function and the arguments from the table that the registration pinned.
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
