//! The process's allocator: mimalloc, entered by the shortest way.
//!
//! Memory that one worker allocates is often freed by another; mimalloc gives it back without a lock. Every block of it is
//! aligned like C's, so what needs no more asks for no alignment: its aligned entry looks for a block by size as well, and
//! where the list of such blocks is just empty, or the size is above 1 KiB, it takes a larger one to align within (decision
//! 022).

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// `MI_MAX_ALIGN_SIZE`: a block of at least so many bytes is aligned to as many.
const ALIGNED: usize = 16;

/// Mimalloc's default heap of each thread.
pub struct Allocator;

/// Whether a block of this size is aligned enough without being asked to. Smaller ones are aligned to their size.
const fn is_natural(size: usize, align: usize) -> bool {
    align <= ALIGNED && align <= size
}

// SAFETY: mimalloc's blocks are as large and as aligned as asked for, null where there is no memory, and freed and resized
// by their address alone, whichever entry made them.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: no conditions.
        unsafe { if is_natural(size, align) { mi_malloc(size) } else { mi_malloc_aligned(size, align) }.cast() }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: no conditions.
        unsafe { if is_natural(size, align) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) }.cast() }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller promises that it came from here.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        // SAFETY: as `dealloc`; null leaves the block as it is.
        unsafe {
            if is_natural(size, align) {
                mi_realloc(block.cast(), size)
            } else {
                mi_realloc_aligned(block.cast(), size, align)
            }
            .cast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes around the classes of blocks, with every alignment that a type may have.
    #[test]
    fn blocks_are_aligned_and_keep_what_is_in_them() {
        let sizes = (1..200).chain([255, 256, 1000, 1024, 1025, 1040, 4095, 5000, 65_537, 1 << 20]);
        for (size, align) in sizes.flat_map(|size| (0..9).map(move |bits| (size, 1 << bits))) {
            let layout = Layout::from_size_align(size, align).unwrap();
            // Several of each, so that those behind the first of a page are looked at too.
            let blocks: Vec<*mut u8> = (0..4u8)
                .map(|number| {
                    // SAFETY: the layout is not empty, each block is written within its size and freed once.
                    unsafe {
                        let zeroed = number % 2 == 1;
                        let block = if zeroed { Allocator.alloc_zeroed(layout) } else { Allocator.alloc(layout) };
                        assert!(is_aligned(block, align), "{layout:?}");
                        assert!(!zeroed || (0..size).all(|at| *block.add(at) == 0), "{layout:?}");
                        block.write_bytes(number, size);
                        block
                    }
                })
                .collect();
            for (number, block) in blocks.into_iter().enumerate() {
                // SAFETY: as above; a block that was resized is freed by its new layout.
                unsafe {
                    let larger = Layout::from_size_align(size * 3, align).unwrap();
                    let block = Allocator.realloc(block, layout, size * 3);
                    assert!(is_aligned(block, align), "{larger:?}");
                    assert!((0..size).all(|at| *block.add(at) == number as u8), "{larger:?}");
                    Allocator.dealloc(block, larger);
                }
            }
        }
    }

    fn is_aligned(block: *mut u8, align: usize) -> bool {
        !block.is_null() && block.addr().is_multiple_of(align)
    }
}
