//! TLS of scripts' own connections: `core.httpclient` over https, and `connect_ssl` of sockets.
//!
//! The client of `core.httpclient` is that of the process. Servers of `connect_ssl` are not verified and sent no name, as
//! in HAProxy.
//!
//! All workers share these settings with their sessions. Connections count among those of `maxsslconn`.

use std::io;
use std::sync::Arc;

use sluicegate_tls::connector::Connector;
use sluicegate_tls::policy::{Policy, ServerSettings, Verify};
use sluicegate_transport::Socket;

use crate::http_client::HttpClient;
use crate::running::Running;
use crate::server::secure_connection;
use crate::tls::TlsTotals;

/// The TLS of scripts.
#[derive(Debug)]
pub(super) struct ScriptTls {
    /// The client of `core.httpclient`.
    client: Arc<HttpClient>,
    /// The connector of `connect_ssl`.
    sockets: Arc<Connector>,
    totals: Arc<TlsTotals>,
}

impl ScriptTls {
    /// Builds it for a snapshot. `before` is kept if nothing has changed.
    ///
    /// # Errors
    /// Returns a message if the settings cannot work.
    pub(super) fn new(running: &Running, before: Option<&Arc<ScriptTls>>) -> Result<Arc<ScriptTls>, String> {
        let (client, totals) = (running.client.clone(), running.process.tls.clone());
        let same = |known: &&Arc<ScriptTls>| Arc::ptr_eq(&known.totals, &totals);
        if let Some(known) = before.filter(same) {
            let sockets = known.sockets.clone();
            return Ok(Arc::new(ScriptTls { client, sockets, totals }));
        }
        let policy = Policy { verify: Some(Verify::None), ..Policy::default() };
        let sockets = Arc::new(Connector::new(ServerSettings { policy, ..ServerSettings::default() })?);
        Ok(Arc::new(ScriptTls { client, sockets, totals }))
    }

    /// Returns the client of `core.httpclient`.
    pub(super) fn client(&self) -> &Arc<HttpClient> {
        &self.client
    }

    /// Performs the handshake of `connect_ssl`.
    pub(super) async fn secure_socket(&self, socket: &mut Socket) -> io::Result<()> {
        let done = secure_connection(socket, &self.sockets, None, None, &self.totals).await;
        done.map(drop).map_err(|failure| io::Error::other(format!("{failure:?}")))
    }
}

/// Returns the transport on whose readiness an owner may wait without the lock of its state: the TLS layer above it is
/// not shared by threads. An owner waits after an attempt that would block, so no data is buffered above.
pub(super) fn below(socket: &Socket) -> &Socket {
    socket.tls().map_or(socket, |tls| tls.socket())
}
