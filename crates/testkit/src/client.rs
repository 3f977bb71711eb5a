//! A raw client: sends and receives bytes, with a time limit on every wait.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::{PATIENCE, wait_for};

/// A TCP connection with its received and not yet consumed bytes.
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

/// An HTTP response as it came.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status line and header fields, with their final empty line.
    pub head: String,
    /// The body, chunks joined.
    pub body: Vec<u8>,
    /// The status.
    pub status: u16,
}

impl Response {
    /// Returns the first value of a header field, by name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl From<TcpStream> for Client {
    /// Returns the end of a connection that was accepted.
    fn from(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.set_nodelay(true).expect("settable");
        Client { stream, received: Vec::new() }
    }
}

impl Client {
    /// Connects, waiting until a server listens.
    pub fn connect(address: &str) -> Client {
        Client::from(wait_for(address, || TcpStream::connect(address).ok()))
    }

    /// Returns the socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the peer reads");
    }

    /// Sends bytes. Returns false if the peer is gone.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Ends the sending direction.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection with a RST.
    pub fn reset(self) {
        use std::os::fd::AsRawFd;
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the option's value is a linger struct that outlives the call, and its size is passed.
        unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                std::ptr::from_ref(&linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
    }

    fn fill(&mut self) -> bool {
        let mut buffer = [0; 16384];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            // By the timer of a thread that runs scripts, too.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => self.fill(),
            Err(error) => panic!("nothing within {PATIENCE:?} ({error}); so far {:?}", self.seen()),
        }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// Reads until `end` was received; returns everything up to and with it.
    #[track_caller]
    pub fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        let read = self.try_read_until(end);
        read.unwrap_or_else(|| panic!("closed before {:?}; received {:?}", String::from_utf8_lossy(end), self.seen()))
    }

    #[track_caller]
    fn try_read_until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        let mut looked_at = 0;
        loop {
            if let Some(at) = self.received[looked_at..].windows(end.len()).position(|window| window == end) {
                return Some(self.received.drain(..looked_at + at + end.len()).collect());
            }
            looked_at = (self.received.len() + 1).saturating_sub(end.len());
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads exactly `count` bytes.
    #[track_caller]
    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        let read = self.try_read_exact(count);
        read.unwrap_or_else(|| panic!("closed before {count} bytes; received {:?}", self.seen()))
    }

    #[track_caller]
    fn try_read_exact(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.received.len() < count {
            if !self.fill() {
                return None;
            }
        }
        Some(self.received.drain(..count).collect())
    }

    /// Reads a line, with its end taken off.
    #[track_caller]
    pub fn read_line(&mut self) -> String {
        let mut line = self.read_until(b"\n");
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Reads until the peer closes.
    #[track_caller]
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.received)
    }

    /// Reads one response; `head_only` for the answer to HEAD.
    #[track_caller]
    pub fn read_response_to(&mut self, head_only: bool) -> Response {
        let head = String::from_utf8_lossy(&self.read_until(b"\r\n\r\n")).into_owned();
        let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        let mut response = Response { head, body: Vec::new(), status };
        if head_only || matches!(status, 100..=199 | 204 | 304) {
            return response;
        }
        if response.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            loop {
                let line = self.read_line();
                let size = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16)
                    .unwrap_or_else(|_| panic!("a chunk size, not {line:?}"));
                if size == 0 {
                    while !self.read_line().is_empty() {}
                    break;
                }
                let data = self.read_exact(size);
                response.body.extend_from_slice(&data);
                assert_eq!(self.read_line(), "", "the end of a chunk");
            }
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().expect("a length");
            response.body = self.read_exact(length);
        } else {
            response.body = self.read_to_end();
        }
        response
    }

    /// Reads one response.
    #[track_caller]
    pub fn read_response(&mut self) -> Response {
        self.read_response_to(false)
    }

    /// Sends a GET without further header fields than Host and reads the response.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        self.read_response()
    }

    /// Sends a RESP command as an array of bulk strings.
    pub fn command(&mut self, words: &[impl AsRef<[u8]>]) {
        self.send(encode(words));
    }

    /// Reads one complete RESP reply and returns its bytes unchanged.
    #[track_caller]
    pub fn read_reply(&mut self) -> Vec<u8> {
        let read = self.try_read_reply();
        read.unwrap_or_else(|| panic!("closed within a reply; received {:?}", self.seen()))
    }

    /// Reads one complete RESP reply; [`None`] if the peer is gone.
    #[track_caller]
    pub fn try_read_reply(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.try_read_until(b"\r\n")?;
        let text = String::from_utf8_lossy(&bytes[1..bytes.len() - 2]).into_owned();
        let count = text.parse::<i64>().unwrap_or(0);
        let parts = match bytes[0] {
            b'$' | b'=' | b'!' if count >= 0 => {
                bytes.extend(self.try_read_exact(count as usize + 2)?);
                0
            }
            b'*' | b'~' | b'>' => count.max(0),
            b'%' => count.max(0) * 2,
            _ => 0,
        };
        for _ in 0..parts {
            bytes.extend(self.try_read_reply()?);
        }
        Some(bytes)
    }

    /// Sends a command and returns its reply as text, e.g. `+PONG\r\n`.
    #[track_caller]
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.command(words);
        String::from_utf8_lossy(&self.read_reply()).into_owned()
    }
}

/// Returns a RESP command as an array of bulk strings.
pub fn encode(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
