//! The order of a [record](super): numbers that are drawn under locks, buffers of threads, and their merge by number.
//!
//! A number is drawn, and the effects of its unit are in a buffer, under the lock of that buffer. So the numbers of a
//! buffer rise, and one that is missing in all of them will come. Whoever puts a unit has locked what it has changed, so
//! units of the same key have their numbers in the order of the changes, and whoever sees a change finds that
//! [`last`](Order::last) is its number or a higher one.
//!
//! Units that follow each other without one of another buffer in between, and have the same form, are joined: a *run* has
//! one entry, one effect, and is passed on at once, or in parts where a limit lies within it.
//!
//! A cut sets a *barrier* while nobody changes anything: units behind it are not passed on until it is lifted.
//!
//! This file is independent of the store, and takes its primitives from its parent module, so that a test can run it
//! under a model checker with other primitives.

use std::collections::VecDeque;
use std::ops::Range;

use super::sync::{AtomicU64, Ordering, ParkingMutex};

/// A value on cache lines of its own, because every writer changes it.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Apart<T>(pub(super) T);

/// The bytes of a buffer after which it is looked how many bytes wait.
const LOOKS_EACH: usize = 1 << 20;

/// The effects of several units, one after the other. An effect may be that of a run of units.
pub(super) trait Effects: Default {
    /// Returns their number.
    fn count(&self) -> usize;

    /// Makes the last two effects one, if they can be, and parted again.
    fn join(&mut self) -> bool;

    /// Returns where so many units of a run end in its effect, given where the first of them begins.
    fn end_of(&self, effect: usize, begin: usize, units: u64) -> usize;

    /// Returns their length in bytes.
    fn bytes(&self) -> usize;

    /// Removes all, and keeps the memory unless it is much.
    fn clear(&mut self);

    /// Removes those behind so many.
    fn truncate(&mut self, count: usize);
}

/// Units that threads have put.
pub(super) struct Shared<E> {
    pub(super) buffer: ParkingMutex<Buffer<E>>,
    /// The bytes of its effects. Changed under the lock.
    bytes: AtomicU64,
}

pub(super) struct Buffer<E> {
    pub(super) runs: Vec<Run>,
    pub(super) effects: E,
}

/// A unit, or several with consecutive numbers and one effect.
pub(super) struct Run {
    pub(super) numbers: Range<u64>,
    pub(super) effects: Range<usize>,
}

/// Units that are passed on.
pub(super) struct Passed {
    /// The places of their effects.
    pub(super) effects: Range<usize>,
    /// Their part of a run's effect, if it is not the whole.
    pub(super) part: Option<Range<usize>>,
}

/// The numbers and the buffers.
pub(super) struct Order<E> {
    /// The number of the last unit.
    pub(super) last: Apart<AtomicU64>,
    pub(super) buffers: Box<[Apart<Shared<E>>]>,
    /// The number of the last unit before a cut, as long as nothing behind it may be passed on; otherwise `u64::MAX`.
    pub(super) barrier: AtomicU64,
}

