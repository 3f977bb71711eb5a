//! `mode cluster` and `mode sentinel`: the map from keys to nodes, and redirected commands.
//!
//! **Cluster.** The map is read from any node with `CLUSTER SLOTS` and corrected by each `MOVED`. It is read again
//! after a `MOVED` or `CLUSTERDOWN`, while a node is failing or a reply is overdue, and every 30 s while commands
//! arrive, but at most ten times a second. A redirected command keeps its caller's reply channel: the connection that
//! received the redirection passes the command's bytes to the other node. Commands queued on a lane whose node has lost
//! the slot move to the new owner.
//!
//! **Sentinel.** Works the same way, with a map of one master and its replicas, which is read from a
//! [sentinel](crate::sentinels) five times a second while commands arrive; the engine itself must confirm its role.
//!
//! **Bounds.** A command is redirected at most [`MOVES_MAX`] times, and only within `timeout queue` plus `timeout
//! server` of its arrival; then the caller gets the engine's error.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluicegate_wire::engine::Started;
use sluicegate_wire::slot::{SLOTS, slot};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::command::Kind;
use crate::figures::{add, take};
use crate::keys::Place;
use crate::node::Node;
use crate::node::lane::{ASKING, Entry, QUEUED_MAX, Route, question};
use crate::node::section::{Router, Section};
use crate::options::Mode;
use crate::sentinels::Sentinels;
use crate::told::{self, NODES_MAX, Redirect};
use crate::transaction::Request;
use crate::waiter::{Waiter, pending};
use crate::{Address, Failure};

/// The maximum number of redirections of one command.
pub(crate) const MOVES_MAX: u8 = 16;
/// The first pause after `TRYAGAIN` and `CLUSTERDOWN`; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest of these pauses.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The minimum time between two reads of the map.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// If a node has not sent the map within this time, another node is queried in parallel.
const REFRESH_HEDGE: Duration = Duration::from_millis(100);
/// The age of the map at which the next command triggers a new read.
const MAP_AGE: Duration = Duration::from_secs(30);
/// The same, if reads go to replicas and at least one master has no replica.
const MAP_AGE_BARE: Duration = Duration::from_secs(1);
/// The maximum number of nodes known only from `ASK` redirections, which the map does not contain.
const GUESTS_MAX: usize = 64;
/// The same for a map that was read from sentinels.
const MASTER_AGE: Duration = Duration::from_millis(200);

/// A slot without an owner, in [`Map::slots`].
const NOBODY: u16 = u16::MAX;

/// The nodes of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    section: Arc<Section>,
    /// The configured nodes, which are queried for the map while no others are known; empty with `mode sentinel`.
    seeds: Vec<Arc<Node>>,
    /// The sentinels that report the master, with `mode sentinel`.
    sentinels: Option<Sentinels>,
    from_replicas: bool,
    map: RwLock<Map>,
    /// Notified after each read of the map.
    changed: Notify,
    refresh: Mutex<Refresh>,
    /// Whether a node was failing at the last read of the map.
    unsettled: AtomicBool,
    /// The next node for commands that any node can answer.
    next: AtomicUsize,
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Map {
    shards: Vec<Shard>,
    /// The index of each slot's shard in `shards`; empty until the first map is read.
    slots: Vec<u16>,
    /// The time from which the next command triggers a refresh; `None`: the map is not known yet.
    fresh_until: Option<Instant>,
    /// Nodes that are no longer in the map but still have connections.
    former: Vec<Arc<Node>>,
    /// Nodes that import slots but own none yet, with the time at which a command was last sent to each.
    guests: Vec<(Arc<Node>, Instant)>,
}

#[derive(Debug)]
struct Shard {
    master: Arc<Node>,
    replicas: Vec<Arc<Node>>,
    /// Replicas that are currently disconnected from the master. They serve reads only while the master is failing.
    spare: Vec<Arc<Node>>,
}

#[derive(Debug, Default)]
struct Refresh {
    running: bool,
    again: bool,
    not_before: Option<Instant>,
    last_failure: Option<String>,
}

impl Shard {
    fn replicas(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.replicas.iter().chain(&self.spare)
    }

