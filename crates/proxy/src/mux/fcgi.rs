//! A request to a FastCGI application.
//!
//! The parameters and the data that were sent stay stored until more data follows, so that a small request can be repeated
//! on another connection. The response is that of CGI: a head without a status line, and a body that ends with the
//! request unless the head tells its length. It is decoded as one of HTTP/1 is.

use std::io;
use std::task::{Context, Poll};

use sluicegate_transport::{Buffer, BufferPool};
use sluicegate_wire::http::{Framing, Limits, Message, Method, ResponseHead, Version, parse_cgi_response};

use super::back::HeadError;
use super::h1::Reader;
use super::{Body, End, FlowError, Moved, h1, h2};
use crate::fcgi::params::{Surroundings, params};
use crate::server::{FcgiState, FcgiStream, Lease};

/// The sent part of a request.
#[derive(Debug)]
pub(crate) struct Sent {
    /// The contents of the record of parameters.
    params: Option<Vec<u8>>,
    version: Version,
    /// Data of the body; what precedes `sent` was sent on the present connection.
    data: Vec<u8>,
    sent: usize,
    /// Whether data was sent that is no longer stored.
    forgotten: bool,
    /// Whether the end of the body follows.
    end: bool,
}

impl Sent {
    fn new(data: Vec<u8>) -> Sent {
        Sent { params: None, version: Version::Http11, data, sent: 0, forgotten: false, end: false }
    }

    /// Returns what was sent by HTTP, without its head, from which the parameters are made.
    pub(crate) fn of_http(sent: h2::Sent) -> Sent {
        let (data, end, forgotten) = sent.into_body();
        Sent { forgotten, end, ..Sent::new(data) }
    }

    /// Returns the memory, to be used again.
    pub(crate) fn into_memory(mut self) -> Vec<u8> {
        self.data.clear();
        self.data
    }

    /// Returns the stored body, which HTTP/1 sends behind a head that is not written yet.
    pub(crate) fn into_body(self) -> h1::Unsent {
        h1::Unsent { data: self.data, ended: self.end }
    }

    /// Returns the request as HTTP/2 sends it, without its head.
    pub(crate) fn into_http2(self) -> h2::Sent {
        h2::Sent::of_body(self.data, self.end, self.forgotten)
    }
}

/// A stream's end towards its application.
pub(crate) struct Back {
    stream: FcgiStream,
    lease: Lease,
    input: Buffer,
    reader: Reader,
    framing: Framing,
    sent: Box<Sent>,
    /// Whether the end of the request was sent.
    finished: bool,
    /// Whether the connection had no number for the request.
    refused: bool,
    /// Whether the body of the response was found to go on behind its end.
    overlong: bool,
}

impl Back {
    /// Returns the end for a place that was lent. `sent` is sent again.
    pub(crate) fn new(stream: FcgiStream, lease: Lease, mut sent: Box<Sent>) -> Back {
        sent.sent = 0;
        Back {
            stream,
            lease,
            input: Buffer::default(),
            reader: Reader::new(Framing::UntilClose),
            framing: Framing::UntilClose,
            sent,
            finished: false,
            refused: false,
            overlong: false,
        }
    }

    pub(crate) fn connection(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn take_apart(mut self, pool: &BufferPool) -> (FcgiStream, Lease, Box<Sent>) {
        pool.reclaim(&mut self.input);
        (self.stream, self.lease, self.sent)
    }

    /// Prepares to send everything again. A server of HTTP gets the head again, too, before the stored body.
    pub(crate) fn replay(&mut self) -> bool {
        !self.sent.forgotten
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.sent.params.is_none()
    }

    /// Returns whether the application has certainly not processed the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        // A new connection that ends before it has a request is the application's error.
        !self.has_begun() && (self.refused || (self.is_over() && self.lease.was_reused()))
    }

    /// Returns whether something was sent of the request.
    pub(crate) fn has_begun(&self) -> bool {
        self.stream.connection().state().has_begun(self.stream.place())
    }

