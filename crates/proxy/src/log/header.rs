//! The header of a log message (`log … format`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use sluicegate_config::model::{LogHost, LogWire};
use sluicegate_wire::syslog::{ISO_TIME, LEGACY_TIME, MONTHS};

use crate::date::{append_iso, append_syslog};

/// The identity of this process in headers, except for its process id, which is [`pid`].
#[derive(Clone, Debug)]
pub struct Identity {
    /// The default tag without `log-tag`: base name of `argv[0]`.
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
    /// Returns the host of a header, if the configuration wants one.
    pub(super) fn host(&self) -> Option<&[u8]> {
        match &self.host {
            LogHost::Local => None,
            LogHost::Machine => Some(host_name()),
            LogHost::Named(name) => Some(name.as_bytes()),
        }
    }
}

/// The process id as of the last [`refresh_pid`]; reading it for each line would cost a system call each time.
static PID: AtomicU32 = AtomicU32::new(0);

/// Returns the id of this process, for headers and `%pid`.
pub fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => refresh_pid(),
        pid => pid,
    }
}

/// Reads the process id again, because it changes with a fork.
pub fn refresh_pid() -> u32 {
    let pid = std::process::id();
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// Returns the host name, which is read once.
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

/// What the header of a message says, as far as its format has a place for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta<'a> {
    /// When the message was sent, in the form of RFC 3164 or 5424; `None`: now.
    pub(crate) time: Option<&'a [u8]>,
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) tag: Option<&'a [u8]>,
    pub(crate) pid: Option<&'a [u8]>,
    pub(crate) msgid: Option<&'a [u8]>,
    pub(crate) structured: Option<&'a [u8]>,
    /// Whether the message came with a priority.
    pub(crate) has_priority: bool,
}

impl Meta<'_> {
    /// Returns the format of a message without one: that in which it came (HAProxy's `build_log_header`).
    fn format(&self) -> LogWire {
        match (self.host, self.time) {
            (Some(_), Some(time)) if time == b"-" || time.len() >= ISO_TIME => LogWire::Rfc5424,
            (Some(_), _) => LogWire::Rfc3164,
            (None, _) if self.tag.is_some() => LogWire::Local,
            (None, _) if self.has_priority => LogWire::Priority,
            (None, _) => LogWire::Raw,
        }
    }
}

/// Appends a header in a format. `facility` and `level` make the priority.
pub(super) fn append(
    format: LogWire,
    (facility, level): (u32, u8),
    now: SystemTime,
    meta: &Meta<'_>,
    out: &mut Vec<u8>,
) {
    let format = if format == LogWire::Unset { meta.format() } else { format };
    let facility = match format {
        LogWire::Raw => return,
        LogWire::Iso => None,
        LogWire::Short | LogWire::Timed => Some(0),
        _ => Some(facility),
    };
    if let Some(facility) = facility {
        let mut number = itoa::Buffer::new();
        let priority = facility.wrapping_mul(8).wrapping_add(u32::from(level));
        out.push(b'<');
        // Three digits at most.
        out.extend_from_slice(number.format(priority % 1000).as_bytes());
        out.push(b'>');
    }
    match format {
        LogWire::Raw | LogWire::Short | LogWire::Priority => {}
        LogWire::Timed | LogWire::Iso => append_iso_time(meta.time, now, out),
        LogWire::Rfc5424 => {
            out.extend_from_slice(b"1 ");
            match meta.time {
                Some(b"-") => out.extend_from_slice(b"- "),
                time => append_iso_time(time, now, out),
            }
            for word in [meta.host, meta.tag, meta.pid, meta.msgid, meta.structured] {
                out.extend_from_slice(word.unwrap_or(b"-"));
                out.push(b' ');
            }
        }
        LogWire::Unset | LogWire::Local | LogWire::Rfc3164 => {
            append_legacy_time(meta.time, now, out);
            if format == LogWire::Rfc3164 {
                // HAProxy's host name unless `log-send-hostname` is set.
                out.extend_from_slice(meta.host.unwrap_or(b"localhost"));
                out.push(b' ');
            }
            if let Some(tag) = meta.tag {
                out.extend_from_slice(tag);
                if let Some(pid) = meta.pid {
                    out.push(b'[');
                    out.extend_from_slice(pid);
                    out.push(b']');
                }
                out.extend_from_slice(b": ");
            }
        }
    }
}

