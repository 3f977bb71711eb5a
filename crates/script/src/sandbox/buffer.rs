//! The buffer in which results are built: one per state, reused.
//!
//! A function that calls back into Lua while it builds its result cannot use it; it keeps its bytes in a userdata
//! ([`Pile`]). A function that raises leaves the buffer unchanged: the next one empties it.
//!
//! Cost: only the copy into Lua's string at the end. Limit: the state's memory, as for all Lua allocations.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::ffi::{self, lua_State};
use crate::run::Poll;
use crate::state::Core;

/// Bytes that a state keeps between two uses.
const KEPT: usize = 64 << 10;

/// A state's buffer, allocated on behalf of Lua.
pub(crate) struct Scratch {
    bytes: *mut u8,
    len: usize,
    capacity: usize,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { bytes: ptr::null_mut(), len: 0, capacity: 0 }
    }
}

impl Scratch {
    /// Frees the block.
    ///
    /// # Safety
    /// `lua` belongs to the state whose buffer this is.
    pub(crate) unsafe fn free(&mut self, lua: *mut lua_State) {
        // SAFETY: the block came from the state's own allocator with this size.
        unsafe {
            let mut account = ptr::null_mut();
            let allocate = ffi::lua_getallocf(lua, &mut account);
            if self.capacity > 0 {
                allocate(account, self.bytes.cast(), self.capacity, 0);
            }
        }
        *self = Scratch::default();
    }
}

/// The state's buffer while one function fills it.
pub(crate) struct Buffer {
    lua: *mut lua_State,
    scratch: *mut Scratch,
    /// The length at which it polls next.
    next: usize,
}

/// Bytes between two polls.
const PIECE: usize = 64 << 10;

impl Buffer {
    /// Empties the buffer of the state that `lua` belongs to.
    ///
    /// # Safety
    /// `lua` is the C function's state. Until the last use of the result, nothing else uses the buffer: no call into
    /// Lua that runs other functions.
    #[inline]
    pub(crate) unsafe fn begin(lua: *mut lua_State) -> Buffer {
        // SAFETY: as promised by the caller.
        let scratch = unsafe { &mut Core::of(lua).sandbox.scratch };
        scratch.len = 0;
        Buffer { lua, scratch, next: PIECE }
    }

    #[inline]
    fn inner(&mut self) -> &mut Scratch {
        // SAFETY: the core outlives every function, and by the promise made to `begin` there is no other reference to
        // it.
        unsafe { &mut *self.scratch }
    }

    /// Returns the number of bytes in the buffer.
    #[inline]
    pub(crate) fn len(&mut self) -> usize {
        self.inner().len
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let inner = self.inner();
        if inner.capacity == 0 {
            return &mut [];
        }
        // SAFETY: the first `len` bytes of the block are written.
        unsafe { std::slice::from_raw_parts_mut(inner.bytes, inner.len) }
    }

    /// Returns room for `count` more bytes; raises if memory is used up.
    ///
    /// # Safety
    /// May raise.
    #[inline]
    pub(crate) unsafe fn reserve(&mut self, count: usize) -> *mut u8 {
        let inner = self.inner();
        if inner.capacity - inner.len < count {
            // SAFETY: as promised by the caller.
            unsafe { self.grow(count) };
        }
        let inner = self.inner();
        // SAFETY: within the block.
        unsafe { inner.bytes.add(inner.len) }
    }

    /// Marks `count` bytes of the space returned by [`Buffer::reserve`] as written.
    ///
    /// # Safety
    /// They were written.
    #[inline]
    pub(crate) unsafe fn advance(&mut self, count: usize) {
        self.inner().len += count;
    }

    /// Adds bytes.
    ///
    /// # Safety
    /// May raise.
    #[inline]
    pub(crate) unsafe fn extend(&mut self, bytes: &[u8]) {
        // SAFETY: there is room for them, and they lie elsewhere.
        unsafe {
            let target = self.reserve(bytes.len());
            ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
            self.advance(bytes.len());
        }
    }

    /// Adds a byte.
    ///
    /// # Safety
    /// May raise.
    #[inline]
    pub(crate) unsafe fn push(&mut self, byte: u8) {
        // SAFETY: as `extend`.
        unsafe {
            *self.reserve(1) = byte;
            self.advance(1);
        }
    }

