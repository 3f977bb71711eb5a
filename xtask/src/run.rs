//! Runs programs, and prints their command lines.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Like [`run_in`], with a mark before each line of output, because other programs print meanwhile.
pub fn run_marked(mark: &str, folder: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
    println!("{mark}: $ {program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    let (output, errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    std::thread::scope(|scope| {
        scope.spawn(|| marked(output, |line| println!("{mark}: {line}")));
        marked(errors, |line| eprintln!("{mark}: {line}"));
    });
    let status = child.wait().map_err(|error| format!("{program} can't be waited for: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} {} ended with {status}", arguments.join(" "))) }
}

/// Passes on the lines of a program's output as they come.
fn marked(output: impl Read, mut print: impl FnMut(&str)) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        print(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
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
    fn all_lines_are_marked() {
        let mut lines = Vec::new();
        marked(&b"a\n\n\xffb"[..], |line| lines.push(line.to_owned()));
        assert_eq!(lines, ["a", "", "\u{fffd}b"]);
        let script = |text: &str| run_marked("test", Path::new("/"), "sh", &["-c", text]);
        assert_eq!(script("echo a; echo b >&2"), Ok(()));
        assert_eq!(script("exit 3"), Err("sh -c exit 3 ended with exit status: 3".to_owned()));
    }

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
