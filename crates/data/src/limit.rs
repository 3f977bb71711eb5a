//! The arithmetic of rate limits: the state of one key, and the decision about one request.
//!
//! Plain functions of a state, a limit and a time, so that they can be compared with exact models. The equivalent
//! scripts for external engines compute with doubles of 53 bits, so every number that such a script uses stays below
//! that: times in microseconds, and differences of times in nanoseconds.
//!
//! - [`Pace`]: the generic cell rate algorithm. A number for each key: the time at which its bucket will be empty.
//! - [`Windows`]: consecutive windows; `n` per window. A number and a time for each key.
//! - [`Sliding`]: at most `n` in *any* interval of the period's length. The period is divided into [`SLOTS`] parts, and
//!   a part that the interval only touches counts in full, so the limit is never exceeded and counts expire up to one
//!   part late. At most 21 numbers for each key, however large `n` is.

use std::ops::RangeInclusive;

/// Nanoseconds per second.
pub const NS_PER_S: i64 = 1_000_000_000;
/// Nanoseconds per millisecond.
pub const NS_PER_MS: i64 = 1_000_000;
const NS_PER_US: i64 = 1_000;

/// The number of parts of a sliding window's period.
pub const SLOTS: i64 = 20;
/// The counts and costs that commands accept.
pub const COUNT: RangeInclusive<i64> = 1..=1_000_000_000;
/// The periods that commands accept, in µs: up to a leap year.
pub const PERIOD_US: RangeInclusive<i64> = 1_000..=366 * 86_400 * 1_000_000;
/// The longest time that a full bucket may take to get empty, ns: a little over 104 days. Differences of times are
/// exact in a script up to 2^53.
pub const LONGEST_NS: i64 = 9_007_199_254_740_992;

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether the request is allowed, and so was counted.
    pub allowed: bool,
    /// The amount that is still allowed at this moment.
    pub remaining: i64,
    /// The time in µs after which the same request would be allowed if there were no others; 0 if it was, -1 if never.
    pub retry_us: i64,
    /// The time in µs after which the state is empty.
    pub reset_us: i64,
}

/// A limit by the generic cell rate algorithm, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time between requests at an even rate.
    pub interval: i64,
    /// The time by which the state may be ahead of the clock.
    pub tolerance: i64,
    /// The time by which this request advances the state.
    pub increment: i64,
}

/// The result of [`Pace::decide`], times in nanoseconds.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request is refused.
    pub limited: bool,
    /// The number of further requests that would be allowed now.
    pub remaining: i64,
    /// The time after which the request would be allowed; [`None`] if it was allowed, or never will be.
    pub retry_after: Option<i64>,
    /// The time after which the state is empty.
    pub reset_after: i64,
    /// The value to be stored; [`None`] if nothing changes.
    pub next: Option<i64>,
}

impl Pace {
    /// Returns a limit of `count` per period, `burst` of them at once, for a request of weight `cost`. The interval is
    /// rounded up to a whole nanosecond, so that the rate is never above the given one. `None`: a full bucket would
    /// take too long to empty.
    pub fn new(count: i64, period_us: i64, burst: i64, cost: i64) -> Option<Pace> {
        let interval = (period_us * NS_PER_US + count - 1) / count;
        let tolerance = interval.saturating_mul(burst);
        let increment = interval.saturating_mul(cost);
        (tolerance <= LONGEST_NS).then_some(Pace { interval, tolerance, increment })
    }

    /// Decides about a request. Saturated values exceed every tolerance, so such requests are limited.
    pub fn decide(self, stored: Option<i64>, now: i64) -> Verdict {
        let arrival = stored.unwrap_or(now);
        let next = arrival.max(now).saturating_add(self.increment);
        let early = next.saturating_sub(now).saturating_sub(self.tolerance);
        let limited = early > 0;
        let reset_after = if limited { arrival.saturating_sub(now) } else { next - now };
        let free = self.tolerance.saturating_sub(reset_after);
        Verdict {
            limited,
            remaining: if free > -self.interval { free / self.interval } else { 0 },
            retry_after: (limited && self.increment <= self.tolerance).then_some(early),
            reset_after,
            next: (!limited).then_some(next),
        }
    }

