//! The sizes of TLS records on the wire: `tune.ssl.maxrecord`, `tune.ssl.hard-maxrecord` and `tune.idletimer`, beside
//! HAProxy 2.8.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use sluicegate_testkit::{Haproxy, Listening, PATIENCE};
use sluicegate_tls::connector::Connector;
use sluicegate_tls::policy::{Policy, ServerSettings, Verify};

use crate::start;
use crate::tls::Pki;

/// The bytes of a record beyond its plaintext, in TLS 1.3 with AES-GCM: its inner type and the tag.
const EXTRA: usize = 17;

/// The bytes of a response's body.
const BODY: usize = 1 << 20;

/// Serves responses of `BODY` bytes; `/small` has 5,000. A connection may have many requests.
fn serve(origin: TcpListener) {
    std::thread::spawn(move || {
        for stream in origin.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
}

fn answer(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            let size = if head.starts_with(b"GET /small") { 5000 } else { BODY };
            let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
            answer.resize(answer.len() + size, b'x');
            if stream.write_all(&answer).is_err() {
                return;
            }
            head.clear();
        }
    }
}

/// A client that sees records.
struct Client {
    socket: TcpStream,
    connection: rustls::ClientConnection,
}

impl Client {
    fn connect(port: u16) -> Client {
        let policy = Policy { verify: Some(Verify::None), ..Policy::default() };
        let connector = Connector::new(ServerSettings { policy, ..ServerSettings::default() }).expect("settings");
        let connection = connector.connect(None, None).expect("a client");
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut client = Client { socket, connection };
        while client.connection.is_handshaking() {
            client.connection.complete_io(&mut client.socket).expect("a handshake");
        }
        client
    }

    /// Sends a request, and returns the sizes of the plaintext of its answer's records.
    fn sizes(&mut self, path: &str) -> Vec<usize> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        self.connection.writer().write_all(request.as_bytes()).expect("room");
        self.connection.complete_io(&mut self.socket).expect("sent");
        let wanted = if path == "/small" { 5000 } else { BODY };
        let (mut sizes, mut body, mut head) = (Vec::new(), 0, Vec::new());
        while body < wanted {
            let mut record = vec![0; 5];
            self.socket.read_exact(&mut record).expect("a record");
            let size = usize::from(u16::from_be_bytes([record[3], record[4]]));
            record.resize(5 + size, 0);
            self.socket.read_exact(&mut record[5..]).expect("a record");
            let mut bytes = &record[..];
            while !bytes.is_empty() {
                self.connection.read_tls(&mut bytes).expect("a record");
            }
            let state = self.connection.process_new_packets().expect("a record");
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            self.connection.reader().read_exact(&mut plain).expect("plaintext");
            if plain.is_empty() {
                continue;
            }
            assert_eq!(plain.len() + EXTRA, size);
            sizes.push(plain.len());
            if body == 0 {
                head.extend(plain);
                let end = head.windows(4).position(|bytes| bytes == b"\r\n\r\n");
                body = end.map_or(0, |end| head.len() - end - 4);
            } else {
                body += plain.len();
            }
        }
        sizes
    }
}

/// Returns the configuration of a proxy.
fn configuration(pki: &Pki, global: &str, listening: &Listening, origin: u16) -> String {
    format!(
        "global\n{global}    nbthread 1\ndefaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout \
         connect 10s\nlisten l\n    bind {} ssl crt {} alpn http/1.1\n    server s 127.0.0.1:{origin}\n",
        listening.word(),
        pki.path("b.pem").display(),
    )
}

/// Calls `check` with a client of either program.
fn beside(global: &str, check: impl Fn(Client, &str)) {
    let pki = Pki::new();
    let origin = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = origin.local_addr().expect("an address").port();
    serve(origin);
    let listening = [Listening::new(), Listening::new()];
    let [theirs, ours] = listening.each_ref().map(|listening| configuration(&pki, global, listening, port));
    let _haproxy = Haproxy::start_2_8(&theirs, &[&listening[0]]);
    let _ours = start(&ours, &[&listening[1]]);
    for (listening, name) in listening.iter().zip(["HAProxy", "Sluicegate"]) {
        check(Client::connect(listening.port()), name);
    }
}

#[test]
fn the_records_of_a_message_are_small_until_it_is_a_stream() {
    beside("    tune.ssl.maxrecord 1400\n", |mut client, name| {
        for path in ["/", "/"] {
            let sizes = client.sizes(path);
            assert!(sizes[..8].iter().all(|size| *size <= 1400), "{name}: {:?}", &sizes[..8]);
            assert!(sizes.iter().any(|size| *size > 8192), "{name}: no record is large");
        }
        assert!(client.sizes("/small").iter().all(|size| *size <= 1400), "{name}");
    });
}

#[test]
fn no_record_exceeds_the_hard_limit() {
    beside("    tune.ssl.hard-maxrecord 2000\n", |mut client, name| {
        let sizes = client.sizes("/");
        assert!(sizes.iter().all(|size| *size <= 2000), "{name}");
        assert!(sizes.contains(&2000), "{name}");
    });
    beside("    tune.ssl.hard-maxrecord 3000\n    tune.ssl.maxrecord 10\n", |mut client, name| {
        let sizes = client.sizes("/");
        assert!(sizes[..100].iter().all(|size| *size == 10), "{name}");
        assert!(sizes.iter().all(|size| *size <= 3000) && sizes.contains(&3000), "{name}");
    });
}
