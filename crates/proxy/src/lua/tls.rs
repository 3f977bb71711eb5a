//! TLS of scripts' own connections: `core.httpclient` over https, and `connect_ssl` of sockets.
//!
//! HTTPS servers are verified as `httpclient.ssl.verify` and `httpclient.ssl.ca-file` say, for the name in the request's
//! `host` field, which is sent as SNI. Servers of `connect_ssl` are not verified and sent no name, as in HAProxy.
//!
//! All workers share these settings with their sessions. Connections count among those of `maxsslconn`.

use std::io;
use std::sync::Arc;

use sluicegate_config::model::GlobalTls;
use sluicegate_tls::connector::Connector;
use sluicegate_tls::policy::{Policy, ServerSettings, Verify};
use sluicegate_transport::Socket;

use crate::running::Running;
use crate::server::secure_connection;
use crate::tls::TlsTotals;

/// The TLS of scripts.
#[derive(Debug)]
pub(super) struct ScriptTls {
    /// That of `core.httpclient`; `None`: servers are to be verified, and there are no authorities.
    https: Option<Connector>,
    /// That of `connect_ssl`.
    sockets: Connector,
    totals: Arc<TlsTotals>,
}

impl ScriptTls {
    /// Builds it for a snapshot. `before` is kept if nothing has changed.
    ///
    /// # Errors
    /// A sentence about settings that cannot work.
    pub(super) fn new(running: &Running, before: Option<&Arc<ScriptTls>>) -> Result<Arc<ScriptTls>, String> {
        let (https, totals) = (https(&running.config.global.tls), running.process.tls.clone());
        let same = |known: &&Arc<ScriptTls>| {
            known.https.as_ref().map(|known| known.settings()).as_deref() == https.as_ref()
                && Arc::ptr_eq(&known.totals, &totals)
        };
        if let Some(known) = before.filter(same) {
            return Ok(known.clone());
        }
        let policy = Policy { verify: Some(Verify::None), ..Policy::default() };
        let sockets = Connector::new(ServerSettings { policy, ..ServerSettings::default() })?;
        Ok(Arc::new(ScriptTls { https: https.map(Connector::new).transpose()?, sockets, totals }))
    }

    /// Returns whether requests over https can be made.
    pub(super) fn has_https(&self) -> bool {
        self.https.is_some()
    }

    /// Performs the handshake of `core.httpclient` for a host.
    pub(super) async fn secure_request(&self, socket: &mut Socket, host: &str) -> io::Result<()> {
        let connector = self.https.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        self.secure(socket, connector, Some(host)).await
    }

    /// Performs the handshake of `connect_ssl`.
    pub(super) async fn secure_socket(&self, socket: &mut Socket) -> io::Result<()> {
        self.secure(socket, &self.sockets, None).await
    }

    async fn secure(&self, socket: &mut Socket, connector: &Connector, sni: Option<&str>) -> io::Result<()> {
        let done = secure_connection(socket, connector, sni, None, &self.totals).await;
        done.map_err(|failure| io::Error::other(format!("{failure:?}")))
    }
}

/// Returns the settings of `core.httpclient`.
fn https(global: &GlobalTls) -> Option<ServerSettings> {
    let verified = global.client_verify != Verify::None;
    let policy = Policy {
        verify: Some(global.client_verify),
        ca: if verified { Some(global.client_authorities.clone()?) } else { None },
        alpn: Some(vec![b"http/1.1".to_vec()]),
        ..Policy::default()
    };
    Some(ServerSettings { policy, ..ServerSettings::default() })
}

/// Returns the connection on whose readiness an owner may wait without the lock of its state: what is above it is not
/// shared by threads. An owner waits after an attempt that would block, so nothing is kept above.
pub(super) fn below(socket: &Socket) -> &Socket {
    socket.tls().map_or(socket, |tls| tls.socket())
}
