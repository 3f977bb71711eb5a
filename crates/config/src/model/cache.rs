//! `cache` sections (HAProxy configuration manual 6).

use std::sync::Arc;
use std::time::Duration;

use super::Position;

/// A `cache` section.
#[derive(Clone, Debug)]
pub struct CacheSection {
    /// Its name.
    pub name: Arc<str>,
    /// `total-max-size`, in bytes.
    pub size: u64,
    /// `max-object-size`, in bytes.
    pub object_size: u64,
    /// `max-age`.
    pub max_age: Duration,
    /// `process-vary`.
    pub vary: bool,
    /// `max-secondary-entries`: responses of one URI that differ by request fields.
    pub secondary_entries: u32,
    /// `store-in`: the store or engine that keeps its responses, too.
    pub store: Option<Arc<str>>,
    /// Its position in the file.
    pub at: Position,
}

/// A `cache-use` or `cache-store` rule.
#[derive(Clone, Debug)]
pub struct CacheRule {
    /// The cache.
    pub cache: Arc<str>,
    /// The position of its name.
    pub at: Position,
}
