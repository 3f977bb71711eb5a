//! One engine's address with what all its connections share: the cap, the breaker, the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_wire::engine::Connections;
use tokio::sync::Semaphore;

use crate::breaker::{Admission, Breaker};
use crate::figures::Counters;
use crate::{Failure, Options};

/// An engine, as its lanes see it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) options: Options,
    /// One for each connection that may be open; first asked, first served.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) counters: Counters,
    /// Grows with every sign that what was connected before is of no more use.
    generation: AtomicU64,
    /// The breaker counts failures, so that those who succeed need no lock to say so.
    ailing: AtomicBool,
    health: Mutex<Health>,
}

#[derive(Debug)]
struct Health {
    breaker: Breaker,
    last_failure: Option<String>,
}

impl Health {
    /// What commands get while the breaker is open.
    fn failure(&self) -> Failure {
        Failure::Breaker(self.breaker.failures(), self.last_failure.clone().unwrap_or_default())
    }
}

impl Node {
    pub(crate) fn new(options: Options) -> Node {
        let breaker = Breaker::new(options.breaker, options.connect_rate, Instant::now());
        Node {
            permits: Arc::new(Semaphore::new(options.maxconn)),
            counters: Counters::default(),
            generation: AtomicU64::new(0),
            ailing: AtomicBool::new(false),
            health: Mutex::new(Health { breaker, last_failure: None }),
            options,
        }
    }

    /// Whether a command may be queued.
    pub(crate) fn admit(&self) -> Result<(), Failure> {
        if !self.ailing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut health = self.health.lock();
        match health.breaker.admit(Instant::now()) {
            Admission::Go | Admission::Probe => Ok(()),
            Admission::Open(_) => Err(health.failure()),
        }
    }

    /// Takes the right to connect once, or says when to ask again.
    pub(crate) fn try_connect(&self) -> Result<(), Instant> {
        self.health.lock().breaker.try_connect(Instant::now())
    }

    /// What waiting commands get when the breaker is open.
    pub(crate) fn open_failure(&self) -> Option<Failure> {
        let health = self.health.lock();
        health.breaker.is_open().then(|| health.failure())
    }

    /// Why it failed last, while it fails.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.ailing.load(Ordering::Relaxed).then(|| self.health.lock().last_failure.clone()).flatten()
    }

    /// It answered.
    pub(crate) fn succeeded(&self) {
        if self.ailing.load(Ordering::Relaxed) {
            self.health.lock().breaker.succeeded();
            self.ailing.store(false, Ordering::Relaxed);
        }
    }

    /// Connecting failed, or a connection died; connections that exist renew themselves before their next use.
    pub(crate) fn failed(&self, reason: &str) {
        self.flush();
        let mut health = self.health.lock();
        health.breaker.failed(Instant::now(), fastrand::f64());
        health.last_failure = Some(reason.to_owned());
        self.ailing.store(true, Ordering::Relaxed);
    }

    /// Makes every connection renew itself before its next use.
    pub(crate) fn flush(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> Connections {
        let mut figures = self.counters.read();
        let health = self.health.lock();
        figures.is_open = health.breaker.is_open();
        figures.last_failure = health.last_failure.clone();
        figures.address = self.options.address.to_string();
        figures.max = self.options.maxconn as u64;
        figures
    }
}
