//! TCP connections to others: from any port, from a bound address, to the first of several addresses.
//!
//! The source ports of a range are tried in turn: whether a port is free shows when it is bound or when the connection
//! starts, since the same port may be used for connections to different servers. So there is no list of free ports to
//! keep consistent with the kernel's.
//!
//! Deadlines are the caller's: each of these futures may be dropped, which closes the socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use socket2::{Domain, Protocol, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::{Namespace, Socket, SocketOptions};

/// The maximum number of ports of a range that one attempt tries.
const TRIES_MAX: u16 = 1024;

/// The offset at which the next search of a range starts.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// The local end of a connection, bound before connecting.
#[derive(Clone, Copy, Debug)]
pub struct LocalEnd<'a> {
    /// The address; an unspecified one leaves the choice to the kernel.
    pub ip: IpAddr,
    /// The first port of the range; 0 leaves the choice to the kernel.
    pub first_port: u16,
    /// The number of ports of the range, at least 1.
    pub ports: u16,
    /// The network interface through which packets leave.
    pub interface: Option<&'a str>,
    /// Whether the address may belong to another machine, for which the process needs a capability.
    pub is_transparent: bool,
}

/// Connects to an address.
///
/// # Errors
/// The kernel's.
pub async fn connect_tcp(address: SocketAddr) -> io::Result<Socket> {
    Socket::of_tcp(TcpStream::connect(address).await?)
}

/// Connects to the first of the addresses that accepts.
///
/// # Errors
/// The error of the last address; [`io::ErrorKind::NotFound`] without an address.
pub async fn connect_to_any(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<Socket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match connect_tcp(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What precedes the connection of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin<'a> {
    /// The local end; `None` leaves it to the kernel.
    pub local: Option<LocalEnd<'a>>,
    /// The socket's options.
    pub options: SocketOptions,
    /// The network namespace in which the socket is made; `None`: the process's.
    pub namespace: Option<&'a Namespace>,
}

impl Origin<'_> {
    /// Returns a socket with the options, which is neither bound nor connected.
    fn socket(&self, address: SocketAddr) -> io::Result<socket2::Socket> {
        let domain = Domain::for_address(address);
        let protocol = self.options.multipath.then_some(Protocol::MPTCP);
        let make = || socket2::Socket::new(domain, Type::STREAM.nonblocking(), protocol);
        let socket = match self.namespace {
            Some(namespace) => namespace.within(make)?,
            None => make()?,
        };
        self.options.apply(&socket)?;
        Ok(socket)
    }
}

/// Connects to an address from a local end, with the options of the socket.
///
/// # Errors
/// The kernel's; `EADDRNOTAVAIL` or `EADDRINUSE` if no port of the range is free.
pub async fn connect_tcp_from(origin: &Origin<'_>, address: SocketAddr) -> io::Result<Socket> {
    let Some(LocalEnd { ip, first_port, ports, interface, is_transparent }) = origin.local else {
        let socket = origin.socket(address)?;
        return Socket::of_tcp(TcpSocket::from_std_stream(socket.into()).connect(address).await?);
    };
    let start = if ports > 1 { NEXT.fetch_add(1, Ordering::Relaxed) % ports } else { 0 };
    let mut taken = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
    for step in 0..ports.min(TRIES_MAX) {
        let port = first_port + ((u32::from(start) + u32::from(step)) % u32::from(ports)) as u16;
        let socket = origin.socket(address)?;
        if is_transparent {
            if address.is_ipv4() { socket.set_ip_transparent_v4(true)? } else { socket.set_ip_transparent_v6(true)? }
        }
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        // Connections to several servers may share a port.
        socket.set_reuse_address(true)?;
        let begun = async {
            if port != 0 || !ip.is_unspecified() {
                socket.bind(&SocketAddr::new(ip, port).into())?;
            }
            TcpSocket::from_std_stream(socket.into()).connect(address).await
        };
        match begun.await {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE)) => taken = error,
            result => return Socket::of_tcp(result?),
        }
    }
    Err(taken)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn the_first_address_that_accepts_is_taken() {
        let (_listener, good) = listen();
        let (closed, bad) = listen();
        drop(closed);
        let socket = connect_to_any([bad, good]).await.unwrap();
        assert_eq!(socket.peer_addr(), Some(good));
        assert_eq!(connect_to_any([bad]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect_to_any([]).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_taken_port_of_a_range_is_passed_over() {
        let (_listener, address) = listen();
        let probe = TcpListener::bind("127.0.0.2:0").unwrap();
        let taken = probe.local_addr().unwrap().port();
        let end = LocalEnd {
            ip: Ipv4Addr::new(127, 0, 0, 2).into(),
            first_port: taken,
            ports: 1,
            interface: None,
            is_transparent: false,
        };
        let from = async |local| connect_tcp_from(&Origin { local: Some(local), ..Origin::default() }, address).await;
        assert_eq!(from(end).await.unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        let socket = from(LocalEnd { first_port: 0, ..end }).await.unwrap();
        assert_eq!(socket.local_addr().unwrap().ip(), end.ip);
        let range = LocalEnd { first_port: taken - 1, ports: 2, ..end };
        // Whether the search begins at the free port or at the taken one.
        for _ in 0..2 {
            let Ok(socket) = from(range).await else { continue };
            assert_eq!(socket.local_addr().unwrap().port(), taken - 1);
            socket.reset_on_close();
        }
    }
}