    /// Returns the node that serves reads of a slot: a replica that answers and follows the master; otherwise the
    /// master, or, while the master is failing, a replica that is disconnected from it.
    fn reader(&self, slot: u16) -> &Arc<Node> {
        // A key is always read from the same replica, the one with the greatest weight for it, so that consecutive
        // reads never return older values. Adding or removing other nodes does not change these weights.
        let answers = |nodes| -> Option<&Arc<Node>> {
            let nodes: &[Arc<Node>] = nodes;
            nodes.iter().filter(|node| !node.is_ailing()).max_by_key(|node| node.weight(slot))
        };
        let spare = || answers(&self.spare).filter(|_| self.master.is_ailing());
        answers(&self.replicas).or_else(spare).unwrap_or(&self.master)
    }
}

impl Map {
    fn shard(&self, slot: u16) -> Option<&Shard> {
        self.shards.get(usize::from(*self.slots.get(usize::from(slot))?))
    }

    fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.shards.iter().flat_map(|shard| std::iter::once(&shard.master).chain(shard.replicas()))
    }

    fn node(&self, address: &Address) -> Option<Arc<Node>> {
        let guests = self.guests.iter().map(|(node, _)| node);
        self.nodes().chain(guests).find(|node| node.address == *address).cloned()
    }
}

impl Cluster {
    pub(crate) fn new(section: Arc<Section>) -> Arc<Cluster> {
        let (sentinels, from_replicas) = match &section.options.mode {
            Mode::Sentinel { master, from_replicas, .. } => {
                (Some(Sentinels::new(&section, master, *from_replicas)), *from_replicas)
            }
            mode => (None, *mode == Mode::Cluster { from_replicas: true }),
        };
        let seed = |address: &Address| Arc::new(Node::new(section.clone(), address.clone()));
        Arc::new(Cluster {
            seeds: if sentinels.is_some() { Vec::new() } else { section.options.servers.iter().map(seed).collect() },
            sentinels,
            from_replicas,
            section,
            map: RwLock::default(),
            changed: Notify::new(),
            refresh: Mutex::default(),
            unsettled: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
        })
    }

    /// Returns this cluster as the router of its section.
    pub(crate) fn router(self: &Arc<Cluster>) -> Weak<dyn Router> {
        let router: Arc<dyn Router> = self.clone();
        Arc::downgrade(&router)
    }

    /// Returns every known node, including former ones that still have connections.
    pub(crate) fn nodes(&self) -> Vec<(Arc<Node>, &'static str)> {
        let map = self.map.read();
        let shards = map.shards.iter().flat_map(|shard| {
            let replicas = shard.replicas().map(|node| (node.clone(), "replica"));
            std::iter::once((shard.master.clone(), "master")).chain(replicas)
        });
        let former = map.former.iter().map(|node| (node.clone(), "former"));
        let seeds = self.seeds.iter().filter(|seed| !is_in(map.nodes(), seed)).map(|node| (node.clone(), "seed"));
        let sentinels = self.sentinels.iter().flat_map(|sentinels| sentinels.all());
        let asked = seeds.chain(sentinels.map(|node| (node, "sentinel"))).filter(|(node, _)| !node.is_untouched());
        let guests = map.guests.iter().map(|(node, _)| (node.clone(), "importing"));
        shards.chain(guests).chain(former).chain(asked).collect()
    }

    /// Returns the reason why the map could not be read, if it could not.
    pub(crate) fn last_failure(&self) -> Option<String> {
        let read = self.refresh.lock().last_failure.clone();
        let sentinels = self.sentinels.iter().flat_map(|sentinels| sentinels.all());
        read.or_else(|| self.seeds.iter().cloned().chain(sentinels).find_map(|node| node.last_failure()))
    }

