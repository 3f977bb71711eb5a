//! Received bytes: frames, their order, and the states of streams.

use super::super::frame::{self, ErrorCode, HEADER_LEN, Header, Kind, PREFACE, flag, setting};
use super::super::head;
use super::streams::{NO_LENGTH, Stream, StreamKey, bit};
use super::{Blocked, CONTROL_MAX, Connection, Event, Failure, OpenBlock, Progress, Stage};
use crate::http::{Message, Method};

/// The result of processing a frame.
type Outcome = Result<Option<Event>, Failure>;

impl Connection {
    /// Parses input until something has happened. Returns the number of bytes consumed, which the caller removes from
    /// the input after it has taken the range that an event refers to. It is called until it returns no event, even if
    /// no input is left: the end of a stream follows the data of its last frame.
    ///
    /// `message` receives a head or trailers; it is undefined unless an event says that it has one.
    pub fn receive(&mut self, input: &[u8], message: &mut Message) -> Result<(usize, Progress), Failure> {
        let mut at = 0;
        loop {
            if let Some(event) = self.next_unprocessed() {
                return Ok((at, Progress::Event(event)));
            }
            let rest = &input[at..];
            let event = match self.stage {
                Stage::Failed(failure) => return Err(failure),
                Stage::Preface(_) | Stage::Header if rest.is_empty() => return Ok((at, Progress::Idle)),
                Stage::Preface(seen) => {
                    at += self.preface(seen.into(), rest)?;
                    None
                }
                Stage::Header => {
                    if self.header_len == 0
                        && let Some(blocked) = self.blocked()
                    {
                        return Ok((at, Progress::Blocked(blocked)));
                    }
                    let Some(header) = self.gather_header(rest, &mut at) else { return Ok((at, Progress::Idle)) };
                    self.begin_frame(header)?
                }
                Stage::Payload => {
                    if self.partial.is_empty()
                        && let Some(payload) = rest.get(..self.left as usize)
                    {
                        at += payload.len();
                        self.stage = Stage::Header;
                        self.process(payload, message)?
                    } else {
                        let more = rest.len().min(self.left as usize);
                        self.partial.extend_from_slice(&rest[..more]);
                        at += more;
                        self.left -= more as u32;
                        if self.left > 0 {
                            return Ok((at, Progress::Idle));
                        }
                        let mut payload = std::mem::take(&mut self.partial);
                        self.stage = Stage::Header;
                        let event = self.process(&payload, message);
                        payload.clear();
                        self.partial = payload;
                        event?
                    }
                }
                Stage::Data(stream) => match self.data(stream, rest, &mut at)? {
                    Some(event) => Some(event),
                    None if self.stage == Stage::Data(stream) => return Ok((at, Progress::Idle)),
                    None => None,
                },
                Stage::Skip => {
                    let more = rest.len().min(self.left as usize);
                    at += more;
                    self.left -= more as u32;
                    if self.left > 0 {
                        return Ok((at, Progress::Idle));
                    }
                    self.stage = Stage::Header;
                    None
                }
            };
            if let Some(event) = event {
                return Ok((at, Progress::Event(event)));
            }
        }
    }

    fn preface(&mut self, seen: usize, input: &[u8]) -> Result<usize, Failure> {
        let expected = &PREFACE[seen..];
        let shared = expected.len().min(input.len());
        if expected[..shared] != input[..shared] {
            self.glitch(1)?;
            return Err(self.fail(ErrorCode::PROTOCOL_ERROR, "invalid preface"));
        }
        if shared == expected.len() {
            self.greet(false);
            self.stage = Stage::Header;
        } else {
            self.stage = Stage::Preface((seen + shared) as u8);
        }
        Ok(shared)
    }

    /// Returns why no more frames are parsed, so that nothing needs to be read.
    pub fn blocked(&self) -> Option<Blocked> {
        let limit = self.settings.max_concurrent_streams;
        if self.control.iter().sum::<usize>() >= CONTROL_MAX {
            Some(Blocked::Output)
        } else if !self.is_client && limit != 0 && self.streams.held() > limit {
            Some(Blocked::Streams)
        } else if self.frames_left == 0 || self.resets_left == 0 {
            Some(Blocked::Turn)
        } else {
            None
        }
    }

