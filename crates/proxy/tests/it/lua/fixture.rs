//! Scripts loaded into the states of a configuration, and a worker that runs their actions on streams made by hand.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use sluicegate_config::model::{Global, LuaAction, LuaLoad, LuaPath, Position, Tune};
use sluicegate_pattern::{Kind, PatternFile, PatternFiles};
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::lua::{LoadMap, LuaPatterns, LuaStates};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::running::{self, Parts};
use sluicegate_proxy::stream::{ActionOutcome, BoundAction, ScriptAttempt, ScriptHook, StreamContext};
use sluicegate_proxy::worker::{self, Worker, WorkerTask};
use sluicegate_wire::engine::{Engine, Own, PendingReply, Started};
use sluicegate_wire::reply::Reply;

use crate::rules::fixture::{config, context};

/// What scripts logged: severity and text.
pub type Lines = Arc<Mutex<Vec<(u8, String)>>>;

pub fn sink(lines: &Lines) -> sluicegate_proxy::lua::LogSink {
    let lines = lines.clone();
    Arc::new(move |line| lines.lock().unwrap().push((line.level, line.text.to_owned())))
}

/// Runs the first burst of an action on a worker.
pub fn try_run_action(
    worker: &Worker,
    cx: &mut StreamContext,
    action: &BoundAction,
    hook: ScriptHook,
) -> ScriptAttempt<ActionOutcome> {
    worker.scripts.as_ref().expect("there are scripts").try_action(cx, action, hook)
}

/// Runs an action to its end.
pub async fn run_action(
    worker: &Worker,
    cx: &mut StreamContext,
    action: &BoundAction,
    hook: ScriptHook,
) -> ActionOutcome {
    match try_run_action(worker, cx, action, hook) {
        ScriptAttempt::Ready(outcome) => outcome,
        ScriptAttempt::Pending(pending) => pending.finish(cx).await,
    }
}

/// No files but what scripts read, from the disk.
pub fn patterns() -> LuaPatterns {
    let files = Arc::new(PatternFiles::default());
    let known = files.clone();
    let load_map: LoadMap = Arc::new(move |name| {
        let bytes = std::fs::read(name).map_err(|error| format!("failed to open pattern file <{name}>: {error}"))?;
        PatternFile::parse(name, Kind::Map, &bytes).map(|file| known.insert(file)).map_err(|error| error.to_string())
    });
    LuaPatterns { files, load_map }
}

/// A store of counters: INCRBY, GET and ECHO at once, LATER an echo after a turn of the loop, NEVER no answer, PANIC
/// a fault, LENT how many connections of one's own there are.
#[derive(Default)]
pub struct Counters(Mutex<HashMap<Vec<u8>, i64>>, Arc<()>);

