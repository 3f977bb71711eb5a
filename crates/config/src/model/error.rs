//! Replacements of the built-in error pages (`errorfile`, `errorloc`, `http-errors`).

use std::collections::BTreeMap;
use std::sync::Arc;

/// The pages of a proxy by the status that they stand for.
pub type ErrorPages = BTreeMap<u16, Arc<ErrorPage>>;

/// The replacement of a status's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorPage {
    /// An empty file: the connection is closed without an answer.
    Silent,
    /// A response of the configuration.
    Message(ErrorMessage),
    /// The response of the proxy's `http-error` line for this status.
    Reply,
}

/// A whole HTTP response, as a file gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMessage {
    /// Whether its version is HTTP/1.0.
    pub http_1_0: bool,
    /// The status that is sent, which need not be the one that it stands for.
    pub status: u16,
    /// Its reason phrase.
    pub reason: Vec<u8>,
    /// Fields in order, names in lower case, without `connection` and without a repeated `content-length`.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether it has a Content-Length; without one the connection's end is the body's.
    pub has_length: bool,
    /// Whether it has `connection: close`.
    pub close: bool,
    /// The body.
    pub body: Vec<u8>,
}
