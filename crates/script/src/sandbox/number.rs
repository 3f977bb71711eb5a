//! Numbers of Lua 5.1, which has only doubles: conversion to text, from text, and to C integers.
//!
//! Lua 5.4 distinguishes integers from floats, and a script can observe this in the text made by `..`: `10 / 2 .. ""`
//! is `5.0`. So functions of the sandbox return an integer wherever Lua 5.1 would print one.

use std::ffi::{c_char, c_int};

use super::decimal::{PRECISION, number_text};
use crate::ffi::{self, lua_State};

/// Below this, Lua 5.1 prints a whole number in full (`%.14g`); from here on with an exponent.
pub(crate) const EXACT: f64 = 1e14;

/// Room for the text of any number.
pub(crate) const TEXT_MAX: usize = 40;

/// Returns a conversion of C to an integer of 64 bits, as the processors that Redis runs on do it: fractions are cut,
/// and what does not fit (or is no number) becomes the least integer.
pub(crate) fn to_i64(number: f64) -> i64 {
    if (-9223372036854775808.0..9223372036854775808.0).contains(&number) { number as i64 } else { i64::MIN }
}

/// As [`to_i64`], to an unsigned integer: what compilers make of it for negative and large numbers.
pub(crate) fn to_u64(number: f64) -> u64 {
    const HALF: f64 = 9223372036854775808.0;
    if number >= HALF { to_i64(number - HALF) as u64 ^ (1 << 63) } else { to_i64(number) as u64 }
}

/// As [`to_i64`], to an `int`.
pub(crate) fn to_i32(number: f64) -> i32 {
    if number > -2147483649.0 && number < 2147483648.0 { number as i32 } else { i32::MIN }
}

/// Pushes a number: an integer if Lua 5.1 prints it as one. Raises nothing.
///
/// # Safety
/// A slot of the stack is free.
#[inline]
pub(crate) unsafe fn push(lua: *mut lua_State, number: f64) {
    // SAFETY: as promised by the caller.
    unsafe {
        let whole = number as i64;
        // Minus zero stays minus zero.
        if whole as f64 == number && number.abs() < EXACT && (whole != 0 || number.is_sign_positive()) {
            ffi::lua_pushinteger(lua, whole);
        } else {
            ffi::lua_pushnumber(lua, number);
        }
    }
}

/// Writes a number as `tostring` of Lua 5.1 does; returns the length.
pub(crate) fn write(number: f64, text: &mut [u8; TEXT_MAX]) -> usize {
    let whole = number as i64;
    if whole as f64 == number && number.abs() < EXACT && (whole != 0 || number.is_sign_positive()) {
        return write_integer(whole, text);
    }
    let decimal = number_text(number, PRECISION);
    let decimal = decimal.as_bytes();
    text[..decimal.len()].copy_from_slice(decimal);
    decimal.len()
}

/// Writes an integer in decimal; returns the length.
pub(crate) fn write_integer(number: i64, text: &mut [u8; TEXT_MAX]) -> usize {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let sign = usize::from(number < 0);
    text[0] = b'-';
    let len = digits.len() - at;
    text[sign..sign + len].copy_from_slice(&digits[at..]);
    sign + len
}

/// Returns the number that the value at `index`, of type number, is for Lua 5.1.
///
/// # Safety
/// The index is valid.
#[inline]
pub(crate) unsafe fn of(lua: *mut lua_State, index: c_int) -> f64 {
    // SAFETY: as promised by the caller; nothing is converted.
    unsafe { ffi::lua_tonumberx(lua, index, std::ptr::null_mut()) }
}

/// Returns the number that a string of Lua's is for Lua 5.1: what C's `strtod` takes, hexadecimal, `inf` and `nan`
/// included, between blanks. A zero byte ends it.
///
/// # Safety
/// `text` is a string of Lua's: a zero byte follows its last.
pub(crate) unsafe fn parse(text: &[u8]) -> Option<f64> {
    if let Some(whole) = parse_digits(text) {
        return Some(whole);
    }
    // SAFETY: C's functions stop at the zero byte at the latest, and so does the loop.
    unsafe {
        let start = text.as_ptr() as *const c_char;
        let mut end = std::ptr::null_mut();
        let number = libc::strtod(start, &mut end);
        if std::ptr::eq(end, start) {
            return None;
        }
        while is_blank(*end as u8) {
            end = end.add(1);
        }
        (*end == 0).then_some(number)
    }
}

/// Returns a few decimal digits, which most numbers are.
fn parse_digits(text: &[u8]) -> Option<f64> {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    let mut number = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -(number as f64) } else { number as f64 })
}

/// Returns whether a byte is white space for C.
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_text_as_in_5_1() {
        for (number, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (-17.0, "-17"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.33333333333333"),
            (99999999999999.0, "99999999999999"),
            (1e14, "1e+14"),
            (123456789012345.0, "1.2345678901234e+14"),
            (9007199254740992.0, "9.007199254741e+15"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (1e300, "1e+300"),
        ] {
            let mut text = [0; TEXT_MAX];
            let len = write(number, &mut text);
            assert_eq!(std::str::from_utf8(&text[..len]), Ok(expected));
        }
        let mut text = [0; TEXT_MAX];
        let len = write_integer(i64::MIN, &mut text);
        assert_eq!(&text[..len], b"-9223372036854775808");
    }

    #[test]
    fn text_becomes_a_number_as_in_5_1() {
        for (text, expected) in [
            (c"12", Some(12.0)),
            (c"-12", Some(-12.0)),
            (c" 12\t", Some(12.0)),
            (c"0x10", Some(16.0)),
            (c"1e2", Some(100.0)),
            (c".5", Some(0.5)),
            (c"inf", Some(f64::INFINITY)),
            (c"12345678901234567890", Some(12345678901234567890.0)),
            (c"", None),
            (c"-", None),
            (c"12a", None),
            (c"1 2", None),
        ] {
            // SAFETY: a C string ends in a zero byte.
            assert_eq!(unsafe { parse(text.to_bytes()) }, expected, "{text:?}");
        }
        // SAFETY: as above.
        assert!(unsafe { parse(c"-0".to_bytes()) }.is_some_and(|zero| zero.is_sign_negative() && zero == 0.0));
    }

    #[test]
    fn conversions_are_those_of_the_processor() {
        assert_eq!((to_i64(3.9), to_i64(-3.9), to_i64(1e300), to_i64(f64::NAN)), (3, -3, i64::MIN, i64::MIN));
        assert_eq!((to_i32(-2147483648.9), to_i32(2147483648.0)), (i32::MIN, i32::MIN));
        assert_eq!((to_u64(-3.7), to_u64(9223372036854775808.0)), (18446744073709551613, 1 << 63));
        assert_eq!((to_u64(18446744073709551616.0), to_u64(f64::NAN)), (0, 1 << 63));
    }
}
