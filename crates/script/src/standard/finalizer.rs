//! Finalizers (`__gc`) under a budget.
//!
//! Lua calls a finalizer from the middle of an allocation, without hooks, so an endless one would occupy its thread for
//! good. Here no table is marked for Lua's own finalization: `setmetatable` hides the field while Lua examines the
//! metatable, and gives the table a *sentinel*, a userdata that refers to it and that is referenced only by an entry of
//! an ephemeron table. When the table is garbage, so is its sentinel, whose own finalizer is a C function that adds the
//! table to the list of due ones. Their finalizers run in a separate coroutine: after the burst, slice by slice
//! ([`State::finalize`]), or within `collectgarbage`.
//!
//! As in Lua, a table is finalized if the metatable has the field when it is set; the called function is the field's
//! final value. Objects of C modules keep their C finalizers.
//!
//! Cost: one look-up in the metatable for each `setmetatable`; a sentinel of 64 bytes and an entry for a table with a
//! finalizer.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::{Original, Slow, original, push_slow};
use crate::ffi::{self, lua_State};
use crate::function;
use crate::run::{Budget, Burst};
use crate::state::{Core, Error, State};

/// The budget of the finalizers of one coroutine.
const BUDGET: Duration = Duration::from_secs(1);

/// The time limit of a finalizer that does not yield.
const BURST: Duration = Duration::from_millis(100);

/// The total time limit of the finalizers of a closed state.
const CLOSING: Duration = Duration::from_millis(100);

/// Creates the tables. The metatable of sentinels is in the registry under the address of [`SENTINEL`].
pub(super) unsafe fn open(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe {
        ffi::lua_createtable(lua, 4, 0);
        ffi::lua_pushinteger(lua, 0);
        ffi::lua_rawseti(lua, -2, 0);
        let pending = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        ffi::lua_createtable(lua, 0, 0);
        ffi::lua_createtable(lua, 0, 1);
        ffi::lua_pushstring(lua, c"k".as_ptr());
        ffi::lua_setfield(lua, -2, c"__mode".as_ptr());
        ffi::lua_setmetatable(lua, -2);
        let finalized = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        ffi::lua_createtable(lua, 0, 1);
        ffi::lua_pushcfunction(lua, function!(is_due));
        ffi::lua_setfield(lua, -2, c"__gc".as_ptr());
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const SENTINEL).cast());
        let own = &mut Core::of(lua).standard;
        own.pending = pending;
        own.finalized = finalized;
    }
}

/// The key of the sentinels' metatable.
static SENTINEL: u8 = 0;

/// The finalizer of a sentinel: the table that it represents is due.
unsafe fn is_due(lua: *mut lua_State) -> c_int {
    // SAFETY: the argument is a sentinel. The tables were made with the state.
    unsafe {
        let own = &mut Core::of(lua).standard;
        if own.closes {
            return 0;
        }
        let (pending, finalized) = (own.pending, own.finalized);
        ffi::lua_settop(lua, 1);
        ffi::lua_getiuservalue(lua, 1, 1);
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, finalized.into());
        ffi::lua_pushvalue(lua, 2);
        ffi::lua_pushnil(lua);
        ffi::lua_rawset(lua, 3);
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, pending.into());
        ffi::lua_rawgeti(lua, 4, 0);
        let count = ffi::lua_tointeger(lua, -1) + 1;
        ffi::lua_pushvalue(lua, 2);
        ffi::lua_rawseti(lua, 4, count);
        ffi::lua_pushinteger(lua, count);
        ffi::lua_rawseti(lua, 4, 0);
        Core::of(lua).standard.is_due = true;
        0
    }
}

pub(super) unsafe fn setmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if ffi::lua_type(lua, 1) == ffi::LUA_TTABLE
            && ffi::lua_type(lua, 2) == ffi::LUA_TTABLE
            && push_finalizer(lua)
            && ffi::luaL_getmetafield(lua, 1, c"__metatable".as_ptr()) == ffi::LUA_TNIL
        {
            return mark(lua);
        }
        ffi::lua_settop(lua, 2);
        original(lua, Original::SetMetatable)
    }
}

pub(super) unsafe fn debug_setmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if matches!(ffi::lua_type(lua, 1), ffi::LUA_TTABLE | ffi::LUA_TUSERDATA)
            && ffi::lua_type(lua, 2) == ffi::LUA_TTABLE
            && push_finalizer(lua)
        {
            return mark(lua);
        }
        ffi::lua_settop(lua, 2);
        original(lua, Original::DebugSetMetatable)
    }
}

