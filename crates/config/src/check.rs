//! What only the whole configuration shows: references between proxies, and HAProxy's warnings about what is missing.

use std::sync::Arc;

use crate::catalogue::FetchRow;
use crate::diagnostic::Diagnostics;
use crate::format;
use crate::model::{
    AclRef, Action, BackendName, Balance, Config, DataKind, HashKey, LogLine, Mode, Position, Proxy, ProxyId,
    ProxyKind, ServerChoice, TableData,
};
use crate::section::number_servers;
use crate::suggest;
use crate::track;

/// Checks everything, and drops what HAProxy ignores with a warning. `defaults` says where each proxy's
/// `default_backend` stands.
pub(crate) fn check(config: &mut Config, defaults: &[Option<Position>], diagnostics: &mut Diagnostics) {
    // After an error something may seem to be missing that is only misspelt.
    let whole = !diagnostics.has_errors();
    for proxy in &mut config.proxies {
        number_servers(&mut proxy.servers);
        http_only(proxy, diagnostics);
        if whole {
            timeouts(proxy, diagnostics);
            binds(proxy, diagnostics);
        }
        unreachable_rules(proxy, diagnostics);
        captures(proxy, diagnostics);
        data_tests(proxy, diagnostics);
    }
    config.proxies.iter().for_each(|proxy| stats(proxy, diagnostics));
    limits(config, diagnostics);
    stick_data(config);
    track::resolve(config, diagnostics);
    for (proxy, default_at) in config.proxies.iter().zip(defaults) {
        use_server(proxy, diagnostics);
        modes(proxy, default_at.as_ref(), config, diagnostics);
    }
}

/// A name of a limit means one thing, wherever it stands.
fn limits(config: &mut Config, diagnostics: &mut Diagnostics) {
    for rule in config.proxies.iter().flat_map(|proxy| proxy.tcp_request_content.iter().chain(&proxy.http_request)) {
        let Action::Limit(limit) = &rule.action else { continue };
        let limit = &limit.limit;
        match config.limits.iter().find(|known| known.name == limit.name) {
            None => config.limits.push(limit.clone()),
            Some(known) if known.means_the_same(limit) => {}
            Some(known) => {
                let message = format!(
                    "the limit '{}' is '{}' here and '{}' at {}:{}",
                    limit.name, limit.kind, known.kind, known.at.file, known.at.line
                );
                let error = if known.kind == limit.kind {
                    let message = format!(
                        "the limit '{}' is kept in '{}' here and in '{}' at {}:{}",
                        limit.name, limit.store, known.store, known.at.file, known.at.line
                    );
                    diagnostics.error(limit.at.clone(), message)
                } else {
                    diagnostics.error(limit.at.clone(), message)
                };
                error.hint("rules of one name share one limit: give this one another name");
            }
        }
    }
}

/// Who may see a page of statistics is said in one way.
fn stats(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if let Some(page) = &proxy.stats
        && let Some(rule) = page.access.first()
        && (!page.users.is_empty() || page.realm.is_some())
    {
        let message = "'stats auth' and 'stats realm' cannot be used together with 'stats http-request'";
        let error = diagnostics.error(rule.at.clone(), message);
        error.hint("'stats http-request auth realm R unless { http_auth(LIST) }' does both");
    }
}

/// A table that servers are stored in has room for them, whatever its line says.
fn stick_data(config: &mut Config) {
    let wanted: Vec<_> =
        config.proxies.iter().flat_map(|proxy| &proxy.stick_rules).map(|rule| rule.table.clone()).collect();
    for table in config.proxies.iter_mut().filter_map(|proxy| proxy.stick_table.as_mut()) {
        for kind in [DataKind::ServerId, DataKind::ServerKey] {
            if wanted.contains(&table.name) && !table.data.iter().any(|data| data.kind == kind) {
                table.data.push(TableData { kind, period_ms: 0, elements: 1, block: 1 });
            }
        }
    }
}

/// The servers that rules name exist.
fn use_server(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    for rule in &proxy.use_server {
        let ServerChoice::Named(name) = &rule.server else { continue };
        if !proxy.servers.iter().any(|server| server.name == *name) {
            let message = format!("unable to find server '{name}' referenced in a 'use-server' rule");
            let near = suggest::nearest(name, proxy.servers.iter().map(|server| &*server.name));
            diagnostics.error(rule.at.clone(), message).did_you_mean(near);
        }
    }
}

