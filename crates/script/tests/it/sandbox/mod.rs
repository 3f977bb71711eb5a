//! The sandbox of the store's scripts.

mod differential;
mod preemption;
pub(crate) mod support;
