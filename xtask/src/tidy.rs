//! Mechanical checks of the project's style.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::files::{is_test, logic, read, rust, tracked};
use crate::run::{output, root, run};
use crate::style;

/// The maximum number of lines of one source file, without tests and tables. From some 800 on, a file should be split.
const FILE_LIMIT: usize = 900;

/// The folder of files that are tables of rows and nothing else, which may be long.
const TABLES_OF_ROWS: &str = "crates/config/src/catalogue";

/// Runs every check and reports all that fail.
pub fn tidy() -> Result<(), String> {
    let mut faults = Vec::new();
    for step in [formatting, lints, documentation] {
        if let Err(fault) = step() {
            faults.push(fault);
        }
    }
    faults.extend(faults_of_text()?);
    report(&faults)
}

/// Runs the checks that only read the files.
pub fn text() -> Result<(), String> {
    report(&faults_of_text()?)
}

fn report(faults: &[String]) -> Result<(), String> {
    if faults.is_empty() {
        println!("tidy");
        return Ok(());
    }
    Err(format!("{} fault(s):\n{}", faults.len(), faults.join("\n")))
}

fn faults_of_text() -> Result<Vec<String>, String> {
    let files = tracked()?;
    let mut faults = long_files(&files);
    faults.extend(dead_files(&files));
    faults.extend(foreign_words(&files));
    faults.extend(untested_rows(&files));
    faults.extend(style::names_compared(&files));
    faults.extend(style::glob_imports(&files));
    faults.extend(crate::layers::faults(&files));
    faults.extend(crate::book::faults());
    Ok(faults)
}

/// Checks the layers, or prints the uses between the modules of one crate.
pub fn layers(arguments: &[&str]) -> Result<(), String> {
    let files = tracked()?;
    match arguments {
        [] => {}
        [name] => return crate::layers::print(name, &files),
        _ => return Err("layers takes a crate's folder".to_owned()),
    }
    let faults = crate::layers::faults(&files);
    if faults.is_empty() { Ok(()) } else { Err(format!("{} fault(s):\n{}", faults.len(), faults.join("\n"))) }
}

fn formatting() -> Result<(), String> {
    run("cargo", &["fmt", "--all", "--check"])
}

/// The priority of the compiler, which runs beside suites that wait most of the time: it has what they leave.
const IDLY: &[&str] = &["-n", "19"];

fn lints() -> Result<(), String> {
    let clippy = ["cargo", "clippy", "--quiet", "--profile", "quick", "--workspace", "--all-targets", "--"];
    run("nice", &[IDLY, &clippy[..], &["-D", "warnings"][..]].concat())
}

/// Checks the documentation. Its dependencies are checked by clippy's driver with the arguments of [`lints`], so that
/// cargo reuses the metadata that `lints` has built; with a toolchain whose clippy works otherwise they are checked
/// once more.
fn documentation() -> Result<(), String> {
    let arguments = ["doc", "--quiet", "--profile", "quick", "--workspace", "--no-deps", "--document-private-items"];
    println!("$ RUSTDOCFLAGS='-D warnings' cargo {}", arguments.join(" "));
    let mut command = std::process::Command::new("nice");
    command.args(IDLY).arg("cargo").args(arguments).env("RUSTDOCFLAGS", "-D warnings").current_dir(root());
    if let Some(sysroot) = output("rustc", &["--print", "sysroot"]) {
        let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
        if driver.exists() {
            let lints = ["-D", "warnings"].map(|word| format!("{word}__CLIPPY_HACKERY__")).concat();
            command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", lints);
        }
    }
    let status = command.status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err("cargo doc warns".to_owned()) }
}

fn long_files(files: &[PathBuf]) -> Vec<String> {
    let mut faults = Vec::new();
    for path in rust(files).filter(|path| !is_test(path) && !path.starts_with(TABLES_OF_ROWS)) {
        let lines = logic(&read(path)).lines().count();
        if lines > FILE_LIMIT {
            faults.push(format!("{}: {lines} lines; more than {FILE_LIMIT} want to be two files", path.display()));
        }
    }
    faults
}

/// Returns source files that no `mod` names and that are thus not compiled, except for programs that cargo finds by
/// their folders.
fn dead_files(files: &[PathBuf]) -> Vec<String> {
    let mut faults = Vec::new();
    for path in rust(files) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if matches!(stem.as_str(), "lib" | "main" | "build") {
            continue;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let (name, parents) = if stem == "mod" {
            let above = folder.parent().unwrap_or(Path::new("")).to_owned();
            (folder.file_name().unwrap_or_default().to_string_lossy().into_owned(), above)
        } else {
            (stem, folder.to_owned())
        };
        let named = ["mod.rs", "lib.rs", "main.rs"]
            .iter()
            .map(|file| parents.join(file))
            .chain([parents.with_extension("rs")])
            .any(|file| read(&file).lines().any(|line| names_module(line, &name)));
        if !named
            && folder
                .file_name()
                .is_none_or(|last| !["examples", "benches", "tests"].iter().any(|found| last == *found))
        {
            faults.push(format!("{}: no module names it", path.display()));
        }
    }
    faults
}

fn names_module(line: &str, name: &str) -> bool {
    let line = line.trim();
    let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).unwrap_or(line);
    let line = line.strip_prefix("pub ").unwrap_or(line);
    line.strip_prefix("mod ").is_some_and(|rest| rest.trim_end_matches([';', '{', ' ']) == name)
}

