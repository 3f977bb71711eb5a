//! What others wait for during saves and rewrites, and how much memory these take.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::peer::{KEYS, Loaded, Peer, Place, Server, Start, info, scaled, wait_for_rest};
use crate::bench::{median, spread};
use crate::connection::Client;
use crate::report::{Options, Part, ratios};

/// The time of a run, and what precedes it.
const SECONDS: &str = "8";
const WARMUP: Duration = Duration::from_millis(500);
const CONNECTIONS: &str = "50";
/// The time between two looks at a save that runs.
const LOOKS_EACH: Duration = Duration::from_millis(20);
/// The old values that a save of ours may keep in memory.
const BUDGET: f64 = (64 << 20) as f64;
/// The size of the large list, and of its elements.
const LIST_BYTES: usize = 1 << 30;
const ELEMENT_BYTES: usize = 1 << 10;
/// Time between two commands of the clients of the large list.
const PAUSE: Duration = Duration::from_millis(1);

/// The most commands a second of the load, with which it takes half of its core: beyond that, a pause of the machine shows
/// as long queues of the load.
const RATE_MAX: f64 = 40_000.0;

const PEERS: [Peer; 2] = [Peer::Redis, Peer::Ours];

/// Saves, or rewrites of the append-only file, one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Save,
    Rewrite,
}

impl Work {
    fn command(self) -> &'static str {
        match self {
            Work::Save => "BGSAVE",
            Work::Rewrite => "BGREWRITEAOF",
        }
    }

    fn parameters(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Work::Save => &[],
            // By itself it would begin while nothing is to be measured.
            Work::Rewrite => &[("appendonly", "yes"), ("auto-aof-rewrite-percentage", "0")],
        }
    }
}

/// What was seen beside saves.
#[derive(Default)]
struct Seen {
    saves: f64,
    longest_s: f64,
    /// The most memory of the server, and what its child copied.
    resident: f64,
    copied: f64,
}

pub(super) fn save(options: &Options) -> Result<Part, String> {
    beside(options, Part::new("save", "Saves under half load"), Work::Save)
}

pub(super) fn rewrite(options: &Options) -> Result<Part, String> {
    beside(options, Part::new("rewrite", "Rewrites under half load"), Work::Rewrite)
}

