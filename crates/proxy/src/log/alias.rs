//! The values of a log-format's `%xx` aliases (HAProxy configuration manual 8.2.6), for log lines and for rules.
//!
//! Each value is computed from the stream's record. The only system call is the reading of the clock, when a format
//! needs the current time of a stream that has not ended. Parts of a request or a response printed between quotes or
//! braces are encoded as `#` and two digits, so that no peer can forge a field or a line.

use std::cell::OnceCell;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sluicegate_config::model::{Capture, FormatFlags, LogAlias, LogStep, Mode, ServerAddress};

use super::capture::Slots;
use super::encode;
use super::header::{self, host_name};

use crate::counters::Figures;
use crate::date::{Clock, append_date};
use crate::hook::Hook;
use crate::proxied::HandshakeError;
use crate::sample::{FormatMode, append_hex, append_int, append_ip, append_text};
use crate::stream::{ClientTls, LogRecord, StreamContext, Timers};

/// The text in place of a request line that was not received.
const NO_REQUEST: &[u8] = b"<BADREQ>";

/// The stream and its times, from which a format's values are computed.
pub struct View<'a> {
    /// The stream.
    pub(super) cx: &'a StreamContext,
    /// All times of a line refer to the same moment: the end of the stream, or the first use of a time in a stream that
    /// is still running.
    timers: OnceCell<Timers>,
    origin: Origin,
}

/// The reason for writing a line (`%OG`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Not a log line.
    Unspecific,
    /// A connection that ended before its first byte was examined.
    Killed,
    /// A session without a request.
    Error,
    /// The begin of a stream, by `log-steps`.
    Accept,
    /// A request, by `log-steps`.
    Request,
    /// A connection to a server, by `option logasap` of TCP or `log-steps`.
    Connect,
    /// A response, by `option logasap` of HTTP or `log-steps`.
    Response,
    /// The stream's end.
    Close,
    /// `do-log`.
    Rule(Hook),
}

impl Origin {
    /// Returns the step of profiles.
    pub(super) fn step(self) -> LogStep {
        match self {
            Origin::Accept => LogStep::Accept,
            Origin::Request => LogStep::Request,
            Origin::Connect => LogStep::Connect,
            Origin::Response => LogStep::Response,
            Origin::Close => LogStep::Close,
            Origin::Killed | Origin::Error => LogStep::Error,
            Origin::Unspecific => LogStep::Any,
            Origin::Rule(hook) => match hook {
                Hook::TcpRequestConnection => LogStep::TcpRequestConnection,
                Hook::TcpRequestSession => LogStep::TcpRequestSession,
                Hook::TcpRequestContent => LogStep::TcpRequestContent,
                Hook::TcpResponseContent => LogStep::TcpResponseContent,
                Hook::HttpRequest => LogStep::HttpRequest,
                Hook::HttpResponse => LogStep::HttpResponse,
                Hook::HttpAfterResponse => LogStep::HttpAfterResponse,
            },
        }
    }

    fn word(self) -> &'static str {
        match self {
            Origin::Unspecific => "unspec",
            Origin::Killed => "sess_killed",
            Origin::Error => "sess_error",
            Origin::Accept => "txn_accept",
            Origin::Request => "txn_request",
            Origin::Connect => "txn_connect",
            Origin::Response => "txn_response",
            Origin::Close => "txn_close",
            Origin::Rule(hook) => match hook {
                Hook::TcpRequestConnection => "tcp-req-conn",
                Hook::TcpRequestSession => "tcp-req-sess",
                Hook::TcpRequestContent => "tcp-req-cont",
                Hook::TcpResponseContent => "tcp-res-cont",
                Hook::HttpRequest => "http-req",
                Hook::HttpResponse => "http-res",
                Hook::HttpAfterResponse => "http-after-res",
            },
        }
    }
}

