//! The four lines of *HAProxy, Lua & Redis: Connection pool*.

use std::fmt::Write as _;

use crate::bench::{Bench, Sample, each, find, manner, median, spread, stolen};
use crate::report::{Options, Part};

const SECONDS: u32 = 3;

/// A line of the post: its words, its requests a second, its note, and the setup of `bench accounting` that is the same.
const LINES: [(&str, u32, &str, &str); 4] = [
    ("Calibration test: without Lua", 70_000, "25% user / 75% system, limited by injector", "redirect"),
    ("Basic usage of Redis", 4_300, "98% user / 2% system", "new connection per request"),
    ("Redis with pools", 33_000, "66% user / 33% system", "pool and redis-lua"),
    ("Redis with pool and without Redis library", 38_000, "50% user / 50% system", "pool, own protocol"),
];

/// What stands in place of the pool here.
const OWN: [(&str, &str); 2] = [
    ("Lua, with the store in the process", "Lua, embedded store"),
    ("a rule, with the store in the process", "store-call, embedded store"),
];

const PROGRAMS: [&str; 2] = ["haproxy", "sluicegate"];

/// `accounting`: counting client addresses in Redis from Lua.
pub(super) fn accounting(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("accounting", "HAProxy, Lua & Redis: Connection pool");
    let bench = Bench::new(&options.program)?;
    let mut setups = bench.setups()?;
    let names: Vec<&str> = LINES.iter().map(|line| line.3).chain(OWN.map(|(_, name)| name)).collect();
    setups.retain(|setup| names.contains(&setup.name));
    let steal = stolen();
    let seconds = options.seconds(SECONDS);
    let results = bench.alternate(&setups, options.rounds(), seconds)?;
    let _ = writeln!(part.text, "{}", manner(results[0].len(), seconds, steal));
    part.text += "| method | published, req/s | note there | haproxy, req/s | sluicegate, req/s | haproxy, CPU µs | \
                  sluicegate, CPU µs |\n|---|---|---|---|---|---|---|\n";
    let find = |program: &str, name: &str| find(&setups, &results, program, name);
    let cell = |program: &str, name: &str, digits: usize, figure: fn(&Sample) -> f64| {
        find(program, name).map_or(String::new(), |samples| spread(&each(samples, figure), digits))
    };
    let published = LINES.map(|(line, rate, note, name)| (line, rate.to_string(), note, name));
    let own = OWN.map(|(line, name)| (line, String::new(), "", name));
    let mut figures: [Vec<Vec<Vec<f64>>>; 2] = Default::default();
    let mut rows = Vec::new();
    for (line, rate, note, name) in published.into_iter().chain(own) {
        let rates = PROGRAMS.map(|program| cell(program, name, 0, |sample| sample.rate));
        let cpu = PROGRAMS.map(|program| cell(program, name, 2, |sample| sample.cpu_us));
        let _ = writeln!(part.text, "| {line} | {rate} | {note} | {} | {} |", rates.join(" | "), cpu.join(" | "));
        let of = |figure: fn(&Sample) -> f64| {
            PROGRAMS.map(|program| find(program, name).map_or(Vec::new(), |samples| each(samples, figure))).to_vec()
        };
        figures[0].push(of(|sample| sample.rate));
        figures[1].push(of(|sample| sample.cpu_us));
        rows.push(line);
    }
    part.keep("req/s", &PROGRAMS, rows.iter().copied(), &figures[0]);
    part.keep("CPU µs per request", &PROGRAMS, rows.iter().copied(), &figures[1]);
    let rate = |program: &str, name: &str| find(program, name).map(|runs| median(&each(runs, |sample| sample.rate)));
    let pool = rate("haproxy", LINES[2].3);
    if let (Some(ours), Some(theirs)) = (rate("sluicegate", OWN[0].1), pool) {
        part.goal("rate: Lua with the store in the process / haproxy with its pool", "≥ 3", ours / theirs, |ratio| {
            ratio >= 3.0
        });
    }
    if let (Some(plain), Some(ours)) = (find("sluicegate", LINES[0].3), find("sluicegate", OWN[0].1)) {
        let cpu = |samples| median(&each(samples, |sample| sample.cpu_us));
        part.goal("CPU: without Lua / Lua with the store in the process", "≥ 0.92", cpu(plain) / cpu(ours), |ratio| {
            ratio >= 0.92
        });
    }
    Ok(part)
}