/// A connection of one's own, of which nothing is asked.
struct Lent(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl Own for Lent {
    fn start(&mut self, _: &[&[&[u8]]]) -> PendingReply {
        Box::pin(std::future::ready(Reply::Null))
    }

    fn subscribe(&mut self, _: bool, _: &[&[u8]]) -> PendingReply {
        Box::pin(std::future::ready(Reply::Null))
    }

    fn message(&mut self, _: Option<Duration>) -> PendingReply {
        Box::pin(std::future::ready(Reply::Null))
    }
}

impl Engine for Counters {
    fn start(&self, db: u32, args: &[&[u8]]) -> Started {
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<i64>().ok());
        let bulk = |bytes: &[u8]| Reply::Bulk(bytes.to_vec());
        Started::Done(match (args[0], &args[1..]) {
            (b"INCRBY", [key, by]) => match number(by) {
                Some(by) => {
                    let mut counters = self.0.lock().unwrap();
                    let counter = counters.entry(key.to_vec()).or_default();
                    *counter += by;
                    Reply::Integer(*counter)
                }
                None => Reply::Error("ERR value is not an integer or out of range".into()),
            },
            (b"GET", [key]) => match self.0.lock().unwrap().get(*key) {
                Some(counter) => Reply::Bulk(counter.to_string().into_bytes()),
                None => Reply::Null,
            },
            (b"ECHO", [text]) => bulk(text),
            (b"LENT", []) => Reply::Integer(Arc::strong_count(&self.1) as i64 - 1),
            (b"DB", []) => Reply::Integer(i64::from(db)),
            (b"MANY", []) => Reply::Array(vec![
                Reply::Integer(1),
                Reply::Null,
                bulk(b"three"),
                Reply::Array(vec![Reply::Simple("OK".into()), Reply::Error("ERR inside".into())]),
                Reply::Map(vec![(bulk(b"k"), Reply::Double(1.5))]),
            ]),
            (b"PANIC", []) => panic!("a fault of the store"),
            (b"NEVER", []) => return Started::Pending(Box::pin(std::future::pending())),
            (b"LATER", [text]) => {
                let text = text.to_vec();
                return Started::Pending(Box::pin(async move {
                    tokio::task::yield_now().await;
                    if text == b"fail" { Reply::Error("ERR later".into()) } else { Reply::Bulk(text) }
                }));
            }
            _ => Reply::Error("ERR unknown command".into()),
        })
    }

    fn own(&self, _: u32) -> Option<Box<dyn Own>> {
        Some(Box::new(Lent(self.1.clone())))
    }
}

/// Scripts on their way to be loaded.
pub struct Scripts {
    pub global: Global,
    directory: tempfile::TempDir,
}

