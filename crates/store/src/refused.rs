//! Error replies of commands.

use std::borrow::Cow;

use crate::redis;

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(crate) const DB_RANGE: &str = "ERR DB index is out of range";
/// The reply of a command whose handler panicked, where the panic is not passed on.
pub(crate) const FAILED: &str = "ERR internal error: the command failed";

/// The error reply of a command. Bytes, because some errors repeat a word of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(Cow<'static, [u8]>);

impl From<&'static str> for Refused {
    fn from(text: &'static str) -> Refused {
        Refused(Cow::Borrowed(text.as_bytes()))
    }
}

impl From<String> for Refused {
    fn from(text: String) -> Refused {
        Refused(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Refused {
    fn from(text: Vec<u8>) -> Refused {
        Refused(Cow::Owned(text))
    }
}

impl Refused {
    /// Returns the reply's text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.0
    }
}

/// The reason why a section or a command in it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SectionError {
    /// As many sections and parked commands exist as the store allows.
    #[error("BUSY too many scripts and transactions wait")]
    TooMany,
    /// An undeclared key is held by another section.
    #[error("BUSY an undeclared key is held by another script or transaction")]
    Held,
    /// A key that was declared for reading would be written.
    #[error("ERR a key declared for reading cannot be written")]
    ReadOnly,
    /// A script that exceeds its time limit holds one of its keys; the text is the error message.
    #[error("{0}")]
    Behind(&'static str),
    /// A script used an undeclared key, which is not allowed.
    #[error("ERR script tried accessing undeclared key")]
    Undeclared,
    /// The command needs the whole keyspace or a connection.
    #[error("ERR this command is not allowed inside a section")]
    NotAllowed,
}

/// Returns a text as Redis's `%.*s` prints it when errors repeat words: as a C string, which ends at a NUL.
pub(crate) fn c_string(bytes: &[u8], max: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(max)];
    &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())]
}

/// The maximum number of bytes of a client's words that errors repeat.
const QUOTED_MAX: usize = 128;

/// Returns the error of an unknown command: the reason, if Redis has the command; otherwise its name, and as much of
/// the arguments as fits.
pub(crate) fn unknown_command(words: &[&[u8]]) -> Vec<u8> {
    let name = words.first().copied().unwrap_or_default();
    if let Some(text) = redis::refusal(name) {
        return text.into();
    }
    let mut quoted = Vec::new();
    for word in words.iter().skip(1) {
        if quoted.len() >= QUOTED_MAX {
            break;
        }
        let room = QUOTED_MAX - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(c_string(word, room));
        quoted.extend_from_slice(b"' ");
    }
    [b"ERR unknown command '", c_string(name, QUOTED_MAX), b"', with args beginning with: ", &quoted].concat()
}

/// Like [`unknown_command`], for a subcommand.
pub(crate) fn unknown_subcommand(container: &[u8], name: &[u8]) -> Vec<u8> {
    if let Some(text) = redis::refusal_of_subcommand(container, name) {
        return text.into();
    }
    let shown = c_string(name, QUOTED_MAX);
    [b"ERR unknown subcommand '", shown, b"'. Try ", &container.to_ascii_uppercase(), b" HELP."].concat()
}
/// The error of a command that writes after a save has failed.
pub(crate) const MISCONF: &str = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist \
     to disk. Commands that may modify the data set are disabled, because this instance is configured to report errors \
     during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for \
     details about the RDB error.";
