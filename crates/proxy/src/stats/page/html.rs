//! The page itself: one file without anything outside of it, light and dark, for a phone and for a wide screen.
//!
//! Each proxy is a section with one table, which scrolls by itself where the screen is narrow; the first column stays.
//! A state is said in words and by a colour. Every text that comes from a file or a peer goes through [`Text`]. The
//! only script ticks all servers of a table; everything works without it.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::time::Instant;

use sluicegate_config::model::{Mode, ProxyKind, StatsPage};

use super::form::OFFERED;
use super::{Asked, Outcome};
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, Operation, ServerRun};
use crate::stats::columns::{self, Cell};
use crate::stats::{Object, info};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A text of somebody else, as HTML.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

/// A number in groups of three digits.
struct Grouped(u64);

impl Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.char_indices() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                // A narrow blank that no line breaks at.
                f.write_char('\u{202f}')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// Bytes with the unit that leaves three or four digits.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1000.0 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        let places = if unit == 0 || value >= 100.0 { 0 } else { 1 };
        write!(f, "{value:.places$}\u{a0}{}", UNITS[unit])
    }
}

/// Seconds as the two largest units.
struct Age(u64);

impl Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
        let first = units.iter().position(|(size, _)| seconds >= *size).unwrap_or(3);
        let mut rest = seconds;
        for (size, unit) in units.iter().skip(first).take(2) {
            write!(f, "{}{unit}", rest / size)?;
            rest %= size;
        }
        Ok(())
    }
}

/// What a cell's number is.
#[derive(Clone, Copy)]
enum Shown {
    Count,
    Bytes,
    Age,
    /// Of a limit: 0 and nothing are none.
    Limit,
}

/// The columns behind the name and the state: group, heading, what it is, the column of `show stat`, and its form.
const COLUMNS: [(&str, &str, &str, &str, Shown); 27] = [
    ("Sessions", "Now", "Current sessions", "scur", Shown::Count),
    ("Sessions", "Max", "Most sessions at a time", "smax", Shown::Count),
    ("Sessions", "Limit", "Sessions allowed at a time", "slim", Shown::Limit),
    ("Sessions", "Total", "Sessions so far", "stot", Shown::Count),
    ("Sessions", "Last", "Time since the last session", "lastsess", Shown::Age),
    ("Rate", "Now", "Sessions in the last second", "rate", Shown::Count),
    ("Rate", "Max", "Most sessions in a second", "rate_max", Shown::Count),
    ("Rate", "Limit", "Sessions allowed in a second", "rate_lim", Shown::Limit),
    ("Queue", "Now", "Requests that wait", "qcur", Shown::Count),
    ("Queue", "Max", "Most requests that waited", "qmax", Shown::Count),
    ("Queue", "Limit", "Requests that may wait", "qlimit", Shown::Limit),
    ("Bytes", "In", "Bytes from clients", "bin", Shown::Bytes),
    ("Bytes", "Out", "Bytes to clients", "bout", Shown::Bytes),
    ("Denied", "Req", "Requests denied by rules", "dreq", Shown::Count),
    ("Denied", "Resp", "Responses denied by rules", "dresp", Shown::Count),
    ("Errors", "Req", "Invalid requests", "ereq", Shown::Count),
    ("Errors", "Conn", "Failed connections", "econ", Shown::Count),
    ("Errors", "Resp", "Failed responses", "eresp", Shown::Count),
    ("Warnings", "Retr", "Connections tried again", "wretr", Shown::Count),
    ("Warnings", "Redis", "Requests sent to another server", "wredis", Shown::Count),
    ("Server", "Wght", "Weight", "weight", Shown::Count),
    ("Server", "Act", "Active servers", "act", Shown::Count),
    ("Server", "Bck", "Backup servers", "bck", Shown::Count),
    ("Server", "Chk", "Failed checks", "chkfail", Shown::Count),
    ("Server", "Dwn", "Times it went down", "chkdown", Shown::Count),
    ("Server", "Dwntme", "Time it was down", "downtime", Shown::Age),
    ("Server", "Thrtle", "Share of its weight after a start, percent", "throttle", Shown::Count),
];

