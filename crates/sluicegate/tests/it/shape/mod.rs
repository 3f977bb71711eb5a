//! The shape of the processes: which are started, as which user, how they react to signals and how they end. These
//! tests need root, as the service does; without it most of them do nothing.

mod debian;
mod failures;
mod master;
mod privileges;
mod programs;
mod signals;

use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_testkit::{Listening, Program, wait_for};

use crate::BINARY;

/// Debian's program.
const HAPROXY: &str = "/usr/sbin/haproxy";

const DEFAULTS: &str =
    "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n";

/// Returns whether this process has the privileges of a service manager.
fn root() -> bool {
    // SAFETY: the call takes nothing and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// A directory with a configuration and our binary under the name `haproxy`.
struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    /// `@DIR@` in the text is the directory; it has an empty folder `jail`.
    fn new(text: &str) -> Site {
        let directory = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(BINARY, directory.path().join("haproxy")).expect("a link");
        std::fs::create_dir(directory.path().join("jail")).expect("a folder");
        let text = text.replace("@DIR@", directory.path().to_str().expect("UTF-8"));
        std::fs::write(directory.path().join("a.cfg"), text).expect("writable");
        Site { directory }
    }

    /// Returns a site with these lines in `global` and a frontend that answers 200.
    fn serving(global: &str, front: &Listening) -> Site {
        Site::new(&format!("global\n{global}{}", frontend(front)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a command of our binary, or of Debian's, for the configuration.
    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        let directory = self.directory.path().to_str().expect("UTF-8");
        command.args(["-f", "a.cfg"]).args(words.iter().map(|word| word.replace("@DIR@", directory)));
        command.current_dir(self.directory.path());
        command
    }

    /// Starts our binary as `haproxy`.
    fn ours(&self, words: &[&str], listening: &[&Listening]) -> Program {
        Program::start(self.command(&self.path("haproxy"), words), &fds(listening))
    }

    /// Starts Debian's haproxy.
    fn theirs(&self, words: &[&str], listening: &[&Listening]) -> Program {
        Program::start(self.command(Path::new(HAPROXY), words), &fds(listening))
    }

    /// Waits for a pidfile; returns its process ID.
    fn pid(&self, name: &str) -> u32 {
        let path = self.path(name);
        wait_for("the pidfile", || std::fs::read_to_string(&path).ok()?.trim().parse().ok())
    }
}

fn fds(listening: &[&Listening]) -> Vec<RawFd> {
    listening.iter().map(|one| one.fd()).collect()
}

fn frontend(front: &Listening) -> String {
    format!("{DEFAULTS}frontend f\n    bind {}\n    http-request return status 200\n", front.word())
}

/// A process that is not a child of the test, but is ended with it.
struct Stray(u32);

impl Stray {
    fn signal(&self, signal: i32) {
        // SAFETY: takes numbers; the process is looked for by number, as an operator does.
        unsafe { libc::kill(self.0 as i32, signal) };
    }

    fn is_alive(&self) -> bool {
        let state = proc_value(self.0, "status", "State");
        state.is_some_and(|state| !state.starts_with('Z'))
    }

    #[track_caller]
    fn wait(&self) {
        wait_for("its end", || (!self.is_alive()).then_some(()));
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        if self.is_alive() {
            self.signal(libc::SIGKILL);
        }
    }
}

/// Returns the value of a line in a file in `/proc/PID`.
fn proc_value(pid: u32, file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(rest.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Waits for the only child of a process; returns its process ID.
#[track_caller]
fn child(pid: u32) -> u32 {
    wait_for("a child", || {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
    })
}

/// Returns the answer of a command socket to one line; waits until the socket exists.
fn ask(path: &Path, line: &str) -> String {
    use std::io::{Read, Write};
    // Debian's haproxy may reset a connection that was made before its process has taken over the socket.
    wait_for("an answer", || {
        let mut stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(sluicegate_testkit::PATIENCE)).ok()?;
        writeln!(stream, "{line}").ok()?;
        stream.shutdown(std::net::Shutdown::Write).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    })
}
