//! Blocks of memory whose size follows from the bytes in use, so that it is stored nowhere.

use std::alloc::{Layout, alloc, handle_alloc_error, realloc};
use std::ptr::NonNull;

/// Returns the size of the block for this many bytes in use: in steps of at most an eighth, so that an insertion seldom
/// moves the block.
#[inline]
pub(super) fn size(used: usize) -> usize {
    match used {
        0..=128 => used.next_multiple_of(8),
        _ => used.next_multiple_of(1 << (usize::BITS - used.leading_zeros() - 4)),
    }
}

/// Returns the layout of the block for this many bytes in use.
#[inline]
pub(super) fn layout(used: usize, align: usize) -> Layout {
    Layout::from_size_align(size(used), align).expect("a block is at most 4 GiB")
}

/// Returns a block with a copy of these bytes, of which there is at least one.
#[inline]
pub(super) fn copy_of(bytes: &[u8], align: usize) -> NonNull<u8> {
    debug_assert!(!bytes.is_empty());
    let layout = layout(bytes.len(), align);
    // SAFETY: the layout has at least the bytes' size, which is not 0.
    unsafe {
        let Some(block) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
        block.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        block
    }
}

/// Returns the block with another number of bytes in use, at another address if its size changes.
///
/// # Safety
/// The block has the layout of `from` bytes with this alignment, `to` is not 0, and the old address is not used
/// afterwards.
#[inline]
pub(super) unsafe fn resize(block: NonNull<u8>, from: usize, to: usize, align: usize) -> NonNull<u8> {
    if size(from) == size(to) {
        return block;
    }
    // SAFETY: as the caller promises.
    unsafe { moved(block, layout(from, align), layout(to, align)) }
}

/// Returns the block with another layout.
///
/// # Safety
/// As of [`realloc`].
#[inline(never)]
unsafe fn moved(block: NonNull<u8>, old: Layout, new: Layout) -> NonNull<u8> {
    // SAFETY: as the caller promises.
    let block = unsafe { realloc(block.as_ptr(), old, new.size()) };
    NonNull::new(block).unwrap_or_else(|| handle_alloc_error(new))
}
