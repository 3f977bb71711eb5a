//! Lua 5.1's basic functions, as far as Redis has them.

use std::ffi::{CStr, c_int};

use super::string::VALUES_MAX;
use super::{argument, call, load, number, protect};
use crate::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use crate::run::Poll;
use crate::{again, continuation, function};

/// The amount of garbage that is collected whenever a script asks for it; with more, the script leaves a thread for
/// which others wait.
const SMALL_HEAP: usize = 1 << 20;

const NEXT: lua_CFunction = function!(next);
const IPAIRS_NEXT: lua_CFunction = function!(ipairs_next);

/// Adds the functions to the table on top of the stack.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 21] = [
        (c"assert", function!(call::assert)),
        (c"collectgarbage", function!(collectgarbage)),
        (c"error", function!(call::error)),
        (c"gcinfo", function!(gcinfo)),
        (c"getmetatable", function!(getmetatable)),
        (c"ipairs", function!(ipairs)),
        (c"load", function!(load::load)),
        (c"loadstring", function!(load::loadstring)),
        (c"next", NEXT),
        (c"pairs", function!(pairs)),
        (c"pcall", function!(call::pcall)),
        (c"rawequal", function!(rawequal)),
        (c"rawget", function!(rawget)),
        (c"rawset", function!(rawset)),
        (c"select", function!(select)),
        (c"setmetatable", function!(setmetatable)),
        (c"tonumber", function!(tonumber)),
        (c"tostring", function!(tostring)),
        (c"type", function!(r#type)),
        (c"unpack", function!(unpack)),
        (c"xpcall", function!(call::xpcall)),
    ];
    // SAFETY: called inside a protected call.
    unsafe {
        for (name, function) in &FUNCTIONS {
            ffi::lua_pushcfunction(lua, *function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        ffi::lua_pushstring(lua, c"Lua 5.1".as_ptr());
        ffi::lua_setfield(lua, -2, c"_VERSION".as_ptr());
    }
}

unsafe fn r#type(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::any(lua, 1);
        ffi::lua_pushstring(lua, argument::type_name(lua, 1).as_ptr());
        1
    }
}

unsafe fn next(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. A key that is not in the table raises.
    unsafe {
        argument::table(lua, 1);
        ffi::lua_settop(lua, 2);
        protect::see_through(lua, 1);
        if ffi::lua_next(lua, 1) != 0 {
            return 2;
        }
        ffi::lua_pushnil(lua);
        1
    }
}

unsafe fn pairs(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        ffi::lua_pushcfunction(lua, NEXT);
        ffi::lua_pushvalue(lua, 1);
        ffi::lua_pushnil(lua);
        3
    }
}

unsafe fn ipairs(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        ffi::lua_pushcfunction(lua, IPAIRS_NEXT);
        ffi::lua_pushvalue(lua, 1);
        ffi::lua_pushinteger(lua, 0);
        3
    }
}

unsafe fn ipairs_next(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let index = i64::from(argument::int(lua, 2).wrapping_add(1));
        argument::table(lua, 1);
        ffi::lua_pushinteger(lua, index);
        if ffi::lua_rawgeti(lua, 1, index) == ffi::LUA_TNIL { 0 } else { 2 }
    }
}

unsafe fn rawequal(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::any(lua, 1);
        argument::any(lua, 2);
        ffi::lua_pushboolean(lua, ffi::lua_rawequal(lua, 1, 2));
        1
    }
}

unsafe fn rawget(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        argument::any(lua, 2);
        ffi::lua_settop(lua, 2);
        protect::see_through(lua, 1);
        ffi::lua_rawget(lua, 1);
        1
    }
}

unsafe fn rawset(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        argument::any(lua, 2);
        argument::any(lua, 3);
        ffi::lua_settop(lua, 3);
        protect::refuse(lua, 1);
        ffi::lua_rawset(lua, 1);
        1
    }
}

