//! Verification of chains against trusted certificates by `X509_verify_cert`.

use std::ffi::{c_int, c_void};

use aws_lc_sys as c;

use super::bundle::Bundle;
use super::certificate::Certificate;
use super::codes;
use super::raw::{self, Owned, Stack};

/// Trusted certificates and revocation lists. The library locks it for look-ups, so threads share it.
pub struct Store(Owned<c::X509_STORE>);

// SAFETY: after it is built a store changes under its own lock alone.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

/// The purpose that the leaf's extensions must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The leaf is a client's.
    Client,
    /// The leaf is a server's.
    Server,
}

/// The result of a verification.
#[derive(Debug)]
pub struct Verification {
    /// Whether the chain was accepted, perhaps with errors that `decide` ignored.
    pub accepted: bool,
    /// The last error that was found, also if it was ignored; 0 if there was none.
    pub code: i32,
    /// The chain that was built, from the leaf on; not complete if there was an error.
    pub chain: Vec<Certificate>,
}

impl Store {
    /// Returns a store of the certificates and lists of bundles. With `check_crls` each certificate of a chain needs a
    /// list of its issuer that does not name it.
    pub fn new<'a>(bundles: impl IntoIterator<Item = &'a Bundle>, check_crls: bool) -> Self {
        // SAFETY: a constructor without arguments.
        let store = Store(unsafe { Owned::new(c::X509_STORE_new()) }.expect("memory for a store"));
        for bundle in bundles {
            for certificate in &bundle.certificates {
                // SAFETY: both objects are valid; the store takes a reference of its own. Duplicates are no error.
                unsafe { c::X509_STORE_add_cert(store.0.as_ptr(), certificate.as_ptr()) };
            }
            for crl in &bundle.crls {
                // SAFETY: as above.
                unsafe { c::X509_STORE_add_crl(store.0.as_ptr(), crl.as_ptr()) };
            }
        }
        if check_crls {
            let flags = c::X509_V_FLAG_CRL_CHECK | c::X509_V_FLAG_CRL_CHECK_ALL;
            // SAFETY: the store is valid.
            unsafe { c::X509_STORE_set_flags(store.0.as_ptr(), flags.cast_unsigned().into()) };
        }
        raw::clear();
        store
    }

    /// Ends chains also at certificates of the store that are not self-issued.
    pub fn trust_intermediates(&self) {
        // SAFETY: the store is valid.
        unsafe { c::X509_STORE_set_flags(self.0.as_ptr(), c::X509_V_FLAG_PARTIAL_CHAIN.cast_unsigned().into()) };
    }

    /// Returns the store for libcrypto's functions.
    pub(super) fn as_ptr(&self) -> *mut c::X509_STORE {
        self.0.as_ptr()
    }

    /// Verifies a leaf with the certificates that came with it, at the time `now` (seconds since 1970). `decide` gets
    /// number and depth of each error, and returns whether it is ignored.
    pub fn verify(
        &self,
        leaf: &Certificate,
        others: &[Certificate],
        purpose: Purpose,
        now: i64,
        decide: &mut dyn FnMut(i32, u32) -> bool,
    ) -> Verification {
        let mut untrusted = Stack::<c::X509>::borrowing();
        for certificate in others {
            untrusted.push(certificate.as_ptr());
        }
        let default = match purpose {
            Purpose::Client => c"ssl_client",
            Purpose::Server => c"ssl_server",
        };
        let mut decision: Decision<'_> = decide;
        // SAFETY: the store, the leaf, the stack and the decision outlive the context, which is freed in this function;
        // its parameters are its own. Index 0 of a context's data is the application's.
        unsafe {
            let context = Owned::new(c::X509_STORE_CTX_new()).expect("memory for a context");
            let ptr = context.as_ptr();
            let ready = c::X509_STORE_CTX_init(ptr, self.0.as_ptr(), leaf.as_ptr(), untrusted.as_ptr()) == 1
                && c::X509_STORE_CTX_set_default(ptr, default.as_ptr()) == 1
                && c::X509_STORE_CTX_set_ex_data(ptr, 0, (&raw mut decision).cast::<c_void>()) == 1;
            assert!(ready, "memory for a context");
            c::X509_STORE_CTX_set_time_posix(ptr, 0, now);
            c::X509_STORE_CTX_set_verify_cb(ptr, Some(on_certificate));
            let mut accepted = c::X509_verify_cert(ptr) == 1;
            let mut code = codes::from_library(c::X509_STORE_CTX_get_error(ptr));
            // aws-lc verifies no more of a lone certificate whose missing issuer is ignored; OpenSSL looks at its dates.
            if accepted
                && code == codes::LEAF_SIGNATURE
                && let Some(outdated) = period_error(leaf, now)
            {
                (accepted, code) = (decision(outdated, 0), outdated);
            }
            let chain = borrowed_chain(c::X509_STORE_CTX_get0_chain(ptr));
            raw::clear();
            Verification { accepted, code, chain }
        }
    }
}

/// Returns the error of a certificate that is not valid at a time.
fn period_error(certificate: &Certificate, now: i64) -> Option<i32> {
    // SAFETY: the certificate lives as long as the borrow, and owns its dates.
    let [start, end] = unsafe {
        let ptr = certificate.as_ptr();
        [c::X509_get0_notBefore(ptr), c::X509_get0_notAfter(ptr)].map(|date| c::X509_cmp_time_posix(date, now))
    };
    match (start, end) {
        (1.., _) => Some(codes::CERT_NOT_YET_VALID),
        (_, ..=-1) => Some(codes::CERT_HAS_EXPIRED),
        (0, _) => Some(codes::BAD_NOT_BEFORE),
        (_, 0) => Some(codes::BAD_NOT_AFTER),
        _ => None,
    }
}

/// What [`on_certificate`] calls.
type Decision<'a> = &'a mut dyn FnMut(i32, u32) -> bool;

/// Passes an error to the decision of [`Store::verify`]. libcrypto calls it for each error, and for each certificate
/// without one.
///
/// # Safety
///
/// libcrypto passes a valid context, whose application data is the decision.
unsafe extern "C" fn on_certificate(ok: c_int, context: *mut c::X509_STORE_CTX) -> c_int {
    if ok == 1 {
        return 1;
    }
    // SAFETY: `verify` stored the decision, which outlives the context; nothing else uses it meanwhile.
    unsafe {
        let code = codes::from_library(c::X509_STORE_CTX_get_error(context));
        let depth = u32::try_from(c::X509_STORE_CTX_get_error_depth(context)).unwrap_or(0);
        let decision = c::X509_STORE_CTX_get_ex_data(context, 0).cast::<Decision<'_>>();
        let ignored = (*decision)(code, depth);
        raw::clear();
        c_int::from(ignored)
    }
}

/// Returns references to the certificates of a chain that belongs to another object.
///
/// # Safety
///
/// `chain` is null or a valid stack of certificates.
unsafe fn borrowed_chain(chain: *const c::stack_st_X509) -> Vec<Certificate> {
    if chain.is_null() {
        return Vec::new();
    }
    // SAFETY: the stack is valid, and the index is below the number of elements.
    unsafe {
        let stack = chain.cast();
        (0..c::OPENSSL_sk_num(stack)).map(|i| Certificate::shared(c::OPENSSL_sk_value(stack, i).cast())).collect()
    }
}
