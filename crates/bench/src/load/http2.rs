//! HTTP/2: the requests of [`super::http`] on concurrent streams, by the connection of `wire`.
//!
//! A request is prepared as a message and a body; each connection compresses its head anew, as its table of HPACK
//! demands. A request with placeholders is filled as a request of HTTP/1.1 and parsed. Responses are checked as in the
//! proxy; bodies are counted and discarded, so the server's window for a stream is as large as the protocol allows
//! and it waits for the generator's socket alone.
//!
//! A request whose body does not fit the server's windows is sent on when they open. One request may precede the server's
//! settings; others wait for its limit of streams.

use sluicegate_wire::http::{Framing, Limits, Message, parse_request};
use sluicegate_wire::http2::{Connection, Event, Progress, Settings, StreamKey};

use super::http::{HttpPlan, MAX_HEAD};
use super::protocol::{Answer, Outcome, Protocol, StreamFault, Written};
use super::template::Keys;

/// The window of a stream in bytes.
const WINDOW: u32 = (1 << 30) - 1;

/// The bytes of answers that may wait for a server that sends and does not receive.
const ANSWERS_MAX: usize = 1 << 20;

/// A request without placeholders.
struct Prepared {
    message: Message,
    framing: Framing,
    body: Vec<u8>,
}

/// HTTP/2 with its state; each thread has its own instance.
pub(super) struct Http2 {
    plan: HttpPlan,
    is_https: bool,
    settings: Settings,
    /// The prepared requests, by number; `None` for one with placeholders.
    prepared: Vec<Option<Prepared>>,
    /// The keys: one source for all requests, or one for each URL.
    keys: Vec<Keys>,
    /// The index of the next request.
    next: usize,
    text: Vec<u8>,
    scratch: Vec<u8>,
    request_limits: Limits,
    /// The message of a filled request, then that of a received head.
    message: Message,
    /// The requested number of concurrent streams, and the smallest number that a server allows.
    streams: u32,
    streams_allowed: u32,
}

impl Http2 {
    /// `streams` is the maximum number of concurrent requests of a connection.
    pub(super) fn new(plan: HttpPlan, is_https: bool, streams: usize, keys: Keys, thread: usize) -> Http2 {
        let request_limits = Limits { max_head: 1 << 20, max_fields: 1000, ..Limits::default() };
        let prepared = (0..plan.count())
            .map(|number| {
                let text = plan.fixed(number)?;
                let mut message = Message::new();
                let (framing, body) = parse(text, &request_limits, &mut message)?;
                Some(Prepared { message, framing, body: body.to_vec() })
            })
            .collect();
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        let settings = Settings {
            initial_window: WINDOW,
            max_concurrent_streams: streams,
            connect_protocol: false,
            head: Limits { max_head: MAX_HEAD, max_fields: 1000, ..Limits::default() },
            // The server is not limited by turns, and the size of an upload alone limits the output.
            frames_per_turn: u32::MAX,
            resets_per_turn: u32::MAX,
            output_max: usize::MAX,
            ..Settings::default()
        };
        Http2 {
            is_https,
            settings,
            prepared,
            next: thread % plan.cycle(),
            keys: keys.of_each(plan.count()),
            plan,
            text: Vec::new(),
            scratch: Vec::new(),
            request_limits,
            message: Message::new(),
            streams,
            streams_allowed: u32::MAX,
        }
    }
}

/// Parses a request of the plan. Returns the framing of its body and the body.
fn parse<'a>(text: &'a [u8], limits: &Limits, message: &mut Message) -> Option<(Framing, &'a [u8])> {
    let head = parse_request(text, limits, message).ok()??;
    Some((head.body, &text[head.head_len..]))
}

/// The state of a connection.
#[derive(Default)]
pub(super) struct Http2Session {
    /// Absent until the connection is established.
    connection: Option<Box<Connection>>,
    /// Responses, by the slots of their streams.
    responses: Vec<Response>,
    uploads: Vec<Upload>,
    /// The bytes of answers to the server since the output was last empty.
    answers: usize,
}

