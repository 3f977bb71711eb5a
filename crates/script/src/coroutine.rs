//! The coroutine library of scripts: Lua's own semantics, with waits that pass through nested coroutines.
//!
//! Lua's `coroutine.resume` returns every yield to its caller. This one tests the reason of the yield: a yield of the
//! script returns to the caller as usual; a wait or a forced yield is repeated one level up, until it reaches the
//! driver, and the continuation resumes the same coroutine when the driver resumes the root. While it waits, its status
//! is `normal` and it cannot be resumed otherwise.

use std::ffi::{CStr, c_int};

use crate::budget;
use crate::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use crate::run::Reason;
use crate::state::Core;
use crate::{continuation, function};

/// Replaces the functions of the `coroutine` table.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 8] = [
        (c"create", function!(create)),
        (c"resume", function!(resume)),
        (c"wrap", function!(wrap)),
        (c"yield", function!(r#yield)),
        (c"status", function!(status)),
        (c"running", function!(running)),
        (c"isyieldable", function!(isyieldable)),
        (c"close", function!(close)),
    ];
    // SAFETY: called inside a protected call.
    unsafe {
        ffi::lua_getglobal(lua, c"coroutine".as_ptr());
        for (name, function) in FUNCTIONS {
            ffi::lua_pushcfunction(lua, function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        ffi::lua_settop(lua, -2);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    Dead,
    Suspended,
    Normal,
}

impl Status {
    fn name(self) -> &'static CStr {
        match self {
            Status::Running => c"running",
            Status::Dead => c"dead",
            Status::Suspended => c"suspended",
            Status::Normal => c"normal",
        }
    }
}

unsafe fn status_of(lua: *mut lua_State, thread: *mut lua_State) -> Status {
    // SAFETY: both belong to the same state; `lua_getstack` only reads.
    unsafe {
        if lua == thread {
            return Status::Running;
        }
        if is_carried(lua, thread) {
            return Status::Normal;
        }
        match ffi::lua_status(thread) {
            ffi::LUA_YIELD => Status::Suspended,
            ffi::LUA_OK => {
                let mut record: ffi::lua_Debug = std::mem::zeroed();
                if ffi::lua_getstack(thread, 0, &mut record) != 0 {
                    Status::Normal
                } else if ffi::lua_gettop(thread) == 0 {
                    Status::Dead
                } else {
                    Status::Suspended
                }
            }
            _ => Status::Dead,
        }
    }
}

/// Returns whether `thread` waits inside a root, or is a root with a coroutine that waits.
unsafe fn is_carried(lua: *mut lua_State, thread: *mut lua_State) -> bool {
    // SAFETY: `lua` belongs to a state.
    let running = unsafe { &Core::of(lua).running };
    running.carried.iter().any(|(root, waiting)| *waiting == thread || *root == thread)
}

unsafe fn check_thread(lua: *mut lua_State) -> *mut lua_State {
    // SAFETY: argument 1 is read; a wrong type raises.
    unsafe {
        let thread = ffi::lua_tothread(lua, 1);
        if thread.is_null() {
            ffi::luaL_argerror(lua, 1, c"coroutine expected".as_ptr());
        }
        thread
    }
}

pub(crate) unsafe fn create(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the function is moved to the new coroutine.
    unsafe {
        ffi::luaL_checktype(lua, 1, ffi::LUA_TFUNCTION);
        let thread = ffi::lua_newthread(lua);
        // A coroutine made while the budget's hook is armed inherits the hook; it gets its own when it runs long.
        ffi::lua_sethook(thread, None, 0, 0);
        ffi::lua_pushvalue(lua, 1);
        ffi::lua_xmove(lua, thread, 1);
        1
    }
}

/// Runs `thread` until it ends, fails or yields to its resumer. Returns the number of results moved to `lua`, or
/// -1 with the message there. On a wait or forced yield it does not return: the yield is passed up with `continuation`.
unsafe fn run(
    lua: *mut lua_State,
    thread: *mut lua_State,
    args: c_int,
    continuation: ffi::lua_KFunction,
) -> Result<c_int, ()> {
    // SAFETY: `thread` is alive: it is on `lua`'s stack or an upvalue of the running function. Nothing here has a
    // destructor when `lua_yieldk` jumps.
    unsafe {
        let core = Core::of(lua);
        let outer = core.running.yieldable;
        core.running.yieldable = outer && ffi::lua_isyieldable(lua) != 0;
        core.running.reason = Reason::Script;
        let before = budget::switch(thread);
        let mut results = 0;
        let status = ffi::lua_resume(thread, lua, args, &mut results);
        budget::switch(before);
        let core = Core::of(lua);
        core.running.yieldable = outer;
        match status {
            ffi::LUA_YIELD if core.running.reason != Reason::Script => {
                ffi::lua_settop(thread, -results - 1);
                core.running.carried.push((core.running.root, thread));
                ffi::lua_yieldk(lua, 0, 0, Some(continuation));
                unreachable!("a yield does not return");
            }
            ffi::LUA_OK | ffi::LUA_YIELD => {
                if ffi::lua_checkstack(lua, results + 1) == 0 {
                    ffi::lua_settop(thread, -results - 1);
                    ffi::lua_pushstring(lua, c"too many results to resume".as_ptr());
                    return Err(());
                }
                ffi::lua_xmove(thread, lua, results);
                Ok(results)
            }
            _ => {
                ffi::lua_xmove(thread, lua, 1);
                if Core::of(lua).sandbox.on {
                    crate::sandbox::message::adapt(lua);
                }
                Err(())
            }
        }
    }
}

/// Moves `args` values to `thread` and runs it, if it can be resumed.
unsafe fn start(
    lua: *mut lua_State,
    thread: *mut lua_State,
    args: c_int,
    continuation: ffi::lua_KFunction,
) -> Result<c_int, ()> {
    // SAFETY: as `run`.
    unsafe {
        if Core::of(lua).sandbox.on {
            let status = status_of(lua, thread);
            if status != Status::Suspended {
                ffi::lua_pushfstring(lua, c"cannot resume %s coroutine".as_ptr(), status.name().as_ptr());
                return Err(());
            }
        } else if is_carried(lua, thread) {
            ffi::lua_pushstring(lua, c"cannot resume non-suspended coroutine".as_ptr());
            return Err(());
        }
        if ffi::lua_checkstack(thread, args) == 0 {
            ffi::lua_pushstring(lua, c"too many arguments to resume".as_ptr());
            return Err(());
        }
        ffi::lua_xmove(lua, thread, args);
        run(lua, thread, args, continuation)
    }
}

/// Removes `thread` from the list of waiting coroutines.
unsafe fn uncarry(lua: *mut lua_State, thread: *mut lua_State) {
    // SAFETY: `lua` belongs to a state.
    let carried = unsafe { &mut Core::of(lua).running.carried };
    if let Some(index) = carried.iter().position(|(_, waiting)| *waiting == thread) {
        carried.swap_remove(index);
    }
}

pub(crate) unsafe fn resume(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let thread = check_thread(lua);
        let result = start(lua, thread, ffi::lua_gettop(lua) - 1, continuation!(resume_more));
        resume_results(lua, result)
    }
}

unsafe fn resume_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the coroutine is still at 1: the yield took nothing from the stack.
    unsafe {
        let thread = ffi::lua_tothread(lua, 1);
        uncarry(lua, thread);
        let result = run(lua, thread, 0, continuation!(resume_more));
        resume_results(lua, result)
    }
}

