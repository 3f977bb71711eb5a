//! HTTP/1.0 and 1.1 (RFC 9112), sans I/O: heads, framing, chunked bodies, and the one form in which rules, Lua and
//! logs see a message.

mod message;

pub use message::{EntryId, Message, StartLine, Version};
