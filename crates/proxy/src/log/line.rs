//! The lines of streams: formats compiled once per configuration, and the times they print.
//!
//! `option httplog` and its kin are formats like any other, so there is one way to a line. Compiled, a format is a
//! flat list of texts, aliases and expressions; rendering it allocates nothing but what its expressions do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluicegate_config::model::{FormatFlags, FormatPart, LogAlias, LogFormat, Logging, Mode, Position};

use super::alias::{self, View};
use super::encode;
use crate::engines::Engines;
use crate::errors::CompileError;
use crate::sample::{ExpressionCode, FetchScope, FormatMode, append_value};
use crate::stream::{LogRecord, StreamContext};

/// The times of a stream, whole milliseconds; -1 for a phase that was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// `%Ti`: from the connection, or the end of the request before, to the first byte.
    pub idle: i64,
    /// `%TR`: the request's head.
    pub request: i64,
    /// `%Tq`: idle and request.
    pub request_total: i64,
    /// `%Tw`: in queues.
    pub queue: i64,
    /// `%Tc`: connecting.
    pub connect: i64,
    /// `%Tr`: waiting for the response's head.
    pub response: i64,
    /// `%Td`: the response's body.
    pub data: i64,
    /// `%Ta`: the whole request.
    pub active: i64,
    /// `%Tu`: the whole as its user knows it.
    pub user: i64,
    /// `%Tt`: the whole session.
    pub total: i64,
}

impl Timers {
    /// The times of a stream that ended at `ended`. Each mark is cut to milliseconds before they are subtracted, so the
    /// phases never add up to more than the whole.
    pub fn of(log: &LogRecord, ended: Instant) -> Timers {
        let since = |at: Instant, start: Instant| whole_ms(at.saturating_duration_since(start));
        let mark = |at: Instant| since(at, log.request_started);
        let between = |from: Option<i64>, to: Option<i64>| match (from, to) {
            (Some(from), Some(to)) => (to - from).max(0),
            _ => -1,
        };
        let idle = since(log.request_started, log.accepted);
        let request = log.request_done.map(mark);
        let queue = log.queue_done.map(mark);
        let connect = log.connect_done.map(mark);
        let response = log.response_started.map(mark);
        let active = mark(ended);
        // In TCP there is neither a request nor a response to wait for.
        let tcp = request.is_none() && log.request_line.is_empty() && connect.is_some();
        Timers {
            idle,
            request: request.unwrap_or(-1),
            request_total: request.map_or(-1, |request| idle + request),
            queue: between(request.or(Some(0)).filter(|_| queue.is_some()), queue),
            connect: between(queue, connect),
            response: between(connect, response),
            data: between(if tcp { connect } else { response }, Some(active)),
            active,
            user: active,
            total: since(ended, log.accepted),
        }
    }
}

/// Milliseconds without a division of 128 bits.
fn whole_ms(duration: Duration) -> i64 {
    duration.as_secs() as i64 * 1000 + i64::from(duration.subsec_millis())
}

/// A part of a compiled format.
enum Part {
    Text(Box<[u8]>),
    Blank,
    Alias(LogAlias, FormatFlags),
    Expr(ExpressionCode, FormatFlags),
}

/// A compiled format.
pub struct LineCode {
    parts: Box<[Part]>,
    mode: FormatMode,
}

impl LineCode {
    /// Compiles a format; every expression that can't be is added to `errors`.
    pub(crate) fn compile(
        format: &LogFormat,
        mode: FormatMode,
        engines: &Engines,
        scope: FetchScope<'_>,
        errors: &mut Vec<CompileError>,
    ) -> LineCode {
        let mut fail = |at: &Position, message: String| errors.push(CompileError { at: at.clone(), message });
        let mut parts = Vec::with_capacity(format.parts.len());
        for part in &*encode::parts(format, mode) {
            parts.push(match part {
                FormatPart::Name(_) => continue,
                FormatPart::Text(text) => Part::Text(text.as_slice().into()),
                FormatPart::Blank => Part::Blank,
                FormatPart::Alias(alias, flags) => Part::Alias(*alias, *flags),
                FormatPart::Expr(expr, flags) => match ExpressionCode::compile(expr, engines, scope) {
                    Ok(code) => Part::Expr(code, *flags),
                    Err(message) => {
                        fail(&expr.at, message);
                        continue;
                    }
                },
            });
        }
        LineCode { parts: parts.into(), mode }
    }

