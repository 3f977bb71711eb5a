//! A session of HTTP/2: the streams of a connection, by one task.
//!
//! In a turn the task processes what was received, answers, fills the connection's output, then writes what the socket
//! accepts and reads what it has. Answers that wait for the client's windows take turns of `CHUNK` bytes. A stream
//! keeps received data only for `/echo`, up to its window.

use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use sluicegate_wire::http::{Framing, Limits, Message, Method, RequestHead, Version, status};
use sluicegate_wire::http2::{Blocked, Connection, ErrorCode, Event, Progress, Settings, StreamKey};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep};

use super::{BUFFER, IDLE, PATTERN, PENDING, Route, SLOW, route};

/// The streams that a client may open at once.
const STREAMS: u32 = 250;

/// The window of a stream, and so the maximum number of bytes of a request that wait.
const WINDOW: u32 = 64 * 1024;

/// The number of bytes of an answer that are sent before the turn of another one.
const CHUNK: usize = 16 * 1024;

/// The remaining work for a stream.
enum Work {
    /// The rest of the request is received and discarded; then it is answered.
    Receive(Route),
    /// The rest of the request is received and discarded; it is answered already.
    Discard,
    /// An answer is due later.
    Wait(Route),
    /// Bytes of the pattern are left to send.
    Bytes(u64),
    /// A text is left to send.
    Text(Vec<u8>),
    /// The request's body is sent back; `ended`: it is complete.
    Echo { body: VecDeque<u8>, ended: bool, trailers: Option<Message> },
}

struct Stream {
    key: StreamKey,
    is_head: bool,
    work: Work,
    /// Whether it waits for its turn to send.
    is_queued: bool,
}

