//! The CPU time of consumer groups.

use std::fmt::Write as _;

use super::peer::{Peer, Place, Server, Start, scaled};
use crate::bench::median;
use crate::connection::{Answer, Client};
use crate::report::{Options, Part, ratios};
use crate::store::peer::fill;

/// The entries of the stream, whose identifiers are `1-0`, `2-0`….
const ENTRIES: usize = 300_000;
const PIPELINE: usize = 16;

const PEERS: [Peer; 2] = [Peer::Redis, Peer::Ours];

/// Commands that go through the whole stream.
const ROWS: [&str; 5] =
    ["XREADGROUP COUNT 1", "XACK of one", "XREADGROUP COUNT 10", "XACK of ten", "XREADGROUP and XACK in turn"];

pub(super) fn groups(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("groups", "Consumer groups");
    let entries = scaled(options, ENTRIES).next_multiple_of(10);
    let mut servers = Vec::new();
    for peer in PEERS {
        let server = Start { cores: "0", threads: 1, place: Place::Memory, parameters: &[] }.run(peer, options)?;
        fill(&mut server.client()?, entries, |number| {
            let id = format!("{}-0", number + 1).into_bytes();
            [b"XADD".to_vec(), b"jobs".to_vec(), id, b"job".to_vec(), vec![b'v'; 32]].into()
        })?;
        servers.push(server);
    }
    let mut results = vec![vec![Vec::new(); PEERS.len()]; ROWS.len()];
    for round in options.rounds() {
        for (index, server) in servers.iter().enumerate() {
            let figures = measure(server, entries)?;
            println!("run {} {:<14} {ROWS:?}: {figures:.3?} µs", round + 1, server.peer.name());
            results.iter_mut().zip(figures).for_each(|(row, figure)| row[index].push(figure));
        }
    }
    let _ = writeln!(part.text, "A stream of {entries} entries, one client with {PIPELINE} commands in flight.\n");
    part.table("CPU µs per command", &PEERS.map(|peer| peer.name().to_owned()), ROWS.into_iter(), &results);
    for (row, of_row) in ROWS.iter().zip(&results) {
        part.goal(&format!("{row}, ours / redis-server's"), "≤ 0.7", median(&ratios(of_row)), |ratio| ratio <= 0.7);
    }
    Ok(part)
}

/// Returns the CPU time of each row, in µs per command.
fn measure(server: &Server, entries: usize) -> Result<[f64; 5], String> {
    let mut client = server.client()?;
    let fresh = |client: &mut Client| -> Result<(), String> {
        client.must(&["XGROUP", "DESTROY", "jobs", "workers"])?;
        client.must(&["XGROUP", "CREATE", "jobs", "workers", "0"])?;
        Ok(())
    };
    let read = |count: &str| {
        ["XREADGROUP", "GROUP", "workers", "one", "COUNT", count, "STREAMS", "jobs", ">"].map(str::to_owned).to_vec()
    };
    let ack = |first: usize, count: usize| {
        let mut words = ["XACK", "jobs", "workers"].map(str::to_owned).to_vec();
        words.extend((first..first + count).map(|number| format!("{}-0", number + 1)));
        words
    };
    let mut figures = Vec::new();
    for count in [1, 10] {
        fresh(&mut client)?;
        let text = count.to_string();
        figures.push(cpu_us(server, &mut client, entries / count, |_| read(&text))?);
        figures.push(cpu_us(server, &mut client, entries / count, |number| ack(number * count, count))?);
    }
    fresh(&mut client)?;
    let in_turn = |number: usize| if number.is_multiple_of(2) { read("1") } else { ack(number / 2, 1) };
    figures.push(cpu_us(server, &mut client, entries * 2, in_turn)?);
    figures.try_into().map_err(|_| "a row is missing".into())
}

/// Sends commands, none of which may fail or find nothing. Returns the server's CPU time per command.
fn cpu_us(
    server: &Server,
    client: &mut Client,
    commands: usize,
    words: impl Fn(usize) -> Vec<String>,
) -> Result<f64, String> {
    let before = server.cpu_us();
    for first in (0..commands).step_by(PIPELINE) {
        let last = (first + PIPELINE).min(commands);
        for number in first..last {
            let words = words(number);
            client.add(&words.iter().map(String::as_bytes).collect::<Vec<_>>());
        }
        let mut refused = 0;
        client.exchange(last - first, |_, answer| refused += usize::from(answer != Answer::Other))?;
        if refused > 0 {
            return Err(format!("{refused} commands were refused, or found nothing"));
        }
    }
    Ok((server.cpu_us() - before) / commands as f64)
}
