//! The files of a configuration: their selection, order and contents.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostic::{Diagnostics, Severity};
use crate::model::Position;
use crate::{Files, limits};

/// One file.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Its name as the user gave it, or directory and name.
    pub name: Arc<str>,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// All files of a configuration in the order they are read.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The files.
    pub files: Vec<SourceFile>,
}

impl Source {
    /// Returns a configuration of one file from memory.
    pub fn from_text(name: &str, text: impl Into<Vec<u8>>) -> Self {
        Source { files: vec![SourceFile { name: name.into(), bytes: text.into() }] }
    }

    /// Returns the text of a line, without its line feed.
    pub(crate) fn line(&self, index: &LineIndex, at: &Position) -> Option<String> {
        let file = self.files.iter().position(|f| f.name == at.file)?;
        let starts = index.starts.get(file)?;
        let start = *starts.get((at.line as usize).checked_sub(1)?)?;
        let bytes = &self.files[file].bytes[start..];
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        // A long line is cut far beyond any excerpt, so that a hostile file can't multiply its size here.
        Some(String::from_utf8_lossy(&line[..line.len().min(limits::LINE_BYTES)]).into_owned())
    }
}

/// The start of each line of each file; built only when there is a diagnostic.
pub(crate) struct LineIndex {
    starts: Vec<Vec<usize>>,
}

impl LineIndex {
    pub(crate) fn new(source: &Source) -> Self {
        let starts = |bytes: &[u8]| {
            let after = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1);
            std::iter::once(0).chain(after).collect()
        };
        LineIndex { starts: source.files.iter().map(|f| starts(&f.bytes)).collect() }
    }
}

/// Reads the files of several `-f`, each a file or a directory (its `*.cfg`, sorted). An unreadable file doesn't hide
/// the others' errors: all are reported.
pub fn read(files: &dyn Files, paths: &[PathBuf]) -> Result<Source, Diagnostics> {
    let mut source = Source::default();
    let mut diagnostics = Diagnostics::new();
    let mut total = 0;
    for path in paths {
        let list = match files.list(path) {
            Ok(list) => list,
            // Not a directory, or one that can't be listed: reading it returns the system's error.
            Err(_) => vec![path.clone()],
        };
        for path in list {
            match files.read(&path) {
                Ok(bytes) => {
                    total += bytes.len();
                    if total > limits::SOURCE_BYTES {
                        diagnostics.add(Severity::Error, None, "the configuration is larger than 256 MiB");
                        return Err(diagnostics);
                    }
                    source.files.push(SourceFile { name: path.to_string_lossy().into(), bytes });
                }
                Err(error) => {
                    let message = format!("cannot open configuration file '{}': {error}", path.display());
                    diagnostics.add(Severity::Error, None, message);
                }
            }
        }
    }
    if diagnostics.has_errors() { Err(diagnostics) } else { Ok(source) }
}

/// Files from memory, for tests and tools.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles {
    files: HashMap<PathBuf, Vec<u8>>,
}

/// Returns the pseudo path of a recorded answer about a host name; no path of a file system contains a zero byte.
fn name_path(host: &str) -> PathBuf {
    PathBuf::from(format!("\0name/{host}"))
}

/// Returns the pseudo path of a recorded listing of a directory.
fn listing_path(path: &Path) -> PathBuf {
    PathBuf::from(format!("\0names/{}", path.display()))
}

/// Returns a listing of a directory as a file of [`MemoryFiles`]: its path and its contents.
pub fn recorded_listing(path: &Path, names: &[String]) -> (PathBuf, Vec<u8>) {
    (listing_path(path), names.join("\0").into_bytes())
}

/// Returns an answer about a host name as a file of [`MemoryFiles`]: its path and its contents.
pub fn recorded_name(host: &str, addresses: &[IpAddr]) -> (PathBuf, Vec<u8>) {
    let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    (name_path(host), list.join(" ").into_bytes())
}

impl MemoryFiles {
    /// Returns a set without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file.
    pub fn with(mut self, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.into(), bytes.into());
        self
    }

    /// Adds a host name.
    pub fn with_name(self, host: &str, addresses: &[IpAddr]) -> Self {
        let (path, bytes) = recorded_name(host, addresses);
        self.with(path, bytes)
    }
}

impl Files for MemoryFiles {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        self.files.get(path).cloned().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<PathBuf>> {
        let inside = |file: &&PathBuf| file.parent() == Some(path) && file.extension().is_some_and(|e| e == "cfg");
        let mut list: Vec<PathBuf> = self.files.keys().filter(inside).cloned().collect();
        list.sort();
        if list.is_empty() { Err(std::io::ErrorKind::NotADirectory.into()) } else { Ok(list) }
    }

    fn names(&self, path: &Path) -> std::io::Result<Vec<String>> {
        if let Ok(names) = self.read(&listing_path(path)) {
            let names = String::from_utf8_lossy(&names).into_owned();
            return Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect());
        }
        // A trailing slash does not change the path.
        let inside = |file: &&PathBuf| file.parent() == Some(path.components().as_path());
        let name = |file: &PathBuf| file.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut names: Vec<String> = self.files.keys().filter(inside).filter_map(name).collect();
        names.sort();
        if names.is_empty() { Err(std::io::ErrorKind::NotADirectory.into()) } else { Ok(names) }
    }

    fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let answer = self.read(&name_path(host))?;
        let words = String::from_utf8_lossy(&answer);
        Ok(words.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_files_and_directories_in_order() {
        let files = MemoryFiles::new().with("b.cfg", "1\n").with("d/2.cfg", "").with("d/1.cfg", "").with("d/x.txt", "");
        let source = read(&files, &["d".into(), "b.cfg".into()]).expect("all are there");
        let names: Vec<&str> = source.files.iter().map(|f| &*f.name).collect();
        assert_eq!(names, ["d/1.cfg", "d/2.cfg", "b.cfg"]);
    }

    #[test]
    fn reports_every_missing_file() {
        let error = read(&MemoryFiles::new(), &["a".into(), "b".into()]).expect_err("none is there");
        assert_eq!(error.errors(), 2);
    }
}
