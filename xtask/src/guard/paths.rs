//! The hot paths, and how a repetition of each is driven and counted.
//!
//! Every step of client and origin waits until all threads of the program sleep ([`Running::settle`]). So the worker
//! finds one event at a time, however fast the machine is, and its number of turns of the event loop is the same in
//! every run.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Build, Kind};
use crate::child::{Guard, free_port, wait_for_port};

/// Repetitions of the two runs of most paths: whole pipelines.
const REPETITIONS: [u64; 2] = [480, 1_440];
/// The repetitions of connections.
const CONNECTIONS: [u64; 2] = [160, 480];
/// The repetitions of long bodies.
const LONG: [u64; 2] = [8, 24];
/// Commands of one pipeline of SET.
const PIPELINE: u64 = 16;
/// Bytes of the long body.
const BODY: usize = 1 << 20;
/// Bytes of it that are sent at a time: one segment of the loopback device.
const PART: usize = 16 << 10;
/// The longest wait for the program.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys of SET and GET, a multiple of [`PIPELINE`].
const KEYS: u64 = 960;
/// Bytes of the reply to SET.
const OK: usize = 5;
/// A message of the TCP path.
const MESSAGE: [u8; 64] = [b'm'; 64];

/// A hot path.
pub(super) struct Path {
    pub(super) name: &'static str,
    work: Work,
}

impl Path {
    /// Returns whether a program has this path.
    pub(super) fn is_of(&self, kind: Kind) -> bool {
        match kind {
            Kind::Ours => true,
            Kind::Haproxy => match self.work {
                Work::Redirect | Work::Proxied(_) | Work::Tcp | Work::Body => true,
                Work::Rules { global, rules } => {
                    matches!(global, Global::Nothing) && matches!(rules, RULES | STICK_TABLE)
                }
                Work::Parse | Work::Command(..) | Work::Recorded(..) | Work::Evalsha(..) => false,
            },
            Kind::Redis => matches!(self.work, Work::Command(..) | Work::Evalsha(..)),
        }
    }
}

