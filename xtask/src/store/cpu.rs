//! The CPU time per command, compared with redis-server.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::peer::{Peer, Server, fill};
use crate::bench::{median, spread};
use crate::connection::Client;
use crate::report::{Options, Part, ratios};
use crate::run::output;

/// The number of connections of the load generator.
const CONNECTIONS: &str = "50";
/// Half of the connections.
const HALF: &str = "25";
const KEYS: usize = 100_000;

/// A command under load.
pub(super) struct Load {
    pub(super) name: &'static str,
    /// The words of the command, with the placeholders `__key__` and `__data__`. Several commands, which are sent in
    /// turn, are separated by ` ; `.
    pub(super) command: Cow<'static, str>,
    pub(super) connections: &'static str,
    pub(super) pipeline: u32,
    pub(super) requests: u64,
    /// The largest number substituted for `__key__`.
    pub(super) key_max: usize,
}

impl Load {
    /// Runs the load and returns the server's CPU time per command, in µs.
    pub(super) fn run(&self, server: &Server, options: &Options) -> Result<f64, String> {
        let before = server.cpu_us();
        self.send(server, options)?;
        Ok((server.cpu_us() - before) / self.requests as f64)
    }

    /// Runs two halves of the load in parallel, on one server or each on its own. Returns the CPU time of all servers
    /// per command, in µs.
    fn in_halves(&self, servers: &[Server], options: &Options) -> Result<f64, String> {
        let half = Load { connections: HALF, requests: self.requests / 2, command: self.command.clone(), ..*self };
        let cpu_us = || servers.iter().map(Server::cpu_us).sum::<f64>();
        let before = cpu_us();
        let results = std::thread::scope(|threads| {
            let half = &half;
            let halves = [&servers[0], &servers[servers.len() - 1]]
                .map(|server| threads.spawn(move || half.send(server, options)));
            halves.map(|half| half.join().unwrap_or_else(|_| Err("a load failed".into())))
        });
        results.into_iter().collect::<Result<(), _>>()?;
        Ok((cpu_us() - before) / self.requests as f64)
    }

    /// Runs the load generator on core 1.
    fn send(&self, server: &Server, options: &Options) -> Result<(), String> {
        let program = options.program.display().to_string();
        let address = format!("127.0.0.1:{}", server.port);
        let (requests, pipeline, key_max) =
            (self.requests.to_string(), self.pipeline.to_string(), self.key_max.to_string());
        let mut arguments = vec![
            "-c",
            "1",
            &program,
            "bench",
            "redis",
            "--server",
            &address,
            "-c",
            self.connections,
            "-n",
            &requests,
            "-P",
            &pipeline,
            "--key-prefix",
            "key:",
            "--key-max",
            &key_max,
            "--seed",
            "1",
            "--json",
        ];
        arguments.extend(self.command.split(" ; "));
        output("taskset", &arguments).ok_or(format!("the load of {} failed", self.name))?;
        Ok(())
    }
}

const fn load(name: &'static str, command: &'static str, pipeline: u32) -> Load {
    let requests = if pipeline == 1 { 150_000 } else { 1_200_000 };
    Load { name, command: Cow::Borrowed(command), connections: CONNECTIONS, pipeline, requests, key_max: KEYS - 1 }
}

const STRINGS: [Load; 4] = [
    load("SET of 32 B", "SET __key__ __data__", 1),
    load("GET of 32 B", "GET __key__", 1),
    load("SET of 32 B, pipeline of 16", "SET __key__ __data__", 16),
    load("GET of 32 B, pipeline of 16", "GET __key__", 16),
];

/// Creates the keys that the loads read.
fn prepare(server: &Server) -> Result<(), String> {
    let mut client = server.client()?;
    fill(&mut client, KEYS, |n| vec![b"SET".to_vec(), format!("key:{n}").into_bytes(), vec![b'v'; 32]])
}

