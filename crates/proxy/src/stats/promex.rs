//! `http-request use-service prometheus-exporter`: all figures in Prometheus' text format.
//!
//! Names, types and labels are those of HAProxy's own exporter. The format requires the lines of a metric to be
//! adjacent, so the objects are visited once for each metric; a document is generated piece by piece like the
//! statistics page. The figures of the stores follow as `sluicegate_store_*`.
//!
//! The query selects: `scope=` (global, frontend, backend, server, listener, sticktable, resolver, store, `*`; an empty
//! one discards those before it), `no-maint`, `extra-counters`, `metrics=NAME,-NAME`. Other words are ignored.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sluicegate_config::model::Mode;
use sluicegate_wire::engine::{Appended, Connections, Disk, NodeFigures, WAIT_BOUNDS_MS};

use super::columns::{self, COLUMNS, Cell, Column, View};
use super::page::{Cursor, PIECE};
use super::stores::{APPENDED, C, DISKS, G, NamedMetric, REPLICATED, STORES};
use super::{Filter, Object, describe, info};
use crate::limit::Counts;
use crate::running::Running;
use crate::running::pages::Document;
use crate::sample::url_decode;
use crate::server::{Admin, Operation, ServerStatus};

const GLOBAL: u8 = 1;
const FRONTEND: u8 = 2;
const BACKEND: u8 = 4;
const SERVER: u8 = 8;
const STICKTABLE: u8 = 16;
const STORE: u8 = 32;
const LISTENER: u8 = 64;
const RESOLVER: u8 = 128;
const ALL: u8 = GLOBAL | FRONTEND | LISTENER | BACKEND | SERVER | STICKTABLE | STORE | RESOLVER;

const SCOPES: [(&str, u8); 9] = [
    ("global", GLOBAL),
    ("frontend", FRONTEND),
    ("backend", BACKEND),
    ("server", SERVER),
    ("listener", LISTENER),
    ("resolver", RESOLVER),
    ("sticktable", STICKTABLE),
    ("store", STORE),
    ("*", ALL),
];

/// The selection of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    scopes: u8,
    no_maint: bool,
    extra: bool,
    only: HashSet<String>,
    not: HashSet<String>,
}

/// The error for a query that cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

impl Wanted {
    /// Reads a query string.
    pub fn read(query: &[u8]) -> Result<Wanted, Invalid> {
        let mut wanted =
            Wanted { scopes: ALL, no_maint: false, extra: false, only: HashSet::new(), not: HashSet::new() };
        let mut chosen = false;
        for field in query.split(|byte| *byte == b'&').filter(|field| !field.is_empty()) {
            let equals = field.iter().position(|byte| *byte == b'=').unwrap_or(field.len());
            let text = |bytes| url_decode(bytes, true).and_then(|decoded| String::from_utf8(decoded).ok());
            let name = text(&field[..equals]).ok_or(Invalid)?;
            let value = text(field.get(equals + 1..).unwrap_or_default()).ok_or(Invalid)?;
            let has_value = equals < field.len();
            if field.iter().filter(|byte| **byte == b'=').count() > 1
                || !has_value && matches!(&*name, "scope" | "metrics")
            {
                return Err(Invalid);
            }
            match (&*name, &*value) {
                ("scope", "") => (wanted.scopes, chosen) = (0, true),
                ("scope", scope) => {
                    let (_, bits) = SCOPES.into_iter().find(|(known, _)| *known == scope).ok_or(Invalid)?;
                    wanted.scopes = if chosen { wanted.scopes | bits } else { bits };
                    chosen = true;
                }
                ("no-maint", _) => wanted.no_maint = true,
                ("extra-counters", _) => wanted.extra = true,
                ("metrics", list) => {
                    for name in list.split(',').filter(|name| !name.is_empty()) {
                        match name.strip_prefix('-') {
                            Some(name) => wanted.not.insert(name.to_owned()),
                            None => wanted.only.insert(name.to_owned()),
                        };
                    }
                }
                _ => {}
            }
        }
        Ok(wanted)
    }

    fn has(&self, metric: &str) -> bool {
        !self.not.contains(metric) && (self.only.is_empty() || self.only.contains(metric))
    }
}

/// The conversion of a cell's number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// No conversion.
    Plain,
    /// Milliseconds become seconds.
    Milliseconds,
    /// The class of an HTTP status becomes a label.
    Code,
    /// A line for each state.
    Status,
    /// The servers in each state.
    Servers,
    /// The servers by their last check.
    Checks,
    /// The last check as a state.
    Check,
    /// Metrics of checked servers only.
    Checked,
    /// Metrics of mode HTTP only.
    Http,
}