    fn gather_header(&mut self, input: &[u8], at: &mut usize) -> Option<Header> {
        if self.header_len == 0
            && let Some(bytes) = input.first_chunk::<HEADER_LEN>()
        {
            *at += HEADER_LEN;
            return Some(Header::parse(bytes));
        }
        let have = usize::from(self.header_len);
        let more = input.len().min(HEADER_LEN - have);
        self.header[have..have + more].copy_from_slice(&input[..more]);
        *at += more;
        self.header_len += more as u8;
        if usize::from(self.header_len) < HEADER_LEN {
            return None;
        }
        self.header_len = 0;
        Some(Header::parse(&self.header))
    }

    /// Returns an error of the peer that ends the connection.
    fn error<T>(&mut self, code: ErrorCode, reason: &'static str) -> Result<T, Failure> {
        self.glitch(1)?;
        Err(self.fail(code, reason))
    }

    /// Checks a frame by its header, and decides how its payload is read.
    fn begin_frame(&mut self, header: Header) -> Outcome {
        use Kind::{Continuation, Data, GoAway, Headers, Priority, RstStream, Settings, Unknown};
        self.frames_left = self.frames_left.saturating_sub(1);
        if header.len > self.settings.max_frame_size {
            return self.error(ErrorCode::FRAME_SIZE_ERROR, "frame too large");
        }
        match self.open_block {
            Some(block) if header.kind != Continuation || header.stream != block.stream => {
                return self.error(ErrorCode::PROTOCOL_ERROR, "a field block is incomplete");
            }
            None if header.kind == Continuation => {
                return self.error(ErrorCode::PROTOCOL_ERROR, "CONTINUATION without a field block");
            }
            _ => {}
        }
        if !self.greeted && (header.kind != Settings || header.has(flag::ACK)) {
            return self.error(ErrorCode::PROTOCOL_ERROR, "the first frame is not SETTINGS");
        }
        if let Err(code) = header.check() {
            return self.error(code, "invalid stream or length of a frame");
        }
        let may_be_idle =
            matches!(header.kind, Priority | Unknown | Continuation) || header.kind == Headers && !self.is_client;
        if header.stream != 0 && !may_be_idle && self.is_idle(header.stream) {
            return self.error(ErrorCode::PROTOCOL_ERROR, "frame on an idle stream");
        }
        match header.kind {
            Data => self.counts.data_received += 1,
            Headers => self.counts.headers_received += 1,
            RstStream => self.counts.resets_received += 1,
            Settings => self.counts.settings_received += 1,
            GoAway => self.counts.goaways_received += 1,
            _ => {}
        }
        self.frame = header;
        self.left = header.len;
        match header.kind {
            Data => return self.begin_data(),
            Unknown => self.stage = Stage::Skip,
            _ => self.stage = Stage::Payload,
        }
        Ok(None)
    }

    /// Returns whether a stream was never opened.
    fn is_idle(&self, id: u32) -> bool {
        id.is_multiple_of(2) || id > self.last_opened
    }

    /// Counts a DATA frame against both windows.
    fn begin_data(&mut self) -> Outcome {
        let len = i64::from(self.frame.len);
        if len > self.receive_window {
            return self.error(ErrorCode::FLOW_CONTROL_ERROR, "data beyond the window of the connection");
        }
        self.receive_window -= len;
        // Whatever becomes of the data, the connection's window has to be opened again. As in HAProxy the first data
        // opens it: before that a peer that ends its side at once would leave an update unread, and its kernel would
        // reset the connection.
        if len > 0 && self.receive_window < i64::from(frame::MAX_31 / 2) {
            let increment = i64::from(frame::MAX_31) - self.receive_window;
            self.answer(|out| frame::write_window_update(out, 0, increment as u32));
            self.receive_window += increment;
        }
        self.stage = Stage::Skip;
        let id = self.frame.stream;
        let key = self.streams.find(id);
        let stream = key.and_then(|key| Some((key, self.streams.get_mut(key)?)));
        let Some((key, stream)) = stream.filter(|(_, stream)| !stream.is_closed()) else {
            // Data in flight when this side reset the stream is ignored; other data on a closed stream is an error.
            if !self.was_reset(id) && key.is_none_or(|key| self.code_sent(key).is_none()) {
                self.glitch(1)?;
                self.write_reset(id, ErrorCode::STREAM_CLOSED);
            }
            return Ok(None);
        };
        if stream.is(bit::RECEIVED_END) {
            return self.stream_error(key, ErrorCode::STREAM_CLOSED).map(Some);
        }
        if !stream.is(bit::RECEIVED_HEAD) {
            return self.stream_error(key, ErrorCode::PROTOCOL_ERROR).map(Some);
        }
        if len > stream.receive_window {
            return self.stream_error(key, ErrorCode::FLOW_CONTROL_ERROR).map(Some);
        }
        stream.receive_window -= len;
        self.stage = Stage::Data(key);
        self.awaits_padding = self.frame.has(flag::PADDED);
        self.padding = 0;
        if self.awaits_padding && len == 0 {
            return self.error(ErrorCode::FRAME_SIZE_ERROR, "no room for the length of the padding");
        }
        if !self.awaits_padding { self.expect_data(key) } else { Ok(None) }
    }

