//! `string.find`, `match`, `gmatch`: patterns as scripts use them.

use std::ffi::c_int;

use super::argument;
use super::pattern::{Captures, Caught, Fault, Matcher, Meter, is_plain, until_zero};
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::run::Poll;
use crate::state::Core;
use crate::{again, function};

/// `string.gmatch`.
pub(super) const GMATCH: lua_CFunction = function!(gmatch);

/// The poll that decides whether a search may continue.
pub(super) struct Watch {
    lua: *mut lua_State,
    /// The result of the last poll.
    pub(super) verdict: Poll,
}

impl Watch {
    pub(super) fn new(lua: *mut lua_State) -> Watch {
        Watch { lua, verdict: Poll::Go }
    }
}

impl Meter for Watch {
    fn go_on(&mut self) -> bool {
        // SAFETY: a watch lives within one C function.
        self.verdict = unsafe { crate::poll(self.lua) };
        self.verdict == Poll::Go
    }
}

/// Returns the state's space for captures.
///
/// # Safety
/// `lua` is the C function's state; there is no other reference to the space while this one lives.
#[inline]
pub(super) unsafe fn room<'a>(lua: *mut lua_State) -> &'a mut Captures {
    // SAFETY: as promised by the caller.
    unsafe { &mut Core::of(lua).sandbox.captures }
}

/// Ends a function whose search met a fault: leaves, stops or raises.
///
/// # Safety
/// Nothing with a destructor is alive; the arguments are still on the stack.
#[cold]
pub(super) unsafe fn end(lua: *mut lua_State, fault: Fault, verdict: Poll, again: ffi::lua_KFunction) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe {
        match (fault, verdict) {
            (Fault::Interrupted, Poll::Leave) => crate::leave(lua, again),
            (Fault::Interrupted, _) => crate::stopped(lua),
            _ => crate::raise(lua, fault.message()),
        }
    }
}

/// Pushes capture `index` of a match, or the whole of it for index 0 of a pattern without captures.
pub(super) unsafe fn push_capture<M: Meter>(
    lua: *mut lua_State,
    matcher: &Matcher<'_, M>,
    index: usize,
    whole: &[u8],
) -> c_int {
    // SAFETY: a slot is free; the matcher has no destructor.
    unsafe {
        if index >= matcher.captures() {
            if index != 0 {
                crate::raise(lua, Fault::CaptureIndex.message());
            }
            crate::push_bytes(lua, whole);
            return 1;
        }
        match matcher.caught(index) {
            Caught::Bytes(bytes) => crate::push_bytes(lua, bytes),
            Caught::Position(at) => ffi::lua_pushinteger(lua, at as i64 + 1),
            Caught::Unfinished => crate::raise(lua, c"unfinished capture"),
        }
        1
    }
}

/// Pushes all captures, or the whole match of a pattern without any.
pub(super) unsafe fn push_captures<M: Meter>(lua: *mut lua_State, matcher: &Matcher<'_, M>, whole: &[u8]) -> c_int {
    // SAFETY: as `push_capture`.
    unsafe {
        let count = matcher.captures().max(1);
        if count > 8 {
            ffi::luaL_checkstack(lua, count as c_int + 2, c"too many captures".as_ptr());
        }
        for index in 0..count {
            push_capture(lua, matcher, index, whole);
        }
        count as c_int
    }
}

/// Returns the offset that a position of Lua's means: negative ones count from the end.
pub(super) fn position(position: i64, len: usize) -> i64 {
    let position = if position < 0 { position.wrapping_add(len as i64 + 1) } else { position };
    position.max(0)
}

pub(super) unsafe fn find(lua: *mut lua_State) -> c_int {
    // SAFETY: as `search`.
    unsafe { search::<true>(lua) }
}

pub(super) unsafe fn r#match(lua: *mut lua_State) -> c_int {
    // SAFETY: as `search`.
    unsafe { search::<false>(lua) }
}

