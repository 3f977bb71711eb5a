//! The sandbox of the store's scripts.

mod differential;
mod generated;
mod memory;
mod preemption;
pub(crate) mod support;
