//! `core.redis(NAME)`: a store or an engine as an object whose methods are its commands.
//!
//! `r:incrby(key, 1)` and `r:call("INCRBY", key, 1)` raise on an error, `r:pcall(…)` returns `nil, message`; a null is
//! nil. A reply that is available immediately is returned without a yield, so a call of the embedded store costs a
//! function call.
//!
//! `r:own(…)`, `r:multi(…)` and `r:subscribe(…)` are implemented in the prelude, on top of `redis_own`.
//!
//! `r:acall(…)` does not wait for the reply; `r:pipeline(function(p) … end)` sends the commands called on `p` together
//! and returns a table of replies. Both also work on stores, which answer immediately.
//!
//! The object holds an index into the host's list of handles, so it needs no finalizer and calls compare no names.

use std::ffi::{CStr, c_int};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate_script::ffi::{self, lua_KContext, lua_State};
use sluicegate_script::{check_bytes, continuation, function, push_bytes, raise, to_bytes};
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::forgotten::{forget, teller};
use super::host::{RedisHandle, host, key, raise_text, set_functions, tagged, wait_for};
use super::operation::{Operation, Outcome};
use super::origin::origin;

/// The maximum number of handles of one state: stores and engines times databases.
const HANDLES_MAX: usize = 1024;

/// An object as stored in its userdata: without a pointer, so a forged one is harmless.
#[derive(Clone, Copy)]
#[repr(C)]
struct Object {
    tag: u64,
    /// The index among the host's handles.
    index: u32,
}

/// The tag of every [`Object`], and of no other userdata of its size.
const TAG: u64 = u64::from_be_bytes(*b"the-call");

/// The maximum nesting depth of replies.
const DEPTH_MAX: usize = 64;

/// Creates the class and `core.redis`; the table `core` is a global.
pub(super) unsafe fn open(lua: *mut lua_State) {
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_createtable(lua, 0, 2);
        ffi::lua_createtable(lua, 0, 16);
        ffi::lua_pushvalue(lua, -1);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REDIS_METHODS).cast());
        set_functions(lua, &[(c"call", function!(call)), (c"pcall", function!(pcall)), (c"acall", function!(acall))]);
        ffi::lua_createtable(lua, 0, 1);
        set_functions(lua, &[(c"__index", function!(make_method))]);
        ffi::lua_setmetatable(lua, -2);
        ffi::lua_setfield(lua, -2, c"__index".as_ptr());
        ffi::lua_pushstring(lua, c"redis".as_ptr());
        ffi::lua_setfield(lua, -2, c"__name".as_ptr());
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REDIS).cast());
        ffi::lua_getglobal(lua, c"core".as_ptr());
        set_functions(lua, &[(c"redis", function!(redis))]);
        ffi::lua_settop(lua, -2);
    }
}