/// A metric: its name after the scope, the scopes that have it, its type, the column, and the conversion.
type Metric = (&'static str, u8, &'static str, &'static str, Shape);

use Shape::{Check, Checked, Checks, Code, Http, Milliseconds, Plain, Servers, Status};

/// The classes of an HTTP status, each with a column: that of the metric and the columns after it.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

/// All metrics, in the order of the columns, which is that of every scope.
const METRICS: &[Metric] = &[
    ("current_queue", BACKEND | SERVER, G, "qcur", Plain),
    ("max_queue", BACKEND | SERVER, G, "qmax", Plain),
    ("current_sessions", FRONTEND | LISTENER | BACKEND | SERVER, G, "scur", Plain),
    ("max_sessions", FRONTEND | LISTENER | BACKEND | SERVER, G, "smax", Plain),
    ("limit_sessions", FRONTEND | LISTENER | BACKEND | SERVER, G, "slim", Plain),
    ("sessions_total", FRONTEND | LISTENER | BACKEND | SERVER, C, "stot", Plain),
    ("bytes_in_total", FRONTEND | LISTENER | BACKEND | SERVER, C, "bin", Plain),
    ("bytes_out_total", FRONTEND | LISTENER | BACKEND | SERVER, C, "bout", Plain),
    ("requests_denied_total", FRONTEND | LISTENER | BACKEND, C, "dreq", Plain),
    ("responses_denied_total", FRONTEND | LISTENER | BACKEND | SERVER, C, "dresp", Plain),
    ("request_errors_total", FRONTEND | LISTENER, C, "ereq", Plain),
    ("connection_errors_total", BACKEND | SERVER, C, "econ", Plain),
    ("response_errors_total", BACKEND | SERVER, C, "eresp", Plain),
    ("retry_warnings_total", BACKEND | SERVER, C, "wretr", Plain),
    ("redispatch_warnings_total", BACKEND | SERVER, C, "wredis", Plain),
    ("status", FRONTEND | LISTENER | BACKEND | SERVER, G, "status", Status),
    ("weight", BACKEND | SERVER, G, "weight", Plain),
    ("active_servers", BACKEND, G, "act", Plain),
    ("active", SERVER, G, "act", Plain),
    ("backup_servers", BACKEND, G, "bck", Plain),
    ("backup", SERVER, G, "bck", Plain),
    ("check_failures_total", SERVER, C, "chkfail", Plain),
    ("check_up_down_total", BACKEND | SERVER, C, "chkdown", Plain),
    ("check_last_change_seconds", BACKEND | SERVER, G, "lastchg", Plain),
    ("downtime_seconds_total", BACKEND | SERVER, C, "downtime", Plain),
    ("queue_limit", SERVER, G, "qlimit", Plain),
    ("current_throttle", SERVER, G, "throttle", Plain),
    ("loadbalanced_total", BACKEND | SERVER, C, "lbtot", Plain),
    ("current_session_rate", FRONTEND | BACKEND | SERVER, G, "rate", Plain),
    ("limit_session_rate", FRONTEND, G, "rate_lim", Plain),
    ("max_session_rate", FRONTEND | BACKEND | SERVER, G, "rate_max", Plain),
    ("check_status", SERVER, G, "check_status", Check),
    ("check_code", SERVER, G, "check_code", Checked),
    ("check_duration_seconds", SERVER, G, "check_duration", Milliseconds),
    ("http_responses_total", FRONTEND | BACKEND | SERVER, C, "hrsp_1xx", Code),
    ("http_requests_rate_max", FRONTEND, G, "req_rate_max", Http),
    ("http_requests_total", FRONTEND | BACKEND | SERVER, C, "req_tot", Http),
    ("client_aborts_total", BACKEND | SERVER, C, "cli_abrt", Plain),
    ("server_aborts_total", BACKEND | SERVER, C, "srv_abrt", Plain),
    ("http_comp_bytes_in_total", FRONTEND | BACKEND, C, "comp_in", Http),
    ("http_comp_bytes_out_total", FRONTEND | BACKEND, C, "comp_out", Http),
    ("http_comp_bytes_bypassed_total", FRONTEND | BACKEND, C, "comp_byp", Http),
    ("http_comp_responses_total", FRONTEND | BACKEND, C, "comp_rsp", Http),
    ("last_session_seconds", BACKEND | SERVER, G, "lastsess", Plain),
    ("queue_time_average_seconds", BACKEND | SERVER, G, "qtime", Milliseconds),
    ("connect_time_average_seconds", BACKEND | SERVER, G, "ctime", Milliseconds),
    ("response_time_average_seconds", BACKEND | SERVER, G, "rtime", Milliseconds),
    ("total_time_average_seconds", BACKEND | SERVER, G, "ttime", Milliseconds),
    ("connections_rate_max", FRONTEND, G, "conn_rate_max", Plain),
    ("connections_total", FRONTEND | LISTENER, C, "conn_tot", Plain),
    ("intercepted_requests_total", FRONTEND, C, "intercepted", Http),
    ("denied_connections_total", FRONTEND | LISTENER, C, "dcon", Plain),
    ("denied_sessions_total", FRONTEND | LISTENER, C, "dses", Plain),
    ("failed_header_rewriting_total", FRONTEND | LISTENER | BACKEND | SERVER, C, "wrew", Plain),
    ("connection_attempts_total", BACKEND | SERVER, C, "connect", Plain),
    ("connection_reuses_total", BACKEND | SERVER, C, "reuse", Plain),
    ("http_cache_lookups_total", FRONTEND | BACKEND, C, "cache_lookups", Http),
    ("http_cache_hits_total", FRONTEND | BACKEND, C, "cache_hits", Http),
    ("idle_connections_current", SERVER, G, "srv_icur", Plain),
    ("idle_connections_limit", SERVER, G, "src_ilim", Plain),
    ("max_queue_time_seconds", BACKEND | SERVER, G, "qtime_max", Milliseconds),
    ("max_connect_time_seconds", BACKEND | SERVER, G, "ctime_max", Milliseconds),
    ("max_response_time_seconds", BACKEND | SERVER, G, "rtime_max", Milliseconds),
    ("max_total_time_seconds", BACKEND | SERVER, G, "ttime_max", Milliseconds),
    ("internal_errors_total", FRONTEND | LISTENER | BACKEND | SERVER, C, "eint", Plain),
    ("unsafe_idle_connections_current", SERVER, G, "idle_conn_cur", Plain),
    ("safe_idle_connections_current", SERVER, G, "safe_conn_cur", Plain),
    ("used_connections_current", SERVER, G, "used_conn_cur", Plain),
    ("need_connections_current", SERVER, G, "need_conn_est", Plain),
    ("uweight", BACKEND | SERVER, G, "uweight", Plain),
    ("agg_server_status", BACKEND, G, "agg_server_status", Servers),
    ("agg_server_check_status", BACKEND, G, "agg_server_check_status", Servers),
    ("agg_check_status", BACKEND, G, "agg_check_status", Checks),
];

/// A metric of the process: its name, its kind, the key of `show info`.
const PROCESS: &[(&str, &str, &str)] = &[
    ("nbthread", G, "Nbthread"),
    ("nb_thread_groups", G, "Nbproc"),
    ("nbproc", G, "Nbproc"),
    ("relative_process_id", G, "Process_num"),
    ("uptime_seconds", G, "Uptime_sec"),
    ("pool_failures_total", C, "PoolFailed"),
    ("max_fds", G, "Ulimit-n"),
    ("max_sockets", G, "Maxsock"),
    ("max_connections", G, "Maxconn"),
    ("hard_max_connections", G, "Hard_maxconn"),
    ("current_connections", G, "CurrConns"),
    ("connections_total", C, "CumConns"),
    ("requests_total", C, "CumReq"),
    ("max_ssl_connections", G, "MaxSslConns"),
    ("current_ssl_connections", G, "CurrSslConns"),
    ("ssl_connections_total", C, "CumSslConns"),
    ("max_pipes", G, "Maxpipes"),
    ("pipes_used_total", C, "PipesUsed"),
    ("pipes_free_total", C, "PipesFree"),
    ("current_connection_rate", G, "ConnRate"),
    ("limit_connection_rate", G, "ConnRateLimit"),
    ("max_connection_rate", G, "MaxConnRate"),
    ("current_session_rate", G, "SessRate"),
    ("limit_session_rate", G, "SessRateLimit"),
    ("max_session_rate", G, "MaxSessRate"),
    ("current_ssl_rate", G, "SslRate"),
    ("limit_ssl_rate", G, "SslRateLimit"),
    ("max_ssl_rate", G, "MaxSslRate"),
    ("current_frontend_ssl_key_rate", G, "SslFrontendKeyRate"),
    ("max_frontend_ssl_key_rate", G, "SslFrontendMaxKeyRate"),
    ("frontend_ssl_reuse", G, "SslFrontendSessionReuse_pct"),
    ("current_backend_ssl_key_rate", G, "SslBackendKeyRate"),
    ("max_backend_ssl_key_rate", G, "SslBackendMaxKeyRate"),
    ("ssl_cache_lookups_total", C, "SslCacheLookups"),
    ("ssl_cache_misses_total", C, "SslCacheMisses"),
    ("http_comp_bytes_in_total", C, "CompressBpsIn"),
    ("http_comp_bytes_out_total", C, "CompressBpsOut"),
    ("limit_http_comp", G, "CompressBpsRateLim"),
    ("current_zlib_memory", G, ZLIB),
    ("max_zlib_memory", G, ZLIB),
    ("current_tasks", G, "Tasks"),
    ("current_run_queue", G, "Run_queue"),
    ("idle_time_percent", G, "Idle_pct"),
    ("node", G, "node"),
    ("description", G, "description"),
    ("stopping", G, "Stopping"),
    ("jobs", G, "Jobs"),
    ("unstoppable_jobs", G, "Unstoppable Jobs"),
    ("listeners", G, "Listeners"),
    ("active_peers", G, "ActivePeers"),
    ("connected_peers", G, "ConnectedPeers"),
    ("dropped_logs_total", C, "DroppedLogs"),
    ("busy_polling_enabled", G, "BusyPolling"),
    ("failed_resolutions", C, "FailedResolutions"),
    ("bytes_out_total", C, "TotalBytesOut"),
    ("spliced_bytes_out_total", C, "TotalSplicedBytesOut"),
    ("bytes_out_rate", G, "BytesOutRate"),
    ("recv_logs_total", C, "CumRecvLogs"),
    ("build_info", G, "Build info"),
    ("max_memory_bytes", G, "Memmax_bytes"),
    ("pool_allocated_bytes", G, "PoolAlloc_bytes"),
    ("pool_used_bytes", G, "PoolUsed_bytes"),
    ("start_time_seconds", G, "Start_time_sec"),
    ("total_warnings", C, "TotalWarnings"),
];

/// The key of values that exist only with zlib; HAProxy with another library has no number for them either.
const ZLIB: &str = "zlib";

/// Counters that HAProxy declares as gauges in the scope of servers.
const SERVER_GAUGES: [&str; 3] = ["check_failures_total", "check_up_down_total", "downtime_seconds_total"];

/// A metric of name servers: its name after the scope, its description, the figure. HAProxy never counts two of them.
type ResolverMetric = (&'static str, &'static str, fn(&crate::resolve::Counters) -> Option<&AtomicU64>);

const RESOLVERS: [ResolverMetric; 15] = [
    ("sent", "Questions that were sent", |c| Some(&c.sent)),
    ("send_error", "Questions that could not be sent", |c| Some(&c.snd_error)),
    ("valid", "Good answers", |c| Some(&c.valid)),
    ("update", "Answers that changed the address of a server", |c| Some(&c.update)),
    ("cname", "Answers with an alias", |_| None),
    ("cname_error", "Aliases that lead nowhere", |c| Some(&c.cname_error)),
    ("any_err", "Answers without records", |c| Some(&c.any_err)),
    ("nx", "Answers that the name does not exist", |c| Some(&c.nx)),
    ("timeout", "Questions without an answer", |_| None),
    ("refused", "Questions that were refused", |c| Some(&c.refused)),
    ("other", "Other errors", |c| Some(&c.other)),
    ("invalid", "Messages that could not be read", |c| Some(&c.invalid)),
    ("too_big", "Messages longer than accepted", |c| Some(&c.too_big)),
    ("truncated", "Answers that were cut off", |c| Some(&c.truncated)),
    ("outdated", "Answers that came too late", |c| Some(&c.outdated)),
];

/// The metrics of engines, by their names after `sluicegate_engine_`.
const ENGINES: &[NamedMetric<Connections>] = &[
    ("connections", G, "Connections that serve", |c| c.connected),
    ("connections_connecting", G, "Connections that are being made", |c| c.connecting),
    ("connections_max", G, "Most connections of the process", |c| c.max),
    ("connects_total", C, "Attempts to connect since the start", |c| c.connects),
    ("commands_queued", G, "Commands that wait for a connection", |c| c.queued),
    ("commands_in_flight", G, "Commands that were sent and not answered yet", |c| c.in_flight),
    ("commands_total", C, "Commands since the start", |c| c.commands),
    ("replies_total", C, "Replies since the start", |c| c.replies),
    ("error_replies_total", C, "Error replies of the engine since the start", |c| c.engine_errors),
    ("commands_resent_total", C, "Commands that were sent again since the start", |c| c.resent),
    ("commands_redirected_total", C, "Commands that a node sent elsewhere since the start", |c| c.redirected),
    ("cache_hits_total", C, "Reads that were answered from what was read before", |c| c.cache_hits),
    ("cache_misses_total", C, "Reads that might have been answered from what was read before", |c| c.cache_misses),
    ("cache_invalidated_total", C, "Keys that the engine told to have changed", |c| c.cache_invalidated),
    ("cache_bytes", G, "Bytes of replies that are kept", |c| c.cache_bytes),
    ("breaker_open", G, "Whether the engine is not asked for a while", |c| u64::from(c.is_open)),
];

/// The metrics of engines' nodes, by their names after `sluicegate_engine_node_`.
const NODES: &[NamedMetric<NodeFigures>] = &[
    ("connections", G, "Connections to a node that serve", |n| n.connected),
    ("connections_connecting", G, "Connections to a node that are being made", |n| n.connecting),
    ("connects_total", C, "Attempts to connect to a node since the start", |n| n.connects),
    ("commands_in_flight", G, "Commands that were sent to a node and not answered yet", |n| n.in_flight),
    ("replies_total", C, "Replies of a node since the start", |n| n.replies),
    ("error_replies_total", C, "Error replies of a node since the start", |n| n.engine_errors),
    ("breaker_open", G, "Whether a node is not asked for a while", |n| u64::from(n.is_open)),
];

const SOCKET_STATES: [&str; 3] = ["WAITING", "OPEN", "FULL"];

const SERVER_STATES: [&str; 5] = ["DOWN", "UP", "MAINT", "DRAIN", "NOLB"];

const CHECK_STATES: [&str; 16] = [
    "HANA", "SOCKERR", "L4OK", "L4TOUT", "L4CON", "L6OK", "L6TOUT", "L6RSP", "L7TOUT", "L7RSP", "L7OK", "L7OKC",
    "L7STS", "PROCERR", "PROCTOUT", "PROCOK",
];

/// The text for a missing number, as in HAProxy.
const NOTHING: &str = "NaN";

/// The answer to a scrape.
pub struct Scrape {
    running: Arc<Running>,
    wanted: Wanted,
    filter: Filter,
    now: Instant,
    /// The next section.
    section: usize,
    /// Its metric.
    metric: usize,
    /// The position among the objects of that metric.
    cursor: Cursor,
    begun: bool,
}

/// A section of metrics of objects: its scope, and the type of its objects as a mask.
const OBJECTS: [(&str, u8, u32); 4] =
    [("frontend", FRONTEND, 1), ("listener", LISTENER, 8), ("backend", BACKEND, 2), ("server", SERVER, 4)];

impl Scrape {
    /// Creates the document of `running` with this selection.
    pub fn new(running: Arc<Running>, wanted: Wanted) -> Scrape {
        let filter = Filter { no_maint: wanted.no_maint, ..Filter::default() };
        Scrape {
            running,
            wanted,
            filter,
            now: Instant::now(),
            section: 0,
            metric: 0,
            cursor: Cursor::default(),
            begun: false,
        }
    }

    /// Performs one step: all metrics of the process, some objects of one metric, or all stores. Returns `false` if
    /// there is no more.
    fn step(&mut self, out: &mut String) -> bool {
        let scopes = self.wanted.scopes;
        match self.section {
            0 => {
                if scopes & GLOBAL != 0 {
                    process(&self.running, &self.wanted, out);
                }
                self.section = 1;
            }
            section @ 1..=4 => {
                let (scope, bit, types) = OBJECTS[section - 1];
                let more = scopes & bit != 0 && self.objects(scope, bit, types, out);
                if !more {
                    (self.section, self.metric, self.begun) = (section + 1, 0, false);
                    self.cursor = Cursor::default();
                }
            }
            5 => {
                if scopes & STICKTABLE != 0 {
                    tables(&self.running, &self.wanted, out);
                }
                if scopes & RESOLVER != 0 {
                    resolvers(&self.running, &self.wanted, out);
                }
                if scopes & STORE != 0 {
                    stores(&self.running, &self.wanted, out);
                    engines(&self.running, &self.wanted, out);
                    limits(&self.running, &self.wanted, out);
                }
                self.section = 6;
            }
            _ => return false,
        }
        true
    }

    fn objects(&mut self, scope: &str, bit: u8, types: u32, out: &mut String) -> bool {
        // HAProxy's modules count nothing of single sockets.
        let extra = if self.wanted.extra && bit != LISTENER { modules() } else { &[] };
        let (name, kind, column, shape) = match METRICS.get(self.metric) {
            Some((name, scopes, kind, column, shape)) if scopes & bit != 0 => {
                let kind = if bit == SERVER && SERVER_GAUGES.contains(name) { G } else { *kind };
                (*name, kind, *column, *shape)
            }
            Some(_) => {
                self.metric += 1;
                return true;
            }
            None => match extra.get(self.metric - METRICS.len()) {
                Some(column) => (column.name, C, column.name, Plain),
                None => return false,
            },
        };
        let module = (self.metric >= METRICS.len()).then(|| name.split('_').next().unwrap_or(name));
        let metric = format!("haproxy_{scope}_{name}");
        let Some(place) = columns::place(column).filter(|_| self.wanted.has(&metric)) else {
            self.metric += 1;
            return true;
        };
        self.filter.types = Some(types);
        let mut family = Family { metric: &metric, kind, columns: &COLUMNS[place..], module, begun: self.begun, out };
        while family.out.len() < PIECE {
            let Some((object, _)) = self.cursor.next(&self.running, |_| true, &self.filter) else {
                (self.metric, self.begun) = (self.metric + 1, false);
                self.cursor = Cursor::default();
                return true;
            };
            family.tell(&View::new(&self.running, object, self.now), shape);
        }
        self.begun = family.begun;
        true
    }
}

impl Document for Scrape {
    fn piece(&mut self, out: &mut Vec<u8>) -> bool {
        let mut text = String::new();
        while text.len() < PIECE {
            if !self.step(&mut text) {
                out.extend_from_slice(text.as_bytes());
                return false;
            }
        }
        out.extend_from_slice(text.as_bytes());
        true
    }
}

/// Returns the columns of modules.
fn modules() -> &'static [Column] {
    &COLUMNS[columns::place("-").map_or(COLUMNS.len(), |at| at + 1)..]
}