/// A response that is being received.
#[derive(Clone, Copy, Default)]
struct Response {
    /// The stream's identifier; 0: none.
    tag: u32,
    stream: Option<StreamKey>,
    /// The status; 0 until the head is received.
    status: u16,
    received: u64,
}

/// The rest of a request's body.
struct Upload {
    stream: StreamKey,
    rest: Vec<u8>,
    sent: usize,
}

impl Http2Session {
    fn response(&mut self, stream: StreamKey) -> &mut Response {
        if self.responses.len() <= stream.slot() {
            self.responses.resize(stream.slot() + 1, Response::default());
        }
        &mut self.responses[stream.slot()]
    }

    /// Ends a stream.
    fn finish(&mut self, stream: StreamKey) -> Response {
        if !self.uploads.is_empty() {
            self.uploads.retain(|upload| upload.stream != stream);
        }
        if let Some(connection) = &mut self.connection {
            connection.release(stream);
        }
        std::mem::take(self.response(stream))
    }

    fn answer(&mut self, stream: StreamKey) -> Answer {
        let response = self.finish(stream);
        Answer {
            tag: stream.id(),
            outcome: Outcome::Status(response.status),
            body: response.received,
            keep_alive: true,
        }
    }

    /// Sends what the server's windows have room for.
    fn upload(&mut self, out: &mut Vec<u8>) {
        self.answers += self.drain(out);
        let Some(connection) = &mut self.connection else { return };
        self.uploads.retain_mut(|upload| {
            upload.sent += connection.send_data(upload.stream, &upload.rest[upload.sent..], true);
            upload.sent < upload.rest.len()
        });
        self.drain(out);
    }

    /// Moves the connection's output. Returns its length.
    fn drain(&mut self, out: &mut Vec<u8>) -> usize {
        let Some(connection) = &mut self.connection else { return 0 };
        let count = connection.output().len();
        out.extend_from_slice(connection.output());
        connection.wrote(count);
        count
    }
}

impl Protocol for Http2 {
    type Session = Http2Session;

    const MULTIPLEXED: bool = true;

    fn start(&self, session: &mut Http2Session, out: &mut Vec<u8>) -> u32 {
        session.connection = Some(Box::new(Connection::client(self.settings)));
        session.drain(out);
        0
    }

    fn write(&mut self, session: &mut Http2Session, _: usize, out: &mut Vec<u8>) -> Written {
        let number = self.plan.at(self.next);
        self.next += 1;
        if self.next == self.plan.cycle() {
            self.next = 0;
        }
        let Some(stream) = session.connection.as_mut().and_then(|connection| connection.open()) else {
            debug_assert!(false, "a connection with room");
            return Written { command: 0, tag: 0 };
        };
        let (message, framing, body) = match &self.prepared[number] {
            Some(request) => (&request.message, request.framing, request.body.as_slice()),
            None => {
                let own = number % self.keys.len();
                self.text.clear();
                self.plan.write(number, &mut self.keys[own], &mut self.scratch, &mut self.text);
                // The plan has checked a sample, and keys are digits after a prefix.
                let parsed = parse(&self.text, &self.request_limits, &mut self.message);
                let (framing, body) = parsed.unwrap_or((Framing::None, b""));
                (&self.message, framing, body)
            }
        };
        *session.response(stream) = Response { tag: stream.id(), stream: Some(stream), ..Response::default() };
        if let Some(connection) = &mut session.connection {
            let sent = connection.send_request(stream, message, framing, self.is_https, body.is_empty());
            debug_assert!(sent.is_ok(), "{sent:?}");
            if !body.is_empty() {
                let sent = connection.send_data(stream, body, true);
                if sent < body.len() {
                    session.uploads.push(Upload { stream, rest: body[sent..].to_vec(), sent: 0 });
                }
            }
        }
        session.drain(out);
        Written { command: self.plan.command(number), tag: stream.id() }
    }

