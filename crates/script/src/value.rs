//! Conversion of values between Rust and Lua. No Rust value with a destructor is alive while Lua may raise an error.

use std::ffi::{CStr, c_int};
use std::slice;

use crate::ffi::{self, lua_State};

/// Pushes a byte string. May raise a memory error.
///
/// # Safety
/// The Lua stack has a free slot, and the caller holds no value with a destructor.
pub unsafe fn push_bytes(lua: *mut lua_State, bytes: &[u8]) {
    // SAFETY: Lua copies the bytes. An empty slice's pointer is never read.
    unsafe { ffi::lua_pushlstring(lua, bytes.as_ptr().cast(), bytes.len()) };
}

/// Returns the bytes of a string at `index`; `None` for any other type, including numbers. Never raises an error.
///
/// # Safety
/// The slice is not used after the value has left the stack.
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

/// Returns the bytes of argument `index`. A number is converted to a string in place, as in Lua; any other type raises
/// an argument error.
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

/// As [`check_bytes`], but returns `None` if the argument is absent or nil.
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
    // SAFETY: the format string has exactly one `%s`, for which one C string is passed.
    unsafe {
        ffi::luaL_where(lua, 1);
        ffi::lua_pushstring(lua, message.as_ptr());
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua)
    }
}

const _: () = assert!(ffi::LUA_TNIL == 0 && ffi::LUA_TNONE == -1);
