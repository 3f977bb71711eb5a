//! Which responses may be stored, for how long, and which requests have what they ask for already (RFC 9111 and 9110,
//! narrowed as HAProxy does).

use sluicegate_config::model::CacheSection;
use sluicegate_wire::http::Message;

use super::Entry;
use super::request::{ACCEPT_ENCODING, ORIGIN, REFERER, StreamCache, VaryKey};
use crate::date::unix_seconds;
use crate::http_date::parse_http_date;
use crate::sample::header_values;

/// The maximum of Age.
pub(super) const AGE_MAX: u64 = 1 << 31;

fn begins(value: &[u8], name: &[u8]) -> bool {
    value.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

/// Returns the fields by which a response varies with the request's values of them; `None` if it may not be stored
/// because of them.
pub(super) fn vary(response: &Message, config: &CacheSection, stream: &StreamCache) -> Option<(u8, VaryKey)> {
    let mut signature = 0;
    for value in header_values(response, b"vary", false) {
        if !config.vary {
            return None;
        }
        let known: [(&[u8], u8); 3] =
            [(b"accept-encoding", ACCEPT_ENCODING), (b"referer", REFERER), (b"origin", ORIGIN)];
        signature |= known.iter().find(|(name, _)| value.eq_ignore_ascii_case(name))?.1;
    }
    if signature == 0 {
        return Some((0, VaryKey::default()));
    }
    Some((signature, stream.vary?.reduced(signature)))
}

/// Returns the key under which a response is stored: with the codings that it has.
pub(super) fn stored_vary(response: &Message, signature: u8, asked: &VaryKey) -> Option<VaryKey> {
    if signature & ACCEPT_ENCODING == 0 {
        return Some(*asked);
    }
    asked.with_codings(header_values(response, b"content-encoding", false))
}

/// Returns whether a response permits to be stored.
pub(super) fn may_store(response: &Message) -> bool {
    if response.first(b"pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache")) {
        return false;
    }
    let (mut stored, mut with_cookie) = (true, true);
    let (mut fresh, mut zero_age) = (false, false);
    for value in header_values(response, b"cache-control", false) {
        let is = |name: &[u8]| value.eq_ignore_ascii_case(name);
        if is(b"public") {
            (stored, with_cookie) = (true, true);
        } else if is(b"max-age=0") {
            zero_age = true;
        } else if is(b"private") || is(b"no-cache") || is(b"no-store") || is(b"s-maxage=0") {
            (stored, with_cookie) = (false, false);
        } else if begins(value, b"no-cache=\"set-cookie") {
            with_cookie = false;
        } else if begins(value, b"s-maxage") {
            (fresh, zero_age) = (true, false);
        } else if begins(value, b"max-age") {
            fresh = true;
        }
    }
    let known = |name: &[u8]| response.first(name).is_some();
    stored && with_cookie && !zero_age && (fresh || known(b"expires") || known(b"etag") || known(b"last-modified"))
}

/// The lifetime of a response.
pub(super) struct Life {
    /// Seconds since 1970.
    pub(super) expires: i64,
    /// The age that it had when it was received.
    pub(super) age: u64,
    /// The time of its last change, in seconds since 1970.
    pub(super) modified: i64,
}

