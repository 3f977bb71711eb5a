//! The state that all nodes of a section share: settings, the connection limit, the length of the queue.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Node;
use super::conversation::Resting;
use super::lane::{Entry, Lane, Route};
use crate::Options;
use crate::cache::CacheFigures;
use crate::figures::{Counters, add, take};
use crate::options::Mode;
use crate::told::Redirect;

/// The target of commands that a node cannot execute, in a section with several nodes: its cluster.
pub(crate) trait Router: std::fmt::Debug + Send + Sync {
    /// Returns `None` if the node is not a replica in the map; otherwise, whether its master is failing.
    fn follows(&self, node: &Node) -> Option<bool>;
    /// Reads the map again, unless that is happening already.
    fn refresh(self: Arc<Self>);
    /// Sends a command to the node named by an engine's error. Returns the command if it was redirected too often.
    fn redirect(self: Arc<Self>, entry: Entry, bytes: &[u8], redirect: Redirect) -> Result<(), Entry>;
    /// Returns the node that should execute a command instead of `node`, if there is one.
    fn elsewhere(self: Arc<Self>, route: &Route, node: &Arc<Node>) -> Option<Arc<Node>>;
    /// Sends a command that was queued for another node to `node`.
    fn resend(&self, node: &Arc<Node>, entry: Entry, bytes: &[u8]);
    /// Sends a command to `node`.
    fn send(&self, node: &Arc<Node>, entry: Entry, bytes: &[u8]);
}

/// The running state of a section.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) options: Options,
    /// Counters of commands, queued commands and failures; connections are counted by their nodes.
    pub(crate) counters: Counters,
    /// A permit for each connection that may be open; the first caller gets the first one.
    permits: Arc<Semaphore>,
    /// The number of waiters for a permit.
    waiting: AtomicU64,
    /// The number of idle connections to close so that waiting commands get their permits; never more than `waiting`.
    claims: AtomicU64,
    /// The number of nodes that share the connection limit.
    nodes: AtomicUsize,
    /// All lanes, to notify the idle ones of waiters.
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// The cluster, where the section has several nodes.
    router: OnceLock<Weak<dyn Router>>,
    /// The bytes of commands that wait outside the lanes, for a cluster's map or for its slots.
    pub(crate) parked: AtomicUsize,
    /// Whether the section is closed.
    closed: AtomicBool,
    /// A permit for each dedicated connection that may be in use: one less than all, if there are several, so that
    /// commands which wait for other clients leave room for those which do not.
    pub(crate) own: Arc<Semaphore>,
    /// Idle dedicated connections.
    pub(crate) resting: Resting,
    /// The size and the counters of the section's caches.
    pub(crate) cached: CacheFigures,
    /// Whether a task closes old idle connections.
    pub(crate) sweeping: AtomicBool,
}

impl Section {
    pub(crate) fn new(options: Options) -> Section {
        Section {
            permits: Arc::new(Semaphore::new(options.maxconn)),
            counters: Counters::default(),
            waiting: AtomicU64::new(0),
            claims: AtomicU64::new(0),
            nodes: AtomicUsize::new(1),
            lanes: Mutex::default(),
            router: OnceLock::new(),
            parked: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            own: Arc::new(Semaphore::new(options.maxconn.saturating_sub(1).max(1))),
            resting: Resting::default(),
            cached: CacheFigures::default(),
            sweeping: AtomicBool::new(false),
            options,
        }
    }

    /// Sets the router of its commands, once.
    pub(crate) fn belongs_to(&self, router: Weak<dyn Router>) {
        self.router.get_or_init(|| router);
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.router.get().is_some()
    }

    pub(crate) fn router(&self) -> Option<Arc<dyn Router>> {
        self.router.get()?.upgrade()
    }

    /// Sets the number of nodes that share `maxconn`.
    pub(crate) fn share_among(&self, nodes: usize) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes every lane; no others can be created.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let lanes: Vec<Arc<Lane>> = self.lanes.lock().iter().filter_map(Weak::upgrade).collect();
        lanes.iter().for_each(|lane| lane.close());
        self.resting.clear();
    }

    /// Returns the maximum number of lanes of a node: its share of the connection limit; one for a sentinel.
    pub(crate) fn lanes_of_a_node(&self) -> usize {
        let sentinel = usize::from(matches!(self.options.mode, Mode::Sentinel { .. }));
        (self.options.maxconn.saturating_sub(sentinel) / self.nodes.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// Registers a new lane, which is notified of waiters.
    pub(crate) fn register(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes.lock();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    /// Acquires the permit for one more connection. If there is none left, an idle connection is closed for it.
    pub(crate) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        let _waiting = Waiting::new(self);
        let lanes: Vec<Arc<Lane>> = self.lanes.lock().iter().filter_map(Weak::upgrade).collect();
        lanes.iter().for_each(|lane| lane.wake());
        self.resting.give_way();
        self.permits.clone().acquire_owned().await.ok()
    }

    /// Returns whether a command waits for a connection.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns whether an idle connection should close, so that its permit is released.
    pub(crate) fn gives_way(&self) -> bool {
        self.claims.load(Ordering::Relaxed) > 0
            && self.claims.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |claims| claims.checked_sub(1)).is_ok()
    }
}

/// Counts a waiter for a permit for as long as this exists.
struct Waiting<'a>(&'a Section);

impl Waiting<'_> {
    fn new(section: &Section) -> Waiting<'_> {
        add(&section.waiting, 1);
        add(&section.claims, 1);
        Waiting(section)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        take(&self.0.waiting, 1);
        self.0.claims.fetch_min(self.0.waiting.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
