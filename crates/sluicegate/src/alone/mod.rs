//! The standalone store: `sluicegate store`, and the program under the name `redis-server`.
//!
//! Arguments, files, messages and exit codes are Redis's (`redis.conf`, `redis-server --help`), so that unit files,
//! scripts and test suites for redis-server work with it. The order of the start: the command line and the file; the
//! background, while there is one thread; descriptors; sockets; the workers, each with its own runtime and sockets.
//! The main thread becomes the control thread: signals, expiry, shutdown.
//!
//! Exit codes: 0 after a signal or SHUTDOWN, 1 for every error that keeps the store from serving.

mod listen;
mod log;
mod words;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sluicegate_store::config::{self, SavePoint, ServerOptions};
use sluicegate_store::server::{
    Beginning, Ending, Generation, REDIS_VERSION, SLUICEGATE_VERSION, Server, TlsPort, check_link, check_users,
};
use sluicegate_store::{Store, StoreOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::posts::serve_store;
use crate::serve::STORE_TICK;
use crate::shape::background::{self, Background, Waiting};
use crate::shape::notify::Notifier;
use log::{Level, Log};
use words::Request;

/// The number of descriptors in addition to those of clients: listeners, runtimes, the log. Redis reserves 32.
const DESCRIPTORS: u64 = 32;

/// The default of `save`, in seconds and changes, as in Redis.
const SAVE_POINTS: [(u64, u64); 3] = [(3600, 1), (300, 100), (60, 10_000)];

/// The default pidfile of a store in the background, as in Redis.
const PIDFILE: &str = "/var/run/redis.pid";

/// The interval at which a service manager is told of the progress of a load, so that it does not give up.
const LOADING_TOLD: Duration = Duration::from_secs(2);

/// The time limit for closing clients when the process ends.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// Executes the request of the command line.
pub fn main(name: &str, words: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let words: Vec<Vec<u8>> = words.map(|word| word.as_bytes().to_vec()).collect();
    let run = match words::parse(name, words) {
        Request::Print(text) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Request::Refuse(text) => {
            eprint!("{text}");
            return ExitCode::FAILURE;
        }
        Request::Run(run) => run,
    };
    let mut options = ServerOptions { standalone: true, ..ServerOptions::default() };
    if run.saves {
        options.save_points = SAVE_POINTS.map(|(seconds, changes)| SavePoint { seconds, changes }).to_vec();
    }
    let file = run.file.map(|path| std::path::absolute(&path).unwrap_or(path));
    if let Err(error) = config::read(&mut options, file.as_deref(), &run.lines) {
        match error {
            config::FileError::Line { .. } => eprint!("{error}"),
            config::FileError::Open(..) => Log::to_stdout().say(Level::Warning, &error.to_string()),
        }
        return ExitCode::FAILURE;
    }
    if let Err(error) = sluicegate_store::commands::rename(&options.renamed).and_then(|()| check_users(&options)) {
        eprint!("{error}");
        return ExitCode::FAILURE;
    }
    match start(options, file.as_deref(), run.is_told) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a store. Errors found so far are already in the log; the caller must report the returned one.
fn start(mut options: ServerOptions, file: Option<&Path>, is_told: bool) -> Result<ExitCode, String> {
    let process = options.process.clone();
    if !options.dir.is_empty() {
        let path = path_of(&options.dir);
        std::env::set_current_dir(&path)
            .map_err(|error| format!("Can't chdir to '{}': {}", path.display(), reason(&error)))?;
    }
    // CONFIG GET dir shows the working directory of the process.
    if let Ok(directory) = std::env::current_dir() {
        options.dir = directory.as_os_str().as_bytes().to_vec();
    }
    let log = Log::open(&process.logfile, process.loglevel)
        .map_err(|error| format!("Can't open the log file: {}", reason(&error)))?;
    let log = Arc::new(log);
    crate::shape::try_priorities();
    let supervised = supervised(process.supervised);
    let mut waiting = None;
    if process.daemonize && supervised.is_none() {
        match background::enter().map_err(|error| format!("Can't go to the background: {}", reason(&error)))? {
            Background::Command(code) => return Ok(code),
            Background::Daemon(command, null) => waiting = Some((command, null)),
        }
    }
    // As in Redis, the store survives the end of its terminal.
    // SAFETY: takes numbers only; the process has one thread.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    let workers = match process.threads {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get()),
        count => count as usize,
    };
    log.say(Level::Warning, "oO0OoO0OoO0Oo Redis is starting oO0OoO0OoO0Oo");
    log.say(
        Level::Warning,
        &format!(
            "Redis version={REDIS_VERSION}, bits=64, commit=00000000, modified=0, pid={}, just started (Sluicegate \
             {SLUICEGATE_VERSION})",
            std::process::id()
        ),
    );
    log.say(Level::Warning, if is_told { "Configuration loaded" } else { words::NO_FILE });
    let fail = |message: String| {
        log.say(Level::Warning, &message);
        Ok(ExitCode::FAILURE)
    };
    for warning in descriptors(&mut options, workers) {
        log.say(Level::Warning, &warning);
    }
    let tls = (options.process.tls.port != 0).then(|| TlsPort::new(&options.process.tls)).transpose();
    let tls = match tls.and_then(|tls| check_link(&options.process.tls).map(|()| tls)) {
        Ok(tls) => tls,
        Err(message) => {
            log.say(Level::Warning, &message);
            return fail("Failed to configure TLS. Check logs for more info.".into());
        }
    };
    let sockets = match listen::listen(&options.process, workers, &log) {
        Ok(sockets) => sockets,
        Err(message) => return fail(message),
    };
    log.say(
        Level::Notice,
        &format!("Running mode=standalone, port={}.", sockets.port.or(sockets.tls_port).unwrap_or(0)),
    );
    if let Some(warning) = sockets.public.and_then(|address| options.public_bind_warning(address)) {
        log.say(Level::Warning, &format!("WARNING: {warning}"));
    }
    let pidfile = match (&options.process.pidfile[..], waiting.is_some()) {
        (b"", false) => None,
        (b"", true) => Some(PathBuf::from(PIDFILE)),
        (path, _) => Some(path_of(path)),
    };
    if let Some(path) = &pidfile
        && let Err(error) = write_pidfile(path)
    {
        // As in Redis, the store starts without a PID file.
        log.say(Level::Warning, &format!("Failed to write PID file {}: {}", path.display(), reason(&error)));
    }
    let store = Store::new(StoreOptions { databases: options.databases, ..StoreOptions::default() });
    let unixsocket = options.process.unixsocket.clone();
    let server = Server::new(store.clone(), options);
    if let Some(tls) = tls {
        server.set_tls(tls);
    }
    if let Some(file) = &file {
        server.set_config_file(&file.display().to_string());
    }
    let (server_log, of_server) = (log.clone(), Arc::downgrade(&server));
    server.set_log(move |level, text| {
        let options = of_server.upgrade().map(|server| server.options());
        server_log.say_at_run_time(level, options.as_ref().map_or("notice", |options| options.process.loglevel), text);
    });
    let [port, tls_port] = [sockets.port, sockets.tls_port].map(|port| port.unwrap_or(0).into());
    server.will_listen_on(port, tls_port);
    log.say(Level::Warning, "Server initialized");
    if let Err(message) = server.load_users() {
        return fail(message);
    }
    let ended = match server.begin() {
        Ok(beginning) => serve(&log, &store, &server, (sockets, beginning), waiting, supervised),
        Err(text) => {
            log.say(Level::Warning, &text);
            Err(Ended::Unloaded)
        }
    };
    if let Some(path) = &pidfile {
        log.say(Level::Notice, "Removing the pid file.");
        let _ = std::fs::remove_file(path);
    }
    if !unixsocket.is_empty() {
        log.say(Level::Notice, "Removing the unix socket file.");
        let _ = std::fs::remove_file(path_of(&unixsocket));
    }
    match ended {
        Ok(()) => {
            log.say(Level::Warning, "Redis is now ready to exit, bye bye...");
            Ok(ExitCode::SUCCESS)
        }
        Err(Ended::Unloaded) => fail("Fatal error loading the DB, check server logs. Exiting.".into()),
        Err(Ended::Failed(error)) => fail(format!("Fatal error, the store can't serve: {}", reason(&error))),
    }
}

/// The end of a store that could not serve.
enum Ended {
    /// Its file cannot be loaded, as the log says.
    Unloaded,
    Failed(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended::Failed(error)
    }
}

/// Ends the process at a second signal.
fn insist(log: &Log) -> ! {
    log.say(Level::Warning, "You insist... exiting now.");
    std::process::exit(1);
}

/// Runs from the start of the workers to the end of the process.
fn serve(
    log: &Arc<Log>,
    store: &Store,
    server: &Arc<Server>,
    (sockets, beginning): (listen::Sockets, Option<Beginning>),
    waiting: Option<(Waiting, std::fs::File)>,
    supervised: Option<Notifier>,
) -> Result<(), Ended> {
    let runtime = tokio::runtime::LocalRuntime::new()?;
    runtime.block_on(async {
        // Signals are caught before there is anything to stop, so that an early one is not lost.
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let ticking = store.clone();
        tokio::task::spawn_local(async move {
            let mut interval = tokio::time::interval(STORE_TICK);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                interval.tick().await;
                ticking.tick();
            }
        });
        let (port, tls_port, has_unix) = (sockets.port, sockets.tls_port, sockets.has_unix);
        let (workers, senders) = work(server, sockets.of_workers)?;
        listen_anew(server, senders, log);
        // As in Redis, a command that starts a store in the background does not wait for its data set.
        if let Some((command, null)) = waiting {
            background::silence(&null)?;
            command.release();
        }
        if let Some(beginning) = beginning {
            let mut loaded = load(beginning)?;
            loop {
                if let Some(manager) = &supervised {
                    manager.send(&format!(
                        "STATUS=Loading the dataset: {:.0}%\nEXTEND_TIMEOUT_USEC={}\n",
                        server.loaded_percent(),
                        (5 * LOADING_TOLD).as_micros()
                    ));
                }
                tokio::select! {
                    ended = &mut loaded => match ended {
                        Ok(Ok(())) => break,
                        _ => return Err(Ended::Unloaded),
                    },
                    () = tokio::time::sleep(LOADING_TOLD) => {}
                    _ = terminate.recv() => {
                        stopped_while_loading(log);
                        return Ok(());
                    }
                    _ = interrupt.recv() => {
                        stopped_while_loading(log);
                        return Ok(());
                    }
                    () = server.shutdown_asked() => {
                        log.say(Level::Warning, "User requested shutdown...");
                        return Ok(());
                    }
                }
            }
        }
        if port.is_some() {
            log.say(Level::Notice, "Ready to accept connections tcp");
        }
        if tls_port.is_some() {
            log.say(Level::Notice, "Ready to accept connections tls");
        }
        if has_unix {
            log.say(Level::Notice, "Ready to accept connections unix");
        }
        if let Some(manager) = &supervised {
            manager.send("READY=1\nSTATUS=Ready to accept connections\n");
        }
        loop {
            let (name, how) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", server.options().process.shutdown_on_sigterm.clone()),
                _ = interrupt.recv() => ("SIGINT", server.options().process.shutdown_on_sigint.clone()),
                // The command has saved the store.
                () = server.shutdown_asked() => break,
            };
            log.say(Level::Warning, &format!("Received {name} scheduling shutdown..."));
            tokio::select! {
                may_end = server.save_at_end(Ending::of(&how)) => if may_end { break },
                // A second signal ends the process immediately.
                _ = terminate.recv() => insist(log),
                _ = interrupt.recv() => insist(log),
            }
        }
        if let Some(manager) = &supervised {
            manager.send("STOPPING=1\n");
        }
        server.stop();
        server.close_clients();
        let join = tokio::task::spawn_blocking(move || workers.into_iter().for_each(|worker| drop(worker.join())));
        tokio::select! {
            _ = join => {}
            // A second signal ends the wait immediately.
            _ = terminate.recv() => insist(log),
            _ = interrupt.recv() => insist(log),
            () = tokio::time::sleep(LAST_MOMENT) => {}
        }
        match store.sync_at_end() {
            None => {}
            Some(Ok(())) => log.say(Level::Notice, "Calling fsync() on the AOF file."),
            Some(Err(error)) => {
                log.say(Level::Warning, &format!("Fail to fsync the AOF file: {}.", reason(&error)));
            }
        }
        Ok(())
    })
}

