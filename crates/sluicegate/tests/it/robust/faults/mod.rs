//! Every way for a stream to end, through Debian's haproxy and through the binary: what the clients get and the lines
//! in the access log, with their termination states, must be the same.
//!
//! A [`Case`] is data: what its clients do and what the server does with each of its connections. One process of each
//! proxy serves all cases of a theme, a `listen` section each, all at once.

mod clients;
mod endings;
mod scripts;
mod servers;
mod waits;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sluicegate_testkit::{Haproxy, Listening, PATIENCE, Program, wait_for};

/// What one side does with its connection.
#[derive(Clone)]
enum Act {
    /// Sends this; an error is the other side's doing.
    Send(Vec<u8>),
    /// Sends byte by byte, so slowly that only a limit on the whole helps, until the other side closes.
    Drip(&'static str),
    /// Receives until this has come.
    Wait(&'static str),
    /// Tells everybody in the case that they may go on.
    Signal,
    /// Waits for that.
    Await,
    /// Waits until that was said so many times.
    AwaitAll(u32),
    /// Waits until so many requests stand in the section's queues.
    Queued(u64),
    /// Waits until the section's server is to be connected to.
    Connecting,
    /// Waits until the section has counted a request, so that its rules have run.
    Counted,
    /// Waits until so many lines of the case are logged.
    Lines(usize),
    /// Reads nothing until the log line is there.
    Logged,
    /// Receives until the proxy closes.
    End,
    /// Ends the sending direction.
    Finish,
    /// Ends the connection with a RST.
    Reset,
}

use Act::{Await, AwaitAll, Connecting, Counted, Drip, End, Finish, Lines, Logged, Queued, Reset, Signal, Wait};

fn send(bytes: impl Into<Vec<u8>>) -> Act {
    Act::Send(bytes.into())
}

struct Case {
    name: &'static str,
    /// Lines of its `listen` section beside `bind` and `server`.
    options: &'static [&'static str],
    /// Its servers; `@BACK@` is the address of the one that plays, nobody listens at `@REFUSED@` and nobody accepts at
    /// `@DEAF@`.
    servers: &'static [&'static str],
    client: Vec<Act>,
    /// Clients that play at the same time; their transcripts and lines follow.
    others: Vec<Vec<Act>>,
    server: Vec<Act>,
    /// How many lines are logged.
    lines: usize,
    /// The lines do not mark the end of the exchange, which lasts until the clients have ended.
    unlogged: bool,
    /// How many bytes were sent depends on the kernel's buffers.
    any_size: bool,
    /// How many sessions there are depends on how soon the kernel ends one.
    any_count: bool,
    /// What is expected where it is not haproxy 2.6's own transcript, and why; 2.6 is not asked then.
    instead: Option<(&'static str, &'static str)>,
}

