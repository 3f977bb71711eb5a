//! The Lua states of the process: loading of scripts, lookup of their functions by name, initialisation.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluicegate_config::LuaNames;
use sluicegate_config::model::{self, LuaLoad, StatsLevel};
use sluicegate_script::{Budget, Burst, BurstLock, Coroutine, Error, ErrorKind, MemoryLimit, State, Watch, ffi};
use tokio::sync::{mpsc, oneshot};

use super::directory::Entered;
use super::events::{Subscription, Subscriptions};
use super::host::{Host, Phase, RegisteredAs, TaskReference, c_string};
use super::patterns::LuaPatterns;
use super::tls::ScriptTls;
use super::{
    LoadError, LogSink, ScriptLine, WorkerLua, applet, certificates, core_api, filter, native, patterns, programs,
    redis, socket, txn,
};
use crate::cli::catalogue::is_built_in;
use crate::engines::Engines;
use crate::log::Throttle;
use crate::mail::Alerts;
use crate::running::{Running, ScriptStates};
use crate::script_commands::{Dynamic, Handler, Outlet};
use crate::server::ServerEvent;
use crate::stream::{
    Bindings, BoundAction, BoundFilter, BoundService, PrivateValues, ScriptCall, ScriptCode, ScriptHook, Scripts,
};

/// Data shared by all states.
pub(super) struct Shared {
    pub(super) sink: LogSink,
    pub(super) engines: OnceLock<Engines>,
    /// The rate limit of messages about failed commands without a receiver.
    pub(super) forgotten: Arc<Throttle>,
    /// The rate limit of messages about samples that were skipped because a state was in use.
    pub(super) busy: Throttle,
    /// The current snapshot; none before the start, and once a snapshot with scripts of its own has replaced it.
    pub(super) running: RwLock<Weak<Running>>,
    /// The TLS configuration of scripts' connections; `None` until the first snapshot exists.
    pub(super) tls: RwLock<Option<Arc<ScriptTls>>>,
    pub(super) patterns: LuaPatterns,
    pub(super) events: Subscriptions,
    /// `core.disable_legacy_mailers`.
    pub(super) sends_mail: AtomicBool,
    /// Longest line that `receive` keeps, bytes: `tune.bufsize`.
    pub(super) bufsize: usize,
    pub(super) session_timeout: Option<Duration>,
    pub(super) service_timeout: Option<Duration>,
    pub(super) task_timeout: Option<Duration>,
    pub(super) burst_timeout: Option<Duration>,
    /// Whether scripts receive boolean samples as 0 and 1.
    pub(super) bool_as_integer: bool,
    /// Whether scripts may start programs while the process serves.
    pub(super) may_fork: bool,
}

/// A state, and the work that its users leave for the next burst.
pub(super) struct StateCell {
    pub(super) id: usize,
    pub(super) lock: BurstLock<State>,
    chores: Mutex<Chores>,
    has_chores: AtomicBool,
    /// Whether a task is running its finalizers.
    pub(super) finalizes: AtomicBool,
}

#[derive(Default)]
struct Chores {
    coroutines: Vec<Coroutine>,
    ended_streams: Vec<u64>,
    /// Registry references that nobody has any more.
    references: Vec<c_int>,
}

impl StateCell {
    fn new(id: usize, state: State) -> Arc<StateCell> {
        let cell = Arc::new(StateCell {
            id,
            lock: BurstLock::new(state),
            chores: Mutex::default(),
            has_chores: AtomicBool::new(false),
            finalizes: AtomicBool::new(false),
        });
        cell.lock.lock_blocking().host::<Host>().cell = Arc::downgrade(&cell);
        cell
    }

    /// Gives up a coroutine in code that has not locked the state.
    pub(super) fn give_up(&self, coroutine: Coroutine) {
        self.chores.lock().coroutines.push(coroutine);
        self.has_chores.store(true, Ordering::Release);
    }

    /// Records that a stream with a private value in this state has ended.
    pub(super) fn stream_ended(&self, id: u64) {
        self.chores.lock().ended_streams.push(id);
        self.has_chores.store(true, Ordering::Release);
    }

    /// Gives up a registry reference in code that has not locked the state.
    pub(super) fn release(&self, reference: c_int) {
        self.chores.lock().references.push(reference);
        self.has_chores.store(true, Ordering::Release);
    }