    /// Checks the length of a DATA frame's data, which is known now: the data may not exceed the body's length, nor may
    /// the last frame leave the body incomplete. Nothing of a frame that fails the check is received.
    fn expect_data(&mut self, key: StreamKey) -> Outcome {
        let data = self.left - self.padding;
        let is_last = self.frame.has(flag::END_STREAM);
        let Some(stream) = self.streams.get_mut(key) else { return Ok(None) };
        if stream.length != NO_LENGTH {
            match stream.length.checked_sub(data.into()) {
                Some(rest) if !is_last || rest == 0 => stream.length = rest,
                _ => {
                    self.stage = Stage::Skip;
                    return self.stream_error(key, ErrorCode::PROTOCOL_ERROR).map(Some);
                }
            }
        }
        stream.unconsumed = stream.unconsumed.saturating_add(data);
        Ok(None)
    }

    /// Reads from a DATA frame. The stage changes when it is complete.
    fn data(&mut self, key: StreamKey, input: &[u8], at: &mut usize) -> Outcome {
        let mut rest = input;
        if self.awaits_padding {
            let Some((padding, tail)) = rest.split_first() else { return Ok(None) };
            rest = tail;
            *at += 1;
            self.left -= 1;
            self.padding = u32::from(*padding);
            self.awaits_padding = false;
            if self.padding > self.left {
                return self.error(ErrorCode::PROTOCOL_ERROR, "padding longer than its frame");
            }
            if !self.streams.get(key).is_none_or(Stream::is_closed)
                && let Some(event) = self.expect_data(key)?
            {
                return Ok(Some(event));
            }
        }
        // The stream's user may have reset or released it while the frame was read.
        if self.streams.get(key).is_none_or(Stream::is_closed) {
            self.stage = Stage::Skip;
            return Ok(None);
        }
        let data = rest.len().min((self.left - self.padding) as usize);
        if data > 0 {
            let range = *at..*at + data;
            *at += data;
            self.left -= data as u32;
            if !self.streams.get(key).is_some_and(|stream| stream.is(bit::BODILESS)) {
                return Ok(Some(Event::Data { stream: key, range }));
            }
            self.consume(key, data);
            rest = &rest[data..];
        }
        let padding = rest.len().min(self.left as usize);
        *at += padding;
        self.left -= padding as u32;
        self.padding -= padding as u32;
        if self.left > 0 {
            return Ok(None);
        }
        self.stage = Stage::Header;
        if !self.frame.has(flag::END_STREAM) {
            self.update_window(key);
            return Ok(None);
        }
        self.streams.set(key, bit::RECEIVED_END);
        Ok(Some(Event::End { stream: key }))
    }

