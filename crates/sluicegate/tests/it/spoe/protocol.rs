//! Connections to agents: hellos, exchanges at the same time, reuse, and what the stats socket shows.

use std::io::Read;
use std::sync::Mutex;

use sluicegate_testkit::{Client, PATIENCE, lasting_listener};

use super::agent::{Agent, Notify, Seen, TRANSACTION, hello, polite, set, str};
use super::{Gate, PARTS, Parts, both, showing};

const MESSAGE: &str = "spoe-message m\n args path\n event on-frontend-http-request\n";
const LINES: &str = " timeout processing 60s\n messages m\n";

fn parts<'a>(front: &'a str, agent: &'a str) -> Parts<'a> {
    Parts { front, agent, messages: MESSAGE, ..PARTS }
}

#[test]
fn hellos_are_haproxys() {
    let front = showing(&["txn.e.a"]);
    let see = |lines: &str| {
        let agent = Agent::with(|_| Vec::new());
        let gate = Gate::start(true, &agent, &parts(&front, &format!("{LINES}{lines}")));
        gate.get("/");
        let Seen::Hello(0, mut items) = agent.next() else { panic!("no hello") };
        let (name, id) = items.pop().expect("an engine's identifier");
        assert_eq!((&*name, id.len()), ("engine-id", "str ".len() + 36));
        items.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    let expected = |size: &str, capabilities: &str| {
        vec![
            "supported-versions: str 2.0".to_owned(),
            format!("max-frame-size: uint32 {size}"),
            format!("capabilities: str {capabilities}"),
        ]
    };
    assert_eq!(see(""), expected("16380", "pipelining"));
    assert_eq!(see(" no option pipelining\n max-frame-size 2000\n"), expected("2000", ""));
}

/// A connection is used again, with odd numbers of streams.
#[test]
fn connections_are_reused() {
    let front = showing(&["txn.e.a"]);
    let agent = Agent::with(|_| Vec::new());
    let gate = Gate::start(true, &agent, &parts(&front, LINES));
    for _ in 0..3 {
        assert_eq!(gate.get("/").status, 200);
    }
    assert!(matches!(agent.next(), Seen::Hello(0, _)));
    for number in [1, 3, 5] {
        let Seen::Notify(0, Notify { stream, frame, .. }) = agent.next() else { panic!("no messages") };
        assert_eq!((stream, frame), (number, 1));
    }
    let stat = gate.stats("show stat agents 6 -1");
    let names: Vec<&str> = stat.lines().next().expect("names").trim_start_matches("# ").split(',').collect();
    for row in stat.lines().skip(1).filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = row.split(',').collect();
        let cell = |name: &str| cells[names.iter().position(|known| *known == name).expect(name)];
        assert_eq!((cell("stot"), cell("mode")), ("3", "spop"), "{row}");
        assert_eq!((cell("connect"), cell("reuse")), ("1", "2"), "{row}");
    }
}

/// Sends a request for each path at the same time; returns the responses' headers.
fn at_once(gate: &Gate, paths: &[&str]) -> Vec<Option<String>> {
    let mut clients: Vec<_> = paths.iter().map(|_| Client::connect(&gate.front.address())).collect();
    for (client, path) in clients.iter_mut().zip(paths) {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
    }
    clients.iter_mut().map(|client| client.read_response().header("x-txn.e.a").map(str::to_owned)).collect()
}

/// An agent that answers only when it has as many messages, the last one first.
fn patient(count: usize) -> Agent {
    let waiting: Mutex<Vec<Notify>> = Mutex::default();
    Agent::start(move |seen: &Seen| match seen {
        Seen::Notify(_, notify) => {
            let mut waiting = waiting.lock().expect("not poisoned");
            waiting.push(notify.clone());
            if waiting.len() < count {
                return Some(Vec::new());
            }
            let answer = |notify: Notify| {
                let value = notify.value("").unwrap_or_default().to_owned();
                notify.ack(&[set(TRANSACTION, "a", &str(value.as_bytes()))])
            };
            Some(waiting.drain(..).rev().flat_map(answer).collect())
        }
        other => Some(polite(other, &|_| Vec::new())),
    })
}

