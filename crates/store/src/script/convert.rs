//! Values between Lua and replies, by Redis's rules.
//!
//! A command's reply reaches the script from the bytes that a client would get, in the protocol that the script chose.
//! In the other direction, a table becomes what its fields say (`err`, `ok`, `double`, `map`, `set`, `big_number`,
//! `verbatim_string`), or else an array that ends before the first nil. Numbers lose their fraction.

use std::ffi::c_int;

use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::{is_patient, push_bytes, to_bytes};
use sluicegate_wire::resp::ReplySink;

use super::interpreter::{Host, Name};

/// The maximum nesting of tables in a reply. Redis's own limit is the size of its stack, which is similar.
const DEPTH_MAX: usize = 2000;

/// The maximum size of a reply made by a script: that of the longest string. A table that occurs twice is written
/// twice, so that a few tables can be an endless reply.
const REPLY_MAX: usize = 512 << 20;
/// The cost of an element in addition to its bytes.
const ELEMENT_BYTES: usize = 16;

const TOO_DEEP: &str = "ERR reached lua stack limit";
const TOO_LONG: &str = "ERR the script's reply is longer than 512 MiB";

/// The maximum number of elements of a table that are written on a worker.
const STEPS_MAX: usize = 4096;
/// The number of bytes of a string that are written in the time of an element.
const BYTES_PER_STEP: usize = 64;
/// The maximum nesting of tables that are written on a worker.
const MEASURED_DEPTH: usize = 50;

/// Pushes a reply as a Lua value; `at` is moved to its end. May raise (memory, stack).
///
/// # Safety
/// `lua` is running; `reply` was encoded by this store and does not change meanwhile; nothing with a destructor is
/// alive.
pub(crate) unsafe fn push_reply(lua: *mut lua_State, host: &Host, reply: &[u8], at: &mut usize) {
    // SAFETY: as promised by the caller; a slot is asked for before it is used.
    unsafe {
        ffi::luaL_checkstack(lua, 4, c"too many nested replies".as_ptr());
        let kind = reply[*at];
        let line = line(reply, at);
        match kind {
            b':' => ffi::lua_pushinteger(lua, number(line)),
            b'$' => push_bulk(lua, reply, at, number(line)),
            b'+' => push_field(lua, host, Name::Ok, line),
            b'-' => push_error(lua, host, line),
            b'*' | b'>' => push_array(lua, host, reply, at, number(line)),
            b'_' => ffi::lua_pushnil(lua),
            b'#' => ffi::lua_pushboolean(lua, (line == b"t").into()),
            b',' => {
                ffi::lua_createtable(lua, 0, 1);
                host.push_name(lua, Name::Double);
                ffi::lua_pushnumber(lua, double(line));
                ffi::lua_rawset(lua, -3);
            }
            b'(' => push_field(lua, host, Name::BigNumber, line),
            b'=' => push_verbatim(lua, host, reply, at, number(line)),
            b'%' => push_pairs(lua, host, Name::Map, reply, at, number(line)),
            b'~' => push_pairs(lua, host, Name::Set, reply, at, number(line)),
            _ => ffi::lua_pushnil(lua),
        }
    }
}

/// Returns the rest of the line at `at`, which is moved to the start of the next.
fn line<'r>(reply: &'r [u8], at: &mut usize) -> &'r [u8] {
    let start = *at + 1;
    let len = memchr::memchr(b'\r', &reply[start..]).unwrap_or(reply.len() - start);
    *at = (start + len + 2).min(reply.len());
    &reply[start..start + len]
}

fn number(line: &[u8]) -> i64 {
    let (negative, digits) = match line {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let value = digits.iter().fold(0i64, |sum, digit| sum.wrapping_mul(10).wrapping_add(i64::from(digit - b'0')));
    if negative { value.wrapping_neg() } else { value }
}

fn double(line: &[u8]) -> f64 {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

/// Returns the bytes of a bulk string of this length at `at`, which is moved past them.
fn bulk<'r>(reply: &'r [u8], at: &mut usize, len: i64) -> &'r [u8] {
    let start = *at;
    *at = start + len as usize + 2;
    &reply[start..start + len as usize]
}

unsafe fn push_bulk(lua: *mut lua_State, reply: &[u8], at: &mut usize, len: i64) {
    // SAFETY: as `push_reply`.
    unsafe {
        match len {
            -1 => ffi::lua_pushboolean(lua, 0),
            len => push_bytes(lua, bulk(reply, at, len)),
        }
    }
}

/// Pushes a table with one field.
unsafe fn push_field(lua: *mut lua_State, host: &Host, name: Name, text: &[u8]) {
    // SAFETY: as `push_reply`.
    unsafe {
        ffi::lua_createtable(lua, 0, 1);
        host.push_name(lua, name);
        push_bytes(lua, text);
        ffi::lua_rawset(lua, -3);
    }
}

