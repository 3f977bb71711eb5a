//! JSON documents: the reports of earlier runs read back, and results of benchmarks kept.
//!
//! Limits: [`MAX_DEPTH`] levels; the size is that of the file, which its reader bounds. A document that is not JSON is an error
//! with its place.

use std::fmt;

/// The maximum number of nested arrays and objects.
const MAX_DEPTH: usize = 32;

/// A value of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// Any number
    Number(f64),
    /// A string
    Text(String),
    /// An array
    List(Vec<Value>),
    /// Fields in their order.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Reads a document.
    ///
    /// # Errors
    /// The line, and what is expected there.
    pub fn read(text: &str) -> Result<Value, String> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.blank();
        if reader.at < text.len() { Err(reader.error("the end")) } else { Ok(value) }
    }

    /// Returns the field at a path: names with dots between them, or none for the value itself.
    pub fn at(&self, path: &str) -> Option<&Value> {
        if path.is_empty() {
            return Some(self);
        }
        path.split('.').try_fold(self, |value, name| match value {
            Value::Object(fields) => fields.iter().find(|(known, _)| known == name).map(|(_, value)| value),
            _ => None,
        })
    }

    /// Returns the number at a path.
    pub fn number(&self, path: &str) -> Option<f64> {
        match self.at(path)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text at a path.
    pub fn text(&self, path: &str) -> Option<&str> {
        match self.at(path)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the elements of the list at a path; none if there is no list.
    pub fn list(&self, path: &str) -> &[Value] {
        match self.at(path) {
            Some(Value::List(elements)) => elements,
            _ => &[],
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<f64> for Value {
    /// A number that is not finite is `null`.
    fn from(number: f64) -> Value {
        if number.is_finite() { Value::Number(number) } else { Value::Null }
    }
}

impl fmt::Display for Value {
    /// Writes the document, with a field of an object, an object or a list in a list on a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl Value {
    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, depth: usize| write!(f, "\n{}", "  ".repeat(depth));
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(&quoted(text)),
            Value::Object(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if index > 0 { "," } else { "" })?;
                    line(f, depth + 1)?;
                    write!(f, "{}: ", quoted(name))?;
                    value.write(f, depth + 1)?;
                }
                line(f, depth)?;
                f.write_str("}")
            }
            Value::List(elements) => {
                let is_nested = elements.iter().any(|value| matches!(value, Value::Object(_) | Value::List(_)));
                f.write_str("[")?;
                for (index, value) in elements.iter().enumerate() {
                    f.write_str(if index > 0 { "," } else { "" })?;
                    match is_nested {
                        true => line(f, depth + 1)?,
                        false => f.write_str(if index > 0 { " " } else { "" })?,
                    }
                    value.write(f, depth + 1)?;
                }
                if is_nested {
                    line(f, depth)?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Returns text as a JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn error(&self, expected: &str) -> String {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line}: {expected} is expected")
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.blank();
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err(self.error("less depth"));
        }
        self.blank();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => {
                self.at += 1;
                let mut elements = Vec::new();
                while !self.take(b']') {
                    if !elements.is_empty() && !self.take(b',') {
                        return Err(self.error("',' or ']'"));
                    }
                    elements.push(self.value(depth + 1)?);
                }
                Ok(Value::List(elements))
            }
            Some(b'"') => self.string().map(Value::Text),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        self.at += 1;
        let mut fields = Vec::new();
        while !self.take(b'}') {
            if !fields.is_empty() && !self.take(b',') {
                return Err(self.error("',' or '}'"));
            }
            self.blank();
            let name = self.string()?;
            if !self.take(b':') {
                return Err(self.error("':'"));
            }
            fields.push((name, self.value(depth + 1)?));
        }
        Ok(Value::Object(fields))
    }

    fn word(&mut self) -> Result<Value, String> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(rest.len());
        let word = &rest[..len];
        let value = match word {
            "null" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ if word.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                Value::Number(word.parse().map_err(|_| self.error("a number"))?)
            }
            _ => return Err(self.error("a value")),
        };
        self.at += len;
        Ok(value)
    }

    fn string(&mut self) -> Result<String, String> {
        if self.peek() != Some(b'"') {
            return Err(self.error("'\"'"));
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(c) = rest.chars().next() else { return Err(self.error("'\"'")) };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escaped()?),
                c => out.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let byte = self.peek().ok_or_else(|| self.error("an escape"))?;
        self.at += 1;
        Ok(match byte {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'"' | b'\\' | b'/' => char::from(byte),
            b'u' => {
                let digits =
                    self.text.get(self.at..self.at + 4).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
                let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let code = code.ok_or_else(|| self.error("four hexadecimal digits"))?;
                self.at += 4;
                // Reports have no surrogates; half of a pair stands for a character that is not shown.
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(self.error("an escape")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read() {
        let value = Value::read(" {\"a\": {\"b\": [1, -2.5e1, true, null]}, \"c\": \"x\\u00e9\\n\\\"y\"}\n").unwrap();
        assert_eq!(value.list("a.b"), [Value::Number(1.0), Value::Number(-25.0), Value::Bool(true), Value::Null]);
        assert_eq!((value.text("c"), value.number("a"), value.at("a.x")), (Some("xé\n\"y"), None, None));
        for (text, part) in [
            ("", "a value is expected"),
            ("{\"a\": 1,\n\"b\" 2}", "line 2: ':' is expected"),
            ("[1 2]", "',' or ']'"),
            ("[1,]", "a value"),
            ("{} x", "the end"),
            ("\"abc", "'\"'"),
            ("\"\\u12\"", "hexadecimal"),
            ("1.2.3", "a number"),
        ] {
            let error = Value::read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Value::read(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn documents_are_written_and_read_back() {
        let field = |name: &str, value| (name.to_owned(), value);
        let list = |values: &[f64]| Value::List(values.iter().copied().map(Value::from).collect());
        let value = Value::Object(vec![
            field("text", Value::from("a \"b\"\n\u{1}")),
            field("runs", list(&[1.0, 2.25, -3e-7])),
            field("rows", Value::List(vec![list(&[1.0]), list(&[]), Value::Bool(true)])),
            field("none", Value::from(f64::NAN)),
        ]);
        let text = value.to_string();
        assert_eq!(
            text,
            "{\n  \"text\": \"a \\\"b\\\"\\n\\u0001\",\n  \"runs\": [1, 2.25, -0.0000003],\n  \"rows\": [\n    [1],\n    \
             [],\n    true\n  ],\n  \"none\": null\n}"
        );
        assert_eq!(Value::read(&text).unwrap(), value);
    }

    #[test]
    fn fuzz_documents() {
        let mut random = 9_u64;
        let mut draw = |text: &str| {
            let chars: Vec<char> = text.chars().collect();
            let mut below = |bound: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % bound
            };
            let len = below(30);
            (0..len).map(|_| chars[below(chars.len() as u64) as usize]).collect::<String>()
        };
        for _ in 0..50_000 {
            let _ = Value::read(&draw("{}[]\",:\\u019.-etrulnfaé \n"));
        }
    }
}
