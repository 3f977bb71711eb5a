//! One direction of a stream: body events from one end, through filters, to the other end.
//!
//! Between two ends of HTTP/1 a body without a filter passes as bytes ([`h1::relay`]). Otherwise a flow reads an event,
//! passes it to the filters, and sends the result; it reads more only when all of that is written, so a slow sink
//! stops the source, and a sink's credit is the source's.
//!
//! The future that polls a flow owns both ends and polls both directions each time it wakes; [`Wait`] is the event that
//! the flow waits for, on which its timeouts depend.

use std::task::{Context, Poll};

use sluicegate_transport::BufferPool;
use sluicegate_wire::http::{Framing, Message};

use super::Active;
use super::filter::{Chain, FilterFailed};
use crate::mux::{Body, End, FlowError, Moved, Wait, h1};

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    passing: h1::Passing,
    filters: Option<Box<Chain>>,
    /// The trailers of a body, until it ends.
    trailers: Option<Message>,
    /// Whether the end of the message was passed to the sink.
    ended: bool,
    /// Whether nothing is left to read and to write.
    done: bool,
    /// Whether any part of the message was written, collected or skipped.
    begun: bool,
    /// Whether nothing that filters let pass is sent: the message has no body.
    mute: bool,
    /// The rest of the length that the head announces for the output of scripts' filters, if it announces one.
    announced: Option<Announced>,
}

/// The bytes that a head has announced and that were not sent.
#[derive(Debug)]
pub(super) struct Announced {
    left: u64,
    /// Whether filters output more.
    pub(super) exceeded: bool,
}

impl Announced {
    /// Returns what a head with this framing announces, if it announces a length.
    pub(super) fn of(framing: Framing) -> Option<Announced> {
        let left = match framing {
            Framing::None => 0,
            Framing::Length(length) => length,
            Framing::Chunked | Framing::UntilClose => return None,
        };
        Some(Announced { left, exceeded: false })
    }
}

/// Sends what filters let pass, but nothing behind the end that the head has announced: the recipient would read it as the
/// next message, or as a tunnel's data.
pub(super) fn give<'a, K: End>(
    sink: &'a mut K,
    mute: bool,
    announced: &'a mut Option<Announced>,
) -> impl FnMut(&[u8]) + 'a {
    move |data| {
        if mute {
            return;
        }
        if let Some(announced) = announced {
            if announced.left < data.len() as u64 {
                announced.exceeded = true;
                return;
            }
            announced.left -= data.len() as u64;
        }
        sink.send_data(data);
    }
}

impl Flow {
    /// Returns a direction for a message whose body has this framing.
    pub(crate) fn new(source: Framing) -> Flow {
        Flow { done: matches!(source, Framing::None | Framing::Length(0)), ..Flow::default() }
    }

    /// Must be called before each head that precedes the body, even if the head is sent again.
    pub(crate) fn start(&mut self) {
        self.done = false;
    }

    /// Omits trailers.
    pub(crate) fn drop_trailers(&mut self) {
        self.passing.no_trailers = true;
    }

    /// Discards the body: only the head is sent to the sink.
    pub(crate) fn drop_body(&mut self) {
        self.passing.silent = true;
    }

    /// Sends the end of the body with the head: the head does not tell that the body is empty.
    pub(crate) fn end_at_once(&mut self) {
        self.passing.empty = true;
    }

    /// Sends nothing of what filters let pass, because the message can have no body.
    pub(crate) fn mute(&mut self) {
        self.mute = true;
    }

    /// Ends the message with an error if scripts' filters output more than a body of this framing has.
    pub(crate) fn announce(&mut self, framing: Framing) {
        self.announced = Announced::of(framing);
    }

    /// Returns whether scripts' filters output more than the head has announced.
    pub(crate) fn has_exceeded(&self) -> bool {
        self.announced.as_ref().is_some_and(|announced| announced.exceeded)
    }