impl<'a> View<'a> {
    /// Returns the view of a stream that is still running.
    pub fn running(cx: &'a StreamContext) -> View<'a> {
        View { cx, timers: OnceCell::new(), origin: Origin::Unspecific }
    }

    /// Returns the view of a stream that has ended with these times, or whose line is written as if it had.
    pub(super) fn logged(cx: &'a StreamContext, times: Timers, origin: Origin) -> View<'a> {
        View { cx, timers: OnceCell::from(times), origin }
    }

    fn log(&self) -> &'a LogRecord {
        &self.cx.log
    }

    fn timers(&self) -> &Timers {
        self.timers.get_or_init(|| Timers::of(self.log(), Instant::now()))
    }
}

/// Which bytes of a text from a peer are encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// The bytes that end a quoted word or a line.
    Line,
    /// Also the bytes that end a capture.
    Capture,
}

/// Appends what `alias` prints.
pub fn append(alias: LogAlias, flags: FormatFlags, mode: FormatMode, view: &View<'_>, out: &mut Vec<u8>) {
    append_here(alias, flags, mode, view, out);
}

/// The same as a part of its caller, for log lines: most of some 30 values are numbers of one digit, for which a call costs
/// more than the number.
#[inline(always)]
pub(super) fn append_here(alias: LogAlias, flags: FormatFlags, mode: FormatMode, view: &View<'_>, out: &mut Vec<u8>) {
    if let Some(encoding) = flags.encoding
        && mode != FormatMode::Http
    {
        return encode::append_alias(alias, encoding, flags, view, out);
    }
    let (cx, log) = (view.cx, view.log());
    let frontend = &cx.frontend;
    let name = |name: &str, out: &mut Vec<u8>| append_text(name.as_bytes(), flags, mode, out);
    let request =
        |part: Option<&[u8]>, out: &mut Vec<u8>| encoded(part.unwrap_or(NO_REQUEST), flags, Escapes::Line, out);
    // While a stream runs, the addresses come from the connection itself; a log line may be written after the
    // connection is closed and uses the recorded ones.
    let near = || log.server_addresses.0.or_else(|| cx.sockets.server_local());
    let far = || log.server_addresses.1.or_else(|| cx.sockets.server_peer());
    match alias {
        LogAlias::Ci => client_address(cx.source, flags, mode, out),
        LogAlias::Cp => client_port(cx.source, flags, out),
        LogAlias::Fi | LogAlias::Fp if cx.destination.is_none() && is_passed(cx) => append_text(b"", flags, mode, out),
        LogAlias::Fi => client_address(cx.destination, flags, mode, out),
        LogAlias::Fp => client_port(cx.destination, flags, out),
        LogAlias::Bi | LogAlias::Si if behind(log) == Some(Behind::Unix) => name("unix", out),
        LogAlias::Bp if behind(log) == Some(Behind::Unix) => number(0, 4, flags, out),
        LogAlias::Sp if behind(log).is_some() => number(0, 4, flags, out),
        LogAlias::Bi => server_address(near(), flags, mode, out),
        LogAlias::Bp => server_port(near(), flags, mode, out),
        LogAlias::Si => server_address(far(), flags, mode, out),
        LogAlias::Sp => server_port(far(), flags, mode, out),
        LogAlias::T => append_date(log.accepted_at(), Clock::LocalMilliseconds, out),
        LogAlias::DateGmt => append_date(log.accepted_at(), Clock::Utc, out),
        LogAlias::DateLocal => append_date(log.accepted_at(), Clock::Local, out),
        LogAlias::Tr => append_date(log.request_started_at, Clock::LocalMilliseconds, out),
        LogAlias::TrGmt => append_date(log.request_started_at, Clock::Utc, out),
        LogAlias::TrLocal => append_date(log.request_started_at, Clock::Local, out),
        LogAlias::Timestamp => number(since_1970(log.accepted_at()).as_secs() as i64, 4, flags, out),
        LogAlias::Milliseconds => {
            let milliseconds = since_1970(log.accepted_at()).subsec_millis();
            // Writing to a vector can't fail.
            let _ = if flags.hex { write!(out, "{milliseconds:02X}") } else { write!(out, "{milliseconds:03}") };
        }
        LogAlias::F => name(&frontend.config.name, out),
        LogAlias::Ft => {
            name(&frontend.config.name, out);
            if cx.client.listener.as_ref().is_some_and(|listener| listener.tls().is_some()) {
                out.push(b'~');
            }
        }
        LogAlias::B => name(&cx.backend.as_ref().unwrap_or(frontend).config.name, out),
        LogAlias::S => match (&log.server, &log.applet) {
            (Some(server), _) => name(server.name(), out),
            (None, Some(applet)) => name(applet, out),
            (None, None) => name("<NOSRV>", out),
        },
        LogAlias::TimerTR => append_int(out, view.timers().request),
        LogAlias::TimerTw => append_int(out, view.timers().queue),
        LogAlias::TimerTc => append_int(out, view.timers().connect),
        LogAlias::TimerTr => append_int(out, view.timers().response),
        LogAlias::TimerTh => append_int(out, view.timers().handshake),
        LogAlias::TimerTi => append_int(out, view.timers().idle),
        LogAlias::TimerTq => append_int(out, view.timers().request_total),
        LogAlias::TimerTd => append_int(out, view.timers().data),
        LogAlias::TimerTa => growing(view, view.timers().active, out),
        LogAlias::TimerTu => growing(view, view.timers().user, out),
        LogAlias::TimerTt => growing(view, view.timers().total, out),
        LogAlias::Status => append_int(out, i64::from(log.status)),
        LogAlias::BytesRead => growing(view, log.bytes_read as i64, out),
        LogAlias::BytesUploaded if log.no_request => out.push(b'0'),
        LogAlias::BytesUploaded => append_int(out, log.bytes_uploaded as i64),
        LogAlias::CaptureReqCookie => append_text(log.captures.cookies.get(0).unwrap_or(b""), flags, mode, out),
        LogAlias::CaptureResCookie => append_text(log.captures.cookies.get(1).unwrap_or(b""), flags, mode, out),
        LogAlias::Ts => out.extend_from_slice(&[log.ending.who, log.ending.phase]),
        // The state of a persistence cookie, if there is one.
        LogAlias::Tsc => out.extend_from_slice(&[log.ending.who, log.ending.phase, log.cookie.0, log.cookie.1]),
        LogAlias::Ac => append_int(out, i64::from(cx.process.sessions.current())),
        LogAlias::Fc => append_int(out, i64::from(frontend.frontend.sessions.current())),
        LogAlias::Bc => append_int(out, streams(cx.backend.as_ref().map(|backend| &*backend.backend.figures))),
        LogAlias::Sc => append_int(out, log.server.as_ref().map_or(0, |server| i64::from(server.shared.sessions()))),
        LogAlias::Rc => {
            if log.redispatched {
                out.push(b'+');
            }
            append_int(out, i64::from(log.retries));
        }
        LogAlias::Sq => append_int(out, i64::from(log.server_queue)),
        LogAlias::Bq => append_int(out, i64::from(log.backend_queue)),
        LogAlias::Hr | LogAlias::Hs | LogAlias::Hrl | LogAlias::Hsl if log.no_request => {}
        LogAlias::Hr => captures(&frontend.config.logging.request_captures, &log.captures.request, flags, out),
        LogAlias::Hs => captures(&frontend.config.logging.response_captures, &log.captures.response, flags, out),
        LogAlias::Hrl => capture_list(&frontend.config.logging.request_captures, &log.captures.request, flags, out),
        LogAlias::Hsl => capture_list(&frontend.config.logging.response_captures, &log.captures.response, flags, out),
        LogAlias::Request => request((!log.request_line.is_empty()).then_some(&log.request_line), out),
        LogAlias::HttpMethod => request(RequestLine::read(log).map(|line| line.method), out),
        LogAlias::HttpUri => request(RequestLine::read(log).map(|line| line.target), out),
        LogAlias::HttpPath => request(RequestLine::read(log).map(|line| line.before_query()), out),
        LogAlias::HttpPathOnly => request(RequestLine::read(log).map(|line| line.path()), out),
        LogAlias::HttpQuery => request(RequestLine::read(log).map(|line| line.query()), out),
        LogAlias::HttpVersion => request(RequestLine::read(log).map(|line| line.version), out),
        LogAlias::Pid => number(i64::from(header::pid()), 4, flags, out),
        LogAlias::Rt => number(stream_number(cx), 4, flags, out),
        LogAlias::LogCounter => number(frontend.lines() as i64, 4, flags, out),
        LogAlias::HostName => append_text(host_name(), flags, mode, out),
        LogAlias::Origin => name(view.origin.word(), out),
        // As in HAProxy, what never became a stream has none.
        LogAlias::UniqueId if log.no_request => append_text(b"", flags, mode, out),
        LogAlias::UniqueId => append_text(cx.unique_id().unwrap_or(b""), flags, mode, out),
        LogAlias::SslCipher => append_text(cx.client.tls().map_or("", ClientTls::cipher).as_bytes(), flags, mode, out),
        LogAlias::SslVersion => {
            append_text(cx.client.tls().map_or("", ClientTls::protocol).as_bytes(), flags, mode, out)
        }
    }
}

