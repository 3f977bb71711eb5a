//! Machine-readable log-formats: `%{+json}o`, `%{+cbor}o` and items with these flags (HAProxy configuration manual
//! 8.2.6).
//!
//! The keys of an object are known when a format is compiled, so braces, keys and commas become texts between the items
//! ([`parts`]) and only values are left for later. Values keep their type: numbers and booleans, lists of captures as
//! arrays, missing values as null or an empty string, everything else as text. In contrast to HAProxy, control
//! characters and invalid UTF-8 are never copied into a text: no peer can cause a line that is not valid JSON.
//!
//! CBOR is written as in HAProxy: an indefinite-length map of texts to values; a peer's encoded text is an
//! indefinite-length text with a chunk for each run of plain bytes and for each `#XX` in it.

use std::borrow::Cow;
use std::io::Write as _;

use sluicegate_config::model::{Cast, Encoding, FormatFlags, FormatPart, LogFormat};

use super::{FormatMode, Value, append_hex, append_int};

/// Appends a JSON string. In contrast to [`Writer::text`] the text is our own, or an authority's: DEL stays as it is.
pub(crate) fn append_json_string(text: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Returns the parts of a format, with the parts that its encoding adds and without those that it omits.
pub(crate) fn parts(format: &LogFormat, mode: FormatMode) -> Cow<'_, [FormatPart]> {
    let Some(encoding) = format.encoding.filter(|_| mode != FormatMode::Http) else {
        return Cow::Borrowed(&format.parts);
    };
    let mut parts = Vec::with_capacity(format.parts.len() * 2 + 1);
    let mut glue = Vec::new();
    let mut name = None;
    let raw = format.binary;
    match encoding {
        Encoding::Json => glue.push(b'{'),
        Encoding::Cbor => Cbor { out: &mut glue, raw }.bytes(&[OPEN_MAP]),
    }
    for part in &format.parts {
        match part {
            FormatPart::Text(_) | FormatPart::Blank => {}
            FormatPart::Name(given) => name = Some(given),
            FormatPart::Alias(..) | FormatPart::Expr(..) => {
                let Some(name) = name.take() else { continue };
                match encoding {
                    Encoding::Json => {
                        let comma = if parts.is_empty() { "" } else { ", " };
                        // Writing to a vector can't fail.
                        let _ = write!(glue, "{comma}\"{name}\": ");
                    }
                    Encoding::Cbor => Cbor { out: &mut glue, raw }.string(TEXT, name.as_bytes()),
                }
                parts.push(FormatPart::Text(std::mem::take(&mut glue)));
                parts.push(part.clone());
            }
        }
    }
    match encoding {
        Encoding::Json => glue.push(b'}'),
        Encoding::Cbor => Cbor { out: &mut glue, raw }.bytes(&[BREAK]),
    }
    parts.push(FormatPart::Text(glue));
    Cow::Owned(parts)
}

/// Appends an expression's sample.
pub(crate) fn append_value(value: Option<&Value<'_>>, encoding: Encoding, flags: FormatFlags, out: &mut Vec<u8>) {
    let mut to = Writer { encoding, flags, out };
    let Some(value) = value else { return to.missing() };
    match (flags.cast, value) {
        (Some(Cast::Integer), value) => match value.to_int() {
            Some(number) => to.number(number),
            None => to.missing(),
        },
        (Some(Cast::Boolean), value) => match value.to_bool() {
            Some(truth) => to.boolean(truth),
            None => to.missing(),
        },
        (None, Value::Int(number)) => to.number(*number),
        (None, Value::Bool(truth)) => to.boolean(*truth),
        (None, Value::Bin(bytes)) if encoding == Encoding::Cbor => to.chunks(BYTES, |cbor| cbor.string(BYTES, bytes)),
        (None | Some(Cast::Text), value) => value.with_text(|text| to.text(text)),
    }
}

