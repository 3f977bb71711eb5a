//! Fuzz targets.

use super::super::class::Class;
use super::super::frame::PREFACE;
use super::super::hpack::{Decoder, Encoder};
use super::{Blocked, CONTROL_MAX, Connection, Event, Progress, Settings, StreamKey};
use crate::http::{Framing, Limits, Message, Version};

/// Fuzz target: any bytes from a peer. Panics where an invariant breaks.
///
/// The first byte decides which side receives them. The result must be the same for all bytes at once and for one after
/// the other.
pub fn fuzz_connection(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let whole = events(*choice, data, data.len().max(1));
    for size in [1, 7] {
        let parts = events(*choice, data, size);
        assert_eq!(whole, parts, "in parts of {size}");
    }
}

/// The settings of a fuzzed side: small limits, which are soon reached.
fn settings() -> Settings {
    Settings {
        max_concurrent_streams: 3,
        max_total_streams: 20,
        glitches_threshold: 15,
        head: Limits { max_head: 1000, max_fields: 20, ..Limits::default() },
        frames_per_turn: 10,
        resets_per_turn: 3,
        output_max: 5000,
        ..Settings::default()
    }
}

/// Returns a line for each event, data of adjacent events joined.
fn events(choice: u8, data: &[u8], size: usize) -> Vec<String> {
    let (is_client, is_reversed) = (choice & 1 != 0, choice & 8 != 0);
    let mut connection = match (is_client, is_reversed) {
        (true, false) => Connection::client(settings()),
        (true, true) => Connection::reversed_client(settings()),
        (false, false) => Connection::server(settings()),
        (false, true) => Connection::reversed_server(settings()),
    };
    let mut message = Message::new();
    let mut streams: Vec<StreamKey> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    if is_client && !is_reversed {
        send_requests(&mut connection, choice & 2 == 0, &mut streams);
    }
    let greeting: &[u8] = if is_client != is_reversed || choice & 4 != 0 { b"" } else { PREFACE };
    let mut input = Vec::new();
    for part in greeting.chunks(size).chain(data.chunks(size)) {
        input.extend_from_slice(part);
        loop {
            let (count, progress) = match connection.receive(&input, &mut message) {
                Ok(progress) => progress,
                Err(failure) => {
                    lines.push(failure.to_string());
                    assert_eq!(connection.failure(), Some(failure));
                    return lines;
                }
            };
            assert!(count <= input.len());
            match progress {
                Progress::Idle => {
                    assert_eq!(count, input.len());
                    input.clear();
                    break;
                }
                Progress::Blocked(Blocked::Turn) => connection.begin_turn(),
                Progress::Blocked(Blocked::Output) => connection.wrote(connection.output().len()),
                Progress::Blocked(Blocked::Streams) => release(&mut connection, &mut streams),
                Progress::Event(event) => {
                    // A client that the peer has connected to waits for the settings.
                    if is_client && is_reversed && event == Event::Settings && connection.total_streams() == 0 {
                        send_requests(&mut connection, choice & 2 == 0, &mut streams);
                    }
                    handle(&mut connection, event, &input, &message, &mut streams, &mut lines);
                }
            }
            input.drain(..count);
        }
        assert!(connection.held_streams() <= 4);
        assert!(connection.output().len() < 4 * CONTROL_MAX + 5000 + 64);
    }
    lines
}

fn send_requests(connection: &mut Connection, end: bool, streams: &mut Vec<StreamKey>) {
    let mut request = Message::new();
    request.set_request(b"GET", b"/", Version::Http11);
    for _ in 0..3 {
        let Some(stream) = connection.open() else { break };
        connection.send_request(stream, &request, Framing::None, true, end).expect("it is plain");
        streams.push(stream);
    }
}

fn release(connection: &mut Connection, streams: &mut Vec<StreamKey>) {
    let before = connection.held_streams();
    streams.retain(|stream| {
        let closed = connection.is_closed(*stream);
        if closed {
            connection.release(*stream);
        }
        !closed
    });
    assert!(connection.held_streams() < before, "one of them is closed");
}

