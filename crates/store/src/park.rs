//! Waiting commands: their stored state, and the future of their reply.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_transport::{SLICE, give_way};
use sluicegate_wire::resp::{Protocol, ReplyWriter};

use crate::Inner;
use crate::claim::By;
use crate::hold::{Phase, Ticket};
use crate::owned::{Finished, ReplyForm};
use crate::waiter::{ReadyKey, Waiter};

/// The work of a command that proceeds when its future is polled.
pub(crate) trait Work: Any + Send {
    /// Continues the work; ready with the command's reply.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Finished>;

    /// Returns its ticket, if it waits for its keys.
    fn ticket(&self) -> Option<&Arc<Ticket>> {
        None
    }

    /// Returns its run time on other threads than its caller's.
    fn worked(&self) -> Duration {
        Duration::ZERO
    }
}

/// A wait of a blocked client, owned by its connection. Dropping it cancels the wait.
pub(crate) struct Blocked {
    inner: Arc<Inner>,
    waiter: Arc<Waiter>,
}

impl Blocked {
    pub(crate) fn new(inner: Arc<Inner>, waiter: Arc<Waiter>) -> Blocked {
        Blocked { inner, waiter }
    }

    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Finished> {
        self.waiter.claim.poll(context.waker())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.waiter.claim.win(By::Client);
        self.inner.forget(&self.waiter);
    }
}

/// Keys created by a command, under a ticket that holds them.
pub(crate) struct Ready {
    pub(crate) ticket: Option<Arc<Ticket>>,
    pub(crate) keys: VecDeque<ReadyKey>,
}

/// An accepted command whose reply is pending.
///
/// The future ends with the encoded reply. Dropping it discards the reply but not the command, except for a blocked
/// command, which has removed nothing yet and ends with it.
#[must_use = "the reply comes from the future"]
pub struct Parked(pub(crate) Waits);

pub(crate) enum Waits {
    /// For a held key, or for exclusive access to the keyspace.
    Ticket(Arc<Ticket>),
    /// For an element.
    Blocked(Box<Blocked>),
    /// For its own work: that of a command in slices, of one whose keys are known only while it runs, or of a script.
    Work(Box<dyn Work>),
    /// For a time, after which the reply is `OK`.
    Sleep(Pin<Box<tokio::time::Sleep>>, Duration, ReplyForm),
    /// For steps of work, which are done in slices until one returns true; then the reply is `OK`.
    Steps(Box<dyn FnMut() -> bool + Send>, ReplyForm),
}

impl Parked {
    /// Returns the ticket of a command that waits for a held key, or of a script that waits for its keys.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        match &self.0 {
            Waits::Ticket(ticket) => Some(ticket),
            Waits::Work(work) => work.ticket(),
            _ => None,
        }
    }

    /// Returns the run time of the command on other threads, which its caller has not measured by polling.
    pub(crate) fn worked(&self) -> Duration {
        match &self.0 {
            // In Redis, sleeping counts as work, and public tests of the slow log fill it that way.
            Waits::Sleep(_, time, _) => *time,
            Waits::Work(work) => work.worked(),
            _ => self.ticket().map_or(Duration::ZERO, |ticket| ticket.worked()),
        }
    }

    pub(crate) fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        match &mut self.0 {
            Waits::Ticket(ticket) => {
                ticket.listen(context.waker());
                match ticket.phase() {
                    Phase::Finished => Poll::Ready(ticket.take_reply().expect("polled after its end")),
                    _ => Poll::Pending,
                }
            }
            Waits::Blocked(blocked) => blocked.poll(context),
            Waits::Work(work) => work.poll(context),
            Waits::Sleep(sleep, _, form) => {
                let form = *form;
                sleep.as_mut().poll(context).map(|()| form.collect(|out| out.ok()))
            }
            Waits::Steps(step, form) => {
                let start = Instant::now();
                while start.elapsed() < SLICE {
                    if step() {
                        return Poll::Ready(form.collect(|out| out.ok()));
                    }
                }
                give_way(context.waker());
                Poll::Pending
            }
        }
    }

    /// Returns the wait for an element, if it is one.
    pub(crate) fn waiter(&self) -> Option<&Arc<Waiter>> {
        match &self.0 {
            Waits::Blocked(blocked) => Some(blocked.waiter()),
            _ => None,
        }
    }

    /// Returns the deadline of a blocked command; [`None`] if it has none, or waits for another event. The owner of the
    /// future watches the deadline, and calls [`time_out`](Self::time_out).
    pub fn deadline(&self) -> Option<Instant> {
        self.waiter().and_then(|waiter| waiter.deadline())
    }

    /// Ends the wait of a blocked command with the reply for nothing, unless it has just been served. The future is
    /// ready afterwards, or, if a key is held, once that key has been checked.
    pub fn time_out(&self) {
        if let Some(waiter) = self.waiter() {
            waiter.time_out();
        }
    }
}

impl Future for Parked {
    type Output = Vec<u8>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        self.poll_finished(context).map(|finished| match finished {
            Finished::Wire(bytes) => bytes,
            Finished::Value(reply) => {
                let mut bytes = Vec::new();
                ReplyWriter::new(&mut bytes, Protocol::Resp2).write_reply(&reply);
                bytes
            }
        })
    }
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parked")
    }
}
