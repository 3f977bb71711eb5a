//! Listening stats sockets, as stored with the active configuration.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluicegate_config::model::{SeverityOutput, StatsLevel, StatsSocket};
use sluicegate_tls::listener::Listener;

/// The options of a stats socket that apply to its clients.
#[derive(Clone, Copy, Debug)]
pub struct SocketClients {
    /// Their access level.
    pub level: StatsLevel,
    /// Whether they may take the listening sockets (`expose-fd listeners`).
    pub exposes: bool,
    /// The prefix of messages (`severity-output`).
    pub severity: SeverityOutput,
    /// Whether their connections begin with a PROXY protocol header (`accept-proxy`).
    pub accept_proxy: bool,
    /// The number of them at once (`maxconn`).
    pub maxconn: Option<u32>,
}

impl SocketClients {
    /// Returns the options of a `stats socket` line.
    pub fn of(socket: &StatsSocket) -> SocketClients {
        let StatsSocket { level, expose, severity, accept_proxy, maxconn, .. } = *socket;
        SocketClients { level, exposes: expose, severity, accept_proxy, maxconn }
    }
}

/// A listening stats socket.
#[derive(Clone, Debug)]
pub struct Socket {
    /// Bound and listening, TCP or unix.
    pub listener: Arc<OwnedFd>,
    /// What applies to its clients.
    pub clients: SocketClients,
    /// The TLS of its clients (`ssl`).
    pub tls: Option<Arc<Listener>>,
}
