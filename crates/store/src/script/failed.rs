//! Errors of scripts that failed or were killed, with their positions.

use std::ffi::c_int;

use sluicegate_script::{ffi, to_bytes};

use super::api::write_number;
use super::call::Call;
use super::convert;
use super::interpreter::Name;
use super::run::Runs;

impl Runs {
    /// Returns the text of the error that ended the script.
    pub(super) fn error(&mut self, message: &str) -> Vec<u8> {
        let lua = self.coroutine.thread();
        let host = self.interpreter.host();
        let mut text = Vec::new();
        // SAFETY: the coroutine has failed, with its error on top of its stack, and does not run. A raw read of a table
        // with a key that exists raises nothing, nor does what only looks at a value.
        unsafe {
            let top = ffi::lua_gettop(lua);
            let kind = if top > 0 { ffi::lua_type(lua, top) } else { ffi::LUA_TNONE };
            match kind {
                ffi::LUA_TTABLE if ffi::lua_checkstack(lua, 4) != 0 => {
                    host.push_name(lua, Name::Err);
                    ffi::lua_rawget(lua, top);
                    let is_known = matches!(ffi::lua_type(lua, top + 1), ffi::LUA_TSTRING | ffi::LUA_TNUMBER);
                    write_plain(&mut text, lua, top + 1);
                    host.push_name(lua, Name::Counted);
                    ffi::lua_rawget(lua, top);
                    if ffi::lua_toboolean(lua, -1) != 0 {
                        host.counts.error(&text, -1);
                    }
                    ffi::lua_settop(lua, top);
                    if !is_known {
                        text.extend_from_slice(b"ERR unknown error");
                    }
                }
                ffi::LUA_TSTRING => {
                    text.extend_from_slice(b"ERR ");
                    let raw = to_bytes(lua, top).unwrap_or_default();
                    // Text that is not UTF-8 is not Lua's own message, so it is unchanged.
                    let is_adapted = std::str::from_utf8(raw).is_ok();
                    text.extend_from_slice(convert::up_to_zero(if is_adapted { message.as_bytes() } else { raw }));
                }
                ffi::LUA_TNUMBER => {
                    text.extend_from_slice(b"ERR ");
                    write_plain(&mut text, lua, top);
                }
                ffi::LUA_TNIL => text.extend_from_slice(b"ERR nil"),
                ffi::LUA_TBOOLEAN if ffi::lua_toboolean(lua, top) != 0 => text.extend_from_slice(b"ERR true"),
                ffi::LUA_TBOOLEAN => text.extend_from_slice(b"ERR false"),
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_topointer(lua, top).is_null() => {
                    text.extend_from_slice(b"ERR userdata: (nil)");
                }
                ffi::LUA_TFUNCTION | ffi::LUA_TTHREAD => {
                    let name = std::ffi::CStr::from_ptr(ffi::lua_typename(lua, kind)).to_string_lossy();
                    text.extend_from_slice(format!("ERR {name}: {:p}", ffi::lua_topointer(lua, top)).as_bytes());
                }
                _ => text.extend_from_slice(format!("ERR {message}").as_bytes()),
            }
        }
        text
    }

    /// Returns the text of the error that ended the script, with its position.
    pub(super) fn error_text(&mut self, call: &Call, message: &str) -> Vec<u8> {
        let text = self.error(message);
        let place = self.place();
        at_place(text, call, place)
    }

    /// Returns the position of the script: in the innermost Lua function.
    pub(super) fn place(&mut self) -> Option<(Vec<u8>, i64)> {
        let lua = self.coroutine.thread();
        // SAFETY: the coroutine does not run; `lua_getinfo` with these options pushes nothing.
        unsafe {
            let mut record: ffi::lua_Debug = std::mem::zeroed();
            for level in 0..2 {
                if ffi::lua_getstack(lua, level, &mut record) == 0
                    || ffi::lua_getinfo(lua, c"Sl".as_ptr(), &mut record) == 0
                {
                    return None;
                }
                if *record.what as u8 != b'C' {
                    break;
                }
            }
            let source = std::ffi::CStr::from_ptr(record.source).to_bytes().to_vec();
            Some((source, i64::from(record.currentline)))
        }
    }
}

/// Writes a string or a number as Lua prints it; writes nothing for any other value.
///
/// # Safety
/// `index` is one of the stack of `lua`, which does not run.
unsafe fn write_plain(out: &mut Vec<u8>, lua: *mut ffi::lua_State, index: c_int) {
    // SAFETY: as promised by the caller; nothing is converted in its place.
    unsafe {
        if let Some(text) = to_bytes(lua, index) {
            out.extend_from_slice(convert::up_to_zero(text));
        } else if ffi::lua_type(lua, index) == ffi::LUA_TNUMBER {
            write_number(out, ffi::lua_tonumber(lua, index));
        }
    }
}

/// The reply of a killed script or function.
pub(super) const KILLED: &str = "ERR Script killed by user with SCRIPT KILL...";

/// Adds to an error the script and the position where it happened.
pub(super) fn at_place(mut text: Vec<u8>, call: &Call, place: Option<(Vec<u8>, i64)>) -> Vec<u8> {
    if let Some((source, line)) = place {
        text.extend_from_slice(b" script: ");
        text.extend_from_slice(call.code().name().as_bytes());
        text.extend_from_slice(b", on ");
        text.extend_from_slice(&source);
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    text
}