#[test]
fn exchanges_share_a_connection() {
    let front = showing(&["txn.e.a"]);
    let agent = patient(3);
    let gate = Gate::start(true, &agent, &parts(&front, LINES));
    let found = at_once(&gate, &["/a", "/b", "/c"]);
    assert_eq!(found, ["str /a", "str /b", "str /c"].map(|value| Some(value.to_owned())));
    assert!(matches!(agent.next(), Seen::Hello(0, _)));
    for _ in 0..3 {
        assert!(matches!(agent.next(), Seen::Notify(0, _)));
    }
}

/// Twenty exchanges at a time, as in HAProxy; more have a connection of their own.
#[test]
fn a_connection_has_so_many_exchanges() {
    let front = showing(&["txn.e.a"]);
    let paths: Vec<String> = (0..25).map(|number| format!("/{number}")).collect();
    let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
    // The first exchange makes the hello known.
    let all: Mutex<Vec<(usize, Notify)>> = Mutex::default();
    let agent = Agent::start(move |seen: &Seen| match seen {
        Seen::Notify(_, notify) if notify.value("") == Some("str /first") => Some(notify.ack(&[])),
        Seen::Notify(connection, notify) => {
            all.lock().expect("not poisoned").push((*connection, notify.clone()));
            Some(Vec::new())
        }
        other => Some(polite(other, &|_| Vec::new())),
    });
    let gate = Gate::start(true, &agent, &parts(&front, LINES));
    gate.get("/first");
    let mut clients: Vec<_> = paths.iter().map(|_| Client::connect(&gate.front.address())).collect();
    for (client, path) in clients.iter_mut().zip(&paths) {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
    }
    let mut counts = [0, 0];
    let mut seen = Vec::new();
    while counts[0] + counts[1] < 26 {
        if let Seen::Notify(connection, notify) = agent.next() {
            counts[connection] += 1;
            seen.push((connection, notify));
        }
    }
    assert_eq!(counts, [21, 5]);
    for (connection, notify) in seen.into_iter().skip(1) {
        agent.send(connection, &notify.ack(&[]));
    }
    for client in &mut clients {
        assert_eq!(client.read_response().status, 200);
    }
}

/// Without `pipelining` of both sides a connection has one exchange at a time.
#[test]
fn without_pipelining_each_exchange_has_a_connection() {
    let front = showing(&["txn.e.a"]);
    for (lines, capabilities) in [(" no option pipelining\n", "pipelining"), ("", "")] {
        let agent = Agent::start(move |seen: &Seen| match seen {
            Seen::Hello(..) => Some(hello(16_380, capabilities)),
            Seen::Notify(_, notify) if notify.value("") == Some("str /first") => Some(notify.ack(&[])),
            Seen::Notify(..) => Some(Vec::new()),
            other => Some(polite(other, &|_| Vec::new())),
        });
        let gate = Gate::start(true, &agent, &parts(&front, &format!("{LINES}{lines}")));
        // What the agent is capable of is known from now on.
        gate.get("/first");
        agent.notified();
        let mut clients: Vec<_> = (0..2).map(|_| Client::connect(&gate.front.address())).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n"));
        let mut connections = Vec::new();
        while connections.len() < 2 {
            if let Seen::Notify(connection, notify) = agent.next() {
                connections.push((connection, notify));
            }
        }
        connections.sort_by_key(|(connection, _)| *connection);
        assert_eq!([connections[0].0, connections[1].0], [0, 1], "{capabilities:?}");
        for (connection, notify) in &connections {
            agent.send(*connection, &notify.ack(&[]));
        }
        assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    }
}

