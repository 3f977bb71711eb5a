//! Read-only tables: the globals and every library.
//!
//! A script gets an empty proxy table whose metatable forwards reads to the real table and rejects writes. Library
//! functions that would reveal the difference (`pairs`, `next`, `rawget`) access the real table; none of them writes to
//! it.
//!
//! Cost: a read of a global or of a library's field looks into two more tables than Lua itself would.

use std::ffi::{c_int, c_void};

use crate::ffi::{self, lua_State};
use crate::function;

/// The key by which a metatable of this module is known; scripts have no such value.
static SEAL: u8 = 0;

fn seal_key() -> *const c_void {
    (&raw const SEAL).cast()
}

/// Redis's message.
const READ_ONLY: &std::ffi::CStr = c"Attempt to modify a readonly table";

/// Replaces the table on top of the stack by one that scripts can only read. Tables in it are sealed on their own.
///
/// # Safety
/// The table is on top; may raise.
pub unsafe fn seal(lua: *mut lua_State) {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::lua_createtable(lua, 0, 0);
        ffi::lua_createtable(lua, 0, 3);
        ffi::lua_rotate(lua, -3, -1);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        ffi::lua_pushcfunction(lua, function!(refuse_new));
        ffi::lua_setfield(lua, -2, c"__newindex".as_ptr());
        ffi::lua_pushboolean(lua, 1);
        ffi::lua_rawsetp(lua, -2, seal_key());
        ffi::lua_setmetatable(lua, -2);
    }
}

unsafe fn refuse_new(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe { crate::raise(lua, READ_ONLY) }
}

/// Pushes the metatable of the value at `n` if that is a sealed table.
#[inline]
unsafe fn push_seal(lua: *mut lua_State, n: c_int) -> bool {
    // SAFETY: two slots are free.
    unsafe {
        if ffi::lua_getmetatable(lua, n) == 0 {
            return false;
        }
        let sealed = ffi::lua_rawgetp(lua, -1, seal_key()) == ffi::LUA_TBOOLEAN;
        ffi::lua_settop(lua, if sealed { -2 } else { -3 });
        sealed
    }
}

/// Raises if the table at `n` is sealed.
#[inline]
pub(super) unsafe fn refuse(lua: *mut lua_State, n: c_int) {
    // SAFETY: two slots are free. As raised by Lua's core, the message has no position.
    unsafe {
        if push_seal(lua, n) {
            ffi::lua_pushstring(lua, READ_ONLY.as_ptr());
            ffi::lua_error(lua);
        }
    }
}

/// Puts the real table into the slot `n` of a sealed one; `n` counts from below. Returns whether the table was sealed.
#[inline]
pub(super) unsafe fn see_through(lua: *mut lua_State, n: c_int) -> bool {
    // SAFETY: three slots are free.
    unsafe {
        let is_sealed = push_seal(lua, n);
        if is_sealed {
            ffi::lua_getfield(lua, -1, c"__index".as_ptr());
            ffi::lua_copy(lua, -1, n);
            ffi::lua_settop(lua, -3);
        }
        is_sealed
    }
}

/// Starts iterating over the table on top of the stack, or over the real table behind a sealed one: as `lua_next` with
/// nil. A sealed table itself is empty, so other tables cost nothing.
#[inline(always)]
pub(super) unsafe fn first(lua: *mut lua_State) -> bool {
    // SAFETY: five slots are free.
    unsafe {
        ffi::lua_pushnil(lua);
        if ffi::lua_next(lua, -2) != 0 {
            return true;
        }
        if !see_through(lua, ffi::lua_gettop(lua)) {
            return false;
        }
        ffi::lua_pushnil(lua);
        ffi::lua_next(lua, -2) != 0
    }
}

/// Pushes the result of `getmetatable` for the sealed table at `n`; `false` if it is not sealed.
pub(super) unsafe fn push_shown(lua: *mut lua_State, n: c_int) -> bool {
    // SAFETY: three slots are free.
    unsafe {
        if !push_seal(lua, n) {
            return false;
        }
        ffi::lua_pushstring(lua, c"__metatable".as_ptr());
        ffi::lua_rawget(lua, -2);
        ffi::lua_remove(lua, -2);
        true
    }
}

/// Makes `getmetatable` of the sealed table below the top return the value on top, which is popped.
pub(super) unsafe fn show(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe {
        ffi::lua_getmetatable(lua, -2);
        ffi::lua_insert(lua, -2);
        ffi::lua_setfield(lua, -2, c"__metatable".as_ptr());
        ffi::lua_pop(lua, 1);
    }
}
