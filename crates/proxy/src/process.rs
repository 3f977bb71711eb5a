//! Limits and figures of the whole process, and its state of stopping.
/// Shared by all workers and the control thread.
#[derive(Debug, Default)]
pub struct Process {}
