//! `mode cluster` and `mode sentinel`: which node has a key, and commands that go elsewhere.
//!
//! **Cluster.** The map is read from any node by `CLUSTER SLOTS`, corrected by each `MOVED`, and read again, at most ten
//! times a second, after a `MOVED` or `CLUSTERDOWN`, while a node fails or owes a reply, and every half minute that
//! commands come. A command that is sent elsewhere keeps its place with whoever waits for it: the connection that got the
//! error hands the command's bytes on. What waits on a lane whose node no longer has the slot goes to the one that has it.
//!
//! **Sentinel.** The same with a map of one master, which a sentinel tells five times a second while commands come. A
//! sentinel that knows an older epoch of the configuration than another one is not believed, and the engine must say
//! itself that it is a master.
//!
//! **Bounds.** A command is sent elsewhere at most [`MOVES_MAX`] times, and not later than `timeout queue` and `timeout
//! server` after it came; then whoever asked gets the engine's error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluicegate_wire::engine::Started;
use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::{SLOTS, slot};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::command::{Kind, encode};
use crate::figures::{add, take};
use crate::keys::{Place, place};
use crate::lane::{ASKING, Entry, Route};
use crate::node::Node;
use crate::options::Mode;
use crate::section::Section;
use crate::told::{self, Redirect};
use crate::topology::pending;
use crate::{Address, Failure};

/// Times that one command is sent elsewhere.
const MOVES_MAX: u8 = 16;
/// The first pause after `TRYAGAIN` and `CLUSTERDOWN`; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The map is not read more often.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// A node that does not answer for so long is not waited for alone.
const REFRESH_HEDGE: Duration = Duration::from_millis(100);
/// A map of this age is read again when a command comes.
const MAP_AGE: Duration = Duration::from_secs(30);
/// The same where replicas are read from and some master has none.
const MAP_AGE_BARE: Duration = Duration::from_secs(1);
/// The same of what a sentinel says.
const MASTER_AGE: Duration = Duration::from_millis(200);
/// For how long an epoch that a sentinel has told outweighs lower ones of others.
const EPOCH_AGE: Duration = Duration::from_secs(10);

/// A slot that nobody has, in [`Map::slots`].
const NOBODY: u16 = u16::MAX;

/// The nodes of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    section: Arc<Section>,
    /// Where the map is asked for as long as nobody else is known.
    seeds: Vec<Arc<Node>>,
    /// The master's name, where sentinels say where it is.
    master: Option<String>,
    from_replicas: bool,
    map: RwLock<Map>,
    /// A map was read.
    changed: Notify,
    refresh: Mutex<Refresh>,
    /// A node fails, as far as the last reading knows.
    unsettled: AtomicBool,
    /// Which node is asked what any may answer.
    next: AtomicUsize,
    /// Which of the seeds answered last, if they are sentinels.
    sentinel: AtomicUsize,
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Map {
    shards: Vec<Shard>,
    /// By slot its shard; empty before the first map.
    slots: Vec<u16>,
    /// When it is read again, if a command comes; `None`: it is not known yet.
    fresh_until: Option<Instant>,
    /// Nodes that were left and still have connections.
    former: Vec<Arc<Node>>,
}

#[derive(Debug)]
struct Shard {
    master: Arc<Node>,
    replicas: Vec<Arc<Node>>,
}

#[derive(Debug, Default)]
struct Refresh {
    running: bool,
    again: bool,
    not_before: Option<Instant>,
    last_failure: Option<String>,
    /// The newest epoch that a sentinel has told, and when.
    epoch: Option<(u64, Instant)>,
}

impl Map {
    fn shard(&self, slot: u16) -> Option<&Shard> {
        self.shards.get(usize::from(*self.slots.get(usize::from(slot))?))
    }

    fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.shards.iter().flat_map(|shard| std::iter::once(&shard.master).chain(&shard.replicas))
    }

    fn node(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes().find(|node| node.address == *address).cloned()
    }
}

