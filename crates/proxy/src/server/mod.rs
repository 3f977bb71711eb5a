//! Servers: choosing one, waiting for one, connecting to it, keeping connections to it, and knowing its health.
//!
//! [`assign_and_connect`] is the whole way from a stream to a server connection: a slot (`maxconn`) from the balancer
//! or from the queue, then an idle connection or a new one, with HAProxy's retries and redispatches. The slot is a
//! guard inside [`ServerConnection`]: whatever happens to the stream, dropping it gives the slot to the next waiter.
//!
//! [`ServerShared`] and [`BackendShared`] outlive a configuration snapshot (counters, slots, health, queue);
//! [`ServerRun`] is a server line of one snapshot. A snapshot that defines a backend differently has another
//! [`BackendShared`]; its servers share the figures, and with them the slots, with the previous servers of the same
//! names.
//!
//! Locks, never held over I/O, logging or a wake-up: the queue's before the balancer's; a server's state before the
//! balancer's and the backend's state; an idle list is a leaf. The queue's and a server's state are never held together.

use std::sync::Arc;

mod admin;
mod agents;
mod app;
mod assign;
mod busy;
mod by_server;
mod check;
mod commit;
mod connection;
mod cookie;
mod event;
mod failure;
mod fcgi;
mod h2;
mod header;
mod health;
mod idle;
mod key;
mod notice;
mod opening;
mod pooled;
mod publish;
mod queue;
mod resolve;
mod reverse;
mod run;
mod seed;
mod shared;
mod sockets;
mod source;
mod spop;
mod state;
mod state_file;
mod tls;
mod traced;
mod verdict;

pub use admin::{Directive, HealthWord, WeightError, parse_weight};
pub(crate) use app::App;
pub use assign::assign_and_connect;
pub(crate) use busy::{BusyBackends, Common};
pub use check::{CheckCode, fuzz_answers, run as run_health_checks};
pub(crate) use commit::commit;
pub use connection::ServerConnection;
pub(crate) use connection::{Lease, Link, connect, keepalive, say as send_first};
pub use event::{AdminFlags, Cause, CheckFacts, Detail, ServerEvent, Stage, Subject};
pub use failure::ServerFailure;
pub use fcgi::fuzz_application;
pub(crate) use fcgi::{Connections as AppConnections, State as FcgiState, Stream as FcgiStream};
pub use h2::StreamFacts;
pub(crate) use h2::attached::{Attached, open_connections as attached_connections};
pub(crate) use h2::{Connections as Http2Connections, State as Http2State, Stream as Http2Stream};
pub use header::Headers;
pub use health::{CheckReport, Health};
pub use idle::IdleConnections;
pub(crate) use idle::{clear as clear_idle, forget as forget_own, own_label};
pub use key::KeyCode;
pub(crate) use notice::{observe, say};
pub use queue::{Priority, Queue};
pub(crate) use resolve::keep_addresses;
pub use resolve::{ResolveError, addresses, resolve_names, take_addresses, unresolvable};
pub(crate) use reverse::connect_reversed;
pub use run::ServerRun;
pub(crate) use run::build_backend;
pub use shared::{
    Admin, AgentStatus, BackendGuard, BackendShared, BackendSummary, Moved, Operation, ServerShared, ServerStatus,
};
pub(crate) use sockets::of_sizes as socket_options;
pub use sockets::set_sockets;
pub(crate) use source::{has_foreign_sources, local_of_check as source_of};
pub(crate) use spop::Connections as AgentConnections;
pub use spop::fuzz_agent;
pub use state_file::{KeptStates, fuzz_state_file, restore as restore_states};
pub(crate) use tls::secure as secure_connection;
pub use tls::{ServerNames, connectors};
pub(crate) use verdict::Observed;

/// Closes the older half of the idle connections of these servers; returns their number. For a caller that has reached
/// the limit of descriptors and retries if this helped.
pub(crate) fn shed_idle<'a>(servers: impl Iterator<Item = &'a Arc<ServerRun>>) -> usize {
    servers.map(|server| idle::shed(server)).sum()
}

#[cfg(test)]
mod tests;
