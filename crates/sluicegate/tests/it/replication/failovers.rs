//! Three real Sentinels replace masters that are killed or stopped, in turn, while clients write. `SLUICEGATE_FAILOVERS`
//! sets how often.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_testkit::{Client, Listening, Program, Sluicegate, encode, free_port, wait_for};

use super::{Node, ask, await_replicas, replicaof};
use crate::BINARY;

/// Clients that write.
const WRITERS: usize = 3;
/// How long a writer waits for replicas, and for a reply of a server that may be stopped.
const WAIT_MS: &str = "1000";
const IMPATIENCE: Duration = Duration::from_secs(2);
/// The time between two writes of a client.
const PAUSE: Duration = Duration::from_millis(2);

/// Sends commands to a server that may be stopped or die. Returns the first lines of the replies; [`None`] if they have not
/// come in time.
struct Impatient {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Impatient {
    fn connect(port: u16) -> Option<Impatient> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(IMPATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Impatient { stream, received: Vec::new() })
    }

    fn lines(&mut self, commands: &[&[&str]], count: usize) -> Option<Vec<String>> {
        let bytes: Vec<u8> = commands.iter().flat_map(|words| encode(words)).collect();
        self.stream.write_all(&bytes).ok()?;
        let mut buffer = [0; 4096];
        while self.received.iter().filter(|byte| **byte == b'\n').count() < count {
            match self.stream.read(&mut buffer) {
                Ok(got) if got > 0 => self.received.extend_from_slice(&buffer[..got]),
                _ => return None,
            }
        }
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.received)).into_owned();
        Some(text.lines().map(str::to_owned).collect())
    }
}

/// Returns the port of the master, as a Sentinel has it.
fn master_of(sentinel: u16) -> Option<u16> {
    let lines = Impatient::connect(sentinel)?.lines(&[&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "it"]], 5)?;
    lines.get(4)?.parse().ok()
}

/// Writes to whatever the Sentinels call the master until it is over, and records the writes that a replica has, too.
fn write(name: usize, sentinels: [u16; 3], acknowledged: &Mutex<Vec<String>>, is_over: &AtomicBool) {
    let mut connection = None;
    for number in 0_u64.. {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep(PAUSE);
        if connection.is_none() {
            let master = sentinels.into_iter().find_map(master_of);
            connection = master.and_then(Impatient::connect);
        }
        let Some(current) = &mut connection else { continue };
        let written = format!("{name}:{number}");
        match current.lines(&[&["SADD", "written", &written], &["WAIT", "1", WAIT_MS]], 2).as_deref() {
            Some([added, waited]) if added == ":1" && waited.starts_with(':') => {
                if waited != ":0" {
                    acknowledged.lock().expect("no panic").push(written);
                }
            }
            // It is stopped, dead, or no master any more.
            _ => connection = None,
        }
    }
}

/// Three stores, the first of which is the master at first, and three Sentinels.
struct Watched {
    nodes: [Node; 3],
    ports: [u16; 3],
    sentinels: [(Program, u16); 3],
    _directory: tempfile::TempDir,
}

impl Watched {
    fn start() -> Watched {
        let first = Node::start("enable-debug-command yes");
        let port = first.port;
        let other = || Node::start(&format!("enable-debug-command yes\n{}", replicaof(port)));
        let nodes = [first, other(), other()];
        await_replicas(port, 2);
        let directory = tempfile::tempdir().expect("a directory");
        let sentinels = [(); 3].map(|()| {
            let own = free_port();
            let file = directory.path().join(format!("{own}.conf"));
            let text = format!(
                "port {own}\nbind 127.0.0.1\ndir {}\nsentinel monitor it 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds it 2500\nsentinel failover-timeout it 3000\nsentinel parallel-syncs it 2\n",
                directory.path().display(),
            );
            std::fs::write(&file, text).expect("written");
            let mut command = Command::new("redis-server");
            command.arg(file).arg("--sentinel");
            let mut program = Program::start(command, &[]);
            program.wait_for_output("+monitor master");
            // What it knows of replicas is never old, and a master that returns is one for a short time.
            let asked = Client::connect(&format!("127.0.0.1:{own}")).ask(&[
                "SENTINEL",
                "DEBUG",
                "info-period",
                "1000",
                "publish-period",
                "500",
            ]);
            assert_eq!(asked, "+OK\r\n");
            (program, own)
        });
        let ports = nodes.each_ref().map(|node| node.port);
        let watched = Watched { nodes, ports, sentinels, _directory: directory };
        for (_, sentinel) in &watched.sentinels {
            for (name, count) in [("num-slaves", "2"), ("num-other-sentinels", "2")] {
                wait_for(name, || {
                    let told = ask(*sentinel, &["SENTINEL", "MASTER", "it"])?;
                    told.contains(&format!("{name}\r\n$1\r\n{count}\r\n")).then_some(())
                });
            }
        }
        watched
    }

