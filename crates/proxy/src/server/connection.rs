//! Connections to servers: their creation, and the handle of a stream.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::{AbstractName, HttpReuse, Mode, Probes, Proto, ServerAddress};
use sluicegate_transport::{self as transport, Socket, UnixAddress};
use sluicegate_wire::proxy_protocol::{Writer, write_v1};
use socket2::TcpKeepalive;

use super::fcgi;
use super::h2::{Connections, Stream, StreamFacts};
use super::idle::{self, IdleConnections, Keeper, Open};
use super::opening::ConnectError;
use super::run::{ServerRun, Slot};
use super::sockets::{self, Way};
use super::spop;
use crate::stream::StreamContext;

/// A connection to a server, or a stream of one, and the slot (`maxconn`) that its request holds. Dropping it closes the
/// connection, or resets the stream, and frees the slot.
#[derive(Debug)]
pub struct ServerConnection {
    pub(crate) link: Link,
    /// Released after the connection.
    pub(crate) lease: Lease,
}

/// The transport of a request.
#[derive(Debug)]
pub(crate) enum Link {
    /// A connection of its own: the socket, registered with this worker's runtime.
    Own(Socket),
    /// A stream of HTTP/2.
    Stream(Stream),
    /// A place on a connection to a FastCGI application.
    Application(fcgi::Stream),
    /// A place on a connection to an agent.
    Agent(spop::Stream),
}

/// What a request holds besides the transport.
#[derive(Debug)]
pub struct Lease {
    /// The count of a connection of its own. Released before the slot: the next owner of the slot may need it.
    pub(super) open: Option<Open>,
    pub(super) slot: Slot,
    /// The number of requests served on this connection before.
    pub(super) reuses: u32,
    /// The label that a request must have to take the connection when it is idle.
    pub(super) label: Option<Arc<[u8]>>,
    /// The session that owns the connection, if connections are not shared.
    pub(super) keeper: Keeper,
    /// Whether the connection belongs to its session from now on, because its server authenticates it.
    pub(super) reserved: Cell<bool>,
}

impl Lease {
    /// Returns whether another request was served on this connection before.
    pub fn was_reused(&self) -> bool {
        self.reuses > 0
    }

    /// Returns the server.
    pub fn server(&self) -> &Arc<ServerRun> {
        &self.slot.server
    }

    /// Reserves a connection of HTTP/1 for its session; returns whether it is one. Those of HTTP/2 may be shared already.
    pub(crate) fn reserve(&self) -> bool {
        self.reserved.set(self.open.is_some());
        self.reserved.get()
    }
}

impl ServerConnection {
    /// Returns whether another request was served on this connection before.
    pub fn was_reused(&self) -> bool {
        self.lease.was_reused()
    }

    /// Returns the server.
    pub fn server(&self) -> &Arc<ServerRun> {
        self.lease.server()
    }

    /// Calls `read` with the socket, if the connection is open.
    #[inline]
    pub(crate) fn with_socket(&self, read: impl FnOnce(&Socket)) {
        match &self.link {
            Link::Own(socket) => read(socket),
            Link::Stream(stream) => stream.with_socket(read),
            Link::Application(stream) => stream.with_socket(read),
            Link::Agent(stream) => stream.with_socket(read),
        }
    }

    /// Returns what fetches report of a stream of HTTP/2.
    pub(crate) fn http2_facts(&self) -> Option<StreamFacts> {
        match &self.link {
            Link::Own(_) | Link::Application(_) | Link::Agent(_) => None,
            Link::Stream(stream) => Some(stream.facts()),
        }
    }

    /// The response is complete and both sides keep the connection open: it becomes idle, or is closed because of a
    /// limit. The slot goes to the next waiter, who may take this very connection.
    ///
    /// Must be called on the worker that opened or took the connection, with its idle connections.
    pub(crate) fn release(self, owner: &Arc<IdleConnections>, worker: usize) {
        let ServerConnection { link, lease: Lease { open, slot, reuses, label, keeper, reserved } } = self;
        match (link, open) {
            (Link::Own(socket), Some(open)) => {
                let label = match reserved.get() && !idle::is_own(label.as_deref()) {
                    true => Some(idle::reserved(worker, keeper.session, label.as_deref())),
                    false => label,
                };
                idle::keep(&slot.server, (socket, open, reuses, label), owner, worker, keeper);
            }
            // Its connection stays where it is.
            (link, _) => drop(link),
        }
        drop(slot);
    }
}

/// Opens a connection. `limit` is `timeout connect`.
pub(crate) async fn connect(
    server: &ServerRun,
    destination: Option<SocketAddr>,
    way: &Way<'_>,
    limit: Option<Duration>,
) -> Result<Socket, ConnectError> {
    match &server.config.address {
        ServerAddress::Inet(..) | ServerAddress::Name(..) => {
            let address = server.socket_addr(destination).ok_or(ConnectError::Resource)?;
            let connected = connect_tcp(address, way, limit).await;
            let mut socket = connected.map_err(|error| match error.raw_os_error() {
                // The source address has no free port: HAProxy calls that a refusal.
                Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) if way.local.is_some() => ConnectError::RefusedAtOnce,
                _ => classify(&error),
            })?;
            if way.socks4.is_some() {
                let asking = sockets::ask(&mut socket, address);
                let asked = match limit {
                    Some(limit) => tokio::time::timeout(limit, asking).await.map_err(|_| ConnectError::TimedOut)?,
                    None => asking.await,
                };
                asked.map_err(|_| ConnectError::Refused)?;
            }
            Ok(socket)
        }
        // It connects to this side.
        ServerAddress::Reverse => Err(ConnectError::Unattached),
        ServerAddress::Sockpair(number) => {
            transport::connect_over(*number).map_err(|error| match error.raw_os_error() {
                Some(libc::EAGAIN) => ConnectError::Internal,
                _ if classify(&error) == ConnectError::Resource => ConnectError::Resource,
                _ => ConnectError::Internal,
            })
        }
        ServerAddress::Unix(_) | ServerAddress::Abstract(_) => {
            connect_unix(&server.config.address).map_err(|error| match classify(&error) {
                ConnectError::Refused => ConnectError::RefusedAtOnce,
                other => other,
            })
        }
    }
}

