//! `cmsgpack`: MessagePack, as lua-cmsgpack 0.4.0 within Redis 7 does it.
//!
//! Packing goes sixteen tables deep and writes nil for what lies deeper, so it recurses; a cycle ends there as well.
//! Unpacking ends where a function of Lua 5.1 runs out of stack, and does not recurse. No metamethod is called.

mod pack;
mod unpack;

use std::ffi::CStr;

use super::register;
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::function;

/// Makes the table `cmsgpack` and leaves it on the stack.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 4] = [
        (c"pack", function!(pack::pack)),
        (c"unpack", function!(unpack::unpack)),
        (c"unpack_one", function!(unpack::unpack_one)),
        (c"unpack_limit", function!(unpack::unpack_limit)),
    ];
    const FIELDS: [(&CStr, &CStr); 4] = [
        (c"_NAME", c"cmsgpack"),
        (c"_VERSION", c"lua-cmsgpack 0.4.0"),
        (c"_COPYRIGHT", c"Copyright (C) 2012, Salvatore Sanfilippo"),
        (c"_DESCRIPTION", c"MessagePack C implementation for Lua"),
    ];
    // SAFETY: called inside a protected call.
    unsafe {
        register(lua, &FUNCTIONS);
        for (name, value) in FIELDS {
            ffi::lua_pushstring(lua, value.as_ptr());
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
    }
}
