//! One request's life, from its first byte to its log line.

mod context;

pub use context::{Endings, LogRecord, StreamContext};
