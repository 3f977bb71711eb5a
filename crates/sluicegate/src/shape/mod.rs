//! The process model: the waiting command, the supervising master, the serving process.
//!
//! The processes are forked as soon as `global` is read, before Lua runs, before sockets are bound and before any
//! thread exists, because only the forking thread survives a fork. Only the process that will serve continues; it
//! performs all steps that may fail (scripts, names, limits, sockets, pidfile, chroot, user, threads) and then reports
//! that it is [ready](Shape::ready). The waiting processes receive this report or its exit code, so a command that
//! daemonizes returns 0 once the service runs and fails with its message otherwise.
//!
//! | mode | processes |
//! |---|---|
//! | foreground | one |
//! | daemon | the command, which waits and ends; its child, in a session of its own, serves |
//! | master-worker | a [master] that keeps its privileges and one thread; its child serves |
//! | master-worker, daemon | the command, which waits and ends; the master, in a session of its own; the worker |
//!
//! **Invariant:** [`take`] is called while the process has one thread ([`fork`] asserts it).

pub mod background;
pub mod capabilities;
mod channel;
mod master;
pub mod notify;
pub mod pidfile;
pub mod priority;
pub mod privileges;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use sluicegate_config::model::{Global, Program};
use sluicegate_proxy::cli::protocol::Rights;

use crate::arguments::{Mode, Service};
use crate::report::Report;
use background::{Background, Waiting};
pub use master::Watch;
use pidfile::Pidfile;

/// The serving process's connections to the processes around it.
#[derive(Default)]
pub struct Shape {
    /// The foreground process that waits for this process in the background.
    waiting: Option<Waiting>,
    /// `/dev/null`, to which the standard streams are redirected once there are no more messages. It is opened early,
    /// because a chroot may not contain it.
    null: Option<File>,
    /// The channel to the master, which receives `ready` through it; when the master ends, the channel is closed.
    master: Option<UnixStream>,
    /// The pidfile.
    pub pidfile: Option<Pidfile>,
}

/// The role of this process after [`take`].
pub enum Role {
    /// The process that continues and serves.
    Serving(Shape),
    /// A process that supervises it.
    Watching(Box<Watch>),
    /// A process that waited, and has nothing left to do.
    Ended(ExitCode),
}

/// Creates the processes that the command line and `global` ask for.
pub fn take(
    service: &Service,
    (global, programs, read_programs): (&Global, Vec<Program>, master::ReadPrograms),
    report: Report,
) -> io::Result<Role> {
    let mode = service.mode(global);
    let path = service.pidfile.clone().map(|path| (path, None));
    let path = path.or_else(|| Some((global.pidfile.clone()?, global.at("pidfile").cloned())));
    let pidfile = |pid| path.map(|(path, at)| Pidfile { path, at, pid });
    match mode {
        // As in HAProxy: a process in the foreground of its starter needs no pidfile.
        Mode::Foreground => Ok(Role::Serving(Shape::default())),
        Mode::Daemon => match background::enter()? {
            Background::Command(code) => Ok(Role::Ended(code)),
            Background::Daemon(waiting, null) => Ok(Role::Serving(Shape {
                waiting: Some(waiting),
                null: Some(null),
                master: None,
                pidfile: pidfile(std::process::id()),
            })),
        },
        Mode::MasterWorker { daemon, notify } => {
            let (waiting, null) = if daemon {
                match background::enter()? {
                    Background::Command(code) => return Ok(Role::Ended(code)),
                    Background::Daemon(waiting, null) => (Some(waiting), Some(null)),
                }
            } else {
                (None, None)
            };
            let pidfile = pidfile(std::process::id());
            master::start(
                service,
                global,
                master::Start { waiting, null, notify, pidfile, programs, read_programs, report },
            )
        }
    }
}

impl Shape {
    /// Called when everything that can fail at the start has succeeded: waiting processes are notified, and a daemon
    /// detaches from the terminal.
    pub fn ready(&mut self) -> io::Result<()> {
        if let Some(null) = self.null.take() {
            background::silence(&null)?;
        }
        if let Some(waiting) = self.waiting.take() {
            waiting.release();
        }
        if let Some(master) = &mut self.master {
            master.write_all(&[master::READY])?;
        }
        Ok(())
    }

