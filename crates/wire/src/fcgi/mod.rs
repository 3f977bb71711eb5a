//! FastCGI 1.0: records between a proxy and an application in the role of a responder.
//!
//! A record is a header of eight bytes, contents of up to 65,535 bytes and padding. `write` renders the records of the
//! proxy, which have no padding; `read` parses headers and contents of those of applications.
//!
//! **Limits:** contents are handed on as they come, so only records that are read as a whole, which are short, are
//! buffered.

mod read;
mod write;

pub use read::{EndRequest, Header, Values, end_request, fuzz_fcgi, header, values};
pub use write::{write_abort, write_begin, write_get_values, write_param, write_params, write_stdin};

/// The length of a record's header.
pub const HEADER: usize = 8;

/// The maximum length of a record's contents.
pub const CONTENT_MAX: usize = 0xffff;

/// The version of the protocol.
const VERSION: u8 = 1;

/// The types of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request begins.
    BeginRequest,
    /// A request is aborted.
    AbortRequest,
    /// A request is over.
    EndRequest,
    /// Parameters of a request.
    Params,
    /// The body of a request.
    Stdin,
    /// The response.
    Stdout,
    /// Messages of the application.
    Stderr,
    /// A question about the application.
    GetValues,
    /// The answer to it.
    GetValuesResult,
    /// The answer to a record of an unknown type.
    Unknown,
    /// Any other type.
    Other(u8),
}

impl Kind {
    /// Returns the type of a code.
    pub fn of(code: u8) -> Kind {
        match code {
            1 => Kind::BeginRequest,
            2 => Kind::AbortRequest,
            3 => Kind::EndRequest,
            4 => Kind::Params,
            5 => Kind::Stdin,
            6 => Kind::Stdout,
            7 => Kind::Stderr,
            9 => Kind::GetValues,
            10 => Kind::GetValuesResult,
            11 => Kind::Unknown,
            code => Kind::Other(code),
        }
    }

    /// Returns its code.
    pub fn code(self) -> u8 {
        match self {
            Kind::BeginRequest => 1,
            Kind::AbortRequest => 2,
            Kind::EndRequest => 3,
            Kind::Params => 4,
            Kind::Stdin => 5,
            Kind::Stdout => 6,
            Kind::Stderr => 7,
            Kind::GetValues => 9,
            Kind::GetValuesResult => 10,
            Kind::Unknown => 11,
            Kind::Other(code) => code,
        }
    }
}
