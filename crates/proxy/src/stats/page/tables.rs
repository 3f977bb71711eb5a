//! The tables of the page: their columns, and those of the stores, the engines and the limits.
//!
//! A column's explanation is the title of its heading, for a mouse, and a line of the glossary at the end of the page,
//! for everyone else. A narrow screen shows a row as a card: [`card_labels`] then puts each heading before its figure.

use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::model::StatsPage;
use sluicegate_wire::engine::{Denial, Disk, Engine, Figures, Replicated};

use super::html::View;
use super::text::{Age, Bytes, Grouped, Text, put};
use crate::running::Running;

/// The format of a cell's number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// A count.
    Count,
    /// Bytes with a unit.
    Bytes,
    /// Seconds as a period.
    Age,
    /// A limit: 0 and an empty cell mean no limit.
    Limit,
    /// A number of servers; in a server's own row, whether the server is one of them.
    Member,
    /// A percentage.
    Percent,
}

/// A column of a proxy's table, after the name and the state.
pub(super) struct Column {
    pub(super) group: &'static str,
    pub(super) label: &'static str,
    pub(super) about: &'static str,
    /// The column of `show stat`.
    pub(super) name: &'static str,
    pub(super) shown: Shown,
}

const fn column(
    group: &'static str,
    label: &'static str,
    about: &'static str,
    name: &'static str,
    shown: Shown,
) -> Column {
    Column { group, label, about, name, shown }
}

/// The columns of every proxy's table.
pub(super) const COLUMNS: [Column; 27] = [
    column("Sessions", "Now", "current sessions", "scur", Shown::Count),
    column("Sessions", "Max", "highest number of concurrent sessions", "smax", Shown::Count),
    column("Sessions", "Limit", "limit of concurrent sessions", "slim", Shown::Limit),
    column("Sessions", "Total", "sessions since the start", "stot", Shown::Count),
    column("Sessions", "Last", "time since the last session", "lastsess", Shown::Age),
    column("Rate", "Now", "new sessions in the last second", "rate", Shown::Count),
    column("Rate", "Max", "highest number of new sessions in a second", "rate_max", Shown::Count),
    column("Rate", "Limit", "limit of new sessions per second", "rate_lim", Shown::Limit),
    column("Queue", "Now", "requests in the queue", "qcur", Shown::Count),
    column("Queue", "Max", "highest number of queued requests", "qmax", Shown::Count),
    column("Queue", "Limit", "limit of queued requests", "qlimit", Shown::Limit),
    column("Bytes", "In", "bytes received from clients", "bin", Shown::Bytes),
    column("Bytes", "Out", "bytes sent to clients", "bout", Shown::Bytes),
    column("Denied", "Req", "requests denied by rules", "dreq", Shown::Count),
    column("Denied", "Resp", "responses denied by rules", "dresp", Shown::Count),
    column("Errors", "Req", "invalid requests", "ereq", Shown::Count),
    column("Errors", "Conn", "connections to servers that failed", "econ", Shown::Count),
    column("Errors", "Resp", "responses that failed", "eresp", Shown::Count),
    column("Warnings", "Retr", "connections tried again", "wretr", Shown::Count),
    column("Warnings", "Redis", "requests redispatched to another server", "wredis", Shown::Count),
    column("Server", "Wght", "weight", "weight", Shown::Count),
    column("Server", "Act", "active servers; Y: this server is one", "act", Shown::Member),
    column("Server", "Bck", "backup servers; Y: this server is one", "bck", Shown::Member),
    column("Server", "Chk", "failed health checks", "chkfail", Shown::Count),
    column("Server", "Dwn", "changes from UP to DOWN", "chkdown", Shown::Count),
    column("Server", "Dwntme", "total time in state DOWN", "downtime", Shown::Age),
    column("Server", "Thrtle", "share of the weight that slow start allows", "throttle", Shown::Percent),
];

/// Columns of `stats show-modules`.
pub(super) const MODULES: [Column; 4] = [
    column("HTTP/1", "Conn", "current connections of HTTP/1", "h1_open_connections", Shown::Count),
    column("HTTP/1", "Total", "connections of HTTP/1 since the start", "h1_total_connections", Shown::Count),
    column("HTTP/1", "In", "bytes received over HTTP/1", "h1_bytes_in", Shown::Bytes),
    column("HTTP/1", "Out", "bytes sent over HTTP/1", "h1_bytes_out", Shown::Bytes),
];

/// The heading and explanation of each column, starting with that of the name; `true`: a text, which is aligned to the
/// left.
type Headings = [(&'static str, &'static str, bool)];