/// Loads the file that the store begins with, on a thread of its own, which the end of the process does not wait for.
fn load(beginning: Beginning) -> io::Result<oneshot::Receiver<Result<(), String>>> {
    let (sender, loaded) = oneshot::channel();
    std::thread::Builder::new().name("load".into()).spawn(move || {
        // The process may have ended meanwhile.
        let _ = sender.send(beginning.load());
    })?;
    Ok(loaded)
}

fn stopped_while_loading(log: &Log) {
    log.say(Level::Warning, "Received shutdown signal during loading, scheduling shutdown.");
    log.say(Level::Warning, "User requested shutdown...");
}

/// The channel through which a worker receives further sockets.
type Sockets = UnboundedSender<(Generation, listen::Listening)>;

/// Starts the workers; each serves sockets of its own.
fn work(server: &Arc<Server>, sockets: Vec<Vec<listen::Listening>>) -> io::Result<(Vec<JoinHandle<()>>, Vec<Sockets>)> {
    let start = |(index, sockets): (usize, Vec<listen::Listening>)| {
        // Read here and not in the thread, which may start only after clients have changed the port.
        let (server, generation) = (server.clone(), server.generation());
        let (sender, more) = unbounded_channel();
        let worker = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            sluicegate_script::short_turns();
            let served = tokio::runtime::LocalRuntime::new()
                .map(|runtime| runtime.block_on(serve_sockets(server, generation, sockets, more)));
            if let Err(error) = served {
                eprintln!("error: a worker can't start: {error}");
            }
        })?;
        Ok::<_, io::Error>((worker, sender))
    };
    sockets.into_iter().enumerate().map(start).collect()
}

