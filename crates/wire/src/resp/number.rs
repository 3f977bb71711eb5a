//! Numbers as Redis reads and prints them.

/// Reads a decimal integer as strictly as Redis does: no sign but `-`, no leading zero, no space, no `-0`.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    // Nineteen digits are below 10^19, which a u64 holds; the range check comes once, at the end.
    let mut value: u64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    match negative {
        false => i64::try_from(value).ok(),
        true if value <= i64::MIN.unsigned_abs() => Some((value as i64).wrapping_neg()),
        true => None,
    }
}

/// Whole numbers up to this one are printed with all their digits.
const WHOLE_MAX: f64 = (i64::MAX / 2) as f64;

/// Appends a double as Redis 7.2 prints it in replies: whole numbers up to 2^62 as integers, others with the shortest
/// digits that read back as the same number, and an exponent only for very large and very small ones; `inf`, `-inf` and
/// `nan`.
pub fn format_double(value: f64, out: &mut Vec<u8>) {
    if value.is_nan() {
        return out.extend_from_slice(b"nan");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"inf" } else { b"-inf" });
    }
    if value.is_sign_negative() {
        out.push(b'-');
    }
    let value = value.abs();
    if value <= WHOLE_MAX && value == value.trunc() {
        return out.extend_from_slice(itoa::Buffer::new().format(value as u64).as_bytes());
    }
    // Rust prints the shortest digits as d.ddde[-]x; Redis lays the same digits out differently.
    let mut storage = [0; 32]; // at most 17 digits, a point, "e-" and three digits
    let mut rest = &mut storage[..];
    std::io::Write::write_fmt(&mut rest, format_args!("{value:e}")).expect("the longest double is 23 bytes");
    let unused = rest.len();
    let text = &storage[..storage.len() - unused];
    let at = text.iter().position(|&b| b == b'e').expect("the exponent is always printed");
    let exponent: i32 = std::str::from_utf8(&text[at + 1..]).ok().and_then(|t| t.parse().ok()).unwrap_or(0);
    let digits: smallvec::SmallVec<[u8; 24]> = text[..at].iter().copied().filter(|&b| b != b'.').collect();
    let count = digits.len() as i32;
    let scale = exponent + 1 - count; // value = digits × 10^scale

    if scale >= 0 && exponent.abs() < count + 7 {
        out.extend_from_slice(&digits);
        out.extend(std::iter::repeat_n(b'0', scale as usize));
    } else if scale < 0 && (scale > -7 || exponent.abs() < 4) {
        let point = count + scale;
        if point <= 0 {
            out.extend_from_slice(b"0.");
            out.extend(std::iter::repeat_n(b'0', -point as usize));
            out.extend_from_slice(&digits);
        } else {
            out.extend_from_slice(&digits[..point as usize]);
            out.push(b'.');
            out.extend_from_slice(&digits[point as usize..]);
        }
    } else {
        out.push(digits[0]);
        if count > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
        out.extend_from_slice(itoa::Buffer::new().format(exponent.unsigned_abs()).as_bytes());
    }
}

/// Appends a double as Redis prints coordinates: rounded to 17 decimals, zeros at the end cut off, without an exponent.
pub fn format_decimal(value: f64, out: &mut Vec<u8>) {
    if !value.is_finite() {
        return format_double(value, out);
    }
    let start = out.len();
    std::io::Write::write_fmt(out, format_args!("{value:.17}")).expect("a vector takes everything");
    let text = &out[start..];
    let zeros = text.iter().rev().take_while(|&&byte| byte == b'0').count();
    let point = text[text.len() - zeros - 1] == b'.';
    out.truncate(out.len() - zeros - usize::from(point));
    if &out[start..] == b"-0" {
        out.remove(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_strictly_as_redis_does() {
        let check = |text: &str, expected: Option<i64>| assert_eq!(parse_i64(text.as_bytes()), expected, "{text}");
        check("0", Some(0));
        check("-1", Some(-1));
        check("9223372036854775807", Some(i64::MAX));
        check("-9223372036854775808", Some(i64::MIN));
        for bad in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "-9223372036854775809"] {
            check(bad, None);
        }
        check("99999999999999999999", None);
    }

    #[test]
    fn doubles_are_printed_as_redis_7_2_does() {
        let check = |value: f64, expected: &str| {
            let mut out = Vec::new();
            format_double(value, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        check(0.0, "0");
        check(-0.0, "-0");
        check(3.0, "3");
        check(0.1, "0.1");
        check(-1.5, "-1.5");
        check(1e20, "1e+20");
        check(1234567.0, "1234567");
        check(1e7, "10000000");
        check(1e8, "100000000");
        check(-1e18, "-1000000000000000000");
        check(9007199254740993.0, "9007199254740992");
        check(1e19, "1e+19");
        check(0.000001, "0.000001");
        check(1e-7, "1e-7");
        check(5e-324, "5e-324");
        check(f64::MAX, "1.7976931348623157e+308");
        check(f64::INFINITY, "inf");
        check(f64::NEG_INFINITY, "-inf");
        check(f64::NAN, "nan");
    }

    #[test]
    fn coordinates_are_printed_with_all_their_digits() {
        let check = |value: f64, expected: &str| {
            let mut out = b"=".to_vec();
            format_decimal(value, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), format!("={expected}"));
        };
        check(0.0, "0");
        check(-0.0, "0");
        check(100.0, "100");
        check(13.361389338970184, "13.36138933897018433");
        check(-1e-17, "-0.00000000000000001");
        check(1e-18, "0");
        check(-1e-18, "0");
        check(1e20, "100000000000000000000");
        check(f64::NEG_INFINITY, "-inf");
    }
}
