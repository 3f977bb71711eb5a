//! JSON to values.
//!
//! The first few elements of an array or object stay on the stack until it is known how many they are, so that small
//! tables are made in their final size; a container that outgrows that, or lies deep, is filled as it is read.
//!
//! Lua ends each string with a zero byte, which is the token for the end of the text, so nothing but that byte bounds
//! the reading. As in Redis, a text ends at its first zero byte, wherever that is.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::{ptr, slice, str};

use super::super::failure::{SLOTS_MAX, fail};
use super::super::grown::Grown;
use super::super::pace::Pace;
use super::super::{argument, number};
use super::{Options, words};
use crate::again;
use crate::ffi::{self, lua_State};

/// Strings with escapes up to this length never leave the frame.
const FRAME_TEXT: usize = 1024;

/// Up to this many levels of nesting stay in the frame.
const FRAME_LEVELS: usize = 24;

/// Slots that Lua 5.1's lua-cjson needs to be free when it enters a container, by its own account and ours.
const SLOTS_ASKED: usize = 2;

/// Elements of an array, and of an object, that wait on the stack.
const ARRAY_WAITING: i64 = 64;
const OBJECT_WAITING: i64 = 16;

/// Containers at this depth are filled as they are read: what waits on the stack is bounded.
const DEEP: i32 = 16;

/// Integers of up to this many digits take the fast path.
const DIGITS: usize = 18;

/// A container that is being read.
#[derive(Clone, Copy)]
struct Level {
    /// Elements up to now.
    count: i64,
    object: bool,
    /// Whether the table is made and elements go there at once; else a slot is kept for it below those that wait.
    filled: bool,
}

struct Decoder {
    lua: *mut lua_State,
    start: *const u8,
    /// The zero byte that Lua put behind the text.
    end: *const u8,
    /// The next byte.
    at: *const u8,
    options: Options,
    /// A string that has escapes.
    text: Grown<u8>,
    /// The containers around the one that is being read.
    levels: Grown<Level>,
    depth: i32,
    pace: Pace,
    /// Slots that Lua 5.1's lua-cjson would have used up to here.
    slots: usize,
}

pub(super) unsafe fn decode(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack: the text and the slots of two growing arrays.
    unsafe {
        if ffi::lua_gettop(lua) != 1 {
            argument::fail(lua, 1, c"expected 1 argument");
        }
        let json = argument::string(lua, 1);
        if let [first, second, ..] = json
            && (*first == 0 || *second == 0)
        {
            fail(lua, format_args!("JSON parser does not support UTF-16 or UTF-32"));
        }
        ffi::lua_settop(lua, 3);
        let (mut text, mut levels) =
            (MaybeUninit::<[u8; FRAME_TEXT]>::uninit(), MaybeUninit::<[Level; FRAME_LEVELS]>::uninit());
        let mut decoder = Decoder {
            lua,
            start: json.as_ptr(),
            end: json.as_ptr().add(json.len()),
            at: json.as_ptr(),
            options: *Options::of(lua),
            text: Grown::new(&mut text, 2),
            levels: Grown::new(&mut levels, 3),
            depth: 0,
            pace: Pace::new(1, again!(decode)),
            slots: 1,
        };
        decoder.run();
        1
    }
}

impl Decoder {
    /// Reads the whole text and leaves its value on the stack.
    unsafe fn run(&mut self) {
        // SAFETY: the stack holds what `level` and the levels around it say, and there is room for what is pushed.
        unsafe {
            let lua = self.lua;
            let mut level = None;
            loop {
                self.pace.step(lua);
                match self.token() {
                    b'"' => self.string("value"),
                    b'-' | b'0'..=b'9' => self.number(),
                    open @ (b'[' | b'{') => {
                        self.at = self.at.add(1);
                        let inner = self.descend(open == b'{');
                        if self.token() == open + 2 {
                            self.at = self.at.add(1);
                            self.close(inner);
                        } else {
                            if inner.object {
                                self.key();
                            }
                            self.slots += 1 + usize::from(inner.object);
                            if let Some(outer) = level.replace(inner) {
                                self.levels.push(lua, outer);
                            }
                            continue;
                        }
                    }
                    b't' if self.takes(b"true") => ffi::lua_pushboolean(lua, 1),
                    b'f' if self.takes(b"false") => ffi::lua_pushboolean(lua, 0),
                    b'n' if self.takes(b"null") => ffi::lua_pushlightuserdata(lua, ptr::null_mut::<c_void>()),
                    b'+' | b'i' | b'I' | b'n' | b'N' => self.odd_number(),
                    _ => self.unexpected("value"),
                }
                // A value is read, and on top of the stack.
                loop {
                    let Some(inside) = &mut level else {
                        if self.token() != 0 {
                            self.unexpected("the end");
                        }
                        return;
                    };
                    inside.count += 1;
                    if inside.object {
                        if inside.filled {
                            ffi::lua_rawset(lua, -3);
                        } else if inside.count == OBJECT_WAITING {
                            fill_object(lua, inside.count, 2 * inside.count);
                            inside.filled = true;
                        }
                        match self.token() {
                            b',' => {
                                self.at = self.at.add(1);
                                self.token();
                                self.key();
                                break;
                            }
                            b'}' => self.slots -= 2,
                            _ => self.unexpected("comma or object end"),
                        }
                    } else {
                        if inside.filled {
                            ffi::lua_rawseti(lua, -2, inside.count);
                        } else if inside.count == ARRAY_WAITING {
                            fill_array(lua, inside.count, 2 * inside.count);
                            inside.filled = true;
                        }
                        match self.token() {
                            b',' => {
                                self.at = self.at.add(1);
                                break;
                            }
                            b']' => self.slots -= 1,
                            _ => self.unexpected("comma or array end"),
                        }
                    }
                    self.at = self.at.add(1);
                    let inside = *inside;
                    self.close(inside);
                    level = self.levels.pop();
                }
            }
        }
    }

