//! The parts of a request's target (RFC 9112 3.2), and hashes of them.

use std::net::{IpAddr, Ipv4Addr};

use crate::sample::value::leading_ipv4;

/// Returns the path of a target: from its first `/` (after the authority, in absolute form) up to the `?` or the end. A
/// `#`, which `option accept-invalid-http-request` admits, belongs to it, as in HAProxy.
pub fn path(target: &[u8]) -> Option<&[u8]> {
    let path = path_and_query(target)?;
    let end = memchr::memchr(b'?', path).unwrap_or(path.len());
    Some(&path[..end])
}

/// Returns the path and the query of a target; `*` and the authority of CONNECT have none.
pub fn path_and_query(target: &[u8]) -> Option<&[u8]> {
    match target {
        [b'/', ..] => Some(target),
        _ => {
            let scheme = target.windows(3).position(|window| window == b"://")?;
            let authority = &target[scheme + 3..];
            memchr::memchr(b'/', authority).map(|slash| &authority[slash..])
        }
    }
}

/// Returns the query of a target: after the first `?`.
pub fn query(target: &[u8]) -> Option<&[u8]> {
    memchr::memchr(b'?', target).map(|mark| &target[mark + 1..])
}

/// Returns the IPv4 address and the port of a target in absolute form; without a port, the default of the scheme.
pub(super) fn address(target: &[u8]) -> Option<(Ipv4Addr, u16)> {
    let scheme = target.windows(3).position(|window| window == b"://")?;
    let rest = &target[scheme + 3..];
    let (ip, used) = leading_ipv4(rest)?;
    let default = if target[..scheme].eq_ignore_ascii_case(b"https") { 443 } else { 80 };
    let port = match rest.get(used) {
        Some(b':') => {
            let digits = rest[used + 1..].iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(0u32, |port, digit| (port * 10 + u32::from(digit - b'0')).min(u32::from(u16::MAX))) as u16
        }
        _ => default,
    };
    Some((ip, port))
}

/// Returns a header's value as an address: IPv4 with or without a port, IPv6 with or without brackets.
pub(super) fn header_address(text: &[u8]) -> Option<IpAddr> {
    if let Some((ip, used)) = leading_ipv4(text) {
        let port = |digits: &[u8]| {
            let number = digits.iter().try_fold(0_u32, |number, digit| {
                digit.is_ascii_digit().then(|| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
            });
            !digits.is_empty() && number.is_some_and(|number| number <= u32::from(u16::MAX))
        };
        let good = match text.get(used) {
            None => true,
            Some(b':') => port(&text[used + 1..]),
            Some(_) => false,
        };
        return good.then_some(IpAddr::V4(ip));
    }
    let bare = text.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")).unwrap_or(text);
    std::str::from_utf8(bare).ok()?.parse().ok().map(IpAddr::V6)
}

/// Computes HAProxy's hash of texts for `base32` and `url32`: sdbm over all of them, then Bob Jenkins's full avalanche.
pub(super) fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u32 {
    // Bytes count with their sign, as C's `char` does where HAProxy runs.
    let sdbm = parts.flatten().fold(0u32, |hash, byte| {
        (*byte as i8 as u32).wrapping_add(hash << 6).wrapping_add(hash << 16).wrapping_sub(hash)
    });
    let mut hash = sdbm;
    hash = hash.wrapping_add(0x7ed5_5d16).wrapping_add(hash << 12);
    hash = (hash ^ 0xc761_c23c) ^ (hash >> 19);
    hash = hash.wrapping_add(0x1656_67b1).wrapping_add(hash << 5);
    hash = hash.wrapping_add(0xd3a2_646c) ^ (hash << 9);
    hash = hash.wrapping_add(0xfd70_46c5).wrapping_add(hash << 3);
    hash = (hash ^ 0xb55a_4f09) ^ (hash >> 16);
    // HAProxy spreads its hashes over the upper half once more, by a prime near 3/4 of 2^32.
    hash.wrapping_mul(3_221_225_473)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_every_form_have_their_path() {
        let check = |target: &str, path_: Option<&str>, query_: Option<&str>| {
            let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            assert_eq!(text(path(target.as_bytes())).as_deref(), path_, "path of {target}");
            assert_eq!(text(query(target.as_bytes())).as_deref(), query_, "query of {target}");
        };
        check("/a/b?c?d", Some("/a/b"), Some("c?d"));
        check("/a?", Some("/a"), Some(""));
        check("/a", Some("/a"), None);
        check("/a#f?x", Some("/a#f"), Some("x"));
        check("http://h/p?q", Some("/p"), Some("q"));
        check("http://h", None, None);
        check("*", None, None);
        check("h:443", None, None);
    }

    #[test]
    fn absolute_targets_have_addresses() {
        let check = |target: &str, expected: Option<(&str, u16)>| {
            let found = address(target.as_bytes()).map(|(ip, port)| (ip.to_string(), port));
            assert_eq!(found, expected.map(|(ip, port)| (ip.to_owned(), port)), "{target}");
        };
        check("http://10.0.0.1/", Some(("10.0.0.1", 80)));
        check("https://10.0.0.1", Some(("10.0.0.1", 443)));
        check("http://10.0.0.1:8080/x", Some(("10.0.0.1", 8080)));
        check("http://example.com/", None);
        check("/10.0.0.1", None);
    }
}
