//! Wrappers of the Rust functions that Lua calls, which stop panics.
//!
//! A panic that unwound through the frames of Lua's interpreter would leave its state in the middle of a call, so each
//! Rust function that Lua calls is wrapped: [`function!`](crate::function) and
//! [`continuation!`](crate::continuation) make the C function that Lua gets, and a panic becomes a Lua error there.
//! The types enforce it: a function with Rust's own calling convention cannot be passed to Lua.
//!
//! A Lua error is a longjmp across the wrapper's frame, which holds nothing that needs to be dropped.
//!
//! Cost: none without a panic; the wrapped function is inlined into its wrapper.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::ffi::{self, lua_State};

/// Longest message of a panic that a script sees, bytes.
const MESSAGE_MAX: usize = 256;

/// Makes the C function for Lua from an `unsafe fn(*mut lua_State) -> c_int`.
#[macro_export]
macro_rules! function {
    ($function:path) => {{
        unsafe extern "C-unwind" fn entry(lua: *mut $crate::ffi::lua_State) -> ::std::ffi::c_int {
            // SAFETY: Lua's promise to a C function, handed on.
            unsafe { $crate::guard(lua, || $function(lua)) }
        }
        entry as $crate::ffi::lua_CFunction
    }};
}

/// Makes the continuation for Lua from an `unsafe fn(*mut lua_State, c_int, lua_KContext) -> c_int`.
#[macro_export]
macro_rules! continuation {
    ($function:path) => {{
        unsafe extern "C-unwind" fn entry(
            lua: *mut $crate::ffi::lua_State,
            status: ::std::ffi::c_int,
            context: $crate::ffi::lua_KContext,
        ) -> ::std::ffi::c_int {
            // SAFETY: as Lua promised the C function that yielded.
            unsafe { $crate::guard(lua, || $function(lua, status, context)) }
        }
        entry as $crate::ffi::lua_KFunction
    }};
}

/// Defines the continuation that calls a C function's `unsafe fn(*mut lua_State) -> c_int` again: for a function that
/// passes itself to [`leave`](crate::leave) with its arguments still on the stack.
#[macro_export]
macro_rules! again {
    ($function:path) => {{
        unsafe extern "C-unwind" fn entry(
            lua: *mut $crate::ffi::lua_State,
            _: ::std::ffi::c_int,
            _: $crate::ffi::lua_KContext,
        ) -> ::std::ffi::c_int {
            // SAFETY: as Lua promised the C function that yielded.
            unsafe { $crate::guard(lua, || $function(lua)) }
        }
        entry as $crate::ffi::lua_KFunction
    }};
}

/// Runs `function`; a panic in it becomes a Lua error.
///
/// # Safety
/// `lua` is the C function's state; nothing with a destructor is alive in the caller, and nothing in `function` where
/// Lua may raise.
#[inline(always)]
pub unsafe fn guard(lua: *mut lua_State, function: impl FnOnce() -> c_int) -> c_int {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(results) => results,
        // SAFETY: as promised by the caller.
        Err(payload) => unsafe { raise_panic(lua, payload) },
    }
}

#[cold]
unsafe fn raise_panic(lua: *mut lua_State, payload: Box<dyn Any + Send>) -> c_int {
    let mut text = [0u8; MESSAGE_MAX];
    let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (None, Some(message)) => message.as_str(),
        (None, None) => "",
    };
    let len = message.len().min(MESSAGE_MAX);
    text[..len].copy_from_slice(&message.as_bytes()[..len]);
    drop(payload);
    // SAFETY: the message lies in a plain array now.
    unsafe {
        ffi::luaL_where(lua, 1);
        ffi::lua_pushstring(lua, c"internal error: ".as_ptr());
        crate::push_bytes(lua, &text[..len]);
        ffi::lua_concat(lua, 3);
        ffi::lua_error(lua)
    }
}
