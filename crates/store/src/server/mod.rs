//! The store over RESP, for every Redis client.
//!
//! One [`Server`] represents a `store` section with a `bind`; each worker serves it on its own runtime with
//! [`Server::serve_tcp`] or [`Server::serve_unix`], so a connection stays on one worker and its commands run there, by
//! function call. Shared state (client table, parameters, error counts) is accessed at most once per turn; counters are
//! per worker.
//!
//! **Invariants.** A connection is answered in the order of its requests. A turn (the data of one read) runs all its
//! complete commands and writes once; it ends early when its replies grow large, and a connection with more work lets
//! the others go first. A client that does not read its replies is not read from. A parked command (its key is held)
//! blocks only its own connection. An idle connection holds no buffers.
//!
//! **Limits**: `maxclients`, `client-query-buffer-limit`, `proto-max-bulk-len`, `client-output-buffer-limit`,
//! `maxmemory-clients`, and the turn's own bounds in `connection`.

mod accept;
mod acl;
mod admin;
mod batch;
mod client;
mod client_command;
mod cluster;
mod command_info;
mod config_command;
mod connection;
mod counters;
mod debug_command;
mod digest;
mod dispatch;
mod failover;
mod figures;
mod guard;
mod handshake;
mod info;
mod inside;
mod latency;
mod monitor;
mod multi;
mod pause;
mod persistence;
mod redirect;
mod replace;
mod replicaof;
mod replicas;
pub(crate) mod rows;
mod scripts;
mod slowlog;
mod start;
mod subscription;
mod switch;
mod takeover;
mod tls;
mod tracking;
mod workspace;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use sluicegate_data::value::STRING_MAX;
use tokio::runtime::RuntimeMetrics;
use tokio::sync::{Notify, watch};

use crate::acl::User;
use crate::config::{ProcessOptions, ServerOptions};
use crate::evict::Room;
use crate::replication::link::Predecessor;
use crate::save::SaveEnd;
use crate::{Appending, Directory, Files, Fsync, Saving, Stats, Store, invite};
use batch::Batch;
use client::Clients;
use counters::{Histograms, Totals, WorkerCounters};
use dispatch::INDEX;
use latency::Latency;
use monitor::Monitors;
use pause::Pause;
use replicaof::LinkEnd;
use scripts::AroundScripts;
use slowlog::Slowlog;
use switch::Switch;
use tls::ServerTls;
use workspace::Workspace;

pub use crate::redis::REDIS_VERSION;
pub use acl::check_users;
pub use start::Beginning;
pub use takeover::{Leave, Position, Progress};
pub use tls::{TlsPort, check_link};

/// Sluicegate's own version, `sluicegate_version` in INFO.
pub const SLUICEGATE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The maximum number of buffers that a worker keeps for the next connection that becomes readable.
const WORKSPACES_KEPT: usize = 64;

/// The maximum number of bytes of these buffers.
const WORKSPACE_BYTES_KEPT: usize = 1 << 20;

/// The time limit for evicting keys before clients are closed. The client whose memory has grown waits for it.
const EVICTION_FIRST: Duration = Duration::from_millis(5);

/// The time for which the save before the end of the process waits for scripts.
const SCRIPTS_END: Duration = Duration::from_secs(2);

/// The interval of checking for idle clients and of sampling rates.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How a process ends: words of SHUTDOWN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Whether the store is saved; [`None`]: if there are save points.
    pub saves: Option<bool>,
    /// Whether the process ends though the save has failed.
    pub is_forced: bool,
}

impl Ending {
    /// Reads `default`, or words of SHUTDOWN.
    pub fn of(words: &[u8]) -> Ending {
        let has = |wanted: &[u8]| words.split(|byte| *byte == b' ').any(|word| word.eq_ignore_ascii_case(wanted));
        let saves = if has(b"save") { Some(true) } else { has(b"nosave").then_some(false) };
        Ending { saves, is_forced: has(b"force") }
    }
}

