//! Datagram destinations: syslog sockets by path, and UDP.
//!
//! A path is connected, so that a line costs no path look-up. When its reader disappears, the kernel reports it with
//! the next datagram, and the path is connected again, wherever it then leads: a restarted syslog daemon has made a new
//! socket there, and inside a `chroot` the path is relative to the new root. A UDP socket is not connected: a syslog
//! client need not know whether its target listens.
//!
//! Many lines are sent in one call (sendmmsg), each as a separate datagram. A full receiver is awaited while at most
//! [`PENDING_MAX`](super::PENDING_MAX) bytes are queued; HAProxy drops immediately.

use std::cell::OnceCell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use sluicegate_config::model::LogAddress;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Lines;

/// The maximum number of datagrams of one system call.
const BATCH: usize = 64;

/// The target of datagrams.
#[derive(Debug)]
pub(super) struct Peer {
    to: Destination,
    /// The socket opened before the writer existed.
    opened: Mutex<Option<OwnedFd>>,
}

#[derive(Debug)]
enum Destination {
    Unix(PathBuf),
    Udp { host: String, port: u16, address: OnceLock<SocketAddr> },
}

impl Peer {
    /// `None` for an address that is not a datagram socket.
    pub(super) fn of(address: &LogAddress) -> Option<Peer> {
        let to = match address {
            LogAddress::Unix(path) => Destination::Unix(path.clone()),
            LogAddress::Udp(host, port) => {
                Destination::Udp { host: host.clone(), port: *port, address: OnceLock::new() }
            }
            _ => return None,
        };
        Some(Peer { to, opened: Mutex::new(None) })
    }

