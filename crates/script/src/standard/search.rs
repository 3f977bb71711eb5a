//! `string.find`, `match`, `gmatch` and `gsub` for scripts of the proxy.
//!
//! Short searches are passed to Lua's own functions, and so are arguments that these reject. A search that may take
//! long uses the matcher of [`pattern`](super::pattern): when the slice is over, the matcher is copied into a userdata
//! on the stack and the function is suspended. If the replacement is a Lua function or a table with metamethods, `gsub`
//! uses the matcher for subjects of any size, because it must call the script by a call that can be suspended.

use std::ffi::c_int;

use super::pattern::{Caught, Fault, Matcher, Outcome, is_plain, steps};
use super::{Original, original};
use crate::ffi::{self, lua_KContext, lua_State};
use crate::run::Poll;
use crate::state::Core;
use crate::{continuation, function, raise, to_bytes};

/// The maximum number of bytes that a plain search by Lua's own function compares.
const PLAIN_MAX: usize = 1 << 20;

/// The slot in which a suspended function keeps its matcher: after those of its arguments and its progress.
const SAVED: c_int = 6;

/// Returns the state's matcher.
///
/// # Safety
/// `lua` is the state with which a C function was called; nothing else refers to the matcher while the reference lives.
#[inline]
unsafe fn matcher<'a>(lua: *mut lua_State) -> &'a mut Matcher {
    // SAFETY: as promised by the caller.
    unsafe { Core::of(lua).standard.matcher() }
}

/// Runs the state's matcher until the search ends, the slice is over or the script has to end.
unsafe fn run(lua: *mut lua_State, subject: &[u8], pattern: &[u8]) -> (Outcome, Poll) {
    let mut verdict = Poll::Go;
    // SAFETY: `poll` does not refer to the matcher.
    let outcome = unsafe {
        matcher(lua).run(subject, pattern, || {
            verdict = crate::poll(lua);
            verdict == Poll::Go
        })
    };
    (outcome, verdict)
}

/// Suspends a function whose search was interrupted, with its matcher in the slot [`SAVED`], or raises an error.
#[cold]
unsafe fn suspend(lua: *mut lua_State, outcome: Outcome, verdict: Poll, then: ffi::lua_KFunction) -> c_int {
    // SAFETY: a C function's usual stack; nothing with a destructor is alive.
    unsafe {
        match outcome {
            Outcome::Fault(fault) => fail(lua, fault),
            _ if verdict == Poll::Leave => {
                ffi::lua_settop(lua, SAVED - 1);
                let saved = ffi::lua_newuserdatauv(lua, size_of::<Matcher>(), 0) as *mut Matcher;
                saved.write(*matcher(lua));
                crate::leave(lua, then)
            }
            _ => crate::stopped(lua),
        }
    }
}

/// Restores the matcher of a suspended function.
unsafe fn restore(lua: *mut lua_State) {
    // SAFETY: `suspend` left it in its slot.
    unsafe {
        *matcher(lua) = *(ffi::lua_touserdata(lua, SAVED) as *const Matcher);
        ffi::lua_settop(lua, SAVED - 1);
    }
}

#[cold]
unsafe fn fail(lua: *mut lua_State, fault: Fault) -> ! {
    // SAFETY: no value with a destructor is alive; the argument is of the type that the format requires.
    unsafe {
        if let Fault::CaptureIndex(digit) = fault {
            ffi::luaL_error(lua, c"invalid capture index %%%d".as_ptr(), c_int::from(digit));
        }
        raise(lua, fault.message())
    }
}

/// Pushes capture `index` of the match; for index 0 of a pattern without captures, the whole match.
unsafe fn push_capture(lua: *mut lua_State, subject: &[u8], index: usize, whole: &[u8]) {
    // SAFETY: a slot is free.
    unsafe {
        let matcher = &*matcher(lua);
        if index >= matcher.captures() {
            if index != 0 {
                ffi::luaL_error(lua, c"invalid capture index %%%d".as_ptr(), index as c_int + 1);
            }
            return crate::push_bytes(lua, whole);
        }
        match matcher.caught(index) {
            Caught::Bytes(from, to) => crate::push_bytes(lua, &subject[from..to]),
            Caught::Position(at) => ffi::lua_pushinteger(lua, at as i64 + 1),
            Caught::Unfinished => raise(lua, c"unfinished capture"),
        }
    }
}

