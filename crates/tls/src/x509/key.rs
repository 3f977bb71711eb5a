//! Private keys, and the types of public ones.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::fmt;

use aws_lc_sys as c;

use super::raw::{self, NULL, Owned, Reader};

/// The type of a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// RSA, also with the identifier of RSASSA-PSS.
    Rsa,
    /// A key on an elliptic curve.
    Ecdsa(Curve),
    /// DSA, for which TLS 1.2 and later have no use here.
    Dsa,
    /// Ed25519.
    Ed25519,
    /// Any other.
    Other,
}

/// A curve of ECDSA keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
    /// NIST P-521.
    P521,
    /// Any other.
    Other,
}

/// Returns the type of a key.
///
/// # Safety
///
/// `key` is valid.
pub(super) unsafe fn key_type(key: *const c::EVP_PKEY) -> KeyType {
    // SAFETY: the key is valid; what `get0` functions return belongs to it.
    unsafe {
        match c::EVP_PKEY_id(key) {
            c::EVP_PKEY_RSA | c::EVP_PKEY_RSA_PSS => KeyType::Rsa,
            c::EVP_PKEY_DSA => KeyType::Dsa,
            c::EVP_PKEY_ED25519 => KeyType::Ed25519,
            c::EVP_PKEY_EC => {
                let group = c::EC_KEY_get0_group(c::EVP_PKEY_get0_EC_KEY(key));
                KeyType::Ecdsa(match c::EC_GROUP_get_curve_name(group) {
                    c::NID_X9_62_prime256v1 => Curve::P256,
                    c::NID_secp384r1 => Curve::P384,
                    c::NID_secp521r1 => Curve::P521,
                    _ => Curve::Other,
                })
            }
            _ => KeyType::Other,
        }
    }
}

/// Secret bytes, overwritten when they are dropped.
#[derive(Default)]
pub struct Secret(Vec<u8>);

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Secret(bytes)
    }
}

impl std::ops::Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        raw::cleanse(&mut self.0);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A private key. libcrypto overwrites it when the last reference goes.
pub struct PrivateKey(Owned<c::EVP_PKEY>);

// SAFETY: the count of references is atomic, and no function here changes a key.
unsafe impl Send for PrivateKey {}
// SAFETY: as above.
unsafe impl Sync for PrivateKey {}

impl Clone for PrivateKey {
    fn clone(&self) -> Self {
        // SAFETY: the key is valid; the new reference belongs to the clone.
        unsafe {
            c::EVP_PKEY_up_ref(self.0.as_ptr());
            PrivateKey(Owned::new(self.0.as_ptr()).expect("not null"))
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.key_type()).finish()
    }
}

/// A private key that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// There is none among the PEM blocks.
    Missing,
    /// It is encrypted, and there was no pass phrase.
    Encrypted,
    /// It is malformed, or the pass phrase is wrong: the library's reason.
    Malformed(String),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Missing => f.write_str("no private key"),
            KeyError::Encrypted => f.write_str("encrypted private key: nothing can ask for the pass phrase"),
            KeyError::Malformed(reason) => f.write_str(reason),
        }
    }
}

impl PrivateKey {
    /// Reads the first private key among the PEM blocks of `pem`.
    pub fn from_pem(pem: &[u8], pass_phrase: Option<&[u8]>) -> Result<Self, KeyError> {
        raw::clear();
        let reader = Reader::new(pem);
        let mut request = Request { pass_phrase, unanswered: false };
        // SAFETY: the reader and the request outlive the call.
        let key = unsafe {
            let request = (&raw mut request).cast::<c_void>();
            Owned::new(c::PEM_read_bio_PrivateKey(reader.as_ptr(), std::ptr::null_mut(), Some(answer), request))
        };
        match key {
            Some(key) => Ok(PrivateKey(key)),
            None if request.unanswered => {
                raw::clear();
                Err(KeyError::Encrypted)
            }
            None => Err(match raw::error() {
                Some((code, _)) if raw::is_end_of_pem(code) => KeyError::Missing,
                Some((_, reason)) => KeyError::Malformed(reason),
                None => KeyError::Missing,
            }),
        }
    }

