//! `-sf` and `-st`: what becomes of the processes that are named.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{PATIENCE, Program, free_port, wait_for};

use super::{BINARY, DEFAULTS, write};

/// A directory with our program under the name `haproxy`, and a file that listens on a port which two may share.
struct Place {
    directory: tempfile::TempDir,
    port: u16,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().expect("a directory"), port: free_port() };
        std::os::unix::fs::symlink(BINARY, place.directory.path().join("haproxy")).expect("a link");
        place.serve("one");
        place
    }

    /// The file answers with this name from here on.
    fn serve(&self, name: &str) {
        let text = format!(
            "global\n stats socket @DIR@/stats level admin\n{DEFAULTS}frontend web\n bind 127.0.0.1:{}\n http-request \
             return status 200 hdr name {name}\n",
            self.port
        );
        write(self.directory.path(), &text);
    }

    fn start(&self, program: &str, words: &[&str]) -> Program {
        let ours = self.directory.path().join("haproxy");
        let mut command = Command::new(if program.is_empty() { &ours } else { Path::new(program) });
        command.args(["-f", "a.cfg"]).args(words).current_dir(self.directory.path());
        Program::start(command, &[])
    }

    /// Who answers.
    fn name(&self) -> Option<String> {
        // The port belonged to nobody for a moment: who closes without an answer may be a stranger.
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| line.strip_prefix("name: ")).map(str::to_owned)
    }

    #[track_caller]
    fn wait_for(&self, name: &str) {
        wait_for("the service", || (self.name()? == name).then_some(()));
    }
}

/// In the foreground the new command stands in for the service that goes on: it passes signals on and ends with it.
#[test]
fn a_command_in_the_foreground_stands_in() {
    for (words, signal, code) in [
        (&["-db"][..], libc::SIGTERM, -libc::SIGTERM),
        (&["-db"], libc::SIGUSR1, 0),
        (&["-W", "-p", "pid"], libc::SIGTERM, 0),
    ] {
        let place = Place::new();
        let mut old = place.start("", words);
        place.wait_for("one");
        place.serve("two");
        let pid = old.pid().to_string();
        let mut new = place.start("", &[words, &["-sf", &pid]].concat());
        place.wait_for("two");
        assert!(old.is_running() && new.is_running());
        new.wait_for_output(&format!("Process {pid} goes on with this configuration."));
        if words.contains(&"-p") {
            // Both processes write it, which empties it for a moment.
            let path = place.directory.path().join("pid");
            let named = || std::fs::read_to_string(&path).ok()?.trim().parse().ok();
            wait_for("the pidfile", || (named() == Some(old.pid())).then_some(()));
        }
        new.signal(signal);
        assert_eq!((old.wait(), new.wait()), (code, code), "{words:?}");
    }
}

/// A file with errors is refused, and the service goes on as it was.
#[test]
fn a_file_with_errors_is_refused() {
    let place = Place::new();
    let mut old = place.start("", &["-db"]);
    place.wait_for("one");
    write(place.directory.path(), "frontend web\n frob\n");
    let mut new = place.start("", &["-D", "-p", "pid", "-sf", &old.pid().to_string()]);
    assert_eq!(new.wait(), 1);
    assert!(new.output().contains("unknown keyword 'frob'"), "{}", new.output());
    assert_eq!(place.name().as_deref(), Some("one"));
    assert!(old.is_running() && !place.directory.path().join("pid").exists());
}

/// `-st` ends what it names, `-sf` lets a stranger finish; the new process serves.
#[test]
fn others_end_once_the_new_one_serves() {
    let haproxy = "/usr/sbin/haproxy";
    for (old, option, code) in [("", "-st", -libc::SIGTERM), (haproxy, "-st", -libc::SIGTERM), (haproxy, "-sf", 0)] {
        let place = Place::new();
        let mut before = place.start(old, &["-db"]);
        place.wait_for("one");
        place.serve("two");
        let mut new = place.start("", &["-db", option, &before.pid().to_string()]);
        assert_eq!(before.wait(), code, "{old} {option}\n{}", before.output());
        place.wait_for("two");
        assert!(new.is_running());
        new.signal(libc::SIGTERM);
        assert_eq!(new.wait(), -libc::SIGTERM);
    }
}

/// Numbers that nobody has are as good as none.
#[test]
fn a_number_that_nobody_has_changes_nothing() {
    let place = Place::new();
    let mut gone = Command::new("true").spawn().expect("it starts");
    let pid = gone.id().to_string();
    gone.wait().expect("it ends");
    let mut new = place.start("", &["-db", "-sf", &pid]);
    place.wait_for("one");
    assert!(new.is_running());
}
