//! HTTP/1 and plain bytes: one stream of a connection at a time, whose end is the connection.
//!
//! A body stays in the buffer that it was read into until it is written, collected or skipped. Data that is sent is
//! rendered behind its head, so that both are written at once.

mod body;
mod relay;
mod websocket;

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_transport::{Buffer, BufferPool, Socket, Timer, Tls};
use sluicegate_wire::http::{
    ConnectionField, Framing, HeadError, Limits, Message, Method, RequestHead, ResponseHead, parse_request,
    parse_response, status, write_request, write_response,
};

pub(crate) use body::{Lent, Reader, Wire, Writer};
pub(crate) use relay::{Passing, relay};
pub(crate) use websocket::accept as accept_websocket;

use super::{Body, End, FlowError, HeadForm, Moved, Peek};
use crate::server::Lease;
use crate::stream::Content;

/// The limits of time and bytes for data that a client sends after an early response, before the connection is closed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const DRAIN_BYTES: usize = 4 * 1024 * 1024;

/// An end of a stream that has a socket.
pub(crate) trait Wired {
    /// Returns the parts of the end.
    fn wire(&mut self) -> Wire<'_>;
    /// Returns the received data, and the reader of its message.
    fn received(&self) -> (&Buffer, &Reader);
    /// Returns the output side: the writer and the socket.
    fn sent(&mut self) -> (&mut Writer, &mut Socket);
    /// Returns the writer, for read access.
    fn writer(&self) -> &Writer;
}

impl<T: Wired> End for T {
    #[inline]
    fn h1(&mut self) -> Option<Wire<'_>> {
        Some(self.wire())
    }

    fn next(&mut self, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        let Wire { input, reader, .. } = self.wire();
        reader.next(input, moved)
    }

    fn data(&self) -> &[u8] {
        let (input, reader) = self.received();
        reader.data(input)
    }

    fn consume(&mut self, count: usize) {
        let Wire { input, reader, .. } = self.wire();
        reader.consume(input, count);
    }

    fn trailers(&mut self) -> Message {
        self.received().1.trailers()
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        self.wire().poll_more(cx, pool, moved)
    }

    fn rest(&mut self, pool: &BufferPool) {
        pool.retire(self.wire().input);
    }

    fn has_room(&self, pool: &BufferPool) -> bool {
        self.writer().has_room(pool.size())
    }

    fn send_data(&mut self, data: &[u8]) {
        self.sent().0.data(data);
    }

    fn send_end(&mut self, trailers: Option<&Message>) {
        self.sent().0.end(trailers);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, moved: &mut Moved) -> Poll<Result<(), FlowError>> {
        let (writer, socket) = self.sent();
        writer.poll_flush(cx, socket, moved)
    }
}

/// A client's connection with the request that it carries.
#[derive(Debug)]
pub(crate) struct Front {
    socket: Socket,
    input: Buffer,
    timer: Timer,
    /// Whether the client has sent FIN; `input` contains the rest of its data.
    ended: bool,
    reader: Reader,
    writer: Writer,
}

impl Wired for Front {
    #[inline]
    fn wire(&mut self) -> Wire<'_> {
        let Front { socket, input, reader, writer, .. } = self;
        Wire { socket, input, reader, writer }
    }

    fn received(&self) -> (&Buffer, &Reader) {
        (&self.input, &self.reader)
    }

    fn sent(&mut self) -> (&mut Writer, &mut Socket) {
        (&mut self.writer, &mut self.socket)
    }

    fn writer(&self) -> &Writer {
        &self.writer
    }
}

impl Front {
    /// Returns the end for an accepted connection.
    pub(crate) fn new(socket: Socket) -> Front {
        Front {
            socket,
            input: Buffer::default(),
            timer: Timer::default(),
            ended: false,
            reader: Reader::new(Framing::UntilClose),
            writer: Writer::default(),
        }
    }

    /// Returns the socket, and the received bytes that are not consumed.
    pub(crate) fn into_parts(self) -> (Socket, Buffer) {
        (self.socket, self.input)
    }

    /// Returns the socket, for options and addresses.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Puts TLS over the connection; received bytes are those of its handshake. `keep` bytes of the client's first
    /// message are kept.
    pub(crate) fn start_tls(&mut self, keep: usize, pool: &BufferPool) {
        self.socket.start_tls_server(self.input.data(), keep);
        self.input.consume(self.input.len());
        pool.retire(&mut self.input);
    }

    /// Returns the TLS stream, if the connection is one.
    pub(crate) fn tls(&mut self) -> Option<&mut Tls> {
        self.socket.tls_mut()
    }