impl Cluster {
    pub(crate) fn new(section: Arc<Section>) -> Arc<Cluster> {
        let master = match &section.options.mode {
            Mode::Sentinel { master, .. } => Some(master.clone()),
            _ => None,
        };
        let make = if master.is_some() { Node::sentinel } else { Node::new };
        let seeds = section.options.servers.iter().map(|address| Arc::new(make(section.clone(), address.clone())));
        Arc::new(Cluster {
            seeds: seeds.collect(),
            master,
            from_replicas: section.options.mode == Mode::Cluster { from_replicas: true },
            section,
            map: RwLock::default(),
            changed: Notify::new(),
            refresh: Mutex::default(),
            unsettled: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            sentinel: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
        })
    }

    /// Every node that is known, with those that are left as long as they have connections.
    pub(crate) fn nodes(&self) -> Vec<(Arc<Node>, &'static str)> {
        let map = self.map.read();
        let shards = map.shards.iter().flat_map(|shard| {
            let replicas = shard.replicas.iter().map(|node| (node.clone(), "replica"));
            std::iter::once((shard.master.clone(), "master")).chain(replicas)
        });
        let seeds = self.seeds.iter().filter(|seed| !seed.is_untouched() && !is_in(map.nodes(), seed));
        let former = map.former.iter().map(|node| (node.clone(), "former"));
        shards
            .chain(former)
            .chain(seeds.map(|node| (node.clone(), if node.is_sentinel { "sentinel" } else { "seed" })))
            .collect()
    }

    /// Why the map could not be read, if it could not.
    pub(crate) fn last_failure(&self) -> Option<String> {
        let read = self.refresh.lock().last_failure.clone();
        read.or_else(|| self.seeds.iter().find_map(|seed| seed.last_failure()))
    }

