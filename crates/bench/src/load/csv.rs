//! The figures of each second as CSV.

use std::fmt::Write as _;

use super::outcome::Outcome;
use super::stats::{Second, Stats};

const HEADER: &str =
    "second,sent,answered,errors,failed,bytes_sent,bytes_received,p50_us,p90_us,p99_us,p99_9_us,max_us\n";

/// Returns the figures of each step of a run, of all commands together.
pub(super) fn steps(stats: &Stats) -> Vec<Second> {
    let together = |commands: &Vec<Second>| {
        let mut sum = Second::default();
        commands.iter().for_each(|command| sum.merge(command));
        sum
    };
    stats.series.iter().map(together).collect()
}

/// Returns the report: a line for each second, or for each step of a very long run.
pub(super) fn report(outcome: &Outcome) -> String {
    let mut out = HEADER.to_owned();
    for (number, step) in steps(&outcome.stats).iter().enumerate() {
        let at = |quantile: f64| step.latency.value_at_quantile(quantile);
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{}",
            number * outcome.stats.step_s,
            step.sent,
            step.latency.len(),
            step.errors,
            step.failed,
            step.bytes_sent,
            step.bytes_received,
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            step.latency.max()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_summed() {
        let mut stats = Stats::new(2);
        for (second, command, latency) in [(0, 0, 100), (0, 1, 200), (2, 1, 50)] {
            let step = stats.second(second, command);
            step.sent += 1;
            step.record(latency);
        }
        stats.second(2, 0).failed += 3;
        let text = report(&Outcome::of(stats, &["a", "b"], 3.0));
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            ["0,2,2,0,0,0,0,100,200,200,200,200", "1,0,0,0,0,0,0,0,0,0,0,0", "2,1,1,0,3,0,0,50,50,50,50,50"]
        );
        assert_eq!(text.lines().next().unwrap().split(',').count(), 12);
    }
}
