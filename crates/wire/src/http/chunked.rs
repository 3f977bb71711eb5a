//! Chunked bodies (RFC 9112 7.1), and bodies of every framing behind one decoder.
//!
//! The decoder keeps no data: it returns the ranges of its input that are body. Chunk extensions are skipped,
//! trailers are collected. It is strict where leniency would let two readers of the same bytes disagree: a size is
//! hexadecimal digits only, an extension has no control characters and its quotes are closed, a size line and a chunk's
//! data end in CRLF and not in a bare LF, as in HAProxy since 2.9, and no trailer is a Transfer-Encoding.
//!
//! Limits: sizes below 2^52 (as HAProxy), [`MAX_LINE`] bytes of size line with extensions, [`MAX_TRAILERS`] bytes of
//! trailers, and as many of them as a head may have fields.

use std::ops::Range;

use super::Framing;

/// The maximum size of a chunk, which every parser can represent, including those whose numbers are floating-point.
const MAX_SIZE: u64 = (1 << 52) - 1;

/// The maximum length of a chunk's size line in bytes, including extensions. No legitimate sender needs more.
const MAX_LINE: u32 = 64 * 1024;

/// The maximum length of all trailer lines in bytes.
const MAX_TRAILERS: usize = 15 * 1024;

/// The reason for refusing a chunked body. The connection is not usable any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// No digits, a size of 2^52 or more, or something else where digits belong.
    Size,
    /// Control characters in an extension, or a line with an invalid end.
    Line,
    /// The data of a chunk is not followed by a line end.
    DataEnd,
    /// A trailer that is not a field.
    Trailer,
    /// A line or the trailers are longer than the limits, or there are too many trailers.
    TooLarge,
}

impl std::fmt::Display for ChunkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ChunkError::Size => "invalid chunk size",
            ChunkError::Line => "invalid chunk size line",
            ChunkError::DataEnd => "chunk longer than its size",
            ChunkError::Trailer => "invalid trailer",
            ChunkError::TooLarge => "chunk extensions or trailers too large",
        })
    }
}

impl std::error::Error for ChunkError {}

/// The result of a step of [`ChunkedDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkEvent {
    /// All bytes were consumed, more are needed.
    More,
    /// Body data: a range of the given bytes.
    Data(Range<usize>),
    /// The body is complete; trailers are in [`ChunkedDecoder::trailers`]. Bytes after this belong to something else.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SizeStart,
    Size,
    SizeBlank,
    Extension,
    SizeLf,
    Data,
    DataEnd,
    DataLf,
    TrailerStart,
    Trailer,
    EndLf,
    Done,
}

/// A decoder that finds the data in a chunked body.
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    state: State,
    /// The number of bytes of the current size line.
    line: u32,
    /// For the current chunk: while its size is parsed, the size so far; then the number of bytes still to come.
    remaining: u64,
    /// Within an extension: whether the position is in a quoted string, and whether it follows a backslash there.
    quoted: bool,
    escaped: bool,
    /// The number of trailers that are still allowed.
    fields_left: u32,
    /// Complete trailer lines, each as `name: value\n`; most bodies never allocate it.
    trailers: Vec<u8>,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        ChunkedDecoder::new()
    }
}

impl ChunkedDecoder {
    /// Returns a decoder at the start of a body.
    pub fn new() -> ChunkedDecoder {
        ChunkedDecoder {
            state: State::SizeStart,
            line: 0,
            remaining: 0,
            quoted: false,
            escaped: false,
            fields_left: super::Limits::default().max_fields as u32 - 1,
            trailers: Vec::new(),
        }
    }

