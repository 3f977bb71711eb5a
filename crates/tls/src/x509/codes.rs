//! Numbers, names and texts of verification errors: OpenSSL's `X509_V_ERR_*`.
//!
//! The numbers are those of OpenSSL 3, which logs, fetches and `crt-ignore-err` of HAProxy have. libcrypto of aws-lc
//! numbers some errors differently; `from_library` translates, and nothing outside [`x509`](super) sees its numbers.

use aws_lc_sys as c;

use super::raw;

/// No error.
pub const OK: i32 = 0;
/// An error without a number of its own.
pub const UNSPECIFIED: i32 = 1;
/// The certificate is not valid yet.
pub const CERT_NOT_YET_VALID: i32 = 9;
/// The certificate has expired.
pub const CERT_HAS_EXPIRED: i32 = 10;
/// The date from which the certificate is valid is malformed.
pub const BAD_NOT_BEFORE: i32 = 13;
/// The date until which the certificate is valid is malformed.
pub const BAD_NOT_AFTER: i32 = 14;
/// The signature of the only certificate of a chain can't be verified, as its issuer is not known.
pub const LEAF_SIGNATURE: i32 = 21;

/// The greatest number, which `ca-ignore-err` and `crt-ignore-err` accept.
pub const MAX: i32 = 94;

/// Names by number.
const NAMES: [&str; 95] = [
    "X509_V_OK",
    "X509_V_ERR_UNSPECIFIED",
    "X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT",
    "X509_V_ERR_UNABLE_TO_GET_CRL",
    "X509_V_ERR_UNABLE_TO_DECRYPT_CERT_SIGNATURE",
    "X509_V_ERR_UNABLE_TO_DECRYPT_CRL_SIGNATURE",
    "X509_V_ERR_UNABLE_TO_DECODE_ISSUER_PUBLIC_KEY",
    "X509_V_ERR_CERT_SIGNATURE_FAILURE",
    "X509_V_ERR_CRL_SIGNATURE_FAILURE",
    "X509_V_ERR_CERT_NOT_YET_VALID",
    "X509_V_ERR_CERT_HAS_EXPIRED",
    "X509_V_ERR_CRL_NOT_YET_VALID",
    "X509_V_ERR_CRL_HAS_EXPIRED",
    "X509_V_ERR_ERROR_IN_CERT_NOT_BEFORE_FIELD",
    "X509_V_ERR_ERROR_IN_CERT_NOT_AFTER_FIELD",
    "X509_V_ERR_ERROR_IN_CRL_LAST_UPDATE_FIELD",
    "X509_V_ERR_ERROR_IN_CRL_NEXT_UPDATE_FIELD",
    "X509_V_ERR_OUT_OF_MEM",
    "X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT",
    "X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN",
    "X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
    "X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE",
    "X509_V_ERR_CERT_CHAIN_TOO_LONG",
    "X509_V_ERR_CERT_REVOKED",
    "X509_V_ERR_NO_ISSUER_PUBLIC_KEY",
    "X509_V_ERR_PATH_LENGTH_EXCEEDED",
    "X509_V_ERR_INVALID_PURPOSE",
    "X509_V_ERR_CERT_UNTRUSTED",
    "X509_V_ERR_CERT_REJECTED",
    "X509_V_ERR_SUBJECT_ISSUER_MISMATCH",
    "X509_V_ERR_AKID_SKID_MISMATCH",
    "X509_V_ERR_AKID_ISSUER_SERIAL_MISMATCH",
    "X509_V_ERR_KEYUSAGE_NO_CERTSIGN",
    "X509_V_ERR_UNABLE_TO_GET_CRL_ISSUER",
    "X509_V_ERR_UNHANDLED_CRITICAL_EXTENSION",
    "X509_V_ERR_KEYUSAGE_NO_CRL_SIGN",
    "X509_V_ERR_UNHANDLED_CRITICAL_CRL_EXTENSION",
    "X509_V_ERR_INVALID_NON_CA",
    "X509_V_ERR_PROXY_PATH_LENGTH_EXCEEDED",
    "X509_V_ERR_KEYUSAGE_NO_DIGITAL_SIGNATURE",
    "X509_V_ERR_PROXY_CERTIFICATES_NOT_ALLOWED",
    "X509_V_ERR_INVALID_EXTENSION",
    "X509_V_ERR_INVALID_POLICY_EXTENSION",
    "X509_V_ERR_NO_EXPLICIT_POLICY",
    "X509_V_ERR_DIFFERENT_CRL_SCOPE",
    "X509_V_ERR_UNSUPPORTED_EXTENSION_FEATURE",
    "X509_V_ERR_UNNESTED_RESOURCE",
    "X509_V_ERR_PERMITTED_VIOLATION",
    "X509_V_ERR_EXCLUDED_VIOLATION",
    "X509_V_ERR_SUBTREE_MINMAX",
    "X509_V_ERR_APPLICATION_VERIFICATION",
    "X509_V_ERR_UNSUPPORTED_CONSTRAINT_TYPE",
    "X509_V_ERR_UNSUPPORTED_CONSTRAINT_SYNTAX",
    "X509_V_ERR_UNSUPPORTED_NAME_SYNTAX",
    "X509_V_ERR_CRL_PATH_VALIDATION_ERROR",
    "X509_V_ERR_PATH_LOOP",
    "X509_V_ERR_SUITE_B_INVALID_VERSION",
    "X509_V_ERR_SUITE_B_INVALID_ALGORITHM",
    "X509_V_ERR_SUITE_B_INVALID_CURVE",
    "X509_V_ERR_SUITE_B_INVALID_SIGNATURE_ALGORITHM",
    "X509_V_ERR_SUITE_B_LOS_NOT_ALLOWED",
    "X509_V_ERR_SUITE_B_CANNOT_SIGN_P_384_WITH_P_256",
    "X509_V_ERR_HOSTNAME_MISMATCH",
    "X509_V_ERR_EMAIL_MISMATCH",
    "X509_V_ERR_IP_ADDRESS_MISMATCH",
    "X509_V_ERR_DANE_NO_MATCH",
    "X509_V_ERR_EE_KEY_TOO_SMALL",
    "X509_V_ERR_CA_KEY_TOO_SMALL",
    "X509_V_ERR_CA_MD_TOO_WEAK",
    "X509_V_ERR_INVALID_CALL",
    "X509_V_ERR_STORE_LOOKUP",
    "X509_V_ERR_NO_VALID_SCTS",
    "X509_V_ERR_PROXY_SUBJECT_NAME_VIOLATION",
    "X509_V_ERR_OCSP_VERIFY_NEEDED",
    "X509_V_ERR_OCSP_VERIFY_FAILED",
    "X509_V_ERR_OCSP_CERT_UNKNOWN",
    "X509_V_ERR_UNSUPPORTED_SIGNATURE_ALGORITHM",
    "X509_V_ERR_SIGNATURE_ALGORITHM_MISMATCH",
    "X509_V_ERR_SIGNATURE_ALGORITHM_INCONSISTENCY",
    "X509_V_ERR_INVALID_CA",
    "X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA",
    "X509_V_ERR_PATHLEN_WITHOUT_KU_KEY_CERT_SIGN",
    "X509_V_ERR_KU_KEY_CERT_SIGN_INVALID_FOR_NON_CA",
    "X509_V_ERR_ISSUER_NAME_EMPTY",
    "X509_V_ERR_SUBJECT_NAME_EMPTY",
    "X509_V_ERR_MISSING_AUTHORITY_KEY_IDENTIFIER",
    "X509_V_ERR_MISSING_SUBJECT_KEY_IDENTIFIER",
    "X509_V_ERR_EMPTY_SUBJECT_ALT_NAME",
    "X509_V_ERR_EMPTY_SUBJECT_SAN_NOT_CRITICAL",
    "X509_V_ERR_CA_BCONS_NOT_CRITICAL",
    "X509_V_ERR_AUTHORITY_KEY_IDENTIFIER_CRITICAL",
    "X509_V_ERR_SUBJECT_KEY_IDENTIFIER_CRITICAL",
    "X509_V_ERR_CA_CERT_MISSING_KEY_USAGE",
    "X509_V_ERR_EXTENSIONS_REQUIRE_VERSION_3",
    "X509_V_ERR_EC_KEY_EXPLICIT_PARAMS",
];

