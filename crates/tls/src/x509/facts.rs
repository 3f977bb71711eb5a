//! What fetches and the runtime API print of certificates and revocation lists, in HAProxy's and OpenSSL's formats.
//!
//! Texts are bytes: names in certificates have any.

use std::ffi::{CString, c_char, c_int};
use std::fmt::Write;

use aws_lc_sys as c;

use super::bundle::Crl;
use super::certificate::Certificate;
use super::key::KeyType;
use super::raw;

impl Certificate {
    /// Returns the serial number's bytes, big-endian, as `ssl_c_serial` has them.
    pub fn serial(&self) -> Vec<u8> {
        // SAFETY: the certificate is valid, and the number belongs to it.
        unsafe { raw::string(c::X509_get_serialNumber(self.as_ptr())).to_vec() }
    }

    /// Returns SHA-1 of the DER form.
    pub fn sha1(&self) -> [u8; 20] {
        let mut digest = [0; 20];
        // SAFETY: the buffer has room for SHA-1, and the length is not asked for.
        unsafe { c::X509_digest(self.as_ptr(), c::EVP_sha1(), digest.as_mut_ptr(), std::ptr::null_mut()) };
        digest
    }

    /// Returns the version, 1 to 3.
    pub fn version(&self) -> i64 {
        // SAFETY: the certificate is valid.
        #[allow(clippy::useless_conversion, reason = "the type differs by platform")]
        unsafe { c::X509_get_version(self.as_ptr()) }.saturating_add(1).into()
    }

    /// Returns the start of validity as `YYMMDDhhmmssZ`; `None` outside 1950 to 2099, like HAProxy.
    pub fn not_before_short(&self) -> Option<Vec<u8>> {
        // SAFETY: the certificate is valid, and the time belongs to it.
        unsafe { short_time(c::X509_get0_notBefore(self.as_ptr())) }
    }

    /// Returns the end of validity as `YYMMDDhhmmssZ`; `None` outside 1950 to 2099, like HAProxy.
    pub fn not_after_short(&self) -> Option<Vec<u8>> {
        // SAFETY: the certificate is valid, and the time belongs to it.
        unsafe { short_time(c::X509_get0_notAfter(self.as_ptr())) }
    }

    /// Returns the start of validity as `Sep 13 21:20:24 2019 GMT`.
    pub fn not_before_text(&self) -> String {
        // SAFETY: the certificate is valid, and the time belongs to it.
        unsafe { long_time(c::X509_get0_notBefore(self.as_ptr())) }
    }

    /// Returns the end of validity as `Sep 13 21:20:24 2019 GMT`.
    pub fn not_after_text(&self) -> String {
        // SAFETY: the certificate is valid, and the time belongs to it.
        unsafe { long_time(c::X509_get0_notAfter(self.as_ptr())) }
    }

    /// Returns the start of validity in seconds since 1970.
    pub fn not_before(&self) -> Option<i64> {
        // SAFETY: the certificate is valid, and the time belongs to it.
        unsafe { seconds(c::X509_get0_notBefore(self.as_ptr())) }
    }

    /// Returns the end of validity in seconds since 1970.
    pub fn not_after(&self) -> Option<i64> {
        // SAFETY: the certificate is valid, and the time belongs to it.
        unsafe { seconds(c::X509_get0_notAfter(self.as_ptr())) }
    }

