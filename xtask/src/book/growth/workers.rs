//! The cost of a request and of a command with one worker and with two.

use std::fmt::Write as _;

use sluicegate_report::Scale;

use super::Curves;
use crate::durable::peer::{Peer as StorePeer, Place, Start};
use crate::proxy::peer::{BOTH, Bench, CONNECTIONS, Running};
use crate::report::{Options, Part};

const SECONDS: u32 = 2;
const WORKERS: [usize; 2] = [1, 2];
/// The cores of so many workers.
const CORES: [&str; 2] = ["0", "0-1"];
/// The SETs of a run.
const SETS: usize = 600_000;

/// `workers`: one and two.
pub(super) fn workers(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("workers", "Workers");
    let bench = Bench::new(options)?;
    let seconds = options.seconds(SECONDS).to_string();
    let connections = CONNECTIONS.to_string();
    let sets = SETS * options.seconds(3) as usize / 3;
    let mut requests = vec![vec![Vec::new(); BOTH.len()]; WORKERS.len()];
    let mut commands = vec![vec![Vec::new(); 1]; WORKERS.len()];
    let proxies = start_proxies(&bench)?;
    let stores = WORKERS
        .iter()
        .zip(CORES)
        .map(|(workers, cores)| {
            let start = Start { cores, threads: *workers as u32, place: Place::Memory, parameters: &[] };
            start.run(StorePeer::Ours, options)
        })
        .collect::<Result<Vec<_>, String>>()?;
    for round in options.rounds() {
        for (index, workers) in WORKERS.iter().enumerate() {
            for ((peer, running), runs) in BOTH.iter().zip(&proxies[index]).zip(&mut requests[index]) {
                let words = ["-c", &connections, "-d", &seconds, "-w", "500ms"];
                let cpu_us = bench.load(running, "/fast", &words)?.cpu_us;
                println!("run {} {workers} workers {:<12} {cpu_us:.2} µs a request", round + 1, peer.name());
                runs.push(cpu_us);
            }
            let (server, number) = (&stores[index], sets.to_string());
            let before = server.cpu_us();
            let words = ["-c", "50", "-n", &number, "-P", "16", "--key-max", "99999", "SET __key__ __data__"];
            server.load(options, &words)?;
            let cpu_us = (server.cpu_us() - before) / sets as f64;
            println!("run {} {workers} workers of the store {cpu_us:.4} µs a SET", round + 1);
            commands[index][0].push(cpu_us);
        }
    }
    let _ = writeln!(
        part.text,
        "With two workers the load and the origin take their part of core 1. Requests are passed on to the origin over \
         {CONNECTIONS} connections, {seconds} s a run.\n"
    );
    let names = BOTH.map(|peer| peer.name().to_owned()).to_vec();
    let curves = |what, names| Curves { what, over: "workers", sizes: &WORKERS, names, scale: Scale::Linear };
    curves("CPU µs per request, by workers", names).add(&mut part, &requests);
    part.text +=
        "\nSET of the store, 50 connections, pipeline 16, 100,000 keys; redis-server has one thread for commands.\n\n";
    // The column of one worker stands beside both rows, for a table has a ratio.
    let both: Vec<Vec<Vec<f64>>> = commands.iter().map(|row| vec![commands[0][0].clone(), row[0].clone()]).collect();
    let names = vec!["sluicegate, one worker".to_owned(), "sluicegate".to_owned()];
    curves("CPU µs per SET, by workers", names).add(&mut part, &both);
    Ok(part)
}

/// Starts both programs with each number of threads.
fn start_proxies(bench: &Bench<'_>) -> Result<Vec<Vec<Running>>, String> {
    let text = |workers: usize| {
        format!(
            "global\n    nbthread {workers}\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    timeout \
             connect 3s\nlisten www\n    bind 127.0.0.1:PORT\n    server p {}\n",
            bench.origin()
        )
    };
    let with = |(workers, cores): (&usize, &str)| {
        BOTH.iter().map(|peer| peer.start_on(cores, bench, &text(*workers))).collect::<Result<Vec<_>, _>>()
    };
    WORKERS.iter().zip(CORES).map(with).collect()
}
