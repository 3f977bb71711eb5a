//! JSON: escaping text, and looking up one value by its path.
//!
//! A look-up scans the text once, without a tree and without allocating; text after the value is not examined, so a
//! document malformed after it still yields it, as in HAProxy. Nesting is limited to [`DEPTH`]; deeper values do not
//! exist.

use sluicegate_config::model::Arg;

use super::super::base64::Base64;
use super::super::value::{Value, append_int};
use super::args::Args;
use super::code::{Compiled, value};

/// The maximum nesting depth of arrays and objects.
const DEPTH: usize = 64;

pub(super) fn json(args: &Args<'_>) -> Compiled {
    let name = args.text(0)?;
    let code = std::str::from_utf8(&name).ok().and_then(InputCode::named).ok_or("unknown input code")?;
    value(code, |code, value, _| value.with_text(|text| escape(text, *code)).map(Value::owned_text))
}

pub(super) fn json_query(args: &Args<'_>) -> Compiled {
    let path = path(args).ok_or("a path is needed")?;
    let integer = !args.text(1)?.is_empty();
    value((path, integer), |(path, integer), value, _| value.with_text(|text| query(text, path.as_ref()?, *integer)))
}

/// Compiles a converter that queries one part of a token: returns the whole part, or the value at a path in it.
fn token_part(args: &Args<'_>, part: usize) -> Compiled {
    let integer = !args.text(1)?.is_empty();
    value((part, path(args), integer), |(part, path, integer), value, _| {
        let token = value.into_bytes();
        let part = Base64::Url.decode(token.split(|byte| *byte == b'.').nth(*part)?)?;
        match path {
            Some(path) => query(&part, path.as_ref()?, *integer),
            None => Some(Value::owned_text(part)),
        }
    })
}

pub(super) fn jwt_header_query(args: &Args<'_>) -> Compiled {
    token_part(args, 0)
}

pub(super) fn jwt_payload_query(args: &Args<'_>) -> Compiled {
    token_part(args, 1)
}

/// Returns the path that is the first argument, if it is given: `Some(None)` is a text that is no path, where nothing is
/// found.
fn path(args: &Args<'_>) -> Option<Option<Path>> {
    match args.list.first() {
        Some(Arg::Str(text)) => Some(Path::parse(text)),
        _ => None,
    }
}

/// The input encoding of `json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputCode {
    /// Whether the input is UTF-8; otherwise each byte is one character.
    utf8: bool,
    /// Whether characters encoded in more bytes than needed are accepted.
    permissive: bool,
    /// Whether undecodable bytes are dropped; otherwise there is no result.
    silent: bool,
}

impl InputCode {
    /// Returns the encoding with this name; `None` for an unknown name.
    pub fn named(name: &str) -> Option<InputCode> {
        let (utf8, permissive, silent) = match name {
            "" | "ascii" => (false, false, false),
            "utf8" => (true, false, false),
            "utf8s" => (true, false, true),
            "utf8p" => (true, true, false),
            "utf8ps" => (true, true, true),
            _ => return None,
        };
        Some(InputCode { utf8, permissive, silent })
    }
}

/// Returns the string at a path like `$.a[0].b`, or another value as it is written; `None` if there is none.
pub(crate) fn json_text(text: &[u8], path: &str) -> Option<String> {
    let value = query(text, &Path::parse(path)?, false)?;
    String::from_utf8(value.into_text().into_owned()).ok()
}

/// Returns the text for the inside of a JSON string, ASCII only; `None` where it cannot be decoded.
pub fn escape(text: &[u8], code: InputCode) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(&first) = rest.first() {
        let character = if code.utf8 {
            let (character, length, problem) = decode(rest);
            rest = &rest[length..];
            match problem {
                // Beyond 16 bits an escape has no room.
                None if character <= 0xffff => character,
                Some(Problem::Overlong) if code.permissive && character <= 0xffff => character,
                _ if code.silent => continue,
                _ => return None,
            }
        } else {
            rest = &rest[1..];
            u32::from(first)
        };
        match character {
            0x22 => out.extend_from_slice(b"\\\""),
            0x5c => out.extend_from_slice(b"\\\\"),
            0x2f => out.extend_from_slice(b"\\/"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0x0a => out.extend_from_slice(b"\\n"),
            0x0d => out.extend_from_slice(b"\\r"),
            0x09 => out.extend_from_slice(b"\\t"),
            0x20..0x7f => out.push(character as u8),
            other => out.extend_from_slice(format!("\\u{other:04x}").as_bytes()),
        }
    }
    Some(out)
}

