//! The client's connections: raw bytes, with a deadline for bytes that do not arrive.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::find;

/// How long a client waits for the next byte before the transcript states that nothing more arrived.
const QUIET: Duration = Duration::from_secs(8);

/// What a response begins with.
const RESPONSE: &[u8] = b"HTTP/1.1 ";

/// Returns the number of responses that begin in these bytes, also of those behind what is no response.
pub fn begun(bytes: &[u8]) -> usize {
    bytes.windows(RESPONSE.len()).filter(|part| *part == RESPONSE).count()
}

/// One connection and the bytes received on it.
pub struct Connection {
    pub name: String,
    pub port: u16,
    stream: TcpStream,
    /// Reserves this port of 127.0.0.1: another process that got it would be taken for this client when ports are
    /// replaced by names.
    _held: Option<TcpListener>,
    pub received: Vec<u8>,
    /// The number of received bytes that were waited for.
    taken: usize,
    /// Whether requests of this connection have responses without bodies.
    pub head: bool,
    /// Whether no more bytes are expected.
    pub over: bool,
}

impl Connection {
    pub fn open(name: &str, to: SocketAddr, from: Option<IpAddr>) -> std::io::Result<Connection> {
        let domain = if to.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        let mut held = None;
        // The port has to be free on both addresses.
        while let Some(from) = from.filter(|_| held.is_none()) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            match socket.bind(&SocketAddr::new(from, listener.local_addr()?.port()).into()) {
                Ok(()) => held = Some(listener),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        socket.connect(&to.into())?;
        let stream: TcpStream = socket.into();
        stream.set_read_timeout(Some(QUIET))?;
        stream.set_nodelay(true)?;
        let port = stream.local_addr()?.port();
        let name = name.to_owned();
        Ok(Connection { name, port, stream, _held: held, received: Vec::new(), taken: 0, head: false, over: false })
    }

    /// Sends bytes. An error is ignored, because the proxy may stop reading.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Receives until these bytes have arrived.
    pub fn wait(&mut self, text: &[u8]) {
        let note = format!("[waits for {}]", String::from_utf8_lossy(text));
        self.until(&note, |unread| find(unread, text).map(|at| at + text.len()));
    }

    /// Receives one response that is not an interim one.
    pub fn read(&mut self, head: bool) {
        self.until("[waits for a response]", |unread| {
            let mut start = 0;
            loop {
                let length = response_length(&unread[start..], head)?;
                start += length;
                if !unread[start - length..].starts_with(b"HTTP/1.1 1")
                    || unread[start - length..].starts_with(b"HTTP/1.1 101")
                {
                    return Some(start);
                }
            }
        });
    }

    fn until(&mut self, note: &str, mut whole: impl FnMut(&[u8]) -> Option<usize>) {
        while !self.over {
            if let Some(length) = whole(&self.received[self.taken..]) {
                self.taken += length;
                return;
            }
            self.fill(note);
        }
    }

    fn fill(&mut self, note: &str) {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.over = true,
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => self.over = true,
            Err(_) => {
                self.received.extend_from_slice(note.as_bytes());
                self.over = true;
            }
        }
    }

    /// Receives until the proxy closes.
    pub fn closed(&mut self) {
        while !self.over {
            self.fill("[open]");
        }
    }

    /// Receives until this number of responses has begun, or none arrives any more.
    pub fn begun(&mut self, responses: usize) {
        let mut buffer = [0; 65536];
        while !self.over && begun(&self.received) < responses {
            match self.stream.read(&mut buffer) {
                Ok(count @ 1..) => self.received.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
    }

    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection as a client that has finished: shuts down, then receives until the proxy closes.
    pub fn end(&mut self) {
        self.finish();
        self.closed();
    }

    pub fn reset(&mut self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        self.over = true;
        if let Ok(nothing) = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None) {
            self.stream = nothing.into();
        }
    }
}

/// Returns the length of the first response, if it is known and all of it has arrived.
fn response_length(bytes: &[u8], head: bool) -> Option<usize> {
    let end = find(bytes, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = text.split(' ').nth(1).unwrap_or_default();
    if head || status.starts_with('1') || status == "204" || status == "304" {
        return Some(end);
    }
    if text.contains("\r\ntransfer-encoding: chunked\r\n") {
        let mut at = end;
        loop {
            let line = at + find(&bytes[at..], b"\r\n")?;
            let size = usize::from_str_radix(std::str::from_utf8(&bytes[at..line]).ok()?.trim(), 16).ok()?;
            at = line + 2;
            if size == 0 {
                return if bytes[at..].starts_with(b"\r\n") {
                    Some(at + 2)
                } else {
                    find(&bytes[at..], b"\r\n\r\n").map(|more| at + more + 4)
                };
            }
            at += size + 2;
            if at > bytes.len() {
                return None;
            }
        }
    }
    let length: usize = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())?;
    (bytes.len() >= end + length).then_some(end + length)
}
