//! From a stream to a server connection: slot, queue, reuse, connecting, retries.
//!
//! The order of decisions is HAProxy's (configuration manual, `retries` and `option redispatch`): a failed attempt is
//! retried on the same server after a pause of one second or `timeout connect`, whichever is shorter, because the
//! reason will most likely still be there sooner; a redispatch gives the slot back and chooses anew, at once if more
//! than one server is active, whichever of them the algorithm returns. Every retry is a redispatch unless persistence
//! or a hash determines the server; `option redispatch` schedules the redispatches of these.
//!
//! Cost: with an idle connection and a free slot nothing is allocated, no system call is made and nothing is awaited.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sluicegate_config::model::{self, HttpReuse, Mode, Proto, WebSockets};
use sluicegate_transport::{Socket, clock};
use sluicegate_wire::http::Message;

use super::app::App;
use super::connection::{Lease, Link, ServerConnection, connect, has_private, keepalive, reuse_policy, say};
use super::failure::ServerFailure;
use super::fcgi::{Connections as AppConnections, Opened as AppOpened};
use super::h2::attached::label_of;
use super::h2::{Connections, Opened, Wanted};
use super::header::{Headers, Made};
use super::idle::Keeper;
use super::idle::Open;
use super::opening::{ConnectError, Outcome, Part};
use super::queue::{Priority, Turn, Wait};
use super::run::{ServerRun, Slot};
use super::shared::BackendShared;
use super::sockets::{self, ClientNamespace};
use super::spop::{Connections as AgentConnections, Opened as AgentOpened, Stream as AgentStream};
use super::tls::{Names, secure as secure_connection};
use super::traced;
use super::{Observed, idle, observe, shed_idle, source};
use crate::balance::{Load, Pick, Wish};
use crate::counters::Counters;
use crate::proxied::{ServerTlsError, count_handshake};
use crate::running::{ProxyRun, Running};
use crate::spoe::Engine;
use crate::stream::{LogRecord, Reached, StreamContext};
use crate::tls::TlsTotals;
use crate::worker::Worker;

/// The pause before the same server is tried again.
const TURN_AROUND: Duration = Duration::from_secs(1);

/// Chooses a server of `backend`, waits for its slot if necessary, and connects or takes an idle connection.
///
/// `allow_reuse`: this is not the first request of its session, or it may be repeated if the connection turns out to be
/// dead; `http-reuse` decides with it which idle connections may be taken. `failed`: the request is sent again after
/// this connection gave no acceptable response. Fills the log record (server, queue and connect times, positions,
/// retries, and the termination state on failure) and the counters of backend and server. Dropping the future leaves
/// the queue and releases its resources.
pub async fn assign_and_connect(
    backend: &Arc<ProxyRun>,
    cx: &mut StreamContext,
    worker: &Rc<Worker>,
    allow_reuse: bool,
    failed: Option<ServerConnection>,
) -> Result<ServerConnection, ServerFailure> {
    // Persistence comes first; without it, the place of 'dispatch' is used in place of the balancer's choice.
    let dispatch = backend.dispatch.as_ref().filter(|_| cx.persistence.server.is_none());
    let (chooser, servers) = match dispatch {
        Some((chooser, servers)) => (chooser, servers),
        None => (&backend.backend, &backend.servers),
    };
    let redirects = matches!(cx.request.sent_method(), b"GET" | b"HEAD");
    let assignment = Assignment {
        config: &backend.config,
        backend: chooser,
        counted: &backend.backend,
        servers,
        redirects,
        proxies: &worker.running.proxies,
        observer: Some((&worker.running, backend)),
        worker: worker.index,
        destination: cx.destination,
        headers: (&backend.headers, backend.headers.make(cx)),
        names: backend.names.make(cx),
        totals: &worker.running.process.tls,
        foreign: source::foreign(backend, cx),
        namespace: sockets::namespace_of_client(backend, cx),
        http2: Some(&worker.http2),
        agents: None,
        application: backend.fcgi.as_ref().map(|app| (&worker.applications, app)),
        websocket: worker.http2.is_used() && asks_for_websocket(&cx.request),
        allow_reuse,
        keeper: Keeper { session: cx.client.session, most: cx.frontend.config.max_session_srv_conns },
        hash: backend.rules.balance_key.as_ref().filter(|_| dispatch.is_none()).and_then(|key| key.hash(cx)),
        priority: cx.priority,
        retries: cx.overrides.retries.unwrap_or(backend.config.retries),
        asked_for: cx.persistence.server.map(|server| (server, cx.persistence.forced)),
        stays: cx.persistence.forced,
        preferred: cx
            .persistence
            .last
            .filter(|_| dispatch.is_none())
            .filter(|_| backend.config.options.prefer_last_server || cx.client.has_reserved())
            .filter(|last| has_private(&backend.servers[*last], cx, worker.index, &worker.http2)),
        has_reserved: cx.client.has_reserved(),
    };
    let made = match failed {
        None => assignment.run(&mut cx.log).await,
        Some(failed) => {
            let ServerConnection { link, lease: Lease { open, slot, .. } } = failed;
            drop((link, open));
            assignment.again(slot, &mut cx.log).await
        }
    };
    made.inspect_err(|failure| cx.log.ending = failure.ending())
}