    /// Executes the remaining work, with the state locked.
    #[inline]
    pub(super) fn do_chores(&self, state: &mut State) {
        if self.has_chores.load(Ordering::Acquire) {
            self.do_chores_slowly(state);
        }
    }

    #[cold]
    fn do_chores_slowly(&self, state: &mut State) {
        self.has_chores.store(false, Ordering::Release);
        let chores = std::mem::take(&mut *self.chores.lock());
        for coroutine in chores.coroutines {
            state.recycle(coroutine);
        }
        for id in chores.ended_streams {
            txn::forget_private(state, id);
        }
        for reference in chores.references {
            // SAFETY: no value with a destructor is alive. A failure would keep one object until the state is closed.
            let _ = unsafe { state.protect(|lua| ffi::luaL_unref(lua, ffi::LUA_REGISTRYINDEX, reference)) };
        }
    }
}

/// A registered function in each of its states.
pub(super) struct Registered {
    pub(super) args: usize,
    /// A command's line in the help.
    usage: String,
    /// The references, by state id; `LUA_NOREF` for states that did not register it.
    pub(super) references: Box<[c_int]>,
}

/// Every Lua state of the process.
pub struct LuaStates {
    pub(super) shared: Arc<Shared>,
    /// The states, by state id; index 0 is the shared one.
    pub(super) cells: Box<[Option<Arc<StateCell>>]>,
    /// Actions by rule set, because one name may stand for a different function in each.
    actions: [HashMap<Box<str>, Registered>; ScriptHook::ALL.len()],
    fetches: HashMap<Box<str>, Registered>,
    converters: HashMap<Box<str>, Registered>,
    http_services: HashMap<Box<str>, Registered>,
    tcp_services: HashMap<Box<str>, Registered>,
    pub(super) filters: HashMap<Box<str>, Registered>,
    commands: HashMap<Box<str>, Registered>,
    /// The queue of stats socket commands for the first worker, which runs them.
    pub(super) jobs: (mpsc::Sender<CliJob>, Mutex<Option<mpsc::Receiver<CliJob>>>),
    inits: Vec<(usize, c_int)>,
    /// The watchdog's view of the workers that run scripts, by worker.
    pub(super) watches: Mutex<HashMap<usize, Watch>>,
    /// Tasks by worker.
    pub(super) tasks: Mutex<Vec<Vec<(usize, TaskReference)>>>,
    /// Subscriptions that were made before traffic, with the states that they belong to; the first worker serves them.
    pub(super) subscriptions: Mutex<Vec<(usize, Arc<Subscription>)>>,
}

impl fmt::Debug for LuaStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LuaStates").field("actions", &self.actions()).finish_non_exhaustive()
    }
}

/// The maximum number of stats socket commands that wait for the first worker.
const JOBS: usize = 64;

/// A command of the stats socket that a script answers.
pub(super) struct CliJob {
    pub(super) code: Arc<ScriptCode>,
    pub(super) outlet: Outlet,
    /// Dropped when the answer is complete.
    pub(super) _done: oneshot::Sender<()>,
}

impl LuaStates {
    /// Runs the main chunk of every script on the calling thread, in the order of the configuration file: `lua-load` in
    /// the shared state, `lua-load-per-thread` in one state for each of `nbthread` workers. `sink` receives what
    /// scripts log; `patterns` are the files that rules use, too.
    pub fn load(
        global: &model::Global,
        nbthread: usize,
        sink: LogSink,
        patterns: LuaPatterns,
    ) -> Result<Arc<LuaStates>, LoadError> {
        LuaStates::load_with(global, nbthread, sink, patterns, None)
    }

    /// Like [`load`](Self::load); `read`, if given, reads the files of `lua-load` for a process that cannot access
    /// them.
    pub fn load_with(
        global: &model::Global,
        nbthread: usize,
        sink: LogSink,
        patterns: LuaPatterns,
        read: Option<ReadBody<'_>>,
    ) -> Result<Arc<LuaStates>, LoadError> {
        let tune = &global.tune;
        let shared = Arc::new(Shared {
            sink,
            engines: OnceLock::new(),
            forgotten: Arc::default(),
            busy: Throttle::default(),
            running: RwLock::default(),
            tls: RwLock::default(),
            patterns,
            events: Subscriptions::default(),
            sends_mail: AtomicBool::new(false),
            bufsize: tune.bufsize,
            session_timeout: tune.lua_session_timeout,
            service_timeout: tune.lua_service_timeout,
            task_timeout: tune.lua_task_timeout,
            burst_timeout: tune.lua_burst_timeout,
            bool_as_integer: tune.lua_bool_as_integer.unwrap_or(true),
            may_fork: global.insecure_fork,
        });
        let memory = Arc::new(MemoryLimit::new(tune.lua_maxmem));
        let mut states: Vec<Option<State>> = Vec::new();
        for id in 0..=nbthread {
            let needed = global.lua_loads.iter().any(|load| load.per_thread == (id > 0));
            states.push(if needed { Some(make_state(&shared, &memory, global, id)?) } else { None });
        }
        for load in &global.lua_loads {
            let range = if load.per_thread { 1..nbthread + 1 } else { 0..1 };
            for state in states[range].iter_mut().flatten() {
                run_body(state, load, read)?;
            }
        }
        Ok(Arc::new(collect(shared, states, nbthread)))
    }

