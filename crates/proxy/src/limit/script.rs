//! The scripts by which an engine elsewhere decides what LIMIT.TAKE and LIMIT.LEASE decide in a store.
//!
//! They compute with doubles: times in µs and differences in ns are whole numbers below 2^53, so nothing is rounded that
//! the store does not round. The time is the engine's (TIME).

use std::sync::LazyLock;

use sha1::{Digest as _, Sha1};
use sluicegate_config::model::LimitAlgorithm;

/// A script and its name for EVALSHA.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// What EVAL takes.
    pub text: &'static str,
    /// Its SHA-1.
    pub(super) sha: &'static str,
}

fn named(text: &'static str) -> (&'static str, String) {
    let digest = Sha1::digest(text.as_bytes());
    (text, digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

static SCRIPTS: LazyLock<[(&str, String); 4]> = LazyLock::new(|| {
    [
        named(include_str!("take_gcra.lua")),
        named(include_str!("take_sliding.lua")),
        named(include_str!("take_fixed.lua")),
        named(include_str!("lease.lua")),
    ]
});

impl Script {
    fn numbered(index: usize) -> Script {
        let (text, sha) = &SCRIPTS[index];
        Script { text, sha }
    }

    /// The script of an algorithm.
    pub fn take(algorithm: LimitAlgorithm) -> Script {
        Script::numbered(match algorithm {
            LimitAlgorithm::Gcra => 0,
            LimitAlgorithm::Sliding => 1,
            LimitAlgorithm::Fixed => 2,
        })
    }

    /// The script of leases.
    pub fn lease() -> Script {
        Script::numbered(3)
    }
}
