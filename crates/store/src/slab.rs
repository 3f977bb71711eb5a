//! Memory for entries: small blocks from pages of one size class, large ones from the allocator.
//!
//! A store of small keys lives or dies by rounding: an allocator's 16-byte classes cost 8 bytes a key on average. So
//! blocks up to [`SMALL_MAX`] bytes come in classes of 8 bytes, cut from pages of 2 KiB, which belong to one stripe and
//! are guarded by its lock. A page finds its header by masking a block's address, so a block carries no header.
//!
//! Pages come from one pool for the process, which maps regions of 2 MiB aligned to their size and unmaps a region when
//! its last page returns, so memory that a burst of keys took goes back to the system. The pool has a lock of its own
//! below the stripes', as any allocator has; it is held for some nanoseconds, once per page.
//!
//! Cost: 24 bytes of header a page (1.2 %), one partly filled page per class in use and stripe. A slab keeps one empty
//! page per class, so that a key set and deleted in turn does not ask the pool every time.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

use parking_lot::Mutex;

use crate::memory::heap_bytes;

/// The largest block that a page serves, in bytes.
pub(crate) const SMALL_MAX: usize = 128;

const CLASS_BYTES: usize = 8;
const CLASSES: usize = SMALL_MAX / CLASS_BYTES;
const PAGE_BYTES: usize = 2048;
const REGION_BYTES: usize = 2 << 20;
const REGION_PAGES: usize = REGION_BYTES / PAGE_BYTES - 1; // the first page holds the region's header

/// The head of a page; blocks follow.
#[repr(C)]
struct Page {
    next: *mut Page,
    prev: *mut Page,
    /// Offset of the first freed block, 0 if there is none; a freed block's first two bytes link to the next.
    free: u16,
    /// Offset of the first block never used.
    fresh: u16,
    used: u16,
    class: u16,
}

const _: () = assert!(size_of::<Page>() == 24);

impl Page {
    fn block_bytes(&self) -> usize {
        (self.class as usize + 1) * CLASS_BYTES
    }

    fn is_full(&self) -> bool {
        self.free == 0 && self.fresh as usize + self.block_bytes() > PAGE_BYTES
    }
}

/// The blocks of one stripe.
///
/// Dropping a slab gives back its partly filled pages only; its owner frees every block first.
pub(crate) struct Slab {
    /// Pages with room, a list per class.
    partial: [*mut Page; CLASSES],
    /// Bytes of blocks in use, as they are rounded.
    bytes: usize,
    page_bytes: usize,
}

// SAFETY: a slab owns its pages alone; they are reached through it or through blocks that its owner holds under the
// same lock, so it may move to another thread with them.
unsafe impl Send for Slab {}

/// Bytes of the block that [`Slab::alloc`] gives for so many.
pub(crate) fn rounded(bytes: usize) -> usize {
    if bytes > SMALL_MAX { heap_bytes(bytes) } else { bytes.next_multiple_of(CLASS_BYTES) }
}

impl Slab {
    pub(crate) const fn new() -> Slab {
        Slab { partial: [ptr::null_mut(); CLASSES], bytes: 0, page_bytes: 0 }
    }

