//! One engine's address with the state that its connections share: lanes, circuit breaker, counters.

pub(crate) mod conversation;
pub(crate) mod handshake;
pub(crate) mod lane;
pub(crate) mod running;
pub(crate) mod section;

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sluicegate_wire::engine::{Connections, NodeFigures, Started};
use sluicegate_wire::reply::Reply;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use self::lane::{Lane, Route};
use self::section::Section;
use crate::breaker::{Admission, Breaker};
use crate::command::Kind;
use crate::figures::{Counters, Gauge, add, take};
use crate::stream::Stream;
use crate::transaction::Request;
use crate::{Address, Failure};

/// An engine, as its lanes see it.
#[derive(Debug)]
pub(crate) struct Node {
    /// The node's number in the threads' lists of lanes.
    id: u64,
    /// A hash that is the same for all nodes with this address.
    mark: u64,
    pub(crate) section: Arc<Section>,
    pub(crate) address: Address,
    /// Whether it is a sentinel, which knows the engine's address but is not an engine.
    pub(crate) is_sentinel: bool,
    /// Counters of connections and commands.
    pub(crate) counters: Counters,
    /// Incremented with every sign that existing connections are no longer usable.
    generation: AtomicU64,
    /// Incremented when another engine takes over the slots or the role of this one.
    epoch: AtomicU64,
    /// Notified after each increment of `epoch`.
    was_left: Notify,
    /// Whether the breaker has counted failures, so that a success usually needs no lock.
    ailing: AtomicBool,
    health: Mutex<Health>,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// The index of the lane for the next worker without its own.
    next: AtomicUsize,
}

