//! HTTP/2 towards clients: whole proxies with a client of this crate, and with curl, nghttp and h2load.
//!
//! Servers are scripted and speak HTTP/1, so each test sees what the proxy makes of a request.

mod answers;
mod attacks;
mod bodies;
mod client;
mod close_spread;
mod compared;
mod ends;
mod errors;
mod facts;
mod failures;
mod glitches;
mod idle_ping;
mod requests;
mod rules;
mod server;
mod sharing;
mod tools;
mod tunnels;
mod windows;

use std::sync::Arc;

use sluicegate_testkit::{Client as Plain, Listening, Sluicegate, lasting_listener};

use self::client::Answer;
pub(crate) use self::client::Client;
pub(crate) use self::tools::run;
use crate::start;

/// The head of configurations; `@DIR@` is the test's directory.
const DEFAULTS: &str = "global\n nbthread 1\n stats socket @DIR@/stats level admin\ndefaults\n mode http\n \
                        timeout client 60s\n timeout server 60s\n timeout connect 60s\n";

/// Starts a frontend with these lines on one listener.
fn front(lines: &str) -> (Sluicegate, Listening) {
    front_with("", lines)
}

/// Starts a frontend with these lines, and these words on its `bind` line.
fn front_with(words: &str, lines: &str) -> (Sluicegate, Listening) {
    let gate = Listening::new();
    let text = format!("{DEFAULTS}frontend front\n bind {} {words}\n{lines}\n", gate.word());
    (start(&text, &[&gate]), gate)
}

/// Starts a frontend whose requests go to this server, with lines of the frontend and of the backend.
fn before(origin: &Origin, front_lines: &str, back_lines: &str) -> (Sluicegate, Listening) {
    front(&format!(
        "{front_lines}\n default_backend back\nbackend back\n{back_lines}\n server one {}",
        origin.address()
    ))
}

/// A server of HTTP/1 whose connections a test scripts, each in a thread.
pub(crate) struct Origin(u16);

impl Origin {
    fn start(serve: impl Fn(Plain) + Send + Sync + 'static) -> Origin {
        let listener = lasting_listener();
        let port = listener.local_addr().expect("bound").port();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serve = serve.clone();
                std::thread::spawn(move || serve(Plain::from(stream)));
            }
        });
        Origin(port)
    }

    /// A server that answers each request with its head and, after an empty line, its body and trailers.
    pub(crate) fn echo() -> Origin {
        Origin::start(|mut client| {
            while let Some(request) = Request::read(&mut client) {
                let text = format!("{}\n{}", request.head, String::from_utf8_lossy(&request.body));
                let body = if request.head.starts_with("HEAD ") { "" } else { &text };
                client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Answer: 1\r\n\r\n{body}", text.len()));
            }
        })
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.0)
    }
}

/// A request that a scripted server received.
struct Request {
    /// The head, with plain line ends.
    head: String,
    body: Vec<u8>,
}

impl Request {
    /// Reads a request; `None` if the connection ended before.
    fn read(client: &mut Plain) -> Option<Request> {
        let head = Request::read_head(client)?;
        let mut body = Vec::new();
        if head.contains("transfer-encoding: chunked\n") {
            loop {
                let line = client.read_line();
                let size = usize::from_str_radix(line.trim(), 16).expect("a chunk");
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&client.read_exact(size));
                client.read_exact(2);
            }
            loop {
                let line = client.read_line();
                if line.trim().is_empty() {
                    break;
                }
                body.extend_from_slice(format!("\n{}", line.trim()).as_bytes());
            }
        } else if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
            body = client.read_exact(length.parse().expect("a length"));
        }
        Some(Request { head, body })
    }

    /// Reads a head, without its empty line.
    fn read_head(client: &mut Plain) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match std::io::Read::read(&mut client.stream(), &mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return None,
            }
        }
        head.truncate(head.len() - 2);
        Some(String::from_utf8_lossy(&head).replace("\r\n", "\n"))
    }
}

/// Returns a body of this many bytes, in which missing or reordered pieces are noticed.
fn pattern(len: usize) -> Vec<u8> {
    /// A prime period, so that no size of a frame or buffer is a multiple of it.
    const PERIOD: usize = 65_521;
    let period: Vec<u8> = (0..PERIOD).map(|at| (at ^ (at >> 8)) as u8).collect();
    let mut body = period.repeat(len.div_ceil(PERIOD));
    body.truncate(len);
    body
}
