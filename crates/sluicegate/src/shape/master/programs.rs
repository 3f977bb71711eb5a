//! Programs that run beside the worker (`program` sections).
//!
//! They are started before the worker, end with it, and are started again after a reload. A program that fails ends
//! everything, as a worker does.

use std::fmt::Write as _;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::Instant;

use sluicegate_config::model::Program;
use sluicegate_proxy::listener;

use crate::report::Report;
use crate::shape::privileges::reason;
use crate::signals;

/// A program that was started.
struct Running {
    program: Program,
    /// `Err`: it could not be executed, which counts as its end.
    child: Result<Child, ()>,
    begun: Instant,
    /// Reloads that it has outlived.
    reloads: u32,
    /// Whether a reload has ended it.
    leaving: bool,
}

/// The programs of a master.
pub struct Programs {
    running: Vec<Running>,
    report: Report,
}

/// A program's end.
pub struct Ended {
    pub name: String,
    pub pid: u32,
    /// The exit code, or 128 and a signal.
    pub code: i32,
    pub leaving: bool,
}

impl Programs {
    /// Starts programs.
    pub fn start(list: Vec<Program>, report: Report) -> Programs {
        let mut programs = Programs { running: Vec::new(), report };
        list.into_iter().for_each(|program| programs.launch(program));
        programs
    }

    fn launch(&mut self, program: Program) {
        let child = match spawn(&program) {
            Ok(child) => {
                self.report.notice(&format!("New program '{}' ({}) forked", program.name, child.id()));
                Ok(child)
            }
            Err(error) => {
                let command = program.command.first().map_or("", String::as_str);
                self.report.error(&format!("Cannot execute {command}: {}", reason(&error)));
                Err(())
            }
        };
        self.running.push(Running { program, child, begun: Instant::now(), reloads: 0, leaving: false });
    }

    /// Ends the programs of before a reload, and starts those of the files.
    pub fn renew(&mut self, list: Vec<Program>) {
        for running in &mut self.running {
            running.reloads += 1;
            let stays = |new: &Program| !new.start_on_reload && new.name == running.program.name;
            running.leaving = running.leaving || !list.iter().any(stays);
        }
        self.signal(libc::SIGUSR1, |running| running.leaving);
        list.into_iter().filter(|program| program.start_on_reload).for_each(|program| self.launch(program));
    }

    /// Sends a signal to all of them.
    pub fn kill(&self, signal: i32) {
        self.signal(signal, |_| true);
    }

    fn signal(&self, signal: i32, wanted: impl Fn(&Running) -> bool) {
        for child in
            self.running.iter().filter(|running| wanted(running)).filter_map(|running| running.child.as_ref().ok())
        {
            // SAFETY: takes numbers; the child has not been waited for, so the number is still its own.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    /// Returns the programs that have ended.
    pub fn reap(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        self.running.retain_mut(|running| {
            let (pid, code) = match &mut running.child {
                Err(()) => (0, 1),
                Ok(child) => match child.try_wait() {
                    Ok(None) => return true,
                    Ok(Some(status)) => {
                        (child.id(), status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(255))
                    }
                    // Another part of the process has waited for it, which none does.
                    Err(_) => (child.id(), 255),
                },
            };
            ended.push(Ended { name: running.program.name.to_string(), pid, code, leaving: running.leaving });
            false
        });
        ended
    }

    /// Returns whether none is left.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Appends the lines of `show proc`.
    pub fn show(&self, out: &mut String) {
        for (leaving, title) in [(false, "# programs\n"), (true, "# old programs\n")] {
            let mut some = false;
            for running in self.running.iter().filter(|running| running.leaving == leaving) {
                let Ok(child) = &running.child else { continue };
                if !std::mem::replace(&mut some, true) {
                    out.push_str(title);
                }
                let (name, reloads, up) =
                    (&running.program.name, running.reloads, super::commands::uptime(running.begun));
                // Writing to a string can't fail.
                let _ = writeln!(out, "{:<16}{name:<16}{reloads:<16}{up:<16}{:<15}", child.id(), "-");
            }
        }
    }
}

/// Starts a program as its user. A fork is safe, since the master has one thread; the signals that the master blocks
/// while it starts are unblocked.
fn spawn(program: &Program) -> io::Result<Child> {
    let [name, arguments @ ..] = &*program.command else { return Err(io::ErrorKind::NotFound.into()) };
    let group = program.group.as_deref().map(listener::group_id).transpose()?;
    let user = program.user.as_deref().map(listener::user_id).transpose()?;
    let mut command = Command::new(name);
    command.args(arguments);
    let prepare = move || {
        signals::release_held();
        become_user(user, group)
    };
    // SAFETY: the function makes system calls only.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Changes the group, without supplementary groups, and the user of this process.
fn become_user(user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let done = |result: i32| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    if let Some(group) = group {
        // SAFETY: reads no group, as the count is 0. A process without privileges keeps its groups.
        unsafe { libc::setgroups(0, std::ptr::null()) };
        // SAFETY: takes a number.
        done(unsafe { libc::setgid(group) })?;
    }
    // SAFETY: takes a number.
    user.map_or(Ok(()), |user| done(unsafe { libc::setuid(user) }))
}
