//! TLS of `bind` and `server` lines: the words, the files that they name, and the settings that result.
//!
//! The words of a line, and the files that they name, are read in order, so that an error names its word; settings are
//! made at the end of a section, when its mode is known. The words that several kinds of lines share are in `words`,
//! the rules about files in `files`, and `library` is the interface to the crate `tls`.

pub(crate) mod bind;
mod crt_list;
pub(crate) mod crt_store;
mod files;
mod library;
mod named;
pub(crate) mod server;
mod ticket_keys;
pub(crate) mod words;

pub(crate) use bind::{BindLine, BindWord, BindWords, FrontendLines};
pub use crt_list::AddedLine;
pub(crate) use files::{Known, Loader, reason};
pub(crate) use server::{ServerLine, ServerWords};
pub(crate) use words::{PolicyWord, Reading};

/// Fuzz target: parses any bytes as files of TLS.
pub(crate) fn fuzz(data: &[u8]) {
    ticket_keys::fuzz(data);
    crt_list::fuzz(data);
}
