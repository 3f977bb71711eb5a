//! HPACK, the compression of heads (RFC 7541): a decoder and an encoder, each with its dynamic table.
//!
//! [`decode`] reads a field block field by field into the arena of a message: a string is copied once, from the block
//! or from a table to where it stays. [`encode`] writes a message's fields. Both tables are a [`table::Table`].
//!
//! **Invariant:** a block is always decoded to its end, because later blocks refer to what it adds to the table. A block
//! that breaks the rules of HPACK therefore ends its connection.

pub(super) mod decode;
pub(super) mod encode;
mod table;

pub(super) use decode::{Block, Decoder, Error, Field};
pub(super) use encode::Encoder;

/// The initial limit of both tables in bytes.
pub(super) const DEFAULT_TABLE_SIZE: u32 = 4096;

/// The largest limit of a table that is offered to a peer: lengths in an entry have sixteen bits.
pub(super) const TABLE_SIZE_MAX: u32 = 65_536;
