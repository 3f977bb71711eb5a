//! Signature schemes of TLS, and private keys as rustls signs with them.

use std::fmt;

use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme as Scheme};

use crate::x509::{Algorithm, Curve, Hash, KeyType, PrivateKey};

/// The schemes that can be signed with and verified, in order of preference.
pub const SCHEMES: [Scheme; 10] = [
    Scheme::ECDSA_NISTP256_SHA256,
    Scheme::ECDSA_NISTP384_SHA384,
    Scheme::ECDSA_NISTP521_SHA512,
    Scheme::ED25519,
    Scheme::RSA_PSS_SHA256,
    Scheme::RSA_PSS_SHA384,
    Scheme::RSA_PSS_SHA512,
    Scheme::RSA_PKCS1_SHA256,
    Scheme::RSA_PKCS1_SHA384,
    Scheme::RSA_PKCS1_SHA512,
];

/// Returns the algorithm of a scheme. In TLS 1.2 a scheme only determines the hash: `ecdsa_secp256r1_sha256` is used
/// with any curve. TLS 1.3 has no PKCS #1 1.5 signatures.
pub fn algorithm(scheme: Scheme, is_tls13: bool) -> Option<Algorithm> {
    let curve = |curve| is_tls13.then_some(curve);
    Some(match scheme {
        Scheme::ECDSA_NISTP256_SHA256 => Algorithm::Ecdsa(Hash::Sha256, curve(Curve::P256)),
        Scheme::ECDSA_NISTP384_SHA384 => Algorithm::Ecdsa(Hash::Sha384, curve(Curve::P384)),
        Scheme::ECDSA_NISTP521_SHA512 => Algorithm::Ecdsa(Hash::Sha512, curve(Curve::P521)),
        Scheme::ED25519 => Algorithm::Ed25519,
        Scheme::RSA_PSS_SHA256 => Algorithm::RsaPss(Hash::Sha256),
        Scheme::RSA_PSS_SHA384 => Algorithm::RsaPss(Hash::Sha384),
        Scheme::RSA_PSS_SHA512 => Algorithm::RsaPss(Hash::Sha512),
        Scheme::RSA_PKCS1_SHA256 if !is_tls13 => Algorithm::RsaPkcs1(Hash::Sha256),
        Scheme::RSA_PKCS1_SHA384 if !is_tls13 => Algorithm::RsaPkcs1(Hash::Sha384),
        Scheme::RSA_PKCS1_SHA512 if !is_tls13 => Algorithm::RsaPkcs1(Hash::Sha512),
        _ => return None,
    })
}

/// A private key that signs handshakes.
#[derive(Clone, Debug)]
pub struct Key {
    key: PrivateKey,
    algorithm: SignatureAlgorithm,
}

impl Key {
    /// Returns a key as rustls signs with it; `None` if no scheme can.
    pub fn new(key: PrivateKey) -> Option<Self> {
        let algorithm = match key.key_type() {
            KeyType::Rsa => SignatureAlgorithm::RSA,
            KeyType::Ecdsa(_) => SignatureAlgorithm::ECDSA,
            KeyType::Ed25519 => SignatureAlgorithm::ED25519,
            KeyType::Dsa | KeyType::Other => return None,
        };
        let key = Key { key, algorithm };
        key.choose_scheme(&SCHEMES).is_some().then_some(key)
    }
}

impl SigningKey for Key {
    /// Chooses by the order of [`SCHEMES`]; rustls offers those of the peer that fit the version. The curve of ECDSA is
    /// that of the scheme in TLS 1.2, too.
    fn choose_scheme(&self, offered: &[Scheme]) -> Option<Box<dyn Signer>> {
        let is_usable = |scheme: &Scheme| {
            let is_tls13 = self.algorithm == SignatureAlgorithm::ECDSA;
            offered.contains(scheme)
                && algorithm(*scheme, is_tls13).is_some_and(|algorithm| self.key.can_sign(algorithm))
        };
        let scheme = SCHEMES.into_iter().find(is_usable)?;
        let algorithm = algorithm(scheme, false)?;
        Some(Box::new(HandshakeSigner { key: self.key.clone(), scheme, algorithm }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

/// A key with the scheme of one handshake.
struct HandshakeSigner {
    key: PrivateKey,
    scheme: Scheme,
    algorithm: Algorithm,
}

impl fmt::Debug for HandshakeSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandshakeSigner").field(&self.scheme).finish()
    }
}

impl Signer for HandshakeSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.key.sign(self.algorithm, message).ok_or_else(|| Error::General("signing failed".into()))
    }

    fn scheme(&self) -> Scheme {
        self.scheme
    }
}
