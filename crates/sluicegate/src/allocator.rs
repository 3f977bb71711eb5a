//! The process's allocator: mimalloc, called through its shortest path.
//!
//! Memory that one worker allocates is often freed by another; mimalloc returns it without a lock. Every block has the
//! alignment of C's malloc, so types that need no more use the unaligned entry point: the aligned one also looks up a
//! block by size, but if the list of such blocks is empty, or the size is above 1 KiB, it allocates a larger block to
//! align within (decision 022).
//!
//! Freed memory is returned to the kernel after [`PURGE_MS`] instead of mimalloc's default of a second, so that the
//! memory of closed connections does not add to that of new ones ([`configure`]).
//!
//! Blocks of megabytes are mapped with `mmap` directly. Mimalloc copies such a block when it grows, and returns freed
//! ones to the kernel later, on the thread that next allocates: either takes a worker milliseconds
//! for a request of 50 MB. A separate mapping is moved by remapping its pages, and unmapped by the thread that frees
//! it.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};
use std::ptr;

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// `MI_MAX_ALIGN_SIZE`: a block of at least this size has this alignment.
const ALIGNED: usize = 16;

/// Blocks of at least this size are mapped separately; the store frees blocks of this kind on helper threads.
const MAPPED_MIN: usize = 8 << 20;

/// The minimum page size, to which a mapping is aligned.
const PAGE: usize = 4096;

/// The time before freed memory is returned to the system, in milliseconds.
const PURGE_MS: c_long = 10;

/// Mimalloc visits all pages of a thread's heap with free blocks at every so many allocations that are not of its shortest
/// path (those above 1 KiB are not), by default 10,000: in a heap of gigabytes that takes a worker tens of milliseconds, several
/// times a second. This is the largest value that it accepts.
const COLLECT_EACH: c_long = 1_000_000;

/// The pages of a size class that a thread's heap takes back when blocks in them are freed, by default all: it bounds what a
/// visit takes. Others are left to whichever thread needs one of this class.
const PAGES_TAKEN_BACK: c_long = 16_384;

/// The options of mimalloc 3 that are not left at its defaults: number, name in the environment, value.
const OPTIONS: [(c_int, &str, c_long); 3] = [
    (15, "MIMALLOC_PURGE_DELAY", PURGE_MS),
    (34, "MIMALLOC_GENERIC_COLLECT", COLLECT_EACH),
    (41, "MIMALLOC_PAGE_MAX_RECLAIM", PAGES_TAKEN_BACK),
];

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Mimalloc's default heap of each thread, and mappings.
pub struct Allocator;

/// Sets mimalloc's options, unless the environment sets them. Must be called before other threads exist.
pub fn configure() {
    for (option, name, value) in OPTIONS {
        if std::env::var_os(name).is_none() {
            // SAFETY: an option that there is, and no other thread reads it now.
            unsafe { mi_option_set(option, value) };
        }
    }
}

/// Returns whether a block is a separate mapping. This follows from the size and alignment alone, which are known both
/// when it is allocated and when it is freed.
#[inline]
const fn is_mapped(size: usize, align: usize) -> bool {
    size >= MAPPED_MIN && align <= PAGE
}

/// Returns a new mapping filled with zeros, or null if there is no memory.
#[cold]
fn map(size: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping anywhere touches nothing that exists.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if start == libc::MAP_FAILED { ptr::null_mut() } else { start.cast() }
}

/// Resizes a block that is a mapping before or after the change.
///
/// # Safety
/// As for `realloc`.
#[cold]
unsafe fn remap(block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: the caller promises that the block has this `layout`; a mapped block is moved as a mapping, any other is
    // copied to a new block, and freed once.
    unsafe {
        if is_mapped(layout.size(), layout.align()) && is_mapped(size, layout.align()) {
            let moved = libc::mremap(block.cast(), layout.size(), size, libc::MREMAP_MAYMOVE);
            return if moved == libc::MAP_FAILED { ptr::null_mut() } else { moved.cast() };
        }
        let new = Allocator.alloc(Layout::from_size_align_unchecked(size, layout.align()));
        if !new.is_null() {
            new.copy_from_nonoverlapping(block, layout.size().min(size));
            Allocator.dealloc(block, layout);
        }
        new
    }
}

/// Returns whether a block of this size is sufficiently aligned without a request. Smaller ones are aligned to their
/// size.
const fn is_natural(size: usize, align: usize) -> bool {
    align <= ALIGNED && align <= size
}

// SAFETY: mimalloc's blocks are as large and as aligned as asked for, null where there is no memory, and freed and
// resized by their address alone, whichever entry made them. Mappings are aligned to pages; which blocks are mapped
// follows from their layout.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if is_mapped(size, align) {
            return map(size);
        }
        // SAFETY: no conditions.
        unsafe { if is_natural(size, align) { mi_malloc(size) } else { mi_malloc_aligned(size, align) }.cast() }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if is_mapped(size, align) {
            return map(size);
        }
        // SAFETY: no conditions.
        unsafe { if is_natural(size, align) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) }.cast() }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that it came from here, with this layout.
        unsafe {
            if is_mapped(layout.size(), layout.align()) {
                libc::munmap(block.cast(), layout.size());
                return;
            }
            mi_free(block.cast())
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        // SAFETY: as `dealloc`; null leaves the block as it is.
        unsafe {
            if is_mapped(layout.size().max(size), align) {
                return remap(block, layout, size);
            }
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

    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    fn the_options_are_those_of_the_linked_version() {
        // SAFETY: options that there are.
        unsafe {
            let get = || OPTIONS.map(|(option, _, _)| mi_option_get(option));
            assert_eq!(get(), [1000, 10_000, -1], "mimalloc 3's defaults");
            configure();
            assert_eq!(get(), OPTIONS.map(|(_, _, value)| value));
        }
    }

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

    /// Blocks that become mappings, grow and shrink as such, and become blocks of mimalloc's again.
    #[test]
    fn large_blocks_are_mappings_that_move_with_what_is_in_them() {
        for align in [1, 64, PAGE, 2 * PAGE] {
            let sizes = [MAPPED_MIN - 1, MAPPED_MIN, 3 * MAPPED_MIN + 5, MAPPED_MIN + PAGE, 100, 2 * MAPPED_MIN, 1];
            let mut layout = Layout::from_size_align(1000, align).unwrap();
            // SAFETY: a block is resized and freed by its own layout, and read and written within its size.
            unsafe {
                let mut block = Allocator.alloc(layout);
                block.write(7);
                for size in sizes {
                    block = Allocator.realloc(block, layout, size);
                    layout = Layout::from_size_align(size, align).unwrap();
                    assert!(is_aligned(block, align) && block.read() == 7, "{layout:?}");
                    block.add(size - 1).write(7);
                    assert_eq!(is_mapped(size, align), size >= MAPPED_MIN && align <= PAGE);
                }
                Allocator.dealloc(block, layout);
                let layout = Layout::from_size_align(MAPPED_MIN, align).unwrap();
                let zeroed = Allocator.alloc_zeroed(layout);
                assert!((0..MAPPED_MIN).step_by(1000).all(|at| *zeroed.add(at) == 0));
                Allocator.dealloc(zeroed, layout);
            }
        }
    }

    fn is_aligned(block: *mut u8, align: usize) -> bool {
        !block.is_null() && block.addr().is_multiple_of(align)
    }
}
