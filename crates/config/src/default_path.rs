//! `default-path`: the base directory of a file's relative paths.
//!
//! HAProxy changes its working directory while it reads a file. Here a path is joined with the directory when the file
//! that it names is read, so names stay as written: maps and ACL files keep the names that `show map` lists.
//! Only the bodies of Lua scripts run in a different working directory.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Files;
use crate::model::Position;
use crate::word::Line;

/// The policy of a `default-path` line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Policy {
    /// The directory that the process was started in.
    Current,
    /// The directory of the configuration file.
    Config,
    /// The parent of that directory.
    Parent,
    /// This directory.
    Origin(PathBuf),
}

/// The `default-path` lines of all files.
#[derive(Clone, Debug, Default)]
pub struct DefaultPaths {
    /// The files, in the order in which they are read.
    files: Vec<Arc<str>>,
    /// The file's index and the number of the line that switches to a policy.
    switches: Vec<(usize, u32, Policy)>,
}

impl DefaultPaths {
    /// Notes the file that is read next.
    pub(crate) fn begin(&mut self, file: &Arc<str>) {
        self.files.push(file.clone());
    }

    /// Reads `default-path POLICY`, which holds from this line on.
    pub(crate) fn read(&mut self, line: &Line, files: &dyn Files) -> Result<(), String> {
        let policy = match line.text(1) {
            "current" => Policy::Current,
            "config" => Policy::Config,
            "parent" => Policy::Parent,
            "origin" if line.len() < 3 => {
                return Err("'default-path origin' expects a directory as an argument".to_owned());
            }
            "origin" => Policy::Origin(line.text(2).into()),
            other => {
                return Err(format!(
                    "unsupported default-path mode '{other}' for 'default-path', supported modes include 'current', \
                     'config', 'parent', and 'origin'"
                ));
            }
        };
        let at = line.at(0);
        let file = self.files.iter().rposition(|file| *file == at.file).unwrap_or(0);
        self.switches.push((file, at.line, policy));
        match self.base(&at) {
            Some(directory) if !files.is_directory(&directory) => {
                Err(format!("couldn't set 'default-path' to '{}': no such directory", directory.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the directory that relative paths at a place start from; `None` is that of the process.
    pub fn base(&self, at: &Position) -> Option<PathBuf> {
        let file = self.files.iter().rposition(|file| *file == at.file)?;
        let (.., policy) = self.switches.iter().rfind(|(of, line, _)| (*of, *line) <= (file, at.line))?;
        let directory = at.file.rfind('/').map(|end| &at.file[..end]);
        match policy {
            Policy::Current => None,
            // As in HAProxy, the directory of a file in `/` is empty, which leaves the working directory as it is.
            Policy::Config => directory.filter(|directory| !directory.is_empty()).map(PathBuf::from),
            Policy::Parent => Some(directory.map_or_else(|| "..".into(), |directory| format!("{directory}/..").into())),
            Policy::Origin(directory) => Some(directory.clone()),
        }
    }
}

/// Files whose relative paths start from the `default-path` that is in effect on the line that names them.
pub(crate) struct Placed<'a> {
    files: &'a dyn Files,
    paths: DefaultPaths,
    base: RefCell<Option<PathBuf>>,
}

impl<'a> Placed<'a> {
    pub(crate) fn new(files: &'a dyn Files, paths: DefaultPaths) -> Placed<'a> {
        Placed { files, paths, base: RefCell::default() }
    }

    fn whole(&self, path: &Path) -> PathBuf {
        match &*self.base.borrow() {
            Some(base) => base.join(path),
            None => path.to_owned(),
        }
    }
}

impl Files for Placed<'_> {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        self.files.read(&self.whole(path))
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<PathBuf>> {
        self.files.list(&self.whole(path))
    }

    fn names(&self, path: &Path) -> std::io::Result<Vec<String>> {
        self.files.names(&self.whole(path))
    }

    fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        self.files.resolve(host)
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.files.is_directory(&self.whole(path))
    }

    fn opens(&self, path: &Path) -> bool {
        self.files.opens(path)
    }

    fn stand_at(&self, at: &Position) {
        *self.base.borrow_mut() = self.paths.base(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_holds_from_its_line_on_and_in_later_files() {
        let paths = DefaultPaths {
            files: vec!["a/one.cfg".into(), "two.cfg".into(), "/three.cfg".into(), "b/c/four.cfg".into()],
            switches: vec![(0, 5, Policy::Config), (3, 2, Policy::Parent), (3, 4, Policy::Origin("/o".into()))],
        };
        let base = |file: &str, line| {
            let found = paths.base(&Position { file: file.into(), line, column: 1 });
            found.map(|path| path.to_string_lossy().into_owned())
        };
        assert_eq!(base("a/one.cfg", 4), None);
        assert_eq!(base("a/one.cfg", 5).as_deref(), Some("a"));
        assert_eq!(base("two.cfg", 1), None);
        assert_eq!(base("/three.cfg", 1), None);
        assert_eq!(base("b/c/four.cfg", 1).as_deref(), Some("b/c"));
        assert_eq!(base("b/c/four.cfg", 3).as_deref(), Some("b/c/.."));
        assert_eq!(base("b/c/four.cfg", 9).as_deref(), Some("/o"));
    }
}
