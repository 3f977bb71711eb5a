//! A stream's end towards a server.

use std::io;
use std::task::{Context, Poll};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{self, Limits, Message, Method, ResponseHead};

use super::{Body, End, FlowError, HeadForm, Moved, Peek, h1};
use crate::server::ServerConnection;
use crate::stream::Content;

/// The reason why a server's head is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// The data is not a head.
    Invalid(http::HeadError),
    /// The server closed or broke the connection.
    Gone,
}

/// A stream's end towards a server: for HTTP/1, and for plain bytes, the connection itself.
pub(crate) enum Back {
    H1(h1::Back),
}

impl Back {
    /// Returns the end for a connection assigned to a stream. `writer` contains the memory for the output, or the
    /// request sent on an earlier connection.
    pub(crate) fn new(connection: ServerConnection, writer: h1::Writer) -> Back {
        Back::H1(h1::Back::new(connection, writer))
    }

    /// Returns the connection, to access its server and its addresses.
    pub(crate) fn connection(&self) -> &ServerConnection {
        let Back::H1(end) = self;
        end.connection()
    }

    /// Takes the end apart: returns the connection, and the writer, whose sent data a retry sends again, or whose
    /// memory another stream reuses.
    pub(crate) fn take_apart(self, pool: &BufferPool) -> (ServerConnection, h1::Writer) {
        let Back::H1(end) = self;
        end.take_apart(pool)
    }

    /// Prepares to send everything again, to another connection; returns `false` if some of the data is no longer
    /// stored.
    pub(crate) fn replay(&mut self) -> bool {
        let Back::H1(end) = self;
        end.replay()
    }

    /// Returns whether nothing was sent yet, on this connection or an earlier one.
    pub(crate) fn is_fresh(&self) -> bool {
        let Back::H1(end) = self;
        h1::Wired::writer(end).is_fresh()
    }

    /// Sends a request's head; its body follows. `last` is a field after all others.
    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>, last: Option<(&[u8], &[u8])>) {
        let Back::H1(end) = self;
        end.send_head(head, form, last);
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
        let Back::H1(end) = self;
        end.poll_head(cx, pool, limits, method, response)
    }

    /// Consumes a parsed head; its body follows, with at most `max_fields` trailers.
    pub(crate) fn take_head(&mut self, head: &ResponseHead, max_fields: usize) {
        let Back::H1(end) = self;
        end.take_head(head, max_fields);
    }

    /// Records that no body follows after all.
    pub(crate) fn forget_body(&mut self) {
        let Back::H1(end) = self;
        end.forget_body();
    }

    /// Switches to a tunnel: from now on plain bytes are read and written.
    pub(crate) fn open_tunnel(&mut self) {
        let Back::H1(end) = self;
        end.open_tunnel();
    }

    /// Returns the received bytes that are not consumed yet, unparsed.
    pub(crate) fn input(&self) -> &[u8] {
        let Back::H1(end) = self;
        end.input()
    }

    /// Returns whether the buffer has no room until bytes are consumed.
    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        let Back::H1(end) = self;
        end.is_full(pool)
    }

    /// Receives available data. Returns 0 when the server has closed its side.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        let Back::H1(end) = self;
        end.poll_fill(cx, pool)
    }

    /// Replaces the bytes received from the server by these.
    pub(crate) fn replace(&mut self, bytes: &[u8], pool: &BufferPool) {
        let Back::H1(end) = self;
        end.replace(bytes, pool);
    }

    /// Updates the rules' view of the body.
    pub(crate) fn look(&self, peek: &mut Peek, content: &mut Content) {
        peek.look(self.input(), content);
    }

    /// Removes a body from the received data if it is complete.
    pub(crate) fn take_whole_body(&mut self) -> bool {
        let Back::H1(end) = self;
        end.take_whole_body()
    }

    /// Ends this side of a tunnel.
    pub(crate) fn end_side(&mut self) {
        let Back::H1(end) = self;
        end.end_side();
    }
}

impl End for Back {
    #[inline]
    fn h1(&mut self) -> Option<h1::Wire<'_>> {
        let Back::H1(end) = self;
        end.h1()
    }

    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        let Back::H1(end) = self;
        end.next(moved)
    }

    fn data(&self) -> &[u8] {
        let Back::H1(end) = self;
        end.data()
    }

    fn consume(&mut self, count: usize) {
        let Back::H1(end) = self;
        end.consume(count);
    }

    fn trailers(&mut self) -> Message {
        let Back::H1(end) = self;
        end.trailers()
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let Back::H1(end) = self;
        end.poll_more(cx, pool, moved)
    }

    fn rest(&mut self, pool: &BufferPool) {
        let Back::H1(end) = self;
        end.rest(pool);
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        let Back::H1(end) = self;
        end.has_room(pool)
    }

    fn send_data(&mut self, data: &[u8]) {
        let Back::H1(end) = self;
        end.send_data(data);
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        let Back::H1(end) = self;
        end.send_end(trailers);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let Back::H1(end) = self;
        end.poll_flush(cx, moved)
    }
}
