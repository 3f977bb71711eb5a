//! A body on its way from one end of HTTP/1 to another, unchanged.
//!
//! A relay holds at most one buffer of the source's bytes and about two of rendered ones, and reads only when all of
//! that is written, so a slow sink stops the source. A head goes out in one write with the body bytes that are there.
//! Body bytes whose framing doesn't change are written from the buffer they were read into; chunked bodies are
//! decoded and chunked again, so that extensions and whatever else a peer may read differently end here. The data of a
//! large body passes from socket to socket through a pipe ([`Pipe`]), and is not seen here. In chunks, what the pipe takes
//! at a time becomes a chunk of its own, so a body may go on by copies at any place; a source that brings little at a time
//! is read, which takes fewer system calls than a pipe and the framing around it.

use std::task::{Context, Poll};

use sluicegate_transport::{BufferPool, Pipe, give_way};
use sluicegate_wire::http::{BodyDecoder, BodyEvent, write_chunk, write_last_chunk};

use super::Wire;
use crate::mux::{FlowError, Moved, Wait};

/// The number of outstanding bytes from which a body passes through a pipe; for fewer, one or two reads and writes
/// suffice.
const SPLICED_MIN: u64 = 64 * 1024;

/// The same for the rest of a chunk. With the framing around it, a pipe takes three system calls.
const SPLICED_CHUNK_MIN: u64 = 32 * 1024;

/// The number of bytes requested at a time; a pipe takes as many as it can.
const SPLICED_MAX: usize = 1 << 20;

/// The number of bytes moved in one turn, which takes a fraction of a millisecond; then other tasks run.
const SPLICED_TURN: usize = 1 << 20;

/// The result of an attempt to fill a pipe.
enum Spliced {
    /// The pipe contains data, or the source has ended.
    Filled,
    /// The source has no data yet.
    Nothing,
    /// No pipe is available, or the source does not support `splice`.
    Not,
}

/// The state of a relay between two polls, and its treatment of the body.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// The pipe that contains body bytes in transit.
    pub(crate) pipe: Option<Pipe>,
    /// Whether the body is read and not written.
    pub(crate) silent: bool,
    pub(crate) no_trailers: bool,
    /// Whether the source has no body, and the sink is to get the end of an empty one.
    pub(crate) empty: bool,
}

/// Moves data as far as possible without waiting.
pub(crate) fn relay(
    passing: &mut Passing,
    cx: &mut Context<'_>,
    source: Wire<'_>,
    sink: Wire<'_>,
    pool: &BufferPool,
    moved: &mut Moved,
) -> Result<Wait, FlowError> {
    Relay { passing, source, sink }.poll(cx, pool, moved)
}

struct Relay<'a> {
    passing: &'a mut Passing,
    source: Wire<'a>,
    sink: Wire<'a>,
}

