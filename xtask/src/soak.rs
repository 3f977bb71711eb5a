//! What is too slow for `test`: the same checks with more of everything.

use std::process::Command;

use crate::differential;
use crate::run::root;

/// Cases of each property test.
const CASES: &str = "10000";

/// Seeds by which the store's tests of random commands run.
const SEEDS: u64 = 20;

/// Random scripts that the store and redis-server are given, and where they begin.
const SCRIPTS: &[(&str, &str)] = &[("SLUICEGATE_SCRIPTS", "100000"), ("SLUICEGATE_SEED", "1000000")];

/// Commands that the store and redis-server are given, half in RESP2 and half in RESP3, and where they begin.
const COMMANDS: usize = 5_000_000;
const COMMANDS_SEED: u64 = 1_000;

/// Runs every suite with more cases of its property tests, then compares the store with redis-server from other seeds.
pub fn soak() -> Result<(), String> {
    let mut failed = Vec::new();
    if !cargo(&["--workspace", "--no-fail-fast"], &[("PROPTEST_CASES", CASES)])? {
        failed.push("property tests".to_owned());
    }
    for seed in 1..=SEEDS {
        let seed = (seed * 1_000).to_string();
        if !cargo(&["-p", "sluicegate-store", "--test", "it", "random_commands"], &[("SLUICEGATE_SEED", &seed)])? {
            failed.push(format!("random commands from seed {seed}"));
        }
    }
    if !cargo(&["-p", "sluicegate-store", "--test", "it", "random_scripts"], SCRIPTS)? {
        failed.push("random scripts".to_owned());
    }
    if let Err(fault) = differential::compare_programs(&differential::Plan::new(COMMANDS, COMMANDS_SEED)) {
        failed.push(format!("differential: {fault}"));
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs tests with variables set; whether they passed.
fn cargo(arguments: &[&str], variables: &[(&str, &str)]) -> Result<bool, String> {
    let set: String = variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    println!("$ {set}cargo test --profile quick {}", arguments.join(" "));
    let status = Command::new("cargo")
        .args(["test", "--profile", "quick"])
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(root())
        .status()
        .map_err(|error| error.to_string())?;
    Ok(status.success())
}
