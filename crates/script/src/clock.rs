//! The CPU time of a thread.

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
        // SAFETY: a timespec is plain data, and the kernel fills it.
        let time = unsafe {
            let mut time: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(self.0, &mut time);
            time
        };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}
