//! The header of a log message (`log … format`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use sluicegate_config::model::{LogHost, LogTarget, LogWire};

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
    fn host(&self) -> Option<&[u8]> {
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

/// Appends the header of a message of `level` for `target`; `structured` is its structured data, which only one format
/// contains.
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
            append_syslog(now, out);
            let host = match target.format {
                // HAProxy's host name unless `log-send-hostname` is set.
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
    use std::time::{Duration, UNIX_EPOCH};

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
}
