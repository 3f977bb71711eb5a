//! Memory for entries: small blocks from pages of one size class, large ones from the allocator.
//!
//! The memory of a store with small keys is dominated by rounding: an allocator's 16-byte classes cost 8 bytes per key
//! on average. So blocks up to [`SMALL_MAX`] bytes come in classes of 8 bytes, cut from [pages] of 2 KiB, which belong
//! to one stripe and are guarded by its lock. A page finds its header by masking a block's address, so a block carries
//! no header.
//!
//! Pages with room are in three lists per class, by how full they are, and blocks come from the fullest kind. When keys
//! are removed, or change their class, nearly empty pages remain; [`Slab::empty_one`] moves the blocks of one of them
//! to others of the class and returns the page. Blocks are moved only while that frees pages, never into new ones, and
//! until less than an eighth of a class is free.
//!
//! Cost: 24 bytes of header per page (1.2 %), one partly filled page per class in use and stripe. A slab keeps one
//! empty page per class, so that a key set and deleted in turn does not access the pool every time.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

use smallvec::SmallVec;

use crate::pages::{self, PAGE_BYTES};

/// The largest block that a page serves, in bytes.
pub const SMALL_MAX: usize = 128;

const CLASS_BYTES: usize = 8;
const CLASSES: usize = SMALL_MAX / CLASS_BYTES;
/// The number of lists of a class: pages of which less than 3/8 is used, less than 7/8, and the others that have room.
const KINDS: usize = 3;
/// A class of which less than this part is free is not compacted.
const FREE_PART: usize = 8;
/// The maximum number of pages of a list that are examined for one that may be emptied.
const LOOKS: usize = 4;

/// The head of a page; blocks follow.
#[repr(C)]
struct Page {
    next: *mut Page,
    prev: *mut Page,
    /// Offset of the first freed block, 0 if there is none; a freed block's first two bytes link to the next.
    free: u16,
    /// Offset of the first block that was never used.
    fresh: u16,
    used: u16,
    class: u16,
}

const HEAD: usize = size_of::<Page>();
const _: () = assert!(HEAD == 24);

/// Returns the size of a class's blocks in bytes.
#[inline]
const fn block_bytes(class: usize) -> usize {
    (class + 1) * CLASS_BYTES
}

/// Returns the number of blocks in a page of this class.
#[inline]
const fn capacity(class: usize) -> usize {
    const OF_CLASS: [u16; CLASSES] = {
        let mut of_class = [0; CLASSES];
        let mut class = 0;
        while class < CLASSES {
            of_class[class] = ((PAGE_BYTES - HEAD) / block_bytes(class)) as u16;
            class += 1;
        }
        of_class
    };
    OF_CLASS[class] as usize
}

impl Page {
    /// Returns the list that contains the page; [`KINDS`] if it is full.
    #[inline]
    fn kind(&self) -> usize {
        let (used, capacity) = (usize::from(self.used), capacity(usize::from(self.class)));
        usize::from(used * 8 >= capacity * 3) + usize::from(used * 8 >= capacity * 7) + usize::from(used == capacity)
    }
}

/// The pages of one class.
#[derive(Clone, Copy)]
struct Class {
    lists: [*mut Page; KINDS],
    pages: u32,
    /// The number of their free blocks.
    free: u32,
}

impl Class {
    /// Returns whether moving blocks may free a page.
    #[inline]
    fn is_loose(&self, class: usize) -> bool {
        let (pages, free, capacity) = (self.pages as usize, self.free as usize, capacity(class));
        free >= capacity && free * FREE_PART > pages * capacity
    }
}

/// The result of [`Slab::empty_one`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// A page was returned to the pool.
    Page,
    /// A page could be emptied, but all examined pages have blocks that must stay.
    Held,
    /// No page can be emptied.
    Nothing,
}

