//! `peers` sections: the exchange of stick tables with other nodes (HAProxy configuration manual 11.2).
//!
//! Everything runs on the control thread. A `Section` is a section of one snapshot: its peers, its listening socket, its
//! tables; `State` is what outlives a snapshot: how far each peer is, and whether this process has all entries. A
//! section has a task (`exchange`) that accepts, connects and keeps the time, and a task for each connection
//! (`session`). Workers do no more than note which entries have changed (`stick::Wake`).
//!
//! **Resynchronisation.** A process that starts learns all entries: from the process that it replaces, which connects as
//! the *local peer* (`stop` is that side), and otherwise from one of the other peers, which it asks for them. After 5
//! seconds without either it counts as up to date. HAProxy's rules are those of its `peers.c`; `state` follows them.
//!
//! **Reloads.** Tables and `State` are the same in the next snapshot, and a section that has not changed keeps its
//! connections.
//!
//! **Limits:** three connections that are accepted for each peer; a message of `tune.bufsize` bytes;
//! `session::OUT_MAX` bytes of messages that a peer has not read; `stick::Wake`'s lists of changes.

pub mod bind;
mod build;
mod exchange;
mod messages;
mod receive;
pub(crate) mod run;
mod send;
mod session;
pub(crate) mod show;
mod state;
mod stop;
mod traced;

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_config::model;
use sluicegate_config::model::StickTable;
use sluicegate_tls::connector::Connector;
use sluicegate_tls::listener::Listener;
use socket2::SockRef;

use crate::server::{Headers, ServerNames, ServerRun};
use crate::site::Site;
use crate::stick::Table;
use crate::stream::{LogRecord, StreamContext};
pub use bind::bind;
pub(crate) use build::{States, sections};
pub(crate) use state::State;

/// A section of one snapshot.
pub(crate) struct Section {
    /// Its configuration.
    pub(crate) config: model::Peers,
    /// Its peers, the local one included.
    pub(crate) servers: Vec<Arc<ServerRun>>,
    /// The TLS of connections from peers.
    pub(crate) tls: Option<Arc<Listener>>,
    /// Its tables.
    pub(crate) tables: Vec<SharedTable>,
    /// What outlives the snapshot.
    pub(crate) state: Arc<State>,
    /// The proxy that exists for its peers.
    site: Arc<Site>,
    /// The names that peers are asked for in TLS.
    names: ServerNames,
    /// The headers of the PROXY protocol that peers get.
    headers: Headers,
    /// The listening socket, once it is bound.
    door: OnceLock<Arc<OwnedFd>>,
}

/// A table of a section.
#[derive(Clone)]
pub(crate) struct SharedTable {
    /// The table.
    pub(crate) table: Arc<Table>,
    /// Its definition.
    pub(crate) config: StickTable,
    /// The table of `write-to`.
    pub(crate) target: Option<Arc<Table>>,
}

impl Section {
    /// Returns the listening socket.
    pub(crate) fn door(&self) -> Option<&Arc<OwnedFd>> {
        self.door.get()
    }

    /// Stops listening, so that the process that replaces this one gets all connections. An inherited socket may be that
    /// of the other process, too.
    fn shut_door(&self) {
        let is_inherited = |bind: &model::Bind| {
            use model::BindAddress::{Fd, Sockpair};
            matches!(bind.addresses.first(), Some(Fd(_) | Sockpair(_)))
        };
        if let Some(door) = self.door()
            && !self.config.bind().is_some_and(is_inherited)
        {
            let _ = SockRef::from(&**door).shutdown(Shutdown::Both);
        }
    }

    /// Returns the name of the local peer.
    pub(crate) fn local_name(&self) -> &str {
        self.config.local_peer().map_or("", |server| &server.name)
    }

    /// Returns the index of the local peer.
    fn local(&self) -> Option<usize> {
        self.config.local
    }

    /// Returns what a connection to a peer begins with: the header of the PROXY protocol, and the name in TLS.
    fn introduction(&self, index: usize) -> (Option<Arc<[u8]>>, Option<String>) {
        let server = &self.servers[index];
        let mut cx = StreamContext::unconnected(self.site.clone(), LogRecord::new(SystemTime::now(), Instant::now()));
        cx.backend = Some(self.site.clone());
        cx.log.server = Some(server.clone());
        (self.headers.sent_without_stream(&cx, index), self.names.sent_without_stream(&cx, server))
    }

    /// Returns the TLS of connections to peers.
    pub(crate) fn connectors(&self) -> impl Iterator<Item = &Arc<Connector>> {
        self.servers.iter().filter_map(|server| server.connector())
    }

    /// Returns whether any table sums the nodes' own counters.
    fn has_columns(&self) -> bool {
        self.tables.iter().any(|shared| shared.table.is_aggregate())
    }

    /// Returns whether connections of another section of this name can continue in this one.
    fn continues(&self, other: &Section) -> bool {
        let accepts_header = |section: &Section| section.config.bind().is_some_and(|bind| bind.accept_proxy);
        // Formats and expressions have no equality.
        let introduction = |server: &model::Server| {
            format!("{:?}{:?}", server.send_proxy, server.tls.as_ref().and_then(|tls| tls.sni.as_ref()))
        };
        let same_server = |(own, other): (&Arc<ServerRun>, &Arc<ServerRun>)| {
            let (is, was) = (&own.config, &other.config);
            (&is.name, &is.address, is.shard, &is.source) == (&was.name, &was.address, was.shard, &was.source)
                && introduction(is) == introduction(was)
                && is_same(own.connector(), other.connector())
        };
        let same_table = |(own, other): (&SharedTable, &SharedTable)| {
            Arc::ptr_eq(&own.table, &other.table)
                && is_same(own.target.as_ref(), other.target.as_ref())
                && own.config.recv_only == other.config.recv_only
                && own.config.shared_name() == other.config.shared_name()
        };
        self.config.local == other.config.local
            && self.config.shards == other.config.shards
            && is_same(self.door(), other.door())
            && accepts_header(self) == accepts_header(other)
            && is_same(self.tls.as_ref(), other.tls.as_ref())
            && self.servers.len() == other.servers.len()
            && self.servers.iter().zip(&other.servers).all(same_server)
            && self.tables.len() == other.tables.len()
            && self.tables.iter().zip(&other.tables).all(same_table)
    }
}

/// Returns whether both are the same object, or there is none.
fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// The time limit for a connection to be made.
const CONNECT: Duration = Duration::from_secs(1);
/// The time limit for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
