//! Numbers, durations and sizes as HAProxy writes them (configuration manual 2.4).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The unit of a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    /// Milliseconds: nearly all keywords.
    Milliseconds,
    /// Seconds: `stats timeout` reads milliseconds, a few others seconds.
    Seconds,
}

impl TimeUnit {
    /// Returns the longest duration: HAProxy keeps 31 bits of the keyword's unit.
    const fn max(self) -> Duration {
        match self {
            TimeUnit::Milliseconds => Duration::from_millis(i32::MAX as u64),
            TimeUnit::Seconds => Duration::from_secs(i32::MAX as u64),
        }
    }

    /// Hints at the units of [`time`].
    pub(crate) const fn hint(self) -> &'static str {
        match self {
            TimeUnit::Milliseconds => TIME_HINT,
            TimeUnit::Seconds => "a duration is a number with us, ms, s, m, h or d; a bare number is seconds",
        }
    }
}

/// Parses a duration: digits and `us`, `ms`, `s`, `m`, `h` or `d`.
pub(crate) fn time(text: &str, unit: TimeUnit) -> Result<Duration, String> {
    let (digits, suffix) = digits(text);
    // Text after a unit is ignored: see `behind_unit`.
    let suffix = &suffix[..suffix.len() - behind_unit(text).len()];
    if digits.is_empty() {
        return Err(format!("a duration was expected, not '{text}'"));
    }
    let nanos_per_unit: u128 = match suffix {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" if unit == TimeUnit::Milliseconds => 1_000_000,
        "" => 1_000_000_000,
        other => return Err(format!("unexpected '{other}' after the number in the duration '{text}'")),
    };
    let overflow = || {
        let max = match unit {
            TimeUnit::Milliseconds => "ms or ~24.8 days",
            TimeUnit::Seconds => "s or ~68 years",
        };
        format!("timer overflow in '{text}' (maximum value is 2147483647 {max})")
    };
    let number: u64 = digits.parse().map_err(|_| overflow())?;
    let nanos = u128::from(number) * nanos_per_unit;
    if nanos > unit.max().as_nanos() {
        return Err(overflow());
    }
    // Rounded up, so that no duration but 0 becomes 0, which means none.
    Ok(Duration::from_millis(nanos.div_ceil(1_000_000) as u64))
}

/// Returns the text after the unit of a duration: empty unless more follows a unit (`15min`, `2sec`). HAProxy uses the
/// part before it and warns.
pub(crate) fn behind_unit(text: &str) -> &str {
    let (number, suffix) = digits(text);
    let units = ["us", "ms", "s", "m", "h", "d"];
    if number.is_empty() {
        return "";
    }
    units.iter().find_map(|unit| suffix.strip_prefix(unit)).unwrap_or("")
}

/// Returns whether a duration in milliseconds has no unit and is so small that seconds were probably meant.
pub(crate) fn is_suspicious(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse().is_ok_and(|value: u64| (1..100).contains(&value))
}

/// Hints at the units of [`time`] for the keywords whose unit is milliseconds.
pub(crate) const TIME_HINT: &str = "a duration is a number with us, ms, s, m, h or d; a bare number is milliseconds";

/// Hints at the units of [`size`].
pub(crate) const SIZE_HINT: &str = "a size is a number of bytes, or one with k, m or g";

/// Parses a size in bytes: digits and `k`, `m` or `g`.
pub(crate) fn size(text: &str, max: u64) -> Result<u64, String> {
    let (digits, suffix) = digits(text);
    if digits.is_empty() {
        return Err(format!("a size was expected, not '{text}'"));
    }
    let factor: u64 = match suffix {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        other => return Err(format!("unexpected '{other}' after the number in the size '{text}'")),
    };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
        Some(bytes) if bytes <= max => Ok(bytes),
        _ => Err(format!("the size '{text}' is too large (maximum value is {max} bytes)")),
    }
}

/// Parses a whole number within a range.
pub(crate) fn integer(text: &str, min: i64, max: i64) -> Result<i64, String> {
    let negative = text.strip_prefix('-');
    let number = negative.or(text.strip_prefix('+')).unwrap_or(text);
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("a whole number was expected, not '{text}'"));
    }
    match text.parse::<i64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ if max == i64::MAX => Err(format!("the value must be at least {min} (was {text})")),
        _ => Err(format!("the value must be between {min} and {max} (was {text})")),
    }
}

