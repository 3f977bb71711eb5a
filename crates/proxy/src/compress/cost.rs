//! Figures of compression, which the process keeps.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::counters::Rate;

/// The rates of compression of one worker.
#[derive(Debug, Default)]
pub struct Cost {
    /// Bytes of bodies before (`CompressBpsIn`).
    pub read: Rate,
    /// Bytes of bodies after (`CompressBpsOut`).
    pub written: Rate,
}

/// Memory of all compressors of the process.
pub type Memory = Arc<AtomicU64>;