    /// Sets the stores that scripts may name. Called before [`LuaStates::run_init`] and before any worker starts.
    pub fn attach(&self, engines: Engines) {
        let _ = self.shared.engines.set(engines);
    }

    /// Publishes the running objects to scripts: `core.proxies`, `core.frontends` and `core.backends`. Called once,
    /// when the snapshot is complete, before any worker starts.
    pub fn publish(&self, running: &Arc<Running>) {
        self.follow(running);
        for cell in self.cells.iter().flatten() {
            let mut state = cell.lock.lock_blocking();
            if let Err(message) = native::publish(&mut state, running) {
                (self.shared.sink)(&ScriptLine::failure(None, &format!("Lua: core.proxies: {message}.")));
            }
        }
    }

    /// Replaces the snapshot that scripts see by another one with the same proxies.
    pub(crate) fn follow(&self, running: &Arc<Running>) {
        *self.shared.running.write() = Arc::downgrade(running);
        self.quiet_mailers(running);
        let mut tls = self.shared.tls.write();
        match ScriptTls::new(running, tls.as_ref()) {
            Ok(new) => *tls = Some(new),
            Err(message) => (self.shared.sink)(&ScriptLine::failure(None, &format!("Lua: TLS of scripts: {message}."))),
        }
    }

    /// Ends alerts by mail, if a script sends them.
    fn quiet_mailers(&self, running: &Running) {
        if self.sends_mail() {
            running.proxies.iter().filter_map(|proxy| proxy.alerts.as_ref()).for_each(Alerts::disable);
        }
    }

    /// Adds the commands of scripts to the stats socket of a snapshot that is not served yet.
    pub(crate) fn add_commands(&self, running: &Running) {
        for (words, registered) in &self.commands {
            let (jobs, references) = (self.jobs.0.clone(), registered.references.clone());
            let name = words.clone();
            let handler: Arc<Handler> = Arc::new(move |words, outlet| {
                let args = words.into_iter().map(Vec::into_boxed_slice).collect();
                let code = Arc::new(ScriptCode { name: name.clone(), references: references.clone(), args });
                let jobs = jobs.clone();
                Box::pin(async move {
                    let (done, ended) = oneshot::channel();
                    if jobs.send(CliJob { code, outlet, _done: done }).await.is_ok() {
                        // Nothing is ever sent; the channel closes when the job has ended.
                        let _ = ended.await;
                    }
                })
            });
            let name = words.split(' ').map(str::to_owned).collect();
            let command = Dynamic { name, usage: registered.usage.clone(), level: StatsLevel::User, handler };
            if let Err(refused) = running.commands.add(command, is_built_in) {
                let text = format!("Lua: the command '{words}' is not added: {refused:?}.");
                (self.shared.sink)(&ScriptLine::warning(&text));
            }
        }
    }

    /// Runs the functions of `core.register_init`, once, in the order of their registration, before traffic.
    pub fn run_init(&self) -> Result<(), LoadError> {
        for (id, reference) in &self.inits {
            let Some(cell) = &self.cells[*id] else { continue };
            let mut state = cell.lock.lock_blocking();
            state.host::<Host>().phase = Phase::Init;
            run_init(&mut state, *reference)
                .map_err(|message| LoadError { at: None, message: format!("Lua init: {message}") })?;
        }
        sluicegate_script::rest();
        if let Some(running) = self.shared.running.read().upgrade() {
            self.quiet_mailers(&running);
        }
        let mut tasks = self.tasks.lock();
        for cell in self.cells.iter().flatten() {
            let mut state = cell.lock.lock_blocking();
            let host = state.host::<Host>();
            host.phase = Phase::Run;
            spread_tasks(&mut tasks, cell.id, std::mem::take(&mut host.tasks));
            self.subscriptions.lock().extend(host.subscriptions.drain(..).map(|one| (cell.id, one)));
        }
        Ok(())
    }

