//! `KEYS` and `ARGV`: tables that are new for each script.
//!
//! The last script's tables are filled again if it left no lasting change in them. A script cannot keep them: no place
//! to which it could store them outlives it.

use std::ffi::{CStr, c_int};

use super::chunk::Globals;
use crate::ffi::{self, lua_State};
use crate::push_bytes;
use crate::state::Core;

const NAMES: [&CStr; 2] = [c"KEYS", c"ARGV"];

/// The maximum number of strings in a table that is checked for reuse.
const KEPT_MAX: usize = 16;

/// The tables that the last script got.
#[derive(Default)]
pub(super) struct Arguments {
    tables: [Table; 2],
    /// The globals that contain them.
    within: Option<Globals>,
    /// Whether the script that got them leaves them unchanged.
    pub(super) are_kept: bool,
}

#[derive(Clone, Copy, Default)]
struct Table {
    /// Its place in the registry; 0: none.
    place: c_int,
    /// The number of its strings; [`None`] while it is filled.
    len: Option<usize>,
}

/// Gives a table of globals its `KEYS` and `ARGV`. May raise.
///
/// # Safety
/// Called with a sandboxed state whose stack is empty, inside a protected call or where there is memory for it.
pub(super) unsafe fn set(lua: *mut lua_State, globals: Globals, lists: [&[&[u8]]; 2]) {
    // SAFETY: as promised by the caller. The stored state is plain, and describes the tables' contents at any time.
    unsafe {
        let arguments = &mut Core::of(lua).sandbox.arguments;
        let is_placed = arguments.within.take() == Some(globals);
        let are_kept = std::mem::take(&mut arguments.are_kept);
        for (place, list) in lists.into_iter().enumerate() {
            if list.is_empty() && are_kept && is_placed && arguments.tables[place].len == Some(0) {
                continue;
            }
            let is_same = fill_again(lua, &mut arguments.tables[place], list, are_kept);
            if !is_same {
                ffi::lua_settop(lua, 0);
                super::push_list(lua, list);
                let table = &mut arguments.tables[place];
                ffi::lua_pushvalue(lua, -1);
                match table.place {
                    0 => table.place = ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX),
                    place => ffi::lua_rawseti(lua, ffi::LUA_REGISTRYINDEX, place.into()),
                }
                table.len = Some(list.len());
            }
            if !(is_same && is_placed) {
                super::push(lua, globals);
                ffi::lua_pushstring(lua, NAMES[place].as_ptr());
                ffi::lua_pushvalue(lua, 1);
                ffi::lua_rawset(lua, 2);
            }
            ffi::lua_settop(lua, 0);
        }
        arguments.within = Some(globals);
    }
}

/// Fills a table again with other strings, and leaves it on the stack, which was empty. Returns false if the table has
/// other keys than before or a metatable; this is checked unless the script left the table unchanged.
unsafe fn fill_again(lua: *mut lua_State, table: &mut Table, list: &[&[u8]], is_kept: bool) -> bool {
    // SAFETY: as `set`.
    unsafe {
        let Some(before) = table.len.take().filter(|len| *len <= KEPT_MAX && list.len() <= KEPT_MAX) else {
            return false;
        };
        ffi::lua_rawgeti(lua, ffi::LUA_REGISTRYINDEX, table.place.into());
        if !is_kept && !has_only(lua, before) {
            return false;
        }
        for (index, bytes) in (1..).zip(list) {
            push_bytes(lua, bytes);
            ffi::lua_rawseti(lua, -2, index);
        }
        for index in list.len()..before {
            ffi::lua_pushnil(lua);
            ffi::lua_rawseti(lua, -2, index as i64 + 1);
        }
        table.len = Some(list.len());
        true
    }
}

/// Returns whether the table on top has no metatable, and no keys but some of 1 to `len`.
unsafe fn has_only(lua: *mut lua_State, len: usize) -> bool {
    // SAFETY: as `set`; the table does not change during the iteration.
    unsafe {
        if ffi::lua_getmetatable(lua, -1) != 0 {
            return false;
        }
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, -2) != 0 {
            ffi::lua_settop(lua, -2);
            let is_ours = ffi::lua_isinteger(lua, -1) != 0
                && usize::try_from(ffi::lua_tointeger(lua, -1)).is_ok_and(|index| (1..=len).contains(&index));
            if !is_ours {
                return false;
            }
        }
        true
    }
}
