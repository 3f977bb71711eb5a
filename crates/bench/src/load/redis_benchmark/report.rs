//! redis-benchmark's reports: the text with its two distributions, the line of `-q` and that of `--csv`.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

use super::arguments::Options;
use crate::load::distribution::{Step, by_level, by_percentile, micros};
use crate::load::outcome::Outcome;

/// The bounds of recorded latencies, in microseconds. They are recorded in steps of at least eight microseconds.
const SHORTEST_US: u64 = 10;
const LONGEST_US: u64 = 3_000_000;

/// The level after which the levels of the cumulative distribution grow faster.
const COARSE_US: u64 = 2000;

/// The first line of `--csv`.
pub(super) const CSV_HEADER: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                                     \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n";

/// `CONFIG GET save` and `appendonly` of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    pub(super) save: String,
    pub(super) appendonly: String,
}

/// The servers' settings, as far as they are known.
#[derive(Debug)]
pub(super) enum Servers {
    One(Option<Settings>),
    Cluster(Vec<Option<Settings>>),
}

/// Returns the report of one test.
pub(super) fn report(options: &Options, servers: &Servers, title: &str, payload: usize, outcome: &Outcome) -> String {
    let empty = Histogram::new_with_bounds(SHORTEST_US, LONGEST_US, options.precision);
    let latency = micros(&outcome.latency, empty.expect("constant bounds that are valid, and up to four digits"));
    let answered = outcome.stats.answered;
    let rate = answered as f64 / outcome.elapsed_s.max(1e-9);
    let ms = |us: u64| us as f64 / 1e3;
    let at = |quantile: f64| ms(latency.value_at_quantile(quantile));
    let (average, min, max) = (latency.mean() / 1e3, ms(latency.min()), ms(latency.max()));
    if options.csv {
        return format!(
            "\"{title}\",\"{rate:.2}\",\"{average:.3}\",\"{min:.3}\",\"{:.3}\",\"{:.3}\",\"{:.3}\",\"{max:.3}\"\n",
            at(0.5),
            at(0.95),
            at(0.99)
        );
    }
    if options.quiet {
        return format!("{title}: {rate:.2} requests per second, p50={:.3} msec\n", at(0.5));
    }
    let mut out = format!(
        "====== {title} ======\n  {answered} requests completed in {:.2} seconds\n  {} parallel clients\n  \
         {payload} bytes payload\n  keep alive: {}\n",
        outcome.elapsed_s,
        options.clients,
        u8::from(options.keep_alive)
    );
    settings(&mut out, servers);
    let _ = writeln!(out, "  multi-thread: {}", if options.threads > 0 { "yes" } else { "no" });
    if options.threads > 0 {
        let _ = writeln!(out, "  threads: {}", options.threads);
    }
    out.push_str("\nLatency by percentile distribution:\n");
    steps(&mut out, &by_percentile(&latency, 1.0), latency.len());
    out.push_str("\nCumulative distribution of latencies:\n");
    let next = |level: u64| level + if level <= COARSE_US { 100 } else { 1000 };
    steps(&mut out, &by_level(&latency, 100, next), latency.len());
    let _ = write!(
        out,
        "\nSummary:\n  throughput summary: {rate:.2} requests per second\n  latency summary (msec):\n    \
         {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n    \
         {average:>9.3} {min:>9.3} {:>9.3} {:>9.3} {:>9.3} {max:>9.3}\n",
        "avg",
        "min",
        "p50",
        "p95",
        "p99",
        "max",
        at(0.5),
        at(0.95),
        at(0.99)
    );
    out
}

fn settings(out: &mut String, servers: &Servers) {
    match servers {
        Servers::One(None) => {}
        Servers::One(Some(Settings { save, appendonly })) => {
            let _ = write!(
                out,
                "  host configuration \"save\": {save}\n  host configuration \"appendonly\": {appendonly}\n"
            );
        }
        Servers::Cluster(nodes) => {
            let _ = writeln!(out, "  cluster mode: yes ({} masters)", nodes.len());
            for (number, node) in nodes.iter().enumerate() {
                let Some(Settings { save, appendonly }) = node else { continue };
                let save = if save.is_empty() { "NONE" } else { save };
                let _ =
                    write!(out, "  node [{number}] configuration:\n    save: {save}\n    appendonly: {appendonly}\n");
            }
        }
    }
}

/// Writes the steps at which the count changes, and all that reach the total.
fn steps(out: &mut String, steps: &[Step], total: u64) {
    let mut last = None;
    for step in steps {
        if last != Some(step.count) || step.count == total {
            let _ = writeln!(
                out,
                "{:.3}% <= {:.3} milliseconds (cumulative count {})",
                step.percentile,
                step.value as f64 / 1e3,
                step.count
            );
        }
        last = Some(step.count);
    }
}