    /// Returns the access of the worker `index`, from 0, to its states. Must be called on the worker's thread.
    pub fn worker(self: &Arc<Self>, index: usize) -> WorkerLua {
        WorkerLua::new(self.clone(), index)
    }

    /// Returns the function of a fetch or converter in these states.
    pub(super) fn code_of<'a>(&self, call: &'a ScriptCall) -> Option<&'a Arc<ScriptCode>> {
        let find = || {
            let registered = if call.converts { &self.converters } else { &self.fetches }.get(&call.name)?;
            let references = registered.references.clone();
            Some(Arc::new(ScriptCode { name: call.name.clone(), references, args: call.args.clone() }))
        };
        call.code.get_or_init(find).as_ref()
    }

    /// Binds the action of a rule. Returns `None` if the action is not registered for this rule set; the configuration
    /// check has already reported that.
    pub fn bind_action(&self, action: &model::LuaAction, hook: ScriptHook) -> Option<BoundAction> {
        let registered = self.actions[hook as usize].get(&*action.name)?;
        Some(BoundAction(Arc::new(ScriptCode {
            name: (*action.name).into(),
            references: registered.references.clone(),
            args: action.args.iter().map(|arg| arg.as_bytes().into()).collect(),
        })))
    }

    /// Binds the service of a rule; `None` if it is not registered.
    pub fn bind_service(&self, name: &str, http: bool) -> Option<BoundService> {
        let registered = if http { self.http_services.get(name) } else { self.tcp_services.get(name) }?;
        let full = format!("<lua.{name}>");
        let code =
            ScriptCode { name: full.as_str().into(), references: registered.references.clone(), args: Box::default() };
        Some(BoundService { name: Arc::new(full), code: Arc::new(code), http })
    }

    /// Returns the watchdog's view of a worker that runs scripts.
    pub(crate) fn watch_of(&self, worker: usize) -> Option<Watch> {
        self.watches.lock().get(&worker).cloned()
    }
}

impl Bindings for LuaStates {
    fn bind_action(&self, action: &model::LuaAction, hook: ScriptHook) -> Option<BoundAction> {
        LuaStates::bind_action(self, action, hook)
    }

    fn bind_service(&self, name: &str, http: bool) -> Option<BoundService> {
        LuaStates::bind_service(self, name, http)
    }

    fn bind_filter(&self, line: &model::LuaFilter) -> Result<BoundFilter, String> {
        self.filter_of(line)
    }
}

impl ScriptStates for LuaStates {
    fn attach(&self, engines: Engines) {
        LuaStates::attach(self, engines);
    }

    fn publish(&self, running: &Arc<Running>) {
        LuaStates::publish(self, running);
    }

    fn follow(&self, running: &Arc<Running>) {
        LuaStates::follow(self, running);
    }

    fn add_commands(&self, running: &Running) {
        LuaStates::add_commands(self, running);
    }

    fn has_subscribers(&self) -> bool {
        self.shared.events.any()
    }

    fn event(&self, event: &ServerEvent) {
        self.shared.events.event(event);
    }

    fn init(&self) -> Result<(), String> {
        self.run_init().map_err(|error| error.message)
    }

    fn worker(self: Arc<Self>, index: usize) -> Rc<dyn Scripts> {
        Rc::new(LuaStates::worker(&self, index))
    }

    fn watch_of(&self, worker: usize) -> Option<Watch> {
        LuaStates::watch_of(self, worker)
    }
}

impl PrivateValues for StateCell {
    fn stream_ended(&self, id: u64) {
        StateCell::stream_ended(self, id);
    }
}

impl LuaNames for LuaStates {
    fn action(&self, name: &str, hook: &str) -> Option<usize> {
        let hook = ScriptHook::by_name(hook.as_bytes())?;
        self.actions[hook as usize].get(name).map(|action| action.args)
    }

    fn actions(&self) -> Vec<String> {
        let all: BTreeSet<&str> = self.actions.iter().flatten().map(|(name, _)| &**name).collect();
        all.into_iter().map(str::to_owned).collect()
    }

