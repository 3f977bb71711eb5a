//! Distributions of latencies in steps, as other load generators print them.

use hdrhistogram::Histogram;

/// One line of a distribution: the highest value of a step, its percentile and the number of values up to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) value: u64,
    pub(super) percentile: f64,
    pub(super) count: u64,
}

/// Adds the values of a histogram of nanoseconds to an empty one of microseconds.
pub(super) fn micros(ns: &Histogram<u64>, mut us: Histogram<u64>) -> Histogram<u64> {
    for step in ns.iter_recorded() {
        let value = ns.median_equivalent(step.value_iterated_to());
        us.saturating_record_n((value / 1000).max(1), step.count_at_value());
    }
    us
}

/// Returns the distribution in steps that get finer towards 100 %: `ticks` for each half of the rest.
pub(super) fn by_percentile(latency: &Histogram<u64>, ticks: f64) -> Vec<Step> {
    let total = latency.len();
    let mut steps = Vec::new();
    let (mut count, mut next, mut last) = (0, 0.0f64, 0);
    for step in latency.iter_recorded() {
        count += step.count_at_value();
        last = latency.highest_equivalent(step.value_iterated_to());
        let reached = 100.0 * count as f64 / total as f64;
        while next <= reached {
            steps.push(Step { value: last, percentile: next, count });
            if count == total {
                break;
            }
            let halves = (100.0 / (100.0 - next)).log2().floor() + 1.0;
            next += 100.0 / (ticks * halves.exp2());
        }
    }
    steps.push(Step { value: last, percentile: 100.0, count });
    steps
}

/// Returns the number of values up to each level, the first of which is `first`; `next` returns the level after one. The
/// last level is the first one that is no lower than all values.
pub(super) fn by_level(latency: &Histogram<u64>, first: u64, next: impl Fn(u64) -> u64) -> Vec<Step> {
    let total = latency.len();
    let mut recorded = latency.iter_recorded().peekable();
    let mut steps = Vec::new();
    let (mut count, mut level) = (0, first);
    while count < total {
        let value = latency.highest_equivalent(level);
        while let Some(step) = recorded.next_if(|step| step.value_iterated_to() <= value) {
            count += step.count_at_value();
        }
        steps.push(Step { value, percentile: 100.0 * count as f64 / total as f64, count });
        level = next(level);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency() -> Histogram<u64> {
        let mut latency = Histogram::new_with_bounds(10, 3_000_000, 3).unwrap();
        for value in [30, 85, 85, 101, 250, 2020, 2900, 2900] {
            latency.record(value).unwrap();
        }
        latency
    }

    fn steps(steps: &[Step]) -> Vec<(f64, u64, u64)> {
        steps.iter().map(|step| (step.percentile, step.value, step.count)).collect()
    }

    #[test]
    fn percentiles_get_finer() {
        let found = steps(&by_percentile(&latency(), 1.0));
        let expected = [(0.0, 31, 1), (50.0, 103, 4), (75.0, 2023, 6), (87.5, 2903, 8), (100.0, 2903, 8)];
        assert_eq!(found, expected);
    }

    #[test]
    fn levels_grow_by_their_rule() {
        let next = |level| level + if level <= 2000 { 100 } else { 1000 };
        let found = by_level(&latency(), 100, next);
        let changed: Vec<(u64, u64)> = found.iter().map(|step| (step.value, step.count)).collect();
        assert_eq!((changed[0], changed[1], changed[2]), ((103, 4), (207, 4), (303, 5)));
        assert_eq!((changed[20], changed.last()), ((2103, 6), Some(&(3103, 8))));
        assert_eq!(by_level(&Histogram::new(2).unwrap(), 1, |level| level + 1), []);
    }
}
