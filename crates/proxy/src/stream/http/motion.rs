//! The movement of a request and its response: both sides are polled whenever one of them is ready.

use std::task::{Context, Poll, ready};

use sluicegate_transport::clock;
use sluicegate_wire::http::{Framing, Limits, Version};

use super::*;
use crate::mux::{FlowError, HeadError, Wait};

/// The result of waiting for a response's head.
pub(super) enum Event {
    Head(ResponseHead),
    /// An interim response such as 100 or 103.
    Interim(ResponseHead),
    Invalid(Fault),
    /// The server closed or broke the connection.
    ServerGone,
    /// The client broke the connection, or ended it under `option abortonclose`.
    ClientGone,
    /// The request's chunks are malformed.
    BadBody,
    /// A filter refused the request's body.
    Refused,
    ClientTimeout,
    ServerTimeout,
    /// It was ended from outside.
    Killed(Killer),
}

/// The end of the two bodies.
pub(super) enum Finish {
    /// The response is complete, and so is the request unless its server stopped taking it.
    Complete,
    ServerGone,
    ClientGone,
    BadBody,
    BadResponse,
    /// A filter refused a body.
    RequestRefused,
    ResponseRefused,
    ClientTimeout,
    ServerTimeout,
    /// It was ended from outside.
    Killed(Killer),
}

