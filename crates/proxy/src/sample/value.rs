//! A sample and its casts (HAProxy configuration manual 7.1).

use std::net::IpAddr;

/// A typed value.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Boolean.
    Bool(bool),
    /// Signed 64-bit integer.
    Int(i64),
    /// Address.
    Ip(IpAddr),
    /// Text.
    Str(Vec<u8>),
    /// Bytes that print as hexadecimal.
    Bin(Vec<u8>),
    /// An HTTP method.
    Method(Vec<u8>),
}