unsafe fn getmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::any(lua, 1);
        // Numbers have a metatable here, but not in 5.1.
        if ffi::lua_type(lua, 1) == ffi::LUA_TNUMBER || ffi::lua_getmetatable(lua, 1) == 0 {
            ffi::lua_pushnil(lua);
            return 1;
        }
        if protect::push_shown(lua, 1) {
            return 1;
        }
        ffi::lua_pushstring(lua, c"__metatable".as_ptr());
        if ffi::lua_rawget(lua, -2) == ffi::LUA_TNIL {
            ffi::lua_pop(lua, 1);
        }
        1
    }
}

unsafe fn setmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        let kind = ffi::lua_type(lua, 2);
        if kind != ffi::LUA_TNIL && kind != ffi::LUA_TTABLE {
            argument::fail(lua, 2, c"nil or table expected");
        }
        ffi::lua_settop(lua, 2);
        protect::refuse(lua, 1);
        if ffi::lua_getmetatable(lua, 1) != 0 {
            ffi::lua_pushstring(lua, c"__metatable".as_ptr());
            if ffi::lua_rawget(lua, -2) != ffi::LUA_TNIL {
                crate::raise(lua, c"cannot change a protected metatable");
            }
            ffi::lua_settop(lua, 2);
        }
        if kind == ffi::LUA_TTABLE {
            // In 5.1 tables have no finalizers. Lua looks for `__gc` only at this call, so it may be present before and
            // after.
            ffi::lua_pushstring(lua, c"__gc".as_ptr());
            if ffi::lua_rawget(lua, 2) != ffi::LUA_TNIL {
                set_finalizer(lua, None);
                ffi::lua_pushvalue(lua, 2);
                ffi::lua_setmetatable(lua, 1);
                set_finalizer(lua, Some(3));
                ffi::lua_settop(lua, 1);
                return 1;
            }
            ffi::lua_settop(lua, 2);
        }
        ffi::lua_setmetatable(lua, 1);
        1
    }
}

/// Sets `__gc` of the table at 2 to the value at an index, or to nil.
unsafe fn set_finalizer(lua: *mut lua_State, value: Option<c_int>) {
    // SAFETY: the key was there, so no memory is needed.
    unsafe {
        ffi::lua_pushstring(lua, c"__gc".as_ptr());
        match value {
            Some(index) => ffi::lua_pushvalue(lua, index),
            None => ffi::lua_pushnil(lua),
        }
        ffi::lua_rawset(lua, 2);
    }
}

unsafe fn select(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let count = i64::from(ffi::lua_gettop(lua));
        if ffi::lua_type(lua, 1) == ffi::LUA_TSTRING
            && crate::to_bytes(lua, 1).is_some_and(|word| word.starts_with(b"#"))
        {
            ffi::lua_pushinteger(lua, count - 1);
            return 1;
        }
        let index = i64::from(argument::int(lua, 1));
        let index = if index < 0 { count + index } else { index.min(count) };
        if index < 1 {
            argument::fail(lua, 1, c"index out of range");
        }
        (count - index) as c_int
    }
}

unsafe fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the stack grows before more are needed.
    unsafe {
        argument::table(lua, 1);
        let first = i64::from(argument::int_or(lua, 2, 1));
        let last = if ffi::lua_type(lua, 3) <= ffi::LUA_TNIL {
            super::table::length(lua, 1)
        } else {
            i64::from(argument::int(lua, 3))
        };
        if first > last {
            return 0;
        }
        let count = last - first + 1;
        if count + i64::from(ffi::lua_gettop(lua)) > VALUES_MAX || ffi::lua_checkstack(lua, count as c_int) == 0 {
            crate::raise(lua, c"too many results to unpack");
        }
        for index in first..=last {
            ffi::lua_rawgeti(lua, 1, index);
        }
        count as c_int
    }
}

