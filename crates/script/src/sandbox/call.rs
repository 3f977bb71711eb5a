//! Errors: `pcall`, `xpcall`, `error`, `assert`. The called function can wait and be suspended.

use std::ffi::{CStr, c_int};

use super::{argument, message};
use crate::continuation;
use crate::ffi::{self, lua_KContext, lua_State};

/// The depth of nested calls from which on none is protected: the limit of all calls in Lua 5.1 (`LUAI_MAXCALLS`).
///
/// An error that a coroutine catches unwinds the C stack to its beginning, and resets the count by which Lua itself
/// limits nested C calls. So protected calls within error handlers would continue until a million slots are full, and
/// everything that walks through them, such as the end of each slice, would take milliseconds.
const DEPTH_MAX: c_int = 20_000;

/// Raises if calls are nested too deeply for another protected one.
#[inline]
unsafe fn check_depth(lua: *mut lua_State) {
    // SAFETY: the record is only written, and Lua's walk ends with the stack.
    unsafe {
        let mut record = std::mem::MaybeUninit::<ffi::lua_Debug>::uninit();
        if ffi::lua_getstack(lua, DEPTH_MAX, record.as_mut_ptr()) != 0 {
            crate::raise(lua, c"stack overflow");
        }
    }
}

pub(super) unsafe fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        check_depth(lua);
        ffi::lua_pushboolean(lua, 1);
        ffi::lua_insert(lua, 1);
        let args = ffi::lua_gettop(lua) - 2;
        if args < 0 {
            // Redis's result of a call without a function.
            ffi::lua_pushboolean(lua, 0);
            ffi::lua_pushstring(lua, c"attempt to call a boolean value".as_ptr());
            return 2;
        }
        let status = ffi::lua_pcallk(lua, args, ffi::LUA_MULTRET, 0, 0, Some(continuation!(pcall_done)));
        pcall_done(lua, status, 0)
    }
}

unsafe fn pcall_done(lua: *mut lua_State, status: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the results are on the stack, or the error is on top.
    unsafe {
        if status == ffi::LUA_OK || status == ffi::LUA_YIELD {
            return ffi::lua_gettop(lua);
        }
        message::adapt(lua);
        if ffi::lua_type(lua, -1) == ffi::LUA_TTABLE {
            ffi::lua_settop(lua, 2);
            ffi::lua_pushvalue(lua, 2);
            ffi::lua_pushstring(lua, c"err".as_ptr());
            super::index(lua, continuation!(told));
            return told(lua, ffi::LUA_OK, 0);
        }
        ffi::lua_pushboolean(lua, 0);
        ffi::lua_insert(lua, -2);
        2
    }
}

/// Chooses the error that `pcall` returns for a table. Scripts for older servers expect a text, so Redis's `pcall`
/// returns the table's field `err` instead; if that is not a text, both are returned.
unsafe fn told(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the stack holds a place for the result, the table and its field.
    unsafe {
        if ffi::lua_isstring(lua, 3) != 0 {
            ffi::lua_replace(lua, 2);
        }
        ffi::lua_pushboolean(lua, 0);
        ffi::lua_replace(lua, 1);
        ffi::lua_gettop(lua)
    }
}

/// Runs the handler after the stack is unwound, which is invisible without a debug library.
pub(super) unsafe fn xpcall(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the stack has the handler, the result on success, then the
    // function.
    unsafe {
        check_depth(lua);
        argument::any(lua, 2);
        ffi::lua_settop(lua, 2);
        ffi::lua_insert(lua, 1);
        ffi::lua_pushboolean(lua, 1);
        ffi::lua_insert(lua, 2);
        let status = ffi::lua_pcallk(lua, 0, ffi::LUA_MULTRET, 0, 0, Some(continuation!(xpcall_done)));
        xpcall_done(lua, status, 0)
    }
}

unsafe fn xpcall_done(lua: *mut lua_State, status: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `pcall_done`; the handler is at 1.
    unsafe {
        if status == ffi::LUA_OK || status == ffi::LUA_YIELD {
            return ffi::lua_gettop(lua) - 1;
        }
        message::adapt(lua);
        ffi::lua_insert(lua, 2);
        ffi::lua_settop(lua, 2);
        ffi::lua_pushvalue(lua, 1);
        ffi::lua_insert(lua, 2);
        let status = ffi::lua_pcallk(lua, 1, 1, 0, 0, Some(continuation!(handled)));
        handled(lua, status, 0)
    }
}

unsafe fn handled(lua: *mut lua_State, status: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the handler's result is on top, or its error.
    unsafe {
        if status != ffi::LUA_OK && status != ffi::LUA_YIELD {
            ffi::lua_pop(lua, 1);
            ffi::lua_pushstring(lua, c"error in error handling".as_ptr());
        }
        ffi::lua_pushboolean(lua, 0);
        ffi::lua_insert(lua, -2);
        2
    }
}

pub(super) unsafe fn error(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let level = argument::int_or(lua, 2, 1);
        ffi::lua_settop(lua, 1);
        if level > 0 && matches!(ffi::lua_type(lua, 1), ffi::LUA_TSTRING | ffi::LUA_TNUMBER) {
            ffi::luaL_where(lua, level);
            argument::string(lua, 1);
            ffi::lua_pushvalue(lua, 1);
            ffi::lua_concat(lua, 2);
        }
        ffi::lua_error(lua)
    }
}

pub(super) unsafe fn assert(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; a string of Lua's ends in a zero byte.
    unsafe {
        argument::any(lua, 1);
        if ffi::lua_toboolean(lua, 1) != 0 {
            return ffi::lua_gettop(lua);
        }
        let message = argument::string_or(lua, 2, b"assertion failed!\0");
        crate::raise(lua, CStr::from_ptr(message.as_ptr().cast()))
    }
}