    /// Passes the body through filters.
    pub(crate) fn filter(&mut self, filters: Chain) {
        self.filters = (!filters.is_empty()).then(|| Box::new(filters));
    }

    /// Moves the filters, with what they hold, to the flow that follows this one.
    pub(crate) fn hand_filters(&mut self, to: &mut Flow) {
        to.filters = self.filters.take();
    }

    /// Adds those bandwidth filters that are new, while the body is on its way. Data in a pipe passes unfiltered.
    pub(crate) fn enable(&mut self, filters: Chain) {
        if self.done || filters.is_empty() || self.passing.pipe.is_some() {
            return;
        }
        let mut all = self.filters.take().unwrap_or_default();
        all.join(filters);
        self.filter(*all);
    }

    /// Returns the bytes of the body before and after compression since the last call, and whether the encoding is the
    /// identity.
    pub(crate) fn take_encoded(&mut self) -> Option<(u64, u64, bool)> {
        self.filters.as_mut()?.take_encoded()
    }

    /// Whether nothing is left to read and to write.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Returns whether bytes were written to the sink.
    pub(crate) fn has_written(&self) -> bool {
        self.begun
    }

    /// Moves data as far as possible without waiting, and calls the scripts of filters with the stream's context.
    #[inline(always)]
    pub(crate) fn poll_scripted<S: End, K: End>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut K,
        stream: &mut Active,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        match self.filters {
            None => self.poll(cx, source, sink, &stream.worker().buffers, moved),
            Some(_) => self.poll_filtered(cx, source, sink, stream, moved),
        }
    }

    fn poll_filtered<S: End, K: End>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut K,
        stream: &mut Active,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        loop {
            let wait = self.poll(cx, source, sink, &stream.worker().buffers, moved)?;
            if self.has_exceeded() {
                self.done = false;
                return Err(FlowError::Filter);
            }
            let (Wait::Script, Some(filters)) = (wait, &mut self.filters) else { return Ok(wait) };
            match filters.run_scripts(&mut stream.cx, &mut give(sink, self.mute, &mut self.announced)) {
                Ok(true) => {}
                Ok(false) => {
                    cx.waker().wake_by_ref();
                    return Ok(Wait::Filter);
                }
                Err(FilterFailed) => return Err(FlowError::Filter),
            }
        }
    }

    /// Moves data as far as possible without waiting. [`Wait::Script`]: a script is to be called.
    pub(crate) fn poll<S: End, K: End>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut K,
        pool: &BufferPool,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        let written = moved.written;
        let result = match (source.h1(), sink.h1()) {
            (Some(source), Some(sink)) if self.filters.is_none() => {
                h1::relay(&mut self.passing, cx, source, sink, pool, moved)
            }
            _ => self.pass(cx, source, sink, pool, moved),
        };
        self.begun |= moved.written > written;
        self.done = matches!(result, Ok(Wait::Done));
        result
    }

    fn pass<S: End, K: End>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut K,
        pool: &BufferPool,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        loop {
            // Whether a filter lets nothing pass yet.
            let mut held = false;
            while !self.ended && sink.has_room(pool) {
                held = self
                    .filters
                    .as_mut()
                    .is_some_and(|filters| !filters.advance(&mut give(sink, self.mute, &mut self.announced)));
                if held {
                    break;
                }
                let Some(event) = source.next(moved)? else { break };
                held = !self.event(event, source, sink);
                if held {
                    break;
                }
            }
            let is_full = !held && !self.ended && !sink.has_room(pool);
            if sink.poll_flush(cx, moved)?.is_pending() {
                return Ok(Wait::Sink);
            }
            if self.ended {
                source.rest(pool);
                return Ok(Wait::Done);
            }
            // What the sink had no room for is still in the source.
            if is_full && sink.has_room(pool) {
                continue;
            }
            if let Some(filters) = self.filters.as_mut().filter(|_| held) {
                if filters.script_is_due() {
                    return Ok(Wait::Script);
                }
                match filters.poll_wake(cx) {
                    Poll::Ready(()) => continue,
                    // The timeout of the source ends a stream whose script lets nothing pass.
                    Poll::Pending if filters.stalls() => return Ok(Wait::Source),
                    Poll::Pending => return Ok(Wait::Filter),
                }
            }
            match source.poll_more(cx, pool, moved)? {
                Poll::Ready(()) => {}
                // Data held back by the compressor must not wait for a slow source.
                Poll::Pending => {
                    let Some(filters) = &mut self.filters else { return Ok(Wait::Source) };
                    if filters.flush(&mut give(sink, self.mute, &mut self.announced)) {
                        continue;
                    }
                    if filters.script_is_due() {
                        return Ok(Wait::Script);
                    }
                    if !filters.has_alarm() || filters.poll_wake(cx).is_pending() {
                        return Ok(Wait::Source);
                    }
                }
            }
        }
    }

    /// Passes an event on; `false` if a filter did not take all of it.
    fn event<S: End, K: End>(&mut self, event: Body, source: &mut S, sink: &mut K) -> bool {
        let silent = self.passing.silent;
        match event {
            Body::Data(count) => {
                let data = source.data();
                let taken = match &mut self.filters {
                    _ if silent => count,
                    Some(filters) => filters.data(data, &mut give(sink, self.mute, &mut self.announced)),
                    None => {
                        sink.send_data(data);
                        count
                    }
                };
                source.consume(taken);
                return taken == count;
            }
            Body::Trailers if self.passing.no_trailers => {}
            Body::Trailers => {
                let mut trailers = source.trailers();
                if let Some(filters) = &mut self.filters {
                    filters.trailers(&mut trailers);
                }
                self.trailers = Some(trailers);
            }
            Body::End => {
                if let Some(filters) = self.filters.as_mut().filter(|_| !silent)
                    && !filters.end(&mut give(sink, self.mute, &mut self.announced))
                {
                    return false;
                }
                self.ended = true;
                // The end of a body that is not sent is passed on, too: it is the only way to end an HTTP/2 stream.
                sink.send_end(self.trailers.as_ref().filter(|_| !silent));
            }
        }
        true
    }

    /// Takes at most `room` body bytes for local use; returns whether the body is complete.
    pub(crate) fn collect<S: End>(
        &mut self,
        source: &mut S,
        into: &mut Vec<u8>,
        room: usize,
        moved: &mut Moved,
    ) -> Result<bool, FlowError> {
        self.begun = true;
        let limit = into.len() + room;
        while !self.done && into.len() < limit {
            match source.next(moved)? {
                Some(Body::Data(count)) => {
                    let count = count.min(limit - into.len());
                    into.extend_from_slice(&source.data()[..count]);
                    source.consume(count);
                }
                Some(Body::Trailers) => {}
                Some(Body::End) => self.done = true,
                None => break,
            }
        }
        Ok(self.done)
    }

    /// Discards body bytes of a message without a sink; returns whether the body is complete.
    pub(crate) fn discard<S: End>(&mut self, source: &mut S, moved: &mut Moved) -> Result<bool, FlowError> {
        self.begun = true;
        self.passing.pipe = None;
        while !self.done {
            match source.next(moved)? {
                Some(Body::Data(count)) => source.consume(count),
                Some(Body::Trailers) => {}
                Some(Body::End) => self.done = true,
                None => break,
            }
        }
        Ok(self.done)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use sluicegate_transport::Socket;
    use sluicegate_wire::http::{BodyDecoder, BodyEvent, ConnectionField, RequestHead, Version};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;
    use crate::mux::HeadForm;

    /// Returns an end whose connection is one half of this socket pair.
    fn end(socket: UnixStream, body: Framing) -> h1::Front {
        let mut end = h1::Front::new(Socket::Unix(socket));
        let head = RequestHead {
            head_len: 0,
            method: sluicegate_wire::http::Method::Post,
            body,
            keep_alive: true,
            expect_continue: false,
            upgrade: false,
        };
        end.take_head(&head, 100, Vec::new());
        end
    }

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n";

    /// Sends a head whose body has this framing.
    fn send_head(to: &mut h1::Front, framing: Framing) {
        let mut head = Message::new();
        head.set_response(Version::Http11, 200, b"OK");
        to.send_head(&head, HeadForm { framing, connection: ConnectionField::None, names: None });
    }

    /// Returns the bytes after the head.
    fn behind_head(got: &[u8]) -> &[u8] {
        assert!(got.starts_with(HEAD), "the head goes first: {got:?}");
        let end = got.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a whole head");
        &got[end + 4..]
    }

    /// Relays `body`, which arrives in pieces of `piece` bytes after a head that is written first. Returns the bytes
    /// that the sink received after the head, the number of body bytes counted, and the rest of the input. The bytes
    /// pass unseen or, with `seen`, as events.
    fn relay(body: &[u8], piece: usize, source: Framing, sink: Framing, seen: bool) -> (Vec<u8>, usize, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, receiving) = UnixStream::pair().unwrap();
            let (sending, mut receiver) = UnixStream::pair().unwrap();
            let (mut from, mut to) = (end(receiving, source), end(sending, Framing::None));
            send_head(&mut to, sink);
            let pool = BufferPool::new(64);
            let mut moved = Moved::default();
            let mut flow = Flow::new(source);
            let relayed = async {
                poll_fn(|cx| {
                    let step = match seen {
                        true => flow.pass(cx, &mut from, &mut to, &pool, &mut moved),
                        false => flow.poll(cx, &mut from, &mut to, &pool, &mut moved),
                    };
                    match step {
                        Ok(Wait::Done) => Poll::Ready(()),
                        Ok(_) => Poll::Pending,
                        Err(error) => panic!("{error:?}"),
                    }
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
            assert!(seen || flow.is_done());
            drop(to);
            let mut got = Vec::new();
            receiver.read_to_end(&mut got).await.unwrap();
            (behind_head(&got).to_vec(), moved.body, from.input().to_vec())
        })
    }

    #[test]
    fn every_framing_survives_every_split() {
        let chunked = b"3;x=1\r\nabc\r\n5\r\ndefgh\r\n0\r\nT: v\r\n\r\n";
        for (piece, seen) in (1..=chunked.len()).flat_map(|piece| [(piece, false), (piece, true)]) {
            let (got, _, _) = relay(b"abcdefgh", piece, Framing::Length(8), Framing::Length(8), seen);
            assert_eq!(got, b"abcdefgh", "length, by {piece}");
            let (got, count, _) = relay(b"abcdefgh", piece, Framing::UntilClose, Framing::UntilClose, seen);
            assert_eq!((&got[..], count), (&b"abcdefgh"[..], 8), "until close, by {piece}");
            let (got, _, _) = relay(chunked, piece, Framing::Chunked, Framing::UntilClose, seen);
            assert_eq!(got, b"abcdefgh", "chunks to none, by {piece}");
            let (body, count, _) = relay(chunked, piece, Framing::Chunked, Framing::Chunked, seen);
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
        for seen in [false, true] {
            let (got, _, left) = relay(b"abcGET /", 8, Framing::Length(3), Framing::Length(3), seen);
            assert_eq!((&got[..], &left[..]), (&b"abc"[..], &b"GET /"[..]));
            let (got, _, left) = relay(b"1\r\na\r\n0\r\n\r\nGET /", 64, Framing::Chunked, Framing::Chunked, seen);
            assert_eq!((&got[..], &left[..]), (&b"1\r\na\r\n0\r\n\r\n"[..], &b"GET /"[..]));
        }
    }
}
