//! Responses in a store (`store-in` of a `cache` section): their serialised form, and what is accepted of it.
//!
//! A value is a line that names its form, the digest of its URI, four numbers (expiry, time of receipt, age and time of
//! the last change), the length of the head, the head as HTTP/1.1 sends it, and the body. Whoever may write to the store
//! may write anything under these keys, so a value is used only if it is of this form, belongs to this URI, has a head
//! that a server could have sent with a body of this length, and lives no longer than the cache allows.

use sluicegate_config::model::CacheSection;
use sluicegate_wire::http::{Framing, Limits, Message, Method, Version, parse_response};

use super::Entry;
use super::request::{CacheKey, VaryKey};
use super::rules::{AGE_MAX, Life};
use crate::date::unix_seconds;

/// The first line of a value.
const FORM: &[u8] = b"sluicegate cache 1\n";

/// Returns the key of a response in the store: `cache:NAME:` and the digest of its URI in hexadecimal.
pub(super) fn name(cache: &str, key: &CacheKey) -> Vec<u8> {
    use std::fmt::Write as _;
    let mut name = format!("cache:{cache}:");
    // Writing to a string does not fail.
    key.digest().iter().for_each(|byte| _ = write!(name, "{byte:02x}"));
    name.into_bytes()
}

/// Returns the value of a response.
pub(super) fn value(key: &CacheKey, entry: &Entry) -> Vec<u8> {
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    for (_, name, value) in entry.head.fields() {
        [name, b": ", value, b"\r\n"].iter().for_each(|part| head.extend_from_slice(part));
    }
    head.extend_from_slice(b"\r\n");
    let mut out = Vec::with_capacity(FORM.len() + 56 + head.len() + entry.length() as usize);
    out.extend_from_slice(FORM);
    out.extend_from_slice(key.digest());
    for number in [entry.expires, entry.received, entry.age_received() as i64, entry.modified] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&(head.len() as u32).to_le_bytes());
    out.extend_from_slice(&head);
    (0..).map_while(|index| entry.piece(index)).for_each(|piece| out.extend_from_slice(piece));
    out
}

/// Returns the response of a value; `None` if it is not valid.
pub(super) fn read(key: &CacheKey, number: u64, value: &[u8], config: &CacheSection, head_max: usize) -> Option<Entry> {
    let rest = value.strip_prefix(FORM)?.strip_prefix(key.digest())?;
    let (numbers, rest) = rest.split_first_chunk::<32>()?;
    let number_at = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&numbers[index * 8..index * 8 + 8]);
        i64::from_le_bytes(bytes)
    };
    let [expires, received, age, modified] = [0, 1, 2, 3].map(number_at);
    let now = unix_seconds();
    let latest = now.checked_add(i64::try_from(config.max_age.as_secs()).ok()?)?;
    let age = u64::try_from(age).ok().filter(|age| *age <= AGE_MAX)?;
    // The clock of another node may be a little ahead.
    if expires <= now || expires > latest || received > now + 60 || received < 0 {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let (head, body) = rest.split_at_checked(length).filter(|_| length <= head_max)?;
    if rest.len() as u64 > config.object_size {
        return None;
    }
    let mut message = Message::new();
    let limits = Limits { max_head: head_max, ..Limits::default() };
    let parsed = parse_response(head, &limits, Method::Get, &mut message).ok()??;
    let whole = match parsed.body {
        Framing::Length(length) => length == body.len() as u64,
        Framing::Chunked | Framing::UntilClose => true,
        Framing::None => false,
    };
    let plain = message.status() == 200 && message.version() == Version::Http11 && !parsed.tunnel && !parsed.interim;
    if !whole || !plain || parsed.head_len != head.len() || message.first(b"vary").is_some() {
        return None;
    }
    let nothing = VaryKey::default();
    let mut entry = Entry::new(number, &message, (0, nothing, nothing), &Life { expires, age, modified });
    entry.received = received;
    entry.fill(body);
    Some(entry)
}

