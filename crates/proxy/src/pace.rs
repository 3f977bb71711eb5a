//! `rate-limit sessions` of a frontend, `maxconnrate` and `maxsessrate` of the process: connections per second,
//! measured as HAProxy measures a rate.
//!
//! The rate is the count of this second plus the part of the previous second that lies within the last 1,000 ms, as if
//! its connections had been spread evenly; the seconds are those of the rates that are shown. Beyond the limit, the result
//! is the time to wait; the connection stays in the kernel's queue meanwhile. The lock is acquired once per connection,
//! and only if there is a limit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::counters::{milliseconds, second};

/// A limit of events per second.
#[derive(Debug)]
pub struct Pace {
    /// The limit; 0 means none.
    limit: AtomicU32,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    second: u32,
    current: u32,
    previous: u32,
}

impl Pace {
    /// Returns a limit of events per second; 0 means none.
    pub fn new(limit: u32) -> Pace {
        Pace { limit: AtomicU32::new(limit), counts: Mutex::default() }
    }

    /// Returns the limit.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit for later calls.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Counts an event, or returns the time to wait before the next attempt.
    pub fn take(&self, now: Instant) -> Result<(), Duration> {
        let limit = u64::from(self.limit());
        if limit == 0 {
            return Ok(());
        }
        let (second, left) = (second(now), u64::from(1000 - milliseconds(now)));
        let mut counts = self.counts.lock();
        if second != counts.second {
            let previous = if second == counts.second + 1 { counts.current } else { 0 };
            *counts = Counts { second, current: 0, previous };
        }
        let (current, previous) = (u64::from(counts.current), u64::from(counts.previous));
        if current + previous * left / 1000 < limit {
            counts.current += 1;
            return Ok(());
        }
        // The weight of the previous second decreases every millisecond; that of the current second does not.
        let bearable = (limit.saturating_sub(current) * 1000).checked_div(previous).unwrap_or(0);
        let wait = if current >= limit { left } else { left.saturating_sub(bearable) };
        Err(Duration::from_millis(wait.max(1)))
    }

    /// Counts an event in all limits, or in none and returns the time to wait.
    pub fn take_all(paces: &[&Pace], now: Instant) -> Result<(), Duration> {
        for (index, pace) in paces.iter().enumerate() {
            if let Err(pause) = pace.take(now) {
                paces[..index].iter().for_each(|taken| taken.give());
                return Err(pause);
            }
        }
        Ok(())
    }

    /// Takes back an event that was counted but did not take place.
    pub fn give(&self) {
        if self.limit() > 0 {
            let mut counts = self.counts.lock();
            counts.current = counts.current.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::epoch;

    /// Returns a moment, in milliseconds after the beginning of a second.
    fn at(ms: u64) -> Instant {
        epoch() + Duration::from_millis(5_000 + ms)
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let pace = Pace::new(10);
        for _ in 0..10 {
            assert_eq!(pace.take(at(500)), Ok(()));
        }
        assert_eq!(pace.take(at(600)), Err(Duration::from_millis(400)));
        // At 1,500 ms half of the previous second still counts.
        assert_eq!(pace.take(at(1_000)), Err(Duration::from_millis(1)));
        let passed = (0..20).filter(|_| pace.take(at(1_500)).is_ok()).count();
        assert_eq!(passed, 5);
        pace.give();
        assert_eq!(pace.take(at(1_500)), Ok(()));
        assert_eq!(pace.take(at(9_000)), Ok(()));
    }

    #[test]
    fn several_are_asked_together() {
        let (one, other, free) = (Pace::new(3), Pace::new(2), Pace::new(0));
        let now = at(300);
        let passed = (0..9).filter(|_| Pace::take_all(&[&free, &one, &other], now).is_ok()).count();
        assert_eq!(passed, 2);
        // An event that the second limit refused is not counted by the first.
        assert_eq!(one.take(now), Ok(()));
        assert!(one.take(now).is_err());
        other.set_limit(0);
        assert_eq!(other.take(now), Ok(()));
    }

    #[test]
    fn who_waits_as_long_as_told_gets_through() {
        let pace = Pace::new(7);
        let (start, mut waits) = (at(0), 0);
        let mut now = start;
        let mut moments = Vec::new();
        while moments.len() < 200 {
            match pace.take(now) {
                Ok(()) => {
                    moments.push(now);
                    waits = 0;
                }
                Err(pause) => {
                    now += pause;
                    waits += 1;
                    assert!(waits < 5, "{pause:?} is too short");
                }
            }
        }
        let elapsed = now.duration_since(start).as_secs_f64();
        assert!((200.0 / 7.0 - 2.0..200.0 / 7.0 + 2.0).contains(&elapsed), "{elapsed}");
    }
}