/// Rules and options that need `mode http`.
fn http_only(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    if proxy.mode == Mode::Http {
        return;
    }
    let (kind, name) = (word(proxy.kind), proxy.name.clone());
    for (rules, what) in [(&mut proxy.http_request, "http-request"), (&mut proxy.http_response, "http-response")] {
        if let Some(first) = rules.first() {
            let message = format!("'{what}' rules ignored for {kind} '{name}' as they require HTTP mode");
            diagnostics.warning(first.at.clone(), message).hint("add 'mode http'");
            rules.clear();
        }
    }
    if let Some(page) = proxy.stats.take() {
        let message = format!("'stats' statement ignored for {kind} '{name}' as it requires HTTP mode");
        diagnostics.warning(page.at, message).hint("add 'mode http'");
    }
    if let Some(line) = &proxy.logging.line
        && matches!(line.keyword, "option httplog" | "option httpslog")
    {
        let message = format!("'{}' not usable with {kind} '{name}' (needs 'mode http')", line.keyword);
        diagnostics.warning(proxy.at.clone(), message).hint("'option tcplog' is used instead");
        let format = Arc::new(format::builtin(format::TCP_LOG));
        proxy.logging.line = Some(LogLine { keyword: "option tcplog", format });
    }
    if let Balance::Hash(key) = &proxy.balance
        && matches!(**key, HashKey::Uri { .. } | HashKey::UrlParam { .. } | HashKey::Header { .. })
    {
        let message = format!("layer 7 hash not possible for {kind} '{name}' (needs 'mode http')");
        diagnostics.warning(proxy.at.clone(), message).hint("'balance roundrobin' is used instead");
        proxy.balance = Balance::RoundRobin;
    }
    if proxy.cookie.take().is_some() {
        let message = format!("'cookie' statement ignored for {kind} '{name}' as it requires HTTP mode");
        diagnostics.warning(proxy.at.clone(), message);
    }
    if proxy.options.forwardfor.is_some() {
        let message = format!("'option forwardfor' ignored for {kind} '{name}' as it requires HTTP mode");
        diagnostics.warning(proxy.at.clone(), message);
        proxy.options.forwardfor = None;
    }
}

fn timeouts(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let times = &proxy.timeouts;
    let mut missing = Vec::new();
    if proxy.kind != ProxyKind::Backend && times.client.is_none() {
        missing.push("'client'");
    }
    if proxy.kind != ProxyKind::Frontend && !proxy.servers.is_empty() {
        if times.connect.is_none() {
            missing.push("'connect'");
        }
        // A TCP proxy lives with a tunnel timeout alone.
        if times.server.is_none() && (proxy.mode == Mode::Http || times.tunnel.is_none()) {
            missing.push("'server'");
        }
    }
    if !missing.is_empty() {
        let message = format!("missing timeouts for {} '{}'", word(proxy.kind), proxy.name);
        let warning = diagnostics.warning(proxy.at.clone(), message);
        warning.hint(format!("without them a silent peer is waited for forever; set {}", missing.join(", ")));
    }
}

fn binds(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.kind == ProxyKind::Frontend && proxy.binds.is_empty() {
        let message = format!("frontend '{}' has no 'bind' directive", proxy.name);
        let warning = diagnostics.warning(proxy.at.clone(), message);
        warning.hint("declare it as a backend if this was intended");
    }
}

/// A rule behind one that always ends the set is never reached.
fn unreachable_rules(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let sets = [
        (&proxy.tcp_request_connection, "tcp-request connection"),
        (&proxy.tcp_request_session, "tcp-request session"),
        (&proxy.tcp_request_content, "tcp-request content"),
        (&proxy.tcp_response_content, "tcp-response content"),
        (&proxy.http_request, "http-request"),
        (&proxy.http_response, "http-response"),
    ];
    for (rules, set) in sets {
        let last = rules.iter().position(|rule| rule.condition.is_none() && is_final(&rule.action));
        // Said once, at the first rule that is lost.
        if let Some(lost) = last.and_then(|last| rules.get(last + 1)) {
            let message =
                format!("previous '{set}' action is final and has no condition attached, further entries are NOOP");
            diagnostics.warning(lost.at.clone(), message);
        }
    }
}

