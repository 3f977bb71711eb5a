//! Settings of TLS connections, as set by the keywords of `bind`, `server`, `crt-list` and `global`.

use std::sync::Arc;
use std::time::Duration;

use rustls::SupportedCipherSuite;
use rustls::crypto::SupportedKxGroup;

use crate::bulk::Bulk;
use crate::pair::Pair;
use crate::x509::{Bundle, Secret};

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// `verify`: whether the peer needs a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// No certificate is requested from a client; that of a server is not verified.
    #[default]
    None,
    /// A client may have no certificate; one that it sends must be valid.
    Optional,
    /// A valid certificate is needed.
    Required,
}

/// `ca-ignore-err`, `crt-ignore-err`: verification errors that do not end a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ignored {
    /// None.
    #[default]
    None,
    /// `all`.
    All,
    /// These `X509_V_ERR` numbers.
    Codes(Vec<i32>),
}

impl Ignored {
    /// Returns whether an error is ignored.
    pub fn contains(&self, code: i32) -> bool {
        match self {
            Ignored::None => false,
            Ignored::All => true,
            Ignored::Codes(codes) => codes.contains(&code),
        }
    }
}

/// The settings of one `bind` or `server` line, or of a line of a `crt-list`, whose `None`s mean the bind line's.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// `ssl-min-ver`.
    pub min: Option<Version>,
    /// `ssl-max-ver`.
    pub max: Option<Version>,
    /// `ciphers`: suites of TLS 1.2, in order of preference.
    pub ciphers: Option<Arc<[SupportedCipherSuite]>>,
    /// `ciphersuites`: suites of TLS 1.3, in order of preference.
    pub ciphersuites: Option<Arc<[SupportedCipherSuite]>>,
    /// `curves` or `ecdhe`.
    pub groups: Option<Arc<[&'static dyn SupportedKxGroup]>>,
    /// `sigalgs`: schemes with which this side signs.
    pub sigalgs: Option<Arc<[rustls::SignatureScheme]>>,
    /// `client-sigalgs`: schemes that a client may sign with.
    pub client_sigalgs: Option<Arc<[rustls::SignatureScheme]>>,
    /// `alpn`, in order of preference; empty after `no-alpn`.
    pub alpn: Option<Vec<Vec<u8>>>,
    /// `verify`.
    pub verify: Option<Verify>,
    /// `ca-file`: authorities that verify, and whose names are sent.
    pub ca: Option<Arc<Bundle>>,
    /// `ca-verify-file`: authorities that verify; the names of `ca-file` are sent.
    pub ca_verify: Option<Arc<Bundle>>,
    /// `crl-file`.
    pub crl: Option<Arc<Bundle>>,
    /// `no-ca-names`.
    pub no_ca_names: bool,
    /// `ca-ignore-err`: errors of certificates above the peer's.
    pub ca_ignored: Ignored,
    /// `crt-ignore-err`: errors of the peer's certificate.
    pub crt_ignored: Ignored,
}

/// A certificate among those of a `bind` line.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The certificate.
    pub pair: Arc<Pair>,
    /// The names that it answers for (`*.` and `!` as in a `crt-list`); `None`: those in the certificate.
    pub filters: Option<Vec<String>>,
    /// Settings of a line of a `crt-list`; those that it lacks are the bind line's.
    pub policy: Option<Policy>,
    /// Whether it answers for names without a certificate (`default-crt`). The first certificate of a line always does.
    pub is_default: bool,
    /// The file and line of the `crt-list`, or of the configuration.
    pub from: (Arc<str>, u32),
}

/// The sizes of the records that a connection sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordSizes {
    /// `tune.ssl.maxrecord`: the maximum plaintext of a record while the data is not a stream; 0: 16 KiB.
    pub first: usize,
    /// `tune.ssl.hard-maxrecord`: the maximum plaintext of any record; 0: 16 KiB.
    pub hard: usize,
    /// The bytes of a buffer.
    pub buffer: usize,
    /// The bytes that fill a buffer, without what is kept free in it.
    pub full: usize,
    /// `tune.idletimer`: the pause that ends a stream; 0: none does.
    pub idle: Duration,
}

/// `generate-certificates`: certificates are made for names that no certificate has.
#[derive(Clone, Debug)]
pub struct Generate {
    /// `ca-sign-file`: the authority that signs them.
    pub authority: Arc<Pair>,
    /// `tune.ssl.ssl-ctx-cache-size`: the number of certificates that are kept.
    pub kept: usize,
}

/// The TLS settings of one `bind` line.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The certificates, in order.
    pub entries: Bulk<Vec<Entry>>,
    /// The line's own settings; those that it lacks are those of `ssl-default-bind-*`.
    pub policy: Policy,
    /// `strict-sni`: clients whose name has no certificate are refused.
    pub strict_sni: bool,
    /// `generate-certificates`.
    pub generate: Option<Generate>,
    /// `prefer-client-ciphers`.
    pub prefer_client_ciphers: bool,
    /// `no-tls-tickets`.
    pub no_tickets: bool,
    /// `tls-ticket-keys`: the keys of the file, decoded, in its order.
    pub ticket_keys: Option<Arc<TicketKeyFile>>,
    /// The number of sessions that are stored, 0: none (`tune.ssl.cachesize`).
    pub cache_size: usize,
    /// The life of a session (`tune.ssl.lifetime`).
    pub lifetime: Duration,
    /// The number of bytes of a hello that is kept for fetches (`tune.ssl.capture-buffer-size`).
    pub capture: usize,
    /// The sizes of records.
    pub records: RecordSizes,
    /// Whether secrets are kept for fetches (`tune.ssl.keylog`).
    pub keylog: bool,
}

/// The TLS settings of one `server` line.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// The line's settings. `verify` has been decided.
    pub policy: Policy,
    /// `crt`: the certificate that is shown when the server asks.
    pub pair: Option<Arc<Pair>>,
    /// `verifyhost`: the name in the certificate, where no SNI is sent.
    pub verify_host: Option<Arc<str>>,
    /// Whether the rules of a client of engines apply, not HAProxy's: a verified server must have the connection's name
    /// or address among its alternative names, and every certificate of `ca` is trusted, even that of an intermediate
    /// CA.
    pub is_engine: bool,
    /// `no-ssl-reuse`: sessions are not resumed.
    pub no_reuse: bool,
    /// `no-tls-tickets`: sessions of TLS 1.2 are not resumed by tickets.
    pub no_tickets: bool,
    /// The sizes of records.
    pub records: RecordSizes,
    /// Whether secrets are kept for fetches.
    pub keylog: bool,
}

/// The content of a file of `tls-ticket-keys`.
///
/// The keys are overwritten when it is dropped, and not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKeyFile {
    /// The path as it was written.
    pub path: Arc<str>,
    /// Decoded keys, each of 48 or 80 bytes, all of one length; at least three.
    pub keys: Vec<Vec<u8>>,
}

impl std::fmt::Debug for TicketKeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketKeyFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for TicketKeyFile {
    fn drop(&mut self) {
        self.keys.drain(..).map(Secret::from).for_each(drop);
    }
}
