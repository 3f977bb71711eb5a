//! Contents that rules look at, and whether they may wait for more.
//!
//! Content rules run on what has come. While more may come within the inspect delay, a fetch that finds too little
//! says so here; a condition that can't be decided without it ends the run, and the rules run again, from the first,
//! when bytes have come or the delay is over. At the end they run a last time, and what is missing then is missing.
//!
//! Limits: contents are copies of at most `tune.bufsize` bytes, made only for rule lists that look at them.

use std::cell::Cell;

/// What came of a message: TCP bytes, or the body of an HTTP message without its chunks' frames.
#[derive(Debug, Default)]
pub struct Content {
    /// The bytes.
    pub data: Vec<u8>,
    /// What scripts forwarded or sent of a TCP stream: it goes before the bytes.
    pub outgoing: Vec<u8>,
    /// The length that an HTTP message's head announces.
    pub announced: Option<u64>,
    /// The bytes of a TCP client are no HTTP request, however many more come; or the request is not here any more.
    pub no_http: bool,
    /// How fetches read it.
    pub form: ContentForm,
}

/// How fetches read a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentForm {
    /// As the proxy's mode says.
    #[default]
    ByMode,
    /// As bytes, whatever the mode: the answer of a health check that is not `option httpchk`.
    Bytes,
    /// As HTTP, whatever the mode: the answer to `option httpchk`.
    Http,
}

impl Content {
    /// Bytes of a TCP stream's buffer that are known here.
    pub(crate) fn known(&self) -> usize {
        self.outgoing.len() + self.data.len()
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.outgoing.clear();
        self.announced = None;
        self.no_http = false;
    }
}

/// Whether the rules that run may wait for more, and whether a fetch found too little.
#[derive(Debug, Default)]
pub struct Inspection {
    open: Cell<bool>,
    missed: Cell<bool>,
}

impl Inspection {
    /// More may come (`true`), or what is here is all that rules will see.
    pub fn set_open(&self, open: bool) {
        self.open.set(open);
        self.missed.set(false);
    }

    /// Whether more may come.
    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Nothing is waited for any more.
    pub fn is_over(&self) -> bool {
        if self.open.get() {
            self.missed.set(true);
        }
        !self.open.get()
    }

    /// A fetch found too little, or something that may still change.
    pub fn miss(&self) {
        if self.open.get() {
            self.missed.set(true);
        }
    }

    /// What a fetch found is enough, though more may come: a converter of its value has decided.
    pub fn settle(&self) {
        self.missed.set(false);
    }

    /// Whether one did since this was asked last.
    pub fn take_missed(&self) -> bool {
        self.missed.take()
    }
}