    /// Returns the decision about a request at a time in µs, and the state to store, in ns; none if nothing is to be
    /// stored.
    pub fn take(self, stored: Option<i64>, now_us: i64) -> (Told, Option<i64>) {
        let now = now_us * NS_PER_US;
        let verdict = self.decide(stored.map(|at| at.max(now)), now);
        // Rounded up.
        let micros = |ns: i64| ns / NS_PER_US + i64::from(ns % NS_PER_US > 0);
        // A request of cost 0 only queries the state, also that of a bucket which was larger before.
        let allowed = !verdict.limited || self.increment == 0;
        let told = Told {
            allowed,
            remaining: verdict.remaining,
            retry_us: if allowed { 0 } else { verdict.retry_after.map_or(-1, micros) },
            reset_us: micros(verdict.reset_after),
        };
        (told, verdict.next.filter(|_| self.increment > 0))
    }
}

/// `count` per window; windows begin at multiples of the period since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// The amount allowed in a window.
    pub count: i64,
    /// The period, in microseconds.
    pub period_us: i64,
}

/// A window and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its start, Unix µs.
    pub start_us: i64,
    /// The amount counted in the window.
    pub used: i64,
}

impl Windows {
    /// Returns the decision about a request, and the state to store if it changes.
    pub fn take(self, stored: Option<Window>, now_us: i64, cost: i64) -> (Told, Option<Window>) {
        let start_us = now_us - now_us.rem_euclid(self.period_us);
        // If the clock was set back, the existing window continues.
        let current = stored.filter(|window| window.start_us >= start_us);
        let window = current.unwrap_or(Window { start_us, used: 0 });
        let end_us = window.start_us + self.period_us - now_us;
        let used = window.used + cost;
        let allowed = cost == 0 || used <= self.count;
        let after = if allowed { used } else { window.used };
        let told = Told {
            allowed,
            remaining: (self.count - after).max(0),
            retry_us: match allowed {
                true => 0,
                false if cost > self.count => -1,
                false => end_us,
            },
            reset_us: if after == 0 { 0 } else { end_us },
        };
        (told, (allowed && cost > 0).then_some(Window { used, ..window }))
    }
}

/// At most `count` in any interval of the period's length.
#[derive(Clone, Copy, Debug)]
pub struct Sliding {
    /// The amount allowed in a period.
    pub count: i64,
    /// The period, in microseconds.
    pub period_us: i64,
}

/// The counts of the parts of a period, the newest part first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The start of the newest part, Unix µs.
    pub start_us: i64,
    /// Counts of the parts.
    pub counts: [i64; SLOTS as usize + 1],
}

impl Sliding {
    /// Returns the length of a part.
    pub fn part_us(self) -> i64 {
        (self.period_us + SLOTS - 1) / SLOTS
    }

