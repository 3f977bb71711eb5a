//! A reply as received: distinctions visible to clients are kept, such as RESP2's two nulls.

use std::fmt::{self, Write};

/// A reply with its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    /// The first byte.
    pub(super) kind: u8,
    /// A line, or a bulk's contents; of an aggregate nothing.
    pub(super) text: Vec<u8>,
    /// Elements; of a map its keys and values in turn.
    pub(super) items: Vec<Value>,
    /// `$-1`, `*-1`, `_`.
    pub(super) is_null: bool,
}

/// Returns the length of the reply at the beginning of `bytes`; none if it is not whole.
pub(super) fn frame(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut left = 1_usize;
    while left > 0 {
        left -= 1;
        let line = line_len(&bytes[at..])?;
        let kind = bytes[at];
        let count = || number(&bytes[at + 1..at + line]);
        match kind {
            b'$' | b'=' | b'!' => {
                let count = count();
                at += line + 2;
                if count >= 0 {
                    at += count as usize + 2;
                }
                if at > bytes.len() {
                    return None;
                }
                continue;
            }
            b'*' | b'~' | b'>' => left += count().max(0) as usize,
            b'%' => left += count().max(0) as usize * 2,
            _ => {}
        }
        at += line + 2;
    }
    Some(at)
}

fn line_len(bytes: &[u8]) -> Option<usize> {
    // No line of a reply holds a line feed of its own.
    bytes.iter().position(|&byte| byte == b'\n').map(|at| at - 1)
}

fn number(text: &[u8]) -> i64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Value {
    /// Reads the reply at the beginning of `bytes`, which [`frame`] has found whole.
    pub(super) fn parse(bytes: &[u8]) -> Value {
        Value::read(bytes, &mut 0)
    }

    fn read(bytes: &[u8], at: &mut usize) -> Value {
        let line = line_len(&bytes[*at..]).unwrap_or(0);
        let (kind, head) = (bytes[*at], &bytes[*at + 1..*at + line]);
        *at += line + 2;
        let mut value = Value { kind, text: Vec::new(), items: Vec::new(), is_null: kind == b'_' };
        match kind {
            b'$' | b'=' | b'!' => match usize::try_from(number(head)) {
                Ok(len) => {
                    value.text = bytes[*at..*at + len].to_vec();
                    *at += len + 2;
                }
                Err(_) => value.is_null = true,
            },
            b'*' | b'~' | b'>' | b'%' => match usize::try_from(number(head)) {
                Ok(count) => {
                    let count = if kind == b'%' { 2 * count } else { count };
                    value.items = (0..count).map(|_| Value::read(bytes, at)).collect();
                }
                Err(_) => value.is_null = true,
            },
            _ => value.text = head.to_vec(),
        }
        value
    }

    /// Returns a simple string that stands for a random value.
    pub(super) fn stand_in(text: &str) -> Value {
        Value { kind: b'+', text: text.into(), items: Vec::new(), is_null: false }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        (self.kind == b':').then(|| number(&self.text))
    }

    /// Returns its name in the table of coverage.
    pub(super) fn shape(&self) -> &'static str {
        shape(self.kind, self.is_null, self.items.is_empty())
    }
}

/// Returns the shape of a reply that is whole, by its first bytes.
pub(super) fn shape_of(bytes: &[u8]) -> &'static str {
    let is_null = bytes[0] == b'_' || matches!(bytes[0], b'$' | b'*') && bytes.get(1) == Some(&b'-');
    shape(bytes[0], is_null, bytes.get(1) == Some(&b'0'))
}

fn shape(kind: u8, is_null: bool, is_empty: bool) -> &'static str {
    match (kind, is_null, is_empty) {
        (_, true, _) => "null",
        (b'+', ..) => "simple",
        (b'-' | b'!', ..) => "error",
        (b':', ..) => "integer",
        (b'$', ..) => "bulk",
        (b'*', _, true) => "empty array",
        (b'*', ..) => "array",
        (b'%', _, true) => "empty map",
        (b'%', ..) => "map",
        (b'~', _, true) => "empty set",
        (b'~', ..) => "set",
        (b',', ..) => "double",
        (b'#', ..) => "boolean",
        (b'(', ..) => "big number",
        (b'=', ..) => "verbatim",
        (b'>', ..) => "push",
        _ => "unknown",
    }
}

/// Bytes as they are written in a shell: plain words stay plain.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

/// The shown length of a long text.
const SHOWN: usize = 300;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'\'');
        let (start, rest) = self.0.split_at(self.0.len().min(SHOWN));
        if !start.is_empty() && start.iter().all(plain) {
            f.write_str(&String::from_utf8_lossy(start))?;
        } else {
            write!(f, "\"{}\"", start.escape_ascii())?;
        }
        if rest.is_empty() { Ok(()) } else { write!(f, "… ({} bytes)", self.0.len()) }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char(self.kind as char)?;
        if self.is_null {
            return f.write_str("null");
        }
        if !matches!(self.kind, b'*' | b'~' | b'>' | b'%') {
            return Shown(&self.text).fmt(f);
        }
        f.write_char('[')?;
        for (at, item) in self.items.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            item.fmt(f)?;
        }
        f.write_char(']')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_framed_and_read() {
        let check = |bytes: &[u8], shown: &str, shape: &str| {
            assert_eq!(frame(bytes), Some(bytes.len()), "{shown}");
            assert_eq!((1..bytes.len()).find(|&len| frame(&bytes[..len]).is_some()), None, "{shown}");
            let value = Value::parse(bytes);
            assert_eq!((value.to_string().as_str(), value.shape(), shape_of(bytes)), (shown, shape, shape));
        };
        check(b"+OK\r\n", "+OK", "simple");
        check(b"$-1\r\n", "$null", "null");
        check(b"*-1\r\n", "*null", "null");
        check(b"_\r\n", "_null", "null");
        check(b"$3\r\na\r\n\r\n", "$\"a\\r\\n\"", "bulk");
        check(b"$0\r\n\r\n", "$\"\"", "bulk");
        check(b"*0\r\n", "*[]", "empty array");
        check(b"%1\r\n$1\r\na\r\n*2\r\n:1\r\n,1.5\r\n", "%[$a, *[:1, ,1.5]]", "map");
        check(b"~0\r\n", "~[]", "empty set");
        check(b"-ERR no\r\n", "-\"ERR no\"", "error");
    }
}
