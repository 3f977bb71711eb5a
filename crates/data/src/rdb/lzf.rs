//! LZF, the compression of strings in Redis's serialised values.
//!
//! ```text
//! 000nnnnn  n + 1 bytes                literals, 1 to 32
//! nnnooooo  oooooooo                   n + 2 bytes from o + 1 bytes back, n from 1 to 6
//! 111ooooo  nnnnnnnn  oooooooo         n + 9 bytes from o + 1 bytes back
//! ```
//!
//! The compressor is greedy and remembers the last place of each hash of three bytes, in a table of at most 64 KiB.
//! Where it finds no match it takes longer steps, so that noise is not searched byte by byte; it gives up as soon as
//! its output exceeds the caller's limit, or if the start of the input has hardly become shorter. The decompressor
//! allocates at most 88 times the length of its input, the maximum expansion, and never reads or writes out of bounds.

use std::ops::RangeInclusive;

const LITERALS_MAX: usize = 32;
const BACK_MAX: usize = 1 << 13;
const RUN_MIN: usize = 3;
const RUN_MAX: usize = 9 + 255;
/// The maximum number of bytes that a byte of input can represent: three bytes are one run.
const GROWTH_MAX: usize = RUN_MAX / 3;
const TABLE_BITS_MAX: u32 = 14;
/// After this many bytes without a run (a power of two), every other place is tried; after twice as many, every third,
/// up to [`STEP_MAX`].
const PATIENCE_BITS: u32 = 7;
const STEP_MAX: usize = 16;
/// If the limit is below the input's length, and the first quarter of it, but as many bytes as these at least and at most,
/// becomes shorter by less than a 64th, the rest is believed to be like it: compressed data, keys, short random digits.
const TRIAL: RangeInclusive<usize> = 512..=BACK_MAX;
const TRIAL_GAIN: usize = 64;
/// Outputs of inputs up to this length do not grow in steps.
const SMALL_MAX: usize = 64 << 10;

/// Compresses `input`, which is shorter than 4 GiB; returns `None` if the result would exceed `limit` bytes, or seems to.
pub(super) fn compress(input: &[u8], limit: usize) -> Option<Vec<u8>> {
    // As many slots as the input has bytes, so that a short string does not need a long one's table.
    let bits = (usize::BITS - input.len().leading_zeros()).clamp(4, TABLE_BITS_MAX);
    let slot = |three: u32| (three.wrapping_mul(0x9e37_79b1) >> (u32::BITS - bits)) as usize;
    // One more than the last position of each hash; 0 for none.
    let mut places = vec![0u32; 1 << bits];
    let mut out = Vec::with_capacity(limit.min(if input.len() <= SMALL_MAX { input.len() } else { input.len() / 2 }));
    let (mut at, mut literals) = (0, 0);
    let mut trial = match limit < input.len() {
        true => (input.len() / 4).clamp(*TRIAL.start(), *TRIAL.end()),
        false => usize::MAX,
    };
    while let Some(three) = three_at(input, at) {
        if at >= trial {
            if out.len() + (at - literals) >= at - at / TRIAL_GAIN {
                return None;
            }
            trial = usize::MAX;
        }
        let seen = std::mem::replace(&mut places[slot(three)], at as u32 + 1) as usize;
        let from = seen.saturating_sub(1);
        let back = at - from;
        // One branch: each alone could hardly be predicted.
        let is_run = (seen != 0) & (back <= BACK_MAX) & (three_at(input, from) == Some(three));
        if !is_run {
            at += 1 + ((at - literals) >> PATIENCE_BITS).min(STEP_MAX - 1);
            if out.len() + (at.min(input.len()) - literals) > limit {
                return None;
            }
            continue;
        }
        let end = input.len().min(at + RUN_MAX);
        let more = common(&input[at + RUN_MIN..end], &input[from + RUN_MIN..]);
        put_literals(&input[literals..at], &mut out);
        put_run(RUN_MIN + more, back, &mut out);
        literals = at + RUN_MIN + more;
        for (three, next) in input[at + 1..input.len().min(literals + 2)].windows(3).zip(at as u32 + 2..) {
            places[slot(u32::from_le_bytes([three[0], three[1], three[2], 0]))] = next;
        }
        at = literals;
    }
    put_literals(&input[literals..], &mut out);
    (out.len() <= limit).then_some(out)
}

/// Returns the length of the common prefix.
fn common(new: &[u8], old: &[u8]) -> usize {
    let eights = new.as_chunks::<8>().0.iter().zip(old.as_chunks::<8>().0);
    for (index, (new, old)) in eights.enumerate() {
        let differ = u64::from_le_bytes(*new) ^ u64::from_le_bytes(*old);
        if differ != 0 {
            return index * 8 + differ.trailing_zeros() as usize / 8;
        }
    }
    let whole = new.len().min(old.len()) / 8 * 8;
    whole + new[whole..].iter().zip(&old[whole..]).take_while(|(new, old)| new == old).count()
}

/// Returns three bytes as a number.
#[inline]
fn three_at(input: &[u8], at: usize) -> Option<u32> {
    let rest = input.get(at..)?;
    if let Some(four) = rest.first_chunk() {
        return Some(u32::from_le_bytes(*four) & 0x00ff_ffff);
    }
    let [a, b, c] = *rest.first_chunk()?;
    Some(u32::from_le_bytes([a, b, c, 0]))
}

