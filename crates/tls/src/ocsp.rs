//! OCSP responses that are stapled to certificates, and the requests that renew them.
//!
//! A response from a file or from the runtime API is checked as HAProxy does: it must be about this certificate only,
//! known to the responder, and valid for five more minutes. Its signature is not verified then, because clients do; a
//! response that was fetched is verified in addition. Errors are HAProxy's texts. Nothing here reads a clock: times are
//! passed in, in seconds since 1970.

use crate::x509::{BasicResponse, Certificate, CertificateId, Response};

/// The accepted difference of clocks, and the minimum time for which a response must still be valid.
pub const SKEW_SECONDS: i64 = 300;

/// The maximum size of a response, in bytes. HAProxy's limit is its buffer size.
pub const RESPONSE_MAX_BYTES: usize = 64 * 1024;

/// The maximum size of an identifier, in bytes, as in HAProxy.
const ID_MAX_BYTES: usize = 128;

/// A request up to this length, URI included, is sent by GET.
const GET_MAX_BYTES: usize = 254;

/// A response that can be stapled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staple {
    /// The response in DER.
    pub response: Vec<u8>,
    /// The time until which it is sent.
    pub expires: i64,
    /// The identifier of its certificate in DER.
    pub id: Vec<u8>,
}

/// Returns the identifier of a certificate in DER: the key of responses.
pub fn key(certificate: &Certificate, issuer: &Certificate) -> Option<Vec<u8>> {
    let id = CertificateId::new(certificate, issuer)?.to_der();
    (1..=ID_MAX_BYTES).contains(&id.len()).then_some(id)
}

/// Checks a response. With an identifier it must be about that certificate.
pub fn check(response: &[u8], id: Option<&[u8]>, now: i64) -> Result<Staple, String> {
    let single = basic(response, "Unable to parse OCSP response", |_, _| "OCSP response status not successful".into())?;
    let single = match single.map(|basic| (basic.len(), basic.first())) {
        None => return Err("Failed to get basic response from OCSP Response".into()),
        Some((count @ 2.., _)) => {
            return Err(format!("OCSP response ignored because contains multiple single responses ({count})"));
        }
        Some((_, None)) => return Err("Failed to get OCSP single response".into()),
        Some((_, Some(single))) => single,
    };
    if !single.is_known {
        return Err("OCSP single response: certificate status is unknown".into());
    }
    if !single.has_next_update {
        return Err("OCSP single response: missing nextupdate".into());
    }
    let expired = || "OCSP single response: no longer valid.".to_string();
    let this_update = single.this_update.ok_or_else(expired)?;
    let next_update = single.next_update.ok_or_else(expired)?;
    let (early, late) = (now.saturating_sub(SKEW_SECONDS), now.saturating_add(SKEW_SECONDS));
    if this_update > late || next_update < early || next_update < this_update {
        return Err(expired());
    }
    let own = single.id.to_der();
    if let Some(id) = id
        && CertificateId::from_der(id).is_none_or(|id| id != single.id)
    {
        return Err("OCSP single response: Certificate ID does not match certificate and issuer".into());
    }
    if own.is_empty() {
        return Err("OCSP single response: Unable to encode Certificate ID".into());
    }
    if own.len() > ID_MAX_BYTES {
        return Err("OCSP single response: Certificate ID too long".into());
    }
    let expires = next_update - SKEW_SECONDS;
    if expires < now {
        return Err(format!("OCSP single response: no longer valid. Must be valid during at least {SKEW_SECONDS}s."));
    }
    Ok(Staple { response: response.to_vec(), expires, id: own })
}

/// Verifies the signature of a response that was fetched: by the issuer, by a certificate of the chain, or by a responder
/// that one of them has certified.
pub fn check_signature(response: &[u8], chain: &[Certificate], issuer: Option<&Certificate>) -> Result<(), String> {
    let trusted: Vec<Certificate> = chain.iter().chain(issuer).cloned().collect();
    if trusted.is_empty() {
        return Err("check_ocsp_response needs a certificate validation chain or an issuer certificate".into());
    }
    let basic = basic(response, "d2i_OCSP_RESPONSE() failed", |status, text| {
        format!("OCSP response not successful ({status}: {text})")
    })?
    .ok_or("OCSP_response_get1_basic() failed")?;
    if basic.is_signed_by(&trusted) { Ok(()) } else { Err("OCSP_basic_verify() failed".into()) }
}

/// Returns the signed part of a successful response.
fn basic(
    response: &[u8],
    malformed: &str,
    unsuccessful: impl FnOnce(i32, &str) -> String,
) -> Result<Option<BasicResponse>, String> {
    let response = Some(response)
        .filter(|response| response.len() <= RESPONSE_MAX_BYTES)
        .and_then(Response::from_der)
        .ok_or(malformed)?;
    match response.status() {
        (0, _) => Ok(response.basic()),
        (status, text) => Err(unsuccessful(status, text)),
    }
}

/// Returns the text of a response for `show ssl ocsp-response`, in which empty lines are a space, because the runtime API
/// ends an answer by an empty line.
pub fn text(response: &[u8]) -> Result<Vec<u8>, String> {
    let text = Response::from_der(response).ok_or("Unable to parse OCSP response")?.text();
    let text = text.ok_or("Unable to parse OCSP response")?;
    let mut out = Vec::with_capacity(text.len());
    for (i, &byte) in text.iter().enumerate() {
        if byte == b'\n' && i > 0 && text[i - 1] == b'\n' {
            out.push(b' ');
        }
        out.push(byte);
    }
    Ok(out)
}

/// An HTTP request for a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The URI: that of the responder, for a GET followed by the request.
    pub uri: String,
    /// The body of a POST with `Content-Type: application/ocsp-request`; `None`: a GET.
    pub body: Option<Vec<u8>>,
}

/// Returns the request for the response of an identifier: a GET if it is short, so that caches can answer it.
pub fn request(uri: &str, id: &[u8]) -> Option<Request> {
    let request = CertificateId::from_der(id)?.request()?;
    if request.len() + uri.len() > GET_MAX_BYTES {
        return Some(Request { uri: uri.into(), body: Some(request) });
    }
    let mut uri = format!("{uri}/");
    for byte in base64(&request) {
        match byte {
            b'+' => uri.push_str("%2B"),
            b'/' => uri.push_str("%2F"),
            b'=' => uri.push_str("%3D"),
            byte => uri.push(byte.into()),
        }
    }
    Some(Request { uri, body: None })
}

/// Returns bytes in Base64 with padding.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().chain([&0; 2]).take(3).fold(0, |group, &byte| group << 8 | usize::from(byte));
        for i in 0..4 {
            out.push(if i <= chunk.len() { ALPHABET[group >> (18 - 6 * i) & 63] } else { b'=' });
        }
    }
    out
}

/// Returns an identifier in lower-case hexadecimal digits, as the runtime API prints and reads it.
pub fn key_text(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the lines of `show ssl ocsp-response` about the certificate of an identifier.
pub fn key_details(id: &[u8]) -> Option<String> {
    CertificateId::from_der(id).map(|id| id.details())
}

/// Fuzz target: parses any bytes as a response.
#[doc(hidden)]
pub fn fuzz_response(data: &[u8]) {
    let _ = text(data);
    if let Ok(staple) = check(data, None, 1_700_000_000) {
        assert!(check(data, Some(&staple.id), 1_700_000_000).is_ok());
        assert!(key_details(&staple.id).is_some());
        request("http://a.example", &staple.id).expect("a request");
    }
    let _ = key_details(data);
    let _ = request("http://a.example", data);
}

#[cfg(test)]
mod tests;
