//! TLS to engines, with the certificates that the section names.
//!
//! Sessions are not resumed: connections live long, and a new one may lead to another node.

use std::fmt;
use std::io;
use std::sync::Arc;

use sluicegate_tls::connector::Connector;
use sluicegate_tls::pair::{Pair, PairFiles};
use sluicegate_tls::policy::{Policy, ServerSettings, Verify};
use sluicegate_tls::x509::Bundle;
use sluicegate_transport::Socket;

/// The TLS settings of a section; with the contents of files, since these may be unreadable later.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `verify required`, with the authorities in PEM; `None`: `verify none`.
    pub authorities: Option<Vec<u8>>,
    /// The client's certificates and key in PEM.
    pub certificate: Option<Vec<u8>>,
    /// The server name that is sent to the engine (SNI) and that its certificate must bear; `None`: its address's.
    pub name: Option<String>,
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The TLS configuration of connections.
#[derive(Clone, Debug)]
pub struct Tls {
    options: TlsOptions,
    connector: Arc<Connector>,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.options == other.options
    }
}

impl Eq for Tls {}

impl Tls {
    /// Parses certificates and key. The error describes the defect.
    pub fn new(options: TlsOptions) -> Result<Tls, String> {
        let ca = options.authorities.as_deref().map(|pem| Bundle::read("ca-file", &[pem]));
        let ca = ca.transpose().map_err(|error| format!("ca-file: {error}"))?;
        let files = |pem| PairFiles { path: "crt", pem, ..PairFiles::default() };
        let pair = options.certificate.as_deref().map(|pem| Pair::parse(files(pem)));
        let pair = pair.transpose().map_err(|error| format!("crt: {error}"))?;
        let verify = if ca.is_some() { Verify::Required } else { Verify::None };
        let policy = Policy { verify: Some(verify), ca: ca.map(Arc::new), ..Policy::default() };
        let pair = pair.map(Arc::new);
        let settings = ServerSettings { policy, pair, is_engine: true, no_reuse: true, ..ServerSettings::default() };
        let connector = Arc::new(Connector::new(settings)?);
        if let Some(name) = &options.name {
            connector.connect_to(name).map_err(|error| format!("sni: {error}"))?;
        }
        Ok(Tls { options, connector })
    }

    /// Performs the handshake with an engine at `host`.
    pub(crate) async fn connect(&self, socket: &mut Socket, host: &str) -> io::Result<()> {
        let host = self.options.name.as_deref().unwrap_or(host);
        let connection = self.connector.connect_to(host).map_err(io::Error::other)?;
        socket.connect_tls(connection, None).await.map_err(|(error, _)| error.into())
    }
}