    /// Returns the received and not consumed data.
    pub(crate) fn input(&self) -> &[u8] {
        self.input.data()
    }

    /// Consumes bytes that precede a message.
    pub(crate) fn skip(&mut self, count: usize) {
        self.input.consume(count);
    }

    /// Returns whether the client has ended its side.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sets the time of [`Front::poll_alarm`].
    #[inline]
    pub(crate) fn arm(&mut self, at: Option<Instant>) {
        self.timer.set(at);
    }

    /// Sets an earlier time.
    pub(crate) fn arm_by(&mut self, at: Instant) {
        self.timer.advance(at);
    }

    /// Ready when the time set by [`Front::arm`] has come.
    #[inline]
    pub(crate) fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(cx)
    }

    /// Gives the buffer's memory back to the pool if it is empty or, with `all`, together with the data that it holds.
    pub(crate) fn give_back(&mut self, pool: &BufferPool, all: bool) {
        if all {
            pool.reclaim(&mut self.input);
        } else {
            pool.retire(&mut self.input);
        }
    }

    /// Reads available data; compacts the buffer if there is no room. Returns 0 when the client has closed its side.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        // Without readiness no buffer is taken.
        std::task::ready!(self.socket.poll_read_ready(cx))?;
        pool.equip(&mut self.input);
        if self.input.spare().is_empty() {
            self.input.compact();
        }
        if self.input.spare().is_empty() {
            return Poll::Pending;
        }
        let result = self.socket.poll_read(cx, self.input.spare());
        match result {
            Poll::Ready(Ok(0)) => self.ended = true,
            Poll::Ready(Ok(count)) => self.input.filled(count),
            _ => {}
        }
        pool.retire(&mut self.input);
        result
    }

    /// Ready when the client has disconnected; with `half` also when it has ended its side. Data that it sends
    /// meanwhile is kept.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, pool: &BufferPool, half: bool) -> Poll<()> {
        loop {
            if self.ended {
                return if half { Poll::Ready(()) } else { Poll::Pending };
            }
            match self.poll_fill(cx, pool) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Replaces the bytes received from the client by these.
    pub(crate) fn replace(&mut self, bytes: &[u8], pool: &BufferPool) {
        pool.equip(&mut self.input);
        self.input.replace(bytes);
        pool.retire(&mut self.input);
    }

    /// Returns whether the buffer has no room until bytes are consumed.
    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        self.input.len() == pool.size()
    }

    /// Parses a request's head, if it is complete.
    pub(crate) fn parse_head(
        &self,
        limits: &Limits,
        request: &mut Message,
    ) -> Result<Option<RequestHead>, sluicegate_wire::http::HeadError> {
        parse_request(self.input.data(), limits, request)
    }

    /// Consumes a parsed head; its body follows, with at most `max_fields` trailers. Returns the version as it was
    /// written.
    pub(crate) fn take_head(&mut self, head: &RequestHead, max_fields: usize, memory: Vec<u8>) -> Option<[u8; 8]> {
        let version = version_of(first_line(&self.input.data()[..head.head_len]));
        let version = version.and_then(|version| version.try_into().ok());
        self.input.consume(head.head_len);
        self.reader = Reader::new(head.body);
        self.reader.limit_trailers(max_fields);
        self.writer = Writer::new(memory);
        if let Some(tls) = self.socket.tls_mut() {
            tls.start_message();
        }
        version
    }

    /// Reads and writes plain bytes from here on.
    pub(crate) fn open_tunnel(&mut self) {
        self.reader = Reader::new(Framing::UntilClose);
    }

    /// Returns the memory of the output.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.writer).into_memory()
    }

    /// Updates the rules' view of the body.
    pub(crate) fn look(&self, peek: &mut Peek, content: &mut Content) {
        peek.look(self.input.data(), content);
    }

    /// Sends a head; its body follows.
    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>) {
        let out = self.writer.begin(form.framing);
        write_response(head, form.framing, form.connection, out);
        Writer::adjust_names(out, form.names);
    }

    /// Drops a head of which nothing was sent yet.
    pub(crate) fn take_back_head(&mut self) {
        self.writer.take_back();
    }

    /// Sends an interim response.
    pub(crate) fn send_interim(&mut self, head: &Message, form: HeadForm<'_>) {
        let out = self.writer.begin(Framing::None);
        write_response(head, Framing::None, ConnectionField::None, out);
        Writer::adjust_names(out, form.names);
    }

    /// Sends the interim response 100 to a client that waits for it before it sends its body, if that can be written
    /// immediately. Otherwise the client sends the body after a while anyway.
    pub(crate) fn try_continue(&mut self) {
        self.socket.offer(CONTINUE);
    }

    /// Sends the interim response 100 after the data that is already being sent.
    pub(crate) fn send_continue(&mut self) {
        self.writer.begin(Framing::None).extend_from_slice(CONTINUE);
    }

    /// Sends a built-in page as it is.
    pub(crate) fn send_page(&mut self, code: u16) {
        self.writer.begin(Framing::None).extend_from_slice(status::error_page(code).raw.as_bytes());
    }

    /// Writes a built-in page without waiting; returns the number of bytes written.
    pub(crate) fn try_page(&mut self, code: u16) -> usize {
        self.socket.offer(status::error_page(code).raw.as_bytes())
    }

    /// Writes plain bytes.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.poll_write(cx, bytes)
    }

    /// Prepares to write data of a body from where it is; `None` under TLS, which copies it.
    pub(crate) fn lend<'d>(&mut self, data: &'d [u8], last: bool) -> Option<Lent<'d>> {
        self.socket.tls().is_none().then(|| self.writer.lend(data, last))
    }

    /// Writes what is to be written with the lent data in its place.
    pub(crate) fn poll_lent(
        &mut self,
        cx: &mut Context<'_>,
        lent: &mut Lent<'_>,
        moved: &mut Moved,
    ) -> Poll<Result<(), FlowError>> {
        self.writer.poll_lent(cx, &mut self.socket, lent, moved)
    }

    /// Ends this side of the connection.
    pub(crate) fn end_side(&mut self) {
        self.socket.shutdown_write();
    }

    /// Prepares for closing immediately: the client's data is read from the kernel, so that it does not reset the
    /// connection and lose written data.
    pub(crate) fn give_up(&mut self) {
        self.socket.discard();
    }

    /// Ends a connection whose client may still be sending: its FIN is awaited, within limits, so that the kernel does
    /// not reset the connection under an answer that was not read yet.
    pub(crate) async fn drain(&mut self, pool: &BufferPool) {
        self.socket.shutdown_write();
        if self.ended {
            return;
        }
        self.timer.set(Some(Instant::now() + DRAIN_TIME));
        let mut room = DRAIN_BYTES;
        poll_fn(|cx| {
            loop {
                self.input.consume(self.input.len());
                match self.poll_fill(cx, pool) {
                    Poll::Ready(Ok(count)) if count > 0 && count <= room => room -= count,
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return self.timer.poll(cx),
                }
            }
        })
        .await;
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Returns the request line as received, without its end and without the empty lines that may precede it.
fn first_line(received: &[u8]) -> &[u8] {
    let start = received.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    let line = &received[start..];
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len());
    &line[..end]
}

