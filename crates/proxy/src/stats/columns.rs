//! `show stat`: HAProxy 3.2's columns in its order, one row of the catalogue each.
//!
//! A cell is empty where HAProxy leaves it empty for that kind of line. What this process does not do (caches,
//! compression, agents, TLS, HTTP/2) is truly 0 and is printed as such.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{Balance, Mode, ServerAddress};

use super::Object;
use crate::counters::{Average, Count, Counters, Figures, second};
use crate::process::Phase;
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, ServerRun, ServerStatus};

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Nothing to say for this kind of line.
    Empty,
    /// A number.
    Number(i64),
    /// A text; quoted on output where it needs to be.
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

/// What cells are made from.
pub struct View<'a> {
    running: &'a Running,
    object: Object<'a>,
    now: Instant,
    status: Option<ServerStatus>,
}

/// A column.
pub struct Column {
    /// Its name in the header.
    pub name: &'static str,
    cell: fn(&View<'_>) -> Cell,
}

macro_rules! columns {
    ($($name:literal => $cell:expr,)*) => {
        /// Every column in order.
        pub const COLUMNS: &[Column] = &[$(Column { name: $name, cell: $cell }),*];
    };
}

columns! {
    "pxname" => |v| v.proxy().config.name.to_string().into(),
    "svname" => |v| match v.object {
        Object::Frontend(_) => "FRONTEND".into(),
        Object::Backend(_) => "BACKEND".into(),
        Object::Server(_, server) => server.name().to_string().into(),
    },
    "qcur" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(proxy.backend.queue.len().into()),
        Object::Server(_, server) => count(server.shared.queued.load(Ordering::Relaxed).into()),
    },
    "qmax" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(proxy.backend.queue.highest().into()),
        Object::Server(_, server) => count(server.shared.queued_max.load(Ordering::Relaxed).into()),
    },
    "scur" => |v| match v.object {
        Object::Frontend(proxy) => count(proxy.frontend.sessions.current().into()),
        _ => count(v.figures().scur.load(Ordering::Relaxed).into()),
    },
    "smax" => |v| match v.object {
        Object::Frontend(proxy) => count(proxy.frontend.sessions.peak().into()),
        _ => count(v.figures().smax.load(Ordering::Relaxed).into()),
    },
    "slim" => |v| match v.object {
        Object::Frontend(proxy) => count(frontend_limit(v.running, proxy)),
        Object::Backend(proxy) => count(fullconn(v.running, proxy)),
        Object::Server(_, server) => server.shared.maxconn().map_or(Empty, |max| count(max.into())),
    },
    "stot" => |v| v.sum(|c| &c.stot),
    "bin" => |v| v.sum(|c| &c.bin),
    "bout" => |v| v.sum(|c| &c.bout),
    "dreq" => |v| v.proxies_only(|c| &c.dreq),
    "dresp" => |v| v.sum(|c| &c.dresp),
    "ereq" => |v| v.frontends_only(|c| &c.ereq),
    "econ" => |v| v.no_frontends(|c| &c.econ),
    "eresp" => |v| v.no_frontends(|c| &c.eresp),
    "wretr" => |v| v.no_frontends(|c| &c.wretr),
    "wredis" => |v| v.no_frontends(|c| &c.wredis),
    "status" => status,
    "weight" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).weight.into()),
        Object::Server(..) => v.status(|status| count(status.weight.into())),
    },
    "act" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).active as u64),
        Object::Server(_, server) => Number(i64::from(!server.config.backup)),
    },
    "bck" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).backup as u64),
        Object::Server(_, server) => Number(i64::from(server.config.backup)),
    },
    "chkfail" => |v| v.checked(|status| count(status.failed_checks)),
    "chkdown" => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).times_down),
        _ => v.checked(|status| count(status.times_down)),
    },
    "lastchg" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(v.seconds_since(proxy.backend.summary(v.now).changed)),
        Object::Server(..) => v.status(|status| count(v.seconds_since(status.changed))),
    },
    "downtime" => |v| match v.object {
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).downtime.as_secs()),
        _ => v.checked(|status| count(status.downtime_at(v.now).as_secs())),
    },
    "qlimit" => |v| v.server(|server| server.config.maxqueue.map_or(Empty, |max| count(max.into()))),
    "pid" => |_| Number(1),
    "iid" => |v| count(v.proxy().config.uid.into()),
    "sid" => |v| match v.object {
        Object::Server(_, server) => count(server.config.sid.into()),
        _ => Number(0),
    },
    "throttle" => |_| Empty,
    "lbtot" => |v| v.no_frontends(|c| &c.lbtot),
    "tracked" => |_| Empty,
    "type" => |v| Number(match v.object {
        Object::Frontend(_) => 0,
        Object::Backend(_) => 1,
        Object::Server(..) => 2,
    }),
    "rate" => |v| count(v.figures().rate(v.now, |c| &c.sess_rate).into()),
    "rate_lim" => |v| v.frontend(|_| Number(0)),
    "rate_max" => |v| count(v.figures().rate_max().into()),
    "check_status" => |v| v.checked(|status| match &status.check {
        Some(check) => check.status.name().into(),
        None => "INI".into(),
    }),
    "check_code" => |_| Empty,
    "check_duration" => |v| v.checked(|status| match &status.check {
        Some(check) => count(check.duration.as_millis() as u64),
        None => Empty,
    }),
    "hrsp_1xx" => |v| v.http(|c| &c.hrsp_1xx),
    "hrsp_2xx" => |v| v.http(|c| &c.hrsp_2xx),
    "hrsp_3xx" => |v| v.http(|c| &c.hrsp_3xx),
    "hrsp_4xx" => |v| v.http(|c| &c.hrsp_4xx),
    "hrsp_5xx" => |v| v.http(|c| &c.hrsp_5xx),
    "hrsp_other" => |v| v.http(|c| &c.hrsp_other),
    "hanafail" => |_| Empty,
    "req_rate" => |v| v.frontend(|proxy| count(proxy.frontend.figures.rate(v.now, |c| &c.req_rate).into())),
    "req_rate_max" => |v| v.frontend(|proxy| count(proxy.frontend.figures.req_rate_max().into())),
    "req_tot" => |v| match v.object {
        Object::Frontend(_) => v.sum(|c| &c.req_tot),
        _ => v.http(|c| &c.req_tot),
    },
    "cli_abrt" => |v| v.no_frontends(|c| &c.cli_abrt),
    "srv_abrt" => |v| v.no_frontends(|c| &c.srv_abrt),
    "comp_in" => |v| v.no_servers(Number(0)),
    "comp_out" => |v| v.no_servers(Number(0)),
    "comp_byp" => |v| v.no_servers(Number(0)),
    "comp_rsp" => |v| v.no_servers(Number(0)),
    "lastsess" => |v| match v.object {
        Object::Frontend(_) => Empty,
        _ => match v.figures().highest(|c| &c.lastsess) {
            0 => Number(-1),
            at => Number(i64::from(second(v.now)) - at as i64),
        },
    },
    "last_chk" => |v| v.checked(|status| match &status.check {
        Some(check) => check.info.clone().into(),
        None => Empty,
    }),
    "last_agt" => |_| Empty,
    "qtime" => |v| v.average(|c| &c.qtime),
    "ctime" => |v| v.average(|c| &c.ctime),
    "rtime" => |v| v.average(|c| &c.rtime),
    "ttime" => |v| v.average(|c| &c.ttime),
    "agent_status" => |_| Empty,
    "agent_code" => |_| Empty,
    "agent_duration" => |_| Empty,
    "check_desc" => |v| v.checked(|status| match &status.check {
        Some(check) => check.status.description().into(),
        None => "Initializing".into(),
    }),
    "agent_desc" => |_| Empty,
    "check_rise" => |v| v.checked(|status| count(status.health.rise.into())),
    "check_fall" => |v| v.checked(|status| count(status.health.fall.into())),
    "check_health" => |v| v.checked(|status| count(status.health.level.into())),
    "agent_rise" => |_| Empty,
    "agent_fall" => |_| Empty,
    "agent_health" => |_| Empty,
    "addr" => |v| v.server(address),
    "cookie" => |v| v.server(|server| server.config.cookie.clone().map_or(Empty, Cell::from)),
    "mode" => |v| match v.proxy().config.mode {
        Mode::Tcp => "tcp".into(),
        Mode::Http => "http".into(),
    },
    "algo" => |v| match v.object {
        Object::Backend(proxy) => match proxy.config.balance {
            Balance::RoundRobin => "roundrobin".into(),
        },
        _ => Empty,
    },
    "conn_rate" => |v| v.frontend(|proxy| count(proxy.frontend.figures.rate(v.now, |c| &c.conn_rate).into())),
    "conn_rate_max" => |v| v.frontend(|proxy| count(proxy.frontend.figures.conn_rate_max().into())),
    "conn_tot" => |v| v.frontends_only(|c| &c.conn_tot),
    "intercepted" => |v| match v.proxy().config.mode {
        Mode::Http => v.frontends_only(|c| &c.intercepted),
        Mode::Tcp => Empty,
    },
    "dcon" => |v| v.frontends_only(|c| &c.dcon),
    "dses" => |v| v.frontends_only(|c| &c.dses),
    "wrew" => |v| v.sum(|c| &c.wrew),
    "connect" => |v| v.no_frontends(|c| &c.connect),
    "reuse" => |v| v.no_frontends(|c| &c.reuse),
    "cache_lookups" => |v| v.http_proxies(Number(0)),
    "cache_hits" => |v| v.http_proxies(Number(0)),
    "srv_icur" => |v| v.server(|server| count(server.shared.idle_connections().into())),
    "src_ilim" => |_| Empty,
    "qtime_max" => |v| v.no_frontends_highest(|c| &c.qtime.max),
    "ctime_max" => |v| v.no_frontends_highest(|c| &c.ctime.max),
    "rtime_max" => |v| v.no_frontends_highest(|c| &c.rtime.max),
    "ttime_max" => |v| v.no_frontends_highest(|c| &c.ttime.max),
    "eint" => |v| v.sum(|c| &c.eint),
    "idle_conn_cur" => |v| v.server(|server| count(server.shared.idle_connections().into())),
    "safe_conn_cur" => |v| v.server(|_| Number(0)),
    "used_conn_cur" => |v| v.server(|server| count(server.shared.figures.scur.load(Ordering::Relaxed).into())),
    "need_conn_est" => |v| v.server(|server| count(server.shared.figures.smax.load(Ordering::Relaxed).into())),
    "uweight" => |v| match v.object {
        Object::Frontend(_) => Empty,
        Object::Backend(proxy) => count(proxy.backend.summary(v.now).weight.into()),
        Object::Server(..) => v.status(|status| count(status.weight.into())),
    },
    "agg_server_status" => |v| v.backend(|_| Number(0)),
    "agg_server_check_status" => |v| v.backend(|_| Number(0)),
    "agg_check_status" => |v| v.backend(|_| Number(0)),
    "srid" => |v| v.server(|_| Number(0)),
    "sess_other" => |v| v.frontend(|proxy| match proxy.config.mode {
        Mode::Http => Number(0),
        Mode::Tcp => v.sum(|c| &c.stot),
    }),
    "h1sess" => |v| v.frontend(|proxy| match proxy.config.mode {
        Mode::Http => v.sum(|c| &c.stot),
        Mode::Tcp => Number(0),
    }),
    "h2sess" => |v| v.frontend(|_| Number(0)),
    "h3sess" => |v| v.frontend(|_| Number(0)),
    "req_other" => |v| v.frontend(|_| Number(0)),
    "h1req" => |v| v.frontends_only(|c| &c.req_tot),
    "h2req" => |v| v.frontend(|_| Number(0)),
    "h3req" => |v| v.frontend(|_| Number(0)),
    "proto" => |_| Empty,
    "-" => |_| "-".into(),
    "ssl_sess" => |_| Number(0),
    "ssl_reused_sess" => |_| Number(0),
    "ssl_failed_handshake" => |_| Number(0),
    "h2_headers_rcvd" => |v| v.no_servers(Number(0)),
    "h2_data_rcvd" => |v| v.no_servers(Number(0)),
    "h2_settings_rcvd" => |v| v.no_servers(Number(0)),
    "h2_rst_stream_rcvd" => |v| v.no_servers(Number(0)),
    "h2_goaway_rcvd" => |v| v.no_servers(Number(0)),
    "h2_detected_conn_protocol_errors" => |v| v.no_servers(Number(0)),
    "h2_detected_strm_protocol_errors" => |v| v.no_servers(Number(0)),
    "h2_rst_stream_resp" => |v| v.no_servers(Number(0)),
    "h2_goaway_resp" => |v| v.no_servers(Number(0)),
    "h2_open_connections" => |v| v.no_servers(Number(0)),
    "h2_backend_open_streams" => |v| v.no_servers(Number(0)),
    "h2_total_connections" => |v| v.no_servers(Number(0)),
    "h2_backend_total_streams" => |v| v.no_servers(Number(0)),
    "h1_open_connections" => |v| match v.object {
        Object::Frontend(proxy) if v.is_http() => count(proxy.frontend.sessions.current().into()),
        Object::Backend(proxy) if v.is_http() => count(server_connections(proxy)),
        _ => v.no_servers(Number(0)),
    },
    "h1_open_streams" => |v| match v.object {
        Object::Backend(proxy) if v.is_http() => count(server_requests(proxy)),
        _ => v.no_servers(Number(0)),
    },
    "h1_total_connections" => |v| match v.object {
        Object::Frontend(_) if v.is_http() => v.sum(|c| &c.conn_tot),
        Object::Backend(_) if v.is_http() => v.sum(|c| &c.connect),
        _ => v.no_servers(Number(0)),
    },
    "h1_total_streams" => |v| match v.object {
        Object::Frontend(_) | Object::Backend(_) if v.is_http() => v.sum(|c| &c.req_tot),
        _ => v.no_servers(Number(0)),
    },
    "h1_bytes_in" => |v| match v.object {
        Object::Frontend(_) if v.is_http() => v.sum(|c| &c.bin),
        Object::Backend(_) if v.is_http() => v.sum(|c| &c.bout),
        _ => v.no_servers(Number(0)),
    },
    "h1_bytes_out" => |v| match v.object {
        Object::Frontend(_) if v.is_http() => v.sum(|c| &c.bout),
        Object::Backend(_) if v.is_http() => v.sum(|c| &c.bin),
        _ => v.no_servers(Number(0)),
    },
    "h1_spliced_bytes_in" => |v| v.no_servers(Number(0)),
    "h1_spliced_bytes_out" => |v| v.no_servers(Number(0)),
}

