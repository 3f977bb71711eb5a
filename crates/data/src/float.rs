//! 80-bit extended floating point, in software.
//!
//! INCRBYFLOAT adds in C's `long double`, which on x86-64 has 64 bits of mantissa, and prints 17 decimals without
//! trailing zeros. Rust has no such type, and a 64-bit one gives other digits (3.0 plus 1.1 must be 4.1). So numbers
//! are parsed, added and printed here with correct rounding (to nearest, ties to even), through integers of any size.
//! That costs a microsecond or two per command.
//!
//! Not supported: subnormal results, which 17 decimals would show as 0 anyway.

/// A finite number: `mantissa × 2^exponent`, the mantissa's top bit set, or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    negative: bool,
    mantissa: u64,
    exponent: i32,
    infinite: bool,
}

/// The largest exponent of a 64-bit integer mantissa: 2^16384 is infinity.
const EXPONENT_MAX: i32 = 16383 - 63;
/// The smallest exponent of a normal number.
const EXPONENT_MIN: i32 = -16382 - 63;
/// Redis does not accept longer texts as numbers.
const TEXT_MAX: usize = 5 * 1024;

impl Extended {
    /// Zero.
    pub const ZERO: Extended = Extended { negative: false, mantissa: 0, exponent: 0, infinite: false };

    /// Parses a decimal or hexadecimal number as C's `strtold` does, without spaces and to the end of the text. Numbers
    /// that are too large, or too small to differ from zero, are refused as Redis refuses them.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.is_empty() || text.len() >= TEXT_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended { negative, infinite: true, ..Extended::ZERO });
        }
        let (hex, rest) = match rest {
            [b'0', b'x' | b'X', rest @ ..] => (true, rest),
            _ => (false, rest),
        };
        let radix = if hex { 16 } else { 10 };
        let mut digits = Big::ZERO;
        let (mut any, mut point, mut decimals) = (false, false, 0i64);
        let mut at = 0;
        while let Some(&byte) = rest.get(at) {
            match (byte as char).to_digit(radix) {
                Some(digit) => {
                    digits.multiply_add(radix, digit);
                    decimals += i64::from(point);
                    any = true;
                }
                None if byte == b'.' && !point => point = true,
                None => break,
            }
            at += 1;
        }
        if !any {
            return None;
        }
        let mut exponent = 0i64;
        if let Some(&mark) = rest.get(at) {
            let expected: &[u8] = if hex { b"pP" } else { b"eE" };
            if !expected.contains(&mark) {
                return None;
            }
            let (minus, number) = match &rest[at + 1..] {
                [b'-', number @ ..] => (true, number),
                [b'+', number @ ..] => (false, number),
                number => (false, number),
            };
            if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let value = number.iter().fold(0i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(1_000_000));
            exponent = if minus { -value } else { value };
        }
        if digits.is_zero() {
            return Some(Extended { negative, ..Extended::ZERO });
        }
        let number = if hex {
            round(negative, &digits, exponent - 4 * decimals, false)
        } else {
            let exponent = exponent - decimals;
            // Beyond these bounds the result is certain, and the integers would grow unnecessarily.
            let magnitude = digits.bits() as i64 * 3 / 10 + exponent;
            if !(-5100..=5100).contains(&magnitude) {
                return None;
            }
            match u32::try_from(exponent) {
                Ok(exponent) => {
                    digits.multiply_power_of_ten(exponent);
                    round(negative, &digits, 0, false)
                }
                Err(_) => {
                    let mut divisor = Big::from(1);
                    divisor.multiply_power_of_ten(exponent.unsigned_abs() as u32);
                    // Enough bits for a quotient of 66 bits; of the remainder it matters only whether it is zero.
                    let shift = (66 + divisor.bits() as i64 - digits.bits() as i64).max(0);
                    digits.shift_left(shift as usize);
                    let (quotient, exact) = digits.divide(&divisor);
                    round(negative, &quotient, -shift, !exact)
                }
            }
        };
        (!number.infinite && number.mantissa != 0).then_some(number)
    }

    /// Returns the nearest number of 64 bits, or infinity.
    pub fn to_f64(self) -> f64 {
        let magnitude = match self.infinite {
            true => f64::INFINITY,
            // In two steps, as the scale alone may be too large or too small.
            false => self.mantissa as f64 * 2f64.powi(self.exponent / 2) * 2f64.powi(self.exponent - self.exponent / 2),
        };
        if self.negative { -magnitude } else { magnitude }
    }

    /// Returns whether it is above zero.
    pub fn is_positive(self) -> bool {
        !self.negative && (self.infinite || self.mantissa != 0)
    }

    /// Returns whether it is infinite.
    pub fn is_infinite(self) -> bool {
        self.infinite
    }

    /// Returns the sum; [`None`] if it is infinite or not a number.
    pub fn checked_add(self, other: Extended) -> Option<Extended> {
        if self.infinite || other.infinite {
            return None;
        }
        if self.mantissa == 0 || other.mantissa == 0 {
            let zero_sign = self.negative && other.negative;
            return Some(match (self.mantissa, other.mantissa) {
                (0, 0) => Extended { negative: zero_sign, ..Extended::ZERO },
                (0, _) => other,
                _ => self,
            });
        }
        let (large, small) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        let distance = large.exponent - small.exponent;
        // The larger mantissa is followed by 62 bits; the part of the smaller one beyond them only breaks ties.
        let large_wide = u128::from(large.mantissa) << 62;
        let small_wide = u128::from(small.mantissa) << 62;
        let (small_wide, sticky) = match u32::try_from(distance) {
            Ok(distance) if distance < 126 => (small_wide >> distance, small_wide & ((1u128 << distance) - 1) != 0),
            _ => (0, true),
        };
        let (negative, sum, sticky_below) = if large.negative == small.negative {
            (large.negative, large_wide + small_wide, sticky)
        } else if large_wide >= small_wide {
            // Something below the last bit is taken away: borrow one and leave a remainder.
            (large.negative, large_wide - small_wide - u128::from(sticky), sticky)
        } else {
            (small.negative, small_wide - large_wide, false)
        };
        if sum == 0 {
            return Some(Extended::ZERO);
        }
        let result = round(negative, &Big::from(sum), i64::from(large.exponent) - 62, sticky_below);
        (!result.infinite).then_some(result)
    }

    /// Returns the number with at most 17 decimals, without trailing zeros.
    pub fn to_text(self) -> Vec<u8> {
        const DECIMALS: u32 = 17;
        let mut number = Big::from(u128::from(self.mantissa));
        number.multiply_power_of_ten(DECIMALS);
        if self.exponent >= 0 {
            number.shift_left(self.exponent as usize);
        } else {
            number = number.shift_right_rounded(self.exponent.unsigned_abs() as usize);
        }
        let mut digits = number.to_decimal();
        while digits.len() <= DECIMALS as usize {
            digits.insert(0, b'0');
        }
        digits.insert(digits.len() - DECIMALS as usize, b'.');
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.last() == Some(&b'.') {
            digits.pop();
        }
        if self.negative && digits != b"0" {
            digits.insert(0, b'-');
        }
        digits
    }
}

