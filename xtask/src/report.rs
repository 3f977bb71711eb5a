//! Reports of many parts: each part can be asked for by its name, and `--write` replaces its section of the page under
//! `docs/benchmarks`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluicegate_report::Chart;

use crate::bench::{machine, median, spread, stolen};
use crate::kept::{Goal, Kept, Table, today};
use crate::release;
use crate::run::{PACKAGED, built, root, run};

const RUNS: usize = 9;

/// A report: its parts, and the page that keeps it.
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) parts: &'static [Measure],
}

/// A part of the report.
pub(crate) struct Part {
    name: &'static str,
    title: &'static str,
    pub(crate) text: String,
    goals: Vec<Goal>,
    /// The runs behind the text.
    tables: Vec<Table>,
    charts: Vec<Chart>,
}

impl Part {
    pub(crate) fn new(name: &'static str, title: &'static str) -> Part {
        Part { name, title, text: String::new(), goals: Vec::new(), tables: Vec::new(), charts: Vec::new() }
    }

    /// Prints and records a goal, and whether it is met.
    pub(crate) fn goal(&mut self, goal: &str, wanted: &str, value: f64, is_met: impl Fn(f64) -> bool) {
        let goal = Goal { name: goal.to_owned(), wanted: wanted.to_owned(), value, is_met: is_met(value) };
        println!("{}: {value:.3} (wanted {wanted}): {}", goal.name, goal.verdict());
        self.goals.push(goal);
    }

    /// Keeps the results `[row][column][run]` of a table, without writing it.
    pub(crate) fn keep<'n>(
        &mut self,
        what: &str,
        columns: &[impl AsRef<str>],
        rows: impl Iterator<Item = &'n str>,
        results: &[Vec<Vec<f64>>],
    ) {
        let columns = columns.iter().map(|column| column.as_ref().to_owned()).collect();
        let rows = rows.zip(results).map(|(name, of_row)| (name.to_owned(), of_row.clone())).collect();
        self.tables.push(Table { what: what.to_owned(), columns, rows });
    }

    /// Adds a chart, which the book draws below the text.
    pub(crate) fn chart(&mut self, chart: Chart) {
        self.charts.push(chart);
    }

    /// Adds a table of the results `[row][column][run]`, with the ratio of the second column to the first.
    pub(crate) fn table<'n>(
        &mut self,
        what: &str,
        columns: &[String],
        rows: impl Iterator<Item = &'n str>,
        results: &[Vec<Vec<f64>>],
    ) {
        let heads = columns.join(" | ");
        let _ = writeln!(self.text, "| {what} | {heads} | ratio |\n|---|{}---|", "---|".repeat(columns.len()));
        self.keep(what, columns, std::iter::empty(), &[]);
        for (name, of_row) in rows.zip(results) {
            let cells: Vec<String> = of_row.iter().map(|values| spread(values, 3)).collect();
            let _ = writeln!(self.text, "| {name} | {} | {} |", cells.join(" | "), spread(&ratios(of_row), 3));
            self.tables.last_mut().into_iter().for_each(|table| table.rows.push((name.to_owned(), of_row.clone())));
        }
    }

    /// Adds a table for each program of CPU times in microseconds per command: `results` are `[row][server][run]`, with two
    /// servers of each program, one without what is measured and one with it. For ours the ratio of each row is a goal.
    pub(crate) fn costs(
        &mut self,
        programs: &[(&str, bool)],
        columns: &[String; 2],
        rows: &[&str],
        results: &[Vec<Vec<f64>>],
        (goal, most): (&str, f64),
    ) {
        for (index, (program, is_ours)) in programs.iter().enumerate() {
            let of_program: Vec<Vec<Vec<f64>>> =
                results.iter().map(|row| row[2 * index..2 * index + 2].to_vec()).collect();
            self.table(&format!("{program}, CPU µs per command"), columns, rows.iter().copied(), &of_program);
            self.text.push('\n');
            for (row, of_row) in rows.iter().zip(&of_program).filter(|_| *is_ours) {
                let ratio = median(&ratios(of_row));
                self.goal(&format!("{row}, {goal}"), &format!("≤ {most}"), ratio, |ratio| ratio <= most);
            }
        }
    }

    fn render(&self, report: &Report) -> String {
        let mut text = format!("## {}\n\n{}\n\n{}", self.title, report.command_of(self.name), self.text);
        if !self.goals.is_empty() {
            let _ = write!(text, "\n{}", Goal::table(&self.goals));
        }
        text
    }

    /// Returns the part as the book keeps it.
    fn kept(self, command: String, took_s: f64, steal_s: f64, runs: usize) -> Kept {
        Kept {
            title: self.title.to_owned(),
            command,
            date: today(),
            machine: machine(),
            runs,
            took_s,
            steal_s,
            absent: None,
            text: self.text,
            goals: self.goals,
            tables: self.tables,
            charts: self.charts,
        }
    }
}

