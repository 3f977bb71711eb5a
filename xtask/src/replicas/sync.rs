//! What writers wait for during the full sync of a replica.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::{KEYS, is_only_full_sync, scaled, try_follow, wait_in_step};
use crate::bench::median;
use crate::durable::peer::{Loaded, Peer, Place, Start};
use crate::random::Random;
use crate::report::{Options, Part};
use crate::store::peer::fill;

const VALUE_BYTES: usize = 1_000;
/// Writes a second, the bytes of each, and the connections that they come by.
const RATE: &str = "20000";
const WRITTEN_BYTES: &str = "100";
const CONNECTIONS: &str = "50";
/// The time of a run without a sync of [`KEYS`] keys, which is about that of the sync, and what precedes the sync.
const SECONDS: usize = 5;
const WARMUP: Duration = Duration::from_millis(500);
/// The time after a sync in which no other one may follow.
const BEHIND: Duration = Duration::from_secs(1);

const MASTERS: [Peer; 3] = [Peer::Redis, Peer::Ours, Peer::Valkey];

pub(super) fn sync(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("sync", "A full sync under load");
    let keys = scaled(options, KEYS);
    let rows = ["time of the sync, s", "p99 without, ms", "p99, ms", "p99.9 without, ms", "p99.9, ms", "longest, ms"];
    let mut results = vec![vec![Vec::new(); MASTERS.len()]; rows.len()];
    let mut loops = [0; MASTERS.len()];
    for round in options.rounds() {
        for (index, peer) in MASTERS.into_iter().enumerate() {
            let measured = match measure(options, peer, keys, Limit::Default)? {
                None if peer == Peer::Ours => return Err("a second full sync began".into()),
                None => {
                    println!("run {} {:<14} a second full sync began; again without a limit", round + 1, peer.name());
                    loops[index] += 1;
                    measure(options, peer, keys, Limit::None)?
                }
                measured => measured,
            };
            let (time_s, without, with) = measured.ok_or("a second full sync began without a limit, too")?;
            let figures = [time_s, without.p99_ms, with.p99_ms, without.p999_ms, with.p999_ms, with.max_ms];
            println!("run {} {:<14} {rows:?}: {figures:.3?}", round + 1, peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(
        part.text,
        "{keys} keys with values of {VALUE_BYTES} bytes; {RATE} SETs of {WRITTEN_BYTES} bytes a second over {CONNECTIONS} \
         connections, due at random moments, for {} s without a replica, and for as long as Valkey 8.1 becomes one by \
         a sync without files. The master has core 0 alone, the replica core 1, as if it were on another machine; there the \
         load comes first. A latency begins when a command was due.\n",
        scaled(options, SECONDS)
    );
    for (peer, loops) in MASTERS.iter().zip(loops) {
        let _ = match loops {
            0 => writeln!(part.text, "{}: each sync was the only one.", peer.name()),
            _ => writeln!(
                part.text,
                "{}: in {loops} runs the replica's output passed the default `client-output-buffer-limit`, the master closed the \
                 link and a second full sync began; these were repeated without that limit.",
                peer.name()
            ),
        };
    }
    part.text.push('\n');
    part.table("", &MASTERS.map(|peer| peer.name().to_owned()), rows.into_iter(), &results);
    let added: Vec<f64> = results[3][1].iter().zip(&results[4][1]).map(|(without, with)| with - without).collect();
    part.goal("p99.9 with, minus without, ms", "≤ 1", median(&added), |ms| ms <= 1.0);
    Ok(part)
}

/// A master's limit of what waits for a replica, beyond which it closes the link.
#[derive(PartialEq)]
enum Limit {
    Default,
    None,
}

/// Returns the time of the sync in seconds, and what the load saw without and with it; nothing if a second full sync began.
fn measure(options: &Options, peer: Peer, keys: usize, limit: Limit) -> Result<Option<(f64, Loaded, Loaded)>, String> {
    let start = |cores, parameters| Start { cores, threads: 1, place: Place::Memory, parameters };
    let master = start("0", &[("repl-diskless-sync", "yes"), ("repl-diskless-sync-delay", "0")]).run(peer, options)?;
    if limit == Limit::None {
        master.client()?.must(&["CONFIG", "SET", "client-output-buffer-limit", "replica 0 0 0"])?;
    }
    fill(&mut master.client()?, keys, |number| {
        let mut random = Random(number as u64);
        let words: String = (0..VALUE_BYTES.div_ceil(16)).map(|_| format!("{:016x}", random.next())).collect();
        vec![b"SET".to_vec(), format!("key:{number}").into_bytes(), words.as_bytes()[..VALUE_BYTES].to_vec()]
    })?;
    let replica = start("1", &[("repl-diskless-load", "on-empty-db")]).run(Peer::Valkey, options)?;
    let seconds = scaled(options, SECONDS).to_string();
    let key_max = (keys - 1).to_string();
    let how = |time| {
        let words = ["-c", CONNECTIONS, "-r", RATE, "--arrivals", "exponential", "-w", "500ms", "-d", time];
        [&words[..], &["--data-size", WRITTEN_BYTES, "--key-max", &key_max, "SET __key__ __data__"]].concat()
    };
    let without = master.load(options, &how(&seconds))?;
    let load = master.begin_load(options, &how("1h"))?;
    // The warm-up of the load, too.
    std::thread::sleep(2 * WARMUP);
    let begun = Instant::now();
    let followed = try_follow(&replica, &master)?;
    let time_s = begun.elapsed().as_secs_f64();
    let with = load.end()?;
    if !followed {
        return Ok(None);
    }
    // Under load, too, it is the last one.
    master.load(options, &["-d", "1", "-r", RATE, "--key-max", &key_max, "SET __key__ __data__"])?;
    std::thread::sleep(BEHIND);
    wait_in_step(&master)?;
    let (mut there, mut here) = (master.client()?, replica.client()?);
    if !is_only_full_sync(&mut there)? {
        return Ok(None);
    }
    let sizes = [&mut there, &mut here].map(|client| client.must(&["DBSIZE"]));
    match sizes {
        [Ok(there), Ok(here)] if there == here => Ok(Some((time_s, without, with))),
        _ => Err(format!("the numbers of keys of {} and its replica: {sizes:?}", peer.name())),
    }
}
