//! OCSP: identifiers of certificates, responses, requests.

use std::ffi::c_long;

use aws_lc_sys as c;

use super::bundle::Bundle;
use super::certificate::Certificate;
use super::facts;
use super::raw::{self, NULL, Owned, Stack};
use super::store::Store;

/// The identifier by which a responder knows a certificate: hashes of the issuer's name and key, and the serial number.
pub struct CertificateId(Owned<c::OCSP_CERTID>);

// SAFETY: a parsed identifier is not changed.
unsafe impl Send for CertificateId {}
// SAFETY: as above.
unsafe impl Sync for CertificateId {}

impl std::fmt::Debug for CertificateId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CertificateId({})", facts::hex(&self.to_der()))
    }
}

impl PartialEq for CertificateId {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: both identifiers are valid.
        unsafe { c::OCSP_id_cmp(self.0.as_ptr(), other.0.as_ptr()) == 0 }
    }
}

impl Eq for CertificateId {}

impl CertificateId {
    /// Returns the identifier of a certificate, with SHA-1 like all responders expect; `None` if the issuer's key can't
    /// be hashed.
    pub fn new(certificate: &Certificate, issuer: &Certificate) -> Option<Self> {
        // SAFETY: both certificates are valid; a null digest is SHA-1; the result is the caller's.
        let id = unsafe {
            Owned::new(c::OCSP_cert_to_id(std::ptr::null(), certificate.as_ptr(), issuer.as_ptr())).map(CertificateId)
        };
        raw::clear();
        id
    }

    /// Parses the DER form.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let mut input = der.as_ptr();
        let length = c_long::try_from(der.len()).ok()?;
        // SAFETY: `length` bytes are readable at the input; the result is the caller's.
        let id = unsafe { Owned::new(c::d2i_OCSP_CERTID(std::ptr::null_mut(), &mut input, length)) };
        raw::clear();
        id.filter(|_| input == der.as_ptr_range().end).map(CertificateId)
    }

    /// Returns the DER form, whose hexadecimal text is the key of `show ssl ocsp-response`.
    pub fn to_der(&self) -> Vec<u8> {
        // SAFETY: the identifier is valid; `der` passes null or a buffer of the length that was returned.
        raw::der(|out| unsafe { c::i2d_OCSP_CERTID(self.0.as_ptr(), out) }).unwrap_or_default()
    }

    /// Returns the issuer's hashes and the serial number as `show ssl ocsp-response` prints them, behind a space.
    pub fn details(&self) -> String {
        let (mut name, mut key, mut serial) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the identifier is valid, and its members belong to it; BIOs are valid.
        let [name, key, serial] = unsafe {
            c::OCSP_id_get0_info(&mut name, std::ptr::null_mut(), &mut key, &mut serial, self.0.as_ptr());
            [
                raw::printed(|bio| c::i2a_ASN1_STRING(bio, name, 0)),
                raw::printed(|bio| c::i2a_ASN1_STRING(bio, key, 0)),
                raw::printed(|bio| c::i2a_ASN1_INTEGER(bio, serial)),
            ]
            .map(|text| String::from_utf8_lossy(&text.unwrap_or_default()).into_owned())
        };
        format!(
            " Certificate ID:\n   Issuer Name Hash: {name}\n   Issuer Key Hash: {key}\n   Serial Number: {serial}\n"
        )
    }

    /// Returns a request for the certificate's state, in DER, without a nonce: so that caches can answer it.
    pub fn request(&self) -> Option<Vec<u8>> {
        // SAFETY: the request takes over a copy of the identifier, unless the function fails; `der` passes null or a
        // buffer of the length that was returned.
        unsafe {
            let request = Owned::new(c::OCSP_REQUEST_new())?;
            let copy = Owned::new(c::OCSP_CERTID_dup(self.0.as_ptr()))?;
            if c::OCSP_request_add0_id(request.as_ptr(), copy.as_ptr()).is_null() {
                raw::clear();
                return None;
            }
            std::mem::forget(copy);
            raw::der(|out| c::i2d_OCSP_REQUEST(request.as_ptr(), out))
        }
    }
}

