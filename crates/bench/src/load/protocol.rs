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
    /// The request has failed without a response; the connection continues (HTTP/2).
    Failed(StreamFault, String),
}

impl Outcome {
    /// Returns whether the response is an error of the server or says that the request is one: an HTTP status from 400 on, a
    /// RESP error reply.
    pub(super) fn is_error(&self) -> bool {
        matches!(self, Outcome::Status(400..) | Outcome::Error(_))
    }
}

/// The reason why one of several concurrent requests of a connection gets no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFault {
    /// The peer has reset its stream.
    Reset,
    /// The response is malformed.
    Malformed,
    /// The peer will close the connection and does not process the request.
    Unprocessed,
}

/// One complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The tag of its request; requests without a tag are answered in their order.
    pub(super) tag: u32,
    pub(super) outcome: Outcome,
    /// The size of its body in bytes.
    pub(super) body: u64,
    /// Whether the connection may carry more requests.
    pub(super) keep_alive: bool,
}

/// A request that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The index of its command in [`Protocol::commands`].
    pub(super) command: u16,
    /// Identifies its answer among those of the connection; larger than the tags before. 0: answers come in the order of
    /// the requests.
    pub(super) tag: u32,
}

/// A protocol with its state; each thread has its own instance.
pub(super) trait Protocol {
    /// The state of a connection: of an incomplete response, or of its streams.
    type Session: Default;

    /// Whether the requests of a connection are independent: one may fail without the others.
    const MULTIPLEXED: bool = false;

    /// Returns the state of a connection that replaces one with this state.
    fn renewed(&self, _: &mut Self::Session) -> Self::Session {
        Self::Session::default()
    }

    /// Appends the bytes that every connection sends before its first request. Returns the number of answers to wait for.
    fn start(&self, session: &mut Self::Session, out: &mut Vec<u8>) -> u32;

    /// Appends the next request of a connection, which is the thread's `client`-th. Called only while
    /// [`Protocol::has_room`].
    fn write(&mut self, session: &mut Self::Session, client: usize, out: &mut Vec<u8>) -> Written;

    /// Parses received bytes. Returns the number of bytes consumed, and the response if it is complete. At most one
    /// response is consumed; if none is returned, all bytes have been examined and more are needed. A protocol that is
    /// multiplexed may have further responses without further bytes, and appends what the peer has to be told. An
    /// error describes a malformed response, after which the connection must not be used.
    fn read(
        &mut self,
        session: &mut Self::Session,
        buf: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Answer>), String>;

    /// Called when the peer has closed the connection. Returns the response that the close completes, if any.
    fn end(&mut self, session: &mut Self::Session) -> Option<Answer>;

    /// Returns whether a part of a response has been consumed.
    fn is_within(&self, session: &Self::Session) -> bool;

    /// Returns whether the peer accepts another request on the connection now.
    fn has_room(&self, _: &Self::Session) -> bool {
        true
    }

    /// Returns whether the peer accepts no other request on the connection at all.
    fn is_over(&self, _: &Self::Session) -> bool {
        false
    }

    /// Gives up the request with this tag, and appends what tells the peer.
    fn cancel(&mut self, _: &mut Self::Session, _tag: u32, _: &mut Vec<u8>) {}

    /// Returns the names of the commands; a single name if the protocol does not distinguish them.
    fn commands(&self) -> Vec<String>;

    /// Returns a condition that limits the validity of the figures.
    fn warning(&self) -> Option<String> {
        None
    }
}
