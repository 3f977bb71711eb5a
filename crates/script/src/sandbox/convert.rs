//! Arguments, numbers and errors as Lua 5.1 has them.
//!
//! Lua 5.1 has one type of number, a double, and writes it with `%.14g`. Lua 5.4's integers are right where both print
//! alike, which is why whole numbers of up to fourteen digits become integers ([`push_number`]) and all others stay
//! floats: so `..` and `tostring` give what Redis gives.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Write as _};
use std::mem::MaybeUninit;

use crate::ffi::{self, lua_CFunction, lua_State};

/// Digits that `tostring` and `..` keep.
pub(super) const PRECISION: usize = 14;

/// Whole numbers below this are written in full with [`PRECISION`] digits.
const WHOLE: f64 = 1e14;

/// The longest text of a number with up to 17 digits.
pub(super) const TEXT_MAX: usize = 32;

/// The most slots of the stack that one function of Lua 5.1 may use: what needs more is an error there.
pub(super) const SLOTS_MAX: usize = 8000;

/// Makes a library's table and leaves it on the stack. May raise (memory).
///
/// # Safety
/// Four slots of the stack are free; nothing with a destructor is alive in the caller.
pub(super) unsafe fn table(lua: *mut lua_State, functions: &[(&CStr, lua_CFunction)]) {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::lua_createtable(lua, 0, functions.len() as c_int);
        for (name, function) in functions {
            ffi::lua_pushcfunction(lua, *function);
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
    }
}

/// Pushes a number in the form that prints as Lua 5.1 prints it.
///
/// # Safety
/// A slot of the stack is free.
#[inline(always)]
pub(super) unsafe fn push_number(lua: *mut lua_State, number: f64) {
    let whole = number as i64;
    // SAFETY: as promised by the caller.
    unsafe {
        if whole as f64 == number && number.abs() < WHOLE && (whole != 0 || number.is_sign_positive()) {
            ffi::lua_pushinteger(lua, whole);
        } else {
            ffi::lua_pushnumber(lua, number);
        }
    }
}

/// A double as a signed integer the way the machine converts it: all that does not fit is the smallest integer.
#[inline(always)]
pub(super) fn truncate(number: f64) -> i64 {
    let whole = number as i64;
    // Rust saturates; the machine's instruction does not.
    if whole == i64::MAX || number.is_nan() { i64::MIN } else { whole }
}

/// A double as an unsigned integer, as compilers of this architecture convert it.
pub(super) fn wrap(number: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if number >= HALF { truncate(number - HALF) as u64 ^ 1 << 63 } else { truncate(number) as u64 }
}

