//! Parsing of headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Addresses, Header, SIGNATURE, crc32c, tlv};

/// The longest header of version 1, its line end included.
pub const V1_MAX: usize = 107;

/// The start of the addresses and TLVs of a header of version 2.
const V2_START: usize = 16;

/// The longest value of a unique id and of an authority that HAProxy accepts.
const UNIQUE_ID_MAX: usize = 128;
const AUTHORITY_MAX: usize = 255;

/// The reason why bytes are not a header. The texts are those of HAProxy's log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The bytes are not the start of either version.
    #[error("Received something which does not look like a PROXY protocol header")]
    NotAHeader,
    /// The bytes begin like a header, but are not a valid one.
    #[error("Received an invalid PROXY protocol header")]
    Invalid,
    /// Version 1 with an unknown protocol.
    #[error("Received an unhandled protocol in the PROXY protocol header")]
    Protocol,
}

/// The TLVs of a header of version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs(Box<[u8]>);

impl Tlvs {
    /// Returns the type and value of each TLV, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (kind, value, behind) = split(rest).ok().flatten()?;
            rest = behind;
            Some((kind, value))
        })
    }

    /// Returns the value of the first one of a type.
    pub fn get(&self, kind: u8) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == kind).map(|(_, value)| value)
    }
}

/// Reads a header at the start of `bytes`; `None` if more is needed to tell. A header longer than `limit` is refused.
///
/// ```
/// use sluicegate_wire::proxy_protocol::{Addresses, read};
///
/// let header = read(b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\nGET /", 16384).unwrap().unwrap();
/// assert_eq!(header.len, 40);
/// assert!(matches!(header.addresses, Addresses::Inet { source, .. } if source == "192.0.2.1:5000".parse().unwrap()));
/// assert!(read(b"PROXY TC", 16384).unwrap().is_none());
/// assert!(read(b"GET / HTTP/1.1", 16384).is_err());
/// ```
pub fn read(bytes: &[u8], limit: usize) -> Result<Option<Header>, HeaderError> {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(one, other)| one == other);
    if begins(b"PROXY ") {
        return read_v1(&bytes[..bytes.len().min(V1_MAX)]);
    }
    if begins(&SIGNATURE) {
        return read_v2(bytes, limit);
    }
    Err(HeaderError::NotAHeader)
}

fn read_v1(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        return if bytes.len() < V1_MAX { Ok(None) } else { Err(HeaderError::Invalid) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(HeaderError::Invalid)?;
    let line = std::str::from_utf8(line).map_err(|_| HeaderError::Invalid)?;
    // Lines shorter than "PROXY " also get here, since their line end comes early.
    let line = line.strip_prefix("PROXY ").ok_or(HeaderError::NotAHeader)?;
    let addresses = match line.split_once(' ') {
        Some(("TCP4", rest)) => inet::<Ipv4Addr>(rest)?,
        Some(("TCP6", rest)) => inet::<Ipv6Addr>(rest)?,
        None if line == "UNKNOWN" => Addresses::Own,
        // HAProxy does not skip what follows UNKNOWN either.
        _ => return Err(HeaderError::Protocol),
    };
    Ok(Some(Header { len: end + 1, local: false, addresses, tlvs: Tlvs::default() }))
}

/// Parses the four words after a protocol: two addresses of its family, two ports.
fn inet<A>(rest: &str) -> Result<Addresses, HeaderError>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let mut words = rest.split(' ');
    let mut address = || words.next()?.parse::<A>().ok().map(Into::into);
    let (source, destination) = (address(), address());
    let mut port = || words.next().and_then(port);
    let (source_port, destination_port) = (port(), port());
    match (source, destination, source_port, destination_port, words.next()) {
        (Some(source), Some(destination), Some(source_port), Some(destination_port), None) => Ok(Addresses::Inet {
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
        }),
        _ => Err(HeaderError::Invalid),
    }
}

/// Parses a port: as in HAProxy, of a number that is too large its lowest bits.
fn port(word: &str) -> Option<u16> {
    let digit = |port: u16, byte: u8| {
        let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
        Some(port.wrapping_mul(10).wrapping_add(digit.into()))
    };
    if word.is_empty() { None } else { word.bytes().try_fold(0, digit) }
}

