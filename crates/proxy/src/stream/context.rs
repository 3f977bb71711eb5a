//! The view of a stream for rules, samples, Lua and logs.
//!
//! The context lives in the stream's boxed state, which comes from the worker's free list and serves one request.
//! The relay owns sockets and buffers; nothing here does I/O.

mod applet;
mod client;
mod script_filter;
mod scripts;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::RwLock;
use sluicegate_config::model::{CompressionAlgorithm, ErrorPage, LogLevel, Mode, Position};
use sluicegate_tls::session::Facts;
use sluicegate_wire::http::Message;

use super::{Card, Content, Inspection, Sockets};
use crate::bandwidth::StreamBandwidth;
use crate::cache::{Hit, StreamCache};
use crate::hook::Hook;
use crate::limit::StreamLimits;
use crate::log::capture::Captures;
use crate::persist::Persistence;
use crate::process::Process;
use crate::proxied::{HandshakeError, ServerTlsError};
use crate::sample::Variables;
use crate::server::{Priority, ServerRun, StreamFacts};
use crate::site::Site;
use crate::spoe::StreamSpoe;
use crate::stick::{Counted, Tracked};

pub(crate) use applet::APPLET_ROOM;
pub use applet::{Applet, AppletIo, AppletWait, Bursted};
pub use client::Client;
pub(crate) use client::{ClientTls, Http2Facts, LastServer};
pub(crate) use script_filter::Attached;
pub use script_filter::{
    BoundFilter, FilterAnswer, FilterEvent, FilterMade, FilterPayload, FilterVerdict, ScriptFilter,
};
pub use scripts::{
    ActionOutcome, Bindings, BoundAction, BoundService, ChannelIo, Pending, ScriptAttempt, ScriptCall, ScriptHook,
    Scripts, StreamScripts,
};
pub(crate) use scripts::{PrivateValues, ScriptCode, Waiting};

/// The maximum length of a unique id in bytes (HAProxy's UNIQUEID_LEN without its terminator).
const UNIQUE_ID_MAX: usize = 127;

/// A compiled `unique-id-format`.
pub trait UniqueId: Send + Sync {
    /// Renders the id of a stream.
    fn render(&self, cx: &StreamContext, out: &mut Vec<u8>);
}

/// The initial data of a stream's context.
pub(crate) struct Beginning<'a> {
    /// The stream's number.
    pub(crate) id: u64,
    pub(crate) client: &'a Rc<Client>,
    pub(crate) frontend: &'a Arc<Site>,
    /// The frontend's `unique-id-format`, compiled.
    pub(crate) unique_id: Option<&'a Arc<dyn UniqueId>>,
    pub(crate) scripts: &'a Option<Rc<dyn Scripts>>,
    /// The wall-clock time of the connection's acceptance.
    pub(crate) accepted_at: SystemTime,
}

/// Headers with which a connection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedHeaders {
    /// `expect-proxy`.
    pub proxy: bool,
    /// `expect-netscaler-cip`.
    pub cip: bool,
}

/// The server that a rule gives the connection to (`attach-srv`).
#[derive(Debug)]
pub struct Attaching {
    /// `BACKEND/SERVER`.
    pub server: Arc<str>,
    /// The name of the connection.
    pub name: Option<Vec<u8>>,
}

