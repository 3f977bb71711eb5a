//! Servers that speak HTTP/2: a scripted one, whose answers depend on the path, in front of clients of both versions.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sluicegate_testkit::{Certificates, Client, Listening, Sluicegate, wait_for};
use sluicegate_wire::http::{Framing, Message, Version};
use sluicegate_wire::http2::{Connection, ErrorCode, Event, Progress, Settings, StreamKey};

use crate::start;

/// What a server has seen.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// The codes of resets by the proxy.
    resets: Mutex<Vec<u32>>,
}

pub(crate) struct Server {
    pub(crate) address: String,
    seen: Arc<Seen>,
}

/// One connection of the server.
struct Serving {
    socket: TcpStream,
    wire: Connection,
    /// The path of each stream, and the data received on it.
    streams: HashMap<StreamKey, (String, Vec<u8>)>,
    seen: Arc<Seen>,
}

fn response(status: u16) -> Message {
    let mut message = Message::new();
    message.set_response(Version::Http2, status, b"");
    message
}

impl Server {
    pub(crate) fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server { address: listener.local_addr().expect("bound").to_string(), seen: Arc::default() };
        let seen = server.seen.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                seen.connections.fetch_add(1, Ordering::SeqCst);
                let wire = Connection::server(Settings::default());
                let serving = Serving { socket, wire, streams: HashMap::new(), seen: seen.clone() };
                std::thread::spawn(move || serving.run());
            }
        });
        server
    }

    fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    fn has_reset(&self, code: ErrorCode) -> Option<()> {
        self.seen.resets.lock().expect("unharmed").contains(&code.0).then_some(())
    }
}

impl Serving {
    fn run(mut self) -> Option<()> {
        let (mut input, mut message) = (Vec::new(), Message::new());
        let mut buffer = [0; 16_384];
        loop {
            self.wire.begin_turn();
            loop {
                let (count, progress) = self.wire.receive(&input, &mut message).ok()?;
                match progress {
                    Progress::Event(event) => self.event(event, &input, &message)?,
                    Progress::Idle | Progress::Blocked(_) => {
                        input.drain(..count);
                        break;
                    }
                }
                input.drain(..count);
            }
            self.flush()?;
            let count = self.socket.read(&mut buffer).ok().filter(|count| *count > 0)?;
            input.extend_from_slice(&buffer[..count]);
        }
    }

    fn flush(&mut self) -> Option<()> {
        self.socket.write_all(self.wire.output()).ok()?;
        self.wire.wrote(self.wire.output().len());
        Some(())
    }

    fn answer(&mut self, stream: StreamKey, status: u16, body: &[u8]) {
        let _ = self.wire.send_response(stream, &response(status), Framing::Length(body.len() as u64), body.is_empty());
        if !body.is_empty() {
            self.wire.send_data(stream, body, true);
        }
    }

    fn event(&mut self, event: Event, input: &[u8], message: &Message) -> Option<()> {
        match event {
            Event::Request { stream, end, .. } => {
                let target = String::from_utf8_lossy(message.target()).into_owned();
                let path = target.split_once("://").map_or(&*target, |(_, rest)| &rest[rest.find('/').unwrap_or(0)..]);
                self.streams.insert(stream, (path.to_owned(), Vec::new()));
                let earlier = self.seen.requests.fetch_add(1, Ordering::SeqCst);
                match path {
                    "/interim" => _ = self.wire.send_response(stream, &response(103), Framing::None, false),
                    "/echo" => _ = self.wire.send_response(stream, &response(200), Framing::Chunked, false),
                    "/ws" => _ = self.wire.send_response(stream, &response(101), Framing::None, false),
                    "/refused" if earlier == 0 => self.wire.reset(stream, ErrorCode::REFUSED_STREAM),
                    "/always-refused" => self.wire.reset(stream, ErrorCode::REFUSED_STREAM),
                    "/gone" if earlier == 0 => {
                        self.wire.goaway(0, ErrorCode::NO_ERROR);
                        self.flush()?;
                        return None;
                    }
                    "/malformed" => {
                        // A response of one field, whose name has a capital letter.
                        self.flush()?;
                        let mut frame = vec![0, 0, 6, 1, 5];
                        frame.extend_from_slice(&stream.id().to_be_bytes());
                        frame.extend_from_slice(&[0x88, 0, 1, b'A', 1, b'b']);
                        self.socket.write_all(&frame).ok()?;
                    }
                    _ => {}
                }
                if end {
                    self.complete(stream, None);
                }
            }
            Event::Data { stream, range } => {
                let data = &input[range];
                let (path, body) = self.streams.get_mut(&stream)?;
                body.extend_from_slice(data);
                if matches!(&**path, "/echo" | "/ws") {
                    self.wire.send_data(stream, data, false);
                }
                self.wire.consume(stream, data.len());
            }
            Event::End { stream } => self.complete(stream, None),
            Event::Trailers { stream } => self.complete(stream, Some(message)),
            Event::Reset { stream, code, .. } => {
                self.seen.resets.lock().expect("unharmed").push(code.0);
                self.streams.remove(&stream);
                self.wire.release(stream);
            }
            _ => {}
        }
        Some(())
    }