/// `core.redis(NAME [, {db = N}])`.
unsafe fn redis(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the handle is made after the last call that may raise.
    unsafe {
        let name = check_bytes(lua, 1);
        let mut db = 0;
        if ffi::lua_type(lua, 2) > ffi::LUA_TNIL {
            ffi::luaL_checktype(lua, 2, ffi::LUA_TTABLE);
            ffi::lua_getfield(lua, 2, c"user".as_ptr());
            if ffi::lua_type(lua, -1) != ffi::LUA_TNIL {
                raise(lua, c"not available yet: core.redis with a user");
            }
            ffi::lua_getfield(lua, 2, c"db".as_ptr());
            let mut valid = 1;
            if ffi::lua_type(lua, -1) != ffi::LUA_TNIL {
                db = ffi::lua_tointegerx(lua, -1, &mut valid);
            }
            if valid == 0 || u32::try_from(db).is_err() {
                raise(lua, c"core.redis: db must be a number from 0");
            }
        }
        let Ok(name) = std::str::from_utf8(name) else {
            ffi::luaL_argerror(lua, 1, c"the name is not UTF-8".as_ptr());
            return 0;
        };
        let db = db as u32;
        let object = ffi::lua_newuserdatauv(lua, size_of::<Object>(), 0) as *mut Object;
        object.write(Object { tag: 0, index: 0 });
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REDIS).cast());
        ffi::lua_setmetatable(lua, -2);
        let host = host(lua);
        let known = host.redis.iter().position(|handle| *handle.name == *name && handle.db == db);
        let index = match known {
            Some(index) => index,
            None if host.redis.len() >= HANDLES_MAX => raise(lua, c"core.redis: too many names"),
            None => {
                // After the start all existing names are known; before, a body may use a name defined later.
                if let Some(engines) = host.shared.engines.get()
                    && !engines.contains_key(name)
                {
                    raise_text(lua, unknown(name));
                }
                let name = Arc::from(name);
                let failed = teller(&host.shared.forgotten, &host.shared.sink, &name);
                host.redis.push(RedisHandle { name, db, engine: None, failed });
                host.redis.len() - 1
            }
        };
        object.write(Object { tag: TAG, index: index as u32 });
        1
    }
}

fn unknown(name: &str) -> String {
    format!("core.redis: there is no store or redis section named '{name}'")
}

/// `__index` of the methods' table: any other name is a command, whose method is created and cached.
unsafe fn make_method(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; 1 is the table of methods, 2 the name.
    unsafe {
        let Some(name) = to_bytes(lua, 2) else { return 0 };
        if name.is_empty() || name.len() > 32 || !name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') {
            return 0;
        }
        let mut upper = [0u8; 32];
        upper[..name.len()].copy_from_slice(name);
        upper[..name.len()].make_ascii_uppercase();
        push_bytes(lua, &upper[..name.len()]);
        ffi::lua_pushcclosure(lua, function!(command), 1);
        ffi::lua_pushvalue(lua, 2);
        ffi::lua_pushvalue(lua, -2);
        ffi::lua_rawset(lua, 1);
        1
    }
}

/// The way in which a reply is returned.
pub(super) const RAISE: lua_KContext = 0;
pub(super) const PROTECT: lua_KContext = 1;
const FORGET: lua_KContext = 2;

unsafe fn command(lua: *mut lua_State) -> c_int {
    // SAFETY: as `start`; upvalue 1 is the command's name.
    unsafe { start(lua, Some(ffi::lua_upvalueindex(1)), RAISE) }
}

unsafe fn call(lua: *mut lua_State) -> c_int {
    // SAFETY: as `start`.
    unsafe { start(lua, None, RAISE) }
}

unsafe fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: as `start`.
    unsafe { start(lua, None, PROTECT) }
}

unsafe fn acall(lua: *mut lua_State) -> c_int {
    // SAFETY: as `start`.
    unsafe { start(lua, None, FORGET) }
}

/// The maximum number of integer arguments of one command that are formatted without Lua.
const INTEGERS: usize = 4;

