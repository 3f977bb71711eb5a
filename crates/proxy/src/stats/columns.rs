//! `show stat`: HAProxy 3.2's columns in its order, one row of the catalogue each.
//!
//! A cell is empty where HAProxy leaves it empty for that kind of line. What this process does not do (caches)
//! is truly 0 and is printed as such.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{Mode, ServerAddress};

use super::typed::Field;
use super::{Filter, Object};
use crate::counters::{Average, Count, Counters, Figures, second};
use crate::frontend::Gate;
use crate::process::Phase;
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, AgentStatus, CheckReport, Operation, ServerRun, ServerStatus};

/// A cell of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The column does not apply to this kind of line.
    Empty,
    /// A number.
    Number(i64),
    /// A text; quoted on output if necessary.
    Text(Cow<'static, str>),
}

use Cell::{Empty, Number};

impl From<&'static str> for Cell {
    fn from(text: &'static str) -> Cell {
        Cell::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(Cow::Owned(text))
    }
}

fn count(value: u64) -> Cell {
    Number(i64::try_from(value).unwrap_or(i64::MAX))
}

/// The source of cells.
pub struct View<'a> {
    running: &'a Running,
    object: Object<'a>,
    now: Instant,
    status: Option<ServerStatus>,
    /// Whether a backend's status includes the numbers of its servers, which it does where some servers are omitted.
    counts: bool,
    /// Whether addresses, names of cookies and algorithms are left out.
    no_legends: bool,
}

