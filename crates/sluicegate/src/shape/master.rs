//! The master: a privileged process with one thread, which supervises the serving process.
//!
//! It has no configuration, no script and no listening socket except its own command sockets; the worker process has
//! all others. For a reload (USR2, HUP, `reload` on its sockets) it sends an errand
//! ([`handover`](crate::handover)), a child of its own. It forwards signals, reaps the worker and exits with its
//! result, notifies the service manager, and serves the sockets of `-S`. Messages and exit codes are HAProxy's: 0 after
//! TERM and USR1, 130 after INT, the code that the worker failed with (or 128 and its signal) otherwise.
//!
//! **Invariant:** the worker is forked before the master's runtime is created, so it never inherits part of a runtime.

mod commands;
mod errand;
mod programs;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use programs::Programs;
use sluicegate_config::model::{Bind, BindAddress, Global, Program, StatsSocket};
use sluicegate_proxy::cli;
use sluicegate_proxy::listener::{self, BindError, SystemSockets};
use sluicegate_proxy::stats::info::VERSION;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::background::{Waiting, silence};
use super::notify::Notifier;
use super::pidfile::Pidfile;
use super::{Fork, Role, Shape, fork, reap};
use crate::arguments::Service;
use crate::report::Report;
use crate::signals::{self, Signals};

/// The maximum number of commands that may wait for a reload.
const ASKED: usize = 16;

/// The byte that the worker writes to the master once it serves.
pub const READY: u8 = b'R';

/// The byte that the worker writes each time it serves another configuration.
pub const RELOADED: u8 = b'L';

/// Reads the programs of a service's files; `None` if they cannot be read.
pub type ReadPrograms = fn(&Service) -> Option<Vec<Program>>;

/// The resources that the master takes over.
pub struct Start {
    /// The foreground process that waits for a master in the background.
    pub waiting: Option<Waiting>,
    /// `/dev/null`, for a master in the background.
    pub null: Option<File>,
    /// Whether to notify the service manager.
    pub notify: bool,
    /// Written by the worker process, once its sockets are bound.
    pub pidfile: Option<Pidfile>,
    /// Started before the worker.
    pub programs: Vec<Program>,
    /// Reads those of the files after a reload.
    pub read_programs: ReadPrograms,
    /// The receiver of the master's messages.
    pub report: Report,
}

/// Forks the worker, which continues; the master gets the resources for supervising it.
pub fn start(service: &Service, global: &Global, start: Start) -> io::Result<Role> {
    let Start { waiting, null, notify, pidfile, programs, read_programs, report } = start;
    let notifier = if notify { Notifier::from_environment()? } else { None };
    let sockets = bind(&service.master_sockets)?;
    let (ours, theirs) = UnixStream::pair()?;
    let begun = Instant::now();
    // A signal between here and the master's handlers would end it and leave the worker.
    signals::hold_ending();
    let programs = Arc::new(Mutex::new(Programs::start(programs, report)));
    match fork()? {
        Fork::Child => {
            signals::release_ending();
            // The command waits for the master, not for this process.
            drop((ours, sockets, waiting, notifier, programs));
            Ok(Role::Serving(Shape { waiting: None, null, master: Some(theirs), pidfile }))
        }
        Fork::Parent(worker) => {
            drop(theirs);
            let of_worker = global.stats_sockets.iter().map(|socket| &socket.address);
            let of_master = service.master_sockets.iter().map(|socket| &socket.address);
            let files = of_worker.chain(of_master).filter_map(|address| match address {
                BindAddress::Unix(path) => Some(path.clone()),
                _ => None,
            });
            let master = Master {
                worker,
                begun,
                exit_on_failure: !global.no_exit_on_failure,
                notifier,
                waiting,
                null,
                files: files.collect(),
                programs,
                read_programs,
                service: service.clone(),
                ready: false,
                worker_ended: false,
                code: 0,
                report,
            };
            Ok(Role::Watching(Box::new(Watch { master, channel: ours, sockets })))
        }
    }
}