impl<E: Effects> Order<E> {
    /// Returns the order of no units. The number of buffers is a power of two; threads share them by their numbers.
    pub(super) fn new(buffers: usize) -> Order<E> {
        assert!(buffers.is_power_of_two());
        let buffer = |_| {
            let buffer = ParkingMutex::new(Buffer { runs: Vec::new(), effects: E::default() });
            Apart(Shared { buffer, bytes: AtomicU64::new(0) })
        };
        Order {
            // So that 0 is below everything, for a file that has nothing yet.
            last: Apart(AtomicU64::new(1)),
            buffers: (0..buffers).map(buffer).collect(),
            barrier: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns the number of the last unit.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.last.0.load(Ordering::SeqCst)
    }

    /// Returns the bytes of units that nobody has taken.
    pub(super) fn waiting(&self) -> u64 {
        self.buffers.iter().map(|shared| shared.0.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Adds a unit with the effects that `add` adds, in the buffer of a thread. If it panics there is no unit, and no
    /// number was drawn. Calls `look` now and then, under the lock of the buffer: whoever takes this unit does so later.
    #[inline]
    pub(super) fn put(&self, thread: usize, add: impl FnOnce(&mut E), look: impl FnOnce()) {
        /// Removes what was added before a panic: it would be part of the next unit.
        struct Undo<'e, E: Effects>(&'e mut E, usize);
        impl<E: Effects> Drop for Undo<'_, E> {
            fn drop(&mut self) {
                self.0.truncate(self.1);
            }
        }
        let shared = &self.buffers[thread & (self.buffers.len() - 1)].0;
        let mut buffer = shared.buffer.lock();
        let Buffer { runs, effects } = &mut *buffer;
        let (before, bytes_before) = (effects.count(), effects.bytes());
        let undo = Undo(effects, before);
        add(undo.0);
        let (end, bytes) = (undo.0.count(), undo.0.bytes());
        std::mem::forget(undo);
        shared.bytes.store(bytes as u64, Ordering::Relaxed);
        let number = self.last.0.fetch_add(1, Ordering::SeqCst) + 1;
        match runs.last_mut() {
            Some(run) if run.numbers.end == number && run.effects.len() == 1 && end == before + 1 && effects.join() => {
                run.numbers.end += 1;
            }
            _ => runs.push(Run { numbers: number..number + 1, effects: before..end }),
        }
        if bytes_before / LOOKS_EACH != bytes / LOOKS_EACH {
            look();
        }
    }

    /// Lets nothing behind the last unit be passed on, and returns its number. Nobody changes anything meanwhile.
    pub(super) fn set_barrier(&self) -> u64 {
        let last = self.last();
        self.barrier.store(last, Ordering::SeqCst);
        last
    }

    /// Returns the number up to which units may be passed on.
    pub(super) fn barrier(&self) -> u64 {
        self.barrier.load(Ordering::SeqCst)
    }

    /// Lets everything be passed on.
    pub(super) fn lift_barrier(&self) {
        self.barrier.store(u64::MAX, Ordering::SeqCst);
    }
}

/// What the thread that takes units knows of them.
pub(super) struct Merger<E> {
    /// For each buffer, what was taken from it, in its order.
    taken: Vec<VecDeque<Chunk<E>>>,
    /// The number of the next unit.
    next: u64,
    /// The buffer of the last unit.
    from: usize,
    /// Memory for buffers.
    spare: Vec<Buffer<E>>,
}

/// The contents of a buffer.
struct Chunk<E> {
    buffer: Buffer<E>,
    /// The run that comes next.
    at: usize,
    /// The position in its effect up to which units were passed on.
    begin: usize,
}

impl<E: Effects> Merger<E> {
    /// Returns a merger of so many buffers, from a number on.
    pub(super) fn new(buffers: usize, next: u64) -> Merger<E> {
        Merger { taken: (0..buffers).map(|_| VecDeque::new()).collect(), next, from: 0, spare: Vec::new() }
    }

    /// Returns the number of the next unit.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Takes the units that are in the buffers now. Returns the number up to which they may be passed on.
    pub(super) fn take(&mut self, order: &Order<E>) -> u64 {
        for (shared, taken) in order.buffers.iter().zip(&mut self.taken) {
            let buffer = {
                let mut buffer = shared.0.buffer.lock();
                if buffer.runs.is_empty() {
                    continue;
                }
                shared.0.bytes.store(0, Ordering::Relaxed);
                let spare = self.spare.pop().unwrap_or(Buffer { runs: Vec::new(), effects: E::default() });
                std::mem::replace(&mut *buffer, spare)
            };
            taken.push_back(Chunk { buffer, at: 0, begin: 0 });
        }
        // Read after the units were taken: a unit behind a cut was put after the barrier was set.
        order.barrier.load(Ordering::SeqCst)
    }

    /// Calls `use_units` with the next unit, or several, if it was taken and its number is at most `until`: with effects, and
    /// which of these are passed on. Returns whether it was.
    pub(super) fn pass(&mut self, until: u64, use_units: impl FnOnce(&E, Passed)) -> bool {
        if self.next > until {
            return false;
        }
        let is_next = |taken: &VecDeque<Chunk<E>>| {
            taken.front().is_some_and(|chunk| chunk.buffer.runs[chunk.at].numbers.start == self.next)
        };
        if !is_next(&self.taken[self.from]) {
            let Some(from) = self.taken.iter().position(is_next) else { return false };
            self.from = from;
        }
        let taken = &mut self.taken[self.from];
        let Some(Chunk { buffer: Buffer { runs, effects }, at, begin }) = taken.front_mut() else { return false };
        let run = &mut runs[*at];
        let Range { start, end } = run.numbers;
        let of_run = run.effects.clone();
        if until < end - 1 {
            // Only what a limit lies in is parted.
            let part_end = effects.end_of(of_run.start, *begin, until + 1 - start);
            use_units(effects, Passed { part: Some(*begin..part_end), effects: of_run });
            (*begin, run.numbers.start, self.next) = (part_end, until + 1, until + 1);
            return true;
        }
        let part = if *begin > 0 { Some(*begin..usize::MAX) } else { None };
        use_units(effects, Passed { part, effects: of_run });
        (*at, *begin, self.next) = (*at + 1, 0, end);
        if *at == runs.len()
            && let Some(Chunk { mut buffer, .. }) = taken.pop_front()
            && self.spare.len() < self.taken.len()
        {
            buffer.runs.clear();
            buffer.effects.clear();
            self.spare.push(buffer);
        }
        true
    }
}
