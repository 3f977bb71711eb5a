//! Words of a line as they are written, and the writing of new ones.

use std::ops::Range;

/// A word of a line.
#[derive(Clone, Debug)]
pub(super) struct Word {
    /// Its bytes in the line.
    pub(super) range: Range<usize>,
    /// Its text, without quotes and backslashes.
    pub(super) text: String,
}

/// Splits a line without its end into words; a comment is none. Returns the words, and where the part after the last one
/// begins; `None` if a quote is not closed.
pub(super) fn split(line: &str) -> Option<(Vec<Word>, usize)> {
    let mut words: Vec<Word> = Vec::new();
    let mut current: Option<Word> = None;
    let (mut single, mut double) = (false, false);
    let mut chars = line.char_indices();
    let mut end = 0;
    while let Some((at, c)) = chars.next() {
        let quoted = single || double;
        let text = match c {
            ' ' | '\t' if !quoted => {
                words.extend(current.take());
                continue;
            }
            '#' if !quoted => break,
            '\'' if !double => {
                single = !single;
                None
            }
            '"' if !single => {
                double = !double;
                None
            }
            '\\' if !single => match chars.next() {
                Some((_, next)) if is_escape(next, double) => Some((None, next)),
                // Regular expressions keep their own backslashes.
                Some((_, next)) => Some((Some('\\'), next)),
                None => Some((None, '\\')),
            },
            other => Some((None, other)),
        };
        let word = current.get_or_insert_with(|| Word { range: at..at, text: String::new() });
        if let Some((before, c)) = text {
            word.text.extend(before);
            word.text.push(c);
        }
        // Both characters of an escape belong to the word.
        word.range.end = chars.clone().next().map_or(line.len(), |(next, _)| next);
        end = word.range.end;
    }
    words.extend(current);
    (!single && !double).then_some((words, end))
}

/// Returns whether a backslash in front of this character vanishes.
fn is_escape(c: char, double: bool) -> bool {
    match double {
        true => matches!(c, '"' | '\\' | '$' | '\''),
        false => matches!(c, ' ' | '#' | '\\' | '"' | '\'' | '$'),
    }
}

/// Writes a word so that it is read as this text.
pub(super) fn quote(text: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !matches!(c, '#' | '\\' | '"' | '\'' | '$');
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    if !text.contains('\'') {
        return format!("'{text}'");
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '$') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

/// Writes a text for a log-format, whose percent signs are doubled.
pub(super) fn format(text: &str) -> String {
    quote(&text.replace('%', "%%"))
}
