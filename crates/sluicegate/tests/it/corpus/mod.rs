//! The corpus in `tests/corpus`: each file is a configuration with a conversation, run in Debian's haproxy and in the
//! binary under haproxy's name, with the same servers and clients; `README.md` there describes the format.
//!
//! The results of both (bytes at either end, log lines, statistics) are compared with the file's own text, so that a
//! reader sees them and a change of either program is noticed. Each case has processes of its own, so cases do not
//! affect each other, and the statistics can be compared as a whole.

mod case;
mod client;
mod mask;
mod origin;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use case::{Case, Tag};
use run::{Gone, Which};

/// The configuration of cases that have none.
const LISTEN: &str = "listen f\n    bind @f\n    server s @s\n";

/// The text before configurations without `defaults` of their own.
const DEFAULTS: &str = "defaults\n    mode http\n    log @log local0\n    option httplog\n    timeout connect 60s\n    \
    timeout client 60s\n    timeout server 60s\n";

/// The text before all configurations. The pipes, which are never used, raise the highest descriptor that haproxy
/// accepts: that of an inherited socket may be high if other tests hold many.
const GLOBAL: &str = "global\n    stats socket @dir/stats level admin\n    nbthread 1\n    maxconn 1000\n    \
                      maxpipes 900\n    log-tag t\n";

/// The number of cases that run concurrently; most of the time they wait.
const AT_ONCE: usize = 6;

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    if what.is_empty() {
        return Some(0);
    }
    bytes.windows(what.len()).position(|window| window == what)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn paths(under: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(under).expect("the corpus is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}

/// Runs a case and reports differences from the expected results. With `UPDATE_CORPUS` the file is rewritten instead:
/// results expected of both programs come from haproxy, those of Sluicegate alone from Sluicegate.
fn check(path: &Path, case: &Case, update: bool) -> Result<(), String> {
    if let Some(program) = run::other_haproxy() {
        return compare_other(case, &program);
    }
    let theirs = (case.tag != Tag::Documented).then(|| run::run(case, Which::Haproxy, None)).transpose()?;
    let lines = match (&case.tag, &theirs, &case.expected) {
        (Tag::Run, Some(Gone { lines, .. }), _) => Some(*lines),
        (_, _, Some(expected)) => Some(run::logged_lines(expected)),
        _ => None,
    };
    let ours = run::run(case, Which::Sluicegate, lines)?;
    if update {
        let mut text = format!("{}\n", case.before.trim_end_matches('\n'));
        match (&case.tag, &theirs) {
            (Tag::Run, Some(theirs)) => text.push_str(&format!("\n-- expected\n{}", theirs.text)),
            (Tag::Differs, Some(theirs)) => {
                text.push_str(&format!("\n-- expected\n{}\n-- haproxy\n{}", ours.text, theirs.text));
            }
            _ => text.push_str(&format!("\n-- expected\n{}", ours.text)),
        }
        std::fs::write(path, text).expect("writable");
        return match theirs {
            Some(theirs) if case.tag == Tag::Run => compare("Sluicegate", &theirs.text, &ours.text),
            _ => Ok(()),
        };
    }
    let Some(expected) = &case.expected else {
        return Err("says not what is expected; UPDATE_CORPUS=1 writes it".to_owned());
    };
    if let Some(theirs) = theirs {
        let of_haproxy = case.haproxy.as_ref().unwrap_or(expected);
        if case.haproxy.as_ref() == Some(expected) {
            return Err("haproxy does so too: nothing differs".to_owned());
        }
        compare("haproxy", of_haproxy, &theirs.text)?;
    }
    compare("Sluicegate", expected, &ours.text)
}

/// Runs a case only in the HAProxy of `CORPUS_HAPROXY`, and reports where its results differ from those expected of
/// Sluicegate.
fn compare_other(case: &Case, program: &Path) -> Result<(), String> {
    let Some(expected) = &case.expected else { return Ok(()) };
    let theirs = run::run(case, Which::Haproxy, Some(run::logged_lines(expected)))?;
    compare(&program.display().to_string(), expected, &theirs.text)
}

fn compare(who: &str, expected: &str, got: &str) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    let (expected, got): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), got.lines().collect());
    let mut text = format!("{who} gives something else (- expected, + got):\n");
    let (mut left, mut right) = (0, 0);
    while left < expected.len() || right < got.len() {
        if left < expected.len() && right < got.len() && expected[left] == got[right] {
            text.push_str(&format!("    {}\n", expected[left]));
            (left, right) = (left + 1, right + 1);
            continue;
        }
        // The nearest common line.
        let near = (0..40).find_map(|sum| {
            (0..=sum).find_map(|skip| {
                let (a, b) = (left + skip, right + sum - skip);
                (a < expected.len() && b < got.len() && expected[a] == got[b]).then_some((a, b))
            })
        });
        let (a, b) = near.unwrap_or((expected.len(), got.len()));
        expected[left..a].iter().for_each(|line| text.push_str(&format!("  - {line}\n")));
        got[right..b].iter().for_each(|line| text.push_str(&format!("  + {line}\n")));
        (left, right) = (a, b);
    }
    Err(text)
}

/// Runs all cases of a folder, several at a time. `CORPUS` restricts them to those whose names contain one of its
/// parts, which are separated by commas.
fn check_all(under: &Path, bytes_only: bool) {
    let only = std::env::var("CORPUS").unwrap_or_default();
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    let paths: Vec<PathBuf> = paths(under)
        .into_iter()
        .filter(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            only.split(',').any(|part| stem.contains(part))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    let work = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = case::load(path).and_then(|mut case| {
                case.bytes_only = bytes_only;
                check(path, &case, update).map_err(|fault| format!("{}: {fault}", path.display()))
            });
            if let Err(fault) = outcome {
                faults.lock().expect("not poisoned").push(fault);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..AT_ONCE).for_each(|_| {
            scope.spawn(work);
        });
    });
    let mut faults = faults.into_inner().expect("not poisoned");
    faults.sort();
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), paths.len(), faults.join("\n"));
}

/// Whatever the client sends, it and the server receive the same as with haproxy, or the file states why not.
#[test]
fn smuggling_ends_as_in_haproxy_or_is_refused() {
    check_all(&folder().join("smuggling"), true);
}

#[test]
fn every_case_gives_what_it_says_in_haproxy_and_here() {
    check_all(&folder(), false);
}
