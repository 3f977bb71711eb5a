//! Serialization of values as JSON.
//!
//! A table is an array if all its keys are whole numbers from 1 on. To know that, all keys must be seen, so a table
//! that begins like an array of plain values is written while its keys are looked at, and is taken back if it turns
//! out to be something else; the first table inside ends this, so nothing nested is ever written twice.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::{ptr, slice};

use super::super::argument;
use super::super::decimal::number_text;
use super::super::failure::{SLOTS_MAX, fail};
use super::super::grown::Grown;
use super::super::pace::Pace;
use super::super::protect;
use super::{Invalid, Options, words};
use crate::again;
use crate::ffi::{self, lua_State};

/// Texts up to this length never leave the frame.
const FRAME_TEXT: usize = 2048;

/// Up to this many levels of nesting stay in the frame.
const FRAME_LEVELS: usize = 24;

/// Slots that Lua 5.1's lua-cjson asks for before it looks into a table.
const SLOTS_ASKED: usize = 3;

/// A table that is being written.
#[derive(Clone, Copy)]
enum Level {
    /// The element on top of the stack is the `index`th of `len`.
    Array { index: i32, len: i32 },
    /// Key and value are on top of the stack.
    Object,
}

impl Level {
    /// The slots of Lua 5.1's stack that an element takes.
    const ARRAY_SLOTS: usize = 1;
    const OBJECT_SLOTS: usize = 2;

    fn slots(self) -> usize {
        match self {
            Level::Array { .. } => Level::ARRAY_SLOTS,
            Level::Object => Level::OBJECT_SLOTS,
        }
    }
}

/// The shape of a table.
enum Shape {
    /// It is written.
    Done,
    Array(i32),
    /// The first key and its value are on the stack.
    Object,
}

struct Encoder {
    lua: *mut lua_State,
    options: Options,
    out: Grown<u8>,
    /// The tables around the one that is being written.
    levels: Grown<Level>,
    /// The number of tables that enclose the value being written, itself included.
    depth: i32,
    pace: Pace,
    /// Slots that Lua 5.1's lua-cjson would have used up to here.
    slots: usize,
}

pub(super) unsafe fn encode(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack: the argument, the slots of two growing arrays, then a copy of the argument.
    unsafe {
        if ffi::lua_gettop(lua) != 1 {
            argument::fail(lua, 1, c"expected 1 argument");
        }
        ffi::lua_settop(lua, 3);
        ffi::lua_pushvalue(lua, 1);
        let (mut text, mut levels) =
            (MaybeUninit::<[u8; FRAME_TEXT]>::uninit(), MaybeUninit::<[Level; FRAME_LEVELS]>::uninit());
        let mut encoder = Encoder {
            lua,
            options: *Options::of(lua),
            out: Grown::new(&mut text, 2),
            levels: Grown::new(&mut levels, 3),
            depth: 0,
            pace: Pace::new(1, again!(encode)),
            slots: 1,
        };
        encoder.run();
        encoder.pace.weigh(lua, encoder.out.len());
        crate::push_bytes(lua, encoder.out.as_slice());
        1
    }
}

impl Encoder {
    /// Writes the value on top of the stack.
    unsafe fn run(&mut self) {
        // SAFETY: the stack holds what `level` and the levels around it say, and there is room for what is pushed.
        unsafe {
            let lua = self.lua;
            let mut level = None;
            let mut kind = ffi::lua_type(lua, -1);
            loop {
                self.pace.step(lua);
                if kind == ffi::LUA_TTABLE {
                    self.descend();
                    let inner = match self.shape() {
                        Shape::Done => None,
                        Shape::Array(len) => {
                            self.out.push(lua, b'[');
                            kind = ffi::lua_rawgeti(lua, -1, 1);
                            Some(Level::Array { index: 1, len })
                        }
                        Shape::Object => {
                            self.out.push(lua, b'{');
                            self.key();
                            kind = ffi::lua_type(lua, -1);
                            Some(Level::Object)
                        }
                    };
                    if let Some(inner) = inner {
                        if let Some(outer) = level.replace(inner) {
                            self.levels.push(lua, outer);
                        }
                        self.slots += inner.slots();
                        continue;
                    }
                    self.depth -= 1;
                } else if !self.plain(kind) {
                    self.refuse(kind, "type not supported");
                }
                // A value is written, and on top of the stack still.
                loop {
                    match level {
                        None => return,
                        Some(Level::Array { index, len }) if index < len => {
                            self.out.push(lua, b',');
                            ffi::lua_pop(lua, 1);
                            kind = ffi::lua_rawgeti(lua, -1, (index + 1).into());
                            level = Some(Level::Array { index: index + 1, len });
                            break;
                        }
                        Some(Level::Array { .. }) => {
                            self.out.push(lua, b']');
                            self.slots -= Level::ARRAY_SLOTS;
                            ffi::lua_pop(lua, 1);
                        }
                        Some(Level::Object) => {
                            ffi::lua_pop(lua, 1);
                            if ffi::lua_next(lua, -2) != 0 {
                                self.out.push(lua, b',');
                                self.key();
                                kind = ffi::lua_type(lua, -1);
                                break;
                            }
                            self.out.push(lua, b'}');
                            self.slots -= Level::OBJECT_SLOTS;
                        }
                    }
                    self.depth -= 1;
                    level = self.levels.pop();
                }
            }
        }
    }

