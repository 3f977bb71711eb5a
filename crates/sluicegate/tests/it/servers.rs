//! `add server` and `del server`, beside Debian's haproxy, under traffic and over a reload.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use crate::{BINARY, start};

fn file(gate: &Listening, place: &str) -> String {
    format!(
        "global\n stats socket {place} level admin\n nbthread 2\ndefaults\n mode http\n timeout client 20s\n timeout server \
         20s\n timeout connect 1s\n timeout queue 20s\nfrontend f\n bind {}\n default_backend t\nbackend t\n server w \
         127.0.0.1:1 disabled\nbackend ring\n balance source\n hash-type consistent\n server w 127.0.0.1:1\nbackend map\n \
         balance source\n server w 127.0.0.1:1\nbackend fixed\n balance static-rr\n server w 127.0.0.1:1\nbackend named\n \
         use-server w if TRUE\n server w 127.0.0.1:1 disabled\n server checked 127.0.0.1:1 check inter 1h disabled\n \
         server behind 127.0.0.1:1 track named/checked\n",
        gate.word()
    )
}

/// Both programs, by their stats sockets.
fn both() -> ([PathBuf; 2], impl Sized) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let gates = [Listening::new(), Listening::new()];
    let haproxy = Haproxy::start(&file(&gates[0], &place.display().to_string()), &[&gates[0]]);
    let server = start(&file(&gates[1], "@DIR@/stats"), &[&gates[1]]);
    let own = server.directory().join("stats");
    ([place, own], (directory, gates, haproxy, server))
}

/// Name, state, weight, roles, number and address of each server.
fn servers(place: &Path, backend: &str) -> Vec<String> {
    let text = Sluicegate::stats(place, &format!("show stat {backend} 4 -1"));
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        [1, 17, 18, 19, 20, 28, 73].map(|index| cells[index]).join(" ")
    };
    lines.map(cells).collect()
}

fn admin(place: &Path, backend: &str) -> Vec<String> {
    let text = Sluicegate::stats(place, &format!("show servers state {backend}"));
    let lines = text.lines().skip(2).filter(|line| !line.is_empty());
    // Name, states, weights, and what is known of checks and agents. Whether a check that is off rests besides for its
    // server's maintenance is told otherwise by haproxy if that is how the server came.
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split(' ').collect();
        let check: u32 = cells[13].parse().expect("a number");
        format!("{} {}", [3, 5, 6, 7, 8, 12, 14].map(|index| cells[index]).join(" "), check & !8)
    };
    lines.map(cells).collect()
}

#[test]
fn servers_come_and_go_as_in_haproxy() {
    let ([haproxy, own], _running) = both();
    for command in [
        "add server t/a 127.0.0.1:2",
        "add server t/a 127.0.0.1:2",
        "add server none/a 127.0.0.1:2",
        "add server f/a 127.0.0.1:2",
        "add server t",
        "add server t/",
        "add server",
        "add server t/a/b 127.0.0.1:2",
        "add server t/b",
        "add server t/q! 127.0.0.1:2",
        "add server map/a 127.0.0.1:2",
        "add server fixed/a 127.0.0.1:2",
        "add server ring/a 127.0.0.1:2 check inter 1h",
        "add server t/name name.invalid:80",
        "add server t/c 127.0.0.1:2 cookie x",
        "add server t/c 127.0.0.1:2 init-addr none",
        "add server t/c 127.0.0.1:2 resolvers default",
        "add server t/numbered 127.0.0.1:2 id 77",
        "add server t/spare 127.0.0.1:2 backup maxconn 3",
        "add server t/off 127.0.0.1:2 disabled",
        "add server t/on 127.0.0.1:2 enabled",
        "add server t/agent 127.0.0.1:2 agent-check agent-port 9 agent-inter 1h",
        "add server t/slow 127.0.0.1:2 slowstart 3s",
        "add server t/late 127.0.0.1:2 enabled send-proxy",
        "del server t/a",
        "del server t/a",
        "del server none/a",
        "del server t",
        "del server",
        "del server t/on",
        "set server t/on state drain",
        "del server t/on",
        "set server t/on state maint",
        "del server t/on",
        "set server t/on state ready",
        "add server t/next 127.0.0.1:3",
        "enable server t/next",
        "disable server t/next",
        "set server t/next addr 127.0.0.4 port 4",
        "enable health ring/a",
        "disable health ring/a",
        "enable agent t/agent",
        "disable agent t/agent",
        "del server t/agent",
        // What the file has may go as well, unless something needs it.
        "del server t/w",
        "del server named/w",
        "del server named/checked",
        "del server named/behind",
        "set server named/behind health up",
        "set server named/behind health",
        "get weight t/next",
        "del server t/next",
    ] {
        assert_eq!(Sluicegate::stats(&own, command), Sluicegate::stats(&haproxy, command), "{command}");
        for backend in ["t", "ring", "map", "fixed", "named"] {
            assert_eq!(servers(&own, backend), servers(&haproxy, backend), "{backend} after {command}");
        }
        for backend in ["t", "ring"] {
            assert_eq!(admin(&own, backend), admin(&haproxy, backend), "{backend} after {command}");
        }
    }
    for (command, said) in [
        ("add server t/x 127.0.0.1:2 foo", "unknown keyword 'foo'"),
        ("add server t/x 127.0.0.1:2 weight 300", "'weight'"),
        ("add server t/x 127.0.0.1:2 weight", "expects"),
        ("add server t/x 127.0.0.1:2 id 77", "custom id 77 already used"),
        ("add server t/x 127.0.0.1:2 track t/slow", "unable to use t/slow for tracking"),
        ("add server t/x 127.0.0.1:2 check track t/slow", "at the same time"),
        ("add server t/x 127.0.0.1 check", "neither service port nor check port"),
        ("add server t/x nonsense[:2", "invalid"),
    ] {
        let answer = Sluicegate::stats(&own, command);
        assert!(answer.contains(said), "{command}: {answer}");
        assert!(!servers(&own, "t").iter().any(|line| line.starts_with("x ")));
    }
}

