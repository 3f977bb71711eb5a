//! A session of HTTP/1.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use sluicegate_wire::http::{
    BodyDecoder, BodyEvent, ConnectionField, Framing, Limits, Message, Method, RequestHead, Version, parse_request,
    status, write_chunk, write_last_chunk, write_response,
};
use sluicegate_wire::http2::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep};

use super::{BUFFER, IDLE, PATTERN, PENDING, Route, SLOW, route};

/// The whole answer of `/fast` to a client that keeps its connection.
const FAST: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Type: text/plain\r\n\r\nI'm FAST!!!!";

/// One client connection.
pub(super) struct Session<S> {
    pub(super) stream: S,
    received: Vec<u8>,
    /// Bytes of `received` that belong to requests already answered.
    taken: usize,
    pending: Vec<u8>,
    idle: Pin<Box<Sleep>>,
    last_activity: Instant,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    pub(super) fn new(stream: S) -> Session<S> {
        let now = Instant::now();
        Session {
            stream,
            received: Vec::with_capacity(BUFFER),
            taken: 0,
            pending: Vec::new(),
            idle: Box::pin(tokio::time::sleep_until(now + IDLE)),
            last_activity: now,
        }
    }

    /// Receives until it is known whether the client speaks HTTP/2.
    pub(super) async fn begins_with_preface(&mut self) -> io::Result<bool> {
        while self.received.len() < PREFACE.len() {
            // A request shares fewer bytes with the preface than a complete request has, so no complete one waits here.
            if !PREFACE.starts_with(&self.received) || !self.receive().await? {
                return Ok(false);
            }
        }
        Ok(self.received.starts_with(PREFACE))
    }

    /// Returns the stream and what was received from it.
    pub(super) fn into_parts(self) -> (S, Vec<u8>) {
        (self.stream, self.received)
    }

