//! A client's end in memory: a stream of several that share a connection, as HTTP/2 will have them.
//!
//! The peer gives byte credit for bytes that it takes, gets credit for bytes consumed here, and may reset the stream;
//! the stream is reset towards it when it ends before its message does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sluicegate_transport::{BufferPool, Timer};
use sluicegate_wire::http::{Message, RequestHead, Version, status};

use super::received::Received;
use super::{Body, End, FlowError, HeadForm, Moved, Peek, h1};
use crate::stream::Content;

/// An event that the stream sends to its client.
#[derive(Debug)]
pub(crate) enum Event {
    Interim(u16),
    /// A status, and the fields as they would be written.
    Head(u16, String),
    Data(Vec<u8>),
    /// The message is complete, with these trailers.
    End(Vec<(String, String)>),
    Reset,
}

/// An event that the client sends.
enum Part {
    Data(Vec<u8>),
    End(Option<Message>),
}

#[derive(Default)]
struct Shared {
    received: VecDeque<Part>,
    /// Whether the client has cancelled the stream.
    reset: bool,
    sent: VecDeque<Event>,
    /// The number of bytes that the client currently accepts.
    credit: usize,
    /// The number of bytes consumed here.
    consumed: usize,
    stream: Option<Waker>,
    client: Option<Waker>,
}

impl Shared {
    fn wake_client(&mut self) {
        self.client.take().into_iter().for_each(Waker::wake);
    }

    fn wake_stream(&mut self) {
        self.stream.take().into_iter().for_each(Waker::wake);
    }
}

/// The client of one stream.
pub(crate) struct Peer(Rc<RefCell<Shared>>);

impl Peer {
    pub(crate) fn data(&self, data: &[u8]) {
        let mut shared = self.0.borrow_mut();
        shared.received.push_back(Part::Data(data.to_vec()));
        shared.wake_stream();
    }

    pub(crate) fn end(&self, trailers: &[(&str, &str)]) {
        let message = (!trailers.is_empty()).then(|| {
            let mut message = Message::new();
            for (name, value) in trailers {
                message.add(name.as_bytes(), value.as_bytes());
            }
            message
        });
        let mut shared = self.0.borrow_mut();
        shared.received.push_back(Part::End(message));
        shared.wake_stream();
    }

    pub(crate) fn reset(&self) {
        let mut shared = self.0.borrow_mut();
        shared.reset = true;
        shared.wake_stream();
    }

    /// Grants credit for this number of additional bytes.
    pub(crate) fn credit(&self, bytes: usize) {
        let mut shared = self.0.borrow_mut();
        shared.credit += bytes;
        shared.wake_stream();
    }

    /// Returns the number of the client's bytes that were consumed.
    pub(crate) fn consumed(&self) -> usize {
        self.0.borrow().consumed
    }

    pub(crate) async fn next(&self) -> Event {
        poll_fn(|cx| {
            let mut shared = self.0.borrow_mut();
            match shared.sent.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    shared.client = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Returns whether the client has taken all events that were sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.borrow().sent.is_empty()
    }
}

/// A stream's end towards its client.
pub(crate) struct Front {
    shared: Rc<RefCell<Shared>>,
    timer: Timer,
    received: Received,
    /// Events that wait for credit.
    pending: VecDeque<Event>,
    ended: bool,
}

/// Returns both ends of a stream whose client initially accepts `credit` bytes.
pub(crate) fn pair(credit: usize) -> (Front, Peer) {
    let shared = Rc::new(RefCell::new(Shared { credit, ..Shared::default() }));
    let front = Front {
        shared: shared.clone(),
        timer: Timer::default(),
        received: Received::default(),
        pending: VecDeque::new(),
        ended: false,
    };
    (front, Peer(shared))
}

impl Front {
    pub(crate) fn arm(&mut self, at: Option<Instant>) {
        self.timer.set(at);
    }

    pub(crate) fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(cx)
    }

    pub(crate) fn take_head(&mut self, _: &RequestHead, _: usize, _: Vec<u8>) -> Option<[u8; 8]> {
        Some(*b"HTTP/2.0")
    }

    pub(crate) fn open_tunnel(&mut self) {}

    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        Vec::new()
    }

    pub(crate) fn input(&self) -> &[u8] {
        self.received.data()
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.consume(count);
    }

