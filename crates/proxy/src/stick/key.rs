//! Keys: a sample as a table of some type knows it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluicegate_config::model::TableKey;
use sluicegate_pattern::embedded_ipv4;
use sluicegate_wire::peers;
use smallvec::SmallVec;

use crate::sample::{Sample, Value};

/// A key as 32-bit words of the length that its table's type has, padded with zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub(super) SmallVec<[u32; 8]>);

/// Returns the number of words of a key.
pub(super) fn words(kind: TableKey) -> usize {
    match kind {
        TableKey::Ip | TableKey::Integer => 1,
        TableKey::Ipv6 => 4,
        TableKey::Str(len) | TableKey::Bin(len) => len.div_ceil(4) as usize,
    }
}

impl Key {
    /// Returns the key for a sample; `None` if it cannot be cast.
    pub fn new(kind: TableKey, value: &Value<'_>) -> Option<Key> {
        Some(match kind {
            TableKey::Ip => match address(value, false)? {
                IpAddr::V4(ip) => Key(SmallVec::from_slice(&[ip.into()])),
                IpAddr::V6(ip) => Key(SmallVec::from_slice(&[embedded_ipv4(ip)?.into()])),
            },
            TableKey::Ipv6 => Key::v6(match address(value, true)? {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            }),
            TableKey::Integer => Key(SmallVec::from_slice(&[value.to_int()? as u32])),
            TableKey::Str(len) => value.with_text(|text| {
                let text = &text[..memchr::memchr(0, text).unwrap_or(text.len())];
                Key::bytes(text, len)
            }),
            TableKey::Bin(len) => Key::bytes(&value.clone().into_bytes(), len),
        })
    }

    /// Parses a key in the notation of the stats socket; returns `None` if it is invalid.
    pub fn parse(kind: TableKey, text: &str) -> Option<Key> {
        match kind {
            TableKey::Ip => Some(Key(SmallVec::from_slice(&[text.parse::<Ipv4Addr>().ok()?.into()]))),
            TableKey::Ipv6 => Some(Key::v6(text.parse().ok()?)),
            TableKey::Integer => Some(Key(SmallVec::from_slice(&[text.parse().ok()?]))),
            TableKey::Str(len) => Some(Key::bytes(text.as_bytes(), len)),
            TableKey::Bin(_) => None,
        }
    }

    /// Returns the key that a peer sends; `None` if it is one of another type.
    pub(crate) fn of_peer(kind: TableKey, key: &peers::Key<'_>) -> Option<Key> {
        Some(match (kind, key) {
            (TableKey::Integer, peers::Key::Integer(number)) => Key(SmallVec::from_slice(&[*number])),
            (TableKey::Ip, peers::Key::Bytes(bytes)) => {
                Key(SmallVec::from_slice(&[u32::from_be_bytes(bytes.first_chunk().copied()?)]))
            }
            (TableKey::Ipv6, peers::Key::Bytes(bytes)) => Key::v6(Ipv6Addr::from(bytes.first_chunk::<16>().copied()?)),
            (TableKey::Bin(len), peers::Key::Bytes(bytes)) => Key::bytes(bytes, len),
            (TableKey::Str(len), peers::Key::Text(text)) => {
                Key::bytes(&text[..memchr::memchr(0, text).unwrap_or(text.len())], len)
            }
            _ => return None,
        })
    }

    fn v6(ip: Ipv6Addr) -> Key {
        Key(ip.octets().chunks_exact(4).map(|part| u32::from_be_bytes([part[0], part[1], part[2], part[3]])).collect())
    }

    fn bytes(bytes: &[u8], len: u32) -> Key {
        let bytes = &bytes[..bytes.len().min(len as usize)];
        let mut words: SmallVec<[u32; 8]> = bytes
            .chunks(4)
            .map(|part| {
                let mut word = [0; 4];
                word[..part.len()].copy_from_slice(part);
                u32::from_le_bytes(word)
            })
            .collect();
        words.resize(len.div_ceil(4) as usize, 0);
        Key(words)
    }
}

/// Returns a sample as an address; a text must be an address of the requested family, as in HAProxy's casts.
fn address(value: &Value<'_>, v6: bool) -> Option<IpAddr> {
    match value {
        Value::Str(_) => value.to_ip().filter(|ip| ip.is_ipv6() == v6),
        _ => value.to_ip(),
    }
}

