//! Signatures of JSON web tokens (`jwt_verify`; RFC 7515, RFC 7518).
//!
//! A key is a secret for HMAC and the name of a file with a public key for RSA and ECDSA. The configuration's reader
//! reads every file named by a converter; a variable may contain the name of any of them, so they are kept by name for
//! the lifetime of the process. The content of a file changes with a reload.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use parking_lot::RwLock;

use super::super::base64::Base64;

use super::hash::DigestKind;

/// Public keys (SubjectPublicKeyInfo), by the name of their file.
type Keys = HashMap<Box<str>, Arc<[u8]>>;

/// The keys of every configuration that was read, including earlier ones.
static KEYS: LazyLock<RwLock<Keys>> = LazyLock::new(RwLock::default);

/// Stores the public key of a file.
pub(super) fn keep(file: &str, key: &Arc<[u8]>) {
    KEYS.write().insert(file.into(), key.clone());
}

/// The verdict about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Wrong = 0,
    Right = 1,
    UnknownAlgorithm = -1,
    InvalidToken = -3,
    UnknownKey = -5,
}

/// The family of an algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    None,
    Hmac,
    Pkcs1,
    Pss,
    Ecdsa,
}

fn algorithm(name: &[u8]) -> Option<(Family, DigestKind)> {
    if name == b"none" {
        return Some((Family::None, DigestKind::Sha256));
    }
    let family = match name.get(..2)? {
        b"HS" => Family::Hmac,
        b"RS" => Family::Pkcs1,
        b"PS" => Family::Pss,
        b"ES" => Family::Ecdsa,
        _ => return None,
    };
    Some(match &name[2..] {
        b"256" => (family, DigestKind::Sha256),
        b"384" => (family, DigestKind::Sha384),
        b"512" => (family, DigestKind::Sha512),
        _ => return None,
    })
}

/// Verifies a token's signature with an algorithm, which should not be taken from the token itself.
pub(super) fn verify(token: &[u8], name: &[u8], key: &[u8]) -> Verdict {
    let Some((family, digest)) = algorithm(name) else { return Verdict::UnknownAlgorithm };
    let parts: Vec<&[u8]> = token.splitn(4, |byte| *byte == b'.').collect();
    let (signature, signed) = match *parts {
        [header, payload, signature] => (signature, &token[..header.len() + 1 + payload.len()]),
        [_, _] if family == Family::None => return Verdict::Right,
        _ => return Verdict::InvalidToken,
    };
    if family == Family::None {
        return if signature.is_empty() { Verdict::Right } else { Verdict::Wrong };
    }
    let signature = match Base64::Url.decode(signature) {
        Some(signature) if !signature.is_empty() => signature,
        _ => return Verdict::InvalidToken,
    };
    if family == Family::Hmac {
        let expected = digest.keyed(key, signed);
        return if super::text::equal_in_constant_time(&expected, &signature) {
            Verdict::Right
        } else {
            Verdict::Wrong
        };
    }
    let found = std::str::from_utf8(key).ok().and_then(|name| KEYS.read().get(name).cloned());
    let Some(key) = found else { return Verdict::UnknownKey };
    let good = match family {
        Family::Ecdsa => {
            if signature.len() % 2 != 0 {
                return Verdict::InvalidToken;
            }
            let algorithm = ecdsa(&key, digest);
            algorithm.is_some_and(|algorithm| is_signed(algorithm, &key, signed, &asn1(&signature)))
        }
        _ => is_signed(rsa(family, digest), &key, signed, &signature),
    };
    if good { Verdict::Right } else { Verdict::Wrong }
}

fn is_signed(algorithm: &'static dyn VerificationAlgorithm, key: &[u8], signed: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(algorithm, key).verify(signed, signature).is_ok()
}

fn rsa(family: Family, digest: DigestKind) -> &'static dyn VerificationAlgorithm {
    match (family, digest) {
        (Family::Pss, DigestKind::Sha384) => &signature::RSA_PSS_2048_8192_SHA384,
        (Family::Pss, DigestKind::Sha512) => &signature::RSA_PSS_2048_8192_SHA512,
        (Family::Pss, _) => &signature::RSA_PSS_2048_8192_SHA256,
        (_, DigestKind::Sha384) => &signature::RSA_PKCS1_2048_8192_SHA384,
        (_, DigestKind::Sha512) => &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
        (_, _) => &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
    }
}

