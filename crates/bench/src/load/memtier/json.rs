//! memtier's JSON, "Format version" 2.

use super::arguments::{Amount, Options};
use super::configuration::{self, Setting};
use super::figures::{Row, Run, distribution};
use super::hdr;
use super::verify::Verified;
use crate::load::json::{Fixed, Writer, document};
use crate::load::stats::Second;

/// Returns the document of the runs with their titles.
pub(super) fn report(options: &Options, runs: &[(String, Run)], verified: Option<Verified>) -> String {
    document(|w| {
        w.object("configuration", |w| configuration(w, options));
        w.object("run information", |w| {
            w.field("Threads", options.threads);
            w.field("Connections per thread", options.clients);
            match options.amount {
                Amount::Requests(count) => w.field("Requests per client", count),
                Amount::Seconds(seconds) => w.field("Seconds", seconds),
            }
            w.field("Format version", 2u64);
        });
        for (title, run) in runs {
            w.object(title, |w| stats(w, options, run));
        }
        if let Some(Verified { right, failed }) = verified {
            w.object("client verifications results", |w| {
                w.field("keys verified successfuly", right);
                w.field("keys failed", failed);
            });
        }
    })
}

fn configuration(w: &mut Writer, options: &Options) {
    for (name, setting) in configuration::settings(options) {
        match setting {
            _ if configuration::SHOWN_ONLY.contains(&name) => {}
            Setting::Text(text) => w.field(name, text.as_deref()),
            Setting::Number(number) => w.field(name, number),
            Setting::Decimal(number) => w.field(name, Fixed(number, 6)),
            Setting::Flag(flag) => w.field(name, if flag { "true" } else { "false" }),
            Setting::Range(text) if name == "wait-timeout" => w.field(name, text.as_str()),
            Setting::Range(text) => w.field(name, text.replace('-', ":").as_str()),
        }
    }
}

fn stats(w: &mut Writer, options: &Options, run: &Run) {
    let duration = (run.elapsed_s * 1e3 / run.runs as f64).round() as u64;
    w.object("Runtime", |w| {
        w.field("Start time", run.started_unix_ms);
        w.field("Finish time", run.started_unix_ms + duration);
        w.field("Total duration", duration);
        w.field("Time unit", "MILLISECONDS");
        w.field("Interrupted", if run.is_interrupted { "true" } else { "false" });
    });
    let hits = run.hits(options);
    for (at, row) in run.rows.iter().enumerate() {
        w.object(&row.title(), |w| figures(w, options, run, (row, if at == 1 { hits } else { (0, 0) }, 0)));
    }
    w.object("Totals", |w| figures(w, options, run, (&run.totals, hits, run.connection_errors)));
    if options.hide_histogram {
        return;
    }
    for row in &run.rows {
        w.nest(&row.name, ['[', ']'], |w| {
            for step in distribution(&row.latency) {
                w.object("", |w| {
                    w.field("<=msec", Fixed(step.value as f64 / 1e3, 3));
                    w.field("percent", Fixed(step.percentile, 3));
                });
            }
        });
    }
}

/// Writes the figures of a row with its hits, its misses, and its errors of connections.
fn figures(w: &mut Writer, options: &Options, run: &Run, (row, (hits, misses), errors): (&Row, (u64, u64), u64)) {
    let per_second = |count: u64| Fixed(run.per_second(count), 2);
    let kilobytes = |bytes: u64| Fixed(run.per_second(bytes) / 1024.0, 2);
    let ms = |us: f64| Fixed(us / 1e3, 3);
    let (mean, count) = (row.latency.mean(), row.latency.len());
    w.field("Count", row.count / run.runs);
    w.field("Ops/sec", per_second(row.count));
    w.field("Hits/sec", per_second(hits));
    w.field("Misses/sec", per_second(misses));
    if options.cluster {
        w.field("MOVED/sec", per_second(row.moved));
        w.field("ASK/sec", per_second(row.asked));
    }
    w.field("Connection Errors/sec", per_second(errors));
    w.field("Connection Errors", errors / run.runs);
    w.field("Latency", ms(mean));
    w.field("Average Latency", ms(mean));
    w.field("Accumulated Latency", (mean * count as f64 / 1e3 / run.runs as f64) as u64);
    w.field("Min Latency", ms(if count > 0 { row.latency.min() as f64 } else { 0.0 }));
    w.field("Max Latency", ms(row.latency.max() as f64));
    w.field("KB/sec", kilobytes(row.bytes()));
    w.field("KB/sec RX/TX", kilobytes(row.bytes()));
    w.field("KB/sec RX", kilobytes(row.bytes_received));
    w.field("KB/sec TX", kilobytes(row.bytes_sent));
    w.object("Time-Serie", |w| {
        for (at, second) in row.series.iter().enumerate() {
            w.object(&(at * row.step_s).to_string(), |w| one_second(w, options, second));
        }
    });
    w.object("Percentile Latencies", |w| {
        for percentile in &options.percentiles {
            w.field(&key(*percentile), ms(row.latency.value_at_quantile(percentile / 100.0) as f64));
        }
        w.object("Histogram log format", |w| {
            w.field("Compressed Histogram", hdr::compressed(&row.latency).as_str());
        });
    });
}

fn one_second(w: &mut Writer, options: &Options, second: &Second) {
    let latency = &second.latency;
    let ms = |us: f64| Fixed(us / 1e3, 3);
    w.field("Bytes RX", second.bytes_received);
    w.field("Bytes TX", second.bytes_sent);
    w.field("Count", latency.len());
    if latency.is_empty() {
        return;
    }
    w.field("Average Latency", ms(latency.mean()));
    w.field("Accumulated Latency", (latency.mean() * latency.len() as f64 / 1e3) as u64);
    w.field("Min Latency", ms(latency.min() as f64));
    w.field("Max Latency", ms(latency.max() as f64));
    for percentile in &options.percentiles {
        w.field(&key(*percentile), ms(latency.value_at_quantile(percentile / 100.0) as f64));
    }
}

/// Returns memtier's name of a percentile, which has six characters; one that these do not tell from another has more.
fn key(percentile: f64) -> String {
    let whole = format!("p{percentile:.3}");
    if whole.ends_with('0') { whole.chars().take(6).collect() } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_percentiles_are_different() {
        let names = [50.0, 99.0, 99.9, 99.99, 99.999, 100.0].map(key);
        assert_eq!(names, ["p50.00", "p99.00", "p99.90", "p99.99", "p99.999", "p100.0"]);
    }
}
