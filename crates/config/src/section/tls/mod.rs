//! TLS of `bind` and `server` lines: words, the files that they name, and the settings that follow.
//!
//! A line's words are read where they stand, and files with them, so that an error names its word; settings are made at
//! the end of a section, when its mode is known. The words that several kinds of lines share are in `words`, rules of
//! files in `files`, and `library` is the border to the crate `tls`.

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
pub(crate) use files::{Known, Loader};
pub(crate) use server::{ServerLine, ServerWords};
pub(crate) use words::{PolicyWord, Reading};

/// Reads any bytes as files of TLS; asserts what holds for all of them.
pub(crate) fn fuzz(data: &[u8]) {
    ticket_keys::fuzz(data);
    crt_list::fuzz(data);
}
