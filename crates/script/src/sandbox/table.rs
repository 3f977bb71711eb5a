//! The table library of Lua 5.1, apart from `sort`. As in 5.1 access is raw: metatables are ignored.
//!
//! A function that moves elements keeps its position on the stack and continues from there: a half-moved table does not
//! allow a restart.

use std::ffi::{CStr, c_int};

use super::argument;
use super::buffer::Buffer;
use super::number;
use super::protect;
use crate::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use crate::run::Poll;
use crate::{again, continuation, function};

/// Elements handled between two polls.
const ELEMENTS: i64 = 2048;

/// Leaves the library's table on the stack.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 9] = [
        (c"concat", function!(concat)),
        (c"foreach", function!(foreach)),
        (c"foreachi", function!(foreachi)),
        (c"getn", function!(getn)),
        (c"insert", function!(insert)),
        (c"maxn", function!(maxn)),
        (c"remove", function!(remove)),
        (c"setn", function!(setn)),
        (c"sort", function!(super::sort::sort)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { super::register(lua, &FUNCTIONS) };
}

/// Returns the length of the table at `n`.
pub(super) unsafe fn length(lua: *mut lua_State, n: c_int) -> i64 {
    // SAFETY: the caller has seen a table.
    unsafe { i64::from(ffi::lua_rawlen(lua, n) as i32) }
}

/// Leaves with `again` or raises, according to the poll.
pub(super) unsafe fn end(lua: *mut lua_State, verdict: Poll, again: ffi::lua_KFunction) -> c_int {
    // SAFETY: no value with a destructor is alive.
    unsafe {
        match verdict {
            Poll::Leave => crate::leave(lua, again),
            _ => crate::stopped(lua),
        }
    }
}

unsafe fn getn(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        ffi::lua_pushinteger(lua, length(lua, 1));
        1
    }
}

unsafe fn setn(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        crate::raise(lua, c"'setn' is obsolete")
    }
}

unsafe fn insert(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        protect::refuse(lua, 1);
        let mut end = length(lua, 1) + 1;
        match ffi::lua_gettop(lua) {
            2 => {
                ffi::lua_rawseti(lua, 1, end);
                0
            }
            3 => {
                let place = i64::from(argument::int(lua, 2));
                end = end.max(place);
                ffi::lua_pushinteger(lua, place);
                ffi::lua_replace(lua, 2);
                ffi::lua_pushinteger(lua, end);
                shift_up(lua)
            }
            _ => crate::raise(lua, c"wrong number of arguments to 'insert'"),
        }
    }
}

/// Moves the elements from the position (2) to the end (4) up by one, from the end, then stores the value (3) at the
/// position.
unsafe fn shift_up(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `insert` left.
    unsafe {
        let place = ffi::lua_tointeger(lua, 2);
        let mut at = ffi::lua_tointeger(lua, 4);
        while at > place {
            let part = (at - ELEMENTS).max(place);
            while at > part {
                ffi::lua_rawgeti(lua, 1, at - 1);
                ffi::lua_rawseti(lua, 1, at);
                at -= 1;
            }
            if at > place {
                let verdict = crate::poll(lua);
                if verdict != Poll::Go {
                    ffi::lua_pushinteger(lua, at);
                    ffi::lua_replace(lua, 4);
                    return end(lua, verdict, again!(shift_up));
                }
            }
        }
        ffi::lua_pushvalue(lua, 3);
        ffi::lua_rawseti(lua, 1, place);
        0
    }
}

unsafe fn remove(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        let end = length(lua, 1);
        let place = i64::from(argument::int_or(lua, 2, end as i32));
        if !(1..=end).contains(&place) {
            return 0;
        }
        ffi::lua_settop(lua, 1);
        ffi::lua_rawgeti(lua, 1, place);
        ffi::lua_pushinteger(lua, place);
        ffi::lua_pushinteger(lua, end);
        shift_down(lua)
    }
}

/// Moves the elements after the position (3) up to the end (4) down by one and returns the value (2).
unsafe fn shift_down(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `remove` left.
    unsafe {
        let mut at = ffi::lua_tointeger(lua, 3);
        let last = ffi::lua_tointeger(lua, 4);
        while at < last {
            let part = (at + ELEMENTS).min(last);
            while at < part {
                ffi::lua_rawgeti(lua, 1, at + 1);
                ffi::lua_rawseti(lua, 1, at);
                at += 1;
            }
            if at < last {
                let verdict = crate::poll(lua);
                if verdict != Poll::Go {
                    ffi::lua_pushinteger(lua, at);
                    ffi::lua_replace(lua, 3);
                    return end(lua, verdict, again!(shift_down));
                }
            }
        }
        ffi::lua_pushnil(lua);
        ffi::lua_rawseti(lua, 1, last);
        ffi::lua_settop(lua, 2);
        1
    }
}

