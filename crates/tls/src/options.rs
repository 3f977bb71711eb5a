//! The rustls objects that result from the settings of a line, shared by all of its certificates with equal settings.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::server::{NoServerSessionStorage, ProducesTickets, ResolvesServerCert, StoresServerSessions};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, KeyLog, NamedGroup, ServerConfig, SignatureAlgorithm, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use crate::hello::{offers_tls12, offers_tls13};
use crate::pair::Pair;
use crate::policy::{Policy, Settings, Version};
use crate::resumption::{Context, Resumption, Sessions, Tickets};
use crate::verify::ClientVerifier;
use crate::{group, keylog, suite};

/// Returns the settings of a line of a `crt-list`; those that it lacks are the `bind` line's.
pub(crate) fn merged(line: Option<&Policy>, bind: &Policy) -> Policy {
    let Some(line) = line else { return bind.clone() };
    Policy {
        min: line.min.or(bind.min),
        max: line.max.or(bind.max),
        ciphers: line.ciphers.clone().or_else(|| bind.ciphers.clone()),
        ciphersuites: line.ciphersuites.clone().or_else(|| bind.ciphersuites.clone()),
        groups: line.groups.clone().or_else(|| bind.groups.clone()),
        sigalgs: line.sigalgs.clone().or_else(|| bind.sigalgs.clone()),
        client_sigalgs: line.client_sigalgs.clone().or_else(|| bind.client_sigalgs.clone()),
        alpn: line.alpn.clone().or_else(|| bind.alpn.clone()),
        verify: line.verify.or(bind.verify),
        ca: line.ca.clone().or_else(|| bind.ca.clone()),
        ca_verify: line.ca_verify.clone().or_else(|| bind.ca_verify.clone()),
        crl: line.crl.clone().or_else(|| bind.crl.clone()),
        no_ca_names: line.no_ca_names || bind.no_ca_names,
        // A `crt-list` has no words for these.
        ca_ignored: bind.ca_ignored.clone(),
        crt_ignored: bind.crt_ignored.clone(),
    }
}

/// Returns the versions that a policy enables.
pub(crate) fn versions(policy: &Policy) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    match (policy.min.unwrap_or(Version::Tls12), policy.max.unwrap_or(Version::Tls13)) {
        (Version::Tls12, Version::Tls13) => Ok(vec![&TLS13, &TLS12]),
        (Version::Tls12, Version::Tls12) => Ok(vec![&TLS12]),
        (Version::Tls13, Version::Tls13) => Ok(vec![&TLS13]),
        (Version::Tls13, Version::Tls12) => Err("all SSL/TLS versions are disabled".into()),
    }
}

/// Returns the suites of the versions, those of TLS 1.3 first as OpenSSL has them.
pub(crate) fn suites(policy: &Policy, versions: &[&SupportedProtocolVersion]) -> Vec<SupportedCipherSuite> {
    let mut suites = Vec::new();
    if versions.contains(&&TLS13) {
        match &policy.ciphersuites {
            Some(list) => suites.extend_from_slice(list),
            None => suites.extend(suite::default_tls13()),
        }
    }
    if versions.contains(&&TLS12) {
        match &policy.ciphers {
            Some(list) => suites.extend_from_slice(list),
            None => suites.extend(suite::default_tls12()),
        }
    }
    suites
}

/// Returns the groups, in order.
pub(crate) fn groups(policy: &Policy) -> Vec<&'static dyn SupportedKxGroup> {
    match &policy.groups {
        Some(list) => list.to_vec(),
        None => group::default().collect(),
    }
}

/// Returns a provider with these suites and groups.
pub(crate) fn provider(
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
) -> Arc<CryptoProvider> {
    let rest = rustls::crypto::aws_lc_rs::default_provider();
    Arc::new(CryptoProvider { cipher_suites: suites, kx_groups: groups, ..rest })
}

/// Returns the suites with those of ChaCha20 first, for a client without AES in hardware.
fn chacha_first(suites: &[SupportedCipherSuite]) -> Vec<SupportedCipherSuite> {
    let (mut first, rest): (Vec<_>, Vec<_>) = suites.iter().partition(|suite| suite::is_chacha(suite.suite()));
    first.extend(rest);
    first
}

/// The differences between configurations of one certificate that a client's first message decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Whether the client offers protocols, but none that this side has: the handshake continues without one.
    pub no_alpn: bool,
    /// Whether the client prefers ChaCha20.
    pub chacha: bool,
    /// The only group in the configuration, because rustls would follow the client's order.
    pub group: Option<NamedGroup>,
}