/// Pushes the table of a command's error reply, marked, as in Redis, as already counted.
unsafe fn push_error(lua: *mut lua_State, host: &Host, text: &[u8]) {
    // SAFETY: as `push_reply`.
    unsafe {
        ffi::lua_createtable(lua, 0, 2);
        host.push_name(lua, Name::Err);
        push_bytes(lua, text);
        ffi::lua_rawset(lua, -3);
        host.push_name(lua, Name::Counted);
        ffi::lua_pushboolean(lua, 1);
        ffi::lua_rawset(lua, -3);
    }
}

unsafe fn push_array(lua: *mut lua_State, host: &Host, reply: &[u8], at: &mut usize, len: i64) {
    // SAFETY: as `push_reply`.
    unsafe {
        if len < 0 {
            return ffi::lua_pushboolean(lua, 0);
        }
        ffi::lua_createtable(lua, c_int::try_from(len).unwrap_or(0), 0);
        for index in 1..=len {
            push_reply(lua, host, reply, at);
            ffi::lua_rawseti(lua, -2, index);
        }
    }
}

unsafe fn push_verbatim(lua: *mut lua_State, host: &Host, reply: &[u8], at: &mut usize, len: i64) {
    // SAFETY: as `push_reply`.
    unsafe {
        let text = bulk(reply, at, len);
        let (format, text) = text.split_at(text.len().min(4));
        ffi::lua_createtable(lua, 0, 1);
        host.push_name(lua, Name::Verbatim);
        ffi::lua_createtable(lua, 0, 2);
        host.push_name(lua, Name::String);
        push_bytes(lua, text);
        ffi::lua_rawset(lua, -3);
        host.push_name(lua, Name::Format);
        push_bytes(lua, &format[..format.len().min(3)]);
        ffi::lua_rawset(lua, -3);
        ffi::lua_rawset(lua, -3);
    }
}

/// Pushes a table with one field, a table of pairs: keys with values, or each element of a set with `true`.
unsafe fn push_pairs(lua: *mut lua_State, host: &Host, name: Name, reply: &[u8], at: &mut usize, len: i64) {
    // SAFETY: as `push_reply`.
    unsafe {
        ffi::lua_createtable(lua, 0, 1);
        host.push_name(lua, name);
        ffi::lua_createtable(lua, 0, c_int::try_from(len).unwrap_or(0));
        for _ in 0..len {
            push_reply(lua, host, reply, at);
            match name {
                Name::Set => ffi::lua_pushboolean(lua, 1),
                _ => push_reply(lua, host, reply, at),
            }
            set_pair(lua);
        }
        ffi::lua_rawset(lua, -3);
    }
}

/// Sets key and value on top of the stack in the table below them; a key that Lua does not allow is skipped.
unsafe fn set_pair(lua: *mut lua_State) {
    // SAFETY: table, key and value are on the stack.
    unsafe {
        if ffi::lua_type(lua, -2) == ffi::LUA_TNIL {
            ffi::lua_settop(lua, -3);
        } else {
            ffi::lua_rawset(lua, -3);
        }
    }
}

/// Returns whether writing the value at `index` takes long. Raises nothing.
///
/// # Safety
/// `lua` is not running.
pub(crate) unsafe fn is_much(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { spend(lua, ffi::lua_absindex(lua, index), &mut { STEPS_MAX }, 0).is_none() }
}

