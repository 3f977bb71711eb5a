//! `http-request normalize-uri` (HAProxy configuration manual 4.3): one spelling for targets that mean the same.
//!
//! Each normalizer is a function from a target to a target. None makes it longer except `fragment-encode`, which
//! turns a byte into three, and `path-strip-dotdot` at a path's end, which adds a slash.

use sluicegate_config::model::Normalizer;

use crate::sample::path_and_query;

/// The result for a target.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Normalized {
    /// The target has this form already, or has no path.
    Same,
    /// The normalized target.
    Target(Vec<u8>),
    /// A malformed percent sequence, if those are refused.
    Malformed,
}

/// Normalizes a target.
pub(super) fn target(normalizer: Normalizer, target: &[u8]) -> Normalized {
    let Some(rest) = path_and_query(target) else { return Normalized::Same };
    let before = &target[..target.len() - rest.len()];
    let mark = memchr::memchr(b'?', rest).unwrap_or(rest.len());
    let (path, query) = rest.split_at(mark);
    let new = match normalizer {
        Normalizer::PathMergeSlashes => [&merge_slashes(path), query].concat(),
        Normalizer::PathStripDot => [&strip_dot(path), query].concat(),
        Normalizer::PathStripDotdot { full } => [&strip_dotdot(path, full), query].concat(),
        Normalizer::QuerySortByName if query.is_empty() => return Normalized::Same,
        Normalizer::QuerySortByName => [path, b"?", &sort_query(&query[1..])].concat(),
        Normalizer::FragmentStrip => rest[..fragment(rest)].to_vec(),
        Normalizer::FragmentEncode => encode_fragment(rest),
        Normalizer::PercentToUppercase { strict } => match percent(rest, strict, false) {
            Some(new) => new,
            None => return Normalized::Malformed,
        },
        Normalizer::PercentDecodeUnreserved { strict } => match percent(rest, strict, true) {
            Some(new) => new,
            None => return Normalized::Malformed,
        },
    };
    if new == rest { Normalized::Same } else { Normalized::Target([before, &new].concat()) }
}

/// Returns the start of the fragment.
fn fragment(text: &[u8]) -> usize {
    memchr::memchr(b'#', text).unwrap_or(text.len())
}

fn encode_fragment(text: &[u8]) -> Vec<u8> {
    let mut new = Vec::with_capacity(text.len() + 2);
    for byte in text {
        match byte {
            b'#' => new.extend_from_slice(b"%23"),
            byte => new.push(*byte),
        }
    }
    new
}

fn merge_slashes(path: &[u8]) -> Vec<u8> {
    let mut new = path.to_vec();
    new.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    new
}

/// Removes segments that consist of one dot, each with the slash after it.
fn strip_dot(path: &[u8]) -> Vec<u8> {
    let mut new = Vec::with_capacity(path.len());
    for segment in path.split_inclusive(|byte| *byte == b'/') {
        if segment != b"./" && segment != b"." {
            new.extend_from_slice(segment);
        }
    }
    new
}

/// Removes segments of two dots, each with the segment before it. Those that lead above the root stay in front, or are
/// removed with `full`.
fn strip_dotdot(path: &[u8], full: bool) -> Vec<u8> {
    let Some((b'/', rest)) = path.split_first() else { return path.to_vec() };
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut above = 0;
    let mut ends_above = false;
    for segment in rest.split(|byte| *byte == b'/') {
        ends_above = segment == b"..";
        if !ends_above {
            kept.push(segment);
        } else if kept.pop().is_none() {
            above += 1;
        }
    }
    // A path that ends in such a segment names a directory.
    if ends_above {
        kept.push(b"");
    }
    let mut new = Vec::with_capacity(path.len() + 1);
    if !full {
        (0..above).for_each(|_| new.extend_from_slice(b"/.."));
    }
    for segment in kept {
        new.push(b'/');
        new.extend_from_slice(segment);
    }
    new
}

