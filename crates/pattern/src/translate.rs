//! Translation of PCRE patterns to the syntax of the linear engine, if they mean the same in both.
//!
//! The two engines share most of a language, and where they differ silently a pattern would match something else
//! than under HAProxy: `a++` is possessive or nested, `\v` a class or a byte, `[a&&b]` a set of three bytes or an
//! intersection, `$` matches before a last line feed or does not. So a pattern is translated only if every construct
//! in it is known to be the same; a pattern with any other construct goes to the backtracking engine, even if the
//! linear one accepts it. Bytes beyond ASCII become `\xHH`, so that both engines work byte-wise.

/// A pattern for the linear engine.
pub(crate) struct Linear {
    /// The pattern.
    pub(crate) pattern: String,
    /// Whether it contains `$`, which PCRE also finds before a line feed that ends the text.
    pub(crate) dollar: bool,
    /// Whether a group is inside a repetition: its last capture may differ, so captures are left to PCRE.
    pub(crate) repeated_group: bool,
}

/// Returns the pattern in the linear engine's notation; `None` if something in it may mean another thing there.
pub(crate) fn linear(pattern: &[u8]) -> Option<Linear> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut dollar = false;
    let mut repeated_group = false;
    // Whether each open group captures or holds one that does.
    let mut groups: Vec<bool> = Vec::new();
    // The item to which a quantifier would apply.
    let mut last = Last::Nothing;
    let mut i = 0;
    while let Some(&byte) = pattern.get(i) {
        i += 1;
        match byte {
            b'\\' => {
                i = escape(pattern, i, false, &mut out)?;
                last = Last::Atom;
            }
            b'[' => {
                i = class(pattern, i, &mut out)?;
                last = Last::Atom;
            }
            b'(' => {
                if groups.len() >= 200 {
                    return None;
                }
                // `(?:` and the flag that says the same in both; other flags, look-around, names and comments are the
                // other engine's. `(*` is a verb.
                if pattern[i..].starts_with(b"?i)") {
                    out.push_str("(?i)");
                    i += 3;
                    last = Last::Nothing;
                    continue;
                }
                let captures = match pattern.get(i) {
                    Some(b'?') if pattern.get(i + 1) == Some(&b':') => {
                        out.push_str("(?:");
                        i += 2;
                        false
                    }
                    Some(b'?' | b'*') => return None,
                    _ => {
                        out.push('(');
                        true
                    }
                };
                groups.push(captures);
                last = Last::Nothing;
            }
            b')' => {
                let captures = groups.pop()?;
                if let Some(outer) = groups.last_mut() {
                    *outer |= captures;
                }
                out.push(')');
                last = Last::Group(captures);
            }
            b'*' | b'+' | b'?' | b'{' => {
                i = quantifier(pattern, i - 1, &mut out)?;
                match last {
                    Last::Nothing => return None,
                    Last::Group(captures) => repeated_group |= captures,
                    Last::Atom => {}
                }
                last = Last::Nothing;
            }
            b'|' | b'^' | b'$' => {
                dollar |= byte == b'$';
                out.push(char::from(byte));
                last = Last::Nothing;
            }
            // A literal in PCRE unless a quantifier is open.
            b']' | b'}' => {
                out.push('\\');
                out.push(char::from(byte));
                last = Last::Atom;
            }
            byte => {
                literal(byte, &mut out);
                last = Last::Atom;
            }
        }
    }
    groups.is_empty().then_some(Linear { pattern: out, dollar, repeated_group })
}

enum Last {
    /// Nothing that may be repeated; a second quantifier would be possessive or wrong.
    Nothing,
    Atom,
    Group(bool),
}

fn literal(byte: u8, out: &mut String) {
    match byte {
        // Under no flag is a control character special, but written out it is safe from any.
        0..0x20 | 0x7f.. => hex(byte, out),
        _ => out.push(char::from(byte)),
    }
}

fn hex(byte: u8, out: &mut String) {
    use std::fmt::Write;
    // Writing to a String cannot fail.
    let _ = write!(out, "\\x{byte:02x}");
}

