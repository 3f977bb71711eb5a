//! Deferred wake-ups of waiters whose keys have become free.
//!
//! A worker that has found many connections readable runs the script of one after the other. If each script woke the
//! first waiter of its keys on another core, that waiter's script would run between every two of them, and both cores
//! would do little more than wake each other. So a worker within an event loop iteration records the tickets that it
//! has invited, and wakes them with the task that sends its replies, which is queued in its runtime behind those
//! connections. The delay is at most [`WAIT_MAX`] while other scripts end, and a ticket that may not be overtaken any
//! more is granted its keys immediately.
//!
//! Any other thread wakes immediately.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::hold::Ticket;

/// Invited tickets wait no longer than this while other scripts end.
const WAIT_MAX: Duration = Duration::from_micros(300);

/// Tickets that wait for the end of a turn; more are woken at once.
const TICKETS_MAX: usize = 64;

#[derive(Default)]
struct Later {
    /// The task that wakes them; no thread but a worker has one.
    sender: Option<Waker>,
    /// The time at which the first of them began to wait.
    since: Option<Instant>,
    tickets: Vec<Arc<Ticket>>,
}

thread_local! {
    static LATER: RefCell<Later> = RefCell::default();
}

/// Names the task of this thread that calls [`wake_all`] when it is polled.
pub(crate) fn set_sender(waker: &Waker) {
    LATER.with_borrow_mut(|later| {
        if !later.sender.as_ref().is_some_and(|known| known.will_wake(waker)) {
            later.sender = Some(waker.clone());
        }
    });
}

/// Wakes all recorded tickets, and later ones immediately: the task has ended.
pub(crate) fn unset_sender() {
    // A thread that ends has let its task go before.
    let _ = LATER.try_with(|later| later.borrow_mut().sender = None);
    wake_all();
}

/// Wakes who was invited, at the end of the turn if this thread is in one.
pub(crate) fn wake(ticket: &Arc<Ticket>) {
    let sender = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        if later.tickets.len() == TICKETS_MAX {
            return None;
        }
        let sender = later.sender.clone()?;
        later.tickets.push(ticket.clone());
        later.since.get_or_insert_with(Instant::now);
        Some(sender)
    });
    match sender {
        Ok(Some(sender)) => sender.wake(),
        _ => ticket.wake(),
    }
}

/// Wakes all who were invited, if the first of them has waited for long.
pub(crate) fn wake_overdue() {
    let since = LATER.try_with(|later| later.borrow().since).ok().flatten();
    if since.is_some_and(|since| since.elapsed() > WAIT_MAX) {
        wake_all();
    }
}

/// Wakes all who were invited.
pub(crate) fn wake_all() {
    let tickets = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        later.since = None;
        std::mem::take(&mut later.tickets)
    });
    // Taken out, because waking is not this module's code.
    tickets.unwrap_or_default().iter().for_each(|ticket| ticket.wake());
}
