//! Events of streams, and rules that send groups.

use sluicegate_testkit::{Client, lasting_listener};

use super::agent::{Agent, REQUEST, RESPONSE, TRANSACTION, set, str};
use super::{Gate, PARTS, Parts, both, showing};

/// All events, each with a message of its name.
fn all_events() -> (String, String) {
    let names = [
        "on-client-session",
        "on-frontend-tcp-request",
        "on-backend-tcp-request",
        "on-frontend-http-request",
        "on-backend-http-request",
        "on-server-session",
        "on-tcp-response",
        "on-http-response",
    ];
    let sections = names.map(|name| format!("spoe-message {name}\n args src\n event {name}\n"));
    (format!(" timeout processing 60s\n messages {}\n", names.join(" ")), sections.concat())
}

/// A server of HTTP that answers one request of each connection.
fn origin(answer: &'static [u8]) -> String {
    let listener = lasting_listener();
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let mut client = Client::from(stream);
            client.read_until(b"\n");
            client.try_send(answer);
        }
    });
    address
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[test]
fn the_events_of_a_request_come_in_haproxys_order() {
    let (agent_lines, messages) = all_events();
    let see = |ours| {
        let agent = Agent::with(|_| Vec::new());
        let server = origin(ANSWER);
        let others = format!("backend b\n server s {server}\n");
        let parts =
            Parts { front: " default_backend b\n", agent: &agent_lines, messages: &messages, others: &others, ..PARTS };
        let gate = Gate::start(ours, &agent, &parts);
        assert_eq!(gate.get("/").status, 200);
        (0..8).map(|_| agent.notified().names().join(" ")).collect::<Vec<_>>()
    };
    let [expected, found] = both(see);
    assert_eq!(found, expected);
}

/// A `listen` is its own backend, whose events are the frontend's.
#[test]
fn the_events_of_a_tcp_session_come_in_haproxys_order() {
    let (agent_lines, messages) = all_events();
    let see = |ours| {
        let agent = Agent::with(|_| Vec::new());
        let server = origin(b"bytes\n");
        let others = format!("backend b\n mode tcp\n server s {server}\n");
        let parts = Parts {
            front: " mode tcp\n default_backend b\n",
            agent: &agent_lines,
            messages: &messages,
            others: &others,
            ..PARTS
        };
        let gate = Gate::start(ours, &agent, &parts);
        let mut client = Client::connect(&gate.front.address());
        client.send("hello\n");
        assert_eq!(client.read_line(), "bytes");
        (0..5).map(|_| agent.notified().names().join(" ")).collect::<Vec<_>>()
    };
    let [expected, found] = both(see);
    assert_eq!(found, expected);
}

#[test]
fn filters_of_backends_have_events_of_their_own() {
    let see = |ours| {
        let agent = Agent::with(|notify| {
            let scope = if notify.names()[0] == "response" { RESPONSE } else { REQUEST };
            vec![set(scope, notify.names()[0], &str(b"set"))]
        });
        let server = origin(ANSWER);
        let front = " default_backend b\n";
        let gate = Gate::start(
            ours,
            &agent,
            &Parts {
                front,
                agent: " timeout processing 60s\n messages request response\n",
                messages: "spoe-message request\n args path\n event on-backend-http-request\nspoe-message response\n \
                           args status\n event on-http-response\n",
                others: &format!(
                    "backend b\n http-request set-header x-set %[var(req.e.request)]\n http-response set-header x-set \
                     %[var(res.e.response)]\n server s {server}\n"
                ),
                ..PARTS
            },
        );
        let response = gate.get("/");
        let seen = [agent.notified(), agent.notified()].map(|notify| notify.messages);
        (response.header("x-set").map(str::to_owned), seen)
    };
    let [expected, found] = both(see);
    assert_eq!(found, expected);
    assert_eq!(found.0.as_deref(), Some("set"));
}

#[test]
fn rules_send_groups() {
    let messages = "spoe-message one\n args p=path\nspoe-message two\n args q=method\nspoe-message of-response\n args \
                    s=status\nspoe-group first\n messages one two\nspoe-group second\n messages of-response\n";
    let see = |ours| {
        let agent = Agent::with(|notify| {
            let name = if notify.value("s").is_some() { "late" } else { "early" };
            vec![set(TRANSACTION, name, &str(b"yes"))]
        });
        let server = origin(ANSWER);
        let gate = Gate::start(
            ours,
            &agent,
            &Parts {
                front: " http-request send-spoe-group e first if { path /sent }\n http-request deny if { path \
                        /sent } !{ var(txn.e.early) -m found }\n http-response send-spoe-group e second\n \
                        http-response set-header x-late %[var(txn.e.late)]\n default_backend b\n",
                agent: " timeout processing 60s\n groups first second\n",
                messages,
                others: &format!("backend b\n server s {server}\n"),
                ..PARTS
            },
        );
        let mut seen = Vec::new();
        for (path, count) in [("/sent", 2), ("/other", 1)] {
            let response = gate.get(path);
            let notified: Vec<_> = (0..count).map(|_| agent.notified().messages).collect();
            seen.push((response.status, response.header("x-late").map(str::to_owned), notified));
        }
        seen
    };
    let [expected, found] = both(see);
    assert_eq!(found, expected);
    assert_eq!((found[0].0, found[0].1.as_deref()), (200, Some("yes")));
}

/// Content rules wait within the inspect delay; without one, HAProxy 3.2 interrupts the exchange at once.
#[test]
fn content_rules_send_groups() {
    let agent = Agent::with(|_| vec![set(TRANSACTION, "a", &str(b"yes"))]);
    let parts = |delay: &'static str| Parts {
        front: delay,
        agent: " timeout processing 60s\n option set-on-error failed\n groups g\n",
        messages: "spoe-message m\n args src\nspoe-group g\n messages m\n",
        ..PARTS
    };
    let rules = showing(&["txn.e.a", "txn.e.failed"]);
    let delayed: &'static str =
        String::leak(format!(" tcp-request inspect-delay 60s\n tcp-request content send-spoe-group e g\n{rules}"));
    let gate = Gate::start(true, &agent, &parts(delayed));
    assert_eq!(gate.get("/").header("x-txn.e.a"), Some("yes"));
    let at_once: &'static str = String::leak(format!(" tcp-request content send-spoe-group e g\n{rules}"));
    let gate = Gate::start(true, &agent, &parts(at_once));
    assert_eq!(gate.get("/").header("x-txn.e.failed"), Some("4"));
}
