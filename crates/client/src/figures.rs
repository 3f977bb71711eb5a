//! What is counted of an engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Failure;

/// Upper bounds of the buckets of [`EngineFigures::waits`], milliseconds; the last bucket has none.
pub const WAIT_BOUNDS_MS: [u64; 9] = [0, 1, 2, 5, 10, 50, 100, 500, 1000];

/// An engine's figures, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineFigures {
    /// Connections that serve.
    pub connected: u64,
    /// Connections that are being made.
    pub connecting: u64,
    /// Commands that wait for a connection.
    pub queued: u64,
    /// Commands that were sent and not answered yet.
    pub in_flight: u64,
    /// Commands so far.
    pub commands: u64,
    /// Replies so far.
    pub replies: u64,
    /// Error replies of the engine so far.
    pub engine_errors: u64,
    /// Commands that were sent again so far.
    pub resent: u64,
    /// Attempts to connect so far.
    pub connects: u64,
    /// Failures so far, by kind.
    pub failures: Vec<(&'static str, u64)>,
    /// Commands by the time they waited for a connection, milliseconds; see [`WAIT_BOUNDS_MS`].
    pub waits: [u64; WAIT_BOUNDS_MS.len() + 1],
    /// The breaker is open.
    pub is_open: bool,
    /// Why the node failed last.
    pub last_failure: Option<String>,
}

/// The counters behind them.
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
        let ms = time.as_millis() as u64;
        let bucket = WAIT_BOUNDS_MS.iter().position(|bound| ms <= *bound).unwrap_or(WAIT_BOUNDS_MS.len());
        add(&self.waits[bucket], 1);
    }

    pub(crate) fn read(&self) -> EngineFigures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineFigures {
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
            is_open: false,
            last_failure: None,
        }
    }
}