/// Returns the number behind `name=`: `None` if there is none, and an error if it is not valid.
fn seconds(value: &[u8], name: &[u8]) -> Option<Result<i64, ()>> {
    let rest = value.get(name.len()..).filter(|_| begins(value, name))?.strip_prefix(b"=")?;
    let rest = rest.strip_prefix(b"\"").unwrap_or(rest);
    if rest.is_empty() {
        return None;
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(&rest[..digits]).ok().filter(|digits| !digits.is_empty());
    Some(text.ok_or(()).map(|digits| digits.parse().unwrap_or(i64::MAX)))
}

impl Life {
    /// Returns a response's lifetime, and removes its Age; `None` if it must not be stored.
    pub(super) fn of(response: &mut Message, config: &CacheSection) -> Option<Life> {
        let now = unix_seconds();
        let (mut shared, mut own) = (None, None);
        for value in header_values(response, b"cache-control", false) {
            if let Some(age) = seconds(value, b"s-maxage") {
                shared = Some(age.ok()?);
            }
            if let Some(age) = seconds(value, b"max-age") {
                own = Some(age.ok()?);
            }
        }
        let expires = || response.first(b"expires").map(|date| parse_http_date(date).map_or(0, |at| (at - now).max(0)));
        let positive = |age: Option<i64>| age.filter(|age| *age > 0);
        let by_date = if shared.is_none() && own.is_none() { expires() } else { None };
        let announced = positive(shared).or_else(|| positive(own)).or(by_date);
        let limit = i64::try_from(config.max_age.as_secs()).unwrap_or(i64::MAX);
        let life = announced.map_or(limit, |age| age.min(limit));
        let age = match header_values(response, b"age", false).next() {
            None => 0,
            Some(value) => {
                let age = std::str::from_utf8(value).ok()?.parse::<u64>().ok()?.min(AGE_MAX);
                // HAProxy stores neither a response whose age is 0 nor one that is stale.
                if age == 0 || age as i64 > announced.unwrap_or(0) {
                    return None;
                }
                age
            }
        };
        let dated = |name: &[u8]| response.first(name).and_then(parse_http_date).filter(|at| *at != 0);
        let modified = dated(b"last-modified").or_else(|| dated(b"date")).unwrap_or(now);
        response.delete_all(b"age");
        Some(Life { expires: now + life, age, modified })
    }
}

/// Returns the opaque part of an entity tag; `None` if it is malformed.
fn tag(value: &[u8]) -> Option<&[u8]> {
    let quoted = value.strip_prefix(b"W/").unwrap_or(value);
    (quoted.len() >= 2 && quoted.starts_with(b"\"") && quoted.ends_with(b"\"")).then_some(quoted)
}

/// Returns whether a request asks for a response only if it differs from what the client has, and it does not.
pub(crate) fn not_modified(request: &Message, entry: &Entry) -> bool {
    let mut asked = false;
    for value in header_values(request, b"if-none-match", false) {
        asked = true;
        if value == b"*" {
            return true;
        }
        let Some(own) = entry.head.first(b"etag") else { return false };
        if tag(own).is_some_and(|own| tag(value) == Some(own)) {
            return true;
        }
    }
    let since = || request.first(b"if-modified-since").and_then(parse_http_date);
    !asked && since().is_some_and(|since| entry.modified <= since)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use sluicegate_config::model::Position;
    use sluicegate_wire::http::Version;

    use super::*;

    fn response(fields: &[(&str, &str)]) -> Message {
        let mut response = Message::new();
        response.set_response(Version::Http11, 200, b"OK");
        fields.iter().for_each(|(name, value)| _ = response.add(name.as_bytes(), value.as_bytes()));
        response
    }

    /// Returns the definition of a small cache.
    pub(in crate::cache) fn config() -> CacheSection {
        let at = Position { file: "f".into(), line: 1, column: 1 };
        let (size, object_size) = (1 << 20, 1 << 12);
        CacheSection {
            name: "c".into(),
            size,
            object_size,
            max_age: Duration::from_secs(60),
            vary: true,
            secondary_entries: 10,
            store: None,
            at,
        }
    }

    #[test]
    fn a_response_says_whether_it_may_be_stored() {
        for (fields, expected) in [
            (&[][..], false),
            (&[("etag", "\"a\"")], true),
            (&[("last-modified", "x")], true),
            (&[("expires", "x")], true),
            (&[("cache-control", "max-age=3")], true),
            (&[("cache-control", "max-age=0")], false),
            (&[("cache-control", "max-age=0, s-maxage=4")], true),
            (&[("cache-control", "s-maxage=0")], false),
            (&[("cache-control", "no-store, max-age=3")], false),
            (&[("cache-control", "private"), ("etag", "\"a\"")], false),
            (&[("cache-control", "private, public, max-age=3")], true),
            (&[("cache-control", "no-cache=\"set-cookie\", max-age=3")], false),
            (&[("cache-control", "public")], false),
            (&[("pragma", "no-cache"), ("etag", "\"a\"")], false),
        ] {
            assert_eq!(may_store(&response(fields)), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_lifetime_is_the_shortest_that_applies() {
        for (fields, expected) in [
            (&[("cache-control", "max-age=3")][..], Some((3, 0))),
            (&[("cache-control", "max-age=3, s-maxage=5")], Some((5, 0))),
            (&[("cache-control", "max-age=\"7\"")], Some((7, 0))),
            (&[("cache-control", "max-age=300")], Some((60, 0))),
            (&[("cache-control", "max-age=x")], None),
            (&[("etag", "\"a\"")], Some((60, 0))),
            (&[("expires", "never")], Some((0, 0))),
            (&[("cache-control", "max-age=30"), ("age", "20")], Some((30, 20))),
            (&[("cache-control", "max-age=30"), ("age", "31")], None),
            (&[("cache-control", "max-age=30"), ("age", "0")], None),
            (&[("cache-control", "max-age=30"), ("age", "x")], None),
            (&[("etag", "\"a\""), ("age", "1")], None),
        ] {
            let mut response = response(fields);
            let now = unix_seconds();
            let life = Life::of(&mut response, &config()).map(|life| (life.expires - now, life.age));
            // The second may change between the two readings of the clock.
            let near =
                |life: (i64, u64)| expected.is_some_and(|want| (0..2).contains(&(life.0 - want.0)) && life.1 == want.1);
            assert!(life.map_or(expected.is_none(), near), "{fields:?} {life:?}");
            assert!(expected.is_none() || response.first(b"age").is_none());
        }
    }
}