/// The destination of a value.
pub(crate) struct Writer<'a> {
    pub(crate) encoding: Encoding,
    pub(crate) flags: FormatFlags,
    pub(crate) out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn cbor(&mut self) -> Cbor<'_> {
        Cbor { out: self.out, raw: self.flags.binary }
    }

    pub(crate) fn null(&mut self) {
        match self.encoding {
            Encoding::Json => self.out.extend_from_slice(b"null"),
            Encoding::Cbor => self.cbor().bytes(&[NULL]),
        }
    }

    /// Writes the value for a missing sample.
    fn missing(&mut self) {
        self.text(b"");
    }

    fn boolean(&mut self, truth: bool) {
        match self.encoding {
            Encoding::Json => self.out.extend_from_slice(if truth { b"true" } else { b"false" }),
            Encoding::Cbor => self.cbor().bytes(&[if truth { TRUE } else { FALSE }]),
        }
    }

    pub(crate) fn number(&mut self, number: i64) {
        match (self.encoding, self.flags.cast) {
            (_, Some(Cast::Boolean)) => self.boolean(number != 0),
            (Encoding::Json, Some(Cast::Text)) => {
                self.out.push(b'"');
                append_int(self.out, number);
                self.out.push(b'"');
            }
            (Encoding::Json, _) => append_int(self.out, number),
            (Encoding::Cbor, _) if number < 0 => self.cbor().head(NEGATIVE, !number as u64),
            (Encoding::Cbor, _) => self.cbor().head(0, number as u64),
        }
    }

    pub(crate) fn text(&mut self, text: &[u8]) {
        match self.encoding {
            Encoding::Json => self.json(text),
            Encoding::Cbor if text.is_empty() => self.null(),
            Encoding::Cbor => self.cbor().string(TEXT, String::from_utf8_lossy(text).as_bytes()),
        }
    }

    fn json(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                let _ = match c {
                    '"' | '\\' => write!(self.out, "\\{c}"),
                    '\0'..='\x1f' | '\x7f' => write!(self.out, "\\u{:04x}", c as u32),
                    c => write!(self.out, "{c}"),
                };
            }
            if !chunk.invalid().is_empty() {
                self.out.extend_from_slice(b"\\ufffd");
            }
        }
        self.out.push(b'"');
    }

    /// Writes a text in which `#XX` stands for bytes; with `captures` its braces and bars are literal.
    pub(crate) fn encoded(&mut self, text: &[u8], captures: bool) {
        if self.encoding == Encoding::Json {
            return self.json(text);
        }
        self.chunks(TEXT, |cbor| {
            let special = |byte: &u8| *byte == b'#' || captures && matches!(byte, b'{' | b'|' | b'}');
            let mut rest = text;
            while let Some(at) = rest.iter().position(special) {
                let length = if rest[at] == b'#' { 3 } else { 1 }.min(rest.len() - at);
                // Before an encoded byte HAProxy writes the preceding run, even if that is empty.
                if at > 0 || length == 3 {
                    cbor.string(TEXT, &rest[..at]);
                }
                cbor.string(TEXT, &rest[at..at + length]);
                rest = &rest[at + length..];
            }
            if !rest.is_empty() {
                cbor.string(TEXT, rest);
            }
        });
    }

    fn chunks(&mut self, major: u8, write: impl FnOnce(&mut Cbor<'_>)) {
        let mut cbor = self.cbor();
        cbor.bytes(&[major | OPEN]);
        write(&mut cbor);
        cbor.bytes(&[BREAK]);
    }

    /// Writes an array of texts from a peer, each appended by `append`.
    pub(crate) fn list(&mut self, count: usize, mut append: impl FnMut(usize, &mut Vec<u8>)) {
        match self.encoding {
            Encoding::Json => self.out.push(b'['),
            Encoding::Cbor => self.cbor().bytes(&[OPEN_LIST]),
        }
        let mut text = Vec::new();
        for slot in 0..count {
            if slot > 0 && self.encoding == Encoding::Json {
                self.out.extend_from_slice(b", ");
            }
            text.clear();
            append(slot, &mut text);
            self.encoded(&text, false);
        }
        match self.encoding {
            Encoding::Json => self.out.push(b']'),
            Encoding::Cbor => self.cbor().bytes(&[BREAK]),
        }
    }
}