    /// Consumes bytes from the start of `buf`; returns their number and meaning. Must be called again with the rest
    /// until it returns [`ChunkEvent::More`] or [`ChunkEvent::End`].
    pub fn decode(&mut self, buf: &[u8]) -> Result<(usize, ChunkEvent), ChunkError> {
        let mut at = 0;
        while at < buf.len() {
            let byte = buf[at];
            match self.state {
                State::SizeStart | State::Size => match hex_digit(byte) {
                    Some(digit) => {
                        // Leading zeros are harmless, yet a size line has its limit like any line.
                        self.line += 1;
                        self.remaining = self.remaining << 4 | u64::from(digit);
                        if self.remaining > MAX_SIZE {
                            return Err(ChunkError::Size);
                        }
                        if self.line > MAX_LINE {
                            return Err(ChunkError::TooLarge);
                        }
                        self.state = State::Size;
                    }
                    None if self.state == State::SizeStart => return Err(ChunkError::Size),
                    None => self.after_size(byte)?,
                },
                State::SizeBlank => self.after_size(byte)?,
                State::Extension => match byte {
                    b'\r' if !self.quoted => self.state = State::SizeLf,
                    b'\t' | b' '..=b'~' | 0x80.. => self.extension(byte)?,
                    _ => return Err(ChunkError::Line),
                },
                State::SizeLf => {
                    if byte != b'\n' {
                        return Err(ChunkError::Line);
                    }
                    self.start_data();
                }
                State::Data => {
                    let len = self.remaining.min((buf.len() - at) as u64);
                    self.remaining -= len;
                    if self.remaining == 0 {
                        self.state = State::DataEnd;
                    }
                    let end = at + len as usize;
                    return Ok((end, ChunkEvent::Data(at..end)));
                }
                State::DataEnd => match byte {
                    b'\r' => self.state = State::DataLf,
                    _ => return Err(ChunkError::DataEnd),
                },
                State::DataLf => match byte {
                    b'\n' => self.start_size(),
                    _ => return Err(ChunkError::DataEnd),
                },
                State::TrailerStart => match byte {
                    b'\r' => self.state = State::EndLf,
                    b'\n' => {
                        self.state = State::Done;
                        return Ok((at + 1, ChunkEvent::End));
                    }
                    _ => {
                        if matches!(byte, b' ' | b'\t') {
                            self.unfold_trailer();
                        }
                        self.state = State::Trailer;
                        continue;
                    }
                },
                State::Trailer => {
                    at += self.trailer(&buf[at..])?;
                    continue;
                }
                State::EndLf => {
                    if byte != b'\n' {
                        return Err(ChunkError::Trailer);
                    }
                    self.state = State::Done;
                    return Ok((at + 1, ChunkEvent::End));
                }
                State::Done => return Ok((at, ChunkEvent::End)),
            }
            at += 1;
        }
        let event = if self.state == State::Done { ChunkEvent::End } else { ChunkEvent::More };
        Ok((buf.len(), event))
    }

    /// Returns the number of bytes of the current chunk's data still to come. A relay may move that many bytes
    /// elsewhere (splice) and then report them with [`ChunkedDecoder::skip_data`].
    pub fn data_remaining(&self) -> u64 {
        if self.state == State::Data { self.remaining } else { 0 }
    }

    /// Records that `len` bytes of the current chunk's data were moved elsewhere; at most
    /// [`ChunkedDecoder::data_remaining`].
    pub fn skip_data(&mut self, len: u64) {
        debug_assert!(len <= self.data_remaining());
        self.remaining = self.remaining.saturating_sub(len);
        if self.state == State::Data && self.remaining == 0 {
            self.state = State::DataEnd;
        }
    }

