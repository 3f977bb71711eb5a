//! Servers and clients that fail at every point of an exchange, through Debian's haproxy and through the binary: what
//! the client gets and the line in the access log, with its termination state, must be the same.
//!
//! A [`Case`] is data: what the client does and what the server does with each of its connections. One process of each
//! proxy serves all cases, a `listen` section each, all at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Tells the other side that it may go on.
    Signal,
    /// Waits for that.
    Await,
    /// Reads nothing until the log line is there.
    Logged,
    /// Receives until the proxy closes.
    End,
    /// Ends the sending direction.
    Finish,
    /// Ends the connection with a RST.
    Reset,
}

use Act::{Await, Drip, End, Finish, Logged, Reset, Signal, Wait};

fn send(bytes: impl Into<Vec<u8>>) -> Act {
    Act::Send(bytes.into())
}

struct Case {
    name: &'static str,
    /// Lines of its `listen` section beside `bind` and `server`.
    options: &'static [&'static str],
    client: Vec<Act>,
    server: Vec<Act>,
    /// How many bytes were sent depends on the kernel's buffers.
    any_size: bool,
    /// What is expected where it is not haproxy 2.6's own transcript, and why; 2.6 is not asked then.
    instead: Option<(&'static str, &'static str)>,
}

fn case(name: &'static str, options: &'static [&'static str], client: Vec<Act>, server: Vec<Act>) -> Case {
    Case { name, options, client, server, any_size: false, instead: None }
}

impl Case {
    fn any_size(mut self) -> Case {
        self.any_size = true;
        self
    }

    fn instead(mut self, why: &'static str, transcript: &'static str) -> Case {
        self.instead = Some((transcript, why));
        self
    }
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const HALF_A_POST: &str = "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n12345";
const HALF_CHUNKED: &str = "POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n";
const HALF_KNOWN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345";
const CHUNK: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n12345";
const SERVER_SHORT: &[&str] = &["timeout server 300ms"];
const CLIENT_SHORT: &[&str] = &["timeout client 300ms"];
const REQUEST_SHORT: &[&str] = &["timeout http-request 300ms"];
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

#[rustfmt::skip]
fn servers() -> Vec<Case> {
    vec![
        // No answer.
        case("closes before it answers", &[], vec![send(GET)], vec![head(), Finish]),
        case("resets before it answers", &[], vec![send(GET)], vec![head(), Reset]),
        case("closes in its head", &[], vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nX: "), Finish]),
        case("resets in its head", &[], vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nX: "), Reset]),
        case("resets in the request's body", &[], vec![send(HALF_A_POST)], vec![Wait("12345"), Reset])
            .instead("2.6 says nothing to the client, 3.2 says 502", "HTTP/1.1 502 Bad Gateway | \"<html><body><h1>502 Bad Gateway</h1>\\nThe server returned an invalid or incomplete response.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 502 209 - - SH-- 0/0 \"POST /p HTTP/1.1\""),
        case("never answers", SERVER_SHORT, vec![send(GET)], vec![head(), Logged]),
        case("stops in its head", SERVER_SHORT, vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nX: "), Logged]),
        case("never reads", SERVER_SHORT, vec![endless("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 67108000\r\n\r\n")], vec![Logged])
            .instead("2.6 says nothing to the client", "HTTP/1.1 504 Gateway Time-out | \"<html><body><h1>504 Gateway Time-out</h1>\\nThe server didn't respond in time.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 504 198 - - sH-- 0/0 \"POST /p HTTP/1.1\""),
        // Half an answer.
        case("closes in a body of known length", &[], vec![send(GET)], vec![head(), send(HALF_KNOWN), Finish]),
        case("resets in a body of known length", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(HALF_KNOWN), Await, Reset]),
        case("stops in a body of known length", SERVER_SHORT, vec![send(GET)], vec![head(), send(HALF_KNOWN), Logged]),
        case("closes between chunks", &[], vec![send(GET)], vec![head(), send(CHUNK), Finish]),
        case("closes in a chunk", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(CHUNK), Await, send("a\r\n123"), Finish]),
        case("closes in a chunk's size", &[], vec![send(GET)], vec![head(), send(CHUNK), send("1"), Finish]),
        case("resets between chunks", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(CHUNK), Await, Reset]),
        case("stops between chunks", SERVER_SHORT, vec![send(GET)], vec![head(), send(CHUNK), Logged]),
        case("closes an answer without an end", &[], vec![send(GET)], vec![head(), send(UNTIL_CLOSE), Finish]),
        case("resets an answer without an end", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(UNTIL_CLOSE), Await, Reset]),
        case("stops in an answer without an end", SERVER_SHORT, vec![send(GET)], vec![head(), send(UNTIL_CLOSE), Logged]),
        // Nonsense.
        case("speaks another protocol", &[], vec![send(GET)], vec![head(), send("220 mail.example ESMTP\r\n\r\n"), Logged]),
        case("speaks binary", &[], vec![send(GET)], vec![head(), send(b"\x16\x03\x01\x00\xff\x00\x01".as_slice()), Logged]),
        case("has a head larger than the buffer", &[], vec![send(GET)], vec![head(), send(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(40_000))), Logged]),
        case("has a bad chunk size", &[], vec![send(GET), Wait("12345"), Signal], vec![head(), send(CHUNK), Await, send("zz\r\n"), Logged]),
        // Without HTTP.
        case("tcp: closes", TCP, vec![send("hello"), Wait("bye"), Finish], vec![Wait("hello"), send("bye"), Finish]),
        case("tcp: resets", TCP, vec![send("hello"), Wait("bye"), Signal], vec![Wait("hello"), send("bye"), Await, Reset]),
        case("tcp: says nothing", &["mode tcp", "option tcplog", "timeout server 300ms"], vec![send("hello")], vec![Wait("hello"), Logged]),
    ]
}

