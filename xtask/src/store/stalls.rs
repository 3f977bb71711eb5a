//! Stall measurements: the CPU time of single-key commands, and the latency of GETs while another command processes
//! millions of elements.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::peer::{Peer, Server, fill};
use crate::connection::Client;
use crate::random::Random;
use crate::report::{Options, Part};
use crate::run::{built, run};

/// The number of keys of the largest database.
const KEYS: usize = 10_000_000;
/// The number of members of the largest set, and of keys that expire within a second.
const ELEMENTS: usize = 5_000_000;
/// The number of members that one SADD adds.
const MEMBERS: usize = 100;
/// The number of keys that the GETs read.
const PROBED: usize = 1_000;
/// The number of connections that send the GETs; several, so that each worker serves some of them.
const PROBES: usize = 4;
/// Time between two GETs.
const PAUSE: Duration = Duration::from_micros(200);
/// The time for which the GETs continue after a command has finished.
const AFTER: Duration = Duration::from_millis(500);
/// The maximum time to wait for the keys to expire.
const EXPIRY_MAX: Duration = Duration::from_secs(60);

/// Measures single-key commands by the CPU clock of the thread that executes them.
pub(super) fn stalls(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("stalls", "Stalls");
    run("cargo", &["build", "--profile", &options.profile, "-p", "sluicegate", "--example", "stalls"])?;
    let program = built(&options.profile).join("examples/stalls");
    let output = Command::new(&program)
        .arg(KEYS.to_string())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{} failed: {}", program.display(), String::from_utf8_lossy(&output.stderr)));
    }
    let _ = writeln!(
        part.text,
        "Execution of single-key commands (SET, GET, INCR, DEL) by the CPU clock of the thread, in µs, in one process \
         with the store: while it grows to {KEYS} keys, half of them are given an expiry, a set of {ELEMENTS} members is \
         deleted, the {ELEMENTS} keys expire within a second, and what they leave is put together. The first row has the same clock around 50 \
         multiplications: what the machine adds. The last one has EVALs of a loop of two million steps, after the first, as far as their caller's thread executes them. One run.\n\n\
         | | commands | longest | above 1 ms | one of a million above |\n|---|---|---|---|---|"
    );
    let (mut worst, mut script, mut expired_ms) = (0.0_f64, f64::NAN, f64::NAN);
    for line in text.lines() {
        println!("{line}");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok());
        match (words[0], number(1), number(2)) {
            ("expired", Some(ms), _) => expired_ms = ms,
            (phase, Some(_), Some(longest)) => {
                let _ = writeln!(part.text, "| {} |", words.join(" | "));
                match phase {
                    "nothing" => {}
                    "scripts" => script = longest,
                    _ => worst = worst.max(longest),
                }
            }
            _ => return Err(format!("{} says {line:?}", program.display())),
        }
    }
    part.goal("longest single-key command by the CPU clock, ms", "≤ 1", worst / 1000.0, |ms| ms <= 1.0);
    part.goal(
        "longest slice of a script on its caller's thread, by the CPU clock, ms",
        "≤ 1",
        script / 1000.0,
        |ms| ms <= 1.0,
    );
    part.goal("5 M keys gone after their last one expired, s", "≤ 1", expired_ms / 1000.0, |s| s <= 1.0);
    Ok(part)
}

/// The latencies of the GETs and the duration of the concurrent command.
struct Waited {
    command_ms: f64,
    longest_ms: f64,
    of_thousand_ms: f64,
    gets: usize,
}

