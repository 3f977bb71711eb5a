//! The sandbox of the store's scripts.

mod preemption;