/// One store on the network.
pub struct Server {
    store: Store,
    /// A reference to itself, for pending commands of rules and scripts.
    this: Weak<Server>,
    options: RwLock<Arc<ServerOptions>>,
    /// The number of changes of `options`, so that a worker notices one by a single load.
    options_version: AtomicU64,
    /// The user of commands of rules and of scripts of the proxy, if the store's section names one.
    inside_user: OnceLock<Arc<User>>,
    clients: Clients,
    next_client: AtomicU64,
    /// What stands for the master among the clients, once it was asked for.
    master_client: Mutex<Option<Arc<client::Client>>>,
    workers: Mutex<Workers>,
    /// Figures at the last CONFIG RESETSTAT.
    reset_at: Mutex<Totals>,
    store_reset_at: Mutex<Stats>,
    /// The syncs by then: full ones, partial ones, and partial ones that were refused.
    syncs_reset_at: Mutex<[u64; 3]>,
    pause: Pause,
    failover: Mutex<failover::Failover>,
    /// Makes connections to the store of the process that this one replaces, as long as that is followed.
    predecessor: Mutex<Option<Arc<Predecessor>>>,
    /// Locked while the store is saved because the process ends.
    ending: tokio::sync::Mutex<()>,
    monitors: Monitors,
    /// Locked by the thread that closes the largest clients.
    closing: Mutex<()>,
    slowlog: Slowlog,
    latency: Arc<Latency>,
    histograms_reset_at: Mutex<Histograms>,
    rate: Mutex<Rate>,
    stopping: watch::Sender<bool>,
    /// Whether a client has sent SHUTDOWN.
    shutdown: watch::Sender<bool>,
    /// The file that the parameters came from; empty: none.
    config_file: OnceLock<String>,
    /// The parameters as they are in that file.
    options_written: Mutex<Arc<ServerOptions>>,
    /// The number of changes of users that are in that file.
    users_written: AtomicU64,
    /// The append-only file being switched on or off.
    switch: Mutex<Switch>,
    started: Instant,
    run_id: String,
    /// The bytes of the empty store; and the maximum in use, as housekeeping has observed it.
    empty_bytes: u64,
    peak: AtomicU64,
    tcp_port: AtomicU64,
    /// The addresses of the listening sockets, as INFO shows them.
    listeners: Mutex<Vec<String>>,
    /// The port of the TCP listeners with TLS.
    tls_port: AtomicU64,
    /// Whether the ports are still to be told.
    awaits_ports: AtomicBool,
    tls: ServerTls,
    log: OnceLock<LogSink>,
    /// Binds sockets for other addresses.
    relisten: OnceLock<Relisten>,
    /// The number of times that the TCP listeners were replaced.
    replaced: watch::Sender<u64>,
    /// Ends the link to a master.
    _link: LinkEnd,
}

/// The log line of an end that failed.
const CANNOT_EXIT: &str = "Errors trying to shut down the server. Check the logs for more information.";

/// TCP sockets that were bound together; `CONFIG SET port` starts another generation.
#[derive(Clone)]
pub struct Generation(watch::Receiver<u64>);

/// Writes a line to the log.
type LogSink = Arc<dyn Fn(u8, &[u8]) + Send + Sync>;

/// Binds the addresses of the present `bind`, `port` and `tls-port`. The returned function hands the sockets over to
/// the workers.
type Relisten = Box<dyn Fn(&ProcessOptions) -> io::Result<Box<dyn FnOnce()>> + Send + Sync>;

/// The counters of the current workers, and the sums of former ones.
#[derive(Debug, Default)]
struct Workers {
    running: Vec<Arc<WorkerCounters>>,
    /// The counters of threads that run commands of rules and scripts; after a thread has ended, the next one uses its
    /// counters.
    inside: Vec<Arc<WorkerCounters>>,
    ended: Totals,
    ended_times: Histograms,
    /// The metrics of the serving threads' runtimes.
    runtimes: HashMap<ThreadId, RuntimeMetrics>,
}

/// Commands per second, taken by housekeeping.
#[derive(Debug)]
struct Rate {
    at: Instant,
    commands: u64,
    input: u64,
    output: u64,
    cycles: u64,
    busy_us: u64,
    /// Commands, bytes in, bytes out and iterations of the workers' event loops, per second; and the microseconds that
    /// an iteration takes.
    per_second: [f64; 5],
}