/// Measures GETs of other clients while a long command runs.
pub(super) fn delays(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("delays", "What others wait for");
    let _ = writeln!(
        part.text,
        "GETs of other clients, one each {} µs over {PROBES} connections, while a command over {ELEMENTS} elements runs: \
         the longest, and that above which one of a thousand was, in ms; how long the command took, in s. One run. With \
         two workers the load has no core of its own.\n\n| | {} |\n|---|{}",
        PAUSE.as_micros(),
        PEERS.map(|peer| format!("{}, longest / 99.9 % / command", peer.name())).join(" | "),
        "---|".repeat(PEERS.len())
    );
    let mut columns = Vec::new();
    for peer in PEERS {
        columns.push(of_peer(options, peer)?);
    }
    for (row, (name, _)) in columns[0].iter().enumerate() {
        let cells = columns.iter().map(|column| {
            let Waited { command_ms, longest_ms, of_thousand_ms, .. } = column[row].1;
            format!("{longest_ms:.2} / {of_thousand_ms:.2} / {:.2}", command_ms / 1e3)
        });
        let _ = writeln!(part.text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    for (peer, column) in PEERS.iter().zip(&columns).skip(1) {
        let longest = |names: &[&str]| {
            let rows = column.iter().filter(|(name, _)| names.contains(&name.as_str()));
            rows.map(|(_, waited)| waited.longest_ms).fold(0.0, f64::max)
        };
        let goal = format!("{}: longest GET beside SMEMBERS, SORT or KEYS, ms", peer.name());
        part.goal(&goal, "≤ 5", longest(&["SMEMBERS", "SORT", "KEYS"]), |ms| ms <= 5.0);
    }
    Ok(part)
}

const PEERS: [Peer; 3] = [Peer::Redis, Peer::Ours(1), Peer::Ours(2)];

fn of_peer(options: &Options, peer: Peer) -> Result<Vec<(String, Waited)>, String> {
    let server = peer.start(&options.program, &[])?;
    let mut client = server.client()?;
    let set = |key: String, words: &[&[u8]]| {
        let mut all = vec![b"SET".to_vec(), key.into_bytes(), vec![b'v'; 32]];
        all.extend(words.iter().map(|word| word.to_vec()));
        all
    };
    fill(&mut client, PROBED, |n| set(format!("stays:{n:06}"), &[]))?;
    fill(&mut client, ELEMENTS / MEMBERS, |n| {
        let mut words = vec![b"SADD".to_vec(), b"large".to_vec()];
        words.extend((0..MEMBERS).map(|member| (n * MEMBERS + member).wrapping_mul(7_919).to_string().into_bytes()));
        words
    })?;
    let mut rows = Vec::new();
    let mut beside = |name: &str, words: &[&str]| -> Result<(), String> {
        let waited = probe(&server, || {
            let start = Instant::now();
            client.add(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
            client.flush()?;
            client.answer()?;
            Ok(start.elapsed())
        })?;
        println!(
            "{:<22} {name:<12} GET at most {:.2} ms (99.9 %: {:.2}) of {}, the command {:.0} ms",
            peer.name(),
            waited.longest_ms,
            waited.of_thousand_ms,
            waited.gets,
            waited.command_ms
        );
        rows.push((name.to_owned(), waited));
        Ok(())
    };
    beside("SMEMBERS", &["SMEMBERS", "large"])?;
    beside("SORT", &["SORT", "large", "LIMIT", "0", "10"])?;
    beside("SUNIONSTORE", &["SUNIONSTORE", "other", "large"])?;
    beside("SPOP", &["SPOP", "other", "2500000"])?;
    beside("ZUNIONSTORE", &["ZUNIONSTORE", "sorted", "1", "large"])?;
    beside("ZREMRANGE…", &["ZREMRANGEBYRANK", "sorted", "0", "-2"])?;
    beside("DEL", &["DEL", "large"])?;

    let mut client = server.client()?;
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as usize;
    let expiry_ms = now_ms() + 60_000;
    fill(&mut client, ELEMENTS, |n| {
        let at = (expiry_ms + n % 1_000).to_string();
        set(format!("key:{n:012}"), &[b"PXAT", at.as_bytes()])
    })?;
    let mut keys = server.client()?;
    let waited = probe(&server, || {
        let start = Instant::now();
        keys.add(&[b"KEYS", b"*7"]);
        keys.flush()?;
        keys.answer()?;
        Ok(start.elapsed())
    })?;
    println!(
        "{:<22} KEYS         GET at most {:.2} ms, the command {:.0} ms",
        peer.name(),
        waited.longest_ms,
        waited.command_ms
    );
    rows.push(("KEYS".into(), waited));
    let left = expiry_ms.checked_sub(now_ms()).ok_or("the keys expired while they were written")?;
    std::thread::sleep(Duration::from_millis(left as u64));
    let waited = probe(&server, || {
        let start = Instant::now();
        while server.info("expired_keys")? < ELEMENTS as f64 && start.elapsed() < EXPIRY_MAX {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(start.elapsed().saturating_sub(Duration::from_secs(1)))
    })?;
    println!(
        "{:<22} expiry       GET at most {:.2} ms, over after {:.0} ms",
        peer.name(),
        waited.longest_ms,
        waited.command_ms
    );
    rows.push(("5 M keys expire in a second".into(), waited));
    Ok(rows)
}

/// Sends GETs while `work` runs and for [`AFTER`] afterwards. Returns their latencies and the duration of `work`.
fn probe(server: &Server, work: impl FnOnce() -> Result<Duration, String>) -> Result<Waited, String> {
    let is_over = AtomicBool::new(false);
    let mut clients = (0..PROBES).map(|_| server.client()).collect::<Result<Vec<Client>, _>>()?;
    std::thread::scope(|scope| {
        let probing = scope.spawn(|| -> Result<Vec<Duration>, String> {
            let mut times = Vec::new();
            let mut random = Random(7);
            while !is_over.load(Ordering::Relaxed) {
                let key = format!("stays:{:06}", random.below(PROBED));
                let client = &mut clients[random.below(PROBES)];
                let start = Instant::now();
                client.add(&[b"GET", key.as_bytes()]);
                client.exchange(1, |_, _| {})?;
                times.push(start.elapsed());
                std::thread::sleep(PAUSE);
            }
            Ok(times)
        });
        let done = work();
        std::thread::sleep(AFTER);
        is_over.store(true, Ordering::Relaxed);
        let mut times = probing.join().map_err(|_| "the probe failed")??;
        times.sort_unstable();
        let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        Ok(Waited {
            command_ms: done?.as_secs_f64() * 1e3,
            longest_ms: ms(times.last()),
            of_thousand_ms: ms(times.get(times.len() * 999 / 1000)),
            gets: times.len(),
        })
    })
}
