//! Header fields as lists, and cookies inside them.
//!
//! A header field's value is a comma-separated list unless it is asked for whole (`fhdr`). Commas inside quoted
//! strings do not separate (RFC 9110 5.6.1), and empty elements count, as in HAProxy.

use sluicegate_wire::http::Message;

/// Cuts optional white space (space, tab) at both ends.
pub fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// The parts of a value between separators; a separator inside a quoted string is none.
#[derive(Clone)]
struct Parts<'a> {
    rest: Option<&'a [u8]>,
    separators: [u8; 2],
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        // Most values have no separator: one scan decides.
        let end = match memchr::memchr3(self.separators[0], self.separators[1], b'"', rest) {
            None => rest.len(),
            Some(at) if rest[at] != b'"' => at,
            Some(_) => unquoted(rest, self.separators),
        };
        self.rest = if end < rest.len() { Some(&rest[end + 1..]) } else { None };
        Some(trim(&rest[..end]))
    }
}

/// Where the first separator outside a quoted string stands; the length where there is none.
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

/// The values of a header by name, in order; of every header with an empty name. `whole` leaves commas alone.
pub fn header_values<'a>(message: &'a Message, name: &'a [u8], whole: bool) -> impl Iterator<Item = &'a [u8]> {
    message.fields().filter(move |(_, field, _)| name.is_empty() || field.eq_ignore_ascii_case(name)).flat_map(
        move |(_, _, value)| {
            let (list, one) = if whole { (None, Some(trim(value))) } else { (Some(value), None) };
            Parts { rest: list, separators: [b',', b','] }.chain(one)
        },
    )
}

/// The values of a cookie by name in the request's `Cookie` fields, in order; of every cookie with an empty name.
pub fn cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    message.fields_named(b"cookie").flat_map(move |(_, field)| {
        let pairs = Parts { rest: Some(field), separators: [b';', b','] };
        pairs.filter_map(move |pair| named_value(pair, name, field))
    })
}

/// The values of a cookie by name in the response's `Set-Cookie` fields, in order.
pub fn set_cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    message.fields_named(b"set-cookie").filter_map(move |(_, field)| {
        let pair = Parts { rest: Some(field), separators: [b';', b';'] }.next()?;
        named_value(pair, name, field)
    })
}

/// The value of `name = value`, white space cut. HAProxy sees no cookie in a `name=` that ends its field.
fn named_value<'a>(pair: &'a [u8], name: &[u8], field: &[u8]) -> Option<&'a [u8]> {
    let equals = memchr::memchr(b'=', pair)?;
    let value = trim(&pair[equals + 1..]);
    let ends_field = pair.as_ptr_range().end == trim(field).as_ptr_range().end;
    let named = name.is_empty() || trim(&pair[..equals]) == name;
    (named && !(value.is_empty() && ends_field)).then_some(value)
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
        check_cookies("b=2; b=", "b", &["2"]);
        check_cookies("b; B=1; bb=2", "b", &[]);
    }

    #[test]
    fn set_cookies_have_one_pair() {
        let mut message = Message::new();
        message.add(b"Set-Cookie", b"a=1,2; path=/; b=3");
        message.add(b"set-cookie", b"a=4");
        assert_eq!(set_cookies(&message, b"a").collect::<Vec<_>>(), [&b"1,2"[..], b"4"]);
        assert_eq!(set_cookies(&message, b"b").count(), 0);
    }
}
