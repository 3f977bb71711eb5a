//! TLS of the generator's connections: files and options turned into configurations of rustls.
//!
//! Each thread has its own configuration, because the session store is part of it and would otherwise be a lock that
//! all threads share. Without `--resume` the store keeps no session, so every connection makes a full handshake; it
//! keeps the server's choice of a group, so that only the first handshake of a thread pays for a wrong guess.
//!
//! Chains are verified by libcrypto, so a self-signed certificate may be its own authority; names are compared with the
//! subject alternative names alone.
//!
//! Limits: two tickets for each connection of a thread, one session of TLS 1.2 for each thread.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls12Resumption, Tls13ClientSessionValue,
    verify_server_name,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, NamedGroup, ProtocolVersion,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use sluicegate_tls::policy::{self, Policy, ServerSettings};
use sluicegate_tls::verify::ServerVerifier;
use sluicegate_tls::x509::{Bundle, Certificate};

use crate::pem;

/// The tickets that are kept for each connection of a thread: as many as most servers send at once.
const TICKETS: usize = 2;

/// The files in which systems keep their authorities, the first that exists is used: Debian, Red Hat, SUSE, BSD.
const SYSTEM_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The TLS settings of a run, before their files are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TlsPlan {
    /// The name that is sent (unless it is an address) and that the certificate must bear.
    pub(crate) server_name: String,
    /// The names of the nodes of a cluster, which the connections have in turn; empty: all have that name.
    pub(crate) node_names: Vec<String>,
    pub(crate) verify: Verify,
    /// The suites that are offered; `None`: all.
    pub(crate) suites: Option<Vec<SupportedCipherSuite>>,
    /// The only version; `None`: 1.2 and 1.3.
    pub(crate) version: Option<Version>,
    /// The client's certificates and the file of its key, which may be the same.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Whether a new connection resumes the session of an earlier one.
    pub(crate) resume: bool,
    /// The application protocols that are offered (ALPN).
    pub(crate) protocols: &'static [&'static str],
}

/// The authorities by which the server's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Those of the system.
    System,
    /// Those of files, and of directories in which each has its hash as its name (`openssl rehash`), with the options that
    /// name them.
    Files(Vec<(&'static str, PathBuf)>),
    /// None: any certificate is accepted.
    Nobody,
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tls12,
    Tls13,
}

impl Version {
    /// Returns the version's name, as OpenSSL spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        }
    }
}

/// The settings of a run, with the contents of their files.
#[derive(Clone)]
pub(super) struct Connector {
    config: ClientConfig,
    /// The names of the server, or of nodes that the connections have in turn.
    names: Vec<ServerName<'static>>,
    resume: bool,
    required: Option<&'static str>,
}

