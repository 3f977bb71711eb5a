//! Operations for which a script may wait.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::ServerAddress;
use sluicegate_transport::Socket;
use sluicegate_wire::engine::PendingReply;
use sluicegate_wire::reply::Reply;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::httpclient;
use crate::server::connect_unix;
use crate::stream::AppletWait;

/// An operation that a coroutine waits for.
pub(super) enum Operation {
    /// `core.yield`, and a yield at a script's top level.
    Yield,
    /// `core.sleep`, `core.msleep`.
    Sleep(Duration),
    /// Bytes to read, or the end of them.
    Readable(Arc<Stream>, Option<Duration>),
    /// Room to write.
    Writable(Arc<Stream>, Option<Duration>),
    /// A connection.
    Connect(Target, Option<Duration>),
    /// A store's or engine's reply.
    Reply(PendingReply),
    /// A name's addresses.
    Resolve(String),
    /// Waits for a ring, or until the time is over.
    Bell(Arc<Notify>, Option<Duration>),
    /// An HTTP request of `core.httpclient`.
    Http(Box<httpclient::Request>),
    /// Waits for the stream of a service, or until the time is over.
    Applet(AppletWait, Option<Instant>),
}

/// The end of an operation.
pub(super) enum Outcome {
    /// The operation is ready; an attempt returns its result.
    Ready,
    /// Its time was up.
    TimedOut,
    /// The connection, or the error.
    Connected(io::Result<Stream>),
    /// The reply.
    Reply(Reply),
    /// The addresses, or why there are none.
    Resolved(io::Result<Vec<IpAddr>>),
    /// The answer, or the page that stands for it.
    Http(Box<httpclient::Answer>),
}

/// The target of a script's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// An address.
    Inet(SocketAddr),
    /// A name, resolved when the connection is made.
    Name(String, u16),
    /// A unix socket's path.
    Unix(PathBuf),
    /// An abstract unix socket's name.
    Abstract(String),
    /// A connected descriptor that was inherited.
    Descriptor(RawFd),
}

/// A connection. It belongs to the runtime it was made in and may be awaited from any other.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Appends available bytes, up to the buffer's spare capacity.
    pub(super) fn try_read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_read_buf(buffer),
            Stream::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_write(bytes),
            Stream::Unix(stream) => stream.try_write(bytes),
        }
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.readable().await,
            Stream::Unix(stream) => stream.readable().await,
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.writable().await,
            Stream::Unix(stream) => stream.writable().await,
        }
    }

    /// Returns whether it is open with nothing to read. The kernel is asked, because the runtime's readiness may be one
    /// iteration old.
    pub(super) fn is_quiet(&self) -> bool {
        let descriptor = match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        };
        let mut byte = 0u8;
        // SAFETY: the descriptor is open while `self` exists, and the byte is writable.
        let count = unsafe { libc::recv(descriptor, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }

    /// Shuts down one or both directions for all holders of the connection, so that waiting tasks wake up.
    pub(super) fn shutdown(&self, how: libc::c_int) {
        let descriptor = match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        };
        // SAFETY: the descriptor is open while `self` is. An error means that it is shut already.
        unsafe { libc::shutdown(descriptor, how) };
    }

    /// `ip:port` of this or the other end; a unix socket's path.
    pub(super) fn name(&self, peer: bool) -> Option<String> {
        match self {
            Stream::Tcp(stream) => {
                let address = if peer { stream.peer_addr() } else { stream.local_addr() };
                address.ok().map(|address| format!("{}:{}", address.ip(), address.port()))
            }
            Stream::Unix(stream) => {
                let address = if peer { stream.peer_addr() } else { stream.local_addr() };
                address.ok().map(|address| address.as_pathname().map_or(String::new(), |p| p.display().to_string()))
            }
        }
    }
}

impl Operation {
    /// Performs the operation on the worker that awaits it.
    pub(super) async fn perform(self) -> Outcome {
        match self {
            // Without its stream a service continues immediately, and finds that its client has disconnected.
            Operation::Yield | Operation::Applet(_, None) => {
                tokio::task::yield_now().await;
                Outcome::Ready
            }
            Operation::Applet(_, Some(deadline)) => {
                tokio::time::sleep_until(deadline.into()).await;
                Outcome::TimedOut
            }
            Operation::Sleep(time) => {
                tokio::time::sleep(time).await;
                Outcome::Ready
            }
            // An error of readiness shows again, and better, in the attempt that follows.
            Operation::Readable(stream, limit) => within(limit, stream.readable()).await,
            Operation::Writable(stream, limit) => within(limit, stream.writable()).await,
            Operation::Connect(target, limit) => {
                let connecting = target.connect();
                match limit {
                    None => Outcome::Connected(connecting.await),
                    Some(limit) => match timeout(limit, connecting).await {
                        Ok(connected) => Outcome::Connected(connected),
                        Err(_) => Outcome::TimedOut,
                    },
                }
            }
            Operation::Reply(reply) => Outcome::Reply(reply.await),
            Operation::Http(request) => Outcome::Http(Box::new(request.perform().await)),
            Operation::Resolve(name) => Outcome::Resolved(match name.parse() {
                Ok(ip) => Ok(vec![ip]),
                Err(_) => crate::hosts::lookup(&name, 0).await.map(|found| {
                    let mut ips: Vec<IpAddr> = found.into_iter().map(|address| address.ip()).collect();
                    ips.dedup();
                    ips
                }),
            }),
            Operation::Bell(bell, limit) => {
                let rung = async {
                    bell.notified().await;
                    Ok(())
                };
                within(limit, rung).await
            }
        }
    }
}

