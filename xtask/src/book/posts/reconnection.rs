//! The two lines of *Redis Reconnection Overhead*.

use std::fmt::Write as _;

use crate::bench::spread;
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::engines::real_s;
use crate::report::{Options, Part, ratios};
use crate::run::output;

/// The post's number of calls.
const CALLS: usize = 50_000;

/// The post's rows and its seconds by the clock.
const ROWS: [(&str, f64); 2] = [("reuse redis", 2.827_811), ("new redis", 9.580_777)];

const PEERS: [Peer; 3] = [Peer::Redis, Peer::Valkey, Peer::Ours];

/// `reconnection`: a connection for each SET.
pub(super) fn reconnection(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("reconnection", "Redis Reconnection Overhead");
    let calls = options.keys.unwrap_or(CALLS);
    let start = Start { cores: "0", threads: 1, place: Place::Memory, parameters: &[] };
    let servers: Vec<Server> = PEERS.into_iter().map(|peer| start.run(peer, options)).collect::<Result<_, _>>()?;
    // `[row][server][run]`
    let mut results = vec![vec![Vec::new(); PEERS.len()]; ROWS.len()];
    for round in options.rounds() {
        for (index, server) in servers.iter().enumerate() {
            let text = calls_on(server, options, calls)?;
            for ((row, _), of_row) in ROWS.iter().zip(&mut results) {
                let seconds = real_s(&text, row).ok_or_else(|| format!("the table has no {row}:\n{text}"))?;
                println!("run {} {row:<12} {:<14} {seconds:.3} s", round + 1, server.peer.name());
                of_row[index].push(seconds);
            }
        }
    }
    let columns = PEERS.map(Peer::name);
    let _ = writeln!(
        part.text,
        "Seconds for {calls} SETs over one connection, and over one for each, one after the other: `sluicegate bench redis \
         --reconnect -n {calls}` on core 1, the server on core 0. Published: {CALLS} calls of Ruby's client.\n\n\
         | | published | {} |\n|---|---|{}",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for ((row, published), of_row) in ROWS.iter().zip(&results) {
        let cells: Vec<String> = of_row.iter().map(|runs| spread(runs, 2)).collect();
        let _ = writeln!(part.text, "| {row} | {published:.2} | {} |", cells.join(" | "));
    }
    let times: Vec<String> = (0..PEERS.len())
        .map(|peer| spread(&ratios(&[results[0][peer].clone(), results[1][peer].clone()]), 2))
        .collect();
    let _ = writeln!(part.text, "| times | {:.2} | {} |", ROWS[1].1 / ROWS[0].1, times.join(" | "));
    part.keep("seconds", &columns, ROWS.iter().map(|row| row.0), &results);
    Ok(part)
}

/// Returns the table of the calls.
fn calls_on(server: &Server, options: &Options, calls: usize) -> Result<String, String> {
    let program = options.program.display().to_string();
    let (calls, address) = (calls.to_string(), format!("127.0.0.1:{}", server.port()));
    let words = ["-c", "1", &program, "bench", "redis", "--reconnect", "-n", &calls, "--server", &address];
    output("taskset", &words).ok_or_else(|| format!("the calls of {} failed", server.peer.name()))
}
