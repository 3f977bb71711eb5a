//! The servers under test, started by the command line that all of them know, their directories, and the load.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::{cpu_time_us, resident_bytes};
use crate::child::{Guard, free_port};
use crate::connection::Client;
use crate::random::Random;
use crate::report::{Options, number};
use crate::run::{output, target};
use crate::store::peer::fill;

/// The keys that figures are stated for.
pub(crate) const KEYS: usize = 10_000_000;
/// The time that a server has to load its files.
const START_MAX: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Debian's.
    Redis,
    /// Valkey 8.1.
    Valkey,
    Ours,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Redis => "redis-server",
            Peer::Valkey => "Valkey 8.1",
            Peer::Ours => "sluicegate",
        }
    }
}

/// Returns the number of keys that a part uses if its figures are stated for `stated`.
pub(crate) fn scaled(options: &Options, stated: usize) -> usize {
    let keys = options.keys.unwrap_or(KEYS);
    (stated as f64 * keys as f64 / KEYS as f64).ceil() as usize
}

/// Where a server keeps its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On tmpfs.
    Memory,
    /// In the directory of temporary files.
    Disk,
}

impl Place {
    pub(crate) fn parent(self) -> PathBuf {
        let memory = Path::new("/dev/shm");
        if self == Place::Memory && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
    }
}

/// A directory that is removed at the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(place: Place) -> Result<Directory, String> {
        // Free ports differ, so names do.
        let path = place.parent().join(format!("sluicegate-bench-{}-{}", std::process::id(), free_port()?));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Directory(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server; it ends, and its files are removed, when this is dropped.
pub(crate) struct Server {
    pub(crate) peer: Peer,
    guard: Guard,
    port: u16,
    pub(crate) directory: Directory,
}

/// How a server is started.
#[derive(Clone, Copy)]
pub(crate) struct Start<'p> {
    pub(crate) cores: &'static str,
    /// The workers of a store.
    pub(crate) threads: u32,
    pub(crate) place: Place,
    /// Directives of redis.conf.
    pub(crate) parameters: &'p [(&'p str, &'p str)],
}

impl Start<'_> {
    /// Starts a server that has no files.
    pub(crate) fn run(self, peer: Peer, options: &Options) -> Result<Server, String> {
        self.run_in(peer, options, Directory::new(self.place)?)
    }

    /// Starts a server with the files of a directory, and waits until they are loaded.
    pub(crate) fn run_in(self, peer: Peer, options: &Options, directory: Directory) -> Result<Server, String> {
        let port = free_port()?;
        let mut command = Command::new("taskset");
        command.args(["-c", self.cores]);
        match peer {
            Peer::Redis => command.arg("redis-server"),
            Peer::Valkey => command.arg(target().join("peers/bin/valkey-server-8.1")),
            Peer::Ours => command.arg(&options.program).args(["store", "--threads", &self.threads.to_string()]),
        };
        let port_text = port.to_string();
        command.args(["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"]);
        command.arg("--dir").arg(directory.path());
        self.parameters.iter().for_each(|(name, value)| {
            command.args([format!("--{name}"), (*value).to_owned()]);
        });
        let log = std::fs::File::create(directory.path().join("log")).map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("{}: {error}", peer.name()))?;
        let mut server = Server { peer, guard: Guard::new(child), port, directory };
        server.wait()?;
        Ok(server)
    }
}