/// A stream as its rules see it.
pub struct StreamContext {
    /// Unique in the process while the stream exists. A Lua handle contains this id, so a handle of an ended stream is
    /// recognized.
    pub id: u64,
    /// The process, whose figures a log-format may print.
    pub process: Arc<Process>,
    /// The session's frontend.
    pub frontend: Arc<Site>,
    /// The backend, once one is chosen (in a `listen`: the frontend itself).
    pub backend: Option<Arc<Site>>,
    /// The client's connection, shared by its streams.
    pub client: Rc<Client>,
    /// Client address; `None` behind a unix socket.
    pub source: Option<SocketAddr>,
    /// Address that the client connected to.
    pub destination: Option<SocketAddr>,
    /// The headers with which rules expect the connection to begin.
    pub expected: ExpectedHeaders,
    /// The server that the connection is given to.
    pub attaching: Option<Box<Attaching>>,
    /// Set if the connection ended before its first byte was examined.
    pub refused: Option<HandshakeError>,
    /// The index among the worker's sessions through which the stream is ended, if it is not its session's index.
    pub place: Option<u32>,
    /// TLS of the connection to the server.
    pub server_tls: Option<Arc<Facts>>,
    /// The facts of the stream to the server, if that speaks HTTP/2.
    pub server_http2: Option<StreamFacts>,
    /// The request's head; empty in TCP mode and before it is parsed.
    pub request: Message,
    /// The response's head; empty until it is parsed or made.
    pub response: Message,
    /// `true` while response rules run.
    pub in_response: bool,
    /// `sess.`, `txn.`, `req.` and `res.` variables.
    pub variables: Variables,
    /// Received data of the request other than its head, for rules that read it.
    pub request_content: Content,
    /// Received data of the response other than its head, for rules that read it.
    pub response_content: Content,
    /// What its engines of SPOE keep, if its proxies have any.
    pub spoe: Option<Box<StreamSpoe>>,
    /// The parameters of a FastCGI application.
    pub fcgi: Option<Box<crate::fcgi::Parameters>>,
    /// Whether the running rules may wait for more content.
    pub inspection: Inspection,
    /// The sockets, for queries by rules.
    pub sockets: Sockets,
    /// The number of the request in its session, from 1; 0 in TCP mode.
    pub request_number: u32,
    /// The identifier of the HTTP/2 stream; 0 in other protocols.
    pub stream_id: u32,
    /// The frontend's `unique-id-format`, compiled.
    pub unique_id_code: Option<Arc<dyn UniqueId>>,
    /// The unique id, once it has been requested; see [`StreamContext::unique_id`].
    pub made_unique_id: OnceCell<Box<[u8]>>,
    /// Whether the unique id is being computed.
    pub making_unique_id: Cell<bool>,
    /// Its priority in queues (`set-priority-class`, `set-priority-offset`).
    pub priority: Priority,
    /// `disable-l7-retry`.
    pub no_l7_retry: bool,
    /// `switch-mode http`.
    pub switch_to_http: bool,
    /// The frontend's content rules have run, before its bytes became a request of HTTP.
    pub inspected: bool,
    /// Settings of its rules that override those of its proxies.
    pub overrides: Overrides,
    /// The verified credentials.
    pub auth: Option<crate::auth::Known>,
    /// The name and value of the response field that requests credentials (`http-request auth`).
    pub challenge: Option<Box<(&'static [u8], Vec<u8>)>>,
    /// The interim response that `early-hint` rules make, boxed because few streams have one.
    pub early_hints: Option<Box<Message>>,
    /// Bytes of the buffer that are not available to an edited head: received body bytes, and HAProxy's overhead.
    pub held: usize,
    /// The maximum bytes of the request's and of the response's body that count: those that fitted after the received
    /// head.
    pub held_most: [Option<u32>; 2],
    /// Edits that did not fit.
    pub failed_rewrites: u32,
    /// The server that the request selects by persistence.
    pub persistence: Persistence,
    /// The counters tracked by the stream's rules.
    pub tracked: Tracked,
    /// The state of its `limit` rules.
    pub limits: StreamLimits,
    /// What caches know of it.
    pub cache: Option<Box<StreamCache>>,
    /// The bandwidth filters that its rules have set.
    pub bandwidth: StreamBandwidth,
    /// The data of the log line.
    pub log: LogRecord,
    /// The worker's scripts, for expressions that call one where nothing may wait.
    pub scripts: Option<Rc<dyn Scripts>>,
    /// Private values of scripts for this stream.
    pub lua: StreamScripts,
}

impl StreamContext {
    /// Returns the proxies of the stream, whose filters it passes in this order.
    pub(crate) fn proxies(&self) -> impl Iterator<Item = &Arc<Site>> {
        let backend = self.backend.as_ref().filter(|backend| backend.id != self.frontend.id);
        [Some(&self.frontend), backend].into_iter().flatten()
    }

    /// Returns the proxy that the stream is in: its backend, once one is chosen.
    pub(crate) fn proxy(&self) -> &Arc<Site> {
        self.backend.as_ref().unwrap_or(&self.frontend)
    }

    /// Returns the response that a cache has for the request.
    pub(crate) fn cache_hit(&self) -> Option<&Hit> {
        self.cache.as_ref()?.hit.as_ref()
    }