/// Rounds `integer × 2^exponent` to 64 bits; `more` means that the exact value is slightly larger.
fn round(negative: bool, integer: &Big, exponent: i64, more: bool) -> Extended {
    let bits = integer.bits() as i64;
    let drop = bits - 64;
    let (mut mantissa, mut exponent) = (integer.top_bits(), exponent + drop);
    if drop > 0 {
        let half = integer.bit(drop as usize - 1);
        let rest = more || integer.any_bit_below(drop as usize - 1);
        if half && (rest || mantissa & 1 == 1) {
            match mantissa.checked_add(1) {
                Some(rounded) => mantissa = rounded,
                None => (mantissa, exponent) = (1 << 63, exponent + 1),
            }
        }
    }
    let out_of_range = exponent > i64::from(EXPONENT_MAX);
    if out_of_range || exponent < i64::from(EXPONENT_MIN) {
        return Extended { negative, infinite: out_of_range, ..Extended::ZERO };
    }
    Extended { negative, mantissa, exponent: exponent as i32, infinite: false }
}

/// An unsigned integer of any size: 32-bit limbs, the lowest first, without zeros at the top.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Big(Vec<u32>);

impl From<u128> for Big {
    fn from(value: u128) -> Big {
        let mut big = Big((0..4).map(|limb| (value >> (32 * limb)) as u32).collect());
        big.trim();
        big
    }
}