/// State shared by a worker's connections of one listener.
struct Worker {
    server: Arc<Server>,
    counters: Arc<WorkerCounters>,
    options: RefCell<(u64, Arc<ServerOptions>)>,
    #[allow(clippy::vec_box, reason = "connections own them boxed, so that an idle one holds a pointer")]
    workspaces: RefCell<Vec<Box<Workspace>>>,
    /// The batch of replies.
    batch: Batch,
    /// The bytes of the kept workspaces.
    kept: Cell<usize>,
    live: Cell<usize>,
    all_gone: Notify,
}

impl Server {
    /// Returns a server for `store`; it listens nowhere until a worker serves it.
    pub fn new(store: Store, options: ServerOptions) -> Arc<Server> {
        let now = Instant::now();
        let empty_bytes = store.used_bytes();
        apply(&store, &options);
        if !options.requirepass.is_empty() {
            store.0.acl.set_default_password(&options.requirepass);
        }
        let latency = Arc::new(Latency::default());
        let of_store = latency.clone();
        store.0.appender.set_watch(move |step, took_ms| of_store.add(step, took_ms));
        let link = LinkEnd(store.0.link.clone());
        Arc::new_cyclic(|this: &Weak<Server>| {
            store.0.scripts.set_server(AroundScripts(this.clone()));
            Server {
                store,
                this: this.clone(),
                options_written: Mutex::new(Arc::new(options.clone())),
                switch: Mutex::default(),
                options: RwLock::new(Arc::new(options)),
                options_version: AtomicU64::new(0),
                users_written: AtomicU64::new(0),
                inside_user: OnceLock::new(),
                clients: Clients::default(),
                next_client: AtomicU64::new(1),
                master_client: Mutex::default(),
                workers: Mutex::default(),
                reset_at: Mutex::default(),
                store_reset_at: Mutex::default(),
                syncs_reset_at: Mutex::default(),
                pause: Pause::default(),
                failover: Mutex::default(),
                predecessor: Mutex::default(),
                ending: tokio::sync::Mutex::default(),
                monitors: Monitors::default(),
                closing: Mutex::default(),
                slowlog: Slowlog::default(),
                latency,
                histograms_reset_at: Mutex::default(),
                rate: Mutex::new(Rate {
                    at: now,
                    commands: 0,
                    input: 0,
                    output: 0,
                    cycles: 0,
                    busy_us: 0,
                    per_second: [0.0; 5],
                }),
                stopping: watch::Sender::new(false),
                shutdown: watch::Sender::new(false),
                config_file: OnceLock::new(),
                started: now,
                run_id: random_id(),
                empty_bytes,
                peak: AtomicU64::new(0),
                tcp_port: AtomicU64::new(0),
                listeners: Mutex::default(),
                tls_port: AtomicU64::new(0),
                awaits_ports: AtomicBool::new(false),
                tls: ServerTls::default(),
                log: OnceLock::new(),
                relisten: OnceLock::new(),
                replaced: watch::Sender::new(0),
                _link: link,
            }
        })
    }

    /// Sets the function by which the server and scripts write to the log: level, from 0 for debug to 3 for warning,
    /// and text. Later calls have no effect.
    pub fn set_log(&self, log: impl Fn(u8, &[u8]) + Send + Sync + 'static) {
        let log: LogSink = Arc::new(log);
        let (of_scripts, of_saves) = (log.clone(), log.clone());
        self.store.0.scripts.set_log(move |level, text| of_scripts(level, text));
        self.store.set_save_log(move |level, text| of_saves(level, text.as_bytes()));
        // Set once, at the start.
        let _ = self.log.set(log);
    }

    /// Writes a line to the log.
    fn log(&self, level: u8, text: &str) {
        if let Some(log) = self.log.get() {
            log(level, text.as_bytes());
        }
    }

    /// Returns the current parameters.
    pub fn options(&self) -> Arc<ServerOptions> {
        self.options.read().clone()
    }

    /// Returns the number of connected clients.
    pub fn client_count(&self) -> usize {
        self.clients.count()
    }

    /// Sets the path of the file that the parameters came from, for INFO.
    pub fn set_config_file(&self, path: &str) {
        // Set once, at the start.
        let _ = self.config_file.set(path.to_owned());
    }