/// The value of a label.
struct Label<'a>(&'a str);

impl std::fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' | '"' => write!(f, "\\{c}"),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

fn head(metric: &str, kind: &str, help: &str, out: &mut String) {
    // Writing to a string can't fail.
    let _ = write!(out, "# HELP {metric} {help}\n# TYPE {metric} {kind}\n");
}

/// The lines of one metric.
struct Family<'a> {
    metric: &'a str,
    kind: &'a str,
    /// The metric's column and the columns after it.
    columns: &'static [Column],
    module: Option<&'a str>,
    /// Whether a line was written, and before it the head.
    begun: bool,
    out: &'a mut String,
}

impl Family<'_> {
    /// Writes the lines of one object.
    fn tell(&mut self, view: &View<'_>, shape: Shape) {
        let proxy = view.proxy();
        let number = |column: &Column| match view.cell(column) {
            Cell::Number(number) => Some(number),
            _ => None,
        };
        let column = &self.columns[0];
        match shape {
            Http | Code if proxy.config.mode != Mode::Http => {}
            Check | Checked if !view.is_checked() => {}
            Plain | Http | Checked => match number(column) {
                Some(number) => self.put(view, None, number),
                None => self.put(view, None, NOTHING),
            },
            Milliseconds => match number(column) {
                Some(number) => self.put(view, None, format_args!("{:.6}", number as f64 / 1000.0)),
                // A check that has not ended has taken no time.
                None if column.name == "check_duration" => {}
                None => self.put(view, None, NOTHING),
            },
            Code => {
                for (class, column) in CLASSES.into_iter().zip(self.columns) {
                    self.put(view, Some(("code", class)), number(column).unwrap_or(0));
                }
            }
            Status => match view.server_status() {
                Some(status) => self.states(view, &SERVER_STATES, [state(status)]),
                None if matches!(view.object(), Object::Socket(..)) => {
                    let is = |text: &str| SOCKET_STATES.into_iter().find(|state| *state == text);
                    let state = if let Cell::Text(text) = view.cell(column) { is(&text) } else { None };
                    self.states(view, &SOCKET_STATES, state);
                }
                None => {
                    let up = matches!(view.cell(column), Cell::Text(text) if !matches!(&*text, "DOWN" | "STOP"));
                    self.states(view, &["DOWN", "UP"], [if up { "UP" } else { "DOWN" }]);
                }
            },
            Servers => {
                self.states(view, &SERVER_STATES, proxy.servers.iter().map(|server| state(&server.shared.status())));
            }
            Checks => {
                let checked = proxy.servers.iter().filter(|server| server.config.check.is_some());
                self.states(view, &CHECK_STATES, checked.filter_map(|server| result(&server.shared.status())));
            }
            Check => self.states(view, &CHECK_STATES, view.server_status().and_then(result)),
        }
    }

    /// Writes one line for each existing state, with the number of objects in it.
    fn states<const N: usize>(
        &mut self,
        view: &View<'_>,
        names: &[&str; N],
        are: impl IntoIterator<Item = &'static str>,
    ) {
        let mut counts = [0u64; N];
        for state in are {
            if let Some(at) = names.iter().position(|name| *name == state) {
                counts[at] += 1;
            }
        }
        for (name, count) in names.iter().zip(counts) {
            self.put(view, Some(("state", name)), count);
        }
    }

    fn put(&mut self, view: &View<'_>, label: Option<(&str, &str)>, value: impl std::fmt::Display) {
        if !std::mem::replace(&mut self.begun, true) {
            head(self.metric, self.kind, describe::column(self.columns[0].name), self.out);
        }
        let _ = write!(self.out, "{}{{proxy=\"{}\"", self.metric, Label(&view.proxy().config.name));
        match view.object() {
            Object::Server(_, server) => _ = write!(self.out, ",server=\"{}\"", Label(server.name())),
            Object::Socket(_, listener) => _ = write!(self.out, ",listener=\"{}\"", Label(&listener.name())),
            _ => {}
        }
        for (name, value) in label.into_iter().chain(self.module.map(|module| ("mod", module))) {
            let _ = write!(self.out, ",{name}=\"{value}\"");
        }
        let _ = writeln!(self.out, "}} {value}");
    }
}

