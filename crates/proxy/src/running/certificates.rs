//! Where a snapshot has certificates: `bind` lines and servers.

use std::sync::Arc;

use sluicegate_config::model;
use sluicegate_tls::connector::Connector;
use sluicegate_tls::listener::Listener;
use sluicegate_tls::pair::Pair;

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
    running.servers().filter_map(|server| server.connector())
}

/// Replaces a certificate wherever it is used; returns in how many places.
///
/// # Errors
/// The reason why a server can't have it, in which case nothing has changed.
pub(crate) fn replace_pair(running: &Running, pair: &Arc<Pair>) -> Result<usize, String> {
    let mut count = 0;
    // Servers first: nothing that follows can fail.
    for connector in connectors(running) {
        count += usize::from(connector.replace_pair(pair)?);
    }
    Ok(count + places(running).map(|place| place.listener.replace_pair(pair)).sum::<usize>())
}
