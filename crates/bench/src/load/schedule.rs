//! The due times of requests, independent of the server.
//!
//! An open loop's arrivals are fixed before it starts: the k-th of a constant rate R is due k/R after the start, and
//! thread t of T sends those with k mod T = t. So no event during the run can shift or drop a due time, and latency
//! measured from the due time is free of coordinated omission. Exponential gaps make each thread a Poisson process of
//! rate R/T; together they are one of rate R.

use super::random::Random;

/// Nanoseconds in a second.
pub(super) const SECOND: f64 = 1e9;

/// The maximum sum of all ratios of a run: the length of the cycle of requests.
const MAX_CYCLE: u64 = 10_000;

/// Distributes requests by their ratios as evenly as whole numbers allow: in each step every request is credited with
/// its ratio, and the one with the highest credit is chosen and debited with the total. Returns the numbers of the
/// requests, in the order in which they are sent repeatedly.
pub(super) fn weighted(ratios: &[u64]) -> Result<Vec<usize>, String> {
    let total = ratios.iter().fold(0u64, |total, ratio| total.saturating_add(*ratio));
    if ratios.contains(&0) || total > MAX_CYCLE {
        return Err(format!("ratios are 1 or more and together at most {MAX_CYCLE}"));
    }
    let mut credit = vec![0i64; ratios.len()];
    let step = |_| {
        for (credit, ratio) in credit.iter_mut().zip(ratios) {
            *credit += *ratio as i64;
        }
        // The first with the highest credit.
        let chosen = (0..ratios.len()).rev().max_by_key(|index| credit[*index]).unwrap_or(0);
        credit[chosen] -= total as i64;
        chosen
    };
    Ok((0..total).map(step).collect())
}

/// Gaps between arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrivals {
    /// All gaps have the same length.
    Constant,
    /// The intervals of a Poisson process.
    Exponential,
}

/// The arrivals of one thread, in order.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// The arrival rate of all threads together, per second.
    rate: f64,
    /// The time within which it grows from 0, in ns.
    ramp: u64,
    start: u64,
    end: Option<u64>,
    /// The remaining number of arrivals of this thread, if it is limited.
    left: u64,
    index: u64,
    step: u64,
    poisson: Option<(Random, f64)>,
    next: Option<u64>,
}

impl Schedule {
    /// Returns the arrivals of `thread` out of `threads`, from `start` on, before `end`, at most `count`. The rate grows
    /// evenly within its `ramp`. Times are in nanoseconds.
    pub(super) fn new(
        (rate, ramp): (f64, u64),
        arrivals: Arrivals,
        (thread, threads): (u64, u64),
        seed: u64,
        (start, end): (u64, Option<u64>),
        count: Option<u64>,
    ) -> Schedule {
        let poisson = match arrivals {
            Arrivals::Constant => None,
            Arrivals::Exponential => Some((Random::new(seed ^ (thread + 1).wrapping_mul(0xa076_1d64_78bd_642f)), 0.0)),
        };
        let left = count.unwrap_or(u64::MAX);
        let mut schedule = Schedule { rate, ramp, start, end, left, index: thread, step: threads, poisson, next: None };
        schedule.advance();
        schedule
    }

    /// Returns the due time of the next arrival, or `None` if there are no more.
    pub(super) fn next(&self) -> Option<u64> {
        self.next
    }

    /// Consumes the next arrival.
    pub(super) fn advance(&mut self) {
        self.next = None;
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let count = match &mut self.poisson {
            None => self.index as f64,
            Some((random, at)) => {
                *at += random.exponential() * self.step as f64;
                *at
            }
        };
        let offset = self.time_of(count);
        self.index += self.step;
        let due = self.start.saturating_add(offset as u64);
        if self.end.is_none_or(|end| due < end) {
            self.next = Some(due);
        } else {
            self.left = 0;
        }
    }

