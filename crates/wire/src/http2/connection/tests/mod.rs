//! Connections as bytes: what is received, the events that follow, and what is sent.

mod client;
mod pairs;
mod reversed;
mod server;

use super::super::class::Class;
use super::super::frame::{self, ErrorCode, HEADER_LEN, Header, Kind, PREFACE, flag, setting};
use super::super::hpack::decode::tests::decoded;
use super::super::hpack::{Decoder, Encoder};
use super::{Blocked, CONTROL_MAX, Connection, Event, Failure, Progress, Settings, StreamKey};
use crate::http::{Framing, Message, StartLine, Version};

/// A frame as bytes.
fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_header(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

/// A frame of a type that is not defined.
fn unknown_frame() -> Vec<u8> {
    let mut frame = frame(Kind::Ping, 0xff, 9, b"whatever");
    frame[3] = 0x16;
    frame
}

/// SETTINGS with these values.
fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    values.iter().for_each(|(id, value)| frame::write_setting(&mut payload, *id, *value));
    frame(Kind::Settings, 0, 0, &payload)
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &increment.to_be_bytes())
}

fn rst_stream(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(Kind::RstStream, 0, stream, &code.0.to_be_bytes())
}

fn data(stream: u32, payload: &str) -> Vec<u8> {
    frame(Kind::Data, 0, stream, payload.as_bytes())
}

fn last_data(stream: u32, payload: &str) -> Vec<u8> {
    frame(Kind::Data, flag::END_STREAM, stream, payload.as_bytes())
}

/// Fields that are written `name: value`, one on a line, as a block of literals.
fn block(fields: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new();
    for line in fields.lines() {
        let colon = line[1..].find(": ").expect("name and value") + 1;
        let (name, value) = (&line.as_bytes()[..colon], &line.as_bytes()[colon + 2..]);
        // Encoded by hand, because the encoder trims values.
        if value.trim_ascii() != value || value.is_empty() || name.iter().any(u8::is_ascii_uppercase) {
            out.extend_from_slice(&[0, name.len() as u8]);
            out.extend_from_slice(name);
            out.push(value.len() as u8);
            out.extend_from_slice(value);
        } else {
            encoder.field(&mut out, name, value, Class::Secret);
        }
    }
    out
}

fn headers_with(flags: u8, stream: u32, fields: &str) -> Vec<u8> {
    frame(Kind::Headers, flags | flag::END_HEADERS, stream, &block(fields))
}

/// Returns a HEADERS frame without END_STREAM: a head, after which a body follows.
fn headers(stream: u32, fields: &str) -> Vec<u8> {
    headers_with(0, stream, fields)
}

/// Returns a HEADERS frame with END_STREAM: a head without a body, or trailers.
fn last_headers(stream: u32, fields: &str) -> Vec<u8> {
    headers_with(flag::END_STREAM, stream, fields)
}

const GET: &str = ":method: GET\n:scheme: https\n:path: /\n:authority: a";
const POST: &str = ":method: POST\n:scheme: https\n:path: /\n:authority: a";

/// One side of a connection, and what the test knows of it.
struct Side {
    connection: Connection,
    /// Decodes the heads that this side sends.
    decoder: Decoder,
    message: Message,
    streams: Vec<StreamKey>,
    /// Whether data is consumed as it comes.
    consumes: bool,
}

impl Side {
    fn of(connection: Connection) -> Side {
        let (decoder, message) = (Decoder::new(65_536), Message::new());
        Side { connection, decoder, message, streams: Vec::new(), consumes: true }
    }

    /// A server that has received the preface, its client's settings and data.
    fn server(settings_of_server: Settings) -> Side {
        let mut side = Side::of(Connection::server(settings_of_server));
        let input = [&PREFACE[..], &settings(&[]), &frame(Kind::Settings, flag::ACK, 0, b"")].concat();
        assert_eq!(side.receive(&input), ["settings"]);
        side.sent();
        side.connection.receive_window = i64::from(frame::MAX_31);
        side
    }

    /// A client that has received its server's settings and data.
    fn client(settings_of_client: Settings, of_server: &[(u16, u32)]) -> Side {
        let mut side = Side::of(Connection::client(settings_of_client));
        assert_eq!(&side.connection.output()[..PREFACE.len()], PREFACE);
        side.connection.wrote(PREFACE.len());
        let input = [settings(of_server), frame(Kind::Settings, flag::ACK, 0, b"")].concat();
        assert_eq!(side.receive(&input), ["settings"]);
        side.sent();
        side.connection.receive_window = i64::from(frame::MAX_31);
        side
    }

    fn key(&self, id: u32) -> StreamKey {
        *self.streams.iter().rfind(|key| key.id() == id).expect("a stream of this number was opened")
    }

    /// Returns the events that follow from an input, as texts.
    fn receive(&mut self, input: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        let rest = self.receive_some(input, &mut events);
        if let Ok(rest @ 1..) = rest {
            events.push(format!("{rest} bytes left"));
        }
        if let Err(failure) = rest {
            events.push(format!("failed {}", failure.code));
        }
        events
    }