/// The parameters of measuring a part.
pub(crate) struct Options {
    pub(crate) runs: usize,
    /// The program under test.
    pub(crate) program: PathBuf,
    /// The cargo profile that it is built by, unless it is named.
    pub(crate) profile: String,
    /// The number of keys of parts that can do with fewer; [`None`]: as many as their figures are stated for.
    pub(crate) keys: Option<usize>,
    /// The program that takes the place of HAProxy 2.8.
    pub(crate) newer: Option<PathBuf>,
    /// The seconds of a load; [`None`]: those that the part states.
    pub(crate) seconds: Option<u32>,
    /// When no further round begins.
    pub(crate) until: Option<Instant>,
}

impl Options {
    /// Returns the options of a measurement of its own.
    fn new() -> Options {
        Options {
            runs: RUNS,
            program: PathBuf::new(),
            profile: PACKAGED.into(),
            keys: None,
            newer: None,
            seconds: None,
            until: None,
        }
    }

    /// Returns the rounds, from 0 on: at most as many as there are runs, and none that would end after the time limit if it
    /// took as long as the longest before it. The first one always counts.
    pub(crate) fn rounds(&self) -> Rounds {
        Rounds { next: 0, runs: self.runs.max(1), until: self.until, began: Instant::now(), longest: Duration::ZERO }
    }

    /// Returns the duration of a load in seconds, if a part states this one.
    pub(crate) fn seconds(&self, stated: u32) -> u32 {
        self.seconds.unwrap_or(stated)
    }
}

/// The rounds of a part.
pub(crate) struct Rounds {
    next: usize,
    runs: usize,
    until: Option<Instant>,
    began: Instant,
    longest: Duration,
}

impl Iterator for Rounds {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let now = Instant::now();
        if self.next > 0 {
            self.longest = self.longest.max(now - self.began);
            if self.next >= self.runs || self.until.is_some_and(|until| now + self.longest > until) {
                return None;
            }
        }
        self.began = now;
        self.next += 1;
        Some(self.next - 1)
    }
}