/// The blocks of one stripe.
///
/// Dropping a slab returns only its partly filled pages; its owner frees every block first.
pub struct Slab {
    /// The rounded bytes of the blocks in use.
    bytes: usize,
    /// The bytes of free blocks in its pages.
    loose_bytes: usize,
    classes: [Class; CLASSES],
}

// SAFETY: a slab owns its pages alone; they are reached through it or through blocks that its owner holds under the
// same lock, so it may move to another thread with them.
unsafe impl Send for Slab {}

/// Returns the size of the block that [`Slab::alloc`] returns for this many bytes.
#[inline]
pub fn rounded(bytes: usize) -> usize {
    if bytes > SMALL_MAX { heap_bytes(bytes) } else { bytes.next_multiple_of(CLASS_BYTES) }
}

impl Default for Slab {
    #[inline]
    fn default() -> Slab {
        Slab::new()
    }
}

impl Slab {
    /// Returns a slab without pages.
    #[inline]
    pub const fn new() -> Slab {
        let class = Class { lists: [ptr::null_mut(); KINDS], pages: 0, free: 0 };
        Slab { bytes: 0, loose_bytes: 0, classes: [class; CLASSES] }
    }

    /// Returns the bytes of the blocks in use.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of free blocks in its pages.
    #[inline]
    pub fn loose_bytes(&self) -> usize {
        self.loose_bytes
    }