    fn uses(&self, wanted: impl Fn(LogAlias) -> bool) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Alias(alias, _) if wanted(*alias)))
    }

    /// Appends the line.
    pub fn render(&self, view: &View<'_>, out: &mut Vec<u8>) {
        // A blank is printed once, however many items between two of them print nothing, and not at the start.
        let mut blank = true;
        for part in &self.parts {
            let before = out.len();
            match part {
                Part::Blank => {
                    if !std::mem::replace(&mut blank, true) {
                        out.push(b' ');
                    }
                    continue;
                }
                // Most texts are one separator, which is not worth a call.
                Part::Text(text) => match &**text {
                    [byte] => out.push(*byte),
                    text => out.extend_from_slice(text),
                },
                Part::Alias(alias, flags) => {
                    alias::append(*alias, *flags, self.mode, view, out);
                    // A list with slots counts as text in HAProxy, even where all of them are empty; so does a query,
                    // except in log lines since 3.0.
                    blank &= !alias::has_slots(*alias, view)
                        && (self.mode == FormatMode::Log || *alias != LogAlias::HttpQuery);
                }
                Part::Expr(code, flags) => {
                    append_value(code.value(view.cx).as_ref(), *flags, self.mode, out);
                    blank = false;
                }
            }
            blank = blank && out.len() == before;
        }
    }
}

impl std::fmt::Debug for LineCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineCode").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

/// What a frontend logs, compiled.
#[derive(Default)]
pub struct ProxyLog {
    /// `None`: `Connect from …`.
    pub(super) line: Option<LineCode>,
    pub(super) error_line: Option<LineCode>,
    pub(super) structured: Option<LineCode>,
    unique_id: Option<LineCode>,
    /// The addresses of server connections are looked up.
    pub(crate) wants_server_addresses: bool,
    /// Some expression asks for the server's connection, which is gone when the line is written.
    pub(crate) wants_server_connection: bool,
    /// Some line prints the count of lines, so they are counted.
    counts_lines: bool,
    lines: AtomicU64,
}

impl ProxyLog {
    /// Compiles a proxy's formats, or says which expressions can't be.
    pub fn compile(logging: &Logging, engines: &Engines, scope: FetchScope<'_>) -> Result<ProxyLog, Vec<CompileError>> {
        let mut errors = Vec::new();
        let mut code = |format: Option<&LogFormat>, mode| {
            format.map(|format| LineCode::compile(format, mode, engines, scope, &mut errors))
        };
        let mut log = ProxyLog {
            line: code(logging.line.as_ref().map(|line| &*line.format), FormatMode::Log),
            error_line: code(logging.error_line.as_deref(), FormatMode::Log),
            structured: code(logging.structured.as_deref(), FormatMode::Log),
            unique_id: code(logging.unique_id.as_deref(), FormatMode::Http),
            ..ProxyLog::default()
        };
        let all = [&log.line, &log.error_line, &log.structured];
        let uses = |wanted: fn(LogAlias) -> bool| all.iter().copied().flatten().any(|code| code.uses(wanted));
        let (addresses, counter) = (uses(alias::wants_server_addresses), uses(|alias| alias == LogAlias::LogCounter));
        log.wants_server_addresses = addresses;
        log.counts_lines = counter;
        let line = logging.line.as_ref().map(|line| &*line.format);
        let formats = [line, logging.error_line.as_deref(), logging.structured.as_deref()];
        let mut parts = formats.into_iter().flatten().flat_map(|format| &format.parts);
        log.wants_server_connection = parts.any(|part| match part {
            FormatPart::Expr(expression, _) => expression.fetch.asks_server_connection(),
            _ => false,
        });
        if errors.is_empty() { Ok(log) } else { Err(errors) }
    }

    /// Lines that were logged so far, where any line prints that.
    pub(super) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    pub(super) fn count_line(&self) {
        if self.counts_lines {
            self.lines.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The stream's unique id by `unique-id-format` of its frontend; made when it is first asked for, and kept. While it is
/// made, what asks for it finds it empty, as in HAProxy.
pub fn unique_id(cx: &StreamContext) -> Option<&[u8]> {
    let code = cx.frontend.log.unique_id.as_ref()?;
    if let Some(id) = cx.unique_id.get() {
        return Some(id);
    }
    if cx.making_unique_id.replace(true) {
        return Some(b"");
    }
    let mut id = Vec::new();
    code.render(&View::running(cx), &mut id);
    id.truncate(UNIQUE_ID_MAX);
    cx.making_unique_id.set(false);
    Some(cx.unique_id.get_or_init(|| id.into()))
}

/// The longest unique id, bytes (HAProxy's UNIQUEID_LEN without its end).
const UNIQUE_ID_MAX: usize = 127;

/// What went wrong enough for `option dontlog-normal` and `log-separate-errors`.
pub(crate) fn failed(cx: &StreamContext) -> bool {
    let log = &cx.log;
    let http_error = cx.frontend.config.mode == Mode::Http && log.status >= 500;
    log.redispatched || log.retries > 0 || !matches!(log.ending.who, b'-' | b'L') || http_error
}