    /// Parses the content of a PEM block of this name; `None` if it is no private key, or an encrypted or malformed one.
    pub(super) fn from_block(name: &[u8], content: &[u8]) -> Option<Self> {
        let key_type = match name {
            b"PRIVATE KEY" => c::EVP_PKEY_NONE,
            b"RSA PRIVATE KEY" => c::EVP_PKEY_RSA,
            b"EC PRIVATE KEY" => c::EVP_PKEY_EC,
            b"DSA PRIVATE KEY" => c::EVP_PKEY_DSA,
            _ => return None,
        };
        let (mut input, null) = (content.as_ptr(), std::ptr::null_mut());
        let length = c_long::try_from(content.len()).ok()?;
        // SAFETY: `length` bytes are readable at the input; the results are the caller's.
        let key = unsafe {
            if key_type == c::EVP_PKEY_NONE {
                let info = Owned::new(c::d2i_PKCS8_PRIV_KEY_INFO(std::ptr::null_mut(), &mut input, length));
                info.and_then(|info| Owned::new(c::EVP_PKCS82PKEY(info.as_ptr())))
            } else {
                Owned::new(c::d2i_PrivateKey(key_type, null, &mut input, length))
            }
        };
        raw::clear();
        key.map(PrivateKey)
    }

    /// Returns the type.
    pub fn key_type(&self) -> KeyType {
        // SAFETY: the key is valid.
        unsafe { key_type(self.0.as_ptr()) }
    }

    /// Returns the size in bits: of the modulus of an RSA key, of the order of a curve.
    pub fn bits(&self) -> u32 {
        // SAFETY: the key is valid.
        unsafe { c::EVP_PKEY_bits(self.0.as_ptr()) }.cast_unsigned()
    }

    /// Returns the key as PKCS #8 in DER; `None` for types that have no such form.
    pub fn to_pkcs8(&self) -> Option<Secret> {
        // SAFETY: the key is valid.
        let info = unsafe { Owned::new(c::EVP_PKEY2PKCS8(self.0.as_ptr())) };
        let Some(info) = info else {
            raw::clear();
            return None;
        };
        // SAFETY: the structure is valid; `der` passes null or a buffer of the length that was returned.
        raw::der(|out| unsafe { c::i2d_PKCS8_PRIV_KEY_INFO(info.as_ptr(), out) }).map(Secret)
    }

    /// Returns the key as PEM.
    pub fn to_pem(&self) -> Option<Secret> {
        // SAFETY: the key and the BIO are valid; there is neither cipher nor pass phrase.
        raw::printed(|bio| unsafe {
            c::PEM_write_bio_PrivateKey(bio, self.0.as_ptr(), NULL.cast(), NULL.cast(), 0, None, NULL)
        })
        .map(Secret)
    }

    /// Takes over a key of libcrypto.
    pub(super) fn of(key: Owned<c::EVP_PKEY>) -> Self {
        PrivateKey(key)
    }

    /// Returns the key for libcrypto's functions.
    pub(super) fn as_ptr(&self) -> *mut c::EVP_PKEY {
        self.0.as_ptr()
    }
}

/// What [`answer`] knows.
struct Request<'a> {
    pass_phrase: Option<&'a [u8]>,
    unanswered: bool,
}

/// Writes the pass phrase to the buffer of `size` bytes and returns its length, or -1 if there is none.
///
/// # Safety
///
/// libcrypto passes a buffer of `size` bytes, and `request` as it was passed to the reader.
unsafe extern "C" fn answer(buffer: *mut c_char, size: c_int, _: c_int, request: *mut c_void) -> c_int {
    // SAFETY: `from_pem` passes a request that outlives the call, and nothing else uses it meanwhile.
    let request = unsafe { &mut *request.cast::<Request<'_>>() };
    let Some(phrase) = request.pass_phrase else {
        request.unanswered = true;
        return -1;
    };
    let Some(length) = c_int::try_from(phrase.len()).ok().filter(|&length| length <= size) else {
        return -1;
    };
    // SAFETY: the buffer has room for `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(phrase.as_ptr(), buffer.cast(), phrase.len()) }
    length
}
