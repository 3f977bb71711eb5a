//! Instruction counts of the hot paths, which do not depend on the machine's load.
//!
//! Each path runs under callgrind with few and with many repetitions; the difference, divided by the difference in
//! repetitions, is one repetition without the start. In the proxy only the worker's thread counts: the work of other
//! threads depends on the time that passes. Instructions of the kernel are not counted. The build is the plain one: a
//! [profile](crate::release) is not the same twice.
//!
//! Each count is compared with two others: with that of the parent commit, built in the same profile, which it may
//! exceed by [`PARENT`]; and with the accepted count, which it may exceed by [`GROWTH`], so that small steps do not add
//! up. Accepted counts are in docs/benchmarks/guard.md, a row per version of rustc and level of the CPU (libraries
//! choose their code by it).

mod base;
mod beside;
mod paths;

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::run::{PACKAGED, built, output, root, run};
use base::Base;
use paths::{Counts, Measurement, PATHS};

/// Growth over the accepted count that fails, as a part of it.
const GROWTH: f64 = 0.03;
/// Growth over the parent commit's count that fails.
const PARENT: f64 = 0.01;
/// Counts of a path that is above the parent's: noise only adds, so the least of them holds.
const COUNTS: usize = 3;

/// A program, and the example `parse` that was built with it.
struct Build {
    kind: Kind,
    program: PathBuf,
    parse: PathBuf,
}

/// How a program is started, and which of its threads does the work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Haproxy,
    Redis,
}

impl Build {
    /// Returns the build whose program lies at a path.
    fn at(program: PathBuf) -> Build {
        let parse = program.with_file_name("examples").join("parse");
        Build { kind: Kind::Ours, program, parse }
    }
}

/// `bench guard --peers …` is [beside::beside]; `bench guard [--write] [--base COMMIT|PROGRAM] [--program PROGRAM] [--only WORD] [--runs N] [--keep FOLDER]`.
///
/// The base is the parent commit, or HEAD if the work tree differs from it. `--write` accepts the counts without a
/// comparison. `--runs` counts each path N times and prints the spread. `--keep` leaves callgrind's files of the last count
/// in `FOLDER/now` and `FOLDER/base`, for `callgrind_annotate`.
///
/// # Errors
/// If a count exceeds the base's by more than 1 %, or the accepted one by more than 3 %.
pub fn guard(arguments: &[&str]) -> Result<(), String> {
    if let ["--peers", rest @ ..] = arguments {
        return beside::beside(rest);
    }
    let options = Options::parse(arguments)?;
    valgrind()?;
    let base = if options.write { None } else { Some(Base::find(options.base.as_deref())?) };
    let now = match options.program {
        Some(program) => Build::at(program),
        None => {
            run("cargo", &["build", "--profile", PACKAGED, "-p", "sluicegate"])?;
            run("cargo", &["build", "--profile", PACKAGED, "-p", "sluicegate-wire", "--example", "parse"])?;
            Build::at(built(PACKAGED).join("sluicegate"))
        }
    };
    let base = base.map(Base::build).transpose()?;
    let file = root().join("docs/benchmarks/guard.md");
    let mut rows = read(&std::fs::read_to_string(&file).unwrap_or_default());
    let key = [rustc(), level()];
    let accepted = rows.iter().find(|row| row.key == key).map_or_else(Counts::default, |row| row.counts.clone());
    let kept = |name: &str| options.keep.as_ref().map(|folder| folder.join(name));
    let mut now = Measurement::new(now, kept("now"))?;
    let mut base = base.map(|base| Measurement::new(base, kept("base"))).transpose()?;
    let (mut counts, mut grown) = (Counts::default(), Vec::new());
    for path in PATHS.iter().filter(|path| options.only.as_deref().is_none_or(|only| path.name.contains(only))) {
        let compared = compare(path, &mut now, base.as_mut(), options.runs)?;
        let Some(compared) = compared else {
            println!("{:<26} not built", path.name);
            continue;
        };
        let mut line = format!("{:<26} {:>9}{}", path.name, compared.now, compared.spread);
        let mut against = |what: &str, before: u64, most: f64| {
            let change = compared.now as f64 / before as f64 - 1.0;
            let _ = write!(line, "  {what} {before:>9} {:>+6.2} %", change * 100.0);
            if change > most {
                grown.push(format!("{} by {:.1} % over {what}", path.name, change * 100.0));
            }
        };
        compared.base.into_iter().for_each(|before| against("base", before, PARENT));
        accepted.of(path.name).into_iter().for_each(|before| against("accepted", before, GROWTH));
        println!("{line}");
        counts.set(path.name, compared.now);
    }
    if options.write {
        rows.retain(|row| row.key != key);
        rows.push(Row { key, counts });
        return std::fs::write(&file, render(&rows)).map_err(|error| format!("{}: {error}", file.display()));
    }
    if accepted.is_empty() {
        println!("no counts are accepted for rustc {} on {}: --write accepts these", key[0], key[1]);
    }
    if grown.is_empty() { Ok(()) } else { Err(format!("more instructions than before: {}", grown.join(", "))) }
}

