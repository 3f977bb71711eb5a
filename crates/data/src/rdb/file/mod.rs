//! RDB files: databases of keys in one stream of bytes, as Redis and Valkey write them.
//!
//! ```text
//! "REDIS0010" or "VALKEY080"
//! (250 name value)…                            what is told of the file
//! (245 code)…                                  libraries of functions
//! (254 database [251 keys expiries]
//!   ([252 ms | 253 s] [248 idle | 249 frequency] type key value [250 "sluicegate-key" attributes])…)…
//! 255 CRC-64 (8, little endian; 0: none)
//! ```
//!
//! [`FileReader`] reads what any version up to 12 of Redis and 80 of Valkey has written, from any [`Read`](std::io::Read).
//! It finds where a value ends without building it, so one thread reads a file while others build its values
//! ([`Stored::decode`]). It keeps the bytes of one key; its buffer only grows with what was received, whatever a length
//! announces.
//!
//! A writer makes [`Chunk`]s of keys, on as many threads as it likes, because a database may begin any number of times
//! and keys have no order. [`Contents`] puts them together: it knows the lowest version that they need, and their
//! checksum.
//!
//! What Redis's files have no place for — members of sets that expire, keys that are never evicted, and hash fields that
//! expire if the reader is to be any Redis since 7.0 — follows the key as an auxiliary field (`attributes`), which every
//! other reader skips: it loads the plain value, and this store loads the exact one.

mod attributes;
mod check;
mod fault;
mod input;
mod reader;
mod scan;
mod writer;

pub use check::fuzz_file;
pub use fault::{Fault, FaultKind};
pub use reader::{Checksum, Event, FileReader, StoredKey};
pub use scan::Stored;
pub use writer::{Chunk, Contents, KeyHead, Settings, Usage, Written};

const SLOT_IMPORT: u8 = 243;
const SLOT_INFO: u8 = 244;
const MODULE_AUX: u8 = 247;
const IDLE: u8 = 248;
const FREQUENCY: u8 = 249;
const AUX: u8 = 250;
const SIZES: u8 = 251;
const EXPIRY_MS: u8 = 252;
const EXPIRY_S: u8 = 253;
const DATABASE: u8 = 254;
const END: u8 = 255;

/// Bytes of the magic and the version.
const MAGIC_BYTES: usize = 9;
/// The first version with a checksum.
const VERSION_OF_CHECKSUM: u16 = 5;
