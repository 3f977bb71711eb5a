//! Limits and queues in front of a slow server, compared with Debian's haproxy with the same file.
//!
//! The server holds every request until the test starts the next round, so the tests count events and measure no times:
//! a round stands for one delay of a slow server, and a rate of `maxconn ÷ delay` is `maxconn` requests per round.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use sluicegate_testkit::{Haproxy, Listening, Sluicegate, wait_for};

use super::fixture::Whole;

const DEFAULTS: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n timeout \
                        queue 60s\n";

/// A server that answers when the test tells it to.
struct Slow {
    address: String,
    state: Arc<(Mutex<Held>, Condvar)>,
}

#[derive(Default)]
struct Held {
    /// Targets of the requests that are held, in the order of arrival.
    inside: Vec<String>,
    /// Targets of all requests so far.
    came: Vec<String>,
    peak: usize,
    /// The number of further requests that may be answered.
    released: usize,
    ended: bool,
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow";

impl Slow {
    fn new() -> Slow {
        let listener = sluicegate_testkit::lasting_listener();
        let address = listener.local_addr().expect("bound").to_string();
        let state: Arc<(Mutex<Held>, Condvar)> = Arc::default();
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Slow { address, state }
    }

    fn held(&self) -> usize {
        self.state.0.lock().expect("no panic").inside.len()
    }

    #[track_caller]
    fn wait_for_held(&self, count: usize) {
        wait_for(&format!("{count} requests at the server, {} are", self.held()), || {
            (self.held() == count).then_some(())
        });
    }

    /// Answers this number of the held requests.
    fn release(&self, count: usize) {
        self.state.0.lock().expect("no panic").released += count;
        self.state.1.notify_all();
    }

    fn peak(&self) -> usize {
        self.state.0.lock().expect("no panic").peak
    }

    fn came(&self) -> Vec<String> {
        self.state.0.lock().expect("no panic").came.clone()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.state.0.lock().expect("no panic").ended = true;
        self.state.1.notify_all();
    }
}

fn serve(mut stream: TcpStream, state: &(Mutex<Held>, Condvar)) {
    let mut head = Vec::new();
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let target = text.split(' ').nth(1).unwrap_or_default().to_owned();
        head.clear();
        {
            let mut held = state.0.lock().expect("no panic");
            held.inside.push(target.clone());
            held.came.push(target.clone());
            held.peak = held.peak.max(held.inside.len());
            let mut held = state
                .1
                .wait_while(held, |held| !held.ended && (held.released == 0 || held.inside.first() != Some(&target)))
                .expect("no panic");
            held.released = held.released.saturating_sub(1);
            let at = held.inside.iter().position(|inside| *inside == target).unwrap_or(0);
            held.inside.remove(at);
            if held.ended {
                return;
            }
            state.1.notify_all();
        }
        if stream.write_all(ANSWER).is_err() {
            return;
        }
    }
}

/// One of the two programs, in front of one slow server.
struct Gate {
    slow: Slow,
    address: String,
    stats: PathBuf,
    _parts: (Option<Haproxy>, Option<Whole>, Option<Listening>, tempfile::TempDir),
}

impl Gate {
    /// Starts a program. `{slow}` in the lines stands for the server's address, `{bind}` for the listening address.
    fn start(ours: bool, workers: usize, global: &str, lines: &str) -> Gate {
        let slow = Slow::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let lines = format!("{DEFAULTS}{}", lines.replace("{slow}", &slow.address));
        if ours {
            let text = format!("global\n{global}\n{}", lines.replace("{bind}", "127.0.0.1:1"));
            let whole = Whole::start(&text, workers);
            let (address, stats) = (whole.address(), whole.stats.clone());
            return Gate { slow, address, stats, _parts: (None, Some(whole), None, directory) };
        }
        let front = Listening::new();
        let stats = directory.path().join("stats.sock");
        let lines = lines.replace("{bind}", &front.word());
        let text =
            format!("global\n nbthread {workers}\n stats socket {} level admin\n{global}\n{lines}", stats.display());
        let haproxy = Haproxy::start(&text, &[&front]);
        let address = front.address();
        Gate { slow, address, stats, _parts: (Some(haproxy), None, Some(front), directory) }
    }

