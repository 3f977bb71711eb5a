//! The page itself: one file without anything outside of it, light and dark, for a phone and for a wide screen.
//!
//! Each proxy is a section with one table, whose rows have the colour of their state; a legend names the colours. From
//! 1400 pixels on a table fits the screen, below that it scrolls by itself with its first column fixed, and up to 768
//! pixels each row is a card. The proxies stand first; tables of the stores, engines and limits and a glossary of the
//! headings ([`tables`]) follow, collapsible. Every text that comes from a file or a peer goes through
//! [`Text`]. The only script ticks all servers of a table; everything works without it.

use std::borrow::Cow;
use std::time::Instant;

use sluicegate_config::model::{Mode, ProxyKind, StatsPage};

use super::form::OFFERED;
use super::tables::{self, COLUMNS, Column, MODULES, Shown};
use super::text::{Age, Bytes, Grouped, Short, Text, put};
use super::{Asked, Outcome};
use crate::running::{ProxyRun, Running};
use crate::server::ServerRun;
use crate::stats::columns::{self, Cell};
use crate::stats::{Object, info};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The colours of rows: those of active servers, then those that differ for backups.
const LEGEND: &str = "<ul class=legend aria-label=\"Colours of servers\"><li class=up>UP<li class=godown>UP, going down\
<li class=goup>DOWN, going up<li class=down>DOWN<li class=drain>DRAIN<li class=nolb>NOLB: no new sessions\
<li class=maint>MAINT: maintenance<li class=none>no check<li class=\"bk up\">backup UP\
<li class=\"bk godown\">backup UP, going down<li class=\"bk goup\">backup DOWN, going up</ul>\n";

/// The inputs of a page.
pub(super) struct View<'a> {
    pub(super) running: &'a Running,
    pub(super) page: &'a StatsPage,
    pub(super) asked: &'a Asked,
    pub(super) admin: bool,
    pub(super) now: Instant,
}

/// The state of a page between its pieces: the proxy whose table is open.
#[derive(Debug, Default)]
pub(super) struct Page {
    open: Option<u32>,
    any: bool,
}

impl View<'_> {
    /// Returns the columns of a proxy's table after the name and the state.
    pub(super) fn columns(&self) -> impl Iterator<Item = &'static Column> {
        let modules: &[_] = if self.page.modules { &MODULES } else { &[] };
        COLUMNS.iter().chain(modules)
    }

    /// Returns the address of a view, with these words.
    pub(super) fn address(&self, words: &str) -> String {
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
    /// Writes the page before the first proxy.
    pub(super) fn head(&mut self, view: &View<'_>, out: &mut Vec<u8>) {
        begin_document(view, "Statistics", out);
        tables::card_labels(view, out);
        put!(out, "</style></head>\n<body>\n");
        header(view, out);
        outcome(view, out);
        process(view, out);
        controls(view, out);
        put!(out, "{LEGEND}<main>\n");
    }

    /// Writes a line of a table; the first line of a proxy begins its table.
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
            "<p class=act><label>Action for selected servers: <select name=action><option value=\"\">choose…</option>"
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

    /// Writes the page after the last proxy.
    pub(super) fn end(&mut self, view: &View<'_>, out: &mut Vec<u8>) {
        self.close(view, out);
        if !self.any {
            put!(out, "<p class=none>No proxy to show.</p>\n");
        }
        tables::more(view, out);
        put!(out, "</main>\n");
        if view.admin {
            put!(out, "<script>{SCRIPT}</script>\n");
        }
        put!(out, "</body></html>\n");
    }
}

/// Writes the beginning of a document with this title, as far as the contents of its style sheet.
pub(super) fn begin_document(view: &View<'_>, title: &str, out: &mut Vec<u8>) {
    let of = view.node().map(|node| format!(" of {node}")).unwrap_or_default();
    put!(
        out,
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\n<title>{title}{} · Sluicegate</title>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <meta name=color-scheme content=\"light dark\">\n<link rel=icon href=\"data:,\">\n\
         <style>{STYLE}",
        Text(&of)
    );
}

/// Writes the name and version of the program, the process and the node.
pub(super) fn header(view: &View<'_>, out: &mut Vec<u8>) {
    // The version of the program, and apart from it that of the HAProxy whose place it takes.
    let versions = info::VERSION.split_once("-sluicegate-").filter(|_| !view.page.hide_version);
    put!(out, "<header><h1>Sluicegate");
    if let Some((_, own)) = versions {
        put!(out, " {own}");
    }
    put!(out, "</h1>\n<p>");
    if let Some((haproxy, _)) = versions {
        put!(out, "Compatible with HAProxy {haproxy} · ");
    }
    put!(out, "Process {}", std::process::id());
    if let Some(node) = &view.node() {
        put!(out, " on <b>{}</b>", Text(node));
    }
    if let Some(text) = view.description() {
        put!(out, ": {}", Text(text));
    }
    put!(out, "</p></header>\n");
}

/// Writes the result of an action.
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

/// Writes a few figures of the process.
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

/// Writes the search field and the links to other views.
fn controls(view: &View<'_>, out: &mut Vec<u8>) {
    let asked = view.asked;
    // A form replaces the query, so its parameters in the page's address are sent as fields.
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
    link("Dashboard", ";dashboard".to_owned());
    link("CSV", format!(";csv{}", asked.words(false, false, quiet)));
    link("JSON", format!(";json{}", asked.words(false, false, quiet)));
    link("Schema", ";json-schema".to_owned());
    tables::links(view, out);
    put!(out, "</ul></nav>\n");
}

