//! Pages of memory for the slabs of all stripes, and the release of freed pages.
//!
//! One pool for the process maps regions of 2 MiB aligned to their size and hands them out in pages of 2 KiB. A
//! region's header has a bit for each free page, so a free page is never touched and may be returned to the system
//! while the pool keeps its address.
//!
//! Memory that a burst of keys has used is returned in two ways, both by [`settle`], which is called periodically:
//! regions without a used page are unmapped; and in other regions, half of the surplus pages that stayed free for the
//! last second are returned each second. A region with such holes has no huge page until it is full again, because the
//! kernel would otherwise fill the holes.
//!
//! A growing store needs a region every two megabytes, and the kernel clears a huge page when it is first touched,
//! which takes from a hundred microseconds to, in a virtual machine that has to get the memory first, some
//! milliseconds. So each call of [`settle`] prepares as many regions as were needed since the previous one; a store
//! that does not grow has none prepared. A region that is needed but was not prepared begins with small pages, which
//! are cleared one by one, and gets its huge page when it is full.
//!
//! In the lock order, the pool's lock comes after the stripes' locks, like that of any allocator. It is held for some
//! nanoseconds; the only system calls under it map regions that were not prepared.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr;

use parking_lot::Mutex;

/// Bytes of a page, which is aligned to them.
pub const PAGE_BYTES: usize = 2048;
const REGION_BYTES: usize = 2 << 20;
/// Pages of a region, of which the first holds its head.
const REGION_PAGES: usize = REGION_BYTES / PAGE_BYTES;
const WORDS: usize = REGION_PAGES / 64;
/// Free pages that are always kept: 4 MiB.
const KEPT_PAGES: usize = (4 << 20) / PAGE_BYTES;
/// One more free page is kept for each of this many used pages.
const KEPT_SHARE: usize = 32;
/// A region with fewer free pages than this keeps them, and its huge page.
const HOLES_MIN: usize = REGION_PAGES / 16;
/// Regions without a used page that are kept, so that a demand that varies around the end of a region does not map and
/// unmap in turn.
const EMPTY_KEPT: usize = 1;
/// The maximum number of regions that are prepared.
const READY_MAX: usize = 32;
/// The number of calls of [`settle`] between two decisions on how many free pages to return.
const CALLS_PER_LOOK: u32 = 10;
/// The maximum number of regions that one call unmaps, and also of those whose free pages it returns.
const REGIONS_PER_CALL: usize = 32;
/// The maximum number of regions examined to find one with holes.
const LOOKS_MAX: usize = 64;

/// Returns a page owned by the caller, with arbitrary contents.
pub fn take() -> *mut u8 {
    POOL.lock().take()
}

/// Puts pages back into the pool.
///
/// # Safety
/// They came from [`take`] and are not used afterwards.
pub unsafe fn give(pages: impl IntoIterator<Item = *mut u8>) {
    let mut pool = POOL.lock();
    // SAFETY: the caller vouches for the pages.
    pages.into_iter().for_each(|page| unsafe { pool.give(page) });
}

/// Gives the memory that stays free back to the system. Must be called ten times a second.
pub fn settle() {
    // One thread at a time: no other code unmaps regions.
    static SETTLING: Mutex<()> = Mutex::new(());
    let Some(_alone) = SETTLING.try_lock() else { return };
    let (whole, surplus, missing) = {
        let mut pool = POOL.lock();
        pool.look();
        (std::mem::take(&mut pool.whole), pool.take_surplus(), pool.wanted.saturating_sub(pool.empty_len))
    };
    for _ in 0..missing {
        // Without memory no region can be prepared; the next user of a page reports it.
        let Some(region) = map_region(true) else { break };
        // SAFETY: the region is new and not shared yet; the written part is after its header.
        unsafe {
            let start = region.cast::<u8>();
            (PAGE_BYTES..REGION_BYTES).step_by(PAGE_BYTES).for_each(|at| start.add(at).write(0));
            POOL.lock().add_ready(region);
        }
    }
    for region in whole {
        // SAFETY: only this function unmaps regions, and not before this.
        unsafe {
            libc::madvise(region.cast(), REGION_BYTES, libc::MADV_HUGEPAGE);
            // Effective immediately from Linux 6.1 on; on older kernels a kernel thread does it within minutes.
            libc::madvise(region.cast(), REGION_BYTES, libc::MADV_COLLAPSE);
        }
    }
    for region in surplus {
        // SAFETY: it has no used page and has just been taken out of the pool.
        unsafe { libc::munmap(region.cast(), REGION_BYTES) };
    }
    for _ in 0..REGIONS_PER_CALL {
        let Some(holes) = POOL.lock().take_holed() else { break };
        // SAFETY: the region is in no list, so none of its free pages is handed out until it is put back.
        unsafe {
            let freed = holes.free();
            POOL.lock().put_back(holes.region, &freed);
        }
    }
}

