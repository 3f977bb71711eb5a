//! What a full cache loses while it is saved to a slow disk.
//!
//! The disk is slow by `rdb-key-save-delay`: whoever writes the file sleeps so long for each key. The save goes on for
//! longer than the measurement, and is not waited for.

use std::fmt::Write as _;

use super::peer::{Peer, Place, Server, Start, info, scaled};
use crate::bench::median;
use crate::report::{Options, Part};
use crate::store::peer::fill;

/// The limit of memory.
const LIMIT: usize = 512 << 20;
const VALUE_BYTES: usize = 1 << 10;
const DELAY_US: &str = "1000";

const PEERS: [Peer; 2] = [Peer::Redis, Peer::Ours];

pub(super) fn eviction(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("eviction", "Eviction beside a save to a slow disk");
    let limit = scaled(options, LIMIT);
    let writes = limit / VALUE_BYTES / 2;
    let rows = ["without a save", "with one"];
    let mut results = vec![vec![Vec::new(); PEERS.len()]; rows.len()];
    for round in options.rounds() {
        for (index, peer) in PEERS.into_iter().enumerate() {
            for (row, saves) in results.iter_mut().zip([false, true]) {
                let lost = measure(options, peer, (limit, writes), saves)?;
                let manner = if saves { "with" } else { "without" };
                println!("run {} {:<14} {manner} a save: {lost} keys lost in {writes} writes", round + 1, peer.name());
                row[index].push(lost);
            }
        }
    }
    let _ = writeln!(
        part.text,
        "Keys that are lost by {writes} SETs of new keys with values of {VALUE_BYTES} bytes, half of what fits into {} MiB, to a server that \
         is full, with allkeys-lru. The save sleeps for {DELAY_US} µs a key (`rdb-key-save-delay`).\n",
        limit >> 20
    );
    part.table("keys lost", &PEERS.map(|peer| peer.name().to_owned()), rows.into_iter(), &results);
    let more: Vec<f64> = results[0][1].iter().zip(&results[1][1]).map(|(without, with)| with / without).collect();
    part.goal("keys lost, with a save / without", "≤ 1.1", median(&more), |ratio| ratio <= 1.1);
    Ok(part)
}

fn measure(options: &Options, peer: Peer, (limit, writes): (usize, usize), saves: bool) -> Result<f64, String> {
    let limit_text = limit.to_string();
    let parameters =
        [("maxmemory", &*limit_text), ("maxmemory-policy", "allkeys-lru"), ("rdb-key-save-delay", DELAY_US)];
    let server =
        Start { cores: "0-1", threads: 1, place: Place::Memory, parameters: &parameters }.run(peer, options)?;
    let value = vec![b'v'; VALUE_BYTES];
    let set = |number: usize| vec![b"SET".to_vec(), format!("object:{number:09}").into_bytes(), value.clone()];
    // More than fits, so that it evicts already.
    let first = limit / VALUE_BYTES;
    fill(&mut server.client()?, first, set)?;
    let mut client = server.client()?;
    if saves {
        client.must(&["BGSAVE"])?;
    }
    let before = lost(&server)?;
    fill(&mut client, writes, |number| set(first + number))?;
    let lost = lost(&server)? - before;
    if saves && info(&mut client, "persistence", "rdb_bgsave_in_progress")? != Some(1.0) {
        return Err(format!("the save of {} ended before the writes did", peer.name()));
    }
    Ok(lost)
}

fn lost(server: &Server) -> Result<f64, String> {
    info(&mut server.client()?, "stats", "evicted_keys")?.ok_or("INFO has no evicted_keys".into())
}
