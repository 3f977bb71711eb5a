//! The cost of a BullMQ job, which consists of scripts, with one queue on one worker and two on two.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};

use super::peer::{Peer, Server};
use crate::bench::{median, spread};
use crate::child::Guard;
use crate::report::{Options, Part};
use crate::run::root;

/// The number of jobs of a queue in a run.
const JOBS: usize = 10_000;

/// A server and the number of queues on it, each used by a separate program.
struct Case {
    peer: Peer,
    queues: usize,
}

const CASES: [Case; 3] = [
    Case { peer: Peer::Redis, queues: 1 },
    Case { peer: Peer::Ours(1), queues: 1 },
    Case { peer: Peer::Ours(2), queues: 2 },
];

/// Starts a queue's program: on the load's core if the server only uses the other core.
fn start(server: &Server, case: &Case, queue: usize) -> Result<Child, String> {
    let modules = root().join("target/clients/npm/node_modules");
    if !modules.join("bullmq").exists() {
        return Err("BullMQ is missing in target/clients\nhint: `cargo xtask test --install` brings it".into());
    }
    let cores = if case.peer == Peer::Ours(2) { "0-1" } else { "1" };
    Command::new("taskset")
        .args(["-c", cores, "node"])
        .arg(root().join("xtask/src/store/bullmq.js"))
        .arg(server.port.to_string())
        .arg(modules)
        .args([format!("queue{queue}"), JOBS.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("node: {error}"))
}

/// Returns the CPU time of the server per job, in µs.
fn cost(server: &Server, case: &Case) -> Result<f64, String> {
    let before = server.cpu_us();
    let programs: Vec<Child> = (0..case.queues).map(|queue| start(server, case, queue)).collect::<Result<_, _>>()?;
    let mut guards: Vec<Guard> = programs.into_iter().map(Guard::new).collect();
    for guard in &mut guards {
        if !guard.wait()?.success() {
            return Err("BullMQ did not end well".into());
        }
    }
    Ok((server.cpu_us() - before) / (JOBS * case.queues) as f64)
}

/// Measures the cost of a job.
pub(super) fn jobs(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("bullmq", "Jobs of BullMQ");
    let servers: Vec<Server> =
        CASES.iter().map(|case| case.peer.start(&options.program, &[])).collect::<Result<_, _>>()?;
    let mut results = vec![Vec::new(); CASES.len()];
    for round in options.rounds() {
        for ((case, server), of_case) in CASES.iter().zip(&servers).zip(&mut results) {
            let cpu_us = cost(server, case)?;
            println!("run {} {} queues {:<24} {cpu_us:.1} µs CPU", round + 1, case.queues, case.peer.name());
            of_case.push(cpu_us);
        }
    }
    for (case, server) in CASES.iter().zip(&servers).filter(|(case, _)| case.peer != Peer::Redis) {
        let refused = server.info("sections_refused")?;
        if refused > 0.0 {
            return Err(format!("{} refused {refused} sections", case.peer.name()));
        }
    }
    let _ = writeln!(
        part.text,
        "Jobs that are added a hundred at a time and carried out fifty at a time, {JOBS} of each queue in a run. With two \
         workers the load takes its part of both cores.\n\n| CPU µs per job | |\n|---|---|"
    );
    for (case, values) in CASES.iter().zip(&results) {
        let queues = if case.queues == 1 { "one queue" } else { "two queues" };
        let _ = writeln!(part.text, "| {}, {queues} | {} |", case.peer.name(), spread(values, 1));
    }
    let rows: Vec<String> = CASES.iter().map(|case| format!("{}, queues: {}", case.peer.name(), case.queues)).collect();
    let figures: Vec<Vec<Vec<f64>>> = results.iter().map(|runs| vec![runs.clone()]).collect();
    part.keep("CPU µs per job", &["CPU"], rows.iter().map(String::as_str), &figures);
    let more: Vec<f64> = results[2].iter().zip(&results[1]).map(|(two, one)| two / one).collect();
    let _ = writeln!(part.text, "\nTwo queues on two workers / one on one: {}.", spread(&more, 2));
    part.goal("CPU per job of two queues on two workers / of one on one", "≤ 1.25", median(&more), |ratio| {
        ratio <= 1.25
    });
    Ok(part)
}