    /// Answers requests until the client or a request ends the session.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        let limits = Limits { max_head: BUFFER, ..Limits::default() };
        let mut message = Message::new();
        loop {
            match parse_request(&self.received[self.taken..], &limits, &mut message) {
                Ok(Some(head)) => {
                    self.taken += head.head_len;
                    if !self.answer(&message, &head).await? {
                        return self.close().await;
                    }
                    if self.pending.len() >= PENDING {
                        self.flush().await?;
                    }
                }
                Ok(None) => {
                    self.flush().await?;
                    if !self.receive().await? {
                        return Ok(());
                    }
                }
                Err(error) => {
                    self.pending.extend_from_slice(status::error_page(error.request_status()).raw.as_bytes());
                    return self.close().await;
                }
            }
        }
    }

    /// Answers one request. `false`: the connection ends with it.
    async fn answer(&mut self, message: &Message, head: &RequestHead) -> io::Result<bool> {
        let route = route(message.target());
        if route == Route::Fast
            && matches!(head.body, Framing::None | Framing::Length(0))
            && head.method == Method::Get
            && head.keep_alive
            && message.version() == Version::Http11
        {
            self.pending.extend_from_slice(FAST);
            return Ok(true);
        }
        if head.method == Method::Connect {
            self.pending.extend_from_slice(status::error_page(405).raw.as_bytes());
            return Ok(false);
        }
        if head.expect_continue {
            self.pending.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        if route == Route::Echo {
            return self.echo(message, head).await;
        }
        let mut body = BodyDecoder::new(head.body);
        while self.body_part(&mut body).await?.is_some() {}
        let mut number = itoa::Buffer::new();
        match route {
            Route::Slow => {
                self.wait(SLOW).await?;
                self.respond(message, head, 200, b"I'm slooooow");
            }
            Route::Delay(delay_ms) => {
                self.wait(Duration::from_millis(delay_ms)).await?;
                self.respond(message, head, 200, number.format(delay_ms).as_bytes());
            }
            Route::Status(code) => self.respond(message, head, code, status::reason(code).as_bytes()),
            Route::Bytes(count) => {
                let mut response = response(200);
                response.add(b"Content-Type", b"application/octet-stream");
                self.write_head(message, head, &response, Framing::Length(count));
                if head.method != Method::Head {
                    self.send_bytes(count).await?;
                }
            }
            Route::NotFound => self.respond(message, head, 404, b"Not Found"),
            Route::Fast | Route::Echo => self.respond(message, head, 200, b"I'm FAST!!!!"),
        }
        Ok(head.keep_alive)
    }

    /// A whole answer with a short text.
    fn respond(&mut self, message: &Message, head: &RequestHead, code: u16, text: &[u8]) {
        let mut response = response(code);
        if matches!(code, 204 | 304) {
            self.write_head(message, head, &response, Framing::None);
            return;
        }
        response.add(b"Content-Type", b"text/plain");
        self.write_head(message, head, &response, Framing::Length(text.len() as u64));
        if head.method != Method::Head {
            self.pending.extend_from_slice(text);
        }
    }

    fn write_head(&mut self, request: &Message, head: &RequestHead, response: &Message, body: Framing) {
        let connection = ConnectionField::for_response(request.version(), response.version(), head.keep_alive);
        write_response(response, body, connection, &mut self.pending);
    }

    async fn send_bytes(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let part = left.min(PATTERN.len() as u64) as usize;
            self.pending.extend_from_slice(&PATTERN[..part]);
            left -= part as u64;
            if self.pending.len() >= PENDING {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Streams the request's body back.
    async fn echo(&mut self, message: &Message, head: &RequestHead) -> io::Result<bool> {
        let mut response = response(200);
        let content_type = message.first(b"content-type").unwrap_or(b"application/octet-stream");
        response.add(b"Content-Type", content_type);
        response.add(b"x-request-method", message.method());
        // HTTP/1.0 knows no chunks: there the end of the connection ends the body.
        let framing = match head.body {
            Framing::Chunked if message.version() == Version::Http10 => Framing::UntilClose,
            Framing::Chunked => Framing::Chunked,
            Framing::Length(length) => Framing::Length(length),
            Framing::None | Framing::UntilClose => Framing::Length(0),
        };
        self.write_head(message, head, &response, framing);
        let sends_body = head.method != Method::Head;
        let mut body = BodyDecoder::new(head.body);
        while let Some(range) = self.body_part(&mut body).await? {
            if sends_body {
                let data = &self.received[range];
                match framing {
                    Framing::Chunked => write_chunk(data, &mut self.pending),
                    _ => self.pending.extend_from_slice(data),
                }
            }
            if self.pending.len() >= PENDING {
                self.flush().await?;
            }
        }
        if let (BodyDecoder::Chunked(decoder), Framing::Chunked, true) = (&body, framing, sends_body) {
            write_last_chunk(decoder.trailers(), &mut self.pending);
        }
        Ok(head.keep_alive && framing != Framing::UntilClose)
    }

    /// Returns the next part of a request's body, as a range of `received` that is valid until the next call; `None` at
    /// its end. Answers that are ready are written before waiting for the client.
    async fn body_part(&mut self, body: &mut BodyDecoder) -> io::Result<Option<std::ops::Range<usize>>> {
        loop {
            let start = self.taken;
            let (taken, event) = body.decode(&self.received[start..]).map_err(io::Error::other)?;
            self.taken += taken;
            match event {
                BodyEvent::Data(range) => return Ok(Some(start + range.start..start + range.end)),
                BodyEvent::End => return Ok(None),
                BodyEvent::More => {
                    self.flush().await?;
                    if !self.receive().await? {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }

    /// Sends buffered data, then waits.
    async fn wait(&mut self, time: Duration) -> io::Result<()> {
        self.flush().await?;
        tokio::time::sleep(time).await;
        self.last_activity = Instant::now();
        Ok(())
    }

    /// Receives into the free part of the buffer. `false`: the client has ended its direction.
    async fn receive(&mut self) -> io::Result<bool> {
        self.received.drain(..self.taken);
        self.taken = 0;
        let room = BUFFER - self.received.len().min(BUFFER);
        debug_assert!(room > 0, "a full buffer without a head is refused by the parser");
        loop {
            let mut input = (&mut self.stream).take(room as u64);
            tokio::select! {
                biased;
                count = input.read_buf(&mut self.received) => {
                    self.last_activity = Instant::now();
                    return Ok(count? > 0);
                }
                () = self.idle.as_mut() => {}
            }
            self.rearm()?;
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.pending.len() {
            tokio::select! {
                biased;
                count = self.stream.write(&self.pending[sent..]) => {
                    sent += count?;
                    self.last_activity = Instant::now();
                    continue;
                }
                () = self.idle.as_mut() => {}
            }
            self.rearm()?;
        }
        self.pending.clear();
        // Records that the kernel has not taken; there are none without TLS.
        loop {
            tokio::select! {
                biased;
                flushed = self.stream.flush() => return flushed,
                () = self.idle.as_mut() => {}
            }
            self.rearm()?;
        }
    }

    /// The session's timer has fired: it is set again for the activity since, or the session has been idle.
    fn rearm(&mut self) -> io::Result<()> {
        let deadline = self.last_activity + IDLE;
        if deadline <= Instant::now() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.idle.as_mut().reset(deadline);
        Ok(())
    }

    /// Ends the connection so that the last answer arrives: a socket closed with unread bytes would reset it.
    async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        let mut discarded = 0;
        while discarded < 4 * BUFFER {
            self.received.clear();
            self.taken = 0;
            if !self.receive().await? {
                break;
            }
            discarded += self.received.len();
        }
        Ok(())
    }
}

fn response(code: u16) -> Message {
    let mut response = Message::new();
    response.set_response(Version::Http11, code, status::reason(code).as_bytes());
    response
}
