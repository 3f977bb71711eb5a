//! SPOE: messages to agents and what their answers do, beside HAProxy 2.8's, whose agents are in a `mode tcp` backend.

mod agent;
mod events;
mod failures;
mod peers;
mod protocol;

use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, Response, Sluicegate};

use agent::{Agent, Notify, SESSION, TRANSACTION, bin, number, set, str, unset};

use crate::start;

/// A program before an agent: Sluicegate, or HAProxy 2.8.
struct Gate {
    front: Listening,
    directory: tempfile::TempDir,
    _program: Box<dyn std::any::Any>,
}

/// The parts of a configuration.
#[derive(Clone, Copy)]
struct Parts<'a> {
    /// Lines of the frontend.
    front: &'a str,
    /// Lines of `spoe-agent`.
    agent: &'a str,
    /// The other sections of the engine's file.
    messages: &'a str,
    /// Lines of the agents' backend.
    backend: &'a str,
    /// Other sections.
    others: &'a str,
}

const PARTS: Parts<'static> = Parts { front: "", agent: "", messages: "", backend: "", others: "" };

impl Gate {
    fn start(ours: bool, agent: &Agent, parts: &Parts<'_>) -> Gate {
        Gate::start_at(ours, &agent.address, parts)
    }

    fn start_at(ours: bool, address: &str, parts: &Parts<'_>) -> Gate {
        let front = Listening::new();
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("spoe.cfg");
        let Parts { agent, messages, backend, others, front: lines } = parts;
        let engine = format!(
            "[other]\nspoe-agent nobody\n use-backend nowhere\n[e]\nspoe-agent agent\n option var-prefix e\n \
             timeout hello 60s\n timeout idle 60s\n use-backend agents\n{agent}{messages}"
        );
        std::fs::write(&file, engine).expect("writable");
        let text = format!(
            "global\n nbthread 1\n stats socket {}/stats level admin\ndefaults\n mode http\n timeout client 60s\n timeout \
             connect 60s\n timeout server 60s\n retries 0\nfrontend f\n bind {}\n filter spoe engine e config {}\n{lines}\
             backend agents\n mode tcp\n server a {address}\n{backend}{others}",
            directory.path().display(),
            front.word(),
            file.display(),
        );
        let program: Box<dyn std::any::Any> = match ours {
            true => Box::new(start(&text, &[&front])),
            false => Box::new(Haproxy::start_2_8(&text, &[&front])),
        };
        Gate { front, directory, _program: program }
    }

    fn get(&self, path: &str) -> Response {
        Client::connect(&self.front.address()).get(path)
    }

    fn stats(&self, command: &str) -> String {
        Sluicegate::stats(&self.directory.path().join("stats"), command)
    }

    fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns what a test sees of HAProxy and of Sluicegate.
fn both<T>(see: impl Fn(bool) -> T) -> [T; 2] {
    [see(false), see(true)]
}

/// A response with these variables in fields of the same name.
fn showing(names: &[&str]) -> String {
    let fields: Vec<_> = names.iter().map(|name| format!("hdr x-{0} \"%[var({0})]\"", name)).collect();
    format!(" http-request return status 200 {}\n", fields.join(" "))
}

#[test]
fn messages_and_variables_are_haproxys() {
    let messages = "\
spoe-message first
 args text=path method ip=src
 args yes=bool(true) no=bool(false) big=int(-12345) bytes=str(abc),sha1,hex,hex2i
 args raw=str(hi),base64,b64dec none=req.hdr(absent) v6=str(2001:db8::1),ipmask(32,128)
 acl local src 127.0.0.0/8
 event on-frontend-http-request if local { path_beg /a }
spoe-message second
 args x=req.hdr(x-in),lower
 event on-frontend-http-request unless { path /a/none }
spoe-message unused
 args path
 event on-frontend-http-request
";
    let names =
        ["txn.e.str", "txn.e.bin", "txn.e.int", "txn.e.bool", "txn.e.ip", "txn.e.six", "sess.e.s", "txn.e.gone"];
    let front = showing(&names);
    let parts = Parts { front: &front, agent: " timeout processing 60s\n messages first second\n", messages, ..PARTS };
    let see = |ours| {
        let agent = Agent::with(|_| {
            vec![
                set(TRANSACTION, "str", &str(b"text")),
                set(TRANSACTION, "bin", &bin(b"\x01z")),
                set(TRANSACTION, "int", &number(4, -7_i64 as u64)),
                set(TRANSACTION, "bool", &[0x11]),
                set(TRANSACTION, "ip", &[6, 10, 0, 0, 9]),
                set(TRANSACTION, "six", &[&[7][..], &std::net::Ipv6Addr::LOCALHOST.octets()].concat()),
                set(SESSION, "s", &number(3, 300)),
                set(TRANSACTION, "gone", &str(b"gone")),
                unset(TRANSACTION, "gone"),
            ]
        });
        let gate = Gate::start(ours, &agent, &parts);
        let mut seen = Vec::new();
        for path in ["/a/b", "/a/none", "/b"] {
            let mut client = Client::connect(&gate.front.address());
            client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-in: VALUE\r\n\r\n"));
            let response = client.read_response();
            let Notify { messages, frame, .. } = agent.notified();
            let fields: Vec<_> = names.map(|name| response.header(&format!("x-{name}")).map(str::to_owned)).to_vec();
            seen.push((messages, frame, fields));
        }
        seen
    };
    let [expected, found] = both(see);
    assert_eq!(found, expected);
    assert_eq!(found[0].0.len(), 2, "{found:?}");
    assert_eq!(found[0].2[0].as_deref(), Some("text"));
}

/// Frames of both directions and the connection are reported.
#[test]
fn frames_are_traced() {
    let messages = "spoe-message m\n args path\n event on-frontend-http-request\n";
    let parts = Parts { front: " http-request return status 200\n", agent: " messages m\n", messages, ..PARTS };
    let agent = Agent::with(|_| vec![set(TRANSACTION, "x", &str(b"y"))]);
    let gate = Gate::start(true, &agent, &parts);
    assert_eq!(gate.stats("trace spop sink buf0 level state verbosity minimal start now lock connection"), "\n");
    assert_eq!(gate.get("/a").status, 200);
    sluicegate_testkit::wait_for("the acknowledgement", || {
        gate.stats("show events buf0").contains("rx_ack").then_some(())
    });
    let text = gate.stats("show events buf0");
    let lines: Vec<&str> = text.lines().filter_map(|line| line.split_once("[00|spop|").map(|(_, rest)| rest)).collect();
    let expected = [
        "3|spop_conn_new] new SPOP connection : srv=agents/a",
        "2|tx_hello] SPOP HAPROXY HELLO frame xferred : srv=agents/a",
        "2|rx_hello] SPOP AGENT HELLO frame rcvd : srv=agents/a",
        "2|tx_notify] SPOP HAPROXY NOTIFY frame xferred : srv=agents/a strm=1",
        "2|rx_ack] SPOP AGENT ACK frame rcvd : srv=agents/a strm=1",
    ];
    assert_eq!(lines, expected);
}
