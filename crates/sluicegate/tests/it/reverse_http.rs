//! HTTP in reverse: servers that connect to the proxy, which is another process of this program in most tests, and a
//! scripted one where frames matter.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sluicegate_testkit::{Certificates, Client, Listening, Sluicegate, free_port, wait_for};
use sluicegate_wire::http::{Framing, Message, Version};
use sluicegate_wire::http2::{Connection, Event, Progress, Settings};

use crate::start;

const GLOBAL: &str = "global\n expose-experimental-directives\n stats socket @DIR@/stats level admin\n";
const DEFAULTS: &str =
    "defaults\n mode http\n log stderr local0\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n";

/// A proxy with a port for clients and one for servers.
struct Edge {
    program: Sluicegate,
    public: Listening,
    private: Listening,
}

impl Edge {
    /// `threads` and these words: of the `bind` line for servers, of the `server` line, and a `name …` of `attach-srv`.
    fn start(threads: u32, bind: &str, server: &str, name: &str) -> Edge {
        Edge::start_with(threads, bind, server, name, "")
    }

    /// With further lines in `global`.
    fn start_with(threads: u32, bind: &str, server: &str, name: &str, global: &str) -> Edge {
        let (public, private) = (Listening::new(), Listening::new());
        let text = format!(
            "{GLOBAL} nbthread {threads}\n{global}{DEFAULTS} option httplog\nfrontend public\n bind {}\n default_backend be\n\
             frontend private\n bind {} {bind}\n tcp-request session attach-srv be/dev {name}\nbackend be\n server dev \
             rhttp@ {server}\n",
            public.word(),
            private.word()
        );
        Edge { program: start(&text, &[&public, &private]), public, private }
    }

    fn client(&self) -> Client {
        Client::connect(&self.public.address())
    }

    /// Returns a column of `show servers conn`.
    fn idle(&self, column: &str) -> u32 {
        column_of(&self.program, "be/dev", column)
    }

    /// Waits until so many connections are idle.
    #[track_caller]
    fn wait_for_idle(&self, count: u32) {
        wait_for(&format!("{count} idle connections"), || (self.idle("idle_cur") == count).then_some(()));
    }
}

fn column_of(program: &Sluicegate, server: &str, column: &str) -> u32 {
    let text = Sluicegate::stats(&program.directory().join("stats"), "show servers conn");
    let mut lines = text.lines();
    let head = lines.next().expect("a head").trim_start_matches("# ");
    let at = head.split(' ').position(|name| name == column).expect("a column");
    let line = lines.find(|line| line.starts_with(server)).expect("a line");
    line.split(' ').nth(at).expect("a value").parse().expect("a number")
}

/// Returns a proxy that connects to an edge and answers requests; the words are those of its `bind` and `server` lines.
fn device(edge: &Edge, bind: &str, server: &str, answer: &str) -> Sluicegate {
    let text = format!(
        "{GLOBAL} nbthread 2\n{DEFAULTS}frontend fe\n option socket-stats\n bind rhttp@pre/srv {bind}\n http-request return \
         status 200 content-type text/plain lf-string {answer}\nbackend pre\n server srv {} {server}\n",
        edge.private.address()
    );
    start(&text, &[])
}

/// Sends a request with a field on a connection of its own.
fn ask(edge: &Edge, field: &str) -> (u16, String) {
    let mut client = edge.client();
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{field}connection: close\r\n\r\n"));
    let response = client.read_response();
    let status = response.head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, response.text())
}

