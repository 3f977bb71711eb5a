//! The coroutine library of Lua 5.1: the crate's own, without later additions.

use std::ffi::{CStr, c_int};

use crate::coroutine;
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::function;
use crate::state::Core;

/// Leaves the library's table on the stack.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 6] = [
        (c"create", function!(create)),
        (c"resume", function!(coroutine::resume)),
        (c"running", function!(running)),
        (c"status", function!(coroutine::status)),
        (c"wrap", function!(wrap)),
        (c"yield", function!(r#yield)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { super::register(lua, &FUNCTIONS) };
}

/// A function of the script's own: C functions are refused.
unsafe fn check_function(lua: *mut lua_State) {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        if ffi::lua_type(lua, 1) != ffi::LUA_TFUNCTION || ffi::lua_iscfunction(lua, 1) != 0 {
            super::argument::fail(lua, 1, c"Lua function expected");
        }
    }
}

unsafe fn create(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        check_function(lua);
        coroutine::create(lua)
    }
}

unsafe fn wrap(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        check_function(lua);
        coroutine::wrap(lua)
    }
}

/// Returns whether `lua` is the coroutine that the driver resumed, which the script takes for the main one.
unsafe fn is_root(lua: *mut lua_State) -> bool {
    // SAFETY: `lua` belongs to a state.
    unsafe { Core::of(lua).running.root == lua }
}

unsafe fn running(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        if ffi::lua_pushthread(lua) != 0 || is_root(lua) {
            ffi::lua_pushnil(lua);
        }
        1
    }
}

unsafe fn r#yield(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        if is_root(lua) {
            ffi::lua_pushstring(lua, c"attempt to yield across metamethod/C-call boundary".as_ptr());
            ffi::lua_error(lua);
        }
        coroutine::r#yield(lua)
    }
}
