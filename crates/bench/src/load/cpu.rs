//! CPU time of this program, of its threads, and of another process.

use std::collections::BTreeMap;

use rustix::time::{ClockId, clock_gettime};

/// Ticks of `/proc/PID/stat` per second: the same on all current Linux architectures.
const TICKS: f64 = 100.0;

/// Returns the CPU time of the calling thread, in ns.
pub(super) fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Returns the user and system CPU time of a process in seconds, with a resolution of 10 ms, or `None` if there is no
/// such process.
pub(super) fn process_s(pid: u32) -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&stat)
}

/// Returns the time in which each thread of a process ran, and that in which it waited for a processor, in ns by its number.
/// Without accounting in the kernel there is none.
pub(super) fn threads_ns(pid: u32) -> BTreeMap<u32, (u64, u64)> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let times = |thread: std::fs::DirEntry| {
        let number = thread.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse().ok());
        Some((number, (fields.next()?, fields.next()?)))
    };
    threads.flatten().filter_map(times).collect()
}

/// Returns the time in which this machine had nothing to do, and all time, of all its processors in ticks.
pub(super) fn machine_ticks() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).take(8).collect();
    // Idle, and waiting for a disk.
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()))
}

fn parse(stat: &str) -> Option<(f64, f64)> {
    // The program name may contain blanks and parentheses; the fields after it don't.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || Some(fields.next()?.parse::<u64>().ok()? as f64 / TICKS);
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0 5 0 0";
        assert_eq!(parse(line), Some((1.5, 0.25)));
        assert!(process_s(std::process::id()).is_some());
        assert_eq!(process_s(u32::MAX), None);
        assert!(machine_ticks().is_some_and(|(idle, all)| idle <= all && all > 0));
        let threads = threads_ns(std::process::id());
        assert!(threads.values().any(|(ran, _)| *ran > 0), "{threads:?}");
        assert!(threads_ns(u32::MAX).is_empty());
        let before = thread_ns();
        while thread_ns() == before {}
    }
}