    /// Lets `CONFIG SET` change `bind` and `port`: `relisten` binds the new addresses, and the function that it returns
    /// passes their sockets to [`serve_tcp`](Self::serve_tcp) on all workers.
    pub fn set_relisten(
        &self,
        relisten: impl Fn(&ProcessOptions) -> io::Result<Box<dyn FnOnce()>> + Send + Sync + 'static,
    ) {
        // Set once, at the start.
        let _ = self.relisten.set(Box::new(relisten));
    }

    /// Replaces the TCP listeners by those for these options; connections are kept. `commit` makes the other changes
    /// once the sockets are bound. In case of an error, nothing is changed.
    fn relisten(&self, options: &ProcessOptions, commit: impl FnOnce()) -> io::Result<()> {
        let Some(relisten) = self.relisten.get() else { return Err(io::ErrorKind::Unsupported.into()) };
        let hand_over = relisten(options)?;
        commit();
        {
            let mut listeners = self.listeners.lock();
            listeners.retain(|listener| listener.starts_with("name=unix"));
            self.will_listen_on(options.port.into(), options.tls.port.into());
            self.replaced.send_modify(|times| *times += 1);
        }
        hand_over();
        Ok(())
    }

    /// Waits until the server is stopped.
    pub async fn stopped(&self) {
        // The sender lives as long as the server, so waiting cannot fail.
        let _ = self.stopping.subscribe().wait_for(|stop| *stop).await;
    }

    /// Leaves an RDB file that another process has written alone from now on: this process is about to end, and may have been
    /// replaced.
    pub fn yield_file(&self) {
        self.store.0.saver.yield_file();
    }

    /// Saves the store before the process ends, if save points or `how` ask for it; commands that write wait from then on.
    /// Returns false if that failed: then the process goes on. Of several calls, one saves.
    pub async fn save_at_end(&self, how: Ending) -> bool {
        let _turn = self.ending.lock().await;
        if self.pause.is_near_end() {
            return true;
        }
        self.log(3, "User requested shutdown...");
        if self.store.is_loading() {
            // What is in memory is a part of the file, and must not take its place.
            return true;
        }
        if self.store.0.appender.state.lock().is_initial || self.switch.lock().will_be_on() {
            // No file has the data set, and the next start begins with these files.
            if !how.is_forced {
                self.log(3, "Writing initial AOF, can't exit.");
                self.log(3, CANNOT_EXIT);
                return false;
            }
            self.log(3, "Writing initial AOF. Exiting anyway.");
        }
        if let Some(job) = self.store.0.saver.job() {
            let work = if job.is_rewrite() { "rewriting the AOF" } else { "saving an .rdb" };
            self.log(3, &format!("There is a child {work}. Killing it!"));
            job.cancel();
            job.ended().await;
        }
        let is_asked = how.saves.unwrap_or(!self.options().save_points.is_empty());
        if !is_asked || self.store.0.saver.files().is_none() {
            return true;
        }
        self.begin_end();
        self.log(2, "Saving the final RDB snapshot before exiting.");
        let is_saved = match self.store.save(false) {
            Ok(job) => {
                while tokio::time::timeout(SCRIPTS_END, job.cut()).await.is_err() {
                    self.log(3, "Scripts keep the final save waiting, and are ended.");
                    self.store.0.scripts.kill_every();
                }
                matches!(job.ended().await, SaveEnd::Saved | SaveEnd::Left)
            }
            Err(_) => false,
        };
        if is_saved {
            return true;
        }
        if how.is_forced {
            self.log(3, "Error trying to save the DB, but exiting anyway because of FORCE.");
            return true;
        }
        self.log(3, "Error trying to save the DB, can't exit.");
        self.log(3, CANNOT_EXIT);
        self.put_off_end();
        false
    }

    /// Waits until a client sends SHUTDOWN.
    pub async fn shutdown_asked(&self) {
        // The sender lives as long as the server, so waiting cannot fail.
        let _ = self.shutdown.subscribe().wait_for(|asked| *asked).await;
    }

