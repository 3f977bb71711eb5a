//! A client of HTTP/2 on a real socket, with a deadline on every wait.
//!
//! Frames are those of `sluicegate_wire`'s client role, so tests speak of heads, data and resets; bytes that such a
//! client would never send go out by [`Client::raw`].

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{PATIENCE, wait_for};
use sluicegate_wire::http::{Framing, Message, Version};
use sluicegate_wire::http2::{Connection, ErrorCode, Event, Failure, Progress, Settings, StreamKey};

/// The received part of one stream.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The statuses of interim responses, and their fields.
    pub interim: Vec<(u16, String)>,
    /// The status, 0 before it has come.
    pub status: u16,
    /// The fields, a line each.
    pub fields: String,
    pub body: Vec<u8>,
    pub trailers: String,
    /// Whether the response is complete.
    pub complete: bool,
    /// The code of a reset by the proxy.
    pub reset: Option<ErrorCode>,
}

impl Answer {
    /// Returns the first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.lines().find_map(|line| line.split_once(": ").filter(|(field, _)| *field == name)).map(|(_, v)| v)
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn is_over(&self) -> bool {
        self.complete || self.reset.is_some()
    }
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    pub wire: Connection,
    message: Message,
    answers: HashMap<u32, Answer>,
    /// Whether received data is consumed at once, which gives the proxy credit.
    pub consumes: bool,
    /// The last stream and the code of the last GOAWAY.
    pub goaway: Option<(u32, ErrorCode)>,
    /// Whether the proxy has closed the connection.
    pub closed: bool,
    pub failure: Option<Failure>,
    /// The number of pings that were answered.
    pub pongs: usize,
    /// The number of pings that were received by hand.
    pub pings: usize,
    /// By hand: the payload of the first SETTINGS, and streams and increments of WINDOW_UPDATE.
    pub settings: Vec<u8>,
    pub credit: Vec<(u32, u32)>,
    /// Resets by the proxy, also of streams that this client did not open by its functions.
    pub resets: Vec<(u32, ErrorCode)>,
    /// The received bytes of a connection whose frames only the test knows.
    by_hand: Option<Vec<u8>>,
}

impl Client {
    /// Connects, and sends the preface.
    pub fn connect(address: &str) -> Client {
        Client::with(address, Settings { max_concurrent_streams: 0, initial_window: 1 << 20, ..Settings::default() })
    }

    /// The same, with these settings.
    pub fn with(address: &str, settings: Settings) -> Client {
        let stream = wait_for(address, || TcpStream::connect(address).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        stream.set_write_timeout(Some(PATIENCE)).expect("settable");
        stream.set_nodelay(true).expect("settable");
        Client {
            stream,
            wire: Connection::client(settings),
            message: Message::new(),
            answers: HashMap::new(),
            consumes: true,
            goaway: None,
            closed: false,
            failure: None,
            pongs: 0,
            pings: 0,
            settings: Vec::new(),
            credit: Vec::new(),
            resets: Vec::new(),
            by_hand: None,
        }
    }

    /// Connects, and sends the preface. The test writes all other frames; of the received ones only PING, GOAWAY and
    /// RST_STREAM are examined.
    pub fn by_hand(address: &str) -> Client {
        let mut client = Client::connect(address);
        client.by_hand = Some(Vec::new());
        client.flush();
        client
    }

    /// Writes the output.
    pub fn flush(&mut self) {
        while !self.wire.output().is_empty() {
            match self.stream.write(self.wire.output()) {
                Ok(count) => self.wire.wrote(count),
                // Data that the proxy sent before it closed the connection can still be read.
                Err(_) => {
                    let all = self.wire.output().len();
                    self.wire.wrote(all);
                }
            }
        }
    }

    /// Returns the socket, for bytes that go past this client.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.flush();
        let _ = self.stream.write_all(bytes);
    }

