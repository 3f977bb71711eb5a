//! Reloads: another configuration in the process that lives. Nothing fails meanwhile and nothing is lost.

mod certificates;
mod changes;
mod instead;
mod load;
mod ocsp;
mod replaced;
mod reverse;
mod taken;
mod tunnels;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sluicegate_testkit::{Listening, Program, Sluicegate};

use crate::BINARY;

const DEFAULTS: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n";

/// How a reload is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// `sluicegate reload PID`, of a process on its own.
    Command,
    /// `kill -USR2` to a master.
    Signal,
    /// `reload` on a master's socket.
    Socket,
    /// `haproxy -D -p PIDFILE -sf PID`, of a daemon.
    Instead,
}

/// A service whose file is changed while it runs.
struct Service {
    program: Program,
    /// The number that people know it by.
    pid: u32,
    way: Way,
    directory: tempfile::TempDir,
}

impl Service {
    /// `@DIR@` in the text is the service's directory.
    fn start(way: Way, text: &str, listening: &[&Listening]) -> Service {
        Service::start_in(tempfile::tempdir().expect("a directory"), way, text, listening)
    }

    fn start_in(directory: tempfile::TempDir, way: Way, text: &str, listening: &[&Listening]) -> Service {
        let link = directory.path().join("haproxy");
        std::os::unix::fs::symlink(BINARY, &link).expect("a link");
        let mut command = Command::new(link);
        command.args(["-f", "a.cfg"]).current_dir(directory.path());
        match way {
            Way::Command => command.arg("-db"),
            Way::Signal | Way::Socket => command.args(["-W", "-S", "unix@master"]),
            Way::Instead => command.args(["-D", "-p", "pid"]),
        };
        write(directory.path(), text);
        let fds: Vec<_> = listening.iter().map(|one| one.fd()).collect();
        let mut program = Program::start(command, &fds);
        let pid = match way {
            Way::Instead => {
                assert_eq!(program.wait(), 0, "{}", program.output());
                number(&directory.path().join("pid"))
            }
            _ => program.pid(),
        };
        let service = Service { program, pid, way, directory };
        assert!(!service.ask("show version").is_empty());
        service
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the service answers to a command.
    fn ask(&self, line: &str) -> String {
        Sluicegate::stats(&self.path("stats"), line)
    }

    /// Another text for the file.
    fn write(&self, text: &str) {
        write(self.directory.path(), text);
    }

    /// Has the file read again and waits until it is served.
    #[track_caller]
    fn reload(&mut self) {
        match self.way {
            Way::Command => {
                let ended = self.command();
                assert!(ended.status.success(), "{ended:?}\n{}", self.program.output());
            }
            Way::Socket => {
                let answer = Sluicegate::stats(&self.path("master"), "reload");
                assert!(answer.starts_with("Success=1\n--\n"), "{answer}");
            }
            Way::Instead => {
                let mut command = Command::new(self.path("haproxy"));
                let pid = self.pid.to_string();
                command.args(["-f", "a.cfg", "-D", "-p", "pid", "-sf", &pid]).current_dir(self.directory.path());
                let ended = command.output().expect("it starts");
                assert_eq!(ended.status.code(), Some(0), "{ended:?}");
                assert_eq!(number(&self.path("pid")), self.pid, "the pidfile names who serves");
            }
            Way::Signal => {
                let before = self.program.output().matches("Loading success.").count();
                self.program.signal(libc::SIGUSR2);
                sluicegate_testkit::wait_for("a reload", || {
                    (self.program.output().matches("Loading success.").count() > before).then_some(())
                });
            }
        }
    }

    /// `sluicegate reload`.
    fn command(&self) -> Output {
        Command::new(BINARY).args(["reload", &self.pid.to_string()]).output().expect("it starts")
    }

    /// A number in a column of `show stat`.
    fn stat(&self, proxy: &str, server: &str, column: &str) -> u64 {
        self.column(proxy, server, column).parse().expect("a number")
    }

    /// A column of `show stat`.
    fn column(&self, proxy: &str, server: &str, column: &str) -> String {
        let text = self.ask("show stat");
        let mut lines = text.lines();
        let columns: Vec<&str> = lines.next().expect("a head").trim_start_matches("# ").split(',').collect();
        let at = columns.iter().position(|name| *name == column).expect("a column");
        let line = lines.find(|line| line.starts_with(&format!("{proxy},{server},"))).expect("a line");
        line.split(',').nth(at).expect("a value").to_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.way == Way::Instead {
            // SAFETY: takes numbers; the process is the one that this test started.
            unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
        }
    }
}

/// The number in a pidfile.
fn number(path: &Path) -> u32 {
    std::fs::read_to_string(path).expect("a pidfile").trim().parse().expect("a number")
}

/// The text of a bulk reply.
fn word(reply: &str) -> &str {
    reply.lines().nth(1).unwrap_or_default()
}

fn write(directory: &Path, text: &str) {
    let text = text.replace("@DIR@", directory.to_str().expect("UTF-8"));
    std::fs::write(directory.join("a.cfg"), text).expect("writable");
}
