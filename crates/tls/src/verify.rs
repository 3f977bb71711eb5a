//! Verification of the peer's chain by libcrypto, behind rustls's traits.
//!
//! [`ClientVerifier`] is `verify` of a `bind` line, [`ServerVerifier`] that of a `server` line. Both build the chain by
//! `X509_verify_cert`, so codes and depths are OpenSSL's; errors that `ca-ignore-err` or `crt-ignore-err` list do not end
//! the handshake, as in HAProxy's callback. Signatures of the handshake are verified without webpki, so X.509 v1
//! certificates pass.
//!
//! # The outcome of a connection
//!
//! rustls shares a verifier among connections and passes it nothing about them. A verifier therefore leaves the
//! [`Outcome`] in a thread-local variable. The owner of a connection keeps a slot for it, and calls rustls only by
//! [`within`], which moves the slot's content to the variable and back: `process_new_packets`, and
//! `Accepted::into_connection`, which processes the client's hello.
//!
//! Tickets and stored sessions must carry the [`Verdict`]. rustls makes them while it processes the packets in which the
//! peer's certificate came, before a caller could set resumption data; so it is the ticketer or the store of sessions
//! that adds [`current`]'s verdict in front of rustls's bytes, and calls [`resume`] when it reads one. A verdict of a
//! session that rustls then declines stays behind: `handshake_kind` decides whether an outcome with `resumed` counts.
//!
//! A ticket of one verifier must not resume a session of another verifier, which may request other certificates or
//! none: tickets are bound to [`ClientVerifier::fingerprint`].
//!
//! # Alerts
//!
//! rustls chooses the alert by the kind of error. `Failure::error` returns the kind whose alert is OpenSSL's for the
//! code; its text may not fit, so logs print the code of the outcome. OpenSSL's `internal_error` has no kind and becomes
//! `certificate_unknown`.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::SignatureScheme as Scheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved};

use crate::policy::{Ignored, Policy, ServerSettings, Verify};
use crate::signing::{self, SCHEMES};
use crate::x509::{Bundle, Certificate, Purpose, Store, codes};

/// The result of a verification for fetches and logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The last error, even if it was ignored; 0: none (`ssl_c_verify`).
    pub result: i32,
    /// The first error of the peer's certificate, even if it was ignored; 0: none (`ssl_c_err`).
    pub code: i32,
    /// The first error of a certificate above the peer's; 0: none (`ssl_c_ca_err`).
    pub ca_code: i32,
    /// The depth of that error, 15 at most (`ssl_c_ca_err_depth`).
    pub ca_depth: u32,
}

/// The version of [`Verdict::to_bytes`].
const VERDICT_VERSION: u8 = 1;

impl Verdict {
    /// Returns the form in a stored session or a ticket.
    pub fn to_bytes(self) -> [u8; 5] {
        let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        [VERDICT_VERSION, byte(self.result), byte(self.code), byte(self.ca_code), self.ca_depth.min(15) as u8]
    }

    /// Parses [`Verdict::to_bytes`]; `None` if it is of another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [VERDICT_VERSION, result, code, ca_code, ca_depth] => Some(Verdict {
                result: result.into(),
                code: code.into(),
                ca_code: ca_code.into(),
                ca_depth: ca_depth.into(),
            }),
            _ => None,
        }
    }
}

/// The reason why a verifier ended a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer's certificate: the code of the error.
    Certificate(i32),
    /// A certificate above the peer's: the code of the error.
    Authority(i32),
    /// The certificate is for other hosts than the name that was sent as SNI.
    MismatchSni,
    /// The certificate is for other hosts than `verifyhost`.
    Mismatch,
    /// The certificate lacks the name or the address of the engine.
    MismatchEngine,
    /// A certificate of the peer can't be parsed.
    Malformed,
}

/// The outcome of the verification of a connection's peer.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The errors.
    pub verdict: Verdict,
    /// Whether the verdict is that of the session that was resumed. Then only the certificates that rustls
    /// has stored exist.
    pub resumed: bool,
    /// The reason why the handshake ended; `None` if it continued.
    pub failure: Option<Failure>,
    /// The peer's certificate, even of a handshake that ended; `None` if it can't be parsed.
    pub leaf: Option<Certificate>,
    /// The other certificates that the peer sent.
    pub sent: Vec<Certificate>,
    /// The first self-issued certificate of the chain that was accepted, else the last one (`ssl_c_r_dn`). A resumed
    /// session does not have it.
    pub root: Option<Certificate>,
}

