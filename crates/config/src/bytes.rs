//! Bytes within text that are not valid UTF-8.
//!
//! A configuration file is bytes: `\xC9` is one byte in a word and in the value of the word. Expressions are
//! nevertheless parsed as text, since names and numbers are ASCII. A byte that is not part of UTF-8 is therefore
//! represented by one private-use character in the text that parsers see ([`to_text`]), and converted back to the byte
//! when an argument is extracted ([`to_bytes`]). Messages show it as `\xC9` ([`shown`]).

use std::borrow::Cow;

/// Returns whether a byte may occur in a token (RFC 9110, 5.6.2), such as the name of a header field.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The character for byte 0, in the last private-use plane; the character for byte `b` is `b` after it.
const FIRST: u32 = 0x10_FE00;

fn byte_of(c: char) -> Option<u8> {
    (c as u32).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok())
}

/// Returns bytes as text, with one private-use character for each byte that is not part of UTF-8.
pub(crate) fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(FIRST + u32::from(*byte))));
    }
    text.into()
}

/// Returns the bytes that a text of [`to_text`] stands for.
pub(crate) fn to_bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.chars().any(|c| byte_of(c).is_some()) {
        return text.as_bytes().into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes.into()
}

/// Returns a text of [`to_text`] in the form for messages.
pub(crate) fn shown(text: String) -> String {
    if !text.chars().any(|c| byte_of(c).is_some()) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => shown.push_str(&format!("\\x{byte:02x}")),
            None => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(to_bytes(&to_text(&all)), all);
        let mixed = b"a\xC3\xA9\xE9\xC3z";
        let text = to_text(mixed);
        assert_eq!(to_bytes(&text), &mixed[..]);
        assert_eq!(shown(text.into_owned()), "a\u{e9}\\xe9\\xc3z");
        assert_eq!(to_text(b"plain"), "plain");
    }
}