impl Connector {
    /// Reads the files. The error names the option and the defect.
    pub(super) fn new(plan: &TlsPlan) -> Result<Connector, String> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if let Some(suites) = &plan.suites {
            provider.cipher_suites.clone_from(suites);
        }
        let provider = Arc::new(provider);
        let versions: &[&SupportedProtocolVersion] = match plan.version {
            None => rustls::DEFAULT_VERSIONS,
            Some(Version::Tls12) => &[&rustls::version::TLS12],
            Some(Version::Tls13) => &[&rustls::version::TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| error.to_string())?;
        let authorities = match &plan.verify {
            Verify::System => Some(system_authorities()?),
            Verify::Files(paths) => Some(bundle(paths)?),
            Verify::Nobody => None,
        };
        // The call's name warns of verifiers that accept any certificate, as `--insecure` does.
        let verifier = Arc::new(Verifier::new(authorities));
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &plan.certificate {
            Some((chain, key)) => builder.with_client_cert_resolver(Arc::new(pem::pair("--cert", chain, key)?)),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = plan.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name =
            |name: &String| ServerName::try_from(name.clone()).map_err(|error| format!("--servername {name}: {error}"));
        let names = match plan.node_names.as_slice() {
            [] => vec![name(&plan.server_name)?],
            nodes => nodes.iter().map(name).collect::<Result<_, _>>()?,
        };
        // Without an answer to ALPN a server speaks HTTP/1.1.
        let required = plan.protocols.iter().find(|protocol| **protocol == "h2").copied();
        Ok(Connector { config, names, resume: plan.resume, required })
    }

    /// Returns the connector of a thread with so many connections: sessions are not shared between threads.
    pub(super) fn of_thread(&self, connections: usize) -> ThreadConnector {
        let mut config = self.config.clone();
        let tickets = if self.resume { connections.saturating_mul(TICKETS) } else { 0 };
        let tls12 = if self.resume { Tls12Resumption::SessionIdOrTickets } else { Tls12Resumption::Disabled };
        let sessions = Sessions { most: tickets, kept: Mutex::default() };
        config.resumption = Resumption::store(Arc::new(sessions)).tls12_resumption(tls12);
        ThreadConnector { config: Arc::new(config), names: self.names.clone(), required: self.required }
    }
}

/// The TLS configuration of one thread's connections.
pub(super) struct ThreadConnector {
    config: Arc<ClientConfig>,
    names: Vec<ServerName<'static>>,
    /// The application protocol without which the connection is of no use.
    required: Option<&'static str>,
}

impl ThreadConnector {
    /// Returns a connection, by its number, whose first message waits to be sent.
    pub(super) fn connection(&self, number: usize) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(self.config.clone(), self.names[number % self.names.len()].clone())
    }

    /// Returns why a connection with these parameters is of no use.
    pub(super) fn defect(&self, parameters: &Parameters) -> Option<String> {
        let required = self.required.filter(|required| parameters.protocol.as_deref() != Some(required.as_bytes()))?;
        Some(format!("the server did not choose the application protocol {required}"))
    }
}

/// The sessions that new connections of a thread may resume. All of them are the same server's.
struct Sessions {
    /// The number of TLS 1.3 tickets that are kept; 0: no session at all.
    most: usize,
    /// Only the thread that owns the configuration locks it.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("most", &self.most).finish_non_exhaustive()
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.kept().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        if self.most > 0 {
            self.kept().tls12 = Some(value);
        }
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept().tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.kept().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        if self.most == 0 {
            return;
        }
        let mut kept = self.kept();
        if kept.tls13.len() >= self.most {
            kept.tls13.pop_front();
        }
        kept.tls13.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.kept().tls13.pop_back()
    }
}

/// The outcome of a handshake: the negotiated parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    version: ProtocolVersion,
    suite: CipherSuite,
    /// A resumed TLS 1.2 session has no key exchange.
    group: Option<NamedGroup>,
    protocol: Option<Vec<u8>>,
}

impl Parameters {
    /// Returns the parameters of a connection and the kind of its handshake, which is complete.
    pub(super) fn of(connection: &ClientConnection) -> Option<(Parameters, HandshakeKind)> {
        let parameters = Parameters {
            version: connection.protocol_version()?,
            suite: connection.negotiated_cipher_suite()?.suite(),
            group: connection.negotiated_key_exchange_group().map(|group| group.name()),
            protocol: connection.alpn_protocol().map(<[u8]>::to_vec),
        };
        Some((parameters, connection.handshake_kind()?))
    }

    /// Returns the version, as OpenSSL spells it.
    pub(super) fn version(&self) -> String {
        match self.version {
            ProtocolVersion::TLSv1_2 => Version::Tls12.name().to_owned(),
            ProtocolVersion::TLSv1_3 => Version::Tls13.name().to_owned(),
            other => format!("{other:?}"),
        }
    }

    /// Returns the name of the cipher suite in the registry of IANA.
    pub(super) fn suite(&self) -> String {
        let name = format!("{:?}", self.suite);
        name.strip_prefix("TLS13_").map_or(name.clone(), |rest| format!("TLS_{rest}"))
    }

    /// Returns the name of the group of the key exchange, if there was one.
    pub(super) fn group(&self) -> Option<String> {
        self.group.map(|group| format!("{group:?}"))
    }