/// Pushes all captures. For a pattern without captures, pushes the whole match, or nothing if `whole` is `None`.
unsafe fn push_captures(lua: *mut lua_State, subject: &[u8], whole: Option<&[u8]>) -> c_int {
    // SAFETY: as `push_capture`.
    unsafe {
        let captures = matcher(lua).captures();
        let count = if captures == 0 && whole.is_some() { 1 } else { captures };
        ffi::luaL_checkstack(lua, count as c_int + 2, c"too many captures".as_ptr());
        for index in 0..count {
            push_capture(lua, subject, index, whole.unwrap_or_default());
        }
        count as c_int
    }
}

/// Returns the bytes of an argument that is a string.
#[inline]
unsafe fn bytes<'a>(lua: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: the value stays on the stack.
    unsafe { to_bytes(lua, index).unwrap_or_default() }
}

/// Returns whether both arguments are strings, and searching the first for the second may take long.
#[inline]
unsafe fn may_take_long(lua: *mut lua_State) -> bool {
    // SAFETY: the arguments are only read.
    unsafe {
        match (to_bytes(lua, 1), to_bytes(lua, 2)) {
            (Some(subject), Some(pattern)) => super::is_forced() || steps(subject.len(), pattern).is_none(),
            _ => false,
        }
    }
}

/// Returns the offset that an optional argument stands for, as in Lua; it may be beyond the end.
unsafe fn offset(lua: *mut lua_State, index: c_int, len: usize) -> usize {
    // SAFETY: an argument that is no integer raises.
    unsafe {
        let position = ffi::luaL_optinteger(lua, index, 1);
        let from_end = len as i64 + position;
        usize::try_from(if position > 0 { position - 1 } else { from_end }).unwrap_or(0) * usize::from(position != 0)
    }
}

pub(super) unsafe fn find(lua: *mut lua_State) -> c_int {
    // SAFETY: as `search`.
    unsafe { if may_take_long(lua) { search::<true>(lua) } else { original(lua, Original::Find) } }
}

pub(super) unsafe fn r#match(lua: *mut lua_State) -> c_int {
    // SAFETY: as `search`.
    unsafe { if may_take_long(lua) { search::<false>(lua) } else { original(lua, Original::Match) } }
}

unsafe fn search<const FIND: bool>(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack, with two strings.
    unsafe {
        let (subject, pattern) = (bytes(lua, 1), bytes(lua, 2));
        let from = offset(lua, 3, subject.len());
        if from > subject.len() {
            ffi::lua_pushnil(lua);
            return 1;
        }
        if FIND && (ffi::lua_toboolean(lua, 4) != 0 || is_plain(pattern)) {
            if subject.len().saturating_mul(pattern.len()) <= PLAIN_MAX && !super::is_forced() {
                return original(lua, Original::Find);
            }
            let Some(at) = memchr::memmem::find(&subject[from..], pattern) else {
                ffi::lua_pushnil(lua);
                return 1;
            };
            ffi::lua_pushinteger(lua, (from + at) as i64 + 1);
            ffi::lua_pushinteger(lua, (from + at + pattern.len()) as i64);
            return 2;
        }
        matcher(lua).begin(pattern, from, true);
        go_on::<FIND>(lua)
    }
}

unsafe fn go_on<const FIND: bool>(lua: *mut lua_State) -> c_int {
    // SAFETY: as `search`; the matcher is the one of this search.
    unsafe {
        let (subject, pattern) = (bytes(lua, 1), bytes(lua, 2));
        match run(lua, subject, pattern) {
            (Outcome::Found(start, end), _) if FIND => {
                ffi::lua_pushinteger(lua, start as i64 + 1);
                ffi::lua_pushinteger(lua, end as i64);
                push_captures(lua, subject, None) + 2
            }
            (Outcome::Found(start, end), _) => push_captures(lua, subject, Some(&subject[start..end])),
            (Outcome::Nothing, _) => {
                ffi::lua_pushnil(lua);
                1
            }
            (outcome, verdict) => {
                let then = if FIND { continuation!(found_more) } else { continuation!(matched_more) };
                suspend(lua, outcome, verdict, then)
            }
        }
    }
}