/// Returns the CPU time per command, in µs, as `[load][peer][run]`. The runs of the peers alternate.
fn alternate(options: &Options, peers: &[Peer], loads: &[Load]) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let servers: Vec<Server> = peers.iter().map(|peer| peer.start(&options.program, &[])).collect::<Result<_, _>>()?;
    servers.iter().try_for_each(prepare)?;
    let mut results = vec![vec![Vec::new(); peers.len()]; loads.len()];
    for round in options.rounds() {
        for (load, of_load) in loads.iter().zip(&mut results) {
            for ((peer, server), of_peer) in peers.iter().zip(&servers).zip(of_load) {
                let cpu_us = load.run(server, options)?;
                println!("run {} {:<32} {:<24} {cpu_us:.3} µs", round + 1, load.name, peer.name());
                of_peer.push(cpu_us);
            }
        }
    }
    Ok(results)
}

/// Adds a table with the results of each load for each peer.
pub(super) fn table<'n>(
    part: &mut Part,
    peers: &[Peer],
    loads: impl Iterator<Item = &'n str>,
    results: &[Vec<Vec<f64>>],
) {
    let names: Vec<String> = peers.iter().map(|peer| peer.name()).collect();
    part.table("CPU µs per command", &names, loads, results);
}

/// SET and GET of 32 bytes.
pub(super) fn cpu(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("cpu", "Strings over a socket");
    let peers = [Peer::Redis, Peer::Ours(1)];
    let results = alternate(options, &peers, &STRINGS)?;
    let _ = writeln!(part.text, "{KEYS} keys, {CONNECTIONS} connections.\n");
    table(&mut part, &peers, STRINGS.iter().map(|load| load.name), &results);
    for (load, of_load) in STRINGS.iter().zip(&results) {
        let wanted = if load.pipeline == 1 { 0.9 } else { 0.7 };
        let ratio = median(&ratios(of_load));
        part.goal(&format!("{}, ours / Redis's", load.name), &format!("≤ {wanted}"), ratio, |ratio| ratio <= wanted);
    }
    Ok(part)
}

const fn few(name: &'static str, command: &'static str, key_max: usize) -> Load {
    Load { name, command: Cow::Borrowed(command), connections: CONNECTIONS, pipeline: 16, requests: 300_000, key_max }
}

/// Commands on lists and sorted sets, each after the commands that prepare it.
const TYPES: [Load; 12] = [
    few("LPUSH", "LPUSH list __data__", 0),
    few("RPUSH", "RPUSH list __data__", 0),
    few("LPOP", "LPOP list", 0),
    few("RPOP", "RPOP list", 0),
    few("LRANGE of 100", "LRANGE short 0 99", 0),
    few("LINDEX", "LINDEX short 50", 0),
    few("ZADD", "ZADD scores 1.5 __key__", KEYS - 1),
    few("ZINCRBY", "ZINCRBY scores 1 __key__", KEYS - 1),
    few("ZSCORE", "ZSCORE scores __key__", KEYS - 1),
    few("ZRANK", "ZRANK scores __key__", KEYS - 1),
    few("ZRANGE of 10", "ZRANGE scores 1000 1009", 0),
    few("ZRANGEBYSCORE LIMIT 10", "ZRANGEBYSCORE scores 2 +inf LIMIT 0 10", 0),
];

/// Lists and sorted sets.
pub(super) fn types(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("types", "Lists and sorted sets over a socket");
    let peers = [Peer::Redis, Peer::Ours(1)];
    let probe = Peer::Ours(1).start(&options.program, &[])?;
    let mut client = probe.client()?;
    let (mut loads, mut missing) = (Vec::new(), Vec::new());
    for load in TYPES {
        let words: Vec<&str> = load.command.split(' ').collect();
        match client.ask(&words)?.starts_with("-ERR unknown command") {
            true => missing.push(load.name),
            false => loads.push(load),
        }
    }
    drop(probe);
    let servers: Vec<Server> = peers.iter().map(|peer| peer.start(&options.program, &[])).collect::<Result<_, _>>()?;
    for server in &servers {
        let mut client = server.client()?;
        for n in 0..100 {
            client.ask(&["RPUSH", "short", &format!("element:{n}")])?;
        }
    }
    let mut results = vec![vec![Vec::new(); peers.len()]; loads.len()];
    for round in options.rounds() {
        for (load, of_load) in loads.iter().zip(&mut results) {
            for ((peer, server), of_peer) in peers.iter().zip(&servers).zip(of_load) {
                let cpu_us = load.run(server, options)?;
                println!("run {} {:<32} {:<24} {cpu_us:.3} µs", round + 1, load.name, peer.name());
                of_peer.push(cpu_us);
            }
        }
    }
    let _ = writeln!(part.text, "{CONNECTIONS} connections, pipelines of 16; a sorted set of {KEYS} members.\n");
    table(&mut part, &peers, loads.iter().map(|load| load.name), &results);
    for (load, of_load) in loads.iter().zip(&results) {
        part.goal(&format!("{}, ours / Redis's", load.name), "≤ 0.8", median(&ratios(of_load)), |ratio| ratio <= 0.8);
    }
    if !missing.is_empty() {
        let _ = writeln!(part.text, "\nNot there yet: {}.", missing.join(", "));
    }
    Ok(part)
}

