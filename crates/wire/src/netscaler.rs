//! NetScaler's Client IP insertion protocol: the original addresses of a connection, sent before its first byte.
//!
//! A header is a magic number that both sides agree on, the header's length, and a copy of the client's IP and TCP
//! headers, of which addresses and ports are read. Two forms are known, with 8 and with 12 bytes before the copy. The
//! limits are HAProxy's: a copy has at least an IP header of its version and a TCP header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::proxy_protocol::Addresses;

/// The longest header.
pub const LEN_MAX: usize = 12 + 60 + 60;

/// Bytes of a TCP header without options.
const TCP: usize = 20;

/// The protocol number of TCP.
const PROTOCOL_TCP: u8 = 6;

/// The reason why bytes are not a header. The texts are those of HAProxy's log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CipError {
    /// They begin with another number.
    #[error("Received an invalid NetScaler Client IP magic number")]
    Magic,
    /// The form, the version of IP or the protocol is unknown.
    #[error("Received an unhandled protocol in the NetScaler Client IP header")]
    Protocol,
}

/// Reads a header at the start of `bytes`; returns its length and the addresses, or `None` if more is needed to tell.
///
/// ```
/// use sluicegate_wire::netscaler::read;
///
/// assert_eq!(read(b"GET / HTTP/1.1\r\n\r\n", 1), Err(sluicegate_wire::netscaler::CipError::Magic));
/// assert_eq!(read(&[0, 0, 0, 1], 1), Ok(None));
/// ```
pub fn read(bytes: &[u8], magic: u32) -> Result<Option<(usize, Addresses)>, CipError> {
    let magic = magic.to_be_bytes();
    if bytes.iter().zip(magic).any(|(one, other)| *one != other) {
        return Err(CipError::Magic);
    }
    let Some(start) = bytes.first_chunk::<12>() else { return Ok(None) };
    let number = |at: usize| u32::from_be_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]) as usize;
    let (before, length) = match start[8] {
        // Without a type of its own: the copy of the IP header begins here.
        first if first & 0xd0 == 0x40 => (8, number(4)),
        0 => (12, usize::from(u16::from_be_bytes([start[10], start[11]]))),
        _ => return Err(CipError::Protocol),
    };
    let Some(first) = bytes.get(before) else { return Ok(None) };
    let (least, protocol_at, ports_at) = match first >> 4 {
        4 => (20 + TCP, 9, usize::from(first & 0xf) * 4),
        6 => (40 + TCP, 6, 40),
        _ => return Err(CipError::Protocol),
    };
    if ports_at < least - TCP {
        return Err(CipError::Protocol);
    }
    let length = length.max(ports_at + TCP);
    if before + length > LEN_MAX {
        return Err(CipError::Protocol);
    }
    let Some(copy) = bytes.get(before..before + length) else { return Ok(None) };
    if copy[protocol_at] != PROTOCOL_TCP {
        return Err(CipError::Protocol);
    }
    let ip = |at: usize| -> IpAddr {
        match first >> 4 {
            4 => Ipv4Addr::from(copy[at..].first_chunk::<4>().copied().unwrap_or_default()).into(),
            _ => Ipv6Addr::from(copy[at..].first_chunk::<16>().copied().unwrap_or_default()).into(),
        }
    };
    let (source, destination) = if first >> 4 == 4 { (ip(12), ip(16)) } else { (ip(8), ip(24)) };
    let port = |at: usize| u16::from_be_bytes([copy[at], copy[at + 1]]);
    let source = SocketAddr::new(source, port(ports_at));
    let destination = SocketAddr::new(destination, port(ports_at + 2));
    Ok(Some((before + length, Addresses::Inet { source, destination })))
}

/// The fuzz target: any bytes are a header, the start of one, or none, and the same when they come in pieces.
pub fn fuzz_netscaler(data: &[u8]) {
    const MAGIC: u32 = 0x4e53_4350;
    for data in [data.to_vec(), [&MAGIC.to_be_bytes()[..], data].concat()] {
        let whole = read(&data, MAGIC);
        for end in 0..data.len() {
            match read(&data[..end], MAGIC) {
                Ok(None) => {}
                part => assert_eq!(part, whole, "{end} bytes"),
            }
        }
        if let Ok(Some((length, _))) = whole {
            assert!(length <= data.len() && length <= LEN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(
            start in prop_oneof![Just(&b""[..]), Just(&[0, 0, 0, 40, 0x45][..]), Just(&[0, 0, 0, 60, 0x60][..]),
                Just(&[0, 0, 0, 52, 0, 0, 0, 40, 0x45][..])],
            rest in proptest::collection::vec(prop_oneof![any::<u8>(), Just(6), Just(0)], 0..140),
        ) {
            fuzz_netscaler(&[start, &rest].concat());
        }
    }

    /// Returns a copy of the headers of a connection of IPv4 from 192.0.2.1:5000 to 192.0.2.2:80.
    fn copy4() -> Vec<u8> {
        let mut copy = vec![0; 40];
        (copy[0], copy[9]) = (0x45, PROTOCOL_TCP);
        copy[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        copy[20..24].copy_from_slice(&[0x13, 0x88, 0, 80]);
        copy
    }

    #[test]
    fn both_forms_give_the_addresses() {
        let expected =
            Addresses::Inet { source: "192.0.2.1:5000".parse().unwrap(), destination: "192.0.2.2:80".parse().unwrap() };
        let legacy = [&[0, 0, 0, 9, 0, 0, 0, 40][..], &copy4(), b"GET"].concat();
        assert_eq!(read(&legacy, 9), Ok(Some((48, expected))));
        let standard = [&[0, 0, 0, 9, 0, 0, 0, 52, 0, 0, 0, 40][..], &copy4(), b"GET"].concat();
        assert_eq!(read(&standard, 9), Ok(Some((52, expected))));
        assert_eq!(read(&standard[..51], 9), Ok(None));
        let mut copy = vec![0; 60];
        (copy[0], copy[6], copy[23], copy[39], copy[41]) = (0x60, PROTOCOL_TCP, 1, 2, 7);
        let six = [&[0, 0, 0, 9, 0, 0, 0, 72, 0, 0, 0, 60][..], &copy].concat();
        let expected = Addresses::Inet { source: "[::1]:7".parse().unwrap(), destination: "[::2]:0".parse().unwrap() };
        assert_eq!(read(&six, 9), Ok(Some((72, expected))));
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(read(b"x", 9), Err(CipError::Magic));
        let mut header = [&[0, 0, 0, 9, 0, 0, 0, 40][..], &copy4()].concat();
        header[8 + 9] = 17;
        assert_eq!(read(&header, 9), Err(CipError::Protocol));
        header[8] = 0x15;
        assert_eq!(read(&header, 9), Err(CipError::Protocol));
        // A copy that is shorter than its IP header says, or longer than any.
        let short = [&[0, 0, 0, 9, 0, 0, 0, 40, 0x41][..], &[0; 50]].concat();
        assert_eq!(read(&short, 9), Err(CipError::Protocol));
        let long = [&[0, 0, 0, 9, 0, 1, 0, 0, 0x45][..], &[0; 50]].concat();
        assert_eq!(read(&long, 9), Err(CipError::Protocol));
    }
}