/// Serves a worker's sockets, including those that arrive later, until the server is stopped.
async fn serve_sockets(
    server: Arc<Server>,
    generation: Generation,
    sockets: Vec<listen::Listening>,
    mut more: UnboundedReceiver<(Generation, listen::Listening)>,
) {
    let mut tasks = JoinSet::new();
    let serve = async |server: Arc<Server>, generation: Generation, listening: listen::Listening| {
        let tls = server.tls().filter(|_| listening.has_tls);
        if listening.has_tls && tls.is_none() {
            return Err(io::Error::other("tls-port has no certificate"));
        }
        serve_store(server, generation, listening.socket, tls).await
    };
    for listening in sockets {
        tasks.spawn_local(serve(server.clone(), generation.clone(), listening));
    }
    loop {
        tokio::select! {
            Some((generation, listening)) = more.recv() => {
                tasks.spawn_local(serve(server.clone(), generation, listening));
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                if let Ok(Err(error)) = ended {
                    eprintln!("error: a listener stopped: {error}");
                }
            }
            () = server.stopped(), if tasks.is_empty() => return,
        }
    }
}

/// Lets `CONFIG SET` change the addresses.
fn listen_anew(server: &Arc<Server>, senders: Vec<Sockets>, log: &Arc<Log>) {
    let (of_server, log) = (Arc::downgrade(server), log.clone());
    server.set_relisten(move |process| {
        let Some(server) = of_server.upgrade() else { return Err(io::ErrorKind::NotConnected.into()) };
        let [port, tls_port] = server.listens_on();
        let is_new = [port != process.port, tls_port != process.tls.port];
        let sockets = listen::tcp_again(process, senders.len(), is_new, &log).map_err(io::Error::other)?;
        let senders = senders.clone();
        Ok(Box::new(move || {
            let generation = server.generation();
            for (sender, sockets) in senders.iter().zip(sockets) {
                // A worker that has ended serves no clients any more.
                sockets.into_iter().for_each(|socket| drop(sender.send((generation.clone(), socket))));
            }
        }))
    });
}

