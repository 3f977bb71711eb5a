//! A stream's end towards a server.

use std::io;
use std::task::{Context, Poll};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{self, Framing, Limits, Message, Method, ResponseHead};

use super::{Body, End, FlowError, HeadForm, Moved, Peek, fcgi, h1, h2};
use crate::server::{Lease, Link, ServerConnection, StreamFacts};
use crate::stream::Content;

/// The reason why a server's head is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// The data is not a head.
    Invalid(http::HeadError),
    /// The server's frames are not a response.
    Malformed,
    /// The server closed or broke the connection, or reset the stream.
    Gone,
}

/// What was sent of a request, for an attempt on another connection, or memory for the next one.
#[derive(Debug)]
pub(crate) enum Sent {
    H1(h1::Writer),
    H2(Box<h2::Sent>),
    Fcgi(Box<fcgi::Sent>),
}

impl Sent {
    /// Returns the state before anything is sent, with this memory.
    pub(crate) fn new(memory: Vec<u8>) -> Sent {
        Sent::H1(h1::Writer::new(memory))
    }

    /// Returns the memory, to be used again.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        match self {
            Sent::H1(writer) => writer.into_memory(),
            Sent::H2(sent) => sent.into_memory(),
            Sent::Fcgi(sent) => sent.into_memory(),
        }
    }
}

/// A stream's end towards a server: for HTTP/1, and for plain bytes, the connection itself.
// The usual end is in place, because a request of HTTP/1 allocates none.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Back {
    H1(h1::Back),
    H2(Box<h2::Back>),
    Fcgi(Box<fcgi::Back>),
}

/// Calls the same function of the end that there is.
macro_rules! each {
    ($self:ident, $end:ident => $call:expr) => {
        match $self {
            Back::H1($end) => $call,
            Back::H2($end) => $call,
            Back::Fcgi($end) => $call,
        }
    };
}

impl Back {
    /// Returns the end for a connection assigned to a stream. `sent` contains the memory for the output, or the request
    /// sent on an earlier connection, which may have had the other protocol.
    pub(crate) fn new(connection: ServerConnection, sent: Sent) -> Back {
        let ServerConnection { link, lease } = connection;
        match (link, sent) {
            (Link::Own(socket), Sent::H1(writer)) => Back::H1(h1::Back::new(socket, lease, writer)),
            (Link::Own(socket), Sent::H2(sent)) => Back::H1(h1::Back::new(socket, lease, sent.into_writer())),
            (Link::Stream(stream), Sent::H2(sent)) => Back::H2(Box::new(h2::Back::new(stream, lease, sent))),
            (Link::Stream(stream), Sent::H1(writer)) => {
                Back::H2(Box::new(h2::Back::new(stream, lease, Box::new(h2::Sent::of_writer(writer)))))
            }
            (Link::Own(socket), Sent::Fcgi(sent)) => Back::H1(h1::Back::behind_head(socket, lease, sent.into_body())),
            (Link::Stream(stream), Sent::Fcgi(sent)) => {
                Back::H2(Box::new(h2::Back::new(stream, lease, Box::new(sent.into_http2()))))
            }
            (Link::Application(stream), Sent::Fcgi(sent)) => Back::Fcgi(Box::new(fcgi::Back::new(stream, lease, sent))),
            (Link::Application(stream), Sent::H2(sent)) => {
                Back::Fcgi(Box::new(fcgi::Back::new(stream, lease, Box::new(fcgi::Sent::of_http(*sent)))))
            }
            (Link::Application(stream), Sent::H1(writer)) => {
                let sent = fcgi::Sent::of_http(h2::Sent::of_writer(writer));
                Back::Fcgi(Box::new(fcgi::Back::new(stream, lease, Box::new(sent))))
            }
            (Link::Agent(_), _) => unreachable!("only exchanges with agents are assigned their connections"),
        }
    }

    /// Returns the server and the history of the connection.
    pub(crate) fn connection(&self) -> &Lease {
        each!(self, end => end.connection())
    }

    /// Takes the end apart: returns the connection, and what was sent on it, which a retry sends again, or whose memory
    /// another stream reuses.
    pub(crate) fn take_apart(self, pool: &BufferPool) -> (ServerConnection, Sent) {
        match self {
            Back::H1(end) => {
                let (socket, lease, writer) = end.take_apart(pool);
                (ServerConnection { link: Link::Own(socket), lease }, Sent::H1(writer))
            }
            Back::H2(end) => {
                let (stream, lease, sent) = end.take_apart();
                (ServerConnection { link: Link::Stream(stream), lease }, Sent::H2(sent))
            }
            Back::Fcgi(end) => {
                let (stream, lease, sent) = end.take_apart(pool);
                (ServerConnection { link: Link::Application(stream), lease }, Sent::Fcgi(sent))
            }
        }
    }

    /// Prepares to send everything again, to another connection; returns `false` if some of the data is no longer
    /// stored.
    pub(crate) fn replay(&mut self) -> bool {
        each!(self, end => end.replay())
    }

    /// Returns whether nothing was sent yet, on this connection or an earlier one.
    pub(crate) fn is_fresh(&self) -> bool {
        match self {
            Back::H1(end) => h1::Wired::writer(end).is_fresh(),
            Back::H2(end) => end.is_fresh(),
            Back::Fcgi(end) => end.is_fresh(),
        }
    }

    /// Returns whether the server has certainly not processed the request, so that it may be repeated whatever it is.
    pub(crate) fn is_unprocessed(&self) -> bool {
        match self {
            Back::H1(_) => false,
            Back::H2(end) => end.is_unprocessed(),
            Back::Fcgi(end) => end.is_unprocessed(),
        }
    }

