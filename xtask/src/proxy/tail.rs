//! The slowest requests in a thousand, under a load that both programs can bear.

use std::fmt::Write as _;

use super::peer::{BOTH, Bench, CONNECTIONS, Peer};
use crate::bench::{median, spread};
use crate::report::{Options, Part, ratios};

/// The part of haproxy's highest rate at which latencies are measured.
const LOAD: f64 = 0.7;
const SECONDS: u32 = 5;

/// `tail`: latencies of an open loop.
pub(super) fn tail(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("tail", "Latency at 70 % of the load");
    let bench = Bench::new(options)?;
    let text = format!(
        "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    \
         timeout connect 3s\nlisten www\n    bind 127.0.0.1:PORT\n    server p {}\n",
        bench.origin()
    );
    let running = [Peer::Haproxy.start(&bench, &text)?, Peer::Ours.start(&bench, &text)?];
    let connections = CONNECTIONS.to_string();
    let seconds = options.seconds(SECONDS).to_string();
    let highest = bench.load(&running[0], "/fast", &["-c", &connections, "-d", "3", "-w", "500ms"])?.rate;
    let rate = format!("{:.0}", highest * LOAD);
    let arguments = ["-c", &connections, "-r", &rate, "--arrivals", "exponential", "-d", &seconds, "-w", "500ms"];
    let mut results = vec![vec![Vec::new(); BOTH.len()]; 3];
    for round in options.rounds() {
        for (index, (peer, program)) in BOTH.iter().zip(&running).enumerate() {
            let loaded = bench.load(program, "/fast", &arguments)?;
            let figures = [loaded.p50_ms, loaded.p99_ms, loaded.p999_ms];
            println!("run {} {:<12} p50, p99, p99.9: {figures:.3?} ms", round + 1, peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(
        part.text,
        "{rate} requests a second are due at random moments, {LOAD} of the {highest:.0} that haproxy reaches; \
         {CONNECTIONS} connections, {seconds} s a run. A latency begins when a request was due.\n"
    );
    let columns = BOTH.map(|peer| peer.name().to_owned());
    part.table("ms", &columns, ["p50", "p99", "p99.9"].into_iter(), &results);
    part.goal("p99.9, ours / haproxy's", "≤ 1", median(&ratios(&results[2])), |ratio| ratio <= 1.0);
    let _ = writeln!(part.text, "\nOurs at p99.9: {} ms.", spread(&results[2][1], 3));
    Ok(part)
}
