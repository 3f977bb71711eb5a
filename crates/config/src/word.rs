//! One line → words: HAProxy's quotes, escapes, comments and variables (configuration manual 2.2 and 2.3).
//!
//! - blanks separate words, `#` starts a comment, outside quotes;
//! - `\ `, `\\`, `\#`, `\"`, `\'`, `\$`, `\n`, `\r`, `\t`, `\xHH` are one byte, any other `\` stands for itself;
//!   nothing is an escape between single quotes;
//! - variables are expanded between double quotes: `$NAME`, `${NAME}`, `${NAME-default}`, and `${NAME[*]}`, whose
//!   blanks separate words; without quotes `$NAME` and `${NAME}` are in addresses only (see [`Line::address`]);
//!   `.FILE`, `.LINE` and `.SECTION` are names too.
//!
//! A line is a line: HAProxy has no continuation. Words are bytes, as in HAProxy, though nearly all are text.

use std::sync::Arc;

use crate::environment::Environment;
use crate::limits;
use crate::model::Position;

/// A word and its position in its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The word as text, by [`crate::bytes`] where it is not UTF-8; then `raw` has the bytes.
    text: String,
    raw: Option<Vec<u8>>,
    /// Column of its first character, quotes included, from 1.
    column: u32,
    /// The number of columns by which an opening quote shifts the text, if that was all there was to unquote: then a
    /// position within the text is a position in the line.
    shift: Option<u32>,
    /// Whether any part of it was quoted or escaped.
    quoted: bool,
    /// The word as an address: with the variables that it still contains expanded. `None`: it contains none.
    address: Option<String>,
}

impl Word {
    /// Returns the word as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the word's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.raw.as_deref().unwrap_or(self.text.as_bytes())
    }

    /// Returns the column of the byte at `offset` of its text, or that of the word if quotes or escapes make it
    /// unknown.
    pub(crate) fn column(&self, offset: usize) -> u32 {
        match self.shift {
            Some(shift) => self.column + shift + offset as u32,
            None => self.column,
        }
    }

    /// Returns whether quotes or escapes were used.
    #[cfg(test)]
    pub(crate) fn quoted(&self) -> bool {
        self.quoted
    }
}

/// A line's words, at least one.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The file it stands in.
    pub(crate) file: Arc<str>,
    /// Its number, from 1.
    pub(crate) number: u32,
    /// Its words.
    pub(crate) words: Vec<Word>,
    /// Whether `no` or `default` preceded them.
    pub(crate) negated: bool,
}

impl Line {
    /// Returns a line of these words.
    pub(crate) fn new(file: Arc<str>, number: u32, words: Vec<Word>) -> Self {
        Line { file, number, words, negated: false }
    }

    /// Returns the line without its first word, which was `no` or `default`.
    pub(crate) fn without_no(&self) -> Line {
        Line { file: self.file.clone(), number: self.number, words: self.words[1..].to_vec(), negated: true }
    }

    /// Returns the `index`th word, the keyword being 0; empty beyond the end, as in HAProxy.
    pub(crate) fn text(&self, index: usize) -> &str {
        self.words.get(index).map_or("", Word::text)
    }

    /// Returns the `index`th word where an address is expected: there HAProxy expands `$NAME` and `${NAME}` without
    /// quotes too, and unset variables are empty.
    pub(crate) fn address(&self, index: usize) -> &str {
        self.words.get(index).map_or("", |word| word.address.as_deref().unwrap_or(&word.text))
    }

    /// Returns the position of a byte of the `index`th word, as [`Line::address`] returns it.
    pub(crate) fn within_address(&self, index: usize, offset: usize) -> Position {
        match self.words.get(index) {
            Some(Word { address: Some(_), .. }) => self.at(index),
            _ => self.within(index, offset),
        }
    }

    /// Returns the number of words.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the position of the `index`th word; beyond the end, where it would be.
    pub(crate) fn at(&self, index: usize) -> Position {
        self.at_offset(index, None)
    }

    /// Returns the position of a byte of the `index`th word.
    pub(crate) fn within(&self, index: usize, offset: usize) -> Position {
        self.at_offset(index, Some(offset))
    }

    fn at_offset(&self, index: usize, offset: Option<usize>) -> Position {
        let column = match (self.words.get(index), offset) {
            (Some(word), Some(offset)) => word.column(offset),
            (Some(word), None) => word.column,
            (None, _) => self.words.last().map_or(1, |w| w.column(w.bytes().len()) + 1),
        };
        Position { file: self.file.clone(), line: self.number, column }
    }
}