/// Columns of `stats show-modules`.
const MODULES: [(&str, &str, &str, &str, Shown); 4] = [
    ("HTTP/1", "Conn", "Connections open", "h1_open_connections", Shown::Count),
    ("HTTP/1", "Total", "Connections so far", "h1_total_connections", Shown::Count),
    ("HTTP/1", "In", "Bytes received", "h1_bytes_in", Shown::Bytes),
    ("HTTP/1", "Out", "Bytes sent", "h1_bytes_out", Shown::Bytes),
];

/// What a page is made from.
pub(super) struct View<'a> {
    pub(super) running: &'a Running,
    pub(super) page: &'a StatsPage,
    pub(super) asked: &'a Asked,
    pub(super) admin: bool,
    pub(super) now: Instant,
}

/// A page between its pieces: which proxy's table is open.
#[derive(Debug, Default)]
pub(super) struct Page {
    open: Option<u32>,
    any: bool,
}

/// Writing to a vector can't fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => {
        _ = std::io::Write::write_fmt($out, format_args!($($text)*))
    };
}

impl View<'_> {
    fn columns(
        &self,
    ) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str, &'static str, Shown)> {
        let modules: &[_] = if self.page.modules { &MODULES } else { &[] };
        COLUMNS.iter().chain(modules)
    }

    /// The address of a view, with these words.
    fn address(&self, words: &str) -> String {
        Text(&format!("{}{words}", self.page.uri)).to_string()
    }

    fn node(&self) -> Option<String> {
        let own = self.page.node.as_ref()?;
        let global = || self.running.config.global.node.clone().unwrap_or_else(info::node_name);
        Some(own.clone().unwrap_or_else(global))
    }

    fn description(&self) -> Option<&str> {
        match self.page.description.as_deref()? {
            "" => self.running.config.global.description.as_deref(),
            text => Some(text),
        }
    }
}

impl Page {
    /// Everything before the first proxy.
    pub(super) fn head(&mut self, view: &View<'_>, out: &mut Vec<u8>) {
        let node = view.node();
        let title = match &node {
            Some(node) => format!("Statistics of {node}"),
            None => "Statistics".to_owned(),
        };
        put!(
            out,
            "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\n<title>{} · Sluicegate</title>\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <meta name=color-scheme content=\"light dark\">\n<link rel=icon href=\"data:,\">\n\
             <style>{STYLE}</style></head>\n<body>\n<header><h1>Sluicegate",
            Text(&title)
        );
        if !view.page.hide_version {
            put!(out, " <small>{}</small>", info::VERSION);
        }
        put!(out, "</h1>\n<p>Process {}", std::process::id());
        if let Some(node) = &node {
            put!(out, " on <b>{}</b>", Text(node));
        }
        if let Some(text) = view.description() {
            put!(out, ": {}", Text(text));
        }
        put!(out, "</p></header>\n");
        outcome(view, out);
        process(view, out);
        stores(view, out);
        engines(view, out);
        limits(view, out);
        controls(view, out);
        put!(out, "<main>\n");
    }

    /// A line of a table; the first of a proxy begins it.
    pub(super) fn object(&mut self, view: &View<'_>, object: Object<'_>, out: &mut Vec<u8>) {
        let proxy = match object {
            Object::Frontend(proxy) | Object::Backend(proxy) => proxy,
            Object::Server(proxy, _) | Object::Socket(proxy, _) => proxy,
        };
        if self.open != Some(proxy.id.0) {
            self.close(view, out);
            self.open = Some(proxy.id.0);
            begin(view, proxy, out);
        }
        self.any = true;
        line(view, proxy, object, out);
    }

    fn close(&mut self, view: &View<'_>, out: &mut Vec<u8>) {
        let Some(id) = self.open.take() else { return };
        put!(out, "</table></div>\n");
        let Some(proxy) = view.running.proxies.get(id as usize).filter(|proxy| is_form(view, proxy)) else {
            put!(out, "</section>\n");
            return;
        };
        put!(
            out,
            "<p class=act><label>With the ticked servers: <select name=action><option value=\"\">choose…</option>"
        );
        for (name, _, label) in OFFERED {
            put!(out, "<option value={name}>{label}</option>");
        }
        put!(
            out,
            "</select></label> <input type=hidden name=b value=\"#{}\"><button>Apply</button></p></form></section>\n",
            proxy.config.uid
        );
    }

