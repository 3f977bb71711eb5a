//! Dates: for HTTP header fields, and by formats of strftime.
//!
//! The formats are the C library's own, called as HAProxy calls it, so that every conversion of the manual page is
//! there. Two calls into it are this module's `unsafe`.

use std::ffi::{CStr, CString};

/// In which unit a date counts.
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
    /// How many of it a second has.
    fn per_second(self) -> i64 {
        match self {
            Unit::Seconds => 1,
            Unit::Milliseconds => 1_000,
            Unit::Microseconds => 1_000_000,
        }
    }

    /// Whole seconds, and nanoseconds beyond them.
    fn split(self, date: i64) -> (i64, u32) {
        let nanoseconds = date.rem_euclid(self.per_second()) * (1_000_000_000 / self.per_second());
        (date.div_euclid(self.per_second()), nanoseconds as u32)
    }
}

/// A format of strftime, and how it is used.
#[derive(Clone, Debug)]
pub struct DateFormat {
    /// Cut where `%N` stands, which is ours: the text, and how many digits of the fraction follow it.
    parts: Vec<(CString, Option<u32>)>,
    /// Added, in the unit of the date.
    offset: i64,
    /// Of the date.
    unit: Unit,
    /// In the machine's time zone instead of UTC.
    local: bool,
}

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

    /// The date as text; `None` if its year does not fit the calendar or the text is longer than 4 kB.
    pub fn render(&self, date: i64) -> Option<Vec<u8>> {
        let (seconds, nanoseconds) = self.unit.split(date.saturating_add(self.offset));
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

/// A date as header fields have it (RFC 9110 5.6.7).
pub(super) fn http_date(date: i64, offset: i64, unit: Unit) -> Option<Vec<u8>> {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let date = date.saturating_add(offset);
    let at = calendar(unit.split(date).0, false)?;
    // What is less than a second is shown as HAProxy does: a count, not a decimal fraction.
    let rest = match unit {
        Unit::Seconds => String::new(),
        _ => format!(".{}", date.rem_euclid(unit.per_second())),
    };
    let day = DAYS.get(usize::try_from(at.tm_wday).ok()?)?;
    let month = MONTHS.get(usize::try_from(at.tm_mon).ok()?)?;
    let (year, hour, minute, second) = (i64::from(at.tm_year) + 1900, at.tm_hour, at.tm_min, at.tm_sec);
    Some(format!("{day}, {:02} {month} {year:04} {hour:02}:{minute:02}:{second:02}{rest} GMT", at.tm_mday).into_bytes())
}

/// Lets the C library read the time zone now: inside a chroot it would find none and take UTC.
pub fn read_time_zone() {
    calendar(0, true);
}

#[allow(unsafe_code)]
fn calendar(seconds: i64, local: bool) -> Option<libc::tm> {
    // SAFETY: `tm` is a plain struct of integers and a pointer that may be null, so all zeros are a value of it.
    let mut calendar: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the right types; the functions write nothing else and keep neither.
    // The time zone's name that `localtime_r` leaves in `calendar` is the C library's and lives as long as the process.
    let done = unsafe {
        if local { libc::localtime_r(&seconds, &mut calendar) } else { libc::gmtime_r(&seconds, &mut calendar) }
    };
    (!done.is_null()).then_some(calendar)
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
    fn dates() {
        check("%Y-%m-%d %H:%M:%S", 0, Unit::Seconds, 1_400_000_000, "2014-05-13 16:53:20");
        check("%s", 60, Unit::Seconds, 0, "60");
        check("%H:%M:%S.%3N %N %%N", 0, Unit::Milliseconds, 1_234, "00:00:01.234 234000000 %N");
        check("%6N", 1, Unit::Microseconds, -2, "999999");
        check("%N", 0, Unit::Seconds, 0, "%N");
        let text =
            |date, offset, unit| String::from_utf8(http_date(date, offset, unit).expect("a date")).expect("ASCII");
        assert_eq!(text(784_111_777, 0, Unit::Seconds), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(text(784_111_776_000, 1007, Unit::Milliseconds), "Sun, 06 Nov 1994 08:49:37.7 GMT");
        assert_eq!(http_date(i64::MAX, 0, Unit::Seconds), None);
    }
}
