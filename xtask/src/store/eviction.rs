//! Hit rates of a full cache, compared with redis-server's.
//!
//! 700,000 values of 1 KiB are written into 512 MB, in a fixed order, a hundred at a time. Between these batches as
//! many keys are read, chosen by Zipf's law among all 700,000; a read of a key that was written before and does not
//! exist counts as a miss. In the second phase the store is used as a cache: a key that a read misses is written again.
//! Both phases have the same length for all servers.

use std::fmt::Write as _;

use super::peer::Peer;
use crate::bench::{median, spread};
use crate::connection::Answer;
use crate::random::Random;
use crate::report::{Options, Part};

const KEYS: usize = 700_000;
const LIMIT: f64 = (512 << 20) as f64;
/// The number of commands in flight.
const BATCH: usize = 100;
/// The number of reads of the second phase.
const READS: usize = 1_400_000;
/// The exponent of Zipf's law.
const SKEW: f64 = 0.99;
/// Hit rates hardly vary between runs, so fewer runs suffice.
const RUNS_MAX: usize = 3;
const POLICIES: [&str; 2] = ["allkeys-lru", "allkeys-lfu"];

struct Outcome {
    refused: usize,
    /// The hit rates: while filling, and afterwards.
    filling: f64,
    cache: f64,
    /// The maximum memory in use, relative to the limit.
    used: f64,
    resident: f64,
    cpu_s: f64,
}

pub(super) fn eviction(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("eviction", "Eviction");
    let _ = writeln!(
        part.text,
        "{} alternating runs: {KEYS} SETs of 1 KiB into 512 MB, {BATCH} in flight, reads between by Zipf's law ({SKEW}); then {READS} more \
         reads, where what misses is written again. Hits of all reads of keys that were written once.\n\n\
         | | hits while filling | hits as a cache | refused writes | used / limit | RSS / limit | CPU s |\n\
         |---|---|---|---|---|---|---|",
        options.runs.min(RUNS_MAX)
    );
    for policy in POLICIES {
        let mut of_peer = Vec::new();
        let peers = [Peer::Redis, Peer::Ours(1)];
        let mut results: Vec<Vec<Outcome>> = peers.iter().map(|_| Vec::new()).collect();
        for run in options.rounds().take(RUNS_MAX) {
            for (peer, outcomes) in peers.iter().zip(&mut results) {
                let outcome = measure(options, *peer, policy, run as u64)?;
                println!(
                    "{:<14} {policy}: {:.4} {:.4} of reads hit, {} refused, {:.3} of the limit",
                    peer.name(),
                    outcome.filling,
                    outcome.cache,
                    outcome.refused,
                    outcome.used
                );
                outcomes.push(outcome);
            }
        }
        for (peer, outcomes) in peers.iter().zip(&results) {
            let each = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).collect::<Vec<_>>();
            let refused: usize = outcomes.iter().map(|outcome| outcome.refused).sum();
            let figures: [fn(&Outcome) -> f64; 5] =
                [|o| o.filling, |o| o.cache, |o| o.used, |o| o.resident, |o| o.cpu_s];
            let row = format!("{}, {policy}", peer.name());
            let columns = ["hits while filling", "hits as a cache", "used / limit", "RSS / limit", "CPU s"];
            part.keep("eviction", &columns, [row.as_str()].into_iter(), &[figures.map(each).to_vec()]);
            let _ = writeln!(
                part.text,
                "| {}, {policy} | {} | {} | {refused} | {} | {} | {} |",
                peer.name(),
                spread(&each(|outcome| outcome.filling), 4),
                spread(&each(|outcome| outcome.cache), 4),
                spread(&each(|outcome| outcome.used), 3),
                spread(&each(|outcome| outcome.resident), 3),
                spread(&each(|outcome| outcome.cpu_s), 1),
            );
            of_peer.push((median(&each(|o| o.filling)), median(&each(|o| o.cache)), refused, each(|o| o.used)));
        }
        let (theirs, ours) = (&of_peer[0], &of_peer[1]);
        part.goal(&format!("{policy}: hits while filling, ours / Redis's"), "≥ 1", ours.0 / theirs.0, |ratio| {
            ratio >= 1.0
        });
        part.goal(&format!("{policy}: hits as a cache, ours / Redis's"), "≥ 1", ours.1 / theirs.1, |ratio| {
            ratio >= 1.0
        });
        part.goal(&format!("{policy}: refused writes"), "0", ours.2 as f64, |refused| refused == 0.0);
        let most = ours.3.iter().copied().fold(0.0, f64::max);
        part.goal(&format!("{policy}: used / limit"), "0.98 to 1.02", most, |used| (0.98..=1.02).contains(&used));
    }
    Ok(part)
}