const STORES: &Headings = &[
    ("Store", "name of the section", true),
    ("Keys", "keys, expired ones that are not yet removed included", false),
    ("Expiring", "keys with a time to live", false),
    ("Memory", "bytes of keys, values and buffers", false),
    ("Limit", "maxmemory", false),
    ("Clients", "connected clients", false),
    ("Commands", "commands of clients, rules and scripts since the start", false),
    ("Commands/s", "commands in the last second", false),
    ("Hits", "look-ups that found their key", false),
    ("Misses", "look-ups that did not find their key", false),
    ("Locks", "transactions, scripts and commands that hold a key's lock or wait for one", false),
    ("Lock waits", "those that had to wait, since the start", false),
    ("Expired", "keys removed because their time was over", false),
    ("Evicted", "keys removed because of maxmemory", false),
    ("Denied", "logins and commands denied to users since the start; below are the latest, all are in ACL LOG", false),
    ("Unsaved", "changes since the last save to an RDB file", false),
    ("Disk", "what is being done with the store's files, what failed, or the age of the last save", true),
    ("Replication", "whether the store is a replica and its link works, or how many replicas it has", true),
];

const DENIALS: &Headings = &[
    ("Store", "name of the section", true),
    ("Reason", "what was denied: a login (auth), a command, a key or a channel", true),
    ("Context", "where: in a command (toplevel), a transaction (multi) or a script (lua)", true),
    ("Object", "the command, the key or the channel", true),
    ("User", "name of the user", true),
    ("Events", "similar events, each within a minute of the one before it", false),
    ("Age", "time since the last of them", false),
    ("Client", "address of the client, or the rule or script", true),
];

/// Entries of each store.
const DENIALS_MAX: usize = 10;

const ENGINES: &Headings = &[
    ("Engine", "name of the redis section, below it the role of each node", true),
    ("Address", "address of the server", true),
    ("Breaker", "open: no commands are sent after repeated failures", true),
    ("Connections", "established connections", false),
    ("Connecting", "connections being established", false),
    ("Limit", "maxconn of the section", false),
    ("Connects", "attempts to connect since the start", false),
    ("Queued", "commands that wait for a connection", false),
    ("In flight", "commands sent and not yet answered", false),
    ("Replies", "replies since the start", false),
    ("Errors", "error replies of the server", false),
    ("Commands", "commands since the start", false),
    ("Failed", "commands that got no reply", false),
    ("Last failure", "reason of the last failure", true),
];

const LIMITS: &Headings = &[
    ("Limit", "name of the limit", true),
    ("Allows", "rate, burst and algorithm", true),
    ("Store", "store or engine that counts", true),
    ("Allowed", "requests within the limit", false),
    ("Near", "allowed requests that left at most a fifth of the limit", false),
    ("Denied", "requests beyond the limit", false),
    ("Shadowed", "requests beyond the limit that 'shadow' let pass", false),
    ("Failed", "requests not counted: the store failed or the key was empty", false),
    ("Local", "requests counted by the embedded store while the engine failed", false),
];

/// Returns whether this is the implicit store of a configuration without any `store` section, and still unused.
fn is_implicit(running: &Running, name: &str, figures: &Figures) -> bool {
    let declared = &running.config.stores;
    let plain = |store: &sluicegate_config::model::StoreSection| {
        store.binds.is_empty() && store.parameters.is_empty() && store.users.is_empty()
    };
    name == "default" && declared.iter().all(plain) && figures.commands == 0 && figures.keys == 0
}

/// Returns the stores that are shown, with their figures.
pub(super) fn stores(running: &Running) -> Vec<(&str, Figures)> {
    let mut stores = running.told(|engine| engine.figures());
    stores.retain(|(name, figures)| !is_implicit(running, name, figures));
    stores
}

/// Returns what users were denied lately, by store.
fn denials<'a>(view: &View<'a>) -> Vec<(&'a str, Vec<Denial>)> {
    let latest = |engine: &dyn Engine| Some(engine.denials(DENIALS_MAX)).filter(|denials| !denials.is_empty());
    view.running.told(latest)
}

/// Returns whether the page shows anything besides proxies.
pub(super) fn shows_more(page: &StatsPage) -> bool {
    page.scope.iter().all(|name| name != ".")
}

/// Returns the tables of this page after the proxies: class, heading and columns.
fn tables(view: &View<'_>) -> Vec<(&'static str, &'static str, &'static Headings)> {
    if !shows_more(view.page) {
        return Vec::new();
    }
    let running = view.running;
    let present = [
        (!stores(view.running).is_empty(), ("st", "Stores", STORES)),
        (!denials(view).is_empty(), ("dn", "Denied", DENIALS)),
        (!running.told(|engine| engine.connections()).is_empty(), ("en", "Engines", ENGINES)),
        (!running.directory.limits.is_empty(), ("li", "Limits", LIMITS)),
    ];
    present.into_iter().filter(|(is_there, _)| *is_there).map(|(_, table)| table).collect()
}

