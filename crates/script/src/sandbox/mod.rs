//! The state that scripts of the store run in: Redis's libraries and nothing else.
//!
//! **Nothing blocks.** A C function that can run long asks [`poll`](crate::poll) every few thousand steps. Told to
//! leave, it frees what it holds and ends with [`leave`](crate::leave), and begins again (or goes on) on a thread that
//! has time; told to stop, it frees what it holds and raises ([`stopped`](crate::stopped)).

mod bit;
mod convert;
mod grown;
mod json;
mod msgpack;
mod pace;
mod pack;

use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;

use crate::ffi::{self, lua_State};
use crate::memory::MemoryLimit;
use crate::state::{Error, State};

/// A library of the sandbox: its global's name, and the function that leaves its table on the stack. It may raise.
type Library = (&'static CStr, unsafe fn(*mut lua_State));

/// What a script finds, apart from the base library.
const LIBRARIES: &[Library] =
    &[(c"bit", bit::open), (c"cjson", json::open), (c"cmsgpack", msgpack::open), (c"struct", pack::open)];

impl State {
    /// A state for scripts of clients.
    pub fn sandboxed<T: Any + Send>(memory: Arc<MemoryLimit>, host: T) -> Result<State, Error> {
        let mut state = State::bare(memory, host)?;
        // SAFETY: what is called may raise and holds nothing.
        unsafe {
            state.protect(|lua| {
                ffi::luaL_requiref(lua, c"_G".as_ptr(), ffi::luaopen_base, 1);
                ffi::luaL_requiref(lua, c"string".as_ptr(), ffi::luaopen_string, 1);
                ffi::luaL_requiref(lua, c"table".as_ptr(), ffi::luaopen_table, 1);
                ffi::luaL_requiref(lua, c"math".as_ptr(), ffi::luaopen_math, 1);
                ffi::luaL_requiref(lua, c"coroutine".as_ptr(), ffi::luaopen_coroutine, 1);
                crate::coroutine::open(lua);
                for (name, open) in LIBRARIES {
                    open(lua);
                    ffi::lua_setglobal(lua, name.as_ptr());
                }
                ffi::lua_settop(lua, 0);
            })?;
        }
        Ok(state)
    }
}
