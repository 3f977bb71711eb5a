//! The cost of a connection per command: the same commands over persistent connections and over one connection
//! each, with both times side by side as in the post *Redis Reconnection Overhead*.

use std::fmt::Write as _;

use super::console::Console;
use super::console::print;
use super::outcome::Outcome;
use super::plan::{Destination, Plan};
use super::run::measure;
use super::{json, text};

/// Runs both and reports. Returns the exit code.
pub(super) fn run(plan: &Plan, console: &mut Console<'_>) -> u8 {
    let mut new = plan.clone();
    new.load.keep_alive = false;
    let mut outcomes = Vec::new();
    for plan in [plan, &new] {
        match measure(plan, console) {
            Ok(outcome) => outcomes.push(outcome),
            Err(message) => return console.refuse(&message),
        }
        if outcomes.iter().any(|outcome| outcome.is_interrupted) {
            break;
        }
    }
    let written = match (outcomes.as_slice(), &plan.load.json) {
        ([reuse, fresh], Destination::Output) => {
            print(console, &json::both(("reuse", plan, reuse), ("new", &new, fresh)))
        }
        ([reuse, fresh], Destination::File(path)) => print(console, &table(plan, reuse, fresh)).and_then(|()| {
            let report = json::both(("reuse", plan, reuse), ("new", &new, fresh));
            super::output::write(path, &report)
        }),
        ([reuse, fresh], Destination::No) => print(console, &table(plan, reuse, fresh)),
        // An incomplete comparison is useless; the completed run is still reported.
        (some, _) => some.iter().try_for_each(|outcome| print(console, &text::report(plan, outcome))),
    };
    if let Err(error) = written {
        return console.refuse(&error);
    }
    if outcomes.iter().any(|outcome| outcome.is_interrupted) {
        130
    } else if outcomes.iter().all(Outcome::has_worked) {
        0
    } else {
        console.refuse("every request failed")
    }
}

/// Returns the CPU and clock times in seconds, in the post's columns.
fn table(plan: &Plan, reuse: &Outcome, fresh: &Outcome) -> String {
    let mut out = String::new();
    let connections = plan.load.connections;
    let _ = writeln!(
        out,
        "{} commands to {}, {} at a time\n",
        reuse.stats.sent,
        plan.load.server,
        connections * plan.load.pipeline
    );
    let _ = writeln!(out, "{:<13}{:>11}{:>11}{:>11}{:>14}", "", "user", "system", "total", "real");
    for (name, outcome) in [("reuse redis", reuse), ("new redis", fresh)] {
        let (user, system) = (outcome.own.user_s, outcome.own.system_s);
        let total = user + system;
        let _ = writeln!(out, "{name:<13}{user:>11.6}{system:>11.6}{total:>11.6} ({:>11.6})", outcome.elapsed_s);
    }
    out.push('\n');
    let answered = |outcome: &Outcome| outcome.stats.answered.max(1) as f64;
    let each = |outcome: &Outcome| outcome.elapsed_s * 1e6 / answered(outcome) * connections as f64;
    let _ = writeln!(
        out,
        "{:.1} µs a command, {:.1} µs with a connection for each: {:.1} times as long",
        each(reuse),
        each(fresh),
        each(fresh) / each(reuse).max(f64::MIN_POSITIVE)
    );
    for (name, outcome) in [("reuse redis", reuse), ("new redis", fresh)] {
        let failed = outcome.stats.failed() + outcome.stats.error_replies();
        if failed > 0 {
            let _ = writeln!(out, "{name}: {failed} failed");
        }
    }
    out
}