fn state(status: &ServerStatus) -> &'static str {
    match status.admin() {
        Admin::Maintenance => "MAINT",
        _ if !status.is_running() => "DOWN",
        _ if status.operation == Operation::Stopping => "NOLB",
        Admin::Drain => "DRAIN",
        Admin::Ready => "UP",
    }
}

/// Returns the result of the last check, for servers with running checks.
fn result(status: &ServerStatus) -> Option<&'static str> {
    status.check.as_ref().filter(|_| status.checks).map(|check| check.status.name())
}

fn process(running: &Running, wanted: &Wanted, out: &mut String) {
    let fields = info::fields(running, false);
    for (name, kind, key) in PROCESS {
        let metric = format!("haproxy_process_{name}");
        if *key == ZLIB && wanted.has(&metric) {
            head(&metric, kind, "Memory of zlib, which is not used", out);
            let _ = writeln!(out, "{metric} {NOTHING}");
            continue;
        }
        let Some(field) = fields.iter().find(|field| field.name == *key).filter(|_| wanted.has(&metric)) else {
            continue;
        };
        head(&metric, kind, describe::key(key), out);
        let label = match *name {
            "build_info" => "version",
            "node" => "node",
            "description" => "desc",
            _ => {
                let _ = writeln!(out, "{metric} {}", field.value);
                continue;
            }
        };
        let _ = writeln!(out, "{metric}{{{label}=\"{}\"}} 1", Label(&field.value));
    }
}