    /// Returns the bytes of its pages, in use or not.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.pages as usize * PAGE_BYTES).sum()
    }

    /// Returns a block of at least `bytes` bytes, aligned to 8. `bytes` is not 0.
    #[inline]
    pub fn alloc(&mut self, bytes: usize) -> NonNull<u8> {
        if bytes > SMALL_MAX {
            let layout = large(bytes);
            // SAFETY: the layout is not of size 0.
            let block = unsafe { alloc(layout) };
            self.bytes += heap_bytes(bytes);
            return NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout));
        }
        self.alloc_of((bytes - 1) / CLASS_BYTES)
    }

    #[inline]
    fn alloc_of(&mut self, class: usize) -> NonNull<u8> {
        self.bytes += block_bytes(class);
        let [emptiest, emptier, fullest] = self.classes[class].lists;
        let head = match (fullest.is_null(), emptier.is_null(), emptiest.is_null()) {
            (false, ..) => fullest,
            (true, false, _) => emptier,
            (true, true, false) => emptiest,
            (true, true, true) => self.add_page(class),
        };
        self.loose_bytes -= block_bytes(class);
        self.classes[class].free -= 1;
        // SAFETY: pages in the lists are live and owned by this slab; a page in a list has room, so either its free
        // list or its fresh part yields a block inside the page.
        unsafe {
            let page = &mut *head;
            let offset = if page.free != 0 {
                let offset = page.free;
                page.free = head.cast::<u8>().add(offset as usize).cast::<u16>().read();
                offset
            } else {
                let offset = page.fresh;
                page.fresh += block_bytes(class) as u16;
                offset
            };
            let before = page.kind();
            page.used += 1;
            self.moved(head, before);
            NonNull::new_unchecked(head.cast::<u8>().add(offset as usize))
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from [`alloc`](Self::alloc) of this slab with a size of the same class as `bytes` and is not used
    /// afterwards.
    pub unsafe fn free(&mut self, block: NonNull<u8>, bytes: usize) {
        if bytes > SMALL_MAX {
            let layout = large(bytes);
            self.bytes -= heap_bytes(bytes);
            // SAFETY: the caller promises that the block was allocated with this size, hence this layout.
            return unsafe { dealloc(block.as_ptr(), layout) };
        }
        let head = page_of(block);
        // SAFETY: the block's page lives while one of its blocks does.
        unsafe {
            let before = (*head).kind();
            self.put(head, block);
            if (*head).used > 0 {
                return self.moved(head, before);
            }
            if before < KINDS {
                self.unlink(head, before);
            }
            if self.classes[usize::from((*head).class)].lists.iter().all(|list| list.is_null()) {
                self.link(head);
            } else {
                self.give(head);
            }
        }
    }

    /// Puts a block into its page's free list.
    ///
    /// # Safety
    /// `head` is the block's page, and the block is not used afterwards.
    #[inline]
    unsafe fn put(&mut self, head: *mut Page, block: NonNull<u8>) {
        // SAFETY: the block is at least 8 bytes and unused from here on; its page is live.
        unsafe {
            block.cast::<u16>().write((*head).free);
            (*head).free = (block.as_ptr().addr() - head.addr()) as u16;
            (*head).used -= 1;
            let class = usize::from((*head).class);
            self.bytes -= block_bytes(class);
            self.loose_bytes += block_bytes(class);
            self.classes[class].free += 1;
        }
    }

    /// Moves the blocks of one sparse page to others and frees the page. `may_move` decides whether a block may be
    /// moved; `moves` receives the new place of a block's contents, and updates its owner; if it returns false, the
    /// block stays.
    ///
    /// Costs a few cache misses per block, for at most some 200 blocks.
    pub fn empty_one(
        &mut self,
        may_move: impl Fn(NonNull<u8>) -> bool,
        mut moves: impl FnMut(NonNull<u8>, NonNull<u8>) -> bool,
    ) -> Emptied {
        let mut result = Emptied::Nothing;
        for class in 0..CLASSES {
            if !self.classes[class].is_loose(class) {
                continue;
            }
            let Some((head, blocks)) = self.victim(class, &may_move) else {
                result = Emptied::Held;
                continue;
            };
            // SAFETY: the page is in its list; out of it, none of its blocks is handed out. The blocks are in use,
            // hence of this class's size, and no two of them overlap.
            unsafe {
                self.unlink(head, (*head).kind());
                for block in blocks {
                    let new = self.alloc_of(class);
                    new.copy_from_nonoverlapping(block, block_bytes(class));
                    if moves(block, new) {
                        self.put(head, block);
                    } else {
                        self.free(new, block_bytes(class));
                    }
                }
                if (*head).used > 0 {
                    self.link(head);
                    return Emptied::Held;
                }
                self.give(head);
            }
            return Emptied::Page;
        }
        result
    }

    /// Returns the page of a class that is best emptied, with its blocks in use.
    fn victim(
        &self,
        class: usize,
        may_move: impl Fn(NonNull<u8>) -> bool,
    ) -> Option<(*mut Page, SmallVec<[NonNull<u8>; 64]>)> {
        let Class { lists: [emptiest, emptier, _], .. } = self.classes[class];
        for list in [emptiest, emptier] {
            let mut page = list;
            for _ in 0..LOOKS {
                if page.is_null() {
                    break;
                }
                // SAFETY: pages in the lists are live.
                let (blocks, next) = unsafe { (used_blocks(page), (*page).next) };
                if blocks.iter().all(|block| may_move(*block)) {
                    return Some((page, blocks));
                }
                page = next;
            }
        }
        None
    }

    fn add_page(&mut self, class: usize) -> *mut Page {
        let page = pages::take().cast::<Page>();
        let Class { pages, free, .. } = &mut self.classes[class];
        *pages += 1;
        *free += capacity(class) as u32;
        self.loose_bytes += capacity(class) * block_bytes(class);
        let (next, prev) = (ptr::null_mut(), ptr::null_mut());
        let head = Page { next, prev, free: 0, fresh: HEAD as u16, used: 0, class: class as u16 };
        // SAFETY: the pool hands out whole, aligned pages owned by the caller.
        unsafe {
            page.write(head);
            self.link(page);
        }
        page
    }

    /// Puts a page back into the pool.
    ///
    /// # Safety
    /// `page` is a page of this slab that is in no list and of which no block is used.
    #[inline]
    unsafe fn give(&mut self, page: *mut Page) {
        // SAFETY: the caller vouches for `page`.
        unsafe {
            let class = usize::from((*page).class);
            let Class { pages, free, .. } = &mut self.classes[class];
            *pages -= 1;
            *free -= capacity(class) as u32;
            self.loose_bytes -= capacity(class) * block_bytes(class);
            pages::give([page.cast()]);
        }
    }

    /// Moves a page whose use has changed into the list where it belongs; `before` is its present list.
    ///
    /// # Safety
    /// `page` is a live page of this slab and in that list.
    #[inline]
    unsafe fn moved(&mut self, page: *mut Page, before: usize) {
        // SAFETY: the caller vouches for `page`.
        unsafe {
            let now = (*page).kind();
            if now == before {
                return;
            }
            if before < KINDS {
                self.unlink(page, before);
            }
            if now < KINDS {
                self.link(page);
            }
        }
    }

    /// # Safety
    /// `page` is a live page of this slab that has room and is in no list.
    #[inline]
    unsafe fn link(&mut self, page: *mut Page) {
        // SAFETY: the caller vouches for `page`; the list's pages are this slab's and live.
        unsafe {
            let first = &mut self.classes[usize::from((*page).class)].lists[(*page).kind()];
            (*page).prev = ptr::null_mut();
            (*page).next = *first;
            if !first.is_null() {
                (**first).prev = page;
            }
            *first = page;
        }
    }

    /// # Safety
    /// `page` is a live page of this slab and in that list of its class.
    unsafe fn unlink(&mut self, page: *mut Page, kind: usize) {
        // SAFETY: the caller vouches for `page`; its neighbours are in the same list and live.
        unsafe {
            let (next, prev) = ((*page).next, (*page).prev);
            match prev.is_null() {
                true => self.classes[usize::from((*page).class)].lists[kind] = next,
                false => (*prev).next = next,
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for first in self.classes.iter().flat_map(|class| class.lists) {
            let mut page = first;
            while !page.is_null() {
                // SAFETY: pages in the lists are live; each is given back once, and not read after.
                unsafe {
                    let next = (*page).next;
                    debug_assert!((*page).used == 0 || std::thread::panicking(), "blocks in use");
                    if (*page).used == 0 {
                        pages::give([page.cast()]);
                    }
                    page = next;
                }
            }
        }
    }
}

/// Returns the page to which a small block belongs: pages are aligned to their size.
#[inline]
fn page_of(block: NonNull<u8>) -> *mut Page {
    block.as_ptr().map_addr(|addr| addr & !(PAGE_BYTES - 1)).cast()
}

/// Returns the blocks of a page that are in use: those that were handed out, without those in the free list.
///
/// # Safety
/// `head` is a live page of a slab that does not change meanwhile.
unsafe fn used_blocks(head: *mut Page) -> SmallVec<[NonNull<u8>; 64]> {
    let mut blocks = SmallVec::new();
    // SAFETY: the free list links free blocks of the page; offsets below `fresh` lie inside it.
    unsafe {
        let bytes = block_bytes(usize::from((*head).class));
        let index = |offset: u16| (usize::from(offset) - HEAD) / bytes;
        let mut is_free = [0_u64; PAGE_BYTES / CLASS_BYTES / 64];
        let mut free = (*head).free;
        while free != 0 {
            is_free[index(free) / 64] |= 1 << (index(free) % 64);
            free = head.cast::<u8>().add(usize::from(free)).cast::<u16>().read();
        }
        for block in (0..index((*head).fresh)).filter(|block| is_free[block / 64] >> (block % 64) & 1 == 0) {
            blocks.push(NonNull::new_unchecked(head.cast::<u8>().add(HEAD + block * bytes)));
        }
        debug_assert_eq!(blocks.len(), usize::from((*head).used));
    }
    blocks
}

#[inline]
fn large(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, CLASS_BYTES).expect("entries are far below isize::MAX")
}

/// Returns the bytes that the program's allocator takes for a block: classes of 8 bytes up to 64, then four between
/// each power of two and the next.
#[inline]
pub fn heap_bytes(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=64 => bytes.next_multiple_of(8),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_as_the_allocator_does() {
        let check = |bytes: usize, expected: usize| assert_eq!(heap_bytes(bytes), expected, "{bytes}");
        check(0, 0);
        check(1, 8);
        check(64, 64);
        check(65, 80);
        check(112, 112);
        check(113, 128);
        check(1024, 1024);
        check(1025, 1280);
        check(4097, 5120);
    }

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
        assert_eq!(
            slab.loose_bytes(),
            slab.classes.iter().zip(0..).map(|(of, class)| { of.free as usize * block_bytes(class) }).sum()
        );
    }

    #[test]
    fn sparse_pages_are_emptied_and_the_others_left() {
        let mut slab = Slab::new();
        let mut blocks: Vec<NonNull<u8>> = (0..3_600).map(|_| slab.alloc(56)).collect();
        // SAFETY: a block has 56 bytes.
        blocks.iter().enumerate().for_each(|(n, block)| unsafe { block.cast::<usize>().write(n) });
        assert_eq!((slab.page_bytes(), slab.loose_bytes()), (100 * PAGE_BYTES, 0));
        assert_eq!(slab.empty_one(|_| true, |_, _| true), Emptied::Nothing);
        // SAFETY: each block is freed once.
        let free = |slab: &mut Slab, block| unsafe { slab.free(block, 56) };
        let mut at = 0;
        blocks.retain(|block| {
            at += 1;
            if at % 10 != 0 {
                free(&mut slab, *block);
            }
            at % 10 == 0
        });
        assert_eq!(slab.page_bytes(), 100 * PAGE_BYTES);
        let mut moved = 0;
        loop {
            let moves = |old: NonNull<u8>, new: NonNull<u8>| {
                let place = blocks.iter_mut().find(|block| **block == old).expect("a block in use");
                *place = new;
                moved += 1;
                true
            };
            match slab.empty_one(|_| true, moves) {
                Emptied::Page => {}
                Emptied::Nothing => break,
                Emptied::Held => panic!("nothing is held"),
            }
        }
        assert_eq!(slab.page_bytes(), 11 * PAGE_BYTES, "360 blocks, 36 a page, of which less than an eighth is free");
        assert!(moved <= 450, "{moved} moves for 360 blocks");
        for (n, block) in blocks.iter().enumerate() {
            // SAFETY: the block is in use, and its contents moved with it.
            assert_eq!(unsafe { block.cast::<usize>().read() }, n * 10 + 9);
        }
        blocks.into_iter().for_each(|block| free(&mut slab, block));
        assert_eq!((slab.bytes(), slab.empty_one(|_| true, |_, _| true)), (0, Emptied::Page));
        assert_eq!((slab.page_bytes(), slab.loose_bytes()), (0, 0));
    }

    #[test]
    fn blocks_whose_owner_is_not_found_stay() {
        let mut slab = Slab::new();
        let blocks: Vec<NonNull<u8>> = (0..1_000).map(|_| slab.alloc(16)).collect();
        let (gone, kept): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(n, _)| n % 10 > 0);
        // SAFETY: each block is freed once.
        gone.into_iter().for_each(|(_, block)| unsafe { slab.free(block, 16) });
        let bytes = slab.bytes();
        assert_eq!(slab.empty_one(|_| false, |_, _| true), Emptied::Held);
        assert_eq!(slab.empty_one(|_| true, |_, _| false), Emptied::Held);
        assert_eq!((slab.bytes(), slab.page_bytes()), (bytes, 8 * PAGE_BYTES));
        // SAFETY: as above.
        kept.into_iter().for_each(|(_, block)| unsafe { slab.free(block, 16) });
        assert_eq!(slab.bytes(), 0);
    }
}