/// A column.
pub struct Column {
    /// Its name in the header.
    pub name: &'static str,
    /// Origin, nature and scope, one letter each, as the typed format shows them.
    pub tags: &'static str,
    /// Its type in the typed format.
    pub kind: &'static str,
    cell: fn(&View<'_>) -> Cell,
}

macro_rules! columns {
    ($($name:literal $tags:ident $kind:ident => $cell:expr,)*) => {
        /// Every column in order.
        pub const COLUMNS: &[Column] =
            &[$(Column { name: $name, tags: stringify!($tags), kind: stringify!($kind), cell: $cell }),*];
    };
}

columns! {
    "pxname" KNS str => |v| v.proxy().config.name.to_string().into(),
    "svname" KNS str => |v| match v.object {
        Object::Frontend(_) => "FRONTEND".into(),
        Object::Backend(_) => "BACKEND".into(),
        Object::Server(_, server) => server.name().to_string().into(),
        Object::Socket(_, listener) => listener.name().into_owned().into(),
    },
    "qcur" MGP u32 => |v| match v.object {
        Object::Frontend(_) | Object::Socket(..) => Empty,
        Object::Backend(proxy) => count(proxy.backend.queue.len().into()),
        Object::Server(_, server) => count(server.shared.queued.load(Ordering::Relaxed).into()),
    },
    "qmax" MMP u32 => |v| match v.object {
        Object::Frontend(_) | Object::Socket(..) => Empty,
        Object::Backend(proxy) => count(proxy.backend.queue.highest().into()),
        Object::Server(_, server) => count(server.shared.queued_max.load(Ordering::Relaxed).into()),
    },
    "scur" MGP u32 => |v| match v.object {
        Object::Frontend(proxy) => count(proxy.frontend.sessions.current().into()),
        Object::Socket(_, listener) => count(listener.sessions.current().into()),
        _ => count(v.figures().scur.load(Ordering::Relaxed).into()),
    },
    "smax" MMP u32 => |v| match v.object {
        Object::Frontend(proxy) => count(proxy.frontend.sessions.peak().into()),
        Object::Socket(_, listener) => count(listener.sessions.peak().into()),
        _ => count(v.figures().smax.load(Ordering::Relaxed).into()),
    },
    "slim" CLP u32 => |v| match v.object {
        Object::Frontend(proxy) => count(frontend_limit(v.running, proxy)),
        Object::Backend(proxy) => count(proxy.backend.fullconn().into()),
        Object::Server(_, server) => server.shared.maxconn().map_or(Empty, |max| count(max.into())),
        Object::Socket(_, listener) => count(listener.sessions.max().unwrap_or(0).into()),
    },
    "stot" MCP u64 => |v| match v.object {
        // Of a socket it is connections, those that rules refused at once included.
        Object::Socket(..) => v.sum(|c| &c.conn_tot),
        _ => v.sum(|c| &c.stot),
    },
    "bin" MCP u64 => |v| v.sum(|c| &c.bin),
    "bout" MCP u64 => |v| v.sum(|c| &c.bout),
    "dreq" MCP u64 => |v| v.no_servers_sum(|c| &c.dreq),
    "dresp" MCP u64 => |v| v.sum(|c| &c.dresp),
    "ereq" MCP u64 => |v| v.front_sum(|c| &c.ereq),
    "econ" MCP u64 => |v| v.no_frontends(|c| &c.econ),
    "eresp" MCP u64 => |v| v.no_frontends(|c| &c.eresp),
    "wretr" MCP u64 => |v| v.no_frontends(|c| &c.wretr),
    "wredis" MCP u64 => |v| v.no_frontends(|c| &c.wredis),
    "status" SGP str => status,
    "weight" MaP u32 => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).weight.into()),
        _ => v.status(|status| count(status.current_weight().into())),
    },
    "act" MGP u32 => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).active as u64),
        _ => v.server(|server| Number(i64::from(!server.config.backup))),
    },
    "bck" MGP u32 => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).backup as u64),
        _ => v.server(|server| Number(i64::from(server.config.backup))),
    },
    "chkfail" MCP u64 => |v| v.checked(|status| count(status.failed_checks)),
    "chkdown" MCP u64 => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).times_down),
        _ => v.checked(|status| count(status.times_down)),
    },
    "lastchg" MAP u32 => |v| match v.object {
        Object::Backend(proxy) => count(v.seconds_since(proxy.backend.summary(v.now).changed)),
        _ => v.status(|status| count(v.seconds_since(status.changed))),
    },
    "downtime" MCP u32 => |v| match v.object {
        Object::Backend(proxy) if proxy.servers.is_empty() => Empty,
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).downtime.as_secs()),
        _ => v.checked(|status| count(status.downtime_at(v.now).as_secs())),
    },
    "qlimit" CLS u32 => |v| v.server(|server| server.config.maxqueue.map_or(Empty, |max| count(max.into()))),
    "pid" KGP u32 => |_| Number(1),
    "iid" KGS u32 => |v| count(v.proxy().config.uid.into()),
    "sid" KGS u32 => |v| match v.object {
        Object::Server(_, server) => count(server.config.sid.into()),
        Object::Socket(_, listener) => count(listener.id.into()),
        _ => Number(0),
    },
    "throttle" MaP u32 => |v| match v.object {
        Object::Server(..) => v.status(|status| status.throttle().map_or(Empty, |share| count(share.into()))),
        _ => Empty,
    },
    "lbtot" MCP u64 => |v| v.no_frontends(|c| &c.lbtot),
    "tracked" KNS str => |v| v.server(|server| match v.tracked_by(server) {
        Some(name) => name.into(),
        None => Empty,
    }),
    "type" CGS u32 => |v| Number(match v.object {
        Object::Frontend(_) => 0,
        Object::Backend(_) => 1,
        Object::Server(..) => 2,
        Object::Socket(..) => 3,
    }),
    "rate" MRP u32 => |v| v.no_sockets(|figures| count(figures.rate(v.now, |c| &c.sess_rate).into())),
    "rate_lim" CLP u32 => |v| v.frontend(|proxy| {
        count(proxy.frontend.pace().map_or(0, |pace| pace.limit()).into())
    }),
    "rate_max" MMP u32 => |v| v.no_sockets(|figures| count(figures.rate_max().into())),
    "check_status" MOP str => |v| v.checking(|status| word(status.check.as_ref(), status.checking)),
    "check_code" MOP u64 => |v| v.checking(|status| code(status.check.as_ref())),
    "check_duration" MDP u64 => |v| v.checking(|status| duration(status.check.as_ref())),
    "hrsp_1xx" MCP u64 => |v| v.http(|c| &c.hrsp_1xx),
    "hrsp_2xx" MCP u64 => |v| v.http(|c| &c.hrsp_2xx),
    "hrsp_3xx" MCP u64 => |v| v.http(|c| &c.hrsp_3xx),
    "hrsp_4xx" MCP u64 => |v| v.http(|c| &c.hrsp_4xx),
    "hrsp_5xx" MCP u64 => |v| v.http(|c| &c.hrsp_5xx),
    "hrsp_other" MCP u64 => |v| v.http(|c| &c.hrsp_other),
    "hanafail" MCP u64 => |v| v.server(|server| match server.config.health.observe {
        Some(_) => v.status(|status| count(status.observed)),
        None => Empty,
    }),
    "req_rate" MRP u32 => |v| v.frontend(|proxy| count(proxy.frontend.figures.rate(v.now, |c| &c.req_rate).into())),
    "req_rate_max" MMP u32 => |v| v.frontend(|proxy| count(proxy.frontend.figures.req_rate_max().into())),
    "req_tot" MCP u64 => |v| match v.object {
        Object::Frontend(_) => v.sum(|c| &c.req_tot),
        _ => v.http(|c| &c.req_tot),
    },
    "cli_abrt" MCP u64 => |v| v.no_frontends(|c| &c.cli_abrt),
    "srv_abrt" MCP u64 => |v| v.no_frontends(|c| &c.srv_abrt),
    "comp_in" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.comp_in)),
    "comp_out" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.comp_out)),
    "comp_byp" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.comp_byp)),
    "comp_rsp" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.comp_rsp)),
    "lastsess" MAP s32 => |v| match v.object {
        Object::Frontend(_) | Object::Socket(..) => Empty,
        _ => match v.figures().highest(|c| &c.lastsess) {
            0 => Number(-1),
            at => Number(i64::from(second(v.now)) - at as i64),
        },
    },
    "last_chk" MOP str => |v| v.checking(|status| info(status.check.as_ref())),
    "last_agt" MOP str => |v| v.asking(|agent| info(agent.report.as_ref())),
    "qtime" MaP u32 => |v| v.average(|c| &c.qtime),
    "ctime" MaP u32 => |v| v.average(|c| &c.ctime),
    "rtime" MaP u32 => |v| v.average(|c| &c.rtime),
    "ttime" MaP u32 => |v| v.average(|c| &c.ttime),
    "agent_status" MOP str => |v| v.asking(|agent| word(agent.report.as_ref(), agent.asking)),
    "agent_code" MOP u64 => |v| v.asking(|agent| code(agent.report.as_ref())),
    "agent_duration" MDP u64 => |v| v.asking(|agent| duration(agent.report.as_ref())),
    "check_desc" MOP str => |v| v.checking(|status| description(status.check.as_ref())),
    "agent_desc" MOP str => |v| v.asking(|agent| description(agent.report.as_ref())),
    "check_rise" CGS u32 => |v| v.checking(|status| count(status.health.rise.into())),
    "check_fall" CGS u32 => |v| v.checking(|status| count(status.health.fall.into())),
    "check_health" CGS u32 => |v| v.checking(|status| count(status.health.level.into())),
    "agent_rise" CGS u32 => |v| v.asking(|agent| count(agent.health.rise.into())),
    "agent_fall" CGS u32 => |v| v.asking(|agent| count(agent.health.fall.into())),
    "agent_health" CGS u32 => |v| v.asking(|agent| count(agent.health.level.into())),
    "addr" CGS str => |v| match v.object {
        _ if v.no_legends => Empty,
        Object::Socket(_, listener) => Cell::Text(listener.address()),
        _ => v.server(address),
    },
    "cookie" CNS str => |v| match v.object {
        _ if v.no_legends => Empty,
        Object::Frontend(_) | Object::Socket(..) => Empty,
        Object::Backend(proxy) => proxy.config.cookie.as_ref().map_or(Empty, |cookie| cookie.name.to_string().into()),
        Object::Server(proxy, server) => {
            proxy.cookie_of(server.shared.index).map_or(Empty, |cookie| cookie.to_string().into())
        }
    },
    "mode" CGS str => |v| match v.proxy().config.mode {
        Mode::Tcp => "tcp".into(),
        Mode::Http => "http".into(),
        Mode::Log => "syslog".into(),
        Mode::Spop => "spop".into(),
    },
    "algo" CGS str => |v| match v.object {
        _ if v.no_legends => Empty,
        Object::Backend(proxy) if proxy.config.dispatch.is_some() => "none".into(),
        Object::Backend(proxy) => proxy.config.balance.name().into(),
        _ => Empty,
    },
    "conn_rate" MRP u32 => |v| v.frontend(|proxy| count(proxy.frontend.figures.rate(v.now, |c| &c.conn_rate).into())),
    "conn_rate_max" MMP u32 => |v| v.frontend(|proxy| count(proxy.frontend.figures.conn_rate_max().into())),
    "conn_tot" MCP u64 => |v| v.front_sum(|c| &c.conn_tot),
    "intercepted" MCP u64 => |v| match v.proxy().config.mode {
        Mode::Http => v.frontends_only(|c| &c.intercepted),
        Mode::Tcp | Mode::Log | Mode::Spop => Empty,
    },
    "dcon" MCP u64 => |v| v.front_sum(|c| &c.dcon),
    "dses" MCP u64 => |v| v.front_sum(|c| &c.dses),
    "wrew" MCP u64 => |v| v.sum(|c| &c.wrew),
    "connect" MCP u64 => |v| v.no_frontends(|c| &c.connect),
    "reuse" MCP u64 => |v| v.no_frontends(|c| &c.reuse),
    "cache_lookups" MCP u64 => |v| v.http_proxies(v.sum(|c| &c.cache_lookups)),
    "cache_hits" MCP u64 => |v| v.http_proxies(v.sum(|c| &c.cache_hits)),
    "srv_icur" MGP u32 => |v| v.server(|server| count(server.shared.idle_connections().into())),
    "src_ilim" CLP u32 => |v| v.server(|server| server.config.pool.max.map_or(Empty, |max| count(max.into()))),
    "qtime_max" MMP u32 => |v| v.no_frontends_highest(|c| &c.qtime.max),
    "ctime_max" MMP u32 => |v| v.no_frontends_highest(|c| &c.ctime.max),
    "rtime_max" MMP u32 => |v| v.no_frontends_highest(|c| &c.rtime.max),
    "ttime_max" MMP u32 => |v| v.no_frontends_highest(|c| &c.ttime.max),
    "eint" MCP u64 => |v| v.sum(|c| &c.eint),
    "idle_conn_cur" MGP u32 => |v| v.server(|server| {
        let shared = &server.shared;
        count(shared.idle_connections().saturating_sub(shared.safe_idle_connections()).into())
    }),
    "safe_conn_cur" MGP u32 => |v| v.server(|server| count(server.shared.safe_idle_connections().into())),
    "used_conn_cur" MGP u32 => |v| v.server(|server| count(server.shared.figures.scur.load(Ordering::Relaxed).into())),
    "need_conn_est" MGP u32 => |v| v.server(|server| count(server.shared.figures.smax.load(Ordering::Relaxed).into())),
    "uweight" MaP u32 => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).weight.into()),
        _ => v.status(|status| count(status.weight.into())),
    },
    "agg_server_status" MGP u32 => |v| v.backend(|_| Number(0)),
    "agg_server_check_status" MGP u32 => |v| v.backend(|_| Number(0)),
    "agg_check_status" MGP u32 => |v| v.backend(|_| Number(0)),
    "srid" MCP u32 => |v| v.server(|_| Number(0)),
    "sess_other" MCP u64 => |v| v.frontend(|proxy| match proxy.config.mode {
        Mode::Http => Number(0),
        Mode::Tcp | Mode::Log | Mode::Spop => v.sum(|c| &c.stot),
    }),
    "h1sess" MCP u64 => |v| v.frontend(|proxy| match proxy.config.mode {
        Mode::Http => v.not_http2(|c| &c.stot, |c| &c.http2.total_connections),
        Mode::Tcp | Mode::Log | Mode::Spop => Number(0),
    }),
    "h2sess" MCP u64 => |v| v.frontends_only(|c| &c.http2.total_connections),
    "h3sess" MCP u64 => |v| v.frontend(|_| Number(0)),
    "req_other" MCP u64 => |v| v.frontend(|_| Number(0)),
    "h1req" MCP u64 => |v| v.frontend(|_| v.not_http2(|c| &c.req_tot, |c| &c.http2.total_streams)),
    "h2req" MCP u64 => |v| v.frontends_only(|c| &c.http2.total_streams),
    "h3req" MCP u64 => |v| v.frontend(|_| Number(0)),
    "proto" SGP str => |v| match v.object {
        Object::Socket(_, listener) if listener.is_reverse() => "rev".into(),
        Object::Socket(_, listener) if listener.is_passed => "sockpair".into(),
        Object::Socket(_, listener) => match &*listener.address() {
            address if address.starts_with('[') => "tcpv6",
            address if address.starts_with(|first: char| first.is_ascii_digit()) => "tcpv4",
            _ => "unix_stream",
        }
        .into(),
        _ => Empty,
    },
    "-" KNS str => |_| "-".into(),
    "ssl_sess" MCP u64 => |v| v.sum(|c| &c.tls.sessions),
    "ssl_reused_sess" MCP u64 => |v| v.sum(|c| &c.tls.resumed),
    "ssl_failed_handshake" MCP u64 => |v| v.sum(|c| &c.tls.failed),
    "ssl_ocsp_staple" MCP u64 => |v| v.sum(|c| &c.tls.stapled),
    "ssl_failed_ocsp_staple" MCP u64 => |v| v.sum(|c| &c.tls.not_stapled),
    "h2_headers_rcvd" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.headers_rcvd)),
    "h2_data_rcvd" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.data_rcvd)),
    "h2_settings_rcvd" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.settings_rcvd)),
    "h2_rst_stream_rcvd" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.rst_stream_rcvd)),
    "h2_goaway_rcvd" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.goaway_rcvd)),
    "h2_detected_conn_protocol_errors" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.detected_conn_protocol_errors)),
    "h2_detected_strm_protocol_errors" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.detected_strm_protocol_errors)),
    "h2_rst_stream_resp" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.rst_stream_resp)),
    "h2_goaway_resp" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.goaway_resp)),
    "h2_open_connections" MGP u64 => |v| v.proxies_only(count(v.open_connections_of_http2())),
    "h2_backend_open_streams" MGP u64 => |v| v.proxies_only(count(v.open_streams_of_http2())),
    "h2_total_connections" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.total_connections)),
    "h2_backend_total_streams" MCP u64 => |v| v.proxies_only(v.sum(|c| &c.http2.total_streams)),
    "h1_open_connections" MGP u64 => |v| match v.object {
        Object::Frontend(proxy) if v.is_http() => {
            count(u64::from(proxy.frontend.sessions.current()).saturating_sub(v.open_connections_of_http2()))
        }
        Object::Backend(proxy) if v.is_http() => {
            count(server_connections(proxy).saturating_sub(v.open_connections_of_http2()))
        }
        _ => v.proxies_only(Number(0)),
    },
    "h1_open_streams" MGP u64 => |v| match v.object {
        Object::Backend(proxy) if v.is_http() => {
            count(server_requests(proxy).saturating_sub(v.open_streams_of_http2()))
        }
        _ => v.proxies_only(Number(0)),
    },
    "h1_total_connections" MCP u64 => |v| match v.object {
        Object::Frontend(_) if v.is_http() => v.not_http2(|c| &c.conn_tot, |c| &c.http2.total_connections),
        Object::Backend(_) if v.is_http() => v.not_http2(|c| &c.connect, |c| &c.http2.total_connections),
        _ => v.proxies_only(Number(0)),
    },
    "h1_total_streams" MCP u64 => |v| match v.object {
        Object::Frontend(_) | Object::Backend(_) if v.is_http() => {
            v.not_http2(|c| &c.req_tot, |c| &c.http2.total_streams)
        }
        _ => v.proxies_only(Number(0)),
    },
    "h1_bytes_in" MCP u64 => |v| match v.object {
        Object::Frontend(_) if v.is_http() => v.sum(|c| &c.bin),
        Object::Backend(_) if v.is_http() => v.sum(|c| &c.bout),
        _ => v.proxies_only(Number(0)),
    },
    "h1_bytes_out" MCP u64 => |v| match v.object {
        Object::Frontend(_) if v.is_http() => v.sum(|c| &c.bout),
        Object::Backend(_) if v.is_http() => v.sum(|c| &c.bin),
        _ => v.proxies_only(Number(0)),
    },
    "h1_spliced_bytes_in" MCP u64 => |v| match v.object {
        Object::Frontend(_) | Object::Backend(_) => v.sum(|c| &c.h1_spliced_bytes_in),
        _ => v.proxies_only(Number(0)),
    },
    "h1_spliced_bytes_out" MCP u64 => |v| match v.object {
        Object::Frontend(_) | Object::Backend(_) => v.sum(|c| &c.h1_spliced_bytes_out),
        _ => v.proxies_only(Number(0)),
    },
}

