//! Where a snapshot has certificates: `bind` lines and servers.

use std::sync::Arc;

use sluicegate_config::model;
use sluicegate_tls::connector::Connector;
use sluicegate_tls::listener::Listener;

use super::{ProxyRun, Running};

/// A `bind` line with TLS.
pub(crate) struct Place<'a> {
    /// Its proxy.
    pub(crate) proxy: &'a Arc<ProxyRun>,
    /// The line.
    pub(crate) bind: &'a model::Bind,
    /// Its TLS.
    pub(crate) listener: &'a Arc<Listener>,
}

/// Returns the `bind` lines with TLS.
pub(crate) fn places(running: &Running) -> impl Iterator<Item = Place<'_>> {
    running.proxies.iter().flat_map(|proxy| {
        let lines = proxy.config.binds.iter().zip(&proxy.tls);
        lines.filter_map(move |(bind, listener)| Some(Place { proxy, bind, listener: listener.as_ref()? }))
    })
}

/// Returns the TLS of servers.
pub(crate) fn connectors(running: &Running) -> impl Iterator<Item = &Arc<Connector>> {
    let servers = running.servers().filter_map(|server| server.connector());
    servers.chain(running.peers.iter().flat_map(|section| section.connectors()))
}
