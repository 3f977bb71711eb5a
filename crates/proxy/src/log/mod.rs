//! Logs: lines are rendered on the worker and written by the control thread.
//!
//! A line is rendered once into a buffer that its thread reuses, gets each target's header, and is appended to the
//! buffer of its destination ([`Logger::send`]); [`write_logs`] takes whole buffers and writes them. So a request pays
//! for two copies of its line and a short lock, never for a system call, and a destination that doesn't read delays
//! nobody: beyond [`PENDING_MAX`] bytes lines are dropped and counted (`DroppedLogs` of `show info`).
//!
//! The lines themselves are HAProxy's, byte for byte (configuration manual 8.2), see [`mod@line`]; the formats of the wire
//! are in [`header`].

pub mod header;
pub mod line;
mod writer;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use sluicegate_config::Config;
use sluicegate_config::model::{LogAddress, LogLine, LogTarget};
use tokio::sync::Notify;

use crate::process::Process;
use crate::stream::StreamContext;
pub use header::Identity;
pub use writer::write_logs;

/// Bytes that wait for one destination; what comes beyond is dropped.
pub const PENDING_MAX: usize = 1 << 20;

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
    /// The severity of a syslog level; what lies beyond is debug.
    pub fn from_level(level: u8) -> Severity {
        use Severity::{Alert, Critical, Debug, Emergency, Error, Info, Notice, Warning};
        [Emergency, Alert, Critical, Error, Warning, Notice, Info].get(usize::from(level)).copied().unwrap_or(Debug)
    }

    /// The word that HAProxy prints for it.
    pub fn word(self) -> &'static str {
        ["EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"][self as usize]
    }
}

/// One destination: the lines that wait for it.
#[derive(Debug)]
struct Sink {
    to: LogAddress,
    pending: Mutex<Vec<u8>>,
    /// The writer sleeps; who appends wakes it.
    sleeping: AtomicBool,
    wake: Notify,
    /// The writer holds lines that it has not written yet.
    writing: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    sinks: Vec<Sink>,
    dropped: AtomicU64,
    identity: Identity,
}

/// The way of log lines to the control thread. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Logger {
    inner: Arc<Inner>,
}

impl Default for Logger {
    /// A logger without destinations.
    fn default() -> Logger {
        Logger::to([], Identity::default())
    }
}

thread_local! {
    /// The line that this thread renders.
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Logger {
    /// A logger for every destination that `config` names, and for stderr, where scripts log without one. `identity` is
    /// what headers say of this process.
    pub fn new(config: &Config, identity: Identity) -> Logger {
        let proxies = config.proxies.iter().flat_map(|proxy| &proxy.log);
        let named = config.global.log.iter().chain(proxies).map(|target| target.to.clone());
        Logger::to(named.chain([LogAddress::Stderr]), identity)
    }

    fn to(destinations: impl IntoIterator<Item = LogAddress>, identity: Identity) -> Logger {
        let mut sinks: Vec<Sink> = Vec::new();
        for to in destinations {
            // Datagram targets need a socket of their own; configurations that name one are told so by check.
            let written_here = matches!(to, LogAddress::Stdout | LogAddress::Stderr | LogAddress::Fd(_));
            if written_here && !sinks.iter().any(|sink| sink.to == to) {
                sinks.push(Sink {
                    to,
                    pending: Mutex::default(),
                    sleeping: AtomicBool::new(false),
                    wake: Notify::new(),
                    writing: AtomicBool::new(false),
                });
            }
        }
        Logger { inner: Arc::new(Inner { sinks, dropped: AtomicU64::new(0), identity }) }
    }

    /// Queues one line, given without its end, for every target that takes this severity.
    pub fn send(&self, targets: &[LogTarget], severity: Severity, line: &[u8]) {
        let now = SystemTime::now();
        let level = severity as u8;
        for target in targets.iter().filter(|target| level <= target.max_level) {
            let Some(sink) = self.inner.sinks.iter().find(|sink| sink.to == target.to) else { continue };
            let mut pending = sink.pending.lock();
            if pending.len() + line.len() > PENDING_MAX {
                drop(pending);
                self.inner.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let start = pending.len();
            header::append(target, level.max(target.min_level), now, &self.inner.identity, &mut pending);
            pending.extend_from_slice(line);
            // The length is that of the whole message with its end.
            pending.truncate(start + target.max_len.saturating_sub(1));
            pending.push(b'\n');
            drop(pending);
            if sink.sleeping.load(Ordering::Relaxed) && sink.sleeping.swap(false, Ordering::Relaxed) {
                sink.wake.notify_one();
            }
        }
    }

    /// Writes the line that `option httplog`, `option tcplog` or neither asks for, for a stream that has ended; its
    /// server slot and backend stay are given back before, so that they don't count themselves (`%bc`, `%sc`).
    ///
    /// With `option dontlognull` a session that sent nothing leaves no line.
    pub fn stream(&self, process: &Process, cx: &StreamContext) {
        let config = &cx.frontend.config;
        if config.log.is_empty() {
            return;
        }
        let log = &cx.log;
        if config.options.dontlognull && log.request_line.is_empty() && log.bytes_uploaded == 0 {
            return;
        }
        let ended = Instant::now();
        self.render(&config.log, Severity::Info, |out| match config.log_line {
            LogLine::Http => line::http(cx, line::Counts::of(process, cx), ended, out),
            LogLine::Tcp => line::tcp(cx, line::Counts::of(process, cx), ended, out),
            LogLine::Default => line::connect(cx, out),
        });
    }

    /// Renders a line into this thread's buffer and queues it.
    fn render(&self, targets: &[LogTarget], severity: Severity, write: impl FnOnce(&mut Vec<u8>)) {
        LINE.with_borrow_mut(|line| {
            line.clear();
            write(line);
            self.send(targets, severity, line);
        });
    }

    /// Lines that were dropped because a destination did not keep up or could not be written.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// What waits to be written to the first destination.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> String {
        String::from_utf8_lossy(&self.inner.sinks[0].pending.lock()).into_owned()
    }

    /// Nothing waits to be written. The lock makes what was taken from a buffer visible as being written.
    pub fn is_empty(&self) -> bool {
        self.inner.sinks.iter().all(|sink| sink.pending.lock().is_empty() && !sink.writing.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_config::model::LogWire;

    use super::*;

    fn target(to: LogAddress, max_len: usize) -> LogTarget {
        LogTarget { to, format: LogWire::Raw, max_len, facility: 16, max_level: 5, min_level: 0 }
    }

    #[test]
    fn lines_are_filtered_cut_and_dropped_when_full() {
        let logger = Logger::to([LogAddress::Stdout], Identity::default());
        let targets = [target(LogAddress::Stdout, 8), target(LogAddress::Stderr, 8)];
        logger.send(&targets, Severity::Info, b"too detailed");
        assert!(logger.is_empty());
        logger.send(&targets, Severity::Notice, b"0123456789");
        assert_eq!(*logger.inner.sinks[0].pending.lock(), b"0123456\n");
        let wide = [target(LogAddress::Stdout, PENDING_MAX)];
        logger.send(&wide, Severity::Alert, &vec![b'x'; PENDING_MAX - 8]);
        logger.send(&wide, Severity::Alert, b"one too many");
        assert_eq!(logger.dropped(), 1);
    }
}
