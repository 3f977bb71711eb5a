//! The key of an account: signed requests (JWS, RFC 7515) and its thumbprint (RFC 7638).

use aws_lc_rs::digest::{self, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair};
use sluicegate_tls::x509::{Curve, KeyType, PrivateKey};

use crate::sample::{Base64, append_json_string};

/// The key of an account.
pub(super) struct Account {
    key: Key,
    /// The public key as JSON, with its members in the order of their names.
    jwk: String,
}

enum Key {
    Rsa(rsa::KeyPair),
    Ecdsa(EcdsaKeyPair, &'static str),
}

/// Returns bytes in base64url without padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    String::from_utf8(Base64::Url.encode(bytes)).expect("base64 is ASCII")
}

/// Returns a text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    append_json_string(text, &mut out);
    out
}

impl Account {
    /// Creates the account from a private key: RSA, or ECDSA on the curve P-256, P-384 or P-521.
    ///
    /// # Errors
    /// Returns a message if the key can't sign.
    pub(super) fn new(key: &PrivateKey) -> Result<Account, String> {
        let unusable = || "the account's key can't sign: RSA or ECDSA (P-256, P-384, P-521) is needed".to_owned();
        let pkcs8 = key.to_pkcs8().ok_or_else(unusable)?;
        let ecdsa: (&'static EcdsaSigningAlgorithm, _, _, _) = match key.key_type() {
            KeyType::Rsa => {
                let pair = rsa::KeyPair::from_pkcs8(&pkcs8).map_err(|_| unusable())?;
                let (modulus, exponent) = rsa_numbers(pair.public_key().as_ref()).ok_or_else(unusable)?;
                let jwk = format!("{{\"e\":\"{}\",\"kty\":\"RSA\",\"n\":\"{}\"}}", base64(exponent), base64(modulus));
                return Ok(Account { key: Key::Rsa(pair), jwk });
            }
            KeyType::Ecdsa(Curve::P256) => (&signature::ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256", 32),
            KeyType::Ecdsa(Curve::P384) => (&signature::ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384", 48),
            KeyType::Ecdsa(Curve::P521) => (&signature::ECDSA_P521_SHA512_FIXED_SIGNING, "ES512", "P-521", 66),
            _ => return Err(unusable()),
        };
        let (algorithm, name, curve, length) = ecdsa;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8).map_err(|_| unusable())?;
        let (x, y) = match pair.public_key().as_ref() {
            [4, point @ ..] if point.len() == 2 * length => point.split_at(length),
            _ => return Err(unusable()),
        };
        let (x, y) = (base64(x), base64(y));
        let jwk = format!("{{\"crv\":\"{curve}\",\"kty\":\"EC\",\"x\":\"{x}\",\"y\":\"{y}\"}}");
        Ok(Account { key: Key::Ecdsa(pair, name), jwk })
    }

    /// Returns the thumbprint of the public key, in base64.
    pub(super) fn thumbprint(&self) -> String {
        base64(digest(&digest::SHA256, self.jwk.as_bytes()).as_ref())
    }

    /// Returns the body of a signed request. `kid` is the account's URL; without it the public key stands in its place.
    ///
    /// # Errors
    /// Returns a message if the signature can't be made.
    pub(super) fn signed(&self, nonce: &str, url: &str, kid: Option<&str>, payload: &str) -> Result<String, String> {
        let identity = match kid {
            Some(kid) => format!("\"kid\":{}", quoted(kid)),
            None => format!("\"jwk\":{}", self.jwk),
        };
        let algorithm = match &self.key {
            Key::Rsa(_) => "RS256",
            Key::Ecdsa(_, name) => name,
        };
        let (nonce, url) = (quoted(nonce), quoted(url));
        let protected =
            base64(format!("{{\"alg\":\"{algorithm}\",{identity},\"nonce\":{nonce},\"url\":{url}}}").as_bytes());
        let payload = base64(payload.as_bytes());
        let signature = base64(&self.sign(format!("{protected}.{payload}").as_bytes())?);
        Ok(format!("{{\"protected\":\"{protected}\",\"payload\":\"{payload}\",\"signature\":\"{signature}\"}}"))
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        let random = SystemRandom::new();
        let failed = |_| "the account's key could not sign a request".to_owned();
        match &self.key {
            Key::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, text, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            Key::Ecdsa(pair, _) => {
                pair.sign(&random, text).map(|signature| signature.as_ref().to_vec()).map_err(failed)
            }
        }
    }
}

/// Returns modulus and exponent of an `RSAPublicKey` (RFC 8017) without leading zeros.
fn rsa_numbers(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (content, rest) = element(der, 0x30)?;
    let (modulus, after) = element(content, 0x02)?;
    let (exponent, end) = element(after, 0x02)?;
    let zeros = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == 0).count();
    (rest.is_empty() && end.is_empty()).then(|| (&modulus[zeros(modulus)..], &exponent[zeros(exponent)..]))
}

