//! HAProxy's estimate of events per period (its `freq_ctr`): the events of the current period, plus those of the
//! previous period in proportion to the time that is left of the current one.

/// The number of words of a rate: the start of the current period, its events, and those of the previous period.
pub(crate) const WORDS: usize = 3;

/// Initializes a rate without events.
pub(crate) fn clear(words: &mut [u32], now: u32) {
    words.copy_from_slice(&[now, 0, 0]);
}

/// Counts `n` events; returns the number of events in the current period.
pub(crate) fn add(words: &mut [u32], period: u32, now: u32, n: u32) -> u32 {
    let [began, current, previous] = words else { return 0 };
    if now.wrapping_sub(*began) < period {
        *current = current.wrapping_add(n);
        return *current;
    }
    (*previous, *current, *began) = (*current, n, began.wrapping_add(period));
    if now.wrapping_sub(*began) >= period {
        (*previous, *began) = (0, now);
    }
    n
}

/// Sets the rate as if `n` events had occurred now (`set table`).
pub(super) fn set(words: &mut [u32], now: u32, n: u32) {
    words.copy_from_slice(&[now, n, 0]);
}

/// Returns the age of the current period in milliseconds, its events, and those of the previous period.
pub(crate) fn parts(words: &[u32], now: u32) -> (u32, u32, u32) {
    let [began, current, previous] = *words else { return (0, 0, 0) };
    (now.wrapping_sub(began), current, previous)
}

/// Sets the rate as another node has it.
pub(crate) fn set_parts(words: &mut [u32], now: u32, (age_ms, current, previous): (u32, u32, u32)) {
    words.copy_from_slice(&[now.wrapping_sub(age_ms), current, previous]);
}

/// Returns the number of events in the last period.
pub(super) fn read(words: &[u32], period: u32, now: u32) -> u32 {
    let [began, current, previous] = *words else { return 0 };
    let period = u64::from(period.max(1));
    let passed = u64::from(now.wrapping_sub(began));
    let (current, previous, remain) = if passed <= period {
        (u64::from(current), u64::from(previous), period - passed)
    } else if passed <= 2 * period {
        (0, u64::from(current), 2 * period - passed)
    } else {
        (0, 0, 0)
    };
    // HAProxy's correction at very low rates: one event is one until its period is over.
    if current == 0 && previous <= 1 {
        return previous as u32;
    }
    ((previous * remain + current * period) / period) as u32
}

/// Returns the number of events, with `pending` ones, over the current and the previous period, times the period.
fn total(words: &[u32], period: u32, pending: u64, now: u32) -> u64 {
    let [began, current, previous] = *words else { return 0 };
    let period = u64::from(period);
    let passed = u64::from(now.wrapping_sub(began));
    let (current, previous, remain) = if passed <= period {
        (u64::from(current), u64::from(previous), period - passed)
    } else {
        (0, u64::from(current), (2 * period).saturating_sub(passed))
    };
    previous * remain + (current + pending) * period
}

/// Returns the number of events that the current period is ahead of a steady rate of `limit`; negative if it is behind.
pub(crate) fn overshoot(words: &[u32], period: u32, limit: u32, now: u32) -> i64 {
    let [began, current, _] = *words else { return 0 };
    let passed = now.wrapping_sub(began);
    if passed > period {
        return 0;
    }
    i64::from(current) - (u64::from(passed) * u64::from(limit) / u64::from(period)) as i64
}

/// Returns the number of events that may still occur within a rate of `limit`.
pub(crate) fn remain(words: &[u32], period: u32, limit: u32, now: u32) -> u32 {
    let events = total(words, period, 0, now) / u64::from(period);
    u64::from(limit).saturating_sub(events) as u32
}

/// Returns the milliseconds to wait before `pending` events may occur within a rate of `limit`.
pub(crate) fn delay(words: &[u32], period: u32, limit: u32, pending: u64, now: u32) -> u64 {
    let (events, allowed) = (total(words, period, pending, now), u64::from(limit) * u64::from(period));
    if events < allowed {
        return 0;
    }
    ((events - allowed) / u64::from(limit.max(1))).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds events at their times, and compares the rates that are read at other times.
    #[track_caller]
    fn check(events: &[(u32, u32)], expected: &[(u32, u32)]) {
        let mut words = [0; WORDS];
        let start = u32::MAX - 1_500; // The clock wraps within these tests.
        clear(&mut words, start);
        for (at, n) in events {
            add(&mut words, 1_000, start.wrapping_add(*at), *n);
        }
        for (at, count) in expected {
            assert_eq!(read(&words, 1_000, start.wrapping_add(*at)), *count, "at {at} of {events:?}");
        }
    }

    #[test]
    fn rates_are_those_of_two_periods() {
        check(&[], &[(0, 0), (5_000, 0)]);
        check(&[(0, 10)], &[(0, 10), (999, 10), (1_000, 10), (1_001, 9), (1_500, 5), (1_999, 0), (2_000, 0)]);
        check(&[(0, 1)], &[(999, 1), (1_500, 1), (1_999, 1), (2_000, 1), (2_001, 0)]);
        check(&[(0, 10), (1_000, 4)], &[(1_000, 14), (1_500, 9), (2_000, 4), (2_500, 2)]);
        check(&[(0, 10), (1_900, 4)], &[(1_900, 5), (2_000, 4), (2_500, 2), (3_001, 0)]);
        check(&[(0, 10), (2_500, 4)], &[(2_500, 4), (3_500, 4), (4_000, 2)]);
    }

    #[test]
    fn a_rate_that_is_set_fades() {
        let mut words = [0; WORDS];
        set(&mut words, 7, 100);
        assert_eq!((read(&words, 1_000, 1_007), read(&words, 1_000, 1_507)), (100, 50));
    }
}
