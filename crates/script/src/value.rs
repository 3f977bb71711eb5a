//! Conversion of values between Rust and Lua, without owning anything while Lua may raise.

use std::ffi::{CStr, c_int};
use std::slice;

use crate::ffi::{self, lua_State};

/// Pushes a string of bytes. May raise (memory).
///
/// # Safety
/// A slot of the stack is free; nothing with a destructor is alive in the caller.
pub unsafe fn push_bytes(lua: *mut lua_State, bytes: &[u8]) {
    // SAFETY: Lua copies the bytes. An empty slice's pointer is never read.
    unsafe { ffi::lua_pushlstring(lua, bytes.as_ptr().cast(), bytes.len()) };
}

/// Returns the bytes of a string at `index`; `None` for any other type, numbers included. Raises nothing.
///
/// # Safety
/// The slice is valid while the value stays on the stack.
pub unsafe fn to_bytes<'a>(lua: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    // SAFETY: `lua_tolstring` of a string converts nothing and gives its bytes.
    unsafe {
        if ffi::lua_type(lua, index) != ffi::LUA_TSTRING {
            return None;
        }
        let mut len = 0;
        let bytes = ffi::lua_tolstring(lua, index, &mut len);
        Some(slice::from_raw_parts(bytes.cast(), len))
    }
}

/// Returns the bytes of argument `index`, a number converted in place as Lua does; raises an argument error otherwise.
///
/// # Safety
/// As [`push_bytes`] and [`to_bytes`].
pub unsafe fn check_bytes<'a>(lua: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: the pointer is that of a string on the stack.
    unsafe {
        let mut len = 0;
        let bytes = ffi::luaL_checklstring(lua, index, &mut len);
        slice::from_raw_parts(bytes.cast(), len)
    }
}

/// As [`check_bytes`], for one that may be absent or nil.
///
/// # Safety
/// As [`check_bytes`].
pub unsafe fn argument<'a>(lua: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    // SAFETY: as `check_bytes`.
    unsafe { if ffi::lua_type(lua, index) <= ffi::LUA_TNIL { None } else { Some(check_bytes(lua, index)) } }
}

/// Raises `message` as an error with the position of the caller, as `luaL_error` does.
///
/// # Safety
/// Nothing with a destructor is alive in the caller.
pub unsafe fn raise(lua: *mut lua_State, message: &CStr) -> ! {
    // SAFETY: the format takes one string.
    unsafe {
        ffi::luaL_where(lua, 1);
        ffi::lua_pushstring(lua, message.as_ptr());
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua)
    }
}

const _: () = assert!(ffi::LUA_TNIL == 0 && ffi::LUA_TNONE == -1);