    /// Enters a table, if it is not too deep.
    #[inline(always)]
    unsafe fn descend(&mut self) {
        self.depth += 1;
        // SAFETY: nothing with a destructor is alive; the stack grows or does not.
        unsafe {
            if self.depth > self.options.encode_depth
                || self.slots + SLOTS_ASKED > SLOTS_MAX
                || ffi::lua_checkstack(self.lua, 16) == 0
            {
                fail(self.lua, format_args!("Cannot serialise, excessive nesting ({})", self.depth));
            }
        }
    }

    /// Determines the shape of the table on top of the stack.
    unsafe fn shape(&mut self) -> Shape {
        // SAFETY: the table is on top; the traversal keeps its key and value above it.
        unsafe {
            let lua = self.lua;
            if !protect::first(lua) {
                self.out.extend(lua, b"{}");
                return Shape::Done;
            }
            if ffi::lua_type(lua, -2) != ffi::LUA_TNUMBER {
                return Shape::Object;
            }
            let mark = self.out.len();
            let mut written = 0;
            let mut before = b'[';
            while ffi::lua_type(lua, -2) == ffi::LUA_TNUMBER
                && ffi::lua_tointegerx(lua, -2, ptr::null_mut()) == written + 1
            {
                self.pace.step(lua);
                self.out.push(lua, before);
                if !self.plain(ffi::lua_type(lua, -1)) {
                    break;
                }
                before = b',';
                written += 1;
                ffi::lua_pop(lua, 1);
                if ffi::lua_next(lua, -2) == 0 {
                    self.out.push(lua, b']');
                    return Shape::Done;
                }
            }
            self.out.truncate(mark);
            match self.array_len(written as i32) {
                0 => {
                    ffi::lua_pushnil(lua);
                    ffi::lua_next(lua, -2);
                    Shape::Object
                }
                len => Shape::Array(len),
            }
        }
    }

    /// Returns the length of the table as an array, 0 if it is not one. The first `seen` keys are known to be those
    /// from 1 on, the next one and its value are on the stack and are popped. Lengths and counts have 32 bits and
    /// overflow, as in Redis.
    unsafe fn array_len(&mut self, seen: i32) -> i32 {
        // SAFETY: as `shape`.
        unsafe {
            let lua = self.lua;
            let (mut longest, mut items) = (seen, seen);
            loop {
                self.pace.step(lua);
                // A key that is no number reads as 0.
                let number = ffi::lua_type(lua, -2) == ffi::LUA_TNUMBER;
                let key = if number { ffi::lua_tonumber(lua, -2) } else { 0.0 };
                if key < 1.0 || key.floor() != key {
                    ffi::lua_pop(lua, 2);
                    return 0;
                }
                if key > f64::from(longest) {
                    longest = if key <= f64::from(i32::MAX) { key as i32 } else { i32::MIN };
                }
                items = items.wrapping_add(1);
                ffi::lua_pop(lua, 1);
                if ffi::lua_next(lua, -2) == 0 {
                    break;
                }
            }
            let Options { sparse_ratio, sparse_safe, sparse_convert, .. } = self.options;
            if sparse_ratio > 0 && longest > items.wrapping_mul(sparse_ratio) && longest > sparse_safe {
                if !sparse_convert {
                    self.refuse(ffi::LUA_TTABLE, "excessively sparse array");
                }
                return 0;
            }
            longest.max(0)
        }
    }

    /// Writes the key below the top of the stack, and the colon.
    #[inline(always)]
    unsafe fn key(&mut self) {
        // SAFETY: key and value are on top of the stack.
        unsafe {
            let lua = self.lua;
            match ffi::lua_type(lua, -2) {
                ffi::LUA_TSTRING => self.string(-2),
                ffi::LUA_TNUMBER => {
                    self.out.push(lua, b'"');
                    if !self.number(-2) {
                        self.refuse(ffi::LUA_TNUMBER, "");
                    }
                    self.out.push(lua, b'"');
                }
                kind => self.refuse(kind, "table key must be a number or string"),
            }
            self.out.push(lua, b':');
        }
    }

    #[cold]
    unsafe fn refuse(&mut self, kind: c_int, why: &str) -> ! {
        // SAFETY: names of types are constants; nothing with a destructor is alive.
        unsafe {
            let name = CStr::from_ptr(ffi::lua_typename(self.lua, kind)).to_str().unwrap_or_default();
            let why = if kind == ffi::LUA_TNUMBER { "must not be NaN or Inf" } else { why };
            fail(self.lua, format_args!("Cannot serialise {name}: {why}"))
        }
    }

