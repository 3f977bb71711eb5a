//! The CPU time of a thread, the monotonic time, and a time stamp that costs a few cycles.

use std::time::Duration;

/// The CPU time clock of a thread; readable by other threads while the thread lives.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// Returns the clock of the calling thread.
    pub fn of_this_thread() -> CpuClock {
        let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: the calling thread is alive, and so has a clock, which is written to a place of ours.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        CpuClock(clock)
    }

    /// Returns the CPU time of the thread so far; zero if it has ended.
    pub fn ran(self) -> Duration {
        Duration::from_nanos(self.ran_ns())
    }

    /// The same in nanoseconds. Async-signal-safe.
    pub(crate) fn ran_ns(self) -> u64 {
        read_ns(self.0)
    }
}

/// Returns the monotonic time in nanoseconds. Async-signal-safe.
pub(crate) fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    // SAFETY: a timespec is plain data, and the kernel fills it.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(clock, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns a number that grows at a constant rate; which one is to be found by comparison with a clock. Threads that move
/// to another core may see it go back a little.
#[inline]
pub(crate) fn stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    monotonic_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_times_grow() {
        let (stamp_before, before) = (stamp(), monotonic_ns());
        std::thread::sleep(Duration::from_millis(1));
        assert!(stamp() > stamp_before);
        assert!(monotonic_ns() >= before + 1_000_000);
    }
}
