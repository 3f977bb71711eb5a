//! The interface of a protocol for the reactor: the bytes of the next request, and the end of a response.

/// The effect of a successful request on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An HTTP status.
    Status(u16),
    /// A RESP reply that is neither null nor an error.
    Value,
    /// A RESP null: the key is not there.
    Null,
    /// A RESP error reply.
    Error(String),
    /// A message that answers nothing (a RESP push): passed over.
    Unasked,
}

/// One whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// Bytes of its body.
    pub(super) body: u64,
    /// Whether the connection may carry more requests.
    pub(super) keep_alive: bool,
}

/// A protocol, as one thread speaks it.
pub(super) trait Protocol {
    /// The state of an incomplete answer.
    type Session: Default;

    /// Returns the bytes that every connection sends before its first request, and the number of answers to them.
    fn preamble(&self) -> (&[u8], u32);

    /// Appends the next request; gives the number of its command, below [`Protocol::commands`].
    fn write(&mut self, out: &mut Vec<u8>) -> u16;

    /// Reads on in what has arrived: bytes that are done with, and the answer if it is whole. At most one answer is
    /// taken; without one, all has been looked at and more bytes are needed. An error says what is wrong with the
    /// answer, after which the connection is of no use.
    fn read(&mut self, session: &mut Self::Session, buf: &[u8]) -> Result<(usize, Option<Answer>), String>;

    /// The peer has ended the connection: the answer that this completes.
    fn end(&mut self, session: &mut Self::Session) -> Option<Answer>;

    /// Part of an answer has been taken in.
    fn is_within(&self, session: &Self::Session) -> bool;

    /// Names of the commands; one where they are not told apart.
    fn commands(&self) -> Vec<String>;
}
