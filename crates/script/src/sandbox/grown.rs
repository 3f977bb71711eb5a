//! A growing array that does not leak when Lua raises.
//!
//! It begins in the caller's frame and moves into a Lua userdata when it outgrows that, so it has no destructor, a
//! longjmp may skip it at any time, and all but the first few kilobytes count towards the state's memory limit. The
//! userdata is anchored in one slot of the stack; its predecessors are ordinary garbage.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use crate::ffi::{self, lua_State};

/// Values of `T`, on the caller's frame or in the userdata at the stack's `slot`.
pub(super) struct Grown<T> {
    data: *mut T,
    len: usize,
    capacity: usize,
    slot: c_int,
}

impl<T: Copy> Grown<T> {
    /// An empty array that begins in `frame`, which must outlive it. `slot` is a slot of the stack reserved for it.
    pub(super) fn new<const N: usize>(frame: &mut MaybeUninit<[T; N]>, slot: c_int) -> Grown<T> {
        const { assert!(align_of::<T>() <= 8, "a userdata is aligned to eight bytes") };
        Grown { data: frame.as_mut_ptr().cast(), len: 0, capacity: N, slot }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all values from the `len`th on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` values are initialised.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    /// Makes room for `more` values. May raise (memory).
    ///
    /// # Safety
    /// Two slots of the stack are free.
    #[inline(always)]
    pub(super) unsafe fn reserve(&mut self, lua: *mut lua_State, more: usize) {
        if self.capacity - self.len < more {
            // SAFETY: as promised by the caller.
            unsafe { self.grow(lua, more) };
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn grow(&mut self, lua: *mut lua_State, more: usize) {
        // SAFETY: the old block stays anchored in the slot until its values are copied.
        unsafe {
            let wanted = self.len.saturating_add(more).max(self.capacity * 2);
            let bytes = wanted.saturating_mul(size_of::<T>());
            if bytes > isize::MAX as usize / 2 {
                out_of_memory(lua);
            }
            let block: *mut T = ffi::lua_newuserdatauv(lua, bytes, 0).cast();
            ptr::copy_nonoverlapping(self.data, block, self.len);
            ffi::lua_replace(lua, self.slot);
            (self.data, self.capacity) = (block, wanted);
        }
    }

    /// Adds a value; there is room for it.
    ///
    /// # Safety
    /// [`Grown::reserve`] made the room.
    #[inline(always)]
    pub(super) unsafe fn put(&mut self, value: T) {
        debug_assert!(self.len < self.capacity);
        // SAFETY: as promised by the caller.
        unsafe { self.data.add(self.len).write(value) };
        self.len += 1;
    }

    /// Adds a value. May raise (memory).
    ///
    /// # Safety
    /// As [`Grown::reserve`].
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, lua: *mut lua_State, value: T) {
        // SAFETY: as promised by the caller.
        unsafe {
            self.reserve(lua, 1);
            self.put(value);
        }
    }

    /// Takes the last value off.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the value was initialised.
        Some(unsafe { self.data.add(self.len).read() })
    }

    /// Adds values that there is room for.
    ///
    /// # Safety
    /// [`Grown::reserve`] made the room; `values` lie elsewhere.
    #[inline(always)]
    pub(super) unsafe fn put_all(&mut self, values: &[T]) {
        debug_assert!(self.capacity - self.len >= values.len());
        // SAFETY: as promised by the caller.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.data.add(self.len), values.len()) };
        self.len += values.len();
    }

    /// Adds values. May raise (memory).
    ///
    /// # Safety
    /// As [`Grown::reserve`]; `values` lie elsewhere.
    #[inline(always)]
    pub(super) unsafe fn extend(&mut self, lua: *mut lua_State, values: &[T]) {
        // SAFETY: as promised by the caller.
        unsafe {
            self.reserve(lua, values.len());
            self.put_all(values);
        }
    }
}

impl Grown<u8> {
    /// Overwrites bytes from position `at` on.
    ///
    /// # Safety
    /// The bytes to be overwritten exist; `bytes` lie elsewhere.
    #[inline(always)]
    pub(super) unsafe fn set(&mut self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.len);
        // SAFETY: as promised by the caller.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(at), bytes.len()) };
    }

    /// Moves all bytes from position `at` on towards the end by `gap` bytes. May raise (memory).
    ///
    /// # Safety
    /// As [`Grown::reserve`]; `at` is at most the length.
    pub(super) unsafe fn part(&mut self, lua: *mut lua_State, at: usize, gap: usize) {
        // SAFETY: as promised by the caller. What is in the gap was written before, or is about to be moved.
        unsafe {
            self.reserve(lua, gap);
            ptr::copy(self.data.add(at), self.data.add(at + gap), self.len - at);
        }
        self.len += gap;
    }

    /// Adds eight bytes that there is room for.
    ///
    /// # Safety
    /// As [`Grown::put`].
    #[inline(always)]
    pub(super) unsafe fn put_word(&mut self, word: [u8; 8]) {
        debug_assert!(self.capacity - self.len >= word.len());
        // SAFETY: as promised by the caller.
        unsafe { self.data.add(self.len).cast::<[u8; 8]>().write(word) };
        self.len += word.len();
    }
}

/// Raises Lua's own error for memory that is used up.
#[cold]
unsafe fn out_of_memory(lua: *mut lua_State) -> ! {
    // SAFETY: Lua keeps this string for good, and knows the error by it.
    unsafe {
        ffi::lua_pushstring(lua, c"not enough memory".as_ptr());
        ffi::lua_error(lua)
    }
}
