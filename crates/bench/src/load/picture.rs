//! Reports with pictures: a page (`--html`) and charts alone (`--svg`).

use hdrhistogram::Histogram;
use sluicegate_report::{Axis, Chart, Line, Picture, Scale, Unit};

use super::outcome::Outcome;
use super::plan::{Pictures, Plan};
use super::stats::Second;
use super::text::{self, time};
use super::{csv, output};

/// Writes the files that are wanted.
pub(super) fn write(pictures: &Pictures, picture: impl FnOnce() -> Picture) -> Result<(), String> {
    if pictures.is_none() {
        return Ok(());
    }
    let picture = picture();
    if let Some(path) = &pictures.html {
        output::write(path, &sluicegate_report::html(&picture))?;
    }
    if let Some(path) = &pictures.svg {
        output::write(path, &sluicegate_report::svg(&picture))?;
    }
    Ok(())
}

/// Returns the picture of a run.
pub(super) fn of_run(plan: &Plan, outcome: &Outcome) -> Picture {
    let stats = &outcome.stats;
    let facts = [
        ("rate", format!("{:.1}/s", outcome.rate())),
        ("median latency", time(outcome.latency.value_at_quantile(0.5))),
        ("99th percentile", time(outcome.latency.value_at_quantile(0.99))),
        ("slowest", time(outcome.latency.max())),
        ("answered", stats.answered.to_string()),
        ("failed", stats.failed().to_string()),
        ("duration", format!("{:.1} s", outcome.elapsed_s)),
    ];
    let mut curves = vec![("latency", &outcome.latency)];
    curves.extend(outcome.corrected.as_ref().map(|corrected| ("corrected", corrected)));
    if !stats.service.is_empty() {
        curves.push(("service", &stats.service));
    }
    let steps = csv::steps(stats);
    let mut charts = over_time(&steps, stats.step_s as f64);
    charts.push(percentiles(&curves));
    Picture {
        title: text::subject(plan),
        subtitle: text::manner(plan, outcome),
        warnings: outcome.warnings.clone(),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        charts,
        text: text::report(plan, outcome),
    }
}

/// Returns the charts of rate, errors and latency over time.
fn over_time(steps: &[Second], step_s: f64) -> Vec<Chart> {
    let line = |name: &str, figure: &dyn Fn(&Second) -> f64| Line {
        name: name.to_owned(),
        points: steps.iter().enumerate().map(|(step, second)| (step as f64 * step_s, figure(second))).collect(),
    };
    let per_second = |count: u64| count as f64 / step_s;
    let seconds = || Axis::new("time", Scale::Linear, Unit::Seconds);
    let counts = || Axis::new("", Scale::Linear, Unit::Number);
    let quantile = |second: &Second, quantile: f64| match second.latency.is_empty() {
        true => f64::NAN,
        false => second.latency.value_at_quantile(quantile) as f64,
    };
    vec![
        Chart {
            title: "Responses per second".to_owned(),
            x: seconds(),
            y: counts(),
            lines: vec![
                line("answered", &|second| per_second(second.latency.len())),
                line("sent", &|second| per_second(second.sent)),
            ],
            mark: None,
        },
        Chart {
            title: "Errors per second".to_owned(),
            x: seconds(),
            y: counts(),
            lines: vec![
                line("error responses", &|second| per_second(second.errors)),
                line("without a response", &|second| per_second(second.failed)),
            ],
            mark: None,
        },
        Chart {
            title: "Latency over time".to_owned(),
            x: seconds(),
            y: Axis::new("", Scale::Log, Unit::Microseconds),
            lines: vec![
                line("p50", &|second| quantile(second, 0.5)),
                line("p90", &|second| quantile(second, 0.9)),
                line("p99", &|second| quantile(second, 0.99)),
                line("max", &|second| quantile(second, 1.0)),
            ],
            mark: None,
        },
    ]
}

/// Returns the chart of latencies by percentile, of histograms of nanoseconds.
pub(super) fn percentiles(curves: &[(&str, &Histogram<u64>)]) -> Chart {
    let line = |(name, latency): &(&str, &Histogram<u64>)| {
        // As many nines as the number of values supports, in ten parts each.
        let nines = (latency.len().max(10) as f64).log10().min(6.0);
        let quantiles = (0..=(nines * 10.0) as i32).map(|tenth| 1.0 - 10f64.powf(-f64::from(tenth) / 10.0));
        let points = quantiles.map(|quantile| (quantile, latency.value_at_quantile(quantile) as f64 / 1e3));
        Line { name: (*name).to_owned(), points: points.collect() }
    };
    Chart {
        title: "Latency by percentile".to_owned(),
        x: Axis::new("percentile", Scale::Nines, Unit::Quantile),
        y: Axis::new("", Scale::Log, Unit::Microseconds),
        lines: curves.iter().filter(|(_, latency)| !latency.is_empty()).map(line).collect(),
        mark: None,
    }
}
