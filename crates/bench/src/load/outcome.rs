//! The results of a run.

use hdrhistogram::Histogram;

use super::clients::ClientStats;
use super::stats::Stats;

/// The CPU time of a process during the measured part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProcessTime {
    pub(super) pid: u32,
    pub(super) user_s: f64,
    pub(super) system_s: f64,
}

/// All results of a run.
pub(super) struct Outcome {
    pub(super) stats: Stats,
    pub(super) warmup: Stats,
    /// The clients of each thread, if they are wanted.
    pub(super) clients: Vec<Vec<ClientStats>>,
    pub(super) commands: Vec<String>,
    pub(super) latency: Histogram<u64>,
    pub(super) corrected: Option<Histogram<u64>>,
    pub(super) elapsed_s: f64,
    pub(super) started_unix_ms: u64,
    pub(super) is_interrupted: bool,
    /// The CPU time of the generator's threads, and the busiest one's share of its time.
    pub(super) cpu_s: f64,
    pub(super) busiest: f64,
    pub(super) own: ProcessTime,
    pub(super) peer: Option<ProcessTime>,
    /// Conditions that limit the validity of the figures.
    pub(super) warnings: Vec<String>,
}

impl Outcome {
    /// Returns the number of responses per second.
    pub(super) fn rate(&self) -> f64 {
        if self.elapsed_s > 0.0 { self.stats.answered_in_time as f64 / self.elapsed_s } else { 0.0 }
    }

    /// Returns the CPU microseconds per response.
    pub(super) fn cpu_per_request_us(&self, cpu_s: f64) -> f64 {
        if self.stats.answered > 0 { cpu_s * 1e6 / self.stats.answered as f64 } else { 0.0 }
    }

    /// Returns whether at least one request succeeded: any HTTP response, any RESP reply that is not an error.
    pub(super) fn has_worked(&self) -> bool {
        self.stats.answered > self.stats.error_replies()
    }
}

#[cfg(test)]
impl Outcome {
    /// Returns the results of a run of so many seconds, for tests of reports.
    pub(super) fn of(stats: Stats, commands: &[&str], elapsed_s: f64) -> Outcome {
        Outcome {
            latency: stats.latency(),
            warmup: Stats::new(commands.len()),
            clients: Vec::new(),
            commands: commands.iter().map(|name| (*name).to_owned()).collect(),
            stats,
            corrected: None,
            elapsed_s,
            started_unix_ms: 1_700_000_000_000,
            is_interrupted: false,
            cpu_s: 0.0,
            busiest: 0.0,
            own: ProcessTime { pid: 1, user_s: 0.0, system_s: 0.0 },
            peer: None,
            warnings: Vec::new(),
        }
    }
}