// RFC 8949: major types, and simple values.
const NEGATIVE: u8 = 0x20;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const OPEN: u8 = 0x1f;
const OPEN_LIST: u8 = 0x9f;
const OPEN_MAP: u8 = 0xbf;
const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;
const NULL: u8 = 0xf6;
const BREAK: u8 = 0xff;

/// Writes CBOR, as bytes or in hexadecimal.
struct Cbor<'a> {
    out: &'a mut Vec<u8>,
    raw: bool,
}

impl Cbor<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        if self.raw {
            return self.out.extend_from_slice(bytes);
        }
        bytes.iter().for_each(|byte| append_hex(self.out, *byte));
    }

    /// Writes a major type with its argument, in as few bytes as possible.
    fn head(&mut self, major: u8, argument: u64) {
        let bytes = argument.to_be_bytes();
        match argument {
            0..24 => self.bytes(&[major | argument as u8]),
            24..=0xff => self.bytes(&[major | 24, argument as u8]),
            0x100..=0xffff => self.bytes(&[major | 25, bytes[6], bytes[7]]),
            0x1_0000..=0xffff_ffff => {
                self.bytes(&[major | 26]);
                self.bytes(&bytes[4..]);
            }
            _ => {
                self.bytes(&[major | 27]);
                self.bytes(&bytes);
            }
        }
    }

    fn string(&mut self, major: u8, bytes: &[u8]) {
        self.head(major, bytes.len() as u64);
        self.bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(value: Option<Value<'_>>, encoding: Encoding, cast: Option<Cast>) -> String {
        let mut out = Vec::new();
        append_value(value.as_ref(), encoding, FormatFlags { cast, ..FormatFlags::default() }, &mut out);
        String::from_utf8(out).expect("both are ASCII here")
    }

    #[track_caller]
    fn check(given: Option<Value<'_>>, cast: Option<Cast>, json: &str, cbor: &str) {
        assert_eq!(value(given.clone(), Encoding::Json, cast), json);
        assert_eq!(value(given, Encoding::Cbor, cast), cbor);
    }

    /// The numbers and texts are those of RFC 8949, appendix A.
    #[test]
    fn values_keep_their_types() {
        let text = |text: &'static [u8]| Some(Value::Str(Cow::Borrowed(text)));
        let (int, bytes) = (|number| Some(Value::Int(number)), Some(Value::Bin(Cow::Borrowed(b"\x01\x00"))));
        for (number, cbor) in [
            (0, "00"),
            (23, "17"),
            (24, "1818"),
            (1000, "1903E8"),
            (1_000_000, "1A000F4240"),
            (1_000_000_000_000, "1B000000E8D4A51000"),
            (-1, "20"),
            (-1000, "3903E7"),
            (i64::MIN, "3B7FFFFFFFFFFFFFFF"),
        ] {
            check(int(number), None, &number.to_string(), cbor);
        }
        check(text(b"IETF"), None, "\"IETF\"", "6449455446");
        check(text(b"\"\\"), None, "\"\\\"\\\\\"", "62225C");
        check(Some(Value::Bool(true)), None, "true", "F5");
        check(bytes.clone(), None, "\"\\u0001\"", "5F420100FF");
        check(bytes, Some(Cast::Text), "\"\\u0001\"", "6101");
        check(int(7), Some(Cast::Text), "\"7\"", "6137");
        check(int(7), Some(Cast::Boolean), "true", "F5");
        check(text(b"12"), Some(Cast::Integer), "12", "0C");
        check(text(b"x"), Some(Cast::Integer), "0", "00");
        check(text(b""), Some(Cast::Integer), "\"\"", "F6");
        check(None, None, "\"\"", "F6");
        // Nothing ends a line or a string, and everything is UTF-8.
        check(text(b"a\n\x7f\xff\xc3\xa4"), None, "\"a\\u000a\\u007f\\ufffdä\"", "68610A7FEFBFBDC3A4");
    }
}
