//! Deferred wake-ups of waiters whose keys have become free.
//!
//! A worker that has found many connections readable runs the script of one after the other. If each script woke the
//! first waiter of its keys on another core, the waiter's script would run between two of the worker's scripts, and
//! both cores would do little more than wake each other. So a worker in an event loop iteration only records the
//! tickets that it has invited. The task that sends the worker's replies wakes them; the runtime queues that task
//! behind the connections found readable. The delay is at most [`WAIT_MAX`] while other scripts end, and a ticket that
//! may not be overtaken any more is granted its keys immediately.
//!
//! Any other thread wakes immediately.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::hold::Ticket;

/// Invited tickets wait no longer than this while other scripts end.
const WAIT_MAX: Duration = Duration::from_micros(300);

/// The maximum number of recorded tickets; further ones are woken immediately.
const TICKETS_MAX: usize = 64;

#[derive(Default)]
struct Later {
    /// The waker of the task that wakes the recorded tickets; only a worker thread has one.
    sender: Option<Waker>,
    /// The time at which the first ticket was recorded.
    since: Option<Instant>,
    tickets: Vec<Arc<Ticket>>,
}

thread_local! {
    static LATER: RefCell<Later> = RefCell::default();
}

/// Sets the waker of this thread's task that calls [`wake_all`] when it is polled.
pub(crate) fn set_sender(waker: &Waker) {
    LATER.with_borrow_mut(|later| {
        if !later.sender.as_ref().is_some_and(|known| known.will_wake(waker)) {
            later.sender = Some(waker.clone());
        }
    });
}

/// Called when that task has ended: wakes all recorded tickets; later ones are woken immediately.
pub(crate) fn unset_sender() {
    // In a thread that is ending, the thread-local value may be gone already, and the waker with it.
    let _ = LATER.try_with(|later| later.borrow_mut().sender = None);
    wake_all();
}

/// Wakes an invited ticket: when this worker's replies are sent, or immediately if this thread has no task for it or
/// the list is full.
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

/// Wakes all recorded tickets if the first of them has waited for longer than [`WAIT_MAX`].
pub(crate) fn wake_overdue() {
    let since = LATER.try_with(|later| later.borrow().since).ok().flatten();
    if since.is_some_and(|since| since.elapsed() > WAIT_MAX) {
        wake_all();
    }
}

/// Wakes all recorded tickets.
pub(crate) fn wake_all() {
    let tickets = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        later.since = None;
        std::mem::take(&mut later.tickets)
    });
    // Taken out of the cell first, because waking runs code outside this module, which may call it again.
    tickets.unwrap_or_default().iter().for_each(|ticket| ticket.wake());
}