fn status(v: &View<'_>) -> Cell {
    match v.object {
        Object::Frontend(_) if v.running.process.phase() != Phase::Serving => "STOP".into(),
        Object::Frontend(_) => "OPEN".into(),
        Object::Backend(proxy) => if proxy.backend.summary(v.now).up { "UP" } else { "DOWN" }.into(),
        Object::Server(_, server) => v.status(|status| server_status(status, server.config.check.is_some())),
    }
}

fn server_status(status: &ServerStatus, checked: bool) -> Cell {
    let health = status.health;
    let up = health.is_up();
    let full = health.level == 0 || health.level == health.rise + health.fall - 1;
    let name = match (status.admin, up) {
        (Admin::Maintenance, _) => return "MAINT".into(),
        (Admin::Drain, true) => "DRAIN",
        (Admin::Ready, true) if !checked => return "no check".into(),
        (_, true) => "UP",
        (_, false) => "DOWN",
    };
    match (full || !checked, up) {
        (true, _) => name.into(),
        (false, true) => format!("{name} {}/{}", health.level - health.rise + 1, health.fall).into(),
        (false, false) => format!("{name} {}/{}", health.level, health.rise).into(),
    }
}

fn address(server: &ServerRun) -> Cell {
    match &server.config.address {
        ServerAddress::Unix(path) => format!("unix:{}", path.display()).into(),
        ServerAddress::Abstract(name) => format!("abns@{name}").into(),
        ServerAddress::Inet(..) | ServerAddress::Name(..) => match server.socket_addr(None) {
            Some(address) => address.to_string().into(),
            None => Empty,
        },
    }
}

