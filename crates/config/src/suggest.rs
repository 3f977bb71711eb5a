//! "Did you mean": the nearest of the names that would have been accepted.

/// Returns the name nearest to `word`, if it is near enough for a typo: at most a third of its letters differ.
///
/// The distance is Damerau's restricted one (insert, delete, replace, swap of neighbours), because swapped letters are
/// the most common typo. Cost: the product of the lengths, for each name whose length is near enough.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // No keyword is longer; a hostile word must not cost time proportional to the square of its length.
    if word.len() > 64 || word.is_empty() {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    let limit = match word.chars().count() {
        0..=2 => 1,
        3..=5 => 2,
        n => n / 3,
    };
    let mut best: Option<(usize, &str)> = None;
    for name in names {
        if name == word {
            continue;
        }
        // A prefix of a name counts as a typo of two letters, however much is missing.
        let prefix = word.len() >= 3 && name.starts_with(&lower);
        if name.len().abs_diff(word.len()) > limit && !prefix {
            continue;
        }
        let distance = distance(lower.as_bytes(), name.to_ascii_lowercase().as_bytes());
        let distance = if prefix { distance.min(2).min(limit) } else { distance };
        // A name of two letters is not "near" a word that shares none of them.
        if distance <= limit && distance < name.len() && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, name));
        }
    }
    best.map(|(_, name)| name)
}

fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for j in 0..b.len() {
            let replaced = last[j] + usize::from(a[i] != b[j]);
            let mut cost = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(word: &str, expected: Option<&str>) {
        let names = ["default_backend", "use_backend", "bind", "server", "if", "timeout", "mode", "option"];
        assert_eq!(nearest(word, names), expected, "{word}");
    }

    #[test]
    fn finds_slips_and_nothing_else() {
        check("default-backend", Some("default_backend"));
        check("bnid", Some("bind"));
        check("Mode", Some("mode"));
        check("sever", Some("server"));
        check("timeuot", Some("timeout"));
        check("defau", Some("default_backend"));
        check("frobnicate", None);
        check("xy", None);
        check("", None);
        check(&"x".repeat(100_000), None);
    }
}