    /// Returns the first byte of the next token.
    #[inline(always)]
    unsafe fn token(&mut self) -> u8 {
        // SAFETY: the text ends with a zero byte.
        unsafe {
            if *self.at <= b' ' {
                self.skip_space();
            }
            *self.at
        }
    }

    #[inline(never)]
    unsafe fn skip_space(&mut self) {
        // SAFETY: the text ends with a zero byte, which is no space.
        unsafe {
            let mut before = self.at;
            while matches!(*self.at, b' ' | b'\t' | b'\n' | b'\r') {
                self.at = self.at.add(1);
                if self.at.offset_from_unsigned(before) == CHUNK {
                    self.rest(CHUNK);
                    before = self.at;
                }
            }
        }
    }

    /// Counts `bytes` bytes that were read, and looks up if it is time.
    unsafe fn rest(&mut self, bytes: usize) {
        self.pace.bytes(bytes);
        // SAFETY: nothing with a destructor is alive.
        unsafe { self.pace.step(self.lua) };
    }

    /// Enters a container, if it is not too deep.
    #[inline(always)]
    unsafe fn descend(&mut self, object: bool) -> Level {
        self.depth += 1;
        // SAFETY: nothing with a destructor is alive; the stack grows or does not.
        unsafe {
            if self.depth > self.options.decode_depth
                || self.slots + SLOTS_ASKED > SLOTS_MAX
                || ffi::lua_checkstack(self.lua, STACK) == 0
            {
                let at = self.at.offset_from(self.start);
                let depth = self.depth;
                fail(self.lua, format_args!("Found too many nested data structures ({depth}) at character {at}"));
            }
            let filled = self.depth > DEEP;
            if filled {
                ffi::lua_createtable(self.lua, 0, 0);
            } else {
                ffi::lua_pushnil(self.lua);
            }
            Level { count: 0, object, filled }
        }
    }

    /// Leaves a container: its table is on top of the stack then.
    #[inline(always)]
    unsafe fn close(&mut self, level: Level) {
        self.depth -= 1;
        // SAFETY: the elements that wait are on the stack, above the table's slot.
        unsafe {
            if level.filled {
            } else if level.object {
                fill_object(self.lua, level.count, level.count);
            } else {
                fill_array(self.lua, level.count, level.count);
            }
        }
    }

    /// Reads a key and the colon after it.
    #[inline(always)]
    unsafe fn key(&mut self) {
        // SAFETY: the next token begins here.
        unsafe {
            if *self.at != b'"' {
                self.unexpected("object key string");
            }
            self.string("object key string");
            if self.token() != b':' {
                self.unexpected("colon");
            }
            self.at = self.at.add(1);
        }
    }

    /// Returns how many bytes of a string there are up to its end or its next escape, about [`CHUNK`] at most.
    #[inline(always)]
    unsafe fn plain_len(&self, first: *const u8) -> usize {
        // SAFETY: no byte beyond the zero byte at the end is read.
        unsafe {
            let mut len = 0;
            while self.end.offset_from_unsigned(first.add(len)) >= 8 && len < CHUNK {
                let pause = words::pause(u64::from_le_bytes(first.add(len).cast::<[u8; 8]>().read()));
                if pause != 0 {
                    return len + words::first(pause);
                }
                len += 8;
            }
            while len < CHUNK && !matches!(*first.add(len), b'"' | b'\\' | 0) {
                len += 1;
            }
            len
        }
    }