/// A frontend's `maxconn`, or the process's.
fn frontend_limit(running: &Running, proxy: &ProxyRun) -> u64 {
    proxy.frontend.sessions.max().or(running.process.sessions.max()).map_or(0, u64::from)
}

/// `fullconn`, or a tenth of what the frontends that name this backend may hold.
fn fullconn(running: &Running, backend: &ProxyRun) -> u64 {
    use sluicegate_config::model::{BackendName, ProxyKind};
    if let Some(fullconn) = backend.config.fullconn {
        return fullconn.into();
    }
    let leads_here = |proxy: &ProxyRun| {
        let default = match (proxy.config.default_backend, proxy.config.kind) {
            (Some(id), _) => Some(id),
            (None, ProxyKind::Listen) => Some(proxy.id),
            (None, _) => None,
        };
        let named = |target: &BackendName| matches!(target, BackendName::Static(id) if *id == backend.id);
        default == Some(backend.id) || proxy.config.use_backend.iter().any(|rule| named(&rule.target))
    };
    let total: u64 = running
        .proxies
        .iter()
        .filter(|proxy| proxy.config.kind != ProxyKind::Backend && leads_here(proxy))
        .map(|proxy| frontend_limit(running, proxy))
        .sum();
    total.div_ceil(10).max(1)
}

