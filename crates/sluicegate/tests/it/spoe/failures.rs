//! Agents that fail, and the options of `spoe-agent` about them.

use std::net::UdpSocket;

use sluicegate_testkit::{Client, Listening, PATIENCE, free_port, wait_for};

use super::agent::{
    ACK, Agent, PROCESS, Seen, TRANSACTION, disconnect, frame, hello, hello_of, number, polite, set, str,
};
use super::{Gate, PARTS, Parts, both, showing};

const MESSAGE: &str = "spoe-message m\n args path\n event on-frontend-http-request\n";

/// Returns the status that a request gets in the variable of failures.
fn status(ours: bool, agent: &Agent, agent_lines: &str) -> Option<String> {
    let front = showing(&["txn.e.failed"]);
    let lines = format!(" option set-on-error failed\n messages m\n{agent_lines}");
    let gate = Gate::start(ours, agent, &Parts { front: &front, agent: &lines, messages: MESSAGE, ..PARTS });
    gate.get("/").header("x-txn.e.failed").filter(|value| !value.is_empty()).map(str::to_owned)
}

#[test]
fn failures_have_haproxys_statuses() {
    const LONG: &str = " timeout processing 60s\n";
    let of = |ours: bool, agent_lines: &str, answer: fn(&Seen) -> Option<Vec<u8>>| {
        status(ours, &Agent::start(answer), agent_lines)
    };
    let silent: fn(&Seen) -> Option<Vec<u8>> = |seen| {
        Some(polite(seen, &|_| Vec::new()))
            .filter(|_| true)
            .map(|bytes| if matches!(seen, Seen::Notify(..)) { Vec::new() } else { bytes })
    };
    assert_eq!(
        both(|ours| of(ours, " timeout processing 50ms\n", silent)),
        [Some("1".to_owned()), Some("1".to_owned())]
    );
    // The agent says why it ends the connection.
    let leaves: fn(&Seen) -> Option<Vec<u8>> = |seen| match seen {
        Seen::Notify(..) => Some(disconnect(99, "no")),
        other => Some(polite(other, &|_| Vec::new())),
    };
    assert_eq!(of(true, LONG, leaves).as_deref(), Some("355"));
    let ends: fn(&Seen) -> Option<Vec<u8>> = |seen| match seen {
        Seen::Notify(..) => None,
        other => Some(polite(other, &|_| Vec::new())),
    };
    assert_eq!(both(|ours| of(ours, LONG, ends)), [Some("257".to_owned()), Some("257".to_owned())]);
    // A hello of another version.
    let old: fn(&Seen) -> Option<Vec<u8>> = |seen| match seen {
        Seen::Hello(..) => Some(hello_of("1.0", 16_380, "pipelining")),
        other => Some(polite(other, &|_| Vec::new())),
    };
    assert_eq!(of(true, LONG, old).as_deref(), Some("264"));
    let large: fn(&Seen) -> Option<Vec<u8>> = |seen| match seen {
        Seen::Hello(..) => Some(hello(99_999, "pipelining")),
        other => Some(polite(other, &|_| Vec::new())),
    };
    assert_eq!(of(true, LONG, large).as_deref(), Some("265"));
    assert_eq!(of(true, LONG, |seen| Some(polite(seen, &|_| Vec::new()))), None);
}

/// HAProxy 2.8 waits for `timeout processing`, 3.2 does not.
#[test]
fn an_agent_that_is_not_there_is_a_failure() {
    let front = showing(&["txn.e.failed"]);
    let lines = " option set-on-error failed\n timeout processing 60s\n messages m\n";
    let parts = Parts { front: &front, agent: lines, messages: MESSAGE, ..PARTS };
    let gate = Gate::start_at(true, &format!("127.0.0.1:{}", free_port()), &parts);
    assert_eq!(gate.get("/").header("x-txn.e.failed"), Some("257"));
}

