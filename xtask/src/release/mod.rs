//! `cargo xtask release`: the program as it is packaged and measured, with profile-guided optimisation.
//!
//! The program is built twice: first instrumented, so that it counts how often each branch is taken (Lua too, where gcc
//! compiles it); then, after the training load of `train`, with these counts. Hot code is then placed together and
//! inlined, and rare code placed apart. Both builds use the same target directory, since gcc finds its counts by the
//! path of the object, and get their flags from files, since cargo names directories by flags. Other C code, such as
//! the cryptography, is compiled with its authors' flags.
//!
//! All output is in `target/profiled`, with the program's symbols in a separate file. The benchmarks use existing
//! counts of the same compilers; `cargo xtask release` and `cargo xtask package` count anew.

mod train;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{PACKAGED, output, root, run, target};

/// `cargo xtask release`.
pub(crate) fn release(words: &[&str]) -> Result<(), String> {
    if !words.is_empty() {
        return Err(format!("unknown: {}", words.join(" ")));
    }
    println!("{}", program(true)?.display());
    Ok(())
}

/// Returns the optimised program, and builds it if it is missing, with existing counts unless `anew`.
pub(crate) fn program(anew: bool) -> Result<PathBuf, String> {
    let profiled = Profiled::new()?;
    if anew || !profiled.is_counted() {
        profiled.count()?;
    }
    profiled.build(&profiled.optimising(), &profiled.lua_optimising())?;
    let place = place();
    split(&profiled.program(), &place)?;
    write(&place.with_extension(COMMIT), &commit_of_tree())?;
    Ok(place)
}

/// The extension of the file that names the commit that a program was built from.
const COMMIT: &str = "commit";

/// Returns the short name of the commit that a program of [`program`] was built from, with a `+` if the work tree had
/// uncommitted changes; [`None`] if there is no file with it next to the program.
pub(crate) fn commit_of(program: &Path) -> Option<String> {
    fs::read_to_string(program.with_extension(COMMIT)).ok().map(|text| text.trim().to_owned())
}

fn commit_of_tree() -> String {
    let git = |words: &[&str]| output("git", words).unwrap_or_default();
    let mark = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { "+" };
    git(&["rev-parse", "--short", "HEAD"]).trim().to_owned() + mark
}

/// Writes a program without its symbols to `place`, and the symbols next to it, where debuggers and `perf` find them.
fn split(made: &Path, place: &Path) -> Result<(), String> {
    let symbols = place.with_extension(SYMBOLS);
    let (made, place, symbols) = (made.display(), place.display(), symbols.display());
    run("objcopy", &["--only-keep-debug", &made.to_string(), &symbols.to_string()])?;
    let link = format!("--add-gnu-debuglink={symbols}");
    run("objcopy", &["--strip-all", &link, &made.to_string(), &place.to_string()])
}

/// The extension of the file with a program's symbols.
pub(crate) const SYMBOLS: &str = "debug";

/// Returns the path of the optimised program.
pub(crate) fn place() -> PathBuf {
    target().join("profiled/sluicegate")
}

struct Profiled {
    folder: PathBuf,
    /// The Rust compiler's name of this platform.
    host: String,
    /// The compilers whose profiles are compatible.
    compilers: String,
    /// From the same installation as rustc, whose format it must read.
    merger: PathBuf,
    /// The C compiler, and whether it is gcc.
    cc: String,
    has_gcc: bool,
}