    /// Writes the value on top of the stack, of type `kind`, if it is plain.
    #[inline(always)]
    unsafe fn plain(&mut self, kind: c_int) -> bool {
        // SAFETY: the value is on top of the stack.
        unsafe {
            let lua = self.lua;
            match kind {
                ffi::LUA_TSTRING => self.string(-1),
                ffi::LUA_TNUMBER => return self.number(-1),
                ffi::LUA_TBOOLEAN if ffi::lua_toboolean(lua, -1) != 0 => self.out.extend(lua, b"true"),
                ffi::LUA_TBOOLEAN => self.out.extend(lua, b"false"),
                ffi::LUA_TNIL => self.out.extend(lua, b"null"),
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_touserdata(lua, -1).is_null() => self.out.extend(lua, b"null"),
                _ => return false,
            }
            true
        }
    }

    /// Writes a number, if the options allow it.
    #[inline(always)]
    unsafe fn number(&mut self, index: c_int) -> bool {
        // SAFETY: a number is at `index`.
        unsafe {
            let lua = self.lua;
            let mut fits = 0;
            let whole = ffi::lua_tointegerx(lua, index, &mut fits);
            if fits != 0 && whole.unsigned_abs() < self.options.whole as u64 && (whole != 0 || !self.negative(index)) {
                self.out.extend(lua, itoa::Buffer::new().format(whole).as_bytes());
                return true;
            }
            self.double(ffi::lua_tonumber(lua, index))
        }
    }

    /// Returns whether the zero at `index` is the negative one.
    unsafe fn negative(&self, index: c_int) -> bool {
        // SAFETY: a number is at `index`.
        unsafe { ffi::lua_tonumber(self.lua, index).is_sign_negative() }
    }

    #[inline(never)]
    unsafe fn double(&mut self, number: f64) -> bool {
        // SAFETY: nothing with a destructor is alive.
        unsafe {
            let lua = self.lua;
            if !number.is_finite() {
                match self.options.encode_invalid {
                    Invalid::Refused => return false,
                    Invalid::Null => self.out.extend(lua, b"null"),
                    Invalid::Written if number.is_nan() => self.out.extend(lua, b"nan"),
                    Invalid::Written if number > 0.0 => self.out.extend(lua, b"inf"),
                    Invalid::Written => self.out.extend(lua, b"-inf"),
                }
                return true;
            }
            self.out.extend(lua, number_text(number, self.options.precision as usize).as_bytes());
            true
        }
    }

    /// Writes the string at `index`.
    #[inline(always)]
    unsafe fn string(&mut self, index: c_int) {
        // SAFETY: a string is at `index`, and stays there while its bytes are read.
        unsafe {
            let lua = self.lua;
            let mut len = 0;
            let bytes: *const u8 = ffi::lua_tolstring(lua, index, &mut len).cast();
            let bytes = slice::from_raw_parts(bytes, len);
            self.out.reserve(lua, len + 1 + size_of::<u64>());
            self.out.put(b'"');
            if len <= CHUNK {
                self.escaped(bytes, 0);
            } else {
                let mut after = len;
                for chunk in bytes.chunks(CHUNK) {
                    self.pace.bytes(CHUNK);
                    self.pace.step(lua);
                    after -= chunk.len();
                    self.escaped(chunk, after);
                }
            }
            self.out.push(lua, b'"');
        }
    }

    /// Writes bytes of a string. There is room for them, for the `after` bytes that follow, and a word.
    #[inline(always)]
    unsafe fn escaped(&mut self, mut bytes: &[u8], after: usize) {
        // SAFETY: as said; whatever takes more room than its bytes makes it anew.
        unsafe {
            while let Some((word, rest)) = bytes.split_first_chunk() {
                let special = words::special(u64::from_le_bytes(*word));
                self.out.put_word(*word);
                if special == 0 {
                    bytes = rest;
                    continue;
                }
                let plain = words::first(special);
                self.out.truncate(self.out.len() - word.len() + plain);
                self.escape(word[plain]);
                bytes = &bytes[plain + 1..];
                self.out.reserve(self.lua, bytes.len() + after + size_of::<u64>());
            }
            for (at, &byte) in bytes.iter().enumerate() {
                if byte >= b' ' && !matches!(byte, b'"' | b'\\' | b'/' | 0x7f) {
                    self.out.put(byte);
                } else {
                    self.escape(byte);
                    self.out.reserve(self.lua, bytes.len() - at + after + size_of::<u64>());
                }
            }
        }
    }

    #[cold]
    unsafe fn escape(&mut self, byte: u8) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let short = match byte {
            b'"' | b'\\' | b'/' => byte,
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            12 => b'f',
            b'\r' => b'r',
            _ => {
                let code = [b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                // SAFETY: nothing with a destructor is alive.
                return unsafe { self.out.extend(self.lua, &code) };
            }
        };
        // SAFETY: as above.
        unsafe { self.out.extend(self.lua, &[b'\\', short]) };
    }
}

/// Bytes that are looked through between two steps.
const CHUNK: usize = 4096;
