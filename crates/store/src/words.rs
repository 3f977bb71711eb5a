//! Words of lines in Redis's notation: parted by blanks, in quotes if need be. Lines of configuration files, of manifests
//! of the append-only file and of MONITOR are written in it.

/// Returns the words of a line: blanks part them, `"…"` may have escapes (`\n`, `\xff`), `'…'` only `\'`. None if a
/// quote is not closed, or closed in the middle of a word.
pub(crate) fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|byte| byte.is_ascii_whitespace() || *byte == 0x0b) {
            at += 1;
        }
        if at >= line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            match line.get(at) {
                None => break,
                Some(byte) if byte.is_ascii_whitespace() => break,
                Some(quote @ (b'"' | b'\'')) => {
                    at = unquoted(line, at + 1, *quote, &mut word)?;
                    // A word ends where its quotes do.
                    if line.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
                        return None;
                    }
                    break;
                }
                Some(byte) => word.push(*byte),
            }
            at += 1;
        }
        words.push(word);
    }
}

/// Reads up to the closing quote; gives the place behind it.
fn unquoted(line: &[u8], mut at: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    loop {
        let byte = *line.get(at)?;
        match byte {
            _ if byte == quote => return Some(at + 1),
            b'\\' if quote == b'"' => {
                let next = *line.get(at + 1)?;
                if let (b'x', Some(high), Some(low)) =
                    (next, line.get(at + 2).and_then(|byte| hex(*byte)), line.get(at + 3).and_then(|byte| hex(*byte)))
                {
                    word.push((high * 16 + low) as u8);
                    at += 4;
                    continue;
                }
                word.push(match next {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                at += 2;
            }
            b'\\' if line.get(at + 1) == Some(&b'\'') => {
                word.push(b'\'');
                at += 2;
            }
            _ => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

/// Appends a word in quotes, with unprintable bytes escaped.
pub(crate) fn quote(word: &[u8], line: &mut Vec<u8>) {
    line.push(b'"');
    for byte in word {
        match byte {
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', *byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            7 => line.extend_from_slice(b"\\a"),
            8 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(*byte),
            _ => line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    line.push(b'"');
}

/// Returns a word in quotes.
pub(crate) fn quoted(word: &[u8]) -> Vec<u8> {
    let mut line = Vec::new();
    quote(word, &mut line);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_redis_does() {
        let check = |line: &str, expected: Option<&[&str]>| {
            let expected = expected.map(|words| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
            assert_eq!(split(line.as_bytes()), expected, "{line}");
        };
        check("a b  c", Some(&["a", "b", "c"]));
        check(r#"a "" 'x y'"#, Some(&["a", "", "x y"]));
        check(r#""\x41\n\"" '\''"#, Some(&["A\n\"", "'"]));
        check(r#"a"b""#, Some(&["ab"]));
        check(r#""a"b"#, None);
        check(r#""a"#, None);
        check("'a", None);
        for word in ["", "a b", "\"\\\n\r\tx\u{1}"] {
            assert_eq!(split(&quoted(word.as_bytes())), Some(vec![word.as_bytes().to_vec()]));
        }
        assert_eq!(quoted(b"a\"\\\n\r\t\x07\x08\x00\xff ~"), br#""a\"\\\n\r\t\a\b\x00\xff ~""#);
    }
}
