//! Logs: targets, line formats, and the content of lines.

use std::path::PathBuf;
use std::sync::Arc;

use super::{LogFormat, Position, Proxy, ProxyId, ServerAddress};

/// A `log` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// The target address.
    pub to: LogAddress,
    /// `format`.
    pub format: LogWire,
    /// `len`: the maximum length of a line in bytes; 1024 by default.
    pub max_len: usize,
    /// `sample RANGES:SIZE`: the lines of each group of SIZE that are sent; `None` for all.
    pub sample: Option<LogSample>,
    /// Syslog facility, 0–23.
    pub facility: u8,
    /// Least severe level that is sent, 0 (emerg) to 7 (debug); 7 by default.
    pub max_level: u8,
    /// The level with which more severe lines are sent; 0 by default.
    pub min_level: u8,
    /// `profile`: the name of a `log-profile`.
    pub profile: Option<Arc<str>>,
    /// The tag of headers: `log-tag` of the profile, of the proxy, or of `global`; `None` for the program's name.
    pub tag: Option<Arc<str>>,
    /// The position of the line. Proxies with `log global` share its sampling, so it identifies the line.
    pub at: Position,
}

impl LogTarget {
    /// Returns a target that no `log` line configures: it gets whole lines of every level, without a header.
    pub fn raw(to: LogAddress) -> LogTarget {
        LogTarget {
            to,
            format: LogWire::Raw,
            max_len: 65_535,
            sample: None,
            facility: 0,
            max_level: 7,
            min_level: 0,
            profile: None,
            tag: None,
            at: Position { file: "".into(), line: 0, column: 0 },
        }
    }
}

/// `sample RANGES:SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSample {
    /// The lines that are sent, counted from 1; sorted and disjoint.
    pub ranges: Vec<(u32, u32)>,
    /// The number of lines after which the count starts again.
    pub size: u32,
}

/// Destinations of `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogAddress {
    /// `stdout` (descriptor 1).
    Stdout,
    /// `stderr` (descriptor 2).
    Stderr,
    /// `fd@N`.
    Fd(i32),
    /// A datagram socket by path.
    Unix(PathBuf),
    /// Syslog by UDP: an address or a name, and a port.
    Udp(String, u16),
    /// A ring by its name.
    Ring(Arc<str>),
    /// A backend of `mode log` by its name.
    Backend(Arc<str>),
    /// Syslog by TCP or a unix stream. A complete configuration has a ring in its place, whose server this is.
    Stream(ServerAddress),
}

/// A `log-profile` section: how the lines of streams are written for the targets that name it.
#[derive(Clone, Debug)]
pub struct LogProfile {
    /// Its name.
    pub name: Arc<str>,
    /// `log-tag`.
    pub tag: Option<Arc<str>>,
    /// `on` lines.
    pub steps: Vec<(LogStep, LogProfileStep)>,
    /// Its position in the file.
    pub at: Position,
}

/// A step of a stream at which a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// A stream has begun.
    Accept,
    /// A request of HTTP has been received.
    Request,
    /// A connection to a server is established (also `option logasap` of TCP).
    Connect,
    /// A response has begun (also `option logasap` of HTTP).
    Response,
    /// The stream's end.
    Close,
    /// The end of a session without a request.
    Error,
    /// `do-log` of `quic-initial`, which has no rules here.
    QuicInitial,
    /// `do-log` of `tcp-request connection`.
    TcpRequestConnection,
    /// `do-log` of `tcp-request session`.
    TcpRequestSession,
    /// `do-log` of `tcp-request content`.
    TcpRequestContent,
    /// `do-log` of `tcp-response content`.
    TcpResponseContent,
    /// `do-log` of `http-request`.
    HttpRequest,
    /// `do-log` of `http-response`.
    HttpResponse,
    /// `do-log` of `http-after-response`.
    HttpAfterResponse,
    /// Each step that has no line of its own.
    Any,
}

/// `on STEP`.
#[derive(Clone, Debug, Default)]
pub struct LogProfileStep {
    /// `drop`: no line.
    pub drop: bool,
    /// `format`.
    pub line: Option<Arc<LogFormat>>,
    /// `sd`.
    pub structured: Option<Arc<LogFormat>>,
}

/// A `ring` section, or the ring of a `log` line whose target is a stream: a buffer of the latest messages, and the
/// servers that get them.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Its name.
    pub name: Arc<str>,
    /// `description`; the name by default.
    pub description: Arc<str>,
    /// `format`, [`LogWire::Raw`] by default; `None`: that of each `log` line.
    pub format: Option<LogWire>,
    /// `maxlen`: the maximum length of a message with its header; `None`: that of each `log` line.
    pub max_len: Option<usize>,
    /// `size`, bytes; 16384.
    pub size: usize,
    /// `backing-file`.
    pub backing: Option<PathBuf>,
    /// The proxy of its `server` lines, with `timeout connect` and `timeout server`.
    pub proxy: Proxy,
    /// The log backend whose server it feeds.
    pub backend: Option<ProxyId>,
    /// Its position in the file.
    pub at: Position,
}

impl Ring {
    /// The default of `size`, bytes.
    pub const SIZE: usize = 16_384;

    /// The names of the sinks that are always there, which a section cannot have.
    pub const BUILT_IN: [&str; 4] = ["stdout", "stderr", "buf0", "dpapi"];