/// The transport that a request was given, and what its [`Lease`] keeps about a connection of its own.
struct Given {
    link: Link,
    open: Option<Open>,
    /// The number of requests that the connection has served.
    reuses: u32,
    label: Option<Arc<[u8]>>,
}

/// The inputs of an assignment; it changes only the log record.
pub(super) struct Assignment<'a> {
    pub(super) config: &'a model::Proxy,
    pub(super) backend: &'a Arc<BackendShared>,
    /// The backend whose figures count.
    pub(super) counted: &'a BackendShared,
    /// Whether servers with 'redir' redirect the request.
    pub(super) redirects: bool,
    pub(super) servers: &'a [Arc<ServerRun>],
    /// The proxies whose idle connections are closed when there is no descriptor for a new one.
    pub(super) proxies: &'a [Arc<ProxyRun>],
    /// The receiver of successful and failed connections, for `observe`.
    pub(super) observer: Option<(&'a Arc<Running>, &'a ProxyRun)>,
    pub(super) worker: usize,
    pub(super) destination: Option<SocketAddr>,
    /// The PROXY header for each server.
    pub(super) headers: (&'a Headers, Made),
    /// The name that is asked for in the handshake with each server.
    pub(super) names: Names,
    pub(super) totals: &'a Arc<TlsTotals>,
    /// The source address of the connection to each server, for servers with `usesrc`.
    pub(super) foreign: source::Foreign,
    /// The network namespace of the client's connection, if some server has `namespace *`.
    pub(super) namespace: ClientNamespace,
    /// The worker's connections of HTTP/2.
    pub(super) http2: Option<&'a Rc<Connections>>,
    /// The worker's connections to agents, and the engine, for messages to an agent.
    pub(super) agents: Option<(&'a Rc<AgentConnections>, &'a Arc<Engine>)>,
    /// The worker's connections to FastCGI applications, and the backend's application.
    pub(super) application: Option<(&'a Rc<AppConnections>, &'a Arc<App>)>,
    /// Whether the request asks for a WebSocket.
    pub(super) websocket: bool,
    pub(super) allow_reuse: bool,
    /// The session, by its index among its worker's.
    pub(super) keeper: Keeper,
    /// The hash of the request's key, if the `balance` algorithm needs one.
    pub(super) hash: Option<u32>,
    /// The number of retries of a failed connection.
    pub(super) retries: u32,
    /// The request's priority in queues.
    pub(super) priority: Priority,
    /// The server that persistence selects, and whether the request stays with it even if its queue is full.
    pub(super) asked_for: Option<(usize, bool)>,
    /// `force-persist`: no retry goes to another server.
    pub(super) stays: bool,
    /// The server of the previous request, with `option prefer-last-server` or if a server authenticates connections.
    pub(super) preferred: Option<usize>,
    /// Whether the session has connections that are reserved for it under any `http-reuse`.
    pub(super) has_reserved: bool,
}

/// Records the stream's state for commands of the stats socket.
fn note(log: &LogRecord, side: Reached, server: Option<usize>) {
    if let Some(card) = &log.card {
        card.set_side(side, server, log.retries);
    }
}

/// Returns the pause before a retry. There is one after a refusal that the kernel reported later than `connect`, unless
/// more than one server is active and the retry may go to another.
pub(super) fn turn_around(
    error: ConnectError,
    redispatch: bool,
    active: usize,
    limit: Option<Duration>,
) -> Option<Duration> {
    let pauses = matches!(error, ConnectError::Refused | ConnectError::Tls(_)) && !(redispatch && active > 1);
    pauses.then(|| limit.map_or(TURN_AROUND, |limit| limit.min(TURN_AROUND)))
}

async fn sleep(pause: Option<Duration>) {
    if let Some(pause) = pause {
        tokio::time::sleep(pause).await;
        // The caller first checks whether the client has disconnected, as HAProxy does.
        tokio::task::yield_now().await;
    }
}

/// The version of HTTP on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpVersion {
    One,
    Two,
    /// The protocol that the handshake selects.
    Negotiated,
}

/// Returns whether connections may serve several requests.
fn policy_allows(config: &model::Proxy) -> bool {
    reuse_policy(config.mode, config.http_reuse, true).is_some()
}

