//! Date converters: HTTP dates, and strftime formats.
//!
//! Dates are formatted by the C library's `strftime`, called as HAProxy calls it, so all of its conversions are
//! available.

use std::ffi::{CStr, CString};

use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, value};
use crate::time_zone::calendar;

pub(super) fn http_date(args: &Args<'_>) -> Compiled {
    let unit = match &*args.text(1)? {
        b"" | b"s" => Unit::Seconds,
        b"ms" => Unit::Milliseconds,
        _ => Unit::Microseconds,
    };
    value((args.int(0)?.unwrap_or(0), unit), |(offset, unit), value, _| {
        render_http_date(value.to_int()?, *offset, *unit).map(Value::owned_text)
    })
}

/// `date`: parses an HTTP date into seconds since 1970.
pub(super) fn http_to_date(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| value.with_text(parse_http_date).map(Value::Int))
}

fn formatted(args: &Args<'_>, unit: Unit, local: bool) -> Compiled {
    let format = DateFormat::new(&args.text(0)?, args.int(1)?.unwrap_or(0), unit, local);
    value(format.ok_or("a zero byte in a date's format")?, |format, value, _| {
        format.render(value.to_int()?).map(Value::owned_text)
    })
}

pub(super) fn ltime(args: &Args<'_>) -> Compiled {
    formatted(args, Unit::Seconds, true)
}

pub(super) fn utime(args: &Args<'_>) -> Compiled {
    formatted(args, Unit::Seconds, false)
}

pub(super) fn ms_ltime(args: &Args<'_>) -> Compiled {
    formatted(args, Unit::Milliseconds, true)
}

pub(super) fn ms_utime(args: &Args<'_>) -> Compiled {
    formatted(args, Unit::Milliseconds, false)
}

pub(super) fn us_ltime(args: &Args<'_>) -> Compiled {
    formatted(args, Unit::Microseconds, true)
}

pub(super) fn us_utime(args: &Args<'_>) -> Compiled {
    formatted(args, Unit::Microseconds, false)
}

/// The unit of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `s`.
    Seconds,
    /// `ms`.
    Milliseconds,
    /// `us`.
    Microseconds,
}

impl Unit {
    /// Returns the number of units per second.
    fn per_second(self) -> i64 {
        match self {
            Unit::Seconds => 1,
            Unit::Milliseconds => 1_000,
            Unit::Microseconds => 1_000_000,
        }
    }

    /// Returns the whole seconds and the remaining nanoseconds. For times before 1970 the remainder is negative and is
    /// reinterpreted as unsigned, as in HAProxy.
    fn split(self, date: i64) -> (i64, u64) {
        let nanoseconds = (date % self.per_second()) * (1_000_000_000 / self.per_second());
        (date / self.per_second(), nanoseconds as u64)
    }
}

/// A parsed `strftime` format, with the unit, offset and time zone of the dates that it formats.
#[derive(Clone, Debug)]
pub struct DateFormat {
    /// The format, split at each `%N` (which is not a conversion of `strftime` and is handled here): the text before
    /// it, and the number of fractional digits to print after that text.
    parts: Vec<(CString, Option<u32>)>,
    /// An offset added to the date, always in seconds regardless of the unit, as in HAProxy.
    offset: i64,
    /// The unit of the date.
    unit: Unit,
    /// Whether dates are in the machine's time zone instead of UTC.
    local: bool,
}

/// The mask that HAProxy applies to a date in seconds so that its year stays in range.
const DATE_MASK: i64 = 0x007f_ffff_ffff_ffff;

/// The size of the buffer for one formatted part of a date, in bytes.
const RENDERED: usize = 4096;