    /// Returns the maximum length of a message in a ring of this size: each has its length and a byte in front of it.
    pub fn max_payload(size: usize) -> usize {
        let most = size.saturating_sub(2);
        let mut digits = 1;
        let mut rest = most;
        // The length is written with 4 bits in its first byte, 7 in each further one.
        if rest >= 0xf0 {
            rest = (rest - 0xf0) >> 4;
            digits = 2;
            while rest >= 0x80 {
                rest = (rest - 0x80) >> 7;
                digits += 1;
            }
        }
        most.saturating_sub(digits)
    }
}

/// The settings of a `log-forward` section, beside those of a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogForward {
    /// `option assume-rfc6587-ntf`: every message of a stream ends with a line feed.
    pub always_lines: bool,
    /// `option dont-parse-log`: messages are passed on as they are.
    pub unparsed: bool,
    /// `option host`.
    pub host: LogFrom,
}

/// `option host` of a `log-forward` section: the host name of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFrom {
    /// The sender's address.
    Replace,
    /// The sender's address, where there is none.
    #[default]
    Fill,
    /// That of the message.
    Keep,
    /// That of the message and, behind a comma, the sender's address.
    Append,
}

/// `log-proto` of a server: how a stream separates messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogProto {
    /// `legacy`: each ends with a line feed.
    #[default]
    Legacy,
    /// `octet-count`: each begins with its length (RFC 6587, 3.4.1).
    OctetCount,
}

impl LogProto {
    /// Returns the protocol of this name.
    pub fn named(word: &str) -> Option<LogProto> {
        [("legacy", LogProto::Legacy), ("octet-count", LogProto::OctetCount)]
            .into_iter()
            .find_map(|(name, proto)| (name == word).then_some(proto))
    }
}

/// `format` of a `log` line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogWire {
    /// No `format`: `local`, or `rfc3164` where `log-send-hostname` is set.
    #[default]
    Unset,
    /// `local`: priority, date and tag, no host name.
    Local,
    /// `rfc3164`.
    Rfc3164,
    /// `rfc5424`.
    Rfc5424,
    /// `priority`: `<facility and level>message`.
    Priority,
    /// `short`: `<level>message`.
    Short,
    /// `timed`: `<level>` and the ISO date.
    Timed,
    /// `iso`: the ISO date.
    Iso,
    /// `raw`: the message alone.
    Raw,
}

/// `log-send-hostname [NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogHost {
    /// Not set: headers that need a name say `localhost`.
    #[default]
    Local,
    /// The machine's.
    Machine,
    /// This one.
    Named(Arc<str>),
}

/// The log format of a stream, and the captures for it.
#[derive(Clone, Debug, Default)]
pub struct Logging {
    /// The line of a stream; `None`: HAProxy's `Connect from …`, written when the stream begins.
    pub line: Option<LogLine>,
    /// `error-log-format`: the line of a connection that failed before there was a stream.
    pub error_line: Option<Arc<LogFormat>>,
    /// `log-format-sd`: the structured data of `format rfc5424`.
    pub structured: Option<Arc<LogFormat>>,
    /// `log-tag`.
    pub tag: Option<Arc<str>>,
    /// `option logasap`: logs as soon as the response's head has arrived, or a TCP connection is established.
    pub asap: bool,
    /// `log-steps`: the steps that have a line each, all of them if the list is empty; `None`: one line per stream.
    pub steps: Option<Vec<LogStep>>,
    /// `option dontlog-normal`: successful streams are not logged.
    pub only_errors: bool,
    /// `option log-separate-errors`: failed streams are logged with level `err`.
    pub separate_errors: bool,
    /// `unique-id-format`.
    pub unique_id: Option<Arc<LogFormat>>,
    /// `unique-id-header`.
    pub unique_id_header: Option<String>,
    /// Slots of `capture request header`, `declare capture request` and `http-request capture … len`.
    pub request_captures: Vec<Capture>,
    /// The same for responses.
    pub response_captures: Vec<Capture>,
    /// `capture cookie`.
    pub cookie: Option<Capture>,
}

impl Logging {
    /// Returns whether a step has a line by `log-steps`; `None`: the keyword has no effect. As in HAProxy it has none
    /// beside `option logasap`.
    pub fn has_step(&self, step: LogStep) -> Option<bool> {
        let steps = self.steps.as_ref().filter(|_| !self.asap)?;
        Some(steps.is_empty() || steps.contains(&step))
    }

    /// Returns whether the line of a stream is written as soon as the response's head has arrived, or a TCP connection
    /// is established: by `option logasap`, or since, as in HAProxy, no format of the frontend has an item that is known
    /// only when the stream ends.
    pub fn is_early(&self) -> bool {
        let line = self.line.as_ref().map(|line| &line.format);
        let mut formats = [&self.error_line, &self.structured, &self.unique_id].into_iter().flatten().chain(line);
        line.is_some() && (self.asap || !formats.any(|format| format.has_final_items()))
    }
}

/// A log line's format.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// The keyword that set it: `option httplog`, `option httplog clf`, `log-format`…
    pub keyword: &'static str,
    /// Its position in the file.
    pub at: Position,
    /// The line.
    pub format: Arc<LogFormat>,
}

/// A part of a message captured for its log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The header's name, or a cookie's prefix; `None` for a slot that rules fill.
    pub name: Option<String>,
    /// The number of the value's bytes that are kept.
    pub len: usize,
}

/// `set-log-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// This stream is not logged.
    Silent,
    /// It is logged with this level, 0 (emerg) to 7 (debug).
    Level(u8),
}
