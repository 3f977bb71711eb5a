//! A stream of HTTP/2 towards a server.
//!
//! The head and the data that were sent stay stored until more data follows, so that a request can be repeated on
//! another connection, of either protocol, as long as it is small. What is sent becomes frames when it is flushed, as
//! far as the windows and the connection's output allow; the stream begins with its head.

use std::io;
use std::task::{Context, Poll};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{
    BodyDecoder, BodyEvent, ConnectionField, Framing, Limits, Message, RequestHead, ResponseHead, parse_request,
};
use sluicegate_wire::http2::asks_for_tunnel;

use super::super::back::HeadError;
use crate::mux::received::Received;
use crate::mux::{Body, End, FlowError, HeadForm, Moved, h1};
use crate::server::{Http2State, Http2Stream, Lease, StreamFacts};

/// What was sent of a request.
#[derive(Debug)]
pub(crate) struct Sent {
    head: Option<Message>,
    framing: Framing,
    connection: ConnectionField,
    /// Data of the body; what precedes `sent` was sent on the present connection.
    data: Vec<u8>,
    sent: usize,
    /// Whether data was sent that is no longer stored.
    forgotten: bool,
    /// The end of the request, with its trailers.
    end: Option<Option<Message>>,
}

impl Sent {
    fn new(memory: Vec<u8>) -> Sent {
        Sent {
            head: None,
            framing: Framing::None,
            connection: ConnectionField::None,
            data: memory,
            sent: 0,
            forgotten: false,
            end: None,
        }
    }

    /// Returns the memory, to be used again.
    pub(crate) fn into_memory(mut self) -> Vec<u8> {
        self.data.clear();
        self.data
    }

    /// Returns the request that is to be sent by HTTP/1, as one for HTTP/2.
    pub(crate) fn of_writer(writer: h1::Writer) -> Sent {
        if writer.is_fresh() {
            return Sent::new(writer.into_memory());
        }
        let bytes = writer.into_bytes();
        // The limits were checked when the request was received; the head was written by this process.
        let mut message = Message::new();
        let Ok(Some(head)) = parse_request(&bytes, &Limits::of_own_heads(), &mut message) else {
            // Nothing can be repeated: the attempt fails like one whose data is gone.
            return Sent { forgotten: true, ..Sent::new(Vec::new()) };
        };
        let RequestHead { head_len, body, keep_alive, .. } = head;
        let connection = if keep_alive { ConnectionField::None } else { ConnectionField::Close };
        let mut sent = Sent { head: Some(message), framing: body, connection, ..Sent::new(Vec::new()) };
        let (mut decoder, mut at) = (BodyDecoder::new(body), head_len);
        while at < bytes.len() && !decoder.is_done() {
            let Ok((taken, event)) = decoder.decode(&bytes[at..]) else { break };
            match event {
                BodyEvent::Data(range) => sent.data.extend_from_slice(&bytes[at..][range]),
                BodyEvent::End => sent.end = Some(trailers_of(&decoder)),
                BodyEvent::More if taken == 0 => break,
                BodyEvent::More => {}
            }
            at += taken;
        }
        if decoder.is_done() && sent.end.is_none() {
            sent.end = Some(None);
        }
        sent
    }

    /// Returns the request as it is sent by HTTP/1.
    pub(crate) fn into_writer(mut self) -> h1::Writer {
        let Some(head) = self.head.take() else { return h1::Writer::new(self.into_memory()) };
        let mut writer = h1::Writer::new(Vec::new());
        writer.request(&head, self.framing, self.connection);
        if !self.data.is_empty() {
            writer.data(&self.data);
        }
        if let Some(trailers) = &self.end {
            writer.end(trailers.as_ref());
        }
        writer
    }

    /// Returns a request whose head is not written yet, though this body was sent by FastCGI.
    pub(crate) fn of_body(data: Vec<u8>, ended: bool, forgotten: bool) -> Sent {
        Sent { forgotten, end: ended.then_some(None), ..Sent::new(data) }
    }

    /// Returns the stored body, whether its end follows, and whether a part of it is no longer stored.
    pub(crate) fn into_body(self) -> (Vec<u8>, bool, bool) {
        (self.data, self.end.is_some(), self.forgotten)
    }

    /// Removes data that was sent before other data follows it.
    fn forget_sent(&mut self) {
        if self.sent > 0 && self.sent == self.data.len() {
            self.data.clear();
            self.sent = 0;
            self.forgotten = true;
        }
    }
}

fn trailers_of(decoder: &BodyDecoder) -> Option<Message> {
    let BodyDecoder::Chunked(decoder) = decoder else { return None };
    let mut trailers = Message::new();
    decoder.trailers().for_each(|(name, value)| _ = trailers.add(name, value));
    let some = trailers.fields().next().is_some();
    some.then_some(trailers)
}