fn handle(
    connection: &mut Connection,
    event: Event,
    input: &[u8],
    message: &Message,
    streams: &mut Vec<StreamKey>,
    lines: &mut Vec<String>,
) {
    match event {
        Event::Request { stream, head, end, .. } => {
            assert!(head.body != Framing::UntilClose);
            assert!(message.fields().all(|(_, name, value)| is_clean(name) && is_clean(value)));
            lines.push(format!("{} {head:?} {end} {:?}", stream.id(), message.start_line()));
            streams.push(stream);
            // Some are answered at once, some late or never.
            if stream.id() % 3 == 0 {
                let mut response = Message::new();
                response.set_response(Version::Http11, 200, b"");
                if connection.send_response(stream, &response, Framing::Chunked, false).is_ok() {
                    connection.send_data(stream, &[b'x'; 100], true);
                }
            }
        }
        Event::Response { stream, head, end } => {
            assert!(message.fields().all(|(_, name, value)| is_clean(name) && is_clean(value)));
            lines.push(format!("{} {head:?} {end} {:?}", stream.id(), message.start_line()));
        }
        Event::Data { stream, range } => {
            let data = &input[range];
            assert!(!data.is_empty());
            connection.consume(stream, data.len());
            let (start, text) = (format!("data {} ", stream.id()), format!("{data:?}"));
            match lines.last_mut() {
                Some(last) if last.starts_with(&start) => {
                    last.pop();
                    last.push_str(", ");
                    last.push_str(&text[1..]);
                }
                _ => lines.push(start + &text),
            }
        }
        event => lines.push(format!("{event:?}")),
    }
}

/// Returns whether a text contains nothing that ends a line.
fn is_clean(text: &[u8]) -> bool {
    memchr::memchr3(b'\r', b'\n', 0, text).is_none()
}

