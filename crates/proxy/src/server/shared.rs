//! A backend and its servers: slots, weights, health and admin state, and the figures that outlive a snapshot.
//!
//! A server's slots are its `maxconn`, or, with a `minconn`, a share of it that grows with the streams of the backend
//! up to `fullconn` of them. A server that returns with `slowstart` begins with a small share of both its weight and
//! its slots; [`BackendShared::warm_up`] raises them every second.
//!
//! A server serves while its effective weight is above 0: it is healthy, not in maintenance, not drained, and its
//! weight is not 0. Every change goes through [`BackendShared::update`], which notifies the balancer and the queue
//! immediately, so there is one view of the servers that are up.
//!
//! Invariant: `figures.scur` of a server is the number of its slots in use; it is raised only by
//! [`ServerShared::take_slot`] and lowered only by dropping a [`Slot`](super::run::Slot) or an unused grant.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_config::model;
use tokio::sync::Notify;

use super::busy::{BusyBackends, Common};
use super::cookie::{CookieMaker, Made};
use super::h2::attached::Attachments;
use super::health::Health;
use super::idle::IdleList;
use super::queue::Queue;
use super::seed::member;
pub(crate) use super::state::Turn;
pub(super) use super::state::initial;
pub use super::state::{Admin, AgentStatus, Moved, Operation, ServerStatus};
use crate::balance::{Balancer, Load, Member, Method, Pick, WEIGHT_SCALE, Wish};
use crate::counters::Figures;
use crate::stream::LastInvalid;

/// The load of a backend, shared by its servers.
#[derive(Debug)]
struct Pressure {
    /// `scur` is the number of streams in the backend.
    figures: Arc<Figures>,
    fullconn: u32,
    /// Slots in use of all servers; counted only where `hash-balance-factor` asks.
    served: Option<Arc<AtomicU32>>,
}

/// A server, independent of the configuration's snapshots.
pub struct ServerShared {
    /// Its name.
    pub name: Arc<str>,
    /// Its index in the backend.
    pub index: usize,
    /// Its identity across snapshots: a later server may have the same name.
    pub life: u64,
    /// HAProxy's revision of names that are used again.
    pub revision: u32,
    /// `backup`.
    pub backup: bool,
    /// Its counters; `scur` is the number of slots in use.
    pub figures: Arc<Figures>,
    /// Requests in its own queue.
    pub queued: AtomicU32,
    /// Highest value of `queued`.
    pub queued_max: AtomicU32,
    /// The number of slots granted to requests that have not yet noticed it.
    pub(super) granted: AtomicU32,
    /// `maxconn`; 0 means none.
    maxconn: AtomicU32,
    /// The setting of `set server … ssl`: 0: that of the file, 1: off, 2: on.
    pub(super) tls_set: AtomicU8,
    /// `minconn`; 0 means that the limit does not follow the backend's load.
    minconn: u32,
    /// `slowstart`.
    slowstart: Option<Duration>,
    /// The percentage of its slots that may be used; below 100 only during slow start.
    share: AtomicU32,
    pressure: Arc<Pressure>,
    /// `maxqueue`; 0 means none.
    maxqueue: u32,
    weight: AtomicU32,
    status: Mutex<ServerStatus>,
    /// Whether `moved` was ever changed; if not, connections need not acquire its lock.
    has_moved: AtomicBool,
    moved: Mutex<Moved>,
    /// `set server … agent-send`.
    agent_send: Mutex<Option<Arc<[u8]>>>,
    /// `set server … fqdn`.
    fqdn: Mutex<Option<Arc<str>>>,
    /// The target of a service's record in a state file, until name servers are queried.
    target: Mutex<Option<Arc<str>>>,
    /// Its value in the cookie, if computed from its address.
    pub(super) cookie: Made,
    /// The number of consecutive failures that `observe` has seen in traffic.
    pub(super) failures: AtomicU32,
    /// Notified if the next check is due earlier than planned.
    pub(super) hurry: Notify,
    pub(super) idle: Box<[IdleList]>,
    /// Connections for requests, in use, being made or idle, under this name in any configuration.
    pub(super) connections: Arc<AtomicU32>,
    /// The connections that it has opened itself.
    pub(super) attached: Attachments,
    /// The connections that requests have used at once lately: see [`super::idle::is_needed`].
    pub(super) need: AtomicU32,
    /// A number that changes when idle connections must not be used any more: see [`super::idle::clear`].
    pub(super) era: AtomicU32,
}

