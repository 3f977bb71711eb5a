//! Repetition of the test programs under load on all cores: finds tests whose outcome depends on scheduling.
//!
//! The load is a busy thread per core at the default priority, so each test thread gets about half of a core. Nothing is
//! retried: one failed run of a program is a fault, and its output is printed.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::test;

/// Runs every test program `TIMES` times (1 by default), those of one crate if its folder's name follows.
pub fn repeat(arguments: &[&str]) -> Result<(), String> {
    let (times, only) = match arguments {
        [] => ("1", None),
        [times] => (*times, None),
        [times, name] => (*times, Some(*name)),
        _ => return Err("repeat takes a number of runs and a crate".to_owned()),
    };
    let times: u32 = times.parse().map_err(|_| format!("a number of runs was expected, not {times:?}"))?;
    let mut crates = test::compile()?;
    crates.retain(|one| only.is_none_or(|name| one.name == name));
    if crates.is_empty() {
        return Err(format!("no such crate: {}", only.unwrap_or_default()));
    }
    let stop = &AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let failed = failures(&crates, times);
        stop.store(true, Ordering::Relaxed);
        if failed == 0 { Ok(()) } else { Err(format!("{failed} run(s) of test programs failed beside a load")) }
    })
}

/// Runs all programs and returns the number of failed runs.
fn failures(crates: &[test::Tests], times: u32) -> u32 {
    let mut failed = 0;
    for run in 1..=times {
        for one in crates {
            for program in &one.programs {
                match execute(one, program) {
                    Ok(output) if output.status.success() => println!("run {run} of {times}: {} passed", one.name),
                    Ok(output) => {
                        failed += 1;
                        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
                        println!("run {run} of {times}: {} FAILED\n{out}{err}", one.name);
                    }
                    Err(error) => {
                        failed += 1;
                        println!("{program} does not start: {error}");
                    }
                }
            }
        }
    }
    failed
}

fn execute(one: &test::Tests, program: &str) -> std::io::Result<Output> {
    Command::new(program).args(test::arguments(program)).current_dir(&one.folder).output()
}
