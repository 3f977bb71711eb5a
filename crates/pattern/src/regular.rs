//! Regular expressions: linear where possible, backtracking with a bound where the pattern needs it.
//!
//! HAProxy is built with PCRE2, so that is the language. The `regex` crate runs in time linear in the text, whatever
//! the pattern, which a proxy needs for untrusted input; it supports no back-references, look-around,
//! atomic groups or possessive quantifiers, and means a few other things differently. The module `translate` converts
//! the patterns that mean the same in both; PCRE2 gets the rest, with a limit on its steps that ends a search as
//! "no match", as HAProxy's own limit does, only a hundred times sooner. Matching is byte-wise in both.
//!
//! One difference shows only at run time: `$` also matches before a line feed at the end of the text. A linear pattern
//! with a `$` is therefore compiled a second time, by PCRE2, when it first meets such a text; so is one whose
//! captures stand in a repetition, when captures are first asked for.
//!
//! **Cost.** A few kB per pattern, at most [`REGEX_BYTES`] for linear ones, which build their automata while they
//! match. **Limits.** [`BACKTRACK_LIMIT`] steps per search.

use std::fmt;
use std::sync::OnceLock;

use crate::translate;

/// Steps of PCRE2's matcher after which a search ends without a match. PCRE2's own default is 10,000,000, a third of a
/// second of a worker's time; this is some milliseconds.
pub const BACKTRACK_LIMIT: u32 = 100_000;
/// Bytes of a compiled linear expression.
const REGEX_BYTES: usize = 4 << 20;
/// Bytes that PCRE2's compiled code may use of its own stack.
const STACK_BYTES: usize = 256 << 10;
/// `\0` to `\9` and ten more: HAProxy's `MAX_MATCH` is 10.
const GROUPS: usize = 10;

/// The engine of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// In time linear in the text.
    Linear,
    /// By trying, for at most [`BACKTRACK_LIMIT`] steps.
    Backtracking,
}

/// The reason for refusing a pattern: PCRE2's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("regex '{pattern}' is invalid ({reason})")]
pub struct RegexError {
    /// The pattern.
    pub pattern: String,
    /// The error message.
    pub reason: String,
}

/// A compiled expression.
pub struct Regex {
    pattern: Box<[u8]>,
    ignore_case: bool,
    inner: Inner,
    /// Whether it contains a `^`, which a continued search must not find.
    caret: bool,
}

enum Inner {
    Linear {
        regex: regex::bytes::Regex,
        dollar: bool,
        repeated_group: bool,
        /// The same for texts that end in a line feed, made when one comes; `None` inside if PCRE2 has no memory.
        twin: OnceLock<Option<Box<pcre2::bytes::Regex>>>,
    },
    Backtracking(Box<pcre2::bytes::Regex>),
}

/// The positions of a match's groups, by number; the whole match is 0. Reusable.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    groups: [Option<(usize, usize)>; GROUPS],
}

impl Captures {
    /// Start and end of a group; `None` if it took no part or is not among the first ten.
    pub fn get(&self, group: usize) -> Option<(usize, usize)> {
        *self.groups.get(group)?
    }
}

impl Regex {
    /// Compiles a pattern of which only the whole match is of interest: as in HAProxy, its groups have no numbers, so
    /// a reference to one is an error.
    pub fn without_groups(pattern: &[u8], ignore_case: bool) -> Result<Regex, RegexError> {
        let regex = Regex::new(pattern, ignore_case)?;
        if regex.engine() == Engine::Backtracking {
            // A pattern without references means the same in both forms, so the first one is used.
            backtracking(pattern, ignore_case, "(?n)")?;
        }
        Ok(regex)
    }

    /// Compiles a pattern. Its bytes are matched as bytes.
    pub fn new(pattern: &[u8], ignore_case: bool) -> Result<Regex, RegexError> {
        let caret = memchr::memchr(b'^', pattern).is_some();
        let make = |inner| Regex { pattern: pattern.into(), ignore_case, inner, caret };
        if let Some(linear) = translate::linear(pattern) {
            let mut builder = regex::bytes::RegexBuilder::new(&linear.pattern);
            builder.unicode(false).case_insensitive(ignore_case).size_limit(REGEX_BYTES);
            match builder.build() {
                Ok(regex) => {
                    let translate::Linear { dollar, repeated_group, .. } = linear;
                    return Ok(make(Inner::Linear { regex, dollar, repeated_group, twin: OnceLock::new() }));
                }
                Err(regex::Error::CompiledTooBig(limit)) => {
                    let reason = format!("its compiled form is larger than {limit} bytes");
                    return Err(RegexError { pattern: String::from_utf8_lossy(pattern).into_owned(), reason });
                }
                // PCRE2 decides whether it is invalid, and reports the reason.
                Err(_) => {}
            }
        }
        backtracking(pattern, ignore_case, "").map(|regex| make(Inner::Backtracking(Box::new(regex))))
    }

