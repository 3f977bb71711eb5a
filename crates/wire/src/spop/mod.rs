//! SPOP, the protocol between a proxy and its agents (HAProxy's SPOE.txt, section 3), version 2.0.
//!
//! A frame is its length, its type, flags, a stream's and a frame's number, and a payload. `write` renders the frames
//! of the proxy, `read` parses those of agents. Payloads are never in several frames: fragmentation is no part of the
//! protocol any more.
//!
//! **Limits:** a frame is at most as long as both sides have agreed, and is parsed only once it is complete; an agent's
//! list of actions is read one by one.

mod read;
mod varint;
mod write;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use read::{Action, Actions, AgentHello, Frame, Scope, fuzz_spop, read};
pub use write::{Greeting, Messages, write_disconnect, write_hello, write_notify};

/// The version of the protocol.
pub const VERSION: &str = "2.0";

/// The minimum of the maximum length of a frame.
pub const FRAME_MIN: usize = 256;

/// A typed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer of 32 bits.
    Int32(i32),
    /// An unsigned integer of 32 bits.
    Uint32(u32),
    /// A signed integer of 64 bits.
    Int64(i64),
    /// An unsigned integer of 64 bits.
    Uint64(u64),
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// An IPv6 address.
    Ipv6(Ipv6Addr),
    /// Text.
    Str(&'a [u8]),
    /// Bytes.
    Bin(&'a [u8]),
}

/// The status of a connection or of an exchange, as both sides tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No error.
    None,
    /// An error of the connection.
    Io,
    /// A timeout.
    Timeout,
    /// A frame that is too big.
    TooBig,
    /// A malformed frame.
    Invalid,
    /// No version in a hello.
    NoVersion,
    /// No maximum length in a hello.
    NoFrameSize,
    /// No capabilities in a hello.
    NoCapabilities,
    /// Another version.
    BadVersion,
    /// A maximum length that is too big or too small.
    BadFrameSize,
    /// Fragments.
    Fragmented,
    /// Interlaced frames.
    Interlaced,
    /// A frame's number that is not known.
    UnknownFrame,
    /// No resources.
    Resources,
    /// Any other error.
    Unknown,
}

impl Status {
    const ALL: [(Status, u32, &'static str); 15] = [
        (Status::None, 0, "normal"),
        (Status::Io, 1, "I/O error"),
        (Status::Timeout, 2, "a timeout occurred"),
        (Status::TooBig, 3, "frame is too big"),
        (Status::Invalid, 4, "invalid frame received"),
        (Status::NoVersion, 5, "version value not found"),
        (Status::NoFrameSize, 6, "max-frame-size value not found"),
        (Status::NoCapabilities, 7, "capabilities value not found"),
        (Status::BadVersion, 8, "unsupported version"),
        (Status::BadFrameSize, 9, "max-frame-size too big or too small"),
        (Status::Fragmented, 10, "fragmentation not supported"),
        (Status::Interlaced, 11, "invalid interlaced frames"),
        (Status::UnknownFrame, 12, "frame-id not found"),
        (Status::Resources, 13, "resource allocation error"),
        (Status::Unknown, 99, "an unknown error occurred"),
    ];

    fn row(self) -> (u32, &'static str) {
        let row = Status::ALL.iter().find(|(status, ..)| *status == self);
        row.map_or((99, ""), |(_, code, text)| (*code, text))
    }

    /// Returns its number.
    pub fn code(self) -> u32 {
        self.row().0
    }

    /// Returns its description.
    pub fn text(self) -> &'static str {
        self.row().1
    }

    /// Returns the status of a number.
    pub fn of(code: u64) -> Status {
        let row = Status::ALL.iter().find(|(_, known, _)| u64::from(*known) == code);
        row.map_or(Status::Unknown, |(status, ..)| *status)
    }
}

/// Types of frames.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const NOTIFY: u8 = 3;
    pub(super) const AGENT_HELLO: u8 = 101;
    pub(super) const AGENT_DISCONNECT: u8 = 102;
    pub(super) const ACK: u8 = 103;
}

/// Flags of frames: the payload is complete; the exchange was cancelled.
const FINAL: u32 = 1;
const ABORT: u32 = 2;

/// Types of values.
mod types {
    pub(super) const NULL: u8 = 0;
    pub(super) const BOOL: u8 = 1;
    pub(super) const INT32: u8 = 2;
    pub(super) const UINT32: u8 = 3;
    pub(super) const INT64: u8 = 4;
    pub(super) const UINT64: u8 = 5;
    pub(super) const IPV4: u8 = 6;
    pub(super) const IPV6: u8 = 7;
    pub(super) const STR: u8 = 8;
    pub(super) const BIN: u8 = 9;
    /// The flag of a boolean that is true.
    pub(super) const TRUE: u8 = 0x10;
    pub(super) const MASK: u8 = 0x0f;
}
