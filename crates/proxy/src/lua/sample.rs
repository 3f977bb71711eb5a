//! Results of scripts' fetches and converters: `lua.NAME` wherever samples are.
//!
//! In rules they are operations of the rule's code, may wait like any action, and get a `txn` that they may change.
//! Where an expression is evaluated by a plain function that only reads its stream (a log line), the same function
//! runs to its end at once: what would wait raises `cannot wait here`, and so does what would change the stream.
//! A failure is logged as a script's error, gives no sample, and the request goes on.

use std::ffi::c_int;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::to_bytes;

use crate::sample::Sample;

/// What a function's last result is as a sample. HAProxy makes every value that is no number, string or boolean a
/// false one; a function that returns nothing gives none.
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
