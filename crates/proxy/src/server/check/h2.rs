//! HTTP checks over HTTP/2: a request of HTTP/1 becomes a stream, and its response is rendered as one of HTTP/1, which
//! the expectations examine.

use sluicegate_wire::http::{ConnectionField, Framing, Limits, Message, parse_request, write_response};
use sluicegate_wire::http2::{Connection, ErrorCode, Event, Progress, Settings, StreamKey};

use super::probe::ANSWER_MAX;
use super::translator::{Broken, Translator};

/// A check's connection.
pub(super) struct Http2 {
    wire: Connection,
    stream: Option<StreamKey>,
    /// Received bytes that are not parsed yet.
    input: Vec<u8>,
    message: Message,
    https: bool,
}

impl Http2 {
    /// Returns a connection that begins; `https` is the scheme of its requests.
    pub(super) fn new(https: bool) -> Http2 {
        let settings = Settings {
            initial_window: ANSWER_MAX as u32,
            max_concurrent_streams: 1,
            connect_protocol: false,
            ..Settings::default()
        };
        Http2 { wire: Connection::client(settings), stream: None, input: Vec::new(), message: Message::new(), https }
    }
}

impl Translator for Http2 {
    fn request(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if let Some(earlier) = self.stream.take() {
            self.wire.release(earlier);
        }
        let head = parse_request(bytes, &Limits::of_own_heads(), &mut self.message).ok().flatten().ok_or(Broken)?;
        let body = &bytes[head.head_len..];
        let stream = self.wire.open().ok_or(Broken)?;
        self.stream = Some(stream);
        let framing = if body.is_empty() { Framing::None } else { Framing::Length(body.len() as u64) };
        let sent = self.wire.send_request(stream, &self.message, framing, self.https, body.is_empty());
        sent.map_err(|_| Broken)?;
        // The body of a check fits the smallest window, or what exceeds it is missing.
        if !body.is_empty() && self.wire.send_data(stream, body, true) < body.len() {
            return Err(Broken);
        }
        Ok(())
    }

    fn output(&self) -> &[u8] {
        self.wire.output()
    }

    fn wrote(&mut self, count: usize) {
        self.wire.wrote(count);
    }

    fn receive(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool, Broken> {
        self.input.extend_from_slice(bytes);
        self.wire.begin_turn();
        let mut ended = false;
        loop {
            let (count, progress) = self.wire.receive(&self.input, &mut self.message).map_err(|_| Broken)?;
            match progress {
                Progress::Event(Event::Response { stream, head, end }) if Some(stream) == self.stream => {
                    if !head.interim {
                        write_response(&self.message, Framing::UntilClose, ConnectionField::Close, into);
                    }
                    ended |= end;
                }
                Progress::Event(Event::Data { stream, range }) if Some(stream) == self.stream => {
                    into.extend_from_slice(&self.input[range]);
                }
                Progress::Event(Event::End { stream } | Event::Trailers { stream }) => {
                    ended |= Some(stream) == self.stream;
                }
                Progress::Event(Event::Reset { stream, code, .. }) if Some(stream) == self.stream && !ended => {
                    // A complete response is one, whatever follows.
                    if code != ErrorCode::NO_ERROR || into.is_empty() {
                        return Err(Broken);
                    }
                    ended = true;
                }
                Progress::Event(_) => {}
                Progress::Idle | Progress::Blocked(_) => {
                    self.input.drain(..count);
                    return Ok(ended);
                }
            }
            self.input.drain(..count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_a_stream_and_its_response_looks_like_one_of_http_1() {
        let mut check = Http2::new(false);
        check.request(b"OPTIONS /health HTTP/1.0\r\nhost: a\r\n\r\n").unwrap();
        let mut server = Connection::server(Settings::default());
        let mut message = Message::new();
        let mut input = check.output().to_vec();
        check.wrote(input.len());
        let stream = loop {
            let (count, progress) = server.receive(&input, &mut message).unwrap();
            input.drain(..count);
            match progress {
                Progress::Event(Event::Request { stream, .. }) => break stream,
                progress => assert_ne!(progress, Progress::Idle),
            }
        };
        assert_eq!((message.method(), message.first(b"host")), (&b"OPTIONS"[..], Some(&b"a"[..])));
        message.set_response(sluicegate_wire::http::Version::Http2, 200, b"OK");
        server.send_response(stream, &message, Framing::Length(2), false).unwrap();
        server.send_data(stream, b"ok", true);
        let mut seen = Vec::new();
        let ended: Vec<bool> =
            server.output().chunks(7).map(|piece| check.receive(piece, &mut seen).unwrap()).collect();
        assert_eq!(ended.iter().filter(|ended| **ended).count(), 1);
        assert!(seen.starts_with(b"HTTP/1.1 200 OK\r\n") && seen.ends_with(b"\r\n\r\nok"), "{seen:?}");
    }
}