    /// Returns whether the request is meant for a proxy: its target contains a host, and the frontend has
    /// `option http-use-proxy-header`.
    pub(crate) fn is_proxied(&self) -> bool {
        self.frontend.config.options.use_proxy_header
            && !matches!(self.request.target().first(), Some(b'/' | b'*') | None)
    }

    /// Shows rules what has come of the request's body while they waited.
    pub(crate) fn see_arrived(&mut self) {
        if let Some(arrived) = &self.lua.arrived {
            self.request_content.data.append(&mut arrived.borrow_mut().data);
        }
    }

    /// Leaves less room to edits, because `body` bytes have come after the head. HAProxy keeps both in one buffer,
    /// takes no more than `tune.maxrewrite` leaves, and needs 79 bytes for a message and 4 for each field and the body.
    #[inline]
    pub(crate) fn hold(&mut self, body: usize, hook: Hook, max_head: usize) {
        self.held = 0;
        if body > 0 {
            let message = if hook.is_response() { &self.response } else { &self.request };
            let own = 79 + 4 * (message.fields().count() + 1);
            let fits = max_head.saturating_sub(message.wire_len() + own) as u32;
            let most = *self.held_most[usize::from(hook.is_response())].get_or_insert(fits);
            self.held = body.min(most as usize) + own;
        }
    }

    /// Adds the fields about limits to the response in the context.
    #[inline]
    pub(crate) fn tell_limits(&mut self) {
        self.limits.fields.tell(&mut self.response);
    }

    /// Returns the page that the proxies have for a status: the backend's, if one is chosen, before the frontend's.
    pub(crate) fn error_page(&self, status: u16) -> Option<Arc<ErrorPage>> {
        let backend = self.backend.as_ref().and_then(|backend| backend.config.errors.get(&status));
        backend.or_else(|| self.frontend.config.errors.get(&status)).cloned()
    }

    /// Returns whether the stream or its session tracks anything.
    #[inline]
    pub(crate) fn tracks(&self) -> bool {
        !self.tracked.is_unused() || !self.client.tracked.borrow().is_unused()
    }

    /// Counts an event where it is tracked.
    #[inline]
    pub(crate) fn count(&self, event: Counted) {
        Tracked::count(&self.tracked, &self.client.tracked.borrow(), event);
    }

    /// Counts a request before a proxy's `http-request` rules: before the frontend's in all counters, and before the
    /// backend's in the counters that its content rules have started to track.
    pub(crate) fn count_request(&self, proxy: &Site) {
        if proxy.id == self.frontend.id {
            self.count(Counted::Request);
        } else {
            self.tracked.count_of_backend(Counted::Request);
        }
    }

    /// Counts a server's response by its status, as a client error or a server failure.
    pub(crate) fn count_response(&self) {
        if !self.tracks() {
            return;
        }
        let classes = &self.frontend.directory.status_classes;
        let status = self.response.status();
        if classes.errors.contains(status) {
            self.count(Counted::Error);
        }
        if classes.failures.contains(status) {
            self.count(Counted::Failure);
        }
    }

    /// Returns the stream's unique id by its frontend's `unique-id-format`. It is computed at the first request and
    /// kept. A format that refers to the unique id itself finds it empty, as in HAProxy.
    pub fn unique_id(&self) -> Option<&[u8]> {
        let code = self.unique_id_code.as_ref()?;
        if let Some(id) = self.made_unique_id.get() {
            return Some(id);
        }
        if self.making_unique_id.replace(true) {
            return Some(b"");
        }
        let mut id = Vec::new();
        code.render(self, &mut id);
        id.truncate(UNIQUE_ID_MAX);
        self.making_unique_id.set(false);
        Some(self.made_unique_id.get_or_init(|| id.into()))
    }

    /// Returns whether the stream had an error, a retry or a redispatch, for `option dontlog-normal` and
    /// `log-separate-errors`.
    pub(crate) fn has_failed(&self) -> bool {
        let log = &self.log;
        let http_error = self.frontend.config.mode == Mode::Http && log.status >= 500;
        log.redispatched || log.retries > 0 || !matches!(log.ending.who, b'-' | b'L') || http_error
    }

