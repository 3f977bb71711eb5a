//! What a replica costs its master.

use std::fmt::Write as _;

use super::{follow, scaled, wait_in_step};
use crate::bench::median;
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::report::{Options, Part, ratios};

const KEYS: usize = 100_000;
/// The SETs of a run by their pipeline.
const COMMANDS: [(u32, usize); 2] = [(1, 150_000), (16, 1_000_000)];

const PEERS: [Peer; 3] = [Peer::Redis, Peer::Valkey, Peer::Ours];

/// A master without a replica, and one with one.
pub(super) fn cost(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("cost", "CPU time of SET with a replica");
    let start = |cores, parameters| Start { cores, threads: 1, place: Place::Memory, parameters };
    let (mut masters, mut replicas) = (Vec::new(), Vec::new());
    for peer in PEERS {
        for has_replica in [false, true] {
            let master = start("0", &[("repl-diskless-sync-delay", "0")]).run(peer, options)?;
            master.fill(KEYS)?;
            if has_replica {
                let replica = start("1", &[]).run(Peer::Valkey, options)?;
                follow(&replica, &master)?;
                replicas.push(replica);
            }
            masters.push((master, has_replica));
        }
    }
    let names = COMMANDS.map(|(pipeline, _)| format!("SET of 32 bytes, pipeline of {pipeline}"));
    let mut results = vec![vec![Vec::new(); masters.len()]; COMMANDS.len()];
    for round in 0..options.runs {
        for (((pipeline, commands), name), of_row) in COMMANDS.iter().zip(&names).zip(&mut results) {
            for ((master, has_replica), of_server) in masters.iter().zip(of_row) {
                let cpu_us = cpu_of_set(master, *has_replica, options, *pipeline, scaled(options, *commands))?;
                println!("run {} {name:<34} {:<14} {cpu_us:.3} µs", round + 1, master.peer.name());
                of_server.push(cpu_us);
            }
        }
    }
    let _ = writeln!(
        part.text,
        "{KEYS} keys, 50 connections; the time of all threads of the master, until the replica, Valkey 8.1 on core 1, has \
         everything.\n"
    );
    for (index, peer) in PEERS.into_iter().enumerate() {
        let columns = ["without".to_owned(), "with a replica".to_owned()];
        let of_peer: Vec<Vec<Vec<f64>>> = results.iter().map(|row| row[2 * index..2 * index + 2].to_vec()).collect();
        let what = format!("{}, CPU µs per command", peer.name());
        part.table(&what, &columns, names.iter().map(String::as_str), &of_peer);
        part.text.push('\n');
        if peer == Peer::Ours {
            for (name, of_row) in names.iter().zip(&of_peer) {
                let ratio = median(&ratios(of_row));
                part.goal(&format!("{name}, with a replica / without"), "≤ 1.15", ratio, |ratio| ratio <= 1.15);
            }
        }
    }
    Ok(part)
}

fn cpu_of_set(
    master: &Server,
    has_replica: bool,
    options: &Options,
    pipeline: u32,
    commands: usize,
) -> Result<f64, String> {
    let (pipeline, count, key_max) = (pipeline.to_string(), commands.to_string(), (KEYS - 1).to_string());
    let before = master.cpu_us();
    master.load(options, &["-n", &count, "-P", &pipeline, "--key-max", &key_max, "SET __key__ __data__"])?;
    if has_replica {
        wait_in_step(master)?;
    }
    Ok((master.cpu_us() - before) / commands as f64)
}
