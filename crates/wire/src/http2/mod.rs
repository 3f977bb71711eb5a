//! HTTP/2 (RFC 9113, with HPACK of RFC 7541 and the extended CONNECT of RFC 8441), sans I/O, for both sides of a
//! connection.
//!
//! A [`Connection`] parses frames, keeps the states of streams and their windows, and writes what is sent. Heads are decoded
//! straight into the [`Message`](crate::http::Message) that rules, Lua and logs see, and written from one, so a stream
//! differs from a connection of HTTP/1 only in who drives it.
//!
//! No library is used, because what a proxy accepts decides what its servers see: the rules are those of HAProxy 3.2
//! (`mux_h2.c`, `h2.c`, `hpack-*.c`) with later corrections, and a library would apply its own first. This also avoids
//! a library's copies, and its mutex and wakers for each stream.
//!
//! From the bottom: `frame` (headers of frames), `huffman`, `class` (what a name means), `hpack`, `head` (validity of
//! heads, conversions), `connection`.
//!
//! Not here: priorities, which are checked and ignored as in HAProxy; server push, which both sides refuse.

mod class;
mod connection;
mod frame;
mod head;
mod hpack;
mod huffman;

pub use connection::{
    Blocked, CONTROL_MAX, Connection, Counts, Event, Failure, Progress, Settings, StreamKey, fuzz_connection,
    fuzz_field_block,
};
pub use frame::{ErrorCode, PREFACE};
pub use head::{Malformed, Unsendable, asks_for_tunnel};