    fn ask(&self, command: &str) -> String {
        Sluicegate::stats(&self.stats, command)
    }

    /// Returns a figure of `show info`.
    fn info(&self, name: &str) -> String {
        let text = self.ask("show info");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    /// Returns a column of `show stat`.
    fn column(&self, object: &str, name: &str) -> String {
        let table = self.ask("show stat");
        let mut lines = table.lines();
        let header = lines.next().unwrap_or_default().trim_start_matches("# ");
        let at = header.split(',').position(|column| column == name).unwrap_or_else(|| panic!("no {name}"));
        let line = lines.find(|line| line.starts_with(object)).unwrap_or_else(|| panic!("no {object} in {table}"));
        line.split(',').nth(at).unwrap_or_default().to_owned()
    }

    fn client(&self, number: usize) -> Caller {
        let stream = TcpStream::connect(&self.address).expect("the kernel's queue has room");
        stream.set_nonblocking(true).expect("settable");
        Caller { stream, number, sent: 0, answers: 0, received: Vec::new() }
    }
}

/// A client that can send its next request as soon as it has an answer.
struct Caller {
    stream: TcpStream,
    number: usize,
    sent: usize,
    answers: usize,
    received: Vec<u8>,
}

impl Caller {
    fn send(&mut self) {
        self.send_with("");
    }

    fn send_with(&mut self, fields: &str) {
        self.sent += 1;
        let head = format!("GET /{}-{} HTTP/1.1\r\nHost: t\r\n{fields}\r\n", self.number, self.sent);
        self.stream.write_all(head.as_bytes()).expect("a request fits into the socket");
    }

    /// Receives the available bytes; returns whether an answer is complete.
    fn poll(&mut self) -> bool {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = self.stream.read(&mut buffer) {
            self.received.extend_from_slice(&buffer[..count]);
        }
        let whole = self.received.ends_with(b"slow");
        if whole {
            assert!(self.received.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.received));
            self.received.clear();
            self.answers += 1;
        }
        whole
    }
}

/// Waits until this number of clients has an answer; if `again` is set, these send their next request.
#[track_caller]
fn answers(callers: &mut [Caller], count: usize, again: bool) {
    let mut answered = 0;
    wait_for(&format!("{count} answers"), || {
        for caller in callers.iter_mut() {
            if caller.poll() {
                answered += 1;
                if again {
                    caller.send();
                }
            }
        }
        (answered >= count).then_some(())
    });
    assert_eq!(answered, count);
}

const CLIENTS: usize = 100;
const ROUNDS: usize = 3;

/// Allows from 20 to 100 connections for a hundred clients that keep their connections, in front of a slow server.
fn series(ours: bool, workers: usize) {
    for maxconn in [20, 40, 60, 80, 100] {
        // HAProxy accepts no descriptor with a number beyond the limit that it derives from its global maxconn.
        let (global, own) = if ours { (maxconn, CLIENTS) } else { (1_000, maxconn) };
        let lines = format!(
            "listen pool\n bind {{bind}}\n maxconn {own}\n backlog 300\n balance roundrobin\n fullconn 20\n server \
             slow {{slow}} cookie slow check inter 2000 rise 2 fall 3\n"
        );
        let gate = Gate::start(ours, workers, &format!(" maxconn {global}"), &lines);
        let mut callers: Vec<Caller> = (0..CLIENTS).map(|number| gate.client(number)).collect();
        callers.iter_mut().for_each(Caller::send);
        for round in 1..=ROUNDS {
            gate.slow.wait_for_held(maxconn);
            // The stats socket is served while clients are not.
            assert_eq!(gate.info("CurrConns"), maxconn.to_string(), "{maxconn}, round {round}");
            assert_eq!(gate.column("pool,slow,", "scur"), maxconn.to_string());
            gate.slow.release(maxconn);
            answers(&mut callers, maxconn, round < ROUNDS);
        }
        let failed = callers.iter().filter(|caller| caller.answers == 0).count();
        assert_eq!(failed, CLIENTS - maxconn, "a client outside the limit gets nothing, one inside all it asks for");
        assert!(callers.iter().all(|caller| matches!(caller.answers, 0 | ROUNDS)));
        // When the served clients leave, as many others are accepted as the limit allows.
        callers.retain(|caller| caller.answers == 0);
        let inside = callers.len().min(maxconn);
        gate.slow.wait_for_held(inside);
        gate.slow.release(inside);
        answers(&mut callers, inside, false);
        assert_eq!(gate.slow.peak(), maxconn);
    }
}