    /// Sends a command to the node that owns its key.
    pub(crate) fn ask(self: &Arc<Cluster>, db: u32, request: Request<'_>, kind: Kind) -> Result<Started, Failure> {
        let reads = kind == Kind::Reads;
        let place = match &self.sentinels {
            // Commands on all keys go to the master.
            Some(_) if reads && self.from_replicas => request.place().unwrap_or(Place::Any),
            Some(_) => Place::Any,
            None if db != 0 => {
                return Err(Failure::Refused(format!("a cluster has database 0 only, not {db}")));
            }
            None => request.place()?,
        };
        let slot = match place {
            Place::Key(key) => Some(slot(key)),
            Place::Any => None,
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let route = Route::new(slot, db, reads);
        let Some(node) = self.owner(slot, reads) else { return self.park(request, route) };
        if self.unsettled.load(Ordering::Relaxed) {
            self.refresh();
        }
        node.admit()?;
        node.start(request, route)
    }

    /// Returns the node for a slot, or any master for no slot. Returns `None` while the map is not known.
    fn owner(self: &Arc<Cluster>, slot: Option<u16>, reads: bool) -> Option<Arc<Node>> {
        let map = self.map.read();
        if map.fresh_until.is_none_or(|at| at <= Instant::now()) {
            self.refresh();
        }
        if let Some(slot) = slot
            && let Some(shard) = map.shard(slot)
        {
            return Some(if reads && self.from_replicas { shard.reader(slot) } else { &shard.master }.clone());
        }
        let count = map.shards.len();
        if count == 0 {
            return None;
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut masters = (0..count).map(|step| &map.shards[(first + step) % count].master);
        let any = masters.clone().next();
        masters.find(|node| !node.is_ailing()).or(any).cloned()
    }

    /// Returns the node for a dedicated connection: the master that owns this key, or any master without a key.
    pub(crate) async fn own_node(self: &Arc<Cluster>, key: Option<&[u8]>) -> Result<Arc<Node>, Failure> {
        let within = self.section.options.timeout_queue;
        if timeout(within, self.known()).await.is_err() {
            return Err(Failure::no_connection(self.last_failure(), within));
        }
        self.owner(key.map(slot), false).ok_or(Failure::Closed)
    }

    /// Queues a command until the map is known.
    fn park(self: &Arc<Cluster>, request: Request<'_>, route: Route) -> Result<Started, Failure> {
        let queued = self.section.counters.queued.load(Ordering::Relaxed);
        let parked = self.section.parked.load(Ordering::Relaxed);
        if queued >= self.section.options.maxqueue as u64 || parked > QUEUED_MAX {
            return Err(Failure::QueueFull(queued as usize));
        }
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let (waiter, awaited) = Waiter::of(&request);
        let entry = Entry { transaction: request.transaction(), ..Entry::new(bytes.len(), route, waiter) };
        let waiting = Waiting::new(self.section.clone(), bytes.len());
        let cluster = self.clone();
        tokio::spawn(async move {
            let within = cluster.section.options.timeout_queue;
            let known = timeout_at(route.begun + within, cluster.known()).await;
            drop(waiting);
            match known {
                Ok(()) => cluster.forward(entry, &bytes),
                Err(_) => entry.fail(&cluster.section, Failure::no_connection(cluster.last_failure(), within)),
            }
        });
        Ok(pending(awaited))
    }

    /// Waits for the first map.
    async fn known(self: &Arc<Cluster>) {
        loop {
            let changed = self.changed.notified();
            if self.map.read().fresh_until.is_some() {
                return;
            }
            self.refresh();
            changed.await;
        }
    }

    /// Sends a command to the node of its key.
    fn forward(self: &Arc<Cluster>, entry: Entry, bytes: &[u8]) {
        match self.owner(entry.route.slot, entry.route.reads) {
            Some(node) => match node.admit() {
                Ok(()) => self.send(&node, entry, bytes),
                Err(failure) => entry.fail(&self.section, failure),
            },
            None => entry.fail(&self.section, Failure::Closed),
        }
    }

    /// Assigns a slot to another master, which is added to the map if it is unknown. Returns `None` if the map already
    /// has the maximum number of nodes.
    fn moved(&self, slot: u16, there: &Address) -> Option<Arc<Node>> {
        let mut map = self.map.write();
        let shard = match map.shards.iter().position(|shard| shard.master.address == *there) {
            Some(known) => known,
            None if map.shards.len() >= NODES_MAX => return None,
            None => {
                let known = map.node(there);
                let master = known.unwrap_or_else(|| Arc::new(Node::new(self.section.clone(), there.clone())));
                map.guests.retain(|(guest, _)| !Arc::ptr_eq(guest, &master));
                map.shards.push(Shard { master, replicas: Vec::new(), spare: Vec::new() });
                map.shards.len() - 1
            }
        };
        if let Some(owner) = map.slots.get_mut(usize::from(slot)) {
            *owner = shard as u16;
        }
        Some(map.shards[shard].master.clone())
    }

    /// Returns the node that an `ASK` names. A node that is not in the map, because it has no slots yet, is remembered,
    /// so that all commands redirected to it share its connections.
    fn asked_at(&self, there: Address) -> Arc<Node> {
        let mut map = self.map.write();
        let now = Instant::now();
        if let Some((node, last)) = map.guests.iter_mut().find(|(node, _)| node.address == there) {
            *last = now;
            return node.clone();
        }
        if let Some(node) = map.node(&there) {
            return node;
        }
        let new = Arc::new(Node::new(self.section.clone(), there));
        if map.guests.len() == GUESTS_MAX {
            let oldest = (0..GUESTS_MAX).min_by_key(|at| map.guests[*at].1).unwrap_or(0);
            let (gone, _) = map.guests.swap_remove(oldest);
            gone.close();
            map.former.push(gone);
        }
        map.guests.push((new.clone(), now));
        new
    }

    /// Returns the node to which a dedicated connection should reconnect after a redirection, `moves` being the number
    /// of earlier ones, and whether that node is still importing the slot.
    pub(crate) async fn redirect_own(
        self: &Arc<Cluster>,
        redirect: Redirect,
        moves: u8,
        key: Option<&[u8]>,
    ) -> Result<(Arc<Node>, bool), Failure> {
        add(&self.section.counters.redirected, 1);
        match redirect {
            Redirect::Moved(slot, there) if let Some(node) = self.moved(slot, &there) => {
                self.refresh();
                Ok((node, false))
            }
            Redirect::Ask(there) => Ok((self.asked_at(there), true)),
            Redirect::Moved(..) | Redirect::Later => {
                self.refresh();
                sleep(pause(moves)).await;
                Ok((self.own_node(key).await?, false))
            }
        }
    }

    /// Waits until `node` is no longer the right one for a dedicated connection that uses `key`.
    pub(crate) async fn turns_away(&self, key: Option<&[u8]>, node: &Arc<Node>) {
        loop {
            let changed = self.changed.notified();
            if !self.is_for(key, node) {
                return;
            }
            changed.await;
        }
    }

    fn is_for(&self, key: Option<&[u8]>, node: &Arc<Node>) -> bool {
        let map = self.map.read();
        let shard = key.filter(|_| self.sentinels.is_none()).and_then(|key| map.shard(slot(key)));
        match shard {
            Some(shard) => Arc::ptr_eq(&shard.master, node),
            None => map.shards.iter().any(|shard| Arc::ptr_eq(&shard.master, node)),
        }
    }

    /// Schedules a new read of the map.
    pub(crate) fn refresh(self: &Arc<Cluster>) {
        let mut refresh = self.refresh.lock();
        if std::mem::replace(&mut refresh.running, true) {
            refresh.again = true;
            return;
        }
        drop(refresh);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.refresh.lock().running = false;
            return;
        };
        let mut running = Running(Some(self.clone()));
        runtime.spawn(async move {
            while let Some(cluster) = &running.0 {
                let asked = cluster.asked.load(Ordering::Relaxed);
                cluster.read_once().await;
                if !cluster.goes_on(asked) {
                    // `goes_on` has already cleared `running`, and another task may have started since: don't clear it
                    // again.
                    running.0 = None;
                }
            }
        });
    }

    /// Reads the map once, as soon as the minimum pause allows.
    async fn read_once(self: &Arc<Cluster>) {
        let not_before = {
            let mut refresh = self.refresh.lock();
            refresh.again = false;
            refresh.not_before
        };
        if let Some(at) = not_before {
            sleep_until(at).await;
        }
        let read = self.read_map().await;
        if let Ok(shards) = &read {
            self.apply(shards);
        }
        if read.is_err() && self.map.read().shards.is_empty() {
            // No node can be queried. Pause before the next attempt; the callers may give up in the meantime.
            sleep(REFRESH_PAUSE).await;
        }
        let mut refresh = self.refresh.lock();
        refresh.not_before = Some(Instant::now() + REFRESH_PAUSE);
        refresh.last_failure = read.err();
    }

    /// Returns whether to read the map again: on request, or while a node is failing. Also sends a PING to each failing
    /// node, because no commands are sent there that would show its recovery.
    fn goes_on(self: &Arc<Cluster>, asked: u64) -> bool {
        let nodes: Vec<Arc<Node>> = self.map.read().nodes().cloned().collect();
        let ailing: Vec<&Arc<Node>> = nodes.iter().filter(|node| node.is_ailing()).collect();
        for node in &ailing {
            if !node.has_waiting()
                && let Ok(lane) = node.any_lane()
            {
                // The node itself records whether it answers.
                let _ = lane.push(&[b"PING"], Route::own());
            }
        }
        self.unsettled.store(!ailing.is_empty(), Ordering::Relaxed);
        let missed = !ailing.is_empty() && self.asked.load(Ordering::Relaxed) != asked;
        let waits = self.section.counters.queued.load(Ordering::Relaxed) > 0;
        let mut refresh = self.refresh.lock();
        let goes_on = refresh.again || missed || waits && (nodes.is_empty() || !ailing.is_empty());
        refresh.running = goes_on;
        goes_on
    }

    /// Reads the map from the nodes: the first answer is used, and slow nodes are queried in parallel with others.
    async fn read_map(self: &Arc<Cluster>) -> Result<Vec<told::Shard>, String> {
        let mut nodes = match &self.sentinels {
            Some(sentinels) => sentinels.all(),
            None => {
                let map = self.map.read();
                let mut nodes: Vec<Arc<Node>> = map.shards.iter().map(|shard| shard.master.clone()).collect();
                // A node that was removed from the cluster still lists itself, so a node counts as a master only while
                // it owns slots.
                let mut others: Vec<Arc<Node>> =
                    map.shards.iter().flat_map(|shard| shard.replicas().cloned()).collect();
                drop(map);
                fastrand::shuffle(&mut nodes);
                fastrand::shuffle(&mut others);
                nodes.append(&mut others);
                for seed in &self.seeds {
                    if !nodes.iter().any(|node| node.address == seed.address) {
                        nodes.push(seed.clone());
                    }
                }
                nodes
            }
        };
        nodes.sort_by_key(|node| node.is_ailing());
        let mut nodes = nodes.into_iter();
        let mut asked = JoinSet::new();
        let mut reason = "no node is known".to_owned();
        loop {
            if let Some(node) = nodes.next() {
                let cluster = self.clone();
                asked.spawn(async move {
                    cluster.map_of(&node).await.map_err(|error| format!("{}: {error}", node.address))
                });
            } else if asked.is_empty() {
                return Err(reason);
            }
            let answer = match timeout(REFRESH_HEDGE, asked.join_next()).await {
                Ok(answer) => answer,
                Err(_) if nodes.len() == 0 => asked.join_next().await,
                Err(_) => continue,
            };
            match answer {
                Some(Ok(Ok(shards))) => return Ok(shards),
                Some(Ok(Err(error))) => reason = error,
                _ => {}
            }
        }
    }

    /// Reads the map from one node or one sentinel.
    async fn map_of(&self, node: &Arc<Node>) -> Result<Vec<told::Shard>, String> {
        let Some(sentinels) = &self.sentinels else {
            return told::slots(&question(node, &[b"CLUSTER", b"SLOTS"]).await, &node.address);
        };
        let known = self.map.read().shards.first().map(|shard| shard.master.clone());
        let shard = sentinels.ask(node, known).await?;
        Ok(vec![told::Shard { slots: vec![0..=SLOTS - 1], ..shard }])
    }

    /// Replaces the map by the one that a node sent, and removes nodes that are no longer in it.
    fn apply(&self, told: &[told::Shard]) {
        let mut map = self.map.write();
        let before: Vec<Arc<Node>> = map.nodes().cloned().collect();
        let had: Vec<Arc<Node>> = map.shards.iter().map(|shard| shard.master.clone()).collect();
        let mut made: Vec<Arc<Node>> = Vec::new();
        let mut former = std::mem::take(&mut map.former);
        let mut guests = std::mem::take(&mut map.guests);
        let mut node = |address: &Address| {
            // A node that was removed and returns keeps its connection rate limit and its breaker.
            let guests = guests.iter().map(|(node, _): &(Arc<Node>, Instant)| node);
            let mut known = before.iter().chain(&self.seeds).chain(&former).chain(guests).chain(&made);
            let known = known.find(|node| node.address == *address).cloned();
            known.unwrap_or_else(|| {
                let new = Arc::new(Node::new(self.section.clone(), address.clone()));
                made.push(new.clone());
                new
            })
        };
        let mut slots = vec![NOBODY; usize::from(SLOTS)];
        let mut shards = Vec::with_capacity(told.len());
        for (index, shard) in told.iter().enumerate() {
            for range in &shard.slots {
                slots[usize::from(*range.start())..=usize::from(*range.end())].fill(index as u16);
            }
            let master = node(&shard.master);
            let replicas = shard.replicas.iter().map(&mut node).collect();
            shards.push(Shard { master, replicas, spare: shard.spare.iter().map(&mut node).collect() });
        }
        map.shards = shards;
        map.slots = slots;
        let bare = self.from_replicas && map.shards.iter().any(|shard| shard.replicas.is_empty());
        let age = match &self.sentinels {
            Some(_) => MASTER_AGE,
            None if bare => MAP_AGE_BARE,
            None => MAP_AGE,
        };
        map.fresh_until = Some(Instant::now() + age);
        let now: Vec<Arc<Node>> = map.nodes().cloned().collect();
        let masters: Vec<Arc<Node>> = map.shards.iter().map(|shard| shard.master.clone()).collect();
        let left: Vec<Arc<Node>> = had.into_iter().filter(|node| !is_in(masters.iter(), node)).collect();
        let at = Instant::now();
        guests.retain(|(node, _)| !is_in(now.iter(), node));
        let over = guests.extract_if(.., |(_, last)| *last + MAP_AGE <= at).map(|(node, _)| node);
        let gone = before.into_iter().filter(|node| !is_in(now.iter(), node));
        let gone: Vec<Arc<Node>> = gone.chain(over).collect();
        map.guests = guests;
        former.retain(|node| !is_in(now.iter(), node));
        former.extend(gone.iter().filter(|node| !is_in(self.seeds.iter(), node)).cloned());
        former.retain(|node| {
            // A former node is kept as long as its lanes refer to it; then its counters are added to the section's.
            let alive = Arc::strong_count(node) > 1 + usize::from(is_in(gone.iter(), node));
            if !alive {
                self.section.counters.take_over(&node.counters);
            }
            alive
        });
        // Another thread may have read the map before these nodes were removed and may have used them since, so all
        // former nodes are closed again.
        let left_before = former.clone();
        map.former = former;
        self.section.share_among(if self.from_replicas { now.len() } else { masters.len() });
        drop(map);
        left.iter().chain(&gone).for_each(|node| node.leave());
        let unused = self.seeds.iter().filter(|seed| !is_in(now.iter(), seed));
        left_before.iter().chain(&gone).chain(unused).for_each(|node| node.close());
        self.changed.notify_waiters();
    }
}

fn pause(moves: u8) -> Duration {
    (PAUSE_MIN * 2u32.saturating_pow(u32::from(moves))).min(PAUSE_MAX)
}

fn is_in<'a>(mut nodes: impl Iterator<Item = &'a Arc<Node>>, node: &Arc<Node>) -> bool {
    nodes.any(|other| Arc::ptr_eq(other, node))
}