/// Parses a whole number within a range, and ignores text after its digits, as HAProxy does for most numbers (`maxconn
/// 100;`).
pub(crate) fn leading_integer(text: &str, min: i64, max: i64) -> Result<i64, String> {
    let sign = usize::from(text.starts_with(['-', '+']));
    let end = sign + digits(&text[sign..]).0.len();
    integer(if end > sign { &text[..end] } else { text }, min, max)
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses a whole number as `strtoul` does with base 0: hexadecimal behind `0x`, octal behind `0`.
pub(crate) fn any_base(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    let is_bare = digits.starts_with(|first: char| first.is_ascii_hexdigit());
    i64::from_str_radix(digits, base).ok().filter(|_| is_bare).map(|number| sign * number)
}

/// Returns an IPv4 mask, dotted or as the number of its bits.
pub(crate) fn mask_v4(text: &str) -> Result<u32, String> {
    let bits = text.parse::<u32>().ok().filter(|bits| *bits <= 32);
    let mask = bits.map(|bits| u32::MAX.checked_shl(32 - bits).unwrap_or(0));
    mask.or_else(|| text.parse::<Ipv4Addr>().ok().map(u32::from)).ok_or_else(|| format!("'{text}' is no IPv4 mask"))
}

/// Returns an IPv6 mask, as an address or as the number of its bits.
pub(crate) fn mask_v6(text: &str) -> Result<Ipv6Addr, String> {
    let bits = text.parse::<u32>().ok().filter(|bits| *bits <= 128);
    let mask = bits.map(|bits| Ipv6Addr::from(u128::MAX.checked_shl(128 - bits).unwrap_or(0)));
    mask.or_else(|| text.parse().ok()).ok_or_else(|| format!("'{text}' is no IPv6 mask"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<u64, &str>) {
        match (time(text, TimeUnit::Milliseconds), expected) {
            (Ok(found), Ok(ms)) => assert_eq!(found.as_millis() as u64, ms, "{text}"),
            (Err(found), Err(part)) => assert!(found.contains(part), "{text}: {found}"),
            (found, _) => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn numbers_of_any_base() {
        let cases = [("0", Some(0)), ("9", Some(9)), ("+9", Some(9)), ("-1", Some(-1)), ("0xE0", Some(0xe0))];
        let others =
            [("017", Some(15)), ("08", None), ("0x", None), ("", None), ("-", None), ("--1", None), ("1a", None)];
        for (text, expected) in cases.into_iter().chain(others) {
            assert_eq!(any_base(text), expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        check("5000", Ok(5000));
        check("0", Ok(0));
        check("1500us", Ok(2));
        check("1us", Ok(1));
        check("10ms", Ok(10));
        check("1m", Ok(60_000));
        check("2h", Ok(7_200_000));
        check("24d", Ok(2_073_600_000));
        check("25d", Err("overflow"));
        check("2147483647", Ok(2_147_483_647));
        check("2147483648", Err("overflow"));
        check("99999999999999999999999", Err("overflow"));
        check("5x", Err("unexpected 'x'"));
        check("15min", Ok(900_000));
        check("2sec", Ok(2000));
        check("3msec", Ok(3));
        check("1s[", Ok(1000));
        check("5u", Err("unexpected 'u'"));
        assert_eq!((behind_unit("15min"), behind_unit("5x"), behind_unit("5ms"), behind_unit("s")), ("in", "", "", ""));
        check("5 s", Err("unexpected ' s'"));
        check("", Err("expected"));
        check("-1", Err("expected"));
        assert_eq!(time("3", TimeUnit::Seconds), Ok(Duration::from_secs(3)));
        assert_eq!(time("24855d", TimeUnit::Seconds), Ok(Duration::from_secs(24855 * 86_400)));
        assert_eq!(time("2147483647", TimeUnit::Seconds), Ok(Duration::from_secs(2_147_483_647)));
        let overflow = time("2147483648", TimeUnit::Seconds).expect_err("too long");
        assert!(overflow.ends_with("(maximum value is 2147483647 s or ~68 years)"), "{overflow}");
    }

    #[test]
    fn sizes_and_numbers() {
        assert_eq!(size("16k", u64::MAX), Ok(16384));
        assert_eq!(size("1G", u64::MAX), Ok(1 << 30));
        assert!(size("99999999999g", u64::MAX).is_err());
        assert!(size("12x", u64::MAX).is_err());
        assert!(size("2m", 1 << 20).is_err());
        assert_eq!(integer("-5", -10, 10), Ok(-5));
        assert!(integer("11", 0, 10).expect_err("too large").contains("between 0 and 10"));
        assert!(integer("1k", 0, 10).is_err());
        assert_eq!((leading_integer("7x", 0, 10), leading_integer("-5;", -10, 10)), (Ok(7), Ok(-5)));
        assert!(leading_integer("x", 0, 10).is_err() && leading_integer("11x", 0, 10).is_err());
        assert!(integer("99999999999999999999", 0, i64::MAX).is_err());
    }
}
