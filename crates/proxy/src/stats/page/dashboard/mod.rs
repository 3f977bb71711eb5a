//! The dashboard: a page with live figures and charts of the last hour, and the data that its script asks for.
//!
//! The page is one file without anything outside of it. Its script polls `;dashboard-data;since=NUMBER`: all objects of
//! the statistics page with their present figures, and the recorded points behind the last one that it has seen. The
//! data has the scope of the page: what that hides is not sent. Every text is set as text, never as HTML.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use sluicegate_wire::engine::{Connections, Figures};

use super::html::{self, View};
use super::tables::{shows_more, stores};
use super::text::put;
use super::{Asked, Cursor, PIECE, in_scope};
use crate::history::{EACH, History, Name, POINTS};
use crate::limit::Limit;
use crate::running::pages::Document;
use crate::running::{ProxyRun, Running};
use crate::sample::append_json_string;
use crate::stats::columns::{self, Cell};
use crate::stats::recent::{BACKEND, ENGINE, FRONTEND, LIMIT, PROCESS, STORE};
use crate::stats::{Filter, Object, named_figures};

const STYLE: &str = include_str!("dashboard.css");
const SCRIPT: &str = include_str!("dashboard.js");

/// The columns of `show stat` that are sent.
const COLUMNS: [&str; 18] = [
    "scur",
    "slim",
    "qcur",
    "rate",
    "req_rate",
    "stot",
    "bin",
    "bout",
    "dreq",
    "hrsp_5xx",
    "econ",
    "eresp",
    "rtime",
    "weight",
    "act",
    "bck",
    "check_status",
    "lastchg",
];

/// The most keys of a limit that are sent.
const TOP_KEYS: usize = 5;

/// Writes the page.
pub(super) fn page(view: &View<'_>, out: &mut Vec<u8>) {
    html::begin_document(view, "Dashboard", out);
    put!(out, "{STYLE}</style></head>\n<body data-source=\"{}\">\n", view.address(";dashboard-data"));
    html::header(view, out);
    put!(
        out,
        "<nav aria-label=\"View\"><ul><li><a href=\"{}\">Statistics</a></ul></nav>\n<p role=status class=said hidden></p>\n\
         <noscript><p class=none>The dashboard needs JavaScript; the statistics do not.</p></noscript>\n<main></main>\n\
         <script>{SCRIPT}</script>\n</body></html>\n",
        view.address("")
    );
}

/// The data of the dashboard.
pub struct Data {
    running: Arc<Running>,
    own: Arc<ProxyRun>,
    asked: Asked,
    /// The numbers of points: of the last one that the client has, and of the last one that it gets.
    since: u64,
    last: u64,
    cursor: Cursor,
    now: Instant,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    Proxies,
    Over,
}

impl Data {
    /// Creates the document for the page of `own`.
    pub fn new(running: Arc<Running>, own: Arc<ProxyRun>, asked: Asked, since: u64) -> Data {
        let last = running.process.history.last();
        let (cursor, now) = (Cursor::default(), Instant::now());
        Data { running, own, asked, since, last, cursor, now, stage: Stage::Start }
    }