fn server_requests(proxy: &ProxyRun) -> u64 {
    proxy.servers.iter().map(|server| u64::from(server.shared.figures.scur.load(Ordering::Relaxed))).sum()
}

fn server_connections(proxy: &ProxyRun) -> u64 {
    let idle: u64 = proxy.servers.iter().map(|server| u64::from(server.shared.idle_connections())).sum();
    server_requests(proxy) + idle
}

impl<'a> View<'a> {
    fn proxy(&self) -> &'a ProxyRun {
        match self.object {
            Object::Frontend(proxy) | Object::Backend(proxy) | Object::Server(proxy, _) => proxy,
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
        }
    }

    fn sum(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        count(self.figures().sum(figure))
    }

    fn proxies_only(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if matches!(self.object, Object::Server(..)) { Empty } else { self.sum(figure) }
    }

    fn frontends_only(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if matches!(self.object, Object::Frontend(_)) { self.sum(figure) } else { Empty }
    }

    fn no_frontends(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if matches!(self.object, Object::Frontend(_)) { Empty } else { self.sum(figure) }
    }

    fn no_frontends_highest(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if matches!(self.object, Object::Frontend(_)) { Empty } else { count(self.figures().highest(figure)) }
    }

    fn average(&self, figure: impl Fn(&Counters) -> &Average) -> Cell {
        if matches!(self.object, Object::Frontend(_)) { Empty } else { count(self.figures().average(figure)) }
    }

    fn http(&self, figure: impl Fn(&Counters) -> &Count) -> Cell {
        if self.is_http() { self.sum(figure) } else { Empty }
    }

    fn no_servers(&self, cell: Cell) -> Cell {
        if matches!(self.object, Object::Server(..)) { Empty } else { cell }
    }

    fn http_proxies(&self, cell: Cell) -> Cell {
        if self.is_http() { self.no_servers(cell) } else { Empty }
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

    /// A cell of servers with `check`.
    fn checked(&self, cell: impl FnOnce(&ServerStatus) -> Cell) -> Cell {
        match self.object {
            Object::Server(_, server) if server.config.check.is_some() => self.status(cell),
            _ => Empty,
        }
    }

    fn seconds_since(&self, at: Instant) -> u64 {
        self.now.saturating_duration_since(at).as_secs()
    }
}

