//! X.509 by libcrypto of aws-lc: certificates, revocation lists, keys, and their output by fetches and the runtime API.
//!
//! This module is the only one of the crate with `unsafe` code. Its functions take and return safe types; objects of
//! libcrypto are owned by `raw::Owned`, and pointers do not leave the module. A parsed object does not change, so it is
//! shared between threads; the library protects the caches of an object with the object's lock. No function here opens
//! a file or reads the environment.
//!
//! aws-lc-sys binds these functions on Linux of x86-64, aarch64, riscv64 and i686; elsewhere it binds the cryptography
//! alone, and this crate does not compile.
//!
//! Functions of libcrypto leave errors in a queue of the thread: every function here that calls a failing one empties it.

mod bundle;
mod certificate;
pub mod codes;
mod facts;
mod forge;
mod host;
mod key;
mod name;
mod ocsp;
mod raw;
mod request;
mod signature;
mod store;

pub use bundle::{Bundle, Crl};
pub use certificate::{Certificate, ChainError, PemFile, Pool};
pub use key::{Curve, KeyError, KeyType, PrivateKey, Secret};
pub use name::Name;
pub use ocsp::{BasicResponse, CertificateId, Response, SingleResponse};
pub use request::{NewKey, certificate_request};
pub use signature::{Algorithm, Hash, RSA_BITS};
pub use store::{Purpose, Store, Verification};

#[cfg(test)]
mod tests;
