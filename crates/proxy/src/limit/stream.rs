//! The state of a stream's limits.

use super::{Fields, Lease};

/// The state of a stream's limits.
#[derive(Default)]
pub struct StreamLimits {
    /// The fields of its response.
    pub(crate) fields: Fields,
    /// The slots that the stream holds.
    pub(crate) leases: Vec<Lease>,
    /// The rules that have allowed the stream; content rules run again when more data has arrived, and must count only
    /// once.
    pub(crate) passed: Vec<u32>,
}

impl StreamLimits {
    /// Called when the stream has ended: releases its slots.
    pub(crate) fn clear(&mut self) {
        self.fields.clear();
        self.leases.clear();
        self.passed.clear();
    }
}
