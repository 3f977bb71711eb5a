//! Dates: for HTTP header fields, and by formats of strftime.
//!
//! The formats are the C library's own, called as HAProxy calls it, so that every conversion of the manual page is
//! there.

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

/// `date`: the seconds of a date of HTTP.
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

    /// Whole seconds, and nanoseconds beyond them. Before 1970 these are below 0 and taken without a sign, as
    /// HAProxy's.
    fn split(self, date: i64) -> (i64, u64) {
        let nanoseconds = (date % self.per_second()) * (1_000_000_000 / self.per_second());
        (date / self.per_second(), nanoseconds as u64)
    }
}

/// A format of strftime, and how it is used.
#[derive(Clone, Debug)]
pub struct DateFormat {
    /// Cut where `%N` stands, which is ours: the text, and how many digits of the fraction follow it.
    parts: Vec<(CString, Option<u32>)>,
    /// Added, in seconds whatever the unit, as in HAProxy.
    offset: i64,
    /// The unit of the date.
    unit: Unit,
    /// Whether times are in the machine's time zone instead of UTC.
    local: bool,
}

/// The bits of a date in seconds that HAProxy keeps, so that its year fits.
const DATE_MASK: i64 = 0x007f_ffff_ffff_ffff;

/// Bytes that one part of a date may become.
const RENDERED: usize = 4096;

impl DateFormat {
    /// Takes a format; `%N` is known where the unit is finer than a second. `None` if it contains a zero byte.
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
                // The conversion's own letter goes along, so that `%%N` is a percent sign and an N.
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

    /// Returns the date as text; `None` if its year does not fit the calendar or the text is longer than 4 kB.
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

/// Returns a date as header fields have it (RFC 9110 5.6.7).
fn render_http_date(date: i64, offset: i64, unit: Unit) -> Option<Vec<u8>> {
    let date = date.wrapping_add(offset);
    let at = calendar((date / unit.per_second()) & DATE_MASK, false)?;
    // The part below a second is shown as in HAProxy: a count, not a decimal fraction.
    let rest = match unit {
        Unit::Seconds => String::new(),
        _ => format!(".{}", date % unit.per_second()),
    };
    let day = DAYS.get(usize::try_from(at.tm_wday).ok()?)?;
    let month = MONTHS.get(usize::try_from(at.tm_mon).ok()?)?;
    let (year, hour, minute, second) = (i64::from(at.tm_year) + 1900, at.tm_hour, at.tm_min, at.tm_sec);
    Some(format!("{day}, {:02} {month} {year:04} {hour:02}:{minute:02}:{second:02}{rest} GMT", at.tm_mday).into_bytes())
}

/// Parses a date of a header field, in any of the three forms of RFC 9110 5.6.7, into the time since 1970. As in
/// HAProxy, numbers are not checked, so the 31st of June is the 1st of July, and text after the date is ignored.
fn parse_http_date(text: &[u8]) -> Option<i64> {
    parse_short(text).or_else(|| parse_rfc850(text))
}

/// Returns the two forms that begin with three letters of the day.
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

    /// Returns the place of the name that comes next, in upper and lower case as it stands.
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

    /// Hours, minutes and seconds, in seconds.
    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.expect(b":")?;
        let minute = self.digits(2)?;
        self.expect(b":")?;
        Some((hour * 60 + minute) * 60 + self.digits(2)?)
    }
}

/// Returns the older form with the whole name of the day; its year has two digits, or four.
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

/// Seconds since 1970 of a day of the Gregorian calendar, months from 0, and a time of it.
fn seconds(year: i64, month: i64, day: i64, time: i64) -> i64 {
    // Years begin in March, so that the day that leap years add is their last.
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
    // SAFETY: the buffer is as long as said, the format ends in a zero byte, and the calendar was filled by the
    // library itself. The function writes at most the given bytes.
    let length = unsafe { libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), calendar) };
    // 0 also means that nothing was to be written, as for `%p` in some locales; the text is then just empty.
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
