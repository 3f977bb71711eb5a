//! New private keys and requests for certificates (PKCS #10), as ACME needs them.

use std::ffi::c_int;

use aws_lc_sys as c;

use super::key::{Curve, PrivateKey};
use super::raw::{self, NULL, Owned, Stack};

/// The kind of a key that is to be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKey {
    /// RSA with a modulus of so many bits.
    Rsa(u32),
    /// ECDSA on a curve.
    Ecdsa(Curve),
}

impl PrivateKey {
    /// Generates a key. RSA takes up to seconds.
    ///
    /// # Errors
    /// The library's reason.
    pub fn generate(kind: NewKey) -> Result<PrivateKey, String> {
        raw::clear();
        let (id, curve) = match kind {
            NewKey::Rsa(_) => (c::EVP_PKEY_RSA, 0),
            NewKey::Ecdsa(Curve::P256) => (c::EVP_PKEY_EC, c::NID_X9_62_prime256v1),
            NewKey::Ecdsa(Curve::P384) => (c::EVP_PKEY_EC, c::NID_secp384r1),
            NewKey::Ecdsa(Curve::P521) => (c::EVP_PKEY_EC, c::NID_secp521r1),
            NewKey::Ecdsa(Curve::Other) => return Err("the curve is not supported".to_owned()),
        };
        // SAFETY: no engine is passed; the context is the caller's.
        let context = unsafe { Owned::new(c::EVP_PKEY_CTX_new_id(id, NULL.cast())) }.ok_or_else(raw::reason)?;
        let mut key = std::ptr::null_mut();
        // SAFETY: the context is valid, and of the type that the setters are for; the key is the caller's on success.
        let key = unsafe {
            let ready = c::EVP_PKEY_keygen_init(context.as_ptr()) > 0
                && match kind {
                    NewKey::Rsa(bits) => {
                        let bits = c_int::try_from(bits).unwrap_or(c_int::MAX);
                        c::EVP_PKEY_CTX_set_rsa_keygen_bits(context.as_ptr(), bits) > 0
                    }
                    NewKey::Ecdsa(_) => c::EVP_PKEY_CTX_set_ec_paramgen_curve_nid(context.as_ptr(), curve) > 0,
                };
            if !ready || c::EVP_PKEY_keygen(context.as_ptr(), &mut key) <= 0 {
                return Err(raw::reason());
            }
            Owned::new(key)
        };
        key.map(PrivateKey::of).ok_or_else(raw::reason)
    }
}

/// Returns the DER of a request for a certificate with these DNS names, signed with the key of the certificate. The first
/// name is the common name, unless it is too long for one.
///
/// # Errors
/// The library's reason.
pub fn certificate_request(key: &PrivateKey, names: &[String]) -> Result<Vec<u8>, String> {
    raw::clear();
    // SAFETY: a constructor without preconditions.
    let request = unsafe { Owned::new(c::X509_REQ_new()) }.ok_or_else(raw::reason)?;
    let extension = alternative_names(names)?;
    let mut extensions = Stack::borrowing();
    extensions.push(extension.as_ptr());
    // SAFETY: all objects are valid and outlive the calls, which copy what they keep; the subject belongs to the request.
    let signed = unsafe {
        c::X509_REQ_set_pubkey(request.as_ptr(), key.as_ptr()) == 1
            && names
                .first()
                .is_none_or(|name| raw::add_common_name(c::X509_REQ_get_subject_name(request.as_ptr()), name))
            && c::X509_REQ_add_extensions(request.as_ptr(), extensions.as_ptr()) == 1
            && c::X509_REQ_sign(request.as_ptr(), key.as_ptr(), c::EVP_sha256()) > 0
    };
    if !signed {
        return Err(raw::reason());
    }
    // SAFETY: the request is valid; `der` passes null or a buffer of the length that was returned.
    raw::der(|out| unsafe { c::i2d_X509_REQ(request.as_ptr(), out) }).ok_or_else(raw::reason)
}

/// Returns the extension with DNS names.
fn alternative_names(names: &[String]) -> Result<Owned<c::X509_EXTENSION>, String> {
    let mut owned = Vec::with_capacity(names.len());
    for name in names {
        let length = isize::try_from(name.len()).unwrap_or(0);
        // SAFETY: the text is copied into the string, which the general name takes over; a failure frees both.
        let name = unsafe {
            let general = Owned::new(c::GENERAL_NAME_new()).ok_or_else(raw::reason)?;
            let text = Owned::new(c::ASN1_STRING_type_new(c::V_ASN1_IA5STRING)).ok_or_else(raw::reason)?;
            if c::ASN1_STRING_set(text.as_ptr(), name.as_ptr().cast(), length) != 1 {
                return Err(raw::reason());
            }
            c::GENERAL_NAME_set0_value(general.as_ptr(), c::GEN_DNS, text.into_ptr().cast());
            general
        };
        owned.push(name);
    }
    let mut stack = Stack::borrowing();
    owned.iter().for_each(|name| stack.push(name.as_ptr()));
    // SAFETY: a stack of general names is what this extension is made of; it is encoded, not kept.
    let extension = unsafe { c::X509V3_EXT_i2d(c::NID_subject_alt_name, 0, stack.as_ptr()) };
    // SAFETY: the extension is null or the caller's.
    unsafe { Owned::new(extension) }.ok_or_else(raw::reason)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::x509::KeyType;

    /// Returns what openssl prints about a request, whose signature it has verified.
    fn printed(der: &[u8]) -> String {
        let mut openssl = Command::new("openssl")
            .args(["req", "-inform", "DER", "-noout", "-verify", "-text", "-nameopt", "compat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl");
        openssl.stdin.take().expect("a pipe").write_all(der).expect("written");
        let output = openssl.wait_with_output().expect("openssl ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    #[test]
    fn keys_are_of_their_kind_and_sign_requests() {
        let names: Vec<String> = ["a.example", "b,email:x.example", "*.c.example"].map(str::to_owned).into();
        for (kind, key_type, bits) in [
            (NewKey::Rsa(2048), KeyType::Rsa, 2048),
            (NewKey::Ecdsa(Curve::P256), KeyType::Ecdsa(Curve::P256), 256),
            (NewKey::Ecdsa(Curve::P384), KeyType::Ecdsa(Curve::P384), 384),
            (NewKey::Ecdsa(Curve::P521), KeyType::Ecdsa(Curve::P521), 521),
        ] {
            let key = PrivateKey::generate(kind).expect("a key");
            assert_eq!((key.key_type(), key.bits()), (key_type, bits));
            let text = printed(&certificate_request(&key, &names).expect("a request"));
            assert!(text.contains("a.example\n"), "{text}");
            assert!(text.contains("DNS:a.example, DNS:b,email:x.example, DNS:*.c.example"), "{text}");
        }
        let key = PrivateKey::generate(NewKey::Ecdsa(Curve::P256)).expect("a key");
        let long = [format!("{}.example", "a".repeat(60))];
        let text = printed(&certificate_request(&key, &long).expect("a request"));
        assert!(!text.contains("CN") && text.contains(&format!("DNS:{}", long[0])), "{text}");
    }

    #[test]
    fn what_cannot_be_generated_has_a_reason() {
        assert!(PrivateKey::generate(NewKey::Rsa(1)).is_err());
        assert!(PrivateKey::generate(NewKey::Ecdsa(Curve::Other)).is_err());
    }
}
