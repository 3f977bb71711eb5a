//! The Lua environment of the store's scripts: only Redis's libraries, with the semantics of Lua 5.1.
//!
//! PUC Lua 5.4 runs the scripts; every function in their environment is defined here. Results and error messages are
//! those of Redis 7.0's Lua 5.1.
//!
//! **Nothing blocks.** A C function that can run long calls [`poll`](crate::poll) every few thousand steps. If the
//! answer is to leave, it frees its resources and ends with [`leave`](crate::leave), and restarts (or continues) on a
//! thread for long work; if it is to stop, it frees its resources and raises ([`stopped`](crate::stopped)). A function
//! that is about to make a large string leaves at once ([`weigh`](crate::weigh)). A function that calls back into Lua
//! keeps its state in userdata and continues in a continuation, so that its callee can wait and be suspended.
//!
//! **No state remains.** Globals and libraries are read-only ([`seal`]), tables have no finalizers, calls that would
//! change the collector have no effect, and only text is loaded. So a script leaves only garbage memory to the next
//! one.
//!
//! Limits: the core of Lua can't be interrupted while it makes one string of many (`..`), grows a table, or marks one:
//! some milliseconds for a table of a million elements.

mod argument;
mod arguments;
mod arithmetic;
mod base;
mod bit;
mod buffer;
mod call;
mod chunk;
mod coroutine;
mod decimal;
mod escapes;
mod failure;
mod find;
mod format;
mod fuzz;
mod grown;
mod json;
mod load;
mod math;
pub(crate) mod message;
mod msgpack;
mod number;
mod pace;
mod pack;
mod pattern;
mod protect;
mod sort;
mod string;
mod substitute;
mod table;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::sync::Arc;

use chunk::{Discards, Globals};
pub use fuzz::{fuzz_json, fuzz_msgpack, fuzz_struct};
pub use load::FunctionRef;
pub use math::Chance;
pub use pattern::fuzz_pattern;
pub use protect::seal;
pub(crate) use sort::sort;

use crate::ffi::{self, lua_CFunction, lua_KFunction, lua_State};
use crate::memory::{MemoryLimit, allocate_and_leave};
use crate::state::{Core, Error, State};

/// A library of the sandbox: its global's name, and the function that leaves its table on the stack. It may raise.
type Library = (&'static CStr, unsafe fn(*mut lua_State));

/// The environment of a script, apart from the basic functions.
const LIBRARIES: &[Library] = &[
    (c"bit", bit::open),
    (c"cjson", json::open),
    (c"cmsgpack", msgpack::open),
    (c"coroutine", coroutine::open),
    (c"math", math::open),
    (c"os", open_os),
    (c"string", string::open),
    (c"struct", pack::open),
    (c"table", table::open),
];

/// The data of a sandboxed state in its core.
#[derive(Default)]
pub(crate) struct Own {
    /// Whether the state is a sandbox.
    pub(crate) on: bool,
    pub(crate) scratch: buffer::Scratch,
    captures: pattern::Captures,
    random: math::Source,
    /// References in the registry: to the real table of globals, and to the one with the real libraries, if it was
    /// needed.
    globals: c_int,
    open: Option<c_int>,
    arguments: arguments::Arguments,
    /// The options of `cjson`, which the registry keeps.
    json: Option<NonNull<json::Options>>,
    /// Where unused replies of commands are not converted to values ([`State::discard_replies`]).
    discards: Discards,
}

/// Pushes the real table of globals of a sandboxed state, for raw access: what scripts see is read-only.
///
/// # Safety
/// `lua` belongs to a sandboxed state; a slot is free.
pub unsafe fn push_globals(lua: *mut lua_State) {
    // SAFETY: as promised by the caller.
    unsafe { push(lua, Globals::Real) }
}

/// Pushes a table of globals; the open one exists.
unsafe fn push(lua: *mut lua_State, globals: Globals) {
    // SAFETY: the caller has a free slot; reading the registry raises nothing.
    unsafe {
        let own = &Core::of(lua).sandbox;
        let place = match (globals, own.open) {
            (Globals::Sealed, _) => ffi::LUA_RIDX_GLOBALS,
            (Globals::Open, Some(open)) => open.into(),
            (Globals::Real | Globals::Open, _) => own.globals.into(),
        };
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, place);
    }
}