/// Returns a load of transactions in pipelines of 16 transactions. It uses one connection, because the load generator
/// may send the next command of the sequence over any of its connections.
const fn transaction(name: &'static str, command: &'static str, commands: u32) -> Load {
    let requests = 120_000 * commands as u64;
    let command = Cow::Borrowed(command);
    Load { name, command, connections: "1", pipeline: 16 * commands, requests, key_max: KEYS - 1 }
}

const TRANSACTIONS: [Load; 3] = [
    transaction("SET, GET, INCR", "MULTI ; SET __key__ __data__ ; GET __key__ ; INCR counter ; EXEC", 5),
    transaction("INCR", "MULTI ; INCR counter ; EXEC", 3),
    transaction("WATCH, GET, then SET", "WATCH __key__ ; GET __key__ ; MULTI ; SET __key__ __data__ ; EXEC", 5),
];

/// Measures transactions on a few keys.
pub(super) fn transactions(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("transactions", "Transactions over a socket");
    let peers = [Peer::Redis, Peer::Ours(1)];
    let results = alternate(options, &peers, &TRANSACTIONS)?;
    part.text += "One connection, a pipeline of 16 transactions; MULTI and EXEC count as commands.\n\n";
    table(&mut part, &peers, TRANSACTIONS.iter().map(|load| load.name), &results);
    for (load, of_load) in TRANSACTIONS.iter().zip(&results) {
        part.goal(&format!("{}, ours / Redis's", load.name), "≤ 0.9", median(&ratios(of_load)), |ratio| ratio <= 0.9);
    }
    Ok(part)
}

/// Measures direct calls of the store, without a socket.
pub(super) fn call(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("call", "The call without a socket");
    let arguments = ["run", "--quiet", "--profile", &options.profile, "-p", "sluicegate-store", "--example", "costs"];
    let text = output("cargo", &arguments).ok_or("the example 'costs' failed")?;
    let _ = writeln!(
        part.text,
        "`cargo run --profile packaged -p sluicegate-store --example costs`, best of three:\n\n```"
    );
    for line in text.lines().filter(|line| line.ends_with(" ns")) {
        let _ = writeln!(part.text, "{line}");
    }
    part.text += "```\n";
    let figure = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().rev().nth(1)?.parse::<f64>().ok()
    };
    for (name, wanted_ns) in [
        ("INCRBY, 1,000 hot keys", 300.0),
        ("GET of 32 bytes, 1,000 hot keys", 300.0),
        ("INCRBY, 1,000,000 random keys", 500.0),
        ("GET of 32 bytes, 1,000,000 random keys", 500.0),
    ] {
        let ns = figure(name).ok_or(format!("the example says nothing of {name}"))?;
        part.goal(&format!("{name}, ns"), &format!("≤ {wanted_ns}"), ns, |ns| ns <= wanted_ns);
    }
    Ok(part)
}

