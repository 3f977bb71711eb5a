//! Counters for INFO: each written by one worker, summed by the reader.
//!
//! A worker adds to atomics that only it writes, so an increment is a plain load and store on its own cache line.
//! CONFIG RESETSTAT stores the present sums and INFO subtracts them; no writer is disturbed.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::dispatch::INDEX;
use crate::script::Sums;

/// A number that one thread writes and all may read.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        // Not a read-modify-write: the one writer is the owner.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one worker.
#[derive(Debug)]
pub(super) struct WorkerCounters {
    pub connections: Count,
    pub rejected: Count,
    /// Connections that were closed because their TLS handshake failed.
    pub handshake_errors: Count,
    pub commands: Count,
    pub reads: Count,
    pub writes: Count,
    pub input_bytes: Count,
    pub output_bytes: Count,
    pub error_replies: Count,
    /// Connections that were closed because of `client-query-buffer-limit`, and because of `client-output-buffer-limit`.
    pub query_limit: Count,
    pub output_limit: Count,
    pub per_command: Vec<CommandCounters>,
}

/// The counters of one command.
#[derive(Debug, Default)]
pub(super) struct CommandCounters {
    pub calls: Count,
    pub nanoseconds: Count,
    pub rejected: Count,
    pub failed: Count,
    pub times: Times,
}

impl WorkerCounters {
    pub fn new(commands: usize) -> WorkerCounters {
        WorkerCounters {
            connections: Count::default(),
            rejected: Count::default(),
            handshake_errors: Count::default(),
            commands: Count::default(),
            reads: Count::default(),
            writes: Count::default(),
            input_bytes: Count::default(),
            output_bytes: Count::default(),
            error_replies: Count::default(),
            query_limit: Count::default(),
            output_limit: Count::default(),
            per_command: (0..commands).map(|_| CommandCounters::default()).collect(),
        }
    }
}

/// Sums over all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub connections: u64,
    pub rejected: u64,
    pub handshake_errors: u64,
    pub commands: u64,
    pub reads: u64,
    pub writes: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub error_replies: u64,
    pub query_limit: u64,
    pub output_limit: u64,
    /// calls, nanoseconds, rejected, failed
    pub per_command: Vec<[u64; 4]>,
}

impl Totals {
    pub fn add(&mut self, worker: &WorkerCounters) {
        self.connections += worker.connections.get();
        self.rejected += worker.rejected.get();
        self.handshake_errors += worker.handshake_errors.get();
        self.commands += worker.commands.get();
        self.reads += worker.reads.get();
        self.writes += worker.writes.get();
        self.input_bytes += worker.input_bytes.get();
        self.output_bytes += worker.output_bytes.get();
        self.error_replies += worker.error_replies.get();
        self.query_limit += worker.query_limit.get();
        self.output_limit += worker.output_limit.get();
        self.per_command.resize(worker.per_command.len(), [0; 4]);
        for (sum, command) in self.per_command.iter_mut().zip(&worker.per_command) {
            sum[0] += command.calls.get();
            sum[1] += command.nanoseconds.get();
            sum[2] += command.rejected.get();
            sum[3] += command.failed.get();
        }
    }

    /// Adds the calls by scripts. Their durations are part of the scripts' own.
    pub fn add_scripts(&mut self, counts: &Sums) {
        self.per_command.resize(INDEX.len(), [0; 4]);
        for (sum, [calls, rejected, failed]) in self.per_command.iter_mut().zip(counts.figures()) {
            self.commands += calls;
            sum[0] += calls;
            sum[2] += rejected;
            sum[3] += failed;
        }
        self.error_replies += counts.error_replies();
    }

    pub fn since(mut self, base: &Totals) -> Totals {
        self.connections -= base.connections;
        self.rejected -= base.rejected;
        self.handshake_errors -= base.handshake_errors;
        self.commands -= base.commands;
        self.reads -= base.reads;
        self.writes -= base.writes;
        self.input_bytes -= base.input_bytes;
        self.output_bytes -= base.output_bytes;
        self.error_replies -= base.error_replies;
        self.query_limit -= base.query_limit;
        self.output_limit -= base.output_limit;
        for (sum, base) in self.per_command.iter_mut().zip(&base.per_command) {
            sum.iter_mut().zip(base).for_each(|(sum, base)| *sum -= base);
        }
        self
    }
}

/// The number of buckets: one for each quarter of an octave from 128 ns to 17 minutes.
const BUCKETS: usize = 132;

/// The octave in which the first bucket begins.
const FIRST_OCTAVE: u32 = 7;

/// Times of a command.
#[derive(Clone, Debug)]
pub(super) struct Histogram(Box<[u64; BUCKETS]>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(Box::new([0; BUCKETS]))
    }
}