/// Finds words that tie the project to the machine on which it is developed.
fn foreign_words(files: &[PathBuf]) -> Vec<String> {
    // Assembled so that this file does not contain them.
    let words = [["../", "shared"], ["/work", "/"], ["crates", ".io"], ["registry.", "npmjs"], ["pypi", ".org"]];
    let mut faults = Vec::new();
    for path in files.iter().filter(|path| path.file_name().is_none_or(|name| name != "Cargo.lock")) {
        let text = read(path);
        for word in words.iter().map(|parts| parts.concat()) {
            if text.contains(&word) {
                faults.push(format!("{}: says {word:?}", path.display()));
            }
        }
    }
    faults
}

/// The reference pages; a test of each catalogue compares their tables with it.
const TABLES: [&str; 2] = ["docs/reference/configuration.md", "docs/reference/commands.md"];

/// Returns the rows of the reference tables that appear in no test.
fn untested_rows(files: &[PathBuf]) -> Vec<String> {
    let mut tests = String::new();
    for path in files {
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if is_test(path) {
            if matches!(extension.as_str(), "rs" | "cfg" | "lua" | "txt") {
                tests.push_str(&read(path));
            }
        } else if extension == "rs" {
            let text = read(path);
            tests.push_str(&text[logic(&text).len()..]);
        }
    }
    let tests = words(&tests);
    let mut faults = Vec::new();
    for table in TABLES {
        match std::fs::read_to_string(root().join(table)) {
            Ok(text) if row_names(&text).is_empty() => faults.push(format!("{table}: has no rows")),
            Ok(text) => {
                let missing = row_names(&text).into_iter().filter(|name| !is_tested(name, &tests));
                faults.extend(missing.map(|name| format!("{table}: no test names `{name}`")));
            }
            Err(error) => faults.push(format!("{table}: {error}")),
        }
    }
    faults
}

/// Text as its words, each between single blanks: whatever quotes, commas or brackets stand between them.
fn words(text: &str) -> String {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let words: Vec<&str> = text.split(|c| !letter(c)).filter(|word| !word.is_empty()).collect();
    format!(" {} ", words.join(" ").to_ascii_lowercase())
}

/// `tests` are [`words`]. A name of several words counts where they stand side by side; one that ends in a dot begins
/// names that users choose.
fn is_tested(name: &str, tests: &str) -> bool {
    if name.ends_with('.') { tests.contains(&format!(" {name}")) } else { tests.contains(&format!(" {name} ")) }
}

/// Returns the names in the first column of a page's tables, without what follows a name in its usage: `` | `stats
/// socket ADDRESS [mode M]` | `` is `stats socket`, and an alias is a name of its own. Rows with `no` are left out.
fn row_names(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")).filter(|row| !row.contains("` | no | "));
    rows.flat_map(|row| row.split(" | ").next().unwrap_or_default().split(", `"))
        .filter_map(|usage| usage.split('`').next())
        .map(name_of)
        .filter(|name| !name.is_empty())
        .collect()
}

/// Returns the words of a usage up to the first that stands for something else: `NAME`, `[…]`, `a|b`, `(…)`.
fn name_of(usage: &str) -> String {
    // A predefined condition (`METH_GET`) is a name in capitals, alone in its cell.
    if usage.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || "_.".contains(c)) {
        return usage.to_ascii_lowercase();
    }
    let mut name = Vec::new();
    for word in usage.split(' ') {
        // A range of numbers is an argument, too.
        if !name.is_empty() && word.starts_with(|c: char| c.is_ascii_digit()) {
            break;
        }
        let end = word.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c)));
        match end {
            None => name.push(word),
            Some(end) => {
                // Alternatives are arguments; before a bracket or a placeholder stands the name.
                if name.is_empty() && end > 0 {
                    name.push(&word[..end]);
                }
                break;
            }
        }
    }
    name.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rows() {
        for (usage, name) in [
            ("daemon", "daemon"),
            ("stats socket ADDRESS [mode M]", "stats socket"),
            ("balance roundrobin", "balance roundrobin"),
            ("mode tcp|http", "mode"),
            ("tune.lua.log.stderr on|auto|off", "tune.lua.log.stderr"),
            ("use_backend NAME|FORMAT [if|unless CONDITION]", "use_backend"),
            ("set-var(SCOPE.NAME) EXPRESSION", "set-var"),
            ("lua.NAME [ARG]…", "lua."),
            ("req.hdr([string[,occurrence]])", "req.hdr"),
            ("v4v6", "v4v6"),
            ("HTTP_1.0", "http_1.0"),
            ("client getname", "client getname"),
        ] {
            assert_eq!(name_of(usage), name, "{usage}");
        }
        let page = "| `req.ver`, `req_ver` | string |\n| keyword | |\n|---|---|\n| `log A` | Says `b`, `c`. |\n| `gone` | no | not here |\n";
        assert_eq!(row_names(page).into_iter().collect::<Vec<_>>(), ["log", "req.ver", "req_ver"]);
    }

    #[test]
    fn a_row_counts_where_a_test_names_it() {
        let tests = words("check(\"option httplog\"); ask(&[\"CLIENT\", \"GETNAME\"]); lua.count maxconnx");
        for (name, tested) in [
            ("option httplog", true),
            ("client getname", true),
            ("lua.", true),
            ("httplog option", false),
            ("maxconn", false),
            ("client setname", false),
        ] {
            assert_eq!(is_tested(name, &tests), tested, "{name}");
        }
    }

    #[test]
    fn modules_are_named() {
        assert!(names_module("pub(crate) mod a;", "a") && names_module("    mod a {", "a"));
        assert!(!names_module("mod ab;", "a") && !names_module("// mod a;", "a"));
    }
}