fn status(v: &View<'_>) -> Cell {
    match v.object {
        Object::Frontend(_) if v.running.process.phase() != Phase::Serving => "STOP".into(),
        Object::Frontend(proxy) => match proxy.frontend.gate() {
            Gate::Open => "OPEN".into(),
            Gate::Paused => "PAUSED".into(),
            Gate::Shut => "STOP".into(),
        },
        Object::Backend(proxy) => {
            let word = if proxy.backend.summary(v.now).up { "UP" } else { "DOWN" };
            if !v.counts {
                return word.into();
            }
            let up = proxy.servers.iter().filter(|server| server.shared.status().is_running()).count();
            format!("{word} ({up}/{})", proxy.servers.len()).into()
        }
        Object::Server(_, server) => v.status(|status| {
            let first = v.running.tracked(server);
            if status.inherited == Admin::Maintenance && status.admin != Admin::Maintenance {
                return format!("MAINT (via {})", v.tracked_by(server).unwrap_or_default()).into();
            }
            let first_status = first.shared.status();
            server_status(status, &first_status, first.config.check.is_some())
        }),
        Object::Socket(_, listener) => {
            let full = listener.sessions.max().is_some_and(|max| listener.sessions.current() >= max);
            match (full, listener.is_waiting()) {
                (true, _) => "FULL",
                (_, true) => "WAITING",
                _ => "OPEN",
            }
            .into()
        }
    }
}