/// An error of a character.
enum Problem {
    /// The bytes do not encode a character.
    Sequence,
    /// The encoding has more bytes than needed.
    Overlong,
    /// A surrogate, or one of the two code points that are not characters.
    Range,
}

/// Returns the first character of a non-empty text, its length in bytes, and its error.
fn decode(text: &[u8]) -> (u32, usize, Option<Problem>) {
    let first = text[0];
    let (length, bits) = match first {
        0..0x80 => return (u32::from(first), 1, None),
        0xc0..0xe0 => (2, first & 0x1f),
        0xe0..0xf0 => (3, first & 0x0f),
        0xf0..0xf8 => (4, first & 0x07),
        0xf8..0xfc => (5, first & 0x03),
        0xfc..0xfe => (6, first & 0x01),
        _ => return (0, 1, Some(Problem::Sequence)),
    };
    let mut character = u32::from(bits);
    for at in 1..length {
        match text.get(at) {
            Some(byte) if byte & 0xc0 == 0x80 => character = (character << 6) | u32::from(byte & 0x3f),
            _ => return (0, at, Some(Problem::Sequence)),
        }
    }
    let least = match length {
        2 => 0x80,
        3 => 0x800,
        4 => 0x1_0000,
        5 => 0x20_0000,
        _ => 0x400_0000,
    };
    let problem = match character {
        _ if character < least => Some(Problem::Overlong),
        0xd800..0xe000 | 0xfffe | 0xffff => Some(Problem::Range),
        _ => None,
    };
    (character, length, problem)
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(Box<[u8]>),
    Index(usize),
}

/// A path such as `$.a.b[0]`; `\.` is a dot inside a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Step>);

impl Path {
    /// Parses a path; `None` unless it begins with `$` and each step is a key or an index.
    pub fn parse(text: &str) -> Option<Path> {
        let mut rest = text.strip_prefix('$')?;
        let mut steps = Vec::new();
        while let Some(first) = rest.chars().next() {
            if first == '[' {
                let (index, after) = rest[1..].split_once(']')?;
                steps.push(Step::Index(index.parse().ok()?));
                rest = after;
                continue;
            }
            rest = rest.strip_prefix('.')?;
            let mut key = Vec::new();
            let mut escaped = false;
            let mut end = rest.len();
            for (at, byte) in rest.bytes().enumerate() {
                match byte {
                    _ if escaped => {
                        key.push(byte);
                        escaped = false;
                    }
                    b'\\' => escaped = true,
                    b'.' | b'[' => {
                        end = at;
                        break;
                    }
                    byte => key.push(byte),
                }
            }
            steps.push(Step::Key(key.into()));
            rest = &rest[end..];
        }
        Some(Path(steps))
    }
}

/// Returns the value at a path: a text, a number, a boolean, or an array as its JSON text; with `integer` a number is
/// an integer. Returns `None` for null, for objects, for integers that do not fit, and if there is no such value.
pub fn query(text: &[u8], path: &Path, integer: bool) -> Option<Value<'static>> {
    let mut reader = Reader { text, at: 0 };
    reader.blanks();
    for step in &path.0 {
        match step {
            Step::Key(key) => reader.enter_object(key)?,
            Step::Index(index) => reader.enter_array(*index)?,
        }
        reader.blanks();
    }
    let start = reader.at;
    let first = *text.get(start)?;
    reader.skip()?;
    let token = &text[start..reader.at];
    Some(match first {
        b'"' => Value::owned_text(unescape(token.get(1..token.len() - 1)?)?),
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'[' => Value::owned_text(token.to_vec()),
        b'-' | b'0'..=b'9' if integer => Value::Int(leading_integer(token)?),
        b'-' | b'0'..=b'9' => {
            let number: f64 = std::str::from_utf8(token).ok()?.parse().ok()?;
            let mut out = Vec::new();
            append_general(&mut out, number);
            Value::owned_text(out)
        }
        _ => return None,
    })
}

