//! CRC-64 as Redis computes it: Jones's polynomial, reflected bits, no inversion of the initial value or the result.
//!
//! With carry-less multiplication, four lanes of 16 bytes are folded at once (Intel, *Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ*), and the last 16 bytes go through the tables; without it, or for short inputs, eight
//! bytes per step go through eight tables of 2 KiB, built at compile time.
//!
//! Because nothing is inverted, the checksum of a concatenation follows from the checksums and lengths of its parts:
//! that of the first part, multiplied by `x` to the power of the bits that follow it, plus that of the second
//! ([`Sum::then`]). So the parts of a file are summed up by the threads that produce them.

const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();

/// Table `n` advances a byte by `n` bytes of zeros.
static TABLES: [[u64; 256]; 8] = tables();

/// `x` to the power of `8 * 2^n`, modulo the polynomial.
static POWERS: [u64; 64] = powers();

/// Inputs from this length on are folded; shorter ones take no longer with the tables.
const FOLDED_MIN: usize = 128;

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = times_x(crc);
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc: u64 = tables[table - 1][byte];
            tables[table][byte] = (crc >> 8) ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Returns the product of a polynomial, whose highest bit is the constant term, with `x`.
const fn times_x(value: u64) -> u64 {
    (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// Returns `x` to this power.
const fn power_of_x(exponent: u32) -> u64 {
    let (mut power, mut count) = (1 << 63, 0);
    while count < exponent {
        power = times_x(power);
        count += 1;
    }
    power
}

/// Returns the product of two polynomials.
const fn product(a: u64, mut b: u64) -> u64 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 64 {
        if a << bit >> 63 == 1 {
            sum ^= b;
        }
        b = times_x(b);
        bit += 1;
    }
    sum
}

const fn powers() -> [u64; 64] {
    let mut powers = [power_of_x(8); 64];
    let mut index = 1;
    while index < 64 {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
}

/// Returns the checksum of `bytes`.
pub(super) fn crc64(bytes: &[u8]) -> u64 {
    continued(0, bytes)
}

/// Returns the checksum of what has the checksum `crc`, followed by `bytes`.
fn continued(crc: u64, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= FOLDED_MIN && std::arch::is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor has the instructions, as just seen.
        return unsafe { fold::continued(crc, bytes) };
    }
    by_tables(crc, bytes)
}

fn by_tables(crc: u64, bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let crc = eights.iter().fold(crc, |crc, eight| {
        let mixed = (crc ^ u64::from_le_bytes(*eight)).to_le_bytes();
        mixed.iter().zip(TABLES.iter().rev()).fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

#[cfg(target_arch = "x86_64")]
mod fold {
    use std::arch::x86_64::*;

    use super::{by_tables, power_of_x};

    /// The factors that shift 16 bytes by 64 bytes and by 16 bytes. A product of reflected polynomials has one factor `x` too
    /// many, hence the exponents.
    const BY_64: (u64, u64) = (power_of_x(512 + 63), power_of_x(512 - 1));
    const BY_16: (u64, u64) = (power_of_x(128 + 63), power_of_x(128 - 1));

    #[inline]
    #[target_feature(enable = "sse2,pclmulqdq")]
    fn load((first, second): (u64, u64)) -> __m128i {
        _mm_set_epi64x(second as i64, first as i64)
    }

    #[inline]
    #[target_feature(enable = "sse2,pclmulqdq")]
    fn block(bytes: &[u8; 16]) -> __m128i {
        let value = u128::from_le_bytes(*bytes);
        load((value as u64, (value >> 64) as u64))
    }

    #[inline]
    #[target_feature(enable = "sse2,pclmulqdq")]
    fn ahead(lane: __m128i, keys: __m128i, next: __m128i) -> __m128i {
        let moved = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(lane, keys), _mm_clmulepi64_si128::<0x11>(lane, keys));
        _mm_xor_si128(moved, next)
    }

    #[target_feature(enable = "sse2,pclmulqdq")]
    pub(super) fn continued(crc: u64, bytes: &[u8]) -> u64 {
        let (blocks, rest) = bytes.as_chunks::<16>();
        let (fours, singles) = blocks.as_chunks::<4>();
        let [first, fours @ ..] = fours else { return by_tables(crc, bytes) };
        let mut lanes = [block(&first[0]), block(&first[1]), block(&first[2]), block(&first[3])];
        lanes[0] = _mm_xor_si128(lanes[0], load((crc, 0)));
        let keys = load(BY_64);
        for four in fours {
            for (lane, bytes) in lanes.iter_mut().zip(four) {
                *lane = ahead(*lane, keys, block(bytes));
            }
        }
        let keys = load(BY_16);
        let [mut sum, others @ ..] = lanes;
        for other in others {
            sum = ahead(sum, keys, other);
        }
        for bytes in singles {
            sum = ahead(sum, keys, block(bytes));
        }
        let halves = [_mm_cvtsi128_si64(sum), _mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum))];
        let crc = halves.iter().fold(0, |crc, half| by_tables(crc, &half.to_le_bytes()));
        by_tables(crc, rest)
    }
}

/// The checksum of a number of bytes, to be put together with that of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    crc: u64,
    len: u64,
}

impl Sum {
    /// Returns the checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Sum {
        Sum { crc: crc64(bytes), len: bytes.len() as u64 }
    }

    /// Adds the bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        *self = Sum { crc: continued(self.crc, bytes), len: self.len + bytes.len() as u64 };
    }

    /// Returns the checksum of these bytes followed by others: 64 steps for each bit of the others' number.
    pub fn then(self, next: Sum) -> Sum {
        let mut crc = self.crc;
        for (bit, power) in POWERS.iter().enumerate().filter(|(bit, _)| next.len >> bit & 1 == 1) {
            debug_assert!(bit < 61);
            crc = product(crc, *power);
        }
        Sum { crc: crc ^ next.crc, len: self.len + next.len }
    }

    /// Returns the CRC-64.
    pub fn crc(self) -> u64 {
        self.crc
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::numbers;

    #[test]
    fn checksums_are_those_of_redis() {
        assert_eq!(crc64(b""), 0);
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca, "the check value of CRC-64/Jones");
        let long: Vec<u8> = (0..700_u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in 0..long.len() {
            let slow = long[..len].iter().fold(0, |crc, b| (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ b)]);
            assert_eq!((crc64(&long[..len]), by_tables(0, &long[..len])), (slow, slow));
        }
    }

    #[test]
    fn sums_of_parts_give_the_sum_of_the_whole() {
        let mut next = numbers(7);
        let all: Vec<u8> = (0..300_000).map(|_| next(256) as u8).collect();
        for _ in 0..200 {
            let (len, parts) = (next(all.len()), 1 + next(5));
            let (mut sum, mut added, mut rest) = (Sum::default(), Sum::default(), &all[..len]);
            for part in 0..parts {
                let (taken, after) = rest.split_at(if part + 1 == parts { rest.len() } else { next(rest.len() + 1) });
                sum = sum.then(Sum::of(taken));
                added.add(taken);
                rest = after;
            }
            let whole = Sum::of(&all[..len]);
            assert_eq!((sum, added), (whole, whole));
            assert_eq!(whole.bytes(), len as u64);
        }
    }
}
