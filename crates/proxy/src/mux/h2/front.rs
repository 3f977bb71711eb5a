//! A stream of HTTP/2 towards its client.
//!
//! Received data waits in the stream's slot until its task takes it; the credit that goes back to the client follows
//! what the task consumes, so a slot holds no more than the stream's window. What is sent becomes frames when it is
//! flushed, as far as the windows and the connection's output allow; until then a head can be taken back.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_transport::{BufferPool, Timer};
use sluicegate_wire::http::{Framing, Message, RequestHead, Version, status};
use sluicegate_wire::http2::{ErrorCode, StreamKey};

use super::{Shared, spare};
use crate::mux::received::Received;
use crate::mux::{Body, End, FlowError, HeadForm, Moved, Peek, h1};
use crate::stream::Content;

/// A stream's end towards its client.
pub(crate) struct Front {
    connection: Rc<RefCell<Shared>>,
    key: StreamKey,
    timer: Timer,
    received: Received,
    /// Interim responses, and the final head, that are not sent yet.
    heads: Vec<Message>,
    /// The framing of the response's body.
    framing: Framing,
    /// Data of which the part before `sent` has been sent.
    output: Vec<u8>,
    sent: usize,
    /// Data that became frames at once, since the last flush.
    direct: usize,
    /// Whether the final head was sent.
    has_begun: bool,
    /// The end of the response, with its trailers, that is not sent yet.
    end: Option<Option<Message>>,
    /// Whether the last of `heads` is the final one.
    has_head: bool,
    /// Whether the end was sent.
    finished: bool,
    /// Whether the connection ends with the stream.
    kills: bool,
}

impl Front {
    pub(super) fn new(connection: Rc<RefCell<Shared>>, key: StreamKey) -> Front {
        Front {
            connection,
            key,
            timer: Timer::default(),
            received: Received::default(),
            heads: Vec::new(),
            framing: Framing::None,
            output: Vec::new(),
            sent: 0,
            direct: 0,
            has_begun: false,
            end: None,
            has_head: false,
            finished: false,
            kills: false,
        }
    }

    /// Returns the identifier of the stream.
    pub(crate) fn id(&self) -> u32 {
        self.key.id()
    }

    pub(crate) fn arm(&mut self, at: Option<Instant>) {
        self.timer.set(at);
    }