impl DateFormat {
    /// Parses a format; `None` if it contains a zero byte. `%N` is recognized only if the unit is finer than a second.
    pub fn new(format: &[u8], offset: i64, unit: Unit, local: bool) -> Option<DateFormat> {
        let mut parts = Vec::new();
        let mut text = Vec::new();
        let mut rest = format;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            if *byte != b'%' || unit == Unit::Seconds {
                text.push(*byte);
                continue;
            }
            let (width, tail) = match after {
                [digit @ b'1'..=b'9', tail @ ..] => (u32::from(digit - b'0'), tail),
                tail => (9, tail),
            };
            if let [b'N', tail @ ..] = tail {
                parts.push((CString::new(std::mem::take(&mut text)).ok()?, Some(width)));
                rest = tail;
            } else {
                // The character after `%` is copied as well, so that `%%N` yields a percent sign and an N.
                text.push(b'%');
                if let Some((letter, tail)) = after.split_first() {
                    text.push(*letter);
                    rest = tail;
                }
            }
        }
        parts.push((CString::new(text).ok()?, None));
        Some(DateFormat { parts, offset, unit, local })
    }

    /// Returns the date as text; `None` if its year is out of the range of the C library's calendar. A part of the
    /// format whose result exceeds 4 kB is left out.
    pub fn render(&self, date: i64) -> Option<Vec<u8>> {
        let (seconds, nanoseconds) = match self.unit {
            Unit::Seconds => (date & DATE_MASK, 0),
            unit => unit.split(date),
        };
        let seconds = seconds.wrapping_add(self.offset);
        let calendar = calendar(seconds, self.local)?;
        let mut out = Vec::new();
        for (format, digits) in &self.parts {
            append(&calendar, format, &mut out)?;
            if let Some(digits) = digits {
                out.extend_from_slice(&format!("{nanoseconds:09}").as_bytes()[..*digits as usize]);
            }
        }
        Some(out)
    }
}

/// Formats a date as an HTTP date (RFC 9110 5.6.7).
fn render_http_date(date: i64, offset: i64, unit: Unit) -> Option<Vec<u8>> {
    let date = date.wrapping_add(offset);
    let at = calendar((date / unit.per_second()) & DATE_MASK, false)?;
    // As in HAProxy, the part below one second is printed as a number of units, not as a decimal fraction.
    let rest = match unit {
        Unit::Seconds => String::new(),
        _ => format!(".{}", date % unit.per_second()),
    };
    let day = DAYS.get(usize::try_from(at.tm_wday).ok()?)?;
    let month = MONTHS.get(usize::try_from(at.tm_mon).ok()?)?;
    let (year, hour, minute, second) = (i64::from(at.tm_year) + 1900, at.tm_hour, at.tm_min, at.tm_sec);
    Some(format!("{day}, {:02} {month} {year:04} {hour:02}:{minute:02}:{second:02}{rest} GMT", at.tm_mday).into_bytes())
}

/// Parses an HTTP date, in any of the three forms of RFC 9110 5.6.7, into seconds since 1970. As in HAProxy, numbers
/// are not range-checked, so 31 June is read as 1 July, and text after the date is ignored.
pub(crate) fn parse_http_date(text: &[u8]) -> Option<i64> {
    parse_short(text).or_else(|| parse_rfc850(text))
}

/// Parses the two forms that begin with a three-letter day name.
fn parse_short(text: &[u8]) -> Option<i64> {
    let mut input = DateInput(text);
    input.word(&DAYS)?;
    if input.0.starts_with(b",") {
        input.expect(b", ")?;
        let day = input.digits(2)?;
        input.expect(b" ")?;
        let month = input.word(&MONTHS)?;
        input.expect(b" ")?;
        let year = input.digits(4)?;
        input.expect(b" ")?;
        let time = input.time()?;
        input.expect(b" GMT")?;
        return Some(seconds(year, month, day, time));
    }
    input.expect(b" ")?;
    let month = input.word(&MONTHS)?;
    input.expect(b" ")?;
    let day = if input.expect(b" ").is_some() { input.digits(1)? } else { input.digits(2)? };
    input.expect(b" ")?;
    let time = input.time()?;
    input.expect(b" ")?;
    Some(seconds(input.digits(4)?, month, day, time))
}

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const LONG_DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The unparsed rest of a date.
struct DateInput<'a>(&'a [u8]);

