//! Computation of the hash that selects a server (HAProxy configuration manual 4, `balance`, `hash-type`).
//!
//! The hashed part of the request is extracted byte for byte as by HAProxy, because the same client must reach the same
//! server through either program.

use std::net::IpAddr;

use sluicegate_config::model::{HashFunction, HashType};
use sluicegate_wire::http::is_token;

use crate::hash::Hash;
use crate::hash::avalanche;

/// Bob Jenkins's full-avalanche hash, multiplied so that the result spreads over all 32 bits.
pub fn full_hash(value: u32) -> u32 {
    avalanche(value)
}

/// Returns the hash of a key by `hash-type`.
pub fn hash(kind: HashType, key: &[u8]) -> u32 {
    let hash = match kind.function {
        HashFunction::Sdbm => Hash::Sdbm.of(key, 0) as u32,
        HashFunction::Djb2 => Hash::Djb2.of(key, 0) as u32,
        HashFunction::Wt6 => Hash::Wt6.of(key, 0) as u32,
        HashFunction::Crc32 => Hash::Crc32.of(key, 0) as u32,
        HashFunction::None => number(key),
    };
    if kind.avalanche { full_hash(hash) } else { hash }
}

/// Parses the number at the start of a key, up to the first character that is not a digit.
fn number(key: &[u8]) -> u32 {
    let (negative, digits) = match key {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let value = digits.fold(0i64, |value, digit| value.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    (if negative { -value } else { value }) as u32
}

/// Returns the hash of a client's address: its 32-bit words combined by XOR. The function of `hash-type` is not used.
pub fn of_address(kind: HashType, address: IpAddr) -> u32 {
    let folded = match address {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().fold(0, |hash, word| hash ^ u32::from_be_bytes(*word)),
    };
    if kind.avalanche { full_hash(folded) } else { folded }
}

/// Returns the part of a target that `balance uri` hashes: at most `len` bytes, ending before the slash that follows
/// `depth` directories, and before the query unless `whole` is set. A `len` or `depth` of 0 sets no limit.
pub fn uri_part(target: &[u8], len: u32, depth: u32, whole: bool) -> &[u8] {
    let target = match len {
        0 => target,
        len => &target[..target.len().min(len as usize)],
    };
    let mut slashes = 0;
    let end = target.iter().position(|byte| match byte {
        b'/' => {
            slashes += 1;
            depth > 0 && slashes == depth.saturating_add(1)
        }
        b'?' => !whole,
        _ => false,
    });
    &target[..end.unwrap_or(target.len())]
}

/// Returns the value of a parameter in the target's query string.
pub fn parameter<'a>(target: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mark = memchr::memchr(b'?', target)?;
    value_of(&target[mark + 1..], name)
}

/// Returns the value of a parameter in a form-encoded body; `None` also if the body is not a form.
pub fn body_parameter<'a>(body: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = value_of(body, name)?;
    match value.first() {
        // A blank or a line end in place of the value means an empty value; a value that starts with any other byte
        // that no token contains means that the body is not a form.
        Some(b' ' | b'\t' | b'\r' | b'\n') => Some(b""),
        Some(byte) if !is_token(&[*byte]) => None,
        _ => Some(value),
    }
}

fn value_of<'a>(parameters: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut fields = parameters.split(|byte| *byte == b'&');
    fields.find_map(|field| field.strip_prefix(name)?.strip_prefix(b"="))
}

/// Returns the part of a host name that `use_domain_only` hashes: the label before the last dot, or the whole name if
/// it has no dot.
pub fn main_domain(host: &[u8]) -> &[u8] {
    // As in HAProxy, a dot at the start of the name does not count.
    let Some(end) = memchr::memrchr(b'.', host).filter(|end| *end > 0) else { return host };
    let start = memchr::memrchr(b'.', &host[..end]).map_or(0, |dot| dot + 1);
    &host[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_cut_where_haproxy_cuts() {
        for (len, depth, whole, expected) in [
            (0, 0, false, "/a/b/c"),
            (0, 0, true, "/a/b/c?x=/y"),
            (4, 0, false, "/a/b"),
            (0, 1, false, "/a"),
            (0, 2, false, "/a/b"),
            (3, 2, false, "/a/"),
            (0, 9, false, "/a/b/c"),
        ] {
            assert_eq!(uri_part(b"/a/b/c?x=/y", len, depth, whole), expected.as_bytes(), "{len} {depth} {whole}");
        }
    }

    #[test]
    fn parameters_and_domains() {
        assert_eq!(parameter(b"/?xid=1&id=2&id=3", b"id"), Some(&b"2"[..]));
        assert_eq!(parameter(b"/?id=", b"id"), Some(&b""[..]));
        assert_eq!((parameter(b"/?id", b"id"), parameter(b"/id=3", b"id")), (None, None));
        assert_eq!(body_parameter(b"a=1&id=7&b=2", b"id"), Some(&b"7"[..]));
        assert_eq!((body_parameter(b"id=\x01", b"id"), body_parameter(b"id=\r\n", b"id")), (None, Some(&b""[..])));
        assert_eq!(main_domain(b"www.example.com"), b"example");
        assert_eq!(main_domain(b"example.com"), b"example");
        assert_eq!(main_domain(b"localhost"), b"localhost");
        assert_eq!(main_domain(b".com"), b".com");
    }

    #[test]
    fn a_key_may_be_the_hash() {
        let none = HashType { function: HashFunction::None, ..HashType::default() };
        assert_eq!([hash(none, b"123"), hash(none, b"-1"), hash(none, b"7x9"), hash(none, b"")], [123, u32::MAX, 7, 0]);
    }

    #[test]
    fn addresses_fold_their_words() {
        let kind = HashType::default();
        assert_eq!(of_address(kind, [192, 0, 2, 1].into()), 0xc000_0201);
        assert_eq!(of_address(kind, "2001:db8::1".parse().unwrap()), 0x2001_0db8 ^ 1);
        let mixed = HashType { avalanche: true, ..kind };
        assert_eq!(of_address(mixed, [192, 0, 2, 1].into()), full_hash(0xc000_0201));
    }
}