    /// Processes a complete frame other than DATA.
    fn process(&mut self, payload: &[u8], message: &mut Message) -> Outcome {
        match self.frame.kind {
            Kind::Headers => self.headers(payload, message),
            Kind::Continuation => self.continuation(payload, message),
            Kind::Priority => match word(payload) & frame::MAX_31 == self.frame.stream {
                true => self.error(ErrorCode::PROTOCOL_ERROR, "a stream depends on itself"),
                false => Ok(None),
            },
            Kind::RstStream => self.rst_stream(ErrorCode(word(payload))),
            Kind::Settings => self.peer_settings(payload),
            Kind::Ping => {
                let Some(opaque) = payload.first_chunk::<8>() else { return Ok(None) };
                if self.frame.has(flag::ACK) {
                    self.pinged = false;
                    return Ok(Some(Event::Pong(*opaque)));
                }
                self.answer(|out| frame::write_ping(out, *opaque, true));
                Ok(None)
            }
            Kind::GoAway => {
                let (last, code) = (word(payload) & frame::MAX_31, ErrorCode(word(&payload[4..])));
                let earlier = self.goaway_received.unwrap_or(frame::MAX_31);
                self.goaway_received = Some(last.min(earlier));
                if self.is_client {
                    self.unprocessed_after = self.goaway_received;
                }
                Ok(Some(Event::GoAway { last, code }))
            }
            Kind::WindowUpdate => self.window_update(word(payload) & frame::MAX_31),
            Kind::Data | Kind::PushPromise | Kind::Unknown => Ok(None),
        }
    }

    fn headers(&mut self, payload: &[u8], message: &mut Message) -> Outcome {
        let mut block = payload;
        if self.frame.has(flag::PADDED) {
            let Some((padding, rest)) = block.split_first() else {
                return self.error(ErrorCode::FRAME_SIZE_ERROR, "no room for the length of the padding");
            };
            let Some(len) = rest.len().checked_sub(usize::from(*padding)) else {
                return self.error(ErrorCode::PROTOCOL_ERROR, "padding longer than its frame");
            };
            block = &rest[..len];
        }
        if self.frame.has(flag::PRIORITY) {
            let Some((priority, rest)) = block.split_at_checked(5) else {
                return self.error(ErrorCode::FRAME_SIZE_ERROR, "no room for the priority");
            };
            if word(priority) & frame::MAX_31 == self.frame.stream {
                return self.error(ErrorCode::PROTOCOL_ERROR, "a stream depends on itself");
            }
            block = rest;
        }
        let open = OpenBlock { stream: self.frame.stream, end: self.frame.has(flag::END_STREAM), fragments: 0 };
        if self.frame.has(flag::END_HEADERS) {
            return self.block(open, block, message);
        }
        self.fragments.extend_from_slice(block);
        self.open_block = Some(open);
        Ok(None)
    }

    fn continuation(&mut self, payload: &[u8], message: &mut Message) -> Outcome {
        let Some(open) = &mut self.open_block else { return Ok(None) };
        open.fragments += 1;
        let open = *open;
        let max = self.settings.max_frame_size as usize;
        if self.fragments.len() + payload.len() > max.max(self.settings.head.max_head) {
            return self.error(ErrorCode::ENHANCE_YOUR_CALM, "field block too large");
        }
        self.fragments.extend_from_slice(payload);
        let complete = self.frame.has(flag::END_HEADERS);
        // More than four fragments of less than a kilobyte are an attack (HAProxy's rule). A block that never ends is
        // counted at every sixteenth fragment.
        let many = open.fragments > 4 && open.fragments as usize > self.fragments.len() / 1024;
        if many && (complete || open.fragments.is_multiple_of(16)) {
            self.glitch(1)?;
        }
        if !complete {
            return Ok(None);
        }
        self.open_block = None;
        let mut block = std::mem::take(&mut self.fragments);
        let outcome = self.block(open, &block, message);
        block.clear();
        self.fragments = block;
        outcome
    }

