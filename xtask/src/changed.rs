//! The tests that a change touches: `cargo xtask test --changed`.
//!
//! A change is the difference of the work tree from a commit. A touched source file runs the unit tests of its parent
//! module, siblings included, and the integration tests with a module's name; a touched test file runs its tests.
//! Dependent crates are left to the whole suite. The command has a build profile of its own, which is incremental, so
//! the first run builds everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::run::{output, root, run_in};
use crate::test::{arguments, programs_of};

/// The profile of these tests.
const PROFILE: &str = "changed";

/// Filters of a crate's tests; an empty set runs all of them.
#[derive(Debug, Default, PartialEq)]
struct Touched {
    /// `None`: no source was touched.
    units: Option<BTreeSet<String>>,
    integration: BTreeSet<String>,
    /// Whether a file that all integration tests share was touched.
    all_integration: bool,
}

/// Runs the tests that the work tree's change since a commit touches.
pub fn changed(base: &str) -> Result<(), String> {
    let tracked =
        output("git", &["diff", "--name-only", base]).ok_or_else(|| format!("git knows no commit {base:?}"))?;
    let new = output("git", &["ls-files", "--others", "--exclude-standard"]).ok_or("git ls-files failed")?;
    let touched = touched(tracked.lines().chain(new.lines()));
    if touched.is_empty() {
        println!("no source of a crate was changed since {base}");
        return Ok(());
    }
    let mut failed = Vec::new();
    for (folder, filters) in &touched {
        let directory = root().join(folder);
        let has_units = filters.units.is_some();
        let names = integration_tests(&directory, filters);
        let mut kinds = Vec::new();
        if has_units {
            kinds.push(if directory.join("src/lib.rs").is_file() { "--lib" } else { "--bins" });
        }
        if filters.all_integration || !names.is_empty() {
            kinds.extend(["--test", "it"]);
        }
        if kinds.is_empty() {
            continue;
        }
        for program in programs_of(
            &[&["--profile", PROFILE, "--manifest-path", &format!("{folder}/Cargo.toml")], &kinds[..]].concat(),
        )? {
            let is_integration =
                Path::new(&program).file_name().is_some_and(|file| file.to_string_lossy().starts_with("it-"));
            let mut words = arguments(&program);
            match (&filters.units, is_integration) {
                (Some(units), false) => words.extend(units.iter().cloned()),
                (_, true) if !filters.all_integration => words.extend(names.iter().cloned()),
                _ => {}
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            failed.extend(run_in(&directory, &program, &words).err());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Filters by the folder of each crate that the files belong to.
fn touched<'a>(files: impl Iterator<Item = &'a str>) -> BTreeMap<String, Touched> {
    let mut crates: BTreeMap<String, Touched> = BTreeMap::new();
    for file in files.filter(|file| file.ends_with(".rs")) {
        let (folder, inside) = match file.split_once("/src/").or_else(|| file.split_once("/tests/it/")) {
            Some((folder, inside)) if folder == "xtask" || folder.starts_with("crates/") => (folder, inside),
            _ => continue,
        };
        let touched = crates.entry(folder.to_owned()).or_default();
        let module = inside.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let is_root = ["lib", "main", "support"].contains(&module.as_str());
        if file.contains("/src/") {
            let units = touched.units.get_or_insert_default();
            // Many files have no tests of their own: those of the module above are about them, too.
            let above = module.rsplit_once("::").map_or(&module[..], |(above, _)| above);
            units.insert(if is_root { String::new() } else { format!("{above}::") });
        } else if is_root {
            touched.all_integration = true;
        } else {
            touched.integration.insert(format!("{module}::"));
        }
    }
    for touched in crates.values_mut() {
        if touched.units.as_ref().is_some_and(|units| units.contains("")) {
            touched.units = Some(BTreeSet::new());
        }
    }
    crates
}

/// Modules of a crate's integration tests: touched ones, and those with the name of a touched module of the sources.
fn integration_tests(folder: &Path, filters: &Touched) -> BTreeSet<String> {
    let mut names = filters.integration.clone();
    let modules: BTreeSet<&str> = filters.units.iter().flatten().flat_map(|unit| unit.split("::")).collect();
    for entry in std::fs::read_dir(folder.join("tests/it")).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if modules.contains(name.as_str()) {
            names.insert(format!("{name}::"));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn files_lead_to_filters() {
        let files = [
            "README.md",
            "crates/proxy/src/cli/mod.rs",
            "crates/proxy/src/cli/protocol.rs",
            "crates/proxy/tests/it/server/queue.rs",
            "crates/store/src/lib.rs",
            "crates/store/src/command/list.rs",
            "crates/client/tests/it/support.rs",
            "xtask/src/test.rs",
        ];
        let found = touched(files.into_iter());
        assert_eq!(found["crates/proxy"].units, Some(set(&["cli::"])));
        assert_eq!(found["crates/proxy"].integration, set(&["server::queue::"]));
        assert_eq!(found["crates/store"].units, Some(set(&[])), "all of them");
        assert!(found["crates/client"].all_integration && found["crates/client"].units.is_none());
        assert_eq!(found["xtask"].units, Some(set(&["test::"])));
        assert_eq!(found.len(), 4);
    }
}