#[test]
fn a_slow_server_answers_as_many_requests_a_delay_as_maxconn_allows() {
    series(true, 1);
}

#[test]
fn workers_share_maxconn() {
    series(true, 4);
}

#[test]
fn haproxy_keeps_the_same_law() {
    series(false, 1);
}

#[test]
fn a_servers_limit_queues_and_fails_nobody() {
    for (ours, workers) in [(true, 1), (true, 4), (false, 1)] {
        let lines = "listen pool\n bind {bind}\n backlog 300\n server slow {slow} maxconn 7\n";
        let gate = Gate::start(ours, workers, "", lines);
        let mut callers: Vec<Caller> = (0..CLIENTS).map(|number| gate.client(number)).collect();
        callers.iter_mut().for_each(Caller::send);
        let mut left = CLIENTS;
        while left > 0 {
            let inside = left.min(7);
            gate.slow.wait_for_held(inside);
            wait_for("the queue", || {
                (gate.column("pool,BACKEND,", "qcur") == (left - inside).to_string()).then_some(())
            });
            gate.slow.release(inside);
            answers(&mut callers, inside, false);
            left -= inside;
        }
        assert_eq!(gate.slow.peak(), 7);
    }
}

#[test]
fn a_limit_follows_the_load_between_minconn_and_maxconn() {
    // Streams in the backend, and how many of them the server gets, even after one of them has left: the limit grows
    // in proportion to the streams, from 3 up to 12 at 24 streams.
    for (streams, expected) in [(4, 3), (9, 4), (17, 8), (25, 12), (31, 12)] {
        for ours in [true, false] {
            let lines = "listen pool\n bind {bind}\n fullconn 24\n server slow {slow} minconn 3 maxconn 12\n";
            let gate = Gate::start(ours, 1, "", lines);
            let mut callers: Vec<Caller> = (0..streams).map(|number| gate.client(number)).collect();
            callers.iter_mut().for_each(Caller::send);
            wait_for("the streams", || (gate.column("pool,BACKEND,", "scur") == streams.to_string()).then_some(()));
            gate.slow.release(1);
            answers(&mut callers, 1, false);
            gate.slow.wait_for_held(expected);
            assert!(gate.slow.peak() <= expected.max(streams * 12 / 24), "{ours} {streams}: {}", gate.slow.peak());
        }
    }
}

#[test]
fn fullconn_is_a_tenth_of_what_frontends_may_hold() {
    let lines = "frontend a\n bind {bind}\n maxconn 70\n use_backend x if { path /x }\n use_backend x if { path /y }\n \
                 use_backend %[path] if { path /z }\n default_backend y\nfrontend b\n maxconn 1001\n default_backend \
                 x\nfrontend c\n default_backend y\nbackend x\n server s {slow}\nbackend y\n server s {slow}\nbackend z\n \
                 server s {slow}\nbackend f\n fullconn 33\n server s {slow}\nlisten l\n maxconn 95\n server s {slow}\n";
    let limits = |ours: bool| {
        // Haproxy accepts no inherited socket whose number is beyond its own limit of descriptors.
        let gate = Gate::start(ours, 1, " maxconn 5000", lines);
        ["x", "y", "z", "f", "l"].map(|name| gate.column(&format!("{name},BACKEND,"), "slim"))
    };
    let ours = limits(true);
    assert_eq!(ours, limits(false));
    assert_eq!(ours, ["108", "507", "1", "33", "10"]);
}