/// Returns a check's status as in `check_status`, with `* ` in front while another check is running.
fn word(report: Option<&CheckReport>, under_way: bool) -> Cell {
    let name = report.map_or("INI", |report| report.status.name());
    if under_way { format!("* {name}").into() } else { name.into() }
}

fn code(report: Option<&CheckReport>) -> Cell {
    report.filter(|report| report.status.has_code()).map_or(Empty, |report| count(report.code.into()))
}

fn duration(report: Option<&CheckReport>) -> Cell {
    report.map_or(Empty, |report| count(report.duration.unwrap_or_default().as_millis() as u64))
}

fn info(report: Option<&CheckReport>) -> Cell {
    report.map_or(Empty, |report| match &*report.info {
        [] => Empty,
        info => String::from_utf8_lossy(info).into_owned().into(),
    })
}

fn description(report: Option<&CheckReport>) -> Cell {
    report.map_or("Initializing", |report| report.status.description()).into()
}

/// Returns a server's status from its own state, and from the health of the server that it tracks.
fn server_status(status: &ServerStatus, first: &ServerStatus, configured: bool) -> Cell {
    let health = first.health;
    let checked = configured && first.checks;
    let asked = first.agent.enabled;
    let partly = checked && health.level != 0 && health.level != health.top();
    let drained = status.admin() == Admin::Drain;
    let name = match status.operation {
        _ if status.unresolved => return "MAINT (resolution)".into(),
        _ if status.admin() == Admin::Maintenance => return "MAINT".into(),
        Operation::Running if drained && asked => return "DRAIN (agent)".into(),
        Operation::Running if drained => "DRAIN",
        Operation::Running if !checked => return "no check".into(),
        Operation::Running => "UP",
        Operation::Stopping => "NOLB",
        Operation::Stopped if asked && first.agent.health.level == 0 => return "DOWN (agent)".into(),
        Operation::Stopped => "DOWN",
    };
    match (partly, status.operation) {
        (false, _) => name.into(),
        (true, Operation::Stopped) => format!("{name} {}/{}", health.level, health.rise).into(),
        (true, _) => format!("{name} {}/{}", (health.level + 1).saturating_sub(health.rise), health.fall).into(),
    }
}