impl Server {
    fn wait(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_MAX;
        loop {
            if let Ok(mut client) = self.client()
                && client.ask(&["PING"]).is_ok_and(|reply| reply == "+PONG")
            {
                return Ok(());
            }
            if self.guard.has_ended() || Instant::now() > deadline {
                let text = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                return Err(format!("{} does not start:\n{text}", self.peer.name()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn client(&self) -> Result<Client, String> {
        Client::connect(self.port)
    }

    /// Returns the CPU time of all threads since its start, in µs.
    pub(crate) fn cpu_us(&self) -> f64 {
        cpu_time_us(self.guard.id())
    }

    pub(crate) fn resident(&self) -> Result<f64, String> {
        resident_bytes(self.guard.id())
    }

    /// Writes keys with values of 32 bytes that hardly compress.
    pub(crate) fn fill(&self, keys: usize) -> Result<(), String> {
        fill(&mut self.client()?, keys, |number| {
            let mut random = Random(number as u64);
            let value = format!("{:016x}{:016x}", random.next(), random.next());
            vec![b"SET".to_vec(), format!("key:{number}").into_bytes(), value.into_bytes()]
        })
    }

    /// Returns the port on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sends a signal, named as for `kill`.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), String> {
        self.guard.signal(signal)
    }

    /// Runs the load generator on core 1.
    pub(crate) fn load(&self, options: &Options, words: &[&str]) -> Result<Loaded, String> {
        self.begin_load(options, words)?.report()
    }

    /// Starts the load generator on core 1, before anything else there. If its requests are due at times, it runs as soon as
    /// one is, in the middle of another's time slice, too.
    pub(crate) fn begin_load(&self, options: &Options, words: &[&str]) -> Result<Load, String> {
        let priority: &[&str] = if words.contains(&"-r") { &["chrt", "--rr", "1"] } else { &["nice", "-n", "-10"] };
        let mut command = Command::new(priority[0]);
        command
            .args(&priority[1..])
            .args(["taskset", "-c", "1"])
            .arg(&options.program)
            .args(["bench", "redis", "--server"]);
        command.arg(format!("127.0.0.1:{}", self.port)).args(["--key-prefix", "key:", "--json"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = command.spawn().map_err(|error| format!("the load does not start: {error}"))?;
        Ok(Load { child, words: words.join(" ") })
    }
}

/// A load generator that runs.
pub(crate) struct Load {
    child: Child,
    words: String,
}

impl Load {
    /// Ends it before its time, and returns its report.
    pub(crate) fn end(self) -> Result<Loaded, String> {
        output("kill", &["-INT", &self.child.id().to_string()]).ok_or("the load had ended by itself")?;
        self.report()
    }

    /// Waits for its end, and returns its report.
    fn report(self) -> Result<Loaded, String> {
        let output = self.child.wait_with_output().map_err(|error| error.to_string())?;
        // 130: it was ended.
        if !output.status.success() && output.status.code() != Some(130) {
            return Err(format!("the load {} failed", self.words));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let field = |after: &str, name: &str| {
            number(&text, after, name).ok_or_else(|| format!("the report of the load has no {name}:\n{text}"))
        };
        let failed = field("\"requests\"", "\"failed\": ")? + field("\"replies\"", "\"errors\": ")?;
        if failed > 0.0 {
            return Err(format!("{failed} commands of {} failed:\n{text}", self.words));
        }
        Ok(Loaded {
            rate: field("\"warmup\"", "\"answered_per_s\": ")?,
            p50_ms: field("\"latency_us\"", "\"p50\": ")? / 1000.0,
            p99_ms: field("\"latency_us\"", "\"p99\": ")? / 1000.0,
            p999_ms: field("\"latency_us\"", "\"p99_9\": ")? / 1000.0,
            max_ms: field("\"latency_us\"", "\"max\": ")? / 1000.0,
        })
    }
}

/// What the load generator reports.
pub(crate) struct Loaded {
    /// Answers a second.
    pub(crate) rate: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
}

/// Returns a number of a section of INFO; [`None`] if it is not there.
pub(crate) fn info(client: &mut Client, section: &str, name: &str) -> Result<Option<f64>, String> {
    let text = client.must(&["INFO", section])?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.and_then(|value| value.trim().parse().ok()))
}

/// Waits until neither a save nor a rewrite runs. Returns whether both have succeeded so far.
pub(crate) fn wait_for_rest(client: &mut Client) -> Result<bool, String> {
    loop {
        let text = client.must(&["INFO", "persistence"])?;
        let runs = ["rdb_bgsave_in_progress:1", "aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1"];
        if !runs.iter().any(|line| text.contains(line)) {
            return Ok(!["rdb_last_bgsave_status:err", "aof_last_bgrewrite_status:err"]
                .iter()
                .any(|e| text.contains(e)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