    /// Processes a complete field block: a head, trailers, or a discarded block, which is decoded all the same.
    fn block(&mut self, open: OpenBlock, block: &[u8], message: &mut Message) -> Outcome {
        let id = open.stream;
        let Some(key) = self.streams.find(id) else {
            return if self.is_client || id <= self.last_opened {
                self.block_of_closed(id, block)
            } else {
                self.request(open, block, message)
            };
        };
        let Some(stream) = self.streams.get(key) else { return Ok(None) };
        if stream.is(bit::RESET_SENT) {
            self.skip_block(block)?;
            return Ok(None);
        }
        if stream.is(bit::RECEIVED_END | bit::RESET_RECEIVED) {
            self.skip_block(block)?;
            return match stream_is_closed(self.streams.get(key)) {
                true => self.error(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream"),
                false => self.stream_error(key, ErrorCode::STREAM_CLOSED).map(Some),
            };
        }
        if stream.is(bit::RECEIVED_HEAD) {
            self.trailers(key, open, block, message)
        } else {
            self.response(key, open, block, message)
        }
    }

    fn block_of_closed(&mut self, id: u32, block: &[u8]) -> Outcome {
        self.skip_block(block)?;
        if self.was_reset(id) {
            return Ok(None);
        }
        self.error(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream")
    }

    fn skip_block(&mut self, block: &[u8]) -> Result<(), Failure> {
        match head::skip(self.decoder.block(block)) {
            Ok(()) => Ok(()),
            Err(error) => self.error(ErrorCode::COMPRESSION_ERROR, error.text()),
        }
    }

    fn request(&mut self, open: OpenBlock, block: &[u8], message: &mut Message) -> Outcome {
        let id = open.stream;
        if id.is_multiple_of(2) {
            return self.error(ErrorCode::PROTOCOL_ERROR, "a client opens streams with odd numbers");
        }
        let limit = self.settings.max_concurrent_streams;
        let total = self.settings.max_total_streams;
        if total != 0 && u64::from(self.total) >= u64::from(total) + u64::from(limit) {
            return self.error(ErrorCode::ENHANCE_YOUR_CALM, "too many streams after GOAWAY");
        }
        self.last_opened = id;
        self.total = self.total.saturating_add(1);
        let too_many = limit != 0 && self.streams.open >= limit;
        if too_many || self.goaway_sent.is_some_and(|last| id > last) {
            self.skip_block(block)?;
            self.glitch(u32::from(too_many))?;
            self.write_reset(id, ErrorCode::REFUSED_STREAM);
            self.renew_after_total();
            return Ok(Some(Event::Refused { id, code: ErrorCode::REFUSED_STREAM, reason: None }));
        }
        let read = head::read_request(self.decoder.block(block), &self.rules, open.end, message);
        let request = match read {
            Err(error) => return self.error(ErrorCode::COMPRESSION_ERROR, error.text()),
            Ok(Err(reason)) => {
                self.glitch(1)?;
                self.counts.stream_errors += 1;
                self.counts.refused_heads += 1;
                self.write_reset(id, ErrorCode::PROTOCOL_ERROR);
                self.renew_after_total();
                let code = ErrorCode::PROTOCOL_ERROR;
                return Ok(Some(Event::Refused { id, code, reason: Some(reason) }));
            }
            Ok(Ok(request)) => request,
        };
        let mut flags = bit::RECEIVED_HEAD;
        if open.end {
            flags |= bit::RECEIVED_END;
        }
        if request.extended {
            flags |= bit::EXTENDED;
        }
        match request.head.method {
            Method::Connect => flags |= bit::CONNECT,
            Method::Head => flags |= bit::HEAD,
            _ => {}
        }
        let stream = self.add_stream(id, flags, request.length.unwrap_or(NO_LENGTH));
        self.renew_after_total();
        Ok(Some(Event::Request { stream, head: request.head, end: open.end, unparsable: request.unparsable }))
    }

    /// Asks the client to use another connection once it has opened the maximum total number of streams.
    fn renew_after_total(&mut self) {
        let total = self.settings.max_total_streams;
        if total != 0 && self.total >= total {
            self.renew();
        }
    }

    pub(super) fn add_stream(&mut self, id: u32, flags: u16, length: u64) -> StreamKey {
        // Until the peer has acknowledged the settings, it may use the default window.
        let window = self.settings.initial_window;
        let usable = if self.acknowledged { window } else { window.max(frame::DEFAULT_WINDOW) };
        self.streams.add(Stream {
            id,
            flags,
            send_offset: 0,
            receive_window: usable.into(),
            unconsumed: 0,
            window,
            length,
            received_code: ErrorCode::NO_ERROR,
            sent_code: ErrorCode::NO_ERROR,
            protocol: None,
        })
    }

    fn trailers(&mut self, key: StreamKey, open: OpenBlock, block: &[u8], message: &mut Message) -> Outcome {
        let read = head::read_trailers(self.decoder.block(block), &self.rules, message);
        let length = self.streams.get(key).map_or(NO_LENGTH, |stream| stream.length);
        match read {
            Err(error) => self.error(ErrorCode::COMPRESSION_ERROR, error.text()),
            Ok(Ok(())) if open.end && matches!(length, 0 | NO_LENGTH) => {
                self.streams.set(key, bit::RECEIVED_END);
                Ok(Some(Event::Trailers { stream: key }))
            }
            Ok(_) => self.stream_error(key, ErrorCode::PROTOCOL_ERROR).map(Some),
        }
    }

    fn response(&mut self, key: StreamKey, open: OpenBlock, block: &[u8], message: &mut Message) -> Outcome {
        let Some(stream) = self.streams.get(key) else { return Ok(None) };
        let answered = head::Answered {
            head: stream.is(bit::HEAD),
            connect: stream.is(bit::CONNECT),
            protocol: stream.protocol.as_deref(),
        };
        let read = head::read_response(self.decoder.block(block), &self.rules, answered, open.end, message);
        let response = match read {
            Err(error) => return self.error(ErrorCode::COMPRESSION_ERROR, error.text()),
            Ok(Err(_)) => return self.stream_error(key, ErrorCode::PROTOCOL_ERROR).map(Some),
            Ok(Ok(response)) => response,
        };
        if !response.head.interim {
            if let Some(stream) = self.streams.get_mut(key) {
                stream.length = response.length.unwrap_or(NO_LENGTH);
            }
            let end = if open.end { bit::RECEIVED_END } else { 0 };
            let bodiless = if response.bodiless { bit::BODILESS } else { 0 };
            self.streams.set(key, bit::RECEIVED_HEAD | end | bodiless);
        }
        Ok(Some(Event::Response { stream: key, head: response.head, end: open.end }))
    }

    fn rst_stream(&mut self, code: ErrorCode) -> Outcome {
        self.resets_left = self.resets_left.saturating_sub(1);
        let Some(key) = self.streams.find(self.frame.stream) else { return Ok(None) };
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.is_closed()) else { return Ok(None) };
        stream.received_code = code;
        let early = !stream.is(bit::STARTED) && !self.is_client;
        self.streams.set(key, bit::RESET_RECEIVED);
        if early {
            self.glitch(1)?;
        }
        Ok(Some(Event::Reset { stream: key, code, by_peer: true }))
    }

    /// Takes this much from the windows of the open streams. What was consumed before may be worth credit now, and a
    /// peer that has used its whole window sends nothing before it gets some.
    fn shrink_windows(&mut self, by: u32) {
        if by == 0 {
            return;
        }
        self.streams.iter_mut().for_each(|stream| stream.receive_window -= i64::from(by));
        let mut last = 0;
        while let Some(key) = self.streams.open_after(last) {
            last = key.id();
            self.update_window(key);
        }
    }

    fn peer_settings(&mut self, payload: &[u8]) -> Outcome {
        if self.frame.has(flag::ACK) {
            if !self.acknowledged {
                self.acknowledged = true;
                self.shrink_windows(frame::DEFAULT_WINDOW.saturating_sub(self.settings.initial_window));
            }
            return Ok(None);
        }
        let first = !std::mem::replace(&mut self.greeted, true);
        for entry in payload.as_chunks::<6>().0 {
            let [a, b, value @ ..] = *entry;
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([a, b]) {
                setting::HEADER_TABLE_SIZE => self.encoder.set_limit(value),
                // As in HAProxy, a server may say that it accepts pushes: without PUSH_PROMISE it means nothing.
                setting::ENABLE_PUSH if value > 1 => {
                    return self.error(ErrorCode::PROTOCOL_ERROR, "invalid ENABLE_PUSH");
                }
                setting::MAX_CONCURRENT_STREAMS => self.peer.max_concurrent_streams = Some(value),
                setting::INITIAL_WINDOW_SIZE => {
                    if value > frame::MAX_31 {
                        return self.error(ErrorCode::FLOW_CONTROL_ERROR, "invalid INITIAL_WINDOW_SIZE");
                    }
                    if !first && value < self.peer.initial_window {
                        self.glitch(1)?;
                    }
                    let overflows =
                        |stream: &mut Stream| stream.send_offset + i64::from(value) > i64::from(frame::MAX_31);
                    if self.streams.iter_mut().any(overflows) {
                        return self.error(ErrorCode::FLOW_CONTROL_ERROR, "a window overflows");
                    }
                    self.peer.initial_window = value;
                }
                setting::MAX_FRAME_SIZE => {
                    if !(frame::DEFAULT_FRAME_SIZE..1 << 24).contains(&value) {
                        return self.error(ErrorCode::PROTOCOL_ERROR, "invalid MAX_FRAME_SIZE");
                    }
                    self.peer.max_frame_size = value;
                }
                setting::ENABLE_CONNECT_PROTOCOL => {
                    if value > 1 {
                        return self.error(ErrorCode::PROTOCOL_ERROR, "invalid ENABLE_CONNECT_PROTOCOL");
                    }
                    self.peer.connect_protocol |= value == 1;
                }
                _ => {}
            }
        }
        self.answer(|out| frame::write_header(out, 0, Kind::Settings, flag::ACK, 0));
        Ok(Some(Event::Settings))
    }

    fn window_update(&mut self, increment: u32) -> Outcome {
        let max = i64::from(frame::MAX_31);
        if self.frame.stream == 0 {
            if increment == 0 {
                return self.error(ErrorCode::PROTOCOL_ERROR, "WINDOW_UPDATE of 0");
            }
            let was_shut = self.send_window <= 0;
            self.send_window += i64::from(increment);
            if self.send_window > max {
                return self.error(ErrorCode::FLOW_CONTROL_ERROR, "the window of the connection overflows");
            }
            let opened = was_shut && self.send_window > 0;
            return Ok(opened.then_some(Event::Writable { stream: None }));
        }
        let Some(key) = self.streams.find(self.frame.stream) else { return Ok(None) };
        let initial = i64::from(self.peer.initial_window);
        let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.is_closed()) else { return Ok(None) };
        if increment == 0 {
            return self.stream_error(key, ErrorCode::PROTOCOL_ERROR).map(Some);
        }
        let window = initial + stream.send_offset;
        let opened = window + i64::from(increment);
        if opened > max {
            return self.stream_error(key, ErrorCode::FLOW_CONTROL_ERROR).map(Some);
        }
        stream.send_offset += i64::from(increment);
        let opened = window <= 0 && opened > 0;
        Ok(opened.then_some(Event::Writable { stream: Some(key) }))
    }