/// Variables in addition to the environment.
pub(crate) struct Scope<'a> {
    pub(crate) env: &'a Environment,
    pub(crate) file: &'a str,
    pub(crate) line: u32,
    pub(crate) section: &'a str,
}

impl Scope<'_> {
    fn value(&self, name: &str) -> Option<std::borrow::Cow<'_, str>> {
        match name {
            ".FILE" => Some(self.file.into()),
            ".LINE" => Some(self.line.to_string().into()),
            ".SECTION" => Some(self.section.into()),
            _ => self.env.get(name).map(Into::into),
        }
    }
}

/// The reason why a line cannot be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SplitError {
    /// The column, from 1.
    pub(crate) column: u32,
    /// The message.
    pub(crate) message: &'static str,
    /// The hint.
    pub(crate) hint: Option<&'static str>,
}

struct Splitter {
    words: Vec<Word>,
    bytes: Vec<u8>,
    column: u32,
    shift: Option<u32>,
    quoted: bool,
    /// Whether the word has begun, even if it is empty (`""`).
    begun: bool,
    expanded_bytes: usize,
}

impl Splitter {
    fn begin(&mut self, at: usize) {
        if !self.begun {
            self.begun = true;
            self.column = at as u32 + 1;
            self.shift = Some(0);
        }
    }

    fn emit(&mut self, byte: u8) {
        self.expanded_bytes += 1;
        self.bytes.push(byte);
    }

    fn end(&mut self) {
        if !self.begun {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let (text, raw) = match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => {
                let bytes = error.into_bytes();
                (crate::bytes::to_text(&bytes).into_owned(), Some(bytes))
            }
        };
        let (column, shift, quoted) = (self.column, self.shift, self.quoted);
        self.words.push(Word { text, raw, column, shift, quoted, address: None });
        self.begun = false;
        self.quoted = false;
    }
}

/// Splits a line, given without its line feed. No word means a blank line or a comment.
pub(crate) fn split(line: &[u8], scope: &Scope<'_>) -> Result<Vec<Word>, SplitError> {
    let error = |at: usize, message, hint| Err(SplitError { column: at as u32 + 1, message, hint });
    if line.len() > limits::LINE_BYTES {
        return error(limits::LINE_BYTES, "line too long, limit: 65536 bytes", None);
    }
    let mut s = Splitter {
        words: Vec::new(),
        bytes: Vec::new(),
        column: 1,
        shift: None,
        quoted: false,
        begun: false,
        expanded_bytes: 0,
    };
    // The opening quote of the current part.
    let mut quote: Option<(u8, usize)> = None;
    let mut i = 0;
    while i < line.len() {
        let byte = line[i];
        if s.expanded_bytes > limits::LINE_BYTES {
            return error(i, "line too long once its variables are expanded, limit: 65536 bytes", None);
        }
        match (byte, quote) {
            (b'\r', _) if i + 1 == line.len() => break,
            (b'#', None) => break,
            (b'"' | b'\'', None) => {
                // An opening quote before the word only shifts it; a quote elsewhere makes columns unknown.
                let first = !s.begun;
                s.begin(i);
                s.shift = if first { Some(1) } else { None };
                s.quoted = true;
                quote = Some((byte, i));
                i += 1;
            }
            (_, Some((open, _))) if byte == open => {
                quote = None;
                // More of the same word may follow a closing quote.
                if line.get(i + 1).is_some_and(|b| !is_blank(*b)) {
                    s.shift = None;
                }
                i += 1;
            }
            (b'\\', None | Some((b'"', _))) => {
                s.begin(i);
                let (emitted, used) = match unescape(&line[i + 1..]) {
                    Ok(found) => found,
                    Err(()) => {
                        let hint = Some("write two hexadecimal digits after '\\x', or '\\\\x' for a plain '\\x'");
                        return error(i, "truncated or invalid hexadecimal sequence", hint);
                    }
                };
                if used > 0 {
                    s.quoted = true;
                    s.shift = None;
                }
                s.emit(emitted);
                i += 1 + used;
            }
            (_, None) if is_blank(byte) => {
                s.end();
                i += 1;
            }
            (b'$', Some((b'"', _))) => {
                s.shift = None;
                i = expand(line, i, &mut s, scope)?;
            }
            _ => {
                s.begin(i);
                s.emit(byte);
                i += 1;
            }
        }
    }
    if let Some((open, at)) = quote {
        let hint = if open == b'"' { "add the closing '\"'" } else { "add the closing \"'\"" };
        return error(at, "unmatched quote", Some(hint));
    }
    s.end();
    for word in s.words.iter_mut().filter(|word| word.text.contains('$')) {
        word.address = Some(expand_address(&word.text, |name| scope.env.get(name).map(str::to_owned)));
    }
    if s.words.len() > limits::WORDS_PER_LINE {
        let at = s.words[limits::WORDS_PER_LINE].column as usize - 1;
        return error(at, "too many words: a line has at most 64", Some("split it, or read patterns with '-f FILE'"));
    }
    Ok(s.words)
}

