//! Comparisons of two loads: `bench compare A.json B.json`, and `--vs`, which makes the runs itself, in turns.
//!
//! A figure is different if the confidence interval of its difference ([`bootstrap`]) does not contain 0; otherwise the
//! report says that there is no difference. `--fail-over P` fails if a figure has become worse, by more than P percent.
//!
//! Limits: whole steps of a run alone count, at least [`MIN_STEPS`] of them on each side.

mod bootstrap;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sluicegate_report::{Axis, Chart, Line, Picture, Scale, Unit, Value};

use super::arguments::read_file;
use super::console::{Console, print};
use super::json;
use super::outcome::Outcome;
use super::output;
use super::picture;
use super::plan::{Comparison, Destination, Versus};
use super::text::time;
use super::{csv, run};
use bootstrap::{Difference, Figure, Run, Step, differences, mean, p50, p99, rate};

/// The least number of steps of each side.
const MIN_STEPS: usize = 5;

/// The exit code if a figure has become worse by more than `--fail-over`.
const WORSE: u8 = 3;

/// The seed of all intervals, so that a comparison can be repeated.
const SEED: u64 = 1;

/// The version of the document's schema.
const SCHEMA: &str = "sluicegate-compare/1";

/// The figures that are compared.
const FIGURES: [(&str, &str, Figure, Kind); 4] = [
    ("rate", "rate_per_s", rate, Kind::Rate),
    ("latency mean", "latency_mean_us", mean, Kind::Time),
    ("latency p50", "latency_p50_us", p50, Kind::Time),
    ("latency p99", "latency_p99_us", p99, Kind::Time),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// More is better.
    Rate,
    /// Less is better, in microseconds.
    Time,
}

/// One side of a comparison.
#[derive(Debug, Default)]
struct Side {
    name: String,
    runs: Vec<Run>,
    /// Settings by their names, as far as they influence the figures.
    settings: Vec<(String, String)>,
    answered: f64,
    errors: f64,
    failed: f64,
    warnings: Vec<String>,
}

/// Compares two reports. Returns the exit code.
pub(super) fn files(paths: &[PathBuf; 2], options: &Comparison, console: &mut Console<'_>) -> u8 {
    match (Side::of_file(&paths[0]), Side::of_file(&paths[1])) {
        (Ok(one), Ok(other)) => report(&one, &other, options, console),
        (Err(message), _) | (_, Err(message)) => console.refuse(&message),
    }
}

/// Runs two loads in turns and compares them. Returns the exit code.
pub(super) fn versus(versus: &Versus, console: &mut Console<'_>) -> u8 {
    let plans = [&versus.one, &versus.other];
    let mut sides = plans.map(|plan| Side { name: plan.load.server.to_string(), ..Side::default() });
    for round in 0..versus.rounds {
        // A B, B A, A B: a drift of the machine's speed is on both sides alike.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let outcome = match run::measure(plans[side], console) {
                Ok(outcome) => outcome,
                Err(message) => return console.refuse(&message),
            };
            let name = ["A", "B"][side];
            // A closed terminal is no reason to end a comparison.
            let _ = writeln!(
                console.err,
                "round {} of {}: {name} {:.1}/s, p99 {}",
                round + 1,
                versus.rounds,
                outcome.rate(),
                time(outcome.latency.value_at_quantile(0.99))
            );
            if outcome.is_interrupted {
                return 130;
            }
            if !outcome.has_worked() {
                return console.refuse(&format!("{name}: every request failed"));
            }
            sides[side].add(&outcome);
        }
    }
    let [one, other] = sides;
    report(&one, &other, &versus.comparison, console)
}

impl Side {
    fn add(&mut self, outcome: &Outcome) {
        let (step_s, stats) = (outcome.stats.step_s as f64, &outcome.stats);
        let whole = whole_steps(outcome.elapsed_s, step_s);
        let steps = csv::steps(stats).into_iter().take(whole).map(|step| Step {
            answered: step.latency.len() as f64 / step_s,
            mean_us: step.latency.mean(),
            p50_us: step.latency.value_at_quantile(0.5) as f64,
            p99_us: step.latency.value_at_quantile(0.99) as f64,
        });
        self.runs.push(steps.collect());
        self.answered += stats.answered as f64;
        self.failed += stats.failed() as f64;
        self.errors += (stats.error_replies() + stats.statuses[400..].iter().sum::<u64>()) as f64;
        self.warnings.extend(outcome.warnings.iter().cloned());
    }

