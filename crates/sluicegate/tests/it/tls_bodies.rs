//! Bodies that pause on their way through TLS, in both directions: records are sent together only while there is more
//! to send.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use sluicegate_testkit::{Listening, PATIENCE};

use crate::start;
use crate::tls::Pki;

/// A byte that heads, chunk sizes and framing do not contain.
const BYTE: u8 = b'~';

/// The sizes of a body before its pause and behind it: several reads and a rest, and more than the kernel buffers.
const PARTS: [usize; 2] = [100_001, 3_000_000];

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length,
    Chunked,
    UntilClose,
}

impl Framing {
    fn field(self) -> String {
        match self {
            Framing::Length => format!("Content-Length: {}\r\n", PARTS[0] + PARTS[1]),
            Framing::Chunked => String::from("Transfer-Encoding: chunked\r\n"),
            Framing::UntilClose => String::from("Connection: close\r\n"),
        }
    }

    /// Sends a part of a body.
    fn send(self, stream: &mut TcpStream, part: usize) {
        let body = vec![BYTE; PARTS[part]];
        if self != Framing::Chunked {
            return stream.write_all(&body).expect("open");
        }
        for piece in body.chunks(7_000) {
            write!(stream, "{:x}\r\n", piece.len()).expect("open");
            stream.write_all(piece).expect("open");
            stream.write_all(b"\r\n").expect("open");
        }
        if part == 1 {
            stream.write_all(b"0\r\n\r\n").expect("open");
        }
    }
}

/// Reads until `wanted` bytes of a body have come, of which `seen` came before.
fn receive(stream: &mut TcpStream, seen: &mut usize, wanted: usize) {
    let mut buffer = vec![0; 64 * 1024];
    while *seen < wanted {
        let count = stream.read(&mut buffer).expect("data");
        assert!(count > 0, "{seen} of {wanted} bytes");
        *seen += buffer[..count].iter().filter(|byte| **byte == BYTE).count();
    }
}

/// The other end's message that it has received the first part of a body.
struct Pause {
    has: Sender<()>,
    may: Receiver<()>,
}

/// Returns both ends of a pause.
fn pauses() -> (Pause, Pause) {
    let ((has, told), (tell, may)) = (channel(), channel());
    (Pause { has, may }, Pause { has: tell, may: told })
}

/// Sends one body with a pause, until the other end has what precedes it.
fn send(stream: &mut TcpStream, head: &str, framing: Framing, pause: &Pause) {
    stream.write_all(head.as_bytes()).expect("open");
    framing.send(stream, 0);
    pause.may.recv_timeout(PATIENCE).expect("the first part arrives before there is a second");
    framing.send(stream, 1);
}

/// Receives one such body.
fn take(stream: &mut TcpStream, pause: &Pause) {
    let mut seen = 0;
    receive(stream, &mut seen, PARTS[0]);
    pause.has.send(()).expect("a sender that waits");
    receive(stream, &mut seen, PARTS[0] + PARTS[1]);
}

#[test]
fn what_precedes_a_pause_is_sent() {
    let pki = Pki::new();
    for mode in ["http", "tcp"] {
        let origin = TcpListener::bind("127.0.0.1:0").expect("a port");
        let [first, second] = [Listening::new(), Listening::new()];
        let configuration = format!(
            "defaults\n    mode {mode}\n    timeout client 120s\n    timeout server 120s\n    timeout connect 120s\n\
             listen in\n    bind {}\n    server next 127.0.0.1:{} ssl verify none\n\
             listen out\n    bind {} ssl crt {}\n    server o 127.0.0.1:{}\n",
            first.word(),
            second.port(),
            second.word(),
            pki.path("b.pem").display(),
            origin.local_addr().expect("an address").port(),
        );
        let _ours = start(&configuration, &[&first, &second]);
        for (request, response) in [
            (Framing::Length, Framing::Length),
            (Framing::Chunked, Framing::Chunked),
            (Framing::Length, Framing::UntilClose),
        ] {
            let (here, there) = pauses();
            std::thread::scope(|scope| {
                let serving = scope.spawn(|| {
                    let there = there;
                    let (mut stream, _) = origin.accept().expect("a connection");
                    take(&mut stream, &there);
                    let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", response.field());
                    send(&mut stream, &head, response, &there);
                });
                let mut client = TcpStream::connect(("127.0.0.1", first.port())).expect("connected");
                client.set_read_timeout(Some(PATIENCE)).expect("a socket");
                let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{}\r\n", request.field());
                send(&mut client, &head, request, &here);
                take(&mut client, &here);
                assert!(serving.join().is_ok(), "{mode} {request:?} {response:?}");
            });
        }
    }
}