/// While one exists, regions that were not prepared have their huge page from the beginning: for a thread that fills
/// memory as fast as it can, where others do not wait for it.
#[derive(Debug)]
pub struct Filling(());

impl Filling {
    /// Begins to fill memory.
    #[allow(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Filling {
        POOL.lock().filling += 1;
        Filling(())
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        POOL.lock().filling -= 1;
    }
}

/// The pages of the process.
static POOL: Mutex<Pool> = Mutex::new(Pool::new());

struct Pool {
    /// Rings of regions with free pages, a ring per kind; pages are taken from the front of the first ring that is not
    /// empty.
    rings: [*mut Region; RINGS],
    /// Regions without a used page.
    empty_len: usize,
    /// Pages in use.
    used: usize,
    /// Free pages that still occupy memory.
    resident: usize,
    /// The minimum of `resident` since the last decision on `quota`.
    resident_low: usize,
    /// The number of resident free pages still to be returned.
    quota: usize,
    calls: u32,
    /// Regions that had holes and are full again.
    whole: Vec<*mut Region>,
    /// The number of unused regions from which a first page was taken since the last call of [`settle`].
    begun: usize,
    /// The number of regions to prepare: those that were begun between the last two calls.
    wanted: usize,
    /// The number of [`Filling`]s.
    filling: usize,
}

// SAFETY: the pool's regions are reached through its lock only.
unsafe impl Send for Pool {}

/// The list that contains a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Some of its pages are used, and some of the free ones are resident.
    Resident = 0,
    /// Some of its pages are used, and the free ones were given back or never touched.
    Absent = 1,
    /// None of its pages is used.
    Empty = 2,
    /// The region is full, or [`settle`] has taken it out of the lists.
    Nowhere = 3,
}

const RINGS: usize = 3;

/// The head of a region, in its first page.
#[repr(C)]
struct Region {
    next: *mut Region,
    prev: *mut Region,
    place: Place,
    /// Whether [`settle`] has taken it out of the lists.
    is_out: bool,
    /// Whether it has no huge page until it is full.
    has_holes: bool,
    free_len: u32,
    absent_len: u32,
    /// Free pages.
    free: [u64; WORDS],
    /// Free pages known to occupy no memory.
    absent: [u64; WORDS],
}

const _: () = assert!(size_of::<Region>() <= PAGE_BYTES);

impl Region {
    fn resident(&self) -> usize {
        (self.free_len - self.absent_len) as usize
    }

    fn is_empty(&self) -> bool {
        self.free_len as usize == REGION_PAGES - 1
    }

    fn wanted(&self) -> Place {
        match self.resident() {
            _ if self.is_out || self.free_len == 0 => Place::Nowhere,
            _ if self.is_empty() => Place::Empty,
            0 => Place::Absent,
            _ => Place::Resident,
        }
    }
}

impl Pool {
    const fn new() -> Pool {
        Pool {
            rings: [ptr::null_mut(); RINGS],
            empty_len: 0,
            used: 0,
            resident: 0,
            resident_low: 0,
            quota: 0,
            calls: 0,
            whole: Vec::new(),
            begun: 0,
            wanted: 0,
            filling: 0,
        }
    }

    fn take(&mut self) -> *mut u8 {
        let region = self.rings.into_iter().find(|region| !region.is_null()).or_else(|| map_region(self.filling > 0));
        let region = region.unwrap_or_else(|| handle_alloc_error(Layout::new::<[u8; REGION_BYTES]>()));
        // SAFETY: regions in the rings are live, as is a new one, and have a free page.
        unsafe {
            let head = &mut *region;
            self.begun += usize::from(head.is_empty());
            let is_resident = head.resident() > 0;
            let mut candidates = head.free.iter().zip(&head.absent).enumerate().map(|(word, (free, absent))| {
                let bits = if is_resident { free & !absent } else { *absent };
                (word, bits)
            });
            let (word, bits) = candidates.find(|(_, bits)| *bits != 0).expect("the counts agree with the bits");
            let bit = bits & bits.wrapping_neg();
            head.free[word] &= !bit;
            head.free_len -= 1;
            if is_resident {
                self.resident -= 1;
                self.resident_low = self.resident_low.min(self.resident);
            } else {
                head.absent[word] &= !bit;
                head.absent_len -= 1;
            }
            self.used += 1;
            if head.free_len == 0 && head.has_holes {
                head.has_holes = false;
                self.whole.push(region);
            }
            self.sort(region);
            region.cast::<u8>().add((word * 64 + bit.trailing_zeros() as usize) * PAGE_BYTES)
        }
    }

