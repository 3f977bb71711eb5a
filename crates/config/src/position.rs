//! A place in a configuration file.

use std::sync::Arc;

/// The position of a word: the file as the user named it, line and column from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file, as given on the command line.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}