    /// Returns whether something of the request may have reached the server.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            Back::H1(_) => true,
            Back::H2(end) => end.has_begun(),
            Back::Fcgi(_) => true,
        }
    }

    /// Returns whether the whole connection ended where no response came, and not one of its streams.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Back::H1(_) => true,
            Back::H2(end) => end.is_over(),
            Back::Fcgi(end) => end.is_over(),
        }
    }

    /// Returns what fetches report of a stream of HTTP/2.
    pub(crate) fn http2_facts(&self) -> Option<StreamFacts> {
        match self {
            Back::H1(_) | Back::Fcgi(_) => None,
            Back::H2(end) => Some(end.facts()),
        }
    }

    /// Returns the end towards an application.
    pub(crate) fn application(&mut self) -> Option<&mut fcgi::Back> {
        match self {
            Back::Fcgi(end) => Some(end),
            Back::H1(_) | Back::H2(_) => None,
        }
    }

    /// Returns the framing in which [`Back::input`] has a body of this framing.
    pub(crate) fn framing_of_input(&self, framing: Framing) -> Framing {
        match self {
            Back::H1(_) => framing,
            Back::H2(_) if framing == Framing::None => framing,
            Back::H2(_) => Framing::UntilClose,
            Back::Fcgi(end) => end.framing(),
        }
    }

    /// Sends a request's head; its body follows. `last` is a field after all others.
    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>, last: Option<(&[u8], &[u8])>) {
        match self {
            Back::H1(end) => end.send_head(head, form, last),
            Back::H2(end) => end.send_head(head, form, last),
            // It gets parameters: see `application`.
            Back::Fcgi(_) => {}
        }
    }

    /// Receives a response's head to a request of this method.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        pool: &BufferPool,
        limits: &Limits,
        method: Method,
        response: &mut Message,
    ) -> Poll<Result<ResponseHead, HeadError>> {
        match self {
            Back::H1(end) => end.poll_head(cx, pool, limits, method, response),
            Back::H2(end) => end.poll_head(cx, response),
            Back::Fcgi(end) => end.poll_head(cx, pool, limits, method, response),
        }
    }

    /// Consumes a parsed head; its body follows, with at most `max_fields` trailers.
    pub(crate) fn take_head(&mut self, head: &ResponseHead, max_fields: usize) {
        match self {
            Back::H1(end) => end.take_head(head, max_fields),
            // It was removed when it was received.
            Back::H2(_) => {}
            Back::Fcgi(end) => end.take_head(head, max_fields),
        }
    }

    /// Records that no body follows after all.
    pub(crate) fn forget_body(&mut self) {
        each!(self, end => end.forget_body());
    }

    /// Switches to a tunnel: from now on plain bytes are read and written.
    pub(crate) fn open_tunnel(&mut self) {
        match self {
            Back::H1(end) => end.open_tunnel(),
            // Data frames carry a tunnel's bytes as those of a body. An application opens none.
            Back::H2(_) | Back::Fcgi(_) => {}
        }
    }

    /// Returns the received bytes that are not consumed yet, unparsed.
    pub(crate) fn input(&self) -> &[u8] {
        each!(self, end => end.input())
    }

    /// Returns whether the buffer has no room until bytes are consumed.
    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        each!(self, end => end.is_full(pool))
    }

    /// Receives available data. Returns 0 when the server has closed its side.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        each!(self, end => end.poll_fill(cx, pool))
    }

    /// Replaces the bytes received from the server by these.
    pub(crate) fn replace(&mut self, bytes: &[u8], pool: &BufferPool) {
        match self {
            Back::H1(end) => end.replace(bytes, pool),
            Back::H2(end) => end.replace(bytes),
            Back::Fcgi(end) => end.replace(bytes, pool),
        }
    }

    /// Updates the rules' view of the body.
    pub(crate) fn look(&self, peek: &mut Peek, content: &mut Content) {
        match self {
            Back::H1(end) => peek.look(end.input(), content),
            Back::H2(end) => peek.look_at_plain(end.input(), end.is_complete(), content),
            Back::Fcgi(end) if end.framing() == Framing::UntilClose => {
                peek.look_at_plain(end.input(), end.is_complete(), content);
            }
            Back::Fcgi(end) => peek.look(end.input(), content),
        }
    }

    /// Removes a body from the received data if it is complete.
    pub(crate) fn take_whole_body(&mut self) -> bool {
        each!(self, end => end.take_whole_body())
    }

    /// Returns whether all of the body is in the buffer of a stream that ends, which may drop it.
    pub(crate) fn has_whole_body(&mut self) -> bool {
        match self {
            Back::H2(end) => end.has_whole_body(),
            _ => self.take_whole_body(),
        }
    }

    /// Ends this side of a tunnel.
    pub(crate) fn end_side(&mut self) {
        each!(self, end => end.end_side());
    }
}

impl End for Back {
    #[inline]
    fn h1(&mut self) -> Option<h1::Wire<'_>> {
        match self {
            Back::H1(end) => end.h1(),
            Back::H2(_) | Back::Fcgi(_) => None,
        }
    }

    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        each!(self, end => end.next(moved))
    }

    fn data(&self) -> &[u8] {
        each!(self, end => end.data())
    }

    fn consume(&mut self, count: usize) {
        each!(self, end => end.consume(count));
    }

    fn trailers(&mut self) -> Message {
        each!(self, end => end.trailers())
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        each!(self, end => end.poll_more(cx, pool, moved))
    }

    fn rest(&mut self, pool: &BufferPool) {
        each!(self, end => end.rest(pool));
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        each!(self, end => end.has_room(pool))
    }

    fn send_data(&mut self, data: &[u8]) {
        each!(self, end => end.send_data(data));
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        each!(self, end => end.send_end(trailers));
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        each!(self, end => end.poll_flush(cx, moved))
    }
}
