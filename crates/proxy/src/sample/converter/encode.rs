//! Bytes as text and back: base64, hexadecimal, URLs.

use super::super::base64::Base64;
use super::super::value::{Value, append_hex};
use super::args::Args;
use super::code::{Compiled, value};

pub(super) fn base64(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::owned_text(Base64::Standard.encode(&value.into_bytes()))))
}

pub(super) fn ub64enc(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::owned_text(Base64::Url.encode(&value.into_bytes()))))
}

pub(super) fn b64dec(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::Bin(value.with_text(|text| Base64::Standard.decode(text))?.into())))
}

pub(super) fn ub64dec(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::Bin(value.with_text(|text| Base64::Url.decode(text))?.into())))
}

pub(super) fn hex(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::owned_text(to_hex(&value.into_bytes()))))
}

pub(super) fn hex2i(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| value.with_text(hex_to_int).map(Value::Int))
}

pub(super) fn base2(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::owned_text(binary_digits(&value.into_bytes()))))
}

pub(super) fn be2dec(args: &Args<'_>) -> Compiled {
    value(Chunks::new(args)?, |chunks, value, _| Some(chunks.decimal(&value.into_bytes(), <[u8]>::iter)))
}

pub(super) fn le2dec(args: &Args<'_>) -> Compiled {
    value(Chunks::new(args)?, |chunks, value, _| Some(chunks.decimal(&value.into_bytes(), |chunk| chunk.iter().rev())))
}

pub(super) fn be2hex(args: &Args<'_>) -> Compiled {
    value(Chunks::new(args)?, |chunks, value, _| Some(chunks.hexadecimal(&value.into_bytes(), <[u8]>::iter)))
}

pub(super) fn le2hex(args: &Args<'_>) -> Compiled {
    value(Chunks::new(args)?, |chunks, value, _| {
        Some(chunks.hexadecimal(&value.into_bytes(), |chunk| chunk.iter().rev()))
    })
}

pub(super) fn url_dec(args: &Args<'_>) -> Compiled {
    value(args.int(0)?.unwrap_or(0) != 0, |form, value, _| {
        value.with_text(|text| url_decode(text, *form)).map(Value::owned_text)
    })
}

pub(super) fn url_enc(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::owned_text(value.with_text(url_encode))))
}

/// Encodes bytes in upper-case hexadecimal.
fn to_hex(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    bytes.iter().for_each(|byte| append_hex(&mut out, *byte));
    out
}

/// Parses hexadecimal digits as an integer; bits beyond the lowest 64 are lost. Returns `None` for any other character.
fn hex_to_int(text: &[u8]) -> Option<i64> {
    text.iter()
        .try_fold(0, |number: u64, byte| Some((number << 4) | u64::from(char::from(*byte).to_digit(16)?)))
        .map(|number| number as i64)
}

/// Returns the bytes in binary digits.
fn binary_digits(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| b'0' + (byte >> bit & 1))).collect()
}

/// The division into chunks of `be2dec`, `le2dec`, `be2hex` and `le2hex`.
struct Chunks {
    /// The text between two chunks.
    separator: Box<[u8]>,
    /// The number of bytes of a chunk; 0 means a single chunk of all bytes.
    size: usize,
    /// Whether an incomplete last chunk is dropped.
    truncate: bool,
}

impl Chunks {
    fn new(args: &Args<'_>) -> Result<Chunks, String> {
        let size = usize::try_from(args.int(1)?.unwrap_or(0)).map_err(|_| "the size is negative")?;
        Ok(Chunks { separator: args.text(0)?, size, truncate: args.int(2)?.unwrap_or(0) != 0 })
    }

    /// Renders each chunk as a decimal integer; `order` returns its bytes with the most significant one first.
    fn decimal<'b, I: Iterator<Item = &'b u8>>(
        &self,
        bytes: &'b [u8],
        order: impl Fn(&'b [u8]) -> I,
    ) -> Value<'static> {
        Value::owned_text(self.render(bytes, |out, chunk| {
            let number = order(chunk).fold(0, |number: u64, byte| (number << 8) | u64::from(*byte));
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }))
    }

    /// Renders each chunk in hexadecimal digits, with its bytes in the order of `order`.
    fn hexadecimal<'b, I: Iterator<Item = &'b u8>>(
        &self,
        bytes: &'b [u8],
        order: impl Fn(&'b [u8]) -> I,
    ) -> Value<'static> {
        Value::owned_text(self.render(bytes, |out, chunk| order(chunk).for_each(|byte| append_hex(out, *byte))))
    }

    /// Renders each chunk, with separators.
    fn render<'b>(&self, bytes: &'b [u8], mut chunk: impl FnMut(&mut Vec<u8>, &'b [u8])) -> Vec<u8> {
        let mut out = Vec::new();
        let size = if self.size == 0 { bytes.len().max(1) } else { self.size };
        for (index, part) in bytes.chunks(size).enumerate() {
            if self.truncate && part.len() < size {
                break;
            }
            if index > 0 {
                out.extend_from_slice(&self.separator);
            }
            chunk(&mut out, part);
        }
        out
    }
}

/// Decodes `%XX`. A `+` means a blank in a query string: everywhere with `form`, otherwise after the first `?`. A NUL
/// ends the text. Returns `None` if a `%` is not followed by two hexadecimal digits.
pub fn url_decode(text: &[u8], form: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut query = form;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next().filter(|byte| **byte != 0) {
        match byte {
            b'+' if query => out.push(b' '),
            b'%' => {
                let mut digit = || char::from(*bytes.next()?).to_digit(16);
                out.push((digit()? * 16 + digit()?) as u8);
            }
            byte => {
                query |= *byte == b'?';
                out.push(*byte);
            }
        }
    }
    Some(out)
}

/// Encodes all but the unreserved characters of RFC 3986.
fn url_encode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 2);
    for byte in text {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(*byte);
        } else {
            out.push(b'%');
            append_hex(&mut out, *byte);
        }
    }
    out
}

/// The fuzz target: decodes any bytes with every decoder.
pub fn fuzz_decoders(data: &[u8]) {
    for base in [Base64::Standard, Base64::Url] {
        if let Some(bytes) = base.decode(data) {
            assert!(bytes.len() <= data.len());
        }
        assert_eq!(base.decode(&base.encode(data)).as_deref(), Some(data));
    }
    for form in [false, true] {
        if let Some(bytes) = url_decode(data, form) {
            assert!(bytes.len() <= data.len());
        }
        assert_eq!(url_decode(&url_encode(data), form).as_deref(), Some(data));
    }
    hex_to_int(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_decoders(&data);
            let digits = String::from_utf8(to_hex(&data)).expect("ASCII");
            prop_assert_eq!(digits, data.iter().map(|byte| format!("{byte:02X}")).collect::<String>());
        }
    }
}
