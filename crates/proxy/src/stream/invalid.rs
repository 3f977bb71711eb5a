//! The last invalid message of each proxy (`show errors`).
//!
//! A frontend stores the last invalid request, a backend the last invalid response: the bytes present when the message
//! was refused, one buffer at most, their sender and the position of the error. The parser only reports the kind of
//! error, so the position is determined again when the message is captured, which never happens for a valid message.
//!
//! Limits: [`KEPT_MAX`] bytes per message, two messages per proxy.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use sluicegate_wire::http::{HeadError, is_token};

use crate::date::{Clock, append_date};

/// The maximum number of bytes of a message that are stored.
pub const KEPT_MAX: usize = 16_384;

/// The bytes at the start of HAProxy's buffers that describe a message.
const HEADER: usize = 48;
/// Columns of a line of the dump.
const WIDTH: usize = 70;

/// The error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The head.
    Head(HeadError),
    /// The framing of a chunked body.
    Chunk,
    /// A response that its request does not allow.
    Unexpected,
}

/// A message that could not be understood.
#[derive(Clone, Debug)]
pub struct Invalid {
    /// The time.
    pub at: SystemTime,
    /// The event's number in the process, from 0.
    pub event: u64,
    /// The frontend's name and number, for a response.
    pub frontend: Option<(Arc<str>, u32)>,
    /// The backend's name and number, for a request that got so far.
    pub backend: Option<(Arc<str>, u32)>,
    /// The server's name and number.
    pub server: Option<(Arc<str>, u32)>,
    /// The client.
    pub source: Option<SocketAddr>,
    /// The number of bytes of the message forwarded before these.
    pub passed: u64,
    /// Whether it is a request.
    pub request: bool,
    /// The captured bytes.
    pub data: Vec<u8>,
    /// The number of bytes present.
    pub len: usize,
    /// The position of the error.
    pub position: usize,
    /// HAProxy's name of the parser's state at that place, and its number.
    pub state: (&'static str, u32),
}

/// The last invalid message of a proxy.
#[derive(Debug, Default)]
pub struct LastInvalid(Mutex<Option<Box<Invalid>>>);

impl LastInvalid {
    /// Replaces the message before.
    pub fn set(&self, invalid: Invalid) {
        let before = self.0.lock().replace(Box::new(invalid));
        drop(before);
    }

    /// Returns a copy of the message.
    pub fn get(&self) -> Option<Box<Invalid>> {
        self.0.lock().clone()
    }
}

impl Invalid {
    /// Returns a message of these bytes, without the names of its sender and receiver yet.
    pub fn new(event: u64, at: SystemTime, data: &[u8], fault: Fault, request: bool) -> Invalid {
        let (position, state) = locate(data, fault, request);
        Invalid {
            at,
            event,
            frontend: None,
            backend: None,
            server: None,
            source: None,
            passed: 0,
            request,
            data: data[..data.len().min(KEPT_MAX)].to_vec(),
            len: data.len(),
            position,
            state,
        }
    }

