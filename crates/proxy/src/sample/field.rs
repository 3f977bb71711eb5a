//! Header fields as lists, and cookies inside them.
//!
//! A header field's value is a comma-separated list unless it is asked for whole (`fhdr`). Commas inside quoted
//! strings do not separate (RFC 9110 5.6.1), and empty elements count, as in HAProxy.

use sluicegate_wire::http::Message;

/// Removes optional white space (space, tab) from both ends.
pub fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// An iterator over the elements of a value; a comma inside a quoted string does not separate.
#[derive(Clone)]
struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        // Most values have no comma: one scan decides.
        let end = match memchr::memchr2(b',', b'"', rest) {
            None => rest.len(),
            Some(at) if rest[at] == b',' => at,
            Some(_) => unquoted(rest, [b',', b',']),
        };
        self.rest = if end < rest.len() { Some(&rest[end + 1..]) } else { None };
        Some(trim(&rest[..end]))
    }
}

/// Returns the elements of a field's value, each a part of it.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    Elements { rest: Some(value) }
}

/// Returns the position of the first separator outside a quoted string, or the length if there is none.
fn unquoted(text: &[u8], separators: [u8; 2]) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (index, byte) in text.iter().enumerate() {
        if escaped {
            escaped = false;
        } else if quoted {
            match byte {
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
        } else if *byte == b'"' {
            quoted = true;
        } else if separators.contains(byte) {
            return index;
        }
    }
    text.len()
}

/// Returns the values of a header by name, in order; an empty name selects every header. With `whole` values are not
/// split at commas.
pub fn header_values<'a>(message: &'a Message, name: &'a [u8], whole: bool) -> impl Iterator<Item = &'a [u8]> {
    message.fields().filter(move |(_, field, _)| name.is_empty() || field.eq_ignore_ascii_case(name)).flat_map(
        move |(_, _, value)| {
            let (list, one) = if whole { (None, Some(trim(value))) } else { (Some(value), None) };
            Elements { rest: list }.chain(one)
        },
    )
}

/// The names and values of one cookie in one field.
struct CookieValues<'a> {
    rest: &'a [u8],
    name: &'a [u8],
    /// Whether the field is a list of pairs (`Cookie`); otherwise pairs of other names end the search (`Set-Cookie`).
    list: bool,
}

impl<'a> Iterator for CookieValues<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        // HAProxy stops where a name, its `=` and one more byte cannot follow, so it sees no cookie in `name=` at the
        // very end of a field.
        while self.rest.len() > self.name.len() + 1 {
            let pair = self.rest;
            let list = self.list;
            let ends_name = |byte: &u8| *byte == b'=' || *byte == b';' || (list && *byte == b',');
            let name_end = pair.iter().position(ends_name).unwrap_or(pair.len());
            let found = trim(&pair[..name_end]);
            let mut value = None;
            let mut end = name_end;
            if pair.get(name_end) == Some(&b'=') {
                // Quotes count in values only.
                let text = &pair[name_end + 1..];
                end = name_end + 1 + unquoted(text, [b';', b',']);
                value = Some(trim(&pair[name_end + 1..end]));
            }
            self.rest = pair.get(end + 1..).unwrap_or(b"");
            // A name that begins with `$` is an attribute of RFC 2965.
            let Some(value) = value.filter(|_| !found.starts_with(b"$")) else { continue };
            if self.name.is_empty() || found == self.name {
                return Some((found, value));
            }
            if !list {
                break;
            }
        }
        None
    }
}

/// Returns the values of a cookie by name in the request's `Cookie` fields, in order; an empty name selects every
/// cookie.
pub fn cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let pairs = |(_, rest)| CookieValues { rest, name, list: true };
    message.fields_named(b"cookie").flat_map(pairs).map(|(_, value)| value)
}

/// Returns the names of the cookies in the request's `Cookie` fields, in order.
pub fn cookie_names(message: &Message) -> impl Iterator<Item = &[u8]> {
    let pairs = |(_, rest)| CookieValues { rest, name: b"", list: true };
    message.fields_named(b"cookie").flat_map(pairs).map(|(name, _)| name)
}

/// Returns the names of the cookies in the response's `Set-Cookie` fields, one of each element.
pub fn set_cookie_names(message: &Message) -> impl Iterator<Item = &[u8]> {
    let first = |rest| CookieValues { rest, name: b"", list: false }.next();
    set_cookie_elements(message).filter_map(first).map(|(name, _)| name)
}

/// Returns the values of a cookie by name in the response's `Set-Cookie` fields, in order.
pub fn set_cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let pairs = move |rest| CookieValues { rest, name, list: false };
    set_cookie_elements(message).flat_map(pairs).map(|(_, value)| value)
}

/// Returns the elements of the `Set-Cookie` fields. As in HAProxy a comma separates them, though one may stand in a date.
fn set_cookie_elements(message: &Message) -> impl Iterator<Item = &[u8]> {
    message.fields_named(b"set-cookie").flat_map(|(_, value)| elements(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(fields: &[&str], expected: &[&str], whole: bool) {
        let mut message = Message::new();
        fields.iter().for_each(|field| {
            message.add(b"X", field.as_bytes());
        });
        let values: Vec<_> = header_values(&message, b"x", whole).map(String::from_utf8_lossy).collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn headers_are_lists() {
        check(&["a"], &["a"], false);
        check(&[""], &[""], false);
        check(&["a,,b ", " c"], &["a", "", "b", "c"], false);
        check(&["a,"], &["a", ""], false);
        check(&["\"a,b\",c"], &["\"a,b\"", "c"], false);
        check(&[r#""a\",b",c"#], &[r#""a\",b""#, "c"], false);
        check(&["\"never closed, a"], &["\"never closed, a"], false);
        check(&[" a,b ", "c"], &["a,b", "c"], true);
    }

    #[track_caller]
    fn check_cookies(field: &str, name: &str, expected: &[&str]) {
        let mut message = Message::new();
        message.add(b"Cookie", field.as_bytes());
        let values: Vec<_> = cookies(&message, name.as_bytes()).map(String::from_utf8_lossy).collect();
        assert_eq!(values, expected, "Cookie: {field}");
    }

    #[test]
    fn cookies_are_found_as_haproxy_finds_them() {
        check_cookies("a=1; b=2, a = 3 ", "a", &["1", "3"]);
        check_cookies("a=1; b=2", "", &["1", "2"]);
        check_cookies("a=\"1;b=2\"; b=3", "b", &["3"]);
        check_cookies("b=; b=2", "b", &["", "2"]);
        check_cookies("b=2;b=", "b", &["2"]);
        check_cookies("b=2; b=", "b", &["2", ""]);
        check_cookies("\"a=1; $a=2; a=3", "a", &["3"]);
        check_cookies("b; B=1; bb=2", "b", &[]);
    }

    #[test]
    fn set_cookies_end_at_another_name() {
        let mut message = Message::new();
        message.add(b"Set-Cookie", b"a=1,2; path=/; b=3");
        message.add(b"set-cookie", b"a=4; a=5");
        assert_eq!(set_cookies(&message, b"a").collect::<Vec<_>>(), [&b"1"[..], b"4", b"5"]);
        assert_eq!(set_cookies(&message, b"b").count(), 0);
    }
}
