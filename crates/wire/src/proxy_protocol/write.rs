//! Serialization of headers, as HAProxy writes them.

use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{SIGNATURE, crc32c, tlv};

/// Appends a header of version 1, with IPv4 mapped to IPv6 if only one of the addresses is IPv6; `UNKNOWN` if one of
/// them is unknown.
pub fn write_v1(source: Option<SocketAddr>, destination: Option<SocketAddr>, out: &mut Vec<u8>) {
    let (Some(source), Some(destination)) = (source, destination) else {
        return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
    };
    let _ = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => write!(out, "PROXY TCP4 {from} {to}"),
        (from, to) => write!(out, "PROXY TCP6 {} {}", mapped(from), mapped(to)),
    };
    let _ = write!(out, " {} {}\r\n", source.port(), destination.port());
}

/// Returns an address as IPv6.
fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The header is longer than its length field can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// A header of version 2 that is being built.
#[derive(Clone, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    checksum_at: Option<usize>,
}

/// The number of bytes before the addresses.
const START: usize = 16;

impl Writer {
    /// Returns a writer for the command PROXY with these addresses, with IPv4 mapped to IPv6 if only one of them is
    /// IPv6; or for LOCAL without addresses if one of them is unknown.
    pub fn new(source: Option<SocketAddr>, destination: Option<SocketAddr>) -> Writer {
        let mut bytes = SIGNATURE.to_vec();
        let (Some(source), Some(destination)) = (source, destination) else {
            bytes.extend_from_slice(&[0x20, 0, 0, 0]);
            return Writer { bytes, checksum_at: None };
        };
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes.extend_from_slice(&[0x21, 0x11, 0, 0]);
                bytes.extend_from_slice(&from.octets());
                bytes.extend_from_slice(&to.octets());
            }
            (from, to) => {
                bytes.extend_from_slice(&[0x21, 0x21, 0, 0]);
                bytes.extend_from_slice(&mapped(from).octets());
                bytes.extend_from_slice(&mapped(to).octets());
            }
        }
        bytes.extend_from_slice(&source.port().to_be_bytes());
        bytes.extend_from_slice(&destination.port().to_be_bytes());
        Writer { bytes, checksum_at: None }
    }

    /// Adds a TLV.
    pub fn tlv(&mut self, kind: u8, value: &[u8]) -> Result<(), NoRoom> {
        let len = u16::try_from(value.len()).map_err(|_| NoRoom)?;
        if self.bytes.len() - START + 3 + value.len() > usize::from(u16::MAX) {
            return Err(NoRoom);
        }
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&len.to_be_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Adds the TLV of a checksum, which is computed at the end; repeated calls have no effect.
    pub fn checksum(&mut self) {
        if self.checksum_at.is_none() && self.tlv(tlv::CRC32C, &[0; 4]).is_ok() {
            self.checksum_at = Some(self.bytes.len() - 4);
        }
    }

    /// Appends the header.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        let len = (self.bytes.len() - START) as u16;
        self.bytes[14..16].copy_from_slice(&len.to_be_bytes());
        if let Some(at) = self.checksum_at {
            let sum = crc32c(&self.bytes);
            self.bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
        }
        out.extend_from_slice(&self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_says_what_it_can() {
        let v1 = |source: &str, destination: &str| {
            let mut out = Vec::new();
            write_v1(source.parse().ok(), destination.parse().ok(), &mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(v1("192.0.2.1:1", "192.0.2.2:65535"), "PROXY TCP4 192.0.2.1 192.0.2.2 1 65535\r\n");
        assert_eq!(v1("[2001:db8::1]:1", "[::1]:2"), "PROXY TCP6 2001:db8::1 ::1 1 2\r\n");
        assert_eq!(v1("[2001:db8::1]:1", "192.0.2.2:2"), "PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 1 2\r\n");
        assert_eq!(v1("", "192.0.2.2:2"), "PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_says_local_without_addresses() {
        let mut out = Vec::new();
        Writer::new(None, None).finish(&mut out);
        assert_eq!(out, [&SIGNATURE[..], &[0x20, 0, 0, 0]].concat());
        let mut out = Vec::new();
        let mut writer = Writer::new(Some("1.2.3.4:5".parse().unwrap()), Some("[::1]:6".parse().unwrap()));
        writer.tlv(tlv::AUTHORITY, b"a.b").unwrap();
        writer.finish(&mut out);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 1, 2, 3, 4];
        let one = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let rest = [0, 5, 0, 6, 2, 0, 3, b'a', b'.', b'b'];
        assert_eq!(out, [&SIGNATURE[..], &[0x21, 0x21, 0, 42], &mapped, &one, &rest].concat());
    }
}
