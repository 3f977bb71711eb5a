//! The memory of streams, which a worker keeps for the next ones.

use std::cell::RefCell;
use std::rc::Rc;

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

/// One worker's free list of streams. They stay boxed on it, because a stream in use is a box.
#[allow(clippy::vec_box)]
pub(crate) struct FreeList {
    pub(super) kept: RefCell<Vec<Box<Stream>>>,
    /// The placeholder client of unused streams.
    pub(super) nobody: Rc<Client>,
}

impl Default for FreeList {
    fn default() -> FreeList {
        FreeList { kept: RefCell::default(), nobody: Rc::new(Client::unconnected()) }
    }
}
