//! HTTP/1.0 and 1.1 (RFC 9112), sans I/O: heads, framing, chunked bodies, and the one form in which rules, Lua and
//! logs see a message, that of HTTP/2 included.
//!
//! [`parse_request`] and [`parse_response`] parse received bytes into a [`Message`] and return the framing of the body;
//! [`ChunkedDecoder`] and [`BodyDecoder`] find the body's bytes and its end; [`write_request`] and [`write_response`]
//! put a message back on the wire with the framing that its sender chose; [`status`] has reasons and built-in pages.
//!
//! **Invariant:** messages are accepted, merged, replaced and rejected as by HAProxy 3.2 (`h1.c`, `h1_htx.c`,
//! `mux_h1.c` define it, and a differential test compares with a real one), because request smuggling exploits proxies
//! that parse a message differently from their neighbours. A message that leaves through the writers has exactly one
//! framing.

mod case;
mod chunked;
mod field;
mod head;
mod message;
pub mod status;
mod write;

pub use case::{NameCases, adjust_names};
pub use chunked::{
    BodyDecoder, BodyEvent, ChunkError, ChunkEvent, ChunkedDecoder, fuzz_chunked, write_chunk, write_chunk_end,
    write_chunk_start, write_last_chunk,
};
pub(crate) use field::{content_length, elements, is_authority, normalized, trim};
pub(crate) use head::NAME_MAX;
pub use head::{
    Framing, HeadError, Limits, Method, RequestHead, ResponseHead, fuzz_request, fuzz_response, is_token,
    parse_cgi_response, parse_request, parse_response,
};
pub use message::{EntryId, Message, StartLine, Version};
pub use write::{ConnectionField, origin_form, write_request, write_response};