/// Returns the content of a DER element with this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        0x80 | 0x85.. => return None,
    };
    (*found == tag).then(|| rest.split_at_checked(length))?
}

#[cfg(test)]
mod tests {
    use sluicegate_tls::x509::NewKey;

    use super::*;

    #[test]
    fn requests_are_signed_with_the_key_that_they_name() {
        for (kind, algorithm, members) in [
            (NewKey::Rsa(2048), "RS256", "\"e\":\"AQAB\",\"kty\":\"RSA\",\"n\":\""),
            (NewKey::Ecdsa(Curve::P256), "ES256", "\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\""),
            (NewKey::Ecdsa(Curve::P384), "ES384", "\"crv\":\"P-384\",\"kty\":\"EC\",\"x\":\""),
            (NewKey::Ecdsa(Curve::P521), "ES512", "\"crv\":\"P-521\",\"kty\":\"EC\",\"x\":\""),
        ] {
            let key = PrivateKey::generate(kind).expect("a key");
            let account = Account::new(&key).expect("an account");
            assert!(account.jwk.starts_with(&format!("{{{members}")), "{}", account.jwk);
            assert_eq!(account.thumbprint().len(), 43);
            let body = account.signed("n\"1", "https://a/b", None, "{}").expect("a request");
            let part = |name: &str| {
                let (_, rest) = body.split_once(&format!("\"{name}\":\"")).expect("a member");
                rest.split('"').next().expect("a value").to_owned()
            };
            let protected = Base64::Url.decode(part("protected").as_bytes()).expect("base64");
            let protected = String::from_utf8(protected).expect("text");
            let jwk = &account.jwk;
            let expected =
                format!("{{\"alg\":\"{algorithm}\",\"jwk\":{jwk},\"nonce\":\"n\\\"1\",\"url\":\"https://a/b\"}}");
            assert_eq!(protected, expected);
            let text = format!("{}.{}", part("protected"), part("payload"));
            let signature = Base64::Url.decode(part("signature").as_bytes()).expect("base64");
            let verified = match &account.key {
                Key::Rsa(pair) => {
                    let key = pair.public_key().as_ref();
                    let key = signature::UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, key);
                    key.verify(text.as_bytes(), &signature)
                }
                Key::Ecdsa(pair, name) => {
                    let algorithm = match *name {
                        "ES256" => &signature::ECDSA_P256_SHA256_FIXED,
                        "ES384" => &signature::ECDSA_P384_SHA384_FIXED,
                        _ => &signature::ECDSA_P521_SHA512_FIXED,
                    };
                    let key = signature::UnparsedPublicKey::new(algorithm, pair.public_key().as_ref());
                    key.verify(text.as_bytes(), &signature)
                }
            };
            assert!(verified.is_ok(), "{algorithm}");
            let named = account.signed("n", "u", Some("https://a/1"), "").expect("a request");
            assert!(named.contains("\"payload\":\"\""), "{named}");
        }
    }

    #[test]
    fn the_thumbprint_is_that_of_rfc_7638() {
        // The public key of RFC 7638, section 3.1, as an `RSAPublicKey`.
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3\
                 oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZH\
                 zu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU\
                 8awapJzKnqDKgw";
        let modulus = Base64::Url.decode(n.as_bytes()).expect("base64");
        let mut der = vec![0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00];
        der.extend_from_slice(&modulus);
        der.extend_from_slice(&[0x02, 0x03, 1, 0, 1]);
        let (modulus, exponent) = rsa_numbers(&der).expect("a key");
        let jwk = format!("{{\"e\":\"{}\",\"kty\":\"RSA\",\"n\":\"{}\"}}", base64(exponent), base64(modulus));
        let thumbprint = base64(digest(&digest::SHA256, jwk.as_bytes()).as_ref());
        assert_eq!(thumbprint, "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
        for end in 0..der.len() {
            assert_eq!(rsa_numbers(&der[..end]), None, "{end}");
        }
    }
}