    /// Bytes of blocks in use.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of pages, in use or not.
    #[cfg(test)]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// A block of at least `bytes` bytes, aligned to 8. `bytes` is not 0.
    pub(crate) fn alloc(&mut self, bytes: usize) -> NonNull<u8> {
        if bytes > SMALL_MAX {
            let layout = large(bytes);
            // SAFETY: the layout is not of size 0.
            let block = unsafe { alloc(layout) };
            self.bytes += heap_bytes(bytes);
            return NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout));
        }
        let class = (bytes - 1) / CLASS_BYTES;
        self.bytes += (class + 1) * CLASS_BYTES;
        if self.partial[class].is_null() {
            self.add_page(class);
        }
        let head = self.partial[class];
        // SAFETY: pages in `partial` are live and owned by this slab; a page in the list has room, so either its free
        // list or its fresh part yields a block inside the page.
        unsafe {
            let page = &mut *head;
            let offset = if page.free != 0 {
                let offset = page.free;
                page.free = head.cast::<u8>().add(offset as usize).cast::<u16>().read();
                offset
            } else {
                let offset = page.fresh;
                page.fresh += page.block_bytes() as u16;
                offset
            };
            page.used += 1;
            if page.is_full() {
                self.unlink(head);
            }
            NonNull::new_unchecked(head.cast::<u8>().add(offset as usize))
        }
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from [`alloc`](Self::alloc) of this slab with a size of the same class as `bytes` and is not used
    /// afterwards.
    pub(crate) unsafe fn free(&mut self, block: NonNull<u8>, bytes: usize) {
        if bytes > SMALL_MAX {
            let layout = large(bytes);
            self.bytes -= heap_bytes(bytes);
            // SAFETY: the caller says that the block was allocated with this size, hence this layout.
            return unsafe { dealloc(block.as_ptr(), layout) };
        }
        let head = block.as_ptr().map_addr(|addr| addr & !(PAGE_BYTES - 1)).cast::<Page>();
        // SAFETY: pages are aligned to their size, so the mask finds the header of the page the block was cut from,
        // which lives while one of its blocks does. The block is at least 8 bytes and unused from here on.
        unsafe {
            self.bytes -= (*head).block_bytes();
            let was_full = (*head).is_full();
            block.cast::<u16>().write((*head).free);
            (*head).free = (block.as_ptr().addr() - head.addr()) as u16;
            (*head).used -= 1;
            if was_full {
                self.link(head);
            }
            let alone = (*head).next.is_null() && (*head).prev.is_null();
            if (*head).used == 0 && !alone {
                self.unlink(head);
                self.page_bytes -= PAGE_BYTES;
                POOL.lock().give(head.cast());
            }
        }
    }

    fn add_page(&mut self, class: usize) {
        let page = POOL.lock().take().cast::<Page>();
        self.page_bytes += PAGE_BYTES;
        let head = Page {
            next: ptr::null_mut(),
            prev: ptr::null_mut(),
            free: 0,
            fresh: size_of::<Page>() as u16,
            used: 0,
            class: class as u16,
        };
        // SAFETY: the pool hands out whole, aligned pages that nobody else uses.
        unsafe {
            page.write(head);
            self.link(page);
        }
    }

    /// # Safety
    /// `page` is a live page of this slab that is in no list.
    unsafe fn link(&mut self, page: *mut Page) {
        // SAFETY: the caller vouches for `page`; the list's pages are this slab's and live.
        unsafe {
            let first = &mut self.partial[(*page).class as usize];
            (*page).prev = ptr::null_mut();
            (*page).next = *first;
            if !first.is_null() {
                (**first).prev = page;
            }
            *first = page;
        }
    }

    /// # Safety
    /// `page` is a live page of this slab and in its class's list.
    unsafe fn unlink(&mut self, page: *mut Page) {
        // SAFETY: the caller vouches for `page`; its neighbours are in the same list and live.
        unsafe {
            let (next, prev) = ((*page).next, (*page).prev);
            match prev.is_null() {
                true => self.partial[(*page).class as usize] = next,
                false => (*prev).next = next,
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
            (*page).next = ptr::null_mut();
            (*page).prev = ptr::null_mut();
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let mut pool = POOL.lock();
        for first in self.partial {
            let mut page = first;
            while !page.is_null() {
                // SAFETY: pages in the lists are live; each is given back once, and not read after.
                unsafe {
                    let next = (*page).next;
                    debug_assert_eq!((*page).used, 0, "a slab dropped with blocks in use");
                    if (*page).used == 0 {
                        pool.give(page.cast());
                    }
                    page = next;
                }
            }
        }
    }
}

fn large(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, CLASS_BYTES).expect("entries are far below isize::MAX")
}

/// The pages of the process.
static POOL: Mutex<Pool> = Mutex::new(Pool { roomy: ptr::null_mut(), spare: ptr::null_mut() });

struct Pool {
    /// Regions with a free page.
    roomy: *mut Region,
    /// One empty region kept back, so that a burst at a region's border does not map and unmap in turn.
    spare: *mut Region,
}

// SAFETY: the pool's regions are reached through its lock only.
unsafe impl Send for Pool {}

/// The head of a region, in its first page.
#[repr(C)]
struct Region {
    next: *mut Region,
    prev: *mut Region,
    /// Freed pages, each linking to the next through its first word.
    free: *mut *mut u8,
    /// Pages never used begin here; untouched ones cost no memory.
    fresh: u32,
    used: u32,
}

impl Pool {
    fn take(&mut self) -> *mut u8 {
        if self.roomy.is_null() {
            let region = match self.spare.is_null() {
                true => map_region(),
                false => std::mem::replace(&mut self.spare, ptr::null_mut()),
            };
            // SAFETY: a new or spare region is live and in no list.
            unsafe { self.link(region) };
        }
        let region = self.roomy;
        // SAFETY: regions in the list are live and have a free or a fresh page.
        unsafe {
            let head = &mut *region;
            head.used += 1;
            let page = if head.free.is_null() {
                head.fresh += 1;
                region.cast::<u8>().add(head.fresh as usize * PAGE_BYTES)
            } else {
                let page = head.free;
                head.free = page.read().cast();
                page.cast()
            };
            if head.used as usize == REGION_PAGES {
                self.unlink(region);
            }
            page
        }
    }