/// Returns the last of a request line's three words.
fn version_of(line: &[u8]) -> Option<&[u8]> {
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    words.nth(2)
}

/// A body that was sent by another protocol, and follows the next head.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) data: Vec<u8>,
    /// Whether that is all of it.
    pub(crate) ended: bool,
}

/// A connection to a server with the request that it serves.
#[derive(Debug)]
pub(crate) struct Back {
    socket: Socket,
    lease: Lease,
    input: Buffer,
    reader: Reader,
    writer: Writer,
    websocket: Option<websocket::Key>,
    unsent: Option<Box<Unsent>>,
}

impl Wired for Back {
    #[inline]
    fn wire(&mut self) -> Wire<'_> {
        let Back { socket, input, reader, writer, .. } = self;
        Wire { socket, input, reader, writer }
    }

    fn received(&self) -> (&Buffer, &Reader) {
        (&self.input, &self.reader)
    }

    fn sent(&mut self) -> (&mut Writer, &mut Socket) {
        (&mut self.writer, &mut self.socket)
    }

    fn writer(&self) -> &Writer {
        &self.writer
    }
}

impl Back {
    /// Returns the end for a connection assigned to a stream. `writer` holds the request sent on an earlier connection
    /// of the stream, or only memory for a new one.
    pub(crate) fn new(socket: Socket, lease: Lease, writer: Writer) -> Back {
        let reader = Reader::new(Framing::UntilClose);
        Back { socket, lease, input: Buffer::default(), reader, writer, websocket: None, unsent: None }
    }

    /// Returns the end for a request of which a body was sent by another protocol.
    pub(crate) fn behind_head(socket: Socket, lease: Lease, unsent: Unsent) -> Back {
        let any = unsent.ended || !unsent.data.is_empty();
        Back { unsent: any.then(|| Box::new(unsent)), ..Back::new(socket, lease, Writer::default()) }
    }

    pub(crate) fn connection(&self) -> &Lease {
        &self.lease
    }

