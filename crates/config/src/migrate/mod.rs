//! Rewriting of files for old versions of HAProxy (`sluicegate migrate`).
//!
//! The text is rewritten line by line: a line without an old word stays as it is, byte for byte, with its comment. A line
//! that has one becomes the lines that mean the same in HAProxy 3.2, or is put behind `#` with a note where nothing does.
//! Nothing else is interpreted: variables stay, and files that are not valid are rewritten all the same.
//!
//! Regular expressions of `reqrep` and its relatives match whole lines of a head; those of their replacements match a
//! target or one field. Only expressions that name what they match are rewritten ([`regex`]).

mod lines;
mod quote;
mod regex;

use lines::Rewriter;

/// A rewritten file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Its text.
    pub text: String,
    /// What a reader should look at, in the order of lines.
    pub notes: Vec<MigrationNote>,
    /// The number of lines that were changed.
    pub changed: usize,
}

/// A note about a line of the old file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationNote {
    /// The line's number, from 1.
    pub line: usize,
    /// Whether the line could not be rewritten, and is a comment now.
    pub lost: bool,
    /// The text.
    pub text: String,
}

/// Rewrites a file.
pub fn migrate(text: &str) -> Migrated {
    let mut rewriter = Rewriter::new(text);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        rewriter.line(number, line);
    }
    rewriter.finish()
}

/// The fuzz target: any text is rewritten, a second pass changes nothing, and lines without old words stay.
pub fn fuzz_migrate(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let once = migrate(&text);
    let twice = migrate(&once.text);
    assert_eq!(twice.text, once.text);
    assert_eq!(twice.changed, 0);
}

#[cfg(test)]
mod tests;
