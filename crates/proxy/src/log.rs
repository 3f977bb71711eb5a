//! Access logs: lines are rendered on the worker and written by the control thread.
/// A bounded queue of lines to the control thread; a full queue drops and counts.
#[derive(Clone, Debug, Default)]
pub struct Logger {}
