//! How fast files are written and read by servers that do nothing else, on tmpfs.

use std::fmt::Write as _;
use std::time::Instant;

use super::peer::{Directory, KEYS, Peer, Place, Start, scaled};
use crate::bench::median;
use crate::report::{Options, Part, ratios};

const START: Start<'static> = Start {
    cores: "0-1",
    threads: 1,
    place: Place::Memory,
    parameters: &[("rdbcompression", "yes"), ("rdbchecksum", "yes"), ("dbfilename", "dump.rdb")],
};

pub(super) fn speed(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("speed", "The speed of files");
    let keys = scaled(options, KEYS);
    let savers = [Peer::Redis, Peer::Ours];
    let mut servers = Vec::new();
    for peer in savers {
        let server = START.run(peer, options)?;
        server.fill(keys)?;
        servers.push(server);
    }
    let mut results = vec![vec![Vec::new(); savers.len()]; 2];
    for round in options.rounds() {
        for (index, server) in servers.iter().enumerate() {
            let mut client = server.client()?;
            let start = Instant::now();
            client.must(&["SAVE"])?;
            let passed_s = start.elapsed().as_secs_f64();
            let file = server.directory.path().join("dump.rdb");
            let bytes = std::fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?.len();
            let figures = [bytes as f64 / 1e6 / passed_s, keys as f64 / 1e6 / passed_s];
            println!("run {} {:<14} SAVE: MB/s and M keys/s {figures:.2?}", round + 1, server.peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(
        part.text,
        "{keys} keys with values of 32 bytes, on tmpfs, with compression and checksum; a server has both cores. Saved by SAVE; \
         loaded from redis-server's file, from the start of the process to the first reply.\n"
    );
    let name = |peer: &Peer| peer.name().to_owned();
    let rows = ["MB/s", "million keys a second"];
    part.table("saved", &savers.each_ref().map(name), rows.into_iter(), &results);
    let saved = median(&ratios(&results[0]));

    let file = servers[0].directory.path().join("dump.rdb");
    let loaders = [Peer::Valkey, Peer::Ours];
    let mut results = vec![vec![Vec::new(); loaders.len()]; 1];
    let kept = Directory::new(Place::Memory)?;
    let copy = kept.path().join("dump.rdb");
    std::fs::copy(&file, &copy).map_err(|error| format!("{}: {error}", file.display()))?;
    drop(servers);
    for round in options.rounds() {
        for (index, peer) in loaders.iter().enumerate() {
            let directory = Directory::new(Place::Memory)?;
            std::fs::hard_link(&copy, directory.path().join("dump.rdb")).map_err(|error| error.to_string())?;
            let start = Instant::now();
            let server = START.run_in(*peer, options, directory)?;
            let passed_s = start.elapsed().as_secs_f64();
            let there = server.client()?.must(&["DBSIZE"])?;
            if there != format!(":{keys}") {
                return Err(format!("{} has loaded {there} keys of {keys}", peer.name()));
            }
            let rate = keys as f64 / 1e6 / passed_s;
            println!("run {} {:<14} load: {rate:.2} M keys/s", round + 1, peer.name());
            results[0][index].push(rate);
        }
    }
    part.text.push('\n');
    part.table("loaded", &loaders.each_ref().map(name), ["million keys a second"].into_iter(), &results);
    part.goal("MB/s of SAVE, ours / redis-server's", "≥ 3", saved, |ratio| ratio >= 3.0);
    part.goal("keys/s of a load, ours / Valkey's", "≥ 2", median(&ratios(&results[0])), |ratio| ratio >= 2.0);
    Ok(part)
}
