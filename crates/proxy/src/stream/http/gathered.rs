//! The request's part of what is answered in this process, for filters of scripts.
//!
//! As in HAProxy, a service, a cache, the statistics page and the exporter stand in a server's place: the filters see the
//! request's head once all rules have run, and its body on its way to them. What nobody reads passes the filters as well.

use std::future::poll_fn;
use std::task::{Context, Poll};

use sluicegate_transport::{BufferPool, clock};
use sluicegate_wire::http::Message;

use super::{Exchange, Step};
use crate::mux::{Body, End, FlowError, Moved, Wait, h1};

/// The sink of a request's body.
struct Gathered {
    data: Vec<u8>,
    /// The number of bytes from which on it takes no more; `None`: it keeps nothing.
    room: Option<usize>,
    ended: bool,
}

impl Gathered {
    fn is_full(&self) -> bool {
        self.room.is_some_and(|room| self.data.len() >= room)
    }
}

impl End for Gathered {
    fn h1(&mut self) -> Option<h1::Wire<'_>> {
        None
    }

    fn next(&mut self, _: &mut Moved) -> Result<Option<Body>, FlowError> {
        Ok(None)
    }

    fn data(&self) -> &[u8] {
        b""
    }

    fn consume(&mut self, _: usize) {}

    fn trailers(&mut self) -> Message {
        Message::new()
    }

    fn poll_more(&mut self, _: &mut Context<'_>, _: &BufferPool, _: &mut Moved) -> Poll<Result<(), FlowError>> {
        Poll::Pending
    }

    fn rest(&mut self, _: &BufferPool) {}

    fn has_room(&self, _: &BufferPool) -> bool {
        !self.is_full()
    }

    fn send_data(&mut self, data: &[u8]) {
        if self.room.is_some() {
            self.data.extend_from_slice(data);
        }
    }

    fn send_end(&mut self, _: Option<&Message>) {
        self.ended = true;
    }

    fn poll_flush(&mut self, _: &mut Context<'_>, _: &mut Moved) -> Poll<Result<(), FlowError>> {
        // Its owner polls again when there is room.
        if self.is_full() && !self.ended { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl Exchange<'_> {
    /// Passes the head of a request that this process answers through the filters, and makes those of its body.
    pub(super) async fn filter_answered_request(&mut self) -> Step<()> {
        if !self.stream.is_scripted() {
            return Ok(());
        }
        self.filter_request_head().await?;
        self.up.start();
        self.up.filter(self.stream.filters(false, None));
        Ok(())
    }

    /// Moves the request's body through its filters, to the service if there is one, which has this much room. Ready when
    /// the body is complete.
    pub(super) fn poll_gathered(&mut self, cx: &mut Context<'_>, room: Option<usize>) -> Poll<Result<(), FlowError>> {
        if self.up.is_done() {
            return Poll::Ready(Ok(()));
        }
        let mut sink = Gathered { data: Vec::new(), room, ended: false };
        let mut moved = Moved::default();
        let step = self.up.poll_scripted(cx, &mut self.front, &mut sink, &mut self.stream, &mut moved);
        self.stream.count(moved.body, 0);
        if moved.body > 0 {
            self.client_active = clock::now();
        }
        if let (Some(_), Some(io)) = (room, &mut self.stream.cx.lua.applet) {
            io.input().append(&mut sink.data);
            if sink.ended {
                io.end_input();
            }
        }
        match step? {
            Wait::Done => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// Moves the part of the request's body that has come; returns whether that is all.
    pub(super) async fn gather(&mut self, room: Option<usize>) -> Step<bool> {
        match poll_fn(|cx| Poll::Ready(self.poll_gathered(cx, room))).await {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(())) => Ok(true),
            Poll::Ready(Err(FlowError::Filter)) => Err(self.page(400, b'P', b'R').await),
            Poll::Ready(Err(_)) => Err(self.refuse(400, b'P', b'R').await),
        }
    }
}