    /// Everything behind the last proxy.
    pub(super) fn end(&mut self, view: &View<'_>, out: &mut Vec<u8>) {
        self.close(view, out);
        if !self.any {
            put!(out, "<p class=none>No proxy to show.</p>\n");
        }
        put!(out, "</main>\n");
        if view.admin {
            put!(out, "<script>{SCRIPT}</script>\n");
        }
        put!(out, "</body></html>\n");
    }
}

/// What became of an action.
fn outcome(view: &View<'_>, out: &mut Vec<u8>) {
    let Some(outcome) = view.asked.outcome else { return };
    let (class, text) = match outcome {
        Outcome::Done => ("up", "Done."),
        Outcome::Nothing => ("warn", "Nothing was changed."),
        Outcome::Partial => ("warn", "Done in part: some servers are not known."),
        Outcome::Invalid => ("down", "Not done: the action, the backend or a server is not known."),
        Outcome::TooLong => ("down", "Not done: too many servers at once."),
        Outcome::Denied => ("down", "Not done: you may not change servers here."),
        Outcome::Unknown => ("none", "What became of it is not known."),
    };
    let asked = view.asked;
    let back = view.address(&asked.words(asked.up, asked.no_maint, asked.no_refresh));
    put!(out, "<p role=status class=\"said {class}\">{text} <a href=\"{back}\">Close</a></p>\n");
}

/// The process in a few figures.
fn process(view: &View<'_>, out: &mut Vec<u8>) {
    let process = &view.running.process;
    let max = process.sessions.max().unwrap_or(0);
    put!(out, "<dl class=facts>");
    let rate: u64 = view
        .running
        .proxies
        .iter()
        .map(|proxy| u64::from(proxy.frontend.figures.rate(view.now, |counters| &counters.conn_rate)))
        .sum();
    let full: u64 = process.workers.iter().map(|worker| worker.full.get()).sum();
    put!(out, "<div><dt>Up for<dd>{}</div>", Age(process.started.elapsed().as_secs()));
    put!(out, "<div><dt>Workers<dd>{}</div>", process.workers.len());
    put!(out, "<div><dt>Connections<dd>{} of {}</div>", process.sessions.current(), Grouped(max.into()));
    put!(out, "<div><dt>Limit reached<dd>{}×</div>", Grouped(full));
    put!(out, "<div><dt>New connections<dd>{}/s</div>", Grouped(rate));
    put!(out, "<div><dt>Sent<dd>{}/s</div>", Bytes(process.bytes_out_rate()));
    put!(out, "<div><dt>Idle<dd>{} %</div>", process.idle_percent());
    put!(out, "</dl>\n");
}

/// A table of the stores that tell their figures.
fn stores(view: &View<'_>, out: &mut Vec<u8>) {
    let stores = view.running.told(|engine| engine.figures());
    if stores.is_empty() || view.page.scope.iter().any(|name| name == ".") {
        return;
    }
    put!(
        out,
        "<section><h2>Stores</h2><div class=scroll tabindex=0 role=region aria-label=\"Stores\"><table>\
         <thead><tr><th scope=col>Store<th scope=col>Keys<th scope=col title=\"Keys with a time to live\">Expiring\
         <th scope=col>Memory<th scope=col>Limit<th scope=col>Clients<th scope=col>Commands\
         <th scope=col>Commands/s<th scope=col>Hits<th scope=col>Misses\
         <th scope=col title=\"Sections and commands that hold keys or wait for them\">Holds\
         <th scope=col title=\"Those that had to wait\">Waited<th scope=col>Expired<th scope=col>Evicted\
         </tr></thead><tbody>\n"
    );
    for (name, figures) in stores {
        put!(out, "<tr><th scope=row>{}", Text(name));
        put!(out, "<td>{}<td>{}", Grouped(figures.keys), Grouped(figures.expiring));
        put!(out, "<td>{}<td>", Bytes(figures.used_bytes));
        match figures.max_bytes {
            0 => put!(out, "none"),
            limit => put!(out, "{}", Bytes(limit)),
        }
        for count in [
            figures.clients,
            figures.commands,
            figures.commands_per_second,
            figures.hits,
            figures.misses,
            figures.holds,
            figures.waited,
            figures.expired,
            figures.evicted,
        ] {
            put!(out, "<td>{}", Grouped(count));
        }
        put!(out, "</tr>\n");
    }
    put!(out, "</tbody></table></div></section>\n");
}