/// A text of fixed capacity, to be written without owning memory.
pub(super) struct Text<const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(super) fn new() -> Text<N> {
        Text { bytes: [MaybeUninit::uninit(); N], len: 0 }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were written.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }

    /// Adds bytes; what does not fit is cut off.
    fn add(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes[self.len..].iter_mut().zip(bytes) {
            to.write(*from);
            self.len += 1;
        }
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

/// The text of a number as `%.{precision}g` of C writes it.
pub(super) fn number_text(number: f64, precision: usize) -> Text<TEXT_MAX> {
    debug_assert!((1..=17).contains(&precision));
    let mut text = Text::new();
    if number.is_sign_negative() {
        text.add(b"-");
    }
    if !number.is_finite() {
        text.add(if number.is_nan() { b"nan" } else { b"inf" });
        return text;
    }
    // `d.ddde-5`, rounded to even as C rounds.
    let mut scientific = Text::<TEXT_MAX>::new();
    let _ = write!(scientific, "{:.*e}", precision - 1, number.abs());
    let scientific = scientific.as_bytes();
    let at = scientific.iter().position(|&byte| byte == b'e').unwrap_or(scientific.len());
    let exponent: i32 = std::str::from_utf8(&scientific[at + 1..]).ok().and_then(|e| e.parse().ok()).unwrap_or(0);
    let (first, rest) = (&scientific[..1], scientific.get(2..at).unwrap_or_default());
    let kept = rest.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    let rest = &rest[..kept];
    if exponent < -4 || exponent >= precision as i32 {
        text.add(first);
        if !rest.is_empty() {
            text.add(b".");
            text.add(rest);
        }
        let _ = write!(text, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    } else if exponent < 0 {
        text.add(&b"0.000"[..1 + (-exponent) as usize]);
        text.add(first);
        text.add(rest);
    } else {
        let whole = exponent as usize;
        text.add(first);
        text.add(&rest[..whole.min(rest.len())]);
        text.add(&[b'0'; 17][..whole.saturating_sub(rest.len())]);
        if let Some(fraction) = rest.get(whole..).filter(|fraction| !fraction.is_empty()) {
            text.add(b".");
            text.add(fraction);
        }
    }
    text
}

/// The number that a text is, as Lua 5.1 converts it: all that C's `strtod` takes, with space around it, up to the
/// first zero byte.
///
/// # Safety
/// `text` ends with a zero byte.
pub(super) unsafe fn text_number(text: *const c_char) -> Option<f64> {
    // SAFETY: as promised by the caller.
    unsafe {
        let mut end = std::ptr::null_mut();
        let number = libc::strtod(text, &mut end);
        if end.cast_const() == text {
            return None;
        }
        while matches!(*end as u8, b' ' | b'\t'..=b'\r') {
            end = end.add(1);
        }
        (*end == 0).then_some(number)
    }
}

/// The number at `index`, or the one that a text there is. Raises nothing.
///
/// # Safety
/// `index` is an index of the stack, acceptable to Lua.
#[inline(always)]
pub(super) unsafe fn to_number(lua: *mut lua_State, index: c_int) -> Option<f64> {
    // SAFETY: a string on the stack ends with a zero byte.
    unsafe {
        match ffi::lua_type(lua, index) {
            ffi::LUA_TNUMBER => Some(ffi::lua_tonumber(lua, index)),
            ffi::LUA_TSTRING => text_number(ffi::lua_tostring(lua, index)),
            _ => None,
        }
    }
}

/// Argument `index` as a number; raises if it is none.
///
/// # Safety
/// Nothing with a destructor is alive in the caller.
#[inline(always)]
pub(super) unsafe fn number(lua: *mut lua_State, index: c_int) -> f64 {
    // SAFETY: as promised by the caller.
    unsafe {
        match to_number(lua, index) {
            Some(number) => number,
            None => type_error(lua, index, c"number"),
        }
    }
}

/// Argument `index` as an integer, cut off.
///
/// # Safety
/// As [`number`].
pub(super) unsafe fn integer(lua: *mut lua_State, index: c_int) -> i64 {
    // SAFETY: as promised by the caller.
    truncate(unsafe { number(lua, index) })
}

/// As [`integer`], `default` where the argument is absent or nil.
///
/// # Safety
/// As [`number`].
pub(super) unsafe fn integer_or(lua: *mut lua_State, index: c_int, default: i64) -> i64 {
    // SAFETY: as promised by the caller.
    unsafe { if ffi::lua_type(lua, index) <= ffi::LUA_TNIL { default } else { integer(lua, index) } }
}

/// Argument `index` as bytes, a number turned into its text in place; raises if it is neither. A zero byte follows.
///
/// # Safety
/// As [`number`]; the bytes stay valid while the argument stays on the stack.
#[inline(always)]
pub(super) unsafe fn bytes<'a>(lua: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: as promised by the caller.
    unsafe {
        if ffi::lua_type(lua, index) != ffi::LUA_TSTRING {
            number_to_text(lua, index);
        }
        crate::to_bytes(lua, index).unwrap_or_default()
    }
}

#[cold]
unsafe fn number_to_text(lua: *mut lua_State, index: c_int) {
    // SAFETY: as promised by the caller of `bytes`.
    unsafe {
        if ffi::lua_type(lua, index) != ffi::LUA_TNUMBER {
            type_error(lua, index, c"string");
        }
        let text = number_text(ffi::lua_tonumber(lua, index), PRECISION);
        crate::push_bytes(lua, text.as_bytes());
        ffi::lua_replace(lua, index);
    }
}

/// Raises an error with the position of the caller.
///
/// # Safety
/// As [`number`].
#[cold]
pub(super) unsafe fn fail(lua: *mut lua_State, message: fmt::Arguments<'_>) -> ! {
    // SAFETY: the text owns nothing.
    unsafe {
        let mut text = Text::<256>::new();
        let _ = text.write_fmt(message);
        ffi::luaL_where(lua, 1);
        crate::push_bytes(lua, text.as_bytes());
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua)
    }
}

