//! Certificates: parsing, encoding, names, and how one relates to another.

use std::collections::HashMap;
use std::ffi::{c_int, c_long};
use std::fmt;
use std::net::IpAddr;

use aws_lc_sys as c;
use parking_lot::Mutex;

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
        match parse(der, false, false)? {
            (certificate, length) if length == der.len() => Ok(certificate),
            _ => Err("bytes after the certificate".into()),
        }
    }

    /// Reads the first certificate among the PEM blocks of `pem`. Errors are the library's reasons.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        raw::clear();
        let reader = Reader::new(pem);
        loop {
            let certificate = reader.next_block(|name, is_encrypted, der| match name {
                b"CERTIFICATE" | b"X509 CERTIFICATE" | b"TRUSTED CERTIFICATE" => Some(parse(der, is_encrypted, true)),
                _ => None,
            })?;
            match certificate {
                Some(Some(certificate)) => return certificate.map(|(certificate, _)| certificate),
                Some(None) => {}
                None => return Err(END_OF_PEM.into()),
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

    /// Returns the addresses among the subject's alternative names.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let Some(names) = self.alternative_names() else {
            return Vec::new();
        };
        let of_name = |name: *mut c::GENERAL_NAME| {
            // SAFETY: the stack owns valid names; the type says which member of the union is set, and its string has
            // that many bytes.
            let bytes = unsafe {
                if (*name).type_ != c::GEN_IPADD {
                    return None;
                }
                let address = (*name).d.iPAddress.cast_const().cast::<c::ASN1_STRING>();
                let length = usize::try_from(c::ASN1_STRING_length(address)).ok().filter(|length| *length > 0)?;
                std::slice::from_raw_parts(c::ASN1_STRING_get0_data(address), length)
            };
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
        };
        names.iter().filter_map(of_name).collect()
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

/// OpenSSL's reason at the end of a file.
const END_OF_PEM: &str = "no start line";

/// Parses the content of a PEM block. Returns the number of bytes that were parsed. Errors are the library's reasons.
fn parse(der: &[u8], is_encrypted: bool, with_trust: bool) -> Result<(Certificate, usize), String> {
    if is_encrypted {
        return Err("bad password read".into());
    }
    let mut input = der.as_ptr();
    let null = std::ptr::null_mut();
    let length = c_long::try_from(der.len()).map_err(|_| "too long".to_string())?;
    // SAFETY: `length` bytes are readable at the input, which moves behind what was parsed.
    let certificate = unsafe {
        Certificate::new(match with_trust {
            true => c::d2i_X509_AUX(null, &mut input, length),
            false => c::d2i_X509(null, &mut input, length),
        })
    };
    Ok((certificate.ok_or_else(raw::reason)?, input.addr() - der.as_ptr().addr()))
}

/// A PEM file with a certificate.
pub struct PemFile {
    /// The first certificate.
    pub leaf: Certificate,
    /// The certificates behind it.
    pub chain: Vec<Certificate>,
    /// The leaf's DER form.
    pub leaf_der: Vec<u8>,
    /// The first private key, if it is not encrypted and well-formed. If there is none, [`PrivateKey::from_pem`] knows
    /// why.
    pub key: Option<PrivateKey>,
}

impl PemFile {
    /// Reads a file in one pass. Blocks of other types are passed over. A pool spares chains that were read before.
    pub fn parse(pem: &[u8], pool: Option<&Pool>) -> Result<Self, ChainError> {
        raw::clear();
        let reader = Reader::new(pem);
        let (mut leaf, mut chain, mut key) = (None, Vec::new(), None);
        loop {
            let has_leaf = leaf.is_some();
            let block = reader.next_block(|name, is_encrypted, content| match name {
                b"CERTIFICATE" | b"X509 CERTIFICATE" if has_leaf => Some(match pool {
                    Some(pool) if !is_encrypted => pool.parse(content).map(|certificate| chain.push(certificate)),
                    _ => parse(content, is_encrypted, false).map(|(certificate, _)| chain.push(certificate)),
                }),
                b"CERTIFICATE" | b"X509 CERTIFICATE" | b"TRUSTED CERTIFICATE" if !has_leaf => {
                    Some(parse(content, is_encrypted, true).map(|(certificate, length)| {
                        // Settings of trust may be behind the certificate, or nothing, and then no encoder is needed.
                        let der = if length == content.len() { content.to_vec() } else { certificate.to_der() };
                        leaf = Some((certificate, der));
                    }))
                }
                name if key.is_none() && !is_encrypted => {
                    key = PrivateKey::from_block(name, content);
                    None
                }
                _ => None,
            });
            let error = if has_leaf { ChainError::Chain } else { ChainError::Leaf };
            match block.map_err(error)? {
                Some(certificate) => certificate.transpose().map_err(error)?,
                None => break,
            };
        }
        match leaf {
            Some((leaf, leaf_der)) => Ok(PemFile { leaf, chain, leaf_der, key }),
            None => Err(ChainError::Leaf(END_OF_PEM.into())),
        }
    }
}

/// Certificates of chains by their DER form, while many files are read: most of them have the same few intermediate
/// authorities, which are parsed and kept in memory once.
#[derive(Default)]
pub struct Pool(Mutex<HashMap<Box<[u8]>, Certificate>>);

impl Pool {
    fn parse(&self, der: &[u8]) -> Result<Certificate, String> {
        if let Some(certificate) = self.0.lock().get(der) {
            return Ok(certificate.clone());
        }
        let (certificate, _) = parse(der, false, false)?;
        self.0.lock().insert(der.into(), certificate.clone());
        Ok(certificate)
    }
}

/// The part of a PEM file that could not be read, with the library's reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// The first certificate.
    Leaf(String),
    /// One behind it.
    Chain(String),
}