/// Returns the number of a stream. The first one is 0, as in HAProxy; those of workers alternate, while ids begin with 1 and
/// have the worker above the count.
fn stream_number(cx: &StreamContext) -> i64 {
    let (worker, count) = (cx.id >> 48, cx.id & ((1 << 48) - 1));
    (count.saturating_sub(1) * cx.process.workers.len() as u64 + worker) as i64
}

/// A server without an address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// A unix socket, which HAProxy names so; its port is 0.
    Unix,
    /// A passed descriptor, which has a port only.
    Sockpair,
}

/// Returns what the server is that the stream has a connection to, if it has no address.
fn behind(log: &LogRecord) -> Option<Behind> {
    log.connect_done?;
    match log.server.as_ref()?.config.address {
        ServerAddress::Unix(_) | ServerAddress::Abstract(_) => Some(Behind::Unix),
        ServerAddress::Sockpair(_) => Some(Behind::Sockpair),
        _ => None,
    }
}

/// Returns whether the alias prints a list of captures with at least one slot, for a stream with a request.
pub(super) fn has_slots(alias: LogAlias, view: &View<'_>) -> bool {
    slots(alias, view) > 0
}

/// Returns the number of slots of a list of captures.
pub(super) fn slots(alias: LogAlias, view: &View<'_>) -> usize {
    let logging = &view.cx.frontend.config.logging;
    match alias {
        _ if view.log().no_request => 0,
        LogAlias::Hrl => logging.request_captures.len(),
        LogAlias::Hsl => logging.response_captures.len(),
        _ => 0,
    }
}

