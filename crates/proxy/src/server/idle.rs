//! Idle server connections: a LIFO list per worker and server.
//!
//! A stream takes a connection from its own worker's list. If that is empty, then before opening a new connection it
//! takes one from another worker, which is then registered with the runtime of the taking worker (2.6 µs). Each list is
//! behind a leaf lock that is held for a push or a pop.
//!
//! A connection that the peer closes while idle is detected immediately: while it is idle, the socket's reader slot
//! holds the list's waker, which starts a sweep on the list's worker. Taking a connection also checks the readiness
//! that the runtime has already recorded, which costs no system call.
//!
//! Unneeded connections are closed: at their release, if the server has more connections than requests have used at once
//! lately ([`is_needed`]), and every `pool-purge-delay` half of those that were not used since the last purge.
//! `pool-max-conn` limits the idle connections of all workers, `max-reuse` the number of uses of a connection, and
//! while there are fewer than `pool-low-conn` idle connections, no worker takes one from another.
//!
//! Under `http-reuse never` a connection belongs to its client: it is labelled with the session, only that session's
//! next requests take it, and it is closed with the session ([`forget`]) and not by a purge, as in HAProxy. A session
//! has at most `max-session-srv-conns` of them. Under every policy the same holds for a connection of HTTP/1 whose server
//! has asked for NTLM or Negotiate, which authenticate connections and not requests.
//!
//! When descriptors run out, the requester closes the older half of all idle connections ([`shed`]) and retries, so an
//! unused connection never prevents a client connection.
//!
//! Limits: [`LIST_MAX`] per worker and server, [`WORKER_MAX`] per worker; beyond, a released connection is closed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_config::model::HttpReuse;
use sluicegate_transport::Socket;
use tokio::sync::Notify;

use super::run::ServerRun;
use super::shared::ServerShared;

/// Idle connections of one worker to one server.
pub const LIST_MAX: usize = 1_024;
/// Idle connections of one worker to all servers.
pub const WORKER_MAX: u32 = 8_192;

/// The interval at which a list of sessions' own connections is checked for being empty.
const OWN_SWEEP: Duration = Duration::from_secs(5);

/// One worker's idle connections to all servers, counted against `WORKER_MAX`.
#[derive(Debug, Default)]
pub struct IdleConnections {
    open: AtomicU32,
    /// The number of connections owned by each session that has any.
    own: Mutex<HashMap<u32, u32>>,
}

/// A session, and how many idle connections of its own it may have (`max-session-srv-conns`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeper {
    pub(super) session: u32,
    pub(super) most: u32,
}

