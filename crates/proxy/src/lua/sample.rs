//! Results of scripts' fetches and converters: `lua.NAME` in sample expressions.
//!
//! In rules they are operations of the rule's code, may wait like any action, and get a `txn` that may change the
//! stream. In expressions evaluated by a plain function that only reads its stream (a log line), the same Lua function
//! runs synchronously: a call that would wait raises `cannot wait here`, and one that would change the stream raises an
//! error, too. A failure is logged as a script error and yields no sample; the request continues.

use std::ffi::c_int;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::to_bytes;

use crate::sample::Sample;

/// Returns the sample for a function's last result. As in HAProxy, every value other than a number, string or boolean
/// becomes false; without a result there is no sample.
pub(super) fn result_sample(thread: *mut lua_State, results: c_int) -> Option<Sample> {
    if results == 0 {
        return None;
    }
    // SAFETY: the results are on the stack of a coroutine that has ended; reading them raises nothing.
    unsafe {
        Some(match ffi::lua_type(thread, -1) {
            ffi::LUA_TNUMBER => Sample::Int(ffi::lua_tointeger(thread, -1)),
            ffi::LUA_TSTRING => Sample::Str(to_bytes(thread, -1).unwrap_or_default().to_vec()),
            ffi::LUA_TBOOLEAN => Sample::Bool(ffi::lua_toboolean(thread, -1) != 0),
            _ => Sample::Bool(false),
        })
    }
}