    #[cold]
    unsafe fn grow(&mut self, count: usize) {
        let lua = self.lua;
        let inner = self.inner();
        let wanted = inner.len.saturating_add(count);
        let capacity = wanted.max(inner.capacity.saturating_mul(2)).max(1024);
        // SAFETY: the block came from the state's own allocator with this size. A refusal leaves it as it is.
        unsafe {
            let mut account = ptr::null_mut();
            let allocate = ffi::lua_getallocf(lua, &mut account);
            for capacity in [capacity, wanted] {
                if capacity > isize::MAX as usize {
                    continue;
                }
                for retry in [false, true] {
                    if retry {
                        ffi::lua_gc(lua, ffi::LUA_GCCOLLECT);
                    }
                    let block = allocate(account, inner.bytes.cast(), inner.capacity, capacity);
                    if !block.is_null() {
                        inner.bytes = block.cast();
                        inner.capacity = capacity;
                        return;
                    }
                }
            }
            inner.free(lua);
            out_of_memory(lua, wanted);
        }
    }

    /// Polls whether to go on, once for many bytes.
    ///
    /// # Safety
    /// As [`Buffer::begin`].
    #[inline]
    pub(crate) unsafe fn weigh(&mut self) -> Poll {
        let len = self.len();
        if len < self.next {
            return Poll::Go;
        }
        self.next = len + PIECE;
        // SAFETY: as promised by the caller.
        unsafe { crate::weigh(self.lua, len) }
    }

    /// Frees memory beyond the size that a state keeps; to be called before a function leaves or raises.
    pub(crate) fn free(&mut self) {
        let lua = self.lua;
        let inner = self.inner();
        if inner.capacity > KEPT {
            // SAFETY: the buffer is that of `lua`'s state.
            unsafe { inner.free(lua) };
        }
    }

    /// Pushes the bytes as a string.
    ///
    /// # Safety
    /// May raise.
    #[inline]
    pub(crate) unsafe fn finish(mut self) {
        // SAFETY: Lua copies the bytes.
        unsafe { crate::push_bytes(self.lua, self.bytes()) };
        self.free();
    }
}

/// Raises Lua's own error for memory that is used up.
#[cold]
pub(crate) unsafe fn out_of_memory(lua: *mut lua_State, wanted: usize) -> ! {
    // SAFETY: an allocation that Lua refuses raises the error with the right status; if it succeeds this time, the
    // earlier one has failed all the same.
    unsafe {
        if wanted < isize::MAX as usize / 2 {
            ffi::lua_newuserdatauv(lua, wanted, 0);
        }
        ffi::lua_pushstring(lua, c"not enough memory".as_ptr());
        ffi::lua_error(lua)
    }
}

/// Bytes in a userdata at a fixed slot of the stack, for functions that call back while they collect them. The caller
/// keeps the number of bytes, in a userdata of its own.
pub(crate) struct Pile {
    /// The slot.
    pub(crate) slot: c_int,
}

impl Pile {
    /// Adds `bytes` to the `len` bytes in the pile; returns the new number. May raise.
    ///
    /// # Safety
    /// The slot holds a userdata that this type put there, or nil if `len` is 0; `bytes` stay where they are.
    pub(crate) unsafe fn add(&self, lua: *mut lua_State, len: usize, bytes: &[u8]) -> usize {
        // SAFETY: the block has the size reported by Lua, and the first `len` bytes are written.
        unsafe {
            let wanted = len.saturating_add(bytes.len());
            let mut block: *mut c_void = ffi::lua_touserdata(lua, self.slot);
            let capacity = if block.is_null() { 0 } else { ffi::lua_rawlen(lua, self.slot) };
            if wanted > capacity {
                let capacity = wanted.max(capacity.saturating_mul(2)).max(512);
                if capacity > isize::MAX as usize / 2 {
                    out_of_memory(lua, capacity);
                }
                let larger = ffi::lua_newuserdatauv(lua, capacity, 0);
                if len > 0 {
                    ptr::copy_nonoverlapping(block as *const u8, larger as *mut u8, len);
                }
                ffi::lua_replace(lua, self.slot);
                block = larger;
            }
            ptr::copy_nonoverlapping(bytes.as_ptr(), (block as *mut u8).add(len), bytes.len());
            wanted
        }
    }

    /// Returns the first `len` bytes.
    ///
    /// # Safety
    /// As [`Pile::add`]; the slice is valid until the next call of it.
    pub(crate) unsafe fn bytes<'a>(&self, lua: *mut lua_State, len: usize) -> &'a [u8] {
        if len == 0 {
            return &[];
        }
        // SAFETY: as promised by the caller.
        unsafe { std::slice::from_raw_parts(ffi::lua_touserdata(lua, self.slot) as *const u8, len) }
    }
}
