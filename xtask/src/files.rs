//! The files of the work tree, for checks that read them.

use std::path::{Path, PathBuf};

use crate::run::{output, root};

/// Returns the tracked files, and those that are new.
pub fn tracked() -> Result<Vec<PathBuf>, String> {
    let list =
        output("git", &["ls-files", "--cached", "--others", "--exclude-standard"]).ok_or("git ls-files failed")?;
    Ok(list.lines().map(PathBuf::from).filter(|path| root().join(path).is_file()).collect())
}

/// Returns the Rust sources among files.
pub fn rust(files: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
}

/// Returns the text of a file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Returns whether a file stands in a folder of tests.
pub fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
}

/// Returns the part of a source file before its `mod tests`.
pub fn logic(text: &str) -> &str {
    let begins = ["", "pub(super) ", "pub(crate) "].map(|shown| format!("#[cfg(test)]\n{shown}mod tests"));
    let end = begins.iter().filter_map(|begin| text.find(begin)).min();
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logic_ends_where_tests_begin() {
        assert_eq!(logic("a\n#[cfg(test)]\nmod tests {}").lines().count(), 1);
        assert_eq!(logic("a\n#[cfg(test)]\npub(super) mod tests {}").lines().count(), 1);
    }
}
