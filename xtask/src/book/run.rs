//! One part of the book as a process group of its own, with a time limit.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::plan::{Manner, STEPS, Step};
use crate::bench::machine;
use crate::durable::peer::Place;
use crate::kept::Kept;
use crate::peers::in_path;
use crate::release;
use crate::run::{output, root, target};

/// Time between two looks at a part.
const LOOKS_EACH: Duration = Duration::from_millis(50);
/// The share of its time after which a part begins no further round.
const ROUNDS: f64 = 0.8;

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    IS_INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes an interrupt end the running part, which has a process group of its own and does not see it.
pub(super) fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores into an atomic and does nothing else.
        unsafe { libc::signal(signal, interrupt as *const () as libc::sighandler_t) };
    }
}

/// Returns the path of a peer: of `target/peers/bin`, of the search path, or of the system's programs.
fn found(name: &str) -> Option<PathBuf> {
    let newer = target().join("peers/bin").join(name);
    let system = Path::new("/usr/sbin").join(name);
    [newer, system].into_iter().find(|path| path.exists()).or_else(|| in_path(name).then(|| PathBuf::from(name)))
}

/// Returns the version of a program of this project, and its commit if that is known.
fn own_version(program: &Path) -> String {
    let version = output(&program.display().to_string(), &["version"]).unwrap_or_default();
    let commit = release::commit_of(program).unwrap_or_else(|| "of an unknown commit".to_owned());
    format!("{} {commit}", version.trim().trim_start_matches("sluicegate "))
}

/// Returns this program and the peers of all parts with their versions.
pub(super) fn versions(program: &Path) -> Vec<(String, String)> {
    let mut names: Vec<&str> = STEPS.iter().flat_map(|step| step.needs).copied().collect();
    names.push(crate::http_self::MEMTIER);
    names.sort_unstable();
    names.dedup();
    let peers = names.into_iter().map(|name| (name.to_owned(), version(name)));
    std::iter::once(("sluicegate".to_owned(), own_version(program))).chain(peers).collect()
}

fn version(name: &str) -> String {
    let Some(path) = found(name) else { return "missing".to_owned() };
    let word = if name.starts_with("haproxy") || name == "wrk" { "-v" } else { "--version" };
    // wrk prints its version and fails.
    let text = Command::new(path).arg(word).stdin(Stdio::null()).output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    text.lines().next().filter(|line| !line.is_empty()).unwrap_or("unknown").trim().to_owned()
}

/// Measures a part. One that has no time, no peer or no result is absent.
///
/// # Errors
/// If it was interrupted, or can't be started.
pub(super) fn measure(step: &Step, manner: &Manner, allowed_s: Option<u32>, program: &Path) -> Result<Kept, String> {
    let words = step.words(manner);
    let command = format!("cargo xtask bench {}", words.join(" "));
    let absent = |why: String| Ok(Kept::absent(&step.name(), command.clone(), machine(), why));
    let Some(allowed_s) = allowed_s else {
        return absent(format!("left out: it takes {} s, and less was left", manner.limit_s));
    };
    let missing: Vec<&str> = step.needs.iter().copied().filter(|name| found(name).is_none()).collect();
    if !missing.is_empty() {
        return absent(format!("not measured: {} is missing", missing.join(", ")));
    }
    let files = target().join("book");
    std::fs::create_dir_all(&files).map_err(|error| format!("{}: {error}", files.display()))?;
    let (raw, errors) = (files.join("part.json"), files.join("errors"));
    let _ = std::fs::remove_file(&raw);
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut part = Command::new(own);
    part.arg("bench").args(&words).arg("--program").arg(program).arg("--raw").arg(&raw);
    part.args(["--within", &format!("{:.0}", f64::from(allowed_s.min(manner.limit_s)) * ROUNDS)]);
    let log = File::create(&errors).map_err(|error| format!("{}: {error}", errors.display()))?;
    part.current_dir(root()).stdin(Stdio::null()).stderr(log).process_group(0);
    let mut child = part.spawn().map_err(|error| format!("{command}: {error}"))?;
    match wait(&mut child, Duration::from_secs(allowed_s.into())) {
        Ended::Well => {
            let text = std::fs::read_to_string(&raw).map_err(|error| format!("{}: {error}", raw.display()))?;
            Kept::read(&anywhere(&text, program))
        }
        Ended::Badly => {
            let text = std::fs::read_to_string(&errors).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or("it failed");
            absent(format!("failed: {}", anywhere(line, program)))
        }
        Ended::Late => absent(format!("stopped after {allowed_s} s, before its first round was over")),
        Ended::Interrupted => Err("interrupted".to_owned()),
    }
}

