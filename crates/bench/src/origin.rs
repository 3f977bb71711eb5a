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
//! With a certificate it speaks TLS, on the same paths. Clients that choose `h2` by ALPN, or begin with the preface of
//! HTTP/2, are answered in HTTP/2; others in HTTP/1.1.
//!
//! A session is a task on the thread that accepted it. It answers all received requests with one write, so
//! that a load test does not measure the origin: `/fast` is a lookup and a copy of a prepared response. Bodies
//! are streamed in both directions in bounded memory; the origin stops reading from a peer that does not read.
//!
//! Limits: `BUFFER` bytes of a head, `IDLE` of inactivity or for a TLS handshake, 250 streams of a connection, the
//! process's descriptors (when they run out, accepting pauses).

mod http1;
mod http2;
mod tls;

use std::io;
use std::net::TcpListener as StdListener;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};

use http1::Session;
use http2::Http2;
pub use tls::Tls;

/// Bytes of a session's receive buffer, and so of the largest head.
const BUFFER: usize = 16 * 1024;

/// The number of bytes of answers that are collected for one write; from this size on they are written before the next
/// request is read.
const PENDING: usize = 64 * 1024;

/// The inactivity timeout of a session.
const IDLE: Duration = Duration::from_secs(60);

/// The time to wait before accepting again when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The delay of `/slow`.
const SLOW: Duration = Duration::from_secs(3);

/// The longest delay of `/delay/MS`.
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
                        None => run(stream, false).await.0,
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
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
    let (result, mut stream) = run(stream, is_http2).await;
    // TLS is shut down after an error, too, so that the client can tell this end from a truncated connection.
    tokio::time::timeout(IDLE, stream.shutdown()).await??;
    result
}

/// Answers requests, in HTTP/2 if that was negotiated or the client begins with its preface. Returns the stream.
async fn run<S: AsyncRead + AsyncWrite + Unpin>(stream: S, is_http2: bool) -> (io::Result<()>, S) {
    let mut session = Session::new(stream);
    let begins_with_preface = if is_http2 { Ok(true) } else { session.begins_with_preface().await };
    match begins_with_preface {
        Ok(false) => (session.run().await, session.stream),
        Ok(true) => {
            let (stream, received) = session.into_parts();
            let mut session = Http2::new(stream, received);
            (session.run().await, session.stream)
        }
        Err(error) => (Err(error), session.stream),
    }
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

/// Returns whether accepting failed because of the connection itself, not for lack of resources of this process.
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
