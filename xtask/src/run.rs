//! Runs programs, and prints their command lines.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the workspace's folder.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Returns cargo's target directory.
pub fn target() -> PathBuf {
    root().join(std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| String::from("target")))
}

/// The profile of packaged and measured programs.
pub const PACKAGED: &str = "packaged";

/// Returns the directory of a profile's programs.
pub fn built(profile: &str) -> PathBuf {
    target().join(profile)
}

/// Prints a command and runs it in the workspace's folder. Returns an error if it fails.
pub fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    run_in(&root(), program, arguments)
}

/// Like [`run`], in another folder.
pub fn run_in(folder: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
    println!("$ {program} {}", arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .status()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} {} ended with {status}", arguments.join(" "))) }
}

/// Returns a command's standard output, or `None` if it fails.
pub fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs steps in parallel and returns the errors of all.
pub fn side_by_side(steps: &[&(dyn Fn() -> Result<(), String> + Sync)]) -> Result<(), String> {
    let errors: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = steps.iter().map(|step| scope.spawn(step)).collect();
        let outcomes =
            running.into_iter().map(|step| step.join().unwrap_or_else(|_| Err("a step panicked".to_owned())));
        outcomes.filter_map(Result::err).collect()
    });
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_side_by_side_return_all_errors() {
        let (done, waits) = std::sync::mpsc::channel();
        let waits = std::sync::Mutex::new(waits);
        let fails = |word: &str| Err(word.to_owned());
        let first = || waits.lock().unwrap().recv().map_err(|error| error.to_string()).and_then(|()| fails("first"));
        let second = || done.send(()).map_err(|error| error.to_string());
        assert_eq!(side_by_side(&[&first, &second, &|| fails("third")]), Err("first\nthird".to_owned()));
        assert_eq!(side_by_side(&[]), Ok(()));
    }
}