/// Returns whether the proxy's table is a form for actions.
fn is_form(view: &View<'_>, proxy: &ProxyRun) -> bool {
    view.admin && proxy.config.kind != ProxyKind::Frontend && !proxy.servers.is_empty()
}

/// Writes a proxy's heading, and the head of its table.
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
    put!(
        out,
        "<div class=scroll tabindex=0 role=region aria-label=\"{name}\"><table class=px><thead><tr>\
         <th rowspan=2 scope=col>"
    );
    if form {
        put!(out, "<input type=checkbox class=all aria-label=\"All servers of {name}\"> ");
    }
    put!(out, "Name<th rowspan=2 scope=col>State");
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for Column { group, .. } in view.columns() {
        match groups.last_mut() {
            Some((last, count)) if last == group => *count += 1,
            _ => groups.push((group, 1)),
        }
    }
    for (group, count) in groups {
        put!(out, "<th colspan={count} scope=colgroup>{group}");
    }
    put!(out, "</tr><tr>");
    for Column { label, about, .. } in view.columns() {
        put!(out, "<th scope=col title=\"{about}\">{label}");
    }
    put!(out, "</tr></thead><tbody>\n");
}

/// Returns the classes of a row: its colour, by HAProxy's rules.
pub(super) fn class(object: Object<'_>, state: &str, weight: &str) -> &'static str {
    let Object::Server(..) = object else {
        return match state {
            "OPEN" | "UP" => "up",
            "PAUSED" | "FULL" | "WAITING" => "godown",
            _ => "down",
        };
    };
    let partly = state.contains('/');
    match state.split(' ').next().unwrap_or_default() {
        "MAINT" => "maint",
        "DOWN" if partly => "goup",
        "DOWN" => "down",
        "DRAIN" => "drain",
        "NOLB" | "UP" if partly => "godown",
        "NOLB" => "nolb",
        "no" => "none",
        _ if weight == "0" => "drain",
        _ => "up",
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
    put!(out, "<tr class=\"{kind} {}\"><th scope=row>", class(object, &state, &text("weight")));
    match object {
        Object::Server(_, server) if view.admin => put!(
            out,
            "<label><input type=checkbox name=s value=\"{0}\" aria-label=\"{1}/{0}\"> {0}</label>",
            Text(server.name()),
            Text(&proxy.config.name)
        ),
        _ => put!(out, "{}", Text(&label)),
    }
    match object {
        Object::Server(_, server) => legend(view, server, &text, out),
        Object::Socket(_, listener) if view.page.legends => {
            put!(out, "<small>{}, id {}</small>", Text(&text("addr")), listener.id);
        }
        _ => {}
    }
    put!(out, "<td><b class=b>{}</b>", Text(&state));
    if let Cell::Number(seconds) = cells.get("lastchg") {
        put!(out, " <small>{}</small>", Age(u64::try_from(*seconds).unwrap_or(0)));
    }
    let (check, duration, last) = (text("check_status"), text("check_duration"), text("last_chk"));
    if !check.is_empty() {
        put!(out, " <small class=ck");
        if !last.is_empty() {
            put!(out, " title=\"{}\"", Text(&last));
        }
        put!(out, ">{check}");
        if !duration.is_empty() {
            put!(out, " {duration}\u{a0}ms");
        }
        put!(out, "</small>");
    }
    for Column { name, shown, .. } in view.columns() {
        let Cell::Number(number) = cells.get(name) else {
            put!(out, "<td>");
            continue;
        };
        match (u64::try_from(*number), shown) {
            // What never was has no age.
            (Err(_), _) => put!(out, "<td>"),
            (Ok(number), Shown::Member) if matches!(object, Object::Server(..)) => {
                put!(out, "{}", if number == 0 { "<td class=z>–" } else { "<td>Y" });
            }
            (Ok(0), Shown::Limit) => put!(out, "<td class=z>–"),
            (Ok(0), Shown::Bytes | Shown::Count | Shown::Member) => put!(out, "<td class=z>0"),
            (Ok(0), Shown::Age) if *name == "downtime" => put!(out, "<td class=z>0s"),
            (Ok(number), Shown::Count | Shown::Limit | Shown::Member) => put!(out, "<td>{}", Short(number)),
            (Ok(number), Shown::Bytes) => put!(out, "<td>{}", Bytes(number)),
            (Ok(number), Shown::Age) => put!(out, "<td>{}", Age(number)),
            (Ok(number), Shown::Percent) => put!(out, "<td>{number}\u{a0}%"),
        }
    }
    put!(out, "</tr>\n");
}

/// Returns the line below a server's name: that it is a backup, and the rest for `show-legends`.
fn legend(view: &View<'_>, server: &ServerRun, text: &dyn Fn(&'static str) -> String, out: &mut Vec<u8>) {
    let backup = if server.config.backup { "backup" } else { "" };
    if !view.page.legends {
        if !backup.is_empty() {
            put!(out, "<small>{backup}</small>");
        }
        return;
    }
    put!(out, "<small>{}, id {}", Text(&text("addr")), server.config.sid);
    let cookie = text("cookie");
    if !cookie.is_empty() {
        put!(out, ", cookie “{}”", Text(&cookie));
    }
    if !backup.is_empty() {
        put!(out, ", {backup}");
    }
    put!(out, "</small>");
}
