//! The pidfile: the ID of the process to signal.

use std::io::{self, Write as _};
use std::path::PathBuf;

use sluicegate_config::model::Position;

use crate::output;

/// A pidfile to be written.
pub struct Pidfile {
    /// Its path.
    pub path: PathBuf,
    /// The position of the `pidfile` line; `None` if the command line sets the path.
    pub at: Option<Position>,
    /// The process that handles signals: the master, or the serving process.
    pub pid: u32,
}

impl Pidfile {
    /// Writes the file, and replaces an existing one.
    pub fn write(&self) -> Result<(), String> {
        let write = || writeln!(output::replace(&self.path, output::Mode::Fixed)?, "{}", self.pid);
        write().map_err(|error| self.failed(&error))
    }

    /// Removes the file, for a process that fails after writing it.
    pub fn remove(&self) {
        // If it cannot be removed it names an ended process, which readers must expect anyway.
        let _ = std::fs::remove_file(&self.path);
    }

    fn failed(&self, error: &io::Error) -> String {
        let place = match &self.at {
            Some(at) => format!("{}:{}: 'pidfile'", at.file, at.line),
            None => "-p".to_owned(),
        };
        let reason = super::privileges::reason(error);
        format!("{place}: cannot create pidfile {} ({reason})", self.path.display())
    }
}