unsafe fn resume_results(lua: *mut lua_State, result: Result<c_int, ()>) -> c_int {
    // SAFETY: `run` left the results or the message on top, and a slot free.
    unsafe {
        match result {
            Ok(results) => {
                ffi::lua_pushboolean(lua, 1);
                ffi::lua_insert(lua, -(results + 1));
                results + 1
            }
            Err(()) => {
                ffi::lua_pushboolean(lua, 0);
                ffi::lua_insert(lua, -2);
                2
            }
        }
    }
}

pub(crate) unsafe fn wrap(lua: *mut lua_State) -> c_int {
    // SAFETY: as `create`; the coroutine becomes the upvalue of the function.
    unsafe {
        create(lua);
        ffi::lua_pushcclosure(lua, function!(wrapped), 1);
        1
    }
}

unsafe fn wrapped(lua: *mut lua_State) -> c_int {
    // SAFETY: upvalue 1 is the coroutine.
    unsafe {
        let thread = ffi::lua_tothread(lua, ffi::lua_upvalueindex(1));
        let result = start(lua, thread, ffi::lua_gettop(lua), continuation!(wrapped_more));
        wrapped_results(lua, thread, result)
    }
}

unsafe fn wrapped_more(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `wrapped`.
    unsafe {
        let thread = ffi::lua_tothread(lua, ffi::lua_upvalueindex(1));
        uncarry(lua, thread);
        let result = run(lua, thread, 0, continuation!(wrapped_more));
        wrapped_results(lua, thread, result)
    }
}