fn put_literals(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(LITERALS_MAX) {
        out.push(chunk.len() as u8 - 1);
        out.extend_from_slice(chunk);
    }
}

fn put_run(len: usize, back: usize, out: &mut Vec<u8>) {
    let [high, low] = (back as u16 - 1).to_be_bytes();
    match len {
        ..9 => out.extend([(len as u8 - 2) << 5 | high, low]),
        _ => out.extend([7 << 5 | high, (len - 9) as u8, low]),
    }
}

/// Returns the decompressed `input`, if that has `len` bytes.
pub(super) fn decompress(mut input: &[u8], len: usize) -> Option<Vec<u8>> {
    if input.is_empty() || len > input.len().saturating_mul(GROWTH_MAX) {
        return None;
    }
    let mut out = Vec::with_capacity(len);
    while let [control, rest @ ..] = input {
        let control = usize::from(*control);
        let room = len - out.len();
        if control < LITERALS_MAX {
            let (literals, rest) = rest.split_at_checked(control + 1)?;
            out.extend_from_slice(literals.get(..literals.len().min(room)).filter(|fits| *fits == literals)?);
            input = rest;
            continue;
        }
        let (run, low, rest) = match (control >> 5, rest) {
            (7, [more, low, rest @ ..]) => (usize::from(*more) + 9, low, rest),
            (1..7, [low, rest @ ..]) => ((control >> 5) + 2, low, rest),
            _ => return None,
        };
        let back = ((control & 31) << 8 | usize::from(*low)) + 1;
        let start = out.len().checked_sub(back)?;
        if run > room {
            return None;
        }
        // A run may overlap its own output: then it repeats the last `back` bytes.
        let mut left = run;
        while left > 0 {
            let part = left.min(out.len() - start);
            out.extend_from_within(start..start + part);
            left -= part;
        }
        input = rest;
    }
    (out.len() == len).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[u8], at_most: usize) {
        let packed = compress(input, usize::MAX / 2).expect("no limit");
        assert!(packed.len() <= at_most, "{} bytes to {}", input.len(), packed.len());
        if !input.is_empty() {
            assert_eq!(decompress(&packed, input.len()).as_deref(), Some(input));
        }
        for wrong in [input.len().wrapping_sub(1), input.len() + 1, usize::MAX] {
            assert_eq!(decompress(&packed, wrong), None);
        }
        assert_eq!(compress(input, packed.len()).as_deref(), Some(&packed[..]));
        if let Some(less) = packed.len().checked_sub(1) {
            assert_eq!(compress(input, less), None);
        }
    }

    #[test]
    fn what_is_compressed_comes_back() {
        check(b"", 0);
        check(b"a", 2);
        check(b"abc", 4);
        check(&[b'a'; 21], 5);
        check(&[b'a'; 10_000], 130);
        check(&b"abcdefgh".repeat(1_000), 120);
        let noise: Vec<u8> = (0..70_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        check(&noise, noise.len() + noise.len() / 32 + 1);
        // A repetition at the maximum distance, and just beyond it.
        check(&[&noise[..8192], &noise[..8192]].concat(), 9_000);
        check(&[&noise[..8193], &noise[..100]].concat(), 8_700);
        for run in 2..300 {
            check(&[&noise[..300], &noise[..run], b"!"].concat(), 330 + run.min(8));
        }
    }

    /// The compressor gives up an input whose start does not become shorter, and compresses texts.
    #[test]
    fn noise_is_given_up_early() {
        let mut state = 1_u64;
        let mut digit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"0123456789abcdef"[(state >> 60) as usize]
        };
        let mut noise = |count| std::iter::repeat_with(&mut digit).take(count).collect::<Vec<u8>>();
        let zeros = [b'0'; 2_000];
        let late = [&noise(700), &zeros[..1_000]].concat();
        assert!(compress(&late, usize::MAX / 2).is_some_and(|packed| packed.len() < late.len() / 2));
        assert_eq!(compress(&late, late.len() - 4), None);
        let early = [&noise(400), &zeros[..]].concat();
        assert!(compress(&early, early.len() - 4).is_some_and(|packed| packed.len() < early.len() / 4));
        // Many digits have all groups of three, and again.
        let digits = noise(100_000);
        assert!(compress(&digits, digits.len() - 4).is_some_and(|packed| packed.len() < digits.len() * 9 / 10));
        let text: String =
            (0..200).map(|n| format!("The user {} has {} points; ", n * 7919 % 1000, n * 104_729 % 997)).collect();
        assert!(compress(text.as_bytes(), text.len() - 4).is_some_and(|packed| packed.len() < text.len() * 2 / 3));
    }

    #[test]
    fn wrong_input_is_refused() {
        for (input, len) in [
            (&b""[..], 0),
            (b"\x01a", 2),
            (b"\x00a\x20", 3),
            (b"\x00a\xe0", 10),
            (b"\x00a\xe0\x00", 10),
            (b"\x00a\x20\x01", 4),
            (b"\x20\x00", 3),
            (b"\x02abc", 2),
            (b"\x00a\x20\x00", 3),
            (b"\x00a\xe0\xff\x00", 1 << 30),
        ] {
            assert_eq!(decompress(input, len), None, "{input:?}");
        }
        assert_eq!(decompress(b"\x00a\x20\x00", 4).as_deref(), Some(&b"aaaa"[..]));
    }
}
