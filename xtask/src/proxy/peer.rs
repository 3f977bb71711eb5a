//! The two programs with the same file, the origin behind them, and the load before them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bench::cpu_time_us;
use crate::child::{Guard, free_port, start, wait_for_port};
use crate::report::{Options, number};
use crate::run::{output, target};

/// Connections of the load.
pub(crate) const CONNECTIONS: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Debian's.
    Haproxy,
    /// HAProxy 2.8, with TLS and HTTP/2.
    Newer,
    Ours,
}

/// In the order of the columns.
pub(crate) const BOTH: [Peer; 2] = [Peer::Haproxy, Peer::Ours];

/// In the order of the columns, where TLS or HTTP/2 is measured.
pub(crate) const NEWER: [Peer; 2] = [Peer::Newer, Peer::Ours];

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Haproxy => "haproxy",
            Peer::Newer => "haproxy 2.8",
            Peer::Ours => "sluicegate",
        }
    }

    /// Returns the path of its program.
    pub(crate) fn program(self, bench: &Bench<'_>) -> String {
        match self {
            Peer::Haproxy => "/usr/sbin/haproxy".to_owned(),
            Peer::Newer => match &bench.options.newer {
                Some(path) => path.display().to_string(),
                None => target().join("peers/bin/haproxy-2.8").display().to_string(),
            },
            Peer::Ours => bench.options.program.display().to_string(),
        }
    }

    /// Starts it on core 0 with a file that listens on the port of `PORT`; see [`Bench::file`].
    pub(crate) fn start(self, bench: &Bench<'_>, text: &str) -> Result<Running, String> {
        self.start_on("0", bench, text)
    }

    /// The same on other cores.
    pub(crate) fn start_on(self, cores: &str, bench: &Bench<'_>, text: &str) -> Result<Running, String> {
        let port = free_port()?;
        let path = bench.file(&text.replace("PORT", &port.to_string()))?;
        let file = path.display().to_string();
        let words = match self {
            Peer::Haproxy | Peer::Newer if text.contains("master-worker") => vec!["-W", "-q", "-f", &file],
            Peer::Haproxy | Peer::Newer => vec!["-db", "-q", "-f", &file],
            Peer::Ours => vec!["run", &file],
        };
        let mut guard = start(cores, &self.program(bench), &words)?;
        guard.wait_for_port(port).map_err(|error| format!("{}: {error}", self.name()))?;
        let scheme = if text.contains(" ssl crt ") { "https" } else { "http" };
        Ok(Running { guard, port, scheme })
    }
}

/// Starts programs with the same file.
pub(crate) fn start_all(
    peers: [Peer; 2],
    bench: &Bench<'_>,
    text: &str,
) -> Result<Vec<(&'static str, Running)>, String> {
    peers.iter().map(|peer| Ok((peer.name(), peer.start(bench, text)?))).collect()
}

/// A program that serves.
pub(crate) struct Running {
    guard: Guard,
    pub(crate) port: u16,
    /// The scheme of its URLs.
    scheme: &'static str,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.guard.id()
    }

    /// Returns the URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port)
    }

    /// Returns the option by which the load accepts its certificate.
    pub(crate) fn trust(&self) -> Option<&'static str> {
        (self.scheme == "https").then_some("--insecure")
    }

    /// CPU time since its start, µs.
    pub(crate) fn cpu_us(&self) -> f64 {
        cpu_time_us(self.guard.id())
    }
}

/// The origin, and a directory for files.
pub(crate) struct Bench<'o> {
    pub(crate) options: &'o Options,
    directory: PathBuf,
    _origin: Guard,
    pub(crate) origin_port: u16,
}