/// The header line.
pub fn header(out: &mut Vec<u8>) {
    out.extend_from_slice(b"# ");
    for column in COLUMNS {
        out.extend_from_slice(column.name.as_bytes());
        out.push(b',');
    }
    out.push(b'\n');
}

/// One object's line.
pub fn line(running: &Running, object: Object<'_>, now: Instant, out: &mut Vec<u8>) {
    let status = match object {
        Object::Server(_, server) => Some(server.shared.status()),
        _ => None,
    };
    let view = View { running, object, now, status };
    for column in COLUMNS {
        match (column.cell)(&view) {
            Cell::Empty => {}
            Cell::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            Cell::Text(text) => csv(&text, out),
        }
        out.push(b',');
    }
    out.push(b'\n');
}

/// A text as RFC 4180 wants it: quoted only where it holds a comma, a quote or a line end.
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
        let new = ",srid,sess_other,h1sess,h2sess,h3sess,req_other,h1req,h2req,h3req,proto,-,";
        assert_eq!(header.trim_end(), format!("{proxy}{new}{modules}"));
    }

    #[test]
    fn statuses_read_as_haproxys() {
        let status = |admin, level| ServerStatus {
            admin,
            health: Health { level, rise: 2, fall: 3 },
            weight: 1,
            changed: Instant::now(),
            downtime: Duration::ZERO,
            check: None,
            failed_checks: 0,
            times_down: 0,
        };
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
