//! The Huffman code of HPACK (RFC 7541 5.2 and appendix B).
//!
//! The code is canonical: codes of equal length are consecutive, in the order of their symbols, so the lengths alone
//! define it and every table below is computed from them. Codes of at most eight bits, which are those of nearly all
//! symbols in header fields, are found by one look-up of the next byte; longer ones by a comparison with the last code
//! of each length.
//!
//! Cost: 768 bytes of tables; a symbol is a look-up and a shift.

/// A string that is not in the code: it contains the symbol of its end, or its padding is not the start of that symbol
/// or longer than seven bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invalid;

/// The number of symbols: all bytes, and the end of the string.
const SYMBOLS: usize = 257;
const END: u16 = 256;

/// The lengths of the symbols' codes in bits.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5,
    6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22,
    23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22,
    22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26,
    26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27,
    27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27,
    27, 27, 27, 27, 26, 30,
];

/// The longest code in bits.
const LONGEST: usize = 30;
/// The longest code that [`SHORT`] finds.
const SHORTS: usize = 8;

/// The codes of one length.
#[derive(Clone, Copy)]
struct Group {
    /// The first code behind them, aligned to the left of 32 bits.
    end: u64,
    /// Their first code.
    first: u32,
    /// The position of its symbol in [`ORDER`].
    at: u16,
}

/// Symbols in the order of their codes.
static ORDER: [u16; SYMBOLS] = TABLES.0;
/// By the length of the code.
static GROUPS: [Group; LONGEST + 1] = TABLES.1;
/// By the next byte: a symbol, and the length of its code or 0.
static SHORT: [(u8, u8); 256] = TABLES.2;

const TABLES: ([u16; SYMBOLS], [Group; LONGEST + 1], [(u8, u8); 256]) = {
    let mut order = [0; SYMBOLS];
    let mut groups = [Group { end: 0, first: 0, at: 0 }; LONGEST + 1];
    let mut short = [(0, 0); 256];
    let (mut code, mut at, mut len) = (0u32, 0, 1);
    while len <= LONGEST {
        code <<= 1;
        groups[len].first = code;
        groups[len].at = at as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == len {
                if len <= SHORTS {
                    let from = (code as usize) << (SHORTS - len);
                    let mut byte = from;
                    while byte < from + (1 << (SHORTS - len)) {
                        short[byte] = (symbol as u8, len as u8);
                        byte += 1;
                    }
                }
                order[at] = symbol as u16;
                at += 1;
                code += 1;
            }
            symbol += 1;
        }
        groups[len].end = (code as u64) << (32 - len);
        len += 1;
    }
    (order, groups, short)
};

/// Returns the largest number of bytes that a string of `len` encoded bytes can have: no code is shorter than five bits.
pub(super) fn decoded_max(len: usize) -> usize {
    len * 8 / 5
}

/// Decodes a string and appends it to `out`, which is left with undefined bytes behind its old end after an error.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    let start = out.len();
    out.resize(start + decoded_max(input.len()), 0);
    let decoded = decode_into(input, &mut out[start..])?;
    out.truncate(start + decoded);
    Ok(())
}

fn decode_into(mut rest: &[u8], out: &mut [u8]) -> Result<usize, Invalid> {
    let mut out_at = 0;
    // The next bits, aligned to the left, and their number; the bits behind them are zero.
    let (mut bits, mut have) = (0u64, 0u32);
    loop {
        if let Some((four, tail)) = rest.split_first_chunk::<4>()
            && have <= 32
        {
            bits |= u64::from(u32::from_be_bytes(*four)) << (32 - have);
            have += 32;
            rest = tail;
        }
        while let [byte, tail @ ..] = rest
            && have <= 30
        {
            bits |= u64::from(*byte) << (56 - have);
            have += 8;
            rest = tail;
        }
        // Every code is complete as long as there are at least as many bits as the longest has.
        loop {
            let (mut symbol, mut len) = SHORT[(bits >> 56) as usize];
            if len == 0 {
                let (long, its) = long_code((bits >> 32) as u32);
                if its <= have && long == END {
                    return Err(Invalid);
                }
                (symbol, len) = (long as u8, its as u8);
            }
            if u32::from(len) > have {
                // Less than one code is left, which must be the start of the end.
                let padding = have < 8 && bits.leading_ones() >= have;
                return if padding { Ok(out_at) } else { Err(Invalid) };
            }
            let Some(place) = out.get_mut(out_at) else { return Err(Invalid) };
            *place = symbol;
            out_at += 1;
            bits <<= len;
            have -= u32::from(len);
            if have < LONGEST as u32 && !rest.is_empty() {
                break;
            }
        }
    }
}

