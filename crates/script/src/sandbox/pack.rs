//! `struct`: values to bytes and back by a format, as Roberto Ierusalimschy's library 0.2 within Redis 7 does it.
//!
//! Sizes of C's types and the order of bytes are those of 64-bit machines as Redis runs on. A format ends at its first
//! zero byte.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use super::failure::{SLOTS_MAX, fail};
use super::grown::Grown;
use super::pace::Pace;
use super::{argument, number, register};
use crate::ffi::{self, lua_CFunction, lua_State};
use crate::{again, function};

/// The width of the widest integer, in bytes.
const INTEGER_MAX: i32 = 32;

/// The widest natural alignment, in bytes.
const ALIGN_MAX: i32 = 8;

/// Results up to this length never leave the frame.
const FRAME: usize = 1024;

/// Makes the table `struct` and leaves it on the stack.
pub(crate) unsafe fn open(lua: *mut lua_State) {
    const FUNCTIONS: [(&CStr, lua_CFunction); 3] =
        [(c"pack", function!(pack)), (c"unpack", function!(unpack)), (c"size", function!(size))];
    // SAFETY: called inside a protected call.
    unsafe { register(lua, &FUNCTIONS) };
}

/// A format that is being read.
struct Format<'a> {
    lua: *mut lua_State,
    rest: &'a [u8],
    big_endian: bool,
    /// The widest alignment.
    align: u64,
}

impl<'a> Format<'a> {
    /// Returns the format in the first argument; raises if there is none.
    unsafe fn new(lua: *mut lua_State) -> Format<'a> {
        // SAFETY: as promised by the caller; the argument stays on the stack.
        Format { lua, rest: unsafe { argument::string(lua, 1) }, big_endian: false, align: 1 }
    }

    /// Returns the next option with its size in bytes, 0 for one that has none.
    unsafe fn next(&mut self) -> Option<(u8, u64)> {
        let (&option, rest) = self.rest.split_first().filter(|(option, _)| **option != 0)?;
        self.rest = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            // SAFETY: nothing with a destructor is alive.
            b'c' => unsafe { self.digits(1) },
            // SAFETY: as above.
            b'i' | b'I' => unsafe {
                let size = self.digits(4);
                if size > INTEGER_MAX {
                    fail(self.lua, format_args!("integral size {size} is larger than limit of {INTEGER_MAX}"));
                }
                size
            },
            _ => 0,
        };
        Some((option, size as u64))
    }

    /// Returns the number that comes next in the format, `default` if there is none.
    unsafe fn digits(&mut self, default: i32) -> i32 {
        let mut number: Option<i32> = None;
        while let Some((&digit @ b'0'..=b'9', rest)) = self.rest.split_first() {
            let longer = number.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(i32::from(digit - b'0')));
            if longer.is_none() {
                // SAFETY: nothing with a destructor is alive.
                unsafe { fail(self.lua, format_args!("integral size overflow")) };
            }
            (number, self.rest) = (longer, rest);
        }
        number.unwrap_or(default)
    }

    /// Returns the number of bytes between `position` and the beginning of the option.
    fn padding(&self, position: u64, option: u8, size: u64) -> u64 {
        if size == 0 || option == b'c' {
            return 0;
        }
        let mask = size.min(self.align) - 1;
        (mask + 1).wrapping_sub(position & mask) & mask
    }

    /// Applies an option that concerns the format itself.
    unsafe fn control(&mut self, option: u8) {
        match option {
            b' ' => {}
            b'>' => self.big_endian = true,
            b'<' => self.big_endian = false,
            // SAFETY: nothing with a destructor is alive.
            b'!' => unsafe {
                let align = self.digits(ALIGN_MAX);
                if align <= 0 || !(align as u32).is_power_of_two() {
                    fail(self.lua, format_args!("alignment {align} is not a power of 2"));
                }
                self.align = align as u64;
            },
            // SAFETY: as above; the message stays on the stack.
            _ => unsafe {
                crate::push_bytes(self.lua, b"invalid format option '");
                crate::push_bytes(self.lua, &[option, b'\'']);
                ffi::lua_concat(self.lua, 2);
                argument::fail(self.lua, 1, CStr::from_ptr(ffi::lua_tostring(self.lua, -1)))
            },
        }
    }
}

unsafe fn size(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let mut format = Format::new(lua);
        let mut pace = Pace::new(ffi::lua_gettop(lua), again!(size));
        let mut position: u64 = 0;
        while let Some((option, size)) = format.next() {
            pace.step(lua);
            position = position.wrapping_add(format.padding(position, option, size));
            match (option, size) {
                (b's', _) => argument::fail(lua, 1, c"option 's' has no fixed size"),
                (b'c', 0) => argument::fail(lua, 1, c"option 'c0' has no fixed size"),
                _ => {}
            }
            if !option.is_ascii_alphanumeric() {
                format.control(option);
            }
            position = position.wrapping_add(size);
        }
        number::push(lua, position as i64 as f64);
        1
    }
}

/// Returns the `size` bytes of a 64-bit integer; bytes beyond its width are zeros.
fn put_integer(value: u64, size: usize, big_endian: bool) -> [u8; INTEGER_MAX as usize] {
    let mut bytes = [0; INTEGER_MAX as usize];
    for (at, byte) in value.to_le_bytes().into_iter().enumerate().take(size) {
        bytes[if big_endian { size - 1 - at } else { at }] = byte;
    }
    bytes
}

/// Returns the last 64 bits of an integer. A signed one is negative if the bit is set that results from a shift by its
/// width modulo 64; beyond eight bytes this is not its highest bit.
fn integer(bytes: &[u8], signed: bool, big_endian: bool) -> f64 {
    let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    let value = if big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) };
    if !signed {
        return value as f64;
    }
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32 * 8).wrapping_sub(1));
    (if value & mask != 0 { value | mask } else { value }) as i64 as f64
}

