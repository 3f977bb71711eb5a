//! The cost of the append-only file.

use std::fmt::Write as _;

use super::peer::{Peer, Place, Server, Start, scaled};
use crate::bench::median;
use crate::report::{Options, Part, cpu_in_turn, ratios};

const KEYS: usize = 100_000;
/// The SETs of a run without a pipeline, and with one.
const COMMANDS: [(u32, usize); 2] = [(1, 150_000), (16, 1_200_000)];
const CLIENTS: &str = "64";
const SECONDS: &str = "5";

const PEERS: [Peer; 2] = [Peer::Redis, Peer::Ours];

/// A server without a file, and one that writes it, of both programs.
pub(super) fn append(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("append", "CPU time of SET with everysec");
    let mut servers = Vec::new();
    for peer in PEERS {
        for appends in ["no", "yes"] {
            let parameters =
                [("appendonly", appends), ("appendfsync", "everysec"), ("auto-aof-rewrite-percentage", "0")];
            // A thread that writes may use another core; its time counts.
            let server =
                Start { cores: "0", threads: 1, place: Place::Disk, parameters: &parameters }.run(peer, options)?;
            server.fill(KEYS)?;
            servers.push(server);
        }
    }
    let names = COMMANDS.map(|(pipeline, _)| format!("SET of 32 bytes, pipeline of {pipeline}"));
    let names = names.each_ref().map(String::as_str);
    let measure = |server: &Server, row: usize| {
        let (pipeline, commands) = COMMANDS[row];
        cpu_of_set(server, options, pipeline, scaled(options, commands))
    };
    let results = cpu_in_turn(options.rounds(), &names, &servers, |server| server.peer.name(), measure)?;
    let _ = writeln!(
        part.text,
        "{KEYS} keys, 50 connections; the time of all threads, the one that writes the file included.\n"
    );
    let programs = PEERS.map(|peer| (peer.name(), peer == Peer::Ours));
    part.costs(&programs, &["no".into(), "everysec".into()], &names, &results, ("everysec / no", 1.15));
    Ok(part)
}

fn cpu_of_set(server: &Server, options: &Options, pipeline: u32, commands: usize) -> Result<f64, String> {
    let (pipeline, count, key_max) = (pipeline.to_string(), commands.to_string(), (KEYS - 1).to_string());
    let before = server.cpu_us();
    server.load(options, &["-n", &count, "-P", &pipeline, "--key-max", &key_max, "SET __key__ __data__"])?;
    // What is synced once a second belongs to the commands, too.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    Ok((server.cpu_us() - before) / commands as f64)
}

/// `appendfsync always` beside Valkey.
pub(super) fn always(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("always", "SET with always");
    let peers = [Peer::Valkey, Peer::Ours];
    let parameters = [("appendonly", "yes"), ("appendfsync", "always"), ("auto-aof-rewrite-percentage", "0")];
    let start = Start { cores: "0", threads: 1, place: Place::Disk, parameters: &parameters };
    let servers = peers.map(|peer| start.run(peer, options));
    let servers: Vec<Server> = servers.into_iter().collect::<Result<_, _>>()?;
    let mut results = vec![vec![Vec::new(); peers.len()]; 2];
    for round in options.rounds() {
        for (index, server) in servers.iter().enumerate() {
            let key_max = (KEYS - 1).to_string();
            let words = ["-c", CLIENTS, "-d", SECONDS, "-w", "500ms", "--key-max", &key_max, "SET __key__ __data__"];
            let loaded = server.load(options, &words)?;
            let figures = [loaded.rate, loaded.p99_ms];
            println!("run {} {:<14} SETs a second, p99 in ms: {figures:.3?}", round + 1, server.peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let disk = Place::Disk.parent();
    let _ = writeln!(part.text, "{CLIENTS} clients, {SECONDS} s a run; the files are in {}.\n", disk.display());
    let rows = ["SETs a second", "p99, ms"];
    part.table("", &peers.map(|peer| peer.name().to_owned()), rows.into_iter(), &results);
    part.goal("SETs a second, ours / Valkey's", "≥ 1", median(&ratios(&results[0])), |ratio| ratio >= 1.0);
    part.goal("p99, ours / Valkey's", "≤ 1", median(&ratios(&results[1])), |ratio| ratio <= 1.0);
    Ok(part)
}
