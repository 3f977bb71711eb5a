//! How much a target can take: `bench capacity`.
//!
//! First the number of connections grows, each step in a closed loop of its own. The *highest rate* is that of the best step
//! without errors, and the *knee* the first step that reaches [`KNEE`] of it. The steps end if more than [`ERRORS`] of the
//! requests fail or get a 5xx, if connections can't be made for want of ports or descriptors, or if the rate grows by less
//! than [`FLAT`] in two steps that follow each other. Then the rate grows, in an open loop from half of the highest rate on, up
//! to the first at which the 99th percentile is more than [`SLOW`] times that of the first, or requests fail or are not sent: the
//! one before it is the *sustained rate*.
//!
//! During each step the proxy's own figures are read ([`probe`]); [`limits`] says which limit the last step has reached.
//! Recommended limits follow from Little's law: as many requests are at a server at once as come in the time of a response.

mod limits;
mod page;
mod probe;
mod report;

use std::sync::atomic::{AtomicBool, Ordering};

use super::console::{Console, print};
use super::outcome::Outcome;
use super::output;
use super::picture;
use super::plan::{CapacityPlan, Destination, Plan};
use super::run;
use limits::Limit;
use probe::{Kind, Observed, Source};

/// The share of requests without success from which on a step fails.
const ERRORS: f64 = 0.01;

/// The growth of the rate below which a step is flat.
const FLAT: f64 = 1.05;

/// The share of the highest rate that the knee has.
const KNEE: f64 = 0.95;

/// The factor by which the 99th percentile may grow with the rate.
const SLOW: f64 = 3.0;

/// The rates of the open loop, as shares of the highest one.
const RATES: [f64; 7] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0];

/// The figures of one step. Times in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Step {
    connections: u64,
    /// The requested rate of an open loop.
    wanted: Option<f64>,
    rate: f64,
    answered: u64,
    failed: u64,
    unsent: u64,
    /// Responses from 500 on, and of them 503.
    errors: u64,
    unavailable: u64,
    p50: u64,
    p99: u64,
    busiest: f64,
    /// Examples of connections that were not made.
    resources: Option<String>,
    refused: Option<String>,
    observed: Observed,
}

impl Step {
    fn of(plan: &Plan, outcome: &Outcome, observed: Observed) -> Step {
        let stats = &outcome.stats;
        let example = |names: &[&str]| {
            let name = names.iter().find(|name| stats.connect_faults.count(name) > 0)?;
            Some(stats.connect_faults.example(name).unwrap_or(name).to_owned())
        };
        Step {
            connections: plan.load.connections as u64,
            wanted: plan.load.rate,
            rate: outcome.rate(),
            answered: stats.answered,
            failed: stats.failed(),
            unsent: stats.unsent,
            errors: stats.statuses[500..600].iter().sum(),
            unavailable: stats.statuses[503],
            p50: outcome.latency.value_at_quantile(0.5),
            p99: outcome.latency.value_at_quantile(0.99),
            busiest: outcome.busiest,
            resources: example(&["resources"]),
            refused: example(&["refused", "timeout"]),
            observed,
        }
    }

    /// Returns the share of requests that failed, or were answered with a 5xx.
    fn error_share(&self) -> f64 {
        let bad = self.failed + self.errors;
        bad as f64 / (self.answered + self.failed).max(1) as f64
    }

    /// Returns whether the step had all its connections, and its requests success.
    fn is_good(&self) -> bool {
        self.answered > 0 && self.error_share() <= ERRORS && self.resources.is_none()
    }
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    target: String,
    steps: Vec<Step>,
    rates: Vec<Step>,
    /// The number of the knee among the steps.
    knee: Option<usize>,
    /// The number of the highest rate that is sustained among the rates.
    sustained: Option<usize>,
    limits: Vec<Limit>,
    /// Why the steps ended.
    end: String,
    margin: f64,
    warnings: Vec<String>,
}

/// The settings that all steps share.
struct Search<'a> {
    capacity: &'a CapacityPlan,
    source: Option<Source<'a>>,
    /// Whether each step is a line of standard output.
    is_table: bool,
}

/// Runs all steps and reports. Returns the exit code.
pub(super) fn run(capacity: &CapacityPlan, console: &mut Console<'_>) -> u8 {
    let mut found = Found { target: super::text::subject(&capacity.plan), margin: capacity.margin, ..Found::default() };
    let is_table = capacity.json != Destination::Output;
    let header = |console: &mut Console<'_>, text: &str| if is_table { print(console, text) } else { Ok(()) };
    let done = (|| {
        let source = capacity.source.as_ref().map(Source::open).transpose()?;
        let search = Search { capacity, source, is_table };
        header(console, &report::header(&found))?;
        let mut is_over = climb(&search, &mut found, console)?;
        settle(&mut found);
        if !is_over && found.knee.is_some() {
            header(console, report::RATES_HEADER)?;
            is_over = rates(&search, &mut found, console)?;
        }
        let text = report::conclusions(&found);
        header(console, &text)?;
        match &capacity.json {
            Destination::No => {}
            Destination::Output => print(console, &report::document(&found))?,
            Destination::File(path) => output::write(path, &report::document(&found))?,
        }
        picture::write(&capacity.pictures, || report::picture(&found))?;
        Ok::<_, String>(is_over)
    })();
    match done {
        Err(message) => console.refuse(&message),
        Ok(true) => 130,
        Ok(false) if found.knee.is_some() => 0,
        Ok(false) => console.refuse("no step without errors"),
    }
}

