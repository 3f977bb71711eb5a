//! The program's main job: every request is counted exactly once, whatever counts it and wherever the count is kept.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::time::Duration;

use sluicegate_testkit::{Client, Listening, RedisServer, wait_for};

use crate::{start, workspace};

const CONNECTIONS: usize = 24;
const REQUESTS: usize = 25;

/// Returns a configuration that runs `script` for each request and answers it without a server.
fn configuration(script: &str, load: &str, workers: usize, gate: &Listening, redis: &str, store: &str) -> String {
    let examples = workspace().join("examples/accounting");
    let (host, port) = redis.split_once(':').unwrap();
    let mut text = String::new();
    let _ = write!(
        text,
        "global\n    nbthread {workers}\n    setenv REDIS_HOST {host}\n    setenv REDIS_PORT {port}\n    \
         lua-prepend-path /usr/share/lua/5.1/?.lua\n    lua-prepend-path {examples}/?.lua\n    \
         {load} {examples}/{script}\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         store main\n    bind \"{store}\"\n\
         listen gate\n    bind \"{gate}\"\n    http-request lua.accounting\n    http-request redirect location /ok\n",
        examples = examples.display(),
        gate = gate.word(),
    );
    text
}

/// Sends [`REQUESTS`] on each of [`CONNECTIONS`] connections at once; returns the total number sent.
fn drive(gate: &str) -> usize {
    let together = Barrier::new(CONNECTIONS);
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut client = Client::connect(gate);
                together.wait();
                for _ in 0..REQUESTS {
                    let response = client.get("/");
                    assert_eq!((response.status, response.header("location")), (302, Some("/ok")), "{response:?}");
                }
            });
        }
    });
    CONNECTIONS * REQUESTS
}

fn count(store: &str) -> String {
    Client::connect(store).ask(&["GET", "127.0.0.1"])
}

fn bulk(count: usize) -> String {
    let digits = count.to_string();
    format!("${}\r\n{digits}\r\n", digits.len())
}

/// One script, with every load form and number of workers, against an external redis-server.
fn check_external(script: &str) {
    let redis = RedisServer::start(&[]);
    for load in ["lua-load", "lua-load-per-thread"] {
        for workers in [1, 2, 4] {
            Client::connect(&redis.address()).ask(&["FLUSHALL"]);
            let (gate, store) = (Listening::new(), Listening::new());
            let text = configuration(script, load, workers, &gate, &redis.address(), &store.word());
            let _server = start(&text, &[&gate, &store]);
            let sent = drive(&gate.address());
            assert_eq!(count(&redis.address()), bulk(sent), "{script} {load} {workers} workers");
        }
    }
}

#[test]
fn redis_lua_with_a_pool() {
    check_external("redis_lua_pool.lua");
}

#[test]
fn redis_lua_with_connections_that_are_kept() {
    check_external("redis_lua_keepalive.lua");
}

