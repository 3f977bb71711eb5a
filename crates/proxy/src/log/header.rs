//! What stands before a message on the wire (`log … format`), and how dates are written.
//!
//! Dates are local time. Each thread keeps the texts of the last two seconds it needed, so a line costs a copy and
//! three digits.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::model::{LogTarget, LogWire};

/// What a header says of this process.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The tag: base name of `argv[0]`.
    pub tag: Box<str>,
    /// Process number.
    pub pid: u32,
}

impl Default for Identity {
    fn default() -> Identity {
        let name = std::env::args_os().next().unwrap_or_default();
        let tag = std::path::Path::new(&name).file_name().map(|name| name.to_string_lossy().into_owned());
        Identity { tag: tag.unwrap_or_else(|| "sluicegate".to_owned()).into(), pid: std::process::id() }
    }
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
}

impl Second {
    fn set(&mut self, at: i64) {
        let time = jiff::Timestamp::from_second(at).unwrap_or_default().to_zoned(crate::time_zone::local().clone());
        for (text, format) in [
            (&mut self.log, "%d/%b/%Y:%H:%M:%S"),
            (&mut self.syslog, "%b %e %H:%M:%S"),
            (&mut self.iso, "%Y-%m-%dT%H:%M:%S"),
            (&mut self.offset, "%:z"),
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

/// `20/Nov/2026:22:03:01.440`, local time (`%t`, `%tr`).
pub fn append_date(time: SystemTime, out: &mut Vec<u8>) {
    with_second(time, |second, micros| {
        out.extend_from_slice(&second.log);
        out.push(b'.');
        append_digits(out, micros / 1000, 3);
    });
}

/// `number` with exactly `digits` digits.
fn append_digits(out: &mut Vec<u8>, number: u32, digits: u32) {
    out.extend((0..digits).rev().map(|place| b'0' + (number / 10u32.pow(place) % 10) as u8));
}

/// Appends what stands before a message of `level` on its way to `target`.
pub(super) fn append(target: &LogTarget, level: u8, now: SystemTime, identity: &Identity, out: &mut Vec<u8>) {
    let mut number = itoa::Buffer::new();
    match target.format {
        LogWire::Raw => return,
        LogWire::Short => {
            out.push(b'<');
            out.extend_from_slice(number.format(level).as_bytes());
            out.push(b'>');
            return;
        }
        LogWire::Local | LogWire::Rfc3164 | LogWire::Rfc5424 => {}
    }
    out.push(b'<');
    out.extend_from_slice(number.format(u32::from(target.facility) * 8 + u32::from(level)).as_bytes());
    out.push(b'>');
    if target.format == LogWire::Rfc5424 {
        out.extend_from_slice(b"1 ");
        with_second(now, |second, micros| {
            out.extend_from_slice(&second.iso);
            out.push(b'.');
            append_digits(out, micros, 6);
            out.extend_from_slice(&second.offset);
        });
        out.extend_from_slice(b" - ");
        out.extend_from_slice(identity.tag.as_bytes());
        out.push(b' ');
        out.extend_from_slice(number.format(identity.pid).as_bytes());
        out.extend_from_slice(b" - - ");
        return;
    }
    with_second(now, |second, _| out.extend_from_slice(&second.syslog));
    if target.format == LogWire::Rfc3164 {
        // HAProxy says this unless `log-send-hostname` is set.
        out.extend_from_slice(b" localhost");
    }
    out.push(b' ');
    out.extend_from_slice(identity.tag.as_bytes());
    out.push(b'[');
    out.extend_from_slice(number.format(identity.pid).as_bytes());
    out.extend_from_slice(b"]: ");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_config::model::LogAddress;

    use super::*;

    fn check(format: LogWire, expected: &str) {
        let to = LogAddress::Stdout;
        let target = LogTarget { to, format, max_len: 1024, facility: 16, max_level: 7, min_level: 0 };
        let identity = Identity { tag: "haproxy".into(), pid: 29652 };
        let now = UNIX_EPOCH + Duration::new(1_795_212_852, 1_564_000);
        let mut out = Vec::new();
        append(&target, 6, now, &identity, &mut out);
        // Only the hour depends on the machine's time zone.
        let zone = jiff::Timestamp::from_second(1_795_212_852).unwrap().to_zoned(jiff::tz::TimeZone::system());
        let expected = expected
            .replace("{syslog}", &zone.strftime("%b %e %H:%M:%S").to_string())
            .replace("{iso}", &zone.strftime("%Y-%m-%dT%H:%M:%S").to_string())
            .replace("{offset}", &zone.strftime("%:z").to_string());
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn headers_are_haproxys() {
        check(LogWire::Raw, "");
        check(LogWire::Short, "<6>");
        check(LogWire::Local, "<134>{syslog} haproxy[29652]: ");
        check(LogWire::Rfc3164, "<134>{syslog} localhost haproxy[29652]: ");
        check(LogWire::Rfc5424, "<134>1 {iso}.001564{offset} - haproxy 29652 - - ");
    }

    #[test]
    fn dates_keep_their_second() {
        for (ms, end) in [(0u64, "12.000"), (7, "12.007"), (1_999, "13.999"), (2_000, "14.000"), (1_000, "13.000")] {
            let mut out = Vec::new();
            append_date(UNIX_EPOCH + Duration::from_millis(1_795_212_852_000 + ms), &mut out);
            assert!(String::from_utf8(out).unwrap().ends_with(end), "{ms} ms");
        }
    }
}
