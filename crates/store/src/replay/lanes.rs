//! Commands of one key each, on several threads.
//!
//! Such a command reads and changes nothing but its key, so commands of different keys may run in any order. Those of one
//! key run in the order of the file: its stripe decides their *lane*, where they wait in one batch, which joins the lane's
//! queue when it is full, and one thread takes the batches out. No two threads use the same stripe.
//!
//! Any other command, and one with long words, needs all lanes [settled](Lanes::settle): the queues are empty and no
//! thread runs a batch; then the reading thread runs the batches that are not full, and that command. So a file in which
//! such commands are frequent is replayed by one thread, without waiting for another one.
//!
//! Memory: at most [`QUEUED_MAX`] batches of [`BATCH_BYTES`] each for a lane, and as many empty ones.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::runner::{Runner, Source, Told};
use crate::Inner;
use crate::catalogue::CommandSpec;

/// The maximum number of threads.
const THREADS_MAX: usize = 8;
/// A batch is full at this size, or with this number of commands.
const BATCH_BYTES: usize = 64 << 10;
const BATCH_COMMANDS: usize = if cfg!(test) { 8 } else { 1024 };
/// The number of batches that wait for a thread.
const QUEUED_MAX: usize = 4;

/// A thread has panicked.
#[derive(Debug)]
pub(crate) struct Broken;

/// The lanes of a replay.
pub(crate) struct Lanes {
    inner: Arc<Inner>,
    source: Source,
    lanes: Vec<Lane>,
    /// Whether a batch was given to a thread since the lanes were settled.
    is_busy: bool,
}

struct Lane {
    /// The batch that is not full.
    batch: Batch,
    shared: Arc<Shared>,
    /// Started with the first full batch.
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Batch>,
    spare: Vec<Batch>,
    is_running: bool,
    is_closed: bool,
    is_broken: bool,
    told: Told,
}

/// Commands, in the order of the file.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// The ends of words.
    words: Vec<u32>,
    items: Vec<Item>,
}

struct Item {
    spec: &'static CommandSpec,
    db: u32,
    /// The end of its words.
    end: u32,
    /// That of its key.
    hash: u64,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.items.len() >= BATCH_COMMANDS
    }

    fn push(&mut self, spec: &'static CommandSpec, db: u32, hash: u64, words: &[&[u8]]) {
        for word in words {
            self.bytes.extend_from_slice(word);
            self.words.push(self.bytes.len() as u32);
        }
        self.items.push(Item { spec, db, end: self.words.len() as u32, hash });
    }

    /// Runs the commands, and empties the batch.
    fn run(&mut self, runner: &mut Runner) {
        let (mut from, mut start) = (0, 0);
        for item in &self.items {
            let ends = &self.words[from..item.end as usize];
            let words: SmallVec<[&[u8]; 16]> = ends
                .iter()
                .map(|end| &self.bytes[std::mem::replace(&mut start, *end as usize)..*end as usize])
                .collect();
            runner.run(item.spec, item.db, &words, Some(item.hash));
            from = item.end as usize;
        }
        self.bytes.clear();
        self.words.clear();
        self.items.clear();
    }
}

impl Lanes {
    /// Returns lanes for commands from `source` on a number of threads; [`None`] for as many as there are cores.
    pub(crate) fn new(inner: &Arc<Inner>, source: Source, threads: Option<usize>) -> Lanes {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = threads.unwrap_or_else(cores).clamp(1, THREADS_MAX);
        let lane = || Lane { batch: Batch::default(), shared: Arc::default(), thread: None };
        let lanes = if threads > 1 { std::iter::repeat_with(lane).take(threads).collect() } else { Vec::new() };
        Lanes { inner: inner.clone(), source, lanes, is_busy: false }
    }