/// Makes the steps of connections. Returns whether they were interrupted.
fn climb(search: &Search<'_>, found: &mut Found, console: &mut Console<'_>) -> Result<bool, String> {
    let (mut best, mut flat) = (0.0f64, 0);
    for connections in &search.capacity.steps {
        let mut plan = search.capacity.plan.clone();
        plan.load.connections = *connections as usize;
        plan.load.threads = plan.load.threads.min(plan.load.connections);
        let (step, is_over) = measure(search, &plan, console)?;
        if search.is_table {
            print(console, &report::row(&step))?;
        }
        let (is_good, has_resources) = (step.is_good(), step.resources.is_none());
        let (share, rate) = (step.error_share(), step.rate);
        found.steps.push(step);
        if is_over {
            return Ok(true);
        }
        if !is_good {
            found.end = match has_resources {
                true => format!("{:.1} % of the requests failed or were answered with 5xx", share * 100.0),
                false => format!("this machine has no ports or descriptors for {connections} connections"),
            };
            return Ok(false);
        }
        flat = if rate < best * FLAT { flat + 1 } else { 0 };
        best = best.max(rate);
        if flat >= 2 {
            found.end = "the rate does not grow any more".to_owned();
            return Ok(false);
        }
    }
    found.end = "all steps are made".to_owned();
    Ok(false)
}

/// Makes the steps of rates. Returns whether they were interrupted.
fn rates(search: &Search<'_>, found: &mut Found, console: &mut Console<'_>) -> Result<bool, String> {
    let best = found.steps.iter().filter(|step| step.is_good()).map(|step| step.rate).fold(0.0, f64::max);
    let knee = found.knee.map_or(1, |knee| found.steps[knee].connections);
    for share in RATES {
        let mut plan = search.capacity.plan.clone();
        plan.load.rate = Some((best * share).max(1.0));
        // More connections than at the knee may be more than the target serves.
        plan.load.connections = knee as usize;
        plan.load.threads = plan.load.threads.min(plan.load.connections);
        let (step, is_over) = measure(search, &plan, console)?;
        if search.is_table {
            print(console, &report::row(&step))?;
        }
        let first = found.rates.first().map_or(step.p99, |step| step.p99).max(1);
        let is_sustained = step.is_good() && step.unsent == 0 && step.p99 as f64 <= first as f64 * SLOW;
        found.rates.push(step);
        if is_over {
            return Ok(true);
        }
        if !is_sustained {
            break;
        }
        found.sustained = Some(found.rates.len() - 1);
    }
    Ok(false)
}

/// Runs one step while the proxy is observed.
fn measure(search: &Search<'_>, plan: &Plan, console: &mut Console<'_>) -> Result<(Step, bool), String> {
    let mut pids = search.capacity.pids.clone();
    if let Some(source) = &search.source
        && let Some(pid) = source.process()?
        && !pids.contains(&pid)
    {
        pids.push(pid);
    }
    let is_over = AtomicBool::new(false);
    let (outcome, observed) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| probe::watch(search.source.as_ref(), &pids, &is_over));
        let outcome = run::measure(plan, console);
        is_over.store(true, Ordering::Release);
        watching.thread().unpark();
        (outcome, watching.join())
    });
    let outcome = outcome?;
    let observed = observed.map_err(|_| "the thread that reads the proxy's figures has panicked".to_owned())?;
    let is_over = outcome.is_interrupted;
    Ok((Step::of(plan, &outcome, observed), is_over))
}

/// Finds the knee and the limits.
fn settle(found: &mut Found) {
    let best = found.steps.iter().filter(|step| step.is_good()).map(|step| step.rate).fold(0.0, f64::max);
    found.knee = found.steps.iter().position(|step| step.is_good() && best > 0.0 && step.rate >= best * KNEE);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    found.limits = limits::reached(&found.steps, cores);
    found.warnings = found.steps.iter().filter_map(|step| step.observed.error.clone()).take(1).collect();
}

impl Found {
    /// Returns the time of a request under little load, in seconds: that of the first step.
    fn time_s(&self) -> f64 {
        self.steps.first().map_or(0.0, |step| step.p50 as f64 / 1e9)
    }

    /// Returns the highest rate.
    fn best(&self) -> f64 {
        self.steps.iter().filter(|step| step.is_good()).map(|step| step.rate).fold(0.0, f64::max)
    }

    /// Returns the rate for which limits are recommended: the sustained one, or the highest.
    fn rate(&self) -> f64 {
        self.sustained.map_or(self.best(), |sustained| self.rates[sustained].rate)
    }

    /// Returns the servers that had requests, each with its limit.
    fn servers(&self) -> Vec<Option<u64>> {
        let proxy = self.steps.last().and_then(|step| step.observed.proxy.as_ref());
        let rows = proxy.iter().flat_map(|proxy| &proxy.rows);
        rows.filter(|row| row.kind == Kind::Server && row.sessions > 0).map(|row| row.limit).collect()
    }
}
