//! Counters of an engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_wire::engine::{Connections, WAIT_BOUNDS_MS};

use crate::Failure;

/// Counters of a section, or of one of its nodes.
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
    pub(crate) redirected: AtomicU64,
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

    /// Adds the counters of `other`, which is not used any more.
    pub(crate) fn take_over(&self, other: &Counters) {
        let move_to = |to: &AtomicU64, from: &AtomicU64| add(to, from.load(Ordering::Relaxed));
        move_to(&self.replies, &other.replies);
        move_to(&self.engine_errors, &other.engine_errors);
        move_to(&self.resent, &other.resent);
        move_to(&self.connects, &other.connects);
        self.waits.iter().zip(&other.waits).for_each(|(to, from)| move_to(to, from));
        move_to(&self.waited_us, &other.waited_us);
    }

    /// Adds these counters to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Connections) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        sum.connected += of(&self.connected);
        sum.connecting += of(&self.connecting);
        sum.queued += of(&self.queued);
        sum.in_flight += of(&self.in_flight);
        sum.commands += of(&self.commands);
        sum.replies += of(&self.replies);
        sum.engine_errors += of(&self.engine_errors);
        sum.resent += of(&self.resent);
        sum.redirected += of(&self.redirected);
        sum.connects += of(&self.connects);
        sum.failures.resize(Failure::KINDS, ("", 0));
        for (kind, (name, count)) in sum.failures.iter_mut().enumerate() {
            *name = Failure::NAMES[kind];
            *count += of(&self.failures[kind]);
        }
        sum.waits.iter_mut().zip(&self.waits).for_each(|(sum, count)| *sum += of(count));
        sum.waited_us += of(&self.waited_us);
    }
}

/// Adds one to a counter for as long as this exists.
pub(crate) struct Gauge<'a>(&'a AtomicU64);

impl Gauge<'_> {
    pub(crate) fn of(counter: &AtomicU64) -> Gauge<'_> {
        add(counter, 1);
        Gauge(counter)
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        take(self.0, 1);
    }
}
