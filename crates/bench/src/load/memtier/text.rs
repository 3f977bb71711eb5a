//! memtier's text: the table, the distribution of latencies and the line that shows the progress.

use std::fmt::Write as _;

use super::arguments::{Amount, Options, Staircase};
use super::figures::{Row, Run, distribution};
use super::verify::Verified;
use crate::load::outcome::Outcome;

/// The report of the runs with their titles.
pub(super) fn report(options: &Options, runs: &[(String, Run)]) -> String {
    let mut out = String::new();
    let (amount, unit) = match options.amount {
        Amount::Requests(count) => (count, "Requests per client"),
        Amount::Seconds(seconds) => (seconds, "Seconds"),
    };
    let _ = write!(
        out,
        "{:<9} Threads\n{:<9} Connections per thread\n{amount:<9} {unit}\n",
        options.threads, options.clients
    );
    for (title, run) in runs {
        table(&mut out, options, title, run);
        if !options.hide_histogram {
            histogram(&mut out, run, options.commands.is_empty());
        }
    }
    out
}

/// Returns the steps in which the clients of a run begin.
pub(super) fn staircase(options: &Options, run: u32) -> Option<String> {
    let (Staircase { first, step, step_s }, Amount::Seconds(seconds)) = (options.staircase?, options.amount) else {
        return None;
    };
    let (clients, threads) = (options.clients, options.threads);
    let mut out = format!("[RUN #{run}] Client staircase pattern (per thread x {threads} threads):\n");
    let last = (clients - first).div_ceil(step);
    for number in (0..=last).take_while(|number| *number == 0 || number * step_s < seconds) {
        let active = (first + number * step).min(clients);
        let end = if number == last { seconds } else { ((number + 1) * step_s).min(seconds) };
        let bar = "█".repeat((active * 20).div_ceil(clients) as usize);
        let from = number * step_s;
        let most = if number == last { "  (max)" } else { "" };
        let _ = writeln!(out, "  Step {number}: {from:3}s - {end:3}s : {active:3} clients  {bar}{most}");
    }
    let _ = writeln!(out, "  Total max connections: {clients} x {threads} = {}", clients * threads);
    let least = last * step_s;
    let _ = match seconds >= least {
        true => writeln!(out, "  Minimum time to reach max: {least}s (test_time: {seconds}s OK)\n"),
        false => writeln!(
            out,
            "  WARNING: test_time ({seconds}s) < time to reach max clients ({least}s), max will not be reached\n"
        ),
    };
    Some(out)
}

/// The report of a verification.
pub(super) fn verification(Verified { right, failed }: Verified) -> String {
    format!(
        "\n\nPerforming data verification...\nData verification completed:\n{right:<10} keys verified \
         successfuly.\n{failed:<10} keys failed.\n"
    )
}

/// A column: its width without the blank behind it, its title, and the cells of the rows and the totals.
struct Column {
    width: usize,
    is_left: bool,
    title: String,
    cells: Vec<String>,
}

const NONE: &str = "---";

