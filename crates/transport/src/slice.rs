//! Slices of a worker's time.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// The time for which a task computes before it yields to others.
pub const SLICE: Duration = Duration::from_micros(500);

/// Ends a slice of a task that has more work: it is polled again after the worker has handled its sockets and other
/// tasks. A task that simply wakes itself is polled dozens of times before the runtime looks at its sockets, while
/// others wait.
pub fn give_way(waker: &Waker) {
    // Polled once, the runtime has noted the waker and needs nothing more.
    let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
}
