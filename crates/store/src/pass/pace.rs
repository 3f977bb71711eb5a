//! The time of a pass: for how long it keeps others waiting, how it leaves cores to them, and how it sleeps as if the disk
//! were slow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a pass takes its time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Microseconds for which it sleeps for each key that it hands over; if negative, one for so many keys.
    pub(crate) key_delay_us: i64,
    /// The longest pause that its threads make for others that want their cores; zero: none.
    pub(crate) pause_max: Duration,
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

/// The time after which a thread looks whether others want its core, and its shortest pause for them.
const LOOKS_EACH: Duration = Duration::from_millis(1);

impl Pacer {
    /// Pauses if the kernel has given the core to others since the last time: for longer and longer while that goes on.
    pub(super) fn pace(&mut self, pause_max: Duration) {
        let Some(since) = self.since else {
            *self = Pacer { since: Some(Instant::now()), switches: switches(), pause: Duration::ZERO };
            return;
        };
        if since.elapsed() < LOOKS_EACH {
            return;
        }
        let switches_now = switches();
        self.pause = match switches_now > self.switches {
            true => (self.pause * 2).clamp(LOOKS_EACH, pause_max),
            false => self.pause / 2,
        };
        if self.pause >= LOOKS_EACH {
            std::thread::sleep(self.pause);
        }
        self.switches = switches_now;
        self.since = Some(Instant::now());
    }
}

/// The longest times that a pass has had a stripe locked, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Locked {
    /// By the clock.
    pub(crate) us: u64,
    /// Of the processor: without the time in which the kernel gave the core to others.
    pub(crate) cpu_us: u64,
}

/// The longest ones so far, of all threads of a pass.
#[derive(Default)]
pub(crate) struct Longest {
    us: AtomicU64,
    cpu_us: AtomicU64,
}

impl Longest {
    pub(crate) fn get(&self) -> Locked {
        Locked { us: self.us.load(Ordering::Relaxed), cpu_us: self.cpu_us.load(Ordering::Relaxed) }
    }

    pub(crate) fn note(&self, locked: Locked) {
        self.us.fetch_max(locked.us, Ordering::Relaxed);
        self.cpu_us.fetch_max(locked.cpu_us, Ordering::Relaxed);
    }
}

/// A time in which this thread has a stripe locked.
pub(super) struct Lock {
    start: Instant,
    start_cpu_us: u64,
}

impl Lock {
    /// The stripe was locked just now.
    pub(super) fn begin() -> Lock {
        Lock { start: Instant::now(), start_cpu_us: cpu_us() }
    }

    /// It was unlocked.
    pub(super) fn end(self, longest: &Longest) {
        let cpu_us = cpu_us() - self.start_cpu_us;
        longest.note(Locked { us: self.start.elapsed().as_micros() as u64, cpu_us });
    }
}

/// Returns the processor time of this thread.
fn cpu_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call, which fills it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
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
