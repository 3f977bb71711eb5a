//! Inspection of a process through `/proc`, and the end of a child.

use std::io::Read;
use std::process::{Child, Output};
use std::time::Duration;

use crate::wait_for;

/// Returns the number of open descriptors of a process.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map(|entries| entries.count()).unwrap_or(0)
}

/// Returns the user plus system CPU time that a process has used.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command may contain spaces; fields are counted from its closing parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Returns the resident memory of a process in bytes.
pub fn rss_bytes(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Closes the input of a child, waits for its end and returns what it wrote to its pipes. A child that takes longer than
/// [`PATIENCE`](crate::PATIENCE) is killed, and this panics.
#[track_caller]
pub fn ended(child: Child) -> Output {
    struct Killed(Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut child = Killed(child);
    drop(child.0.stdin.take());
    let reads = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read until an error is sufficient.
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            bytes
        })
    };
    let stdout = reads(child.0.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = reads(child.0.stderr.take().map(|pipe| Box::new(pipe) as _));
    let status = wait_for("the end of a child", || child.0.try_wait().expect("waitable"));
    let [stdout, stderr] = [stdout, stderr].map(|read| read.join().expect("no panic"));
    Output { status, stdout, stderr }
}

/// Returns the number of threads of a process.
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map(|entries| entries.count()).unwrap_or(0)
}