/// One client connection.
pub(super) struct Http2<S> {
    pub(super) stream: S,
    connection: Connection,
    input: Vec<u8>,
    message: Message,
    response: Message,
    /// By their slots.
    streams: Vec<Option<Stream>>,
    /// Streams that may have something to send, by their slots.
    queue: VecDeque<usize>,
    /// The times at which answers are due, with the slots of their streams.
    timers: BTreeSet<(Instant, usize)>,
    sleep: Pin<Box<Sleep>>,
    last_activity: Instant,
    /// Whether something was written that the stream may hold back.
    is_unflushed: bool,
    is_ended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http2<S> {
    /// `input` was received already.
    pub(super) fn new(stream: S, input: Vec<u8>) -> Http2<S> {
        let now = Instant::now();
        let settings = Settings {
            initial_window: WINDOW,
            max_concurrent_streams: STREAMS,
            connect_protocol: false,
            head: Limits { max_head: BUFFER, ..Limits::default() },
            output_max: PENDING,
            ..Settings::default()
        };
        Http2 {
            stream,
            connection: Connection::server(settings),
            input,
            message: Message::new(),
            response: Message::new(),
            streams: Vec::new(),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            sleep: Box::pin(tokio::time::sleep_until(now + IDLE)),
            last_activity: now,
            is_unflushed: false,
            is_ended: false,
        }
    }

    /// Answers requests until the client or an error ends the connection.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            if self.process() {
                // Too many frames at once; other sessions come first.
                tokio::task::yield_now().await;
            }
            if self.connection.failure().is_some() {
                return self.close().await;
            }
            self.answer_due();
            self.send();
            let has_output = self.is_unflushed || !self.connection.output().is_empty();
            if self.is_ended && !has_output && self.connection.held_streams() == 0 {
                return Ok(());
            }
            let idle_at = self.last_activity + IDLE;
            if self.timers.is_empty() && idle_at <= Instant::now() {
                self.connection.goaway(self.connection.last_opened(), ErrorCode::NO_ERROR);
                return self.close().await;
            }
            let wake_at = self.timers.first().map_or(idle_at, |(at, _)| *at);
            // A timer that is set for an earlier time costs less than setting it for every answer.
            if self.sleep.is_elapsed() || self.sleep.deadline() > wake_at {
                self.sleep.as_mut().reset(wake_at);
            }
            self.exchange().await?;
        }
    }

    /// Processes received bytes. Returns whether the budget of the turn ended it.
    fn process(&mut self) -> bool {
        self.connection.begin_turn();
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        let mut message = std::mem::take(&mut self.message);
        let is_cut_off = loop {
            match self.connection.receive(&input[at..], &mut message) {
                Ok((used, Progress::Event(event))) => {
                    self.event(event, &input[at..], &message);
                    at += used;
                }
                Ok((used, progress)) => {
                    at += used;
                    break progress == Progress::Blocked(Blocked::Turn);
                }
                Err(_) => {
                    at = input.len();
                    break false;
                }
            }
        };
        self.message = message;
        self.input = input;
        self.input.drain(..at);
        if self.is_ended {
            self.give_up_incomplete();
        }
        is_cut_off
    }

    /// Handles the end of the client's data: incomplete requests are dropped, complete ones are answered.
    fn give_up_incomplete(&mut self) {
        for slot in 0..self.streams.len() {
            if let Some(Stream { key, work, .. }) = &self.streams[slot]
                && matches!(work, Work::Receive(_) | Work::Discard | Work::Echo { ended: false, .. })
            {
                self.release(*key);
            }
        }
    }

    /// Processes an event. `input` is that of the call that returned it, `message` what it was lent.
    fn event(&mut self, event: Event, input: &[u8], message: &Message) {
        match event {
            Event::Request { stream, head, end, unparsable } => {
                if unparsable || head.method == Method::Connect {
                    let code = if unparsable { 400 } else { 405 };
                    self.add(stream, false, Work::Discard);
                    self.respond(stream, code, status::reason(code).as_bytes());
                    return self.release(stream);
                }
                self.request(stream, &head, end, message);
            }
            Event::Data { stream, range } => self.data(stream, &input[range]),
            Event::End { stream } => self.end(stream, None),
            Event::Trailers { stream } => {
                let mut trailers = Message::new();
                trailers.copy_from(message);
                self.end(stream, Some(trailers));
            }
            Event::Reset { stream, .. } => self.release(stream),
            Event::Writable { stream: Some(stream) } => self.enqueue(stream.slot()),
            Event::Writable { stream: None } | Event::Settings => {
                for slot in 0..self.streams.len() {
                    self.enqueue(slot);
                }
            }
            Event::Refused { .. } | Event::Response { .. } | Event::GoAway { .. } | Event::Pong(_) => {}
        }
    }

    fn request(&mut self, key: StreamKey, head: &RequestHead, end: bool, message: &Message) {
        let route = route(message.target());
        let is_head = head.method == Method::Head;
        if head.expect_continue && !end {
            self.begin_response(100);
            let _ = self.connection.send_response(key, &self.response, Framing::None, false);
        }
        if route != Route::Echo {
            self.add(key, is_head, Work::Receive(route));
            if end {
                self.end(key, None);
            }
            return;
        }
        self.begin_response(200);
        self.response.add(b"content-type", message.first(b"content-type").unwrap_or(b"application/octet-stream"));
        self.response.add(b"x-request-method", message.method());
        let framing = match head.body {
            Framing::None => Framing::Length(0),
            framing => framing,
        };
        // Sending does not fail: the response is made here, and is never a 101.
        let _ = self.connection.send_response(key, &self.response, framing, end || is_head);
        match (end, is_head) {
            (true, _) => self.connection.release(key),
            (false, true) => self.add(key, true, Work::Discard),
            (false, false) => {
                self.add(key, false, Work::Echo { body: VecDeque::new(), ended: false, trailers: None });
            }
        }
    }

    fn data(&mut self, key: StreamKey, data: &[u8]) {
        let consumed = match self.stream_mut(key).map(|stream| &mut stream.work) {
            Some(Work::Echo { body, .. }) => {
                body.extend(data);
                self.enqueue(key.slot());
                return;
            }
            _ => data.len(),
        };
        self.connection.consume(key, consumed);
    }

    /// The request is complete.
    fn end(&mut self, key: StreamKey, last: Option<Message>) {
        let Some(stream) = self.stream_mut(key) else { return };
        match &mut stream.work {
            Work::Receive(route) => {
                let route = *route;
                let wait = match route {
                    Route::Slow => Some(SLOW),
                    Route::Delay(delay_ms) => Some(Duration::from_millis(delay_ms)),
                    _ => None,
                };
                match wait {
                    Some(wait) => {
                        stream.work = Work::Wait(route);
                        self.timers.insert((Instant::now() + wait, key.slot()));
                    }
                    None => self.answer(key, route),
                }
            }
            Work::Echo { ended, trailers, .. } => {
                *ended = true;
                *trailers = last;
                self.enqueue(key.slot());
            }
            Work::Discard => self.release(key),
            Work::Wait(_) | Work::Bytes(_) | Work::Text(_) => {}
        }
    }

    /// Sends the answers whose time has come.
    fn answer_due(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&(at, slot)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, slot));
            self.last_activity = now;
            if let Some(Some(Stream { key, work: Work::Wait(route), .. })) = self.streams.get(slot) {
                self.answer(*key, *route);
            }
        }
    }

    /// Begins the answer to a complete request.
    fn answer(&mut self, key: StreamKey, route: Route) {
        let mut number = itoa::Buffer::new();
        match route {
            Route::Fast | Route::Echo => self.respond(key, 200, b"I'm FAST!!!!"),
            Route::Slow => self.respond(key, 200, b"I'm slooooow"),
            Route::Delay(delay_ms) => self.respond(key, 200, number.format(delay_ms).as_bytes()),
            Route::Status(code) => self.respond(key, code, status::reason(code).as_bytes()),
            Route::NotFound => self.respond(key, 404, b"Not Found"),
            Route::Bytes(count) => {
                let is_head = self.stream_mut(key).is_some_and(|stream| stream.is_head);
                self.begin_response(200);
                self.response.add(b"content-type", b"application/octet-stream");
                let end = is_head || count == 0;
                let _ = self.connection.send_response(key, &self.response, Framing::Length(count), end);
                if end {
                    return self.release(key);
                }
                self.work(key, Work::Bytes(count));
            }
        }
    }

    /// Makes an empty response of the message that all responses of the connection use.
    fn begin_response(&mut self, code: u16) {
        self.response.clear();
        self.response.set_response(Version::Http2, code, status::reason(code).as_bytes());
    }

    /// Sends an answer with a short text.
    fn respond(&mut self, key: StreamKey, code: u16, text: &[u8]) {
        let is_head = self.stream_mut(key).is_some_and(|stream| stream.is_head);
        self.begin_response(code);
        let has_text = !matches!(code, 204 | 304);
        let framing = if has_text { Framing::Length(text.len() as u64) } else { Framing::None };
        if has_text {
            self.response.add(b"content-type", b"text/plain");
        }
        let end = is_head || !has_text || text.is_empty();
        let _ = self.connection.send_response(key, &self.response, framing, end);
        if end {
            return self.release(key);
        }
        let sent = self.connection.send_data(key, text, true);
        if sent == text.len() {
            return self.release(key);
        }
        self.work(key, Work::Text(text[sent..].to_vec()));
    }

    fn add(&mut self, key: StreamKey, is_head: bool, work: Work) {
        if self.streams.len() <= key.slot() {
            self.streams.resize_with(key.slot() + 1, || None);
        }
        self.streams[key.slot()] = Some(Stream { key, is_head, work, is_queued: false });
    }

    fn stream_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.streams.get_mut(key.slot())?.as_mut().filter(|stream| stream.key == key)
    }

    fn work(&mut self, key: StreamKey, work: Work) {
        if let Some(stream) = self.stream_mut(key) {
            stream.work = work;
        }
        self.enqueue(key.slot());
    }

    /// Lists a stream among those that may send, if it has something to send.
    fn enqueue(&mut self, slot: usize) {
        if let Some(Some(stream)) = self.streams.get_mut(slot)
            && matches!(stream.work, Work::Bytes(_) | Work::Text(_) | Work::Echo { .. })
            && !std::mem::replace(&mut stream.is_queued, true)
        {
            self.queue.push_back(slot);
        }
    }

    fn release(&mut self, key: StreamKey) {
        self.connection.release(key);
        if let Some(place) = self.streams.get_mut(key.slot())
            && place.as_ref().is_some_and(|stream| stream.key == key)
        {
            if let Some(Stream { work: Work::Wait(_), .. }) = place {
                self.timers.retain(|(_, slot)| *slot != key.slot());
            }
            *place = None;
        }
    }

    /// Fills the output from the streams in turns. A stream that its window stops is listed again when it opens.
    fn send(&mut self) {
        while !self.connection.is_output_full()
            && let Some(slot) = self.queue.pop_front()
        {
            let Some(Some(stream)) = self.streams.get_mut(slot) else { continue };
            stream.is_queued = false;
            let key = stream.key;
            let connection = &mut self.connection;
            // The two flags: the stream continues, and its response is complete.
            let (goes_on, is_done) = match &mut stream.work {
                Work::Bytes(left) => {
                    let part = (*left).min(PATTERN.len() as u64) as usize;
                    let sent = connection.send_data(key, &PATTERN[..part], part as u64 == *left);
                    *left -= sent as u64;
                    (sent == part, *left == 0)
                }
                Work::Text(text) => {
                    let sent = connection.send_data(key, text, true);
                    text.drain(..sent);
                    (false, text.is_empty())
                }
                Work::Echo { body, ended, trailers } => {
                    let (front, back) = body.as_slices();
                    let part = &front[..front.len().min(CHUNK)];
                    let is_last = *ended && trailers.is_none() && part.len() == front.len() && back.is_empty();
                    let (wanted, sent) = (part.len(), connection.send_data(key, part, is_last));
                    body.drain(..sent);
                    connection.consume(key, sent);
                    let is_done = *ended && body.is_empty();
                    if is_done && trailers.is_some() {
                        connection.send_end(key, trailers.as_ref());
                    }
                    (sent == wanted && !body.is_empty(), is_done)
                }
                Work::Receive(_) | Work::Discard | Work::Wait(_) => continue,
            };
            if is_done {
                self.release(key);
            } else if goes_on || self.connection.is_output_full() {
                self.enqueue(slot);
            }
        }
    }

    /// Writes and reads what is possible; waits until something is, or until the timer fires.
    async fn exchange(&mut self) -> io::Result<()> {
        let room = BUFFER.saturating_sub(self.input.len());
        let has_room = room > 0 && !self.connection.is_output_full() && self.connection.blocked().is_none();
        let wants_input = has_room && !self.is_ended;
        poll_fn(|cx| {
            let mut is_done = false;
            while !self.connection.output().is_empty() {
                match Pin::new(&mut self.stream).poll_write(cx, self.connection.output()) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => {
                        self.connection.wrote(count);
                        self.last_activity = Instant::now();
                        self.is_unflushed = true;
                        is_done = true;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            if self.is_unflushed
                && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(cx)
            {
                flushed?;
                self.is_unflushed = false;
            }
            if wants_input {
                let mut limited = (&mut self.stream).take(room as u64);
                if let Poll::Ready(count) = pin!(limited.read_buf(&mut self.input)).poll(cx) {
                    self.is_ended = count? == 0;
                    self.last_activity = Instant::now();
                    is_done = true;
                }
            }
            if is_done || self.sleep.as_mut().poll(cx).is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    /// Ends the connection so that the last frames arrive: a socket closed with unread bytes would reset it.
    async fn close(&mut self) -> io::Result<()> {
        let closing = async {
            self.stream.write_all(self.connection.output()).await?;
            self.stream.shutdown().await?;
            let mut discarded = 0;
            while discarded < 4 * BUFFER {
                self.input.clear();
                let count = (&mut self.stream).take(BUFFER as u64).read_buf(&mut self.input).await?;
                if count == 0 {
                    break;
                }
                discarded += count;
            }
            Ok(())
        };
        tokio::time::timeout(IDLE, closing).await?
    }
}
