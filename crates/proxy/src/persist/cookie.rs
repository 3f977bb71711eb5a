//! The cookie that names a client's server (`cookie` in a backend), parsed from requests and set in responses.
//!
//! HAProxy logs it as two letters: the state of the client's cookie (none, invalid, down, valid, expired, old, unused)
//! and the treatment of the server's (none, passed, deleted, inserted, rewritten, updated).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::model::{CookieMode, PersistenceCookie, ProxyKind};

use super::cacheable::kept;
use super::is_usable;
use crate::site::Site;
use crate::stream::StreamContext;

/// A date may be so far ahead before it counts as expired; HAProxy's limit for clocks that differ.
const FUTURE: u64 = 86_400;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A date as cookies carry it: units of four seconds, 30 bits in five digits.
fn append_date(seconds: u64, out: &mut Vec<u8>) {
    let number = seconds >> 2;
    out.extend((0..5).map(|digit| DIGITS[(number >> (24 - 6 * digit)) as usize & 63]));
}

fn read_date(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte).map(|at| at as u64);
    let number = text.get(..5)?.iter().try_fold(0, |number, byte| Some(number << 6 | digit(byte)?))?;
    (number > 0).then_some(number << 2)
}

/// Returns a `Cookie` field's value after applying `edit` to each cookie of the name; `edit` returns the new value or
/// removal.
fn edited(field: &[u8], name: &[u8], mut edit: impl FnMut(&[u8]) -> Edit) -> Option<Vec<u8>> {
    let mut changed = false;
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for part in field.split(|byte| *byte == b';') {
        let cookie = part.trim_ascii();
        let at = cookie.iter().position(|byte| *byte == b'=');
        let found = at.filter(|at| cookie[..*at].trim_ascii_end() == name);
        let Some(at) = found else {
            kept.push(part.to_vec());
            continue;
        };
        match edit(cookie[at + 1..].trim_ascii_start()) {
            Edit::Keep => kept.push(part.to_vec()),
            Edit::Drop => changed = true,
            Edit::Value(value) => {
                changed = true;
                let before = &part[..part.len() - part.trim_ascii_start().len()];
                kept.push([before, name, b"=", &value].concat());
            }
        }
    }
    changed.then(|| kept.join(&b';').trim_ascii().to_vec())
}

enum Edit {
    Keep,
    Drop,
    Value(Vec<u8>),
}

/// Looks for the cookie in the request: the server that it names is asked for, and what servers should not see goes.
pub(crate) fn request(cx: &mut StreamContext, backend: &Site) {
    let Some(cookie) = &backend.config.cookie else { return };
    cx.persistence.letters = (b'N', b'N');
    let name = cookie.name.as_bytes();
    let fields: Vec<_> = cx.request.fields_named(b"cookie").map(|(id, value)| (id, value.to_vec())).collect();
    for (id, field) in fields {
        let value = edited(&field, name, |value| one(cx, backend, cookie, value));
        match value {
            Some(value) if value.is_empty() => cx.request.delete(id),
            Some(value) => cx.request.set_value(id, &value),
            None => {}
        }
    }
    log(cx, cookie);
}

/// Returns whether the letters of the cookie are logged: it is more than looked at.
fn is_logged(cookie: &PersistenceCookie) -> bool {
    cookie.mode.is_some() || cookie.indirect
}

fn log(cx: &mut StreamContext, cookie: &PersistenceCookie) {
    if is_logged(cookie) {
        cx.log.cookie = cx.persistence.letters;
    }
}

/// Records for the log that the stream has come to a backend, whose cookie was not looked for yet.
pub(crate) fn at_backend(cx: &mut StreamContext, backend: &Site) {
    if backend.config.cookie.as_ref().is_some_and(is_logged) && backend.config.kind != ProxyKind::Frontend {
        cx.log.cookie = (b'N', b'N');
    }
}