/// Appends one slot of a list of captures; returns whether it was filled.
pub(super) fn append_slot(alias: LogAlias, slot: usize, view: &View<'_>, out: &mut Vec<u8>) -> bool {
    let captures = &view.log().captures;
    let slots = if alias == LogAlias::Hrl { &captures.request } else { &captures.response };
    let value = slots.get(slot);
    encode(value.unwrap_or(b""), FormatFlags::default(), Escapes::Capture, out);
    value.is_some()
}

/// Returns whether an alias needs the addresses of the connection to the server.
pub fn wants_server_addresses(alias: LogAlias) -> bool {
    matches!(alias, LogAlias::Bi | LogAlias::Bp | LogAlias::Si | LogAlias::Sp)
}

fn streams(figures: Option<&Figures>) -> i64 {
    figures.map_or(0, |figures| i64::from(figures.scur.load(Ordering::Relaxed)))
}

fn since_1970(time: SystemTime) -> std::time::Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// With `option logasap` a line may be written while these values still grow; a `+` marks them. As in HAProxy, the
/// option adds it to every line of the frontend.
fn growing(view: &View<'_>, number: i64, out: &mut Vec<u8>) {
    if view.cx.frontend.config.logging.asap {
        out.push(b'+');
    }
    append_int(out, number);
}

