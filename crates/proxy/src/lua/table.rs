//! The functions below `StickTable` of the prelude.
//!
//! A script gets an entry as text that the prelude parses: a line `NAME VALUE` for each datum, where the value of a
//! text begins with `=`. So no Lua function is called under a table's locks, and no value with a destructor lives
//! across such a call.
//!
//! Limit: a listing packs [`PAGE`] entries at a time, and holds a shard's lock meanwhile.

use std::ffi::{CStr, c_int};
use std::io::Write as _;

use sluicegate_config::model::{DataForm, DataKind, TableKey};
use sluicegate_script::ffi::{self, lua_CFunction, lua_State};
use sluicegate_script::{check_bytes, function, push_bytes, to_bytes};

use super::host::{host, set_functions};
use super::native::running;
use crate::sample::Value;
use crate::stick::{Key, Row, Table};

/// The number of entries that one call packs.
const PAGE: u32 = 64;

/// Adds the functions to the table on top.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    const NATIVE: [(&CStr, lua_CFunction); 5] = [
        (c"table_info", function!(info)),
        (c"table_lookup", function!(lookup)),
        (c"table_page", function!(page)),
        (c"table_set", function!(set)),
        (c"table_remove", function!(remove)),
    ];
    // SAFETY: called inside a protected call, with a table on top.
    unsafe { set_functions(lua, &NATIVE) };
}

/// Runs `f` on the table that argument 1 names; returns `None` before the configuration runs. `f` must not call a
/// function of Lua that may raise an error.
unsafe fn with_table<T>(lua: *mut lua_State, f: impl FnOnce(&Table) -> T) -> Option<T> {
    // SAFETY: the name is read first; the snapshot is let go before anything of Lua's is called again.
    unsafe {
        let name = std::str::from_utf8(check_bytes(lua, 1)).ok()?;
        let running = running(lua)?;
        running.directory.table(name).map(|table| f(table))
    }
}

/// Returns argument 2 as a key of a table; the text is cast like a sample.
unsafe fn key(lua: *mut lua_State, table: &Table) -> Option<Key> {
    // SAFETY: callers have made sure that it is text, so that reading it raises nothing.
    unsafe { Key::new(table.key, &Value::text(to_bytes(lua, 2)?)) }
}

/// Pushes the host's text, if there is any.
unsafe fn give(lua: *mut lua_State, found: bool) -> c_int {
    // SAFETY: Lua copies the text before it does anything else.
    unsafe {
        if found {
            push_bytes(lua, &host(lua).text)
        } else {
            ffi::lua_pushnil(lua)
        }
        1
    }
}

/// Appends an entry's data.
fn append(table: &Table, row: &Row<'_>, out: &mut Vec<u8>) {
    for data in table.data() {
        let value = row.get(data.kind, 0).unwrap_or(0);
        // Writing to a vector can't fail.
        let _ = match data.kind.form() {
            DataForm::Name => match table.name_of(value) {
                Some(name) => writeln!(out, "{} ={name}", data.kind.name()),
                None => Ok(()),
            },
            _ => writeln!(out, "{} {value}", data.kind.name()),
        };
    }
}

/// `table_info(table)`: returns the table's properties; `data.NAME` contains the period if the datum is a rate,
/// otherwise -1.
unsafe fn info(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_table`.
    unsafe {
        check_bytes(lua, 1);
        let out = &mut host(lua).text;
        out.clear();
        let found = with_table(lua, |table| {
            table.expire();
            let length = match table.key {
                TableKey::Ip | TableKey::Integer => 4,
                TableKey::Ipv6 => 16,
                // HAProxy counts the zero behind a text.
                TableKey::Str(length) => length + 1,
                TableKey::Bin(length) => length,
            };
            let (kind, size, used) = (table.key.name(), table.size(), table.len());
            let (expire, nopurge) = (table.expire_ms(), u8::from(table.is_nopurge()));
            let _ = write!(
                out,
                "type ={kind}\nlength {length}\nsize {size}\nused {used}\nexpire {expire}\nnopurge {nopurge}\n"
            );
            for data in table.data() {
                let period = if data.kind.form() == DataForm::Rate { i64::from(data.period_ms) } else { -1 };
                let _ = writeln!(out, "data.{} {period}", data.kind.name());
            }
        });
        give(lua, found.is_some())
    }
}

/// `table_lookup(table, key)`: returns an entry, or nil.
unsafe fn lookup(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_table`.
    unsafe {
        check_bytes(lua, 1);
        check_bytes(lua, 2);
        let out = &mut host(lua).text;
        out.clear();
        let found = with_table(lua, |table| {
            table.read(&key(lua, table)?, |row, life| {
                let _ = write!(out, "use {}\nexpire {}\n", life.trackers, life.left_ms);
                append(table, row, out);
            })
        });
        give(lua, found.flatten().is_some())
    }
}

