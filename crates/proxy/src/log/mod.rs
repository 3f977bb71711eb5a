//! Logs: lines are rendered on the worker and written by the control thread.
//!
//! A line is rendered once into a buffer that its thread reuses, gets each target's header, and is appended to the
//! buffer of its destination ([`Logger::send`]); [`write_logs`] takes whole buffers and writes many lines in one system
//! call. So a request pays for two copies of its line and a short lock, never for a system call, and a destination that
//! doesn't read delays no request: beyond [`PENDING_MAX`] bytes lines are dropped and counted (`DroppedLogs` of `show
//! info`).
//!
//! The lines themselves are HAProxy's, byte for byte (configuration manual 8.2), see [`mod@line`] and [`alias`]; the
//! formats of the wire are in [`header`], the destinations in `datagram` and `writer`.

pub mod alias;
mod backend;
pub mod capture;
mod datagram;
mod encode;
mod forward;
pub mod header;
pub mod line;
mod rings;
mod throttle;
mod traces;
mod writer;

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use sluicegate_config::Config;
use sluicegate_config::model::{LogAddress, LogLevel, LogStep, LogTarget, LogWire, Mode, Position, Proxy};
use tokio::sync::Notify;

use crate::hook::Hook;
use crate::proxied::HandshakeError;
use crate::ring::{LineSink, Ring};
use crate::stream::{StreamContext, Timers};
use alias::Origin;
pub(crate) use alias::View;
pub(crate) use backend::LogBackend;
use backend::LogPlace;
use datagram::Peer;
pub use header::Identity;
use header::Meta;
pub(crate) use line::LineCode;
pub use line::ProxyLog;
pub(crate) use rings::LogRing;
use rings::Output;
pub(crate) use throttle::Throttle;
use traces::Tracing;
pub(crate) use traces::{Events, Level, OUTPUTS, Source, Subject};
pub use writer::write_logs;

/// The maximum number of bytes queued for one destination; further lines are dropped.
pub const PENDING_MAX: usize = 1 << 20;

/// Returns a message in printable form: control characters, which would break its line or affect a terminal, are
/// written as `#XX`, as in the log lines of streams. Line feeds at its end are kept.
pub fn printable(message: &[u8]) -> Cow<'_, [u8]> {
    let end = message.iter().rposition(|byte| !matches!(byte, b'\n' | 0)).map_or(0, |last| last + 1);
    let (text, rest) = message.split_at(end);
    if !text.iter().any(u8::is_ascii_control) {
        return Cow::Borrowed(message);
    }
    let mut safe = Vec::with_capacity(message.len() + 16);
    for byte in text {
        if byte.is_ascii_control() {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            safe.extend([b'#', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        } else {
            safe.push(*byte);
        }
    }
    safe.extend_from_slice(rest);
    Cow::Owned(safe)
}

/// Syslog severities, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are RFC 5424's
pub enum Severity {
    Emergency,
    Alert,
    Critical,
    Error,
    Warning,
    Notice,
    Info,
    Debug,
}

impl Severity {
    /// Returns the severity of a syslog level; higher numbers are treated as debug.
    pub fn from_level(level: u8) -> Severity {
        use Severity::{Alert, Critical, Debug, Emergency, Error, Info, Notice, Warning};
        [Emergency, Alert, Critical, Error, Warning, Notice, Info].get(usize::from(level)).copied().unwrap_or(Debug)
    }

    /// Returns HAProxy's word for the severity.
    pub fn word(self) -> &'static str {
        ["EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"][self as usize]
    }
}

/// Queued lines, one after the other.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// The end of each line in `bytes`: a line is a datagram, and may itself contain line feeds.
    ends: Vec<u32>,
}