unsafe fn found_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `go_on`.
    unsafe {
        restore(lua);
        go_on::<true>(lua)
    }
}

unsafe fn matched_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `go_on`.
    unsafe {
        restore(lua);
        go_on::<false>(lua)
    }
}

/// The value that `gmatch` keeps as the end of the last match until there is a match.
const NO_MATCH: i64 = -1;

pub(super) unsafe fn gmatch(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; subject, pattern, place and end of the last match become upvalues.
    unsafe {
        if !may_take_long(lua) {
            return original(lua, Original::Gmatch);
        }
        let len = bytes(lua, 1).len();
        let from = offset(lua, 3, len).min(len + 1);
        ffi::lua_settop(lua, 2);
        ffi::lua_pushinteger(lua, from as i64);
        ffi::lua_pushinteger(lua, NO_MATCH);
        ffi::lua_pushcclosure(lua, function!(gmatch_next), 4);
        1
    }
}

unsafe fn gmatch_next(lua: *mut lua_State) -> c_int {
    // SAFETY: the upvalues are those of `gmatch`; they keep the bytes alive.
    unsafe {
        ffi::lua_settop(lua, 0);
        let pattern = bytes(lua, ffi::lua_upvalueindex(2));
        let from = ffi::lua_tointeger(lua, ffi::lua_upvalueindex(3)) as usize;
        if from > bytes(lua, ffi::lua_upvalueindex(1)).len() {
            return 0;
        }
        matcher(lua).begin(pattern, from, false);
        gmatch_go_on(lua)
    }
}

unsafe fn gmatch_go_on(lua: *mut lua_State) -> c_int {
    // SAFETY: as `gmatch_next`.
    unsafe {
        let subject = bytes(lua, ffi::lua_upvalueindex(1));
        let pattern = bytes(lua, ffi::lua_upvalueindex(2));
        let last = ffi::lua_tointeger(lua, ffi::lua_upvalueindex(4));
        loop {
            match run(lua, subject, pattern) {
                // An empty match where the previous one ended does not count.
                (Outcome::Found(_, end), _) if end as i64 == last => {
                    if end >= subject.len() {
                        return 0;
                    }
                    matcher(lua).begin(pattern, end + 1, false);
                }
                (Outcome::Found(start, end), _) => {
                    ffi::lua_pushinteger(lua, end as i64);
                    ffi::lua_pushvalue(lua, -1);
                    ffi::lua_replace(lua, ffi::lua_upvalueindex(3));
                    ffi::lua_replace(lua, ffi::lua_upvalueindex(4));
                    return push_captures(lua, subject, Some(&subject[start..end]));
                }
                (Outcome::Nothing, _) => return 0,
                (outcome, verdict) => return suspend(lua, outcome, verdict, continuation!(gmatch_more)),
            }
        }
    }
}

unsafe fn gmatch_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `gmatch_go_on`.
    unsafe {
        restore(lua);
        gmatch_go_on(lua)
    }
}

/// The progress of `gsub`: in a userdata at [`PROGRESS`], followed by the result so far.
#[derive(Clone, Copy)]
struct Progress {
    /// The length of the subject's part that is in the result.
    kept: usize,
    /// The start of the search for the next match.
    at: usize,
    /// The end of the last match.
    last: Option<usize>,
    /// The match that is being replaced.
    start: usize,
    stop: usize,
    count: i64,
    most: i64,
    len: usize,
    capacity: usize,
}

const PROGRESS: c_int = 5;