    /// Returns the short name of the public key's algorithm: `rsaEncryption`, `id-ecPublicKey`.
    pub fn key_algorithm(&self) -> Option<&'static str> {
        let (mut algorithm, null) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the certificate is valid, the identifier belongs to it, and the name is a constant.
        unsafe {
            let key = c::X509_get_X509_PUBKEY(self.as_ptr());
            c::X509_PUBKEY_get0_param(&mut algorithm, raw::NULL.cast(), raw::NULL.cast(), null, key);
            raw::constant(c::OBJ_nid2sn(c::OBJ_obj2nid(algorithm)))
        }
    }

    /// Returns the short name of the signature's algorithm: `RSA-SHA256`, `ecdsa-with-SHA256`.
    pub fn signature_algorithm(&self) -> Option<&'static str> {
        let mut algorithm = std::ptr::null();
        // SAFETY: the certificate is valid, the identifier belongs to it, and the name is a constant.
        unsafe {
            let signature = c::X509_get0_tbs_sigalg(self.as_ptr());
            c::X509_ALGOR_get0(&mut algorithm, std::ptr::null_mut(), std::ptr::null_mut(), signature);
            raw::constant(c::OBJ_nid2sn(c::OBJ_obj2nid(algorithm)))
        }
    }

    /// Returns the subject's alternative names as `DNS:a, IP Address:1.2.3.4, URI:u`; `None` if there are none.
    pub fn alternative_names_text(&self) -> Option<Vec<u8>> {
        let names = self.alternative_names()?;
        let text = raw::printed(|bio| {
            for (i, name) in names.iter().enumerate() {
                // SAFETY: the BIO and the name are valid; texts are C strings; the type says which member of the union is
                // set.
                unsafe {
                    if i > 0 {
                        c::BIO_puts(bio, c", ".as_ptr());
                    }
                    match ip_v6((*name).type_, name) {
                        // The library ends these by a line feed, which OpenSSL 3 does not.
                        Some(address) => c::BIO_puts(bio, address.as_ptr()),
                        None => c::GENERAL_NAME_print(bio, name),
                    };
                }
            }
            1
        })?;
        (!text.is_empty()).then_some(text)
    }

    /// Returns the first URI of an OCSP responder.
    pub fn ocsp_uri(&self) -> Option<String> {
        // SAFETY: the certificate is valid; the stack of C strings is freed by its own function.
        unsafe {
            let uris = c::X509_get1_ocsp(self.as_ptr());
            raw::clear();
            if uris.is_null() {
                return None;
            }
            let first = (c::OPENSSL_sk_num(uris.cast()) > 0)
                .then(|| std::ffi::CStr::from_ptr(c::OPENSSL_sk_value(uris.cast(), 0).cast::<c_char>()))
                .and_then(|uri| uri.to_str().ok())
                .map(str::to_owned);
            c::X509_email_free(uris);
            first.filter(|uri| !uri.is_empty())
        }
    }

    /// Returns the key's algorithm and size as `show ssl cert` prints it: `RSA2048`, `EC256`; `None` for algorithms of
    /// which HAProxy prints nothing.
    pub fn key_text(&self) -> Option<String> {
        let algorithm = match self.key_type() {
            KeyType::Rsa => "RSA",
            KeyType::Ecdsa(_) => "EC",
            KeyType::Dsa => "DSA",
            KeyType::Ed25519 | KeyType::Other => return None,
        };
        Some(format!("{algorithm}{}", self.key_bits()))
    }

    /// Returns the lines of `show ssl cert` and `show ssl ca-file` about a certificate and its chain. `chain_file` is
    /// the file of `issuers-chain-path` that completed the chain.
    pub fn details(&self, chain: &[Certificate], chain_file: Option<&str>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut line = |key: &str, value: &[u8]| {
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.push(b'\n');
        };
        if let Some(file) = chain_file {
            line("Chain Filename", file.as_bytes());
        }
        line("Serial", hex(&self.serial()).as_bytes());
        line("notBefore", self.not_before_text().as_bytes());
        line("notAfter", self.not_after_text().as_bytes());
        line("Subject Alternative Name", &self.dns_names_text());
        line("Algorithm", self.key_text().unwrap_or_default().as_bytes());
        line("SHA1 FingerPrint", hex(&self.sha1()).as_bytes());
        line("Subject", &self.subject().one_line());
        line("Issuer", &self.issuer().one_line());
        for certificate in chain {
            line("Chain Subject", &certificate.subject().one_line());
            line("Chain Issuer", &certificate.issuer().one_line());
        }
        out
    }

    /// Returns the dNSNames as `DNS:a, DNS:b`. Names of other kinds have their comma alone, as HAProxy prints them.
    fn dns_names_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let Some(names) = self.alternative_names() else {
            return text;
        };
        for (i, name) in names.iter().enumerate() {
            if i > 0 {
                text.extend_from_slice(b", ");
            }
            // SAFETY: the stack owns valid names; the type says which member of the union is set.
            let name = unsafe { if (*name).type_ == c::GEN_DNS { raw::utf8((*name).d.dNSName) } else { None } };
            if let Some(name) = name {
                text.extend_from_slice(b"DNS:");
                text.extend_from_slice(&name);
            }
        }
        text
    }
}