/// One occurrence of the cookie.
fn one(cx: &mut StreamContext, backend: &Site, cookie: &PersistenceCookie, value: &[u8]) -> Edit {
    let prefix = cookie.mode == Some(CookieMode::Prefix);
    let mut named = value;
    let mut rest = None;
    if prefix {
        if let Some(at) = value.iter().position(|byte| *byte == b'~') {
            (named, rest) = (&value[..at], Some(&value[at + 1..]));
        }
    } else if let Some(at) = value.iter().position(|byte| *byte == b'|') {
        named = &value[..at];
        let mut dates = value[at + 1..].split(|byte| *byte == b'|');
        cx.persistence.dates = (dates.next().and_then(read_date), dates.next().and_then(read_date));
    }
    let now = seconds();
    let is_over = |date: Option<u64>, limit: Option<std::time::Duration>| match (date, limit) {
        (Some(date), Some(limit)) => now > date + limit.as_secs() || date > now + FUTURE,
        _ => false,
    };
    let (last, first) = cx.persistence.dates;
    let letter = &mut cx.persistence.letters.0;
    for (over, word) in [(is_over(last, cookie.maxidle), b'E'), (is_over(first, cookie.maxlife), b'O')] {
        if over {
            (*letter, named) = (word, b"");
            cx.persistence.dates = (None, None);
        }
    }
    let ignored = cx.persistence.ignored || cx.persistence.server.is_some();
    let mut found = false;
    if !named.is_empty() && !ignored {
        for (index, server) in backend.named_by_cookie(named) {
            let up = server.shared.status().is_running();
            cx.persistence.letters.0 = if up { b'V' } else { b'D' };
            if is_usable(backend, server, cx.persistence.forced) {
                cx.persistence.server = Some(index);
                found = true;
                break;
            }
        }
    }
    let letter = &mut cx.persistence.letters.0;
    // The result of an earlier occurrence stays.
    if !found && *letter == b'N' {
        *letter = if ignored { b'U' } else { b'I' };
    }
    match rest {
        Some(rest) => Edit::Value(rest.to_vec()),
        None if cookie.mode == Some(CookieMode::Insert) && cookie.indirect => Edit::Drop,
        None => Edit::Keep,
    }
}

/// Sees to the cookie in the response: the server's own, and the one that the client is to have.
pub(crate) fn response(cx: &mut StreamContext, backend: &Site) {
    let Some(cookie) = &backend.config.cookie else { return };
    // The place of 'dispatch' is none of the backend's servers.
    let server = cx.log.server.as_ref().filter(|server| Arc::ptr_eq(&server.backend, &backend.backend));
    let Some(index) = server.map(|server| server.shared.index) else { return };
    let own = backend.cookie_of(index);
    let direct = cx.persistence.server == Some(index);
    if !direct && cx.persistence.letters.0 == b'V' {
        // It was asked for and could not be had.
        cx.persistence.letters.0 = b'D';
    }
    servers_own(cx, cookie, own.as_deref(), direct);
    insert(cx, cookie, own.as_deref(), direct);
    log(cx, cookie);
}

/// Adds the cookie where the client has to get it: it is at another server than it asked for, or the dates change.
fn insert(cx: &mut StreamContext, cookie: &PersistenceCookie, own: Option<&str>, direct: bool) {
    let (last, first) = cx.persistence.dates;
    let now = seconds();
    let renew = (cookie.maxidle.is_some() || last.is_some()) && last.is_none_or(|last| last < now)
        || cookie.maxlife.is_some() != first.is_some();
    let left = cookie.preserve && cx.persistence.letters.1 == b'P';
    let wanted = cookie.mode == Some(CookieMode::Insert)
        && !left
        && (!direct || renew)
        && (!cookie.postonly || cx.request.sent_method() == b"POST")
        && !cx.persistence.ignored;
    if !wanted {
        return;
    }
    let mut value = cookie.name.as_bytes().to_vec();
    value.push(b'=');
    match own {
        // A client that was at another server shall forget it.
        None => value.extend_from_slice(b"; Expires=Thu, 01-Jan-1970 00:00:01 GMT; path=/"),
        Some(own) => {
            value.extend_from_slice(own.as_bytes());
            if cookie.maxidle.is_some() || cookie.maxlife.is_some() {
                value.push(b'|');
                append_date(now + 3, &mut value);
                if cookie.maxlife.is_some() {
                    value.push(b'|');
                    append_date(first.unwrap_or(now + 3), &mut value);
                }
            }
            value.extend_from_slice(b"; path=/");
        }
    }
    value.extend_from_slice(cookie.suffix.as_bytes());
    let cacheable = cookie.nocache && kept(cx).response;
    cx.response.add(b"Set-Cookie", &value);
    cx.persistence.letters.1 = if own.is_some() && direct { b'U' } else { b'I' };
    if cacheable {
        cx.response.add(b"Cache-Control", b"private");
    }
}