unsafe fn pack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots; the stack has the arguments, a nil in place of a missing one,
    // and the growing result.
    unsafe {
        let mut format = Format::new(lua);
        let arguments = ffi::lua_gettop(lua);
        ffi::lua_settop(lua, arguments + 2);
        let mut frame = MaybeUninit::<[u8; FRAME]>::uninit();
        let mut out = Grown::new(&mut frame, arguments + 2);
        let mut pace = Pace::new(arguments, again!(pack));
        let mut next = 2;
        while let Some((option, size)) = format.next() {
            pace.step(lua);
            let padding = format.padding(out.len() as u64, option, size) as usize;
            out.extend(lua, &[0; INTEGER_MAX as usize][..padding]);
            match option {
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                    let bytes =
                        put_integer(number::to_u64(argument::number(lua, next)), size as usize, format.big_endian);
                    out.extend(lua, &bytes[..size as usize]);
                    next += 1;
                }
                b'x' => out.push(lua, 0),
                b'f' => {
                    let single = argument::number(lua, next) as f32;
                    out.extend(lua, &if format.big_endian { single.to_be_bytes() } else { single.to_le_bytes() });
                    next += 1;
                }
                b'd' => {
                    let double = argument::number(lua, next);
                    out.extend(lua, &if format.big_endian { double.to_be_bytes() } else { double.to_le_bytes() });
                    next += 1;
                }
                b'c' | b's' => {
                    let text = argument::string(lua, next);
                    next += 1;
                    if (text.len() as u64) < size {
                        argument::fail(lua, next, c"string too short");
                    }
                    let size = if size == 0 { text.len() } else { size as usize };
                    pace.weigh(lua, size);
                    out.extend(lua, &text[..size]);
                    if option == b's' {
                        out.push(lua, 0);
                    }
                }
                _ => format.control(option),
            }
        }
        pace.weigh(lua, out.len());
        crate::push_bytes(lua, out.as_slice());
        1
    }
}

unsafe fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function has `LUA_MINSTACK` free slots.
    unsafe {
        let mut format = Format::new(lua);
        let data = argument::string(lua, 2);
        let start = argument::integer_or(lua, 3, 1);
        if start == 0 {
            argument::fail(lua, 3, c"offset must be 1 or greater");
        }
        // A negative start counts as one far beyond the data.
        let mut position = (start as u64).wrapping_sub(1);
        let arguments = ffi::lua_gettop(lua);
        let mut pace = Pace::new(arguments, again!(unpack));
        let mut results = 0;
        while let Some((option, size)) = format.next() {
            pace.step(lua);
            position = position.wrapping_add(format.padding(position, option, size));
            let mut field = field(lua, data, position, size);
            if (arguments + results) as usize + 2 > SLOTS_MAX || ffi::lua_checkstack(lua, 4) == 0 {
                fail(lua, format_args!("stack overflow (too many results)"));
            }
            results += 1;
            match option {
                b'b' | b'h' | b'l' | b'i' => number::push(lua, integer(field, true, format.big_endian)),
                b'B' | b'H' | b'L' | b'T' | b'I' => number::push(lua, integer(field, false, format.big_endian)),
                b'x' => results -= 1,
                b'f' => {
                    let single: [u8; 4] = field.try_into().expect("the size of the option");
                    let single =
                        if format.big_endian { f32::from_be_bytes(single) } else { f32::from_le_bytes(single) };
                    number::push(lua, single.into());
                }
                b'd' => {
                    let double: [u8; 8] = field.try_into().expect("the size of the option");
                    number::push(
                        lua,
                        if format.big_endian { f64::from_be_bytes(double) } else { f64::from_le_bytes(double) },
                    );
                }
                b'c' => {
                    if size == 0 {
                        results -= 1;
                        let Some(size) = (results > 0).then(|| argument::to_number(lua, -1)).flatten() else {
                            fail(lua, format_args!("format 'c0' needs a previous size"));
                        };
                        ffi::lua_pop(lua, 1);
                        field = self::field(lua, data, position, number::to_u64(size));
                    }
                    pace.weigh(lua, field.len());
                    crate::push_bytes(lua, field);
                }
                b's' => {
                    let rest = &data[position as usize..];
                    let Some(len) = find_zero(lua, rest, &mut pace) else {
                        fail(lua, format_args!("unfinished string in data"));
                    };
                    pace.weigh(lua, len);
                    crate::push_bytes(lua, &rest[..len]);
                    field = &rest[..=len];
                }
                _ => {
                    results -= 1;
                    format.control(option);
                }
            }
            position += field.len() as u64;
        }
        number::push(lua, position.wrapping_add(1) as i64 as f64);
        results + 1
    }
}

/// Returns the `size` bytes of the data from `position` on; raises if there are fewer.
unsafe fn field(lua: *mut lua_State, data: &[u8], position: u64, size: u64) -> &[u8] {
    let all = data.len() as u64;
    if size > all || position > all - size {
        // SAFETY: nothing with a destructor is alive.
        unsafe { argument::fail(lua, 2, c"data string too short") };
    }
    &data[position as usize..(position + size) as usize]
}

/// Returns the position of the first zero byte.
unsafe fn find_zero(lua: *mut lua_State, bytes: &[u8], pace: &mut Pace) -> Option<usize> {
    const CHUNK: usize = 1 << 16;
    for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
        if let Some(at) = CStr::from_bytes_until_nul(chunk).ok().map(|text| text.count_bytes()) {
            return Some(index * CHUNK + at);
        }
        pace.bytes(CHUNK);
        // SAFETY: nothing with a destructor is alive.
        unsafe { pace.step(lua) };
    }
    None
}
