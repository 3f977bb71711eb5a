//! The scripts by which an engine elsewhere decides what LIMIT.TAKE and LIMIT.LEASE decide in a store.
//!
//! They compute with doubles: times in µs and differences in ns are whole numbers below 2^53, so nothing is rounded that
//! the store does not round. The time is the engine's (TIME).

use sluicegate_config::model::LimitAlgorithm;

/// The script of leases.
pub const LEASE: &str = include_str!("lease.lua");

/// The script of an algorithm.
pub fn take(algorithm: LimitAlgorithm) -> &'static str {
    match algorithm {
        LimitAlgorithm::Gcra => include_str!("take_gcra.lua"),
        LimitAlgorithm::Sliding => include_str!("take_sliding.lua"),
        LimitAlgorithm::Fixed => include_str!("take_fixed.lua"),
    }
}