impl DateInput<'_> {
    fn expect(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// Consumes the next name and returns its index in `names`. The comparison is case-sensitive.
    fn word(&mut self, names: &[&str]) -> Option<i64> {
        let place = names.iter().position(|name| self.0.starts_with(name.as_bytes()))?;
        self.0 = &self.0[names[place].len()..];
        Some(place as i64)
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        let number = digits
            .iter()
            .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))?;
        self.0 = rest;
        Some(number)
    }

    /// Parses `HH:MM:SS` and returns it in seconds.
    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.expect(b":")?;
        let minute = self.digits(2)?;
        self.expect(b":")?;
        Some((hour * 60 + minute) * 60 + self.digits(2)?)
    }
}

/// Parses the obsolete RFC 850 form, which begins with the full day name. The year has two or four digits.
fn parse_rfc850(text: &[u8]) -> Option<i64> {
    let mut input = DateInput(text);
    input.word(&LONG_DAYS)?;
    input.expect(b", ")?;
    let day = input.digits(2)?;
    input.expect(b"-")?;
    let month = input.word(&MONTHS)?;
    input.expect(b"-")?;
    let mut year = input.digits(2)?;
    if input.0.starts_with(b" ") {
        year += if year <= 60 { 2000 } else { 1900 };
    } else {
        year = year * 100 + input.digits(2)?;
    }
    input.expect(b" ")?;
    let time = input.time()?;
    input.expect(b" GMT")?;
    Some(seconds(year, month, day, time))
}

/// Returns the seconds since 1970 of a Gregorian date (months count from 0) and a time of day in seconds.
fn seconds(year: i64, month: i64, day: i64, time: i64) -> i64 {
    // For this calculation a year begins in March, so that the leap day is its last day.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 + day
            - 719_469;
    days * 86_400 + time
}

#[allow(unsafe_code)]
fn append(calendar: &libc::tm, format: &CStr, out: &mut Vec<u8>) -> Option<()> {
    if format.is_empty() {
        return Some(());
    }
    let mut buffer = [0u8; RENDERED];
    // SAFETY: the length passed is that of the buffer, the format is zero-terminated, and the calendar was filled in by
    // the C library. `strftime` writes at most that many bytes.
    let length = unsafe { libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), calendar) };
    // 0 means that the result is empty, as for `%p` in some locales, or does not fit; either way nothing is appended.
    out.extend_from_slice(&buffer[..length]);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(format: &str, offset: i64, unit: Unit, date: i64, expected: &str) {
        let format = DateFormat::new(format.as_bytes(), offset, unit, false).expect("no zero byte");
        assert_eq!(String::from_utf8_lossy(&format.render(date).expect("a date")), expected);
    }

    #[test]
    fn dates_of_fields_are_parsed() {
        let parse = |text: &str| parse_http_date(text.as_bytes());
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse("Sun Nov  6 08:49:37 1994"), Some(784_111_777));
        assert_eq!(parse("Thu, 29 Feb 2024 00:00:00 GMT and more"), Some(1_709_164_800));
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse("Sun, 6 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(parse("sun, 06 Nov 1994 08:49:37 GMT"), None);
    }

    #[test]
    fn dates() {
        check("%Y-%m-%d %H:%M:%S", 0, Unit::Seconds, 1_400_000_000, "2014-05-13 16:53:20");
        check("%s", 60, Unit::Seconds, 0, "60");
        check("%H:%M:%S.%3N %N %%N", 0, Unit::Milliseconds, 1_234, "00:00:01.234 234000000 %N");
        check("%s %6N", 1, Unit::Microseconds, 2_000_003, "3 000003");
        check("%3N", 0, Unit::Microseconds, -5, "184");
        check("%Y", 0, Unit::Seconds, -1, "1141709097");
        check("%N", 0, Unit::Seconds, 0, "%N");
        let text = |date, offset, unit| {
            String::from_utf8(render_http_date(date, offset, unit).expect("a date")).expect("ASCII")
        };
        assert_eq!(text(784_111_777, 0, Unit::Seconds), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(text(784_111_776_000, 1007, Unit::Milliseconds), "Sun, 06 Nov 1994 08:49:37.7 GMT");
        assert_eq!(text(i64::MAX, 10, Unit::Seconds), "Thu, 01 Jan 1970 00:00:09 GMT");
    }
}