    /// # Safety
    /// `page` came from [`take`](Self::take) and is not used afterwards.
    unsafe fn give(&mut self, page: *mut u8) {
        let region = page.map_addr(|addr| addr & !(REGION_BYTES - 1)).cast::<Region>();
        let index = (page.addr() - region.addr()) / PAGE_BYTES;
        let (word, bit) = (index / 64, 1_u64 << (index % 64));
        // SAFETY: regions are aligned to their size, so the mask finds the head of the page's region, which lives while
        // one of its pages is in use.
        unsafe {
            let head = &mut *region;
            debug_assert_eq!(head.free[word] & bit, 0, "a page comes back twice");
            head.free[word] |= bit;
            head.free_len += 1;
            self.resident += 1;
            self.used -= 1;
            self.sort(region);
        }
    }

    /// Takes a region whose pages have been touched.
    ///
    /// # Safety
    /// `region` is new, and in no ring.
    unsafe fn add_ready(&mut self, region: *mut Region) {
        // SAFETY: the caller vouches for the region.
        unsafe {
            (*region).absent = [0; WORDS];
            (*region).absent_len = 0;
            self.resident += (*region).resident();
            self.sort(region);
        }
    }

    /// Determines how many regions to prepare and, every [`CALLS_PER_LOOK`] calls, how many pages to return to the
    /// system.
    fn look(&mut self) {
        self.wanted = std::mem::take(&mut self.begun).min(READY_MAX);
        self.calls += 1;
        if self.calls >= CALLS_PER_LOOK {
            self.calls = 0;
            self.quota = self.resident_low.saturating_sub(KEPT_PAGES + self.used / KEPT_SHARE).div_ceil(2);
            self.resident_low = self.resident;
        }
    }

    /// Takes out unneeded regions.
    fn take_surplus(&mut self) -> Vec<*mut Region> {
        let mut surplus = Vec::new();
        while self.empty_len > EMPTY_KEPT.max(self.wanted) && surplus.len() < REGIONS_PER_CALL {
            let region = self.rings[Place::Empty as usize];
            // SAFETY: the ring has that many regions, which are live.
            unsafe {
                self.unlink(region);
                self.resident -= (*region).resident();
            }
            surplus.push(region);
        }
        self.resident_low = self.resident_low.min(self.resident);
        surplus
    }

    /// Takes out a region with enough resident free pages to be worth returning: the one from which pages were taken
    /// least recently.
    fn take_holed(&mut self) -> Option<Holes> {
        if self.quota == 0 {
            return None;
        }
        let ring = Place::Resident as usize;
        for _ in 0..LOOKS_MAX {
            let front = self.rings[ring];
            if front.is_null() {
                break;
            }
            // SAFETY: the ring's regions are live.
            unsafe {
                let region = (*front).prev;
                let head = &mut *region;
                if head.resident() >= HOLES_MIN {
                    let had_holes = std::mem::replace(&mut head.has_holes, true);
                    head.is_out = true;
                    let holes = Holes { region, had_holes, free: head.free, absent: head.absent };
                    self.sort(region);
                    return Some(holes);
                }
                // Those with few free pages come to the front, where they are filled up.
                self.rings[ring] = region;
            }
        }
        self.quota = 0;
        None
    }

    /// # Safety
    /// `region` was taken out by [`take_holed`](Self::take_holed); `freed` are free pages of it.
    unsafe fn put_back(&mut self, region: *mut Region, freed: &[u64; WORDS]) {
        // SAFETY: the caller vouches for the region.
        unsafe {
            let head = &mut *region;
            let before = head.resident();
            head.absent.iter_mut().zip(freed).for_each(|(absent, freed)| *absent |= freed);
            head.absent_len = head.absent.iter().map(|word| word.count_ones()).sum();
            let freed = before - head.resident();
            self.resident -= freed;
            self.resident_low = self.resident_low.min(self.resident);
            // If no free pages of the region form a whole page of the system, nothing was returned; the attempt counts
            // all the same.
            self.quota = self.quota.saturating_sub(freed.max(1));
            head.is_out = false;
            self.sort(region);
        }
    }

    /// Moves a region into the list where it belongs.
    ///
    /// # Safety
    /// `region` is live and in the list that it records.
    unsafe fn sort(&mut self, region: *mut Region) {
        // SAFETY: the caller vouches for the region.
        unsafe {
            let wanted = (*region).wanted();
            if wanted != (*region).place {
                self.unlink(region);
                self.link(region, wanted);
            }
        }
    }

