//! The memory of streams, which a worker keeps for the next ones.

use std::cell::RefCell;
use std::rc::Rc;

use sluicegate_transport::Demand;

use super::{Card, Client, StreamContext};

/// The maximum capacity, in bytes, of an output buffer that the next stream inherits. A head or a chunked body may have
/// grown it.
const KEPT_BYTES: usize = 64 * 1024;

/// The maximum bytes of a stream that is kept beyond [`Demand::LEAST`] others: large heads of a thousand streams at once
/// are no reason to keep their memory.
const USUAL_BYTES: usize = 8 * 1024;

/// A stream's state: the context that rules use, and memory that the next stream reuses.
pub(crate) struct Stream {
    pub(crate) cx: StreamContext,
    /// Its descriptor among the worker's, as long as this memory is used.
    pub(super) card: Rc<Card>,
    pub(crate) request_out: Vec<u8>,
    pub(crate) response_out: Vec<u8>,
    /// The log record's bytes already added to tracked counters, and the time of the last update.
    pub(super) tallied: (u64, u64),
    pub(super) tallied_ms: u32,
}

// The allocator's class of this size; the next one is of 2048 bytes.
const _: () = assert!(size_of::<Stream>() <= 1792);

/// One worker's free list of streams. They stay boxed on it, because a stream in use is a box.
pub(crate) struct FreeList {
    kept: RefCell<Kept>,
    /// The placeholder client of unused streams.
    pub(super) nobody: Rc<Client>,
}

#[allow(clippy::vec_box)]
#[derive(Default)]
struct Kept {
    streams: Vec<Box<Stream>>,
    demand: Demand,
}

impl Default for FreeList {
    fn default() -> FreeList {
        FreeList { kept: RefCell::default(), nobody: Rc::new(Client::unconnected()) }
    }
}

impl FreeList {
    /// Records that a stream begins; returns an unused one, if there is one.
    pub(super) fn take(&self) -> Option<Box<Stream>> {
        let mut kept = self.kept.borrow_mut();
        kept.demand.take();
        kept.streams.pop()
    }

    /// Records that a stream has ended, and keeps it if one like it is likely to be needed; otherwise returns it.
    pub(super) fn give(&self, stream: Box<Stream>) -> Option<Box<Stream>> {
        let mut kept = self.kept.borrow_mut();
        let most = kept.demand.give();
        let count = kept.streams.len();
        if count >= most || !stream.is_kept_beside(count) {
            return Some(stream);
        }
        kept.streams.push(stream);
        None
    }
}

impl Stream {
    fn is_kept_beside(&self, others: usize) -> bool {
        let outputs = [self.request_out.capacity(), self.response_out.capacity()];
        is_worth_keeping(outputs, [self.cx.request.capacity(), self.cx.response.capacity()], others)
    }
}

/// Returns whether the memory of outputs and heads, in bytes, is small enough to be kept beside that of so many others.
fn is_worth_keeping(outputs: [usize; 2], heads: [usize; 2], others: usize) -> bool {
    outputs.iter().all(|bytes| *bytes <= KEPT_BYTES)
        && (others < Demand::LEAST || outputs.into_iter().chain(heads).sum::<usize>() <= USUAL_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_heads_are_kept_in_small_numbers() {
        let (few, many) = (Demand::LEAST - 1, Demand::LEAST);
        let kept = |outputs, heads| [few, many].map(|others| is_worth_keeping(outputs, heads, others));
        assert_eq!(kept([2048; 2], [2048; 2]), [true, true]);
        assert_eq!(kept([2048; 2], [2048, 16_384]), [true, false]);
        assert_eq!(kept([KEPT_BYTES, 0], [0; 2]), [true, false]);
        assert_eq!(kept([0, KEPT_BYTES + 1], [0; 2]), [false, false]);
    }
}
