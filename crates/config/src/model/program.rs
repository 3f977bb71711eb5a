//! Programs that a master supervises beside its worker.

use std::sync::Arc;

use super::Position;

/// A `program` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: Arc<str>,
    /// `command`: the program and its arguments.
    pub command: Vec<String>,
    /// `user`.
    pub user: Option<String>,
    /// `group`.
    pub group: Option<String>,
    /// Whether a reload starts it again (`option start-on-reload`, the default).
    pub start_on_reload: bool,
    /// Its position in the file.
    pub at: Position,
}