/// `table_page(table, shard, entry)`: returns some entries from a position on, each as its key and its data preceded by
/// their lengths, and the position at which to continue.
unsafe fn page(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_table`.
    unsafe {
        check_bytes(lua, 1);
        let shard = usize::try_from(ffi::luaL_checkinteger(lua, 2)).unwrap_or(usize::MAX);
        let entry = u32::try_from(ffi::luaL_checkinteger(lua, 3)).unwrap_or(u32::MAX);
        let out = &mut host(lua).text;
        out.clear();
        let next = with_table(lua, |table| {
            table.page((shard, entry), PAGE, |seen| {
                packed(out, |out| seen.key.as_value().append_text(out));
                packed(out, |out| append(table, &seen.row, out));
                true
            })
        });
        push_bytes(lua, &host(lua).text);
        let Some((shard, entry)) = next.flatten() else { return 1 };
        ffi::lua_pushinteger(lua, shard as i64);
        ffi::lua_pushinteger(lua, i64::from(entry));
        3
    }
}

/// Appends the output of `fill`, preceded by its length in the format that Lua's `s4` reads.
pub(super) fn packed(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// The reason why an entry was not set.
enum Refused {
    Key,
    Full,
    Unknown,
    NotStored,
    Name,
}

/// `table_set(table, key, name, value…)`: creates the entry of a key if necessary and sets all the data or none;
/// `false` if a full table cannot evict an entry, nil and the reason if the arguments are wrong.
unsafe fn set(lua: *mut lua_State) -> c_int {
    // SAFETY: all arguments are checked before the table is looked for, and then read without raising.
    unsafe {
        check_bytes(lua, 1);
        check_bytes(lua, 2);
        let top = ffi::lua_gettop(lua);
        for index in (3..top).step_by(2) {
            check_bytes(lua, index);
            ffi::luaL_checkinteger(lua, index + 1);
        }
        let named = |index| to_bytes(lua, index).and_then(|name| DataKind::named(std::str::from_utf8(name).ok()?));
        let set = with_table(lua, |table| {
            for index in (3..top).step_by(2) {
                let kind = named(index).ok_or(Refused::Unknown)?;
                if !table.has(kind) {
                    return Err(Refused::NotStored);
                }
                if kind.form() == DataForm::Name {
                    return Err(Refused::Name);
                }
            }
            let key = key(lua, table).ok_or(Refused::Key)?;
            let changed = table.change(&key, |row| {
                for index in (3..top).step_by(2) {
                    if let Some(kind) = named(index) {
                        row.set(kind, 0, ffi::lua_tointeger(lua, index + 1) as u64);
                    }
                }
            });
            changed.ok_or(Refused::Full)
        });
        let wrong = match set {
            Some(Err(Refused::Key)) => c"set: this is no key of the stick table",
            Some(Err(Refused::Unknown)) => c"set: unknown data type",
            Some(Err(Refused::NotStored)) => c"set: data type not stored in this table",
            Some(Err(Refused::Name)) => c"set: the name of a server can't be set",
            Some(Ok(())) | Some(Err(Refused::Full)) | None => {
                ffi::lua_pushboolean(lua, c_int::from(matches!(set, Some(Ok(())))));
                return 1;
            }
        };
        ffi::lua_pushnil(lua);
        ffi::lua_pushstring(lua, wrong.as_ptr());
        2
    }
}

/// `table_remove(table, key)`: returns `false` if the entry is tracked and therefore stays.
unsafe fn remove(lua: *mut lua_State) -> c_int {
    // SAFETY: as `lookup`.
    unsafe {
        check_bytes(lua, 1);
        check_bytes(lua, 2);
        let gone = with_table(lua, |table| key(lua, table).is_none_or(|key| table.remove(&key)));
        ffi::lua_pushboolean(lua, c_int::from(gone.unwrap_or(true)));
        1
    }
}