/// A frontend's own rules must name slots that it has; which frontends a backend serves shows only at run time.
fn captures(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.kind == ProxyKind::Backend {
        return;
    }
    for rule in [&proxy.tcp_request_content, &proxy.http_request, &proxy.http_response].into_iter().flatten() {
        let Action::Capture { slot, response, .. } = rule.action else { continue };
        let logging = &proxy.logging;
        let slots = if response { &logging.response_captures } else { &logging.request_captures };
        if slot as usize >= slots.len() {
            let side = if response { "response" } else { "request" };
            let message = format!("unable to find {side} capture id '{slot}'");
            let error = diagnostics.error(rule.at.clone(), message);
            error.hint(format!("'declare capture {side} len N' makes a slot; the first has number 0"));
        }
    }
}

/// HAProxy's warning about conditions that look at the bytes of messages whose heads are known.
fn data_tests(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.mode != Mode::Http {
        return;
    }
    let sets = [
        &proxy.tcp_request_connection,
        &proxy.tcp_request_session,
        &proxy.tcp_request_content,
        &proxy.tcp_response_content,
        &proxy.http_request,
        &proxy.http_response,
    ];
    let rules = sets.into_iter().flatten().map(|rule| (&rule.condition, &rule.at));
    for (condition, at) in rules.chain(proxy.use_backend.iter().map(|rule| (&rule.condition, &rule.at))) {
        let terms = condition.iter().flat_map(|condition| condition.any.iter().flatten());
        let acls = terms.map(|term| match &term.acl {
            AclRef::Named(index) => &proxy.acls[*index as usize],
            AclRef::Inline(acl) => acl,
        });
        let mut tests = acls.flat_map(|acl| &acl.tests);
        if let Some(test) = tests.find(|test| FetchRow::of(test.expr.fetch).needs.is_data()) {
            let (kind, name, fetch) = (word(proxy.kind), &proxy.name, test.expr.fetch.name());
            let warning = diagnostics.warning(at.clone(), format!("L6 sample fetch '{fetch}' in HTTP {kind} '{name}'"));
            warning.hint("it sees what is held of a message, not what was sent");
        }
    }
}

fn is_final(action: &Action) -> bool {
    matches!(
        action,
        Action::Accept
            | Action::Reject
            | Action::Deny(_)
            | Action::Tarpit(_)
            | Action::Return(_)
            | Action::Redirect(_)
            | Action::UseService(_)
            | Action::Exporter
    )
}

/// A frontend and its backends must speak the same.
fn modes(proxy: &Proxy, default_at: Option<&Position>, config: &Config, diagnostics: &mut Diagnostics) {
    let mut target = |id: ProxyId, at: &Position, rule: &str| {
        let backend = &config.proxies[id.0 as usize];
        // A frontend and a backend may share a name.
        if std::ptr::eq(backend, proxy) {
            diagnostics.error(at.clone(), format!("loop detected for {rule}: '{}'", proxy.name));
            return;
        }
        if backend.mode == proxy.mode {
            return;
        }
        if proxy.mode == Mode::Http {
            let message = format!(
                "http frontend '{}' tries to use incompatible tcp backend '{}' in a '{rule}' rule",
                proxy.name, backend.name
            );
            diagnostics.error(at.clone(), message).hint("both need the same 'mode'");
        } else {
            let message = format!(
                "tcp frontend '{}' with http backend '{}' in a '{rule}' rule is not supported yet",
                proxy.name, backend.name
            );
            diagnostics.error(at.clone(), message).hint("both need the same 'mode'");
        }
    };
    for rule in &proxy.use_backend {
        if let BackendName::Static(id) = rule.target {
            target(id, &rule.at, "use_backend");
        }
    }
    if let Some(id) = proxy.default_backend {
        target(id, default_at.unwrap_or(&proxy.at), "default_backend");
    }
}

fn word(kind: ProxyKind) -> &'static str {
    match kind {
        ProxyKind::Frontend => "frontend",
        ProxyKind::Backend => "backend",
        ProxyKind::Listen => "listen",
    }
}
