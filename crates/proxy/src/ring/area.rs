//! The memory of a ring: its own, or a file's that the kernel keeps when the process dies.
//!
//! A file begins with HAProxy 3.2's header, so that its tools read it: the size of the area, the length of the header,
//! and the two ends, each in 64 bytes of its own. All of the file is allocated beforehand; otherwise a full file system would
//! end the process when a page is first written.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The length of the header of a file, and the places of its fields.
const HEADER: usize = 192;
const SIZE: usize = 0;
const RESERVED: usize = 8;
const TAIL: usize = 64;
const HEAD: usize = 128;

/// Pages of a file.
const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) enum Area {
    Memory(Box<[u8]>),
    File(Mapping),
}

impl Area {
    pub(super) fn in_memory(size: usize) -> Area {
        Area::Memory(vec![0; size.max(1)].into())
    }

    /// Maps a file of this size, rounded up to whole pages. Its contents are renamed to `.bak`, if there are any.
    pub(super) fn in_file(size: usize, path: &Path) -> io::Result<Area> {
        rotate(path);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut mapping = Mapping::new(&file, size.max(1).next_multiple_of(PAGE))?;
        let all = mapping.bytes();
        put(all, SIZE, all.len() - HEADER);
        put(all, RESERVED, HEADER);
        Ok(Area::File(mapping))
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Area::Memory(bytes) => bytes,
            Area::File(mapping) => &mut mapping.bytes()[HEADER..],
        }
    }

    /// Records the ends of the contents, for readers of the file.
    pub(super) fn set_ends(&mut self, head: u64, tail: u64) {
        if let Area::File(mapping) = self {
            let all = mapping.bytes();
            put(all, HEAD, head as usize);
            put(all, TAIL, tail as usize);
        }
    }
}

fn put(all: &mut [u8], at: usize, value: usize) {
    all[at..at + 8].copy_from_slice(&(value as u64).to_ne_bytes());
}

/// Renames a file that is a ring with contents; failures do not matter, as in HAProxy.
fn rotate(path: &Path) {
    let mut header = [0; HEADER];
    let Ok(mut file) = File::open(path) else { return };
    if file.metadata().is_ok_and(|facts| facts.len() == 0) {
        return;
    }
    if file.read_exact(&mut header).is_ok() {
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let is_empty = word(HEAD) == 0 && word(TAIL) == 1;
        // Something else is not touched here; opening it as a ring replaces its contents, as in HAProxy.
        if word(RESERVED) != HEADER as u64 || is_empty {
            return;
        }
    }
    let mut backup = path.as_os_str().to_owned();
    backup.push(".bak");
    let _ = std::fs::rename(path, PathBuf::from(backup));
}

/// A writable shared mapping of a whole file.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and is accessed only through `&mut`.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File, len: usize) -> io::Result<Mapping> {
        // SAFETY: the descriptor is open; the call reads no memory.
        let allocated = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as libc::off_t) };
        if allocated != 0 {
            return Err(io::Error::from_raw_os_error(allocated));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that has `len` bytes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` bytes, readable and writable, until it is dropped, and `&mut self` makes the slice the only
        // one in this process. Another process that changes the file changes bytes, for which every value is valid;
        // lengths that are read back are bounded by the area in `Storage`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the start and length of a mapping that nothing refers to any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}