/// Writes links to the tables after the proxies.
pub(super) fn links(view: &View<'_>, out: &mut Vec<u8>) {
    for (class, name, _) in tables(view) {
        put!(out, "<li><a href=\"#~{class}\">{name}</a>");
    }
    put!(out, "<li><a href=\"#~gl\">Glossary</a>");
}

/// Writes the rules of the style sheet that depend on the columns: the labels of cards, lines between groups, texts.
pub(super) fn card_labels(view: &View<'_>, out: &mut Vec<u8>) {
    let mut last = "";
    for (index, column) in view.columns().enumerate() {
        if column.group != last {
            put!(out, ".px td:nth-child({}),.px thead tr+tr th:nth-child({}),", index + 3, index + 1);
        }
        last = column.group;
    }
    put!(out, ".px thead th[colspan]{{border-left:1px solid var(--line)}}\n");
    for (class, _, headings) in tables(view) {
        for (index, _) in headings.iter().enumerate().filter(|(_, (.., is_text))| *is_text) {
            put!(out, ".{class} :is(th,td):nth-child({}){{text-align:left}}", index + 1);
        }
    }
    put!(out, "\n@media (max-width:48rem){{");
    for (index, column) in view.columns().enumerate() {
        let Column { group, label, .. } = column;
        put!(out, ".px td:nth-child({})::before{{content:\"{group}: {label}\"}}", index + 3);
    }
    for (class, _, headings) in tables(view) {
        for (index, (label, ..)) in headings.iter().enumerate().skip(1) {
            put!(out, ".{class} td:nth-child({})::before{{content:\"{label}\"}}", index + 1);
        }
    }
    put!(out, "}}\n");
}

/// Writes the page between the proxies and its end.
pub(super) fn more(view: &View<'_>, out: &mut Vec<u8>) {
    for (class, name, headings) in tables(view) {
        put!(
            out,
            "<details id=\"~{class}\" open><summary><h2>{name}</h2></summary>\
             <div class=scroll tabindex=0 role=region aria-label=\"{name}\"><table class={class}><thead><tr>"
        );
        for (label, about, _) in headings {
            put!(out, "<th scope=col title=\"{about}\">{label}");
        }
        put!(out, "</tr></thead><tbody>\n");
        match class {
            "st" => store_rows(view, out),
            "dn" => denial_rows(view, out),
            "en" => engine_rows(view, out),
            _ => limit_rows(view, out),
        }
        put!(out, "</tbody></table></div></details>\n");
    }
    glossary(view, out);
}

fn store_rows(view: &View<'_>, out: &mut Vec<u8>) {
    for (name, figures) in stores(view.running) {
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
            figures.denied.iter().sum::<u64>(),
        ] {
            put!(out, "<td>{}", Grouped(count));
        }
        match figures.disk {
            None => put!(out, "<td>0<td>none"),
            Some(disk) => {
                put!(out, "<td>{}<td>", Grouped(disk.changes));
                put_disk(&disk, out);
            }
        }
        put!(out, "<td>");
        match figures.replication {
            None => put!(out, "none"),
            Some(of) => put_replication(&of, out),
        }
        put!(out, "</tr>\n");
    }
}

fn denial_rows(view: &View<'_>, out: &mut Vec<u8>) {
    for (name, denials) in denials(view) {
        for of in &denials {
            put!(out, "<tr><th scope=row>{}<td>{}<td>{}", Text(name), of.reason, of.context);
            put!(out, "<td>{}<td>{}<td>{}", Text(&of.object), Text(&of.user), Grouped(of.count));
            put!(out, "<td>{}<td>{}</tr>\n", Age(of.age_s), Text(&of.client));
        }
    }
}

/// Writes the most important of what there is to say of a store's master and replicas.
fn put_replication(of: &Replicated, out: &mut Vec<u8>) {
    match (of.is_replica, of.is_linked) {
        (true, _) if of.is_syncing => put!(out, "replica, syncing"),
        (true, true) => put!(out, "replica"),
        (true, false) => put!(out, "replica, link down"),
        (false, _) if of.good_replicas < of.replicas => put!(out, "{} of {} replicas", of.good_replicas, of.replicas),
        (false, _) => put!(out, "{} replicas", of.replicas),
    }
    if of.slowest_bytes > 0 {
        put!(out, ", {} behind", Bytes(of.slowest_bytes));
    }
}

