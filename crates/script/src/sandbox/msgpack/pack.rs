//! Values to MessagePack: the shortest form of each, doubles as floats where nothing is lost.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::{ptr, slice};

use super::super::argument;
use super::super::failure::SLOTS_MAX;
use super::super::grown::Grown;
use super::super::pace::Pace;
use super::super::protect;
use crate::again;
use crate::ffi::{self, lua_State};

/// Results up to this length never leave the frame.
const FRAME: usize = 2048;

/// Tables inside one another; one that lies deeper is written as nil.
const DEPTH_MAX: u32 = 16;

/// The first byte of an array, and of a map: with few elements, which it counts, and with many.
const ARRAY: (u8, u8) = (0x90, 0xdc);
const MAP: (u8, u8) = (0x80, 0xde);

/// Whole numbers up to this are doubles.
const EXACT: u64 = 1 << 53;

struct Packer {
    lua: *mut lua_State,
    out: Grown<u8>,
    pace: Pace,
}

pub(super) unsafe fn pack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack: the arguments, the slot of the result as it grows, then what is packed.
    unsafe {
        let arguments = ffi::lua_gettop(lua);
        if arguments == 0 {
            argument::fail(lua, 0, c"MessagePack pack needs input.");
        }
        if 2 * arguments as usize > SLOTS_MAX || ffi::lua_checkstack(lua, 4 * DEPTH_MAX as c_int) == 0 {
            argument::fail(lua, 0, c"Too many arguments for MessagePack pack.");
        }
        ffi::lua_settop(lua, arguments + 1);
        let mut frame = MaybeUninit::<[u8; FRAME]>::uninit();
        let mut packer =
            Packer { lua, out: Grown::new(&mut frame, arguments + 1), pace: Pace::new(arguments, again!(pack)) };
        for argument in 1..=arguments {
            ffi::lua_pushvalue(lua, argument);
            packer.value(0);
        }
        packer.pace.weigh(lua, packer.out.len());
        crate::push_bytes(lua, packer.out.as_slice());
        1
    }
}

impl Packer {
    /// Packs the value on top of the stack and takes it off.
    unsafe fn value(&mut self, depth: u32) {
        // SAFETY: the value is on top of the stack.
        unsafe {
            let lua = self.lua;
            self.pace.step(lua);
            match ffi::lua_type(lua, -1) {
                ffi::LUA_TTABLE if depth < DEPTH_MAX => self.table(depth),
                kind => self.plain(kind),
            }
            ffi::lua_pop(lua, 1);
        }
    }

    /// Packs the value on top of the stack, of type `kind`; a value without a form in MessagePack becomes nil.
    #[inline(always)]
    unsafe fn plain(&mut self, kind: c_int) {
        // SAFETY: the value is on top of the stack.
        unsafe {
            let lua = self.lua;
            match kind {
                ffi::LUA_TSTRING => self.string(),
                ffi::LUA_TNUMBER => self.number(),
                ffi::LUA_TBOOLEAN => {
                    let byte = 0xc2 + u8::from(ffi::lua_toboolean(lua, -1) != 0);
                    self.out.push(lua, byte);
                }
                _ => self.out.push(lua, 0xc0),
            }
        }
    }

    unsafe fn string(&mut self) {
        // SAFETY: a string is on top of the stack.
        unsafe {
            let lua = self.lua;
            let mut len = 0;
            let bytes: *const u8 = ffi::lua_tolstring(lua, -1, &mut len).cast();
            self.pace.bytes(len);
            self.pace.weigh(lua, len);
            self.out.reserve(lua, len + 5);
            match len {
                0..32 => self.out.put(0xa0 | len as u8),
                32..0x100 => self.out.put_all(&[0xd9, len as u8]),
                0x100..0x1_0000 => self.head(0xda, &(len as u16).to_be_bytes()),
                // What does not fit is cut off, in the length as well.
                _ => self.head(0xdb, &(len as u32).to_be_bytes()),
            }
            self.out.put_all(slice::from_raw_parts(bytes, len));
        }
    }

    /// Writes a type byte and the bytes after it.
    #[inline(always)]
    unsafe fn head(&mut self, kind: u8, rest: &[u8]) {
        // SAFETY: nothing with a destructor is alive.
        unsafe {
            self.out.reserve(self.lua, 1 + rest.len());
            self.out.put(kind);
            self.out.put_all(rest);
        }
    }

    unsafe fn number(&mut self) {
        // SAFETY: a number is on top of the stack.
        unsafe {
            let lua = self.lua;
            let mut fits = 0;
            let whole = ffi::lua_tointegerx(lua, -1, &mut fits);
            if fits != 0 && whole.unsigned_abs() <= EXACT {
                return self.integer(whole);
            }
            // Larger numbers are rounded, as Lua 5.1 has only doubles.
            let number = ffi::lua_tonumber(lua, -1);
            let whole = number as i64;
            // The largest integer is no double: what became it was larger.
            if whole as f64 == number && whole != i64::MAX {
                return self.integer(whole);
            }
            let single = number as f32;
            if f64::from(single) == number {
                self.head(0xca, &single.to_be_bytes());
            } else {
                self.head(0xcb, &number.to_be_bytes());
            }
        }
    }