/// A table of the engines in other processes, with a row for each node of those that have several.
fn engines(view: &View<'_>, out: &mut Vec<u8>) {
    let engines = view.running.told(|engine| engine.connections());
    if engines.is_empty() || view.page.scope.iter().any(|name| name == ".") {
        return;
    }
    put!(
        out,
        "<section><h2>Engines</h2><div class=scroll tabindex=0 role=region aria-label=\"Engines\"><table>\
         <thead><tr><th scope=col>Engine<th scope=col>Address\
         <th scope=col title=\"While it is open the engine is not asked\">Breaker<th scope=col>Connections\
         <th scope=col>Connecting<th scope=col>Limit<th scope=col title=\"Attempts to connect\">Connects\
         <th scope=col title=\"Commands that wait for a connection\">Queued\
         <th scope=col title=\"Commands without a reply yet\">In flight<th scope=col>Replies\
         <th scope=col title=\"Error replies of the engine\">Errors<th scope=col>Commands\
         <th scope=col title=\"Commands that were not answered\">Failed<th scope=col>Last failure</tr></thead><tbody>\n"
    );
    let breaker = |is_open: bool| if is_open { "open" } else { "closed" };
    for (name, of) in engines {
        put!(out, "<tr><th scope=row>{}<td>{}<td>{}", Text(name), Text(&of.address), breaker(of.is_open));
        put!(out, "<td>{}<td>{}<td>{}", Grouped(of.connected), Grouped(of.connecting), Grouped(of.max));
        for count in [of.connects, of.queued, of.in_flight, of.replies, of.engine_errors, of.commands] {
            put!(out, "<td>{}", Grouped(count));
        }
        let failed: u64 = of.failures.iter().map(|(_, count)| count).sum();
        put!(out, "<td>{}<td>{}</tr>\n", Grouped(failed), Text(of.last_failure.as_deref().unwrap_or("none")));
        for node in of.nodes.iter().filter(|_| of.nodes.len() > 1) {
            put!(out, "<tr><td>{}<td>{}<td>{}", node.role, Text(&node.address), breaker(node.is_open));
            put!(out, "<td>{}<td>{}<td>", Grouped(node.connected), Grouped(node.connecting));
            put!(out, "<td>{}<td><td>{}", Grouped(node.connects), Grouped(node.in_flight));
            put!(out, "<td>{}<td>{}<td><td>", Grouped(node.replies), Grouped(node.engine_errors));
            put!(out, "<td>{}</tr>\n", Text(node.last_failure.as_deref().unwrap_or("none")));
        }
    }
    put!(out, "</tbody></table></div></section>\n");
}

/// A table of the limits of rules.
fn limits(view: &View<'_>, out: &mut Vec<u8>) {
    let limits = &view.running.directory.limits;
    if limits.is_empty() || view.page.scope.iter().any(|name| name == ".") {
        return;
    }
    put!(
        out,
        "<section><h2>Limits</h2><div class=scroll tabindex=0 role=region aria-label=\"Limits\"><table>\
         <thead><tr><th scope=col>Limit<th scope=col>Allows<th scope=col>Store<th scope=col>Allowed\
         <th scope=col title=\"Allowed with at most a fifth left\">Near<th scope=col>Denied\
         <th scope=col title=\"Would have been denied, but for 'shadow'\">Shadowed\
         <th scope=col title=\"The engine couldn't say it, or the key was none\">Failed\
         <th scope=col title=\"Counted by the embedded store instead\">Local</tr></thead><tbody>\n"
    );
    for limit in limits {
        let (config, counts) = (&limit.config, limit.counts());
        put!(out, "<tr><th scope=row>{}", Text(&config.name));
        put!(out, "<td>{}<td>{}", config.kind, Text(&config.store));
        for count in [counts.allowed, counts.near, counts.denied, counts.shadowed, counts.failed, counts.local] {
            put!(out, "<td>{}", Grouped(count));
        }
        put!(out, "</tr>\n");
    }
    put!(out, "</tbody></table></div></section>\n");
}