impl Big {
    const ZERO: Big = Big(Vec::new());

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| self.0.len() * 32 - top.leading_zeros() as usize)
    }

    fn bit(&self, index: usize) -> bool {
        self.0.get(index / 32).is_some_and(|limb| limb >> (index % 32) & 1 == 1)
    }

    fn any_bit_below(&self, index: usize) -> bool {
        let whole = (index / 32).min(self.0.len());
        self.0[..whole].iter().any(|&limb| limb != 0)
            || self.0.get(index / 32).is_some_and(|limb| limb & ((1u32 << (index % 32)) - 1) != 0)
    }

    /// Returns the highest 64 bits.
    fn top_bits(&self) -> u64 {
        let bits = self.bits();
        (0..64).fold(0, |sum, place| {
            let bit = bits.checked_sub(place + 1).is_some_and(|index| self.bit(index));
            sum << 1 | u64::from(bit)
        })
    }

    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for limb in &mut self.0 {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn multiply_power_of_ten(&mut self, exponent: u32) {
        for _ in 0..exponent / 9 {
            self.multiply_add(1_000_000_000, 0);
        }
        self.multiply_add(10u32.pow(exponent % 9), 0);
    }

    fn shift_left(&mut self, bits: usize) {
        if self.is_zero() {
            return;
        }
        let small = bits % 32;
        if small > 0 {
            self.multiply_add(1 << small, 0);
        }
        self.0.splice(0..0, std::iter::repeat_n(0, bits / 32));
    }

    /// Divides by 2^bits, to the nearest integer, ties to even.
    fn shift_right_rounded(&self, bits: usize) -> Big {
        let mut result = Big(self.0.get(bits / 32..).unwrap_or_default().to_vec());
        let small = bits % 32;
        if small > 0 {
            for index in 0..result.0.len() {
                let above = result.0.get(index + 1).copied().unwrap_or(0);
                result.0[index] = result.0[index] >> small | above << (32 - small);
            }
        }
        result.trim();
        let half = bits > 0 && self.bit(bits - 1);
        if half && (self.any_bit_below(bits - 1) || result.bit(0)) {
            result.multiply_add(1, 1);
        }
        result
    }

    /// Returns the quotient, and whether the remainder is zero.
    fn divide(&self, divisor: &Big) -> (Big, bool) {
        let mut rest = Big::ZERO;
        let mut quotient = Big(vec![0; self.0.len()]);
        for index in (0..self.bits()).rev() {
            rest.multiply_add(2, u32::from(self.bit(index)));
            if rest.at_least(divisor) {
                rest.subtract(divisor);
                quotient.0[index / 32] |= 1 << (index % 32);
            }
        }
        quotient.trim();
        (quotient, rest.is_zero())
    }

    fn at_least(&self, other: &Big) -> bool {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev())).is_ge()
    }

    /// Subtracts a number that is not larger.
    fn subtract(&mut self, other: &Big) {
        let mut borrow = 0;
        for (index, limb) in self.0.iter_mut().enumerate() {
            let take = i64::from(other.0.get(index).copied().unwrap_or(0)) + borrow;
            let difference = i64::from(*limb) - take;
            *limb = difference as u32;
            borrow = i64::from(difference < 0);
        }
        self.trim();
    }

    fn to_decimal(&self) -> Vec<u8> {
        let mut rest = self.clone();
        let mut digits = Vec::new();
        while !rest.is_zero() {
            let mut remainder = 0u64;
            for limb in rest.0.iter_mut().rev() {
                let value = remainder << 32 | u64::from(*limb);
                *limb = (value / 1_000_000_000) as u32;
                remainder = value % 1_000_000_000;
            }
            rest.trim();
            for _ in 0..9 {
                digits.push(b'0' + (remainder % 10) as u8);
                remainder /= 10;
            }
        }
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            digits.push(b'0');
        }
        digits.reverse();
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(a: &str, b: &str, expected: Option<&str>) {
        let sum = Extended::parse(a.as_bytes()).zip(Extended::parse(b.as_bytes())).and_then(|(a, b)| a.checked_add(b));
        let text = sum.map(|sum| String::from_utf8(sum.to_text()).unwrap());
        assert_eq!(text.as_deref(), expected, "{a} + {b}");
    }

    #[test]
    fn sums_are_those_of_long_double() {
        check("3.0", "1.1", Some("4.1"));
        check("10.50", "0.1", Some("10.6"));
        check("5.0e3", "2.0e2", Some("5200"));
        check("0", "0", Some("0"));
        check("1.5", "-1.5", Some("0"));
        check("1", "-0.99999999999999999", Some("0.00000000000000001"));
        check("17179869184", "1", Some("17179869185"));
        check("17179869184", "1.5", Some("17179869185.5"));
        check("0x10", "1", Some("17"));
        check("-0.5", "0.25", Some("-0.25"));
        check("1e19", "1", Some("10000000000000000001"));
        check("1e20", "1", Some("100000000000000000000"));
        check("1e4933", "0", None);
        check("1e-6000", "0", None);
        check("inf", "1", None);
        check("", "1", None);
        check(" 1", "1", None);
        check("1 ", "1", None);
        check("1e", "1", None);
        check("abc", "1", None);
    }
}