/// Returns whether the ALPN of a server's line offers a protocol.
fn offers(server: &ServerRun, protocol: &[u8]) -> bool {
    let alpn = server.config.tls.as_ref().and_then(|tls| tls.settings.policy.alpn.as_ref());
    alpn.is_some_and(|protocols| protocols.iter().any(|offered| offered == protocol))
}

/// Returns whether a request asks for a WebSocket.
fn asks_for_websocket(request: &Message) -> bool {
    request.first(b"upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// A wait in the queue that records its position in the log however the wait ends.
struct Queued<'a> {
    wait: Wait<'a>,
    log: &'a mut LogRecord,
    over: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let positions = self.wait.positions();
        // The time in the queue is logged even where the wait ended without a server.
        self.log.queue_done = Some(clock::now());
        if !self.over {
            self.log.left_queue = true;
        }
        self.log.server_queue += positions.server;
        self.log.backend_queue += positions.backend;
    }
}

/// Returns permission for one more connection to the server. Under `strict-maxconn` idle connections are closed to make
/// room. Since the request has a slot, there is room unless an idle connection is just being taken, or `maxconn` was
/// lowered.
async fn room(server: &ServerRun, http2: Option<&Rc<Connections>>) -> Option<Open> {
    const TRIES: u32 = 4;
    for _ in 0..TRIES {
        if let Some(open) = Open::new(server) {
            return Some(open);
        }
        if !idle::close_one(server) && !http2.is_some_and(|http2| http2.close_one(server)) {
            tokio::task::yield_now().await;
        }
    }
    Open::new(server)
}

