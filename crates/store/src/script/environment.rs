//! Environments of libraries: one set of globals while they are loaded, another for their functions.
//!
//! While it is loaded a library has only `redis.register_function`, `redis.log` and the version constants; its
//! functions have the environment of scripts, without `KEYS` and `ARGV`. Both are upvalues of the library's chunk, set
//! before its code runs, so changes that a function makes to its environment are undone before the next one.
//!
//! A library is loaded by the coroutine that needs it, which can be suspended at any point like a script.

use std::ffi::{CStr, c_int};

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{
    FunctionRef, continuation, function, open_libraries, push_bytes, push_globals, seal, seal_strictly, to_bytes,
};

use super::api;
use super::code::InTurn;
use super::interpreter::host_of;
use super::library::{self, FUNCTIONS_MAX, Function};
use super::source::Flags;

/// The sets of globals, by their references in Lua's registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Environments {
    loading: c_int,
    calling: c_int,
    /// Like `calling`, with the real libraries, for chunks that may use these.
    open: c_int,
}

impl Environments {
    /// Returns the environment of the functions of a chunk.
    fn for_calls_of(self, chunk: &FunctionRef) -> c_int {
        if chunk.may_be_open() { self.open } else { self.calling }
    }
}

/// A function, and the reference of its code in Lua's registry.
pub(crate) type Callback = (Function, c_int);

/// Libraries that are being loaded in an interpreter.
pub(crate) struct Loading {
    pub(crate) chunks: Vec<FunctionRef>,
    /// The registrations of each started chunk.
    pub(crate) registered: Vec<Vec<Callback>>,
    /// The function that is called once its library is loaded.
    then: Option<Box<str>>,
    /// Whether all libraries have run to their end.
    pub(crate) is_over: bool,
}

impl Loading {
    pub(crate) fn new(chunks: Vec<FunctionRef>, then: Option<&str>) -> Loading {
        let registered = Vec::with_capacity(chunks.len());
        Loading { chunks, registered, then: then.map(Box::from), is_over: false }
    }
}

/// Functions of `redis` that exist while a library is loaded.
const LOADING: &[(&CStr, lua_CFunction)] =
    &[(c"register_function", function!(register_function)), (c"log", function!(api::log))];

/// Makes both sets of globals.
///
/// # Safety
/// Called inside a protected call, with the main thread of a sandboxed state whose globals are complete.
pub(crate) unsafe fn open(lua: *mut lua_State) -> Environments {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::lua_createtable(lua, 0, 2);
        api::push_table(lua, LOADING, |name| name.starts_with("LOG_") || name.starts_with("REDIS_VERSION"));
        seal_strictly(lua);
        set_both(lua);
        seal_strictly(lua);
        let loading = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);

        ffi::lua_createtable(lua, 0, 48);
        let globals = ffi::lua_gettop(lua);
        push_globals(lua);
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, globals + 1) != 0 {
            let name = to_bytes(lua, -2).unwrap_or_default();
            if matches!(name, b"KEYS" | b"ARGV") {
                ffi::lua_settop(lua, -2);
            } else {
                ffi::lua_pushvalue(lua, -2);
                ffi::lua_insert(lua, -2);
                ffi::lua_rawset(lua, globals);
            }
        }
        ffi::lua_settop(lua, globals);
        api::push_table(lua, api::OF_FUNCTIONS, |_| true);
        seal(lua);
        set_both(lua);
        ffi::lua_pushvalue(lua, -1);
        seal_strictly(lua);
        ffi::lua_pushvalue(lua, -1);
        ffi::lua_setfield(lua, globals, c"_G".as_ptr());
        let calling = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        ffi::lua_settop(lua, globals);
        open_libraries(lua);
        let open = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        ffi::lua_settop(lua, globals - 1);
        Environments { loading, calling, open }
    }
}

/// Sets the table on top of the stack as `redis` and `server` of the table below.
unsafe fn set_both(lua: *mut lua_State) {
    // SAFETY: called inside a protected call.
    unsafe {
        ffi::lua_pushvalue(lua, -1);
        ffi::lua_setfield(lua, -3, c"redis".as_ptr());
        ffi::lua_setfield(lua, -2, c"server".as_ptr());
    }
}

/// Sets the globals of a chunk, and so of all functions in it. Raises nothing.
unsafe fn set_globals(lua: *mut lua_State, chunk: &FunctionRef, globals: c_int) {
    // SAFETY: the caller has two free slots; reading the registry and setting an upvalue raise nothing.
    unsafe {
        chunk.push(lua);
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, globals.into());
        // Every chunk has one upvalue, its globals.
        ffi::lua_setupvalue(lua, -2, 1);
        ffi::lua_settop(lua, -2);
    }
}