/// Pushes a copy of the table of globals on top of the stack, with the real libraries in the place of what scripts see
/// of them. Only for chunks that do no more than read ([`FunctionRef::may_be_open`]).
///
/// # Safety
/// Called inside a protected call; may raise.
pub unsafe fn open_libraries(lua: *mut lua_State) {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::luaL_checkstack(lua, 6, std::ptr::null());
        let from = ffi::lua_gettop(lua);
        ffi::lua_createtable(lua, 0, 64);
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, from) != 0 {
            ffi::lua_pushvalue(lua, -2);
            ffi::lua_insert(lua, -2);
            if chunk::LIBRARIES.contains(&crate::to_bytes(lua, -2).unwrap_or_default()) {
                protect::see_through(lua, ffi::lua_gettop(lua));
            }
            ffi::lua_rawset(lua, from + 1);
        }
        if ffi::lua_getmetatable(lua, from) != 0 {
            ffi::lua_setmetatable(lua, -2);
        }
    }
}

impl State {
    /// Returns a state for scripts of clients. Its driver resumes a coroutine suspended by the end of a slice
    /// ([`Burst::Forced`]) on a [`patient`](crate::patient) thread; otherwise a function that leaves would leave again.
    ///
    /// [`Burst::Forced`]: crate::Burst::Forced
    pub fn sandboxed<T: Any + Send>(memory: Arc<MemoryLimit>, host: T) -> Result<State, Error> {
        let mut state = State::bare_with(allocate_and_leave, memory, host)?;
        state.core().sandbox.on = true;
        // SAFETY: the called function may raise, and has no value with a destructor.
        unsafe { state.protect(|lua| open(lua))? };
        Ok(state)
    }

    /// Sets whether `redis.call(…)` and `redis.pcall(…)` as separate statements call `acall` and `apcall` of the same
    /// table, in code compiled from now on. The table must then have these functions.
    pub fn discard_replies(&mut self, yes: bool) {
        self.core().sandbox.discards = if yes { Discards::Everywhere } else { Discards::Nowhere };
    }

    /// Sets the globals `KEYS` and `ARGV` to fresh tables.
    fn set_arguments(&mut self, globals: Globals, keys: &[&[u8]], arguments: &[&[u8]]) -> Result<(), Error> {
        if globals == Globals::Open && self.core().sandbox.open.is_none() {
            // SAFETY: nothing with a destructor is alive in the closure.
            let open = unsafe {
                self.protect(|lua| {
                    push_globals(lua);
                    open_libraries(lua);
                    ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX)
                })?
            };
            self.core().sandbox.open = Some(open);
        }
        let globals = if globals == Globals::Sealed { Globals::Real } else { globals };
        // Room for Lua's own record of a string or of a slot in a table, and for the doubling of tables.
        const EACH: usize = 128;
        const MORE: usize = 16 << 10;
        let bytes = keys.iter().chain(arguments).fold(MORE, |sum, word| sum + word.len() + EACH);
        // SAFETY: the closure holds references only, and makes the strings and a place in a table for each.
        unsafe { self.protect_memory(bytes, |lua| arguments::set(lua, globals, [keys, arguments])) }
    }
}

/// Pushes a table of strings. May raise.
///
/// # Safety
/// Two slots are free.
pub unsafe fn push_list(lua: *mut lua_State, list: &[&[u8]]) {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::lua_createtable(lua, c_int::try_from(list.len()).unwrap_or(0), 0);
        for (index, bytes) in (1..).zip(list) {
            crate::push_bytes(lua, bytes);
            ffi::lua_rawseti(lua, -2, index);
        }
    }
}

