//! What is counted of an engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_wire::engine::{Connections, WAIT_BOUNDS_MS};

use crate::Failure;

/// An engine's counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connected: AtomicU64,
    pub(crate) connecting: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) replies: AtomicU64,
    pub(crate) engine_errors: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) connects: AtomicU64,
    failures: [AtomicU64; Failure::KINDS],
    waits: [AtomicU64; WAIT_BOUNDS_MS.len() + 1],
    waited_us: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub(crate) fn take(counter: &AtomicU64, count: u64) {
    counter.fetch_sub(count, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn failed(&self, failure: &Failure) {
        add(&self.failures[failure.kind()], 1);
    }

    pub(crate) fn waited(&self, time: Duration) {
        let bucket = WAIT_BOUNDS_MS
            .iter()
            .position(|bound| time <= Duration::from_millis(*bound))
            .unwrap_or(WAIT_BOUNDS_MS.len());
        add(&self.waits[bucket], 1);
        add(&self.waited_us, time.as_micros() as u64);
    }

    pub(crate) fn read(&self) -> Connections {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Connections {
            connected: of(&self.connected),
            connecting: of(&self.connecting),
            queued: of(&self.queued),
            in_flight: of(&self.in_flight),
            commands: of(&self.commands),
            replies: of(&self.replies),
            engine_errors: of(&self.engine_errors),
            resent: of(&self.resent),
            connects: of(&self.connects),
            failures: Failure::NAMES.into_iter().zip(self.failures.iter().map(of)).collect(),
            waits: std::array::from_fn(|bucket| of(&self.waits[bucket])),
            waited_us: of(&self.waited_us),
            ..Connections::default()
        }
    }
}
