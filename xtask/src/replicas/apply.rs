//! How fast a replica carries out what has accumulated.

use std::fmt::Write as _;
use std::time::Instant;

use super::{follow, scaled, wait_in_step};
use crate::bench::median;
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::report::{Options, Part, ratios};
use crate::store::peer::fill;

/// The commands of a run, and the keys that each of them names one of.
const COMMANDS: usize = 2_000_000;
const KEYS: usize = 1_000_000;

const REPLICAS: [Peer; 3] = [Peer::Valkey, Peer::Ours, Peer::Redis];

/// The commands of each row.
const ROWS: [(&str, &[&[&str]]); 2] = [
    ("SET of 32 bytes", &[&["SET", "string", "0123456789abcdef0123456789abcdef"]]),
    (
        "SET, INCR, HSET, RPUSH, ZADD in turn",
        &[
            &["SET", "string", "0123456789abcdef0123456789abcdef"],
            &["INCR", "number"],
            &["HSET", "hash", "field", "value"],
            &["RPUSH", "list", "element"],
            &["ZADD", "set", "1.5", "member"],
        ],
    ),
];

pub(super) fn apply(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("apply", "The speed of a replica");
    let commands = scaled(options, COMMANDS);
    let keys = scaled(options, KEYS);
    let names = ROWS.map(|(name, _)| name);
    let mut results = vec![vec![Vec::new(); REPLICAS.len()]; ROWS.len()];
    for round in options.rounds() {
        for (index, peer) in REPLICAS.into_iter().enumerate() {
            for ((name, words), of_row) in ROWS.iter().zip(&mut results) {
                let rate = measure(options, peer, words, (commands, keys))? / 1e6;
                println!("run {} {name:<36} {:<14} {rate:.3} M commands/s", round + 1, peer.name());
                of_row[index].push(rate);
            }
        }
    }
    let _ = writeln!(
        part.text,
        "{commands} commands on {keys} keys each; the replica is stopped while its master, redis-server, is given them. The time \
         is that until the replica, which has both cores and two workers, has acknowledged them.\n"
    );
    let columns = REPLICAS.map(|peer| peer.name().to_owned());
    part.table("million commands a second", &columns, names.into_iter(), &results);
    for (name, of_row) in names.iter().zip(&results) {
        let ratio = median(&ratios(of_row));
        part.goal(&format!("{name}, ours / Valkey's"), "≥ 1.5", ratio, |ratio| ratio >= 1.5);
    }
    Ok(part)
}

/// Returns the commands a second.
fn measure(options: &Options, peer: Peer, words: &[&[&str]], (commands, keys): (usize, usize)) -> Result<f64, String> {
    let of_master =
        [("repl-diskless-sync-delay", "0"), ("client-output-buffer-limit", "replica 0 0 0"), ("repl-timeout", "3600")];
    let start = |threads, parameters| Start { cores: "0-1", threads, place: Place::Memory, parameters };
    // Each of the three can read its files.
    let master = start(1, &of_master).run(Peer::Redis, options)?;
    let replica = start(2, &[("repl-timeout", "3600")]).run(peer, options)?;
    follow(&replica, &master)?;
    wait_in_step(&master)?;
    replica.signal("-STOP")?;
    let written = write(&master, words, (commands, keys));
    let begun = Instant::now();
    replica.signal("-CONT")?;
    written?;
    wait_in_step(&master)?;
    let time_s = begun.elapsed().as_secs_f64();
    let sizes = [&master, &replica].map(|server| server.client()?.must(&["DBSIZE"]));
    match sizes {
        [Ok(there), Ok(here)] if there == here => Ok(commands as f64 / time_s),
        _ => Err(format!("the numbers of keys of the master and {}: {sizes:?}", peer.name())),
    }
}

fn write(master: &Server, words: &[&[&str]], (commands, keys): (usize, usize)) -> Result<(), String> {
    fill(&mut master.client()?, commands, |number| {
        let words = words[number % words.len()];
        // The keys come in no order.
        let key = number.wrapping_mul(0x9e37_79b9) % keys;
        let mut words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        words[1].extend_from_slice(format!(":{key}").as_bytes());
        words
    })
}