    /// Returns the pattern.
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }

    /// Returns its engine.
    pub fn engine(&self) -> Engine {
        match self.inner {
            Inner::Linear { .. } => Engine::Linear,
            Inner::Backtracking(_) => Engine::Backtracking,
        }
    }

    /// Returns the notice of `check` about a pattern that may need many steps; `None` for a linear one.
    pub fn notice(&self) -> Option<String> {
        (self.engine() == Engine::Backtracking).then(|| {
            format!(
                "regex '{}' needs backtracking: a search ends without a match after {BACKTRACK_LIMIT} steps",
                String::from_utf8_lossy(&self.pattern)
            )
        })
    }

    /// Returns the engine for a text.
    fn backtracking(&self, text: &[u8], captures: bool) -> Option<&pcre2::bytes::Regex> {
        match &self.inner {
            Inner::Backtracking(regex) => Some(regex),
            Inner::Linear { dollar, repeated_group, twin, .. } => {
                if !(*dollar && text.last() == Some(&b'\n') || captures && *repeated_group) {
                    return None;
                }
                twin.get_or_init(|| backtracking(&self.pattern, self.ignore_case, "").ok().map(Box::new)).as_deref()
            }
        }
    }

    /// Returns whether it matches somewhere in the text.
    pub fn is_match(&self, text: &[u8]) -> bool {
        match (self.backtracking(text, false), &self.inner) {
            // An error is the limit, or no memory.
            (Some(regex), _) => regex.is_match(text).unwrap_or(false),
            (None, Inner::Linear { regex, .. }) => regex.is_match(text),
            (None, Inner::Backtracking(_)) => false,
        }
    }

    /// Finds the first match and its groups.
    pub fn captures(&self, text: &[u8], captures: &mut Captures) -> bool {
        self.captures_at(text, 0, captures)
    }

    /// Finds the first match at or behind `start`, which a `^` does not stand at unless it is 0. Places count from
    /// the text's begin.
    fn captures_at(&self, text: &[u8], start: usize, captures: &mut Captures) -> bool {
        captures.groups = [None; GROUPS];
        match (self.backtracking(text, true), &self.inner) {
            (Some(regex), _) => {
                let mut found = regex.capture_locations();
                if !matches!(regex.captures_read_at(&mut found, text, start), Ok(Some(_))) {
                    return false;
                }
                for (index, group) in captures.groups.iter_mut().enumerate().take(found.len()) {
                    *group = found.get(index);
                }
                true
            }
            (None, Inner::Linear { regex, .. }) => {
                let mut found = regex.capture_locations();
                if regex.captures_read_at(&mut found, text, start).is_none() {
                    return false;
                }
                for (index, group) in captures.groups.iter_mut().enumerate().take(found.len()) {
                    *group = found.get(index);
                }
                true
            }
            (None, Inner::Backtracking(_)) => false,
        }
    }

    /// HAProxy's `replace-header` and similar actions: if the text matches, appends the template with the match's
    /// groups and gives `true`. `None`: it matches, but the template ends behind a backslash.
    pub fn expand(&self, text: &[u8], template: &[u8], out: &mut Vec<u8>) -> Option<bool> {
        let mut captures = Captures::default();
        if !self.captures(text, &mut captures) {
            return Some(false);
        }
        let slashes = template.iter().rev().take_while(|byte| **byte == b'\\').count();
        if slashes % 2 == 1 {
            return None;
        }
        append_template(template, text, &captures, out);
        Some(true)
    }

    /// HAProxy's `regsub`: appends the text with its first match, or each with `global`, replaced by a template, to at
    /// most `limit` bytes. After a match the rest is a text of its own, except that no `^` stands at its begin.
    pub fn replace(&self, text: &[u8], template: &[u8], global: bool, limit: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        let room = |out: &Vec<u8>| limit.saturating_sub(out.len() - begin);
        let put = |out: &mut Vec<u8>, bytes: &[u8]| {
            let room = room(out);
            out.extend_from_slice(&bytes[..bytes.len().min(room)]);
        };
        let mut captures = Captures::default();
        let mut start = 0;
        loop {
            // What stood before is seen only where a `^` must be kept from matching.
            let base = if self.caret { 0 } else { start };
            if !self.captures_at(&text[base..], start - base, &mut captures) {
                break;
            }
            let Some((from, to)) = captures.get(0).map(|(from, to)| (from + base, to + base)) else { break };
            // With a look-behind or `\K` a match may begin before the rest of the text.
            put(out, text.get(start..from).unwrap_or(b""));
            let mut replaced = Vec::new();
            append_template(template, &text[base..], &captures, &mut replaced);
            put(out, &replaced);
            let empty = to <= start;
            start = to.max(start);
            // A match of nothing stands before a character, which is taken over; behind the last one it is the end.
            // A match that ends there is not, so that `$` may be found once more.
            if empty {
                let Some(next) = text.get(start) else { break };
                put(out, std::slice::from_ref(next));
                start += 1;
            }
            if !global || room(out) == 0 {
                break;
            }
        }
        put(out, &text[start..]);
    }
}

