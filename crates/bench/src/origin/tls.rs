//! TLS of the demo origin.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use tokio_rustls::TlsAcceptor;

use crate::pem;

/// The name of HTTP/2 in ALPN.
pub(super) const HTTP2: &[u8] = b"h2";

/// The application protocols, in the order of preference.
const PROTOCOLS: &[&[u8]] = &[HTTP2, b"http/1.1"];

/// A certificate with its key, ready to serve.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a certificate with its chain, and its key, which may be in the same file. TLS 1.2 and 1.3; sessions are
    /// resumed by tickets, so any thread can resume them.
    ///
    /// # Errors
    /// A sentence that begins with the option that named the file.
    pub fn new(certificate: &Path, key: &Path) -> Result<Tls, String> {
        let pair = pem::pair("--tls-cert", certificate, key)?;
        let failed = |error: rustls::Error| format!("--tls-cert {}: {error}", certificate.display());
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(pair));
        config.ticketer = Ticketer::new().map_err(failed)?;
        config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Tls { config: Arc::new(config) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }
}
