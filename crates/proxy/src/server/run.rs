//! A server of one snapshot: its line of the configuration, with the state that outlives the snapshot.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use sluicegate_config::model::{self, HttpReuse, ServerAddress, ServerPort};
use sluicegate_tls::connector::Connector;
use sluicegate_transport::{Namespace, SocketOptions};

use super::busy::Common;
use super::shared::{BackendShared, ServerShared};

/// A server line of one snapshot.
pub struct ServerRun {
    /// Its configuration.
    pub config: model::Server,
    /// The state that outlives the snapshot.
    pub shared: Arc<ServerShared>,
    /// The backend it belongs to.
    pub backend: Arc<BackendShared>,
    /// The backend's `http-reuse`.
    pub(super) reuse: HttpReuse,
    /// The address of a server given by name, once [`resolve_names`](super::resolve_names) has resolved it.
    pub(super) resolved: OnceLock<IpAddr>,
    /// The TLS of its line, once [`connectors`](super::connectors) has built it.
    pub(super) connector: OnceLock<Arc<Connector>>,
    /// How its sockets are made, once [`set_sockets`](super::set_sockets) has determined it.
    pub(super) sockets: OnceLock<ServerSockets>,
}

/// The settings of sockets to one server.
#[derive(Debug, Default)]
pub(super) struct ServerSockets {
    pub(super) options: SocketOptions,
    pub(super) namespace: Option<Arc<Namespace>>,
}

impl ServerRun {
    /// Returns its name.
    pub fn name(&self) -> &Arc<str> {
        &self.shared.name
    }

    /// Returns its address, unless it is a unix socket or a name without one.
    pub fn address(&self) -> Option<IpAddr> {
        let moved = self.shared.moved();
        let first = match &self.config.address {
            ServerAddress::Inet(ip, _) => Some(*ip),
            ServerAddress::Name(..) if !moved.lost => self.resolved.get().copied(),
            _ => None,
        };
        moved.ip.or(first)
    }

    /// Returns the name from which its address is resolved: set by a command, or the file's.
    pub fn hostname(&self) -> Option<Arc<str>> {
        self.shared.fqdn().or_else(|| match &self.config.address {
            ServerAddress::Name(name, _) => Some(name.as_str().into()),
            _ => None,
        })
    }

    /// Returns whether the server's address and port come from a service's DNS records.
    pub(crate) fn follows_service(&self) -> bool {
        matches!(&self.config.address, ServerAddress::Name(name, _) if name.starts_with('_'))
            && self.config.resolve.is_some()
    }

    /// Returns whether the server's address or port is the one that the client connected to, so that connections may be
    /// shared only by requests with the same destination.
    pub(super) fn follows_clients(&self) -> bool {
        match &self.config.address {
            ServerAddress::Inet(ip, port) => ip.is_unspecified() || matches!(port, ServerPort::Offset(_)),
            ServerAddress::Name(_, port) => matches!(port, ServerPort::Offset(_)),
            ServerAddress::Unix(_)
            | ServerAddress::Abstract(_)
            | ServerAddress::Sockpair(_)
            | ServerAddress::Reverse => false,
        }
    }

    /// Returns the destination of a connection for a client that connected to `destination`; `None` for unix sockets
    /// and for an unresolved name.
    pub fn socket_addr(&self, destination: Option<SocketAddr>) -> Option<SocketAddr> {
        let (ip, port) = match &self.config.address {
            ServerAddress::Inet(ip, port) => (*ip, *port),
            ServerAddress::Name(_, port) => (self.address()?, *port),
            ServerAddress::Unix(_)
            | ServerAddress::Abstract(_)
            | ServerAddress::Sockpair(_)
            | ServerAddress::Reverse => return None,
        };
        let moved = self.shared.moved();
        // A server without an address of its own is reached at the client's original destination.
        let ip = if ip.is_unspecified() { destination?.ip() } else { ip };
        let port = match (moved.port, port) {
            (Some(port), _) | (None, ServerPort::Fixed(port)) => port,
            (None, ServerPort::Offset(offset)) => (i32::from(destination?.port()) + offset) as u16,
        };
        Some(SocketAddr::new(moved.ip.unwrap_or(ip), port))
    }

    /// Returns the port that listings show: the one set at run time or that of the line, whether or not the address is
    /// known; what is added to a client's port counts as one, and a unix socket has 0.
    pub fn shown_port(&self) -> u16 {
        let of_line = match self.config.address {
            ServerAddress::Inet(_, ServerPort::Fixed(port)) | ServerAddress::Name(_, ServerPort::Fixed(port)) => port,
            ServerAddress::Inet(_, ServerPort::Offset(offset)) | ServerAddress::Name(_, ServerPort::Offset(offset)) => {
                offset as u16
            }
            _ => 0,
        };
        self.shared.moved().port.unwrap_or(of_line)
    }
}

impl fmt::Debug for ServerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRun").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// A slot of a server (`maxconn`): held while a request is processed, given to the next waiter when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) server: Arc<ServerRun>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let backend = &self.server.backend;
        backend.give_slot(self.server.shared.index);
        if backend.queue.has_waiters() {
            backend.slot_freed(self.server.shared.index);
        }
    }
}

/// Returns, as a text to compare, the part of a backend's definition on which its balancer, its queue and its servers'
/// limits depend.
fn shape(config: &model::Proxy, fullconn: u32) -> String {
    let balance = (&config.balance, config.hash_type, config.hash_balance_factor, config.hash_preserve_affinity);
    let mut text = format!("{balance:?} {} {fullconn}", config.options.all_backups);
    for server in &config.servers {
        let model::Server { name, sid, address, minconn, maxqueue, slowstart, hash_key, backup, .. } = server;
        text += &format!(" {:?}", (name, sid, address, minconn, maxqueue, slowstart, hash_key, backup));
    }
    text
}

/// Builds the running side of a proxy's servers for this number of workers and this revision, with figures, slots and
/// health in their initial state.
///
/// A later snapshot shares the backend of the earlier one if both define it alike, except for properties that can be
/// changed at run time; otherwise it has a new one, whose servers keep their counters by name.
pub(crate) fn build_backend(
    config: &model::Proxy,
    common: Common<'_>,
    fullconn: u32,
    before: Option<(&model::Proxy, &Arc<BackendShared>)>,
) -> (Arc<BackendShared>, Vec<Arc<ServerRun>>) {
    let backend = match before {
        Some((old, shared)) if shape(old, shared.fullconn()) == shape(config, fullconn) => shared.clone(),
        _ => Arc::new(BackendShared::new(config, common, fullconn, before.map(|(_, shared)| &**shared))),
    };
    let servers = config
        .servers
        .iter()
        .zip(&backend.servers)
        .map(|(server, shared)| {
            Arc::new(ServerRun {
                config: server.clone(),
                shared: shared.clone(),
                backend: backend.clone(),
                // Nothing but reuse leads to a server that connects to this side.
                reuse: if server.is_reverse() { HttpReuse::Always } else { config.http_reuse },
                resolved: OnceLock::new(),
                connector: OnceLock::new(),
                sockets: OnceLock::new(),
            })
        })
        .collect();
    (backend, servers)
}