    #[inline(always)]
    unsafe fn integer(&mut self, whole: i64) {
        // SAFETY: nothing with a destructor is alive.
        unsafe {
            match whole {
                -32..=127 => self.out.push(self.lua, whole as u8),
                128..0x100 => self.head(0xcc, &[whole as u8]),
                0x100..0x1_0000 => self.head(0xcd, &(whole as u16).to_be_bytes()),
                0x1_0000..0x1_0000_0000 => self.head(0xce, &(whole as u32).to_be_bytes()),
                0x1_0000_0000.. => self.head(0xcf, &whole.to_be_bytes()),
                -0x80..-32 => self.head(0xd0, &[whole as u8]),
                -0x8000..-0x80 => self.head(0xd1, &(whole as i16).to_be_bytes()),
                -0x8000_0000..-0x8000 => self.head(0xd2, &(whole as i32).to_be_bytes()),
                ..-0x8000_0000 => self.head(0xd3, &whole.to_be_bytes()),
            }
        }
    }

    /// Packs a table: an array if its keys are 1 to its number of elements, a map otherwise. Elements are written while
    /// the keys are checked, as long as they are plain and in order; the output is kept if it is an array.
    unsafe fn table(&mut self, depth: u32) {
        // SAFETY: the table is on top of the stack, and there again after the traversal, which keeps key and value
        // above it.
        unsafe {
            let lua = self.lua;
            let start = self.out.len();
            self.out.push(lua, ARRAY.0);
            if !protect::first(lua) {
                return;
            }
            if ffi::lua_type(lua, -2) == ffi::LUA_TNUMBER {
                let mut written = 0;
                while positive(lua, -2) == written + 1 {
                    let kind = ffi::lua_type(lua, -1);
                    if kind == ffi::LUA_TTABLE {
                        break;
                    }
                    self.pace.step(lua);
                    self.plain(kind);
                    written += 1;
                    ffi::lua_pop(lua, 1);
                    if ffi::lua_next(lua, -2) == 0 {
                        return self.finish(start, written, ARRAY);
                    }
                }
                if let Some(len) = self.array_len(written) {
                    for index in written + 1..=len {
                        ffi::lua_rawgeti(lua, -1, index);
                        self.value(depth + 1);
                    }
                    return self.finish(start, len, ARRAY);
                }
                self.out.truncate(start + 1);
                ffi::lua_pushnil(lua);
                ffi::lua_next(lua, -2);
            }
            let mut count = 0;
            loop {
                ffi::lua_pushvalue(lua, -2);
                self.value(depth + 1);
                self.value(depth + 1);
                count += 1;
                if ffi::lua_next(lua, -2) == 0 {
                    return self.finish(start, count, MAP);
                }
            }
        }
    }

    /// Returns the length of the table as an array, if it is one. The first `seen` keys are known to be those from 1
    /// on, the next one and its value are on the stack and are popped.
    unsafe fn array_len(&mut self, seen: i64) -> Option<i64> {
        // SAFETY: as `table`.
        unsafe {
            let lua = self.lua;
            let (mut count, mut longest) = (seen, seen);
            loop {
                self.pace.step(lua);
                let key = positive(lua, -2);
                if key == 0 {
                    ffi::lua_pop(lua, 2);
                    return None;
                }
                count += 1;
                longest = longest.max(key);
                ffi::lua_pop(lua, 1);
                if ffi::lua_next(lua, -2) == 0 {
                    return (longest == count).then_some(count);
                }
            }
        }
    }

    /// Writes how many elements or pairs there are into the byte at `start`, or makes room there for more bytes.
    unsafe fn finish(&mut self, start: usize, count: i64, (few, many): (u8, u8)) {
        // SAFETY: the byte is there, and the room is made.
        unsafe {
            let mut head = [0; 5];
            let len = match count {
                0..16 => return self.out.set(start, &[few | count as u8]),
                16..0x1_0000 => {
                    head[0] = many;
                    head[1..3].copy_from_slice(&(count as u16).to_be_bytes());
                    3
                }
                _ => {
                    head[0] = many + 1;
                    head[1..].copy_from_slice(&(count as u32).to_be_bytes());
                    5
                }
            };
            self.pace.weigh(self.lua, self.out.len() - start);
            self.out.part(self.lua, start + 1, len - 1);
            self.out.set(start, &head[..len]);
        }
    }
}

/// Returns the key at `index` if it is a whole number from 1 on, else 0.
#[inline(always)]
unsafe fn positive(lua: *mut lua_State, index: c_int) -> i64 {
    // SAFETY: a key is at `index`; one that is no whole number gives 0.
    unsafe {
        if ffi::lua_type(lua, index) != ffi::LUA_TNUMBER {
            return 0;
        }
        ffi::lua_tointegerx(lua, index, ptr::null_mut()).max(0)
    }
}
