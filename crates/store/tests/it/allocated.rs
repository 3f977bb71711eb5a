//! The peak memory of a piece of work, and the bytes that it frees: the tests' allocator counts by thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static FREED: Cell<usize> = const { Cell::new(0) };
}

fn note(change: isize) {
    // A thread that ends frees memory after its counters are gone.
    let _ = BYTES.try_with(|bytes| {
        bytes.set(bytes.get() + change);
        FREED.with(|freed| freed.set(freed.get() + usize::try_from(-change).unwrap_or(0)));
        PEAK.with(|peak| peak.set(peak.get().max(bytes.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Returns the result of `work`, and the peak of bytes that this thread allocated for it.
pub fn peak_of<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = BYTES.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before).max(0) as usize)
}

/// Returns the result of `work`, and the bytes that this thread freed in it.
pub fn freed_by<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = FREED.get();
    let result = work();
    (result, FREED.get() - before)
}
