//! Connections to servers: requests that wait for one that is being opened, and the number that is kept.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sluicegate_testkit::{Certificates, wait_for};

use super::server::Server;
use super::*;

/// A relay that delays connections: what is sent waits until the test opens it, or closes it for good.
struct Gatekeeper {
    address: String,
    accepted: AtomicUsize,
    open: AtomicBool,
    closed: AtomicBool,
}

impl Gatekeeper {
    fn before(target: String) -> Arc<Gatekeeper> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let (open, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let gatekeeper = Arc::new(Gatekeeper { address, accepted: AtomicUsize::new(0), open, closed });
        let (serving, target) = (gatekeeper.clone(), Arc::new(target));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                serving.accepted.fetch_add(1, Ordering::SeqCst);
                let (serving, target) = (serving.clone(), target.clone());
                std::thread::spawn(move || serving.relay(client, &target));
            }
        });
        gatekeeper
    }

    fn relay(&self, client: TcpStream, target: &str) {
        let done = || self.open.load(Ordering::SeqCst) || self.closed.load(Ordering::SeqCst);
        wait_for("the test", || done().then_some(()));
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        let server = TcpStream::connect(target).expect("connected");
        let ends = (client.try_clone().expect("cloned"), server.try_clone().expect("cloned"));
        std::thread::spawn(move || copy(ends.0, ends.1));
        copy(server, client);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

const REQUESTS: usize = 10;

/// Sends requests at the same time to a server of `proto h2` whose handshake is delayed; returns their statuses and the
/// number of connections.
fn together(reuse: &str, global: &str, succeeds: bool) -> (Vec<String>, usize) {
    let certificates = Certificates::new();
    certificates.issue("s", "DNS:s.example", "ec -pkeyopt ec_paramgen_curve:P-256");
    std::fs::write(certificates.path("s.pem"), certificates.pem("s")).expect("writable");
    let (gate, inner) = (Listening::new(), Listening::new());
    let relay = Gatekeeper::before(inner.address());
    let text = format!(
        "{}listen outer\n bind {}\n http-reuse {reuse}\n retries 0\n server s {} ssl verify none proto h2\nfrontend inner\n \
         bind {} ssl crt {} alpn h2\n http-request return status 200\n",
        DEFAULTS.replacen("global\n", &format!("global\n {global}\n"), 1).replace("connect 5s", "connect 60s"),
        gate.word(),
        relay.address,
        inner.word(),
        certificates.path("s.pem")
    );
    let server = start(&text, &[&gate, &inner]);
    let mut clients: Vec<_> = (0..REQUESTS).map(|_| Plain::connect(&gate.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n"));
    let path = server.directory().join("stats");
    let row = format!("outer,s,0,0,{REQUESTS},");
    wait_for("all requests", || Sluicegate::stats(&path, "show stat").contains(&row).then_some(()));
    wait_for("a connection", || (relay.accepted.load(Ordering::SeqCst) > 0).then_some(()));
    if succeeds { &relay.open } else { &relay.closed }.store(true, Ordering::SeqCst);
    let status = |client: &mut Plain| client.read_response().head.split(' ').nth(1).expect("a status").to_owned();
    (clients.iter_mut().map(status).collect(), relay.accepted.load(Ordering::SeqCst))
}

/// A request may get its slot so late that the connection is open already, so there may be one more than necessary.
#[test]
fn requests_share_a_connection_that_is_being_opened() {
    let cases: &[(&str, &str, RangeInclusive<usize>)] = &[
        ("always", "", 1..=2),
        ("always", "tune.h2.be.max-concurrent-streams 4", 3..=4),
        ("safe", "", REQUESTS..=REQUESTS),
    ];
    for (reuse, global, connections) in cases {
        let (statuses, count) = together(reuse, global, true);
        assert_eq!(statuses, ["200"; REQUESTS], "{reuse} {global}");
        assert!(connections.contains(&count), "{reuse} {global}: {count}");
    }
    // The requests share its failure as well: without retries none is sent again.
    let (statuses, count) = together("always", "", false);
    assert_eq!(statuses, ["503"; REQUESTS]);
    assert!(count <= 2, "{count}");
}

/// Returns the number of idle connections to the server.
fn idle(server: &Sluicegate) -> usize {
    let text = Sluicegate::stats(&server.directory().join("stats"), "show servers conn back");
    text.lines().nth(1).and_then(|line| line.split(' ').nth(12)?.parse().ok()).expect("a number")
}

/// Under `http-reuse safe` the first request of each client opens a connection. Those beyond what was needed at once are
/// closed when they are released, but for `pool-low-conn`.
#[test]
fn connections_beyond_the_need_are_not_kept() {
    for (http2, low) in [(true, 0_usize), (true, 2), (false, 0), (false, 2)] {
        let (server, ended) = (Server::start(), Arc::new(AtomicUsize::new(0)));
        let counted = ended.clone();
        let plain = Origin::start(move |mut client| {
            while Request::read(&mut client).is_some() {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let address = if http2 { format!("{} proto h2", server.address) } else { plain.address() };
        let (proxy, gate) = front(&format!(
            " default_backend back\nbackend back\n http-reuse safe\n server s {address} pool-low-conn {low} pool-purge-delay \
             60s"
        ));
        let ended = || if http2 { server.ended.load(Ordering::SeqCst) } else { ended.load(Ordering::SeqCst) };
        // The clients stay: each has its first request once.
        let mut clients = Vec::new();
        for count in 1..=low + 3 {
            let mut client = Plain::connect(&gate.address());
            assert!(client.get("/").head.starts_with("HTTP/1.1 200"));
            clients.push(client);
            let (kept, gone) = (count.min(low + 1), count.saturating_sub(low + 1));
            wait_for("the release", || (idle(&proxy) == kept && ended() == gone).then_some(()));
        }
    }
}

/// `pool-max-conn` is the number of idle connections that are kept; one with a stream is none of them.
#[test]
fn idle_connections_are_as_many_as_pool_max_conn_says() {
    for (most, connections) in [(0, 3), (1, 1)] {
        let server = Server::start();
        let lines = " default_backend back\nbackend back\n http-reuse always\n server s";
        let (proxy, gate) = front(&format!("{lines} {} proto h2 pool-max-conn {most}", server.address));
        let mut client = Client::connect(&gate.address());
        for count in 1..=3 {
            assert_eq!(client.get("/").status, 200);
            let gone = if most == 0 { count } else { 0 };
            wait_for("the release", || {
                (idle(&proxy) == most && server.ended.load(Ordering::SeqCst) == gone).then_some(())
            });
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), connections, "{most}");
    }
}

/// `max-reuse` counts the streams behind the first; a connection that is used up is not in the way of the next one.
#[test]
fn connections_are_used_as_often_as_max_reuse_says() {
    for (most, connections) in [(1, [1, 1, 2, 2, 3, 3]), (2, [1, 1, 1, 2, 2, 2])] {
        let server = Server::start();
        let lines = " default_backend back\nbackend back\n http-reuse always\n server s";
        let (_proxy, gate) = front(&format!("{lines} {} proto h2 max-reuse {most}", server.address));
        let mut client = Client::connect(&gate.address());
        let seen = [(); 6].map(|()| {
            assert_eq!(client.get("/").status, 200);
            server.connections.load(Ordering::SeqCst)
        });
        assert_eq!(seen, connections, "{most}");
        server.wait("the end of the first", &server.ended, 1);
    }
}

/// `option httpclose` closes connections of HTTP/1; a stream's end is no reason to close the connection of HTTP/2 under it.
#[test]
fn httpclose_leaves_connections_of_http_2_open() {
    for reuse in ["always", "aggressive"] {
        let server = Server::start();
        let lines = " option httpclose\n default_backend back\nbackend back\n option httpclose";
        let (_proxy, gate) = front(&format!("{lines}\n http-reuse {reuse}\n server s {} proto h2", server.address));
        for _ in 0..3 {
            let mut client = Plain::connect(&gate.address());
            assert!(client.get("/").head.contains("connection: close"));
            assert!(client.read_to_end().is_empty());
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1, "{reuse}");
    }
}
