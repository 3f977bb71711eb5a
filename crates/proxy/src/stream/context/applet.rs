//! Buffers between a service that answers in this process and the stream whose client it answers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_wire::http::{Message, status};

use super::StreamContext;

/// The number of output bytes that may wait for the client; beyond it the script waits.
pub(crate) const APPLET_ROOM: usize = 32 << 10;

/// A service that answers a request inside the process. Its stream runs it burst by burst and moves its bytes
/// meanwhile.
pub trait Applet {
    /// Runs one burst, unless its state is in use elsewhere.
    fn try_burst(&mut self, cx: &mut StreamContext) -> Bursted;

    /// Waits until a burst can run, and runs it. Returns `Some` if it was the last one, with whether it ended without
    /// an error.
    fn burst_later<'a>(&'a mut self, cx: &'a mut StreamContext) -> Pin<Box<dyn Future<Output = Option<bool>> + 'a>>;

    /// Ready when the next burst makes sense.
    fn poll_ready(&mut self, cx: &mut Context<'_>, io: &AppletIo) -> Poll<()>;
}

/// The result of a burst of an [`Applet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bursted {
    /// Another burst is needed once [`Applet::poll_ready`] is ready.
    Waits,
    /// The answer is complete; `false`: it ended with an error.
    Ended(bool),
    /// Nothing ran: [`Applet::burst_later`] waits.
    Busy,
}

impl dyn Applet + '_ {
    /// Runs one burst. Returns `Some` if it was the last one, with whether it ended without an error.
    pub(crate) async fn burst(&mut self, cx: &mut StreamContext) -> Option<bool> {
        match self.try_burst(cx) {
            Bursted::Waits => None,
            Bursted::Ended(ok) => Some(ok),
            Bursted::Busy => self.burst_later(cx).await,
        }
    }
}

/// The event for which a service waits from its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppletWait {
    /// More input than this many bytes, or its end.
    Input(usize),
    /// Room for output.
    Room,
}

/// The buffers between a service and its stream.
#[derive(Debug, Default)]
pub struct AppletIo {
    /// Received bytes; the script has not read `input[start..]` yet.
    pub(crate) input: Vec<u8>,
    pub(crate) start: usize,
    /// The place at which the search for a line's end continues.
    pub(crate) scanned: usize,
    /// Nothing more will be received.
    pub(crate) input_ended: bool,
    /// Sent by the script and not yet taken by the stream.
    pub(crate) output: Vec<u8>,
    /// The number of input bytes for which the script waits; the stream reads no further.
    pub(crate) wanted: usize,
    /// The deadline of that wait.
    pub(crate) deadline: Option<Instant>,
    /// The answer that an HTTP service prepares.
    pub(crate) status: u16,
    pub(crate) reason: Option<Vec<u8>>,
    pub(crate) headers: Message,
    /// `start_response` was called: the head is complete.
    pub(crate) started: bool,
}

impl AppletIo {
    pub(crate) fn new() -> AppletIo {
        AppletIo { status: 200, ..AppletIo::default() }
    }

    pub(crate) fn pending(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Returns the buffer for received bytes.
    pub(crate) fn input(&mut self) -> &mut Vec<u8> {
        if self.start == self.input.len() {
            self.input.clear();
            self.start = 0;
            self.scanned = 0;
        } else if self.start > self.input.len() / 2 {
            self.input.drain(..self.start);
            self.start = 0;
        }
        &mut self.input
    }

    /// Records that the stream has received the last byte.
    pub(crate) fn end_input(&mut self) {
        self.input_ended = true;
    }

    pub(crate) fn input_ended(&self) -> bool {
        self.input_ended
    }

    /// Returns the number of bytes that the stream may still read for the script.
    pub(crate) fn input_room(&self) -> usize {
        self.wanted.saturating_sub(self.pending().len())
    }

    /// Returns whether the awaited event has occurred.
    pub(crate) fn is_ready(&self, wait: AppletWait) -> bool {
        match wait {
            AppletWait::Input(seen) => self.input_ended || self.pending().len() > seen,
            AppletWait::Room => self.output.len() <= APPLET_ROOM / 2,
        }
    }

    /// Replaces the script's prepared response by an error page.
    pub(crate) fn fail(&mut self, status: u16, page: impl FnOnce(&mut Message) -> &'static [u8]) {
        self.status = status;
        self.reason = None;
        self.headers.clear();
        self.output.clear();
        self.output.extend_from_slice(page(&mut self.headers));
        self.started = true;
    }

    /// Returns the head of the answer, once `start_response` was called.
    pub(crate) fn head(&self) -> Option<(u16, &[u8], &Message)> {
        let reason = self.reason.as_deref().unwrap_or_else(|| status::reason(self.status).as_bytes());
        self.started.then_some((self.status, reason, &self.headers))
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        self.scanned = 0;
    }
}
