//! Where the process has certificates: `bind` lines, stats sockets and servers.

use std::sync::Arc;

use sluicegate_tls::listener::Listener;
use sluicegate_tls::pair::Pair;

use crate::running::{Running, tls_connectors};

/// Returns the TLS of `bind` lines of proxies and stores, and of stats sockets.
pub(crate) fn listeners(running: &Running) -> Vec<Arc<Listener>> {
    let sockets = running.process.current().map_or_else(Vec::new, |current| current.stats_sockets());
    let of_sockets = sockets.into_iter().filter_map(|socket| socket.tls);
    running.tls_listeners().chain(of_sockets).collect()
}

/// Replaces a certificate wherever it is used; returns in how many places.
///
/// # Errors
/// The reason why a server can't have it, in which case nothing has changed.
pub(crate) fn replace_pair(running: &Running, pair: &Arc<Pair>) -> Result<usize, String> {
    let mut count = 0;
    // Servers first: nothing that follows can fail.
    for connector in tls_connectors(running) {
        count += usize::from(connector.replace_pair(pair)?);
    }
    Ok(count + listeners(running).iter().map(|listener| listener.replace_pair(pair)).sum::<usize>())
}