    fn read(
        &mut self,
        session: &mut Http2Session,
        buf: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Answer>), String> {
        if out.is_empty() {
            session.answers = 0;
        }
        let mut at = 0;
        loop {
            let Some(connection) = &mut session.connection else { return Ok((buf.len(), None)) };
            connection.begin_turn();
            let received = connection.receive(&buf[at..], &mut self.message);
            let (used, progress) = match received {
                Ok(received) => received,
                Err(failure) => {
                    session.drain(out);
                    return Err(failure.to_string());
                }
            };
            at += used;
            let answer = match progress {
                Progress::Idle | Progress::Blocked(_) => {
                    session.answers += session.drain(out);
                    if session.answers > ANSWERS_MAX {
                        return Err("the server does not read the answers that it demands".to_owned());
                    }
                    if progress == Progress::Idle {
                        return Ok((at, None));
                    }
                    None
                }
                Progress::Event(event) => self.event(session, event, out),
            };
            if answer.is_some() {
                return Ok((at, answer));
            }
        }
    }

    fn end(&mut self, _: &mut Http2Session) -> Option<Answer> {
        None
    }

    fn is_within(&self, session: &Http2Session) -> bool {
        session.responses.iter().any(|response| response.status > 0)
    }

    fn has_room(&self, session: &Http2Session) -> bool {
        session.connection.as_ref().is_some_and(|connection| {
            (connection.is_greeted() || connection.open_streams() == 0) && connection.available_streams() > 0
        })
    }

    fn is_over(&self, session: &Http2Session) -> bool {
        session.connection.as_ref().is_some_and(|connection| connection.is_last_stream_opened())
    }

    fn cancel(&mut self, session: &mut Http2Session, tag: u32, out: &mut Vec<u8>) {
        let response = session.responses.iter().find(|response| response.tag == tag);
        if let Some(stream) = response.and_then(|response| response.stream) {
            session.finish(stream);
            session.drain(out);
        }
    }

    fn commands(&self) -> Vec<String> {
        self.plan.names()
    }

    fn warning(&self) -> Option<String> {
        let (wanted, allowed) = (self.streams, self.streams_allowed);
        (allowed < wanted).then(|| {
            format!("the server allows {allowed} streams on a connection at once, fewer than --streams {wanted}")
        })
    }
}

