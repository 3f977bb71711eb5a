//! TLS without sockets: certificates and keys, their selection for a client, and the rustls configurations that result
//! from the keywords of a `bind` or `server` line.
//!
//! Certificates are parsed and chains are verified by libcrypto of aws-lc ([`x509`], [`verify`]), so that verdicts,
//! depths and error numbers are OpenSSL's. The protocol is rustls. Nothing here opens a file: contents are passed in,
//! with the names that messages show.

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(unsafe_code)]

pub mod bulk;
pub mod connector;
mod equal;
pub mod failure;
pub mod group;
#[cfg(test)]
mod handshakes;
pub mod hello;
#[cfg(test)]
mod interop;
pub mod keylog;
pub mod library;
mod list;
pub mod listener;
pub mod ocsp;
mod options;
pub mod pair;
pub mod policy;
mod recent;
pub mod registry;
pub mod resumption;
pub mod scheme;
pub mod select;
pub mod session;
pub mod signing;
pub mod suite;
#[cfg(test)]
mod testing;
pub mod verify;
pub mod version;
#[allow(unsafe_code)]
pub mod x509;

pub use list::Parsed;