fn case(name: &'static str, options: &'static [&'static str], client: Vec<Act>, server: Vec<Act>) -> Case {
    let servers = &["server s @BACK@"];
    Case {
        name,
        options,
        servers,
        client,
        others: Vec::new(),
        server,
        lines: 1,
        unlogged: false,
        any_size: false,
        any_count: false,
        instead: None,
    }
}

impl Case {
    fn servers(mut self, servers: &'static [&'static str]) -> Case {
        self.servers = servers;
        self
    }

    /// Another client; it leaves a line of its own.
    fn and(mut self, client: Vec<Act>) -> Case {
        self.others.push(client);
        self.lines += 1;
        self
    }

    fn any_count(mut self) -> Case {
        self.any_count = true;
        self
    }

    fn lines(mut self, lines: usize) -> Case {
        self.lines = lines;
        self
    }

    fn unlogged(mut self) -> Case {
        self.unlogged = true;
        self
    }

    fn any_size(mut self) -> Case {
        self.any_size = true;
        self
    }

    fn instead(mut self, why: &'static str, transcript: &'static str) -> Case {
        self.instead = Some((transcript, why));
        self
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const HALF_A_POST: &str = "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345";
const HALF_CHUNKED: &str = "POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n";
const HALF_KNOWN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345";
const CHUNK: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n12345";
const SERVER_SHORT: &[&str] = &["timeout server 1500ms"];
const CLIENT_SHORT: &[&str] = &["timeout client 1500ms"];
const REQUEST_SHORT: &[&str] = &["timeout http-request 1500ms"];
const TCP: &[&str] = &["mode tcp", "option tcplog"];

fn head() -> Act {
    Wait("\r\n\r\n")
}

/// More than the kernel keeps for two sockets that nobody reads.
fn endless(head: &str) -> Act {
    let mut bytes = head.as_bytes().to_vec();
    bytes.resize(64 << 20, b'x');
    Act::Send(bytes)
}

/// What everybody who plays a case sees of it beside their own connection.
struct Scene<'a> {
    case: &'a Case,
    go: AtomicU32,
    /// Clients that have ended.
    ended: AtomicU32,
    /// A figure of the section, by its line and column in the statistics.
    stat: &'a (dyn Fn(&str, &str) -> u64 + Sync),
    /// The lines that are logged so far, in their order.
    lines: &'a (dyn Fn() -> Vec<String> + Sync),
}

impl Scene<'_> {
    /// How many requests wait in the queues of the section and of its server.
    fn queued(&self) -> u64 {
        ["BACKEND", "s"].iter().map(|line| (self.stat)(line, "qcur")).sum()
    }

    fn over(&self) -> bool {
        let clients = 1 + self.case.others.len();
        let ended = || self.ended.load(Ordering::Acquire) as usize == clients;
        (self.lines)().len() >= self.case.lines && (!self.case.unlogged || ended())
    }

    fn await_signals(&self, count: u32) {
        wait_for("the other side", || (self.go.load(Ordering::Acquire) >= count).then_some(()));
    }

    /// Waits as `act` says; `false` if it is something to do.
    fn wait(&self, act: &Act) -> bool {
        match act {
            Await => self.await_signals(1),
            AwaitAll(count) => self.await_signals(*count),
            Queued(count) => wait_for("the queue", || (self.queued() == *count).then_some(())),
            Connecting => wait_for("the server", || ((self.stat)("s", "scur") > 0).then_some(())),
            Counted => wait_for("the request", || ((self.stat)("FRONTEND", "req_tot") > 0).then_some(())),
            Lines(count) => wait_for("log lines", || ((self.lines)().len() >= *count).then_some(())),
            Logged => wait_for("the log lines", || self.over().then_some(())),
            _ => return false,
        }
        true
    }
}

/// One side of one conversation.
struct Side<'a> {
    stream: TcpStream,
    received: Vec<u8>,
    seen: usize,
    scene: &'a Scene<'a>,
}

impl Side<'_> {
    fn play(&mut self, acts: &[Act]) {
        for act in acts {
            match act {
                Act::Send(bytes) => self.write(bytes),
                Drip(text) => self.drip(text),
                Wait(text) => self.receive_until(text.as_bytes()),
                Signal => {
                    self.scene.go.fetch_add(1, Ordering::AcqRel);
                }
                End => self.receive_until(b"nothing like this is ever sent"),
                Finish => drop(self.stream.shutdown(Shutdown::Write)),
                Reset => super::reset_on_close(&self.stream),
                Await | AwaitAll(_) | Queued(_) | Connecting | Counted | Lines(_) | Logged => {
                    self.scene.wait(act);
                }
            }
        }
    }

    /// Writes until all is taken, the peer refuses, or the exchange is over.
    fn write(&mut self, mut bytes: &[u8]) {
        self.stream.set_write_timeout(Some(Duration::from_millis(20))).expect("settable");
        while !bytes.is_empty() {
            // Only a flood is given up.
            if bytes.len() > 1 << 20 && self.scene.over() {
                return;
            }
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn drip(&mut self, text: &str) {
        let bytes = text.bytes().chain(std::iter::repeat(b'a'));
        for byte in bytes.take(2_000) {
            if self.scene.over() || self.stream.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("two thousand bytes of a head were waited for");
    }

    fn receive_until(&mut self, text: &[u8]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.received[self.seen..].windows(text.len()).position(|window| window == text) {
                self.seen += at + text.len();
                return;
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return,
                Err(_) if self.scene.over() || Instant::now() > deadline => return,
                Err(_) => {}
            }
        }
    }

    /// Receives the rest; gives how it ended.
    fn receive_all(&mut self) -> &'static str {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        let mut buffer = [0; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return "closed",
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return "reset",
                Err(_) => return "open",
            }
        }
    }
}

/// Status line and body; long bodies by their size.
fn shown(received: &[u8]) -> String {
    let text = String::from_utf8_lossy(received);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or(("", &text));
    let status = head.lines().next().unwrap_or_default();
    if body.len() < 1_000 { format!("{status} | {body:?}") } else { format!("{status} | long") }
}