fn table(out: &mut String, options: &Options, title: &str, run: &Run) {
    let is_builtin = options.commands.is_empty();
    let rows: Vec<&Row> = run.rows.iter().chain([&run.totals]).collect();
    let totals = rows.len() - 1;
    let name = |at: usize, row: &Row| if at == totals { "Totals".to_owned() } else { row.title() };
    let longest = run.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(6);
    let mut columns = vec![Column {
        width: longest + 1,
        is_left: true,
        title: "Type".to_owned(),
        cells: rows.iter().enumerate().map(|(at, row)| name(at, row)).collect(),
    }];
    let mut column = |width: usize, title: String, cell: &dyn Fn(usize, &Row) -> Option<f64>| {
        let decimals = if width == 12 { 2 } else { 5 };
        let cells = rows.iter().enumerate().map(|(at, row)| match cell(at, row) {
            Some(number) => format!("{number:.decimals$}"),
            None => NONE.to_owned(),
        });
        columns.push(Column { width, is_left: false, title, cells: cells.collect() });
    };
    let (hits, misses) = run.hits(options);
    let has_hits = |at: usize| at == 1 || at == totals;
    column(12, "Ops/sec".to_owned(), &|_, row| Some(run.per_second(row.count)));
    if is_builtin {
        column(12, "Hits/sec".to_owned(), &|at, _| has_hits(at).then(|| run.per_second(hits)));
        column(12, "Misses/sec".to_owned(), &|at, _| has_hits(at).then(|| run.per_second(misses)));
    }
    let is_wait = |at: usize| is_builtin && at == 2;
    if options.cluster {
        column(12, "MOVED/sec".to_owned(), &|at, row| (!is_wait(at)).then(|| run.per_second(row.moved)));
        column(12, "ASK/sec".to_owned(), &|at, row| (!is_wait(at)).then(|| run.per_second(row.asked)));
    }
    let is_silent = |at: usize, row: &Row| is_builtin && at != totals && row.latency.is_empty();
    column(15, "Avg. Latency".to_owned(), &|at, row| (!is_silent(at, row)).then(|| row.latency.mean() / 1e3));
    for percentile in &options.percentiles {
        column(15, format!("{} Latency", label(*percentile)), &|at, row| {
            (!is_silent(at, row)).then(|| row.latency.value_at_quantile(percentile / 100.0) as f64 / 1e3)
        });
    }
    column(12, "KB/sec".to_owned(), &|at, row| (!is_wait(at)).then(|| run.per_second(row.bytes()) / 1024.0));
    let width: usize = columns.iter().map(|column| column.width + 1).sum();
    let _ = write!(out, "\n\n{title}\n{}\n", "=".repeat(width));
    line(out, &columns, |column| &column.title);
    let _ = writeln!(out, "{}", "-".repeat(width));
    for at in 0..rows.len() {
        line(out, &columns, |column| &column.cells[at]);
    }
}

fn line<'a>(out: &mut String, columns: &'a [Column], cell: impl Fn(&'a Column) -> &'a str) {
    for column in columns {
        let (cell, width) = (cell(column), column.width);
        let _ = if column.is_left { write!(out, "{cell:<width$} ") } else { write!(out, "{cell:>width$} ") };
    }
    out.push('\n');
}

/// Returns the name of a percentile in memtier's columns, which has the digits of a number of 32 bits.
fn label(percentile: f64) -> String {
    let number = percentile as f32;
    let (mut digits, mut rest) = (0, number.fract());
    while rest.abs() > 0.001 && digits < 3 {
        rest = (rest * 10.0).fract();
        digits += 1;
    }
    format!("p{number:.digits$}")
}

fn histogram(out: &mut String, run: &Run, is_builtin: bool) {
    let _ = write!(
        out,
        "\n\nRequest Latency Distribution\n{:<6} {:>12} {:>12}\n{}\n",
        "Type",
        "<= msec   ",
        "Percent",
        "-".repeat(72)
    );
    for (at, row) in run.rows.iter().enumerate() {
        for step in distribution(&row.latency) {
            let _ = writeln!(out, "{:<6} {:>8.3} {:>12.3}", row.name, step.value as f64 / 1e3, step.percentile);
        }
        if !is_builtin || at + 1 < run.rows.len() {
            out.push_str("---\n");
        }
    }
}

/// Returns what limits the figures, and what is no operation.
pub(super) fn remarks(outcomes: &[Outcome]) -> Vec<String> {
    let mut lines = Vec::new();
    for outcome in outcomes {
        let stats = &outcome.stats;
        let errors = stats.error_replies();
        if errors > 0 && errors < stats.answered {
            lines.push(format!(
                "{errors} of {} replies were errors, which are not counted as operations: {}",
                stats.answered,
                codes(outcome)
            ));
        }
        if stats.exhausted > 0 {
            lines.push(format!("{} connections were given up after --max-reconnect-attempts", stats.exhausted));
        }
        if stats.failed() > 0 {
            lines.push(format!("{} requests got no reply", stats.failed()));
        }
        lines.extend(outcome.warnings.iter().cloned());
    }
    lines
}

fn codes(outcome: &Outcome) -> String {
    let stats = &outcome.stats;
    let codes = stats.codes.iter().map(|(code, count)| {
        let example = stats.code_examples.get(code).map_or("", String::as_str);
        let example: String = example.chars().map(|c| if c.is_control() { '.' } else { c }).collect();
        format!("{code} {count} ({example})")
    });
    codes.collect::<Vec<_>>().join(", ")
}

/// Returns the reason why no request of a run succeeded.
pub(super) fn defeat(outcome: &Outcome) -> String {
    match outcome.stats.answered {
        0 => "every request failed".to_owned(),
        count => format!("all {count} replies were errors: {}", codes(outcome)),
    }
}
