//! Errors of a file: the position, the key, and Redis's text.

use std::fmt;
use std::io;

/// A reason why a file cannot be loaded.
#[derive(Debug)]
pub struct Fault {
    /// The reason.
    pub kind: FaultKind,
    /// The position in the file up to which it was read, in bytes.
    pub offset: u64,
    /// The key whose value was being read.
    pub key: Option<Vec<u8>>,
}

/// A kind of [`Fault`]; its text is the one that Redis logs.
#[derive(Debug, thiserror::Error)]
pub enum FaultKind {
    /// The file does not begin as RDB files do.
    #[error("Wrong signature trying to load DB from file")]
    Signature,
    /// The file is of a later version, or of one that is not assigned.
    #[error("Can't handle RDB format version {0}")]
    Version(u16),
    /// The file ends before it should.
    #[error("Short read or OOM loading DB. Unrecoverable error, aborting now.")]
    Short,
    /// The file could not be read.
    #[error("I/O error trying to load DB: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not those that were written.
    #[error("Wrong RDB checksum expected: ({expected:x}) but got ({found:x}). Aborting now.")]
    Checksum {
        /// The checksum of what was read.
        expected: u64,
        /// The checksum in the file.
        found: u64,
    },
    /// A byte is neither an opcode nor a type.
    #[error("Unknown RDB encoding type {0}")]
    Type(u8),
    /// A value belongs to a module, of this type.
    #[error("The RDB file contains module data I can't load: no matching module type '{0}'")]
    Module(String),
    /// A value belongs to a module of a release candidate of Redis 4.0.
    #[error("Pre-release module format not supported")]
    EarlyModule,
    /// The data of a module are malformed.
    #[error("bad when_opcode")]
    ModuleAux,
    /// Functions in the form of a release candidate of Redis 7.0.
    #[error("Pre-release function format not supported.")]
    EarlyFunctions,
    /// The first byte of a length is none.
    #[error("Unknown length encoding {0} in rdbLoadLen()")]
    Length(u8),
    /// A string is in an encoding that does not exist.
    #[error("Unknown RDB string encoding type {0}")]
    Encoding(u8),
    /// A compressed string is malformed.
    #[error("Invalid LZF compressed string")]
    Compressed,
    /// A value is malformed, as this text says.
    #[error("{0}")]
    Value(&'static str),
    /// The attributes after a key do not fit the key.
    #[error("Attributes of a key integrity check failed.")]
    Attributes,
}

impl FaultKind {
    /// Returns what Redis logs of it as an internal error of the file; [`None`] if it does not.
    pub fn internal(&self) -> Option<String> {
        match self {
            FaultKind::Signature
            | FaultKind::Version(_)
            | FaultKind::Io(_)
            | FaultKind::Module(_)
            | FaultKind::EarlyModule
            | FaultKind::EarlyFunctions => None,
            FaultKind::Short => Some("Unexpected EOF reading RDB file".into()),
            FaultKind::Checksum { .. } => Some("RDB CRC error".into()),
            kind => Some(kind.to_string()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (offset {}", self.kind, self.offset)?;
        if let Some(key) = &self.key {
            write!(f, ", key '{}'", key.escape_ascii())?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}