    fn sends_mail(&self) -> bool {
        self.shared.sends_mail.load(Ordering::Relaxed)
    }

    fn fetches(&self) -> Vec<String> {
        names(&self.fetches)
    }

    fn converters(&self) -> Vec<String> {
        names(&self.converters)
    }

    fn filters(&self) -> Vec<String> {
        names(&self.filters)
    }

    fn services(&self, mode: &str) -> Vec<String> {
        names(if mode == "http" { &self.http_services } else { &self.tcp_services })
    }
}

fn names(registered: &HashMap<Box<str>, Registered>) -> Vec<String> {
    registered.keys().map(|name| name.to_string()).collect()
}

fn make_state(
    shared: &Arc<Shared>,
    memory: &Arc<MemoryLimit>,
    global: &model::Global,
    id: usize,
) -> Result<State, LoadError> {
    let failed = |error: sluicegate_script::Error| LoadError { at: None, message: format!("Lua state: {error}") };
    let mut state = State::new(memory.clone(), Host::new(shared.clone(), id)).map_err(failed)?;
    // SAFETY: these functions hold nothing with a destructor across Lua's calls.
    unsafe {
        state
            .protect(|lua| {
                core_api::open(lua, id);
                filter::open(lua);
                socket::open(lua);
                redis::open(lua);
                txn::open(lua);
                applet::open(lua);
                certificates::open(lua);
                native::open(lua);
                patterns::open(lua);
                programs::open(lua);
            })
            .map_err(failed)?;
    }
    state.search_distribution().map_err(failed)?;
    // A path that is prepended later comes first, as in HAProxy.
    for path in &global.lua_prepend_paths {
        state.prepend_path(&path.pattern, path.cpath).map_err(failed)?;
    }
    let names = model::LUA_LIBRARIES.iter().enumerate();
    let closed = names.filter(|(at, _)| global.tune.lua_libraries & (1 << at) == 0).map(|(_, name)| c_string(name));
    let closed: Vec<CString> = closed.collect();
    if !closed.is_empty() {
        let names: Vec<&CStr> = closed.iter().map(CString::as_c_str).collect();
        state.close_libraries(&names).map_err(failed)?;
    }
    Ok(state)
}

/// A function that reads a file of `lua-load`.
pub type ReadBody<'a> = &'a dyn Fn(&Path) -> std::io::Result<Vec<u8>>;

fn run_body(state: &mut State, load: &LuaLoad, read: Option<ReadBody<'_>>) -> Result<(), LoadError> {
    let path = CString::new(path_bytes(&load.path)).map_err(|_| LoadError {
        at: Some(load.at.clone()),
        message: format!("lua-load: the name {:?} holds a zero byte", load.path),
    })?;
    let args: Vec<CString> = load.args.iter().map(|arg| c_string(arg)).collect();
    let code = read.map(|read| read(&load.file())).transpose().map_err(|error| LoadError {
        at: Some(load.at.clone()),
        message: format!("Lua file: cannot open {} ({error})", load.path.display()),
    })?;
    let _there = match &load.directory {
        Some(directory) => Entered::enter(directory, read.is_some()).map_err(|error| LoadError {
            at: Some(load.at.clone()),
            message: format!("Lua file: cannot change to directory {} ({error})", directory.display()),
        })?,
        None => None,
    };
    let ran = match code {
        None => state.run_file(&path, &args),
        Some(mut code) => {
            // Lua's own reader skips such a line, too.
            if code.first() == Some(&b'#') {
                code.splice(..0, *b"--");
            }
            let name = CString::new([b"@", path.as_bytes()].concat()).expect("no zero, as asked above");
            state.run_chunk(&code, &name, &args)
        }
    };
    ran.map_err(|error| {
        let message = match error.kind {
            ErrorKind::Syntax => format!("error in Lua file '{}': {error}", load.path.display()),
            ErrorKind::Runtime => format!("Lua runtime error: {error}"),
            // The value has no text, which HAProxy shows in this way.
            ErrorKind::Object => format!("Lua runtime error: {}", Error { message: "(null)".into(), ..error }),
            ErrorKind::Memory => format!("Lua out of memory error: {error}"),
            ErrorKind::File => format!("Lua file: {error}"),
            ErrorKind::Timeout | ErrorKind::Stopped => format!("Lua: {error}"),
        };
        LoadError { at: Some(load.at.clone()), message }
    })
}

fn path_bytes(path: &Path) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes()
}