/// Runs a command whose arguments start at 2.
unsafe fn start(lua: *mut lua_State, name: Option<c_int>, mode: lua_KContext) -> c_int {
    // SAFETY: every call that may raise comes before the list of arguments is made.
    unsafe {
        let index = check(lua);
        let top = ffi::lua_gettop(lua);
        if name.is_none() && top < 2 {
            raise(lua, c"call: a command is expected");
        }
        let mut integers = 0;
        for argument in 2..=top {
            match ffi::lua_type(lua, argument) {
                ffi::LUA_TSTRING => {}
                // The first integers are printed below; Lua's own conversion costs several times as much.
                ffi::LUA_TNUMBER if integers < INTEGERS && ffi::lua_isinteger(lua, argument) != 0 => integers += 1,
                // Converted in place, as Lua prints it.
                ffi::LUA_TNUMBER => {
                    ffi::lua_tolstring(lua, argument, std::ptr::null_mut());
                }
                _ => {
                    ffi::luaL_argerror(lua, argument - 1, c"string or number expected".as_ptr());
                }
            }
        }
        let (engine, db) = engine(lua, index);
        let started = {
            let mut digits = [itoa::Buffer::new(); INTEGERS];
            let mut args: SmallVec<[&[u8]; 8]> = SmallVec::new();
            if let Some(name) = name.and_then(|name| to_bytes(lua, name)) {
                args.push(name);
            }
            let mut unused = digits.iter_mut();
            for argument in 2..=top {
                if let Some(text) = to_bytes(lua, argument) {
                    args.push(text);
                } else if let Some(digits) = unused.next() {
                    let number = ffi::lua_tointegerx(lua, argument, std::ptr::null_mut());
                    args.push(digits.format(number).as_bytes());
                }
            }
            if mode == FORGET {
                forget(engine, &|| origin(lua), db, &args, &host(lua).redis[index as usize].failed);
                return 0;
            }
            engine.start_from(&|| origin(lua), db, &args)
        };
        match started {
            Started::Done(Reply::Integer(number)) => {
                ffi::lua_pushinteger(lua, number);
                1
            }
            Started::Done(reply) => finish(lua, reply, mode),
            Started::Pending(reply) => wait_for(lua, Operation::Reply(reply), mode, continuation!(answered)),
        }
    }
}

/// Returns the engine and database of a handle; raises an error if there is none. The handle lives as long as its
/// state.
unsafe fn engine<'l>(lua: *mut lua_State, index: u32) -> (&'l dyn Engine, u32) {
    // SAFETY: handles are never removed, and keep the engines that they found.
    unsafe {
        let host = host(lua);
        let Some(handle) = host.redis.get_mut(index as usize) else { raise(lua, c"core.redis: a stale object") };
        if handle.engine.is_none() {
            match host.shared.engines.get() {
                Some(engines) => match engines.get(&*handle.name) {
                    Some(engine) => handle.engine = Some(engine.clone()),
                    None => {
                        let message = unknown(&handle.name);
                        raise_text(lua, message);
                    }
                },
                None => raise(lua, c"core.redis: the stores are not there yet"),
            }
        }
        match &handle.engine {
            Some(engine) => {
                let engine: *const dyn Engine = &raw const **engine;
                (&*engine, handle.db)
            }
            None => raise(lua, c"core.redis: the store is not there"),
        }
    }
}

/// The maximum number of commands of one pipeline.
const BATCH_MAX: u64 = 100_000;

/// Registers the functions below `r:pipeline` and `r:multi`: the methods of objects, and two that execute a table of
/// commands, each a table of words, and return a table of their replies: `batch(r, commands)`, and `together(r,
/// commands)`, which is atomic, and which returns false if that requires a dedicated connection.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    // SAFETY: the table is on top.
    unsafe {
        set_functions(lua, &[(c"batch", function!(batch)), (c"together", function!(together))]);
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::REDIS_METHODS).cast());
        ffi::lua_setfield(lua, -2, c"redis_methods".as_ptr());
    }
}

/// Returns the engine and database of argument 1.
pub(super) unsafe fn engine_of<'l>(lua: *mut lua_State) -> (&'l dyn Engine, u32) {
    // SAFETY: as `check` and `engine`.
    unsafe {
        let index = check(lua);
        engine(lua, index)
    }
}