    /// # Safety
    /// `region` is live and in no ring.
    unsafe fn link(&mut self, region: *mut Region, place: Place) {
        // SAFETY: the caller vouches for `region`, the rings' regions are live.
        unsafe {
            (*region).place = place;
            let Some(front) = self.rings.get_mut(place as usize) else { return };
            if front.is_null() {
                (*region).next = region;
                (*region).prev = region;
            } else {
                let last = (**front).prev;
                (*region).next = *front;
                (*region).prev = last;
                (*last).next = region;
                (**front).prev = region;
            }
            *front = region;
        }
        self.empty_len += usize::from(place == Place::Empty);
    }

    /// # Safety
    /// `region` is live and in the list that it records.
    unsafe fn unlink(&mut self, region: *mut Region) {
        // SAFETY: the caller vouches for `region`, its neighbours are live.
        unsafe {
            let place = std::mem::replace(&mut (*region).place, Place::Nowhere);
            let Some(front) = self.rings.get_mut(place as usize) else { return };
            let (next, prev) = ((*region).next, (*region).prev);
            (*prev).next = next;
            (*next).prev = prev;
            if *front == region {
                *front = if next == region { ptr::null_mut() } else { next };
            }
            self.empty_len -= usize::from(place == Place::Empty);
        }
    }
}

/// A region taken out of the pool, with its state at that time.
struct Holes {
    region: *mut Region,
    had_holes: bool,
    free: [u64; WORDS],
    absent: [u64; WORDS],
}

impl Holes {
    /// Returns free memory to the system, in whole pages of the system. Returns the pages concerned.
    ///
    /// # Safety
    /// The region's free pages are unused.
    unsafe fn free(&self) -> [u64; WORDS] {
        let mut freed = [0; WORDS];
        // SAFETY: it only queries a value of the system.
        let unit = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(REGION_BYTES);
        let unit = unit.max(PAGE_BYTES) / PAGE_BYTES;
        if !self.had_holes {
            // SAFETY: it changes how the kernel backs the region, not its contents.
            unsafe { libc::madvise(self.region.cast(), REGION_BYTES, libc::MADV_NOHUGEPAGE) };
        }
        let is = |bits: &[u64; WORDS], page: usize| bits[page / 64] >> (page % 64) & 1 == 1;
        let goes = |start: usize| {
            (start..start + unit).all(|page| is(&self.free, page))
                && (start..start + unit).any(|page| !is(&self.absent, page))
        };
        let mut start = 0;
        while start + unit <= REGION_PAGES {
            let mut end = start;
            while end + unit <= REGION_PAGES && goes(end) {
                end += unit;
            }
            if end > start {
                // SAFETY: these pages are free, as the caller promises, and are whole pages of the system, because the
                // region is aligned and so are `start` and `end`.
                let given = unsafe {
                    let at = self.region.cast::<u8>().add(start * PAGE_BYTES);
                    libc::madvise(at.cast(), (end - start) * PAGE_BYTES, libc::MADV_DONTNEED)
                };
                if given == 0 {
                    (start..end).for_each(|page| freed[page / 64] |= 1 << (page % 64));
                }
            }
            start = end + unit;
        }
        freed
    }
}

