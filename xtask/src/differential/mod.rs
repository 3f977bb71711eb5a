//! Random commands to the store and to Valkey 8.1, over sockets: replies, messages and the final data must be equal.
//! Valkey 8.1 has the features of Redis 7.2, which the store implements; Debian's redis-server 7.0 has fewer.
//!
//! A run consists of *sequences*, each with an empty store and its own seed, in RESP2 and RESP3 in turn. The commands
//! are generated from `grammar.txt` (`grammar`), distributed over clients by `script`; `pair` runs them on both
//! programs, and `compare` compares the replies. A difference is reduced (`shrink`) to the few commands that show it.
//! `coverage` counts the replies and errors of each command, and a command of both programs that never ran fails the
//! run.

mod compare;
mod coverage;
mod grammar;
mod pair;
mod script;
mod shrink;
mod value;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;

use crate::random::Random;
use crate::run::{built, root, run};
use compare::{EXPLAINED, LEFT_OUT, NOT_SENT, is_left_out};
use grammar::Grammar;
use pair::{Difference, Pair};
use script::{Settings, Step};

/// Commands of one sequence.
const LENGTH: usize = 2_000;

/// The number of commands from which on every command and every accepted difference must have occurred.
const ENOUGH: usize = 100_000;

/// The parameters of a run.
pub(crate) struct Plan {
    commands: usize,
    seed: u64,
    /// Only this protocol.
    protocol: Option<u8>,
    /// Only this sequence.
    sequence: Option<u64>,
    /// Differences after which the run ends.
    differences: usize,
    binary: Option<PathBuf>,
    /// The server to compare with.
    peer: PathBuf,
}

impl Plan {
    /// Returns a plan of this many commands from a seed, with a program that is already built.
    pub(crate) fn new(commands: usize, seed: u64) -> Plan {
        let (binary, peer) = (Some(quick()), root().join("target/peers/bin/valkey-server-8.1"));
        Plan { commands, seed, protocol: None, sequence: None, differences: 1, binary, peer }
    }

    /// On another program.
    pub(crate) fn on(self, binary: PathBuf) -> Plan {
        Plan { binary: Some(binary), ..self }
    }

    fn parse(arguments: &[&str]) -> Result<Plan, String> {
        let mut plan = Plan { binary: None, ..Plan::new(200_000, 1) };
        let mut arguments = arguments.iter();
        while let Some(&name) = arguments.next() {
            let value = *arguments.next().ok_or(format!("{name} wants a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} wants a number, not {value:?}"));
            match name {
                "--commands" => plan.commands = number()? as usize,
                "--seed" => plan.seed = number()?,
                "--sequence" => plan.sequence = Some(number()?),
                "--differences" => plan.differences = number()? as usize,
                "--resp" if matches!(value, "2" | "3") => plan.protocol = Some(number()? as u8),
                "--program" => plan.binary = Some(value.into()),
                "--peer" => plan.peer = value.into(),
                _ => return Err(format!("unknown: {name} {value}")),
            }
        }
        Ok(plan)
    }
}

/// Returns the quick profile's program.
fn quick() -> PathBuf {
    built("quick").join("sluicegate")
}

/// `cargo xtask differential …`.
pub(crate) fn differential(arguments: &[&str]) -> Result<(), String> {
    let mut plan = Plan::parse(arguments)?;
    if plan.binary.is_none() {
        run("cargo", &["build", "--quiet", "--profile", "quick", "-p", "sluicegate"])?;
        plan.binary = Some(quick());
    }
    compare_programs(&plan)
}