impl Scripts {
    pub fn new() -> Scripts {
        Scripts {
            global: Global { tune: Tune::default(), ..Global::default() },
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    pub fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub fn with(mut self, code: &str, per_thread: bool) -> Scripts {
        let path = self.directory.path().join(format!("script{}.lua", self.global.lua_loads.len()));
        std::fs::write(&path, code).expect("written");
        let at = Position { file: "test.cfg".into(), line: 2, column: 5 };
        self.global.lua_loads.push(LuaLoad { path, directory: None, args: vec!["one".into()], per_thread, at });
        self
    }

    pub fn path(mut self, pattern: &str) -> Scripts {
        self.global.lua_prepend_paths.push(LuaPath { pattern: pattern.into(), cpath: false });
        self
    }

    pub fn tune(mut self, change: impl FnOnce(&mut Tune)) -> Scripts {
        change(&mut self.global.tune);
        self
    }

    pub fn load(&self, workers: usize, lines: &Lines) -> Result<Arc<LuaStates>, String> {
        LuaStates::load(&self.global, workers, sink(lines), patterns()).map_err(|error| error.to_string())
    }
}

pub fn shared(code: &str) -> Scripts {
    Scripts::new().with(code, false)
}

/// No budgets, for scripts whose end is what a test waits for: a busy machine makes any time too short.
pub fn unlimited(tune: &mut Tune) {
    (tune.lua_session_timeout, tune.lua_burst_timeout) = (None, None);
}

pub type Local<T> = Pin<Box<dyn Future<Output = T>>>;

/// What a test's body works with, on the worker's thread.
pub struct Bench {
    pub worker: Rc<Worker>,
    pub states: Arc<LuaStates>,
    pub lines: Lines,
    next: std::cell::Cell<u64>,
}

impl Bench {
    pub fn bind(&self, name: &str, args: &[&str]) -> BoundAction {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let action = LuaAction { name: name.into(), args };
        let bound = ScriptHook::ALL.into_iter().find_map(|hook| self.states.bind_action(&action, hook));
        bound.expect("it is registered")
    }

    /// A stream with this request.
    pub fn stream(&self, head: &str) -> StreamContext {
        let mut cx = context(&self.worker.running.proxies[0], head);
        self.next.set(self.next.get() + 1);
        cx.id = self.next.get();
        cx.scripts = self.worker.scripts.clone();
        cx
    }

    /// Scripts that run on without their stream.
    pub fn detached(&self) -> usize {
        self.worker.scripts.as_ref().expect("there are scripts").detached()
    }

    /// Changes how long a script may go on without its stream.
    pub fn limit_detached(&self, time: Duration) {
        self.worker.scripts.as_ref().expect("there are scripts").limit_detached(time);
    }

    /// Runs action `name` for a request.
    pub async fn run(&self, name: &str, cx: &mut StreamContext) -> ActionOutcome {
        run_action(&self.worker, cx, &self.bind(name, &[]), ScriptHook::HttpReq).await
    }

    /// Runs action `name` on a fresh stream and gives what it left in `txn.result`.
    pub async fn result(&self, name: &str) -> String {
        let mut cx = self.stream("GET /a/b?c=d HTTP/1.1\r\nHost: www\r\nX-A: 1\r\nx-a: 2\r\n\r\n");
        self.run(name, &mut cx).await;
        self.result_of(&cx)
    }

    pub fn result_of(&self, cx: &StreamContext) -> String {
        let variable = sluicegate_proxy::sample::VarRef::parse("txn.result").expect("a name");
        match cx.variables.get(&variable) {
            Some(sample) => without_place(&String::from_utf8_lossy(&sample.as_value().into_text())),
            None => format!("no result; logged: {:?}", self.lines.lock().unwrap()),
        }
    }

    pub fn logged(&self) -> Vec<(u8, String)> {
        self.lines.lock().unwrap().clone()
    }
}

/// Runs `body` in the first of `workers` workers with these scripts and a store `main` of [`Counters`].
pub fn bench<T: Send + 'static>(
    scripts: Scripts,
    workers: usize,
    body: impl FnOnce(Rc<Bench>) -> Local<T> + Send + 'static,
) -> T {
    let lines = Lines::default();
    let states = scripts.load(workers, &lines).expect("the scripts load");
    let mut config = config("frontend f\n bind 127.0.0.1:1\n");
    config.global = scripts.global.clone();
    let process = Process::new(workers, None);
    let mut engines = Engines::new();
    engines.insert("main".into(), Arc::new(Counters::default()));
    let parts = Parts {
        pages: sluicegate_proxy::stats::pages(),
        engines,
        lua: Some(states.clone()),
        logger: Default::default(),
        process: process.clone(),
    };
    let running = running::build(Arc::new(config), parts).expect("no rules, no errors");
    states.run_init().expect("init functions run");
    let (send, receive) = mpsc::channel();
    let task: WorkerTask = Box::new(move |worker| {
        let bench = Bench { worker: worker.clone(), states, lines, next: Default::default() };
        Box::pin(async move {
            let _ = send.send(body(Rc::new(bench)).await);
        })
    });
    let threads = worker::start(&running, Vec::new(), vec![vec![task]]).expect("workers start");
    // A body that panics drops its sender; one that never ends is seen by who runs the tests.
    let result = receive.recv().expect("the body ends");
    process.stop_now();
    threads.join().expect("the workers leave");
    drop(scripts);
    result
}

/// Registers `body` (a function body with `txn`) as action `a`, runs it, and compares what it put into `txn.result`.
#[track_caller]
pub fn check(body: &str, expected: &str) {
    let code = format!(
        "core.register_action('a', {{'http-req'}}, function(txn)
           local function result(...)
             local t = table.pack(...)
             for i = 1, t.n do t[i] = tostring(t[i]) end
             txn:set_var('txn.result', table.concat(t, ' '))
           end
           {body}
         end)"
    );
    let scripts = shared(&code).tune(unlimited);
    let result = bench(scripts, 1, |bench| Box::pin(async move { bench.result("a").await }));
    assert_eq!(result, expected, "{body}");
}

/// A text without the `FILE:LINE: ` that Lua puts before a message.
fn without_place(text: &str) -> String {
    let words = text.split(' ');
    let is_place = |word: &&str| word.starts_with('/') && word.contains(".lua:") && word.ends_with(':');
    words.filter(|word| !is_place(word)).collect::<Vec<_>>().join(" ")
}
