//! Every suite, timed against the budget.

use std::time::{Duration, Instant};

use crate::run::run;
use crate::{peers, tidy};

/// What the whole may take on two cores, compile included.
const BUDGET: Duration = Duration::from_secs(18 * 60);

/// Crates with tests, in the order of their dependencies.
const CRATES: &[&str] = &[
    "sluicegate-wire",
    "sluicegate-config",
    "sluicegate-script",
    "sluicegate-store",
    "sluicegate-bench",
    "sluicegate-proxy",
    "sluicegate",
];

/// Runs everything; every suite runs even if an earlier one failed.
pub fn test(install: bool) -> Result<(), String> {
    let started = Instant::now();
    let mut suites = Suites(Vec::new());
    suites.run("peers", || peers::ensure(install));
    if suites.0.last().is_some_and(|suite| suite.outcome.is_err()) {
        return suites.finish(started);
    }
    suites.run("compile", || run("cargo", &["test", "--profile", "quick", "--workspace", "--no-run"]));
    if suites.0.last().is_some_and(|suite| suite.outcome.is_ok()) {
        for name in CRATES {
            suites.run(name, || run("cargo", &["test", "--profile", "quick", "-p", name]));
        }
    }
    suites.run("tidy", tidy::tidy);
    suites.finish(started)
}

struct Suite {
    name: String,
    took: Duration,
    outcome: Result<(), String>,
}

struct Suites(Vec<Suite>);

impl Suites {
    fn run(&mut self, name: &str, suite: impl FnOnce() -> Result<(), String>) {
        println!("\n== {name}");
        let started = Instant::now();
        let outcome = suite();
        if let Err(message) = &outcome {
            eprintln!("error: {message}");
        }
        self.0.push(Suite { name: name.to_owned(), took: started.elapsed(), outcome });
    }

    fn finish(self, started: Instant) -> Result<(), String> {
        println!("\n{:<24}{:>9}", "suite", "seconds");
        for suite in &self.0 {
            let note = if suite.outcome.is_ok() { "" } else { "  FAILED" };
            println!("{:<24}{:>9.1}{note}", suite.name, suite.took.as_secs_f64());
        }
        let took = started.elapsed();
        println!("{:<24}{:>9.1}  of {} s", "total", took.as_secs_f64(), BUDGET.as_secs());
        let failed = self.0.iter().filter(|suite| suite.outcome.is_err()).count();
        println!("suites: {} passed, {failed} failed", self.0.len() - failed);
        if failed > 0 {
            return Err(format!("{failed} suite(s) failed"));
        }
        if took > BUDGET {
            println!("warning: over the budget");
        }
        Ok(())
    }
}