fn tables(running: &Running, wanted: &Wanted, out: &mut String) {
    for (metric, help) in [
        ("haproxy_sticktable_size", "Entries that the stick table has room for"),
        ("haproxy_sticktable_used", "Entries of the stick table now"),
    ] {
        if !wanted.has(metric) || running.directory.tables.is_empty() {
            continue;
        }
        head(metric, G, help, out);
        for table in &running.directory.tables {
            let count = if metric.ends_with("size") { table.size() as usize } else { table.len() };
            let kind = table.key.name();
            let _ = writeln!(out, "{metric}{{name=\"{}\",type=\"{kind}\"}} {count}", Label(&table.name));
        }
    }
}

fn resolvers(running: &Running, wanted: &Wanted, out: &mut String) {
    for (name, help, figure) in RESOLVERS {
        let metric = format!("haproxy_resolver_{name}");
        if running.directory.resolvers.is_empty() || !wanted.has(&metric) {
            continue;
        }
        head(&metric, G, help, out);
        for resolver in &running.directory.resolvers {
            for (server, counters) in resolver.config.nameservers.iter().zip(&resolver.counters) {
                let (section, name) = (Label(&resolver.config.name), Label(&server.name));
                let count = figure(counters).map_or(0, |count| count.load(Ordering::Relaxed));
                let _ = writeln!(out, "{metric}{{resolver=\"{section}\",nameserver=\"{name}\"}} {count}");
            }
        }
    }
}

