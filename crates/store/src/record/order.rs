//! The order of a [record](super): numbers that are drawn under locks, buffers of threads, and their merge by number.
//!
//! A number is drawn, and the effects of its unit are in a buffer, under the lock of that buffer. So the numbers of a
//! buffer rise, and one that is missing in all of them will come. Whoever puts a unit has locked what it has changed, so
//! units of the same key have their numbers in the order of the changes, and whoever sees a change finds that
//! [`last`](Order::last) is its number or a higher one.
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

/// The effects of several units, one after the other.
pub(super) trait Effects: Default {
    /// Returns their number.
    fn count(&self) -> usize;

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
    /// For each unit, its number and the end of its effects.
    pub(super) units: Vec<(u64, usize)>,
    pub(super) effects: E,
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
            let buffer = ParkingMutex::new(Buffer { units: Vec::new(), effects: E::default() });
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
        let Buffer { units, effects } = &mut *buffer;
        let (before, bytes_before) = (effects.count(), effects.bytes());
        let undo = Undo(effects, before);
        add(undo.0);
        let (end, bytes) = (undo.0.count(), undo.0.bytes());
        std::mem::forget(undo);
        shared.bytes.store(bytes as u64, Ordering::Relaxed);
        units.push((self.last.0.fetch_add(1, Ordering::SeqCst) + 1, end));
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
    /// The unit that comes next, and where its effects begin.
    at: usize,
    effect: usize,
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
                if buffer.units.is_empty() {
                    continue;
                }
                shared.0.bytes.store(0, Ordering::Relaxed);
                let spare = self.spare.pop().unwrap_or(Buffer { units: Vec::new(), effects: E::default() });
                std::mem::replace(&mut *buffer, spare)
            };
            taken.push_back(Chunk { buffer, at: 0, effect: 0 });
        }
        // Read after the units were taken: a unit behind a cut was put after the barrier was set.
        order.barrier.load(Ordering::SeqCst)
    }

    /// Calls `use_unit` with the next unit, if it was taken and its number is at most `until`: with effects, and the place
    /// of its own among them. Returns whether it was.
    pub(super) fn pass(&mut self, until: u64, use_unit: impl FnOnce(&E, Range<usize>)) -> bool {
        if self.next > until {
            return false;
        }
        let is_next =
            |taken: &VecDeque<Chunk<E>>| taken.front().is_some_and(|chunk| chunk.buffer.units[chunk.at].0 == self.next);
        if !is_next(&self.taken[self.from]) {
            let Some(from) = self.taken.iter().position(is_next) else { return false };
            self.from = from;
        }
        let taken = &mut self.taken[self.from];
        let Some(chunk) = taken.front_mut() else { return false };
        let end = chunk.buffer.units[chunk.at].1;
        use_unit(&chunk.buffer.effects, chunk.effect..end);
        (chunk.at, chunk.effect) = (chunk.at + 1, end);
        self.next += 1;
        if chunk.at == chunk.buffer.units.len()
            && let Some(Chunk { mut buffer, .. }) = taken.pop_front()
            && self.spare.len() < self.taken.len()
        {
            buffer.units.clear();
            buffer.effects.clear();
            self.spare.push(buffer);
        }
        true
    }
}
