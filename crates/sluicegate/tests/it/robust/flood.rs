//! Overload: clients that don't read, full queues, exhausted descriptors. Memory stays bounded, no thread spins, and
//! clients that waited are served.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, Program, cpu_time, descriptors, rss_bytes, wait_for};

use super::{Gate, PATIENT, stat};
use crate::BINARY;

const MEGABYTE: u64 = 1 << 20;

/// Waits until the process has nothing left to do: everything it holds is stuck in the kernel's buffers.
pub(super) fn wait_until_idle(pid: u32) {
    let mut last = Duration::MAX;
    wait_for("the process to rest", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = cpu_time(pid);
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
}

/// An origin in a process of its own, so that its memory is not counted.
fn origin() -> (Gate, Listening) {
    let address = Listening::new();
    let text = format!("{PATIENT}origin o\n    bind {}\n", address.word());
    (Gate::start(1, "", &text, &[&address]), address)
}

#[test]
fn clients_that_do_not_read_cost_bounded_memory() {
    const CLIENTS: usize = 200;
    let (_origin, origin) = origin();
    let (http, tcp) = (Listening::new(), Listening::new());
    let text = format!(
        "{PATIENT}listen http\n    bind {}\n    server o {origin}\nlisten tcp\n    mode tcp\n    bind {}\n    \
         server o {origin}\n",
        http.word(),
        tcp.word(),
        origin = origin.address()
    );
    let gate = Gate::start(2, "", &text, &[&http, &tcp]);
    assert_eq!(Client::connect(&http.address()).get("/bytes/1000000").body.len(), 1_000_000);
    let before = rss_bytes(gate.pid());
    for front in [&http, &tcp] {
        let clients: Vec<Client> = (0..CLIENTS)
            .map(|_| {
                let mut client = Client::connect(&front.address());
                client.send("GET /bytes/100000000 HTTP/1.1\r\nHost: test\r\n\r\n");
                client
            })
            .collect();
        wait_for("the responses to begin", || (gate.info("TotalBytesOut") > CLIENTS as u64).then_some(()));
        wait_until_idle(gate.pid());
        let grown = rss_bytes(gate.pid()).saturating_sub(before);
        // The buffers for both directions take 32 KiB; twice that is a generous limit, a whole response has 100 MB.
        let limit = CLIENTS as u64 * 64 * 1024 + 4 * MEGABYTE;
        assert!(grown < limit, "{CLIENTS} clients cost {grown} bytes");
        drop(clients);
        wait_for("the clients' end", || (gate.info("CurrConns") == 0).then_some(()));
    }
    assert_eq!(Client::connect(&http.address()).get("/fast").text(), "I'm FAST!!!!");
}

/// Uploads to a server that never reads: the same, in the other direction.
#[test]
fn servers_that_do_not_read_cost_bounded_memory() {
    const CLIENTS: usize = 50;
    let front = Listening::new();
    let back = TcpListener::bind("127.0.0.1:0").expect("a port");
    let text =
        format!("{PATIENT}listen l\n    bind {}\n    server s {}\n", front.word(), back.local_addr().expect("bound"));
    let gate = Gate::start(1, "", &text, &[&front]);
    let before = rss_bytes(gate.pid());
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::connect(&front.address());
            client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
            client.stream().set_nonblocking(true).expect("settable");
            client
        })
        .collect();
    let _accepted: Vec<TcpStream> = (0..CLIENTS).map(|_| back.accept().expect("a connection").0).collect();
    let piece = vec![b'x'; 1 << 20];
    // Each round writes what the kernel accepts; when no socket accepts any more, all buffers are full.
    wait_for("full buffers", || {
        let mut taken = 0;
        for client in &clients {
            while let Ok(count @ 1..) = client.stream().write(&piece) {
                taken += count;
            }
        }
        wait_until_idle(gate.pid());
        (taken == 0).then_some(())
    });
    let grown = rss_bytes(gate.pid()).saturating_sub(before);
    assert!(grown < CLIENTS as u64 * 64 * 1024 + 4 * MEGABYTE, "{CLIENTS} uploads cost {grown} bytes");
}

/// A server that serves one request at a time and says in which order they came.
const QUEUE: &str = "global\n    log stdout format raw local0\n    stats socket SOCKET mode 600 level admin\n\
                     defaults\n    log global\n    mode http\n    option httplog\n    timeout connect 60s\n    \
                     timeout client 60s\n    timeout server 60s\n";