fn stores(running: &Running, wanted: &Wanted, out: &mut String) {
    let stores = running.told(|engine| engine.figures());
    named("store", STORES, &stores, wanted, out);
    let disks: Vec<(&str, Disk)> = stores.iter().filter_map(|(name, store)| Some((*name, store.disk?))).collect();
    named("store", DISKS, &disks, wanted, out);
    let appended: Vec<(&str, Appended)> =
        disks.iter().filter_map(|(name, disk)| Some((*name, disk.appended?))).collect();
    named("store", APPENDED, &appended, wanted, out);
    let replicated: Vec<_> = stores.iter().filter_map(|(name, of)| Some((*name, of.replication?))).collect();
    named("store", REPLICATED, &replicated, wanted, out);
}

/// Writes a line of each metric for each store, or each engine.
fn named<T>(kind_of: &str, metrics: &[NamedMetric<T>], told: &[(&str, T)], wanted: &Wanted, out: &mut String) {
    for (name, kind, help, figure) in metrics {
        let metric = format!("sluicegate_{kind_of}_{name}");
        if told.is_empty() || !wanted.has(&metric) {
            continue;
        }
        head(&metric, kind, help, out);
        for (name, figures) in told {
            let _ = writeln!(out, "{metric}{{{kind_of}=\"{}\"}} {}", Label(name), figure(figures));
        }
    }
}