thread_local! {
    /// The lanes that this thread uses, by node and database.
    static LANES: RefCell<Vec<(u64, u32, Arc<Lane>)>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
struct Health {
    breaker: Breaker,
    last_failure: Option<String>,
}

impl Health {
    /// Returns the error for commands while the breaker is open.
    fn failure(&self) -> Failure {
        Failure::Breaker(self.breaker.failures(), self.last_failure.clone().unwrap_or_default())
    }
}

/// A connection after its handshake. It counts against `maxconn` for its lifetime.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) stream: Stream,
    node: Arc<Node>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Connected {
    fn drop(&mut self) {
        take(&self.node.counters.connected, 1);
    }
}

/// The reason why a connection attempt failed.
#[derive(Debug)]
pub(crate) enum NotConnected {
    /// The rate or the pause after a failure: not before this.
    Before(Instant),
    /// It failed; the node knows why.
    Failed,
    /// No command waits for the connection any more.
    Unwanted,
}

impl Node {
    pub(crate) fn new(section: Arc<Section>, address: Address) -> Node {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let breaker = Breaker::new(section.options.breaker, section.options.connect_rate, Instant::now());
        let mut mark = DefaultHasher::new();
        address.hash(&mut mark);
        Node {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            mark: mark.finish(),
            section,
            address,
            is_sentinel: false,
            counters: Counters::default(),
            generation: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            was_left: Notify::new(),
            ailing: AtomicBool::new(false),
            health: Mutex::new(Health { breaker, last_failure: None }),
            lanes: Mutex::default(),
            next: AtomicUsize::new(0),
        }
    }

    pub(crate) fn sentinel(section: Arc<Section>, address: Address) -> Node {
        Node { is_sentinel: true, ..Node::new(section, address) }
    }

    /// Returns this thread's lane to a database: its own or, if the connection limit leaves none, another thread's.
    pub(crate) fn lane(self: &Arc<Node>, db: u32) -> Result<Arc<Lane>, Failure> {
        LANES.with_borrow_mut(|known| {
            if let Some((.., lane)) =
                known.iter().find(|(id, of, lane)| (*id, *of) == (self.id, db) && !lane.is_closed())
            {
                return Ok(lane.clone());
            }
            known.retain(|(.., lane)| !lane.is_closed());
            let lane = self.assign(db)?;
            known.push((self.id, db, lane.clone()));
            Ok(lane)
        })
    }

    /// Returns a lane to any database, for a probe: an existing one, or this thread's.
    pub(crate) fn any_lane(self: &Arc<Node>) -> Result<Arc<Lane>, Failure> {
        let there = self.lanes.lock().iter().find(|lane| !lane.is_closed()).cloned();
        there.map_or_else(|| self.lane(0), Ok)
    }

    fn assign(self: &Arc<Node>, db: u32) -> Result<Arc<Lane>, Failure> {
        if self.section.is_closed() {
            return Err(Failure::Closed);
        }
        let mut lanes = self.lanes.lock();
        lanes.retain(|lane| !lane.is_closed());
        // A sentinel is queried rarely, through one shared lane.
        let most = if self.is_sentinel { 1 } else { self.section.lanes_of_a_node() };
        if lanes.len() < most {
            let runtime = Handle::try_current()
                .map_err(|_| Failure::Refused("an engine is asked from a thread without a runtime".into()))?;
            let lane = Arc::new(Lane::new(self.clone(), db));
            self.section.register(&lane);
            runtime.spawn(lane::serve(lane.clone()));
            lanes.push(lane.clone());
            return Ok(lane);
        }
        let same: Vec<&Arc<Lane>> = lanes.iter().filter(|lane| lane.db == db).collect();
        match same.len() {
            0 => {
                let most = self.section.options.maxconn;
                Err(Failure::Refused(format!("maxconn {most} leaves no connection for database {db}")))
            }
            count => Ok(same[self.next.fetch_add(1, Ordering::Relaxed) % count].clone()),
        }
    }

    /// Tries once to connect, within the connection limit, the rate and `timeout connect`, if a connection is still
    /// `wanted` once the attempt may be made.
    pub(crate) async fn connect(
        self: &Arc<Node>,
        db: u32,
        wanted: impl Fn() -> bool,
    ) -> Result<Connected, NotConnected> {
        let permit = self.section.permit().await.ok_or(NotConnected::Unwanted)?;
        self.health.lock().breaker.try_connect(Instant::now()).map_err(NotConnected::Before)?;
        if !wanted() {
            return Err(NotConnected::Unwanted);
        }
        add(&self.counters.connects, 1);
        let gauge = Gauge::of(&self.counters.connecting);
        let options = &self.section.options;
        let timeout = options.timeout_connect;
        let result = tokio::time::timeout(timeout, handshake::connect(self, db)).await;
        drop(gauge);
        match result {
            Ok(Ok(stream)) => {
                self.succeeded();
                add(&self.counters.connected, 1);
                return Ok(Connected { stream, node: self.clone(), _permit: permit });
            }
            Ok(Err(reason)) => self.failed(&reason),
            Err(_) => self.failed(&format!("{}: not connected within {} ms", self.address, timeout.as_millis())),
        }
        Err(NotConnected::Failed)
    }

    /// Queues a command; its reply or failure always arrives.
    pub(crate) fn ask(self: &Arc<Node>, db: u32, request: Request<'_>, kind: Kind) -> Result<Started, Failure> {
        self.admit()?;
        self.start(request, Route::new(None, db, kind == Kind::Reads))
    }

    /// Queues a command on this thread's lane. If the lane has closed since the lookup, another lookup finds a new one;
    /// there is none once the section is closed.
    pub(crate) fn start(self: &Arc<Node>, request: Request<'_>, route: Route) -> Result<Started, Failure> {
        loop {
            match self.lane(route.db)?.start(request, route) {
                Err(Failure::Closed) => {}
                started => return started,
            }
        }
    }

    /// Decides whether a command may be queued.
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

    /// Returns the error for waiting commands while the breaker is open.
    pub(crate) fn open_failure(&self) -> Option<Failure> {
        let health = self.health.lock();
        health.breaker.is_open().then(|| health.failure())
    }

    /// Returns the last failure, while the node is failing.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.ailing.load(Ordering::Relaxed).then(|| self.health.lock().last_failure.clone()).flatten()
    }

    /// Records a reply that arrived over a connection of this generation.
    pub(crate) fn answered(&self, reply: &Reply, generation: u64) {
        let Reply::Error(text) = reply else { return self.succeeded() };
        add(&self.counters.engine_errors, 1);
        // Its role has changed: all its connections must be checked again.
        match text.split(' ').next() {
            // Other nodes can be queried instead.
            Some("MASTERDOWN") if self.section.is_cluster() => self.died(generation, text),
            Some("READONLY" | "MASTERDOWN") => self.flush(),
            Some("LOADING") => self.died(generation, text),
            _ => self.succeeded(),
        }
    }

    /// Records a sign of life.
    pub(crate) fn succeeded(&self) {
        if self.ailing.load(Ordering::Relaxed) {
            let mut health = self.health.lock();
            health.breaker.succeeded();
            // Under the lock, so that a failure counted meanwhile is not lost.
            self.ailing.store(false, Ordering::Relaxed);
        }
    }

    /// Records a failed attempt to connect or a lost connection. Existing connections reconnect before their next use.
    pub(crate) fn failed(&self, reason: &str) {
        self.note(None, reason);
    }

    /// Like [`failed`](Self::failed), for a connection of that generation: a failure noticed by several connections
    /// counts once.
    pub(crate) fn died(&self, generation: u64, reason: &str) {
        self.note(Some(generation), reason);
    }

    fn note(&self, generation: Option<u64>, reason: &str) {
        let mut health = self.health.lock();
        if generation.is_some_and(|generation| generation != self.generation()) {
            return;
        }
        self.flush();
        health.breaker.failed(Instant::now(), fastrand::f64());
        health.last_failure = Some(reason.to_owned());
        self.ailing.store(true, Ordering::Relaxed);
        drop(health);
        if let Some(router) = self.section.router() {
            router.refresh();
        }
    }

    pub(crate) fn is_ailing(&self) -> bool {
        self.ailing.load(Ordering::Relaxed)
    }

    /// Called when another engine has taken over: queued commands move there, and pending replies get a short deadline.
    pub(crate) fn leave(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.was_left.notify_waiters();
        self.flush();
        self.lanes.lock().iter().for_each(|lane| lane.turn());
    }

    /// Waits until another engine has taken over since this epoch.
    pub(crate) async fn left(&self, epoch: u64) {
        loop {
            let left = self.was_left.notified();
            if self.epoch() != epoch {
                return;
            }
            left.await;
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the node's weight for reading a slot's keys: a pseudo-random number, always the same.
    pub(crate) fn weight(&self, slot: u16) -> u64 {
        // The finalizer of MurmurHash3.
        let mut mixed = self.mark ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ mixed >> 33
    }

    /// Returns whether no connection has been attempted.
    pub(crate) fn is_untouched(&self) -> bool {
        self.counters.connects.load(Ordering::Relaxed) == 0
    }

    /// Returns whether commands wait for a connection to the node.
    pub(crate) fn has_waiting(&self) -> bool {
        self.lanes.lock().iter().any(|lane| lane.first_deadline().is_some())
    }

    /// Makes every connection reconnect before its next use.
    pub(crate) fn flush(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns the node's state and counters.
    pub(crate) fn figures(&self, role: &'static str) -> NodeFigures {
        let mut sum = Connections::default();
        self.counters.add_to(&mut sum);
        let health = self.health.lock();
        NodeFigures {
            address: self.address.to_string(),
            role,
            connected: sum.connected,
            connecting: sum.connecting,
            in_flight: sum.in_flight,
            replies: sum.replies,
            engine_errors: sum.engine_errors,
            connects: sum.connects,
            is_open: health.breaker.is_open(),
            last_failure: health.last_failure.clone(),
        }
    }

    /// Closes the node's lanes: it receives no further commands.
    pub(crate) fn close(&self) {
        self.lanes.lock().iter().for_each(|lane| lane.close());
    }
}
