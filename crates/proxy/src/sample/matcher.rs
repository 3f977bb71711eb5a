//! Matching a sample against patterns (HAProxy configuration manual 7.1).

use std::net::IpAddr;
use std::sync::Arc;

use memchr::memmem;
use sluicegate_config::model::Matcher;
use sluicegate_pattern::{DIRECTORY, DOMAIN, IndexId, Key, Method, PatternFile, has_component, in_network};

use super::value::Value;

/// A matching method with its patterns.
#[derive(Clone, Debug)]
pub struct MatcherCode {
    matcher: Matcher,
    ignore_case: bool,
    /// Files whose patterns are matched, too.
    files: Vec<(Arc<PatternFile>, IndexId)>,
}

impl MatcherCode {
    /// Returns a matcher for these patterns; with `ignore_case` they are in lower case already.
    pub fn new(matcher: Matcher, ignore_case: bool) -> MatcherCode {
        MatcherCode { matcher, ignore_case, files: Vec::new() }
    }

    /// Adds files whose patterns are matched, too.
    pub fn with_files(mut self, files: &[(Arc<PatternFile>, IndexId)]) -> MatcherCode {
        self.files = files.to_vec();
        self
    }

    /// Returns whether any pattern matches, inline or in a file; a sample that cannot be cast to the method's type
    /// matches none.
    pub fn matches(&self, value: &Value<'_>) -> bool {
        self.matches_inline(value)
            || !self.files.is_empty() && {
                let found = |key: Key<'_>| self.files.iter().any(|(file, index)| file.matches(*index, key));
                with_key(value, self.method(), found).unwrap_or(false)
            }
    }

    /// Returns the match method of files.
    fn method(&self) -> Method {
        match &self.matcher {
            Matcher::Int(_) => Method::Int,
            Matcher::Len(_) => Method::Len,
            Matcher::Ip(_) => Method::Ip,
            Matcher::Bin(_) => Method::Bin,
            // For all others the key is the text.
            _ => Method::Str,
        }
    }

    fn matches_inline(&self, value: &Value<'_>) -> bool {
        match &self.matcher {
            Matcher::Found => true,
            Matcher::Bool => value.to_bool().unwrap_or(false),
            Matcher::Int(ranges) => value.to_int().is_some_and(|number| within(ranges, number)),
            Matcher::Len(ranges) => value.with_text(|text| within(ranges, text.len() as i64)),
            Matcher::Ip(networks) => value
                .to_ip()
                .is_some_and(|ip| networks.iter().any(|(network, length)| in_network(ip, *network, *length))),
            Matcher::Str(patterns) => value.with_text(|text| patterns.iter().any(|pattern| self.equal(text, pattern))),
            Matcher::Beg(patterns) => value
                .with_text(|text| patterns.iter().any(|p| text.len() >= p.len() && self.equal(&text[..p.len()], p))),
            Matcher::End(patterns) => value.with_text(|text| {
                patterns.iter().any(|p| text.len() >= p.len() && self.equal(&text[text.len() - p.len()..], p))
            }),
            Matcher::Sub(patterns) => value
                .with_text(|text| self.folded(text, |text| patterns.iter().any(|p| memmem::find(text, p).is_some()))),
            Matcher::Dir(patterns) => self.component(value, patterns, DIRECTORY),
            Matcher::Dom(patterns) => self.component(value, patterns, DOMAIN),
            Matcher::Bin(patterns) => with_binary(value, |bytes| patterns.iter().any(|pattern| bytes == &pattern[..])),
            Matcher::Reg(patterns) => value.with_text(|text| patterns.iter().any(|pattern| pattern.is_match(text))),
        }
    }

    /// Returns whether a pattern equals whole components between delimiters.
    fn component(&self, value: &Value<'_>, patterns: &[Vec<u8>], delimiters: &[u8]) -> bool {
        value.with_text(|text| {
            self.folded(text, |text| patterns.iter().any(|pattern| has_component(text, pattern, delimiters)))
        })
    }

    fn equal(&self, text: &[u8], pattern: &[u8]) -> bool {
        if self.ignore_case { text.eq_ignore_ascii_case(pattern) } else { text == pattern }
    }

    /// Runs `f` on the text, in lower case if case is ignored; only a text with upper-case letters is copied.
    fn folded<R>(&self, text: &[u8], f: impl FnOnce(&[u8]) -> R) -> R {
        if self.ignore_case && text.iter().any(u8::is_ascii_uppercase) {
            f(&text.to_ascii_lowercase())
        } else {
            f(text)
        }
    }
}

fn within(ranges: &[(i64, i64)], number: i64) -> bool {
    ranges.iter().any(|(low, high)| (*low..=*high).contains(&number))
}

