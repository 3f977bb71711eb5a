//! Certificates: parsing, encoding, names, and how one relates to another.

use std::ffi::{c_int, c_long};
use std::fmt;

use aws_lc_sys as c;

use super::key::{self, KeyType, PrivateKey};
use super::raw::{self, NULL, Owned, Reader, Stack};

/// An X.509 certificate of any version. A clone is one more reference.
pub struct Certificate(Owned<c::X509>);

// SAFETY: the count of references is atomic; parsed certificates are not changed, and what the library caches in them
// is written under a lock of theirs.
unsafe impl Send for Certificate {}
// SAFETY: as above.
unsafe impl Sync for Certificate {}

impl Clone for Certificate {
    fn clone(&self) -> Self {
        // SAFETY: the certificate is valid.
        unsafe { Certificate::shared(self.as_ptr()) }
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: both certificates are valid.
        unsafe { c::X509_cmp(self.as_ptr(), other.as_ptr()) == 0 }
    }
}

impl Eq for Certificate {}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", String::from_utf8_lossy(&self.subject().one_line()))
    }
}

impl Certificate {
    /// Takes over a reference; `None` for a null pointer.
    ///
    /// # Safety
    ///
    /// `certificate` is null or valid, and the caller gives up its reference.
    pub(super) unsafe fn new(certificate: *mut c::X509) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe { Owned::new(certificate) }.map(Certificate)
    }

    /// Returns one more reference.
    ///
    /// # Safety
    ///
    /// `certificate` is valid.
    pub(super) unsafe fn shared(certificate: *mut c::X509) -> Self {
        // SAFETY: the certificate is valid; the new reference belongs to the result.
        unsafe {
            c::X509_up_ref(certificate);
            Certificate(Owned::new(certificate).expect("a certificate"))
        }
    }

    /// Returns the certificate for libcrypto's functions.
    pub(super) fn as_ptr(&self) -> *mut c::X509 {
        self.0.as_ptr()
    }

    /// Parses one certificate in DER, without anything after it. Errors are the library's reasons.
    pub fn from_der(der: &[u8]) -> Result<Self, String> {
        raw::clear();
        let mut input = der.as_ptr();
        let length = c_long::try_from(der.len()).map_err(|_| "too long".to_string())?;
        // SAFETY: `length` bytes are readable at the input, which moves behind what was parsed.
        let certificate = unsafe { Certificate::new(c::d2i_X509(std::ptr::null_mut(), &mut input, length)) };
        let certificate = certificate.ok_or_else(raw::reason)?;
        if input != der.as_ptr_range().end {
            return Err("bytes after the certificate".into());
        }
        Ok(certificate)
    }

    /// Reads the first certificate among the PEM blocks of `pem`. Errors are the library's reasons.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        read_first(&Reader::new(pem))
    }

    /// Reads the first certificate and those behind it: a leaf and its chain. Errors are the library's reasons.
    pub fn leaf_and_chain(pem: &[u8]) -> Result<(Self, Vec<Self>), ChainError> {
        let reader = Reader::new(pem);
        let leaf = read_first(&reader).map_err(ChainError::Leaf)?;
        let mut chain = Vec::new();
        loop {
            // SAFETY: the reader is valid; there is no pass phrase.
            let next = unsafe {
                Certificate::new(c::PEM_read_bio_X509(reader.as_ptr(), NULL.cast(), Some(raw::refuse), NULL))
            };
            match next {
                Some(certificate) => chain.push(certificate),
                None => match raw::error() {
                    Some((code, reason)) if !key::is_end_of_pem(code) => return Err(ChainError::Chain(reason)),
                    _ => return Ok((leaf, chain)),
                },
            }
        }
    }

    /// Returns the certificate in DER.
    pub fn to_der(&self) -> Vec<u8> {
        // SAFETY: the certificate is valid; `der` passes null or a buffer of the length that was returned.
        raw::der(|out| unsafe { c::i2d_X509(self.as_ptr(), out) }).expect("a parsed certificate has an encoding")
    }

    /// Returns the certificate as a PEM block.
    pub fn to_pem(&self) -> Vec<u8> {
        // SAFETY: the BIO and the certificate are valid.
        raw::printed(|bio| unsafe { c::PEM_write_bio_X509(bio, self.as_ptr()) })
            .expect("a parsed certificate has an encoding")
    }

    /// Returns the type of the public key; [`KeyType::Other`] if it can't be parsed.
    pub fn key_type(&self) -> KeyType {
        // SAFETY: the certificate is valid; the key belongs to it.
        unsafe {
            let key = c::X509_get0_pubkey(self.as_ptr());
            if key.is_null() {
                raw::clear();
                return KeyType::Other;
            }
            key::key_type(key)
        }
    }

    /// Returns the size of the public key in bits, 0 if it can't be parsed.
    pub fn key_bits(&self) -> u32 {
        // SAFETY: the certificate is valid; the key belongs to it.
        unsafe {
            let key = c::X509_get0_pubkey(self.as_ptr());
            if key.is_null() {
                raw::clear();
                return 0;
            }
            c::EVP_PKEY_bits(key).cast_unsigned()
        }
    }

    /// Returns whether the private key belongs to the certificate's public key.
    pub fn matches(&self, key: &PrivateKey) -> bool {
        // SAFETY: both are valid.
        let matches = unsafe { c::X509_check_private_key(self.as_ptr(), key.as_ptr()) == 1 };
        raw::clear();
        matches
    }

    /// Returns whether the certificate may have issued `other`: names, key identifiers and key usage fit. The signature
    /// is not verified.
    pub fn issued(&self, other: &Certificate) -> bool {
        // SAFETY: both are valid.
        let issued = unsafe { c::X509_check_issued(self.as_ptr(), other.as_ptr()) == c::X509_V_OK };
        raw::clear();
        issued
    }

    /// Returns the names that a server with this certificate answers for, as HAProxy finds them: the dNSNames, then the
    /// common names, in lower case and each once.
    pub fn server_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.dns_names().into_iter().chain(self.subject().common_names()) {
            let name = String::from_utf8_lossy(&name).to_ascii_lowercase();
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the dNSNames among the subject's alternative names.
    pub fn dns_names(&self) -> Vec<Vec<u8>> {
        let Some(names) = self.alternative_names() else {
            return Vec::new();
        };
        names
            .iter()
            .filter_map(|name| {
                // SAFETY: the stack owns valid names; the type says which member of the union is set.
                unsafe { if (*name).type_ == c::GEN_DNS { raw::utf8((*name).d.dNSName) } else { None } }
            })
            .collect()
    }

    /// Returns the subject's alternative names, if there are any that can be parsed.
    pub(super) fn alternative_names(&self) -> Option<Stack<c::GENERAL_NAME>> {
        // SAFETY: the extension of this number is a stack of general names, which the caller owns.
        unsafe { Stack::new(self.extension::<c::GENERAL_NAMES>(c::NID_subject_alt_name)) }
    }

    /// Returns the only extension of a number, decoded, or null. The caller owns it.
    pub(super) fn extension<T>(&self, nid: c_int) -> *mut T {
        // SAFETY: the certificate is valid; the flags are not asked for.
        let extension = unsafe { c::X509_get_ext_d2i(self.as_ptr(), nid, NULL.cast(), NULL.cast()) };
        raw::clear();
        extension.cast()
    }

    /// Returns the identifier of the certificate's key.
    pub fn subject_key_id(&self) -> Option<Vec<u8>> {
        // SAFETY: the extension of this number is an octet string, which the caller owns.
        unsafe {
            let id = Owned::new(self.extension::<c::ASN1_OCTET_STRING>(c::NID_subject_key_identifier))?;
            Some(raw::string(id.as_ptr()).to_vec())
        }
    }

    /// Returns the identifier of the issuer's key.
    pub fn authority_key_id(&self) -> Option<Vec<u8>> {
        // SAFETY: the extension of this number has this type, and the caller owns it with its members.
        unsafe {
            let id = Owned::new(self.extension::<c::AUTHORITY_KEYID>(c::NID_authority_key_identifier))?;
            let key = (*id.as_ptr()).keyid;
            (!key.is_null()).then(|| raw::string(key).to_vec())
        }
    }

    /// Returns the subject's name.
    pub fn subject(&self) -> super::name::Name<'_> {
        // SAFETY: the name belongs to the certificate.
        unsafe { super::name::Name::new(c::X509_get_subject_name(self.as_ptr())) }
    }

    /// Returns the issuer's name.
    pub fn issuer(&self) -> super::name::Name<'_> {
        // SAFETY: the name belongs to the certificate.
        unsafe { super::name::Name::new(c::X509_get_issuer_name(self.as_ptr())) }
    }
}

/// Reads one certificate. Errors are the library's reasons.
fn read_first(reader: &Reader<'_>) -> Result<Certificate, String> {
    raw::clear();
    // SAFETY: the reader is valid; there is no pass phrase.
    unsafe { Certificate::new(c::PEM_read_bio_X509_AUX(reader.as_ptr(), NULL.cast(), Some(raw::refuse), NULL)) }
        .ok_or_else(raw::reason)
}

/// The part of a PEM file that could not be read, with the library's reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// The first certificate.
    Leaf(String),
    /// One behind it.
    Chain(String),
}