/// A stream's end towards its server.
pub(crate) struct Back {
    stream: Http2Stream,
    lease: Lease,
    received: Received,
    sent: Box<Sent>,
    /// Whether the end of the request was sent.
    finished: bool,
    /// Whether the request asks for a tunnel and was not answered: its end is not sent, because the tunnel follows.
    asking: bool,
    /// Whether the server accepted no more streams.
    refused: bool,
    /// Whether HTTP/2 can't express the request.
    failed: bool,
    /// Whether the request will be sent again.
    repeats: bool,
}

impl Back {
    /// Returns the back for a stream that was lent. `sent` is sent again.
    pub(crate) fn new(stream: Http2Stream, lease: Lease, mut sent: Box<Sent>) -> Back {
        sent.sent = 0;
        let asking = sent.head.as_ref().is_some_and(asks_for_tunnel);
        // Nothing is sent of a request that can't be repeated.
        let failed = sent.head.is_none() && sent.forgotten;
        Back {
            stream,
            lease,
            received: Received::default(),
            sent,
            finished: false,
            asking,
            refused: false,
            failed,
            repeats: false,
        }
    }

    pub(crate) fn connection(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn take_apart(mut self) -> (Http2Stream, Lease, Box<Sent>) {
        let mut state = self.stream.connection().state();
        state.keep_buffer(self.received.take_memory());
        if !self.repeats
            && let Some(head) = self.sent.head.take()
        {
            state.keep_message(head);
        }
        drop(state);
        (self.stream, self.lease, self.sent)
    }

    pub(crate) fn replay(&mut self) -> bool {
        self.repeats = !self.sent.forgotten;
        self.repeats
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.sent.head.is_none() && !self.sent.forgotten
    }

    /// Returns whether the server has certainly not processed the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        let state = self.stream.connection().state();
        match self.stream.key() {
            None => self.refused || state.is_gone(),
            Some(key) => state.wire.is_unprocessed(key),
        }
    }

    /// Returns whether something was sent on the stream.
    pub(crate) fn has_begun(&self) -> bool {
        self.stream.key().is_some()
    }

    pub(crate) fn facts(&self) -> StreamFacts {
        self.stream.facts()
    }