    fn of_file(path: &Path) -> Result<Side, String> {
        let failed = |reason: &str| format!("{}: {reason}", path.display());
        let bytes = read_file("", path).map_err(|error| error.trim_start().to_owned())?;
        let text = String::from_utf8(bytes).map_err(|_| failed("the file is not UTF-8"))?;
        let value = Value::read(&text).map_err(|error| failed(&error))?;
        match value.text("schema") {
            Some(json::SCHEMA) => {}
            _ => return Err(failed("not a report of sluicegate bench, which --json=FILE writes")),
        }
        let (Some(step_s), Some(elapsed_s)) = (value.number("series.step_s"), value.number("elapsed_s")) else {
            return Err(failed("the report has no seconds; it is of an earlier version"));
        };
        let whole = whole_steps(elapsed_s, step_s);
        let step = |step: &Value| {
            let number = |name: &str| step.number(name).filter(|number| number.is_finite() && *number >= 0.0);
            Some(Step {
                answered: number("answered")? / step_s,
                mean_us: number("mean_us")?,
                p50_us: number("p50_us")?,
                p99_us: number("p99_us")?,
            })
        };
        let steps = value.list("series.steps").iter().take(whole).map(step).collect::<Option<Run>>();
        let steps = steps.ok_or_else(|| failed("a step of the series lacks a figure"))?;
        let sum = |name: &str| value.list("series.steps").iter().filter_map(|step| step.number(name)).sum();
        let settings = match value.at("settings") {
            Some(Value::Object(fields)) => {
                fields.iter().filter(|(name, _)| name != "seed" && name != "duration_s").map(setting).collect()
            }
            _ => Vec::new(),
        };
        let warnings = value.list("warnings").iter().filter_map(|warning| match warning {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        });
        Ok(Side {
            name: format!("{} ({})", value.text("server").unwrap_or_default(), path.display()),
            runs: vec![steps],
            settings,
            answered: sum("answered"),
            errors: sum("errors"),
            failed: sum("failed"),
            warnings: warnings.collect(),
        })
    }

    fn steps(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }
}

/// Returns the number of whole steps. An open loop ends a moment before its time if its last request is answered.
fn whole_steps(elapsed_s: f64, step_s: f64) -> usize {
    (elapsed_s / step_s.max(1.0) + 0.1) as usize
}

fn setting((name, value): &(String, Value)) -> (String, String) {
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(is_set) => is_set.to_string(),
        Value::Null => "none".to_owned(),
        Value::List(_) | Value::Object(_) => "given".to_owned(),
    };
    (name.clone(), text)
}

/// A compared figure.
struct Compared {
    title: &'static str,
    name: &'static str,
    kind: Kind,
    difference: Difference,
}

impl Compared {
    fn verdict(&self) -> &'static str {
        let grows = self.difference.relative > 0.0;
        match (self.difference.is_there(), self.kind, grows) {
            (false, ..) => "no difference",
            (true, Kind::Rate, true) | (true, Kind::Time, false) => "better",
            _ => "worse",
        }
    }

    /// Returns whether the figure has become worse by more than so many percent.
    fn fails(&self, percent: f64) -> bool {
        self.verdict() == "worse" && self.difference.relative.abs() * 100.0 > percent
    }

    fn value(&self, value: f64) -> String {
        match self.kind {
            Kind::Rate => format!("{value:.1}/s"),
            Kind::Time => time((value * 1e3) as u64),
        }
    }
}

fn report(one: &Side, other: &Side, options: &Comparison, console: &mut Console<'_>) -> u8 {
    for side in [one, other] {
        if side.steps() < MIN_STEPS || side.runs.iter().any(Vec::is_empty) {
            return console.refuse(&format!(
                "{}: {} whole seconds; a comparison needs {MIN_STEPS} of each side, and one of each run: give --duration more",
                side.name,
                side.steps()
            ));
        }
    }
    let figures = FIGURES.map(|(_, _, figure, _)| figure);
    let found = differences(&one.runs, &other.runs, &figures, SEED);
    let compared: Vec<Compared> = FIGURES
        .into_iter()
        .zip(found)
        .map(|((title, name, _, kind), difference)| Compared { title, name, kind, difference })
        .collect();
    let written = match &options.json {
        Destination::Output => print(console, &document(one, other, &compared)),
        Destination::No => print(console, &table(one, other, &compared)),
        Destination::File(path) => print(console, &table(one, other, &compared))
            .and_then(|()| output::write(path, &document(one, other, &compared))),
    };
    let written = written.and_then(|()| picture::write(&options.pictures, || picture(one, other, &compared)));
    if let Err(message) = written {
        return console.refuse(&message);
    }
    let Some(percent) = options.fail_over else { return 0 };
    let worse: Vec<&str> = compared.iter().filter(|figure| figure.fails(percent)).map(|figure| figure.title).collect();
    if worse.is_empty() {
        return 0;
    }
    console.refuse(&format!("worse by more than {percent} %: {}", worse.join(", ")));
    WORSE
}