    /// Returns the context of a stream without a session, for tests and measurements of rules alone.
    pub fn unconnected(frontend: Arc<Site>, log: LogRecord) -> StreamContext {
        StreamContext {
            id: 0,
            process: frontend.directory.process.clone(),
            frontend,
            backend: None,
            client: Rc::new(Client::unconnected()),
            source: None,
            destination: None,
            expected: ExpectedHeaders::default(),
            attaching: None,
            refused: None,
            place: None,
            server_tls: None,
            server_http2: None,
            request: Message::new(),
            response: Message::new(),
            in_response: false,
            variables: Variables::default(),
            request_content: Content::default(),
            response_content: Content::default(),
            inspection: Inspection::default(),
            sockets: Sockets::default(),
            request_number: 0,
            stream_id: 0,
            unique_id_code: None,
            made_unique_id: OnceCell::new(),
            making_unique_id: Cell::new(false),
            priority: Priority::default(),
            no_l7_retry: false,
            switch_to_http: false,
            inspected: false,
            overrides: Overrides::default(),
            early_hints: None,
            auth: None,
            challenge: None,
            held: 0,
            held_most: [None; 2],
            failed_rewrites: 0,
            persistence: Persistence::default(),
            tracked: Tracked::default(),
            limits: StreamLimits::default(),
            cache: None,
            spoe: None,
            fcgi: None,
            bandwidth: StreamBandwidth::default(),
            log,
            scripts: None,
            lua: StreamScripts::default(),
        }
    }

    /// Returns whether this is a stream of HTTP. A connection of TCP may have been switched to it.
    pub(crate) fn is_http(&self) -> bool {
        self.request_number > 0 || self.frontend.config.mode == Mode::Http
    }

    /// Returns whether a request is the first of its connection: its failure is reported to the client, and
    /// `http-reuse safe` sends it on a connection of its own. As in HAProxy, no request of HTTP/2 is a first one: its client
    /// repeats requests that are reset.
    pub(crate) fn is_first_request(&self) -> bool {
        self.request_number <= 1 && self.stream_id == 0
    }

    /// Reinitializes the context for the next stream of a connection; its memory is kept.
    pub(crate) fn begin(&mut self, of: &Beginning<'_>) {
        let client = of.client;
        self.id = of.id;
        // Workers share the frontend's count; most streams of a worker come from the same one.
        if !Arc::ptr_eq(&self.frontend, of.frontend) {
            self.frontend = of.frontend.clone();
            self.unique_id_code = of.unique_id.cloned();
        }
        self.client = client.clone();
        self.backend = None;
        (self.source, self.destination) = client.ends();
        (self.expected, self.refused, self.place) = (ExpectedHeaders::default(), None, None);
        self.attaching = None;
        self.server_tls = None;
        self.server_http2 = None;
        self.fcgi = None;
        self.request.clear();
        self.response.clear();
        self.in_response = false;
        self.request_content.clear();
        self.response_content.clear();
        self.inspection.set_open(false);
        self.sockets = Sockets::of_client(client.fd);
        self.variables.begin(&client.variables);
        self.request_number = 0;
        self.stream_id = 0;
        self.made_unique_id.take();
        self.making_unique_id.set(false);
        self.persistence.clear();
        self.priority = Priority::default();
        self.no_l7_retry = false;
        (self.switch_to_http, self.inspected) = (false, false);
        self.overrides = Overrides::default();
        self.early_hints = None;
        self.auth = None;
        self.challenge = None;
        self.held = 0;
        self.held_most = [None; 2];
        self.failed_rewrites = 0;
        self.log.begin(of.accepted_at, client.accepted);
        self.log.handshake = if client.requests() == 0 { client.handshake() } else { 0 };
        self.scripts.clone_from(of.scripts);
        self.lua = StreamScripts::default();
    }
}

/// Settings of rules for one stream that override those of its proxies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// `set-timeout client`.
    pub client: Option<Duration>,
    /// `set-timeout server`.
    pub server: Option<Duration>,
    /// `set-timeout tunnel`.
    pub tunnel: Option<Duration>,
    /// `set-retries`.
    pub retries: Option<u32>,
    /// `set-bc-mark`.
    pub server_mark: Option<u32>,
    /// `set-bc-tos`.
    pub server_tos: Option<u32>,
}

