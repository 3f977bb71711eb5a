//! Real programs as child processes: started with inherited sockets, observed through their output, ended with the
//! test.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use crate::{Listening, PATIENCE, cpu_time, free_port, wait_for};

/// A child process; its output is kept, and it is ended when this is dropped.
pub struct Program {
    child: Child,
    output: Arc<Output>,
    name: String,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Program {
    /// Starts `command`; descriptors in `inherit` stay open in it under their numbers.
    pub fn start(mut command: Command, inherit: &[RawFd]) -> Program {
        let inherit: Vec<RawFd> = inherit.to_vec();
        let name = format!("{:?}", command.get_program());
        // SAFETY: the closure runs between fork and exec and calls only fcntl, signal and prctl, which are
        // async-signal-safe; it touches no memory but its own vector.
        unsafe {
            command.pre_exec(move || {
                for &fd in &inherit {
                    let flags = libc::fcntl(fd, libc::F_GETFD);
                    if flags < 0 || libc::fcntl(fd, libc::F_SETFD, flags & !libc::FD_CLOEXEC) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                // Tests that run in the background of a shell ignore this signal, and their peers would inherit that.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                // When a test is killed, its peers end, too.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(command).unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let pipes = [child.stdout.take().expect("piped").into(), child.stderr.take().expect("piped").into()];
        let output = Arc::new(Output::of(pipes));
        let readers = (0..2).map(|pipe| collect(output.clone(), pipe)).collect();
        Program { child, output, name, readers }
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns all that it has printed so far, stdout and stderr together.
    pub fn output(&self) -> String {
        (0..2).for_each(|pipe| _ = self.output.drain(pipe));
        String::from_utf8_lossy(&self.output.kept.lock().expect("not poisoned")).into_owned()
    }

    /// Waits until it has printed `text`.
    #[track_caller]
    pub fn wait_for_output(&mut self, text: &str) {
        if !self.comes_to_print(text) {
            let status = self.child.wait();
            panic!("{} ended with {status:?} before it said {text:?}:\n{}", self.name, self.output());
        }
    }

    /// The same, but returns false if the process ended without printing it.
    #[track_caller]
    pub fn comes_to_print(&mut self, text: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // This is checked first, since the last output is read after the end of the process.
            let ended = !self.is_running() && self.readers.iter().all(|reader| reader.is_finished());
            if self.output().contains(text) {
                return true;
            }
            if ended {
                return false;
            }
            assert!(Instant::now() < deadline, "{} did not say {text:?}:\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory effects; the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Waits for its end; returns the exit code, or minus the signal that ended it.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let (mut worked, mut deadline) = (cpu_time(self.pid()), Instant::now() + PATIENCE);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waitable") {
                break status;
            }
            if Instant::now() > deadline {
                // Its duration is irrelevant as long as it works; an idle service works a little, too.
                let before = std::mem::replace(&mut worked, cpu_time(self.pid()));
                assert!(worked > before + PATIENCE / 20 && worked < PATIENCE, "{} does not end", self.name);
                deadline = Instant::now() + PATIENCE;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_running() {
            self.signal(libc::SIGTERM);
            let deadline = Instant::now() + Duration::from_secs(2);
            while self.is_running() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- output of {}:\n{}", self.name, self.output());
        }
    }
}

/// Spawns from a thread that lives as long as the process: the kernel sends a child its death signal when the *thread*
/// that made it ends, and a peer may outlive the test that started it.
fn spawn(command: Command) -> std::io::Result<Child> {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, received) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (answer, child) = mpsc::channel();
    spawner.lock().expect("not poisoned").send((command, answer)).expect("the spawner lives");
    child.recv().expect("the spawner answers")
}

/// Output beyond this is dropped; a test never needs it.
const OUTPUT_LIMIT: usize = 64 << 20;

/// What fits into a pipe.
const PIPE: usize = 64 << 10;

/// The output of a program: what was read, and the pipes from which the rest comes.
struct Output {
    pipes: [File; 2],
    kept: Mutex<Vec<u8>>,
}

impl Output {
    fn of(pipes: [OwnedFd; 2]) -> Output {
        for pipe in &pipes {
            // SAFETY: fcntl has no memory effects, and the descriptor is open.
            let set = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        }
        Output { pipes: pipes.map(File::from), kept: Mutex::default() }
    }

    /// Reads what is in a pipe, if not what is printed meanwhile; returns false at its end.
    fn drain(&self, pipe: usize) -> bool {
        let mut kept = self.kept.lock().expect("not poisoned");
        let (mut buffer, mut rest) = ([0; 16384], PIPE);
        while rest > 0 {
            match (&self.pipes[pipe]).read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    rest = rest.saturating_sub(count);
                    if kept.len() < OUTPUT_LIMIT {
                        kept.extend_from_slice(&buffer[..count]);
                    }
                }
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}

/// Reads a pipe to its end, so that the program never waits for a reader.
fn collect(output: Arc<Output>, pipe: usize) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut readable = libc::pollfd { fd: output.pipes[pipe].as_raw_fd(), events: libc::POLLIN, revents: 0 };
        while output.drain(pipe) {
            // SAFETY: one element that outlives the call.
            unsafe { libc::poll(&mut readable, 1, -1) };
        }
    })
}

/// Debian's redis-server, nothing persisted, on a port of its own.
pub struct RedisServer {
    /// The process.
    pub program: Program,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl RedisServer {
    /// Starts one with extra arguments (`&["--requirepass", "x"]`).
    pub fn start(arguments: &[&str]) -> RedisServer {
        RedisServer::start_with(|| arguments.iter().map(|word| (*word).to_owned()).collect())
    }

    /// Starts a Valkey instead (`"8.1"` or `"9.1"`), where redis-server lacks a behaviour.
    pub fn start_valkey(version: &str, arguments: &[&str]) -> RedisServer {
        let program = newer_peer(&format!("valkey-server-{version}"));
        RedisServer::start_program(&program, || arguments.iter().map(|word| (*word).to_owned()).collect())
    }

    /// Starts one with the arguments that `arguments` gives for each try, since they may name ports too.
    pub fn start_with(arguments: impl Fn() -> Vec<String>) -> RedisServer {
        RedisServer::start_program(Path::new("redis-server"), arguments)
    }

    fn start_program(program: &Path, arguments: impl Fn() -> Vec<String>) -> RedisServer {
        for _ in 0..5 {
            let port = free_port();
            let mut command = Command::new(program);
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.args(arguments());
            let mut program = Program::start(command, &[]);
            if program.comes_to_print("Ready to accept connections") {
                return RedisServer { program, port };
            }
        }
        panic!("{} found no free port in five tries", program.display());
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// Returns the program `name` of `target/peers/bin`: `haproxy-2.8`, `pebble`, `valkey-server-8.1` or
/// `valkey-server-9.1`.
///
/// # Panics
/// If it is not installed.
pub fn newer_peer(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/bin").join(name);
    assert!(path.exists(), "{} is missing: `cargo xtask test --install` installs it", path.display());
    path
}

/// A haproxy in the foreground with the given configuration.
pub struct Haproxy {
    /// The process.
    pub program: Program,
    _directory: tempfile::TempDir,
}

impl Haproxy {
    /// Starts Debian's 2.6; `listening` are inherited, so that the text may say `bind fd@N`. `SLUICEGATE_HAPROXY` names
    /// another program, to try the behaviour of a later version.
    pub fn start(configuration: &str, listening: &[&Listening]) -> Haproxy {
        let other = std::env::var_os("SLUICEGATE_HAPROXY").map(PathBuf::from);
        let program = other.unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy"));
        Haproxy::start_program(&program, configuration, &fds(listening))
    }

    /// Starts HAProxy 2.8, where 2.6 lacks a behaviour.
    pub fn start_2_8(configuration: &str, listening: &[&Listening]) -> Haproxy {
        Haproxy::start_2_8_inheriting(configuration, &fds(listening))
    }

    /// The same with any descriptors, which it inherits under their numbers.
    pub fn start_2_8_inheriting(configuration: &str, inherited: &[RawFd]) -> Haproxy {
        Haproxy::start_program(&newer_peer("haproxy-2.8"), configuration, inherited)
    }

    fn start_program(program: &Path, configuration: &str, inherited: &[RawFd]) -> Haproxy {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("haproxy.cfg");
        // Of threads that write to stdout at the same time, HAProxy lets one lose its line.
        let is_alone = configuration.contains("log stdout") && !configuration.contains("nbthread");
        let alone = if is_alone { "global\n    nbthread 1\n" } else { "" };
        std::fs::write(&path, format!("{alone}{configuration}")).expect("writable");
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(&path);
        let program = Program::start(command, inherited);
        Haproxy { program, _directory: directory }
    }
}

/// Sluicegate's binary with the given configuration.
pub struct Sluicegate {
    /// The process.
    pub program: Program,
    directory: tempfile::TempDir,
}

impl Sluicegate {
    /// Starts `binary run FILE`; `listening` are inherited. `@DIR@` in the text is the run's own directory.
    pub fn start(binary: &str, configuration: &str, listening: &[&Listening]) -> Sluicegate {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Sluicegate::start_in(binary, configuration, listening, directory)
    }

    /// The same with any descriptors, which are inherited under their numbers.
    pub fn start_inheriting(binary: &str, configuration: &str, inherited: &[RawFd]) -> Sluicegate {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Sluicegate::start_program(binary, configuration, inherited, directory)
    }

    /// The same in a directory that holds further files already.
    pub fn start_in(
        binary: &str,
        configuration: &str,
        listening: &[&Listening],
        directory: tempfile::TempDir,
    ) -> Sluicegate {
        Sluicegate::start_program(binary, configuration, &fds(listening), directory)
    }

    fn start_program(
        binary: &str,
        configuration: &str,
        inherited: &[RawFd],
        directory: tempfile::TempDir,
    ) -> Sluicegate {
        let text = configuration.replace("@DIR@", directory.path().to_str().expect("a UTF-8 path"));
        let path = directory.path().join("sluicegate.cfg");
        std::fs::write(&path, text).expect("writable");
        let mut command = Command::new(binary);
        command.arg("run").arg(&path).current_dir(directory.path());
        let program = Program::start(command, inherited);
        Sluicegate { program, directory }
    }

    /// Returns the directory of this run.
    pub fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// Sends commands to the stats socket at `path`, one line; returns the whole answer.
    pub fn stats(path: &Path, line: &str) -> String {
        use std::io::Write;
        let mut stream = wait_for("the stats socket", || std::os::unix::net::UnixStream::connect(path).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        let mut text = String::new();
        let _ = writeln!(text, "{line}");
        stream.write_all(text.as_bytes()).expect("writable");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn fds(listening: &[&Listening]) -> Vec<RawFd> {
    listening.iter().map(|one| one.fd()).collect()
}
