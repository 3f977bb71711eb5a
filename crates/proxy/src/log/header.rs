//! What stands before a message on the wire (`log … format`), and how dates are written.
//!
//! Dates are local time. Each thread keeps the texts of the last two seconds it needed, so a line costs a copy and
//! three digits.

use std::cell::RefCell;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::model::{LogHost, LogTarget, LogWire};

/// What a header says of this process, besides its number, which is [`pid`].
#[derive(Clone, Debug)]
pub struct Identity {
    /// The tag where no `log-tag` says another: base name of `argv[0]`.
    pub tag: Box<str>,
    /// `log-send-hostname`.
    pub host: LogHost,
}

impl Default for Identity {
    fn default() -> Identity {
        let name = std::env::args_os().next().unwrap_or_default();
        let tag = std::path::Path::new(&name).file_name().map(|name| name.to_string_lossy().into_owned());
        Identity { tag: tag.unwrap_or_else(|| "sluicegate".to_owned()).into(), host: LogHost::Local }
    }
}

impl Identity {
    /// The host of a header, if the configuration wants one.
    fn host(&self) -> Option<&[u8]> {
        match &self.host {
            LogHost::Local => None,
            LogHost::Machine => Some(host_name()),
            LogHost::Named(name) => Some(name.as_bytes()),
        }
    }
}

/// The process number as [`refresh_pid`] knows it; asking the kernel for each line would be a system call each.
static PID: AtomicU32 = AtomicU32::new(0);

/// The number of this process, for headers and `%pid`.
pub fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => refresh_pid(),
        pid => pid,
    }
}

/// Asks for the number again: after a fork it is another one.
pub fn refresh_pid() -> u32 {
    let pid = std::process::id();
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// The machine's name, asked once.
pub fn host_name() -> &'static [u8] {
    static NAME: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        let mut buffer = [0u8; 256];
        // SAFETY: the pointer and the length describe `buffer`, which outlives the call; the last byte is kept out of
        // its reach, so the name ends in a zero whether or not it was cut.
        let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
        let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
        if result == 0 { buffer[..end].to_vec() } else { Vec::new() }
    });
    &NAME
}

/// How a date of a line is written.
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

/// `2026-11-20T22:03:01.440123+01:00`
fn append_iso(time: SystemTime, out: &mut Vec<u8>) {
    with_second(time, |second, micros| {
        out.extend_from_slice(&second.iso);
        out.push(b'.');
        append_digits::<6>(out, micros);
        out.extend_from_slice(&second.offset);
    });
}

/// `number` with exactly `N` digits.
fn append_digits<const N: usize>(out: &mut Vec<u8>, mut number: u32) {
    let mut digits = [0; N];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits);
}

/// Appends what stands before a message of `level` on its way to `target`; `structured` is its structured data, which
/// only one format carries.
pub(super) fn append(
    target: &LogTarget,
    level: u8,
    now: SystemTime,
    identity: &Identity,
    structured: &[u8],
    out: &mut Vec<u8>,
) {
    let facility = match target.format {
        LogWire::Raw => return,
        LogWire::Iso => None,
        LogWire::Short | LogWire::Timed => Some(0),
        _ => Some(target.facility),
    };
    let mut number = itoa::Buffer::new();
    if let Some(facility) = facility {
        out.push(b'<');
        out.extend_from_slice(number.format(u32::from(facility) * 8 + u32::from(level)).as_bytes());
        out.push(b'>');
    }
    let host = identity.host();
    let tag = target.tag.as_deref().unwrap_or(&identity.tag).as_bytes();
    match target.format {
        LogWire::Raw | LogWire::Short | LogWire::Priority => {}
        LogWire::Timed | LogWire::Iso => {
            append_iso(now, out);
            out.push(b' ');
        }
        LogWire::Rfc5424 => {
            out.extend_from_slice(b"1 ");
            append_iso(now, out);
            for word in [host.unwrap_or(b"-"), tag, number.format(pid()).as_bytes(), b"-"] {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            out.push(b' ');
            out.extend_from_slice(if structured.is_empty() { b"-" } else { structured });
            out.push(b' ');
        }
        LogWire::Unset | LogWire::Local | LogWire::Rfc3164 => {
            with_second(now, |second, _| out.extend_from_slice(&second.syslog));
            let host = match target.format {
                // HAProxy says this unless `log-send-hostname` is set.
                LogWire::Rfc3164 => Some(host.unwrap_or(b"localhost")),
                LogWire::Unset => host,
                _ => None,
            };
            if let Some(host) = host {
                out.push(b' ');
                out.extend_from_slice(host);
            }
            out.push(b' ');
            out.extend_from_slice(tag);
            out.push(b'[');
            out.extend_from_slice(number.format(pid()).as_bytes());
            out.extend_from_slice(b"]: ");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_config::model::LogAddress;

    use super::*;

    #[track_caller]
    fn check(format: LogWire, host: LogHost, structured: &str, expected: &str) {
        let target = LogTarget { format, facility: 16, ..LogTarget::raw(LogAddress::Stdout) };
        let identity = Identity { tag: "haproxy".into(), host };
        let now = UNIX_EPOCH + Duration::new(1_795_212_852, 1_564_000);
        let mut out = Vec::new();
        append(&target, 6, now, &identity, structured.as_bytes(), &mut out);
        // Only the hour depends on the machine's time zone.
        let zone = jiff::Timestamp::from_second(1_795_212_852).unwrap().to_zoned(jiff::tz::TimeZone::system());
        let expected = expected
            .replace("{syslog}", &zone.strftime("%b %e %H:%M:%S").to_string())
            .replace("{iso}", &zone.strftime("%Y-%m-%dT%H:%M:%S.001564%:z").to_string())
            .replace("{pid}", &std::process::id().to_string());
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn headers_are_haproxys() {
        let named = || LogHost::Named("gate".into());
        check(LogWire::Raw, named(), "", "");
        check(LogWire::Short, LogHost::Local, "", "<6>");
        check(LogWire::Priority, LogHost::Local, "", "<134>");
        check(LogWire::Timed, named(), "", "<6>{iso} ");
        check(LogWire::Iso, LogHost::Local, "", "{iso} ");
        check(LogWire::Local, named(), "", "<134>{syslog} haproxy[{pid}]: ");
        check(LogWire::Unset, LogHost::Local, "", "<134>{syslog} haproxy[{pid}]: ");
        check(LogWire::Unset, named(), "", "<134>{syslog} gate haproxy[{pid}]: ");
        check(LogWire::Rfc3164, LogHost::Local, "", "<134>{syslog} localhost haproxy[{pid}]: ");
        check(LogWire::Rfc3164, named(), "", "<134>{syslog} gate haproxy[{pid}]: ");
        check(LogWire::Rfc5424, LogHost::Local, "", "<134>1 {iso} - haproxy {pid} - - ");
        check(LogWire::Rfc5424, named(), "[a@1 b=\"c\"]", "<134>1 {iso} gate haproxy {pid} - [a@1 b=\"c\"] ");
    }

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