    /// Returns whether the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.stream.connection().state().is_gone()
    }

    /// Returns the framing of the received body.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    pub(crate) fn input(&self) -> &[u8] {
        self.input.data()
    }

    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        self.input.len() == pool.size()
    }

    /// Sends a request's parameters; its body follows. Returns whether the request can be expressed.
    pub(crate) fn send_request(&mut self, request: &Message, around: &Surroundings<'_>) -> bool {
        self.sent.version = request.version();
        self.sent.params = params(&self.stream.app().config, request, around);
        self.sent.params.is_some()
    }

    /// Receives the head of a response to a request of this method.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        pool: &BufferPool,
        limits: &Limits,
        method: Method,
        response: &mut Message,
    ) -> Poll<Result<ResponseHead, HeadError>> {
        let version = self.sent.version.min(Version::Http11);
        let mut fresh = !self.input.is_empty();
        loop {
            if fresh {
                match parse_cgi_response(self.input.data(), limits, method, version, response) {
                    // An application has one head.
                    Ok(Some(head)) if head.interim || head.tunnel => return Poll::Ready(Err(HeadError::Malformed)),
                    Ok(Some(mut head)) => {
                        self.framing = head.body;
                        // The end of the request delimits the body, whatever the client's connection needs.
                        if head.body == Framing::UntilClose {
                            head.body = Framing::Chunked;
                        }
                        head.keep_alive = true;
                        return Poll::Ready(Ok(head));
                    }
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(HeadError::Invalid(error))),
                }
            }
            match self.poll_fill(cx, pool) {
                Poll::Ready(Ok(count)) if count > 0 => fresh = true,
                Poll::Ready(_) => return Poll::Ready(Err(HeadError::Gone)),
                Poll::Pending => break,
            }
        }
        pool.retire(&mut self.input);
        Poll::Pending
    }

    /// Consumes a head that was parsed: its body follows, with `max_fields` trailers at most.
    pub(crate) fn take_head(&mut self, head: &ResponseHead, max_fields: usize) {
        self.input.consume(head.head_len);
        self.reader = Reader::new(self.framing);
        self.reader.limit_trailers(max_fields);
    }

    /// Returns the length of a body without one, if all of it is here.
    pub(crate) fn whole_length(&mut self, pool: &BufferPool) -> Option<u64> {
        if self.framing != Framing::UntilClose {
            return None;
        }
        let noop = std::task::Waker::noop();
        let mut cx = Context::from_waker(noop);
        while !self.is_full(pool) {
            match self.poll_fill(&mut cx, pool) {
                Poll::Ready(Ok(0)) => {
                    let length = self.input.len() as u64;
                    self.framing = Framing::Length(length);
                    self.reader = Reader::new(self.framing);
                    return Some(length);
                }
                Poll::Ready(Ok(_)) => {}
                _ => return None,
            }
        }
        None
    }

    /// Takes received data; 0: the response is complete.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        let gone = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        let mut state = self.stream.connection().state();
        let over = state.is_gone();
        let Some(slot) = state.slot(self.stream.place()) else { return gone() };
        if !slot.received.is_empty() {
            pool.equip(&mut self.input);
            if self.input.spare().is_empty() {
                self.input.compact();
            }
            let room = self.input.spare();
            if room.is_empty() {
                return Poll::Pending;
            }
            let count = room.len().min(slot.received.len());
            room[..count].copy_from_slice(&slot.received[..count]);
            slot.received.drain(..count);
            self.input.filled(count);
            // The connection may wait for room.
            state.wake_task();
            return Poll::Ready(Ok(count));
        }
        if slot.complete {
            return Poll::Ready(Ok(0));
        }
        if slot.ended || over || self.refused {
            return gone();
        }
        slot.wait(cx);
        Poll::Pending
    }

    pub(crate) fn replace(&mut self, bytes: &[u8], pool: &BufferPool) {
        pool.equip(&mut self.input);
        self.input.replace(bytes);
        pool.retire(&mut self.input);
    }

    /// Returns whether the response is complete and received.
    pub(crate) fn is_complete(&self) -> bool {
        let mut state = self.stream.connection().state();
        state.slot(self.stream.place()).is_some_and(|slot| slot.complete && slot.received.is_empty())
    }

    /// Records that no body follows after all.
    pub(crate) fn forget_body(&mut self) {
        self.framing = Framing::None;
        self.reader = Reader::new(Framing::None);
        self.overlong = true;
    }

    /// Removes a body from the received data if it is complete; returns whether it was.
    pub(crate) fn take_whole_body(&mut self) -> bool {
        if self.framing == Framing::UntilClose {
            let complete = self.is_complete();
            if complete {
                self.input.consume(self.input.len());
            }
            return complete;
        }
        self.reader.take_whole(&mut self.input)
    }

    /// Ends this side.
    pub(crate) fn end_side(&mut self) {
        self.sent.end = true;
        let connection = self.stream.connection().clone();
        let mut state = connection.state();
        let _ = self.write_records(&mut state);
        state.wake_task();
    }

    fn is_flushed(&self) -> bool {
        self.sent.sent == self.sent.data.len() && (self.finished || !self.sent.end)
    }

    /// Appends records to the connection's output; returns whether nothing is left.
    fn write_records(&mut self, state: &mut FcgiState) -> Result<bool, FlowError> {
        let place = self.stream.place();
        let begun = state.has_begun(place);
        if begun && self.is_flushed() {
            return Ok(true);
        }
        let shut = state.slot(place).is_none_or(|slot| slot.ended);
        if state.is_gone() || shut || self.refused {
            return Err(FlowError::Sink);
        }
        if !state.has_room() {
            return Ok(false);
        }
        if !begun {
            let Some(params) = &self.sent.params else { return Err(FlowError::Sink) };
            if !state.begin(place, params) {
                self.refused = true;
                return Err(FlowError::Sink);
            }
        }
        let Sent { data, sent, .. } = &mut *self.sent;
        if *sent < data.len() {
            state.send(place, &data[*sent..]);
            *sent = data.len();
        }
        if self.sent.end && !self.finished {
            state.send(place, &[]);
            self.finished = true;
        }
        Ok(true)
    }
}