    /// Returns the decision about a request; `parts` is changed to the state to store if the request was counted.
    pub fn take(self, parts: &mut Parts, now_us: i64, cost: i64) -> Told {
        let part_us = self.part_us();
        let start_us = now_us - now_us.rem_euclid(part_us);
        if start_us > parts.start_us {
            let passed = ((start_us - parts.start_us) / part_us).min(SLOTS + 1) as usize;
            let len = parts.counts.len();
            parts.counts.copy_within(..len - passed, passed);
            parts.counts[..passed].fill(0);
            parts.start_us = start_us;
        }
        // A part is dropped once it is older than a period.
        let forgotten = |index: usize| parts.start_us + (SLOTS + 1 - index as i64) * part_us - now_us;
        let used: i64 = parts.counts.iter().sum();
        let allowed = cost == 0 || used + cost <= self.count;
        let mut retry_us = 0;
        if !allowed {
            let mut missing = used + cost - self.count;
            let freed = parts.counts.iter().rposition(|count| {
                missing -= count;
                missing <= 0
            });
            retry_us = if cost > self.count { -1 } else { freed.map_or(-1, forgotten) };
        }
        let newest = if allowed && cost > 0 { Some(0) } else { parts.counts.iter().position(|count| *count > 0) };
        let reset_us = newest.map_or(0, forgotten);
        let after = if allowed { used + cost } else { used };
        if allowed {
            parts.counts[0] += cost;
        }
        Told { allowed, remaining: (self.count - after).max(0), retry_us, reset_us }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START_US: i64 = 1_700_000_000_000_000;

    /// When requests come after each other, µs, and what they cost.
    fn requests(period_us: i64) -> impl Strategy<Value = Vec<(i64, i64)>> {
        prop::collection::vec((prop_oneof![0..=period_us / 4, 0..=2 * period_us, Just(0)], 0..=4_i64), 1..80)
    }

    /// The time from now at which `ask` would be allowed for the first time, found by looking at both sides of it.
    fn check_retry(told: Told, asks_at: impl Fn(i64) -> bool) {
        if told.retry_us > 0 {
            assert!(asks_at(told.retry_us), "it is allowed {told:?} later");
            assert!(!asks_at(told.retry_us - 1), "and not before");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// The model counts with exact fractions: a level that falls by `count` for each µs, and rises by the period
        /// for each request.
        #[test]
        fn an_even_pace_is_that_of_a_leaking_bucket(
            (period_us, asked) in (1_000_i64..100_000_000).prop_flat_map(|us| (Just(us), requests(us))),
            count in 1_i64..50,
            burst in 1_i64..20,
        ) {
            let (mut state, mut now, mut allowed) = (None, START_US, Vec::new());
            // In units of a request divided by the period in ns and the interval's rounding: exact in whole numbers.
            let (mut level, mut level_at) = (0_i128, START_US);
            for (after, cost) in asked {
                now += after;
                let pace = Pace::new(count, period_us, burst, cost).unwrap();
                let (drained, interval) = (i128::from(now - level_at) * 1000, i128::from(pace.interval));
                level = (level - drained).max(0);
                level_at = now;
                let fits = cost == 0 || level + interval * i128::from(cost) <= interval * i128::from(burst);
                let (told, next) = pace.take(state, now);
                prop_assert_eq!(told.allowed, fits);
                if fits {
                    level += interval * i128::from(cost);
                    allowed.push((now, cost));
                }
                prop_assert_eq!(told.remaining, (i128::from(burst) - (level + interval - 1) / interval) as i64);
                prop_assert_eq!(i128::from(told.reset_us), (level + 999) / 1000);
                check_retry(told, |us| pace.take(state, now + us).0.allowed);
                prop_assert_eq!(told.retry_us == -1, cost > burst);
                state = next.or(state);
            }
            // In any interval, no more is allowed than a burst and what accrues during the interval.
            for (from, (since, _)) in allowed.iter().enumerate() {
                let mut sum = 0_i128;
                for (at, cost) in &allowed[from..] {
                    sum += i128::from(*cost);
                    prop_assert!((sum - i128::from(burst)) * i128::from(period_us) <= i128::from(at - since) * i128::from(count));
                }
            }
        }

        #[test]
        fn windows_count_apart(
            (period_us, asked) in (1_000_i64..100_000_000).prop_flat_map(|us| (Just(us), requests(us))),
            count in 1_i64..50,
        ) {
            let windows = Windows { count, period_us };
            let (mut state, mut now) = (None, START_US);
            let mut model = std::collections::HashMap::<i64, i64>::new();
            for (after, cost) in asked {
                now += after;
                let used = model.entry(now / period_us).or_default();
                let (told, next) = windows.take(state, now, cost);
                prop_assert_eq!(told.allowed, cost == 0 || *used + cost <= count);
                if told.allowed {
                    *used += cost;
                }
                let end = (now / period_us + 1) * period_us - now;
                prop_assert_eq!(told.remaining, count - *used);
                prop_assert_eq!(told.reset_us, if *used == 0 { 0 } else { end });
                check_retry(told, |us| windows.take(state, now + us, cost).0.allowed);
                prop_assert_eq!(told.retry_us == -1, cost > count);
                state = next.or(state);
            }
        }

        /// The model keeps every request that was counted.
        #[test]
        fn no_stretch_of_a_period_has_more_than_the_count(
            (period_us, asked) in (1_000_i64..100_000_000).prop_flat_map(|us| (Just(us), requests(us))),
            count in 1_i64..50,
        ) {
            let sliding = Sliding { count, period_us };
            let part = sliding.part_us();
            let (mut state, mut now) = (Parts::default(), START_US);
            let mut log: Vec<(i64, i64)> = Vec::new();
            for (after, cost) in asked {
                now += after;
                // The sum of the last 21 parts, the current one included.
                let counted = |now: i64| log.iter().filter(|(at, _)| at / part >= now / part - SLOTS).map(|(_, cost)| cost).sum::<i64>();
                let used = counted(now);
                // Everything within the last period is counted; of older requests only those in the part that the
                // period touches.
                let newer: i64 = log.iter().filter(|(at, _)| now - at < period_us).map(|(_, cost)| cost).sum();
                let older: i64 = log.iter().filter(|(at, _)| now - at < (SLOTS + 1) * part).map(|(_, cost)| cost).sum();
                prop_assert!(newer <= used && used <= older);
                let mut next = state.clone();
                let told = sliding.take(&mut next, now, cost);
                prop_assert_eq!(told.allowed, cost == 0 || used + cost <= count);
                check_retry(told, |us| sliding.take(&mut state.clone(), now + us, cost).allowed);
                prop_assert_eq!(told.retry_us == -1, cost > count);
                if told.allowed {
                    log.push((now, cost));
                    state = next;
                }
                let left = log.iter().filter(|(at, cost)| *cost > 0 && at / part >= now / part - SLOTS).map(|(at, _)| *at).max();
                prop_assert_eq!(told.reset_us, left.map_or(0, |at| (at / part + SLOTS + 1) * part - now));
                prop_assert_eq!(told.remaining, count - used - if told.allowed { cost } else { 0 });
            }
            for (from, (since, _)) in log.iter().enumerate() {
                let within = log[from..].iter().take_while(|(at, _)| at - since < period_us);
                prop_assert!(within.map(|(_, cost)| cost).sum::<i64>() <= count);
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_away() {
        let (day, hour) = (86_400_000_000, 3_600_000_000);
        let windows = Windows { count: 1, period_us: hour };
        let (_, full) = windows.take(None, START_US, 1);
        assert!(!windows.take(full, START_US - day, 1).0.allowed);
        let sliding = Sliding { count: 1, period_us: hour };
        let mut parts = Parts::default();
        assert!(sliding.take(&mut parts, START_US, 1).allowed);
        assert!(!sliding.take(&mut parts.clone(), START_US - day, 1).allowed);
        let pace = Pace::new(1, hour, 1, 1).unwrap();
        let (_, state) = pace.take(None, START_US);
        assert!(!pace.take(state, START_US - day).0.allowed);
    }

    #[test]
    fn a_bucket_has_a_longest_time() {
        assert!(Pace::new(1, 100 * 86_400_000_000, 1, 1).is_some());
        assert!(Pace::new(1, 100 * 86_400_000_000, 2, 1).is_none());
    }

    /// The table of redis-cell's own test: 5 at once, one a second; time in milliseconds, quantity, then what is said.
    #[test]
    fn verdicts_are_those_of_redis_cell() {
        let ns = |ms: i64| ms * NS_PER_MS;
        let mut stored = None;
        for (at_ms, quantity, remaining, reset_ms, retry_ms, limited) in [
            (0, 6, 5, 0, None, true),
            (0, 1, 4, 1000, None, false),
            (0, 1, 3, 2000, None, false),
            (0, 1, 2, 3000, None, false),
            (0, 1, 1, 4000, None, false),
            (0, 1, 0, 5000, None, false),
            (0, 1, 0, 5000, Some(1000), true),
            (3000, 1, 2, 3000, None, false),
            (3100, 1, 1, 3900, None, false),
            (4000, 1, 1, 4000, None, false),
            (8000, 1, 4, 1000, None, false),
            (9500, 1, 4, 1000, None, false),
            (9500, 0, 4, 1000, None, false),
            (9500, 2, 2, 3000, None, false),
            (9500, 5, 2, 3000, Some(3000), true),
        ] {
            let pace = Pace { interval: NS_PER_S, tolerance: 5 * NS_PER_S, increment: quantity * NS_PER_S };
            let verdict = pace.decide(stored, ns(1_000_000 + at_ms));
            stored = verdict.next.or(stored);
            let said = (verdict.remaining, verdict.reset_after, verdict.retry_after, verdict.limited);
            assert_eq!(said, (remaining, ns(reset_ms), retry_ms.map(ns), limited), "at {at_ms} ms");
        }
    }
}