impl Router for Cluster {
    fn follows(&self, node: &Node) -> Option<bool> {
        let map = self.map.read();
        let shard = map.shards.iter().find(|shard| shard.replicas().any(|known| std::ptr::eq(&**known, node)))?;
        Some(shard.master.is_ailing())
    }

    fn elsewhere(self: Arc<Cluster>, route: &Route, node: &Arc<Node>) -> Option<Arc<Node>> {
        let serves = || {
            let map = self.map.read();
            match route.asking {
                true => map.node(&node.address).is_some_and(|known| Arc::ptr_eq(&known, node)),
                false => route.slot.is_none() && map.shards.iter().any(|shard| Arc::ptr_eq(&shard.master, node)),
            }
        };
        if route.own || !node.is_ailing() && serves() {
            return None;
        }
        self.owner(route.slot, route.reads).filter(|owner| !Arc::ptr_eq(owner, node))
    }

    fn redirect(self: Arc<Cluster>, mut entry: Entry, mut bytes: &[u8], redirect: Redirect) -> Result<(), Entry> {
        let options = &self.section.options;
        let until = entry.route.begun + options.timeout_queue + options.timeout_server;
        let now = Instant::now();
        if entry.route.own || entry.route.moves >= MOVES_MAX || now >= until {
            return Err(entry);
        }
        if std::mem::take(&mut entry.route.asking) {
            bytes = &bytes[ASKING.len()..];
        }
        let moves = entry.route.moves;
        entry.again(bytes.len(), now);
        add(&self.section.counters.redirected, 1);
        match redirect {
            Redirect::Moved(slot, there) if let Some(node) = self.moved(slot, &there) => {
                Cluster::refresh(&self);
                self.send(&node, entry, bytes);
            }
            Redirect::Ask(there) => {
                let node = self.asked_at(there);
                entry.route.asking = true;
                entry.again(ASKING.len() + bytes.len(), now);
                self.send(&node, entry, &[ASKING, bytes].concat());
            }
            Redirect::Moved(..) | Redirect::Later => {
                Cluster::refresh(&self);
                let pause = pause(moves);
                let (cluster, bytes) = (self.clone(), bytes.to_vec());
                let waiting = Waiting::new(self.section.clone(), bytes.len());
                tokio::spawn(async move {
                    sleep(pause).await;
                    drop(waiting);
                    cluster.forward(entry, &bytes);
                });
            }
        }
        Ok(())
    }

