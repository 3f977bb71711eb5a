//! Signatures of handshakes, verified with a certificate's key.
//!
//! rustls's own functions parse the certificate by webpki, which refuses X.509 v1; here the library that verified the
//! chain supplies the key.

use aws_lc_sys as c;

use super::certificate::Certificate;
use super::key::{self, Curve, KeyType};
use super::raw::{self, NULL, Owned};

/// A hash of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// A kind of signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5.
    RsaPkcs1(Hash),
    /// RSASSA-PSS with a salt as long as the hash.
    RsaPss(Hash),
    /// ECDSA; a curve that is given must be the key's.
    Ecdsa(Hash, Option<Curve>),
    /// Ed25519.
    Ed25519,
}

/// The least RSA modulus that is accepted, in bits: that of OpenSSL's security level 1.
const RSA_MIN_BITS: i32 = 1024;

impl Certificate {
    /// Returns whether `signature` is one of `message` by the certificate's key. A key of another type is a failure.
    pub fn verify_signature(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        // SAFETY: the certificate is valid, and the key belongs to it; the context is valid and new, and what it
        // returns belongs to it; slices are passed with their lengths.
        let verified = unsafe {
            let key = c::X509_get0_pubkey(self.as_ptr());
            let Some(context) = Owned::new(c::EVP_MD_CTX_new()).filter(|_| !key.is_null()) else {
                raw::clear();
                return false;
            };
            let fits = match (algorithm, key::key_type(key)) {
                (Algorithm::RsaPkcs1(_) | Algorithm::RsaPss(_), KeyType::Rsa) => c::EVP_PKEY_bits(key) >= RSA_MIN_BITS,
                (Algorithm::Ecdsa(_, curve), KeyType::Ecdsa(own)) => {
                    own != Curve::Other && curve.is_none_or(|curve| curve == own)
                }
                (Algorithm::Ed25519, KeyType::Ed25519) => true,
                _ => false,
            };
            let digest = match algorithm {
                Algorithm::RsaPkcs1(hash) | Algorithm::RsaPss(hash) | Algorithm::Ecdsa(hash, _) => match hash {
                    Hash::Sha256 => c::EVP_sha256(),
                    Hash::Sha384 => c::EVP_sha384(),
                    Hash::Sha512 => c::EVP_sha512(),
                },
                Algorithm::Ed25519 => std::ptr::null(),
            };
            let mut parameters = std::ptr::null_mut();
            fits && c::EVP_DigestVerifyInit(context.as_ptr(), &mut parameters, digest, NULL.cast(), key) == 1
                && (!matches!(algorithm, Algorithm::RsaPss(_))
                    || c::EVP_PKEY_CTX_set_rsa_padding(parameters, c::RSA_PKCS1_PSS_PADDING) == 1
                        && c::EVP_PKEY_CTX_set_rsa_pss_saltlen(parameters, c::RSA_PSS_SALTLEN_DIGEST) == 1)
                && c::EVP_DigestVerify(
                    context.as_ptr(),
                    signature.as_ptr(),
                    signature.len(),
                    message.as_ptr(),
                    message.len(),
                ) == 1
        };
        raw::clear();
        verified
    }
}