/// What a response says about one certificate.
#[derive(Debug)]
pub struct SingleResponse {
    /// The certificate.
    pub id: CertificateId,
    /// Whether it is good or revoked; otherwise the responder does not know it.
    pub is_known: bool,
    /// The start of the statement's validity, in seconds since 1970.
    pub this_update: Option<i64>,
    /// The end, `None` if there is none or it can't be parsed.
    pub next_update: Option<i64>,
    /// Whether there is an end.
    pub has_next_update: bool,
}

/// A responder's response.
pub struct Response(Owned<c::OCSP_RESPONSE>);

impl Response {
    /// Parses the DER form. Bytes behind it are passed over, as HAProxy does.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let mut input = der.as_ptr();
        let length = c_long::try_from(der.len()).ok()?;
        // SAFETY: `length` bytes are readable at the input; the result is the caller's.
        let response = unsafe { Owned::new(c::d2i_OCSP_RESPONSE(std::ptr::null_mut(), &mut input, length)) };
        raw::clear();
        response.map(Response)
    }

    /// Returns the number and the text of the response's state; 0 is success.
    pub fn status(&self) -> (i32, &'static str) {
        // SAFETY: the response is valid, and the text is a constant.
        unsafe {
            let status = c::OCSP_response_status(self.0.as_ptr());
            (status, raw::constant(c::OCSP_response_status_str(status.into())).unwrap_or("(UNKNOWN)"))
        }
    }

    /// Returns the signed part; `None` if it is of another type than the basic one.
    pub fn basic(&self) -> Option<BasicResponse> {
        // SAFETY: the response is valid; the result is the caller's.
        let basic = unsafe { Owned::new(c::OCSP_response_get1_basic(self.0.as_ptr())) };
        raw::clear();
        basic.map(BasicResponse)
    }

    /// Returns the text that `openssl ocsp -resp_text` prints.
    pub fn text(&self) -> Option<Vec<u8>> {
        // SAFETY: the BIO and the response are valid.
        raw::printed(|bio| unsafe { c::OCSP_RESPONSE_print(bio, self.0.as_ptr(), 0) })
    }
}

/// The signed part of a response.
pub struct BasicResponse(Owned<c::OCSP_BASICRESP>);

impl BasicResponse {
    /// Returns the number of certificates that the response is about.
    pub fn len(&self) -> usize {
        // SAFETY: the response is valid.
        usize::try_from(unsafe { c::OCSP_resp_count(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Returns whether the response is about no certificate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the response says first.
    pub fn first(&self) -> Option<SingleResponse> {
        let null = std::ptr::null_mut();
        let (mut this_update, mut next_update) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the response is valid, and what it is asked for belongs to it; the identifier is copied.
        unsafe {
            let single = c::OCSP_resp_get0(self.0.as_ptr(), 0);
            if single.is_null() {
                return None;
            }
            let id = Owned::new(c::OCSP_CERTID_dup(c::OCSP_SINGLERESP_get0_id(single).cast_mut()))?;
            let status = c::OCSP_single_get0_status(single, null, NULL.cast(), &mut this_update, &mut next_update);
            raw::clear();
            Some(SingleResponse {
                id: CertificateId(id),
                is_known: matches!(status, c::V_OCSP_CERTSTATUS_GOOD | c::V_OCSP_CERTSTATUS_REVOKED),
                this_update: facts::seconds(this_update),
                next_update: facts::seconds(next_update),
                has_next_update: !next_update.is_null(),
            })
        }
    }

    /// Returns whether the response is signed by one of `trusted`, or by a responder that they have certified.
    pub fn is_signed_by(&self, trusted: &[Certificate]) -> bool {
        let bundle = Bundle::of_certificates(trusted);
        let store = Store::new([&bundle], false);
        let mut certificates = Stack::<c::X509>::borrowing();
        for certificate in trusted {
            certificates.push(certificate.as_ptr());
        }
        // SAFETY: the response, the stack, its certificates and the store outlive the call.
        let verified = unsafe {
            c::OCSP_basic_verify(
                self.0.as_ptr(),
                certificates.as_ptr(),
                store.as_ptr(),
                c::OCSP_TRUSTOTHER.cast_unsigned().into(),
            ) == 1
        };
        raw::clear();
        verified
    }
}
