//! The store's cost of a command among more keys, and of a script with more commands.

use std::fmt::Write as _;

use sluicegate_report::Scale;

use super::Curves;
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::report::{Options, Part};
use crate::store::peer::fill;

/// The numbers of keys, as parts of the largest.
const KEYS: usize = 10_000_000;
const PARTS_OF_KEYS: [usize; 5] = [0, 1_000, 100, 10, 1];
/// The GETs of a run.
const GETS: usize = 400_000;

/// Commands of a script.
const LENGTHS: [usize; 4] = [1, 10, 100, 1_000];
/// The commands of all scripts of a run.
const COMMANDS: usize = 2_000_000;
const SCRIPT: &str = "for i = 1, tonumber(ARGV[1]) do redis.call('INCR', KEYS[1]) end";

const ONE_WORKER: Start<'static> = Start { cores: "0", threads: 1, place: Place::Memory, parameters: &[] };

fn start(peers: &[Peer], options: &Options) -> Result<Vec<Server>, String> {
    peers.iter().map(|peer| ONE_WORKER.run(*peer, options)).collect()
}

/// Runs a load of so many commands, and returns the server's CPU µs for each.
fn cost(server: &Server, options: &Options, count: usize, words: &[&str]) -> Result<f64, String> {
    let (before, number) = (server.cpu_us(), count.to_string());
    server.load(options, &[&["-c", "50", "-n", &number], words].concat())?;
    Ok((server.cpu_us() - before) / count as f64)
}

/// `keys`: GETs among more and more keys.
pub(super) fn keys(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("keys", "Keys");
    let most = options.keys.unwrap_or(KEYS);
    let sizes = PARTS_OF_KEYS.map(|part| most.checked_div(part).unwrap_or(0));
    let peers = [Peer::Redis, Peer::Ours];
    let servers = start(&peers, options)?;
    let gets = GETS * options.seconds(3) as usize / 3;
    let mut results = vec![vec![Vec::new(); peers.len()]; sizes.len()];
    let mut filled = 0;
    for (size, of_size) in sizes.into_iter().zip(&mut results) {
        // Both at once: a client waits for its server most of the time.
        std::thread::scope(|scope| {
            let add = |server| scope.spawn(move || extend(server, filled, size));
            let threads: Vec<_> = servers.iter().map(add).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into())))
        })?;
        filled = size;
        let key_max = size.saturating_sub(1).to_string();
        for round in options.rounds() {
            for (server, runs) in servers.iter().zip(of_size.iter_mut()) {
                let words = ["-P", "16", "--key-max", &key_max, "GET __key__"];
                let cpu_us = cost(server, options, gets, &words)?;
                println!("run {} {size:>9} keys {:<14} {cpu_us:.4} µs", round + 1, server.peer.name());
                runs.push(cpu_us);
            }
        }
    }
    let _ =
        writeln!(part.text, "GET of a random key with 32 bytes, 50 connections, pipeline 16, {gets} commands a run.\n");
    let names = peers.map(|peer| peer.name().to_owned()).to_vec();
    let what = "CPU µs per GET, by keys";
    Curves { what, over: "keys", sizes: &sizes, names, scale: Scale::Linear }.add(&mut part, &results);
    Ok(part)
}

/// Adds keys up to a number.
fn extend(server: &Server, from: usize, to: usize) -> Result<(), String> {
    fill(&mut server.client()?, to - from, |number| {
        vec![b"SET".to_vec(), format!("key:{}", from + number).into_bytes(), vec![b'v'; 32]]
    })
}

/// `scripts`: scripts with more and more commands.
pub(super) fn scripts(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("scripts", "Commands of a script");
    let peers = [Peer::Redis, Peer::Ours, Peer::Valkey];
    let servers = start(&peers, options)?;
    let mut results = vec![vec![Vec::new(); peers.len()]; LENGTHS.len()];
    for round in options.rounds() {
        for (length, of_length) in LENGTHS.into_iter().zip(&mut results) {
            // What a script costs besides its commands is that of some ten of them.
            let count = COMMANDS * options.seconds(3) as usize / 3 / (length + 10);
            for (server, runs) in servers.iter().zip(of_length) {
                let sha = server.client()?.must(&["SCRIPT", "LOAD", SCRIPT])?;
                let command = format!("EVALSHA {sha} 1 count:__key__ {length}");
                let cpu_us = cost(server, options, count, &["-P", "4", "--key-max", "999", &command])?;
                println!("run {} {length:>5} commands {:<14} {cpu_us:.3} µs", round + 1, server.peer.name());
                runs.push(cpu_us);
            }
        }
    }
    let _ = writeln!(
        part.text,
        "`{SCRIPT}` on a thousand keys, 50 connections, pipeline 4. The ratio is that of Sluicegate to redis-server.\n"
    );
    let names = peers.map(|peer| peer.name().to_owned()).to_vec();
    let what = "CPU µs per script, by its commands";
    Curves { what, over: "commands", sizes: &LENGTHS, names, scale: Scale::Log }.add(&mut part, &results);
    Ok(part)
}
