//! Values to MessagePack: the shortest form of each, doubles as floats where nothing is lost.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;

use super::super::argument;
use super::super::failure::SLOTS_MAX;
use super::super::grown::Grown;
use super::super::pace::Pace;
use crate::again;
use crate::ffi::{self, lua_State};

/// Results up to this length never leave the frame.
const FRAME: usize = 2048;

/// Tables inside one another; one that lies deeper is written as nil.
const DEPTH_MAX: u32 = 16;

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
                ffi::LUA_TSTRING => self.string(),
                ffi::LUA_TNUMBER => self.number(),
                ffi::LUA_TBOOLEAN => {
                    let byte = 0xc2 + u8::from(ffi::lua_toboolean(lua, -1) != 0);
                    self.out.push(lua, byte);
                }
                ffi::LUA_TTABLE if depth < DEPTH_MAX => self.table(depth),
                _ => self.out.push(lua, 0xc0),
            }
            ffi::lua_pop(lua, 1);
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

    /// Writes a byte and what follows it.
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
            let number = ffi::lua_tonumber(self.lua, -1);
            let whole = number as i64;
            // The largest integer is no double: what became it was larger.
            if whole as f64 != number || whole == i64::MAX {
                let single = number as f32;
                if f64::from(single) == number {
                    self.head(0xca, &single.to_be_bytes());
                } else {
                    self.head(0xcb, &number.to_be_bytes());
                }
                return;
            }
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

    /// Packs a table: an array if its keys are 1 to its number of elements, a map otherwise.
    unsafe fn table(&mut self, depth: u32) {
        // SAFETY: the table is on top of the stack, and there again after each traversal.
        unsafe {
            let lua = self.lua;
            let (mut count, mut longest, mut array) = (0_i64, 0_i64, true);
            ffi::lua_pushnil(lua);
            while ffi::lua_next(lua, -2) != 0 {
                self.pace.step(lua);
                ffi::lua_pop(lua, 1);
                count += 1;
                let mut fits = 0;
                if array {
                    let key = if ffi::lua_type(lua, -1) == ffi::LUA_TNUMBER {
                        ffi::lua_tointegerx(lua, -1, &mut fits)
                    } else {
                        0
                    };
                    array = fits != 0 && key > 0;
                    longest = longest.max(key);
                }
            }
            if array && longest == count {
                match count {
                    0..16 => self.out.push(lua, 0x90 | count as u8),
                    16..0x1_0000 => self.head(0xdc, &(count as u16).to_be_bytes()),
                    _ => self.head(0xdd, &(count as u32).to_be_bytes()),
                }
                for index in 1..=count {
                    ffi::lua_rawgeti(lua, -1, index);
                    self.value(depth + 1);
                }
                return;
            }
            match count {
                0..16 => self.out.push(lua, 0x80 | count as u8),
                16..0x1_0000 => self.head(0xde, &(count as u16).to_be_bytes()),
                _ => self.head(0xdf, &(count as u32).to_be_bytes()),
            }
            ffi::lua_pushnil(lua);
            while ffi::lua_next(lua, -2) != 0 {
                ffi::lua_pushvalue(lua, -2);
                self.value(depth + 1);
                self.value(depth + 1);
            }
        }
    }
}
