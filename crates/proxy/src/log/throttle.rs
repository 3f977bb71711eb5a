//! Rate-limited log messages.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The minimum time between two messages.
const EVERY: Duration = Duration::from_secs(1);

/// Counts events, and decides when to report them.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    untold: Mutex<Untold>,
}

#[derive(Debug, Default)]
struct Untold {
    count: u64,
    told: Option<Instant>,
}

impl Throttle {
    /// Counts an event. Returns `Some` if a message is due, with the number of events since the last one.
    pub(crate) fn count(&self) -> Option<u64> {
        self.count_at(Instant::now())
    }

    fn count_at(&self, now: Instant) -> Option<u64> {
        let mut untold = self.untold.lock();
        untold.count += 1;
        if untold.told.is_some_and(|told| now.saturating_duration_since(told) < EVERY) {
            return None;
        }
        untold.told = Some(now);
        Some(std::mem::take(&mut untold.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_the_first_and_then_a_count_each_second() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        let told = [0, 1, 999, 1000, 1001, 2500].map(|ms| throttle.count_at(start + Duration::from_millis(ms)));
        assert_eq!(told, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
