//! Frames: their headers, types, flags, settings and error codes (RFC 9113 4, 6 and 7).
//!
//! This module contains only what needs no state: the nine bytes of a header, the lengths and streams that each type
//! allows, and the writers of frames of a fixed form.

/// The bytes with which a client begins a connection.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame's header in bytes.
pub(super) const HEADER_LEN: usize = 9;

/// The largest window, and the largest stream identifier.
pub(super) const MAX_31: u32 = 0x7fff_ffff;

/// The initial window of connections and streams, and the initial maximum of a frame's payload, in bytes.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
pub(super) const DEFAULT_FRAME_SIZE: u32 = 16_384;

/// An error code of RST_STREAM and GOAWAY. A peer may send one that is not defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs)]
impl ErrorCode {
    pub const NO_ERROR: ErrorCode = ErrorCode(0);
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(1);
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(2);
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(3);
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(4);
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(5);
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(6);
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(7);
    pub const CANCEL: ErrorCode = ErrorCode(8);
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(9);
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(10);
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(11);
    pub const INADEQUATE_SECURITY: ErrorCode = ErrorCode(12);
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(13);
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Not defined by RFC 9113: the frame is ignored.
    Unknown,
}

impl Kind {
    fn of(byte: u8) -> Kind {
        match byte {
            0 => Kind::Data,
            1 => Kind::Headers,
            2 => Kind::Priority,
            3 => Kind::RstStream,
            4 => Kind::Settings,
            5 => Kind::PushPromise,
            6 => Kind::Ping,
            7 => Kind::GoAway,
            8 => Kind::WindowUpdate,
            9 => Kind::Continuation,
            _ => Kind::Unknown,
        }
    }
}

/// Flags of frames.
pub(super) mod flag {
    /// Of DATA and HEADERS: the sender's last frame of the stream.
    pub(crate) const END_STREAM: u8 = 0x1;
    /// Of SETTINGS and PING.
    pub(crate) const ACK: u8 = 0x1;
    /// Of HEADERS and CONTINUATION: the field block is complete.
    pub(crate) const END_HEADERS: u8 = 0x4;
    /// Of DATA and HEADERS.
    pub(crate) const PADDED: u8 = 0x8;
    /// Of HEADERS.
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings.
pub(super) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The length of the payload.
    pub(super) len: u32,
    pub(super) kind: Kind,
    pub(super) flags: u8,
    /// The stream, without the reserved bit; 0 is the connection.
    pub(super) stream: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER_LEN]) -> Header {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        Header {
            len: u32::from_be_bytes([0, a, b, c]),
            kind: Kind::of(kind),
            flags,
            stream: u32::from_be_bytes(stream) & MAX_31,
        }
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks the stream and the length that the type requires. PUSH_PROMISE is not allowed in either direction: this
    /// side switches it off as a client, and a client must not send it.
    pub(super) fn check(&self) -> Result<(), ErrorCode> {
        let on_connection = matches!(self.kind, Kind::Settings | Kind::Ping | Kind::GoAway);
        let on_either = matches!(self.kind, Kind::WindowUpdate | Kind::Unknown);
        if self.kind == Kind::PushPromise || !on_either && on_connection != (self.stream == 0) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let fits = match self.kind {
            Kind::Priority => self.len == 5,
            Kind::RstStream | Kind::WindowUpdate => self.len == 4,
            Kind::Settings => self.len.is_multiple_of(6) && (self.len == 0 || !self.has(flag::ACK)),
            Kind::Ping => self.len == 8,
            Kind::GoAway => self.len >= 8,
            _ => true,
        };
        if fits { Ok(()) } else { Err(ErrorCode::FRAME_SIZE_ERROR) }
    }
}

/// Appends a frame's header.
pub(super) fn write_header(out: &mut Vec<u8>, len: usize, kind: Kind, flags: u8, stream: u32) {
    debug_assert!(len < 1 << 24 && stream <= MAX_31 && kind != Kind::Unknown);
    let [_, a, b, c] = (len as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind as u8, flags, d, e, f, g]);
}