/// A server that answers each request with its name, connection after connection.
fn origin(name: &'static str) -> (u16, Arc<AtomicBool>) {
    let listening = Listening::new();
    let port = listening.port();
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listening.listener.accept() {
            if end.load(Ordering::SeqCst) {
                return;
            }
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 2048];
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                while let Ok(1..) = std::io::Read::read(&mut stream, &mut buffer) {
                    if std::io::Write::write_all(&mut stream, answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, ended)
}

#[test]
fn traffic_goes_where_servers_are() {
    let gate = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    let ask = |command: &str| Sluicegate::stats(&place, command).trim_end().to_owned();
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 503);
    let (one, _) = origin("one");
    let (two, _) = origin("two");
    assert_eq!(ask(&format!("add server t/one 127.0.0.1:{one}")), "New server registered.");
    // It begins in maintenance.
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").status, 503);
    assert_eq!(ask("enable server t/one"), "");
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/").text(), "one");
    // Requests that never fail, while servers come and go.
    let ended = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..3)
        .map(|_| {
            let (ended, address) = (ended.clone(), gate.address());
            std::thread::spawn(move || {
                let mut counts = [0u32; 2];
                while !ended.load(Ordering::SeqCst) {
                    let mut client = Client::connect(&address);
                    for _ in 0..20 {
                        let response = client.get("/");
                        assert_eq!(response.status, 200);
                        counts[usize::from(response.text() == "two")] += 1;
                    }
                }
                counts
            })
        })
        .collect();
    for _ in 0..8 {
        assert_eq!(ask(&format!("add server t/two 127.0.0.1:{two} enabled")), "New server registered.");
        wait_for("its turn", || {
            let text = Sluicegate::stats(&place, "show stat t 4 -1");
            let line = text.lines().find(|line| line.starts_with("t,two,"))?;
            (line.split(',').nth(7)?.parse::<u32>().ok()? > 5).then_some(())
        });
        assert_eq!(ask("disable server t/two"), "");
        wait_for("its last request", || (ask("del server t/two") == "Server deleted.").then_some(()));
    }
    ended.store(true, Ordering::SeqCst);
    let counts = load.into_iter().map(|thread| thread.join().expect("no request fails"));
    let sum = counts.fold([0, 0], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]]);
    assert!(sum[0] > 0 && sum[1] > 0, "{sum:?}");
    // What is counted of the other server went on.
    let text = Sluicegate::stats(&place, "show stat t 4 -1");
    let line = text.lines().find(|line| line.starts_with("t,one,")).expect("the first server");
    let total: u32 = line.split(',').nth(7).and_then(|cell| cell.parse().ok()).expect("a number");
    assert_eq!(total, sum[0] + 1);
}

#[test]
fn a_server_with_requests_stays() {
    let gate = Listening::new();
    let target = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    Sluicegate::stats(&place, &format!("add server t/one 127.0.0.1:{} enabled", target.port()));
    let mut client = Client::connect(&gate.address());
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let (mut stream, _) = target.listener.accept().expect("a connection");
    Sluicegate::stats(&place, "disable server t/one");
    let said = Sluicegate::stats(&place, "del server t/one");
    assert_eq!(said.trim_end(), "Server still has connections attached to it, cannot remove it.");
    // Another server takes its place meanwhile, and the request ends where it began.
    Sluicegate::stats(&place, "add server t/two 127.0.0.1:1");
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("it reads");
    assert_eq!(client.read_response().text(), "ok");
    wait_for("its end", || Sluicegate::stats(&place, "del server t/one").starts_with("Server deleted.").then_some(()));
}

#[test]
fn a_reload_knows_the_file_only() {
    let gate = Listening::new();
    let server = start(&file(&gate, "@DIR@/stats"), &[&gate]);
    let place = server.directory().join("stats");
    let before = servers(&place, "t");
    Sluicegate::stats(&place, "add server t/more 127.0.0.1:2 enabled");
    Sluicegate::stats(&place, "set server named/checked weight 7");
    assert_eq!(Sluicegate::stats(&place, "del server t/w").trim_end(), "Server deleted.");
    assert_eq!(servers(&place, "t"), ["more no check 1 1 0 2 127.0.0.1:2"]);
    let pid = server.program.pid().to_string();
    let reload = Command::new(BINARY).args(["reload", &pid]).output().expect("it starts");
    assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
    assert_eq!(servers(&place, "t"), before);
    // What was changed of others stays.
    assert!(servers(&place, "named")[1].starts_with("checked MAINT 7 "));
}
