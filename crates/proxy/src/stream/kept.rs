//! The memory of streams, which a worker keeps for the next ones.

use std::cell::RefCell;
use std::rc::Rc;

use sluicegate_transport::Demand;

use super::{Card, Client, StreamContext};

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

    /// Records that a stream has ended, and keeps it with `small` if it is likely to be needed; otherwise returns it.
    pub(super) fn give(&self, stream: Box<Stream>, small: bool) -> Option<Box<Stream>> {
        let mut kept = self.kept.borrow_mut();
        let most = kept.demand.give();
        if !small || kept.streams.len() >= most {
            return Some(stream);
        }
        kept.streams.push(stream);
        None
    }
}
