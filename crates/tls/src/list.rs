//! A parsed list of a configuration keyword: the supported elements, and the words that have no effect.

use std::sync::Arc;

/// The result of parsing `ciphers`, `ciphersuites`, `curves`, `sigalgs` and similar keywords.
#[derive(Debug)]
pub struct Parsed<T> {
    /// The supported elements, in order of preference; never empty.
    pub list: Arc<[T]>,
    /// Words without effect, as they were written: unknown to this implementation, although perhaps not to OpenSSL.
    /// Each deserves a warning.
    pub unknown: Vec<String>,
}

impl<T> Parsed<T> {
    /// Returns the list, or `empty` as the error if it has no element.
    pub(crate) fn of(list: Vec<T>, unknown: Vec<String>, empty: impl FnOnce() -> String) -> Result<Parsed<T>, String> {
        if list.is_empty() { Err(empty()) } else { Ok(Parsed { list: list.into(), unknown }) }
    }
}

/// Returns the words joined for a message.
pub(crate) fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}