    /// Returns the target's name in messages.
    pub(super) fn name(&self) -> String {
        match &self.to {
            Destination::Unix(path) => path.display().to_string(),
            Destination::Udp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Destination::Udp { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// Returns the address, looked up once; a literal one needs no look-up.
    fn address(&self) -> io::Result<SockAddr> {
        match &self.to {
            Destination::Unix(path) => SockAddr::unix(path),
            Destination::Udp { host, port, address } => {
                if let Some(known) = address.get() {
                    return Ok((*known).into());
                }
                let found = (host.as_str(), *port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
                Ok((*address.get_or_init(|| found)).into())
            }
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let address = self.address()?;
        let socket = Socket::new(Domain::from(i32::from(address.family())), Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        if matches!(self.to, Destination::Unix(_)) {
            socket.connect(&address)?;
        }
        Ok(socket.into())
    }
}

/// See [`Logger::open`](super::Logger::open).
pub(super) fn open<'a>(
    peers: impl Iterator<Item = &'a Peer>,
    chroot: Option<&Path>,
) -> Result<Vec<String>, Vec<String>> {
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    for peer in peers {
        let name = peer.name();
        let opened = peer.open();
        match (&peer.to, &opened) {
            (Destination::Udp { .. }, Err(error)) => errors.push(format!("log target '{name}': {error}")),
            (Destination::Udp { .. }, Ok(_)) => {}
            (Destination::Unix(path), opened) => {
                let inside = chroot.map(|root| root.join(path.strip_prefix("/").unwrap_or(path)));
                let inside_missing = inside.as_ref().filter(|inside| !inside.exists());
                match (opened, inside_missing) {
                    (Err(error), None) if inside.is_none() => warnings.push(format!(
                        "log target '{name}' can't be reached ({error}): its lines are dropped until it can"
                    )),
                    (Err(_), Some(inside)) => warnings.push(format!(
                        "log target '{name}' is neither there nor in the chroot, as '{}': its lines are dropped until \
                         it is",
                        inside.display()
                    )),
                    (Ok(_), Some(inside)) => warnings.push(format!(
                        "log target '{name}' is not in the chroot, as '{}': lines are dropped once its reader starts \
                         again (rsyslog makes that socket with 'AddUnixListenSocket')",
                        inside.display()
                    )),
                    _ => {}
                }
            }
        }
        *peer.opened.lock() = opened.ok();
    }
    if errors.is_empty() { Ok(warnings) } else { Err(errors) }
}

/// The writer's side of a target.
pub(super) struct Datagrams<'a> {
    peer: &'a Peer,
    socket: Option<AsyncFd<OwnedFd>>,
}

impl<'a> Datagrams<'a> {
    /// Returns a sender that uses the socket opened by [`open`], if there is one.
    pub(super) fn new(peer: &'a Peer) -> Datagrams<'a> {
        let opened = peer.opened.lock().take();
        Datagrams { peer, socket: opened.and_then(|fd| register(fd).ok()) }
    }

    /// Sends every line. Returns the error of the last failure, and the number of lines that were not sent.
    pub(super) async fn send(&mut self, lines: &Lines) -> Result<(), (usize, io::Error)> {
        let count = lines.ends.len();
        let mut sent = 0;
        let mut reopened = false;
        while sent < count {
            let result = match &self.socket {
                Some(socket) => self.send_some(socket, lines, sent).await,
                None => Err(io::ErrorKind::NotConnected.into()),
            };
            match result {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A datagram that is too long for its socket is dropped; the others continue.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    return self.skip(lines, sent, error).await;
                }
                Err(error) if reopened => {
                    self.socket = None;
                    return Err((count - sent, error));
                }
                Err(_) => {
                    reopened = true;
                    match self.peer.open().and_then(register) {
                        Ok(socket) => self.socket = Some(socket),
                        Err(error) => {
                            self.socket = None;
                            return Err((count - sent, error));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Skips the line at `at` after an error, and continues with the next one.
    async fn skip(&mut self, lines: &Lines, at: usize, error: io::Error) -> Result<(), (usize, io::Error)> {
        let start = lines.ends[at] as usize;
        let rest = Lines {
            bytes: lines.bytes[start..].to_vec(),
            ends: lines.ends[at + 1..].iter().map(|end| end - start as u32).collect(),
        };
        match Box::pin(self.send(&rest)).await {
            Ok(()) => Err((1, error)),
            Err((lost, error)) => Err((lost + 1, error)),
        }
    }

    /// Sends a batch, starting with the line at `from`, when there is room for it; returns the number of lines sent.
    async fn send_some(&self, socket: &AsyncFd<OwnedFd>, lines: &Lines, from: usize) -> io::Result<usize> {
        let address = match self.peer.to {
            Destination::Unix(_) => None,
            Destination::Udp { .. } => Some(self.peer.address()?),
        };
        loop {
            let mut ready = socket.writable().await?;
            match send_batch(socket.as_fd().as_raw_fd(), address.as_ref(), lines, from) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                result => return result,
            }
        }
    }
}

/// Sends a line to an address that no writer has, without blocking.
pub(super) fn send_now(address: SocketAddr, line: &[u8]) -> io::Result<()> {
    thread_local! {
        /// The sockets of IPv4 and of IPv6.
        static SOCKETS: [OnceCell<Socket>; 2] = const { [OnceCell::new(), OnceCell::new()] };
    }
    SOCKETS.with(|sockets| {
        let socket = &sockets[usize::from(address.is_ipv6())];
        if socket.get().is_none() {
            let made = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
            made.set_nonblocking(true)?;
            // It was not there a moment ago, on this thread.
            let _ = socket.set(made);
        }
        let Some(socket) = socket.get() else { return Ok(()) };
        socket.send_to(line, &address.into()).map(|_| ())
    })
}

fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the sole owner of its descriptor and returns the same number for its lifetime.
    unsafe { AsyncFd::register_with_interest(fd, Interest::WRITABLE) }.map_err(|error| error.into_parts().1)
}

/// Sends up to [`BATCH`] lines with one system call, without blocking.
fn send_batch(fd: i32, address: Option<&SockAddr>, lines: &Lines, from: usize) -> io::Result<usize> {
    let count = (lines.ends.len() - from).min(BATCH);
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
    let mut start = if from == 0 { 0 } else { lines.ends[from - 1] as usize };
    for (part, end) in parts.iter_mut().zip(&lines.ends[from..]).take(count) {
        let line = &lines.bytes[start..*end as usize];
        *part = libc::iovec { iov_base: line.as_ptr().cast_mut().cast(), iov_len: line.len() };
        start = *end as usize;
    }
    // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers with zero lengths.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for (message, part) in messages.iter_mut().zip(&mut parts).take(count) {
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
        if let Some(address) = address {
            message.msg_hdr.msg_name = address.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_namelen = address.len();
        }
    }
    // SAFETY: the first `count` headers point to parts of `lines` and to `address`, which outlive the call, and the
    // kernel only reads what they point to.
    let sent = unsafe {
        libc::sendmmsg(fd, messages.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