/// Pushes the finalizer of the metatable at 2; `false` if there is none.
unsafe fn push_finalizer(lua: *mut lua_State) -> bool {
    // SAFETY: a slot is free.
    unsafe {
        ffi::lua_settop(lua, 2);
        ffi::lua_pushstring(lua, c"__gc".as_ptr());
        ffi::lua_rawget(lua, 2) != ffi::LUA_TNIL
    }
}

/// Gives the object at 1 the metatable at 2, whose finalizer is at 3, and a sentinel.
unsafe fn mark(lua: *mut lua_State) -> c_int {
    // SAFETY: as `setmetatable`. Nothing in between raises: the key is in the table.
    unsafe {
        ffi::lua_pushstring(lua, c"__gc".as_ptr());
        ffi::lua_pushvalue(lua, -1);
        ffi::lua_pushnil(lua);
        ffi::lua_rawset(lua, 2);
        ffi::lua_pushvalue(lua, 2);
        ffi::lua_setmetatable(lua, 1);
        ffi::lua_pushvalue(lua, 3);
        ffi::lua_rawset(lua, 2);
        ffi::lua_settop(lua, 1);
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, Core::of(lua).standard.finalized.into());
        ffi::lua_pushvalue(lua, 1);
        if ffi::lua_rawget(lua, 2) == ffi::LUA_TNIL {
            ffi::lua_pushvalue(lua, 1);
            ffi::lua_newuserdatauv(lua, 0, 1);
            ffi::lua_pushvalue(lua, 1);
            ffi::lua_setiuservalue(lua, -2, 1);
            ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const SENTINEL).cast());
            ffi::lua_setmetatable(lua, -2);
            ffi::lua_rawset(lua, 2);
        }
        ffi::lua_settop(lua, 1);
        1
    }
}

impl State {
    /// Returns whether finalizers are due.
    #[inline]
    pub fn has_finalizers(&mut self) -> bool {
        self.core().standard.is_due
    }

    /// Runs due finalizers, for one slice. The next call runs the rest. The error is that of a finalizer that took too
    /// long; others are ignored, as in Lua.
    pub fn finalize(&mut self) -> Result<(), Error> {
        let (coroutine, mut budget) = match self.core().standard.finalizing.take() {
            Some(begun) => begun,
            None => {
                let coroutine = self.coroutine()?;
                // SAFETY: a coroutine has free slots; reading the registry raises nothing.
                unsafe { push_slow(coroutine.thread(), Slow::Finalize) };
                (coroutine, Budget::new(Some(BUDGET), Some(BURST)))
            }
        };
        // SAFETY: the function is on the coroutine's stack, or it was suspended.
        match unsafe { self.resume(&coroutine, 0, &mut budget) } {
            Burst::Forced => self.core().standard.finalizing = Some((coroutine, budget)),
            Burst::Done(_) => {
                self.core().standard.is_due = false;
                self.recycle(coroutine);
            }
            // A finalizer may not wait.
            Burst::Waiting | Burst::Yielded => self.recycle(coroutine),
            Burst::Failed => {
                let error = self.failure(&coroutine);
                self.recycle(coroutine);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs all remaining finalizers within a time limit, before the state is closed.
    pub(crate) fn finalize_all(&mut self) {
        let begun = Instant::now();
        // SAFETY: nothing with a destructor is alive in the closure.
        let moved = unsafe {
            self.protect(|lua| {
                let (pending, finalized) = (Core::of(lua).standard.pending, Core::of(lua).standard.finalized);
                ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, pending.into());
                ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, finalized.into());
                ffi::lua_rawgeti(lua, 1, 0);
                let mut count = ffi::lua_tointeger(lua, -1);
                ffi::lua_pushnil(lua);
                while ffi::lua_next(lua, 2) != 0 {
                    ffi::lua_settop(lua, -2);
                    count += 1;
                    ffi::lua_pushvalue(lua, -1);
                    ffi::lua_rawseti(lua, 1, count);
                }
                ffi::lua_pushinteger(lua, count);
                ffi::lua_rawseti(lua, 1, 0);
                count > 0
            })
        };
        self.core().standard.closes = true;
        if moved != Ok(true) {
            return;
        }
        self.core().standard.is_due = true;
        while self.has_finalizers() && begun.elapsed() < CLOSING {
            let _ = self.finalize();
        }
        if let Some((coroutine, _)) = self.core().standard.finalizing.take() {
            self.forget(coroutine);
        }
    }
}
