//! Log-format rendering (HAProxy configuration manual 8.2.6), synchronous and into a buffer that the caller reuses.
//!
//! There are two dialects. In HTTP rules ([`FormatMode::Http`]) an expression's control characters become `%XX`, so
//! that no sample can break a header line, and `+Q` is ignored for it. Elsewhere ([`FormatMode::Plain`]) the bytes
//! stay as they are and `+Q` puts them between quotes. A sample that is not there prints nothing; the `-` of log lines
//! is theirs alone.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_config::model::{FormatFlags, LogAlias};

use super::fetch::path_and_query;
use super::value::{Value, append_hex, append_int, append_ip};
use crate::log::header::append_date;
use crate::stream::StreamContext;
use sluicegate_wire::http::Version;

/// Where a log-format stands, which decides how expressions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatMode {
    /// Header values, bodies, redirects.
    Http,
    /// Variables, backend names, store commands.
    Plain,
}

/// Appends an expression's sample, or what stands for none.
pub fn append_value(value: Option<&Value<'_>>, flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    let quote = flags.quote && mode == FormatMode::Plain;
    if quote {
        out.push(b'"');
    }
    if let Some(value) = value {
        let start = out.len();
        value.append_text(out);
        encode_tail(out, start, flags.escape, mode);
    }
    if quote {
        out.push(b'"');
    }
}

/// Encodes what was appended since `start`; bytes that need nothing, nearly all, cost one scan.
fn encode_tail(out: &mut Vec<u8>, start: usize, escape: bool, mode: FormatMode) {
    let encodes = |byte: u8| mode == FormatMode::Http && (byte < 0x20 && byte != b'\t' || byte == 0x7f);
    let escapes = |byte: u8| escape && matches!(byte, b'\\' | b'"' | b']');
    if !out[start..].iter().any(|byte| encodes(*byte) || escapes(*byte)) {
        return;
    }
    let tail = out.split_off(start);
    for byte in tail {
        if encodes(byte) {
            out.push(b'%');
            append_hex(out, byte);
        } else {
            if escapes(byte) {
                out.push(b'\\');
            }
            out.push(byte);
        }
    }
}

/// Whether rules know what an alias prints.
pub fn alias_available(alias: LogAlias) -> bool {
    !matches!(alias, LogAlias::Ac | LogAlias::Sc)
}

/// Appends a `%xx` alias that is available.
pub fn append_alias(alias: LogAlias, flags: FormatFlags, mode: FormatMode, cx: &StreamContext, out: &mut Vec<u8>) {
    let log = &cx.log;
    let fe_name = || cx.frontend.config.name.as_bytes();
    match alias {
        LogAlias::Ci => append_address(cx.source, flags, out),
        LogAlias::Cp => append_port(cx.source, flags, out),
        LogAlias::Fi => append_address(cx.destination, flags, out),
        LogAlias::Fp => append_port(cx.destination, flags, out),
        // The proxy's own address towards the server and the server's are the relay's; rules run before it connects.
        LogAlias::Bi | LogAlias::Si => append_address(None, flags, out),
        LogAlias::Bp | LogAlias::Sp => append_port(None, flags, out),
        LogAlias::Tr => append_date(log.request_started_at, out),
        LogAlias::T => append_date(log.accepted_at, out),
        LogAlias::Ft | LogAlias::F => append_string(fe_name(), flags, mode, out),
        LogAlias::B => match &cx.backend {
            Some(backend) => append_string(backend.config.name.as_bytes(), flags, mode, out),
            None => append_string(fe_name(), flags, mode, out),
        },
        LogAlias::S => {
            let name = log.server.as_ref().map_or("<NOSRV>", |server| server.name());
            append_string(name.as_bytes(), flags, mode, out);
        }
        LogAlias::TimerTR => append_timer(since(log.request_started, log.request_done), out),
        LogAlias::TimerTw => append_timer(between(log.request_done, log.queue_done), out),
        LogAlias::TimerTc => append_timer(between(log.queue_done, log.connect_done), out),
        LogAlias::TimerTr => append_timer(between(log.connect_done, log.response_started), out),
        LogAlias::TimerTh => append_timer(Some(Duration::ZERO), out),
        LogAlias::TimerTi => append_timer(since(log.accepted, Some(log.request_started)), out),
        LogAlias::TimerTq => append_timer(since(log.accepted, log.request_done), out),
        LogAlias::TimerTa | LogAlias::TimerTu => append_timer(since(log.request_started, Some(Instant::now())), out),
        LogAlias::TimerTt => append_timer(since(log.accepted, Some(Instant::now())), out),
        LogAlias::TimerTd => append_timer(between(log.response_started, log.response_started), out),
        LogAlias::Status => append_int(out, i64::from(log.status)),
        LogAlias::BytesRead => append_int(out, log.bytes_read as i64),
        LogAlias::BytesUploaded => append_int(out, log.bytes_uploaded as i64),
        LogAlias::CaptureReqCookie | LogAlias::CaptureResCookie | LogAlias::Hr | LogAlias::Hs => {
            append_string(b"", flags, mode, out);
        }
        LogAlias::Ts => append_string(&[log.ending.who, log.ending.phase], flags, mode, out),
        LogAlias::Tsc => append_string(&[log.ending.who, log.ending.phase, b'-', b'-'], flags, mode, out),
        // What the process and the chosen server count is not in the context: `alias_available` refuses them.
        LogAlias::Ac | LogAlias::Sc => debug_assert!(false, "refused when the rule was compiled"),
        LogAlias::Fc => append_int(out, i64::from(cx.frontend.frontend.sessions.current())),
        LogAlias::Bc => {
            let streams = cx.backend.as_ref().map_or(0, |backend| backend.backend.figures.scur.load(Ordering::Relaxed));
            append_int(out, i64::from(streams));
        }
        LogAlias::Rc => {
            if log.redispatched {
                out.push(b'+');
            }
            append_int(out, i64::from(log.retries));
        }
        LogAlias::Sq => append_int(out, i64::from(log.server_queue)),
        LogAlias::Bq => append_int(out, i64::from(log.backend_queue)),
        LogAlias::Request => {
            let line: &[u8] = if log.request_line.is_empty() { b"<BADREQ>" } else { &log.request_line };
            append_string(line, flags, mode, out);
        }
        LogAlias::HttpMethod => append_string(cx.request.method(), flags, mode, out),
        LogAlias::HttpPath => append_string(before_query(cx.request.target()), flags, mode, out),
        LogAlias::HttpQuery => {
            let whole = path_and_query(cx.request.target()).unwrap_or(b"");
            let query = memchr::memchr(b'?', whole).map_or(&b""[..], |mark| &whole[mark..]);
            append_string(query, flags, mode, out);
        }
        LogAlias::HttpUri => append_string(cx.request.target(), flags, mode, out),
        LogAlias::HttpVersion => {
            let version: &[u8] = match cx.request.version() {
                Version::Http10 => b"HTTP/1.0",
                Version::Http11 => b"HTTP/1.1",
            };
            append_string(version, flags, mode, out);
        }
        LogAlias::Pid => append_number(i64::from(std::process::id()), flags, out),
        LogAlias::Rt => append_number(cx.id as i64, flags, out),
        LogAlias::HostName => append_string(host_name(), flags, mode, out),
    }
}