/// Connects by TCP within `limit`, to the proxy of SOCKS 4 if there is one; a timeout is [`io::ErrorKind::TimedOut`].
pub(super) async fn connect_tcp(address: SocketAddr, way: &Way<'_>, limit: Option<Duration>) -> io::Result<Socket> {
    let address = way.socks4.unwrap_or(address);
    let origin = way.origin(address);
    let connecting = transport::connect_tcp_from(&origin, address);
    match limit {
        Some(limit) => tokio::time::timeout(limit, connecting).await?,
        None => connecting.await,
    }
}

/// Sends the PROXY protocol header of a connection that no client has caused, if the server gets one.
pub(crate) async fn introduce(socket: &Socket, server: &ServerRun) -> Result<(), ConnectError> {
    let Some(form) = &server.config.send_proxy else { return Ok(()) };
    let mut header = Vec::new();
    match form.v2 {
        // LOCAL.
        true => {
            let mut writer = Writer::new(None, None);
            if form.checksum {
                writer.checksum();
            }
            writer.finish(&mut header);
        }
        false => write_v1(None, None, &mut header),
    }
    say(socket, &header, None).await
}

/// Sends the bytes that precede the stream's data. They are few and the connection is new, so the socket has room for
/// them.
pub(crate) async fn say(socket: &Socket, mut bytes: &[u8], limit: Option<Duration>) -> Result<(), ConnectError> {
    let saying = async {
        while !bytes.is_empty() {
            match socket.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let said = match limit {
        Some(limit) => tokio::time::timeout(limit, saying).await.map_err(|_| ConnectError::TimedOut)?,
        None => saying.await,
    };
    said.map_err(|error| classify(&error))
}

/// Connects to a unix socket, or over one (`sockpair@`).
pub(crate) fn connect_unix(address: &ServerAddress) -> io::Result<Socket> {
    match address {
        ServerAddress::Unix(path) => UnixAddress::Path(path).connect(),
        ServerAddress::Abstract(AbstractName { name, is_exact }) => UnixAddress::Abstract(name, *is_exact).connect(),
        ServerAddress::Sockpair(number) => transport::connect_over(*number),
        ServerAddress::Inet(..) | ServerAddress::Name(..) | ServerAddress::Reverse => {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}

/// Returns the settings of the kernel's keep-alive probes, if options ask for them.
pub(crate) fn keepalive(probes: &Probes) -> Option<TcpKeepalive> {
    probes.on.then(|| {
        let mut settings = TcpKeepalive::new();
        settings = probes.idle.map_or(settings.clone(), |idle| settings.with_time(idle));
        settings = probes.interval.map_or(settings.clone(), |interval| settings.with_interval(interval));
        probes.count.map_or(settings.clone(), |count| settings.with_retries(count))
    })
}

fn classify(error: &io::Error) -> ConnectError {
    if error.kind() == io::ErrorKind::TimedOut {
        return ConnectError::TimedOut;
    }
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL | libc::EAGAIN) => {
            ConnectError::Resource
        }
        _ => ConnectError::Refused,
    }
}

/// Returns whether `http-reuse` allows idle connections to be taken: `None`: no; `Some(true)`: only those that have
/// served more than one request. `option httpclose` does not matter: it closes connections of HTTP/1, so that none is
/// idle, and as in HAProxy does not apply to those that lend streams.
pub(super) fn reuse_policy(mode: Mode, policy: HttpReuse, allow_reuse: bool) -> Option<bool> {
    if mode != Mode::Http {
        return None;
    }
    match policy {
        // Under `never`, the connections found are the session's own.
        HttpReuse::Never | HttpReuse::Safe => allow_reuse.then_some(false),
        HttpReuse::Aggressive => Some(!allow_reuse),
        HttpReuse::Always => Some(false),
    }
}

/// Returns whether the client of a stream has a connection to the server for itself: in HAProxy only those make the next
/// request prefer a server. Of places on connections to applications, and of connections that other requests of the
/// client are using, this is known by the policy alone.
pub(super) fn has_private(server: &ServerRun, cx: &StreamContext, worker: usize, http2: &Connections) -> bool {
    let session = cx.client.session;
    let shares = cx.client.http2().is_some() || server.config.proto == Some(Proto::Fcgi);
    server.reuse == HttpReuse::Never && shares
        || idle::has_own(server, worker, session)
        || http2.serves_alone(server, session, &idle::own_label(worker, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuse_follows_the_policy() {
        let may = |policy, allow| reuse_policy(Mode::Http, policy, allow);
        assert_eq!([may(HttpReuse::Never, true), may(HttpReuse::Never, false)], [Some(false), None]);
        assert_eq!([may(HttpReuse::Safe, true), may(HttpReuse::Safe, false)], [Some(false), None]);
        assert_eq!([may(HttpReuse::Aggressive, true), may(HttpReuse::Aggressive, false)], [Some(false), Some(true)]);
        assert_eq!([may(HttpReuse::Always, true), may(HttpReuse::Always, false)], [Some(false), Some(false)]);
        assert_eq!(reuse_policy(Mode::Tcp, HttpReuse::Always, true), None);
    }
}