pub(super) unsafe fn gsub(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; a userdata is aligned for anything.
    unsafe {
        const CAPACITY: usize = 200;
        let (Some(subject), Some(pattern)) = (to_bytes(lua, 1), to_bytes(lua, 2)) else {
            return original(lua, Original::Gsub);
        };
        let kind = ffi::lua_type(lua, 3);
        let by_script = match kind {
            ffi::LUA_TFUNCTION => ffi::lua_iscfunction(lua, 3) == 0,
            ffi::LUA_TTABLE => super::has_metatable(lua, 3),
            _ => false,
        };
        let is_long = || {
            let each = if kind == ffi::LUA_TSTRING { bytes(lua, 3).len() } else { 0 };
            steps(subject.len(), pattern).is_none() || subject.len().saturating_mul(each) > PLAIN_MAX
        };
        let is_ours = matches!(kind, ffi::LUA_TNUMBER | ffi::LUA_TSTRING | ffi::LUA_TTABLE | ffi::LUA_TFUNCTION);
        if !is_ours || !(by_script || super::is_forced() || is_long()) {
            return original(lua, Original::Gsub);
        }
        let most = ffi::luaL_optinteger(lua, 4, subject.len() as i64 + 1);
        ffi::lua_settop(lua, PROGRESS - 1);
        if kind == ffi::LUA_TNUMBER {
            ffi::lua_tolstring(lua, 3, std::ptr::null_mut());
        }
        let progress = ffi::lua_newuserdatauv(lua, size_of::<Progress>() + CAPACITY, 0) as *mut Progress;
        let (last, at, kept, start, stop, count, len) = (None, 0, 0, 0, 0, 0, 0);
        progress.write(Progress { kept, at, last, start, stop, count, most, len, capacity: CAPACITY });
        matcher(lua).begin(pattern, 0, true);
        gsub_go_on(lua)
    }
}

/// Returns the progress that `gsub` keeps in its slot; it stays at its address until the result grows.
unsafe fn progress(lua: *mut lua_State) -> *mut Progress {
    // SAFETY: a slot of the stack.
    unsafe { ffi::lua_touserdata(lua, PROGRESS) as *mut Progress }
}

