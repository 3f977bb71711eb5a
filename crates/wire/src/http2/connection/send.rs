//! The sending side of a connection: heads, data, credit, resets.

use super::super::frame::{self, ErrorCode, HEADER_LEN, Kind, flag};
use super::super::head::{self, Unsendable};
use super::streams::{NO_LENGTH, StreamKey, bit};
use super::{Connection, RESETS_REMEMBERED};
use crate::http::{Framing, Message};

/// The content of a PING of this side, as HAProxy's.
const PING: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// The maximum number of bytes of data that one call copies. The C library copies 4 KiB and more by a string
/// instruction, which some processors execute 25 times slower if the destination lies less than 32 bytes behind the
/// source modulo a page, as it does behind a frame's header.
const PIECE: usize = 2048;

impl Connection {
    /// Opens a stream as a client, for [`Connection::send_request`]. `None`: another connection is needed.
    pub fn open(&mut self) -> Option<StreamKey> {
        debug_assert!(self.is_client);
        if self.available_streams() == 0 {
            return None;
        }
        self.last_opened = if self.last_opened == 0 { 1 } else { self.last_opened + 2 };
        self.total = self.total.saturating_add(1);
        Some(self.add_stream(self.last_opened, bit::STARTED, NO_LENGTH))
    }

    /// Returns the number of streams that can be opened now.
    pub fn available_streams(&self) -> u32 {
        if self.is_last_stream_opened() {
            return 0;
        }
        let limit = match (self.streams_limit(), self.peer.max_concurrent_streams) {
            (0, None) => u32::MAX,
            (limit, _) => limit,
        };
        let identifiers = (frame::MAX_31 - self.last_opened) / 2;
        limit.saturating_sub(self.streams.open).min(identifiers)
    }

    /// Sends a request. `body` is the framing of the body; `https` says whether the scheme of a target without one is
    /// https; `end`: the request is complete.
    pub fn send_request(
        &mut self,
        stream: StreamKey,
        message: &Message,
        body: Framing,
        https: bool,
        end: bool,
    ) -> Result<(), Unsendable> {
        if !self.may_send(stream) {
            return Ok(());
        }
        let at = self.begin_block(stream);
        let connect_protocol = self.peer.connect_protocol;
        let (encoder, output) = (&mut self.encoder, &mut self.output);
        let kind = match head::write_request(encoder, message, body, https, connect_protocol, output) {
            Ok(kind) => kind,
            Err(error) => {
                self.output.truncate(at);
                return Err(error);
            }
        };
        let tunnel = kind != head::Written::Plain;
        let mut flags = if message.method() == b"HEAD" { bit::HEAD } else { 0 };
        match kind {
            head::Written::Plain => {}
            head::Written::Connect => flags |= bit::CONNECT,
            head::Written::Extended(protocol) => {
                flags |= bit::EXTENDED;
                if let Some(stream) = self.streams.get_mut(stream) {
                    stream.protocol = Some(protocol);
                }
            }
        }
        let end = end && !tunnel;
        self.finish_block(stream, at, end);
        self.streams.set(stream, flags | bit::SENT_HEAD | if end { bit::SENT_END } else { 0 });
        Ok(())
    }

    /// Sends a response, which may be an interim one. `body` is the framing of the body that follows; `end`: the response
    /// is complete. After an error nothing was sent.
    pub fn send_response(
        &mut self,
        stream: StreamKey,
        message: &Message,
        body: Framing,
        end: bool,
    ) -> Result<(), Unsendable> {
        if !self.may_send(stream) {
            return Ok(());
        }
        let extended = self.streams.get(stream).is_some_and(|stream| stream.is(bit::EXTENDED));
        let at = self.begin_block(stream);
        if let Err(error) = head::write_response(&mut self.encoder, message, body, extended, &mut self.output) {
            self.output.truncate(at);
            return Err(error);
        }
        let interim = message.status() < 200 && message.status() != 101;
        let end = end && !interim;
        self.finish_block(stream, at, end);
        let mut flags = bit::STARTED;
        if !interim {
            flags |= bit::SENT_HEAD;
        }
        if end {
            flags |= bit::SENT_END;
        }
        self.streams.set(stream, flags);
        Ok(())
    }

    /// Returns whether this side may send on a stream.
    fn may_send(&self, stream: StreamKey) -> bool {
        self.failure().is_none()
            && self.streams.get(stream).is_some_and(|stream| !stream.is_closed() && !stream.is(bit::SENT_END))
    }

