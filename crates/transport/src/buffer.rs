//! Buffers of `tune.bufsize` bytes, and the worker's free list of them.
//!
//! A connection takes a buffer when there is something to read and returns it when it is empty, so memory grows with
//! the bytes in flight and not with the number of connections. The free list is bounded; further buffers are returned
//! to the allocator. The worker's pipes are kept with them.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pipe::{Pipe, Pipes};

/// The maximum number of unused buffers that a worker keeps.
const KEPT: usize = 256;

/// The bytes of all buffers of the process, in use or on a free list (`PoolAlloc_bytes`). It changes only when a free
/// list is empty or full, so sharing it between workers costs almost nothing.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Bytes of all buffers of the process, in use or on a free list.
pub fn allocated() -> u64 {
    ALLOCATED.load(Ordering::Relaxed)
}

/// A buffer's memory; it is counted for as long as this value exists.
#[derive(Debug, Default)]
struct Memory(Box<[u8]>);

impl Memory {
    fn new(size: usize) -> Memory {
        ALLOCATED.fetch_add(size as u64, Ordering::Relaxed);
        Memory(vec![0; size].into_boxed_slice())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            ALLOCATED.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The figures of one worker's pool, which other threads read; only its worker writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PoolFigures {
    /// Bytes of buffers on the free list.
    pub buffers_free: AtomicU64,
    /// Pipes in use.
    pub pipes_used: AtomicU64,
    /// Pipes that are kept for reuse.
    pub pipes_free: AtomicU64,
    /// Bytes that were sent through pipes.
    pub spliced: AtomicU64,
}

/// Limits of pipes.
#[derive(Clone, Copy, Debug)]
pub struct PipeLimits {
    /// The maximum number of pipes of this worker.
    pub most: u32,
    /// The number of pipes of all workers, for which descriptors are needed; 0: they are reserved.
    pub of_all: u32,
    /// The size of each pipe in bytes; 0 selects the default.
    pub size: usize,
}

/// One worker's free list.
pub struct BufferPool {
    size: usize,
    free: RefCell<Vec<Memory>>,
    pipes: Pipes,
    /// The limit of all workers' pipes.
    pipes_of_all: u32,
    /// Returns whether there are enough descriptors for a number of pipes.
    leaves: Box<dyn Fn(u32) -> bool>,
    figures: Arc<PoolFigures>,
}

impl BufferPool {
    /// Returns a pool of buffers of `size` bytes, without pipes.
    pub fn new(size: usize) -> BufferPool {
        BufferPool {
            size,
            free: RefCell::new(Vec::new()),
            pipes: Pipes::new(1, 0),
            pipes_of_all: 0,
            leaves: Box::new(|_| true),
            figures: Arc::default(),
        }
    }

    /// Returns the pool of a worker. `leaves` returns whether there are enough descriptors for a number of pipes.
    pub fn of_worker(
        size: usize,
        pipes: PipeLimits,
        leaves: impl Fn(u32) -> bool + 'static,
        figures: Arc<PoolFigures>,
    ) -> BufferPool {
        let PipeLimits { most, of_all, size: pipe_size } = pipes;
        let (pipes, leaves) = (Pipes::new(most, pipe_size), Box::new(leaves));
        BufferPool { pipes, pipes_of_all: of_all, leaves, figures, ..BufferPool::new(size) }
    }

    /// Returns an empty pipe, if one is free.
    pub fn take_pipe(&self) -> Option<Pipe> {
        let pipe = self.pipes.take(|| (self.leaves)(self.pipes_of_all))?;
        self.note_pipes();
        Some(pipe)
    }

    /// Puts a pipe back; a pipe that is not empty is closed.
    pub fn give_back_pipe(&self, pipe: Pipe) {
        self.pipes.give_back(pipe);
        self.note_pipes();
    }

    /// Closes the free pipes, after descriptors have run out; returns their number.
    pub fn shed_pipes(&self) -> usize {
        let count = self.pipes.shed();
        self.note_pipes();
        count
    }

    fn note_pipes(&self) {
        let (used, free) = self.pipes.counts();
        self.figures.pipes_used.store(used.into(), Ordering::Relaxed);
        self.figures.pipes_free.store(free.into(), Ordering::Relaxed);
    }

    /// Records that bytes were sent through a pipe.
    pub fn note_spliced(&self, count: usize) {
        let spliced = &self.figures.spliced;
        spliced.store(spliced.load(Ordering::Relaxed).wrapping_add(count as u64), Ordering::Relaxed);
    }

    fn note_free(&self, count: usize) {
        self.figures.buffers_free.store((count * self.size) as u64, Ordering::Relaxed);
    }

    /// Returns the size of each buffer, bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Gives `buffer` memory, if it has none.
    pub fn equip(&self, buffer: &mut Buffer) {
        if buffer.bytes.is_empty() {
            let mut free = self.free.borrow_mut();
            buffer.bytes = free.pop().unwrap_or_else(|| Memory::new(self.size));
            self.note_free(free.len());
        }
    }

    /// Gives the memory of `buffer` back to the pool, if it contains no data.
    pub fn retire(&self, buffer: &mut Buffer) {
        if buffer.is_empty() {
            self.reclaim(buffer);
        }
    }

    /// Gives the memory of `buffer` back to the pool, and discards any data in it.
    pub fn reclaim(&self, buffer: &mut Buffer) {
        buffer.start = 0;
        buffer.end = 0;
        let bytes = std::mem::take(&mut buffer.bytes);
        let mut free = self.free.borrow_mut();
        if bytes.len() == self.size && free.len() < KEPT {
            free.push(bytes);
            self.note_free(free.len());
        }
    }
}

/// Bytes between a reader and a writer: filled at the end, consumed at the start.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Memory,
    start: usize,
    end: usize,
}

impl Buffer {
    /// Returns the bytes that were not consumed yet.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the number of bytes not consumed yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns whether there is nothing to consume.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Consumes `count` bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Returns the room at the end, without moving anything.
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Declares `count` bytes of the spare room filled.
    #[inline]
    pub fn filled(&mut self, count: usize) {
        debug_assert!(self.end + count <= self.bytes.len());
        self.end += count;
    }

    /// Moves the data to the start, so that all room is at the end.
    pub fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Replaces the content by as many of these bytes as fit.
    pub fn replace(&mut self, bytes: &[u8]) {
        (self.start, self.end) = (0, 0);
        self.append(bytes);
    }

    /// Appends as many of `bytes` as fit; returns their number.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.bytes.len() - self.end);
        self.bytes[self.end..self.end + count].copy_from_slice(&bytes[..count]);
        self.end += count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_in_at_the_end_and_out_at_the_start() {
        let pool = BufferPool::new(8);
        let mut buffer = Buffer::default();
        pool.equip(&mut buffer);
        assert_eq!(buffer.append(b"abcdef"), 6);
        buffer.consume(4);
        assert_eq!(buffer.append(b"ghij"), 2);
        assert_eq!(buffer.data(), b"efgh");
        buffer.compact();
        assert_eq!(buffer.append(b"ijkl"), 4);
        assert_eq!(buffer.data(), b"efghijkl");
        pool.retire(&mut buffer);
        assert_eq!(buffer.len(), 8, "a buffer with data keeps its memory");
        buffer.replace(b"xyz");
        assert_eq!(buffer.data(), b"xyz");
        buffer.consume(3);
        pool.retire(&mut buffer);
        assert!(buffer.spare().is_empty());
        assert_eq!(pool.free.borrow().len(), 1);
    }
}