/// Writes the most important of what there is to say of a store's files.
fn put_disk(disk: &Disk, out: &mut Vec<u8>) {
    let appended = disk.appended.unwrap_or_default();
    match () {
        () if disk.is_loading => put!(out, "loading, {} %", disk.loaded_percent),
        () if appended.is_failing => put!(out, "appending fails"),
        () if disk.save_failed => put!(out, "save failed"),
        () if disk.is_saving => put!(out, "saving"),
        () if appended.is_rewriting => put!(out, "rewriting"),
        () if appended.rewrite_failed => put!(out, "rewrite failed"),
        () if disk.appended.is_some() => put!(out, "{} appended", Bytes(appended.bytes)),
        () if disk.saves == 0 => put!(out, "not saved yet"),
        () => {
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            put!(out, "saved {} ago", Age(now_s.saturating_sub(disk.last_save_s)));
        }
    }
}

/// Writes a row for each engine in another process, and one for each node of engines with several nodes.
fn engine_rows(view: &View<'_>, out: &mut Vec<u8>) {
    let breaker = |is_open: bool| if is_open { "open" } else { "closed" };
    for (name, of) in view.running.told(|engine| engine.connections()) {
        put!(out, "<tr><th scope=row>{}<td>{}<td>{}", Text(name), Text(&of.address), breaker(of.is_open));
        put!(out, "<td>{}<td>{}<td>{}", Grouped(of.connected), Grouped(of.connecting), Grouped(of.max));
        for count in [of.connects, of.queued, of.in_flight, of.replies, of.engine_errors, of.commands] {
            put!(out, "<td>{}", Grouped(count));
        }
        let failed: u64 = of.failures.iter().map(|(_, count)| count).sum();
        put!(out, "<td>{}<td>{}</tr>\n", Grouped(failed), Text(of.last_failure.as_deref().unwrap_or("none")));
        for node in of.nodes.iter().filter(|_| of.nodes.len() > 1) {
            put!(out, "<tr><th scope=row class=node>{}<td>{}", node.role, Text(&node.address));
            put!(out, "<td>{}<td>{}", breaker(node.is_open), Grouped(node.connected));
            put!(out, "<td>{}<td><td>{}", Grouped(node.connecting), Grouped(node.connects));
            put!(out, "<td><td>{}<td>{}", Grouped(node.in_flight), Grouped(node.replies));
            put!(out, "<td>{}<td><td>", Grouped(node.engine_errors));
            put!(out, "<td>{}</tr>\n", Text(node.last_failure.as_deref().unwrap_or("none")));
        }
    }
}

fn limit_rows(view: &View<'_>, out: &mut Vec<u8>) {
    for limit in &view.running.directory.limits {
        let (config, counts) = (&limit.config, limit.counts());
        put!(out, "<tr><th scope=row>{}", Text(&config.name));
        put!(out, "<td>{}<td>{}", config.kind, Text(&config.store));
        for count in [counts.allowed, counts.near, counts.denied, counts.shadowed, counts.failed, counts.local] {
            put!(out, "<td>{}", Grouped(count));
        }
        put!(out, "</tr>\n");
    }
}

/// Writes the descriptions of the headings, for screens without a mouse and for print.
fn glossary(view: &View<'_>, out: &mut Vec<u8>) {
    put!(out, "<details id=\"~gl\"><summary><h2>Glossary</h2></summary>\n<h3>Proxies</h3><dl class=gl>");
    for Column { group, label, about, .. } in view.columns() {
        put!(out, "<div><dt>{group}: {label}<dd>{about}</div>");
    }
    put!(out, "</dl>\n");
    for (_, name, headings) in tables(view) {
        put!(out, "<h3>{name}</h3><dl class=gl>");
        for (label, about, _) in headings {
            put!(out, "<div><dt>{label}<dd>{about}</div>");
        }
        put!(out, "</dl>\n");
    }
    put!(
        out,
        "<p>Counts from ten million on are rounded; ;csv and ;json have all digits. Cards of narrow screens leave out \
         figures that are 0.</p></details>\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::columns;

    #[test]
    fn every_column_of_a_table_is_one_of_the_socket() {
        for Column { name, .. } in COLUMNS.iter().chain(&MODULES) {
            assert!(columns::COLUMNS.iter().any(|column| column.name == *name), "{name}");
        }
    }

    #[test]
    fn every_heading_has_a_name_and_an_explanation() {
        let proxies = COLUMNS.iter().chain(&MODULES).map(|column| (column.label, column.about));
        let others = [STORES, DENIALS, ENGINES, LIMITS].into_iter().flatten().map(|(label, about, _)| (*label, *about));
        for (label, about) in proxies.chain(others) {
            assert!(!label.is_empty() && !about.is_empty() && !about.contains('"'), "{label}: {about}");
        }
    }
}
