//! Dedicated connections from Lua: the basis of `r:own`, `r:multi` and `r:subscribe` in the prelude.
//!
//! A connection is a separate userdata that is released when it is closed or collected, so one that a script forgot, or
//! whose script was ended, is never leaked.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_KContext, lua_State};
use sluicegate_script::{check_bytes, continuation, function, raise, to_bytes};
use sluicegate_wire::engine::Own;
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::host::{check_object, host, key, set_functions, wait_for};
use super::operation::{Operation, Outcome};
use super::redis::{PROTECT, RAISE, check_commands, command_at, engine_of, finish};

/// The target of a block's pointer; null once it is closed.
type Slot = *mut Box<dyn Own>;

/// Sets the functions in the table of native ones, which is on top, and makes the class.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        set_functions(
            lua,
            &[
                (c"own", function!(open)),
                (c"own_batch", function!(batch)),
                (c"own_call", function!(call)),
                (c"own_subscribe", function!(subscribe)),
                (c"own_message", function!(message)),
                (c"own_close", function!(close)),
            ],
        );
        ffi::lua_createtable(lua, 0, 2);
        set_functions(lua, &[(c"__gc", function!(close)), (c"__close", function!(close))]);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::OWN).cast());
    }
}

/// `own(r)`: opens a connection to the store or engine for the script's own use.
unsafe fn open(lua: *mut lua_State) -> c_int {
    // SAFETY: the connection is made after the last call that may raise, and its block owns it at once.
    unsafe {
        let (engine, db) = engine_of(lua);
        let slot = ffi::lua_newuserdatauv(lua, size_of::<Slot>(), 0) as *mut Slot;
        *slot = ptr::null_mut();
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::OWN).cast());
        ffi::lua_setmetatable(lua, -2);
        match engine.own(db) {
            Some(own) => *slot = Box::into_raw(Box::new(own)),
            None => raise(lua, c"core.redis: there are no connections of their own here"),
        }
        1
    }
}

/// Returns argument 1 as an open connection; raises an error for anything else.
unsafe fn check<'l>(lua: *mut lua_State) -> &'l mut Box<dyn Own> {
    // SAFETY: the metatable proves the type of the block's content.
    unsafe {
        let slot = check_object::<Slot>(lua, &key::OWN, c"a connection is expected");
        if (*slot).is_null() {
            raise(lua, c"core.redis: the connection is closed");
        }
        &mut **slot
    }
}

unsafe fn close(lua: *mut lua_State) -> c_int {
    // SAFETY: as `check`; the pointer is cleared before the box goes.
    unsafe {
        let slot = check_object::<Slot>(lua, &key::OWN, c"a connection is expected");
        let own = std::mem::replace(&mut *slot, ptr::null_mut());
        if !own.is_null() {
            drop(Box::from_raw(own));
        }
        0
    }
}

/// `own_batch(own, commands)`: returns a table of the replies.
unsafe fn batch(lua: *mut lua_State) -> c_int {
    // SAFETY: every call that may raise comes before the words are borrowed; their tables keep them.
    unsafe {
        check(lua);
        let count = check_commands(lua);
        // Making strings collects garbage, and a finalizer may end the coroutine that has the connection.
        let own = check(lua);
        let reply = {
            let commands: Vec<SmallVec<[&[u8]; 8]>> = (1..=count).map(|at| command_at(lua, at)).collect();
            let commands: Vec<&[&[u8]]> = commands.iter().map(|words| &words[..]).collect();
            own.start(&commands)
        };
        wait_for(lua, Operation::Reply(reply), RAISE, continuation!(answered))
    }
}

/// `own_call(own, protected, command, argument…)`: returns the reply. An error is raised or, if `protected`, returned
/// as nil and a message.
unsafe fn call(lua: *mut lua_State) -> c_int {
    // SAFETY: as `batch`; the words stay on the stack.
    unsafe {
        check(lua);
        let top = ffi::lua_gettop(lua);
        let mode = if ffi::lua_toboolean(lua, 2) != 0 { PROTECT } else { RAISE };
        if top < 3 {
            raise(lua, c"call: a command is expected");
        }
        (3..=top).for_each(|word| _ = check_bytes(lua, word));
        let own = check(lua);
        let reply = {
            let words: SmallVec<[&[u8]; 8]> = (3..=top).filter_map(|word| to_bytes(lua, word)).collect();
            own.start(&[&words])
        };
        wait_for(lua, Operation::Reply(reply), mode, continuation!(answered_one))
    }
}

/// `own_subscribe(own, patterns, channels)`.
unsafe fn subscribe(lua: *mut lua_State) -> c_int {
    // SAFETY: as `batch`: the table at 3 keeps the strings.
    unsafe {
        let own = check(lua);
        let patterns = ffi::lua_toboolean(lua, 2) != 0;
        ffi::luaL_checktype(lua, 3, ffi::LUA_TTABLE);
        let count = ffi::lua_rawlen(lua, 3) as i64;
        for at in 1..=count {
            if ffi::lua_rawgeti(lua, 3, at) != ffi::LUA_TSTRING {
                raise(lua, c"subscribe: names of channels are expected");
            }
            ffi::lua_settop(lua, 3);
        }
        let reply = {
            let names = (1..=count).filter_map(|at| {
                ffi::lua_rawgeti(lua, 3, at);
                let name = to_bytes(lua, 4);
                ffi::lua_settop(lua, 3);
                name
            });
            let names: Vec<&[u8]> = names.collect();
            own.subscribe(patterns, &names)
        };
        wait_for(lua, Operation::Reply(reply), RAISE, continuation!(answered))
    }
}

/// `own_message(own [, seconds])`: returns the next message as a table; nil after the time limit.
unsafe fn message(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let own = check(lua);
        let limit = match ffi::lua_type(lua, 2) <= ffi::LUA_TNIL {
            true => None,
            false => Duration::try_from_secs_f64(ffi::luaL_checknumber(lua, 2).max(0.0)).ok(),
        };
        let reply = own.message(limit);
        wait_for(lua, Operation::Reply(reply), RAISE, continuation!(answered))
    }
}

unsafe fn answered(lua: *mut lua_State, _: c_int, mode: lua_KContext) -> c_int {
    // SAFETY: the reply moves from one place of the host to another.
    unsafe {
        match host(lua).outcome.take() {
            Some(Outcome::Reply(reply)) => finish(lua, reply, mode),
            other => {
                drop(other);
                raise(lua, c"core.redis: the reply was lost")
            }
        }
    }
}

/// Continues after a single command: returns its reply in place of the table of all replies.
unsafe fn answered_one(lua: *mut lua_State, _: c_int, mode: lua_KContext) -> c_int {
    // SAFETY: as `answered`.
    unsafe {
        let reply = match host(lua).outcome.take() {
            Some(Outcome::Reply(Reply::Array(mut replies))) if replies.len() == 1 => replies.swap_remove(0),
            Some(Outcome::Reply(reply)) => reply,
            other => {
                drop(other);
                raise(lua, c"core.redis: the reply was lost")
            }
        };
        finish(lua, reply, mode)
    }
}