    /// Returns whether a command with these words may be pushed: it has one key, and copying it is worth while.
    #[inline]
    pub(crate) fn takes(&self, words: &[&[u8]]) -> bool {
        !self.lanes.is_empty() && words.iter().map(|word| word.len()).sum::<usize>() < BATCH_BYTES
    }

    /// Takes a command with one key, which runs soon.
    #[inline]
    pub(crate) fn push(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        key: &[u8],
        words: &[&[u8]],
        runner: &mut Runner,
    ) -> Result<(), Broken> {
        let keyspace = &self.inner.keyspace;
        let hash = keyspace.hasher.hash(key);
        let number = keyspace.stripe_of(hash) % self.lanes.len();
        let lane = &mut self.lanes[number];
        lane.batch.push(spec, db, hash, words);
        if lane.batch.is_full() { self.send(number, runner) } else { Ok(()) }
    }

    /// Gives the batch of a lane to its thread.
    fn send(&mut self, number: usize, runner: &mut Runner) -> Result<(), Broken> {
        let lane = &mut self.lanes[number];
        if lane.thread.is_none() {
            let (shared, inner, source) = (lane.shared.clone(), self.inner.clone(), self.source);
            let name = match source {
                Source::File => "replay",
                Source::Master => "store-link",
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            match thread.spawn(move || shared.work(inner, source)) {
                Ok(thread) => lane.thread = Some(thread),
                Err(_) => {
                    // Nothing of this lane is anywhere else.
                    lane.batch.run(runner);
                    return Ok(());
                }
            }
        }
        let mut state = lane.shared.state.lock();
        while state.queue.len() >= QUEUED_MAX && !state.is_broken {
            lane.shared.changed.wait(&mut state);
        }
        if state.is_broken {
            return Err(Broken);
        }
        let next = state.spare.pop().unwrap_or_default();
        state.queue.push_back(std::mem::replace(&mut lane.batch, next));
        self.is_busy = true;
        drop(state);
        lane.shared.changed.notify_all();
        Ok(())
    }

    /// Waits until all commands so far have run. The runner of the calling thread then knows of all of them.
    #[inline]
    pub(crate) fn settle(&mut self, runner: &mut Runner) -> Result<(), Broken> {
        if self.is_busy {
            self.wait(runner)?;
        }
        for lane in &mut self.lanes {
            if !lane.batch.items.is_empty() {
                lane.batch.run(runner);
            }
        }
        Ok(())
    }

    fn wait(&mut self, runner: &mut Runner) -> Result<(), Broken> {
        for Lane { shared, .. } in &self.lanes {
            let mut state = shared.state.lock();
            while !state.is_broken && (state.is_running || !state.queue.is_empty()) {
                shared.changed.wait(&mut state);
            }
            if state.is_broken {
                return Err(Broken);
            }
            runner.told.add(&mut state.told);
        }
        self.is_busy = false;
        Ok(())
    }
}

impl Drop for Lanes {
    /// Ends the threads; what was not settled may not have run.
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            {
                let mut state = lane.shared.state.lock();
                state.is_closed = true;
                state.queue.clear();
            }
            lane.shared.changed.notify_all();
            if let Some(thread) = lane.thread.take() {
                // Its panics are caught.
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// Runs batches until the lane is closed.
    fn work(&self, inner: Arc<Inner>, source: Source) {
        let mut runner = Runner::new(inner, source);
        let mut state = self.state.lock();
        loop {
            let Some(mut batch) = state.queue.pop_front() else {
                if state.is_closed {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            state.is_running = true;
            drop(state);
            // The reading thread may wait for room.
            self.changed.notify_all();
            let is_broken = catch_unwind(AssertUnwindSafe(|| batch.run(&mut runner))).is_err();
            state = self.state.lock();
            state.is_running = false;
            state.told.add(&mut runner.told);
            state.spare.push(batch);
            if is_broken {
                state.is_broken = true;
                state.queue.clear();
            }
            self.changed.notify_all();
            if is_broken {
                return;
            }
        }
    }
}