/// The log lines of a section so far.
fn log_lines(output: &str, section: &str, case: &Case) -> Vec<String> {
    let lines = output.lines().filter(|line| line.split(' ').nth(2) == Some(section));
    lines.filter_map(|line| log_line(line, section, case)).collect()
}

/// A log line without client, date, counts of the process's sessions and durations; -1 stays, for it says which phases
/// were reached.
fn log_line(line: &str, section: &str, case: &Case) -> Option<String> {
    let mut words: Vec<String> = line.split(' ').skip(3).map(str::to_owned).collect();
    // A sign before a number says that it was still growing.
    let times = words[1].split('/').map(|time| match time {
        "-1" => "-1",
        time if time.starts_with('+') => "+N",
        _ => "N",
    });
    words[1] = times.collect::<Vec<_>>().join("/");
    // A TCP line has neither a status nor cookies.
    let size = if words.get(3)?.len() == 2 { 2 } else { 3 };
    if case.any_size {
        words[size] = "N".into();
    }
    let counts = words.iter_mut().skip(2).find(|word| word.matches('/').count() == 4)?;
    let masked = if case.any_count { 2 } else { 1 };
    *counts = "N/".repeat(masked) + counts.splitn(masked + 1, '/').last()?;
    Some(words.join(" ").replace(section, "case"))
}

/// Where servers are that can't be reached.
struct Unreachable {
    refused: socket2::Socket,
    deaf: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Unreachable {
    fn new() -> Unreachable {
        let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let refused = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        refused.bind(&loopback.into()).expect("a port");
        let deaf = TcpListener::bind(loopback).expect("a port");
        // Once its backlog is full the kernel lets no further handshake end.
        socket2::SockRef::from(&deaf).listen(0).expect("listening");
        let address = deaf.local_addr().expect("bound");
        let waiting = (0..10).map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok());
        let waiting = waiting.collect();
        Unreachable { refused, deaf, _waiting: waiting }
    }

    fn fill(&self, line: &str, back: &TcpListener) -> String {
        let refused = self.refused.local_addr().ok().and_then(|address| address.as_socket()).expect("bound");
        line.replace("@BACK@", &back.local_addr().expect("bound").to_string())
            .replace("@REFUSED@", &refused.to_string())
            .replace("@DEAF@", &self.deaf.local_addr().expect("bound").to_string())
    }
}

/// Runs all cases through the proxy that `start` brings up; gives a transcript for each.
fn transcripts<P: Sync>(
    global: &str,
    cases: &[&Case],
    start: impl FnOnce(&str, &[&Listening]) -> P,
    program: fn(&P) -> &Program,
) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let stats = directory.path().join("stats");
    let unreachable = Unreachable::new();
    // One thread: two threads of haproxy that log at the same moment may lose a line.
    let mut configuration = format!(
        "global\n    nbthread 1\n    log stdout format raw local0\n    stats socket {}\n{global}\ndefaults\n    log global\n    \
         mode http\n    option httplog\n    timeout connect 60s\n    timeout queue 60s\n    timeout client 60s\n    timeout server 60s\n    timeout \
         http-request 60s\n    timeout http-keep-alive 2s\n    retries 0\n",
        stats.display()
    );
    let fronts: Vec<Listening> = cases.iter().map(|_| Listening::new()).collect();
    for (case, front) in cases.iter().zip(&fronts) {
        // A short timeout must not begin before a client that is kept from running has said what it is to say.
        if std::iter::once(&case.client).chain(&case.others).all(|acts| speaks_first(acts)) {
            super::accept_with_data(&front.listener);
        }
    }
    let backs: Vec<TcpListener> = cases.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    for (number, ((case, front), back)) in cases.iter().zip(&fronts).zip(&backs).enumerate() {
        configuration.push_str(&format!("\nlisten case{number}\n    bind {}\n", front.word()));
        for line in case.options.iter().chain(case.servers) {
            configuration.push_str(&format!("    {}\n", unreachable.fill(line, back)));
        }
    }
    let proxy = start(&configuration, &fronts.iter().collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let jobs: Vec<_> = cases
            .iter()
            .zip(fronts.iter().zip(&backs))
            .enumerate()
            .map(|(number, (case, (front, back)))| {
                let (proxy, stats) = (&proxy, &stats);
                let run = move || {
                    let section = format!("case{number}");
                    let lines = || log_lines(&program(proxy).output(), &section, case);
                    let scene = Scene {
                        case,
                        go: AtomicU32::new(0),
                        ended: AtomicU32::new(0),
                        stat: &|line, column| super::stat(stats, &section, line, column),
                        lines: &lines,
                    };
                    converse(front, back, &scene)
                };
                scope.spawn(run)
            })
            .collect();
        jobs.into_iter().map(|job| job.join().expect("no panic in a case")).collect()
    })
}

