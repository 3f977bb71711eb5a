//! The scripts that make the decisions of LIMIT.TAKE and LIMIT.LEASE in an external engine.
//!
//! They compute with doubles: times in µs and differences in ns are integers below 2^53, so they are rounded only where
//! the store rounds. The time is the engine's (TIME).

use sluicegate_config::model::LimitAlgorithm;

/// The script of leases.
pub const LEASE: &str = include_str!("lease.lua");

/// Returns the script of an algorithm.
pub fn take(algorithm: LimitAlgorithm) -> &'static str {
    match algorithm {
        LimitAlgorithm::Gcra => include_str!("take_gcra.lua"),
        LimitAlgorithm::Sliding => include_str!("take_sliding.lua"),
        LimitAlgorithm::Fixed => include_str!("take_fixed.lua"),
    }
}
