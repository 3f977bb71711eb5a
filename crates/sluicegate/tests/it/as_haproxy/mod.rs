//! The program called `haproxy`: its command line, exit codes and messages, Debian's own file, and the pages of
//! `errorfile`; beside Debian's haproxy wherever that has the same.

mod command_lines;
mod environment;
mod files;
mod limits;
mod pages;
mod stock;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::BINARY;

/// Debian's.
const HAPROXY: &str = "/usr/sbin/haproxy";

/// A directory with files to read, where a link called `haproxy` leads to the binary.
struct Place {
    directory: tempfile::TempDir,
}

/// How a program ended, and what it said.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("bin")).unwrap();
        std::os::unix::fs::symlink(BINARY, directory.path().join("bin/haproxy")).unwrap();
        Place { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The link.
    fn program(&self) -> PathBuf {
        self.path().join("bin/haproxy")
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(name), bytes).unwrap();
    }

    /// Runs the link in the directory.
    fn run(&self, words: &[&str]) -> Ended {
        ended(self.command(&self.program(), words))
    }

    /// Runs Debian's haproxy in the directory.
    fn run_peer(&self, words: &[&str]) -> Ended {
        ended(self.command(Path::new(HAPROXY), words))
    }

    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.path()).stdin(Stdio::null());
        command
    }
}

fn ended(mut command: Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().expect("starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// A file that is good and says nothing.
const GOOD: &str = "defaults\n timeout client 1s\n timeout server 1s\n timeout connect 1s\n\
                    frontend f\n bind 127.0.0.1:1\n";