    /// Resets a stream because of an error of the peer.
    fn stream_error(&mut self, key: StreamKey, code: ErrorCode) -> Result<Event, Failure> {
        self.glitch(1)?;
        self.counts.stream_errors += 1;
        self.resets_left = self.resets_left.saturating_sub(1);
        self.reset(key, code);
        Ok(Event::Reset { stream: key, code, by_peer: false })
    }

    /// Resets a stream that has no record.
    fn write_reset(&mut self, id: u32, code: ErrorCode) {
        self.resets_left = self.resets_left.saturating_sub(1);
        self.remember_reset(id);
        self.counts.resets_sent += 1;
        self.answer(|out| frame::write_rst_stream(out, id, code));
    }

    /// Returns whether this side has reset a stream recently, so that frames may be on the way.
    fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }

    /// Appends an answer, which counts towards the limit of answers that wait for a peer that does not read.
    pub(super) fn answer(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.output.len();
        write(&mut self.output);
        self.control[1] += self.output.len() - before;
    }

    /// Returns the next stream that the peer will not process. One that it answers is processed, whatever its GOAWAY says.
    fn next_unprocessed(&mut self) -> Option<Event> {
        loop {
            let last = self.unprocessed_after?;
            let Some(key) = self.streams.open_after(last) else {
                self.unprocessed_after = None;
                return None;
            };
            self.unprocessed_after = Some(key.id());
            let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.is(bit::RECEIVED_HEAD)) else {
                continue;
            };
            let code = ErrorCode::REFUSED_STREAM;
            stream.received_code = code;
            self.streams.set(key, bit::RESET_RECEIVED | bit::UNPROCESSED);
            return Some(Event::Reset { stream: key, code, by_peer: true });
        }
    }
}

fn stream_is_closed(stream: Option<&Stream>) -> bool {
    stream.is_none_or(Stream::is_closed)
}

/// Returns the first four bytes of a payload as a number.
fn word(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