/// Returns text without the places of this work tree and of the program.
fn anywhere(text: &str, program: &Path) -> String {
    let names = [(program.display().to_string(), "sluicegate"), (root().display().to_string(), ".")];
    names.iter().fold(text.to_owned(), |text, (place, name)| text.replace(place, name))
}

/// How a part ended.
enum Ended {
    Well,
    Badly,
    Late,
    Interrupted,
}

/// Waits for the end of a part, and ends all that it has started.
fn wait(child: &mut Child, time: Duration) -> Ended {
    let deadline = Instant::now() + time;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break if status.success() { Ended::Well } else { Ended::Badly },
            Ok(None) if IS_INTERRUPTED.load(Ordering::Relaxed) => break Ended::Interrupted,
            Ok(None) if Instant::now() > deadline => break Ended::Late,
            Ok(None) => std::thread::sleep(LOOKS_EACH),
            Err(_) => break Ended::Badly,
        }
    };
    // SAFETY: the group is that of this function's child, whose number is not used again while one of it lives.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
    let _ = child.wait();
    for folder in [std::env::temp_dir(), Place::Memory.parent()] {
        sweep(&folder, child.id());
    }
    ended
}

/// Removes the files that a part has left in a folder of temporary ones: `sluicegate-WHAT-PID…`.
fn sweep(folder: &Path, part: u32) {
    let part = part.to_string();
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let words: Vec<&str> = name.split('-').collect();
        if words.first() == Some(&"sluicegate") && words.get(2) == Some(&part.as_str()) {
            let path = entry.path();
            let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap()
    }

    #[test]
    fn a_part_ends_with_all_that_it_has_started() {
        let long = Duration::from_secs(3600);
        assert!(matches!(wait(&mut start("exit 0"), long), Ended::Well));
        assert!(matches!(wait(&mut start("exit 1"), long), Ended::Badly));
        let mut late = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = late.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        assert!(matches!(wait(&mut late, Duration::ZERO), Ended::Late));
        // It may be a zombie until init has waited for it.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", line.trim())).unwrap_or_default();
        while !stat().is_empty() && !stat().contains(") Z ") {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_part_has_left_is_removed() {
        let folder = std::env::temp_dir().join(format!("sluicegate-sweep-test-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sluicegate-bench-12345-80/files")).unwrap();
        let kept = ["sluicegate-bench-123456", "sluicegate-bench", "other-bench-12345", "sluicegate-12345-x"];
        kept.iter().chain(&["sluicegate-logs-12345"]).for_each(|name| std::fs::write(folder.join(name), "").unwrap());
        sweep(&folder, 12_345);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), kept.len());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_book_names_no_place_of_this_machine() {
        let text = format!("{}/a and /x/bin/sluicegate run", root().display());
        assert_eq!(anywhere(&text, Path::new("/x/bin/sluicegate")), "./a and sluicegate run");
    }

    #[test]
    fn a_missing_peer_is_told() {
        let step = Step { needs: &["no-such-program", "sh"], ..STEPS[0] };
        let kept = measure(&step, &step.full, Some(1), Path::new("x")).unwrap();
        assert_eq!(kept.absent.as_deref(), Some("not measured: no-such-program is missing"));
        let kept = measure(&step, &step.full, None, Path::new("x")).unwrap();
        assert!(kept.absent.is_some_and(|why| why.starts_with("left out: ")));
        assert_eq!(version("no-such-program"), "missing");
    }
}