unsafe fn concat(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the buffer has no destructor, and raw access runs no Lua.
    unsafe {
        argument::table(lua, 1);
        let separator = argument::string_or(lua, 2, b"");
        let first = i64::from(argument::int_or(lua, 3, 1));
        let last =
            if ffi::lua_type(lua, 4) <= ffi::LUA_TNIL { length(lua, 1) } else { i64::from(argument::int(lua, 4)) };
        let mut buffer = Buffer::begin(lua);
        let mut at = first;
        while at <= last {
            let kind = ffi::lua_rawgeti(lua, 1, at);
            let verdict = match kind {
                ffi::LUA_TSTRING => {
                    let bytes = crate::to_bytes(lua, -1).unwrap_or_default();
                    let verdict = crate::weigh_small(lua, bytes.len());
                    if verdict == Poll::Go {
                        buffer.extend(bytes);
                    }
                    verdict
                }
                ffi::LUA_TNUMBER => {
                    let target = buffer.reserve(number::TEXT_MAX) as *mut [u8; number::TEXT_MAX];
                    let len = number::write(number::of(lua, -1), &mut *target);
                    buffer.advance(len);
                    Poll::Go
                }
                _ => {
                    let name = argument::type_name(lua, -1);
                    let format = c"invalid value (%s) at index %d in table for 'concat'".as_ptr();
                    return ffi::luaL_error(lua, format, name.as_ptr(), at as c_int);
                }
            };
            ffi::lua_pop(lua, 1);
            if at < last {
                buffer.extend(separator);
            }
            at += 1;
            let verdict = match verdict {
                Poll::Go if at % ELEMENTS == 0 => crate::weigh(lua, buffer.len()),
                Poll::Go => buffer.weigh(),
                verdict => verdict,
            };
            if verdict != Poll::Go {
                buffer.free();
                return end(lua, verdict, again!(concat));
            }
        }
        buffer.finish();
        1
    }
}

unsafe fn maxn(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        ffi::lua_settop(lua, 1);
        ffi::lua_pushinteger(lua, 0);
        ffi::lua_pushnil(lua);
        maxn_more(lua)
    }
}

/// Continues after the key at 3; the largest number so far is at 2.
unsafe fn maxn_more(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `maxn` left.
    unsafe {
        let mut steps = 0;
        while ffi::lua_next(lua, 1) != 0 {
            ffi::lua_pop(lua, 1);
            if ffi::lua_type(lua, 3) == ffi::LUA_TNUMBER && number::of(lua, 3) > number::of(lua, 2) {
                ffi::lua_copy(lua, 3, 2);
            }
            steps += 1;
            if steps % ELEMENTS == 0 {
                let verdict = crate::poll(lua);
                if verdict != Poll::Go {
                    return end(lua, verdict, again!(maxn_more));
                }
            }
        }
        ffi::lua_settop(lua, 2);
        1
    }
}

unsafe fn foreach(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        argument::function(lua, 2);
        ffi::lua_settop(lua, 2);
        protect::see_through(lua, 1);
        ffi::lua_pushnil(lua);
        foreach_more(lua)
    }
}

/// Continues after the key at 3.
unsafe fn foreach_more(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `foreach` left.
    unsafe {
        while ffi::lua_next(lua, 1) != 0 {
            ffi::lua_pushvalue(lua, 2);
            ffi::lua_pushvalue(lua, 3);
            ffi::lua_rotate(lua, 4, -1);
            ffi::lua_callk(lua, 2, 1, 0, Some(continuation!(foreach_called)));
            if ffi::lua_type(lua, -1) != ffi::LUA_TNIL {
                return 1;
            }
            ffi::lua_settop(lua, 3);
        }
        0
    }
}

unsafe fn foreach_called(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the function's result is on top of what `foreach_more` knows.
    unsafe {
        if ffi::lua_type(lua, -1) != ffi::LUA_TNIL {
            return 1;
        }
        ffi::lua_settop(lua, 3);
        foreach_more(lua)
    }
}

unsafe fn foreachi(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        argument::table(lua, 1);
        let last = length(lua, 1);
        argument::function(lua, 2);
        ffi::lua_settop(lua, 2);
        ffi::lua_pushinteger(lua, last);
        ffi::lua_pushinteger(lua, 0);
        foreachi_more(lua)
    }
}

/// Continues after the index at 4; the last one is at 3.
unsafe fn foreachi_more(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `foreachi` left.
    unsafe {
        let last = ffi::lua_tointeger(lua, 3);
        let mut at = ffi::lua_tointeger(lua, 4);
        while at < last {
            at += 1;
            ffi::lua_pushinteger(lua, at);
            ffi::lua_replace(lua, 4);
            ffi::lua_pushvalue(lua, 2);
            ffi::lua_pushinteger(lua, at);
            ffi::lua_rawgeti(lua, 1, at);
            ffi::lua_callk(lua, 2, 1, 0, Some(continuation!(foreachi_called)));
            if ffi::lua_type(lua, -1) != ffi::LUA_TNIL {
                return 1;
            }
            ffi::lua_settop(lua, 4);
        }
        0
    }
}

unsafe fn foreachi_called(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `foreach_called`.
    unsafe {
        if ffi::lua_type(lua, -1) != ffi::LUA_TNIL {
            return 1;
        }
        ffi::lua_settop(lua, 4);
        foreachi_more(lua)
    }
}