/// The search and the links to other views.
fn controls(view: &View<'_>, out: &mut Vec<u8>) {
    let asked = view.asked;
    // A form replaces the query, so what the address needs of it is sent as a field again.
    let (path, query) = view.page.uri.split_once('?').unwrap_or((&view.page.uri, ""));
    put!(out, "<nav aria-label=\"View\"><form action=\"{}\" role=search>", Text(path));
    for field in query.split('&').filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        put!(out, "<input type=hidden name=\"{}\" value=\"{}\">", Text(name), Text(value));
    }
    put!(
        out,
        "<label>Proxies <input type=search name=scope maxlength=20 size=10 value=\"{}\"></label><button>Search</button>\
         </form><ul>",
        Text(asked.scope.as_deref().unwrap_or(""))
    );
    let (up, calm, still) = (asked.up, asked.no_maint, asked.no_refresh);
    let mut link = |label: &str, words: String| put!(out, "<li><a href=\"{}\">{label}</a>", view.address(&words));
    link(if up { "Show all servers" } else { "Hide servers that are down" }, asked.words(!up, calm, still));
    link(if calm { "Show maintenance" } else { "Hide maintenance" }, asked.words(up, !calm, still));
    if view.page.refresh.is_some() {
        link(if still { "Refresh by itself" } else { "Stop refreshing" }, asked.words(up, calm, !still));
    }
    link("Refresh now", asked.words(up, calm, still));
    let quiet = view.page.refresh.is_some();
    link("CSV", format!(";csv{}", asked.words(false, false, quiet)));
    link("JSON", format!(";json{}", asked.words(false, false, quiet)));
    link("Schema", ";json-schema".to_owned());
    put!(out, "</ul></nav>\n");
}

/// The proxy's table is a form for actions.
fn is_form(view: &View<'_>, proxy: &ProxyRun) -> bool {
    view.admin && proxy.config.kind != ProxyKind::Frontend && !proxy.servers.is_empty()
}

/// A proxy's heading, and the head of its table.
fn begin(view: &View<'_>, proxy: &ProxyRun, out: &mut Vec<u8>) {
    let name = Text(&proxy.config.name);
    put!(out, "<section id=\"{name}\"><h2><a href=\"#{name}\">{name}</a>");
    if view.page.legends {
        let kind = match proxy.config.kind {
            ProxyKind::Frontend => "frontend",
            ProxyKind::Backend => "backend",
            ProxyKind::Listen => "listen",
        };
        let mode = if proxy.config.mode == Mode::Http { "http" } else { "tcp" };
        put!(out, " <small>{kind}, mode {mode}, id {}", proxy.config.uid);
        if proxy.config.kind != ProxyKind::Frontend {
            put!(out, ", balance {}", proxy.config.balance.name());
        }
        put!(out, "</small>");
    }
    if let Some(text) = &proxy.config.description {
        put!(out, " <small class=about>{}</small>", Text(text));
    }
    put!(out, "</h2>");
    let form = is_form(view, proxy);
    if form {
        put!(out, "<form method=post>");
    }
    put!(out, "<div class=scroll tabindex=0 role=region aria-label=\"{name}\"><table><thead><tr>");
    if view.admin {
        match form {
            true => put!(out, "<td rowspan=2><input type=checkbox class=all aria-label=\"All servers of {name}\">"),
            false => put!(out, "<td rowspan=2>"),
        }
    }
    put!(out, "<th rowspan=2 scope=col>Name<th rowspan=2 scope=col>State");
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for (group, ..) in view.columns() {
        match groups.last_mut() {
            Some((last, count)) if last == group => *count += 1,
            _ => groups.push((group, 1)),
        }
    }
    for (group, count) in groups {
        put!(out, "<th colspan={count} scope=colgroup>{group}");
    }
    put!(out, "</tr><tr>");
    for (_, label, title, ..) in view.columns() {
        put!(out, "<th scope=col title=\"{title}\">{label}");
    }
    put!(out, "</tr></thead><tbody>\n");
}