/// Handles the cookie of a server that sets it itself.
fn servers_own(cx: &mut StreamContext, cookie: &PersistenceCookie, own: Option<&str>, direct: bool) {
    let name = cookie.name.as_bytes();
    let fields: Vec<_> = cx.response.fields_named(b"set-cookie").map(|(id, value)| (id, value.to_vec())).collect();
    for (id, field) in fields {
        let end = field.iter().position(|byte| *byte == b';').unwrap_or(field.len());
        let Some(at) = field[..end].iter().position(|byte| *byte == b'=') else { continue };
        if field[..at].trim_ascii() != name {
            continue;
        }
        let (before, value, after) = (&field[..=at], &field[at + 1..end], &field[end..]);
        let letter = &mut cx.persistence.letters.1;
        *letter = b'P';
        if cookie.preserve {
            continue;
        }
        match (cookie.mode, own) {
            (Some(CookieMode::Insert), _) => {
                cx.response.delete(id);
                *letter = b'D';
            }
            _ if direct && cookie.indirect => {
                cx.response.delete(id);
                *letter = b'D';
            }
            (Some(CookieMode::Rewrite), Some(own)) => {
                cx.response.set_value(id, &[before, own.as_bytes(), after].concat());
                *letter = b'R';
            }
            (Some(CookieMode::Prefix), Some(own)) => {
                cx.response.set_value(id, &[before, own.as_bytes(), b"~", value, after].concat());
                *letter = b'R';
            }
            _ => {}
        }
    }
}

/// Edits any bytes as a `Cookie` field: the result is part of it, cookies of other names are unchanged, and a second
/// pass changes nothing.
pub fn fuzz_cookies(data: &[u8]) {
    let others = |field: &[u8]| {
        let named = |part: &&[u8]| {
            part.trim_ascii().split(|byte| *byte == b'=').next().map(<[u8]>::trim_ascii_end) != Some(b"s")
        };
        field.split(|byte| *byte == b';').filter(named).map(|part| part.trim_ascii().to_vec()).collect::<Vec<_>>()
    };
    let mut seen = 0;
    let none = edited(data, b"s", |value| {
        seen += 1;
        assert!(value.len() < data.len());
        Edit::Keep
    });
    assert_eq!(none, None);
    let dropped = edited(data, b"s", |_| Edit::Drop);
    assert_eq!(dropped.is_some(), seen > 0);
    if let Some(left) = dropped {
        assert!(left.len() < data.len());
        assert_eq!(edited(&left, b"s", |_| Edit::Drop), None);
    }
    if let Some(changed) = edited(data, b"s", |_| Edit::Value(b"new".to_vec())) {
        let mut values = 0;
        edited(&changed, b"s", |value| {
            values += usize::from(value == b"new");
            Edit::Keep
        });
        assert_eq!((values, others(&changed)), (seen, others(data)));
    }
    let _ = read_date(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_field_is_survived(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            fuzz_cookies(&data);
        }

        #[test]
        fn nearly_cookies_are_survived(data in "([s;= a]|s=|; ){0,30}") {
            fuzz_cookies(data.as_bytes());
        }
    }

    #[test]
    fn dates_are_read_as_they_are_written() {
        for date in [4, 1_000_000_000, 1_800_000_000, 4_294_967_292] {
            let mut text = Vec::new();
            append_date(date, &mut text);
            assert_eq!((text.len(), read_date(&text)), (5, Some(date)));
        }
        for bad in [&b""[..], b"AAAA", b"AAAAA", b"AA-AA"] {
            assert_eq!(read_date(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn cookies_go_and_change_among_others() {
        let check = |field: &str, expected: Option<&str>| {
            let found = edited(field.as_bytes(), b"s", |value| match value {
                b"drop" => Edit::Drop,
                b"keep" => Edit::Keep,
                value => Edit::Value(value.to_ascii_uppercase()),
            });
            assert_eq!(found.map(|v| String::from_utf8_lossy(&v).into_owned()).as_deref(), expected, "{field}");
        };
        check("a=1; s=drop; b=2", Some("a=1; b=2"));
        check("s=drop", Some(""));
        check("s=drop; b=2", Some("b=2"));
        check("a=1;s=drop", Some("a=1"));
        check("a=1; s=keep", None);
        check("a=1; s=x; ss=x", Some("a=1; s=X; ss=x"));
        check("a; s; =s", None);
    }
}