    /// Returns the parts of the connection with the data needed by a retry: the sent data, if it is still complete.
    pub(crate) fn take_apart(mut self, pool: &BufferPool) -> (Socket, Lease, Writer) {
        pool.reclaim(&mut self.input);
        (self.socket, self.lease, self.writer)
    }

    /// Prepares to send everything again, to another connection, if all of it is still stored.
    pub(crate) fn replay(&mut self) -> bool {
        self.writer.replay()
    }

    /// Sends a request's head; its body follows. `last` is a field after all others, but for the key of a WebSocket that
    /// HTTP/2 does not have.
    pub(crate) fn send_head(&mut self, head: &Message, form: HeadForm<'_>, last: Option<(&[u8], &[u8])>) {
        if let Some(tls) = self.socket.tls_mut() {
            tls.start_message();
        }
        let out = self.writer.begin(form.framing);
        write_request(head, form.framing, form.connection, out);
        self.websocket = websocket::Key::for_request(head);
        let key = self.websocket.as_ref().map(|key| (websocket::KEY_FIELD, key.text()));
        for (name, value) in last.into_iter().chain(key) {
            out.truncate(out.len() - 2);
            for part in [name, b": ", value, b"\r\n\r\n"] {
                out.extend_from_slice(part);
            }
        }
        Writer::adjust_names(out, form.names);
        if let Some(body) = self.unsent.take() {
            if !body.data.is_empty() {
                self.writer.data(&body.data);
            }
            if body.ended {
                self.writer.end(None);
            }
        }
    }

    /// Reads and writes plain bytes from here on.
    pub(crate) fn open_tunnel(&mut self) {
        self.reader = Reader::new(Framing::UntilClose);
        self.writer.chunked = false;
    }

    /// Receives a response's head.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        pool: &BufferPool,
        limits: &Limits,
        method: Method,
        response: &mut Message,
    ) -> Poll<Result<ResponseHead, super::HeadError>> {
        let mut fresh = !self.input.is_empty();
        loop {
            if fresh {
                match parse_response(self.input.data(), limits, method, response) {
                    Ok(Some(head)) => {
                        let accepted = |key: &websocket::Key| response.status() != 101 || key.is_accepted_by(response);
                        return Poll::Ready(match self.websocket.as_ref().is_none_or(accepted) {
                            true => Ok(head),
                            false => Err(super::HeadError::Invalid(HeadError::WebSocketKey)),
                        });
                    }
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(super::HeadError::Invalid(error))),
                }
            }
            match self.poll_fill(cx, pool) {
                Poll::Ready(Ok(count)) if count > 0 => fresh = true,
                Poll::Ready(_) => return Poll::Ready(Err(super::HeadError::Gone)),
                Poll::Pending => break,
            }
        }
        pool.retire(&mut self.input);
        Poll::Pending
    }

    /// Reads available data; returns 0 when the server has closed its side. The buffer stays allocated.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, pool: &BufferPool) -> Poll<io::Result<usize>> {
        pool.equip(&mut self.input);
        if self.input.spare().is_empty() {
            self.input.compact();
        }
        let result = self.socket.poll_read(cx, self.input.spare());
        if let Poll::Ready(Ok(count)) = result {
            self.input.filled(count);
        }
        result
    }

    /// Consumes a head that was parsed: its body follows, with `max_fields` trailers at most.
    pub(crate) fn take_head(&mut self, head: &ResponseHead, max_fields: usize) {
        self.input.consume(head.head_len);
        self.reader = Reader::new(head.body);
        self.reader.limit_trailers(max_fields);
    }

    /// Records that no body follows after all.
    pub(crate) fn forget_body(&mut self) {
        self.reader = Reader::new(Framing::None);
    }

    /// Returns the received and not consumed data.
    pub(crate) fn input(&self) -> &[u8] {
        self.input.data()
    }

    /// Returns whether the buffer has no room until bytes are consumed.
    pub(crate) fn is_full(&self, pool: &BufferPool) -> bool {
        self.input.len() == pool.size()
    }

    /// Replaces the bytes received from the server by these.
    pub(crate) fn replace(&mut self, bytes: &[u8], pool: &BufferPool) {
        pool.equip(&mut self.input);
        self.input.replace(bytes);
        pool.retire(&mut self.input);
    }

    /// Removes a body from the received data if it is complete; returns whether it was.
    pub(crate) fn take_whole_body(&mut self) -> bool {
        self.reader.take_whole(&mut self.input)
    }

    /// Ends this side of the connection.
    pub(crate) fn end_side(&mut self) {
        self.socket.shutdown_write();
    }
}
