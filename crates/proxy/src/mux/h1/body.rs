//! Bodies of HTTP/1: decoding of received bytes, and framing of sent ones.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sluicegate_transport::{Buffer, BufferPool, Socket};
use sluicegate_wire::http::{
    BodyDecoder, BodyEvent, ConnectionField, Framing, Message, NameCases, adjust_names, write_chunk, write_chunk_end,
    write_chunk_start, write_last_chunk, write_request,
};
use tokio::io::AsyncWrite;

use super::super::{Body, FlowError, Moved};

/// The parts of an end: its socket, the received data, and both bodies.
pub(crate) struct Wire<'a> {
    pub(crate) socket: &'a mut Socket,
    pub(crate) input: &'a mut Buffer,
    pub(crate) reader: &'a mut Reader,
    pub(crate) writer: &'a mut Writer,
}

impl Wire<'_> {
    /// Reads more of the body.
    pub(super) fn poll_more(
        &mut self,
        cx: &mut Context<'_>,
        pool: &BufferPool,
        moved: &mut Moved,
    ) -> Poll<Result<(), FlowError>> {
        let Wire { socket, input, reader, .. } = self;
        pool.equip(input);
        let result = match socket.poll_read(cx, input.spare()) {
            Poll::Ready(Ok(0)) => reader.source_closed(),
            Poll::Ready(Ok(count)) => {
                reader.streams = count == pool.size();
                input.filled(count);
                moved.read += count;
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(Err(_)) => Err(FlowError::Source),
            Poll::Pending => {
                pool.retire(input);
                return Poll::Pending;
            }
        };
        pool.retire(input);
        Poll::Ready(result)
    }
}

/// The state of receiving a body.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub(super) decoder: BodyDecoder,
    /// Body bytes at the start of the input that were found and not consumed.
    pub(super) direct: usize,
    /// Whether the end of the body was found, after the `direct` bytes.
    pub(super) complete: bool,
    /// Whether the last read filled its buffer, so that more data is expected.
    pub(super) streams: bool,
}

impl Reader {
    /// Returns a reader for a body with this framing.
    pub(crate) fn new(framing: Framing) -> Reader {
        let decoder = BodyDecoder::new(framing);
        Reader { complete: decoder.is_done(), decoder, direct: 0, streams: false }
    }

    /// Limits the number of trailers in the same way as the fields of a head.
    pub(crate) fn limit_trailers(&mut self, max_fields: usize) {
        self.decoder.limit_trailers(max_fields);
    }

    /// Returns the next event in the received data.
    pub(crate) fn next(&mut self, input: &mut Buffer, moved: &mut Moved) -> Result<Option<Body>, FlowError> {
        if self.direct > 0 {
            return Ok(Some(Body::Data(self.direct)));
        }
        while !self.complete && !input.is_empty() {
            let (taken, event) = self.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
            moved.count(&event, &self.decoder);
            match event {
                BodyEvent::More => input.consume(taken),
                BodyEvent::End => {
                    input.consume(taken);
                    self.complete = true;
                    if self.fields().next().is_some() {
                        return Ok(Some(Body::Trailers));
                    }
                }
                BodyEvent::Data(range) => {
                    debug_assert_eq!(range.end, taken);
                    input.consume(range.start);
                    self.direct = range.len();
                    self.complete = self.decoder.is_done();
                    return Ok(Some(Body::Data(self.direct)));
                }
            }
        }
        Ok(self.complete.then_some(Body::End))
    }

