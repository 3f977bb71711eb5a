//! TLS to engines: rustls, with the certificates that the section names.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sluicegate_transport::Socket;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The TLS settings of a section; with the contents of files, since these may be unreadable later.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `verify required`, with the authorities in PEM; `None`: `verify none`.
    pub authorities: Option<Vec<u8>>,
    /// The client's certificates and key in PEM.
    pub certificate: Option<Vec<u8>>,
    /// The name that is asked for and that the engine's certificate must bear; `None`: its address's.
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
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
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
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let verifier: Arc<dyn ServerCertVerifier> = match &options.authorities {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem, "ca-file")? {
                    roots.add(certificate).map_err(|error| format!("ca-file: {error}"))?;
                }
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| format!("ca-file: {error}"))?
            }
            None => Arc::new(Anyone(provider)),
        };
        // Certificates are not verified with `verify none`, which is what this call's name warns of.
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &options.certificate {
            Some(pem) => {
                let key =
                    PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("crt: no private key: {error}"))?;
                let chain = certificates(pem, "crt")?;
                builder.with_client_auth_cert(chain, key).map_err(|error| format!("crt: {error}"))?
            }
            None => builder.with_no_client_auth(),
        };
        // Nothing of a connection is worth keeping for the next one, which may go to another node.
        config.resumption = rustls::client::Resumption::disabled();
        let name = options.name.as_ref().map(|name| ServerName::try_from(name.clone()));
        let name = name.transpose().map_err(|error| format!("sni: {error}"))?;
        Ok(Tls { options, config: Arc::new(config), name })
    }

    pub(crate) async fn connect(&self, socket: Socket, host: &str) -> io::Result<TlsStream<Socket>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        TlsConnector::from(self.config.clone()).connect(name, socket).await
    }
}

fn certificates(pem: &[u8], word: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{word}: no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{word}: {error}")),
    }
}

/// `verify none`: accepts any peer that holds the private key of its certificate.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