fn engines(running: &Running, wanted: &Wanted, out: &mut String) {
    let engines = running.told(|engine| engine.connections());
    named("engine", ENGINES, &engines, wanted, out);
    let has = |name: &str| !engines.is_empty() && wanted.has(name);
    let failures = "sluicegate_engine_failures_total";
    if has(failures) {
        head(failures, C, "Commands that were not answered since the start, by the reason", out);
        for (engine, seen) in &engines {
            for (reason, count) in &seen.failures {
                let _ = writeln!(out, "{failures}{{engine=\"{}\",reason=\"{reason}\"}} {count}", Label(engine));
            }
        }
    }
    for (name, kind, help, figure) in NODES {
        let metric = format!("sluicegate_engine_node_{name}");
        if !has(&metric) {
            continue;
        }
        head(&metric, kind, help, out);
        for (engine, seen) in &engines {
            // A former node may be known a second time, in its new role.
            for node in seen.nodes.iter().filter(|node| node.role != "former") {
                let (engine, address, role) = (Label(engine), Label(&node.address), node.role);
                let labels = format_args!("engine=\"{engine}\",node=\"{address}\",role=\"{role}\"");
                let _ = writeln!(out, "{metric}{{{labels}}} {}", figure(node));
            }
        }
    }
    let waits = "sluicegate_engine_wait_seconds";
    if has(waits) {
        head(waits, "histogram", "How long commands waited for a connection", out);
        for (engine, seen) in &engines {
            let (engine, mut sum) = (Label(engine), 0);
            for (bucket, count) in seen.waits.iter().enumerate() {
                sum += count;
                let _ = match WAIT_BOUNDS_MS.get(bucket) {
                    Some(ms) => {
                        writeln!(out, "{waits}_bucket{{engine=\"{engine}\",le=\"{}\"}} {sum}", *ms as f64 / 1000.0)
                    }
                    None => writeln!(out, "{waits}_bucket{{engine=\"{engine}\",le=\"+Inf\"}} {sum}"),
                };
            }
            let seconds = seen.waited_us as f64 / 1e6;
            let _ = writeln!(out, "{waits}_sum{{engine=\"{engine}\"}} {seconds}");
            let _ = writeln!(out, "{waits}_count{{engine=\"{engine}\"}} {sum}");
        }
    }
}