/// Appends a time in the form of RFC 5424, with a space. One of RFC 3164 gets the year, and no time zone.
fn append_iso_time(time: Option<&[u8]>, now: SystemTime, out: &mut Vec<u8>) {
    match time {
        Some(time) if time.len() >= ISO_TIME => {
            out.extend_from_slice(time);
            out.push(b' ');
        }
        Some(time)
            if time.len() == LEGACY_TIME
                && let Some(month) = MONTHS.iter().position(|month| time.starts_with(&month[..])) =>
        {
            let mut today = Vec::with_capacity(40);
            append_iso(now, &mut today);
            let number = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|text| text.parse::<usize>().ok());
            let (year, this_month) = (number(&today[..4]).unwrap_or(0), number(&today[5..7]).unwrap_or(0));
            // A month that has not come yet is one of last year.
            let year = year - usize::from(this_month <= month && year > 0);
            out.extend_from_slice(format!("{year:04}-{:02}-", month + 1).as_bytes());
            out.extend([if time[4] == b' ' { b'0' } else { time[4] }, time[5], b'T']);
            out.extend_from_slice(&time[7..15]);
            out.extend_from_slice(b"-00:00 ");
        }
        _ => {
            append_iso(now, out);
            out.push(b' ');
        }
    }
}

/// Appends a time in the form of RFC 3164, with a space.
fn append_legacy_time(time: Option<&[u8]>, now: SystemTime, out: &mut Vec<u8>) {
    match time {
        Some(time) if time.len() == LEGACY_TIME => out.extend_from_slice(time),
        Some(time) if time.len() >= ISO_TIME => {
            let month = std::str::from_utf8(&time[5..7]).ok().and_then(|digits| digits.parse::<usize>().ok());
            match month.and_then(|month| MONTHS.get(month.saturating_sub(1))) {
                Some(name) => {
                    out.extend_from_slice(&name[..]);
                    out.extend([b' ', if time[8] == b'0' { b' ' } else { time[8] }, time[9], b' ']);
                    out.extend_from_slice(&time[11..19]);
                }
                None => append_syslog(now, out),
            }
        }
        _ => append_syslog(now, out),
    }
    out.push(b' ');
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[track_caller]
    fn check(format: LogWire, host: LogHost, structured: &str, expected: &str) {
        let identity = Identity { tag: "haproxy".into(), host };
        let pid = std::process::id().to_string();
        let structured = (!structured.is_empty()).then_some(structured.as_bytes());
        let tag = Some(identity.tag.as_bytes());
        let (host, pid_text) = (identity.host(), Some(pid.as_bytes()));
        let meta = Meta { time: None, host, tag, pid: pid_text, msgid: None, structured, has_priority: false };
        let now = UNIX_EPOCH + Duration::new(1_795_212_852, 1_564_000);
        let mut out = Vec::new();
        append(format, (16, 6), now, &meta, &mut out);
        // Only the hour depends on the machine's time zone.
        let zone = jiff::Timestamp::from_second(1_795_212_852).unwrap().to_zoned(jiff::tz::TimeZone::system());
        let expected = expected
            .replace("{syslog}", &zone.strftime("%b %e %H:%M:%S").to_string())
            .replace("{iso}", &zone.strftime("%Y-%m-%dT%H:%M:%S.001564%:z").to_string())
            .replace("{pid}", &pid);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn times_of_one_form_are_written_in_the_other() {
        let now = UNIX_EPOCH + Duration::new(1_795_212_852, 0);
        let iso = |time: &str| {
            let mut out = Vec::new();
            append_iso_time(Some(time.as_bytes()), now, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(iso("2003-10-11T22:14:15.003Z"), "2003-10-11T22:14:15.003Z ");
        // It is November 2026.
        assert_eq!(iso("Nov  1 22:14:15"), "2026-11-01T22:14:15-00:00 ");
        assert_eq!(iso("Dec 11 22:14:15"), "2025-12-11T22:14:15-00:00 ");
        let legacy = |time: &str| {
            let mut out = Vec::new();
            append_legacy_time(Some(time.as_bytes()), now, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(legacy("Oct 11 22:14:15"), "Oct 11 22:14:15 ");
        assert_eq!(legacy("2003-10-01T22:14:15.003Z"), "Oct  1 22:14:15 ");
        let mut own = Vec::new();
        append_syslog(now, &mut own);
        own.push(b' ');
        assert_eq!(legacy("2003-99-01T22:14:15.003Z").as_bytes(), own);
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
}
