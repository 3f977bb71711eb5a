//! A request over HTTP/2: a connection with one stream.

use sluicegate_wire::http::{BodyDecoder, BodyEvent, Framing, Limits, Message, parse_request};
use sluicegate_wire::http2::{Blocked, Connection, ErrorCode, Event, Progress, Settings, StreamKey};

use super::{Exchange, Failure, HttpResponse};

/// The window of the response's body in bytes.
const WINDOW: u32 = 1 << 20;

/// A request that is being sent, and its response.
pub(super) struct Stream {
    wire: Connection,
    key: StreamKey,
    /// The body of the request, and how much of it was sent.
    body: Vec<u8>,
    sent: usize,
    /// Whether nothing more is written.
    is_silent: bool,
    input: Vec<u8>,
    message: Message,
    has_head: bool,
    body_max: usize,
    response: HttpResponse,
}

impl Stream {
    /// Begins the exchange of a request in the form of HTTP/1.
    pub(super) fn new(request: &[u8], body_max: usize) -> Result<Stream, Failure> {
        let settings = Settings {
            initial_window: WINDOW,
            max_concurrent_streams: 1,
            connect_protocol: false,
            ..Settings::default()
        };
        let (mut wire, mut message) = (Connection::client(settings), Message::new());
        let head = parse_request(request, &Limits::of_own_heads(), &mut message).ok().flatten();
        let head = head.ok_or(Failure::NoAnswer)?;
        let body = decoded(&request[head.head_len..], head.body).ok_or(Failure::NoAnswer)?;
        let key = wire.open().ok_or(Failure::NoAnswer)?;
        wire.send_request(key, &message, head.body, true, body.is_empty()).map_err(|_| Failure::NoAnswer)?;
        let mut stream = Stream {
            wire,
            key,
            body,
            sent: 0,
            is_silent: false,
            input: Vec::new(),
            message,
            has_head: false,
            body_max,
            response: HttpResponse::default(),
        };
        stream.send();
        Ok(stream)
    }

    /// Sends as much of the body as the server accepts.
    fn send(&mut self) {
        if self.sent < self.body.len() {
            self.sent += self.wire.send_data(self.key, &self.body[self.sent..], true);
        }
    }

    /// Handles an event; returns whether the response is complete.
    fn handle(&mut self, event: Event) -> Result<bool, Failure> {
        match event {
            Event::Response { head, end, .. } => {
                if !head.interim {
                    self.has_head = true;
                    let head = &mut self.response.head;
                    std::mem::swap(&mut self.message, head);
                    // HTTP/2 has no reasons, and HAProxy's client adds none.
                    head.set_status(head.status(), b"");
                }
                Ok(end)
            }
            Event::Data { stream, range } => {
                self.wire.consume(stream, range.len());
                self.response.body.extend_from_slice(&self.input[range]);
                if self.response.body.len() > self.body_max { Err(Failure::NoAnswer) } else { Ok(false) }
            }
            Event::End { .. } | Event::Trailers { .. } => Ok(true),
            // Without an error the server has only ceased to read the request.
            Event::Reset { code: ErrorCode::NO_ERROR, .. } if self.wire.has_ended(self.key) => Ok(self.has_head),
            Event::Reset { .. } if self.has_head => {
                self.is_silent = true;
                Ok(false)
            }
            Event::Reset { .. } => Err(Failure::NoAnswer),
            _ => Ok(false),
        }
    }
}

impl Exchange for Stream {
    fn output(&self) -> &[u8] {
        if self.is_silent { &[] } else { self.wire.output() }
    }

    fn wrote(&mut self, count: usize) {
        self.wire.wrote(count);
        self.send();
    }

    fn be_silent(&mut self) {
        self.is_silent = true;
    }

    fn input(&mut self) -> &mut Vec<u8> {
        &mut self.input
    }

    fn read(&mut self) -> Result<bool, Failure> {
        self.wire.begin_turn();
        loop {
            let (count, progress) = self.wire.receive(&self.input, &mut self.message).map_err(|_| Failure::NoAnswer)?;
            let is_complete = match progress {
                Progress::Event(event) => self.handle(event)?,
                Progress::Idle | Progress::Blocked(Blocked::Output | Blocked::Streams) => {
                    self.input.drain(..count);
                    self.send();
                    return Ok(false);
                }
                Progress::Blocked(Blocked::Turn) => {
                    self.wire.begin_turn();
                    false
                }
            };
            self.input.drain(..count);
            if is_complete {
                self.response.is_complete = true;
                return Ok(true);
            }
        }
    }

    fn end(self: Box<Self>) -> Result<HttpResponse, Failure> {
        if self.has_head { Ok(self.response) } else { Err(Failure::NoAnswer) }
    }
}