/// Checks that argument 2 is a table of commands, each a table of words, converts all words to strings, and returns the
/// number of commands. Leaves nothing on the stack above it.
pub(super) unsafe fn check_commands(lua: *mut lua_State) -> i64 {
    // SAFETY: a C function's usual stack; nothing is held.
    unsafe {
        ffi::luaL_checktype(lua, 2, ffi::LUA_TTABLE);
        ffi::lua_settop(lua, 2);
        let count = ffi::lua_rawlen(lua, 2) as u64;
        if count > BATCH_MAX {
            raise(lua, c"pipeline: too many commands");
        }
        for at in 1..=count as i64 {
            if ffi::lua_rawgeti(lua, 2, at) != ffi::LUA_TTABLE || ffi::lua_rawlen(lua, 3) == 0 {
                raise(lua, c"pipeline: a command is expected");
            }
            for word in 1..=ffi::lua_rawlen(lua, 3) as i64 {
                match ffi::lua_rawgeti(lua, 3, word) {
                    ffi::LUA_TSTRING => {}
                    // As Lua prints it.
                    ffi::LUA_TNUMBER => {
                        ffi::lua_tolstring(lua, 4, std::ptr::null_mut());
                        ffi::lua_pushvalue(lua, 4);
                        ffi::lua_rawseti(lua, 3, word);
                    }
                    _ => raise(lua, c"pipeline: strings or numbers are expected"),
                }
                ffi::lua_settop(lua, 3);
            }
            ffi::lua_settop(lua, 2);
        }
        count as i64
    }
}

/// Returns the words of a command in a checked table at 2, which keeps them alive. Leaves nothing above the table, and
/// never raises an error.
pub(super) unsafe fn command_at<'l>(lua: *mut lua_State, at: i64) -> SmallVec<[&'l [u8]; 8]> {
    // SAFETY: the table was checked, and has no other user meanwhile.
    unsafe {
        ffi::lua_rawgeti(lua, 2, at);
        let mut args = SmallVec::new();
        for word in 1..=ffi::lua_rawlen(lua, 3) as i64 {
            ffi::lua_rawgeti(lua, 3, word);
            args.extend(to_bytes(lua, 4));
            ffi::lua_settop(lua, 3);
        }
        ffi::lua_settop(lua, 2);
        args
    }
}

unsafe fn batch(lua: *mut lua_State) -> c_int {
    // SAFETY: every call that may raise precedes the start of the first command; afterwards the words are strings that
    // their tables keep alive.
    unsafe {
        let (engine, db) = engine_of(lua);
        let count = check_commands(lua);
        let start = |at: i64| engine.start_from(&|| origin(lua), db, &command_at(lua, at));
        let started: Vec<Started> = (1..=count).map(start).collect();
        let waits = started.iter().any(|started| matches!(started, Started::Pending(_)));
        let replies = async move {
            let mut replies = Vec::with_capacity(started.len());
            for one in started {
                replies.push(one.finish().await);
            }
            Reply::Array(replies)
        };
        if waits {
            return wait_for(lua, Operation::Reply(Box::pin(replies)), RAISE, continuation!(answered));
        }
        let reply = match pin!(replies).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => reply,
            Poll::Pending => Reply::Null,
        };
        finish(lua, reply, RAISE)
    }
}

unsafe fn together(lua: *mut lua_State) -> c_int {
    // SAFETY: as `batch`.
    unsafe {
        let (engine, db) = engine_of(lua);
        let count = check_commands(lua);
        let started = {
            let commands: SmallVec<[SmallVec<[&[u8]; 8]>; 4]> = (1..=count).map(|at| command_at(lua, at)).collect();
            let commands: SmallVec<[&[&[u8]]; 8]> = commands.iter().map(|words| &words[..]).collect();
            engine.together(&|| origin(lua), db, &commands)
        };
        match started {
            None => {
                ffi::lua_pushboolean(lua, 0);
                1
            }
            Some(Started::Done(reply)) => finish(lua, reply, RAISE),
            Some(Started::Pending(reply)) => wait_for(lua, Operation::Reply(reply), RAISE, continuation!(answered)),
        }
    }
}

unsafe fn answered(lua: *mut lua_State, _: c_int, mode: lua_KContext) -> c_int {
    // SAFETY: the reply moves from one place of the host to another.
    unsafe {
        match host(lua).outcome.take() {
            Some(Outcome::Reply(reply)) => finish(lua, reply, mode),
            _ => raise(lua, c"core.redis: the reply was lost"),
        }
    }
}

