//! The files of `--client-stats`: CSV of each client, by seconds, and the distributions of its latencies.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::arguments::Options;
use super::figures;
use crate::load::clients::{ClientStats, Step};
use crate::load::console::Console;
use crate::load::outcome::Outcome;
use crate::load::output;

const NAMES: [&str; 3] = ["SET", "GET", "WAIT"];

/// Writes the files of a run, which is the `number`-th: `PREFIX-RUN-THREAD-CLIENT.csv`, of clients that have sent
/// something.
pub(super) fn write(
    options: &Options,
    outcome: &Outcome,
    number: u32,
    console: &mut Console<'_>,
) -> Result<(), String> {
    let Some(prefix) = &options.client_stats else { return Ok(()) };
    // If this can't be written, errors can't either.
    let _ = writeln!(console.err, "[RUN {number}] Writing client stats files...");
    for (thread, clients) in outcome.clients.iter().enumerate() {
        for (client, stats) in clients.iter().enumerate().filter(|(_, stats)| stats.has_begun()) {
            let path = PathBuf::from(format!("{prefix}-{number}-{thread}-{client}.csv"));
            output::write(&path, &text(options, &outcome.commands, stats))?;
        }
    }
    Ok(())
}

fn text(options: &Options, commands: &[String], stats: &ClientStats) -> String {
    // Into a String nothing fails.
    let mut out = String::new();
    if options.commands.is_empty() {
        out.push_str("Per-Second Benchmark Data\nSecond");
        columns(&mut out, NAMES[0]);
        columns(&mut out, NAMES[1]);
        out.push_str(",GET Misses,GET Hits,WAIT Requests,WAIT Average Latency\n");
        for (at, step) in stats.series.iter().enumerate() {
            let [set, get] = [0, 1].map(|command| step.get(command).copied().unwrap_or_default());
            let wait = step.get(2).copied().unwrap_or_default();
            let (misses, hits) = (get.nulls, get.answered - get.nulls);
            let _ = writeln!(
                out,
                "{},{},{},{misses},{hits},{},{}",
                at * stats.step_s,
                cells(&set),
                cells(&get),
                wait.answered,
                average(&wait)
            );
        }
        for command in [1, 0, 2] {
            distribution(&mut out, NAMES[command], stats, command);
        }
        if options.cluster {
            out.push_str("\nPer-Second Benchmark Cluster Data\nSecond,SET Moved,SET Ask,GET Moved,GET Ask\n");
            for (at, step) in stats.series.iter().enumerate() {
                let (set, get) = (&step[0], &step[1]);
                let second = at * stats.step_s;
                let _ = writeln!(out, "{second},{},{},{},{}", set.moved, set.asked, get.moved, get.asked);
            }
        }
        return out;
    }
    let own: Vec<usize> = (0..commands.len())
        // Recorded commands have columns of their own.
        .filter(|number| !options.commands.get(*number).is_some_and(|command| command.is_any_recorded()))
        .collect();
    out.push_str("Per-Second Benchmark Arbitrary Commands Data\nSecond");
    own.iter().for_each(|number| columns(&mut out, &commands[*number]));
    out.push('\n');
    for (at, step) in stats.series.iter().enumerate() {
        let _ = write!(out, "{},", at * stats.step_s);
        for number in &own {
            let _ = write!(out, "{},", cells(&step[*number]));
        }
        out.push('\n');
    }
    own.iter().for_each(|number| distribution(&mut out, &commands[*number], stats, *number));
    out
}

fn columns(out: &mut String, name: &str) {
    for column in ["Requests", "Average Latency", "Total Bytes", "Total Bytes TX", "Total Bytes RX"] {
        let _ = write!(out, ",{name} {column}");
    }
}

fn cells(step: &Step) -> String {
    let (sent, received) = (step.bytes_sent, step.bytes_received);
    format!("{},{},{},{sent},{received}", step.answered, average(step), sent + received)
}

/// Returns the mean latency in seconds.
fn average(step: &Step) -> String {
    let us = step.latency_us.checked_div(step.answered).unwrap_or(0);
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn distribution(out: &mut String, name: &str, stats: &ClientStats, command: usize) {
    let _ = write!(out, "\nFull-Test {name} Latency\nLatency (<= msec),Percent\n");
    let mut latency = figures::histogram();
    for step in stats.latency.get(command).iter().flat_map(|latency| latency.iter_recorded()) {
        latency.saturating_record_n(step.value_iterated_to(), step.count_at_value().into());
    }
    for step in figures::distribution(&latency) {
        let _ = writeln!(out, "{:8.3},{:.3}", step.value as f64 / 1e3, step.percentile);
    }
}
