//! Slices of a worker's time.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

/// The time for which a task computes before it yields to others.
pub const SLICE: Duration = Duration::from_micros(500);

/// Ends a slice of a task that has more to do: it is polled again once the worker has looked at its sockets and done
/// what else there is. A task that wakes itself is polled dozens of times between two looks, while others wait.
pub fn give_way(waker: &Waker) {
    // Polled once, the runtime has noted the waker and needs nothing more.
    let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
}