    fn receive_some(&mut self, input: &[u8], events: &mut Vec<String>) -> Result<usize, Failure> {
        let mut at = 0;
        loop {
            let (count, progress) = self.connection.receive(&input[at..], &mut self.message)?;
            match progress {
                Progress::Event(event) => {
                    if let Event::Data { stream, range } = &event {
                        let text = String::from_utf8_lossy(&input[at..][range.clone()]).into_owned();
                        // Parts are joined, so that the texts do not depend on how the input is split.
                        let start = format!("data {} ", stream.id());
                        match events.last_mut() {
                            Some(last) if last.starts_with(&start) => last.push_str(&text),
                            _ => events.push(start + &text),
                        }
                        if self.consumes {
                            self.connection.consume(*stream, range.len());
                        }
                    } else {
                        let text = self.text(event);
                        events.push(text);
                    }
                }
                Progress::Idle => {
                    assert_eq!(at + count, input.len());
                    return Ok(0);
                }
                Progress::Blocked(blocked) => {
                    events.push(format!("blocked {blocked:?}"));
                    return Ok(input.len() - at - count);
                }
            }
            at += count;
        }
    }

    fn text(&mut self, event: Event) -> String {
        match event {
            Event::Request { stream, head, end, unparsable } => {
                self.streams.push(stream);
                let body = match end {
                    true => String::new(),
                    false => format!(" {:?}", head.body),
                };
                let bad = if unparsable { " 400" } else { "" };
                let id = stream.id();
                format!("request {id}{body}{bad}\n{}", text_of(&self.message))
            }
            Event::Response { stream, head, end } => {
                let end = if end { " end" } else { "" };
                format!("response {} {:?}{end}\n{}", stream.id(), head.body, text_of(&self.message))
            }
            Event::Refused { id, code, reason } => match reason {
                Some(reason) => format!("refused {id} {code} {reason:?}"),
                None => format!("refused {id} {code}"),
            },
            Event::Data { .. } => unreachable!("it needs the input"),
            Event::Trailers { stream } => format!("trailers {}\n{}", stream.id(), text_of(&self.message)),
            Event::End { stream } => format!("end {}", stream.id()),
            Event::Reset { stream, code, by_peer } => {
                format!("reset {} {code}{}", stream.id(), if by_peer { " by peer" } else { "" })
            }
            Event::Writable { stream } => match stream {
                Some(stream) => format!("writable {}", stream.id()),
                None => "writable".to_owned(),
            },
            Event::Settings => "settings".to_owned(),
            Event::GoAway { last, code } => format!("goaway {last} {code}"),
            Event::Pong(opaque) => format!("pong {opaque:?}"),
        }
    }

    /// Takes what was sent, as texts of frames.
    fn sent(&mut self) -> Vec<String> {
        let output = self.connection.output().to_vec();
        self.connection.wrote(output.len());
        frames(&mut self.decoder, &output)
    }
}

/// Returns a message in the form of HTTP/1, with LF in place of CRLF.
fn text_of(message: &Message) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut lines = match message.start_line() {
        StartLine::Request { method: b"", .. } => vec![],
        StartLine::Request { method, target, version } => {
            vec![format!("{} {} {version:?}", text(method), text(target))]
        }
        StartLine::Response { version, status, .. } => vec![format!("{version:?} {status}")],
    };
    lines.extend(message.fields().map(|(_, name, value)| format!("{}: {}", text(name), text(value))));
    lines.join("\n")
}

fn frames(decoder: &mut Decoder, mut bytes: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    let mut fragments = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() {
        let header = Header::parse(header);
        let (payload, rest) = rest.split_at(header.len as usize);
        bytes = rest;
        let id = header.stream;
        let end = if header.has(flag::END_STREAM) { " end" } else { "" };
        let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        texts.push(match header.kind {
            Kind::Data => format!("DATA {id} {}{end}", String::from_utf8_lossy(payload)),
            Kind::Headers | Kind::Continuation => {
                fragments.extend_from_slice(payload);
                if !header.has(flag::END_HEADERS) {
                    texts.push(format!("{:?} {id}{end}", header.kind));
                    continue;
                }
                let fields = decoded(decoder, &std::mem::take(&mut fragments)).unwrap();
                let lines = fields.into_iter().map(|(name, value)| format!("\n{name}: {value}"));
                format!("HEADERS {id}{end}{}", lines.collect::<String>())
            }
            Kind::RstStream => format!("RST_STREAM {id} {}", ErrorCode(word(0))),
            Kind::Settings if header.has(flag::ACK) => "SETTINGS ack".to_owned(),
            Kind::Settings => {
                let value = |entry: &[u8; 6]| u32::from_be_bytes(entry[2..].try_into().unwrap());
                let entries = payload.as_chunks::<6>().0.iter();
                let entries: Vec<_> = entries.map(|entry| format!("{}={}", entry[1], value(entry))).collect();
                format!("SETTINGS {}", entries.join(" "))
            }
            Kind::Ping => format!("PING{} {payload:?}", if header.has(flag::ACK) { " ack" } else { "" }),
            Kind::GoAway => format!("GOAWAY {} {}", word(0), ErrorCode(word(4))),
            Kind::WindowUpdate => format!("WINDOW_UPDATE {id} {}", word(0)),
            kind => format!("{kind:?}"),
        });
    }
    assert!(bytes.is_empty());
    texts
}

/// A response without fields.
fn status(status: u16) -> Message {
    let mut message = Message::new();
    message.set_response(Version::Http11, status, b"");
    message
}