struct Queue {
    front: Listening,
    back: TcpListener,
    stats: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Queue {
    fn new() -> (Queue, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let (front, back) = (Listening::new(), TcpListener::bind("127.0.0.1:0").expect("a port"));
        let stats = directory.path().join("stats");
        let text = format!(
            "{}listen q\n    bind {}\n    timeout queue TIMEOUT\n    server s {} maxconn 1\n",
            QUEUE.replace("SOCKET", stats.to_str().expect("UTF-8")),
            front.word(),
            back.local_addr().expect("bound")
        );
        (Queue { front, back, stats, _directory: directory }, text)
    }

    /// Who waits for any server of a backend waits in the backend's queue.
    fn queued(&self) -> u64 {
        stat(&self.stats, "q", "BACKEND", "qcur").max(stat(&self.stats, "q", "s", "qcur"))
    }

    fn request(&self, path: usize) -> Client {
        let mut client = Client::connect(&self.front.address());
        client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        client
    }

    /// Reads a request; gives its number.
    fn accept(&self) -> (TcpStream, usize) {
        self.back.set_nonblocking(true).expect("settable");
        let (mut stream, _) = wait_for("a connection to the server", || self.back.accept().ok());
        stream.set_nonblocking(false).expect("settable");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            assert_eq!(stream.read(&mut byte).expect("a request"), 1);
            head.push(byte[0]);
        }
        let path = String::from_utf8_lossy(&head).split_whitespace().nth(1).map(str::to_owned);
        let number = path.and_then(|path| path.trim_start_matches('/').parse().ok()).expect("a number");
        (stream, number)
    }

    /// Holds the server with one request, queues five more one after the other, and gives the order of service.
    fn order(&self) -> Vec<usize> {
        let mut clients = vec![self.request(0)];
        let mut held = self.accept();
        for number in 1..6 {
            clients.push(self.request(number));
            wait_for("its place in the queue", || (self.queued() == number as u64).then_some(()));
        }
        let mut order = Vec::new();
        loop {
            order.push(held.1);
            held.0.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("it reads");
            drop(held);
            if order.len() == clients.len() {
                break;
            }
            held = self.accept();
        }
        clients.iter_mut().for_each(|client| assert_eq!(client.read_response().status, 200));
        order
    }

    /// A request waits behind another until its time is over; gives its answer and both log lines' ends.
    fn timed_out(&self, program: &Program) -> String {
        let mut first = self.request(1);
        let (mut server, _) = self.accept();
        let late = self.request(2).read_response();
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("it reads");
        assert_eq!(first.read_response().status, 200);
        let line = wait_for("the log line", || {
            let output = program.output();
            output.lines().find(|line| line.contains("\"GET /2 ")).map(str::to_owned)
        });
        let words: Vec<&str> = line.split(' ').collect();
        let times: Vec<&str> = words[4].split('/').map(|time| if time == "-1" { time } else { "N" }).collect();
        format!("{} {} {} {:?}", late.status, late.text(), times.join("/"), [words[3], words[5], words[9], words[11]])
    }
}

