//! One direction of a relay: bytes from a source socket to a sink socket, framed anew where the sides differ.
//!
//! A flow holds at most one buffer of the source's bytes and about two of rendered ones, and reads only when all of
//! that is written, so a slow sink stops the source. A head goes out in one write with the body bytes that are there.
//! Body bytes whose framing doesn't change are written from the buffer they were read into; chunked bodies are
//! decoded and chunked again, so that extensions and whatever else a peer may read differently end here. A large body
//! whose framing doesn't change passes from socket to socket through a pipe ([`Pipe`]), and is not seen here.
//!
//! The future that polls a flow owns both sockets and polls both directions each time it wakes; [`Wait`] says what
//! the flow is waiting for, which is what its timeouts depend on.

use std::task::{Context, Poll};

use sluicegate_transport::{Buffer, BufferPool, Pipe, Socket, give_way};
use sluicegate_wire::http::{BodyDecoder, BodyEvent, Framing, write_chunk, write_last_chunk};

use crate::compress::Encoder;

/// Bytes to come from which on a body passes through a pipe: below that, a read and a write or two do.
const SPLICED_MIN: u64 = 64 * 1024;

/// Bytes that are asked for at a time; a pipe takes what it can.
const SPLICED_MAX: usize = 1 << 20;

/// Bytes that pass in one turn, which takes a fraction of a millisecond; others have theirs then.
const SPLICED_TURN: usize = 1 << 20;

/// What came of an attempt to fill a pipe.
enum Spliced {
    /// Something is in it, or the source has ended.
    Filled,
    /// The source has nothing yet.
    Nothing,
    /// There is no pipe, or the source knows none.
    Not,
}

/// What a flow waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Bytes from its source.
    Source,
    /// Room at its sink.
    Sink,
    /// Nothing: everything was written.
    Done,
}

/// Why a flow ended early.
#[derive(Debug)]
pub(crate) enum FlowError {
    /// The source closed before the body was complete.
    Closed,
    /// The source failed.
    Source,
    /// The sink failed.
    Sink,
    /// The source's chunks are malformed.
    Malformed,
}

/// Bytes that moved during polls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Read from the source.
    pub(crate) read: usize,
    /// Body data found in the input, trailers, and a byte for the end of a chunked body, as HAProxy counts them.
    pub(crate) body: usize,
    /// Written to the sink.
    pub(crate) written: usize,
}

impl Moved {
    pub(super) fn count(&mut self, event: &BodyEvent, decoder: &BodyDecoder) {
        match event {
            BodyEvent::End => {
                if let BodyDecoder::Chunked(decoder) = decoder {
                    self.body += decoder.trailers().map(|(name, value)| name.len() + value.len()).sum::<usize>() + 1;
                }
            }
            BodyEvent::More => {}
            BodyEvent::Data(range) => self.body += range.len(),
        }
    }
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Rendered bytes, a head or chunks, and how many of them were written.
    out: Vec<u8>,
    written: usize,
    /// Body bytes at the start of the input that go out as they are.
    direct: usize,
    decoder: BodyDecoder,
    rechunk: bool,
    no_trailers: bool,
    /// The body is read and not written.
    silent: bool,
    /// What the body is compressed with, into chunks.
    encoder: Option<Box<Encoder>>,
    complete: bool,
    /// Everything that was written since the start is still in `out`.
    replayable: bool,
    /// The last read filled its buffer: more comes than that.
    streams: bool,
    /// Body bytes on their way past us; see [`Flow::splice`].
    pipe: Option<Pipe>,
}

impl Flow {
    /// A flow that writes `out` and then the body that `source` frames, framed as `sink` says.
    pub(crate) fn new(out: Vec<u8>, source: Framing, sink: Framing) -> Flow {
        let decoder = BodyDecoder::new(source);
        Flow {
            complete: decoder.is_done(),
            out,
            written: 0,
            direct: 0,
            decoder,
            rechunk: sink == Framing::Chunked,
            no_trailers: false,
            silent: false,
            encoder: None,
            replayable: true,
            streams: false,
            pipe: None,
        }
    }