/// A part's name and function.
pub(crate) type Measure = (&'static str, fn(&Options) -> Result<Part, String>);

impl Report {
    pub(crate) fn measure(&self, arguments: &[&str]) -> Result<(), String> {
        let mut options = Options::new();
        let (mut wanted, mut write, mut raw, mut within) = (Vec::new(), false, None, None);
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match *word {
                "--runs" => {
                    options.runs = words.next().and_then(|word| word.parse().ok()).ok_or("--runs wants a number")?
                }
                "--keys" => {
                    let keys = words.next().and_then(|word| word.parse().ok()).filter(|keys| *keys > 0);
                    options.keys = Some(keys.ok_or("--keys wants a number")?);
                }
                "--only" => {
                    let names = words.next().ok_or("--only wants parts, with commas between them")?;
                    wanted.extend(names.split(',').map(|name| self.known(name)).collect::<Result<Vec<_>, _>>()?);
                }
                "--program" => options.program = absolute(words.next().ok_or("--program wants a path")?)?,
                "--peer" => options.newer = Some(absolute(words.next().ok_or("--peer wants a path")?)?),
                "--profile" => options.profile = (*words.next().ok_or("--profile wants a name")?).to_owned(),
                "--seconds" => {
                    options.seconds =
                        Some(words.next().and_then(|word| word.parse().ok()).ok_or("--seconds wants a number")?);
                }
                "--within" => {
                    within = Some(words.next().and_then(|word| word.parse().ok()).ok_or("--within wants seconds")?);
                }
                "--raw" => raw = Some(PathBuf::from(words.next().ok_or("--raw wants a path")?)),
                "--write" => write = true,
                name => wanted.push(self.known(name)?),
            }
        }
        if write && options.keys.is_some() {
            return Err("--write wants the keys that figures are stated for, and no --keys".into());
        }
        if write && options.seconds.is_some() {
            return Err("--write wants the durations that the page states, and no --seconds".into());
        }
        if raw.is_some() && wanted.len() != 1 {
            return Err("--raw wants one part".into());
        }
        if write && options.newer.is_some() {
            return Err("--write wants the peer that the page names, and no --peer".into());
        }
        if options.program == PathBuf::new() {
            options.program = if options.profile == PACKAGED {
                release::program(false)?
            } else {
                run("cargo", &["build", "--profile", &options.profile, "-p", "sluicegate"])?;
                built(&options.profile).join("sluicegate")
            };
        }
        let mut parts = Vec::new();
        for (name, measure) in self.parts {
            if wanted.is_empty() || wanted.contains(name) {
                println!("--- {name}");
                options.until = within.map(|seconds| Instant::now() + Duration::from_secs(seconds));
                let (steal, began) = (stolen(), Instant::now());
                let mut part = measure(&options)?;
                let steal_s = (stolen() - steal) as f64 / 100.0;
                if let Some(path) = &raw {
                    let took_s = began.elapsed().as_secs_f64();
                    return keep(path, part.kept(self.command(arguments), took_s, steal_s, options.runs));
                }
                if options.runs != RUNS {
                    part.text = format!("{} alternating runs.\n\n{}", options.runs, part.text);
                }
                // Written immediately, so that it is not lost if a later part fails.
                if write {
                    self.replace(&part)?;
                }
                parts.push(part);
            }
        }
        parts.iter().for_each(|part| println!("\n{}", part.render(self)));
        Ok(())
    }

    /// Returns the name of a part.
    fn known<'n>(&self, name: &'n str) -> Result<&'n str, String> {
        let names: Vec<&str> = self.parts.iter().map(|part| part.0).collect();
        let error = || format!("unknown: {name}; the parts are {}", names.join(", "));
        names.contains(&name).then_some(name).ok_or_else(error)
    }

    /// Returns the command that measures a section.
    fn command_of(&self, part: &str) -> String {
        format!("`cargo xtask bench {} {part}`", self.name)
    }

    /// Returns the command with these words, without those that only name a file or a program.
    fn command(&self, words: &[&str]) -> String {
        let mut command = format!("cargo xtask bench {}", self.name);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if ["--raw", "--program", "--within"].contains(word) {
                words.next();
            } else {
                let _ = write!(command, " {word}");
            }
        }
        command
    }

    /// Replaces the measured section in the page, in the order of the parts, and keeps the others.
    fn replace(&self, part: &Part) -> Result<(), String> {
        let path = root().join(format!("docs/benchmarks/{}.md", self.name));
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let mut sections: Vec<(String, String)> = Vec::new();
        for section in old.split("\n## ").skip(1) {
            let title = section.lines().next().unwrap_or_default().to_owned();
            sections.push((title, format!("## {}\n", section.trim_end())));
        }
        let text = part.render(self);
        match sections.iter_mut().find(|(title, _)| title == part.title) {
            Some(section) => section.1 = text,
            None => sections.push((part.title.to_owned(), text)),
        }
        sections.sort_by_key(|(_, text)| self.parts.iter().position(|(name, _)| text.contains(&self.command_of(name))));
        let mut page = format!(
            "# {}\n\n`cargo xtask bench {} --write`\n\n{}\n\n{RUNS} alternating runs unless a section says otherwise; \
         medians (lowest–highest). The server has core 0, the load core 1. CPU time is the server's, from the scheduler.\n",
            self.title,
            self.name,
            machine()
        );
        sections.iter().for_each(|(_, text)| page += &format!("\n{}\n", text.trim_end()));
        std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Writes the result of a part for the book.
fn keep(path: &Path, kept: Kept) -> Result<(), String> {
    println!("\n{}", kept.text);
    std::fs::write(path, kept.to_json()).map_err(|error| format!("{}: {error}", path.display()))
}

/// Measures the CPU time per command, in microseconds, of each row on each server in turn, in each round. Returns
/// `[row][server][run]`.
pub(crate) fn cpu_in_turn<S>(
    rounds: Rounds,
    rows: &[&str],
    servers: &[S],
    name: impl Fn(&S) -> &'static str,
    measure: impl Fn(&S, usize) -> Result<f64, String>,
) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let mut results = vec![vec![Vec::new(); servers.len()]; rows.len()];
    for round in rounds {
        for (index, (row, of_row)) in rows.iter().zip(&mut results).enumerate() {
            for (server, of_server) in servers.iter().zip(of_row) {
                let cpu_us = measure(server, index)?;
                println!("run {} {row:<34} {:<14} {cpu_us:.4} µs", round + 1, name(server));
                of_server.push(cpu_us);
            }
        }
    }
    Ok(results)
}

/// Returns the ratios of the second column to the first, run by run.
pub(crate) fn ratios(of_row: &[Vec<f64>]) -> Vec<f64> {
    of_row[0].iter().zip(&of_row[1]).map(|(first, second)| second / first).collect()
}

/// Returns the number of the field `name`, after the text `after`, in JSON of the load generators.
pub(crate) fn number(text: &str, after: &str, name: &str) -> Option<f64> {
    let rest = text.split_once(after)?.1.split_once(name)?.1;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    rest[..end].parse().ok()
}

/// Returns a path that links in other folders can lead to.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_end_at_the_time_limit_but_one_is_always_there() {
        let mut options = Options { runs: 3, ..Options::new() };
        assert_eq!(options.rounds().collect::<Vec<_>>(), [0, 1, 2]);
        options.until = Some(Instant::now());
        assert_eq!(options.rounds().collect::<Vec<_>>(), [0]);
        options.until = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(options.rounds().count(), 3);
    }

    #[test]
    fn commands_leave_out_files() {
        let report = Report { name: "store", title: "", parts: &[] };
        let words = ["cpu", "--runs", "3", "--raw", "a.json", "--program", "x", "--within", "9", "--seconds", "1"];
        assert_eq!(report.command(&words), "cargo xtask bench store cpu --runs 3 --seconds 1");
    }
}
