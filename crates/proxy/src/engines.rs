//! The engines that rules and scripts call, by name.

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_wire::engine::Engine;

/// The stores and engines that rules and scripts may name.
pub type Engines = HashMap<Arc<str>, Arc<dyn Engine>>;