fn address(server: &ServerRun) -> Cell {
    match &server.config.address {
        ServerAddress::Unix(path) => format!("unix:{}", path.display()).into(),
        ServerAddress::Abstract(name) => name.to_string().into(),
        ServerAddress::Sockpair(_) | ServerAddress::Reverse => Empty,
        ServerAddress::Inet(..) | ServerAddress::Name(..) => match server.socket_addr(None) {
            Some(address) => address.to_string().into(),
            // An address without a port is shown with port 0, as in HAProxy.
            None => server.host_only().map_or(Empty, |address| address.to_string().into()),
        },
    }
}

/// Returns a frontend's `maxconn`, or the process's.
fn frontend_limit(running: &Running, proxy: &ProxyRun) -> u64 {
    proxy.frontend.sessions.max().or(running.process.sessions.max()).map_or(0, u64::from)
}

fn server_requests(proxy: &ProxyRun) -> u64 {
    proxy.servers.iter().map(|server| u64::from(server.shared.figures.scur.load(Ordering::Relaxed))).sum()
}

fn server_connections(proxy: &ProxyRun) -> u64 {
    let idle: u64 = proxy.servers.iter().map(|server| u64::from(server.shared.idle_connections())).sum();
    server_requests(proxy) + idle
}

impl<'a> View<'a> {
    /// Creates the view of an object at `now`.
    pub fn new(running: &'a Running, object: Object<'a>, now: Instant) -> View<'a> {
        let status = match object {
            Object::Server(_, server) => Some(server.shared.status()),
            _ => None,
        };
        View { running, object, now, status, counts: false, no_legends: false }
    }

    /// Returns a cell of the object's line.
    pub fn cell(&self, column: &Column) -> Cell {
        (column.cell)(self)
    }

    /// Returns the object.
    pub fn object(&self) -> Object<'a> {
        self.object
    }

    /// Returns a server's status.
    pub fn server_status(&self) -> Option<&ServerStatus> {
        self.status.as_ref()
    }

    /// Returns whether the object is a server with running checks.
    pub fn is_checked(&self) -> bool {
        let configured = matches!(self.object, Object::Server(_, server) if server.config.check.is_some());
        configured && self.status.as_ref().is_some_and(|status| status.checks)
    }

    /// Returns the proxy that the object is or belongs to.
    pub fn proxy(&self) -> &'a ProxyRun {
        match self.object {
            Object::Frontend(proxy) | Object::Backend(proxy) => proxy,
            Object::Server(proxy, _) | Object::Socket(proxy, _) => proxy,
        }
    }

    fn is_http(&self) -> bool {
        self.proxy().config.mode == Mode::Http
    }

    fn figures(&self) -> &'a Figures {
        match self.object {
            Object::Frontend(proxy) => &proxy.frontend.figures,
            Object::Backend(proxy) => &proxy.backend.figures,
            Object::Server(_, server) => &server.shared.figures,
            // One that counts nothing is in no list.
            Object::Socket(proxy, listener) => listener.figures().unwrap_or(&proxy.frontend.figures),
        }
    }

    /// Returns whether the object belongs to the frontend's side.
    fn is_front(&self) -> bool {
        matches!(self.object, Object::Frontend(_) | Object::Socket(..))
    }

    fn total(&self, figure: impl Fn(&Counters) -> &Count) -> u64 {
        self.figures().sum(figure)
    }

    fn sum(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        count(self.total(figure))
    }

    /// Returns the part of a figure that is not HTTP/2's.
    fn not_http2(&self, all: impl Fn(&Counters) -> &Count, http2: impl Fn(&Counters) -> &Count) -> Cell {
        count(self.total(all).saturating_sub(self.total(http2)))
    }

    fn open_connections_of_http2(&self) -> u64 {
        self.total(|c| &c.http2.total_connections).saturating_sub(self.total(|c| &c.http2.ended_connections))
    }

    fn open_streams_of_http2(&self) -> u64 {
        self.total(|c| &c.http2.total_streams).saturating_sub(self.total(|c| &c.http2.ended_streams))
    }

    fn no_servers_sum(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if matches!(self.object, Object::Server(..)) { Empty } else { self.sum(figure) }
    }

    fn no_sockets(&self, cell: impl FnOnce(&Figures) -> Cell) -> Cell {
        if matches!(self.object, Object::Socket(..)) { Empty } else { cell(self.figures()) }
    }

    fn front_sum(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if self.is_front() { self.sum(figure) } else { Empty }
    }

    fn frontends_only(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if matches!(self.object, Object::Frontend(_)) { self.sum(figure) } else { Empty }
    }

    fn no_frontends(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if self.is_front() { Empty } else { self.sum(figure) }
    }

    fn no_frontends_highest(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if self.is_front() { Empty } else { count(self.figures().highest(figure)) }
    }

    fn average(&self, figure: impl Fn(&Counters) -> &Average) -> Cell {
        if self.is_front() { Empty } else { count(self.figures().average(figure)) }
    }

    fn http(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if self.is_http() { self.no_sockets(|figures| count(figures.sum(figure))) } else { Empty }
    }

    fn proxies_only(&self, cell: Cell) -> Cell {
        if matches!(self.object, Object::Server(..) | Object::Socket(..)) { Empty } else { cell }
    }

    fn http_proxies(&self, cell: Cell) -> Cell {
        if self.is_http() { self.proxies_only(cell) } else { Empty }
    }

    fn frontend(&self, cell: impl FnOnce(&'a ProxyRun) -> Cell) -> Cell {
        match self.object {
            Object::Frontend(proxy) => cell(proxy),
            _ => Empty,
        }
    }

    fn backend(&self, cell: impl FnOnce(&'a ProxyRun) -> Cell) -> Cell {
        match self.object {
            Object::Backend(proxy) => cell(proxy),
            _ => Empty,
        }
    }

    fn server(&self, cell: impl FnOnce(&'a ServerRun) -> Cell) -> Cell {
        match self.object {
            Object::Server(_, server) => cell(server),
            _ => Empty,
        }
    }

    fn status(&self, cell: impl FnOnce(&ServerStatus) -> Cell) -> Cell {
        self.status.as_ref().map_or(Empty, cell)
    }

    /// Returns a cell that only servers with `check` have.
    fn checked(&self, cell: impl FnOnce(&ServerStatus) -> Cell) -> Cell {
        if self.is_checked() { self.status(cell) } else { Empty }
    }

    /// Returns a cell with results of a server's checks; it is empty during maintenance.
    fn checking(&self, cell: impl FnOnce(&ServerStatus) -> Cell) -> Cell {
        self.checked(|status| if status.admin() == Admin::Maintenance { Empty } else { cell(status) })
    }

    /// Returns a cell with results of a server's agent.
    fn asking(&self, cell: impl FnOnce(&AgentStatus) -> Cell) -> Cell {
        match self.object {
            Object::Server(_, server) if server.config.health.agent.is_some() => {
                self.status(|status| if status.agent.enabled { cell(&status.agent) } else { Empty })
            }
            _ => Empty,
        }
    }

    /// Returns the server that a server tracks, as `BACKEND/SERVER`.
    fn tracked_by(&self, server: &ServerRun) -> Option<String> {
        let (proxy, index) = server.config.health.track.as_ref()?.target?;
        let proxy = &self.running.proxies[proxy.0 as usize];
        Some(format!("{}/{}", proxy.config.name, proxy.servers[index].name()))
    }

    fn seconds_since(&self, at: Instant) -> u64 {
        self.now.saturating_duration_since(at).as_secs()
    }
}

/// Appends the header line.
pub fn header(out: &mut Vec<u8>) {
    out.extend_from_slice(b"# ");
    for column in COLUMNS {
        out.extend_from_slice(column.name.as_bytes());
        out.push(b',');
    }
    out.push(b'\n');
}

/// Returns an object's cells in the order of [`COLUMNS`].
fn cells<'a>(
    running: &'a Running,
    object: Object<'a>,
    now: Instant,
    filter: &Filter,
) -> impl Iterator<Item = (&'static Column, Cell)> {
    let counts = filter.up || filter.no_maint;
    let view = View { counts, no_legends: filter.no_legends, ..View::new(running, object, now) };
    COLUMNS.iter().map(move |column| (column, view.cell(column)))
}

/// Returns the index of a column.
pub fn place(name: &str) -> Option<usize> {
    static PLACES: LazyLock<HashMap<&str, usize>> =
        LazyLock::new(|| COLUMNS.iter().enumerate().map(|(place, column)| (column.name, place)).collect());
    PLACES.get(name).copied()
}

/// An object's cells by the names of their columns.
#[derive(Default)]
pub struct Row(Vec<Cell>);

impl Row {
    /// Returns the cell of a column; empty where there is no such column.
    pub fn get(&self, name: &str) -> &Cell {
        place(name).and_then(|place| self.0.get(place)).unwrap_or(&Empty)
    }

    /// Returns the cell of a column, and leaves an empty one.
    pub fn take(&mut self, name: &str) -> Cell {
        place(name).and_then(|place| self.0.get_mut(place)).map_or(Empty, |cell| std::mem::replace(cell, Empty))
    }
}

/// Returns all cells of an object.
pub fn row(running: &Running, object: Object<'_>, now: Instant) -> Row {
    Row(cells(running, object, now, &Filter::default()).map(|(_, cell)| cell).collect())
}

/// Appends the line of an object that a filter takes.
pub fn line(running: &Running, object: Object<'_>, now: Instant, filter: &Filter, out: &mut Vec<u8>) {
    for (_, cell) in cells(running, object, now, filter) {
        match cell {
            Cell::Empty => {}
            Cell::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            Cell::Text(text) => csv(&text, out),
        }
        out.push(b',');
    }
    out.push(b'\n');
}

/// Returns an object's non-empty cells for the typed formats; positions do not count the marker between the proxy
/// columns and the module columns.
pub fn fields(running: &Running, object: Object<'_>, now: Instant, filter: &Filter) -> Vec<Field> {
    let mut position = 0;
    let mut fields = Vec::new();
    for (column, cell) in cells(running, object, now, filter) {
        if column.name == "-" {
            continue;
        }
        let value = match cell {
            Cell::Empty => None,
            Cell::Number(number) => Some(number.to_string()),
            Cell::Text(text) => Some(text.into_owned()),
        };
        if let Some(value) = value {
            // Columns have another meaning for backends and servers, and HAProxy tags them so.
            let tags = match (object, column.name) {
                (Object::Backend(_), "rate_max") => "MGP",
                (Object::Server(..), "act" | "bck") => "SGP",
                _ => column.tags,
            };
            fields.push(Field { position, name: column.name, tags, kind: column.kind, value });
        }
        position += 1;
    }
    fields
}

/// Appends a text according to RFC 4180: quoted only if it contains a comma, a quote or a line end.
fn csv(text: &str, out: &mut Vec<u8>) {
    if !text.contains(['"', ',', '\n', '\r']) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Health;
    use std::time::Duration;

    #[test]
    fn the_header_is_haproxys() {
        let mut out = Vec::new();
        header(&mut out);
        let header = String::from_utf8(out).unwrap();
        // Debian's 2.6 ends its proxy part at agg_check_status; 3.2 continues before the modules.
        let shared = include_str!("../../tests/it/golden/show_stat_2.6.txt").trim_end();
        let (proxy, modules) = shared.split_once(",-,").unwrap();
        let modules =
            modules.replace(",ssl_failed_handshake,", ",ssl_failed_handshake,ssl_ocsp_staple,ssl_failed_ocsp_staple,");
        let new = ",srid,sess_other,h1sess,h2sess,h3sess,req_other,h1req,h2req,h3req,proto,-,";
        assert_eq!(header.trim_end(), format!("{proxy}{new}{modules}"));
    }

    #[test]
    fn statuses_read_as_haproxys() {
        let status = |admin, level| ServerStatus {
            admin,
            inherited: Admin::Ready,
            unresolved: false,
            operation: if level >= 2 { Operation::Running } else { Operation::Stopped },
            agent: AgentStatus { enabled: false, health: Health::new(1, 1), asking: false, report: None },
            checking: false,
            health: Health { level, rise: 2, fall: 3 },
            checks: true,
            unchecked_level: 2,
            weight: 1,
            starting: false,
            steps: 16,
            changed: Instant::now(),
            downtime: Duration::ZERO,
            check: None,
            failed_checks: 0,
            times_down: 0,
            observed: 0,
        };
        let server_status = |status: &ServerStatus, configured| server_status(status, status, configured);
        for (admin, level, expected) in [
            (Admin::Ready, 0, "DOWN"),
            (Admin::Ready, 1, "DOWN 1/2"),
            (Admin::Ready, 2, "UP 1/3"),
            (Admin::Ready, 3, "UP 2/3"),
            (Admin::Ready, 4, "UP"),
            (Admin::Drain, 4, "DRAIN"),
            (Admin::Drain, 2, "DRAIN 1/3"),
            (Admin::Maintenance, 4, "MAINT"),
        ] {
            assert_eq!(server_status(&status(admin, level), true), Cell::from(expected));
        }
        assert_eq!(server_status(&status(Admin::Ready, 4), false), Cell::from("no check"));
        assert_eq!(server_status(&status(Admin::Drain, 4), false), Cell::from("DRAIN"));
        let unresolved = ServerStatus { unresolved: true, ..status(Admin::Ready, 0) };
        assert_eq!(server_status(&unresolved, false), Cell::from("MAINT (resolution)"));
        let stopping = ServerStatus { operation: Operation::Stopping, ..status(Admin::Ready, 4) };
        assert_eq!(server_status(&stopping, true), Cell::from("NOLB"));
        let unchecked = ServerStatus { checks: false, ..status(Admin::Ready, 3) };
        assert_eq!(server_status(&unchecked, true), Cell::from("no check"));
    }

    #[test]
    fn texts_are_quoted_only_where_needed() {
        let mut out = Vec::new();
        csv("plain text", &mut out);
        out.push(b'|');
        csv("a,\"b\"", &mut out);
        assert_eq!(out, b"plain text|\"a,\"\"b\"\"\"");
    }
}
