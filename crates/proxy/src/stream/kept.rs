//! The memory of streams, which a worker keeps for the next ones.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Card, Client, StreamContext};

/// A stream's state: the context that rules see, and memory that the next stream uses again.
pub(crate) struct Stream {
    pub(crate) cx: StreamContext,
    /// Its place among the worker's, for as long as this memory is used.
    pub(super) card: Rc<Card>,
    pub(crate) request_out: Vec<u8>,
    pub(crate) response_out: Vec<u8>,
    /// What of the log record's bytes tracked counters know, and when they were last told.
    pub(super) tallied: (u64, u64),
    pub(super) tallied_ms: u32,
}

/// One worker's free list of streams. They stay boxed on it, because a stream in use is a box.
#[allow(clippy::vec_box)]
pub(crate) struct FreeList {
    pub(super) kept: RefCell<Vec<Box<Stream>>>,
    /// The client of those that are not in use.
    pub(super) nobody: Rc<Client>,
}

impl Default for FreeList {
    fn default() -> FreeList {
        FreeList { kept: RefCell::default(), nobody: Rc::new(Client::unconnected()) }
    }
}
