//! Scanning of text eight bytes at a time: finds the bytes that end a run to be copied unchanged.
//!
//! The highest bit of a byte marks it. Only the first mark is reliable, later ones may be wrong.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Bytes less than `bound`, which is at most 128.
#[inline(always)]
fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(bound)) & !word
}

#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (ONES * u64::from(byte)), 1)
}

/// Returns the place of the first sign.
#[inline(always)]
pub(super) fn first(signs: u64) -> usize {
    signs.trailing_zeros() as usize / 8
}

/// Bytes that are written as escapes.
#[inline(always)]
pub(super) fn special(word: u64) -> u64 {
    let quoted = equal(word, b'"') | equal(word, b'\\') | equal(word, b'/') | equal(word, 0x7f);
    (below(word, b' ') | quoted) & HIGHS
}

/// Bytes at which the reading of a string pauses: its end, an escape, the end of the text.
#[inline(always)]
pub(super) fn pause(word: u64) -> u64 {
    (equal(word, b'"') | equal(word, b'\\') | below(word, 1)) & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sign_is_right() {
        for byte in 0..=255 {
            for neighbour in 0..=255 {
                for at in 0..8 {
                    // Before it stand plain bytes, behind it any.
                    let mut bytes = [b'a'; 8];
                    bytes[at] = byte;
                    bytes[at + 1..].fill(neighbour);
                    let find = |signs: u64| (signs != 0).then(|| first(signs));
                    let word = u64::from_le_bytes(bytes);
                    let is_special = |byte: &u8| *byte < b' ' || b"\"\\/\x7f".contains(byte);
                    assert_eq!(find(special(word)), bytes.iter().position(is_special), "{bytes:?}");
                    let pauses = |byte: &u8| b"\"\\\0".contains(byte);
                    assert_eq!(find(pause(word)), bytes.iter().position(pauses), "{bytes:?}");
                }
            }
        }
    }
}