/// Returns the bucket of a time.
fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(1 << FIRST_OCTAVE);
    let octave = value.ilog2();
    let quarter = (value >> (octave - 2)) & 3;
    (((octave - FIRST_OCTAVE) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

/// Returns the first time that is above a bucket.
fn end_of(bucket: usize) -> u64 {
    let octave = FIRST_OCTAVE + (bucket / 4) as u32;
    (1 << octave) + ((bucket as u64 % 4 + 1) << (octave - 2))
}

impl Histogram {
    fn add(&mut self, other: impl Iterator<Item = u64>) {
        self.0.iter_mut().zip(other).for_each(|(sum, count)| *sum += count);
    }

    fn since(&mut self, base: &Histogram) {
        self.0.iter_mut().zip(base.0.iter()).for_each(|(count, base)| *count = count.saturating_sub(*base));
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the cumulative counts at powers of two, between the shortest and the longest duration. As in Redis the
    /// steps are 1,024 ns times a power of two, and each includes the durations that Redis's histogram does not
    /// distinguish from it.
    pub fn steps(&self) -> Vec<(u64, u64)> {
        let mut steps = Vec::new();
        let (mut sum, mut shown) = (0, 0);
        let total = self.count();
        for (at, count) in self.0.iter().enumerate() {
            sum += count;
            let end = end_of(at);
            if end >= 1024 && end.is_power_of_two() {
                if sum > shown {
                    steps.push(((end + end / 128 - 1) / 1000, sum));
                    shown = sum;
                }
                if sum == total {
                    break;
                }
            }
        }
        steps
    }

    /// Returns the duration in nanoseconds within which this percentage lies.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((self.count() as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut sum = 0;
        for (at, count) in self.0.iter().enumerate() {
            sum += count;
            if sum >= wanted {
                return end_of(at);
            }
        }
        0
    }
}

/// The durations of one command on one worker, created with the first one.
#[derive(Debug, Default)]
pub(super) struct Times(OnceLock<Box<[Count; BUCKETS]>>);

impl Times {
    /// Counts this many commands of this duration each.
    pub fn add(&self, nanoseconds: u64, calls: u64) {
        let buckets = self.0.get_or_init(|| Box::new(std::array::from_fn(|_| Count::default())));
        buckets[bucket(nanoseconds)].add(calls);
    }
}

/// Times by the command's number.
pub(super) type Histograms = BTreeMap<usize, Histogram>;

/// Adds a worker's times to sums.
pub(super) fn add_times(sums: &mut Histograms, worker: &WorkerCounters) {
    for (row, command) in worker.per_command.iter().enumerate() {
        if let Some(buckets) = command.times.0.get() {
            sums.entry(row).or_default().add(buckets.iter().map(Count::get));
        }
    }
}

/// Subtracts the counts at the last reset.
pub(super) fn times_since(mut sums: Histograms, base: &Histograms) -> Histograms {
    for (row, histogram) in &mut sums {
        if let Some(base) = base.get(row) {
            histogram.since(base);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_start_again_at_a_reset_without_touching_the_writers() {
        let worker = WorkerCounters::new(1);
        worker.commands.add(3);
        worker.per_command[0].calls.add(2);
        let mut base = Totals::default();
        base.add(&worker);
        worker.commands.add(4);
        worker.per_command[0].calls.add(5);
        let mut now = Totals::default();
        now.add(&worker);
        let now = now.since(&base);
        assert_eq!((now.commands, now.per_command[0][0]), (4, 5));
    }

    #[test]
    fn times_are_told_at_powers_of_two_and_by_percentiles() {
        let worker = WorkerCounters::new(2);
        // In nanoseconds. As in Redis, 1.1 µs is in the step of 2 µs, and 40 µs in that of 66 µs.
        for (spent, calls) in [(0, 1), (900, 2), (1100, 1), (40_000, 5), (u64::MAX, 1)] {
            worker.per_command[1].times.add(spent, calls);
        }
        let mut sums = Histograms::new();
        add_times(&mut sums, &worker);
        assert!(!sums.contains_key(&0));
        let steps = sums[&1].steps();
        assert_eq!(&steps[..3], [(1, 3), (2, 4), (66, 9)]);
        assert_eq!(steps.last().map(|step| step.1), Some(10));
        assert_eq!(sums[&1].percentile(50.0), 40_960);
        assert_eq!(sums[&1].percentile(10.0), 160);
        let base = sums.clone();
        worker.per_command[1].times.add(500, 7);
        let mut sums = Histograms::new();
        add_times(&mut sums, &worker);
        assert_eq!(times_since(sums, &base)[&1].count(), 7);
        for at in 1..BUCKETS {
            assert_eq!(bucket(end_of(at - 1)), at);
            assert_eq!(bucket(end_of(at) - 1), at);
        }
    }
}
