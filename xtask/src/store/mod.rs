//! The store against redis-server: CPU time, memory, stalls, eviction.
//!
//! Both servers run on core 0 and the load on core 1, in alternating runs. What is compared is CPU time from the
//! scheduler's statistics, so that a machine which does other things besides still gives figures that can be used; what
//! is a matter of waiting says so. Each part can be asked for by its name, and `--write` replaces its section of
//! `docs/benchmarks/store.md`.

mod cpu;
mod eviction;
mod memory;
mod peer;
mod stalls;

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::bench::{machine, release};
use crate::run::{root, run};

const RUNS: usize = 9;

/// A part of the report.
struct Part {
    name: &'static str,
    title: &'static str,
    text: String,
    goals: String,
}

impl Part {
    fn new(name: &'static str, title: &'static str) -> Part {
        Part { name, title, text: String::new(), goals: String::new() }
    }

    /// A goal, and whether it is met.
    fn goal(&mut self, goal: &str, wanted: &str, value: f64, is_met: impl Fn(f64) -> bool) {
        let verdict = if is_met(value) { "met" } else { "**missed**" };
        println!("{goal}: {value:.3} (wanted {wanted}): {verdict}");
        let _ = writeln!(self.goals, "| {goal} | {wanted} | {value:.3} | {verdict} |");
    }

    fn render(&self) -> String {
        let mut text = format!("## {}\n\n`cargo xtask bench store {}`\n\n{}", self.title, self.name, self.text);
        if !self.goals.is_empty() {
            let _ = write!(text, "\n| goal | wanted | measured | |\n|---|---|---|---|\n{}", self.goals);
        }
        text
    }
}

/// How a part is measured.
struct Options {
    runs: usize,
    /// The program under test.
    program: PathBuf,
    /// The cargo profile that it is built by.
    profile: String,
}

/// A part's name and function.
type Measure = (&'static str, fn(&Options) -> Result<Part, String>);

const PARTS: &[Measure] = &[
    ("cpu", cpu::cpu),
    ("types", cpu::types),
    ("transactions", cpu::transactions),
    ("call", cpu::call),
    ("workers", cpu::workers),
    ("hot", cpu::hot),
    ("memory", memory::memory),
    ("reuse", memory::reuse),
    ("eviction", eviction::eviction),
    ("stalls", stalls::stalls),
    ("delays", stalls::delays),
];

/// `bench store [PART…] [--runs N] [--profile NAME] [--write]`.
pub fn store(arguments: &[&str]) -> Result<(), String> {
    let mut options = Options { runs: RUNS, program: PathBuf::new(), profile: "release".into() };
    let (mut wanted, mut write) = (Vec::new(), false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--runs" => {
                options.runs = words.next().and_then(|word| word.parse().ok()).ok_or("--runs wants a number")?
            }
            "--profile" => options.profile = (*words.next().ok_or("--profile wants a name")?).to_owned(),
            "--write" => write = true,
            name if PARTS.iter().any(|part| part.0 == name) => wanted.push(name),
            other => {
                let names: Vec<&str> = PARTS.iter().map(|part| part.0).collect();
                return Err(format!("unknown: {other}; the parts are {}", names.join(", ")));
            }
        }
    }
    run("cargo", &["build", "--profile", &options.profile, "-p", "sluicegate"])?;
    options.program = release().with_file_name(&options.profile).join("sluicegate");
    let mut parts = Vec::new();
    for (name, measure) in PARTS {
        if wanted.is_empty() || wanted.contains(name) {
            println!("--- {name}");
            let mut part = measure(&options)?;
            if options.runs != RUNS {
                part.text = format!("{} alternating runs.\n\n{}", options.runs, part.text);
            }
            parts.push(part);
        }
    }
    parts.iter().for_each(|part| println!("\n{}", part.render()));
    if write { replace(&parts) } else { Ok(()) }
}

/// Puts the sections that were measured into the page, and leaves the others.
fn replace(parts: &[Part]) -> Result<(), String> {
    let path = root().join("docs/benchmarks/store.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let mut sections: Vec<(String, String)> = Vec::new();
    for section in old.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap_or_default().to_owned();
        sections.push((title, format!("## {}\n", section.trim_end())));
    }
    for part in parts {
        let text = part.render();
        match sections.iter_mut().find(|(title, _)| title == part.title) {
            Some(section) => section.1 = text,
            None => sections.push((part.title.to_owned(), text)),
        }
    }
    let mut page = format!(
        "# The store\n\n`cargo xtask bench store --write`\n\n{}\n\n{RUNS} alternating runs unless a section says otherwise; \
         medians (lowest–highest). The server has core 0, the load core 1. CPU time is the server's, from the scheduler.\n",
        machine()
    );
    sections.iter().for_each(|(_, text)| page += &format!("\n{}\n", text.trim_end()));
    std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
}
