//! Numbers in decimal as C's `%.{precision}g` writes them, without C and without owning memory.
//!
//! Cost: a division for numbers of few decimals, the most common ones; some hundred nanoseconds for others.

use std::fmt::{self, Write as _};
use std::mem::MaybeUninit;

/// Digits that Lua 5.1 writes.
pub(super) const PRECISION: usize = 14;

/// The longest text of a number with up to 17 digits.
pub(super) const TEXT_MAX: usize = 32;

/// Returns the text of a number as `%.{precision}g` of C writes it.
pub(super) fn number_text(number: f64, precision: usize) -> Text<TEXT_MAX> {
    debug_assert!((1..=17).contains(&precision));
    let mut text = Text::new();
    if precision == PRECISION && short_text(number, &mut text) {
        return text;
    }
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

/// Writes a number with [`PRECISION`] digits if it has at most six of them after the point.
///
/// Scaling has a relative error of at most 2⁻⁵³. So a scaled number within 2⁻⁵² of an integer is in truth within
/// 4·10⁻¹⁶ of it, and every number within 5·10⁻¹⁵ of one with fourteen digits is written as that one (all distances are
/// relative).
fn short_text(number: f64, text: &mut Text<TEXT_MAX>) -> bool {
    let size = number.abs();
    if !(1e-4..1e8).contains(&size) {
        return false;
    }
    let mut scale = 1.0;
    for places in 0..=6 {
        let scaled = size * scale;
        let whole = scaled as u64 + u64::from(scaled.fract() >= 0.5);
        if (scaled - whole as f64).abs() <= scaled * f64::EPSILON {
            if number < 0.0 {
                text.add(b"-");
            }
            let power = scale as u64;
            let mut digits = itoa::Buffer::new();
            text.add(digits.format(whole / power).as_bytes());
            if places > 0 {
                // A one in front keeps the zeros.
                text.add(b".");
                text.add(&digits.format(power + whole % power).as_bytes()[1..]);
            }
            return true;
        }
        scale *= 10.0;
    }
    false
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

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

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
}