    /// Writes the header of a field block's first frame, and returns its position.
    fn begin_block(&mut self, stream: StreamKey) -> usize {
        let at = self.output.len();
        frame::write_header(&mut self.output, 0, Kind::Headers, 0, stream.id());
        at
    }

    /// Completes the frames of a field block whose first header is at `at`.
    fn finish_block(&mut self, stream: StreamKey, at: usize, end: bool) {
        let max = self.peer.max_frame_size as usize;
        let len = self.output.len() - at - HEADER_LEN;
        let end = if end { flag::END_STREAM } else { 0 };
        if len <= max {
            self.output[at + 4] = end | flag::END_HEADERS;
            return frame::patch_len(&mut self.output, at);
        }
        // A block larger than a frame is rare, so copying it once more is acceptable.
        let block = self.output.split_off(at + HEADER_LEN);
        self.output.truncate(at);
        let mut fragments = block.chunks(max).peekable();
        let (mut kind, mut flags) = (Kind::Headers, end);
        while let Some(fragment) = fragments.next() {
            if fragments.peek().is_none() {
                flags |= flag::END_HEADERS;
            }
            frame::write_header(&mut self.output, fragment.len(), kind, flags, stream.id());
            self.output.extend_from_slice(fragment);
            (kind, flags) = (Kind::Continuation, 0);
        }
    }

    /// Returns the number of bytes that the peer accepts on a stream now.
    pub fn send_window(&self, stream: StreamKey) -> usize {
        let Some(stream) = self.streams.get(stream) else { return 0 };
        let window = (i64::from(self.peer.initial_window) + stream.send_offset).min(self.send_window);
        usize::try_from(window).unwrap_or(0)
    }

