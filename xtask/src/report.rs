//! Reports of many parts: each part can be asked for by its name, and `--write` replaces its section of the page under
//! `docs/benchmarks`.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::bench::{machine, median, spread};
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
    goals: String,
}

impl Part {
    pub(crate) fn new(name: &'static str, title: &'static str) -> Part {
        Part { name, title, text: String::new(), goals: String::new() }
    }

    /// Prints and records a goal, and whether it is met.
    pub(crate) fn goal(&mut self, goal: &str, wanted: &str, value: f64, is_met: impl Fn(f64) -> bool) {
        let verdict = if is_met(value) { "met" } else { "**missed**" };
        println!("{goal}: {value:.3} (wanted {wanted}): {verdict}");
        let _ = writeln!(self.goals, "| {goal} | {wanted} | {value:.3} | {verdict} |");
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
        for (name, of_row) in rows.zip(results) {
            let cells: Vec<String> = of_row.iter().map(|values| spread(values, 3)).collect();
            let _ = writeln!(self.text, "| {name} | {} | {} |", cells.join(" | "), spread(&ratios(of_row), 3));
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
            let _ = write!(text, "\n| goal | wanted | measured | |\n|---|---|---|---|\n{}", self.goals);
        }
        text
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
}

/// A part's name and function.
pub(crate) type Measure = (&'static str, fn(&Options) -> Result<Part, String>);

impl Report {
    pub(crate) fn measure(&self, arguments: &[&str]) -> Result<(), String> {
        let mut options =
            Options { runs: RUNS, program: PathBuf::new(), profile: PACKAGED.into(), keys: None, newer: None };
        let (mut wanted, mut write) = (Vec::new(), false);
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
                "--program" => options.program = words.next().ok_or("--program wants a path")?.into(),
                "--peer" => options.newer = Some(words.next().ok_or("--peer wants a path")?.into()),
                "--profile" => options.profile = (*words.next().ok_or("--profile wants a name")?).to_owned(),
                "--write" => write = true,
                name => wanted.push(self.known(name)?),
            }
        }
        if write && options.keys.is_some() {
            return Err("--write wants the keys that figures are stated for, and no --keys".into());
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
                let mut part = measure(&options)?;
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

/// Measures the CPU time per command, in microseconds, of each row on each server in turn, `runs` times. Returns
/// `[row][server][run]`.
pub(crate) fn cpu_in_turn<S>(
    runs: usize,
    rows: &[&str],
    servers: &[S],
    name: impl Fn(&S) -> &'static str,
    measure: impl Fn(&S, usize) -> Result<f64, String>,
) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let mut results = vec![vec![Vec::new(); servers.len()]; rows.len()];
    for round in 1..=runs {
        for (index, (row, of_row)) in rows.iter().zip(&mut results).enumerate() {
            for (server, of_server) in servers.iter().zip(of_row) {
                let cpu_us = measure(server, index)?;
                println!("run {round} {row:<34} {:<14} {cpu_us:.4} µs", name(server));
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