/// Appends a template: `\0` to `\9` are groups, `\xHH` is a byte, and a backslash makes any other character itself.
pub(crate) fn append_template(template: &[u8], text: &[u8], captures: &Captures, out: &mut Vec<u8>) {
    let mut bytes = template.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(digit @ b'0'..=b'9') => {
                if let Some((from, to)) = captures.get(usize::from(digit - b'0'))
                    && let Some(group) = text.get(from..to)
                {
                    out.extend_from_slice(group);
                }
            }
            Some(b'x') => {
                let mut after = bytes.clone();
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                if let (Some(high), Some(low)) = (digit(after.next()), digit(after.next())) {
                    out.push((high * 16 + low) as u8);
                    bytes = after;
                } else {
                    out.push(b'x');
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
}

/// Returns the length of the verbs at the start of a pattern, such as `(*UTF)`, which are settings of the whole pattern.
fn leading_verbs(pattern: &[u8]) -> usize {
    let is_name = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'=');
    let mut len = 0;
    while let Some(rest) = pattern[len..].strip_prefix(b"(*") {
        let name = rest.iter().take_while(|byte| is_name(byte)).count();
        if name == 0 || rest.get(name) != Some(&b')') {
            break;
        }
        len += 2 + name + 1;
    }
    len
}

/// `options` stand before the pattern, behind its verbs.
fn backtracking(pattern: &[u8], ignore_case: bool, options: &str) -> Result<pcre2::bytes::Regex, RegexError> {
    let whole = pattern;
    let shown = || String::from_utf8_lossy(whole).into_owned();
    // Setting the limit in the pattern is PCRE2's own way; a lower one that follows in the user's pattern counts.
    let mut limited = format!("(*LIMIT_MATCH={BACKTRACK_LIMIT})");
    // Behind other options, verbs at the start of a pattern would be none.
    let (verbs, pattern) = pattern.split_at(leading_verbs(pattern));
    limited.extend(verbs.iter().copied().map(char::from));
    limited.push_str(options);
    let prefix = limited.len() - verbs.len();
    match std::str::from_utf8(pattern) {
        Ok(text) => limited.push_str(text),
        Err(_) => {
            for &byte in pattern {
                match byte {
                    0x80.. => limited.push_str(&format!("\\x{byte:02x}")),
                    byte => limited.push(char::from(byte)),
                }
            }
        }
    }
    let mut builder = pcre2::bytes::RegexBuilder::new();
    builder.caseless(ignore_case).jit_if_available(true).max_jit_stack_size(Some(STACK_BYTES));
    builder.build(&limited).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.strip_prefix("PCRE2: error compiling pattern at offset ").unwrap_or(&reason);
        let reason = match reason.split_once(": ").map(|(offset, what)| (offset.parse::<usize>(), what)) {
            Some((Ok(offset), what)) => format!("error={what}, erroffset={}", offset.saturating_sub(prefix)),
            _ => reason.to_owned(),
        };
        RegexError { pattern: shown(), reason }
    })
}

