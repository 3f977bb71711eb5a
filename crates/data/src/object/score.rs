//! Scores as text: parsed as C's `strtod` parses them, printed as Redis prints them.

use sluicegate_wire::resp::format_double;
use smallvec::SmallVec;

/// The text of a score.
pub type Text = SmallVec<[u8; 32]>;

/// Parses a score as ZADD does: to the end of the text, without spaces, and neither NaN nor out of range.
#[inline]
pub fn parse(text: &[u8]) -> Option<f64> {
    let number = read(text)?;
    (!number.out_of_range && !number.value.is_nan()).then_some(number.value)
}

/// Parses the end of a range as ZRANGEBYSCORE does: leading spaces are allowed, an empty text is 0, values out of range
/// are infinite or 0, and a zero byte ends the text.
#[inline]
pub fn parse_bound(text: &[u8]) -> Option<f64> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let number = read(behind_spaces(text)?)?;
    (!number.value.is_nan()).then_some(number.value)
}

/// Parses a number as SORT does: leading spaces are allowed, an empty text is 0, a zero byte ends the text; values out
/// of range are invalid, and so are those that lose digits because they are nearly 0.
#[inline]
pub fn parse_weight(text: &[u8]) -> Option<f64> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let number = read(behind_spaces(text)?)?;
    (!number.out_of_range && !number.denormal_lost && !number.value.is_nan()).then_some(number.value)
}

/// Returns the rest of a text after spaces, if not empty.
fn behind_spaces(text: &[u8]) -> Option<&[u8]> {
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r'))?;
    Some(&text[start..])
}

#[derive(Default)]
struct Number {
    value: f64,
    /// Whether it is too large, or too small to differ from 0.
    out_of_range: bool,
    /// Whether it is so near to 0 that digits were lost.
    denormal_lost: bool,
}

fn read(text: &[u8]) -> Option<Number> {
    // Nearly all scores are short integers.
    if let Some(value) = short_integer(text) {
        return Some(Number { value, ..Number::default() });
    }
    let (negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let sign = if negative { -1.0 } else { 1.0 };
    if let [b'0', b'x' | b'X', hex @ ..] = rest {
        return hexadecimal(hex).map(|number| Number { value: sign * number.value, ..number });
    }
    if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
        return Some(Number { value: sign * f64::INFINITY, ..Number::default() });
    }
    if rest.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"nan")) {
        let tail = &rest[3..];
        let is_tail = tail.is_empty() || tail.starts_with(b"(") && tail.ends_with(b")");
        return is_tail.then_some(Number { value: f64::NAN, ..Number::default() });
    }
    if !rest.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.') {
        return None;
    }
    let value: f64 = std::str::from_utf8(rest).ok()?.parse().ok()?;
    let digits = rest.iter().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
    let is_zero = digits.clone().all(|byte| matches!(byte, b'0' | b'.'));
    let out_of_range = value.is_infinite() || value == 0.0 && !is_zero;
    // In decimal such a number has hundreds of digits.
    Some(Number { value: sign * value, out_of_range, denormal_lost: value.is_subnormal() })
}

/// Returns a number of up to 15 digits and nothing else, which is exact.
fn short_integer(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    let mut value = 0_u64;
    for digit in digits {
        match digit {
            b'0'..=b'9' => value = value * 10 + u64::from(digit - b'0'),
            _ => return None,
        }
    }
    let value = value as f64;
    Some(if negative { -value } else { value })
}

/// Parses the part after `0x`: digits with a point, optionally a power of two in decimal.
fn hexadecimal(text: &[u8]) -> Option<Number> {
    let (mut mantissa, mut exponent, mut lost) = (0_u64, 0_i64, false);
    let (mut any, mut point) = (false, false);
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match (byte as char).to_digit(16) {
            Some(digit) => {
                any = true;
                if mantissa >> 60 == 0 {
                    mantissa = mantissa << 4 | u64::from(digit);
                    exponent -= 4 * i64::from(point);
                } else {
                    lost |= digit != 0;
                    exponent += 4 * i64::from(!point);
                }
            }
            None if byte == b'.' && !point => point = true,
            None => break,
        }
        at += 1;
    }
    if !any {
        return None;
    }
    if let [b'p' | b'P', power @ ..] = &text[at..] {
        let (negative, digits) = match power {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            digits => (false, digits),
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let power = digits.iter().fold(0_i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(1 << 40));
        exponent += if negative { -power } else { power };
    } else if at < text.len() {
        return None;
    }
    // The lost part only breaks ties: there are at least 60 bits before it.
    let value = (mantissa | u64::from(lost)) as f64;
    // In steps, so that each power is a finite number.
    let exponent = exponent.clamp(-3000, 3000) as i32;
    let step = |power: i32| 2_f64.powi(power);
    let value = match exponent {
        ..=-1000 => value * step(-500) * step(-500) * step((exponent + 1000).max(-1000)),
        1000.. => value * step(500) * step(500) * step((exponent - 1000).min(1000)),
        _ => value * step(exponent),
    };
    let exact = !lost && i64::from(exponent) + i64::from(mantissa.trailing_zeros()) >= -1074;
    let out_of_range = value.is_infinite() || value == 0.0 && mantissa != 0;
    Some(Number { value, out_of_range, denormal_lost: value.is_subnormal() && !exact })
}

