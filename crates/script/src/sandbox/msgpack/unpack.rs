//! Unpacking of MessagePack.
//!
//! A table is created with room for its declared number of elements, within a limit, and as long as all tables together
//! have no more room than the text has bytes: so a short text cannot allocate much memory.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::super::failure::{SLOTS_MAX, fail};
use super::super::grown::Grown;
use super::super::pace::Pace;
use super::super::{argument, number};
use crate::again;
use crate::ffi::{self, lua_State};

/// Up to this many levels of nesting stay in the frame.
const FRAME_LEVELS: usize = 24;

/// Elements that a table has room for from the start.
const ROOM_MAX: usize = 4096;

/// The error if Lua 5.1's stack ends before a value.
const NO_VALUE: &str = "too many return values at once; use unpack_one or unpack_limit instead.";

/// A table that is being read.
#[derive(Clone, Copy)]
struct Level {
    /// Values that are still to come; a map's are keys and values.
    left: u64,
    /// The place of the next element; 0 in a map.
    index: i64,
}

impl Level {
    /// Returns the number of slots below the next value on Lua 5.1's stack: the table, and the key or the index.
    fn slots(self) -> usize {
        1 + usize::from(self.index != 0 || self.left % 2 == 1)
    }
}

struct Unpacker<'a> {
    lua: *mut lua_State,
    rest: &'a [u8],
    /// Room that tables may still be made with.
    room: usize,
    /// The tables around the one that is being read.
    levels: Grown<Level>,
    pace: Pace,
    /// Slots that Lua 5.1's lua-cmsgpack would have used up to here.
    slots: usize,
}

pub(super) unsafe fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let pace = Pace::new(ffi::lua_gettop(lua), again!(unpack));
        unpack_some(lua, 0, 0, ffi::lua_gettop(lua) as usize, pace)
    }
}

pub(super) unsafe fn unpack_one(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let pace = Pace::new(ffi::lua_gettop(lua), again!(unpack_one));
        let offset = argument::integer_or(lua, 2, 0);
        unpack_some(lua, 1, offset, 1, pace)
    }
}

pub(super) unsafe fn unpack_limit(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let pace = Pace::new(ffi::lua_gettop(lua), again!(unpack_limit));
        let limit = argument::integer(lua, 2);
        let offset = argument::integer_or(lua, 3, 0);
        unpack_some(lua, limit, offset, 1, pace)
    }
}

/// Unpacks up to `limit` values from `offset` on, after the offset where it ended; all, without that, if both are 0.
/// `slots` of Lua 5.1's stack are in use.
unsafe fn unpack_some(lua: *mut lua_State, limit: i64, offset: i64, slots: usize, pace: Pace) -> c_int {
    // SAFETY: a C function's usual stack: the arguments, the slot of the levels as they grow, then the results.
    unsafe {
        let data = argument::string(lua, 1);
        let len = data.len();
        // Numbers of errors have 32 bits.
        let (start, short) = (offset as i32, len as i32);
        if offset < 0 || limit < 0 {
            fail(lua, format_args!("Invalid request to unpack with offset of {start} and limit of {short}."));
        }
        if offset as u64 > len as u64 {
            fail(lua, format_args!("Start offset {start} greater than input length {short}."));
        }
        let all = limit == 0 && offset == 0;
        let mut frame = MaybeUninit::<[Level; FRAME_LEVELS]>::uninit();
        ffi::lua_pushnil(lua);
        let mut unpacker = Unpacker {
            lua,
            rest: &data[offset as usize..],
            room: len,
            levels: Grown::new(&mut frame, ffi::lua_gettop(lua)),
            pace,
            slots,
        };
        if !all {
            ffi::lua_pushnil(lua);
        }
        let first = ffi::lua_gettop(lua);
        let mut left = if all { i64::from(i32::MAX) } else { limit };
        while left > 0 && !unpacker.rest.is_empty() {
            unpacker.grow_stack();
            unpacker.value();
            unpacker.slots += 1;
            left -= 1;
        }
        if all {
            return ffi::lua_gettop(lua) - first;
        }
        unpacker.check("in function mp_unpack_full");
        let end = if unpacker.rest.is_empty() { -1 } else { (len - unpacker.rest.len()) as i64 };
        ffi::lua_pushinteger(lua, end);
        ffi::lua_replace(lua, first);
        ffi::lua_gettop(lua) - first + 1
    }
}

impl<'a> Unpacker<'a> {
    /// Raises an error where Lua 5.1's stack has no slot left.
    #[inline(always)]
    unsafe fn check(&self, place: &str) {
        if self.slots + 1 > SLOTS_MAX {
            // SAFETY: nothing with a destructor is alive.
            unsafe { fail(self.lua, format_args!("stack overflow ({place})")) };
        }
    }

    /// Ensures that Lua's own stack has room for a table and its temporary values.
    unsafe fn grow_stack(&self) {
        // SAFETY: the stack grows or does not; nothing with a destructor is alive.
        unsafe {
            if ffi::lua_checkstack(self.lua, 8) == 0 {
                fail(self.lua, format_args!("stack overflow ({NO_VALUE})"));
            }
        }
    }

    /// Unpacks one value, with all that is in it, and pushes it.
    unsafe fn value(&mut self) {
        // SAFETY: the stack holds the tables of `level` and of the levels around it, and keys of maps.
        unsafe {
            let lua = self.lua;
            let mut level: Option<Level> = None;
            loop {
                self.pace.step(lua);
                self.check(NO_VALUE);
                if let Some(inner) = self.begin() {
                    if let Some(outer) = level.replace(inner) {
                        self.levels.push(lua, outer);
                    }
                    self.slots += inner.slots();
                    continue;
                }
                // A value is on top of the stack.
                loop {
                    let Some(inside) = &mut level else { return };
                    self.slots -= inside.slots();
                    inside.left -= 1;
                    if inside.index != 0 {
                        ffi::lua_rawseti(lua, -2, inside.index);
                        inside.index += 1;
                    } else if inside.left % 2 == 0 {
                        set(lua);
                    }
                    if inside.left > 0 {
                        self.slots += inside.slots();
                        break;
                    }
                    level = self.levels.pop();
                }
            }
        }
    }