    /// Answers a request that is complete.
    fn complete(&mut self, stream: StreamKey, trailers: Option<&Message>) {
        let Some((path, body)) = self.streams.get(&stream).cloned() else { return };
        match &*path {
            "/nothing" => _ = self.wire.send_response(stream, &response(200), Framing::None, true),
            "/head" => _ = self.wire.send_response(stream, &response(200), Framing::Length(5), true),
            "/204" => _ = self.wire.send_response(stream, &response(204), Framing::None, true),
            "/echo" | "/ws" => self.wire.send_end(stream, trailers),
            "/trailers" => {
                let mut trailers = Message::new();
                trailers.add(b"x-sum", b"42");
                let _ = self.wire.send_response(stream, &response(200), Framing::Chunked, false);
                self.wire.send_data(stream, b"body", false);
                self.wire.send_end(stream, Some(&trailers));
            }
            "/short" | "/broken" => {
                let _ = self.wire.send_response(stream, &response(200), Framing::Length(10), false);
                self.wire.send_data(stream, b"abc", path == "/short");
                if path == "/broken" {
                    self.wire.reset(stream, ErrorCode::INTERNAL_ERROR);
                }
            }
            "/hangs" | "/malformed" => {}
            _ if self.wire.is_closed(stream) => {}
            _ if body.is_empty() => self.answer(stream, 200, b"hello"),
            _ => self.answer(stream, 200, &body),
        }
    }
}

const DEFAULTS: &str = "defaults\n mode http\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n";

/// Returns a proxy with these lines in its backend, its address for HTTP/1 and its address for HTTP/2.
fn proxy(lines: &str) -> (Sluicegate, Listening, Listening) {
    let (gate, gate2) = (Listening::new(), Listening::new());
    let text = format!(
        "global\n nbthread 1\n stats socket @DIR@/stats level admin\n{DEFAULTS}frontend fe\n bind {}\n bind {} proto h2\n \
         default_backend be\nbackend be\n{lines}\n",
        gate.word(),
        gate2.word()
    );
    (start(&text, &[&gate, &gate2]), gate, gate2)
}

fn get(client: &mut Client, path: &str) -> (u16, String) {
    let response = client.get(path);
    let status = response.head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, response.text())
}

fn text_of(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).into_owned()
}

