//! `peers`: two nodes of each program that share a stick table, as long as a restarted one learns it and while requests
//! change its entries.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::cpu::{SECONDS, in_turn};
use super::peer::{Bench, CONNECTIONS, NEWER, Peer, Running, command};
use crate::bench::median;
use crate::child::free_port;
use crate::report::{Options, Part, ratios};

/// Entries of the table, unless the options have others.
const ENTRIES: usize = 1_000_000;
/// Updates that are due a second.
const RATE: &str = "10000";
/// The ratio of CPU time with a peer to that without one that is wanted at most.
const WANTED_COST: f64 = 1.05;
/// The time between two looks at a table that is being learned.
const LOOK: Duration = Duration::from_millis(10);
/// The time limit for a table to be learned.
const PATIENCE: Duration = Duration::from_secs(120);
/// The path of a request; it is the key of its entry, of less than 32 bytes.
const PATH: &str = "/entry-of-the-table-__key__";

/// The nodes of a program: one that is alone, and two that share their table.
struct Nodes {
    peer: Peer,
    alone: String,
    first: String,
    second: String,
    /// The stats socket of the second.
    socket: PathBuf,
}

impl Nodes {
    fn new(peer: Peer, bench: &Bench<'_>, entries: usize) -> Result<Nodes, String> {
        let (one, two) = (free_port()?, free_port()?);
        let lines = format!("peers mates\n    peer one 127.0.0.1:{one}\n    peer two 127.0.0.1:{two}\n");
        let socket = |name: &str| bench.path(&format!("{}-{name}.sock", peer.name().replace(' ', "-")));
        let file = |name: &str, lines: &str, shared: &str| {
            format!(
                "global\n    nbthread 1\n    localpeer {name}\n    stats socket {} level admin\ndefaults\n    mode http\n    \
                 timeout client 30s\n    timeout server 30s\n    timeout connect 3s\n{lines}backend clients\n    \
                 stick-table type string len 32 size {} expire 1h store gpc0,http_req_rate(10s){shared}\n\
                 frontend www\n    bind 127.0.0.1:PORT\n    http-request track-sc0 path table clients\n    \
                 http-request sc-inc-gpc0(0)\n    http-request return status 200\n",
                socket(name).display(),
                entries + 1_000
            )
        };
        Ok(Nodes {
            peer,
            alone: file("alone", "", ""),
            first: file("one", &lines, " peers mates"),
            second: file("two", &lines, " peers mates"),
            socket: socket("two"),
        })
    }

    /// Starts the second node on core 1. Returns it and the time until it has learned all entries.
    fn learn(&self, bench: &Bench<'_>, entries: usize) -> Result<(Running, Duration), String> {
        let second = self.peer.start_on("1", bench, &self.second)?;
        let (started, wanted) = (Instant::now(), format!("used:{entries}\n"));
        loop {
            // The stats socket may listen somewhat later than the frontend.
            let heads = command(&self.socket, "show table\n").unwrap_or_default();
            if heads.contains(&wanted) {
                return Ok((second, started.elapsed()));
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("{} has not learned all entries after {PATIENCE:?}: {heads}", self.peer.name()));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// `peers`: the time in which a restarted node learns a table, and what it costs to pass on changes.
pub(super) fn peers(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("peers", "Stick tables shared with peers");
    let bench = Bench::new(options)?;
    let entries = options.keys.unwrap_or(ENTRIES);
    let (connections, count, key_max) = (CONNECTIONS.to_string(), entries.to_string(), (entries - 1).to_string());
    let fill = ["-c", &connections, "-n", &count, "--key-max", &key_max, "--key-pattern", "sequential"];
    let all: Vec<Nodes> = NEWER.iter().map(|peer| Nodes::new(*peer, &bench, entries)).collect::<Result<_, _>>()?;
    let names = NEWER.map(|peer| [format!("{} alone", peer.name()), format!("{} with a peer", peer.name())]);
    // Two of each program: without a peer, and the one that has the entries.
    let mut running = Vec::new();
    for (nodes, [alone, shared]) in all.iter().zip(&names) {
        for (name, text) in [(alone, &nodes.alone), (shared, &nodes.first)] {
            let program = nodes.peer.start(&bench, text)?;
            bench.load(&program, PATH, &fill)?;
            running.push((name.as_str(), program));
        }
    }
    let mut times = vec![Vec::new(); all.len()];
    // [teacher or learner][program][run]
    let mut costs = vec![vec![Vec::new(); all.len()]; 2];
    for round in options.rounds() {
        for (index, nodes) in all.iter().enumerate() {
            let teacher = &running[2 * index + 1].1;
            let before = teacher.cpu_us();
            let (second, took) = nodes.learn(&bench, entries)?;
            let cpu_us = [teacher.cpu_us() - before, second.cpu_us()];
            let ms = took.as_secs_f64() * 1000.0;
            println!("run {} {:<12} learned in {ms:.0} ms, CPU µs {cpu_us:.0?}", round + 1, nodes.peer.name());
            times[index].push(ms);
            costs.iter_mut().zip(cpu_us).for_each(|(of_side, us)| of_side[index].push(us / entries as f64));
        }
    }
    let columns = NEWER.map(|peer| peer.name().to_owned());
    let _ = writeln!(
        part.text,
        "{entries} entries of `type string len 32` with `gpc0` and `http_req_rate(10s)`. A node on core 1 starts and learns \
         them from one on core 0: from its start until `show table` counts all of them.\n"
    );
    part.goal("time to learn all entries, ours / haproxy's", "≤ 1", median(&ratios(&times)), |ratio| ratio <= 1.0);
    part.table("ms", &columns, ["to learn all entries"].into_iter(), &[times]);
    part.text.push('\n');
    part.table(
        "CPU µs per entry",
        &columns,
        ["the node that has them", "the node that learns them"].into_iter(),
        &costs,
    );
    let _learned: Vec<_> = all.iter().map(|nodes| nodes.learn(&bench, entries)).collect::<Result<_, _>>()?;
    let (cpu, _) = in_turn(&bench, &running, PATH, &["-c", &connections, "-r", RATE, "--key-max", &key_max])?;
    let _ = writeln!(
        part.text,
        "\n{RATE} requests a second, each of which counts in one of these entries at random, {} s a run: of a node alone and \
         of one that sends the changes to the other on core 1.\n",
        options.seconds(SECONDS)
    );
    let results: Vec<Vec<Vec<f64>>> = cpu.chunks(2).map(<[Vec<f64>]>::to_vec).collect();
    part.goal(
        "CPU per request with a peer / alone",
        &format!("≤ {WANTED_COST}"),
        median(&ratios(&results[1])),
        |ratio| ratio <= WANTED_COST,
    );
    let manners = ["alone", "with a peer"].map(str::to_owned);
    part.table("CPU µs per request", &manners, NEWER.iter().map(|peer| peer.name()), &results);
    Ok(part)
}
