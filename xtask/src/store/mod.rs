//! The store against redis-server: CPU time, memory, stalls, eviction.
//!
//! Both servers run on core 0 and the load on core 1, in alternating runs. What is compared is CPU time from the
//! scheduler's statistics, so that a machine which does other things besides still gives figures that can be used; what
//! is a matter of waiting says so. Each part can be asked for by its name, and `--write` replaces its section of
//! the page under `docs/benchmarks`. Scripts are a report of their own.

mod bullmq;
mod cpu;
mod eviction;
mod memory;
mod peer;
mod scripts;
mod stalls;

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::bench::{machine, release};
use crate::run::{root, run};

const RUNS: usize = 9;

/// A report: its parts, and the page that keeps it.
struct Report {
    name: &'static str,
    title: &'static str,
    parts: &'static [Measure],
}

const STORE: Report = Report { name: "store", title: "The store", parts: PARTS };
const SCRIPTS: Report = Report { name: "scripts", title: "Scripts", parts: SCRIPT_PARTS };

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

    fn render(&self, report: &Report) -> String {
        let mut text = format!("## {}\n\n{}\n\n{}", self.title, report.command_of(self.name), self.text);
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

const SCRIPT_PARTS: &[Measure] = &[
    ("costs", scripts::costs),
    ("workers", scripts::workers),
    ("others", scripts::others),
    ("memory", scripts::memory),
    ("bullmq", bullmq::jobs),
];

/// `bench store [PART…] [--runs N] [--profile NAME] [--write]`.
pub fn store(arguments: &[&str]) -> Result<(), String> {
    STORE.measure(arguments)
}

/// `bench scripts [PART…] [--runs N] [--profile NAME] [--write]`.
pub fn scripts(arguments: &[&str]) -> Result<(), String> {
    SCRIPTS.measure(arguments)
}

impl Report {
    fn measure(&self, arguments: &[&str]) -> Result<(), String> {
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
                name if self.parts.iter().any(|part| part.0 == name) => wanted.push(name),
                other => {
                    let names: Vec<&str> = self.parts.iter().map(|part| part.0).collect();
                    return Err(format!("unknown: {other}; the parts are {}", names.join(", ")));
                }
            }
        }
        run("cargo", &["build", "--profile", &options.profile, "-p", "sluicegate"])?;
        options.program = release().with_file_name(&options.profile).join("sluicegate");
        let mut parts = Vec::new();
        for (name, measure) in self.parts {
            if wanted.is_empty() || wanted.contains(name) {
                println!("--- {name}");
                let mut part = measure(&options)?;
                if options.runs != RUNS {
                    part.text = format!("{} alternating runs.\n\n{}", options.runs, part.text);
                }
                // At once, so that a part that fails later takes nothing along.
                if write {
                    self.replace(&part)?;
                }
                parts.push(part);
            }
        }
        parts.iter().for_each(|part| println!("\n{}", part.render(self)));
        Ok(())
    }

    /// The line that says how a section is measured.
    fn command_of(&self, part: &str) -> String {
        format!("`cargo xtask bench {} {part}`", self.name)
    }

    /// Puts the section that was measured into the page, in the order of the parts, and leaves the others.
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