#[test]
fn who_waits_for_a_server_is_served_in_order_as_with_haproxy() {
    let (queue, text) = Queue::new();
    // HAProxy's threads queue by separate clocks, which differ by a millisecond, so only a single thread keeps the
    // order.
    let one = text.replace("global\n    log stdout", "global\n    nbthread 1\n    log stdout");
    let haproxy = Haproxy::start(&one.replace("TIMEOUT", "60s"), &[&queue.front]);
    assert_eq!(queue.order(), [0, 1, 2, 3, 4, 5]);
    drop(haproxy);
    let (queue, text) = Queue::new();
    let text =
        text.replace("global\n    log stdout", "global\n    nbthread 2\n    log stdout").replace("TIMEOUT", "60s");
    let _server = crate::start(&text, &[&queue.front]);
    assert_eq!(queue.order(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn who_waits_too_long_is_told_so_as_with_haproxy() {
    let (queue, text) = Queue::new();
    let haproxy = Haproxy::start(&text.replace("TIMEOUT", "300ms"), &[&queue.front]);
    let theirs = queue.timed_out(&haproxy.program);
    drop(haproxy);
    let (queue, text) = Queue::new();
    let server = crate::start(&text.replace("TIMEOUT", "300ms"), &[&queue.front]);
    let ours = queue.timed_out(&server.program);
    assert_eq!(ours, theirs);
    assert!(ours.starts_with("503 ") && ours.contains("sQ--"), "{ours}");
}

/// The binary under a limit of descriptors.
fn start_limited(limit: usize, text: &str, listening: &[&Listening]) -> (Program, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("limited.cfg");
    std::fs::write(&file, text.replace("@DIR@", directory.path().to_str().expect("UTF-8"))).expect("writable");
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limit}:{limit}")).arg(BINARY).arg("run").arg(&file);
    let fds: Vec<_> = listening.iter().map(|one| one.fd()).collect();
    (Program::start(command, &fds), directory)
}

/// Returns the CPU time that an idle process uses within half a second.
fn idle_cost(pid: u32) -> Duration {
    let before = cpu_time(pid);
    std::thread::sleep(Duration::from_millis(500));
    cpu_time(pid) - before
}

/// The start reserves descriptors for the store's clients; if an administrator then allows more clients, these can take
/// all descriptors. Everything else then waits, and no thread spins.
#[test]
fn without_descriptors_the_process_waits_and_then_goes_on() {
    const LIMIT: usize = 300;
    // Kept below the store's sockets, for the listeners' own numbers must fit under the limit.
    let (front, store, origin) = (Listening::new(), Listening::new(), Listening::new());
    let text = format!(
        "global\n    nbthread 2\n    stats socket @DIR@/stats level admin\n{PATIENT}store main\n    bind {}\n\
         origin o\n    bind {}\nlisten l\n    bind {}\n    server o {}\n",
        store.word(),
        origin.word(),
        front.word(),
        origin.address()
    );
    let (mut program, directory) = start_limited(LIMIT, &text, &[&front, &store, &origin]);
    let stats = directory.path().join("stats");
    assert_eq!(Client::connect(&front.address()).get("/fast").status, 200);
    wait_for("the session's end", || (super::info(&stats, "CurrConns") == 0).then_some(()));
    assert_eq!(Client::connect(&store.address()).ask(&["CONFIG", "SET", "maxclients", "10000"]), "+OK\r\n");
    let baseline = descriptors(program.pid());
    // The kernel completes them all; the process accepts as many as it can.
    let mut clients: Vec<Client> = (0..LIMIT).map(|_| Client::connect(&store.address())).collect();
    wait_for("the last descriptor", || (descriptors(program.pid()) >= LIMIT).then_some(()));
    let mut waiting: Vec<Client> = (0..5).map(|_| Client::connect(&front.address())).collect();
    for client in &mut waiting {
        client.send("GET /fast HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    }
    // Twenty failing accepts a second cost next to nothing; a busy loop would take half a second of each worker.
    let cost = wait_for("rest", || Some(idle_cost(program.pid())).filter(|cost| *cost < Duration::from_millis(200)));
    assert!(program.is_running(), "{cost:?}");
    assert_eq!(clients[0].ask(&["PING"]), "+PONG\r\n", "who is in is served");
    drop(clients);
    // A client that gets the first free descriptor may find none for its server.
    for client in &mut waiting {
        assert!(matches!(client.read_response().status, 200 | 503), "who waited is answered");
    }
    drop(waiting);
    wait_for("the descriptors", || (descriptors(program.pid()) <= baseline + 2).then_some(()));
    assert_eq!(Client::connect(&front.address()).get("/fast").status, 200);
}

/// More clients than descriptors: the `maxconn` that is derived from the limit keeps the rest in the backlog.
#[test]
fn more_clients_than_descriptors_are_served_in_turn() {
    let (front, origin) = (Listening::new(), Listening::new());
    // The origin is a separate process, so that its connections do not count against `maxconn`.
    let _origin = crate::start(&format!("origin o\n    bind {}\n", origin.word()), &[&origin]);
    let text = format!(
        "global\n    nbthread 2\n{PATIENT}listen l\n    bind {}\n    server o {}\n",
        front.word(),
        origin.address()
    );
    let (mut program, _directory) = start_limited(260, &text, &[&front]);
    let mut clients: Vec<Client> = (0..120).map(|_| Client::connect(&front.address())).collect();
    for client in &mut clients {
        client.send("GET /fast HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.read_response().status, 200);
    }
    assert!(program.is_running());
}

#[test]
fn a_maxconn_beyond_the_limit_is_refused_with_its_number() {
    let front = Listening::new();
    let text = format!(
        "global\n    maxconn 1500000000\n{PATIENT}frontend f\n    bind {}\n    http-request return status 200\n",
        front.word()
    );
    let (mut program, _directory) = start_limited(300, &text, &[&front]);
    assert_eq!(program.wait(), 1);
    let output = program.output();
    for expected in ["Cannot raise FD limit to 30000", "limit is 300", "hint: "] {
        assert!(output.contains(expected), "no {expected:?} in: {output}");
    }
}