/// Translates the escape at `i`; returns the position after it.
fn escape(pattern: &[u8], i: usize, in_class: bool, out: &mut String) -> Option<usize> {
    let byte = *pattern.get(i)?;
    match byte {
        b'd' | b'D' | b'w' | b'W' | b's' | b'S' | b'n' | b'r' | b't' | b'f' | b'a' => {
            out.push('\\');
            out.push(char::from(byte));
        }
        b'b' | b'B' | b'A' | b'z' if !in_class => {
            // `\b{start}` is a word boundary of another kind here and a boundary and text there; repeated
            // assertions are left to the other engine as well.
            if matches!(pattern.get(i + 1), Some(b'{' | b'*' | b'+' | b'?')) {
                return None;
            }
            out.push('\\');
            out.push(char::from(byte));
        }
        b'x' => {
            let digit = |at: usize| pattern.get(at).and_then(|byte| char::from(*byte).to_digit(16));
            hex((digit(i + 1)? * 16 + digit(i + 2)?) as u8, out);
            return Some(i + 3);
        }
        byte if byte.is_ascii_punctuation() => hex(byte, out),
        _ => return None,
    }
    Some(i + 1)
}

/// Returns a quantifier at `i`, greedy or lazy; `None` for possessive ones and for braces that are no quantifier.
fn quantifier(pattern: &[u8], mut i: usize, out: &mut String) -> Option<usize> {
    let start = i;
    if pattern[i] == b'{' {
        let end = i + pattern[i..].iter().position(|byte| *byte == b'}')?;
        let inside = std::str::from_utf8(&pattern[i + 1..end]).ok()?;
        let (low, high) = inside.split_once(',').map_or((inside, None), |(low, high)| (low, Some(high)));
        let number =
            |text: &str| (text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u16>().ok()).flatten();
        let low = number(low)?;
        // An open end is fine, a reversed range is an error in both, which PCRE shall word.
        if high.is_some_and(|high| !high.is_empty() && number(high).is_none_or(|high| high < low)) {
            return None;
        }
        i = end;
    }
    i += 1;
    match pattern.get(i) {
        Some(b'?') => i += 1,
        Some(b'+') => return None,
        _ => {}
    }
    if matches!(pattern.get(i), Some(b'*' | b'+' | b'?' | b'{')) {
        return None;
    }
    out.push_str(std::str::from_utf8(&pattern[start..i]).ok()?);
    Some(i)
}

/// POSIX classes that both engines define alike over ASCII.
const POSIX: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Returns a class whose `[` stands before `i`.
fn class(pattern: &[u8], mut i: usize, out: &mut String) -> Option<usize> {
    out.push('[');
    if pattern.get(i) == Some(&b'^') {
        out.push('^');
        i += 1;
    }
    let mut first = true;
    loop {
        let byte = *pattern.get(i)?;
        i += 1;
        match byte {
            b']' if !first => {
                out.push(']');
                return Some(i);
            }
            b'[' if matches!(pattern.get(i), Some(b':' | b'.' | b'=')) => {
                let rest = std::str::from_utf8(&pattern[i..]).ok()?;
                let name = rest.strip_prefix(':')?.split_once(":]")?.0;
                let plain = name.strip_prefix('^').unwrap_or(name);
                if !POSIX.contains(&plain) {
                    return None;
                }
                out.push_str("[:");
                out.push_str(name);
                out.push_str(":]");
                i += name.len() + 3;
                // A range may not start from a class; the engines word that differently.
                if pattern.get(i) == Some(&b'-') && pattern.get(i + 1) != Some(&b']') {
                    return None;
                }
            }
            b'\\' => {
                let class = matches!(pattern.get(i), Some(b'd' | b'D' | b'w' | b'W' | b's' | b'S'));
                i = escape(pattern, i, true, out)?;
                if class && pattern.get(i) == Some(&b'-') && pattern.get(i + 1) != Some(&b']') {
                    return None;
                }
            }
            b'-' => {
                // A hyphen at either end is itself; between two members it makes a range.
                if first || pattern.get(i) == Some(&b']') {
                    hex(b'-', out);
                } else if matches!(pattern.get(i), Some(b'-' | b'[')) {
                    return None;
                } else {
                    out.push('-');
                    // `a-\d` is three members in PCRE.
                    if pattern.get(i) == Some(&b'\\')
                        && !pattern.get(i + 1).is_some_and(|b| b.is_ascii_punctuation() || *b == b'x')
                    {
                        return None;
                    }
                    // `a-c-e`: the second hyphen is a literal.
                    let after = match pattern.get(i)? {
                        b'\\' if pattern.get(i + 1) == Some(&b'x') => i + 4,
                        b'\\' => i + 2,
                        _ => i + 1,
                    };
                    if pattern.get(after) == Some(&b'-') && pattern.get(after + 1) != Some(&b']') {
                        return None;
                    }
                }
            }
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            byte => hex(byte, out),
        }
        first = false;
    }
}