/// # Errors
/// If valgrind is missing.
fn valgrind() -> Result<(), String> {
    let found = output("valgrind", &["--version"]);
    found.map(|_| ()).ok_or("valgrind is missing: `cargo xtask test --install` brings it".to_owned())
}

/// The counts of a path in both builds.
struct Compared {
    now: u64,
    base: Option<u64>,
    /// The range of the counts of this build, if there are several.
    spread: String,
}

/// Counts a path in both builds, again where this one is above the base; `None` if it is not built.
fn compare(
    path: &paths::Path,
    now: &mut Measurement,
    mut base: Option<&mut Measurement>,
    runs: usize,
) -> Result<Option<Compared>, String> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..runs.max(COUNTS) {
        let Some(count) = now.count(path)? else { return Ok(None) };
        ours.push(count);
        if let Some(base) = &mut base {
            theirs.extend(base.count(path)?);
        }
        let least = |counts: &[u64]| counts.iter().min().copied();
        let exceeds = least(&theirs).is_some_and(|before| exceeds(least(&ours).unwrap_or(0), before));
        if round + 1 >= runs && !exceeds {
            break;
        }
    }
    let (low, high) = (ours.iter().min().copied().unwrap_or(0), ours.iter().max().copied().unwrap_or(0));
    let spread = match ours.len() {
        1 => String::new(),
        _ => format!(" (+{:.2} % in {} counts)", (high as f64 / low.max(1) as f64 - 1.0) * 100.0, ours.len()),
    };
    Ok(Some(Compared { now: low, base: theirs.into_iter().min(), spread }))
}

/// Returns whether a count is too far above the parent's.
fn exceeds(now: u64, before: u64) -> bool {
    now as f64 > before as f64 * (1.0 + PARENT)
}

struct Options {
    write: bool,
    base: Option<String>,
    program: Option<PathBuf>,
    only: Option<String>,
    runs: usize,
    keep: Option<PathBuf>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options, String> {
        let mut options = Options { write: false, base: None, program: None, only: None, runs: 1, keep: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().map(|word| (*word).to_owned()).ok_or(format!("{word} wants a value"));
            match *word {
                "--write" => options.write = true,
                "--base" => options.base = Some(value()?),
                "--program" => options.program = Some(PathBuf::from(value()?)),
                "--keep" => options.keep = Some(PathBuf::from(value()?)),
                "--only" => options.only = Some(value()?),
                "--runs" => options.runs = value()?.parse().map_err(|_| "--runs wants a number")?,
                other => return Err(format!("unknown: {other}")),
            }
        }
        if options.write && (options.base.is_some() || options.only.is_some()) {
            return Err("--write accepts the counts of all paths and compares them with nothing".to_owned());
        }
        Ok(options)
    }
}