/// Sorts arguments by their names; those of one name keep their order.
fn sort_query(query: &[u8]) -> Vec<u8> {
    let mut arguments: Vec<&[u8]> = query.split(|byte| *byte == b'&').collect();
    let name = |argument: &&[u8]| {
        let end = memchr::memchr(b'=', argument).unwrap_or(argument.len());
        argument[..end].to_vec()
    };
    arguments.sort_by_cached_key(name);
    arguments.join(&b'&')
}

/// Rewrites percent sequences: with upper-case digits, or with `decode` those of unreserved characters as the
/// characters themselves. Returns `None` if one is malformed and `strict` is set.
fn percent(text: &[u8], strict: bool, decode: bool) -> Option<Vec<u8>> {
    let mut new = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        if *byte != b'%' {
            new.push(*byte);
            at += 1;
            continue;
        }
        let digits = text.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let Some(digits) = digits else {
            if strict {
                return None;
            }
            new.push(b'%');
            at += 1;
            continue;
        };
        let value =
            digits.iter().fold(0, |value, digit| value << 4 | char::from(*digit).to_digit(16).unwrap_or(0) as u8);
        if !decode {
            new.push(b'%');
            new.extend(digits.iter().map(u8::to_ascii_uppercase));
        } else if value.is_ascii_alphanumeric() || b"-._~".contains(&value) {
            new.push(value);
        } else {
            new.extend_from_slice(&text[at..at + 3]);
        }
        at += 3;
    }
    Some(new)
}

const ALL: [Normalizer; 11] = [
    Normalizer::FragmentEncode,
    Normalizer::FragmentStrip,
    Normalizer::PathMergeSlashes,
    Normalizer::PathStripDot,
    Normalizer::PathStripDotdot { full: false },
    Normalizer::PathStripDotdot { full: true },
    Normalizer::PercentDecodeUnreserved { strict: false },
    Normalizer::PercentDecodeUnreserved { strict: true },
    Normalizer::PercentToUppercase { strict: false },
    Normalizer::PercentToUppercase { strict: true },
    Normalizer::QuerySortByName,
];

/// Normalizes any bytes: the result is normalized, and no invalid target is made.
pub fn fuzz_normalizers(data: &[u8]) {
    for normalizer in ALL {
        let Normalized::Target(once) = target(normalizer, data) else { continue };
        assert!(once.len() <= data.len() * 3 + 1, "a target grows within bounds");
        let blank = |text: &[u8]| text.iter().any(|byte| *byte <= b' ');
        assert!(blank(data) || !blank(&once), "no blank is made");
        // A decoded character may complete another percent sequence, so a second pass may change the target again.
        if !matches!(normalizer, Normalizer::PercentDecodeUnreserved { .. }) {
            assert_eq!(target(normalizer, &once), Normalized::Same, "{normalizer:?} of {data:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(normalizer: Normalizer, from: &str, expected: Option<&str>) {
        let expected = match expected {
            Some(same) if same == from => Normalized::Same,
            Some(new) => Normalized::Target(new.as_bytes().to_vec()),
            None => Normalized::Malformed,
        };
        assert_eq!(target(normalizer, from.as_bytes()), expected, "{from}");
    }

    #[test]
    fn what_2_6_was_not_asked() {
        check(Normalizer::FragmentStrip, "/a?b#c", Some("/a?b"));
        check(Normalizer::FragmentEncode, "/a?b#c#", Some("/a?b%23c%23"));
        check(Normalizer::FragmentEncode, "*", Some("*"));
        check(Normalizer::PathStripDot, "http://h/./a/.?./", Some("http://h/a/?./"));
        check(Normalizer::PercentToUppercase { strict: true }, "/%2", None);
    }

    #[test]
    fn any_target_has_a_normal_form() {
        let parts = ["/", "..", ".", "%2e", "%2", "%", "?", "&", "b=1", "a", "#", "//", "http://h", "%7e", " "];
        let mut state = 7_u64;
        for _ in 0..20_000 {
            let mut text = String::from("/");
            for _ in 0..state % 9 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text += parts[(state >> 33) as usize % parts.len()];
            }
            state = state.wrapping_add(1);
            fuzz_normalizers(text.as_bytes());
        }
    }
}
