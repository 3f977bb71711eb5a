//! Figures for INFO: written by one worker each, summed by whoever asks.
//!
//! A worker adds to atomics that nobody else writes, so an increment is a plain load and store on a cache line of its
//! own. CONFIG RESETSTAT remembers the sums of its moment and INFO subtracts them; no writer is disturbed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A number that one thread writes and all may read.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        // Not a read-modify-write: the one writer is the owner.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The figures of one worker.
#[derive(Debug)]
pub(super) struct WorkerCounters {
    pub connections: Count,
    pub rejected: Count,
    pub commands: Count,
    pub reads: Count,
    pub writes: Count,
    pub input_bytes: Count,
    pub output_bytes: Count,
    pub error_replies: Count,
    pub per_command: Vec<CommandCounters>,
}

/// The figures of one command.
#[derive(Debug, Default)]
pub(super) struct CommandCounters {
    pub calls: Count,
    pub nanoseconds: Count,
    pub rejected: Count,
    pub failed: Count,
}

impl WorkerCounters {
    pub fn new(commands: usize) -> WorkerCounters {
        WorkerCounters {
            connections: Count::default(),
            rejected: Count::default(),
            commands: Count::default(),
            reads: Count::default(),
            writes: Count::default(),
            input_bytes: Count::default(),
            output_bytes: Count::default(),
            error_replies: Count::default(),
            per_command: (0..commands).map(|_| CommandCounters::default()).collect(),
        }
    }
}

/// Sums over all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub connections: u64,
    pub rejected: u64,
    pub commands: u64,
    pub reads: u64,
    pub writes: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub error_replies: u64,
    /// calls, nanoseconds, rejected, failed
    pub per_command: Vec<[u64; 4]>,
}

impl Totals {
    pub fn add(&mut self, worker: &WorkerCounters) {
        self.connections += worker.connections.get();
        self.rejected += worker.rejected.get();
        self.commands += worker.commands.get();
        self.reads += worker.reads.get();
        self.writes += worker.writes.get();
        self.input_bytes += worker.input_bytes.get();
        self.output_bytes += worker.output_bytes.get();
        self.error_replies += worker.error_replies.get();
        self.per_command.resize(worker.per_command.len(), [0; 4]);
        for (sum, command) in self.per_command.iter_mut().zip(&worker.per_command) {
            sum[0] += command.calls.get();
            sum[1] += command.nanoseconds.get();
            sum[2] += command.rejected.get();
            sum[3] += command.failed.get();
        }
    }

    pub fn since(mut self, base: &Totals) -> Totals {
        self.connections -= base.connections;
        self.rejected -= base.rejected;
        self.commands -= base.commands;
        self.reads -= base.reads;
        self.writes -= base.writes;
        self.input_bytes -= base.input_bytes;
        self.output_bytes -= base.output_bytes;
        self.error_replies -= base.error_replies;
        for (sum, base) in self.per_command.iter_mut().zip(&base.per_command) {
            sum.iter_mut().zip(base).for_each(|(sum, base)| *sum -= base);
        }
        self
    }
}

/// Kinds of errors remembered: as many as Redis, so that a client can't fill memory with codes of its own making.
const ERROR_CODES_MAX: usize = 128;

/// Error replies by their code, for `INFO errorstats`.
#[derive(Debug, Default)]
pub(super) struct Errors(Mutex<BTreeMap<String, u64>>);

impl Errors {
    /// Counts an error reply; `line` starts behind the dash.
    pub fn count(&self, line: &[u8]) {
        let code = line.split(|byte| matches!(byte, b' ' | b'\r')).next().unwrap_or_default();
        let code = String::from_utf8_lossy(code);
        let mut all = self.0.lock();
        if let Some(count) = all.get_mut(&*code) {
            *count += 1;
        } else if all.len() < ERROR_CODES_MAX {
            all.insert(code.into_owned(), 1);
        }
    }

    pub fn list(&self) -> Vec<(String, u64)> {
        self.0.lock().iter().map(|(code, count)| (code.clone(), *count)).collect()
    }

    pub fn reset(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_start_again_at_a_reset_without_touching_the_writers() {
        let worker = WorkerCounters::new(1);
        worker.commands.add(3);
        worker.per_command[0].calls.add(2);
        let mut base = Totals::default();
        base.add(&worker);
        worker.commands.add(4);
        worker.per_command[0].calls.add(5);
        let mut now = Totals::default();
        now.add(&worker);
        let now = now.since(&base);
        assert_eq!((now.commands, now.per_command[0][0]), (4, 5));
    }

    #[test]
    fn errors_are_counted_by_code() {
        let errors = Errors::default();
        errors.count(b"ERR unknown\r\n");
        errors.count(b"ERR other\r\n");
        errors.count(b"NOAUTH\r\n");
        assert_eq!(errors.list(), [("ERR".to_owned(), 2), ("NOAUTH".to_owned(), 1)]);
        errors.reset();
        assert!(errors.list().is_empty());
    }
}