/// Returns a word with its variables expanded, as HAProxy does in addresses: a name ends at the first character that
/// none may contain, `}` of `${NAME}` included.
pub fn expand_address(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let name = &rest[at + 1..];
        let (brace, name) = name.strip_prefix('{').map_or((false, name), |name| (true, name));
        let end = name.bytes().position(|b| !(b.is_ascii_alphanumeric() || b == b'_')).unwrap_or(name.len());
        expanded.push_str(&value(&name[..end]).unwrap_or_default());
        rest = &name[end..];
        if brace {
            rest = rest.strip_prefix('}').unwrap_or(rest);
        }
        if expanded.len() > limits::LINE_BYTES {
            // No address is that long, so the part read so far will be refused.
            break;
        }
    }
    expanded.push_str(rest);
    expanded
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c)
}

/// Returns the byte of an escape sequence and its length; an unknown one is a plain backslash.
fn unescape(rest: &[u8]) -> Result<(u8, usize), ()> {
    Ok(match rest.first() {
        Some(&b @ (b' ' | b'\\' | b'#' | b'"' | b'\'' | b'$')) => (b, 1),
        Some(b'n') => (b'\n', 1),
        Some(b'r') => (b'\r', 1),
        Some(b't') => (b'\t', 1),
        Some(b'x') => {
            let digit = |i: usize| rest.get(i).and_then(|b| (*b as char).to_digit(16)).ok_or(());
            ((digit(1)? * 16 + digit(2)?) as u8, 3)
        }
        _ => (b'\\', 0),
    })
}

/// Expands the variable at `start`, the place of its `$`; returns the place after it.
fn expand(line: &[u8], start: usize, s: &mut Splitter, scope: &Scope<'_>) -> Result<usize, SplitError> {
    let error = |at: usize, message, hint| Err(SplitError { column: at as u32 + 1, message, hint });
    let mut i = start + 1;
    let brace = line.get(i) == Some(&b'{');
    if brace {
        i += 1;
    }
    if !line.get(i).is_some_and(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'.')) {
        let hint = Some("write '\\$' for a plain '$'");
        return error(i.min(line.len()), "forbidden first char in environment variable name", hint);
    }
    let name_at = i;
    // A dot only begins a name, that of a pseudo-variable.
    i += 1;
    while line.get(i).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') {
        i += 1;
    }
    let name = std::str::from_utf8(&line[name_at..i]).expect("only ASCII was taken");
    let value = scope.value(name);
    let mut split_words = false;
    if brace && line.get(i) == Some(&b'[') {
        if line.get(i + 1..i + 3) != Some(b"*]") {
            return error(i, "expansion of a list is written '[*]'", None);
        }
        split_words = true;
        i += 3;
    }
    let mut default: &[u8] = b"";
    if brace {
        if line.get(i) == Some(&b'-') {
            let length = line[i + 1..].iter().position(|b| *b == b'}');
            let Some(length) = length else {
                return error(start + 1, "unclosed brace in environment variable name", None);
            };
            default = &line[i + 1..i + 1 + length];
            i += 1 + length;
        }
        if line.get(i) != Some(&b'}') {
            return error(start + 1, "unclosed brace in environment variable name", Some("add the closing '}'"));
        }
        i += 1;
    }
    let value: &[u8] = value.as_ref().map_or(default, |v| v.as_bytes());
    if value.len() + s.expanded_bytes > limits::LINE_BYTES {
        return error(start, "line too long once its variables are expanded, limit: 65536 bytes", None);
    }
    if !split_words {
        value.iter().for_each(|b| s.emit(*b));
        return Ok(i);
    }
    // A list's words are words of the line; an empty list is no word at all.
    let mut parts = value.split(|b| is_blank(*b)).filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() && s.bytes.is_empty() && line.get(i) == Some(&b'"') {
        s.begun = false;
        return Ok(i);
    }
    while let Some(part) = parts.next() {
        s.begin(start);
        s.shift = None;
        part.iter().for_each(|b| s.emit(*b));
        if parts.peek().is_some() {
            s.end();
        }
    }
    Ok(i)
}

