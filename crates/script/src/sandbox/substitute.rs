//! `string.gsub`.
//!
//! With a string or a plain table as replacement, no code of the script runs in between: the result grows in the
//! state's buffer, and a call that must leave its thread starts again on another. With a function, or a table that has
//! a metatable, the script runs at every match and may wait or be suspended; then the position, the count and the
//! result so far are in a userdata on the stack, and a continuation resumes from there.

use std::ffi::c_int;

use super::argument;
use super::buffer::{Buffer, out_of_memory};
use super::find::{Watch, end, push_capture, push_captures, room};
use super::pattern::{Caught, Fault, Matcher, until_zero};
use crate::ffi::{self, lua_KContext, lua_State};
use crate::run::Poll;
use crate::{again, continuation};

pub(super) unsafe fn gsub(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let subject = argument::string(lua, 1);
        let pattern = until_zero(argument::string(lua, 2));
        let kind = ffi::lua_type(lua, 3);
        match kind {
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER | ffi::LUA_TTABLE | ffi::LUA_TFUNCTION => {}
            _ => argument::fail(lua, 3, c"string/function/table expected"),
        }
        let most = argument::int_or(lua, 4, (subject.len() + 1) as i32);
        let most = usize::try_from(most).unwrap_or(0);
        let runs = match kind {
            ffi::LUA_TFUNCTION => true,
            ffi::LUA_TTABLE if ffi::lua_getmetatable(lua, 3) != 0 => {
                ffi::lua_pop(lua, 1);
                true
            }
            _ => false,
        };
        if runs {
            begin(lua, most);
            return go_on(lua);
        }
        let replacement = if kind == ffi::LUA_TTABLE { None } else { Some(argument::string(lua, 3)) };
        at_once(lua, subject, pattern, replacement, most)
    }
}

/// Replaces by a string, or by the values of the table at 3.
unsafe fn at_once(
    lua: *mut lua_State,
    subject: &[u8],
    pattern: &[u8],
    replacement: Option<&[u8]>,
    most: usize,
) -> c_int {
    // SAFETY: a C function's usual stack. No value here has a destructor, and the pushes in between run no Lua code.
    unsafe {
        let special = replacement.is_some_and(|bytes| memchr::memchr(b'%', bytes).is_some());
        let verdict = crate::weigh(lua, subject.len().max(replacement.unwrap_or_default().len()));
        if verdict != Poll::Go {
            return end(lua, Fault::Interrupted, verdict, again!(gsub));
        }
        let mut buffer = Buffer::begin(lua);
        let mut matcher = Matcher::new(subject, pattern, room(lua), Watch::new(lua));
        let anchored = matcher.take_anchor();
        let (mut at, mut kept, mut count) = (0, 0, 0);
        while count < most {
            let found =
                if anchored { matcher.match_at(at).map(|end| end.map(|end| (at, end))) } else { matcher.find(at) };
            let (start, stop) = match found {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(fault) => {
                    buffer.free();
                    return end(lua, fault, matcher.meter().verdict, again!(gsub));
                }
            };
            count += 1;
            let whole = &subject[start..stop];
            buffer.extend(&subject[kept..start]);
            let verdict = match replacement {
                Some(bytes) if !special => {
                    buffer.extend(bytes);
                    buffer.weigh()
                }
                Some(bytes) => expand(lua, &mut buffer, &matcher, bytes, whole),
                None => look_up(lua, &mut buffer, &matcher, whole),
            };
            if verdict != Poll::Go {
                buffer.free();
                return end(lua, Fault::Interrupted, verdict, again!(gsub));
            }
            kept = stop;
            if stop > start {
                at = stop;
            } else if start < subject.len() {
                // After an empty match the next byte is kept.
                at = start + 1;
            } else {
                break;
            }
            if anchored {
                break;
            }
        }
        if count == 0 {
            ffi::lua_pushvalue(lua, 1);
        } else {
            buffer.extend(&subject[kept..]);
            buffer.finish();
        }
        ffi::lua_pushinteger(lua, count as i64);
        2
    }
}

