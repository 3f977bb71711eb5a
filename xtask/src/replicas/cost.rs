//! What a replica costs its master.

use std::fmt::Write as _;

use super::{follow, scaled, wait_in_step};
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::report::{Options, Part, cpu_in_turn};

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
    let names = names.each_ref().map(String::as_str);
    let measure = |(master, has_replica): &(Server, bool), row: usize| {
        let (pipeline, commands) = COMMANDS[row];
        cpu_of_set(master, *has_replica, options, pipeline, scaled(options, commands))
    };
    let results = cpu_in_turn(options.rounds(), &names, &masters, |(master, _)| master.peer.name(), measure)?;
    let _ = writeln!(
        part.text,
        "{KEYS} keys, 50 connections; the time of all threads of the master, until the replica, Valkey 8.1 on core 1, has \
         everything.\n"
    );
    let programs = PEERS.map(|peer| (peer.name(), peer == Peer::Ours));
    let columns = ["without".into(), "with a replica".into()];
    part.costs(&programs, &columns, &names, &results, ("with a replica / without", 1.15));
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