/// The metrics of limits, by their names after `sluicegate_limit_`.
const LIMITS: &[NamedMetric<Counts>] = &[
    ("near_total", C, "Requests that were allowed with at most a fifth left, since the start", |c| c.near),
    (
        "failures_total",
        C,
        "Requests of which the engine couldn't say it, or whose key was none, since the start",
        |c| c.failed,
    ),
    ("local_total", C, "Requests that the embedded store counted instead, since the start", |c| c.local),
];

fn limits(running: &Running, wanted: &Wanted, out: &mut String) {
    let limits: Vec<(&str, Counts)> =
        running.directory.limits.iter().map(|limit| (&*limit.config.name, limit.counts())).collect();
    named("limit", LIMITS, &limits, wanted, out);
    let requests = "sluicegate_limit_requests_total";
    if limits.is_empty() || !wanted.has(requests) {
        return;
    }
    head(requests, C, "Requests that were counted since the start, by what they were told", out);
    for (limit, counts) in &limits {
        let results = [("allowed", counts.allowed), ("denied", counts.denied), ("shadowed", counts.shadowed)];
        for (result, count) in results {
            let _ = writeln!(out, "{requests}{{limit=\"{}\",result=\"{result}\"}} {count}", Label(limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(query: &str) -> Option<u8> {
        Wanted::read(query.as_bytes()).ok().map(|wanted| wanted.scopes)
    }

    #[test]
    fn queries_choose() {
        assert_eq!(scopes(""), Some(ALL));
        assert_eq!(scopes("scope=server"), Some(SERVER));
        assert_eq!(scopes("scope=global&x=y&scope=%66rontend"), Some(GLOBAL | FRONTEND));
        assert_eq!(scopes("scope=*&scope="), Some(0));
        assert_eq!(scopes("scope=&scope=store"), Some(STORE));
        assert_eq!([scopes("scope=xx"), scopes("%zz")], [None, None]);
        let wanted = Wanted::read(b"no-maint&metrics=a,-b,c&extra-counters").unwrap();
        assert!(wanted.no_maint && wanted.extra && wanted.has("a") && !wanted.has("b") && !wanted.has("d"));
        assert!(Wanted::read(b"metrics=-b").unwrap().has("a"));
    }

    #[test]
    fn every_metric_has_a_column() {
        for (name, _, _, column, shape) in METRICS {
            let place = columns::place(column).unwrap_or_else(|| panic!("{name}: {column}"));
            for class in CLASSES.iter().enumerate().filter(|_| *shape == Code) {
                assert_eq!(COLUMNS[place + class.0].name, format!("hrsp_{}", class.1));
            }
        }
        for (name, _, key) in PROCESS {
            assert!(*key == ZLIB || info::ROWS.iter().any(|row| row.name == *key), "{name}: {key}");
        }
        assert_eq!(Label("a\"b\\c\nd").to_string(), "a\\\"b\\\\c\\nd");
    }
}
