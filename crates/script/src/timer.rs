//! A timer that sends a signal to the thread that created it.
//!
//! The kernel delivers the signal from the timer's interrupt. So it comes on time however busy the cores are, which
//! the wake-up of another thread does not: that one has to wait for a core until a worker's turn ends, up to a tick of
//! the kernel (4 ms with most distributions).

use std::ffi::c_int;
use std::time::Duration;

/// A one-shot timer of the thread that created it.
pub(crate) struct Timer(libc::timer_t);

// SAFETY: the identifier of a timer is valid in the whole process.
unsafe impl Send for Timer {}
// SAFETY: as above; the kernel orders concurrent calls.
unsafe impl Sync for Timer {}

impl Timer {
    /// Creates a timer that sends this signal to the calling thread.
    ///
    /// # Panics
    /// If the kernel refuses it: the user has more pending signals and timers than `RLIMIT_SIGPENDING` allows.
    pub(crate) fn of_this_thread(signal: c_int) -> Timer {
        // SAFETY: both records are plain data and live across the call.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::mem::zeroed();
            let created = libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer);
            assert!(created == 0, "no timer for a thread that runs scripts: {}", std::io::Error::last_os_error());
            Timer(timer)
        }
    }

    /// Starts it, in place of what it was started for before. Async-signal-safe.
    pub(crate) fn start(&self, after: Duration) {
        self.set(after);
    }

    /// Stops it: its signal does not come any more.
    pub(crate) fn stop(&self) {
        self.set(Duration::ZERO);
    }

    fn set(&self, after: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: after.as_secs() as libc::time_t, tv_nsec: after.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: the record lives across the call, and the timer as long as `self`.
        unsafe { libc::timer_settime(self.0, 0, &times, std::ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it was created, and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
