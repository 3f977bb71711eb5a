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

/// A position among the values of a header, a cookie or a parameter, or among a user's groups. The next read continues
/// there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The index of the field that is being read, or of the next group.
    pub(super) index: usize,
    /// The start of the next element, in bytes from the start of the field's value or of the list of parameters; beyond
    /// its end if there is none.
    pub(super) next: usize,
    /// The unread part of the element of a `Set-Cookie` field that is being read, likewise.
    unread: (usize, usize),
}

impl Cursor {
    /// Returns the value of the field that is being read, or else of the next one of this name.
    fn field<'a>(&mut self, message: &'a Message, name: &[u8]) -> Option<&'a [u8]> {
        let (index, value) = message.named_from(self.index, name)?;
        if index != self.index {
            *self = Cursor { index, ..Cursor::default() };
        }
        Some(value)
    }

    /// Goes on to the next field.
    fn leave_field(&mut self) {
        *self = Cursor { index: self.index + 1, ..Cursor::default() };
    }
}

/// Returns the length of the first element of a list; a comma inside a quoted string does not separate.
fn element_len(list: &[u8]) -> usize {
    // Most values have no comma: one scan decides.
    match memchr::memchr2(b',', b'"', list) {
        None => list.len(),
        Some(at) if list[at] == b',' => at,
        Some(_) => unquoted(list, [b',', b',']),
    }
}

/// Returns the elements of a field's value, each a part of it.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let list = rest?;
        let len = element_len(list);
        rest = list.get(len + 1..);
        Some(trim(&list[..len]))
    })
}

/// Returns whether the last coding of a Transfer-Encoding is `chunked`.
pub(crate) fn is_chunked(value: &[u8]) -> bool {
    elements(value).last().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
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
    let mut cursor = Cursor::default();
    std::iter::from_fn(move || next_header_value(message, name, whole, &mut cursor))
}

/// Returns the one of [`header_values`] that follows the cursor, and advances the cursor.
pub fn next_header_value<'a>(message: &'a Message, name: &[u8], whole: bool, cursor: &mut Cursor) -> Option<&'a [u8]> {
    loop {
        let value = cursor.field(message, name)?;
        if let Some(list) = value.get(cursor.next..) {
            let len = if whole { list.len() } else { element_len(list) };
            cursor.next += len + 1;
            return Some(trim(&list[..len]));
        }
        cursor.leave_field();
    }
}

/// The names and values of one cookie in one field.
struct CookieValues<'a, 'n> {
    rest: &'a [u8],
    name: &'n [u8],
    /// Whether the field is a list of pairs (`Cookie`); otherwise pairs of other names end the search (`Set-Cookie`).
    list: bool,
}

impl<'a> Iterator for CookieValues<'a, '_> {
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
    let mut cursor = Cursor::default();
    std::iter::from_fn(move || next_cookie(message, name, &mut cursor))
}

/// Returns the one of [`cookies`] that follows the cursor, and advances the cursor.
pub fn next_cookie<'a>(message: &'a Message, name: &[u8], cursor: &mut Cursor) -> Option<&'a [u8]> {
    loop {
        let value = cursor.field(message, b"cookie")?;
        let mut pairs = CookieValues { rest: value.get(cursor.next..).unwrap_or_default(), name, list: true };
        if let Some((_, found)) = pairs.next() {
            cursor.next = value.len() - pairs.rest.len();
            return Some(found);
        }
        cursor.leave_field();
    }
}

/// Returns the names of the cookies in the request's `Cookie` fields, in order.
pub fn cookie_names(message: &Message) -> impl Iterator<Item = &[u8]> {
    let pairs = |(_, rest)| CookieValues { rest, name: b"", list: true };
    message.fields_named(b"cookie").flat_map(pairs).map(|(name, _)| name)
}

/// Returns the names of the cookies in the response's `Set-Cookie` fields, one of each element. As in HAProxy a comma
/// separates elements, though one may stand in a date.
pub fn set_cookie_names(message: &Message) -> impl Iterator<Item = &[u8]> {
    let first = |rest| CookieValues { rest, name: b"", list: false }.next();
    let all = message.fields_named(b"set-cookie").flat_map(|(_, value)| elements(value));
    all.filter_map(first).map(|(name, _)| name)
}

/// Returns the values of a cookie by name in the response's `Set-Cookie` fields, in order.
pub fn set_cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut cursor = Cursor::default();
    std::iter::from_fn(move || next_set_cookie(message, name, &mut cursor))
}

/// Returns the one of [`set_cookies`] that follows the cursor, and advances the cursor.
pub fn next_set_cookie<'a>(message: &'a Message, name: &[u8], cursor: &mut Cursor) -> Option<&'a [u8]> {
    loop {
        let value = cursor.field(message, b"set-cookie")?;
        let (start, end) = cursor.unread;
        let mut pairs = CookieValues { rest: value.get(start..end).unwrap_or_default(), name, list: false };
        if let Some((_, found)) = pairs.next() {
            cursor.unread = (end - pairs.rest.len(), end);
            return Some(found);
        }
        let Some(list) = value.get(cursor.next..) else {
            cursor.leave_field();
            continue;
        };
        let len = element_len(list);
        let blanks = list[..len].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let start = cursor.next + blanks;
        cursor.unread = (start, start + trim(&list[..len]).len());
        cursor.next += len + 1;
    }
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

    #[test]
    fn a_cursor_is_a_place_in_the_message() {
        let mut message = Message::new();
        message.add(b"X", b"a, b");
        message.add(b"Y", b"y");
        message.add(b"Cookie", b"c=1; d=2; c=3");
        let (mut values, mut found) = (Cursor::default(), Cursor::default());
        assert_eq!(next_header_value(&message, b"x", false, &mut values), Some(&b"a"[..]));
        assert_eq!(next_cookie(&message, b"c", &mut found), Some(&b"1"[..]));
        assert_eq!((values.index, values.next), (0, 2));
        message.add(b"x", b"c");
        let rest: Vec<_> = std::iter::from_fn(|| next_header_value(&message, b"x", false, &mut values)).collect();
        assert_eq!(rest, [&b"b"[..], b"c"]);
        assert_eq!(next_cookie(&message, b"c", &mut found), Some(&b"3"[..]));
        assert_eq!(next_cookie(&message, b"c", &mut found), None);
    }
}
