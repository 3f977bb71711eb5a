//! What a thousand users cost a command.

use std::fmt::Write as _;

use super::scaled;
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::report::{Options, Part, cpu_in_turn};
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
    let measure =
        |(server, has_users): &(Server, bool), row: usize| cpu_of(server, *has_users, options, ROWS[row], commands);
    let results = cpu_in_turn(options.rounds(), &ROWS, &servers, |(server, _)| server.peer.name(), measure)?;
    let _ = writeln!(
        part.text,
        "{commands} commands of 50 connections in pipelines of {PIPELINE}: of the first user, who may do everything, on a server \
         without others; and of one of {USERS} users with the rules `{}`.\n",
        RULES[2..].join(" ")
    );
    let programs = PEERS.map(|peer| (peer.name(), peer == Peer::Ours));
    let columns = ["one user".into(), format!("{USERS} users")];
    part.costs(&programs, &columns, &ROWS, &results, (&format!("{USERS} users / one"), 1.03));
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