/// Returns the symbol and the length of a code of more than eight bits.
#[cold]
fn long_code(bits: u32) -> (u16, u32) {
    let len = (SHORTS + 1..LONGEST).find(|len| u64::from(bits) < GROUPS[*len].end).unwrap_or(LONGEST);
    let group = &GROUPS[len];
    let index = usize::from(group.at) + ((bits >> (32 - len)) - group.first) as usize;
    (ORDER[index.min(SYMBOLS - 1)], len as u32)
}

/// Encodes a string; for tests, because a Huffman code is optional and costs its sender more than it saves.
#[cfg(test)]
pub(super) fn encode(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut bits, mut have) = (0u64, 0);
    let codes = |symbol: u16| {
        let at = ORDER.iter().position(|other| *other == symbol).unwrap() as u32;
        let len = usize::from(LENGTHS[usize::from(symbol)]);
        (u64::from(GROUPS[len].first + at - u32::from(GROUPS[len].at)), len)
    };
    for byte in input {
        let (code, len) = codes(u16::from(*byte));
        bits = bits << len | code;
        have += len;
        while have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
        }
    }
    if have > 0 {
        out.push((bits << (8 - have)) as u8 | (0xff >> have));
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>, Invalid> {
        let mut out = b"before".to_vec();
        decode(input, &mut out)?;
        assert_eq!(&out[..6], b"before");
        Ok(out[6..].to_vec())
    }

    #[test]
    fn examples_of_the_rfc() {
        for (text, code) in [
            (&b"www.example.com"[..], &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..]),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"custom-value", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf]),
            (b"302", &[0x64, 0x02]),
            (b"private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ] {
            assert_eq!(encode(text), code);
            assert_eq!(decoded(code).as_deref(), Ok(text));
        }
    }

    #[test]
    fn the_end_of_a_string_is_padding_of_ones_and_shorter_than_a_byte() {
        assert_eq!(decoded(b"").as_deref(), Ok(&b""[..]));
        assert_eq!(decoded(&[0x1f]).as_deref(), Ok(&b"a"[..]));
        for (bad, why) in [
            (&[0x1e][..], "a zero in the padding"),
            (&[0x1f, 0xff], "a byte of padding"),
            (&[0xff], "nothing but padding"),
            (&[0xff; 4], "the end itself"),
            (&[0x1f, 0xff, 0xff, 0xff, 0xff], "the end behind a symbol"),
            (&[0xff, 0xff, 0xff, 0xfc, 0x1f, 0xff], "the end before a symbol"),
            (&[0xff, 0xff], "an unfinished code"),
        ] {
            assert_eq!(decoded(bad), Err(Invalid), "{why}");
        }
    }

    #[test]
    fn every_symbol() {
        for byte in 0..=255 {
            for count in 1..5 {
                let text = vec![byte; count];
                assert_eq!(decoded(&encode(&text)), Ok(text));
            }
        }
        assert_eq!(ORDER[SYMBOLS - 1], END);
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decoded(&encode(&text)), Ok(text));
        }

        #[test]
        fn a_string_has_one_code(input in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(text) = decoded(&input) {
                prop_assert_eq!(encode(&text), input);
            }
        }
    }
}