impl Assignment<'_> {
    pub(super) async fn run(&self, log: &mut LogRecord) -> Result<ServerConnection, ServerFailure> {
        let asked = self
            .asked_for
            .or_else(|| self.preferred.filter(|last| self.is_preferable(*last)).map(|last| (last, false)));
        let slot = match self.assign_asked(asked, log).await? {
            Some(slot) => slot,
            None => {
                let slot = self.assign(None, log).await?;
                if let Some((asked, _)) = self.asked_for {
                    self.note_elsewhere(asked, &slot, log);
                }
                slot
            }
        };
        self.connect_in(slot, log).await
    }

    /// Takes a place on a connection to an agent. Most messages wait for nothing; of the others the large future is apart,
    /// so that a stream that waits for an answer does not hold its memory.
    pub(super) async fn run_for_agent(&self, log: &mut LogRecord) -> Result<ServerConnection, ServerFailure> {
        let Pick::Taken(index) = self.choose(None) else { return Box::pin(self.run(log)).await };
        self.count_balanced(index);
        let slot = Slot { server: self.servers[index].clone() };
        let address = slot.server.socket_addr(self.destination);
        let taken = self.agents.and_then(|(agents, engine)| agents.take(&slot.server, engine, address));
        let Some((stream, before)) = taken else { return Box::pin(self.connect_in(slot, log)).await };
        let now = clock::now();
        self.begin(&slot, now, log);
        let given = self.of_agent(&slot.server, stream, before);
        Ok(self.connected(slot, given, now, log))
    }

    /// Records in the log that another server took the request, because the chosen server's queue was full or the
    /// server went down while the request waited.
    fn note_elsewhere(&self, chosen: usize, slot: &Slot, log: &mut LogRecord) {
        if chosen != slot.server.shared.index {
            self.count(&self.servers[chosen], |counters| counters.wredis.add(1));
            log.redispatched = true;
        }
    }

    /// Sends a request again, to the same server or, with `option redispatch`, to another one. There is no pause,
    /// because the server accepted the previous connection.
    async fn again(&self, slot: Slot, log: &mut LogRecord) -> Result<ServerConnection, ServerFailure> {
        log.retries += 1;
        let active = self.backend.usable_servers().0;
        self.count(&slot.server, |counters| counters.wretr.add(1));
        let slot = if self.redispatches(&slot.server, log, active) {
            let previous = slot.server.clone();
            drop(slot);
            let slot = self.assign(Some(previous.shared.index), log).await?;
            self.note_redispatch(&previous, &slot, log);
            slot
        } else {
            slot
        };
        self.connect_in(slot, log).await
    }

    async fn connect_in(&self, mut slot: Slot, log: &mut LogRecord) -> Result<ServerConnection, ServerFailure> {
        loop {
            let mut now = clock::now();
            self.begin(&slot, now, log);
            if self.redirects && slot.server.config.redirect.is_some() {
                return Err(ServerFailure::Redirected);
            }
            note(log, Reached::Connecting, Some(slot.server.shared.index));
            let error = match self.open(&slot.server, &mut now).await {
                Ok(given) => return Ok(self.connected(slot, given, now, log)),
                Err(error) => error,
            };
            // It is that of the last attempt.
            log.server_error = match error {
                ConnectError::Tls(error) => Some(error),
                _ => None,
            };
            let is_hopeless =
                matches!(error, ConnectError::Internal | ConnectError::Resource | ConnectError::Unattached);
            if !is_hopeless {
                self.observed(&slot.server, Observed::NotConnected);
            }
            let retried = self.config.retry_on.conn_failure && log.retries < self.retries;
            if is_hopeless || !retried {
                self.count(&slot.server, |counters| counters.econ.add(1));
                return Err(match error {
                    ConnectError::Internal => ServerFailure::Internal,
                    ConnectError::Resource => ServerFailure::Resource,
                    ConnectError::TimedOut => ServerFailure::ConnectTimeout,
                    ConnectError::Refused
                    | ConnectError::RefusedAtOnce
                    | ConnectError::Unattached
                    | ConnectError::Tls(_) => ServerFailure::Refused,
                });
            }
            log.retries += 1;
            slot = self.retry(slot, error, log).await?;
        }
    }

    /// Records that a request has a slot.
    fn begin(&self, slot: &Slot, now: Instant, log: &mut LogRecord) {
        // The pauses before further attempts count as time to connect.
        log.queue_done.get_or_insert(now);
        if !log.server.as_ref().is_some_and(|server| Arc::ptr_eq(server, &slot.server)) {
            log.server = Some(slot.server.clone());
        }
        self.server_counters(&slot.server).session(now);
    }

    /// Returns a connection that was ready at `now`.
    fn connected(&self, slot: Slot, given: Given, now: Instant, log: &mut LogRecord) -> ServerConnection {
        let Given { link, open, reuses, label } = given;
        (log.connect_done, log.server_error) = (Some(now), None);
        if reuses == 0 {
            self.observed(&slot.server, Observed::Connected);
        }
        note(log, Reached::Established, Some(slot.server.shared.index));
        let reserved = Cell::new(false);
        ServerConnection { link, lease: Lease { open, slot, reuses, label, keeper: self.keeper, reserved } }
    }

    fn observed(&self, server: &ServerRun, seen: Observed) {
        if let Some((running, proxy)) = self.observer {
            observe(running, proxy, server, seen);
        }
    }

    /// Returns the slot for the next attempt after a failed one: the same slot after a pause, or one of another server.
    async fn retry(&self, slot: Slot, error: ConnectError, log: &mut LogRecord) -> Result<Slot, ServerFailure> {
        let active = self.backend.usable_servers().0;
        let redispatch = self.redispatches(&slot.server, log, active);
        let pause = turn_around(error, redispatch, active, self.config.timeouts.connect);
        if !redispatch {
            self.count(&slot.server, |counters| counters.wretr.add(1));
            sleep(pause).await;
            return Ok(slot);
        }
        let previous = slot.server.clone();
        drop(slot);
        sleep(pause).await;
        let slot = self.assign(Some(previous.shared.index), log).await?;
        if !self.note_redispatch(&previous, &slot, log) {
            self.count(&previous, |counters| counters.wretr.add(1));
        }
        Ok(slot)
    }

    /// Counts a redispatch, unless the same server was chosen again.
    fn note_redispatch(&self, previous: &Arc<ServerRun>, slot: &Slot, log: &mut LogRecord) -> bool {
        let elsewhere = !Arc::ptr_eq(previous, &slot.server);
        if elsewhere {
            self.count(previous, |counters| counters.wredis.add(1));
            log.redispatched = true;
        }
        elsewhere
    }

    /// Returns whether this retry may go to another server (`option redispatch`).
    fn redispatches(&self, server: &ServerRun, log: &LogRecord, active: usize) -> bool {
        let Some(interval) = self.config.redispatch else { return false };
        if self.stays {
            return false;
        }
        let due = match interval {
            0 => false,
            every if every > 0 => log.retries.is_multiple_of(every as u32),
            from_last => {
                let last = i64::from(self.retries) + 1 + i64::from(from_last);
                last > 0 && i64::from(log.retries) % last == 0
            }
        };
        // The server that persistence asked for binds the request until its first redispatch.
        let asked = !log.redispatched && self.asked_for.is_some_and(|(index, _)| index == server.shared.index);
        due || (active > 1 && !asked && !self.config.balance.follows_requests()) || !server.shared.is_warm()
    }

    /// Returns whether the server of the previous request is suitable for this one.
    fn is_preferable(&self, last: usize) -> bool {
        if matches!(self.config.balance, model::Balance::Hash(_)) {
            return false;
        }
        let Some(server) = self.backend.servers.get(last) else { return false };
        let waits = |limit: u32| server.has_room() || server.waiting() < limit;
        server.status().is_running()
            && server.effective_weight() > 0
            && self.config.max_keep_alive_queue.is_none_or(waits)
    }

    /// Returns a slot of the server that persistence selects. Returns none if there is no such server, or if the
    /// request may go to another and this one went down or has a full queue.
    async fn assign_asked(
        &self,
        asked: Option<(usize, bool)>,
        log: &mut LogRecord,
    ) -> Result<Option<Slot>, ServerFailure> {
        let Some((index, forced)) = asked else { return Ok(None) };
        if Load::take(&**self.backend, index) {
            return Ok(Some(Slot { server: self.servers[index].clone() }));
        }
        if self.backend.servers[index].queue_is_full() {
            let liked = self.asked_for.is_none();
            if liked || (!forced && self.config.redispatch.is_some()) {
                return Ok(None);
            }
            return Err(self.queue_full(index, log));
        }
        log.server = Some(self.servers[index].clone());
        match self.wait(Some(index), forced, log).await? {
            Turn::Granted(index) => Ok(Some(Slot { server: self.servers[index].clone() })),
            Turn::Again => Ok(None),
        }
    }

    fn queue_full(&self, index: usize, log: &mut LogRecord) -> ServerFailure {
        log.server = Some(self.servers[index].clone());
        self.count(&self.servers[index], |counters| counters.econ.add(1));
        ServerFailure::QueueFull
    }

    /// Returns a slot of any server, immediately or through the queue.
    async fn assign(&self, avoid: Option<usize>, log: &mut LogRecord) -> Result<Slot, ServerFailure> {
        // The server whose queue sent the request away.
        let mut left = None;
        let index = loop {
            match self.choose(avoid) {
                Pick::Taken(index) => {
                    // A retry that comes back to the same server was balanced already.
                    if avoid != Some(index) {
                        self.count_balanced(index);
                    }
                    break index;
                }
                Pick::None => {
                    log.server = None;
                    self.backend_counters().econ.add(1);
                    return Err(ServerFailure::NoServer);
                }
                Pick::Wait(index) => {
                    if self.backend.servers[index].queue_is_full() {
                        return Err(self.queue_full(index, log));
                    }
                    log.server = Some(self.servers[index].clone());
                    if avoid != Some(index) {
                        self.count_balanced(index);
                    }
                    match self.wait(Some(index), false, log).await? {
                        Turn::Granted(index) => break index,
                        Turn::Again => left = Some(index),
                    }
                }
                Pick::Full => {
                    log.server = None;
                    if let Turn::Granted(index) = self.wait(None, false, log).await? {
                        break index;
                    }
                }
            }
        };
        let slot = Slot { server: self.servers[index].clone() };
        if let Some(left) = left {
            self.note_elsewhere(left, &slot, log);
        }
        Ok(slot)
    }

    fn choose(&self, avoid: Option<usize>) -> Pick {
        // Requests waiting for any server came first; a hash requests a certain server.
        if self.hash.is_none() && self.backend.queue.has_common_waiters() {
            return match self.backend.usable_servers() {
                (0, 0) => Pick::None,
                _ => Pick::Full,
            };
        }
        self.backend.pick(Wish { hash: self.hash, avoid })
    }

    async fn wait(&self, server: Option<usize>, stays: bool, log: &mut LogRecord) -> Result<Turn, ServerFailure> {
        let limit = self.config.timeouts.queue.or(self.config.timeouts.connect);
        note(log, Reached::Queued, server);
        let wait = self.backend.queue.wait(self.backend, server, self.priority, stays);
        let mut queued = Queued { wait, log, over: false };
        let granted = match limit {
            Some(limit) => tokio::time::timeout(limit, &mut queued.wait).await.ok(),
            None => Some((&mut queued.wait).await),
        };
        queued.over = true;
        match granted {
            Some(turn) => Ok(turn),
            None => {
                self.backend_counters().econ.add(1);
                if let Some(index) = server {
                    self.server_counters(&self.servers[index]).econ.add(1);
                }
                Err(ServerFailure::QueueTimeout)
            }
        }
    }

    /// Takes an idle connection if `http-reuse` allows it, or a stream of one that is being opened, or opens a new one.
    /// `now` becomes the time at which it was ready.
    async fn open(&self, server: &Arc<ServerRun>, now: &mut Instant) -> Result<Given, ConnectError> {
        if let Some((agents, engine)) = self.agents {
            return self.open_agent(server, agents, engine, now).await;
        }
        if server.config.is_reverse() {
            return self.take_attached(server, now).await;
        }
        if let Some((connections, app)) = self.application.filter(|_| server.config.proto == Some(Proto::Fcgi)) {
            return self.open_application(server, connections, app, now).await;
        }
        let config = self.config;
        let label = self.label(server);
        let version = self.version(server);
        let keeps = config.mode == Mode::Http && config.options.connection != model::ConnectionMode::Close;
        if self.has_reserved && keeps && version != HttpVersion::Two {
            let label = idle::reserved(self.worker, self.keeper.session, label.as_deref());
            if let Some((socket, open, reuses)) = idle::take_own(server, self.worker, &label) {
                self.count(server, |counters| counters.reuse.add(1));
                return Ok(Given { link: Link::Own(socket), open: Some(open), reuses, label: Some(label) });
            }
        }
        let policy = reuse_policy(config.mode, server.reuse, self.allow_reuse);
        // Whether only one session uses a busy connection.
        let session = matches!(server.reuse, HttpReuse::Never | HttpReuse::Safe).then_some(self.keeper.session);
        let mut opener = None;
        // To HAProxy every connection of HTTP/2 is one that was reused before.
        if let (Some(_), Some(http2)) = (policy, self.http2)
            && version != HttpVersion::One
        {
            let address = server.socket_addr(self.destination);
            let wanted = Wanted { label: label.as_deref(), address, session };
            loop {
                if let Some((stream, before)) = http2.take(server, &wanted) {
                    self.count(server, |counters| counters.reuse.add(1));
                    return Ok(Given { link: Link::Stream(stream), open: None, reuses: before, label: None });
                }
                // Until it is open, a connection is shared only if its protocol is certain.
                if server.reuse != HttpReuse::Always || version != HttpVersion::Two {
                    break;
                }
                match http2.join_opening(server, &wanted) {
                    Part::First(first) => {
                        opener = Some(first);
                        break;
                    }
                    Part::Other(opening) => match opening.outcome().await {
                        Outcome::Opened | Outcome::Abandoned => *now = clock::now(),
                        Outcome::Failed(error) => return Err(error),
                    },
                }
            }
        }
        if let Some(proven_only) = policy.filter(|_| version != HttpVersion::Two)
            && let Some((socket, open, reuses)) = idle::take(server, self.worker, proven_only, label.as_deref())
        {
            self.count(server, |counters| counters.reuse.add(1));
            return Ok(Given { link: Link::Own(socket), open: Some(open), reuses, label });
        }
        let (socket, open) = match self.establish(server, version).await {
            Ok(established) => established,
            Err(error) => {
                if let Some(opener) = opener {
                    opener.finish(Outcome::Failed(error));
                }
                return Err(error);
            }
        };
        *now = clock::now();
        let speaks_http2 = match version {
            HttpVersion::One => false,
            HttpVersion::Two => true,
            HttpVersion::Negotiated => socket.alpn() == Some(b"h2"),
        };
        let Some(http2) = self.http2.filter(|_| speaks_http2) else {
            return Ok(Given { link: Link::Own(socket), open: Some(open), reuses: 0, label });
        };
        let address = server.socket_addr(self.destination);
        let stream = http2.add(server, Opened { socket, open, label, address, session, shared: policy_allows(config) });
        let greeted = stream.greeted(config.timeouts.connect).await;
        if let Some(opener) = opener {
            opener.finish(greeted.map_or_else(Outcome::Failed, |()| Outcome::Opened));
        }
        greeted?;
        *now = clock::now();
        Ok(Given { link: Link::Stream(stream), open: None, reuses: 0, label: None })
    }

    /// Takes a stream of a connection that the server has opened, of this worker or else of another.
    async fn take_attached(&self, server: &Arc<ServerRun>, now: &mut Instant) -> Result<Given, ConnectError> {
        let http2 = self.http2.ok_or(ConnectError::Unattached)?;
        let label = self.label(server);
        let wanted = Wanted { label: label.as_deref(), address: None, session: None };
        let found = match (http2.take(server, &wanted), self.observer) {
            (None, Some((running, _))) => {
                let limit = self.config.timeouts.connect;
                http2.await_attached(&running.process, server, &wanted, limit).await
            }
            (found, _) => found,
        };
        let (stream, before) = found.ok_or(ConnectError::Unattached)?;
        *now = clock::now();
        self.count(server, |counters| counters.reuse.add(1));
        Ok(Given { link: Link::Stream(stream), open: None, reuses: before.saturating_add(1), label: None })
    }

    /// Takes a place on a connection to an agent, of one that is being opened, or on a new one.
    async fn open_agent(
        &self,
        server: &Arc<ServerRun>,
        agents: &Rc<AgentConnections>,
        engine: &Arc<Engine>,
        now: &mut Instant,
    ) -> Result<Given, ConnectError> {
        let address = server.socket_addr(self.destination);
        let opener = loop {
            if let Some((stream, before)) = agents.take(server, engine, address) {
                return Ok(self.of_agent(server, stream, before));
            }
            match agents.join_opening(server, engine, address) {
                Part::First(first) => break first,
                Part::Other(opening) => match opening.outcome().await {
                    Outcome::Opened | Outcome::Abandoned => *now = clock::now(),
                    Outcome::Failed(error) => return Err(error),
                },
            }
        };
        match self.establish(server, HttpVersion::One).await {
            Ok((socket, open)) => {
                *now = clock::now();
                let opened = AgentOpened { socket, open, address, patience: self.config.timeouts.server };
                let stream = agents.add(server, engine, opened);
                opener.finish(Outcome::Opened);
                Ok(Given { link: Link::Agent(stream), open: None, reuses: 0, label: None })
            }
            Err(error) => {
                opener.finish(Outcome::Failed(error));
                Err(error)
            }
        }
    }

    /// Returns a place on an open connection to an agent, which has lent `reuses` before.
    fn of_agent(&self, server: &ServerRun, stream: AgentStream, reuses: u32) -> Given {
        self.count(server, |counters| counters.reuse.add(1));
        Given { link: Link::Agent(stream), open: None, reuses, label: None }
    }

    /// Takes a place on a connection to an application, of one that is being opened, or on a new one.
    async fn open_application(
        &self,
        server: &Arc<ServerRun>,
        connections: &Rc<AppConnections>,
        app: &Arc<App>,
        now: &mut Instant,
    ) -> Result<Given, ConnectError> {
        let config = self.config;
        let given = |stream, reuses| Given { link: Link::Application(stream), open: None, reuses, label: None };
        let label = self.label(server);
        let address = server.socket_addr(self.destination);
        let session = matches!(server.reuse, HttpReuse::Never | HttpReuse::Safe).then_some(self.keeper.session);
        let wanted = Wanted { label: label.as_deref(), address, session };
        let policy = reuse_policy(config.mode, server.reuse, self.allow_reuse);
        let proven_only = policy == Some(true);
        let opener = loop {
            if policy.is_some()
                && let Some((stream, before)) = connections.take(server, app, &wanted, proven_only)
            {
                self.count(server, |counters| counters.reuse.add(1));
                return Ok(given(stream, before));
            }
            // Until it is open, a connection is shared only if it has room for several requests.
            if policy.is_none() || server.reuse != HttpReuse::Always || app.config.max_requests == 1 {
                break None;
            }
            match connections.join_opening(server, app, &wanted) {
                Part::First(first) => break Some(first),
                Part::Other(opening) => match opening.outcome().await {
                    Outcome::Opened | Outcome::Abandoned => *now = clock::now(),
                    Outcome::Failed(error) => return Err(error),
                },
            }
        };
        let established = self.establish(server, HttpVersion::One).await;
        let made = established.map(|(socket, open)| {
            *now = clock::now();
            let opened = AppOpened { socket, open, label, address, session, shared: policy_allows(config) };
            given(connections.add(server, app, opened), 0)
        });
        if let Some(opener) = opener {
            opener.finish(made.as_ref().map_or_else(|error| Outcome::Failed(*error), |_| Outcome::Opened));
        }
        made
    }

    /// Opens a connection, up to the end of its handshakes.
    async fn establish(&self, server: &Arc<ServerRun>, version: HttpVersion) -> Result<(Socket, Open), ConnectError> {
        let (config, header) = (self.config, self.header(server));
        let open = room(server, self.http2).await.ok_or(ConnectError::Resource)?;
        self.count(server, |counters| counters.connect.add(1));
        let foreign = self.foreign.get(server.shared.index).copied().flatten();
        let local = source::local(config, &server.config, foreign);
        let sends_first = sockets::sends_first(config.mode, server.tls().is_some(), header.is_some());
        let way = server.way(local, &self.namespace, sends_first);
        let mut connected = connect(server, self.destination, &way, config.timeouts.connect).await;
        while matches!(connected, Err(ConnectError::Resource))
            && shed_idle(self.proxies.iter().flat_map(|proxy| &proxy.servers)) > 0
        {
            connected = connect(server, self.destination, &way, config.timeouts.connect).await;
        }
        let mut socket = connected?;
        socket.settle(keepalive(&config.options.server_probes).as_ref(), config.options.nolinger);
        if let Some(header) = header {
            say(&socket, header, config.timeouts.connect).await?;
        }
        if let Some(connector) = server.tls() {
            let securing =
                secure_connection(&mut socket, connector, self.name(server), self.alpn(server, version), self.totals);
            let secured = match config.timeouts.connect {
                Some(limit) => tokio::time::timeout(limit, securing).await.map_err(|_| ConnectError::TimedOut)?,
                None => securing.await,
            };
            let is_resumed = socket.tls().and_then(|tls| tls.facts()).is_some_and(|facts| facts.resumed);
            self.count(server, |counters| count_handshake(counters, secured.as_ref().map(|_| is_resumed)));
            if let Some((running, _)) = self.observer {
                traced::handshake(&running.logger, self.worker, server, secured.as_ref().err());
            }
            secured.map_err(|failure| ConnectError::Tls(ServerTlsError::of_handshake(failure, &socket, connector)))?;
        }
        Ok((socket, open))
    }

    /// Returns how the version of HTTP to this server is determined.
    fn version(&self, server: &ServerRun) -> HttpVersion {
        if self.config.mode != Mode::Http || !server.may_speak_http2() {
            return HttpVersion::One;
        }
        let of_line = match server.config.proto {
            Some(Proto::H2) => HttpVersion::Two,
            Some(Proto::H1 | Proto::Fcgi | Proto::Spop | Proto::Raw) => HttpVersion::One,
            None if server.tls().is_some() => HttpVersion::Negotiated,
            None => HttpVersion::One,
        };
        match server.config.websockets {
            _ if !self.websocket => of_line,
            WebSockets::H1 => HttpVersion::One,
            WebSockets::H2 => HttpVersion::Two,
            // HTTP/1.1 if the line offers it, otherwise the version of the line.
            WebSockets::Auto if of_line == HttpVersion::Negotiated && offers(server, b"http/1.1") => HttpVersion::One,
            WebSockets::Auto => of_line,
        }
    }

    /// Returns the protocols that replace those of the line: a request that needs a version asks for no other.
    fn alpn(&self, server: &ServerRun, version: HttpVersion) -> Option<&'static [Vec<u8>]> {
        static ONE: LazyLock<[Vec<u8>; 1]> = LazyLock::new(|| [b"http/1.1".to_vec()]);
        static TWO: LazyLock<[Vec<u8>; 1]> = LazyLock::new(|| [b"h2".to_vec()]);
        let offers = server.config.tls.as_ref().is_some_and(|tls| tls.settings.policy.alpn.is_some());
        match version {
            _ if !offers || !self.websocket => None,
            HttpVersion::One => Some(&*ONE),
            HttpVersion::Two => Some(&*TWO),
            HttpVersion::Negotiated => None,
        }
    }

    /// Returns the header that begins a connection to this server.
    fn header(&self, server: &ServerRun) -> Option<&Arc<[u8]>> {
        self.headers.0.of(server.shared.index, &self.headers.1)
    }

    /// Returns the name that is asked for in the handshake with this server.
    fn name(&self, server: &ServerRun) -> Option<&str> {
        self.names.sent(server)
    }

    /// Returns the label that an idle connection must have to serve this request: the same header, source address and,
    /// for a server without an address of its own, destination, and under `http-reuse never` the same session.
    fn label(&self, server: &ServerRun) -> Option<Arc<[u8]>> {
        let header = self.header(server);
        let foreign = self.foreign.get(server.shared.index).copied().flatten();
        let own = server.reuse == HttpReuse::Never;
        let place = self.destination.filter(|_| server.follows_clients());
        let name = self.names.of_pool(server);
        let namespace = self.namespace.as_ref().filter(|_| server.follows_namespaces()).map(|(name, _)| name);
        if foreign.is_none() && place.is_none() && name.is_none() && namespace.is_none() && !own {
            return header.cloned();
        }
        let mut label = Vec::new();
        if own {
            label.extend_from_slice(&idle::own_label(self.worker, self.keeper.session));
        }
        if let Some(from) = foreign {
            label.extend_from_slice(from.to_string().as_bytes());
            label.push(b' ');
        }
        if let Some(place) = place {
            label.extend_from_slice(format!(">{place} ").as_bytes());
        }
        if let Some(namespace) = namespace {
            label.extend_from_slice(format!("%{namespace} ").as_bytes());
        }
        if let Some(name) = name {
            label.extend_from_slice(&label_of(name.as_bytes()));
        }
        label.extend_from_slice(header.map_or(&[][..], |header| header));
        Some(label.into())
    }

    fn backend_counters(&self) -> &Counters {
        self.counted.figures.at(self.worker)
    }

    fn server_counters<'s>(&self, server: &'s ServerRun) -> &'s Counters {
        server.shared.figures.at(self.worker)
    }

    /// Counts that balancing chose a server; the address of `dispatch` is no server.
    fn count_balanced(&self, index: usize) {
        if std::ptr::eq(self.counted, Arc::as_ptr(self.backend)) {
            self.count(&self.servers[index], |counters| counters.lbtot.add(1));
        }
    }

    /// Updates a counter of both the backend and the server.
    fn count(&self, server: &ServerRun, count: impl Fn(&Counters)) {
        count(self.backend_counters());
        count(self.server_counters(server));
    }
}
