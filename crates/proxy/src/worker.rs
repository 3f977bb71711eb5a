//! A worker: one thread, one runtime, and what belongs to it alone.

use std::sync::Arc;

use crate::lua::WorkerLua;
use crate::running::Running;
use crate::server::IdleConnections;

/// What one worker's tasks share, behind an `Rc` that never leaves its thread.
pub struct Worker {
    /// From 0.
    pub index: usize,
    /// The configuration it serves.
    pub running: Arc<Running>,
    /// Server connections that wait for a request; another worker may take from them.
    pub idle: Arc<IdleConnections>,
    /// The worker's Lua state (`lua-load-per-thread`) and its way to the shared one.
    pub lua: WorkerLua,
}