    /// Takes bytes.
    #[inline(always)]
    unsafe fn take(&mut self, count: usize) -> &'a [u8] {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            // SAFETY: nothing with a destructor is alive.
            unsafe { fail(self.lua, format_args!("Missing bytes in input.")) }
        };
        self.rest = rest;
        taken
    }

    /// Takes the bytes of a number.
    #[inline(always)]
    unsafe fn take_array<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, rest)) = self.rest.split_first_chunk() else {
            // SAFETY: as `take`.
            unsafe { self.take(N) };
            unreachable!("what is missing is an error");
        };
        self.rest = rest;
        *taken
    }

    /// Begins a value: pushes it, or the table of one that has elements.
    #[inline(always)]
    unsafe fn begin(&mut self) -> Option<Level> {
        // SAFETY: there is room on the stack.
        unsafe {
            let lua = self.lua;
            let [kind] = self.take_array();
            match kind {
                0x00..0x80 => ffi::lua_pushinteger(lua, kind.into()),
                0xe0.. => ffi::lua_pushinteger(lua, i64::from(kind as i8)),
                0x80..0x90 => return self.map(usize::from(kind & 15)),
                0x90..0xa0 => return self.array(usize::from(kind & 15)),
                0xa0..0xc0 => self.string(usize::from(kind & 31)),
                0xc0 => ffi::lua_pushnil(lua),
                0xc2 | 0xc3 => ffi::lua_pushboolean(lua, c_int::from(kind & 1)),
                0xca => number::push(lua, f32::from_be_bytes(self.take_array()).into()),
                0xcb => number::push(lua, f64::from_be_bytes(self.take_array())),
                0xcc => ffi::lua_pushinteger(lua, u8::from_be_bytes(self.take_array()).into()),
                0xcd => ffi::lua_pushinteger(lua, u16::from_be_bytes(self.take_array()).into()),
                0xce => ffi::lua_pushinteger(lua, u32::from_be_bytes(self.take_array()).into()),
                // As in Redis, the highest bit of an unsigned number is its sign.
                0xcf | 0xd3 => number::push(lua, i64::from_be_bytes(self.take_array()) as f64),
                0xd0 => ffi::lua_pushinteger(lua, i8::from_be_bytes(self.take_array()).into()),
                0xd1 => ffi::lua_pushinteger(lua, i16::from_be_bytes(self.take_array()).into()),
                0xd2 => ffi::lua_pushinteger(lua, i32::from_be_bytes(self.take_array()).into()),
                0xd9..=0xdf => {
                    let len = match kind {
                        0xd9 => u8::from_be_bytes(self.take_array()).into(),
                        0xda | 0xdc | 0xde => u16::from_be_bytes(self.take_array()).into(),
                        _ => u32::from_be_bytes(self.take_array()) as usize,
                    };
                    match kind {
                        0xdc | 0xdd => return self.array(len),
                        0xde | 0xdf => return self.map(len),
                        _ => self.string(len),
                    }
                }
                0xc1 | 0xc4..=0xc9 | 0xd4..=0xd8 => fail(lua, format_args!("Bad data format in input.")),
            }
            None
        }
    }

    unsafe fn string(&mut self, len: usize) {
        // SAFETY: as `begin`.
        unsafe {
            self.pace.bytes(len);
            let bytes = self.take(len);
            self.pace.weigh(self.lua, len);
            crate::push_bytes(self.lua, bytes);
        }
    }

    /// Returns the room for a table with the declared number `count` of elements.
    fn room(&mut self, count: usize) -> c_int {
        let room = count.min(self.room).min(ROOM_MAX);
        self.room -= room;
        room as c_int
    }

    unsafe fn array(&mut self, len: usize) -> Option<Level> {
        // SAFETY: as `begin`.
        unsafe {
            self.grow_stack();
            let room = self.room(len);
            ffi::lua_createtable(self.lua, room, 0);
            self.slots += 1;
            self.check("in function mp_decode_to_lua_array");
            self.slots -= 1;
        }
        (len > 0).then_some(Level { left: len as u64, index: 1 })
    }

    unsafe fn map(&mut self, len: usize) -> Option<Level> {
        // SAFETY: as `begin`.
        unsafe {
            self.grow_stack();
            let room = self.room(len);
            ffi::lua_createtable(self.lua, 0, room);
        }
        (len > 0).then_some(Level { left: 2 * len as u64, index: 0 })
    }
}

/// Sets the key and value on top of the stack in the table below them.
#[inline(always)]
unsafe fn set(lua: *mut lua_State) {
    // SAFETY: table, key and value are on the stack.
    unsafe {
        match ffi::lua_type(lua, -2) {
            ffi::LUA_TNIL => plain_error(lua, b"table index is nil"),
            ffi::LUA_TNUMBER if ffi::lua_tonumber(lua, -2).is_nan() => plain_error(lua, b"table index is NaN"),
            _ => ffi::lua_rawset(lua, -3),
        }
    }
}

/// Raises an error of Lua's own, which has no position in a C function.
#[cold]
unsafe fn plain_error(lua: *mut lua_State, message: &[u8]) -> ! {
    // SAFETY: nothing with a destructor is alive.
    unsafe {
        crate::push_bytes(lua, message);
        ffi::lua_error(lua)
    }
}