async fn within(limit: Option<Duration>, ready: impl Future<Output = io::Result<()>>) -> Outcome {
    match limit {
        None => {
            let _ = ready.await;
            Outcome::Ready
        }
        Some(limit) => match timeout(limit, ready).await {
            Ok(_) => Outcome::Ready,
            Err(_) => Outcome::TimedOut,
        },
    }
}

impl Target {
    pub(super) async fn connect(self) -> io::Result<Stream> {
        match self {
            Target::Inet(address) => tcp(address).await,
            Target::Name(host, port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
                for address in crate::hosts::lookup(&host, port).await? {
                    match tcp(address).await {
                        Ok(stream) => return Ok(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Target::Unix(path) => unix(&ServerAddress::Unix(path)),
            Target::Abstract(name) => unix(&ServerAddress::Abstract(name)),
            Target::Descriptor(descriptor) => {
                // SAFETY: the number is only duplicated: the script's process keeps what it inherited.
                let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
                if copy < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: a fresh descriptor without another owner.
                let stream = std::os::unix::net::UnixStream::from(unsafe { OwnedFd::from_raw_fd(copy) });
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream).map(Stream::Unix)
            }
        }
    }

    /// HAProxy's forms: `ip`, `ip:port`, `[v6]:port`, `name`, `name:port`, `ipv4@…`, `ipv6@…`, `/path`, `unix@path`,
    /// `abns@name`, `fd@N`. `port` is the separate argument.
    pub(super) fn parse(text: &str, port: Option<u16>) -> Option<Target> {
        if text.starts_with('/') {
            return Some(Target::Unix(text.into()));
        }
        let text = match text.split_once('@') {
            Some(("unix", path)) => return Some(Target::Unix(path.into())),
            Some(("abns", name)) => return Some(Target::Abstract(name.into())),
            Some(("fd", number)) => return number.parse().ok().map(Target::Descriptor),
            Some(("ipv4" | "ipv6", rest)) => rest,
            Some(_) => return None,
            None => text,
        };
        if let Some(port) = port {
            let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
            // HAProxy's own scripts write `host:` with a separate port.
            let bare = bare.strip_suffix(':').filter(|bare| !bare.contains(':')).unwrap_or(bare);
            return Some(match bare.parse() {
                Ok(ip) => Target::Inet(SocketAddr::new(ip, port)),
                Err(_) if is_name(bare) => Target::Name(bare.to_owned(), port),
                Err(_) => return None,
            });
        }
        if let Ok(address) = text.parse() {
            return Some(Target::Inet(address));
        }
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match host.parse() {
            Ok(ip) => Some(Target::Inet(SocketAddr::new(ip, port))),
            Err(_) if is_name(host) => Some(Target::Name(host.to_owned(), port)),
            Err(_) => None,
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// Connects to a unix socket as a server's address would be; the system answers at once.
fn unix(address: &ServerAddress) -> io::Result<Stream> {
    match connect_unix(address)? {
        Socket::Unix(stream) => Ok(Stream::Unix(stream)),
        Socket::Tcp(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

async fn tcp(address: SocketAddr) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Stream::Tcp(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_haproxy_reads_them() {
        let inet = |text: &str| Some(Target::Inet(text.parse().expect("an address")));
        let name = |host: &str, port| Some(Target::Name(host.to_owned(), port));
        for (text, port, expected) in [
            ("127.0.0.1", Some(80), inet("127.0.0.1:80")),
            ("127.0.0.1:81", None, inet("127.0.0.1:81")),
            ("ipv4@127.0.0.1:81", None, inet("127.0.0.1:81")),
            ("::1", Some(80), inet("[::1]:80")),
            ("[::1]:81", None, inet("[::1]:81")),
            ("ipv6@::1:81", None, inet("[::1]:81")),
            ("localhost", Some(80), name("localhost", 80)),
            ("localhost:", Some(80), name("localhost", 80)),
            ("redis-1.internal:6379", None, name("redis-1.internal", 6379)),
            ("/run/x.sock", None, Some(Target::Unix("/run/x.sock".into()))),
            ("unix@/run/x.sock", None, Some(Target::Unix("/run/x.sock".into()))),
            ("abns@x", None, Some(Target::Abstract("x".into()))),
            ("fd@7", None, Some(Target::Descriptor(7))),
            ("127.0.0.1", None, None),
            ("localhost", None, None),
            ("a b", Some(1), None),
            ("", Some(1), None),
            ("fd@x", None, None),
            ("quic4@1.2.3.4:5", None, None),
        ] {
            assert_eq!(Target::parse(text, port), expected, "{text} {port:?}");
        }
    }
}
