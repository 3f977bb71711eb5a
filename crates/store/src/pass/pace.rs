//! The pace of a pass: it leaves cores to others, and sleeps as if the disk were slow.

use std::time::{Duration, Instant};

/// How a pass takes its time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Microseconds for which it sleeps for each key that it hands over; if negative, one for so many keys.
    pub(crate) key_delay_us: i64,
    /// Whether its threads leave the cores to others.
    pub(crate) is_paced: bool,
}

impl Manner {
    /// Returns the time for which it sleeps for so many keys.
    pub(super) fn delay(self, keys: u64) -> Duration {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        let us = match self.key_delay_us {
            us @ ..0 => keys / us.saturating_neg(),
            us => keys.saturating_mul(us),
        };
        Duration::from_micros(us.unsigned_abs())
    }
}

/// Keeps a thread from competing with others for a core, as a low priority would. A thread of low priority could lose
/// its core for long while it has a stripe locked; this one gives it up only when it has none.
#[derive(Default)]
pub(super) struct Pacer {
    since: Option<Instant>,
    /// Involuntary switches of this thread by then.
    switches: i64,
    /// The last pause.
    pause: Duration,
}

/// The time after which a thread looks whether others want its core, and the longest pause that it makes for them.
const LOOKS_EACH: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(8);

impl Pacer {
    /// Pauses if the kernel has given the core to others since the last time: for longer and longer while that goes on.
    pub(super) fn pace(&mut self) {
        let Some(since) = self.since else {
            *self = Pacer { since: Some(Instant::now()), switches: switches(), pause: Duration::ZERO };
            return;
        };
        if since.elapsed() < LOOKS_EACH {
            return;
        }
        let switches_now = switches();
        self.pause = match switches_now > self.switches {
            true => (self.pause * 2).clamp(LOOKS_EACH, PAUSE_MAX),
            false => self.pause / 2,
        };
        if self.pause >= LOOKS_EACH {
            std::thread::sleep(self.pause);
        }
        self.switches = switches_now;
        self.since = Some(Instant::now());
    }
}

/// Returns how often the kernel has given the core of this thread to another one though it had more to do.
fn switches() -> i64 {
    // SAFETY: `usage` is valid for the call, which fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}