/// Maps a region aligned to its size: twice the size is mapped, and the parts outside the aligned region are unmapped.
/// With `huge` it is one huge page from the start. Returns [`None`] if the system has no memory.
fn map_region(huge: bool) -> Option<*mut Region> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping without a requested address touches no existing memory; the unmapped parts lie
    // inside the mapping just made, and the region's header inside the kept part.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), 2 * REGION_BYTES, protection, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.cast::<u8>();
        let skip = start.addr().next_multiple_of(REGION_BYTES) - start.addr();
        if skip > 0 {
            libc::munmap(start.cast(), skip);
        }
        libc::munmap(start.add(skip + REGION_BYTES).cast(), REGION_BYTES - skip);
        let region = start.add(skip).cast::<Region>();
        if huge {
            // A lookup then has one TLB miss less. The pool fills a region before it takes another, so this costs at
            // most a region; if the kernel refuses, nothing is lost.
            libc::madvise(region.cast(), REGION_BYTES, libc::MADV_HUGEPAGE);
        }
        let mut all = [u64::MAX; WORDS];
        all[0] -= 1;
        let len = REGION_PAGES as u32 - 1;
        region.write(Region {
            next: ptr::null_mut(),
            prev: ptr::null_mut(),
            place: Place::Nowhere,
            is_out: false,
            has_holes: !huge,
            free_len: len,
            absent_len: len,
            free: all,
            absent: all,
        });
        Some(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the address range that are resident, of the system's size.
    fn resident(start: *mut u8, bytes: usize) -> usize {
        let mut pages = vec![0_u8; bytes / 4096];
        // SAFETY: the vector has a byte for each page of at least 4 KiB.
        let asked = unsafe { libc::mincore(start.cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(asked, 0, "the region is mapped");
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    /// `settle` works on the pool of the process, so the test performs its steps on a pool of its own.
    #[test]
    fn holes_go_back_to_the_system_and_are_filled_again() {
        let mut pool = Pool::new();
        let count = 3 * (REGION_PAGES - 1);
        let mut pages: Vec<*mut u8> = (0..count).map(|_| pool.take()).collect();
        // SAFETY: a page has so many bytes.
        pages.iter().for_each(|page| unsafe { page.write_bytes(7, PAGE_BYTES) });
        let region = pages[0].map_addr(|addr| addr & !(REGION_BYTES - 1));
        assert_eq!((pool.used, pool.resident, pool.empty_len), (count, 0, 0));
        assert!(pool.rings.iter().all(|ring| ring.is_null()));
        assert_eq!(std::mem::take(&mut pool.whole).len(), 3, "full regions want a huge page");
        let sorted = {
            let mut sorted = pages.clone();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.len()
        };
        assert_eq!(sorted, count, "a page was handed out twice");
        // All but every eighth page of the first two regions.
        let (kept, gone): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|at| at % 8 == 0 || *at >= 2 * (REGION_PAGES - 1));
        // SAFETY: each page is given back once.
        gone.iter().for_each(|at| unsafe { pool.give(pages[*at]) });
        assert_eq!((pool.used, pool.resident), (kept.len(), gone.len()));
        pool.quota = usize::MAX;
        let mut freed = 0;
        for _ in 0..2 {
            let holes = pool.take_holed().expect("a region with holes");
            // SAFETY: the region is out of the pool, and nobody uses its free pages.
            unsafe {
                let bits = holes.free();
                freed += bits.iter().map(|word| word.count_ones() as usize).sum::<usize>();
                pool.put_back(holes.region, &bits);
            }
        }
        assert!(freed * 4 >= gone.len() * 3, "{freed} of {} pages went", gone.len());
        assert!(resident(region, REGION_BYTES) < REGION_BYTES / 4096 / 2);
        for at in &kept {
            // SAFETY: the page is in use.
            assert_eq!(unsafe { pages[*at].read() }, 7, "a page in use was given back");
        }
        // Free pages come back before new regions are mapped.
        for at in &gone {
            pages[*at] = pool.take();
            // SAFETY: it is a page of its own.
            unsafe { pages[*at].write_bytes(9, PAGE_BYTES) };
        }
        assert_eq!((pool.used, pool.resident), (count, 0));
        assert_eq!(pool.whole.len(), 2, "both want their huge page back");
        // SAFETY: each page is given back once.
        pages.drain(..).for_each(|page| unsafe { pool.give(page) });
        assert_eq!((pool.used, pool.empty_len), (0, 3));
        // As many regions as were begun recently may be needed again.
        pool.look();
        assert_eq!((pool.wanted, pool.take_surplus().len()), (3, 0));
        pool.look();
        assert_eq!(pool.wanted, 0);
        let surplus = pool.take_surplus();
        assert_eq!((surplus.len(), pool.empty_len), (2, 1));
        for region in surplus.into_iter().chain([pool.rings[Place::Empty as usize]]) {
            // SAFETY: it has no used page, and this pool is not used again.
            unsafe { libc::munmap(region.cast(), REGION_BYTES) };
        }
    }

    #[test]
    fn pages_come_from_regions_that_were_made_ready() {
        let mut pool = Pool::new();
        let region = map_region(true).expect("the test has memory");
        // SAFETY: it is new.
        unsafe { pool.add_ready(region) };
        assert_eq!((pool.empty_len, pool.resident), (1, REGION_PAGES - 1));
        let page = pool.take();
        assert_eq!(page.map_addr(|addr| addr & !(REGION_BYTES - 1)), region.cast());
        assert_eq!((pool.empty_len, pool.resident, pool.used, pool.begun), (0, REGION_PAGES - 2, 1, 1));
        // SAFETY: the page is given once; afterwards the region has no used page, and this pool is not used again.
        unsafe {
            pool.give(page);
            libc::munmap(region.cast(), REGION_BYTES);
        }
    }
}
