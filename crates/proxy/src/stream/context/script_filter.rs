//! Filters of scripts: the functions that a script has for the events of a stream (`core.register_filter`).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::ProxyId;
use sluicegate_wire::http::Framing;

use super::{ScriptCode, StreamContext};
use crate::stream::Content;

/// An event for which a filter may have a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterEvent {
    /// `start_analyze`: the first rules of a direction are about to run.
    Start,
    /// `http_headers`: all rules have run, and the body follows.
    Headers,
    /// `http_payload`: data of a body is to be forwarded.
    Payload,
    /// `http_end`: the body has passed.
    MessageEnd,
    /// `end_analyze`: the direction has ended.
    End,
    /// `tcp_payload`: bytes of TCP, or of a tunnel that a request of HTTP has opened, are to be forwarded.
    Bytes,
}

/// A filter as one line of the configuration names it.
#[derive(Clone)]
pub struct BoundFilter {
    /// Its name, and its class in each Lua state: a copy for the line, initialised with the line's arguments.
    pub(crate) code: Arc<ScriptCode>,
    /// Whether it filters HTTP (`filter.FLT_CFG_FL_HTX`).
    pub(crate) http: bool,
    /// The events for which its class has functions, by the number of the event.
    pub(crate) events: [bool; 6],
}

impl std::fmt::Debug for BoundFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BoundFilter").field(&self.code.name).finish()
    }
}

impl BoundFilter {
    /// Returns whether its class has a function for an event.
    pub(crate) fn handles(&self, event: FilterEvent) -> bool {
        self.events[event as usize]
    }
}

/// The instance of a filter that a stream has.
pub enum FilterMade {
    /// It was made.
    Made(Rc<dyn ScriptFilter>),
    /// The script does not want this stream, or cannot have it.
    Ignored,
    /// The script failed: the stream ends.
    Failed,
    /// The script's state is in use: try again.
    Busy,
}

/// The data of a direction that has reached a filter and that it has not forwarded.
#[derive(Debug, Default)]
pub struct FilterPayload {
    /// The data; what the script forwards or sends while it runs precedes it as outgoing.
    pub(crate) content: Content,
    /// Whether nothing follows (`eom`); the script may change that.
    pub(crate) ended: bool,
}

/// What a filter's function returned.
#[derive(Clone, Copy, Debug)]
pub struct FilterAnswer {
    /// The number that it returned: a code, or a number of bytes to forward; `None` if it returned nothing.
    pub(crate) code: Option<i64>,
    /// Whether it failed.
    pub(crate) failed: bool,
    /// `filter.wake_time`.
    pub(crate) wake: Option<Duration>,
}

impl FilterAnswer {
    /// Returns what follows from the code.
    pub(crate) fn verdict(&self) -> FilterVerdict {
        match self.code.unwrap_or(1) {
            _ if self.failed => FilterVerdict::Error,
            code if code < 0 => FilterVerdict::Error,
            0 => FilterVerdict::Wait,
            _ => FilterVerdict::Continue,
        }
    }
}

/// The meaning of what a filter's function returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// `filter.CONTINUE`.
    Continue,
    /// `filter.WAIT`: the function is called again.
    Wait,
    /// `filter.ERROR`.
    Error,
}

/// A filter's instance.
pub trait ScriptFilter {
    /// Returns whether the script has a function for an event.
    fn handles(&self, event: FilterEvent) -> bool;

    /// Returns whether it sees the data of a direction (`filter.register_data_filter`).
    fn sees_data(&self, response: bool) -> bool;

    /// Makes it see the data of a direction, or not any more.
    fn see_data(&self, response: bool, sees: bool);

    /// Calls the function for an event, which must not wait. `None` if the script's state is in use.
    fn call(
        &self,
        cx: &mut StreamContext,
        event: FilterEvent,
        response: bool,
        payload: Option<&mut FilterPayload>,
    ) -> Option<FilterAnswer>;
}

/// An instance, and the line that it belongs to.
pub(crate) struct Attached {
    pub(crate) proxy: ProxyId,
    /// The number of the line among the filters of its proxy.
    pub(crate) line: usize,
    pub(crate) filter: Rc<dyn ScriptFilter>,
}

/// The filters of scripts that a stream has.
#[derive(Default)]
pub(crate) struct StreamFilters {
    /// In the order of their lines, the frontend's first.
    pub(crate) attached: Vec<Attached>,
    /// The framing that a script has given the body of the request and of the response (`set_body_len`).
    pub(crate) framing: [Option<Framing>; 2],
    /// Whether the whole body of the request and of the response had come when its head passed the filters.
    pub(crate) whole: [bool; 2],
    /// Whether `start_analyze` was called for the request and for the response, and `end_analyze` was not.
    pub(crate) analyzed: [bool; 2],
}

impl StreamFilters {
    /// Records how much of a body of this framing has come with its head.
    pub(crate) fn note_body(&mut self, response: bool, framing: Framing, held: usize) {
        self.whole[usize::from(response)] = match framing {
            Framing::None => true,
            Framing::Length(length) => held as u64 >= length,
            Framing::Chunked | Framing::UntilClose => false,
        };
    }
}

impl StreamContext {
    /// Returns the framing that a script has given the body of the request or of the response.
    pub(crate) fn scripted_framing(&self, response: bool) -> Option<Framing> {
        self.lua.filters.as_ref()?.framing[usize::from(response)]
    }
}
