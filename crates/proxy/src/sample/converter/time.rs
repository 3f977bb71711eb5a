//! Date converters: HTTP dates, and strftime formats.
//!
//! Dates are formatted by the C library's `strftime`, called as HAProxy calls it, so all of its conversions are
//! available.

use std::ffi::{CStr, CString};
use std::time::SystemTime;

use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, value};
use crate::http_date::{DAYS, MONTHS, parse_http_date};
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

/// Returns the present time as an HTTP date.
pub(crate) fn present_http_date(now: SystemTime) -> Option<Vec<u8>> {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    render_http_date(i64::try_from(seconds).ok()?, 0, Unit::Seconds)
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