#[test]
fn requests_reach_a_server_that_connects() {
    let mut edge = Edge::start(1, "proto h2", "", "");
    // Nothing to wait for: as in HAProxy the failure is that of a connection, and is not retried.
    assert_eq!(ask(&edge, "").0, 503);
    edge.program.program.wait_for_output(" public be/dev ");
    let output = edge.program.program.output();
    let line = output.lines().find(|line| line.contains(" public be/dev ")).expect("a line");
    assert!(line.contains(" 503 ") && line.contains(" SC-- ") && line.contains("/0 0/0 "), "{line}");

    let mut device = device(&edge, "nbconn 3", "proto h2", "\"%[src] %[fc_http_major] %[path] %[dst_is_local]\"");
    edge.wait_for_idle(3);
    device.program.wait_for_output("preconnect fe::pre/srv: Initiating.");
    device.program.wait_for_output("preconnect fe::pre/srv: Running with nbconn 3 reached.");
    let mut client = edge.client();
    for _ in 0..3 {
        client.send("GET /a HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "127.0.0.1 2 /a 1");
    }
    edge.wait_for_idle(3);
    assert_eq!(edge.idle("used_cur"), 0);
    let stats = |program: &Sluicegate| Sluicegate::stats(&program.directory().join("stats"), "show stat");
    let (of_edge, of_device) = (stats(&edge.program), stats(&device));
    assert!(of_edge.contains("\nprivate,FRONTEND,,,0,"), "{of_edge}");
    assert!(of_device.contains("\nfe,FRONTEND,,,3,3,"), "{of_device}");
    assert!(of_device.contains("\nfe,sock-1,,,3,3,3,") && of_device.contains(",rev,"), "{of_device}");
    let refused = Sluicegate::stats(&device.directory().join("stats"), "disable frontend fe");
    assert!(refused.starts_with("Failed to pause frontend, check logs for precise cause."), "{refused}");
    device.program.wait_for_output("cannot disable a reverse-HTTP listener.");
}

#[test]
fn every_worker_gets_an_idle_connection() {
    let edge = Edge::start(4, "proto h2", "", "");
    let _device = device(&edge, "", "proto h2", "hello");
    edge.wait_for_idle(1);
    // Whichever worker accepts the client takes the only connection from the one that has it.
    for _ in 0..40 {
        assert_eq!(ask(&edge, ""), (200, "hello".to_owned()));
    }
    edge.wait_for_idle(1);
}

#[test]
fn names_and_tls_select_the_connection() {
    let certificates = Certificates::new();
    for name in ["one", "two", "gate"] {
        certificates.issue(name, &format!("DNS:{name}.example"), "ec -pkeyopt ec_paramgen_curve:P-256");
        std::fs::write(certificates.path(&format!("{name}.pem")), certificates.pem(name)).expect("writable");
    }
    let ca = certificates.path("ca.crt");
    let bind = format!("ssl crt {} verify required ca-file {ca} alpn h2", certificates.path("gate.pem"));
    let edge = Edge::start(2, &bind, "ssl sni req.hdr(x-name) verify none", "name ssl_c_s_dn(CN)");
    let connected = |name: &str| {
        let server = format!(
            "ssl crt {} ca-file {ca} verify required sni str(gate.example) alpn h2",
            certificates.path(&format!("{name}.pem"))
        );
        let answer = format!("\"{name} %[ssl_fc] %[ssl_fc_alpn]\"");
        device(&edge, "", &server, &answer)
    };
    let (_one, _two) = (connected("one"), connected("two"));
    edge.wait_for_idle(2);
    for name in ["one", "two", "two", "one"] {
        assert_eq!(ask(&edge, &format!("x-name: {name}\r\n")), (200, format!("{name} 1 h2")));
    }
    assert_eq!(ask(&edge, "x-name: three\r\n").0, 503);
    assert_eq!(ask(&edge, "").0, 503);
    // A server that the proxy does not accept tries again and again.
    let mut stranger = device(&edge, "", &format!("ssl ca-file {ca} sni str(gate.example) alpn h2"), "hello");
    stranger.program.wait_for_output("preconnect fe::pre/srv: Error encountered.");
    assert_eq!(edge.idle("idle_cur"), 2);
}

#[test]
fn pool_conn_name_names_attached_connections() {
    let edge = Edge::start(2, "proto h2", "pool-conn-name req.hdr(x-name)", "name src,concat(-x)");
    let _device = device(&edge, "", "proto h2", "hello");
    edge.wait_for_idle(1);
    assert_eq!(ask(&edge, "x-name: 127.0.0.1-x\r\n"), (200, "hello".to_owned()));
    assert_eq!(ask(&edge, "x-name: 127.0.0.1\r\n").0, 503);
}

#[test]
fn a_lost_connection_is_replaced() {
    let (public, private) = (Listening::new(), free_port());
    let text = format!(
        "{GLOBAL}{DEFAULTS}frontend fe\n bind rhttp@pre/srv nbconn 2\n http-request return status 200 content-type \
         text/plain string hello\nbackend pre\n server srv 127.0.0.1:{private} proto h2\n"
    );
    let mut device = start(&text, &[]);
    device.program.wait_for_output("preconnect fe::pre/srv: Error encountered.");
    for _ in 0..2 {
        let text = format!(
            "{GLOBAL}{DEFAULTS}frontend public\n bind {}\n default_backend be\nfrontend private\n bind \
             127.0.0.1:{private} proto h2\n tcp-request session attach-srv be/dev\nbackend be\n server dev rhttp@\n",
            public.word()
        );
        let program = start(&text, &[&public]);
        wait_for("both connections", || (column_of(&program, "be/dev", "idle_cur") == 2).then_some(()));
        assert_eq!(Client::connect(&public.address()).get("/").text(), "hello");
    }
}

/// A server that connects, as a script.
struct Scripted {
    socket: TcpStream,
    wire: Connection,
    input: Vec<u8>,
    message: Message,
}

impl Scripted {
    fn connect(edge: &Edge) -> Scripted {
        let socket = TcpStream::connect(edge.private.address()).expect("a connection");
        let wire = Connection::reversed_server(Settings::default());
        Scripted { socket, wire, input: Vec::new(), message: Message::new() }
    }

    /// Returns the next event; `None`: the proxy has closed the connection.
    fn next(&mut self) -> Option<Event> {
        let mut buffer = [0; 16_384];
        loop {
            self.wire.begin_turn();
            let (count, progress) = self.wire.receive(&self.input, &mut self.message).expect("valid frames");
            self.input.drain(..count);
            self.socket.write_all(self.wire.output()).ok()?;
            self.wire.wrote(self.wire.output().len());
            if let Progress::Event(event) = progress {
                return Some(event);
            }
            match self.socket.read(&mut buffer) {
                Ok(count) if count > 0 => self.input.extend_from_slice(&buffer[..count]),
                _ => return None,
            }
        }
    }

    /// Waits for a request and answers it with this status.
    fn answer(&mut self, status: u16) {
        loop {
            if let Event::Request { stream, .. } = self.next().expect("a request") {
                let mut response = Message::new();
                response.set_response(Version::Http2, status, b"");
                self.wire.send_response(stream, &response, Framing::None, true).expect("it is plain");
                self.socket.write_all(self.wire.output()).expect("the proxy reads");
                self.wire.wrote(self.wire.output().len());
                return self.wire.release(stream);
            }
        }
    }

    /// Returns whether the proxy announces the end of the connection, which it then closes.
    fn is_asked_to_leave(&mut self) -> bool {
        let mut asked = false;
        while let Some(event) = self.next() {
            asked |= matches!(event, Event::GoAway { .. });
        }
        asked
    }
}

#[test]
fn attached_connections_obey_the_limits_of_the_pool() {
    let edge = Edge::start(1, "proto h2", "pool-max-conn 1 max-reuse 1", "");
    let mut first = Scripted::connect(&edge);
    assert_eq!(first.next(), Some(Event::Settings));
    edge.wait_for_idle(1);
    let mut second = Scripted::connect(&edge);
    assert_eq!(second.next(), Some(Event::Settings));
    assert_eq!(second.next(), None, "the pool has no room");
    let (mut client, mut other) = (edge.client(), edge.client());
    for one in [&mut client, &mut other] {
        one.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        first.answer(204);
        assert!(one.read_response().head.starts_with("HTTP/1.1 204"));
    }
    assert!(first.is_asked_to_leave(), "it was used once and reused once");
    assert_eq!(ask(&edge, "").0, 503);
    // Without an idle pool nothing is attached.
    let edge = Edge::start(1, "proto h2", "pool-purge-delay 0", "");
    let mut refused = Scripted::connect(&edge);
    while refused.next().is_some() {}
    assert_eq!(edge.idle("idle_cur"), 0);
}

#[test]
fn unneeded_connections_are_purged_but_the_last_one() {
    let edge = Edge::start(1, "proto h2", "pool-purge-delay 200ms", "");
    let mut devices: Vec<Scripted> = (0..3).map(|_| Scripted::connect(&edge)).collect();
    for device in &mut devices {
        assert_eq!(device.next(), Some(Event::Settings));
    }
    edge.wait_for_idle(1);
    let closed = devices.iter_mut().take(2).all(Scripted::is_asked_to_leave);
    assert!(closed, "the oldest are the first to go");
    let mut client = edge.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    devices[2].answer(204);
    assert!(client.read_response().head.starts_with("HTTP/1.1 204"));
}

#[test]
fn a_silent_server_is_disconnected_by_idle_ping() {
    let edge = Edge::start(1, "proto h2", "idle-ping 2s", "");
    let mut alive = Scripted::connect(&edge);
    assert_eq!(alive.next(), Some(Event::Settings));
    let alive = std::thread::spawn(move || alive.answer(204));
    edge.wait_for_idle(1);
    // It greets and reads nothing more, not even the pings.
    let mut silent = Scripted::connect(&edge);
    assert_eq!(silent.next(), Some(Event::Settings));
    edge.wait_for_idle(2);
    edge.wait_for_idle(1);
    let mut client = edge.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(client.read_response().head.starts_with("HTTP/1.1 204"));
    alive.join().expect("a server");
}

#[test]
fn what_is_no_http_2_is_not_attached() {
    let edge = Edge::start(1, "", "", "");
    let mut client = Client::connect(&edge.private.address());
    assert!(client.read_to_end().is_empty(), "only 'proto h2' or ALPN leads to HTTP/2 here");
    let edge = Edge::start(1, "proto h2", "", "");
    let mut client = Client::connect(&edge.private.address());
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(client.read_to_end().is_empty());
    assert_eq!(edge.idle("idle_cur"), 0);
}

/// Checks use the connections that the server has opened; without one they fail at once, as in HAProxy 3.2.
#[test]
fn checks_use_attached_connections() {
    let words = "check inter 50ms rise 1 fall 1\n timeout check 60s\n option httpchk GET /health\n http-check expect string healthy";
    let edge = Edge::start(2, "proto h2", words, "");
    let status = || {
        let text = Sluicegate::stats(&edge.program.directory().join("stats"), "show stat be 4 -1");
        let line = text.lines().nth(1).expect("a server").to_owned();
        let cells: Vec<&str> = line.split(',').collect();
        [17, 36, 65].map(|index| cells[index]).join(" ")
    };
    wait_for("a check without a connection", || (status() == "DOWN L7TOUT Layer7 timeout").then_some(()));
    let device = device(&edge, "nbconn 1", "proto h2", "\"healthy %[path]\"");
    wait_for("a check over the connection", || (status() == "UP L7OK Layer7 check passed").then_some(()));
    assert_eq!(ask(&edge, ""), (200, "healthy /".to_owned()));
    edge.wait_for_idle(1);
    drop(device);
    wait_for("a check after the end", || (status() == "DOWN L7TOUT Layer7 timeout").then_some(()));
}

/// Rates of sessions delay connections as if they were accepted: with two per second, six become sessions in 1.5 seconds
/// at the earliest (two at the end of a second, one at the beginning of the next and one in its middle, and so on).
#[test]
fn rates_delay_connections_to_servers() {
    let edge = Edge::start(1, "proto h2", "", "");
    let text = format!(
        "{GLOBAL} nbthread 1\n maxsessrate 2\n{DEFAULTS}frontend fe\n bind rhttp@pre/srv nbconn 6\nbackend pre\n server srv {} \
         proto h2\n",
        edge.private.address()
    );
    let began = Instant::now();
    let program = start(&text, &[]);
    wait_for("six sessions", || {
        let stats = Sluicegate::stats(&program.directory().join("stats"), "show stat fe 1 -1");
        stats.contains("\nfe,FRONTEND,,,6,6,").then_some(())
    });
    let elapsed = began.elapsed();
    assert!(elapsed >= Duration::from_millis(1_500), "{elapsed:?}");
}