    /// Reads a string and pushes it.
    #[inline(always)]
    unsafe fn string(&mut self, expected: &str) {
        // SAFETY: the text ends with a zero byte.
        unsafe {
            let first = self.at.add(1);
            let len = self.plain_len(first);
            if *first.add(len) == b'"' {
                self.at = first.add(len + 1);
                crate::push_bytes(self.lua, slice::from_raw_parts(first, len));
            } else {
                self.long_string(expected);
            }
        }
    }

    /// Reads a string that is long or has escapes.
    #[inline(never)]
    unsafe fn long_string(&mut self, expected: &str) {
        // SAFETY: the text ends with a zero byte.
        unsafe {
            let lua = self.lua;
            let mut first = self.at.add(1);
            let mut at = first;
            let mut pieces = false;
            self.text.truncate(0);
            loop {
                let plain = self.plain_len(at);
                self.rest(plain);
                at = at.add(plain);
                match *at {
                    b'"' => break,
                    b'\\' => {
                        let mut code = [0; 4];
                        let Ok((taken, len)) = escape(at, &mut code) else { self.unexpected(expected) };
                        self.text.extend(lua, slice::from_raw_parts(first, at.offset_from_unsigned(first)));
                        self.text.extend(lua, &code[..len]);
                        pieces = true;
                        at = at.add(taken);
                        first = at;
                    }
                    0 => self.unexpected(expected),
                    _ => {}
                }
            }
            let last = slice::from_raw_parts(first, at.offset_from_unsigned(first));
            self.pace.weigh(lua, self.text.len() + last.len());
            if pieces {
                self.text.extend(lua, last);
                crate::push_bytes(lua, self.text.as_slice());
            } else {
                crate::push_bytes(lua, last);
            }
            self.at = at.add(1);
        }
    }

    /// Reads a number that begins with a digit or a minus.
    #[inline(always)]
    unsafe fn number(&mut self) {
        // SAFETY: the text ends with a zero byte, where each of these loops ends at the latest.
        unsafe {
            let negative = *self.at == b'-';
            let first = self.at.add(usize::from(negative));
            let mut at = first;
            let mut whole: u64 = 0;
            while (*at).is_ascii_digit() && at.offset_from_unsigned(first) < DIGITS {
                whole = whole * 10 + u64::from(*at - b'0');
                at = at.add(1);
            }
            let begun = at.offset_from(first);
            let zero = *first == b'0' && begun > 1 && !self.options.decode_invalid;
            if begun == 0 || zero || (negative && whole == 0) {
                return self.long_number();
            }
            if *at == b'.' {
                return self.fraction(whole, at, negative);
            }
            if matches!(*at, b'e' | b'E' | b'x' | b'X' | b'0'..=b'9') {
                return self.long_number();
            }
            self.at = at;
            let signed = if negative { -(whole as i64) } else { whole as i64 };
            if whole < WHOLE {
                ffi::lua_pushinteger(self.lua, signed);
            } else {
                ffi::lua_pushnumber(self.lua, signed as f64);
            }
        }
    }