/// Builds the environment.
unsafe fn open(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe {
        ffi::lua_createtable(lua, 0, 64);
        base::open(lua);
        for (name, open) in LIBRARIES {
            open(lua);
            if *name == c"string" {
                ffi::lua_pushvalue(lua, -1);
                seal(lua);
                open_string_metatable(lua);
            } else {
                seal(lua);
            }
            ffi::lua_setfield(lua, 1, name.as_ptr());
        }
        ffi::lua_pushvalue(lua, 1);
        let globals = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        Core::of(lua).sandbox.globals = globals;
        ffi::lua_pushinteger(lua, 0);
        arithmetic::push_of_numbers(lua);
        ffi::lua_setmetatable(lua, -2);
        ffi::lua_pop(lua, 1);
        ffi::lua_pushvalue(lua, 1);
        seal_strictly(lua);
        ffi::lua_pushvalue(lua, -1);
        ffi::lua_setfield(lua, 1, c"_G".as_ptr());
        // The globals of a chunk's functions.
        ffi::lua_rawseti(lua, ffi::LUA_REGISTRYINDEX, ffi::LUA_RIDX_GLOBALS);
        ffi::lua_settop(lua, 0);
    }
}

/// Replaces the table on top of the stack by a read-only one, as [`seal`] does, in which reading a missing key is an
/// error, as among globals.
///
/// # Safety
/// The table is on top; may raise.
pub unsafe fn seal_strictly(lua: *mut lua_State) {
    // SAFETY: as promised by the caller.
    unsafe {
        let table = ffi::lua_gettop(lua);
        ffi::luaL_checkstack(lua, 8, std::ptr::null());
        ffi::lua_createtable(lua, 0, 1);
        ffi::lua_pushcfunction(lua, crate::function!(missing));
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        ffi::lua_pushvalue(lua, -1);
        ffi::lua_setmetatable(lua, table);
        seal(lua);
        ffi::lua_pushvalue(lua, table);
        seal(lua);
        ffi::lua_insert(lua, -2);
        protect::show(lua);
        ffi::lua_remove(lua, table);
    }
}

/// Makes the library below the top of the stack the source of strings' methods, and removes it: the table on top is the
/// one that scripts see.
unsafe fn open_string_metatable(lua: *mut lua_State) {
    // SAFETY: as `open`.
    unsafe {
        ffi::lua_pushlstring(lua, c"".as_ptr(), 0);
        ffi::lua_createtable(lua, 0, 9);
        ffi::lua_pushvalue(lua, -4);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        arithmetic::open(lua);
        // `getmetatable("")` returns a read-only copy.
        ffi::lua_createtable(lua, 0, 1);
        ffi::lua_pushvalue(lua, -4);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        seal(lua);
        ffi::lua_setfield(lua, -2, c"__metatable".as_ptr());
        ffi::lua_setmetatable(lua, -2);
        ffi::lua_settop(lua, -2);
        ffi::lua_remove(lua, -2);
    }
}

/// `__index` of the globals.
unsafe fn missing(lua: *mut lua_State) -> c_int {
    // SAFETY: a metamethod has the table and the key.
    unsafe {
        if !matches!(ffi::lua_type(lua, 2), ffi::LUA_TSTRING | ffi::LUA_TNUMBER) {
            crate::raise(lua, c"Second argument to luaProtectedTableError must be a string or number");
        }
        if ffi::lua_type(lua, 2) == ffi::LUA_TSTRING && argument::string(lua, 2) == b"arg" && push_arg(lua) {
            return 1;
        }
        let name: *const u8 = argument::string(lua, 2).as_ptr();
        ffi::luaL_error(lua, c"Script attempted to access nonexistent global variable '%s'".as_ptr(), name)
    }
}

