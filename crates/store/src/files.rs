//! The disk, as persistence uses it: the files of one directory.
//!
//! Everything that is kept on disk is written through [`Files`], so the same code runs on the real directory
//! ([`Directory`]) and, in tests, on one that loses, tears and reorders what is not synced (`simulated`).
//!
//! Names are single components: a file is in the directory itself, and a directory below it is a `Files` of its own. The
//! directory stays the same one if it is renamed. What makes data durable is not hidden: a file's contents by
//! [`File::sync_data`], its name by [`Files::sync_directory`] afterwards. After an error of either, nothing that was
//! written before may be counted on, even if a later call succeeds: the kernel drops pages that it could not write.

mod directory;
mod replacement;
#[cfg(test)]
pub(crate) mod simulated;

use std::io::{self, Read, Write};
use std::sync::Arc;

pub use directory::Directory;
pub(crate) use replacement::{Replacement, SYNCED_EACH};

/// The files of a directory.
pub trait Files: Send + Sync {
    /// Creates a file for writing; an existing one becomes empty. A symbolic link is refused.
    fn create(&self, name: &[u8]) -> io::Result<Box<dyn File>>;

    /// Opens a file for reading.
    fn open(&self, name: &[u8]) -> io::Result<Box<dyn File>>;

    /// Opens a file for writing at its end, and creates it if it does not exist.
    fn append(&self, name: &[u8]) -> io::Result<Box<dyn File>>;

    /// Returns what has this name, or `None` if nothing has it. Symbolic links are followed.
    fn entry(&self, name: &[u8]) -> io::Result<Option<Entry>>;

    /// Returns the names in the directory, in no order.
    fn list(&self) -> io::Result<Vec<Vec<u8>>>;

    /// Renames a file; an existing one of the new name is replaced, at once.
    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &[u8]) -> io::Result<()>;

    /// Creates a directory in this one.
    fn make_directory(&self, name: &[u8]) -> io::Result<()>;

    /// Opens a directory in this one.
    fn directory(&self, name: &[u8]) -> io::Result<Arc<dyn Files>>;

    /// Gives a file a second name: the same one, in a directory in this one. A symbolic link is followed.
    fn link_below(&self, name: &[u8], directory: &[u8]) -> io::Result<()>;

    /// Makes the directory's names durable: files that were created, renamed and removed.
    fn sync_directory(&self) -> io::Result<()>;

    /// Locks a name in the directory against other processes, until the result is dropped. An empty file of this name is
    /// created, and stays. The error is [`WouldBlock`](io::ErrorKind::WouldBlock) if the name is locked.
    fn lock(&self, name: &[u8]) -> io::Result<Lock>;
}

/// An open file. `write` may write less than it is given.
pub trait File: Read + Write + Send {
    /// Writes all bytes at a position, of a file that was opened by [`Files::create`]. Where the next `write` goes does
    /// not change.
    fn write_all_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Makes the contents durable, and the length.
    fn sync_data(&mut self) -> io::Result<()>;

    /// Cuts the file to a length.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;
}

/// A held lock of a name in a directory.
pub type Lock = Box<dyn Send + Sync>;

/// What a name in a directory stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// The length in bytes, of a file.
    pub bytes: u64,
    /// The file's number, by which two names of the same file are known.
    pub number: u64,
    /// When its contents changed last, in seconds since 1970 and nanoseconds.
    pub modified: (i64, i64),
}

impl Entry {
    /// Returns what tells a file from those that take its place: numbers alone are used again.
    pub(crate) fn identity(&self) -> Identity {
        (self.number, self.modified)
    }
}

/// See [`Entry::identity`].
pub(crate) type Identity = (u64, (i64, i64));

/// Returns the identity of an open file.
pub(crate) fn identity_of(found: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    (found.ino(), (found.mtime(), found.mtime_nsec()))
}

/// The kind of an [`Entry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A socket, a pipe, a device.
    Other,
}

/// Returns an error's text as Redis logs it: the system's, without the number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(_) => text.split(" (os error").next().unwrap_or_default().to_owned(),
        None => text,
    }
}
