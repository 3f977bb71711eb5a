//! Contents read by rules, and whether the rules may wait for more.
//!
//! Content rules run on the data received so far. While more may arrive within the inspect delay, a fetch that finds
//! too little records that here; a condition that cannot be decided without it ends the run, and the rules run again,
//! from the first, when bytes have arrived or the delay is over. `track-sc` waits for its sample in the same way,
//! but the rules continue with it, as in HAProxy: what the rules before have done is not done twice. At the
//! end rules run a last time, and missing data counts as absent.
//!
//! Limits: contents are copies of at most `tune.bufsize` bytes, made only for rule lists that read them.

use std::cell::Cell;
use std::num::NonZeroU64;

/// Received data of a message: TCP bytes, or the body of an HTTP message without the framing of chunks.
#[derive(Debug, Default)]
pub struct Content {
    /// The bytes.
    pub data: Vec<u8>,
    /// Bytes that scripts forwarded or sent in a TCP stream: they precede the others.
    pub outgoing: Vec<u8>,
    /// One more than the length that an HTTP message's head announces.
    pub(crate) announced: Option<NonZeroU64>,
    /// Whether the bytes of a TCP client are not an HTTP request, however many more arrive, or the request has already
    /// been forwarded.
    pub no_http: bool,
    /// The form in which fetches read it.
    pub form: ContentForm,
}

impl Content {
    /// Sets the length that an HTTP message's head announces.
    pub(crate) fn announce(&mut self, length: Option<u64>) {
        self.announced = length.and_then(|length| NonZeroU64::new(length.saturating_add(1)));
    }

    /// Returns the length that an HTTP message's head announces.
    pub(crate) fn announced(&self) -> Option<u64> {
        self.announced.map(|length| length.get() - 1)
    }
}

/// The form in which fetches read a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentForm {
    /// According to the proxy's mode.
    #[default]
    ByMode,
    /// As bytes, whatever the mode: the answer of a health check that is not `option httpchk`.
    Bytes,
    /// As HTTP, whatever the mode: the answer to `option httpchk`.
    Http,
}

impl Content {
    /// Returns the number of a TCP stream's bytes that are stored here.
    pub(crate) fn known(&self) -> usize {
        self.outgoing.len() + self.data.len()
    }

    /// Clears the content; its memory is kept.
    pub fn clear(&mut self) {
        self.data.clear();
        self.outgoing.clear();
        self.announced = None;
        self.no_http = false;
    }
}

/// Whether the running rules may wait for more, and whether a fetch found too little.
#[derive(Debug, Default)]
pub struct Inspection {
    open: Cell<bool>,
    missed: Cell<bool>,
    /// The operation with which the rules continue when there is more; 0 is their first. Two bytes, as every stream has
    /// this.
    start: Cell<u16>,
}

impl Inspection {
    /// Sets whether more may arrive; otherwise the present data is all that rules will see.
    pub fn set_open(&self, open: bool) {
        self.open.set(open);
        self.missed.set(false);
    }

    /// Returns whether more may arrive.
    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Returns whether the wait for more data is over.
    pub fn is_over(&self) -> bool {
        if self.open.get() {
            self.missed.set(true);
        }
        !self.open.get()
    }

    /// Records that a fetch found too little data, or data that may still change.
    pub fn miss(&self) {
        if self.open.get() {
            self.missed.set(true);
        }
    }

    /// Records that the fetch's result suffices, though more may arrive: a converter of its value has decided.
    pub fn settle(&self) {
        self.missed.set(false);
    }

    /// Sets the operation with which the rules continue when there is more. In a list of more than 65,535 operations they
    /// begin anew.
    pub fn continue_at(&self, op: u32) {
        self.start.set(u16::try_from(op).unwrap_or(0));
    }

    /// Returns the operation with which the rules continue, for this run alone.
    pub fn take_start(&self) -> u32 {
        self.start.take().into()
    }

    /// Returns whether a fetch found too little since the last call, and resets that.
    pub fn take_missed(&self) -> bool {
        self.missed.take()
    }
}
