//! Groups of the key exchange: lists in OpenSSL's syntax, mapped to the groups of rustls, and OpenSSL's names of
//! groups.
//!
//! The grammar is `SSL_CTX_set1_groups_list`'s: names in any case between `:` (or `/`, which separates levels of
//! preference in OpenSSL 3.5), `?` before a name that may be unknown, `-` before one that is removed, `*` before one
//! for which a key share is sent, which rustls decides itself. A group that OpenSSL knows and rustls lacks is reported
//! and left out; a name that neither knows is an error, as in HAProxy.

use rustls::NamedGroup;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group;

use crate::list::{Parsed, joined};

type Group = &'static dyn SupportedKxGroup;

/// A group: its names in `curves`, and the name that `ssl_fc_curve` prints.
struct Known {
    /// OpenSSL's short name.
    name: &'static str,
    also: &'static [&'static str],
    group: fn() -> Group,
}

static KNOWN: [Known; 7] = [
    Known { name: "X25519", also: &[], group: || kx_group::X25519 },
    Known { name: "prime256v1", also: &["P-256", "secp256r1"], group: || kx_group::SECP256R1 },
    Known { name: "secp384r1", also: &["P-384"], group: || kx_group::SECP384R1 },
    Known { name: "X25519MLKEM768", also: &[], group: || kx_group::X25519MLKEM768 },
    Known { name: "SecP256r1MLKEM768", also: &[], group: || kx_group::SECP256R1MLKEM768 },
    Known { name: "MLKEM768", also: &[], group: || kx_group::MLKEM768 },
    Known { name: "MLKEM1024", also: &[], group: || kx_group::MLKEM1024 },
];

/// Groups that OpenSSL has and rustls lacks.
static FOREIGN: &[&str] = &[
    "P-521",
    "secp521r1",
    "X448",
    "P-224",
    "secp224r1",
    "P-192",
    "secp192r1",
    "prime192v1",
    "secp256k1",
    "secp224k1",
    "secp192k1",
    "secp160k1",
    "secp160r1",
    "secp160r2",
    "sect163k1",
    "sect163r1",
    "sect163r2",
    "sect193r1",
    "sect193r2",
    "sect233k1",
    "sect233r1",
    "sect239k1",
    "sect283k1",
    "sect283r1",
    "sect409k1",
    "sect409r1",
    "sect571k1",
    "sect571r1",
    "brainpoolP256r1",
    "brainpoolP384r1",
    "brainpoolP512r1",
    "brainpoolP256r1tls13",
    "brainpoolP384r1tls13",
    "brainpoolP512r1tls13",
    "curveSM2",
    "curveSM2MLKEM768",
    "ffdhe2048",
    "ffdhe3072",
    "ffdhe4096",
    "ffdhe6144",
    "ffdhe8192",
    "MLKEM512",
    "SecP384r1MLKEM1024",
    "X448MLKEM1024",
];

/// Parses `curves` and `ecdhe`.
pub fn parse(text: &str) -> Result<Parsed<Group>, String> {
    let mut list: Vec<Group> = Vec::new();
    let mut unknown = Vec::new();
    for element in text.split([':', '/']).filter(|element| !element.is_empty()) {
        let word = element.trim_start_matches(['?', '*', '-']);
        let marks = &element[..element.len() - word.len()];
        let found = KNOWN.iter().find(|known| is_called(known, word)).map(|known| (known.group)());
        match found {
            Some(found) if marks.contains('-') => list.retain(|group| group.name() != found.name()),
            Some(found) if list.iter().any(|group| group.name() == found.name()) => {}
            Some(found) => list.push(found),
            None if word == "DEFAULT" => {
                for group in default() {
                    if list.iter().all(|listed| listed.name() != group.name()) {
                        list.push(group);
                    }
                }
            }
            None if marks.contains(['?', '-']) => {}
            None if FOREIGN.iter().any(|name| name.eq_ignore_ascii_case(word)) => unknown.push(element.to_owned()),
            None => return Err(format!("unknown curve '{word}' in '{text}'")),
        }
    }
    Parsed::of(list, unknown, || {
        let names = joined(KNOWN.iter().map(|known| known.name));
        format!("no curve of '{text}' is supported: there are only {names}")
    })
}

fn is_called(known: &Known, word: &str) -> bool {
    known.name.eq_ignore_ascii_case(word) || known.also.iter().any(|name| name.eq_ignore_ascii_case(word))
}

/// Returns the groups that are used where `curves` is not set, in order: those of OpenSSL before 3.5, then the hybrid
/// one.
pub fn default() -> impl Iterator<Item = Group> {
    KNOWN[..4].iter().map(|known| (known.group)())
}

/// Returns the name that `ssl_fc_curve` prints: OpenSSL's short name.
pub fn name(group: NamedGroup) -> Option<&'static str> {
    KNOWN.iter().find(|known| (known.group)().name() == group).map(|known| known.name)
}

/// Fuzz target: any bytes as a list of groups.
pub fn fuzz_groups(data: &[u8]) {
    if let Ok(parsed) = parse(&String::from_utf8_lossy(data)) {
        let names: Vec<_> = parsed.list.iter().map(|group| name(group.name()).unwrap()).collect();
        assert!(!names.is_empty() && names.len() <= KNOWN.len());
        let again = parse(&names.join(":")).unwrap();
        assert!(again.list.iter().map(|group| group.name()).eq(parsed.list.iter().map(|group| group.name())));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        parse(text).unwrap().list.iter().map(|group| name(group.name()).unwrap()).collect()
    }

    #[test]
    fn lists() {
        assert_eq!(names("X25519:P-256"), ["X25519", "prime256v1"]);
        assert_eq!(names("secp384r1:prime256v1:SECP256R1:x25519"), ["secp384r1", "prime256v1", "X25519"]);
        assert_eq!(names("?nothing:*X25519MLKEM768/X25519"), ["X25519MLKEM768", "X25519"]);
        assert_eq!(names("DEFAULT:-X25519"), ["prime256v1", "secp384r1", "X25519MLKEM768"]);
        let parsed = parse("X448:P-521:P-256:ffdhe2048").unwrap();
        assert_eq!(parsed.unknown, ["X448", "P-521", "ffdhe2048"]);
        assert_eq!(parse("P-257").err().unwrap(), "unknown curve 'P-257' in 'P-257'");
        assert!(parse("X448").err().unwrap().contains("there are only X25519, prime256v1"));
        assert!(parse("").is_err());
    }

    proptest! {
        #[test]
        fn fuzz_groups_holds(text in "([?*-]{0,1}(X25519|P-256|DEFAULT|x448|.)[:/]){0,6}") {
            fuzz_groups(text.as_bytes());
        }
    }
}