/// Reads any bytes as a value: what is accepted has the length that it says.
pub fn fuzz_stored(bytes: &[u8]) {
    let at = sluicegate_config::model::Position { file: "".into(), line: 0, column: 0 };
    let config = CacheSection {
        name: "c".into(),
        size: 1 << 20,
        object_size: 1 << 16,
        max_age: std::time::Duration::from_secs(60),
        vary: false,
        secondary_entries: 1,
        store: None,
        at,
    };
    let key = CacheKey::from_digest([7; 20]);
    // The form and the digest alone would stop nearly all bytes.
    let value = [FORM, key.digest(), bytes].concat();
    for value in [bytes, &value] {
        if let Some(entry) = read(&key, 1, value, &config, 8_192) {
            assert!(entry.expires <= unix_seconds() + 60 && entry.length() <= bytes.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rules::tests::config;
    use super::*;

    fn key() -> CacheKey {
        CacheKey::from_digest([7; 20])
    }

    /// Returns the value of a response with these fields.
    fn stored(fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut head = Message::new();
        head.set_response(Version::Http11, 200, b"OK");
        fields.iter().for_each(|(name, value)| _ = head.add(name.as_bytes(), value.as_bytes()));
        let nothing = VaryKey::default();
        let life = Life { expires: unix_seconds() + 30, age: 5, modified: 77 };
        let mut entry = Entry::new(1, &head, (0, nothing, nothing), &life);
        entry.fill(body);
        value(&key(), &entry)
    }

    #[test]
    fn a_response_is_read_as_it_was_stored() {
        let value = stored(&[("content-length", "3"), ("etag", "\"a\"")], b"abc");
        let entry = read(&key(), 9, &value, &config(), 4_096).expect("valid");
        assert_eq!((entry.number, entry.length(), entry.modified), (9, 3, 77));
        assert_eq!(entry.piece(0), Some(&b"abc"[..]));
        assert_eq!(entry.head.first(b"etag"), Some(&b"\"a\""[..]));
        assert!((5..8).contains(&entry.age()));
    }

    #[test]
    fn what_is_not_valid_is_not_used() {
        let good = stored(&[("content-length", "3")], b"abc");
        let reads = |value: &[u8]| read(&key(), 1, value, &config(), 4_096).is_some();
        assert!(reads(&good));
        (0..good.len()).for_each(|end| assert!(!reads(&good[..end]), "{end} bytes"));
        assert!(read(&CacheKey::from_digest([8; 20]), 1, &good, &config(), 4_096).is_none(), "of another URI");
        for (fields, body) in [
            (&[("content-length", "4")][..], &b"abc"[..]),
            (&[("content-length", "3"), ("x\r\ny", "z")], b"abc"),
            (&[("content-length", "3"), ("transfer-encoding", "x")], b"abc"),
            (&[("content-length", "3"), ("vary", "cookie")], b"abc"),
            (&[("transfer-encoding", "chunked")], &[b'a'; 5_000]),
        ] {
            assert!(!reads(&stored(fields, body)), "{fields:?}");
        }
        let expiry = FORM.len() + 20;
        for expires in [0, unix_seconds() - 1, unix_seconds() + 1_000, i64::MAX, i64::MIN] {
            let mut value = good.clone();
            value[expiry..expiry + 8].copy_from_slice(&expires.to_le_bytes());
            assert!(!reads(&value), "expires at {expires}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_stored_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_stored(&bytes);
        }

        #[test]
        fn fuzz_stored_on_nearly_valid_values(at in 0usize..200, byte in any::<u8>()) {
            let mut value = stored(&[("content-length", "3"), ("a", "b")], b"abc");
            let at = at % value.len();
            value[at] = byte;
            fuzz_stored(&value);
            fuzz_stored(&value[FORM.len() + 20..]);
        }
    }
}