/// The parts that the configurations of one policy share.
struct Shared {
    versions: Vec<&'static SupportedProtocolVersion>,
    verifier: Arc<ClientVerifier>,
    tickets: Option<Arc<dyn ProducesTickets>>,
    sessions: Arc<dyn StoresServerSessions>,
    key_log: Arc<dyn KeyLog>,
    prefer_client: bool,
}

impl Shared {
    /// Returns a configuration without a certificate and without protocols of ALPN.
    fn config(&self, provider: Arc<CryptoProvider>) -> Result<ServerConfig, String> {
        let builder =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&self.versions).map_err(explain)?;
        let mut config =
            builder.with_client_cert_verifier(self.verifier.clone()).with_cert_resolver(Arc::new(NoCertificate));
        config.ignore_client_order = !self.prefer_client;
        config.session_storage = self.sessions.clone();
        if let Some(tickets) = &self.tickets {
            config.ticketer = tickets.clone();
        }
        config.key_log = self.key_log.clone();
        Ok(config)
    }
}

/// The objects that all certificates with equal settings share.
pub(crate) struct Options {
    pub policy: Policy,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
    shared: Shared,
    /// The configurations from which those of certificates are copied: with the server's order of suites, and with
    /// ChaCha20 first. Rustls's builder allocates tables that are dropped at once, so it runs for each policy and not
    /// for each certificate.
    templates: [ServerConfig; 2],
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Options {
    /// Returns the objects for a policy, which is complete, and the rest of the line's settings.
    pub fn new(policy: Policy, settings: &Settings, resumption: &Arc<Resumption>) -> Result<Options, String> {
        let versions = versions(&policy)?;
        let suites = suites(&policy, &versions);
        let groups = groups(&policy);
        let verifier = Arc::new(ClientVerifier::new(&policy));
        let context = Context(verifier.fingerprint());
        let lifetime = settings.lifetime;
        let tickets: Option<Arc<dyn ProducesTickets>> = match (&settings.ticket_keys, settings.no_tickets) {
            (_, true) => None,
            (None, false) => Some(Arc::new(Tickets::new(resumption.clone(), None, context, lifetime))),
            (Some(file), false) => {
                let ring = resumption.ring(file)?;
                Some(Arc::new(Tickets::new(resumption.clone(), Some(ring), context, lifetime)))
            }
        };
        let sessions: Arc<dyn StoresServerSessions> = match settings.cache_size {
            0 => Arc::new(NoServerSessionStorage {}),
            _ => Arc::new(Sessions::new(resumption.clone(), context, lifetime)),
        };
        let shared = Shared {
            versions,
            verifier,
            tickets,
            sessions,
            key_log: keylog::of(settings.keylog),
            prefer_client: settings.prefer_client_ciphers,
        };
        let template = |suites: Vec<_>| shared.config(provider(suites, groups.clone()));
        let templates = [template(suites.clone())?, template(chacha_first(&suites))?];
        Ok(Options { policy, suites, groups, shared, templates })
    }

    /// Returns whether a suite is enabled.
    pub fn has_suite(&self, suite: CipherSuite) -> bool {
        self.suites.iter().any(|mine| mine.suite() == suite)
    }

    /// Returns whether the certificate's key can sign for a client with these schemes.
    pub fn can_sign(&self, pair: &Pair, offered: &[SignatureScheme]) -> bool {
        let key = &pair.certified().key;
        match &self.policy.sigalgs {
            None => key.choose_scheme(offered).is_some(),
            Some(schemes) => choose_restricted(&**key, schemes, offered).is_some(),
        }
    }

    /// Returns whether the client offers a version that this side has.
    pub fn has_version(&self, hello: &rustls::server::ClientHello<'_>) -> bool {
        let is_offered = |version: &&'static SupportedProtocolVersion| match **version == TLS13 {
            true => offers_tls13(hello),
            false => offers_tls12(hello),
        };
        self.shared.versions.iter().any(is_offered)
    }

    /// Returns the variant for a client.
    pub fn variant(&self, hello: &rustls::server::ClientHello<'_>) -> Variant {
        let mine = self.policy.alpn.as_deref().unwrap_or_default();
        let no_alpn = !mine.is_empty()
            && hello.alpn().is_some_and(|mut theirs| !theirs.any(|theirs| mine.iter().any(|mine| mine == theirs)));
        let chacha = !self.shared.prefer_client && suite::prefers_chacha(hello.cipher_suites());
        Variant { no_alpn, chacha, group: self.group(hello) }
    }

