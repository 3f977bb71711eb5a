//! Patterns that samples are matched against: regular expressions, texts, networks, and files of many of them.
//!
//! `-m`, `regsub`, the `map_*` converters, ACL files, Lua's `Map` and the stats socket share this crate, so
//! that a pattern has the same meaning everywhere. The crate knows no sample types, no configuration and no stream:
//! a caller casts its sample to the [`Key`] that a method compares.
//!
//! **Invariants.** Nothing here does I/O, reads a clock or waits for anything but a [`PatternFile`]'s own lock, which
//! is held for one lookup or one change. The cost of a match is bounded whatever a peer sends: regular
//! expressions are linear, or stop at [`BACKTRACK_LIMIT`] steps.

#![forbid(unsafe_code)]

mod file;
mod network;
mod regular;
mod text;
mod translate;

pub use file::{
    Change, EditError, Hit, IndexId, Kind, LoadError, PatternFile, PatternFiles, TEXT_LIMIT, ValueType, VersionError,
    VersionNumbers, Watcher, fuzz_pattern_file,
};
pub use network::{embedded_ipv4, in_network, network};
pub use regular::{BACKTRACK_LIMIT, Captures, Engine, Regex, RegexError, fuzz_template};
pub use text::{DIRECTORY, DOMAIN, has_component, hexadecimal};

use std::net::IpAddr;

/// The method by which a key is compared with the patterns of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The whole text.
    Str,
    /// The text begins with the pattern; the longest one wins.
    Beg,
    /// The text ends with the pattern; the first in the file wins.
    End,
    /// The text contains the pattern; the first wins.
    Sub,
    /// A path component; the first wins.
    Dir,
    /// A domain component; the first wins.
    Dom,
    /// A regular expression; the first wins.
    Reg,
    /// An integer or a range of them; the first wins.
    Int,
    /// The text's length; the first wins.
    Len,
    /// A network; the longest prefix wins.
    Ip,
    /// Bytes, written in hexadecimal.
    Bin,
}

/// A sample, cast to the type that a method compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key<'a> {
    /// For all methods but the two below.
    Bytes(&'a [u8]),
    /// For [`Method::Int`].
    Int(i64),
    /// For [`Method::Ip`].
    Ip(IpAddr),
}