#[rustfmt::skip]
fn clients() -> Vec<Case> {
    vec![
        // In the head.
        case("says nothing", REQUEST_SHORT, vec![], vec![]),
        case("stops in its head", REQUEST_SHORT, vec![send("GET / HT")], vec![]),
        case("drips its head", REQUEST_SHORT, vec![Drip("GET / HTTP/1.1\r\nX: ")], vec![]),
        case("closes in its head", &[], vec![send("GET / HT"), Finish], vec![]),
        case("resets in its head", &[], vec![send("GET / HT"), Reset], vec![]),
        // In the body.
        case("stops in its body", CLIENT_SHORT, vec![send(HALF_A_POST)], vec![Wait("12345")])
            .instead("2.6 waits for the server, which waits for the client", "HTTP/1.1 408 Request Time-out | \"<html><body><h1>408 Request Time-out</h1>\\nYour browser didn't send a complete request in time.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 408 232 - - cH-- 0/0 \"POST /p HTTP/1.1\""),
        case("stops between chunks", CLIENT_SHORT, vec![send(HALF_CHUNKED)], vec![Wait("12345")])
            .instead("2.6 waits for the server, which waits for the client", "HTTP/1.1 408 Request Time-out | \"<html><body><h1>408 Request Time-out</h1>\\nYour browser didn't send a complete request in time.\\n</body></html>\\n\" [closed]\ncase/s N/N/N/-1/N 408 232 - - cH-- 0/0 \"POST /p HTTP/1.1\""),
        case("closes in its body", &[], vec![send(HALF_A_POST), Await, Finish], vec![Wait("12345"), Signal, End]),
        case("closes between chunks", &[], vec![send(HALF_CHUNKED), Await, Finish], vec![Wait("12345"), Signal, End]),
        case("resets in its body", &[], vec![send(HALF_A_POST), Await, Reset], vec![Wait("12345"), Signal, End])
            .instead("on a loaded machine 2.6 at times wrote no line for it in 20 s", "gone\ncase/s N/N/N/-1/N -1 0 - - CD-- 0/0 \"POST /p HTTP/1.1\""),
        case("resets between chunks", &[], vec![send(HALF_CHUNKED), Await, Reset], vec![Wait("12345"), Signal, End])
            .instead("on a loaded machine 2.6 at times wrote no line for it in 20 s", "gone\ncase/s N/N/N/-1/N -1 0 - - CD-- 0/0 \"POST /p HTTP/1.1\""),
        case("has a bad chunk size", &[], vec![send(HALF_CHUNKED), Await, send("zz\r\n")], vec![Wait("12345"), Signal, End]),
        // While it is answered.
        case("resets before the answer", &[], vec![send(GET), Await, Reset], vec![head(), Signal, End])
            .instead("2.6 does not look, and goes on waiting for an answer that nobody wants", "gone\ncase/s N/N/N/-1/N 400 0 - - CH-- 0/0 \"GET /a HTTP/1.1\""),
        case("resets in an answer of known length", SERVER_SHORT, vec![send(GET), Wait("12345"), Reset], vec![head(), send(HALF_KNOWN), End]),
        case("resets in a chunked answer", SERVER_SHORT, vec![send(GET), Wait("12345"), Reset], vec![head(), send(CHUNK), End]),
        case("resets under a flood", &[], vec![send(GET), Wait("xxx"), Reset], vec![head(), endless("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")]).any_size(),
        case("never reads its answer", CLIENT_SHORT, vec![send(GET), Logged], vec![head(), endless("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")]).any_size(),
        // Without HTTP.
        case("tcp: resets", TCP, vec![send("hello"), Wait("bye"), Reset], vec![Wait("hello"), send("bye"), End]),
        case("tcp: says nothing", &["mode tcp", "option tcplog", "timeout client 300ms"], vec![Await], vec![send("hello"), Signal, End]),
        case("tcp: never reads", &["mode tcp", "option tcplog", "timeout client 300ms"], vec![send("hello"), Logged], vec![Wait("hello"), endless("")]).any_size(),
    ]
}