    pub(crate) fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(cx)
    }

    pub(crate) fn take_head(&mut self, _: &RequestHead, _: usize, memory: Vec<u8>) -> Option<[u8; 8]> {
        self.connection.borrow_mut().wire.mark_started(self.key);
        self.output = memory;
        self.output.clear();
        Some(*b"HTTP/2.0")
    }

    /// Data frames carry a tunnel's bytes as those of a body.
    pub(crate) fn open_tunnel(&mut self) {}

    /// Returns the output's memory, unless bytes in it were not sent: without them the stream would seem to end as it should.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        if self.sent < self.output.len() { Vec::new() } else { std::mem::take(&mut self.output) }
    }

    pub(crate) fn input(&self) -> &[u8] {
        self.received.data()
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.consume(count);
    }

    /// Returns whether the client has ended its side of the connection behind a complete request. The end of a message
    /// is not the end of its stream, and a stream that was reset is gone.
    pub(crate) fn has_ended(&self) -> bool {
        let shared = self.connection.borrow();
        shared.half && !shared.is_gone(self.key)
    }

    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        self.received.is_full(pool)
    }

    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        let full = self.is_full(pool);
        let mut shared = self.connection.borrow_mut();
        if shared.is_gone(self.key) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let Some(slot) = shared.slot(self.key) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if full {
            slot.wait(cx);
            return Poll::Pending;
        }
        if !slot.received.is_empty() {
            return Poll::Ready(Ok(self.received.add(&mut slot.received)));
        }
        if slot.complete {
            self.received.end(slot.trailers.take());
            return Poll::Ready(Ok(0));
        }
        slot.wait(cx);
        Poll::Pending
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.connection.borrow().is_gone(self.key)
    }

    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, pool: &BufferPool, half: bool) -> Poll<()> {
        loop {
            match self.poll_fill(cx, pool) {
                Poll::Ready(Ok(0)) if half && self.has_ended() => return Poll::Ready(()),
                Poll::Ready(Ok(0)) => {
                    // A complete request leaves nothing to come but a reset, or the end of the client's side.
                    if let Some(slot) = self.connection.borrow_mut().slot(self.key) {
                        slot.wait(cx);
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    pub(crate) fn replace(&mut self, bytes: &[u8], _: &BufferPool) {
        // The replaced bytes count as consumed; the new ones were not received from the client.
        let count = self.received.replace(bytes);
        self.give_credit(count);
    }

    pub(crate) fn look(&self, peek: &mut Peek, content: &mut Content) {
        peek.look_at_plain(self.input(), self.received.is_complete(), content);
    }

    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>) {
        (self.has_head, self.framing) = (true, form.framing);
        self.push_head(|message| message.copy_from(head));
    }

    fn push_head(&mut self, fill: impl FnOnce(&mut Message)) {
        let mut message = spare::take_message();
        fill(&mut message);
        // Nearly always there is one.
        self.heads.reserve_exact(1);
        self.heads.push(message);
    }

    pub(crate) fn take_back_head(&mut self) {
        if std::mem::take(&mut self.has_head) {
            self.heads.pop();
        }
        self.output.clear();
        self.end = None;
    }

    pub(crate) fn send_interim(&mut self, head: &Message, _: HeadForm<'_>) {
        self.push_head(|message| message.copy_from(head));
    }

    pub(crate) fn try_continue(&mut self) {
        self.send_continue();
        let _ = self.flush(None);
    }

    pub(crate) fn send_continue(&mut self) {
        self.push_head(|message| message.set_response(Version::Http2, 100, b""));
    }

    pub(crate) fn send_page(&mut self, code: u16) {
        let mut body = &b""[..];
        self.has_head = true;
        self.push_head(|message| {
            message.set_response(Version::Http2, code, b"");
            body = status::error_page(code).fill(message);
        });
        self.framing = Framing::Length(body.len() as u64);
        self.send_data(body);
        self.send_end(None);
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Waiting data precedes these bytes, which are accepted only after it is flushed.
        let gone = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        if self.flush(Some(cx)).map_err(gone)? {
            self.send_data(bytes);
            self.flush(Some(cx)).map_err(gone)?;
            return Poll::Ready(Ok(bytes.len()));
        }
        Poll::Pending
    }

    pub(crate) fn end_side(&mut self) {
        if self.end.is_none() && !self.finished {
            self.send_end(None);
        }
        let _ = self.flush(None);
    }

    /// Ends the whole connection, as HAProxy does where rules reject one of its streams.
    pub(crate) fn give_up(&mut self) {
        self.kills = true;
    }

    /// Nothing is awaited: a reset without an error tells a client that still sends that the answer is complete.
    pub(crate) async fn drain(&mut self, _: &BufferPool) {}

    fn give_credit(&mut self, count: usize) {
        if count > 0 {
            let mut shared = self.connection.borrow_mut();
            shared.wire.consume(self.key, count);
            shared.wake_task();
        }
    }

    /// Sends what is to be sent, as far as windows and output allow; returns whether all of it was. Otherwise the
    /// task of `cx` is woken when more may be sent.
    fn flush(&mut self, cx: Option<&mut Context<'_>>) -> Result<bool, FlowError> {
        let connection = self.connection.clone();
        let mut shared = connection.borrow_mut();
        let done = self.write_frames(&mut shared)?;
        // The credit of a client that has ended its side does not grow any more.
        if !done && shared.half && !shared.wire.is_output_full() {
            return Err(FlowError::Sink);
        }
        if let Some(cx) = cx.filter(|_| !done) {
            // A closed window wakes the stream by itself when it opens.
            shared.waits_for_room |= shared.wire.is_output_full();
            if let Some(slot) = shared.slot(self.key) {
                slot.wait(cx);
            }
        }
        shared.wake_task();
        Ok(done)
    }

    /// Appends frames to the connection's output; returns whether nothing is left.
    fn write_frames(&mut self, shared: &mut Shared) -> Result<bool, FlowError> {
        if shared.is_gone(self.key) {
            return Err(FlowError::Sink);
        }
        if self.is_flushed() {
            return Ok(true);
        }
        if shared.wire.is_output_full() {
            return Ok(false);
        }
        shared.equip();
        let count = self.heads.len();
        for (index, message) in std::mem::take(&mut self.heads).into_iter().enumerate() {
            let is_final = self.has_head && index + 1 == count;
            let ends = is_final && self.output.len() == self.sent && matches!(self.end, Some(None));
            let framing = if is_final { self.framing } else { Framing::None };
            let sent = shared.wire.send_response(self.key, &message, framing, ends);
            spare::keep_message(message);
            if sent.is_err() {
                // The peer can't be sent such a head: it learns that there is no answer.
                shared.wire.reset(self.key, ErrorCode::INTERNAL_ERROR);
                return Err(FlowError::Sink);
            }
            if is_final {
                (self.has_head, self.has_begun) = (false, true);
            }
            if ends {
                (self.end, self.finished) = (None, true);
            }
        }
        if self.sent < self.output.len() {
            let ends = matches!(self.end, Some(None));
            self.sent += shared.wire.send_data(self.key, &self.output[self.sent..], ends);
            if self.sent < self.output.len() {
                return Ok(false);
            }
            self.output.clear();
            self.sent = 0;
            if ends {
                (self.end, self.finished) = (None, true);
            }
        }
        if let Some(trailers) = self.end.take() {
            shared.wire.send_end(self.key, trailers.as_ref());
            self.finished = true;
        }
        Ok(true)
    }

    fn is_flushed(&self) -> bool {
        self.heads.is_empty() && self.output.len() == self.sent && self.end.is_none()
    }
}

impl End for Front {
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
            Err(_) => Err(FlowError::Source),
        })
    }

    fn rest(&mut self, _: &BufferPool) {
        if let Some(memory) = self.received.rest() {
            spare::keep_buffer(memory);
        }
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        self.output.len() - self.sent < pool.size()
    }

    /// Writes data as frames at once if no earlier data waits.
    fn send_data(&mut self, data: &[u8]) {
        let mut rest = data;
        if self.has_begun && self.is_flushed() {
            let mut shared = self.connection.borrow_mut();
            if !shared.is_gone(self.key) && !shared.wire.is_output_full() {
                shared.equip();
                let sent = shared.wire.send_data(self.key, data, false);
                shared.wake_task();
                self.direct += sent;
                rest = &data[sent..];
            }
        }
        self.output.extend_from_slice(rest);
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        self.end = Some(trailers.filter(|trailers| trailers.fields().next().is_some()).cloned());
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let (heads, sent) = (self.heads.len(), self.sent);
        let waiting = self.output.len();
        let flushed = self.flush(Some(cx))?;
        // A head counts as written, too, because it can't be taken back any more.
        moved.written += heads - self.heads.len() + std::mem::take(&mut self.direct);
        moved.written += if self.output.is_empty() { waiting - sent } else { self.sent - sent };
        if flushed { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let connection = self.connection.clone();
        let mut shared = connection.borrow_mut();
        // A last attempt to send what was queued before the stream ended.
        let _ = self.write_frames(&mut shared);
        shared.end_stream(self.key, self.kills);
        spare::keep_buffer(self.received.take_memory());
    }
}