/// Binds the sockets of `-S`. The error lists every address that cannot be bound.
fn bind(sockets: &[StatsSocket]) -> io::Result<Vec<cli::Socket>> {
    let mut bound = Vec::new();
    let mut errors = Vec::new();
    for socket in sockets {
        let bind = Bind::of_stats_socket(socket);
        match listener::listen(&bind, &socket.address, 1, &SystemSockets) {
            Ok(made) => {
                bound.extend(made.into_iter().map(|listener: OwnedFd| cli::Socket {
                    listener: Arc::new(listener),
                    clients: cli::SocketClients { exposes: false, ..cli::SocketClients::of(socket) },
                    tls: None,
                }));
            }
            Err(error) => errors.push(BindError::new(&bind, "MASTER", &socket.address, error).to_string()),
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(io::Error::other(errors.join("\n"))) }
}

/// A master that does not supervise yet, so that resources which it does not need can be dropped first.
pub struct Watch {
    master: Master,
    channel: UnixStream,
    sockets: Vec<cli::Socket>,
}

impl Watch {
    /// Supervises until all processes have ended; returns the exit code.
    pub fn run(self) -> io::Result<ExitCode> {
        self.master.run(self.channel, self.sockets).map(ExitCode::from)
    }
}

/// The state of the master.
struct Master {
    worker: i32,
    begun: Instant,
    /// Whether a message reports that a worker's failure ends everything. It always does, because there is one worker.
    exit_on_failure: bool,
    notifier: Option<Notifier>,
    waiting: Option<Waiting>,
    null: Option<File>,
    /// The unix sockets that remain when all processes have ended.
    files: Vec<PathBuf>,
    programs: Arc<Mutex<Programs>>,
    /// Reads those of the files after a reload.
    read_programs: ReadPrograms,
    service: Service,
    /// Whether the worker has served.
    ready: bool,
    worker_ended: bool,
    /// The first exit code that is not one of a stop.
    code: i32,
    report: Report,
}

impl Master {
    /// Supervises until the worker has ended; returns the exit code.
    fn run(mut self, channel: UnixStream, sockets: Vec<cli::Socket>) -> io::Result<u8> {
        self.report.notice(&format!("New worker ({}) forked", self.worker));
        let runtime = tokio::runtime::LocalRuntime::new()?;
        let code = runtime.block_on(self.watch(channel, sockets))?;
        // The command sockets are closed with it.
        drop(runtime);
        self.files.iter().for_each(|path| sluicegate_transport::remove_stale(path));
        Ok(code)
    }

    async fn watch(&mut self, channel: UnixStream, sockets: Vec<cli::Socket>) -> io::Result<u8> {
        let mut caught = Signals::catch()?;
        let mut child = signal(SignalKind::child())?;
        signals::release_ending();
        channel.set_nonblocking(true)?;
        let (ask, mut asked) = mpsc::channel(ASKED);
        let to_worker = channel.try_clone()?;
        let commands =
            Arc::new(commands::Master::new((self.worker, self.begun), self.programs.clone(), to_worker, ask));
        let mut channel = tokio::net::UnixStream::from_std(channel)?;
        tokio::task::spawn_local(cli::serve_commands(sockets, cli::Serving::master(self.begun), commands.clone()));
        let mut channel_open = true;
        // The reload in progress, and the clients that wait for its end.
        let (ended, mut errands) = mpsc::channel::<errand::Ended>(1);
        let mut waiting: Option<Vec<errand::Answer>> = None;
        let mut again: Option<Vec<errand::Answer>> = None;
        loop {
            // A process that ended before its end could be heard of.
            if self.reap_all()? {
                return Ok(self.exit_code());
            }
            let mut byte = [0];
            tokio::select! {
                _ = child.recv() => {}
                signal = caught.next() => match signal {
                    libc::SIGUSR2 | libc::SIGHUP => again = Some(again.take().unwrap_or_default()),
                    signal => self.signal(signal),
                },
                Some(answer) = asked.recv() => again.get_or_insert_default().push(answer),
                Some(end) = errands.recv() => {
                    commands.count(end.succeeded);
                    self.reloaded(&end);
                    let answer = end.answer();
                    // The requester may have disconnected.
                    waiting.take().into_iter().flatten().for_each(|asker| drop(asker.send(answer.clone())));
                }
                count = channel.read(&mut byte), if channel_open => match (count, byte[0]) {
                    (Ok(1), READY) => self.ready()?,
                    (Ok(1), _) => {
                        commands.served_anew();
                        if let Some(programs) = (self.read_programs)(&self.service) {
                            self.programs.lock().renew(programs);
                        }
                    }
                    // Without the byte the worker is ending, and the signal of its end is on its way.
                    _ => channel_open = false,
                },
            }
            if waiting.is_none()
                && let Some(askers) = again.take()
            {
                waiting = Some(askers);
                self.report.notice("Reloading HAProxy");
                self.notify(&format!(
                    "RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=Reloading Configuration.\n",
                    monotonic_us()
                ));
                tokio::task::spawn_local(errand::run(std::process::id(), ended.clone()));
            }
        }
    }

    /// Notifies the service manager.
    fn notify(&self, state: &str) {
        if let Some(notifier) = &self.notifier {
            notifier.send(state);
        }
    }

    /// Called when a reload has ended.
    fn reloaded(&self, end: &errand::Ended) {
        if end.succeeded {
            self.notify(&format!("READY=1\nMAINPID={}\nSTATUS=Ready.\n", std::process::id()));
        } else {
            self.report.warning("Loading failure!");
            self.notify("READY=1\nSTATUS=Reload failed!\n");
        }
    }

    /// Called when the worker serves.
    fn ready(&mut self) -> io::Result<()> {
        self.ready = true;
        self.report.notice("Loading success.");
        if let Some(notifier) = &self.notifier {
            notifier.send(&format!("READY=1\nMAINPID={}\nSTATUS=Ready.\n", std::process::id()));
        }
        if let Some(null) = self.null.take() {
            silence(&null)?;
        }
        if let Some(waiting) = self.waiting.take() {
            waiting.release();
        }
        Ok(())
    }

    fn signal(&self, signal: i32) {
        match signal {
            libc::SIGTERM | libc::SIGINT | libc::SIGUSR1 => {
                self.report.warning("Exiting Master process...");
                if let Some(notifier) = &self.notifier {
                    notifier.send("STOPPING=1\nSTATUS=Stopping.\n");
                }
            }
            _ => {}
        }
        self.kill(signal);
        self.programs.lock().kill(signal);
    }

    /// Sends a signal to the worker, if it has not ended.
    fn kill(&self, signal: i32) {
        if !self.worker_ended {
            // SAFETY: takes numbers; the worker has not been reaped, so the number is still its own.
            unsafe { libc::kill(self.worker, signal) };
        }
    }

    /// Collects processes that have ended; returns whether none is left.
    fn reap_all(&mut self) -> io::Result<bool> {
        let ended = self.programs.lock().reap();
        for programs::Ended { name, pid, code, leaving } in ended {
            let word = word_of(code);
            if leaving {
                self.report.warning(&format!("Former program '{name}' ({pid}) exited with code {code} ({word})"));
            } else {
                self.report.error(&format!("Current program '{name}' ({pid}) exited with code {code} ({word})"));
                self.ended(code);
            }
        }
        if !self.worker_ended
            && let Some(code) = reap(self.worker, false)?
        {
            self.worker_ended = true;
            let (worker, word) = (self.worker, word_of(code));
            let message = format!("Current worker ({worker}) exited with code {code} ({word})");
            if code < 128 {
                self.report.warning(&message)
            } else {
                self.report.error(&message)
            }
            self.ended(code);
            if !self.ready {
                self.programs.lock().kill(libc::SIGTERM);
            }
        }
        Ok(self.worker_ended && self.programs.lock().is_empty())
    }

    /// Called when a current process has ended with this code.
    fn ended(&mut self, code: i32) {
        let asked_for = [0, 128 + libc::SIGTERM, 128 + libc::SIGINT].contains(&code);
        if !asked_for && self.exit_on_failure {
            self.report.error("exit-on-failure: killing every processes with SIGTERM");
            self.kill(libc::SIGTERM);
            self.programs.lock().kill(libc::SIGTERM);
        }
        if self.code == 0 && code != 128 + libc::SIGTERM {
            self.code = code;
        }
    }

    /// Called when all have ended; returns the master's exit code.
    fn exit_code(&self) -> u8 {
        self.report.warning(&format!("All workers exited. Exiting... ({})", self.code));
        u8::try_from(self.code).unwrap_or(1)
    }
}

/// Returns what an exit code is called: that of a signal by its name.
fn word_of(code: i32) -> String {
    if code < 128 { "Exit".to_owned() } else { signal_word(code - 128) }
}

/// Returns the microseconds of the clock that a service manager compares with its own.
fn monotonic_us() -> u128 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u128::from(time.tv_sec.unsigned_abs()) * 1_000_000 + u128::from(time.tv_nsec.unsigned_abs()) / 1_000
}

/// Returns the system's word for a signal.
fn signal_word(signal: i32) -> String {
    // SAFETY: `strsignal` gives a C string that is valid until its next call; it is copied at once, and the master has
    // one thread.
    let word = unsafe {
        let word = libc::strsignal(signal);
        (!word.is_null()).then(|| std::ffi::CStr::from_ptr(word).to_string_lossy().into_owned())
    };
    word.unwrap_or_else(|| format!("signal {signal}"))
}

/// Returns the version column and `show version`.
fn version() -> &'static str {
    VERSION
}
