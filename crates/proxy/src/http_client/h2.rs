//! A request over HTTP/2: a connection with one stream.

use sluicegate_wire::http::{Limits, Message, parse_request};
use sluicegate_wire::http2::{Blocked, Connection, Event, Progress, Settings, StreamKey};

use super::{Exchange, Failure, HttpRequest, HttpResponse};

/// The window of the response's body in bytes.
const WINDOW: u32 = 1 << 20;

/// A request that is being sent, and its response.
pub(super) struct Stream<'a> {
    wire: Connection,
    key: StreamKey,
    /// The rest of the request's body.
    body: &'a [u8],
    /// Whether nothing more is written.
    is_silent: bool,
    input: Vec<u8>,
    message: Message,
    has_head: bool,
    body_max: usize,
    response: HttpResponse,
}

impl Stream<'_> {
    /// Begins the exchange.
    pub(super) fn new(request: &HttpRequest, body_max: usize) -> Result<Stream<'_>, Failure> {
        let settings = Settings {
            initial_window: WINDOW,
            max_concurrent_streams: 1,
            connect_protocol: false,
            ..Settings::default()
        };
        let (mut wire, mut message) = (Connection::client(settings), Message::new());
        let head = parse_request(&request.bytes, &Limits::of_own_heads(), &mut message).ok().flatten();
        let (head, body) = (head.ok_or(Failure::NoAnswer)?, &request.bytes[request.body.clone()]);
        let key = wire.open().ok_or(Failure::NoAnswer)?;
        wire.send_request(key, &message, head.body, true, body.is_empty()).map_err(|_| Failure::NoAnswer)?;
        let mut stream = Stream {
            wire,
            key,
            body,
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
        if !self.body.is_empty() {
            let sent = self.wire.send_data(self.key, self.body, true);
            self.body = &self.body[sent..];
        }
    }

    /// Handles an event; returns whether nothing more of the response comes.
    fn handle(&mut self, event: Event) -> Result<bool, Failure> {
        let is_complete = match event {
            Event::Response { head, end, .. } => {
                if !head.interim {
                    self.has_head = true;
                    let head = &mut self.response.head;
                    std::mem::swap(&mut self.message, head);
                    // HTTP/2 has no reasons, and HAProxy's client adds none.
                    head.set_status(head.status(), b"");
                }
                end
            }
            Event::Data { stream, range } => {
                self.wire.consume(stream, range.len());
                self.response.body.extend_from_slice(&self.input[range]);
                if self.response.body.len() > self.body_max {
                    return Err(Failure::NoAnswer);
                }
                false
            }
            Event::End { .. } | Event::Trailers { .. } => true,
            // The connection may stay open.
            Event::Reset { .. } => return Ok(true),
            _ => false,
        };
        self.response.is_complete = is_complete;
        Ok(is_complete)
    }
}

impl Exchange for Stream<'_> {
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
            let is_over = match progress {
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
            if is_over {
                return Ok(true);
            }
        }
    }

    fn end(self: Box<Self>) -> Result<HttpResponse, Failure> {
        if self.has_head { Ok(self.response) } else { Err(Failure::NoAnswer) }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::http::{Framing, Version};
    use sluicegate_wire::http2::ErrorCode;

    use super::super::Body;
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
        fn take(&mut self, client: &mut Stream<'_>) -> bool {
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
        fn give(&mut self, client: &mut Stream<'_>) -> Result<bool, Failure> {
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
    fn asked(request: &HttpRequest, body_max: usize) -> (Box<Stream<'_>>, Server) {
        let mut client = Box::new(Stream::new(request, body_max).expect("a request"));
        let wire = Connection::server(Settings::default());
        let mut server = Server { wire, message: Message::new(), key: None, body: 0 };
        while !server.take(&mut client) {
            assert_eq!(server.give(&mut client), Ok(false));
        }
        (client, server)
    }

    fn request(method: &[u8], body: Body<'_>) -> HttpRequest {
        HttpRequest::new(method, b"https://a/x", None, [], body).expect("a request")
    }

    #[test]
    fn long_bodies_pass_both_ways_within_the_windows() {
        let request = request(b"POST", Body::Chunked(&[b'q'; 300_000]));
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
        let request = request(b"GET", Body::Empty);
        let respond = |body_max, end: &dyn Fn(&mut Connection, StreamKey)| {
            let (mut client, mut server) = asked(&request, body_max);
            let key = server.key.expect("a stream");
            server.message.set_response(Version::Http2, 200, b"OK");
            server.wire.send_response(key, &server.message, Framing::Chunked, false).expect("a response");
            server.wire.send_data(key, b"abc", false);
            end(&mut server.wire, key);
            let is_over = server.give(&mut client)?;
            client.end().map(|response| (response, is_over))
        };
        let (whole, is_over) = respond(3, &|wire, key| wire.send_end(key, None)).expect("a response");
        assert_eq!((&*whole.body, whole.is_complete, is_over), (&b"abc"[..], true, true));
        // A connection whose stream was reset may stay open, so its end is not waited for.
        for (is_reset, end) in [
            (false, &|_: &mut Connection, _| ()),
            (true, &|wire: &mut Connection, key| wire.reset(key, ErrorCode::CANCEL)),
        ] as [(bool, &dyn Fn(&mut Connection, StreamKey)); 2]
        {
            let (part, is_over) = respond(3, end).expect("a response");
            assert_eq!((&*part.body, part.is_complete, is_over), (&b"abc"[..], false, is_reset));
        }
        assert_eq!(respond(2, &|_, _| ()).err(), Some(Failure::NoAnswer));
        let (mut client, mut server) = asked(&request, 9);
        server.wire.reset(server.key.expect("a stream"), ErrorCode::REFUSED_STREAM);
        assert_eq!(server.give(&mut client), Ok(true));
        assert_eq!(client.end().err(), Some(Failure::NoAnswer));
    }
}