/// How a line is coloured.
fn class(object: Object<'_>, state: &str) -> &'static str {
    match object {
        Object::Server(_, server) => {
            let status = server.shared.status();
            match (status.admin(), status.is_running()) {
                (Admin::Maintenance, _) => "maint",
                (_, false) if state.contains('/') => "warn",
                (_, false) => "down",
                (Admin::Drain, _) => "drain",
                (_, true) if status.operation == Operation::Stopping => "drain",
                (_, true) if state == "no check" => "none",
                (_, true) if state.contains('/') => "warn",
                (_, true) => "up",
            }
        }
        _ if matches!(state, "OPEN" | "UP") => "up",
        _ if matches!(state, "PAUSED" | "FULL" | "WAITING") => "warn",
        _ => "down",
    }
}

fn line(view: &View<'_>, proxy: &ProxyRun, object: Object<'_>, out: &mut Vec<u8>) {
    let cells = columns::row(view.running, object, view.now);
    let text = |name| match cells.get(name) {
        Cell::Text(text) => text.to_string(),
        Cell::Number(number) => number.to_string(),
        Cell::Empty => String::new(),
    };
    let state = text("status");
    let (kind, label): (_, Cow<'_, str>) = match object {
        Object::Frontend(_) => ("fe", "Frontend".into()),
        Object::Backend(_) => ("be", "Backend".into()),
        Object::Server(_, server) if server.config.backup => ("sv bk", (&**server.name()).into()),
        Object::Server(_, server) => ("sv", (&**server.name()).into()),
        Object::Socket(_, listener) => ("so", listener.name()),
    };
    put!(out, "<tr class=\"{kind}\">");
    if view.admin {
        match object {
            Object::Server(_, server) => put!(
                out,
                "<td><input type=checkbox name=s value=\"{0}\" aria-label=\"{1}/{0}\">",
                Text(server.name()),
                Text(&proxy.config.name)
            ),
            _ => put!(out, "<td>"),
        }
    }
    put!(out, "<th scope=row>{}", Text(&label));
    match object {
        Object::Server(_, server) if view.page.legends => legend(server, &text, out),
        Object::Socket(_, listener) if view.page.legends => {
            put!(out, "<small>{}, id {}</small>", Text(&text("addr")), listener.id);
        }
        _ => {}
    }
    put!(out, "<td><span class=\"b {}\">{}</span>", class(object, &state), Text(&state));
    if let Cell::Number(seconds) = cells.get("lastchg") {
        put!(out, " <small>{}</small>", Age(u64::try_from(*seconds).unwrap_or(0)));
    }
    let (check, duration) = (text("check_status"), text("check_duration"));
    if !check.is_empty() {
        put!(out, " <small title=\"{}\">{check}", Text(&text("last_chk")));
        if !duration.is_empty() {
            put!(out, " {duration} ms");
        }
        put!(out, "</small>");
    }
    for (_, _, _, name, shown) in view.columns() {
        put!(out, "<td>");
        let Cell::Number(number) = cells.get(name) else { continue };
        match (u64::try_from(*number), shown) {
            // What never was has no age.
            (Err(_), _) => {}
            (Ok(0), Shown::Limit) => put!(out, "–"),
            (Ok(number), Shown::Count | Shown::Limit) => put!(out, "{}", Grouped(number)),
            (Ok(number), Shown::Bytes) => put!(out, "{}", Bytes(number)),
            (Ok(number), Shown::Age) => put!(out, "{}", Age(number)),
        }
    }
    put!(out, "</tr>\n");
}

/// What `show-legends` says of a server.
fn legend(server: &ServerRun, text: &dyn Fn(&'static str) -> String, out: &mut Vec<u8>) {
    put!(out, "<small>{}, id {}", Text(&text("addr")), server.config.sid);
    let cookie = text("cookie");
    if !cookie.is_empty() {
        put!(out, ", cookie “{}”", Text(&cookie));
    }
    if server.config.backup {
        put!(out, ", backup");
    }
    put!(out, "</small>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_no_markup() {
        assert_eq!(Text("<b a='1'>\"&\"</b>x").to_string(), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;&quot;&lt;/b&gt;x");
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        let shown = |number| Grouped(number).to_string().replace('\u{202f}', " ");
        assert_eq!([shown(0), shown(999), shown(1000), shown(1234567)], ["0", "999", "1 000", "1 234 567"]);
        let bytes = |number| Bytes(number).to_string().replace('\u{a0}', " ");
        assert_eq!(
            [bytes(999), bytes(1500), bytes(250_000), bytes(3_210_000_000)],
            ["999 B", "1.5 kB", "250 kB", "3.2 GB"]
        );
        assert_eq!([0, 59, 61, 3_600, 90_061].map(|age| Age(age).to_string()), ["0s", "59s", "1m1s", "1h0m", "1d1h"]);
    }

    #[test]
    fn every_column_of_a_table_is_one_of_the_socket() {
        for (_, _, _, name, _) in COLUMNS.iter().chain(&MODULES) {
            assert!(columns::COLUMNS.iter().any(|column| column.name == *name), "{name}");
        }
    }
}
