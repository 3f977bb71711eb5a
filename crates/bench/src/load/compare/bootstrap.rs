//! Confidence intervals by the bootstrap.
//!
//! A run is a sequence of steps (seconds). Neighbouring steps are alike, so whole blocks of them are drawn with replacement
//! (circular block bootstrap; Politis and Romano, 1992), of the cube root of their number. Of several runs of each
//! side, made in turns, rounds are drawn first and steps within them afterwards: what changes between rounds is then part of
//! the interval. The interval has the 2.5th and the 97.5th percentile of the differences of [`RESAMPLES`] draws.
//!
//! Cost: the number of draws times that of the steps.

use crate::load::random::Random;

/// The number of draws.
const RESAMPLES: usize = 2000;

/// The figures of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// Per second.
    pub(super) answered: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// The steps of a run.
pub(super) type Run = Vec<Step>;

/// A figure of a sequence of steps.
pub(super) type Figure = fn(&[Step]) -> f64;

/// A difference with its confidence interval, relative to the first side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Difference {
    pub(super) one: f64,
    pub(super) other: f64,
    pub(super) relative: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Difference {
    /// Returns whether the interval has nothing but differences of one sign.
    pub(super) fn is_there(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Returns the differences of all figures between two sides, each of one or more runs. The k-th run of one side was made
/// beside the k-th of the other; no run is empty.
pub(super) fn differences(one: &[Run], other: &[Run], figures: &[Figure], seed: u64) -> Vec<Difference> {
    let all = |runs: &[Run]| runs.concat();
    let (whole_one, whole_other) = (all(one), all(other));
    let mut random = Random::new(seed);
    let mut drawn: Vec<Vec<f64>> = vec![Vec::with_capacity(RESAMPLES); figures.len()];
    for _ in 0..RESAMPLES {
        let (mut left, mut right) = (Vec::with_capacity(whole_one.len()), Vec::with_capacity(whole_other.len()));
        let rounds = one.len().min(other.len());
        for round in 0..rounds {
            let chosen = if rounds > 1 { random.below(rounds as u64) as usize } else { round };
            resample(&one[chosen], &mut random, &mut left);
            resample(&other[chosen], &mut random, &mut right);
        }
        for (figure, drawn) in figures.iter().zip(&mut drawn) {
            drawn.push(relative(figure(&left), figure(&right)));
        }
    }
    let of = |(figure, mut drawn): (&Figure, Vec<f64>)| {
        drawn.sort_by(f64::total_cmp);
        let (one, other) = (figure(&whole_one), figure(&whole_other));
        let (low, high) = (drawn[RESAMPLES / 40], drawn[RESAMPLES - 1 - RESAMPLES / 40]);
        Difference { one, other, relative: relative(one, other), low, high }
    };
    figures.iter().zip(drawn).map(of).collect()
}

fn relative(one: f64, other: f64) -> f64 {
    if one == other { 0.0 } else { (other - one) / one.max(f64::MIN_POSITIVE) }
}

/// Draws as many steps as there are, in blocks.
fn resample(run: &Run, random: &mut Random, into: &mut Vec<Step>) {
    let length = (run.len() as f64).cbrt().ceil() as usize;
    let end = into.len() + run.len();
    while into.len() < end {
        let start = random.below(run.len() as u64) as usize;
        let count = length.min(end - into.len());
        into.extend((0..count).map(|offset| run[(start + offset) % run.len()]));
    }
}

/// Returns the responses per second.
pub(super) fn rate(steps: &[Step]) -> f64 {
    steps.iter().map(|step| step.answered).sum::<f64>() / steps.len().max(1) as f64
}

/// Returns the mean of a figure of steps, by the number of their responses.
fn weighted(steps: &[Step], figure: impl Fn(&Step) -> f64) -> f64 {
    let answered: f64 = steps.iter().map(|step| step.answered).sum();
    steps.iter().map(|step| figure(step) * step.answered).sum::<f64>() / answered.max(f64::MIN_POSITIVE)
}

/// Returns the mean latency.
pub(super) fn mean(steps: &[Step]) -> f64 {
    weighted(steps, |step| step.mean_us)
}

/// Returns the mean of the steps' medians.
pub(super) fn p50(steps: &[Step]) -> f64 {
    weighted(steps, |step| step.p50_us)
}

/// Returns the mean of the steps' 99th percentiles.
pub(super) fn p99(steps: &[Step]) -> f64 {
    weighted(steps, |step| step.p99_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rate: f64, deviation: f64, count: usize, random: &mut Random) -> Run {
        let step = |_| {
            let answered = rate * (1.0 + deviation * random.normal());
            Step { answered, mean_us: 1e6 / answered, p50_us: 1e6 / answered, p99_us: 2e6 / answered }
        };
        (0..count).map(step).collect()
    }

    /// Of a hundred comparisons of runs that are alike some five find a difference; of runs that differ all do.
    #[test]
    fn intervals_have_their_confidence() {
        let mut random = Random::new(1);
        let (mut wrong, mut missed) = (0, 0);
        for trial in 0..60 {
            let one = run(1000.0, 0.03, 30, &mut random);
            let (same, faster) = (run(1000.0, 0.03, 30, &mut random), run(1060.0, 0.03, 30, &mut random));
            let difference = |other: Run| differences(std::slice::from_ref(&one), &[other], &[rate], trial)[0];
            wrong += u32::from(difference(same).is_there());
            let found = difference(faster);
            missed += u32::from(!found.is_there() || !(0.03..0.09).contains(&found.relative));
        }
        assert!(wrong <= 12 && missed <= 1, "{wrong} differences that are none, {missed} missed");
    }

    /// What differs from round to round on both sides alike is no difference between the sides.
    #[test]
    fn rounds_are_drawn_together() {
        let mut random = Random::new(2);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for round in 0..6 {
            let speed = if round % 2 == 0 { 1000.0 } else { 1500.0 };
            one.push(run(speed, 0.01, 10, &mut random));
            other.push(run(speed * 1.05, 0.01, 10, &mut random));
        }
        let found = differences(&one, &other, &[rate, mean, p50, p99], 3);
        assert!(found.iter().all(Difference::is_there), "{found:?}");
        assert!(found[0].low > 0.03 && found[0].high < 0.07, "{found:?}");
        assert!(found[3].relative < 0.0, "a latency falls where the rate grows");
        // Rounds that contradict each other are no difference.
        let swapped: Vec<Run> = other.iter().cloned().rev().collect();
        let mixed: Vec<Run> = (0..6).map(|at| if at < 3 { one[at].clone() } else { swapped[at].clone() }).collect();
        assert!(!differences(&one, &mixed, &[rate], 3)[0].is_there());
    }

    #[test]
    fn nothing_is_no_difference() {
        let still = vec![Step { answered: 0.0, mean_us: 0.0, p50_us: 0.0, p99_us: 0.0 }; 5];
        let found = differences(std::slice::from_ref(&still), std::slice::from_ref(&still), &[rate, mean], 1);
        assert!(found.iter().all(|difference| !difference.is_there() && difference.relative == 0.0));
    }
}