    /// Reads the rest of a number from its point on, which comes after `digits`. Digits and power of ten that are
    /// doubles without loss give the right number by one division.
    #[inline(always)]
    unsafe fn fraction(&mut self, mut digits: u64, point: *const u8, negative: bool) {
        const POWERS: [f64; 16] =
            [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
        const EXACT: u64 = 1 << 53;
        // SAFETY: as `number`.
        unsafe {
            let mut at = point.add(1);
            while (*at).is_ascii_digit() && digits < EXACT {
                digits = digits * 10 + u64::from(*at - b'0');
                at = at.add(1);
            }
            let scale = POWERS.get(at.offset_from_unsigned(point) - 1);
            let Some(scale) = scale.filter(|_| digits < EXACT && !matches!(*at, b'e' | b'E' | b'0'..=b'9')) else {
                return self.long_number();
            };
            self.at = at;
            let number = digits as f64 / scale;
            number::push(self.lua, if negative { -number } else { number });
        }
    }

    /// Reads any number that the options allow.
    #[inline(never)]
    unsafe fn long_number(&mut self) {
        // SAFETY: as `number`.
        unsafe {
            let Some((number, len)) = scan_number(self.at, self.options.decode_invalid) else {
                self.unexpected("value")
            };
            self.at = self.at.add(len);
            self.pace.bytes(len);
            number::push(self.lua, number);
        }
    }

    /// Reads a number that begins with something else, where the options allow it.
    #[cold]
    unsafe fn odd_number(&mut self) {
        // SAFETY: as `number`.
        unsafe {
            if !self.options.decode_invalid || !is_odd(self.at) {
                self.unexpected("value");
            }
            self.long_number();
        }
    }

    /// Takes a word, if it is here.
    unsafe fn takes(&mut self, word: &[u8]) -> bool {
        // SAFETY: the text ends with a zero byte, and no word has one.
        unsafe {
            let here = starts_with(self.at, word);
            if here {
                self.at = self.at.add(word.len());
            }
            here
        }
    }

    /// Raises the error for the token that begins here.
    #[cold]
    #[inline(never)]
    unsafe fn unexpected(&mut self, expected: &str) -> ! {
        // SAFETY: nothing with a destructor is alive.
        unsafe {
            let (found, at) = if *self.at == b'"' { self.string_name() } else { self.name() };
            let character = at.offset_from(self.start) + 1;
            fail(self.lua, format_args!("Expected {expected} but found {found} at character {character}"))
        }
    }

    /// Returns the name of the token that begins here in errors, and its start.
    unsafe fn name(&self) -> (&'static str, *const u8) {
        let odd = self.options.decode_invalid;
        // SAFETY: the text ends with a zero byte.
        let name = unsafe {
            match *self.at {
                b'{' => "T_OBJ_BEGIN",
                b'}' => "T_OBJ_END",
                b'[' => "T_ARR_BEGIN",
                b']' => "T_ARR_END",
                b',' => "T_COMMA",
                b':' => "T_COLON",
                0 => "T_END",
                b'-' | b'0'..=b'9' => self.number_name(),
                _ if odd && is_odd(self.at) => self.number_name(),
                _ if starts_with(self.at, b"true") || starts_with(self.at, b"false") => "T_BOOLEAN",
                _ if starts_with(self.at, b"null") => "T_NULL",
                _ => "invalid token",
            }
        };
        (name, self.at)
    }

    unsafe fn number_name(&self) -> &'static str {
        // SAFETY: the text ends with a zero byte.
        match unsafe { scan_number(self.at, self.options.decode_invalid) } {
            Some(_) => "T_NUMBER",
            None => "invalid number",
        }
    }

    /// As [`Decoder::name`] for a string; where it is wrong if it is.
    unsafe fn string_name(&mut self) -> (&'static str, *const u8) {
        // SAFETY: the text ends with a zero byte.
        unsafe {
            let mut at = self.at.add(1);
            loop {
                let plain = self.plain_len(at);
                self.rest(plain);
                at = at.add(plain);
                match *at {
                    b'"' => return ("T_STRING", self.at),
                    0 => return ("unexpected end of string", at),
                    b'\\' => match escape(at, &mut [0; 4]) {
                        Ok((taken, _)) => at = at.add(taken),
                        Err(wrong) => return (wrong, at),
                    },
                    _ => {}
                }
            }
        }
    }
}

/// Slots of Lua's stack for a container's pending elements, and some for temporary values.
const STACK: c_int = ARRAY_WAITING as c_int + 8;

/// Whole numbers from here on are floats, which print as Lua 5.1 prints them.
const WHOLE: u64 = 100_000_000_000_000;

/// Bytes that are read at once.
const CHUNK: usize = 4096;

/// Makes the array of the `count` elements on top of the stack, in the slot below them, with room for `room`.
#[inline(always)]
unsafe fn fill_array(lua: *mut lua_State, count: i64, room: i64) {
    // SAFETY: the elements and the slot are there.
    unsafe {
        let elements = count as c_int;
        ffi::lua_createtable(lua, room as c_int, 0);
        ffi::lua_replace(lua, -(elements + 2));
        for index in (1..=elements).rev() {
            ffi::lua_rawseti(lua, -(index + 1), index.into());
        }
    }
}

/// As [`fill_array`], of `count` keys with their values. Of a key that comes twice the later value stays.
#[inline(always)]
unsafe fn fill_object(lua: *mut lua_State, count: i64, room: i64) {
    // SAFETY: as `fill_array`.
    unsafe {
        let pairs = count as c_int;
        ffi::lua_createtable(lua, 0, room as c_int);
        ffi::lua_replace(lua, -(2 * pairs + 2));
        if pairs == 0 {
            return;
        }
        // The last pair goes from the top, all others are copied: they must come before it.
        let first = ffi::lua_gettop(lua) - 2 * pairs + 1;
        for pair in 0..pairs - 1 {
            ffi::lua_pushvalue(lua, first + 2 * pair);
            ffi::lua_pushvalue(lua, first + 2 * pair + 1);
            ffi::lua_rawset(lua, first - 1);
        }
        ffi::lua_rawset(lua, first - 1);
        ffi::lua_settop(lua, first - 1);
    }
}