/// Returns the score as it is stored in a block of a small sorted set: an integer if it is one, then without the sign
/// of -0.
#[inline]
pub fn stored(score: f64) -> Text {
    if score == 0.0 { Text::from_slice(b"0") } else { text(score) }
}

/// Returns the score as Redis 7.2 prints it.
#[inline]
pub fn text(score: f64) -> Text {
    let mut out = Vec::with_capacity(32);
    format_double(score, &mut out);
    Text::from_vec(out)
}

/// Returns the score with 17 digits, as ZSCAN prints that of a large sorted set (C's `%.17g`).
pub fn text_17(score: f64) -> Text {
    const DIGITS: i32 = 17;
    if score == 0.0 || !score.is_finite() {
        return text(score);
    }
    // Nearly all scores are integers; one of up to this many digits is printed in full.
    if score.fract() == 0.0 && score.abs() < 1e17 {
        return Text::from_slice(itoa::Buffer::new().format(score as i64).as_bytes());
    }
    let scientific = format!("{score:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the exponent is always printed");
    let exponent: i32 = exponent.parse().expect("digits");
    let digits = mantissa.bytes().filter(u8::is_ascii_digit);
    let mut out = Text::new();
    if score < 0.0 {
        out.push(b'-');
    }
    let is_plain = (-4..DIGITS).contains(&exponent);
    if is_plain && exponent < 0 {
        out.extend_from_slice(&b"0.000"[..1 + exponent.unsigned_abs() as usize]);
    }
    let before_point = if is_plain { exponent } else { 0 };
    for (at, digit) in (0..).zip(digits) {
        out.push(digit);
        if at == before_point {
            out.push(b'.');
        }
    }
    let kept = out.iter().rposition(|byte| *byte != b'0').map_or(0, |at| if out[at] == b'.' { at } else { at + 1 });
    out.truncate(kept);
    if !is_plain {
        out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
        out.extend_from_slice(format!("{:02}", exponent.unsigned_abs()).as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, strict: Option<f64>, bound: Option<f64>) {
        let bits = |value: Option<f64>| value.map(f64::to_bits);
        assert_eq!(bits(parse(text.as_bytes())), bits(strict), "{text}");
        assert_eq!(bits(parse_bound(text.as_bytes())), bits(bound), "{text}");
    }

    #[test]
    fn texts_are_read_as_c_reads_them() {
        let both = |text, value| check(text, Some(value), Some(value));
        both("0", 0.0);
        both("-0", -0.0);
        both("007", 7.0);
        both("+1", 1.0);
        both("1.", 1.0);
        both(".5", 0.5);
        both("-1e3", -1000.0);
        both("123456789012345678", 123456789012345680.0);
        both("1E-5", 1e-5);
        both("5e-324", 5e-324);
        both("0e-9999", 0.0);
        both("INF", f64::INFINITY);
        both("-Infinity", f64::NEG_INFINITY);
        both("0x1p4", 16.0);
        both("-0X.8", -0.5);
        both("0x1.fffffffffffff8", 2.0);
        both("0x1p-1074", 5e-324);
        both("0x10000000000000001p-64", 1.0);
        check("1e400", None, Some(f64::INFINITY));
        check("-1e400", None, Some(f64::NEG_INFINITY));
        check("1e-400", None, Some(0.0));
        check("0x1p5000", None, Some(f64::INFINITY));
        check("0x1p-5000", None, Some(0.0));
        check("", None, Some(0.0));
        check(" 5", None, Some(5.0));
        check("5\0x", None, Some(5.0));
        for bad in [
            "nan", "NaN(1)", "-nan", "x", "1x", "1 ", "--1", "+-1", "1e", "0x", "0xp1", "0x1p", ".", "e5", "-", "infi",
            " ",
        ] {
            check(bad, None, None);
        }
    }

    #[test]
    fn numbers_to_sort_by_are_read_as_by_redis() {
        let check = |text: &str, expected: Option<f64>| assert_eq!(parse_weight(text.as_bytes()), expected, "{text}");
        check("", Some(0.0));
        check("\0x", Some(0.0));
        check(" 7", Some(7.0));
        check("\x0b7\0 x", Some(7.0));
        check("-0", Some(-0.0));
        check("0x10", Some(16.0));
        check("inf", Some(f64::INFINITY));
        check("-Infinity", Some(f64::NEG_INFINITY));
        check("1e308", Some(1e308));
        check("0e999", Some(0.0));
        check("2.2250738585072014e-308", Some(f64::MIN_POSITIVE));
        check("0x1p-1074", Some(5e-324));
        for bad in
            [" ", "1e400", "-1e400", "1e-400", "4e-320", "2.2250738585072011e-308", "0x1.8p-1074", "nan", "7 ", "x"]
        {
            check(bad, None);
        }
    }

    #[test]
    fn seventeen_digits_are_laid_out_as_c_does() {
        for (score, expected) in [
            (0.1, "0.10000000000000001"),
            (-0.0, "-0"),
            (3.0, "3"),
            (-120.0, "-120"),
            (1e16, "10000000000000000"),
            (-99999999999999984.0, "-99999999999999984"),
            (1e17, "1e+17"),
            (123456789.125, "123456789.125"),
            (0.0625, "0.0625"),
            (-0.001, "-0.001"),
            (0.00012, "0.00012"),
            (1e22, "1e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (-2.5e-10, "-2.5000000000000002e-10"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(String::from_utf8_lossy(&text_17(score)), expected);
        }
    }
}