impl Exchange<'_> {
    /// Moves the request towards the server, and parses the response's head if it has arrived.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, back: &mut Back, abort_on_close: bool) -> Poll<Event> {
        if let Some(killer) = self.stream.killed() {
            return Poll::Ready(Event::Killed(killer));
        }
        let mut up = Moved::default();
        let waiting = match self.poll_up(cx, back, &mut up) {
            Ok(waiting) => waiting,
            Err(FlowError::Malformed) => return Poll::Ready(Event::BadBody),
            Err(FlowError::Filter) => return Poll::Ready(Event::Refused),
            Err(_) => return Poll::Ready(Event::ClientGone),
        };
        let worker = self.stream.worker().clone();
        let context = &mut self.stream.cx;
        let proxy = context.backend.as_ref().unwrap_or(&context.frontend);
        let limits = Limits { lenient: proxy.config.options.unsafe_responses, ..worker.limits };
        match back.poll_head(cx, &worker.buffers, &limits, self.sent_method, &mut context.response) {
            // A tunnel that the client did not ask for would be read by it as a response.
            Poll::Ready(Ok(head)) if head.tunnel && !self.head.upgrade && self.head.method != Method::Connect => {
                return Poll::Ready(Event::Invalid(Fault::Unexpected));
            }
            // Nor can a tunnel begin within a request's body, as in HAProxy.
            Poll::Ready(Ok(head)) if head.tunnel && waiting != Wait::Done && self.has_framed_body() => {
                return Poll::Ready(Event::Invalid(Fault::Unexpected));
            }
            Poll::Ready(Ok(head)) => {
                self.note(&up, true, false);
                return Poll::Ready(if head.interim { Event::Interim(head) } else { Event::Head(head) });
            }
            Poll::Ready(Err(HeadError::Invalid(error))) => return Poll::Ready(Event::Invalid(Fault::Head(error))),
            Poll::Ready(Err(HeadError::Malformed)) => return Poll::Ready(Event::Invalid(Fault::Unexpected)),
            Poll::Ready(Err(HeadError::Gone)) => return Poll::Ready(Event::ServerGone),
            Poll::Pending => {}
        }
        self.note(&up, false, false);
        if waiting == Wait::Done && self.front.poll_gone(cx, &worker.buffers, abort_on_close).is_ready() {
            return Poll::Ready(Event::ClientGone);
        }
        // The server's time begins with the end of the request: until then the client's runs, or the server's if it
        // accepts nothing.
        let side = ready!(self.poll_timeouts(cx, waiting == Wait::Source, matches!(waiting, Wait::Sink | Wait::Done)));
        Poll::Ready(if side == Side::Client { Event::ClientTimeout } else { Event::ServerTimeout })
    }

    /// Returns whether the request's body has an end of its own, which a tunnel's bytes follow.
    fn has_framed_body(&self) -> bool {
        self.version != Version::Http2 && matches!(self.head.body, Framing::Length(1..) | Framing::Chunked)
    }

    /// Returns whether a client that ends its side aborts its request (`option abortonclose`).
    pub(super) fn aborts_on_close(&self) -> bool {
        let cx = &self.stream.cx;
        cx.backend.as_ref().unwrap_or(&cx.frontend).config.options.abortonclose
    }

    /// Moves both bodies as far as possible.
    pub(super) fn poll_bodies(&mut self, cx: &mut Context<'_>, back: &mut Back, down: &mut Flow) -> Poll<Finish> {
        if let Some(killer) = self.stream.killed() {
            return Poll::Ready(Finish::Killed(killer));
        }
        let (mut up_moved, mut moved) = (Moved::default(), Moved::default());
        let up = match self.poll_up(cx, back, &mut up_moved) {
            Ok(waiting) => waiting,
            Err(FlowError::Malformed) => return Poll::Ready(Finish::BadBody),
            Err(FlowError::Filter) => return Poll::Ready(Finish::RequestRefused),
            Err(_) => return Poll::Ready(Finish::ClientGone),
        };
        let worker = self.stream.worker().clone();
        let waiting = down.poll_scripted(cx, back, &mut self.front, &mut self.stream, &mut moved);
        self.stream.count(0, moved.body);
        self.stream.count_sent(moved.written);
        self.stream.count_spliced(&moved, crate::stream::Side::Server);
        self.count_encoded(down);
        let waiting = match waiting {
            Ok(Wait::Done) if up == Wait::Done => return Poll::Ready(Finish::Complete),
            Ok(waiting) => waiting,
            Err(FlowError::Sink) => return Poll::Ready(Finish::ClientGone),
            Err(FlowError::Malformed) => return Poll::Ready(Finish::BadResponse),
            Err(FlowError::Filter) => return Poll::Ready(Finish::ResponseRefused),
            Err(FlowError::Closed | FlowError::Source) => return Poll::Ready(Finish::ServerGone),
        };
        if waiting == Wait::Done && self.up_failed {
            return Poll::Ready(Finish::Complete);
        }
        if waiting == Wait::Sink {
            // A client that does not read holds no more memory than what it has not read.
            back.rest(&worker.buffers);
        }
        self.note(&up_moved, moved.body > 0, moved.written > 0);
        // Without `option abortonclose` a client that ends its side gets the whole response.
        if up == Wait::Done && self.aborts_on_close() && self.front.poll_gone(cx, &worker.buffers, true).is_ready() {
            return Poll::Ready(Finish::ClientGone);
        }
        let client = up == Wait::Source || waiting == Wait::Sink;
        let server = up == Wait::Sink || (waiting == Wait::Source && up != Wait::Source);
        let side = ready!(self.poll_timeouts(cx, client, server));
        Poll::Ready(if side == Side::Client { Finish::ClientTimeout } else { Finish::ServerTimeout })
    }

    /// Moves the request. A server that accepts no more of it may have answered already, so that is no error here.
    pub(super) fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        back: &mut Back,
        moved: &mut Moved,
    ) -> Result<Wait, FlowError> {
        if self.up_failed || self.up.is_done() {
            return Ok(Wait::Done);
        }
        let step = match self.withholds_data() {
            true => match back.poll_flush(cx, moved) {
                Poll::Ready(flushed) => flushed.map(|()| Wait::Done),
                Poll::Pending => Ok(Wait::Sink),
            },
            false => self.up.poll_scripted(cx, &mut self.front, back, &mut self.stream, moved),
        };
        self.stream.count(moved.body, 0);
        self.stream.count_spliced(moved, crate::stream::Side::Client);
        match step {
            Err(FlowError::Sink) => {
                self.up_failed = true;
                Ok(Wait::Done)
            }
            step => step,
        }
    }

    /// Records which side was active. A part of a head, of a chunk's size line or of trailers is no activity, because a
    /// peer that sends those one byte at a time would otherwise never time out.
    pub(super) fn note(&mut self, up: &Moved, server_sent: bool, client_took: bool) {
        // Data accepted by the server came from the client; with equal timeouts the server's expires first then.
        let client = up.body > 0 || up.written > 0 || client_took;
        let server = server_sent || (up.written > 0 && (self.answered || !self.independent));
        if client || server {
            let now = clock::now();
            if client {
                self.client_active = now;
            }
            if server {
                self.server_active = now;
            }
        }
    }

    fn poll_timeouts(&mut self, cx: &mut Context<'_>, client: bool, server: bool) -> Poll<Side> {
        let deadline = |waited: bool, since: Instant, timeout: Option<Duration>| {
            timeout.filter(|_| waited).map(|timeout| since + timeout)
        };
        let client = deadline(client, self.client_active, self.client_timeout);
        let server = deadline(server, self.server_active, self.server_timeout);
        let first = match (client, server) {
            (Some(client), Some(server)) => Some(client.min(server)),
            (one, other) => one.or(other),
        };
        self.front.arm(first);
        ready!(self.front.poll_alarm(cx));
        Poll::Ready(if server.is_some() && server == first { Side::Server } else { Side::Client })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}
