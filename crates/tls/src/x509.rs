//! X.509 by libcrypto: certificates, lists of revoked ones, keys, and what fetches print of them.

/// The certificates and revocation lists of one file or directory (`ca-file`, `crl-file`).
#[derive(Debug)]
pub struct Bundle {
    /// The path as it was written, by which the runtime API knows it.
    pub path: String,
}