/// Raises the limit of descriptors to the number that `maxclients` needs. If that is not possible, lowers `maxclients`,
/// with Redis's messages.
fn descriptors(options: &mut ServerOptions, workers: usize) -> Vec<String> {
    // Each worker has its listeners and its runtime.
    let reserved = DESCRIPTORS + 8 * workers as u64;
    let wanted = u64::from(options.maxclients) + reserved;
    let Ok((soft, hard)) = crate::descriptors::limits() else { return Vec::new() };
    if soft >= wanted || crate::descriptors::set(wanted, hard.max(soft)).is_ok() {
        return Vec::new();
    }
    let limit = if crate::descriptors::set(hard, hard).is_ok() { hard } else { soft };
    let asked = options.maxclients;
    options.maxclients = u32::try_from(limit.saturating_sub(reserved)).unwrap_or(u32::MAX).max(1);
    vec![
        format!("You requested maxclients of {asked} requiring at least {wanted} max file descriptors."),
        format!(
            "Current maximum open files is {limit}. maxclients has been reduced to {} to compensate for low ulimit. If \
             you need higher maxclients increase 'ulimit -n'.",
            options.maxclients
        ),
    ]
}

/// Returns the notifier of the service manager. `auto` detects a manager; without one there is no notification.
fn supervised(mode: &str) -> Option<Notifier> {
    match mode {
        "systemd" | "auto" => Notifier::from_environment().ok().flatten(),
        _ => None,
    }
}

fn write_pidfile(path: &Path) -> io::Result<()> {
    use std::io::Write as _;
    writeln!(crate::output::replace(path, crate::output::Mode::Umask)?, "{}", std::process::id())
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// Returns an error in the words of the C library.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