    fn resend(&self, node: &Arc<Node>, mut entry: Entry, mut bytes: &[u8]) {
        if std::mem::take(&mut entry.route.asking) {
            bytes = &bytes[ASKING.len()..];
            entry.len = bytes.len();
            entry.skips = false;
        }
        self.send(node, entry, bytes);
    }

    fn send(&self, node: &Arc<Node>, mut entry: Entry, bytes: &[u8]) {
        // The caching state belongs to the connection on which the command was queued first.
        entry.asked = None;
        loop {
            let lane = match node.lane(entry.route.db) {
                Ok(lane) => lane,
                Err(failure) => return entry.fail(&self.section, failure),
            };
            // A lane that has closed since the lookup returns the entry.
            match lane.requeue(entry, bytes) {
                Ok(()) => return,
                Err(back) => entry = back,
            }
        }
    }

    fn refresh(self: Arc<Cluster>) {
        Cluster::refresh(&self);
    }
}

/// A guard: the map counts as being read until this is dropped, also if the task is dropped with its runtime.
struct Running(Option<Arc<Cluster>>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(cluster) = &self.0 {
            cluster.refresh.lock().running = false;
        }
    }
}

/// Counts a command of this many bytes as queued, outside a lane, until it is dropped.
struct Waiting(Arc<Section>, usize);