impl Relay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Result<Wait, FlowError> {
        let passed = self.pass(cx, pool, moved);
        if matches!(passed, Ok(Wait::Sink) | Err(FlowError::Sink)) {
            return passed;
        }
        // Gathered bytes are sent now, also if the source pauses or has failed.
        match self.sink.socket.poll_flush(cx) {
            Poll::Pending if passed.is_ok() => Ok(Wait::Sink),
            Poll::Ready(Err(_)) => Err(FlowError::Sink),
            _ => passed,
        }
    }

    /// Moves data; gathered bytes may remain unsent.
    fn pass(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Result<Wait, FlowError> {
        match self.sink.socket.poll_flush(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Err(FlowError::Sink),
            Poll::Pending => return Ok(Wait::Sink),
        }
        if std::mem::take(&mut self.passing.empty) {
            self.sink.writer.end(None);
        }
        let (mut passed, mut held) = (0, 0);
        loop {
            self.render(pool.size(), moved)?;
            if self.sink.writer.poll_gather(cx, self.sink.socket, &mut held, moved)?.is_pending() {
                return Ok(Wait::Sink);
            }
            while self.source.reader.direct > 0 {
                self.sink.writer.forgotten = true;
                let direct = &self.source.input.data()[..self.source.reader.direct];
                match self.sink.socket.poll_gather(cx, direct, &mut held) {
                    Poll::Ready(Ok(count)) => {
                        self.source.reader.consume(self.source.input, count);
                        moved.written += count;
                    }
                    Poll::Ready(Err(_)) => return Err(FlowError::Sink),
                    Poll::Pending => return Ok(Wait::Sink),
                }
            }
            if self.passing.pipe.is_some() && self.drain(cx, pool, moved)?.is_pending() {
                return Ok(Wait::Sink);
            }
            if self.source.reader.complete {
                pool.retire(self.source.input);
                return Ok(Wait::Done);
            }
            if self.source.input.is_empty() {
                if self.is_large() && self.source.socket.splices() && self.sink.socket.splices() {
                    match self.splice(cx, pool, moved)? {
                        Spliced::Filled => {
                            passed += self.passing.pipe.as_ref().map_or(0, Pipe::len);
                            if passed >= SPLICED_TURN {
                                give_way(cx.waker());
                                return Ok(Wait::Source);
                            }
                            continue;
                        }
                        Spliced::Nothing => {
                            pool.retire(self.source.input);
                            return self.wait_for_source(cx, &mut held, moved);
                        }
                        Spliced::Not => {}
                    }
                }
                match self.source.poll_more(cx, pool, moved)? {
                    Poll::Ready(()) if self.source.input.is_empty() => {
                        self.end_of_source();
                        continue;
                    }
                    Poll::Ready(()) => {}
                    Poll::Pending => return self.wait_for_source(cx, &mut held, moved),
                }
            }
            self.decode_direct(moved)?;
        }
    }

    /// Writes the end of a chunk whose data has passed through a pipe, for which nothing else follows yet.
    #[inline(always)]
    fn wait_for_source(
        &mut self,
        cx: &mut Context<'_>,
        held: &mut usize,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        if self.sink.writer.is_flushed() {
            return Ok(Wait::Source);
        }
        match self.sink.writer.poll_gather(cx, self.sink.socket, held, moved)? {
            Poll::Ready(()) => Ok(Wait::Source),
            Poll::Pending => Ok(Wait::Sink),
        }
    }

    /// Returns whether the expected rest is large enough for a pipe.
    fn is_large(&self) -> bool {
        let reader = &self.source.reader;
        match &reader.decoder {
            _ if self.passing.silent => false,
            BodyDecoder::Length(left) => *left >= SPLICED_MIN && !self.sink.writer.chunked,
            BodyDecoder::UntilClose => reader.streams,
            BodyDecoder::Chunked(decoder) => reader.streams && decoder.data_remaining() >= SPLICED_CHUNK_MIN,
        }
    }

    /// Moves body bytes from the source into a pipe. Everything before them has been written.
    fn splice(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Result<Spliced, FlowError> {
        let Wire { socket, reader, .. } = &mut self.source;
        match socket.poll_read_ready(cx) {
            Poll::Pending => return Ok(Spliced::Nothing),
            Poll::Ready(Err(_)) => return Err(FlowError::Source),
            Poll::Ready(Ok(())) => {}
        }
        let Some(mut pipe) = pool.take_pipe() else { return Ok(Spliced::Not) };
        let most = match &reader.decoder {
            BodyDecoder::Length(left) => *left,
            BodyDecoder::Chunked(decoder) => decoder.data_remaining(),
            BodyDecoder::UntilClose => u64::MAX,
        };
        let count = match socket.poll_fill(cx, &mut pipe, usize::try_from(most).unwrap_or(usize::MAX).min(SPLICED_MAX))
        {
            Poll::Ready(Ok(count)) if count > 0 => count,
            Poll::Ready(Ok(_)) => {
                pool.give_back_pipe(pipe);
                reader.source_closed()?;
                self.end_of_source();
                return Ok(Spliced::Filled);
            }
            Poll::Ready(Err(error)) => {
                pool.give_back_pipe(pipe);
                // Any other fault of the socket comes again with the next read.
                let is_able = error.kind() != std::io::ErrorKind::InvalidInput;
                return if is_able { Err(FlowError::Source) } else { Ok(Spliced::Not) };
            }
            Poll::Pending => {
                pool.give_back_pipe(pipe);
                return Ok(Spliced::Nothing);
            }
        };
        self.sink.writer.begin_unseen(count);
        self.passing.pipe = Some(pipe);
        moved.read += count;
        moved.body += count;
        moved.spliced_in += count;
        match &mut reader.decoder {
            BodyDecoder::Length(left) => {
                *left -= count as u64;
                reader.complete = *left == 0;
                return Ok(Spliced::Filled);
            }
            BodyDecoder::Chunked(decoder) => decoder.skip_data(count as u64),
            BodyDecoder::UntilClose => {}
        }
        // It returns to reading, which shows whether enough data arrives.
        reader.streams = count >= pool.size();
        Ok(Spliced::Filled)
    }

    /// Sends the content of the pipe.
    fn drain(&mut self, cx: &mut Context<'_>, pool: &BufferPool, moved: &mut Moved) -> Result<Poll<()>, FlowError> {
        while let Some(pipe) = &mut self.passing.pipe {
            match self.sink.socket.poll_drain(cx, pipe) {
                Poll::Ready(Ok(count)) => {
                    moved.written += count;
                    moved.spliced_out += count;
                    pool.note_spliced(count);
                    if pipe.is_empty()
                        && let Some(pipe) = self.passing.pipe.take()
                    {
                        pool.give_back_pipe(pipe);
                        self.sink.writer.end_unseen();
                    }
                }
                Poll::Ready(Err(_)) => return Err(FlowError::Sink),
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Called at the end of the source: a body delimited by the end of its connection has no trailers.
    fn end_of_source(&mut self) {
        if !self.passing.silent {
            self.sink.writer.end(None);
        }
    }

    /// Appends body bytes to the rendered output. This happens while a head is not written yet, and whenever the body
    /// is sent in chunks.
    fn render(&mut self, limit: usize, moved: &mut Moved) -> Result<(), FlowError> {
        if self.passing.silent {
            return self.skip(moved);
        }
        let Relay { passing, source: Wire { input, reader, .. }, sink: Wire { writer, .. } } = self;
        let behind_head = writer.written == 0 && !writer.out.is_empty();
        if reader.complete || reader.direct > 0 || !(behind_head || writer.chunked) {
            return Ok(());
        }
        if writer.chunked && writer.written < writer.out.len() && writer.written > 0 {
            return Ok(());
        }
        while !reader.complete && !input.is_empty() && writer.out.len() - writer.written < limit {
            writer.forget_written();
            let (taken, event) = reader.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
            moved.count(&event, &reader.decoder);
            let mut ended = event == BodyEvent::End;
            if let BodyEvent::Data(range) = event {
                let data = &input.data()[range];
                if writer.chunked {
                    write_chunk(data, &mut writer.out);
                } else {
                    writer.out.extend_from_slice(data);
                }
                ended = reader.decoder.is_done();
            }
            if ended {
                reader.complete = true;
                if writer.chunked {
                    match &reader.decoder {
                        BodyDecoder::Chunked(decoder) if !passing.no_trailers => {
                            write_last_chunk(decoder.trailers(), &mut writer.out);
                        }
                        _ => write_last_chunk(std::iter::empty(), &mut writer.out),
                    }
                }
            }
            input.consume(taken);
        }
        Ok(())
    }

    /// Reads body bytes and discards them.
    fn skip(&mut self, moved: &mut Moved) -> Result<(), FlowError> {
        let Wire { input, reader, .. } = &mut self.source;
        while !reader.complete && !input.is_empty() {
            let (taken, event) = reader.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
            moved.count(&event, &reader.decoder);
            input.consume(taken);
            reader.complete = event == BodyEvent::End || reader.decoder.is_done();
        }
        Ok(())
    }

    /// Finds the next body bytes, which are written directly from the input buffer.
    fn decode_direct(&mut self, moved: &mut Moved) -> Result<(), FlowError> {
        if self.passing.silent {
            return self.skip(moved);
        }
        let Wire { input, reader, .. } = &mut self.source;
        if self.sink.writer.chunked || input.is_empty() {
            return Ok(());
        }
        let (taken, event) = reader.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
        moved.count(&event, &reader.decoder);
        match event {
            BodyEvent::More => input.consume(taken),
            BodyEvent::End => {
                input.consume(taken);
                reader.complete = true;
            }
            BodyEvent::Data(range) => {
                debug_assert_eq!(range.end, taken);
                input.consume(range.start);
                reader.direct = range.len();
                reader.complete = matches!(reader.decoder, BodyDecoder::Length(0));
            }
        }
        Ok(())
    }
}