impl ServerShared {
    fn new(
        index: usize,
        config: &model::Server,
        workers: usize,
        pressure: Arc<Pressure>,
        revision: u32,
        before: Option<&ServerShared>,
    ) -> ServerShared {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        let (mut health, operation) = initial(config);
        if config.disabled {
            health.level = 0;
        }
        let status = ServerStatus {
            admin: if config.disabled { Admin::Maintenance } else { Admin::Ready },
            inherited: Admin::Ready,
            unresolved: false,
            operation,
            agent: AgentStatus {
                enabled: config.health.agent.is_some(),
                health: Health::new(1, 1),
                asking: false,
                report: None,
            },
            checking: false,
            checks: true,
            unchecked_level: if config.disabled { 0 } else { config.health.unchecked.rise },
            health,
            weight: u32::from(config.weight),
            starting: false,
            steps: WEIGHT_SCALE,
            changed: Instant::now(),
            downtime: Duration::ZERO,
            check: None,
            failed_checks: 0,
            times_down: 0,
            observed: 0,
        };
        ServerShared {
            name: config.name.clone(),
            index,
            life: before.map_or_else(|| LIVES.fetch_add(1, Ordering::Relaxed), |before| before.life),
            revision: before.map_or(revision, |before| before.revision),
            backup: config.backup,
            figures: before.map_or_else(|| Arc::new(Figures::new(workers)), |before| before.figures.clone()),
            queued: AtomicU32::new(0),
            queued_max: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            maxconn: AtomicU32::new(config.maxconn.unwrap_or(0)),
            tls_set: AtomicU8::new(0),
            minconn: config.minconn.unwrap_or(0),
            slowstart: config.slowstart,
            share: AtomicU32::new(100),
            pressure,
            maxqueue: config.maxqueue.unwrap_or(0),
            weight: AtomicU32::new(status.effective_weight()),
            status: Mutex::new(status),
            has_moved: AtomicBool::new(false),
            moved: Mutex::default(),
            agent_send: Mutex::default(),
            fqdn: Mutex::default(),
            target: Mutex::default(),
            cookie: Made::default(),
            failures: AtomicU32::new(0),
            hurry: Notify::new(),
            idle: (0..workers.max(1)).map(|_| IdleList::new()).collect(),
            connections: before.map_or_else(Arc::default, |before| before.connections.clone()),
            attached: Attachments::default(),
            need: AtomicU32::new(before.map_or(0, |before| before.need.load(Ordering::Relaxed))),
            era: AtomicU32::new(before.map_or(0, |before| before.era.load(Ordering::Relaxed))),
        }
    }

    /// Returns a copy of its state.
    pub fn status(&self) -> ServerStatus {
        self.status.lock().clone()
    }

    /// Returns whether a slow start is under way.
    pub(super) fn is_starting(&self) -> bool {
        self.status.lock().starting
    }

    /// Returns whether the server is up and past its slow start.
    pub(super) fn is_warm(&self) -> bool {
        let status = self.status.lock();
        status.is_running() && !status.starting
    }

    /// Returns its run-time address.
    pub fn moved(&self) -> Moved {
        if self.has_moved.load(Ordering::Acquire) { *self.moved.lock() } else { Moved::default() }
    }

    /// Changes the server's address or port. The caller closes idle connections to the old address.
    pub(crate) fn set_moved(&self, change: impl FnOnce(&mut Moved)) {
        change(&mut self.moved.lock());
        self.has_moved.store(true, Ordering::Release);
    }

    /// Returns the name set by a command.
    pub fn fqdn(&self) -> Option<Arc<str>> {
        self.fqdn.lock().clone()
    }

    pub(crate) fn set_fqdn(&self, name: Option<Arc<str>>) {
        *self.fqdn.lock() = name;
    }

    /// Returns the target of a service's record in a state file, if name servers have not been queried yet.
    pub(super) fn target(&self) -> Option<Arc<str>> {
        self.target.lock().clone()
    }

    pub(super) fn set_target(&self, name: &str) {
        *self.target.lock() = Some(name.into());
    }

