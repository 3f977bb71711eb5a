//! Queries of a stream's sockets by rules: addresses of the server's connection, and the kernel's TCP figures.
//!
//! The sockets belong to the session and to the server connection; a context outlives both in the free list. So it only
//! stores their descriptors, while they are open, and every query is a system call.
//!
//! A log line is written when the server's connection has already been closed, so its data for the line is saved
//! before.
//!
//! Invariant: a descriptor is stored here only while its owner lives: the stream's driver sets it when it has the
//! connection and removes it before it gives the connection up. A wrong one would yield wrong figures, and marks, types
//! of service and the silent end of `silent-drop` would be set on another connection.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use sluicegate_transport::Socket;
use socket2::SockRef;

/// The side of a stream's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Client,
    /// The server's.
    Server,
}

/// A figure of the kernel's (`TCP_INFO`). Times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in tcp_info
pub enum TcpFigure {
    Rtt,
    RttVariation,
    Lost,
    SegmentSize,
    ForwardAcknowledged,
    Reordering,
    Retransmitted,
    SelectivelyAcknowledged,
    Unacknowledged,
}

/// The sockets of a stream, by descriptor.
#[derive(Debug, Default)]
pub struct Sockets {
    client: Option<RawFd>,
    server: Option<(RawFd, bool)>,
    gone: Option<Box<Gone>>,
}

/// The saved data of the last server connection after its end.
#[derive(Debug)]
struct Gone {
    reused: bool,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// `rtt` and `rttvar`.
    round_trip: Option<(u32, u32)>,
}

impl Sockets {
    /// Returns the sockets of a stream whose client connection has this descriptor.
    pub(crate) fn of_client(client: Option<RawFd>) -> Sockets {
        Sockets { client, ..Sockets::default() }
    }

    /// Records the stream's server connection, and whether it was used before.
    pub(crate) fn set_server(&mut self, socket: &Socket, reused: bool) {
        self.server = Some((socket.fd().as_raw_fd(), reused));
    }

    /// Removes the server connection; with `keep`, the data for a log line is saved.
    pub(crate) fn clear_server(&mut self, keep: bool) {
        if keep && let Some((_, reused)) = self.server {
            let figure = |figure| self.tcp(Side::Server, figure);
            let round_trip = figure(TcpFigure::Rtt).zip(figure(TcpFigure::RttVariation));
            let gone = Gone { reused, local: self.server_local(), peer: self.server_peer(), round_trip };
            self.gone = Some(Box::new(gone));
        }
        self.server = None;
    }

    /// Returns whether there is a connection on that side.
    pub fn is_there(&self, side: Side) -> bool {
        match side {
            Side::Client => self.client.is_some(),
            Side::Server => self.server.is_some() || self.gone.is_some(),
        }
    }

    /// Returns the descriptor of a side's connection.
    pub fn descriptor(&self, side: Side) -> Option<RawFd> {
        match side {
            Side::Client => self.client,
            Side::Server => self.server.map(|(fd, _)| fd),
        }
    }

    /// Returns whether the server's connection was used before; `None` without one.
    pub fn server_reused(&self) -> Option<bool> {
        self.server.map(|(_, reused)| reused).or_else(|| self.gone.as_deref().map(|gone| gone.reused))
    }

    /// Returns the local address of the server's connection.
    pub fn server_local(&self) -> Option<SocketAddr> {
        match (self.server, &self.gone) {
            (None, Some(gone)) => gone.local,
            _ => self.with_server(|socket| socket.local_addr().ok()?.as_socket()),
        }
    }

    /// Returns the other end of the server's connection.
    pub fn server_peer(&self) -> Option<SocketAddr> {
        match (self.server, &self.gone) {
            (None, Some(gone)) => gone.peer,
            _ => self.with_server(|socket| socket.peer_addr().ok()?.as_socket()),
        }
    }

    fn with_server<T>(&self, ask: impl FnOnce(SockRef<'_>) -> Option<T>) -> Option<T> {
        let (fd, _) = self.server?;
        // SAFETY: by the module's invariant the descriptor is open while it stands here; it is only asked.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        ask(SockRef::from(&fd))
    }

    /// Sets the mark or the type of service of a side's packets. Errors are ignored: the mark needs a capability, and a
    /// unix socket has neither.
    pub fn set_option(&self, side: Side, mark: bool, value: u32) {
        let Some(fd) = self.descriptor(side) else { return };
        // SAFETY: by the module's invariant the descriptor is open while it stands here; only options of it are set.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = SockRef::from(&fd);
        let _ = match mark {
            true => socket.set_mark(value),
            false if socket.local_addr().is_ok_and(|address| address.is_ipv6()) => socket.set_tclass_v6(value),
            false => socket.set_tos_v4(value),
        };
    }

    /// Shuts the server's connection down: what has arrived can still be read, and nothing follows it.
    pub fn shut_server(&self) {
        self.with_server(|socket| socket.shutdown(std::net::Shutdown::Both).ok());
    }

    /// Makes the next close of the client's connection invisible to the client. If the process may not do that, or a
    /// time to live is given, the close sends a reset that lives for this many hops.
    pub fn drop_silently(&self, ttl: Option<u8>) {
        let Some(fd) = self.client else { return };
        let set = |level, name, value: libc::c_int| {
            let from = std::ptr::from_ref(&value).cast();
            // SAFETY: by the module's invariant the descriptor is open; the kernel reads the integer's size.
            unsafe { libc::setsockopt(fd, level, name, from, size_of_val(&value) as libc::socklen_t) == 0 }
        };
        // Further acknowledgements would show the client that the connection is alive.
        set(libc::IPPROTO_TCP, libc::TCP_QUICKACK, 0);
        if ttl.is_none() && set(libc::IPPROTO_TCP, libc::TCP_REPAIR, 1) {
            return;
        }
        let hops = i32::from(ttl.unwrap_or(1));
        set(libc::IPPROTO_IP, libc::IP_TTL, hops);
        set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops);
        // SAFETY: as above; only an option of the socket is set.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = SockRef::from(&fd).set_linger(Some(std::time::Duration::ZERO));
    }

    /// Returns a figure of the kernel's; `None` where the connection is no TCP.
    pub fn tcp(&self, side: Side, figure: TcpFigure) -> Option<u32> {
        let fd = match (side, self.server) {
            (Side::Client, _) => self.client?,
            (Side::Server, Some((fd, _))) => fd,
            (Side::Server, None) => {
                let (rtt, variation) = self.gone.as_deref()?.round_trip?;
                return match figure {
                    TcpFigure::Rtt => Some(rtt),
                    TcpFigure::RttVariation => Some(variation),
                    _ => None,
                };
            }
        };
        // SAFETY: `tcp_info` is plain numbers, for which all zeroes is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let into = std::ptr::from_mut(&mut info).cast();
        // SAFETY: the kernel writes at most `length` bytes, which is the size of what `into` points at.
        let failed = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut length) } != 0;
        if failed {
            return None;
        }
        Some(match figure {
            TcpFigure::Rtt => info.tcpi_rtt,
            TcpFigure::RttVariation => info.tcpi_rttvar,
            TcpFigure::Lost => info.tcpi_lost,
            TcpFigure::SegmentSize => info.tcpi_snd_mss,
            TcpFigure::ForwardAcknowledged => info.tcpi_fackets,
            TcpFigure::Reordering => info.tcpi_reordering,
            TcpFigure::Retransmitted => info.tcpi_retrans,
            TcpFigure::SelectivelyAcknowledged => info.tcpi_sacked,
            TcpFigure::Unacknowledged => info.tcpi_unacked,
        })
    }
}
