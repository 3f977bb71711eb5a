//! The base commit of a comparison, built in addition to this one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Build;
use crate::run::{PACKAGED, output, root, run_in, target};

/// The other side of the comparison.
pub(super) enum Base {
    /// A program that exists.
    Program(PathBuf),
    /// A commit, by its hash.
    Commit(String),
}

impl Base {
    /// Returns the base that a word names: a program's path or a commit. Without a word it is the parent commit, or
    /// HEAD where the work tree differs from it.
    pub(super) fn find(word: Option<&str>) -> Result<Base, String> {
        let is_clean = || output("git", &["status", "--porcelain"]).is_some_and(|text| text.is_empty());
        let commit = match word {
            Some(path) if Path::new(path).is_file() => return Ok(Base::Program(PathBuf::from(path))),
            Some(commit) => commit,
            None if is_clean() => "HEAD^",
            None => "HEAD",
        };
        let hash = output("git", &["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")]);
        let hash = hash.ok_or(format!("{commit} is neither a program nor a commit"))?;
        Ok(Base::Commit(hash.trim().to_owned()))
    }

    /// Builds the base in the packaged profile, unless its programs are kept from before. Its sources are exported to a
    /// folder of their own, and so are cargo's results: both builds would else replace each other's.
    pub(super) fn build(self) -> Result<Build, String> {
        let hash = match self {
            Base::Program(program) => return Ok(Build::at(program)),
            Base::Commit(hash) => hash,
        };
        let folder = target().join("guard");
        let kept = folder.join(&hash);
        let build = Build::at(kept.join("sluicegate"));
        if build.program.is_file() && build.parse.is_file() {
            return Ok(build);
        }
        let (sources, results) = (folder.join("sources"), folder.join("target"));
        export(&hash, &sources)?;
        let results_word = results.display().to_string();
        let cargo = |rest: &[&str]| {
            let words = ["build", "--profile", PACKAGED, "--target-dir", &results_word];
            run_in(&sources, "cargo", &[&words, rest].concat())
        };
        cargo(&["-p", "sluicegate"])?;
        cargo(&["-p", "sluicegate-wire", "--example", "parse"])?;
        std::fs::create_dir_all(kept.join("examples")).map_err(|error| format!("{}: {error}", kept.display()))?;
        for name in ["examples/parse", "sluicegate"] {
            let from = results.join(PACKAGED).join(name);
            std::fs::copy(&from, kept.join(name)).map_err(|error| format!("{}: {error}", from.display()))?;
        }
        Ok(build)
    }
}

/// Writes the files of a commit to a folder, replacing its content.
fn export(hash: &str, folder: &Path) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let failed = |error: std::io::Error| format!("git archive {hash}: {error}");
    let mut git = Command::new("git")
        .args(["archive", "--format=tar", hash])
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let archive = git.stdout.take().expect("it is piped");
    let unpacked = Command::new("tar").arg("-x").current_dir(folder).stdin(archive).status().map_err(failed)?;
    let archived = git.wait().map_err(failed)?;
    if unpacked.success() && archived.success() {
        Ok(())
    } else {
        Err(format!("git archive {hash} ended with {archived}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_a_program_or_a_commit() {
        let program = std::env::current_exe().unwrap();
        let found = Base::find(Some(&program.display().to_string())).unwrap();
        assert!(matches!(found, Base::Program(path) if path == program));
        assert!(Base::find(Some("no-such-commit")).is_err());
    }
}