    /// Appends the members of an object: its kind, its name, and its points.
    fn begin<T>(&self, name: &Name, recorded: &[(&'static str, T)], out: &mut String) {
        let (kind, own_name) = name;
        let _ = write!(out, "{{\"kind\":\"{kind}\",\"name\":");
        append_json_string(own_name, out);
        let Some(points) = self.history().points(name, self.since, self.last) else { return };
        out.push_str(",\"points\":{");
        for (index, ((figure, _), points)) in recorded.iter().zip(points).enumerate() {
            let _ = write!(out, "{}\"{figure}\":[", if index == 0 { "" } else { "," });
            for (index, point) in points.into_iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                put_point(point, out);
            }
            out.push(']');
        }
        out.push('}');
    }

    fn history(&self) -> &History {
        &self.running.process.history
    }

    fn head(&self, out: &mut String) {
        let process = &self.running.process;
        let started_s = process.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let _ = write!(
            out,
            "{{\"started\":{started_s},\"last\":{},\"each\":{},\"most\":{POINTS},\"objects\":[",
            self.last,
            EACH.as_secs()
        );
        self.begin(&("process", String::new()), PROCESS, out);
        let _ = write!(
            out,
            ",\"figures\":{{\"uptime\":{},\"workers\":{},\"sessions\":{},\"max\":{}}}}}",
            process.started.elapsed().as_secs(),
            process.workers.len(),
            process.sessions.current(),
            process.sessions.max().unwrap_or(0)
        );
    }

    fn proxy(&self, object: Object<'_>, out: &mut String) {
        let row = columns::row(&self.running, object, self.now);
        out.push(',');
        match object {
            Object::Frontend(proxy) => self.begin(&("frontend", proxy.config.name.to_string()), FRONTEND, out),
            Object::Backend(proxy) => self.begin(&("backend", proxy.config.name.to_string()), BACKEND, out),
            Object::Server(proxy, server) => {
                out.push_str("{\"kind\":\"server\",\"proxy\":");
                append_json_string(&proxy.config.name, out);
                out.push_str(",\"name\":");
                append_json_string(server.name(), out);
            }
            Object::Socket(proxy, listener) => {
                out.push_str("{\"kind\":\"socket\",\"proxy\":");
                append_json_string(&proxy.config.name, out);
                out.push_str(",\"name\":");
                append_json_string(&listener.name(), out);
            }
        }
        if let Cell::Text(state) = row.get("status") {
            let weight = if matches!(row.get("weight"), Cell::Number(0)) { "0" } else { "" };
            let _ = write!(out, ",\"class\":\"{}\",\"state\":", html::class(object, state, weight));
            append_json_string(state, out);
        }
        out.push_str(",\"figures\":{");
        let mut separator = "";
        for column in COLUMNS {
            match row.get(column) {
                Cell::Empty => continue,
                Cell::Number(number) => _ = write!(out, "{separator}\"{column}\":{number}"),
                Cell::Text(text) => {
                    let _ = write!(out, "{separator}\"{column}\":");
                    append_json_string(text, out);
                }
            }
            separator = ",";
        }
        out.push_str("}}");
    }

    fn store(&self, name: &str, of: &Figures, out: &mut String) {
        out.push(',');
        self.begin(&("store", name.to_owned()), STORE, out);
        let failing = of.disk.is_some_and(|disk| {
            disk.save_failed || disk.appended.is_some_and(|appended| appended.is_failing || appended.rewrite_failed)
        });
        let loading = of.disk.is_some_and(|disk| disk.is_loading);
        let unlinked = of.replication.is_some_and(|of| of.is_replica && !of.is_linked);
        let (class, state) = match () {
            () if failing => ("down", "DISK FAILS"),
            () if loading => ("goup", "LOADING"),
            () if unlinked => ("godown", "LINK DOWN"),
            () if of.replication.is_some_and(|of| of.is_replica) => ("up", "REPLICA"),
            () => ("up", "UP"),
        };
        let _ = write!(out, ",\"class\":\"{class}\",\"state\":\"{state}\",\"figures\":{{");
        for (index, (figure, value)) in named_figures(of).into_iter().enumerate() {
            let _ = write!(out, "{}\"{figure}\":{value}", if index == 0 { "" } else { "," });
        }
        out.push_str("}}");
    }

    fn engine(&self, name: &str, of: &Connections, out: &mut String) {
        out.push(',');
        self.begin(&("engine", name.to_owned()), ENGINE, out);
        let (class, state) = match () {
            () if of.is_open => ("down", "BREAKER OPEN"),
            () if of.connected == 0 => ("none", "NOT CONNECTED"),
            () => ("up", "UP"),
        };
        let failed: u64 = of.failures.iter().map(|(_, count)| count).sum();
        let _ = write!(
            out,
            ",\"class\":\"{class}\",\"state\":\"{state}\",\"figures\":{{\"connections\":{},\"max\":{},\"queued\":{},\
             \"in_flight\":{},\"commands\":{},\"errors\":{},\"failed\":{failed},\"last_failure\":",
            of.connected, of.max, of.queued, of.in_flight, of.commands, of.engine_errors
        );
        append_json_string(of.last_failure.as_deref().unwrap_or(""), out);
        out.push_str("}}");
    }

    fn limit(&self, limit: &Limit, out: &mut String) {
        let (config, counts) = (&limit.config, limit.counts());
        out.push(',');
        self.begin(&("limit", config.name.to_string()), LIMIT, out);
        let _ = write!(
            out,
            ",\"figures\":{{\"allowed\":{},\"near\":{},\"denied\":{},\"shadowed\":{},\"failed\":{},\"local\":{},\"allows\":",
            counts.allowed, counts.near, counts.denied, counts.shadowed, counts.failed, counts.local
        );
        append_json_string(&config.kind.to_string(), out);
        out.push_str("},\"keys\":[");
        for (index, heavy) in limit.top().into_iter().take(TOP_KEYS).enumerate() {
            out.push_str(if index == 0 { "[" } else { ",[" });
            append_json_string(&String::from_utf8_lossy(&heavy.key), out);
            let _ = write!(out, ",{},{}]", heavy.requests, heavy.denied);
        }
        out.push_str("]}");
    }

    fn end(&self, page: &sluicegate_config::model::StatsPage, out: &mut String) {
        let running = &self.running;
        if shows_more(page) {
            stores(running).iter().for_each(|(name, of)| self.store(name, of, out));
            running.told(|engine| engine.connections()).iter().for_each(|(name, of)| self.engine(name, of, out));
            running.directory.limits.iter().for_each(|limit| self.limit(limit, out));
        }
        out.push_str("]}\n");
    }
}

/// Appends a point with three or more significant digits; null stands for none.
fn put_point(point: f32, out: &mut String) {
    let _ = match point {
        point if point.is_nan() => write!(out, "null"),
        point if point.fract() == 0.0 || point >= 100.0 => write!(out, "{point:.0}"),
        point => write!(out, "{point:.2}"),
    };
}

impl Document for Data {
    fn piece(&mut self, out: &mut Vec<u8>) -> bool {
        let (running, own) = (self.running.clone(), self.own.clone());
        let Some(page) = &own.config.stats else { return false };
        let mut text = String::new();
        if self.stage == Stage::Start {
            self.stage = Stage::Proxies;
            self.head(&mut text);
        }
        let wanted = |proxy: &ProxyRun| in_scope(page, &own, proxy);
        let filter = Filter { up: self.asked.up, no_maint: self.asked.no_maint, ..Filter::default() };
        while self.stage == Stage::Proxies && text.len() < PIECE {
            match self.cursor.next(&running, wanted, &filter) {
                Some((object, _)) => self.proxy(object, &mut text),
                None => {
                    self.stage = Stage::Over;
                    self.end(page, &mut text);
                }
            }
        }
        out.extend_from_slice(text.as_bytes());
        self.stage != Stage::Over
    }
}
