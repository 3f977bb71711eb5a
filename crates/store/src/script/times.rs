//! Durations of a script's calls, for SCRIPT LATENCY.
//!
//! A bucket for each power of two of microseconds: an addition for each call, and 200 bytes for each script.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets: up to 2^21 microseconds (two seconds), and one for longer times.
const BUCKETS: usize = 23;

/// The numbers of calls by duration.
#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

impl Times {
    /// Counts a call.
    pub(crate) fn add(&self, took: Duration) {
        let us = took.as_micros() as u64;
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        // Most add nothing, and leave the line alone that all workers share.
        if us > 0 {
            self.sum_us.fetch_add(us, Ordering::Relaxed);
        }
        // Only a new record is written.
        if us > self.max_us.load(Ordering::Relaxed) {
            self.max_us.fetch_max(us, Ordering::Relaxed);
        }
    }

    /// Returns the histogram as text; nothing if there was no call.
    pub(crate) fn text(&self) -> Option<String> {
        let counts = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let (sum_us, max_us) = (self.sum_us.load(Ordering::Relaxed), self.max_us.load(Ordering::Relaxed));
        let mut text = format!("Count: {total} Average: {:.4} Max: {max_us}\n", sum_us as f64 / total as f64);
        let mut so_far = 0;
        for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            so_far += count;
            let from = if bucket == 0 { 0 } else { 1_u64 << (bucket - 1) };
            let to = if bucket == BUCKETS - 1 { "inf".to_owned() } else { (1_u64 << bucket).to_string() };
            let percent = |part: u64| part as f64 * 100.0 / total as f64;
            let _ = writeln!(text, "[ {from}, {to} ) {count} {:.3}% {:.3}%", percent(*count), percent(so_far));
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_powers_of_two() {
        let times = Times::default();
        assert_eq!(times.text(), None);
        for us in [0, 1, 3, 2, 5_000_000] {
            times.add(Duration::from_micros(us));
        }
        let expected = "Count: 5 Average: 1000001.2000 Max: 5000000\n[ 0, 1 ) 1 20.000% 20.000%\n\
                        [ 1, 2 ) 1 20.000% 40.000%\n[ 2, 4 ) 2 40.000% 80.000%\n[ 2097152, inf ) 1 20.000% 100.000%\n";
        assert_eq!(times.text().as_deref(), Some(expected));
    }
}