    /// Waits until all Sentinels agree on a master among these, which the others follow; its index. On a machine that is
    /// busy, Sentinels may change their minds; in the end they agree.
    fn settled(&self, live: &[usize]) -> usize {
        wait_for("a master that others follow", || {
            let leader = master_of(self.sentinels[0].1)?;
            let agrees = |(_, sentinel): &(Program, u16)| master_of(*sentinel) == Some(leader);
            let is_right = |index: &usize| {
                let text = ask(self.ports[*index], &["INFO", "replication"])?;
                let has = |line: &str| text.lines().any(|found| found == line);
                let follows = has(&format!("master_port:{leader}")) && has("master_link_status:up");
                let has_role = if self.ports[*index] == leader { has("role:master") } else { follows };
                has_role.then_some(())
            };
            let leader = live.iter().copied().find(|index| self.ports[*index] == leader)?;
            (self.sentinels.iter().all(agrees) && live.iter().all(|index| is_right(index).is_some())).then_some(leader)
        })
    }

    /// Checks that a master has these writes.
    fn check_has(&self, master: usize, written: &[String], context: &str) {
        let mut client = self.nodes[master].connect();
        for part in written.chunks(500) {
            let words = ["SMISMEMBER", "written"].into_iter().chain(part.iter().map(String::as_str));
            let reply = client.ask(&words.collect::<Vec<_>>());
            let lost: Vec<_> = reply.lines().skip(1).zip(part).filter(|(line, _)| *line != ":1").collect();
            assert!(lost.is_empty(), "{context}: {lost:?}");
        }
    }
}

/// Returns how often a master is replaced.
fn failovers() -> usize {
    std::env::var("SLUICEGATE_FAILOVERS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Masters that are killed or stopped are replaced and come back as replicas: each write that a replica has acknowledged is
/// there in the end, and what a stopped master was given behind its replacement is not. A `redis` section follows.
#[test]
fn sentinels_replace_a_master() {
    let mut watched = Watched::start();
    let sentinels = watched.sentinels.each_ref().map(|(_, port)| *port);
    let gate = Listening::new();
    let text = format!(
        "redis data\n    mode sentinel\n    sentinel-master it\n{}\ndefaults\n    mode http\n    timeout client 60s\n\
         frontend front\n    bind \"{}\"\n    http-request store-call data INCRBY proxied 1 set-var(txn.said)\n\
         \x20   http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n",
        sentinels.map(|port| format!("    server s{port} 127.0.0.1:{port}\n")).concat(),
        gate.word(),
    );
    let _proxy = Sluicegate::start(BINARY, &text, &[&gate]);
    let (acknowledged, is_over) = (Mutex::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for name in 0..WRITERS {
            let (acknowledged, is_over) = (&acknowledged, &is_over);
            scope.spawn(move || write(name, sentinels, acknowledged, is_over));
        }
        let _end = End(&is_over);
        let all = [0, 1, 2];
        let (mut leader, mut checked) = (0, 0);
        for round in 0..failovers() {
            let before = acknowledged.lock().expect("no panic").len();
            wait_for("writes", || (acknowledged.lock().expect("no panic").len() > before + 100).then_some(()));
            let (old, is_killed) = (leader, round % 2 == 0);
            let (signal, manner) = if is_killed { (libc::SIGKILL, "killed") } else { (libc::SIGSTOP, "stopped") };
            watched.nodes[old].program.signal(signal);
            let live: Vec<usize> = all.into_iter().filter(|index| *index != old).collect();
            let next = watched.settled(&live);
            // The section has found it.
            wait_for("a write of the section", || {
                let said = Client::connect(&gate.address()).get("/").text();
                said.parse::<u64>().is_ok().then_some(())
            });
            let stray = format!("stray:{round}");
            if is_killed {
                watched.nodes[old].again();
            } else {
                watched.nodes[old].program.signal(libc::SIGCONT);
                // It does not know yet, so it may accept this.
                ask(watched.ports[old], &["SET", &stray, "1"]);
            }
            leader = watched.settled(&all);
            let context = format!("failover {round}, {} was {manner}, {} then {}", old, next, leader);
            let written = acknowledged.lock().expect("no panic").clone();
            watched.check_has(leader, &written[checked..], &context);
            checked = written.len();
            for port in watched.ports {
                assert_eq!(ask(port, &["EXISTS", &stray]).as_deref(), Some(":0\r\n"), "{context}");
            }
            println!("{context}: {checked} writes");
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let leader = watched.settled(&[0, 1, 2]);
    let written = acknowledged.into_inner().expect("no panic");
    watched.check_has(leader, &written, "in the end");
    let mut client = watched.nodes[leader].connect();
    wait_for("equal digests", || {
        client.ask(&["INCR", "last"]);
        let waited = client.ask(&["WAIT", "2", WAIT_MS]);
        let digests = watched.ports.map(|port| ask(port, &["DEBUG", "DIGEST"]));
        (waited == ":2\r\n" && digests.iter().all(|digest| *digest == digests[0])).then_some(())
    });
    // The rewritten files say the same.
    wait_for("rewritten files", || {
        let is_right = |node: &Node| {
            let text = std::fs::read_to_string(node.path("redis.conf")).expect("a file");
            let follows = text.contains(&replicaof(watched.ports[leader]));
            if node.port == watched.ports[leader] { !text.contains("replicaof") } else { follows }
        };
        watched.nodes.iter().all(is_right).then_some(())
    });
}

/// Ends the writers when a check fails, too.
struct End<'f>(&'f AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