/// `%HP` is the target up to its query, of whatever form it is.
fn before_query(target: &[u8]) -> &[u8] {
    &target[..memchr::memchr(b'?', target).unwrap_or(target.len())]
}

fn append_string(text: &[u8], flags: FormatFlags, mode: FormatMode, out: &mut Vec<u8>) {
    if flags.quote {
        out.push(b'"');
    }
    let start = out.len();
    out.extend_from_slice(text);
    encode_tail(out, start, flags.escape, mode);
    if flags.quote {
        out.push(b'"');
    }
}

fn append_address(address: Option<SocketAddr>, flags: FormatFlags, out: &mut Vec<u8>) {
    if flags.quote {
        out.push(b'"');
    }
    if let Some(address) = address {
        match address.ip() {
            std::net::IpAddr::V4(ip) if flags.hex => ip.octets().iter().for_each(|byte| append_hex(out, *byte)),
            std::net::IpAddr::V6(ip) if flags.hex => ip.octets().iter().for_each(|byte| append_hex(out, *byte)),
            ip => append_ip(out, ip),
        }
    }
    if flags.quote {
        out.push(b'"');
    }
}

/// Numbers are never quoted.
fn append_port(address: Option<SocketAddr>, flags: FormatFlags, out: &mut Vec<u8>) {
    if let Some(address) = address {
        append_number(i64::from(address.port()), flags, out);
    }
}

/// A number in decimal, or in upper-case hexadecimal of at least four digits.
fn append_number(number: i64, flags: FormatFlags, out: &mut Vec<u8>) {
    if flags.hex {
        out.extend_from_slice(format!("{number:04X}").as_bytes());
    } else {
        append_int(out, number);
    }
}

/// Milliseconds; -1 for a phase that was not reached.
fn append_timer(time: Option<Duration>, out: &mut Vec<u8>) {
    append_int(out, time.map_or(-1, |time| time.as_millis() as i64));
}

fn since(start: Instant, end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(start))
}

fn between(start: Option<Instant>, end: Option<Instant>) -> Option<Duration> {
    Some(end?.saturating_duration_since(start?))
}

/// The machine's name, asked once.
fn host_name() -> &'static [u8] {
    static NAME: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        let mut buffer = [0u8; 256];
        // SAFETY: the pointer and the length describe `buffer`, which outlives the call; the last byte is kept out of
        // its reach, so the name ends in a zero whether or not it was cut.
        let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
        let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
        if result == 0 { buffer[..end].to_vec() } else { Vec::new() }
    });
    &NAME
}
