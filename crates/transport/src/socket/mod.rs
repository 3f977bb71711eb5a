//! A connected stream socket, TCP or unix, with or without TLS, on the runtime that registered it.
//!
//! Reading goes through the `poll_*` functions and not through `try_*`: after a short read tokio forgets that the
//! socket was readable, which saves the read that would only return `EAGAIN`.

mod records;
pub(crate) mod tls;

use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::server::ClientHello;
use rustls::{AlertDescription, ClientConnection};
use sluicegate_tls::listener::Listener;
use sluicegate_tls::verify::Outcome;
use socket2::TcpKeepalive;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

use self::tls::{HandshakeError, Tls};
use crate::options::SocketOptions;
use crate::pipe::Pipe;

/// The number of unread bytes that are discarded before closing a connection; with more, it is reset.
const DISCARDED: usize = 256 * 1024;

/// The number of bytes that are encrypted before they are sent: with the headers of their records, they are what
/// segmentation offload, or a packet of the loopback interface, takes at most.
const GATHERED: usize = 63 * 1024;

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// TCP; `TCP_NODELAY` is set.
    Tcp(TcpStream),
    /// A unix stream socket.
    Unix(UnixStream),
    /// TLS over one of these.
    Tls(Box<Tls>),
}

impl Socket {
    /// Registers a connected, non-blocking descriptor with this thread's runtime.
    pub fn from_fd(fd: OwnedFd, is_tcp: bool) -> io::Result<Socket> {
        if is_tcp {
            Ok(Socket::Tcp(TcpStream::from_std(fd.into())?))
        } else {
            Ok(Socket::Unix(UnixStream::from_std(fd.into())?))
        }
    }