/// Compares two workers with one worker, and with two processes of one worker each.
pub(super) fn workers(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("workers", "Two workers against one");
    let start = |peer: Peer| {
        let server = peer.start(&options.program, &[])?;
        prepare(&server).map(|()| server)
    };
    let servers: [Vec<Server>; 3] = [
        vec![start(Peer::Ours(1))?],
        vec![start(Peer::Ours(2))?],
        vec![start(Peer::OursOn(0))?, start(Peer::OursOn(1))?],
    ];
    let names = ["one worker", "two workers", "two processes"];
    let loads = [load("PING", "PING", 1)].into_iter().chain(STRINGS).collect::<Vec<_>>();
    // `[load][servers][run]`.
    let mut results = vec![vec![Vec::new(); servers.len()]; loads.len()];
    for round in options.rounds() {
        for (load, of_load) in loads.iter().zip(&mut results) {
            for ((servers, name), runs) in servers.iter().zip(names).zip(of_load) {
                let cpu_us = load.in_halves(servers, options)?;
                println!("run {} {:<32} {name:<24} {cpu_us:.3} µs", round + 1, load.name);
                runs.push(cpu_us);
            }
        }
    }
    part.text += "Two loads of half of the clients each, which take their part of core 1. The last columns are two processes \
                  with one worker each, on a core each, a load for each: what no sharing at all would cost. PING has no \
                  key.\n\n\
                  | CPU µs per command | one worker | two workers | / one | two processes | / one |\n\
                  |---|---|---|---|---|---|\n";
    part.keep("CPU µs per command", &names, loads.iter().map(|load| load.name), &results);
    for (load, of_load) in loads.iter().zip(&results) {
        let to_one = |runs: &[f64]| runs.iter().zip(&of_load[0]).map(|(runs, one)| runs / one).collect::<Vec<f64>>();
        let [two, apart] = [&of_load[1], &of_load[2]].map(|runs| to_one(runs));
        let cells = [&of_load[0], &of_load[1], &two, &of_load[2], &apart].map(|values| spread(values, 3));
        let _ = writeln!(part.text, "| {} | {} |", load.name, cells.join(" | "));
        let wanted = if load.pipeline == 1 { 1.1 } else { 1.3 };
        if load.name != "PING" {
            let ratio = median(&two);
            part.goal(&format!("{}, two / one", load.name), &format!("≤ {wanted}"), ratio, |ratio| ratio <= wanted);
        }
    }
    Ok(part)
}

/// Clients on one key.
const CLIENTS: usize = 16;
const HOT_FOR: Duration = Duration::from_secs(2);

/// Sixteen clients on one hot key.
pub(super) fn hot(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("hot", "Sixteen clients on one key");
    let _ = writeln!(
        part.text,
        "INCR of one key by {CLIENTS} clients for {} s, two workers; the least and the most that one client got done, \
         as parts of its share.\n\n| pipeline | least | most | INCR/s |\n|---|---|---|---|",
        HOT_FOR.as_secs()
    );
    for pipeline in [1, 16] {
        let (mut least, mut most, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for _ in options.rounds().take(5) {
            let server = Peer::Ours(2).start(&options.program, &[])?;
            let counts = share(&server, pipeline)?;
            let fair = counts.iter().sum::<u64>() as f64 / CLIENTS as f64;
            least.push(counts.iter().copied().min().unwrap_or(0) as f64 / fair);
            most.push(counts.iter().copied().max().unwrap_or(0) as f64 / fair);
            rates.push(fair * CLIENTS as f64 / HOT_FOR.as_secs_f64());
        }
        let cells = [spread(&least, 2), spread(&most, 2), spread(&rates, 0)];
        let _ = writeln!(part.text, "| {pipeline} | {} |", cells.join(" | "));
        let figures = vec![least.clone(), most, rates];
        let row = format!("pipeline {pipeline}");
        part.keep("sixteen clients", &["least", "most", "INCR/s"], [row.as_str()].into_iter(), &[figures]);
        let worst = least.iter().copied().fold(f64::INFINITY, f64::min);
        part.goal(&format!("pipeline of {pipeline}: least / share"), "≥ 0.5", worst, |part| part >= 0.5);
    }
    Ok(part)
}

/// Returns the number of completed commands of each client.
fn share(server: &Server, pipeline: usize) -> Result<Vec<u64>, String> {
    let over = AtomicBool::new(false);
    let clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let over = &over;
                scope.spawn(move || {
                    let mut done = 0;
                    while !over.load(Ordering::Relaxed) {
                        (0..pipeline).for_each(|_| client.add(&[b"INCR", b"hot"]));
                        client.exchange(pipeline, |_, _| {})?;
                        done += pipeline as u64;
                    }
                    Ok::<u64, String>(done)
                })
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < HOT_FOR {
            std::thread::sleep(HOT_FOR.saturating_sub(start.elapsed()));
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a client panicked")?).collect()
    })
}