/// Returns the integer part of a number; `None` if its size is 2^53 or more (RFC 7159 6).
fn leading_integer(token: &[u8]) -> Option<i64> {
    let digits = token.iter().skip(1).take_while(|byte| byte.is_ascii_digit()).count();
    let number: i64 = std::str::from_utf8(&token[..=digits]).ok()?.parse().ok()?;
    (number.unsigned_abs() < 1 << 53).then_some(number)
}

/// Appends a number like C's `%g`: with six significant digits, without trailing zeros, and with an exponent below -4
/// and from 6 on.
fn append_general(out: &mut Vec<u8>, number: f64) {
    if number == 0.0 {
        out.extend_from_slice(if number.is_sign_negative() { b"-0" } else { b"0" });
        return;
    }
    let scientific = format!("{number:.5e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        let places = (5 - exponent).max(0) as usize;
        out.extend_from_slice(trim(&format!("{number:.places$}")).as_bytes());
    } else {
        out.extend_from_slice(trim(mantissa).as_bytes());
        out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
        if exponent.abs() < 10 {
            out.push(b'0');
        }
        append_int(out, i64::from(exponent.abs()));
    }
}

/// Returns the content of a string with its escapes decoded; characters beyond ASCII become UTF-8.
fn unescape(inside: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(inside.len());
    let mut rest = inside;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let (escaped, after) = rest.split_first()?;
        rest = after;
        out.push(match escaped {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'f' => 12,
            b'"' | b'\\' | b'/' => *escaped,
            b'u' => {
                let mut code = hex4(rest)?;
                rest = &rest[4..];
                if (0xd800..0xdc00).contains(&code) {
                    let low = hex4(rest.strip_prefix(b"\\u")?)?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return None;
                    }
                    code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    rest = &rest[6..];
                }
                let character = char::from_u32(code)?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return None,
        });
    }
    Some(out)
}