fn read_v2(bytes: &[u8], limit: usize) -> Result<Option<Header>, HeaderError> {
    let Some(start) = bytes.first_chunk::<V2_START>() else { return Ok(None) };
    if start[12] >> 4 != 2 {
        return Err(HeaderError::NotAHeader);
    }
    let local = match start[12] & 0xf {
        0 => true,
        1 => false,
        _ => return Err(HeaderError::Invalid),
    };
    let len = V2_START + usize::from(u16::from_be_bytes([start[14], start[15]]));
    if len > limit {
        return Err(HeaderError::Invalid);
    }
    let Some(header) = bytes.get(..len) else { return Ok(None) };
    let body = &header[V2_START..];
    let (addresses, rest) = if local { (Addresses::Own, body) } else { addresses_v2(start[13], body)? };
    check(header, rest)?;
    Ok(Some(Header { len, local, addresses, tlvs: Tlvs(rest.into()) }))
}

/// Parses the addresses of the command PROXY, and returns them with the TLVs behind them. HAProxy accepts those of TCP
/// only.
fn addresses_v2(family: u8, body: &[u8]) -> Result<(Addresses, &[u8]), HeaderError> {
    match family {
        0x11 => addresses::<4, 12>(body, |ip| Ipv4Addr::from(ip).into()),
        0x21 => addresses::<16, 36>(body, |ip| Ipv6Addr::from(ip).into()),
        _ => Err(HeaderError::Invalid),
    }
}

/// Returns the addresses of a header of version 2 that [`read()`] has refused for what follows them.
pub fn addresses_of_refused(bytes: &[u8]) -> Option<Addresses> {
    let rest = bytes.strip_prefix(&SIGNATURE)?;
    let (&[0x21, family, high, low], rest) = rest.split_first_chunk()? else { return None };
    let body = rest.get(..usize::from(u16::from_be_bytes([high, low])))?;
    addresses_v2(family, body).ok().map(|(addresses, _)| addresses)
}

/// Parses two addresses of `N` bytes and two ports, `ALL` bytes together.
fn addresses<const N: usize, const ALL: usize>(
    body: &[u8],
    ip: impl Fn([u8; N]) -> IpAddr,
) -> Result<(Addresses, &[u8]), HeaderError> {
    let (all, rest) = body.split_at_checked(ALL).ok_or(HeaderError::Invalid)?;
    let part = |at: usize| all[at..at + N].try_into().expect("as long as said");
    let port = |at: usize| u16::from_be_bytes([all[at], all[at + 1]]);
    let source = SocketAddr::new(ip(part(0)), port(2 * N));
    let destination = SocketAddr::new(ip(part(N)), port(2 * N + 2));
    Ok((Addresses::Inet { source, destination }, rest))
}

/// Returns the first TLV and what follows it; `None` at the end.
#[allow(clippy::type_complexity)]
fn split(bytes: &[u8]) -> Result<Option<(u8, &[u8], &[u8])>, HeaderError> {
    let [kind, high, low, rest @ ..] = bytes else {
        return if bytes.is_empty() { Ok(None) } else { Err(HeaderError::Invalid) };
    };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    let (value, rest) = rest.split_at_checked(len).ok_or(HeaderError::Invalid)?;
    Ok(Some((*kind, value, rest)))
}

/// Checks every TLV in `rest`, the end of `header`.
fn check(header: &[u8], mut rest: &[u8]) -> Result<(), HeaderError> {
    while let Some((kind, value, behind)) = split(rest)? {
        match kind {
            tlv::CRC32C => {
                let expected = value.try_into().map(u32::from_be_bytes).map_err(|_| HeaderError::Invalid)?;
                let at = header.len() - behind.len() - value.len();
                // The checksum is computed with zeros in its own place.
                let mut state = crc32c::update(!0, &header[..at]);
                state = crc32c::update(state, &[0; 4]);
                if !crc32c::update(state, behind) != expected {
                    return Err(HeaderError::Invalid);
                }
            }
            tlv::UNIQUE_ID if value.len() > UNIQUE_ID_MAX => return Err(HeaderError::Invalid),
            tlv::AUTHORITY if value.len() > AUTHORITY_MAX => return Err(HeaderError::Invalid),
            _ => {}
        }
        rest = behind;
    }
    Ok(())
}