/// Raises the error of a wrong argument. `message` is text of Lua's or of this program's, up to its zero byte.
///
/// # Safety
/// As [`number`]; `message` stays alive, as a string on the stack does.
#[cold]
pub(super) unsafe fn argument_error(lua: *mut lua_State, index: c_int, message: *const c_char) -> ! {
    // SAFETY: the record is filled by Lua; formats get what they ask for.
    unsafe {
        let mut record: ffi::lua_Debug = std::mem::zeroed();
        ffi::lua_getstack(lua, 0, &mut record);
        ffi::lua_getinfo(lua, c"n".as_ptr(), &mut record);
        let mut index = index;
        let name = if record.name.is_null() { c"?".as_ptr() } else { record.name };
        let method = !record.namewhat.is_null() && CStr::from_ptr(record.namewhat) == c"method";
        index -= c_int::from(method);
        ffi::luaL_where(lua, 1);
        if method && index == 0 {
            ffi::lua_pushfstring(lua, c"calling '%s' on bad self (%s)".as_ptr(), name, message);
        } else {
            ffi::lua_pushfstring(lua, c"bad argument #%d to '%s' (%s)".as_ptr(), index, name, message);
        }
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua)
    }
}

/// Raises the error of an argument of the wrong type.
///
/// # Safety
/// As [`number`].
#[cold]
pub(super) unsafe fn type_error(lua: *mut lua_State, index: c_int, expected: &CStr) -> ! {
    // SAFETY: names of types are constants; the message stays on the stack.
    unsafe {
        let got = match ffi::lua_type(lua, index) {
            ffi::LUA_TNONE => c"no value".as_ptr(),
            kind => ffi::lua_typename(lua, kind),
        };
        let message = ffi::lua_pushfstring(lua, c"%s expected, got %s".as_ptr(), expected.as_ptr(), got);
        argument_error(lua, index, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printf(number: f64, precision: c_int) -> Vec<u8> {
        let mut buffer = [0u8; 64];
        // SAFETY: the format takes an int and a double, and the buffer is as long as said.
        let len =
            unsafe { libc::snprintf(buffer.as_mut_ptr().cast(), buffer.len(), c"%.*g".as_ptr(), precision, number) };
        buffer[..len as usize].to_vec()
    }

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state ^ state >> 29
        };
        let special =
            [0.0, -0.0, 0.5, 2.5, 0.25, 1e14, 1e15, 99999999999999.5, 999999999999995.0, 9.9999999999999e-5, 1e-5];
        let limits = [f64::MAX, f64::MIN_POSITIVE, 5e-324, f64::INFINITY, f64::NEG_INFINITY, 1e21, 1e22, 123456789.125];
        let ties = (0..2000).map(|n| (f64::from(n) * 2.0 + 1.0) / 64.0 + 1e9);
        let random: Vec<f64> = (0..20_000).map(|_| f64::from_bits(next())).filter(|n| !n.is_nan()).collect();
        let short: Vec<f64> = (0..20_000)
            .map(|_| (next() % 1_000_000) as f64 / [1.0, 10.0, 1e3, 1e7, 1e-9][next() as usize % 5])
            .collect();
        for number in special.into_iter().chain(limits).chain(ties).chain(random).chain(short) {
            for precision in [1, 2, 3, 6, 13, 14, 17] {
                let text = number_text(number, precision);
                let expected = printf(number, precision as c_int);
                assert_eq!(text.as_bytes(), expected, "{number:e} with {precision} digits");
            }
        }
        assert_eq!(number_text(f64::NAN, 14).as_bytes(), b"nan");
        assert_eq!(number_text(-f64::NAN, 14).as_bytes(), b"-nan");
    }

    #[test]
    fn doubles_become_integers_as_the_machine_does_it() {
        for (number, signed, unsigned) in [
            (1.9, 1, 1),
            (-1.9, -1, u64::MAX),
            (1e300, i64::MIN, 0),
            (-1e300, i64::MIN, 1 << 63),
            (f64::NAN, i64::MIN, 1 << 63),
            (9_223_372_036_854_775_808.0, i64::MIN, 1 << 63),
            (1e19, i64::MIN, 10_000_000_000_000_000_000),
            (18_446_744_073_709_551_616.0, i64::MIN, 0),
        ] {
            assert_eq!((truncate(number), wrap(number)), (signed, unsigned), "{number}");
        }
    }
}