/// Moves the registrations that scripts made while loading out of the states.
fn collect(shared: Arc<Shared>, states: Vec<Option<State>>, nbthread: usize) -> LuaStates {
    let count = states.len();
    let mut actions: [HashMap<Box<str>, Registered>; ScriptHook::ALL.len()] = Default::default();
    let mut fetches: HashMap<Box<str>, Registered> = HashMap::new();
    let mut converters: HashMap<Box<str>, Registered> = HashMap::new();
    let mut http_services: HashMap<Box<str>, Registered> = HashMap::new();
    let mut tcp_services: HashMap<Box<str>, Registered> = HashMap::new();
    let mut filters: HashMap<Box<str>, Registered> = HashMap::new();
    let mut commands: HashMap<Box<str>, Registered> = HashMap::new();
    let mut inits = Vec::new();
    let mut tasks = vec![Vec::new(); nbthread.max(1)];
    let mut cells = Vec::with_capacity(count);
    for (id, state) in states.into_iter().enumerate() {
        cells.push(state.map(|mut state| {
            let host = state.host::<Host>();
            for registration in host.registrations.drain(..) {
                let table = match registration.kind {
                    RegisteredAs::Action(hook) => &mut actions[hook as usize],
                    RegisteredAs::Fetch => &mut fetches,
                    RegisteredAs::Converter => &mut converters,
                    RegisteredAs::HttpService => &mut http_services,
                    RegisteredAs::TcpService => &mut tcp_services,
                    RegisteredAs::Filter => &mut filters,
                    RegisteredAs::Cli => &mut commands,
                };
                let entry = table.entry(registration.name.into_boxed_str()).or_insert_with(|| Registered {
                    args: registration.args,
                    usage: registration.usage,
                    references: vec![ffi::LUA_NOREF; count].into(),
                });
                entry.args = registration.args;
                entry.references[id] = registration.reference;
            }
            inits.extend(host.inits.drain(..).map(|reference| (id, reference)));
            spread_tasks(&mut tasks, id, std::mem::take(&mut host.tasks));
            StateCell::new(id, state)
        }));
    }
    let (jobs, received) = mpsc::channel(JOBS);
    LuaStates {
        shared,
        cells: cells.into(),
        actions,
        fetches,
        converters,
        http_services,
        tcp_services,
        filters,
        commands,
        jobs: (jobs, Mutex::new(Some(received))),
        inits,
        watches: Mutex::default(),
        tasks: Mutex::new(tasks),
        subscriptions: Mutex::default(),
    }
}

/// Distributes tasks to workers: those of a worker's own state to that worker, those of the shared state to all workers
/// in turn.
fn spread_tasks(workers: &mut [Vec<(usize, TaskReference)>], id: usize, tasks: Vec<TaskReference>) {
    for task in tasks {
        let least = (0..workers.len()).min_by_key(|worker| workers[*worker].len()).unwrap_or(0);
        let worker = if id == 0 { least } else { id - 1 };
        workers[worker].push((id, task));
    }
}

/// Returns the failure of an init function as HAProxy reports it, which quotes the message.
fn init_failure(error: &Error) -> String {
    match error.kind {
        ErrorKind::Runtime => {
            let quoted = Error { message: format!("'{}'", error.message), ..error.clone() };
            quoted.at_run_time()
        }
        _ => error.at_run_time(),
    }
}

fn run_init(state: &mut State, reference: c_int) -> Result<(), String> {
    let coroutine = state.coroutine().map_err(|error| error.to_string())?;
    let thread = coroutine.thread();
    // SAFETY: a fresh coroutine has free slots, and a function of the registry is pushed without raising.
    unsafe { ffi::lua_rawgeti(thread, ffi::LUA_REGISTRYINDEX, reference.into()) };
    let mut budget = Budget::new(None, None);
    loop {
        // SAFETY: the function is on the coroutine's stack, without arguments.
        match unsafe { state.resume(&coroutine, 0, &mut budget) } {
            Burst::Done(_) => {
                state.recycle(coroutine);
                return Ok(());
            }
            Burst::Forced | Burst::Yielded => {}
            Burst::Waiting => {
                state.host::<Host>().operation = None;
                state.recycle(coroutine);
                return Err("yield not allowed".into());
            }
            Burst::Failed => {
                let error = state.failure(&coroutine);
                state.recycle(coroutine);
                return Err(init_failure(&error));
            }
        }
    }
}