    /// Returns the negotiated application protocol.
    pub(super) fn protocol(&self) -> Option<String> {
        self.protocol.as_deref().map(|protocol| String::from_utf8_lossy(protocol).into_owned())
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.version(), self.suite())?;
        for part in [self.group(), self.protocol()].into_iter().flatten() {
            write!(f, " {part}")?;
        }
        Ok(())
    }
}

/// Returns the authorities of the system: those of `SSL_CERT_FILE` as for OpenSSL, else of the first known file.
fn system_authorities() -> Result<Bundle, String> {
    let path = match std::env::var_os("SSL_CERT_FILE") {
        Some(path) => Some(PathBuf::from(path)),
        None => SYSTEM_FILES.iter().map(PathBuf::from).find(|path| path.is_file()),
    };
    let Some(path) = path else {
        return Err(format!(
            "no authorities of the system: there is none of {}\n\nhint: --cacert FILE names authorities, --insecure \
             accepts any certificate",
            SYSTEM_FILES.join(", ")
        ));
    };
    authorities("the system's authorities", &path)
}

/// Returns the authorities of all files.
fn bundle(paths: &[(&'static str, PathBuf)]) -> Result<Bundle, String> {
    let mut all: Option<Bundle> = None;
    for (option, path) in paths {
        let files = if path.is_dir() { hashed(option, path)? } else { vec![path.clone()] };
        for file in files {
            let found = authorities(option, &file)?;
            match &mut all {
                Some(all) => all.certificates.extend(found.certificates),
                None => all = Some(found),
            }
        }
    }
    all.ok_or_else(|| "no file of authorities is named".to_owned())
}

/// Returns the files of a directory that OpenSSL would read: eight hexadecimal digits, a full stop and a number.
fn hashed(option: &str, directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |text: &str| format!("{option} {}: {text}", directory.display());
    let is_hash = |name: &str| {
        name.split_once('.').is_some_and(|(hash, number)| {
            let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
            is_number && hash.len() == 8 && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    };
    let entries = std::fs::read_dir(directory).map_err(|error| failed(&error.to_string()))?;
    let names = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_hash));
    let mut files: Vec<PathBuf> = names.map(|entry| entry.path()).collect();
    files.sort();
    match files.is_empty() {
        true => Err(failed("no certificate has its hash as its name\n\nhint: openssl rehash DIRECTORY")),
        false => Ok(files),
    }
}

fn authorities(option: &str, path: &Path) -> Result<Bundle, String> {
    let parse = |der: &CertificateDer<'_>| Certificate::from_der(der);
    let found: Result<Vec<_>, _> = pem::certificates(option, path)?.iter().map(parse).collect();
    let certificates = found.map_err(|error| format!("{option} {}: {error}", path.display()))?;
    let (path, crls) = (path.display().to_string(), Vec::new());
    Ok(Bundle { path, certificates, crls, digest: [0; 32], file_digest: None, ends_with_crl: false })
}

/// Verifies the server, unless `--insecure`: its chain by libcrypto, its name as RFC 6125 has it. Either way it has to hold
/// the private key of its certificate.
#[derive(Debug)]
struct Verifier {
    chain: ServerVerifier,
    is_verifying: bool,
}

impl Verifier {
    fn new(authorities: Option<Bundle>) -> Verifier {
        let is_verifying = authorities.is_some();
        let verify = if is_verifying { policy::Verify::Required } else { policy::Verify::None };
        let policy = Policy { verify: Some(verify), ca: authorities.map(Arc::new), ..Policy::default() };
        let settings = ServerSettings { policy, ..ServerSettings::default() };
        Verifier { chain: ServerVerifier::new(&settings), is_verifying }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        staple: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.is_verifying {
            // Without a name: HAProxy's comparison, which the chain's verifier makes, is laxer and skips addresses.
            let nameless = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            self.chain.verify_server_cert(certificate, others, &nameless, staple, now)?;
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