    /// Takes the target out, for the code that queries name servers from now on.
    pub(crate) fn take_target(&self) -> Option<Arc<str>> {
        self.target.lock().take()
    }

    /// Returns the text sent to its agent.
    pub(super) fn agent_send(&self) -> Option<Arc<[u8]>> {
        self.agent_send.lock().clone()
    }

    pub(super) fn set_agent_send(&self, text: &[u8]) {
        *self.agent_send.lock() = Some(text.into());
    }

    /// Returns the weight that the balancer sees, in user weights and rounded up; 0 while it takes no new traffic.
    pub fn effective_weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed).div_ceil(WEIGHT_SCALE)
    }

    /// `maxconn`, `None` without one.
    pub fn maxconn(&self) -> Option<u32> {
        match self.maxconn.load(Ordering::Relaxed) {
            0 => None,
            max => Some(max),
        }
    }

    /// Returns its present number of slots, `None` without a `maxconn`.
    pub fn limit(&self) -> Option<u32> {
        let max = self.maxconn.load(Ordering::Relaxed);
        if max == 0 {
            return None;
        }
        let mut limit = max;
        if self.minconn > 0 {
            let streams = self.pressure.figures.scur.load(Ordering::Relaxed);
            if streams < self.pressure.fullconn {
                let share = u64::from(streams) * u64::from(max) / u64::from(self.pressure.fullconn);
                limit = self.minconn.max(share as u32);
            }
        }
        match self.share.load(Ordering::Relaxed) {
            100 => Some(limit),
            share => Some((limit * share / 100).max(1)),
        }
    }

    /// `maxqueue`, `None` without one.
    pub fn maxqueue(&self) -> Option<u32> {
        (self.maxqueue > 0).then_some(self.maxqueue)
    }

    /// Idle connections of each worker.
    pub fn idle_by_worker(&self) -> impl Iterator<Item = u32> {
        self.idle.iter().map(IdleList::all)
    }

    /// Idle connections of all workers.
    pub fn idle_connections(&self) -> u32 {
        self.idle.iter().map(IdleList::all).sum()
    }

    /// Returns the number of idle connections that any request may take.
    pub fn safe_idle_connections(&self) -> u32 {
        self.idle.iter().map(IdleList::proven).sum()
    }

    /// Returns an estimate of the connections that requests need at once.
    pub fn needed_connections(&self) -> u32 {
        self.need.load(Ordering::Relaxed)
    }

    /// Lowers that estimate: so many idle connections were not used for a whole period.
    pub(super) fn lower_need(&self, count: u32) {
        let lower = |need: u32| Some(need.saturating_sub(count));
        let _ = self.need.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }

    /// Resets the highest number of queued requests (`clear counters`).
    pub fn clear_highest(&self) {
        self.queued_max.store(self.queued.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns whether a request would get a slot of this server without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.limit().is_none_or(|limit| self.in_flight() < limit)
    }

    /// Requests in its queue.
    pub(super) fn waiting(&self) -> u32 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns whether its queue has reached `maxqueue`.
    pub(super) fn queue_is_full(&self) -> bool {
        match self.maxqueue {
            0 => false,
            max => self.queued.load(Ordering::Relaxed) >= max,
        }
    }

    /// Returns the number of requests being served or connected to it. A slot granted to a waiter that has not noticed
    /// yet does not count: HAProxy logs and counts it only once that request connects.
    pub fn sessions(&self) -> u32 {
        self.figures.scur.load(Ordering::Relaxed).saturating_sub(self.granted.load(Ordering::Relaxed))
    }

    /// Returns whether the server serves requests or requests wait for it.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight() > 0
    }

    /// Takes a slot if one is free.
    pub(super) fn take_slot(&self) -> bool {
        // SeqCst pairs with the queue's count of waiters: a request that finds no slot publishes itself and looks
        // again, who frees a slot looks for waiters afterwards, so one of them sees the other.
        let scur = &self.figures.scur;
        let taken = match self.limit() {
            None => scur.fetch_add(1, Ordering::SeqCst),
            Some(max) => {
                match scur
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |in_use| (in_use < max).then_some(in_use + 1))
                {
                    Ok(before) => before,
                    Err(_) => return false,
                }
            }
        };
        if let Some(served) = &self.pressure.served {
            served.fetch_add(1, Ordering::Relaxed);
        }
        let smax = &self.figures.smax;
        if taken >= smax.load(Ordering::Relaxed) {
            smax.fetch_max(taken + 1, Ordering::Relaxed);
        }
        true
    }

    /// Releases a slot without looking for waiters; the caller does that.
    pub(super) fn give_slot(&self) {
        self.figures.scur.fetch_sub(1, Ordering::SeqCst);
        if let Some(served) = &self.pressure.served {
            served.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn in_flight(&self) -> u32 {
        self.figures.scur.load(Ordering::SeqCst).saturating_add(self.queued.load(Ordering::SeqCst))
    }
}

impl fmt::Debug for ServerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerShared").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A backend, independent of the configuration's snapshots: its queue, balance and figures.
pub struct BackendShared {
    /// Its name.
    pub name: Arc<str>,
    /// Its counters; `scur` is the number of streams in this backend.
    pub figures: Arc<Figures>,
    /// The last response that could not be understood.
    pub invalid: LastInvalid,
    /// Requests that wait for a slot.
    pub queue: Queue,
    /// Its servers in the order of the file.
    pub servers: Vec<Arc<ServerShared>>,
    balancer: Mutex<Balancer>,
    pressure: Arc<Pressure>,
    /// The maker of the persistence cookie's values.
    pub cookies: CookieMaker,
    algorithm: model::Balance,
    /// Whether waiters for a server that goes down may choose another one.
    lets_go: bool,
    /// Whether weights other than 0 and the configured one are possible at run time, because the algorithm keeps no
    /// table of them.
    pub dynamic: bool,
    /// Whether a server has `slowstart`.
    pub(crate) slow_starts: bool,
    /// Whether it is one of the [busy](BusyBackends) backends.
    is_busy: AtomicBool,
    busy: Arc<BusyBackends>,
    status: Mutex<BackendStatus>,
    /// The same backend in other snapshots, where it is defined otherwise: they share their servers' slots.
    kin: Mutex<Vec<Weak<BackendShared>>>,
    has_kin: AtomicBool,
    /// The predecessors among them: their waiters learn of server states from here.
    elders: Mutex<Vec<Weak<BackendShared>>>,
}

/// The last change of a backend between up and down.
#[derive(Clone, Debug)]
struct BackendStatus {
    up: bool,
    changed: Instant,
    downtime: Duration,
    times_down: u64,
}

/// A backend's state as shown by `show stat`.
#[derive(Clone, Copy, Debug)]
pub struct BackendSummary {
    /// Whether a server is usable, or no server is configured.
    pub up: bool,
    /// Usable servers that are no backups.
    pub active: usize,
    /// Usable backup servers.
    pub backup: usize,
    /// Sum of the weights of the servers that serve.
    pub weight: u32,
    /// The time of its last change between up and down.
    pub changed: Instant,
    /// Time without a usable server.
    pub downtime: Duration,
    /// The number of times it went down.
    pub times_down: u64,
}

impl BackendShared {
    pub(super) fn new(
        config: &model::Proxy,
        Common { workers, revision, busy }: Common<'_>,
        fullconn: u32,
        before: Option<&BackendShared>,
    ) -> BackendShared {
        let figures = before.map_or_else(|| Arc::new(Figures::new(workers)), |before| before.figures.clone());
        let known = before.and_then(|before| before.pressure.served.clone());
        let served = (config.hash_balance_factor > 0).then(|| known.unwrap_or_default());
        let pressure = Arc::new(Pressure { figures: figures.clone(), fullconn, served });
        let servers: Vec<_> = config
            .servers
            .iter()
            .enumerate()
            .map(|(index, server)| {
                let before = before.and_then(|before| before.server_named(&server.name)).map(|before| &**before);
                Arc::new(ServerShared::new(index, server, workers, pressure.clone(), revision, before))
            })
            .collect();
        let method = Method {
            balance: config.balance.clone(),
            hash_type: config.hash_type,
            factor: config.hash_balance_factor,
            affinity: config.hash_preserve_affinity,
            all_backups: config.options.all_backups,
        };
        let effective = |server: &ServerShared| server.weight.load(Ordering::Relaxed);
        let members: Vec<Member> =
            config.servers.iter().zip(&servers).map(|(server, run)| member(server, effective(run))).collect();
        let balancer = Balancer::new(&method, &members);
        let up = balancer.usable() != (0, 0);
        BackendShared {
            name: config.name.clone(),
            figures,
            invalid: LastInvalid::default(),
            queue: Queue::new(servers.len()),
            is_busy: AtomicBool::new(false),
            busy: busy.clone(),
            slow_starts: servers.iter().any(|server| server.slowstart.is_some()),
            servers,
            balancer: Mutex::new(balancer),
            pressure,
            dynamic: method.is_dynamic(),
            cookies: CookieMaker::new(config),
            algorithm: method.balance,
            lets_go: config.redispatch.is_some() && !config.options.persist,
            status: Mutex::new(BackendStatus { up, changed: Instant::now(), downtime: Duration::ZERO, times_down: 0 }),
            kin: Mutex::default(),
            has_kin: AtomicBool::new(false),
            elders: Mutex::default(),
        }
    }

    fn server_named(&self, name: &str) -> Option<&Arc<ServerShared>> {
        self.servers.iter().find(|server| &*server.name == name)
    }

    /// Takes over from the same backend of an earlier snapshot: server states, and slots in use there. From then on, a
    /// slot freed in either backend goes to waiters of both, those of the earlier one first.
    pub(super) fn succeed(self: &Arc<Self>, before: &Arc<BackendShared>, now: Instant) {
        let mut family: Vec<Weak<BackendShared>> = before.kin.lock().clone();
        family.retain(|kin| kin.strong_count() > 0);
        family.push(Arc::downgrade(before));
        for kin in family.iter().filter_map(Weak::upgrade) {
            kin.kin.lock().push(Arc::downgrade(self));
            kin.has_kin.store(true, Ordering::Release);
        }
        *self.kin.lock() = family.clone();
        self.has_kin.store(true, Ordering::Release);
        for (index, server) in self.servers.iter().enumerate() {
            let Some(old) = before.server_named(&server.name) else { continue };
            let known = old.status();
            self.update(index, now, |status| *status = known);
            server.maxconn.store(old.maxconn.load(Ordering::SeqCst), Ordering::SeqCst);
            server.queued_max.store(old.queued_max.load(Ordering::Relaxed), Ordering::Relaxed);
            self.load_changed(index);
        }
        let known = before.status.lock().clone();
        {
            let mut status = self.status.lock();
            let up = status.up;
            *status = BackendStatus { up, ..known };
        }
        *self.elders.lock() = family;
    }

    /// Hands a freed slot of this server to a waiter.
    pub(super) fn slot_freed(&self, server: usize) {
        if self.has_kin.load(Ordering::Acquire) {
            self.tell_kin(server);
        }
        self.queue.dispatch(self, server);
    }

    #[cold]
    fn tell_kin(&self, server: usize) {
        let kin: Vec<_> = {
            let mut kin = self.kin.lock();
            kin.retain(|kin| kin.strong_count() > 0);
            self.has_kin.store(!kin.is_empty(), Ordering::Release);
            kin.iter().filter_map(Weak::upgrade).collect()
        };
        let name = &self.servers[server].name;
        for kin in kin {
            if let Some(index) = kin.server_named(name).map(|server| server.index) {
                kin.load_changed(index);
                kin.queue.dispatch(&kin, index);
            }
        }
    }

    /// Returns whether waiters for a server that goes down may choose another one.
    pub(super) fn lets_go(&self) -> bool {
        self.lets_go
    }

    /// Streams in the backend at which servers with a `minconn` reach their `maxconn`.
    pub fn fullconn(&self) -> u32 {
        self.pressure.fullconn
    }

    /// Records that a stream enters this backend; it counts as current until the returned guard is dropped.
    pub fn enter(self: &Arc<Self>, worker: usize, now: Instant) -> BackendGuard {
        self.figures.enter();
        self.figures.at(worker).session(now);
        if !self.is_busy.load(Ordering::SeqCst) {
            self.busy.add(self);
        }
        BackendGuard { backend: self.clone() }
    }

    /// Records whether it is one of the busy backends; returns whether it was.
    pub(super) fn set_busy(&self, busy: bool) -> bool {
        self.is_busy.swap(busy, Ordering::SeqCst)
    }

    /// Performs one step of every slow start; the control thread calls it at least once a second.
    pub fn warm_up(&self, now: Instant) {
        for server in self.servers.iter().filter(|server| server.slowstart.is_some() && server.is_starting()) {
            self.update(server.index, now, |_| ());
        }
    }

    /// Chooses the server of a log message. It takes no slot, and limits do not matter.
    pub(crate) fn pick_for_message(&self, hash: Option<u32>) -> Option<usize> {
        match self.balancer.lock().pick(Wish { hash, avoid: None }, &Unlimited) {
            Pick::Taken(server) | Pick::Wait(server) => Some(server),
            Pick::Full | Pick::None => None,
        }
    }

    /// Chooses a server and takes its slot.
    pub(super) fn pick(&self, wish: Wish) -> Pick {
        self.balancer.lock().pick(wish, self)
    }

    /// Reports the load of a server to the balancer, if its algorithm uses it.
    pub(super) fn load_changed(&self, server: usize) {
        if matches!(self.algorithm, model::Balance::LeastConn) {
            // Read under the lock: the last change of the load is the last one reported, or finds it reported.
            let mut balancer = self.balancer.lock();
            balancer.load_changed(server, self.servers[server].in_flight());
        }
    }

    /// Releases a slot without looking for waiters; the caller does that.
    pub(super) fn give_slot(&self, server: usize) {
        self.servers[server].give_slot();
        self.load_changed(server);
    }

    /// Returns whether a server may take requests that wait for any server.
    pub(super) fn serves_any(&self, server: usize) -> bool {
        self.balancer.lock().serves_any(server)
    }

    /// Returns the numbers of usable servers: active ones and backups.
    pub fn usable_servers(&self) -> (usize, usize) {
        self.balancer.lock().usable()
    }

    /// Returns a consistent summary of the backend's state.
    pub fn summary(&self, now: Instant) -> BackendSummary {
        let ((active, backup), weight) = {
            let balancer = self.balancer.lock();
            (balancer.usable(), balancer.total_weight())
        };
        let status = self.status.lock().clone();
        let down = if status.up { Duration::ZERO } else { now.saturating_duration_since(status.changed) };
        BackendSummary {
            up: status.up || self.servers.is_empty(),
            active,
            backup,
            weight,
            changed: status.changed,
            downtime: status.downtime + down,
            times_down: status.times_down,
        }
    }

    /// Changes a server's state and applies the change to the balancer and the queue: a server that stops serving
    /// returns its queue to the backend, one that starts takes waiting requests.
    pub fn update<T>(&self, index: usize, now: Instant, change: impl FnOnce(&mut ServerStatus) -> T) -> T {
        let server = &self.servers[index];
        let mut status = server.status.lock();
        let before = (status.is_running(), status.admin(), status.operation);
        let result = change(&mut status);
        let runs = status.is_running();
        let changed = before != (runs, status.admin(), status.operation);
        let empties = !runs || (changed && (status.admin() == Admin::Drain || status.operation == Operation::Stopping));
        if changed {
            if !before.0 {
                let down = now.saturating_duration_since(status.changed);
                status.downtime += down;
            }
            status.changed = now;
        }
        if runs && !before.0 && server.slowstart.is_some() {
            status.starting = true;
        } else if !runs {
            (status.starting, status.steps) = (false, WEIGHT_SCALE);
        }
        let share = status.warm(now, server.slowstart.unwrap_or_default(), self.dynamic);
        server.share.store(share, Ordering::SeqCst);
        let weight = status.effective_weight();
        // The state's lock is still held, so that the balancer and the elders learn of concurrent changes in order.
        if server.weight.swap(weight, Ordering::Relaxed) != weight {
            self.set_balancer_weight(index, weight, now);
        }
        let mut told = Vec::new();
        if self.has_kin.load(Ordering::Acquire) {
            for elder in self.elders.lock().iter().filter_map(Weak::upgrade) {
                if let Some(index) = elder.server_named(&server.name).map(|server| server.index) {
                    elder.take_state(index, &status, now);
                    told.push((elder, index));
                }
            }
        }
        drop(status);
        self.act_on_state(index, empties, weight);
        told.iter().for_each(|(elder, index)| elder.act_on_state(*index, empties, weight));
        result
    }

    /// Copies a server's state from the backend that took over from this one.
    fn take_state(&self, index: usize, known: &ServerStatus, now: Instant) {
        let server = &self.servers[index];
        let mut status = server.status.lock();
        *status = known.clone();
        let weight = status.effective_weight();
        if server.weight.swap(weight, Ordering::Relaxed) != weight {
            self.set_balancer_weight(index, weight, now);
        }
    }

    /// Applies a state change to waiters: those of a server that stops or is drained choose again, and a server that
    /// starts takes waiters.
    fn act_on_state(&self, index: usize, empties: bool, weight: u32) {
        if empties {
            self.queue.redistribute(self, index);
        } else if weight > 0 {
            self.slot_freed(index);
        }
    }

    /// Resets a server's failure count and down time (`clear counters all`).
    pub fn forget_failures(&self, index: usize) {
        let mut status = self.servers[index].status.lock();
        (status.failed_checks, status.times_down, status.observed) = (0, 0, 0);
        status.downtime = Duration::ZERO;
    }

    /// Changes a server's `maxconn` (0: none); room that this makes is used at once.
    pub fn set_maxconn(&self, index: usize, maxconn: u32) {
        self.servers[index].maxconn.store(maxconn, Ordering::SeqCst);
        self.slot_freed(index);
    }

    /// Sets the seed from which a server's points on the ring of `hash-type consistent` are computed.
    pub fn set_seed(&self, index: usize, seed: u32) {
        self.balancer.lock().set_seed(index, seed);
    }

    fn set_balancer_weight(&self, index: usize, weight: u32, now: Instant) {
        let up = {
            let mut balancer = self.balancer.lock();
            balancer.set_weight(index, weight);
            balancer.usable() != (0, 0)
        };
        let mut status = self.status.lock();
        if status.up != up {
            status.up = up;
            if up {
                let down = now.saturating_duration_since(status.changed);
                status.downtime += down;
            } else {
                status.times_down += 1;
            }
            status.changed = now;
        }
    }
}

/// The load of servers that are sent messages: none.
struct Unlimited;

impl Load for Unlimited {
    fn take(&self, _: usize) -> bool {
        true
    }

    fn may_queue(&self, _: usize) -> bool {
        false
    }

    fn served(&self, _: usize) -> u32 {
        0
    }

    fn in_flight(&self, _: usize) -> u32 {
        0
    }

    fn all_served(&self) -> u32 {
        0
    }

    fn is_full(&self, _: usize) -> bool {
        false
    }

    fn queue_is_full(&self, _: usize) -> bool {
        false
    }
}

impl Load for BackendShared {
    fn take(&self, server: usize) -> bool {
        let server = &self.servers[server];
        // Requests in a server's own queue came before this one.
        server.queued.load(Ordering::SeqCst) == 0 && server.take_slot()
    }

    fn may_queue(&self, server: usize) -> bool {
        let server = &self.servers[server];
        match (server.limit(), server.maxqueue()) {
            (Some(limit), Some(queue)) => server.in_flight() < limit.saturating_add(queue) && !server.queue_is_full(),
            _ => false,
        }
    }

    fn served(&self, server: usize) -> u32 {
        self.servers[server].figures.scur.load(Ordering::Relaxed)
    }

    fn in_flight(&self, server: usize) -> u32 {
        self.servers[server].in_flight()
    }

    fn all_served(&self) -> u32 {
        self.pressure.served.as_ref().map_or(0, |served| served.load(Ordering::Relaxed))
    }

    fn is_full(&self, server: usize) -> bool {
        self.servers[server].limit().is_some_and(|limit| self.in_flight(server) >= limit)
    }

    fn queue_is_full(&self, server: usize) -> bool {
        self.servers[server].maxconn().is_some() && self.servers[server].queue_is_full()
    }
}

impl fmt::Debug for BackendShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendShared").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A stream's stay in a backend (`scur` of its BACKEND line).
#[derive(Debug)]
pub struct BackendGuard {
    backend: Arc<BackendShared>,
}

impl Drop for BackendGuard {
    fn drop(&mut self) {
        self.backend.figures.leave();
    }
}