/// The counts that were accepted for a compiler and a CPU.
struct Row {
    key: [String; 2],
    counts: Counts,
}

/// Reads the table; a path that it does not name has no accepted count.
fn read(text: &str) -> Vec<Row> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = text.lines().filter(|line| line.starts_with("| ")).map(cells);
    let names = lines.next().unwrap_or_default();
    let rows = lines.filter_map(|line| {
        let [rustc, level, ..] = line.as_slice() else { return None };
        let mut counts = Counts::default();
        for (name, count) in names.iter().zip(&line).skip(2) {
            if let (Some(path), Ok(count)) = (PATHS.iter().find(|path| path.name == name), count.parse()) {
                counts.set(path.name, count);
            }
        }
        Some(Row { key: [rustc.clone(), level.clone()], counts })
    });
    rows.collect()
}

fn render(rows: &[Row]) -> String {
    let mut text = String::from(
        "# Instructions of the hot paths\n\n`cargo xtask bench guard` counts them by callgrind. It fails where one is \
         more than 1 % above that of the parent commit, or 3 % above what stands here; `--write` accepts what it \
         counted. Only user space counts, and of the proxy only its worker. Five rules, the Lua action, store-call, the \
         stick table and the limit are what they add to a redirection. A TCP connection carries two messages of 64 \
         bytes each way.\n\n",
    );
    let names: Vec<&str> = PATHS.iter().map(|path| path.name).collect();
    let _ = writeln!(text, "| rustc | CPU | {} |\n|---|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for Row { key: [rustc, level], counts } in rows {
        let count = |name: &&str| counts.of(name).map_or(String::new(), |count| count.to_string());
        let counts: Vec<String> = names.iter().map(count).collect();
        let _ = writeln!(text, "| {rustc} | {level} | {} |", counts.join(" | "));
    }
    text
}

fn rustc() -> String {
    let text = output("rustc", &["--version"]).unwrap_or_default();
    text.split_whitespace().nth(1).unwrap_or("unknown").to_owned()
}

/// Returns the level of the CPU as valgrind shows it to programs: it knows nothing above AVX2.
fn level() -> String {
    #[cfg(target_arch = "x86_64")]
    let level = if std::arch::is_x86_feature_detected!("avx2") { "x86-64-v3" } else { "x86-64-v2" };
    #[cfg(not(target_arch = "x86_64"))]
    let level = std::env::consts::ARCH;
    level.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_counts_are_read_by_the_names_of_paths() {
        let older = "# x\n\n| rustc | CPU | redirect | a path of old |\n|---|---|---|---|\n| 1.95.0 | x | 10 | 5 |\n";
        let rows = read(older);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].counts.of("redirect"), Some(10));
        assert_eq!(rows[0].counts.of("store-call"), None, "a path that the table lacks");
        let again = read(&render(&rows));
        assert_eq!(again[0].key, ["1.95.0", "x"]);
        assert_eq!(again[0].counts.of("redirect"), Some(10));
        assert_eq!(again[0].counts.of("store-call"), None);
    }

    #[test]
    fn one_percent_over_the_parent_is_too_much() {
        assert!(!exceeds(10_100, 10_000));
        assert!(exceeds(10_101, 10_000));
        assert!(!exceeds(9_000, 10_000));
    }

    #[test]
    fn options_are_exact() {
        assert!(Options::parse(&["--write", "--base", "HEAD"]).is_err());
        assert!(Options::parse(&["--runs"]).is_err());
        assert!(Options::parse(&["--nosuch"]).is_err());
        let options = Options::parse(&["--base", "HEAD~3", "--only", "TCP", "--runs", "2"]).unwrap();
        assert_eq!((options.base.as_deref(), options.only.as_deref(), options.runs), (Some("HEAD~3"), Some("TCP"), 2));
    }
}
