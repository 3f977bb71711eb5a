//! The hot paths in the packaged program and in haproxy, redis-server and Valkey: the figures that no neighbour
//! disturbs.

use std::fmt::Write as _;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant};

use super::paths::{Measurement, PATHS};
use super::{Build, Kind, valgrind};
use crate::bench::machine;
use crate::kept::{Kept, Table};
use crate::release;
use crate::run::{output, root, target};

/// The peers: a column's title, the program, and the words by which it tells its version.
const PEERS: [(&str, Kind, &str, &str); 4] = [
    ("haproxy", Kind::Haproxy, "/usr/sbin/haproxy", "-v"),
    ("haproxy 2.8", Kind::Haproxy, "haproxy-2.8", "-v"),
    ("redis-server", Kind::Redis, "redis-server", "--version"),
    ("Valkey 8.1", Kind::Redis, "valkey-server-8.1", "--version"),
];

/// `bench guard --peers [--program PATH] [--only WORD] [--write | --raw FILE [--within SECONDS]]`: without a path, the
/// program of `cargo xtask release`. `--write` puts the table into docs/benchmarks/instructions.md, `--raw` the counts into a file
/// of the book; after the time of `--within` no further path is counted.
pub(super) fn beside(words: &[&str]) -> Result<(), String> {
    let (mut program, mut only, mut write, mut raw, mut until) = (None, None, false, None, None);
    let began = Instant::now();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().copied().ok_or(format!("{word} wants a value"));
        match *word {
            "--program" => program = Some(PathBuf::from(value()?)),
            "--only" => only = Some(value()?),
            "--write" => write = true,
            "--raw" => raw = Some(PathBuf::from(value()?)),
            "--within" => {
                let seconds = value()?.parse().map_err(|_| "--within wants seconds")?;
                until = Some(began + Duration::from_secs(seconds));
            }
            other => return Err(format!("unknown: {other}")),
        }
    }
    if write && (only.is_some() || until.is_some()) {
        return Err("--write wants all paths, and neither --only nor --within".to_owned());
    }
    valgrind()?;
    let program = program.map_or_else(|| release::program(false), Ok)?;
    let mut ours = Measurement::new(Build::at(program), None)?;
    let mut peers = Vec::new();
    for (_, kind, name, _) in PEERS {
        let build = Build { kind, program: place(name), parse: PathBuf::new() };
        peers.push((kind, Measurement::new(build, None)?));
    }
    let mut table = String::from("| path | sluicegate |");
    PEERS.iter().for_each(|(title, ..)| table.push_str(&format!(" {title} | ratio |")));
    let _ = writeln!(table, "\n|---|---|{}", "---|---|".repeat(PEERS.len()));
    let mut rows = Vec::new();
    for path in PATHS.iter().filter(|path| only.is_none_or(|only| path.name.contains(only))) {
        if until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        let Some(count) = ours.count(path)? else { continue };
        let mut line = format!("| {} | {count} |", path.name);
        let mut cells = vec![vec![count as f64]];
        for (kind, peer) in &mut peers {
            let theirs = if path.is_of(*kind) { peer.count(path)? } else { None };
            cells.push(theirs.map(|theirs| theirs as f64).into_iter().collect());
            let _ = match theirs {
                Some(theirs) => write!(line, " {theirs} | {:.2} |", count as f64 / theirs.max(1) as f64),
                None => write!(line, " | |"),
            };
        }
        println!("{line}");
        let _ = writeln!(table, "{line}");
        rows.push((path.name.to_owned(), cells));
    }
    if let Some(path) = raw {
        let columns = std::iter::once("sluicegate").chain(PEERS.map(|peer| peer.0)).map(str::to_owned).collect();
        let text = format!(
            "User instructions by callgrind: the difference of a run with few and one with many repetitions, of the thread that \
             does the work.\n\n{table}"
        );
        let kept = Kept {
            text,
            absent: None,
            runs: 1,
            took_s: began.elapsed().as_secs_f64(),
            tables: vec![Table { what: "instructions".to_owned(), columns, rows }],
            ..Kept::absent("Instructions", "cargo xtask bench guard --peers".to_owned(), machine(), String::new())
        };
        return std::fs::write(&path, kept.to_json()).map_err(|error| format!("{}: {error}", path.display()));
    }
    if !write {
        return Ok(());
    }
    let versions = PEERS.map(|(_, _, name, word)| version(&place(name), word));
    let text = format!(
        "# Instructions beside the peers\n\n`cargo xtask bench guard --peers --write` counts user instructions by \
         callgrind: the difference of a run with few and one with many repetitions, of the thread that does the work, \
         with one event in a turn of the event loop. Five rules, the Lua action, store-call, the stick table and the \
         limit are what they add to a redirection. Pipelines have 16 commands. Sluicegate is the program of `cargo \
         xtask release`.\n\n{}.\n\n{table}",
        versions.join("; ")
    );
    let file = root().join("docs/benchmarks/instructions.md");
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns a peer's path: a program of `target/peers/bin`, or one of the distribution.
fn place(name: &str) -> PathBuf {
    let newer = target().join("peers/bin").join(name);
    if newer.exists() { newer } else { PathBuf::from(name) }
}

fn version(program: &FilePath, word: &str) -> String {
    let text = output(&program.display().to_string(), &[word]).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}
