//! The two lines of *Leveraging the power of Lua scripting with Dragonfly*, with memtier's own range of keys.
//!
//! A run has a server of its own: the second line makes new lists all the time, and what they cost is part of it.

use std::fmt::Write as _;

use crate::bench::{median, spread};
use crate::durable::peer::{Peer, Place, Server, Start};
use crate::http_self::MEMTIER;
use crate::peers::in_path;
use crate::report::{Options, Part, ratios};
use crate::run::output;

const SECONDS: u32 = 5;

/// The post's script: it pushes the elements of a JSON list to lists and trims them, fifty commands with five keys.
const SCRIPT: &str = "local messages = cjson.decode(ARGV[1]) for _, key in ipairs(KEYS) do \
    for _, message in ipairs(messages) do redis.pcall('LPUSH', key, message) redis.pcall('LTRIM', key, 0, 50) end end \
    return 'OK'";

/// A command line of memtier.
struct Line {
    name: &'static str,
    keys: &'static str,
    threads: &'static str,
    clients: &'static str,
    /// Scripts a second that the post has of Redis and of Dragonfly.
    published: Option<(&'static str, &'static str)>,
}

const LINES: [Line; 3] = [
    Line {
        name: "one connection, five lists",
        keys: "l1 l2 l3 l4 l5",
        threads: "1",
        clients: "1",
        published: Some(("12k", "16k")),
    },
    Line {
        name: "200 connections, any lists",
        keys: ANY,
        threads: "4",
        clients: "50",
        published: Some(("14.5k", "41.5k")),
    },
    Line { name: "50 connections, any lists", keys: ANY, threads: "1", clients: "50", published: None },
];

const ANY: &str = "__key__ __key__ __key__ __key__ __key__";

const PEERS: [Peer; 3] = [Peer::Redis, Peer::Valkey, Peer::Ours];

impl Line {
    /// Returns memtier's words.
    fn words(&self, sha: &str, seconds: u32) -> Vec<String> {
        let mut words = vec![
            format!("--command=EVALSHA {sha} 5 {} '[1,2,3,4,5]'", self.keys),
            "--hide-histogram".to_owned(),
            format!("--test-time={seconds}"),
            "--distinct-client-seed".to_owned(),
        ];
        words.extend(["-t", self.threads, "-c", self.clients, "--pipeline", "5"].map(str::to_owned));
        words
    }
}

/// Scripts a second and CPU µs of the server for each.
type Run = (f64, f64);

/// Runs a line against a server by a generator's first words.
fn run(generator: &[&str], server: &Server, line: &Line, seconds: u32) -> Result<Run, String> {
    let sha = server.client()?.must(&["SCRIPT", "LOAD", SCRIPT])?;
    let (words, port) = (line.words(&sha, seconds), server.port().to_string());
    let mut all = vec!["-c", "1"];
    all.extend(generator);
    all.extend(words.iter().map(String::as_str));
    all.extend(["-s", "127.0.0.1", "-p", &port]);
    let before = server.cpu_us();
    let text = output("taskset", &all).ok_or_else(|| format!("{} failed on {}", generator.join(" "), line.name))?;
    let cpu_us = server.cpu_us() - before;
    let rate = totals(&text).ok_or_else(|| format!("the report of {} has no totals:\n{text}", line.name))?;
    Ok((rate, cpu_us / (rate * f64::from(seconds)).max(1.0)))
}