impl End for Back {
    fn h1(&mut self) -> Option<h1::Wire<'_>> {
        None
    }

    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        let next = self.reader.next(&mut self.input, moved)?;
        // As in HAProxy, more than the head has announced makes the response malformed.
        if next == Some(Body::End) && !self.overlong && !self.input.is_empty() {
            return Err(FlowError::Malformed);
        }
        Ok(next)
    }

    fn data(&self) -> &[u8] {
        self.reader.data(&self.input)
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(&mut self.input, count);
    }

    fn trailers(&mut self) -> Message {
        self.reader.trailers()
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        self.poll_fill(cx, pool).map(|result| match result {
            Ok(0) => self.reader.source_closed(),
            Ok(count) => {
                moved.read += count;
                Ok(())
            }
            Err(_) => Err(FlowError::Source),
        })
    }

    fn rest(&mut self, pool: &BufferPool) {
        pool.retire(&mut self.input);
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        let Sent { data, sent, .. } = &*self.sent;
        (*sent == 0 || *sent == data.len()) && data.len() - sent < pool.size()
    }

    fn send_data(&mut self, data: &[u8]) {
        if self.sent.sent > 0 && self.sent.sent == self.sent.data.len() {
            self.sent.data.clear();
            self.sent.sent = 0;
            self.sent.forgotten = true;
        }
        self.sent.data.extend_from_slice(data);
    }

    fn send_end(&mut self, _: Option<&Message>) {
        self.sent.end = true;
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let connection = self.stream.connection().clone();
        let mut state = connection.state();
        let (begun, sent) = (state.has_begun(self.stream.place()), self.sent.sent);
        let flushed = self.write_records(&mut state)?;
        // Parameters count as written, too, because they can't be taken back any more.
        moved.written += usize::from(!begun && state.has_begun(self.stream.place())) + (self.sent.sent - sent);
        if !flushed && let Some(slot) = state.slot(self.stream.place()) {
            slot.wait(cx);
        }
        state.wake_task();
        if flushed { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}