impl Clone for Regex {
    fn clone(&self) -> Regex {
        let inner = match &self.inner {
            Inner::Linear { regex, dollar, repeated_group, .. } => Inner::Linear {
                regex: regex.clone(),
                dollar: *dollar,
                repeated_group: *repeated_group,
                twin: OnceLock::new(),
            },
            Inner::Backtracking(regex) => Inner::Backtracking(regex.clone()),
        };
        Regex { pattern: self.pattern.clone(), ignore_case: self.ignore_case, inner, caret: self.caret }
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regex({:?})", String::from_utf8_lossy(&self.pattern))
    }
}

/// Compiles and replaces with whatever comes: pattern, template and text are the parts between zero bytes.
pub fn fuzz_template(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let (pattern, template) = (parts.next().unwrap_or(b""), parts.next().unwrap_or(b""));
    let text = parts.next().unwrap_or(b"");
    let Ok(regex) = Regex::new(pattern, data.len().is_multiple_of(2)) else { return };
    let mut out = Vec::new();
    assert_eq!(regex.expand(text, template, &mut out) != Some(false), regex.is_match(text), "what matches is expanded");
    for global in [false, true] {
        out.clear();
        regex.replace(text, template, global, 256, &mut out);
        assert!(out.len() <= 256, "a replaced text keeps its limit");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(pattern: &str, engine: Engine) -> Regex {
        let regex = Regex::new(pattern.as_bytes(), false).expect("a good pattern");
        assert_eq!(regex.engine(), engine, "{pattern}");
        assert_eq!(regex.notice().is_some(), engine == Engine::Backtracking);
        regex
    }

    /// As in HAProxy, which compiles the patterns of ACLs without groups that have numbers.
    #[test]
    fn references_are_found_behind_verbs() {
        for bad in [
            r"(a)\1",
            r"(*UTF)(a)\1",
            r"(*UTF8)(*UCP)(a)(?1)",
            r"(*LIMIT_MATCH=10)(a)\1",
            r"(*COMMIT)(a)\1",
            r"(*MARK:x)(a)\1",
            r"(*pla:(a))\1",
        ] {
            let error = Regex::without_groups(bad.as_bytes(), false).expect_err(bad).to_string();
            let offset = format!("(error=reference to non-existent subpattern, erroffset={})", bad.len() - 1);
            assert!(bad.ends_with("(?1)") || error.ends_with(&offset), "{error}");
            assert!(Regex::new(bad.as_bytes(), false).is_ok(), "{bad}");
        }
        for good in [r"(*UTF)(*UCP)^(\w)$", "(*ANYCRLF)a", "(*BSR_UNICODE)\\R", r"(*UTF)(?<x>a)\1", "(*NO_JIT)a"] {
            assert!(Regex::without_groups(good.as_bytes(), false).is_ok(), "{good}");
        }
        let letter = Regex::without_groups(r"(*UTF)(*UCP)^(\w)$".as_bytes(), false).unwrap();
        assert!(letter.is_match("é".as_bytes()) && !letter.is_match("éé".as_bytes()));
        assert!(Regex::without_groups(b"(*FOO)a", false).expect_err("no verb").to_string().contains("erroffset=5"));
    }

    #[test]
    fn the_linear_engine_takes_what_means_the_same() {
        let linear = [
            "",
            "^/(a|b)$",
            "[a-z0-9_-]+",
            r"\.(js|css)$",
            "[[:alpha:]]x",
            r"a{2,3}?",
            "(?:ab)*",
            "é",
            "[]a]",
            "[^]a]",
            "(?i)abc",
            r"[\w.-]+@",
            r"\x41",
            "a]b",
            "a}",
            "^[^/:]*://",
            r"\bfoo\b",
            r"^/api/v\d+/.*",
            "[a&&b]",
            "[[a]",
            "a|b|",
            "x*?y??",
            r"\<a",
        ];
        for pattern in linear {
            check(pattern, Engine::Linear);
        }
        let backtracking = [
            r"(a)\1",
            "(?=a)",
            "(?<!a)b",
            "(?>a+)b",
            "a++",
            "a*+b",
            r"\vx",
            r"\Qa.b\E",
            "a{,3}",
            "a{x}",
            "(?x) a",
            "(?m)^a",
            r"\Ka",
            r"\ha",
            r"a\Z",
            r"\b{start}a",
            "(?P<n>a)",
            "[+--]",
            r"\cA",
        ];
        for pattern in backtracking {
            check(pattern, Engine::Backtracking);
        }
    }

    #[test]
    fn mistakes_are_in_pcres_words() {
        for (pattern, part) in [("(", "parenthes"), ("a**b*", ""), ("[a", "terminating ]"), ("*a", "quantifier")] {
            match Regex::new(pattern.as_bytes(), false) {
                Ok(_) => assert_eq!(part, "", "{pattern} is taken"),
                Err(error) => assert!(error.to_string().contains(part), "{error}"),
            }
        }
        let error = Regex::new(br"\w{1000}{1000}", false).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("is invalid"), "{error}");
    }

    #[test]
    fn a_catastrophe_ends_at_the_limit() {
        // 2^64 ways through it.
        let regex = check(r"^(?=((a|a)+)+b)", Engine::Backtracking);
        assert!(!regex.is_match(&[b'a'; 8192]));
        let regex = check(r"^(\w+\s?)*+$(?!x)", Engine::Backtracking);
        let _ = regex.is_match(&[b'a'; 8192]);
        let mut captures = Captures::default();
        assert!(!check(r"(x+x+)+y\1", Engine::Backtracking).captures(&[b'x'; 8192], &mut captures));
        // Linear: any text is affordable.
        assert!(!check("(a|a)*c", Engine::Linear).is_match(&[b'a'; 65_536]));
    }

    #[test]
    fn a_dollar_stands_before_the_last_line_feed() {
        let regex = check("a$", Engine::Linear);
        assert!(regex.is_match(b"ba") && regex.is_match(b"ba\n") && !regex.is_match(b"ba\n\n"));
        assert!(!check("^.$", Engine::Linear).is_match(b"\n"));
    }

    #[test]
    fn replacing() {
        let check = |pattern: &str, template: &str, global, text: &str, expected: &str| {
            let mut out = Vec::new();
            Regex::new(pattern.as_bytes(), false).expect("good").replace(
                text.as_bytes(),
                template.as_bytes(),
                global,
                100,
                &mut out,
            );
            assert_eq!(String::from_utf8_lossy(&out), expected, "{pattern} {template} {text}");
        };
        check("b", "X", false, "abab", "aXab");
        check("b", "X", true, "abab", "aXaX");
        check("(.)(.)", r"\2\1\3\\", true, "abcd", r"ba\dc\");
        check("x*", "-", true, "abc", "-a-b-c-");
        check("^a", "-", true, "aaa", "-aa");
        check(r"a", r"\x41\q", true, "ab", "Aqb");
        check("b", "XYZ", true, &"b".repeat(60), &("XYZ".repeat(33) + "X"));
    }

    proptest! {
        /// Where the linear engine is taken, PCRE2 finds the same.
        #[test]
        fn both_engines_agree(
            pattern in r"([abé.^$|?*+(){},0-3:\[\]\\dwsbx\-]|\(\?:|a\{1,2\}|\[a-b\]|\[\^b\]|\\d|\\\.){1,10}",
            text in "[abcé1\n .x-]{0,12}",
            ignore_case: bool,
        ) {
            if let Ok(regex) = Regex::new(pattern.as_bytes(), ignore_case) && regex.engine() == Engine::Linear {
                let reference = backtracking(pattern.as_bytes(), ignore_case, "");
                prop_assert!(reference.is_ok(), "PCRE2 refuses {pattern}: {:?}", reference.err());
                let reference = Regex {
                    pattern: pattern.as_bytes().into(),
                    ignore_case,
                    inner: Inner::Backtracking(Box::new(reference.expect("asserted"))),
                    caret: regex.caret,
                };
                let text = text.as_bytes();
                prop_assert_eq!(regex.is_match(text), reference.is_match(text));
                let (mut ours, mut theirs) = (Captures::default(), Captures::default());
                prop_assert_eq!(regex.captures(text, &mut ours), reference.captures(text, &mut theirs));
                prop_assert_eq!(ours.groups, theirs.groups);
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                regex.replace(text, br"<\0\1>", true, 200, &mut ours);
                reference.replace(text, br"<\0\1>", true, 200, &mut theirs);
                prop_assert_eq!(ours, theirs);
            }
        }

        #[test]
        fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..60)) {
            fuzz_template(&data);
        }
    }
}