    /// Returns the time at which so many requests of all threads are due: the inverse of the integral of the rate.
    fn time_of(&self, count: f64) -> f64 {
        let ramp = self.ramp as f64;
        if count * SECOND * 2.0 < ramp * self.rate {
            (2.0 * ramp * count * SECOND / self.rate).sqrt()
        } else {
            ramp / 2.0 + count * SECOND / self.rate
        }
    }

    /// Consumes all arrivals that are due up to `until` and returns their number.
    pub(super) fn drain(&mut self, until: u64) -> u64 {
        let mut count = 0;
        while self.next.is_some_and(|due| due <= until) {
            count += 1;
            self.advance();
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rate: f64, arrivals: Arrivals, threads: u64, seconds: f64, count: Option<u64>) -> Vec<u64> {
        let end = Some(1000 + (seconds * SECOND) as u64);
        let mut dues: Vec<u64> = (0..threads)
            .flat_map(|thread| {
                let mut schedule = Schedule::new((rate, 0), arrivals, (thread, threads), 5, (1000, end), count);
                std::iter::from_fn(move || {
                    let next = schedule.next()?;
                    schedule.advance();
                    Some(next)
                })
            })
            .collect();
        dues.sort_unstable();
        dues
    }

    #[test]
    fn a_constant_rate_is_exact_over_any_number_of_threads() {
        for threads in [1, 3, 8] {
            let dues = all(20_000.0, Arrivals::Constant, threads, 1.5, None);
            assert_eq!(dues.len(), 30_000, "{threads} threads");
            assert_eq!((dues[0], dues[1], dues[29_999]), (1000, 51_000, 1000 + 29_999 * 50_000));
        }
        assert_eq!(all(0.5, Arrivals::Constant, 2, 10.0, None).len(), 5);
        assert_eq!(all(1000.0, Arrivals::Constant, 2, 10.0, Some(7)).len(), 14);
    }

    #[test]
    fn exponential_gaps_keep_the_rate_and_repeat() {
        let dues = all(20_000.0, Arrivals::Exponential, 2, 5.0, None);
        assert!((99_000..101_000).contains(&dues.len()), "{}", dues.len());
        assert_eq!(dues, all(20_000.0, Arrivals::Exponential, 2, 5.0, None));
        let short = dues.windows(2).filter(|pair| pair[1] - pair[0] < 50_000).count() as f64 / dues.len() as f64;
        assert!((short - 0.632).abs() < 0.01, "{short} of the gaps are below the mean, not 1 - 1/e");
    }

    #[test]
    fn what_was_not_taken_is_counted() {
        let mut schedule = Schedule::new((1000.0, 0), Arrivals::Constant, (0, 1), 1, (0, Some(1_000_000_000)), None);
        assert_eq!(schedule.drain(10_000_000), 11);
        assert_eq!(schedule.drain(u64::MAX), 989);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_ramp_grows_evenly_to_the_rate() {
        for arrivals in [Arrivals::Constant, Arrivals::Exponential] {
            let end = Some(2_000_000_000);
            let mut schedule = Schedule::new((10_000.0, 1_000_000_000), arrivals, (0, 1), 3, (0, end), None);
            let mut in_quarters = [0u32; 8];
            while let Some(due) = schedule.next() {
                in_quarters[(due / 250_000_000) as usize] += 1;
                schedule.advance();
            }
            // A quarter of a second of the ramp has 1, 3, 5 and 7 of the 32 parts of a second at the whole rate.
            for (quarter, expected) in [313, 938, 1563, 2188, 2500, 2500, 2500, 2500].into_iter().enumerate() {
                let found = in_quarters[quarter];
                assert!(found.abs_diff(expected) < 200, "{arrivals:?} {quarter}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn ratios_are_spread() {
        let numbers = |ratios: &[u64]| weighted(ratios).unwrap();
        assert_eq!(numbers(&[1, 1]), [0, 1]);
        assert_eq!(numbers(&[1, 3]), [1, 0, 1, 1]);
        assert_eq!(numbers(&[10, 1]).iter().filter(|number| **number == 1).count(), 1);
    }
}
