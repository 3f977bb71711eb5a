//! The allocator of a state: the process's own allocator behind a shared limit.
//!
//! `tune.lua.maxmem` bounds all states together, so the account is one atomic that the states share. Without a limit
//! nothing is counted: the atomic would be the only cache line that workers with states of their own fight over.
//!
//! A client's script that allocates a large block [leaves](allocate_and_leave) a thread that others wait for.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::standard::STRING_MAX;
use crate::{budget, ffi};

/// A block of this size takes a tenth of a millisecond to fill, and the next operation on it may take as long again.
const LARGE: usize = 256 << 10;

/// Lua's alignment: what C's malloc gives on 64-bit machines.
const ALIGN: usize = 8;

/// A limit on the memory of one or more states, in bytes.
#[derive(Debug, Default)]
pub struct MemoryLimit {
    limit: usize,
    used: AtomicUsize,
}

impl MemoryLimit {
    /// Returns a limit in bytes; 0 means unlimited.
    pub fn new(limit: usize) -> MemoryLimit {
        MemoryLimit { limit, used: AtomicUsize::new(0) }
    }

    /// Returns the bytes in use by the states that share this limit; 0 without a limit, because then nothing is
    /// counted.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether memory is counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.limit != 0
    }

    /// Returns whether this many more bytes are within the limit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.limit == 0 || self.used().saturating_add(bytes) <= self.limit
    }

    /// As [`account`](Self::account), for a limit used by one state only: no other thread writes the sum.
    fn account_alone(&self, old: usize, new: usize) -> bool {
        let used = self.used().wrapping_sub(old).wrapping_add(new);
        if self.limit == 0 || (new > old && used > self.limit) {
            return self.limit == 0;
        }
        self.used.store(used, Ordering::Relaxed);
        true
    }

    /// Accounts for a block that grows or shrinks; `false` if the limit forbids it.
    fn account(&self, old: usize, new: usize) -> bool {
        if self.limit == 0 {
            return true;
        }
        if new <= old {
            self.used.fetch_sub(old - new, Ordering::Relaxed);
            return true;
        }
        let grown = self.used.fetch_add(new - old, Ordering::Relaxed).saturating_add(new - old);
        if grown > self.limit {
            self.used.fetch_sub(new - old, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// `lua_Alloc` over the process's allocator. A null answer makes Lua collect garbage, try again and then raise
/// "not enough memory". The answer is also null for a string that would take too long to create within a burst.
///
/// # Safety
/// `account` is a live [`MemoryLimit`]; `block` is null or came from here with size `old`.
pub(crate) unsafe extern "C" fn allocate(
    account: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    if new > STRING_MAX && block.is_null() && old == ffi::LUA_TSTRING as usize && budget::runs() {
        return ptr::null_mut();
    }
    // SAFETY: as promised by the caller.
    unsafe { allocate_by(MemoryLimit::account, account, block, old, new) }
}

/// Like [`allocate`], with the function that accounts for the block.
#[inline(always)]
unsafe fn allocate_by(
    accounts: fn(&MemoryLimit, usize, usize) -> bool,
    account: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: the state keeps its `Arc<MemoryLimit>` until after `lua_close`.
    let limit = unsafe { &*(account as *const MemoryLimit) };
    // With a null block, `old` is the kind of object that Lua makes, not a size.
    let old = if block.is_null() { 0 } else { old };
    if !accounts(limit, old, new) {
        return ptr::null_mut();
    }
    // SAFETY: Lua hands back each block with the size it was made with, and sizes never exceed isize::MAX because
    // Lua checks them against MAX_SIZE before it asks.
    let made = unsafe {
        if new == 0 {
            if old != 0 {
                dealloc(block as *mut u8, Layout::from_size_align_unchecked(old, ALIGN));
            }
            return ptr::null_mut();
        } else if old == 0 {
            alloc(Layout::from_size_align_unchecked(new, ALIGN))
        } else {
            realloc(block as *mut u8, Layout::from_size_align_unchecked(old, ALIGN), new)
        }
    };
    if made.is_null() {
        accounts(limit, new, old);
    }
    made as *mut c_void
}

/// Like [`allocate`], for a state that does not share its limit; and after a large block the running script is
/// suspended before its next instruction, if others wait for this thread. A single instruction of Lua is not
/// interrupted, be it `..`, the growth of a table, or the collector's step over one; so at most one long instruction
/// runs on this thread.
///
/// # Safety
/// As [`allocate`].
pub(crate) unsafe extern "C" fn allocate_and_leave(
    account: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    if new >= LARGE {
        budget::leave_soon();
    }
    // SAFETY: as promised by the caller.
    unsafe { allocate_by(MemoryLimit::account_alone, account, block, old, new) }
}
