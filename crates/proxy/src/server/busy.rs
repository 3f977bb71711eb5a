//! The backends whose figures may change: those with sessions in the last seconds.
//!
//! **Why.** The highest rates are kept up by looking at figures twice a second. There may be many thousand backends, each
//! with many servers, and most of them idle: those cost nothing.

use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::shared::BackendShared;

/// The inputs that all backends of a configuration share.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    /// The number of workers.
    pub(crate) workers: usize,
    /// HAProxy's revision of names of servers that are used again.
    pub(crate) revision: u32,
    /// The list that a backend with sessions enters.
    pub(crate) busy: &'a Arc<BusyBackends>,
}

/// The busy backends of a configuration and of those before it; the backends share it.
#[derive(Debug, Default)]
pub(crate) struct BusyBackends(Mutex<Vec<Weak<BackendShared>>>);

impl BusyBackends {
    /// Adds a backend that was not busy.
    #[cold]
    pub(super) fn add(&self, backend: &Arc<BackendShared>) {
        if !backend.set_busy(true) {
            self.0.lock().push(Arc::downgrade(backend));
        }
    }

    /// Folds finished seconds into the highest rates of backends and servers. Must be called at least once a second.
    pub(crate) fn fold(&self, now: Instant) {
        self.0.lock().retain(|backend| {
            let Some(backend) = backend.upgrade() else { return false };
            if !backend.figures.is_busy(now) {
                backend.set_busy(false);
                // A session may have begun since; it adds the backend unless this does.
                return backend.figures.is_busy(now) && !backend.set_busy(true);
            }
            backend.figures.tick_sessions(now);
            backend.servers.iter().for_each(|server| server.figures.tick_sessions(now));
            true
        });
    }
}
