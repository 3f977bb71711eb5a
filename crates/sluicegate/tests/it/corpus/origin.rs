//! Servers that follow a script; after its end they answer every complete request with their name.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sluicegate_testkit::PATIENCE;

use super::case::{End, Reply, When};

/// One server: its script and what it has received.
pub struct Origin {
    pub name: String,
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    state: Mutex<State>,
    released: Condvar,
}

struct State {
    script: VecDeque<Reply>,
    /// The bytes received on each connection, in the order of acceptance.
    received: Vec<Vec<u8>>,
    /// The peers' ports.
    peers: Vec<u16>,
    /// The number of replies held so far, and the number of releases.
    held: usize,
    releases: usize,
    /// The number of connections that are not read to their end yet.
    open: usize,
    /// Whether the proxy has ended: then no reply is held any more.
    over: bool,
}

impl Origin {
    /// Starts a server; its threads end with their connections.
    pub fn start(name: &str, script: Vec<Reply>) -> Origin {
        let listener = sluicegate_testkit::lasting_listener();
        let port = listener.local_addr().expect("bound").port();
        let state = State {
            script: script.into(),
            received: Vec::new(),
            peers: Vec::new(),
            held: 0,
            last: None,
            releases: 0,
            open: 0,
            over: false,
        };
        let shared = Arc::new(Shared { name: name.to_owned(), state: Mutex::new(state), released: Condvar::new() });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = {
                    let mut state = accepting.state.lock().expect("not poisoned");
                    state.received.push(Vec::new());
                    state.open += 1;
                    state.peers.extend(stream.peer_addr().map(|address| address.port()));
                    state.received.len() - 1
                };
                let shared = accepting.clone();
                std::thread::spawn(move || {
                    serve(stream, number, &shared);
                    shared.state.lock().expect("not poisoned").open -= 1;
                });
            }
        });
        Origin { name: name.to_owned(), port, shared }
    }

    /// Waits until everything that a proxy sent before its end has been accepted and read.
    pub fn read_to_end(&self) -> Result<(), String> {
        self.shared.state.lock().expect("not poisoned").over = true;
        self.shared.released.notify_all();
        // Connections are accepted in order, so no connection of the proxy follows this one.
        let last = TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| error.to_string())?;
        let port = last.local_addr().map_err(|error| error.to_string())?.port();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.shared.state.lock().expect("not poisoned");
            // This connection is still open.
            if state.peers.last() == Some(&port) && state.open == 1 {
                return Ok(());
            }
            drop(state);
            if Instant::now() > deadline {
                return Err(format!("waited for the end of the connections to {}", self.name));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the bytes received on each connection, except for connections without any.
    pub fn received(&self) -> Vec<Vec<u8>> {
        let state = self.shared.state.lock().expect("not poisoned");
        state.received.iter().filter(|bytes| !bytes.is_empty()).cloned().collect()
    }

    /// Returns the peers' ports.
    pub fn peers(&self) -> Vec<u16> {
        self.shared.state.lock().expect("not poisoned").peers.clone()
    }

    /// Returns whether these bytes were received on a connection.
    pub fn has_seen(&self, text: &[u8]) -> bool {
        self.received().iter().any(|bytes| super::find(bytes, text).is_some())
    }

    /// Releases one held reply.
    pub fn release(&self) {
        self.shared.state.lock().expect("not poisoned").releases += 1;
        self.shared.released.notify_all();
    }
}

fn serve(mut stream: TcpStream, number: usize, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let (mut answered, mut taken) = (0, 0);
    let mut buffer = [0; 65536];
    loop {
        loop {
            let mut state = shared.state.lock().expect("not poisoned");
            let unanswered = state.received[number][answered..].to_vec();
            let request = || request_length(&unanswered);
            let due = match state.script.front().map(|reply| &reply.when) {
                // It begins a connection, or continues the one with the reply before: a thread that is late to look for
                // work would take the reply of another.
                Some(When::Connected) => (taken == 0 || state.last == Some(number)).then_some(0),
                Some(When::After(text)) => super::find(&unanswered, text).map(|at| at + text.len()),
                Some(When::Request) | None => request(),
            };
            let Some(due) = due else { break };
            answered += due;
            taken += 1;
            state.last = Some(number);
            let reply = state.script.pop_front().unwrap_or_else(|| own_name(&shared.name));
            if reply.held {
                let ticket = state.held;
                state.held += 1;
                while state.releases <= ticket && !state.over {
                    state = shared.released.wait(state).expect("not poisoned");
                }
            }
            drop(state);
            let end = if unanswered.starts_with(b"HEAD ") { reply.send.len() - reply.body } else { reply.send.len() };
            let sent = stream.write_all(&reply.send[..end]);
            match reply.end {
                End::Stay if sent.is_ok() => {}
                End::Stay | End::Close => {
                    let _ = stream.shutdown(Shutdown::Write);
                    break;
                }
                End::Reset => {
                    let _ = socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO));
                    return;
                }
            }
        }
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => {
                let mut state = shared.state.lock().expect("not poisoned");
                state.received[number].extend_from_slice(&buffer[..count]);
            }
            _ => return,
        }
    }
}

fn own_name(name: &str) -> Reply {
    let send = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
    Reply { when: When::Request, held: false, send: send.into_bytes(), body: name.len(), end: End::Stay }
}

/// Returns the length of the first request, if it is complete. It is read as by a simple server: a chunked body ends
/// with an empty chunk and an empty line, any other body has its declared length.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = super::find(bytes, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    if text.contains("\r\ntransfer-encoding: chunked\r\n") {
        let body = &bytes[head..];
        if body.starts_with(b"0\r\n\r\n") {
            return Some(head + 5);
        }
        let last = super::find(body, b"\r\n0\r\n")?;
        return super::find(&body[last + 3..], b"\r\n\r\n").map(|at| head + last + 3 + at + 4);
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    let whole = head + length.unwrap_or(0);
    (bytes.len() >= whole).then_some(whole)
}
