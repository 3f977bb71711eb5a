//! One request's life, from its first byte to its log line.

mod buffer;
mod context;
mod socket;

pub use buffer::{Buffer, BufferPool};
pub use context::{Endings, LogRecord, StreamContext};
pub use socket::Socket;
