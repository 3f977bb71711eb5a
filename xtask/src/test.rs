//! Every suite, timed against the budget.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{root, run, run_in, side_by_side};
use crate::{clients, differential, peers, tidy};

/// The time limit of the whole run on two cores, including compilation.
const BUDGET: Duration = Duration::from_secs(25 * 60);

/// Commands that the store and redis-server are given, half in RESP2 and half in RESP3, and their seed.
const COMMANDS: usize = 200_000;
const COMMANDS_SEED: u64 = 1;

/// Folders of crates in dependency order, so that the root failure is reported first. Others follow.
const ORDER: &[&str] = &[
    "wire",
    "tls",
    "transport",
    "config",
    "script",
    "data",
    "store",
    "bench",
    "proxy",
    "sluicegate",
    "testkit",
    "xtask",
];

/// Runs everything; every suite runs even if an earlier one failed, but nothing without its peers. Missing peers are
/// installed while cargo compiles, because installations wait for the network. The lints and the documentation are
/// compiled at the lowest priority while suites run, because suites that wait leave half of the processors' time.
pub fn test(install: bool) -> Result<(), String> {
    let started = Instant::now();
    let mut suites = Suites(Vec::new());
    let mut crates = Vec::new();
    if !install {
        suites.run("peers", || ensure(false));
        if suites.has_failed("peers") {
            return suites.finish(started);
        }
    }
    let mut build = |suites: &mut Suites| {
        suites.run("compile", || {
            crates = compile()?;
            Ok(())
        });
    };
    if install {
        suites.beside(|own| own.run("peers", || ensure(true)), build)
    } else {
        build(&mut suites)
    }
    if suites.has_failed("peers") {
        return suites.finish(started);
    }
    suites.beside(
        |own| own.run("tidy", tidy::tidy),
        |suites| {
            for one in &crates {
                suites.run(&one.name, || {
                    one.programs.iter().try_for_each(|program| {
                        let arguments = arguments(program);
                        run_in(&one.folder, program, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
                    })
                });
            }
            let plan = differential::Plan::new(COMMANDS, COMMANDS_SEED);
            suites.run("differential", || differential::compare_programs(&plan));
        },
    );
    suites.run("examples in docs", || run("cargo", &["test", "--quiet", "--profile", "quick", "--workspace", "--doc"]));
    suites.finish(started)
}

/// Ensures that peers and client libraries exist.
fn ensure(install: bool) -> Result<(), String> {
    side_by_side(&[&|| peers::ensure(install), &|| clients::ensure(install)])
}

/// A crate with its test programs.
pub struct Tests {
    /// The folder's name.
    pub name: String,
    /// The folder that its programs run in.
    pub folder: PathBuf,
    /// Paths of its programs.
    pub programs: Vec<String>,
}

/// Returns the arguments of a test program. Tests of running programs wait more than they compute, so two run per core.
pub fn arguments(program: &str) -> Vec<String> {
    let file = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let mut arguments = vec!["--quiet".to_owned()];
    if file.starts_with("it-") {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        arguments.push(format!("--test-threads={}", 2 * cores));
    }
    arguments
}

/// Builds all test programs at once and returns them by crate. They are run directly: `cargo test -p CRATE` would
/// choose the features of dependencies for that crate alone, and so rebuild half of them.
pub fn compile() -> Result<Vec<Tests>, String> {
    let crates = build(&["--profile", "quick", "--workspace"])?;
    if crates.is_empty() { Err("cargo named no test programs".to_owned()) } else { Ok(crates) }
}

/// Builds test programs that cargo's words choose, and returns their paths.
pub fn programs_of(words: &[&str]) -> Result<Vec<String>, String> {
    Ok(build(words)?.into_iter().flat_map(|one| one.programs).collect())
}

fn build(words: &[&str]) -> Result<Vec<Tests>, String> {
    let arguments = [&["test"], words, &["--no-run", "--message-format=json-render-diagnostics"]].concat();
    println!("$ cargo {}", arguments.join(" "));
    let output = Command::new("cargo")
        .args(arguments)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run ended with {}", output.status));
    }
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses the test programs in cargo's messages, a JSON object per line.
fn programs(messages: &str) -> Vec<Tests> {
    let mut crates: Vec<Tests> = Vec::new();
    for line in messages.lines() {
        let profile = line.split("\"profile\":{").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
        let (Some(program), Some(manifest)) = (value(line, "executable"), value(line, "manifest_path")) else {
            continue;
        };
        if !profile.contains("\"test\":true") {
            continue;
        }
        let folder = Path::new(manifest).parent().unwrap_or(Path::new("/")).to_owned();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match crates.iter_mut().find(|one| one.folder == folder) {
            Some(one) => one.programs.push(program.to_owned()),
            None => crates.push(Tests { name, folder, programs: vec![program.to_owned()] }),
        }
    }
    crates.sort_by_key(|one| ORDER.iter().position(|name| *name == one.name).unwrap_or(ORDER.len()));
    crates
}

/// Returns a string in a JSON object. Cargo's paths are the only ones read, and they hold no quotes.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(&format!("\"{key}\":\"")).nth(1)?.split('"').next()
}