    /// Returns the socket for a TCP connection of this thread's runtime; sets `TCP_NODELAY`.
    pub(crate) fn of_tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        Ok(Socket::Tcp(stream))
    }

    /// Registers a unix connection with this thread's runtime.
    pub fn of_unix(stream: std::os::unix::net::UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket::Unix(UnixStream::from_std(stream)?))
    }

    /// Moves the socket from the runtime that registered it to that of this thread.
    pub fn adopt(self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(stream) => Socket::Tcp(TcpStream::from_std(stream.into_std()?)?),
            Socket::Unix(stream) => Socket::Unix(UnixStream::from_std(stream.into_std()?)?),
            Socket::Tls(stream) => Socket::Tls(stream.adopt()?),
        })
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tls(stream) => stream.socket().fd(),
        }
    }

    /// Returns the address of this end; `None` for unix sockets.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Socket::Tcp(stream) => stream.local_addr().ok(),
            Socket::Unix(_) => None,
            Socket::Tls(stream) => stream.socket().local_addr(),
        }
    }

    /// Returns the address of the other end; `None` for unix sockets.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Socket::Tcp(stream) => stream.peer_addr().ok(),
            Socket::Unix(_) => None,
            Socket::Tls(stream) => stream.socket().peer_addr(),
        }
    }

    /// Returns the path of this end or the other end, which is empty for an end without a path; `None` for TCP.
    pub fn unix_path(&self, of_peer: bool) -> Option<PathBuf> {
        let stream = match self {
            Socket::Unix(stream) => stream,
            Socket::Tls(stream) => return stream.socket().unix_path(of_peer),
            Socket::Tcp(_) => return None,
        };
        let address = if of_peer { stream.peer_addr() } else { stream.local_addr() };
        Some(address.ok()?.as_pathname().map_or_else(PathBuf::new, Path::to_owned))
    }

    /// Ready when a read may succeed.
    #[inline]
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Tcp(stream) => stream.poll_read_ready(cx),
            Socket::Unix(stream) => stream.poll_read_ready(cx),
            Socket::Tls(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Ready when the kernel may take bytes.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Tcp(stream) => stream.poll_write_ready(cx),
            Socket::Unix(stream) => stream.poll_write_ready(cx),
            Socket::Tls(stream) => stream.socket().poll_write_ready(cx),
        }
    }

    /// Reads into `into`; returns 0 at the end of the peer's stream.
    #[inline]
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        debug_assert!(!into.is_empty(), "a read of nothing looks like the end");
        let mut buffer = ReadBuf::new(into);
        ready!(match self {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Socket::Tls(stream) => return stream.poll_read(cx, into),
        })?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes some of `bytes`. A write that was not ready is repeated with the same bytes, which more may follow.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Tls(stream) => stream.poll_write(cx, bytes),
        }
    }

    /// Like [`Socket::poll_write`], for bytes that are not written again: what is accepted counts as sent, and
    /// [`Socket::poll_flush`] sends what the kernel has not taken of it.
    pub fn poll_queue(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Socket::Tls(stream) => stream.poll_queue(cx, bytes),
            Socket::Tcp(_) | Socket::Unix(_) => self.poll_write(cx, bytes),
        }
    }

    /// Like [`Socket::poll_queue`], but TLS may only encrypt the bytes, so that [`Socket::poll_flush`] sends several
    /// records at once. `held` is the number of bytes that wait for that; `bytes` are not empty.
    #[inline]
    pub fn poll_gather(&mut self, cx: &mut Context<'_>, bytes: &[u8], held: &mut usize) -> Poll<io::Result<usize>> {
        let Socket::Tls(stream) = self else { return self.poll_write(cx, bytes) };
        loop {
            let room = GATHERED.saturating_sub(*held).min(bytes.len());
            if room > 0 {
                let count = stream.hold(&bytes[..room])?;
                *held += count;
                // Small records fill TLS earlier.
                if count > 0 {
                    return Poll::Ready(Ok(count));
                }
            }
            ready!(stream.poll_flush(cx))?;
            *held = 0;
        }
    }

    /// Sends accepted bytes that TLS still holds.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Socket::Tls(stream) = self else { return Poll::Ready(Ok(())) };
        stream.poll_flush(cx)
    }

    /// Returns whether bytes can pass between this socket and another without being copied.
    #[inline]
    pub fn splices(&self) -> bool {
        matches!(self, Socket::Tcp(_))
    }

    /// Moves at most `most` bytes into an empty pipe; returns 0 at the end of the peer's stream.
    pub fn poll_fill(&self, cx: &mut Context<'_>, pipe: &mut Pipe, most: usize) -> Poll<io::Result<usize>> {
        let Socket::Tcp(stream) = self else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        loop {
            ready!(stream.poll_read_ready(cx))?;
            match stream.try_io(Interest::READABLE, || pipe.fill(stream, most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Sends a part of a pipe's content.
    pub fn poll_drain(&self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let Socket::Tcp(stream) = self else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        loop {
            ready!(stream.poll_write_ready(cx))?;
            match stream.try_io(Interest::WRITABLE, || pipe.drain(stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Reads available bytes; `WouldBlock` if there are none.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_read(into),
            Socket::Unix(stream) => stream.try_read(into),
            Socket::Tls(stream) => stream.try_read(into),
        }
    }

    /// Appends the available bytes, up to the spare capacity; `WouldBlock` without any.
    pub fn try_read_buf(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_read_buf(into),
            Socket::Unix(stream) => stream.try_read_buf(into),
            Socket::Tls(stream) => {
                let start = into.len();
                into.resize(into.capacity(), 0);
                let read = stream.try_read(&mut into[start..]);
                into.truncate(start + *read.as_ref().unwrap_or(&0));
                read
            }
        }
    }

    /// Returns whether the connection is open and has nothing to read. This asks the kernel, because the runtime's
    /// information may be outdated.
    pub fn is_quiet(&self) -> bool {
        if let Socket::Tls(stream) = self {
            return stream.is_quiet();
        }
        let mut byte = [MaybeUninit::uninit()];
        let peeked = socket2::SockRef::from(self).recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Writes as many bytes as fit; `WouldBlock` if none do, after which the next write begins with the same bytes.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_write(bytes),
            Socket::Unix(stream) => stream.try_write(bytes),
            Socket::Tls(stream) => stream.try_write(bytes),
        }
    }

    /// Writes as many bytes of several parts as fit; `WouldBlock` if none do. Only for sockets without TLS.
    pub(crate) fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_write_vectored(parts),
            Socket::Unix(stream) => stream.try_write_vectored(parts),
            Socket::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Writes bytes that are not written again, as far as they fit; returns their number.
    pub fn offer(&self, bytes: &[u8]) -> usize {
        match self {
            Socket::Tls(stream) => stream.offer(bytes),
            Socket::Tcp(_) | Socket::Unix(_) => self.try_write(bytes).unwrap_or(0),
        }
    }

    /// Waits until a read may succeed.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.readable().await,
            Socket::Unix(stream) => stream.readable().await,
            Socket::Tls(stream) => stream.readable().await,
        }
    }

    /// Waits until a write may succeed.
    pub async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// Puts the server's side of TLS over the connection, of which `early` was received already. `keep` bytes of the
    /// client's first message are kept.
    pub fn start_tls_server(&mut self, early: &[u8], keep: usize) {
        self.start_tls(Tls::server(early, keep));
    }

    /// Puts the client's side of TLS over the connection.
    pub fn start_tls_client(&mut self, connection: ClientConnection) {
        self.start_tls(Tls::client(connection));
    }

    /// Puts the client's side of TLS over the connection and performs the handshake; returns what it has found. `sni` is
    /// the name that is asked for.
    ///
    /// # Errors
    /// With the handshake's error, what became of the verification of the server.
    pub async fn connect_tls(
        &mut self,
        connection: ClientConnection,
        sni: Option<Box<str>>,
    ) -> Result<(), (HandshakeError, Option<Outcome>)> {
        self.start_tls_client(connection);
        let Some(stream) = self.tls_mut() else { return Ok(()) };
        let mut choose = |_: &mut Context<'_>, _: &ClientHello<'_>| Poll::Ready(Err(AlertDescription::InternalError));
        match std::future::poll_fn(|cx| stream.poll_handshake(cx, &mut choose)).await {
            Ok(()) => {
                stream.find_facts(sni);
                Ok(())
            }
            Err(error) => Err((error, stream.take_outcome())),
        }
    }

    /// Puts the server's side of TLS over the connection and performs the handshake with a certificate of `listener`.
    ///
    /// # Errors
    /// With the handshake's error, what became of the verification of the client.
    pub async fn accept_tls(&mut self, listener: &Listener) -> Result<(), (HandshakeError, Option<Outcome>)> {
        self.start_tls_server(&[], 0);
        let Some(stream) = self.tls_mut() else { return Ok(()) };
        let mut choose = |_: &mut Context<'_>, hello: &ClientHello<'_>| {
            Poll::Ready(listener.choose(hello).map(|choice| choice.config).map_err(|refusal| refusal.alert()))
        };
        let shaken = std::future::poll_fn(|cx| stream.poll_handshake(cx, &mut choose)).await;
        shaken.map_err(|error| (error, stream.take_outcome()))
    }

    fn start_tls(&mut self, tls: Tls) {
        let below = std::mem::replace(self, Socket::Tls(Box::new(tls)));
        if let Socket::Tls(stream) = self {
            stream.place_over(below);
        }
    }

    /// Returns the protocol that ALPN has selected.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.tls()?.facts()?.alpn.as_deref()
    }

    /// Returns the TLS stream, if this is one.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Socket::Tls(stream) => Some(stream),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    /// Returns the TLS stream, if this is one.
    pub fn tls_mut(&mut self) -> Option<&mut Tls> {
        match self {
            Socket::Tls(stream) => Some(stream),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    /// Waits until the connection is broken; with `half` also until the peer has closed its side, after everything that
    /// it sent.
    pub async fn gone(&self, half: bool) {
        let interest = if half { Interest::READABLE | Interest::ERROR } else { Interest::ERROR };
        let Ok(ready) = self.ready(interest).await else { return };
        if ready.is_error() || ready.is_write_closed() || (half && ready.is_read_closed()) {
            return;
        }
        // Readable and open: nothing reads now, so no event would report the end. The wait continues for errors, which
        // are always reported.
        let _ = self.ready(Interest::ERROR).await;
    }

    async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Socket::Tcp(stream) => stream.ready(interest).await,
            Socket::Unix(stream) => stream.ready(interest).await,
            Socket::Tls(stream) => Box::pin(stream.socket().ready(interest)).await,
        }
    }

    /// Ends this side, after `close_notify` under TLS, by a FIN: this side sends no more data.
    pub fn shutdown_write(&self) {
        if let Socket::Tls(stream) = self {
            stream.close();
        }
        self.shutdown(Shutdown::Write);
    }

    /// Shuts down one or both directions for all owners of the connection, which wakes their tasks.
    pub fn shutdown(&self, how: Shutdown) {
        // A connection that is already closed cannot be shut down; the error is irrelevant.
        let _ = socket2::SockRef::from(self).shutdown(how);
    }

    /// Discards received bytes, up to a limit and without waiting. The kernel resets a connection that is closed with
    /// unread bytes, and the peer then loses data that was sent to it before.
    pub fn discard(&self) {
        let mut buffer = [0; 4096];
        let socket = socket2::SockRef::from(self);
        for _ in 0..DISCARDED / buffer.len() {
            if !(&*socket).read(&mut buffer).is_ok_and(|count| count > 0) {
                return;
            }
        }
    }

    /// Sets options of an established connection; one that the kernel refuses is left out.
    pub fn set_options(&self, options: &SocketOptions) {
        let of_tcp = matches!(self, Socket::Tcp(_));
        let unsent_max = options.unsent_max.filter(|_| of_tcp);
        let user_timeout = options.user_timeout.filter(|_| of_tcp);
        let _ = SocketOptions { unsent_max, user_timeout, fast_open: false, ..*options }.apply(self.fd());
    }

    /// Sets the socket options of a connection: TCP keep-alive probes, and the way in which it is closed.
    pub fn settle(&self, probes: Option<&TcpKeepalive>, nolinger: bool) {
        if !matches!(self, Socket::Tcp(_)) {
            return;
        }
        if let Some(settings) = probes {
            let socket = socket2::SockRef::from(self);
            // A connection without probes is still one.
            let _ = socket.set_keepalive(true);
            let _ = socket.set_tcp_keepalive(settings);
        }
        if nolinger {
            self.reset_on_close();
        }
    }

    /// Makes the following close send a reset instead of a FIN.
    pub fn reset_on_close(&self) {
        if let Socket::Tls(stream) = self {
            return stream.reset_on_close();
        }
        let _ = socket2::SockRef::from(self).set_linger(Some(std::time::Duration::ZERO));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, into),
            Socket::Tls(stream) => {
                let count = ready!(stream.poll_read(cx, into.initialize_unfilled()))?;
                into.advance(count);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Socket::poll_write(self.get_mut(), cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Socket::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Socket::Tls(stream) => {
                let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
                stream.poll_write(cx, first)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => {
                stream.close();
                stream.socket().shutdown(Shutdown::Write);
                Poll::Ready(Ok(()))
            }
        }
    }
}
