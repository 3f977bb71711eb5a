//! Signature schemes: lists in OpenSSL's syntax (`sigalgs`, `client-sigalgs`), mapped to the schemes of rustls.
//!
//! The grammar is `SSL_CTX_set1_sigalgs_list`'s: the names of RFC 8446, or an algorithm and a digest with `+` between,
//! which select the first scheme of that pair. A scheme that OpenSSL knows and rustls lacks (SHA-1, DSA, Ed448) is
//! reported and left out; a name that neither knows is an error, as in HAProxy.

use rustls::SignatureScheme as Id;

use crate::list::{Parsed, joined};

/// A scheme: its number, name, and the pair that selects it.
struct Known {
    id: Id,
    name: &'static str,
    pair: (&'static str, &'static str),
}

const fn known(id: Id, name: &'static str, algorithm: &'static str, digest: &'static str) -> Known {
    Known { id, name, pair: (algorithm, digest) }
}

/// In OpenSSL's order of preference, which is the default. ML-DSA is last: OpenSSL has it since 3.5.
static KNOWN: [Known; 13] = [
    known(Id::ECDSA_NISTP256_SHA256, "ecdsa_secp256r1_sha256", "ECDSA", "SHA256"),
    known(Id::ECDSA_NISTP384_SHA384, "ecdsa_secp384r1_sha384", "ECDSA", "SHA384"),
    known(Id::ECDSA_NISTP521_SHA512, "ecdsa_secp521r1_sha512", "ECDSA", "SHA512"),
    known(Id::ED25519, "ed25519", "", ""),
    known(Id::RSA_PSS_SHA256, "rsa_pss_rsae_sha256", "RSA-PSS", "SHA256"),
    known(Id::RSA_PSS_SHA384, "rsa_pss_rsae_sha384", "RSA-PSS", "SHA384"),
    known(Id::RSA_PSS_SHA512, "rsa_pss_rsae_sha512", "RSA-PSS", "SHA512"),
    known(Id::RSA_PKCS1_SHA256, "rsa_pkcs1_sha256", "RSA", "SHA256"),
    known(Id::RSA_PKCS1_SHA384, "rsa_pkcs1_sha384", "RSA", "SHA384"),
    known(Id::RSA_PKCS1_SHA512, "rsa_pkcs1_sha512", "RSA", "SHA512"),
    known(Id::ML_DSA_44, "mldsa44", "", ""),
    known(Id::ML_DSA_65, "mldsa65", "", ""),
    known(Id::ML_DSA_87, "mldsa87", "", ""),
];

/// Schemes that OpenSSL has and rustls lacks.
static FOREIGN: &[&str] = &[
    "ed448",
    "rsa_pss_pss_sha256",
    "rsa_pss_pss_sha384",
    "rsa_pss_pss_sha512",
    "ecdsa_sha224",
    "ecdsa_sha1",
    "rsa_pkcs1_sha224",
    "rsa_pkcs1_sha1",
    "dsa_sha256",
    "dsa_sha384",
    "dsa_sha512",
    "dsa_sha224",
    "dsa_sha1",
    "ecdsa_brainpoolP256r1_sha256",
    "ecdsa_brainpoolP384r1_sha384",
    "ecdsa_brainpoolP512r1_sha512",
    "ecdsa_brainpoolP256r1tls13_sha256",
    "ecdsa_brainpoolP384r1tls13_sha384",
    "ecdsa_brainpoolP512r1tls13_sha512",
];

/// Parses `sigalgs` and `client-sigalgs`.
pub fn parse(text: &str) -> Result<Parsed<Id>, String> {
    let mut list = Vec::new();
    let mut unknown = Vec::new();
    for element in text.split(':').map(str::trim).filter(|element| !element.is_empty()) {
        let word = element.trim_start_matches('?');
        match find(word) {
            Some(Some(id)) if list.contains(&id) => {}
            Some(Some(id)) => list.push(id),
            Some(None) => unknown.push(word.to_owned()),
            None if word.len() < element.len() => {}
            None => return Err(format!("unknown signature algorithm '{word}' in '{text}'")),
        }
    }
    Parsed::of(list, unknown, || {
        let names = joined(KNOWN.iter().map(|scheme| scheme.name));
        format!("no signature algorithm of '{text}' is supported: there are only {names}")
    })
}

/// Returns the scheme of a word; `Some(None)` if only OpenSSL has it.
fn find(word: &str) -> Option<Option<Id>> {
    let Some((algorithm, digest)) = word.split_once('+') else {
        if let Some(found) = KNOWN.iter().find(|scheme| scheme.name == word) {
            return Some(Some(found.id));
        }
        return FOREIGN.contains(&word).then_some(None);
    };
    let algorithm = if algorithm == "PSS" { "RSA-PSS" } else { algorithm };
    let digest = digest.to_ascii_uppercase();
    let found = KNOWN.iter().find(|scheme| scheme.pair == (algorithm, digest.as_str()));
    if let Some(found) = found {
        return Some(Some(found.id));
    }
    let foreign = matches!(algorithm, "RSA" | "DSA" | "ECDSA")
        && matches!(digest.as_str(), "SHA1" | "SHA224" | "SHA256" | "SHA384" | "SHA512");
    foreign.then_some(None)
}

/// Returns the schemes that are used where `sigalgs` is not set, in order of preference.
pub fn default() -> impl Iterator<Item = Id> {
    KNOWN.iter().map(|scheme| scheme.id)
}

/// Fuzz target: any bytes as a list of schemes.
pub fn fuzz_schemes(data: &[u8]) {
    if let Ok(parsed) = parse(&String::from_utf8_lossy(data)) {
        assert!(!parsed.list.is_empty() && parsed.list.len() <= KNOWN.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists() {
        let parsed = parse("RSA-PSS+SHA256:ECDSA+SHA256:rsa_pss_rsae_sha256:PSS+sha384:ed25519").unwrap();
        assert_eq!(*parsed.list, [Id::RSA_PSS_SHA256, Id::ECDSA_NISTP256_SHA256, Id::RSA_PSS_SHA384, Id::ED25519]);
        assert!(parsed.unknown.is_empty());
        let parsed = parse("RSA+SHA1:DSA+SHA256:ed448:RSA+SHA512:?nothing").unwrap();
        assert_eq!((&*parsed.list, parsed.unknown.len()), (&[Id::RSA_PKCS1_SHA512][..], 3));
        assert_eq!(parse("RSA+MD6").err().unwrap(), "unknown signature algorithm 'RSA+MD6' in 'RSA+MD6'");
        assert!(parse("ed448").err().unwrap().contains("there are only ecdsa_secp256r1_sha256"));
        assert!(parse(":").is_err());
    }

    proptest! {
        #[test]
        fn fuzz_schemes_holds(text in "([?]{0,1}(RSA|PSS|DSA|ed25519|.)[+:](SHA256|sha1|.)[:]){0,6}") {
            fuzz_schemes(text.as_bytes());
        }
    }
}