fn beside(options: &Options, mut part: Part, work: Work) -> Result<Part, String> {
    let keys = scaled(options, KEYS);
    let start = Start { cores: "0-1", threads: 1, place: Place::Memory, parameters: work.parameters() };
    let mut servers = Vec::new();
    for peer in PEERS {
        let server = start.run(peer, options)?;
        server.fill(keys)?;
        servers.push(server);
    }
    let key_max = (keys - 1).to_string();
    let load = |server: &Server, how: &[&str]| -> Result<Loaded, String> {
        let mut words = vec!["-c", CONNECTIONS, "-w", "500ms", "--key-max", &key_max];
        words.extend(how);
        words.extend(["SET __key__ __data__", "GET __key__"]);
        server.load(options, &words)
    };
    let mut rates = Vec::new();
    for server in &servers {
        let highest = load(server, &["-d", "3"])?.rate;
        println!("{:<14} {highest:.0} commands a second at most", server.peer.name());
        rates.push(format!("{:.0}", (highest / 2.0).min(RATE_MAX)));
    }
    // `[row][peer][run]`.
    let rows = ["p50 without", "p50", "p99 without", "p99", "p99.9 without", "p99.9", "longest without", "longest"];
    let mut results = vec![vec![Vec::new(); PEERS.len()]; rows.len()];
    let mut growths = vec![vec![Vec::new(); PEERS.len()]; 3];
    for round in options.rounds() {
        for (index, (server, rate)) in servers.iter().zip(&rates).enumerate() {
            let how = ["-d", SECONDS, "-r", rate, "--arrivals", "exponential"];
            let without = load(server, &how)?;
            let before = server.resident()?;
            let (with, seen) = beside_saves(server, work, || load(server, &how))?;
            let pairs = [
                [without.p50_ms, with.p50_ms],
                [without.p99_ms, with.p99_ms],
                [without.p999_ms, with.p999_ms],
                [without.max_ms, with.max_ms],
            ];
            println!(
                "run {} {:<14} p50, p99, p99.9, longest in ms, without and with: {pairs:.3?}; {} in at most {:.1} s",
                round + 1,
                server.peer.name(),
                seen.saves,
                seen.longest_s
            );
            results.iter_mut().zip(pairs.as_flattened()).for_each(|(row, figure)| row[index].push(*figure));
            let grown = seen.resident + seen.copied - before;
            println!("      {:<14} memory of the save: {:.1} MiB of {:.1}", "", grown / MIB, before / MIB);
            let of_run = [seen.longest_s, grown / before * 100.0, (grown - BUDGET) / before * 100.0];
            growths.iter_mut().zip(of_run).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(
        part.text,
        "{keys} keys with values of 32 bytes; SET and GET in turn over {CONNECTIONS} connections, {} commands a second, half of what \
         each server reaches and at most {RATE_MAX}, due at random moments, {SECONDS} s a run, once without and once while \
         {} follow each other. A latency begins when a command was due.\n",
        rates.join(" and "),
        work.command()
    );
    let columns = PEERS.map(|peer| peer.name().to_owned());
    part.table("ms", &columns, rows.into_iter(), &results);
    part.text.push('\n');
    let rows = ["duration, s", "memory, %", "memory beyond the budget of old values, %"];
    part.table("of one", &columns, rows.into_iter(), &growths);
    let added: Vec<f64> = results[4][1].iter().zip(&results[5][1]).map(|(without, with)| with - without).collect();
    part.goal("p99.9 with, minus without, ms", "≤ 1", median(&added), |ms| ms <= 1.0);
    part.goal("p99.9 with, ours / redis-server's", "≤ 0.2", median(&ratios(&results[5])), |ratio| ratio <= 0.2);
    let mut client = servers[1].client()?;
    for (name, goal) in [
        ("rdb_longest_cut_us", "longest time of a closed gate, counted by the server, ms"),
        ("rdb_longest_lock_cpu_us", "longest processor time of a locked stripe, counted by the server, ms"),
        ("rdb_longest_lock_us", "longest time of a locked stripe by the clock, counted by the server, ms"),
    ] {
        let longest_us = info(&mut client, "persistence", name)?.unwrap_or(f64::NAN);
        part.goal(goal, "≤ 1", longest_us / 1000.0, |ms| ms <= 1.0);
    }
    let most = growths[2][1].iter().copied().fold(0.0, f64::max);
    part.goal("memory beyond the budget, %", "≤ 5", most, |percent| percent <= 5.0);
    Ok(part)
}

const MIB: f64 = (1 << 20) as f64;

/// Runs `during` while saves follow each other, and waits until the last one has ended.
fn beside_saves<R>(
    server: &Server,
    work: Work,
    during: impl FnOnce() -> Result<R, String>,
) -> Result<(R, Seen), String> {
    let is_over = AtomicBool::new(false);
    let (result, seen) = std::thread::scope(|scope| {
        let saving = scope.spawn(|| follow_each_other(server, work, &is_over));
        let result = during();
        is_over.store(true, Ordering::Relaxed);
        (result, saving.join().unwrap_or_else(|_| Err("the saves failed".into())))
    });
    Ok((result?, seen?))
}

fn follow_each_other(server: &Server, work: Work, is_over: &AtomicBool) -> Result<Seen, String> {
    let mut client = server.client()?;
    let mut seen = Seen::default();
    std::thread::sleep(WARMUP);
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        client.must(&[work.command()])?;
        loop {
            let text = client.must(&["INFO", "persistence"])?;
            seen.resident = seen.resident.max(server.resident()?);
            if !text.contains("rdb_bgsave_in_progress:1") && !text.contains("aof_rewrite_in_progress:1") {
                break;
            }
            std::thread::sleep(LOOKS_EACH);
        }
        seen.longest_s = seen.longest_s.max(start.elapsed().as_secs_f64());
        seen.saves += 1.0;
        if !wait_for_rest(&mut client)? {
            return Err(format!("{}: {} failed", server.peer.name(), work.command()));
        }
        let copied = if work == Work::Save { "rdb_last_cow_size" } else { "aof_last_cow_size" };
        if server.peer != Peer::Ours {
            seen.copied = seen.copied.max(info(&mut client, "persistence", copied)?.unwrap_or(0.0));
        }
    }
    Ok(seen)
}

/// The longest waits of clients beside a save of a large list, in ms.
struct Waits {
    /// Of one that pushes to the list.
    pushes: f64,
    /// Of one whose script writes to the list and to another key.
    scripts: f64,
    /// Of one that reads the other key.
    reads: f64,
}

/// A list of 1 GiB among the keys.
pub(super) fn list(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("list", "A large list among the keys");
    let keys = scaled(options, KEYS);
    let elements = scaled(options, LIST_BYTES / ELEMENT_BYTES);
    let start = Start { cores: "0-1", threads: 1, place: Place::Memory, parameters: &[] };
    let mut servers = Vec::new();
    for peer in PEERS {
        let server = start.run(peer, options)?;
        server.fill(keys)?;
        let element = vec![b'e'; ELEMENT_BYTES];
        crate::store::peer::fill(&mut server.client()?, elements, |_| {
            vec![b"RPUSH".to_vec(), b"list".to_vec(), element.clone()]
        })?;
        servers.push(server);
    }
    let rows = ["RPUSH to the list", "a script that writes to it and another key", "GET of that key"];
    let mut results = vec![vec![Vec::new(); PEERS.len()]; rows.len()];
    for round in options.rounds() {
        for (index, server) in servers.iter().enumerate() {
            let waits = beside_list(server)?;
            let figures = [waits.pushes, waits.scripts, waits.reads];
            println!("run {} {:<14} RPUSH, script, GET at most: {figures:.2?} ms", round + 1, server.peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(
        part.text,
        "{keys} keys and a list of {} MiB in elements of {ELEMENT_BYTES} bytes: the longest wait of three clients with a command \
         each ms, during a save.\n",
        (elements * ELEMENT_BYTES) >> 20
    );
    part.table("ms", &PEERS.map(|peer| peer.name().to_owned()), rows.into_iter(), &results);
    for (row, of_row) in rows.iter().zip(&results) {
        part.goal(&format!("longest wait of {row}, ms (median)"), "≤ 100", median(&of_row[1]), |ms| ms <= 100.0);
    }
    let _ = writeln!(part.text, "\nOurs, RPUSH: {} ms.", spread(&results[0][1], 1));
    Ok(part)
}

fn beside_list(server: &Server) -> Result<Waits, String> {
    const SCRIPT: &[u8] = b"redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('SET', KEYS[2], ARGV[1])";
    let commands: [&[&[u8]]; 3] = [
        &[b"RPUSH", b"list", b"pushed"],
        &[b"EVAL", SCRIPT, b"2", b"list", b"beside", b"pushed"],
        &[b"GET", b"beside"],
    ];
    let is_over = AtomicBool::new(false);
    let mut client = server.client()?;
    wait_for_rest(&mut client)?;
    let longest = std::thread::scope(|scope| {
        let clients: Vec<_> =
            commands.iter().map(|words| scope.spawn(|| longest_ms(server.client()?, words, &is_over))).collect();
        std::thread::sleep(WARMUP);
        let saved = client.must(&["BGSAVE"]).and_then(|_| wait_for_rest(&mut client));
        std::thread::sleep(WARMUP);
        is_over.store(true, Ordering::Relaxed);
        let longest = clients.into_iter().map(|client| client.join().unwrap_or_else(|_| Err("a client failed".into())));
        let longest: Result<Vec<f64>, String> = longest.collect();
        saved.and(longest)
    })?;
    Ok(Waits { pushes: longest[0], scripts: longest[1], reads: longest[2] })
}

/// Sends a command again and again, and returns the longest time to its reply, in ms.
fn longest_ms(mut client: Client, words: &[&[u8]], is_over: &AtomicBool) -> Result<f64, String> {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        client.add(words);
        client.exchange(1, |_, _| {})?;
        longest = longest.max(start.elapsed());
        std::thread::sleep(PAUSE);
    }
    Ok(longest.as_secs_f64() * 1e3)
}
