//! `peers` sections: the nodes that share stick tables.

use std::sync::Arc;

use super::{Bind, Position, Proxy, Server, StickTable};

/// A `peers` section.
#[derive(Clone, Debug)]
pub struct Peers {
    /// The section as a proxy: its name, the address of the local peer as `binds`, all peers as `servers`, and the `log`
    /// lines. The address of the local peer is the one that it listens on.
    pub proxy: Proxy,
    /// The index of the local peer in the servers; `None`: the section names none, and is not used.
    pub local: Option<usize>,
    /// `shards`; 0: every peer is sent all entries.
    pub shards: u32,
    /// `table` lines. Their names begin with the section's name and `/`.
    pub tables: Vec<StickTable>,
}

impl Peers {
    /// Returns the section's name.
    pub fn name(&self) -> &Arc<str> {
        &self.proxy.name
    }

    /// Returns the section's position.
    pub fn at(&self) -> &Position {
        &self.proxy.at
    }

    /// Returns whether tables are exchanged: the section is not `disabled`, and names the local peer.
    pub fn is_active(&self) -> bool {
        !self.proxy.disabled && self.local.is_some()
    }

    /// Returns the line with the address of the local peer; without one, it does not listen.
    pub fn bind(&self) -> Option<&Bind> {
        self.proxy.binds.first()
    }

    /// Returns the local peer.
    pub fn local_peer(&self) -> Option<&Server> {
        self.proxy.servers.get(self.local?)
    }
}
