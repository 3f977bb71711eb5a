//! Listening sockets on the runtime that registered them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, UnixListener};

use crate::{Socket, is_carrier, receive_connection};

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix stream socket.
    Unix(UnixListener),
    /// A unix socket over which connections are passed (`sockpair@`).
    Passed(AsyncFd<OwnedFd>),
}

impl Listener {
    /// Registers a listening descriptor with this thread's runtime; its kind is determined from its address.
    ///
    /// # Errors
    /// The kernel's and the runtime's.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Listener> {
        let raw = socket2::Socket::from(socket);
        raw.set_nonblocking(true)?;
        let is_unix = raw.local_addr()?.is_unix();
        let fd = OwnedFd::from(raw);
        if is_carrier(&fd) {
            // SAFETY: an `OwnedFd` keeps its descriptor open and unchanged until it is dropped, with the `AsyncFd`.
            Ok(Listener::Passed(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?))
        } else if is_unix {
            Ok(Listener::Unix(UnixListener::from_std(fd.into())?))
        } else {
            Ok(Listener::Tcp(TcpListener::from_std(fd.into())?))
        }
    }

    /// Accepts a connection; also returns the address of a TCP peer.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // A connection whose peer is gone already refuses the option, and shows its end when it is read.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream), Some(peer)))
            }
            Listener::Unix(listener) => Ok((Socket::Unix(listener.accept().await?.0), None)),
            Listener::Passed(carrier) => {
                let received = carrier.async_io(Interest::READABLE, |carrier| receive_connection(carrier)).await;
                match received {
                    // Once the other end is closed nothing comes any more.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => std::future::pending().await,
                    received => Ok((Socket::from_fd(received?, false)?, None)),
                }
            }
        }
    }

    /// Returns the address of a TCP socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) | Listener::Passed(_) => None,
        }
    }

    /// Returns the path of a unix socket; `None` for an abstract one and for TCP.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Listener::Tcp(_) | Listener::Passed(_) => None,
            Listener::Unix(listener) => Some(listener.local_addr().ok()?.as_pathname()?.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn a_descriptor_becomes_a_listener_of_its_kind() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let listener = Listener::from_fd(tcp.into()).unwrap();
        assert_eq!((listener.local_addr(), listener.path()), (Some(address), None));
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let (socket, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, Some(client.local_addr().unwrap()));
        client.write_all(b"x").unwrap();
        socket.readable().await.unwrap();
        assert_eq!(socket.try_read(&mut [0; 2]).unwrap(), 1);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = Listener::from_fd(std::os::unix::net::UnixListener::bind(&path).unwrap().into()).unwrap();
        assert_eq!((listener.local_addr(), listener.path()), (None, Some(path.clone())));
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (socket, peer) = listener.accept().await.unwrap();
        assert_eq!((peer, socket.unix_path(false)), (None, Some(path)));

        let (sender, receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = Listener::from_fd(receiver.into()).unwrap();
        assert_eq!((listener.local_addr(), listener.path()), (None, None));
        let (mut client, passed) = std::os::unix::net::UnixStream::pair().unwrap();
        crate::send_descriptors(&sender, b"xx", &[passed.as_fd()]).unwrap();
        let (socket, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, None);
        client.write_all(b"x").unwrap();
        socket.readable().await.unwrap();
        assert_eq!(socket.try_read(&mut [0; 2]).unwrap(), 1);
    }
}
