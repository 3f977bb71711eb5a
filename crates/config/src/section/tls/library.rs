//! The interface to the crate `tls`: its input is texts and files, its output settings and HAProxy's messages.

use std::sync::Arc;

use sluicegate_tls::pair::{self, Issuers, Pair};
use sluicegate_tls::policy::Policy;
use sluicegate_tls::x509::{Bundle, Pool, Secret};
use sluicegate_tls::{Parsed, group, registry, scheme, suite};

/// A file by its path.
pub(super) type File = (String, Vec<u8>);

/// The data on which all certificates depend.
#[derive(Default)]
pub(super) struct Common {
    /// `ssl-skip-self-issued-ca`.
    pub(super) skip_self_issued: bool,
    /// `issuers-chain-path`.
    pub(super) issuers: Option<Arc<Issuers>>,
    /// The certificates of chains that have been read.
    pub(super) pool: Pool,
}

/// The files of one certificate.
#[derive(Default)]
pub(super) struct PairFiles {
    /// The path by which the certificate is known.
    pub(super) path: String,
    /// The file of this path: certificate, chain, and mostly the key.
    pub(super) pem: Secret,
    /// A file of the key.
    pub(super) key: Option<(String, Secret)>,
    /// Whether the file of the key was named, so that it replaces a key in the certificate's file.
    pub(super) key_wins: bool,
    /// The path at which a key was looked for.
    pub(super) key_sought: Option<String>,
    /// An OCSP response.
    pub(super) ocsp: Option<File>,
    /// The issuer, for OCSP.
    pub(super) issuer: Option<File>,
    /// The pass phrase of the key.
    pub(super) pass_phrase: Option<String>,
}

impl PairFiles {
    fn lent<'a>(&'a self, common: &'a Common) -> pair::PairFiles<'a> {
        fn file(file: &Option<File>) -> Option<(&str, &[u8])> {
            file.as_ref().map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
        }
        pair::PairFiles {
            path: &self.path,
            pem: &self.pem,
            key: self.key.as_ref().map(|(path, bytes)| (path.as_str(), &**bytes)),
            key_wins: self.key_wins,
            key_sought: self.key_sought.as_deref(),
            ocsp: file(&self.ocsp),
            issuer: file(&self.issuer),
            pass_phrase: self.pass_phrase.as_ref().map(String::as_bytes),
            issuers: common.issuers.as_deref(),
            pool: Some(&common.pool),
            skip_self_issued: common.skip_self_issued,
        }
    }

    /// Returns the digest of everything that the certificate depends on.
    pub(super) fn digest(&self, common: &Common) -> [u8; 32] {
        self.lent(common).digest()
    }

    /// Returns the certificate, whose files another process has parsed without an error.
    pub(super) fn checked(self, common: &Common) -> Pair {
        let digest = self.digest(common);
        let own = Common { issuers: common.issuers.clone(), pool: Pool::default(), ..*common };
        Pair::checked(self.path.clone(), digest, move || self.parse(&own))
    }

    /// Parses the certificate and its key.
    pub(super) fn parse(&self, common: &Common) -> Result<Pair, String> {
        Pair::parse(self.lent(common))
    }
}

/// The files of one `ca-file` or `crl-file`.
pub(super) struct Authorities {
    /// A file of which everything is used: that of the path, or the one beside the system's directory.
    pub(super) whole: Option<Vec<u8>>,
    /// A directory and the names and contents of its files, of which only the first certificate is used.
    pub(super) directory: Option<(String, Vec<File>)>,
}

impl Authorities {
    /// Returns the digest that the parsed files will have.
    pub(super) fn digest(&self) -> [u8; 32] {
        let files = self.directory.iter().flat_map(|(_, files)| files).map(|(_, bytes)| bytes);
        let contents: Vec<&[u8]> = self.whole.iter().chain(files).map(Vec::as_slice).collect();
        Bundle::digest(&contents)
    }

    /// Parses certificates and revocation lists; returns warnings with them.
    pub(super) fn parse(&self, path: &str) -> Result<(Bundle, Vec<String>), String> {
        let whole = self.whole.as_deref();
        if let Some((directory, files)) = &self.directory {
            let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
            return Ok(Bundle::parse_system(path, directory, &files, whole));
        }
        let parsed = Bundle::parse(path, whole.as_slice()).map_err(|message| {
            // Only the reason: the message around it contains the path.
            let reason = message.split_once(" (").and_then(|(_, reason)| reason.strip_suffix(")."));
            reason.unwrap_or(&message).to_owned()
        });
        parsed.map(|bundle| (bundle, Vec::new()))
    }
}

/// A word of a list that has no effect.
pub(super) struct Unused {
    pub(super) message: String,
    /// Whether OpenSSL knows it; recommended lists contain such words for old clients.
    pub(super) is_usual: bool,
}

fn set<T>(field: &mut Option<Arc<[T]>>, parsed: Result<Parsed<T>, String>, what: &str) -> Result<Vec<Unused>, String> {
    let Parsed { list, unknown } = parsed?;
    *field = Some(list);
    let unused = |word: String| {
        let message = if suite::is_system_policy(&word) {
            format!("'{word}' is read as 'DEFAULT': the system's policy is not known here")
        } else {
            format!("'{word}' has no effect: this {what} is not supported")
        };
        Unused { message, is_usual: registry::is_known(&word) }
    };
    Ok(unknown.into_iter().map(unused).collect())
}

/// Sets the suites of TLS 1.2; returns words without effect.
pub(super) fn ciphers(policy: &mut Policy, text: &str) -> Result<Vec<Unused>, String> {
    set(&mut policy.ciphers, suite::parse_tls12(text), "cipher suite")
}

/// Sets the suites of TLS 1.3; returns words without effect.
pub(super) fn ciphersuites(policy: &mut Policy, text: &str) -> Result<Vec<Unused>, String> {
    set(&mut policy.ciphersuites, suite::parse_tls13(text), "cipher suite")
}

/// Sets the groups; returns words without effect.
pub(super) fn groups(policy: &mut Policy, text: &str) -> Result<Vec<Unused>, String> {
    set(&mut policy.groups, group::parse(text), "group")
}

/// Sets the schemes of this side's signatures; returns words without effect.
pub(super) fn sigalgs(policy: &mut Policy, text: &str) -> Result<Vec<Unused>, String> {
    set(&mut policy.sigalgs, scheme::parse(text), "signature algorithm")
}

/// Sets the schemes of clients' signatures; returns words without effect.
pub(super) fn client_sigalgs(policy: &mut Policy, text: &str) -> Result<Vec<Unused>, String> {
    set(&mut policy.client_sigalgs, scheme::parse(text), "signature algorithm")
}