#[test]
fn responses_of_every_kind_reach_a_client_of_http_1() {
    let server = Server::start();
    let lines = format!(
        " http-reuse always\n http-response set-header x-facts \"%[bc_http_major] %[bs.id] %[bc_setting_streams_limit]\"\n \
         server s {} proto h2",
        server.address
    );
    let (_proxy, gate, _) = proxy(&lines);
    let mut client = Client::connect(&gate.address());
    for (path, status, body) in [("/plain", 200, "hello"), ("/nothing", 200, ""), ("/204", 204, "")] {
        assert_eq!(get(&mut client, path), (status, body.to_owned()), "{path}");
    }
    let response = client.get("/facts");
    assert_eq!(response.header("x-facts"), Some("2 7 100"), "{}", response.head);
    client.send("HEAD /head HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.read_response_to(true).header("content-length"), Some("5"));
    client.send("GET /interim HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(text_of(&client.read_until(b"\r\n\r\n")).starts_with("HTTP/1.1 103 "));
    assert_eq!(client.read_response().text(), "hello");
    client.send("GET /trailers HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n");
    let answer = text_of(&client.read_until(b"\r\n0\r\nx-sum: 42\r\n\r\n"));
    assert!(answer.contains("transfer-encoding: chunked") && answer.contains("body"), "{answer}");
    client.send("POST /post HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(client.read_response().text(), "abc");
    assert_eq!(server.connections(), 1, "all of it is one connection");
}

#[test]
fn trailers_that_are_dropped_end_the_response() {
    let server = Server::start();
    let gate = Listening::new();
    let text = format!(
        "global\n nbthread 1\n{DEFAULTS}listen l\n bind {}\n option http-drop-response-trailers\n server s {} proto h2\n",
        gate.word(),
        server.address
    );
    let _proxy = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    client.send("GET /trailers HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n");
    let answer = text_of(&client.read_until(b"\r\n0\r\n\r\n"));
    assert!(answer.contains("body") && !answer.contains("x-sum"), "{answer}");
    // The worker, the only one, still serves.
    assert_eq!(get(&mut client, "/plain"), (200, "hello".to_owned()));
}

#[test]
fn a_request_that_was_not_processed_is_repeated() {
    for path in ["/refused", "/gone"] {
        let server = Server::start();
        let (_proxy, gate, _) = proxy(&format!(" server s {} proto h2", server.address));
        let mut client = Client::connect(&gate.address());
        client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody"));
        assert_eq!(client.read_response().text(), "body", "{path}");
        assert_eq!(server.seen.requests.load(Ordering::SeqCst), 2, "{path}");
    }
}

#[test]
fn a_request_goes_from_one_protocol_to_the_other() {
    let server = Server::start();
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("bound");
    let answering = std::thread::spawn(move || {
        let (mut socket, _) = other.accept().expect("a connection");
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n0\r\n\r\n") {
            socket.read_exact(&mut byte).expect("a request");
            request.push(byte[0]);
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nh1").expect("writable");
        text_of(&request)
    });
    let lines = format!(
        " balance roundrobin\n option redispatch 1\n server s {} proto h2\n server t {address} weight 1",
        server.address
    );
    let (_proxy, gate, _) = proxy(&lines);
    let mut client = Client::connect(&gate.address());
    client.send("POST /always-refused HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
    assert_eq!(client.read_response().text(), "h1");
    let request = answering.join().expect("a request");
    assert!(
        request.starts_with("POST /always-refused HTTP/1.1\r\n") && request.contains("\r\n4\r\nbody\r\n"),
        "{request}"
    );
}

#[test]
fn broken_responses_are_noticed() {
    let server = Server::start();
    let (_proxy, gate, _) = proxy(&format!(" server s {} proto h2", server.address));
    assert_eq!(get(&mut Client::connect(&gate.address()), "/malformed").0, 502);
    wait_for("the reset of a malformed response", || server.has_reset(ErrorCode::PROTOCOL_ERROR));
    for path in ["/short", "/broken"] {
        let mut client = Client::connect(&gate.address());
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        let answer = text_of(&client.read_to_end());
        let truncated = answer.starts_with("HTTP/1.1 200") && !answer.contains("abc1234567");
        assert!(truncated || answer.starts_with("HTTP/1.1 502"), "{path}: {answer}");
    }
    assert_eq!(get(&mut Client::connect(&gate.address()), "/plain").0, 200);
}

#[test]
fn streams_that_nobody_waits_for_are_cancelled() {
    for (lines, leaves) in [(" option abortonclose\n", true), (" timeout server 100ms\n", false)] {
        let server = Server::start();
        let (_proxy, gate, _) = proxy(&format!("{lines} server s {} proto h2", server.address));
        let mut client = Client::connect(&gate.address());
        client.send("GET /hangs HTTP/1.1\r\nhost: a\r\n\r\n");
        wait_for("the request", || (server.seen.requests.load(Ordering::SeqCst) == 1).then_some(()));
        if leaves {
            client.finish();
        } else {
            assert!(client.read_response().head.starts_with("HTTP/1.1 504"));
        }
        wait_for("the reset of the stream", || server.has_reset(ErrorCode::CANCEL));
    }
}

/// A stream, and its response: status, data, trailer, and whether it has ended.
type Exchanged = (StreamKey, u16, Vec<u8>, Option<Vec<u8>>, bool);

/// Sends concurrent HTTP/2 requests, each with a body in two parts: the second part is sent once the first has been
/// echoed. Returns the status, body and trailer of each response.
fn echoes(address: &str, count: usize) -> Vec<(u16, Vec<u8>, Option<Vec<u8>>)> {
    let mut socket = TcpStream::connect(address).expect("connected");
    let mut wire = Connection::client(Settings::default());
    let mut request = Message::new();
    request.set_request(b"POST", b"http://a/echo", Version::Http2);
    request.add(b"host", b"a");
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = wire.open().expect("a stream");
        wire.send_request(stream, &request, Framing::Chunked, false, false).expect("sent");
        wire.send_data(stream, b"first ", false);
        streams.push((stream, 0, Vec::new(), None, false));
    }
    let (mut input, mut message, mut buffer) = (Vec::new(), Message::new(), [0; 16_384]);
    while !streams.iter().all(|(.., ended)| *ended) {
        socket.write_all(wire.output()).expect("writable");
        wire.wrote(wire.output().len());
        let read = socket.read(&mut buffer).expect("readable");
        assert!(read > 0, "the connection ended");
        input.extend_from_slice(&buffer[..read]);
        wire.begin_turn();
        loop {
            let (used, progress) = wire.receive(&input, &mut message).expect("frames");
            let of = |stream: StreamKey, streams: &[Exchanged]| {
                streams.iter().position(|known| known.0 == stream).expect("a stream of this client")
            };
            match progress {
                Progress::Event(Event::Response { stream, .. }) => {
                    let at = of(stream, &streams);
                    streams[at].1 = message.status();
                }
                Progress::Event(Event::Data { stream, range }) => {
                    let at = of(stream, &streams);
                    streams[at].2.extend_from_slice(&input[range.clone()]);
                    wire.consume(stream, range.len());
                    if streams[at].2 == b"first " {
                        let mut trailers = Message::new();
                        trailers.add(b"x-end", b"yes");
                        wire.send_data(stream, b"second", false);
                        wire.send_end(stream, Some(&trailers));
                    }
                }
                Progress::Event(Event::Trailers { stream }) => {
                    let at = of(stream, &streams);
                    streams[at].3 = message.first(b"x-end").map(<[u8]>::to_vec);
                    streams[at].4 = true;
                }
                Progress::Event(Event::End { stream } | Event::Reset { stream, .. }) => {
                    let at = of(stream, &streams);
                    streams[at].4 = true;
                }
                Progress::Event(_) => {}
                Progress::Idle | Progress::Blocked(_) => {
                    input.drain(..used);
                    break;
                }
            }
            input.drain(..used);
        }
    }
    streams.into_iter().map(|(_, status, body, trailers, _)| (status, body, trailers)).collect()
}

#[test]
fn both_sides_of_a_stream_speak_at_once() {
    let server = Server::start();
    let (_proxy, _, gate2) = proxy(&format!(" http-reuse always\n server s {} proto h2", server.address));
    let wanted = (200, b"first second".to_vec(), Some(b"yes".to_vec()));
    assert_eq!(echoes(&gate2.address(), 1), std::slice::from_ref(&wanted));
    assert_eq!(echoes(&gate2.address(), 20), vec![wanted; 20]);
    assert_eq!(server.connections(), 1, "sessions share a connection under http-reuse always");
}

#[test]
fn http_reuse_decides_who_shares_a_connection() {
    for (policy, connections) in [("never", 2), ("safe", 2), ("aggressive", 1), ("always", 1)] {
        let server = Server::start();
        let (_proxy, gate, _) = proxy(&format!(" http-reuse {policy}\n server s {} proto h2", server.address));
        let (mut one, mut other) = (Client::connect(&gate.address()), Client::connect(&gate.address()));
        for _ in 0..2 {
            assert_eq!(get(&mut one, "/plain").0, 200);
            assert_eq!(get(&mut other, "/plain").0, 200);
        }
        // Under `aggressive` a first request may use only a connection that was reused before; to HAProxy, every
        // HTTP/2 connection was.
        assert_eq!(server.connections(), connections, "{policy}");
    }
}

/// A server that enters maintenance may be another one when it comes back.
#[test]
fn an_idle_connection_does_not_survive_a_maintenance() {
    for policy in ["always", "safe"] {
        let server = Server::start();
        let (proxy, gate, _) = proxy(&format!(" http-reuse {policy}\n server s {} proto h2", server.address));
        let set =
            |state| Sluicegate::stats(&proxy.directory().join("stats"), &format!("set server be/s state {state}"));
        let mut client = Client::connect(&gate.address());
        for _ in 0..2 {
            assert_eq!(get(&mut client, "/plain").0, 200);
        }
        set("drain");
        set("ready");
        assert_eq!((get(&mut client, "/plain").0, server.connections()), (200, 1), "{policy}");
        set("maint");
        set("ready");
        assert_eq!(get(&mut client, "/plain").0, 200);
        assert_eq!((get(&mut client, "/plain").0, server.connections()), (200, 2), "{policy}");
    }
}

#[test]
fn websockets_pass_by_an_extended_connect() {
    let server = Server::start();
    // The data of a tunnel are no body to wait for.
    for rule in ["", " http-response wait-for-body time 600s\n"] {
        let (_proxy, gate, _) = proxy(&format!("{rule} server s {} proto h2", server.address));
        let mut client = Client::connect(&gate.address());
        client.send(
            "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        let head = text_of(&client.read_until(b"\r\n\r\n"));
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: websocket"), "{head}");
        assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
        for text in ["one", "another"] {
            client.send(text);
            assert_eq!(text_of(&client.read_exact(text.len())), text);
        }
    }
}

#[test]
fn a_server_that_offers_http_2_alone_gets_websockets_by_it() {
    let certificates = Certificates::new();
    certificates.issue("s", "DNS:s.example", "ec -pkeyopt ec_paramgen_curve:P-256");
    std::fs::write(certificates.path("s.pem"), certificates.pem("s")).expect("writable");
    // The HTTP version that the server receives under `ws auto`, by the list of protocols.
    for (alpn, version) in [("h2", "2.0"), ("h2,http/1.1", "1.1"), ("http/1.1,h2", "1.1")] {
        let (gate, inner) = (Listening::new(), Listening::new());
        let text = format!(
            "{DEFAULTS}listen outer\n bind {}\n server s {} ssl verify none alpn {alpn}\nfrontend inner\n bind {} ssl crt \
             {}\n http-request return status 400 hdr x-version %[req.ver]\n",
            gate.word(),
            inner.address(),
            inner.word(),
            certificates.path("s.pem")
        );
        let _proxy = start(&text, &[&gate, &inner]);
        let mut client = Client::connect(&gate.address());
        client.send(
            "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        assert_eq!(client.read_response().header("x-version"), Some(version), "{alpn}");
    }
}

#[test]
fn pool_conn_name_names_the_connections_that_a_request_may_use() {
    for (words, connections) in
        [("", 1), ("pool-conn-name req.hdr(x-tenant)", 3), ("pool-conn-name req.hdr(x-tenant) pool-low-conn 1", 2)]
    {
        let server = Server::start();
        let (_proxy, gate, _) = proxy(&format!(" http-reuse always\n server s {} proto h2 {words}", server.address));
        // One connection at a time is needed, so one is kept, and a second one with `pool-low-conn`.
        let mut client = Client::connect(&gate.address());
        for tenant in ["a", "b", "a", "b"] {
            client.send(format!("GET /plain HTTP/1.1\r\nhost: a\r\nx-tenant: {tenant}\r\n\r\n"));
            assert_eq!(client.read_response().text(), "hello");
        }
        assert_eq!(server.connections(), connections, "{words}");
    }
}

#[test]
fn checks_speak_the_protocol_of_the_server() {
    let server = Server::start();
    let lines = format!(
        " timeout check 60s\n option httpchk GET /plain\n http-check expect string hello\n server s {} proto h2 check inter 2s",
        server.address
    );
    let (proxy, ..) = proxy(&lines);
    wait_for("a check that passes", || {
        let stats = Sluicegate::stats(&proxy.directory().join("stats"), "show stat");
        stats.lines().any(|line| line.starts_with("be,s,") && line.contains("L7OK")).then_some(())
    });
}