thread_local! {
    static OUTCOME: Cell<Option<Outcome>> = const { Cell::new(None) };
    /// The leaf that was verified last, with its DER form: rustls passes the same bytes with the signature.
    static LEAF: Cell<Option<(Vec<u8>, Certificate)>> = const { Cell::new(None) };
}

/// Calls rustls for a connection whose outcome is kept in `slot`.
pub fn within<R>(slot: &mut Option<Outcome>, process: impl FnOnce() -> R) -> R {
    OUTCOME.set(slot.take());
    let result = process();
    *slot = OUTCOME.take();
    result
}

/// Returns the verdict on the peer of the connection that this thread is processing. Called when its session is stored.
pub fn current() -> Option<Verdict> {
    let outcome = OUTCOME.take();
    let verdict = outcome.as_ref().map(|outcome| outcome.verdict);
    OUTCOME.set(outcome);
    verdict
}

/// Sets the verdict of a stored session. Called when a session is read while this thread processes a connection.
pub fn resume(verdict: Verdict) {
    OUTCOME.set(Some(Outcome { verdict, resumed: true, ..Outcome::default() }));
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Certificate(code) => write!(f, "certificate: {}", codes::text(*code)),
            Failure::Authority(code) => write!(f, "authority: {}", codes::text(*code)),
            Failure::MismatchSni => f.write_str("the certificate is not for the name sent as SNI"),
            Failure::Mismatch => f.write_str("the certificate is not for the name of verifyhost"),
            Failure::MismatchEngine => f.write_str("the certificate is not for the name or address of the server"),
            Failure::Malformed => f.write_str("the certificate can't be parsed"),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// Returns the code of the error for fetches.
    pub fn code(self) -> i32 {
        match self {
            Failure::Certificate(code) | Failure::Authority(code) => code,
            Failure::MismatchSni | Failure::Mismatch | Failure::MismatchEngine | Failure::Malformed => {
                codes::UNSPECIFIED
            }
        }
    }

    /// Returns rustls's error, of the kind that has OpenSSL's alert for the code.
    fn error(self) -> Error {
        use CertificateError as Kind;
        let code = match self {
            Failure::Certificate(code) | Failure::Authority(code) => code,
            Failure::Malformed => return Kind::BadEncoding.into(),
            Failure::MismatchEngine => return Kind::NotValidForName.into(),
            Failure::MismatchSni | Failure::Mismatch => return Kind::Other(OtherError(Arc::new(self))).into(),
        };
        match code {
            // unknown_ca: issuers, their revocation lists, chains that are too long.
            2 | 3 | 18..=22 | 25 | 33 | 79 => Kind::UnknownIssuer.into(),
            // certificate_expired, for certificates and for lists.
            10 | 12 => Kind::Expired.into(),
            // certificate_revoked.
            23 => Kind::Revoked.into(),
            // unsupported_certificate.
            26 => Kind::InvalidPurpose.into(),
            // decrypt_error.
            7 | 8 => Kind::BadSignature.into(),
            // bad_certificate: not yet valid, malformed fields, not trusted, names, keys that are too small.
            4..=6 | 9 | 11 | 13..=16 | 27 | 28 | 62..=68 | 94 => Kind::BadEncoding.into(),
            // handshake_failure.
            50 => Error::General(self.to_string()),
            // certificate_unknown.
            _ => Kind::Other(OtherError(Arc::new(self))).into(),
        }
    }
}

/// Returns the schemes of a setting that can be verified here, in its order.
fn schemes(setting: Option<&Arc<[Scheme]>>) -> Vec<Scheme> {
    match setting {
        Some(setting) => setting.iter().copied().filter(|scheme| SCHEMES.contains(scheme)).collect(),
        None => SCHEMES.to_vec(),
    }
}