unsafe fn wrapped_results(lua: *mut lua_State, thread: *mut lua_State, result: Result<c_int, ()>) -> c_int {
    // SAFETY: on an error the message is on top; a failed coroutine is closed, which leaves its error on its stack.
    unsafe {
        if let Ok(results) = result {
            return results;
        }
        let status = ffi::lua_status(thread);
        let failed = status != ffi::LUA_OK && status != ffi::LUA_YIELD && !is_carried(lua, thread);
        if failed {
            // Closing returns the coroutine's own error, or that of a to-be-closed variable.
            ffi::lua_pushvalue(lua, -1);
            ffi::lua_xmove(lua, thread, 1);
            if close_thread(lua, thread) != ffi::LUA_OK {
                ffi::lua_xmove(thread, lua, 1);
                ffi::lua_remove(lua, -2);
            }
        }
        if status != ffi::LUA_ERRMEM && ffi::lua_type(lua, -1) == ffi::LUA_TSTRING {
            ffi::luaL_where(lua, 1);
            ffi::lua_insert(lua, -2);
            ffi::lua_concat(lua, 2);
        }
        ffi::lua_error(lua)
    }
}

pub(crate) unsafe fn r#yield(lua: *mut lua_State) -> c_int {
    // SAFETY: yields all arguments; the reason is the script's own.
    unsafe {
        Core::of(lua).running.reason = Reason::Script;
        ffi::lua_yieldk(lua, ffi::lua_gettop(lua), 0, None)
    }
}

pub(crate) unsafe fn status(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let thread = check_thread(lua);
        ffi::lua_pushstring(lua, status_of(lua, thread).name().as_ptr());
        1
    }
}

unsafe fn running(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let main = ffi::lua_pushthread(lua);
        ffi::lua_pushboolean(lua, main);
        2
    }
}

unsafe fn isyieldable(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let thread = if ffi::lua_type(lua, 1) == ffi::LUA_TNONE { lua } else { check_thread(lua) };
        ffi::lua_pushboolean(lua, ffi::lua_isyieldable(thread));
        1
    }
}

/// Closes `thread`. Its to-be-closed variables run code in it, so it must be the coroutine that the budget's hook
/// finds.
unsafe fn close_thread(lua: *mut lua_State, thread: *mut lua_State) -> c_int {
    // SAFETY: `thread` is alive and does not run. Closing it is protected and comes back with a status.
    unsafe {
        let status = ffi::lua_status(thread);
        if status > ffi::LUA_YIELD && Core::of(lua).running.is_unhooked(thread) {
            return status; // Nothing could end the closing of its variables; the error is on top.
        }
        let before = budget::switch(thread);
        let status = ffi::lua_closethread(thread, lua);
        budget::switch(before);
        Core::of(lua).running.forget_unhooked(thread);
        ffi::lua_sethook(thread, None, 0, 0);
        status
    }
}

unsafe fn close(lua: *mut lua_State) -> c_int {
    // SAFETY: only a coroutine that does not run and does not wait is closed.
    unsafe {
        let thread = check_thread(lua);
        match status_of(lua, thread) {
            Status::Dead | Status::Suspended => {
                if close_thread(lua, thread) == ffi::LUA_OK {
                    ffi::lua_pushboolean(lua, 1);
                    1
                } else {
                    ffi::lua_pushboolean(lua, 0);
                    ffi::lua_xmove(thread, lua, 1);
                    2
                }
            }
            Status::Running => crate::raise(lua, c"cannot close a running coroutine"),
            Status::Normal => crate::raise(lua, c"cannot close a normal coroutine"),
        }
    }
}
