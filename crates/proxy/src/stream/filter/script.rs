//! A script's filter of a body.
//!
//! The stage gathers what reaches it, and its script is called when the source has nothing more for now, the body has
//! ended, the memory is full, or the time has come for which the script has asked. What the script does not forward
//! stays here. A script needs the stream's context, which a chain does not have: the stage says that its script is due,
//! and [`Chain::run_scripts`](super::Chain::run_scripts) calls it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Carries;
use crate::stream::StreamContext;
use crate::stream::context::{FilterEvent, FilterPayload, FilterVerdict, ScriptFilter};

/// The time after which a script is called again whose state is in use.
const BUSY: Duration = Duration::from_millis(1);

/// A filter that failed, or whose function returned `filter.ERROR`; that of a payload cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilterFailed;

/// A script's filter in a chain.
pub(crate) struct ScriptStage {
    filter: Rc<dyn ScriptFilter>,
    response: bool,
    /// The function that is called with the data: `http_payload` or `tcp_payload`.
    event: FilterEvent,
    payload: FilterPayload,
    /// The most bytes that it holds.
    most: usize,
    /// Whether its script has seen all the data.
    seen: bool,
    /// Whether the script is to be called.
    due: bool,
    /// Whether the body has ended in front of it.
    source_ended: bool,
    /// Whether all data and the end of the body have passed the script.
    passed: bool,
    /// Whether the script is to be told so.
    ends: bool,
    /// Whether the body has ended behind it.
    finished: bool,
    /// The time at which the script is called again.
    wake: Option<Instant>,
}

impl std::fmt::Debug for ScriptStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptStage").field("payload", &self.payload).field("due", &self.due).finish_non_exhaustive()
    }
}

impl ScriptStage {
    /// Returns the stage of a script that holds at most `most` bytes.
    pub(super) fn new(filter: Rc<dyn ScriptFilter>, response: bool, carries: Carries, most: usize) -> ScriptStage {
        ScriptStage {
            filter,
            response,
            event: if carries == Carries::Body { FilterEvent::Payload } else { FilterEvent::Bytes },
            payload: FilterPayload::default(),
            most,
            seen: true,
            // As in HAProxy, the script is called when a tunnel opens, before any data.
            due: carries == Carries::Tunnel,
            source_ended: false,
            passed: false,
            ends: false,
            finished: false,
            wake: None,
        }
    }

    /// Takes the first part of the data; returns its length.
    pub(super) fn take(&mut self, data: &[u8]) -> usize {
        // Nothing follows the end that a script has set.
        if self.passed {
            return data.len();
        }
        let held = &mut self.payload.content.data;
        let count = data.len().min(self.most.saturating_sub(held.len()));
        held.extend_from_slice(&data[..count]);
        if count > 0 {
            self.seen = false;
        }
        if count < data.len() {
            self.flush();
        }
        count
    }

    /// Lets the script have what is there, because the next data may be late.
    pub(super) fn flush(&mut self) {
        self.due |= !self.seen;
    }

    /// Ends the body in front of the filter; returns whether it has ended behind it.
    pub(super) fn end(&mut self) -> bool {
        if !self.source_ended {
            self.source_ended = true;
            if !self.passed {
                self.payload.ended = true;
                self.due = true;
            }
        }
        self.finished
    }

    /// Returns whether its script is to be called with the data.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Returns whether its script is to be told that the body has passed.
    pub(super) fn ends(&self) -> bool {
        self.ends
    }

    /// Returns the time at which its script is to be called again.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.wake
    }

    /// Makes the script due if its time has come.
    pub(super) fn awake(&mut self, now: Instant) {
        if self.wake.is_some_and(|wake| wake <= now) {
            self.wake = None;
            self.due = !self.passed;
            self.ends = self.passed && !self.finished;
        }
    }

    /// Returns whether data or the end of the body waits for the script, which is not due.
    pub(super) fn stalls(&self) -> bool {
        !self.due
            && !self.ends
            && ((self.source_ended && !self.finished) || self.payload.content.data.len() >= self.most)
    }

    /// Calls the script; `give` receives what it forwards. `false` if the script's state is in use.
    pub(super) fn run(&mut self, cx: &mut StreamContext, give: &mut dyn FnMut(&[u8])) -> Result<bool, FilterFailed> {
        self.wake = None;
        let sees = self.filter.sees_data(self.response);
        let mut count = self.payload.content.data.len();
        if sees && self.filter.handles(self.event) {
            let payload = Some(&mut self.payload);
            let Some(answer) = self.filter.call(cx, self.event, self.response, payload) else {
                return self.busy();
            };
            if answer.failed {
                return Err(FilterFailed);
            }
            // As in HAProxy, a negative number is all.
            let left = self.payload.content.data.len();
            count = answer.code.and_then(|code| usize::try_from(code).ok()).map_or(left, |code| code.min(left));
            self.wake = answer.wake.map(|time| Instant::now() + time);
        }
        let content = &mut self.payload.content;
        if !content.outgoing.is_empty() {
            give(&content.outgoing);
            content.outgoing.clear();
        }
        if count > 0 {
            give(&content.data[..count]);
            content.data.drain(..count);
        }
        self.seen = true;
        self.due = false;
        self.passed = self.payload.ended && self.payload.content.data.is_empty();
        self.ends = self.passed;
        Ok(true)
    }

    /// Returns whether all data has passed, and the end of the body with it.
    pub(super) fn has_passed(&self) -> bool {
        self.passed
    }

    /// Returns whether the body has ended behind the filter.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Tells the script that the body has passed. `false` if the script's state is in use.
    pub(super) fn finish(&mut self, cx: &mut StreamContext) -> Result<bool, FilterFailed> {
        self.wake = None;
        // The end of TCP and of a tunnel is not that of a message.
        let told = self.event == FilterEvent::Payload && self.filter.handles(FilterEvent::MessageEnd);
        if told && self.filter.sees_data(self.response) {
            let Some(answer) = self.filter.call(cx, FilterEvent::MessageEnd, self.response, None) else {
                return self.busy();
            };
            self.ends = false;
            match answer.verdict() {
                FilterVerdict::Continue => {}
                FilterVerdict::Wait => {
                    self.wake = answer.wake.map(|time| Instant::now() + time);
                    return Ok(true);
                }
                FilterVerdict::Error => return Err(FilterFailed),
            }
        }
        self.ends = false;
        self.finished = true;
        Ok(true)
    }

    /// Calls the script again soon, whose state is in use.
    fn busy(&mut self) -> Result<bool, FilterFailed> {
        self.wake = Some(Instant::now() + BUSY);
        Ok(false)
    }
}
