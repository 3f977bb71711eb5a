//! `-sf` and `-st`: a start that replaces running processes.
//!
//! `-sf` with a service of this very program is a reload: the service continues with the configuration of this
//! command line. The command ends at once if it was to run in the background; otherwise it stands in for the service,
//! which has another process ID: it forwards signals and ends when the service does. Every other process is asked to
//! end once this one has its sockets: `-sf` gracefully (USR1), `-st` at once (TERM).

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use sluicegate_proxy::listener::{ReplacingSockets, Sockets, SystemSockets};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::errand::{self, Origin, rehearse};
use crate::arguments::{Mode, Service};
use crate::report::Report;
use crate::shape::notify::Notifier;
use crate::shape::pidfile::Pidfile;
use crate::signals::{self, Signals, end_by};

/// The number of attempts, and their interval, to bind an address that the previous process has just released.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Passes the configuration to a service named by `-sf`; returns `None` if there is none that runs this program, and the
/// start continues normally.
pub fn hand_over(service: &Service, origin: &Origin, report: Report) -> Option<ExitCode> {
    let mut found = service.finish.iter().find_map(|pid| match errand::find(*pid) {
        Ok(found) => found.map(|found| (*pid, found)),
        Err(error) => {
            report.warning(&error.to_string());
            None
        }
    });
    let (pid, found) = found.as_mut()?;
    if !matches!(found.is_same_program(), Ok(true)) {
        // Another version: it is replaced.
        return None;
    }
    let pid = *pid;
    let Ok(rehearsed) = rehearse(service, origin.clone(), found, report) else { return Some(ExitCode::FAILURE) };
    if let Err(message) = found.hand_over(&rehearsed, report) {
        message.lines().for_each(|line| report.error(line));
        return Some(ExitCode::FAILURE);
    }
    // From here on, signals that would end this process are forwarded to the service.
    signals::hold_ending();
    report.notice(&format!("Process {pid} goes on with this configuration."));
    let mode = service.mode(rehearsed.global());
    let ended = match mode {
        Mode::Foreground => stand_in(pid, None),
        Mode::Daemon | Mode::MasterWorker { .. } => {
            let path = service.pidfile.clone().or_else(|| rehearsed.global().pidfile.clone());
            let written = path.map_or(Ok(()), |path| Pidfile { path, at: None, pid }.write());
            match (written, mode) {
                (Err(error), _) => Err(io::Error::other(error)),
                (Ok(()), Mode::MasterWorker { daemon: false, notify }) => stand_in(pid, Some(notify)),
                (Ok(()), _) => Ok(None),
            }
        }
    };
    Some(match ended {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => end_by(signal),
        Err(error) => {
            report.error(&error.to_string());
            ExitCode::FAILURE
        }
    })
}

/// Runs as long as the service does, and forwards signals to it. `master` is set if this process should look like a
/// master; it says whether the service manager is notified. Returns the signal with which this process should end.
fn stand_in(pid: u32, master: Option<bool>) -> io::Result<Option<i32>> {
    let number = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    let notifier = if master == Some(true) { Notifier::from_environment()? } else { None };
    let runtime = tokio::runtime::LocalRuntime::new()?;
    runtime.block_on(async {
        let mut signals = Signals::catch()?;
        signals::release_ending();
        let process = match pidfd_open(number, PidfdFlags::NONBLOCK) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            process => process?,
        };
        // SAFETY: an `OwnedFd` keeps its descriptor open and the same until it is dropped, which the `AsyncFd` does
        // last.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
        if let Some(notifier) = &notifier {
            notifier.send(&format!("READY=1\nMAINPID={pid}\nSTATUS=Ready.\n"));
        }
        let mut ending = None;
        loop {
            tokio::select! {
                _ = process.readable() => return Ok(ending.filter(|_| master.is_none())),
                signal = signals.next() => {
                    signals::send(pid, signal);
                    if [libc::SIGTERM, libc::SIGINT].contains(&signal) {
                        ending = Some(signal);
                    }
                }
            }
        }
    })
}

/// The processes that must end once this process has its sockets.
#[derive(Clone, Debug, Default)]
pub struct Retiring {
    softly: Vec<u32>,
    at_once: Vec<u32>,
}

impl Retiring {
    /// Reads the processes from the command line.
    pub fn new(service: &Service) -> Retiring {
        Retiring { softly: service.finish.clone(), at_once: service.terminate.clone() }
    }

    /// Returns whether there are any.
    pub fn retires(&self) -> bool {
        self.all().next().is_some()
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        self.softly.iter().chain(&self.at_once).copied()
    }

    /// Returns how sockets are created: a unix socket in use is replaced, and a store's port is shared with the
    /// replaced process until that process ends.
    pub fn sockets(&self) -> &'static dyn Sockets {
        let lives = |pid: u32| {
            let number = Pid::from_raw(pid as i32).filter(|_| pid != 0);
            number.is_some_and(|number| test_kill_process(number) != Err(rustix::io::Errno::SRCH))
        };
        match self.all().next() {
            None => &SystemSockets,
            Some(_) if self.all().any(lives) => &ReplacingSockets { shares: true },
            Some(_) => &ReplacingSockets { shares: false },
        }
    }

    /// Tries to bind; if an address is taken, the retiring processes are asked to release it (TTOU), for a second at
    /// most. If that does not help they are asked to listen again (TTIN).
    pub fn bind<T, E>(&self, mut bind: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        let mut result = bind();
        if result.is_ok() || self.all().next().is_none() {
            return result;
        }
        self.all().for_each(|pid| signals::send(pid, libc::SIGTTOU));
        for _ in 0..TRIES {
            std::thread::sleep(PAUSE);
            result = bind();
            if result.is_ok() {
                return result;
            }
        }
        self.all().for_each(|pid| signals::send(pid, libc::SIGTTIN));
        result
    }

    /// Ends the retiring processes, because this process has everything it needs.
    pub fn retire(&self) {
        self.softly.iter().for_each(|pid| signals::send(*pid, libc::SIGUSR1));
        self.at_once.iter().for_each(|pid| signals::send(*pid, libc::SIGTERM));
    }
}
