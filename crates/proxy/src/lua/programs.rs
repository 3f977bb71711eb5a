//! `os.execute` and `io.popen`: programs started by scripts.
//!
//! As in HAProxy, a script may start programs while it is loaded, and while the process serves only with
//! `insecure-fork-wanted`. HAProxy limits the number of processes (`RLIMIT_NPROC`); here, where threads are created at
//! run time, and where the limit does not apply to root, the two functions return the errors that they would return
//! under that limit.
//!
//! Limit: C modules that fork are not prevented from it.

use std::ffi::{CStr, c_int};

use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::function;

use super::host::{Phase, host};

/// Installs both functions in place of Lua's own.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const REPLACED: [(&CStr, &CStr, lua_CFunction); 2] =
        [(c"os", c"execute", function!(execute)), (c"io", c"popen", function!(popen))];
    // SAFETY: called inside a protected call. Lua's own function is the upvalue of the one in its place.
    unsafe {
        for (library, name, function) in REPLACED {
            ffi::lua_getglobal(lua, library.as_ptr());
            ffi::lua_getfield(lua, -1, name.as_ptr());
            ffi::lua_pushcclosure(lua, function, 1);
            ffi::lua_setfield(lua, -2, name.as_ptr());
            ffi::lua_settop(lua, -2);
        }
    }
}

/// Calls Lua's own function if that is allowed, and returns the number of its results.
unsafe fn allowed(lua: *mut lua_State) -> Option<c_int> {
    // SAFETY: a C function's usual stack; the upvalue is a function.
    unsafe {
        let host = host(lua);
        if host.phase == Phase::Run && !host.shared.may_fork {
            return None;
        }
        ffi::lua_pushvalue(lua, ffi::lua_upvalueindex(1));
        ffi::lua_insert(lua, 1);
        ffi::lua_call(lua, ffi::lua_gettop(lua) - 1, ffi::LUA_MULTRET);
        Some(ffi::lua_gettop(lua))
    }
}

/// Pushes the results of a Lua function for an error of the system.
unsafe fn fail(lua: *mut lua_State, text: &CStr, error: c_int) -> c_int {
    // SAFETY: three slots are free.
    unsafe {
        ffi::lua_pushnil(lua);
        ffi::lua_pushstring(lua, text.as_ptr());
        ffi::lua_pushinteger(lua, i64::from(error));
        3
    }
}

unsafe fn execute(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if let Some(results) = allowed(lua) {
            return results;
        }
        if ffi::luaL_optlstring(lua, 1, std::ptr::null(), std::ptr::null_mut()).is_null() {
            // The question whether there is a shell.
            ffi::lua_pushboolean(lua, 0);
            return 1;
        }
        fail(lua, c"Resource temporarily unavailable", libc::EAGAIN)
    }
}

unsafe fn popen(lua: *mut lua_State) -> c_int {
    // SAFETY: as `execute`; the text stays on the stack while it is copied.
    unsafe {
        if let Some(results) = allowed(lua) {
            return results;
        }
        let program = ffi::luaL_checklstring(lua, 1, std::ptr::null_mut());
        let text = ffi::lua_pushfstring(lua, c"%s: Cannot allocate memory".as_ptr(), program);
        fail(lua, CStr::from_ptr(text), libc::ENOMEM)
    }
}
