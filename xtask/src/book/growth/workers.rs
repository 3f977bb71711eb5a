//! The cost of a request and of a command with one worker and with two.

use std::fmt::Write as _;

use sluicegate_report::Scale;

use super::Curves;
use crate::durable::peer::{Peer as StorePeer, Place, Server, Start};
use crate::proxy::peer::{BOTH, Bench, CONNECTIONS, Running};
use crate::report::{Options, Part};

const SECONDS: u32 = 2;
const STORES: [StorePeer; 2] = [StorePeer::Redis, StorePeer::Ours];
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
    let mut commands = vec![vec![Vec::new(); STORES.len()]; WORKERS.len()];
    let proxies = start_proxies(&bench)?;
    let stores = start_stores(options)?;
    for round in options.rounds() {
        for (index, workers) in WORKERS.iter().enumerate() {
            for ((peer, running), runs) in BOTH.iter().zip(&proxies[index]).zip(&mut requests[index]) {
                let words = ["-c", &connections, "-d", &seconds, "-w", "500ms"];
                let cpu_us = bench.load(running, "/fast", &words)?.cpu_us;
                println!("run {} {workers} workers {:<12} {cpu_us:.2} µs a request", round + 1, peer.name());
                runs.push(cpu_us);
            }
            for (server, runs) in stores[index].iter().zip(&mut commands[index]) {
                let (before, number) = (server.cpu_us(), sets.to_string());
                let words = ["-c", "50", "-n", &number, "-P", "16", "--key-max", "99999", "SET __key__ __data__"];
                server.load(options, &words)?;
                let cpu_us = (server.cpu_us() - before) / sets as f64;
                println!("run {} {workers} workers {:<12} {cpu_us:.4} µs a SET", round + 1, server.peer.name());
                runs.push(cpu_us);
            }
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
        "\nSET, 50 connections, pipeline 16, 100,000 keys; redis-server has one thread for commands in both rows.\n\n";
    let names = STORES.map(|peer| peer.name().to_owned()).to_vec();
    curves("CPU µs per SET, by workers", names).add(&mut part, &commands);
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

/// Starts both stores with each number of workers.
fn start_stores(options: &Options) -> Result<Vec<Vec<Server>>, String> {
    let with = |(workers, cores): (&usize, &'static str)| {
        let start = Start { cores, threads: *workers as u32, place: Place::Memory, parameters: &[] };
        STORES.iter().map(|peer| start.run(*peer, options)).collect::<Result<Vec<_>, _>>()
    };
    WORKERS.iter().zip(CORES).map(with).collect()
}