/// Returns a key's bytes, without the padding.
fn bytes(words: &[u32], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

fn v6(words: &[u32]) -> Ipv6Addr {
    let word = |at: usize| u128::from(words.get(at).copied().unwrap_or(0)) << (96 - 32 * at);
    Ipv6Addr::from(word(0) | word(1) | word(2) | word(3))
}

/// Calls `f` with the form of an entry's key that peers are sent, and with the bytes that HAProxy has in memory.
pub(crate) fn for_peer<R>(kind: TableKey, words: &[u32], f: impl FnOnce(&peers::Key<'_>, &[u8]) -> R) -> R {
    let mut buffer = SmallVec::<[u8; 64]>::new();
    match kind {
        TableKey::Integer => f(&peers::Key::Integer(words[0]), &words[0].to_ne_bytes()),
        TableKey::Ip | TableKey::Ipv6 => {
            buffer.extend(words.iter().flat_map(|word| word.to_be_bytes()));
            f(&peers::Key::Bytes(&buffer), &buffer)
        }
        TableKey::Str(len) | TableKey::Bin(len) => {
            buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            buffer.truncate(len as usize);
            if matches!(kind, TableKey::Bin(_)) {
                return f(&peers::Key::Bytes(&buffer), &buffer);
            }
            buffer.truncate(memchr::memchr(0, &buffer).unwrap_or(buffer.len()));
            f(&peers::Key::Text(&buffer), &buffer)
        }
    }
}

/// Returns the sample for the key of an entry.
pub(super) fn sample(kind: TableKey, words: &[u32]) -> Sample {
    match kind {
        TableKey::Ip => Sample::Ip(IpAddr::V4(words[0].into())),
        TableKey::Ipv6 => Sample::Ip(IpAddr::V6(v6(words))),
        TableKey::Integer => Sample::Int(i64::from(words[0])),
        TableKey::Str(len) => {
            let mut text = bytes(words, len as usize);
            text.truncate(memchr::memchr(0, &text).unwrap_or(text.len()));
            Sample::Str(text)
        }
        TableKey::Bin(len) => Sample::Bin(bytes(words, len as usize)),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[track_caller]
    fn check(kind: TableKey, value: Value<'_>, expected: Option<Sample>) {
        let key = Key::new(kind, &value);
        if let Some(key) = &key {
            assert_eq!(key.0.len(), words(kind), "{kind:?} of {value:?}");
        }
        assert_eq!(key.map(|key| sample(kind, &key.0)), expected, "{kind:?} of {value:?}");
    }

    #[test]
    fn samples_become_keys_as_haproxys_casts_say() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (v4, v6, mapped) = (ip("1.2.3.4"), ip("2001:db8::1"), ip("::ffff:1.2.3.4"));
        check(TableKey::Ip, Value::Ip(v4), Some(Sample::Ip(v4)));
        check(TableKey::Ip, Value::Ip(mapped), Some(Sample::Ip(v4)));
        check(TableKey::Ip, Value::Ip(v6), None);
        check(TableKey::Ip, Value::Ip(ip("2002:102:304::")), Some(Sample::Ip(v4)));
        check(TableKey::Ip, Value::Ip(ip("::1.2.3.4")), Some(Sample::Ip(v4)));
        check(TableKey::Ip, Value::text(b"1.2.3.4"), Some(Sample::Ip(v4)));
        check(TableKey::Ip, Value::text(b"::ffff:1.2.3.4"), None);
        check(TableKey::Ip, Value::Int(0x0102_0304), Some(Sample::Ip(v4)));
        check(TableKey::Ipv6, Value::Ip(v4), Some(Sample::Ip(mapped)));
        check(TableKey::Ipv6, Value::Ip(v6), Some(Sample::Ip(v6)));
        check(TableKey::Ipv6, Value::text(b"1.2.3.4"), None);
        check(TableKey::Ipv6, Value::text(b"2001:db8::1"), Some(Sample::Ip(v6)));
        check(TableKey::Integer, Value::text(b"12a"), Some(Sample::Int(12)));
        check(TableKey::Integer, Value::Int(-1), Some(Sample::Int(4_294_967_295)));
        check(TableKey::Str(5), Value::text(b"abcdefg"), Some(Sample::Str(b"abcde".to_vec())));
        check(TableKey::Str(5), Value::Int(7), Some(Sample::Str(b"7".to_vec())));
        check(TableKey::Str(3), Value::text(b""), Some(Sample::Str(Vec::new())));
        check(TableKey::Bin(3), Value::Bin(Cow::Borrowed(b"a")), Some(Sample::Bin(b"a\0\0".to_vec())));
        check(TableKey::Bin(6), Value::Ip(v4), Some(Sample::Bin(vec![1, 2, 3, 4, 0, 0])));
        check(TableKey::Bin(6), Value::Int(5), Some(Sample::Bin(vec![0; 6])));
    }

    #[test]
    fn keys_of_the_stats_socket() {
        let parse = |kind, text| Key::parse(kind, text).map(|key| sample(kind, &key.0));
        assert_eq!(parse(TableKey::Integer, "7"), Some(Sample::Int(7)));
        assert_eq!(parse(TableKey::Str(2), "abc"), Some(Sample::Str(b"ab".to_vec())));
        assert_eq!(parse(TableKey::Ip, "::1"), None);
        assert_eq!(parse(TableKey::Ipv6, "::1"), Some(Sample::Ip(IpAddr::V6(Ipv6Addr::LOCALHOST))));
        assert_eq!(parse(TableKey::Bin(2), "ab"), None);
    }
}