    /// Writes what is to be written, and receives something; returns `false` when the proxy has closed the connection.
    #[track_caller]
    pub fn step(&mut self) -> bool {
        self.flush();
        if self.closed {
            return false;
        }
        let mut buffer = [0; 16_384];
        let count = match self.stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing within {PATIENCE:?} ({error}); so far {:?}", self.answers),
        };
        self.closed = count == 0;
        self.apply(&buffer[..count]);
        !self.closed
    }

    fn look_at(&mut self, received: &mut Vec<u8>) {
        const HEADER_LEN: usize = 9;
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let mut at = 0;
        while let Some(header) = received[at..].first_chunk::<HEADER_LEN>() {
            let len = word(&[0, header[0], header[1], header[2]]) as usize;
            let Some(payload) = received.get(at + HEADER_LEN..at + HEADER_LEN + len) else { break };
            match header[3] {
                3 => self.resets.push((word(&header[5..]), ErrorCode(word(payload)))),
                6 if header[4] == 1 => self.pongs += 1,
                6 => self.pings += 1,
                4 if header[4] == 0 && self.settings.is_empty() => self.settings = payload.to_vec(),
                8 => self.credit.push((word(&header[5..]), word(payload))),
                7 => self.goaway = Some((word(payload), ErrorCode(word(&payload[4..])))),
                _ => {}
            }
            at += HEADER_LEN + len;
        }
        received.drain(..at);
    }

    fn apply(&mut self, mut input: &[u8]) {
        if let Some(mut received) = self.by_hand.take() {
            received.extend_from_slice(input);
            self.look_at(&mut received);
            self.by_hand = Some(received);
            return;
        }
        loop {
            self.wire.begin_turn();
            let (count, progress) = match self.wire.receive(input, &mut self.message) {
                Ok(step) => step,
                Err(failure) => {
                    self.failure = Some(failure);
                    return;
                }
            };
            match progress {
                Progress::Event(event) => self.event(event, input),
                Progress::Idle => return,
                Progress::Blocked(_) => self.flush(),
            }
            input = &input[count..];
        }
    }

    fn event(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Response { stream, head, end } => {
                let (status, fields) = (self.message.status(), lines(&self.message));
                let answer = self.answers.entry(stream.id()).or_default();
                if head.interim {
                    answer.interim.push((status, fields));
                } else {
                    (answer.status, answer.fields, answer.complete) = (status, fields, end);
                }
            }
            Event::Data { stream, range } => {
                let count = range.len();
                self.answers.entry(stream.id()).or_default().body.extend_from_slice(&input[range]);
                if self.consumes {
                    self.wire.consume(stream, count);
                }
            }
            Event::Trailers { stream } => {
                let fields = lines(&self.message);
                let answer = self.answers.entry(stream.id()).or_default();
                (answer.trailers, answer.complete) = (fields, true);
            }
            Event::End { stream } => self.answers.entry(stream.id()).or_default().complete = true,
            Event::Reset { stream, code, .. } => {
                self.answers.entry(stream.id()).or_default().reset = Some(code);
                self.resets.push((stream.id(), code));
            }
            Event::Pong(_) => self.pongs += 1,
            Event::GoAway { last, code } => self.goaway = Some((last, code)),
            _ => {}
        }
    }

    /// Receives until `done`; panics if the connection ends before.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Client) -> bool) {
        while !done(self) {
            assert!(self.step(), "closed before {what}: {:?}, goaway {:?}", self.answers, self.goaway);
        }
    }

    /// Receives until the proxy closes the connection.
    pub fn until_closed(&mut self) {
        while self.step() {}
    }

    /// Begins a request: a line `METHOD TARGET` and lines of fields. The host of a path becomes the authority, as real
    /// clients send it. Without `end` a body follows.
    #[track_caller]
    pub fn begin(&mut self, head: &str, end: bool) -> StreamKey {
        let stream = self.open();
        let mut message = Message::new();
        let mut lines = head.lines();
        let (method, target) = lines.next().and_then(|line| line.split_once(' ')).expect("METHOD TARGET");
        let host = head.lines().find_map(|line| line.strip_prefix("host: ")).filter(|_| target.starts_with('/'));
        let target = host.map_or(target.to_owned(), |host| format!("http://{host}{target}"));
        message.set_request(method.as_bytes(), target.as_bytes(), Version::Http2);
        let mut framing = if end { Framing::None } else { Framing::Chunked };
        for line in lines {
            let (name, value) = line.split_once(": ").expect("NAME: VALUE");
            if name == "content-length" {
                framing = Framing::Length(value.parse().expect("a length"));
            }
            message.add(name.as_bytes(), value.as_bytes());
        }
        self.wire.send_request(stream, &message, framing, false, end).expect("a request");
        self.flush();
        stream
    }

    /// Opens a stream whose frames the test writes itself.
    #[track_caller]
    pub fn open(&mut self) -> StreamKey {
        self.until("the settings", |client| client.wire.is_greeted());
        let stream = self.wire.open().expect("another stream");
        self.answers.insert(stream.id(), Answer::default());
        stream
    }

    /// Sends data of a body, as the windows allow.
    #[track_caller]
    pub fn data(&mut self, stream: StreamKey, mut data: &[u8], end: bool) {
        loop {
            let sent = self.wire.send_data(stream, data, end);
            self.flush();
            data = &data[sent..];
            if data.is_empty() {
                return;
            }
            // If only the output was full, there is nothing to wait for.
            assert!(sent > 0 || self.step(), "closed with {} bytes to send", data.len());
        }
    }

    /// Ends a request with trailers, lines of fields.
    pub fn trailers(&mut self, stream: StreamKey, fields: &str) {
        let mut message = Message::new();
        for (name, value) in fields.lines().filter_map(|line| line.split_once(": ")) {
            message.add(name.as_bytes(), value.as_bytes());
        }
        self.wire.send_end(stream, Some(&message));
        self.flush();
    }

    /// Resets a stream.
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) {
        self.wire.reset(stream, code);
        self.flush();
    }

    /// Returns the received part of a stream.
    pub fn seen(&self, stream: StreamKey) -> &Answer {
        &self.answers[&stream.id()]
    }

    /// Waits for a final head.
    #[track_caller]
    pub fn head(&mut self, stream: StreamKey) -> Answer {
        self.until("a head", |client| client.seen(stream).status != 0 || client.seen(stream).is_over());
        self.seen(stream).clone()
    }

    /// Waits for the end of a stream, and releases it.
    #[track_caller]
    pub fn end(&mut self, stream: StreamKey) -> Answer {
        self.until("the end of a stream", |client| client.seen(stream).is_over());
        self.wire.release(stream);
        self.flush();
        self.answers.remove(&stream.id()).expect("it began")
    }

    /// Sends a request without a body, and returns its answer.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Answer {
        self.ask(&format!("GET {path}\nhost: h"))
    }

    /// The same, with a head.
    #[track_caller]
    pub fn ask(&mut self, head: &str) -> Answer {
        let stream = self.begin(head, true);
        self.end(stream)
    }

    /// Sends a request with a body, and returns its answer.
    #[track_caller]
    pub fn post(&mut self, head: &str, body: &[u8]) -> Answer {
        let stream = self.begin(head, false);
        self.data(stream, body, true);
        self.end(stream)
    }
}

fn lines(message: &Message) -> String {
    let line =
        |name: &[u8], value: &[u8]| format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
    message.fields().map(|(_, name, value)| line(name, value)).collect()
}
