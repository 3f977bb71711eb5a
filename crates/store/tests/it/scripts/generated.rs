//! Random scripts, for which the replies and the resulting keys of both servers must be equal.
//!
//! A difference is reduced to a minimal script, and printed with its seed. `SLUICEGATE_SEED` sets the seed,
//! `SLUICEGATE_SCRIPTS` the number of scripts.

use super::both::{Both, Said};
use super::grammar::{BEGIN, Script, Writer};
use super::number;
use crate::Random;

/// The number of scripts between two comparisons of the keys.
const ROUND: usize = 4;
/// The maximum number of attempts to reduce a script.
const TRIES: usize = 3_000;

/// A difference between the servers.
struct Difference {
    what: String,
    /// The number of scripts of the round that had run by then.
    ran: usize,
}

/// Runs scripts on an empty store.
fn run(both: &mut Both, protocol: u8, scripts: &[Script]) -> Option<Difference> {
    both.begin(protocol);
    let mut requests: Vec<Vec<u8>> = BEGIN.iter().map(|line| format!("{line}\r\n").into_bytes()).collect();
    requests.extend(scripts.iter().map(Script::request));
    let said: Vec<Said> = both.send(&requests).split_off(BEGIN.len());
    if let Some(at) = said.iter().position(|said| !said.is_same()) {
        return Some(Difference { what: said[at].to_string(), ran: at + 1 });
    }
    let [theirs, ours] = both.keyspace();
    (theirs != ours).then(|| Difference { what: format!("  redis: {theirs}  ours: {ours}"), ran: scripts.len() })
}

/// Reduces the scripts to the smallest sequence that still shows a difference.
fn shrink(both: &mut Both, protocol: u8, mut scripts: Vec<Script>, mut found: Difference) -> (Vec<Script>, Difference) {
    let mut tries = 0;
    'smaller: while tries < TRIES {
        scripts.truncate(found.ran);
        let fewer = (0..scripts.len()).map(|at| [&scripts[..at], &scripts[at + 1..]].concat());
        let shorter = (0..scripts.len()).flat_map(|at| {
            let (before, after) = (&scripts[..at], &scripts[at + 1..]);
            scripts[at].smaller().into_iter().map(move |script| [before, &[script], after].concat())
        });
        for candidate in fewer.chain(shorter).collect::<Vec<_>>() {
            tries += 1;
            if !candidate.is_empty()
                && let Some(difference) = run(both, protocol, &candidate)
            {
                (scripts, found) = (candidate, difference);
                continue 'smaller;
            }
        }
        break;
    }
    (scripts, found)
}

/// Prints the scripts of the round if a server ends or the test fails.
struct Told<'s>(u64, &'s [Script]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.iter().for_each(|script| eprintln!("seed {}: {}\n{}", self.0, script.command, script.body()));
        }
    }
}

/// The number of differences after which a test ends.
const SHOWN: usize = 8;

#[test]
fn random_scripts_give_what_redis_gives() {
    let mut both = Both::start();
    let (first, count) = (number("SLUICEGATE_SEED", 1), number("SLUICEGATE_SCRIPTS", 2_000));
    let (mut text, mut differences) = (String::new(), 0);
    for seed in first..first + count / ROUND as u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let scripts: Vec<Script> = (0..ROUND)
            .map(|_| {
                let size = 3 + random.below(12);
                Writer::script(&mut random, size)
            })
            .collect();
        let protocol = 2 + (seed % 2) as u8;
        let _told = Told(seed, &scripts);
        if let Some(found) = run(&mut both, protocol, &scripts) {
            let (scripts, found) = shrink(&mut both, protocol, scripts.clone(), found);
            text += &format!("seed {seed}, RESP{protocol}:\n");
            for script in &scripts {
                text += &format!("{} {:?} {:?}\n{}\n", script.command, script.keys, script.arguments, script.body());
            }
            text += &format!("{}\n", found.what);
            differences += 1;
            if differences == SHOWN {
                break;
            }
        }
    }
    assert!(text.is_empty(), "{text}");
}