/// Fails if the whole took longer than its budget.
fn within(took: Duration) -> Result<(), String> {
    if took <= BUDGET {
        return Ok(());
    }
    Err(format!("all suites passed in {} s, more than the budget of {} s", took.as_secs(), BUDGET.as_secs()))
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

    fn has_failed(&self, name: &str) -> bool {
        self.0.iter().any(|suite| suite.name == name && suite.outcome.is_err())
    }

    /// Runs suites on a thread of their own, and others meanwhile.
    fn beside(&mut self, some: impl FnOnce(&mut Suites) + Send, others: impl FnOnce(&mut Suites)) {
        let mut own = Suites(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| some(&mut own));
            others(self);
        });
        self.0.append(&mut own.0);
    }

    fn finish(self, started: Instant) -> Result<(), String> {
        let share = |took: Duration| 100.0 * took.as_secs_f64() / BUDGET.as_secs_f64();
        println!("\n{:<24}{:>9}{:>12}", "suite", "seconds", "of budget");
        for suite in &self.0 {
            let note = if suite.outcome.is_ok() { "" } else { "  FAILED" };
            let took = suite.took;
            println!("{:<24}{:>9.1}{:>10.1} %{note}", suite.name, took.as_secs_f64(), share(took));
        }
        let took = started.elapsed();
        let total = "total";
        println!("{total:<24}{:>9.1}{:>10.1} % of {} s", took.as_secs_f64(), share(took), BUDGET.as_secs());
        let failed = self.0.iter().filter(|suite| suite.outcome.is_err()).count();
        println!("suites: {} passed, {failed} failed", self.0.len() - failed);
        if failed > 0 {
            return Err(format!("{failed} suite(s) failed"));
        }
        within(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_tests_have_more_threads() {
        assert_eq!(arguments("/t/quick/deps/sluicegate_wire-0a").len(), 1);
        assert_eq!(arguments("/t/quick/deps/it-0a").len(), 2);
    }

    #[test]
    fn a_suite_beside_others_counts_with_them() {
        let mut suites = Suites(Vec::new());
        let (done, waits) = std::sync::mpsc::channel();
        let wait = move || waits.recv().map_err(|error| error.to_string());
        suites.run("first", || Ok(()));
        suites.beside(
            |own| own.run("own", wait),
            |suites| {
                suites.run("other", || done.send(()).map_err(|error| error.to_string()));
                suites.run("fails", || Err("on purpose".to_owned()));
            },
        );
        let outcomes: Vec<_> = suites.0.iter().map(|suite| (&*suite.name, suite.outcome.is_ok())).collect();
        assert_eq!(outcomes, [("first", true), ("other", true), ("fails", false), ("own", true)]);
        assert!(suites.finish(Instant::now()).is_err());
    }

    #[test]
    fn what_exceeds_the_budget_fails() {
        assert_eq!(within(BUDGET), Ok(()));
        assert!(within(BUDGET + Duration::from_secs(1)).is_err());
    }

    #[test]
    fn test_programs_are_found() {
        let message = |folder: &str, test: bool, program: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"{folder}/Cargo.toml\",\"target\":{{\"test\":true}},\
                 \"profile\":{{\"opt_level\":\"1\",\"test\":{test}}},\"executable\":{program}}}\n"
            )
        };
        let found = programs(
            &[
                message("/w/crates/proxy", true, "\"/t/proxy\""),
                message("/w/crates/wire", true, "\"/t/wire\""),
                message("/w/crates/wire", true, "\"/t/it\""),
                message("/w/crates/wire", false, "null"),
                message("/w/crates/sluicegate", false, "\"/t/sluicegate\""),
            ]
            .concat(),
        );
        let found: Vec<(&str, usize)> = found.iter().map(|one| (one.name.as_str(), one.programs.len())).collect();
        assert_eq!(found, [("wire", 2), ("proxy", 1)]);
    }
}
