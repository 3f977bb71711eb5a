//! What a thousand users cost a command.

use std::fmt::Write as _;

use super::scaled;
use crate::bench::median;
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::report::{Options, Part, ratios};
use crate::store::peer::fill;

const KEYS: usize = 100_000;
const COMMANDS: usize = 2_000_000;
const PIPELINE: &str = "64";
const USERS: usize = 1_000;
/// The user of the load: the keys that it may read and write, and its commands.
const RULES: [&str; 7] = ["resetpass", ">secret", "on", "~key:*", "-@all", "+@read", "+@write"];

const ROWS: [&str; 3] = ["SET __key__ __data__", "GET __key__", "HSET __key__:h field __data__"];
const PEERS: [Peer; 2] = [Peer::Redis, Peer::Ours];

/// A server with its first user alone, and one with many, of both programs.
pub(super) fn users(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("users", "A thousand users");
    let commands = scaled(options, COMMANDS);
    let mut servers = Vec::new();
    for peer in PEERS {
        for has_users in [false, true] {
            let server = Start { cores: "0", threads: 1, place: Place::Memory, parameters: &[] }.run(peer, options)?;
            server.fill(KEYS)?;
            let mut client = server.client()?;
            // All rows find what they change.
            fill(&mut client, KEYS, |number| {
                [&b"HSET"[..], format!("key:{number}:h").as_bytes(), b"field", b"value"].map(<[u8]>::to_vec).into()
            })?;
            for number in 0..if has_users { USERS } else { 0 } {
                let name = format!("user{number}");
                client.must(&[&["ACL", "SETUSER", &name], &RULES[..]].concat())?;
            }
            servers.push((server, has_users));
        }
    }
    let mut results = vec![vec![Vec::new(); servers.len()]; ROWS.len()];
    for round in 0..options.runs {
        for (row, of_row) in ROWS.iter().zip(&mut results) {
            for ((server, has_users), of_server) in servers.iter().zip(of_row) {
                let cpu_us = cpu_of(server, *has_users, options, row, commands)?;
                println!("run {} {row:<32} {:<14} {cpu_us:.4} µs", round + 1, server.peer.name());
                of_server.push(cpu_us);
            }
        }
    }
    let _ = writeln!(
        part.text,
        "{commands} commands of 50 connections in pipelines of {PIPELINE}: of the first user, who may do everything, on a server \
         without others; and of one of {USERS} users with the rules `{}`.\n",
        RULES[2..].join(" ")
    );
    for (index, peer) in PEERS.into_iter().enumerate() {
        let columns = ["one user".to_owned(), format!("{USERS} users")];
        let of_peer: Vec<Vec<Vec<f64>>> = results.iter().map(|row| row[2 * index..2 * index + 2].to_vec()).collect();
        part.table(&format!("{}, CPU µs per command", peer.name()), &columns, ROWS.into_iter(), &of_peer);
        part.text.push('\n');
        if peer == Peer::Ours {
            for (row, of_row) in ROWS.iter().zip(&of_peer) {
                let ratio = median(&ratios(of_row));
                part.goal(&format!("{row}, {USERS} users / one"), "≤ 1.03", ratio, |ratio| ratio <= 1.03);
            }
        }
    }
    Ok(part)
}

fn cpu_of(server: &Server, has_users: bool, options: &Options, command: &str, commands: usize) -> Result<f64, String> {
    let (count, key_max, name) = (commands.to_string(), (KEYS - 1).to_string(), format!("user{}", USERS / 2));
    let mut words = vec!["-n", &count, "-P", PIPELINE, "--key-max", &key_max];
    if has_users {
        words.extend(["--user", &name, "--password", "secret"]);
    }
    words.push(command);
    let before = server.cpu_us();
    server.load(options, &words)?;
    Ok((server.cpu_us() - before) / commands as f64)
}