fn hex4(text: &[u8]) -> Option<u32> {
    text.get(..4)?.iter().try_fold(0, |code, byte| Some(code * 16 + char::from(*byte).to_digit(16)?))
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.blanks();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Consumes a string and returns it with its quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(&self.text[start..self.at]);
                }
                b'\\' => self.at += 2,
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    /// Moves to the value of a key.
    fn enter_object(&mut self, wanted: &[u8]) -> Option<()> {
        self.take(b'{')?;
        loop {
            self.blanks();
            let key = self.string()?;
            self.take(b':')?;
            self.blanks();
            if &key[1..key.len() - 1] == wanted {
                return Some(());
            }
            self.skip()?;
            self.take(b',')?;
        }
    }

    /// Moves to an element.
    fn enter_array(&mut self, index: usize) -> Option<()> {
        self.take(b'[')?;
        self.blanks();
        if self.peek()? == b']' {
            return None;
        }
        for _ in 0..index {
            self.skip()?;
            self.take(b',')?;
        }
        Some(())
    }

    /// Skips the next value and the blanks before it.
    fn skip(&mut self) -> Option<()> {
        // Whether each open container is an object.
        let mut open = [false; DEPTH];
        let mut depth = 0;
        loop {
            self.blanks();
            match self.peek()? {
                byte @ (b'{' | b'[') => {
                    *open.get_mut(depth)? = byte == b'{';
                    depth += 1;
                    self.at += 1;
                    self.blanks();
                    let end = if byte == b'{' { b'}' } else { b']' };
                    if self.peek()? != end {
                        if byte == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                    depth -= 1;
                }
                b'"' => _ = self.string()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => return None,
            }
            // A value ended: so may containers around it.
            loop {
                let Some(innermost) = depth.checked_sub(1) else { return Some(()) };
                self.blanks();
                match (self.peek()?, open[innermost]) {
                    (b',', object) => {
                        self.at += 1;
                        if object {
                            self.blanks();
                            self.key()?;
                        }
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        depth = innermost;
                    }
                    _ => return None,
                }
            }
        }
    }

    fn key(&mut self) -> Option<()> {
        self.string()?;
        self.take(b':')
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn number(&mut self) -> Option<()> {
        let digits = |reader: &mut Self| {
            let start = reader.at;
            while reader.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                reader.at += 1;
            }
            (reader.at > start).then_some(())
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        digits(self)?;
        if self.peek() == Some(b'.') {
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            digits(self)?;
        }
        Some(())
    }
}

/// The fuzz target: queries and escapes any bytes.
pub fn fuzz_json(data: &[u8]) {
    for path in ["$", "$.a", "$.a[1].b", "$[0]", "$[0][0]", "$.a\\.b"] {
        let path = Path::parse(path).expect("a good path");
        query(data, &path, false);
        query(data, &path, true);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        Path::parse(text);
    }
    for code in ["ascii", "utf8", "utf8s", "utf8p", "utf8ps"] {
        let code = InputCode::named(code).expect("a code");
        let Some(escaped) = escape(data, code) else { continue };
        assert!(escaped.is_ascii() && escaped.len() <= data.len() * 6);
        // Escaped text reads as a JSON string.
        let quoted = [b"\"", &escaped[..], b"\""].concat();
        let path = Path(Vec::new());
        if code == InputCode::named("utf8").expect("a code") {
            let value = query(&quoted, &path, false).expect("a string");
            assert_eq!(value.into_text(), data);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, path: &str, expected: Option<&str>) {
        let path = Path::parse(path).expect("a good path");
        let found = query(text.as_bytes(), &path, false).map(|value| value.into_text().into_owned());
        assert_eq!(found.map(|text| String::from_utf8_lossy(&text).into_owned()).as_deref(), expected, "{text}");
    }

    #[test]
    fn values_by_path() {
        let text = r#" {"a" : {"b":[1,"x\n\u0041\u00e9",{"c":true}],"d":null}, "a.b":2.50, "n":-1e7, "s":"\"q\""} "#;
        check(text, "$.a.b[0]", Some("1"));
        check(text, "$.a.b[1]", Some("x\nAé"));
        check(text, "$.a.b[2].c", Some("1"));
        check(text, "$.a.b", Some(r#"[1,"x\n\u0041\u00e9",{"c":true}]"#));
        check(text, "$.a.b[3]", None);
        check(text, "$.a.d", None);
        check(text, "$.a", None);
        check(text, r"$.a\.b", Some("2.5"));
        check(text, "$.n", Some("-1e+07"));
        check(text, "$.s", Some("\"q\""));
        check("[[],[1]]", "$[1][0]", Some("1"));
        check("\"x\"", "$", Some("x"));
        check("{\"a\":\"\\ud83d\\ude00\"}", "$.a", Some("😀"));
        for wrong in ["{\"b\":1,}", "{\"b\"}", "{\"a\":tru}", "{\"a\":", "", "{b:1}", "{\"a\":1e}"] {
            check(wrong, "$.a", None);
        }
        check(&format!("{}1{}", "[".repeat(100), "]".repeat(100)), "$", None);
        for wrong in ["a", "$a", "$.a[", "$.a[x]", ""] {
            assert_eq!(Path::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_as_c_prints_them() {
        let text = |number: f64| {
            let mut out = Vec::new();
            append_general(&mut out, number);
            String::from_utf8(out).expect("ASCII")
        };
        let shown = [0.0, 1.0, 1.5, 123_456.0, 1_234_567.0, 0.0001, 0.000_01, 1e100, -2.25, 99999.95];
        let expected = ["0", "1", "1.5", "123456", "1.23457e+06", "0.0001", "1e-05", "1e+100", "-2.25", "99999.9"];
        assert_eq!(shown.map(text), expected.map(str::to_owned));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            fuzz_json(&data);
        }

        #[test]
        fn nearly_json_is_survived(data in r#"[\[\]{}",:a1\\u0e. -]{0,40}"#) {
            fuzz_json(data.as_bytes());
        }
    }
}