/// The work of a repetition.
#[derive(Clone, Copy)]
enum Work {
    /// Parses a head, in the example of the wire's crate.
    Parse,
    /// A request that is answered with a redirection.
    Redirect,
    /// A redirect with additional lines of `global` and rules.
    Rules { global: Global, rules: &'static str },
    /// A request on a connection that stays, passed to an origin after rules, and logged.
    Proxied(&'static str),
    /// A TCP connection with two messages each way.
    Tcp,
    /// A request whose response has a body of 1 MiB.
    Body,
    /// A command of a pipeline, of one key after another; its reply has so many bytes.
    Command(fn(u64) -> Vec<u8>, usize),
    /// The same with an append-only file.
    Recorded(fn(u64) -> Vec<u8>, usize),
    /// A script with its keys and its arguments.
    Evalsha(&'static str, &'static [&'static str]),
}

#[derive(Clone, Copy)]
enum Global {
    Nothing,
    /// The Lua file is loaded.
    Lua,
}

const RULES: &str = "http-request set-header X-Client %[src]
    http-request set-var(txn.path) path
    http-request deny if { path_beg /admin }
    http-request add-header X-Site known if { hdr(host) -i guard }
    http-request del-header Cookie
    ";

const SCRIPT: &str = "local store = core.redis('main')
core.register_action('count', {'http-req'}, function(txn) store:incrby(txn.sf:src(), 1) end)
";

const STICK_TABLE: &str = "stick-table type ip size 10k expire 10m store http_req_rate(10s),http_req_cnt
    http-request track-sc0 src
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000 }
    ";

const FIFTY_COMMANDS: &str = "for _, key in ipairs(KEYS) do for _, message in ipairs(cjson.decode(ARGV[1])) do \
     redis.call('LPUSH', key, message) redis.call('LTRIM', key, 0, 50) end end return 1";

const fn rules(rules: &'static str) -> Work {
    Work::Rules { global: Global::Nothing, rules }
}

/// The paths in the order of the table.
pub(super) const PATHS: [Path; 16] = [
    Path { name: "parse a request", work: Work::Parse },
    Path { name: "redirect", work: Work::Redirect },
    Path { name: "five rules", work: rules(RULES) },
    Path {
        name: "Lua action with INCRBY",
        work: Work::Rules { global: Global::Lua, rules: "http-request lua.count\n    " },
    },
    Path { name: "store-call", work: rules("http-request store-call main INCRBY %[src] 1\n    ") },
    Path { name: "stick table", work: rules(STICK_TABLE) },
    // The count outlives the run: whether a short one has expired depends on the time that passes.
    Path { name: "limit", work: rules("http-request limit guard key src rate 1000000/d store main\n    ") },
    Path { name: "keep-alive with a log", work: Work::Proxied("") },
    Path { name: "keep-alive with five rules", work: Work::Proxied(RULES) },
    Path { name: "TCP", work: Work::Tcp },
    Path { name: "1 MiB body", work: Work::Body },
    Path { name: "SET from RESP", work: Work::Command(set, OK) },
    Path { name: "SET with a file", work: Work::Recorded(set, OK) },
    Path { name: "GET from RESP", work: Work::Command(get, 39) },
    Path { name: "EVALSHA of INCR", work: Work::Evalsha("return redis.call('INCR', KEYS[1])", &["1", "counter"]) },
    Path {
        name: "EVALSHA of fifty commands",
        work: Work::Evalsha(FIFTY_COMMANDS, &["5", "l1", "l2", "l3", "l4", "l5", "[1,2,3,4,5]"]),
    },
];

/// Counts of paths by name.
#[derive(Clone, Default)]
pub(super) struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    pub(super) fn of(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(path, _)| *path == name).map(|(_, count)| *count)
    }

    pub(super) fn set(&mut self, name: &'static str, count: u64) {
        self.0.push((name, count));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A build that is counted, with callgrind's output and the configuration in a folder of their own.
pub(super) struct Measurement {
    build: Build,
    folder: PathBuf,
    /// The count of a redirection without rules, from which others are the difference.
    plain: Option<u64>,
    log: PathBuf,
    /// Where callgrind's files stay.
    kept: Option<PathBuf>,
}

impl Drop for Measurement {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Measurement {
    pub(super) fn new(build: Build, kept: Option<PathBuf>) -> Result<Measurement, String> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sluicegate-guard-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        std::fs::write(folder.join("count.lua"), SCRIPT).map_err(|error| error.to_string())?;
        if let Some(kept) = &kept {
            std::fs::create_dir_all(kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        }
        let log = folder.join("log");
        let reader = UnixDatagram::bind(&log).map_err(|error| error.to_string())?;
        // It reads until the process ends.
        std::thread::spawn(move || {
            let mut line = [0; 4096];
            while reader.recv(&mut line).is_ok() {}
        });
        Ok(Measurement { build, folder, plain: None, log, kept })
    }

    /// Instructions of one repetition; `None` for the parser where its example is not built.
    pub(super) fn count(&mut self, path: &Path) -> Result<Option<u64>, String> {
        match path.work {
            Work::Parse => return self.parse(),
            Work::Redirect => {
                let count = self.requests(Global::Nothing, "")?;
                self.plain = Some(self.plain.map_or(count, |plain| plain.min(count)));
                Ok(count)
            }
            Work::Rules { global, rules } => {
                let plain = match self.plain {
                    Some(plain) => plain,
                    None => *self.plain.insert(self.requests(Global::Nothing, "")?),
                };
                self.requests(global, rules).map(|count| count.saturating_sub(plain))
            }
            Work::Proxied(rules) => self.proxied(rules),
            Work::Tcp => self.tcp(),
            Work::Body => self.body(),
            Work::Command(command, reply) => self.commands(command, reply, false),
            Work::Recorded(command, reply) => self.commands(command, reply, true),
            Work::Evalsha(script, words) => self.scripts(script, words),
        }
        .map(Some)
    }

    fn parse(&self) -> Result<Option<u64>, String> {
        let program = &self.build.parse;
        if !program.is_file() {
            return Ok(None);
        }
        let one = |count: u64| {
            let status = self.callgrind(program, &[&count.to_string()])?.wait()?;
            if status.success() { self.read_counts() } else { Err(format!("{}: {status}", program.display())) }
        };
        each(self.build.kind, REPETITIONS, one).map(Some)
    }

    /// Instructions of the worker per request that `rules` and a redirection answer.
    fn requests(&self, global: Global, rules: &str) -> Result<u64, String> {
        let global = match global {
            Global::Nothing => String::new(),
            Global::Lua => format!("lua-load {}", self.folder.join("count.lua").display()),
        };
        let store = if self.build.kind == Kind::Ours { "store main\n" } else { "" };
        let configuration = |port| {
            format!(
                "global\n    nbthread 1\n    {global}\ndefaults\n    mode http\n    timeout client 10m\n    \
                 timeout server 10m\n    timeout connect 10s\n{store}listen guard\n    bind 127.0.0.1:{port}\n    {rules}http-request redirect location /ok\n"
            )
        };
        self.serve(REPETITIONS, configuration, |running, count| {
            let mut stream = running.connect()?;
            for _ in 0..count {
                running.send(&mut stream, REQUEST)?;
                answer(&mut stream, b"HTTP/1.1 302 ")?;
            }
            Ok(())
        })
    }

    /// Instructions of the worker per request that an origin answers, with rules before and a line of log.
    fn proxied(&self, rules: &str) -> Result<u64, String> {
        let origin = Origin::new()?;
        let log = self.log.display();
        let rest = format!(
            "log {log} format rfc3164 local0\n    option httplog\n    {rules}server origin {}\n",
            origin.address
        );
        self.serve(
            REPETITIONS,
            |port| proxy("http", port, &rest),
            |running, count| {
                let mut stream = running.connect()?;
                let mut server = None;
                for _ in 0..count {
                    running.send(&mut stream, REQUEST)?;
                    let server = origin.requested(running, &mut server)?;
                    running.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: guard\r\n\r\nhello")?;
                    answer(&mut stream, b"HTTP/1.1 200 ")?;
                }
                Ok(())
            },
        )
    }

    /// Instructions of the worker per TCP connection with two messages each way, which the client ends.
    fn tcp(&self) -> Result<u64, String> {
        let origin = Origin::new()?;
        let rest = format!("server origin {}\n", origin.address);
        self.serve(
            CONNECTIONS,
            |port| proxy("tcp", port, &rest),
            |running, count| {
                // Connections of the wait for the port.
                origin.forget(running)?;
                let mut message = MESSAGE;
                for _ in 0..count {
                    let mut client = running.connect()?;
                    let mut server = origin.accept(running)?;
                    for _ in 0..2 {
                        running.send(&mut client, &MESSAGE)?;
                        server.read_exact(&mut message)?;
                        running.send(&mut server, &MESSAGE)?;
                        client.read_exact(&mut message)?;
                    }
                    running.settle()?;
                    client.shutdown(Shutdown::Write)?;
                    is_end(&mut server)?;
                    running.settle()?;
                    drop(server);
                    is_end(&mut client)?;
                }
                Ok(())
            },
        )
    }

    /// Instructions of the worker per response with a body of 1 MiB.
    fn body(&self) -> Result<u64, String> {
        let origin = Origin::new()?;
        let rest = format!("server origin {}\n", origin.address);
        self.serve(
            LONG,
            |port| proxy("http", port, &rest),
            |running, count| {
                let mut stream = running.connect()?;
                let (mut server, mut part) = (None, vec![b'b'; PART]);
                for _ in 0..count {
                    running.send(&mut stream, REQUEST)?;
                    let server = origin.requested(running, &mut server)?;
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
                    running.send(server, head.as_bytes())?;
                    answer(&mut stream, b"HTTP/1.1 200 ")?;
                    for _ in 0..BODY / PART {
                        running.send(server, &part)?;
                        stream.read_exact(&mut part)?;
                    }
                }
                Ok(())
            },
        )
    }

    /// Instructions of the worker per command of a pipeline.
    fn commands(&self, command: fn(u64) -> Vec<u8>, reply: usize, has_file: bool) -> Result<u64, String> {
        let configuration = |port| {
            // What the last run has left would be loaded.
            let _ = std::fs::remove_dir_all(self.folder.join("appendonlydir"));
            format!("{}    dir {}\n", store_alone(port), self.folder.display())
        };
        self.serve(REPETITIONS, configuration, |running, count| {
            let mut stream = running.connect()?;
            if has_file {
                // Later than the worker starts, which is the first thread so.
                running.send(&mut stream, &self::command(&["CONFIG", "SET", "appendonly", "yes"]))?;
                answer(&mut stream, b"+OK")?;
            }
            let mut pipeline = |command: fn(u64) -> Vec<u8>, reply: usize, first: u64| {
                let commands: Vec<u8> = (first..first + PIPELINE).flat_map(|number| command(number % KEYS)).collect();
                running.send(&mut stream, &commands)?;
                let mut replies = vec![0; reply * PIPELINE as usize];
                stream.read_exact(&mut replies)?;
                let expected = replies.starts_with(b"+OK\r\n") || replies.starts_with(b"$32\r\n");
                if expected { Ok(()) } else { Err(std::io::Error::other("another reply")) }
            };
            // So that GET finds its keys.
            for first in (0..KEYS).step_by(PIPELINE as usize) {
                pipeline(set, OK, first)?;
            }
            for first in (0..count).step_by(PIPELINE as usize) {
                pipeline(command, reply, first)?;
            }
            Ok(())
        })
    }

    /// Instructions of the worker per EVALSHA of a pipeline.
    fn scripts(&self, script: &str, words: &[&str]) -> Result<u64, String> {
        self.serve(REPETITIONS, store_alone, |running, count| {
            let mut stream = running.connect()?;
            let mut sha = [0; 47];
            stream.write_all(&command(&["SCRIPT", "LOAD", script]))?;
            stream.read_exact(&mut sha)?;
            let sha = String::from_utf8_lossy(&sha[5..45]).into_owned();
            let pipeline = command(&[&["EVALSHA", &sha], words].concat()).repeat(PIPELINE as usize);
            let mut answer = [0; 4096];
            for _ in (0..count).step_by(PIPELINE as usize) {
                running.send(&mut stream, &pipeline)?;
                let mut replies = 0;
                while replies < PIPELINE as usize {
                    let got = stream.read(&mut answer)?;
                    if got == 0 || answer[..got].contains(&b'-') {
                        return Err(std::io::Error::other("an error, or none"));
                    }
                    replies += answer[..got].iter().filter(|byte| **byte == b'\n').count();
                }
            }
            Ok(())
        })
    }

    /// Runs the program with few and many repetitions of what `drive` does with it.
    fn serve(
        &self,
        repetitions: [u64; 2],
        configuration: impl Fn(u16) -> String,
        drive: impl Fn(&Running, u64) -> std::io::Result<()>,
    ) -> Result<u64, String> {
        each(self.build.kind, repetitions, |count| {
            let port = free_port()?;
            let file = self.folder.join("guard.cfg");
            std::fs::write(&file, configuration(port)).map_err(|error| error.to_string())?;
            let (file, folder, port_word) =
                (file.display().to_string(), self.folder.display().to_string(), port.to_string());
            let arguments: &[&str] = match self.build.kind {
                Kind::Ours => &["run", &file],
                Kind::Haproxy => &["-db", "-f", &file],
                Kind::Redis => {
                    &["--port", &port_word, "--bind", "127.0.0.1", "--save", "", "--dir", &folder, "--hz", "1"]
                }
            };
            let program = self.callgrind(&self.build.program, arguments)?;
            let running = Running { port, tasks: format!("/proc/{}/task", program.id()) };
            let driven = wait_for_port(port)
                .and_then(|()| drive(&running, count).map_err(|error| format!("the program under callgrind: {error}")));
            let ended = program.end("-TERM");
            driven.and(ended)?;
            self.read_counts()
        })
    }

    fn callgrind(&self, program: &FilePath, arguments: &[&str]) -> Result<Guard, String> {
        Command::new("valgrind")
            .args(["--quiet", "--tool=callgrind", "--separate-threads=yes"])
            .arg(format!("--callgrind-out-file={}", self.folder.join("out").display()))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Guard::new)
            .map_err(|error| format!("valgrind: {error}"))
    }

    /// Instructions of each thread of the last run; its files are removed or kept.
    fn read_counts(&self) -> Result<Vec<u64>, String> {
        let mut counts = Vec::new();
        for number in 1.. {
            let file = self.folder.join(format!("out-{number:02}"));
            let Ok(text) = std::fs::read_to_string(&file) else { break };
            if let Some(kept) = &self.kept {
                let kept = kept.join(format!("out-{number:02}"));
                std::fs::write(&kept, &text).map_err(|error| format!("{}: {error}", kept.display()))?;
            }
            let _ = std::fs::remove_file(&file);
            let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
            counts.push(total.ok_or(format!("{} has no totals", file.display()))?);
        }
        let _ = std::fs::remove_file(self.folder.join("out"));
        if counts.is_empty() { Err("callgrind wrote nothing".to_owned()) } else { Ok(counts) }
    }
}

/// The program under callgrind.
struct Running {
    port: u16,
    /// The folder of its threads.
    tasks: String,
}

impl Running {
    /// Waits until all threads sleep. A thread that a packet wakes counts as running before the packet's sender goes
    /// on.
    fn settle(&self) -> std::io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.sleeps()? {
            if Instant::now() > deadline {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn sleeps(&self) -> std::io::Result<bool> {
        for task in std::fs::read_dir(&self.tasks)? {
            // A thread may end meanwhile.
            let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
            // The state follows the name, which stands in parentheses.
            if stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('S')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        self.settle()?;
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Sends bytes when the program sleeps.
    fn send(&self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        self.settle()?;
        stream.write_all(bytes)
    }
}

/// The server of the proxy, which the driver plays.
struct Origin {
    listener: TcpListener,
    address: SocketAddr,
}

impl Origin {
    fn new() -> Result<Origin, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        Ok(Origin { listener, address })
    }

    /// Accepts the connection that the proxy made.
    fn accept(&self, running: &Running) -> std::io::Result<TcpStream> {
        running.settle()?;
        let (stream, _) = self.listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Closes the connections that wait to be accepted.
    fn forget(&self, running: &Running) -> std::io::Result<()> {
        running.settle()?;
        self.listener.set_nonblocking(true)?;
        while self.listener.accept().is_ok() {}
        self.listener.set_nonblocking(false)
    }

    /// Reads a request from the connection in `server`, which the proxy makes for the first one.
    fn requested<'s>(
        &self,
        running: &Running,
        server: &'s mut Option<TcpStream>,
    ) -> std::io::Result<&'s mut TcpStream> {
        let server = match server {
            Some(server) => server,
            None => server.insert(self.accept(running)?),
        };
        // A request is one write of the proxy, and smaller than a segment.
        let mut request = [0; 4096];
        match server.read(&mut request)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(server),
        }
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: guard\r\nCookie: a=b\r\nUser-Agent: guard\r\nAccept: */*\r\n\r\n";

/// Reads an answer, which is one write of the proxy and smaller than a segment.
fn answer(stream: &mut TcpStream, start: &[u8]) -> std::io::Result<()> {
    let mut answer = [0; 4096];
    let got = stream.read(&mut answer)?;
    if answer[..got].starts_with(start) { Ok(()) } else { Err(std::io::Error::other("another answer")) }
}

/// Reads the end of a stream.
fn is_end(stream: &mut TcpStream) -> std::io::Result<()> {
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(std::io::Error::other("more than was sent")),
    }
}

/// Returns a configuration with one `listen` section of a mode, whose further lines are given.
fn proxy(mode: &str, port: u16, rest: &str) -> String {
    format!(
        "global\n    nbthread 1\ndefaults\n    mode {mode}\n    timeout client 10m\n    timeout server 10m\n    \
         timeout connect 10s\nlisten guard\n    bind 127.0.0.1:{port}\n    {rest}"
    )
}

/// Returns a configuration with a store and nothing else.
fn store_alone(port: u16) -> String {
    format!("global\n    nbthread 1\nstore main\n    bind 127.0.0.1:{port}\n")
}

fn key(number: u64) -> String {
    format!("key:{number:012}")
}

fn set(number: u64) -> Vec<u8> {
    command(&["SET", &key(number), &"v".repeat(32)])
}

fn get(number: u64) -> Vec<u8> {
    command(&["GET", &key(number)])
}

/// Returns a command as clients send it.
fn command(words: &[&str]) -> Vec<u8> {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.collect::<String>()).into_bytes()
}

/// Instructions of one repetition in the worker's thread, from a run with few and one with many. It is the first that
/// our program starts; a program without threads has its main thread alone, and that of the others is the worker. Other
/// threads depend on the time that passes: the control thread writes the log.
fn each(kind: Kind, [few, many]: [u64; 2], one: impl Fn(u64) -> Result<Vec<u64>, String>) -> Result<u64, String> {
    let (least, most) = (one(few)?, one(many)?);
    let worker = if kind == Kind::Ours { 1 } else { 0 };
    let of_worker = |counts: &[u64]| counts.get(worker).or(counts.first()).copied();
    let (least, most) = of_worker(&least).zip(of_worker(&most)).ok_or("callgrind saw no thread")?;
    Ok(most.saturating_sub(least) / (many - few))
}