impl Lines {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// A destination, with the lines that wait for it.
#[derive(Debug)]
struct Sink {
    to: LogAddress,
    /// The datagram target; `None` for a destination that is written like a file.
    peer: Option<Peer>,
    pending: Mutex<Lines>,
    /// Whether the writer sleeps; code that appends lines wakes it.
    sleeping: AtomicBool,
    wake: Notify,
    /// Whether the writer holds lines that it has not written yet.
    writing: AtomicBool,
    /// Whether the sink has a writer.
    served: AtomicBool,
}

/// The number of lines of the current sample that a `log` line with `sample` has seen.
#[derive(Debug)]
struct Sampler {
    /// The position of the line: proxies with `log global` share it.
    at: Position,
    seen: AtomicU32,
}

#[derive(Debug)]
struct Inner {
    /// The destinations. Loggers of successive configurations share those that are in both.
    sinks: Vec<Arc<Sink>>,
    rings: Vec<Arc<LogRing>>,
    samplers: Vec<Sampler>,
    /// The backends of messages, once the configuration runs.
    backends: OnceLock<Vec<LogBackend>>,
    /// The traces. Those of an earlier configuration are not kept.
    tracing: Tracing,
    dropped: Arc<AtomicU64>,
    identity: Identity,
}

/// One message for several targets.
#[derive(Clone, Copy)]
struct Message<'a> {
    /// `None`: that of each target.
    level: Option<u8>,
    /// `None`: that of each target.
    facility: Option<u32>,
    now: SystemTime,
    meta: Meta<'a>,
    /// Whether it is this process's own, with the tag of each target.
    own: bool,
    line: &'a [u8],
}

/// Sends log lines to the control thread. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Logger {
    inner: Arc<Inner>,
}

impl Default for Logger {
    /// Returns a logger without destinations.
    fn default() -> Logger {
        Logger::to([], Vec::new(), Identity::default(), Tracing::default(), None)
    }
}