/// Returns the body in bytes of a request of HTTP/1; `None` if it is not whole.
fn decoded(mut bytes: &[u8], framing: Framing) -> Option<Vec<u8>> {
    let (mut decoder, mut body) = (BodyDecoder::new(framing), Vec::new());
    while !decoder.is_done() {
        let (count, event) = decoder.decode(bytes).ok()?;
        match event {
            BodyEvent::Data(range) => body.extend_from_slice(&bytes[range]),
            BodyEvent::End => break,
            BodyEvent::More if count == 0 => return None,
            BodyEvent::More => {}
        }
        bytes = &bytes[count..];
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::http::Version;

    use super::*;

    /// A server of the other side, which has received a request.
    struct Server {
        wire: Connection,
        message: Message,
        key: Option<StreamKey>,
        body: usize,
    }

    impl Server {
        /// Takes what the client writes, and returns whether the request is complete.
        fn take(&mut self, client: &mut Stream) -> bool {
            let mut input = client.output().to_vec();
            client.wrote(input.len());
            self.wire.begin_turn();
            loop {
                let (count, progress) = self.wire.receive(&input, &mut self.message).expect("frames");
                match progress {
                    Progress::Event(Event::Request { stream, end, .. }) => {
                        self.key = Some(stream);
                        if end {
                            return true;
                        }
                    }
                    Progress::Event(Event::Data { stream, range }) => {
                        self.body += range.len();
                        self.wire.consume(stream, range.len());
                    }
                    Progress::Event(Event::End { .. }) => return true,
                    Progress::Event(_) => {}
                    Progress::Idle | Progress::Blocked(_) => return false,
                }
                input.drain(..count);
            }
        }

        /// Passes what the server writes to the client in pieces; returns whether the response is complete.
        fn give(&mut self, client: &mut Stream) -> Result<bool, Failure> {
            let output = self.wire.output().to_vec();
            self.wire.wrote(output.len());
            for piece in output.chunks(1000) {
                client.input().extend_from_slice(piece);
                if client.read()? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }

    /// Sends a request with such a body; returns both sides once the server has all of it.
    fn asked(request: &[u8], body_max: usize) -> (Box<Stream>, Server) {
        let mut client = Box::new(Stream::new(request, body_max).expect("a request"));
        let wire = Connection::server(Settings::default());
        let mut server = Server { wire, message: Message::new(), key: None, body: 0 };
        while !server.take(&mut client) {
            assert_eq!(server.give(&mut client), Ok(false));
        }
        (client, server)
    }

    #[test]
    fn long_bodies_pass_both_ways_within_the_windows() {
        let mut request = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n493e0\r\n".to_vec();
        request.resize(request.len() + 300_000, b'q');
        request.extend_from_slice(b"\r\n0\r\n\r\n");
        let (mut client, mut server) = asked(&request, 1 << 22);
        assert_eq!((server.body, server.message.first(b"transfer-encoding")), (300_000, None));
        let (key, answer) = (server.key.expect("a stream"), vec![b'a'; 3 << 20]);
        server.message.set_response(Version::Http2, 200, b"OK");
        server.wire.send_response(key, &server.message, Framing::Chunked, false).expect("a response");
        let mut sent = 0;
        loop {
            if sent < answer.len() {
                sent += server.wire.send_data(key, &answer[sent..], true);
            }
            if server.give(&mut client).expect("a response") {
                break;
            }
            server.take(&mut client);
        }
        let response = client.end().expect("a response");
        assert_eq!((response.head.status(), response.body.len(), response.is_complete), (200, answer.len(), true));
    }

    #[test]
    fn responses_are_limited_and_may_be_cut() {
        let respond = |body_max, end: &dyn Fn(&mut Connection, StreamKey)| {
            let (mut client, mut server) = asked(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", body_max);
            let key = server.key.expect("a stream");
            server.message.set_response(Version::Http2, 200, b"OK");
            server.wire.send_response(key, &server.message, Framing::Chunked, false).expect("a response");
            server.wire.send_data(key, b"abc", false);
            end(&mut server.wire, key);
            server.give(&mut client)?;
            client.end()
        };
        let whole = respond(3, &|wire, key| wire.send_end(key, None)).expect("a response");
        assert_eq!((&*whole.body, whole.is_complete), (&b"abc"[..], true));
        for end in [&|_: &mut Connection, _| (), &|wire: &mut Connection, key| wire.reset(key, ErrorCode::CANCEL)]
            as [&dyn Fn(&mut Connection, StreamKey); 2]
        {
            let part = respond(3, end).expect("a response");
            assert_eq!((&*part.body, part.is_complete), (&b"abc"[..], false));
        }
        assert_eq!(respond(2, &|_, _| ()).err(), Some(Failure::NoAnswer));
        let (mut client, mut server) = asked(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", 9);
        server.wire.reset(server.key.expect("a stream"), ErrorCode::REFUSED_STREAM);
        assert_eq!(server.give(&mut client), Err(Failure::NoAnswer));
    }
}
