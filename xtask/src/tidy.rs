//! What the house's style asks and a program can see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::run::{output, root, run};

/// Lines of one source file, tests and catalogues apart.
const FILE_LIMIT: usize = 900;

/// Runs every check and reports all that fail.
pub fn tidy() -> Result<(), String> {
    let mut faults = Vec::new();
    for step in [formatting, lints, documentation] {
        if let Err(fault) = step() {
            faults.push(fault);
        }
    }
    let files = tracked()?;
    faults.extend(long_files(&files));
    faults.extend(dead_files(&files));
    faults.extend(foreign_words(&files));
    faults.extend(untested_rows(&files)?);
    if faults.is_empty() {
        println!("tidy");
        return Ok(());
    }
    Err(format!("{} fault(s):\n{}", faults.len(), faults.join("\n")))
}

fn formatting() -> Result<(), String> {
    run("cargo", &["fmt", "--all", "--check"])
}

fn lints() -> Result<(), String> {
    run("cargo", &["clippy", "--quiet", "--profile", "quick", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn documentation() -> Result<(), String> {
    let status = std::process::Command::new("cargo")
        .args(["doc", "--quiet", "--profile", "quick", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root())
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err("cargo doc warns".to_owned()) }
}

fn tracked() -> Result<Vec<PathBuf>, String> {
    let list =
        output("git", &["ls-files", "--cached", "--others", "--exclude-standard"]).ok_or("git ls-files failed")?;
    Ok(list.lines().map(PathBuf::from).filter(|path| root().join(path).is_file()).collect())
}

fn rust(files: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
}

/// The part of a source file before its `mod tests`.
fn logic(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

fn long_files(files: &[PathBuf]) -> Vec<String> {
    let mut faults = Vec::new();
    for path in rust(files).filter(|path| !is_test(path) && !path.to_string_lossy().contains("catalogue")) {
        let lines = logic(&read(path)).lines().count();
        if lines > FILE_LIMIT {
            faults.push(format!("{}: {lines} lines; more than {FILE_LIMIT} want to be two files", path.display()));
        }
    }
    faults
}

/// A source file that no `mod` names is compiled by nobody.
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
        if !named && folder.file_name().is_none_or(|last| last != "examples" && last != "benches") {
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

/// Words that tie the project to a place where it happens to be worked on.
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

/// Every row of the reference tables, which tests keep in step with the catalogues, stands in some test.
fn untested_rows(files: &[PathBuf]) -> Result<Vec<String>, String> {
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
    let tests = tests.to_ascii_lowercase();
    let known: BTreeSet<&str> =
        tests.split(|letter: char| !(letter.is_ascii_alphanumeric() || "-_.".contains(letter))).collect();
    let mut faults = Vec::new();
    for table in ["docs/reference/configuration.md", "docs/reference/commands.md"] {
        let text = std::fs::read_to_string(root().join(table)).map_err(|error| format!("{table}: {error}"))?;
        for row in text.lines().filter_map(|line| line.strip_prefix("| `")) {
            let name = row.split('`').next().unwrap_or("").to_ascii_lowercase();
            // A keyword of several words (`option httplog`) counts when a test has them side by side.
            let tested = if name.contains(' ') { tests.contains(&name) } else { known.contains(name.as_str()) };
            if !name.is_empty() && !tested {
                faults.push(format!("{table}: no test names `{name}`"));
            }
        }
    }
    Ok(faults)
}