/// Pushes a function of a loaded library on an empty stack.
///
/// # Safety
/// The stack belongs to the state that has the library, and has room.
pub(crate) unsafe fn push_function(
    lua: *mut lua_State,
    environments: Environments,
    chunk: &FunctionRef,
    callback: c_int,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        set_globals(lua, chunk, environments.for_calls_of(chunk));
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, callback.into());
    }
}

/// The first function of a coroutine that loads libraries; then, if requested, calls a function of the last one with
/// its own arguments.
///
/// # Safety
/// As any C function; the host has libraries that are to be loaded.
pub(crate) unsafe fn load(lua: *mut lua_State) -> c_int {
    // SAFETY: the host keeps the libraries' sources. Nothing with a destructor is alive where Lua runs.
    unsafe {
        loop {
            let host = host_of(lua);
            let (Some(environments), Some(loading)) = (host.environments, &mut host.loading) else { return 0 };
            let Some(chunk) = loading.chunks.get(loading.registered.len()) else {
                loading.is_over = true;
                for chunk in &loading.chunks {
                    set_globals(lua, chunk, environments.for_calls_of(chunk));
                }
                return call(lua);
            };
            set_globals(lua, chunk, environments.loading);
            chunk.push(lua);
            loading.registered.push(Vec::new());
            ffi::lua_callk(lua, 0, 0, 0, Some(continuation!(loaded)));
        }
    }
}

unsafe fn loaded(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `load`.
    unsafe { load(lua) }
}

/// Calls the function for which the library was loaded.
unsafe fn call(lua: *mut lua_State) -> c_int {
    // SAFETY: the arguments of the coroutine's first function are on its stack.
    unsafe {
        let Some(loading) = &host_of(lua).loading else { return 0 };
        let Some(name) = &loading.then else { return 0 };
        let callback = loading.registered.iter().flatten().find(|(function, _)| function.name == *name);
        let Some(callback) = callback.map(|(_, callback)| *callback) else {
            return api::fail(lua, c"The library does not register this function any more");
        };
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, callback.into());
        ffi::lua_insert(lua, 1);
        let arguments = ffi::lua_gettop(lua) - 1;
        ffi::lua_callk(lua, arguments, 1, 0, Some(continuation!(left)));
        1
    }
}

unsafe fn left(_: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    1
}

/// Stack slots for the arguments of `register_function`.
const NAME: c_int = 2;
const CALLBACK: c_int = 3;
const FLAGS: c_int = 4;
const DESCRIPTION: c_int = 5;

/// `redis.register_function(name, callback)`, or with a table of named arguments.
unsafe fn register_function(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing with a destructor is alive where Lua may raise.
    unsafe {
        let is_loading = |loading: &Loading| !loading.is_over;
        if !host_of(lua).loading.as_ref().is_some_and(is_loading) {
            return api::fail(lua, c"redis.register_function can only be called on FUNCTION LOAD command");
        }
        match ffi::lua_gettop(lua) {
            1 => named_arguments(lua),
            2 => {
                if ffi::lua_isstring(lua, 1) == 0 {
                    return api::fail(lua, c"first argument to redis.register_function must be a string");
                }
                if ffi::lua_type(lua, 2) != ffi::LUA_TFUNCTION {
                    return api::fail(lua, c"second argument to redis.register_function must be a function");
                }
                ffi::lua_pushnil(lua);
                ffi::lua_insert(lua, 1);
                ffi::lua_settop(lua, DESCRIPTION);
            }
            _ => return api::fail(lua, c"wrong number of arguments to redis.register_function"),
        }
        let flags = match ffi::lua_type(lua, FLAGS) {
            ffi::LUA_TTABLE => flags(lua),
            _ => Flags::SHEBANG,
        };
        // Other values are converted to strings in their slots.
        ffi::lua_tolstring(lua, NAME, std::ptr::null_mut());
        ffi::lua_tolstring(lua, DESCRIPTION, std::ptr::null_mut());
        let name = to_bytes(lua, NAME).unwrap_or_default();
        if !is_name(name) {
            push_bytes(lua, library::WRONG_NAME.as_bytes());
            return api::fail_with(lua);
        }
        if is_known(lua, name) {
            return api::fail(lua, c"Function already exists in the library");
        }
        if is_full(lua) {
            return api::fail(lua, c"too many functions in the library");
        }
        ffi::lua_pushvalue(lua, CALLBACK);
        let callback = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX);
        keep(lua, flags, callback);
        0
    }
}

