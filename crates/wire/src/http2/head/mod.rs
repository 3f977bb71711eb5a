//! Message heads: their validation, and the conversion between a [`Message`](crate::http::Message) and HTTP/2's fields.
//!
//! The rules are HAProxy's (`h2.c`), because the server that receives a request must interpret it as this proxy does.
//! The fixes of later releases are included: `:protocol` is only allowed in CONNECT, and a body must have the announced
//! length.

mod read;
mod write;

pub(super) use read::{Answered, Rules, read_request, read_response, read_trailers, skip};
pub use write::{Unsendable, asks_for_tunnel};
pub(super) use write::{Written, write_request, write_response, write_trailers};

/// The reason for refusing a head, which ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A name that is empty, has capital letters or is no token.
    FieldName,
    /// NUL, CR or LF in a value.
    FieldValue,
    /// A pseudo-header field that is unknown, repeated, misplaced or not allowed in this kind of message.
    PseudoField,
    /// A required pseudo-header field is missing.
    Missing,
    /// A method that is empty.
    Method,
    /// A path that is empty, does not start with `/`, or has control characters, spaces or `#`.
    Path,
    /// An authority or Host with bytes that would turn it into another target.
    Authority,
    /// A status that is not three digits, or is not allowed.
    Status,
    /// A Content-Length that is not a single number, or not the length of the body.
    Length,
    /// A field that controls the connection.
    Connection,
    /// A field that trailers can't have.
    Trailer,
    /// An extended CONNECT to HTTP/2 itself, or with a value that does not name exactly one protocol.
    Protocol,
    /// A head that ends the stream although more must follow, or trailers that do not end it.
    End,
    /// More bytes or fields than allowed.
    TooLarge,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Malformed::FieldName => "invalid character in a header name",
            Malformed::FieldValue => "invalid character in a header value",
            Malformed::PseudoField => "invalid pseudo-header field",
            Malformed::Missing => "missing pseudo-header field",
            Malformed::Method => "empty method",
            Malformed::Path => "invalid path",
            Malformed::Authority => "invalid authority",
            Malformed::Status => "invalid status",
            Malformed::Length => "Content-Length does not match",
            Malformed::Connection => "connection-specific field",
            Malformed::Trailer => "field not allowed in trailers",
            Malformed::Protocol => "invalid protocol of an extended CONNECT",
            Malformed::End => "misplaced end of stream",
            Malformed::TooLarge => "head too large",
        })
    }
}
