//! Signatures of handshakes: made with a private key, and verified with a certificate's.
//!
//! rustls's own functions parse certificates by webpki, which refuses X.509 v1; here the library that verified the chain
//! supplies the key. Its signing keys are made from DER, by a second parser and check of each key; here the key that was
//! read signs, which spares half of the time to load one, and a copy of a secret.

use aws_lc_sys as c;

use super::certificate::Certificate;
use super::key::{self, Curve, KeyType, PrivateKey};
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

/// The sizes of an RSA modulus that are accepted, in bits: the least is that of OpenSSL's security level 1.
pub const RSA_BITS: std::ops::RangeInclusive<u32> = 1024..=16384;

impl Algorithm {
    /// Returns the hash; none if the algorithm has its own.
    fn hash(self) -> Option<Hash> {
        match self {
            Algorithm::RsaPkcs1(hash) | Algorithm::RsaPss(hash) | Algorithm::Ecdsa(hash, _) => Some(hash),
            Algorithm::Ed25519 => None,
        }
    }

    /// Returns whether a key can make such a signature.
    ///
    /// # Safety
    ///
    /// `key` is valid.
    unsafe fn fits(self, key: *const c::EVP_PKEY) -> bool {
        // SAFETY: the key is valid.
        let (key_type, bits) = unsafe { (key::key_type(key), c::EVP_PKEY_bits(key).cast_unsigned()) };
        match (self, key_type) {
            (Algorithm::RsaPkcs1(_), KeyType::Rsa) => RSA_BITS.contains(&bits),
            // The encoding has the hash, a salt of the same length, and two bytes.
            (Algorithm::RsaPss(hash), KeyType::Rsa) => {
                RSA_BITS.contains(&bits) && bits.div_ceil(8) >= 2 * hash.bytes() + 2
            }
            (Algorithm::Ecdsa(_, curve), KeyType::Ecdsa(own)) => {
                own != Curve::Other && curve.is_none_or(|curve| curve == own)
            }
            (Algorithm::Ed25519, KeyType::Ed25519) => true,
            _ => false,
        }
    }

    /// Returns the library's hash, null if the algorithm has its own.
    fn digest(self) -> *const c::EVP_MD {
        // SAFETY: functions without arguments, which return constants.
        unsafe {
            match self.hash() {
                Some(Hash::Sha256) => c::EVP_sha256(),
                Some(Hash::Sha384) => c::EVP_sha384(),
                Some(Hash::Sha512) => c::EVP_sha512(),
                None => std::ptr::null(),
            }
        }
    }

    /// Sets the padding of RSA.
    ///
    /// # Safety
    ///
    /// `parameters` are those of a context that was made for the algorithm.
    unsafe fn set_padding(self, parameters: *mut c::EVP_PKEY_CTX) -> bool {
        // SAFETY: the parameters are valid.
        !matches!(self, Algorithm::RsaPss(_))
            || unsafe {
                c::EVP_PKEY_CTX_set_rsa_padding(parameters, c::RSA_PKCS1_PSS_PADDING) == 1
                    && c::EVP_PKEY_CTX_set_rsa_pss_saltlen(parameters, c::RSA_PSS_SALTLEN_DIGEST) == 1
            }
    }
}

impl Hash {
    /// Returns the length in bytes.
    fn bytes(self) -> u32 {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }
}

impl PrivateKey {
    /// Returns whether the key can make such a signature.
    pub fn can_sign(&self, algorithm: Algorithm) -> bool {
        // SAFETY: the key is valid.
        unsafe { algorithm.fits(self.as_ptr()) }
    }

    /// Signs a message; `None` if the key is of another type.
    pub fn sign(&self, algorithm: Algorithm, message: &[u8]) -> Option<Vec<u8>> {
        // SAFETY: the key is valid; the context is valid and new, and what it returns belongs to it; the buffer has the
        // most bytes that a signature of the key has, and slices are passed with their lengths.
        let signature = unsafe {
            let key = self.as_ptr();
            let context = Owned::new(c::EVP_MD_CTX_new()).filter(|_| algorithm.fits(key))?;
            let mut parameters = std::ptr::null_mut();
            let mut signature = vec![0; usize::try_from(c::EVP_PKEY_size(key)).ok()?];
            let mut length = signature.len();
            let made = c::EVP_DigestSignInit(context.as_ptr(), &mut parameters, algorithm.digest(), NULL.cast(), key)
                == 1
                && algorithm.set_padding(parameters)
                && c::EVP_DigestSign(
                    context.as_ptr(),
                    signature.as_mut_ptr(),
                    &mut length,
                    message.as_ptr(),
                    message.len(),
                ) == 1;
            signature.truncate(length);
            made.then_some(signature)
        };
        raw::clear();
        signature
    }
}

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
            let mut parameters = std::ptr::null_mut();
            algorithm.fits(key)
                && c::EVP_DigestVerifyInit(context.as_ptr(), &mut parameters, algorithm.digest(), NULL.cast(), key) == 1
                && algorithm.set_padding(parameters)
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