/// Subtracts the cost of the value from the steps left; `None` if they do not suffice.
unsafe fn spend(lua: *mut lua_State, index: c_int, left: &mut usize, depth: usize) -> Option<()> {
    // SAFETY: slots are reserved before they are used; iterating over an unchanged table raises nothing.
    unsafe {
        match ffi::lua_type(lua, index) {
            ffi::LUA_TSTRING => *left = left.checked_sub(ffi::lua_rawlen(lua, index) as usize / BYTES_PER_STEP)?,
            ffi::LUA_TTABLE => {
                if depth == MEASURED_DEPTH || ffi::lua_checkstack(lua, 4) == 0 {
                    return None;
                }
                let top = ffi::lua_gettop(lua);
                ffi::lua_pushnil(lua);
                while ffi::lua_next(lua, index) != 0 {
                    let spent = left.checked_sub(1).and_then(|rest| {
                        *left = rest;
                        spend(lua, top + 1, left, depth + 1)?;
                        spend(lua, top + 2, left, depth + 1)
                    });
                    if spent.is_none() {
                        ffi::lua_settop(lua, top);
                        return None;
                    }
                    ffi::lua_settop(lua, top + 1);
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// Writes the value at `index` as a reply; if it has no end, as one error. Raises nothing.
///
/// # Safety
/// `lua` is not running; `resp3`: the script chose RESP3.
pub(crate) unsafe fn say(lua: *mut lua_State, host: &Host, index: c_int, resp3: bool, out: &mut dyn ReplySink) {
    // SAFETY: as promised by the caller.
    unsafe {
        let index = ffi::lua_absindex(lua, index);
        // On a worker the value is short: otherwise the script would have left the worker.
        if is_patient() && is_much(lua, index) {
            let mut trial = Saying { lua, host, resp3, out: None, left: REPLY_MAX, was_too_deep: false };
            let top = ffi::lua_gettop(lua);
            if let Err(error) = trial.value(index, 0) {
                ffi::lua_settop(lua, top);
                return out.error(error);
            }
        }
        let mut saying = Saying { lua, host, resp3, out: Some(out), left: usize::MAX, was_too_deep: false };
        // No output follows an error, and the dry run found none.
        let _ = saying.value(index, 0);
    }
}

/// A value that is being written as a reply.
struct Saying<'s> {
    lua: *mut lua_State,
    host: &'s Host,
    resp3: bool,
    /// The output; `None` while the value is only measured.
    out: Option<&'s mut dyn ReplySink>,
    /// The number of bytes that may still be written, by a rough measure.
    left: usize,
    /// Whether a table was nested too deeply. As in Redis, an error takes the place of one such table; a reply with
    /// several has no end, or is too long for any client.
    was_too_deep: bool,
}

impl Saying<'_> {
    fn spend(&mut self, bytes: usize) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(bytes + ELEMENT_BYTES).ok_or(TOO_LONG)?;
        Ok(())
    }

    fn out(&mut self, say: impl FnOnce(&mut dyn ReplySink)) {
        if let Some(out) = &mut self.out {
            say(&mut **out);
        }
    }

    /// Writes the value at `index`.
    ///
    /// # Safety
    /// As [`say`]. Slots are reserved before they are used; the calls raise nothing: strings are only read, tables only
    /// by raw access with existing keys.
    unsafe fn value(&mut self, index: c_int, depth: usize) -> Result<(), &'static str> {
        // SAFETY: as promised by the caller.
        unsafe {
            let (lua, resp3) = (self.lua, self.resp3);
            match ffi::lua_type(lua, index) {
                ffi::LUA_TSTRING => {
                    let bytes = to_bytes(lua, index).unwrap_or_default();
                    self.spend(bytes.len())?;
                    self.out(|out| out.bulk(bytes));
                }
                ffi::LUA_TTABLE => {
                    self.spend(0)?;
                    return self.table(index, depth);
                }
                kind => {
                    self.spend(0)?;
                    self.out(|out| match kind {
                        ffi::LUA_TBOOLEAN => match (resp3, ffi::lua_toboolean(lua, index) != 0) {
                            (true, value) => out.boolean(value),
                            (false, true) => out.integer(1),
                            (false, false) => out.null(),
                        },
                        ffi::LUA_TNUMBER => out.integer(truncated(lua, index)),
                        _ => out.null(),
                    });
                }
            }
            Ok(())
        }
    }

    unsafe fn table(&mut self, index: c_int, depth: usize) -> Result<(), &'static str> {
        // SAFETY: as `value`.
        unsafe {
            let (lua, host) = (self.lua, self.host);
            if depth >= DEPTH_MAX || ffi::lua_checkstack(lua, 8) == 0 {
                if std::mem::replace(&mut self.was_too_deep, true) {
                    return Err(TOO_DEEP);
                }
                self.out(|out| out.error(TOO_DEEP));
                return Ok(());
            }
            let top = ffi::lua_gettop(lua);
            if field(lua, host, index, Name::Err) == ffi::LUA_TSTRING {
                self.error(index, depth)?;
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            if field(lua, host, index, Name::Ok) == ffi::LUA_TSTRING {
                let text = up_to_zero(to_bytes(lua, -1).unwrap_or_default());
                self.spend(text.len())?;
                self.out(|out| say_status(text, out));
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            if field(lua, host, index, Name::Double) == ffi::LUA_TNUMBER {
                let number = ffi::lua_tonumber(lua, -1);
                self.out(|out| out.double(number));
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            ffi::lua_settop(lua, top);
            if field(lua, host, index, Name::Map) == ffi::LUA_TTABLE {
                let pairs = count(lua, top + 1);
                self.out(|out| out.map(pairs));
                ffi::lua_pushnil(lua);
                while ffi::lua_next(lua, top + 1) != 0 {
                    self.value(top + 2, depth + 1)?;
                    self.value(top + 3, depth + 1)?;
                    ffi::lua_settop(lua, top + 2);
                }
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            ffi::lua_settop(lua, top);
            if field(lua, host, index, Name::Set) == ffi::LUA_TTABLE {
                let elements = count(lua, top + 1);
                self.out(|out| out.set(elements));
                ffi::lua_pushnil(lua);
                while ffi::lua_next(lua, top + 1) != 0 {
                    ffi::lua_settop(lua, top + 2);
                    self.value(top + 2, depth + 1)?;
                }
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            ffi::lua_settop(lua, top);
            if field(lua, host, index, Name::BigNumber) == ffi::LUA_TSTRING {
                let digits = to_bytes(lua, -1).unwrap_or_default();
                self.spend(digits.len())?;
                self.out(|out| {
                    let digits: Vec<u8> = digits.iter().map(|&byte| unbroken(byte)).collect();
                    out.big_number(&String::from_utf8_lossy(&digits));
                });
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            if field(lua, host, index, Name::Verbatim) == ffi::LUA_TTABLE
                && field(lua, host, top + 2, Name::Format) == ffi::LUA_TSTRING
                && field(lua, host, top + 2, Name::String) == ffi::LUA_TSTRING
            {
                let mut format = *b"   ";
                let given = up_to_zero(to_bytes(lua, -2).unwrap_or_default());
                let len = given.len().min(3);
                format[..len].copy_from_slice(&given[..len]);
                let text = to_bytes(lua, -1).unwrap_or_default();
                self.spend(text.len())?;
                self.out(|out| out.verbatim(format, text));
                ffi::lua_settop(lua, top);
                return Ok(());
            }
            ffi::lua_settop(lua, top);
            self.array(index, depth)
        }
    }

    /// Writes the error reply of the table at `index`, whose field `err` is on top of the stack.
    unsafe fn error(&mut self, index: c_int, depth: usize) -> Result<(), &'static str> {
        // SAFETY: as `value`.
        unsafe {
            let (lua, host) = (self.lua, self.host);
            let text = up_to_zero(to_bytes(lua, -1).unwrap_or_default());
            self.spend(text.len())?;
            let Some(out) = &mut self.out else { return Ok(()) };
            out.error_bytes(text);
            field(lua, host, index, Name::Counted);
            let is_counted = ffi::lua_toboolean(lua, -1) != 0;
            match depth {
                // The reply as a whole is counted where it is sent.
                0 if is_counted => host.counts.error(text, -1),
                1.. if !is_counted => host.counts.error(text, 1),
                _ => {}
            }
            Ok(())
        }
    }

    unsafe fn array(&mut self, index: c_int, depth: usize) -> Result<(), &'static str> {
        // SAFETY: as `value`.
        unsafe {
            let lua = self.lua;
            let top = ffi::lua_gettop(lua);
            let mut len = 0;
            while ffi::lua_rawgeti(lua, index, len + 1) != ffi::LUA_TNIL {
                ffi::lua_settop(lua, top);
                len += 1;
            }
            ffi::lua_settop(lua, top);
            self.out(|out| out.array(len as usize));
            for place in 1..=len {
                ffi::lua_rawgeti(lua, index, place);
                self.value(top + 1, depth + 1)?;
                ffi::lua_settop(lua, top);
            }
            Ok(())
        }
    }
}

/// Returns a number as an integer, as C converts it where C defines the result.
unsafe fn truncated(lua: *mut lua_State, index: c_int) -> i64 {
    // SAFETY: the value is a number.
    unsafe {
        if ffi::lua_isinteger(lua, index) != 0 {
            return ffi::lua_tointeger(lua, index);
        }
        let number = ffi::lua_tonumber(lua, index);
        // A number outside the range of integers becomes the lowest one, as on the machines that Redis runs on.
        if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number) {
            number as i64
        } else {
            i64::MIN
        }
    }
}

/// Returns a text up to its first zero byte, where Redis reads it as a C string.
pub(crate) fn up_to_zero(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |end| &text[..end])
}

/// Pushes a field of the table at `index` and returns its type.
unsafe fn field(lua: *mut lua_State, host: &Host, index: c_int, name: Name) -> c_int {
    // SAFETY: a raw read with a key that exists raises nothing.
    unsafe {
        host.push_name(lua, name);
        ffi::lua_rawget(lua, index)
    }
}

/// Returns the number of pairs of the table at `index`.
unsafe fn count(lua: *mut lua_State, index: c_int) -> usize {
    // SAFETY: the caller made room; iterating over an unchanged table raises nothing.
    unsafe {
        let mut pairs = 0;
        ffi::lua_pushnil(lua);
        while ffi::lua_next(lua, index) != 0 {
            ffi::lua_settop(lua, -2);
            pairs += 1;
        }
        pairs
    }
}

fn say_status(text: &[u8], out: &mut dyn ReplySink) {
    let line: Vec<u8> = text.iter().map(|&byte| unbroken(byte)).collect();
    out.simple(&String::from_utf8_lossy(&line));
}

/// Returns a byte of a line; line ends become blanks.
fn unbroken(byte: u8) -> u8 {
    if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }
}