    /// Returns false: the end of a message is not the end of its stream, and a stream that was reset is gone.
    pub(crate) fn has_ended(&self) -> bool {
        false
    }

    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        self.received.is_full(pool)
    }

    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.borrow_mut();
        if shared.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        shared.stream = Some(cx.waker().clone());
        if self.received.is_full(pool) {
            return Poll::Pending;
        }
        match shared.received.pop_front() {
            Some(Part::Data(mut data)) => Poll::Ready(Ok(self.received.add(&mut data))),
            Some(Part::End(trailers)) => {
                self.received.end(trailers);
                Poll::Ready(Ok(0))
            }
            None => Poll::Pending,
        }
    }

    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, pool: &BufferPool, _half: bool) -> Poll<()> {
        loop {
            match self.poll_fill(cx, pool) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    pub(crate) fn replace(&mut self, bytes: &[u8], _: &BufferPool) {
        self.received.replace(bytes);
    }

    pub(crate) fn look(&self, peek: &mut Peek, content: &mut Content) {
        peek.look_at_plain(self.received.data(), self.received.is_complete(), content);
    }

    pub(crate) fn send_head(&mut self, head: &Message, _: HeadForm<'_>) {
        // Neither the framing nor the connection is a matter of heads here.
        let fields = head.fields().filter(|(_, name, _)| !matches!(*name, b"transfer-encoding" | b"connection"));
        let field = |(_, name, value)| [String::from_utf8_lossy(name), String::from_utf8_lossy(value)].join(": ");
        let text = fields.map(field).collect::<Vec<_>>().join("\n");
        self.pending.push_back(Event::Head(head.status(), text));
    }

    pub(crate) fn take_back_head(&mut self) {
        while !matches!(self.pending.pop_back(), Some(Event::Head(..)) | None) {}
    }

    pub(crate) fn send_interim(&mut self, head: &Message, _: HeadForm<'_>) {
        self.pending.push_back(Event::Interim(head.status()));
    }

    pub(crate) fn try_continue(&mut self) {
        let mut shared = self.shared.borrow_mut();
        shared.sent.push_back(Event::Interim(100));
        shared.wake_client();
    }

    pub(crate) fn send_continue(&mut self) {
        self.pending.push_back(Event::Interim(100));
    }

    pub(crate) fn send_page(&mut self, code: u16) {
        let mut head = Message::new();
        head.set_response(Version::Http11, code, b"");
        let body = status::error_page(code).fill(&mut head);
        self.pending.push_back(Event::Head(code, String::new()));
        self.pending.push_back(Event::Data(body.to_vec()));
        self.send_end(None);
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.send_data(bytes);
        match self.poll_flush(cx, &mut Moved::default()) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(bytes.len())),
            Poll::Ready(Err(_)) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            // It was accepted, and goes out with the next one.
            Poll::Pending => Poll::Ready(Ok(bytes.len())),
        }
    }

    pub(crate) fn end_side(&mut self) {
        if !self.ended {
            self.send_end(None);
        }
        let mut shared = self.shared.borrow_mut();
        shared.sent.extend(self.pending.drain(..));
        shared.wake_client();
    }

    pub(crate) fn give_up(&mut self) {}

    pub(crate) async fn drain(&mut self, _: &BufferPool) {}
}

impl End for Front {
    fn h1(&mut self) -> Option<h1::Wire<'_>> {
        None
    }

    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        Ok(self.received.next(moved))
    }

    fn data(&self) -> &[u8] {
        self.received.data()
    }

    fn consume(&mut self, count: usize) {
        self.received.consume(count);
        self.shared.borrow_mut().consumed += count;
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

    fn rest(&mut self, _: &BufferPool) {}

    fn has_room(&self, pool: &BufferPool) -> bool {
        let waiting = |event: &Event| if let Event::Data(data) = event { data.len() } else { 0 };
        self.pending.iter().map(waiting).sum::<usize>() < pool.size()
    }

    fn send_data(&mut self, data: &[u8]) {
        if !data.is_empty() {
            self.pending.push_back(Event::Data(data.to_vec()));
        }
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = trailers.into_iter().flat_map(|trailers| trailers.fields());
        self.pending.push_back(Event::End(fields.map(|(_, name, value)| (text(name), text(value))).collect()));
        self.ended = true;
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let mut shared = self.shared.borrow_mut();
        if shared.reset {
            return Poll::Ready(Err(FlowError::Sink));
        }
        while let Some(mut event) = self.pending.pop_front() {
            if let Event::Data(data) = &mut event {
                let rest = data.split_off(data.len().min(shared.credit));
                shared.credit -= data.len();
                moved.written += data.len();
                let stuck = !rest.is_empty();
                if stuck {
                    self.pending.push_front(Event::Data(rest));
                }
                if stuck && data.is_empty() {
                    shared.stream = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            } else {
                // A head is sent, too: that it is on its way can't be taken back.
                moved.written += 1;
            }
            shared.sent.push_back(event);
            shared.wake_client();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let mut shared = self.shared.borrow_mut();
        if !self.ended || !self.pending.is_empty() {
            shared.sent.push_back(Event::Reset);
        }
        shared.wake_client();
    }
}