    fn ask_shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// Returns the TCP ports that are served, without and with TLS; 0 for none.
    pub fn listens_on(&self) -> [u32; 2] {
        [&self.tcp_port, &self.tls_port].map(|port| port.load(Ordering::Relaxed) as u32)
    }

    /// Sets the TCP ports that will be served, without and with TLS; 0 for none. A link to a master may begin before the
    /// listeners do, and tells the master one of them.
    pub fn will_listen_on(&self, plain: u64, tls: u64) {
        self.tcp_port.store(plain, Ordering::Relaxed);
        self.tls_port.store(tls, Ordering::Relaxed);
        self.awaits_ports.store(false, Ordering::Release);
    }

    /// Lets a link to a master wait for [`will_listen_on`](Self::will_listen_on).
    pub fn await_ports(&self) {
        self.awaits_ports.store(true, Ordering::Relaxed);
    }

    /// Returns the TCP port, that with TLS if there is no other; 0 without one.
    fn tcp_port(&self) -> u64 {
        let [plain, tls] = self.listens_on();
        u64::from(if plain == 0 { tls } else { plain })
    }

    /// Ends all `serve_*` calls: no connection is accepted any more, and each existing one is closed once the commands
    /// that it has received so far are answered. Those that wait because the store was saved for the end of the process
    /// are not answered.
    ///
    /// Waits also for a client that does not read its replies, or whose command waits for a held key; see
    /// [`close_clients`](Self::close_clients).
    pub fn stop(&self) {
        self.stopping.send_replace(true);
        self.store.0.link.end();
        self.pause.stop();
        self.store.0.memory.keep_expired(None);
        self.clients.matching(&client::Filter::default()).iter().for_each(|client| client.wake());
    }

    /// Lets writes wait until the process ends.
    fn begin_end(&self) {
        self.pause.begin_end();
        self.hold_offset();
    }

    /// Lets writes go on, since the process does not end.
    fn put_off_end(&self) {
        self.pause.put_off_end();
        self.hold_offset();
    }

    /// Keeps the offset where it is while writes wait for what continues this history: replicas that had more than that
    /// would have to begin anew. Signs of life enter the stream by themselves, and a removal of what expired is a write.
    fn hold_offset(&self) {
        let is_held = self.pause.is_last();
        self.store.0.memory.set_hands_over(is_held);
        self.store.0.replication.set_quiet(is_held);
    }

    /// Ends a pause; keys that expired meanwhile may be removed.
    fn end_pause(&self) {
        self.pause.end();
        self.store.0.memory.keep_expired(None);
        self.store.0.link.hold(None);
    }

    /// Closes the largest clients if clients use more memory than allowed. Called outside commands, with nothing
    /// locked.
    #[cold]
    fn close_largest(&self) {
        let inner = &self.store.0;
        if !inner.memory.has_clients_excess() {
            return;
        }
        let evicts = inner.memory.policy() != crate::Policy::NoEviction;
        let may_go = !inner.memory.is_over() || inner.make_room_for(EVICTION_FIRST) != Room::None && evicts;
        if inner.memory.clients_excess(may_go) <= 0 {
            return;
        }
        // A concurrent call does nothing: the closed clients have not freed their memory yet.
        let Some(_closing) = self.closing.try_lock() else { return };
        let killed = self.clients.kill_largest(inner.memory.clients_excess(may_go));
        inner.memory.evicted_clients().fetch_add(killed, Ordering::Relaxed);
    }

    /// Closes all connections immediately, whatever they wait for.
    pub fn close_clients(&self) {
        self.clients.matching(&client::Filter::default()).iter().for_each(|client| client.kill());
    }

    /// Returns the generation of the TCP sockets that are being served, for [`serve_tcp`](Self::serve_tcp).
    pub fn generation(&self) -> Generation {
        Generation(self.replaced.subscribe())
    }

    /// Returns the event loop iterations of the serving threads, and the microseconds that they took.
    fn loops(&self) -> [u64; 2] {
        let workers = self.workers.lock();
        let runtimes = workers.runtimes.values();
        runtimes.fold([0, 0], |[cycles, busy_us], runtime| {
            let busy = runtime.worker_total_busy_duration(0);
            [cycles + runtime.worker_park_count(0), busy_us + busy.as_micros() as u64]
        })
    }

