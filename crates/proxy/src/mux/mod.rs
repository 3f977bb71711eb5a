//! The interface between connections and streams: [`Front`] towards a client, [`Back`] towards a server.
//!
//! A stream's driver works on messages: it reads a body as events ([`Body`]), sends heads, data and trailers, waits for
//! room, and ends or resets its side. Sockets, buffers and framing belong to the implementation of each protocol. Both
//! ends are enums and not trait objects, because a driver calls them several times for each message; the branch is well
//! predicted.
//!
//! HTTP/1 ([`h1`]) has one stream of a connection at a time, so its ends are the connections. A body without a filter
//! between two of them is not read as events: its bytes are written from the buffer that they were read into, or pass
//! from socket to socket through a pipe ([`h1::relay`]). Every other pair uses the events. An implementation in memory
//! proves in tests that no driver depends on HTTP/1: it has concurrent streams, flow control and resets.
//!
//! **Invariant:** only this module accesses the socket, the input buffer and the timer of a client's connection, and
//! the socket and the input buffer of a connection to a server.

mod back;
pub(crate) mod fcgi;
mod front;
pub(crate) mod h1;
pub(crate) mod h2;
#[cfg(test)]
pub(crate) mod memory;
mod peek;
mod received;
#[cfg(test)]
mod tests;

use std::task::{Context, Poll};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{BodyDecoder, BodyEvent, ConnectionField, Framing, Message, NameCases};

pub(crate) use back::{Back, HeadError, Sent};
pub(crate) use front::Front;
pub(crate) use peek::Peek;

/// An event of a body that is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Bytes of data, which are in [`End::data`] until they are consumed.
    Data(usize),
    /// Fields behind the data, in [`End::trailers`].
    Trailers,
    /// The message is complete.
    End,
}

/// The event for which a flow waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Bytes from its source.
    Source,
    /// Room at its sink.
    Sink,
    /// The time at which a filter lets data pass.
    Filter,
    /// A script, whose filter is to be called with the stream's context.
    Script,
    /// Nothing: everything was written.
    Done,
}

/// The reason why a flow ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowError {
    /// The source closed before the body was complete.
    Closed,
    /// The source failed.
    Source,
    /// The sink failed.
    Sink,
    /// The source's framing is malformed.
    Malformed,
    /// A filter refused the body.
    Filter,
}

/// Bytes that moved during polls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Read from the source.
    pub(crate) read: usize,
    /// Body data found in the input, trailers, and a byte for the end of a chunked body, as HAProxy counts them.
    pub(crate) body: usize,
    /// Written to the sink.
    pub(crate) written: usize,
    /// The part of what was read that went from the source's socket into a pipe.
    pub(crate) spliced_in: usize,
    /// The part of what was written that went from a pipe into the sink's socket.
    pub(crate) spliced_out: usize,
}

impl Moved {
    pub(crate) fn count(&mut self, event: &BodyEvent, decoder: &BodyDecoder) {
        match event {
            BodyEvent::End => {
                if let BodyDecoder::Chunked(decoder) = decoder {
                    self.body += decoder.trailers().map(|(name, value)| name.len() + value.len()).sum::<usize>() + 1;
                }
            }
            BodyEvent::More => {}
            BodyEvent::Data(range) => self.body += range.len(),
        }
    }
}

/// The protocol's part of a head that is sent.
#[derive(Clone, Copy)]
pub(crate) struct HeadForm<'a> {
    /// The framing of the body that follows, where the protocol frames bodies by their heads.
    pub(crate) framing: Framing,
    /// The announced fate of the connection, in protocols that have it.
    pub(crate) connection: ConnectionField,
    /// The case of names, where the protocol has any.
    pub(crate) names: Option<&'a NameCases>,
}

/// One end of a stream: the source of one message and the sink of the other.
pub(crate) trait End {
    /// Returns the parts of an end that speaks HTTP/1.
    fn h1(&mut self) -> Option<h1::Wire<'_>>;

    /// Returns the next event of the received part of the body; `None`: more must be received first.
    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError>;

    /// Returns the data of the last event, as far as it was not consumed.
    fn data(&self) -> &[u8];

    /// Consumes data, which gives its sender credit.
    fn consume(&mut self, count: usize);

    /// Returns the trailers of the body that has ended, once.
    fn trailers(&mut self) -> Message;

    /// Receives more of the body.
    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>>;

    /// Gives the memory of an empty buffer back to the pool.
    fn rest(&mut self, pool: &BufferPool);

    /// Returns whether more data may be sent before what was sent is written.
    fn has_room(&self, pool: &BufferPool) -> bool;

    /// Appends data to what is to be written.
    fn send_data(&mut self, data: &[u8]);

    /// Appends the end of the message, with these trailers.
    fn send_end(&mut self, trailers: Option<&Message>);

    /// Writes what is to be written; ready when all of it is.
    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>>;
}
