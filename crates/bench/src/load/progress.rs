//! The lines that memtier_benchmark and redis-benchmark overwrite to show the progress of a run.

use super::plan::Load;
use super::reactor::Tick;
use super::statsd::Now;

/// The figures of a run so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    ops: u64,
    bytes: u64,
    latency_ns: f64,
    elapsed_ns: u64,
    failed: u64,
    /// The length of the last line.
    width: usize,
}

impl Progress {
    fn add(&mut self, tick: &Tick) {
        let ops = tick.latency.len();
        self.ops += ops;
        self.bytes += tick.bytes;
        self.latency_ns += tick.latency.mean() * ops as f64;
        self.elapsed_ns += tick.length_ns;
        self.failed += tick.failed;
    }

    /// Returns redis-benchmark's line after one more interval.
    pub(super) fn redis_benchmark(&mut self, title: &str, tick: &Tick) -> String {
        self.add(tick);
        let (second, elapsed) = (tick.length_ns.max(1) as f64 / 1e9, self.elapsed_ns.max(1) as f64 / 1e9);
        let line = format!(
            "{title}: rps={:.1} (overall: {:.1}) avg_msec={:.3} (overall: {:.3})",
            tick.latency.len() as f64 / second,
            self.ops as f64 / elapsed,
            tick.latency.mean() / 1e6,
            self.latency_ns / self.ops.max(1) as f64 / 1e6
        );
        self.width = line.len() + 1;
        line
    }

    /// Returns blanks over the last line.
    pub(super) fn blank(&self) -> String {
        " ".repeat(self.width.max(1))
    }

    /// Returns memtier's figures after one more interval.
    pub(super) fn now(&mut self, load: &Load, tick: &Tick) -> Now {
        self.add(tick);
        let (second, elapsed) = (tick.length_ns.max(1) as f64 / 1e9, self.elapsed_ns.max(1) as f64 / 1e9);
        let share = match (load.duration_ns, load.requests) {
            (Some(duration), _) => self.elapsed_ns as f64 / duration as f64,
            (None, requests) => self.ops as f64 / requests.unwrap_or(1).max(1) as f64,
        };
        let connections = load.growth.map_or(load.connections, |growth| {
            growth.count_at(self.elapsed_ns, load.connections / load.threads) * load.threads
        });
        Now {
            ops_s: tick.latency.len() as f64 / second,
            mean_ops_s: self.ops as f64 / elapsed,
            bytes_s: tick.bytes as f64 / second,
            mean_bytes_s: self.bytes as f64 / elapsed,
            latency_ms: tick.latency.mean() / 1e6,
            mean_latency_ms: if self.ops == 0 { 0.0 } else { self.latency_ns / self.ops as f64 / 1e6 },
            connections,
            percent: (share * 100.0).min(100.0),
            failed: self.failed,
        }
    }

    /// Returns memtier's line of these figures.
    pub(super) fn memtier(&self, run: u32, load: &Load, now: &Now) -> String {
        let errors = if now.failed > 0 { format!(" {} conn errors", now.failed) } else { String::new() };
        format!(
            "[RUN #{run} {:.0}%, {:3.0} secs] {:2} threads {:2} conns{errors}: {:11} ops, {:7.0} (avg: {:7.0}) ops/sec, \
             {}/sec (avg: {}/sec), {:5.2} (avg: {:5.2}) msec latency",
            now.percent,
            self.elapsed_ns.max(1) as f64 / 1e9,
            load.threads,
            now.connections,
            self.ops,
            now.ops_s,
            now.mean_ops_s,
            amount(now.bytes_s),
            amount(now.mean_bytes_s),
            now.latency_ms,
            now.mean_latency_ms
        )
    }
}

fn amount(bytes: f64) -> String {
    let kilobytes = bytes / 1024.0;
    match kilobytes {
        ..1024.0 => format!("{kilobytes:.2}KB"),
        ..1_048_576.0 => format!("{:.2}MB", kilobytes / 1024.0),
        _ => format!("{:.2}GB", kilobytes / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_memtiers_units() {
        assert_eq!([amount(0.0), amount(1536.0), amount(3_145_728.0)], ["0.00KB", "1.50KB", "3.00MB"]);
    }
}