    fn worker(self: &Arc<Self>) -> Rc<Worker> {
        let counters = Arc::new(WorkerCounters::new(INDEX.len()));
        {
            let mut workers = self.workers.lock();
            workers.running.push(counters.clone());
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                workers.runtimes.insert(std::thread::current().id(), runtime.metrics());
            }
        }
        Rc::new(Worker {
            server: self.clone(),
            counters,
            options: RefCell::new((self.options_version.load(Ordering::Acquire), self.options())),
            workspaces: RefCell::default(),
            batch: Batch::default(),
            kept: Cell::new(0),
            live: Cell::new(0),
            all_gone: Notify::new(),
        })
    }

    /// Does the housekeeping for a store that no worker serves; called more often than once a second.
    pub fn tick(&self) {
        if self.rate.lock().at.elapsed() >= HOUSEKEEPING {
            self.keep_house();
        }
    }

    /// Does the housekeeping once a second, in whichever worker comes first.
    fn keep_house(&self) {
        {
            let mut rate = self.rate.lock();
            let passed = rate.at.elapsed();
            if passed < HOUSEKEEPING / 2 {
                return;
            }
            let now = self.all_time();
            let [cycles, busy_us] = self.loops();
            let rounds = cycles.saturating_sub(rate.cycles);
            let per_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / passed.as_secs_f64();
            *rate = Rate {
                at: Instant::now(),
                per_second: [
                    per_second(now.commands, rate.commands),
                    per_second(now.input_bytes, rate.input),
                    per_second(now.output_bytes, rate.output),
                    per_second(cycles, rate.cycles),
                    busy_us.saturating_sub(rate.busy_us) as f64 / rounds.max(1) as f64,
                ],
                commands: now.commands,
                input: now.input_bytes,
                output: now.output_bytes,
                cycles,
                busy_us,
            };
        }
        if self.monitors.any() || self.store.0.pubsub.counts().iter().any(|count| *count > 0) {
            self.clients.kill_overdue(&self.options.read().client_output_buffer_limit);
        }
        if self.store.0.memory.watches_clients() {
            self.close_largest();
        }
        self.peak.fetch_max(self.store.used_bytes(), Ordering::Relaxed);
        let timeout_s = self.options.read().timeout_s;
        if timeout_s > 0 {
            self.clients.kill_idle(Duration::from_secs(timeout_s.into()));
        }
    }

    /// Returns the counters since the start.
    fn all_time(&self) -> Totals {
        let workers = self.workers.lock();
        let mut totals = workers.ended.clone();
        workers.running.iter().chain(&workers.inside).for_each(|worker| totals.add(worker));
        totals.add_scripts(&self.store.0.scripts.counts);
        totals.output_bytes += self.store.0.replication.figures.direct_bytes.load(Ordering::Relaxed);
        totals
    }

    /// Returns the counters since the last CONFIG RESETSTAT.
    fn totals(&self) -> Totals {
        self.all_time().since(&self.reset_at.lock())
    }

    /// Returns the durations of commands since the start.
    fn all_times(&self) -> Histograms {
        let workers = self.workers.lock();
        let mut sums = workers.ended_times.clone();
        workers.running.iter().chain(&workers.inside).for_each(|worker| counters::add_times(&mut sums, worker));
        sums
    }

    /// Returns the durations of commands since the last CONFIG RESETSTAT.
    fn histograms(&self) -> Histograms {
        counters::times_since(self.all_times(), &self.histograms_reset_at.lock())
    }

    /// Returns the store's statistics, with hits and misses since the last CONFIG RESETSTAT.
    fn store_stats(&self) -> Stats {
        let mut stats = self.store.stats();
        let base = self.store_reset_at.lock();
        stats.hits = stats.hits.saturating_sub(base.hits);
        stats.misses = stats.misses.saturating_sub(base.misses);
        stats.expired = stats.expired.saturating_sub(base.expired);
        stats.evicted = stats.evicted.saturating_sub(base.evicted);
        stats
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

impl Worker {
    /// Returns the parameters; every turn that starts after a change sees it.
    fn options(&self) -> Arc<ServerOptions> {
        let version = self.server.options_version.load(Ordering::Acquire);
        let mut own = self.options.borrow_mut();
        if own.0 != version {
            *own = (version, self.server.options());
        }
        own.1.clone()
    }

    /// Returns whether durations of commands are recorded in histograms.
    fn tracks_latency(&self) -> bool {
        self.options.borrow().1.latency_tracking
    }

    /// Returns whether there are newer parameters than at the last call of [`options`](Self::options).
    fn options_changed(&self) -> bool {
        self.options.borrow().0 != self.server.options_version.load(Ordering::Acquire)
    }

    /// Sends batched replies and wakes invited tickets, whenever there are some.
    async fn send_batches(self: Rc<Self>) {
        /// However the task ends, no wake-up may depend on it afterwards.
        struct Unset;
        impl Drop for Unset {
            fn drop(&mut self) {
                invite::unset_sender();
            }
        }
        let _unset = Unset;
        std::future::poll_fn(|cx| {
            self.batch.set_sender(cx.waker());
            invite::set_sender(cx.waker());
            self.poll_batch(cx);
            invite::wake_all();
            std::task::Poll::<()>::Pending
        })
        .await;
    }

    /// Sends the batched replies, those that wait for the disk as far as what they follow is on it.
    fn poll_batch(&self, context: &mut std::task::Context<'_>) {
        let inner = &self.server.store.0;
        let appender = &inner.appender;
        if let Some((_, last)) = self.batch.numbers()
            && inner.loading.holds_replies()
            && appender.durable_number() < last
        {
            if self.batch.has_grown() && !self.batch.is_overdue(Instant::now()) {
                // One sync for all connections that are readable by now.
                let _ = std::pin::pin!(tokio::task::yield_now()).as_mut().poll(context);
                return;
            }
            appender.commit();
        }
        loop {
            self.send_batch();
            let Some((first, _)) = self.batch.numbers() else { return };
            match appender.poll_durable(context, first) {
                std::task::Poll::Ready(true) => {}
                std::task::Poll::Ready(false) => return self.batch.fail(&self.counters),
                std::task::Poll::Pending => return,
            }
        }
    }

    /// Sends the batched replies, unless what they follow is not on the disk yet.
    fn send_batch(&self) {
        let inner = &self.server.store.0;
        let durable = if inner.loading.holds_replies() { inner.appender.durable_number() } else { u64::MAX };
        self.batch.send(&self.counters, durable);
    }

    fn take_workspace(&self) -> Box<Workspace> {
        let Some(workspace) = self.workspaces.borrow_mut().pop() else { return Box::default() };
        self.kept.set(self.kept.get() - workspace.counted());
        workspace
    }

    fn give_back(&self, workspace: Box<Workspace>) {
        let mut kept = self.workspaces.borrow_mut();
        let bytes = self.kept.get() + workspace.counted();
        if kept.len() < WORKSPACES_KEPT && bytes <= WORKSPACE_BYTES_KEPT && workspace.is_modest() {
            self.kept.set(bytes);
            kept.push(workspace);
        }
    }

    fn gone(&self, id: u64) {
        self.server.clients.remove(id);
        self.leave();
    }

    /// Counts the end of a connection, or of the handshake that precedes it.
    fn leave(&self) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0 {
            self.all_gone.notify_one();
        }
    }

    /// Waits until the last connection has ended; the worker's counters stay in the sums.
    async fn finish(&self) {
        while self.live.get() > 0 {
            self.all_gone.notified().await;
        }
        let mut workers = self.server.workers.lock();
        workers.running.retain(|running| !Arc::ptr_eq(running, &self.counters));
        workers.ended.add(&self.counters);
        counters::add_times(&mut workers.ended_times, &self.counters);
    }
}

