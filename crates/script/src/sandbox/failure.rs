//! Errors with formatted texts, and the limit that several of them name.

use std::fmt::{self, Write as _};

use super::decimal::Text;
use crate::ffi::{self, lua_State};

/// The maximum number of stack slots that a function of Lua 5.1 may use; a function that needs more raises an error.
pub(super) const SLOTS_MAX: usize = 8000;

/// The longest text; longer ones are truncated.
const TEXT_MAX: usize = 256;

/// Raises an error with the position of the caller.
///
/// # Safety
/// Nothing with a destructor is alive in the caller.
#[cold]
pub(super) unsafe fn fail(lua: *mut lua_State, message: fmt::Arguments<'_>) -> ! {
    // SAFETY: the text owns nothing.
    unsafe {
        let mut text = Text::<TEXT_MAX>::new();
        let _ = text.write_fmt(message);
        ffi::luaL_where(lua, 1);
        crate::push_bytes(lua, text.as_bytes());
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua)
    }
}