/// Adds a replacement in which `%1` stands for captures.
unsafe fn expand(
    lua: *mut lua_State,
    buffer: &mut Buffer,
    matcher: &Matcher<'_, Watch>,
    replacement: &[u8],
    whole: &[u8],
) -> Poll {
    // SAFETY: as `at_once`.
    unsafe {
        let mut rest = replacement;
        while let Some(at) = memchr::memchr(b'%', rest) {
            let verdict = buffer.weigh();
            if verdict != Poll::Go {
                return verdict;
            }
            buffer.extend(&rest[..at]);
            // After a `%` at the end, Lua sees the NUL that terminates its strings.
            let next = rest.get(at + 1).copied().unwrap_or(0);
            rest = rest.get(at + 2..).unwrap_or_default();
            match next {
                b'0' => buffer.extend(whole),
                b'1'..=b'9' => {
                    let index = usize::from(next - b'1');
                    if index >= matcher.captures() {
                        if index != 0 {
                            crate::raise(lua, Fault::CaptureIndex.message());
                        }
                        buffer.extend(whole);
                        continue;
                    }
                    match matcher.caught(index) {
                        Caught::Bytes(bytes) => buffer.extend(bytes),
                        Caught::Position(at) => {
                            let mut text = [0; super::number::TEXT_MAX];
                            let len = super::number::write(at as f64 + 1.0, &mut text);
                            buffer.extend(&text[..len]);
                        }
                        Caught::Unfinished => crate::raise(lua, c"unfinished capture"),
                    }
                }
                other => buffer.push(other),
            }
        }
        buffer.extend(rest);
        buffer.weigh()
    }
}

/// Appends the value of the first capture in the table at 3, which has no metatable.
unsafe fn look_up(lua: *mut lua_State, buffer: &mut Buffer, matcher: &Matcher<'_, Watch>, whole: &[u8]) -> Poll {
    // SAFETY: as `at_once`. The value's bytes are added before it is popped.
    unsafe {
        push_capture(lua, matcher, 0, whole);
        ffi::lua_rawget(lua, 3);
        match ffi::lua_type(lua, -1) {
            ffi::LUA_TNIL => buffer.extend(whole),
            ffi::LUA_TBOOLEAN if ffi::lua_toboolean(lua, -1) == 0 => buffer.extend(whole),
            _ => buffer.extend(replacement_bytes(lua)),
        }
        ffi::lua_pop(lua, 1);
        buffer.weigh()
    }
}

/// Returns the bytes of the value on top; raises an error if it is neither a string nor a number.
unsafe fn replacement_bytes<'a>(lua: *mut lua_State) -> &'a [u8] {
    // SAFETY: a number is turned into a string in place.
    unsafe {
        match ffi::lua_type(lua, -1) {
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER => argument::string(lua, ffi::lua_gettop(lua)),
            _ => {
                let name = argument::type_name(lua, -1);
                ffi::luaL_error(lua, c"invalid replacement value (a %s)".as_ptr(), name.as_ptr());
                unreachable!("an error does not return")
            }
        }
    }
}

/// The state of a call of gsub that runs the script, in a userdata at [`PROGRESS`]; the result so far follows it.
#[derive(Clone, Copy)]
struct Progress {
    at: usize,
    kept: usize,
    /// The start and end of the match being replaced.
    start: usize,
    stop: usize,
    count: usize,
    most: usize,
    len: usize,
    capacity: usize,
}

const PROGRESS: c_int = 5;

unsafe fn begin(lua: *mut lua_State, most: usize) {
    const CAPACITY: usize = 200;
    // SAFETY: a userdata is aligned for anything.
    unsafe {
        ffi::lua_settop(lua, 4);
        let progress = ffi::lua_newuserdatauv(lua, size_of::<Progress>() + CAPACITY, 0) as *mut Progress;
        let fresh = Progress { at: 0, kept: 0, start: 0, stop: 0, count: 0, most, len: 0, capacity: CAPACITY };
        progress.write(fresh);
    }
}

/// Returns the state that `begin` made. The pointer is valid until the state grows.
unsafe fn progress(lua: *mut lua_State) -> *mut Progress {
    // SAFETY: a slot of the stack.
    unsafe { ffi::lua_touserdata(lua, PROGRESS) as *mut Progress }
}

