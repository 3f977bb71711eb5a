//! `CertCache`: certificates that scripts replace.
//!
//! Building a certificate takes milliseconds, and as much again for each thousand `bind` lines that have it, so at run time
//! it is done on a thread for blocking work while the script waits.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{can_wait, continuation, function, push_bytes, raise, to_bytes};

use super::host::{Phase, host, push_text, set_functions, wait_for};
use super::native::running;
use super::operation::{Operation, Outcome};
use crate::reload::update_pair;
use crate::running::Running;

/// A change of a certificate.
pub(super) struct Update {
    /// `None`: the certificates are not there yet.
    running: Option<Arc<Running>>,
    name: String,
    /// Extensions and payloads.
    parts: Vec<(String, Vec<u8>)>,
}

impl Update {
    /// Makes the change; an error is HAProxy's message.
    fn make(&self) -> Result<(), String> {
        match &self.running {
            Some(running) => update_pair(running, &self.name, &self.parts),
            None => Err("Can't replace a certificate which is not referenced by the configuration!".to_owned()),
        }
    }

    /// Makes the change on a thread for blocking work.
    pub(super) async fn perform(self) -> Result<(), String> {
        let made = tokio::task::spawn_blocking(move || self.make()).await;
        made.unwrap_or_else(|_| Err("the update has failed".to_owned()))
    }
}

/// Creates the class.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 1] = [(c"set", function!(set))];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_createtable(lua, 0, 1);
        set_functions(lua, &FUNCTIONS);
        ffi::lua_setglobal(lua, c"CertCache".as_ptr());
    }
}

/// `CertCache.set{filename = …, crt = …, key = …, ocsp = …, issuer = …}`.
unsafe fn set(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack; the change is made of bytes on the stack after the last call that may raise.
    unsafe {
        if ffi::lua_type(lua, 1) != ffi::LUA_TTABLE {
            raise(lua, c"'CertCache.set' needs a table as argument");
        }
        let runs = host(lua).phase == Phase::Run;
        if runs && (host(lua).current.no_wait || !can_wait(lua)) {
            raise(lua, c"Cannot use CertCache.set from a non-yield capable runtime context");
        }
        ffi::lua_settop(lua, 1);
        ffi::lua_getfield(lua, 1, c"filename".as_ptr());
        if ffi::lua_type(lua, 2) != ffi::LUA_TSTRING {
            return fail(lua, c"No filename specified!");
        }
        // Field names and payloads stay on the stack, in pairs.
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, 1) != 0 {
            let (field, payload) = (to_bytes(lua, -2), to_bytes(lua, -1));
            if field.is_none_or(|field| field == b"filename") {
                ffi::lua_settop(lua, -2);
                continue;
            }
            if payload.is_none() {
                raise(lua, c"CertCache.set: a field is not a string");
            }
            ffi::luaL_checkstack(lua, 4, c"too many fields".as_ptr());
            ffi::lua_pushvalue(lua, -2);
        }
        let count = (ffi::lua_gettop(lua) - 2) / 2;
        let update = update_of(lua, count);
        if runs {
            return wait_for(lua, Operation::Certificate(Box::new(update)), 0, continuation!(done));
        }
        let made = update.make();
        drop(update);
        host(lua).outcome = Some(Outcome::Certificate(made));
        done(lua, 0, 0)
    }
}

/// Returns the change whose name is at 2, with `count` pairs behind it.
unsafe fn update_of(lua: *mut lua_State, count: c_int) -> Update {
    // SAFETY: the caller has proved that these are strings, which are read without converting.
    unsafe {
        let bytes = |index| to_bytes(lua, index).unwrap_or_default();
        let text = |index| String::from_utf8_lossy(bytes(index)).into_owned();
        let parts = (0..count).map(|pair| (text(3 + 2 * pair), bytes(4 + 2 * pair).to_vec())).collect();
        Update { running: running(lua), name: text(2), parts }
    }
}

/// Raises a message as it is, without a place, as HAProxy does.
unsafe fn fail(lua: *mut lua_State, message: &CStr) -> c_int {
    // SAFETY: nothing is held.
    unsafe {
        push_bytes(lua, message.to_bytes());
        ffi::lua_error(lua)
    }
}

unsafe fn done(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the message moves into the host before Lua is called.
    unsafe {
        match host(lua).outcome.take() {
            Some(Outcome::Certificate(Ok(()))) => 0,
            Some(Outcome::Certificate(Err(message))) => {
                push_text(lua, message.into_bytes());
                ffi::lua_error(lua)
            }
            other => {
                drop(other);
                fail(lua, c"the update was lost")
            }
        }
    }
}