impl Crl {
    /// Returns the lines of `show ssl crl-file` about a list.
    pub fn details(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // SAFETY: the list is valid; names and times belong to it, and the name of the algorithm is a constant.
        let (version, algorithm, last, next) = unsafe {
            let algorithm = raw::constant(c::OBJ_nid2ln(c::X509_CRL_get_signature_nid(self.as_ptr())));
            let last = long_time(c::X509_CRL_get0_lastUpdate(self.as_ptr()));
            let next = long_time(c::X509_CRL_get0_nextUpdate(self.as_ptr()));
            (c::X509_CRL_get_version(self.as_ptr()) + 1, algorithm.unwrap_or("undefined"), last, next)
        };
        out.extend_from_slice(format!("Version {version}\nSignature Algorithm: {algorithm}\nIssuer: ").as_bytes());
        out.extend_from_slice(&self.issuer().one_line());
        out.extend_from_slice(format!("\nLast Update: {last}\nNext Update: {next}\n").as_bytes());
        // SAFETY: the stack belongs to the list.
        let revoked = unsafe { c::X509_CRL_get_REVOKED(self.as_ptr()) }.cast::<c::OPENSSL_STACK>();
        // SAFETY: the number of a null stack is 0.
        let count = unsafe { c::OPENSSL_sk_num(revoked) };
        let title: &[u8] = if count > 0 { b"Revoked Certificates:\n" } else { b"No Revoked Certificates.\n" };
        out.extend_from_slice(title);
        for i in 0..count {
            // SAFETY: the index is below the number of elements, which belong to the list, like their members.
            let (serial, date) = unsafe {
                let entry = c::OPENSSL_sk_value(revoked, i).cast::<c::X509_REVOKED>();
                let serial = raw::printed(|bio| c::i2a_ASN1_INTEGER(bio, c::X509_REVOKED_get0_serialNumber(entry)));
                (serial.unwrap_or_default(), long_time(c::X509_REVOKED_get0_revocationDate(entry)))
            };
            out.extend_from_slice(b"    Serial Number: ");
            out.extend_from_slice(&serial);
            out.extend_from_slice(format!("\n        Revocation Date: {date}\n").as_bytes());
        }
        out
    }
}

/// Returns the text of a name that is an IPv6 address: `IP Address:2001:DB8:0:0:0:0:0:1`.
///
/// # Safety
///
/// `name` is valid, and of the type `kind`.
unsafe fn ip_v6(kind: c_int, name: *const c::GENERAL_NAME) -> Option<CString> {
    if kind != c::GEN_IPADD {
        return None;
    }
    // SAFETY: a name of this type has an address.
    let address: &[u8; 16] = unsafe { raw::string((*name).d.iPAddress) }.try_into().ok()?;
    let groups = address.chunks(2).map(|group| format!(":{:X}", u16::from_be_bytes([group[0], group[1]])));
    CString::new(groups.fold("IP Address".to_string(), |text, group| text + &group)).ok()
}

/// Returns bytes in hexadecimal, in upper case.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// Returns a time as `YYMMDDhhmmssZ`: a UTCTime as it is, a GeneralizedTime of this century without its `20`.
///
/// # Safety
///
/// `time` is valid.
unsafe fn short_time(time: *const c::ASN1_TIME) -> Option<Vec<u8>> {
    // SAFETY: the time is valid.
    let (kind, text) = unsafe { (c::ASN1_STRING_type(time), raw::string(time)) };
    match kind {
        c::V_ASN1_GENERALIZEDTIME if text.len() >= 12 => text.strip_prefix(b"20").map(<[u8]>::to_vec),
        c::V_ASN1_UTCTIME if text.len() >= 10 && text[0] < b'5' => Some(text.to_vec()),
        _ => None,
    }
}

/// Returns a time as `Sep 13 21:20:24 2019 GMT`; empty if there is none.
///
/// # Safety
///
/// `time` is null or valid.
unsafe fn long_time(time: *const c::ASN1_TIME) -> String {
    if time.is_null() {
        return String::new();
    }
    // SAFETY: the BIO and the time are valid.
    let text = raw::printed(|bio| unsafe { c::ASN1_TIME_print(bio, time) });
    String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
}

/// Returns a time in seconds since 1970.
///
/// # Safety
///
/// `time` is null or valid.
pub(super) unsafe fn seconds(time: *const c::ASN1_TIME) -> Option<i64> {
    if time.is_null() {
        return None;
    }
    let mut seconds = 0;
    // SAFETY: the time is valid.
    let parsed = unsafe { c::ASN1_TIME_to_posix(time, &mut seconds) == 1 };
    raw::clear();
    parsed.then_some(seconds)
}
