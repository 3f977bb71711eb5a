//! The protocol interface that the reactor uses: it encodes the next request and finds the end of a response.

/// The kind of a received response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An HTTP status.
    Status(u16),
    /// A RESP reply that is neither null nor an error.
    Value,
    /// A RESP null: the key does not exist.
    Null,
    /// A RESP error reply.
    Error(String),
    /// A message that is not a response to a request (a RESP push); it is only counted.
    Unasked,
}

/// One complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// The size of its body in bytes.
    pub(super) body: u64,
    /// Whether the connection may carry more requests.
    pub(super) keep_alive: bool,
}

/// A protocol with its state; each thread has its own instance.
pub(super) trait Protocol {
    /// The parser's state of an incomplete response.
    type Session: Default;

    /// Returns the bytes that every connection sends before its first request, and the number of answers to them.
    fn preamble(&self) -> (&[u8], u32);

    /// Appends the next request and returns the index of its command in [`Protocol::commands`].
    fn write(&mut self, out: &mut Vec<u8>) -> u16;

    /// Parses received bytes. Returns the number of bytes consumed, and the response if it is complete. At most one
    /// response is consumed; if none is returned, all bytes have been examined and more are needed. An error describes
    /// a malformed response, after which the connection must not be used.
    fn read(&mut self, session: &mut Self::Session, buf: &[u8]) -> Result<(usize, Option<Answer>), String>;

    /// Called when the peer has closed the connection. Returns the response that the close completes, if any.
    fn end(&mut self, session: &mut Self::Session) -> Option<Answer>;

    /// Returns whether a part of a response has been consumed.
    fn is_within(&self, session: &Self::Session) -> bool;

    /// Returns the names of the commands; a single name if the protocol does not distinguish them.
    fn commands(&self) -> Vec<String>;
}
