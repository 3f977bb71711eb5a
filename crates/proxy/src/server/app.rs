//! The FastCGI application of a backend: its section, and what logs its messages.

use std::sync::Arc;

use sluicegate_config::model::FcgiApp;

/// Receives messages of an application.
type Log = Box<dyn Fn(&[u8]) + Send + Sync>;

/// The application of a backend.
pub(crate) struct App {
    pub(crate) config: Arc<FcgiApp>,
    /// Logs a message of the application.
    log: Log,
}

impl App {
    /// Returns the application of a section, with what logs its messages.
    pub(crate) fn new(config: Arc<FcgiApp>, log: Log) -> App {
        App { config, log }
    }

    /// Logs a message of the application.
    pub(crate) fn log(&self, message: &[u8]) {
        let end = message.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r' | 0)).map_or(0, |last| last + 1);
        (self.log)(&message[..end]);
    }
}