#[test]
fn queues_go_by_priority_and_then_by_arrival() {
    let lines = "listen pool\n bind {bind}\n http-request set-priority-class req.hdr(class) if { req.hdr(class) -m found \
                 }\n http-request set-priority-offset req.hdr(offset)\n server slow {slow} maxconn 1\n";
    let wishes = [
        "",
        "Class: 5\r\n",
        "Offset: 400000\r\n",
        "Class: -1\r\n",
        "Offset: -300000\r\n",
        "",
        "Class: -5000\r\n",
        "Class: -2047\r\n",
        "Class: 5\r\nOffset: -400000\r\n",
        "Class: x\r\n",
        "Offset: 300000\r\n",
    ];
    let order = |ours: bool| {
        let gate = Gate::start(ours, 1, "", lines);
        let mut first = gate.client(99);
        first.send();
        gate.slow.wait_for_held(1);
        let mut callers = Vec::new();
        for (number, wish) in wishes.iter().enumerate() {
            let mut caller = gate.client(number);
            caller.send_with(wish);
            callers.push(caller);
            wait_for("its place in the queue", || {
                (gate.column("pool,BACKEND,", "qcur") == (number + 1).to_string()).then_some(())
            });
        }
        for _ in 0..=wishes.len() {
            gate.slow.wait_for_held(1);
            gate.slow.release(1);
            callers.push(std::mem::replace(&mut first, gate.client(98)));
            answers(&mut callers, 1, false);
        }
        gate.slow.came()
    };
    let ours = order(true);
    assert_eq!(ours, order(false));
    assert_eq!(ours[1..4], ["/6-1", "/7-1", "/3-1"], "{ours:?}");
}

#[test]
fn a_full_queue_of_a_hashs_server_refuses() {
    for ours in [true, false] {
        let lines = "listen pool\n bind {bind}\n balance uri\n server slow {slow} maxconn 1 maxqueue 2\n";
        let gate = Gate::start(ours, 1, "", lines);
        let mut callers: Vec<Caller> = (0..3).map(|number| gate.client(number)).collect();
        for (number, caller) in callers.iter_mut().enumerate() {
            caller.send();
            let figure = if number == 0 { "scur" } else { "qcur" };
            wait_for("its place", || (gate.column("pool,slow,", figure) == number.max(1).to_string()).then_some(()));
        }
        let mut refused = gate.client(3);
        refused.send();
        wait_for("a refusal", || {
            refused.poll();
            refused.received.starts_with(b"HTTP/1.1 503").then_some(())
        });
        for _ in 0..3 {
            gate.slow.wait_for_held(1);
            gate.slow.release(1);
            answers(&mut callers, 1, false);
        }
    }
}

#[test]
fn sessions_come_at_the_rate_that_is_allowed() {
    let lines = "listen pool\n bind {bind}\n rate-limit sessions 6\n http-request return status 200 content-type t \
                 string slow\n";
    let gate = Gate::start(true, 1, "", lines);
    let mut callers: Vec<Caller> = (0..20).map(|number| gate.client(number)).collect();
    callers.iter_mut().for_each(Caller::send);
    answers(&mut callers, 20, false);
    assert_eq!(gate.column("pool,FRONTEND,", "rate_lim"), "6");
    let highest: u32 = gate.column("pool,FRONTEND,", "rate_max").parse().expect("a number");
    assert!(highest <= 12, "{highest} sessions in one second");
}

#[test]
fn the_kernels_queue_is_as_long_as_backlog_says() {
    for (lines, expected) in [("", "1024"), (" maxconn 30\n", "30"), (" maxconn 30\n backlog 77\n", "77")] {
        let gate = Gate::start(true, 1, "", &format!("listen pool\n bind {{bind}}\n{lines} server slow {{slow}}\n"));
        let port = gate.address.rsplit(':').next().unwrap_or_default();
        let output = std::process::Command::new("ss").args(["-Hltn", &format!("sport = :{port}")]).output();
        let text = String::from_utf8(output.expect("ss runs").stdout).expect("text");
        assert_eq!(text.split_whitespace().nth(2), Some(expected), "{lines}: {text}");
    }
}