    /// Returns whether the end was reached.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns the names and values of the trailer fields, once the body has ended.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.trailers.split(|byte| *byte == b'\n').filter_map(|line| {
            let colon = memchr::memchr(b':', line)?;
            Some((&line[..colon], super::field::trim(&line[colon + 1..])))
        })
    }

    fn after_size(&mut self, byte: u8) -> Result<(), ChunkError> {
        match byte {
            b' ' | b'\t' => {
                self.line += 1;
                if self.line > MAX_LINE {
                    return Err(ChunkError::TooLarge);
                }
                self.state = State::SizeBlank;
            }
            b';' => self.state = State::Extension,
            b'\r' => self.state = State::SizeLf,
            // Some parsers do not end the line at a bare LF, but take it for a part of an extension.
            b'\n' => return Err(ChunkError::Line),
            _ => return Err(ChunkError::Size),
        }
        Ok(())
    }

    /// Processes one byte of an extension. Quotes and backslashes are tracked because a parser that honours them would
    /// not treat a line end between quotes as the end of the line (HAProxy 3.5).
    fn extension(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.line += 1;
        if self.line > MAX_LINE {
            return Err(ChunkError::TooLarge);
        }
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.quoted => self.escaped = true,
            b'\\' => return Err(ChunkError::Line),
            b'"' => self.quoted = !self.quoted,
            _ => {}
        }
        Ok(())
    }

    fn start_size(&mut self) {
        self.state = State::SizeStart;
        self.line = 0;
        self.remaining = 0;
    }

    fn start_data(&mut self) {
        self.state = if self.remaining == 0 { State::TrailerStart } else { State::Data };
    }

    /// Replaces the line end of the last trailer line by spaces, because the next line continues it, as in a head.
    fn unfold_trailer(&mut self) {
        for byte in self.trailers.iter_mut().rev().take_while(|byte| matches!(byte, b'\r' | b'\n')) {
            *byte = b' ';
        }
    }

    /// Collects bytes up to the end of one trailer line; returns the number of bytes consumed.
    fn trailer(&mut self, buf: &[u8]) -> Result<usize, ChunkError> {
        let (taken, complete) = match memchr::memchr(b'\n', buf) {
            Some(end) => (end + 1, true),
            None => (buf.len(), false),
        };
        if self.trailers.len() + taken > MAX_TRAILERS {
            return Err(ChunkError::TooLarge);
        }
        self.trailers.extend_from_slice(&buf[..taken]);
        if complete {
            self.state = State::TrailerStart;
            let before = &self.trailers[..self.trailers.len() - 1];
            let start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
            let line = before[start..].strip_suffix(b"\r").unwrap_or(&before[start..]);
            let colon = memchr::memchr(b':', line).ok_or(ChunkError::Trailer)?;
            if colon == 0 || colon > super::head::NAME_MAX || !super::head::is_token(&line[..colon]) {
                return Err(ChunkError::Trailer);
            }
            self.fields_left = self.fields_left.checked_sub(1).ok_or(ChunkError::TooLarge)?;
            // Transfer-Encoding frames the body, so no honest sender places it after the body.
            if line[..colon].eq_ignore_ascii_case(b"transfer-encoding") {
                return Err(ChunkError::Trailer);
            }
            if memchr::memchr2(b'\r', 0, line).is_some() {
                return Err(ChunkError::Trailer);
            }
            super::message::lower(&mut self.trailers[start..start + colon]);
        }
        Ok(taken)
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// The result of a step of [`BodyDecoder::decode`].
pub type BodyEvent = ChunkEvent;

/// A decoder that finds the data in a body of any framing.
#[derive(Clone, Debug)]
pub enum BodyDecoder {
    /// The number of bytes to come.
    Length(u64),
    /// Chunks.
    Chunked(ChunkedDecoder),
    /// A body that ends when the peer closes; its bytes do not tell the end.
    UntilClose,
}

impl BodyDecoder {
    /// Returns a decoder for a body with this framing.
    pub fn new(framing: Framing) -> BodyDecoder {
        match framing {
            Framing::None => BodyDecoder::Length(0),
            Framing::Length(length) => BodyDecoder::Length(length),
            Framing::Chunked => BodyDecoder::Chunked(ChunkedDecoder::new()),
            Framing::UntilClose => BodyDecoder::UntilClose,
        }
    }

    /// Limits the number of trailers in the same way as the fields of a head (`tune.http.maxhdr`).
    pub fn limit_trailers(&mut self, max_fields: usize) {
        if let BodyDecoder::Chunked(decoder) = self {
            decoder.fields_left = u32::try_from(max_fields.saturating_sub(1)).unwrap_or(u32::MAX);
        }
    }

    /// As [`ChunkedDecoder::decode`]. With `Length`, `End` is returned by the call after the last data, or immediately
    /// for 0.
    pub fn decode(&mut self, buf: &[u8]) -> Result<(usize, BodyEvent), ChunkError> {
        match self {
            BodyDecoder::Length(0) => Ok((0, BodyEvent::End)),
            BodyDecoder::Chunked(decoder) => decoder.decode(buf),
            _ if buf.is_empty() => Ok((0, BodyEvent::More)),
            BodyDecoder::Length(remaining) => {
                let len = (*remaining).min(buf.len() as u64);
                *remaining -= len;
                Ok((len as usize, BodyEvent::Data(0..len as usize)))
            }
            BodyDecoder::UntilClose => Ok((buf.len(), BodyEvent::Data(0..buf.len()))),
        }
    }

    /// Returns whether the body is complete. A body that ends with its connection never is.
    pub fn is_done(&self) -> bool {
        match self {
            BodyDecoder::Length(remaining) => *remaining == 0,
            BodyDecoder::Chunked(decoder) => decoder.is_done(),
            BodyDecoder::UntilClose => false,
        }
    }
}

/// Appends what precedes a chunk's data: its size and a line end. Appends nothing for a size of 0, which would end the
/// body.
pub fn write_chunk_start(size: u64, out: &mut Vec<u8>) {
    if size == 0 {
        return;
    }
    let mut digits = [0u8; 16];
    let mut at = digits.len();
    let mut rest = size;
    while rest > 0 {
        at -= 1;
        digits[at] = b"0123456789ABCDEF"[(rest & 15) as usize];
        rest >>= 4;
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// Appends the line end after a chunk's data.
pub fn write_chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Appends a whole chunk, or nothing if there is no data.
pub fn write_chunk(data: &[u8], out: &mut Vec<u8>) {
    if !data.is_empty() {
        write_chunk_start(data.len() as u64, out);
        out.extend_from_slice(data);
        write_chunk_end(out);
    }
}

/// Appends the last chunk and the trailers.
pub fn write_last_chunk<'a>(trailers: impl Iterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Fuzz target: any bytes as a chunked body, whole and split at every place. Panics where an invariant breaks.
pub fn fuzz_chunked(data: &[u8]) {
    fn run(pieces: &[&[u8]]) -> (Vec<u8>, Result<bool, ChunkError>) {
        let mut decoder = ChunkedDecoder::new();
        let mut body = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            loop {
                match decoder.decode(rest) {
                    Err(error) => return (body, Err(error)),
                    Ok((taken, event)) => {
                        match event {
                            ChunkEvent::Data(range) => body.extend_from_slice(&rest[range]),
                            ChunkEvent::More => assert_eq!(taken, rest.len()),
                            ChunkEvent::End => return (body, Ok(true)),
                        }
                        rest = &rest[taken..];
                        if rest.is_empty() {
                            break;
                        }
                    }
                }
            }
        }
        (body, Ok(false))
    }
    let whole = run(&[data]);
    for at in 0..data.len().min(512) {
        let (first, second) = data.split_at(at);
        assert_eq!(run(&[first, second]), whole, "split at {at}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(input: &[u8]) -> Result<(String, String, usize), ChunkError> {
        let mut decoder = ChunkedDecoder::new();
        let mut body = Vec::new();
        let mut at = 0;
        loop {
            let (taken, event) = decoder.decode(&input[at..])?;
            match event {
                ChunkEvent::Data(range) => body.extend_from_slice(&input[at..][range]),
                ChunkEvent::End => {
                    let trailers: Vec<_> = decoder
                        .trailers()
                        .map(|(name, value)| {
                            format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
                        })
                        .collect();
                    return Ok((String::from_utf8_lossy(&body).into(), trailers.join(","), at + taken));
                }
                ChunkEvent::More => return Ok((String::from_utf8_lossy(&body).into(), "more".into(), at + taken)),
            }
            at += taken;
        }
    }

    #[test]
    fn bodies() {
        let check = |input: &str, expected: Result<(&str, &str, &str), ChunkError>| {
            let got = decode(input.as_bytes());
            let got = got.as_ref().map(|(body, trailers, end)| (body.as_str(), trailers.as_str(), &input[*end..]));
            assert_eq!(got.map_err(|error| *error), expected, "{input:?}");
            fuzz_chunked(input.as_bytes());
        };
        check("0\r\n\r\nrest", Ok(("", "", "rest")));
        check("5\r\nhello\r\n0\r\n\r\n", Ok(("hello", "", "")));
        check("00000000000000000005\r\nhello\r\n0\r\n\r\n", Ok(("hello", "", "")));
        check(
            "5 ; a=b\r\nhello\r\nA\r\n0123456789\r\n0;x\r\nT: u \r\nV:w\r\n\r\nGET",
            Ok(("hello0123456789", "t=u,v=w", "GET")),
        );
        check("5;a=\"b\\\"c\" ;\td\r\nhello\r\n0\r\n\r\n", Ok(("hello", "", "")));
        for bad in ["\0", "\x7f", "\x1b", "\"", "a\\b", "\"\\\"", "\"a\r\n\""] {
            check(&format!("5;{bad}\r\nhello\r\n0\r\n\r\n"), Err(ChunkError::Line));
        }
        check("5\nhello\r\n0\r\n\r\n", Err(ChunkError::Line));
        check("5;a\nhello\r\n0\r\n\r\n", Err(ChunkError::Line));
        check("5\r\nhello\n0\r\n\r\n", Err(ChunkError::DataEnd));
        check("0\r\nT: u\n\n", Ok(("", "t=u", "")));
        check("5\r\nhel", Ok(("hel", "more", "")));
        check("", Ok(("", "more", "")));
        check("\r\n", Err(ChunkError::Size));
        check("-5\r\n", Err(ChunkError::Size));
        check("0x5\r\n", Err(ChunkError::Size));
        check(" 5\r\n", Err(ChunkError::Size));
        check("5 6\r\n", Err(ChunkError::Size));
        check("g\r\n", Err(ChunkError::Size));
        check("10000000000000\r\n", Err(ChunkError::Size));
        check("fffffffffffff\r\nx", Ok(("x", "more", "")));
        check("5\rhello", Err(ChunkError::Line));
        check("5\r\nhello0\r\n\r\n", Err(ChunkError::DataEnd));
        check("5\r\nhello\rX", Err(ChunkError::DataEnd));
        check("0\r\nT\r\n\r\n", Err(ChunkError::Trailer));
        check("0\r\nT : u\r\n\r\n", Err(ChunkError::Trailer));
        check("0\r\n T: u\r\n\r\n", Err(ChunkError::Trailer));
        check("0\r\nT: u\r\n v\n\tw\r\nX: y\r\n\r\n", Ok(("", "t=u   v \tw,x=y", "")));
        check("0\r\nT: u\rv\r\n\r\n", Err(ChunkError::Trailer));
        check("0\r\n\rX", Err(ChunkError::Trailer));
        check("0\r\nTransfer-encoding: chunked\r\n\r\n", Err(ChunkError::Trailer));
    }

    #[test]
    fn limits_hold() {
        let long = format!("5;{}", "x".repeat(MAX_LINE as usize + 1));
        assert_eq!(decode(long.as_bytes()), Err(ChunkError::TooLarge));
        let zeros = "0".repeat(MAX_LINE as usize + 1);
        assert_eq!(decode(zeros.as_bytes()), Err(ChunkError::TooLarge));
        let trailers = format!("0\r\nT: {}", "x".repeat(MAX_TRAILERS));
        assert_eq!(decode(trailers.as_bytes()), Err(ChunkError::TooLarge));
        let trailers = |count| format!("0\r\n{}\r\n", "T: u\r\n".repeat(count));
        assert!(decode(trailers(100).as_bytes()).is_ok());
        assert_eq!(decode(trailers(101).as_bytes()), Err(ChunkError::TooLarge));
        let name = |len| format!("0\r\n{}: u\r\n\r\n", "T".repeat(len));
        assert!(decode(name(255).as_bytes()).is_ok());
        assert_eq!(decode(name(256).as_bytes()), Err(ChunkError::Trailer));
    }

    #[test]
    fn data_may_be_moved_unseen() {
        let mut decoder = ChunkedDecoder::new();
        assert_eq!(decoder.decode(b"100\r\n").unwrap(), (5, ChunkEvent::More));
        assert_eq!(decoder.data_remaining(), 256);
        decoder.skip_data(256);
        assert_eq!(decoder.decode(b"\r\n0\r\n\r\n").unwrap(), (7, ChunkEvent::End));
        assert!(decoder.is_done());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6)) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                write_chunk(chunk, &mut wire);
            }
            write_last_chunk([(b"a".as_slice(), b"b".as_slice())].into_iter(), &mut wire);
            let mut decoder = ChunkedDecoder::new();
            let mut body = Vec::new();
            let mut at = 0;
            while !decoder.is_done() {
                let (taken, event) = decoder.decode(&wire[at..]).unwrap();
                if let ChunkEvent::Data(range) = event {
                    body.extend_from_slice(&wire[at..][range]);
                }
                at += taken;
            }
            prop_assert_eq!(at, wire.len());
            prop_assert_eq!(body, chunks.concat());
            fuzz_chunked(&wire);
        }

        #[test]
        fn fuzz_on_generated_bodies(pieces in prop::collection::vec(
            prop::sample::select(vec!["5", "0", "a", "hello", "\r\n", "\r\n", "\n", "\r", ";", " ", "T: u", ":"]), 0..16)) {
            fuzz_chunked(pieces.concat().as_bytes());
        }
    }
}