/// Returns the name of a number: `X509_V_ERR_CERT_HAS_EXPIRED` for 10.
pub fn name(code: i32) -> Option<&'static str> {
    usize::try_from(code).ok().and_then(|code| NAMES.get(code).copied())
}

/// Returns the number of a name.
pub fn number(name: &str) -> Option<i32> {
    NAMES.iter().position(|known| *known == name).and_then(|code| i32::try_from(code).ok())
}

/// Numbers of the library that OpenSSL has given to other errors, with OpenSSL's numbers.
const DIFFERENT: [(i32, i32); 9] = [
    (c::X509_V_ERR_INVALID_CA, 79),
    (c::X509_V_ERR_INVALID_CALL, 69),
    (c::X509_V_ERR_STORE_LOOKUP, 70),
    // OpenSSL does not verify what this is about; it is the nearest error about names.
    (c::X509_V_ERR_NAME_CONSTRAINTS_WITHOUT_SANS, 53),
    (c::X509_V_ERR_EE_KEY_TOO_SMALL, 66),
    (c::X509_V_ERR_CA_KEY_TOO_SMALL, 67),
    (c::X509_V_ERR_CA_MD_TOO_WEAK, 68),
    // A leaf whose key can't be decoded: OpenSSL's security level finds the key too small.
    (c::X509_V_UNABLE_TO_GET_CERTS_PUBLIC_KEY, 66),
    (c::X509_V_ERR_EC_KEY_EXPLICIT_PARAMS, 94),
];

/// Returns OpenSSL's number of the library's.
pub(super) fn from_library(code: i32) -> i32 {
    DIFFERENT.iter().find(|(library, _)| *library == code).map_or(code, |(_, openssl)| *openssl)
}

/// Returns the text of a number: `certificate has expired` for 10.
pub fn text(code: i32) -> &'static str {
    let library = match DIFFERENT.iter().find(|(_, openssl)| *openssl == code) {
        Some((library, _)) => *library,
        // The library means another error by the number.
        None if DIFFERENT.iter().any(|(library, _)| *library == code) => c::X509_V_ERR_UNSPECIFIED,
        None => code,
    };
    // SAFETY: texts are constants of the library.
    unsafe { raw::constant(c::X509_verify_cert_error_string(library.into())) }
        .unwrap_or("unknown certificate verification error")
}