/// Each worker keeps at most as many connections as it had concurrent requests.
#[test]
fn connections_that_are_kept_are_used_again() {
    let redis = RedisServer::start(&[]);
    let (gate, store) = (Listening::new(), Listening::new());
    let text = configuration("redis_lua_keepalive.lua", "lua-load", 1, &gate, &redis.address(), &store.word());
    let _server = start(&text, &[&gate, &store]);
    let mut client = Client::connect(&gate.address());
    let connections = || {
        let stats = Client::connect(&redis.address()).ask(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        line.trim().parse::<u32>().unwrap()
    };
    let before = connections();
    (0..50).for_each(|_| assert_eq!(client.get("/").status, 302));
    // One connection for all requests, and the one of this query.
    assert_eq!(connections() - before, 2);
    // Connections that Redis has closed are not reused.
    Client::connect(&redis.address()).ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    (0..5).for_each(|_| assert_eq!(client.get("/").status, 302));
    assert_eq!(count(&redis.address()), bulk(55));
}

#[test]
fn redis_lua_with_a_connection_per_request() {
    check_external("redis_lua_new.lua");
}

#[test]
fn a_pool_and_its_own_protocol() {
    check_external("handwritten.lua");
}

#[test]
fn scripts_that_speak_to_the_embedded_store_over_its_socket() {
    for script in ["redis_lua_pool.lua", "redis_lua_new.lua", "handwritten.lua"] {
        for workers in [1, 2, 4] {
            let (gate, store) = (Listening::new(), Listening::new());
            let text = configuration(script, "lua-load", workers, &gate, &store.address(), &store.word());
            let _server = start(&text, &[&gate, &store]);
            let sent = drive(&gate.address());
            assert_eq!(count(&store.address()), bulk(sent), "{script} {workers} workers");
        }
    }
}

#[test]
fn lua_counts_in_the_embedded_store_without_a_socket() {
    for load in ["lua-load", "lua-load-per-thread"] {
        for workers in [1, 2, 4] {
            let (gate, store) = (Listening::new(), Listening::new());
            let text = configuration("embedded.lua", load, workers, &gate, "127.0.0.1:1", &store.word());
            let _server = start(&text, &[&gate, &store]);
            let sent = drive(&gate.address());
            assert_eq!(count(&store.address()), bulk(sent), "{load} {workers} workers");
        }
    }
}

#[test]
fn a_rule_counts_in_the_embedded_store_without_lua() {
    for workers in [1, 2, 4] {
        let (gate, store) = (Listening::new(), Listening::new());
        let text = format!(
            "global\n    nbthread {workers}\n\
             defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
             store main\n    bind \"{store}\"\n\
             listen gate\n    bind \"{gate}\"\n    http-request store-call main INCRBY %[src] 1 set-var(txn.hits)\n    \
             http-request deny deny_status 429 if {{ var(txn.hits) -m int gt {limit} }}\n    \
             http-request redirect location /ok\n",
            store = store.word(),
            gate = gate.word(),
            limit = CONNECTIONS * REQUESTS,
        );
        let _server = start(&text, &[&gate, &store]);
        let sent = drive(&gate.address());
        assert_eq!(count(&store.address()), bulk(sent), "{workers} workers");
        assert_eq!(Client::connect(&gate.address()).get("/").status, 429, "the limit holds");
    }
}

/// A connection whose client has another address.
fn connect_from_elsewhere(gate: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("an address of the loopback");
    socket.connect(&gate.parse::<SocketAddr>().expect("an address").into()).expect("it listens");
    socket.into()
}

/// Clients that reset their connection while the request waits for Redis do no harm to the pool.
#[test]
fn a_thousand_aborted_clients_leave_the_pool_full() {
    let redis = RedisServer::start(&[]);
    for (load, workers, states) in [("lua-load", 2, 1), ("lua-load-per-thread", 2, 2)] {
        Client::connect(&redis.address()).ask(&["FLUSHALL"]);
        let (gate, store) = (Listening::new(), Listening::new());
        let text = configuration("redis_lua_pool.lua", load, workers, &gate, &redis.address(), &store.word());
        let server = start(&text, &[&gate, &store]);
        Client::connect(&gate.address()).get("/");
        for _ in 0..10 {
            let mut clients: Vec<TcpStream> = (0..100).map(|_| connect_from_elsewhere(&gate.address())).collect();
            for client in &mut clients {
                client.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").expect("it reads");
            }
            for client in &clients {
                socket2::SockRef::from(client).set_linger(Some(Duration::ZERO)).expect("settable");
            }
        }
        // The aborted clients have other counters, some of which may still be written.
        let sent = drive(&gate.address());
        assert_eq!(count(&redis.address()), bulk(1 + sent), "{load}");
        // Redis may not have seen the end of the last connection of this test yet.
        let mut asking = Client::connect(&redis.address());
        wait_for("the pool's connections, and this one", || {
            let clients = asking.ask(&["INFO", "clients"]);
            let digits = clients.lines().find_map(|line| line.strip_prefix("connected_clients:")).expect("a figure");
            (digits.parse::<usize>().expect("a number") <= 20 * states + 1).then_some(())
        });
        drop(server);
    }
}