impl Waiting {
    fn new(section: Arc<Section>, bytes: usize) -> Waiting {
        add(&section.counters.queued, 1);
        section.parked.fetch_add(bytes, Ordering::Relaxed);
        Waiting(section, bytes)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        take(&self.0.counters.queued, 1);
        self.0.parked.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use sluicegate_wire::reply::Reply;

    use super::*;
    use crate::Options;
    use crate::cache::{Cache, CacheFigures, Looked};
    use crate::node::lane::Commands;

    fn tcp(port: u16) -> Address {
        Address::Tcp("127.0.0.1".into(), port)
    }

    fn check(run: impl AsyncFnOnce(Arc<Cluster>)) {
        let mode = Mode::Cluster { from_replicas: false };
        let section = Arc::new(Section::new(Options {
            mode,
            timeout_queue: Duration::from_secs(60),
            ..Options::new("sessions", tcp(1))
        }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let cluster = Cluster::new(section.clone());
        section.belongs_to(Cluster::router(&cluster));
        runtime.block_on(run(cluster));
    }

    /// A map with these masters, of which the first has all slots but one for each other.
    fn map(ports: &[u16]) -> Vec<told::Shard> {
        let shard = |(index, port): (usize, &u16)| told::Shard {
            slots: vec![if index == 0 { 100..=SLOTS - 1 } else { index as u16..=index as u16 }],
            master: tcp(*port),
            replicas: Vec::new(),
            spare: Vec::new(),
        };
        ports.iter().enumerate().map(shard).collect()
    }

    #[test]
    fn what_waits_for_the_map_is_bounded_in_bytes() {
        check(async |cluster| {
            let value = vec![b'v'; QUEUED_MAX / 4];
            let ask = || cluster.ask(0, Request::One(&[b"SET", b"k", &value]), Kind::Writes);
            let waiting: Vec<_> = (0..4).map(|_| ask().expect("there is room")).collect();
            let full = ask();
            assert!(matches!(full, Err(Failure::QueueFull(4))));
            // The parked commands are sent to the node in the map, and further ones may wait.
            cluster.apply(&map(&[1]));
            for started in waiting {
                let Reply::Error(text) = started.finish().await else { panic!("nobody listens there") };
                assert!(text.contains("127.0.0.1:1: "), "{text}");
            }
            assert_eq!(cluster.section.parked.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn nodes_that_errors_tell_of_are_bounded() {
        check(async |cluster| {
            for number in 0..2 * NODES_MAX {
                let told = cluster.moved(7, &Address::Tcp(number.to_string(), 7000));
                assert_eq!(told.is_some(), number < NODES_MAX, "{number}");
            }
            assert_eq!(cluster.map.read().shards.len(), NODES_MAX);
            assert!(cluster.moved(7, &Address::Tcp("7".into(), 7000)).is_some());
        });
    }

    #[test]
    fn who_is_left_is_left_for_good() {
        check(async |cluster| {
            cluster.apply(&map(&[7001, 7002]));
            let node = cluster.owner(Some(1), false).expect("it is known");
            assert_eq!(node.address, tcp(7002));
            cluster.apply(&map(&[7001]));
            // A thread with the old map uses the node now.
            let lane = node.lane(0).expect("a lane");
            assert!(!lane.is_closed());
            cluster.apply(&map(&[7001]));
            assert!(lane.is_closed());
        });
    }

    #[test]
    fn what_waits_at_a_node_that_was_left_and_comes_back_goes_on() {
        check(async |cluster| {
            let route = Route::new(Some(1), 0, false);
            cluster.apply(&map(&[1, 2]));
            let node = cluster.owner(Some(1), false).expect("it is known");
            let lane = node.lane(0).expect("a lane");
            let waiting = lane.push(&[b"INCR", b"k"], route).expect("it is queued");
            (0..2).for_each(|_| cluster.apply(&map(&[1])));
            assert!(lane.is_closed());
            cluster.apply(&map(&[1, 2]));
            assert!(Arc::ptr_eq(&node, &cluster.owner(Some(1), false).expect("it is known")), "the same as before");
            let Reply::Error(text) = pending(waiting).finish().await else { panic!("nobody listens there") };
            assert!(text.contains("127.0.0.1:2: "), "{text}");
        });
    }

    #[test]
    fn a_reply_from_elsewhere_is_not_kept() {
        check(async |cluster| {
            cluster.apply(&map(&[7001]));
            let (mut cache, figures) = (Cache::default(), CacheFigures::default());
            cache.begin(1);
            let Looked::Miss(asked) = cache.look(&[b"GET", b"k"], 1, &figures) else { panic!("it is kept") };
            let entry = Entry::new(1, Route::new(Some(7), 0, true), Waiter::of(&Request::One(&[b"GET", b"k"])).0);
            let node = cluster.owner(None, true).expect("it is known");
            cluster.send(&node, Entry { asked: Some(Box::new(asked)), ..entry }, b"x");
            let (mut context, mut taken) = (Context::from_waker(Waker::noop()), Commands::default());
            let lane = node.lane(0).expect("a lane");
            assert!(lane.poll_take(&mut context, 1, &mut taken).is_ready());
            assert!(taken.entries[0].asked.is_none());
        });
    }
}
