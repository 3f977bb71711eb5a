//! Certificates that are made here for `generate-certificates`.
//!
//! Fields and extensions are those of HAProxy: the authority's subject with one more common name, a validity from
//! yesterday to a year from now, the authority's signature with SHA-256. A name that is too long for a common name
//! appears among the alternative names alone; HAProxy refuses such a client.

use std::ffi::{CStr, CString, c_int, c_long};
use std::mem::MaybeUninit;

use aws_lc_sys as c;

use super::certificate::Certificate;
use super::key::{KeyType, PrivateKey};
use super::raw::{self, NULL, Owned};

/// The validity, in seconds from now.
const FROM: c_long = -24 * 3600;
const TO: c_long = 365 * 24 * 3600;

/// The extensions but for the name.
const EXTENSIONS: [(c_int, &CStr); 5] = [
    (c::NID_basic_constraints, c"CA:FALSE"),
    (c::NID_netscape_comment, c"\"OpenSSL Generated Certificate\""),
    (c::NID_subject_key_identifier, c"hash"),
    (c::NID_authority_key_identifier, c"keyid,issuer:always"),
    (c::NID_key_usage, c"nonRepudiation,digitalSignature,keyEncipherment"),
];

impl Certificate {
    /// Makes the certificate of a host name for `key`, signed by an authority. Errors are the library's reasons.
    ///
    /// The name has letters, digits, dots, hyphens and underscores alone.
    pub fn forge(
        name: &str,
        serial: u64,
        key: &PrivateKey,
        authority: &Certificate,
        authority_key: &PrivateKey,
    ) -> Result<Certificate, String> {
        raw::clear();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if name.is_empty() || !name.bytes().all(is_plain) {
            return Err("not a host name".into());
        }
        // SAFETY: a constructor without arguments.
        let made = unsafe { Certificate::new(c::X509_new()) }.ok_or_else(raw::reason)?;
        let done = fields(&made, name, serial, key, authority)
            .and_then(|()| extensions(&made, name, authority))
            .and_then(|()| sign(&made, authority_key));
        match done {
            Some(()) => Ok(made),
            None => Err(raw::reason()),
        }
    }
}

/// Turns the result of a function of libcrypto into an option.
fn done(result: c_int) -> Option<()> {
    (result != 0).then_some(())
}

fn fields(made: &Certificate, name: &str, serial: u64, key: &PrivateKey, authority: &Certificate) -> Option<()> {
    let certificate = made.as_ptr();
    // SAFETY: the certificate is new and not shared; key, authority and the strings are valid for the calls, and the
    // setters copy what they are passed.
    unsafe {
        done(c::X509_set_version(certificate, c::X509_VERSION_3.into()))?;
        let number = Owned::new(c::ASN1_INTEGER_new())?;
        done(c::ASN1_INTEGER_set_uint64(number.as_ptr(), serial))?;
        done(c::X509_set_serialNumber(certificate, number.as_ptr()))?;
        for (time, seconds) in [(c::X509_getm_notBefore(certificate), FROM), (c::X509_getm_notAfter(certificate), TO)] {
            if c::X509_gmtime_adj(time, seconds).is_null() {
                return None;
            }
        }
        done(c::X509_set_pubkey(certificate, key.as_ptr()))?;
        let issuer = c::X509_get_subject_name(authority.as_ptr());
        done(c::X509_set_issuer_name(certificate, issuer))?;
        let subject = Owned::new(c::X509_NAME_dup(issuer))?;
        if !raw::add_common_name(subject.as_ptr(), name) {
            return None;
        }
        done(c::X509_set_subject_name(certificate, subject.as_ptr()))
    }
}

fn extensions(made: &Certificate, name: &str, authority: &Certificate) -> Option<()> {
    let names = CString::new(format!("DNS:{name}")).ok()?;
    let mut context = MaybeUninit::<c::X509V3_CTX>::zeroed();
    let null = std::ptr::null();
    // SAFETY: both certificates outlive the context, which the function fills in; a request, a list and a database of
    // settings are absent, and none of the values needs them. An added extension is copied.
    unsafe {
        c::X509V3_set_ctx(context.as_mut_ptr(), authority.as_ptr(), made.as_ptr(), null, NULL.cast(), 0);
        for (number, value) in EXTENSIONS.into_iter().chain([(c::NID_subject_alt_name, &*names)]) {
            let extension = c::X509V3_EXT_nconf_nid(NULL.cast(), context.as_ptr(), number, value.as_ptr());
            let extension = Owned::new(extension)?;
            done(c::X509_add_ext(made.as_ptr(), extension.as_ptr(), -1))?;
        }
    }
    Some(())
}

fn sign(made: &Certificate, key: &PrivateKey) -> Option<()> {
    let digest = match key.key_type() {
        // SAFETY: returns a constant.
        KeyType::Rsa | KeyType::Ecdsa(_) => unsafe { c::EVP_sha256() },
        // SAFETY: as above.
        KeyType::Dsa => unsafe { c::EVP_sha1() },
        // Null selects the algorithm's own.
        KeyType::Ed25519 | KeyType::Other => std::ptr::null(),
    };
    // SAFETY: the certificate is new and not shared, the key valid.
    done(unsafe { c::X509_sign(made.as_ptr(), key.as_ptr(), digest) })
}