/// Runs a plan. Returns an error if there is a difference that is not explained, or if something expected did not
/// occur.
pub(crate) fn compare_programs(plan: &Plan) -> Result<(), String> {
    let binary = plan.binary.clone().unwrap_or_else(quick);
    if !plan.peer.exists() {
        let path = plan.peer.display();
        return Err(format!("{path} is missing\nhint: `cargo xtask test --install` installs it"));
    }
    let mut pair = Pair::start(&binary, &plan.peer)?;
    let grammar = Grammar::new(pair.payloads()?);
    println!(
        "{} commands from seed {}: {} against {}, {}",
        plan.commands,
        plan.seed,
        binary.display(),
        plan.peer.display(),
        plan.protocol.map_or("RESP2 and RESP3 in turn".to_owned(), |protocol| format!("RESP{protocol}"))
    );
    let started = Instant::now();
    let (mut commands, mut differences) = (0, 0);
    let mut kinds = HashSet::new();
    let mut sequence = plan.sequence.unwrap_or(0);
    while commands < plan.commands && differences < plan.differences {
        let protocol = plan.protocol.unwrap_or(2 + (sequence % 2) as u8);
        let mut random = Random(plan.seed ^ (sequence + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let settings = Settings::choose(&mut random, protocol);
        let steps = script::steps(&grammar, random.next(), LENGTH, &settings);
        pair.counts = true;
        let found = pair.run(&settings, &steps)?;
        pair.counts = false;
        commands += steps.iter().map(Step::commands).sum::<usize>();
        // Only the first difference of each kind is reported.
        if let Some(found) = found
            && kinds.insert(found.kind())
        {
            differences += 1;
            let shrunk = shrink::shrink(&steps, &found, |steps| pair.run(&settings, steps))?;
            report(differences, plan, sequence, &settings, &found, shrunk);
        }
        if plan.sequence.is_some() {
            break;
        }
        sequence += 1;
    }
    let took = started.elapsed().as_secs_f64();
    println!("\n{}", pair.coverage.table());
    println!("not compared:");
    LEFT_OUT.iter().for_each(|(name, why)| println!("  {name}: {why}"));
    println!("not sent:");
    NOT_SENT.iter().for_each(|(what, why)| println!("  {what}: {why}"));
    println!("explained differences:");
    for (row, count) in EXPLAINED.iter().zip(&pair.explained) {
        println!("  {count} times, {}: {} ({})", row.commands, row.difference, row.why);
    }
    println!("{commands} commands in {took:.1} s, {:.0} a second", commands as f64 / took);
    let mut faults = Vec::new();
    if differences > 0 {
        faults.push(format!("{differences} difference(s)"));
    }
    if commands >= ENOUGH && plan.sequence.is_none() && differences == 0 {
        faults.extend(pair.coverage.missing(is_left_out));
        let stale = EXPLAINED.iter().zip(&pair.explained).filter(|(_, count)| **count == 0);
        faults.extend(stale.map(|(row, _)| format!("explained and never met: {}", row.difference)));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn report(
    number: usize,
    plan: &Plan,
    sequence: u64,
    settings: &Settings,
    found: &Difference,
    shrunk: Option<(Vec<Step>, Difference)>,
) {
    println!(
        "\ndifference {number}, RESP{}: cargo xtask differential --seed {} --sequence {sequence}{}",
        settings.protocol,
        plan.seed,
        plan.protocol.map_or(String::new(), |protocol| format!(" --resp {protocol}")),
    );
    let parameters: Vec<String> = settings.parameters.iter().map(|(name, value)| format!("{name} {value:?}")).collect();
    println!("  parameters: {}", parameters.join(", "));
    let found = match &shrunk {
        Some((steps, found)) => {
            steps.iter().for_each(|step| print!("{}", step.show()));
            found
        }
        None => {
            println!("  it did not show again when the sequence was repeated");
            found
        }
    };
    println!("  {}", found.what);
    println!("    ours:  {}", found.ours);
    println!("    peer:  {}", found.theirs);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let plan = Plan::parse(&["--commands", "5", "--seed", "7", "--resp", "3"]).expect("a plan");
        assert_eq!((plan.commands, plan.seed, plan.protocol), (5, 7, Some(3)));
        assert!(Plan::parse(&["--resp", "4"]).is_err() && Plan::parse(&["--seed"]).is_err());
    }
}
