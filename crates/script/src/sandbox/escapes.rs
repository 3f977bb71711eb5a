//! Escapes of Lua 5.1 in source for Lua 5.4.
//!
//! In 5.1, `\` before a character without an escape meaning is that character: `"\."` is a dot, `"\d"` a `d`. In 5.4 it
//! is a syntax error, or (`\x`, `\z`, `\u`) another escape. So the parser gets the source without such a `\`. Nothing
//! is copied: a piece of source ends before it, and the next one begins after it. Line numbers are unchanged.
//!
//! To find strings, comments and strings are scanned byte by byte; in malformed source the state may be wrong, but the
//! parser stops at the first error anyway.

/// The lexical state of the next byte.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Code,
    /// After one `-`.
    Dash,
    /// After `--`.
    Comment,
    /// In a comment that ends with its line.
    Line,
    /// After `[` and this many `=`, in a comment or not.
    Opening(usize, bool),
    /// Within long brackets with this many `=`.
    Long(usize),
    /// Within long brackets with the first number of `=`, after `]` and the second number of `=`.
    Closing(usize, usize),
    /// In a string with this quote.
    Quoted(u8),
    /// In a string with this quote, after a `\` that is kept.
    Escaped(u8),
}

/// The lexical state so far.
#[derive(Default)]
pub(super) struct Escapes(Place);

impl Escapes {
    /// Returns how much of `rest` the parser reads next, at most about `most`, and how much is skipped after that. The
    /// former is 0 only if `rest` is empty.
    pub(super) fn piece(&mut self, rest: &[u8], most: usize) -> (usize, usize) {
        for (at, byte) in rest.iter().enumerate() {
            let escapes = if let (Place::Quoted(quote), b'\\') = (self.0, byte) { Some(quote) } else { None };
            // The backslash is skipped, and the character after it is read as part of the string. A backslash after a
            // full piece is skipped with it: otherwise the next piece would be empty, which means the end of the source
            // to the parser.
            if escapes.is_some() && rest.get(at + 1).is_some_and(|next| !has_meaning(*next)) {
                return (at, 1);
            }
            if at >= most {
                return (at, 0);
            }
            self.0 = escapes.map_or_else(|| self.0.after(*byte), Place::Escaped);
        }
        (rest.len(), 0)
    }
}

/// Returns whether `\` before this byte is an escape in both versions, with the same meaning.
fn has_meaning(byte: u8) -> bool {
    matches!(byte, b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'\\' | b'"' | b'\'' | b'\n' | b'\r' | b'0'..=b'9')
}

impl Place {
    /// Returns the place behind this byte.
    fn after(self, byte: u8) -> Place {
        match (self, byte) {
            (Place::Code | Place::Dash | Place::Opening(_, false), b'"' | b'\'') => Place::Quoted(byte),
            (Place::Code, b'-') | (Place::Opening(_, false), b'-') => Place::Dash,
            (Place::Code | Place::Dash, b'[') => Place::Opening(0, false),
            (Place::Dash, b'-') => Place::Comment,
            (Place::Comment, b'[') => Place::Opening(0, true),
            (Place::Opening(level, comment), b'=') => Place::Opening(level + 1, comment),
            (Place::Opening(level, _), b'[') => Place::Long(level),
            (Place::Comment | Place::Line | Place::Opening(_, true), b'\n' | b'\r') => Place::Code,
            (Place::Comment | Place::Line | Place::Opening(_, true), _) => Place::Line,
            (Place::Code | Place::Dash | Place::Opening(_, false), _) => Place::Code,
            (Place::Long(level), b']') => Place::Closing(level, 0),
            (Place::Closing(level, seen), b'=') => Place::Closing(level, seen + 1),
            (Place::Closing(level, seen), b']') if seen == level => Place::Code,
            (Place::Closing(level, _), b']') => Place::Closing(level, 0),
            (Place::Long(level) | Place::Closing(level, _), _) => Place::Long(level),
            (Place::Quoted(quote), _) if byte == quote => Place::Code,
            (Place::Quoted(quote) | Place::Escaped(quote), _) => Place::Quoted(quote),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the parser is given, in pieces of `most` bytes.
    fn given(source: &str, most: usize) -> String {
        let (mut rest, mut escapes, mut given) = (source.as_bytes(), Escapes::default(), Vec::new());
        loop {
            let (len, skipped) = escapes.piece(rest, most);
            assert!(len > 0 || rest.is_empty(), "{source} by {most} would end here");
            given.extend_from_slice(&rest[..len]);
            rest = &rest[len + skipped..];
            if rest.is_empty() {
                return String::from_utf8(given).expect("text");
            }
        }
    }

    fn check(source: &str, expected: &str) {
        for most in [1, 2, 3, 1024] {
            assert_eq!(given(source, most), expected, "{source} by {most}");
        }
    }

    #[test]
    fn a_backslash_without_a_meaning_is_left_out() {
        for (source, expected) in [
            (r#"return "\.\d\-""#, r#"return ".d-""#),
            (r"return '\x41\z\u{48}'", r"return 'x41zu{48}'"),
            (r#""\\.\"\q" "\q""#, r#""\\.\"q" "q""#),
            (r#"'\'\q' "'\q""#, r#"'\'q' "'q""#),
            ("'\\\n\\q'", "'\\\nq'"),
            (r"'\065\q\n'", r"'\065q\n'"),
            (r"-- '\q", r"-- '\q"),
            ("-- it's\n'\\q'", "-- it's\n'q'"),
            ("--[ it's\n'\\q'", "--[ it's\n'q'"),
            ("--[=x '\n'\\q'", "--[=x '\n'q'"),
            (r"--[[ it's ]] '\q'", r"--[[ it's ]] 'q'"),
            ("--[==[ ]] ]=] '\n ]==] '\\q'", "--[==[ ]] ]=] '\n ]==] 'q'"),
            (r"[[ '\q' ]] '\q'", r"[[ '\q' ]] 'q'"),
            (r"[=[ ]]=] '\q'", r"[=[ ]]=] 'q'"),
            (r"[=[ ]==]=] '\q'", r"[=[ ]==]=] 'q'"),
            (r"a[b['\q']] - '\q'", r"a[b['q']] - 'q'"),
            (r"a-'\q'", r"a-'q'"),
            (r"a[-'\q']", r"a[-'q']"),
            (r"'\", r"'\"),
            ("", ""),
        ] {
            check(source, expected);
        }
    }
}