fn table(one: &Side, other: &Side, compared: &[Compared]) -> String {
    let mut out = format!("A  {}\nB  {}\n\n", one.name, other.name);
    let _ = writeln!(out, "{:<14}{:>14}{:>14}{:>12}   95 % interval", "", "A", "B", "difference");
    for figure in compared {
        let Difference { one, other, relative, low, high } = figure.difference;
        let interval = format!("{:+.1} % to {:+.1} %", low * 100.0, high * 100.0);
        let _ = writeln!(
            out,
            "{:<14}{:>14}{:>14}{:>10.1} %   {interval:<22}{}",
            figure.title,
            figure.value(one),
            figure.value(other),
            relative * 100.0,
            figure.verdict()
        );
    }
    for (title, one, other) in [("errors", one.errors, other.errors), ("failed", one.failed, other.failed)] {
        if one + other > 0.0 {
            let _ = writeln!(out, "{title:<14}{one:>14}{other:>14}");
        }
    }
    let _ = write!(
        out,
        "\n{} and {} seconds, {} and {} responses; percentiles are means of those of each second\n",
        one.steps(),
        other.steps(),
        one.answered,
        other.answered
    );
    for (name, text) in &one.settings {
        if let Some((_, different)) =
            other.settings.iter().find(|(known, different)| known == name && different != text)
        {
            let _ = writeln!(out, "warning: the runs are not alike: {name} is {text} and {different}");
        }
    }
    for (name, side) in [("A", one), ("B", other)] {
        let mut seen: Vec<&String> = Vec::new();
        for warning in &side.warnings {
            if !seen.contains(&warning) {
                seen.push(warning);
                let _ = writeln!(out, "warning: {name}: {warning}");
            }
        }
    }
    out
}

/// Returns the picture: the differences, and the seconds of both sides one after the other.
fn picture(one: &Side, other: &Side, compared: &[Compared]) -> Picture {
    let line = |name: &str, side: &Side, figure: fn(&Step) -> f64| Line {
        name: name.to_owned(),
        points: side.runs.iter().flatten().enumerate().map(|(at, step)| (at as f64, figure(step))).collect(),
    };
    let chart = |title: &str, scale, unit, figure: fn(&Step) -> f64| Chart {
        title: title.to_owned(),
        x: Axis::new("time of measuring", Scale::Linear, Unit::Seconds),
        y: Axis::new("", scale, unit),
        lines: vec![line("A", one, figure), line("B", other, figure)],
        mark: None,
    };
    let fact = |figure: &Compared| {
        let Difference { relative, low, high, .. } = figure.difference;
        let (relative, low, high) = (relative * 100.0, low * 100.0, high * 100.0);
        (figure.title.to_owned(), format!("{relative:+.1} %, {} ({low:+.1} to {high:+.1})", figure.verdict()))
    };
    Picture {
        title: format!("{} and {}", one.name, other.name),
        subtitle: "Difference of B to A, with its 95 % confidence interval".to_owned(),
        warnings: Vec::new(),
        facts: compared.iter().map(fact).collect(),
        charts: vec![
            chart("Responses per second", Scale::Linear, Unit::Number, |step| step.answered),
            chart("Median latency", Scale::Log, Unit::Microseconds, |step| step.p50_us),
            chart("99th percentile of latency", Scale::Log, Unit::Microseconds, |step| step.p99_us),
        ],
        text: table(one, other, compared),
    }
}

fn document(one: &Side, other: &Side, compared: &[Compared]) -> String {
    json::document(|w| {
        w.field("schema", SCHEMA);
        for (name, side) in [("a", one), ("b", other)] {
            w.object(name, |w| {
                w.field("name", side.name.as_str());
                w.field("runs", side.runs.len() as u64);
                w.field("steps", side.steps() as u64);
                w.field("answered", side.answered as u64);
                w.field("errors", side.errors as u64);
                w.field("failed", side.failed as u64);
                w.nest("warnings", ['[', ']'], |w| {
                    side.warnings.iter().for_each(|warning| w.field("", warning.as_str()));
                });
            });
        }
        w.nest("figures", ['[', ']'], |w| {
            for figure in compared {
                w.object("", |w| {
                    let Difference { one, other, relative, low, high } = figure.difference;
                    w.field("name", figure.name);
                    w.field("a", one);
                    w.field("b", other);
                    w.field("difference_percent", relative * 100.0);
                    w.field("low_percent", low * 100.0);
                    w.field("high_percent", high * 100.0);
                    w.field("verdict", figure.verdict());
                });
            }
        });
    })
}