    /// Returns the process id by which the service is known: that of the process that handles signals.
    pub fn known_as(&self) -> u32 {
        // SAFETY: takes nothing and can't fail.
        if self.master.is_some() { unsafe { libc::getppid() }.unsigned_abs() } else { std::process::id() }
    }

    /// Returns a separate channel to the master, for notifying it of reloads.
    pub fn master(&self) -> io::Result<Option<UnixStream>> {
        self.master.as_ref().map(UnixStream::try_clone).transpose()
    }

    /// Receives the clients that the master sends, for `serve`, until the master has ended; without a master it waits
    /// forever. Must be called inside a runtime.
    pub async fn orphaned(&self, serve: impl Fn(UnixStream, Rights)) -> io::Result<()> {
        let Some(master) = &self.master else { return std::future::pending().await };
        let master = master.try_clone()?;
        master.set_nonblocking(true)?;
        let readable = tokio::io::Interest::READABLE;
        // SAFETY: a `UnixStream` keeps its descriptor open and the same until it is dropped, which the `AsyncFd` does
        // last.
        let master = unsafe { tokio::io::unix::AsyncFd::register_with_interest(master, readable) }?;
        loop {
            let mut ready = master.readable().await?;
            match ready.try_io(|master| channel::receive(master.get_ref())) {
                Ok(Ok(Some((client, rights)))) => serve(client, rights),
                Ok(Ok(None) | Err(_)) => return Ok(()),
                Err(_would_block) => {}
            }
        }
    }
}

/// Notifies the master that another configuration is served.
pub fn reloaded(master: &mut UnixStream) {
    // A master that has ended is detected elsewhere.
    let _ = master.write_all(&[master::RELOADED]);
}

/// Prepares changes of its threads' priorities, for which this process may have the privilege now only.
///
/// Under a filter of system calls, a child tries these changes, and is killed if the filter does not want them. To be
/// called while the process has one thread.
pub fn try_priorities() {
    if sluicegate_script::is_filtered() {
        try_in_child();
    }
    sluicegate_script::let_return_from_idle();
}

/// Decides whether this process changes priorities by what happens to a child that does so.
fn try_in_child() {
    // The child ends without what else belongs to an end: the buffers of the standard streams are the parent's.
    let may = match fork() {
        Ok(Fork::Child) => {
            // A child that is killed leaves no core file.
            // SAFETY: takes and returns numbers.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
            sluicegate_script::try_priorities();
            // SAFETY: ends this process, which has one thread.
            unsafe { libc::_exit(0) }
        }
        Ok(Fork::Parent(child)) => reap(child, true).is_ok_and(|code| code == Some(0)),
        Err(_) => false,
    };
    sluicegate_script::let_change_priorities(may);
}

/// The side of a fork on which the process is.
enum Fork {
    /// The parent process, with the child's process id.
    Parent(i32),
    Child,
}

/// Forks. The child shares nothing but open descriptors.
fn fork() -> io::Result<Fork> {
    // What another thread holds at this moment (a lock, the allocator) would be held in the child for ever.
    if let Ok(threads) = std::fs::read_dir("/proc/self/task") {
        assert_eq!(threads.count(), 1, "a process forks before it has threads");
    }
    // SAFETY: the process has one thread, so the child finds every lock and the heap in a consistent state.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(child)),
    }
}

/// Returns the status of an ended process: its exit code, or 128 plus the signal that ended it.
fn status_code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Waits for the end of a child or, if `block` is false, checks whether it has ended; returns its [`status_code`].
fn reap(child: i32, block: bool) -> io::Result<Option<i32>> {
    let mut status = 0;
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: the pointer is to a live integer that the call fills.
        match unsafe { libc::waitpid(child, &raw mut status, flags) } {
            0 => return Ok(None),
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            _ => return Ok(Some(status_code(status))),
        }
    }
}

/// Redirects a descriptor to the file of another one.
fn redirect(from: &impl AsRawFd, to: i32) -> io::Result<()> {
    // SAFETY: both are numbers; `to` is one of the three standard streams, which no Rust value owns.
    if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