    pub(crate) fn data<'a>(&self, input: &'a Buffer) -> &'a [u8] {
        &input.data()[..self.direct]
    }

    pub(crate) fn consume(&mut self, input: &mut Buffer, count: usize) {
        input.consume(count);
        self.direct -= count;
    }

    /// Removes the body from the received data if it is complete; returns whether it was.
    pub(crate) fn take_whole(&mut self, input: &mut Buffer) -> bool {
        let (body, mut moved) = (self.clone(), Moved::default());
        loop {
            match self.next(input, &mut moved) {
                Ok(Some(Body::Data(count))) => self.consume(input, count),
                Ok(Some(Body::Trailers)) => {}
                Ok(Some(Body::End)) => return true,
                Ok(None) | Err(_) => {
                    *self = body;
                    return false;
                }
            }
        }
    }

    /// Returns the trailers as they were received.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let decoder = match &self.decoder {
            BodyDecoder::Chunked(decoder) => Some(decoder),
            _ => None,
        };
        decoder.into_iter().flat_map(|decoder| decoder.trailers())
    }

    pub(crate) fn trailers(&self) -> Message {
        let mut trailers = Message::new();
        for (name, value) in self.fields() {
            trailers.add(name, value);
        }
        trailers
    }

    /// Called when the source has ended, which also ends a body that is delimited by the end of its connection.
    pub(crate) fn source_closed(&mut self) -> Result<(), FlowError> {
        if !matches!(self.decoder, BodyDecoder::UntilClose) {
            return Err(FlowError::Closed);
        }
        self.complete = true;
        Ok(())
    }
}

/// The state of sending a message: rendered bytes, and the framing of its body.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Rendered bytes, a head or chunks, and how many of them were written.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    /// The place in `out` at which the message begins.
    pub(super) began: usize,
    pub(super) chunked: bool,
    /// Whether some of the bytes written since the message began are no longer in `out`.
    pub(super) forgotten: bool,
}

/// Data of a body that is written from where it is.
#[derive(Debug)]
pub(crate) struct Lent<'d> {
    /// The part that is not written yet.
    data: &'d [u8],
    /// Its place in the rendered bytes.
    place: usize,
}

impl Writer {
    /// Returns an empty writer with this memory.
    pub(crate) fn new(memory: Vec<u8>) -> Writer {
        Writer { out: memory, ..Writer::default() }
    }

    /// Returns the memory, to be used again.
    pub(crate) fn into_memory(mut self) -> Vec<u8> {
        self.out.clear();
        self.out
    }

    /// Returns everything that is stored of the message.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Renders the head of a request.
    pub(crate) fn request(&mut self, head: &Message, framing: Framing, connection: ConnectionField) {
        write_request(head, framing, connection, self.begin(framing));
    }

    /// Begins a message with this framing of its body; its head must be rendered into the returned buffer. Unwritten
    /// data of the previous message stays in front of it.
    pub(super) fn begin(&mut self, framing: Framing) -> &mut Vec<u8> {
        if self.is_flushed() {
            self.out.clear();
            self.written = 0;
            self.forgotten = false;
        }
        self.began = self.out.len();
        self.chunked = framing == Framing::Chunked;
        &mut self.out
    }

    /// Drops what was rendered of the message, of which nothing was written yet.
    pub(super) fn take_back(&mut self) {
        debug_assert!(self.written <= self.began, "a part of the message was sent");
        self.out.truncate(self.began);
    }

    /// Gives names of a rendered head the case that they need.
    pub(super) fn adjust_names(head: &mut [u8], names: Option<&NameCases>) {
        if let Some(names) = names {
            adjust_names(names, head);
        }
    }

    /// Schedules all output to be written again; returns `false` if some of it is no longer stored.
    pub(super) fn replay(&mut self) -> bool {
        if !self.forgotten {
            self.written = 0;
        }
        !self.forgotten
    }