/// Adds to the result; returns the progress, which may have moved.
unsafe fn add(lua: *mut lua_State, mut state: *mut Progress, bytes: &[u8]) -> *mut Progress {
    // SAFETY: the result's bytes follow the state in its userdata, which has room for `capacity` of them.
    unsafe {
        let Progress { len, capacity, .. } = *state;
        if capacity - len < bytes.len() {
            let larger = len.saturating_add(bytes.len()).max(capacity.saturating_mul(2));
            super::check_size(lua, larger);
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

/// Continues to search with the state's matcher, and replaces each match.
unsafe fn gsub_go_on(lua: *mut lua_State) -> c_int {
    // SAFETY: the stack is what `gsub` made. Nothing here has a destructor.
    unsafe {
        let (subject, pattern) = (bytes(lua, 1), bytes(lua, 2));
        let mut state = progress(lua);
        while (*state).count < (*state).most {
            let (start, stop) = match run(lua, subject, pattern) {
                (Outcome::Found(start, stop), _) => (start, stop),
                (Outcome::Nothing, _) => break,
                (outcome, verdict) => return suspend(lua, outcome, verdict, continuation!(gsub_more)),
            };
            if Some(stop) == (*state).last {
                // An empty match where the previous one ended does not count.
                if stop >= subject.len() || matcher(lua).is_anchored() {
                    break;
                }
                matcher(lua).begin(pattern, stop + 1, true);
                continue;
            }
            ((*state).start, (*state).stop) = (start, stop);
            (*state).count += 1;
            match ffi::lua_type(lua, 3) {
                ffi::LUA_TSTRING => {
                    expand(lua, subject);
                    if !next(lua) {
                        break;
                    }
                }
                kind => {
                    ffi::lua_pushvalue(lua, 3);
                    if kind == ffi::LUA_TFUNCTION {
                        let captures = push_captures(lua, subject, Some(&subject[start..stop]));
                        ffi::lua_callk(lua, captures, 1, 0, Some(continuation!(replaced)));
                    } else {
                        push_capture(lua, subject, 0, &subject[start..stop]);
                        if super::has_metatable(lua, 3) {
                            super::push_slow(lua, super::Slow::Index);
                            ffi::lua_insert(lua, -3);
                            ffi::lua_callk(lua, 2, 1, 0, Some(continuation!(replaced)));
                        } else {
                            ffi::lua_rawget(lua, -2);
                        }
                    }
                    if !take(lua) {
                        break;
                    }
                }
            }
            state = progress(lua);
            match crate::poll(lua) {
                Poll::Go => {}
                Poll::Leave => return suspend(lua, Outcome::Interrupted, Poll::Leave, continuation!(gsub_more)),
                Poll::Stop => crate::stopped(lua),
            }
        }
        let state = progress(lua);
        if (*state).count == 0 {
            ffi::lua_pushvalue(lua, 1);
        } else {
            let state = add(lua, state, &subject[(*state).kept..]);
            crate::push_bytes(lua, std::slice::from_raw_parts(state.add(1) as *const u8, (*state).len));
        }
        ffi::lua_pushinteger(lua, (*progress(lua)).count);
        2
    }
}

unsafe fn gsub_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `gsub_go_on`.
    unsafe {
        restore(lua);
        gsub_go_on(lua)
    }
}

/// Continues `gsub` after the script has returned a replacement, which is on top of the stack.
unsafe fn replaced(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `gsub_go_on`.
    unsafe {
        if !take(lua) {
            (*progress(lua)).most = 0;
        }
        gsub_go_on(lua)
    }
}

/// Adds the value on top in place of the match, or the match itself; returns whether there may be more matches.
unsafe fn take(lua: *mut lua_State) -> bool {
    // SAFETY: as `gsub_go_on`.
    unsafe {
        let state = progress(lua);
        let subject = bytes(lua, 1);
        let Progress { kept, start, stop, .. } = *state;
        let replacement = match ffi::lua_type(lua, -1) {
            _ if ffi::lua_toboolean(lua, -1) == 0 => &subject[start..stop],
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER => {
                ffi::lua_tolstring(lua, -1, std::ptr::null_mut());
                bytes(lua, -1)
            }
            kind => {
                let name = ffi::lua_typename(lua, kind);
                ffi::luaL_error(lua, c"invalid replacement value (a %s)".as_ptr(), name);
                unreachable!("an error does not return");
            }
        };
        // If the result grows, `add` pushes a value and pops it again.
        let top = ffi::lua_gettop(lua);
        let state = add(lua, state, &subject[kept..start]);
        add(lua, state, replacement);
        debug_assert_eq!(ffi::lua_gettop(lua), top);
        ffi::lua_settop(lua, PROGRESS);
        next(lua)
    }
}

/// Appends the replacement, which is argument 3, with `%0` to `%9` replaced.
unsafe fn expand(lua: *mut lua_State, subject: &[u8]) {
    // SAFETY: as `gsub_go_on`.
    unsafe {
        let mut state = progress(lua);
        let Progress { kept, start, stop, .. } = *state;
        state = add(lua, state, &subject[kept..start]);
        let whole = &subject[start..stop];
        let mut rest = bytes(lua, 3);
        while let Some(at) = memchr::memchr(b'%', rest) {
            state = add(lua, state, &rest[..at]);
            let sign = rest.get(at + 1).copied();
            rest = rest.get(at + 2..).unwrap_or_default();
            match sign {
                Some(b'%') => state = add(lua, state, b"%"),
                Some(b'0') => state = add(lua, state, whole),
                Some(digit @ b'1'..=b'9') => {
                    let index = usize::from(digit - b'1');
                    let matcher = &*matcher(lua);
                    if index >= matcher.captures() {
                        if index != 0 {
                            let format = c"invalid capture index %%%d".as_ptr();
                            ffi::luaL_error(lua, format, index as c_int + 1);
                        }
                        state = add(lua, state, whole);
                        continue;
                    }
                    match matcher.caught(index) {
                        Caught::Bytes(from, to) => state = add(lua, state, &subject[from..to]),
                        Caught::Position(at) => {
                            let mut text = itoa::Buffer::new();
                            state = add(lua, state, text.format(at + 1).as_bytes());
                        }
                        Caught::Unfinished => raise(lua, c"unfinished capture"),
                    }
                }
                _ => raise(lua, c"invalid use of '%' in replacement string"),
            }
        }
        add(lua, state, rest);
    }
}

/// Continues after the match; returns false if there can be no other match.
unsafe fn next(lua: *mut lua_State) -> bool {
    // SAFETY: as `gsub_go_on`.
    unsafe {
        let state = progress(lua);
        let (subject, pattern) = (bytes(lua, 1), bytes(lua, 2));
        let stop = (*state).stop;
        (*state).kept = stop;
        (*state).last = Some(stop);
        (*state).at = stop;
        // The script may have searched meanwhile, so the state's matcher may belong to another search.
        let anchored = pattern.first() == Some(&b'^');
        matcher(lua).begin(pattern, stop, true);
        !anchored && stop <= subject.len()
    }
}
