//! The server that a stream asks for, as its context keeps it.

use std::sync::Arc;

use crate::stick::{Key, Table};

/// The persistence state of a stream.
#[derive(Debug, Default)]
pub struct Persistence {
    /// The server's place in its backend.
    pub server: Option<usize>,
    /// The place of the one that had the session's request before, in the same backend.
    pub last: Option<usize>,
    /// Whether it is asked for even if it is down (`force-persist`).
    pub forced: bool,
    /// Cookies are left alone (`ignore-persist`).
    pub ignored: bool,
    /// The times at which the client's cookie was last renewed and first set, seconds since 1970.
    pub(super) dates: (Option<u64>, Option<u64>),
    /// The letters for the cookie of request and response.
    pub(super) letters: (u8, u8),
    pub(super) stores: Vec<Store>,
}

/// A table entry to store once the server has answered.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) table: Arc<Table>,
    pub(super) key: Key,
    pub(super) response: bool,
}

impl Persistence {
    /// Ready for another stream.
    pub fn clear(&mut self) {
        let Persistence { server, last, forced, ignored, dates, letters, stores } = self;
        (*server, *forced, *ignored, *dates, *letters) = (None, false, false, (None, None), (b'-', b'-'));
        *last = None;
        stores.clear();
    }
}