    /// Asks the node that has the command's key.
    pub(crate) fn ask(self: &Arc<Cluster>, db: u32, args: &[&[u8]], kind: Kind) -> Result<Started, Failure> {
        let slot = if self.master.is_some() {
            None
        } else if db != 0 {
            return Err(Failure::Refused(format!("a cluster has database 0 only, not {db}")));
        } else {
            match place(args)? {
                Place::Key(key) => Some(slot(key)),
                Place::Any => None,
            }
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let reads = kind == Kind::Reads;
        let route = Route::new(slot, db, reads);
        let Some(node) = self.owner(slot, reads) else { return self.park(args, route) };
        if self.unsettled.load(Ordering::Relaxed) {
            self.refresh();
        }
        node.admit()?;
        node.lane(db)?.start(args, route)
    }

    /// The node that has a slot, or for no slot any node; `None`: the map is not known yet.
    fn owner(self: &Arc<Cluster>, slot: Option<u16>, reads: bool) -> Option<Arc<Node>> {
        let map = self.map.read();
        if map.fresh_until.is_none_or(|at| at <= Instant::now()) {
            self.refresh();
        }
        if let Some(slot) = slot
            && let Some(shard) = map.shard(slot)
        {
            let replicas = shard.replicas.len();
            if !reads || !self.from_replicas || replicas == 0 {
                return Some(shard.master.clone());
            }
            // A key is read from the same replica each time, so that what is read of it does not go back in time.
            let mut replicas = (0..replicas).map(|step| &shard.replicas[(usize::from(slot) + step) % replicas]);
            return Some(replicas.find(|node| !node.is_ailing()).unwrap_or(&shard.master).clone());
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

    /// The node for a connection of one's own: the master that has this key, or any.
    pub(crate) async fn own_node(self: &Arc<Cluster>, key: Option<&[u8]>) -> Result<Arc<Node>, Failure> {
        let within = self.section.options.timeout_queue;
        if timeout(within, self.known()).await.is_err() {
            return Err(match self.last_failure() {
                Some(reason) => Failure::Connect(reason),
                None => Failure::QueueTimeout(within),
            });
        }
        self.owner(key.map(slot), false).ok_or(Failure::Closed)
    }

    /// The node to which a command that waits at `node` goes, if that is another one now.
    pub(crate) fn elsewhere(self: &Arc<Cluster>, route: &Route, node: &Arc<Node>) -> Option<Arc<Node>> {
        let known = || self.map.read().nodes().any(|known| Arc::ptr_eq(known, node));
        if route.own || (route.asking || route.slot.is_none()) && !node.is_ailing() && known() {
            return None;
        }
        self.owner(route.slot, route.reads).filter(|owner| !Arc::ptr_eq(owner, node))
    }

    /// Keeps a command until the map is known.
    fn park(self: &Arc<Cluster>, args: &[&[u8]], route: Route) -> Result<Started, Failure> {
        let queued = self.section.counters.queued.load(Ordering::Relaxed);
        if queued >= self.section.options.maxqueue as u64 {
            return Err(Failure::QueueFull(queued as usize));
        }
        let mut bytes = Vec::new();
        encode(args, &mut bytes);
        let (reply, receiver) = oneshot::channel();
        let entry = Entry::new(bytes.len(), route, reply);
        let waiting = Waiting::new(self.section.clone());
        let cluster = self.clone();
        tokio::spawn(async move {
            let within = cluster.section.options.timeout_queue;
            let known = timeout_at(route.begun + within, cluster.known()).await;
            drop(waiting);
            match known {
                Ok(()) => cluster.forward(entry, &bytes),
                Err(_) => entry.fail(
                    &cluster.section,
                    match cluster.last_failure() {
                        Some(reason) => Failure::Connect(reason),
                        None => Failure::QueueTimeout(within),
                    },
                ),
            }
        });
        Ok(pending(receiver))
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

    /// Sends a command to whom it belongs.
    fn forward(self: &Arc<Cluster>, entry: Entry, bytes: &[u8]) {
        match self.owner(entry.route.slot, entry.route.reads) {
            Some(node) => match node.admit() {
                Ok(()) => self.send(&node, entry, bytes),
                Err(failure) => entry.fail(&self.section, failure),
            },
            None => entry.fail(&self.section, Failure::Closed),
        }
    }

    /// Queues a command at a node.
    pub(crate) fn send(&self, node: &Arc<Node>, entry: Entry, bytes: &[u8]) {
        match node.lane(entry.route.db) {
            Ok(lane) => {
                if let Err(entry) = lane.requeue(entry, bytes) {
                    entry.fail(&self.section, Failure::Closed);
                }
            }
            Err(failure) => entry.fail(&self.section, failure),
        }
    }

    /// Sends what waited at another node to `node`, which has its slot now.
    pub(crate) fn resend(&self, node: &Arc<Node>, mut entry: Entry, mut bytes: &[u8]) {
        if std::mem::take(&mut entry.route.asking) {
            bytes = &bytes[ASKING.len()..];
            entry.len = bytes.len();
            entry.skips = false;
        }
        self.send(node, entry, bytes);
    }

    /// Sends a command where an engine's error says. Gives it back, if it was sent about for long enough.
    pub(crate) fn redirect(
        self: &Arc<Cluster>,
        mut entry: Entry,
        mut bytes: &[u8],
        redirect: Redirect,
    ) -> Result<(), Entry> {
        let options = &self.section.options;
        let until = entry.route.begun + options.timeout_queue + options.timeout_server;
        let now = Instant::now();
        if entry.route.own || entry.route.moves >= MOVES_MAX || now >= until {
            return Err(entry);
        }
        if std::mem::take(&mut entry.route.asking) {
            bytes = &bytes[ASKING.len()..];
        }
        let moves = u32::from(entry.route.moves);
        entry.again(bytes.len(), now);
        add(&self.section.counters.redirected, 1);
        match redirect {
            Redirect::Moved(slot, there) => {
                let node = self.moved(slot, there);
                self.refresh();
                self.send(&node, entry, bytes);
            }
            Redirect::Ask(there) => {
                let node = self.map.read().node(&there);
                let node = node.unwrap_or_else(|| Arc::new(Node::new(self.section.clone(), there)));
                entry.route.asking = true;
                entry.again(ASKING.len() + bytes.len(), now);
                self.send(&node, entry, &[ASKING, bytes].concat());
            }
            Redirect::Later => {
                self.refresh();
                let pause = (PAUSE_MIN * 2u32.saturating_pow(moves)).min(PAUSE_MAX);
                let (cluster, bytes) = (self.clone(), bytes.to_vec());
                let waiting = Waiting::new(self.section.clone());
                tokio::spawn(async move {
                    sleep(pause).await;
                    drop(waiting);
                    cluster.forward(entry, &bytes);
                });
            }
        }
        Ok(())
    }

    /// A slot has another master; a node that was not known yet is, from now on.
    fn moved(&self, slot: u16, there: Address) -> Arc<Node> {
        let mut map = self.map.write();
        let known = map.shards.iter().position(|shard| shard.master.address == there);
        let shard = known.unwrap_or_else(|| {
            let master = map.node(&there).unwrap_or_else(|| Arc::new(Node::new(self.section.clone(), there)));
            map.shards.push(Shard { master, replicas: Vec::new() });
            map.shards.len() - 1
        });
        if let Some(owner) = map.slots.get_mut(usize::from(slot)) {
            *owner = shard as u16;
        }
        map.shards[shard].master.clone()
    }

    /// Has the map read again, soon.
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
                    // It has said so already, and another task may have begun.
                    running.0 = None;
                }
            }
        });
    }

    /// Reads the map once, as soon as that may be.
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
            // Nobody can be asked anything; in between somebody may have given up.
            sleep(REFRESH_PAUSE).await;
        }
        let mut refresh = self.refresh.lock();
        refresh.not_before = Some(Instant::now() + REFRESH_PAUSE);
        refresh.last_failure = read.err();
    }

    /// Whether the map is to be read once more: somebody asked for it, or a node fails and is missed. Nodes that fail are
    /// asked whether they are back, since commands go to others meanwhile.
    fn goes_on(self: &Arc<Cluster>, asked: u64) -> bool {
        let nodes: Vec<Arc<Node>> = self.map.read().nodes().cloned().collect();
        let ailing: Vec<&Arc<Node>> = nodes.iter().filter(|node| node.is_ailing()).collect();
        for node in &ailing {
            if !node.has_waiting()
                && let Ok(lane) = node.lane(0)
            {
                // Whether it answers is seen by the node.
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

    /// The map as one of the nodes knows it: the first answer counts, and who is slow is not waited for alone.
    async fn read_map(self: &Arc<Cluster>) -> Result<Vec<told::Shard>, String> {
        let mut nodes: Vec<Arc<Node>> = self.map.read().nodes().cloned().collect();
        if self.master.is_some() {
            nodes.clear();
        }
        fastrand::shuffle(&mut nodes);
        for seed in &self.seeds {
            if !nodes.iter().any(|node| node.address == seed.address) {
                nodes.push(seed.clone());
            }
        }
        if self.master.is_some() {
            // The one that answers is asked again.
            let last = self.sentinel.load(Ordering::Relaxed) % nodes.len();
            nodes.rotate_left(last);
        }
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

    /// The map as one node, or one sentinel, knows it.
    async fn map_of(&self, node: &Arc<Node>) -> Result<Vec<told::Shard>, String> {
        let Some(name) = &self.master else {
            return told::slots(&question(node, &[b"CLUSTER", b"SLOTS"]).await, &node.address);
        };
        // Both are on their way before the first is waited for.
        let [address, state]: [[&[u8]; 3]; 2] =
            [[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.as_bytes()], [b"SENTINEL", b"MASTER", name.as_bytes()]];
        let (address, state) = tokio::join!(question(node, &address), question(node, &state));
        let (master, epoch) = told::master(&address, &state, &node.address)?;
        let now = Instant::now();
        let mut refresh = self.refresh.lock();
        match refresh.epoch {
            Some((known, at)) if epoch < known && now < at + EPOCH_AGE => {
                return Err(format!("it knows epoch {epoch} of '{name}', others know {known}"));
            }
            _ => refresh.epoch = Some((epoch, now)),
        }
        if let Some(place) = self.seeds.iter().position(|seed| Arc::ptr_eq(seed, node)) {
            self.sentinel.store(place, Ordering::Relaxed);
        }
        Ok(vec![told::Shard { slots: Vec::new(), master, replicas: Vec::new() }])
    }

    /// Takes over what a node said; nodes that have nothing any more are left.
    fn apply(&self, told: &[told::Shard]) {
        let mut map = self.map.write();
        let before: Vec<Arc<Node>> = map.nodes().cloned().collect();
        let had: Vec<Arc<Node>> = map.shards.iter().map(|shard| shard.master.clone()).collect();
        let mut made: Vec<Arc<Node>> = Vec::new();
        let mut node = |address: &Address| {
            let known = before
                .iter()
                .chain(&self.seeds)
                .chain(&made)
                .find(|node| !node.is_sentinel && node.address == *address)
                .cloned();
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
            shards
                .push(Shard { master: node(&shard.master), replicas: shard.replicas.iter().map(&mut node).collect() });
        }
        map.shards = shards;
        map.slots = slots;
        let bare = self.from_replicas && map.shards.iter().any(|shard| shard.replicas.is_empty());
        let age = match &self.master {
            Some(_) => MASTER_AGE,
            None if bare => MAP_AGE_BARE,
            None => MAP_AGE,
        };
        map.fresh_until = Some(Instant::now() + age);
        let now: Vec<Arc<Node>> = map.nodes().cloned().collect();
        let masters: Vec<Arc<Node>> = map.shards.iter().map(|shard| shard.master.clone()).collect();
        let left: Vec<Arc<Node>> = had.into_iter().filter(|node| !is_in(masters.iter(), node)).collect();
        let gone: Vec<Arc<Node>> = before.into_iter().filter(|node| !is_in(now.iter(), node)).collect();
        let mut former = std::mem::take(&mut map.former);
        former.extend(gone.iter().filter(|node| !is_in(self.seeds.iter(), node)).cloned());
        former.retain(|node| {
            // Its lanes hold it for as long as they live; then what it counted goes to the section.
            let alive = Arc::strong_count(node) > 1 + usize::from(is_in(gone.iter(), node));
            if !alive {
                self.section.counters.take_over(&node.counters);
            }
            alive
        });
        map.former = former;
        self.section.share_among(if self.from_replicas { now.len() } else { masters.len() });
        drop(map);
        left.iter().chain(&gone).for_each(|node| node.leave());
        let unused = self.seeds.iter().filter(|seed| !seed.is_sentinel && !is_in(now.iter(), seed));
        gone.iter().chain(unused).for_each(|node| node.close());
        self.changed.notify_waiters();
    }
}

fn is_in<'a>(mut nodes: impl Iterator<Item = &'a Arc<Node>>, node: &Arc<Node>) -> bool {
    nodes.any(|other| Arc::ptr_eq(other, node))
}

async fn question(node: &Arc<Node>, words: &[&[u8]]) -> Reply {
    match node.lane(0).and_then(|lane| lane.push(words, Route::own())) {
        Ok(receiver) => receiver.await.unwrap_or_else(|_| Failure::Closed.into_reply()),
        Err(failure) => failure.into_reply(),
    }
}

/// Says that the map is being read for as long as it lives: the task may end with its runtime.
struct Running(Option<Arc<Cluster>>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(cluster) = &self.0 {
            cluster.refresh.lock().running = false;
        }
    }
}

/// A command that waits outside a lane.
struct Waiting(Arc<Section>);

impl Waiting {
    fn new(section: Arc<Section>) -> Waiting {
        add(&section.counters.queued, 1);
        Waiting(section)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        take(&self.0.counters.queued, 1);
    }
}
