//! Bytes per key, compared with redis-server's; and the resident memory after sizes have changed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::peer::{Peer, Server, fill};
use crate::connection::Client;
use crate::random::Random;
use crate::report::{Options, Part};

/// The numbers of keys; tables grow between them, so that the worst case is included.
const COUNTS: [usize; 4] = [1_000_000, 1_400_000, 2_000_000, 2_800_000];
const HASHES: usize = 1_000_000;
const MEMBERS: usize = 1_000_000;

/// The memory of a data set, in bytes.
struct Taken {
    resident: f64,
    used: f64,
}

fn taken(options: &Options, peer: Peer, put: impl Fn(&mut Client) -> Result<(), String>) -> Result<Taken, String> {
    let server = peer.start(&options.program, &[])?;
    let mut client = server.client()?;
    client.must(&["PING"])?;
    let (resident, used) = (server.resident()?, server.info("used_memory")?);
    put(&mut client)?;
    drop(client);
    Ok(Taken { resident: server.resident()? - resident, used: server.info("used_memory")? - used })
}

fn text(text: String) -> Vec<u8> {
    text.into_bytes()
}

/// Measures the bytes of keys, hashes and sorted sets.
pub(super) fn memory(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("memory", "Memory");
    part.text += "Growth of the resident set, and of `used_memory` behind the slash, in bytes. One run each.\n\n\
                  | | redis-server | sluicegate | ratio |\n|---|---|---|---|\n";
    let row = |part: &mut Part, what: &str, per: usize, theirs: Option<&Taken>, ours: &Taken| {
        let cell = |taken: &Taken| format!("{:.1} / {:.1}", taken.resident / per as f64, taken.used / per as f64);
        let ratio = theirs.map_or("".to_owned(), |theirs| format!("{:.2}", ours.resident / theirs.resident));
        let line = format!("| {what} | {} | {} | {ratio} |", theirs.map_or("".to_owned(), cell), cell(ours));
        println!("{line}");
        let _ = writeln!(part.text, "{line}");
    };
    let mut worst = 0.0_f64;
    for count in COUNTS {
        let put = |client: &mut Client| {
            fill(client, count, |n| vec![b"SET".to_vec(), text(format!("key:{n:012}")), vec![b'v'; 32]])
        };
        let theirs = if count == COUNTS[0] { Some(taken(options, Peer::Redis, put)?) } else { None };
        let ours = taken(options, Peer::Ours(1), put)?;
        worst = worst.max(ours.resident / count as f64);
        row(&mut part, &format!("a key of 16 B with 32 B, {count} keys"), count, theirs.as_ref(), &ours);
    }
    part.goal("bytes of a key of 16 B with 32 B, at the worst number of keys", "≤ 85", worst, |bytes| bytes <= 85.0);
    let hashes = |client: &mut Client| {
        fill(client, HASHES, |n| {
            let pairs = [("name", "somebody"), ("age", "42"), ("city", "Rome"), ("visits", "1234"), ("flag", "yes")];
            let mut words = vec![b"HSET".to_vec(), text(format!("user:{n:011}"))];
            pairs.iter().for_each(|(field, value)| words.extend([text((*field).into()), text((*value).into())]));
            words
        })
    };
    let members = |client: &mut Client| {
        fill(client, MEMBERS, |n| {
            let score = n.wrapping_mul(7919) % MEMBERS;
            vec![b"ZADD".to_vec(), b"scores".to_vec(), text(score.to_string()), text(format!("member:{n:09}"))]
        })
    };
    type Put<'a> = &'a dyn Fn(&mut Client) -> Result<(), String>;
    let cases: [(&str, usize, Put<'_>); 2] =
        [("a hash of 5 small fields", HASHES, &hashes), ("a member of one sorted set", MEMBERS, &members)];
    for (what, count, put) in cases {
        let theirs = taken(options, Peer::Redis, put)?;
        match taken(options, Peer::Ours(1), put) {
            Ok(ours) => {
                row(&mut part, &format!("{what}, {count}"), count, Some(&theirs), &ours);
                let ratio = ours.resident / theirs.resident;
                part.goal(&format!("{what}, ours / Redis's"), "≤ 0.8", ratio, |ratio| ratio <= 0.8);
            }
            Err(error) => {
                let _ = writeln!(part.text, "| {what} | {:.1} | {error} | |", theirs.resident / count as f64);
            }
        }
    }
    Ok(part)
}

/// The number of keys in a cycle.
const CYCLE: usize = 2_000_000;
/// The time after which memory is measured.
const SETTLES_IN: Duration = Duration::from_secs(30);

/// Measures the resident memory when sizes change.
pub(super) fn reuse(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("reuse", "Memory that is used again");
    let _ = writeln!(
        part.text,
        "{CYCLE} values of 32 B, a random 90 % deleted, filled up with values of 96 B; RSS over `used_memory`, at once \
         and {} s later. One run.\n\n| | after filling | after deleting | 30 s later | filled up | 30 s later |\n\
         |---|---|---|---|---|---|",
        SETTLES_IN.as_secs()
    );
    for peer in [Peer::Redis, Peer::Ours(1)] {
        let server = peer.start(&options.program, &[])?;
        let mut client = server.client()?;
        let mut cells = Vec::new();
        let mut look = |server: &Server| -> Result<f64, String> {
            let (resident, used) = (server.resident()?, server.info("used_memory")?);
            println!("{:<14} {:.1} MB resident, {:.1} MB used", peer.name(), resident / 1e6, used / 1e6);
            cells.push(format!("{:.2} ({:.0} MB)", resident / used, used / 1e6));
            Ok(resident / used)
        };
        let set = |key: usize, bytes: usize| vec![b"SET".to_vec(), text(format!("key:{key:012}")), vec![b'v'; bytes]];
        fill(&mut client, CYCLE, |n| set(n, 32))?;
        look(&server)?;
        let mut random = Random(1);
        let gone: Vec<usize> = (0..CYCLE).filter(|_| random.below(10) > 0).collect();
        fill(&mut client, gone.len(), |n| vec![b"DEL".to_vec(), text(format!("key:{:012}", gone[n]))])?;
        look(&server)?;
        wait(SETTLES_IN);
        look(&server)?;
        fill(&mut client, gone.len(), |n| set(gone[n], 96))?;
        look(&server)?;
        wait(SETTLES_IN);
        let ratio = look(&server)?;
        let _ = writeln!(part.text, "| {} | {} |", peer.name(), cells.join(" | "));
        if peer != Peer::Redis {
            part.goal("RSS / used memory, 30 s after the cycle", "≤ 1.25", ratio, |ratio| ratio <= 1.25);
        }
    }
    Ok(part)
}

/// Lets the server settle.
fn wait(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::sleep(time.saturating_sub(start.elapsed()));
    }
}