/// Returns the operations a second of memtier's report.
fn totals(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("Totals"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// `scripts`: memtier's lines.
pub(super) fn scripts(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("scripts", "Leveraging the power of Lua scripting with Dragonfly");
    let seconds = options.seconds(SECONDS);
    let program = options.program.display().to_string();
    let own = [program.as_str(), "bench", "redis"];
    let mut generators: Vec<(&str, &[&str])> = vec![("sluicegate bench redis", &own)];
    if in_path(MEMTIER) {
        generators.push((MEMTIER, &[MEMTIER]));
    }
    let start = Start { cores: "0", threads: 1, place: Place::Memory, parameters: &[] };
    // `[generator and line][server][run]`
    let mut rates = vec![vec![Vec::new(); PEERS.len()]; generators.len() * LINES.len()];
    let mut cpu = rates.clone();
    for round in options.rounds() {
        for (of_generator, (name, generator)) in generators.iter().enumerate() {
            for (of_line, line) in LINES.iter().enumerate() {
                for (index, peer) in PEERS.into_iter().enumerate() {
                    let server = start.run(peer, options)?;
                    let (rate, cpu_us) = run(generator, &server, line, seconds)?;
                    println!(
                        "run {} {name}, {:<28} {:<14} {rate:.0}/s {cpu_us:.2} µs",
                        round + 1,
                        line.name,
                        peer.name()
                    );
                    rates[of_generator * LINES.len() + of_line][index].push(rate);
                    cpu[of_generator * LINES.len() + of_line][index].push(cpu_us);
                }
            }
        }
    }
    part.text += "memtier's command lines, `{sha}` being that of the post's script:\n\n";
    for line in &LINES {
        let _ = writeln!(part.text, "- {}: `memtier_benchmark {}`", line.name, line.words("{sha}", seconds).join(" "));
    }
    let has_memtier = generators.len() > 1;
    let by = if has_memtier { "and by memtier_benchmark itself" } else { "memtier_benchmark is not installed here" };
    let _ = writeln!(
        part.text,
        "\nKeys are drawn of 10,000,000. The servers have one thread on core 0, the load core 1; every run has a new \
         server. Run by `sluicegate bench redis`, which takes these words ({by}). Published: Redis and Dragonfly, on one core \
         and on four.\n"
    );
    let names: Vec<String> = generators
        .iter()
        .flat_map(|(generator, _)| LINES.iter().map(move |line| format!("{}, by {generator}", line.name)))
        .collect();
    part.text += "| scripts a second | Redis, published | Dragonfly, published | redis-server | Valkey 8.1 | sluicegate \
                  |\n|---|---|---|---|---|---|\n";
    for (index, name) in names.iter().enumerate() {
        let (redis, dragonfly) = LINES[index % LINES.len()].published.unwrap_or_default();
        let cells: Vec<String> = rates[index].iter().map(|runs| spread(runs, 0)).collect();
        let _ = writeln!(part.text, "| {name} | {redis} | {dragonfly} | {} |", cells.join(" | "));
    }
    let columns = PEERS.map(Peer::name);
    part.text += "\n| CPU µs per script | redis-server | Valkey 8.1 | sluicegate | / redis-server | / Valkey |\n\
                  |---|---|---|---|---|---|\n";
    for (name, of_row) in names.iter().zip(&cpu) {
        let cells: Vec<String> = of_row.iter().map(|runs| spread(runs, 2)).collect();
        let beside = [0, 1].map(|peer| spread(&to(of_row, peer), 2));
        let _ = writeln!(part.text, "| {name} | {} | {} |", cells.join(" | "), beside.join(" | "));
    }
    part.keep("scripts a second", &columns, names.iter().map(String::as_str), &rates);
    part.keep("CPU µs per script", &columns, names.iter().map(String::as_str), &cpu);
    for (index, name) in names.iter().enumerate().filter(|(index, _)| LINES[index % LINES.len()].keys == ANY) {
        for (peer, wanted) in [(0, 0.22), (1, 0.32)] {
            let goal = format!("CPU per script, {name}, ours / {}", PEERS[peer].name());
            part.goal(&goal, &format!("≤ {wanted}"), median(&to(&cpu[index], peer)), |ratio| ratio <= wanted);
        }
        let rate = median(&to(&rates[index], 0));
        part.goal(&format!("rate, {name}, ours / redis-server"), "≥ 4", rate, |ratio| ratio >= 4.0);
    }
    Ok(part)
}

/// Returns the ratios of ours, the last column, to another column.
fn to(of_row: &[Vec<f64>], column: usize) -> Vec<f64> {
    ratios(&[of_row[column].clone(), of_row[PEERS.len() - 1].clone()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_post() {
        let lines: Vec<String> = LINES.iter().map(|line| line.words("{sha}", 5).join(" ")).collect();
        assert_eq!(
            lines[0],
            "--command=EVALSHA {sha} 5 l1 l2 l3 l4 l5 '[1,2,3,4,5]' --hide-histogram --test-time=5 --distinct-client-seed \
             -t 1 -c 1 --pipeline 5"
        );
        assert!(lines[1].contains("5 __key__ __key__ __key__ __key__ __key__ '") && lines[1].contains("-t 4 -c 50"));
        assert_eq!(totals("Type  Ops/sec\nEvalshas 1 2\nTotals    40881.2   0.0\n"), Some(40881.2));
        assert_eq!(totals("no"), None);
    }
}
