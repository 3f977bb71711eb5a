//! The line of a script that calls a store, for the store's MONITOR and SLOWLOG.

use std::ffi::{CStr, c_int};

use sluicegate_script::ffi::{self, lua_Debug, lua_State};

/// The maximum number of stack levels that are searched for a line of a file.
const LEVELS_MAX: c_int = 32;

/// Returns `lua:FILE:LINE` of the innermost function defined in a file; `lua` if there is none. Characters that would
/// end a word become underscores. Nothing is raised.
///
/// The state is valid and runs on this thread.
pub(super) unsafe fn origin(lua: *mut lua_State) -> String {
    // SAFETY: promised by the caller. `lua_getstack` fills `record` before `lua_getinfo` reads it; with these options
    // neither function allocates, raises or pushes. `source` is a string of the function, which is on the stack.
    unsafe {
        let mut record: lua_Debug = std::mem::zeroed();
        for level in 0..LEVELS_MAX {
            if ffi::lua_getstack(lua, level, &mut record) == 0 {
                break;
            }
            if ffi::lua_getinfo(lua, c"Sl".as_ptr(), &mut record) == 0 || record.currentline <= 0 {
                continue;
            }
            // Files begin with an at sign, the prelude and texts given to `load` do not.
            if let Some(path) = CStr::from_ptr(record.source).to_bytes().strip_prefix(b"@") {
                let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let is_odd = |char: char| char.is_whitespace() || char.is_control() || matches!(char, '[' | ']');
                let file = String::from_utf8_lossy(file).replace(is_odd, "_");
                return format!("lua:{file}:{}", record.currentline);
            }
        }
    }
    "lua".to_owned()
}