/// Returns whether a client sends something as soon as it is connected.
fn speaks_first(acts: &[Act]) -> bool {
    let is_wait =
        |act: &&Act| matches!(act, Await | AwaitAll(_) | Queued(_) | Connecting | Counted | Lines(_) | Logged);
    matches!(acts.iter().find(|act| !is_wait(act)), Some(Act::Send(_)))
}

fn converse(front: &Listening, back: &TcpListener, scene: &Scene<'_>) -> String {
    back.set_nonblocking(true).expect("settable");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The client's side says what was waited for in vain; this one only has to end.
            let deadline = Instant::now() + 2 * PATIENCE;
            while !scene.over() && Instant::now() < deadline {
                if let Ok((stream, _)) = back.accept() {
                    scope.spawn(move || serve(stream, scene));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let clients: Vec<_> = std::iter::once(&scene.case.client)
            .chain(&scene.case.others)
            .map(|acts| scope.spawn(move || ask(acts, front, scene)))
            .collect();
        let received: Vec<String> =
            clients.into_iter().map(|client| client.join().expect("no panic in a client")).collect();
        wait_for(scene.case.name, || scene.over().then_some(()));
        // Requests that are answered at the same moment are logged in any order.
        let mut lines = (scene.lines)();
        lines.sort_by_key(|line| line.find('"').map(|at| line[at..].to_owned()));
        format!("{}\n{}", received.join("\n"), lines.join("\n"))
    })
}

/// The server's side of one connection.
fn serve(stream: TcpStream, scene: &Scene<'_>) {
    stream.set_nonblocking(false).expect("settable");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("settable");
    let mut side = Side { stream, received: Vec::new(), seen: 0, scene };
    side.play(&scene.case.server);
    if !matches!(scene.case.server.last(), Some(Reset)) {
        scene.wait(&Logged);
    }
}

/// A client's side; gives what it got. It connects once what it waits for at first has come: a connection in TCP mode
/// takes its server without a byte being sent.
fn ask(acts: &[Act], front: &Listening, scene: &Scene<'_>) -> String {
    let waits = acts.iter().take_while(|act| scene.wait(act)).count();
    let stream = TcpStream::connect(front.address()).expect("the proxy listens");
    stream.set_nodelay(true).expect("settable");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("settable");
    let mut side = Side { stream, received: Vec::new(), seen: 0, scene };
    side.play(&acts[waits..]);
    if matches!(acts.last(), Some(Reset)) {
        return "gone".to_owned();
    }
    let end = side.receive_all();
    scene.ended.fetch_add(1, Ordering::AcqRel);
    format!("{} [{end}]", shown(&side.received))
}

fn check(cases: &[Case]) {
    check_with("", cases);
}

/// The same with further lines of `global`.
fn check_with(global: &str, cases: &[Case]) {
    let all: Vec<&Case> = cases.iter().collect();
    let alike: Vec<&Case> = cases.iter().filter(|case| case.instead.is_none()).collect();
    // Side by side, because both wait for what times out.
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| transcripts(global, &alike, Haproxy::start, |proxy| &proxy.program));
        let ours = transcripts(global, &all, crate::start, |proxy| &proxy.program);
        (ours, theirs.join().expect("no panic beside haproxy"))
    });
    let mut theirs = theirs.into_iter();
    let mut failures = String::new();
    for (case, ours) in cases.iter().zip(&ours) {
        let (expected, why) = match case.instead {
            Some((transcript, why)) => (transcript.to_owned(), why),
            None => (theirs.next().expect("one for each"), "as haproxy"),
        };
        if std::env::var_os("SLUICEGATE_TRANSCRIPTS").is_some() {
            println!("=== {}\n{expected}", case.name);
        }
        if *ours != expected {
            failures.push_str(&format!("=== {} ({why})\nexpected:\n{expected}\ngot:\n{ours}\n", case.name));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
