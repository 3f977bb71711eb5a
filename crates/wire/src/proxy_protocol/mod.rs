//! The PROXY protocol, versions 1 and 2 (proxy-protocol.txt of HAProxy): the original addresses of a
//! connection, sent before its first byte.
//!
//! [`read()`] parses a header of either version at the start of the input and returns its length; [`write_v1`] and
//! [`Writer`] write one. The accepted headers are those of HAProxy 3.2: version 1 with TCP4, TCP6 and a bare UNKNOWN,
//! version 2 with the commands LOCAL, which has TLVs alone, and PROXY, with addresses of TCP; and every TLV with a
//! correct length and, if it is a checksum, a correct value.
//!
//! **Limits:** a header of version 1 has at most [`V1_MAX`] bytes; one of version 2 as many as the reader is allowed.

mod crc32c;
mod read;
mod write;

use std::net::SocketAddr;

pub use crc32c::crc32c;
pub use read::{HeaderError, Tlvs, V1_MAX, addresses_of_refused, fuzz_proxy_protocol, read};
pub use write::{NoRoom, Writer, write_v1};

/// The twelve bytes that a header of version 2 begins with.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Types of TLVs with a defined meaning.
pub mod tlv {
    /// The protocol that was negotiated by ALPN.
    pub const ALPN: u8 = 0x01;
    /// The host that the client asked for.
    pub const AUTHORITY: u8 = 0x02;
    /// A checksum of the whole header.
    pub const CRC32C: u8 = 0x03;
    /// Padding.
    pub const NOOP: u8 = 0x04;
    /// An identifier of the connection, at most 128 bytes.
    pub const UNIQUE_ID: u8 = 0x05;
    /// Information about the client's TLS; contains TLVs itself.
    pub const SSL: u8 = 0x20;
    /// The version of TLS, within [`SSL`].
    pub const SSL_VERSION: u8 = 0x21;
    /// The common name of the client's certificate, within [`SSL`].
    pub const SSL_CN: u8 = 0x22;
    /// The cipher, within [`SSL`].
    pub const SSL_CIPHER: u8 = 0x23;
    /// The signature algorithm of the proxy's certificate, within [`SSL`].
    pub const SSL_SIG_ALG: u8 = 0x24;
    /// The key algorithm of the proxy's certificate, within [`SSL`].
    pub const SSL_KEY_ALG: u8 = 0x25;
    /// The namespace of the network.
    pub const NETNS: u8 = 0x30;
}

/// The source and destination of the connection according to a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// No addresses that replace the connection's own: UNKNOWN or LOCAL.
    Own,
    /// The client's address and the one it connected to, of the same family.
    Inet {
        /// The client.
        source: SocketAddr,
        /// The destination.
        destination: SocketAddr,
    },
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its length in bytes.
    pub len: usize,
    /// Whether the connection was made by the proxy on its own behalf (a check).
    pub local: bool,
    /// The addresses of the connection.
    pub addresses: Addresses,
    /// The TLVs of version 2, unchanged; they are well-formed.
    pub tlvs: Tlvs,
}