/// Returns the place of the first character that names of sections and servers can't have.
pub(crate) fn bad_name_byte(name: &str) -> Option<usize> {
    name.bytes().position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'.' | b':' | b'-' | b'_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &[u8]) -> Result<Vec<Word>, SplitError> {
        let mut env = Environment::new();
        env.set("A", "one");
        env.set("LIST", "x  y z");
        env.set("EMPTY", "");
        split(line, &Scope { env: &env, file: "f.cfg", line: 7, section: "global" })
    }

    #[track_caller]
    fn check(line: &str, expected: &[&str]) {
        let words = run(line.as_bytes()).expect("it splits");
        let texts: Vec<&str> = words.iter().map(Word::text).collect();
        assert_eq!(texts, expected, "{line}");
    }

    #[track_caller]
    fn refused(line: &str, column: u32, message: &str) {
        let error = run(line.as_bytes()).expect_err("it is refused");
        assert_eq!((error.column, error.message), (column, message), "{line}");
    }

    #[test]
    fn blanks_and_comments() {
        check("", &[]);
        check("   # only a comment", &[]);
        check("\tbind  :80\t# here", &["bind", ":80"]);
        check("a#b", &["a"]);
        check(r"a\#b", &["a#b"]);
        check("'a#b'", &["a#b"]);
        check("bind :80\r", &["bind", ":80"]);
    }

    #[test]
    fn quotes() {
        check(r#"a "b c" d"#, &["a", "b c", "d"]);
        check(r#"a b"c "d e' f'"#, &["a", "bc d", "e f"]);
        check(r#""" ''"#, &["", ""]);
        check(r#"'a"b' "a'b""#, &["a\"b", "a'b"]);
        refused("acl y path \"abc", 12, "unmatched quote");
        refused("a 'b", 3, "unmatched quote");
    }

    #[test]
    fn escapes() {
        check(r"a\ b \\ \n\r\t \x41\x7e", &["a b", "\\", "\n\r\t", "A~"]);
        check(r#"\" \' \$A"#, &["\"", "'", "$A"]);
        check(r"\d+\.x \q", &[r"\d+\.x", r"\q"]);
        check(r"'\n\x4'", &[r"\n\x4"]);
        check(r#""\n\"""#, &["\n\""]);
        check("setenv A \\", &["setenv", "A", "\\"]);
        refused(r"acl x \x4g", 7, "truncated or invalid hexadecimal sequence");
        let words = run(br"\xff\xfe").expect("it splits");
        assert_eq!(words[0].bytes(), b"\xff\xfe");
    }

    #[test]
    fn variables() {
        check(r#"$A '$A' "$A" "${A}b" "x$A.""#, &["$A", "$A", "one", "oneb", "xone."]);
        check(r#""${NONE-d e}" "${A-d}" "${NONE}""#, &["d e", "one", ""]);
        check(r#""${LIST[*]}" "p${LIST[*]}s" "${LIST}""#, &["x", "y", "z", "px", "y", "zs", "x  y z"]);
        check(r#"a "${EMPTY[*]}" b"#, &["a", "b"]);
        check(r#""${.FILE} ${.LINE} ${.SECTION}""#, &["f.cfg 7 global"]);
        check(r#""\$A""#, &["$A"]);
        refused(r#"a "$1""#, 5, "forbidden first char in environment variable name");
        refused(r#"a "${A""#, 5, "unclosed brace in environment variable name");
        refused(r#"a "${A[1]}""#, 7, "expansion of a list is written '[*]'");
    }

    #[test]
    fn addresses_expand_without_quotes() {
        let words = run(b"bind ${A}:$A. '$A' ${NONE}:80 ${A-x} $ x\\$A").expect("it splits");
        let line = Line::new("f".into(), 1, words);
        let found: Vec<&str> = (1..line.len()).map(|index| line.address(index)).collect();
        assert_eq!(found, ["one:one.", "one", ":80", "one-x}", "", "xone"]);
        assert_eq!(line.text(1), "${A}:$A.");
    }

    #[test]
    fn columns_point_into_the_line() {
        let words = run(br#"  acl "hdr(x)" b\ c"#).expect("it splits");
        assert_eq!((words[0].column(0), words[1].column(2), words[2].column(2)), (3, 10, 16));
        assert!(words[1].quoted() && !words[0].quoted());
    }

    #[test]
    fn is_bounded() {
        refused(&"x ".repeat(65), 129, "too many words: a line has at most 64");
        check(&"x ".repeat(64), &["x"; 64]);
        refused(&"x".repeat(70_000), 65_537, "line too long, limit: 65536 bytes");
        let mut env = Environment::new();
        env.set("BIG", "x".repeat(40_000));
        let scope = Scope { env: &env, file: "", line: 1, section: "" };
        assert!(split(br#""$BIG$BIG""#, &scope).is_err());
    }
}
