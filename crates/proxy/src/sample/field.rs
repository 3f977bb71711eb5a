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

/// The elements of one header value.
#[derive(Clone)]
struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        // Nearly no value has a comma: one scan decides.
        let end = match memchr::memchr2(b',', b'"', rest) {
            None => rest.len(),
            Some(at) if rest[at] == b',' => at,
            Some(_) => unquoted_comma(rest),
        };
        self.rest = if end < rest.len() { Some(&rest[end + 1..]) } else { None };
        Some(trim(&rest[..end]))
    }
}

/// Where the first comma outside a quoted string stands; the length where there is none.
fn unquoted_comma(text: &[u8]) -> usize {
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
        } else if *byte == b',' {
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
            Elements { rest: list }.chain(one)
        },
    )
}

/// The values of a cookie by name in the request's `Cookie` fields, in order; of every cookie with an empty name.
pub fn cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    message
        .fields_named(b"cookie")
        .flat_map(|(_, value)| value.split(|byte| matches!(byte, b';' | b',')))
        .filter_map(move |pair| named_value(pair, name))
}

/// The values of a cookie by name in the response's `Set-Cookie` fields, in order.
pub fn set_cookies<'a>(message: &'a Message, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    message.fields_named(b"set-cookie").filter_map(move |(_, value)| {
        let pair = value.split(|byte| *byte == b';').next()?;
        named_value(pair, name)
    })
}

/// The value of `name = value`, unquoted white space cut.
fn named_value<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let equals = memchr::memchr(b'=', pair)?;
    let found = trim(&pair[..equals]);
    (name.is_empty() || found == name).then(|| trim(&pair[equals + 1..]))
}