    /// Sends data as far as windows and the output have room, and returns the number of bytes accepted. With `end` the last
    /// frame ends this side of the stream, if all were accepted.
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], end: bool) -> usize {
        if !self.may_send(key) {
            // A closed stream accepts all data and drops it; its user learns of the reset by an event.
            return data.len();
        }
        debug_assert!(self.streams.get(key).is_some_and(|stream| stream.is(bit::SENT_HEAD)), "data before the head");
        let room = self.settings.output_max.saturating_sub(self.output.len() - self.written);
        let accepted = data.len().min(self.send_window(key)).min(room);
        let complete = end && accepted == data.len();
        let max = self.peer.max_frame_size as usize;
        let mut rest = &data[..accepted];
        while !rest.is_empty() {
            let (payload, tail) = rest.split_at(rest.len().min(max));
            let flags = if complete && tail.is_empty() { flag::END_STREAM } else { 0 };
            frame::write_header(&mut self.output, payload.len(), Kind::Data, flags, key.id());
            payload.chunks(PIECE).for_each(|piece| self.output.extend_from_slice(piece));
            rest = tail;
        }
        self.send_window -= accepted as i64;
        if let Some(stream) = self.streams.get_mut(key) {
            stream.send_offset -= accepted as i64;
        }
        if complete {
            if accepted == 0 {
                frame::write_header(&mut self.output, 0, Kind::Data, flag::END_STREAM, key.id());
            }
            self.streams.set(key, bit::SENT_END);
        }
        accepted
    }

    /// Ends this side of a stream, with these trailers.
    pub fn send_end(&mut self, stream: StreamKey, trailers: Option<&Message>) {
        if !self.may_send(stream) {
            return;
        }
        if let Some(trailers) = trailers {
            let at = self.begin_block(stream);
            if head::write_trailers(&mut self.encoder, trailers, &mut self.output) {
                self.finish_block(stream, at, true);
                return self.streams.set(stream, bit::SENT_END);
            }
            self.output.truncate(at);
        }
        self.send_data(stream, b"", true);
    }

    /// Consumes received data of a stream, for which its peer gets credit.
    pub fn consume(&mut self, stream: StreamKey, count: usize) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.unconsumed = stream.unconsumed.saturating_sub(count as u32);
            stream.flags |= bit::STARTED;
        }
        self.update_window(stream);
    }

    /// Sets the number of bytes that a stream may have in flight or unconsumed; the peer can't be told to send less
    /// than it was promised.
    pub fn set_window(&mut self, stream: StreamKey, bytes: u32) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.window = bytes.min(frame::MAX_31);
        }
        self.update_window(stream);
    }

    /// Returns the window that a stream with a long body gets (HAProxy's rule): each open stream has a buffer, one
    /// buffer is reserved for every eight streams that may still be opened, and the streams that receive share the
    /// rest.
    fn shared_window(&self) -> u32 {
        let limit = self.settings.max_concurrent_streams;
        let buffer = self.settings.initial_window.max(frame::DEFAULT_FRAME_SIZE);
        let total = u32::try_from(self.settings.receive_total).unwrap_or(u32::MAX);
        let buffers = total.div_ceil(buffer).max(limit);
        let (open, receiving) = (self.streams.open, self.streams.receiving.max(1));
        let allocatable = buffers.saturating_sub(open.saturating_sub(receiving));
        let reserved = limit.saturating_sub(open).div_ceil(8);
        let share = allocatable.saturating_sub(reserved).div_ceil(receiving);
        share.saturating_mul(buffer).min(frame::MAX_31)
    }

    /// Gives a stream's peer credit, if the credit is at least half of the window and the peer has something left to
    /// send.
    pub(super) fn update_window(&mut self, key: StreamKey) {
        if self.failure().is_some() {
            return;
        }
        let shared = if self.settings.receive_total > 0 { self.shared_window() } else { 0 };
        let Some(stream) = self.streams.get_mut(key) else { return };
        let enough = stream.length != NO_LENGTH
            && u64::try_from(stream.receive_window).is_ok_and(|window| window >= stream.length);
        if enough || stream.is_closed() || stream.is(bit::RECEIVED_END) {
            return;
        }
        let window = if stream.length > u64::from(stream.window) { stream.window.max(shared) } else { stream.window };
        let credit = i64::from(window) - stream.receive_window - i64::from(stream.unconsumed);
        if credit > 0 && credit >= i64::from(window / 2) {
            stream.receive_window += credit;
            let increment = credit.min(i64::from(frame::MAX_31)) as u32;
            self.answer(|out| frame::write_window_update(out, key.id(), increment));
        }
    }

    /// Resets a stream. Nothing is sent if it is closed already, or if this side is a client that has not sent the
    /// request.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.is_closed()) else { return };
        stream.sent_code = code;
        let is_known = !self.is_client || stream.is(bit::SENT_HEAD);
        self.streams.set(key, bit::RESET_SENT);
        if is_known && self.failure().is_none() {
            self.remember_reset(key.id());
            self.counts.resets_sent += 1;
            self.answer(|out| frame::write_rst_stream(out, key.id(), code));
        }
    }

    /// Returns the code for the reset of a stream that its user no longer needs: a request that was not answered can be
    /// repeated; after a complete response the rest of the request is not wanted (HAProxy's rule).
    pub fn abort_code(&self, stream: StreamKey) -> ErrorCode {
        match self.streams.get(stream) {
            Some(stream) if !stream.is(bit::SENT_HEAD) => ErrorCode::REFUSED_STREAM,
            Some(stream) if !self.is_client && stream.is(bit::SENT_END) => ErrorCode::NO_ERROR,
            _ => ErrorCode::CANCEL,
        }
    }

    /// Releases a stream, which its user does not need any more. A stream that is not closed is reset.
    pub fn release(&mut self, stream: StreamKey) {
        self.reset(stream, self.abort_code(stream));
        self.streams.remove(stream);
    }

    pub(super) fn remember_reset(&mut self, id: u32) {
        self.resets[usize::from(self.next_reset)] = id;
        self.next_reset = (self.next_reset + 1) % RESETS_REMEMBERED as u8;
    }

    /// Announces the end of the connection: only streams up to `last` will be processed. To let a client finish what it
    /// is about to send, 2³¹−1 is announced first.
    pub fn goaway(&mut self, last: u32, code: ErrorCode) {
        let last = self.goaway_sent.map_or(last, |sent| sent.min(last));
        self.goaway_sent = Some(last);
        let is_error = !matches!(
            code,
            ErrorCode::NO_ERROR | ErrorCode::ENHANCE_YOUR_CALM | ErrorCode::REFUSED_STREAM | ErrorCode::CANCEL
        );
        self.counts.goaways_sent += u32::from(is_error);
        frame::write_goaway(&mut self.output, last, code);
    }

    /// Returns the last stream that was opened, which a GOAWAY names when no more are accepted.
    pub fn last_opened(&self) -> u32 {
        self.last_opened
    }

    /// Sends a ping, which the peer has to acknowledge: see [`Connection::awaits_pong`].
    pub fn ping(&mut self) {
        self.pinged = true;
        frame::write_ping(&mut self.output, PING, false);
    }
}
