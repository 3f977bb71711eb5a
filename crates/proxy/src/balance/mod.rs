//! Balancing: which server takes the next request, an algorithm per file.
//!
//! An algorithm knows servers by their place in the backend and is told their effective weights; whether a server has
//! a free slot it asks by a function that takes the slot, so that choosing and taking are one step.

mod round_robin;

pub use round_robin::RoundRobin;

/// Effective weights are user weights times this (HAProxy's BE_WEIGHT_SCALE), which leaves room for slow starts.
pub const WEIGHT_SCALE: u32 = 16;

/// What an algorithm found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// This server, and its slot is taken.
    Taken(usize),
    /// This server is the only choice and has no free slot: wait in its own queue.
    Wait(usize),
    /// Servers are there, but every one is full: wait in the backend's queue.
    Full,
    /// No server is usable.
    None,
}