/// The name of a service of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppletName {
    /// A cache.
    Cache,
    /// The statistics page.
    Statistics,
    /// The exporter.
    Exporter,
    /// A service that a script has registered.
    OfScript(Arc<String>),
}

impl std::ops::Deref for AppletName {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            AppletName::Cache => "<CACHE>",
            AppletName::Statistics => "<STATS>",
            AppletName::Exporter => "<PROMEX>",
            AppletName::OfScript(name) => name,
        }
    }
}

/// A stream's log record (HAProxy configuration manual 8.2), filled at parse time and written by a plain function.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// The acceptance of the session or, for a later request of it, the end of the previous one.
    pub accepted: Instant,
    /// The error of TLS of the last connection to a server, or of the last attempt to open one.
    pub server_error: Option<ServerTlsError>,
    /// The time that the handshakes of the connection took, whole milliseconds; 0 for its later requests.
    pub handshake: i64,
    /// The time of this request's first byte (`%tr`); a keep-alive session's idle time precedes it.
    pub request_started_at: SystemTime,
    /// The time of this request's first byte.
    pub request_started: Instant,
    /// The time when the head was complete. For this mark and the following ones, `None` means that the phase was not
    /// reached, which is logged as -1.
    pub request_done: Option<Instant>,
    /// The time when the stream left the queue.
    pub queue_done: Option<Instant>,
    /// Whether the stream ended while it waited in a queue.
    pub left_queue: bool,
    /// The time when the connection to the server was open.
    pub connect_done: Option<Instant>,
    /// The end, once the stream's log line is about to be written.
    pub ended: Option<Instant>,
    /// The time when the response's head was received.
    pub response_started: Option<Instant>,
    /// `%r`: the request line as received; empty logs `<BADREQ>`.
    pub request_line: Vec<u8>,
    /// `%ST`; -1 where nothing was sent.
    pub status: i32,
    /// `%B`: bytes sent to the client.
    pub bytes_read: u64,
    /// `%U`: bytes received from the client.
    pub bytes_uploaded: u64,
    /// The server, whose name is `%s`; without a server that is `<NOSRV>`.
    pub server: Option<Arc<ServerRun>>,
    /// The service that answered, printed in place of a server name.
    pub applet: Option<AppletName>,
    /// The proxy's own address on the connection to the server and the server's, where the frontend's line prints them.
    pub server_addresses: (Option<SocketAddr>, Option<SocketAddr>),
    /// The captures.
    pub captures: Captures,
    /// The algorithm that compresses the response's body.
    pub compressed: Option<CompressionAlgorithm>,
    /// `set-log-level`.
    pub level: Option<LogLevel>,
    /// Whether the connection failed before a request was understood: its line is that of `error-log-format`.
    pub no_request: bool,
    /// Whether the line was written before the end.
    pub written: bool,
    /// Its termination state.
    pub ending: Endings,
    /// The state of the persistence cookie in request and response; `-` without one.
    pub cookie: (u8, u8),
    /// `%rc`, and whether redispatched (`+`).
    pub retries: u32,
    /// Whether a retry went to another server.
    pub redispatched: bool,
    /// The stream's descriptor for the stats socket; reused by the next stream.
    pub card: Option<Rc<Card>>,
    /// `%sq`.
    pub server_queue: u32,
    /// `%bq`.
    pub backend_queue: u32,
    /// The number of stores and engines that did not answer the stream's rules.
    pub store_failures: u32,
    /// The last rule that ended its list.
    pub last_rule: Option<RulePlace>,
    /// The rule that waits for something.
    pub waiting_rule: Option<RulePlace>,
    /// The status that the server sent; 0 before.
    pub server_status: u16,
}

/// The place of a rule. A number in a table of the process, so that a stream copies a word instead of changing
/// reference counts shared by all workers; places stay in the table for good, and a reload of the same file adds none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RulePlace(NonZeroU32);

static RULE_PLACES: RwLock<RulePlaces> = RwLock::new(RulePlaces { list: Vec::new(), numbers: BTreeMap::new() });

/// Files and lines by number, and their numbers.
struct RulePlaces {
    list: Vec<(Arc<str>, u32)>,
    numbers: BTreeMap<(Arc<str>, u32), NonZeroU32>,
}

