//! The state of a stream's limits.

use super::{Fields, Lease};

/// The state of a stream's limits.
#[derive(Default)]
pub struct StreamLimits {
    /// The fields of its response.
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
