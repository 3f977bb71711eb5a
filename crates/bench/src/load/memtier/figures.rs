//! The figures of memtier's reports: rows of commands, runs, and the combination of several runs.

use hdrhistogram::Histogram;

use super::arguments::{Options, OwnCommand};
use crate::load::distribution::{self, Step};
use crate::load::outcome::Outcome;
use crate::load::stats::Second;

/// The highest recorded latency, in microseconds.
const LONGEST_US: u64 = 6_000_000_000;

/// The figures of one command, or of all.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// `SET`, as in the distribution of latencies.
    pub(super) name: String,
    /// Replies that are no errors.
    pub(super) count: u64,
    pub(super) nulls: u64,
    /// In microseconds, of all replies.
    pub(super) latency: Histogram<u64>,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) moved: u64,
    pub(super) asked: u64,
    pub(super) series: Vec<Second>,
    /// The length of a step of the series, in seconds.
    pub(super) step_s: usize,
}

/// The figures of a run, or of several together.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// SET, GET and WAIT, or the commands.
    pub(super) rows: Vec<Row>,
    pub(super) totals: Row,
    /// The sum of the durations.
    pub(super) elapsed_s: f64,
    pub(super) started_unix_ms: u64,
    pub(super) is_interrupted: bool,
    pub(super) connection_errors: u64,
    /// The number of runs.
    pub(super) runs: u64,
}

impl Row {
    fn new(name: &str) -> Row {
        Row {
            name: name.to_owned(),
            count: 0,
            nulls: 0,
            latency: histogram(),
            bytes_sent: 0,
            bytes_received: 0,
            moved: 0,
            asked: 0,
            series: Vec::new(),
            step_s: 1,
        }
    }

    /// Returns the title of the row: `Sets`.
    pub(super) fn title(&self) -> String {
        let lower = self.name.to_lowercase();
        let mut letters = lower.chars();
        let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
        format!("{first}{}s", letters.as_str())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes_sent + self.bytes_received
    }

    fn add(&mut self, other: &Row) {
        self.count += other.count;
        self.nulls += other.nulls;
        let added = self.latency.add(&other.latency);
        debug_assert!(added.is_ok(), "all histograms have the same bounds");
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.moved += other.moved;
        self.asked += other.asked;
        self.step_s = other.step_s;
        if self.series.len() < other.series.len() {
            self.series.resize_with(other.series.len(), Second::default);
        }
        for (second, more) in self.series.iter_mut().zip(&other.series) {
            second.merge(more);
        }
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, 3).expect("constant bounds that are valid")
}

fn micros(ns: &Histogram<u64>) -> Histogram<u64> {
    distribution::micros(ns, histogram())
}

/// Steps per half of the distance to 100 %.
const TICKS: f64 = 10.0;

/// Returns the distribution of latencies as memtier prints it.
pub(super) fn distribution(latency: &Histogram<u64>) -> Vec<Step> {
    distribution::by_percentile(latency, TICKS)
}

impl Run {
    pub(super) fn of(options: &Options, outcome: &Outcome) -> Run {
        let mut rows: Vec<Row> = Vec::new();
        for (number, command) in outcome.stats.commands.iter().enumerate() {
            let name = match (options.commands.is_empty(), number) {
                (true, 0) => "SET",
                (true, 1) => "GET",
                (true, _) => "WAIT",
                // The commands that it sends have rows of their own.
                (false, _) if options.commands.get(number).is_some_and(OwnCommand::is_any_recorded) => continue,
                (false, _) => outcome.commands[number].as_str(),
            };
            let series = outcome.stats.series.iter().map(|second| second[number].clone());
            let row = Row {
                name: name.to_owned(),
                count: command.answered - command.errors,
                nulls: command.nulls,
                latency: micros(&command.latency),
                bytes_sent: command.bytes_sent,
                bytes_received: command.bytes_received,
                moved: command.moved,
                asked: command.asked,
                series: series.collect(),
                step_s: outcome.stats.step_s,
            };
            match rows.iter_mut().find(|known| known.name == row.name) {
                Some(known) if !options.by_line => known.add(&row),
                _ => rows.push(row),
            }
        }
        let mut totals = Row::new("TOTAL");
        rows.iter().for_each(|row| totals.add(row));
        if options.commands.is_empty() && options.waits.is_none() {
            let mut wait = Row::new("WAIT");
            wait.series.resize_with(totals.series.len(), Second::default);
            rows.push(wait);
        }
        Run {
            rows,
            totals,
            elapsed_s: outcome.elapsed_s,
            started_unix_ms: outcome.started_unix_ms,
            is_interrupted: outcome.is_interrupted,
            connection_errors: outcome.stats.failed() + outcome.stats.connect_faults.total(),
            runs: 1,
        }
    }

    /// Returns the figures per second, of several runs their average.
    pub(super) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.elapsed_s.max(1e-9)
    }

    /// Returns the hits and misses of GET, which no other commands have.
    pub(super) fn hits(&self, options: &Options) -> (u64, u64) {
        let gets = self.rows.get(1).filter(|_| options.commands.is_empty());
        gets.map_or((0, 0), |row| (row.count - row.nulls, row.nulls))
    }

    /// Returns the runs together.
    fn together(runs: &[Run]) -> Run {
        let mut all = runs[0].clone();
        for run in &runs[1..] {
            all.rows.iter_mut().zip(&run.rows).for_each(|(row, more)| row.add(more));
            all.totals.add(&run.totals);
            all.elapsed_s += run.elapsed_s;
            all.is_interrupted |= run.is_interrupted;
            all.connection_errors += run.connection_errors;
            all.runs += 1;
        }
        // Seconds of different runs have nothing in common.
        all.rows.iter_mut().for_each(|row| row.series.clear());
        all.totals.series.clear();
        all
    }
}

/// Returns what the reports show, each with its title: the run, or the best, the worst and the average of several.
pub(super) fn titled(options: &Options, runs: Vec<Run>) -> Vec<(String, Run)> {
    if let [run] = runs.as_slice() {
        return vec![("ALL STATS".to_owned(), run.clone())];
    }
    let mut shown = Vec::new();
    if options.print_all_runs {
        shown.extend(runs.iter().enumerate().map(|(at, run)| (format!("RUN #{} RESULTS", at + 1), run.clone())));
    }
    let rate = |run: &&Run| run.per_second(run.totals.count);
    let by_rate = |one: &&Run, other: &&Run| rate(one).total_cmp(&rate(other));
    // Of equal ones the first.
    if let (Some(best), Some(worst)) = (runs.iter().rev().max_by(by_rate), runs.iter().min_by(by_rate)) {
        shown.push(("BEST RUN RESULTS".to_owned(), best.clone()));
        shown.push(("WORST RUN RESULTS".to_owned(), worst.clone()));
        let title = format!("AGGREGATED AVERAGE RESULTS ({} runs)", runs.len());
        shown.push((title, Run::together(&runs)));
    }
    shown
}
