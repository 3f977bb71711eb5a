//! Numbers of variable length: one byte below 240; otherwise four bits of the number in the first byte, and seven in each
//! following one, whose highest bit is set if another follows. Every step subtracts what the shorter forms can express.

use super::Malformed;

/// The first value that needs a second byte.
const SECOND: u64 = 240;

/// The maximum length of a number.
pub const LONGEST: usize = 10;

/// Appends a number.
pub fn write(mut number: u64, out: &mut Vec<u8>) {
    if number < SECOND {
        out.push(number as u8);
        return;
    }
    out.push(number as u8 | 0xF0);
    number = (number - SECOND) >> 4;
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number = (number - 0x80) >> 7;
    }
    out.push(number as u8);
}

/// Returns the number at the start of `bytes`, and skips it. Bits beyond the 64th are lost, as in HAProxy.
///
/// # Errors
/// The bytes end within the number, or it is longer than any number.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let (first, rest) = bytes.split_first().ok_or(Malformed)?;
    let mut number = u64::from(*first);
    *bytes = rest;
    if number < SECOND {
        return Ok(number);
    }
    let mut shift = 4;
    for (at, byte) in bytes.iter().enumerate().take(LONGEST - 1) {
        number = number.wrapping_add(u64::from(*byte) << shift);
        shift += 7;
        if *byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Ok(number);
        }
    }
    Err(Malformed)
}
