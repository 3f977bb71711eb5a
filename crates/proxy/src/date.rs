//! Dates in the formats of log lines.
//!
//! Dates are in local time. Each thread caches the texts of the last two seconds it formatted, so a line costs a copy
//! and three digits.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// The format of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `20/Nov/2026:22:03:01.440`, local time (`%t`, `%tr`).
    LocalMilliseconds,
    /// `20/Nov/2026:22:03:01 +0100`, local time (`%Tl`, `%trl`).
    Local,
    /// `20/Nov/2026:21:03:01 +0000` (`%T`, `%trg`).
    Utc,
}

/// A second's texts.
#[derive(Debug, Default)]
struct Second {
    at: i64,
    /// `20/Nov/2026:22:03:01`
    log: Vec<u8>,
    /// `Nov 20 22:03:01`
    syslog: Vec<u8>,
    /// `2026-11-20T22:03:01`
    iso: Vec<u8>,
    /// `+01:00`
    offset: Vec<u8>,
    /// `20/Nov/2026:21:03:01 +0000`
    utc: Vec<u8>,
}

impl Second {
    fn set(&mut self, at: i64) {
        let stamp = jiff::Timestamp::from_second(at).unwrap_or_default();
        let time = stamp.to_zoned(crate::time_zone::local().clone());
        let utc = stamp.to_zoned(jiff::tz::TimeZone::UTC);
        for (text, time, format) in [
            (&mut self.log, &time, "%d/%b/%Y:%H:%M:%S"),
            (&mut self.syslog, &time, "%b %e %H:%M:%S"),
            (&mut self.iso, &time, "%Y-%m-%dT%H:%M:%S"),
            (&mut self.offset, &time, "%:z"),
            (&mut self.utc, &utc, "%d/%b/%Y:%H:%M:%S +0000"),
        ] {
            text.clear();
            // Writing to a vector can't fail.
            let _ = write!(text, "{}", time.strftime(format));
        }
        self.at = at;
    }
}

thread_local! {
    static SECONDS: RefCell<[Second; 2]> = RefCell::default();
}

fn with_second<T>(time: SystemTime, use_it: impl FnOnce(&Second, u32) -> T) -> T {
    let (at, micros) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_micros()),
        Err(_) => (0, 0),
    };
    SECONDS.with_borrow_mut(|seconds| {
        let second = &mut seconds[(at & 1) as usize];
        if second.at != at || second.log.is_empty() {
            second.set(at);
        }
        use_it(second, micros)
    })
}

/// Returns the seconds since 1970.
pub(crate) fn unix_seconds() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
}

/// Appends a date.
pub fn append_date(time: SystemTime, clock: Clock, out: &mut Vec<u8>) {
    with_second(time, |second, micros| match clock {
        Clock::Utc => out.extend_from_slice(&second.utc),
        Clock::Local => {
            out.extend_from_slice(&second.log);
            out.push(b' ');
            out.extend(second.offset.iter().filter(|byte| **byte != b':'));
        }
        Clock::LocalMilliseconds => {
            out.extend_from_slice(&second.log);
            out.push(b'.');
            append_digits::<3>(out, micros / 1000);
        }
    });
}

/// Appends `2026-11-20T22:03:01.440123+01:00`.
pub(crate) fn append_iso(time: SystemTime, out: &mut Vec<u8>) {
    with_second(time, |second, micros| {
        out.extend_from_slice(&second.iso);
        out.push(b'.');
        append_digits::<6>(out, micros);
        out.extend_from_slice(&second.offset);
    });
}

/// Appends `Nov 20 22:03:01`.
pub(crate) fn append_syslog(time: SystemTime, out: &mut Vec<u8>) {
    with_second(time, |second, _| out.extend_from_slice(&second.syslog));
}

/// Appends a number with exactly `N` digits.
fn append_digits<const N: usize>(out: &mut Vec<u8>, mut number: u32) {
    let mut digits = [0; N];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_keep_their_second() {
        for (ms, end) in [(0u64, "12.000"), (7, "12.007"), (1_999, "13.999"), (2_000, "14.000"), (1_000, "13.000")] {
            let mut out = Vec::new();
            let time = UNIX_EPOCH + Duration::from_millis(1_795_212_852_000 + ms);
            append_date(time, Clock::LocalMilliseconds, &mut out);
            assert!(String::from_utf8(out).unwrap().ends_with(end), "{ms} ms");
        }
    }
}