/// A client that leaves ends its exchange; the connection serves others.
#[test]
fn a_client_may_leave() {
    let front = showing(&["txn.e.a"]);
    let agent = Agent::start(|seen: &Seen| match seen {
        Seen::Notify(_, notify) if notify.value("") == Some("str /never") => Some(Vec::new()),
        other => Some(polite(other, &|_| vec![set(TRANSACTION, "a", &str(b"yes"))])),
    });
    let gate = Gate::start(true, &agent, &parts(&front, LINES));
    let mut client = Client::connect(&gate.front.address());
    client.send("GET /never HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(agent.notified().value(""), Some("str /never"));
    client.reset();
    assert_eq!(gate.get("/").header("x-txn.e.a"), Some("yes"));
    assert!(matches!(agent.next(), Seen::Notify(0, _)));
}

/// Servers are checked and balanced as those of any backend.
#[test]
fn a_backend_of_agents_balances() {
    let front = showing(&["txn.e.a"]);
    let agents = ["one", "two"].map(|name| Agent::with(move |_| vec![set(TRANSACTION, "a", &str(name.as_bytes()))]));
    let backend = format!(" balance roundrobin\n server b {}\n option spop-check\n", agents[1].address);
    let parts = Parts { backend: &backend, ..parts(&front, LINES) };
    let see = |ours| {
        let gate = Gate::start(ours, &agents[0], &parts);
        let mut found: Vec<_> = (0..2).map(|_| gate.get("/").header("x-txn.e.a").map(str::to_owned)).collect();
        found.sort();
        found
    };
    let [expected, found] = both(see);
    assert_eq!(found.len(), expected.len());
    assert_eq!(found, [Some("one".to_owned()), Some("two".to_owned())]);
}

/// `timeout server` ends a connection without exchanges, which the agent is told.
#[test]
fn idle_connections_end() {
    let front = showing(&["txn.e.a"]);
    let agent = Agent::with(|_| Vec::new());
    let parts = Parts { backend: " timeout server 2s\n", ..parts(&front, LINES) };
    let gate = Gate::start(true, &agent, &parts);
    assert_eq!(gate.get("/").status, 200);
    let reason = agent.disconnected();
    assert_eq!(reason[0], ("status-code".to_owned(), "uint32 0".to_owned()));
    assert!(PATIENCE > std::time::Duration::ZERO && gate.directory().exists());
}

/// Expressions of an agent's server see the engine, and the variables of the stream whose messages it is sent.
#[test]
fn an_exchange_sees_its_engine_and_its_stream() {
    let agent = lasting_listener();
    let front = " http-request set-var(sess.s) str(one)\n http-request set-var(txn.t) str(two)\n http-request \
                 set-var(req.r) str(three)\n http-request set-var(ptxn.t) str(none)\n http-request send-spoe-group e g\n \
                 http-request return status 200\n";
    let messages = "spoe-message m\n args path\nspoe-group g\n messages m\n";
    let tlv = "%[spoe.engine-id] %[var(psess.s)] %[var(ptxn.t)] %[var(preq.r)] %[var(pres.r)] %[var(txn.t)]";
    let backend = format!(
        " mode spop\n balance hash var(ptxn.t)\n default-server proto spop send-proxy-v2 set-proxy-v2-tlv-fmt(0xE0) \
         \"{tlv} end\"\n server b {}\n",
        agent.local_addr().expect("bound")
    );
    let parts = Parts { front, agent: " timeout processing 60s\n groups g\n", messages, backend: &backend, ..PARTS };
    // The other server is down: nobody listens on its address.
    let gate = Gate::start_at(true, "127.0.0.1:1 disabled", &parts);
    let mut client = Client::connect(&gate.front.address());
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    let (mut stream, _) = agent.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut seen = Vec::new();
    let key = b"engine-id\x08\x24";
    let id = loop {
        let mut piece = [0; 512];
        let count = stream.read(&mut piece).expect("bytes");
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
        let found = seen.windows(key.len()).position(|window| window == key);
        if let Some(id) = found.and_then(|at| seen.get(at + key.len()..at + key.len() + 36)) {
            break String::from_utf8_lossy(id).into_owned();
        }
    };
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains(&format!("{id} one two three   end")), "{seen}");
}