/// Adds to the result; returns the state, which may have moved.
unsafe fn add(lua: *mut lua_State, mut state: *mut Progress, bytes: &[u8]) -> *mut Progress {
    // SAFETY: the state is followed by `len` bytes of the result, and has room for `capacity`.
    unsafe {
        let Progress { len, capacity, .. } = *state;
        if capacity - len < bytes.len() {
            let larger = len.saturating_add(bytes.len()).max(capacity.saturating_mul(2));
            if larger > isize::MAX as usize / 2 {
                out_of_memory(lua, larger);
            }
            let target = ffi::lua_newuserdatauv(lua, size_of::<Progress>() + larger, 0) as *mut Progress;
            std::ptr::copy_nonoverlapping(state as *const u8, target as *mut u8, size_of::<Progress>() + len);
            ffi::lua_replace(lua, PROGRESS);
            state = target;
            (*state).capacity = larger;
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (state.add(1) as *mut u8).add(len), bytes.len());
        (*state).len += bytes.len();
        state
    }
}

unsafe fn go_on(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `begin` made. Nothing here has a destructor.
    unsafe {
        let subject = argument::string(lua, 1);
        let pattern = until_zero(argument::string(lua, 2));
        let mut state = progress(lua);
        while (*state).count < (*state).most {
            let mut matcher = Matcher::new(subject, pattern, room(lua), Watch::new(lua));
            let anchored = matcher.take_anchor();
            let at = (*state).at;
            let found = match anchored {
                _ if at > subject.len() => break,
                true if (*state).count > 0 => break,
                true => matcher.match_at(at).map(|end| end.map(|end| (at, end))),
                false => matcher.find(at),
            };
            let (start, stop) = match found {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(fault) => return end(lua, fault, matcher.meter().verdict, again!(go_on)),
            };
            (*state).count += 1;
            (*state).start = start;
            (*state).stop = stop;
            if ffi::lua_type(lua, 3) == ffi::LUA_TFUNCTION {
                ffi::lua_pushvalue(lua, 3);
                let captures = push_captures(lua, &matcher, &subject[start..stop]);
                ffi::lua_callk(lua, captures, 1, 0, Some(continuation!(replaced)));
            } else {
                ffi::lua_pushvalue(lua, 3);
                push_capture(lua, &matcher, 0, &subject[start..stop]);
                super::index(lua, continuation!(replaced));
            }
            let more;
            (state, more) = take(lua, state, subject);
            if !more {
                break;
            }
            let verdict = crate::weigh(lua, (*state).len);
            if verdict != Poll::Go {
                return end(lua, Fault::Interrupted, verdict, again!(go_on));
            }
        }
        let verdict = crate::weigh(lua, (*state).len + subject.len() - (*state).kept);
        if verdict != Poll::Go {
            return end(lua, Fault::Interrupted, verdict, again!(go_on));
        }
        let state = add(lua, state, &subject[(*state).kept..]);
        crate::push_bytes(lua, std::slice::from_raw_parts(state.add(1) as *const u8, (*state).len));
        ffi::lua_pushinteger(lua, (*state).count as i64);
        2
    }
}

/// Continues after the script was suspended and has ended; its result is on top.
unsafe fn replaced(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `go_on`.
    unsafe {
        let subject = argument::string(lua, 1);
        let (state, more) = take(lua, progress(lua), subject);
        if !more {
            (*state).most = (*state).count;
        }
        go_on(lua)
    }
}

/// Adds the value on top in place of the match; returns the state, and whether there may be more matches.
unsafe fn take(lua: *mut lua_State, state: *mut Progress, subject: &[u8]) -> (*mut Progress, bool) {
    // SAFETY: as `go_on`.
    unsafe {
        let Progress { kept, start, stop, .. } = *state;
        let bytes = if ffi::lua_toboolean(lua, -1) == 0 { &subject[start..stop] } else { replacement_bytes(lua) };
        let state = add(lua, state, &subject[kept..start]);
        let state = add(lua, state, bytes);
        ffi::lua_settop(lua, PROGRESS);
        (*state).kept = stop;
        (*state).at = if stop > start { stop } else { start + 1 };
        (state, stop > start || start < subject.len())
    }
}