/// Verifies the signature of a handshake.
fn verify_signature(
    schemes: &[Scheme],
    is_tls13: bool,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let algorithm = schemes.contains(&signed.scheme).then(|| signing::algorithm(signed.scheme, is_tls13)).flatten();
    let algorithm = algorithm.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let certificate = match LEAF.take() {
        Some((der, leaf)) if der == **certificate => leaf,
        _ => Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?,
    };
    if certificate.verify_signature(algorithm, message, signed.signature()) {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}

/// Parses the certificates of a peer; `None` if one is malformed.
fn parse(leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Option<(Certificate, Vec<Certificate>)> {
    let certificate = Certificate::from_der(leaf).ok()?;
    let others: Result<_, _> = others.iter().map(|der| Certificate::from_der(der)).collect();
    LEAF.set(Some((leaf.to_vec(), certificate.clone())));
    Some((certificate, others.ok()?))
}

/// Sets the outcome for certificates that can't be parsed, and returns the error.
fn malformed() -> Error {
    let verdict = Verdict { result: codes::UNSPECIFIED, ..Verdict::default() };
    let failure = Some(Failure::Malformed);
    OUTCOME.set(Some(Outcome { verdict, failure, ..Outcome::default() }));
    Failure::Malformed.error()
}

/// Returns the root of a chain.
fn root(chain: &[Certificate]) -> Option<Certificate> {
    chain.iter().find(|certificate| certificate.issued(certificate)).or(chain.last()).cloned()
}

/// Returns seconds since 1970.
fn seconds(now: UnixTime) -> i64 {
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// The trusted certificates and revocation lists of a policy. Those of `crl-file` are trusted, too, as in HAProxy.
fn store(policy: &Policy) -> Store {
    let bundles = [&policy.ca, &policy.ca_verify, &policy.crl];
    Store::new(bundles.into_iter().flatten().map(|bundle| &**bundle), policy.crl.is_some())
}

/// `verify` of a `bind` line or of a line of a `crt-list`: verifies clients.
#[derive(Debug)]
pub struct ClientVerifier {
    verify: Verify,
    store: Store,
    hints: Vec<DistinguishedName>,
    schemes: Vec<Scheme>,
    fingerprint: [u8; 32],
    ca_ignored: Ignored,
    crt_ignored: Ignored,
}

/// The maximum size of the names of CAs in a message to a client, in bytes.
const HINTS_MAX_BYTES: usize = u16::MAX as usize - 1;

impl ClientVerifier {
    /// Returns the verifier of a complete policy, in which no setting is left to the bind line.
    pub fn new(policy: &Policy) -> Self {
        ClientVerifier {
            verify: policy.verify.unwrap_or_default(),
            store: store(policy),
            hints: policy.ca.as_deref().filter(|_| !policy.no_ca_names).map(hints).unwrap_or_default(),
            schemes: schemes(policy.client_sigalgs.as_ref().or(policy.sigalgs.as_ref())),
            fingerprint: fingerprint(policy),
            ca_ignored: policy.ca_ignored.clone(),
            crt_ignored: policy.crt_ignored.clone(),
        }
    }

    /// Returns a digest of the settings that determine the requested and accepted certificates; tickets are bound to
    /// it.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

/// Returns a digest of the settings that determine the requested and accepted certificates.
fn fingerprint(policy: &Policy) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&[match policy.verify.unwrap_or_default() {
        Verify::None => 0,
        Verify::Optional => 1,
        Verify::Required => 2,
    }]);
    for bundle in [&policy.ca, &policy.ca_verify, &policy.crl] {
        context.update(&bundle.as_ref().map_or([0; 32], |bundle| bundle.digest));
    }
    for ignored in [&policy.ca_ignored, &policy.crt_ignored] {
        let codes = match ignored {
            Ignored::None => &[][..],
            Ignored::All => &[-1],
            Ignored::Codes(codes) => codes,
        };
        context.update(&(codes.len() as u64).to_le_bytes());
        for code in codes {
            context.update(&code.to_le_bytes());
        }
    }
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Returns the names of authorities for clients. None are returned if they do not fit into a message: a client then
/// sends any certificate that it has.
fn hints(ca: &Bundle) -> Vec<DistinguishedName> {
    let subjects = ca.subjects();
    let bytes: usize = subjects.iter().map(|subject| subject.len() + 2).sum();
    if bytes > HINTS_MAX_BYTES {
        return Vec::new();
    }
    subjects.into_iter().filter(|subject| !subject.is_empty()).map(DistinguishedName::from).collect()
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.verify != Verify::None
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verify == Verify::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let (leaf, sent) = parse(end_entity, intermediates).ok_or_else(malformed)?;
        let mut verdict = Verdict::default();
        let mut failure = None;
        let verification = self.store.verify(&leaf, &sent, Purpose::Client, seconds(now), &mut |code, depth| {
            let ignored = if depth > 0 {
                if verdict.ca_code == codes::OK {
                    (verdict.ca_code, verdict.ca_depth) = (code, depth.min(15));
                }
                self.ca_ignored.contains(code)
            } else {
                if verdict.code == codes::OK {
                    verdict.code = code;
                }
                self.crt_ignored.contains(code)
            };
            if !ignored {
                failure = Some(if depth > 0 { Failure::Authority(code) } else { Failure::Certificate(code) });
            }
            ignored
        });
        verdict.result = verification.code;
        if !verification.accepted && failure.is_none() {
            failure = Some(Failure::Certificate(verification.code));
        }
        let root = failure.is_none().then(|| root(&verification.chain)).flatten();
        OUTCOME.set(Some(Outcome { verdict, resumed: false, failure, leaf: Some(leaf), sent, root }));
        failure.map_or_else(|| Ok(ClientCertVerified::assertion()), |failure| Err(failure.error()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.schemes, false, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.schemes, true, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<Scheme> {
        self.schemes.clone()
    }
}

/// `verify` of a `server` line: verifies servers.
#[derive(Debug)]
pub struct ServerVerifier {
    /// `None`: `verify none`.
    store: Option<Store>,
    verify_host: Option<Arc<str>>,
    is_engine: bool,
    schemes: Vec<Scheme>,
}

impl ServerVerifier {
    /// Returns the verifier of a `server` line. A connection's name, which rustls sends as SNI, is compared with the
    /// certificate. A connection without SNI has an address instead of a name; then `verifyhost` is compared, if it is
    /// set. An engine's certificate must have the name or address in any case.
    pub fn new(settings: &ServerSettings) -> Self {
        let policy = &settings.policy;
        let store = (policy.verify.unwrap_or_default() != Verify::None).then(|| store(policy));
        if let Some(store) = store.as_ref().filter(|_| settings.is_engine) {
            store.trust_intermediates();
        }
        ServerVerifier {
            store,
            verify_host: settings.verify_host.clone(),
            is_engine: settings.is_engine,
            schemes: schemes(policy.sigalgs.as_ref()),
        }
    }

    /// Returns the reason why a chain is not accepted, if any, with the verdict and the root.
    fn judge(
        &self,
        store: &Store,
        (leaf, sent): (&Certificate, &[Certificate]),
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> (Verdict, Option<Failure>, Option<Certificate>) {
        let mut verdict = Verdict::default();
        let mut failure = None;
        let verification = store.verify(leaf, sent, Purpose::Server, seconds(now), &mut |code, depth| {
            if depth > 0 {
                (verdict.ca_code, verdict.ca_depth) = (code, depth.min(15));
                failure = Some(Failure::Authority(code));
            } else {
                verdict.code = code;
                failure = Some(Failure::Certificate(code));
            }
            false
        });
        verdict.result = verification.code;
        if !verification.accepted {
            return (verdict, failure.or(Some(Failure::Certificate(verification.code))), None);
        }
        let mismatch = match (server_name, self.verify_host.as_deref()) {
            _ if self.is_engine => (!leaf.is_for_server(server_name)).then_some(Failure::MismatchEngine),
            (ServerName::DnsName(name), _) => (!leaf.is_for_host(name.as_ref())).then_some(Failure::MismatchSni),
            (_, Some(host)) => (!leaf.is_for_host(host)).then_some(Failure::Mismatch),
            (_, None) => None,
        };
        if mismatch.is_some() {
            verdict.result = codes::UNSPECIFIED;
        }
        let root = root(&verification.chain);
        (verdict, mismatch, root)
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (leaf, sent) = parse(end_entity, intermediates).ok_or_else(malformed)?;
        let (verdict, failure, root) = match &self.store {
            Some(store) => self.judge(store, (&leaf, &sent), server_name, now),
            None => (Verdict::default(), None, None),
        };
        // Clients of engines print rustls's text, which contains the expected and the present names.
        let mismatch = (failure == Some(Failure::MismatchEngine)).then(|| CertificateError::NotValidForNameContext {
            expected: server_name.to_owned(),
            presented: leaf.presented_names(),
        });
        OUTCOME.set(Some(Outcome { verdict, resumed: false, failure, leaf: Some(leaf), sent, root }));
        match (failure, mismatch) {
            (None, _) => Ok(ServerCertVerified::assertion()),
            (Some(_), Some(mismatch)) => Err(mismatch.into()),
            (Some(failure), None) => Err(failure.error()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.schemes, false, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.schemes, true, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<Scheme> {
        self.schemes.clone()
    }
}

#[cfg(test)]
mod tests;
