//! Checks too slow for `test`: the same ones with higher counts.

use std::process::Command;

use crate::run::root;
use crate::{clients, differential, peers, release, repeat, replicas, secure};

/// The number of runs of every test program under a load on all cores.
const REPEATS: &str = "20";

/// The number of cases of each property test.
const CASES: &str = "10000";

/// The number of seeds with which garbage is sent to the store's sockets.
const SEEDS: u64 = 20;

/// The number of simulated disks of each of the four tests that have some: a million together.
const DISKS: &str = "250000";

/// The number of seeds with which files are compared with memory while everything changes.
const LOADS: &str = "1000";

/// How often a process under load is killed, in each test that does so.
const KILLS: &str = "200";

/// How often real Sentinels replace a master that was killed or stopped.
const FAILOVERS: &str = "50";

/// The number of rounds of each chain of masters and replicas whose data are compared.
const CHAINS: &str = "100";

/// The keys of a full sync of 5 GB beside writes.
const SYNCED_KEYS: &str = "5000000";

/// The number of random scripts that are run by the store and by redis-server.
const SCRIPTS: &str = "100000";

/// The number of repetitions of the chaos test with scripts.
const CHAOS: &str = "500";

/// Commands that the store and redis-server are given, half in RESP2 and half in RESP3, and where they begin unless
/// something else is asked for.
const COMMANDS: usize = 5_000_000;
const COMMANDS_SEED: u64 = 1_000;

/// Runs every suite with more cases of its property tests, sends more garbage, and compares the store with redis-server
/// by more scripts and commands, from other seeds than `test` does; the packaged program, too. At the end a replica
/// gets 5 GB beside writes, and attacks are measured beside HAProxy 2.8.
pub fn soak(arguments: &[&str]) -> Result<(), String> {
    let first_seed = match arguments {
        [] => COMMANDS_SEED,
        [seed] => seed.parse().map_err(|_| format!("a seed is a number, not {seed:?}"))?,
        _ => return Err("soak takes a seed, or nothing".into()),
    };
    peers::ensure(false)?;
    clients::ensure(false)?;
    let mut failed = Vec::new();
    if let Err(fault) = repeat::repeat(&[REPEATS]) {
        failed.push(fault);
    }
    if !cargo(&["--workspace", "--no-fail-fast"], &[("PROPTEST_CASES", CASES)])? {
        failed.push("property tests".to_owned());
    }
    let suite = ["-p", "sluicegate-store", "--test", "it"];
    for seed in first_seed..first_seed + SEEDS {
        if !cargo(&[&suite[..], &["garbage"]].concat(), &[("SLUICEGATE_SEED", &seed.to_string())])? {
            failed.push(format!("garbage from seed {seed}"));
        }
    }
    let disks = [("SLUICEGATE_DISKS", DISKS), ("SLUICEGATE_SEED", &(first_seed * 1_000).to_string())];
    if !cargo(&["-p", "sluicegate-store", "--lib", "every_crash"], &disks)? {
        failed.push("simulated disks".to_owned());
    }
    let loads = [("SLUICEGATE_LOADS", LOADS), ("SLUICEGATE_SEED", &(first_seed * 1_000).to_string())];
    if !cargo(&["-p", "sluicegate-store", "--lib", "whatever_happens_meanwhile"], &loads)? {
        failed.push("files beside a load".to_owned());
    }
    let kills = [("SLUICEGATE_KILLS", KILLS), ("SLUICEGATE_SEED", &first_seed.to_string())];
    if !cargo(&["-p", "sluicegate", "--test", "it", "durable"], &kills)? {
        failed.push("killed processes".to_owned());
    }
    if !cargo(&["-p", "sluicegate", "--test", "it", "sentinels_replace"], &[("SLUICEGATE_FAILOVERS", FAILOVERS)])? {
        failed.push("failovers".to_owned());
    }
    if !cargo(&["-p", "sluicegate", "--test", "it", "capacity"], &[("SLUICEGATE_CAPACITY", "1")])? {
        failed.push("planted limits".to_owned());
    }
    let chains = [("SLUICEGATE_CHAINS", CHAINS), ("SLUICEGATE_SEED", &first_seed.to_string())];
    if !cargo(&[&suite[..], &["chains_have_the_same_data"]].concat(), &chains)? {
        failed.push("chains of replicas".to_owned());
    }
    for seed in first_seed..first_seed + SEEDS {
        let seed = seed.to_string();
        if !cargo(&[&suite[..], &["real_replicas_have"]].concat(), &[("SLUICEGATE_SEED", &seed)])? {
            failed.push(format!("data of real replicas from seed {seed}"));
        }
    }
    // Each script has a seed of its own.
    let scripts = [("SLUICEGATE_SCRIPTS", SCRIPTS), ("SLUICEGATE_SEED", &(first_seed * 1_000).to_string())];
    if !cargo(&[&suite[..], &["random_scripts"]].concat(), &scripts)? {
        failed.push("random scripts".to_owned());
    }
    let chaos = [("SLUICEGATE_CHAOS", CHAOS), ("SLUICEGATE_SEED", &first_seed.to_string())];
    if !cargo(&[&suite[..], &["everything_at_once"]].concat(), &chaos)? {
        failed.push("chaos of scripts".to_owned());
    }
    if let Err(fault) = differential::compare_programs(&differential::Plan::new(COMMANDS, first_seed)) {
        failed.push(format!("differential: {fault}"));
    }
    // The packaged program, which is compiled with other settings.
    let packaged = || {
        let plan = differential::Plan::new(COMMANDS / 10, first_seed + 1);
        differential::compare_programs(&plan.on(release::program(false)?))
    };
    if let Err(fault) = packaged() {
        failed.push(format!("differential of the packaged program: {fault}"));
    }
    if let Err(fault) = replicas::replicas(&["sync", "--keys", SYNCED_KEYS, "--runs", "1"]) {
        failed.push(format!("full sync of 5 GB: {fault}"));
    }
    if let Err(fault) = secure::attacks(&["--runs", "3"]) {
        failed.push(format!("attacks: {fault}"));
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs tests with environment variables. Returns whether they passed.
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