impl IdleConnections {
    /// Returns the number of connections.
    pub fn len(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Counts one open connection to a server for as long as this value exists.
#[derive(Debug)]
pub(super) struct Open(Arc<AtomicU32>);

impl Open {
    /// Counts one more connection; `None` if `strict-maxconn` allows no more.
    pub(super) fn new(server: &ServerRun) -> Option<Open> {
        let count = &server.shared.connections;
        let limit = server.shared.maxconn().filter(|_| server.config.strict_maxconn).unwrap_or(u32::MAX);
        let more = |open: u32| (open < limit).then_some(open + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Open(count.clone()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An idle connection, and the data that decides which requests may take it.
#[derive(Debug)]
struct Idle {
    socket: Socket,
    open: Open,
    /// The number of requests served after the first. A value of at least 1 shows that the server keeps idle
    /// connections open (`http-reuse aggressive`).
    reuses: u32,
    /// The label that a request must have to take this connection. It contains the PROXY protocol header sent on the
    /// connection, its source address, its destination if that depends on the request, and its session.
    label: Option<Arc<[u8]>>,
    _place: Place,
}

/// A place among a worker's idle connections, and among those of one of its sessions.
#[derive(Debug)]
struct Place {
    owner: Arc<IdleConnections>,
    session: Option<u32>,
}

impl Place {
    /// Returns `None` if there is no room. `keeper` is the only session that may use the connection, if it is reserved.
    fn take(owner: &Arc<IdleConnections>, keeper: Option<Keeper>) -> Option<Place> {
        if let Some(Keeper { session, most }) = keeper {
            let mut own = owner.own.lock();
            let count = own.get(&session).map_or(0, |count| *count);
            if count >= most {
                return None;
            }
            own.insert(session, count + 1);
        }
        let before = owner.open.fetch_add(1, Ordering::Relaxed);
        let place = Place { owner: owner.clone(), session: keeper.map(|keeper| keeper.session) };
        (before < WORKER_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.owner.open.fetch_sub(1, Ordering::Relaxed);
        let Some(session) = self.session else { return };
        let mut own = self.owner.own.lock();
        if let Entry::Occupied(mut count) = own.entry(session) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Idle {
    /// Returns whether nothing has arrived since the connection became idle: no end, no error, no stray data. Makes a
    /// system call only if the runtime has recorded an event.
    fn is_alive(&self) -> bool {
        matches!(self.socket.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

#[derive(Debug, Default)]
struct Connections {
    idle: Vec<Idle>,
    /// The smallest number of connections since the last purge, which is the number that was not needed.
    spare: usize,
}

/// Wakes the list's sweeper when something happens to an idle connection.
#[derive(Debug, Default)]
struct Watch {
    something: Notify,
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.something.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.something.notify_one();
    }
}

/// One worker's idle connections to one server.
#[derive(Debug)]
pub(super) struct IdleList {
    count: AtomicU32,
    /// Connections of HTTP/2 that lend no stream at present; they are not in the list.
    pub(super) lending: AtomicU32,
    connections: Mutex<Connections>,
    swept: AtomicBool,
    watch: Arc<Watch>,
    waker: Waker,
}

impl IdleList {
    pub(super) fn new() -> IdleList {
        let watch = Arc::new(Watch::default());
        IdleList {
            count: AtomicU32::new(0),
            lending: AtomicU32::new(0),
            connections: Mutex::new(Connections::default()),
            swept: AtomicBool::new(false),
            waker: Waker::from(watch.clone()),
            watch,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the number of idle connections of any protocol.
    pub(super) fn all(&self) -> u32 {
        self.len() + self.lending.load(Ordering::Relaxed)
    }

    /// Returns the number of idle connections that any request may take: those that were reused before, and those of
    /// HTTP/2, as HAProxy counts them.
    pub(super) fn proven(&self) -> u32 {
        let reused = self.connections.lock().idle.iter().filter(|idle| idle.reuses > 0).count();
        reused as u32 + self.lending.load(Ordering::Relaxed)
    }

    /// Takes the most recently added matching connection that is alive; dead ones found before it are closed.
    fn pop(&self, proven_only: bool, label: Option<&[u8]>) -> Option<Idle> {
        if self.len() == 0 {
            return None;
        }
        loop {
            let candidate = {
                let mut connections = self.connections.lock();
                let fits = |idle: &Idle| (!proven_only || idle.reuses > 0) && idle.label.as_deref() == label;
                let at = connections.idle.iter().rposition(fits)?;
                let candidate = connections.idle.remove(at);
                connections.spare = connections.spare.min(connections.idle.len());
                self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
                candidate
            };
            if candidate.is_alive() {
                return Some(candidate);
            }
        }
    }

    fn push(&self, idle: Idle) -> bool {
        let mut connections = self.connections.lock();
        if connections.idle.len() >= LIST_MAX {
            return false;
        }
        connections.idle.push(idle);
        self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
        true
    }

    /// Closes dead connections. A wake-up consumes the watch, so the remaining connections are watched again.
    fn sweep(&self) {
        let mut dead = Vec::new();
        {
            let mut connections = self.connections.lock();
            let mut at = 0;
            while at < connections.idle.len() {
                if self.watches(&connections.idle[at].socket) {
                    at += 1;
                } else {
                    dead.push(connections.idle.remove(at));
                }
            }
            connections.spare = connections.spare.min(connections.idle.len());
            self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
        }
    }

    /// Registers the waker for events of this socket; returns `false` if an event has occurred already.
    fn watches(&self, socket: &Socket) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        loop {
            match socket.poll_read_ready(&mut cx) {
                Poll::Pending => return true,
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(())) => {
                    // This read clears a readiness left over from the last response.
                    if !matches!(socket.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                        return false;
                    }
                }
            }
        }
    }

    /// Returns whether the label of a connection starts with `label`.
    fn has(&self, label: &[u8]) -> bool {
        let starts = |idle: &Idle| idle.label.as_ref().is_some_and(|known| known.starts_with(label));
        self.len() > 0 && self.connections.lock().idle.iter().any(starts)
    }

    /// Closes the connections whose label starts with `label`.
    fn forget(&self, label: &[u8]) {
        if self.len() == 0 {
            return;
        }
        let mut gone = Vec::new();
        let mut connections = self.connections.lock();
        let mut at = 0;
        while at < connections.idle.len() {
            match connections.idle[at].label.as_ref().is_some_and(|known| known.starts_with(label)) {
                true => gone.push(connections.idle.remove(at)),
                false => at += 1,
            }
        }
        connections.spare = connections.spare.min(connections.idle.len());
        self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
        drop(connections);
    }

    /// Closes the oldest connection.
    fn close_one(&self) -> bool {
        if self.len() == 0 {
            return false;
        }
        let mut connections = self.connections.lock();
        if connections.idle.is_empty() {
            return false;
        }
        let closed = connections.idle.remove(0);
        connections.spare = connections.spare.min(connections.idle.len());
        self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
        drop(connections);
        drop(closed);
        true
    }

    fn shed(&self) -> usize {
        let closed: Vec<Idle> = {
            let mut connections = self.connections.lock();
            let half = connections.idle.len().div_ceil(2);
            let closed = connections.idle.drain(..half).collect();
            connections.spare = connections.spare.min(connections.idle.len());
            self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
            closed
        };
        closed.len()
    }

    /// Closes half of the connections unneeded since the last purge; `false` if none is left.
    pub(super) fn purge(&self) -> bool {
        let closed: Vec<Idle> = {
            let mut connections = self.connections.lock();
            let shared = |idle: &mut Idle| !is_own(idle.label.as_deref());
            let count = connections.idle.iter().filter(|idle| !is_own(idle.label.as_deref())).count();
            let surplus = connections.spare.min(count).div_ceil(2);
            // The oldest are the least likely to be needed.
            let closed = connections.idle.extract_if(.., shared).take(surplus).collect();
            connections.spare = connections.idle.len();
            self.count.store(connections.idle.len() as u32, Ordering::Relaxed);
            closed
        };
        drop(closed);
        self.len() > 0
    }
}

/// The first byte of the labels of reserved connections.
const OWN: u8 = 0xff;

/// Returns the label prefix of a connection reserved for one session of a worker. No PROXY protocol header and no
/// address starts with these bytes.
pub(crate) fn own_label(worker: usize, session: u32) -> [u8; 7] {
    let [a, b] = (worker as u16).to_be_bytes();
    let [c, d, e, f] = session.to_be_bytes();
    [OWN, a, b, c, d, e, f]
}

/// Returns whether a label is that of a connection that is reserved for a session.
pub(super) fn is_own(label: Option<&[u8]>) -> bool {
    label.is_some_and(|label| label.first() == Some(&OWN))
}

/// Returns the label of a connection that is reserved for a session, of its label without a session.
pub(super) fn reserved(worker: usize, session: u32, label: Option<&[u8]>) -> Arc<[u8]> {
    [&own_label(worker, session), label.unwrap_or_default()].concat().into()
}

/// Closes the idle connections of a session that ends or continues with a new configuration.
pub(crate) fn forget(servers: &[Arc<ServerRun>], worker: usize, session: u32) {
    let label = own_label(worker, session);
    servers.iter().for_each(|server| server.shared.idle[worker].forget(&label));
}

/// Returns whether a session has an idle connection to `server` that is reserved for it.
pub(super) fn has_own(server: &ServerRun, worker: usize, session: u32) -> bool {
    server.shared.idle[worker].has(&own_label(worker, session))
}

/// Closes the older half of the idle connections to `server` of all workers; returns the number closed.
pub(super) fn shed(server: &ServerRun) -> usize {
    server.shared.idle.iter().map(IdleList::shed).sum()
}

/// Closes an idle connection to `server` of any worker, to make room for another; returns `false` if there is none.
pub(super) fn close_one(server: &ServerRun) -> bool {
    server.shared.idle.iter().any(IdleList::close_one)
}

/// Closes every idle connection to `server`, because its address has changed or it enters maintenance.
/// Those that lend places belong to their workers, which lend no more of them.
pub(crate) fn clear(server: &ServerRun) {
    server.shared.era.fetch_add(1, Ordering::Relaxed);
    for list in &server.shared.idle {
        while list.shed() > 0 {}
    }
}

/// Takes an idle connection to `server` from this worker or else, unless connections are reserved for sessions, from
/// another one; it is then registered with this worker. Only a connection with exactly this label is taken; `None`
/// takes those without a label. Also returns the number of requests it will have served after its first, including the
/// next one.
pub(super) fn take(
    server: &ServerRun,
    worker: usize,
    proven_only: bool,
    label: Option<&[u8]>,
) -> Option<(Socket, Open, u32)> {
    let lists = &server.shared.idle;
    if let Some(idle) = lists[worker].pop(proven_only, label) {
        return Some((idle.socket, idle.open, idle.reuses + 1));
    }
    let low = server.config.pool.low;
    if server.reuse == HttpReuse::Never {
        return None;
    }
    if low > 0 && server.shared.idle_connections() < low {
        return None;
    }
    for other in (1..lists.len()).map(|step| (worker + step) % lists.len()) {
        while let Some(idle) = lists[other].pop(proven_only, label) {
            // A socket that cannot be moved is closed, and the next one is tried.
            if let Ok(socket) = idle.socket.adopt() {
                return Some((socket, idle.open, idle.reuses + 1));
            }
        }
    }
    None
}

/// Takes an idle connection with exactly this label from any worker, for a check: it is registered with the current
/// runtime. Also returns the number of requests that it has served after its first.
pub(super) fn take_to_check(
    server: &ServerRun,
    proven_only: bool,
    label: Option<&[u8]>,
) -> Option<(Socket, Open, u32)> {
    for list in &server.shared.idle {
        while let Some(idle) = list.pop(proven_only, label) {
            if let Ok(socket) = idle.socket.adopt() {
                return Some((socket, idle.open, idle.reuses));
            }
        }
    }
    None
}

/// Takes an idle connection that is reserved for the session of this label.
pub(super) fn take_own(server: &ServerRun, worker: usize, label: &[u8]) -> Option<(Socket, Open, u32)> {
    let idle = server.shared.idle[worker].pop(false, Some(label))?;
    Some((idle.socket, idle.open, idle.reuses + 1))
}

/// Returns whether a connection that is being released may be needed, by HAProxy's rule: this worker has no idle one, or
/// the server has no more connections than requests have used at once lately and `pool-low-conn` besides.
///
/// The estimate grows here, since the number of used connections is highest before a release, and falls with purges. While
/// all connections are below it, which is the rule, it costs two loads of counters that rarely change.
pub(super) fn is_needed(server: &ServerShared, worker: usize, low: u32) -> bool {
    let total = server.connections.load(Ordering::Relaxed);
    if total <= server.need.load(Ordering::Relaxed) {
        return true;
    }
    let used = total.saturating_sub(server.idle_connections());
    let need = server.need.fetch_max(used, Ordering::Relaxed).max(used);
    total <= need.saturating_add(low) || server.idle[worker].all() == 0
}

/// Keeps a connection that may serve another request; closes it where a limit is reached or the peer has closed it.
pub(super) fn keep(
    server: &Arc<ServerRun>,
    (socket, open, reuses, label): (Socket, Open, u32, Option<Arc<[u8]>>),
    owner: &Arc<IdleConnections>,
    worker: usize,
    keeper: Keeper,
) {
    let list = &server.shared.idle[worker];
    let pool = &server.config.pool;
    // The pool's limits apply only to connections that clients share.
    let own = is_own(label.as_deref());
    let spent = !own && pool.max_reuse.is_some_and(|max| reuses >= max);
    let crowded = !own && pool.max.is_some_and(|max| server.shared.idle_connections() >= max);
    let delay = match server.reuse {
        HttpReuse::Never => Some(OWN_SWEEP),
        _ => pool.purge_delay.or(own.then_some(OWN_SWEEP)),
    };
    let Some(delay) = delay.filter(|_| !spent && !crowded) else { return };
    if !own && !is_needed(&server.shared, worker, pool.low) {
        return;
    }
    let Some(place) = Place::take(owner, own.then_some(keeper)) else { return };
    let idle = Idle { socket, open, reuses, label, _place: place };
    if list.watches(&idle.socket) && list.push(idle) && !list.swept.swap(true, Ordering::Relaxed) {
        tokio::task::spawn_local(mind(server.clone(), worker, delay));
    }
}

/// Sweeps and purges a list until it is empty.
async fn mind(server: Arc<ServerRun>, worker: usize, delay: Duration) {
    let list = &server.shared.idle[worker];
    let mut purge = tokio::time::interval(delay);
    purge.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    purge.tick().await;
    loop {
        tokio::select! {
            () = list.watch.something.notified() => list.sweep(),
            _ = purge.tick() => {
                let before = list.len();
                let left = if server.reuse == HttpReuse::Never { before > 0 } else { list.purge() };
                server.shared.lower_need(before.saturating_sub(list.len()));
                if !left {
                    list.swept.store(false, Ordering::Relaxed);
                    // A connection added in the meantime did not start a sweeper, because this one was still marked as
                    // running.
                    if list.len() == 0 || list.swept.swap(true, Ordering::Relaxed) {
                        return;
                    }
                }
            }
        }
    }
}
