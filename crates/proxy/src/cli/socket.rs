//! Listening stats sockets, as the configuration that is served keeps them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluicegate_config::model::StatsLevel;

/// A listening stats socket.
#[derive(Clone, Debug)]
pub struct Socket {
    /// Bound and listening, TCP or unix.
    pub listener: Arc<OwnedFd>,
    /// What its clients may do.
    pub level: StatsLevel,
    /// Who asks gets the listening sockets (`expose-fd listeners`).
    pub exposes: bool,
}
