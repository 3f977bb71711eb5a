//! Log-format rendering (HAProxy configuration manual 8.2.6), synchronous and into a buffer that the caller reuses.
//!
//! There are three dialects. In HTTP rules ([`FormatMode::Http`]) control characters of an expression are written as
//! `%XX`, so that no sample can break a header line, and `+Q` is ignored for it. Elsewhere ([`FormatMode::Plain`]) the
//! bytes are unchanged, and `+Q` puts them between quotes, or an encoding makes them a machine-readable value. A
//! missing sample prints nothing, except `-` in a log line ([`FormatMode::Log`]) without quotes, where an empty value
//! would be invisible. The output of aliases is described in [`crate::log::alias`].

use sluicegate_config::model::{Cast, FormatFlags};

use super::value::{Value, append_hex};

/// The use of a log-format, which decides how expressions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatMode {
    /// Header values, bodies, redirects.
    Http,
    /// Variables, backend names, store commands.
    Plain,
    /// Log lines.
    Log,
}

/// Appends an expression's sample, or the text for a missing one.
pub fn append_value(value: Option<&Value<'_>>, flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    if let Some(encoding) = flags.encoding
        && mode != FormatMode::Http
    {
        return super::encode::append_value(value, encoding, flags, out);
    }
    let quote = flags.quote && mode != FormatMode::Http;
    let before = out.len();
    if quote {
        out.push(b'"');
    }
    if let Some(value) = value {
        let start = out.len();
        match value {
            Value::Bin(bytes) if flags.binary && flags.cast != Some(Cast::Text) => out.extend_from_slice(bytes),
            value => value.append_text(out),
        }
        encode_tail(out, start, flags.escape, mode);
    }
    if mode == FormatMode::Log && out.len() == before {
        out.push(b'-');
    }
    if quote {
        out.push(b'"');
    }
}

/// Encodes the text appended since `start`. Text that needs no encoding, which is almost all text, costs one scan.
fn encode_tail(out: &mut Vec<u8>, start: usize, escape: bool, mode: FormatMode) {
    if !escape && mode != FormatMode::Http {
        return;
    }
    let encodes = |byte: u8| mode == FormatMode::Http && (byte < 0x20 && byte != b'\t' || byte == 0x7f);
    let escapes = |byte: u8| escape && matches!(byte, b'\\' | b'"' | b']');
    if !out[start..].iter().any(|byte| encodes(*byte) || escapes(*byte)) {
        return;
    }
    let tail = out.split_off(start);
    for byte in tail {
        if encodes(byte) {
            out.push(b'%');
            append_hex(out, byte);
        } else {
            if escapes(byte) {
                out.push(b'\\');
            }
            out.push(byte);
        }
    }
}

/// Appends a text of the proxy's own, such as a name; in a log line `-` stands for an empty one.
#[inline]
pub fn append_text(text: &[u8], flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    if flags.quote || flags.escape || mode != FormatMode::Log {
        return append_encoded(text, flags, mode, out);
    }
    match text {
        [] => out.push(b'-'),
        text => out.extend_from_slice(text),
    }
}

fn append_encoded(text: &[u8], flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    if flags.quote {
        out.push(b'"');
    }
    let start = out.len();
    out.extend_from_slice(text);
    encode_tail(out, start, flags.escape, mode);
    if text.is_empty() && mode == FormatMode::Log && !flags.quote {
        out.push(b'-');
    }
    if flags.quote {
        out.push(b'"');
    }
}