/// Returns a time that a client has given in milliseconds: a century at most, which is long enough and keeps its sum with
/// the present time in range.
fn bounded(time_ms: u64) -> Duration {
    Duration::from_millis(time_ms.min(100 * 365 * 86_400_000))
}

/// Passes the store's own parameters to the store.
fn apply(store: &Store, options: &ServerOptions) {
    store.0.appender.watch_from(options.latency_threshold_ms as u64);
    store.0.limits.set(&options.limits);
    store.0.loading.key_delay_us.store(options.key_load_delay_us, Ordering::Relaxed);
    store.0.limits.lfu_decay.set(options.lfu_decay_time.into());
    store.0.string_max.store(options.proto_max_bulk_len.min(STRING_MAX as u64), Ordering::Relaxed);
    store.0.link.set_terms(replicaof::terms(options));
    store.0.show_role();
    store.0.memory.limit_clients(options.maxmemory_clients.of(options.maxmemory));
    store.0.notifier.set_classes(options.notify_keyspace_events);
    store.0.scripts.set(options);
    store.0.acl.set(options);
    let directory = || Directory::new(OsStr::from_bytes(&options.dir));
    store.set_files((!options.dir.is_empty()).then(|| Arc::new(directory()) as Arc<dyn Files>));
    store.0.saver.set_place(&options.dir, &options.dbfilename);
    store.set_saving(Saving {
        name: String::from_utf8_lossy(&options.dbfilename).into_owned(),
        has_checksum: options.rdbchecksum,
        points: options.save_points.clone(),
        compresses: options.rdb_compression,
        stops_writes: options.stop_writes_on_bgsave_error,
        key_delay_us: options.rdb_key_save_delay_us,
    });
    store.set_appending(Appending {
        directory: options.appenddirname.clone(),
        name: options.appendfilename.clone(),
        fsync: match options.appendfsync {
            "always" => Fsync::Always,
            "no" => Fsync::No,
            _ => Fsync::EverySecond,
        },
        rewrite_percentage: options.aof_rewrite_percentage,
        rewrite_min_bytes: options.aof_rewrite_min_bytes,
        has_timestamps: options.aof_timestamps,
        rests_on_rewrite: options.no_fsync_on_rewrite,
    });
    store.0.appender.let_workers_help(options.standalone);
    store.0.pubsub.set_limit(&options.client_output_buffer_limit[2]);
    let [normal, _, pubsub] = options.client_output_buffer_limit;
    store.0.tracking.limit_output(normal, pubsub);
    store.0.tracking.limit_keys(options.tracking_table_max_keys as u64);
    store.0.replication.set_options(options.replication.of_master(options));
    store.0.look_for_replicas();
}