/// Returns whether `+X` changes the number of an alias.
pub(super) fn in_hexadecimal(alias: LogAlias) -> bool {
    use LogAlias::{Bp, Cp, Fp, LogCounter, Milliseconds, Pid, Rt, Sp, Timestamp};
    matches!(alias, Cp | Fp | Bp | Sp | Timestamp | Milliseconds | Pid | Rt | LogCounter)
}

/// Appends a number in decimal, or in upper-case hexadecimal of at least this many digits. Numbers are never quoted.
fn number(number: i64, digits: usize, flags: FormatFlags, out: &mut Vec<u8>) {
    if flags.hex {
        // Writing to a vector can't fail.
        let _ = write!(out, "{number:0digits$X}");
    } else {
        append_int(out, number);
    }
}

fn quoted(flags: FormatFlags, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    if flags.quote {
        out.push(b'"');
    }
    write(out);
    if flags.quote {
        out.push(b'"');
    }
}

/// Returns whether the connection was passed as a descriptor: HAProxy knows no destination of it.
fn is_passed(cx: &StreamContext) -> bool {
    cx.client.listener.as_ref().is_some_and(|listener| listener.is_passed)
}

/// Appends a client's address. The client of a unix socket has none; HAProxy prints `unix` and the listener's number.
fn client_address(address: Option<SocketAddr>, flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    match address {
        None => append_text(b"unix", flags, mode, out),
        Some(_) => server_address(address, flags, mode, out),
    }
}

fn client_port(address: Option<SocketAddr>, flags: FormatFlags, out: &mut Vec<u8>) {
    number(address.map_or(1, |address| i64::from(address.port())), 4, flags, out);
}

fn server_address(address: Option<SocketAddr>, flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    let Some(address) = address else { return append_text(b"", flags, mode, out) };
    quoted(flags, out, |out| match address.ip() {
        IpAddr::V4(ip) if flags.hex => ip.octets().iter().for_each(|byte| append_hex(out, *byte)),
        IpAddr::V6(ip) if flags.hex => ip.octets().iter().for_each(|byte| append_hex(out, *byte)),
        ip => append_ip(out, ip),
    });
}

fn server_port(address: Option<SocketAddr>, flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    match address {
        Some(address) => number(i64::from(address.port()), 4, flags, out),
        None => append_text(b"", flags, mode, out),
    }
}

/// Appends a peer's text between the format's own quotes.
fn encoded(text: &[u8], flags: FormatFlags, escapes: Escapes, out: &mut Vec<u8>) {
    quoted(flags, out, |out| encode(text, flags, escapes, out));
}

/// The contexts in which a byte is encoded.
const ALWAYS: u8 = 1;
const IN_CAPTURES: u8 = 2;
const ESCAPED: u8 = 4;

/// For each byte value, the contexts in which it is encoded.
const ENCODED: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'"' | b'#' | 0..=31 | 127.. => ALWAYS,
            b'{' | b'|' | b'}' => IN_CAPTURES,
            b'\\' | b']' => ESCAPED,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Appends text from a peer; bytes that would end the field or the line are written as `#XX`.
fn encode(text: &[u8], flags: FormatFlags, escapes: Escapes, out: &mut Vec<u8>) {
    let wanted =
        ALWAYS | if escapes == Escapes::Capture { IN_CAPTURES } else { 0 } | if flags.escape { ESCAPED } else { 0 };
    let mut rest = text;
    // Runs of bytes that need no encoding, which is almost all text, are copied in one piece.
    while let Some(at) = rest.iter().position(|byte| ENCODED[usize::from(*byte)] & wanted != 0) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            byte @ (b'\\' | b']') => out.extend_from_slice(&[b'\\', byte]),
            byte => {
                out.push(b'#');
                append_hex(out, byte);
            }
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// `%hr`, `%hs`: `{a|b}`, or nothing if no captures are configured.
fn captures(captures: &[Capture], slots: &Slots, flags: FormatFlags, out: &mut Vec<u8>) {
    if captures.is_empty() {
        return;
    }
    quoted(flags, out, |out| {
        out.push(b'{');
        for slot in 0..captures.len() {
            if slot > 0 {
                out.push(b'|');
            }
            encode(slots.get(slot).unwrap_or(b""), flags, Escapes::Capture, out);
        }
        out.push(b'}');
    });
}

/// `%hrl`, `%hsl`: a word for each capture.
fn capture_list(captures: &[Capture], slots: &Slots, flags: FormatFlags, out: &mut Vec<u8>) {
    for slot in 0..captures.len() {
        if slot > 0 {
            out.push(b' ');
        }
        match slots.get(slot) {
            None if !flags.quote => out.push(b'-'),
            value => encoded(value.unwrap_or(b""), flags, Escapes::Capture, out),
        }
    }
}

/// The parts of a request line as it was received, well-formed or not.
struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    version: &'a [u8],
}