    /// Returns whether nothing was rendered yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.out.is_empty() && !self.forgotten
    }

    pub(super) fn has_room(&self, limit: usize) -> bool {
        (self.written == 0 || self.is_flushed()) && self.out.len() - self.written < limit
    }

    pub(super) fn forget_written(&mut self) {
        if self.written > 0 && self.is_flushed() {
            self.out.clear();
            self.written = 0;
            self.forgotten = true;
        }
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        self.forget_written();
        if self.chunked {
            write_chunk(data, &mut self.out);
        } else {
            self.out.extend_from_slice(data);
        }
    }

    pub(crate) fn end(&mut self, trailers: Option<&Message>) {
        if self.chunked {
            self.forget_written();
            let fields = trailers.into_iter().flat_map(|trailers| trailers.fields());
            write_last_chunk(fields.map(|(_, name, value)| (name, value)), &mut self.out);
        }
    }

    /// Renders what precedes data that does not pass through this program's memory.
    pub(super) fn begin_unseen(&mut self, count: usize) {
        self.forget_written();
        self.forgotten = true;
        if self.chunked {
            write_chunk_start(count as u64, &mut self.out);
        }
    }

    /// Renders what follows such data.
    pub(super) fn end_unseen(&mut self) {
        if self.chunked {
            self.forget_written();
            write_chunk_end(&mut self.out);
        }
    }

    /// Renders the framing of data that is written from where it is, and with `last` the end of the body.
    pub(super) fn lend<'d>(&mut self, data: &'d [u8], last: bool) -> Lent<'d> {
        self.forget_written();
        if self.chunked {
            write_chunk_start(data.len() as u64, &mut self.out);
        }
        let place = self.out.len();
        if self.chunked && !data.is_empty() {
            write_chunk_end(&mut self.out);
        }
        if last {
            self.end(None);
        }
        Lent { data, place }
    }

    /// Writes the rendered bytes with the lent data in its place.
    pub(super) fn poll_lent(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut Socket,
        lent: &mut Lent<'_>,
        moved: &mut Moved,
    ) -> Poll<Result<(), FlowError>> {
        while !lent.data.is_empty() {
            let (before, after) = self.out.split_at(lent.place);
            let before = &before[self.written..];
            let parts = [before, lent.data, after].map(IoSlice::new);
            let Ok(count) = ready!(Pin::new(&mut *socket).poll_write_vectored(cx, &parts)) else {
                return Poll::Ready(Err(FlowError::Sink));
            };
            let rendered = count.min(before.len());
            let data = (count - rendered).min(lent.data.len());
            lent.data = &lent.data[data..];
            self.written += count - data;
            moved.written += count;
        }
        self.poll_flush(cx, socket, moved)
    }

    /// Writes the rendered data.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut Socket,
        moved: &mut Moved,
    ) -> Poll<Result<(), FlowError>> {
        self.poll_pass(moved, |bytes| socket.poll_write(cx, bytes))
    }

    /// Returns whether all that was rendered is written.
    #[inline]
    pub(super) fn is_flushed(&self) -> bool {
        self.written == self.out.len()
    }

    /// Like [`Writer::poll_flush`], but what can't be written again anyway is gathered, see [`Socket::poll_gather`].
    pub(super) fn poll_gather(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut Socket,
        held: &mut usize,
        moved: &mut Moved,
    ) -> Poll<Result<(), FlowError>> {
        if self.forgotten {
            self.poll_pass(moved, |bytes| socket.poll_gather(cx, bytes, held))
        } else {
            self.poll_flush(cx, socket, moved)
        }
    }

    fn poll_pass(
        &mut self,
        moved: &mut Moved,
        mut write: impl FnMut(&[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<Result<(), FlowError>> {
        while self.written < self.out.len() {
            match write(&self.out[self.written..]) {
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    moved.written += count;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(FlowError::Sink)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn a_message_is_sent_again_only_while_everything_that_was_written_is_there() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (sending, _receiver) = UnixStream::pair().unwrap();
            let (mut socket, mut moved) = (Socket::Unix(sending), Moved::default());
            let mut writer = Writer::new(Vec::new());
            assert!(writer.is_fresh());
            writer.begin(Framing::Length(6)).extend_from_slice(b"head ");
            writer.data(b"abc");
            for (wanted, replayable) in [(8, true), (16, true), (27, false)] {
                if wanted == 27 {
                    // Written whole once more, then followed by bytes that push the first ones out.
                    assert!(poll_fn(|cx| writer.poll_flush(cx, &mut socket, &mut moved)).await.is_ok());
                    writer.data(b"def");
                }
                assert!(poll_fn(|cx| writer.poll_flush(cx, &mut socket, &mut moved)).await.is_ok());
                assert_eq!((moved.written, writer.replay()), (wanted, replayable));
                assert!(!writer.is_fresh());
            }
        });
    }
}