/// Writes the length of a frame whose header stands at `at` and which ends with `out`.
pub(super) fn patch_len(out: &mut [u8], at: usize) {
    let len = out.len() - at - HEADER_LEN;
    out[at..at + 3].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
}

pub(super) fn write_rst_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write_header(out, 4, Kind::RstStream, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(super) fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!((1..=MAX_31).contains(&increment));
    write_header(out, 4, Kind::WindowUpdate, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(super) fn write_goaway(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    write_header(out, 8, Kind::GoAway, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub(super) fn write_ping(out: &mut Vec<u8>, payload: [u8; 8], ack: bool) {
    write_header(out, 8, Kind::Ping, if ack { flag::ACK } else { 0 }, 0);
    out.extend_from_slice(&payload);
}

pub(super) fn write_setting(out: &mut Vec<u8>, id: u16, value: u32) {
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let mut out = Vec::new();
        write_header(&mut out, 0x01_02_03, Kind::Continuation, flag::END_HEADERS, 5);
        assert_eq!(out, [1, 2, 3, 9, 4, 0, 0, 0, 5]);
        let mut bytes: [u8; HEADER_LEN] = out.try_into().unwrap();
        bytes[5] |= 0x80;
        let header = Header { len: 0x01_02_03, kind: Kind::Continuation, flags: flag::END_HEADERS, stream: 5 };
        assert_eq!(Header::parse(&bytes), header, "the reserved bit is ignored");
    }

    #[test]
    fn streams_and_lengths_of_each_type() {
        let check = |kind, flags, len, stream| Header { len, kind, flags, stream }.check();
        let (protocol, size) = (Err(ErrorCode::PROTOCOL_ERROR), Err(ErrorCode::FRAME_SIZE_ERROR));
        for kind in [Kind::Data, Kind::Headers, Kind::Continuation] {
            assert_eq!(check(kind, 0, 0, 1), Ok(()));
            assert_eq!(check(kind, 0, 0, 0), protocol);
        }
        for (kind, len) in [(Kind::Priority, 5), (Kind::RstStream, 4), (Kind::WindowUpdate, 4)] {
            assert_eq!(check(kind, 0, len, 1), Ok(()));
            assert_eq!(check(kind, 0, len - 1, 1), size);
            assert_eq!(check(kind, 0, len + 1, 1), size);
        }
        assert_eq!(check(Kind::Priority, 0, 5, 0), protocol);
        assert_eq!(check(Kind::RstStream, 0, 4, 0), protocol);
        assert_eq!(check(Kind::WindowUpdate, 0, 4, 0), Ok(()));
        assert_eq!(check(Kind::Settings, 0, 12, 0), Ok(()));
        assert_eq!(check(Kind::Settings, 0, 12, 1), protocol);
        assert_eq!(check(Kind::Settings, 0, 11, 0), size);
        assert_eq!(check(Kind::Settings, flag::ACK, 6, 0), size);
        assert_eq!(check(Kind::Settings, flag::ACK, 0, 0), Ok(()));
        assert_eq!(check(Kind::Ping, 0, 8, 0), Ok(()));
        assert_eq!(check(Kind::Ping, 0, 8, 3), protocol);
        assert_eq!(check(Kind::Ping, 0, 7, 0), size);
        assert_eq!(check(Kind::GoAway, 0, 7, 0), size);
        assert_eq!(check(Kind::GoAway, 0, 80, 0), Ok(()));
        assert_eq!(check(Kind::GoAway, 0, 8, 1), protocol);
        assert_eq!(check(Kind::PushPromise, 0, 8, 1), protocol);
        assert_eq!(check(Kind::Unknown, 0xff, 80, 0), Ok(()));
        assert_eq!(check(Kind::Unknown, 0xff, 80, 7), Ok(()));
    }

    #[test]
    fn codes_have_names() {
        assert_eq!(ErrorCode::ENHANCE_YOUR_CALM.to_string(), "ENHANCE_YOUR_CALM");
        assert_eq!(ErrorCode(0x1f).to_string(), "error code 0x1f");
    }
}