/// Fuzz target: any bytes as a field block. Panics where an invariant breaks.
pub fn fuzz_field_block(data: &[u8]) {
    let mut decoder = Decoder::new(4096);
    let Ok(fields) = fields(&mut decoder, data) else { return };
    // The decoded fields are encoded and decoded again: the first time as literals, then by the table.
    let (mut encoder, mut again) = (Encoder::new(), Decoder::new(4096));
    for _ in 0..3 {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in &fields {
            encoder.field(&mut out, name, value, Class::of_field(name));
        }
        let trimmed = fields.iter().map(|(name, value)| (name.clone(), crate::http::trim(value).to_vec()));
        assert_eq!(self::fields(&mut again, &out), Ok(trimmed.collect()));
    }
    // A decoder that discards the fields ends with the same table.
    let mut other = Decoder::new(4096);
    let (mut arena, mut block) = (Vec::new(), other.block(data));
    while block.next(&mut arena, false).expect("it was valid").is_some() {
        assert!(arena.is_empty());
    }
    for index in 0..128 {
        let reference = [0xff, (0x3e + index - 0x7f) as u8];
        let reference = if index < 0x41 { &[0xbe + index as u8][..] } else { &reference[..] };
        assert_eq!(self::fields(&mut decoder, reference), self::fields(&mut other, reference));
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn fields(decoder: &mut Decoder, data: &[u8]) -> Result<Fields, super::super::hpack::Error> {
    let (mut arena, mut fields) = (Vec::new(), Vec::new());
    let mut block = decoder.block(data);
    while let Some(field) = block.next(&mut arena, true)? {
        fields.push((arena[field.name].to_vec(), arena[field.value].to_vec()));
        arena.clear();
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::frame::{self, ErrorCode, Kind, flag};
    use super::*;

    /// A frame of one of the defined types, which is nearly valid.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let streams = prop::sample::select(vec![0u32, 1, 1, 1, 3, 3, 5, 7, 2]);
        let kinds = prop::sample::select(vec![
            Kind::Data,
            Kind::Data,
            Kind::Headers,
            Kind::Headers,
            Kind::Priority,
            Kind::RstStream,
            Kind::Settings,
            Kind::Ping,
            Kind::GoAway,
            Kind::WindowUpdate,
            Kind::Continuation,
        ]);
        let flags = prop::sample::select(vec![0, flag::END_STREAM, flag::END_HEADERS, 5, 5, 5, 0xd, 0x2d]);
        let blocks = prop::sample::select(vec![
            &b"\x82\x87\x84\x41\x01a"[..],
            b"\x83\x87\x84\x41\x01a\x0f\x0d\x015",
            b"\x88\x40\x01x\x01y",
            b"\x88\xbe",
            b"\x82\x87\x84\xbe",
            b"\x40\x01x\x01y\xbe",
            b"\x82",
            b"",
            b"\x04\x82\x87\x84\0\0\0\0",
            b"\x02\0\0\0\x05\x10\x82\x87\x84\0\0",
        ]);
        let bytes = prop::collection::vec(any::<u8>(), 0..12);
        (kinds, flags, streams, blocks, bytes, any::<u32>()).prop_map(|(kind, flags, stream, block, bytes, word)| {
            let stream = if matches!(kind, Kind::Settings | Kind::Ping | Kind::GoAway) { stream / 7 } else { stream };
            let mut out = Vec::new();
            let payload = match kind {
                Kind::Headers | Kind::Continuation => block.to_vec(),
                Kind::RstStream => (word % 14).to_be_bytes().to_vec(),
                Kind::WindowUpdate => (word % 1000).to_be_bytes().to_vec(),
                Kind::Settings => [&[0, (word % 8) as u8][..], &(word / 3).to_be_bytes()].concat(),
                Kind::Priority => [&word.to_be_bytes()[..], &[1]].concat(),
                Kind::Ping => vec![word as u8; 8],
                Kind::GoAway => [&[0, 0, 0, (word % 8) as u8][..], &[0; 4]].concat(),
                _ => bytes,
            };
            let flags = if kind == Kind::Settings { 0 } else { flags };
            frame::write_header(&mut out, payload.len(), kind, flags, stream);
            out.extend(payload);
            out
        })
    }

    /// Frames behind the peer's settings, and which side receives them.
    fn input() -> impl Strategy<Value = Vec<u8>> {
        (0u8..16, prop::collection::vec(frames(), 0..40)).prop_map(|(choice, frames)| {
            let mut input = vec![choice];
            frame::write_header(&mut input, 0, Kind::Settings, 0, 0);
            frame::write_header(&mut input, 0, Kind::Settings, flag::ACK, 0);
            input.extend(frames.concat());
            input
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn fuzz_on_generated_frames(data in input()) {
            fuzz_connection(&data);
        }

        #[test]
        fn fuzz_on_any_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_connection(&data);
            fuzz_field_block(&data);
        }

        #[test]
        fn fuzz_on_nearly_valid_blocks(
            parts in prop::collection::vec(prop::sample::select(vec![
                &b"\x82"[..], b"\xbe", b"\xbf", b"\x40\x01a\x01b", b"\x40\x81\x1f\x02cd", b"\x41\x01e", b"\x7e\x01f",
                b"\x0f\x10\x01g", b"\x10\x01h\x82\x1c\x2f", b"\x20", b"\x3f\xe1\x1f", b"\x3f\x21", b"\xff\x05", b"\x00",
            ]), 0..30),
        ) {
            fuzz_field_block(&parts.concat());
        }
    }

    #[test]
    fn a_connection_that_works_is_reached() {
        // The generator has to lead to streams, or the properties above say little.
        let mut input = vec![0];
        frame::write_header(&mut input, 0, Kind::Settings, 0, 0);
        frame::write_header(&mut input, 6, Kind::Headers, 5, 3);
        input.extend(b"\x82\x87\x84\x41\x01a");
        let lines = events(0, &input[1..], 3);
        assert!(lines.iter().any(|line| line.starts_with("3 RequestHead")), "{lines:?}");
        let refused = lines.iter().any(|line| line.contains(&ErrorCode::PROTOCOL_ERROR.to_string()));
        assert!(!refused);
        fuzz_connection(&input);
    }
}