/// The fuzz target: any bytes are a header, the start of one, or none, and the same when they come in pieces.
pub fn fuzz_proxy_protocol(data: &[u8]) {
    let whole = read(data, 16 * 1024);
    let Ok(Some(header)) = &whole else {
        // More bytes never turn invalid data into a header.
        if whole.is_err() {
            let longer = [data, b"\r\n"].concat();
            assert_eq!(read(&longer, 16 * 1024), whole);
        }
        return;
    };
    assert!(header.len <= data.len());
    for cut in (0..header.len).step_by(header.len / 40 + 1) {
        assert_eq!(read(&data[..cut], 16 * 1024), Ok(None), "cut at {cut}");
    }
    assert_eq!(read(&data[..header.len], 16 * 1024), whole);
    let bytes: usize = header.tlvs.iter().map(|(_, value)| 3 + value.len()).sum();
    assert_eq!(bytes, header.tlvs.0.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{NoRoom, Writer, write_v1};
    use super::*;

    const LIMIT: usize = 16 * 1024;

    /// Reads `bytes` followed by other bytes; `expected` describes the result.
    fn check_read(bytes: &[u8], expected: &str) {
        let described = match read(bytes, LIMIT) {
            Ok(Some(header)) => {
                let addresses = match header.addresses {
                    Addresses::Own => "own".to_owned(),
                    Addresses::Inet { source, destination } => format!("{source} > {destination}"),
                };
                let tlvs: String = header
                    .tlvs
                    .iter()
                    .map(|(kind, value)| format!(" {kind:02x}={}", String::from_utf8_lossy(value)))
                    .collect();
                format!("{}{addresses}{tlvs} +{}", if header.local { "local " } else { "" }, bytes.len() - header.len)
            }
            Ok(None) => "more".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(described, expected, "{:?}", String::from_utf8_lossy(bytes));
    }

    #[test]
    fn version_1() {
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\nGET", "192.0.2.1:5000 > 192.0.2.2:80 +3"),
            ("PROXY TCP6 2001:db8::1 ::ffff:1.2.3.4 0 65535\r\n", "[2001:db8::1]:0 > [::ffff:1.2.3.4]:65535 +0"),
            ("PROXY UNKNOWN\r\nx", "own +1"),
            ("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "Protocol"),
            ("PROXY TCP4\r\n", "Protocol"),
            ("", "more"),
            ("PROX", "more"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r", "more"),
            ("PROXX", "NotAHeader"),
            ("GET / HTTP/1.1\r\n", "NotAHeader"),
            ("PROXY\r\n", "NotAHeader"),
            ("PROXY UDP4 192.0.2.1 192.0.2.2 5000 80\r\n", "Protocol"),
            ("PROXY \r\n", "Protocol"),
            ("PROXY tcp4 192.0.2.1 192.0.2.2 5000 80\r\n", "Protocol"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5000\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5000 80 1\r\n", "Invalid"),
            ("PROXY TCP4  192.0.2.1 192.0.2.2 5000 80\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 +5000 80\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5000 65537\r\n", "192.0.2.1:5000 > 192.0.2.2:1 +0"),
            ("PROXY TCP4 192.0.2.1 192.0.2.2  80\r\n", "Invalid"),
            ("PROXY TCP4 2001:db8::1 192.0.2.2 5000 80\r\n", "Invalid"),
            ("PROXY TCP6 192.0.2.1 192.0.2.2 5000 80\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2 5000 80\r\n", "Invalid"),
        ] {
            check_read(line.as_bytes(), expected);
        }
        // No line end within the longest header there is.
        check_read(&[b"PROXY UNKNOWN".as_slice(), &[b'x'; 95]].concat(), "Invalid");
        check_read(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 92]].concat(), "more");
    }

    /// A header of version 2 from its 13th and 14th byte and what follows the length.
    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, body].concat()
    }

    #[test]
    fn version_2() {
        let inet = [192, 0, 2, 1, 192, 0, 2, 2, 0x13, 0x88, 0, 80];
        let with = |tlvs: &[u8]| v2(0x21, 0x11, &[&inet[..], tlvs].concat());
        check_read(&[with(b"").as_slice(), b"GET"].concat(), "192.0.2.1:5000 > 192.0.2.2:80 +3");
        check_read(&with(b"\x02\0\x01a\x05\0\x02id"), "192.0.2.1:5000 > 192.0.2.2:80 02=a 05=id +0");
        check_read(&with(b"\x04\0\0\xe0\0\x01x"), "192.0.2.1:5000 > 192.0.2.2:80 04= e0=x +0");
        check_read(&v2(0x20, 0, b""), "local own +0");
        check_read(&v2(0x20, 0x11, b"\x05\0\x02id"), "local own 05=id +0");
        let mut inet6 = [0; 36];
        inet6[15] = 1;
        inet6[31] = 2;
        inet6[35] = 80;
        check_read(&v2(0x21, 0x21, &inet6), "[::1]:0 > [::2]:80 +0");
        for bad in [
            v2(0x22, 0x11, &inet),
            v2(0x21, 0x11, &inet[1..]),
            v2(0x21, 0x21, &inet),
            v2(0x21, 0x31, &[0; 216]),
            v2(0x21, 0x12, &inet),
            v2(0x21, 0, b""),
            v2(0x20, 0x11, &inet),
            with(b"\x02"),
            with(b"\x02\0"),
            with(b"\x02\0\x02a"),
            with(b"\x03\0\x03abc"),
            with(b"\x03\0\x04abcd"),
            with(&[b"\x05\0\x81".as_slice(), &[b'i'; 129]].concat()),
            with(&[b"\x02\x01\0".as_slice(), &[b'i'; 256]].concat()),
            v2(0x21, 0x11, &[0; LIMIT]),
        ] {
            check_read(&bad, "Invalid");
        }
        check_read(&v2(0x11, 0x11, &inet), "NotAHeader");
        check_read(b"\r\n\r\n\0\r\nQUIx", "NotAHeader");
        check_read(&v2(0x21, 0x11, &inet)[..27], "more");
    }

    #[test]
    fn a_checksum_is_verified() {
        let mut out = Vec::new();
        let mut writer = Writer::new(Some("192.0.2.1:1".parse().unwrap()), Some("192.0.2.2:2".parse().unwrap()));
        writer.checksum();
        writer.tlv(tlv::UNIQUE_ID, b"id").unwrap();
        writer.finish(&mut out);
        assert!(matches!(read(&out, LIMIT), Ok(Some(header)) if header.tlvs.get(tlv::UNIQUE_ID) == Some(b"id")));
        // Byte 28 is the checksum's type: with another one there is no checksum.
        for at in (12..out.len()).filter(|at| *at != 28) {
            let mut broken = out.clone();
            broken[at] ^= 1;
            assert!(!matches!(read(&broken, LIMIT), Ok(Some(header)) if !header.local), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            source: SocketAddr, destination: SocketAddr, sum: bool,
            tlvs in proptest::collection::vec((0xe0_u8..=0xef, proptest::collection::vec(any::<u8>(), 0..300)), 0..6),
        ) {
            let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
            let (source, destination) = (plain(source), plain(destination));
            let mut v1 = Vec::new();
            write_v1(Some(source), Some(destination), &mut v1);
            let header = read(&v1, LIMIT).unwrap().unwrap();
            prop_assert_eq!(header.len, v1.len());
            let both = source.is_ipv4() == destination.is_ipv4();
            let told = |address: SocketAddr| match address.ip() {
                IpAddr::V4(ip) if !both => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
                _ => address,
            };
            prop_assert_eq!(header.addresses, Addresses::Inet { source: told(source), destination: told(destination) });

            let mut writer = Writer::new(Some(source), Some(destination));
            if sum {
                writer.checksum();
            }
            for (kind, value) in &tlvs {
                writer.tlv(*kind, value).unwrap();
            }
            let mut v2 = Vec::new();
            writer.finish(&mut v2);
            let header = read(&v2, LIMIT).unwrap().unwrap();
            prop_assert_eq!(header.len, v2.len());
            let Addresses::Inet { source: from, destination: to } = header.addresses else {
                return Err(TestCaseError::fail("no addresses"));
            };
            prop_assert_eq!((from.ip().to_canonical(), from.port()), (source.ip().to_canonical(), source.port()));
            prop_assert_eq!((to.ip().to_canonical(), to.port()), (destination.ip().to_canonical(), destination.port()));
            let read: Vec<_> = header.tlvs.iter().filter(|(kind, _)| *kind >= 0xe0).collect();
            let written: Vec<_> = tlvs.iter().map(|(kind, value)| (*kind, &value[..])).collect();
            prop_assert_eq!(read, written);
            fuzz_proxy_protocol(&v1);
            fuzz_proxy_protocol(&v2);
        }

        #[test]
        fn any_bytes_are_read(
            start in prop_oneof![Just(&b""[..]), Just(&b"PROXY TCP4 "[..]), Just(&b"PROXY "[..]),
                Just(&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0"[..]), Just(&b"\r\n\r\n\0\r\nQUIT\n"[..])],
            rest in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b' '), Just(b'1'), Just(b'.'), Just(b'\n'), Just(0)], 0..200),
        ) {
            fuzz_proxy_protocol(&[start, &rest].concat());
        }
    }

    #[test]
    fn a_header_has_room_for_what_its_length_can_say() {
        let mut writer = Writer::new(None, None);
        assert_eq!(writer.tlv(0xe0, &[0; 65_532]), Ok(()));
        assert_eq!(writer.tlv(0xe0, b""), Err(NoRoom));
        let mut writer = Writer::new(None, None);
        assert_eq!(writer.tlv(0xe0, &[0; 65_536]), Err(NoRoom));
    }
}