fn measure(options: &Options, peer: Peer, policy: &str, seed: u64) -> Result<Outcome, String> {
    let server = peer.start(&options.program, &[("maxmemory", "512mb"), ("maxmemory-policy", policy)])?;
    let mut client = server.client()?;
    let mut random = Random(seed);
    let zipf = Zipf::new(KEYS);
    // The rank of a key in Zipf's law is independent of the order in which keys are written.
    let key_of = |rank: usize| (rank.wrapping_mul(486_187_739) + 12_345) % KEYS;
    let name = |key: usize| format!("object:{key:09}").into_bytes();
    let value = vec![b'v'; 1024];
    let mut refused = 0;
    let mut written = vec![false; KEYS];
    let (mut hits, mut reads, mut used) = (0_usize, 0_usize, 0.0_f64);
    let mut order: Vec<usize> = (0..KEYS).collect();
    for at in (1..KEYS).rev() {
        order.swap(at, random.below(at + 1));
    }
    for (batch, keys) in order.chunks(BATCH).enumerate() {
        for key in keys {
            client.add(&[b"SET", &name(*key), &value]);
            written[*key] = true;
        }
        client.exchange(keys.len(), |_, answer| refused += usize::from(answer == Answer::Error))?;
        let wanted: Vec<usize> = (0..BATCH).map(|_| key_of(zipf.draw(&mut random))).collect();
        wanted.iter().for_each(|key| client.add(&[b"GET", &name(*key)]));
        client.exchange(BATCH, |index, answer| {
            if written[wanted[index]] {
                reads += 1;
                hits += usize::from(answer == Answer::Other);
            }
        })?;
        if batch.is_multiple_of(500) {
            used = used.max(server.info("used_memory")?);
        }
    }
    let filling = hits as f64 / reads as f64;
    let mut hits = 0;
    for batch in 0..READS / BATCH {
        let wanted: Vec<usize> = (0..BATCH).map(|_| key_of(zipf.draw(&mut random))).collect();
        wanted.iter().for_each(|key| client.add(&[b"GET", &name(*key)]));
        let mut missed = Vec::new();
        client.exchange(BATCH, |index, answer| match answer {
            Answer::Other => hits += 1,
            _ => missed.push(wanted[index]),
        })?;
        missed.iter().for_each(|key| client.add(&[b"SET", &name(*key), &value]));
        client.exchange(missed.len(), |_, answer| refused += usize::from(answer == Answer::Error))?;
        if batch.is_multiple_of(500) {
            used = used.max(server.info("used_memory")?);
        }
    }
    Ok(Outcome {
        refused,
        filling,
        cache: f64::from(hits) / READS as f64,
        used: used / LIMIT,
        resident: server.resident()? / LIMIT,
        cpu_s: server.cpu_us() / 1e6,
    })
}

/// Ranks by Zipf's law, from the table of its cumulative sums.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: usize) -> Zipf {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=count)
            .map(|rank| {
                sum += (rank as f64).powf(-SKEW);
                sum
            })
            .collect();
        Zipf(sums)
    }

    fn draw(&self, random: &mut Random) -> usize {
        let at = random.unit() * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1)
    }
}
