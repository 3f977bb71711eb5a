//! Redis's glob patterns: `*`, `?`, `[a-z]`, `[^a]`, `\x`.
//!
//! Redis recurses at each star, which makes a pattern of many stars exponential. Here the search only ever returns to
//! the last star, which suffices because everything else matches exactly one byte: the cost is at most pattern times
//! text.

/// Returns whether all of `text` matches `pattern`. In Redis an empty text matches only the empty pattern, not even a
/// star; KEYS and the SCAN commands treat a lone star as no pattern.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    // The place to continue if the part after the last star does not match: one byte further.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if t == text.len() {
            return p == pattern.len();
        }
        match (p < pattern.len()).then(|| one(&pattern[p..], text[t])) {
            Some(Some(width)) => {
                p += width;
                t += 1;
            }
            _ => match star {
                Some((after, from)) if from < text.len() => {
                    star = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                _ => return false,
            },
        }
    }
}

/// Matches one byte against the pattern's first element, which is not a star. Returns the element's width if it
/// matches.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => Some(1),
        b'[' => class(pattern, byte),
        b'\\' if pattern.len() >= 2 => (pattern[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let mut at = 1;
    let negated = pattern.get(1) == Some(&b'^');
    at += usize::from(negated);
    let mut found = false;
    // An unclosed class ends with the pattern.
    while at < pattern.len() {
        match pattern[at] {
            b']' => break,
            b'\\' if at + 1 < pattern.len() => {
                at += 1;
                found |= pattern[at] == byte;
            }
            first if at + 2 < pattern.len() && pattern[at + 1] == b'-' => {
                let last = pattern[at + 2];
                found |= (first.min(last)..=first.max(last)).contains(&byte);
                at += 2;
            }
            literal => found |= literal == byte,
        }
        at += 1;
    }
    (found != negated).then_some((at + 1).min(pattern.len()))
}

#[cfg(test)]
mod tests {
    #[track_caller]
    fn check(pattern: &str, text: &str, expected: bool) {
        assert_eq!(super::matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} against {text}");
    }

    #[test]
    fn patterns_match_as_in_redis() {
        check("", "", true);
        check("", "a", false);
        check("*", "", false);
        check("**a", "bca", true);
        check("h?llo", "hello", true);
        check("h?llo", "hllo", false);
        check("h[ae]llo", "hallo", true);
        check("h[^e]llo", "hello", false);
        check("h[b-a]llo", "hallo", true);
        check("a\\*", "a*", true);
        check("a\\*", "ab", false);
        check("[\\]]", "]", true);
        check("[a", "a", true);
        check("[", "a", false);
        check("a*b*c", "aXbYbZc", true);
        check("a*b*c", "aXbYbZ", false);
        check("*:1", "key:11", false);
        check("a[^", "ab", true);
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "a*".repeat(50) + "b";
        check(&pattern, &"a".repeat(200), false);
    }
}
