//! The stats socket: HAProxy's command line over a unix or TCP socket (management guide 9.3).
//!
//! One line holds commands separated by `;`; every answer ends in an empty line. Without `prompt` the connection is
//! closed after one line. Everything runs on the control thread, so no command delays a request; commands are a
//! catalogue ([`command::COMMANDS`]).
//!
//! Limits: [`LINE_MAX`] bytes a line, [`CONNECTIONS_MAX`] connections, `stats timeout` without a byte in or out.

pub mod command;

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sluicegate_config::model::StatsLevel;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::running::Running;

/// The longest line, bytes.
pub const LINE_MAX: usize = 16_384;
/// Connections at once (`stats maxconn`).
pub const CONNECTIONS_MAX: usize = 10;
/// `stats timeout` where the file has none.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an accept that failed for want of descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listening stats socket.
#[derive(Debug)]
pub struct Socket {
    /// Bound and listening, TCP or unix.
    pub listener: OwnedFd,
    /// What its clients may do.
    pub level: StatsLevel,
}

/// A client's connection.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn new(socket: OwnedFd) -> io::Result<Listener> {
        let raw = socket2::Socket::from(socket);
        raw.set_nonblocking(true)?;
        if raw.local_addr()?.is_unix() {
            Ok(Listener::Unix(UnixListener::from_std(OwnedFd::from(raw).into())?))
        } else {
            Ok(Listener::Tcp(TcpListener::from_std(OwnedFd::from(raw).into())?))
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Serves all stats sockets for as long as the future lives. Runs on the control thread's runtime.
pub async fn serve(sockets: Vec<Socket>, running: Arc<Running>) -> io::Result<()> {
    let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut listeners = JoinSet::new();
    for Socket { listener, level } in sockets {
        listeners.spawn(accept(Listener::new(listener)?, level, running.clone(), limit.clone()));
    }
    while listeners.join_next().await.is_some() {}
    // Without sockets there is nobody to serve, which is no reason to end.
    std::future::pending().await
}

async fn accept(listener: Listener, level: StatsLevel, running: Arc<Running>, limit: Arc<Semaphore>) {
    let timeout = running.config.global.stats_timeout.unwrap_or(TIMEOUT);
    let mut connections = JoinSet::new();
    loop {
        // The place is taken before the connection, so what exceeds the limit waits in the backlog.
        let Ok(place) = limit.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let running = running.clone();
                connections.spawn(async move {
                    // A client that goes away in the middle of an answer needs no report.
                    let _ = converse(stream, level, timeout, running).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(EXHAUSTED_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn within<T>(timeout: Duration, io: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, io).await?
}

/// One client.
async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    level: StatsLevel,
    timeout: Duration,
    running: Arc<Running>,
) -> io::Result<()> {
    let mut session = command::Session { level, timeout, interactive: false, quit: false };
    let mut received = Vec::new();
    let mut answer = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = memchr::memchr(b'\n', &received) {
                break end + 1;
            }
            if received.len() >= LINE_MAX {
                within(session.timeout, stream.write_all(b"Command too long, closing.\n\n")).await?;
                return Ok(());
            }
            if within(session.timeout, stream.read_buf(&mut received)).await? == 0 {
                if received.is_empty() {
                    return Ok(());
                }
                // A last line without its end counts.
                break received.len();
            }
        };
        answer.clear();
        command::line(&received[..end], &mut session, &running, &mut answer);
        received.drain(..end);
        if session.interactive && !session.quit {
            answer.extend_from_slice(b"> ");
        }
        within(session.timeout, stream.write_all(&answer)).await?;
        if session.quit || !session.interactive {
            return within(session.timeout, stream.shutdown()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::{Parts, build};

    fn running() -> Arc<Running> {
        let config = sluicegate_config::Config {
            global: Default::default(),
            proxies: Vec::new(),
            stores: Vec::new(),
            engines: Vec::new(),
            origins: Vec::new(),
        };
        let process = crate::process::Process::new(1, None);
        let parts = Parts { engines: Default::default(), lua: None, logger: Default::default(), process };
        build(Arc::new(config), parts).unwrap()
    }

    #[track_caller]
    fn talk(sent: &[&str]) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, server) = tokio::io::duplex(64 * 1024);
            let (mut from, mut to) = tokio::io::split(client);
            let talk = async {
                for part in sent {
                    // The server may have closed already, which is what some of these tests are about.
                    let _ = to.write_all(part.as_bytes()).await;
                    tokio::task::yield_now().await;
                }
                let _ = to.shutdown().await;
            };
            let mut answer = String::new();
            let served = converse(server, StatsLevel::Operator, Duration::from_secs(5), running());
            let (served, (), read) = tokio::join!(served, talk, from.read_to_string(&mut answer));
            read.unwrap();
            drop(served);
            answer
        })
    }

    #[test]
    fn one_line_is_answered_and_the_connection_closed() {
        let answer = talk(&["show cli le", "vel; show version\n", "show version\n"]);
        assert_eq!(answer, format!("operator\n\n{}\n\n", crate::stats::info::VERSION));
        assert_eq!(talk(&["show cli level"]), "operator\n\n", "a last line without its end counts");
        assert_eq!(talk(&["\n"]), talk(&["help\n"]), "an empty line asks for help");
    }

    #[test]
    fn a_prompt_keeps_the_connection() {
        let answer = talk(&["prompt\n", "show cli level\n", "quit\n", "show version\n"]);
        assert_eq!(answer, "\n> operator\n\n> ");
    }

    #[test]
    fn a_line_without_end_is_refused() {
        assert_eq!(talk(&[&"x".repeat(LINE_MAX)]), "Command too long, closing.\n\n");
    }
}