impl<'o> Bench<'o> {
    pub(crate) fn new(options: &'o Options) -> Result<Bench<'o>, String> {
        let directory = std::env::temp_dir().join(format!("sluicegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let origin_port = free_port()?;
        let listen = format!("127.0.0.1:{origin_port}");
        let origin = start(1, &options.program.display().to_string(), &["origin", "--listen", &listen])?;
        wait_for_port(origin_port)?;
        Ok(Bench { options, directory, _origin: origin, origin_port })
    }

    /// Returns the address of a server of a file.
    pub(crate) fn origin(&self) -> String {
        format!("127.0.0.1:{}", self.origin_port)
    }

    /// Returns the path of a file of the measurement, which is removed at its end.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file.
    pub(crate) fn file(&self, text: &str) -> Result<PathBuf, String> {
        let path = self.path("bench.cfg");
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Puts load on a program: a path or URL and options of `sluicegate bench http`.
    pub(crate) fn load(&self, running: &Running, path: &str, arguments: &[&str]) -> Result<Loaded, String> {
        let loaded = self.load_that_may_fail(running, path, arguments)?;
        match loaded.failed > 0.0 {
            true => Err(format!("{} requests of {path} failed, or were refused", loaded.failed)),
            false => Ok(loaded),
        }
    }

    /// The same, where requests may fail.
    pub(crate) fn load_that_may_fail(
        &self,
        running: &Running,
        path: &str,
        arguments: &[&str],
    ) -> Result<Loaded, String> {
        let program = self.options.program.display().to_string();
        let url = running.url(path);
        let before = running.cpu_us();
        let mut words = vec!["-c", "1", &program, "bench", "http", "--json"];
        words.extend(arguments);
        words.extend(running.trust());
        words.push(&url);
        let text = output("taskset", &words).ok_or(format!("the load on {path} failed"))?;
        let cpu_us = running.cpu_us() - before;
        let field = |after: &str, name: &str| {
            number(&text, after, name).ok_or_else(|| format!("the report of the load has no {name}:\n{text}"))
        };
        let answered = field("\"requests\"", "\"answered\": ")?;
        let classes = ["\"4xx\": ", "\"5xx\": "].map(|class| field("\"status_classes\"", class));
        let refused: f64 = classes.into_iter().sum::<Result<f64, String>>()?;
        if answered < 1.0 {
            return Err(format!("no request of {path} was answered:\n{text}"));
        }
        let answered = answered + field("\"warmup\"", "\"answered\": ")?;
        Ok(Loaded {
            answered,
            failed: refused + field("\"requests\"", "\"failed\": ")?,
            rate: field("\"warmup\"", "\"answered_per_s\": ")?,
            cpu_us: cpu_us / answered,
            p50_ms: field("\"latency_us\"", "\"p50\": ")? / 1000.0,
            p99_ms: field("\"latency_us\"", "\"p99\": ")? / 1000.0,
            p999_ms: field("\"latency_us\"", "\"p99_9\": ")? / 1000.0,
            max_ms: field("\"latency_us\"", "\"max\": ")? / 1000.0,
        })
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The result of a load run.
pub(crate) struct Loaded {
    /// Answers, those of the warm-up included.
    pub(crate) answered: f64,
    /// Requests without an answer, or with an error status.
    pub(crate) failed: f64,
    /// Answers a second.
    pub(crate) rate: f64,
    /// The program's CPU time per request.
    pub(crate) cpu_us: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
}

/// Seconds by the clock that a program takes to check a file, on core 0.
pub(crate) fn check_s(peer: Peer, bench: &Bench<'_>, file: &Path) -> Result<f64, String> {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]);
    match peer {
        Peer::Haproxy | Peer::Newer => command.args([&peer.program(bench), "-c", "-f"]),
        Peer::Ours => command.args([&peer.program(bench), "check"]),
    };
    let started = std::time::Instant::now();
    let result = command.arg(file).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    match result.status.success() {
        true => Ok(started.elapsed().as_secs_f64()),
        false => Err(format!("{} refuses the file:\n{}", peer.name(), String::from_utf8_lossy(&result.stderr))),
    }
}

/// Sends a command to a stats socket. Returns the answer.
pub(crate) fn command(socket: &Path, command: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", socket.display());
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.write_all(command.as_bytes()).map_err(failed)?;
    stream.shutdown(std::net::Shutdown::Write).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    Ok(answer)
}