fn is_name(name: &[u8]) -> bool {
    library::checked_name(name).is_some()
}

/// Returns whether the library being loaded has a function of this name.
unsafe fn is_known(lua: *mut lua_State, name: &[u8]) -> bool {
    // SAFETY: the host is only read.
    let registered = unsafe { host_of(lua) }.loading.as_ref().and_then(|loading| loading.registered.last());
    registered.is_some_and(|registered| registered.iter().any(|(function, _)| function.name.as_bytes() == name))
}

unsafe fn is_full(lua: *mut lua_State) -> bool {
    // SAFETY: the host is only read.
    let registered = unsafe { host_of(lua) }.loading.as_ref().and_then(|loading| loading.registered.last());
    registered.is_none_or(|registered| registered.len() >= FUNCTIONS_MAX)
}

/// Records a function whose name and description are in their slots. Raises nothing.
unsafe fn keep(lua: *mut lua_State, flags: Flags, callback: c_int) {
    // SAFETY: strings are only read.
    unsafe {
        let Some(name) = library::checked_name(to_bytes(lua, NAME).unwrap_or_default()) else { return };
        let description = to_bytes(lua, DESCRIPTION).map(Box::from);
        let function = Function { name, description, flags, in_turn: InTurn::default() };
        if let Some(registered) = host_of(lua).loading.as_mut().and_then(|loading| loading.registered.last_mut()) {
            registered.push((function, callback));
        }
    }
}

/// Copies the arguments that a table names into their slots.
unsafe fn named_arguments(lua: *mut lua_State) {
    // SAFETY: as `register_function`.
    unsafe {
        if ffi::lua_type(lua, 1) != ffi::LUA_TTABLE {
            api::fail(
                lua,
                c"calling redis.register_function with a single argument is only applicable to Lua table (representing \
                 named arguments).",
            );
        }
        ffi::lua_settop(lua, DESCRIPTION);
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, 1) != 0 {
            if ffi::lua_isstring(lua, -2) == 0 {
                api::fail(lua, c"named argument key given to redis.register_function is not a string");
            }
            // A number is not the name of an argument, and must not become a string in its place.
            let key = to_bytes(lua, -2).unwrap_or_default();
            let is_string = ffi::lua_isstring(lua, -1) != 0;
            let slot = if key.eq_ignore_ascii_case(b"function_name") {
                if !is_string {
                    api::fail(lua, c"function_name argument given to redis.register_function must be a string");
                }
                NAME
            } else if key.eq_ignore_ascii_case(b"description") {
                if !is_string {
                    api::fail(lua, c"description argument given to redis.register_function must be a string");
                }
                DESCRIPTION
            } else if key.eq_ignore_ascii_case(b"callback") {
                if ffi::lua_type(lua, -1) != ffi::LUA_TFUNCTION {
                    api::fail(lua, c"callback argument given to redis.register_function must be a function");
                }
                CALLBACK
            } else if key.eq_ignore_ascii_case(b"flags") {
                if ffi::lua_type(lua, -1) != ffi::LUA_TTABLE {
                    api::fail(
                        lua,
                        c"flags argument to redis.register_function must be a table representing function flags",
                    );
                }
                FLAGS
            } else {
                api::fail(lua, c"unknown argument given to redis.register_function");
                0
            };
            ffi::lua_replace(lua, slot);
        }
        if ffi::lua_type(lua, NAME) == ffi::LUA_TNIL {
            api::fail(lua, c"redis.register_function must get a function name argument");
        }
        if ffi::lua_type(lua, CALLBACK) == ffi::LUA_TNIL {
            api::fail(lua, c"redis.register_function must get a callback argument");
        }
    }
}

/// Returns the flags in the table that stands in its slot.
unsafe fn flags(lua: *mut lua_State) -> Flags {
    // SAFETY: as `register_function`.
    unsafe {
        let mut flags = Flags::SHEBANG;
        for place in 1.. {
            let kind = ffi::lua_rawgeti(lua, FLAGS, place);
            if kind == ffi::LUA_TNIL {
                break;
            }
            let known = match kind {
                ffi::LUA_TSTRING => Flags::named_in_any_case(to_bytes(lua, -1).unwrap_or_default()),
                _ => None,
            };
            let Some(flag) = known else {
                api::fail(lua, c"unknown flag given");
                return flags;
            };
            flags = flags | flag;
            ffi::lua_settop(lua, -2);
        }
        ffi::lua_settop(lua, DESCRIPTION);
        flags
    }
}