#[inline(always)]
unsafe fn search<const FIND: bool>(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots. Neither matcher nor watch has a destructor.
    unsafe {
        let subject = argument::string(lua, 1);
        let pattern = argument::string(lua, 2);
        let start = position(argument::integer_or(lua, 3, 1), subject.len()) - 1;
        let start = start.clamp(0, subject.len() as i64) as usize;
        let again = if FIND { again!(find) } else { again!(r#match) };
        if FIND && ffi::lua_toboolean(lua, 4) != 0 {
            return find_plain(lua, subject, pattern, start, again);
        }
        let whole = pattern;
        let pattern = until_zero(whole);
        if FIND && is_plain(pattern) {
            return find_plain(lua, subject, whole, start, again);
        }
        let mut matcher = Matcher::new(subject, pattern, room(lua), Watch::new(lua));
        let found = if matcher.take_anchor() {
            matcher.match_at(start).map(|end| end.map(|end| (start, end)))
        } else {
            matcher.find(start)
        };
        match found {
            Err(fault) => end(lua, fault, matcher.meter().verdict, again),
            Ok(None) => {
                ffi::lua_pushnil(lua);
                1
            }
            Ok(Some((start, end))) if FIND => {
                ffi::lua_pushinteger(lua, start as i64 + 1);
                ffi::lua_pushinteger(lua, end as i64);
                if matcher.captures() == 0 { 2 } else { push_captures(lua, &matcher, &[]) + 2 }
            }
            Ok(Some((start, end))) => push_captures(lua, &matcher, &subject[start..end]),
        }
    }
}

/// Bytes searched between two polls.
const PIECE: usize = 1 << 16;

/// The length up to which a search is a simple loop; beyond it, preparing a faster search pays.
const SHORT: usize = 64;

unsafe fn find_plain(
    lua: *mut lua_State,
    subject: &[u8],
    wanted: &[u8],
    start: usize,
    again: ffi::lua_KFunction,
) -> c_int {
    // SAFETY: as `search`. The searcher borrows its pattern and is dropped before anything is pushed.
    unsafe {
        let found = if wanted.is_empty() {
            Some(start)
        } else if subject.len() - start <= SHORT {
            find_short(&subject[start..], wanted).map(|at| start + at)
        } else {
            let mut verdict = Poll::Go;
            let found = find_long(&subject[start..], wanted, || {
                verdict = crate::poll(lua);
                verdict == Poll::Go
            });
            if verdict != Poll::Go {
                return end(lua, Fault::Interrupted, verdict, again);
            }
            found.map(|at| start + at)
        };
        let Some(at) = found else {
            ffi::lua_pushnil(lua);
            return 1;
        };
        ffi::lua_pushinteger(lua, at as i64 + 1);
        ffi::lua_pushinteger(lua, (at + wanted.len()) as i64);
        2
    }
}

fn find_short(subject: &[u8], wanted: &[u8]) -> Option<usize> {
    let (first, rest) = wanted.split_first()?;
    let last = subject.len().checked_sub(wanted.len())?;
    (0..=last).find(|at| subject[*at] == *first && subject[at + 1..].starts_with(rest))
}

fn find_long(subject: &[u8], wanted: &[u8], mut go_on: impl FnMut() -> bool) -> Option<usize> {
    let finder = memchr::memmem::Finder::new(wanted);
    let mut from = 0;
    loop {
        // A piece overlaps the next one by one byte less than `wanted` has, so that no match is missed.
        let end = subject.len().min(from + PIECE.max(wanted.len()) + wanted.len() - 1);
        if let Some(at) = finder.find(&subject[from..end]) {
            return Some(from + at);
        }
        if end == subject.len() || !go_on() {
            return None;
        }
        from = end + 1 - wanted.len();
    }
}

unsafe fn gmatch(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; subject, pattern and place become upvalues.
    unsafe {
        argument::string(lua, 1);
        argument::string(lua, 2);
        ffi::lua_settop(lua, 2);
        ffi::lua_pushinteger(lua, 0);
        ffi::lua_pushcclosure(lua, function!(gmatch_next), 3);
        1
    }
}

unsafe fn gmatch_next(lua: *mut lua_State) -> c_int {
    // SAFETY: the upvalues are those of `gmatch`; they keep the bytes alive.
    unsafe {
        let subject = crate::to_bytes(lua, ffi::lua_upvalueindex(1)).unwrap_or_default();
        let pattern = until_zero(crate::to_bytes(lua, ffi::lua_upvalueindex(2)).unwrap_or_default());
        let start = ffi::lua_tointegerx(lua, ffi::lua_upvalueindex(3), std::ptr::null_mut()) as usize;
        if start > subject.len() {
            return 0;
        }
        let mut matcher = Matcher::new(subject, pattern, room(lua), Watch::new(lua));
        match matcher.find(start) {
            Err(fault) => end(lua, fault, matcher.meter().verdict, again!(gmatch_next)),
            Ok(None) => 0,
            Ok(Some((start, end))) => {
                ffi::lua_pushinteger(lua, end as i64 + i64::from(start == end));
                ffi::lua_replace(lua, ffi::lua_upvalueindex(3));
                push_captures(lua, &matcher, &subject[start..end])
            }
        }
    }
}
