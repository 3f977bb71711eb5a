//! Time as the store sees it: Unix milliseconds, from the system or from a test.
//!
//! A command reads the clock at most once and only if an expiry is involved, so time stands still within it. Reading
//! the exact clock is a vDSO call of about 25 ns; the coarse one (5 ns, up to 4 ms late) is good enough for access
//! times, which count ticks of a sixteenth of a second and wrap after 8 years.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A source of time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's wall clock.
    #[default]
    System,
    /// A clock that is advanced explicitly.
    Manual(ManualClock),
}

/// The handle of a [`Clock::Manual`]; clones move the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// Returns a clock that shows `now_ms` Unix milliseconds.
    pub fn new(now_ms: i64) -> ManualClock {
        ManualClock(Arc::new(AtomicI64::new(now_ms)))
    }

    /// Moves the clock by `ms` milliseconds.
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the clock to `now_ms` Unix milliseconds.
    pub fn set(&self, now_ms: i64) {
        self.0.store(now_ms, Ordering::SeqCst);
    }
}

impl Clock {
    /// Returns the Unix time in milliseconds.
    #[inline]
    pub fn now_ms(&self) -> i64 {
        self.now_us() / 1000
    }

    /// Returns the Unix time in seconds.
    pub fn now_s(&self) -> u64 {
        u64::try_from(self.now_ms() / 1000).unwrap_or(0)
    }

    /// Returns the Unix time in microseconds.
    #[inline]
    pub fn now_us(&self) -> i64 {
        match self {
            Clock::System => {
                let time = read(libc::CLOCK_REALTIME);
                time.tv_sec * 1_000_000 + time.tv_nsec / 1000
            }
            Clock::Manual(hand) => hand.0.load(Ordering::SeqCst) * 1000,
        }
    }

    /// Returns the Unix time in ticks of a sixteenth of a second, as a 32-bit number that wraps.
    #[inline]
    pub fn coarse_ticks(&self) -> u32 {
        match self {
            Clock::System => {
                let time = read(libc::CLOCK_REALTIME_COARSE);
                (time.tv_sec * TICKS_PER_S + time.tv_nsec / (1_000_000_000 / TICKS_PER_S)) as u32
            }
            Clock::Manual(hand) => ticks_of_ms(hand.0.load(Ordering::Relaxed)),
        }
    }
}

/// The number of ticks of access times in a second.
pub const TICKS_PER_S: i64 = 16;

/// Returns the tick of a Unix time in milliseconds.
#[inline]
pub fn ticks_of_ms(now_ms: i64) -> u32 {
    (now_ms.wrapping_mul(TICKS_PER_S) / 1000) as u32
}

/// Returns the number of ticks from an access until now; 0 if the clock was set back meanwhile.
#[inline]
pub fn idle_ticks(now: u32, access: u32) -> u32 {
    (now.wrapping_sub(access) as i32).max(0) as u32
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that lives across the call, and both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_clock_moves_only_when_told() {
        let hand = ManualClock::new(5_000);
        let clock = Clock::Manual(hand.clone());
        assert_eq!((clock.now_ms(), clock.now_us(), clock.coarse_ticks()), (5_000, 5_000_000, 80));
        hand.advance(1_500);
        assert_eq!((clock.now_ms(), clock.coarse_ticks()), (6_500, 104));
    }

    #[test]
    fn both_system_clocks_show_the_same_time() {
        let clock = Clock::System;
        let exact = ticks_of_ms(clock.now_ms());
        assert!((exact.wrapping_sub(clock.coarse_ticks()) as i32).abs() <= 16);
    }

    #[test]
    fn idleness_survives_the_wrap_and_a_clock_that_goes_back() {
        assert_eq!(idle_ticks(5, u32::MAX - 4), 10);
        assert_eq!(idle_ticks(5, 8), 0);
    }
}