/// Pushes Lua 5.1's `arg` of a function that takes `...`: a table of its extra arguments, and their number `n`; returns
/// false if the function that reads `arg` takes no `...`.
unsafe fn push_arg(lua: *mut lua_State) -> bool {
    // SAFETY: a metamethod has `LUA_MINSTACK` free slots; the record is filled by Lua before it is read.
    unsafe {
        let mut record: ffi::lua_Debug = std::mem::zeroed();
        if ffi::lua_getstack(lua, 1, &mut record) == 0 || ffi::lua_getinfo(lua, c"uS".as_ptr(), &mut record) == 0 {
            return false;
        }
        // A chunk takes `...` without having `arg`.
        if record.isvararg == 0 || CStr::from_ptr(record.what) != c"Lua" {
            return false;
        }
        ffi::luaL_checkstack(lua, 4, std::ptr::null());
        let mut count = 0;
        while !ffi::lua_getlocal(lua, &record, -(count + 1)).is_null() {
            count += 1;
            ffi::lua_settop(lua, -2);
        }
        // `#arg` counts a nil among the arguments only in a table that was made with room for all.
        ffi::lua_createtable(lua, count, 1);
        for n in 1..=count {
            ffi::lua_getlocal(lua, &record, -n);
            ffi::lua_rawseti(lua, -2, i64::from(n));
        }
        ffi::lua_pushinteger(lua, i64::from(count));
        ffi::lua_setfield(lua, -2, c"n".as_ptr());
        true
    }
}

/// Leaves a table with these functions on the stack.
pub(crate) unsafe fn register(lua: *mut lua_State, functions: &[(&CStr, lua_CFunction)]) {
    // SAFETY: called inside a protected call.
    unsafe {
        ffi::lua_createtable(lua, 0, functions.len() as c_int);
        for (name, function) in functions {
            ffi::lua_pushcfunction(lua, *function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
    }
}

/// Replaces a value and a key on top of the stack by the key's value in it, respecting metatables. Does not return if a
/// function of the script runs and is suspended: then `continuation` finds the result on top.
unsafe fn index(lua: *mut lua_State, continuation: lua_KFunction) {
    /// The maximum length of a chain of `__index` tables.
    const CHAIN_MAX: u32 = 100;
    // SAFETY: the C function that calls this has three slots free; nothing with a destructor is alive in it.
    unsafe {
        for _ in 0..CHAIN_MAX {
            if ffi::lua_type(lua, -2) == ffi::LUA_TTABLE {
                ffi::lua_pushvalue(lua, -1);
                if ffi::lua_rawget(lua, -3) != ffi::LUA_TNIL {
                    ffi::lua_replace(lua, -3);
                    ffi::lua_pop(lua, 1);
                    return;
                }
                ffi::lua_pop(lua, 1);
            }
            if ffi::luaL_getmetafield(lua, -2, c"__index".as_ptr()) == ffi::LUA_TNIL {
                if ffi::lua_type(lua, -2) != ffi::LUA_TTABLE {
                    let name = argument::type_name(lua, -2).as_ptr();
                    ffi::luaL_error(lua, c"attempt to index a %s value".as_ptr(), name);
                }
                ffi::lua_settop(lua, -3);
                ffi::lua_pushnil(lua);
                return;
            }
            if ffi::lua_type(lua, -1) == ffi::LUA_TFUNCTION {
                ffi::lua_rotate(lua, -3, 1);
                ffi::lua_callk(lua, 2, 1, 0, Some(continuation));
                return;
            }
            ffi::lua_replace(lua, -3);
        }
        crate::raise(lua, c"loop in gettable")
    }
}

/// `os`: the clock alone.
unsafe fn open_os(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe { register(lua, &[(c"clock", crate::function!(clock))]) };
}

/// Processor time of the process, in seconds.
unsafe fn clock(lua: *mut lua_State) -> c_int {
    // SAFETY: the clock fills the record; a slot is free.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        number::push(lua, time.tv_sec as f64 + (time.tv_nsec / 1000) as f64 / 1e6);
        1
    }
}