/// Returns forty hexadecimal digits that identify this run.
fn random_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let part = || RandomState::new().hash_one(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    format!("{:016x}{:016x}{:08x}", part(), part(), part() as u32)
}

#[cfg(test)]
mod tests {
    use sluicegate_transport::Socket;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Runs a test beside the connections of a worker, which sends no batches unless it is told to.
    pub(super) fn on_worker(test: impl AsyncFnOnce(Rc<Worker>, tokio::net::TcpListener)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.expect("a runtime").block_on(async {
            let server = Server::new(Store::new(crate::StoreOptions::default()), ServerOptions::default());
            test(server.worker(), tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound")).await;
        });
    }

    #[test]
    fn a_fault_in_a_handler_ends_its_command_alone() {
        on_worker(async |worker, listener| {
            let address = listener.local_addr().expect("bound");
            let mut client = tokio::net::TcpStream::connect(address).await.expect("connected");
            let (stream, peer) = listener.accept().await.expect("accepted");
            worker.accept_tcp(Socket::Tcp(stream), peer);
            client.write_all(b"SET k v\r\nFAULT locked a\r\nGET k\r\nGET a\r\n").await.expect("sent");
            client
                .write_all(b"MULTI\r\nSET k w\r\nFAULT locked b k\r\nGET b\r\nGET k\r\nEXEC\r\nQUIT\r\n")
                .await
                .expect("sent");
            let mut reply = String::new();
            client.read_to_string(&mut reply).await.expect("closed");
            let alone = "+OK\r\n-ERR internal error: the command failed\r\n$1\r\nv\r\n$7\r\nchanged\r\n";
            let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
            let together =
                "*4\r\n+OK\r\n-ERR internal error: the command failed\r\n$7\r\nchanged\r\n$7\r\nchanged\r\n+OK\r\n";
            assert_eq!(reply, [alone, queued, together].concat());
        });
    }
}