impl RulePlace {
    /// Returns the number of a place.
    pub fn of(at: &Position) -> RulePlace {
        let place = (at.file.clone(), at.line);
        let RulePlaces { list, numbers } = &mut *RULE_PLACES.write();
        let number = *numbers.entry(place.clone()).or_insert_with(|| {
            list.push(place);
            NonZeroU32::MIN.saturating_add(list.len() as u32 - 1)
        });
        RulePlace(number)
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Returns the file.
    pub fn file(self) -> Arc<str> {
        RULE_PLACES.read().list[self.index()].0.clone()
    }

    /// Returns the line.
    pub fn line(self) -> u32 {
        RULE_PLACES.read().list[self.index()].1
    }
}

impl LogRecord {
    /// [`accepted`](Self::accepted) in wall-clock time (`%t`): derived from the two clocks of the request's first byte,
    /// so that it costs only when it is used.
    pub fn accepted_at(&self) -> SystemTime {
        self.request_started_at - self.request_started.saturating_duration_since(self.accepted)
    }

    /// Reinitializes the record for the next stream; its memory and its card are kept. The fields are assigned one by
    /// one, because building and moving a whole record costs more.
    fn begin(&mut self, now: SystemTime, at: Instant) {
        // Named one by one, so that none can be forgotten.
        let LogRecord {
            accepted,
            server_error,
            handshake,
            request_started_at,
            request_started,
            request_done,
            queue_done,
            left_queue,
            connect_done,
            response_started,
            ended,
            request_line,
            status,
            bytes_read,
            bytes_uploaded,
            server,
            applet,
            server_addresses,
            captures,
            level,
            no_request,
            written,
            ending,
            cookie,
            retries,
            card: _,
            compressed,
            redispatched,
            server_queue,
            backend_queue,
            store_failures,
            last_rule,
            waiting_rule,
            server_status,
        } = self;
        (*accepted, *request_started_at, *request_started) = (at, now, at);
        (*request_done, *queue_done, *connect_done, *response_started, *ended) = (None, None, None, None, None);
        (*server, *applet, *server_addresses, *level) = (None, None, (None, None), None);
        request_line.clear();
        captures.clear();
        (*handshake, *status, *bytes_read, *bytes_uploaded, *retries) = (0, -1, 0, 0, 0);
        (*compressed, *last_rule, *server_error) = (None, None, None);
        (*waiting_rule, *server_status) = (None, 0);
        (*left_queue, *no_request, *written, *redispatched) = (false, false, false, false);
        (*server_queue, *backend_queue, *store_failures) = (0, 0, 0);
        (*ending, *cookie) = (Endings::default(), (b'-', b'-'));
    }

    /// Returns the phase, as in log lines, of a stream with a backend and no connection yet.
    pub fn phase_before_server(&self) -> u8 {
        if self.left_queue || self.queue_done.is_none() { b'Q' } else { b'C' }
    }

    /// Returns the record of a stream that has reached no phase yet, on a session accepted at this moment of both
    /// clocks.
    pub fn new(accepted_at: SystemTime, accepted: Instant) -> LogRecord {
        LogRecord {
            accepted,
            server_error: None,
            handshake: 0,
            request_started_at: accepted_at,
            request_started: accepted,
            request_done: None,
            queue_done: None,
            left_queue: false,
            connect_done: None,
            ended: None,
            response_started: None,
            request_line: Vec::new(),
            status: -1,
            bytes_read: 0,
            bytes_uploaded: 0,
            server: None,
            applet: None,
            server_addresses: (None, None),
            captures: Captures::default(),
            compressed: None,
            level: None,
            no_request: false,
            written: false,
            ending: Endings::default(),
            cookie: (b'-', b'-'),
            retries: 0,
            card: None,
            redispatched: false,
            server_queue: 0,
            backend_queue: 0,
            store_failures: 0,
            last_rule: None,
            waiting_rule: None,
            server_status: 0,
        }
    }
}

/// The first two characters of the termination state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endings {
    /// The originator of the end: `C S P L R I D U K c s -`.
    pub who: u8,
    /// The phase of the end: `R Q C H D L T -`.
    pub phase: u8,
}

impl Default for Endings {
    fn default() -> Self {
        Endings { who: b'-', phase: b'-' }
    }
}
