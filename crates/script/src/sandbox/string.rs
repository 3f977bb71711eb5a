//! The string library, except patterns and `format`.

use std::ffi::{CStr, c_int};

use super::argument;
use super::buffer::{Buffer, out_of_memory};
use super::find::{self, position};
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::run::Poll;
use crate::{again, function};

/// The maximum number of values that a call may return or take: Lua 5.1's limit of a C function's stack.
pub(super) const VALUES_MAX: i64 = 8000;

/// Bytes handled between two polls.
const PIECE: usize = 1 << 18;

/// Leaves the library's table on the stack.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 15] = [
        (c"byte", function!(byte)),
        (c"char", function!(char)),
        (c"dump", function!(dump)),
        (c"find", function!(find::find)),
        (c"format", function!(super::format::format)),
        (c"gfind", find::GMATCH),
        (c"gmatch", find::GMATCH),
        (c"gsub", function!(super::substitute::gsub)),
        (c"len", function!(len)),
        (c"lower", function!(lower)),
        (c"match", function!(find::r#match)),
        (c"rep", function!(rep)),
        (c"reverse", function!(reverse)),
        (c"sub", function!(sub)),
        (c"upper", function!(upper)),
    ];
    // SAFETY: called inside a protected call.
    unsafe { super::register(lua, &FUNCTIONS) };
}

unsafe fn len(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let bytes = argument::string(lua, 1);
        ffi::lua_pushinteger(lua, bytes.len() as i64);
        1
    }
}

unsafe fn sub(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let bytes = argument::string(lua, 1);
        let first = position(argument::integer(lua, 2), bytes.len()).max(1);
        let last = position(argument::integer_or(lua, 3, -1), bytes.len()).min(bytes.len() as i64);
        if first > last {
            ffi::lua_pushlstring(lua, c"".as_ptr(), 0);
            return 1;
        }
        let part = &bytes[first as usize - 1..last as usize];
        if part.len() == bytes.len() {
            ffi::lua_pushvalue(lua, 1);
            return 1;
        }
        match crate::weigh_small(lua, part.len()) {
            Poll::Go => crate::push_bytes(lua, part),
            Poll::Leave => return crate::leave(lua, again!(sub)),
            Poll::Stop => crate::stopped(lua),
        }
        1
    }
}

unsafe fn byte(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the stack grows before more are needed.
    unsafe {
        let bytes = argument::string(lua, 1);
        let first = position(argument::integer_or(lua, 2, 1), bytes.len());
        let last = position(argument::integer_or(lua, 3, first), bytes.len()).min(bytes.len() as i64);
        let first = first.max(1);
        if first > last {
            return 0;
        }
        let count = last - first + 1;
        if count > 1 {
            if count + i64::from(ffi::lua_gettop(lua)) > VALUES_MAX {
                crate::raise(lua, c"stack overflow (string slice too long)");
            }
            ffi::luaL_checkstack(lua, count as c_int, c"string slice too long".as_ptr());
        }
        for byte in &bytes[first as usize - 1..last as usize] {
            ffi::lua_pushinteger(lua, i64::from(*byte));
        }
        count as c_int
    }
}

unsafe fn char(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; there are fewer arguments than a slice takes long to handle.
    unsafe {
        let count = ffi::lua_gettop(lua);
        let mut buffer = Buffer::begin(lua);
        for n in 1..=count {
            match u8::try_from(argument::int(lua, n)) {
                Ok(byte) => buffer.push(byte),
                Err(_) => argument::fail(lua, n, c"invalid value"),
            }
        }
        buffer.finish();
        1
    }
}

unsafe fn dump(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. Nothing could load a dump of Lua 5.4.
    unsafe {
        argument::function(lua, 1);
        crate::raise(lua, c"unable to dump given function")
    }
}

unsafe fn upper(lua: *mut lua_State) -> c_int {
    // SAFETY: as `convert`.
    unsafe { convert(lua, again!(upper), |_, _, part| part.make_ascii_uppercase()) }
}

unsafe fn lower(lua: *mut lua_State) -> c_int {
    // SAFETY: as `convert`.
    unsafe { convert(lua, again!(lower), |_, _, part| part.make_ascii_lowercase()) }
}

unsafe fn reverse(lua: *mut lua_State) -> c_int {
    // SAFETY: as `convert`.
    unsafe {
        convert(lua, again!(reverse), |bytes, at, part| {
            let end = bytes.len() - at;
            let source = &bytes[end - part.len()..end];
            for (target, source) in part.iter_mut().zip(source.iter().rev()) {
                *target = *source;
            }
        })
    }
}

/// Copies the string at 1, lets `change` modify the copy part by part (called with the whole string and the part's
/// position), and pushes the result.
#[inline(always)]
unsafe fn convert(lua: *mut lua_State, again: ffi::lua_KFunction, change: impl Fn(&[u8], usize, &mut [u8])) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the buffer's room is written before it counts.
    unsafe {
        let bytes = argument::string(lua, 1);
        let mut verdict = crate::weigh_small(lua, bytes.len());
        let mut buffer = Buffer::begin(lua);
        if verdict == Poll::Go {
            buffer.reserve(bytes.len());
        }
        let mut at = 0;
        while verdict == Poll::Go && at < bytes.len() {
            let part = &bytes[at..bytes.len().min(at + PIECE)];
            buffer.extend(part);
            change(bytes, at, &mut buffer.bytes()[at..]);
            at += part.len();
            verdict = buffer.weigh();
        }
        finish(lua, buffer, verdict, again)
    }
}

/// Pushes a buffer's content, or follows the poll's instruction.
unsafe fn finish(lua: *mut lua_State, mut buffer: Buffer, verdict: Poll, again: ffi::lua_KFunction) -> c_int {
    // SAFETY: the buffer has no destructor.
    unsafe {
        match verdict {
            Poll::Go => {
                buffer.finish();
                1
            }
            Poll::Leave => {
                buffer.free();
                crate::leave(lua, again)
            }
            Poll::Stop => {
                buffer.free();
                crate::stopped(lua)
            }
        }
    }
}

unsafe fn rep(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; what is copied within the buffer is written already.
    unsafe {
        let bytes = argument::string(lua, 1);
        let count = usize::try_from(argument::int(lua, 2)).unwrap_or(0);
        if count == 1 {
            ffi::lua_pushvalue(lua, 1);
            return 1;
        }
        let total = match bytes.len().checked_mul(count) {
            Some(total) => total,
            None => out_of_memory(lua, usize::MAX),
        };
        let mut verdict = crate::weigh_small(lua, total);
        let mut buffer = Buffer::begin(lua);
        if verdict != Poll::Go || total == 0 {
            return finish(lua, buffer, verdict, again!(rep));
        }
        buffer.reserve(total);
        if bytes.len() > PIECE {
            for _ in 0..count {
                buffer.extend(bytes);
                verdict = buffer.weigh();
                if verdict != Poll::Go {
                    break;
                }
            }
        } else {
            // The text so far is copied after itself, doubling up to a piece.
            buffer.extend(bytes);
            while verdict == Poll::Go && buffer.len() < total {
                let whole = buffer.len().min(PIECE) / bytes.len() * bytes.len();
                let part = whole.min(total - buffer.len());
                let target = buffer.reserve(part);
                std::ptr::copy_nonoverlapping(buffer.bytes().as_ptr(), target, part);
                buffer.advance(part);
                verdict = buffer.weigh();
            }
        }
        finish(lua, buffer, verdict, again!(rep))
    }
}
