//! The part of a stream that its limits keep.

use super::{Fields, Lease};

/// What a stream keeps of its limits.
#[derive(Default)]
pub struct StreamLimits {
    /// What its response tells.
    pub(crate) fields: Fields,
    /// The places that it holds.
    pub(crate) leases: Vec<Lease>,
    /// Rules that have let it pass; content rules run again when more data has come, and count once.
    pub(crate) passed: Vec<u32>,
}

impl StreamLimits {
    /// The stream has ended: places are given back.
    pub(crate) fn clear(&mut self) {
        self.fields.clear();
        self.leases.clear();
        self.passed.clear();
    }
}
