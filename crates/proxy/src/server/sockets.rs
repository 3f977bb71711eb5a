//! How sockets to a server are made: their options, their network namespace, the proxy of SOCKS 4 before the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sluicegate_config::model::{Mode, ServerNamespace, SocketSizes};
use sluicegate_transport::{Namespace, Origin, Socket, SocketOptions};
use sluicegate_wire::proxy_protocol::tlv;
use sluicegate_wire::socks4;

use super::run::{ServerRun, ServerSockets};
use super::source::Local;
use crate::errors::CompileError;
use crate::namespaces::Namespaces;
use crate::stream::StreamContext;

/// The namespace of a client's connection, for servers with `namespace *`; it has a name, by which connections differ.
pub(super) type ClientNamespace = Option<(Arc<str>, Arc<Namespace>)>;

/// How a connection to a server is made.
#[derive(Clone, Copy, Default)]
pub(crate) struct Way<'a> {
    pub(super) local: Option<Local<'a>>,
    pub(super) options: SocketOptions,
    pub(super) namespace: Option<&'a Namespace>,
    /// The proxy of SOCKS 4 that makes the connection.
    pub(super) socks4: Option<SocketAddr>,
}

impl Way<'_> {
    /// Returns what precedes a connection to an address.
    pub(super) fn origin(&self, address: SocketAddr) -> Origin<'_> {
        let local = self.local.as_ref().map(|local| local.end(address));
        Origin { local, options: self.options, namespace: self.namespace }
    }
}

impl ServerRun {
    /// Returns the way of a request's connection. Without `sends_first`, a server may send before the client.
    pub(super) fn way<'a>(
        &'a self,
        local: Option<Local<'a>>,
        of_client: &'a ClientNamespace,
        sends_first: bool,
    ) -> Way<'a> {
        let mut way = self.way_without_client(local, sends_first);
        if self.follows_namespaces() {
            way.namespace = of_client.as_ref().map(|(_, namespace)| &**namespace);
        }
        way
    }

    /// Returns the way of a connection that the process makes for itself.
    pub(crate) fn way_without_client<'a>(&'a self, local: Option<Local<'a>>, sends_first: bool) -> Way<'a> {
        let mut way = self.way_of_check(local);
        way.socks4 = self.config.tcp.socks4;
        way.options.fast_open = self.config.tcp.fast_open && sends_first;
        way
    }

    /// Returns the way of a check's connection.
    pub(crate) fn way_of_check<'a>(&'a self, local: Option<Local<'a>>) -> Way<'a> {
        match self.sockets.get() {
            Some(ServerSockets { options, namespace }) => {
                Way { local, options: *options, namespace: namespace.as_deref(), socks4: None }
            }
            None => Way { local, ..Way::default() },
        }
    }

    /// Returns whether its connections are made in the namespaces of clients' connections.
    pub(super) fn follows_namespaces(&self) -> bool {
        self.config.tcp.namespace == Some(ServerNamespace::OfClient)
    }
}

/// Determines the settings of a backend's sockets, and opens their namespaces.
pub fn set_sockets<'a>(
    servers: impl Iterator<Item = &'a Arc<ServerRun>>,
    sizes: &SocketSizes,
    namespaces: &Namespaces,
) -> Result<(), Vec<CompileError>> {
    let mut errors = Vec::new();
    for server in servers {
        let tcp = &server.config.tcp;
        let namespace = match &tcp.namespace {
            Some(ServerNamespace::Named(named)) => namespaces.open(named).map_err(|error| errors.push(error)).ok(),
            Some(ServerNamespace::OfClient) | None => None,
        };
        let options = SocketOptions { user_timeout: tcp.user_timeout, multipath: tcp.multipath, ..of_sizes(sizes) };
        // Set once: a server belongs to one snapshot.
        let _ = server.sockets.set(ServerSockets { options, namespace });
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Returns the socket options of one side.
pub(crate) fn of_sizes(sizes: &SocketSizes) -> SocketOptions {
    SocketOptions {
        send_buffer: sizes.send,
        receive_buffer: sizes.receive,
        unsent_max: sizes.unsent,
        ..SocketOptions::default()
    }
}

/// Returns the namespace of a client's connection: that in its PROXY protocol header, if a `namespace_list` or another
/// line names it, otherwise that of its `bind` line.
pub(super) fn namespace_of_client(proxy: &crate::site::Site, cx: &StreamContext) -> ClientNamespace {
    if !proxy.servers.iter().any(|server| server.follows_namespaces()) {
        return None;
    }
    let listener = cx.client.listener.as_ref()?;
    let namespaces = &listener.process.namespaces;
    let of_header = cx.client.proxied().and_then(|proxied| proxied.tlv(tlv::NETNS));
    let of_header = of_header.and_then(|name| namespaces.get(std::str::from_utf8(&name).ok()?));
    of_header.or_else(|| namespaces.get(&listener.bind().tcp.namespace.as_ref()?.name))
}

/// Returns whether this side sends the first bytes of a connection, so that they may leave with its first packet.
pub(super) fn sends_first(mode: Mode, is_secure: bool, has_header: bool) -> bool {
    mode == Mode::Http || is_secure || has_header
}

/// The reason why a proxy of SOCKS 4 has made no connection; the texts are HAProxy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocksError {
    #[error("SOCKS4 Proxy write error during handshake")]
    Send,
    #[error("SOCKS4 Proxy read error during handshake")]
    Receive,
    #[error("SOCKS4 Proxy deny the request")]
    Denied,
}

/// Asks a proxy of SOCKS 4, to which the socket is connected, for a connection to an address.
pub(super) async fn ask(socket: &mut Socket, target: SocketAddr) -> Result<(), SocksError> {
    let SocketAddr::V4(target) = target else { return Err(SocksError::Send) };
    let request = socks4::request(target);
    let mut rest = &request[..];
    while !rest.is_empty() {
        let count =
            std::future::poll_fn(|cx| socket.poll_write(cx, rest)).await.map_err(|_: io::Error| SocksError::Send)?;
        rest = &rest[count..];
    }
    let mut reply = [0; socks4::REPLY_LEN];
    let mut filled = 0;
    // No byte beyond the reply is read: it would be the server's.
    while filled < reply.len() {
        match std::future::poll_fn(|cx| socket.poll_read(cx, &mut reply[filled..])).await {
            Ok(count) if count > 0 => filled += count,
            Ok(_) | Err(_) => return Err(SocksError::Receive),
        }
    }
    if socks4::is_granted(&reply) { Ok(()) } else { Err(SocksError::Denied) }
}
