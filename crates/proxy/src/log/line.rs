//! The lines of `option httplog`, `option tcplog` and of neither (HAProxy configuration manual 8.2.1 to 8.2.3).

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::Mode;

use super::header::append_date;
use crate::process::Process;
use crate::stream::{LogRecord, StreamContext};

/// The longest request line that is logged, bytes (HAProxy's `tune.http.logurilen`).
pub const REQUEST_LINE_MAX: usize = 1023;

/// `%ac/%fc/%bc/%sc`: concurrent connections of the process, the frontend, the backend and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The process.
    pub process: u32,
    /// The frontend.
    pub frontend: u32,
    /// The backend.
    pub backend: u32,
    /// The server.
    pub server: u32,
}

impl Counts {
    /// The counts as they are now.
    pub fn of(process: &Process, cx: &StreamContext) -> Counts {
        let scur = |figures: &crate::counters::Figures| figures.scur.load(Ordering::Relaxed);
        Counts {
            process: process.sessions.current(),
            frontend: cx.frontend.frontend.sessions.current(),
            backend: cx.backend.as_ref().map_or(0, |backend| scur(&backend.backend.figures)),
            server: cx.log.server.as_ref().map_or(0, |server| scur(&server.shared.figures)),
        }
    }
}

/// The times of a stream, whole milliseconds; -1 for a phase that was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// `%TR`: the request's head.
    pub request: i64,
    /// `%Tw`: in queues.
    pub queue: i64,
    /// `%Tc`: connecting.
    pub connect: i64,
    /// `%Tr`: waiting for the response's head.
    pub response: i64,
    /// `%Ta`: the whole request.
    pub active: i64,
    /// `%Tt`: the whole session.
    pub total: i64,
}

impl Timers {
    /// The times of a stream that ended at `ended`. Each mark is cut to milliseconds before they are subtracted, so the
    /// phases never add up to more than the whole.
    pub fn of(log: &LogRecord, ended: Instant) -> Timers {
        let mark = |at: Instant| at.saturating_duration_since(log.request_started).as_millis() as i64;
        let between = |from: Option<i64>, to: Option<i64>| match (from, to) {
            (Some(from), Some(to)) => (to - from).max(0),
            _ => -1,
        };
        let request = log.request_done.map(mark);
        let queue = log.queue_done.map(mark);
        let connect = log.connect_done.map(mark);
        Timers {
            request: request.unwrap_or(-1),
            // In TCP there is no request to wait for.
            queue: between(request.or(Some(0)).filter(|_| queue.is_some()), queue),
            connect: between(queue, connect),
            response: between(connect, log.response_started.map(mark)),
            active: mark(ended),
            total: ended.saturating_duration_since(log.accepted).as_millis() as i64,
        }
    }
}

fn number(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Numbers joined by slashes.
fn numbers(out: &mut Vec<u8>, values: &[i64]) {
    for (place, value) in values.iter().enumerate() {
        if place > 0 {
            out.push(b'/');
        }
        number(out, *value);
    }
}

fn address(out: &mut Vec<u8>, address: Option<SocketAddr>) {
    match address {
        Some(SocketAddr::V4(address)) => {
            for (place, octet) in address.ip().octets().into_iter().enumerate() {
                if place > 0 {
                    out.push(b'.');
                }
                number(out, octet);
            }
            out.push(b':');
            number(out, address.port());
        }
        // Writing to a vector can't fail.
        Some(SocketAddr::V6(address)) => drop(write!(out, "{}:{}", address.ip(), address.port())),
        None => out.extend_from_slice(b"unix:1"),
    }
}

/// `%ft %b/%s`.
fn names(cx: &StreamContext, out: &mut Vec<u8>) {
    let frontend = cx.frontend.config.name.as_bytes();
    out.extend_from_slice(frontend);
    out.push(b' ');
    out.extend_from_slice(cx.backend.as_ref().map_or(frontend, |backend| backend.config.name.as_bytes()));
    out.push(b'/');
    let applet = cx.log.applet.as_deref().unwrap_or("<NOSRV>");
    out.extend_from_slice(cx.log.server.as_ref().map_or(applet, |server| server.name()).as_bytes());
}

/// `%ac/%fc/%bc/%sc/%rc %sq/%bq`.
fn counts_and_queues(log: &LogRecord, counts: Counts, out: &mut Vec<u8>) {
    for count in [counts.process, counts.frontend, counts.backend, counts.server] {
        number(out, count);
        out.push(b'/');
    }
    if log.redispatched {
        out.push(b'+');
    }
    number(out, log.retries);
    out.push(b' ');
    numbers(out, &[i64::from(log.server_queue), i64::from(log.backend_queue)]);
}

/// What would break the quotes or the line is written as `#XX`.
fn request_line(line: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if line.is_empty() {
        out.extend_from_slice(b"<BADREQ>");
        return;
    }
    for &byte in &line[..line.len().min(REQUEST_LINE_MAX)] {
        match byte {
            b'"' | b'#' | 0..=31 | 127.. => {
                out.extend_from_slice(&[b'#', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
}

/// `option httplog`.
pub fn http(cx: &StreamContext, counts: Counts, ended: Instant, out: &mut Vec<u8>) {
    let log = &cx.log;
    let timers = Timers::of(log, ended);
    address(out, cx.source);
    out.extend_from_slice(b" [");
    append_date(log.request_started_at, out);
    out.extend_from_slice(b"] ");
    names(cx, out);
    out.push(b' ');
    numbers(out, &[timers.request, timers.queue, timers.connect, timers.response, timers.active]);
    out.push(b' ');
    number(out, log.status);
    out.push(b' ');
    number(out, log.bytes_read);
    out.extend_from_slice(b" - - ");
    out.extend_from_slice(&[log.ending.who, log.ending.phase]);
    out.extend_from_slice(b"-- ");
    counts_and_queues(log, counts, out);
    out.extend_from_slice(b" \"");
    request_line(&log.request_line, out);
    out.push(b'"');
}

/// `option tcplog`.
pub fn tcp(cx: &StreamContext, counts: Counts, ended: Instant, out: &mut Vec<u8>) {
    let log = &cx.log;
    let timers = Timers::of(log, ended);
    address(out, cx.source);
    out.extend_from_slice(b" [");
    append_date(log.accepted_at, out);
    out.extend_from_slice(b"] ");
    names(cx, out);
    out.push(b' ');
    numbers(out, &[timers.queue, timers.connect, timers.total]);
    out.push(b' ');
    number(out, log.bytes_read);
    out.push(b' ');
    out.extend_from_slice(&[log.ending.who, log.ending.phase, b' ']);
    counts_and_queues(log, counts, out);
}

/// Neither: who connected to what.
pub fn connect(cx: &StreamContext, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Connect from ");
    address(out, cx.source);
    out.extend_from_slice(b" to ");
    address(out, cx.destination);
    out.extend_from_slice(b" (");
    out.extend_from_slice(cx.frontend.config.name.as_bytes());
    out.extend_from_slice(if cx.frontend.config.mode == Mode::Http { b"/HTTP)" } else { b"/TCP)" });
}