/// Returns a reply to the script; the host holds it while Lua copies it.
pub(super) unsafe fn finish(lua: *mut lua_State, reply: Reply, mode: lua_KContext) -> c_int {
    // SAFETY: the host owns the reply, in a box of its own: a finalizer of the script's, which may run wherever Lua
    // allocates, parks its replies above and takes none away from below.
    unsafe {
        let parked = host(lua).answers.len();
        host(lua).answers.push(Box::new(reply));
        let reply: *const Reply = &raw const **host(lua).answers.last().expect("just pushed");
        if let Reply::Error(message) = &*reply {
            if mode == PROTECT {
                ffi::lua_pushnil(lua);
            }
            push_bytes(lua, message.as_bytes());
            host(lua).answers.truncate(parked);
            if mode == PROTECT {
                return 2;
            }
            ffi::lua_error(lua);
        }
        push_reply(lua, &*reply, 0);
        host(lua).answers.truncate(parked);
        1
    }
}

/// Returns argument 1 as a handle's index; raises an error for anything else.
unsafe fn check(lua: *mut lua_State) -> u32 {
    // SAFETY: an object is plain numbers.
    unsafe {
        match tagged::<Object>(lua, 1, TAG) {
            Some(object) => object.index,
            None => {
                ffi::luaL_argerror(lua, 1, c"an object of core.redis is expected (is it r:command(…)?)".as_ptr());
                0
            }
        }
    }
}

/// Pushes a reply: numbers, strings and booleans as such, arrays and sets as tables with their length in `n` (a null
/// inside leaves a hole), maps by key, an error inside an array as `{err = message}`.
unsafe fn push_reply(lua: *mut lua_State, reply: &Reply, depth: usize) {
    // SAFETY: the reply is owned by the host; three slots are made sure of.
    unsafe {
        if depth > DEPTH_MAX {
            raise(lua, c"core.redis: the reply is nested too deeply");
        }
        ffi::luaL_checkstack(lua, 4, c"reply".as_ptr());
        match reply {
            Reply::Null => ffi::lua_pushnil(lua),
            Reply::Integer(number) => ffi::lua_pushinteger(lua, *number),
            Reply::Double(number) => ffi::lua_pushnumber(lua, *number),
            Reply::Boolean(value) => ffi::lua_pushboolean(lua, c_int::from(*value)),
            Reply::Simple(text) | Reply::BigNumber(text) => push_bytes(lua, text.as_bytes()),
            Reply::Bulk(bytes) | Reply::Verbatim(_, bytes) => push_bytes(lua, bytes),
            Reply::Error(message) => {
                ffi::lua_createtable(lua, 0, 1);
                push_bytes(lua, message.as_bytes());
                ffi::lua_setfield(lua, -2, c"err".as_ptr());
            }
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => {
                ffi::lua_createtable(lua, c_int::try_from(items.len()).unwrap_or(0), 1);
                for (index, item) in items.iter().enumerate() {
                    push_reply(lua, item, depth + 1);
                    ffi::lua_rawseti(lua, -2, index as i64 + 1);
                }
                set_length(lua, items.len());
            }
            Reply::Map(pairs) => {
                ffi::lua_createtable(lua, 0, c_int::try_from(pairs.len()).unwrap_or(0));
                for (key, value) in pairs {
                    if matches!(key, Reply::Null) {
                        continue;
                    }
                    push_reply(lua, key, depth + 1);
                    push_reply(lua, value, depth + 1);
                    ffi::lua_rawset(lua, -3);
                }
            }
        }
    }
}

unsafe fn set_length(lua: *mut lua_State, length: usize) {
    const N: &CStr = c"n";
    // SAFETY: a table is on top.
    unsafe {
        ffi::lua_pushinteger(lua, length as i64);
        ffi::lua_setfield(lua, -2, N.as_ptr());
    }
}