/// Reads an escape: how long it is, and how many bytes of `code` it makes.
///
/// # Safety
/// `at` is a backslash in a text that ends with a zero byte.
unsafe fn escape(at: *const u8, code: &mut [u8; 4]) -> Result<(usize, usize), &'static str> {
    const UNICODE: &str = "invalid unicode escape code";
    // SAFETY: no byte beyond one that is no part of an escape is read, and a zero byte is none.
    unsafe {
        code[0] = match *at.add(1) {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 12,
            b'r' => b'\r',
            b'u' => {
                let high = hex(at.add(2)).ok_or(UNICODE)?;
                let (point, taken) = match high {
                    0xd800..0xdc00 => {
                        if !starts_with(at.add(6), b"\\u") {
                            return Err(UNICODE);
                        }
                        let low = hex(at.add(8)).filter(|low| (0xdc00..0xe000).contains(low)).ok_or(UNICODE)?;
                        (0x10000 + ((high & 0x3ff) << 10 | low & 0x3ff), 12)
                    }
                    point => (point, 6),
                };
                let point = char::from_u32(point).ok_or(UNICODE)?;
                return Ok((taken, point.encode_utf8(code).len()));
            }
            _ => return Err("invalid escape code"),
        };
        Ok((2, 1))
    }
}

/// Four hexadecimal digits.
unsafe fn hex(at: *const u8) -> Option<u32> {
    let mut code = 0;
    for index in 0..4 {
        // SAFETY: reading ends at the first byte that is no digit.
        code = code << 4 | char::from(unsafe { *at.add(index) }).to_digit(16)?;
    }
    Some(code)
}

/// Returns whether `word`, which has no zero byte, is here.
unsafe fn starts_with(at: *const u8, word: &[u8]) -> bool {
    // SAFETY: reading ends at the first byte that differs.
    word.iter().enumerate().all(|(index, byte)| unsafe { *at.add(index) } == *byte)
}

/// Returns whether a number that JSON does not know begins here: one with a plus, with zeros in front, in hexadecimal,
/// NaN or infinity.
unsafe fn is_odd(at: *const u8) -> bool {
    // SAFETY: reading ends at the first byte that decides.
    unsafe {
        if *at == b'+' {
            return true;
        }
        let at = at.add(usize::from(*at == b'-'));
        match *at {
            b'0' => matches!(*at.add(1), b'x' | b'X' | b'0'..=b'9'),
            b'i' | b'I' => word_at(at, b"inf"),
            b'n' | b'N' => word_at(at, b"nan"),
            _ => false,
        }
    }
}

/// As [`starts_with`], for a word in small letters and a text in any.
unsafe fn word_at(at: *const u8, word: &[u8]) -> bool {
    // SAFETY: as `starts_with`.
    word.iter().enumerate().all(|(index, byte)| unsafe { *at.add(index) }.eq_ignore_ascii_case(byte))
}

/// Parses a number with `strtod`'s grammar, without leading space. Also returns its length; `None` if there is none or
/// it is odd and that is not allowed.
unsafe fn scan_number(start: *const u8, odd: bool) -> Option<(f64, usize)> {
    // SAFETY: the text ends with a zero byte, where each of these loops ends at the latest.
    unsafe {
        if is_odd(start) {
            if !odd {
                return None;
            }
            let mut end = ptr::null_mut();
            let number = libc::strtod(start.cast(), &mut end);
            let len = end.cast_const().cast::<u8>().offset_from_unsigned(start);
            return (len > 0).then_some((number, len));
        }
        let digits = |mut at: *const u8| {
            while (*at).is_ascii_digit() {
                at = at.add(1);
            }
            at
        };
        let first = start.add(usize::from(*start == b'-'));
        let mut at = digits(first);
        let mut found = at.offset_from(first);
        if *at == b'.' {
            let fraction = at.add(1);
            at = digits(fraction);
            found += at.offset_from(fraction);
        }
        if found == 0 {
            return None;
        }
        if matches!(*at, b'e' | b'E') {
            let exponent = at.add(1).add(usize::from(matches!(*at.add(1), b'+' | b'-')));
            let end = digits(exponent);
            if end != exponent {
                at = end;
            }
        }
        let len = at.offset_from_unsigned(start);
        let text = str::from_utf8(slice::from_raw_parts(start, len)).ok()?;
        Some((text.parse().ok()?, len))
    }
}
