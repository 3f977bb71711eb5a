//! Reloads under load: what fails, and what waits.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use super::peer::{BOTH, Bench, CONNECTIONS, Peer, Running};
use crate::bench::{median, spread};
use crate::report::{Options, Part};

const RELOADS: u32 = 20;
/// Between two reloads.
const PAUSE: Duration = Duration::from_millis(500);
/// Requests that are due a second.
const RATE: &str = "10000";

/// `reloads`: twenty in ten seconds.
pub(super) fn reloads(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("reloads", "Reloads under load");
    let bench = Bench::new(options)?;
    let text = format!(
        "global\n    nbthread 1\n    master-worker\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    \
         timeout connect 3s\nlisten www\n    bind 127.0.0.1:PORT\n    server p {}\n",
        bench.origin()
    );
    let connections = CONNECTIONS.to_string();
    let arguments = ["-c", &connections, "-r", RATE, "-d", "11"];
    // [program][without, with reloads][run]
    let mut p99 = vec![vec![Vec::new(); 2]; BOTH.len()];
    let mut failed = [0.0; 2];
    for round in options.rounds() {
        for (index, peer) in BOTH.into_iter().enumerate() {
            let running = peer.start(&bench, &text)?;
            let still = bench.load_that_may_fail(&running, "/fast", &arguments)?;
            let (moved, reloaded) = std::thread::scope(|scope| {
                let load = scope.spawn(|| bench.load_that_may_fail(&running, "/fast", &arguments));
                let reloaded = (0..RELOADS).try_for_each(|_| {
                    std::thread::sleep(PAUSE);
                    reload(peer, &running, options)
                });
                (load.join().unwrap_or_else(|_| Err("the load panicked".into())), reloaded)
            });
            let moved = moved?;
            reloaded?;
            println!(
                "run {} {:<12} p99 {:.3} and {:.3} ms, failed {}",
                round + 1,
                peer.name(),
                still.p99_ms,
                moved.p99_ms,
                moved.failed
            );
            p99[index][0].push(still.p99_ms);
            p99[index][1].push(moved.p99_ms);
            failed[index] += moved.failed;
        }
    }
    let _ = writeln!(
        part.text,
        "{RATE} requests a second are due on {CONNECTIONS} connections; {RELOADS} reloads in ten seconds: `kill -USR2` of \
         haproxy's master, `sluicegate reload` of ours. Failed requests in all runs: haproxy {}, sluicegate {}.\n",
        failed[0], failed[1]
    );
    let columns = ["without".to_owned(), "with reloads".to_owned()];
    part.table("p99, ms", &columns, BOTH.iter().map(|peer| peer.name()), &p99);
    part.goal("failed requests", "0", failed[1], |failed| failed == 0.0);
    let ratio: Vec<f64> = p99[1][1].iter().zip(&p99[1][0]).map(|(with, without)| with / without).collect();
    part.goal("p99, with reloads / without", "≤ 2", median(&ratio), |ratio| ratio <= 2.0);
    let _ = writeln!(part.text, "\nOurs with reloads: {} ms.", spread(&p99[1][1], 3));
    Ok(part)
}

/// Asks a program to read its file again.
pub(crate) fn reload(peer: Peer, running: &Running, options: &Options) -> Result<(), String> {
    let pid = running.id().to_string();
    let mut command = match peer {
        Peer::Haproxy | Peer::Newer => {
            let mut command = Command::new("kill");
            command.args(["-USR2", &pid]);
            command
        }
        Peer::Ours => {
            let mut command = Command::new(&options.program);
            command.args(["reload", &pid]);
            command
        }
    };
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", peer.name(), String::from_utf8_lossy(&output.stderr))),
    }
}