    /// Returns whether a client that does not offer TLS 1.3 signals that it supports it, as this side does: somebody
    /// has disturbed its first handshake (RFC 7507). rustls does not check this signal.
    pub fn is_fallback(&self, hello: &rustls::server::ClientHello<'_>) -> bool {
        /// TLS_FALLBACK_SCSV.
        const SIGN: u16 = 0x5600;
        // With TLS 1.3 alone the version is refused anyway.
        self.shared.versions.len() > 1
            && hello.cipher_suites().iter().any(|suite| u16::from(*suite) == SIGN)
            && !offers_tls13(hello)
    }

    /// Returns the group that OpenSSL would choose if rustls would choose another one. In TLS 1.3 both follow the
    /// client's order, since it has sent a key share; in TLS 1.2 OpenSSL follows the server's order, as for suites.
    fn group(&self, hello: &rustls::server::ClientHello<'_>) -> Option<NamedGroup> {
        let theirs = hello.named_groups()?;
        let is_tls13 = |suite: &SupportedCipherSuite| suite.tls13().is_some();
        let may_be_tls13 =
            self.suites.iter().any(|mine| is_tls13(mine) && hello.cipher_suites().contains(&mine.suite()));
        if self.shared.prefer_client || may_be_tls13 {
            return None;
        }
        let usable = || self.groups.iter().filter(|group| group.usable_for_version(rustls::ProtocolVersion::TLSv1_2));
        let rustls = theirs.iter().find(|theirs| usable().any(|mine| mine.name() == **theirs))?;
        let openssl = usable().find(|mine| theirs.contains(&mine.name()))?.name();
        (openssl != *rustls).then_some(openssl)
    }

    /// Returns the configuration of a certificate.
    pub fn config(&self, pair: &Arc<Pair>, variant: Variant) -> Result<ServerConfig, String> {
        let template = &self.templates[usize::from(variant.chacha)];
        let mut config = match variant.group {
            None => template.clone(),
            Some(name) => {
                let groups = self.groups.iter().copied().filter(|group| group.name() == name).collect();
                self.shared.config(provider(template.crypto_provider().cipher_suites.clone(), groups))?
            }
        };
        config.cert_resolver = match &self.policy.sigalgs {
            None => Arc::new(Certificate(pair.clone())),
            Some(schemes) => Arc::new(Restricted { pair: pair.clone(), schemes: schemes.clone() }),
        };
        if !variant.no_alpn {
            config.alpn_protocols = self.policy.alpn.clone().unwrap_or_default();
        }
        Ok(config)
    }
}

/// The certificate of a template.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

/// Returns a text for an error of rustls about settings.
pub(crate) fn explain(error: rustls::Error) -> String {
    error.to_string()
}

/// A certificate with the staple that it has at the time of the handshake.
#[derive(Debug)]
struct Certificate(Arc<Pair>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }
}

/// A certificate whose key signs with some schemes alone, in their order: `sigalgs`.
#[derive(Debug)]
struct Restricted {
    pair: Arc<Pair>,
    schemes: Arc<[SignatureScheme]>,
}

impl ResolvesServerCert for Restricted {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(restricted(&self.pair, &self.schemes))
    }
}

/// Returns the certificate and signing key for rustls, restricted to schemes.
pub(crate) fn restricted(pair: &Pair, schemes: &Arc<[SignatureScheme]>) -> Arc<CertifiedKey> {
    let mut certified = CertifiedKey::clone(&pair.certified());
    certified.key = Arc::new(RestrictedKey { key: certified.key.clone(), schemes: schemes.clone() });
    Arc::new(certified)
}

/// Returns the signer of this side's first scheme that the client has and the key supports.
fn choose_restricted(
    key: &dyn SigningKey,
    schemes: &[SignatureScheme],
    offered: &[SignatureScheme],
) -> Option<Box<dyn Signer>> {
    let mut shared = schemes.iter().filter(|scheme| offered.contains(scheme));
    shared.find_map(|scheme| key.choose_scheme(&[*scheme]))
}

#[derive(Debug)]
struct RestrictedKey {
    key: Arc<dyn SigningKey>,
    schemes: Arc<[SignatureScheme]>,
}

impl SigningKey for RestrictedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        choose_restricted(&*self.key, &self.schemes, offered)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}