unsafe fn tonumber(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let base = argument::int_or(lua, 2, 10);
        if base == 10 {
            argument::any(lua, 1);
            match ffi::lua_type(lua, 1) {
                ffi::LUA_TNUMBER => ffi::lua_pushvalue(lua, 1),
                _ => match argument::to_number(lua, 1) {
                    Some(number) => number::push(lua, number),
                    None => ffi::lua_pushnil(lua),
                },
            }
            return 1;
        }
        let start = argument::string(lua, 1).as_ptr().cast();
        if !(2..=36).contains(&base) {
            argument::fail(lua, 2, c"base out of range");
        }
        let mut end = std::ptr::null_mut();
        let number = libc::strtoul(start, &mut end, base);
        if !std::ptr::eq(end, start) {
            while number::is_blank(*end as u8) {
                end = end.add(1);
            }
            if *end == 0 {
                number::push(lua, number as f64);
                return 1;
            }
        }
        ffi::lua_pushnil(lua);
        1
    }
}

unsafe fn tostring(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. The metamethod's result is the function's, whatever it is.
    unsafe {
        argument::any(lua, 1);
        match ffi::lua_type(lua, 1) {
            ffi::LUA_TSTRING => ffi::lua_pushvalue(lua, 1),
            ffi::LUA_TNUMBER => argument::push_text(lua, 1),
            ffi::LUA_TNIL => drop(ffi::lua_pushstring(lua, c"nil".as_ptr())),
            ffi::LUA_TBOOLEAN => {
                let text = if ffi::lua_toboolean(lua, 1) != 0 { c"true" } else { c"false" };
                ffi::lua_pushstring(lua, text.as_ptr());
            }
            _ => {
                if ffi::luaL_getmetafield(lua, 1, c"__tostring".as_ptr()) != ffi::LUA_TNIL {
                    ffi::lua_pushvalue(lua, 1);
                    ffi::lua_callk(lua, 1, 1, 0, Some(continuation!(called)));
                } else {
                    let name = argument::type_name(lua, 1).as_ptr();
                    ffi::lua_pushfstring(lua, c"%s: %p".as_ptr(), name, ffi::lua_topointer(lua, 1));
                }
            }
        }
        1
    }
}

/// Returns the one result of a function that was called and suspended.
pub(super) unsafe fn called(_: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    1
}

/// `collectgarbage`: counts and collects. What would change how the collector works is accepted and without effect:
/// the next script would feel it.
unsafe fn collectgarbage(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. There are no finalizers of scripts.
    unsafe {
        let option = argument::string_or(lua, 1, b"collect");
        argument::int_or(lua, 2, 0);
        match option {
            b"count" => number::push(lua, heap(lua) as f64 / 1024.0),
            b"collect" => {
                if heap(lua) > SMALL_HEAP {
                    match crate::weigh(lua, usize::MAX) {
                        Poll::Go => {}
                        Poll::Leave => return crate::leave(lua, again!(collectgarbage)),
                        Poll::Stop => crate::stopped(lua),
                    }
                }
                ffi::lua_gc(lua, ffi::LUA_GCCOLLECT);
                ffi::lua_pushinteger(lua, 0);
            }
            b"step" => ffi::lua_pushboolean(lua, 1),
            b"stop" | b"restart" => ffi::lua_pushinteger(lua, 0),
            b"setpause" | b"setstepmul" => ffi::lua_pushinteger(lua, 200),
            other => {
                ffi::lua_pushstring(lua, c"invalid option '".as_ptr());
                crate::push_bytes(lua, other);
                ffi::lua_pushstring(lua, c"'".as_ptr());
                ffi::lua_concat(lua, 3);
                argument::fail(lua, 1, CStr::from_ptr(ffi::lua_tostring(lua, -1)));
            }
        }
        1
    }
}

unsafe fn gcinfo(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        ffi::lua_pushinteger(lua, (heap(lua) / 1024) as i64);
        1
    }
}

/// Returns the bytes in use.
unsafe fn heap(lua: *mut lua_State) -> usize {
    // SAFETY: these two requests only read.
    unsafe { ffi::lua_gc(lua, ffi::LUA_GCCOUNT) as usize * 1024 + ffi::lua_gc(lua, ffi::LUA_GCCOUNTB) as usize }
}
