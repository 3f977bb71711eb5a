//! Listening stats sockets, as stored with the active configuration.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluicegate_config::model::StatsLevel;
use sluicegate_tls::listener::Listener;

/// A listening stats socket.
#[derive(Clone, Debug)]
pub struct Socket {
    /// Bound and listening, TCP or unix.
    pub listener: Arc<OwnedFd>,
    /// The access level of its clients.
    pub level: StatsLevel,
    /// Passes the listening sockets to clients that request them (`expose-fd listeners`).
    pub exposes: bool,
    /// The TLS of its clients (`ssl`).
    pub tls: Option<Arc<Listener>>,
}
