//! Memory for the entries of tables: regions of whole huge pages, split into pieces that never move and are freed
//! together.
//!
//! A request reads a few random places of a large table. In small pages each read also waits for the translation of its
//! address, which in a virtual machine takes longer than the read. A region begins with small pages, so that a small
//! table takes no more than it uses; once it is used up, [`Region::collapse`] makes its pages huge.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

const HUGE_BYTES: usize = 2 << 20;
const WORD_BYTES: usize = size_of::<u32>();
/// A region with more than this fraction of it unused keeps its small pages, some of which were never touched.
const LEFT_SHARE: usize = 16;

/// The allocator of a table's pieces.
#[derive(Default)]
pub(super) struct Memory {
    open: Option<(Arc<Region>, usize)>,
    full: Vec<Arc<Region>>,
}

/// Words owned by the holder; initially all zero.
pub(super) struct Piece {
    words: NonNull<[u32]>,
    _region: Arc<Region>,
}

/// A mapping, aligned to [`HUGE_BYTES`]; its size is a multiple of that.
pub(super) struct Region {
    start: NonNull<u32>,
    bytes: usize,
}

// SAFETY: a piece is the only one that has its words, as a box would be.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}
// SAFETY: a region gives no access to its content.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Memory {
    /// Allocates the next piece, with this number of words.
    pub(super) fn piece(&mut self, words: usize) -> Piece {
        let (region, used) = match self.open.take() {
            Some((region, used)) if used + words <= region.bytes / WORD_BYTES => (region, used),
            before => {
                if let Some((region, used)) = before
                    && region.bytes - used * WORD_BYTES <= region.bytes / LEFT_SHARE
                {
                    self.full.push(region);
                }
                (Arc::new(Region::map((words * WORD_BYTES).next_multiple_of(HUGE_BYTES))), 0)
            }
        };
        // SAFETY: the words lie in the region, and no other piece has them.
        let piece = unsafe { NonNull::slice_from_raw_parts(region.start.add(used), words) };
        let piece = Piece { words: piece, _region: region.clone() };
        self.open = Some((region, used + words));
        piece
    }

    /// Returns at most `most` of the regions that were filled since the last call.
    pub(super) fn take_full(&mut self, most: usize) -> Vec<Arc<Region>> {
        self.full.drain(..most.min(self.full.len())).collect()
    }
}

impl Deref for Piece {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: the region lives as long as this, which owns the words.
        unsafe { self.words.as_ref() }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above.
        unsafe { self.words.as_mut() }
    }
}

impl Region {
    fn map(bytes: usize) -> Region {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let all = bytes + HUGE_BYTES;
        // SAFETY: an anonymous mapping without a wished address touches no existing memory; the unmapped parts lie
        // inside it.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), all, protection, flags, -1, 0);
            if start == libc::MAP_FAILED {
                handle_alloc_error(Layout::from_size_align_unchecked(bytes, WORD_BYTES));
            }
            let start = start.cast::<u8>();
            let skip = start.addr().next_multiple_of(HUGE_BYTES) - start.addr();
            if skip > 0 {
                libc::munmap(start.cast(), skip);
            }
            libc::munmap(start.add(skip + bytes).cast(), HUGE_BYTES - skip);
            Region { start: NonNull::new_unchecked(start.add(skip).cast()), bytes }
        }
    }

    /// Requests huge pages from the kernel. From Linux 6.1 on this takes effect immediately; older kernels do it within
    /// minutes, or refuse, which is harmless.
    pub(super) fn collapse(&self) {
        let start = self.start.as_ptr().cast();
        // SAFETY: the mapping belongs to this region; its content stays.
        unsafe {
            libc::madvise(start, self.bytes, libc::MADV_HUGEPAGE);
            libc::madvise(start, self.bytes, libc::MADV_COLLAPSE);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: no piece of it exists any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_what_is_written_in_huge_pages_too() {
        let mut memory = Memory::default();
        let words = 6_000;
        let mut pieces: Vec<Piece> = (0..200).map(|_| memory.piece(words)).collect();
        for (number, piece) in (0..).zip(&mut pieces) {
            assert!(piece.iter().all(|word| *word == 0));
            piece.fill(number);
        }
        let full = memory.take_full(2);
        // 87 pieces of 24,000 bytes fit into two megabytes.
        assert_eq!(full.len(), 2);
        full.iter().for_each(|region| region.collapse());
        assert!(memory.take_full(9).is_empty());
        for (number, piece) in (0..).zip(&pieces) {
            assert_eq!(piece.len(), words);
            assert!(piece.iter().all(|word| *word == number));
        }
    }

    #[test]
    fn a_region_lives_as_long_as_its_pieces() {
        let mut memory = Memory::default();
        let piece = memory.piece(10);
        let region = Arc::downgrade(&piece._region);
        drop(memory);
        assert_eq!(piece[..], [0; 10]);
        assert!(region.upgrade().is_some());
        drop(piece);
        assert!(region.upgrade().is_none());
    }

    #[test]
    fn pieces_may_be_larger_than_a_huge_page() {
        let mut memory = Memory::default();
        let words = HUGE_BYTES / WORD_BYTES + 1;
        let mut large = memory.piece(words);
        large[words - 1] = 7;
        let small = memory.piece(8);
        assert_eq!((large[words - 1], small[0]), (7, 0));
        // Half of it was not used.
        assert!(memory.take_full(9).is_empty());
        drop(memory.piece(words));
        assert!(memory.take_full(9).is_empty());
    }
}
