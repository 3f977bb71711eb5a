//! The sandbox of the store's scripts.

mod differential;
mod preemption;
mod support;
