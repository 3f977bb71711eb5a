//! Whole components of paths and host names (`-m dir`, `-m dom`), and bytes in hexadecimal.

use memchr::memmem;

/// The separators of the components of a path, for [`has_component`].
pub const DIRECTORY: &[u8] = b"/?";
/// The separators of the components of a host name.
pub const DOMAIN: &[u8] = b"/?.:";

/// Returns the bytes of hexadecimal digits, two each; `None` for anything else, and for no digits.
pub fn hexadecimal(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks_exact(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect()
}

/// Returns whether `pattern` stands in `text` as whole components; delimiters at the pattern's own ends do not count.
pub fn has_component(text: &[u8], pattern: &[u8], delimiters: &[u8]) -> bool {
    let delimits = |byte: &u8| delimiters.contains(byte);
    let start = pattern.iter().position(|byte| !delimits(byte)).unwrap_or(pattern.len());
    let end = pattern.iter().rposition(|byte| !delimits(byte)).map_or(start, |last| last + 1);
    let pattern = &pattern[start..end];
    occurrences(text, pattern).any(|at| {
        let after = at + pattern.len();
        (at == 0 || delimits(&text[at - 1])) && (after == text.len() || delimits(&text[after]))
    })
}

/// Returns every place where `pattern` stands in `text`, overlapping ones too.
fn occurrences<'a>(text: &'a [u8], pattern: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
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
