//! A stream's end towards its client.

use std::io;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{Message, RequestHead};

#[cfg(test)]
use super::memory;
use super::{Body, End, FlowError, HeadForm, Moved, Peek, h1, h2};
use crate::stream::Content;

/// A stream's end towards its client.
// The driver's future holds the end of a stream in place, which saves an allocation for each request.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Front<'a> {
    /// HTTP/1, or plain bytes: the connection itself, which carries only this stream.
    H1(&'a mut h1::Front),
    /// A stream of HTTP/2; apart, since the end moves with its request.
    H2(Box<h2::Front>),
    /// A stream in memory, for tests with several streams on one connection.
    #[cfg(test)]
    Memory(memory::Front),
}

/// Evaluates an expression on the actual variant.
macro_rules! on {
    ($front:expr, $end:ident => $run:expr) => {
        match $front {
            Front::H1($end) => $run,
            Front::H2($end) => $run,
            #[cfg(test)]
            Front::Memory($end) => $run,
        }
    };
}

impl Front<'_> {
    /// Sets the time of [`Front::poll_alarm`]. A stream has one timer.
    #[inline]
    pub(crate) fn arm(&mut self, at: Option<Instant>) {
        on!(self, end => end.arm(at));
    }

    /// Ready when the time set by [`Front::arm`] has come.
    #[inline]
    pub(crate) fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        on!(self, end => end.poll_alarm(cx))
    }

    /// Consumes a request's head; its body follows, with at most `max_fields` trailers. `memory` is for the output.
    /// Returns the version sent by the client, if any.
    pub(crate) fn take_head(&mut self, head: &RequestHead, max_fields: usize, memory: Vec<u8>) -> Option<[u8; 8]> {
        on!(self, end => end.take_head(head, max_fields, memory))
    }

    /// Switches to a tunnel: from now on plain bytes are read and written.
    pub(crate) fn open_tunnel(&mut self) {
        on!(self, end => end.open_tunnel());
    }

    /// Returns the memory of the output.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        on!(self, end => end.take_memory())
    }

    /// Returns the received bytes that are not consumed yet, unparsed.
    pub(crate) fn input(&self) -> &[u8] {
        on!(self, end => end.input())
    }

    /// Consumes plain bytes.
    pub(crate) fn skip(&mut self, count: usize) {
        on!(self, end => end.skip(count));
    }

    /// Returns whether the client has ended its side: no more data arrives.
    pub(crate) fn has_ended(&self) -> bool {
        on!(self, end => end.has_ended())
    }

    /// Returns whether the buffer has no room until bytes are consumed.
    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        on!(self, end => end.is_full(pool))
    }

    /// Receives available data. Returns 0 when the client has closed its side.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        on!(self, end => end.poll_fill(cx, pool))
    }

    /// Polls a client that waits for its response: data that it sends meanwhile is kept for later. Ready when it has
    /// disconnected; with `half` also when it has ended its side.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, pool: &BufferPool, half: bool) -> Poll<()> {
        on!(self, end => end.poll_gone(cx, pool, half))
    }

    /// Returns whether the client has reset the stream, or its connection has ended; of HTTP/1 only a read tells that.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Front::H2(end) if end.is_gone())
    }

    /// Replaces the bytes received from the client by these.
    pub(crate) fn replace(&mut self, bytes: &[u8], pool: &BufferPool) {
        on!(self, end => end.replace(bytes, pool));
    }

    /// Updates the rules' view of the body.
    pub(crate) fn look(&self, peek: &mut Peek, content: &mut Content) {
        on!(self, end => end.look(peek, content));
    }

    /// Sends a head; its body follows.
    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>) {
        on!(self, end => end.send_head(head, form));
    }

    /// Drops a head of which nothing was sent yet: another response takes its place.
    pub(crate) fn take_back_head(&mut self) {
        on!(self, end => end.take_back_head());
    }

    /// Sends an interim response.
    pub(crate) fn send_interim(&mut self, head: &Message, form: HeadForm<'_>) {
        on!(self, end => end.send_interim(head, form));
    }

    /// Sends the interim response 100 to a client that waits for it before it sends its body, if that can be written
    /// immediately.
    pub(crate) fn try_continue(&mut self) {
        on!(self, end => end.try_continue());
    }

    /// Sends the interim response 100 after the data that is already being sent.
    pub(crate) fn send_continue(&mut self) {
        on!(self, end => end.send_continue());
    }

    /// Sends a built-in page unchanged, and nothing after it.
    pub(crate) fn send_page(&mut self, code: u16) {
        on!(self, end => end.send_page(code));
    }

    /// Writes plain bytes.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on!(self, end => end.poll_write(cx, bytes))
    }

    /// Prepares to write data of a body from where it is, and with `last` the end of the body, by [`Front::poll_lent`];
    /// `None` where the protocol copies what it sends.
    pub(crate) fn lend<'d>(&mut self, data: &'d [u8], last: bool) -> Option<h1::Lent<'d>> {
        let Front::H1(end) = self else { return None };
        end.lend(data, last)
    }

    /// Writes what is to be written with the data of [`Front::lend`] in its place.
    pub(crate) fn poll_lent(
        &mut self,
        cx: &mut Context<'_>,
        lent: &mut h1::Lent<'_>,
        moved: &mut Moved,
    ) -> Poll<Result<(), FlowError>> {
        let Front::H1(end) = self else { return Poll::Ready(Err(FlowError::Sink)) };
        end.poll_lent(cx, lent, moved)
    }

    /// Ends this side of a tunnel.
    pub(crate) fn end_side(&mut self) {
        on!(self, end => end.end_side());
    }

    /// Ends the stream without an answer.
    pub(crate) fn give_up(&mut self) {
        on!(self, end => end.give_up());
    }

    /// Ends a stream whose client may still be sending, so that the client can read the response.
    pub(crate) async fn drain(&mut self, pool: &BufferPool) {
        on!(self, end => end.drain(pool).await);
    }
}

impl End for Front<'_> {
    #[inline]
    fn h1(&mut self) -> Option<h1::Wire<'_>> {
        on!(self, end => end.h1())
    }

    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        on!(self, end => end.next(moved))
    }

    fn data(&self) -> &[u8] {
        on!(self, end => end.data())
    }

    fn consume(&mut self, count: usize) {
        on!(self, end => end.consume(count));
    }

    fn trailers(&mut self) -> Message {
        on!(self, end => end.trailers())
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        on!(self, end => end.poll_more(cx, pool, moved))
    }

    fn rest(&mut self, pool: &BufferPool) {
        on!(self, end => end.rest(pool));
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        on!(self, end => end.has_room(pool))
    }

    fn send_data(&mut self, data: &[u8]) {
        on!(self, end => end.send_data(data));
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        on!(self, end => end.send_end(trailers));
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        on!(self, end => end.poll_flush(cx, moved))
    }
}