/// Runs `f` on the bytes of a sample for `-m bin`: integers are 8 bytes in network order, addresses have their own
/// bytes.
fn with_binary<R>(value: &Value<'_>, f: impl FnOnce(&[u8]) -> R) -> R {
    match value {
        Value::Bin(bytes) | Value::Str(bytes) | Value::Method(bytes) => f(bytes),
        Value::Int(number) => f(&number.to_be_bytes()),
        Value::Bool(truth) => f(&i64::from(*truth).to_be_bytes()),
        Value::Ip(IpAddr::V4(ip)) => f(&ip.octets()),
        Value::Ip(IpAddr::V6(ip)) => f(&ip.octets()),
    }
}

/// Runs `f` on the key of a sample for a file's match method; returns `None` if the sample cannot be cast.
pub(crate) fn with_key<R>(value: &Value<'_>, method: Method, f: impl FnOnce(Key<'_>) -> R) -> Option<R> {
    Some(match method {
        Method::Int => f(Key::Int(value.to_int()?)),
        Method::Ip => f(Key::Ip(value.to_ip()?)),
        Method::Bin => with_binary(value, |bytes| f(Key::Bytes(bytes))),
        _ => value.with_text(|text| f(Key::Bytes(text))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(patterns: &[&str]) -> Vec<Vec<u8>> {
        patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect()
    }

    #[track_caller]
    fn check(matcher: Matcher, ignore_case: bool, yes: &[&str], no: &[&str]) {
        let code = MatcherCode::new(matcher, ignore_case);
        for (texts, expected) in [(yes, true), (no, false)] {
            for text in texts {
                assert_eq!(code.matches(&Value::text(text.as_bytes())), expected, "{code:?} on {text:?}");
            }
        }
    }

    #[test]
    fn texts() {
        check(Matcher::Found, false, &["", "x"], &[]);
        check(Matcher::Str(bytes(&["a", "bc"])), false, &["a", "bc"], &["", "ab", "A"]);
        check(Matcher::Str(bytes(&["a"])), true, &["a", "A"], &["aa"]);
        check(Matcher::Beg(bytes(&["/a"])), false, &["/a", "/ab"], &["/", "/A", "b/a"]);
        check(Matcher::End(bytes(&[".js"])), true, &["x.js", ".JS"], &["js", "x.jsx"]);
        check(Matcher::Sub(bytes(&["bc"])), true, &["abcd", "BC"], &["b", "bxc"]);
        check(Matcher::Len(vec![(1, 2), (5, 5)]), false, &["a", "ab", "abcde"], &["", "abc"]);
    }

    #[test]
    fn components() {
        check(Matcher::Dir(bytes(&["b"])), false, &["/a/b/c", "b", "/b?x", "/bb/b"], &["/a/bb", "/ab", "/a.b"]);
        check(Matcher::Dir(bytes(&["/a/b/"])), false, &["/x/a/b", "a/b"], &["/a/x/b", "/aa/b"]);
        check(Matcher::Dom(bytes(&["example"])), true, &["www.Example.com", "example:80"], &["examples.com"]);
        check(Matcher::Dir(bytes(&["/"])), false, &[], &["/", ""]);
        check(Matcher::Dir(bytes(&["aba"])), false, &["ababa/aba"], &["ababa"]);
    }

    #[test]
    fn numbers_and_addresses() {
        check(Matcher::Int(vec![(1, 3), (10, i64::MAX)]), false, &["1", "3", "99", "2x"], &["0", "4", "", "x"]);
        check(Matcher::Bool, false, &["1", "-1"], &["0", "x", ""]);
        let net = |text: &str, length| (text.parse().expect("an address"), length);
        check(Matcher::Ip(vec![net("10.0.0.0", 8)]), false, &["10.9.9.9", "::ffff:10.0.0.1"], &["11.0.0.1", "x"]);
        check(Matcher::Ip(vec![net("2001:db8::", 32)]), false, &["2001:db8:1::"], &["2001:db9::", "10.0.0.1"]);
        check(Matcher::Ip(vec![net("::ffff:10.0.0.0", 104)]), false, &["10.1.1.1"], &["11.1.1.1"]);
        check(Matcher::Ip(vec![net("0.0.0.0", 0)]), false, &["1.2.3.4"], &["2001:db8::1"]);
        check(Matcher::Ip(vec![net("::", 0)]), false, &["1.2.3.4", "2001:db8::1"], &[]);
        check(Matcher::Bin(vec![vec![0, 1]]), false, &["\0\u{1}"], &["01"]);
    }

    #[test]
    fn a_number_is_8_bytes_to_bin() {
        let code = MatcherCode::new(Matcher::Bin(vec![vec![0, 0, 0, 0, 0, 0, 1, 2]]), false);
        assert!(code.matches(&Value::Int(0x102)));
        assert!(!code.matches(&Value::Int(0x103)));
    }
}