/// Messages have to fit into a frame: of the agent's configuration, or of the size that the agent wants.
#[test]
fn messages_that_do_not_fit_are_not_sent() {
    let front = showing(&["txn.e.failed"]);
    let see = |size: u64, lines: &str| {
        let agent = Agent::start(move |seen: &Seen| match seen {
            Seen::Hello(..) => Some(hello(size, "pipelining")),
            other => Some(polite(other, &|_| Vec::new())),
        });
        let lines = format!(" option set-on-error failed\n timeout processing 60s\n messages m\n{lines}");
        let gate = Gate::start(true, &agent, &Parts { front: &front, agent: &lines, messages: MESSAGE, ..PARTS });
        let of = |length: usize| {
            let response = gate.get(&format!("/{}", "x".repeat(length)));
            response.header("x-txn.e.failed").map(str::to_owned)
        };
        [of(100), of(600)]
    };
    // HAProxy 2.8 splits them.
    assert_eq!(see(300, " max-frame-size 300\n"), [None, Some("3".to_owned())]);
    // The smaller size of the agent becomes known when the frame is sent.
    assert_eq!(see(300, ""), [None, Some("259".to_owned())]);
}

/// After a failure a stream sends nothing more, unless `continue-on-error` says so.
#[test]
fn a_failure_ends_the_work_on_a_stream() {
    let messages = format!("{MESSAGE}spoe-message n\n args status\n event on-http-response\n");
    let see = |ours: bool, option: &str| {
        let agent = Agent::start(|seen: &Seen| match seen {
            Seen::Notify(_, notify) if notify.names() == ["m"] => Some(disconnect(3, "fails")),
            other => Some(polite(other, &|_| Vec::new())),
        });
        let server = sluicegate_testkit::lasting_listener();
        let address = server.local_addr().expect("bound");
        std::thread::spawn(move || {
            while let Ok((stream, _)) = server.accept() {
                let mut client = Client::from(stream);
                client.read_until(b"\r\n\r\n");
                client.try_send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        let lines = format!(" timeout processing 60s\n messages m n\n{option}");
        let gate = Gate::start(
            ours,
            &agent,
            &Parts {
                front: " default_backend b\n",
                agent: &lines,
                messages: &messages,
                others: &format!("backend b\n server s {address}\n"),
                ..PARTS
            },
        );
        gate.get("/first");
        gate.get("/second");
        let names = [agent.notified(), agent.notified()];
        names.map(|notify| notify.names().join(" "))
    };
    assert_eq!(both(|ours| see(ours, "")), [["m", "m"], ["m", "m"]]);
    assert_eq!(both(|ours| see(ours, " option continue-on-error\n")), [["m", "n"], ["m", "n"]]);
}

#[test]
fn variables_of_the_process_must_be_known() {
    let see = |ours: bool, lines: &str, fields: &[&str]| {
        let agent = Agent::with(|_| vec![set(PROCESS, "a", &str(b"yes")), set(PROCESS, "b", &str(b"yes"))]);
        let front = showing(fields);
        let lines = format!(" timeout processing 60s\n messages m\n{lines}");
        let gate = Gate::start(ours, &agent, &Parts { front: &front, agent: &lines, messages: MESSAGE, ..PARTS });
        let response = gate.get("/");
        let shown = gate.stats("get var proc.e.b").trim().to_owned();
        (fields.iter().map(|name| response.header(&format!("x-{name}")).map(str::to_owned)).collect::<Vec<_>>(), shown)
    };
    let known = both(|ours| see(ours, "", &["proc.e.a"]));
    assert_eq!(known[1], known[0]);
    assert!(known[1].1.contains("not found"), "{known:?}");
    let registered = both(|ours| see(ours, " register-var-names b\n", &["proc.e.a"]));
    assert_eq!(registered[1], registered[0]);
    assert!(registered[1].1.contains("value=<yes>"), "{registered:?}");
    let forced = both(|ours| see(ours, " option force-set-var\n", &["proc.e.a"]));
    assert_eq!(forced[1], forced[0]);
    assert!(forced[1].1.contains("value=<yes>"), "{forced:?}");
}

#[test]
fn times_are_kept_in_variables() {
    let front = showing(&["txn.e.last", "txn.e.all"]);
    let lines = " timeout processing 60s\n messages m n\n option set-process-time last\n option set-total-time all\n";
    let messages = format!("{MESSAGE}spoe-message n\n args path\n event on-client-session\n").replace(
        "args path\n event \
        on-client",
        "args src\n event on-client",
    );
    let see = |ours| {
        let agent = Agent::with(|_| Vec::new());
        let gate = Gate::start(ours, &agent, &Parts { front: &front, agent: lines, messages: &messages, ..PARTS });
        let response = gate.get("/");
        ["x-txn.e.last", "x-txn.e.all"].map(|name| response.header(name).and_then(|value| value.parse::<u32>().ok()))
    };
    for seen in both(see) {
        let [last, all] = seen.map(|time| time.expect("a number"));
        assert!(last <= all, "{last} of {all}");
    }
}

/// Returns the next line that mentions the agent.
fn logged(socket: &UdpSocket) -> String {
    let mut buffer = [0; 2048];
    loop {
        let count = socket.recv(&mut buffer).expect("a line");
        let line = String::from_utf8_lossy(&buffer[..count]).into_owned();
        if let Some(at) = line.find("SPOE: ") {
            let priority = line.split('>').next().unwrap_or_default();
            return format!("{priority}> {}", line[at..].trim_end());
        }
    }
}

#[test]
fn exchanges_are_logged() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("settable");
    let target = socket.local_addr().expect("bound");
    let pattern = regex::Regex::new(r"sid=\d+ st=(\d+) \d+ (\d+)/(\d+)$").expect("a pattern");
    let show = |lines: &str, count: usize| {
        let agent = Agent::start(|seen: &Seen| match seen {
            Seen::Notify(_, notify) if notify.value("") == Some("str /fails") => Some(disconnect(3, "")),
            other => Some(polite(other, &|_| Vec::new())),
        });
        let front = showing(&["txn.e.a"]);
        let lines = format!(" timeout processing 60s\n messages m\n log {target} local0\n{lines}");
        let gate = Gate::start(true, &agent, &Parts { front: &front, agent: &lines, messages: MESSAGE, ..PARTS });
        gate.get("/good");
        gate.get("/fails");
        (0..count).map(|_| pattern.replace(&logged(&socket), "sid st=$1 T $2/$3").into_owned()).collect::<Vec<_>>()
    };
    let event = "SPOE: [agent] <EVENT:on-frontend-http-request> sid";
    let all = [format!("<133> {event} st=0 T 0/1"), format!("<132> {event} st=259 T 1/2")];
    assert_eq!(show("", 2), all);
    assert_eq!(show(" option dontlog-normal\n", 1), all[1..]);
}

/// What an agent must not send ends its connection, with the reason.
#[test]
fn garbage_ends_the_connection() {
    type Case = (&'static str, fn(u64) -> Vec<u8>, u64);
    let cases: [Case; 7] = [
        ("a stream that was never sent", |_| frame(ACK, 1, 77, 1, b""), 12),
        ("a stream of number 0", |_| frame(ACK, 1, 0, 1, b""), 4),
        ("a frame of number 0", |stream| frame(ACK, 1, stream, 0, b""), 4),
        ("a frame that was never sent", |stream| frame(ACK, 1, stream, 9, b""), 12),
        ("a fragment", |stream| frame(ACK, 0, stream, 1, b""), 10),
        ("a length that was not agreed", |_| 0x7fff_ffff_u32.to_be_bytes().to_vec(), 9),
        ("a length that no head has", |_| vec![0, 0, 0, 1, 0], 4),
    ];
    for (what, bytes, expected) in cases {
        let agent = Agent::start(move |seen: &Seen| match seen {
            Seen::Notify(_, notify) => Some(bytes(notify.stream)),
            other => Some(polite(other, &|_| Vec::new())),
        });
        let found = status(true, &agent, " timeout processing 60s\n");
        assert_eq!(found, Some((256 + expected).to_string()), "{what}");
        let reason = agent.disconnected();
        assert_eq!(reason[0], ("status-code".to_owned(), format!("uint32 {expected}")), "{what}");
    }
}

/// Actions after a malformed one are not applied, and names that HAProxy does not take are left out.
#[test]
fn malformed_actions_end_an_answer() {
    let front = showing(&["txn.e.a", "txn.e.b"]);
    let lines = " option set-on-error failed\n timeout processing 60s\n messages m\n";
    let long = "x".repeat(70);
    let agent = Agent::with(move |_| {
        vec![
            set(TRANSACTION, &long, &str(b"long")),
            set(TRANSACTION, "odd name", &str(b"odd")),
            set(TRANSACTION, "a", &number(4, 5)),
            vec![9, 9, 9],
            set(TRANSACTION, "b", &number(4, 6)),
        ]
    });
    let gate = Gate::start(true, &agent, &Parts { front: &front, agent: lines, messages: MESSAGE, ..PARTS });
    let response = gate.get("/");
    assert_eq!(["x-txn.e.a", "x-txn.e.b"].map(|name| response.header(name)), [Some("5"), None]);
}

/// An agent may be slow with many streams: each gives up by itself, and the connection serves others.
#[test]
fn late_answers_are_ignored() {
    let agent = Agent::start(|seen: &Seen| match seen {
        Seen::Notify(_, notify) if notify.value("") == Some("str /slow") => Some(Vec::new()),
        other => Some(polite(other, &|_| vec![set(TRANSACTION, "a", &str(b"yes"))])),
    });
    let front = showing(&["txn.e.a", "txn.e.failed"]);
    let lines = " option set-on-error failed\n timeout processing 2s\n messages m\n";
    let gate = Gate::start(true, &agent, &Parts { front: &front, agent: lines, messages: MESSAGE, ..PARTS });
    let slow = gate.get("/slow");
    assert_eq!(["x-txn.e.a", "x-txn.e.failed"].map(|name| slow.header(name)), [None, Some("1")]);
    let late = agent.notified();
    agent.send(0, &late.ack(&[set(TRANSACTION, "a", &str(b"late"))]));
    // The same connection.
    assert_eq!(gate.get("/good").header("x-txn.e.a"), Some("yes"));
    assert!(matches!(agent.next(), Seen::Notify(0, _)));
}

/// Where nothing listens for the agent, the frontend still serves.
#[test]
fn a_reload_takes_the_agents_over() {
    let front = Listening::new();
    let agent = Agent::with(|_| vec![set(TRANSACTION, "a", &str(b"yes"))]);
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(
        directory.path().join("spoe.cfg"),
        format!("spoe-agent agent\n option var-prefix e\n timeout processing 60s\n use-backend agents\n messages m\n{MESSAGE}"),
    )
    .expect("writable");
    let text = format!(
        "global\n stats socket @DIR@/stats level admin\ndefaults\n mode http\n timeout client 60s\n timeout connect \
         60s\n timeout server 60s\nfrontend f\n bind {}\n filter spoe config @DIR@/spoe.cfg\n{}backend agents\n mode \
         spop\n server a {}\n",
        front.word(),
        showing(&["txn.e.a"]),
        agent.address
    );
    let program = sluicegate_testkit::Sluicegate::start_in(crate::BINARY, &text, &[&front], directory);
    let ask = || Client::connect(&front.address()).get("/").header("x-txn.e.a").map(str::to_owned);
    assert_eq!(ask().as_deref(), Some("yes"));
    assert!(matches!(agent.next(), Seen::Hello(0, _)));
    program.program.signal(libc::SIGHUP);
    // The connection of the old configuration ends.
    wait_for("the end", || matches!(agent.next(), Seen::Closed(0)).then_some(()));
    assert_eq!(ask().as_deref(), Some("yes"));
}
