//! Matching a sample against patterns (HAProxy configuration manual 7.1).

use std::net::IpAddr;

use memchr::memmem;
use sluicegate_config::model::Matcher;

use super::value::{Value, embedded_ipv4};

/// A matching method with its patterns.
#[derive(Clone, Debug)]
pub struct MatcherCode {
    matcher: Matcher,
    ignore_case: bool,
}

impl MatcherCode {
    /// Takes the patterns; with `ignore_case` they are lower-cased already.
    pub fn new(matcher: Matcher, ignore_case: bool) -> MatcherCode {
        MatcherCode { matcher, ignore_case }
    }

    /// Whether any pattern matches; a sample that cannot be cast to the method's type matches none.
    pub fn matches(&self, value: &Value<'_>) -> bool {
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
            Matcher::Dir(patterns) => self.component(value, patterns, b"/?"),
            Matcher::Dom(patterns) => self.component(value, patterns, b"/?.:"),
            Matcher::Bin(patterns) => with_binary(value, |bytes| patterns.iter().any(|pattern| bytes == &pattern[..])),
            Matcher::Reg(patterns) => value.with_text(|text| patterns.iter().any(|pattern| pattern.is_match(text))),
        }
    }

    fn equal(&self, text: &[u8], pattern: &[u8]) -> bool {
        if self.ignore_case { text.eq_ignore_ascii_case(pattern) } else { text == pattern }
    }

    /// The text, lower-cased where case is ignored; only upper-case letters cost a copy.
    fn folded<R>(&self, text: &[u8], f: impl FnOnce(&[u8]) -> R) -> R {
        if self.ignore_case && text.iter().any(u8::is_ascii_uppercase) {
            f(&text.to_ascii_lowercase())
        } else {
            f(text)
        }
    }

    /// Whole components between delimiters; delimiters at a pattern's own ends do not count.
    fn component(&self, value: &Value<'_>, patterns: &[Vec<u8>], delimiters: &[u8]) -> bool {
        let delimits = |byte: &u8| delimiters.contains(byte);
        value.with_text(|text| {
            self.folded(text, |text| {
                patterns.iter().any(|pattern| {
                    let start = pattern.iter().position(|byte| !delimits(byte)).unwrap_or(pattern.len());
                    let end = pattern.iter().rposition(|byte| !delimits(byte)).map_or(start, |last| last + 1);
                    let pattern = &pattern[start..end];
                    memmem_overlapping(text, pattern).any(|at| {
                        let after = at + pattern.len();
                        (at == 0 || delimits(&text[at - 1])) && (after == text.len() || delimits(&text[after]))
                    })
                })
            })
        })
    }
}

/// Every place where `pattern` stands in `text`, overlapping ones too.
fn memmem_overlapping<'a>(text: &'a [u8], pattern: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        if pattern.is_empty() || from > text.len() {
            return None;
        }
        let at = from + memmem::find(&text[from..], pattern)?;
        from = at + 1;
        Some(at)
    })
}

fn within(ranges: &[(i64, i64)], number: i64) -> bool {
    ranges.iter().any(|(low, high)| (*low..=*high).contains(&number))
}

/// The bytes of a sample for `-m bin`: integers are 8 bytes in network order, addresses their own.
fn with_binary<R>(value: &Value<'_>, f: impl FnOnce(&[u8]) -> R) -> R {
    match value {
        Value::Bin(bytes) | Value::Str(bytes) | Value::Method(bytes) => f(bytes),
        Value::Int(number) => f(&number.to_be_bytes()),
        Value::Bool(truth) => f(&i64::from(*truth).to_be_bytes()),
        Value::Ip(IpAddr::V4(ip)) => f(&ip.octets()),
        Value::Ip(IpAddr::V6(ip)) => f(&ip.octets()),
    }
}

/// Whether an address lies in a network; families meet as HAProxy's do, through mapped, compatible and 6to4 forms.
fn in_network(ip: IpAddr, network: IpAddr, length: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            (u32::from(ip) ^ u32::from(network)) & mask == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            (u128::from(ip) ^ u128::from(network)) & mask == 0
        }
        (IpAddr::V4(ip), IpAddr::V6(_)) => in_network(IpAddr::V6(ip.to_ipv6_mapped()), network, length),
        (IpAddr::V6(ip), IpAddr::V4(_)) => {
            embedded_ipv4(ip).is_some_and(|ip| in_network(IpAddr::V4(ip), network, length))
        }
    }
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