    /// Nothing was given to write yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.out.is_empty() && self.replayable
    }

    /// Gives a fresh flow the head that precedes the body.
    pub(crate) fn start(&mut self, out: Vec<u8>) {
        debug_assert!(self.is_fresh());
        self.out = out;
    }

    /// Leaves out what stands behind the last chunk.
    pub(crate) fn drop_trailers(&mut self) {
        self.no_trailers = true;
    }

    /// Limits trailers as the fields of a head are limited.
    pub(crate) fn limit_trailers(&mut self, max_fields: usize) {
        self.decoder.limit_trailers(max_fields);
    }

    /// Reads the body without writing it: the head is all that the sink gets.
    pub(crate) fn drop_body(&mut self) {
        self.silent = true;
    }

    /// Compresses the body from here on; the sink's framing is chunks.
    pub(crate) fn encode(&mut self, encoder: Encoder) {
        self.rechunk = true;
        self.encoder = Some(Box::new(encoder));
    }

    /// Bytes of the body before and after compression since the last call, and whether that leaves them as they are.
    pub(crate) fn take_encoded(&mut self) -> Option<(u64, u64, bool)> {
        let encoder = self.encoder.as_mut()?;
        let (read, written) = encoder.take_moved();
        Some((read, written, encoder.is_identity()))
    }

    /// The memory for rendered bytes, to be used again.
    pub(crate) fn into_memory(mut self) -> Vec<u8> {
        self.out.clear();
        self.out
    }

    /// Nothing is left to read and to write.
    pub(crate) fn is_done(&self) -> bool {
        self.complete && self.written == self.out.len() && self.direct == 0 && self.pipe.is_none()
    }

    /// Bytes went to the sink.
    pub(crate) fn has_written(&self) -> bool {
        self.written > 0 || !self.replayable
    }

    /// Starts again on another sink, if nothing that was written has been forgotten.
    pub(crate) fn replay(&mut self) -> bool {
        if self.replayable {
            self.written = 0;
        }
        self.replayable
    }

    /// Moves what can be moved without waiting.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        source: &mut Socket,
        sink: &mut Socket,
        pool: &BufferPool,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        let mut passed = 0;
        loop {
            self.render(input, pool.size(), moved)?;
            while self.written < self.out.len() {
                match sink.poll_write(cx, &self.out[self.written..]) {
                    Poll::Ready(Ok(count)) => {
                        self.written += count;
                        moved.written += count;
                    }
                    Poll::Ready(Err(_)) => return Err(FlowError::Sink),
                    Poll::Pending => return Ok(Wait::Sink),
                }
            }
            while self.direct > 0 {
                self.replayable = false;
                match sink.poll_write(cx, &input.data()[..self.direct]) {
                    Poll::Ready(Ok(count)) => {
                        input.consume(count);
                        self.direct -= count;
                        moved.written += count;
                    }
                    Poll::Ready(Err(_)) => return Err(FlowError::Sink),
                    Poll::Pending => return Ok(Wait::Sink),
                }
            }
            if self.pipe.is_some() && self.drain(cx, sink, pool, moved)?.is_pending() {
                return Ok(Wait::Sink);
            }
            if self.complete {
                pool.retire(input);
                return Ok(Wait::Done);
            }
            if input.is_empty() {
                if self.is_large() && source.splices() && sink.splices() {
                    match self.splice(cx, source, pool, moved)? {
                        Spliced::Filled => {
                            passed += self.pipe.as_ref().map_or(0, Pipe::len);
                            if passed >= SPLICED_TURN {
                                give_way(cx.waker());
                                return Ok(Wait::Source);
                            }
                            continue;
                        }
                        Spliced::Nothing => {
                            pool.retire(input);
                            return Ok(Wait::Source);
                        }
                        Spliced::Not => {}
                    }
                }
                pool.equip(input);
                match source.poll_read(cx, input.spare()) {
                    Poll::Ready(Ok(0)) => {
                        pool.retire(input);
                        self.source_closed()?;
                        continue;
                    }
                    Poll::Ready(Ok(count)) => {
                        self.streams = count == pool.size();
                        input.filled(count);
                        moved.read += count;
                    }
                    Poll::Ready(Err(_)) => {
                        pool.retire(input);
                        return Err(FlowError::Source);
                    }
                    Poll::Pending => {
                        pool.retire(input);
                        // What is held back is not to wait for a slow source.
                        if self.flush_encoder() {
                            continue;
                        }
                        return Ok(Wait::Source);
                    }
                }
            }
            self.decode_direct(input, moved)?;
        }
    }

    /// Whether so much is to come that the detour through a pipe pays.
    fn is_large(&self) -> bool {
        match self.decoder {
            _ if self.rechunk || self.silent => false,
            BodyDecoder::Length(left) => left >= SPLICED_MIN,
            BodyDecoder::UntilClose => self.streams,
            BodyDecoder::Chunked(_) => false,
        }
    }

    /// Takes body bytes of the source into a pipe. Everything before them has been written.
    fn splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Socket,
        pool: &BufferPool,
        moved: &mut Moved,
    ) -> Result<Spliced, FlowError> {
        match source.poll_read_ready(cx) {
            Poll::Pending => return Ok(Spliced::Nothing),
            Poll::Ready(Err(_)) => return Err(FlowError::Source),
            Poll::Ready(Ok(())) => {}
        }
        let Some(mut pipe) = pool.take_pipe() else { return Ok(Spliced::Not) };
        let most = if let BodyDecoder::Length(left) = self.decoder { left } else { u64::MAX };
        let count = match source.poll_fill(cx, &mut pipe, usize::try_from(most).unwrap_or(usize::MAX).min(SPLICED_MAX))
        {
            Poll::Ready(Ok(count)) if count > 0 => count,
            Poll::Ready(Ok(_)) => {
                pool.give_back_pipe(pipe);
                self.source_closed()?;
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
        self.replayable = false;
        self.pipe = Some(pipe);
        moved.read += count;
        moved.body += count;
        match &mut self.decoder {
            BodyDecoder::Length(left) => {
                *left -= count as u64;
                self.complete = *left == 0;
            }
            // It goes back to reading, which tells whether as much comes.
            _ => self.streams = count >= pool.size(),
        }
        Ok(Spliced::Filled)
    }

    /// Sends what is in the pipe.
    fn drain(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Socket,
        pool: &BufferPool,
        moved: &mut Moved,
    ) -> Result<Poll<()>, FlowError> {
        while let Some(pipe) = &mut self.pipe {
            match sink.poll_drain(cx, pipe) {
                Poll::Ready(Ok(count)) => {
                    moved.written += count;
                    pool.note_spliced(count);
                    if pipe.is_empty()
                        && let Some(pipe) = self.pipe.take()
                    {
                        pool.give_back_pipe(pipe);
                    }
                }
                Poll::Ready(Err(_)) => return Err(FlowError::Sink),
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Takes at most `room` body bytes for someone here; says whether the body is complete.
    pub(crate) fn collect(
        &mut self,
        input: &mut Buffer,
        into: &mut Vec<u8>,
        room: usize,
        moved: &mut Moved,
    ) -> Result<bool, FlowError> {
        self.replayable = false;
        let limit = into.len() + room;
        while !self.complete && !input.is_empty() && into.len() < limit {
            let within = &input.data()[..input.len().min(limit - into.len())];
            let (taken, event) = self.decoder.decode(within).map_err(|_| FlowError::Malformed)?;
            moved.count(&event, &self.decoder);
            if let BodyEvent::Data(range) = &event {
                into.extend_from_slice(&within[range.clone()]);
            }
            input.consume(taken);
            self.complete = event == BodyEvent::End || self.decoder.is_done();
        }
        Ok(self.complete)
    }

    /// Takes and forgets body bytes, for a message whose sink is gone; says whether the body is complete.
    pub(crate) fn discard(&mut self, input: &mut Buffer, moved: &mut Moved) -> Result<bool, FlowError> {
        self.replayable = false;
        self.written = self.out.len();
        self.pipe = None;
        input.consume(std::mem::take(&mut self.direct));
        while !self.complete && !input.is_empty() {
            let (taken, event) = self.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
            input.consume(taken);
            moved.count(&event, &self.decoder);
            self.complete = event == BodyEvent::End || self.decoder.is_done();
        }
        Ok(self.complete)
    }

    fn source_closed(&mut self) -> Result<(), FlowError> {
        if !matches!(self.decoder, BodyDecoder::UntilClose) {
            return Err(FlowError::Closed);
        }
        self.complete = true;
        if self.rechunk {
            self.forget_written();
            if let Some(encoder) = &mut self.encoder {
                encoder.finish(&mut self.out);
            }
            write_last_chunk(std::iter::empty(), &mut self.out);
        }
        Ok(())
    }

    /// `true`: there is more to write.
    fn flush_encoder(&mut self) -> bool {
        if self.encoder.is_none() {
            return false;
        }
        self.forget_written();
        self.encoder.as_mut().is_some_and(|encoder| encoder.flush(&mut self.out))
    }

    fn forget_written(&mut self) {
        if self.written > 0 {
            debug_assert_eq!(self.written, self.out.len());
            self.out.clear();
            self.written = 0;
            self.replayable = false;
        }
    }

    /// Appends body bytes to the rendered ones: behind a head that is not written yet, and whenever chunks are made.
    fn render(&mut self, input: &mut Buffer, limit: usize, moved: &mut Moved) -> Result<(), FlowError> {
        if self.silent {
            return self.skip(input, moved);
        }
        let behind_head = self.written == 0 && !self.out.is_empty();
        if self.complete || self.direct > 0 || !(behind_head || self.rechunk) {
            return Ok(());
        }
        if self.rechunk && self.written < self.out.len() && self.written > 0 {
            return Ok(());
        }
        while !self.complete && !input.is_empty() && self.out.len() - self.written < limit {
            self.forget_written();
            let (taken, event) = self.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
            moved.count(&event, &self.decoder);
            match event {
                BodyEvent::More => {}
                BodyEvent::End => self.end_body(),
                BodyEvent::Data(range) => {
                    let data = &input.data()[range];
                    if let Some(encoder) = &mut self.encoder {
                        encoder.push(data, &mut self.out);
                    } else if self.rechunk {
                        write_chunk(data, &mut self.out);
                    } else {
                        self.out.extend_from_slice(data);
                    }
                    if self.decoder.is_done() {
                        self.end_body();
                    }
                }
            }
            input.consume(taken);
        }
        Ok(())
    }

    /// Reads body bytes that go nowhere.
    fn skip(&mut self, input: &mut Buffer, moved: &mut Moved) -> Result<(), FlowError> {
        while !self.complete && !input.is_empty() {
            let (taken, event) = self.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
            moved.count(&event, &self.decoder);
            input.consume(taken);
            self.complete = event == BodyEvent::End || self.decoder.is_done();
        }
        Ok(())
    }

    fn end_body(&mut self) {
        self.complete = true;
        if !self.rechunk {
            return;
        }
        if let Some(encoder) = &mut self.encoder {
            encoder.finish(&mut self.out);
        }
        match &self.decoder {
            BodyDecoder::Chunked(decoder) if !self.no_trailers => write_last_chunk(decoder.trailers(), &mut self.out),
            _ => write_last_chunk(std::iter::empty(), &mut self.out),
        }
    }

    /// Finds the next body bytes to write from where they are.
    fn decode_direct(&mut self, input: &mut Buffer, moved: &mut Moved) -> Result<(), FlowError> {
        if self.silent {
            return self.skip(input, moved);
        }
        if self.rechunk || input.is_empty() {
            return Ok(());
        }
        let (taken, event) = self.decoder.decode(input.data()).map_err(|_| FlowError::Malformed)?;
        moved.count(&event, &self.decoder);
        match event {
            BodyEvent::More => input.consume(taken),
            BodyEvent::End => {
                input.consume(taken);
                self.complete = true;
            }
            BodyEvent::Data(range) => {
                debug_assert_eq!(range.end, taken);
                input.consume(range.start);
                self.direct = range.len();
                self.complete = matches!(self.decoder, BodyDecoder::Length(0));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    /// Relays `body`, which arrives in pieces of `piece` bytes behind a head that is written first; gives what the sink
    /// got, how many body bytes were counted, and what was left in the input.
    fn relay(body: &[u8], piece: usize, source: Framing, sink: Framing) -> (Vec<u8>, usize, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, receiving) = UnixStream::pair().unwrap();
            let (sending, mut receiver) = UnixStream::pair().unwrap();
            let (mut from, mut to) = (Socket::Unix(receiving), Socket::Unix(sending));
            let pool = BufferPool::new(64);
            let (mut input, mut moved) = (Buffer::default(), Moved::default());
            let mut flow = Flow::new(b"head ".to_vec(), source, sink);
            let relayed = async {
                poll_fn(|cx| match flow.poll(cx, &mut input, &mut from, &mut to, &pool, &mut moved) {
                    Ok(Wait::Done) => Poll::Ready(()),
                    Ok(_) => Poll::Pending,
                    Err(error) => panic!("{error:?}"),
                })
                .await;
            };
            let fed = async {
                for bytes in body.chunks(piece) {
                    sender.write_all(bytes).await.unwrap();
                    tokio::task::yield_now().await;
                }
                sender.shutdown().await.unwrap();
            };
            tokio::join!(fed, relayed);
            assert!(flow.is_done());
            drop(to);
            let mut got = Vec::new();
            receiver.read_to_end(&mut got).await.unwrap();
            (got, moved.body, input.data().to_vec())
        })
    }

    #[test]
    fn every_framing_survives_every_split() {
        let chunked = b"3;x=1\r\nabc\r\n5\r\ndefgh\r\n0\r\nT: v\r\n\r\n";
        for piece in 1..=chunked.len() {
            let (got, _, _) = relay(b"abcdefgh", piece, Framing::Length(8), Framing::Length(8));
            assert_eq!(got, b"head abcdefgh", "length, by {piece}");
            let (got, count, _) = relay(b"abcdefgh", piece, Framing::UntilClose, Framing::UntilClose);
            assert_eq!((&got[..], count), (&b"head abcdefgh"[..], 8), "until close, by {piece}");
            let (got, _, _) = relay(chunked, piece, Framing::Chunked, Framing::UntilClose);
            assert_eq!(got, b"head abcdefgh", "chunks to none, by {piece}");
            let (got, count, _) = relay(chunked, piece, Framing::Chunked, Framing::Chunked);
            let body = got.strip_prefix(b"head ").expect("the head goes first");
            let mut decoder = BodyDecoder::new(Framing::Chunked);
            let (mut at, mut data) = (0, Vec::new());
            loop {
                let (taken, event) = decoder.decode(&body[at..]).expect("well-formed");
                match event {
                    BodyEvent::Data(range) => data.extend_from_slice(&body[at..][range]),
                    BodyEvent::More => panic!("incomplete: {body:?}"),
                    BodyEvent::End => break,
                }
                at += taken;
            }
            assert_eq!((&data[..], count), (&b"abcdefgh"[..], 8 + 3), "chunks, by {piece}");
            assert!(body.ends_with(b"0\r\nt: v\r\n\r\n") && !body.contains(&b';'), "chunks, by {piece}");
        }
    }

    #[test]
    fn what_follows_a_body_stays_in_the_input() {
        let (got, _, left) = relay(b"abcGET /", 8, Framing::Length(3), Framing::Length(3));
        assert_eq!((&got[..], &left[..]), (&b"head abc"[..], &b"GET /"[..]));
        let (got, _, left) = relay(b"1\r\na\r\n0\r\n\r\nGET /", 64, Framing::Chunked, Framing::Chunked);
        assert_eq!((&got[..], &left[..]), (&b"head 1\r\na\r\n0\r\n\r\n"[..], &b"GET /"[..]));
    }

    #[test]
    fn a_flow_starts_again_only_while_everything_it_wrote_is_there() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, receiving) = UnixStream::pair().unwrap();
            let (sending, _receiver) = UnixStream::pair().unwrap();
            let (mut from, mut to) = (Socket::Unix(receiving), Socket::Unix(sending));
            let pool = BufferPool::new(64);
            let (mut input, mut moved) = (Buffer::default(), Moved::default());
            pool.equip(&mut input);
            input.append(b"abc");
            let mut flow = Flow::new(b"head ".to_vec(), Framing::Length(6), Framing::Length(6));
            for (wanted, replayable) in [(8, true), (16, true), (19, false)] {
                poll_fn(|cx| {
                    flow.poll(cx, &mut input, &mut from, &mut to, &pool, &mut moved).expect("both ends live");
                    if moved.written == wanted { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                assert_eq!(flow.replay(), replayable, "after {wanted} bytes");
                if wanted == 16 {
                    // Written whole once more, then followed by bytes that push the first ones out.
                    flow.written = flow.out.len();
                    sender.write_all(b"def").await.unwrap();
                }
            }
        });
    }
}