    /// Returns whether the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.stream.connection().state().is_gone()
    }

    /// Returns whether the response is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.received.is_complete()
    }

    pub(crate) fn input(&self) -> &[u8] {
        self.received.data()
    }

    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        self.received.is_full(pool)
    }

    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>, last: Option<(&[u8], &[u8])>) {
        let mut message = self.stream.connection().state().take_message();
        message.copy_from(head);
        if let Some((name, value)) = last {
            message.add(name, value);
        }
        self.asking = asks_for_tunnel(&message);
        self.sent.head = Some(message);
        (self.sent.framing, self.sent.connection) = (form.framing, form.connection);
    }

    /// Receives a response's head, which is removed from the stream.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        response: &mut Message,
    ) -> Poll<Result<ResponseHead, HeadError>> {
        let connection = self.stream.connection().clone();
        let mut state = connection.state();
        let gone = state.is_gone() || self.failed || self.refused;
        let Some(key) = self.stream.key() else {
            if gone {
                return Poll::Ready(Err(HeadError::Gone));
            }
            state.wait_for_room(None, cx);
            return Poll::Pending;
        };
        let Some(slot) = state.slot(key) else { return Poll::Ready(Err(HeadError::Gone)) };
        if let Some((mut message, head)) = slot.pop_head() {
            if slot.complete && slot.received.is_empty() && slot.trailers.is_none() {
                self.received.end(None);
            }
            std::mem::swap(response, &mut message);
            state.keep_message(message);
            if head.tunnel
                && response.status() == 101
                && let Some(request) = &self.sent.head
            {
                h1::accept_websocket(request, response);
            }
            if !head.interim && std::mem::take(&mut self.asking) && !head.tunnel {
                // No tunnel follows: the request ends here.
                self.sent.end = Some(None);
                let _ = self.write_frames(&mut state);
                state.wake_task();
            }
            return Poll::Ready(Ok(head));
        }
        if slot.malformed {
            return Poll::Ready(Err(HeadError::Malformed));
        }
        if gone || slot.reset {
            return Poll::Ready(Err(HeadError::Gone));
        }
        slot.wait(cx);
        Poll::Pending
    }

    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        let full = self.is_full(pool);
        let gone = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        let mut state = self.stream.connection().state();
        let over = state.is_gone();
        let Some(slot) = self.stream.key().and_then(|key| state.slot(key)) else { return gone() };
        if !slot.received.is_empty() && !full {
            return Poll::Ready(Ok(self.received.add(&mut slot.received)));
        }
        if slot.received.is_empty() && slot.complete {
            self.received.end(slot.trailers.take());
            return Poll::Ready(Ok(0));
        }
        if slot.malformed {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if slot.reset || over {
            return gone();
        }
        slot.wait(cx);
        Poll::Pending
    }

    pub(crate) fn replace(&mut self, bytes: &[u8]) {
        // The replaced bytes count as consumed; the new ones were not received from the server.
        let count = self.received.replace(bytes);
        self.give_credit(count);
    }

    /// Records that no body follows after all.
    pub(crate) fn forget_body(&mut self) {
        self.received.forget();
    }

    /// Returns whether all of the body has come to this end; HAProxy does not look at what its connection still holds.
    pub(crate) fn has_whole_body(&self) -> bool {
        let mut state = self.stream.connection().state();
        let slot = self.stream.key().and_then(|key| state.slot(key));
        self.received.is_complete() || slot.is_some_and(|slot| slot.complete && slot.received.is_empty())
    }

    /// Removes a body from the received data if it is complete; returns whether it was.
    pub(crate) fn take_whole_body(&mut self) -> bool {
        let mut state = self.stream.connection().state();
        let complete = self.received.is_complete()
            || self.stream.key().and_then(|key| state.slot(key)).is_some_and(|slot| {
                let complete = slot.complete;
                if complete {
                    slot.received.clear();
                }
                complete
            });
        drop(state);
        if complete {
            self.forget_body();
        }
        complete
    }

    /// Ends this side of a tunnel.
    pub(crate) fn end_side(&mut self) {
        self.sent.end.get_or_insert(None);
        let connection = self.stream.connection().clone();
        let mut state = connection.state();
        let _ = self.write_frames(&mut state);
        state.wake_task();
    }

    fn give_credit(&mut self, count: usize) {
        if let Some(key) = self.stream.key().filter(|_| count > 0) {
            let mut state = self.stream.connection().state();
            state.wire.consume(key, count);
            state.wake_task();
        }
    }

    /// Returns whether nothing is left to be sent.
    fn is_flushed(&self) -> bool {
        let begun = self.stream.key().is_some() || self.sent.head.is_none();
        begun && self.sent.sent == self.sent.data.len() && (self.finished || self.asking || self.sent.end.is_none())
    }

    /// Appends frames to the connection's output; returns whether nothing is left.
    fn write_frames(&mut self, state: &mut Http2State) -> Result<bool, FlowError> {
        if self.failed || self.refused {
            return Err(FlowError::Sink);
        }
        if self.is_flushed() {
            return Ok(true);
        }
        let key = self.stream.key();
        if state.is_gone() || key.is_some_and(|key| state.is_shut(key)) {
            return Err(FlowError::Sink);
        }
        if state.wire.is_output_full() {
            return Ok(false);
        }
        let is_last = !self.asking && matches!(self.sent.end, Some(None));
        let key = match (key, &self.sent.head) {
            (Some(key), _) => key,
            (None, None) => return Err(FlowError::Sink),
            (None, Some(head)) => {
                let Some(key) = self.stream.begin(state) else {
                    self.refused = true;
                    return Err(FlowError::Sink);
                };
                let ends = is_last && self.sent.data.is_empty();
                // As in HAProxy, a target without a scheme gets `https`, also without TLS.
                let https = true;
                if state.wire.send_request(key, head, self.sent.framing, https, ends).is_err() {
                    self.failed = true;
                    return Err(FlowError::Sink);
                }
                self.finished = ends;
                key
            }
        };
        if self.sent.sent < self.sent.data.len() {
            self.sent.sent += state.wire.send_data(key, &self.sent.data[self.sent.sent..], is_last);
            if self.sent.sent < self.sent.data.len() {
                return Ok(false);
            }
            self.finished = is_last;
        }
        if !self.asking
            && !self.finished
            && let Some(trailers) = &self.sent.end
        {
            state.wire.send_end(key, trailers.as_ref());
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
        Ok(self.received.next(moved))
    }

    fn data(&self) -> &[u8] {
        self.input()
    }

    fn consume(&mut self, count: usize) {
        self.received.consume(count);
        self.give_credit(count);
    }

    fn trailers(&mut self) -> Message {
        self.received.take_trailers()
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        self.poll_fill(cx, pool).map(|result| match result {
            Ok(count) => {
                moved.read += count;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(FlowError::Malformed),
            Err(_) => Err(FlowError::Source),
        })
    }

    fn rest(&mut self, _: &BufferPool) {
        if let Some(memory) = self.received.rest() {
            // The memory goes back to the connection, whose next data fills it.
            self.stream.connection().state().keep_buffer(memory);
        }
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        let Sent { data, sent, .. } = &*self.sent;
        (*sent == 0 || *sent == data.len()) && data.len() - sent < pool.size()
    }

    fn send_data(&mut self, data: &[u8]) {
        self.sent.forget_sent();
        self.sent.data.extend_from_slice(data);
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        // The end of a request that asks for a tunnel is not the end of what is sent.
        if !self.asking {
            let trailers = trailers.filter(|trailers| trailers.fields().next().is_some());
            self.sent.end = Some(trailers.cloned());
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let connection = self.stream.connection().clone();
        let mut state = connection.state();
        let (begun, sent) = (self.stream.key().is_some(), self.sent.sent);
        let flushed = self.write_frames(&mut state)?;
        // A head counts as written, too, because it can't be taken back any more.
        moved.written += usize::from(!begun && self.stream.key().is_some()) + (self.sent.sent - sent);
        if !flushed {
            state.wait_for_room(self.stream.key(), cx);
        }
        state.wake_task();
        if flushed { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}