const UPGRADE: &str = "GET /u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: plain\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: plain\r\n\r\n";
const CONNECT: &str = "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const TUNNEL_SHORT: &[&str] = &["timeout tunnel 300ms"];

/// Endings that are neither's fault: what rules, queues and tunnels make of a stream.
#[rustfmt::skip]
fn endings() -> Vec<Case> {
    vec![
        case("is answered", &[], vec![send(GET), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("is asked twice", &[], vec![send(GET), Wait("ok"), Finish], vec![head(), send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), Logged]),
        case("is denied", &["http-request deny"], vec![send(GET), Finish], vec![]),
        case("is denied with a status", &["http-request deny deny_status 429"], vec![send(GET), Finish], vec![]),
        case("is rejected", &["http-request reject"], vec![send(GET)], vec![]),
        case("is refused by content", &["tcp-request content reject"], vec![send(GET)], vec![]),
        case("is redirected", &["http-request redirect location /x"], vec![send(GET), Finish], vec![]),
        case("is redirected late", &["redirect prefix /x code 301"], vec![send(GET), Finish], vec![]),
        case("is returned", &["http-request return status 404"], vec![send(GET), Finish], vec![]),
        case("has its response denied", &["http-response deny"], vec![send(GET), Finish], vec![head(), send(OK), Logged]),
        case("has its response returned", &["http-response return status 418 content-type text/plain string x"], vec![send(GET), Finish], vec![head(), send(OK), Logged]),
        case("has its response's content refused", &["tcp-response content reject"], vec![send(GET)], vec![head(), send(OK), Logged]),
        case("is tarpitted", &["timeout tarpit 200ms", "http-request tarpit"], vec![send(GET)], vec![]),
        case("is tarpitted with a status", &["timeout tarpit 200ms", "http-request tarpit deny_status 429"], vec![send(GET)], vec![]),
        case("is tarpitted with a body", &["timeout tarpit 200ms", "http-request tarpit"], vec![send(HALF_A_POST), send("12345")], vec![]),
        case("leaves the tarpit", &["timeout tarpit 20s", "http-request tarpit"], vec![send(GET), Finish], vec![]),
        // Tunnels.
        case("switches protocols", &[], vec![send(UPGRADE), Wait("hello"), send("bye"), Finish], vec![head(), send(format!("{SWITCH}hello")), Wait("bye"), Finish]),
        case("switches and is silent", TUNNEL_SHORT, vec![send(UPGRADE), Wait("hello")], vec![head(), send(format!("{SWITCH}hello")), Logged]),
        case("switches and closes", &[], vec![send(UPGRADE), Wait("hello")], vec![head(), send(format!("{SWITCH}hello")), Finish, End]).any_size(),
        case("refuses to switch", &[], vec![send(UPGRADE), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        case("connects", &[], vec![send(CONNECT), Wait("\r\n\r\n"), send("x"), Wait("y"), Finish], vec![head(), send("HTTP/1.1 200 OK\r\n\r\n"), Wait("x"), send("y"), Finish]),
        case("connects and is silent", TUNNEL_SHORT, vec![send(CONNECT), Wait("\r\n\r\n")], vec![head(), send("HTTP/1.1 200 OK\r\n\r\n"), Logged]),
        // Without HTTP.
        case("tcp: is refused by content", &["mode tcp", "option tcplog", "tcp-request content reject"], vec![], vec![]),
        case("tcp: response refused", &["mode tcp", "option tcplog", "tcp-response content reject"], vec![], vec![send("y"), Logged]),
        case("tcp: client closes first", TCP, vec![send("a"), Wait("b"), Finish], vec![Wait("a"), send("b"), End, Finish]),
        case("tcp: half closed for too long", &["mode tcp", "option tcplog", "timeout server-fin 300ms"], vec![send("a"), Wait("b"), Finish], vec![Wait("a"), send("b"), Logged]),
        case("tcp: server closed for too long", &["mode tcp", "option tcplog", "timeout client-fin 300ms"], vec![send("a"), Wait("b"), Logged], vec![Wait("a"), send("b"), Finish]),
        // Early lines.
        case("is logged early", &["option logasap"], vec![send(GET), Wait("ok"), Finish], vec![head(), send(OK), Logged]),
        // A malformed chunk in the same read as the head.
        case("has a bad chunk at once", &[], vec![send(GET)], vec![head(), send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), Logged]),
    ]
}

/// One side of one conversation.
struct Side<'a> {
    stream: TcpStream,
    received: Vec<u8>,
    seen: usize,
    go: &'a AtomicBool,
    /// The log line is there.
    over: &'a dyn Fn() -> bool,
}

impl Side<'_> {
    fn play(&mut self, acts: &[Act]) {
        for act in acts {
            match act {
                Act::Send(bytes) => self.write(bytes),
                Drip(text) => self.drip(text),
                Wait(text) => self.receive_until(text.as_bytes()),
                Signal => self.go.store(true, Ordering::Release),
                Await => wait_for("the other side", || self.go.load(Ordering::Acquire).then_some(())),
                Logged => wait_for("the log line", || (self.over)().then_some(())),
                End => self.receive_until(b"nothing like this is ever sent"),
                Finish => drop(self.stream.shutdown(Shutdown::Write)),
                Reset => super::reset_on_close(&self.stream),
            }
        }
    }

    /// Writes until all is taken, the peer refuses, or the exchange is over.
    fn write(&mut self, mut bytes: &[u8]) {
        self.stream.set_write_timeout(Some(Duration::from_millis(20))).expect("settable");
        while !bytes.is_empty() {
            // Only a flood is given up.
            if bytes.len() > 1 << 20 && (self.over)() {
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
            if (self.over)() || self.stream.write_all(&[byte]).is_err() {
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
                Err(_) if (self.over)() || Instant::now() > deadline => return,
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

/// The log line of a section without client, date, counts of sessions and durations; -1 stays, for it says which
/// phases were reached.
fn log_line(output: &str, section: &str, any_size: bool) -> Option<String> {
    let line = output.lines().find(|line| line.split(' ').nth(2) == Some(section))?;
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
    if any_size {
        words[size] = "N".into();
    }
    words.retain(|word| word.matches('/').count() != 4 || word.contains("-1") || word.contains('N'));
    Some(words.join(" ").replacen(section, "case", 1))
}

/// Runs all cases through the proxy that `start` brings up; gives a transcript for each.
fn transcripts<P: Sync>(
    cases: &[&Case],
    start: impl FnOnce(&str, &[&Listening]) -> P,
    program: fn(&P) -> &Program,
) -> Vec<String> {
    // One thread: two threads of haproxy that log at the same moment may lose a line.
    let mut configuration = String::from(
        "global\n    nbthread 1\n    log stdout format raw local0\n\ndefaults\n    log global\n    mode http\n    option httplog\n    \
         timeout connect 5s\n    timeout client 15s\n    timeout server 15s\n    timeout http-request 15s\n    \
         timeout http-keep-alive 500ms\n    retries 0\n",
    );
    let fronts: Vec<Listening> = cases.iter().map(|_| Listening::new()).collect();
    let backs: Vec<TcpListener> = cases.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    for (number, ((case, front), back)) in cases.iter().zip(&fronts).zip(&backs).enumerate() {
        configuration.push_str(&format!("\nlisten case{number}\n    bind {}\n", front.word()));
        for option in case.options {
            configuration.push_str(&format!("    {option}\n"));
        }
        configuration.push_str(&format!("    server s {}\n", back.local_addr().expect("bound")));
    }
    let proxy = start(&configuration, &fronts.iter().collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let jobs: Vec<_> = cases
            .iter()
            .zip(fronts.iter().zip(&backs))
            .enumerate()
            .map(|(number, (case, (front, back)))| {
                let proxy = &proxy;
                let run = move || {
                    let section = format!("case{number}");
                    let line = || log_line(&program(proxy).output(), &section, case.any_size);
                    converse(case, front, back, &line)
                };
                scope.spawn(run)
            })
            .collect();
        jobs.into_iter().map(|job| job.join().expect("no panic in a case")).collect()
    })
}

fn converse(case: &Case, front: &Listening, back: &TcpListener, line: &(dyn Fn() -> Option<String> + Sync)) -> String {
    let go = AtomicBool::new(false);
    back.set_nonblocking(true).expect("settable");
    std::thread::scope(|scope| {
        let over = || line().is_some();
        scope.spawn(|| {
            let over = || line().is_some();
            // The client's side says what was waited for in vain; this one only has to end.
            let deadline = Instant::now() + 2 * PATIENCE;
            while !over() && Instant::now() < deadline {
                if let Ok((stream, _)) = back.accept() {
                    stream.set_nonblocking(false).expect("settable");
                    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("settable");
                    let mut side = Side { stream, received: Vec::new(), seen: 0, go: &go, over: &over };
                    side.play(&case.server);
                    if !matches!(case.server.last(), Some(Reset)) {
                        wait_for("the log line", || over().then_some(()));
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let stream = TcpStream::connect(front.address()).expect("the proxy listens");
        stream.set_nodelay(true).expect("settable");
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("settable");
        let mut side = Side { stream, received: Vec::new(), seen: 0, go: &go, over: &over };
        side.play(&case.client);
        let received = if matches!(case.client.last(), Some(Reset)) {
            drop(side);
            "gone".to_owned()
        } else {
            let end = side.receive_all();
            // What the proxy may wait for before it calls the exchange ended.
            drop(side.stream);
            format!("{} [{end}]", shown(&side.received))
        };
        let line = wait_for(case.name, line);
        format!("{received}\n{line}")
    })
}

fn check(cases: &[Case]) {
    let all: Vec<&Case> = cases.iter().collect();
    let ours = transcripts(&all, crate::start, |proxy| &proxy.program);
    let alike: Vec<&Case> = cases.iter().filter(|case| case.instead.is_none()).collect();
    let mut theirs = transcripts(&alike, Haproxy::start, |proxy| &proxy.program).into_iter();
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

#[test]
fn every_other_ending_is_told_and_logged_as_haproxy_does() {
    check(&endings());
}

#[test]
fn failing_servers_are_told_and_logged_as_haproxy_does() {
    check(&servers());
}

#[test]
fn failing_clients_are_told_and_logged_as_haproxy_does() {
    check(&clients());
}