    /// Appends the whole entry of `show errors`; `what` names the proxy and which message it was.
    pub fn describe(&self, what: &str, other: &str, bufsize: usize, out: &mut String) {
        let mut date = Vec::new();
        append_date(self.at, Clock::LocalMilliseconds, &mut date);
        let name = |named: &Option<(Arc<str>, u32)>| match named {
            Some((name, id)) => format!("{name} (#{id})"),
            None => "<NONE> (#-1)".to_owned(),
        };
        let side = if other == "frontend" { name(&self.frontend) } else { name(&self.backend) };
        let source = match self.source {
            Some(address) => format!("{}:{}", address.ip(), address.port()),
            None => "unix:1".to_owned(),
        };
        // The flags of a connection and of a stream are those that HAProxy usually has at this point.
        let (connection, stream): (u32, u32) = if self.request { (0, 0x810) } else { (0x8000_0000, 0x1_4810) };
        let framing = framing(&self.data[..self.position.min(self.data.len())], self.request);
        let length = framing.length;
        // Writing to a string can't fail.
        let _ = write!(
            out,
            " \n[{}] {what}\n  {other} {side}, server {}, event #{}, src {source}\n  buffer starts at {} (including 0 \
             out), {} free,\n  len {}, wraps at {}, error at position {}\n  H1 connection flags {:#010x}, H1 stream flags \
             {:#010x}\n  H1 msg state {}({}), H1 msg flags {:#010x}\n  H1 chunk len {length} bytes, H1 body len {length} \
             bytes :\n  \n",
            String::from_utf8_lossy(&date),
            name(&self.server),
            self.event,
            self.passed,
            bufsize.saturating_sub(self.len),
            self.len,
            bufsize.saturating_sub(HEADER),
            self.position,
            connection,
            stream,
            self.state.0,
            self.state.1,
            framing.flags,
        );
        dump(&self.data, out);
    }
}

/// Appends bytes as lines that start with their offset; a `+` after the offset marks the continuation of a broken line.
fn dump(data: &[u8], out: &mut String) {
    let mut at = 0;
    let mut fresh = true;
    while at < data.len() {
        let _ = write!(out, "  {at:05}{} ", if fresh { ' ' } else { '+' });
        let mut width = 0;
        fresh = false;
        while let Some(&byte) = data.get(at) {
            let mut hex = String::new();
            let text = match byte {
                b'\n' => "\\n",
                b'\r' => "\\r",
                b'\t' => "\\t",
                0x1b => "\\e",
                b'\\' => "\\\\",
                b' '..=b'~' => {
                    hex.push(byte as char);
                    &hex
                }
                _ => {
                    let _ = write!(hex, "\\x{byte:02X}");
                    &hex
                }
            };
            if width + text.len() > WIDTH {
                break;
            }
            out.push_str(text);
            width += text.len();
            at += 1;
            if byte == b'\n' {
                fresh = true;
                break;
            }
        }
        out.push('\n');
    }
}

/// Returns the position of the error, and HAProxy's parser state there.
fn locate(data: &[u8], fault: Fault, request: bool) -> (usize, (&'static str, u32)) {
    let Fault::Head(error) = fault else {
        return match fault {
            Fault::Chunk => (0, ("MSG_CHUNK_SIZE", 26)),
            _ => (0, ("MSG_RPVER", 10)),
        };
    };
    let first = data.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    let line_end = |from: usize| memchr::memchr(b'\n', &data[from..]).map_or(data.len(), |end| from + end);
    match error {
        HeadError::TargetTooLong => (data.len(), ("MSG_RQURI", 4)),
        HeadError::HostValue => (field(data, b"host"), ("MSG_HDR_L2_LWS", 24)),
        HeadError::StartLine | HeadError::Version | HeadError::Host if request => request_line(data, first),
        HeadError::StartLine | HeadError::Version | HeadError::Host => {
            let (end, state) = status_line(&data[first..]);
            (first + end, state)
        }
        HeadError::TooLarge | HeadError::TooManyFields => (data.len(), ("MSG_HDR_NAME", 17)),
        HeadError::FieldName | HeadError::FieldValue => {
            let mut at = line_end(first) + 1;
            while at < data.len() {
                let end = line_end(at);
                let line = &data[at..end];
                let name = line.iter().position(|byte| !is_token(&[*byte])).unwrap_or(line.len());
                let ends_head = matches!(line, [] | [b'\r']);
                if !ends_head && (name == 0 || line.get(name) != Some(&b':')) {
                    return (at + name, ("MSG_HDR_NAME", 17));
                }
                let bare = |at: usize| line[at] == 0 || (line[at] == b'\r' && at + 1 < line.len());
                if let Some(bad) = (0..line.len()).find(|at| bare(*at)) {
                    return (at + bad, ("MSG_HDR_VAL", 22));
                }
                at = end + 1;
            }
            (data.len(), ("MSG_HDR_NAME", 17))
        }
        HeadError::ContentLength => (field(data, b"content-length"), ("MSG_HDR_L2_LWS", 24)),
        HeadError::TransferEncoding | HeadError::UnknownTransferCoding => {
            (field(data, b"transfer-encoding"), ("MSG_HDR_L2_LWS", 24))
        }
        HeadError::BodyNotAllowed | HeadError::WebSocketKey => (0, ("MSG_LAST_LF", 25)),
    }
}

fn status_line(line: &[u8]) -> (usize, (&'static str, u32)) {
    let version = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'/' | b'.');
    let end = |from: usize, is: &dyn Fn(&u8) -> bool| {
        line[from..].iter().position(|byte| !is(byte)).map_or(line.len(), |end| from + end)
    };
    let blank = end(0, &version);
    if line.get(blank) != Some(&b' ') || !line.starts_with(b"HTTP/1.") {
        return (blank, ("MSG_RPVER", 10));
    }
    let code = end(blank, &|byte| *byte == b' ');
    match end(code, &u8::is_ascii_digit) {
        after if after == code => (code, ("MSG_RPVER_SP", 11)),
        after => (after, ("MSG_RPCODE", 12)),
    }
}

/// The state of HAProxy's parser after the bytes of a head that it has read.
#[derive(Debug, PartialEq, Eq)]
struct Framing {
    /// Its flags of the message.
    flags: u32,
    /// The length of the body.
    length: u64,
}

fn framing(head: &[u8], request: bool) -> Framing {
    const CONTENT_LENGTH: u32 = 0x1;
    const CHUNKED: u32 = 0x1_0002;
    const RESPONSE: u32 = 0x4;
    const VERSION_1_1: u32 = 0x10;
    const CLOSE: u32 = 0x20;
    const KEEP_ALIVE: u32 = 0x40;
    const UPGRADE: u32 = 0x80;
    const TRANSFER_ENCODING: u32 = 0x200;
    /// How HAProxy reads messages.
    const ALWAYS: u32 = 0x1400;
    let mut framing = Framing { flags: if request { ALWAYS } else { ALWAYS | RESPONSE }, length: 0 };
    let first = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    let Some(head) = head.get(first..) else { return framing };
    let whole = memchr::memchr(b'\n', head).map_or(0, |end| end + 1);
    let line = head[..whole].trim_ascii_end();
    if line.ends_with(b" HTTP/1.1") || (!request && head.starts_with(b"HTTP/1.1 ")) {
        framing.flags |= VERSION_1_1;
    }
    let mut rest = &head[whole..];
    while let Some(end) = memchr::memchr(b'\n', rest).filter(|_| whole > 0) {
        let field = &rest[..end];
        rest = &rest[end + 1..];
        let Some(colon) = memchr::memchr(b':', field) else { continue };
        let (name, value) = (&field[..colon], field[colon + 1..].trim_ascii());
        let words = || value.split(|byte| *byte == b',').map(|word| word.trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            framing.flags |= CONTENT_LENGTH;
            framing.length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            framing.flags |= TRANSFER_ENCODING;
            if words().any(|word| word.eq_ignore_ascii_case(b"chunked")) {
                framing.flags |= CHUNKED;
            }
        } else if name.eq_ignore_ascii_case(b"connection") {
            for (word, flag) in [(&b"close"[..], CLOSE), (b"keep-alive", KEEP_ALIVE), (b"upgrade", UPGRADE)] {
                if words().any(|found| found.eq_ignore_ascii_case(word)) {
                    framing.flags |= flag;
                }
            }
        }
    }
    framing
}

fn request_line(data: &[u8], first: usize) -> (usize, (&'static str, u32)) {
    let line = &data[first..];
    let method = line.iter().position(|byte| !is_token(&[*byte])).unwrap_or(line.len());
    if line.get(method) != Some(&b' ') {
        return (first + method, ("MSG_RQMETH", 3));
    }
    let target = &line[method + 1..];
    match target.iter().position(|byte| !matches!(byte, b'!'..=b'~')) {
        Some(end) if target[end] == b' ' => (first + method + 1 + end + 1, ("MSG_RQVER", 6)),
        Some(end) => (first + method + 1 + end, ("MSG_RQURI", 4)),
        None => (data.len(), ("MSG_RQURI", 4)),
    }
}

/// Returns the start of the value of the last field of this name; 0 if there is none.
fn field(data: &[u8], name: &[u8]) -> usize {
    let mut found = 0;
    let mut at = 0;
    while let Some(end) = memchr::memchr(b'\n', &data[at..]) {
        let line = &data[at..at + end];
        if line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name) && line[name.len()] == b':' {
            let value = line[name.len() + 1..].iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(0);
            found = at + name.len() + 1 + value;
        }
        at += end + 1;
    }
    found
}

/// Fuzz target: for any bytes and any fault, the position is within the bytes, and the dump ends every line.
pub fn fuzz_invalid(data: &[u8]) {
    let errors = [
        HeadError::StartLine,
        HeadError::Version,
        HeadError::FieldName,
        HeadError::FieldValue,
        HeadError::ContentLength,
        HeadError::TransferEncoding,
        HeadError::UnknownTransferCoding,
        HeadError::Host,
        HeadError::BodyNotAllowed,
        HeadError::WebSocketKey,
        HeadError::HostValue,
        HeadError::TooLarge,
        HeadError::TargetTooLong,
        HeadError::TooManyFields,
    ];
    let faults = errors.into_iter().map(Fault::Head).chain([Fault::Chunk, Fault::Unexpected]);
    for fault in faults {
        for request in [true, false] {
            let invalid = Invalid::new(0, SystemTime::UNIX_EPOCH, data, fault, request);
            assert!(invalid.position <= data.len() + 9, "{fault:?} at {}", invalid.position);
        }
    }
    let mut out = String::new();
    dump(data, &mut out);
    assert!(out.is_empty() || out.ends_with('\n'));
    assert!(out.lines().all(|line| line.len() <= WIDTH + 16));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_located_and_dumped(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz_invalid(&data);
        }

        #[test]
        fn near_heads_are_located_and_dumped(
            data in "(GET|HTTP/1.1|NONSENSE|/|:| |\r\n|\n|Content-Length|Transfer-Encoding|[ -~]|\t|\x00|\r){0,60}"
        ) {
            fuzz_invalid(data.as_bytes());
        }
    }

    /// The positions that Debian's haproxy gives.
    #[test]
    fn positions_are_haproxys() {
        for (text, error, request, position, state) in [
            ("NONSENSE\r\n\r\n", HeadError::StartLine, true, 8, "MSG_RQMETH"),
            ("GET /x HTTP/1.1\r\nHost: h\r\nBad Name: v\r\n\r\n", HeadError::FieldName, true, 29, "MSG_HDR_NAME"),
            (
                "GET /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5x\r\n\r\n",
                HeadError::ContentLength,
                true,
                42,
                "MSG_HDR_L2_LWS",
            ),
            ("GET /x\\y\x1b HTTP/1.1\r\nHost: h\r\n\r\n", HeadError::StartLine, true, 8, "MSG_RQURI"),
            ("HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n", HeadError::FieldName, false, 20, "MSG_HDR_NAME"),
            ("HTTP/1.1 2x0 OK\r\n\r\n", HeadError::StartLine, false, 10, "MSG_RPCODE"),
            ("HTTP/1.1 200OK\r\n\r\n", HeadError::StartLine, false, 12, "MSG_RPCODE"),
            ("HTTP/1.1 \r\n\r\n", HeadError::StartLine, false, 9, "MSG_RPVER_SP"),
            ("HTTP/1.1\r\n\r\n", HeadError::StartLine, false, 8, "MSG_RPVER"),
            ("HTTP/1.x 200 OK\r\n\r\n", HeadError::StartLine, false, 7, "MSG_RPVER"),
        ] {
            let (found, name) = locate(text.as_bytes(), Fault::Head(error), request);
            assert_eq!((found, name.0), (position, state), "{text:?}");
        }
    }

    /// The flags that 3.2.0 gives.
    #[test]
    fn flags_of_messages_are_haproxys() {
        for (text, request, flags, length) in [
            ("GET /a", true, 0x1400, 0),
            ("GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: ", true, 0x1410, 0),
            ("POST /a HTTP/1.1\r\nContent-Length: 5\r\nConnection: close\r\nBad", true, 0x1431, 5),
            (
                "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nUpgrade: x\r\nConnection: close, upgrade\r\nBad",
                true,
                0x0001_16b2,
                0,
            ),
            ("HTTP/1.1 2", false, 0x1414, 0),
            ("HTTP/1.1", false, 0x1404, 0),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\nBad", false, 0x1435, 5),
        ] {
            assert_eq!(framing(text.as_bytes(), request), Framing { flags, length }, "{text:?}");
        }
    }

    #[test]
    fn dumps_break_where_haproxy_breaks_them() {
        let mut out = String::new();
        let long = format!("Long: {}\r\nTab\t: \x01\x1b\\ \r\n", "a".repeat(132));
        dump(long.as_bytes(), &mut out);
        let expected = format!(
            "  00000  Long: {}\n  00070+ {}\\r\n  00139+ \\n\n  00140  Tab\\t: \\x01\\e\\\\ \\r\\n\n",
            "a".repeat(64),
            "a".repeat(68)
        );
        assert_eq!(out, expected);
    }
}