    /// # Safety
    /// `page` came from [`take`](Self::take) and is not used afterwards.
    unsafe fn give(&mut self, page: *mut u8) {
        let region = page.map_addr(|addr| addr & !(REGION_BYTES - 1)).cast::<Region>();
        // SAFETY: regions are aligned to their size, so the mask finds the header of the page's region, which lives
        // while one of its pages is in use.
        unsafe {
            if (*region).used as usize == REGION_PAGES {
                self.link(region);
            }
            page.cast::<*mut u8>().write((*region).free.cast());
            (*region).free = page.cast();
            (*region).used -= 1;
            if (*region).used == 0 {
                self.unlink(region);
                let surplus = std::mem::replace(&mut self.spare, region);
                if !surplus.is_null() {
                    libc::munmap(surplus.cast(), REGION_BYTES);
                }
            }
        }
    }

    /// # Safety
    /// `region` is live and in no list.
    unsafe fn link(&mut self, region: *mut Region) {
        // SAFETY: the caller vouches for `region`, the list's regions are live.
        unsafe {
            (*region).prev = ptr::null_mut();
            (*region).next = self.roomy;
            if !self.roomy.is_null() {
                (*self.roomy).prev = region;
            }
            self.roomy = region;
        }
    }

    /// # Safety
    /// `region` is live and in the list.
    unsafe fn unlink(&mut self, region: *mut Region) {
        // SAFETY: the caller vouches for `region`, its neighbours are live.
        unsafe {
            let (next, prev) = ((*region).next, (*region).prev);
            match prev.is_null() {
                true => self.roomy = next,
                false => (*prev).next = next,
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
        }
    }
}

/// Maps a region aligned to its size: twice the size is mapped and what sticks out is given back.
fn map_region() -> *mut Region {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping without a wished address touches nothing that exists; the parts unmapped lie inside
    // the mapping just made, and the region's header inside what is kept.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), 2 * REGION_BYTES, protection, flags, -1, 0);
        if start == libc::MAP_FAILED {
            handle_alloc_error(Layout::from_size_align_unchecked(REGION_BYTES, PAGE_BYTES));
        }
        let start = start.cast::<u8>();
        let skip = start.addr().next_multiple_of(REGION_BYTES) - start.addr();
        if skip > 0 {
            libc::munmap(start.cast(), skip);
        }
        libc::munmap(start.add(skip + REGION_BYTES).cast(), REGION_BYTES - skip);
        let region = start.add(skip).cast::<Region>();
        // One huge page per region: a lookup then misses the translation cache once less. The pool fills a region
        // before it takes another, so this costs at most a region; where it is refused, nothing is lost.
        libc::madvise(region.cast(), REGION_BYTES, libc::MADV_HUGEPAGE);
        let head = Region { next: ptr::null_mut(), prev: ptr::null_mut(), free: ptr::null_mut(), fresh: 0, used: 0 };
        region.write(head);
        region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_blocks_are_used_again() {
        let mut slab = Slab::new();
        let first = slab.alloc(56);
        // SAFETY: each block is freed once, with the size it was taken with.
        unsafe { slab.free(first, 56) };
        let second = slab.alloc(50);
        assert_eq!(first, second, "50 and 56 bytes are of one class");
        // SAFETY: as above.
        unsafe { slab.free(second, 50) };
        assert_eq!((slab.bytes(), slab.page_bytes()), (0, PAGE_BYTES));
    }

    #[test]
    fn blocks_do_not_overlap_and_pages_return() {
        let mut slab = Slab::new();
        let mut blocks = Vec::new();
        for round in 0..20_000usize {
            let bytes = 1 + (round * 7919) % 200;
            let block = slab.alloc(bytes);
            assert_eq!(block.as_ptr().addr() % 8, 0);
            // SAFETY: the block has `bytes` bytes.
            unsafe { block.as_ptr().write_bytes(round as u8, bytes) };
            blocks.push((block, bytes, round as u8));
        }
        for (block, bytes, fill) in blocks.drain(..).rev() {
            // SAFETY: the block is live, and freed once.
            unsafe {
                let content = std::slice::from_raw_parts(block.as_ptr(), bytes);
                assert!(content.iter().all(|&byte| byte == fill));
                slab.free(block, bytes);
            }
        }
        assert_eq!(slab.bytes(), 0);
        assert!(slab.page_bytes() <= CLASSES * PAGE_BYTES, "{} bytes are kept", slab.page_bytes());
    }
}