impl<'a> RequestLine<'a> {
    /// Returns `None` unless the line has at least a method that a blank follows.
    fn read(log: &'a LogRecord) -> Option<RequestLine<'a>> {
        fn word(text: &[u8]) -> (&[u8], &[u8]) {
            let end = memchr::memchr2(b' ', b'\t', text).unwrap_or(text.len());
            let rest = &text[end..];
            let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            (&text[..end], &rest[blanks..])
        }
        let (method, rest) = word(&log.request_line);
        if method.len() == log.request_line.len() {
            return None;
        }
        let (target, version) = word(rest);
        Some(RequestLine { method, target, version: if version.is_empty() { b"HTTP/0.9" } else { version } })
    }

    fn before_query(&self) -> &'a [u8] {
        &self.target[..memchr::memchr(b'?', self.target).unwrap_or(self.target.len())]
    }

    /// Returns the query with its question mark.
    fn query(&self) -> &'a [u8] {
        memchr::memchr(b'?', self.target).map_or(b"", |mark| &self.target[mark..])
    }

    /// Returns the path without scheme, authority and query.
    fn path(&self) -> &'a [u8] {
        crate::sample::path(self.target).unwrap_or(b"")
    }
}

/// Appends the line of a connection that ended before its first byte was examined.
pub(super) fn refused(cx: &StreamContext, error: Option<HandshakeError>, out: &mut Vec<u8>) {
    let (flags, mode) = (FormatFlags::default(), FormatMode::Log);
    client_address(cx.source, flags, mode, out);
    out.push(b':');
    let listener = cx.client.listener.as_ref();
    let number = listener.map_or(1, |listener| i64::from(listener.id));
    match cx.source {
        Some(_) => client_port(cx.source, flags, out),
        None => append_int(out, number),
    }
    out.extend_from_slice(b" [");
    append_date(cx.log.accepted_at(), Clock::LocalMilliseconds, out);
    let config = &cx.frontend.config;
    let _ = write!(out, "] {}/", config.name);
    match listener.and_then(|listener| config.binds.get(listener.bind)?.name.as_deref()) {
        Some(name) => out.extend_from_slice(name.as_bytes()),
        None => append_int(out, number),
    }
    let _ = match error {
        Some(error) => write!(out, ": {error}"),
        None => write!(out, ": Success"),
    };
}

/// Appends the `Connect from …` line, which HAProxy does not build from a log-format either.
pub(super) fn connect(cx: &StreamContext, out: &mut Vec<u8>) {
    let (flags, mode) = (FormatFlags::default(), FormatMode::Log);
    let config = &cx.frontend.config;
    match cx.source {
        Some(_) => {
            out.extend_from_slice(b"Connect from ");
            client_address(cx.source, flags, mode, out);
            out.push(b':');
            client_port(cx.source, flags, out);
            out.extend_from_slice(b" to ");
            client_address(cx.destination, flags, mode, out);
            out.push(b':');
            client_port(cx.destination, flags, out);
        }
        None => out.extend_from_slice(b"Connect to unix:1"),
    }
    out.extend_from_slice(b" (");
    out.extend_from_slice(config.name.as_bytes());
    out.extend_from_slice(if config.mode == Mode::Http { b"/HTTP)" } else { b"/TCP)" });
}