/// Returns the algorithm for the key's curve; as in HAProxy, the token's algorithm does not determine it.
fn ecdsa(key: &[u8], digest: DigestKind) -> Option<&'static dyn VerificationAlgorithm> {
    // Object identifiers of the curves, with their lengths.
    const P256: &[u8] = &[0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    const P384: &[u8] = &[0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
    const P521: &[u8] = &[0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];
    let head = &key[..key.len().min(32)];
    let is_of = |curve: &[u8]| head.windows(curve.len()).any(|window| window == curve);
    Some(match digest {
        DigestKind::Sha256 if is_of(P256) => &signature::ECDSA_P256_SHA256_ASN1,
        DigestKind::Sha384 if is_of(P256) => &signature::ECDSA_P256_SHA384_ASN1,
        DigestKind::Sha512 if is_of(P256) => &signature::ECDSA_P256_SHA512_ASN1,
        DigestKind::Sha256 if is_of(P384) => &signature::ECDSA_P384_SHA256_ASN1,
        DigestKind::Sha384 if is_of(P384) => &signature::ECDSA_P384_SHA384_ASN1,
        DigestKind::Sha512 if is_of(P384) => &signature::ECDSA_P384_SHA512_ASN1,
        DigestKind::Sha256 if is_of(P521) => &signature::ECDSA_P521_SHA256_ASN1,
        DigestKind::Sha384 if is_of(P521) => &signature::ECDSA_P521_SHA384_ASN1,
        DigestKind::Sha512 if is_of(P521) => &signature::ECDSA_P521_SHA512_ASN1,
        _ => return None,
    })
}

/// Encodes two integers of the same length, which follow each other in `pair`, as an ASN.1 sequence.
fn asn1(pair: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(pair.len() + 8);
    for number in [&pair[..pair.len() / 2], &pair[pair.len() / 2..]] {
        let digits = &number[number.iter().position(|byte| *byte != 0).unwrap_or(number.len())..];
        // A positive number whose first bit is set, and 0, begin with a zero byte.
        let zero = digits.first().is_none_or(|byte| byte & 0x80 != 0);
        body.push(2);
        append_length(digits.len() + usize::from(zero), &mut body);
        body.extend(zero.then_some(0));
        body.extend_from_slice(digits);
    }
    let mut sequence = vec![0x30];
    append_length(body.len(), &mut sequence);
    sequence.extend(body);
    sequence
}

fn append_length(length: usize, out: &mut Vec<u8>) {
    match length {
        0..=127 => out.push(length as u8),
        128..=255 => out.extend([0x81, length as u8]),
        _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_verified() {
        // RFC 7515, A.1 has a key of its own; this one is the best known example of HS256.
        let token = b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c";
        assert_eq!(verify(token, b"HS256", b"your-256-bit-secret"), Verdict::Right);
        assert_eq!(verify(token, b"HS256", b"another"), Verdict::Wrong);
        assert_eq!(verify(token, b"HS255", b"another"), Verdict::UnknownAlgorithm);
        assert_eq!(verify(token, b"none", b""), Verdict::Wrong);
        assert_eq!(verify(token, b"RS256", b"nothing.pem"), Verdict::UnknownKey);
        assert_eq!(verify(b"a.b", b"none", b""), Verdict::Right);
        assert_eq!(verify(b"a.b.", b"none", b""), Verdict::Right);
        for wrong in ["a.b", "a.b.", "a.b.c.d", "a", "", "a.b.!"] {
            assert_eq!(verify(wrong.as_bytes(), b"HS256", b"key"), Verdict::InvalidToken, "{wrong}");
        }
    }

    #[test]
    fn integers_are_positive() {
        assert_eq!(asn1(&[0x80, 0x01]), [0x30, 7, 2, 2, 0, 0x80, 2, 1, 1]);
        assert_eq!(asn1(&[0, 0, 0, 1]), [0x30, 6, 2, 1, 0, 2, 1, 1]);
    }
}
