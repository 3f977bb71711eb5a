//! Buffers of a connection that is at work: requests as they come in, replies as they go out.
//!
//! Room is reserved for the bytes that have arrived, not for those announced; a long argument gets its address space at
//! once, so that it is not moved as it grows. All of it is counted towards `maxmemory`.

use std::sync::Arc;

use sluicegate_wire::resp::CommandParser;

use super::dispatch::Buffers;
use crate::memory::{Kind, Memory, Outside};

/// Bytes read at a time, as in Redis.
const READ_SIZE: usize = 16 * 1024;

/// The maximum size of the pieces in which a long argument is read.
pub(super) const READ_SIZE_MAX: usize = 1 << 20;

/// Larger buffers go back to the allocator instead of to the worker.
const KEPT_CAPACITY: usize = 256 * 1024;

/// The minimum room for a long argument and the bytes after it in its request.
const ROOM_LONG: usize = 32 << 20;

/// Buffers of a connection that is at work.
pub(super) struct Workspace {
    pub(super) input: Vec<u8>,
    /// Start of the first request that is not run yet.
    pub(super) start: usize,
    pub(super) parser: CommandParser,
    pub(super) output: Vec<u8>,
    /// The minimum number of bytes that the request being read still lacks.
    pub(super) need: usize,
    /// Bytes of the input buffer that were ever used: of one that has room for all of a long request, memory is taken
    /// as it comes in.
    touched: usize,
    /// Bytes of the request whose reply comes later.
    pub(super) waits: usize,
    /// The size of these buffers that counts towards `maxmemory`.
    counted: Outside,
}

impl Default for Workspace {
    fn default() -> Workspace {
        Workspace {
            input: Vec::new(),
            start: 0,
            parser: CommandParser::default(),
            output: Vec::new(),
            need: 0,
            touched: 0,
            waits: 0,
            counted: Outside::of(Kind::Clients),
        }
    }
}

impl Workspace {
    /// Returns whether no part of a request is held.
    pub(super) fn is_idle(&self) -> bool {
        self.start == self.input.len()
    }

    pub(super) fn is_modest(&self) -> bool {
        self.input.capacity().max(self.output.capacity()).max(self.parser.memory()) <= KEPT_CAPACITY
    }

    /// Returns the number of bytes with which it is counted.
    pub(super) fn counted(&self) -> usize {
        self.counted.bytes()
    }

    pub(super) fn buffers(&self) -> Buffers {
        Buffers {
            query: self.input.len() - self.start,
            query_free: self.input.capacity() - self.input.len(),
            reply_room: self.output.capacity(),
        }
    }

    /// Counts the buffers as they are now towards `maxmemory`.
    pub(super) fn count(&mut self, memory: &Arc<Memory>) {
        self.touched = self.touched.max(self.input.len()).min(self.input.capacity());
        let input = self.touched.max(self.input.capacity().min(KEPT_CAPACITY));
        self.counted.set(memory, input + self.output.capacity() + self.parser.memory());
    }

    /// Drops the processed bytes and makes room for more.
    pub(super) fn make_room(&mut self) {
        if self.start > 0 {
            self.input.drain(..self.start);
            self.start = 0;
        }
        // A partially received argument gets room for all of it, so that it is not moved as it grows. That takes
        // address space and no memory yet. The bytes after it in the request seldom take more than a piece.
        let all = (self.need + READ_SIZE_MAX).max(ROOM_LONG);
        if self.input.len() >= READ_SIZE_MAX
            && self.need > READ_SIZE_MAX
            && self.input.capacity() - self.input.len() < self.need + READ_SIZE
            && self.input.try_reserve_exact(all).is_ok()
        {
            return;
        }
        // Never more than was received already, or a client would reserve half a gigabyte by announcing it.
        let wanted = self.need.clamp(READ_SIZE, READ_SIZE_MAX.min(self.input.len().max(READ_SIZE)));
        self.input.reserve(wanted);
    }

    pub(super) fn clear(&mut self) {
        self.input.clear();
        self.start = 0;
        self.need = 0;
        self.parser.reset();
        self.output.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_follows_what_came_not_what_was_announced() {
        let mut workspace = Workspace { need: 512 << 20, ..Workspace::default() };
        workspace.make_room();
        assert!(workspace.input.capacity() <= 2 * READ_SIZE, "{}", workspace.input.capacity());
        workspace.input.resize(100 << 10, 0);
        workspace.make_room();
        assert!(workspace.input.capacity() >= 200 << 10);
        workspace.start = workspace.input.len();
        assert!(workspace.is_idle());
        workspace.need = 0;
        workspace.make_room();
        assert_eq!((workspace.start, workspace.input.len()), (0, 0));
    }

    #[test]
    fn a_long_argument_is_not_moved_as_it_comes_in() {
        let memory = Arc::new(Memory::new());
        let (all, mut came) = (32 << 20, 0);
        let mut workspace = Workspace::default();
        let mut places = Vec::new();
        while came < all {
            workspace.need = all - came;
            workspace.make_room();
            assert!(workspace.input.capacity() > workspace.input.len());
            let piece = (workspace.input.capacity() - came).min(READ_SIZE_MAX).min(all - came);
            came += piece;
            workspace.input.resize(came, 0);
            workspace.count(&memory);
            assert!(memory.outside() <= 2 * (came + READ_SIZE_MAX) as u64, "what did not come does not count");
            if came >= READ_SIZE_MAX + READ_SIZE {
                places.push(workspace.input.as_ptr());
            }
        }
        places.dedup();
        assert!(places.len() <= 2, "it was moved {} times", places.len() - 1);
        // A few more words fit after it.
        workspace.need = 10;
        workspace.make_room();
        assert_eq!(places.last(), Some(&workspace.input.as_ptr()));
    }
}
