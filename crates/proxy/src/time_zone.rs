//! The machine's time zone, read once.
//!
//! A process in a chroot can no longer read `/etc/localtime`, and `jiff` reads it again every few minutes and falls
//! back to UTC if it is missing. So the zone is cached at the first use, which must precede `chroot`; a later change of
//! the zone takes effect after a restart, as with HAProxy.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;

/// Returns the zone of local times in log lines and converters.
pub fn local() -> &'static TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(|| {
        // `ltime` uses the C library, which reads the zone at its first use only.
        calendar(0, true);
        TimeZone::system()
    })
}

/// Returns the time of the lines that scripts write to stderr: the day of the year, from 0, and the local time.
pub fn day_and_time(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    calendar(seconds, true)
        .map_or_else(String::new, |tm| format!("{:03}/{:02}{:02}{:02}", tm.tm_yday, tm.tm_hour, tm.tm_min, tm.tm_sec))
}

/// Returns a time by the C library's calendar, local or UTC; `None` for a year that it can't hold.
#[allow(unsafe_code)]
pub(crate) fn calendar(seconds: i64, local: bool) -> Option<libc::tm> {
    // SAFETY: `tm` is a plain struct of integers and a pointer that may be null, so all zeros are a value of it.
    let mut calendar: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the right types; the functions write nothing else and keep neither.
    // The time zone's name that `localtime_r` leaves in `calendar` is the C library's and lives as long as the process.
    let done = unsafe {
        if local { libc::localtime_r(&seconds, &mut calendar) } else { libc::gmtime_r(&seconds, &mut calendar) }
    };
    (!done.is_null()).then_some(calendar)
}
