//! Arguments of C functions, taken and refused as in Lua 5.1: numbers are cut to integers instead of refused, and
//! numbers taken as strings have 5.1's text.
//!
//! Everything here may raise; nothing with a destructor may be alive in a caller.

use std::ffi::{CStr, c_int};
use std::slice;

use super::number;
use crate::ffi::{self, lua_State};

/// Raises `bad argument #n to 'function' (message)`.
#[cold]
pub(crate) unsafe fn fail(lua: *mut lua_State, n: c_int, message: &CStr) -> ! {
    // SAFETY: level 0 is the C function that runs. The formats take what they are given.
    unsafe {
        let mut n = n;
        let mut name = c"?".as_ptr();
        let mut record: ffi::lua_Debug = std::mem::zeroed();
        if ffi::lua_getstack(lua, 0, &mut record) != 0 {
            ffi::lua_getinfo(lua, c"n".as_ptr(), &mut record);
            if !record.name.is_null() {
                name = match CStr::from_ptr(record.namewhat).to_bytes() {
                    b"for iterator" => c"(for generator)".as_ptr(),
                    b"metamethod" => name,
                    _ if CStr::from_ptr(record.name) == c"integer index" => name,
                    _ => record.name,
                };
                if CStr::from_ptr(record.namewhat).to_bytes() == b"method" {
                    n -= 1;
                    if n == 0 {
                        ffi::luaL_error(lua, c"calling '%s' on bad self (%s)".as_ptr(), name, message.as_ptr());
                    }
                }
            }
        }
        ffi::luaL_error(lua, c"bad argument #%d to '%s' (%s)".as_ptr(), n, name, message.as_ptr());
        unreachable!("an error does not return");
    }
}

/// Returns the name of an argument's type: `no value` for one that is absent.
pub(crate) unsafe fn type_name(lua: *mut lua_State, n: c_int) -> &'static CStr {
    // SAFETY: Lua's names of types live forever.
    unsafe {
        match ffi::lua_type(lua, n) {
            ffi::LUA_TLIGHTUSERDATA => c"userdata",
            other => CStr::from_ptr(ffi::lua_typename(lua, other)),
        }
    }
}

/// Raises the error of an argument of another type than `expected`.
#[cold]
pub(crate) unsafe fn fail_type(lua: *mut lua_State, n: c_int, expected: &CStr) -> ! {
    // SAFETY: the message stays on the stack while it is read.
    unsafe {
        let message =
            ffi::lua_pushfstring(lua, c"%s expected, got %s".as_ptr(), expected.as_ptr(), type_name(lua, n).as_ptr());
        fail(lua, n, CStr::from_ptr(message))
    }
}

/// An argument of any value, nil included.
pub(crate) unsafe fn any(lua: *mut lua_State, n: c_int) {
    // SAFETY: as the module says.
    unsafe {
        if ffi::lua_type(lua, n) == ffi::LUA_TNONE {
            fail(lua, n, c"value expected");
        }
    }
}

/// A table.
#[inline]
pub(crate) unsafe fn table(lua: *mut lua_State, n: c_int) {
    // SAFETY: as the module says.
    unsafe {
        if ffi::lua_type(lua, n) != ffi::LUA_TTABLE {
            fail_type(lua, n, c"table");
        }
    }
}

/// A function.
#[inline]
pub(crate) unsafe fn function(lua: *mut lua_State, n: c_int) {
    // SAFETY: as the module says.
    unsafe {
        if ffi::lua_type(lua, n) != ffi::LUA_TFUNCTION {
            fail_type(lua, n, c"function");
        }
    }
}

/// Returns the number that a value is or, if it is a string, reads as.
pub(crate) unsafe fn to_number(lua: *mut lua_State, n: c_int) -> Option<f64> {
    // SAFETY: as the module says; a string of Lua's ends in a zero byte.
    unsafe {
        match ffi::lua_type(lua, n) {
            ffi::LUA_TNUMBER => Some(number::of(lua, n)),
            ffi::LUA_TSTRING => number::parse(crate::to_bytes(lua, n).unwrap_or_default()),
            _ => None,
        }
    }
}

/// Returns a number.
#[inline]
pub(crate) unsafe fn number(lua: *mut lua_State, n: c_int) -> f64 {
    // SAFETY: as the module says.
    unsafe {
        let mut is_number = 0;
        if ffi::lua_type(lua, n) == ffi::LUA_TNUMBER {
            return ffi::lua_tonumberx(lua, n, &mut is_number);
        }
        match to_number(lua, n) {
            Some(number) => number,
            None => fail_type(lua, n, c"number"),
        }
    }
}

/// Returns an integer of 64 bits.
#[inline]
pub(crate) unsafe fn integer(lua: *mut lua_State, n: c_int) -> i64 {
    // SAFETY: as the module says.
    unsafe {
        if ffi::lua_isinteger(lua, n) != 0 {
            return ffi::lua_tointegerx(lua, n, std::ptr::null_mut());
        }
        number::to_i64(number(lua, n))
    }
}

/// As [`integer`], for one that may be absent or nil.
#[inline]
pub(crate) unsafe fn integer_or(lua: *mut lua_State, n: c_int, default: i64) -> i64 {
    // SAFETY: as the module says.
    unsafe { if ffi::lua_type(lua, n) <= ffi::LUA_TNIL { default } else { integer(lua, n) } }
}

/// Returns an `int`: what does not fit loses its upper bits.
pub(crate) unsafe fn int(lua: *mut lua_State, n: c_int) -> i32 {
    // SAFETY: as the module says.
    unsafe { integer(lua, n) as i32 }
}

/// As [`int`], for one that may be absent or nil.
pub(crate) unsafe fn int_or(lua: *mut lua_State, n: c_int, default: i32) -> i32 {
    // SAFETY: as the module says.
    unsafe { if ffi::lua_type(lua, n) <= ffi::LUA_TNIL { default } else { int(lua, n) } }
}

/// Returns a string; a number is turned into one in place. The bytes are valid while the value stays on the stack, and
/// a zero byte follows them.
#[inline]
pub(crate) unsafe fn string<'a>(lua: *mut lua_State, n: c_int) -> &'a [u8] {
    // SAFETY: as the module says; after `stringify` there is a string.
    unsafe {
        if ffi::lua_type(lua, n) != ffi::LUA_TSTRING {
            stringify(lua, n);
        }
        let mut len = 0;
        let bytes = ffi::lua_tolstring(lua, n, &mut len);
        slice::from_raw_parts(bytes.cast(), len)
    }
}

/// As [`string`], for one that may be absent or nil.
pub(crate) unsafe fn string_or(lua: *mut lua_State, n: c_int, default: &[u8]) -> &[u8] {
    // SAFETY: as the module says.
    unsafe { if ffi::lua_type(lua, n) <= ffi::LUA_TNIL { default } else { string(lua, n) } }
}

#[cold]
unsafe fn stringify(lua: *mut lua_State, n: c_int) {
    // SAFETY: as the module says.
    unsafe {
        if ffi::lua_type(lua, n) != ffi::LUA_TNUMBER {
            fail_type(lua, n, c"string");
        }
        push_text(lua, n);
        ffi::lua_replace(lua, n);
    }
}

/// Pushes the text of a number.
pub(crate) unsafe fn push_text(lua: *mut lua_State, n: c_int) {
    // SAFETY: as the module says.
    unsafe {
        let mut text = [0; number::TEXT_MAX];
        let len = number::write(number::of(lua, n), &mut text);
        crate::push_bytes(lua, &text[..len]);
    }
}