thread_local! {
    /// This thread's buffers for the structured data and for the line.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Logger {
    /// Returns a logger for every destination that `config` names, and for stderr, where scripts log without one.
    /// `identity` is what headers say of this process.
    pub fn new(config: &Config, identity: Identity) -> Logger {
        Logger::after(config, identity, None)
    }

    /// Like [`new`](Self::new), for a configuration that replaces one that logs to `before`: destinations in both stay
    /// open, with their queued lines.
    pub fn after(config: &Config, identity: Identity, before: Option<&Logger>) -> Logger {
        let sections = config.proxies.iter().chain(config.peers.iter().map(|peers| &peers.proxy));
        let proxies = sections.flat_map(Proxy::log_targets);
        let identity = Identity { host: config.global.log_host.clone(), ..identity };
        let outputs = [LogAddress::Stderr, LogAddress::Stdout].map(LogTarget::raw);
        let rings = LogRing::all(&config.rings, before.map_or(&[], |before| &before.inner.rings));
        let backends = config.proxies.iter().filter(|proxy| proxy.is_log_backend());
        let servers: Vec<_> = backends.flat_map(|proxy| proxy.log_destinations()).map(LogTarget::raw).collect();
        let targets = config.global.log.iter().chain(proxies).chain(&outputs).chain(&servers);
        Logger::to(targets, rings, identity, Tracing::new(config.traces.clone()), before)
    }

    /// Returns a logger for a writer's message that its destination fails: only to stderr, so that it keeps no other
    /// destination alive.
    fn voice(&self) -> Logger {
        let sinks = self.inner.sinks.iter().filter(|sink| sink.to == LogAddress::Stderr).cloned().collect();
        let Inner { dropped, identity, .. } = &*self.inner;
        let (dropped, identity) = (dropped.clone(), identity.clone());
        let (rings, samplers, backends) = (Vec::new(), Vec::new(), OnceLock::new());
        let tracing = Tracing::default();
        Logger { inner: Arc::new(Inner { sinks, rings, samplers, backends, tracing, dropped, identity }) }
    }

    fn to<'a>(
        targets: impl IntoIterator<Item = &'a LogTarget>,
        rings: Vec<Arc<LogRing>>,
        identity: Identity,
        tracing: Tracing,
        before: Option<&Logger>,
    ) -> Logger {
        let mut sinks: Vec<Arc<Sink>> = Vec::new();
        let known = |to: &LogAddress| before?.inner.sinks.iter().find(|sink| sink.to == *to).cloned();
        let mut samplers: Vec<Sampler> = Vec::new();
        for target in targets {
            if target.sample.is_some() && !samplers.iter().any(|sampler| sampler.at == target.at) {
                samplers.push(Sampler { at: target.at.clone(), seen: AtomicU32::new(0) });
            }
            let is_sink = !matches!(target.to, LogAddress::Ring(_) | LogAddress::Backend(_) | LogAddress::Stream(_));
            if is_sink && !sinks.iter().any(|sink| sink.to == target.to) {
                sinks.push(known(&target.to).unwrap_or_else(|| {
                    Arc::new(Sink {
                        to: target.to.clone(),
                        peer: Peer::of(&target.to),
                        pending: Mutex::default(),
                        sleeping: AtomicBool::new(false),
                        wake: Notify::new(),
                        writing: AtomicBool::new(false),
                        served: AtomicBool::new(false),
                    })
                }));
            }
        }
        let dropped = before.map(|before| before.inner.dropped.clone()).unwrap_or_default();
        let backends = OnceLock::new();
        Logger { inner: Arc::new(Inner { sinks, rings, samplers, backends, tracing, dropped, identity }) }
    }

    /// Sets the backends of messages, once.
    pub(crate) fn set_backends(&self, backends: Vec<LogBackend>) {
        let set = self.inner.backends.set(backends);
        debug_assert!(set.is_ok(), "a logger belongs to one configuration");
    }

    /// Resolves the names of UDP targets and opens the sockets of datagram targets, before the process changes its root
    /// directory or its user or starts other threads, so that `/dev/log` is the machine's. These sockets are used as
    /// long as they work, and are opened again by their path, inside the `chroot`, when their reader has disappeared.
    ///
    /// `Err`: unresolvable names, which prevent the start. `Ok`: warnings about sockets without a reader.
    pub fn open(&self, chroot: Option<&Path>) -> Result<Vec<String>, Vec<String>> {
        let failed: Vec<String> = self.inner.rings.iter().filter_map(|ring| ring.open().err()).collect();
        if !failed.is_empty() {
            return Err(failed);
        }
        // The sockets of destinations that have a writer are already open.
        let fresh = self.inner.sinks.iter().filter(|sink| !sink.served.load(Ordering::Relaxed));
        datagram::open(fresh.filter_map(|sink| sink.peer.as_ref()), chroot)
    }

    /// Queues one line, given without its end, for every target that takes this severity.
    pub fn send(&self, targets: &[LogTarget], severity: Severity, line: &[u8]) {
        self.send_structured(targets, severity, b"", &printable(line));
    }

    /// Like [`send`](Self::send), with structured data for targets of `format rfc5424`.
    fn send_structured(&self, targets: &[LogTarget], severity: Severity, structured: &[u8], line: &[u8]) {
        let mut number = itoa::Buffer::new();
        let meta = Meta {
            time: None,
            host: self.inner.identity.host(),
            tag: None,
            pid: Some(number.format(header::pid()).as_bytes()),
            msgid: None,
            structured: (!structured.is_empty()).then_some(structured),
            has_priority: false,
        };
        let (level, now) = (Some(severity as u8), SystemTime::now());
        self.distribute(targets, &Message { level, facility: None, now, meta, own: true, line });
    }

    /// Queues a message for every target that takes its level.
    fn distribute(&self, targets: &[LogTarget], message: &Message<'_>) {
        // HAProxy lets no message end in a line feed or a zero of its own.
        let line = message.line;
        let end = line.iter().rposition(|byte| !matches!(byte, b'\n' | 0)).map_or(0, |last| last + 1);
        let message = Message { line: &line[..end], ..*message };
        if line.is_empty() && !message.own {
            return;
        }
        for target in targets.iter().filter(|target| message.level.is_none_or(|level| level <= target.max_level)) {
            if !self.is_sampled(target) {
                continue;
            }
            match &target.to {
                LogAddress::Ring(name) => self.send_to_ring(name, target, &message),
                LogAddress::Backend(name) => self.send_to_backend(name, target, &message),
                to => self.send_to_sink(to, target, &message),
            }
        }
    }

    /// Queues a message for the server of a backend that its algorithm chooses.
    fn send_to_backend(&self, name: &str, target: &LogTarget, message: &Message<'_>) {
        let mut backends = self.inner.backends.get().into_iter().flatten();
        match backends.find(|backend| backend.is(name)).and_then(|backend| backend.destination(message.line)) {
            Some(LogPlace::Configured(LogAddress::Ring(name))) => self.send_to_ring(name, target, message),
            Some(LogPlace::Configured(to)) => self.send_to_sink(to, target, message),
            Some(LogPlace::Moved(to)) => {
                let mut line = Vec::new();
                self.write_message(target, message, &mut line);
                if datagram::send_now(to, &line).is_err() {
                    self.inner.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => _ = self.inner.dropped.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Appends a message with its header and its end.
    fn write_message(&self, target: &LogTarget, message: &Message<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        self.header(target, target.format, message, out);
        out.extend_from_slice(message.line);
        // The length is that of the whole message with its end.
        out.truncate(start + target.max_len.saturating_sub(1));
        out.push(b'\n');
    }

    /// Queues a message for a destination that is written to directly.
    fn send_to_sink(&self, to: &LogAddress, target: &LogTarget, message: &Message<'_>) {
        let Some(sink) = self.inner.sinks.iter().find(|sink| sink.to == *to) else { return };
        let mut pending = sink.pending.lock();
        let lines = &mut *pending;
        if lines.bytes.len() + message.line.len() > PENDING_MAX {
            drop(pending);
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.write_message(target, message, &mut lines.bytes);
        lines.ends.push(lines.bytes.len() as u32);
        drop(pending);
        if sink.sleeping.load(Ordering::Relaxed) && sink.sleeping.swap(false, Ordering::Relaxed) {
            sink.wake.notify_one();
        }
    }

    /// Appends a message to a ring, in the ring's format if it has one.
    fn send_to_ring(&self, name: &str, target: &LogTarget, message: &Message<'_>) {
        let Some((to, ring)) = self.inner.rings.iter().find(|ring| ring.is(name)).and_then(|to| Some((to, to.ring()?)))
        else {
            return;
        };
        let format = to.format.unwrap_or(target.format);
        // The end that a stream may need counts.
        let max_len = to.max_len.unwrap_or(usize::MAX).min(target.max_len.saturating_sub(1));
        let mut header = Vec::with_capacity(128);
        self.header(target, format, message, &mut header);
        ring.write(&[&header, message.line], max_len, |text, out| {
            self.header(target, format, &Message { level: Some(Severity::Notice as u8), ..*message }, out);
            out.extend_from_slice(text.as_bytes());
        });
    }

    fn header(&self, target: &LogTarget, format: LogWire, message: &Message<'_>, out: &mut Vec<u8>) {
        let own_tag = || target.tag.as_deref().unwrap_or(&self.inner.identity.tag).as_bytes();
        let meta = Meta { tag: message.meta.tag.or_else(|| message.own.then(own_tag)), ..message.meta };
        let level = message.level.unwrap_or(0).max(target.min_level);
        let facility = message.facility.unwrap_or(u32::from(target.facility));
        header::append(format, (facility, level), message.now, &meta, out);
    }

    /// Returns the rings, those that are always there first.
    pub(crate) fn rings(&self) -> &[Arc<LogRing>] {
        &self.inner.rings
    }

    /// Returns what lines can be written to by a name: the rings and the outputs of the process.
    pub(crate) fn by_name(&self) -> Vec<Arc<dyn LineSink>> {
        let rings = self.rings().iter().map(|ring| ring.clone() as Arc<dyn LineSink>);
        let outputs = [Output::Stdout, Output::Stderr].map(|output| Arc::new(output) as Arc<dyn LineSink>);
        outputs.into_iter().chain(rings).collect()
    }

    /// Returns the memory of those that are open.
    pub(crate) fn open_rings(&self) -> impl Iterator<Item = &Arc<Ring>> {
        self.rings().iter().filter_map(|ring| ring.ring())
    }

    /// Counts a line, and returns whether the target's `sample` includes it.
    fn is_sampled(&self, target: &LogTarget) -> bool {
        let Some(sample) = &target.sample else { return true };
        let Some(sampler) = self.inner.samplers.iter().find(|sampler| sampler.at == target.at) else { return true };
        let next = |seen: u32| Some((seen + 1) % sample.size);
        // The closure always gives a number, so both arms carry the count before this line.
        let (Ok(seen) | Err(seen)) = sampler.seen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        sample.ranges.iter().any(|(low, high)| (*low..=*high).contains(&(seen + 1)))
    }

    /// Writes the line of a stream that starts: the one that HAProxy writes if no format is configured.
    pub fn begun(&self, cx: &mut StreamContext, codes: &ProxyLog) {
        let config = &cx.frontend.config;
        if let Some(has) = config.logging.has_step(LogStep::Accept) {
            if has {
                // HAProxy does not know the request yet.
                let request = std::mem::take(&mut cx.log.request_line);
                let done = cx.log.request_done.take();
                self.line(cx, codes, Timers::of(&cx.log, cx.log.accepted), Origin::Accept);
                (cx.log.request_line, cx.log.request_done) = (request, done);
            }
        } else if codes.line.is_none() && !config.log.is_empty() {
            self.render(&config.log, Severity::Info, cx, |_| {}, |out| alias::connect(cx, out));
        }
    }

    /// Writes the line of a request's head (`log-steps`).
    pub(crate) fn request(&self, cx: &StreamContext, codes: &ProxyLog) {
        if cx.frontend.config.logging.has_step(LogStep::Request) == Some(true) {
            self.line(cx, codes, Timers::of(&cx.log, cx.log.accepted), Origin::Request);
        }
    }

    /// Writes the line of an established connection (`log-steps`, or a TCP stream's early line), with the values valid
    /// at `until`.
    pub(crate) fn connected(&self, cx: &mut StreamContext, codes: &ProxyLog, until: Instant) {
        let config = &cx.frontend.config;
        match config.logging.has_step(LogStep::Connect) {
            Some(true) => self.line(cx, codes, Timers::of(&cx.log, until), Origin::Connect),
            None if config.mode != Mode::Http => self.so_far(cx, codes, until, Origin::Connect),
            Some(false) | None => {}
        }
    }

    /// Writes the line of a response's head (`log-steps`, or a stream's early line), with the values valid at `until`.
    pub(crate) fn answered(&self, cx: &mut StreamContext, codes: &ProxyLog, until: Instant) {
        match cx.frontend.config.logging.has_step(LogStep::Response) {
            Some(true) => self.line(cx, codes, Timers::of(&cx.log, until), Origin::Response),
            None => self.so_far(cx, codes, until, Origin::Response),
            Some(false) => {}
        }
    }

    /// Writes the line of a stream before its end, once, if its format allows that. A line that is wanted only of a
    /// failed stream waits for its end.
    fn so_far(&self, cx: &mut StreamContext, codes: &ProxyLog, until: Instant, origin: Origin) {
        let wanted = !cx.frontend.config.logging.only_errors || cx.has_failed();
        if wanted && codes.is_early() && !std::mem::replace(&mut cx.log.written, true) {
            self.line(cx, codes, Timers::of(&cx.log, until), origin);
        }
    }

    /// Writes the line of `do-log`.
    pub(crate) fn on_rule(&self, cx: &StreamContext, codes: &ProxyLog, hook: Hook) {
        let log = &cx.log;
        let severity = match log.level {
            Some(LogLevel::Silent) => return,
            Some(LogLevel::Level(level)) => Severity::from_level(level),
            None => Severity::Info,
        };
        // As in HAProxy, times that need the end are those of a stream that has just begun.
        let until = if hook.is_early() { Instant::now() } else { log.accepted };
        let times = Timers::of(log, until);
        self.formatted(cx, codes, codes.line.as_ref(), times, (Origin::Rule(hook), severity));
    }

    /// Writes the line of a stream that has ended with these times. Its server slot and its place in the backend are
    /// released before, so that the line does not count the stream itself (`%bc`, `%sc`).
    ///
    /// With `option dontlognull` a session that sent nothing leaves no line.
    pub fn stream(&self, cx: &StreamContext, codes: &ProxyLog, times: Timers) {
        let log = &cx.log;
        let silent = log.request_line.is_empty() && log.bytes_uploaded == 0;
        let unwanted = cx.frontend.config.logging.has_step(LogStep::Close) == Some(false) && !log.no_request;
        if !(log.written || unwanted || cx.frontend.config.options.dontlognull && silent) {
            self.line(cx, codes, times, if log.no_request { Origin::Error } else { Origin::Close });
        }
    }

    /// Writes the line of a connection that ended before its first byte was examined, by an error or because a rule has
    /// rejected it: by `error-log-format`, or else as HAProxy writes it.
    pub fn refused(&self, cx: &StreamContext, codes: &ProxyLog, error: Option<HandshakeError>) {
        let config = &cx.frontend.config;
        if config.log.is_empty() || config.options.dontlognull && error.is_none_or(HandshakeError::is_silence) {
            return;
        }
        if codes.error_line.is_some() {
            return self.line(cx, codes, Timers::of(&cx.log, Instant::now()), Origin::Killed);
        }
        let severity = if config.logging.separate_errors { Severity::Error } else { Severity::Info };
        let view = View::logged(cx, Timers::of(&cx.log, Instant::now()), Origin::Killed);
        self.render_steps(codes, Origin::Killed, severity, &view, |_| {}, |out| alias::refused(cx, error, out));
    }

    fn line(&self, cx: &StreamContext, codes: &ProxyLog, times: Timers, origin: Origin) {
        let config = &cx.frontend.config;
        let code = match &codes.error_line {
            Some(code) if cx.log.no_request => Some(code),
            _ => codes.line.as_ref(),
        };
        let failed = cx.log.no_request || cx.has_failed();
        let severity = match cx.log.level {
            _ if !failed && config.logging.only_errors => return,
            Some(LogLevel::Silent) => return,
            Some(LogLevel::Level(level)) => Severity::from_level(level),
            None if failed && config.logging.separate_errors => Severity::Error,
            None => Severity::Info,
        };
        self.formatted(cx, codes, code, times, (origin, severity));
    }

    /// Renders a line in a format. Without one it is that of profiles; as in HAProxy, an empty line is not sent.
    fn formatted(
        &self,
        cx: &StreamContext,
        codes: &ProxyLog,
        code: Option<&LineCode>,
        times: Timers,
        (origin, severity): (Origin, Severity),
    ) {
        let config = &cx.frontend.config;
        let by_steps = config.logging.has_step(LogStep::Close).is_some() || matches!(origin, Origin::Rule(_));
        if config.log.is_empty() || code.is_none() && !by_steps {
            return;
        }
        let view = View::logged(cx, times, origin);
        let structured = |out: &mut Vec<u8>| {
            if let Some(code) = &codes.structured {
                code.render(&view, out);
            }
        };
        self.render_steps(codes, origin, severity, &view, structured, |out| {
            if let Some(code) = code {
                code.render(&view, out);
            }
        });
    }

    /// Renders a line and its structured data, and queues it, for targets with profiles as these say.
    fn render_steps(
        &self,
        codes: &ProxyLog,
        origin: Origin,
        severity: Severity,
        view: &View<'_>,
        structured: impl FnOnce(&mut Vec<u8>),
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let (cx, targets) = (view.cx, &view.cx.frontend.config.log);
        if targets.iter().all(|target| target.profile.is_none()) {
            return self.render(targets, severity, cx, structured, write);
        }
        let (mut data, mut line) = (Vec::new(), Vec::new());
        structured(&mut data);
        write(&mut line);
        cx.frontend.count_line();
        for target in targets {
            let only = std::slice::from_ref(target);
            let Some(step) = codes.step(target, origin.step()) else {
                if !line.is_empty() {
                    self.send_structured(only, severity, &data, &line);
                }
                continue;
            };
            let render = |code: &Option<LineCode>, default: &[u8]| match code {
                Some(code) => {
                    let mut out = Vec::new();
                    code.render(view, &mut out);
                    out
                }
                None => default.to_vec(),
            };
            let (own, data) = (render(&step.line, &line), render(&step.structured, &data));
            // As in HAProxy, an empty line is not sent.
            if !step.drop && !own.is_empty() {
                self.send_structured(only, severity, &data, &own);
            }
        }
    }

    /// Renders a line and its structured data into this thread's buffers, and queues it.
    fn render(
        &self,
        targets: &[LogTarget],
        severity: Severity,
        cx: &StreamContext,
        structured: impl FnOnce(&mut Vec<u8>),
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        BUFFERS.with_borrow_mut(|(data, line)| {
            data.clear();
            line.clear();
            structured(data);
            write(line);
            cx.frontend.count_line();
            if !line.is_empty() {
                self.send_structured(targets, severity, data, line);
            }
        });
    }

    /// Writes a message about the logs themselves to stderr.
    fn say(&self, text: &str) {
        self.send(&[LogTarget::raw(LogAddress::Stderr)], Severity::Alert, text.as_bytes());
    }

    /// Returns the number of lines that were dropped because a destination did not keep up or could not be written.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Returns the data queued for the first destination.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> String {
        String::from_utf8_lossy(&self.inner.sinks[0].pending.lock().bytes).into_owned()
    }

    /// Returns whether no data is queued or being written. Data is marked as being written under the lock under which
    /// it leaves the queue.
    pub fn is_empty(&self) -> bool {
        self.inner.sinks.iter().all(|sink| sink.pending.lock().ends.is_empty() && !sink.writing.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_config::model::LogSample;

    use super::*;

    fn target(to: LogAddress, max_len: usize) -> LogTarget {
        LogTarget { max_len, facility: 16, max_level: 5, ..LogTarget::raw(to) }
    }

    #[test]
    fn lines_are_filtered_cut_and_dropped_when_full() {
        let targets = [target(LogAddress::Stdout, 8), target(LogAddress::Stderr, 8)];
        let logger = Logger::to(&targets, Vec::new(), Identity::default(), Tracing::default(), None);
        logger.send(&targets, Severity::Info, b"too detailed");
        assert!(logger.is_empty());
        logger.send(&targets, Severity::Notice, b"0123456789");
        logger.send(&targets, Severity::Notice, b"a\nb\n\0\n");
        assert_eq!(logger.pending(), "0123456\na#0Ab\n");
        assert_eq!(logger.inner.sinks[0].pending.lock().ends, [8, 14]);
        let wide = [target(LogAddress::Stdout, PENDING_MAX)];
        logger.send(&wide, Severity::Alert, &vec![b'x'; PENDING_MAX - 12]);
        logger.send(&wide, Severity::Alert, b"one too many");
        assert_eq!(logger.dropped(), 1);
    }

    #[test]
    fn a_sample_is_shared_by_the_copies_of_its_line() {
        let sample = LogSample { ranges: vec![(1, 1), (3, 4)], size: 5 };
        let one = LogTarget { sample: Some(sample), ..target(LogAddress::Stdout, 80) };
        let copy = LogTarget { tag: Some("other".into()), ..one.clone() };
        let logger = Logger::to([&one, &copy], Vec::new(), Identity::default(), Tracing::default(), None);
        for number in 1..=12 {
            let target = if number % 2 == 0 { &copy } else { &one };
            logger.send(std::slice::from_ref(target), Severity::Alert, number.to_string().as_bytes());
        }
        assert_eq!(logger.pending(), "1\n3\n4\n6\n8\n9\n11\n");
    }
}
