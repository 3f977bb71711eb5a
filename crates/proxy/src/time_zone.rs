//! The machine's time zone, read once.
//!
//! A process that locks itself into a directory can't read `/etc/localtime` any more, and `jiff` reads it again every
//! few minutes, to fall back to UTC where it is missing. So the zone is kept from the first use on, which must come
//! before `chroot`; a zone that changes later is seen after a restart, as with HAProxy.

use std::sync::OnceLock;

use jiff::tz::TimeZone;

/// The zone of local times in log lines and converters.
pub fn local() -> &'static TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(|| {
        // `ltime` asks the C library, which reads the zone when it is first used and never again.
        crate::sample::read_time_zone();
        TimeZone::system()
    })
}
