//! `acme` sections, and the certificates that they renew.

use std::fmt;
use std::sync::Arc;

use sluicegate_tls::x509::{NewKey, PrivateKey};

use super::Position;

/// An `acme` section: an account at an authority that issues certificates (RFC 8555).
#[derive(Clone, Debug)]
pub struct Acme {
    /// Its name.
    pub name: Arc<str>,
    /// Where it begins.
    pub at: Position,
    /// `directory`: the authority's URL.
    pub directory: String,
    /// `contact`: an e-mail address.
    pub contact: Option<String>,
    /// `account-key`, with `crt-base` before it; `NAME.account.key` by default.
    pub account_path: String,
    /// The key in that file; `None`: there is no file yet, and a start creates it.
    pub account_key: Option<PrivateKey>,
    /// `challenge`.
    pub challenge: Challenge,
    /// `keytype` with `bits` or `curves`: the kind of new keys.
    pub key: NewKey,
    /// `map`: the map of tokens and the thumbprint of the account's key.
    pub map: Option<String>,
}

/// The way by which control over a name is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// `HTTP-01`.
    Http,
    /// `DNS-01`.
    Dns,
}

impl fmt::Display for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Challenge::Http => "HTTP-01",
            Challenge::Dns => "DNS-01",
        })
    }
}

/// `acme` and `domains` of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeUse {
    /// The section's name.
    pub section: Arc<str>,
    /// The names of the new certificate; empty: it can't be renewed.
    pub domains: Arc<[String]>,
}
