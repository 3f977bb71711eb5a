//! Errors found when a configuration is compiled.

use std::fmt;

use sluicegate_config::model::Position;

/// The reason why a part of the configuration cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Its place in the file.
    pub at: Position,
    /// The message, without the position.
    pub message: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: error: {}", self.at.file, self.at.line, self.at.column, self.message)
    }
}

impl std::error::Error for CompileError {}
