//! FastCGI: what the rules of an application have set for a request, and the record of its parameters.

pub(crate) mod params;

use std::collections::BTreeMap;

/// The fields that are kept from applications unless `pass-header` names them.
const HIDDEN: [&[u8]; 10] = [
    b"authorization",
    b"connection",
    b"keep-alive",
    b"proxy",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"te",
    b"trailers",
    b"transfer-encoding",
    b"upgrade",
];

/// Settings of an application's rules for a request.
#[derive(Debug, Default)]
pub struct Parameters {
    /// Values by name, of `set-param`.
    pub(crate) values: BTreeMap<Box<[u8]>, Vec<u8>>,
    /// Fields of `pass-header`.
    pub(crate) passed: Vec<Box<[u8]>>,
}

impl Parameters {
    /// Returns whether a field of the request is kept from the application.
    pub(crate) fn hides(&self, name: &[u8]) -> bool {
        HIDDEN.contains(&name) && !self.passed.iter().any(|passed| **passed == *name)
    }
}
