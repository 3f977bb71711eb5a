//! The memory of a row of the table of tracking.

use std::fmt::Write as _;

use super::scaled;
use crate::bench::median;
use crate::durable::peer::{Peer, Place, Start, info};
use crate::report::{Options, Part};
use crate::store::peer::fill;

/// Keys that a client has read, each of which is a row.
const KEYS: usize = 1_000_000;

const PEERS: [Peer; 3] = [Peer::Redis, Peer::Ours, Peer::Valkey];

pub(super) fn tracking(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("tracking", "A row of tracking");
    let keys = scaled(options, KEYS);
    let rows = ["resident memory, bytes", "used_memory, bytes"];
    let mut results = vec![vec![Vec::new(); PEERS.len()]; rows.len()];
    // Memory hardly differs from run to run.
    for round in options.rounds().take(3) {
        for (index, peer) in PEERS.into_iter().enumerate() {
            let figures = measure(options, peer, keys)?;
            println!("run {} {:<14} {rows:?}: {figures:.1?}", round + 1, peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(
        part.text,
        "{keys} keys with names of 16 bytes, which one client with `CLIENT TRACKING ON` has read.\n"
    );
    part.table("a row", &PEERS.map(|peer| peer.name().to_owned()), rows.into_iter(), &results);
    part.goal("bytes of a row", "≤ 64", median(&results[0][1]), |bytes| bytes <= 64.0);
    Ok(part)
}

/// Returns the growth of the resident memory and of `used_memory`, by row.
fn measure(options: &Options, peer: Peer, keys: usize) -> Result<[f64; 2], String> {
    let parameters = [("tracking-table-max-keys", "0")];
    let server = Start { cores: "0", threads: 1, place: Place::Memory, parameters: &parameters }.run(peer, options)?;
    let name = |number: usize| format!("key:{number:012}").into_bytes();
    fill(&mut server.client()?, keys, |number| vec![b"SET".to_vec(), name(number), b"v".to_vec()])?;
    let (mut client, mut beside) = (server.client()?, server.client()?);
    // Buffers of the connection have their size before.
    let read = |number| vec![b"GET".to_vec(), name(number)];
    fill(&mut client, keys.min(10_000), read)?;
    let mut taken =
        || Ok::<_, String>([server.resident()?, info(&mut beside, "memory", "used_memory")?.unwrap_or(f64::NAN)]);
    let before = taken()?;
    client.must(&["CLIENT", "TRACKING", "ON"])?;
    fill(&mut client, keys, read)?;
    let after = taken()?;
    let rows = info(&mut server.client()?, "stats", "tracking_total_keys")?;
    if rows != Some(keys as f64) {
        return Err(format!("{} has {rows:?} rows of {keys}", peer.name()));
    }
    Ok([(after[0] - before[0]) / keys as f64, (after[1] - before[1]) / keys as f64])
}
