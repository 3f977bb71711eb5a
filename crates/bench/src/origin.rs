//! The demo origin: a small HTTP server for examples, tests and load tests.
//!
//! | path | answer |
//! |---|---|
//! | `/fast` | `I'm FAST!!!!` at once |
//! | `/slow` | `I'm slooooow` after 3 s |
//! | `/bytes/N` | N bytes |
//! | `/echo` | the request's body, framed as it came, and its method in `x-request-method` |
//! | `/status/N` | status N (200–599) |
//! | `/delay/MS` | the milliseconds waited (at most 3,600,000) |
//! | any other | 404 |
//!
//! With a certificate it speaks TLS, on the same paths.
//!
//! A session is a task on the thread that accepted it. It answers all received requests with one write, so
//! that a load test does not measure the origin: `/fast` is a lookup and a copy of a prepared response. Bodies
//! are streamed in both directions in bounded memory; the origin stops reading from a peer that does not read.
//!
//! Limits: a head of `BUFFER` bytes, `IDLE` without a byte in either direction or for a handshake, the process's descriptors (when
//! they run out, accepting pauses).

mod tls;

use std::io;
use std::net::TcpListener as StdListener;
use std::pin::Pin;
use std::time::Duration;

use sluicegate_wire::http::{
    BodyDecoder, BodyEvent, ConnectionField, Framing, Limits, Message, Method, RequestHead, Version, parse_request,
    status, write_chunk, write_last_chunk, write_response,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::{Instant, Sleep};

pub use tls::Tls;

/// Bytes of a session's receive buffer, and so of the largest head.
const BUFFER: usize = 16 * 1024;

/// Answers that wait to be written together; more than this is written before the next request is read.
const PENDING: usize = 64 * 1024;

/// The inactivity timeout of a session.
const IDLE: Duration = Duration::from_secs(60);

/// The pause of accepting when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The wait of `/slow`.
const SLOW: Duration = Duration::from_secs(3);

/// The longest wait of `/delay/MS`.
const MAX_DELAY_MS: u64 = 3_600_000;

/// The pattern that a `/bytes/N` body repeats.
static PATTERN: [u8; BUFFER] = {
    let mut pattern = [0; BUFFER];
    let mut at = 0;
    while at < BUFFER {
        pattern[at] = if at % 64 == 63 { b'\n' } else { b'0' + (at % 10) as u8 };
        at += 1;
    }
    pattern
};

/// The whole answer of `/fast` to a client that keeps its connection.
const FAST: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Type: text/plain\r\n\r\nI'm FAST!!!!";

/// Serves on `listener`, whose sockets belong to the current runtime, until the future is dropped.
///
/// To be awaited inside a tokio `LocalRuntime` or `LocalSet`; sessions are local tasks of it.
pub async fn serve(listener: StdListener) -> io::Result<()> {
    serve_as(listener, None).await
}

async fn serve_as(listener: StdListener, tls: Option<Tls>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are written whole; waiting for more would only delay them.
                let _ = stream.set_nodelay(true);
                let tls = tls.clone();
                tokio::task::spawn_local(async move {
                    // An error here concerns the client's connection, which is closed; there is no one to report it to.
                    let _ = match tls {
                        None => Session::new(stream).run().await,
                        Some(tls) => run_tls(stream, &tls).await,
                    };
                });
            }
            Err(error) if is_of_the_connection(&error) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// One client connection over TLS.
async fn run_tls(stream: TcpStream, tls: &Tls) -> io::Result<()> {
    let stream = tokio::time::timeout(IDLE, tls.acceptor().accept(stream)).await??;
    let mut session = Session::new(stream);
    let result = session.run().await;
    // After an error, too, so that the client can tell the end from a connection that was cut off.
    tokio::time::timeout(IDLE, session.stream.shutdown()).await??;
    result
}

/// Serves on `listener` with `threads` dedicated threads, for the lifetime of the process.
pub fn spawn(listener: StdListener, threads: usize) -> io::Result<()> {
    spawn_as(listener, threads, None)
}

/// Like [`spawn`], over TLS.
pub fn spawn_tls(listener: StdListener, threads: usize, tls: Tls) -> io::Result<()> {
    spawn_as(listener, threads, Some(tls))
}

fn spawn_as(listener: StdListener, threads: usize, tls: Option<Tls>) -> io::Result<()> {
    for number in 0..threads.max(1) {
        let (listener, tls) = (listener.try_clone()?, tls.clone());
        let (started, has_started) = std::sync::mpsc::channel();
        let run = move || {
            // A local runtime cannot be sent, so it is created here and the result is reported to the caller.
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    let _ = started.send(Ok(()));
                    let _ = runtime.block_on(serve_as(listener, tls));
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        };
        std::thread::Builder::new().name(format!("origin-{number}")).spawn(run)?;
        has_started.recv().map_err(io::Error::other)??;
    }
    Ok(())
}

/// An accept failed because of the connection that was to be accepted, not for want of anything here.
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// The handling of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Fast,
    Slow,
    Bytes(u64),
    Echo,
    Status(u16),
    Delay(u64),
    NotFound,
}

fn route(target: &[u8]) -> Route {
    // An absolute form names the path after its authority.
    let path = match target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://")) {
        Some(rest) => rest.iter().position(|byte| *byte == b'/').map_or(b"/".as_slice(), |at| &rest[at..]),
        None => target,
    };
    let path = path.split(|byte| *byte == b'?').next().unwrap_or(path);
    let number = |prefix: &[u8]| -> Option<u64> {
        let digits = path.strip_prefix(prefix)?;
        std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
    };
    match path {
        b"/fast" => Route::Fast,
        b"/slow" => Route::Slow,
        b"/echo" => Route::Echo,
        _ => {
            if let Some(count) = number(b"/bytes/") {
                Route::Bytes(count)
            } else if let Some(code) = number(b"/status/").filter(|code| (200..=599).contains(code)) {
                Route::Status(code as u16)
            } else if let Some(delay_ms) = number(b"/delay/").filter(|delay_ms| *delay_ms <= MAX_DELAY_MS) {
                Route::Delay(delay_ms)
            } else {
                Route::NotFound
            }
        }
    }
}

/// One client connection.
struct Session<S> {
    stream: S,
    received: Vec<u8>,
    /// Bytes of `received` that belong to requests already answered.
    taken: usize,
    pending: Vec<u8>,
    idle: Pin<Box<Sleep>>,
    last_activity: Instant,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    fn new(stream: S) -> Session<S> {
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

    /// Answers requests until the client or a request ends the session.
    async fn run(&mut self) -> io::Result<()> {
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