impl Http2 {
    /// Processes an event. Returns the answer that it completes.
    fn event(&mut self, session: &mut Http2Session, event: Event, out: &mut Vec<u8>) -> Option<Answer> {
        match event {
            Event::Response { stream, head, end } => {
                if head.interim {
                    return None;
                }
                session.response(stream).status = self.message.status();
                end.then(|| session.answer(stream))
            }
            Event::Data { stream, range } => {
                session.response(stream).received += range.len() as u64;
                if let Some(connection) = &mut session.connection {
                    connection.consume(stream, range.len());
                }
                None
            }
            Event::Trailers { stream } | Event::End { stream } => Some(session.answer(stream)),
            Event::Reset { stream, code, by_peer } => {
                let is_leaving = session.connection.as_ref().and_then(|connection| connection.goaway_received());
                let (fault, text) = if by_peer && is_leaving.is_some_and(|last| stream.id() > last) {
                    (StreamFault::Unprocessed, "the server closes the connection and has not processed it".to_owned())
                } else if by_peer {
                    (StreamFault::Reset, format!("the server has reset the stream: {code}"))
                } else {
                    (StreamFault::Malformed, format!("malformed response on a stream: {code}"))
                };
                session.finish(stream);
                Some(Answer { tag: stream.id(), outcome: Outcome::Failed(fault, text), body: 0, keep_alive: true })
            }
            Event::Writable { .. } => {
                session.upload(out);
                None
            }
            Event::Settings => {
                session.upload(out);
                let allowed = session.connection.as_ref().map(|connection| connection.streams_limit());
                self.streams_allowed = self.streams_allowed.min(allowed.unwrap_or(u32::MAX));
                None
            }
            Event::GoAway { .. } | Event::Pong(_) | Event::Request { .. } | Event::Refused { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::http::HttpOptions;
    use super::super::target::Url;
    use super::super::template::{KeyPattern, KeySpace};
    use super::*;
    use sluicegate_wire::http::Version;
    use sluicegate_wire::http2::ErrorCode;

    fn client(streams: usize, body: Option<&str>) -> Http2 {
        let space = KeySpace { prefix: String::new(), min: 5, max: 500, pattern: KeyPattern::Sequential };
        let options = HttpOptions {
            method: None,
            headers: Vec::new(),
            body: body.map(|body| body.as_bytes().to_vec()),
            keep_alive: true,
            data_size: 3,
            ratios: None,
            http2: true,
            is_plain: false,
        };
        let url = Url::parse("https://h/__key__", false).unwrap();
        let plan = HttpPlan::new(&[url], &options, &space).unwrap();
        Http2::new(plan, true, streams, Keys::new(space, 1, 0, 1), 0)
    }

    /// Passes the client's output to the server; returns the complete streams with their targets.
    fn receive(server: &mut Connection, input: &[u8], bodies: &mut u64) -> Vec<(StreamKey, String)> {
        let (mut at, mut message, mut found) = (0, Message::new(), Vec::new());
        loop {
            let (used, progress) = server.receive(&input[at..], &mut message).unwrap();
            at += used;
            match progress {
                Progress::Event(Event::Request { stream, .. }) => {
                    found.push((stream, String::from_utf8_lossy(message.target()).into_owned()));
                }
                Progress::Event(Event::Data { stream, range }) => {
                    *bodies += range.len() as u64;
                    server.consume(stream, range.len());
                }
                Progress::Event(_) => {}
                Progress::Idle => return found,
                Progress::Blocked(blocked) => panic!("{blocked:?}"),
            }
        }
    }

    /// Moves bytes between the two until neither has output.
    fn settle(http: &mut Http2, session: &mut Http2Session, server: &mut Connection, out: &mut Vec<u8>) -> u64 {
        let mut bodies = 0;
        while !out.is_empty() || !server.output().is_empty() {
            receive(server, &std::mem::take(out), &mut bodies);
            let input = server.output().to_vec();
            server.wrote(input.len());
            assert_eq!(http.read(session, &input, out), Ok((input.len(), None)));
        }
        bodies
    }

    #[test]
    fn answers_do_not_depend_on_the_pieces_that_come() {
        for step in [1, 2, 7, usize::MAX] {
            let (mut http, mut session, mut out) = (client(10, None), Http2Session::default(), Vec::new());
            assert!(!http.has_room(&session));
            http.start(&mut session, &mut out);
            let mut server = Connection::server(Settings::default());
            // One request precedes the server's settings.
            let first = http.write(&mut session, 0, &mut out);
            assert_eq!((first.tag, http.has_room(&session)), (1, false));
            let mut bodies = 0;
            let mut requests = receive(&mut server, &std::mem::take(&mut out), &mut bodies);
            let input = server.output().to_vec();
            server.wrote(input.len());
            assert_eq!(http.read(&mut session, &input, &mut out), Ok((input.len(), None)));
            for tag in [3, 5, 7] {
                assert!(http.has_room(&session));
                assert_eq!(http.write(&mut session, 0, &mut out), Written { command: 0, tag });
            }
            requests.extend(receive(&mut server, &std::mem::take(&mut out), &mut bodies));
            let targets: Vec<&str> = requests.iter().map(|(_, target)| target.as_str()).collect();
            assert_eq!(targets, ["https://h/5", "https://h/6", "https://h/7", "https://h/8"]);

            // The last is answered first, one is reset, one is malformed, and one comes in parts.
            let mut response = Message::new();
            response.set_response(Version::Http2, 200, b"OK");
            let keys: Vec<StreamKey> = requests.iter().map(|(key, _)| *key).collect();
            server.send_response(keys[0], &response, Framing::Chunked, false).unwrap();
            server.send_data(keys[0], &[0; 1000], false);
            server.send_response(keys[3], &response, Framing::Length(2), false).unwrap();
            server.send_data(keys[3], b"ok", true);
            server.reset(keys[1], ErrorCode::CANCEL);
            server.send_response(keys[2], &response, Framing::Length(3), false).unwrap();
            server.send_data(keys[2], b"ok", true);
            server.send_data(keys[0], &[0; 234], true);
            server.goaway(7, ErrorCode::NO_ERROR);
            let input = server.output().to_vec();
            let (mut at, mut arrived, mut answers) = (0, 0usize, Vec::new());
            while arrived < input.len() {
                arrived = arrived.saturating_add(step).min(input.len());
                while let (used, Some(answer)) = http.read(&mut session, &input[at..arrived], &mut out).unwrap() {
                    at += used;
                    answers.push((answer.tag, answer.outcome, answer.body));
                }
                at = arrived;
            }
            let failed = |fault, text: &str| Outcome::Failed(fault, text.to_owned());
            assert_eq!(
                answers,
                [
                    (7, Outcome::Status(200), 2),
                    (3, failed(StreamFault::Reset, "the server has reset the stream: CANCEL"), 0),
                    (5, failed(StreamFault::Malformed, "malformed response on a stream: PROTOCOL_ERROR"), 0),
                    (1, Outcome::Status(200), 1234),
                ],
                "in steps of {step}"
            );
            assert!(http.is_over(&session) && !http.has_room(&session) && !http.is_within(&session));
        }
    }

    #[test]
    fn uploads_wait_for_windows_and_end_when_they_are_given_up() {
        let body = "x".repeat(200_000);
        let (mut http, mut session, mut out) = (client(3, Some(&body)), Http2Session::default(), Vec::new());
        let mut server = Connection::server(Settings { initial_window: 1000, ..Settings::default() });
        http.start(&mut session, &mut out);
        settle(&mut http, &mut session, &mut server, &mut out);
        for _ in 0..3 {
            http.write(&mut session, 0, &mut out);
        }
        assert_eq!((session.uploads.len(), http.has_room(&session)), (3, false));
        http.cancel(&mut session, 3, &mut out);
        assert_eq!((session.uploads.len(), http.has_room(&session)), (2, true));
        let bodies = settle(&mut http, &mut session, &mut server, &mut out);
        // The cancelled one has sent its first window.
        assert_eq!((bodies, session.uploads.len()), (2 * 200_000 + 1000, 0));
    }

    #[test]
    fn a_server_that_asks_and_does_not_listen_is_an_error() {
        let (mut http, mut session, mut out) = (client(1, None), Http2Session::default(), Vec::new());
        http.start(&mut session, &mut out);
        let mut server = Connection::server(Settings::default());
        settle(&mut http, &mut session, &mut server, &mut out);
        // However few of them come at once.
        server.ping();
        let ping = server.output().to_vec();
        for pings in [ping.repeat(2), ping.repeat(10_000)] {
            out.clear();
            let error = loop {
                match http.read(&mut session, &pings, &mut out) {
                    Ok((used, None)) => assert_eq!(used, pings.len()),
                    Ok((_, Some(answer))) => panic!("{answer:?}"),
                    Err(error) => break error,
                }
            };
            assert!(error.contains("does not read") && out.len() < ANSWERS_MAX + (64 << 10), "{error}");
        }
        // The peer does not speak HTTP/2.
        let (mut http, mut session, mut out) = (client(1, None), Http2Session::default(), Vec::new());
        http.start(&mut session, &mut out);
        assert!(http.read(&mut session, b"HTTP/1.1 400 Bad Request\r\n\r\n", &mut out).is_err());
    }
}