impl Profiled {
    fn new() -> Result<Profiled, String> {
        let version = output("rustc", &["-vV"]).ok_or("rustc does not start")?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc -vV names no host")?;
        let sysroot = output("rustc", &["--print", "sysroot"]).ok_or("rustc has no sysroot")?;
        let merger = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/llvm-profdata");
        if !merger.exists() {
            return Err(String::from("llvm-profdata is missing: `rustup component add llvm-tools` brings it"));
        }
        let cc = std::env::var("CC").unwrap_or_else(|_| String::from("cc"));
        let compiler = output(&cc, &["--version"]).unwrap_or_default();
        let has_gcc = compiler.contains("Free Software Foundation");
        Ok(Profiled {
            folder: target().join("profiled"),
            host: host.to_owned(),
            compilers: format!("{version}{compiler}"),
            merger,
            cc,
            has_gcc,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn program(&self) -> PathBuf {
        self.built().join(PACKAGED).join("sluicegate")
    }

    /// Returns the directory of builds for the host's platform.
    fn built(&self) -> PathBuf {
        self.path("build").join(&self.host)
    }

    fn is_counted(&self) -> bool {
        fs::read_to_string(self.path("compilers")).is_ok_and(|compilers| compilers == self.compilers)
    }

    /// Runs the training and merges its counts.
    fn count(&self) -> Result<(), String> {
        // Cargo does not notice that the flags in the files have changed.
        for place in [self.built(), self.path("counts")] {
            remove(&place)?;
        }
        let _ = fs::remove_file(self.path("compilers"));
        let counts = self.path("counts");
        fs::create_dir_all(&counts).map_err(|error| format!("{}: {error}", counts.display()))?;
        let mut flags = vec![format!("-Cprofile-generate={}", counts.display())];
        if self.has_gcc {
            flags.push(String::from("-Clink-arg=-fprofile-generate"));
        }
        self.build(&flags, &format!("'-fprofile-generate={}' -fprofile-update=prefer-atomic", counts.display()))?;
        train::train(&self.program(), &counts)?;
        let raw = raw(&counts);
        if raw.is_empty() {
            return Err(format!("the program left no counts in {}", counts.display()));
        }
        // gcc stores its counts under the whole path of their object.
        if self.has_gcc && !counts.join(self.built().strip_prefix("/").unwrap_or(&counts)).exists() {
            return Err(format!("Lua left no counts in {}", counts.display()));
        }
        let merged = Command::new(&self.merger).arg("merge").arg("-o").arg(self.merged()).args(&raw).status();
        if !merged.is_ok_and(|status| status.success()) {
            return Err(format!("{} can't merge the counts", self.merger.display()));
        }
        remove(&self.built())?;
        let compilers = self.path("compilers");
        fs::write(&compilers, &self.compilers).map_err(|error| format!("{}: {error}", compilers.display()))
    }

    fn merged(&self) -> PathBuf {
        self.path("counts/merged.profdata")
    }

    /// Returns the flags by which unprofiled code is still optimised for speed, not size.
    fn optimising(&self) -> Vec<String> {
        vec![format!("-Cprofile-use={}", self.merged().display()), String::from("-Cllvm-args=-pgso=false")]
    }

    fn lua_optimising(&self) -> String {
        format!("'-fprofile-use={}' -fprofile-partial-training -fprofile-correction", self.path("counts").display())
    }

    /// Builds with these flags of rustc, in addition to those of the environment, and these for Lua.
    fn build(&self, flags: &[String], lua_flags: &str) -> Result<(), String> {
        let own = std::env::var("RUSTFLAGS").unwrap_or_default();
        let lines: Vec<&str> = own.split_whitespace().chain(flags.iter().map(String::as_str)).collect();
        let flags_file = self.path("flags");
        write(&flags_file, &lines.join("\n"))?;
        let mut command = Command::new("cargo");
        command.args(["build", "--profile", PACKAGED, "-p", "sluicegate", "--target", &self.host, "--target-dir"]);
        command.arg(self.path("build")).current_dir(root()).env("RUSTFLAGS", format!("@{}", flags_file.display()));
        if self.has_gcc {
            let wrapper = self.path("cc");
            let cc = &self.cc;
            write(
                &wrapper,
                &format!(
                    "#!/bin/sh\ncase \" $*\" in\n*/mlua-sys-*) exec {cc} {lua_flags} \"$@\" ;;\nesac\nexec {cc} \"$@\"\n"
                ),
            )?;
            fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
            command.env("CC", wrapper);
        }
        println!("$ cargo build --profile {PACKAGED} -p sluicegate, with {}", flags[0]);
        let status = command.status().map_err(|error| format!("cargo does not start: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("cargo build ended with {status}")) }
    }
}

/// Writes a file unless it already has this content.
fn write(file: &Path, text: &str) -> Result<(), String> {
    match fs::read_to_string(file) {
        Ok(known) if known == text => Ok(()),
        _ => fs::write(file, text).map_err(|error| format!("{}: {error}", file.display())),
    }
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// Returns the counts of each run.
fn raw(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    all.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|known| known == "profraw")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_commit_that_a_file_next_to_it_names() {
        let folder = std::env::temp_dir().join(format!("sluicegate-commit-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("created");
        let program = folder.join("sluicegate");
        assert_eq!(commit_of(&program), None);
        write(&program.with_extension(COMMIT), "1234abc+\n").expect("written");
        assert_eq!(commit_of(&program).as_deref(), Some("1234abc+"));
        fs::remove_dir_all(&folder).expect("removed");
    }
}
